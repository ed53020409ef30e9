"""Statistics with their uncertainty, and their specifications."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

Direction = Literal["higher_is_riskier", "two_sided", "lower_is_riskier"]
Measures = Literal["release", "evaluation"]
PEOPLE = "{people}"
PEOPLE_WHO_FIT = "{people who fit}"
NOT_MEASURABLE = "not measurable: "  # start of the note of an estimate without a value
_SMALLEST = 1e-9  # smaller numbers are shown as 0
_MIN_WHOLE = 10_000  # larger numbers are shown without decimals


@dataclass(frozen=True, slots=True)
class Estimate:
    """One statistic of a metric with its interval, created by :meth:`StatisticSpec.estimate`.

    Attributes:
        name: Name without the metric's prefix.
        value: Estimate. NaN: not measurable (see ``note``), which passes no limit.
        low: Lower end of the interval, at most ``value``, in the same unit.
        high: Upper end of the interval, at least ``value``.
        n: Number of rows.
        subjects: Number of independent subjects.
        null: Mean for releases without any leak.
        direction: Which deviations from ``null`` are risks.
        confidence: Confidence level of the interval.
        minimum_detectable_effect: 99.5 % quantile of the conservative bound for non-leaking
            releases of these sizes, in the unit of the limit. It decides whether a limit gives
            evidence. NaN: the null distribution is unknown.
        note: Explanation for readers.
        measures: "evaluation" for statistics of the evaluation itself instead of the release. They
            can show that the evaluation is underpowered but not that a release leaks, so their
            limits pass or are undecided.
        question: Question on the first page of the report that the statistic answers. Empty: none.
        by_rule: True if the threshold rule fixes the value, so that the statistic gives no
            evidence.
        is_share: True for a share of people, rows or cells, and for a difference of shares.
    """

    name: str
    value: float
    low: float
    high: float
    n: int
    subjects: int
    null: float = 0.0
    direction: Direction = "higher_is_riskier"
    confidence: float = 0.95
    minimum_detectable_effect: float = math.nan
    note: str = ""
    measures: Measures = "release"
    question: str = ""
    by_rule: bool = False
    is_share: bool = False

    @property
    def measurable(self) -> bool:
        """Whether value and both bounds are finite."""
        return bool(np.isfinite([self.value, self.low, self.high]).all())

    def widened(self, factor: float) -> tuple[float, float]:
        """Return both ends of the interval, moved to ``factor`` times their distance from the
        value.

        Args:
            factor: 1 leaves the ends where they are; less than 1 narrows the interval.
        """
        low = self.value - factor * (self.value - self.low)
        high = self.value + factor * (self.high - self.value)
        return low, high

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible mapping; NaN becomes None."""
        return {name: to_jsonable(getattr(self, name)) for name in self.__slots__ if name != "name"}

    @classmethod
    def from_json(cls, name: str, data: Mapping[str, Any]) -> Estimate:
        """Create an estimate from the result of :meth:`to_json`."""
        fields = dict(data)
        for key in ("value", "low", "high", "minimum_detectable_effect", "null", "confidence"):
            fields[key] = _nan_if_none(data[key])
        return cls(name=name, **fields)


@dataclass(frozen=True, slots=True)
class StatisticSpec:
    """Definition of a statistic for the policy page, the report and help texts. Creates its
    estimates.

    Attributes:
        name: Name without the metric's prefix.
        meaning: One sentence for readers.
        direction: Which deviations from ``null`` are risks.
        null: Mean for releases without any leak. NaN: unknown. None: it differs between releases,
            see :meth:`with_null`.
        range: Allowed range of limits. None: see :attr:`limits`.
        measures: See :class:`Estimate`.
        embedded: Whether the value depends on the embedder.
        question: Question that the statistic answers. None: that of its metric.
        seen_in_copy: Whether it measures what a verbatim copy of train discloses. None: as its
            metric.
        leak: Clause that describes a leak of a given size, after "a leak would have been found if".
            "{share}" in it is replaced by a percentage. :data:`PEOPLE`, if it is a share of the
            people in train, is replaced by their number in brackets, and :data:`PEOPLE_WHO_FIT`,
            if a release of fewer rows can only show fewer people, by the number of these. Empty:
            none.
    """

    name: str
    meaning: str
    direction: Direction = "higher_is_riskier"
    null: float | None = 0.0
    range: tuple[float, float] | None = None
    measures: Measures = "release"
    embedded: bool = False
    question: str | None = None
    seen_in_copy: bool | None = None
    leak: str = ""

    @property
    def is_share(self) -> bool:
        """True for shares, and differences of shares."""
        return self.range is None and self.direction != "lower_is_riskier"

    @property
    def limits(self) -> tuple[float, float]:
        """Allowed range of limits: ``range``, else that of a share, a score or a distance from the
        null.
        """
        if self.range is not None:
            return self.range
        null = 0.0
        if self.null is not None and math.isfinite(self.null):
            null = self.null
        if self.direction == "two_sided":
            return 0.0, max(null, 1 - null)
        return 0.0, max(null, 1.0)

    def with_null(self, null: float) -> StatisticSpec:
        """Return the specification with the mean for this release.

        Args:
            null: Mean for releases without any leak. NaN: unknown.

        Raises:
            TypeError: If the specification has a null.
        """
        if self.null is not None:
            raise TypeError(f"{self.name}: the specification sets null, so it cannot be set again.")
        return replace(self, null=float(null))

    def estimate(
        self,
        value: float,
        low: float,
        high: float,
        counts: tuple[int, int],
        *,
        confidence: float = 0.95,
        minimum_detectable_effect: float = math.nan,
        note: str = "",
    ) -> Estimate:
        """Create an estimate.

        Args:
            value: Estimate.
            low: Lower end of the interval.
            high: Upper end of the interval.
            counts: Numbers of rows and subjects.
            confidence: Confidence level of the interval.
            minimum_detectable_effect: See :class:`Estimate`.
            note: Explanation for readers.

        Raises:
            TypeError: If the specification has no null.
        """
        if self.null is None:
            raise TypeError(f"{self.name}: the specification has no null. Set it with with_null.")
        n_rows, n_subjects = counts
        return Estimate(
            name=self.name,
            value=float(value),
            low=float(low),
            high=float(high),
            n=n_rows,
            subjects=n_subjects,
            null=float(self.null),
            direction=self.direction,
            confidence=confidence,
            minimum_detectable_effect=float(minimum_detectable_effect),
            note=note,
            measures=self.measures,
            is_share=self.is_share,
        )

    def missing(self, note: str, counts: tuple[int, int], confidence: float = 0.95) -> Estimate:
        """Create an estimate without a value, which passes no limit.

        Args:
            note: The reason, for readers.
            counts: Numbers of rows and subjects.
            confidence: Confidence level of the interval that is missing.
        """
        spec = self
        if spec.null is None:
            spec = spec.with_null(math.nan)
        return spec.estimate(math.nan, math.nan, math.nan, counts, confidence=confidence, note=note)

    def not_measurable(self, reason: str, counts: tuple[int, int]) -> Estimate:
        """Create an estimate without a value because the tables are too small or lack the required
        data.

        Args:
            reason: What is too small or missing, for readers.
            counts: Numbers of rows and subjects.
        """
        return self.missing(f"{NOT_MEASURABLE}{reason}", counts)


