"""Utility beside privacy: the statistics of fidelity, synthetic rows beside as many real ones."""

from __future__ import annotations

from collections.abc import Mapping

from privacy_assets.stats.estimates import Estimate
from privacy_assets.stats.results import MetricResult

_STATISTICS = ("column_similarity", "pair_similarity", "correlation_difference", "prediction")


def utility(results: Mapping[str, MetricResult]) -> list[tuple[str, Estimate, Estimate]]:
    """Name, statistic of the synthetic rows and of as many real rows; empty unless fidelity was measured."""
    found = {estimate.name: estimate for estimate in results["fidelity"].estimates} if "fidelity" in results else {}
    named = [(name, found.get(name), found.get(f"{name}_real")) for name in _STATISTICS]
    return [(name, own, real) for name, own, real in named if own and real and own.measurable and real.measurable]
