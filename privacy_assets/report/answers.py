"""First report page: an approver's questions about a release, answered by limits on the statistics
that measure them.

Each statistic declares its question. Limits on other statistics form two groups at the end: limits
on the gate (would a leak have been detected?) and all others, such as limits on utility.

An answer is "Yes" if a limit fails, "A small leak, within the tolerance" if the limits hold and
a leak is certain, "No leak found" if they hold and none is certain, and otherwise "Cannot tell". An
answer of "No leak found" states which leak would have been found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

from privacy_assets.metrics.base import Question
from privacy_assets.metrics.registry import METRICS, statistic_spec, statistic_specs
from privacy_assets.policy import WORST_FIRST, LimitOutcome, Status
from privacy_assets.report.advice import MATCHED, cause_of
from privacy_assets.report.words import (
    clean,
    interval,
    number,
    percent,
    percent_interval,
    sentence,
    two_digits,
)
from privacy_assets.stats.estimates import PEOPLE, PEOPLE_WHO_FIT, Estimate, MetricResult

AnswerStatus = Status | Literal["not_limited", "not_tested"]

TITLES: dict[Question, str] = {
    "copies": "Can a released row be traced to a real person?",
    "singling out": "Can a person be singled out?",
    "linking": "Can two records of one person be linked?",
    "inference": "Can a private value of a person be inferred?",
    "membership": "Can a person be recognized as a member of the training data?",
    "values": "Does the table contain values that only one person has?",
}
_GATE = "Would this evaluation have detected copied rows?"
_OTHER = "Other statistics"
_NOT_RULED_OUT = "Not ruled out"
_BY_RULE = "No, by the threshold rule"
SMALL_LEAK = "A small leak, within the tolerance"
# A leak is certain if an interval of this level, jointly over the statistics of all questions, does
# not reach the value without a leak. At this level for each question alone, 8 of 176 non-leaking
# releases # show a leak by chance.
JOINT_LEVEL = 0.99
_LARGEST_DOSE = 0.2
_WORDS: dict[AnswerStatus, str] = {
    "pass": "No leak found",
    "fail": "Yes",
    "undecided": "Cannot tell",
    "not_limited": "Not limited by this policy",
    "not_tested": "Not tested",
}
_OF_ROWS = ("copies", "singling out", "linking", "membership")  # questions about whole rows
_UNKNOWN = "values of no real row"  # such cells could encode private rows, but need not
_WORDS_OF_GATE: dict[AnswerStatus, str] = {"pass": "Yes", "fail": "No", "undecided": "Cannot tell"}
_WORDS_OF_OTHER: dict[AnswerStatus, str] = {"pass": "Within limits", "fail": "Failed"}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the tables, which turn shares into numbers of people.

    Attributes:
        n_members: Number of people in train. None: unknown.
        n_rows: Number of rows of train.
        n_released: Number of rows of the synthetic table.
    """

    n_members: int | None = None
    n_rows: int = 0
    n_released: int = 0

    @classmethod
    def of(cls, tables: Mapping[str, Mapping[str, int]]) -> Sizes:
        """Return the sizes of the tables of a report, "rows" and "subjects" by role."""
        train = tables.get("train", {})
        n_rows = train.get("rows", 0)
        n_released = tables.get("synthetic", {}).get("rows", n_rows)
        return cls(train.get("subjects"), n_rows, n_released)

    @property
    def share_that_fits(self) -> float:
        """Share of the rows of train that fit into the release, 1 if the sizes are unknown."""
        if not (self.n_rows and self.n_released):
            return 1.0
        return min(1.0, self.n_released / self.n_rows)

    def people(self, share: float) -> str:
        """Return the number of people of a share of train, as "about 51 people", or "" if it is
        unknown.
        """
        if self.n_members is None or not share > 0:
            return ""
        return f"about {self._counted(share * self.n_members, 'person', 'people')}"

    def in_brackets(self, share: float) -> str:
        """Return :meth:`people` in brackets after a space, or ""."""
        people = self.people(share)
        if not people:
            return ""
        return f" ({people})"

    def of_fitting(self, share: float) -> str:
        """Return the number of people of a share of those who fit into the release, in brackets
        after a space, or "".
        """
        in_brackets = self.in_brackets(share * self.share_that_fits)
        if self.share_that_fits < 1:
            return f" who fit into the release{in_brackets}"
        return in_brackets

    def planted(self, share: float) -> str:
        """Return the number of copies that are a share of the released rows.

        If each person of train has one row, these are people. Without sizes, it is the share.
        """
        if not self.n_released:
            return f"{percent(share)} of the rows"
        if self.n_rows == self.n_members:
            return self._counted(share * self.n_released, "person", "people")
        return self._counted(share * self.n_released, "row", "rows")

    @staticmethod
    def _counted(number: float, singular: str, plural: str) -> str:
        count = max(round(two_digits(number)), 1)
        noun = singular if count == 1 else plural
        return f"{count:,} {noun}"


