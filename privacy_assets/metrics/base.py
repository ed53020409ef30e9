"""The interface of a privacy metric.

A metric declares its settings, statistics and default limits, and implements
:meth:`Metric.measure`. Assets, checks, command-line options, report sections and reference pages
are derived from these declarations. Other packages do not look a metric up by its name, and import
single metrics only for the ledger (``pipeline``); ``tests/test_layers.py`` compares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np

from privacy_assets.errors import ConfigError
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.policy import Limit
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec
from privacy_assets.version import PACKAGE_VERSION

if TYPE_CHECKING:
    from privacy_assets.generators.base import Generator

Question = Literal["copies", "singling out", "linking", "inference", "membership", "values"]
Cause = Literal[
    "copied rows",
    "over-fitting",
    "rare values",
    "members avoided",
    "identifiers",
    "values of no real row",
    "values of one person",
    "earlier releases",
    "poor fit",
    "too few people",
    "narrow table",
    "different holdout",
    "seen holdout",
    "few tests",
]
TableRows = list[dict[str, Any]]
_Named = TypeVar("_Named", StatisticSpec, Estimate)
_BUDGET = {"n_permutations": 199, "n_bootstraps": 100, "n_queries": 1000}


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A plot of one table of a result.

    Attributes:
        table: Name of the result table.
        caption: One or two sentences below the plot. ``{}`` is replaced by the value of ``facet``.
        facet: Column with one plot for each of its values; None for a single plot.
    """

    table: str
    caption: str
    facet: str | None = None


@dataclass(frozen=True, kw_only=True)
class IntervalPlot(Plot):
    """Values with intervals from the columns ``low`` and ``high``.

    Attributes:
        x: Column of the horizontal axis.
        y: Column of the value.
        axis_labels: Labels of the horizontal and the vertical axis.
        series: Columns whose values distinguish the series.
        log_x: Whether the horizontal axis is logarithmic.
        null: Value at which a reference line is drawn.
    """

    x: str
    y: str
    axis_labels: tuple[str, str]
    series: tuple[str, ...] = ()
    log_x: bool = False
    null: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CurvePlot(Plot):
    """One or more curves.

    Attributes:
        curves: Columns of x and y, by the name of the curve.
        axis_labels: Labels of the horizontal and the vertical axis.
        log: Whether both axes are logarithmic.
    """

    curves: Mapping[str, tuple[str, str]]
    axis_labels: tuple[str, str]
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class GradePlot(Plot):
    """One bar from 0 to 100 for each row, colored by grade.

    Attributes:
        label: Column with the name of the bar.
        points: Column with the number of points.
    """

    label: str
    points: str


@dataclass(frozen=True, kw_only=True)
class LevelPlot(Plot):
    """A pie chart of the columns ``level``, ``attacks`` and ``share``."""


@dataclass(frozen=True, kw_only=True)
class SharePlot(Plot):
    """Bars from 0 to 1 for each row.

    Attributes:
        label: Column with the name of the row.
        series: Name of each bar, by column.
        log: Whether the axis is logarithmic.
    """

    label: str
    series: Mapping[str, str]
    log: bool = False


@dataclass(frozen=True, slots=True)
class Causes:
    """Likely causes of limits that do not hold. The report turns them into advice.

    Attributes:
        failed: Cause of a failed limit. None if the limits of the metric can fail for any kind
            of leak.
        by_statistic: Causes of failed limits on single statistics.
        undecided: Why a limit is undecided.
    """

    failed: Cause | None = None
    by_statistic: Mapping[str, Cause] = field(default_factory=dict)
    undecided: Cause = "too few people"


@dataclass(frozen=True, slots=True)
class FilterComparison:
    """A statistic that the report shows before and after the filters of a generator.

    Attributes:
        statistic: Name of the statistic.
        label: Short label for the table.
        description: What a lower value means.
    """

    statistic: str
    label: str
    description: str


@dataclass(frozen=True, slots=True)
class ProtectionEvidence:
    """Statistics that measure what a protection of the generator is meant to prevent.

    Attributes:
        protection: Name of the protection in the privacy configuration.
        statistics: Names of the statistics.
        primary: Whether these statistics are listed first.
    """

    protection: str
    statistics: tuple[str, ...]
    primary: bool = True


