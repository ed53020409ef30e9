"""Validated settings of a table's pipeline, with the objects that they name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from privacy_assets.errors import ConfigError, did_you_mean, redact_foreign_errors, safe_repr
from privacy_assets.evaluation.evaluate import MetricsLike, choose_metrics, wants_embedder
from privacy_assets.infra.objects import ObjectPath, location, path_text
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.registry import METRICS, metrics_reading
from privacy_assets.pipeline.spec import Data, GeneratorGroup, Split, TableSpec
from privacy_assets.policy import Policy
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.folders import SUFFIXES, suffix_of
from privacy_assets.tables.inference import REAL_ROLES, check_kinds
from privacy_assets.tables.schema import yaml_text
from privacy_assets.tables.splitting import DEFAULT_SHARES, check_shares

if TYPE_CHECKING:
    from privacy_assets.generators import Generator
    from privacy_assets.generators.filters import Filter

PARTITION_MARK = "{partition}"
PolicyLike = Policy | Mapping[str, Any] | str | Path
ROLES = ("source", *REAL_ROLES, "synthetic")


@dataclass(frozen=True)
class RowSource:
    """Source of the rows of a table.

    Attributes:
        kind: "demo" for the demo table, "file" for files, "given" if the caller passes the rows.
        path: Path or URL of the files. Empty for other kinds.
    """

    kind: Literal["demo", "file", "given"]
    path: str = ""

    @classmethod
    def of(cls, given: str | Path, where: str) -> RowSource:
        """Convert "demo" or a path. ``where`` names the setting in a ConfigError."""
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
        """Return a text for descriptions and metadata, without the query of a URL."""
        if self.path:
            place = location(self.path)
            return str(place) if isinstance(place, ObjectPath) else self.path
        return "the demo survey" if self.kind == "demo" else "rows passed by the caller"


@dataclass(frozen=True, eq=False)
class ResolvedTable:
    """Settings of one table with the objects that they name. Create it with :meth:`of`, which
    checks all settings.

    Attributes:
        spec: Settings of the table.
        partitioned: Whether each run is for one partition.
        row_sources: Source of the rows, by role.
        declared: Column declarations, except kinds.
        generator: Generator of the synthetic table. None if the synthetic table is external.
        generator_label: Name of the generator. Empty if the synthetic table is external.
        filters: Filters of synthetic rows, in registry order.
        shares: Shares of subjects in the split, by role.
        metrics: Metrics by name.
        policy: Policy in force.
        embedder: Settings of the embedder. None: no embedder.
    """

    spec: TableSpec
    partitioned: bool
    row_sources: Mapping[str, RowSource]
    declared: Declared
    generator: Any
    generator_label: str
    filters: tuple[Filter, ...]
    shares: Mapping[str, float]
    metrics: Mapping[str, Metric]
    policy: Policy
    embedder: Mapping[str, Any] | None

    @classmethod
    @redact_foreign_errors
    def of(
        cls,
        spec: TableSpec,
        given: Mapping[str, RowSource] | None = None,
        *,
        partitioned: bool = False,
    ) -> ResolvedTable:
        """Resolve ``spec``.

        Args:
            spec: Settings of the table.
            given: Tables, by role, whose rows the caller passes instead of a path.
            partitioned: Whether each run is for one partition.

        Returns:
            The resolved table.

        Raises:
            ConfigError: If a setting is invalid. The message names table, group, setting and the
                fix.
        """
        where, data = f"table {spec.name}", spec.data
        row_sources = _row_sources(spec, dict(given or {}), where)
        external = "synthetic" in row_sources
        shares = _shares(spec.split, external, f"{where}, split")
        built, label = (
            (None, "") if external else resolve_generator(spec.generator, f"{where}, generator")
        )
        chosen, in_force = resolve_metrics(
            spec.evaluation.metrics,
            spec.policy,
            f"{where}, evaluation",
            built,
            row_sources if external else (),
            spec.evaluation.embedder,
        )
        tuned = False if spec.evaluation.embedder is False else in_force.embedder
        table = cls(
            spec=spec,
            partitioned=partitioned,
            row_sources=row_sources,
            declared=resolve_columns(data, f"{where}, data"),
            generator=built,
            generator_label=label,
            filters=resolve_filters(spec.generator.filter, external, f"{where}, generator"),
            shares=shares,
            metrics=chosen,
            policy=in_force,
            embedder=None if tuned is False else tuned,
        )
        _check_needs(table, f"{where}, evaluation")
        _check_partitions(table, f"{where}, data")
        _check_generated(table, f"{where}, data")
        return table

    @property
    def name(self) -> str:
        """Name of the table."""
        return self.spec.name

    @property
    def external(self) -> bool:
        """Whether the synthetic table is external."""
        return "synthetic" in self.row_sources

    @property
    def bounded_columns(self) -> tuple[str, ...]:
        """Columns of numbers that the threshold rule keeps, see
        :attr:`.Generator.bounded_columns`.
        """
        return () if self.generator is None else self.generator.bounded_columns

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the real tables of this pipeline."""
        given = self.row_sources if self.external else self.shares
        return tuple(role for role in REAL_ROLES if role in given)

    @property
    def embeds(self) -> bool:
        """Whether an embedder is trained."""
        return self.embedder is not None and wants_embedder(self.metrics.values())

    def split_setup(self, keyed_fingerprint: Callable[[str], str]) -> dict[str, Any]:
        """Return the settings that determine the side of each subject and the types of columns.

        Args:
            keyed_fingerprint: Computes keyed digests of declared values.
        """
        data = self.spec.data
        return {
            "subject": data.subject,
            "kinds": {
                name: kind if isinstance(kind, str) else yaml_text(kind)
                for name, kind in data.kinds.items()
            },
            "split": None if self.external else dict(self.shares),
            **self.declared.stated(keyed_fingerprint),
        }

    def setup(self, keyed_fingerprint: Callable[[str], str]) -> dict[str, Any]:
        """Return all settings except the policy that determine the statistics. They are signed in
        the attestation.

        Args:
            keyed_fingerprint: Computes keyed digests of declared values.
        """
        metrics = {name: metric.settings() for name, metric in self.metrics.items()}
        embedder = None if self.embedder is None else dict(self.embedder)
        max_synthetic_rows = self.spec.data.max_synthetic_rows
        own = {
            "seed": self.spec.run.seed,
            "metrics": metrics,
            "embedder": embedder,
            "filter": self.filter_setup,
        }
        return {
            **self.split_setup(keyed_fingerprint),
            **own,
            **({"shared_subjects": True} if self.spec.data.shared_subjects else {}),
            **({"public_bounds": list(self.bounded_columns)} if self.bounded_columns else {}),
            **(
                {"max_synthetic_rows": max_synthetic_rows} if max_synthetic_rows is not None else {}
            ),
        }

    @property
    def filter_setup(self) -> dict[str, Any] | None:
        """Settings of the filters by name, as in snapshots and attestations. None if there are no
        filters.
        """
        return {one.name: one.settings() for one in self.filters} or None

    def uses_embedder(self, metric: Metric) -> bool:
        """Return True if ``metric`` gets the embedder."""
        return self.embeds and metric.uses("embedder")


