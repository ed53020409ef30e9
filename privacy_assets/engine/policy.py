"""The policy: limits on figures, and the judgement of results against them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, get_args

from privacy_assets.engine.results import Figure, MetricResult
from privacy_assets.errors import ConfigError, did_you_mean

Verdict = Literal["pass", "fail", "not_assessable"]
Bound = Literal["upper", "lower", "value"]


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit on one figure, in the figure's own units.

    ``figure`` is ``metric.figure``. A risk has ``at_most``, a protection score ``at_least``; for a two-sided figure the
    larger distance from its null value is held against ``at_most``. ``bound`` picks what is held against the limit:
    ``upper`` (the cautious end of the interval: the evidence must show that the release is safe), ``lower`` (the other
    end: only a demonstrated leak fails) or ``value``. With fewer than ``smallest_n`` subjects the limit is not
    assessable, and so does not pass. ``advice`` are the policy author's own words on what to do; what can be done in
    general stands in :mod:`privacy_assets.report.recourse`.
    """

    figure: str
    at_most: float | None = None
    at_least: float | None = None
    bound: Bound = "upper"
    smallest_n: int = 30
    source: str = ""
    advice: str = ""

    def __post_init__(self) -> None:
        if self.bound not in get_args(Bound):
            raise ConfigError(f"Limit on {self.figure}: unknown bound {self.bound!r}; use one of {get_args(Bound)}.")
        given = [x for x in (self.at_most, self.at_least) if x is not None]
        if len(given) != 1 or isinstance(given[0], bool) or not isinstance(given[0], (int, float)):
            raise ConfigError(f"Limit on {self.figure}: give one number, either at_most or at_least.")
        if not math.isfinite(given[0]):
            raise ConfigError(f"Limit on {self.figure}: the limit must be a finite number.")
        if isinstance(self.smallest_n, bool) or not isinstance(self.smallest_n, int) or self.smallest_n < 1:
            raise ConfigError(f"Limit on {self.figure}: smallest_n must be a positive whole number.")
        if self.figure.count(".") != 1:
            raise ConfigError(f"Limit on {self.figure!r}: write METRIC.FIGURE, for example dcr.member_excess.")

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


@dataclass(frozen=True)
class Policy:
    """A named list of limits, one per (figure, bound). An empty policy is an error: it would publish anything."""

    limits: tuple[Limit, ...]
    name: str = "default"
    extends: bool = False  # the default policy: limits of metrics for tables that were brought join it

    def __post_init__(self) -> None:
        if not self.limits:
            fix = "Fix: add limits, or a metric that has some"
            raise ConfigError(f"Policy {self.name!r} has no limits: it would let every table through. {fix}.")
        seen: set[str] = set()
        for limit in self.limits:
            if limit.key in seen:
                raise ConfigError(f"Policy {self.name!r} limits {limit.key} twice.")
            seen.add(limit.key)

    @classmethod
    def default(cls, metrics: Iterable[str] | None = None) -> Policy:
        """Return the default limits of ``metrics`` (all registered metrics that run by default when None).

        The name says so when limits of the default policy are left out: such a verdict is one of a weaker policy.
        """
        from privacy_assets.engine.registry import METRICS, default_metrics

        names = list(dict.fromkeys(metrics)) if metrics is not None else default_metrics()
        whole = all(name in names for name in default_metrics() if METRICS[name].default_limits)
        limits = tuple(limit for name in names for limit in METRICS[name].default_limits)
        return cls(limits, "default" if whole else f"default, of {' and '.join(names)} only")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, source: str = "policy") -> Policy:
        """Build a policy from ``{"name", "limits": [{"figure", "at_most", ...}], "extends": "default"}``.

        With ``extends: default`` the given limits replace or join the default ones; otherwise they stand alone.
        """
        unknown = set(data) - {"name", "limits", "extends"}
        if unknown:
            first = sorted(map(str, unknown))[0]
            raise ConfigError(f"{source}: unknown key {first!r}.{did_you_mean(first, ('name', 'limits', 'extends'))}")
        if not isinstance(data.get("limits", []), list):
            raise ConfigError(f"{source}: 'limits' must be a list of mappings.")
        given = [_limit(entry, source) for entry in data.get("limits", [])]
        if data.get("extends") not in (None, "default"):
            raise ConfigError(f"{source}: 'extends' can only be 'default'.")
        base = cls.default().limits if data.get("extends") else ()
        merged = {limit.key: limit for limit in (*base, *given)}
        return cls(tuple(merged.values()), name=str(data.get("name", "custom")), extends=bool(data.get("extends")))

    @classmethod
    def from_yaml(cls, path: str | Path) -> Policy:
        """Read a policy file; errors name the file."""
        import yaml

        try:
            data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from None
        except (UnicodeDecodeError, yaml.YAMLError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f", line {mark.line + 1}" if mark is not None else ""
            raise ConfigError(f"{path}{line}: cannot be read as YAML ({type(error).__name__}).") from None
        if not isinstance(data, dict):
            raise ConfigError(f"{path}: expected a mapping with 'limits'.")
        return cls.from_dict(data, source=str(path))

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
        rows = sorted((x.figure, x.bound, x.at_least is None, x.value, x.smallest_n) for x in self.limits)
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


def _limit(entry: Any, source: str) -> Limit:
    names = [field.name for field in fields(Limit)]
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{source}: each limit is a mapping with at least 'figure' and 'at_most'.")
    for key in entry:
        if key not in names:
            raise ConfigError(f"{source}: unknown key {key!r} in a limit.{did_you_mean(str(key), names)}")
    if not isinstance(entry.get("figure"), str):
        raise ConfigError(f"{source}: a limit needs 'figure', for example dcr.member_excess.")
    limit = Limit(**entry)
    from privacy_assets.engine.registry import figure_specs

    specs = figure_specs()
    if limit.figure not in specs:
        raise ConfigError(f"{source}: unknown figure {limit.figure!r}.{did_you_mean(limit.figure, specs)}")
    if (specs[limit.figure].direction == "lower_is_riskier") != (limit.at_most is None):
        side = "at_least" if limit.at_most is not None else "at_most"
        raise ConfigError(f"{source}: {limit.figure} takes {side}.")
    return limit
