"""Power analysis: verdicts that a split of this size can give, and the leaks that it can detect.

A non-leaking release is generated and evaluated like any other. Subjects are drawn from a table,
the default generator is fitted to all of them together, and only then are they assigned at random
to train, holdout and reference. The release is independent of the assignment, so a limit that does
not hold does so by chance or for lack of subjects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from privacy_assets.errors import ConfigError, InputError, integer, redact_foreign_errors, seed_of
from privacy_assets.evaluation.measuring import run_metrics
from privacy_assets.evaluation.reading import TableLike, build_inputs
from privacy_assets.generators.registry import DEFAULT_GENERATOR, build_generator
from privacy_assets.infra.host import isolated
from privacy_assets.infra.progress import Progress, advance, progress_context
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.policies import PolicyLike, choose_metrics, default_policy, load_policy
from privacy_assets.metrics.registry import METRICS, default_metrics
from privacy_assets.policy import SHIPPED, WORST_FIRST, LimitOutcome, Policy, Status
from privacy_assets.report.advice import narrow_advice, wants_input
from privacy_assets.report.text import aligned
from privacy_assets.report.words import clean, limit_symbol, number
from privacy_assets.stats.estimates import Estimate, to_jsonable
from privacy_assets.tables.canonical import canonical_table
from privacy_assets.tables.column import row_ids
from privacy_assets.tables.declared import NOTHING, Declared
from privacy_assets.tables.given import PATHS
from privacy_assets.tables.splitting import DEFAULT_SHARES
from privacy_assets.tables.table import Table

_DEMO = "the demo table"
_ABOUT_DEMO = (
    "Figures for a table like the demo's, which has eight columns. They hold for tables of six"
    " columns or more; a table"
    " of fewer columns may need more columns, however many people it has. Give --rows FILE for"
    " your own."
)


@dataclass(frozen=True)
class Draw:
    """Evaluation of one random split.

    Attributes:
        outcomes: Outcome of each limit for a non-leaking release.
        smallest_leaks: Smallest detectable leaks, by full name of the statistic.
    """

    outcomes: tuple[LimitOutcome, ...]
    smallest_leaks: Mapping[str, Estimate]

    @property
    def verdict(self) -> Status:
        """ "pass", "fail" (by chance, because there is no leak) or "undecided"."""
        return min((outcome.status for outcome in self.outcomes), key=WORST_FIRST.index)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON serializable mapping. Missing numbers are None."""
        leaks = {}
        for name, estimate in self.smallest_leaks.items():
            leaks[name] = to_jsonable(estimate.value)
        return {
            "verdict": self.verdict,
            "limits": [to_jsonable(outcome.to_json()) for outcome in self.outcomes],
            "smallest_leaks": leaks,
        }