NO_SIZES = Sizes()


@dataclass(frozen=True, slots=True)
class Answer:
    """A question with its answer and evidence.

    Attributes:
        title: Question.
        word: Answer in a few words.
        status: Worst status of its limits.
        outcomes: Its limits.
        strongest: The limit exceeded by most, otherwise one that is undecided, otherwise the one
            closest to being exceeded. None: no limits.
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
    def is_displayed(self) -> bool:
        """Whether the first page shows it: the main questions, and others with a limit or a planted
        leak.
        """
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


def answers(
    outcomes: Iterable[LimitOutcome],
    results: Mapping[str, MetricResult],
    verdict: Status,
    sizes: Sizes = NO_SIZES,
    earlier_failures: Sequence[str] = (),
) -> list[Answer]:
    """Answer the main questions, and the other two groups if they have limits or results.

    Args:
        outcomes: Outcomes of all limits.
        results: Results by metric.
        verdict: Status on the table.
        sizes: Sizes of the tables.
        earlier_failures: Limits that failed for the same rows in an earlier evaluation. The key of
            the limit is the first word.

    Returns:
        Answers in the order of ``TITLES``, then those of the other groups.
    """
    groups: dict[str, list[LimitOutcome]] = {}
    for outcome in outcomes:
        groups.setdefault(_group_of(outcome), []).append(outcome)
    estimates = {}
    for name, result in results.items():
        for estimate in result.estimates:
            estimates[f"{name}.{estimate.name}"] = estimate
    has_copies = _has_failed(groups.get("copies", ()))
    failed_before = set(map(_statistic_of, earlier_failures))
    evidence = Evidence(results, estimates, verdict, has_copies, sizes, failed_before)
    answered = []
    for question, title in TITLES.items():
        answered.append(_answer(question, title, groups.get(question, []), evidence))
    for group in (_GATE, _OTHER):
        if group in groups or _names_of_group(estimates, group):
            answered.append(_answer(group, group, groups.get(group, []), evidence))
    return answered


def _group_of(outcome: LimitOutcome) -> str:
    """Return the question or group of a limit. Avoiding members discloses membership only."""
    if cause_of(outcome) == "members avoided" or _avoids_members(outcome):
        return "membership"
    return question_of(outcome.limit.statistic)


def _statistic_of(words: str) -> str:
    """Return METRIC.STATISTIC of an earlier failure, such as ``dcr.member_excess.proven at most
    0.1``.
    """
    key = words.split(" ")[0]
    return ".".join(key.split(".")[:2])


def _avoids_members(outcome: LimitOutcome) -> bool:
    """Return True if the release certainly avoids members, within the limit: this discloses
    membership only.
    """
    estimate = outcome.estimate
    if estimate is None or not outcome.passed or not estimate.measurable:
        return False
    if estimate.direction != "two_sided":
        return False
    return estimate.high < estimate.null and bool(_certain([outcome]))


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence that all answers use.

    Attributes:
        results: Results by metric.
        estimates: Statistics by full name.
        verdict: Status on the table.
        has_copies: True if a limit on copies fails.
        sizes: Sizes of the tables.
        failed_before: Statistics with a limit that failed for the same rows in an earlier
            evaluation.
    """

    results: Mapping[str, MetricResult]
    estimates: Mapping[str, Estimate]
    verdict: Status
    has_copies: bool
    sizes: Sizes
    failed_before: Set[str] = frozenset()


