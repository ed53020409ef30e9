"""The functions of the steps, called one after the other on one small table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import holders
import numpy as np
import pandas as pd
import pytest
from distributions import Installer

from privacy_assets.errors import (
    ConfigError,
    OutOfDate,
    PolicyNotMet,
    PublicationBlocked,
    StepError,
)
from privacy_assets.gate.deployment import DeploymentSettings
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.markers import MARKER
from privacy_assets.generators.registry import GENERATORS
from privacy_assets.metrics.ledger import Ledger
from privacy_assets.pipeline import work
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.spec import GeneratorGroup, TableSpec
from privacy_assets.pipeline.steps import tasks
from privacy_assets.pipeline.work import TableRun
from privacy_assets.tables.table import Table

LIMIT = {"statistic": "dcr.member_excess", "at_most": 0.1, "bound": "proven", "min_subjects": 5}
LENIENT = {
    "name": "lenient",
    "limits": [LIMIT],
    "metrics": {"dcr": {"n_bootstraps": 50, "n_permutations": 199}},
    "embedder": False,
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableRun:
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", "the same split in every run")
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {
            "person": np.repeat(np.arange(150), 2),
            "a": rng.normal(size=300),
            "b": rng.choice(list("xyz"), 300),
        }
    )
    rows.to_parquet(tmp_path / "rows.parquet")
    spec = TableSpec(
        name="small",
        source=tmp_path / "rows.parquet",
        subject="person",
        generator={"name": "synthpop"},
        evaluation={"metrics": ["dcr"], "embedder": False},
        policy=LENIENT,
    )
    settings = DeploymentSettings(releases=tmp_path / "releases", private=tmp_path / "private")
    return TableRun(ResolvedTable.of(spec), settings.open(), ReleaseTarget("small"))


def until_prepared(run: TableRun) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for step in (work.read, work.split, work.fit, work.sample, work.prepare):
        values |= step(run, "", values).values
    return values


def test_a_run_opens_its_gate_once_and_asking_for_its_lease_creates_nothing(
    run: TableRun, tmp_path: Path
) -> None:
    assert run.lease.holder() is None
    assert not (tmp_path / "private").exists()
    assert replace(run, device="cuda").gate is run.gate
    assert (tmp_path / "private" / "signing.key").exists()


def test_each_task_checks_that_the_folders_are_still_those_of_the_deployment(
    run: TableRun, tmp_path: Path
) -> None:
    read, split, *_ = tasks(run.table)
    values = read.run(run, {}).values
    (tmp_path / "private" / MARKER).unlink()
    with pytest.raises(ConfigError, match="marker is missing"):
        split.run(run, values)


def test_the_holders_of_each_prepared_table_are_counted(
    run: TableRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``holders.install`` replaces a function that ``prepare`` calls."""
    counted: list[int] = []

    def count(rows: Table, real: Sequence[Table]) -> dict[str, int]:
        counted.append(len(real))
        return {}

    monkeypatch.setattr(holders, "fewest_holders", count)
    until_prepared(run)
    assert counted == [len(run.table.roles)]


def test_the_steps_make_signed_values_up_to_the_release(run: TableRun) -> None:
    values = until_prepared(run)
    assert sum(len(values[role]) for role in run.table.roles) == 300
    assert all(len(values[role]) % 2 == 0 for role in run.table.roles), (
        "both rows of a person are in one table"
    )
    assert set(run.verify_tables(run.real(values))) == set(run.table.roles)

    people = values["evaluation_inputs"].release.pseudonyms
    named = pd.concat(
        [values[role].frame().assign(name=people[role][:, 0]) for role in run.table.roles]
    )
    assert (
        named.groupby("person")["name"].nunique().max()
        == 1
        == named.groupby("name")["person"].nunique().max()
    )
    assert named["name"].nunique() == 150, "one pseudonym for each person in all tables"

    scored = work.score(run, "dcr", values)
    assert [one.limit.key for one in scored.outcomes] == ["dcr.member_excess.proven"]
    snapshot = run.files.open_snapshot(values["synthetic"], run.target)
    signed = run.files.open_result(scored.values["dcr"], snapshot)
    assert set(signed.estimates) == set(scored.result.estimates)

    values |= scored.values
    attested = work.attest(run, "", values)
    assert attested.attestation.verdict == "pass" and attested.reason == "all 1 limits hold"
    release = work.publish(run, "", values | attested.values).release
    pd.testing.assert_frame_equal(
        work.published_rows(run, release)[0],
        work.synthetic_rows(run, values["synthetic"]),
        check_dtype=False,
    )


