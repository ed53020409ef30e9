"""The encoded tables: what they give back, and that a score believes nothing but what was signed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import dagster as dg
import numpy as np
import pandas as pd
import pytest
from standins import checks, people, people_table, refusal, run

from privacy_assets import TableSpec
from privacy_assets.errors import PublicationRefused
from privacy_assets.evaluation import run_metrics
from privacy_assets.gate.statements import Place
from privacy_assets.pipeline.deployment import Deployment
from privacy_assets.pipeline.encoded import Encoded, StoredEncoded, for_metric
from privacy_assets.pipeline.measuring import fitted_embedder
from privacy_assets.pipeline.plan import TablePlan
from privacy_assets.pipeline.steps import Steps

WHY = {"token": "made up anew"}
POLICY = {"limits": [{"statistic": "value_disclosure.generated_excess", "at_most": 0.5, "bound": "lower"}]}
METRICS = {
    "dcr": {"bootstraps": 50, "permutations": 199},
    "membership_inference": {"permutations": 199},
    "linkability": {"attacks": 50, "permutations": 199},
    "attribute_inference": {"attacks": 50, "permutations": 199},
    "value_disclosure": {},
}


def rows(seed: int, first: int) -> pd.DataFrame:
    """People of every kind of column, with gaps, and a column of codes."""
    frame = people(150, seed=seed)
    rng = np.random.default_rng(seed)
    n = len(frame)
    return frame.assign(
        pid=[f"q{first + i // 2}" for i in range(n)],
        born=pd.Timestamp("1950-01-01") + pd.to_timedelta(rng.integers(0, 9000, n), unit="D"),
        member=pd.array(rng.random(n) < 0.4, dtype="boolean"),
        visits=pd.array(np.where(rng.random(n) < 0.1, None, rng.integers(0, 50, n)), dtype="Int64"),
        token=[f"{rng.integers(10**9):012x}" for _ in range(n)],
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Steps, Encoded]:
    """The encoded tables of a small release of the user's own."""
    place = tmp_path_factory.mktemp("made")
    files = {role: place / f"{role}.parquet" for role in ("train", "holdout", "reference", "synthetic")}
    for number, (role, file) in enumerate(files.items()):
        rows(number, 1000 * number).drop(columns=["pid"] if role == "synthetic" else []).to_parquet(file)
    spec = TableSpec(
        name="own",
        subject="pid",
        data={**files, "generated": WHY},
        attacks={"metrics": METRICS, "embedder": {"max_epochs": 1, "width": 8}},
        policy=POLICY,
    )
    steps = Steps(TablePlan.of(spec), Deployment(place / "releases", place / "private"), Place("own"))
    tables = steps.splits(None)
    synthetic = steps.synthetic({"train": tables["train"]}, None).sealed
    return steps, steps.encoded(tables, synthetic, fitted_embedder(steps.plan, tables))


@pytest.fixture
def stored(made: tuple[Steps, Encoded], tmp_path: Path) -> Path:
    made[1].save(tmp_path / "encoded")
    return tmp_path / "encoded"


def opened(steps: Steps, folder: Path):
    return StoredEncoded(folder).open(steps.gate, steps.place, steps.plan.split_setup, steps.deployment.keyed)


def test_what_was_stored_measures_the_same(made: tuple[Steps, Encoded], stored: Path) -> None:
    steps, before = made
    after = opened(steps, stored)
    assert (after.metadata, after.snapshot) == (before.metadata, before.snapshot)
    assert json.dumps(after.metadata.sizes) == json.dumps(before.metadata.sizes)  # in the same order
    for given, found in (
        (before.inputs.tables, after.inputs.tables),
        (before.inputs.generated, after.inputs.generated),
    ):
        assert list(given) == list(found)
        for role, table in given.items():
            assert found[role].schema == table.schema
            pd.testing.assert_frame_equal(found[role].frame(), table.frame())
    assert replace(after.inputs).fingerprints == before.inputs.fingerprints  # without what was stored
    for name, metric in steps.plan.metrics.items():
        embeds = steps.plan.uses_embedder(metric)
        was, now = (run_metrics(for_metric(one, embeds, None, seed=3), {name: metric}) for one in (before, after))
        told = [json.dumps(result[name].to_json() | {"seconds": 0}, sort_keys=True) for result in (was, now)]
        assert told[0] == told[1], name


def test_nothing_is_prepared_again(made: tuple[Steps, Encoded], stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from privacy_assets.embedding.embedder import Embedder
    from privacy_assets.tables.encoding import Encoder

    def fails(*_: object, **__: object) -> None:
        raise AssertionError("prepared again")

    for kind, name in ((Encoder, "transform"), (Encoder, "fit"), (Embedder, "embed"), (Embedder, "load")):
        monkeypatch.setattr(kind, name, fails)
    monkeypatch.setattr("privacy_assets.tables.table.content_fingerprint", fails)
    steps, _ = made
    assert steps.score(steps.plan.metrics["dcr"], StoredEncoded(stored)).result.estimates


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


@pytest.mark.parametrize("name", ["tables.bin", "embeddings.bin", "tables.json", "encoded.json", "synthetic.json"])
def test_what_was_changed_is_refused(made: tuple[Steps, Encoded], stored: Path, name: str) -> None:
    steps, file = made[0], stored / name
    whole = file.read_bytes()
    opened(steps, stored)
    for change in (flipped, lambda file: file.write_bytes(b""), Path.unlink):
        file.write_bytes(whole)
        change(file)
        with pytest.raises(PublicationRefused):
            opened(steps, stored)


def test_another_record_is_refused(made: tuple[Steps, Encoded], stored: Path) -> None:
    shutil.copy(stored / "synthetic.json", stored / "encoded.json")
    with pytest.raises(PublicationRefused):
        opened(made[0], stored)


def test_other_settings_of_the_split_are_refused(made: tuple[Steps, Encoded], stored: Path) -> None:
    steps, _ = made
    setup = {**steps.plan.split_setup, "subject": None}
    with pytest.raises(PublicationRefused, match="under other settings"):
        StoredEncoded(stored).record(steps.gate, steps.place, setup)
    with pytest.raises(PublicationRefused, match="another table or partition"):
        StoredEncoded(stored).record(steps.gate, Place("other"), steps.plan.split_setup)


def test_route_51_codes_swapped_between_encoding_and_scoring(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """Whoever writes to the storage has the scores look at harmless rows, and the leaky ones published."""
    folder, held = tmp_path / "storage/people/encoded", tmp_path / "held"
    assert run(people_table(tmp_path), instance).success
    (first,) = folder.glob("model-*")
    shutil.copytree(first, held)
    other = people_table(tmp_path, seed=1)
    assert run(other, instance, "synthetic").success and run(other, instance, "encoded").success
    (now,) = set(folder.glob("model-*")) - {first}
    for name in ("tables.bin", "tables.json"):
        shutil.copy(held / name, now / name)
    assert "was changed after it was signed" in refusal(run(other, instance, "dcr"), "dcr")
    for name in ("encoded.json", "synthetic.json"):  # all of it: then the scores are of another table
        shutil.copy(held / name, now / name)
    run(other, instance, "dcr")
    stale = run(other, instance, "attestation")
    assert not checks(stale)["attestation", "policy_holds"].passed
    assert "another synthetic table" in refusal(stale, "attestation")
