"""Metrics and generators of this package by name, also those that entry points add."""

from __future__ import annotations

from privacy_assets.generators import registry as generators
from privacy_assets.metrics import registry as metrics
from privacy_assets.stats.estimates import StatisticSpec

GENERATORS = generators.GENERATORS.shipped()
METRICS = metrics.METRICS.shipped()


def statistic_specs() -> dict[str, StatisticSpec]:
    """Return all statistics by full name."""
    return metrics.statistic_specs(METRICS)
