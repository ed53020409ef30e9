"""Factories of schedules and sensors, which must be started by a user."""

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import dagster as dg

from privacy_assets.dagster.failures import redact_exceptions
from privacy_assets.dagster.frozen_config import RELEASES
from privacy_assets.dagster.metadata import FAILED_LIMITS
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
from privacy_assets.errors import ConfigError, InputError, PrivacyAssetsError
from privacy_assets.gate.deployment import Deployment
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.infra.objects import check_no_credentials
from privacy_assets.pipeline.advice import with_advice
from privacy_assets.pipeline.current_release import day, release_note
from privacy_assets.pipeline.lease import Lease
from privacy_assets.pipeline.resolve import RowSource
from privacy_assets.pipeline.row_sources import partition_path

ATTEMPTS = 3
CATCH_UP = 30  # latest time windows in which partitions without a verdict are requested
REASONS = 5  # maximum number of skipped partitions whose reason is shown
LOOK_BACK = 100  # latest time windows in which partitions without a verdict are looked for
TAG = "privacy_assets/source"  # tag of a run: target and fingerprint that it was requested for
RENEWAL = "privacy_assets/renewal"  # tag of a run: target whose release it renews
_FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_UNFINISHED = [status for status in dg.DagsterRunStatus if status not in _FINISHED]
Decision = dg.RunRequest | dg.SkipReason


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
    with_verdict = instance.get_materialized_partitions(attestation)
    if last is None:
        return [], ""
    if not with_verdict:
        return [last], ""
    keys = _latest_windows(definition, last)
    positions = [i for i, key in enumerate(keys) if key in with_verdict]
    oldest_verdict = max(positions, default=len(keys))
    missed: list[str] = []
    too_old: list[str] = []
    for position in range(1, oldest_verdict):
        key = keys[position]
        if key in with_verdict:
            continue
        if position < CATCH_UP:
            missed.append(key)
        else:
            too_old.append(key)
    watched: list[str | None] = [*reversed(missed), last]
    if not too_old:
        return watched, ""
    note = (
        f"{attestation.path[-2]}: the {len(too_old)} partitions without a verdict from"
        f" {too_old[-1]} to {too_old[0]} are not requested, because only the {CATCH_UP} latest ones"
        " are. Fix: launch a backfill of them."
    )
    return watched, note


def _latest_windows(definition: dg.TimeWindowPartitionsDefinition, last: str) -> list[str]:
    """Return the latest ``LOOK_BACK`` keys, the latest first."""
    keys = [last]
    window = definition.time_window_for_partition_key(last)
    while len(keys) < LOOK_BACK:
        previous = definition.get_prev_partition_window(window.start)
        if previous is None:
            break
        keys.append(definition.get_partition_key(previous.start))
        window = previous
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

    def target(self, partition: str | None) -> ReleaseTarget:
        """Return the table or one of its partitions.

        Args:
            partition: Partition, or None.
        """
        return ReleaseTarget(self.name, partition)

    def latest(self, asset: str, partition: str | None) -> Any:
        """Return the record of the latest materialization of an asset, or None.

        Args:
            asset: Name of an asset of the table, such as "source".
            partition: Partition, or None.
        """
        key = sibling_key(self.attestation, asset)
        partitions = None if partition is None else [partition]
        records_filter = dg.AssetRecordsFilter(asset_key=key, asset_partitions=partitions)
        records = self.instance.fetch_materializations(records_filter, limit=1).records
        return records[0] if records else None

    def day(self, timestamp: float) -> str:
        """Return the day of a timestamp as text.

        Args:
            timestamp: Seconds since 1970, UTC.
        """
        return day(datetime.fromtimestamp(timestamp, UTC), self.zone)


def decide(watched: Watched, partition: str | None, fingerprint: str) -> Decision:
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
    target = watched.target(partition)
    source = watched.latest("source", partition)
    verdict = watched.latest("attestation", partition)
    tag = f"{target}|{fingerprint}"
    requested_runs = watched.instance.get_run_records(dg.RunsFilter(tags={TAG: tag}))
    since = 0.0
    if verdict is not None:
        since = verdict.timestamp
        is_requested = _is_requested(verdict, requested_runs)
        if is_requested or _is_same_source(source, fingerprint, since):
            return _unchanged(watched, partition, verdict)
    running = in_progress(watched, partition)
    if running is not None:
        return running
    n_attempts = sum(run.create_timestamp.timestamp() > since for run in requested_runs)
    if n_attempts >= ATTEMPTS:
        return dg.SkipReason(
            f"{target}: {n_attempts} attempts without a verdict. Fix: inspect their runs, then"
            " start one manually."
        )
    return dg.RunRequest(
        run_key=f"{tag}|{since:.6f}|{n_attempts + 1}",
        partition_key=partition,
        tags={TAG: tag, TABLE: watched.name},
    )


