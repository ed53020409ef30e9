"""Steps in separate processes give the same results as steps in one process, and verify every
reference.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privacy_assets import Policy
from privacy_assets.errors import (
    ConfigError,
    Damaged,
    NotTrusted,
    OutOfDate,
    PolicyNotMet,
    SettingsDiffer,
    TableBusy,
)
from privacy_assets.gate.deployment import DeploymentSettings
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.keys import first_key
from privacy_assets.gate.markers import prepare
from privacy_assets.gate.releases import ReleaseStore
from privacy_assets.infra.objects import ObjectPath, location
from privacy_assets.pipeline import stored_run as stored_steps
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.results import PrepareResult, StepResult
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.pipeline.steps import PUBLISH, run_table, tasks
from privacy_assets.pipeline.stored_run import StoredRun
from privacy_assets.pipeline.work import TableRun
from tests.stores import extend_to_null, new_bucket, s3

QUICK = {"metrics": ["dcr", "value_disclosure"], "embedder": False}
LENIENT = {
    "name": "lenient",
    "limits": [
        {"statistic": "dcr.member_excess", "at_most": 0.1, "bound": "proven", "min_subjects": 5}
    ],
    "metrics": {"dcr": {"n_bootstraps": 50, "n_permutations": 199}},
    "embedder": False,
}


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", "the same split in every run")


@pytest.fixture
def rows(adult: pd.DataFrame, tmp_path: Path) -> Path:
    path = tmp_path / "rows.parquet"
    adult.iloc[:900, :6].to_parquet(path)
    return path


EACH = {"each_row": True}


def spec(rows: Path, *, leak: bool = False, **more: Any) -> TableSpec:
    by_heart = {
        "name": "synthpop",
        "settings": {"min_samples_leaf": 1, "shrinkage": 0, "smoothing": False},
    }
    generator = by_heart if leak else {"name": "synthpop"}
    return TableSpec(
        **{
            "name": "adult",
            "source": rows,
            "subject": {"each_row": True},
            "generator": generator,
            "evaluation": QUICK,
            "policy": LENIENT,
            **more,
        }
    )


def stored(
    chosen: TableSpec,
    folder: Path,
    run: str = "first",
    base: Path | ObjectPath | None = None,
    partition: str | None = None,
    **places: Any,
) -> StoredRun:
    given = {"releases": folder / "releases", "private": folder / "private", **places}
    plan = ResolvedTable.of(chosen, partitioned=partition is not None)
    # Runs overlap here, because the gate must reject what they make even without the run lease of
    # the table.
    table_run = TableRun(
        plan,
        DeploymentSettings(**given).open(),
        ReleaseTarget("adult", partition),
        ended=lambda run: True,
    )
    return StoredRun(table_run, base or folder / "private/values", run)


def step(
    stored: StoredRun, name: str, references: dict[str, Any] | None = None
) -> tuple[dict[str, Any], StepResult]:
    """Run one task in a new object, as in a new process."""
    (task,) = (task for task in tasks(stored.run.table) if task.name == name)
    return replace(stored, run=replace(stored.run)).run_task(task, references or {})


def through(stored: StoredRun) -> dict[str, Any]:
    """References of every task before publication, as an orchestrator passes them on."""
    found: dict[str, Any] = {}
    for task in tasks(stored.run.table):
        if task.step.verb != PUBLISH:
            found[task.name], _ = step(stored, task.name, found)
    return found


def published(stored: StoredRun, found: dict[str, Any]) -> bytes:
    _, result = step(stored, PUBLISH, {"attest": found["attest"]})
    return result.release.table.read_bytes()


def in_memory(run: TableRun) -> bytes:
    *_, (task, result) = run_table(
        run, lambda wanted: nullcontext("cpu"), lambda name: nullcontext()
    )
    assert task.step.verb == PUBLISH
    return result.release.table.read_bytes()


@pytest.mark.slow
def test_the_release_is_that_of_steps_in_memory(rows: Path, tmp_path: Path) -> None:
    chosen = spec(rows)
    steps = stored(chosen, tmp_path / "apart")
    apart = published(steps, through(steps))
    assert in_memory(stored(chosen, tmp_path / "together").run) == apart
    assert (steps.reports / "report.html").is_file()
    folders = [
        steps.base,
        *(
            path
            for path in steps.base.rglob("*")
            if path.is_dir() and path.parent.name != "generator"
        ),
    ]
    assert {path.stat().st_mode & 0o077 for path in folders} == {0}, (
        "private rows are for the own user only"
    )


@pytest.mark.slow
def test_the_report_has_the_notes_of_evaluate(rows: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    codes = np.random.default_rng(0).integers(0, 6, size=(450, 9))
    answers = pd.DataFrame(codes, columns=list("abcdefghi")).map("abcdef".__getitem__)
    pd.concat([answers, answers]).to_parquet(rows)
    policy = {"name": "custom small", "extends": "small", "embedder": False}
    steps = stored(spec(rows, policy=policy, evaluation={"embedder": False}), tmp_path)
    run = replace(steps.run, progress=messages.append)
    prepared = None
    for _, result in run_table(run, lambda wanted: nullcontext("cpu"), lambda name: nullcontext()):
        if isinstance(result, PrepareResult):
            prepared = result
            break
    assert prepared is not None
    assert prepared.inputs.release.notes[0] == (
        "Each row counts as one person, as the user declared, except that equal rows of one table"
        " count as the same person."
    )
    assert any(
        re.match("Train has 4[0-9]+ people, fewer than 800", message) for message in messages
    )


@pytest.mark.slow
def test_filters_embedders_and_tables_of_ones_own(
    rows: Path, tmp_path: Path, adult: pd.DataFrame
) -> None:
    parts = {role: tmp_path / f"{role}.parquet" for role in ("train", "holdout", "synthetic")}
    for number, path in enumerate(parts.values()):
        adult.iloc[number * 300 : number * 300 + 300, :6].to_parquet(path)
    levels = {
        name: sorted(adult[name].dropna().unique())
        for name in adult.iloc[:, :6].select_dtypes(exclude="number")
    }
    small = {**LENIENT, "embedder": {"width": 8, "max_steps": 2}}
    for chosen in (
        TableSpec(
            name="adult",
            data={**parts, "subject": EACH, "allowed_values": levels},
            evaluation=QUICK,
            policy=LENIENT,
        ),
        spec(
            rows,
            generator={"name": "synthpop", "filter": "similarity"},
            evaluation={"metrics": QUICK["metrics"]},
            policy=small,
        ),
    ):
        steps = stored(chosen, tmp_path / str(chosen.data.source is None))
        together = in_memory(
            stored(chosen, tmp_path / f"{chosen.data.source is None} together").run
        )
        assert published(steps, through(steps)) == together
        shown = "validation_accuracy" in (steps.reports / "report.html").read_text()
        assert shown == (chosen.data.source is not None)


@pytest.mark.slow
def test_a_table_that_leaks_is_blocked_with_limit_and_value(rows: Path, tmp_path: Path) -> None:
    steps = stored(spec(rows, leak=True), tmp_path)
    found = through(steps)
    with pytest.raises(PolicyNotMet, match=r"dcr\.member_excess"):
        published(steps, found)
    assert (steps.reports / "report.html").is_file()
    assert not ReleaseStore(tmp_path / "releases").history(ReleaseTarget("adult"))


def forged(reference: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Values that an attacker may pass as a reference."""
    return {
        "nothing": None,
        "of another run": other,
        "of another table": {**reference, "table": "other"},
        "of a partition": {**reference, "partition": "2026-01-01"},
        "of another step": {**reference, "step": "other"},
        "a path": {**reference, "digest": "../../../../rows"},
        "a short path": {**reference, "digest": ".."},
        "upper case": {**reference, "digest": reference["digest"].upper()},
        "with an end of line": {**reference, "digest": reference["digest"] + "\n"},
        "no text": {**reference, "digest": 7},
        "a text": "adult/split",
        "huge": {**reference, "digest": "a" * 10_000_000},
        "a list": [reference],
        "a list of lists": [[reference]],
        "empty": {},
    }


