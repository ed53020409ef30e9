"""Advice on tables that do not pass, by the cause that the statistics indicate.

A table with copies exceeds nearly every limit, so a single limit indicates little. If there are
copies, they are the cause. If members are nearer to the table than non-members without copies, the
cause is overfitting. If only unusual people are disclosed, their rare values are the cause. Metrics
declare the cause that each of their limits indicates.

``tests/report/test_advice_followed.py`` follows every remedy until the table passes. A remedy that
was followed is not advised again, as far as the report shows it.

The privacy configuration lists the protections of a table, as defined by Gretel: privacy filters,
overfitting protection and differential privacy. An active protection does not imply that it
suffices, which the statistics show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from privacy_assets.errors import safe_repr
from privacy_assets.generators.filters import FILTERS
from privacy_assets.generators.protections import (
    DP,
    OVERFITTING,
    State,
    overfitting_settings,
    protection_states,
)
from privacy_assets.metrics.base import Cause, Causes, Metric
from privacy_assets.metrics.registry import METRICS, metrics_reading
from privacy_assets.policy import DIFFER, NARROW, LimitOutcome
from privacy_assets.report.words import clean, number, sentence, two_digits
from privacy_assets.stats.estimates import NOT_MEASURABLE, Estimate, MetricResult, decimal

_LEAF = 100  # people per leaf of synthpop by default
# values to rehearse
_LEAVES = (100, 200, 500, 1000)
_SHRINKAGES = (30, 100)
_NEAR = 0.5  # used part of a limit from which larger leaves are advised
_FEW_COPIES = 0.1  # statistics of copies up to which the filter suffices
# minimum share of a column in the match of train and release that makes it a source of the leak
MATCHED = 0.1
_CONTINUOUS = ("number", "date")  # roles of columns
# people with which "default" usually decides
_USUALLY_ENOUGH: Mapping[str, int] = {"train": 1_500, "holdout": 900}
_SMALL = range(800, 1_501)  # people in train for whom the policy small is meant
_SMALL_SHARE = 0.08  # share of copies that the policy small tolerates


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts in a report on which remedies were followed.

    Attributes:
        generator: Its description of the generator, see :func:`privacy_configuration`.
        policy: Name of the shipped policy that the policy extends, or "".
        n_subjects: Number of people by table.
        fine: Columns of numbers or times in which most people have a value of their own.
        copied: Largest statistic of copies among the limits that do not hold.
        narrow: Sentence about what cannot be decided because the table has few columns, or "".
        upper_share: Share of copies that cannot be excluded for this reason.
        enough: Sentence about how many people usually suffice, or "".
        is_small_release: Whether the release has fewer rows than train.
    """

    generator: Mapping[str, Any] | None = None
    policy: str = ""
    n_subjects: Mapping[str, int] = field(default_factory=dict)
    fine: tuple[str, ...] = ()
    copied: float = 0.0
    narrow: str = ""
    upper_share: float = 0.0
    enough: str = ""
    is_small_release: bool = False

    @property
    def by_pipeline(self) -> bool:
        """Whether a pipeline made the table. Only pipelines report the filter of a generator, or
        that there is none.
        """
        return "filter" in (self.generator or {})

    def size(self, role: str) -> int:
        """Return the number of people in a table; 0: unknown."""
        return self.n_subjects.get(role, 0)

    @property
    def name(self) -> str:
        """Name of the pipeline's generator, or ""."""
        if not self.by_pipeline:
            return ""
        return str((self.generator or {}).get("name", ""))

    @property
    def stronger(self) -> str:
        """Options that rehearse larger values for the pipeline's trees, with leaves of at most half
        of train, or "".
        """
        if self.name != _TREES:
            return ""
        max_leaf = self.size("train") // 2 or max(_LEAVES)
        leaves = _larger(_LEAVES, self.leaf, max_leaf)[:2]
        shrinkages = _larger(_SHRINKAGES, self._protection("shrinkage"))
        return _try_option("min_samples_leaf", leaves) + _try_option("shrinkage", shrinkages)

    @property
    def leaf(self) -> float:
        """Minimum number of people in a leaf of the pipeline's trees. 0: none, or the generator is
        not ``synthpop``.
        """
        if self.name != _TREES:
            return 0
        return self._protection("min_samples_leaf")

    def _protection(self, setting: str) -> float:
        """Return a setting of the generator that protects against memorizing rows, or 0."""
        settings = overfitting_settings(self.generator) or {}
        return float(settings.get(setting, 0))

    @property
    def filters(self) -> Mapping[str, Any]:
        """Filters of the pipeline's generator by name."""
        return ((self.generator or {}).get("filter") or {}).get("filters") or {}