def question_of(name: str) -> str:
    """Return the question that a statistic, METRIC.STATISTIC, answers, or one of the other two
    groups.
    """
    spec = statistic_spec(name)
    if spec is None:
        return _OTHER
    question = spec.question or METRICS[name.partition(".")[0]].question
    if question:
        return question
    return _GATE if spec.measures == "evaluation" else _OTHER


def _names_of_group(names: Iterable[str], group: str) -> list[str]:
    """Return the names METRIC.STATISTIC that belong to a question or to one of the other groups."""
    return [name for name in names if question_of(name) == group]


def _home(metric_name: str) -> str:
    """Return the question under which charts and tables of a metric are shown."""
    metric = METRICS.get(metric_name)
    if metric is None:
        return _OTHER
    return metric.question or question_of(f"{metric_name}.{metric.statistics[0].name}")


class _Finding(NamedTuple):
    """An answer in words.

    Attributes:
        word: Answer in a few words.
        statement: What it rests on.
        status: Status of the answer.
        strongest: Limit that the answer rests on, or None.
    """

    word: str
    statement: str
    status: AnswerStatus
    strongest: LimitOutcome | None


def _answer(group: str, title: str, outcomes: list[LimitOutcome], evidence: Evidence) -> Answer:
    """Answer a question, or describe one of the other two groups."""
    estimates = {}
    for name in _names_of_group(evidence.estimates, group):
        estimates[name] = evidence.estimates[name]
    status = _status(outcomes, estimates)
    strongest = min(outcomes, key=_strength, default=None)
    planted = _planted(evidence, group)
    leaks = planted or _smallest_leak(outcomes, evidence.sizes)
    if group in TITLES:
        word = _word(status, outcomes, leaks)
        statement = _statement(status, strongest, leaks, estimates, evidence.sizes)
        statement = _main_statement(group, word, statement, outcomes, evidence)
        finding = _Finding(word, statement, status, strongest)
        finding = _with_earlier_failures(group, finding, evidence)
    elif group == _GATE:
        word, statement = _answer_on_detection(status, strongest, planted, evidence)
        finding = _Finding(word, statement, status, strongest)
    else:
        word = _WORDS_OF_OTHER.get(status, _WORDS[status])
        finding = _Finding(word, _reason(strongest), status, strongest)
    return Answer(
        title=title,
        word=finding.word,
        status=finding.status,
        outcomes=tuple(outcomes),
        strongest=finding.strongest,
        statement=finding.statement,
        detectable_leaks=leaks,
        not_tested=tuple(_not_tested(evidence.estimates, evidence.results, group)),
        metrics=tuple(name for name in evidence.results if _home(name) == group),
        estimates=tuple(estimates),
        main=group in TITLES,
    )


def _main_statement(
    group: str,
    word: str,
    statement: str,
    outcomes: Sequence[LimitOutcome],
    evidence: Evidence,
) -> str:
    """Adapt the statement on a main question to its answer ``word``."""
    if word == _BY_RULE:
        return "The threshold rule publishes only values that enough people share."
    if word == SMALL_LEAK:
        return _small_leak(outcomes, evidence.sizes)
    if word == _WORDS["fail"] and _UNKNOWN in _causes_of_failed(outcomes):
        statement += " The table also contains values that no real row has."
    # If there are copies, the first question has the columns.
    is_explained = evidence.has_copies and group != "copies"
    if _has_failed(outcomes) and group in _OF_ROWS and not is_explained:
        statement += _source(evidence.results)
    return statement


def _with_earlier_failures(group: str, finding: _Finding, evidence: Evidence) -> _Finding:
    """Replace the answer if a limit on the question failed for the same rows in an earlier
    evaluation.
    """
    failed_before = _names_of_group(evidence.failed_before, group)
    if finding.status == "fail" or not failed_before:
        return finding
    word = _WORDS["fail"]
    if all(map(_is_on_unknown_values, failed_before)):
        word = _NOT_RULED_OUT
    statement = "A limit on this failed for the same rows in an earlier evaluation."
    return _Finding(word, statement, "fail", None)