def _row_sources(spec: TableSpec, given: dict[str, RowSource], where: str) -> dict[str, RowSource]:
    named = {
        role: getattr(spec.data, role) for role in ROLES if getattr(spec.data, role) is not None
    }
    for role in given:
        if role not in ROLES:
            raise ConfigError(
                f"{where}: there is no table {safe_repr(role)}.{did_you_mean(role, ROLES)}"
            )
        if role in named:
            raise ConfigError(
                f"{where}, data: {role} is both passed in and configured as"
                f" {safe_repr(named[role])}. Fix: remove one."
            )
    there = {role: role for role in ROLES if role in named or role in given}
    if "synthetic" in there:
        absent = [role for role in ("train", "holdout") if role not in there]
        if absent:
            raise ConfigError(
                f"{where}, data: synthetic was given without {absent[0]}. Fix: provide the rows"
                " that the generator"
                " was trained on as train, and other rows as holdout."
            )
        if "source" in there:
            raise ConfigError(
                f"{where}, data: source and synthetic cannot be combined. Fix: provide source,"
                " or synthetic with"
                " its train and holdout."
            )
    else:
        if "source" not in there:
            raise ConfigError(
                f'{where}, data: the source is missing. Fix: provide a path, an asset, or "demo".'
            )
        for role in REAL_ROLES:
            if role in there:
                text = (
                    f"{role} requires an existing synthetic table. Fix: with a source, use the"
                    " shares of split"
                )
                raise ConfigError(f"{where}, data: {text}.")
    return {
        role: given.get(role) or RowSource.of(named[role], f"{where}, data: {role}")
        for role in there
    }


def _check_path(path: str, where: str) -> None:
    known = suffix_of(Path(path)) in SUFFIXES
    if known or Path(path).is_dir() or "/" in path and not Path(path).suffix:
        return
    hint = did_you_mean(path, ["demo"]) if "." not in path else ""
    raise ConfigError(f"{where}: {safe_repr(path)} is not a path of .parquet or .csv files.{hint}")


def _shares(split: Split, external: bool, where: str) -> dict[str, float]:
    shares = split.model_dump(exclude_none=True)
    if not shares:
        return dict(DEFAULT_SHARES)
    if external:
        raise ConfigError(
            f"{where}: shares require a source, because your own train and holdout are split"
            " already."
        )
    try:
        check_shares(shares)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return shares


