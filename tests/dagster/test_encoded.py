"""The encoded tables: their decoded contents, and that a score accepts signed values only."""

from __future__ import annotations

import base64
import hashlib
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
from privacy_assets.errors import Damaged, NotTrusted, OutOfDate, WrongTarget
from privacy_assets.evaluation.evaluate import run_metrics
from privacy_assets.gate.deployment import DeploymentSettings
from privacy_assets.gate.statements import ReleaseTarget
from privacy_assets.pipeline import work
from privacy_assets.pipeline.encoded import Encoded, StoredEncoded, for_metric
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.work import TableRun

WHY = {"token": "made up anew"}
SETTINGS = {
    "dcr": {"n_bootstraps": 50, "n_permutations": 199},
    "membership_inference": {"n_permutations": 199},
    "linkability": {"max_targets": 50, "n_permutations": 199},
    "attribute_inference": {"max_targets": 50, "n_permutations": 199},
}
POLICY = {
    "limits": [{"statistic": "value_disclosure.generated_excess", "at_most": 0.5, "bound": "significant"}],
    "metrics": SETTINGS,
    "embedder": {"max_epochs": 1, "width": 8},
}


def rows(seed: int, first: int) -> pd.DataFrame:
    """Rows with every kind of column, missing values, and a column of codes."""
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
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[TableRun, Encoded]:
    """The encoded tables of a small release with a user's own synthetic table."""
    place = tmp_path_factory.mktemp("made")
    files = {role: place / f"{role}.parquet" for role in ("train", "holdout", "reference", "synthetic")}
    for number, (role, file) in enumerate(files.items()):
        rows(number, 1000 * number).drop(columns=["pid"] if role == "synthetic" else []).to_parquet(file)
    spec = TableSpec(
        name="own",
        subject="pid",
        data={**files, "new_values": WHY},
        evaluation={"metrics": [*SETTINGS, "value_disclosure"]},
        policy=POLICY,
    )
    deployment = DeploymentSettings(releases=str(place / "releases"), private=str(place / "private")).open()
    run = TableRun(ResolvedTable.of(spec), deployment, ReleaseTarget("own"))
    values = dict(work.split(run, "split", {}).values)
    for step in (work.embed, work.sample, work.prepare):
        values |= step(run, step.__name__, values).values
    return run, values["evaluation_inputs"]


@pytest.fixture
def stored(made: tuple[TableRun, Encoded], tmp_path: Path) -> Path:
    made[1].save(tmp_path / "encoded")
    return tmp_path / "encoded"


def opened(steps: TableRun, folder: Path):
    return StoredEncoded(folder).open(steps.gate, steps.place, steps.split_setup, steps.deployment.keyed_fingerprint)


def test_what_was_stored_measures_the_same(made: tuple[TableRun, Encoded], stored: Path) -> None:
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
    assert replace(after.inputs).fingerprints == before.inputs.fingerprints  # without the stored values
    for name, metric in steps.table.metrics.items():
        embeds = steps.table.uses_embedder(metric)
        was, now = (run_metrics(for_metric(one, embeds, None, seed=3), {name: metric}) for one in (before, after))
        told = [json.dumps(result[name].to_json() | {"seconds": 0}, sort_keys=True) for result in (was, now)]
        assert told[0] == told[1], name


def test_nothing_is_prepared_again(
    made: tuple[TableRun, Encoded], stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privacy_assets.distances.embedder import Embedder
    from privacy_assets.tables.encoding import TabularEncoder

    def fails(*_: object, **__: object) -> None:
        raise AssertionError("prepared again")

    for kind, name in ((TabularEncoder, "transform"), (TabularEncoder, "fit"), (Embedder, "embed"), (Embedder, "load")):
        monkeypatch.setattr(kind, name, fails)
    monkeypatch.setattr("privacy_assets.tables.table.content_fingerprint", fails)
    steps, _ = made
    assert work.score(steps, "dcr", {"evaluation_inputs": StoredEncoded(stored)}).shown.result.estimates


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


@pytest.mark.parametrize("name", ["tables.bin", "embeddings.bin", "tables.json", "encoded.json", "synthetic.json"])
def test_what_was_changed_is_refused(made: tuple[TableRun, Encoded], stored: Path, name: str) -> None:
    steps, file = made[0], stored / name
    whole = file.read_bytes()
    opened(steps, stored)
    for change in (flipped, lambda file: file.write_bytes(b""), Path.unlink):
        file.write_bytes(whole)
        change(file)
        with pytest.raises((Damaged, NotTrusted, OutOfDate)):
            opened(steps, stored)


def test_the_record_has_keyed_digests_only(made: tuple[TableRun, Encoded], stored: Path) -> None:
    """A plain hash of a file would confirm a guess of the last private row."""
    body = json.loads(base64.b64decode(json.loads((stored / "encoded.json").read_bytes())["payload"]))["predicate"]
    plain = {hashlib.sha256((stored / name).read_bytes()).hexdigest() for name in body["files"]}
    plain |= {table.fingerprint for table in made[1].inputs.tables.values()}
    assert len(plain) == 7 and not [digest for digest in plain if digest in str(body)]


def test_another_record_is_refused(made: tuple[TableRun, Encoded], stored: Path) -> None:
    shutil.copy(stored / "synthetic.json", stored / "encoded.json")
    with pytest.raises(NotTrusted):
        opened(made[0], stored)


def test_other_settings_of_the_split_are_refused(made: tuple[TableRun, Encoded], stored: Path) -> None:
    steps, _ = made
    setup = {**steps.split_setup, "subject": None}
    with pytest.raises(OutOfDate, match="under other settings"):
        StoredEncoded(stored).record(steps.gate, steps.place, setup)
    with pytest.raises(WrongTarget, match="another table or partition"):
        StoredEncoded(stored).record(steps.gate, ReleaseTarget("other"), steps.split_setup)


@pytest.mark.slow
def test_route_51_codes_swapped_between_encoding_and_scoring(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """An attacker with access to the storage makes the scores read harmless rows, and the leaky ones are published."""
    folder, held = tmp_path / "storage/people/evaluation_inputs", tmp_path / "held"
    assert run(people_table(tmp_path), instance).success
    (first,) = folder.glob("model-*")
    shutil.copytree(first, held)
    other = people_table(tmp_path, seed=1)
    assert run(other, instance, "synthetic").success and run(other, instance, "evaluation_inputs").success
    (now,) = set(folder.glob("model-*")) - {first}
    for name in ("tables.bin", "tables.json"):
        shutil.copy(held / name, now / name)
    assert "was changed after it was signed" in refusal(run(other, instance, "dcr"), "dcr")
    for name in ("encoded.json", "synthetic.json"):  # both files: the scores are then of another table
        shutil.copy(held / name, now / name)
    run(other, instance, "dcr")
    stale = run(other, instance, "attestation")
    assert not checks(stale)["attestation", "policy_holds"].passed
    assert "another synthetic table" in refusal(stale, "attestation")