def _is_requested(verdict: Any, requested_runs: Iterable[dg.RunRecord]) -> bool:
    """Return True if the verdict is of one of these runs."""
    return any(run.dagster_run.run_id == verdict.run_id for run in requested_runs)


def _is_same_source(source: Any, fingerprint: str, time: float) -> bool:
    """Return True if the source asset has this fingerprint, and was materialized by ``time``."""
    if source is None or source.timestamp > time:
        return False
    return _metadata_text(source, FINGERPRINT) == fingerprint


def in_progress(watched: Watched, partition: str | None) -> dg.SkipReason | None:
    """Return a skip reason if a run that will give a verdict is queued or in progress, however it
    was launched.

    Args:
        watched: The table.
        partition: Partition, or None.
    """
    for run in watched.instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED)):
        is_of_partition = run.tags.get("dagster/partition") == partition
        if is_of_partition and _gives_verdict(watched, run):
            target = watched.target(partition)
            return dg.SkipReason(
                f"{target}: {_described(watched, run)} is in progress. Fix: wait for it, or"
                " terminate it if its process was killed."
            )
    return None


def _gives_verdict(watched: Watched, run: dg.DagsterRun) -> bool:
    if run.asset_selection is None:
        return run.job_name == f"{watched.name}_pipeline"
    return watched.attestation in run.asset_selection


def _described(watched: Watched, run: dg.DagsterRun) -> str:
    """Return the id of a run, with process, host and start if it holds the lease of the table."""
    holder = Lease(watched.deployment.private, watched.name, run.run_id).holder()
    if holder is not None and holder.run in (run.run_id, run.root_run_id):
        return str(holder)
    return f"run {run.run_id}"


def _unchanged(watched: Watched, partition: str | None, verdict: Any) -> Decision:
    """Return the reason why an unchanged source is skipped, or request the renewal of its
    release.
    """
    target = watched.target(partition)
    deployment = watched.deployment
    skipped = "Skipped" if partition is None else f"Skipped {partition}"
    unchanged = f"{skipped}: the source has not changed since"
    status = _metadata_text(verdict, "verdict").partition(":")[0]
    if status not in ("pass", ""):
        limits = _metadata_text(verdict, FAILED_LIMITS) or "these rows failed before"
        note = release_note(deployment, target, watched.zone)
        return dg.SkipReason(
            f"{unchanged} its verdict {status!r} on {watched.day(verdict.timestamp)}"
            f" ({limits}). {note}"
        )
    published = watched.latest("published", partition)
    if published is None or published.timestamp < verdict.timestamp:
        last = verdict.timestamp if published is None else published.timestamp
        text = f"{unchanged} its verdict on {watched.day(verdict.timestamp)}."
        return _renewal(watched, partition, last, text)
    release = deployment.store.release(target, _metadata_text(published, "release"))
    text = f"{unchanged} its release on {day(release.time, watched.zone)}"
    if _current_release(deployment, target) != release.id:
        note = release_note(deployment, target, watched.zone)
        return dg.SkipReason(f"{text}, which is no longer current. {note}")
    return _renewal(watched, partition, published.timestamp, f"{text}.")


def _current_release(deployment: Deployment, target: ReleaseTarget) -> str:
    """Return the id of the release that readers have, or "" if there is none or it is unknown."""
    try:
        return deployment.store.pointer(target, deployment.trusted).release
    except (PrivacyAssetsError, OSError):
        return ""


def _renewal(watched: Watched, partition: str | None, last: float, text: str) -> Decision:
    """Request a run of the step that publishes, at most once a day. It verifies the release and
    renews its time.

    Args:
        watched: The table.
        partition: Partition, or None.
        last: Time of the last publication.
        text: Reason to skip if it was published or requested today.
    """
    target = str(watched.target(partition))
    today = _today(watched.zone)
    times = [last]
    for run in watched.instance.get_run_records(dg.RunsFilter(tags={RENEWAL: target}), limit=1):
        times.append(run.create_timestamp.timestamp())
    latest = datetime.fromtimestamp(max(times), ZoneInfo(watched.zone))
    if latest.date() >= today:
        return dg.SkipReason(text)
    try:
        watched.deployment.gate().check_not_suspended(watched.name)
    except PrivacyAssetsError as error:
        return dg.SkipReason(f"{text} {with_advice(error)}")
    return dg.RunRequest(
        run_key=f"{target}|renewal|{today}",
        partition_key=partition,
        asset_selection=[sibling_key(watched.attestation, "published")],
        tags={RENEWAL: target, TABLE: watched.name},
    )


def _today(zone: str) -> date:
    return datetime.now(ZoneInfo(zone)).date()


