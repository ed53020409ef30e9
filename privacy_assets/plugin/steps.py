"""The work behind the assets, on values alone: every step can be called without a run."""

from __future__ import annotations

import glob
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from privacy_assets.engine.evaluation import attach_embedder, prepare_inputs
from privacy_assets.engine.inputs import MetricInputs, Progress, silent
from privacy_assets.engine.metrics.base import Metric
from privacy_assets.engine.results import MetricResult
from privacy_assets.engine.tables.fingerprints import content_fingerprint
from privacy_assets.engine.tables.given import given_frame
from privacy_assets.engine.tables.reading import read_table
from privacy_assets.engine.tables.schema import TableSchema, conform, restore
from privacy_assets.engine.version import ENGINE_VERSION
from privacy_assets.errors import InputError
from privacy_assets.gate.statements import Place
from privacy_assets.plugin.settings import PARTITION_MARK, Feed, TableSettings
from privacy_assets.plugin.tagging import brought_splits, canonical_source, data_columns, schema_of, subject_of

if TYPE_CHECKING:
    from privacy_assets.engine.generators import FittedGenerator
    from privacy_assets.engine.geometry.embedder import Embedder
    from privacy_assets.plugin.io import Trained
    from privacy_assets.plugin.resources import ReleaseResource

Window = tuple[Any, Any]
BEFORE_FILTER = ("membership_inference", "memorization")


def read_feed(feed: Feed, given: object, partition: str | None) -> pd.DataFrame:
    """Rows of a feed: the demo set, files (those of the partition when the path says so), or an upstream value."""
    if feed.kind == "asset":
        return given_frame(given, where=feed.describe()).reset_index(drop=True)
    if feed.kind == "demo":
        from privacy_assets.engine.tables.demo import load_patients

        return load_patients()
    return read_table(partition_path(feed.path, partition))


def partition_path(template: str, partition: str | None) -> str:
    """The path of one partition; a key that would leave its place is refused, and its ``*?[`` match only themselves."""
    if PARTITION_MARK not in template or partition is None:
        return template
    if partition == ".." or Path(partition).name != partition:
        raise InputError("the partition key cannot stand in a path", where=template, fix="use a key without slashes")
    return template.replace(PARTITION_MARK, glob.escape(partition))


def select_partition(
    frame: pd.DataFrame, column: str | None, partition: str | None, window: Window | None, *, where: str
) -> pd.DataFrame:
    """Rows of one partition: those in the time window, or those whose ``column`` reads as the partition's key."""
    if column is None or partition is None:
        return frame
    if column not in frame.columns:
        raise InputError("the partition column is missing", where=where, column=column, fix="name an existing column")
    if window is not None:
        times = pd.to_datetime(frame[column], utc=True, errors="coerce")
        chosen = frame[(times >= window[0]) & (times < window[1])]
    else:
        chosen = frame[frame[column].astype(str) == partition]
    if chosen.empty:
        raise InputError("the partition has no rows", where=where, column=column, fix="check partitions and data")
    chosen = chosen.reset_index(drop=True)
    chosen.attrs = dict(frame.attrs)
    return chosen


def source_table(
    settings: TableSettings, given: pd.DataFrame | None, partition: str | None, window: Window | None
) -> pd.DataFrame:
    """The private table in canonical form; its schema is inferred before a partition is cut out."""
    feed = settings.feeds["source"]
    whole = canonical_source(read_feed(feed, given, partition), settings.subject, settings.kinds, settings.declared)
    column = None if PARTITION_MARK in feed.path else settings.partition_column
    return select_partition(whole, column, partition, window, where="source")


def user_splits(
    settings: TableSettings, given: Mapping[str, pd.DataFrame], partition: str | None, window: Window | None
) -> dict[str, pd.DataFrame]:
    """The user's own train, holdout and reference in canonical form under one schema."""
    frames = {role: read_feed(settings.feeds[role], given.get(role), partition) for role in settings.roles}
    tables = brought_splits(frames, settings.subject, settings.kinds, settings.declared)
    for role, feed in settings.feeds.items():
        if role in tables and PARTITION_MARK not in feed.path:
            tables[role] = select_partition(tables[role], settings.partition_column, partition, window, where=role)
    return tables