@pytest.mark.slow
def test_no_forged_reference_is_believed(rows: Path, tmp_path: Path) -> None:
    steps, other = (
        stored(spec(rows), tmp_path),
        stored(spec(rows, run={"seed": 1}), tmp_path, "second"),
    )
    found, theirs = through(steps), through(other)
    for made in ("read", "split", "fit", "sample", "prepare", "dcr", "attest"):
        for name, wrong in forged(found[made], theirs[made]).items():
            given = {**found, made: wrong}
            if wrong == found[made]:
                # both runs have the same rows in train, holdout and reference, so their values are
                # equal
                continue
            with pytest.raises((Damaged, NotTrusted, OutOfDate)):
                if made == "attest":
                    published(steps, given)
                else:
                    step(steps, {"read": "split", "fit": "sample"}.get(made, "attest"), given)
                pytest.fail(f"{made}: {name}")
    # results of another metric and of another step
    for wrong in (found["value_disclosure"], found["split"]):
        with pytest.raises((Damaged, NotTrusted)):
            step(steps, "attest", {**found, "dcr": wrong})


@pytest.mark.slow
def test_no_changed_value_is_believed(rows: Path, tmp_path: Path) -> None:
    steps = stored(spec(rows), tmp_path)
    found = through(steps)
    for made in ("split", "prepare", "dcr"):
        folder = steps.folder / made / found[made]["digest"]
        kept = tmp_path / "kept"
        shutil.copytree(folder, kept)
        victim = next(path for path in sorted(folder.rglob("*")) if path.is_file())
        victim.write_bytes(victim.read_bytes()[:-1] + b"x")
        for spoil in (
            lambda: None,
            lambda folder=folder: (folder / "more").mkdir() or (folder / "more/x").write_text("x"),
        ):
            spoil()
            with pytest.raises(Damaged, match=f"the values of step {made} are not those"):
                step(steps, "attest", found)
        shutil.rmtree(folder)
        folder.symlink_to(kept)  # the same bytes, behind a link
        with pytest.raises(Damaged):
            step(steps, "attest", found)
        folder.unlink()
        shutil.move(kept, folder)
    assert step(steps, "attest", found)[1].attestation.verdict == "pass"