def _larger(values: Iterable[int], current: float, largest: float = math.inf) -> list[int]:
    """Return the values above the current one, up to the largest."""
    return [value for value in values if current < value <= largest]


def _try_option(name: str, values: Sequence[int]) -> str:
    """Return an option of the command line that tries the values, or "" without values."""
    if not values:
        return ""
    return f" --try {name}={','.join(map(str, values))}"


NO_FACTS = TableFacts()


@dataclass(frozen=True, slots=True)
class Action:
    """A remedy.

    Attributes:
        do: What to do, with the setting in parentheses. Names in braces are replaced, see
            :func:`_filled_in`.
        cost: Its cost.
        applies: Whether the remedy can be followed and was not followed yet.
    """

    do: str
    cost: str
    applies: Callable[[TableFacts], bool] = lambda facts: True


@dataclass(frozen=True, slots=True)
class Advice:
    """Meaning of a cause in one sentence, and remedies, the first to be tried first."""

    means: str
    actions: tuple[Action, ...]


_TREES = "synthpop"
_NETWORK = "baynet"
_STRONGER_TREES = Action(
    "Try larger leaves and more shrinkage without publication: privacy-assets run TABLE"
    " --rehearse{stronger}",
    "weaker dependencies between columns, which the rehearsal measures",
    lambda facts: bool(facts.stronger),
)
_PIPELINE = Action(
    f"Let the pipeline make the table with a built-in generator (generator: {_TREES}): use"
    " privacy-assets run, Dagster"
    " or Airflow",
    "the pipeline rounds fine numbers and replaces rare values before training",
    lambda facts: not facts.by_pipeline,
)
_OTHER_GENERATOR = (
    Action(
        f"Use another generator (generator: {_TREES}), because the table does not pass with"
        " this one",
        "other columns may be reproduced less well",
        lambda facts: facts.by_pipeline and facts.name != _TREES,
    ),
    Action(
        f"Use another generator (generator: {_NETWORK}), because the table does not pass with"
        " this one",
        "other columns may be reproduced less well",
        lambda facts: facts.leaf >= _LEAF,
    ),
)
_ROUND = Action(
    "Before training, round the numbers in {fine} until at least five people share each value",
    "less detail in these columns",
    lambda facts: bool(facts.fine) and not facts.by_pipeline,
)
_DROP = Action(
    "Drop columns that are not needed (data: {drop: [column, column]})", "loss of these columns"
)
ADVICE: dict[str, Advice] = {  # by cause
    "copied rows": Advice(
        "The table contains copies or near copies of training rows. Additional training rows"
        " would be copied, too.",
        (
            _STRONGER_TREES,
            Action(
                "Remove the few copies (generator: {filter: memorization})",
                "common combinations become slightly rarer",
                lambda facts: (
                    facts.by_pipeline
                    and "memorization" not in facts.filters
                    and facts.copied <= _FEW_COPIES
                ),
            ),
            _PIPELINE,
            *_OTHER_GENERATOR,
        ),
    ),
    "over-fitting": Advice(
        "The generator reproduces combinations of values of its training people more often than"
        " those of other people,"
        " although no whole rows are copied.",
        (_STRONGER_TREES, _ROUND, _PIPELINE, *_OTHER_GENERATOR),
    ),
    "rare values": Advice(
        "Unusual people are disclosed by their rare values, although no rows are copied.", (_DROP,)
    ),
    "members avoided": Advice(
        "The release avoids training rows, which reveals membership.",
        (
            Action(
                "Remove the filter that compares the table with train only",
                "none, the removed rows are kept",
            ),
        ),
    ),
    "identifiers": Advice(
        "Generated columns contain identifiers or text of real people.",
        (
            Action(
                "Generate these columns independently of the real values",
                "none, each value belongs to one person",
            ),
            Action("Drop them (data: {drop: [column, column]})", "loss of these columns"),
        ),
    ),
    "values of one person": Advice(
        "The table contains values that only one person of the training data has. The report"
        " lists the columns.",
        (_ROUND, _PIPELINE, _DROP),
    ),
    "values of no real row": Advice(
        "Cells contain values that no real row has. Any information about real people could be"
        " hidden in them.",
        (
            Action(
                "Use only values of real rows", "none, other categories do not exist in the data"
            ),
            Action(
                "Declare additional allowed values of the column (data: {allowed_values:"
                " {column: [value, value]}})",
                "someone must check that they disclose nothing",
            ),
        ),
    ),
    "earlier releases": Advice(
        "This table and the earlier releases of the same people together come too close to"
        " training people.",
        (
            _STRONGER_TREES,
            _PIPELINE,
            Action("Train on people who are in no earlier release", "other people are needed"),
        ),
    ),
    "poor fit": Advice(
        "The table is less useful than the policy requires.",
        (
            Action(
                f"Use smaller leaves (generator: {{name: {_TREES}, settings:"
                f" {{min_samples_leaf: {_LEAF}}}}})",
                "it may disclose more; every limit is evaluated again",
                lambda facts: facts.leaf > _LEAF,
            ),
            _PIPELINE,
            _OTHER_GENERATOR[0],
        ),
    ),
    "too few people": Advice(
        "The tables are too small for a decision. {enough}",
        (
            Action(
                "Assign more people to the holdout (split: {train: 0.4, holdout: 0.4,"
                " reference: 0.2})",
                "the generator is not trained on people in the holdout",
                lambda facts: (
                    facts.by_pipeline and 4 * facts.size("holdout") < 3 * facts.size("train")
                ),
            ),
            Action(
                "Use the limits for small tables, if the owner of the data accepts them"
                " (policy: small)",
                "they tolerate larger leaks",
                lambda facts: facts.policy == "default" and facts.size("train") in _SMALL,
            ),
            Action("Use more people for training and comparison ({people})", "more data"),
        ),
    ),
    "narrow table": Advice(
        "{narrow}.",
        (
            Action("Add columns", "none"),
            Action(
                "Use the policy `small`, which tolerates 8 %, if the owner of the data accepts"
                " it (policy: small)",
                "it tolerates larger leaks",
                lambda facts: facts.policy == "default" and facts.upper_share < _SMALL_SHARE,
            ),
            Action(
                "Use more people for training and comparison, which helps less ({people})",
                "more data",
            ),
        ),
    ),
    "different holdout": Advice(
        "Train and holdout are not random samples of the same people. Some limits measure this"
        " difference instead of a"
        " leak.",
        (
            Action(
                "Divide the people at random into train and holdout, then generate the table"
                " from train again",
                "the generator must be trained again",
            ),
        ),
    ),
    "seen holdout": Advice(
        "The holdout was used in generating the table, so comparisons with it are not valid.",
        (
            Action(
                "Use a holdout of people whose rows were not used in generating the table", "none"
            ),
        ),
    ),
    "few tests": Advice(
        "Too few attacks on the generator were run to decide.",
        (
            Action(
                "Attack more tables: raise the settings tests and shadows of the metric",
                "computing time",
            ),
        ),
    ),
}
_ANY_LEAK = "any leak"
_TOGETHER: Cause = "earlier releases"  # of all releases; a leak of this table alone explains it
_LEAKS: tuple[Cause, ...] = (
    "copied rows",
    "over-fitting",
    "rare values",
    "values of one person",
)  # the first one present explains the others


