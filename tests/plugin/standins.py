"""Small tables, generators and settings that make a pipeline quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from drawing import independent, memorise, people

from privacy_assets import GpuResource, PrivacyIOManager, ReleaseResource, fixed
from privacy_assets.engine.generators import _function_worker as worker
from privacy_assets.engine.generators.functions import CallableGenerator

__all__ = [
    "LENIENT", "QUICK", "checks", "failures", "independent", "made", "memorise", "people", "resources", "run",
    "run_functions_here", "slow", "sqlite_instance",
]  # fmt: skip

LENIENT = {
    "name": "lenient",
    "limits": [
        {
            "figure": "dcr.identical_excess",
            "at_most": 0.3,
            "bound": "lower",
            "smallest_n": 5,
            "advice": "Use larger leaves.",
        },
        {"figure": "dcr.member_excess_any", "at_most": 0.0, "bound": "lower", "smallest_n": 5},
    ],
}
QUICK: dict[str, Any] = {
    "metrics": {"dcr": {"bootstraps": 50, "permutations": 199}},
    "policy": LENIENT,
    "embedder": False,
}


def resources(folder: Path) -> dg.Definitions:
    """Resources below one folder, and the in-process executor."""
    return dg.Definitions(
        resources={
            "io_manager": fixed(dg.FilesystemIOManager()),
            "privacy_io": PrivacyIOManager(base=str(folder / "storage"), releases=str(folder / "releases")),
            "releases": ReleaseResource(root=str(folder / "releases"), private=str(folder / "private")),
            "gpu": GpuResource(device="cpu", lock_folder=str(folder / "locks")),
        },
        executor=dg.in_process_executor,
    )


def run_functions_here(patch: pytest.MonkeyPatch) -> None:
    """Generators that are functions run in this process from now on, not in one of their own."""

    def watch(generator: CallableGenerator, arguments: list[str], *_: Any) -> None:
        path = list(sys.path)
        status = worker.main(*arguments[arguments.index(worker.__file__) + 1 :])
        sys.path[:] = path
        assert status == 0, generator.endings.get(status)

    patch.setattr(CallableGenerator, "_watch", watch)


def slow(case: Any) -> Any:
    """A case of a test for the slow run; a tuple holds several arguments."""
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)


def sqlite_instance(folder: Path) -> dg.DagsterInstance:
    """An instance on SQLite below ``folder``, without telemetry."""
    (folder / "home").mkdir()
    return dg.DagsterInstance.local_temp(str(folder / "home"), overrides={"telemetry": {"enabled": False}})


def run(
    defs: dg.Definitions,
    job: str,
    instance: dg.DagsterInstance,
    *,
    partition: str | None = None,
    only: str | None = None,
) -> dg.ExecuteInProcessResult:
    """Run a job, or one asset of it, without raising."""
    definition = defs.resolve_job_def(job)
    selection = [dg.AssetKey.from_user_string(only)] if only else None
    return definition.execute_in_process(
        instance=instance, raise_on_error=False, partition_key=partition, asset_selection=selection
    )


def checks(result: dg.ExecuteInProcessResult) -> dict[tuple[str, str], dg.AssetCheckEvaluation]:
    """Check evaluations of a run by asset and check name."""
    return {(e.asset_key.path[-1], e.check_name): e for e in result.get_asset_check_evaluations()}


def made(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """Metadata of the materialisations of a run, by asset name."""
    events = result.get_asset_materialization_events()
    return {e.asset_key.path[-1]: {k: v.value for k, v in e.materialization.metadata.items()} for e in events}


def failures(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Failure data of the failed steps of a run, by step."""
    return {e.step_key: e.step_failure_data for e in result.all_events if e.is_step_failure}
