"""Figures that demonstrate a leak, asked of other tables: what ``composition`` and ``contamination`` have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.stats.estimates import Figure, FigureSpec
from privacy_assets.stats.limits import Limit

_LIMITS = {
    limit.figure.partition(".")[2]: limit
    for kind in (Dcr, MembershipInference)
    for limit in kind.default_limits
    if limit.bound == "lower"
}


def limits_of(metric: str, figures: Iterable[FigureSpec], source: str) -> tuple[Limit, ...]:
    """The demonstrated limits of ``dcr`` and ``membership_inference`` on the figures of these names, for ``metric``."""
    return tuple(
        replace(_LIMITS[spec.name], figure=f"{metric}.{spec.name}", source=source, advice="") for spec in figures
    )


def instruments(permutations: int, attacked: int | None) -> tuple[Metric, ...]:
    """The metrics that have these figures; ConfigError for too few permutations, or too few rows attacked."""
    return (
        Dcr(permutations=permutations, bootstraps=50, attacked=attacked),
        MembershipInference(permutations=permutations, attacked=attacked),
    )


def demonstrated(
    inputs: MetricInputs, figures: Iterable[FigureSpec], permutations: int, attacked: int | None
) -> tuple[Figure, ...]:
    """The figures of these names as ``dcr`` and ``membership_inference`` measure them, in the raw space alone."""
    asked, metrics = replace(inputs, embedder=None), instruments(permutations, attacked)
    found = {figure.name: figure for metric in metrics for figure in metric.measure(asked).figures}
    return tuple(_restated(spec, found[spec.name]) for spec in figures)


def _restated(spec: FigureSpec, figure: Figure) -> Figure:
    ends, counts = (figure.value, figure.low, figure.high), (figure.n, figure.subjects)
    return spec.estimate(*ends, counts, confidence=figure.confidence, resolution=figure.resolution, note=figure.note)
