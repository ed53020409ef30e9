"""Policies: limits on statistics, and the evaluation of results.

This module knows no metric. The shipped policies, and the checks of statistics and settings, are in
:mod:`privacy_assets.metrics.policies`.
"""

from __future__ import annotations

import math
import re
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
_FIELDS = {key: key for key in ("name", "limits", "extends", "embedder", "part_of", "min_holders")}
_FIELDS |= {"metrics": "settings"}
MIN_HOLDERS = 5
# A limit that would have found only leaks above this multiple of its tolerance gives no evidence.
WEAK_MULTIPLE = 12
_LEAST_TOLERANCE = 0.01  # tolerance of a limit of 0, for this multiple
_ON_A_COPY = "no evidence: on this table, even a full copy of train stays within this limit"
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
        title="METRIC.STATISTIC, for example dcr.member_excess",
        pattern=r"^[^.]*\.[^.]*$",
        description="limited statistic",
    )
    at_most: float | None = Field(
        default=None,
        title=_NUMBER,
        description="largest tolerated value, if higher values are riskier",
    )
    at_least: float | None = Field(
        default=None,
        title=_NUMBER,
        description="smallest tolerated value, if lower values are riskier",
    )
    bound: Bound = Field(default="conservative", description="number compared with the limit")
    min_subjects: int = Field(default=30, ge=1, description="minimum number of subjects")
    source: str = Field(default="", description="origin of the number")
    advice: str = Field(default="", description="advice if the limit is broken")

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            raise ConfigError(
                f"limit on {self.statistic}: expected either at_most or at_least. Fix: set"
                " exactly one of them."
            )

    @property
    def value(self) -> float:
        """The number: ``at_most`` or ``at_least``."""
        return float(self.at_least if self.at_most is None else self.at_most)  # type: ignore[arg-type]

    def exceeded_by(self, measured: float) -> bool:
        """Return True if a number is beyond the limit.

        Args:
            measured: Number in the statistic's unit. NaN is beyond every limit.
        """
        return not (measured <= self.value if self.at_most is not None else measured >= self.value)

    @property
    def metric(self) -> str:
        """Name of the limited metric."""
        return self.statistic.partition(".")[0]

    @property
    def key(self) -> str:
        """Name of the limit, unique in a policy: the statistic, then "proven" or "value" for these
        bounds.
        """
        return self.statistic if self.bound == "conservative" else f"{self.statistic}.{self.bound}"


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
        limit = entry if isinstance(entry, Limit) else _parse_limit(entry)
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
        wrong = str(error)
    raise ConfigError(f"policy: {wrong} It is the limit on {safe_repr(entry.get('statistic'))}.")


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
        measured: Number compared with the limit; NaN: not measured.
        reason: Explanation for readers.
        estimate: The statistic, or None if it was not computed.
        can_fail: Whether a verbatim copy of train breaks the limit. None: the statistic does not
            measure copies, or no copy was measured. A limit that cannot fail does not count as
            evidence.
        interval: Interval of the statistic at the confidence level of the limit. None: not
            measured.
        people_factor: Number of people, as a multiple of the present number, with which the limit
            would usually be decided: at most eleven. NaN: it is decided, or the number is not
            known.
    """

    limit: Limit
    status: Status
    measured: float
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
        if self.estimate is None or self.by_rule or self.limit.exceeded_by(self.measured):
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
        return max(
            _signed_distance(self.limit, self.estimate, _bound(self.estimate, "proven", 1)), 0.0
        )

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
        smallest = self.tolerance + (
            missed if math.isfinite(missed) else estimate.high - estimate.low
        )
        if not estimate.is_share or smallest == 0:  # 0: an exact limit, which a single case breaks
            return smallest
        return max(smallest, _smallest_share(estimate, self.tolerance))

    @property
    def is_weak(self) -> bool:
        """True if the limit would have found only leaks above ``WEAK_MULTIPLE`` times its
        tolerance, or none at all.

        A limit that proves a leak, however small, is not weak.
        """
        estimate = self.estimate
        if (
            estimate is None
            or not estimate.measurable
            or estimate.measures != "release"
            or self.by_rule
        ):
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
        found = self.measured if value is None else value
        return math.nan if self.estimate is None else _used(self.limit, self.estimate, found)

    def narrowed(self, factor: float) -> LimitOutcome:
        """Return the outcome of the limit for the same value with a narrower interval, as with more
        people.

        An end at the null stays there, because such intervals are clipped.

        Args:
            factor: Ratio of the distances of both ends from the value, at most 1.
        """
        one = self.estimate
        if one is None or not one.measurable:
            return self
        low, high = one.widened(factor)
        narrower = replace(
            one,
            low=one.low if one.low == one.null else low,
            high=one.high if one.high == one.null else high,
        )
        again = _judged(self.limit, MetricResult(self.limit.metric, (narrower,)), 1)
        return replace(again, can_fail=self.can_fail, interval=_interval(self.limit, narrower, 1))

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
            "can_fail": self.can_fail,
            "interval": None if self.interval is None else to_jsonable(self.interval._asdict()),
            "advice": "" if self.passed else self.limit.advice,
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
    def broken(self) -> tuple[LimitOutcome, ...]:
        """Outcomes of limits that failed or could not be assessed."""
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
        title="a list of limits", description="one for each statistic and bound"
    )
    name: str = Field(
        default="custom",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$",
        title="at most 64 letters, digits, spaces, dots, underscores and hyphens, a letter or"
        " digit first",
        description="name in reports",
    )
    extends: ShippedName | None = Field(
        default=None, description="shipped policy that this one extends"
    )
    settings: Annotated[dict[str, Annotated[dict[str, Any], Dict]], Dict] = Field(
        default_factory=dict,
        title="a mapping of metrics to their settings",
        description="settings of metrics",
    )
    embedder: Annotated[dict[str, Any], Dict] | Literal[False] = Field(
        default_factory=dict,
        title="a mapping of its settings, or false",
        description="settings of the embedder",
    )
    part_of: ShippedName | None = Field(
        default=None, description="shipped policy of which this is a part"
    )
    min_holders: int = Field(
        default=MIN_HOLDERS,
        ge=2,
        description="in a pipeline, each published value belongs to this many people or more",
    )

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
        for key in data:
            if key not in _FIELDS:
                raise ConfigError(
                    f"policy: unknown key {safe_repr(key)}.{did_you_mean(key, _FIELDS)}"
                )
        return cls(**{"limits": (), **{_FIELDS[key]: value for key, value in data.items()}})

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as a mapping for :meth:`parse`, without ``extends``."""
        rows = [
            {key: x for key, x in asdict(limit).items() if x not in (None, "")}
            for limit in self.limits
        ]
        part = {} if self.part_of is None else {"part_of": self.part_of}
        settings = {"metrics": to_jsonable(self.settings)} if self.settings else {}
        embedder = {} if self.embedder == {} else {"embedder": to_jsonable(self.embedder)}
        return {
            "name": self.name,
            **part,
            "limits": rows,
            **settings,
            **embedder,
            "min_holders": self.min_holders,
        }

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
        kept = tuple(limits)
        if kept == self.limits:
            return self
        claim: dict[str, Any] = (
            {"name": "custom", "part_of": self.name} if self.name in SHIPPED else {}
        )
        return replace(self, limits=kept, **claim)

    def judge(self, results: Mapping[str, MetricResult], attempt: int = 1) -> Verdict:
        """Evaluate the policy.

        Args:
            results: Results by name of the metric.
            attempt: Number of this publication attempt, from 1, which sets the confidence level.

        Returns:
            The verdict: "fail" if a limit is demonstrably broken, else "undecided" if a limit could
            not be evaluated, else "pass". Limits on copies that the release does not exceed are
            undecided if a verbatim copy of train breaks none of them, or was not measured. The same
            holds for the limits of a question if all of them are blind, and for all blind limits of
            a policy if a copy breaks none of its limits.
        """
        judged = [judge_limit(limit, results.get(limit.metric), attempt) for limit in self.limits]
        unanswered = set(_unanswered(judged))
        can_fail = any(outcome.can_fail for outcome in judged)
        outcomes = []
        for outcome in judged:
            is_unanswered = _question_of(outcome) in unanswered
            if is_unanswered or (outcome.blind and not can_fail):
                outcome = _without_evidence(outcome)
            outcomes.append(outcome)
        statuses = {outcome.status for outcome in outcomes}
        return Verdict(
            next(status for status in WORST_FIRST if status in statuses), tuple(outcomes)
        )


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
    return (
        f"{policy['name']}, a part of {policy['part_of']}"
        if policy.get("part_of")
        else str(policy["name"])
    )