def tick_result(context: Any, decisions: Iterable[Decision], note: str) -> Any:
    """Return all run requests, or the combined reasons if there are none.

    Args:
        context: Context of the tick. With requests, its log gets the reasons.
        decisions: Decision for each partition, the latest one last.
        note: Sentence about partitions that are not checked, or "".
    """
    requests = []
    reasons = []
    for decision in decisions:
        if isinstance(decision, dg.RunRequest):
            requests.append(decision)
        else:
            reasons.append(decision.skip_message or "")
    reasons.reverse()
    sentences = reasons[:REASONS]
    if len(reasons) > REASONS:
        sentences.append(f"{len(reasons) - REASONS} more partitions are skipped.")
    sentences.append(note)
    text = " ".join(filter(None, sentences))
    if not requests:
        return dg.SkipReason(text or "there is no partition to check.")
    if text:
        context.log.info(text)
    return requests


def _metadata_text(record: Any, name: str) -> str:
    """Return an entry of the metadata of a materialization as text, or "" if there is none."""
    entry = record.asset_materialization.metadata.get(name)
    return "" if entry is None else str(entry.value)


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
        attestation = table_key(graph, name)
        row_source = table_source(graph, attestation)
        definition = graph.get(attestation).partitions_def
        partitions, note = partitions_to_watch(attestation, definition, context.instance)
        deployment = context.resources.releases.deployment
        watched = Watched(context.instance, attestation, deployment, timezone)
        decisions: list[Decision] = []
        if row_source is not None:
            for partition in partitions:
                decisions.append(_decide_by_source(watched, partition, row_source))
            return tick_result(context, decisions, note)
        # External synthetic rows have no source, so they are requested at every tick.
        has_windows = isinstance(definition, dg.TimeWindowPartitionsDefinition)
        time = context.scheduled_execution_time
        for partition in partitions:
            if has_windows and partition != partitions[-1]:
                decisions.append(decide(watched, partition, ""))
            else:
                decisions.append(_request_at(watched, partition, time))
        return tick_result(context, decisions, note)

    return schedule


def _decide_by_source(watched: Watched, partition: str | None, row_source: RowSource) -> Decision:
    """Decide by the current version of the source, or skip if it cannot be read."""
    try:
        key = watched.deployment.key("fingerprints")
        version = source_version(row_source, partition, key, watched.instance)
    except InputError as error:
        return dg.SkipReason(str(error))
    return decide(watched, partition, version[FINGERPRINT])


def _request_at(watched: Watched, partition: str | None, time: datetime) -> Decision:
    """Request a run of this tick unless a run is in progress."""
    running = in_progress(watched, partition)
    if running is not None:
        return running
    return dg.RunRequest(
        run_key=f"{watched.name}|{partition}|{time}",  # Dagster needs a key for each request
        partition_key=partition,
        tags={TABLE: watched.name},
    )


class FileVersion(NamedTuple):
    """Version of the files that a sensor watches, an entry of its cursor.

    Attributes:
        stat: Stat token, or "" if the store has none; see :func:`.stat_token`.
        fingerprint: Fingerprint of the contents.
    """

    stat: str
    fingerprint: str


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
        last_versions = _last_versions(context)
        watched = Watched(context.instance, attestation, context.resources.releases.deployment)
        key = watched.deployment.key("fingerprints")
        definition = graph.get(attestation).partitions_def
        partitions, note = partitions_to_watch(attestation, definition, context.instance)
        decisions: list[Decision] = []
        versions: dict[str, FileVersion] = {}
        for partition in partitions:
            slot = partition or ""
            try:
                partition_files = partition_path(path, partition)
                version = _file_version(partition_files, last_versions.get(slot), key)
            except InputError as error:
                decisions.append(dg.SkipReason(str(error)))
                continue
            versions[slot] = version
            decisions.append(decide(watched, partition, version.fingerprint))
        context.update_cursor(json.dumps(versions))
        return tick_result(context, decisions, note)

    return source_sensor


def _file_version(path: str, last: FileVersion | None, key: bytes) -> FileVersion:
    """Return the version of the files, reusing the last fingerprint if the stat token is
    unchanged.
    """
    stat = stat_token(path, key)
    if last is not None and stat and last.stat == stat:
        return last
    return FileVersion(stat, files_fingerprint(path, key))


def _last_versions(context: dg.SensorEvaluationContext) -> dict[str, FileVersion]:
    """Read the cursor: the last version of each partition, "" for an unpartitioned table. Return {}
    for any other cursor.
    """
    try:
        cursor = json.loads(context.cursor or "{}")
    except (ValueError, RecursionError):
        cursor = None
    if isinstance(cursor, dict) and all(map(_is_version, cursor.values())):
        return {slot: FileVersion(*entry) for slot, entry in cursor.items()}
    context.log.warning("the cursor of this sensor cannot be read; it is reset.")
    return {}


def _is_version(entry: Any) -> bool:
    return isinstance(entry, list) and [type(part) for part in entry] == [str, str]


def _graph(context: dg.SensorEvaluationContext) -> Any:
    if context.repository_def is None:
        raise ConfigError("the sensor needs the code location that it belongs to.")
    return context.repository_def.asset_graph
