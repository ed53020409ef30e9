"""One table in Dagster: the resolved table, asset keys, partitions, labels and upstream assets."""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from privacy_assets.errors import ConfigError, did_you_mean, redact_foreign_errors, safe_repr
from privacy_assets.infra.objects import ObjectPath, check_no_credentials, location
from privacy_assets.pipeline.partitions import check_key
from privacy_assets.pipeline.resolve import PARTITION_MARK, ROLES, ResolvedTable, RowSource
from privacy_assets.pipeline.row_sources import partition_path
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.tables.files import find_files, table_files
from privacy_assets.tables.fingerprints import file_fingerprint, keyed_fingerprint
from privacy_assets.tables.folders import folder_values

TABLE = "privacy_assets/table"  # tag of each run of a table
AssetLike = str | dg.AssetKey | dg.AssetsDefinition | dg.AssetSpec


@dataclass(frozen=True)
class AssetSource(RowSource):
    """Row source that reads a user's Dagster asset.

    Attributes:
        key: Key of the asset.
    """

    key: dg.AssetKey = field(default_factory=lambda: dg.AssetKey([]))

    def describe(self) -> str:
        """Describe the asset by its key."""
        return f"asset {self.key.to_user_string()}"


def key_of(row_source: RowSource) -> dg.AssetKey | None:
    """Return the key of the upstream asset of ``row_source``, or None if its rows are not from an
    asset.
    """
    return row_source.key if isinstance(row_source, AssetSource) else None