class Metric(ABC):
    """Base class of all metrics.

    Decorate a subclass with ``@declared``. Its fields are its settings: each has a default, bounds
    and a description.

    Attributes:
        name: Name in policies, settings and asset keys; also the name of the file.
        summary: The question that the metric answers, in one sentence.
        required_inputs: Inputs without which the metric cannot run: "train", "holdout",
            "reference", "synthetic", "embedder" or "earlier_releases".
        optional_inputs: Inputs that are used if they exist.
        statistics: Specifications of all statistics, in the order of the report.
        default_limits: Limits of the policy ``default``.
        small_policy_limits: Wider limits of the policy ``small``, by the key of the limit.
        runs_by_default: Whether the metric runs if no metrics are chosen.
        default_for_external: Inputs that make the metric run by default if all of them come from
            outside.
        in_leak_studies: Whether tables with planted leaks can validate the metric.
        uses_settings_of: Other metrics whose settings it takes in :meth:`for_limits`. The digest of
            a policy that limits it covers them.
        attacks_generator: Whether the metric attacks the generator instead of one release.
        scores_rows: Whether results have private scores of each synthetic row
            (:attr:`.MetricResult.row_scores`).
        counts_copies: Its statistics that are shares of copied rows, which advice states.
        seen_in_copy: Whether its statistics measure what a verbatim copy of train discloses, unless
            they say otherwise.
        question: Question on the first page of the report that its statistics answer, unless they
            name another.
        plots: Plots of the result tables. The first one illustrates the answer to ``question``.
        causes: Likely causes of limits that do not hold.
        detectable_leaks: Descriptions of the planted leaks, by question and by the statistic that
            measures them.
        protections: Protections of a generator that the statistics assess.
        filter_comparison: Statistic that is shown before and after filters.
        utility: Statistics of utility. Their null is the value for the same number of real rows.
        generated_column_statistics: Statistics of which a policy must limit one if columns are
            generated.
    """

    part: ClassVar[str] = "metric"
    name: ClassVar[str]
    summary: ClassVar[str]
    required_inputs: ClassVar[frozenset[str]]
    optional_inputs: ClassVar[frozenset[str]] = frozenset()
    statistics: ClassVar[tuple[StatisticSpec, ...]]
    default_limits: ClassVar[tuple[Limit, ...]] = ()
    small_policy_limits: ClassVar[Mapping[str, float]] = MappingProxyType({})
    runs_by_default: ClassVar[bool] = True
    default_for_external: ClassVar[frozenset[str]] = frozenset()
    in_leak_studies: ClassVar[bool] = True
    uses_settings_of: ClassVar[tuple[str, ...]] = ()
    attacks_generator: ClassVar[bool] = False
    scores_rows: ClassVar[bool] = False
    counts_copies: ClassVar[tuple[str, ...]] = ()
    seen_in_copy: ClassVar[bool] = True
    question: ClassVar[Question | None] = None
    plots: ClassVar[tuple[Plot, ...]] = ()
    causes: ClassVar[Causes] = Causes()
    detectable_leaks: ClassVar[Mapping[Question, Mapping[str, str]]] = MappingProxyType({})
    protections: ClassVar[tuple[ProtectionEvidence, ...]] = ()
    filter_comparison: ClassVar[FilterComparison | None] = None
    utility: ClassVar[tuple[str, ...]] = ()
    generated_column_statistics: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Measure one release.

        All randomness must come from ``inputs.rng``, so that the same seed gives the same result.

        Args:
            inputs: Tables of the release. All of ``required_inputs`` exist.

        Returns:
            The result, made by :meth:`result` or :meth:`not_measurable`.

        Raises:
            ConfigError: A setting does not fit the tables.
        """

    @property
    def uses_device(self) -> bool:
        """Whether the metric trains a network of its own and can use an accelerator."""
        return False

    @classmethod
    def statistic(cls, name: str) -> StatisticSpec:
        """Look up the specification of a statistic.

        Args:
            name: Name without the prefix of the metric.

        Returns:
            The specification.

        Raises:
            KeyError: The metric has no such statistic.
        """
        for spec in cls.statistics:
            if spec.name == name:
                return spec
        raise KeyError(f"{cls.name} has no statistic {name!r}")

    def uses(self, name: str) -> bool:
        """Tell whether the metric reads an input.

        Args:
            name: Name of the input, for example "reference".

        Returns:
            True if the input is required or optional.
        """
        return name in self.required_inputs | self.optional_inputs

    @classmethod
    def study_estimates(
        cls, tables: Mapping[str, TableRows]
    ) -> dict[str, tuple[float, float, float]]:
        """Compute further statistics that only leak studies show.

        Args:
            tables: Tables of a result of this metric.

        Returns:
            Value, lower and upper bound, by the name on the page of the study.
        """
        return {}

    def for_generator(self, generator: Generator | None) -> Metric:
        """Adapt the metric to the generator that it attacks.

        Args:
            generator: Generator of the synthetic table; None if it is unknown.

        Returns:
            The metric to run. Metrics that attack no generator return themselves.

        Raises:
            ConfigError: The metric needs a generator, and there is none.
        """
        return self

    def for_limits(self, limits: Sequence[Limit], metrics: Mapping[str, Metric]) -> Metric:
        """Adapt the metric to the limits in force and to the metrics that run with it.

        What this adds is part of the attested settings, but no user can set it.

        Args:
            limits: Limits of the policy.
            metrics: All metrics of the run, by name.

        Returns:
            The metric to run. Metrics that do not depend on other limits return themselves.

        Raises:
            ConfigError: The limits leave the metric nothing to measure.
        """
        return self

    @classmethod
    def sees_copy(cls, spec: StatisticSpec) -> bool:
        """Tell whether a statistic measures what a verbatim copy of train discloses.

        Args:
            spec: Specification of a statistic of the metric.

        Returns:
            True if it does.
        """
        if spec.seen_in_copy is None:
            return cls.seen_in_copy
        return spec.seen_in_copy

    def on_smaller_budget(self) -> Metric:
        """Return the metric with at most a small number of random draws, to measure large
        effects.

        The settings ``n_permutations``, ``n_bootstraps`` and ``n_queries`` are reduced, unless
        their bounds do not permit it.
        """
        settings = self.settings()
        reduced = {}
        for name, most in _BUDGET.items():
            n_draws = settings.get(name) or 0
            if n_draws > most:
                reduced[name] = most
        if not reduced:
            return self
        try:
            return replace(self, **reduced)  # type: ignore[type-var]
        except ConfigError:  # a metric of another package may need more draws
            return self

    def settings(self) -> dict[str, Any]:
        """Return all settings as a mapping.

        Returns:
            Values by name, as they are attested.
        """
        if not is_dataclass(self):
            return {}
        return asdict(self)

    def result(
        self, inputs: EvaluationInputs, estimates: Iterable[Estimate], **tables: TableRows
    ) -> MetricResult:
        """Combine estimates and tables with everything that makes the result verifiable.

        Args:
            inputs: The inputs that were measured.
            estimates: One estimate for each statistic that could be computed.
            **tables: Tables for the report. They hold aggregates and row numbers, never a private
                value. The rows of "graded_scores", see :func:`score_row`, are shown on the page.

        Returns:
            The result, with the settings, the seed, the package version and the fingerprints of the
            tables that the metric reads.
        """
        questions = {spec.name: spec.question or self.question or "" for spec in self.statistics}
        with_questions = []
        for estimate in estimates:
            with_questions.append(replace(estimate, question=questions[estimate.name]))
        fingerprints = {}
        for name, fingerprint in inputs.fingerprints.items():
            if self.uses(name):
                fingerprints[name] = fingerprint
        return MetricResult(
            metric=self.name,
            estimates=tuple(with_questions),
            tables=tables,
            settings=self.settings(),
            inputs=fingerprints,
            seed=inputs.seed,
            package_version=PACKAGE_VERSION,
        )

    def not_measurable(
        self, inputs: EvaluationInputs, reason: str, counts: tuple[int, int], **tables: TableRows
    ) -> MetricResult:
        """Return a result without numbers, which passes no limit.

        Args:
            inputs: The inputs that are too small or lack something.
            reason: What is missing, for the report.
            counts: Number of rows and of subjects.
            **tables: Tables for the report, as in :meth:`result`.

        Returns:
            A result in which every statistic is NaN and carries the reason.
        """
        estimates = not_measurable_estimates(self.statistics, reason, counts)
        return self.result(inputs, estimates, **tables)


def not_measurable_estimates(
    specs: Iterable[StatisticSpec], reason: str, counts: tuple[int, int]
) -> list[Estimate]:
    """Return an estimate without a number for each statistic.

    Args:
        specs: The statistics.
        reason: What is missing, for the report.
        counts: Number of rows and of subjects.

    Returns:
        The estimates, in the order of the statistics.
    """
    estimates = []
    for spec in specs:
        estimates.append(spec.not_measurable(reason, counts))
    return estimates


def by_name(items: Iterable[_Named]) -> dict[str, _Named]:
    """Index statistics or estimates by their names.

    Args:
        items: Items with different names.

    Returns:
        The items by name, in the same order.
    """
    return {item.name: item for item in items}


def score_row(name: str, score: float, grade: str, meaning: str = "") -> dict[str, Any]:
    """Build a row of the table "graded_scores", which the report shows.

    Args:
        name: Name for readers.
        score: Value from 0 to 100.
        grade: Word for it, which is shown only if the table passes.
        meaning: What it is, in whole sentences. Empty: it is a part of the score before it.
    """
    return {"name": name, "score": score, "grade": grade, "meaning": meaning}


def table_rows(**columns: Sequence[Any] | np.ndarray) -> TableRows:
    """Build a result table from its columns.

    Args:
        **columns: Arrays or lists of the same length, by column name.

    Returns:
        One mapping for each row, with plain Python values.
    """
    values = [np.asarray(column).tolist() for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
