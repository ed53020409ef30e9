"""What can be done about a table that gives people away: Gretel's recourses, each beside the utility it costs.

Gretel (Data Privacy Score, section "Recourse", and the techniques of its introduction) names the recourses: fewer
epochs and over-fitting protection, filters of similar and of outlying synthetic rows, differential privacy or a lower
epsilon, a larger training set, de-identified columns; and says that each can lower the quality of the table. How much
each costs, and which limits it helps, is this project's judgement, with its reason; nothing of it was measured. Which
of them are for limits on which metric, each metric declares. What is on already
(:mod:`privacy_assets.report.configuration`) is not asked for again, but can be turned up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from privacy_assets.metrics.declarations import Recourses
from privacy_assets.stats.limits import LimitOutcome

if TYPE_CHECKING:
    from privacy_assets.report.configuration import Protection

Loss = Literal["none", "small", "medium", "large"]
State = Literal["leak", "avoidance", "doubt", "useless", "other"]

_FILTERS = ("similarity", "memorization", "outliers")


@dataclass(frozen=True, slots=True)
class Recourse:
    """One thing to do, the utility it is expected to cost, and why.

    ``against`` is the state of a limit that it is for, see :func:`state_of`: any limit in this state, but for those of
    metrics that declare otherwise; or where it is ``asked_for`` those of metrics that declare it alone, see
    :class:`~privacy_assets.metrics.declarations.Recourses`. It turns protections on (where none of those named in
    ``turns_on`` is), or up (where one of those in ``turns_up`` is on); or has nothing to do with any.
    """

    name: str
    action: str
    loss: Loss
    why: str
    against: State = "leak"
    asked_for: bool = False
    turns_on: tuple[str, ...] = ()
    turns_up: tuple[str, ...] = ()

    def fits(self, on: Collection[str]) -> bool:
        """True when it still can be done where the protections ``on`` are on."""
        return not any(name in on for name in self.turns_on) and (
            not self.turns_up or any(x in on for x in self.turns_up)
        )

    def helps(self, outcome: LimitOutcome) -> bool:
        """True when this is a recourse for the limit as it came out."""
        declared, statistic = _declared(outcome), outcome.limit.statistic.partition(".")[2]
        if self.asked_for:
            helped = declared.also.get(self.name)
            named = helped is not None and (not helped or statistic in helped)
        else:
            named = self.name not in declared.never and (declared.general or self.against != "leak")
        return named and self.against == state_of(outcome)


RECOURSES = (  # the least loss first
    Recourse(
        "no one-sided filter",
        "Take back filters that measure against training rows alone; measure against all real rows, or do not filter",
        "none",
        "the rows that it removed come back",
        against="avoidance",
    ),
    Recourse(
        "more training people",
        "Train on more people",
        "none",
        "each person weighs less and the table gets more accurate, if more people can be had",
    ),
    Recourse(
        "closer fitting",
        "Fit closer: more epochs, smaller leaves, a larger epsilon, or another generator",
        "none",
        "the table gets more useful, and may give more away: every limit is judged anew",
        against="useless",
    ),
    Recourse(
        "values of the real table",
        "Keep to values that real rows have, or declare those that may stand in the column as well: domains",
        "none",
        "nobody needs a category that does not exist",
        asked_for=True,
    ),
    Recourse(
        "invented values",
        "Make generated columns without a look at those of real rows, or leave them out: drop",
        "none",
        "what belongs to one person is of use to nobody else",
        asked_for=True,
    ),
    Recourse(
        "more tests",
        "Attack more tables (setting tests)",
        "none",
        "it takes longer, and the table stays as it is",
        against="doubt",
        asked_for=True,
    ),
    Recourse(
        "unseen holdout",
        "Bring a holdout of people whom nobody who made the table has used",
        "none",
        "the table stays as it is; against a holdout that was seen, nothing shows",
        against="doubt",
        asked_for=True,
    ),
    Recourse(
        "new people",
        "Train on people of whom nothing was released yet, or publish no further table of these",
        "none",
        "what was released adds up, and cannot be taken back",
        asked_for=True,
    ),
    Recourse(
        "more people to judge by",
        "Measure with more people in the holdout, and in train",
        "small",
        "people who move from train to the holdout are no longer learnt from",
        against="doubt",
    ),
    Recourse(
        "split by person",
        "Name the column that tells people apart (subject), so that nobody stands on both sides of the split",
        "small",
        "what is near to a member is near to the holdout as well where both hold the same person",
        against="doubt",
        asked_for=True,
    ),
    Recourse(
        "memorization filter",
        "Leave out the synthetic rows that point at few people, measured against train and holdout alike: "
        "filter: memorization",
        "small",
        "few rows go; combinations that are common anyway get a little rarer",
        turns_on=("memorization", "similarity"),
    ),
    Recourse(
        "over-fitting protection",
        "Stop training when rows set aside from train (never the holdout) are no longer fitted better",
        "small",
        "what is learnt after that belongs to single rows",
        turns_on=("over-fitting",),
    ),
    Recourse(
        "similarity filter",
        "Leave out every synthetic row that lies close to a real one, measured against train and holdout alike: "
        "filter: similarity",
        "medium",
        "combinations that many people share go as well",
        turns_on=("similarity",),
    ),
    Recourse(
        "outlier filter",
        "Leave out the synthetic rows that stand alone: filter: outliers",
        "medium",
        "averages stay, but rare groups and extreme values get lost",
        asked_for=True,
        turns_on=("outliers",),
    ),
    Recourse(
        "stricter filters",
        "Let the filters leave out more: raise the quantile of similarity or memorization, lower that of outliers",
        "medium",
        "more of what is common, or of the tails, gets lost",
        turns_up=_FILTERS,
    ),
    Recourse(
        "coarser columns",
        "Before training, round, cap or group the rare values of the columns that give people away",
        "medium",
        "the detail of these columns goes for everybody",
        asked_for=True,
    ),
    Recourse(
        "less fitting",
        "Train for fewer epochs, or with larger leaves",
        "medium",
        "fine dependencies between columns blur",
    ),
    Recourse(
        "differential privacy",
        "Use a differentially private generator, or one with a lower epsilon",
        "large",
        "noise on everything it learns, most of all on small groups",
        turns_on=("differential privacy",),
    ),
    Recourse(
        "lower epsilon",
        "Lower the epsilon of the generator",
        "large",
        "more noise on everything it learns, most of all on small groups",
        turns_up=("differential privacy",),
    ),
)


def state_of(outcome: LimitOutcome) -> State:
    """What is wrong with a limit: "leak" (broken), "avoidance" (broken because members are avoided), "useless" (broken
    for utility), "doubt" (too few people to judge, or the gate is underpowered) or "other" (it passed, or its statistic
    was not measured).
    """
    estimate = outcome.estimate
    if estimate is not None and estimate.about == "gate" and not outcome.passed:
        return "doubt"
    if outcome.passed or estimate is None or not estimate.measurable:
        return "other"
    if outcome.status == "not_assessable":
        return "doubt"
    means = _declared(outcome).broken_means
    if means != "leak or avoidance":
        return means
    avoids = estimate.direction == "two_sided" and estimate.null - estimate.low > estimate.high - estimate.null
    return "avoidance" if avoids else "leak"


def _declared(outcome: LimitOutcome) -> Recourses:
    """What the metric of a limit declares; of one that is not known here, nothing."""
    from privacy_assets.metrics.registry import METRICS  # takes long to import: only where there is a report

    metric = outcome.limit.metric
    return METRICS[metric].recourses if metric in METRICS else Recourses()


def recourses(outcomes: Iterable[LimitOutcome], configuration: Iterable[Protection] = ()) -> list[dict[str, Any]]:
    """Plain records of the recourses that apply, the least loss first, each with the keys of the limits it is for.

    ``configuration`` are the protections of the table; without it nothing is known to be on.
    """
    broken, on = list(outcomes), {protection.name for protection in configuration if protection.state == "on"}
    fitting = [recourse for recourse in RECOURSES if recourse.fits(on)]
    helped = [(recourse, [x.limit.key for x in broken if recourse.helps(x)]) for recourse in fitting]
    texts = ("name", "action", "loss", "why")
    return [{**{text: getattr(recourse, text) for text in texts}, "limits": keys} for recourse, keys in helped if keys]
