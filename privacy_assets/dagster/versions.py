"""Versions of a source: cheap facts first, the bytes only when those changed."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import dagster as dg

from privacy_assets.dagster.settings import AssetSource, key_of
from privacy_assets.errors import ConfigError, did_you_mean, shown
from privacy_assets.pipeline.plan import RowSource
from privacy_assets.pipeline.row_sources import partition_path
from privacy_assets.storage.objects import ObjectPath
from privacy_assets.tables.files import table_files
from privacy_assets.tables.fingerprints import file_fingerprint, keyed

FINGERPRINT, STAT = "privacy_assets/source_fingerprint", "privacy_assets/source_stat"
SOURCE, CHECK = "privacy_assets/source", "privacy_assets/check"


def stat_token(path: str) -> str:
    """Digest over path, size and time (or tag) of the files that ``path`` names; InputError when there is none."""
    metadata = []
    for file in table_files(path):
        if isinstance(file, ObjectPath):
            metadata.append([str(file), *file.version()])
            continue
        found = file.stat()
        metadata.append([str(file), found.st_size, found.st_mtime_ns])
    return hashlib.sha256(json.dumps(metadata).encode()).hexdigest()[:32]


def files_fingerprint(path: str, key: bytes) -> str:
    """Keyed fingerprint of the bytes of the files that ``path`` names, by name."""
    parts = [[file.name, file_fingerprint(file)] for file in table_files(path)]
    return keyed(json.dumps(parts), key)[:32]


def source_version(
    row_source: RowSource, partition: str | None, key: bytes, instance: dg.DagsterInstance
) -> dict[str, str]:
    """What identifies the rows that ``row_source`` gives now, as metadata of the ``source`` asset.

    Files: path, size and time, and a keyed fingerprint of the bytes. The demo set has one version; an upstream asset's
    is its latest materialisation.
    """
    if row_source.kind == "demo":
        return {FINGERPRINT: "demo"}
    if isinstance(row_source, AssetSource):
        return {FINGERPRINT: _materialisation(instance, row_source.key)}
    path = partition_path(row_source.path, partition)
    return {STAT: stat_token(path), FINGERPRINT: files_fingerprint(path, key)}


def _materialisation(instance: dg.DagsterInstance, key: dg.AssetKey) -> str:
    event = instance.get_latest_materialization_event(key)
    return f"{event.run_id}:{event.timestamp}" if event is not None else "unknown"


def source_metadata(row_source: RowSource) -> dict[str, Any]:
    """Definition metadata by which schedules find the source again."""
    key = key_of(row_source)
    return {SOURCE: {"kind": row_source.kind, "path": row_source.path, "asset": key.to_user_string() if key else ""}}


def source_from_metadata(data: Any) -> RowSource:
    """Inverse of :func:`source_metadata`."""
    if data["asset"]:
        return AssetSource("given", key=dg.AssetKey.from_user_string(data["asset"]))
    return RowSource(data["kind"], data["path"])


def table_source(graph: Any, name: str) -> RowSource | None:
    """The source of table ``name`` in an asset graph; None when its rows are the user's own. ConfigError for no
    such table.
    """
    key = dg.AssetKey([name, "source"])
    if graph.has(key):
        found = graph.get(key).metadata[SOURCE]
        return source_from_metadata(getattr(found, "value", found))
    tables = {asset.path[0] for asset in graph.get_all_asset_keys() if asset.path[-1] == "attestation"}
    if name not in tables:
        raise ConfigError(f"no table {shown(name)} in this code location.{did_you_mean(name, tables)}")
    return None
