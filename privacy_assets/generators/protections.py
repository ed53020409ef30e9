"""States of the protections of a table: every filter, "over-fitting" and "differential privacy"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from privacy_assets.generators.filters import FILTERS

State = Literal["on", "off", "unknown"]
OVERFITTING = "over-fitting"
DP = "differential privacy"


def protection_states(generator: Mapping[str, Any] | None) -> dict[str, State]:
    """Return the state of each protection of a table.

    Args:
        generator: Description of the generator. "filter" is the filter description of a snapshot
            (None: no filter), "overfitting" has the settings of the generator that protect (empty:
            none), and "privacy" is its budget. Missing keys give "unknown", as for external tables.
    """
    generator_info = generator or {}
    states = {name: _filter_state(name, generator_info) for name in FILTERS}
    states[OVERFITTING] = _overfitting_state(generator_info)
    states[DP] = _budget_state(generator_info)
    return states


def overfitting_settings(generator: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the settings of the generator that protect against memorizing rows, or None if they
    are unknown.

    Args:
        generator: See :func:`protection_states`.
    """
    settings = (generator or {}).get("overfitting")
    return settings if isinstance(settings, Mapping) else None


def _filter_state(name: str, generator: Mapping[str, Any]) -> State:
    filter_info = generator.get("filter", {})
    if filter_info is None:
        return "off"
    filters = filter_info.get("filters")
    if not isinstance(filters, Mapping):
        return "unknown"
    if name not in filters:
        return "off"
    return "on"


def _overfitting_state(generator: Mapping[str, Any]) -> State:
    settings = overfitting_settings(generator)
    if settings is None:
        return "unknown"
    if not settings:
        return "off"
    return "on"


def _budget_state(generator: Mapping[str, Any]) -> State:
    budget = generator.get("privacy")
    if not isinstance(budget, Mapping) or not budget.get("known", True):
        return "unknown"
    if budget.get("epsilon") is None:
        return "off"
    return "on"
