"""Limits on statistics, and how a statistic is held against one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar, Literal

from pydantic import Field

from privacy_assets.errors import ConfigError
from privacy_assets.settings import declared
from privacy_assets.stats.estimates import Estimate
from privacy_assets.stats.results import MetricResult

Verdict = Literal["pass", "fail", "not_assessable"]
Bound = Literal["upper", "lower", "value"]
_DECIDED = 0.9  # of the releases are, with as many subjects as are asked for
_NUMBER = "a finite number, and only one of at_most and at_least"


@declared
class Limit:
    """One limit on one statistic, in the statistic's own units.

    ``statistic`` is ``metric.statistic``. A risk has ``at_most``, a protection score ``at_least``; for a two-sided
    statistic the larger distance from its null value is held against ``at_most``. ``bound`` picks what is held against
    the limit: ``upper`` (the conservative bound of the interval: the evidence must show that the release is safe),
    ``lower`` (the other end: only a significant leak is held against it) or ``value``. What is significantly beyond a
    limit fails; where only the conservative bound is beyond it, nothing is decided. With fewer than ``smallest_n``
    subjects the limit is not assessable, and so does not pass. ``advice`` are the policy author's own words on what to
    do; what can be done in general stands in :mod:`privacy_assets.report.advice`.
    """

    part: ClassVar[str] = "limit"

    statistic: str = Field(
        title="METRIC.STATISTIC, for example dcr.member_excess",
        pattern=r"^[^.]*\.[^.]*$",
        description="what is limited",
    )
    at_most: float | None = Field(default=None, title=_NUMBER, description="limit of a risk")
    at_least: float | None = Field(default=None, title=_NUMBER, description="limit of a protection score")
    bound: Bound = Field(default="upper", description="what is held against the limit")
    smallest_n: int = Field(default=30, ge=1, description="subjects that are needed to judge")
    source: str = Field(default="", description="where the number comes from")
    advice: str = Field(default="", description="what to do where the limit is broken")

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            raise ConfigError(f"limit on {self.statistic}: give one number, either at_most or at_least.")

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
        return self.statistic.partition(".")[0]

    @property
    def key(self) -> str:
        """Name of the limit, unique in a policy: the statistic, and the bound when it is not ``upper``."""
        return self.statistic if self.bound == "upper" else f"{self.statistic}.{self.bound}"


@dataclass(frozen=True, slots=True)
class LimitOutcome:
    """A limit, what was measured against it and the verdict."""

    limit: Limit
    status: Verdict
    measured: float
    reason: str
    estimate: Estimate | None

    @property
    def passed(self) -> bool:
        """True only for "pass": missing evidence is a failure."""
        return self.status == "pass"

    def used(self, value: float | None = None) -> float:
        """How much of the way from the null to the limit ``value`` goes, by default what was measured.

        Above 1 beyond the limit; NaN where nothing was measured.
        """
        found = self.measured if value is None else value
        return math.nan if self.estimate is None else _used(self.limit, self.estimate, found)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form printed by the command line and stored in attestations."""
        return {
            "statistic": self.limit.statistic,
            "limit": self.limit.value,
            "bound": self.limit.bound,
            "measured": self.measured if math.isfinite(self.measured) else None,
            "passed": self.passed,
            "status": self.status,
            "reason": self.reason,
            "advice": "" if self.passed else self.limit.advice,
        }


def tally(outcomes: Sequence[LimitOutcome]) -> str:
    """The count that every text gives: ``3 of 7 limits are broken, 1 could not be judged``."""
    total = len(outcomes)
    failed, unjudged = (sum(x.status == status for x in outcomes) for status in ("fail", "not_assessable"))
    if failed:
        rest = f", {unjudged} could not be judged" if unjudged else ""
        return f"{failed} of {total} limits {'is' if failed == 1 else 'are'} broken{rest}"
    if unjudged:
        return f"{unjudged} of {total} limits could not be judged"
    return "the limit holds" if total == 1 else f"all {total} limits hold"


def widening(attempt: int, confidence: float) -> float:
    """How many times as far the conservative bound of an interval lies at ``attempt`` m, from 1, at publishing the same
    data.

    Whoever tries again until a bound holds by chance would publish in the end. So attempt m has the level
    6 (1 - confidence) / (pi^2 m^2), which over all attempts sum up to 1 - confidence; the end moves as that of a normal
    interval does: 1.10 at the first attempt and a confidence of 95 %, 1.36 at the second, 1.84 at the tenth.
    """
    normal = NormalDist()
    return normal.inv_cdf(1 - _tail(attempt, confidence)) / normal.inv_cdf(1 - (1 - confidence) / 2)


def _tail(attempt: int, confidence: float) -> float:
    return 3 * (1 - confidence) / (math.pi * attempt) ** 2


