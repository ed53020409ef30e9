"""Load policies, define the shipped ones, and choose metrics and the policy in force."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privacy_assets.distances.embedder_settings import EmbedderSettings
from privacy_assets.errors import (
    ConfigError,
    did_you_mean,
    near_name,
    redact_foreign_errors,
    safe_repr,
)
from privacy_assets.infra.objects import location
from privacy_assets.infra.settings import read_yaml, settings_of
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.registry import (
    METRICS,
    build_metric,
    default_metrics,
    metric_distributions,
    statistic_spec,
    statistic_specs,
)
from privacy_assets.policy import (
    MIN_HOLDERS,
    SHIPPED,
    Limit,
    Policy,
    ShippedName,
    parse_limits,
    reserved_name,
)
from privacy_assets.stats.estimates import to_jsonable
from privacy_assets.version import PACKAGE_VERSION

if TYPE_CHECKING:
    from privacy_assets.generators.base import Generator

# names, or settings by name
MetricsLike = str | Iterable[str] | Mapping[str, Mapping[str, Any] | None]
PolicyLike = Policy | Mapping[str, Any] | str | Path
# Number of members below which a non-leaking release is often undecided under the shipped policies,
# with a holdout of six tenths of that size. Measured by the power analysis without controls. Of 12
# such releases of Adult, UK census and the demo, 12 pass with 1,500 members under the default
# policy and 11 with 1,000. Under small, 7 pass with 800 and 4 with 600.
_MIN_SUBJECTS: Mapping[ShippedName, int] = {"default": 1_500, "small": 800}
_WHY_SMALL = "tolerated for 800 to 1,500 people, too few to demonstrate a lower value"


@redact_foreign_errors
def load_policy(source: PolicyLike) -> Policy:
    """Load a policy, and compare it with the registered metrics.

    Args:
        source: A policy, the name of a shipped one ("default" or "small"), the path of a YAML file,
            or a mapping as in :meth:`.Policy.parse`. If ``extends`` names a shipped policy, the
            limits replace or join those of the shipped policy.

    Returns:
        The policy.

    Raises:
        ConfigError: The file cannot be read; a key, name, statistic or setting is unknown, invalid
            or repeated; or the policy has the name of a shipped one and differs from it.
    """
    if isinstance(source, Policy):
        _check_settings(source)
        return _as_shipped(source)
    if source == "default":
        return default_policy()
    if source == "small":
        return small_policy()
    if isinstance(source, str) and re.fullmatch(r"[\w-]+", source) and not Path(source).exists():
        shipped = " and ".join(map(repr, SHIPPED))
        raise ConfigError(
            f"policy {safe_repr(source)}: it is neither shipped nor a"
            f" file.{near_name(source, SHIPPED)} Fix: pass the"
            f" path of a policy file, or one of the shipped policies, {shipped}."
        )
    where = "policy"
    data: Any = source
    if isinstance(source, str | Path):
        where = str(location(source))
        data = read_yaml(source, "a policy file")
    try:
        return _parse(data)
    except ConfigError as error:
        message = str(error).removeprefix("policy: ")
    # Not in the handler, so that the error has no context.
    raise ConfigError(f"{where}: {message}")


def read_policy(data: Mapping[str, Any], package_version: str) -> Policy:
    """Read the policy of an attestation or of a report.

    Args:
        data: What :meth:`.Policy.to_dict` returned.
        package_version: Version of the package that wrote it. The shipped policies of other
            versions can have other limits, so they are compared only if this version wrote the
            policy.

    Returns:
        The policy.

    Raises:
        ConfigError: The policy is invalid.
    """
    policy = Policy.parse(data)
    if package_version != PACKAGE_VERSION:
        return policy
    return _as_shipped(policy)


def default_policy(metrics: Iterable[str] | None = None, external: Collection[str] = ()) -> Policy:
    """Return the default limits of some metrics.

    Args:
        metrics: Names of metrics. None: all that run by default.
        external: Roles of the tables that come from outside, for which further metrics run by
            default.

    Returns:
        The policy ``default``, or a part of it if limits of the default policy are left out.

    Raises:
        ConfigError: The metrics have no limits.
    """
    default_names = default_metrics(external)
    names = default_names
    if metrics is not None:
        names = list(dict.fromkeys(metrics))
    limits = _default_limits(names)
    limited = set()
    for name in default_names:
        if METRICS[name].default_limits:
            limited.add(name)
    if limited <= set(names):
        return Policy(limits, "default", extends="default")
    return Policy(limits, part_of="default")


def small_policy() -> Policy:
    """Return the shipped policy ``small`` for tables of 800 to 1,500 people.

    Some of its limits are wider than the default ones. It is never selected automatically: the data
    owner names it, and every verdict states it.

    Returns:
        The policy.
    """
    return Policy(_shipped_limits("small"), "small", extends="small")


def choose_metrics(
    metrics: MetricsLike | None,
    policy: PolicyLike | None,
    generator: Generator | None = None,
    external: Collection[str] = (),
    embedder: bool | Mapping[str, Any] = True,
) -> tuple[dict[str, Metric], Policy]:
    """Choose the metrics to run and the policy in force.

    Settings of metrics come from the policy. ``metrics`` may only contain those that a table may
    set and the policy does not set.

    Args:
        metrics: Names of metrics, or a mapping of names to settings. None: those of the policy, or
            the default ones.
        policy: Source of the policy, see :func:`.load_policy`. None: the default limits of the
            metrics.
        generator: Generator of the synthetic table, for the metrics that attack it.
        external: Roles of the tables that come from outside, for which further metrics run by
            default.
        embedder: False leaves the embedder out. Without a policy, the policy in force is then a
            part of the default one, if a limit depends on the embedder.

    Returns:
        The metrics by name, and the policy.

    Raises:
        ConfigError: A metric or setting is unknown, a setting belongs to the policy, a limit
            depends on an embedder that is left out, a metric needs the generator, or no metric has
            a limit.
    """
    selected, in_force = metrics_and_limits(metrics, policy, generator, external, embedder)
    if in_force is None:
        in_force = default_policy(selected, external)
    return selected, in_force


def metrics_and_limits(
    metrics: MetricsLike | None,
    policy: PolicyLike | None,
    generator: Generator | None = None,
    external: Collection[str] = (),
    embedder: bool | Mapping[str, Any] = True,
) -> tuple[dict[str, Metric], Policy | None]:
    """Choose metrics and a policy, which may be None.

    Args:
        metrics: As in :func:`choose_metrics`.
        policy: As in :func:`choose_metrics`.
        generator: As in :func:`choose_metrics`.
        external: As in :func:`choose_metrics`.
        embedder: As in :func:`choose_metrics`.

    Returns:
        The metrics by name, and the policy. None: ``policy`` is None and no metric has a limit.

    Raises:
        ConfigError: As in :func:`choose_metrics`.
    """
    metrics = _checked_names(metrics)
    if policy is not None:
        policy = _with_external_limits(load_policy(policy), external)
    names = _names_to_run(metrics, policy, external)
    settings_by_table = metrics if isinstance(metrics, Mapping) else {}
    table_settings = _table_settings(settings_by_table, policy, embedder)
    in_force = _policy_in_force(policy, names, external, embedder)
    return _build_metrics(names, in_force, table_settings, generator), in_force


def _checked_names(metrics: MetricsLike | None) -> MetricsLike | None:
    """Return the metrics of the caller, a string split into names. Raise ConfigError for other
    types.
    """
    if metrics is None:
        return None
    if isinstance(metrics, str):
        return _split_names(metrics)
    if not isinstance(metrics, list | tuple | set | frozenset | Mapping):
        type_name = type(metrics).__name__
        raise ConfigError(
            f"metrics must be names, or a mapping of names to settings, not {type_name}."
        )
    for name in metrics:
        if not isinstance(name, str):
            raise ConfigError(f"metrics: each name must be a string, not {type(name).__name__}.")
    return metrics


def _split_names(text: str) -> list[str]:
    """Split at commas. An error does not quote parts of a long string, which may be the content of
    a table.
    """
    names = []
    for part in text.split(","):
        if part.strip():
            names.append(part.strip())
    displayed = safe_repr(text)
    if displayed != repr(text) and not all(name in METRICS for name in names):
        raise ConfigError(
            f"{displayed} is not a list of metrics. Fix: pass names separated by commas."
        )
    return names


def _with_external_limits(policy: Policy, external: Collection[str]) -> Policy:
    """Add the default limits of metrics that run only for tables from outside, if the policy
    extends another.
    """
    if not policy.extends:
        return policy
    only_external = set(default_metrics(external)) - set(default_metrics())
    limits = list(policy.limits)
    for name in sorted(only_external - set(policy.metrics)):
        limits += build_metric(name).default_limits
    return replace(policy, limits=tuple(limits))


def _names_to_run(
    metrics: MetricsLike | None, policy: Policy | None, external: Collection[str]
) -> list[str]:
    """Return the valid names of at least one metric: those of the caller, the policy, or the
    default ones.
    """
    if metrics is not None:
        names = list(metrics)
    elif policy is not None:
        names = list(dict.fromkeys((*policy.metrics, *policy.settings)))
    else:
        names = default_metrics(external)
    if not names:
        raise ConfigError("no metric was selected. Fix: name at least one.")
    for name in names:
        build_metric(name)
    return names


def _policy_in_force(
    policy: Policy | None,
    names: Sequence[str],
    external: Collection[str],
    embedder: bool | Mapping[str, Any],
) -> Policy | None:
    """Return the policy of the caller, or the default limits of the metrics, if they have any."""
    in_force = policy
    if policy is None and any(METRICS[name].default_limits for name in names):
        in_force = default_policy(names, external)
    if in_force is None or embedder is not False or in_force.embedder is False:
        return in_force
    embedded = embedded_statistics(in_force)
    if not embedded:
        return in_force
    if policy is not None:
        text = f"policy {policy.title} limits {embedded[0]}, which depends on the embedder"
        raise ConfigError(f"{text}. {_policy_advice(policy, {}, False)}")
    return replace(in_force, name="custom", part_of="default", embedder=False)


def _build_metrics(
    names: Sequence[str],
    policy: Policy | None,
    table_settings: Mapping[str, Mapping[str, Any]],
    generator: Generator | None,
) -> dict[str, Metric]:
    """Build metrics with the settings of policy and table, for the limits of the policy."""
    policy_settings = policy.settings if policy else {}
    limits = policy.limits if policy else ()
    built = {}
    for name in names:
        settings = {**policy_settings.get(name, {}), **table_settings.get(name, {})}
        built[name] = build_metric(name, settings)
    for_generator = {name: metric.for_generator(generator) for name, metric in built.items()}
    for_limits = {}
    for name, metric in for_generator.items():
        for_limits[name] = metric.for_limits(limits, for_generator)
    return for_limits


def _table_settings(
    settings_by_metric: Mapping[str, Any],
    policy: Policy | None,
    embedder: bool | Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """Return the settings that a table may set, by metric. Raise ConfigError if there are
    others.
    """
    table_settings = dict[str, dict[str, Any]]()
    reserved = dict[str, dict[str, Any]]()
    for name, settings in settings_by_metric.items():
        if not isinstance(settings, Mapping | None):
            raise ConfigError(
                f"metric {safe_repr(name)}: settings must be a mapping of names to values."
            )
        metric = build_metric(name, settings)
        allowed = set()
        for setting in settings_of(type(metric)):
            if setting.by_table:
                allowed.add(setting.name)
        if policy is not None:
            allowed -= set(policy.settings.get(name, {}))
        for key, value in (settings or {}).items():
            if key in allowed:
                table_settings.setdefault(name, {})[key] = value
            else:
                reserved.setdefault(name, {})[key] = value
    embedder_settings = embedder if isinstance(embedder, Mapping) else {}
    build_embedder(embedder_settings)
    _check_none_reserved(policy, reserved, embedder_settings)
    return table_settings


def _check_none_reserved(
    policy: Policy | None,
    reserved: Mapping[str, Mapping[str, Any]],
    embedder_settings: Mapping[str, Any],
) -> None:
    """Raise ConfigError if there are settings that belong to the policy."""
    keys = []
    for part, settings in (*reserved.items(), ("embedder", embedder_settings)):
        for key in settings:
            keys.append(f"{part}.{key}")
    if not keys:
        return
    verb = "is a setting" if len(keys) == 1 else "are settings"
    text = f"{', '.join(keys)} {verb} of the policy, not of a table"
    raise ConfigError(f"{text}. {_policy_advice(policy, reserved, embedder_settings)}")


def _policy_advice(
    policy: Policy | None,
    metrics: Mapping[str, Mapping[str, Any]],
    embedder: Mapping[str, Any] | bool,
) -> str:
    """Return advice with the policy to write, as YAML without the values, which can be cells of a
    table.
    """
    lines = []
    if metrics:
        lines.append("metrics:")
    for name, settings in metrics.items():
        lines.append(f"  {name}: {_without_values(settings)}")
    if embedder is False:
        lines.append("embedder: false")
    elif isinstance(embedder, Mapping) and embedder:
        lines.append(f"embedder: {_without_values(embedder)}")
    if policy is not None and policy.name not in SHIPPED:
        return "\n".join([f"Fix: add these lines to policy {policy.title}:", *lines])
    extended = "default" if policy is None else policy.name
    first = "Fix: use a custom policy with these lines:"
    return "\n".join([first, "name: my-policy", f"extends: {extended}", *lines])


def _without_values(settings: Mapping[str, Any]) -> str:
    """Return settings as YAML, with dots for the values."""
    items = ", ".join(f"{key}: ..." for key in settings)
    return f"{{{items}}}"


def embedded_statistics(policy: Policy) -> tuple[str, ...]:
    """Find the limited statistics that depend on the embedder.

    Args:
        policy: The policy.

    Returns:
        Full names, ``metric.statistic``.
    """
    embedded = []
    for name in dict.fromkeys(limit.statistic for limit in policy.limits):
        spec = statistic_spec(name)
        if spec is None:
            continue
        metric_name, _, _ = name.partition(".")
        metric = build_metric(metric_name, policy.settings.get(metric_name))
        if spec.embedded or "embedder" in metric.required_inputs:
            embedded.append(name)
    return tuple(embedded)


def resolve_policy(policy: Policy) -> dict[str, Any]:
    """Return everything that decides about a table, in plain values.

    Args:
        policy: The policy.

    Returns:
        ``limits``, the ``settings`` of each limited metric and those that it uses, those of the
        ``embedder`` (None if no limit depends on it), defaults included, ``min_holders``, and the
        ``distributions`` with version of limited metrics of other packages, if there are any. Names
        and texts are left out, and so are settings that a table may set, unless the policy sets
        them.
    """
    settings = {}
    for name in _deciding_metrics(policy):
        settings[name] = _resolved_settings(name, policy.settings.get(name, {}))
    resolved = {
        "limits": sorted(list(_deciding(limit)) for limit in policy.limits),
        "settings": settings,
        "embedder": _resolved_embedder(policy),
        "min_holders": policy.min_holders,
    }
    distributions = metric_distributions(policy.metrics)
    if distributions:
        resolved["distributions"] = distributions
    return resolved


def _deciding_metrics(policy: Policy) -> list[str]:
    """Return the limited metrics, followed by those whose settings they use."""
    names = list(policy.metrics)
    for name in policy.metrics:
        if name in METRICS:
            names += METRICS[name].uses_settings_of
    return list(dict.fromkeys(names))


def policy_digest(policy: Policy) -> str:
    """Return the SHA-256 of :func:`resolve_policy`.

    Args:
        policy: The policy.

    Returns:
        The digest in hexadecimal.
    """
    text = json.dumps(resolve_policy(policy), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def size_warning(policy: Policy, n_subjects: int) -> str:
    """Return a warning if train has few subjects.

    The rule does not use the table; the command ``plan`` does.

    Args:
        policy: Policy in force.
        n_subjects: Number of subjects in train.

    Returns:
        The warning with its fix, or "" if there are enough subjects or the policy extends no
        shipped one.
    """
    min_subjects = _min_subjects(policy)
    if n_subjects >= min_subjects:
        return ""
    use_small = ""
    if _MIN_SUBJECTS["small"] <= n_subjects:  # so the policy has stricter limits than small
        use_small = ", use policy small if you accept its wider limits"
    return (
        f"Train has {n_subjects:,} people, fewer than {min_subjects:,}: under policy"
        f" {safe_repr(policy.name)} the verdict is"
        f' often "undecided". Fix: use more people{use_small}, or run `privacy-assets power` to see'
        " which limits a"
        " split of this size can decide."
    )


def build_embedder(settings: Mapping[str, Any]) -> EmbedderSettings:
    """Build the settings of the embedder.

    Args:
        settings: Settings by name.

    Returns:
        The settings, with defaults for all others.

    Raises:
        ConfigError: A setting is unknown, or a value is out of range.
    """
    valid_names = {setting.name for setting in settings_of(EmbedderSettings)}
    for name in settings:
        if name not in valid_names:
            raise ConfigError(
                f"the embedder has no setting {safe_repr(name)}.{did_you_mean(name, valid_names)}"
            )
    return EmbedderSettings(**settings)


def _parse(data: Mapping[str, Any]) -> Policy:
    """Parse a policy that a user wrote, with the limits of the shipped policy that it extends."""
    if isinstance(data, Mapping):
        data = _with_shipped_limits(data)
    policy = Policy.parse(data)
    for limit in policy.limits:
        _check_statistic(limit)
    _check_settings(policy)
    return _as_shipped(policy)


def _with_shipped_limits(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the limits of the shipped policy that ``data`` extends; those of ``data`` replace
    them.
    """
    extends = data.get("extends")
    if not isinstance(extends, str) or extends not in SHIPPED:
        return data
    limits = {}
    for limit in load_policy(extends).limits:
        limits[limit.key] = limit
    for limit in parse_limits(data.get("limits", ())):
        limits[limit.key] = limit
    return {**data, "limits": limits.values()}


