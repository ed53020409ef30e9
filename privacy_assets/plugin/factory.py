"""The one factory behind Python and YAML: from a private table to a gated, published synthetic table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from privacy_assets.engine.tables.schema import Kind
from privacy_assets.plugin.assets import (
    build_embedder,
    build_generator_asset,
    build_source,
    build_splits,
    build_synthetic,
)
from privacy_assets.plugin.calibration import build_leaky_study, has_study
from privacy_assets.plugin.metadata import caller_reference
from privacy_assets.plugin.publication import build_attestation, build_published
from privacy_assets.plugin.scores import build_report, build_score
from privacy_assets.plugin.sensors import build_table_schedule
from privacy_assets.plugin.settings import MetricsLike, PolicyLike, TableSettings, WorkerKind, table_settings
from privacy_assets.plugin.table_checks import build_table_checks

Rows = str | Path | dg.AssetKey | dg.AssetsDefinition | dg.AssetSpec | Mapping[str, str]


def build_privacy_assets(
    name: str,
    *,
    source: Rows | None = None,
    subject: str | None = None,
    kinds: Mapping[str, Kind] | None = None,
    drop: Sequence[str] | None = None,
    generated: Mapping[str, str] | None = None,
    domains: Mapping[str, Sequence[Any]] | None = None,
    generator: str | Mapping[str, Any] | Callable[..., Any] = "synthpop",
    rows: int | None = None,
    filter: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None = None,
    synthetic: Rows | None = None,
    train: Rows | None = None,
    holdout: Rows | None = None,
    reference: Rows | None = None,
    shares: Mapping[str, float] | None = None,
    metrics: MetricsLike | None = None,
    policy: PolicyLike | None = None,
    embedder: Mapping[str, Any] | bool = True,
    seed: int = 0,
    workers: WorkerKind = "local",
    gpu_tags: Mapping[str, Any] | None = None,
    partitions_def: dg.PartitionsDefinition | None = None,
    partition_column: str | None = None,
    together: bool = False,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    group_name: str | None = None,
    schedule: str | None = None,
) -> dg.Definitions:
    """Assets, checks and the job of one table, keyed ``[name, asset]``.

    ``source`` is ``"demo"``, a path (Parquet or CSV file, folder or glob) or one of your assets. ``subject`` names
    the column that tells people apart; ``kinds`` overrides inferred column kinds; ``drop`` names columns to leave
    out, ``generated`` those in which new values are allowed, each with a reason that is signed, and ``domains``
    values that may stand in a column beside the real ones (docs/columns.md: identifiers and free text are refused
    otherwise). ``generator`` is a registered name, a mapping of ``name`` and ``settings``, a function, or
    ``"module:function"``; ``rows`` is how many to sample (as many as train has); ``filter`` leaves out those near
    few real people ("memorization"), near any ("similarity"), or far from all ("outliers"): a name, a mapping of
    ``name`` and ``settings``, or a list of these. A ``synthetic`` table of your own (file or asset) comes with the
    ``train`` it was made from and a ``holdout`` that its generator has not seen, in place of a source. ``shares``
    are those of the split, ``metrics`` names or ``{name: settings}``, ``policy`` a Policy, a mapping or a YAML
    file, ``embedder`` its settings or False. ``workers`` "ray" measures on a Ray cluster, the resource ``ray``
    (dagster-ray's ``LocalRay`` or another of its resources); the figures are the same. ``gpu_tags`` are tags of the
    steps that may use a device, for an executor that asks for one by tags (docs/kubernetes.md).
    With ``partitions_def`` a path holds ``{partition}`` or ``partition_column`` says which rows belong to which.
    ``together`` is for partitions with the same people in them, as of daily tables: `composition` judges each new
    release with those of all partitions; a partition that another one overtook is refused, and scored again.
    ``schedule`` is a cron line: a run on it while the source is new.

    Where there is a reference, a job ``<name>_calibrate`` of its own runs the leaky study on the pipeline's splits.

    Needs the resources ``privacy_io`` (:class:`PrivacyIOManager`), ``releases`` (:class:`ReleaseResource`) and ``gpu``
    (:class:`GpuResource`); neither these nor an executor are bound here, so that several tables merge with
    ``Definitions.merge``. Raises ConfigError, naming table and argument, for anything that could not run.
    """
    settings = table_settings(
        name,
        source=source,
        subject=subject,
        kinds=kinds,
        drop=drop,
        generated=generated,
        domains=domains,
        generator=generator,
        rows=rows,
        filter=filter,
        synthetic=synthetic,
        train=train,
        holdout=holdout,
        reference=reference,
        shares=shares,
        metrics=metrics,
        policy=policy,
        embedder=embedder,
        seed=seed,
        workers=workers,
        gpu_tags=gpu_tags,
        partitions_def=partitions_def,
        partition_column=partition_column,
        together=together,
        owners=owners,
        tags=tags,
        group_name=group_name,
    )
    return _definitions(settings, schedule, caller_reference())


def _definitions(settings: TableSettings, schedule: str | None, reference: Mapping[str, Any]) -> dg.Definitions:
    assets = [_referenced(asset, reference) for asset in _assets(settings)]
    keys = [key for asset in assets for key in asset.keys]
    job = dg.define_asset_job(
        f"{settings.name}_pipeline",
        selection=dg.AssetSelection.assets(*keys),
        description=f"The whole pipeline of {settings.name}, from its rows to the release.",
        tags=dict(settings.tags),
    )
    studies = [_referenced(build_leaky_study(settings), reference)] if has_study(settings) else []
    study = dg.define_asset_job(
        f"{settings.name}_calibrate",
        selection=dg.AssetSelection.assets(*studies),
        description=f"Do the metrics see a leak in {settings.name}? Run its pipeline first; this publishes nothing.",
        tags=dict(settings.tags),
    )
    return dg.Definitions(
        assets=[*assets, *studies],
        asset_checks=build_table_checks(settings),
        jobs=[job, study] if studies else [job],
        schedules=[build_table_schedule(settings.name, schedule)] if schedule else [],
    )


def _assets(settings: TableSettings) -> list[dg.AssetsDefinition]:
    made = [] if settings.brought else [build_source(settings), build_generator_asset(settings)]
    return [
        *made,
        build_splits(settings),
        *([build_embedder(settings)] if settings.embeds else []),
        build_synthetic(settings),
        *(build_score(settings, metric) for metric in settings.metrics.values()),
        build_report(settings),
        build_attestation(settings),
        build_published(settings),
    ]


def _referenced(asset: dg.AssetsDefinition, reference: Mapping[str, Any]) -> dg.AssetsDefinition:
    """The asset with a link to the line that defines its table."""
    return asset.map_asset_specs(lambda spec: spec.merge_attributes(metadata=reference)) if reference else asset
