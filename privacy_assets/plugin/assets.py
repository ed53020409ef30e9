"""The assets of one table, from ``source`` to ``synthetic``; the gate's are in ``publication``."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import dagster as dg
import pandas as pd

from privacy_assets.engine.policy import Limit
from privacy_assets.engine.tables.fingerprints import content_fingerprint
from privacy_assets.engine.tables.splitting import split_table
from privacy_assets.errors import InputError
from privacy_assets.gate.statements import Sealed
from privacy_assets.plugin import steps
from privacy_assets.plugin.io import Trained
from privacy_assets.plugin.metadata import synthetic_metadata, table_metadata, training_metadata
from privacy_assets.plugin.pipes import piped
from privacy_assets.plugin.places import place_of, window_of
from privacy_assets.plugin.resources import ReleaseResource, home_of
from privacy_assets.plugin.scrubbing import guarded
from privacy_assets.plugin.settings import Feed, TableSettings
from privacy_assets.plugin.tagging import data_columns, schema_of, tag, with_seal
from privacy_assets.plugin.versions import feed_metadata, source_version
from privacy_assets.plugin.workplace import GPU, device_of, placed

IO_KEY, RELEASES = "privacy_io", "releases"
FRAME = dg.PythonObjectDagsterType(pd.DataFrame, name="PrivacyAssetsFrame")
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
    return f"{limit.figure} must be {side} ({limit.bound} bound). {limit.source}".strip()


def common(settings: TableSettings, asset: str, *kinds: str) -> dict[str, Any]:
    """Arguments that every asset of a table has."""
    return {
        "key": settings.key(asset),
        "group_name": settings.group_name,
        "owners": list(settings.owners) or None,
        "tags": dict(settings.tags),
        "kinds": {"privacy", *kinds},
        "partitions_def": settings.partitions_def,
        "io_manager_key": IO_KEY,
        "dagster_type": dg.Any,
    }


def check_feeds(context: dg.AssetExecutionContext, settings: TableSettings, feeds: Mapping[str, Feed]) -> None:
    """InputError when every partition would be given all rows of an upstream asset that has no partitions."""
    if settings.partitions_def is None or settings.partition_column is not None:
        return
    for role, feed in feeds.items():
        if feed.key is not None and context.job_def.asset_layer.get(feed.key).partitions_def is None:
            fix = "name the partition_column, or partition that asset"
            raise InputError(f"{feed.describe()} has no partitions", where=f"{settings.name}, {role}", fix=fix)


def split_ins(settings: TableSettings) -> dict[str, dg.AssetIn]:
    """The real tables as inputs."""
    return {role: dg.AssetIn(key=settings.key(role), dagster_type=FRAME) for role in settings.roles}


def feed_ins(feeds: Mapping[str, Feed]) -> dict[str, dg.AssetIn]:
    """The user's upstream assets as inputs, by role."""
    return {f"given_{role}": dg.AssetIn(key=feed.key, dagster_type=GIVEN) for role, feed in feeds.items() if feed.key}


def build_source(settings: TableSettings) -> dg.AssetsDefinition:
    """The private table."""
    feed = settings.feeds["source"]

    @dg.asset(
        **common(settings, "source", "pandas"),
        ins=feed_ins({"source": feed}),
        required_resource_keys={RELEASES},
        metadata=feed_metadata(feed),
        description=f"The private table, from {feed.describe()}: rows about real people. It never leaves this machine.",
    )
    @guarded
    def source(context: dg.AssetExecutionContext, **given: pd.DataFrame) -> dg.MaterializeResult:
        place = place_of(context, settings)
        releases: ReleaseResource = context.resources.releases
        check_feeds(context, settings, {"source": feed})
        version = source_version(feed, place.partition, releases.key("fingerprints"), context.instance)
        window = window_of(place, settings)
        frame = steps.source_table(settings, given.get("given_source"), place.partition, window)
        fingerprint = releases.keyed(content_fingerprint(frame))
        facts = {**table_metadata(frame, "source"), **version, "keyed_fingerprint": fingerprint}
        return dg.MaterializeResult(value=frame, metadata=facts, data_version=dg.DataVersion(fingerprint))

    return source


def build_splits(settings: TableSettings) -> dg.AssetsDefinition:
    """Train, holdout and reference: split from the source, or the user's own."""
    shared = common(settings, "train", "pandas")
    outs = {
        role: dg.AssetOut(
            key=settings.key(role),
            io_manager_key=IO_KEY,
            description=SPLIT_TEXT[role],
            group_name=settings.group_name,
            owners=shared["owners"],
            tags=shared["tags"],
            kinds=shared["kinds"],
            dagster_type=FRAME,
        )
        for role in settings.roles
    }
    feeds = {role: settings.feeds[role] for role in settings.roles} if settings.brought else {}
    source = {"source": dg.AssetIn(key=settings.key("source"), dagster_type=FRAME)}

    @dg.multi_asset(
        name=f"{settings.name}__splits",
        outs=outs,
        ins=feed_ins(feeds) if settings.brought else source,
        partitions_def=settings.partitions_def,
        required_resource_keys={RELEASES},
    )
    @guarded
    def splits(context: dg.AssetExecutionContext, **given: pd.DataFrame) -> Iterator[dg.Output[pd.DataFrame]]:
        place = place_of(context, settings)
        releases: ReleaseResource = context.resources.releases
        gate = releases.gate()
        check_feeds(context, settings, feeds)
        if settings.brought:
            tables = {role: given[f"given_{role}"] for role in settings.roles if f"given_{role}" in given}
            parts = steps.user_splits(settings, tables, place.partition, window_of(place, settings))
        else:
            parts = _split(settings, given["source"], releases)
        for role, part in parts.items():
            upstream = settings.feeds[role].key if settings.brought else settings.key("source")
            print_ = steps.table_fingerprint(part, role, releases)
            facts = {**table_metadata(part, role, upstream), "keyed_fingerprint": print_}
            seal = gate.sign_split(place, role, print_, settings.split_setup)
            yield dg.Output(
                with_seal(part, seal.data), output_name=role, metadata=facts, data_version=dg.DataVersion(print_)
            )

    return splits


