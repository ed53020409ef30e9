"""Schedules and sensors of a deployment, each by one call. All are stopped until somebody starts them."""

import json
import time
from collections.abc import Sequence
from typing import Any

import dagster as dg

from privacy_assets.dagster.alerts import new_failures, send, webhook_of
from privacy_assets.dagster.assets import RELEASES
from privacy_assets.dagster.redaction import redact_exceptions
from privacy_assets.dagster.run_requests import decide, merged, partitions_to_watch
from privacy_assets.dagster.versions import (
    CHECK,
    FINGERPRINT,
    files_fingerprint,
    source_version,
    stat_token,
    table_source,
)
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.pipeline.plan import RowSource
from privacy_assets.pipeline.row_sources import partition_path

_TICK_S = 20.0  # Dagster ends a tick after 60 seconds


def build_table_schedule(name: str, cron: str, *, timezone: str = "UTC") -> dg.ScheduleDefinition:
    """Run the pipeline of table ``name`` on a cron line, but only when its source is new.

    Of a daily table the latest partition is looked at, of a table by region every partition. A table whose synthetic
    rows you bring yourself runs at every tick: it has no source to compare.
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
        row_source = table_source(graph, name)
        partitions = partitions_to_watch(_partitions(graph, name), context.instance)
        if row_source is None:
            return [dg.RunRequest(partition_key=partition) for partition in partitions]
        key = context.resources.releases.key("fingerprints")
        return merged(_tick(context.instance, name, row_source, partition, key) for partition in partitions)

    return schedule


def _tick(
    instance: dg.DagsterInstance, name: str, row_source: RowSource, partition: str | None, key: bytes
) -> dg.RunRequest | dg.SkipReason:
    try:
        version = source_version(row_source, partition, key, instance)[FINGERPRINT]
    except InputError as error:
        return dg.SkipReason(str(error))
    return decide(instance, name, partition, version)


def build_source_sensor(name: str, path: str, *, minimum_interval_seconds: int = 60) -> dg.SensorDefinition:
    """Run the pipeline of table ``name`` when the files that ``path`` names hold new rows.

    Path, size and modification time are compared first; only when these changed is the file read. A run key is
    fingerprint and attempt: at most three attempts without a verdict. ``path`` may hold ``{partition}``.
    """

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
        table_source(graph, name)
        seen: dict[str, list[str]] = json.loads(context.cursor) if context.cursor else {}
        key = context.resources.releases.key("fingerprints")
        decisions: list[dg.RunRequest | dg.SkipReason] = []
        known: dict[str, list[str]] = {}
        for partition in partitions_to_watch(_partitions(graph, name), context.instance):
            slot = partition or ""
            try:
                known[slot] = _look(partition_path(path, partition), seen.get(slot), key)
            except InputError as error:
                decisions.append(dg.SkipReason(str(error)))
                continue
            decisions.append(decide(context.instance, name, partition, known[slot][1]))
        context.update_cursor(json.dumps(known))
        return merged(decisions)

    return source_sensor


def _look(path: str, seen: Sequence[str] | None, key: bytes) -> list[str]:
    """Cheap facts and fingerprint of the files; the fingerprint of the last tick while the cheap facts are the same."""
    stat = stat_token(path)
    if seen is not None and seen[0] == stat:
        return list(seen)
    return [stat, files_fingerprint(path, key)]


def build_failed_check_sensor(
    name: str = "privacy_check_alerts",
    *,
    tables: Sequence[str] | None = None,
    webhook_variable: str = "PRIVACY_ASSETS_WEBHOOK",
    timeout_s: float = 10.0,
    minimum_interval_seconds: int = 60,
) -> dg.SensorDefinition:
    """Alert once on each failed privacy check: in the log, and as JSON to a webhook.

    ``tables`` are the tables to watch (all). The webhook's address is read from the environment variable
    ``webhook_variable`` at each tick; without it only the log is written. When it does not take an alert, this one and
    the rest are sent at the next tick. The message names table, check, partition, run and reason: no private values.
    """

    @dg.sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        description="Alerts on failed privacy checks.",
    )
    @redact_exceptions
    def failed_check_sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        graph = _graph(context)
        for table in tables or ():
            table_source(graph, table)
        keys = sorted(_watched(graph, tables), key=str)
        state: dict[str, list[int]] = json.loads(context.cursor) if context.cursor else {}
        url = webhook_of(webhook_variable)
        sent, started, later = 0, time.monotonic(), ""
        for alert in new_failures(context.instance, keys, state):
            # A tick that takes too long is killed, and would send the same alerts again.
            if time.monotonic() - started > _TICK_S:
                later = ", more at the next tick"
                break
            context.log.error(alert.text)
            if url is not None and not send(url, alert.to_json(), timeout_s, context.log):
                later = ", one to be sent again"
                break
            state[alert.slot].append(alert.id)
            sent += 1
        context.update_cursor(json.dumps(state))
        return dg.SkipReason(f"{sent} alerts{later}, {len(keys)} checks watched.")

    return failed_check_sensor


def _graph(context: dg.SensorEvaluationContext) -> Any:
    if context.repository_def is None:
        raise ConfigError("the sensor needs the code location that it belongs to.")
    return context.repository_def.asset_graph


def _partitions(graph: Any, name: str) -> dg.PartitionsDefinition | None:
    definition: dg.PartitionsDefinition | None = graph.get(dg.AssetKey([name, "attestation"])).partitions_def
    return definition


def _watched(graph: Any, tables: Sequence[str] | None) -> list[dg.AssetCheckKey]:
    return [
        key
        for key in graph.asset_check_keys
        if CHECK in graph.get_check_spec(key).metadata and (tables is None or key.asset_key.path[0] in tables)
    ]