def _check_statistic(limit: Limit) -> None:
    """Raise ConfigError if the limit is on an unknown statistic, on its wrong side or out of its
    range.
    """
    spec = statistic_spec(limit.statistic)
    if spec is None:
        raise ConfigError(
            f"unknown statistic {safe_repr(limit.statistic)}.{_statistic_hint(limit)}"
        )
    if spec.direction == "lower_is_riskier":
        side = "at_least"
    else:
        side = "at_most"
    if getattr(limit, side) is None:
        raise ConfigError(f"{limit.statistic} takes {side}.")
    low, high = spec.limits
    if not low <= limit.value <= high:
        raise ConfigError(
            f"{limit.statistic}: the limit {limit.value:g} is outside the range of the statistic,"
            f" {low:g} to {high:g}."
        )


def _statistic_hint(limit: Limit) -> str:
    """Return a hint for a limit on an unknown statistic."""
    hint = near_name(limit.statistic, statistic_specs())
    if hint:
        return hint
    metric = METRICS.get(limit.metric)
    if metric is None:
        return METRICS.hint(limit.metric)
    names = []
    for spec in metric.statistics:
        names.append(f"{limit.metric}.{spec.name}")
    return did_you_mean(limit.statistic, names)


def _check_settings(policy: Policy) -> None:
    """Raise ConfigError if a setting of a metric or of the embedder is unknown or out of range."""
    for name, settings in policy.settings.items():
        build_metric(name, settings)
    if policy.embedder is not False:
        build_embedder(policy.embedder)