@pytest.mark.slow
def test_a_step_that_is_run_again_gives_the_values_it_gave(rows: Path, tmp_path: Path) -> None:
    steps = stored(spec(rows), tmp_path)
    found = through(steps)
    first, again = (step(steps, "split", found)[0] for _ in range(2))
    assert first == again, "two attempts at once cannot replace each other's values"
    assert not [path for path in (steps.folder / "split").iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_a_step_that_is_run_again_mends_its_damaged_values(rows: Path, tmp_path: Path) -> None:
    steps = stored(spec(rows), tmp_path)
    read = {"read": step(steps, "read")[0]}
    split, _ = step(steps, "split", read)
    folder = steps.folder / "split" / split["digest"]
    victim = next(folder.rglob("table.bin"))
    for spoil in (
        lambda: victim.write_bytes(b"x"),
        victim.unlink,
        lambda: (folder / "more").touch(),
    ):
        spoil()
        with pytest.raises(Damaged):
            step(steps, "fit", {"split": split})
        assert step(steps, "split", read)[0] == split
        step(steps, "fit", {"split": split})
    kept = shutil.move(folder, tmp_path / "kept")
    folder.symlink_to(kept)
    assert step(steps, "split", read)[0] == split and not folder.is_symlink()


@pytest.mark.slow
def test_an_older_split_or_verdict_of_the_same_run_is_blocked(
    rows: Path, tmp_path: Path, adult: pd.DataFrame
) -> None:
    steps = stored(spec(rows), tmp_path)
    found = through(steps)
    assert through(steps)["split"] == found["split"]
    with pytest.raises(OutOfDate, match="this attestation of adult is not the latest one"):
        published(steps, found)
    adult.iloc[50:950, :6].to_parquet(rows)  # some people left
    step(steps, "split", {"read": step(steps, "read")[0]})
    for name in ("prepare", "attest"):
        with pytest.raises(OutOfDate, match="this split of adult is not the latest one"):
            step(steps, name, found)
    assert published(steps, through(steps))


@pytest.mark.slow
def test_a_changed_table_stops_before_anything_is_trained(rows: Path, tmp_path: Path) -> None:
    steps = stored(spec(rows), tmp_path)
    found = through(steps)
    for changed in (
        TableSpec(
            name="adult",
            data={"source": rows, "each_row": True, "kinds": {"age": "numeric"}},
            evaluation=QUICK,
            policy=LENIENT,
        ),
        spec(rows, policy={**LENIENT, "name": "other"}),
    ):
        other = stored(changed, tmp_path, "other")
        with pytest.raises(SettingsDiffer):
            through(other)
        assert not list(other.folder.glob("split/*"))
    assert published(steps, found)


@pytest.mark.slow
def test_a_second_run_of_the_table_waits_for_the_first_one(rows: Path, tmp_path: Path) -> None:
    """The lease belongs to the run of the orchestrator, whose steps are separate processes, and to
    all partitions.
    """

    def of(run: str) -> StoredRun:
        found = stored(spec(rows), tmp_path, run)
        return replace(found, run=replace(found.run, ended=lambda run: False))

    first, found = of("first"), dict[str, Any]()
    for task in tasks(first.run.table):
        found[task.name], _ = step(first, task.name, found)
        if task.step.verb != PUBLISH:
            with pytest.raises(
                TableBusy,
                match=r"adult: run first \(process \d+ on .*\) started on .* UTC is still in"
                r" progress",
            ):
                step(of("second"), "read")
    step(of("second"), "read")
    with pytest.raises(TableBusy):
        step(first, PUBLISH, found)


def test_a_step_that_fails_leaves_no_draft(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = stored(spec(rows), tmp_path)
    monkeypatch.setattr(stored_steps, "content_hash", lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        step(steps, "read")
    assert not [path for path in steps.folder.rglob("*") if path.suffix == ".bin"]


@pytest.mark.slow
def test_values_of_other_partitions_go_as_well(rows: Path, tmp_path: Path) -> None:
    for day in ("2026-01-01", "2026-01-02"):
        shutil.copy(rows, tmp_path / f"rows_{day}.parquet")
    daily = spec(tmp_path / "rows_{partition}.parquet")
    first = stored(daily, tmp_path, partition="2026-01-01")
    through(first)
    (first.folder / "touched").write_text(f"{time.time() - 90_000:.0f}")
    step(stored(daily, tmp_path, "next", partition="2026-01-02"), "read")
    assert not first.folder.exists() and (first.reports / "report.html").is_file()


@pytest.mark.slow
def test_a_verdict_can_wait_for_days(rows: Path, tmp_path: Path) -> None:
    steps = stored(spec(rows), tmp_path)
    found = through(steps)
    (steps.folder / "touched").write_text("0")
    step(stored(spec(rows), tmp_path, "next"), "read")
    assert published(steps, found)


@pytest.mark.slow
def test_values_of_runs_that_ended_a_day_ago_go_and_reports_stay(
    rows: Path, tmp_path: Path
) -> None:
    old, young = stored(spec(rows), tmp_path, "old"), stored(spec(rows), tmp_path, "young")
    through(old)
    step(young, "read")
    (old.folder / "touched").write_text(f"{time.time() - 90_000:.0f}")
    (old.folder.parent / "begun").mkdir()  # of a run that has stored no value yet
    steps = stored(spec(rows), tmp_path, "new")
    step(steps, "read")
    assert {path.name for path in old.folder.parent.iterdir()} == {
        young.folder.name,
        steps.folder.name,
        "begun",
    }
    assert (old.reports / "report.html").is_file()


def test_hostile_names_of_runs_stay_in_their_folder(rows: Path, tmp_path: Path) -> None:
    for run in ("../../x", "a/b", "\0", "ü" * 5000, ""):
        steps = stored(spec(rows), tmp_path, run)
        assert steps.folder.parent == steps.home / "runs" and len(steps.folder.name) == 16


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectPath]:
    with s3() as environment, extend_to_null(environment):
        found = location(new_bucket())
        assert isinstance(found, ObjectPath)
        first_key(tmp_path / "made/signing.key", tmp_path / "keys")
        monkeypatch.setenv(
            "PRIVACY_ASSETS_SIGNING_KEY", (tmp_path / "made/signing.key").read_text()
        )
        monkeypatch.setenv("PRIVACY_ASSETS_TRUSTED_KEYS", str(tmp_path / "keys"))
        prepare({"releases": found / "releases", "private": found / "private"})
        yield found


@pytest.mark.slow
def test_values_in_an_object_store(rows: Path, tmp_path: Path, bucket: ObjectPath) -> None:
    places = {"releases": f"{bucket}/releases", "private": f"{bucket}/private"}
    steps = stored(spec(rows), tmp_path, base=bucket / "private/values", **places)
    found = through(steps)
    assert published(steps, found)
    victim = steps.folder / "split" / found["split"]["digest"] / "train" / "table.bin"
    victim.put(b"other bytes")
    with pytest.raises(Damaged):
        step(steps, "sample", found)
    (steps.folder / "touched").put(b"0")
    step(stored(spec(rows), tmp_path, "next", base=bucket / "private/values", **places), "read")
    assert not steps.folder.exists() and steps.reports.exists()


@pytest.mark.slow
def test_policies_are_those_of_now(rows: Path, tmp_path: Path) -> None:
    lenient = stored(
        spec(
            rows,
            leak=True,
            policy={**LENIENT, "limits": [{**LENIENT["limits"][0], "at_most": 1.0}]},
        ),
        tmp_path,
    )
    found = through(lenient)
    strict = stored(spec(rows, leak=True), tmp_path)
    with pytest.raises((SettingsDiffer, OutOfDate)):
        published(strict, found)
    assert isinstance(strict.run.table.policy, Policy) and os.listdir(tmp_path / "private")


def test_a_table_and_partition_has_one_task_in_a_run(rows: Path, tmp_path: Path) -> None:
    """Also after retries of that task. Another run, or another partition, can have another task."""
    chosen = spec(rows.with_name("{partition}.parquet"))
    first = stored(chosen, tmp_path, partition="north")
    replace(first, task_id="gate[0]").start()
    replace(first, task_id="gate[0]").start()
    with pytest.raises(
        ConfigError, match=re.escape("adult, north: task 'gate[0]' of this run has the same table")
    ):
        replace(first, task_id="gate[1]").start()
    replace(stored(chosen, tmp_path, partition="south"), task_id="gate[1]").start()
    replace(stored(chosen, tmp_path, "second", partition="north"), task_id="gate[1]").start()
