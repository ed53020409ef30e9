"""Power analysis: verdicts that a split of this size can give, and the leaks that it can detect.

A harmless release is generated and evaluated like any other. Subjects are drawn from a table, the
default generator is fitted to all of them together, and only then are they assigned at random to
train, holdout and reference. The release is independent of the assignment, so a limit that does not
hold does so by chance or for lack of subjects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from privacy_assets.errors import ConfigError, InputError, integer, redact_foreign_errors, seed_of
from privacy_assets.evaluation.evaluate import (
    TableLike,
    build_inputs,
    check_reading,
    choose_metrics,
    run_metrics,
)
from privacy_assets.generators.registry import DEFAULT_GENERATOR, build_generator
from privacy_assets.infra.host import isolated
from privacy_assets.infra.progress import Progress, advance, silent, watched
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.policies import default_policy, load_policy
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
from privacy_assets.tables.schema import Kind
from privacy_assets.tables.splitting import DEFAULT_SHARES
from privacy_assets.tables.subject_ids import read_subject
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
        outcomes: Outcome of each limit for a harmless release.
        smallest_leaks: Smallest detectable leaks, by full name of the statistic.
    """

    outcomes: tuple[LimitOutcome, ...]
    smallest_leaks: Mapping[str, Estimate]

    @property
    def verdict(self) -> Status:
        """ "pass", "fail" (by chance, because there is no leak) or "undecided"."""
        return min((outcome.status for outcome in self.outcomes), key=WORST_FIRST.index)


@dataclass(frozen=True)
class PowerAnalysis:
    """Verdicts and detectable leaks of splits of one size.

    Attributes:
        people: Number of subjects, by role.
        table: Name of the table from which subjects were drawn.
        policy: Policy, restricted to the limits that were evaluated.
        draws: Outcome of each random split.
        left_out: Limits of the policy that require further inputs and were not evaluated.
        seed: Random seed.
    """

    people: Mapping[str, int]
    table: str
    policy: Policy
    draws: tuple[Draw, ...]
    left_out: tuple[str, ...]
    seed: int

    @property
    def passed(self) -> int:
        """Number of splits in which a harmless release passes."""
        return sum(draw.verdict == "pass" for draw in self.draws)

    @property
    def verdict(self) -> Status:
        """Worst verdict of all splits. "fail" is worse than "undecided"."""
        return min((draw.verdict for draw in self.draws), key=WORST_FIRST.index)

    @property
    def summary(self) -> str:
        """Sentence with the verdicts on a harmless release, and the limits that cause them."""
        total, counts = len(self.draws), Counter(draw.verdict for draw in self.draws)
        if self.passed == total:
            return f"A harmless release of this split would pass ({total} of {total} draws)."
        words = {
            "fail": "would fail by chance",
            "undecided": "would be undecided",
            "pass": "would pass",
        }
        parts = [
            f"{words[verdict]} in {counts[verdict]} of {total} draws"
            for verdict in WORST_FIRST
            if counts[verdict]
        ]
        why = [f"{x.limit.key} ({x.reason})" for _, x in self._limits() if not x.passed]
        return (
            f"A harmless release of this split {', and '.join(parts)}, because of {'; '.join(why)}."
        )

    def _limits(self) -> Iterator[tuple[Counter[Status], LimitOutcome]]:
        """Yield the status counts of each limit, and its worst outcome."""
        for outcomes in zip(*(draw.outcomes for draw in self.draws), strict=True):
            yield (
                Counter(x.status for x in outcomes),
                min(outcomes, key=lambda x: WORST_FIRST.index(x.status)),
            )

    def to_text(self) -> str:
        """Return plain text: sizes, summary, one line per limit, and the smallest detectable
        leaks.
        """
        sizes = ", ".join(f"{count:,} people in {role}" for role, count in self.people.items())
        lines = [f"{sizes}; policy “{clean(self.policy.title, 90)}”; people of {clean(self.table)}"]
        if self.table == _DEMO:
            lines.append(_ABOUT_DEMO)
        rows = [("statistic", "limit", "harmless release", "what is needed")]
        for counts, worst in self._limits():
            name = clean(worst.limit.statistic, 60) + (
                "" if worst.limit.bound == "conservative" else f" ({worst.limit.bound})"
            )
            ended = ", ".join(
                f"{status} {counts[status]}" for status in WORST_FIRST if counts[status]
            )
            rows.append(
                (
                    name,
                    limit_symbol(worst.limit),
                    ended,
                    "" if worst.passed else clean(worst.reason),
                )
            )
        lines += ["", self.summary]
        narrow = narrow_advice(chain.from_iterable(draw.outcomes for draw in self.draws))
        if narrow:
            lines.append(narrow)
        lines += ["", *aligned(rows)]
        if leaks := [
            (what, self._smallest(name))
            for name, what in _leak_statistics()
            if name in self.draws[0].smallest_leaks
        ]:
            lines += [
                "",
                *aligned([("leak detected with 95 % probability", "share of the release"), *leaks]),
            ]
        return "\n".join([*lines, *(f"Not evaluated: {clean(key, 60)}." for key in self.left_out)])

    def _smallest(self, name: str) -> str:
        """Return the range of the shares over all draws."""
        estimates = [draw.smallest_leaks[name] for draw in self.draws]
        shares = sorted(100 * x.value for x in estimates if x.measurable)
        if not shares:
            return f"not shown: {clean(estimates[0].note)}"
        ends = (
            " to ".join(dict.fromkeys(number(round(share, 1)) for share in (shares[0], shares[-1])))
            + " %"
        )
        missing = len(estimates) - len(shares)
        return ends + (f", not shown in {missing} of {len(estimates)}" if missing else "")

    def to_json(self) -> dict[str, Any]:
        """Return a JSON serializable mapping. Missing numbers are None."""
        draws = [
            {
                "verdict": draw.verdict,
                "limits": [to_jsonable(outcome.to_json()) for outcome in draw.outcomes],
                "smallest_leaks": {
                    name: to_jsonable(x.value) for name, x in draw.smallest_leaks.items()
                },
            }
            for draw in self.draws
        ]
        policy, counts = to_jsonable(self.policy.to_dict()), {"passed": self.passed, "draws": draws}
        about = {
            "summary": self.summary,
            "people": dict(self.people),
            "table": self.table,
            "policy": policy,
        }
        return {**about, "seed": self.seed, "left_out": list(self.left_out), **counts}