@dataclass(frozen=True, eq=False)
class DagsterTable:
    """Resolved table with its settings of Dagster. Build it with :func:`resolve_dagster_table`,
    which validates it.

    Attributes:
        resolved: The resolved table.
        gpu_tags: Op tags of the steps that can use a device.
        partitions_def: Partitions, or None.
        owners: Owners of all assets.
        tags: Tags of all assets and jobs.
        group_name: Group of all assets.
        key_prefix: Prefix of all asset keys.
    """

    resolved: ResolvedTable
    gpu_tags: Mapping[str, Any]
    partitions_def: dg.PartitionsDefinition | None
    owners: Sequence[str]
    tags: Mapping[str, str]
    group_name: str
    key_prefix: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Name of the table."""
        return self.resolved.name

    @property
    def run_tags(self) -> dict[str, str]:
        """Tags of the runs of all jobs. The queue of Dagster limits runs by the tag with the name
        of the table.
        """
        return {**self.tags, TABLE: self.name}

    def key(self, asset: str) -> dg.AssetKey:
        """Return the key of an asset of this table."""
        return dg.AssetKey([*self.key_prefix, self.name, asset])


@redact_foreign_errors
def resolve_dagster_table(
    spec: TableSpec,
    *,
    assets: Mapping[str, AssetLike] | None = None,
    partitions_def: dg.PartitionsDefinition | None = None,
    gpu_tags: Mapping[str, Any] | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    group_name: str | None = None,
    key_prefix: str | Sequence[str] | None = None,
) -> DagsterTable:
    """Validate ``spec`` and the settings of Dagster; see :func:`.build_privacy_assets` for the
    arguments.

    Raises:
        ConfigError: If a setting is invalid. The message names table, setting and fix.
    """
    where = f"table {spec.name}"
    given = {
        role: AssetSource("given", key=_key(asset, f"{where}, assets"))
        for role, asset in _mapping(assets, where)
    }
    if isinstance(partitions_def, dg.StaticPartitionsDefinition):
        for partition in partitions_def.get_partition_keys():
            check_key(partition)
    resolved = ResolvedTable.of(spec, given, partitioned=partitions_def is not None)
    if _is_dynamic(partitions_def) and not spec.data.shared_subjects:
        _check_keys(resolved, where)
    return DagsterTable(
        resolved=resolved,
        gpu_tags=resolve_tags(gpu_tags, where),
        partitions_def=partitions_def,
        owners=tuple(owners or ()),
        tags=dict(tags or {}),
        group_name=group_name or spec.name,
        key_prefix=_prefix(key_prefix, where),
    )


def _prefix(given: Any, where: str) -> Sequence[str]:
    parts = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(parts, Sequence) or not all(
        isinstance(one, str) and one and "/" not in one for one in parts
    ):
        raise ConfigError(
            f"{where}: key_prefix must be a name without slashes, or a list of such names."
        )
    return tuple(parts)


def _is_dynamic(definition: dg.PartitionsDefinition | None) -> bool:
    """Return True if a user of the UI can add partition keys."""
    if isinstance(definition, dg.MultiPartitionsDefinition):
        return any(
            _is_dynamic(dimension.partitions_def) for dimension in definition.partitions_defs
        )
    return isinstance(definition, dg.DynamicPartitionsDefinition)


def _check_keys(resolved: ResolvedTable, where: str) -> None:
    """Reject tables in which a new partition key could select the rows of another partition."""
    for role, row_source in resolved.row_sources.items():
        marked = [part for part in row_source.path.split("/") if PARTITION_MARK in part]
        ambiguous = any(glob.has_magic(part.replace(PARTITION_MARK, "")) for part in marked)
        if ambiguous or (
            row_source.kind == "given" and resolved.spec.data.partition_column is None
        ):
            raise ConfigError(
                f"{where}: users of the UI can add keys of dynamic partitions, and another key"
                " could select the same"
                f" rows of {role}. Fix: name the partition_column, use a path without wildcards"
                " next to"
                f" {PARTITION_MARK}, or set shared_subjects: true."
            )


def _mapping(assets: Any, where: str) -> list[tuple[str, Any]]:
    if not isinstance(assets, Mapping | None):
        keys = f"{', '.join(ROLES[:-1])} and {ROLES[-1]}"
        text = f"{where}: assets has type {type(assets).__name__}, not a mapping"
        raise ConfigError(f"{text}. Fix: pass {{'source': your_asset}}; the keys are {keys}.")
    return list((assets or {}).items())


def _key(given: Any, where: str) -> dg.AssetKey:
    if isinstance(given, str) and given:
        return dg.AssetKey.from_user_string(given)
    if isinstance(given, dg.AssetKey):
        return given
    if isinstance(given, (dg.AssetsDefinition, dg.AssetSpec)):
        return given.key
    raise ConfigError(
        f"{where}: expected an asset, its key or its name, got {type(given).__name__}."
    )


def resolve_tags(given: Any, where: str) -> dict[str, Any]:
    """Validate the op tags of the steps that can use a device.

    Raises:
        ConfigError: If a name is not a string, or a value changes when it is converted to JSON and
            back.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{where}: gpu_tags must be a mapping of tags, not {type(given).__name__}."
        )
    for name, value in given.items():
        if not isinstance(name, str):
            raise ConfigError(f"{where}: gpu_tags: the tag {safe_repr(name)} must be text.")
        try:
            kept = json.loads(json.dumps(value)) == value
        except (TypeError, ValueError):
            kept = False
        if not kept:
            raise ConfigError(
                f"{where}: gpu_tags: {name} has a value that JSON cannot represent. Fix: use"
                " strings, numbers,"
                " lists and mappings."
            )
    return dict(given)


FINGERPRINT, STAT = "privacy_assets/source_fingerprint", "privacy_assets/source_stat"
SOURCE, CHECK = "privacy_assets/source", "privacy_assets/check"


