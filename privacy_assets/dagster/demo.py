"""Demo pipelines on a real health survey, with the default generator and with one that memorizes
training rows.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from privacy_assets.dagster.definitions import build_privacy_assets
from privacy_assets.dagster.resources import PrivacyIOManager, load_value, resources
from privacy_assets.errors import ConfigError
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.releases import ReleaseStore, default_trusted
from privacy_assets.metrics.registry import default_metrics
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.pipeline.values import PAGE

if TYPE_CHECKING:
    from privacy_assets.report.report import Report

NON_LEAKING = "patients"
LEAKY = "patients_leak"
HOME = ".dagster_home"  # below the current folder, when DAGSTER_HOME is not set
# Output of the steps is not stored, because it can contain private rows.
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
    """Build the pipeline of the demo table.

    Args:
        leak: If True, the generator (sequential trees) has one leaf per row, so it memorizes.
    """
    return build_privacy_assets(demo_spec(leak=leak))


def demo_spec(*, leak: bool = False) -> TableSpec:
    """Return the spec of the demo table; see :func:`demo_table`.

    It also has Gretel's Data Privacy Score, which a default run does not measure.
    """
    metrics = {"metrics": [*default_metrics(), "data_privacy"]}
    if leak:
        memorizing = {
            "name": "synthpop",
            "settings": {"min_samples_leaf": 1, "shrinkage": 0, "smoothing": False},
        }
        return TableSpec(
            name=LEAKY,
            source="demo",
            subject="person",
            generator=memorizing,
            evaluation=metrics,
        )
    return TableSpec(name=NON_LEAKING, source="demo", subject="person", evaluation=metrics)


def run_demo(*, leak: bool, say: Say, format_report: Callable[[Report], str] = str) -> int:
    """Run the demo in the Dagster instance of DAGSTER_HOME, and report its progress and result.

    Args:
        leak: See :func:`demo_table`.
        say: Called with each line of output.
        format_report: Returns the text of the report.

    Returns:
        0 if the table was published, 3 if its verdict is "undecided", otherwise 1.
    """
    name = LEAKY if leak else NON_LEAKING
    generator = "a generator that memorizes" if leak else "a non-leaking generator"
    settings = dg.Definitions(resources=resources(), executor=dg.in_process_executor)
    definitions = dg.Definitions.merge(demo_table(leak=leak), settings)
    job = definitions.resolve_job_def(f"{name}_pipeline")
    with _instance() as instance:
        outcome = _execute(job, instance, f"{name}: {generator}", say)
        home = Path(instance.root_directory)
        return _report_result(name, outcome, home, say, format_report)


def home_below(folder: Path) -> Path:
    """Return the home of a Dagster instance in ``folder``, created if it does not exist.

    Args:
        folder: Existing folder.
    """
    home = folder.resolve() / HOME
    home.mkdir(exist_ok=True)
    settings = home / "dagster.yaml"
    if not settings.exists():
        settings.write_text(INSTANCE, encoding="utf-8")
    return home


def _execute(
    job: dg.JobDefinition, instance: dg.DagsterInstance, title: str, say: Say
) -> dg.ExecuteInProcessResult:
    """Run ``job`` in this process, and report each step."""
    run_id = str(uuid.uuid4())
    instance.add_event_listener(run_id, lambda entry: _report_step(entry, say))
    say(f"{title}, run {run_id[:8]}")
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    return job.execute_in_process(quiet, instance, raise_on_error=False, run_id=run_id)


def _instance() -> dg.DagsterInstance:
    if not os.environ.get("DAGSTER_HOME"):
        os.environ["DAGSTER_HOME"] = str(home_below(Path.cwd()))
    if not Path(os.environ["DAGSTER_HOME"]).is_dir():
        raise ConfigError(
            f"DAGSTER_HOME is {os.environ['DAGSTER_HOME']}, which is not a folder. Fix: create"
            " it, or unset DAGSTER_HOME."
        )
    return dg.DagsterInstance.get()


def _report_step(entry: Any, say: Say) -> None:
    """Print one line when a step ends."""
    event = entry.dagster_event
    if event is None or event.step_key is None:
        return
    step = event.step_key.partition("__")[2] or event.step_key
    if event.is_step_success:
        seconds = event.step_success_data.duration_ms / 1000
        say(f"  {step:<24} {seconds:6.1f} s")
    elif event.is_step_failure:
        say(f"  {step:<24} failed")


def _report_result(
    name: str,
    outcome: dg.ExecuteInProcessResult,
    home: Path,
    say: Say,
    format_report: Callable[[Report], str],
) -> int:
    """Report the result of the run, and return the exit status; see :func:`run_demo`."""
    report_key = dg.AssetKey([name, "privacy_report"])
    events = outcome.get_asset_materialization_events()
    if not any(event.asset_key == report_key for event in events):
        _report_failures(outcome, say)
        say("the run failed before the report; the table was not published")
        return 1
    io_manager = PrivacyIOManager()
    report_folder = io_manager.folder(report_key, home=home)
    report = load_value(report_folder, report_key, None)
    say("")
    say(format_report(report))
    say(f"\nreport       {report_folder / PAGE}")
    attestation_folder = io_manager.folder(dg.AssetKey([name, "attestation"]), home=home)
    say(f"attestation  {attestation_folder / 'attestation.json'}")
    if not outcome.success:
        say("release      none: publication was blocked")
        return 3 if report.verdict == "undecided" else 1
    store = ReleaseStore(home / "releases")
    release = store.current(ReleaseTarget(name), default_trusted(store.root, home))
    say(f"release      {release.table}")
    return 0


def _report_failures(outcome: dg.ExecuteInProcessResult, say: Say) -> None:
    for event in outcome.all_events:
        if event.is_step_failure:
            reason = event.step_failure_data.error_display_string.splitlines()[0]
            say(f"{event.step_key}: {reason}")
