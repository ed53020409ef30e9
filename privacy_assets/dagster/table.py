"""One table in Dagster: the resolved table, asset keys, partitions, labels and upstream assets."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from privacy_assets.errors import ConfigError, did_you_mean, redact_foreign_errors, safe_repr
from privacy_assets.infra.objects import check_no_credentials, location
from privacy_assets.infra.storage import storage_of
from privacy_assets.pipeline.partitions import check_key
from privacy_assets.pipeline.resolve import PARTITION_MARK, ROLES, ResolvedTable, RowSource
from privacy_assets.pipeline.row_sources import partition_path
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.tables.files import find_files, table_files
from privacy_assets.tables.fingerprints import file_fingerprint, keyed_fingerprint
from privacy_assets.tables.folders import folder_values

TABLE = "privacy_assets/table"  # tag of each run of a table
# keys of metadata
FINGERPRINT = "privacy_assets/source_fingerprint"
STAT = "privacy_assets/source_stat"
SOURCE = "privacy_assets/source"
CHECK = "privacy_assets/check"
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
    if isinstance(row_source, AssetSource):
        return row_source.key
    return None


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
        """Return the key of an asset of this table.

        Args:
            asset: Name of the asset, such as "source".
        """
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
    asset_sources = {}
    for role, asset in _checked_assets(assets, where).items():
        key = _asset_key(asset, f"{where}, assets")
        asset_sources[role] = AssetSource("given", key=key)
    if isinstance(partitions_def, dg.StaticPartitionsDefinition):
        for partition in partitions_def.get_partition_keys():
            check_key(partition)
    resolved = ResolvedTable.of(spec, asset_sources, partitioned=partitions_def is not None)
    if _is_dynamic(partitions_def) and not spec.data.shared_subjects:
        _check_dynamic_keys(resolved, where)
    return DagsterTable(
        resolved=resolved,
        gpu_tags=resolve_tags(gpu_tags, where),
        partitions_def=partitions_def,
        owners=tuple(owners or ()),
        tags=dict(tags or {}),
        group_name=group_name or spec.name,
        key_prefix=_resolved_prefix(key_prefix, where),
    )


def _resolved_prefix(key_prefix: Any, where: str) -> Sequence[str]:
    if key_prefix is None:
        return ()
    parts = [key_prefix] if isinstance(key_prefix, str) else key_prefix
    if not isinstance(parts, Sequence) or not all(map(_is_key_part, parts)):
        raise ConfigError(
            f"{where}: key_prefix must be a name without slashes, or a list of such names."
        )
    return tuple(parts)


def _is_key_part(name: Any) -> bool:
    return isinstance(name, str) and name != "" and "/" not in name


def _is_dynamic(definition: dg.PartitionsDefinition | None) -> bool:
    """Return True if a user of the UI can add partition keys."""
    if isinstance(definition, dg.MultiPartitionsDefinition):
        dimensions = definition.partitions_defs
        return any(_is_dynamic(dimension.partitions_def) for dimension in dimensions)
    return isinstance(definition, dg.DynamicPartitionsDefinition)


def _check_dynamic_keys(resolved: ResolvedTable, where: str) -> None:
    """Reject tables in which a new partition key could select the rows of another partition."""
    has_column = resolved.spec.data.partition_column is not None
    for role, row_source in resolved.row_sources.items():
        is_asset = row_source.kind == "given"
        if _is_ambiguous(row_source.path) or (is_asset and not has_column):
            raise ConfigError(
                f"{where}: users of the UI can add keys of dynamic partitions, and another key"
                f" could select the same rows of {role}. Fix: name the partition_column, use a"
                f" path without wildcards next to {PARTITION_MARK}, or set shared_subjects: true."
            )


def _is_ambiguous(path: str) -> bool:
    """Return True if a folder or file of the path has a wildcard next to the partition key."""
    for part in path.split("/"):
        if PARTITION_MARK in part and glob.has_magic(part.replace(PARTITION_MARK, "")):
            return True
    return False


def _checked_assets(assets: Any, where: str) -> Mapping[str, Any]:
    """Return the assets by role, of which there may be none.

    Raises:
        ConfigError: If they are not a mapping.
    """
    if not isinstance(assets, Mapping | None):
        keys = f"{', '.join(ROLES[:-1])} and {ROLES[-1]}"
        raise ConfigError(
            f"{where}: assets has type {type(assets).__name__}, not a mapping. Fix: pass"
            f" {{'source': your_asset}}; the keys are {keys}."
        )
    return assets or {}


def _asset_key(asset: Any, where: str) -> dg.AssetKey:
    if isinstance(asset, str) and asset:
        return dg.AssetKey.from_user_string(asset)
    if isinstance(asset, dg.AssetKey):
        return asset
    if isinstance(asset, (dg.AssetsDefinition, dg.AssetSpec)):
        return asset.key
    raise ConfigError(
        f"{where}: expected an asset, its key or its name, got {type(asset).__name__}."
    )


def resolve_tags(gpu_tags: Any, where: str) -> dict[str, Any]:
    """Validate the op tags of the steps that can use a device.

    Args:
        gpu_tags: Tags by name, or None.
        where: Table, for messages.

    Raises:
        ConfigError: If a name is not a string, or a value changes when it is converted to JSON and
            back.
    """
    if gpu_tags is None:
        return {}
    if not isinstance(gpu_tags, Mapping):
        raise ConfigError(
            f"{where}: gpu_tags must be a mapping of tags, not {type(gpu_tags).__name__}."
        )
    for name, value in gpu_tags.items():
        if not isinstance(name, str):
            raise ConfigError(f"{where}: gpu_tags: the tag {safe_repr(name)} must be text.")
        if not _is_json(value):
            raise ConfigError(
                f"{where}: gpu_tags: {name} has a value that JSON cannot represent. Fix: use"
                " strings, numbers, lists and mappings."
            )
    return dict(gpu_tags)


def _is_json(value: Any) -> bool:
    """Return True if a value is the same after conversion to JSON and back."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def stat_token(path: str, key: bytes) -> str:
    """Return a keyed digest of facts about the files that change with their content, or "" if a
    store has none.

    For files, these are the size, the inode and the time of the last change of the inode, which no
    program can set. For objects, they are the size and the entity tag.

    Args:
        path: Path or URL of the files.
        key: Key of the digest.

    Raises:
        InputError: If ``path`` matches no file.
    """
    metadata: list[list[Any]] = []
    for file in table_files(path):
        version = storage_of(file).version()
        if version is None:
            return ""
        metadata.append([str(file), *version])
    return keyed_fingerprint(json.dumps(metadata), key)[:32]


