"""The registry of metrics: one line each. Everything that lists metrics reads it from here."""

from __future__ import annotations

from collections.abc import Collection

from privacy_assets.errors import ConfigError, did_you_mean, shown
from privacy_assets.metrics.base import Metric
from privacy_assets.settings import parts_at, settings_of
from privacy_assets.stats.estimates import StatisticSpec

METRICS: dict[str, type[Metric]] = parts_at(
    "privacy_assets.metrics.dcr:Dcr",
    "privacy_assets.metrics.copies:Copies",
    "privacy_assets.metrics.singling_out:SinglingOut",
    "privacy_assets.metrics.linkability:Linkability",
    "privacy_assets.metrics.attribute_inference:AttributeInference",
    "privacy_assets.metrics.membership_inference:MembershipInference",
    "privacy_assets.metrics.memorization:Memorization",
    "privacy_assets.metrics.vulnerability:Vulnerability",
    "privacy_assets.metrics.shadow_membership:ShadowMembership",
    "privacy_assets.metrics.fidelity:Fidelity",
    "privacy_assets.metrics.value_disclosure:ValueDisclosure",
    "privacy_assets.metrics.cumulative_disclosure:CumulativeDisclosure",
    "privacy_assets.metrics.controls:Controls",
    "privacy_assets.metrics.holdout_leakage:HoldoutLeakage",
)


def default_metrics(external: Collection[str] = ()) -> list[str]:
    """Names of the metrics that run when none are chosen; ``external`` are the roles of tables made outside."""
    doubted = {name for name, metric in METRICS.items() if metric.if_external and metric.if_external <= set(external)}
    return [name for name, metric in METRICS.items() if metric.by_default or name in doubted]


def study_metrics() -> list[str]:
    """Names of the default metrics that judge tables of known truth."""
    return [name for name in default_metrics() if METRICS[name].in_studies]


def metrics_reading(role: str) -> list[str]:
    """Names of the metrics that are given the input ``role``, where that is there."""
    return [name for name, metric in METRICS.items() if role in metric.needs | metric.optional]


def build_metric(name: str, settings: dict[str, object] | None = None) -> Metric:
    """Return the metric ``name`` with ``settings`` in place of its defaults; ConfigError for an unknown name or key."""
    if not isinstance(name, str) or name not in METRICS:
        raise ConfigError(f"unknown metric {shown(name)}.{did_you_mean(name, METRICS)}")
    kind = METRICS[name]
    known = {setting.name for setting in settings_of(kind)}
    for key in settings or {}:
        if not isinstance(key, str) or key not in known:
            raise ConfigError(f"metric {name} has no setting {shown(key)}.{did_you_mean(key, known)}")
    return kind(**(settings or {}))


def statistic_specs() -> dict[str, StatisticSpec]:
    """Every statistic by its full name, ``metric.statistic``."""
    return {f"{name}.{spec.name}": spec for name, metric in METRICS.items() for spec in metric.statistics}
