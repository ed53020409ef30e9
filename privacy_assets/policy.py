"""Policies: limits on statistics, and the evaluation of results.

This module knows no metric. The shipped policies, and the checks of statistics and settings, are in
:mod:`privacy_assets.metrics.policies`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field

from privacy_assets.errors import ConfigError, did_you_mean, safe_repr
from privacy_assets.infra.settings import Dict, declared
from privacy_assets.stats.estimates import Estimate, MetricResult, decimal, to_jsonable

Status = Literal["pass", "fail", "undecided"]
Bound = Literal["conservative", "proven", "value"]
ShippedName = Literal["default", "small"]
SHIPPED: tuple[ShippedName, ...] = get_args(ShippedName)
WORST_FIRST: tuple[Status, ...] = ("fail", "undecided", "pass")
# Fields of a policy by their key in a policy file.
_FIELDS = {
    "name": "name",
    "limits": "limits",
    "extends": "extends",
    "metrics": "settings",
    "embedder": "embedder",
    "part_of": "part_of",
    "min_holders": "min_holders",
}
MIN_HOLDERS = 5
# A limit that would have found only leaks above this multiple of its tolerance gives no evidence.
WEAK_MULTIPLE = 12
_LEAST_TOLERANCE = 0.01  # tolerance of a limit of 0, for this multiple
_ON_A_COPY = "no evidence: on this table, even a copy of train stays within this limit"
_NOT_SHOWN = "no limit on copies was shown to fail on a verbatim copy of train"
# start of the note of a statistic that measures only this difference
DIFFER = "train and holdout differ"
# Part of the note of a statistic that more people hardly decide, because single rows are not rare.
NARROW = "of the rows are in the table by chance"
# largest number of additional people that is suggested, in multiples of the present number
_MOST_TIMES = 10
_DECIDED = 0.9  # targeted share of releases that are decided with the suggested number of people
_FOUND = 0.95  # probability with which the smallest stated leak would have been found
_NUMBER = "a finite number, and only one of at_most and at_least"


@declared
class Limit:
    """A limit on a statistic, in the statistic's unit. Exactly one of ``at_most`` and ``at_least``
    is set.

    The release fails if a leak beyond the limit is proven: the whole interval is beyond it. With
    ``bound: conservative``, the limit is undecided if only a part of the interval is beyond it;
    with ``bound: proven``, it then holds. Limits on statistics about the gate never fail.

    Attributes:
        statistic: ``metric.statistic``.
        at_most: Maximum of a risk, or of the distance of a two-sided statistic from its null.
        at_least: Minimum of a protection score.
        bound: What is compared with the limit. ``conservative``: the riskier end of the interval,
            so that the evidence must show that the release is safe. ``proven``: the other end, so
            that only a proven leak fails. ``value``: the estimate, which fails if it exceeds the
            limit.
        min_subjects: Minimum number of subjects. With fewer, the limit is undecided unless a leak
            beyond it is significant.
        source: Origin of the number.
        advice: The policy author's advice if the limit is exceeded. General advice is in
            :mod:`privacy_assets.report.advice`.

    Raises:
        ConfigError: If both or neither of ``at_most`` and ``at_least`` are set.
    """

    part: ClassVar[str] = "limit"

    statistic: str = Field(
        title="METRIC.STATISTIC, for example dcr.member_excess", pattern=r"^[^.]*\.[^.]*$"
    )
    at_most: float | None = Field(default=None, title=_NUMBER)
    at_least: float | None = Field(default=None, title=_NUMBER)
    bound: Bound = "conservative"
    min_subjects: int = Field(default=30, ge=1)
    source: str = ""
    advice: str = ""

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            raise ConfigError(
                f"limit on {self.statistic}: expected either at_most or at_least. Fix: set"
                " exactly one of them."
            )

    @property
    def value(self) -> float:
        """The number: ``at_most`` or ``at_least``."""
        if self.at_most is not None:
            return float(self.at_most)
        return float(self.at_least)  # type: ignore[arg-type]

    def exceeded_by(self, measured: float) -> bool:
        """Return True if a number is beyond the limit.

        Args:
            measured: Number in the statistic's unit. NaN is beyond every limit.
        """
        if self.at_most is not None:
            return not measured <= self.value
        return not measured >= self.value

    @property
    def metric(self) -> str:
        """Name of the limited metric."""
        return self.statistic.partition(".")[0]

    @property
    def key(self) -> str:
        """Name of the limit, unique in a policy: the statistic, then "proven" or "value" for these
        bounds.
        """
        if self.bound == "conservative":
            return self.statistic
        return f"{self.statistic}.{self.bound}"


def parse_limits(entries: Any) -> tuple[Limit, ...]:
    """Parse the limits of a policy. This is the only parser of limits.

    Args:
        entries: Limits, or mappings of the fields of a limit.

    Returns:
        The limits in order.

    Raises:
        ConfigError: An entry is invalid, or two limits have the same statistic and bound.
    """
    if isinstance(entries, str | bytes | Mapping) or not isinstance(entries, Iterable):
        raise ConfigError("policy: limits must be a list of mappings.")
    limits: dict[str, Limit] = {}
    for entry in entries:
        limit = entry
        if not isinstance(limit, Limit):
            limit = _parse_limit(entry)
        if limit.key in limits:
            raise ConfigError(f"policy: {limit.key} is limited twice. Fix: remove one limit.")
        limits[limit.key] = limit
    return tuple(limits.values())


def _parse_limit(entry: Any) -> Limit:
    if not isinstance(entry, Mapping) or not all(isinstance(key, str) for key in entry):
        raise ConfigError(
            "policy: each limit is a mapping with at least 'statistic' and 'at_most'."
        )
    try:
        return Limit(**entry)
    except ConfigError as error:
        problem = str(error)
    raise ConfigError(f"policy: {problem} It is the limit on {safe_repr(entry.get('statistic'))}.")


class LimitInterval(NamedTuple):
    """Interval of a statistic at the confidence level that a limit uses.

    Attributes:
        low: Lower end, in the unit of the statistic.
        high: Upper end.
        level: Confidence level of the interval, two-sided.
    """

    low: float
    high: float
    level: float


@dataclass(frozen=True, slots=True)
class LimitOutcome:
    """Result of evaluating a limit.

    Attributes:
        limit: The limit.
        status: Verdict on the limit.
        compared: Number compared with the limit; NaN: not measured.
        reason: Explanation for readers.
        estimate: The statistic, or None if it was not computed.
        can_fail: Whether the limit fails for a verbatim copy of train. None: the statistic does not
            measure copies, or no copy was measured. False: the limit gives no
            evidence.
        interval: Interval of the statistic at the confidence level of the limit. None: not
            measured.
        people_factor: Number of people, as a multiple of the present number, with which the limit
            would usually be decided: at most eleven. NaN: it is decided, or the number is not
            known.
    """

    limit: Limit
    status: Status
    compared: float
    reason: str
    estimate: Estimate | None
    can_fail: bool | None = None
    interval: LimitInterval | None = None
    people_factor: float = math.nan

    @property
    def passed(self) -> bool:
        """True only for status "pass", so missing evidence does not pass."""
        return self.status == "pass"

    @property
    def by_rule(self) -> bool:
        """True if the limit holds because the threshold rule fixes the statistic. It does not count
        as evidence.
        """
        return self.passed and self.estimate is not None and self.estimate.by_rule

    @property
    def blind(self) -> bool:
        """True if the release is within the limit, but this gives no evidence.

        Either a verbatim copy of train is within the limit, too, or only leaks far above the
        tolerance would have been found (:attr:`is_weak`).
        """
        if self.estimate is None or self.by_rule or self.limit.exceeded_by(self.compared):
            return False
        return self.can_fail is False or self.is_weak

    @property
    def has_too_few_people(self) -> bool:
        """True if the statistic was computed on fewer people than the limit requires."""
        return self.estimate is not None and self.estimate.subjects < self.limit.min_subjects

    @property
    def proven(self) -> float:
        """Size of the leak that is proven, as a distance from the value without a leak. 0: none."""
        if self.estimate is None or not self.estimate.measurable:
            return 0.0
        proven_end = _bound(self.estimate, "proven", 1)
        return max(_signed_distance(self.limit, self.estimate, proven_end), 0.0)

    @property
    def tolerance(self) -> float:
        """Distance of the limit from the value without a leak, in the unit of the statistic. NaN:
        not computed.
        """
        if self.estimate is None:
            return math.nan
        return _signed_distance(self.limit, self.estimate, self.limit.value)

    @property
    def smallest_leak(self) -> float:
        """Smallest leak that the limit would have found, as a distance from the value without a
        leak.

        With a conservative bound, no leak beyond the limit passes. Otherwise a leak must exceed the
        limit by the minimum detectable effect, or by the width of the interval if the metric does
        not state this effect. The effect describes a release without a leak. The number of people
        limits the precision of a share, however: a leak is found only if it exceeds the limit by
        the binomial error of its own size. NaN: not computed.
        """
        estimate = self.estimate
        if estimate is None or self.limit.bound == "conservative":
            return self.tolerance
        missed = _signed_distance(self.limit, estimate, estimate.minimum_detectable_effect)
        if not math.isfinite(missed):
            missed = estimate.high - estimate.low
        smallest = self.tolerance + missed
        if (
            not estimate.is_share or smallest == 0
        ):  # 0: an exact limit, which fails for a single case
            return smallest
        return max(smallest, _smallest_share(estimate, self.tolerance))

    @property
    def is_weak(self) -> bool:
        """True if the limit would have found only leaks above ``WEAK_MULTIPLE`` times its
        tolerance, or none at all.

        A limit that proves a leak, however small, is not weak.
        """
        estimate = self.estimate
        if estimate is None or not estimate.measurable:
            return False
        if estimate.measures != "release" or self.by_rule:
            return False
        if self.limit.bound == "conservative" or self.proven > 0:
            return False
        if self.smallest_leak > WEAK_MULTIPLE * max(self.tolerance, _LEAST_TOLERANCE):
            return True
        return self.finds_no_leak

    @property
    def finds_no_leak(self) -> bool:
        """True if the smallest leak is larger than possible, or the interval is wider than the
        statistic's range.
        """
        estimate = self.estimate
        if estimate is None or not estimate.is_share:
            return False
        return (
            self.smallest_leak > 1 - estimate.null
            or estimate.high - estimate.low > _range_width(estimate)
        )

    def used(self, value: float | None = None) -> float:
        """Return the position of ``value`` (default: the measured number) between the null (0) and
        the limit (1).

        Values above 1 exceed the limit. NaN if the statistic was not computed.
        """
        if self.estimate is None:
            return math.nan
        if value is None:
            value = self.compared
        return _used(self.limit, self.estimate, value)

    def narrowed(self, factor: float) -> LimitOutcome:
        """Return the outcome of the limit for the same value with a narrower interval, as with more
        people.

        An end at the null stays there, because such intervals are clipped.

        Args:
            factor: Ratio of the distances of both ends from the value, at most 1.
        """
        estimate = self.estimate
        if estimate is None or not estimate.measurable:
            return self
        low, high = estimate.widened(factor)
        if estimate.low == estimate.null:
            low = estimate.low
        if estimate.high == estimate.null:
            high = estimate.high
        narrower = replace(estimate, low=low, high=high)
        again = _judged(self.limit, MetricResult(self.limit.metric, (narrower,)), 1)
        return replace(again, can_fail=self.can_fail, interval=_interval(self.limit, narrower, 1))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form printed by the command line and stored in attestations."""
        measured = None
        if math.isfinite(self.compared):
            measured = self.compared
        interval = None
        if self.interval is not None:
            interval = to_jsonable(self.interval._asdict())
        advice = ""
        if not self.passed:
            advice = self.limit.advice
        return {
            "statistic": self.limit.statistic,
            "limit": self.limit.value,
            "bound": self.limit.bound,
            "measured": measured,
            "passed": self.passed,
            "status": self.status,
            "reason": self.reason,
            "can_fail": self.can_fail,
            "interval": interval,
            "advice": advice,
        }


