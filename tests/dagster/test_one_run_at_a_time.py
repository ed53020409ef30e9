"""Runs of one table do not overlap: the tag for the queue, and the run lease of the gate."""

import logging
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._utils.tags import TagConcurrencyLimitsCounter
from standins import blocking_error, people_table, run

from privacy_assets import TableSpec
from privacy_assets.dagster.context import has_ended, run_of
from privacy_assets.dagster.table import resolve_dagster_table
from privacy_assets.pipeline.lease import Lease

ROOT = Path(__file__).parents[2]
ROOT_RUN = "dagster/root_run_id"


def hold(place: Path, run_id: str) -> None:
    """The lease of a run that is between two steps."""
    with Lease(place / "private", "people", run_id).held(lambda run: True):
        pass


def other_run(instance: dg.DagsterInstance, status: dg.DagsterRunStatus, **tags: str) -> str:
    added = dg.DagsterRun("people_pipeline", status=status, tags=tags)
    instance.add_run(added)
    return added.run_id


@pytest.mark.slow
def test_a_run_stops_while_another_one_is_in_progress(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    defs = people_table(tmp_path)
    assert run(defs, instance, "source").success  # the instance knows that it has ended
    assert run(defs, instance, "source").success
    hold(tmp_path, other := other_run(instance, dg.DagsterRunStatus.STARTED))
    blocked = run(defs, instance, "source")
    assert f"people: run {other} (process {os.getpid()} on {socket.gethostname()}) started on " in (
        text := blocking_error(blocked, "source")
    )
    assert "is still in progress. Fix: wait for it, or terminate it" in text
    instance.report_run_failed(instance.get_run_by_id(other))
    assert run(defs, instance, "source").success
    # a run of another orchestrator, which the instance does not know
    hold(tmp_path, "airflow/manual")
    assert not run(defs, instance, "source").success


def test_a_run_and_its_re_executions_are_one_run(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    first = other_run(instance, dg.DagsterRunStatus.FAILURE)
    assert has_ended(instance, first) and not has_ended(instance, "nowhere")
    again = other_run(instance, dg.DagsterRunStatus.STARTED, **{ROOT_RUN: first})
    assert not has_ended(instance, first)
    instance.report_run_failed(instance.get_run_by_id(again))
    assert has_ended(instance, first)
    parent = {"root_run_id": first, "parent_run_id": first}
    for run_id, given in (
        (first, {"run_id": first}),
        (first, parent),
        ("other", {"run_id": "other"}),
    ):
        context: Any = SimpleNamespace(
            run=dg.DagsterRun("people_pipeline", **given),
            instance=instance,
            log=logging.getLogger(),
            resources=SimpleNamespace(releases=SimpleNamespace(deployment=None)),
        )
        assert (
            run_of(context, resolve_dagster_table(TableSpec(name="people", source="demo"))).run_id
            == run_id
        )


@pytest.mark.parametrize(
    "name", ["dagster.local.yaml", "dagster.production.yaml", "deployment/kubernetes/values.yaml"]
)
def test_queued_runs_of_a_table_and_of_a_backfill_wait(name: str) -> None:
    data = yaml.safe_load((ROOT / name).read_text())
    limits = data.get("additionalInstanceConfig", data)["concurrency"]["runs"][
        "tag_concurrency_limits"
    ]

    def queued(**tags: str) -> dg.DagsterRun:
        return dg.DagsterRun(
            "job", tags={key.replace("__", "/"): value for key, value in tags.items()}
        )

    running = [queued(privacy_assets__table="people"), queued(dagster__backfill="one")]
    counter = TagConcurrencyLimitsCounter(limits, running)
    assert counter.is_blocked(queued(privacy_assets__table="people"))
    assert counter.is_blocked(queued(dagster__backfill="one"))
    assert not counter.is_blocked(queued(privacy_assets__table="visits"))
    assert not counter.is_blocked(queued(dagster__backfill="two"))
    assert not counter.is_blocked(queued())


def test_the_jobs_of_a_table_have_its_tag(tmp_path: Path) -> None:
    defs = people_table(tmp_path, study=True, tags={"team": "a"})
    for job in ("people_pipeline", "people_leak_study"):
        assert defs.resolve_job_def(job).tags == {"team": "a", "privacy_assets/table": "people"}
