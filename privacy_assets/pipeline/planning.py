"""``plan``: before anything is trained, which verdicts a split of this size can give, and which leaks it would see.

A harmless release is made, and judged as any other: people are drawn from a table, the default generator is fitted to
all of them together, and only then are they dealt at random into train, holdout and reference. The release does not
know who is in train, so that whatever a limit says of it is chance, or lack of people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from privacy_assets.compute.progress import Progress, advance, silent, watched
from privacy_assets.errors import ConfigError, InputError, door
from privacy_assets.evaluation import TableLike, check_reading, choose_metrics, joint_inputs, run_metrics
from privacy_assets.generators.registry import build_generator
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.registry import METRICS, default_metrics
from privacy_assets.pipeline.private_table import PrivateTable, canonical_source
from privacy_assets.pipeline.spec import GeneratorGroup
from privacy_assets.policy import SHIPPED, Policy
from privacy_assets.report.evaluate import as_policy
from privacy_assets.report.text import LABELS, aligned, clean, limit_text, number, wants_input
from privacy_assets.stats.estimates import Estimate, plain
from privacy_assets.stats.limits import LimitOutcome, Verdict
from privacy_assets.tables.column import row_ids
from privacy_assets.tables.given import PATHS, given_frame
from privacy_assets.tables.roles import Declared
from privacy_assets.tables.schema import Kind
from privacy_assets.tables.splitting import DEFAULT_SHARES

_DEMO = "the demo table"
_WORST_FIRST: tuple[Verdict, ...] = ("fail", "not_assessable", "pass")


@dataclass(frozen=True)
class Draw:
    """One split: what the policy says of a harmless release, and its smallest leaks by full name of the statistic."""

    outcomes: tuple[LimitOutcome, ...]
    smallest_leaks: Mapping[str, Estimate]

    @property
    def verdict(self) -> Verdict:
        """ "pass", "fail" (by chance: nothing leaks) or "not_assessable"."""
        return min((outcome.status for outcome in self.outcomes), key=_WORST_FIRST.index)


@dataclass(frozen=True)
class SizePlan:
    """What splits of this size can decide. ``people`` are those of each role, ``table`` is what they were drawn from.

    ``left_out`` are the limits of the policy that were not looked at: they need more than these tables.
    """

    people: Mapping[str, int]
    table: str
    policy: Policy
    draws: tuple[Draw, ...]
    left_out: tuple[str, ...]
    seed: int

    @property
    def passed(self) -> int:
        """How many of the splits let a harmless release pass."""
        return sum(draw.verdict == "pass" for draw in self.draws)

    @property
    def summary(self) -> str:
        """One sentence: what would become of a harmless release, and because of which limits."""
        total, counts = len(self.draws), Counter(draw.verdict for draw in self.draws)
        if self.passed == total:
            return f"A harmless release of this split would pass ({total} of {total} draws)."
        words = {"fail": "would fail by chance", "not_assessable": "would be not assessable", "pass": "would pass"}
        parts = [
            f"{words[verdict]} in {counts[verdict]} of {total} draws" for verdict in _WORST_FIRST if counts[verdict]
        ]
        why = [f"{x.limit.key} ({x.reason})" for _, x in self._limits() if not x.passed]
        return f"A harmless release of this split {', and '.join(parts)}, because of {'; '.join(why)}."

    def _limits(self) -> Iterator[tuple[Counter[Verdict], LimitOutcome]]:
        """Of each limit how often it ended how, and the outcome of the draw where it came out worst."""
        for outcomes in zip(*(draw.outcomes for draw in self.draws), strict=True):
            yield Counter(x.status for x in outcomes), min(outcomes, key=lambda x: _WORST_FIRST.index(x.status))

    def to_text(self) -> str:
        """Plain text: sizes, summary, a line for each limit, and the smallest leaks that are seen."""
        sizes = ", ".join(f"{count:,} people in {role}" for role, count in self.people.items())
        lines = [f"{sizes}; policy “{clean(self.policy.name, 60)}”; people of {clean(self.table)}"]
        if self.table == _DEMO:
            lines.append("Figures for a table like the demo's. Give --rows FILE for your own.")
        rows = [("statistic", "limit", "harmless release", "what is needed")]
        for counts, worst in self._limits():
            name = clean(worst.limit.statistic, 60) + (
                "" if worst.limit.bound == "upper" else f" ({worst.limit.bound})"
            )
            ended = ", ".join(f"{LABELS[status]} {counts[status]}" for status in _WORST_FIRST if counts[status])
            rows.append((name, limit_text(worst.limit), ended, "" if worst.passed else clean(worst.reason)))
        lines += ["", self.summary, "", *aligned(rows)]
        if leaks := [
            (what, self._smallest(name)) for name, what in _leaks_told() if name in self.draws[0].smallest_leaks
        ]:
            lines += ["", *aligned([("leak that is seen with 95 % probability", "share of the release"), *leaks])]
        return "\n".join([*lines, *(f"Not looked at: {clean(key, 60)}." for key in self.left_out)])

    def _smallest(self, name: str) -> str:
        """The shares that were found, from the smallest draw to the largest."""
        found = [draw.smallest_leaks[name] for draw in self.draws]
        shares = sorted(100 * x.value for x in found if x.measurable)
        if not shares:
            return f"not shown: {clean(found[0].note)}"
        ends = " to ".join(dict.fromkeys(number(round(share, 1)) for share in (shares[0], shares[-1]))) + " %"
        return ends + (f", not shown in {len(found) - len(shares)} of {len(found)}" if len(shares) < len(found) else "")

    def to_json(self) -> dict[str, Any]:
        """A plain mapping; numbers that are not there are None."""
        draws = [
            {
                "verdict": draw.verdict,
                "limits": [plain(outcome.to_json()) for outcome in draw.outcomes],
                "smallest_leaks": {name: plain(x.value) for name, x in draw.smallest_leaks.items()},
            }
            for draw in self.draws
        ]
        policy, counts = plain(self.policy.to_dict()), {"passed": self.passed, "draws": draws}
        told = {"summary": self.summary, "people": dict(self.people), "table": self.table, "policy": policy}
        return {**told, "seed": self.seed, "left_out": list(self.left_out), **counts}


@door
def plan(
    train: int,
    holdout: int,
    reference: int | None = None,
    *,
    rows: TableLike | None = None,
    subject: str | None = None,
    kinds: Mapping[str, Kind] | None = None,
    drop: Sequence[str] | None = None,
    policy: Policy | Mapping[str, Any] | str | Path | None = None,
    draws: int = 3,
    seed: int = 0,
    progress: Progress | None = None,
) -> SizePlan:
    """Which verdicts a split into so many people of ``train``, ``holdout`` and ``reference`` can give, before training.

    People are drawn from ``rows``, a dataframe or a path of Parquet or CSV files of which ``subject`` tells people
    apart, ``kinds`` and ``drop`` say what columns are; without it from the demo table. ``reference`` is by default what
    the default split gives beside ``train``, and 0 for none. ``policy`` as in ``evaluate``; limits that need an
    embedder, a generator or earlier releases are left out. ``draws`` splits are made, each from other people where
    there are more. The same rows in any order, and the same ``seed``, give the same plan. InputError where there are
    too few people.
    """
    if reference is None and isinstance(train, int):
        reference = round(train * DEFAULT_SHARES["reference"] / DEFAULT_SHARES["train"])
    wanted = {"train": train, "holdout": holdout, "reference": reference, "draws": draws, "seed": seed}
    for name, count in wanted.items():
        least = int(name not in ("reference", "seed"))
        if isinstance(count, bool) or not isinstance(count, int) or count < least:
            raise ConfigError(f"{name} must be a whole number of at least {least}.")
    if not (progress is None or callable(progress)):
        raise ConfigError("progress must be a function that takes a text.")
    people = {role: int(wanted[role]) for role in DEFAULT_SHARES if wanted[role]}
    metrics, in_force, left_out = _measured(as_policy(policy), {*people, "synthetic"})
    where, table = _table(rows, subject, kinds, drop)
    by_person = _by_person(table)
    if len(by_person) < sum(people.values()):
        asked = (
            f"{' and '.join(people)} need {' + '.join(f'{x:,}' for x in people.values())} = {sum(people.values()):,}"
        )
        fix = "ask for fewer people, or give a table of more"
        raise InputError(f"there are {len(by_person):,} people, and {asked}", where=where, fix=fix)
    found = []
    with watched(otherwise=silent) if progress is None else nullcontext(progress) as told:
        for at, child in enumerate(np.random.SeedSequence(seed).spawn(draws)):
            advance(told, "plan: draws", at, draws)
            found.append(_drawn(table, by_person, people, metrics, in_force, np.random.default_rng(child)))
        advance(told, "plan: draws", draws, draws)
    unasked = {x.limit.key for draw in found for x in draw.outcomes if x.estimate is None or wants_input(x.estimate)}
    kept = replace(in_force, limits=tuple(limit for limit in in_force.limits if limit.key not in unasked))
    judged = [replace(d, outcomes=tuple(x for x in d.outcomes if x.limit.key not in unasked)) for d in found]
    return SizePlan(people, where, kept, tuple(judged), (*left_out, *sorted(unasked)), seed)


def _leaks_told() -> list[tuple[str, str]]:
    """Full names of the statistics that say how small a leak is seen, with words for that leak."""
    kinds = [(name, told) for name, metric in METRICS.items() for told in metric.smallest_leak.values()]
    return [(f"{name}.{statistic}", what) for name, told in kinds for statistic, what in told.items()]


def _measured(policy: Policy | None, there: set[str]) -> tuple[dict[str, Metric], Policy, tuple[str, ...]]:
    """Metrics that have a limit or tell the smallest leak and need no more than is ``there``, the policy on these, and
    the keys of its limits that they leave out.
    """
    names = list(policy.metrics) if policy else default_metrics()
    if policy is None or policy.name in SHIPPED or policy.extends:
        names += [name for name in default_metrics() if METRICS[name].smallest_leak and name not in names]
    kinds = {name: METRICS[name] for name in names}
    usable = [name for name, kind in kinds.items() if kind.needs <= there and not kind.attacks_generator]
    limits = policy.limits if policy else Policy.default().limits
    left_out = tuple(limit.key for limit in limits if limit.metric not in usable)
    if policy is not None and left_out:
        policy = replace(policy, limits=tuple(limit for limit in limits if limit.metric in usable))
    asked = [name for name in usable if policy or kinds[name].default_limits or kinds[name].smallest_leak]
    return *choose_metrics(asked, policy), left_out


def _table(
    rows: TableLike | None, subject: str | None, kinds: Mapping[str, Kind] | None, drop: Sequence[str] | None
) -> tuple[str, PrivateTable]:
    """What the table is called, and its rows in an order that only their content decides."""
    check_reading(subject, kinds)
    declared = Declared.of(drop, None, None, subject=subject)
    if rows is None:
        if subject is not None or kinds or drop:
            raise ConfigError("subject, kinds and drop are about rows: give these too (--rows FILE).")
        from privacy_assets.tables.demo import SUBJECT, load_patients

        where, subject, frame = _DEMO, SUBJECT, load_patients()
    elif isinstance(rows, PATHS):
        from privacy_assets.tables.reading import read_table

        where, frame = str(rows), read_table(rows)
    else:
        where, frame = "rows", given_frame(rows, where="rows")
    table = canonical_source(frame, subject, kinds, declared, where=where)
    columns = {**table.rows.columns, **({} if table.subject is None else {table.subject.name: table.subject})}
    return where, _taken(table, np.argsort(row_ids([columns], list(columns))[0], kind="stable"))


def _taken(table: PrivateTable, rows: np.ndarray) -> PrivateTable:
    return PrivateTable(table.rows.take(rows), None if table.subject is None else table.subject.take(rows))


def _by_person(table: PrivateTable) -> list[np.ndarray]:
    """The rows of each person; without a subject each row is one."""
    codes = np.arange(len(table)) if table.subject is None else np.unique(table.subject.cells, return_inverse=True)[1]
    return np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])


def _drawn(
    table: PrivateTable,
    by_person: Sequence[np.ndarray],
    people: Mapping[str, int],
    metrics: Mapping[str, Metric],
    policy: Policy,
    rng: np.random.Generator,
) -> Draw:
    """Draw people, generate from them all, deal them into roles, and judge what was generated."""
    chosen = rng.permutation(len(by_person))[: sum(people.values())]
    pool = np.concatenate([by_person[person] for person in np.sort(chosen)])
    whose = np.repeat(np.arange(len(chosen)), [len(by_person[person]) for person in np.sort(chosen)])
    seed = int(rng.integers(2**32))
    fitted = build_generator(GeneratorGroup().name).fit(table.rows.take(pool), seed=seed, people=whose)
    # The order of `chosen` is chance that the generator has not seen: it decides who is in train.
    dealt = np.split(chosen, np.cumsum(list(people.values()))[:-1])
    places = {role: np.concatenate([by_person[i] for i in own]) for role, own in zip(people, dealt, strict=True)}
    parts = {role: _taken(table, rows) for role, rows in places.items()}
    tables = {role: part.rows for role, part in parts.items()}
    subjects = {role: part.subject for role, part in parts.items() if part.subject is not None}
    synthetic = fitted.sample(len(tables["train"]), seed=seed)
    results = run_metrics(joint_inputs({**tables, "synthetic": synthetic}, subjects, seed=seed), metrics)
    estimates = {f"{name}.{x.name}": x for name, result in results.items() for x in result.estimates}
    leaks = {name: estimates[name] for name, _ in _leaks_told() if name in estimates}
    return Draw(policy.judge(results).outcomes, leaks)
