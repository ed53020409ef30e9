"""Steps in processes of their own say what steps in one process say, and believe no reference."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from privacy_assets import Policy
from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.keys import first_key
from privacy_assets.gate.prepared import prepare
from privacy_assets.gate.releases import ReleaseStore
from privacy_assets.gate.statements import Place
from privacy_assets.pipeline import stored_steps
from privacy_assets.pipeline.deployment import Deployment
from privacy_assets.pipeline.plan import TablePlan
from privacy_assets.pipeline.run import run_table
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.pipeline.steps import Steps
from privacy_assets.pipeline.stored_steps import ATTEST, SCORE, StoredSteps, steps_of_plan
from privacy_assets.storage.objects import ObjectPath, location
from tests.stores import new_bucket, reaching, s3

QUICK = {"metrics": {"dcr": {"bootstraps": 50, "permutations": 199}, "value_disclosure": {}}, "embedder": False}
LENIENT = {
    "name": "lenient",
    "limits": [{"statistic": "dcr.member_excess_any", "at_most": 0.1, "bound": "lower", "smallest_n": 5}],
}


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVACY_ASSETS_SECRET", "the same split in every run")


@pytest.fixture
def rows(adult: pd.DataFrame, tmp_path: Path) -> Path:
    path = tmp_path / "rows.parquet"
    adult.iloc[:900, :6].to_parquet(path)
    return path


def spec(rows: Path, *, leak: bool = False, **more: Any) -> TableSpec:
    by_heart = {"name": "synthpop", "settings": {"min_leaf": 1, "smoothing": False}}
    generator = by_heart if leak else {"name": "synthpop"}
    return TableSpec(
        **{"name": "adult", "source": rows, "generator": generator, "attacks": QUICK, "policy": LENIENT, **more}
    )


def stored(
    chosen: TableSpec,
    folder: Path,
    run: str = "first",
    base: Path | ObjectPath | None = None,
    partition: str | None = None,
    **places: Any,
) -> StoredSteps:
    given = {"root": folder / "releases", "private": folder / "private", **places}
    plan = TablePlan.of(chosen, partitioned=partition is not None)
    steps = Steps(plan, Deployment(**given), Place("adult", partition))
    return StoredSteps(steps, base or folder / "private/values", run)


def through(steps: StoredSteps, **changed: Any) -> dict[str, Any]:
    """References of every step, as an orchestrator hands them on; each step is a new object, as in a new process."""
    found: dict[str, Any] = {}
    for step, reads in steps_of_plan(steps.steps.plan).items():
        own = replace(steps, steps=replace(steps.steps))
        given = {one: changed.get(one, found[one]) for one in reads}
        if step == SCORE:
            found[step] = [own.score(metric, given) for metric in own.steps.plan.metrics]
        elif step == ATTEST:
            found[step], _ = own.attest(given)
        else:
            found[step] = getattr(own, step)(*([given] if given else []))
    return found


def published(steps: StoredSteps, found: dict[str, Any]) -> bytes:
    with steps.verdict(found) as (attestation, synthetic):
        return steps.steps.publish(attestation, synthetic).table.read_bytes()


def test_the_release_is_that_of_steps_in_memory(rows: Path, tmp_path: Path) -> None:
    chosen = spec(rows)
    steps = stored(chosen, tmp_path / "apart")
    apart = published(steps, through(steps))
    together = run_table(stored(chosen, tmp_path / "together").steps)
    assert together.release is not None and together.release.table.read_bytes() == apart
    assert (steps.reports / "report.html").is_file()
    folders = [
        steps.base,
        *(path for path in steps.base.rglob("*") if path.is_dir() and path.parent.name != "generator"),
    ]
    assert {path.stat().st_mode & 0o077 for path in folders} == {0}, "private rows are for the own user only"


def test_filters_embedders_and_tables_of_ones_own(rows: Path, tmp_path: Path, adult: pd.DataFrame) -> None:
    parts = {role: tmp_path / f"{role}.parquet" for role in ("train", "holdout", "synthetic")}
    for number, path in enumerate(parts.values()):
        adult.iloc[number * 300 : number * 300 + 300, :6].to_parquet(path)
    small = {"metrics": QUICK["metrics"], "embedder": {"width": 8, "max_steps": 2}}
    for chosen in (
        TableSpec(name="adult", data=parts, attacks=QUICK, policy=LENIENT),
        spec(rows, generator={"name": "synthpop", "filter": "similarity"}, attacks=small),
    ):
        steps = stored(chosen, tmp_path / str(chosen.data.source is None))
        together = run_table(stored(chosen, tmp_path / f"{chosen.data.source is None} together").steps)
        assert together.release is not None and published(steps, through(steps)) == together.release.table.read_bytes()


def test_a_table_that_leaks_is_refused_with_limit_and_value(rows: Path, tmp_path: Path) -> None:
    steps = stored(spec(rows, leak=True), tmp_path)
    found = through(steps)
    with pytest.raises(PublicationRefused, match=r"The policy does not hold.*dcr\.member_excess_any"):
        published(steps, found)
    assert (steps.reports / "report.html").is_file()
    assert not ReleaseStore(tmp_path / "releases").history(Place("adult"))


def forged(reference: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What may stand for a reference."""
    return {
        "nothing": None,
        "of another run": other,
        "of another table": {**reference, "table": "other"},
        "of a partition": {**reference, "partition": "2026-01-01"},
        "of another step": {**reference, "step": "source"},
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


def test_no_forged_reference_is_believed(rows: Path, tmp_path: Path) -> None:
    steps, other = stored(spec(rows), tmp_path), stored(spec(rows, run={"seed": 1}), tmp_path, "second")
    found, theirs = through(steps), through(other)
    for step in ("split", "fit", "sample", "encode", ATTEST):
        for name, wrong in forged(found[step], theirs[step]).items():
            given = {**found, step: wrong}
            if wrong == found[step]:
                continue  # both runs have the same rows in train, holdout and reference, and so the same values
            with pytest.raises(PublicationRefused, match=r"gave nothing|no reference|are not those"):
                if step == ATTEST:
                    published(steps, given)
                else:
                    steps.attest(given) if step in ("split", "encode", "sample") else steps.sample(given)
                pytest.fail(f"{step}: {name}")
    for scores in (None, [], found[SCORE][:1], found[SCORE][:1] * 2):
        with pytest.raises(PublicationRefused, match="step score of .* gave nothing"):
            steps.attest({**found, SCORE: scores})
    for scores in (theirs[SCORE], [found[SCORE][0], "x"], [found["split"], *found[SCORE]]):
        with pytest.raises(PublicationRefused, match=r"no reference|are not those"):
            steps.attest({**found, SCORE: scores})


def test_no_changed_value_is_believed(rows: Path, tmp_path: Path) -> None:
    steps = stored(spec(rows), tmp_path)
    found = through(steps)
    for step in ("split", "encode", "sample"):
        folder = steps.folder / step / found[step]["digest"]
        kept = tmp_path / "kept"
        shutil.copytree(folder, kept)
        victim = next(path for path in sorted(folder.rglob("*")) if path.is_file())
        victim.write_bytes(victim.read_bytes()[:-1] + b"x")
        for spoil in (
            lambda: None,
            lambda folder=folder: (folder / "more").mkdir() or (folder / "more/x").write_text("x"),
        ):
            spoil()
            with pytest.raises(PublicationRefused, match=f"the values of step {step} are not those"):
                steps.attest(found)
        shutil.rmtree(folder)
        folder.symlink_to(kept)  # the very bytes, behind a link
        with pytest.raises(PublicationRefused, match="are not those"):
            steps.attest(found)
        folder.unlink()
        shutil.move(kept, folder)
    assert steps.attest(found)[1].stated.verdict == "pass"


def test_a_step_that_is_run_again_gives_the_values_it_gave(rows: Path, tmp_path: Path) -> None:
    steps = stored(spec(rows), tmp_path)
    first, again = steps.split(), steps.split()
    assert first == again, "two attempts at once cannot replace each other's values"
    assert not [path for path in (steps.folder / "split").iterdir() if path.name.startswith(".")]


def test_a_step_that_is_run_again_mends_its_damaged_values(rows: Path, tmp_path: Path) -> None:
    steps = stored(spec(rows), tmp_path)
    split = steps.split()
    folder = steps.folder / "split" / split["digest"]
    victim = next(folder.rglob("*.parquet"))
    for spoil in (lambda: victim.write_bytes(b"x"), victim.unlink, lambda: (folder / "more").touch()):
        spoil()
        with pytest.raises(PublicationRefused, match="Fix: run split again"):
            steps.fit({"split": split})
        assert steps.split() == split
        steps.fit({"split": split})
    kept = shutil.move(folder, tmp_path / "kept")
    folder.symlink_to(kept)
    assert steps.split() == split and not folder.is_symlink()


def test_a_step_that_fails_leaves_no_draft(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = stored(spec(rows), tmp_path)
    monkeypatch.setattr(stored_steps, "content_hash", lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        steps.split()
    assert not [path for path in steps.folder.rglob("*") if path.suffix == ".parquet"]


def test_values_of_other_partitions_go_as_well(rows: Path, tmp_path: Path) -> None:
    for day in ("2026-01-01", "2026-01-02"):
        shutil.copy(rows, tmp_path / f"rows_{day}.parquet")
    daily = spec(tmp_path / "rows_{partition}.parquet")
    first = stored(daily, tmp_path, partition="2026-01-01")
    through(first)
    (first.folder / "touched").write_text(f"{time.time() - 90_000:.0f}")
    stored(daily, tmp_path, "next", partition="2026-01-02").split()
    assert not first.folder.exists() and (first.reports / "report.html").is_file()


def test_a_verdict_can_wait_for_days(rows: Path, tmp_path: Path) -> None:
    steps = stored(spec(rows), tmp_path)
    found = through(steps)
    (steps.folder / "touched").write_text("0")
    stored(spec(rows), tmp_path, "next").split()
    assert published(steps, found)


def test_values_of_runs_that_ended_a_day_ago_go_and_reports_stay(rows: Path, tmp_path: Path) -> None:
    old, young = stored(spec(rows), tmp_path, "old"), stored(spec(rows), tmp_path, "young")
    through(old)
    young.split()
    (old.folder / "touched").write_text(f"{time.time() - 90_000:.0f}")
    (old.folder.parent / "begun").mkdir()  # of a run that has stored nothing yet
    steps = stored(spec(rows), tmp_path, "new")
    steps.split()
    assert {path.name for path in old.folder.parent.iterdir()} == {young.folder.name, steps.folder.name, "begun"}
    assert (old.reports / "report.html").is_file()


def test_hostile_names_of_runs_stay_in_their_folder(rows: Path, tmp_path: Path) -> None:
    for run in ("../../x", "a/b", "\0", "ü" * 5000, ""):
        steps = stored(spec(rows), tmp_path, run)
        assert steps.folder.parent == steps.home / "runs" and len(steps.folder.name) == 16


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectPath]:
    with s3() as environment, reaching(environment):
        found = location(new_bucket())
        assert isinstance(found, ObjectPath)
        first_key(tmp_path / "made/signing.key", tmp_path / "keys")
        monkeypatch.setenv("PRIVACY_ASSETS_SIGNING_KEY", (tmp_path / "made/signing.key").read_text())
        monkeypatch.setenv("PRIVACY_ASSETS_TRUSTED_KEYS", str(tmp_path / "keys"))
        prepare({"releases": found / "releases", "private": found / "private"})
        yield found


def test_values_in_an_object_store(rows: Path, tmp_path: Path, bucket: ObjectPath) -> None:
    places = {"root": bucket / "releases", "private": bucket / "private"}
    steps = stored(spec(rows), tmp_path, base=bucket / "private/values", **places)
    found = through(steps)
    assert published(steps, found)
    victim = steps.folder / "split" / found["split"]["digest"] / "train" / "table.parquet"
    victim.put(b"other bytes")
    with pytest.raises(PublicationRefused, match="are not those"):
        steps.sample(found)
    (steps.folder / "touched").put(b"0")
    stored(spec(rows), tmp_path, "next", base=bucket / "private/values", **places).split()
    assert not steps.folder.exists() and steps.reports.exists()


def test_policies_are_those_of_now(rows: Path, tmp_path: Path) -> None:
    lenient = stored(
        spec(rows, leak=True, policy={**LENIENT, "limits": [{**LENIENT["limits"][0], "at_most": 1.0}]}), tmp_path
    )
    found = through(lenient)
    strict = stored(spec(rows, leak=True), tmp_path)
    with strict.verdict(found) as (attestation, synthetic), pytest.raises(PublicationRefused, match="policy"):
        strict.steps.publish(attestation, synthetic)
    assert isinstance(strict.steps.plan.policy, Policy) and os.listdir(tmp_path / "private")
