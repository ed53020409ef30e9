"""Advice on tables that do not pass, by the cause that the statistics indicate: at most three actions each.

A table with copies exceeds nearly every limit, so a single limit indicates little. If there are copies, they are the
cause. If members are nearer to the table than non-members without copies, the cause is overfitting. If only unusual
people are disclosed, their rare values are the cause. Actions follow the section "Recourse" of Gretel's Data Privacy
Score: filters, overfitting protection, differential privacy, more people, de-identified columns. Their costs are this
project's assessment. Metrics declare the cause that each of their limits indicates.

The privacy configuration lists the protections of a table, as defined by Gretel: privacy filters, overfitting
protection and differential privacy. An active protection does not imply that it suffices, which the statistics show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from privacy_assets.generators.filters import FILTERS
from privacy_assets.metrics.base import Cause, Causes
from privacy_assets.metrics.registry import METRICS
from privacy_assets.policy import LimitOutcome
from privacy_assets.report.words import clean, number, sentence
from privacy_assets.stats.estimates import Estimate


@dataclass(frozen=True, slots=True)
class Action:
    """An action and its cost.

    Attributes:
        do: What to do.
        cost: Its cost.
        protections: Names of protections.
        once_on: What to do instead if one of these protections is already active.
    """

    do: str
    cost: str
    protections: tuple[str, ...] = ()
    once_on: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """Meaning of a cause in one sentence, and at most three actions, cheapest first."""

    means: str
    actions: tuple[Action, ...]


_LESS_FITTING = Action(
    "Train for fewer epochs, or with larger leaves (generator: {name: synthpop, settings: {min_samples_leaf: 200}})",
    "weaker fine dependencies between columns",
)
_PRIVATE = Action(
    "Use a differentially private generator",
    "noise, which affects small groups most",
    ("differential privacy",),
    "Lower the epsilon of the generator",
)
ADVICE: dict[str, Advice] = {  # by cause
    "copied rows": Advice(
        "The table contains copies or near copies of training rows. Additional training rows would be copied, too.",
        (
            Action(
                "Train for fewer epochs or with larger leaves, or use another generator: a filter cannot fix a"
                " generator that returns its training rows",
                "weaker fine dependencies between columns",
            ),
            Action(
                "If only a few rows are copied, remove copies that few people share, measured against both train and"
                " holdout (generator: {filter: memorization})",
                "common combinations become slightly rarer",
                ("memorization", "similarity"),
                "Raise the quantile of the filter, so that it removes more rows",
            ),
            _PRIVATE,
        ),
    ),
    "over-fitting": Advice(
        "The generator fits its training people better than other people, although no rows are copied.",
        (
            Action("Train on more people, if available", "none: each person has less influence"),
            _LESS_FITTING,
            _PRIVATE,
        ),
    ),
    "rare values": Advice(
        "Unusual people are disclosed by their rare values, although no rows are copied.",
        (
            Action(
                "Before training, round, cap or group rare values of the columns that single people out",
                "less detail in these columns for all rows",
            ),
            Action("Drop columns that are not needed (data: {drop: [column, column]})", "loss of these columns"),
            Action(
                "Remove isolated synthetic rows (generator: {filter: outliers}); this does not reduce singling out",
                "loss of rare groups and extreme values",
                ("outliers",),
                "Lower the quantile of the outlier filter; this does not reduce singling out",
            ),
        ),
    ),
    "members avoided": Advice(
        "The release avoids training rows, which reveals membership.",
        (
            Action(
                "Remove filters that compare with training rows only: compare with all real rows, or do not filter",
                "none: the removed rows are included again",
            ),
        ),
    ),
    "identifiers": Advice(
        "Generated columns contain identifiers or text of real people.",
        (
            Action("Generate these columns independently of the real values", "none: each value belongs to one person"),
            Action("Drop them (data: {drop: [column, column]})", "loss of these columns"),
        ),
    ),
    "values of one person": Advice(
        "The table contains values that only one person of the training data has. The report lists the columns.",
        (
            Action(
                "Let the pipeline make the table (privacy-assets run, Dagster or Airflow): it replaces rare values and"
                " rounds fine numbers in train before the generator sees them",
                "less detail in rare values",
            ),
            Action("Before training, group or drop rare values and round fine numbers in these columns", "the same"),
            Action("Drop columns that are not needed (data: {drop: [column, column]})", "loss of these columns"),
        ),
    ),
    "foreign values": Advice(
        "Cells contain values that no real row has, which could encode arbitrary information.",
        (
            Action("Use only values of real rows", "none: other categories do not exist in the data"),
            Action(
                "Declare additional allowed values of the column (data: {allowed_values: {column: [value, value]}})",
                "none",
            ),
        ),
    ),
    "earlier releases": Advice(
        "In combination with earlier releases of the same people, the table discloses them.",
        (
            Action("Train on people who are in no earlier release", "other people are needed"),
            Action("Publish no further table of these people", "earlier releases cannot be withdrawn"),
        ),
    ),
    "poor fit": Advice(
        "The table is less useful than the policy requires.",
        (
            Action(
                "Fit more closely: more epochs, smaller leaves, a larger epsilon, or another generator",
                "it may disclose more; every limit is evaluated again",
            ),
        ),
    ),
    "small holdout": Advice(
        "There are too few people to decide. If known, the limits state how many more are needed.",
        (
            Action(
                "Assign more people to the holdout (split: {train: 0.4, holdout: 0.4, reference: 0.2}), or"
                " use more people",
                "the generator is not trained on people in the holdout",
            ),
            Action(
                "If a person has several rows, name the column that identifies people (data: {subject: column}), so"
                " that no person is on both sides of the split",
                "none",
            ),
        ),
    ),
    "seen holdout": Advice(
        "The holdout was used in generating the table, so comparisons with it are not valid.",
        (Action("Use a holdout of people whose rows were not used in generating the table", "none"),),
    ),
    "few tests": Advice(
        "Too few attacks on the generator were run to decide.",
        (Action("Attack more tables (setting tests of the metric)", "computing time"),),
    ),
}
_ANY_LEAK = "any leak"
_LEAKS: tuple[Cause, ...] = (
    "copied rows",
    "over-fitting",
    "rare values",
    "values of one person",
)  # the first one present explains the others


def advice(outcomes: Iterable[LimitOutcome], configuration: Iterable[Protection] = ()) -> list[dict[str, Any]]:
    """List the causes of limits that did not pass, as plain records: cause, meaning, keys of limits, actions.

    Causes are derived from all outcomes of a table, because copies also affect limits on other attacks. An insufficient
    sample is not reported while rows leak, because the leak must be fixed first. Causes of failed limits come first.

    Args:
        outcomes: All outcomes that did not pass.
        configuration: Protections of the table; active ones are not recommended again.
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