def _as_shipped(policy: Policy) -> Policy:
    """Return the policy, after checking that it is what ``name`` or ``part_of`` claims. Shipped
    ones extend themselves.

    Raises ConfigError if it is not.
    """
    if policy.part_of is not None and not _is_part_of(policy, policy.part_of):
        raise ConfigError(f"policy: it is not a part of {policy.part_of!r}. Fix: remove part_of.")
    for name in SHIPPED:
        if policy.name != name:
            continue
        if not _equals_shipped(policy, name):
            raise reserved_name(policy.name, name)
        return replace(policy, extends=name)
    return policy


def _equals_shipped(policy: Policy, shipped: ShippedName) -> bool:
    if policy.settings or policy.embedder != {} or policy.min_holders != MIN_HOLDERS:
        return False
    return _deciding_limits(policy.limits) == _shipped_with_added_metrics(policy, shipped)


def _is_part_of(policy: Policy, shipped: ShippedName) -> bool:
    """Tell whether the policy has some limits of a shipped one; the embedder may be off."""
    is_embedder_changed = policy.embedder is not False and policy.embedder != {}
    if policy.settings or is_embedder_changed or policy.min_holders != MIN_HOLDERS:
        return False
    return _deciding_limits(policy.limits) <= _shipped_with_added_metrics(policy, shipped)


