"""What to do about a table that does not pass, by the cause that its statistics point at: at most three things each.

A table that holds copies breaks nearly every limit, so that a limit alone tells little. Where copies show, they are the
cause; where training people are nearer to the table than others without any copy, it is over-fitting; where only
people unlike all others are given away, it is their rare values. The actions are Gretel's recourses (Data Privacy
Score, section "Recourse"): filters, over-fitting protection, differential privacy, more people, de-identified columns;
each beside what it costs, which is this project's judgement. Which cause a limit speaks of, each metric declares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privacy_assets.metrics.declarations import Cause, Causes
from privacy_assets.report.text import wants_input
from privacy_assets.stats.limits import LimitOutcome

if TYPE_CHECKING:
    from privacy_assets.report.configuration import Protection
    from privacy_assets.stats.estimates import Estimate


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do, and what it costs.

    Where one of the ``protections`` of that name is on already, ``once_on`` is done instead.
    """

    do: str
    cost: str
    protections: tuple[str, ...] = ()
    once_on: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """What the cause of broken limits is, in one sentence, and at most three actions, the cheapest first."""

    means: str
    actions: tuple[Action, ...]


_LESS_FITTING = Action(
    "Train for fewer epochs, or with larger leaves (generator: {name: synthpop, settings: {min_leaf: 200}})",
    "fine dependencies between columns blur",
)
_PRIVATE = Action(
    "Use a differentially private generator",
    "noise on everything it learns, most of all on small groups",
    ("differential privacy",),
    "Lower the epsilon of the generator",
)
ADVICE: dict[str, Advice] = {  # by cause
    "copied rows": Advice(
        "The table holds copies, or near copies, of training rows. More training rows would be copied as well.",
        (
            Action(
                "Train for fewer epochs, or with larger leaves, or take another generator: one that returns its"
                " training rows cannot be mended by a filter",
                "fine dependencies between columns blur",
            ),
            Action(
                "Where only a few rows are copied, leave out those that point at few people, measured against train and"
                " holdout alike (generator: {filter: memorization})",
                "combinations that are common anyway get a little rarer",
                ("memorization", "similarity"),
                "Let the filter leave out more: raise its quantile",
            ),
            _PRIVATE,
        ),
    ),
    "over-fitting": Advice(
        "The generator fits its training people better than people it never saw, though no rows are copied.",
        (
            Action("Train on more people, where there are more", "nothing: each person weighs less"),
            _LESS_FITTING,
            _PRIVATE,
        ),
    ),
    "rare values": Advice(
        "People unlike all others are given away by their rare values, though no rows are copied.",
        (
            Action(
                "Round, cap or group the rare values of the columns that single people out, before training",
                "the detail of these columns goes for everybody",
            ),
            Action("Leave out the columns that nobody needs (data: {drop: [column, column]})", "these columns"),
            Action(
                "Leave out the synthetic rows that stand alone (generator: {filter: outliers}); no help against"
                " singling out",
                "rare groups and extreme values get lost",
                ("outliers",),
                "Lower the quantile of the outlier filter; no help against singling out",
            ),
        ),
    ),
    "members avoided": Advice(
        "The table keeps away from its training people, and this tells who they are.",
        (
            Action(
                "Take back filters that measure against training rows alone: measure against all real rows, or do not"
                " filter",
                "nothing: the rows that were removed come back",
            ),
        ),
    ),
    "identifiers": Advice(
        "Identifiers or text of real people stand in generated columns.",
        (
            Action("Make these columns without a look at the real values", "nothing: they belong to one person each"),
            Action("Leave them out (data: {drop: [column, column]})", "these columns"),
        ),
    ),
    "foreign values": Advice(
        "Cells hold values that no real row has: they could carry anything.",
        (
            Action("Keep to the values of real rows", "nothing: nobody needs a category that does not exist"),
            Action(
                "Declare the values that may stand in the column as well (data: {domains: {column: [value, value]}})",
                "nothing",
            ),
        ),
    ),
    "earlier releases": Advice(
        "Together with the earlier releases of these people, the table gives them away.",
        (
            Action("Train on people of whom nothing was released yet", "other people have to be found"),
            Action("Publish no further table of these people", "what was released cannot be taken back"),
        ),
    ),
    "poor fit": Advice(
        "The table is of less use than the policy asks for.",
        (
            Action(
                "Fit closer: more epochs, smaller leaves, a larger epsilon, or another generator",
                "it may give more away: every limit is judged again",
            ),
        ),
    ),
    "small holdout": Advice(
        "There are too few people to tell; the limits say how many more are needed, where that is known.",
        (
            Action(
                "Put more people into the holdout (split: {shares: {train: 0.4, holdout: 0.4, reference: 0.2}}), or"
                " take more people",
                "people of the holdout are not learnt from",
            ),
            Action(
                "Name the column that tells people apart (data: {subject: column}), if one person has several rows:"
                " nobody may stand on both sides of the split",
                "nothing",
            ),
        ),
    ),
    "seen holdout": Advice(
        "The holdout was not unseen by whoever made the table, so that nothing can be measured against it.",
        (Action("Take a holdout of people whom nobody who made the table has used", "nothing"),),
    ),
    "few tests": Advice(
        "The generator was attacked too few times to tell.",
        (Action("Attack more tables (setting tests of the metric)", "time"),),
    ),
}
_ANY_LEAK = "any leak"
_LEAKS: tuple[Cause, ...] = ("copied rows", "over-fitting", "rare values")  # the first that shows explains the others