@redact_foreign_errors
@isolated()
def power_analysis(
    train: int,
    holdout: int,
    reference: int | None = None,
    *,
    rows: TableLike | None = None,
    subject: str | Mapping[str, Any] | None = None,
    kinds: Mapping[str, Kind] | None = None,
    drop: Sequence[str] | None = None,
    missing: Mapping[str, Sequence[Any]] | None = None,
    timezone: str | None = None,
    read: Mapping[str, str] | None = None,
    snapshots: bool = False,
    policy: Policy | Mapping[str, Any] | str | Path | None = None,
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
        drop: Columns to ignore.
        missing: Values that mean a missing value, by column, in addition to empty cells.
        timezone: Zone of times without a time zone. None: they have none.
        read: Separator and encoding of CSV files, as in :func:`~privacy_assets.evaluate`.
        snapshots: True if the files of a folder or glob are snapshots of the same people.
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
    train, seed = integer("train", train, 1), seed_of(seed)
    if reference is None:
        reference = round(train * DEFAULT_SHARES["reference"] / DEFAULT_SHARES["train"])
    numbers = {
        "train": train,
        "holdout": holdout,
        "reference": reference,
        "draws": draws,
        "seed": seed,
    }
    for name, count in numbers.items():
        least = int(name not in ("reference", "seed"))
        numbers[name] = integer(name, count, least)
    if not (progress is None or callable(progress)):
        raise ConfigError("progress must be a function that takes a string.")
    people = {role: int(numbers[role]) for role in DEFAULT_SHARES if numbers[role]}
    metrics, in_force, left_out = _choose(
        None if policy is None else load_policy(policy), {*people, "synthetic"}
    )
    declared_subject = read_subject(subject)
    declared = Declared.of(
        drop,
        None,
        None,
        missing=missing,
        timezone=timezone,
        read=read,
        snapshots=snapshots,
        subject=declared_subject.column,
        exact_ids=declared_subject.exact_ids,
    )
    where, table = _table(rows, declared_subject.column, kinds, declared)
    by_person = _rows_by_subject(table)
    if len(by_person) < sum(people.values()):
        sizes = f"{' + '.join(f'{x:,}' for x in people.values())} = {sum(people.values()):,}"
        problem = f"there are {len(by_person):,} people, and {' and '.join(people)} need {sizes}"
        fix = "reduce the numbers, or use a table with more people"
        raise InputError(problem, where=where, fix=fix)
    evaluated = []
    with watched(otherwise=silent) if progress is None else nullcontext(progress) as report:
        for at, child in enumerate(np.random.SeedSequence(seed).spawn(draws)):
            advance(report, "power: draws", at, draws)
            evaluated.append(
                _draw(table, by_person, people, metrics, in_force, np.random.default_rng(child))
            )
        advance(report, "power: draws", draws, draws)
    outcomes = [outcome for draw in evaluated for outcome in draw.outcomes]
    unmeasured = {x.limit.key for x in outcomes if x.estimate is None or wants_input(x.estimate)}
    kept = in_force.restricted(limit for limit in in_force.limits if limit.key not in unmeasured)
    measured = [
        replace(d, outcomes=tuple(x for x in d.outcomes if x.limit.key not in unmeasured))
        for d in evaluated
    ]
    return PowerAnalysis(
        people, where, kept, tuple(measured), (*left_out, *sorted(unmeasured)), seed
    )


def _leak_statistics() -> list[tuple[str, str]]:
    """Return the full names of the statistics that measure the smallest detectable leak, with a
    text for each leak.
    """
    return [
        (f"{name}.{statistic}", leak)
        for name, metric in METRICS.items()
        for statistics in metric.detectable_leaks.values()
        for statistic, leak in statistics.items()
    ]


def _choose(
    policy: Policy | None, there: set[str]
) -> tuple[dict[str, Metric], Policy, tuple[str, ...]]:
    """Choose the metrics to run.

    Returns:
        The metrics that have a limit or measure the smallest detectable leak and whose inputs are
        in ``there``, the policy restricted to them, and the keys of the other limits.
    """
    names = list(policy.metrics) if policy else default_metrics()
    if policy is None or policy.name in SHIPPED or policy.extends:
        names += [
            name
            for name in default_metrics()
            if METRICS[name].detectable_leaks and name not in names
        ]
    kinds = {name: METRICS[name] for name in names}
    usable = [
        name
        for name, kind in kinds.items()
        if kind.required_inputs <= there and not kind.attacks_generator
    ]
    limits = policy.limits if policy else default_policy().limits
    left_out = tuple(limit.key for limit in limits if limit.metric not in usable)
    if policy is not None and left_out:
        policy = policy.restricted(limit for limit in limits if limit.metric in usable)
    chosen = [
        name
        for name in usable
        if policy or kinds[name].default_limits or kinds[name].detectable_leaks
    ]
    return *choose_metrics(chosen, policy), left_out


def _table(
    rows: TableLike | None, subject: str | None, kinds: Mapping[str, Any] | None, declared: Declared
) -> tuple[str, Table]:
    """Return the name of the table, and its rows in an order that depends only on their content."""
    check_reading(kinds)
    if rows is None:
        if subject is not None or kinds or declared != NOTHING:
            raise ConfigError("subject, kinds and drop require rows (--rows FILE).")
        from privacy_assets.tables.demo import SUBJECT, load_patients

        where, subject, frame = _DEMO, SUBJECT, load_patients()
    else:
        where, frame = str(rows) if isinstance(rows, PATHS) else "rows", rows
    table = canonical_table(frame, subject, kinds, declared, where=where)
    return where, table.take(
        np.argsort(row_ids([table.columns], list(table.columns))[0], kind="stable")
    )


def _rows_by_subject(table: Table) -> list[np.ndarray]:
    """Return the rows of each subject. Without a subject column, each row is a subject."""
    ids = table.subject_ids
    codes = np.arange(len(table)) if ids is None else np.unique(ids.cells, return_inverse=True)[1]
    return np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])