def test_scores_of_rows_are_private_and_named_by_the_report(run: TableRun) -> None:
    evaluation = run.table.spec.evaluation.model_copy(update={"metrics": ["dcr", "memorization"]})
    run = replace(
        run, table=ResolvedTable.of(run.table.spec.model_copy(update={"evaluation": evaluation}))
    )
    values = until_prepared(run)
    scored = {name: work.score(run, name, values) for name in run.table.metrics}
    assert scored["dcr"].row_scores is None
    path = scored["memorization"].row_scores
    assert path.is_relative_to(run.gate.private) and path.stat().st_mode & 0o777 == 0o600
    rows = pd.read_parquet(path)
    assert len(rows) == len(work.synthetic_rows(run, values["synthetic"]))
    exposed = scored["memorization"].result.estimate("exposed").value
    assert (rows["alpha_m"] < 1).mean() == pytest.approx(exposed)
    values |= {name: result.values[name] for name, result in scored.items()}
    values |= work.attest(run, "", values).values
    (note,) = [note for note in values["privacy_report"].notes if "row_scores/" in note]
    assert path.name in note and str(run.gate.private) not in note
    release = work.publish(run, "", values).release
    assert not [one for one in release.folder.rglob("*") if "memorization" in one.name]


def test_the_report_names_all_releases_from_the_second_release_on(run: TableRun) -> None:
    together = [{"statistic": "cumulative_disclosure.share", "at_most": 0.1, "bound": "proven"}]
    policy = {"limits": [LIMIT, *together], "metrics": LENIENT["metrics"], "embedder": False}
    evaluation = run.table.spec.evaluation.model_copy(
        update={"metrics": ["dcr", "cumulative_disclosure"]}
    )
    spec = run.table.spec.model_copy(update={"evaluation": evaluation, "policy": policy})
    stated = []
    for seed in (0, 1):
        seeded = spec.model_copy(update={"run": spec.run.model_copy(update={"seed": seed})})
        run = replace(run, table=ResolvedTable.of(seeded))
        values = until_prepared(run)
        for name in run.table.metrics:
            values |= work.score(run, name, values).values
        values |= work.attest(run, "", values).values
        work.publish(run, "", values)
        notes = values["privacy_report"].page().notes
        stated.append([note for note in notes if "All releases together" in note])
    first, second = stated
    assert first == [] and len(second) == 1 and second[0].endswith("its limit 0.1.")


@pytest.mark.slow
def test_a_person_whose_id_changes_its_spelling_keeps_side_and_ledger_entry(run: TableRun) -> None:
    together = [{"statistic": "cumulative_disclosure.share", "at_most": 0.1, "bound": "proven"}]
    policy = {"limits": together, "embedder": False}
    evaluation = run.table.spec.evaluation.model_copy(update={"metrics": ["cumulative_disclosure"]})
    spec = run.table.spec.model_copy(update={"evaluation": evaluation, "policy": policy})
    source = Path(run.table.row_sources["source"].path)
    rows = pd.read_parquet(source)
    sides, ledgers = [], []
    for seed, spelling in enumerate(("{:03d}-A", "{:03d}-A", "{}\u2010a ")):
        seeded = spec.model_copy(update={"run": spec.run.model_copy(update={"seed": seed})})
        run = replace(run, table=ResolvedTable.of(seeded))
        rows.assign(person=rows["person"].map(spelling.format)).to_parquet(source)
        values = until_prepared(run)
        sides.append([values[role].frame()["a"].tolist() for role in run.table.roles])
        values |= work.score(run, "cumulative_disclosure", values).values
        values |= work.attest(run, "", values).values
        work.publish(run, "", values)
        sha256 = run.gate.log.state(run.target.table).ledger
        ledgers.append(Ledger.from_bytes(run.gate.ledgers.read(run.target.table, sha256)))
    assert sides[0] == sides[1] == sides[2]
    assert [len(ledger.exact) for ledger in ledgers] == [150, 150, 150], (
        "no second entry of a person"
    )
    first, second, third = (
        dict(zip(ledger.plain, ledger.ratio, strict=True)) for ledger in ledgers
    )
    assert first.keys() == second.keys() == third.keys()
    assert all(second[person] <= third[person] for person in third)
    assert not set(ledgers[1].exact) & set(ledgers[2].exact)