def advice(outcomes: Iterable[LimitOutcome], facts: TableFacts = NO_FACTS) -> list[dict[str, Any]]:
    """List the causes of limits that did not pass.

    Causes are derived from all outcomes of a table, because copies also affect limits on other
    attacks. An insufficient sample is not reported while rows leak, because the leak must be fixed
    first. Causes of failed limits come first.

    Args:
        outcomes: All outcomes that did not pass.
        facts: What is known about the making of the table. Remedies that were followed are left
            out.

    Returns:
        Plain mappings: cause, meaning, keys of limits, and actions.
    """
    failed_first = sorted(outcomes, key=lambda outcome: outcome.status != "fail")
    causes = {}
    narrow = []
    too_few = []
    for outcome in failed_first:
        cause = cause_of(outcome)
        causes[outcome.limit.key] = cause
        if cause == "narrow table":
            narrow.append(outcome)
        if cause == "too few people":
            too_few.append(outcome)
    facts = replace(facts, copied=_largest_copied(failed_first))
    facts = _with_narrow(facts, narrow)
    facts = replace(facts, enough=_enough(too_few, facts))
    entries = []
    for cause, keys in _limits_by_cause(causes).items():
        entries.append(_advice_on(cause, keys, facts))
    return entries


def _limits_by_cause(causes: Mapping[str, str]) -> dict[str, list[str]]:
    """Group limits by the cause that explains them.

    Args:
        causes: Cause of each limit alone, by key of the limit.

    Returns:
        Keys of limits by cause.
    """
    present = set(causes.values())
    leak = next((cause for cause in _LEAKS if cause in present), "over-fitting")
    leaks = present & {_ANY_LEAK, *_LEAKS}
    if leaks:
        leaks.add(_TOGETHER)
    must_fix_first = leaks or "members avoided" in present
    limits: dict[str, list[str]] = {}
    for key, cause in causes.items():
        if not cause or (must_fix_first and cause in ("too few people", "narrow table")):
            continue
        explanation = leak if cause in leaks else cause
        limits.setdefault(explanation, []).append(key)
    return limits


