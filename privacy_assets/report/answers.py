"""First report page: an approver's questions about a release, answered by limits on the statistics that measure them.

Each statistic declares its question. Limits on other statistics form two groups at the end: limits on the gate (would a
leak have been detected?) and all others, such as limits on utility.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from privacy_assets.metrics.base import Question
from privacy_assets.metrics.registry import METRICS, statistic_specs
from privacy_assets.policy import WORST_FIRST, LimitOutcome, Status
from privacy_assets.report.advice import MATCHED, cause_of
from privacy_assets.report.words import clean, interval, number
from privacy_assets.stats.estimates import Estimate, MetricResult, decimal

AnswerStatus = Status | Literal["not_limited", "not_tested"]

TITLES: dict[Question, str] = {
    "copies": "Can a released row be traced to a real person?",
    "singling out": "Can a person be singled out?",
    "linking": "Can two records of one person be linked?",
    "inference": "Can a private value of a person be inferred?",
    "membership": "Can a person be recognized as a member of the training data?",
    "values": "Does the table contain values that only one person has?",
}
_GATE, _OTHER = "Would this evaluation have detected a leak?", "Other statistics"
_WORDS: dict[AnswerStatus, str] = {
    "pass": "No leak found",
    "fail": "Yes",
    "not_assessable": "Cannot tell",
    "not_limited": "Not limited by this policy",
    "not_tested": "Not tested",
}
_OF_ROWS = ("copies", "singling out", "linking", "membership")  # questions about whole rows
_UNKNOWN = "foreign values"  # such cells could encode private rows, but need not
_WORDS_OF_GATE: dict[AnswerStatus, str] = {"pass": "Yes", "fail": "No", "not_assessable": "Not shown"}
_WORDS_OF_OTHER: dict[AnswerStatus, str] = {"pass": "Within limits", "fail": "Broken"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A question with its answer and evidence.

    Attributes:
        title: Question.
        word: Answer in a few words.
        status: Worst status of its limits. Limits that cannot fail on this table do not count as passed.
        outcomes: Its limits.
        strongest: The limit exceeded by most, otherwise one that is not assessable, otherwise the one closest to being
            exceeded. None: no limits.
        statement: What the answer rests on, in one or two sentences.
        detectable_leaks: Description of the smallest detectable leaks, or "".
        not_tested: Metrics and statistics without a result.
        metrics: Metrics whose charts and tables belong to the question.
        estimates: Statistics that measure it, METRIC.STATISTIC.
        main: True for the questions in ``TITLES``.
    """

    title: str
    word: str
    status: AnswerStatus
    outcomes: tuple[LimitOutcome, ...]
    strongest: LimitOutcome | None
    statement: str
    detectable_leaks: str
    not_tested: tuple[str, ...]
    metrics: tuple[str, ...]
    estimates: tuple[str, ...]
    main: bool

    @property
    def shown(self) -> bool:
        """Whether the first page shows it: the main questions, and others with a limit or a planted leak."""
        return self.main or bool(self.outcomes) or bool(self.detectable_leaks)

    def to_json(self) -> dict[str, Any]:
        """Return a plain mapping with limits by key."""
        return {
            "question": self.title,
            "answer": self.word,
            "status": self.status,
            "statement": self.statement,
            "strongest": self.strongest.limit.key if self.strongest else None,
            "detectable_leaks": self.detectable_leaks,
            "not_tested": list(self.not_tested),
        }


def answers(outcomes: Iterable[LimitOutcome], results: Mapping[str, MetricResult], verdict: Status) -> list[Answer]:
    """Answer the main questions, and the other two groups if they have limits or results.

    Args:
        outcomes: Outcomes of all limits.
        results: Results by metric.
        verdict: Status on the table.
    """
    groups: dict[str, list[LimitOutcome]] = {}
    for outcome in outcomes:
        avoided = cause_of(outcome) == "members avoided"  # discloses membership, whatever the attack
        groups.setdefault("membership" if avoided else question_of(outcome.limit.statistic), []).append(outcome)
    estimates = {f"{name}.{one.name}": one for name, result in results.items() for one in result.estimates}
    measured = {question_of(name) for name in estimates}
    others = [group for group in (_GATE, _OTHER) if group in groups or group in measured]
    titles = [*TITLES.items(), *zip(others, others, strict=True)]
    copied = any(outcome.status == "fail" for outcome in groups.get("copies", ()))
    return [
        _answer(group, title, groups.get(group, []), results, estimates, verdict, copied) for group, title in titles
    ]


def question_of(name: str) -> str:
    """Return the question that a statistic, METRIC.STATISTIC, answers, or one of the other two groups."""
    spec = statistic_specs().get(name)
    if spec is None:
        return _OTHER
    return (
        spec.question
        or METRICS[name.partition(".")[0]].question
        or (_GATE if spec.measures == "evaluation" else _OTHER)
    )


def _home(metric: str) -> str:
    """Return the question under which charts and tables of a metric are shown."""
    kind = METRICS.get(metric)
    return _OTHER if kind is None else kind.question or question_of(f"{metric}.{kind.statistics[0].name}")


