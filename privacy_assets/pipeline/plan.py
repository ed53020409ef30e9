"""What a table's pipeline is made of: its settings checked together, and the parts that they name built."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from privacy_assets.errors import ConfigError, did_you_mean, door, shown
from privacy_assets.evaluation import MetricsLike, choose_metrics, wants_embedder
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.inputs import REAL_ROLES
from privacy_assets.metrics.registry import METRICS, metrics_reading
from privacy_assets.pipeline.spec import GeneratorGroup, TableSpec, WorkerKind
from privacy_assets.policy import Policy
from privacy_assets.storage.objects import location, path_text
from privacy_assets.tables.files import SUFFIXES
from privacy_assets.tables.roles import Declared
from privacy_assets.tables.schema import Kind
from privacy_assets.tables.splitting import DEFAULT_SHARES, check_shares

if TYPE_CHECKING:
    from privacy_assets.generators import Generator
    from privacy_assets.generators.filters import Filter

PARTITION_MARK = "{partition}"
PolicyLike = Policy | Mapping[str, Any] | str | Path
ROLES = ("source", *REAL_ROLES, "synthetic")


@dataclass(frozen=True)
class RowSource:
    """Where the rows of a table come from: the demo set, files, or whoever runs the steps hands them over."""

    kind: Literal["demo", "file", "given"]
    path: str = ""

    @classmethod
    def of(cls, given: str | Path, where: str) -> RowSource:
        """Understand "demo" or a path; ``where`` names the setting in a ConfigError."""
        path = path_text(given)
        if not path:
            raise ConfigError(f"{where} must be a path of .parquet or .csv files.")
        if path == "demo":
            return cls("demo")
        try:
            location(given)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        _check_path(path, where)
        return cls("file", path=path)

    def describe(self) -> str:
        """One text for descriptions and metadata."""
        return self.path or ("the demo survey" if self.kind == "demo" else "rows that are handed over")


@dataclass(frozen=True, eq=False)
class TablePlan:
    """One table's pipeline. Build it with :meth:`of`, which checks everything."""

    name: str
    row_sources: Mapping[str, RowSource]
    subject: str | None
    kinds: Mapping[str, Kind]
    declared: Declared
    generator: Any
    generator_label: str
    filters: tuple[Filter, ...]
    rows: int | None
    shares: Mapping[str, float]
    metrics: Mapping[str, Metric]
    policy: Policy
    embedder: Mapping[str, Any] | None
    seed: int
    workers: WorkerKind
    partitioned: bool
    partition_column: str | None
    pool_partitions: bool

    @classmethod
    @door
    def of(
        cls, spec: TableSpec, given: Mapping[str, RowSource] | None = None, *, partitioned: bool = False
    ) -> TablePlan:
        """The plan of ``spec``; ConfigError names table, group, setting and the fix.

        ``given`` are tables, by role, of which whoever runs the steps hands over the rows, in place of paths.
        ``partitioned`` says that every run is of one partition.
        """
        where, data = f"table {spec.name}", spec.data
        row_sources = _row_sources(spec, dict(given or {}), where)
        external = "synthetic" in row_sources
        shares = _shares(spec.split.shares, external, f"{where}, split")
        built, label = (None, "") if external else chosen_generator(spec.generator, f"{where}, generator")
        chosen, in_force = chosen_metrics(
            spec.attacks.metrics, spec.policy, f"{where}, attacks", built, row_sources if external else ()
        )
        plan = cls(
            name=spec.name,
            row_sources=row_sources,
            subject=data.subject,
            kinds=dict(data.kinds),
            declared=chosen_columns(data.drop, data.generated, data.domains, data.subject, f"{where}, data"),
            generator=built,
            generator_label=label,
            filters=chosen_filters(spec.generator.filter, external, f"{where}, generator"),
            rows=spec.generator.rows,
            shares=shares,
            metrics=chosen,
            policy=in_force,
            embedder=chosen_embedder(spec.attacks.embedder, f"{where}, attacks"),
            seed=spec.run.seed,
            workers=spec.run.workers,
            partitioned=partitioned,
            partition_column=data.partition_column,
            pool_partitions=data.pool_partitions,
        )
        _check_needs(plan, f"{where}, attacks")
        _check_partitions(plan, f"{where}, data")
        _check_generated(plan, f"{where}, data")
        return plan

    @property
    def external(self) -> bool:
        """True when the synthetic table is the user's own."""
        return "synthetic" in self.row_sources

    @property
    def roles(self) -> tuple[str, ...]:
        """The real tables that this pipeline has."""
        given = self.row_sources if self.external else self.shares
        return tuple(role for role in REAL_ROLES if role in given)

    @property
    def embeds(self) -> bool:
        """True when an encoder is trained."""
        return self.embedder is not None and wants_embedder(self.metrics.values())

    @property
    def split_setup(self) -> dict[str, Any]:
        """What decides on which side a person stands, and how columns are read."""
        shares = None if self.external else dict(self.shares)
        return {"subject": self.subject, "kinds": dict(self.kinds), "shares": shares, **self.declared.stated}

    @property
    def setup(self) -> dict[str, Any]:
        """Everything but the policy that decides what the statistics say; the attestation is bound to it."""
        metrics = {name: metric.settings() for name, metric in self.metrics.items()}
        embedder = None if self.embedder is None else dict(self.embedder)
        own = {"seed": self.seed, "metrics": metrics, "embedder": embedder, "filter": self.filter_setup}
        return {**self.split_setup, **own, **({"pool_partitions": True} if self.pool_partitions else {})}

    @property
    def filter_setup(self) -> dict[str, Any] | None:
        """Settings of the filters by name, as snapshots and attestations state them; None without any."""
        return {one.name: one.settings() for one in self.filters} or None

    def uses_embedder(self, metric: Metric) -> bool:
        """True when ``metric`` is given the embedder."""
        return self.embeds and metric.reads("embedder")


