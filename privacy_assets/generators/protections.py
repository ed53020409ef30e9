"""States of the protections of a table: every filter, "over-fitting" and "differential privacy"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from privacy_assets.generators.filters import FILTERS, AlphaFilter

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


def configuration_score(generator: Mapping[str, Any] | None) -> float:
    """Return the score of the Privacy Configuration: the share of kinds of protection that are on,
    0 to 100.

    Gretel, section "Introduction": "the existing Privacy Configuration Score which is only model
    and mechanism based. This existing metric consists of our Privacy Filters, Overfitting
    Protection and Differential Privacy." The paper gives no formula. The three kinds have equal
    weight; privacy filters are on if one of them is. ``alpha_m`` does not count, because it
    discloses members.

    The score describes the generator and does not show whether the table leaks.

    Args:
        generator: See :func:`protection_states`.

    Returns:
        The score. NaN: the state of a kind is unknown.
    """
    protections = protection_states(generator)
    filters = []
    for name in FILTERS:
        if name != AlphaFilter.name:
            filters.append(protections[name])
    filter_state = "on" if "on" in filters else filters[0]
    states = [filter_state, protections[OVERFITTING], protections[DP]]
    if "unknown" in states:
        return math.nan
    return 100 * states.count("on") / len(states)


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
