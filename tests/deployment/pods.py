"""A cluster for tests: keeps the jobs that Dagster requests, and can run their containers as
processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster._core.code_pointer import FileCodePointer
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.execution.api import create_execution_plan
from dagster._core.execution.context_creation_job import orchestration_context_event_generator
from dagster._core.executor.step_delegating import StepHandlerContext
from dagster._grpc.types import ExecuteStepArgs

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VALUES = yaml.safe_load((ROOT / "deployment/kubernetes/values.yaml").read_text(encoding="utf-8"))
LAUNCHER = VALUES["runLauncher"]["config"]["customRunLauncher"]
SERVER = VALUES["dagster-user-deployments"]["deployments"][0]
IMAGE = "{repository}:{tag}".format(**SERVER["image"])


class Status:
    """Status of a job, running by default."""

    failed = 0


class Cluster:
    """Fake of the client of dagster_k8s. With ``secrets`` and ``places`` its containers can run
    here.
    """

    def __init__(
        self,
        secrets: Mapping[str, Mapping[str, str]] | None = None,
        extra: Mapping[str, str] | None = None,
    ):
        self.secrets, self.extra = secrets, dict(extra or {})
        self.jobs: list[Any] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def create_namespaced_job_with_retries(self, body: Any, namespace: str) -> None:
        """Create a job; the launcher and the executor call this."""
        assert namespace == LAUNCHER["config"]["job_namespace"]
        self.jobs.append(body)
        if self.secrets is not None:
            (container,) = body.spec.template.spec.containers
            command = [sys.executable, "-m", *container.args]
            self.processes.append(
                subprocess.Popen(command, env=self.environment(container), cwd=ROOT)
            )

    def get_job_status(self, **_: Any) -> Status:
        """Always report a running job; a failed step reports its own failure."""
        return Status()

    def environment(self, container: Any) -> dict[str, str]:
        """The environment of a container, as Kubernetes would set it. Raises KeyError for a missing
        secret.
        """
        assert self.secrets is not None
        made = {
            name: os.environ[name] for name in ("PATH", "DEPLOYMENT_ROOT") if name in os.environ
        }
        for source in container.env_from or []:
            made |= self.secrets[source.secret_ref.name]
        for one in container.env:
            key = one.value_from.secret_key_ref if one.value_from else None
            made[one.name] = self.secrets[key.name][key.key] if key else one.value
        return {**made, **self.extra}


def instance_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of ``dagster.yaml``, except storage, that the chart renders from our values."""

    def snake(given: Mapping[str, Any]) -> dict[str, Any]:
        names = {
            name: "".join(f"_{c.lower()}" if c.isupper() else c for c in name) for name in given
        }
        return {
            names[name]: snake(one) if isinstance(one, dict) else one for name, one in given.items()
        }

    daemon, retention = values["dagsterDaemon"], snake(values["retention"])
    kept = retention.pop("enabled")
    return {
        "run_launcher": values["runLauncher"]["config"]["customRunLauncher"],
        "run_coordinator": daemon["runCoordinator"]["config"]["customRunCoordinator"],
        "run_monitoring": snake(daemon["runMonitoring"]),
        "schedules": snake(daemon["schedules"]),
        "sensors": snake(daemon["sensors"]),
        "telemetry": values["telemetry"],
        **({"retention": retention} if kept else {}),
        **values["additionalInstanceConfig"],
    }


def job_of(name: str) -> Any:
    """A job of the code location, loaded as in the image."""
    pointer = FileCodePointer(str(HERE / "workspace_kubernetes.py"), "defs", str(HERE))
    return ReconstructableRepository(pointer, container_image=IMAGE).get_reconstructable_job(name)


def step_jobs(name: str, instance: dg.DagsterInstance, cluster: Cluster) -> dict[str, Any]:
    """The Kubernetes job of each step of a job, by step, as the executor would start it."""
    job = job_of(name)
    plan = create_execution_plan(job)
    run = instance.create_run_for_job(
        job.get_definition(), execution_plan=plan, job_code_origin=job.get_python_origin()
    )
    *_, context = orchestration_context_event_generator(
        job, plan, {}, run, instance, True, None, None
    )
    handler = context.executor._step_handler
    made = {}
    for step in plan.get_all_steps_in_topo_order():
        args = ExecuteStepArgs(job.get_python_origin(), run.run_id, [step.key], instance.get_ref())
        list(handler.launch_step(StepHandlerContext(instance, context, [step], args)))
        made[step.key] = cluster.jobs.pop()
    return made
