"""Usefulness beside privacy: the figures of fidelity, synthetic rows beside as many real ones."""

from __future__ import annotations

from collections.abc import Mapping

from privacy_assets.stats.estimates import Figure
from privacy_assets.stats.results import MetricResult

_FIGURES = ("column_similarity", "pair_similarity", "correlation_difference", "prediction")


def usefulness(results: Mapping[str, MetricResult]) -> list[tuple[str, Figure, Figure]]:
    """Name, figure of the synthetic rows and of as many real rows; empty unless fidelity was measured."""
    found = {figure.name: figure for figure in results["fidelity"].figures} if "fidelity" in results else {}
    named = [(name, found.get(name), found.get(f"{name}_real")) for name in _FIGURES]
    return [(name, own, real) for name, own, real in named if own and real and own.measurable and real.measurable]