def _largest_copied(outcomes: Iterable[LimitOutcome]) -> float:
    """Return the largest positive share of copied rows, or 0."""
    largest = 0.0
    for outcome in outcomes:
        metric = METRICS.get(outcome.limit.metric)
        if metric is None or outcome.estimate is None:
            continue
        if outcome.estimate.name in metric.counts_copies:
            largest = max(largest, outcome.estimate.value)
    return largest


def _with_narrow(facts: TableFacts, outcomes: Sequence[LimitOutcome]) -> TableFacts:
    """Add what the undecided limits on a narrow table show: the share of copies that cannot be
    excluded.
    """
    if not outcomes or outcomes[0].estimate is None:
        return facts
    note = sentence(outcomes[0].estimate.note.removeprefix(NOT_MEASURABLE)).rstrip(".")
    measured = [outcome.compared for outcome in outcomes if not math.isnan(outcome.compared)]
    if not measured:
        narrow = f"{note}, so that copies cannot be distinguished from other rows"
        return replace(facts, upper_share=math.nan, narrow=narrow)
    upper = max(measured)
    narrow = f"{note}, so that copies of up to {100 * upper:.1f} % cannot be excluded"
    return replace(facts, upper_share=upper, narrow=narrow)


def _enough(undecided: Sequence[LimitOutcome], facts: TableFacts) -> str:
    """Return how many people usually suffice to decide limits, or "" if this is not known.

    This is the only estimate in a report. It has the numbers with which the default policy usually
    decides or, if there are more people already, the largest estimate of the limits.
    """
    if facts.is_small_release:
        return (
            "A release of fewer rows than the training data shows less about its people: release"
            " more rows, or hold out more people."
        )
    people = dict(_USUALLY_ENOUGH)
    if all(facts.size(role) >= usual for role, usual in _USUALLY_ENOUGH.items()):
        factors = [outcome.people_factor for outcome in undecided]
        if not factors or any(map(math.isnan, factors)):
            return ""
        factor = max(factors)
        for role in people:
            people[role] = int(two_digits(factor * facts.size(role), math.ceil))
    return (
        f"With six columns or more, about {people['train']:,} people in the training data and"
        f" {people['holdout']:,} held-out people usually suffice."
    )