@dataclass(frozen=True)
class PowerAnalysis:
    """Verdicts and detectable leaks of splits of one size.

    Attributes:
        n_subjects: Number of subjects, by role.
        table: Name of the table from which subjects were drawn.
        policy: Policy, restricted to the limits that were evaluated.
        draws: Outcome of each random split.
        left_out: Limits of the policy that require further inputs and were not evaluated.
        seed: Random seed.
    """

    n_subjects: Mapping[str, int]
    table: str
    policy: Policy
    draws: tuple[Draw, ...]
    left_out: tuple[str, ...]
    seed: int

    @property
    def passed(self) -> int:
        """Number of splits in which a non-leaking release passes."""
        return self._verdicts.count("pass")

    @property
    def verdict(self) -> Status:
        """Worst verdict of all splits. "fail" is worse than "undecided"."""
        return min(self._verdicts, key=WORST_FIRST.index)

    @property
    def _verdicts(self) -> list[Status]:
        return [draw.verdict for draw in self.draws]

    @property
    def _outcomes(self) -> list[tuple[LimitOutcome, ...]]:
        """Outcomes of the limits, by draw."""
        return [draw.outcomes for draw in self.draws]

    @property
    def summary(self) -> str:
        """Sentence with the verdicts on a non-leaking release, and the limits that cause them."""
        total = len(self.draws)
        counts = Counter(self._verdicts)
        if self.passed == total:
            return f"A non-leaking release of this split would pass ({total} of {total} draws)."
        words = {
            "fail": "would fail by chance",
            "undecided": "would be undecided",
            "pass": "would pass",
        }
        phrases = []
        for verdict in WORST_FIRST:
            if counts[verdict]:
                phrases.append(f"{words[verdict]} in {counts[verdict]} of {total} draws")
        reasons = []
        for limit in self._limits():
            if not limit.worst.passed:
                reasons.append(f"{limit.worst.limit.key} ({limit.worst.reason})")
        verdicts = ", and ".join(phrases)
        return f"A non-leaking release of this split {verdicts}, because of {'; '.join(reasons)}."

    def _limits(self) -> Iterator[_LimitOfDraws]:
        """Yield the outcomes of each limit."""
        for outcomes in zip(*self._outcomes, strict=True):
            counts = Counter(outcome.status for outcome in outcomes)
            worst = min(outcomes, key=lambda outcome: WORST_FIRST.index(outcome.status))
            yield _LimitOfDraws(counts, worst)

    def to_text(self) -> str:
        """Return plain text: sizes, summary, one line per limit, and the smallest detectable
        leaks.
        """
        sizes = ", ".join(f"{count:,} people in {role}" for role, count in self.n_subjects.items())
        policy_title = clean(self.policy.title, 90)
        lines = [f"{sizes}; policy “{policy_title}”; people of {clean(self.table)}"]
        if self.table == _DEMO:
            lines.append(_ABOUT_DEMO)
        lines += ["", self.summary]
        advice = narrow_advice(chain.from_iterable(self._outcomes))
        if advice:
            lines.append(advice)
        table = [("statistic", "limit", "non-leaking release", "what is needed")]
        for limit in self._limits():
            table.append(limit.line())
        lines += ["", *aligned(table)]
        leaks = []
        for name, leak in _leak_statistics():
            if name in self.draws[0].smallest_leaks:
                leaks.append((leak, self._smallest(name)))
        if leaks:
            header = ("leak detected with 95 % probability", "share of the release")
            lines += ["", *aligned([header, *leaks])]
        for key in self.left_out:
            lines.append(f"Not evaluated: {clean(key, 60)}.")
        return "\n".join(lines)

    def _smallest(self, name: str) -> str:
        """Return the range of the shares over all draws."""
        estimates = [draw.smallest_leaks[name] for draw in self.draws]
        shares = sorted(100 * estimate.value for estimate in estimates if estimate.measurable)
        if not shares:
            return f"not shown: {clean(estimates[0].note)}"
        lowest = number(round(shares[0], 1))
        highest = number(round(shares[-1], 1))
        text = f"{lowest} %"
        if highest != lowest:
            text = f"{lowest} to {highest} %"
        n_missing = len(estimates) - len(shares)
        if n_missing:
            text += f", not shown in {n_missing} of {len(estimates)}"
        return text

    def to_json(self) -> dict[str, Any]:
        """Return a JSON serializable mapping. Missing numbers are None."""
        return {
            "summary": self.summary,
            "people": dict(self.n_subjects),
            "table": self.table,
            "policy": to_jsonable(self.policy.to_dict()),
            "seed": self.seed,
            "left_out": list(self.left_out),
            "passed": self.passed,
            "draws": [draw.to_json() for draw in self.draws],
        }


class _LimitOfDraws(NamedTuple):
    """Outcomes of one limit.

    Attributes:
        counts: Number of draws by status.
        worst: Outcome of the worst draw.
    """

    counts: Counter[Status]
    worst: LimitOutcome

    def line(self) -> tuple[str, str, str, str]:
        """Return statistic, limit, statuses and required numbers, for messages."""
        limit = self.worst.limit
        statistic = clean(limit.statistic, 60)
        if limit.bound != "conservative":
            statistic += f" ({limit.bound})"
        statuses = []
        for status in WORST_FIRST:
            if self.counts[status]:
                statuses.append(f"{status} {self.counts[status]}")
        reason = ""
        if not self.worst.passed:
            reason = clean(self.worst.reason)
        return statistic, limit_symbol(limit), ", ".join(statuses), reason


