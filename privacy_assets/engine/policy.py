"""The policy: limits on figures, and the judgement of results against them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from privacy_assets.engine.results import MetricResult
from privacy_assets.engine.settings import Tuple, declared
from privacy_assets.errors import ConfigError, did_you_mean, door, shown
from privacy_assets.files import is_path, not_a_file
from privacy_assets.objects import location
from privacy_assets.stats.estimates import Figure
from privacy_assets.strict_yaml import load_yaml

Verdict = Literal["pass", "fail", "not_assessable"]
Bound = Literal["upper", "lower", "value"]
_DEFAULT = "default"


_NUMBER = "a finite number, and only one of at_most and at_least"


@declared
class Limit:
    """One limit on one figure, in the figure's own units.

    ``figure`` is ``metric.figure``. A risk has ``at_most``, a protection score ``at_least``; for a two-sided figure the
    larger distance from its null value is held against ``at_most``. ``bound`` picks what is held against the limit:
    ``upper`` (the cautious end of the interval: the evidence must show that the release is safe), ``lower`` (the other
    end: only a demonstrated leak fails) or ``value``. With fewer than ``smallest_n`` subjects the limit is not
    assessable, and so does not pass. ``advice`` are the policy author's own words on what to do; what can be done in
    general stands in :mod:`privacy_assets.report.recourse`.
    """

    part: ClassVar[str] = "limit"

    figure: str = Field(
        title="METRIC.FIGURE, for example dcr.member_excess", pattern=r"^[^.]*\.[^.]*$", description="what is limited"
    )
    at_most: float | None = Field(default=None, title=_NUMBER, description="limit of a risk")
    at_least: float | None = Field(default=None, title=_NUMBER, description="limit of a protection score")
    bound: Bound = Field(default="upper", description="what is held against the limit")
    smallest_n: int = Field(default=30, ge=1, description="subjects that are needed to judge")
    source: str = Field(default="", description="where the number comes from")
    advice: str = Field(default="", description="what to do where the limit is broken")

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            raise ConfigError(f"limit on {self.figure}: give one number, either at_most or at_least.")

    @property
    def value(self) -> float:
        """The limit itself, whichever side it is on."""
        return float(self.at_least if self.at_most is None else self.at_most)  # type: ignore[arg-type]

    def exceeded_by(self, measured: float) -> bool:
        """True when ``measured`` breaks the limit; NaN does."""
        return not (measured <= self.value if self.at_most is not None else measured >= self.value)

    @property
    def metric(self) -> str:
        """Name of the metric that this limit needs."""
        return self.figure.partition(".")[0]

    @property
    def key(self) -> str:
        """Name of the limit, unique in a policy: the figure, and the bound when it is not ``upper``."""
        return self.figure if self.bound == "upper" else f"{self.figure}.{self.bound}"


@dataclass(frozen=True, slots=True)
class LimitOutcome:
    """A limit, what was measured against it and the verdict."""

    limit: Limit
    status: Verdict
    measured: float
    reason: str
    figure: Figure | None

    @property
    def passed(self) -> bool:
        """True only for "pass": missing evidence is a failure."""
        return self.status == "pass"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form printed by the command line and stored in attestations."""
        return {
            "figure": self.limit.figure,
            "limit": self.limit.value,
            "bound": self.limit.bound,
            "measured": self.measured if math.isfinite(self.measured) else None,
            "passed": self.passed,
            "status": self.status,
            "reason": self.reason,
            "advice": "" if self.passed else self.limit.advice,
        }


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
    """A named list of limits, one per (figure, bound). An empty policy is an error: it would publish anything."""

    part: ClassVar[str] = "policy"

    limits: Annotated[tuple[Limit, ...], Tuple] = Field(title="a list of limits", description="one a figure and bound")
    name: str = Field(default="custom", description="for the report")
    extends: bool = Field(default=False, description="the limits of metrics for tables that were brought join it")

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
        from privacy_assets.engine.registry import METRICS, default_metrics

        names = list(dict.fromkeys(metrics)) if metrics is not None else default_metrics()
        whole = all(name in names for name in default_metrics() if METRICS[name].default_limits)
        limits = tuple(limit for name in names for limit in METRICS[name].default_limits)
        return cls(limits, _DEFAULT if whole else f"{_DEFAULT}, of {' and '.join(names)} only")

    @classmethod
    @door
    def from_dict(cls, data: Mapping[str, Any], *, source: str = "policy") -> Policy:
        """Build a policy from ``{"name", "limits": [{"figure", "at_most", ...}], "extends": "default"}``.

        With ``extends: default`` the given limits replace or join the default ones; otherwise they stand alone. The
        name ``default`` is that of the default policy only. ConfigError for a limit outside of the range of its figure,
        and for one that is given twice.
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
        if extends is not None and not (isinstance(extends, str) and extends == "default"):
            raise ConfigError(f"{source}: 'extends' can only be 'default'.")
        given = [_limit(entry, source) for entry in entries]
        _check_once(given, source)
        base = cls.default().limits if extends else ()
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
        """The policy; ConfigError when it bears the name of the default policy, and is another one."""
        name = self.name.strip().casefold()
        if name != _DEFAULT and not name.startswith(f"{_DEFAULT}, of "):
            return self
        from privacy_assets.engine.registry import METRICS

        meant = [limit for metric in self.metrics if metric in METRICS for limit in METRICS[metric].default_limits]
        if name == _DEFAULT:
            meant += type(self).default().limits
        if set(map(_deciding, meant)) != set(map(_deciding, self.limits)):
            fix = "Fix: give it a name of its own; 'extends: default' says what it is built on"
            raise ConfigError(f"{source}: the policy names itself {_DEFAULT!r} and differs from it. {fix}.")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Inverse of :meth:`from_dict`."""
        rows = [{key: x for key, x in asdict(limit).items() if x not in (None, "")} for limit in self.limits]
        return {"name": self.name, "limits": rows}

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that the limits need, in order of first use."""
        return tuple(dict.fromkeys(limit.metric for limit in self.limits))

    def digest(self) -> str:
        """SHA-256 over what decides: figure, bound, limit and smallest n of each limit (not names or texts)."""
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


def widening(attempt: int, confidence: float) -> float:
    """How many times as far the cautious end of an interval lies at ``attempt`` m, from 1, at publishing the same data.

    Whoever tries again until a bound holds by chance would publish in the end. So attempt m has the level
    6 (1 - confidence) / (pi^2 m^2), which over all attempts sum up to 1 - confidence; the end moves as that of a normal
    interval does: 1.10 at the first attempt and a confidence of 95 %, 1.36 at the second, 1.84 at the tenth.
    """
    normal, level = NormalDist(), 1 - confidence
    return normal.inv_cdf(1 - 3 * level / (math.pi * attempt) ** 2) / normal.inv_cdf(1 - level / 2)


def judge_limit(limit: Limit, result: MetricResult | None, attempt: int = 1) -> LimitOutcome:
    """Hold one limit against the result of its metric (None: the metric did not run, which cannot pass).

    ``attempt`` counts the tables of the same training rows of which figures were seen, this one included: the cautious
    end of the interval moves out with it, see :func:`widening`.
    """
    name = limit.figure.partition(".")[2]
    figure = next((f for f in result.figures if f.name == name), None) if result is not None else None
    if figure is None:
        return LimitOutcome(limit, "not_assessable", math.nan, f"{limit.figure} was not computed", None)
    if not figure.measurable:
        return LimitOutcome(limit, "not_assessable", math.nan, figure.note or "not measurable", figure)
    measured, demonstrated = _bound(figure, limit.bound, attempt), _bound(figure, "lower", attempt)
    relation = "above" if limit.at_most is not None else "below"
    broken = f"{measured:.4g} is {relation} the limit {limit.value:.4g}{_at(attempt)}"
    if figure.about == "gate" and limit.exceeded_by(measured):
        return LimitOutcome(limit, "not_assessable", measured, f"the gate is blind here: {broken}", figure)
    if limit.exceeded_by(demonstrated):
        return LimitOutcome(limit, "fail", measured, broken, figure)
    if figure.subjects < limit.smallest_n:
        reason = f"too few rows to judge: {figure.subjects} subjects, {limit.smallest_n} needed"
        return LimitOutcome(limit, "not_assessable", measured, reason, figure)
    if limit.bound == "upper" and math.isfinite(figure.resolution) and limit.exceeded_by(figure.resolution):
        reason = f"blind: a leak-free release of these sizes can show {figure.resolution:.4g}"
        return LimitOutcome(limit, "not_assessable", measured, reason, figure)
    if limit.exceeded_by(measured):
        return LimitOutcome(limit, "fail", measured, broken, figure)
    known = f" ({figure.note})" if figure.note and figure.low == figure.high else ""
    reason = f"{measured:.4g} holds the limit {limit.value:.4g}{_at(attempt)}{known}"
    return LimitOutcome(limit, "pass", measured, reason, figure)


def _at(attempt: int) -> str:
    return f" at attempt {attempt} from the same training rows" if attempt > 1 else ""


def _bound(figure: Figure, bound: Bound, attempt: int) -> float:
    """The end of the interval that ``bound`` names; for two-sided figures its distance from the null."""
    far = widening(attempt, figure.confidence) if figure.about == "release" else 1.0
    if figure.direction == "two_sided":
        up = figure.value - figure.null + far * (figure.high - figure.value)
        down = figure.null - figure.value + far * (figure.value - figure.low)
        if bound == "value":
            return abs(figure.value - figure.null)
        return max(up, down) if bound == "upper" else max(figure.low - figure.null, figure.null - figure.high)
    riskier = figure.direction == "higher_is_riskier"
    cautious, other = (figure.high, figure.low) if riskier else (figure.low, figure.high)
    return {"upper": figure.value + far * (cautious - figure.value), "lower": other, "value": figure.value}[bound]


def _deciding(limit: Limit) -> tuple[Any, ...]:
    return limit.figure, limit.bound, limit.at_least is None, limit.value, limit.smallest_n


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
        raise ConfigError(f"{source}: each limit is a mapping with at least 'figure' and 'at_most'.")
    for key in entry:
        if key not in names:
            raise ConfigError(f"{source}: unknown key {shown(key)} in a limit.{did_you_mean(key, names)}")
    try:
        limit = Limit(**entry)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error} It is the limit on {shown(entry.get('figure'))}.") from None
    from privacy_assets.engine.registry import figure_specs

    specs = figure_specs()
    if limit.figure not in specs:
        raise ConfigError(f"{source}: unknown figure {shown(limit.figure)}.{did_you_mean(limit.figure, specs)}")
    if (specs[limit.figure].direction == "lower_is_riskier") != (limit.at_most is None):
        side = "at_least" if limit.at_most is not None else "at_most"
        raise ConfigError(f"{source}: {limit.figure} takes {side}.")
    low, high = specs[limit.figure].limits
    if not low <= limit.value <= high:
        outside = f"{limit.value:g} lies outside of its range, {low:g} to {high:g}"
        raise ConfigError(f"{source}: the limit on {limit.figure}, {outside}.")
    return limit
