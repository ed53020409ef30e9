"""Factories of schedules and sensors, which must be started by a user."""

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import dagster as dg

from privacy_assets.dagster.failures import redact_exceptions
from privacy_assets.dagster.frozen_config import RELEASES
from privacy_assets.dagster.metadata import BROKEN
from privacy_assets.dagster.table import (
    FINGERPRINT,
    TABLE,
    files_fingerprint,
    sibling_key,
    source_version,
    stat_token,
    table_key,
    table_source,
)
from privacy_assets.errors import ConfigError, InputError, PrivacyAssetsError, with_advice
from privacy_assets.gate.deployment import Deployment
from privacy_assets.gate.statements import ReleaseTarget
from privacy_assets.infra.objects import check_no_credentials
from privacy_assets.pipeline.current_release import day, release_note
from privacy_assets.pipeline.resolve import RowSource
from privacy_assets.pipeline.row_sources import partition_path
from privacy_assets.pipeline.running import Lease

ATTEMPTS = 3
CATCH_UP = 30  # latest time windows in which partitions without a verdict are requested
REASONS = 5  # maximum number of skipped partitions whose reason is shown
LOOK_BACK = 100  # latest time windows in which partitions without a verdict are looked for
TAG, RENEWAL = "privacy_assets/source", "privacy_assets/renewal"
_FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_UNFINISHED = [status for status in dg.DagsterRunStatus if status not in _FINISHED]


