"""A table's plan, and what only Dagster knows of it: keys, partitions, labels, the assets that rows come from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from privacy_assets.errors import ConfigError, door, shown
from privacy_assets.metrics.inputs import REAL_ROLES
from privacy_assets.pipeline.plan import RowSource, TablePlan
from privacy_assets.pipeline.spec import TableSpec

# Groups of the assets of all tables, told apart by the first part of their keys; what is in neither is an attack.
DATA = ("source", *REAL_ROLES, "embedder", "generator", "synthetic")
GATE = ("attestation", "privacy_report", "published")
AssetLike = str | dg.AssetKey | dg.AssetsDefinition | dg.AssetSpec


@dataclass(frozen=True)
class AssetSource(RowSource):
    """Rows that an asset of the user's holds."""

    key: dg.AssetKey = field(default_factory=lambda: dg.AssetKey([]))

    def describe(self) -> str:
        """The asset by its key."""
        return f"asset {self.key.to_user_string()}"


def key_of(row_source: RowSource) -> dg.AssetKey | None:
    """The asset that ``row_source`` comes from, if it does."""
    return row_source.key if isinstance(row_source, AssetSource) else None


@dataclass(frozen=True, eq=False)
class TableSettings(TablePlan):
    """One table's plan in Dagster. Build it with :func:`table_settings`, which checks everything."""

    gpu_tags: Mapping[str, Any] = field(default_factory=dict)
    partitions_def: dg.PartitionsDefinition | None = None
    owners: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    group_name: str = ""
    stale_after_days: int | None = None

    def key(self, asset: str) -> dg.AssetKey:
        """Key of one of this table's assets."""
        return dg.AssetKey([self.name, asset])

    def group(self, asset: str) -> str:
        """Group of one of this table's assets: the user's own, or ``data``, ``attacks`` or ``gate``."""
        return self.group_name or ("data" if asset in DATA else "gate" if asset in GATE else "attacks")


@door
def table_settings(
    spec: TableSpec,
    *,
    assets: Mapping[str, AssetLike] | None = None,
    partitions_def: dg.PartitionsDefinition | None = None,
    gpu_tags: Mapping[str, Any] | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    group_name: str | None = None,
) -> TableSettings:
    """Check ``spec`` and what Dagster says beside it; ConfigError names the table, the setting and the fix."""
    where = f"table {spec.name}"
    given = {role: AssetSource("given", key=_key(asset, f"{where}, assets")) for role, asset in _mapping(assets, where)}
    plan = TablePlan.of(spec, given, partitioned=partitions_def is not None)
    return TableSettings(
        **vars(plan),
        gpu_tags=chosen_tags(gpu_tags, where),
        partitions_def=partitions_def,
        owners=tuple(owners or ()),
        tags=dict(tags or {}),
        group_name=group_name or "",
        stale_after_days=spec.run.stale_after_days,
    )


def _mapping(assets: Any, where: str) -> list[tuple[str, Any]]:
    if not isinstance(assets, Mapping | None):
        raise ConfigError(f"{where}: assets is a mapping of source, train, holdout ... to assets of yours.")
    return list((assets or {}).items())


def _key(given: Any, where: str) -> dg.AssetKey:
    if isinstance(given, str) and given:
        return dg.AssetKey.from_user_string(given)
    if isinstance(given, dg.AssetKey):
        return given
    if isinstance(given, (dg.AssetsDefinition, dg.AssetSpec)):
        return given.key
    raise ConfigError(f"{where}: give an asset, its key or its name, not {type(given).__name__}.")


def chosen_tags(given: Any, where: str) -> dict[str, Any]:
    """Tags of the steps that may use a device: text, and values that JSON gives back as they are."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: gpu_tags is a mapping of tags, not {type(given).__name__}.")
    for name, value in given.items():
        if not isinstance(name, str):
            raise ConfigError(f"{where}: gpu_tags: the tag {shown(name)} must be text.")
        try:
            kept = json.loads(json.dumps(value)) == value
        except (TypeError, ValueError):
            kept = False
        if not kept:
            raise ConfigError(f"{where}: gpu_tags: {name} holds what JSON cannot. Fix: text, numbers, lists, mappings.")
    return dict(given)
