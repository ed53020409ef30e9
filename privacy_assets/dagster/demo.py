"""The demo: a real health survey from source to published, and the same with a generator that memorises."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg

from privacy_assets.dagster.factory import build_privacy_assets
from privacy_assets.dagster.gpu import GpuResource
from privacy_assets.dagster.io import PrivacyIOManager
from privacy_assets.dagster.resources import ReleaseResource
from privacy_assets.errors import ConfigError
from privacy_assets.gate.statements import Place
from privacy_assets.pipeline.spec import TableSpec

HONEST, LEAKY = "patients", "patients_leak"
HOME = ".dagster_home"  # below the current folder, when DAGSTER_HOME is not set
# Nothing that code prints is kept: it can be rows.
INSTANCE = """telemetry:
  enabled: false
nux:
  enabled: false
compute_logs:
  module: dagster.core.storage.noop_compute_log_manager
  class: NoOpComputeLogManager
"""
Say = Callable[[str], None]


def demo_table(*, leak: bool = False) -> dg.Definitions:
    """The demo table with the default generator, sequential trees; as ``leak`` with a leaf for every row."""
    return build_privacy_assets(demo_spec(leak=leak))


def demo_spec(*, leak: bool = False) -> TableSpec:
    """What :func:`demo_table` builds its pipeline from."""
    if leak:
        by_heart = {"name": "synthpop", "settings": {"min_leaf": 1, "smoothing": False}}
        return TableSpec(name=LEAKY, source="demo", subject="person", generator=by_heart)
    return TableSpec(name=HONEST, source="demo", subject="person")


def run_demo(*, leak: bool, say: Say) -> int:
    """Run the demo in the Dagster instance of DAGSTER_HOME and print what came of it.

    Returns 0 when the table was published and 1 when it was not.
    """
    name = LEAKY if leak else HONEST
    io = PrivacyIOManager()
    resources = {"io_manager": io, "privacy_io": io, "releases": ReleaseResource(), "gpu": GpuResource()}
    here = dg.Definitions(resources=resources, executor=dg.in_process_executor)
    definitions = dg.Definitions.merge(demo_table(leak=leak), here)
    job = definitions.resolve_job_def(f"{name}_pipeline")
    with _instance() as instance:
        title = f"{name}: {'a generator that memorises' if leak else 'an honest generator'}"
        return _summary(name, _executed(job, instance, title, say), instance, say)


def home_below(folder: Path) -> Path:
    """The folder of a Dagster instance below ``folder``, made when there is none."""
    home = folder.resolve() / HOME
    home.mkdir(exist_ok=True)
    settings = home / "dagster.yaml"
    if not settings.exists():
        settings.write_text(INSTANCE, encoding="utf-8")
    return home


def _executed(job: dg.JobDefinition, instance: dg.DagsterInstance, title: str, say: Say) -> Any:
    """Run ``job`` here, as one of the code location of the current folder, where that is a project; its result.

    The timeline of the UI shows only runs that name the location of their job, which no public function lets a run in
    this process do: ``execute_in_process`` and ``dagster job execute`` leave it out, ``dagster job launch`` and GraphQL
    start a server and a process of their own. So all that is not public stands here, tried with dagster 1.13.27;
    tests/plugin/test_demo_run.py fails where an upgrade moves it.
    """
    from dagster._core.definitions.job_base import InMemoryJob
    from dagster._core.execution.api import execute_run
    from dagster._core.remote_origin import (
        ManagedGrpcPythonEnvCodeLocationOrigin,
        RemoteJobOrigin,
        RemoteRepositoryOrigin,
    )
    from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

    origin = None
    if location := _location():
        name, module = location
        target = LoadableTargetOrigin(module_name=module, working_directory=str(Path.cwd()))
        server = ManagedGrpcPythonEnvCodeLocationOrigin(target, location_name=name)
        origin = RemoteJobOrigin(RemoteRepositoryOrigin(server, "__repository__"), job.name)
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    run = instance.create_run_for_job(job, run_config=quiet, remote_job_origin=origin)
    instance.add_event_listener(run.run_id, lambda entry: _tell(entry, say))
    say(f"{title}, run {run.run_id[:8]}")
    return execute_run(InMemoryJob(job), run, instance)


def _location() -> tuple[str, str] | None:
    """Name and module of the code location of the current folder, where its pyproject.toml names one."""
    try:
        project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["dg"]["project"]
        return str(project["code_location_name"]), str(project["code_location_target_module"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _instance() -> dg.DagsterInstance:
    if not os.environ.get("DAGSTER_HOME"):
        os.environ["DAGSTER_HOME"] = str(home_below(Path.cwd()))
    if not Path(os.environ["DAGSTER_HOME"]).is_dir():
        raise ConfigError(f"DAGSTER_HOME is {os.environ['DAGSTER_HOME']}, which is not a folder; make it or unset it.")
    return dg.DagsterInstance.get()


def _tell(entry: Any, say: Say) -> None:
    """One line a step when it ends."""
    event = entry.dagster_event
    if event is None or event.step_key is None:
        return
    step = event.step_key.partition("__")[2] or event.step_key
    if event.is_step_success:
        say(f"  {step:<24} {event.step_success_data.duration_ms / 1000:6.1f} s")
    elif event.is_step_failure:
        say(f"  {step:<24} refused")


def _summary(name: str, outcome: Any, instance: dg.DagsterInstance, say: Say) -> int:
    home = Path(instance.root_directory)
    io, releases = PrivacyIOManager(), ReleaseResource(root=str(home / "releases"))
    page = io.folder(dg.AssetKey([name, "privacy_report"]), home=home) / "report.html"
    made = [event.asset_key for event in outcome.get_asset_materialization_events()]
    if dg.AssetKey([name, "privacy_report"]) not in made:
        for event in outcome.all_events:
            if event.is_step_failure:
                say(f"{event.step_key}: {event.step_failure_data.error_display_string.splitlines()[0]}")
        say("the run failed before there was a report; nothing was published")
        return 1
    from privacy_assets.dagster.io import load_value

    say("")
    say(load_value(page.parent, dg.AssetKey([name, "privacy_report"]), None).to_text())
    say(f"\nreport       {page}")
    say(f"attestation  {io.folder(dg.AssetKey([name, 'attestation']), home=home) / 'attestation.json'}")
    if not outcome.success:
        say("release      none: publication was blocked")
        return 1
    say(f"release      {releases.store.current(Place(name)).table}")
    return 0