def _word(status: AnswerStatus, outcomes: Sequence[LimitOutcome], leaks: str) -> str:
    """Return the answer to a main question in a few words."""
    if status == "fail":
        return _NOT_RULED_OUT if _causes_of_failed(outcomes) == {_UNKNOWN} else _WORDS[status]
    if status != "pass":
        return _WORDS[status]
    if _certain(outcomes):
        return SMALL_LEAK
    if any(outcome.by_rule for outcome in outcomes):
        return _BY_RULE
    # An exact limit alone, such as on values of no real row, states no leak that would have been
    # found.
    return _WORDS[status] if leaks else _WORDS["undecided"]


def _is_on_unknown_values(name: str) -> bool:
    """Return True if a failed limit on this statistic shows values that no real row has."""
    metric, _, statistic = name.partition(".")
    if metric not in METRICS:
        return False
    causes = METRICS[metric].causes
    return causes.by_statistic.get(statistic, causes.failed) == _UNKNOWN


def _has_failed(outcomes: Iterable[LimitOutcome]) -> bool:
    return any(outcome.status == "fail" for outcome in outcomes)


def _causes_of_failed(outcomes: Iterable[LimitOutcome]) -> set[str]:
    """Return the causes of the failed limits, each considered alone."""
    return {cause_of(outcome) for outcome in outcomes if outcome.status == "fail"}


def _certain(outcomes: Iterable[LimitOutcome]) -> list[LimitOutcome]:
    """Return the outcomes whose statistic proves a leak: its interval does not reach the value
    without a leak.

    The intervals have the level ``JOINT_LEVEL`` jointly over the statistics of all questions
    (Bonferroni, with an equal part for each question). They are taken as normal.

    Args:
        outcomes: Outcomes of the limits of a question.
    """
    measurable = []
    statistics = set()
    for outcome in outcomes:
        if outcome.estimate is not None and outcome.estimate.measurable and not outcome.by_rule:
            measurable.append(outcome)
            statistics.add(outcome.limit.statistic)
    level = 1 - (1 - JOINT_LEVEL) / (len(TITLES) * max(len(statistics), 1))
    certain = []
    for outcome in measurable:
        if outcome.estimate and _is_beyond_chance(outcome.estimate, level):
            certain.append(outcome)
    return certain


def _small_leak(outcomes: Sequence[LimitOutcome], sizes: Sizes) -> str:
    """Return a sentence on the certain leak that uses most of its limit, with the strictest limit
    on its statistic.
    """
    certain = _certain(outcomes)
    largest = max(certain, key=lambda outcome: outcome.proven / max(outcome.tolerance, 1e-9))
    statistic = largest.limit.statistic
    of_statistic = [outcome for outcome in certain if outcome.limit.statistic == statistic]
    strictest = min(of_statistic, key=lambda outcome: outcome.tolerance)
    measured = percent_interval(largest, _people_of(largest, sizes))
    return f"{measured}: {_meaning_of(largest)}. {_when_it_fails(strictest)}"


def _people_of(outcome: LimitOutcome, sizes: Sizes) -> str:
    """Return the number of people of a statistic that is a share of them, or ""."""
    spec = statistic_spec(outcome.limit.statistic)
    if outcome.estimate is None or spec is None:
        return ""
    if PEOPLE_WHO_FIT in spec.leak:
        return sizes.people(outcome.estimate.value * sizes.share_that_fits)
    if PEOPLE in spec.leak:
        return sizes.people(outcome.estimate.value)
    return ""


def _when_it_fails(outcome: LimitOutcome) -> str:
    """Return a sentence on the value at which a limit fails."""
    limit = outcome.limit
    value = _in_unit(limit.statistic, limit.value)
    side = "more" if limit.at_most is not None else "less"
    if limit.bound == "value":
        return f"The table fails only if it is {side} than {value}."
    return f"The table fails only if {side} than {value} is proven."


