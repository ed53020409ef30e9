"""Sensor that reports failed runs: a rejected publication is a failed run."""

from collections.abc import Callable

import dagster as dg

from privacy_assets.dagster.failures import redact_exceptions
from privacy_assets.dagster.resources import ReleaseResource
from privacy_assets.dagster.table import TABLE
from privacy_assets.errors import PrivacyAssetsError
from privacy_assets.gate.statements import ReleaseTarget
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

    A run fails if the gate rejects its table. The message contains the table and partition, for
    each failed step the reason and what to do, the release that readers have now, and the run with
    a link, but no private values. The sensor is stopped by default.

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
        description="Reports failed runs, such as rejected publications.",
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
    run, failed = context.dagster_run, list(context.get_step_failure_events())
    link = f": {base_url.rstrip('/')}/runs/{run.run_id}" if base_url else "."
    lines = [f"Run {run.run_id} of {run.job_name} failed{link}"]
    if not failed:
        lines.append(f"No step gave a reason. {_RESUME}")
    reported = set[str]()
    for table in _tables(context, bool(failed)):
        own = [event for event in failed if str(event.step_key).startswith(f"{table}__")]
        if own or not failed:
            target = ReleaseTarget(table, context.partition_key)
            steps = [_failed_step(event) for event in own]
            rest = [one for one in _situation(releases, target) if one not in "".join(steps)]
            lines += [f"{target}:", *steps, *(f"  {one}" for one in rest)]
            reported |= {str(event.step_key) for event in own}
    others = [event for event in failed if event.step_key not in reported]
    return "\n".join([*lines, *map(_failed_step, others)])


def _tables(context: dg.RunFailureSensorContext, failed: bool) -> list[str]:
    """Return the tables of a run by its tag and selection of assets or, if steps ``failed``, those
    to compare.
    """
    run = context.dagster_run
    if TABLE in run.tags:
        return [run.tags[TABLE]]
    if context.repository_def is None:
        return []
    keys = (
        context.repository_def.asset_graph.get_all_asset_keys()
        if failed
        else run.asset_selection or ()
    )
    return sorted(
        {key.path[-2] for key in keys if len(key.path) > 1 and key.path[-1] == "attestation"}
    )


def _situation(releases: ReleaseResource, target: ReleaseTarget) -> list[str]:
    try:
        return situation(releases.deployment, target)
    except PrivacyAssetsError as error:
        return [f"The current release is unknown: {error}"]


def _failed_step(event: dg.DagsterEvent) -> str:
    """Describe a failed step. Only failures raised as ``dg.Failure`` have a message without private
    values.
    """
    failure = event.step_failure_data.user_failure_data
    return (
        f"  {event.step_key}:"
        f" {(failure and failure.description) or f'no reason was given. {_RESUME}'}"
    )