def resolve_generator(given: GeneratorGroup, where: str) -> tuple[Generator, str]:
    """Return the generator and its label."""
    from privacy_assets.generators import as_generator

    named = given.name
    try:
        built = as_generator(
            {"name": named, "settings": given.settings} if given.settings else named
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return built, named if isinstance(named, str) else getattr(
        named, "__qualname__", type(named).__name__
    )


def resolve_filters(given: Any, external: bool, where: str) -> tuple[Filter, ...]:
    """Build filters, in registry order, from a name, ``{"name", "settings"}``, or a list of
    these.
    """
    from privacy_assets.generators.filters import as_filters

    try:
        found = as_filters(given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if found and external:
        raise ConfigError(
            f"{where}: a filter requires a generator, from which it draws further rows. Fix:"
            " filter your table"
            " before the run."
        )
    return found


def resolve_columns(data: Data, where: str) -> Declared:
    """Return the column declarations, except kinds, which are only checked."""
    try:
        check_kinds(data.kinds)
        return Declared.of_settings(
            data.drop,
            data.new_values,
            data.allowed_values,
            prefix_lengths=data.prefix_lengths,
            missing=data.missing,
            timezone=data.timezone,
            relations=data.relations,
            read=data.read,
            snapshots=data.snapshots,
            subject=data.subject,
            exact_ids=data.exact_ids,
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def resolve_metrics(
    metrics: MetricsLike | None,
    policy: PolicyLike | None,
    where: str,
    generator: Generator | None = None,
    external: Collection[str] = (),
    embedder: bool | Mapping[str, Any] = True,
) -> tuple[dict[str, Metric], Policy]:
    """Choose metrics and policy as :func:`.choose_metrics` does, and require that all limited
    metrics run.

    Args:
        metrics: Metrics of the table, as its settings name them.
        policy: Policy of the table, in any form.
        where: Location in the settings, for messages.
        generator: Generator of the synthetic table.
        external: Roles of the external tables.
        embedder: Whether there is an embedder. Settings of it are an error, because they belong to
            the policy.

    Returns:
        The metrics by name, and the policy in force.

    Raises:
        ConfigError: If metrics and policy do not match.
    """
    try:
        chosen, in_force = choose_metrics(metrics, policy, generator, external, embedder)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    for limit in in_force.limits:
        if limit.metric not in chosen:
            raise ConfigError(
                f"{where}: the policy limits {limit.statistic}, but {limit.metric} is not among"
                " the metrics."
            )
    return chosen, in_force


def _check_needs(table: ResolvedTable, where: str) -> None:
    there = {*table.roles, "synthetic", *(["embedder"] if table.embedder is not None else [])}
    for name, metric in table.metrics.items():
        absent = sorted(metric.required_inputs - there)
        if absent:
            raise ConfigError(
                f"{where}: metric {name} needs {absent[0]}. Fix: provide it, or leave the"
                " metric out."
            )


def _check_generated(table: ResolvedTable, where: str) -> None:
    if not table.declared.new_values:
        return
    if table.generator is not None and not table.generator.creates_values:
        raise ConfigError(
            f"{where}: generated columns need new values, but {table.generator_label} copies"
            " real ones. Fix:"
            " provide a synthetic table, or use your own function or command as the generator."
        )
    for name, metric in table.metrics.items():
        if metric.attacks_generator:
            raise ConfigError(
                f"{where}: {name} cannot attack a generator of generated columns. Fix: leave"
                " one of them out."
            )
    judges = [
        f"{name}.{statistic}"
        for name, metric in METRICS.items()
        for statistic in metric.generated_column_statistics
    ]
    if not any(limit.statistic in judges for limit in table.policy.limits):
        raise ConfigError(f"{where}: generated columns need a limit on {' or '.join(judges)}.")


def _check_partitions(table: ResolvedTable, where: str) -> None:
    if table.spec.data.partition_column in {*table.declared.drop, *table.declared.new_values}:
        raise ConfigError(f"{where}: the partition_column cannot be left out or generated.")
    if not table.partitioned:
        for setting in ("partition_column", "shared_subjects"):
            if getattr(table.spec.data, setting):
                raise ConfigError(f"{where}: {setting} was given, and the table has no partitions.")
        for role, row_source in table.row_sources.items():
            if PARTITION_MARK in row_source.path:
                text = f"the path of {role} has {PARTITION_MARK}, and the table has no partitions"
                raise ConfigError(f"{where}: {text}.")
        return
    asks = metrics_reading("ledger")
    if table.spec.data.shared_subjects and not any(
        limit.metric in asks for limit in table.policy.limits
    ):
        text = f"shared_subjects needs limits on the metric {' or '.join(asks)}"
        raise ConfigError(f"{where}: {text}. Fix: add them to the policy.")
    for role, row_source in table.row_sources.items():
        if (
            row_source.kind != "given"
            and PARTITION_MARK not in row_source.path
            and table.spec.data.partition_column is None
        ):
            fix = f"put {PARTITION_MARK} into the path or name the partition_column"
            raise ConfigError(
                f"{where}: the rows of {role} in a partition are not defined. Fix: {fix}."
            )
