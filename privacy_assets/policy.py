"""The policy: limits on statistics, and the judgement of results against them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from privacy_assets.errors import ConfigError, did_you_mean, door, shown
from privacy_assets.settings import Tuple, declared
from privacy_assets.stats.limits import Limit, LimitOutcome, Verdict, judge_limit
from privacy_assets.stats.results import MetricResult
from privacy_assets.storage.files import is_path, not_a_file
from privacy_assets.storage.objects import location
from privacy_assets.storage.strict_yaml import load_yaml

_DEFAULT, _SMALL = "default", "small"
# People in train below which a release without any leak is often not assessable under the shipped policies, the holdout
# being six tenths as many. By the command plan, controls aside, 12 of 12 such releases of Adult, UK census and the demo
# pass with 1,500 people under the default policy and 11 with 1,000; under small 7 with 800 and 4 with 600.
_FEWEST = {_DEFAULT: 1_500, _SMALL: 800}
_WHY_SMALL = "tolerated in tables of 800 to 1,500 people, which cannot show less"


@dataclass(frozen=True)
class Judgement:
    """The verdict of a policy over a set of results."""

    verdict: Verdict
    outcomes: tuple[LimitOutcome, ...]

    @property
    def broken(self) -> tuple[LimitOutcome, ...]:
        """Outcomes that did not pass."""
        return tuple(outcome for outcome in self.outcomes if not outcome.passed)


@declared
class Policy:
    """A named list of limits, one per (statistic, bound). An empty policy is an error: it would publish anything."""

    part: ClassVar[str] = "policy"

    limits: Annotated[tuple[Limit, ...], Tuple] = Field(
        title="a list of limits", description="one a statistic and bound"
    )
    name: str = Field(default="custom", description="for the report")
    extends: bool = Field(default=False, description="the limits of metrics for external tables join it")

    def __post_init__(self) -> None:
        if not self.limits:
            fix = "Fix: add limits, or a metric that has some"
            raise ConfigError(f"Policy {shown(self.name)} has no limits: it would let every table through. {fix}.")
        _check_once(self.limits, f"Policy {shown(self.name)}")

    @classmethod
    def default(cls, metrics: Iterable[str] | None = None) -> Policy:
        """Return the default limits of ``metrics`` (all registered metrics that run by default when None).

        The name says so when limits of the default policy are left out: such a verdict is one of a weaker policy.
        """
        from privacy_assets.metrics.registry import METRICS, default_metrics

        names = list(dict.fromkeys(metrics)) if metrics is not None else default_metrics()
        whole = all(name in names for name in default_metrics() if METRICS[name].default_limits)
        limits = tuple(limit for name in names for limit in METRICS[name].default_limits)
        return cls(limits, _DEFAULT if whole else f"{_DEFAULT}, of {' and '.join(names)} only")

    @classmethod
    def small(cls) -> Policy:
        """Return the shipped policy ``small``, for tables of 800 to 1,500 people: the default limits, some of them
        wider.

        Never taken by itself: the owner of the data names it, and every verdict names it too.
        """
        wider = _wider_limits()
        limits = (
            replace(limit, at_most=wider[limit.key], source=_WHY_SMALL) if limit.key in wider else limit
            for limit in cls.default().limits
        )
        return cls(tuple(limits), _SMALL)

    @classmethod
    @door
    def from_dict(cls, data: Mapping[str, Any], *, source: str = "policy") -> Policy:
        """Build a policy from ``{"name", "limits": [{"statistic", "at_most", ...}], "extends": "default"}``.

        With ``extends: default`` (or ``small``) the given limits replace or join those of the shipped policy; otherwise
        they stand alone. The names of shipped policies are theirs only. ConfigError for a limit outside of the range of
        its statistic, and for one that is given twice.
        """
        known = ("name", "limits", "extends")
        if not isinstance(data, Mapping):
            raise ConfigError(f"{source}: expected a mapping with 'limits', not {type(data).__name__}.")
        for key in data:
            if key not in known:
                raise ConfigError(f"{source}: unknown key {shown(key)}.{did_you_mean(key, known)}")
        name, extends, entries = data.get("name", "custom"), data.get("extends"), data.get("limits", [])
        if not isinstance(entries, list):
            raise ConfigError(f"{source}: 'limits' must be a list of mappings.")
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"{source}: 'name' must be a text.")
        if extends is not None and not (isinstance(extends, str) and extends in SHIPPED):
            raise ConfigError(f"{source}: 'extends' can only be {' or '.join(map(repr, SHIPPED))}.")
        given = [_limit(entry, source) for entry in entries]
        _check_once(given, source)
        base = SHIPPED[extends]().limits if extends else ()
        merged = {limit.key: limit for limit in (*base, *given)}
        return cls(tuple(merged.values()), name=name, extends=bool(extends)).checked_name(source)

    @classmethod
    @door
    def from_yaml(cls, path: str | Path) -> Policy:
        """Read a policy file; errors name the file."""
        place = location(path)
        if isinstance(place, Path) and not is_path(place):
            raise ConfigError(f"a text of {len(str(place))} characters is no path of a policy file.")
        wrong = not_a_file(place) if isinstance(place, Path) else "this is a URL, not a file"
        if wrong:
            raise ConfigError(f"{place}: {wrong}. Fix: give the path of a policy file.")
        try:
            text = place.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = "not UTF-8" if isinstance(error, ValueError) else error.strerror
            ConfigError(f"{place}: cannot be read ({reason}).").raise_alone()
        documents = load_yaml(text, str(place))
        if len(documents) != 1 or not isinstance(documents[0], dict):
            raise ConfigError(f"{place}: expected a mapping with 'limits', not {_found(documents)}.")
        return cls.from_dict(documents[0], source=str(place))

    def checked_name(self, source: str) -> Policy:
        """The policy; ConfigError when it bears the name of a shipped policy, and is another one."""
        name = self.name.strip().casefold()
        if name not in SHIPPED and not name.startswith(f"{_DEFAULT}, of "):
            return self
        from privacy_assets.metrics.registry import METRICS

        meant = [limit for metric in self.metrics if metric in METRICS for limit in METRICS[metric].default_limits]
        if name == _DEFAULT:
            meant += type(self).default().limits
        elif name == _SMALL:
            meant = [*type(self).small().limits]
        if set(map(_deciding, meant)) != set(map(_deciding, self.limits)):
            fix = "Fix: give it a name of its own; 'extends' says what it is built on"
            raise ConfigError(f"{source}: the policy names itself {name!r} and differs from it. {fix}.")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Inverse of :meth:`from_dict`."""
        rows = [{key: x for key, x in asdict(limit).items() if x not in (None, "")} for limit in self.limits]
        return {"name": self.name, "limits": rows}

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that the limits need, in order of first use."""
        return tuple(dict.fromkeys(limit.metric for limit in self.limits))

    @property
    def fewest(self) -> int:
        """People in train below which the verdict is often "not assessable"; 0 where it is built on no shipped policy.

        One that is built on a shipped policy needs as many as ``small`` where its limits are as wide.
        """
        if self.name not in SHIPPED and not self.extends:
            return 0
        wider = _wider_limits()
        wide = [limit.value >= wider[limit.key] for limit in self.limits if limit.key in wider]
        return _FEWEST[_SMALL if all(wide) else _DEFAULT]

    def doubt(self, people: int) -> str:
        """What to know where so few ``people`` in train leave the verdict open, and the fix; empty where they do not.

        A rule without a look at the table: the command ``plan`` looks at one.
        """
        if people >= self.fewest:
            return ""
        fits = self.fewest > _FEWEST[_SMALL] <= people
        small = f", name the policy {_SMALL} where its limits are wide enough for you" if fits else ""
        return (
            f"{people:,} people in train are fewer than {self.fewest:,}: under policy {shown(self.name)} the verdict is"
            f' often "not assessable". Fix: give more people{small}, or ask `privacy-assets plan` what a'
            " split of this size can decide."
        )

    def digest(self) -> str:
        """SHA-256 over what decides: statistic, bound, limit and smallest n of each limit (not names or texts)."""
        rows = sorted(_deciding(limit) for limit in self.limits)
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    def judge(self, results: Mapping[str, MetricResult], attempt: int = 1) -> Judgement:
        """Hold every limit against ``results`` (by metric name), at the level of this ``attempt`` at publishing.

        "fail" when any limit is demonstrably broken, else "not_assessable" when any could not be judged, else "pass".
        """
        outcomes = tuple(judge_limit(limit, results.get(limit.metric), attempt) for limit in self.limits)
        statuses = {outcome.status for outcome in outcomes}
        order: tuple[Verdict, ...] = ("fail", "not_assessable", "pass")
        return Judgement(next(status for status in order if status in statuses), outcomes)


SHIPPED: Mapping[str, Callable[[], Policy]] = {_DEFAULT: Policy.default, _SMALL: Policy.small}


def _wider_limits() -> dict[str, float]:
    """By key, the limits that are wider in the policy ``small``."""
    from privacy_assets.metrics.registry import METRICS

    return {key: value for metric in METRICS.values() for key, value in metric.small_limits.items()}


def _deciding(limit: Limit) -> tuple[Any, ...]:
    return limit.statistic, limit.bound, limit.at_least is None, limit.value, limit.smallest_n


def _check_once(limits: Iterable[Limit], source: str) -> None:
    seen: set[str] = set()
    for limit in limits:
        if limit.key in seen:
            raise ConfigError(f"{source}: {limit.key} is limited twice. Fix: keep one of them.")
        seen.add(limit.key)


def _found(documents: list[Any]) -> str:
    if len(documents) > 1:
        return f"{len(documents)} documents"
    kind = type(documents[0]).__name__ if documents else "NoneType"
    return {"list": "a list", "NoneType": "an empty file"}.get(kind, kind)


def _limit(entry: Any, source: str) -> Limit:
    names = [field.name for field in fields(Limit)]
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{source}: each limit is a mapping with at least 'statistic' and 'at_most'.")
    for key in entry:
        if key not in names:
            raise ConfigError(f"{source}: unknown key {shown(key)} in a limit.{did_you_mean(key, names)}")
    try:
        limit = Limit(**entry)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error} It is the limit on {shown(entry.get('statistic'))}.") from None
    from privacy_assets.metrics.registry import statistic_specs

    specs = statistic_specs()
    if limit.statistic not in specs:
        raise ConfigError(
            f"{source}: unknown statistic {shown(limit.statistic)}.{did_you_mean(limit.statistic, specs)}"
        )
    if (specs[limit.statistic].direction == "lower_is_riskier") != (limit.at_most is None):
        side = "at_least" if limit.at_most is not None else "at_most"
        raise ConfigError(f"{source}: {limit.statistic} takes {side}.")
    low, high = specs[limit.statistic].limits
    if not low <= limit.value <= high:
        outside = f"{limit.value:g} lies outside of its range, {low:g} to {high:g}"
        raise ConfigError(f"{source}: the limit on {limit.statistic}, {outside}.")
    return limit
