"""Estimates: frozen numbers that carry their uncertainty, made by their spec alone, and serialisable to JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Direction = Literal["higher_is_riskier", "two_sided", "lower_is_riskier"]
About = Literal["release", "gate"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """One number of a metric with its interval, made by :meth:`StatisticSpec.estimate`.

    ``value``, ``low`` and ``high`` share one unit; ``low <= value <= high`` unless NaN, which means "not measurable"
    (``note`` says why) and can never pass a limit. ``n`` counts rows and ``subjects`` independent subjects behind the
    number. ``null`` is what a release without any leak shows on average. ``minimum_detectable_effect`` is the value
    that the conservative bound of a leak-free release of these sizes stays within in 99.5 % of cases (in the unit of
    the limit); it is printed, and decides nothing. NaN where no null law is known. A statistic ``about``
    the gate, not the release, can show that the gate is underpowered, never that a release leaks: its limits hold, or
    are not assessable.
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
    about: About = "release"

    @property
    def measurable(self) -> bool:
        """True when value and both bounds are finite numbers."""
        return all(math.isfinite(x) for x in (self.value, self.low, self.high))

    def to_json(self) -> dict[str, Any]:
        """Return a plain mapping; NaN becomes None."""
        return {name: plain(getattr(self, name)) for name in self.__slots__ if name != "name"}

    @classmethod
    def from_json(cls, name: str, data: Mapping[str, Any]) -> Estimate:
        """Inverse of :meth:`to_json`."""
        floats = ("value", "low", "high", "minimum_detectable_effect", "null", "confidence")
        fixed = {key: (math.nan if data[key] is None else float(data[key])) for key in floats}
        return cls(name=name, **{**data, **fixed})


@dataclass(frozen=True, slots=True)
class StatisticSpec:
    """What a statistic is, for the policy page, the report and the help texts, and the one way to make one.

    ``meaning`` is one plain sentence. ``null`` is what a release without any leak shows on average: NaN where no null
    law is known, None where it differs from release to release, and :meth:`estimate` is told. ``range`` is what a limit
    on it can be, where :attr:`limits` does not say so already. ``about``: see :class:`Estimate`.
    """

    name: str
    meaning: str
    direction: Direction = "higher_is_riskier"
    null: float | None = 0.0
    range: tuple[float, float] | None = None
    about: About = "release"

    @property
    def limits(self) -> tuple[float, float]:
        """Between which values a limit can lie: those of a share, of a score to 100, or of a distance from the null."""
        if self.range is not None:
            return self.range
        null = 0.0 if self.null is None or not math.isfinite(self.null) else self.null
        return (0.0, max(null, 1 - null)) if self.direction == "two_sided" else (0.0, max(null, 1.0))

    def estimate(
        self,
        value: float,
        low: float,
        high: float,
        counts: tuple[int, int],
        *,
        null: float | None = None,
        confidence: float = 0.95,
        minimum_detectable_effect: float = math.nan,
        note: str = "",
    ) -> Estimate:
        """The statistic, with its interval; ``counts`` are rows and subjects. ``null`` only where the spec has None."""
        if (null is None) == (self.null is None):
            raise TypeError(f"{self.name}: the null value stands in the spec, or is given with each statistic.")
        return Estimate(
            name=self.name,
            value=float(value),
            low=float(low),
            high=float(high),
            n=counts[0],
            subjects=counts[1],
            null=float(null if self.null is None else self.null),  # type: ignore[arg-type]  # one of them is no None
            direction=self.direction,
            confidence=confidence,
            minimum_detectable_effect=float(minimum_detectable_effect),
            note=note,
            about=self.about,
        )

    def missing(self, note: str, counts: tuple[int, int], confidence: float = 0.95) -> Estimate:
        """The statistic without a number, which passes no limit; ``note`` says why."""
        null = math.nan if self.null is None else None
        return self.estimate(math.nan, math.nan, math.nan, counts, null=null, confidence=confidence, note=note)

    def not_measurable(self, reason: str, counts: tuple[int, int]) -> Estimate:
        """The statistic without a number, for what these tables are too small for, or do not have."""
        return self.missing(f"not measurable: {reason}", counts)


def plain(value: Any) -> Any:
    """Return ``value`` as JSON can hold it: mappings with text keys, lists, NaN as None, numpy values as Python's.

    Anything else is named by its type only, so that no object prints its contents into a report.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return plain(value.tolist())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    return f"<{getattr(value, '__qualname__', type(value).__qualname__)}>"