def first_remedy(advised: Iterable[Mapping[str, Any]]) -> str:
    """Return the first action of :func:`advice` as an imperative in lower case with a period, or ""."""
    what = next((action["what"] for found in advised for action in found["todo"]), "")
    return f"{what[0].lower()}{what[1:]}." if what else ""


def cause_of(outcome: LimitOutcome) -> str:
    """Return the cause of a limit that did not pass, considered alone.

    Empty if it passed or an input is missing. A limit that is not assessable but significantly beyond chance has the
    same cause as a failed one.
    """
    declared, estimate = _declared(outcome), outcome.estimate
    if outcome.passed or estimate is None:
        return ""
    if outcome.status == "not_assessable" and not (estimate.measures == "release" and _beyond_chance(estimate)):
        return "" if wants_input(estimate) else declared.undecided
    statistic = outcome.limit.statistic.partition(".")[2]
    cause = declared.by_statistic.get(statistic, declared.broken) or _ANY_LEAK
    avoids = estimate.direction == "two_sided" and estimate.null - estimate.low > estimate.high - estimate.null
    return "members avoided" if avoids and cause in (*_LEAKS, _ANY_LEAK) else cause


def _beyond_chance(estimate: Estimate) -> bool:
    above, below = estimate.low > estimate.null, estimate.high < estimate.null
    return {"higher_is_riskier": above, "lower_is_riskier": below, "two_sided": above or below}[estimate.direction]


def _declared(outcome: LimitOutcome) -> Causes:
    """Return the causes declared by the limit's metric; empty for unknown metrics."""
    metric = outcome.limit.metric
    return METRICS[metric].causes if metric in METRICS else Causes()


def _record(cause: str, limits: list[str], on: set[str]) -> dict[str, Any]:
    found = ADVICE[cause]
    todo = [{"what": one.once_on if on & {*one.protections} else one.do, "cost": one.cost} for one in found.actions]
    return {"cause": cause, "means": found.means, "limits": limits, "todo": todo}


State = Literal["on", "off", "unknown"]