class _Split(NamedTuple):
    """Numbers of rows and people that are drawn from a table.

    Attributes:
        table: Rows of all subjects.
        rows_by_subject: Rows of each subject.
        n_subjects: Number of subjects to draw, by role.
    """

    table: Table
    rows_by_subject: Sequence[np.ndarray]
    n_subjects: Mapping[str, int]

    def rows_of(self, subjects: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """Collect the rows of some subjects.

        Args:
            subjects: Positions in ``rows_by_subject``, int64 (s,), s >= 1.

        Returns:
            Positions of the rows in ``table``, int64 (n,), subject by subject, and the number of
            rows of each subject.
        """
        rows = [self.rows_by_subject[subject] for subject in subjects]
        return np.concatenate(rows), list(map(len, rows))


@redact_foreign_errors
@isolated()
def power_analysis(  # noqa: PLR0913
    train: int,
    holdout: int,
    reference: int | None = None,
    *,
    rows: TableLike | None = None,
    subject: str | Mapping[str, Any] | None = None,
    kinds: Mapping[str, Any] | None = None,
    missing: Mapping[str, Sequence[Any]] | None = None,
    timezone: str | None = None,
    relations: Mapping[str, bool] | None = None,
    read: Mapping[str, str] | None = None,
    snapshots: bool = False,
    drop: Sequence[str] | None = None,
    new_values: Mapping[str, str] | None = None,
    allowed_values: Mapping[str, Any] | None = None,
    policy: PolicyLike | None = None,
    draws: int = 3,
    seed: int | None = 0,
    progress: Progress | None = None,
) -> PowerAnalysis:
    """Estimate, before training, which verdicts a split of this size can give.

    The result is the same for the same seed and rows, in any order of the rows.

    Args:
        train: Number of people in the training table, at least 1.
        holdout: Number of people in the holdout, at least 1.
        reference: Number of people in the reference; 0: none. None: two fifths of ``train``, as in
            the default split.
        rows: A table like the one to be published: a dataframe, or a path of Parquet or CSV files.
            None: the demo table.
        subject: Column that identifies people, as in :func:`~privacy_assets.evaluate`. None: each
            row is a person.
        kinds: Kinds of columns that override the inferred ones.
        missing: Values that mean a missing value, by column, in addition to empty cells.
        timezone: Zone of times without a time zone. None: they have none.
        relations: Relations between columns by name, as in :func:`~privacy_assets.evaluate`.
        read: Separator and encoding of CSV files, as in :func:`~privacy_assets.evaluate`.
        snapshots: True if the files of a folder or glob are snapshots of the same people.
        drop: Columns to ignore.
        new_values: Columns in which new values are allowed, with a reason each.
        allowed_values: Values allowed in a column in addition to the real ones.
        policy: A Policy, a mapping, a YAML file, or the name of a built-in one (``small``). None:
            the default limits. Limits that need an embedder, a generator or earlier releases are
            left out.
        draws: Number of random splits, each with newly drawn people.
        seed: Seed of all random draws. None: one is drawn, and recorded in the result.
        progress: Called with messages. None: bars on a terminal or in a notebook.

    Returns:
        The outcomes of all limits in every draw.

    Raises:
        InputError: If there are too few people, or the rows cannot be used.
        ConfigError: If an argument is invalid.
    """
    declared = Declared.of_arguments(locals())
    train = integer("train", train, 1)
    seed = seed_of(seed)
    if reference is None:
        reference = round(train * DEFAULT_SHARES["reference"] / DEFAULT_SHARES["train"])
    holdout = integer("holdout", holdout, 1)
    reference = integer("reference", reference, 0)
    draws = integer("draws", draws, 1)
    if not (progress is None or callable(progress)):
        raise ConfigError("progress must be a function that takes a string.")
    numbers = {"train": train, "holdout": holdout, "reference": reference}
    n_subjects = {}
    for role in DEFAULT_SHARES:
        if numbers[role]:
            n_subjects[role] = numbers[role]
    if policy is not None:
        policy = load_policy(policy)
    metrics, in_force, left_out = _choose(policy, {*n_subjects, "synthetic"})
    where, table = _table(rows, declared)
    split = _Split(table, _rows_by_subject(table), n_subjects)
    _check_enough_people(split, where)
    evaluated = []
    with progress_context(progress) as report_progress:
        for n_done, child in enumerate(np.random.SeedSequence(seed).spawn(draws)):
            advance(report_progress, "power: draws", n_done, draws)
            evaluated.append(_draw(split, metrics, in_force, np.random.default_rng(child)))
        advance(report_progress, "power: draws", draws, draws)
    unmeasured = _unmeasured_limits(evaluated)
    remaining = in_force.restricted(
        limit for limit in in_force.limits if limit.key not in unmeasured
    )
    evaluated = [_without_limits(draw, unmeasured) for draw in evaluated]
    left_out = (*left_out, *sorted(unmeasured))
    return PowerAnalysis(n_subjects, where, remaining, tuple(evaluated), left_out, seed)


def _check_enough_people(split: _Split, where: str) -> None:
    """Raise InputError if the table has fewer subjects than are drawn."""
    n_drawn = sum(split.n_subjects.values())
    if len(split.rows_by_subject) >= n_drawn:
        return
    terms = " + ".join(map("{:,}".format, split.n_subjects.values()))
    raise InputError(
        f"there are {len(split.rows_by_subject):,} people,"
        f" and {' and '.join(split.n_subjects)} need {terms} = {n_drawn:,}",
        where=where,
        fix="reduce the numbers, or use a table with more people",
    )


def _unmeasured_limits(draws: Sequence[Draw]) -> set[str]:
    """Return the keys of limits whose statistic was not measured in a draw or lacks an input."""
    unmeasured = set()
    for draw in draws:
        for outcome in draw.outcomes:
            if outcome.estimate is None or wants_input(outcome.estimate):
                unmeasured.add(outcome.limit.key)
    return unmeasured


def _without_limits(draw: Draw, keys: set[str]) -> Draw:
    """Return a draw without the outcomes of some limits."""
    outcomes = []
    for outcome in draw.outcomes:
        if outcome.limit.key not in keys:
            outcomes.append(outcome)
    return replace(draw, outcomes=tuple(outcomes))


def _leak_statistics() -> list[tuple[str, str]]:
    """Return the full names of the statistics that measure the smallest detectable leak, with a
    text for each leak.
    """
    names = []
    for name, metric in METRICS.items():
        for statistics in metric.detectable_leaks.values():
            for statistic, leak in statistics.items():
                names.append((f"{name}.{statistic}", leak))
    return names


def _choose(
    policy: Policy | None, available: set[str]
) -> tuple[dict[str, Metric], Policy, tuple[str, ...]]:
    """Choose the metrics to run.

    Returns:
        The metrics that have a limit or measure the smallest detectable leak and whose inputs are
        in ``available``, the policy restricted to them, and the keys of the other limits.
    """
    usable = []
    for name in _candidates(policy):
        metric = METRICS[name]
        if metric.required_inputs <= available and not metric.attacks_generator:
            usable.append(name)
    limits = policy.limits if policy else default_policy().limits
    usable_limits = []
    left_out = []
    for limit in limits:
        if limit.metric in usable:
            usable_limits.append(limit)
        else:
            left_out.append(limit.key)
    if policy is None:
        usable = list(filter(_has_limits_or_leaks, usable))
    elif left_out:
        policy = policy.restricted(usable_limits)
    metrics, in_force = choose_metrics(usable, policy)
    return metrics, in_force, tuple(left_out)


def _candidates(policy: Policy | None) -> list[str]:
    """Return the distinct names of the metrics of a policy, and of those that measure leaks if it
    is a shipped policy or extends one.
    """
    if policy is None:
        return list(dict.fromkeys(default_metrics()))
    names = dict.fromkeys(policy.metrics)
    if policy.name in SHIPPED or policy.extends:
        for name in default_metrics():
            if METRICS[name].detectable_leaks:
                names[name] = None
    return list(names)


def _has_limits_or_leaks(name: str) -> bool:
    return bool(METRICS[name].default_limits or METRICS[name].detectable_leaks)


def _table(rows: TableLike | None, declared: Declared) -> tuple[str, Table]:
    """Return the name of the table, and its rows in an order that depends only on their content."""
    if rows is None:
        if declared != NOTHING:
            raise ConfigError("declarations of columns require rows (--rows FILE).")
        from privacy_assets.tables.demo import SUBJECT, load_patients

        where = _DEMO
        declared = Declared(subject=SUBJECT)
        rows = load_patients()
    else:
        where = str(rows) if isinstance(rows, PATHS) else "rows"
    table = canonical_table(rows, declared, where=where)
    (ids,) = row_ids([table.columns], list(table.columns))
    return where, table.take(np.argsort(ids, kind="stable"))


def _rows_by_subject(table: Table) -> list[np.ndarray]:
    """Return the rows of each subject. Without a subject column, each row is a subject."""
    ids = table.subject_ids
    if ids is None:
        codes = np.arange(len(table))
    else:
        codes = np.unique(ids.cells, return_inverse=True)[1]
    ends = np.cumsum(np.bincount(codes))
    return np.split(np.argsort(codes, kind="stable"), ends[:-1])


def _draw(
    split: _Split, metrics: Mapping[str, Metric], policy: Policy, rng: np.random.Generator
) -> Draw:
    """Draw subjects, generate from all of them, assign them to roles at random, and evaluate the
    release.
    """
    sizes = list(split.n_subjects.values())
    subjects = rng.permutation(len(split.rows_by_subject))[: sum(sizes)]
    pool, n_rows = split.rows_of(np.sort(subjects))
    subject_codes = np.repeat(np.arange(len(subjects)), n_rows)
    seed = int(rng.integers(2**32))
    fitted = build_generator(DEFAULT_GENERATOR).fit(
        split.table.without_subject().take(pool), seed=seed, subject_codes=subject_codes
    )
    # The order of `subjects` is independent of the generator, and determines membership.
    subjects_of_roles = np.split(subjects, np.cumsum(sizes)[:-1])
    real = {}
    for role, members in zip(split.n_subjects, subjects_of_roles, strict=True):
        rows, _ = split.rows_of(members)
        real[role] = split.table.take(rows)
    synthetic = fitted.sample(len(real["train"]), seed=seed)
    results = run_metrics(build_inputs(real, synthetic, seed=seed), metrics, policy.limits)
    estimates = {}
    for name, result in results.items():
        for estimate in result.estimates:
            estimates[f"{name}.{estimate.name}"] = estimate
    leaks = {}
    for name, _ in _leak_statistics():
        if name in estimates:
            leaks[name] = estimates[name]
    return Draw(policy.judge(results).outcomes, leaks)