def partitions_to_watch(
    attestation: dg.AssetKey,
    definition: dg.PartitionsDefinition | None,
    instance: dg.DagsterInstance,
) -> tuple[list[str | None], str]:
    """Return the partitions to check, ``[None]`` for an unpartitioned table.

    Of time windows, these are the latest one and, among the ``CATCH_UP`` latest, those without a
    verdict after the oldest one with a verdict: they ended while the daemon was not running.

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
    text = (
        f"the {len(older)} partitions without a verdict from {older[-1]} to {older[0]} are not"
        " requested"
    )
    fix = f"because only the {CATCH_UP} latest ones are. Fix: launch a backfill of them."
    return watched, f"{attestation.path[-2]}: {text}, {fix}"


def _latest_windows(definition: dg.TimeWindowPartitionsDefinition, last: str) -> list[str]:
    """Return the latest ``LOOK_BACK`` keys, the latest first."""
    keys, window = [last], definition.time_window_for_partition_key(last)
    while (
        len(keys) < LOOK_BACK
        and (before := definition.get_prev_partition_window(window.start)) is not None
    ):
        keys.append(definition.get_partition_key(before.start))
        window = before
    return keys


class Watched(NamedTuple):
    """Table that a schedule or sensor watches.

    Attributes:
        instance: Dagster instance.
        attestation: Key of the attestation of the table.
        deployment: Deployment of the table.
        zone: Time zone of the dates in messages.
    """

    instance: dg.DagsterInstance
    attestation: dg.AssetKey
    deployment: Deployment
    zone: str = "UTC"

    @property
    def name(self) -> str:
        """Name of the table."""
        return self.attestation.path[-2]

    def latest(self, asset: str, partition: str | None) -> Any:
        """Return the record of the latest materialization of an asset, or None."""
        keys = None if partition is None else [partition]
        only = dg.AssetRecordsFilter(
            asset_key=sibling_key(self.attestation, asset), asset_partitions=keys
        )
        found = self.instance.fetch_materializations(only, limit=1).records
        return found[0] if found else None

    def day(self, timestamp: float) -> str:
        """Return the day of a timestamp as text."""
        return day(datetime.fromtimestamp(timestamp, UTC), self.zone)


def decide(
    watched: Watched, partition: str | None, fingerprint: str
) -> dg.RunRequest | dg.SkipReason:
    """Request a run unless the source has a verdict, a run is in progress, or three attempts gave
    no verdict.

    The last attestation is the verdict on this source if it is newer than a source asset with this
    fingerprint, or if its run was requested for this fingerprint (a sensor may watch other files
    than those of the source). Attempts are counted since the last attestation, so a source that
    returns to an earlier state runs again, as does one whose run crashed. If the source is
    unchanged since a release, its renewal is requested once a day.

    Args:
        watched: The table.
        partition: Partition, or None.
        fingerprint: Fingerprint of the source.
    """
    place = _place(watched, partition)
    source, verdict = watched.latest("source", partition), watched.latest("attestation", partition)
    since = verdict.timestamp if verdict is not None else 0.0
    mark = f"{place}|{fingerprint}"
    runs = watched.instance.get_run_records(dg.RunsFilter(tags={TAG: mark}))
    by_request = verdict is not None and verdict.run_id in {run.dagster_run.run_id for run in runs}
    by_source = (
        source is not None
        and _text(source, FINGERPRINT) == fingerprint
        and source.timestamp <= since
    )
    if verdict is not None and (by_request or by_source):
        return _unchanged(watched, partition, verdict)
    if running := in_progress(watched, partition):
        return running
    attempts = sum(run.create_timestamp.timestamp() > since for run in runs)
    if attempts >= ATTEMPTS:
        return dg.SkipReason(
            f"{place}: {attempts} attempts without a verdict. Fix: inspect their runs, then"
            " start one manually."
        )
    tags = {TAG: mark, TABLE: watched.name}
    return dg.RunRequest(
        run_key=f"{mark}|{since:.6f}|{attempts + 1}", partition_key=partition, tags=tags
    )


def in_progress(watched: Watched, partition: str | None) -> dg.SkipReason | None:
    """Return a skip reason if a run that will give a verdict is queued or in progress, however it
    was launched.
    """
    for run in watched.instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED)):
        selected = run.asset_selection
        judges = (
            run.job_name == f"{watched.name}_pipeline"
            if selected is None
            else watched.attestation in selected
        )
        if judges and run.tags.get("dagster/partition") == partition:
            event = f"{_place(watched, partition)}: {_described(watched, run)} is in progress"
            return dg.SkipReason(
                f"{event}. Fix: wait for it, or terminate it if its process was killed."
            )
    return None


def _described(watched: Watched, run: dg.DagsterRun) -> str:
    """Return the id of a run, with process, host and start if it holds the lock of the table."""
    holder = Lease(watched.deployment.private, watched.name, run.run_id).holder()
    if holder is not None and holder.run in (run.run_id, run.root_run_id):
        return str(holder)
    return f"run {run.run_id}"


def _unchanged(
    watched: Watched, partition: str | None, verdict: Any
) -> dg.RunRequest | dg.SkipReason:
    """Return the reason why an unchanged source is skipped, or request the renewal of its
    release.
    """
    target, deployment = ReleaseTarget(watched.name, partition), watched.deployment
    skipped = (
        f"Skipped{'' if partition is None else f' {partition}'}: the source has not changed since"
    )
    word = _text(verdict, "verdict").partition(":")[0]
    if word not in ("pass", ""):
        limits = _text(verdict, BROKEN) or "these rows failed before"
        judged = (
            f"it was {'refused' if word == 'fail' else word} on {watched.day(verdict.timestamp)}"
            f" ({limits})"
        )
        return dg.SkipReason(
            f"{skipped} {judged}. {release_note(deployment, target, watched.zone)}"
        )
    published = watched.latest("published", partition)
    if published is None or published.timestamp < verdict.timestamp:
        text = f"{skipped} its verdict on {watched.day(verdict.timestamp)}."
        return _renewal(
            watched,
            partition,
            verdict.timestamp if published is None else published.timestamp,
            text,
        )
    release = deployment.store.release(target, _text(published, "release"))
    text = f"{skipped} its release on {day(release.time, watched.zone)}"
    try:
        current = deployment.store.pointer(target, deployment.trusted).release
    except (PrivacyAssetsError, OSError):
        current = ""
    if current != release.id:
        rest = release_note(deployment, target, watched.zone)
        return dg.SkipReason(f"{text}, which is no longer current. {rest}")
    return _renewal(watched, partition, published.timestamp, f"{text}.")


def _renewal(
    watched: Watched, partition: str | None, last: float, text: str
) -> dg.RunRequest | dg.SkipReason:
    """Request a run of the step that publishes, at most once a day. It verifies the release and
    renews its time.

    Args:
        watched: The table.
        partition: Partition, or None.
        last: Time of the last publication.
        text: Reason to skip if it was published or requested today.
    """
    place, today = _place(watched, partition), _today(watched.zone)
    asked = watched.instance.get_run_records(dg.RunsFilter(tags={RENEWAL: place}), limit=1)
    latest = max([last, *(run.create_timestamp.timestamp() for run in asked)])
    if datetime.fromtimestamp(latest, ZoneInfo(watched.zone)).date() >= today:
        return dg.SkipReason(text)
    try:
        watched.deployment.gate().check_not_stopped(watched.name)
    except PrivacyAssetsError as error:
        return dg.SkipReason(f"{text} {with_advice(error)}")
    return dg.RunRequest(
        run_key=f"{place}|renewal|{today}",
        partition_key=partition,
        asset_selection=[sibling_key(watched.attestation, "published")],
        tags={RENEWAL: place, TABLE: watched.name},
    )


def _today(zone: str) -> date:
    return datetime.now(ZoneInfo(zone)).date()


def _place(watched: Watched, partition: str | None) -> str:
    return str(ReleaseTarget(watched.name, partition))


def merged(context: Any, decisions: Iterable[dg.RunRequest | dg.SkipReason], note: str) -> Any:
    """Return all run requests, or the combined reasons if there are none.

    Args:
        context: Context of the tick. With requests, its log gets the reasons.
        decisions: Decision for each partition, the latest one last.
        note: Sentence about partitions that are not checked, or "".
    """
    found = list(decisions)
    requests = [decision for decision in found if isinstance(decision, dg.RunRequest)]
    reasons = [
        decision.skip_message or ""
        for decision in reversed(found)
        if isinstance(decision, dg.SkipReason)
    ]
    more = (
        f"{len(reasons) - REASONS} more partitions are skipped." if len(reasons) > REASONS else ""
    )
    text = " ".join(filter(None, [*reasons[:REASONS], more, note]))
    if not requests:
        return dg.SkipReason(text or "there is no partition to check.")
    if text:
        context.log.info(text)
    return requests


def _text(record: Any, name: str) -> str:
    """Return an entry of the metadata of a materialization as text, or "" if there is none."""
    value = record.asset_materialization.metadata.get(name)
    return str(value.value) if value is not None else ""


def build_table_schedule(name: str, cron: str, *, timezone: str = "UTC") -> dg.ScheduleDefinition:
    """Build a schedule that runs the pipeline of a table if its source has changed since the last
    verdict.

    It checks all partitions. Of time windows, it checks the latest one, and those of the latest 30
    that have no verdict although an earlier one has: it requests what ended while the daemon was
    not running, and names older ones. After three attempts without a verdict it stops launching
    runs on the same source. A table with external synthetic rows has no source, so it runs at every
    tick. The schedule is stopped by default.

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
        row_source, definition = (
            table_source(graph, attestation),
            graph.get(attestation).partitions_def,
        )
        partitions, note = partitions_to_watch(attestation, definition, instance)
        watched = Watched(instance, attestation, context.resources.releases.deployment, timezone)
        if row_source is None:
            windows, time = (
                isinstance(definition, dg.TimeWindowPartitionsDefinition),
                context.scheduled_execution_time,
            )
            decisions = [
                decide(watched, one, "")
                if windows and one != partitions[-1]
                else in_progress(watched, one)
                # Dagster needs a key for each
                or dg.RunRequest(
                    run_key=f"{name}|{one}|{time}", partition_key=one, tags={TABLE: name}
                )
                for one in partitions
            ]
            return merged(context, decisions, note)
        decisions = [_tick(watched, row_source, partition) for partition in partitions]
        return merged(context, decisions, note)

    return schedule


