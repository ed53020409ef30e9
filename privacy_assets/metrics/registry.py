"""Registry of metrics, with one line per metric."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from privacy_assets.errors import ConfigError, did_you_mean, safe_repr
from privacy_assets.infra.registry import Registry
from privacy_assets.infra.settings import settings_of
from privacy_assets.metrics.base import Metric, by_name
from privacy_assets.stats.estimates import StatisticSpec, to_jsonable

METRICS = Registry[Metric](
    Metric,  # type: ignore[type-abstract]
    "privacy_assets.metrics",
    "privacy_assets.metrics.dcr:Dcr",
    "privacy_assets.metrics.copies:Copies",
    "privacy_assets.metrics.singling_out:SinglingOut",
    "privacy_assets.metrics.linkability:Linkability",
    "privacy_assets.metrics.attribute_inference:AttributeInference",
    "privacy_assets.metrics.membership_inference:MembershipInference",
    "privacy_assets.metrics.memorization:Memorization",
    "privacy_assets.metrics.vulnerability:Vulnerability",
    "privacy_assets.metrics.fidelity:Fidelity",
    "privacy_assets.metrics.value_disclosure:ValueDisclosure",
    "privacy_assets.metrics.cumulative_disclosure:CumulativeDisclosure",
    "privacy_assets.metrics.controls:Controls",
    "privacy_assets.metrics.holdout_leakage:HoldoutLeakage",
    reserved=("default_limits", "small_policy_limits", "generated_column_statistics"),
)


def default_metrics(external: Collection[str] = ()) -> list[str]:
    """Return the metrics that run by default.

    Args:
        external: Roles of the tables that come from outside, for which further metrics run.

    Returns:
        Names, in the order of the registry.
    """
    external_roles = set(external)
    names = []
    for name, metric in METRICS.items():
        runs_for_external = (
            bool(metric.default_for_external) and metric.default_for_external <= external_roles
        )
        if metric.runs_by_default or runs_for_external:
            names.append(name)
    return names


def study_metrics() -> list[str]:
    """Return the default metrics that can evaluate tables of known truth."""
    names = []
    for name in default_metrics():
        if METRICS[name].in_leak_studies:
            names.append(name)
    return names


def metrics_reading(role: str) -> list[str]:
    """Return the metrics that use an input.

    Args:
        role: Name of the input, for example "reference".

    Returns:
        Names, in the order of the registry.
    """
    names = []
    for name, metric in METRICS.items():
        if role in metric.required_inputs | metric.optional_inputs:
            names.append(name)
    return names


def build_metric(name: str, settings: Mapping[str, object] | None = None) -> Metric:
    """Build a metric.

    Args:
        name: Name of the metric.
        settings: Settings by name. All others have their defaults.

    Returns:
        The metric.

    Raises:
        ConfigError: The metric or a setting is unknown, or a value is out of range.
    """
    metric_class = METRICS.find(name)
    settings = settings or {}
    valid_names = {setting.name for setting in settings_of(metric_class)}
    for key in settings:
        if not isinstance(key, str) or key not in valid_names:
            raise ConfigError(
                f"metric {name} has no setting {safe_repr(key)}.{did_you_mean(key, valid_names)}"
            )
    return metric_class(**settings)


def statistic_spec(name: str) -> StatisticSpec | None:
    """Look a statistic up.

    Args:
        name: Full name, ``metric.statistic``.

    Returns:
        The statistic, or None if there is none of that name.
    """
    metric_name, _, statistic = name.partition(".")
    metric = METRICS.get(metric_name)
    if metric is None:
        return None
    return by_name(metric.statistics).get(statistic)


def statistic_specs(names: Iterable[str] = ()) -> dict[str, StatisticSpec]:
    """Return the statistics of the core metrics, and of others, by full name.

    Args:
        names: Names of further metrics.

    Returns:
        The statistics by ``metric.statistic``.
    """
    specs = {}
    for name, metric in METRICS.core_and(names).items():
        for spec in metric.statistics:
            specs[f"{name}.{spec.name}"] = spec
    return specs


def metric_distributions(names: Iterable[str]) -> dict[str, str]:
    """Return name and version of the distributions of those metrics that other packages have.

    Args:
        names: Names of metrics.
    """
    distributions = {}
    for name in names:
        distribution = METRICS.distribution(name)
        if distribution is not None:
            distributions[name] = distribution
    return distributions


def table_settings(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings that a table may set, if they are set.

    Args:
        metrics: All settings by metric.

    Returns:
        The values by ``METRIC.SETTING``, see :attr:`.Setting.by_table`.
    """
    set_values = {}
    for name, settings in metrics.items():
        if name not in METRICS:
            continue
        for setting in settings_of(METRICS[name]):
            if setting.by_table and settings.get(setting.name):
                set_values[f"{name}.{setting.name}"] = to_jsonable(settings[setting.name])
    return set_values
