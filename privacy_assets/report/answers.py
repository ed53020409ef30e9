"""Page one: what somebody who signs asks of a release, answered by the limits on the attacks that were run.

Which question the attacks of a metric answer, the metric declares. Limits of metrics that declare none come last: of
those about the gate, whether a leak would have shown; and all others, such as limits on utility.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from privacy_assets.metrics.declarations import Question
from privacy_assets.metrics.registry import METRICS
from privacy_assets.report.advice import cause_of
from privacy_assets.report.text import number
from privacy_assets.stats.limits import LimitOutcome, Verdict

if TYPE_CHECKING:
    from privacy_assets.report.report import Report

Status = Verdict | Literal["not_tested"]

TITLES: dict[Question, str] = {
    "copies": "Can a released row be traced to a real person?",
    "singling out": "Can somebody be singled out?",
    "linking": "Can two records of one person be linked?",
    "inference": "Can a private value of a person be inferred?",
    "membership": "Can somebody be recognised as a member of the training data?",
}
_WORST_FIRST: tuple[Verdict, ...] = ("fail", "not_assessable", "pass")
_GATE, _OTHER = "Would this evaluation have seen a leak?", "Other statistics"
_WORDS: dict[Status, str] = {
    "pass": "Within limits",
    "fail": "Yes",
    "not_assessable": "Cannot tell",
    "not_tested": "Not tested",
}
_UNKNOWN = "foreign values"  # cells that no real row has could carry anything, which is not to say that they do
_WORDS_OF_GATE: dict[Status, str] = {"pass": "Yes", "fail": "No", "not_assessable": "Not shown"}
_WORDS_OF_OTHER: dict[Status, str] = {"pass": "Within limits", "fail": "Broken", "not_tested": "No limit"}


@dataclass(frozen=True, slots=True)
class Answer:
    """One question, its answer in a word or three, and what it rests on.

    ``strongest`` is the limit that was broken most, else one that could not be judged, else the one that came closest;
    None without limits. ``smallest_leak`` says what would have shown, ``not_tested`` what was not tried; both can be
    empty. ``metrics`` are those whose results belong here. The five questions are ``main``.
    """

    title: str
    word: str
    status: Status
    outcomes: tuple[LimitOutcome, ...]
    strongest: LimitOutcome | None
    smallest_leak: str
    not_tested: tuple[str, ...]
    metrics: tuple[str, ...]
    main: bool

    @property
    def shown(self) -> bool:
        """True where page one shows it: the five questions, the others where there is a limit or a planted leak."""
        return self.main or bool(self.outcomes) or bool(self.smallest_leak)

    def to_json(self) -> dict[str, Any]:
        """A plain mapping; limits by their key."""
        return {
            "question": self.title,
            "answer": self.word,
            "status": self.status,
            "strongest": self.strongest.limit.key if self.strongest else None,
            "smallest_leak": self.smallest_leak,
            "not_tested": list(self.not_tested),
        }


def answers(report: Report) -> list[Answer]:
    """The five questions, whatever was tested; and the other two groups where there is a limit or a result of them."""
    groups: dict[str, list[LimitOutcome]] = {}
    for outcome in report.judgement.outcomes:
        avoided = cause_of(outcome) == "members avoided"  # tells who was in training, whatever was attacked
        groups.setdefault("membership" if avoided else _group(outcome.limit.metric), []).append(outcome)
    metrics: dict[str, list[str]] = {}
    for name in report.results:
        metrics.setdefault(_group(name), []).append(name)
    found = [_answer(report, question, title, groups.get(question, []), metrics) for question, title in TITLES.items()]
    for group in (_GATE, _OTHER):
        if group in groups or group in metrics:
            found.append(_answer(report, group, group, groups.get(group, []), metrics))
    return found


def _group(metric: str) -> str:
    kind = METRICS.get(metric)
    if kind is None:
        return _OTHER
    return kind.question or (_GATE if all(spec.about == "gate" for spec in kind.statistics) else _OTHER)


def _answer(
    report: Report, group: str, title: str, outcomes: list[LimitOutcome], metrics: dict[str, list[str]]
) -> Answer:
    statuses = {outcome.status for outcome in outcomes}
    status: Status = next((status for status in _WORST_FIRST if status in statuses), "not_tested")
    words = _WORDS | {_GATE: _WORDS_OF_GATE, _OTHER: _WORDS_OF_OTHER}.get(group, {})
    saw_one = group == _GATE and status == "not_assessable" and report.verdict == "fail"
    strongest = min(outcomes, key=_strength, default=None)
    word = "Yes, it saw one" if saw_one else words[status]
    if status == "fail" and {cause_of(outcome) for outcome in outcomes if outcome.status == "fail"} == {_UNKNOWN}:
        word = "Not ruled out"
    planted = _planted(report, group)
    if group == _GATE and planted and not outcomes:
        word = f"From {planted[0]} on"
    elif status == "not_tested" and group in metrics:
        word = "No limit"
    return Answer(
        title=title,
        word=word,
        status=status,
        outcomes=tuple(outcomes),
        strongest=strongest,
        smallest_leak="; ".join(planted) or _detectable(strongest),
        not_tested=tuple(_not_tested(report, group)),
        metrics=tuple(metrics.get(group, [])),
        main=group in TITLES,
    )


def _strength(outcome: LimitOutcome) -> tuple[int, float]:
    used = outcome.used()
    return _WORST_FIRST.index(outcome.status), math.inf if math.isnan(used) else -used


def _planted(report: Report, group: str) -> list[str]:
    """Shares of planted rows at which a limit broke, as far as they were measured, of this question or of all."""
    declared = [
        (f"{name}.{statistic}", what)
        for name, metric in METRICS.items()
        for question, statistics in metric.smallest_leak.items()
        if group in (question, _GATE)
        for statistic, what in statistics.items()
    ]
    found = [(report.estimate(name), what) for name, what in declared]
    return [f"{100 * x.value:.2g} % {what}" for x, what in found if x is not None and x.measurable]


def _detectable(strongest: LimitOutcome | None) -> str:
    """The minimum detectable effect of the strongest attack, where it has one."""
    estimate = strongest.estimate if strongest else None
    # 0: there is no match, and so no chance in it
    if strongest is None or estimate is None or not 0 < strongest.used(estimate.minimum_detectable_effect) < math.inf:
        return ""
    null = "" if estimate.null == 0 else f", where {number(estimate.null)} is no leak"
    return f"{strongest.limit.statistic} of {number(estimate.minimum_detectable_effect)}{null}"


def _not_tested(report: Report, group: str) -> Iterable[str]:
    """Metrics of the question that did not run, and statistics of those that did without a number."""
    asked = [name for name in METRICS if _group(name) == group]
    yield from (name for name in asked if name not in report.results)
    for name in asked:
        if name in report.results:
            yield from (f"{name}.{x.name}" for x in report.results[name].estimates if not x.measurable)
