"""Statistics that demonstrate a leak, asked of other tables: what ``cumulative_disclosure`` and ``holdout_leakage``
have in common.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.limits import Limit

_LIMITS = {
    limit.statistic.partition(".")[2]: limit
    for kind in (Dcr, MembershipInference)
    for limit in kind.default_limits
    if limit.bound == "lower"
}


def limits_of(metric: str, statistics: Iterable[StatisticSpec], source: str) -> tuple[Limit, ...]:
    """The significant limits of ``dcr`` and ``membership_inference`` on the statistics of these names, for
    ``metric``.
    """
    return tuple(
        replace(_LIMITS[spec.name], statistic=f"{metric}.{spec.name}", source=source, advice="") for spec in statistics
    )


def instruments(permutations: int, max_targets: int | None) -> tuple[Metric, ...]:
    """The metrics that have these statistics; ConfigError for too few permutations, or too few rows attacked."""
    return (
        Dcr(permutations=permutations, bootstraps=50, max_targets=max_targets),
        MembershipInference(permutations=permutations, max_targets=max_targets),
    )


def significant(
    inputs: MetricInputs, statistics: Iterable[StatisticSpec], permutations: int, max_targets: int | None
) -> tuple[Estimate, ...]:
    """The statistics of these names as ``dcr`` and ``membership_inference`` measure them, in the raw space alone."""
    asked, metrics = replace(inputs, embedder=None), instruments(permutations, max_targets)
    found = {estimate.name: estimate for metric in metrics for estimate in metric.measure(asked).estimates}
    return tuple(_restated(spec, found[spec.name]) for spec in statistics)


def _restated(spec: StatisticSpec, estimate: Estimate) -> Estimate:
    ends, counts = (estimate.value, estimate.low, estimate.high), (estimate.n, estimate.subjects)
    return spec.estimate(
        *ends,
        counts,
        confidence=estimate.confidence,
        minimum_detectable_effect=estimate.minimum_detectable_effect,
        note=estimate.note,
    )
