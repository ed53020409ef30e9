"""Sensor that reports failed runs: a blocked publication is a failed run."""

from collections.abc import Callable, Collection, Iterable

import dagster as dg

from privacy_assets.dagster.failures import redact_exceptions
from privacy_assets.dagster.resources import ReleaseResource
from privacy_assets.dagster.table import TABLE, attestation_keys
from privacy_assets.errors import PrivacyAssetsError
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.pipeline.current_release import situation

_RESUME = "Fix: see the log of the run, then re-execute it from failure."


def build_run_failure_sensor(
    notify: Callable[[str], object] | None = None,
    *,
    webserver_base_url: str | None = None,
    name: str = "privacy_run_failures",
    minimum_interval_seconds: int = 60,
) -> dg.SensorDefinition:
    """Build a sensor that reports each failed run of this code location once, in the log and to
    ``notify``.

    A run fails if the gate blocks the publication. The message contains the table and partition,
    for each failed step the reason and what to do, the release that readers have now, and the run
    with a link, but no private values. The sensor is stopped by default.

    Args:
        notify: Called with the message, for example to post it to a chat. If it raises an
            exception, the message is not repeated. None: the message is only logged.
        webserver_base_url: URL of the Dagster UI, for links to runs. None: no links.
        name: Name of the sensor.
        minimum_interval_seconds: Minimum time between two ticks.

    Returns:
        The sensor. It requires the resource ``releases``.
    """

    @dg.run_failure_sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        description="Reports failed runs, such as blocked publications.",
    )
    @redact_exceptions
    def run_failures(
        context: dg.RunFailureSensorContext, releases: dg.ResourceParam[ReleaseResource]
    ) -> None:
        text = _failure_message(context, releases, webserver_base_url)
        context.log.error(text)
        if notify is not None:
            notify(text)

    return run_failures


def _failure_message(
    context: dg.RunFailureSensorContext, releases: ReleaseResource, base_url: str | None
) -> str:
    """Return the message about a failed run: run, failed steps by table, and the releases that
    readers have.
    """
    run = context.dagster_run
    failures = list(context.get_step_failure_events())
    link = f": {base_url.rstrip('/')}/runs/{run.run_id}" if base_url else "."
    lines = [f"Run {run.run_id} of {run.job_name} failed{link}"]
    if not failures:
        lines.append(f"No step gave a reason. {_RESUME}")
    reported = set[str]()
    for table in _tables(context, bool(failures)):
        prefix = f"{table}__"
        table_failures = [event for event in failures if str(event.step_key).startswith(prefix)]
        if failures and not table_failures:
            continue
        target = ReleaseTarget(table, context.partition_key)
        lines += _table_lines(releases, target, table_failures)
        reported.update(str(event.step_key) for event in table_failures)
    for event in failures:
        if event.step_key not in reported:
            lines.append(_failed_step(event))
    return "\n".join(lines)


def _tables(context: dg.RunFailureSensorContext, failed: bool) -> list[str]:
    """Return the tables of a run by its tag and selection of assets or, if steps ``failed``, those
    to compare.
    """
    run = context.dagster_run
    if TABLE in run.tags:
        return [run.tags[TABLE]]
    if context.repository_def is None:
        return []
    keys: Collection[dg.AssetKey] = run.asset_selection or ()
    if failed:
        keys = context.repository_def.asset_graph.get_all_asset_keys()
    return sorted({key.path[-2] for key in attestation_keys(keys)})


def _table_lines(
    releases: ReleaseResource, target: ReleaseTarget, failures: Iterable[dg.DagsterEvent]
) -> list[str]:
    """Return the lines of a table: its failed steps, and the release that readers have."""
    steps = [_failed_step(event) for event in failures]
    reasons = "".join(steps)
    lines = [f"{target}:", *steps]
    for sentence in _situation(releases, target):
        if sentence not in reasons:
            lines.append(f"  {sentence}")
    return lines


def _situation(releases: ReleaseResource, target: ReleaseTarget) -> list[str]:
    try:
        return situation(releases.deployment, target)
    except PrivacyAssetsError as error:
        return [f"The current release is unknown: {error}"]


def _failed_step(event: dg.DagsterEvent) -> str:
    """Describe a failed step. Only failures raised as ``dg.Failure`` have a message without private
    values.
    """
    reason = f"no reason was given. {_RESUME}"
    failure = event.step_failure_data.user_failure_data
    if failure is not None and failure.description:
        reason = failure.description
    return f"  {event.step_key}: {reason}"
