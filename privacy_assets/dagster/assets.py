"""The assets of one table, from ``source`` to ``synthetic``; the gate's are in ``publication``."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import dagster as dg
import pandas as pd

from privacy_assets.compute.progress import Lines
from privacy_assets.dagster.metadata import synthetic_metadata, table_metadata, training_metadata
from privacy_assets.dagster.pipes import piped
from privacy_assets.dagster.places import place_of, steps_of
from privacy_assets.dagster.redaction import checked_step
from privacy_assets.dagster.resources import home_of
from privacy_assets.dagster.settings import AssetSource, TableSettings, key_of
from privacy_assets.dagster.step_device import GPU, device_of, placed
from privacy_assets.dagster.versions import source_metadata, source_version
from privacy_assets.errors import InputError
from privacy_assets.gate.statements import Sealed
from privacy_assets.pipeline.measuring import fitted_embedder
from privacy_assets.pipeline.plan import RowSource
from privacy_assets.pipeline.private_table import PrivateTable
from privacy_assets.stats.limits import Limit

IO_KEY, RELEASES = "privacy_io", "releases"
PRIVATE = dg.PythonObjectDagsterType(PrivateTable, name="PrivacyAssetsPrivateTable")
# IO managers are asked for a DataFrame; one that hands over a table of another library is understood as well.
GIVEN = dg.DagsterType(lambda _context, _value: True, name="PrivacyAssetsTable", typing_type=pd.DataFrame)
SEALED = dg.PythonObjectDagsterType(Sealed, name="PrivacyAssetsSealed")

SPLIT_TEXT = {
    "train": "The rows the generator learns from. Every person is wholly in train, in holdout or in reference.",
    "holdout": "Real rows of people the generator has never seen: what the synthetic table may know about them anyway.",
    "reference": "Further unseen real rows: they calibrate attacks.",
}


def check_name(limit: Limit) -> str:
    """Name of the asset check of one limit."""
    return limit.key.replace(".", "_")


def limit_text(limit: Limit) -> str:
    """What the check of one limit asks for."""
    side = f"at most {limit.at_most}" if limit.at_most is not None else f"at least {limit.at_least}"
    source = limit.source[:1].upper() + limit.source[1:]
    return f"{limit.statistic} must be {side} ({limit.bound} bound). {source}".strip()


def common(settings: TableSettings, asset: str, *kinds: str) -> dict[str, Any]:
    """Arguments that every asset of a table has."""
    return {
        "key": settings.key(asset),
        "group_name": settings.group(asset),
        "owners": list(settings.owners) or None,
        "tags": dict(settings.tags),
        "kinds": {"privacy", *kinds},
        "partitions_def": settings.partitions_def,
        "io_manager_key": IO_KEY,
        "dagster_type": dg.Any,
    }


def common_out(settings: TableSettings, asset: str, *kinds: str, description: str, kept: Any = dg.Any) -> dg.AssetOut:
    """One asset of a step that makes several, with what every asset of a table has."""
    shared = common(settings, asset, *kinds)
    named = {name: shared[name] for name in ("key", "group_name", "owners", "tags", "kinds", "io_manager_key")}
    return dg.AssetOut(**named, description=description, dagster_type=kept)


def check_row_sources(
    context: dg.AssetExecutionContext, settings: TableSettings, row_sources: Mapping[str, RowSource]
) -> None:
    """InputError when every partition would be given all rows of an upstream asset that has no partitions."""
    if settings.partitions_def is None or settings.partition_column is not None:
        return
    for role, row_source in row_sources.items():
        if (
            isinstance(row_source, AssetSource)
            and context.job_def.asset_layer.get(row_source.key).partitions_def is None
        ):
            fix = "name the partition_column, or partition that asset"
            raise InputError(f"{row_source.describe()} has no partitions", where=f"{settings.name}, {role}", fix=fix)


def split_ins(settings: TableSettings) -> dict[str, dg.AssetIn]:
    """The real tables as inputs."""
    return {role: dg.AssetIn(key=settings.key(role), dagster_type=PRIVATE) for role in settings.roles}


def source_ins(row_sources: Mapping[str, RowSource]) -> dict[str, dg.AssetIn]:
    """The user's upstream assets as inputs, by role."""
    given = {role: key_of(row_source) for role, row_source in row_sources.items()}
    return {f"given_{role}": dg.AssetIn(key=key, dagster_type=GIVEN) for role, key in given.items() if key}


def build_source(settings: TableSettings) -> dg.AssetsDefinition:
    """The private table."""
    row_source = settings.row_sources["source"]

    @dg.asset(
        **common(settings, "source", "pandas"),
        ins=source_ins({"source": row_source}),
        required_resource_keys={RELEASES},
        metadata=source_metadata(row_source),
        description=(
            f"The private table, from {row_source.describe()}: rows about real people. It never leaves this machine."
        ),
    )
    @checked_step
    def source(context: dg.AssetExecutionContext, **given: pd.DataFrame) -> dg.MaterializeResult:
        steps, releases = steps_of(context, settings), context.resources.releases
        check_row_sources(context, settings, {"source": row_source})
        version = source_version(row_source, steps.place.partition, releases.key("fingerprints"), context.instance)
        table = steps.source(given.get("given_source"))
        fingerprint = steps.keyed(table)
        metadata = {**table_metadata(table, fingerprint), **version}
        if doubt := settings.policy.doubt(round(settings.shares["train"] * metadata["subjects"])):
            context.log.warning(doubt)
            metadata["too few people"] = doubt
        return dg.MaterializeResult(value=table, metadata=metadata, data_version=dg.DataVersion(fingerprint))

    return source