def judge_limit(limit: Limit, result: MetricResult | None, attempt: int = 1) -> LimitOutcome:
    """Hold one limit against the result of its metric (None: the metric did not run, which cannot pass).

    ``attempt`` counts the tables of the same training rows of which statistics were seen, this one included: the
    conservative bound of the interval moves out with it, see :func:`widening`.
    """
    name = limit.statistic.partition(".")[2]
    estimate = next((f for f in result.estimates if f.name == name), None) if result is not None else None
    if estimate is None:
        return LimitOutcome(limit, "not_assessable", math.nan, f"{limit.statistic} was not computed", None)
    lacking = limit.smallest_n - estimate.subjects
    more = f"; {lacking:,} more subjects are needed" if lacking > 0 else ""
    if not estimate.measurable:
        return LimitOutcome(limit, "not_assessable", math.nan, f"{estimate.note or 'not measurable'}{more}", estimate)
    measured, significant = _bound(estimate, limit.bound, attempt), _bound(estimate, "lower", attempt)
    relation, words = "above" if limit.at_most is not None else "below", _bound_words(limit, estimate, attempt)
    beyond = f"{measured:.4g} is {relation} the limit {limit.value:.4g}{words}"
    if estimate.about == "gate" and limit.exceeded_by(measured):
        return LimitOutcome(limit, "not_assessable", measured, f"the gate is underpowered here: {beyond}", estimate)
    if limit.exceeded_by(significant):
        return LimitOutcome(limit, "fail", measured, beyond, estimate)
    if lacking > 0:
        reason = f"too few subjects: {estimate.subjects:,} of {limit.smallest_n:,}{more}"
        return LimitOutcome(limit, "not_assessable", measured, reason, estimate)
    if limit.exceeded_by(measured):
        if limit.bound == "value":
            return LimitOutcome(limit, "fail", measured, beyond, estimate)
        reason = f"undecided: {measured:.4g} is {relation} {limit.value:.4g}{words}{_needed(limit, estimate, attempt)}"
        return LimitOutcome(limit, "not_assessable", measured, reason, estimate)
    known = f" ({estimate.note})" if estimate.note and estimate.low == estimate.high else ""
    reason = f"{measured:.4g} is within the limit {limit.value:.4g}{words}{known}"
    return LimitOutcome(limit, "pass", measured, reason, estimate)


def _bound_words(limit: Limit, estimate: Estimate, attempt: int) -> str:
    """Which number is held against the limit, where it is not the value itself; and at which attempt."""
    again = f" at attempt {attempt} from the same training rows" if attempt > 1 else ""
    if limit.bound == "value" or estimate.low == estimate.high:
        return again
    conservative = limit.bound == "upper"
    widened = conservative and estimate.about == "release"
    level = 1 - 2 * _tail(attempt, estimate.confidence) if widened else estimate.confidence
    side = "upper" if conservative == (estimate.direction != "lower_is_riskier") else "lower"
    distance = f" of the distance from {estimate.null:.4g}" if estimate.direction == "two_sided" else ""
    return f"{again} ({side} {100 * level:.3g} % bound{distance})"


def _used(limit: Limit, estimate: Estimate, measured: float) -> float:
    """How much of the way from the null to the limit ``measured`` goes."""
    start = estimate.null if estimate.direction != "two_sided" and math.isfinite(estimate.null) else 0.0
    if limit.value != start:
        return (measured - start) / (limit.value - start)
    return math.inf if limit.exceeded_by(measured) else 0.0


def _needed(limit: Limit, estimate: Estimate, attempt: int) -> str:
    """How many more subjects give a decision with a probability of 90 %, where the interval says neither.

    Intervals shrink with the root of the number of subjects. A release whose statistic is not beyond its null for sure
    is taken to leak nothing, another one to leak what it shows.
    """
    value, near, far = (_bound(estimate, bound, attempt) for bound in ("value", "lower", "upper"))
    null = 0.0 if estimate.direction == "two_sided" else estimate.null
    leaks = near < null if limit.at_most is None else near > null
    truth, normal = value if leaks else null, NormalDist()
    deviation = abs(far - value) / normal.inv_cdf(1 - _tail(attempt, estimate.confidence))
    shown = abs(value - near) if limit.exceeded_by(truth) else abs(far - value)
    apart = abs(limit.value - truth)
    if not (math.isfinite(truth) and apart > 0):
        return ""
    more = estimate.subjects * (((shown + normal.inv_cdf(_DECIDED) * deviation) / apart) ** 2 - 1)
    if more <= 0:
        return f"; {_DECIDED:.0%} of such releases are decided"
    unit = 10 ** max(math.floor(math.log10(more)) - 1, 0)
    return f"; about {unit * math.ceil(more / unit):,} more subjects decide it with {_DECIDED:.0%}"


def _bound(estimate: Estimate, bound: Bound, attempt: int) -> float:
    """The end of the interval that ``bound`` names; for two-sided statistics its distance from the null."""
    far = widening(attempt, estimate.confidence) if estimate.about == "release" else 1.0
    if estimate.direction == "two_sided":
        up = estimate.value - estimate.null + far * (estimate.high - estimate.value)
        down = estimate.null - estimate.value + far * (estimate.value - estimate.low)
        if bound == "value":
            return abs(estimate.value - estimate.null)
        return max(up, down) if bound == "upper" else max(estimate.low - estimate.null, estimate.null - estimate.high)
    riskier = estimate.direction == "higher_is_riskier"
    conservative, other = (estimate.high, estimate.low) if riskier else (estimate.low, estimate.high)
    return {"upper": estimate.value + far * (conservative - estimate.value), "lower": other, "value": estimate.value}[
        bound
    ]
