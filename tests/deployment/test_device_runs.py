"""Waiting for devices: runs in the queue of the shipped instances, launched and killed as in a
deployment.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.test_utils import create_test_daemon_workspace_context
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import PythonFileTarget
from dagster._daemon.monitoring import execute_concurrency_slots_iteration
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
from served import HERE, until
from standins import people

from tests.helpers.marks import weekly_except

ROOT = Path(__file__).parents[2]
LOG = logging.getLogger(__name__)


@dataclass
class Queue:
    """An instance with a code server, whose daemon acts only when the test calls it."""

    root: Path
    instance: dg.DagsterInstance
    workspace: WorkspaceProcessContext
    daemon: QueuedRunCoordinatorDaemon

    def submit(self, name: str) -> str:
        """Put a run of a job into the queue; return its id."""
        location = self.workspace.create_request_context().get_code_location("devices")
        repository = location.get_repository("__repository__")
        job = repository.get_full_job(name)
        run = self.instance.create_run(
            job_name=name,
            run_id=None,
            run_config={},
            status=dg.DagsterRunStatus.NOT_STARTED,
            tags={},
            execution_plan_snapshot=location.get_execution_plan(
                job, {}, None, None
            ).execution_plan_snapshot,
            job_snapshot=job.job_snapshot,
            parent_job_snapshot=job.parent_job_snapshot,
            remote_job_origin=job.get_remote_origin(),
            job_code_origin=job.get_python_origin(),
            asset_graph=repository.asset_graph,
            resolved_op_selection=None,
            op_selection=None,
            asset_selection=None,
            asset_check_selection=None,
            step_keys_to_execute=None,
            root_run_id=None,
            parent_run_id=None,
        )
        self.instance.submit_run(run.run_id, self.workspace.create_request_context())
        return run.run_id

    def turn(self) -> None:
        """Do one round of the daemon's work: free the pool slots of ended runs and launch the runs
        that may start.
        """
        list(execute_concurrency_slots_iteration(self.workspace, LOG))
        list(self.daemon.run_iteration(self.workspace))

    def status(self, run_id: str) -> dg.DagsterRunStatus:
        return self.instance.get_run_by_id(run_id).status

    def ended(self, run_id: str) -> dg.DagsterRunStatus:
        """The status of a run once it has ended."""
        until("end of the run", lambda: self.instance.get_run_by_id(run_id).is_finished, 600)
        return self.status(run_id)


def shipped(name: str) -> dict[str, Any]:
    """An instance file of this repository, on SQLite."""
    config = yaml.safe_load((ROOT / name).read_text())
    config.pop("storage", None)
    return config


@contextmanager
def queue(root: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    people(100).to_parquet(root / "people.parquet")
    (root / "home").mkdir()
    (root / "home" / "dagster.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("DEPLOYMENT_ROOT", str(root))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(ROOT), str(HERE.parent / "helpers"), str(HERE)])
    )
    code = PythonFileTarget(str(HERE / "workspace_devices.py"), "defs", str(HERE), "devices")
    with (
        dg.DagsterInstance.from_config(str(root / "home")) as instance,
        create_test_daemon_workspace_context(code, instance) as workspace,
        QueuedRunCoordinatorDaemon(interval_seconds=1) as daemon,
    ):
        yield Queue(root, instance, workspace, daemon)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", weekly_except(("dagster.local.yaml", "dagster.production.yaml"), "dagster.local.yaml")
)
def test_two_tables_on_a_cpu_overlap(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds its device until the other does. If they ran one after the other, neither would
    end.
    """
    with queue(tmp_path, shipped(name), monkeypatch) as served:
        runs = []
        # a new pool has no limit yet in the daemon's first round
        for job in ("one_embedder", "other_embedder"):
            runs.append(served.submit(job))
            served.turn()
        assert [served.ended(run) for run in runs] == [dg.DagsterRunStatus.SUCCESS] * 2
    assert len(list(tmp_path.glob("*.cpu.met"))) == 2


@pytest.mark.slow
def test_a_killed_run_frees_its_place_in_a_pool_and_the_card_only_with_its_last_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is not a Dagster pool, because a killed run's step continues while its slot is
    given to another run.
    """
    config = shipped("dagster.production.yaml")
    config["run_monitoring"]["free_slots_after_run_end_seconds"] = 1
    with queue(tmp_path, config, monkeypatch) as served:
        first = served.submit("first_job")
        served.turn()
        until("holder of the card", (tmp_path / "first.has").exists)
        second = served.submit("second_job")
        served.turn()
        assert served.status(second) is dg.DagsterRunStatus.QUEUED  # the pool has one slot

        step, worker = map(int, (tmp_path / "first.started").read_text().rstrip(".").split())
        os.kill(worker, signal.SIGKILL)
        assert served.ended(first) is dg.DagsterRunStatus.FAILURE
        until(
            "place in the pool",
            lambda: served.turn() or served.status(second) is not dg.DagsterRunStatus.QUEUED,
        )
        held = f"cuda:0 is held by process {step}"
        until(
            "word of the holder",
            lambda: any(held in one.user_message for one in served.instance.all_logs(second)),
        )
        assert not (tmp_path / "second.has").exists()

        os.kill(step, signal.SIGKILL)
        until("next holder of the card", (tmp_path / "second.has").exists)
        (tmp_path / "end").touch()
        assert served.ended(second) is dg.DagsterRunStatus.SUCCESS