def decimal(value: float) -> str:
    """Format a number with four significant digits, or as a whole number, and without an exponent.

    Numbers below 1e-9 are 0.
    """
    if not math.isfinite(value):
        return f"{value:g}"
    if abs(value) < _SMALLEST:
        return "0"
    if abs(value) >= _MIN_WHOLE:
        return f"{value:,.0f}"
    return np.format_float_positional(value, precision=4, unique=False, fractional=False, trim="-")


def to_jsonable(value: Any) -> Any:
    """Convert ``value`` to JSON types: string keys, lists, NaN as None, numpy values as Python
    values.

    Objects of other types are replaced by their type name, so that their contents do not appear in
    reports.
    """
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((to_jsonable(item) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [to_jsonable(item) for item in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return to_jsonable(value.tolist())
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return None
    if value is None or isinstance(value, (str, int)):
        return value
    return f"<{getattr(value, '__qualname__', type(value).__qualname__)}>"


@dataclass(frozen=True)
class MetricResult:
    """Result of one metric.

    Attributes:
        metric: Name of the metric.
        estimates: Statistics.
        tables: Small aggregates and row numbers for the report, as lists of flat mappings. They
            never contain private values or predicates.
        settings: Settings of the metric.
        inputs: Fingerprint of each table that was read.
        seed: Seed of the metric.
        package_version: Version of this package.
        distribution: Name and version of the other package that has the metric. Empty: none.
        seconds: Elapsed time; NaN: unknown.
        on_copy: Limited statistics of a verbatim copy of train on a part of these tables. A limit
            that holds for the copy gives no evidence on these tables.
        row_scores: Private: scores of each synthetic row, as columns of equal length in the order
            of the rows. They are written to a separate file only, and are not part of
            :meth:`to_json`.
    """

    metric: str
    estimates: tuple[Estimate, ...]
    tables: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    package_version: str = ""
    distribution: str = ""
    seconds: float = math.nan
    on_copy: tuple[Estimate, ...] = ()
    row_scores: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)

    def estimate(self, name: str) -> Estimate:
        """Return one statistic.

        Args:
            name: Name without the metric's prefix.

        Raises:
            KeyError: The metric has no statistic of this name.
        """
        for estimate in self.estimates:
            if estimate.name == name:
                return estimate
        raise KeyError(f"{self.metric} has no statistic {name!r}")

    def to_json(self) -> dict[str, Any]:
        """Return a mapping that ``json.dumps(..., allow_nan=False)`` accepts."""
        content = {
            "metric": self.metric,
            "estimates": {estimate.name: estimate.to_json() for estimate in self.estimates},
            "tables": to_jsonable(self.tables),
            "settings": to_jsonable(self.settings),
            "inputs": dict(self.inputs),
            "seed": self.seed,
            "package_version": self.package_version,
            "seconds": to_jsonable(self.seconds),
            "on_copy": {estimate.name: estimate.to_json() for estimate in self.on_copy},
        }
        if self.distribution:
            content["distribution"] = self.distribution
        return content

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MetricResult:
        """Create a result from the output of :meth:`to_json`."""
        fields = dict(data)
        fields["estimates"] = _estimates_from_json(data["estimates"])
        fields["on_copy"] = _estimates_from_json(data["on_copy"])
        if data["seconds"] is None:
            fields["seconds"] = math.nan
        return cls(**fields)


def _estimates_from_json(data: Mapping[str, Mapping[str, Any]]) -> tuple[Estimate, ...]:
    return tuple(Estimate.from_json(name, values) for name, values in data.items())


def _nan_if_none(value: float | None) -> float:
    if value is None:
        return math.nan
    return float(value)
