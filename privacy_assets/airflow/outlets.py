"""Assets of releases, for scheduling DAGs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow.sdk import Asset, AssetAlias

_URI = "x-privacy-assets://releases/"
# for tables whose names a task returns
NAMED_LATER = AssetAlias("privacy_assets_releases", group="privacy_assets")


def release_asset(table: str) -> Asset:
    """Return the asset of the releases of ``table``, for scheduling DAGs.

    Its events name the release, but any Airflow user may create events. Read rows with
    :func:`privacy_assets.read_published`, which verifies them.

    Args:
        table: Name of the table.
    """
    return Asset(name=f"{table}_release", uri=f"{_URI}{table}", group="privacy_assets")


def task_outlets(outlets: Iterable[Any], table: str, *, publishes: bool) -> list[Any]:
    """Return the outlets of the task of one table.

    Args:
        outlets: Outlets that the operator was given. A mapped operator has the releases of all of
            its tables.
        table: Name of the table.
        publishes: Whether the task publishes it.

    Returns:
        The outlets without releases of other tables, and with that of the table if the task
        publishes it.
    """
    asset = release_asset(table)
    custom = list[Any]()
    releases = list[Any]()
    for outlet in outlets:
        if _is_release(outlet):
            releases.append(outlet)
        else:
            custom.append(outlet)
    if not publishes:
        return custom
    if NAMED_LATER in releases and asset not in releases:
        return [*custom, NAMED_LATER]
    return [*custom, asset]


def _is_release(outlet: Any) -> bool:
    return outlet == NAMED_LATER or (isinstance(outlet, Asset) and outlet.uri.startswith(_URI))
