"""Results of metrics: frozen, carrying their uncertainty, and serialisable to JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Direction = Literal["higher_is_riskier", "two_sided", "lower_is_riskier"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a metric with its interval.

    ``value``, ``low`` and ``high`` share one unit; ``low <= value <= high`` unless NaN, which means "not measurable"
    (``note`` says why) and can never pass a limit. ``n`` counts rows and ``subjects`` independent subjects behind the
    number. ``null`` is what a release without any leak shows on average. ``resolution`` is the value that the
    cautious bound of a leak-free release of these sizes stays within in 99.5 % of cases (in the unit of the limit): a
    tighter limit cannot be judged with these sizes. NaN where no null law is known. A figure ``about`` the gate, not
    the release, can show that the gate is blind, never that a release leaks: its limits hold, or are not assessable.
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
    resolution: float = math.nan
    note: str = ""
    about: Literal["release", "gate"] = "release"

    @property
    def measurable(self) -> bool:
        """True when value and both bounds are finite numbers."""
        return all(math.isfinite(x) for x in (self.value, self.low, self.high))

    def to_json(self) -> dict[str, Any]:
        """Return a plain mapping; NaN becomes None."""
        return {name: plain(getattr(self, name)) for name in self.__slots__ if name != "name"}

    @classmethod
    def from_json(cls, name: str, data: Mapping[str, Any]) -> Figure:
        """Inverse of :meth:`to_json`."""
        floats = ("value", "low", "high", "resolution", "null", "confidence")
        fixed = {key: (math.nan if data[key] is None else float(data[key])) for key in floats}
        return cls(name=name, **{**data, **fixed})


@dataclass(frozen=True)
class MetricResult:
    """What one metric found.

    ``tables`` hold small aggregates and row numbers for the report (lists of flat records; never a private value or
    predicate), and ``inputs`` the fingerprint of each table that was read.
    """

    metric: str
    figures: tuple[Figure, ...]
    tables: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    engine_version: str = ""
    seconds: float = math.nan

    def figure(self, name: str) -> Figure:
        """Return the figure called ``name`` (without the metric's prefix); KeyError when there is none."""
        for figure in self.figures:
            if figure.name == name:
                return figure
        raise KeyError(f"{self.metric} has no figure {name!r}")

    def to_json(self) -> dict[str, Any]:
        """Return a plain mapping that ``json.dumps(..., allow_nan=False)`` accepts."""
        return {
            "metric": self.metric,
            "figures": {figure.name: figure.to_json() for figure in self.figures},
            "tables": plain(self.tables),
            "settings": plain(self.settings),
            "inputs": dict(self.inputs),
            "seed": self.seed,
            "engine_version": self.engine_version,
            "seconds": plain(self.seconds),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MetricResult:
        """Inverse of :meth:`to_json`."""
        figures = tuple(Figure.from_json(name, values) for name, values in data["figures"].items())
        seconds = math.nan if data["seconds"] is None else data["seconds"]
        return cls(**{**data, "figures": figures, "seconds": seconds})


def plain(value: Any) -> Any:
    """``value`` in the form that JSON gives back: lists for tuples, None for NaN, no numpy scalars."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item"):  # numpy scalars
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