def tally(outcomes: Sequence[LimitOutcome]) -> str:
    """Return a summary such as ``3 of 7 limits are broken``, or of the undecided limits if none is
    broken.
    """
    total = len(outcomes)
    n_failed = sum(outcome.status == "fail" for outcome in outcomes)
    n_undecided = sum(outcome.status == "undecided" for outcome in outcomes)
    n_by_rule = sum(outcome.by_rule for outcome in outcomes)
    n_blind = sum(outcome.blind and outcome.passed for outcome in outcomes)
    if n_failed:
        return f"{n_failed} of {total} limits {'is' if n_failed == 1 else 'are'} broken"
    if n_undecided:
        without = (
            f", and {n_blind} hold{'s' if n_blind == 1 else ''} without evidence" if n_blind else ""
        )
        if n_undecided == 1:
            return f"1 of {total} limits is undecided{without}"
        return f"{n_undecided} of {total} limits are undecided{without}"
    if not n_by_rule and not n_blind:
        return "the limit holds" if total == 1 else f"all {total} limits hold"
    counts = [
        (total - n_by_rule - n_blind, "with evidence"),
        (n_by_rule, "by the threshold rule"),
        (n_blind, "without evidence"),
    ]
    holds = "1 limit holds" if total == 1 else f"{total} limits hold"
    return f"{holds}: {', '.join(f'{count} {how}' for count, how in counts if count)}"


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
    return "" if outcome.estimate is None else outcome.estimate.question