def _tick(
    watched: Watched, row_source: RowSource, partition: str | None
) -> dg.RunRequest | dg.SkipReason:
    try:
        key = watched.deployment.key("fingerprints")
        version = source_version(row_source, partition, key, watched.instance)[FINGERPRINT]
    except InputError as error:
        return dg.SkipReason(str(error))
    return decide(watched, partition, version)


def build_source_sensor(
    name: str, path: str, *, minimum_interval_seconds: int = 60
) -> dg.SensorDefinition:
    """Build a sensor that runs the pipeline of a table when files have changed.

    It compares path, size, inode and the times of the last change (in object stores, the entity
    tag). It reads the files only if one of these changed, or if the store has no entity tags. It
    checks the same partitions as :func:`build_table_schedule`. After three attempts without a
    verdict it stops launching runs on the same content. The sensor is stopped by default.

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
        seen: dict[str, list[str]] = _cursor(
            context, lambda look: [type(one) for one in look] == [str, str]
        )
        watched = Watched(context.instance, attestation, context.resources.releases.deployment)
        key = watched.deployment.key("fingerprints")
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
            decisions.append(decide(watched, partition, known[slot][1]))
        context.update_cursor(json.dumps(known))
        return merged(context, decisions, note)

    return source_sensor


def _look(path: str, seen: Sequence[str] | None, key: bytes) -> list[str]:
    """Return stat token and fingerprint of the files, reusing the last fingerprint if the token is
    unchanged.
    """
    stat = stat_token(path, key)
    if seen is not None and stat and seen[0] == stat:
        return list(seen)
    return [stat, files_fingerprint(path, key)]


def _cursor(
    context: dg.SensorEvaluationContext, fits: Callable[[list[Any]], bool]
) -> dict[str, Any]:
    """Read the cursor, a mapping of names to lists for which ``fits`` is true. Return {} for any
    other cursor.
    """
    try:
        found = json.loads(context.cursor or "{}")
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and all(
        isinstance(value, list) and fits(value) for value in found.values()
    ):
        return found
    context.log.warning("the cursor of this sensor cannot be read; it is reset.")
    return {}


def _graph(context: dg.SensorEvaluationContext) -> Any:
    if context.repository_def is None:
        raise ConfigError("the sensor needs the code location that it belongs to.")
    return context.repository_def.asset_graph