def _row_sources(spec: TableSpec, given: dict[str, RowSource], where: str) -> dict[str, RowSource]:
    named = {role: getattr(spec.data, role) for role in ROLES if getattr(spec.data, role) is not None}
    for role in given:
        if role not in ROLES:
            raise ConfigError(f"{where}: there is no table {shown(role)}.{did_you_mean(role, ROLES)}")
        if role in named:
            raise ConfigError(f"{where}, data: {role} is handed over, and names {shown(named[role])}. Fix: keep one.")
    there = {role: role for role in ROLES if role in named or role in given}
    if "synthetic" in there:
        absent = [role for role in ("train", "holdout") if role not in there]
        if absent:
            raise ConfigError(
                f"{where}, data: synthetic was given without {absent[0]}. Give the rows that your generator was trained"
                " on as train, and rows that it has not seen as holdout: rows of the source would be members too."
            )
        if "source" in there:
            raise ConfigError(f"{where}, data: give either source, or synthetic with its train and holdout.")
    else:
        if "source" not in there:
            raise ConfigError(f'{where}, data: give a source: a path, an asset, or "demo".')
        for role in REAL_ROLES:
            if role in there:
                text = f"{role} is for a synthetic table of your own; with a source use the shares of split"
                raise ConfigError(f"{where}, data: {text}.")
    return {role: given.get(role) or RowSource.of(named[role], f"{where}, data: {role}") for role in there}


def _check_path(path: str, where: str) -> None:
    known = Path(path).suffix.lower() in SUFFIXES
    if known or Path(path).is_dir() or "/" in path and not Path(path).suffix:
        return
    hint = did_you_mean(path, ["demo"]) if "." not in path else ""
    raise ConfigError(f"{where}: {shown(path)} is not a path of .parquet or .csv files.{hint}")


def _shares(shares: Mapping[str, float] | None, external: bool, where: str) -> dict[str, float]:
    if shares is None:
        return dict(DEFAULT_SHARES)
    if external:
        raise ConfigError(f"{where}: shares are for a source; your own train and holdout are split already.")
    try:
        check_shares(shares)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return dict(shares)


def chosen_generator(given: GeneratorGroup, where: str) -> tuple[Generator, str]:
    """The generator, and what it is called."""
    from privacy_assets.generators import as_generator

    named = given.name
    try:
        built = as_generator({"name": named, "settings": given.settings} if given.settings else named)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return built, named if isinstance(named, str) else getattr(named, "__qualname__", type(named).__name__)