def _unanswered(outcomes: Sequence[LimitOutcome]) -> Iterator[str]:
    """Yield the questions without evidence: all limits are blind, or no limit on copies breaks on a
    copy of train.
    """
    for question in dict.fromkeys(_question_of(outcome) for outcome in outcomes):
        of_question = [outcome for outcome in outcomes if _question_of(outcome) == question]
        has_evidence = not all(outcome.blind for outcome in of_question)
        if question == "copies" and not any(outcome.can_fail for outcome in of_question):
            has_evidence = False
        if question and not has_evidence:
            yield question


def _without_evidence(outcome: LimitOutcome) -> LimitOutcome:
    """Return the outcome, undecided if it passed."""
    if not outcome.passed:
        return outcome
    reason = outcome.reason if outcome.blind else f"{outcome.reason}; {_NOT_SHOWN}"
    return replace(
        outcome, status="undecided", reason=reason, people_factor=_factor_for_evidence(outcome)
    )


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
    name = limit.statistic.partition(".")[2]
    copy = (
        ()
        if result is None
        else tuple(estimate for estimate in result.on_copy if estimate.name == name)
    )
    if outcome.estimate is not None and outcome.estimate.measurable:
        outcome = replace(outcome, interval=_interval(limit, outcome.estimate, attempt))
    if copy:
        outcome = replace(
            outcome, can_fail=_judged(limit, MetricResult(limit.metric, copy), 1).status == "fail"
        )
    if not outcome.passed or not outcome.blind:
        return outcome
    why = _ON_A_COPY
    if outcome.can_fail is not False and outcome.finds_no_leak:
        why = "no evidence: the attack could not find any leak here"
    elif outcome.can_fail is not False:
        why = (
            f"no evidence: only a leak of {decimal(outcome.smallest_leak)} or more would have"
            " been found"
        )
    return replace(outcome, reason=f"{outcome.reason}; {why}")


def _judged(limit: Limit, result: MetricResult | None, attempt: int) -> LimitOutcome:
    name, found = limit.statistic.partition(".")[2], () if result is None else result.estimates
    estimate = next((estimate for estimate in found if estimate.name == name), None)
    if estimate is None:
        return LimitOutcome(
            limit, "undecided", math.nan, f"{limit.statistic} was not computed", None
        )
    has_too_few = estimate.subjects < limit.min_subjects
    factor_for_minimum = math.nan
    if has_too_few and estimate.subjects * (_MOST_TIMES + 1) >= limit.min_subjects:
        factor_for_minimum = limit.min_subjects / estimate.subjects
    if not estimate.measurable:
        reason = estimate.note or "not measurable"
        return LimitOutcome(
            limit, "undecided", math.nan, reason, estimate, people_factor=factor_for_minimum
        )
    measured, significant = (
        _bound(estimate, limit.bound, attempt),
        _bound(estimate, "proven", attempt),
    )
    if estimate.measures == "evaluation" and limit.exceeded_by(measured):
        reason = (
            f"the evaluation is too weak here: {size_text(limit, estimate, limit.bound, measured)}"
        )
        reason += (
            f", beyond the limit {decimal(limit.value)}{_interval_words(limit, estimate, attempt)}"
        )
        return LimitOutcome(limit, "undecided", measured, reason, estimate)
    if limit.exceeded_by(significant):
        reason = _beyond(
            limit, estimate, measured if limit.bound == "value" else significant, attempt
        )
        return LimitOutcome(
            limit,
            "fail",
            measured,
            f"{reason}; {estimate.note}" if estimate.note else reason,
            estimate,
        )
    if has_too_few:
        reason = (
            f"too few people: the attack needs {limit.min_subjects:,}, and the tables have"
            f" {estimate.subjects:,}"
        )
        return LimitOutcome(
            limit, "undecided", measured, reason, estimate, people_factor=factor_for_minimum
        )
    if limit.exceeded_by(measured):
        if limit.bound == "value":
            return LimitOutcome(
                limit, "fail", measured, _beyond(limit, estimate, measured, attempt), estimate
            )
        side = "up to" if limit.at_most is not None else "down to"
        reason = (
            f"{side} {decimal(measured)} cannot be excluded, beyond the limit"
            f" {decimal(limit.value)}"
        )
        reason += _interval_words(limit, estimate, attempt)
        reason += _why_not_more_people(limit, estimate, attempt)
        factor = _people_factor(limit, estimate, attempt)
        return LimitOutcome(limit, "undecided", measured, reason, estimate, people_factor=factor)
    return LimitOutcome(
        limit, "pass", measured, _within(limit, estimate, measured, attempt), estimate
    )


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
    return f"{'at most' if is_upper_end else 'at least'} {decimal(number)}{distance}"