def build_splits(settings: TableSettings) -> dg.AssetsDefinition:
    """Train, holdout and reference: split from the source, or the user's own."""
    outs = {
        role: common_out(settings, role, "pandas", description=SPLIT_TEXT[role], kept=PRIVATE)
        for role in settings.roles
    }
    row_sources = {role: settings.row_sources[role] for role in settings.roles} if settings.external else {}
    source = {"source": dg.AssetIn(key=settings.key("source"), dagster_type=PRIVATE)}

    @dg.multi_asset(
        name=f"{settings.name}__splits",
        outs=outs,
        ins=source_ins(row_sources) if settings.external else source,
        partitions_def=settings.partitions_def,
        required_resource_keys={RELEASES},
    )
    @checked_step
    def splits(context: dg.AssetExecutionContext, **given: Any) -> Iterator[dg.Output[PrivateTable]]:
        steps = steps_of(context, settings)
        check_row_sources(context, settings, row_sources)
        own = {role: given[f"given_{role}"] for role in settings.roles if f"given_{role}" in given}
        for role, part in steps.splits(given.get("source"), own).items():
            upstream = key_of(settings.row_sources[role]) if settings.external else settings.key("source")
            fingerprint = steps.keyed(part)
            metadata = table_metadata(part, fingerprint, upstream)
            yield dg.Output(part, output_name=role, metadata=metadata, data_version=dg.DataVersion(fingerprint))

    return splits


def build_embedder(settings: TableSettings) -> dg.AssetsDefinition:
    """The contrastive encoder of real rows."""

    @dg.asset(
        **common(settings, "embedder", "torch"),
        ins=split_ins(settings),
        required_resource_keys={GPU},
        **placed(settings, on_device=True),
        description="A contrastive encoder, trained on all real rows alike: it sees likeness beyond single columns.",
    )
    @checked_step
    def embedder(context: dg.AssetExecutionContext, **tables: PrivateTable) -> dg.MaterializeResult:
        place_of(context, settings)
        with device_of(context, wanted=True) as device:
            trained = fitted_embedder(settings, tables, device, Lines(context.log.info))
        curve = training_metadata([asdict(epoch) for epoch in trained.history])
        return dg.MaterializeResult(value=trained, metadata={"device": device, **curve})

    return embedder


def build_generator_asset(settings: TableSettings) -> dg.AssetsDefinition:
    """The trained generator."""

    torch = "torch" in settings.generator.modules

    @dg.asset(
        **common(settings, "generator", "torch" if torch else "python"),
        ins={"train": split_ins(settings)["train"]},
        required_resource_keys={RELEASES, *([GPU] if torch else [])},
        **placed(settings, torch),
        description=f"The generator {settings.generator_label}, fitted to train and to nothing else.",
    )
    @checked_step
    def generator(context: dg.AssetExecutionContext, train: PrivateTable) -> dg.MaterializeResult:
        steps = steps_of(context, settings)
        with device_of(context, torch) as device, piped(context, settings.generator) as reported:
            trained = steps.generator(train, home_of(context.instance), device)
        fitted = trained.generator
        metadata: dict[str, Any] = {
            "generator": settings.generator_label,
            "settings": dg.MetadataValue.json(settings.generator.settings()),
            "privacy budget": str(fitted.privacy),
            "same seed, same rows": settings.generator.repeatable and device == "cpu",
            "device": device,
            **reported,
            **training_metadata(fitted.history),
        }
        return dg.MaterializeResult(value=trained, metadata=metadata)

    return generator


def build_synthetic(settings: TableSettings) -> dg.AssetsDefinition:
    """The synthetic table, written once to the gate's own file; that file is scored, judged and published."""
    own = {"synthetic": settings.row_sources["synthetic"]} if settings.external else {}
    made = {} if settings.external else {"generator": dg.AssetIn(key=settings.key("generator"))}
    text = f"from {own['synthetic'].describe()}" if own else f"sampled from {settings.generator_label}"
    real = split_ins(settings)
    if not settings.filters:
        real = {"train": real["train"]}
    else:
        text += f", filtered by {', '.join(one.name for one in settings.filters)} against all real rows"

    @dg.asset(
        **common(settings, "synthetic", "parquet"),
        ins={**real, **made, **source_ins(own)},
        required_resource_keys={RELEASES},
        description=f"The synthetic table, {text}. Downstream steps read one file, known by the hash of its bytes.",
    )
    @checked_step
    def synthetic(context: dg.AssetExecutionContext, train: pd.DataFrame, **given: Any) -> dg.MaterializeResult:
        steps = steps_of(context, settings)
        check_row_sources(context, settings, own)
        tables = {"train": train, **{role: given[role] for role in real if role != "train"}}
        with piped(context, settings.generator) as reported:
            made = steps.synthetic(tables, given.get("generator"), given.get("given_synthetic"))
        lineage = synthetic_metadata(made.rows, made.snapshot.sha256, *(settings.key(role) for role in real))
        metadata = {**reported, **lineage, **made.metadata}
        return dg.MaterializeResult(
            value=made.sealed, metadata=metadata, data_version=dg.DataVersion(made.snapshot.sha256)
        )

    return synthetic
