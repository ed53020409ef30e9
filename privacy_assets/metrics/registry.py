"""The registry of metrics: one line each. Everything that lists metrics reads it from here."""

from __future__ import annotations

from collections.abc import Collection

from privacy_assets.errors import ConfigError, did_you_mean, shown
from privacy_assets.metrics.attribute_inference import AttributeInference
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.controls import Controls
from privacy_assets.metrics.cumulative_disclosure import CumulativeDisclosure
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.fidelity import Fidelity
from privacy_assets.metrics.holdout_leakage import HoldoutLeakage
from privacy_assets.metrics.linkability import Linkability
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.memorization import Memorization
from privacy_assets.metrics.shadow_membership import ShadowMembership
from privacy_assets.metrics.singling_out import SinglingOut
from privacy_assets.metrics.value_disclosure import ValueDisclosure
from privacy_assets.metrics.vulnerability import Vulnerability
from privacy_assets.stats.estimates import StatisticSpec

METRICS: dict[str, type[Metric]] = {
    metric.name: metric
    for metric in (
        Dcr,
        SinglingOut,
        Linkability,
        AttributeInference,
        MembershipInference,
        Memorization,
        Vulnerability,
        ShadowMembership,
        Fidelity,
        ValueDisclosure,
        CumulativeDisclosure,
        Controls,
        HoldoutLeakage,
    )
}


def default_metrics(external: Collection[str] = ()) -> list[str]:
    """Names of the metrics that run when none are chosen; ``external`` are the roles of tables made outside."""
    doubted = {name for name, metric in METRICS.items() if metric.if_external and metric.if_external <= set(external)}
    return [name for name, metric in METRICS.items() if metric.by_default or name in doubted]


def study_metrics() -> list[str]:
    """Names of the default metrics that judge tables of known truth."""
    return [name for name in default_metrics() if METRICS[name].in_studies]


def build_metric(name: str, settings: dict[str, object] | None = None) -> Metric:
    """Return the metric ``name`` with ``settings`` in place of its defaults; ConfigError for an unknown name or key."""
    if not isinstance(name, str) or name not in METRICS:
        raise ConfigError(f"unknown metric {shown(name)}.{did_you_mean(name, METRICS)}")
    kind = METRICS[name]
    known = set(getattr(kind, "__dataclass_fields__", {}))
    for key in settings or {}:
        if not isinstance(key, str) or key not in known:
            raise ConfigError(f"metric {name} has no setting {shown(key)}.{did_you_mean(key, known)}")
    return kind(**(settings or {}))


def statistic_specs() -> dict[str, StatisticSpec]:
    """Every statistic by its full name, ``metric.statistic``."""
    return {f"{name}.{spec.name}": spec for name, metric in METRICS.items() for spec in metric.statistics}