def _beyond(limit: Limit, estimate: Estimate, number: float, attempt: int) -> str:
    """Return the reason of a failure."""
    side = "above" if limit.at_most is not None else "below"
    bound: Bound = "value" if limit.bound == "value" else "proven"
    size = size_text(limit, estimate, bound, number)
    proven = " is proven" if size.startswith("at ") else ""
    words = f"{size}{proven}, {side} the limit {decimal(limit.value)}"
    return words + _interval_words(limit, estimate, attempt)


def _within(limit: Limit, estimate: Estimate, measured: float, attempt: int) -> str:
    """Return the reason of a pass."""
    words = _interval_words(limit, estimate, attempt)
    if limit.bound == "proven" and estimate.low != estimate.high:
        if _signed_distance(limit, estimate, measured) <= 0:
            return f"no leak is proven, limit {decimal(limit.value)}{words}"
        size = size_text(limit, estimate, "proven", measured)
        return f"{size} is proven, within the limit {decimal(limit.value)}{words}"
    note = f" ({estimate.note})" if estimate.note and estimate.low == estimate.high else ""
    return (
        f"{size_text(limit, estimate, limit.bound, measured)}, within the limit"
        f" {decimal(limit.value)}{words}{note}"
    )


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
    return f" ({', '.join(parts)})" if parts else ""


def _signed_distance(limit: Limit, estimate: Estimate, number: float) -> float:
    """Return how far ``number`` is from the value without a leak, in the direction of a leak.

    The bounds of a two-sided statistic are distances already. NaN if the value without a leak is
    unknown.
    """
    if estimate.direction == "two_sided":
        return number
    return number - estimate.null if limit.at_most is not None else estimate.null - number


def _used(limit: Limit, estimate: Estimate, measured: float) -> float:
    """Return the position of ``measured`` between the null (0) and the limit (1)."""
    start = (
        estimate.null if estimate.direction != "two_sided" and math.isfinite(estimate.null) else 0.0
    )
    if limit.value != start:
        return (measured - start) / (limit.value - start)
    return math.inf if limit.exceeded_by(measured) else 0.0


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
    null = 0.0 if estimate.direction == "two_sided" else estimate.null
    near = _bound(estimate, "proven", attempt)
    is_leak = near < null if limit.at_most is None else near > null
    truths = [value] if is_leak else [value, null]
    additional = [_people_factor_if(truth, limit, estimate, attempt) - 1 for truth in truths]
    fewest = min(additional)
    most = max(additional)
    return 1 + most if 0 < most <= min(2 * fewest, _MOST_TIMES) else math.nan


def _people_factor_if(truth: float, limit: Limit, estimate: Estimate, attempt: int) -> float:
    """Return the multiple of the present number of people for a decision if ``truth`` is the true
    value.

    Infinite if no number decides.
    """
    value, near, far = (
        _bound(estimate, bound, attempt) for bound in ("value", "proven", "conservative")
    )
    distance = abs(limit.value - truth)
    if not (math.isfinite(truth) and distance > 0):
        return math.inf
    normal = NormalDist()
    deviation = abs(far - value) / normal.inv_cdf(1 - _tail(attempt, estimate.confidence))
    half_width = abs(value - near) if limit.exceeded_by(truth) else abs(far - value)
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
    return factor if factor <= _MOST_TIMES + 1 else math.nan


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
    low, high = estimate.widened(
        widening(attempt, estimate.confidence) if estimate.measures == "release" else 1.0
    )
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