def stat_token(path: str, key: bytes) -> str:
    """Return a keyed digest of facts about the files that change with their content, or "" if a
    store has none.

    For files, these are the size, the inode and the time of the last change of the inode, which no
    program can set. For objects, they are the size and the entity tag.

    Raises:
        InputError: If ``path`` matches no file.
    """
    metadata: list[list[Any]] = []
    for file in table_files(path):
        if isinstance(file, ObjectPath):
            size, tag = file.version()
            if not tag:
                return ""
            metadata.append([str(file), size, tag])
        else:
            facts = file.stat()
            metadata.append(
                [str(file), facts.st_size, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns]
            )
    return keyed_fingerprint(json.dumps(metadata), key)[:32]


def files_fingerprint(path: str, key: bytes) -> str:
    """Return a keyed fingerprint of names and contents of the files, and of the values of their
    Hive folders.
    """
    root, files = find_files(location(path))
    parts: list[list[Any]] = []
    for file in files:
        values = folder_values(root, file)
        parts.append([file.name, file_fingerprint(file), *values.items()])
    return keyed_fingerprint(json.dumps(parts), key)[:32]


def source_version(
    row_source: RowSource, partition: str | None, key: bytes, instance: dg.DagsterInstance
) -> dict[str, str]:
    """Return the current version of the rows of ``row_source``, as metadata of the ``source``
    asset.

    For files, the version is a keyed content fingerprint and a stat token. For the demo table, it
    is a constant. For an upstream asset, it is the run id and timestamp of its latest
    materialization, or "unknown" if it was never materialized.
    """
    if row_source.kind == "demo":
        return {FINGERPRINT: "demo"}
    if isinstance(row_source, AssetSource):
        return {FINGERPRINT: _materialization(instance, row_source.key)}
    path = partition_path(row_source.path, partition)
    return {STAT: stat_token(path, key), FINGERPRINT: files_fingerprint(path, key)}


def _materialization(instance: dg.DagsterInstance, key: dg.AssetKey) -> str:
    event = instance.get_latest_materialization_event(key)
    return f"{event.run_id}:{event.timestamp}" if event is not None else "unknown"


def source_metadata(row_source: RowSource) -> dict[str, Any]:
    """Return definition metadata from which schedules restore the source.

    The UI displays it, so no parameter of a URL in it may contain a secret. The others stay,
    because schedules read the same version of a file.

    Raises:
        ConfigError: If the path is a URL with any other parameter.
    """
    check_no_credentials(row_source.path)
    key = key_of(row_source)
    return {
        SOURCE: {
            "kind": row_source.kind,
            "path": row_source.path,
            "asset": key.to_user_string() if key else "",
        }
    }


def source_from_metadata(data: Any) -> RowSource:
    """Inverse of :func:`source_metadata`."""
    if data["asset"]:
        return AssetSource("given", key=dg.AssetKey.from_user_string(data["asset"]))
    return RowSource(data["kind"], data["path"])


def table_key(graph: Any, name: str) -> dg.AssetKey:
    """Return the key of the attestation of a table in an asset graph, with its prefix.

    Raises:
        ConfigError: If there is no such table.
    """
    found = [
        key
        for key in graph.get_all_asset_keys()
        if len(key.path) > 1 and key.path[-1] == "attestation"
    ]
    keys = sorted((key for key in found if key.path[-2] == name), key=lambda key: len(key.path))
    if not keys:
        tables = {key.path[-2] for key in found}
        raise ConfigError(
            f"no table {safe_repr(name)} in this code location.{did_you_mean(name, tables)}"
        )
    return keys[0]


def sibling_key(key: dg.AssetKey, asset: str) -> dg.AssetKey:
    """Return the key of another asset of the same table."""
    return dg.AssetKey([*key.path[:-1], asset])


def table_source(graph: Any, attestation: dg.AssetKey) -> RowSource | None:
    """Return the source of a table in an asset graph, or None if its synthetic table is external.

    Args:
        graph: Asset graph.
        attestation: Key of the attestation of the table.
    """
    key = sibling_key(attestation, "source")
    if not graph.has(key):
        return None
    found = graph.get(key).metadata[SOURCE]
    return source_from_metadata(getattr(found, "value", found))
