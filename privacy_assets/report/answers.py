"""First report page: an approver's questions about a release, answered by the limits on the attacks.

Metrics declare which question their attacks answer. Limits of other metrics form two groups at the end: limits on the
gate (would a leak have been detected?) and all others, such as limits on utility.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from privacy_assets.metrics.base import Question
from privacy_assets.metrics.registry import METRICS
from privacy_assets.policy import LimitOutcome, Status
from privacy_assets.report.advice import cause_of
from privacy_assets.report.words import number
from privacy_assets.stats.estimates import MetricResult

AnswerStatus = Status | Literal["not_tested"]

TITLES: dict[Question, str] = {
    "copies": "Can a released row be traced to a real person?",
    "singling out": "Can a person be singled out?",
    "linking": "Can two records of one person be linked?",
    "inference": "Can a private value of a person be inferred?",
    "membership": "Can a person be recognized as a member of the training data?",
}
_WORST_FIRST: tuple[Status, ...] = ("fail", "not_assessable", "pass")
_GATE, _OTHER = "Would this evaluation have detected a leak?", "Other statistics"
_WORDS: dict[AnswerStatus, str] = {
    "pass": "Within limits",
    "fail": "Yes",
    "not_assessable": "Cannot tell",
    "not_tested": "Not tested",
}
_UNKNOWN = "foreign values"  # such cells could encode private rows, but need not
_WORDS_OF_GATE: dict[AnswerStatus, str] = {"pass": "Yes", "fail": "No", "not_assessable": "Not shown"}
_WORDS_OF_OTHER: dict[AnswerStatus, str] = {"pass": "Within limits", "fail": "Broken", "not_tested": "No limit"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A question with its answer and evidence.

    Attributes:
        title: Question.
        word: Answer in one to three words.
        status: Worst status of its limits.
        outcomes: Its limits.
        strongest: The limit exceeded by most, otherwise one that is not assessable, otherwise the one closest to being
            exceeded. None: no limits.
        detectable_leaks: Description of the smallest detectable leaks, or "".
        not_tested: Metrics and statistics without a result.
        metrics: Metrics that belong to the question.
        main: True for the five questions.
    """

    title: str
    word: str
    status: AnswerStatus
    outcomes: tuple[LimitOutcome, ...]
    strongest: LimitOutcome | None
    detectable_leaks: str
    not_tested: tuple[str, ...]
    metrics: tuple[str, ...]
    main: bool

    @property
    def shown(self) -> bool:
        """Whether the first page shows it: the five questions, and others with a limit or a planted leak."""
        return self.main or bool(self.outcomes) or bool(self.detectable_leaks)

    def to_json(self) -> dict[str, Any]:
        """Return a plain mapping with limits by key."""
        return {
            "question": self.title,
            "answer": self.word,
            "status": self.status,
            "strongest": self.strongest.limit.key if self.strongest else None,
            "detectable_leaks": self.detectable_leaks,
            "not_tested": list(self.not_tested),
        }


def answers(outcomes: Iterable[LimitOutcome], results: Mapping[str, MetricResult], verdict: Status) -> list[Answer]:
    """Answer the five questions, and the other two groups if they have limits or results.

    Args:
        outcomes: Outcomes of all limits.
        results: Results by metric.
        verdict: Status on the table.
    """
    groups: dict[str, list[LimitOutcome]] = {}
    for outcome in outcomes:
        avoided = cause_of(outcome) == "members avoided"  # discloses membership, whatever the attack
        groups.setdefault("membership" if avoided else _group(outcome.limit.metric), []).append(outcome)
    others = [group for group in (_GATE, _OTHER) if group in groups or group in map(_group, results)]
    titles = [*TITLES.items(), *zip(others, others, strict=True)]
    return [_answer(group, title, groups.get(group, []), results, verdict) for group, title in titles]


def _group(metric: str) -> str:
    kind = METRICS.get(metric)
    if kind is None:
        return _OTHER
    return kind.question or (_GATE if all(spec.measures == "evaluation" for spec in kind.statistics) else _OTHER)


def _answer(
    group: str, title: str, outcomes: list[LimitOutcome], results: Mapping[str, MetricResult], verdict: Status
) -> Answer:
    metrics = tuple(name for name in results if _group(name) == group)
    statuses = {outcome.status for outcome in outcomes}
    status: AnswerStatus = next((status for status in _WORST_FIRST if status in statuses), "not_tested")
    words = _WORDS | {_GATE: _WORDS_OF_GATE, _OTHER: _WORDS_OF_OTHER}.get(group, {})
    saw_one = group == _GATE and status == "not_assessable" and verdict == "fail"
    strongest = min(outcomes, key=_strength, default=None)
    word = "Yes, it detected one" if saw_one else words[status]
    if status == "fail" and {cause_of(outcome) for outcome in outcomes if outcome.status == "fail"} == {_UNKNOWN}:
        word = "Not ruled out"
    planted = _planted(results, group)
    if group == _GATE and planted and not outcomes:
        word = f"From {planted[0]} on"
    elif status == "not_tested" and metrics:
        word = "No limit"
    return Answer(
        title=title,
        word=word,
        status=status,
        outcomes=tuple(outcomes),
        strongest=strongest,
        detectable_leaks="; ".join(planted) or _detectable(strongest),
        not_tested=tuple(_not_tested(results, group)),
        metrics=metrics,
        main=group in TITLES,
    )


def _strength(outcome: LimitOutcome) -> tuple[int, float]:
    used = outcome.used()
    return _WORST_FIRST.index(outcome.status), math.inf if math.isnan(used) else -used


def _planted(results: Mapping[str, MetricResult], group: str) -> list[str]:
    """Return the shares of planted rows at which a limit was exceeded, for this question or for all."""
    estimates = {f"{name}.{one.name}": one for name, result in results.items() for one in result.estimates}
    declared = [
        (estimates.get(f"{name}.{statistic}"), what)
        for name, metric in METRICS.items()
        for question, statistics in metric.detectable_leaks.items()
        if group in (question, _GATE)
        for statistic, what in statistics.items()
    ]
    return [f"{100 * x.value:.2g} % {what}" for x, what in declared if x is not None and x.measurable]


def _detectable(strongest: LimitOutcome | None) -> str:
    """Return the minimum detectable effect of the strongest attack, or ""."""
    estimate = strongest.estimate if strongest else None
    # 0: there is no match, so no effect to detect
    if strongest is None or estimate is None or not 0 < strongest.used(estimate.minimum_detectable_effect) < math.inf:
        return ""
    null = "" if estimate.null == 0 else f" ({number(estimate.null)}: no leak)"
    return f"{strongest.limit.statistic} of {number(estimate.minimum_detectable_effect)}{null}"


def _not_tested(results: Mapping[str, MetricResult], group: str) -> Iterable[str]:
    """Yield metrics of the question that did not run, and statistics of the others that have no value."""
    asked = [name for name in METRICS if _group(name) == group]
    yield from (name for name in asked if name not in results)
    for name in asked:
        if name in results:
            yield from (f"{name}.{x.name}" for x in results[name].estimates if not x.measurable)
