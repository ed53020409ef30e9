"""Factory of the pipeline of one table, from private rows to the release."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from privacy_assets.dagster.assets import build_assets
from privacy_assets.dagster.checks import build_table_checks
from privacy_assets.dagster.metadata import caller_reference
from privacy_assets.dagster.sensors import build_table_schedule
from privacy_assets.dagster.table import AssetLike, DagsterTable, resolve_dagster_table
from privacy_assets.pipeline.spec import TableSpec, spec_of
from privacy_assets.policy import Policy


def build_privacy_assets(  # noqa: PLR0913
    table: TableSpec | str,
    *,
    source: str | Path | None = None,
    subject: str | Mapping[str, Any] | None = None,
    generator: str | Mapping[str, Any] | Callable[..., Any] | None = None,
    policy: Policy | Mapping[str, Any] | str | Path | None = None,
    data: Mapping[str, Any] | None = None,
    split: Mapping[str, float] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
    assets: Mapping[str, AssetLike] | None = None,
    partitions_def: dg.PartitionsDefinition | None = None,
    gpu_tags: Mapping[str, Any] | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    group_name: str | None = None,
    key_prefix: str | Sequence[str] | None = None,
    schedule: str | None = None,
) -> dg.Definitions:
    """Build the assets, asset checks and jobs of one table.

    Asset keys are ``[name, asset]``, after ``key_prefix``. The job ``<name>_pipeline`` runs the
    whole pipeline.

    The definitions require the resources ``privacy_io`` (:class:`PrivacyIOManager`), ``releases``
    (:class:`ReleaseResource`), ``gpu`` (:class:`GpuResource`) and, with ``workers: ray`` in the
    spec, ``ray`` (``LocalRay`` of dagster-ray or another one); :func:`.resources` returns all but
    the last. They contain neither resources nor an executor, so that several tables can be combined
    with ``Definitions.merge``.

    Args:
        table: A :class:`TableSpec` with all settings (docs/settings.md), or the name of a table
            described by the next eight arguments. These must be None if a spec is passed.
        source: "demo", or a path of Parquet or CSV files. With partitions, the path contains
            ``{partition}`` or the setting ``partition_column`` selects the rows.
        subject: Column that identifies people, or ``{"each_row": True}`` if each row is a different
            person. A run needs one of the two. In ``{"column": "id", "exact": True}``, two
            spellings of an id are two people.
        generator: Name of a generator, a mapping of ``name`` and ``settings``, or a function. None:
            the default one.
        policy: A Policy, a mapping, a YAML file, or the name of a built-in one (``small``). None:
            the default limits.
        data: Further sources and declarations of columns, such as ``{"drop": ["claim_id"]}``.
        split: Shares of subjects in train, holdout and reference.
        evaluation: Metrics and embedder.
        run: Options of a run, such as ``{"seed": 1}``.
        assets: Your assets with rows by role, used instead of files: ``{"source": raw}``, or
            ``{"synthetic": ..., "train": ..., "holdout": ...}`` for an external synthetic table.
            With partitions, they are partitioned equally or ``partition_column`` is set.
        partitions_def: Partitions of the table. None: unpartitioned.
        gpu_tags: Op tags of the steps that can use a device, for executors that select it by tags
            (docs/kubernetes.md).
        owners: Owners of all assets.
        tags: Tags of all assets and jobs.
        group_name: Group of all assets. None: the name of the table.
        key_prefix: Prefix of all asset keys: a name, or several. None: no prefix.
        schedule: Cron expression in UTC. A run is launched on it if the source has changed. None:
            no schedule.

    Returns:
        The definitions.

    Raises:
        ConfigError: If a setting is invalid. The message names table, group and setting.
    """
    spec = spec_of(
        table,
        source=source,
        subject=subject,
        generator=generator,
        policy=policy,
        data=data,
        split=split,
        evaluation=evaluation,
        run=run,
    )
    dagster_table = resolve_dagster_table(
        spec,
        assets=assets,
        partitions_def=partitions_def,
        gpu_tags=gpu_tags,
        owners=owners,
        tags=tags,
        group_name=group_name,
        key_prefix=key_prefix,
    )
    return _definitions(dagster_table, schedule, caller_reference())


def _definitions(
    table: DagsterTable, schedule: str | None, reference: Mapping[str, Any]
) -> dg.Definitions:
    assets = [_with_reference(asset, reference) for asset in build_assets(table)]
    keys: list[dg.AssetKey] = []
    for asset in assets:
        keys.extend(asset.keys)
    pipeline = dg.define_asset_job(
        f"{table.name}_pipeline",
        selection=dg.AssetSelection.assets(*keys),
        description=f"Complete pipeline of {table.name}, from its rows to the release.",
        tags=table.run_tags,
    )
    asset_checks = build_table_checks(table)
    schedules = []
    if schedule:
        schedules.append(build_table_schedule(table.name, schedule))
    return dg.Definitions(
        assets=assets, asset_checks=asset_checks, jobs=[pipeline], schedules=schedules
    )


def _with_reference(
    asset: dg.AssetsDefinition, reference: Mapping[str, Any]
) -> dg.AssetsDefinition:
    """Add a link to the line of code that defines the table."""
    if not reference:
        return asset
    return asset.map_asset_specs(lambda spec: spec.merge_attributes(metadata=reference))