def narrow_advice(outcomes: Iterable[LimitOutcome]) -> str:
    """State what is not decided because the table has few columns, and the remedy, or return ""."""
    undecided = []
    blind = []
    for outcome in outcomes:
        if outcome.passed:
            continue
        if cause_of(outcome) == "narrow table":
            undecided.append(outcome)
        if outcome.blind:
            blind.append(outcome)
    if undecided:
        (entry,) = advice(undecided)
        return f"{entry['means']} {entry['todo'][0]['what']}."
    if not blind:
        return ""
    remedy = what_to_do(blind[0])
    for outcome in blind:
        if outcome.estimate and NARROW in outcome.estimate.note:
            note = outcome.estimate.note.removeprefix(NOT_MEASURABLE)
            return f"{sentence(note)} {remedy}"
    return remedy


def ledger_notes(outcomes: Iterable[LimitOutcome], facts: TableFacts = NO_FACTS) -> list[str]:
    """State each number that counts all releases together and its limit, with advice from half of
    the limit on.

    Args:
        outcomes: All outcomes of a table.
        facts: What is known about the making of the table.

    Returns:
        Sentences.
    """
    notes = []
    for outcome in outcomes:
        used = outcome.used()
        if outcome.limit.metric not in metrics_reading("ledger") or not math.isfinite(used):
            continue
        key = clean(outcome.limit.key, 60)
        compared = number(max(outcome.compared, 0.0))
        note = (
            f"All releases together: {key} is {compared}, its limit {number(outcome.limit.value)}."
        )
        if outcome.passed and used >= _NEAR and _STRONGER_TREES.applies(facts):
            note += f" {_filled_in(_STRONGER_TREES.do, facts)}."
        notes.append(note)
    return notes


def fine_columns(results: Iterable[MetricResult]) -> tuple[str, ...]:
    """Return the columns of numbers or times in which most people have a value of their own, as far
    as measured.

    If train matches the release beyond chance, these are only columns in which it does.

    Args:
        results: Results of all metrics.
    """
    all_results = list(results)
    matched = {}
    for row in _rows_of_tables(all_results, "matched_columns"):
        matched[row["column"]] = row["share"]
    columns = []
    for row in _rows_of_tables(all_results, "columns"):
        if row.get("role") not in _CONTINUOUS or row.get("own") is None:
            continue
        if not matched or matched.get(row["column"], 0) >= MATCHED:
            columns.append(row["column"])
    return tuple(columns)


def _rows_of_tables(results: Iterable[MetricResult], name: str) -> list[Mapping[str, Any]]:
    """Return the rows of all tables of one name, over all metrics."""
    rows: list[Mapping[str, Any]] = []
    for result in results:
        rows += result.tables.get(name, ())
    return rows


def first_remedy(advised: Iterable[Mapping[str, Any]]) -> str:
    """Return the first action of :func:`advice` as an imperative in lower case with a period, or
    "".
    """
    for entry in advised:
        for action in entry["todo"]:
            what = action["what"]
            return f"{what[0].lower()}{what[1:]}." if what else ""
    return ""


def cause_of(outcome: LimitOutcome) -> str:
    """Return the cause of a limit that did not pass, considered alone.

    Empty if it passed or an input is missing. A limit that is undecided but significantly beyond
    chance has the same cause as a failed one.
    """
    declared = _declared(outcome)
    estimate = outcome.estimate
    if outcome.passed or estimate is None:
        return ""
    if outcome.blind:
        if outcome.can_fail is False:
            return ""
        return "narrow table" if NARROW in estimate.note else declared.undecided
    is_beyond_chance = estimate.measures == "release" and _beyond_chance(estimate)
    if outcome.status == "undecided" and not is_beyond_chance:
        return _cause_of_undecided(estimate, declared)
    statistic = outcome.limit.statistic.partition(".")[2]
    cause = declared.by_statistic.get(statistic, declared.failed) or _ANY_LEAK
    if cause in (*_LEAKS, _ANY_LEAK) and _avoids_members(estimate):
        return "members avoided"
    return cause


