"""What a table's pipeline is made of, checked once, when the code location loads."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import dagster as dg

from privacy_assets.engine.evaluation import MetricsLike, check_reading, choose_metrics, wants_embedder
from privacy_assets.engine.inputs import REAL_ROLES
from privacy_assets.engine.metrics.base import Metric
from privacy_assets.engine.policy import Policy
from privacy_assets.engine.tables.reading import SUFFIXES
from privacy_assets.engine.tables.roles import Declared
from privacy_assets.engine.tables.schema import Kind
from privacy_assets.engine.tables.splitting import DEFAULT_SHARES, check_shares
from privacy_assets.errors import ConfigError, did_you_mean, door, shown
from privacy_assets.objects import location, path_text
from privacy_assets.plugin.chosen import chosen_columns, chosen_embedder, chosen_filters, chosen_generator, chosen_tags

if TYPE_CHECKING:
    from privacy_assets.engine.filters import Filter, FilterLike
    from privacy_assets.engine.generators import Generator

PARTITION_MARK = "{partition}"
WorkerKind = Literal["local", "ray"]
PolicyLike = Policy | Mapping[str, Any] | str | Path


@dataclass(frozen=True)
class Feed:
    """Where the rows of a table come from: the demo set, files, or an asset of the user's."""

    kind: Literal["demo", "file", "asset"]
    path: str = ""
    key: dg.AssetKey | None = None

    @classmethod
    def of(cls, given: Any, argument: str) -> Feed:
        """Understand "demo", a path, an asset, an asset key or ``{"asset": "group/name"}``."""
        if isinstance(given, Mapping):
            if set(given) != {"asset"}:
                raise ConfigError(f"{argument}: a mapping must be {{asset: KEY}}.")
            if not isinstance(given["asset"], str):
                raise ConfigError(f"{argument}: an asset is named by a text, not by {type(given['asset']).__name__}.")
            return cls("asset", key=dg.AssetKey.from_user_string(given["asset"]))
        if isinstance(given, dg.AssetKey):
            return cls("asset", key=given)
        if isinstance(given, (dg.AssetsDefinition, dg.AssetSpec)):
            return cls("asset", key=given.key)
        if not isinstance(given, (str, Path)) or not path_text(given):
            raise ConfigError(f"{argument}: give a path, an asset or an asset key, not {type(given).__name__}.")
        path = path_text(given)
        if path == "demo":
            return cls("demo")
        try:
            location(given)
        except ConfigError as error:
            raise ConfigError(f"{argument}: {error}") from None
        _check_path(path, argument)
        return cls("file", path=path)

    def describe(self) -> str:
        """One text for descriptions and metadata."""
        if self.key is not None:
            return f"asset {self.key.to_user_string()}"
        return self.path or "the demo survey"


@dataclass(frozen=True, eq=False)
class TableSettings:
    """One table's pipeline. Build it with :func:`table_settings`, which checks everything."""

    name: str
    feeds: Mapping[str, Feed]
    subject: str | None
    kinds: Mapping[str, Kind]
    declared: Declared
    generator: Any
    generator_label: str
    filters: Sequence[Filter]
    rows: int | None
    shares: Mapping[str, float]
    metrics: Mapping[str, Metric]
    policy: Policy
    embedder: Mapping[str, Any] | None
    seed: int
    workers: WorkerKind = "local"
    gpu_tags: Mapping[str, Any] = field(default_factory=dict)
    partitions_def: dg.PartitionsDefinition | None = None
    partition_column: str | None = None
    together: bool = False
    owners: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    group_name: str = ""

    @property
    def brought(self) -> bool:
        """True when the synthetic table is the user's own."""
        return "synthetic" in self.feeds

    @property
    def roles(self) -> tuple[str, ...]:
        """The real tables that this pipeline has."""
        given = self.feeds if self.brought else self.shares
        return tuple(role for role in REAL_ROLES if role in given)

    @property
    def embeds(self) -> bool:
        """True when an encoder is trained."""
        return self.embedder is not None and wants_embedder(self.metrics.values())

    @property
    def split_setup(self) -> dict[str, Any]:
        """What decides on which side a person stands, and how columns are read."""
        shares = None if self.brought else dict(self.shares)
        return {"subject": self.subject, "kinds": dict(self.kinds), "shares": shares, **self.declared.stated}

    @property
    def setup(self) -> dict[str, Any]:
        """Everything but the policy that decides what the figures say; the attestation is bound to it."""
        metrics = {name: metric.settings() for name, metric in self.metrics.items()}
        embedder = None if self.embedder is None else dict(self.embedder)
        own = {"seed": self.seed, "metrics": metrics, "embedder": embedder, "filter": self.filter_setup}
        return {**self.split_setup, **own, **({"together": True} if self.together else {})}

    @property
    def filter_setup(self) -> dict[str, Any] | None:
        """Settings of the filters by name, as snapshots and attestations state them; None without any."""
        return {one.name: one.settings() for one in self.filters} or None

    def key(self, asset: str) -> dg.AssetKey:
        """Key of one of this table's assets."""
        return dg.AssetKey([self.name, asset])

    def uses_embedder(self, metric: Metric) -> bool:
        """True when ``metric`` is given the embedder."""
        return self.embeds and "embedder" in metric.needs | metric.optional