def _shipped_with_added_metrics(policy: Policy, shipped: ShippedName) -> set[tuple[Any, ...]]:
    """Return the limits of a shipped policy, and the default ones of further metrics of
    ``policy``, as for external tables.
    """
    limits = _shipped_limits(shipped)
    shipped_metrics = set()
    for limit in limits:
        shipped_metrics.add(limit.metric)
    added_metrics = set(METRICS.core_and(policy.metrics)) & set(policy.metrics) - shipped_metrics
    return _deciding_limits((*limits, *_default_limits(added_metrics)))


def _min_subjects(policy: Policy) -> int:
    """Return the number of members below which the verdict is often "undecided"; 0 without a
    shipped policy.

    For a policy that extends a shipped one it is the number of ``small`` if its limits are at least
    as wide.
    """
    if not policy.extends:
        return 0
    small_limits = _wider_limits()
    for limit in policy.limits:
        if limit.key in small_limits and limit.value < small_limits[limit.key]:
            return _MIN_SUBJECTS["default"]
    return _MIN_SUBJECTS["small"]


def _resolved_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a metric, including defaults."""
    if name not in METRICS:
        return dict(to_jsonable(settings))
    deciding = set()
    for setting in settings_of(METRICS[name]):
        if not setting.by_table or setting.name in settings:
            deciding.add(setting.name)
    resolved = {}
    for key, value in build_metric(name, settings).settings().items():
        if key in deciding:
            resolved[key] = to_jsonable(value)
    return resolved


def _resolved_embedder(policy: Policy) -> Any:
    """Return the settings of the embedder, including defaults; None if no limit depends on it."""
    if policy.embedder is False:
        return False
    if not embedded_statistics(policy):
        return None
    return to_jsonable(asdict(build_embedder(policy.embedder)))


def _shipped_limits(name: ShippedName) -> tuple[Limit, ...]:
    """Return the limits of a shipped policy, without those for external tables."""
    limits = _default_limits(default_metrics())
    if name == "default":
        return limits
    small_limits = _wider_limits()
    shipped = []
    for limit in limits:
        if limit.key in small_limits:
            limit = replace(limit, at_most=small_limits[limit.key], source=_WHY_SMALL)
        shipped.append(limit)
    return tuple(shipped)


def _default_limits(names: Iterable[str]) -> tuple[Limit, ...]:
    """Return the default limits of metrics, in the order of ``names``."""
    limits: list[Limit] = []
    for name in names:
        limits.extend(METRICS[name].default_limits)
    return tuple(limits)


def _wider_limits() -> dict[str, float]:
    """Return the values of the limits that are wider in the policy ``small``, by key."""
    wider: dict[str, float] = {}
    for metric in METRICS.values():
        wider.update(metric.small_policy_limits)
    return wider


def _deciding_limits(limits: Iterable[Limit]) -> set[tuple[Any, ...]]:
    return set(map(_deciding, limits))


def _deciding(limit: Limit) -> tuple[Any, ...]:
    """Return what decides about a table: statistic, bound, side, value and number of subjects."""
    return limit.statistic, limit.bound, limit.at_least is None, limit.value, limit.min_subjects