def _in_unit(statistic: str, value: float) -> str:
    """Return a limit as an exact percentage if the statistic is a share, else as a number."""
    spec = statistic_spec(statistic)
    return f"{number(100 * value)} %" if spec is not None and spec.is_share else number(value)


def _is_beyond_chance(estimate: Estimate, level: float) -> bool:
    """Return True if the interval of a two-sided level does not reach the value without a leak."""
    if math.isnan(estimate.null):
        return False
    scale = 1.0
    if 0 < estimate.confidence < 1:  # others can come from a metric of a third party
        normal = NormalDist()
        scale = normal.inv_cdf((1 + level) / 2) / normal.inv_cdf((1 + estimate.confidence) / 2)
    low, high = estimate.widened(scale)
    is_above = low > estimate.null
    is_below = high < estimate.null
    return {
        "higher_is_riskier": is_above,
        "lower_is_riskier": is_below,
        "two_sided": is_above or is_below,
    }[estimate.direction]


def _answer_on_detection(
    status: AnswerStatus, strongest: LimitOutcome | None, planted: str, evidence: Evidence
) -> tuple[str, str]:
    """Answer whether a leak would have been detected, in a few words and a sentence."""
    if status == "undecided" and evidence.verdict == "fail":
        return "Yes, it detected one", _reason(strongest)
    if evidence.has_copies and strongest is None:
        return "Yes, it found some", "Limits on copied rows fail."
    if planted and strongest is None:
        return _planted_answer(evidence)
    return _WORDS_OF_GATE.get(status, _WORDS[status]), _reason(strongest)


def _status(outcomes: Sequence[LimitOutcome], estimates: Mapping[str, Estimate]) -> AnswerStatus:
    """Return the worst status."""
    if outcomes:
        worst = min(outcomes, key=lambda outcome: WORST_FIRST.index(outcome.status))
        return worst.status
    if _names_of_measured(estimates):
        return "not_limited"
    return "not_tested"


def _statement(
    status: AnswerStatus,
    strongest: LimitOutcome | None,
    leaks: str,
    estimates: Mapping[str, Estimate],
    sizes: Sizes,
) -> str:
    """Return what the answer rests on, in one or two sentences."""
    if status == "not_limited":
        return _first_measured(estimates)
    if strongest is None:
        return "The policy has no limit here."
    if status == "pass":
        if leaks:
            return leaks
        tested = f"Only this was tested: {_meaning_of(strongest)}."
        return f"{tested} It is {percent_interval(strongest)}."
    if status == "undecided" and strongest.blind:
        return _why_no_evidence(strongest, sizes)
    has_too_few = strongest.has_too_few_people and cause_of(strongest) == "too few people"
    if status == "undecided" and has_too_few:
        return "There are too few people for this attack."
    if status == "fail" and strongest.estimate is not None and strongest.estimate.measurable:
        measured = percent_interval(strongest, _people_of(strongest, sizes))
        return f"{measured}: {_meaning_of(strongest)}."
    return strongest.reason


def _names_of_measured(estimates: Mapping[str, Estimate]) -> list[str]:
    return [name for name, estimate in estimates.items() if estimate.measurable]


def _first_measured(estimates: Mapping[str, Estimate]) -> str:
    """Return a sentence on the first statistic with a value, of which there is at least one."""
    name = _names_of_measured(estimates)[0]
    estimate = estimates[name]
    return f"{name} is {interval(estimate, name)} ({number(estimate.null)}: no leak)."


def _why_no_evidence(outcome: LimitOutcome, sizes: Sizes) -> str:
    """Return a sentence on a limit that holds without evidence."""
    if outcome.can_fail is False:
        return "The limits give no evidence: on this table, even a copy of train stays within them."
    if outcome.finds_no_leak:
        return "This attack could not find any leak, because there are too few people."
    return f"There are too few people for this attack. {leak_sentence(outcome, sizes, only=True)}"