@door
def table_settings(
    name: str,
    *,
    source: Any = None,
    subject: str | None = None,
    kinds: Mapping[str, Kind] | None = None,
    drop: Sequence[str] | None = None,
    generated: Mapping[str, str] | None = None,
    domains: Mapping[str, Sequence[Any]] | None = None,
    generator: str | Mapping[str, Any] | Callable[..., Any] = "synthpop",
    rows: int | None = None,
    filter: FilterLike | Sequence[FilterLike] | None = None,
    synthetic: Any = None,
    train: Any = None,
    holdout: Any = None,
    reference: Any = None,
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
) -> TableSettings:
    """Check every argument of ``build_privacy_assets``; ConfigError names the table, the argument and the fix."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ConfigError(f"name {shown(name)}: use letters, digits and underscores, and start with a letter.")
    where = f"table {name}"
    given = {"source": source, "train": train, "holdout": holdout, "reference": reference, "synthetic": synthetic}
    feeds = _feeds({role: value for role, value in given.items() if value is not None}, where)
    _check_shares(shares, feeds, where)
    built, label = (None, "") if "synthetic" in feeds else chosen_generator(generator, where)
    chosen, in_force = chosen_metrics(metrics, policy, where, built, feeds if "synthetic" in feeds else ())
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"{where}: seed must be a whole number of at least 0.")
    if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
        raise ConfigError(f"{where}: rows must be a whole number of at least 1.")
    if not isinstance(together, bool):
        raise ConfigError(f"{where}: together must be true or false, not {shown(together)}.")
    if workers not in get_args(WorkerKind):
        raise ConfigError(f"{where}: unknown workers {shown(workers)}.{did_you_mean(workers, get_args(WorkerKind))}")
    try:
        check_reading(subject, kinds)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    settings = TableSettings(
        name=name,
        feeds=feeds,
        subject=subject,
        kinds=dict(kinds or {}),
        declared=chosen_columns(drop, generated, domains, subject, where),
        generator=built,
        generator_label=label,
        filters=chosen_filters(filter, "synthetic" in feeds, where),
        rows=rows,
        shares=dict(shares or DEFAULT_SHARES),
        metrics=chosen,
        policy=in_force,
        embedder=chosen_embedder(embedder, where),
        seed=seed,
        workers=workers,
        gpu_tags=chosen_tags(gpu_tags, where),
        partitions_def=partitions_def,
        partition_column=partition_column,
        together=together,
        owners=tuple(owners or ()),
        tags=dict(tags or {}),
        group_name=group_name or name,
    )
    _check_needs(settings, where)
    _check_partitions(settings, where)
    _check_generated(settings, where)
    return settings


def _feeds(given: Mapping[str, Any], where: str) -> dict[str, Feed]:
    if "synthetic" in given:
        absent = [role for role in ("train", "holdout") if role not in given]
        if absent:
            raise ConfigError(
                f"{where}: synthetic was given without {absent[0]}. Give the rows that your generator was trained on as"
                " train, and rows that it has not seen as holdout: rows of the source would be members too."
            )
        if "source" in given:
            raise ConfigError(f"{where}: give either source, or synthetic with its train and holdout.")
    else:
        if "source" not in given:
            raise ConfigError(f'{where}: give a source: a path, an asset, or "demo".')
        for role in REAL_ROLES:
            if role in given:
                raise ConfigError(f"{where}: {role} is for a synthetic table of your own; with a source use shares.")
    return {role: Feed.of(value, f"{where}, {role}") for role, value in given.items()}


def _check_path(path: str, argument: str) -> None:
    known = Path(path).suffix.lower() in SUFFIXES
    if known or Path(path).is_dir() or "/" in path and not Path(path).suffix:
        return
    hint = did_you_mean(path, ["demo"]) if "." not in path else ""
    raise ConfigError(f"{argument}: {shown(path)} is not a path of .parquet or .csv files.{hint}")


def _check_shares(shares: Mapping[str, float] | None, feeds: Mapping[str, Feed], where: str) -> None:
    if shares is None:
        return
    if "synthetic" in feeds:
        raise ConfigError(f"{where}: shares are for a source; your own train and holdout are split already.")
    try:
        check_shares(shares)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def chosen_metrics(
    metrics: MetricsLike | None,
    policy: PolicyLike | None,
    where: str,
    generator: Generator | None = None,
    brought: Collection[str] = (),
) -> tuple[dict[str, Metric], Policy]:
    """Metrics and the policy in force; ConfigError for unknown ones, and for a limit whose metric does not run.

    ``brought`` are the roles of the tables that were made outside.
    """
    from privacy_assets.report.evaluate import as_policy

    try:
        chosen, in_force = choose_metrics(metrics, as_policy(policy), generator, brought)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    for limit in in_force.limits:
        if limit.metric not in chosen:
            raise ConfigError(
                f"{where}: the policy limits {limit.figure}, but {limit.metric} is not among the metrics."
            )
    return chosen, in_force


def _check_needs(settings: TableSettings, where: str) -> None:
    there = {*settings.roles, "synthetic", *(["embedder"] if settings.embedder is not None else [])}
    for name, metric in settings.metrics.items():
        absent = sorted(metric.needs - there)
        if absent:
            raise ConfigError(f"{where}: metric {name} needs {absent[0]}; provide it or leave the metric out.")


def _check_generated(settings: TableSettings, where: str) -> None:
    if not settings.declared.generated:
        return
    if settings.generator is not None and not settings.generator.invents:
        raise ConfigError(
            f"{where}: generated columns need new values, but {settings.generator_label} copies real ones. Fix:"
            " bring a synthetic table, or give a function or a command of your own as the generator."
        )
    for name, metric in settings.metrics.items():
        if metric.settings().get("generator"):
            raise ConfigError(f"{where}: {name} cannot attack a generator of generated columns; leave one of them out.")
    if not any(limit.figure == "value_disclosure.generated_excess" for limit in settings.policy.limits):
        raise ConfigError(f"{where}: generated columns need a limit on value_disclosure.generated_excess.")


def _check_partitions(settings: TableSettings, where: str) -> None:
    if settings.partition_column in {*settings.declared.drop, *settings.declared.generated}:
        raise ConfigError(f"{where}: the partition_column cannot be left out or generated.")
    if settings.partitions_def is None:
        for argument in ("partition_column", "together"):
            if getattr(settings, argument):
                raise ConfigError(f"{where}: {argument} was given without partitions_def.")
        for role, feed in settings.feeds.items():
            if PARTITION_MARK in feed.path:
                raise ConfigError(f"{where}: the path of {role} has {PARTITION_MARK}, but there is no partitions_def.")
        return
    asks = {name for name, metric in settings.metrics.items() if "released" in metric.needs | metric.optional}
    if settings.together and not asks & {limit.metric for limit in settings.policy.limits}:
        raise ConfigError(f"{where}: together needs limits on the metric composition. Fix: add them to the policy.")
    for role, feed in settings.feeds.items():
        if feed.kind != "asset" and PARTITION_MARK not in feed.path and settings.partition_column is None:
            fix = f"put {PARTITION_MARK} into the path or name the partition_column"
            raise ConfigError(f"{where}: which rows of {role} belong to a partition? Fix: {fix}.")
