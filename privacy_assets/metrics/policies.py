"""Load policies, define the shipped ones, and select the metrics that a policy requires."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

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
from privacy_assets.metrics.registry import METRICS, build_metric, default_metrics, statistic_specs
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
from privacy_assets.version import ENGINE_VERSION

PolicyLike = Policy | Mapping[str, Any] | str | Path
# Number of members below which a leak-free release is often undecided under the shipped policies,
# with a holdout of six tenths of that size. Measured by the power analysis without controls. Of 12
# such releases of Adult, UK census and the demo, 12 pass with 1,500 members under the default
# policy and 11 with 1,000. Under small, 7 pass with 800 and 4 with 600.
_FEWEST: Mapping[ShippedName, int] = {"default": 1_500, "small": 800}
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
    where = str(location(source)) if isinstance(source, str | Path) else "policy"
    data = read_yaml(source, "a policy file") if isinstance(source, str | Path) else source
    try:
        return _parse(data)
    except ConfigError as error:
        wrong = str(error)
    raise ConfigError(f"{where}: {wrong.removeprefix('policy: ')}")


def read_policy(data: Mapping[str, Any], engine_version: str) -> Policy:
    """Read the policy of an attestation or of a report.

    Args:
        data: What :meth:`.Policy.to_dict` returned.
        engine_version: Engine that wrote it. The shipped policies of other engines can have other
            limits, so they are compared only if this engine wrote the policy.

    Returns:
        The policy.

    Raises:
        ConfigError: The policy is invalid.
    """
    policy = Policy.parse(data)
    return _as_shipped(policy) if engine_version == ENGINE_VERSION else policy


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
    names = list(dict.fromkeys(metrics)) if metrics is not None else default_metrics(external)
    whole = all(name in names for name in default_metrics(external) if METRICS[name].default_limits)
    limits = tuple(limit for name in names for limit in METRICS[name].default_limits)
    if whole:
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


def embedded_statistics(policy: Policy) -> tuple[str, ...]:
    """Find the limited statistics that depend on the embedder.

    Args:
        policy: The policy.

    Returns:
        Full names, ``metric.statistic``.
    """
    specs, found = statistic_specs(), dict[str, None]()
    for name in (limit.statistic for limit in policy.limits if limit.statistic in specs):
        metric = name.partition(".")[0]
        needed = "embedder" in build_metric(metric, policy.settings.get(metric)).required_inputs
        if specs[name].embedded or needed:
            found[name] = None
    return tuple(found)


def resolve_policy(policy: Policy) -> dict[str, Any]:
    """Return everything that decides about a table, in plain values.

    Args:
        policy: The policy.

    Returns:
        ``limits``, the ``settings`` of each limited metric, those of the ``embedder`` (None if no
        limit depends on it), defaults included, and ``min_holders``. Names and texts are left out,
        and so are settings that a table may set, unless the policy sets them.
    """
    embedder: Any = policy.embedder
    if embedder is not False:
        embedder = (
            to_jsonable(asdict(build_embedder(embedder))) if embedded_statistics(policy) else None
        )
    return {
        "limits": sorted(list(_deciding(limit)) for limit in policy.limits),
        "settings": {
            name: _resolved_settings(name, policy.settings.get(name, {})) for name in policy.metrics
        },
        "embedder": embedder,
        "min_holders": policy.min_holders,
    }


def policy_digest(policy: Policy) -> str:
    """Return the SHA-256 of :func:`resolve_policy`.

    Args:
        policy: The policy.

    Returns:
        The digest in hexadecimal.
    """
    return hashlib.sha256(json.dumps(resolve_policy(policy), sort_keys=True).encode()).hexdigest()


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
    fewest = _fewest_subjects(policy)
    if n_subjects >= fewest:
        return ""
    fits = fewest > _FEWEST["small"] <= n_subjects
    small = ", use policy small if you accept its wider limits" if fits else ""
    return (
        f"Train has {n_subjects:,} people, fewer than {fewest:,}: under policy"
        f" {safe_repr(policy.name)} the verdict is"
        f' often "undecided". Fix: use more people{small}, or run `privacy-assets power` to see'
        " which limits a"
        " split of this size can decide."
    )


def build_embedder(given: Mapping[str, Any]) -> EmbedderSettings:
    """Build the settings of the embedder.

    Args:
        given: Settings by name.

    Returns:
        The settings, with defaults for all others.

    Raises:
        ConfigError: A setting is unknown, or a value is out of range.
    """
    known = {setting.name for setting in settings_of(EmbedderSettings)}
    for name in given:
        if name not in known:
            raise ConfigError(
                f"the embedder has no setting {safe_repr(name)}.{did_you_mean(name, known)}"
            )
    return EmbedderSettings(**given)


def _parse(data: Mapping[str, Any]) -> Policy:
    """Parse a policy that a user wrote, with the limits of the shipped policy that it extends."""
    extends = data.get("extends") if isinstance(data, Mapping) else None
    if isinstance(extends, str) and extends in SHIPPED:
        limits = {
            limit.key: limit
            for limit in (*load_policy(extends).limits, *parse_limits(data.get("limits", ())))
        }
        data = {**data, "limits": limits.values()}
    policy = Policy.parse(data)
    for limit in policy.limits:
        _check_statistic(limit)
    _check_settings(policy)
    return _as_shipped(policy)


def _check_statistic(limit: Limit) -> None:
    """Raise ConfigError if the limit is on an unknown statistic, on its wrong side or out of its
    range.
    """
    specs = statistic_specs()
    if limit.statistic not in specs:
        raise ConfigError(
            f"unknown statistic {safe_repr(limit.statistic)}.{did_you_mean(limit.statistic, specs)}"
        )
    spec = specs[limit.statistic]
    if (spec.direction == "lower_is_riskier") != (limit.at_most is None):
        raise ConfigError(
            f"{limit.statistic} takes {'at_most' if limit.at_most is None else 'at_least'}."
        )
    low, high = spec.limits
    if not low <= limit.value <= high:
        outside = (
            f"the limit {limit.value:g} is outside the range of the statistic, {low:g} to {high:g}"
        )
        raise ConfigError(f"{limit.statistic}: {outside}.")


def _check_settings(policy: Policy) -> None:
    for name, given in policy.settings.items():
        build_metric(name, given)
    if policy.embedder is not False:
        build_embedder(policy.embedder)


def _as_shipped(policy: Policy) -> Policy:
    """Return the policy, after checking that it is what ``name`` or ``part_of`` claims. Shipped
    ones extend themselves.

    Raises ConfigError if it is not.
    """
    if policy.part_of is not None and not _fits(policy, policy.part_of, part=True):
        raise ConfigError(f"policy: it is not a part of {policy.part_of!r}. Fix: remove part_of.")
    for name in SHIPPED:
        if policy.name == name:
            if not _fits(policy, name, part=False):
                raise reserved_name(policy.name, name)
            return replace(policy, extends=name)
    return policy


def _fits(policy: Policy, shipped: ShippedName, *, part: bool) -> bool:
    """Return True if the policy is the shipped one, or a part of it."""
    known = _shipped_limits(shipped)
    more = set(policy.metrics) & set(METRICS) - {limit.metric for limit in known}
    meant = {
        _deciding(limit)
        for limit in (*known, *(x for name in more for x in METRICS[name].default_limits))
    }
    own = {_deciding(limit) for limit in policy.limits}
    without_embedder = part and policy.embedder is False
    settings_differ = bool(policy.settings) or (policy.embedder != {} and not without_embedder)
    settings_differ = settings_differ or policy.min_holders != MIN_HOLDERS
    return not settings_differ and (own <= meant if part else own == meant)


def _fewest_subjects(policy: Policy) -> int:
    """Return the number of members below which the verdict is often "undecided"; 0 without a
    shipped policy.

    For a policy that extends a shipped one it is the number of ``small`` if its limits are at least
    as wide.
    """
    if not policy.extends:
        return 0
    wider = _wider_limits()
    wide = [limit.value >= wider[limit.key] for limit in policy.limits if limit.key in wider]
    return _FEWEST["small" if all(wide) else "default"]


def _resolved_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a metric, including defaults."""
    if name not in METRICS:
        return dict(to_jsonable(given))
    decide = {
        setting.name
        for setting in settings_of(METRICS[name])
        if not setting.by_table or setting.name in given
    }
    return {
        key: to_jsonable(value)
        for key, value in build_metric(name, given).settings().items()
        if key in decide
    }


def _shipped_limits(name: ShippedName) -> tuple[Limit, ...]:
    """Return the limits of a shipped policy, without those for external tables."""
    limits = tuple(
        limit for metric in default_metrics() for limit in METRICS[metric].default_limits
    )
    if name == "default":
        return limits
    wider = _wider_limits()
    return tuple(
        replace(limit, at_most=wider[limit.key], source=_WHY_SMALL) if limit.key in wider else limit
        for limit in limits
    )


def _wider_limits() -> dict[str, float]:
    """Return the values of the limits that are wider in the policy ``small``, by key."""
    return {
        key: value
        for metric in METRICS.values()
        for key, value in metric.small_policy_limits.items()
    }


def _deciding(limit: Limit) -> tuple[Any, ...]:
    return limit.statistic, limit.bound, limit.at_least is None, limit.value, limit.min_subjects
