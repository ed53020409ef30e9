"""Factories of schedules and sensors, which must be started by a user."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import dagster as dg

from privacy_assets.dagster.failures import redact_exceptions
from privacy_assets.dagster.frozen_config import RELEASES
from privacy_assets.dagster.table import (
    FINGERPRINT,
    beside,
    files_fingerprint,
    source_version,
    stat_token,
    table_key,
    table_source,
)
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.infra.objects import check_no_credentials
from privacy_assets.pipeline.resolve import RowSource
from privacy_assets.pipeline.row_sources import partition_path

ATTEMPTS = 3
CATCH_UP = 30  # latest time windows in which partitions without a verdict are requested
REASONS = 5  # maximum number of skipped partitions whose reason is shown
LOOK_BACK = 100  # latest time windows in which partitions without a verdict are looked for
TAG = "privacy_assets/source"


def partitions_to_watch(
    attestation: dg.AssetKey, definition: dg.PartitionsDefinition | None, instance: dg.DagsterInstance
) -> tuple[list[str | None], str]:
    """Return the partitions to check, ``[None]`` for an unpartitioned table.

    Of time windows, these are the latest one and, among the ``CATCH_UP`` latest, those without a verdict after the
    oldest one with a verdict: they ended while the daemon was not running.

    Args:
        attestation: Key of the attestation of the table.
        definition: Partitions, or None.
        instance: Dagster instance.

    Returns:
        The partitions, and a sentence about older ones without a verdict, or "".
    """
    if definition is None:
        return [None], ""
    if not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return list(definition.get_partition_keys(dynamic_partitions_store=instance)), ""
    last = definition.get_last_partition_key()
    judged = instance.get_materialized_partitions(attestation)
    if last is None or not judged:
        return [] if last is None else [last], ""
    keys = _latest_windows(definition, last)
    since = max((at for at, key in enumerate(keys) if key in judged), default=len(keys))
    missed = [at for at in range(1, since) if keys[at] not in judged]
    older = [keys[at] for at in missed if at >= CATCH_UP]
    watched: list[str | None] = [keys[at] for at in (*reversed(missed), 0) if at < CATCH_UP]
    if not older:
        return watched, ""
    text = f"the {len(older)} partitions without a verdict from {older[-1]} to {older[0]} are not requested"
    fix = f"because only the {CATCH_UP} latest ones are. Fix: launch a backfill of them."
    return watched, f"{attestation.path[-2]}: {text}, {fix}"


def _latest_windows(definition: dg.TimeWindowPartitionsDefinition, last: str) -> list[str]:
    """Return the latest ``LOOK_BACK`` keys, the latest first."""
    keys, window = [last], definition.time_window_for_partition_key(last)
    while len(keys) < LOOK_BACK and (before := definition.get_prev_partition_window(window.start)) is not None:
        keys.append(definition.get_partition_key(before.start))
        window = before
    return keys


def decide(
    instance: dg.DagsterInstance, attestation: dg.AssetKey, partition: str | None, fingerprint: str
) -> dg.RunRequest | dg.SkipReason:
    """Request a run unless the source has a verdict, a run is in progress, or three attempts gave no verdict.

    The last attestation is the verdict on this source if it is newer than a source asset with this fingerprint, or if
    its run was requested for this fingerprint (a sensor may watch other files than those of the source). Attempts are
    counted since the last attestation, so a source that returns to an earlier state runs again, as does one whose run
    crashed.

    Args:
        instance: Dagster instance.
        attestation: Key of the attestation of the table.
        partition: Partition, or None.
        fingerprint: Fingerprint of the source.
    """
    name = attestation.path[-2]
    place = name if partition is None else f"{name}, {partition}"
    source = _latest(instance, beside(attestation, "source"), partition)
    verdict = _latest(instance, attestation, partition)
    since = verdict.timestamp if verdict is not None else 0.0
    mark = f"{place}|{fingerprint}"
    runs = instance.get_run_records(dg.RunsFilter(tags={TAG: mark}))
    by_request = verdict is not None and verdict.run_id in {run.dagster_run.run_id for run in runs}
    by_source = source is not None and _fingerprint(source) == fingerprint and source.timestamp <= since
    if by_request or by_source:
        return dg.SkipReason(f"{place}: the source is unchanged since its verdict.")
    if any(not run.dagster_run.is_finished for run in runs):
        return dg.SkipReason(f"{place}: a run on this source is in progress.")
    attempts = sum(run.create_timestamp.timestamp() > since for run in runs)
    if attempts >= ATTEMPTS:
        return dg.SkipReason(
            f"{place}: {attempts} attempts without a verdict. Fix: inspect their runs, then start one manually."
        )
    return dg.RunRequest(run_key=f"{mark}|{since:.6f}|{attempts + 1}", partition_key=partition, tags={TAG: mark})


def merged(context: Any, decisions: Iterable[dg.RunRequest | dg.SkipReason], note: str) -> Any:
    """Return all run requests, or the combined reasons if there are none.

    Args:
        context: Context of the tick. With requests, its log gets the reasons.
        decisions: Decision for each partition, the latest one last.
        note: Sentence about partitions that are not checked, or "".
    """
    found = list(decisions)
    requests = [decision for decision in found if isinstance(decision, dg.RunRequest)]
    reasons = [decision.skip_message or "" for decision in reversed(found) if isinstance(decision, dg.SkipReason)]
    more = f"{len(reasons) - REASONS} more partitions are skipped." if len(reasons) > REASONS else ""
    text = " ".join(filter(None, [*reasons[:REASONS], more, note]))
    if not requests:
        return dg.SkipReason(text or "there is no partition to check.")
    if text:
        context.log.info(text)
    return requests


def _latest(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None) -> Any:
    keys = [partition] if partition is not None else None
    found = instance.fetch_materializations(dg.AssetRecordsFilter(asset_key=key, asset_partitions=keys), limit=1)
    return found.records[0] if found.records else None


def _fingerprint(record: Any) -> str:
    value = record.asset_materialization.metadata.get(FINGERPRINT)
    return str(value.value) if value is not None else ""


def build_table_schedule(name: str, cron: str, *, timezone: str = "UTC") -> dg.ScheduleDefinition:
    """Build a schedule that runs the pipeline of a table if its source has changed since the last verdict.

    It checks all partitions. Of time windows, it checks the latest one, and those of the latest 30 that have no verdict
    although an earlier one has: it requests what ended while the daemon was not running, and names older ones. After
    three attempts without a verdict it stops launching runs on the same source. A table with external synthetic rows
    has no source, so it runs at every tick. The schedule is stopped by default.

    Args:
        name: Name of the table.
        cron: Cron expression.
        timezone: Time zone of the cron expression.

    Returns:
        The schedule ``<name>_schedule``. It requires the resource ``releases``.
    """

    @dg.schedule(
        name=f"{name}_schedule",
        cron_schedule=cron,
        execution_timezone=timezone,
        job_name=f"{name}_pipeline",
        required_resource_keys={RELEASES},
        description=f"Runs {name} when its source has changed since the last verdict.",
    )
    @redact_exceptions
    def schedule(context: dg.ScheduleEvaluationContext) -> Any:
        graph = context.repository_def.asset_graph
        attestation, instance = table_key(graph, name), context.instance
        row_source, definition = table_source(graph, attestation), graph.get(attestation).partitions_def
        partitions, note = partitions_to_watch(attestation, definition, instance)
        if row_source is None:
            windows, time = isinstance(definition, dg.TimeWindowPartitionsDefinition), context.scheduled_execution_time
            decisions = [
                decide(instance, attestation, one, "")
                if windows and one != partitions[-1]
                else dg.RunRequest(run_key=f"{name}|{one}|{time}", partition_key=one)  # Dagster needs a key for each
                for one in partitions
            ]
            return merged(context, decisions, note)
        key = context.resources.releases.key("fingerprints")
        decisions = [_tick(instance, attestation, row_source, partition, key) for partition in partitions]
        return merged(context, decisions, note)

    return schedule


def _tick(
    instance: dg.DagsterInstance, attestation: dg.AssetKey, row_source: RowSource, partition: str | None, key: bytes
) -> dg.RunRequest | dg.SkipReason:
    try:
        version = source_version(row_source, partition, key, instance)[FINGERPRINT]
    except InputError as error:
        return dg.SkipReason(str(error))
    return decide(instance, attestation, partition, version)


def build_source_sensor(name: str, path: str, *, minimum_interval_seconds: int = 60) -> dg.SensorDefinition:
    """Build a sensor that runs the pipeline of a table when files have changed.

    It compares path, size and modification time (in object stores, the entity tag) and reads the files only if one of
    them changed. It checks the same partitions as :func:`build_table_schedule`. After three attempts without a verdict
    it stops launching runs on the same content. The sensor is stopped by default.

    Args:
        name: Name of the table.
        path: Path of Parquet or CSV files, usually of the source. May contain ``{partition}``.
        minimum_interval_seconds: Minimum time between two ticks.

    Returns:
        The sensor ``<name>_source_sensor``. It requires the resource ``releases``.

    Raises:
        ConfigError: If ``path`` is a URL with credentials.
    """
    check_no_credentials(path)

    @dg.sensor(
        name=f"{name}_source_sensor",
        job_name=f"{name}_pipeline",
        minimum_interval_seconds=minimum_interval_seconds,
        required_resource_keys={RELEASES},
        description=f"Runs {name} when {path} has new rows.",
    )
    @redact_exceptions
    def source_sensor(context: dg.SensorEvaluationContext) -> Any:
        graph = _graph(context)
        attestation = table_key(graph, name)
        seen: dict[str, list[str]] = _cursor(context, lambda look: [type(one) for one in look] == [str, str])
        key = context.resources.releases.key("fingerprints")
        decisions: list[dg.RunRequest | dg.SkipReason] = []
        known: dict[str, list[str]] = {}
        definition = graph.get(attestation).partitions_def
        partitions, note = partitions_to_watch(attestation, definition, context.instance)
        for partition in partitions:
            slot = partition or ""
            try:
                known[slot] = _look(partition_path(path, partition), seen.get(slot), key)
            except InputError as error:
                decisions.append(dg.SkipReason(str(error)))
                continue
            decisions.append(decide(context.instance, attestation, partition, known[slot][1]))
        context.update_cursor(json.dumps(known))
        return merged(context, decisions, note)

    return source_sensor


def _look(path: str, seen: Sequence[str] | None, key: bytes) -> list[str]:
    """Return stat token and fingerprint of the files, reusing the last fingerprint if the token is unchanged."""
    stat = stat_token(path, key)
    if seen is not None and seen[0] == stat:
        return list(seen)
    return [stat, files_fingerprint(path, key)]


def build_run_failure_sensor(
    notify: Callable[[str], object] | None = None,
    *,
    name: str = "privacy_run_failures",
    minimum_interval_seconds: int = 60,
) -> dg.SensorDefinition:
    """Build a sensor that reports each failed run of this code location once, in the log and to ``notify``.

    A run fails if the gate rejects its table. The message contains run, job, partition, failed steps and the reason of
    each rejection, but no private values. The sensor is stopped by default.

    Args:
        notify: Called with the message, for example to post it to a chat. If it raises an exception, the message is
            not repeated. None: the message is only logged.
        name: Name of the sensor.
        minimum_interval_seconds: Minimum time between two ticks.

    Returns:
        The sensor.
    """

    @dg.run_failure_sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        description="Reports failed runs, such as rejected publications.",
    )
    @redact_exceptions
    def run_failures(context: dg.RunFailureSensorContext) -> None:
        run = context.dagster_run
        partition = f", partition {context.partition_key}" if context.partition_key else ""
        steps = [_failed_step(event) for event in context.get_step_failure_events()]
        text = "\n  ".join([f"run {run.run_id} of {run.job_name}{partition} failed.", *steps])
        context.log.error(text)
        if notify is not None:
            notify(text)

    return run_failures


def _failed_step(event: dg.DagsterEvent) -> str:
    """Describe a failed step. Only failures raised as ``dg.Failure`` have a message without private values."""
    failure = event.step_failure_data.user_failure_data
    return f"{event.step_key}: {(failure and failure.description) or 'see the log of the run'}"


def _cursor(context: dg.SensorEvaluationContext, fits: Callable[[list[Any]], bool]) -> dict[str, Any]:
    """Read the cursor, a mapping of names to lists for which ``fits`` is true. Return {} for any other cursor."""
    try:
        found = json.loads(context.cursor or "{}")
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and all(isinstance(value, list) and fits(value) for value in found.values()):
        return found
    context.log.warning("the cursor of this sensor cannot be read; it is reset.")
    return {}


def _graph(context: dg.SensorEvaluationContext) -> Any:
    if context.repository_def is None:
        raise ConfigError("the sensor needs the code location that it belongs to.")
    return context.repository_def.asset_graph