def chosen_filters(given: Any, external: bool, where: str) -> tuple[Filter, ...]:
    """Filters from a name, ``{"name", "settings"}``, or a list of these; in the order of the registry."""
    from privacy_assets.generators.filters import as_filters

    try:
        found = as_filters(given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if found and external:
        raise ConfigError(f"{where}: a filter draws further rows from the generator; filter your own table yourself.")
    return found


def chosen_columns(drop: Any, generated: Any, domains: Any, subject: str | None, where: str) -> Declared:
    """What was declared of columns beside their kinds."""
    try:
        return Declared.of(drop, generated, domains, subject=subject)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def chosen_embedder(given: Mapping[str, Any] | bool, where: str) -> dict[str, Any] | None:
    """Settings of the embedder from a mapping or true; None for false."""
    from privacy_assets.embedding.settings import EmbedderSettings

    if isinstance(given, bool):
        return {} if given else None
    known = set(EmbedderSettings.__dataclass_fields__)
    for name in given:
        if name not in known:
            raise ConfigError(f"{where}: the embedder has no setting {shown(name)}.{did_you_mean(name, known)}")
    try:
        EmbedderSettings(**given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return dict(given)


def chosen_metrics(
    metrics: MetricsLike | None,
    policy: PolicyLike | None,
    where: str,
    generator: Generator | None = None,
    external: Collection[str] = (),
) -> tuple[dict[str, Metric], Policy]:
    """Metrics and the policy in force; ConfigError for unknown ones, and for a limit whose metric does not run.

    ``external`` are the roles of the tables that were made outside.
    """
    from privacy_assets.report.evaluate import as_policy

    try:
        chosen, in_force = choose_metrics(metrics, as_policy(policy), generator, external)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    for limit in in_force.limits:
        if limit.metric not in chosen:
            raise ConfigError(
                f"{where}: the policy limits {limit.statistic}, but {limit.metric} is not among the metrics."
            )
    return chosen, in_force


def _check_needs(plan: TablePlan, where: str) -> None:
    there = {*plan.roles, "synthetic", *(["embedder"] if plan.embedder is not None else [])}
    for name, metric in plan.metrics.items():
        absent = sorted(metric.needs - there)
        if absent:
            raise ConfigError(f"{where}: metric {name} needs {absent[0]}; provide it or leave the metric out.")


def _check_generated(plan: TablePlan, where: str) -> None:
    if not plan.declared.generated:
        return
    if plan.generator is not None and not plan.generator.invents:
        raise ConfigError(
            f"{where}: generated columns need new values, but {plan.generator_label} copies real ones. Fix:"
            " bring a synthetic table, or give a function or a command of your own as the generator."
        )
    for name, metric in plan.metrics.items():
        if metric.attacks_generator:
            raise ConfigError(f"{where}: {name} cannot attack a generator of generated columns; leave one of them out.")
    judges = [f"{name}.{statistic}" for name, metric in METRICS.items() for statistic in metric.if_generated]
    if not any(limit.statistic in judges for limit in plan.policy.limits):
        raise ConfigError(f"{where}: generated columns need a limit on {' or '.join(judges)}.")


def _check_partitions(plan: TablePlan, where: str) -> None:
    if plan.partition_column in {*plan.declared.drop, *plan.declared.generated}:
        raise ConfigError(f"{where}: the partition_column cannot be left out or generated.")
    if not plan.partitioned:
        for setting in ("partition_column", "pool_partitions"):
            if getattr(plan, setting):
                raise ConfigError(f"{where}: {setting} was given, and the table has no partitions.")
        for role, row_source in plan.row_sources.items():
            if PARTITION_MARK in row_source.path:
                text = f"the path of {role} has {PARTITION_MARK}, and the table has no partitions"
                raise ConfigError(f"{where}: {text}.")
        return
    asks = metrics_reading("released")
    if plan.pool_partitions and not any(limit.metric in asks for limit in plan.policy.limits):
        text = f"pool_partitions needs limits on the metric {' or '.join(asks)}"
        raise ConfigError(f"{where}: {text}. Fix: add them to the policy.")
    for role, row_source in plan.row_sources.items():
        if row_source.kind != "given" and PARTITION_MARK not in row_source.path and plan.partition_column is None:
            fix = f"put {PARTITION_MARK} into the path or name the partition_column"
            raise ConfigError(f"{where}: which rows of {role} belong to a partition? Fix: {fix}.")
