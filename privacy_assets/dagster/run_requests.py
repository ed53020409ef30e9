"""When a schedule or sensor launches a table's pipeline: new rows, no verdict yet, at most three attempts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dagster as dg

from privacy_assets.dagster.versions import FINGERPRINT

ATTEMPTS = 3
TAG = "privacy_assets/source"


def partitions_to_watch(definition: dg.PartitionsDefinition | None, instance: dg.DagsterInstance) -> list[str | None]:
    """Partitions that a tick looks at: the latest of a time series, all of a list, ``[None]`` without partitions."""
    if definition is None:
        return [None]
    if isinstance(definition, dg.TimeWindowPartitionsDefinition):
        last = definition.get_last_partition_key()
        return [last] if last is not None else []
    return list(definition.get_partition_keys(dynamic_partitions_store=instance))


def decide(
    instance: dg.DagsterInstance, name: str, partition: str | None, fingerprint: str
) -> dg.RunRequest | dg.SkipReason:
    """Request a run unless the rows with this fingerprint have a verdict, are being worked on, or failed three times.

    The verdict on these rows is the last attestation, when it is newer than a source with this fingerprint or was made
    by a run requested for it (a sensor may watch other files than those of the source). Attempts are counted since the
    last verdict, so that a source that goes back to an earlier state runs again, and so does one whose run crashed.
    """
    place = name if partition is None else f"{name}, {partition}"
    source = _latest(instance, dg.AssetKey([name, "source"]), partition)
    verdict = _latest(instance, dg.AssetKey([name, "attestation"]), partition)
    since = verdict.timestamp if verdict is not None else 0.0
    mark = f"{place}|{fingerprint}"
    runs = instance.get_run_records(dg.RunsFilter(tags={TAG: mark}))
    by_request = verdict is not None and verdict.run_id in {run.dagster_run.run_id for run in runs}
    by_source = source is not None and _fingerprint(source) == fingerprint and source.timestamp <= since
    if by_request or by_source:
        return dg.SkipReason(f"{place}: the source is unchanged since its verdict.")
    if any(not run.dagster_run.is_finished for run in runs):
        return dg.SkipReason(f"{place}: a run on this source is under way.")
    attempts = sum(run.create_timestamp.timestamp() > since for run in runs)
    if attempts >= ATTEMPTS:
        return dg.SkipReason(
            f"{place}: {attempts} attempts without a verdict; look at their runs, then start one by hand."
        )
    return dg.RunRequest(run_key=f"{mark}|{since:.6f}|{attempts + 1}", partition_key=partition, tags={TAG: mark})


def merged(decisions: Iterable[dg.RunRequest | dg.SkipReason]) -> list[dg.RunRequest] | dg.SkipReason:
    """All requests, or one reason for none."""
    found = list(decisions)
    requests = [decision for decision in found if isinstance(decision, dg.RunRequest)]
    if requests:
        return requests
    reasons = [decision.skip_message or "" for decision in found if isinstance(decision, dg.SkipReason)]
    return dg.SkipReason(" ".join(reasons) or "no partition to look at.")


def _latest(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None) -> Any:
    keys = [partition] if partition is not None else None
    found = instance.fetch_materializations(dg.AssetRecordsFilter(asset_key=key, asset_partitions=keys), limit=1)
    return found.records[0] if found.records else None


def _fingerprint(record: Any) -> str:
    value = record.asset_materialization.metadata.get(FINGERPRINT)
    return str(value.value) if value is not None else ""