def _answer(
    group: str,
    title: str,
    outcomes: list[LimitOutcome],
    results: Mapping[str, MetricResult],
    estimates: Mapping[str, Estimate],
    verdict: Status,
    copied: bool,
) -> Answer:
    own = {name: one for name, one in estimates.items() if question_of(name) == group}
    status = _status(outcomes, own)
    words = _WORDS | {_GATE: _WORDS_OF_GATE, _OTHER: _WORDS_OF_OTHER}.get(group, {})
    strongest = min(outcomes, key=_strength, default=None)
    word = words[status]
    if status == "fail" and {cause_of(outcome) for outcome in outcomes if outcome.status == "fail"} == {_UNKNOWN}:
        word = "Not ruled out"
    if status == "pass" and copied and group in TITLES and group != "values":
        word = "No further leak found"
    if status == "pass" and any(outcome.by_rule for outcome in outcomes):
        word = "No, by the threshold rule"
    planted = _planted(estimates, group)
    if group == _GATE and status == "not_assessable" and verdict == "fail":
        word = "Yes, it detected one"
    elif group == _GATE and planted and not outcomes:
        word = f"From {planted[0]} on"
    leaks = "; ".join(planted) or _detectable(strongest)
    statement = _statement(status, strongest, leaks, own) if group in TITLES else _reason(strongest)
    if status == "fail" and group in _OF_ROWS:
        statement += _source(results)
    if group == _GATE and planted and not outcomes:
        statement = "Smaller leaks can remain undetected. This does not affect the verdict."
    return Answer(
        title=title,
        word=word,
        status=status,
        outcomes=tuple(outcomes),
        strongest=strongest,
        statement=statement,
        detectable_leaks=leaks,
        not_tested=tuple(_not_tested(estimates, results, group)),
        metrics=tuple(name for name in results if _home(name) == group),
        estimates=tuple(own),
        main=group in TITLES,
    )


def _status(outcomes: Sequence[LimitOutcome], estimates: Mapping[str, Estimate]) -> AnswerStatus:
    """Return the worst status. If all limits passed but none was shown to fail on a copy, it is not assessable."""
    if not outcomes:
        return "not_limited" if any(one.measurable for one in estimates.values()) else "not_tested"
    worst = min((outcome.status for outcome in outcomes), key=WORST_FIRST.index)
    seen = {outcome.can_fail for outcome in outcomes}
    return "not_assessable" if worst == "pass" and False in seen and True not in seen else worst


def _statement(
    status: AnswerStatus, strongest: LimitOutcome | None, leaks: str, estimates: Mapping[str, Estimate]
) -> str:
    found = strongest.estimate if strongest is not None else None
    if status == "fail" and strongest is not None and found is not None and found.measurable:
        spec = statistic_specs().get(strongest.limit.statistic)
        meaning = spec.meaning.rstrip(".") if spec is not None else strongest.limit.statistic
        return f"{meaning}: {interval(found)}."
    if status == "pass" and leaks:
        return f"This would have been found: {leaks}."
    if status == "not_limited":
        name, one = next((name, one) for name, one in estimates.items() if one.measurable)
        return f"{name} is {interval(one)} ({number(one.null)}: no leak)."
    return _reason(strongest)


def _source(results: Mapping[str, MetricResult]) -> str:
    """Return a sentence with the columns in which training people agree with released rows, or ""."""
    result = results.get("copies")
    rows = result.tables.get("matched_columns", ()) if result is not None else ()
    names = [clean(row["column"], 60) for row in rows[:3] if row["share"] >= MATCHED]
    return f" Training people agree with released rows mostly in {', '.join(names)}." if names else ""


def _reason(strongest: LimitOutcome | None) -> str:
    return "The policy has no limit here." if strongest is None else strongest.reason


def _strength(outcome: LimitOutcome) -> tuple[int, bool, float]:
    used = outcome.used()
    return WORST_FIRST.index(outcome.status), outcome.blind, math.inf if math.isnan(used) else -used


def _planted(estimates: Mapping[str, Estimate], group: str) -> list[str]:
    """Return the shares of planted rows at which a limit was exceeded, for this question or for all."""
    declared = [
        (estimates.get(f"{name}.{statistic}"), what)
        for name, metric in METRICS.items()
        for question, statistics in metric.detectable_leaks.items()
        if group in (question, _GATE)
        for statistic, what in statistics.items()
    ]
    return [
        f"{decimal(float(f'{100 * x.value:.2g}'))} % {what}" for x, what in declared if x is not None and x.measurable
    ]


def _detectable(strongest: LimitOutcome | None) -> str:
    """Return the smallest effect that the strongest attack detects and its limit does not tolerate, or ""."""
    estimate = strongest.estimate if strongest else None
    if strongest is None or estimate is None or strongest.blind:
        return ""
    start = estimate.null if estimate.direction != "two_sided" and math.isfinite(estimate.null) else 0.0
    missed, tolerated = (abs(x - start) for x in (estimate.minimum_detectable_effect, strongest.limit.value))
    if not 0 < missed < math.inf:  # 0: there is no match, so no effect to detect
        return ""
    least = missed + tolerated if strongest.limit.bound == "significant" else max(missed, tolerated)
    effect = start - least if strongest.limit.at_most is None else start + least
    null = "" if estimate.null == 0 else f" ({number(estimate.null)}: no leak)"
    return f"{strongest.limit.statistic} of {number(effect)}{null}"


def _not_tested(estimates: Mapping[str, Estimate], results: Mapping[str, MetricResult], group: str) -> Iterable[str]:
    """Yield metrics of the question that did not run, and statistics of the others that have no value."""
    asked = [name for name in statistic_specs() if question_of(name) == group]
    yield from dict.fromkeys(metric for name in asked if (metric := name.partition(".")[0]) not in results)
    yield from (name for name in asked if name in estimates and not estimates[name].measurable)