def _cause_of_undecided(estimate: Estimate, declared: Causes) -> str:
    """Return the cause of an undecided limit whose statistic does not differ from chance."""
    if estimate.note.startswith(DIFFER):
        return "different holdout"
    if NARROW in estimate.note:
        return "narrow table"
    if wants_input(estimate):
        return ""
    return declared.undecided


def _avoids_members(estimate: Estimate) -> bool:
    """Return True if the interval of a two-sided statistic is mostly below chance."""
    reach_below = estimate.null - estimate.low
    reach_above = estimate.high - estimate.null
    return estimate.direction == "two_sided" and reach_below > reach_above


def _beyond_chance(estimate: Estimate) -> bool:
    is_above = estimate.low > estimate.null
    is_below = estimate.high < estimate.null
    return {
        "higher_is_riskier": is_above,
        "lower_is_riskier": is_below,
        "two_sided": is_above or is_below,
    }[estimate.direction]


def _declared(outcome: LimitOutcome) -> Causes:
    """Return the causes declared by the limit's metric; empty for unknown metrics."""
    metric = outcome.limit.metric
    if metric not in METRICS:
        return Causes()
    return METRICS[metric].causes


def _advice_on(cause: str, limits: list[str], facts: TableFacts) -> dict[str, Any]:
    """Return the advice on a cause as a plain mapping."""
    cause_advice = ADVICE[cause]
    todo = []
    for action in cause_advice.actions:
        if action.applies(facts):
            todo.append({"what": _filled_in(action.do, facts), "cost": action.cost})
    means = _filled_in(cause_advice.means, facts)
    return {"cause": cause, "means": means, "limits": limits, "todo": todo}


def _filled_in(words: str, facts: TableFacts) -> str:
    """Replace names in braces: ``fine`` columns, ``people`` by table, and ``stronger`` settings to
    try.
    """
    people = "in the training data and held out"
    if {"train", "holdout"} <= set(facts.n_subjects):
        people = (
            f"now: {facts.size('train'):,} in the training data, {facts.size('holdout'):,} held out"
        )
    columns = ", ".join(map(safe_repr, facts.fine))
    words = words.replace("{stronger}", facts.stronger)
    words = words.replace("{narrow}", facts.narrow)
    words = words.replace("{enough}", facts.enough).strip()
    words = words.replace("{fine}", columns)
    return words.replace("{people}", people)


