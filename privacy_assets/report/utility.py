"""Utility beside privacy: statistics of use, synthetic rows beside as many real ones."""

from __future__ import annotations

from collections.abc import Mapping

from privacy_assets.stats.estimates import Estimate
from privacy_assets.stats.results import MetricResult


def utility(results: Mapping[str, MetricResult]) -> list[tuple[str, Estimate, Estimate]]:
    """Full name, statistic of the synthetic rows and of as many real rows, as far as they were measured."""
    from privacy_assets.metrics.registry import METRICS  # takes long to import: only where there is a report

    found = []
    for metric, kind in METRICS.items():
        estimates = {estimate.name: estimate for estimate in results[metric].estimates} if metric in results else {}
        for name, of_real in kind.utility.items():
            own, real = estimates.get(name), estimates.get(of_real)
            if own and real and own.measurable and real.measurable:
                found.append((f"{metric}.{name}", own, real))
    return found