def _split(settings: TableSettings, source: pd.DataFrame, releases: ReleaseResource) -> dict[str, pd.DataFrame]:
    schema = schema_of(source, "source")
    parts = split_table(source, settings.subject, releases.key("split"), settings.shares)
    return {role: tag(part.reset_index(drop=True), schema, settings.subject) for role, part in parts.items()}


def build_embedder(settings: TableSettings) -> dg.AssetsDefinition:
    """The contrastive encoder of real rows."""

    @dg.asset(
        **common(settings, "embedder", "torch"),
        ins=split_ins(settings),
        required_resource_keys={GPU},
        **placed(settings, on_device=True),
        description="A contrastive encoder, trained on all real rows alike: it sees likeness beyond single columns.",
    )
    @guarded
    def embedder(context: dg.AssetExecutionContext, **tables: pd.DataFrame) -> dg.MaterializeResult:
        from privacy_assets.engine.geometry.embedder import EmbedderSettings, train_embedder

        place_of(context, settings)
        schema = schema_of(tables["train"], "train").measured
        frames = [data_columns(frame, role)[schema.names] for role, frame in tables.items()]
        chosen = EmbedderSettings(**(settings.embedder or {}))
        with device_of(context, wanted=True) as device:
            trained = train_embedder(
                frames, schema, chosen, seed=settings.seed, device=device, progress=context.log.info
            )
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
    @guarded
    def generator(context: dg.AssetExecutionContext, train: pd.DataFrame) -> dg.MaterializeResult:
        place = place_of(context, settings)
        print_ = steps.table_fingerprint(train, "train", context.resources.releases)
        folder = steps.checkpoint_folder(home_of(context.instance), place)
        with device_of(context, torch) as device, piped(context, settings.generator) as reported:
            seed = steps.fitting_seed(settings, context.resources.releases)
            fitted = steps.trained_generator(settings, train, print_, seed, folder, device, context.log.info)
        facts: dict[str, Any] = {
            "generator": settings.generator_label,
            "settings": dg.MetadataValue.json(settings.generator.settings()),
            "privacy budget": str(fitted.privacy),
            "same seed, same rows": settings.generator.repeatable and device == "cpu",
            "device": device,
            **reported,
            **training_metadata(fitted.history),
        }
        return dg.MaterializeResult(value=Trained(fitted, print_, context.resources.releases.keyed), metadata=facts)

    return generator


def build_synthetic(settings: TableSettings) -> dg.AssetsDefinition:
    """The synthetic table, written once to the gate's own file; that file is scored, judged and published."""
    own = {"synthetic": settings.feeds["synthetic"]} if settings.brought else {}
    made = {} if settings.brought else {"generator": dg.AssetIn(key=settings.key("generator"))}
    text = f"from {own['synthetic'].describe()}" if own else f"sampled from {settings.generator_label}"
    real = split_ins(settings)
    if not settings.filters:
        real = {"train": real["train"]}
    else:
        text += f", filtered by {', '.join(one.name for one in settings.filters)} against all real rows"

    @dg.asset(
        **common(settings, "synthetic", "parquet"),
        ins={**real, **made, **feed_ins(own)},
        required_resource_keys={RELEASES},
        description=f"The synthetic table, {text}. Downstream steps read one file, known by the hash of its bytes.",
    )
    @guarded
    def synthetic(context: dg.AssetExecutionContext, train: pd.DataFrame, **given: Any) -> dg.MaterializeResult:
        place = place_of(context, settings)
        releases: ReleaseResource = context.resources.releases
        check_feeds(context, settings, own)
        reported: dict[str, Any] = {}
        if settings.brought:
            made_from, schema = steps.table_fingerprint(train, "train", releases), schema_of(train, "train")
            feed, window = given.get("given_synthetic"), window_of(place, settings)
            made = steps.Sampled(steps.user_synthetic(settings, feed, schema, place.partition, window))
        else:
            trained: Trained = given["generator"].check(releases.keyed)
            tables = {"train": train, **{role: given[role] for role in real if role != "train"}}
            with piped(context, settings.generator) as reported:
                made_from, made = trained.train, steps.sampled(settings, trained, tables, releases, context.log.info)
        snapshot, sealed = releases.gate().take_snapshot(made.rows, place, made_from, made.filter, made.generator)
        lineage = synthetic_metadata(made.rows, snapshot.sha256, *(settings.key(role) for role in real))
        facts = {**reported, **lineage, **made.told}
        return dg.MaterializeResult(value=sealed, metadata=facts, data_version=dg.DataVersion(snapshot.sha256))

    return synthetic