def user_synthetic(
    settings: TableSettings,
    given: pd.DataFrame | None,
    schema: TableSchema,
    partition: str | None,
    window: Window | None,
) -> pd.DataFrame:
    """The user's own synthetic table with the columns, precision and dtypes of the private one."""
    feed = settings.feeds["synthetic"]
    rows = settings.declared.left(read_feed(feed, given, partition))
    frame = conform(rows, schema, where="synthetic", synthetic=True)
    column = None if PARTITION_MARK in feed.path else settings.partition_column
    return restore(select_partition(frame, column, partition, window, where="synthetic"), schema)


def checkpoint_folder(home: Path | None, place: Place) -> Path | None:
    """Where long training of one table and partition keeps what it has done, under ``DAGSTER_HOME``, if any."""
    return None if home is None else place.below(home / "storage" / "privacy_assets_training")


def fitting_seed(settings: TableSettings, releases: ReleaseResource) -> int:
    """The seed that the generator is fitted with: one that only this deployment knows where noise is made from it.

    The seed of the settings stands in report and attestation.
    """
    if not settings.generator.secret_seed:
        return settings.seed
    return int.from_bytes(releases.key(f"fitting with seed {settings.seed}")[:8], "big") >> 1


def trained_generator(
    settings: TableSettings,
    train: pd.DataFrame,
    fingerprint: str,
    seed: int,
    folder: Path | None,
    device: str = "cpu",
    progress: Progress = silent,
) -> FittedGenerator:
    """The generator fitted to ``train`` (of this ``fingerprint``), without its subject column.

    ``seed`` is :func:`fitting_seed`. An interrupted training of the same rows, settings and seed is taken up again from
    ``folder``; what others left there goes, and all of it once training is done.
    """
    subject = subject_of(train, "train")
    order = hashlib.sha256(pd.util.hash_pandas_object(train, index=False).to_numpy().tobytes()).hexdigest()
    chosen = [settings.generator_label, settings.generator.settings(), seed]
    facts = [*chosen, fingerprint, order, device, ENGINE_VERSION]
    checkpoint = None
    if folder is not None:
        checkpoint = folder / hashlib.sha256(json.dumps(facts, default=repr).encode()).hexdigest()[:32]
        for other in set(folder.glob("*")) - {checkpoint}:
            shutil.rmtree(other, ignore_errors=True)
    fitted: FittedGenerator = settings.generator.fit(
        data_columns(train, "train"), schema_of(train, "train"), seed=seed, device=device, progress=progress,
        checkpoint=checkpoint, people=None if subject is None else pd.factorize(train[subject])[0],
    )  # fmt: skip
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    return fitted


@dataclass(frozen=True, eq=False)
class Sampled:
    """The ``rows`` of a synthetic table, and what its snapshot states of its ``generator`` and ``filter``, if any.

    ``told`` is metadata of the filter.
    """

    rows: pd.DataFrame
    generator: Mapping[str, Any] | None = None
    filter: Mapping[str, Any] | None = None
    told: Mapping[str, Any] = field(default_factory=dict)


def sampled(
    settings: TableSettings,
    trained: Trained,
    tables: Mapping[str, pd.DataFrame],
    releases: ReleaseResource,
    progress: Progress = silent,
) -> Sampled:
    """Rows of the trained generator in the dtypes of the private table; ``tables`` are the real ones by role.

    With filters, they are less what these leave out, measured against all ``tables``, and attacked as they were before.
    """
    from privacy_assets.engine.filters import draw

    train, generator = tables["train"], trained.generator
    schema, rows = schema_of(train, "train"), settings.rows or len(train)
    made_by = generator.described()
    if not settings.filters:
        made = generator.sample(rows, seed=settings.seed)
        frame = conform(made, schema, where="the generator's output", synthetic=True)
        return Sampled(restore(frame, schema), made_by)
    subject, people = subject_of(train, "train"), None
    if subject is not None:
        people = pd.factorize(pd.concat([frame[subject] for frame in tables.values()], ignore_index=True))[0]
    compared = schema.measured
    real = [data_columns(frame, role)[compared.names] for role, frame in tables.items()]
    filters = [one.fit(real, compared, people) for one in settings.filters]
    found = draw(generator, filters, rows, seed=settings.seed)
    if made_by["privacy"]["epsilon"] is not None:  # filters look at the real rows for nothing
        filtered_by = f"which rows the filters {', '.join(found.dropped_by)} left out"
        made_by["privacy"]["unpaid"] = (*made_by["privacy"]["unpaid"], filtered_by)
    stated = {
        "filters": settings.filter_setup,
        "drawn": found.drawn,
        "dropped": found.dropped,
        "dropped_by": dict(found.dropped_by),
        "inputs": {role: table_fingerprint(table, role, releases) for role, table in tables.items()},
        "before": before_filter(settings, tables, found.unfiltered, progress),
    }
    told = {
        "filter": ", ".join(found.dropped_by),
        "rows drawn": found.drawn,
        "rows dropped": found.dropped,
        **{f"rows dropped by {name}": count for name, count in found.dropped_by.items()},
        **{f"radius of {one.filter.name}": one.radius for one in filters},
    }
    return Sampled(restore(found.rows, schema), made_by, stated, told)


