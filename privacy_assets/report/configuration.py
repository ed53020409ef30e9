"""The Privacy Configuration: which protections made the table, each beside the statistics that measure what it is for.

Gretel (Data Privacy Score) names them: privacy filters, over-fitting protection and differential privacy. That one is
on says what was done, never that it sufficed: the statistics and their limits say that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from privacy_assets.generators.filters import FILTERS
from privacy_assets.metrics.registry import METRICS
from privacy_assets.report.text import number

State = Literal["on", "off", "unknown"]

_TITLES = {
    **{name: f"{name.removesuffix('s')} filter" for name in FILTERS},
    "over-fitting": "over-fitting protection",
}
_COVERS = {
    **{name: kind.covers for name, kind in FILTERS.items()},
    "over-fitting": "single training rows learnt by heart",
    "differential privacy": "any attack on one training row, as far as its bound and what it covers go",
}


@dataclass(frozen=True, slots=True)
class Protection:
    """One protection: ``name`` as settings and recourses know it, ``title`` for readers, its ``state``.

    "unknown" is said of an external table, or made by somebody else's code. ``how`` are its settings in words,
    ``covers`` is what it protects from, and ``statistics`` measure that.
    """

    name: str
    title: str
    state: State
    how: str
    covers: str
    statistics: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A plain mapping."""
        return {**asdict(self), "statistics": list(self.statistics)}


def privacy_configuration(generator: Mapping[str, Any] | None) -> list[Protection]:
    """The protections of a table, from what its report tells of its ``generator``.

    "filter" is what a snapshot states (None: no filter), "overfitting" the protection of the generator in words (empty:
    none), "privacy" its budget; whatever is not there is unknown.
    """
    stated = generator or {}
    states = {name: _filter(name, stated) for name in FILTERS}
    states |= {"over-fitting": _overfitting(stated.get("overfitting")), "differential privacy": _budget(stated)}
    return [
        Protection(name, _TITLES.get(name, name), state, how, _COVERS[name], _statistics(name))
        for name, (state, how) in states.items()
    ]


def _statistics(protection: str) -> tuple[str, ...]:
    """Full names of the statistics that measure what a protection is for."""
    declared = [(name, one) for name, metric in METRICS.items() for one in metric.protections if one.by == protection]
    declared.sort(key=lambda pair: not pair[1].mainly)
    return tuple(f"{name}.{statistic}" for name, one in declared for statistic in one.statistics)


def _filter(name: str, generator: Mapping[str, Any]) -> tuple[State, str]:
    stated = generator.get("filter", {})
    if stated is None:
        return "off", ""
    filters = stated.get("filters")
    if not isinstance(filters, Mapping):
        return "unknown", ""
    if name not in filters:
        return "off", ""
    settings = [f"{key} {value}" for key, value in filters[name].items() if value is not None and key != "attempts"]
    dropped, drawn = (stated.get("dropped_by") or {}).get(name), stated.get("drawn")
    counts = [f"{number(dropped)} of {number(drawn)} rows left out"] if dropped is not None and drawn else []
    return "on", ", ".join([*settings, *counts])


def _overfitting(protection: str | None) -> tuple[State, str]:
    if protection is None:
        return "unknown", ""
    return ("on", protection) if protection else ("off", "")


def _budget(generator: Mapping[str, Any]) -> tuple[State, str]:
    budget = generator.get("privacy")
    if not isinstance(budget, Mapping) or not budget.get("known", True):
        return "unknown", ""
    if budget.get("epsilon") is None:
        return "off", ""
    words = [f"epsilon {number(budget['epsilon'])}, delta {number(budget.get('delta') or 0)}"]
    words += [f"for {budget['covers']}"] if budget.get("covers") else []
    words += [f"by {budget['accountant']}"] if budget.get("accountant") else []
    outside_guarantee = budget.get("outside_guarantee")
    return "on", ", ".join(words) + (f"; outside of it: {', '.join(outside_guarantee)}" if outside_guarantee else "")