_TITLES = {OVERFITTING: "over-fitting protection"}
_COVERS = {
    OVERFITTING: "memorized training rows",
    DP: "any attack on one training row, within its bound and scope",
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


def privacy_configuration(
    generator: Mapping[str, Any] | None, metrics: Iterable[str] = ()
) -> list[Protection]:
    """List the protections of a table.

    Args:
        generator: Description of the generator in the report, see
            :func:`.protection_states`.
        metrics: Names of the metrics that ran. Their statistics are listed after the statistics of
            the core.
    """
    classes = METRICS.core_and(metrics)
    protections = []
    for name, state in protection_states(generator).items():
        how = _how(name, generator or {}) if state == "on" else ""
        if name in FILTERS:
            title = f"{name.removesuffix('s')} filter"
            covers = FILTERS[name].covers
        else:
            title = _TITLES.get(name, name)
            covers = _COVERS[name]
        protections.append(Protection(name, title, state, how, covers, _statistics(name, classes)))
    return protections


_OVERFITTING_PHRASES = {  # by setting of a generator
    "min_samples_leaf": "every leaf contains at least {} training people",
    "shrinkage": "leaves are drawn towards their parents, with a shrinkage of {}",
    "degree": "each column has at most {} parents",
    "bins": "numbers are cut into {} bins",
    "patience": "early stopping after {} epochs without improvement on validation people",
    "dropout": "dropout {}",
    "n_critic": "the library's comparison of distances",
    "max_grad_norm": "per-row gradients clipped to norm {}, with noise",
    "noisy_votes": "trained on noisy votes only, not on rows",
}


def _how(name: str, generator: Mapping[str, Any]) -> str:
    """Return the settings of a protection that is on, for readers."""
    if name in FILTERS:
        return _filter_text(name, generator["filter"])
    if name == OVERFITTING:
        return _overfitting_text(overfitting_settings(generator) or {})
    return _budget_text(generator["privacy"])


def _filter_text(name: str, filter_info: Mapping[str, Any]) -> str:
    """Return the settings of a filter and the number of rows that it removed."""
    phrases = []
    for key, value in filter_info["filters"][name].items():
        if value is not None and key != "attempts":
            phrases.append(f"{key} {value}")
    n_dropped = (filter_info.get("dropped_by") or {}).get(name)
    n_drawn = filter_info.get("drawn")
    if n_dropped is not None and n_drawn:
        phrases.append(f"{n_dropped:,} of {n_drawn:,} rows removed")
    return ", ".join(phrases)


def _overfitting_text(settings: Mapping[str, Any]) -> str:
    phrases = []
    for setting, value in settings.items():
        displayed = f"{value:g}" if isinstance(value, float) else str(value)
        if setting in _OVERFITTING_PHRASES:
            phrases.append(_OVERFITTING_PHRASES[setting].format(displayed))
        else:  # a generator of a third party
            phrases.append(f"{setting} {displayed}")
    return "; ".join(phrases)


def _budget_text(budget: Mapping[str, Any]) -> str:
    phrases = [f"epsilon {decimal(budget['epsilon'])}, delta {decimal(budget.get('delta') or 0)}"]
    if budget.get("covers"):
        phrases.append(f"for {budget['covers']}")
    if budget.get("accountant"):
        phrases.append(f"by {budget['accountant']}")
    text = ", ".join(phrases)
    outside_guarantee = budget.get("outside_guarantee")
    if outside_guarantee:
        text += f"; not covered: {', '.join(outside_guarantee)}"
    return text


def _statistics(protection: str, metrics: Mapping[str, type[Metric]]) -> tuple[str, ...]:
    """Return the full names of the statistics that measure the effect of a protection, those of
    primary measures first.
    """
    primary: list[str] = []
    secondary: list[str] = []
    for name, metric in metrics.items():
        for measure in metric.protections:
            if measure.protection != protection:
                continue
            names = primary if measure.primary else secondary
            for statistic in measure.statistics:
                names.append(f"{name}.{statistic}")
    return (*primary, *secondary)


def wants_input(estimate: Estimate) -> bool:
    """Return True if an optional input is missing, so that more rows would not make the statistic
    measurable.
    """
    has_other_reason = estimate.note.startswith(("not measurable", DIFFER))
    if has_other_reason or estimate.measures == "evaluation":
        return False
    return math.isnan(estimate.value)


def what_to_do(outcome: LimitOutcome) -> str:
    """Return the limit's own advice on a failure, or the missing input of an unmeasured statistic,
    else "".

    General advice is in :data:`ADVICE`.
    """
    if outcome.passed:
        return ""
    if outcome.status == "fail":
        return sentence(outcome.limit.advice)
    if outcome.blind and outcome.can_fail is False:
        return "Too many people share their rows in this table. Evaluate more of its columns."
    if outcome.estimate is None:
        return f"Run the metric {outcome.limit.metric}, which the policy requires."
    if wants_input(outcome.estimate):
        return (
            "Provide the missing input of the metric, or remove this limit from the policy"
            " deliberately."
        )
    return ""


def limit_advice(outcomes: Iterable[LimitOutcome]) -> dict[str, list[str]]:
    """Group the keys of limits by their own advice."""
    keys: dict[str, list[str]] = {}
    for outcome in outcomes:
        text = what_to_do(outcome)
        if text:
            keys.setdefault(clean(text, 600), []).append(clean(outcome.limit.key, 60))
    return keys