def before_filter(
    settings: TableSettings, tables: Mapping[str, pd.DataFrame], unfiltered: pd.DataFrame, progress: Progress
) -> dict[str, Any]:
    """Results, by metric, on rows that no filter has seen: what the report sets beside those of the filtered ones."""
    from privacy_assets.engine.evaluation import run_metrics

    asked = {name: settings.metrics[name] for name in BEFORE_FILTER if name in settings.metrics}
    asked = {name: metric for name, metric in asked.items() if "embedder" not in metric.needs}
    if not asked:
        return {}
    progress(f"before the filter: {', '.join(asked)}")
    results = run_metrics(metric_inputs(tables, unfiltered, seed=settings.seed, progress=progress), asked)
    return {name: replace(result, tables={}, inputs={}).to_json() for name, result in results.items()}


def metric_inputs(
    tables: Mapping[str, pd.DataFrame],
    synthetic: pd.DataFrame,
    released: Sequence[pd.DataFrame] = (),
    *,
    seed: int,
    device: str = "cpu",
    progress: Progress = silent,
) -> MetricInputs:
    """Inputs of the metrics from the tagged real tables, the synthetic rows and what was released before."""
    train = tables["train"]
    return prepare_inputs(
        train,
        tables["holdout"],
        synthetic,
        tables.get("reference"),
        subject=subject_of(train, "train"),
        schema=schema_of(train, "train"),
        released=released,
        seed=seed,
        device=device,
        progress=progress,
    )


def score(
    metric: Metric,
    tables: Mapping[str, pd.DataFrame],
    synthetic: pd.DataFrame,
    embedder: Embedder | None,
    released: Sequence[pd.DataFrame] = (),
    *,
    seed: int,
    device: str = "cpu",
    progress: Progress = silent,
) -> MetricResult:
    """Run one metric."""
    from privacy_assets.engine.evaluation import run_metrics

    inputs = metric_inputs(tables, synthetic, released, seed=seed, device=device, progress=progress)
    if embedder is not None:
        inputs = attach_embedder(inputs, embedder)
    return run_metrics(inputs, {metric.name: metric})[metric.name]


def fingerprints(
    tables: Mapping[str, pd.DataFrame], synthetic: pd.DataFrame, embedder: Embedder | None, releases: ReleaseResource
) -> dict[str, str]:
    """What identifies the inputs of a score, by role: fingerprints of the tables and of the embedder.

    All are keyed but that of the synthetic table, which may be published.
    """
    schema = schema_of(tables["train"], "train")
    found = {role: table_fingerprint(frame, role, releases) for role, frame in tables.items()}
    found["synthetic"] = content_fingerprint(conform(synthetic, schema, where="synthetic"))
    return found if embedder is None else {**found, "embedder": releases.keyed(embedder.fingerprint())}


def table_fingerprint(frame: pd.DataFrame, role: str, releases: ReleaseResource) -> str:
    """Keyed fingerprint of a tagged private table: its rows, and whose they are."""
    rows, subject = data_columns(frame, role), subject_of(frame, role)
    return releases.keyed(content_fingerprint(rows if subject is None else rows.assign(**{subject: frame[subject]})))
