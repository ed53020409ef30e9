"""Validated settings of a table's pipeline, with the objects that they name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from privacy_assets.errors import ConfigError, did_you_mean, redact_foreign_errors, safe_repr
from privacy_assets.evaluation.measuring import wants_embedder
from privacy_assets.infra.objects import location, path_text
from privacy_assets.infra.storage import local_path
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.policies import MetricsLike, PolicyLike, choose_metrics
from privacy_assets.metrics.registry import METRICS, metric_distributions, metrics_reading
from privacy_assets.pipeline.spec import GeneratorGroup, Split, TableSpec
from privacy_assets.policy import Policy
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.folders import SUFFIXES, suffix_of
from privacy_assets.tables.inference import REAL_ROLES
from privacy_assets.tables.splitting import DEFAULT_SHARES, check_shares

if TYPE_CHECKING:
    from privacy_assets.generators import Generator
    from privacy_assets.generators.filters import Filter

PARTITION_MARK = "{partition}"
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
    def of(cls, path: str | Path, where: str) -> RowSource:
        """Create from a setting.

        Args:
            path: "demo", or a path or URL of files.
            where: Name of the setting, for messages.

        Raises:
            ConfigError: If it is not a path of tables.
        """
        text = path_text(path)
        if not text:
            raise ConfigError(f"{where} must be a path of .parquet or .csv files.")
        if text == "demo":
            return cls("demo")
        try:
            location(path)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        _check_path(text, where)
        return cls("file", path=text)

    def describe(self) -> str:
        """Return a text for descriptions and metadata, without the query of a URL."""
        if self.kind == "demo":
            return "the demo survey"
        if not self.path:
            return "rows passed by the caller"
        files = location(self.path)
        if local_path(files) is None:
            return str(files)
        return self.path


@dataclass(frozen=True, eq=False)
class ResolvedTable:
    """Settings of one table with the objects that they name. Create it with :meth:`of`, which
    checks all settings.

    Attributes:
        spec: Settings of the table.
        partitioned: Whether each run is for one partition.
        row_sources: Source of the rows, by role.
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
        passed_sources: Mapping[str, RowSource] | None = None,
        *,
        partitioned: bool = False,
    ) -> ResolvedTable:
        """Resolve ``spec``.

        Args:
            spec: Settings of the table.
            passed_sources: Sources, by role, that the caller passes instead of a path.
            partitioned: Whether each run is for one partition.

        Returns:
            The resolved table.

        Raises:
            ConfigError: If a setting is invalid. The message names table, group, setting and the
                fix.
        """
        where = f"table {spec.name}"
        row_sources = _row_sources(spec, passed_sources or {}, where)
        is_external = "synthetic" in row_sources
        shares = _shares(spec.split, is_external, f"{where}, split")
        generator = None
        generator_label = ""
        external_roles: Collection[str] = row_sources
        if not is_external:
            generator, generator_label = resolve_generator(spec.generator, f"{where}, generator")
            external_roles = ()
        metrics, policy = resolve_metrics(
            spec.evaluation.metrics,
            spec.policy,
            f"{where}, evaluation",
            generator,
            external_roles,
            spec.evaluation.embedder,
        )
        embedder = None
        if spec.evaluation.embedder is not False and policy.embedder is not False:
            embedder = policy.embedder
        table = cls(
            spec=spec,
            partitioned=partitioned,
            row_sources=row_sources,
            generator=generator,
            generator_label=generator_label,
            filters=resolve_filters(spec.generator.filter, is_external, f"{where}, generator"),
            shares=shares,
            metrics=metrics,
            policy=policy,
            embedder=embedder,
        )
        _check_needs(table, f"{where}, evaluation")
        _check_partitions(table, f"{where}, data")
        _check_generated(table, f"{where}, data")
        return table

    @property
    def declared(self) -> Declared:
        """Declarations about columns."""
        return self.spec.data

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
        if self.generator is None:
            return ()
        columns: tuple[str, ...] = self.generator.bounded_columns
        return columns

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the real tables of this pipeline."""
        used: Collection[str] = self.shares
        if self.external:
            used = self.row_sources
        return tuple(role for role in REAL_ROLES if role in used)

    @property
    def embeds(self) -> bool:
        """Whether an embedder is trained."""
        return self.embedder is not None and wants_embedder(self.metrics.values())

    def split_setup(self, keyed_fingerprint: Callable[[str], str]) -> dict[str, Any]:
        """Return the settings that determine the side of each subject and the types of columns.

        Args:
            keyed_fingerprint: Computes keyed digests of declared values.
        """
        shares = None
        if not self.external:
            shares = dict(self.shares)
        return {"split": shares, **self.declared.to_setup(keyed_fingerprint)}

    def setup(self, keyed_fingerprint: Callable[[str], str]) -> dict[str, Any]:
        """Return all settings except the policy that determine the statistics. They are signed in
        the attestation.

        Args:
            keyed_fingerprint: Computes keyed digests of declared values.
        """
        setup = self.split_setup(keyed_fingerprint)
        setup["seed"] = self.spec.run.seed
        setup["metrics"] = {name: metric.settings() for name, metric in self.metrics.items()}
        setup["embedder"] = None
        if self.embedder is not None:
            setup["embedder"] = dict(self.embedder)
        setup["filter"] = self.filter_setup
        distributions = self.distributions
        if distributions:
            setup["distributions"] = distributions
        if self.spec.data.shared_subjects:
            setup["shared_subjects"] = True
        if self.bounded_columns:
            setup["public_bounds"] = list(self.bounded_columns)
        if self.spec.data.max_synthetic_rows is not None:
            setup["max_synthetic_rows"] = self.spec.data.max_synthetic_rows
        return setup

    @property
    def distributions(self) -> dict[str, str]:
        """Name and version of the other packages that have the metrics and the generator, by
        "metric NAME" and "generator NAME".
        """
        from privacy_assets.generators import GENERATORS

        distributions = {}
        for name, distribution in metric_distributions(self.metrics).items():
            distributions[f"metric {name}"] = distribution
        if self.generator is not None:
            distribution_of_generator = GENERATORS.distribution(self.generator.name)
            if distribution_of_generator is not None:
                distributions[f"generator {self.generator.name}"] = distribution_of_generator
        return distributions

    @property
    def filter_setup(self) -> dict[str, Any] | None:
        """Settings of the filters by name, as in snapshots and attestations. None if there are no
        filters.
        """
        return {unfitted.name: unfitted.settings() for unfitted in self.filters} or None

    def uses_embedder(self, metric: Metric) -> bool:
        """Return True if a metric gets the embedder.

        Args:
            metric: Metric of the table.
        """
        return self.embeds and metric.uses("embedder")


def _row_sources(
    spec: TableSpec, passed_sources: Mapping[str, RowSource], where: str
) -> dict[str, RowSource]:
    """Return the source of the rows by role, in the order of ``ROLES``."""
    paths = {}
    for role in ROLES:
        path = getattr(spec.data, role)
        if path is not None:
            paths[role] = path
    for role in passed_sources:
        if role not in ROLES:
            hint = did_you_mean(role, ROLES)
            raise ConfigError(f"{where}: there is no table {safe_repr(role)}.{hint}")
        if role in paths:
            raise ConfigError(
                f"{where}, data: {role} is both passed in and configured as"
                f" {safe_repr(paths[role])}. Fix: remove one."
            )
    roles = [role for role in ROLES if role in paths or role in passed_sources]
    _check_roles(roles, f"{where}, data")
    row_sources = {}
    for role in roles:
        if role in paths:
            row_sources[role] = RowSource.of(paths[role], f"{where}, data: {role}")
        else:
            row_sources[role] = passed_sources[role]
    return row_sources


def _check_roles(roles: Collection[str], where: str) -> None:
    """Raise ConfigError unless there is a source, or a synthetic table with train and holdout."""
    if "synthetic" in roles:
        for role in ("train", "holdout"):
            if role not in roles:
                raise ConfigError(
                    f"{where}: synthetic was given without {role}. Fix: provide the rows that"
                    " the generator was trained on as train, and other rows as holdout."
                )
        if "source" in roles:
            raise ConfigError(
                f"{where}: source and synthetic cannot be combined. Fix: provide source, or"
                " synthetic with its train and holdout."
            )
        return
    if "source" not in roles:
        raise ConfigError(
            f'{where}: the source is missing. Fix: provide a path, an asset, or "demo".'
        )
    for role in REAL_ROLES:
        if role in roles:
            raise ConfigError(
                f"{where}: {role} requires an existing synthetic table. Fix: with a source, use"
                " the shares of split."
            )


def _check_path(text: str, where: str) -> None:
    path = Path(text)
    if suffix_of(path) in SUFFIXES or path.is_dir():
        return
    if "/" in text and not path.suffix:
        return  # a folder that does not exist yet, or objects
    hint = ""
    if "." not in text:
        hint = did_you_mean(text, ["demo"])
    raise ConfigError(f"{where}: {safe_repr(text)} is not a path of .parquet or .csv files.{hint}")


def _shares(split: Split, is_external: bool, where: str) -> dict[str, float]:
    shares = split.model_dump(exclude_none=True)
    if not shares:
        return dict(DEFAULT_SHARES)
    if is_external:
        raise ConfigError(
            f"{where}: shares require a source, because your own train and holdout are split"
            " already."
        )
    try:
        check_shares(shares)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return shares


def resolve_generator(group: GeneratorGroup, where: str) -> tuple[Generator, str]:
    """Build the generator of a table.

    Args:
        group: Settings of the generator.
        where: Location in the settings, for messages.

    Returns:
        The generator and its label.

    Raises:
        ConfigError: If a setting is invalid.
    """
    from privacy_assets.generators import as_generator

    form = group.name
    if group.settings:
        form = {"name": group.name, "settings": group.settings}
    try:
        generator = as_generator(form)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if isinstance(group.name, str):
        return generator, group.name
    return generator, getattr(group.name, "__qualname__", type(group.name).__name__)


def resolve_filters(forms: Any, is_external: bool, where: str) -> tuple[Filter, ...]:
    """Build the filters of a table.

    Args:
        forms: A name, ``{"name", "settings"}``, a list of these, or None.
        is_external: Whether the synthetic table is external.
        where: Location in the settings, for messages.

    Returns:
        The filters in registry order.

    Raises:
        ConfigError: If a setting is invalid, or there is no generator.
    """
    from privacy_assets.generators.filters import as_filters

    try:
        filters = as_filters(forms)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if filters and is_external:
        raise ConfigError(
            f"{where}: a filter requires a generator, from which it draws further rows. Fix:"
            " filter your table before the run."
        )
    return filters


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
        selected, in_force = choose_metrics(metrics, policy, generator, external, embedder)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    for limit in in_force.limits:
        if limit.metric not in selected:
            raise ConfigError(
                f"{where}: the policy limits {limit.statistic}, but {limit.metric} is not among"
                " the metrics."
            )
    return selected, in_force


def _check_needs(table: ResolvedTable, where: str) -> None:
    available = {*table.roles, "synthetic"}
    if table.embedder is not None:
        available.add("embedder")
    for name, metric in table.metrics.items():
        missing = sorted(metric.required_inputs - available)
        if missing:
            raise ConfigError(
                f"{where}: metric {name} needs {missing[0]}. Fix: provide it, or leave the"
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
    statistics = []
    for name, metric_class in METRICS.core_and(table.metrics).items():
        for statistic in metric_class.generated_column_statistics:
            statistics.append(f"{name}.{statistic}")
    if not any(limit.statistic in statistics for limit in table.policy.limits):
        raise ConfigError(f"{where}: generated columns need a limit on {' or '.join(statistics)}.")


def _check_partitions(table: ResolvedTable, where: str) -> None:
    if table.spec.data.partition_column in {*table.declared.drop, *table.declared.new_values}:
        raise ConfigError(f"{where}: the partition_column cannot be left out or generated.")
    if not table.partitioned:
        _check_no_partitions(table, where)
        return
    ledger_metrics = metrics_reading("ledger")
    has_ledger_limit = any(limit.metric in ledger_metrics for limit in table.policy.limits)
    if table.spec.data.shared_subjects and not has_ledger_limit:
        text = f"shared_subjects needs limits on the metric {' or '.join(ledger_metrics)}"
        raise ConfigError(f"{where}: {text}. Fix: add them to the policy.")
    if table.spec.data.partition_column is not None:
        return
    for role, row_source in table.row_sources.items():
        if row_source.kind != "given" and PARTITION_MARK not in row_source.path:
            fix = f"put {PARTITION_MARK} into the path or name the partition_column"
            raise ConfigError(
                f"{where}: the rows of {role} in a partition are not defined. Fix: {fix}."
            )


def _check_no_partitions(table: ResolvedTable, where: str) -> None:
    """Raise ConfigError if a setting needs partitions."""
    for setting in ("partition_column", "shared_subjects"):
        if getattr(table.spec.data, setting):
            raise ConfigError(f"{where}: {setting} was given, and the table has no partitions.")
    for role, row_source in table.row_sources.items():
        if PARTITION_MARK in row_source.path:
            text = f"the path of {role} has {PARTITION_MARK}, and the table has no partitions"
            raise ConfigError(f"{where}: {text}.")
