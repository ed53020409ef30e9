"""The one factory behind Python and YAML: from a private table to a gated, published synthetic table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from privacy_assets.dagster.assets import (
    build_embedder,
    build_generator_asset,
    build_source,
    build_splits,
    build_synthetic,
)
from privacy_assets.dagster.calibration import build_leaky_study, has_study
from privacy_assets.dagster.metadata import caller_reference
from privacy_assets.dagster.publication import build_attestation, build_published
from privacy_assets.dagster.scores import build_encoded, build_score
from privacy_assets.dagster.sensors import build_table_schedule
from privacy_assets.dagster.settings import AssetLike, TableSettings, table_settings
from privacy_assets.dagster.table_checks import build_table_checks
from privacy_assets.pipeline.spec import TableSpec, spec_of
from privacy_assets.policy import Policy


def build_privacy_assets(
    table: TableSpec | str,
    *,
    source: str | Path | None = None,
    subject: str | None = None,
    generator: str | Mapping[str, Any] | Callable[..., Any] | None = None,
    policy: Policy | Mapping[str, Any] | str | Path | None = None,
    assets: Mapping[str, AssetLike] | None = None,
    partitions_def: dg.PartitionsDefinition | None = None,
    gpu_tags: Mapping[str, Any] | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    group_name: str | None = None,
    schedule: str | None = None,
) -> dg.Definitions:
    """Assets, checks and the job of one table, keyed ``[name, asset]``.

    ``table`` is a :class:`TableSpec`, which says all that can be set (docs/settings.md), or the name of a table that
    ``source`` ("demo", or a path), ``subject`` (the column that tells people apart), ``generator`` and ``policy``
    describe well enough. All else here is Dagster's own.

    ``assets`` are assets of yours that hold rows, in place of paths: ``{"source": raw}``, or for a synthetic table of
    your own ``{"synthetic": ..., "train": ..., "holdout": ...}``. With ``partitions_def`` a path holds ``{partition}``,
    an asset is partitioned alike, or the setting ``partition_column`` says which rows belong to which. ``gpu_tags`` are
    tags of the steps that may use a device, for an executor that asks for one by tags (docs/kubernetes.md). With
    ``workers: ray`` in the spec the resource ``ray`` (dagster-ray's ``LocalRay`` or another one) is needed.
    ``schedule`` is a cron line: a run on it while the source is new. ``group_name`` is a group for all assets of the
    table, in place of ``data``, ``attacks`` and ``gate``.

    Where there is a reference, a job ``<name>_calibrate`` of its own runs the leaky study on the pipeline's splits.

    Needs the resources ``privacy_io`` (:class:`PrivacyIOManager`), ``releases`` (:class:`ReleaseResource`) and ``gpu``
    (:class:`GpuResource`); neither these nor an executor are bound here, so that several tables merge with
    ``Definitions.merge``. Raises ConfigError, naming table, group and setting, for anything that could not run.
    """
    settings = table_settings(
        spec_of(table, source=source, subject=subject, generator=generator, policy=policy),
        assets=assets,
        partitions_def=partitions_def,
        gpu_tags=gpu_tags,
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
    made = [] if settings.external else [build_source(settings), build_generator_asset(settings)]
    return [
        *made,
        build_splits(settings),
        *([build_embedder(settings)] if settings.embeds else []),
        build_synthetic(settings),
        build_encoded(settings),
        *(build_score(settings, metric) for metric in settings.metrics.values()),
        build_attestation(settings),
        build_published(settings),
    ]


def _referenced(asset: dg.AssetsDefinition, reference: Mapping[str, Any]) -> dg.AssetsDefinition:
    """The asset with a link to the line that defines its table."""
    return asset.map_asset_specs(lambda spec: spec.merge_attributes(metadata=reference)) if reference else asset