def _meaning_of(outcome: LimitOutcome) -> str:
    """Return the meaning of the limited statistic in lower case without a period, or its name if it
    is not known.
    """
    spec = statistic_spec(outcome.limit.statistic)
    if spec is None:
        return clean(outcome.limit.statistic, 60)
    meaning = spec.meaning.rstrip(".")
    starts_with_name = "'s" in meaning.split(" ")[0]  # Gretel's
    if starts_with_name:
        return meaning
    return f"{meaning[0].lower()}{meaning[1:]}"


def _source(results: Mapping[str, MetricResult]) -> str:
    """Return a sentence with the columns in which training people agree with released rows, or
    "".
    """
    names = []
    for result in results.values():
        for row in result.tables.get("matched_columns", ())[:3]:
            if row["share"] >= MATCHED:
                names.append(clean(row["column"], 60))
    if not names:
        return ""
    return f" Their rows agree most in these columns: {', '.join(names)}."


def _reason(strongest: LimitOutcome | None) -> str:
    return "The policy has no limit here." if strongest is None else strongest.reason


def _strength(outcome: LimitOutcome) -> tuple[int, bool, bool, float]:
    """Return a sort key. The strongest limit has the smallest key, see :class:`Answer`."""
    used = outcome.used()
    is_unknown = outcome.status == "fail" and cause_of(outcome) == _UNKNOWN
    rank = math.inf if math.isnan(used) else -used
    return WORST_FIRST.index(outcome.status), is_unknown, outcome.blind, rank


def _planted(evidence: Evidence, group: str) -> str:
    """Return sentences on the smallest planted leaks for which a limit failed, for a question or
    for all, or "".

    They name the kind that is easiest to find and the kind that is hardest to find.
    """
    planted = sorted(_planted_shares(evidence, group))
    if not planted:
        return ""
    largest_dose = _largest_dose(evidence)
    detected = [leak for leak in planted if leak.share <= largest_dose]
    if not detected:
        return ""
    easiest = detected[0]
    size = _share_of_release(easiest.share, evidence.sizes)
    text = f"{sentence(easiest.kind)[:-1]} would have been found if they were at least {size}."
    if len(detected) < len(planted):
        return f"{text} {_not_always_found(planted[-1].kind, evidence)}"
    if len(detected) == 1:
        return text
    hardest = detected[-1]
    size = _share_of_release(hardest.share, evidence.sizes)
    return (
        f"{text} The kind that is hardest to find, {hardest.kind}, would have been found at {size}."
    )


def _planted_answer(evidence: Evidence) -> tuple[str, str]:
    """Return which planted leaks would have been found, in people if each person has one row.

    The first part has the kind that is hardest to find. The second part has the other end.
    """
    planted = sorted(_planted_shares(evidence, _GATE))
    hardest = planted[-1]
    text = "As a test, copies were planted in this table."
    if hardest.share > _largest_dose(evidence):
        return "Not all kinds", f"{text} {_not_always_found(hardest.kind, evidence)}"
    smallest_size = evidence.sizes.planted(planted[0].share)
    size = evidence.sizes.planted(hardest.share)
    text += f" With copies of {size}, a limit fails with 95 % probability"
    if smallest_size != size:
        text += f"; for the kind that is easiest to find, {smallest_size} suffice"
    return f"Yes, of {size} or more", f"{text}. Smaller leaks can remain undetected."


def _largest_dose(evidence: Evidence) -> float:
    """Return the largest planted share of the rows. Larger shares are extrapolated."""
    for name, metric in METRICS.core_and(evidence.results).items():
        if metric.detectable_leaks and name in evidence.results:
            return float(max(evidence.results[name].settings.get("doses", (_LARGEST_DOSE,))))
    return _LARGEST_DOSE


def _not_always_found(kind: str, evidence: Evidence) -> str:
    share = percent(_largest_dose(evidence))
    return f"{sentence(kind)[:-1]} were not always found at {share} of the rows."


class _PlantedLeak(NamedTuple):
    """Smallest planted leak for which a limit failed.

    Attributes:
        share: Share of the released rows.
        kind: Description in lower case.
    """

    share: float
    kind: str


