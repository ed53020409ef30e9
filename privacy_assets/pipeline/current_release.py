"""Sentences about the current release of a table, for messages and skip reasons."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

from privacy_assets.errors import InputError, PrivacyAssetsError, TableSuspended
from privacy_assets.gate.deployment import Deployment
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.infra.storage import storage_of
from privacy_assets.pipeline.advice import with_advice


def day(moment: dt.datetime, zone: str = "UTC") -> str:
    """Return a day such as "23 Nov", with the year unless it is the current one.

    Args:
        moment: Time with a time zone.
        zone: Time zone of the day.
    """
    local = moment.astimezone(ZoneInfo(zone))
    text = f"{local.day} {local:%b}"
    if local.year == dt.datetime.now(ZoneInfo(zone)).year:
        return text
    return f"{text} {local.year}"


def release_note(
    deployment: Deployment, target: ReleaseTarget, zone: str = "UTC", *, with_id: bool = False
) -> str:
    """Return a sentence about the release that readers have.

    Args:
        deployment: Deployment of the table.
        target: Table and partition.
        zone: Time zone of the day of the release.
        with_id: Include the id of the release.
    """
    try:
        pointer = deployment.store.pointer(target, deployment.trusted)
    except InputError:
        return "There is no release."
    except (PrivacyAssetsError, OSError) as error:
        return f"The current release is unknown: {error}."
    if not pointer.release:
        return "The current release was withdrawn, and there is no new one yet."
    release = deployment.store.release(target, pointer.release)
    published = day(release.time, zone)
    if with_id:
        return f"Readers have the release of {published} ({release.id})."
    return f"The release of {published} remains current."


def situation(deployment: Deployment, target: ReleaseTarget) -> list[str]:
    """Return the sentences at the end of an alert: the release that readers have, and whether the
    table is suspended.

    Args:
        deployment: Deployment of the table.
        target: Table and partition.
    """
    lines = [release_note(deployment, target, with_id=True)]
    try:
        if storage_of(deployment.private / "log").names():  # otherwise the gate would create keys
            deployment.gate().check_not_suspended(target.table)
    except TableSuspended as error:
        lines.append(with_advice(error))
    except (PrivacyAssetsError, OSError):
        return lines  # the process that sends alerts may have no keys
    return lines