def files_fingerprint(path: str, key: bytes) -> str:
    """Return a keyed fingerprint of names and contents of the files, and of the values of their
    Hive folders.

    Args:
        path: Path or URL of the files.
        key: Key of the fingerprint.
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

    Args:
        row_source: Source of the rows.
        partition: Partition, or None.
        key: Key of the fingerprints.
        instance: Dagster instance.

    Returns:
        Fingerprint and, for files, stat token. The fingerprint is a keyed one of the content of
        files, and a constant for the demo table. For an upstream asset, it is the run id and
        timestamp of its latest materialization, or "unknown" if it was never materialized.

    Raises:
        InputError: If there are no files.
    """
    if row_source.kind == "demo":
        return {FINGERPRINT: "demo"}
    if isinstance(row_source, AssetSource):
        return {FINGERPRINT: _materialization(instance, row_source.key)}
    path = partition_path(row_source.path, partition)
    return {STAT: stat_token(path, key), FINGERPRINT: files_fingerprint(path, key)}


def _materialization(instance: dg.DagsterInstance, key: dg.AssetKey) -> str:
    event = instance.get_latest_materialization_event(key)
    if event is None:
        return "unknown"
    return f"{event.run_id}:{event.timestamp}"


def source_metadata(row_source: RowSource) -> dict[str, Any]:
    """Return definition metadata from which schedules restore the source.

    The UI displays it, so no parameter of a URL in it may contain a secret. The others stay,
    because schedules read the same version of a file.

    Args:
        row_source: Source of the rows.

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

    Args:
        graph: Asset graph.
        name: Name of the table.

    Raises:
        ConfigError: If there is no such table.
    """
    attestations = attestation_keys(graph.get_all_asset_keys())
    keys = [key for key in attestations if key.path[-2] == name]
    if not keys:
        tables = {key.path[-2] for key in attestations}
        raise ConfigError(
            f"no table {safe_repr(name)} in this code location.{did_you_mean(name, tables)}"
        )
    return min(keys, key=lambda key: len(key.path))


def attestation_keys(keys: Iterable[dg.AssetKey]) -> list[dg.AssetKey]:
    """Return the keys of attestations, each of one table.

    Args:
        keys: Keys of any assets.
    """
    return [key for key in keys if len(key.path) > 1 and key.path[-1] == "attestation"]


def sibling_key(key: dg.AssetKey, asset: str) -> dg.AssetKey:
    """Return the key of another asset of the same table.

    Args:
        key: Key of an asset of the table.
        asset: Name of the other asset, such as "source".
    """
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
    entry = graph.get(key).metadata[SOURCE]
    return source_from_metadata(getattr(entry, "value", entry))