@dataclass(frozen=True)
class Verdict:
    """Result of evaluating a policy.

    Attributes:
        status: "fail", "undecided" or "pass".
        outcomes: Outcome of each limit.
    """

    status: Status
    outcomes: tuple[LimitOutcome, ...]

    @property
    def not_passed(self) -> tuple[LimitOutcome, ...]:
        """Outcomes of limits that failed or are undecided."""
        return tuple(outcome for outcome in self.outcomes if not outcome.passed)


@declared
class Policy:
    """A named list of limits, with the settings of the metrics and of the embedder that they are
    measured with.

    All settings of metrics belong to the policy, except the few that a table may set
    (:attr:`.Setting.by_table`).

    Attributes:
        limits: Limits, one for each statistic and bound. An empty policy is an error: it would
            publish anything.
        name: Name in reports and attestations. Names that read as that of a shipped policy are
            reserved.
        extends: Shipped policy that this one extends. Limits of metrics for external tables then
            join the policy.
        settings: Settings of metrics by the name of the metric. All others have their defaults.
        embedder: Settings of the embedder. False if embedded distances are left out.
        part_of: Shipped policy of which this is a part: some of its limits, or all of them without
            the embedder.
        min_holders: Minimum number of people that share a published value; see
            :mod:`privacy_assets.tables.threshold_rule`.
    """

    part: ClassVar[str] = "policy"

    limits: Annotated[tuple[Limit, ...], BeforeValidator(parse_limits)] = Field(
        title="a list of limits"
    )
    name: str = Field(
        default="custom",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$",
        title="at most 64 letters, digits, spaces, dots, underscores and hyphens, a letter or"
        " digit first",
    )
    extends: ShippedName | None = None
    settings: Annotated[dict[str, Annotated[dict[str, Any], Dict]], Dict] = Field(
        default_factory=dict, title="a mapping of metrics to their settings"
    )
    embedder: Annotated[dict[str, Any], Dict] | Literal[False] = Field(
        default_factory=dict, title="a mapping of its settings, or false"
    )
    part_of: ShippedName | None = None
    min_holders: int = Field(default=MIN_HOLDERS, ge=2)

    def __post_init__(self) -> None:
        if not self.limits:
            fix = "Fix: add limits, or a metric with limits"
            raise ConfigError(
                f"policy {safe_repr(self.name)} has no limits: every table would pass. {fix}."
            )
        reads_as = re.sub("[ ._-]", "", self.name.casefold())
        if reads_as in SHIPPED and (self.name != reads_as or self.part_of is not None):
            raise reserved_name(self.name, reads_as)

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Policy:
        """Build a policy from a mapping.

        Args:
            data: Values of ``name``, ``limits`` (mappings), ``extends``, ``metrics`` (settings by
                the name of the metric), ``embedder``, ``part_of`` and ``min_holders``, as
                :meth:`to_dict` returns them.

        Returns:
            The policy. Its name, statistics and settings are not compared with the known ones.

        Raises:
            ConfigError: A key is unknown, or a value has another type or is out of bounds.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(
                f"policy: expected a mapping with 'limits', not {type(data).__name__}."
            )
        values: dict[str, Any] = {"limits": ()}
        for key, value in data.items():
            if key not in _FIELDS:
                hint = did_you_mean(key, _FIELDS)
                raise ConfigError(f"policy: unknown key {safe_repr(key)}.{hint}")
            values[_FIELDS[key]] = value
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as a mapping for :meth:`parse`, without ``extends``."""
        data: dict[str, Any] = {"name": self.name}
        if self.part_of is not None:
            data["part_of"] = self.part_of
        data["limits"] = [_limit_fields(limit) for limit in self.limits]
        if self.settings:
            data["metrics"] = to_jsonable(self.settings)
        if self.embedder != {}:
            data["embedder"] = to_jsonable(self.embedder)
        data["min_holders"] = self.min_holders
        return data

    @property
    def title(self) -> str:
        """Name of the policy, with that of the shipped policy of which it is a part."""
        return title_of(self.to_dict())

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that the limits need, in order of first use."""
        return tuple(dict.fromkeys(limit.metric for limit in self.limits))

    def restricted(self, limits: Iterable[Limit]) -> Policy:
        """Return the policy with some of its limits only.

        Args:
            limits: Limits to keep.

        Returns:
            The policy itself if nothing is left out. A shipped policy becomes a part of it.
        """
        remaining = tuple(limits)
        if remaining == self.limits:
            return self
        if self.name in SHIPPED:
            return replace(self, limits=remaining, name="custom", part_of=self.name)
        return replace(self, limits=remaining)

    def judge(self, results: Mapping[str, MetricResult], attempt: int = 1) -> Verdict:
        """Evaluate the policy.

        Args:
            results: Results by name of the metric.
            attempt: Number of this publication attempt, from 1, which sets the confidence level.

        Returns:
            The verdict: "fail" if a limit demonstrably fails, else "undecided" if a limit could not
            be evaluated, else "pass". Limits on copies that the release does not exceed are
            undecided if none of them fails for a verbatim copy of train, or no copy was measured.
            The same holds for the limits of a question if all of them are blind, and for all blind
            limits of a policy if none of its limits fails for a copy.
        """
        judged = []
        for limit in self.limits:
            judged.append(judge_limit(limit, results.get(limit.metric), attempt))
        unanswered = set(_unanswered(judged))
        can_fail = any(outcome.can_fail for outcome in judged)
        outcomes = []
        worst: Status = "pass"
        for outcome in judged:
            is_unanswered = _question_of(outcome) in unanswered
            if is_unanswered or (outcome.blind and not can_fail):
                outcome = _without_evidence(outcome)
            outcomes.append(outcome)
            worst = min(worst, outcome.status, key=WORST_FIRST.index)
        return Verdict(worst, tuple(outcomes))


def _limit_fields(limit: Limit) -> dict[str, Any]:
    """Return the fields of a limit that are not empty, by name."""
    return {key: value for key, value in asdict(limit).items() if value not in (None, "")}


def reserved_name(name: str, shipped: str) -> ConfigError:
    """Return the error for a policy that has the name of a shipped one but differs from it."""
    fix = "Fix: choose another name; 'extends' states which policy it is built on"
    return ConfigError(
        f"policy: the name {name!r} is reserved for the shipped policy {shipped!r}. {fix}."
    )


def title_of(policy: Mapping[str, Any]) -> str:
    """Return the name of a policy for display.

    Args:
        policy: What :meth:`Policy.to_dict` returned.

    Returns:
        The name, for example "hospital" or "custom, a part of default".
    """
    if policy.get("part_of"):
        return f"{policy['name']}, a part of {policy['part_of']}"
    return str(policy["name"])


def tally(outcomes: Sequence[LimitOutcome]) -> str:
    """Return a summary such as ``3 of 7 limits fail``, or of the undecided limits if none
    fails.
    """
    total = len(outcomes)
    n_by_status = Counter(outcome.status for outcome in outcomes)
    n_failed = n_by_status["fail"]
    n_undecided = n_by_status["undecided"]
    n_blind = sum(outcome.blind and outcome.passed for outcome in outcomes)
    if n_failed:
        if n_failed == 1:
            return f"1 of {total} limits fails"
        return f"{n_failed} of {total} limits fail"
    if not n_undecided:
        return _tally_of_pass(outcomes, n_blind)
    without_evidence = ""
    if n_blind == 1:
        without_evidence = ", and 1 holds without evidence"
    elif n_blind:
        without_evidence = f", and {n_blind} hold without evidence"
    if n_undecided == 1:
        return f"1 of {total} limits is undecided{without_evidence}"
    return f"{n_undecided} of {total} limits are undecided{without_evidence}"


def _tally_of_pass(outcomes: Sequence[LimitOutcome], n_blind: int) -> str:
    """Return the summary of limits that all hold, ``n_blind`` of them without evidence."""
    total = len(outcomes)
    n_by_rule = sum(outcome.by_rule for outcome in outcomes)
    n_with_evidence = total - n_by_rule - n_blind
    if n_with_evidence == total:
        if total == 1:
            return "the limit holds"
        return f"all {total} limits hold"
    counts = []
    if n_with_evidence:
        counts.append(f"{n_with_evidence} with evidence")
    if n_by_rule:
        counts.append(f"{n_by_rule} by the threshold rule")
    if n_blind:
        counts.append(f"{n_blind} without evidence")
    holds = "1 limit holds" if total == 1 else f"{total} limits hold"
    return f"{holds}: {', '.join(counts)}"


def widening(attempt: int, confidence: float) -> float:
    """Return the factor by which the conservative bound moves away from the estimate at publication
    attempt m >= 1.

    Without it, repeated attempts would eventually pass by chance. Attempt m has level 6 (1 -
    confidence) / (pi^2 m^2); these levels sum to 1 - confidence over all attempts. The factor
    assumes a normal interval: at 95 % confidence 1.10 for the first attempt, 1.36 for the second,
    1.84 for the tenth.
    """
    normal = NormalDist()
    return normal.inv_cdf(1 - _tail(attempt, confidence)) / normal.inv_cdf(1 - (1 - confidence) / 2)


def _tail(attempt: int, confidence: float) -> float:
    return 3 * (1 - confidence) / (math.pi * attempt) ** 2


def _question_of(outcome: LimitOutcome) -> str:
    if outcome.estimate is None:
        return ""
    return outcome.estimate.question


def _unanswered(outcomes: Sequence[LimitOutcome]) -> Iterator[str]:
    """Yield the questions without evidence: all limits are blind, or no limit on copies fails for a
    copy of train.
    """
    by_question: dict[str, list[LimitOutcome]] = {}
    for outcome in outcomes:
        by_question.setdefault(_question_of(outcome), []).append(outcome)
    for question, of_question in by_question.items():
        has_evidence = not all(outcome.blind for outcome in of_question)
        if question == "copies" and not any(outcome.can_fail for outcome in of_question):
            has_evidence = False
        if question and not has_evidence:
            yield question


def _without_evidence(outcome: LimitOutcome) -> LimitOutcome:
    """Return the outcome, undecided if it passed."""
    if not outcome.passed:
        return outcome
    reason = outcome.reason
    if not outcome.blind:
        reason = f"{reason}; {_NOT_SHOWN}"
    factor = _factor_for_evidence(outcome)
    return replace(outcome, status="undecided", reason=reason, people_factor=factor)


def judge_limit(limit: Limit, result: MetricResult | None, attempt: int = 1) -> LimitOutcome:
    """Evaluate a limit. Every verdict is computed here.

    Args:
        limit: Limit.
        result: Result of the limit's metric. None: the metric did not run, so the limit is
            undecided.
        attempt: Number of tables since the last release whose statistics have been computed,
            including this one. It moves the conservative bound, see :func:`widening`.

    Returns:
        The outcome. Missing evidence is "undecided".
    """
    outcome = _judged(limit, result, attempt)
    if outcome.estimate is not None and outcome.estimate.measurable:
        outcome = replace(outcome, interval=_interval(limit, outcome.estimate, attempt))
    if result is not None:
        on_copy = MetricResult(limit.metric, tuple(result.on_copy))
        if _limited_estimate(limit, on_copy) is not None:
            status_of_copy = _judged(limit, on_copy, 1).status
            outcome = replace(outcome, can_fail=status_of_copy == "fail")
    if not outcome.passed or not outcome.blind:
        return outcome
    return replace(outcome, reason=f"{outcome.reason}; {_why_blind(outcome)}")


def _why_blind(outcome: LimitOutcome) -> str:
    """Return why a limit gives no evidence."""
    if outcome.can_fail is False:
        return _ON_A_COPY
    if outcome.finds_no_leak:
        return "no evidence: the attack could not find any leak here"
    smallest = decimal(outcome.smallest_leak)
    return f"no evidence: only a leak of {smallest} or more would have been found"


def _limited_estimate(limit: Limit, result: MetricResult | None) -> Estimate | None:
    """Return the estimate of the limited statistic, or None if it was not computed."""
    if result is None:
        return None
    name = limit.statistic.partition(".")[2]
    for estimate in result.estimates:
        if estimate.name == name:
            return estimate
    return None


def _judged(limit: Limit, result: MetricResult | None, attempt: int) -> LimitOutcome:
    """Return the outcome of a limit, without its interval and its evidence."""
    estimate = _limited_estimate(limit, result)
    if estimate is None:
        reason = f"{limit.statistic} was not computed"
        return LimitOutcome(limit, "undecided", math.nan, reason, None)
    if not estimate.measurable:
        reason = estimate.note or "not measurable"
        factor = _factor_for_minimum(limit, estimate)
        return LimitOutcome(limit, "undecided", math.nan, reason, estimate, people_factor=factor)
    return _judged_estimate(limit, estimate, attempt)


def _judged_estimate(limit: Limit, estimate: Estimate, attempt: int) -> LimitOutcome:
    """Return the outcome of a limit on a measurable estimate."""
    measured = _bound(estimate, limit.bound, attempt)
    significant = _bound(estimate, "proven", attempt)
    is_beyond = limit.exceeded_by(measured)
    if estimate.measures == "evaluation" and is_beyond:
        reason = _too_weak(limit, estimate, measured, attempt)
        return LimitOutcome(limit, "undecided", measured, reason, estimate)
    if limit.exceeded_by(significant):
        number = measured if limit.bound == "value" else significant
        reason = _beyond(limit, estimate, number, attempt)
        if estimate.note:
            reason = f"{reason}; {estimate.note}"
        return LimitOutcome(limit, "fail", measured, reason, estimate)
    if estimate.subjects < limit.min_subjects:
        reason = (
            f"too few people: the attack needs {limit.min_subjects:,}, and the tables have"
            f" {estimate.subjects:,}"
        )
        factor = _factor_for_minimum(limit, estimate)
        return LimitOutcome(limit, "undecided", measured, reason, estimate, people_factor=factor)
    if not is_beyond:
        reason = _within(limit, estimate, measured, attempt)
        return LimitOutcome(limit, "pass", measured, reason, estimate)
    if limit.bound == "value":
        reason = _beyond(limit, estimate, measured, attempt)
        return LimitOutcome(limit, "fail", measured, reason, estimate)
    reason = _not_excluded(limit, estimate, measured, attempt)
    factor = _people_factor(limit, estimate, attempt)
    return LimitOutcome(limit, "undecided", measured, reason, estimate, people_factor=factor)


def _factor_for_minimum(limit: Limit, estimate: Estimate) -> float:
    """Return the multiple of the present number of people that reaches ``min_subjects``. NaN: it is
    reached, or too far away.
    """
    if estimate.subjects >= limit.min_subjects:
        return math.nan
    if estimate.subjects * (_MOST_TIMES + 1) < limit.min_subjects:
        return math.nan
    return limit.min_subjects / estimate.subjects


def size_text(limit: Limit, estimate: Estimate, bound: Bound, number: float) -> str:
    """Describe an end of the interval: "at most 0.1", "at least 0.1", or the number alone if there
    is no interval.

    Args:
        limit: Limit.
        estimate: Statistic.
        bound: Which end, as compared with the limit.
        number: The end.
    """
    distance = ""
    if estimate.direction == "two_sided" and estimate.null:
        distance = f" from {decimal(estimate.null)}"
    if bound == "value" or estimate.low == estimate.high:
        return f"{decimal(number)}{distance}"
    is_upper_end = (bound == "conservative") == (limit.at_most is not None)
    if is_upper_end:
        return f"at most {decimal(number)}{distance}"
    return f"at least {decimal(number)}{distance}"


def _too_weak(limit: Limit, estimate: Estimate, measured: float, attempt: int) -> str:
    """Return the reason of a limit on the evaluation that does not hold."""
    size = size_text(limit, estimate, limit.bound, measured)
    words = _interval_words(limit, estimate, attempt)
    return (
        f"the evaluation is too weak here: {size}, beyond the limit {decimal(limit.value)}{words}"
    )


def _not_excluded(limit: Limit, estimate: Estimate, measured: float, attempt: int) -> str:
    """Return the reason of a limit that only a part of the interval holds."""
    side = "up to" if limit.at_most is not None else "down to"
    words = _interval_words(limit, estimate, attempt)
    why_not = _why_not_more_people(limit, estimate, attempt)
    return (
        f"{side} {decimal(measured)} cannot be excluded, beyond the limit"
        f" {decimal(limit.value)}{words}{why_not}"
    )


def _beyond(limit: Limit, estimate: Estimate, number: float, attempt: int) -> str:
    """Return the reason of a failure."""
    side = "above" if limit.at_most is not None else "below"
    bound: Bound = "value" if limit.bound == "value" else "proven"
    size = size_text(limit, estimate, bound, number)
    proven = ""
    if size.startswith("at "):
        proven = " is proven"
    words = _interval_words(limit, estimate, attempt)
    return f"{size}{proven}, {side} the limit {decimal(limit.value)}{words}"


def _within(limit: Limit, estimate: Estimate, measured: float, attempt: int) -> str:
    """Return the reason of a pass."""
    words = _interval_words(limit, estimate, attempt)
    if limit.bound == "proven" and estimate.low != estimate.high:
        if _signed_distance(limit, estimate, measured) <= 0:
            return f"no leak is proven, limit {decimal(limit.value)}{words}"
        size = size_text(limit, estimate, "proven", measured)
        return f"{size} is proven, within the limit {decimal(limit.value)}{words}"
    size = size_text(limit, estimate, limit.bound, measured)
    note = ""
    if estimate.note and estimate.low == estimate.high:
        note = f" ({estimate.note})"
    return f"{size}, within the limit {decimal(limit.value)}{words}{note}"


def _interval(limit: Limit, estimate: Estimate, attempt: int) -> LimitInterval:
    """Return the interval at the confidence level that decides the limit.

    A leak is proven by the interval of the estimate. Otherwise, a conservative limit uses a wider
    one, which later attempts widen further.
    """
    is_proven = limit.exceeded_by(_bound(estimate, "proven", attempt))
    if limit.bound != "conservative" or estimate.measures != "release" or is_proven:
        return LimitInterval(estimate.low, estimate.high, estimate.confidence)
    low, high = estimate.widened(widening(attempt, estimate.confidence))
    return LimitInterval(low, high, 1 - 2 * _tail(attempt, estimate.confidence))


def _interval_words(limit: Limit, estimate: Estimate, attempt: int) -> str:
    """Return the level of the interval, and the attempt if it is not the first, in brackets; ""
    without an interval.
    """
    parts = []
    if limit.bound != "value" and estimate.low != estimate.high:
        parts.append(f"{100 * _interval(limit, estimate, attempt).level:.3g} % confidence")
    if attempt > 1:
        parts.append(f"at attempt {attempt} since the last release")
    if not parts:
        return ""
    return f" ({', '.join(parts)})"


def _signed_distance(limit: Limit, estimate: Estimate, number: float) -> float:
    """Return how far ``number`` is from the value without a leak, in the direction of a leak.

    The bounds of a two-sided statistic are distances already. NaN if the value without a leak is
    unknown.
    """
    if estimate.direction == "two_sided":
        return number
    if limit.at_most is not None:
        return number - estimate.null
    return estimate.null - number


def _used(limit: Limit, estimate: Estimate, measured: float) -> float:
    """Return the position of ``measured`` between the null (0) and the limit (1)."""
    start = 0.0
    if estimate.direction != "two_sided" and math.isfinite(estimate.null):
        start = estimate.null
    if limit.value != start:
        return (measured - start) / (limit.value - start)
    if limit.exceeded_by(measured):
        return math.inf
    return 0.0


def _why_not_more_people(limit: Limit, estimate: Estimate, attempt: int) -> str:
    """Return why more people would hardly decide the limit, or ""."""
    if NARROW in estimate.note:
        return f"; {estimate.note}"
    if limit.exceeded_by(_bound(estimate, "value", attempt)):
        return "; the value itself is beyond the limit, so that more people will not decide it"
    return ""


def _people_factor(limit: Limit, estimate: Estimate, attempt: int) -> float:
    """Return the multiple of the present number of people that decides the limit with a probability
    of 90 %.

    Assumes that intervals shrink with the square root of the number of people. The true value is
    the estimate if it is significantly beyond the null, and otherwise unknown between both. NaN if
    more people would hardly help, if the additional numbers for both ends differ by more than a
    factor of 2, or if they are above ten times the present one.
    """
    if _why_not_more_people(limit, estimate, attempt):
        return math.nan
    value = _bound(estimate, "value", attempt)
    null = estimate.null
    if estimate.direction == "two_sided":
        null = 0.0
    near = _bound(estimate, "proven", attempt)
    is_leak = near > null
    if limit.at_most is None:
        is_leak = near < null
    truths = [value]
    if not is_leak:
        truths.append(null)
    additional = [_people_factor_if(truth, limit, estimate, attempt) - 1 for truth in truths]
    fewest = min(additional)
    most = max(additional)
    if not 0 < most <= min(2 * fewest, _MOST_TIMES):
        return math.nan
    return 1 + most


def _people_factor_if(truth: float, limit: Limit, estimate: Estimate, attempt: int) -> float:
    """Return the multiple of the present number of people for a decision if ``truth`` is the true
    value.

    Infinite if no number decides.
    """
    value = _bound(estimate, "value", attempt)
    near = _bound(estimate, "proven", attempt)
    far = _bound(estimate, "conservative", attempt)
    distance = abs(limit.value - truth)
    if not (math.isfinite(truth) and distance > 0):
        return math.inf
    normal = NormalDist()
    deviation = abs(far - value) / normal.inv_cdf(1 - _tail(attempt, estimate.confidence))
    half_width = abs(far - value)
    if limit.exceeded_by(truth):
        half_width = abs(value - near)
    return ((half_width + normal.inv_cdf(_DECIDED) * deviation) / distance) ** 2


def _factor_for_evidence(outcome: LimitOutcome) -> float:
    """Return the multiple of the present number of people with which a weak limit would give
    evidence.

    Assumes that intervals shrink with the square root of the number of people. NaN if the limit
    lacks evidence for another reason, or no number is known.
    """
    estimate = outcome.estimate
    if estimate is None or not outcome.is_weak or outcome.can_fail is False:
        return math.nan
    largest_leak = WEAK_MULTIPLE * max(outcome.tolerance, _LEAST_TOLERANCE)
    factor_for_width = 1.0
    if estimate.is_share:
        largest_leak = min(largest_leak, 1 - estimate.null)
        factor_for_width = ((estimate.high - estimate.low) / _range_width(estimate)) ** 2
    if not largest_leak > outcome.tolerance:
        return math.nan
    missed = outcome.smallest_leak - outcome.tolerance
    factor = max((missed / (largest_leak - outcome.tolerance)) ** 2, factor_for_width)
    if factor > _MOST_TIMES + 1:
        return math.nan
    return factor


def _smallest_share(estimate: Estimate, tolerance: float) -> float:
    """Return the smallest share that is proven to be above the tolerance with a probability of 95 %
    at best.

    A statistic that also counts people who cannot leak, such as those of the holdout, finds it less
    often. The share p solves p = t + k sqrt(p (1 - p) / n). Here t is the limit, n the number of
    people, and k the sum of the normal quantiles of the confidence level and of the probability.

    Args:
        estimate: A share. Its confidence level counts.
        tolerance: Distance of the limit from the value without a leak.

    Returns:
        The share as a distance from the value without a leak. 0: not known.
    """
    n = estimate.subjects
    limit = estimate.null + tolerance
    if not (0 <= limit < 1 and n > 0 and 0 < estimate.confidence < 1):
        return 0.0
    normal = NormalDist()
    squared = (normal.inv_cdf((1 + estimate.confidence) / 2) + normal.inv_cdf(_FOUND)) ** 2
    half = limit * n + squared / 2
    share = (half + math.sqrt(half**2 - (n + squared) * n * limit**2)) / (n + squared)
    return share - estimate.null


def _range_width(estimate: Estimate) -> float:
    """Return the largest possible width of an interval: 1 for shares, 2 for differences of shares,
    whose null is 0.
    """
    return 2 if estimate.null == 0 else 1


def _bound(estimate: Estimate, bound: Bound, attempt: int) -> float:
    """Return the number that ``bound`` selects; for two-sided statistics, its distance from the
    null.
    """
    factor = 1.0
    if estimate.measures == "release":
        factor = widening(attempt, estimate.confidence)
    low, high = estimate.widened(factor)
    if estimate.direction == "two_sided":
        numbers: dict[Bound, float] = {
            "conservative": max(high - estimate.null, estimate.null - low),
            "proven": max(estimate.low - estimate.null, estimate.null - estimate.high),
            "value": abs(estimate.value - estimate.null),
        }
    elif estimate.direction == "lower_is_riskier":
        numbers = {"conservative": low, "proven": estimate.high, "value": estimate.value}
    else:
        numbers = {"conservative": high, "proven": estimate.low, "value": estimate.value}
    return numbers[bound]