def test_rows_of_another_split_are_rejected(run: TableRun) -> None:
    values = until_prepared(run)
    train, holdout = values["train"], values["holdout"]
    for changed in (
        replace(train, envelope=holdout.envelope),
        replace(holdout, envelope=train.envelope),
    ):
        with pytest.raises(PublicationBlocked):
            run.verify_tables({"train": changed})


def test_scores_on_an_earlier_synthetic_table_are_not_attested(run: TableRun) -> None:
    values = until_prepared(run)
    values |= work.score(run, "dcr", values).values
    rows = Table.of(
        work.synthetic_rows(run, values["synthetic"]), values["train"].schema, where="synthetic"
    )
    _, signed_file = run.files.take_snapshot(
        rows.take(slice(1, None)), run.target, run.keyed_fingerprint(values["train"])
    )
    with pytest.raises(OutOfDate) as caught:
        work.attest(run, "", values | {"synthetic": signed_file})
    assert caught.value.record == "prepared"


def test_a_broken_limit_is_the_reason_and_is_not_published(run: TableRun) -> None:
    values = until_prepared(run)
    copy = values["train"].without_subject()
    _, signed_file = run.files.take_snapshot(
        copy, run.target, run.keyed_fingerprint(values["train"])
    )
    values["synthetic"] = signed_file
    values |= work.prepare(run, "", values).values
    values |= work.score(run, "dcr", values).values
    attested = work.attest(run, "", values)
    assert attested.attestation.verdict == "fail" and "dcr" in attested.reason
    with pytest.raises(PolicyNotMet):
        work.publish(run, "", values | attested.values)
    assert run.gate.store.history(run.target) == []


def test_a_source_read_under_other_settings_is_not_split(run: TableRun) -> None:
    values = work.read(run, "read", {}).values
    spec = run.table.spec.model_copy(
        update={"data": run.table.spec.data.model_copy(update={"drop": ("b",)})}
    )
    changed = replace(run, table=ResolvedTable.of(spec))
    with pytest.raises(OutOfDate, match="read under other settings") as caught:
        work.split(changed, "split", values)
    assert caught.value.record == "source"


FOREIGN = """
from privacy_assets.generators.copies import Copy
from privacy_assets.infra.settings import declared

@declared
class Mine(Copy):
    name = "mine"

    def _fit(self, train, training):
        fitted = super()._fit(train.take(range(len(train))), training)
        {line}
        return fitted
"""


@pytest.mark.parametrize("line", ["train['a'].cells[:] = 0", "raise SystemExit(0)"])
def test_a_foreign_generator_changes_neither_train_nor_the_end_of_the_run(
    run: TableRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(GENERATORS, "_loaded", {})
    Installer(tmp_path / "site", monkeypatch)(
        "acme_generators:Mine",
        FOREIGN.format(line=line),
        name="mine",
        group="privacy_assets.generators",
    )
    spec = run.table.spec.model_copy(update={"generator": GeneratorGroup(name="mine")})
    run = replace(run, table=ResolvedTable.of(spec))
    values: dict[str, Any] = {}
    read, split, fit = list(tasks(run.table))[:3]
    for task in (read, split):
        values.update(task.run(run, values).values)
    before = values["train"]["a"].cells.copy()
    if "SystemExit" in line:
        with pytest.raises(StepError, match="SystemExit at "):
            fit.run(run, values)
    else:
        fit.run(run, values)
    np.testing.assert_array_equal(values["train"]["a"].cells, before)


def test_each_task_checks_that_only_this_user_may_enter_the_private_folder(
    run: TableRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, split = list(tasks(run.table))[:2]
    values = dict(read.run(run, {}).values)
    run.gate.private.chmod(0o755)
    with pytest.raises(ConfigError, match="may enter|chmod"):
        split.run(run, values)
    run.gate.private.chmod(0o700)
    split.run(run, values)
