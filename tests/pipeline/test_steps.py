"""Every runner of a table follows the list of steps: in memory, Dagster's assets, and Airflow's
tasks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from privacy_assets import TableSpec, build_privacy_assets
from privacy_assets.errors import ConfigError
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.pipeline import steps
from privacy_assets.pipeline.advice import STEPS_OF_RECORD
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.results import StepResult
from privacy_assets.pipeline.steps import STEPS, Task, grouped_tasks, run_table, tasks, upstream
from privacy_assets.pipeline.work import TableRun

ROOT = Path(__file__).parents[2]
SMALL = {"metrics": ["dcr", "value_disclosure"], "embedder": False}
DAYS = dg.StaticPartitionsDefinition(["2026-01-01", "2026-01-02"])
OWN = {role: f"{role}.parquet" for role in ("train", "holdout", "synthetic")}
SOURCE = {"source": "rows.parquet"}
TABLES: dict[str, dict[str, Any]] = {
    "external": {"data": OWN},
    "partitioned": {"data": {"source": "rows_{partition}.parquet"}},
    "filtered": {"data": SOURCE, "generator": {"name": "synthpop", "filter": "similarity"}},
    "without_embedder": {"data": SOURCE, "evaluation": SMALL},
    "without_reference": {
        "data": SOURCE,
        "split": {"train": 0.5, "holdout": 0.5},
        "evaluation": SMALL,
    },
    "on_ray": {"data": SOURCE, "run": {"workers": "ray"}, "generator": "rvae"},
}


def spec(name: str) -> TableSpec:
    return TableSpec(name=name, **TABLES[name])


def plan(name: str) -> ResolvedTable:
    return ResolvedTable.of(spec(name), partitioned=name == "partitioned")


def task(table: ResolvedTable, name: str) -> Task:
    (found,) = (one for one in tasks(table) if one.name == name)
    return found


@pytest.mark.parametrize("name", TABLES)
def test_every_value_is_made_once_and_before_it_is_read(name: str) -> None:
    made: list[str] = []
    for one in tasks(plan(name)):
        assert set(one.reads) <= set(made) and one.makes
        assert {value for other in upstream(plan(name), one) for value in other.makes} >= set(
            one.reads
        )
        made += one.makes
    assert len(made) == len(set(made))
    names = [one.name for one in tasks(plan(name))]
    assert len(names) == len(set(names)), (
        "a metric with the name of a verb would be confused with it"
    )
    assert names[-2:] == ["attest", "publish"]


def test_each_record_that_is_made_again_is_made_by_steps_in_their_order() -> None:
    verbs = [step.verb for step in STEPS]
    for steps_of_record in STEPS_OF_RECORD.values():
        assert sorted(steps_of_record, key=verbs.index) == list(steps_of_record)


def test_which_steps_a_table_has() -> None:
    def verbs(name: str) -> list[str]:
        return list(dict.fromkeys(one.step.verb for one in tasks(plan(name))))

    assert verbs("filtered") == [step.verb for step in STEPS]
    assert verbs("external") == [verb for verb in verbs("filtered") if verb not in ("read", "fit")]
    assert verbs("without_embedder") == [verb for verb in verbs("filtered") if verb != "embed"]
    assert task(plan("without_embedder"), "sample").reads == ("train", "generator")
    assert task(plan("filtered"), "sample").reads == ("train", "holdout", "reference", "generator")
    assert task(plan("without_reference"), "split").makes == ("train", "holdout")


def test_which_tasks_can_use_a_device() -> None:
    def on_device(name: str) -> set[str]:
        return {one.name for one in tasks(plan(name)) if one.uses_device}

    assert on_device("without_embedder") == set()
    assert {"embed", "prepare", "dcr"} <= on_device("filtered") and "fit" not in on_device(
        "filtered"
    )
    assert "fit" in on_device("on_ray") and "value_disclosure" not in on_device("on_ray")
    groups = grouped_tasks(plan("on_ray"))
    assert {one.uses_device for one in groups["score"]} == {False}
    assert {one.uses_device for one in groups["score_on_device"]} == {True}


@dataclass(frozen=True)
class Done(StepResult):
    names: tuple[str, ...]
    task_name: str

    @property
    def values(self) -> dict[str, str]:
        return dict.fromkeys(self.names, self.task_name)


@pytest.mark.parametrize("name", TABLES)
def test_a_run_in_memory_follows_the_list(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held: list[int] = []

    def work(run: TableRun, task_name: str, values: dict[str, Any]) -> StepResult:
        found = task(run.table, task_name)
        assert tuple(values) == found.reads and run.device == (
            "cuda" if found.uses_device else "cpu"
        )
        held.append(sum(value is not None for value in values.values()))
        return Done(found.makes, task_name)

    monkeypatch.setattr(
        steps, "STEPS", [SimpleNamespace(**{**vars(step), "work": work}) for step in STEPS]
    )
    deployment: Any = SimpleNamespace(
        gate=lambda: SimpleNamespace(check_folders=lambda: None), private=tmp_path
    )
    run = TableRun(plan(name), deployment, ReleaseTarget(name))
    order: list[str] = []

    def during(task_name: str) -> nullcontext[None]:
        order.append(task_name)
        return nullcontext()

    ran = list(run_table(run, lambda wanted: nullcontext("cuda" if wanted else "cpu"), during))
    assert order == [one.name for one, _ in ran] == [one.name for one in tasks(run.table)]
    assert [result.task_name for _, result in ran] == order


def test_rows_have_to_be_on_disk_to_run_in_memory() -> None:
    from privacy_assets.pipeline.resolve import RowSource

    given = {"source": RowSource("given")}
    table = ResolvedTable.of(TableSpec(name="given", evaluation=SMALL), given)
    with pytest.raises(ConfigError, match="source must be a path"):
        next(run_table(TableRun(table, None, ReleaseTarget("given")), nullcontext, nullcontext))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", TABLES)
def test_the_assets_of_dagster_follow_the_list(name: str) -> None:
    defs = build_privacy_assets(spec(name), partitions_def=DAYS if name == "partitioned" else None)
    assets = {asset.op.name: asset for asset in defs.assets or []}
    groups = grouped_tasks(plan(name))
    assert list(assets) == [f"{name}__{group}" for group in groups]
    for group, members in groups.items():
        asset = assets[f"{name}__{group}"]
        assert sorted(key.path[-1] for key in asset.keys) == sorted(
            value for one in members for value in one.makes
        )
        for one in members:
            for value in one.makes:
                reads = {"attestation"} if value == "privacy_report" else set(one.reads)
                assert {
                    key.path[-1] for key in asset.asset_deps[dg.AssetKey([name, value])]
                } == reads
        (uses_device,) = {one.uses_device for one in members}
        needed = set(asset.op.required_resource_keys)
        assert ("gpu" in needed) == uses_device
        assert ("ray" in needed) == (name == "on_ray" and members[0].step.verb == "score")
        assert asset.can_subset == (members[0].step.verb == "score")
        assert (asset.partitions_def is not None) == (name == "partitioned")


AIRFLOW = """
import json, sys, warnings
from airflow.sdk import DAG
from privacy_assets.airflow import AirflowDeployment, privacy_gate
from privacy_assets.pipeline.spec import TableSpec