def _draw(
    table: Table,
    by_person: Sequence[np.ndarray],
    people: Mapping[str, int],
    metrics: Mapping[str, Metric],
    policy: Policy,
    rng: np.random.Generator,
) -> Draw:
    """Draw subjects, generate from all of them, assign them to roles at random, and evaluate the
    release.
    """
    chosen = rng.permutation(len(by_person))[: sum(people.values())]
    pool = np.concatenate([by_person[person] for person in np.sort(chosen)])
    whose = np.repeat(
        np.arange(len(chosen)), [len(by_person[person]) for person in np.sort(chosen)]
    )
    seed = int(rng.integers(2**32))
    fitted = build_generator(DEFAULT_GENERATOR).fit(
        table.without_subject().take(pool), seed=seed, people=whose
    )
    # The order of `chosen` is independent of the generator, and determines membership.
    dealt = np.split(chosen, np.cumsum(list(people.values()))[:-1])
    parts = {
        role: table.take(np.concatenate([by_person[person] for person in persons]))
        for role, persons in zip(people, dealt, strict=True)
    }
    synthetic = fitted.sample(len(parts["train"]), seed=seed)
    results = run_metrics(build_inputs(parts, synthetic, seed=seed), metrics, policy.limits)
    estimates = {
        f"{name}.{x.name}": x for name, result in results.items() for x in result.estimates
    }
    leaks = {name: estimates[name] for name, _ in _leak_statistics() if name in estimates}
    return Draw(policy.judge(results).outcomes, leaks)
