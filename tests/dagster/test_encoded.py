"""The encoded tables: their decoded contents, and that a score accepts signed values only."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pandas as pd
import pytest
from standins import blocking_error, checks, people, people_table, run

from privacy_assets import TableSpec
from privacy_assets.errors import Damaged, InputError, NotTrusted, OutOfDate, WrongTarget
from privacy_assets.evaluation.measuring import run_metrics
from privacy_assets.gate.deployment import DeploymentSettings
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.snapshot import Snapshot
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.stored_inputs import digest_of, load_inputs, save_inputs
from privacy_assets.pipeline import work
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
    "limits": [
        {"statistic": "value_disclosure.generated_excess", "at_most": 0.5, "bound": "proven"}
    ],
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
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[TableRun, EvaluationInputs]:
    """The encoded tables of a small release with a user's own synthetic table."""
    place = tmp_path_factory.mktemp("made")
    files = {
        role: place / f"{role}.parquet" for role in ("train", "holdout", "reference", "synthetic")
    }
    for number, (role, file) in enumerate(files.items()):
        rows(number, 1000 * number).drop(columns=["pid"] if role == "synthetic" else []).to_parquet(
            file
        )
    spec = TableSpec(
        name="own",
        subject="pid",
        data={**files, "new_values": WHY},
        evaluation={"metrics": [*SETTINGS, "value_disclosure"]},
        policy=POLICY,
    )
    deployment = DeploymentSettings(
        releases=str(place / "releases"), private=str(place / "private")
    ).open()
    run = TableRun(ResolvedTable.of(spec), deployment, ReleaseTarget("own"))
    values = dict(work.split(run, "split", {}).values)
    for step in (work.embed, work.sample, work.prepare):
        values |= step(run, step.__name__, values).values
    return run, values["evaluation_inputs"]


@pytest.fixture
def stored(made: tuple[TableRun, EvaluationInputs], tmp_path: Path) -> Path:
    save_inputs(made[1], tmp_path / "encoded")
    return tmp_path / "encoded"


def opened(steps: TableRun, folder: Path) -> tuple[EvaluationInputs, Mapping[str, Any], Snapshot]:
    inputs = load_inputs(folder)
    return inputs, *work.checked_inputs(steps, inputs)


def record_of(inputs: EvaluationInputs) -> dict[str, Any]:
    return json.loads(base64.b64decode(json.loads(inputs.context.envelope)["payload"]))["predicate"]


@pytest.mark.slow
def test_what_was_stored_measures_the_same(
    made: tuple[TableRun, EvaluationInputs], stored: Path
) -> None:
    steps, before = made
    after, signed, snapshot = opened(steps, stored)
    assert (signed, snapshot) == work.checked_inputs(steps, before)
    assert (digest_of(after), after.context.envelope) == (
        digest_of(before),
        before.context.envelope,
    )
    assert after.embedder.description == before.embedder.description
    for given, found in (
        (before.tables, after.tables),
        (before.release.generated, after.release.generated),
    ):
        assert list(given) == list(found)
        for role, table in given.items():
            assert found[role].schema == table.schema
            pd.testing.assert_frame_equal(found[role].frame(), table.frame())
    assert after.fingerprints == before.fingerprints
    for name, metric in steps.table.metrics.items():
        embeds = steps.table.uses_embedder(metric)
        known = {} if embeds else {"embedder": None}
        was, now = (
            run_metrics(one.with_context(replace(one.context, seed=3, **known)), {name: metric})
            for one in (before, after)
        )
        told = [
            json.dumps(result[name].to_json() | {"seconds": 0}, sort_keys=True)
            for result in (was, now)
        ]
        assert told[0] == told[1], name