found = {}
for name, settings in json.loads(sys.argv[1]).items():
    with warnings.catch_warnings(record=True) as warned, DAG(name, max_active_runs=1 + (name == "filtered")) as dag:
        days = ["2026-01-01", "2026-01-02"] if name == "partitioned" else None
        deployment = AirflowDeployment(releases="/releases")
        privacy_gate(TableSpec(name=name, **settings), deployment=deployment, partitions=days)
    assert [str(one.message) for one in warned if "table" in str(one.message)] == [
        f"DAG {name}: up to 2 runs are active at a time, and of overlapping runs of the table {name} all but one fail."
        " Fix: DAG(..., max_active_runs=1)."
    ] * (name == "filtered")
    found[name] = {
        task.task_id.partition(".")[2]: sorted(one.partition(".")[2] for one in task.upstream_task_ids)
        for task in dag.tasks
    }
print(">>", json.dumps(found))
"""  # noqa: E501


@pytest.mark.slow
def test_the_tasks_of_airflow_follow_the_list(tmp_path: Path) -> None:
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", AIRFLOW, json.dumps(TABLES)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(">> "))
    found = json.loads(line.removeprefix(">> "))
    for name in TABLES:
        groups = grouped_tasks(plan(name))
        group_of = {one.name: group for group, members in groups.items() for one in members}
        before = {
            group: sorted({group_of[one.name] for one in upstream(plan(name), members[0])})
            for group, members in groups.items()
        }
        assert found[name] == {**before, "publish": ["attest"]}, (
            "a verdict includes the record of its table"
        )
