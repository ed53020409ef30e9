"""Sentences about the current release of a table, for messages and skip reasons."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

from privacy_assets.errors import InputError, PrivacyAssetsError
from privacy_assets.gate.releases import Release, ReleaseStore
from privacy_assets.gate.statements import ReleaseTarget


def day(moment: dt.datetime, zone: str = "UTC") -> str:
    """Return a day such as "23 Nov", with the year unless it is the current one.

    Args:
        moment: Time with a time zone.
        zone: Time zone of the day.
    """
    there, now = moment.astimezone(ZoneInfo(zone)), dt.datetime.now(ZoneInfo(zone))
    return f"{there.day} {there:%b}" + (f" {there.year}" if there.year != now.year else "")


def published_on(release: Release) -> dt.datetime:
    """Return the time of publication of a release."""
    return dt.datetime.fromisoformat(release.published_at).replace(tzinfo=dt.UTC)


def standing(store: ReleaseStore, target: ReleaseTarget, zone: str = "UTC", *, with_id: bool = False) -> str:
    """Return a sentence about the release that readers have.

    Args:
        store: Releases.
        target: Table and partition.
        zone: Time zone of the day of the release.
        with_id: Include the id of the release.
    """
    try:
        release = store.current(target)
    except InputError:
        return "There is no release."
    except (PrivacyAssetsError, OSError) as error:
        return f"The current release is unknown: {error}."
    published = day(published_on(release), zone)
    return (
        f"Readers have the release of {published} ({release.id})."
        if with_id
        else f"The release of {published} remains current."
    )