def test_nothing_is_prepared_again(
    made: tuple[TableRun, EvaluationInputs], stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privacy_assets.distances.embedder import Embedder
    from privacy_assets.tables.encoding import TabularEncoder

    def fails(*_: object, **__: object) -> None:
        raise AssertionError("prepared again")

    for kind, name in (
        (TabularEncoder, "transform"),
        (TabularEncoder, "fit"),
        (Embedder, "embed"),
        (Embedder, "load"),
    ):
        monkeypatch.setattr(kind, name, fails)
    monkeypatch.setattr("privacy_assets.tables.table.content_fingerprint", fails)
    steps, _ = made
    assert work.score(steps, "dcr", {"evaluation_inputs": load_inputs(stored)}).result.estimates


def flipped(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(bytes(data))


@pytest.mark.slow
def test_what_was_changed_is_blocked(made: tuple[TableRun, EvaluationInputs], stored: Path) -> None:
    steps, file = made[0], stored / "inputs.bin"
    whole = file.read_bytes()
    opened(steps, stored)
    places = [0, 8, *range(64, len(whole), 997)]
    changes = [partial(flipped, at=at) for at in places]
    cut = [
        lambda file, size=size: file.write_bytes(whole[:size])
        for size in (0, 10, 64, len(whole) // 2)
    ]
    blocked = 0
    for change in (*changes, *cut, Path.unlink):
        file.write_bytes(whole)
        change(file)
        try:
            inputs = opened(steps, stored)[0]
        except (Damaged, NotTrusted, OutOfDate):
            blocked += 1
        else:  # only bytes between the parts of the file
            assert (digest_of(inputs), inputs.context.envelope) == (
                digest_of(made[1]),
                made[1].context.envelope,
            )
    assert blocked > 0.9 * (len(places) + len(cut) + 1)


def test_another_embedder_is_blocked(made: tuple[TableRun, EvaluationInputs], stored: Path) -> None:
    facts = stored / "embedder/embedder.json"
    facts.write_text(facts.read_text().replace('"width": 8', '"width": 9'))
    inputs = opened(made[0], stored)[0]
    with pytest.raises((Damaged, InputError)):
        inputs.embedder.embed(inputs.train)


def test_the_record_has_keyed_digests_only(
    made: tuple[TableRun, EvaluationInputs], stored: Path
) -> None:
    """A plain hash of a file would confirm a guess of the last private row."""
    inputs = made[1]
    plain = {hashlib.sha256((stored / "inputs.bin").read_bytes()).hexdigest(), digest_of(inputs)}
    plain |= {table.fingerprint for table in inputs.tables.values()}
    assert len(plain) == 6 and not [digest for digest in plain if digest in str(record_of(inputs))]


def test_another_record_is_blocked(made: tuple[TableRun, EvaluationInputs], stored: Path) -> None:
    steps, inputs = made
    envelope = record_of(inputs)["snapshot"].encode()
    other = inputs.with_context(replace(inputs.context, envelope=envelope))
    with pytest.raises(NotTrusted):
        work.checked_inputs(steps, other)


def test_other_settings_of_the_split_are_blocked(
    made: tuple[TableRun, EvaluationInputs], stored: Path
) -> None:
    steps, inputs = made
    spec = steps.table.spec
    changed = spec.model_copy(update={"data": spec.data.model_copy(update={"subject": None})})
    with pytest.raises(OutOfDate, match="under other settings"):
        work.checked_inputs(replace(steps, table=ResolvedTable.of(changed)), inputs)
    with pytest.raises(WrongTarget, match="another table or partition"):
        work.checked_inputs(replace(steps, target=ReleaseTarget("other")), inputs)


@pytest.mark.slow
def test_bypass_51_codes_swapped_between_encoding_and_scoring(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """An attacker with access to the storage makes the scores read harmless rows, and the leaky
    ones are published.
    """
    folder, held = tmp_path / "storage/people/evaluation_inputs", tmp_path / "held"
    assert run(people_table(tmp_path), instance).success
    (first,) = folder.glob("model-*")
    shutil.copytree(first, held)
    other = people_table(tmp_path, seed=1)
    assert (
        run(other, instance, "synthetic").success
        and run(other, instance, "evaluation_inputs").success
    )
    (now,) = set(folder.glob("model-*")) - {first}
    mine = load_inputs(now)
    theirs = load_inputs(held)
    context = replace(theirs.context, embedder=None, envelope=mine.context.envelope)
    save_inputs(theirs.with_context(context), now)
    assert "was changed after it was signed" in blocking_error(run(other, instance, "dcr"), "dcr")
    # with its record: the scores are then of another table
    shutil.copy(held / "inputs.bin", now / "inputs.bin")
    run(other, instance, "dcr")
    stale = run(other, instance, "attestation")
    assert not checks(stale)["attestation", "policy_holds"].passed
    assert "another synthetic table" in blocking_error(stale, "attestation")