def _planted_shares(evidence: Evidence, group: str) -> list[_PlantedLeak]:
    """Return the smallest planted leak of each kind, for a question or for all."""
    leaks = []
    for name, metric in METRICS.core_and(evidence.results).items():
        for question, statistics in metric.detectable_leaks.items():
            if group not in (question, _GATE):
                continue
            for statistic, kind in statistics.items():
                estimate = evidence.estimates.get(f"{name}.{statistic}")
                if estimate is not None and estimate.measurable:
                    leaks.append(_PlantedLeak(estimate.value, kind))
    return leaks


def _share_of_release(share: float, sizes: Sizes) -> str:
    """Return a share of the released rows, for example ``1.7 % of the released rows (about 51
    people)``.
    """
    text = f"{percent(share)} of the released rows"
    if not sizes.n_released:
        return text
    return f"{text} (about {sizes.planted(share)})"


def _smallest_leak(outcomes: Sequence[LimitOutcome], sizes: Sizes) -> str:
    """Return a sentence on the smallest leak that the limits would have found, or "".

    Statistics are compared by the smallest leak as a multiple of the tolerance, because their units
    differ.
    """
    smallest: dict[str, LimitOutcome] = {}  # by statistic
    for outcome in outcomes:
        statistic = outcome.limit.statistic
        has_evidence = outcome.passed and not outcome.blind and not outcome.by_rule
        if not (has_evidence and 0 < outcome.smallest_leak < math.inf):
            continue
        if statistic not in smallest or outcome.smallest_leak < smallest[statistic].smallest_leak:
            smallest[statistic] = outcome
    if not smallest:
        return ""
    most_sensitive = min(
        smallest.values(), key=lambda outcome: outcome.smallest_leak / max(outcome.tolerance, 1e-9)
    )
    return leak_sentence(most_sensitive, sizes)


def leak_sentence(outcome: LimitOutcome, sizes: Sizes = NO_SIZES, *, only: bool = False) -> str:
    """Return a sentence on the smallest leak that a limit would have found, rounded up.

    Args:
        outcome: Outcome of a limit on a statistic that was computed.
        sizes: Sizes of the tables.
        only: Whether the sentence states that no smaller leak would have been found.
    """
    condition = "only if" if only else "if"
    start_of_text = f"A leak would have been found {condition}"
    statistic = outcome.limit.statistic
    spec = statistic_spec(statistic)
    if spec is None or not spec.leak:
        name = clean(statistic, 60)
        return f"{start_of_text} it moved {name} by {number(outcome.smallest_leak)}."
    origin = _value_without_leak(outcome.estimate)
    size = origin - outcome.smallest_leak
    if outcome.limit.at_most is not None:
        size = origin + outcome.smallest_leak
    rounded = two_digits(size, math.ceil)
    leak = spec.leak.replace("{share}", percent(rounded))
    leak = leak.replace(PEOPLE, sizes.in_brackets(rounded))
    leak = leak.replace(PEOPLE_WHO_FIT, sizes.of_fitting(rounded))
    text = f"{start_of_text} {leak}."
    if outcome.smallest_leak > outcome.tolerance:
        text += f" The policy tolerates {_in_unit(statistic, origin + outcome.tolerance)}."
    return text


def _value_without_leak(estimate: Estimate | None) -> float:
    """Return the null, from which leaks are measured; 0 for two-sided or unknown ones."""
    if estimate is None or estimate.direction == "two_sided":
        return 0.0
    if not math.isfinite(estimate.null):
        return 0.0
    return estimate.null


def _not_tested(
    estimates: Mapping[str, Estimate], results: Mapping[str, MetricResult], group: str
) -> list[str]:
    """Return metrics of the question that did not run, and statistics of the others that have no
    value.
    """
    not_run = []
    without_value = []
    for name in _names_of_group(statistic_specs(results), group):
        metric = name.partition(".")[0]
        if metric not in results and metric not in not_run:
            not_run.append(metric)
        if name in estimates and not estimates[name].measurable:
            without_value.append(name)
    return not_run + without_value