def advice(outcomes: Iterable[LimitOutcome], configuration: Iterable[Protection] = ()) -> list[dict[str, Any]]:
    """Plain records of the causes of the limits that did not pass: cause, what it means, keys of limits, what to do.

    ``configuration`` are the protections of the table: what is on already is not asked for again. All outcomes of a
    table tell more than some: a limit on singling out alone is broken by copies as well. Too few people are no cause
    while rows leak: that has to be mended first. What broke a limit comes before what left one open.
    """
    broken_first = sorted(outcomes, key=lambda outcome: outcome.status != "fail")
    causes = {outcome.limit.key: cause_of(outcome) for outcome in broken_first}
    leak = next((cause for cause in _LEAKS if cause in causes.values()), "over-fitting")
    leaks = {_ANY_LEAK, *_LEAKS} & {*causes.values()}
    limits: dict[str, list[str]] = {}
    for key, cause in causes.items():
        mended_first = cause == "small holdout" and (leaks or "members avoided" in causes.values())
        if cause and not mended_first:
            limits.setdefault(leak if cause in leaks else cause, []).append(key)
    on = {protection.name for protection in configuration if protection.state == "on"}
    return [_record(cause, keys, on) for cause, keys in limits.items()]


def cause_of(outcome: LimitOutcome) -> str:
    """Why this limit did not pass, by itself; empty where it did, or for want of a setting.

    What is undecided and significantly beyond chance speaks of its cause as what is broken does.
    """
    declared, estimate = _declared(outcome), outcome.estimate
    if outcome.passed or estimate is None:
        return ""
    if outcome.status == "not_assessable" and not (estimate.about == "release" and _beyond_chance(estimate)):
        return "" if wants_input(estimate) else declared.doubt
    statistic = outcome.limit.statistic.partition(".")[2]
    cause = declared.by_statistic.get(statistic, declared.broken) or _ANY_LEAK
    avoids = estimate.direction == "two_sided" and estimate.null - estimate.low > estimate.high - estimate.null
    return "members avoided" if avoids and cause in (*_LEAKS, _ANY_LEAK) else cause


def _beyond_chance(estimate: Estimate) -> bool:
    above, below = estimate.low > estimate.null, estimate.high < estimate.null
    return {"higher_is_riskier": above, "lower_is_riskier": below, "two_sided": above or below}[estimate.direction]


def _declared(outcome: LimitOutcome) -> Causes:
    """What the metric of a limit declares; of one that is not known here, nothing."""
    from privacy_assets.metrics.registry import METRICS  # takes long to import: only where there is a report

    metric = outcome.limit.metric
    return METRICS[metric].causes if metric in METRICS else Causes()


def _record(cause: str, limits: list[str], on: set[str]) -> dict[str, Any]:
    found = ADVICE[cause]
    todo = [{"what": one.once_on if on & {*one.protections} else one.do, "cost": one.cost} for one in found.actions]
    return {"cause": cause, "means": found.means, "limits": limits, "todo": todo}