_TITLES = {
    **{name: f"{name.removesuffix('s')} filter" for name in FILTERS},
    "over-fitting": "over-fitting protection",
}
_COVERS = {
    **{name: kind.covers for name, kind in FILTERS.items()},
    "over-fitting": "memorized training rows",
    "differential privacy": "any attack on one training row, within its bound and scope",
}


@dataclass(frozen=True, slots=True)
class Protection:
    """A protection.

    Attributes:
        name: Name in settings and advice.
        title: Name for readers.
        state: "unknown": not reported, as for external tables and external code.
        how: Description of its settings.
        covers: What it protects against.
        statistics: Statistics that measure this.
    """

    name: str
    title: str
    state: State
    how: str
    covers: str
    statistics: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a plain mapping."""
        return {**asdict(self), "statistics": list(self.statistics)}


def privacy_configuration(generator: Mapping[str, Any] | None) -> list[Protection]:
    """List the protections of a table, given the ``generator`` description of its report.

    The key "filter" is the filter description of a snapshot (None: no filter), "overfitting" describes the generator's
    protection ("": none), and "privacy" is its budget. Missing keys give "unknown".
    """
    stated = generator or {}
    states = {name: _filter(name, stated) for name in FILTERS}
    states |= {"over-fitting": _overfitting(stated.get("overfitting")), "differential privacy": _budget(stated)}
    return [
        Protection(name, _TITLES.get(name, name), state, how, _COVERS[name], _statistics(name))
        for name, (state, how) in states.items()
    ]


def _statistics(protection: str) -> tuple[str, ...]:
    """Return the full names of the statistics that measure the effect of a protection."""
    every = [(name, one) for name, metric in METRICS.items() for one in metric.protections]
    declared = [(name, one) for name, one in every if one.protection == protection]
    declared.sort(key=lambda pair: not pair[1].primary)
    return tuple(f"{name}.{statistic}" for name, one in declared for statistic in one.statistics)


def _filter(name: str, generator: Mapping[str, Any]) -> tuple[State, str]:
    stated = generator.get("filter", {})
    if stated is None:
        return "off", ""
    filters = stated.get("filters")
    if not isinstance(filters, Mapping):
        return "unknown", ""
    if name not in filters:
        return "off", ""
    settings = [f"{key} {value}" for key, value in filters[name].items() if value is not None and key != "attempts"]
    dropped, drawn = (stated.get("dropped_by") or {}).get(name), stated.get("drawn")
    counts = [f"{number(dropped)} of {number(drawn)} rows removed"] if dropped is not None and drawn else []
    return "on", ", ".join([*settings, *counts])


def _overfitting(protection: str | None) -> tuple[State, str]:
    if protection is None:
        return "unknown", ""
    return ("on", protection) if protection else ("off", "")


def _budget(generator: Mapping[str, Any]) -> tuple[State, str]:
    budget = generator.get("privacy")
    if not isinstance(budget, Mapping) or not budget.get("known", True):
        return "unknown", ""
    if budget.get("epsilon") is None:
        return "off", ""
    words = [f"epsilon {number(budget['epsilon'])}, delta {number(budget.get('delta') or 0)}"]
    words += [f"for {budget['covers']}"] if budget.get("covers") else []
    words += [f"by {budget['accountant']}"] if budget.get("accountant") else []
    outside_guarantee = budget.get("outside_guarantee")
    return "on", ", ".join(words) + (f"; not covered: {', '.join(outside_guarantee)}" if outside_guarantee else "")


def wants_input(estimate: Estimate) -> bool:
    """Return True if an optional input is missing, so that more rows would not make the statistic measurable."""
    known = estimate.note.startswith("not measurable") or estimate.measures == "evaluation"
    return math.isnan(estimate.value) and not known


def what_to_do(outcome: LimitOutcome) -> str:
    """Return the limit's own advice on a failure, or the missing input of an unmeasured statistic, else "".

    General advice is in :data:`ADVICE`.
    """
    if outcome.passed:
        return ""
    if outcome.status == "fail":
        return sentence(outcome.limit.advice)
    if outcome.estimate is None:
        return f"Run the metric {outcome.limit.metric}, which the policy requires."
    if wants_input(outcome.estimate):
        return "Provide the missing input of the metric, or remove this limit from the policy deliberately."
    return ""


def limit_advice(outcomes: Iterable[LimitOutcome]) -> dict[str, list[str]]:
    """Group the keys of limits by their own advice."""
    keys: dict[str, list[str]] = {}
    for outcome in outcomes:
        if advised := what_to_do(outcome):
            keys.setdefault(clean(advised, 600), []).append(clean(outcome.limit.key, 60))
    return keys
