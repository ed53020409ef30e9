"""Years of nightly releases: verdicts of the default policy for each night, the ledger, and series
that are stopped.

    python -m benchmarks.leak_tables DIRECTORY --set held-back   # crashes; --set final: vietnam
    python -m benchmarks.nights scores TABLES --results scores.jsonl
    python -m benchmarks.nights years TABLES --results years.jsonl --nights 365 --seed 0
    python -m benchmarks.nights years TABLES --results years.jsonl --nights 365 --seed 2 --kinds \\
        slow
    python -m benchmarks.nights report scores.jsonl years.jsonl

A table has 5,000 people (``years``: 4,000), of whom 1 % are exchanged each night. Sides are fixed
by person: half are train, 0.3 holdout, 0.2 reference. ``scores`` evaluates 40 nights of each table
and kind (of ``copies`` 10) by the limited default metrics except ``controls`` and
``cumulative_disclosure``, without an encoder, and appends one line with every estimate for each
night. ``years`` evaluates ``cumulative_disclosure`` with the ledger, publishes the nights that
pass, and appends one line for each night, until the series is stopped. Rare values are replaced in
``scores`` of ``synthpop`` only. Interrupted runs continue. Kinds:

    fresh rows  rows of other people, so the release discloses no person
    synthpop    the default generator, refitted each night
    leaf 300    the same with leaves of at least 300 people
    copies      fresh rows, 5 % of them replaced by training rows
    slow        fresh rows, and copies of 0.2 % of the training people, different ones each night
    moved       as slow, with numbers of many values shifted by a tenth of their standard deviation

``report`` simulates 300 series of 365 nights for each kind. A series takes the verdicts of
``scores`` of one table in blocks of seven consecutive nights, evaluated at the attempt that the
series has reached, and the verdicts of a series of ``years``. Four "fail" among the last seven
verdicts stop a series. Since few nights fail, series with a given rate of refusals are simulated as
well: a night fails if sqrt(luck) times a normal variable of the series plus sqrt(1 - luck) times
one of the night exceeds the quantile of the rate. The variable of the series loses 1 % of variance
a night.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.copies import table_of
from benchmarks.leaks import (
    MEASURED,
    WHO,
    generated,
    judged,
    known_rows,
    measured_on,
    results_of,
    whole,
)
from benchmarks.study import append, lines
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.generators import build_generator
from privacy_assets.metrics.cumulative_disclosure import CumulativeDisclosure, merged_ledger
from privacy_assets.metrics.inputs import EvaluationContext, EvaluationInputs
from privacy_assets.metrics.ledger import Ledger
from privacy_assets.metrics.policies import default_policy, load_policy
from privacy_assets.metrics.release_tables import ReleaseTables
from privacy_assets.policy import WORST_FIRST, Policy, Status, judge_limit
from privacy_assets.stats.intervals import exact_high
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.table import Table

EXCHANGED, MOVED, SHARES = 0.01, 0.1, {"train": 0.5, "holdout": 0.8, "reference": 1.0}
LEAKS = {"copies": 0.05, "slow": 0.002, "moved": 0.002}  # share of the training people, each night
YEAR, SERIES, FROM, BLOCK, ATTEMPTS = 365, 300, 200, 7, 4
LATE = 100  # nights until most people of the first night have been exchanged
STOP, STOP_OF = 4, 7  # verdicts "fail" among the last ones that stop a series
TREES: dict[str, dict[str, Any]] = {"synthpop": {}, "leaf 300": {"min_samples_leaf": 300}}
KINDS = ("fresh rows", *TREES, "copies", "slow", "moved")


@dataclass(frozen=True, eq=False)
class Night:
    """People of one night of a series, as int64 positions in the whole table.

    Attributes:
        number: Number of the night, from 1.
        roles: People of each real table.
        fresh: People who are never in the table, in random order.
        leaked: People whose rows the release copies.
    """

    number: int
    roles: dict[str, np.ndarray]
    fresh: np.ndarray
    leaked: np.ndarray


def series(kind: str, seed: int, people: int, nights: int, out: np.ndarray) -> Iterator[Night]:
    """Yield the nights of one series.

    ``slow`` and ``moved`` copy people who are not ``out``, bool (n,), which the caller updates.
    """
    rng = np.random.default_rng([seed, *kind.encode()])
    sides = np.random.default_rng([seed, 1]).random(len(out))
    order, leave = rng.permutation(len(out)), round(EXCHANGED * people)
    there, waiting = order[:people].copy(), order[people : people + leave * nights]
    others = order[people + leave * nights :]
    for number in range(1, nights + 1):
        if number > 1:
            there[rng.choice(people, leave, replace=False)], waiting = (
                waiting[:leave],
                waiting[leave:],
            )
        roles = np.searchsorted(list(SHARES.values()), sides[there], side="right")
        rows = {role: np.sort(there[roles == at]) for at, role in enumerate(SHARES)}
        own = rows["train"]
        leaked = rng.permutation(own[~out[own]])[: round(LEAKS.get(kind, 0.0) * len(own))]
        yield Night(number, rows, rng.permutation(others), leaked)


def moved(rows: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Shift numbers with many values by a tenth of their standard deviation, up or down."""
    out = rows.copy()
    for name in out.select_dtypes("number"):
        if out[name].nunique() > 20:
            shifted = out[name] + MOVED * out[name].std() * rng.choice([-1, 1], len(out))
            out[name] = (shifted.round() if whole(out[name]) else shifted).astype(out[name].dtype)
    return out


def inputs_of_scores(frame: pd.DataFrame, night: Night, kind: str, seed: int) -> EvaluationInputs:
    """Return the inputs of all metrics: fresh rows and copies as they are, synthpop without rare
    values.
    """
    train, holdout, reference = (frame.iloc[at].assign(**{WHO: at}) for at in night.roles.values())
    if kind in TREES:
        return generated(
            train,
            holdout,
            reference,
            build_generator("synthpop", TREES[kind]),
            1000 * seed + night.number,
        )
    real = pd.concat([table.drop(columns=WHO) for table in (train, holdout, reference)])
    fresh = known_rows(frame.iloc[night.fresh[: 2 * len(train)]], real)
    fresh = fresh.iloc[np.arange(len(train) - len(night.leaked)) % len(fresh)]
    synthetic = pd.concat([fresh, frame.iloc[night.leaked]], ignore_index=True)
    return read_inputs(
        train, holdout, synthetic, reference, declared=Declared(subject=WHO), seed=night.number
    )


def inputs_of_ledger(
    frame: pd.DataFrame, table: Table, night: Night, kind: str, seed: int, ledger: Ledger | None
) -> EvaluationInputs:
    """Return the inputs of ``cumulative_disclosure``. ``table`` contains the rows of ``frame``."""
    roles, n = night.roles, len(night.roles["train"]) - len(night.leaked)
    real = {role: table.take(at) for role, at in roles.items()}
    if kind in TREES:
        night_seed = 1000 * seed + night.number
        synthetic = (
            build_generator("synthpop", TREES[kind])
            .fit(real["train"], seed=night_seed)
            .sample(n, seed=night_seed)
        )
    elif kind == "moved":
        rows = moved(frame.iloc[night.leaked], np.random.default_rng([seed, night.number]))
        rows = pd.concat([frame.iloc[np.resize(night.fresh, n)], rows], ignore_index=True)
        synthetic = Table.of(rows, table.schema, where="synthetic", synthetic=True)
    else:
        synthetic = table.take(np.r_[np.resize(night.fresh, n), night.leaked])
    people = {role: np.column_stack([at, at]).astype(np.uint64) for role, at in roles.items()}
    tables = {**real, "synthetic": synthetic}
    release = ReleaseTables(table.schema, tables, roles, pseudonyms=people)
    return EvaluationInputs.of(release, EvaluationContext(ledger=ledger))


def scores(options: argparse.Namespace) -> None:
    """Evaluate the nights that the results do not contain yet."""
    policy = load_policy("default")
    for name in options.tables:
        frame, _ = table_of(name, None)
        for kind in options.kinds or ("fresh rows", "synthpop", "copies"):
            key = {"table": Path(name).stem, "kind": kind, "seed": options.seed}
            held = [line["night"] for line in lines(options.results) if line.items() >= key.items()]
            nights = options.nights if kind != "copies" else options.nights // 4
            for night in series(
                kind, options.seed, options.people or 5000, nights, np.zeros(len(frame), dtype=bool)
            ):
                if night.number in held:
                    continue
                inputs = inputs_of_scores(frame, night, kind, options.seed)
                line = {**key, "night": night.number, **measured_on(inputs, MEASURED)}
                append(options.results, line)
                verdict = judged(line, policy)
                broken = ", ".join(outcome.limit.key for outcome in verdict.not_passed)
                sys.stderr.write(
                    f"{key} night {night.number}: {verdict.status} {broken}"
                    f" ({line['seconds']:.0f} s)\n"
                )


def years(options: argparse.Namespace) -> None:
    """Publish the nights of series that the results do not contain yet, until the limits of the
    ledger stop them.
    """
    metric, policy = CumulativeDisclosure(), default_policy([CumulativeDisclosure.name])
    for name in options.tables:
        frame, _ = table_of(name, None)
        table = Table.read(frame)
        for kind in options.kinds or ("fresh rows", "synthpop", "slow", "moved"):
            key = {"table": Path(name).stem, "kind": kind, "seed": options.seed}
            if any(
                line.items() >= {**key, "last": True}.items() for line in lines(options.results)
            ):
                continue
            out, ledger, verdicts = np.zeros(len(frame), dtype=bool), None, list[Status]()
            for night in series(kind, options.seed, options.people or 4000, options.nights, out):
                inputs = inputs_of_ledger(frame, table, night, kind, options.seed, ledger)
                result = metric.measure(inputs)
                verdicts.append(policy.judge({metric.name: result}).status)
                if verdicts[-1] == "pass":
                    ledger, out[night.leaked] = merged_ledger(inputs), True
                last = has_stopped(verdicts) or night.number == options.nights
                line = {**key, "night": night.number, "verdict": verdicts[-1], "last": last}
                line |= {one.name: [one.value, one.low] for one in result.estimates}
                append(options.results, {**line, "out": float(out[night.roles["train"]].mean())})
                if last:
                    break
            sys.stderr.write(f"{line}\n")


def statuses(line: Mapping[str, Any], policy: Policy) -> list[Status]:
    """Return the verdict on a line of ``scores`` at the first, second and further attempts."""
    results = results_of(line)
    limits = [limit for limit in policy.limits if limit.metric in results]
    return [
        min(
            (judge_limit(one, results[one.metric], attempt).status for one in limits),
            key=WORST_FIRST.index,
        )
        for attempt in range(1, ATTEMPTS + 1)
    ]


def used_parts(line: Mapping[str, Any], policy: Policy) -> list[float]:
    """Return the used part of each limit on a line of ``scores``."""
    results = results_of(line)
    return [
        judge_limit(one, results[one.metric]).used()
        for one in policy.limits
        if one.metric in results
    ]


def simulated(
    rng: np.random.Generator,
    nights: Sequence[Sequence[Status]],
    ledger: Sequence[Status],
    copies: Sequence[Sequence[Status]] = (),
) -> list[Status]:
    """Return the verdicts of one series until it stops; ``copies`` replace the nights from number
    200 on.
    """
    verdicts, attempt, start = list[Status](), 1, 0
    for night in range(YEAR):
        start = int(rng.integers(len(nights))) if night % BLOCK == 0 else start
        leaks = len(copies) > 0 and night >= FROM - 1
        of = (
            copies[int(rng.integers(len(copies)))]
            if leaks
            else nights[(start + night % BLOCK) % len(nights)]
        )
        both = (of[min(attempt, ATTEMPTS) - 1], *ledger[night : night + 1])
        verdicts.append(min(both, key=WORST_FIRST.index))
        attempt = 1 if verdicts[-1] == "pass" else attempt + 1
        if has_stopped(verdicts):
            break
    return verdicts


def with_luck(rng: np.random.Generator, rate: float, luck: float, count: int) -> np.ndarray:
    """Return which nights of ``count`` series fail, bool (count, 365), see the docstring of the
    module.
    """
    series, bound = rng.normal(size=count), NormalDist().inv_cdf(1 - rate)
    failed = np.empty((count, YEAR), dtype=bool)
    for night in range(YEAR):
        failed[:, night] = luck**0.5 * series + (1 - luck) ** 0.5 * rng.normal(size=count) > bound
        series = (1 - EXCHANGED) ** 0.5 * series + EXCHANGED**0.5 * rng.normal(size=count)
    return failed


def within(rate: np.ndarray) -> str:
    """Return a share of yes and its number, for example "96.0 % of 300"."""
    return f"{100 * rate.mean():.1f} % of {len(rate)}"


Lines = list[dict[str, Any]]
NON_LEAKING = ("fresh rows", "synthpop")


def report(options: argparse.Namespace) -> None:
    """Print Markdown: nights, years, and simulated series."""
    scored, several = (
        defaultdict[tuple[str, str], Lines](list),
        defaultdict[tuple[str, str], list[Lines]](list),
    )
    years = defaultdict[tuple[str, str, int], Lines](list)
    for line in lines(*map(Path, options.tables)):
        if "estimates" in line:
            scored[line["table"], line["kind"]].append(line)
        else:
            years[line["table"], line["kind"], line["seed"]].append(line)
    for (table, kind, _), of in years.items():
        if of[-1]["last"]:
            several[table, kind].append(of)
    print_years(several)
    if scored:
        print_simulations(scored, several, print_scores(scored))


def print_years(several: Mapping[tuple[str, str], list[Lines]]) -> None:
    """Print the largest statistics of ``years``, and how much was out when a series stopped."""
    head = (
        "table",
        "kind",
        "series",
        "nights",
        "mean `excess` from night 100 on",
        "largest lower end",
        "largest `share`",
        "its lower end",
        "first refused on night",
        "% out when stopped",
    )
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for (table, kind), found in several.items():
        every = [line for of in found for line in of]
        tops = [
            max(line[name][at] for line in every)
            for name, at in (("excess", 1), ("share", 0), ("share", 1))
        ]
        begins = sorted(night for of in found if (night := first_refused(of)))
        ended = [
            100 * of[-1]["out"] for of in found if has_stopped([line["verdict"] for line in of])
        ]
        late = [line["excess"][0] for line in every if line["night"] >= LATE]
        means = f"{np.mean(late):.4f}" if late else "-"
        cells = [
            table,
            kind,
            len(found),
            max(map(len, found)),
            means,
            *(f"{top:.4f}" for top in tops),
        ]
        cells.append(f"{begins[0]} to {begins[-1]} ({len(begins)} series)" if begins else "-")
        cells.append(
            f"{min(ended):.1f} to {max(ended):.1f} ({len(ended)} series)" if ended else "-"
        )
        print(f"| {' | '.join(map(str, cells))} |")
    for kind in ("slow", "moved"):
        outs = np.array(
            [
                of[-1]["out"]
                for (_, other), found in several.items()
                if other == kind
                for of in found
            ]
        )
        if len(outs):
            print(
                f"\n{kind}: less than 6 % of the people are out at the end of"
                f" {within(outs < 0.06)} series"
            )


def first_refused(of: Lines) -> int:
    """Return the first night that was not published. 0: none."""
    return next((line["night"] for line in of if line["verdict"] != "pass"), 0)


def has_stopped(verdicts: Sequence[Status]) -> bool:
    """Return True if four of the last seven verdicts are "fail"."""
    return list(verdicts[-STOP_OF:]).count("fail") >= STOP


def print_scores(scored: Mapping[tuple[str, str], Lines]) -> float:
    """Print verdicts of ``scores``. Return the mean correlation of consecutive honest nights in
    used parts.
    """
    policy, correlations = load_policy("default"), []
    print(
        "\n| table | kind | nights | fail | undecided | correlation | limits"
        " |\n|---|---|---|---|---|---|---|"
    )
    for (table, kind), of in scored.items():
        first = [statuses(line, policy)[0] for line in of]
        used = np.array([used_parts(line, policy) for line in of])
        used = used[:, np.isfinite(used).all(axis=0) & (used.min(axis=0) < used.max(axis=0))]
        used -= used.mean(axis=0)
        lag = float(np.mean((used[1:] * used[:-1]).mean(axis=0) / used.var(axis=0)))
        correlations += [lag] if kind in NON_LEAKING else []
        limits = Counter(
            outcome.limit.key for line in of for outcome in judged(line, policy).not_passed
        )
        names = ", ".join(f"`{name}` {count}" for name, count in limits.most_common(4))
        counts = f"{first.count('fail')} | {first.count('undecided')} | {lag:.2f} | {names}"
        print(f"| {table} | {kind} | {len(of)} | {counts} |")
    print(f"\nMean correlation of honest series: {np.mean(correlations):.2f}")
    return float(np.mean(correlations))


def print_simulations(
    scored: Mapping[tuple[str, str], Lines],
    several: Mapping[tuple[str, str], list[Lines]],
    luck: float,
) -> None:
    """Print shares of stopped series and published nights."""
    policy, rng = load_policy("default"), np.random.default_rng(0)
    nights = {key: [statuses(line, policy) for line in of] for key, of in scored.items()}
    print(
        "\n| series | stopped | published nights | nights published in 95 % of the series"
        " |\n|---|---|---|---|"
    )
    for kind in NON_LEAKING:
        tables, found = [table for table, other in nights if other == kind], []
        for _ in range(SERIES if tables else 0):
            table = tables[int(rng.integers(len(tables)))]
            ledger = [
                [line["verdict"] for line in one] for one in several.get((table, kind), [])
            ] or [[]]
            found.append(
                simulated(rng, nights[table, kind], ledger[int(rng.integers(len(ledger)))])
            )
        if found:
            stopped = np.array([has_stopped(verdicts) for verdicts in found])
            published = np.array([verdicts.count("pass") / YEAR for verdicts in found])
            least = 100 * np.quantile(published, 0.05)
            print(
                f"| {kind} | {within(stopped)} | {100 * published.mean():.1f} % | at least"
                f" {least:.1f} % |"
            )
    tables = [
        table for table, kind in nights if kind == "copies" and (table, NON_LEAKING[0]) in nights
    ]
    found = [
        simulated(rng, nights[table, NON_LEAKING[0]], [], nights[table, "copies"])
        for table in (
            tables[int(at)]
            for at in rng.integers(max(len(tables), 1), size=SERIES if tables else 0)
        )
    ]
    begun = [verdicts[FROM - 1 : FROM + 1] for verdicts in found if len(verdicts) >= FROM]
    for n in (1, 2) if begun else ():
        refused = np.array([any(status != "pass" for status in verdicts[:n]) for verdicts in begun])
        print(
            f"\n5 % copies from night {FROM} on: refused within {n} nights in {within(refused)}"
            " series"
        )
    honest = [one[0] for (_, kind), of in nights.items() if kind in NON_LEAKING for one in of]
    fails = honest.count("fail")
    rates = {
        "measured": fails / len(honest),
        "its upper 95 % bound": float(exact_high(fails, len(honest), 0.05)),
    }
    print("\n| rate of refusals a night | luck | stopped | published nights |\n|---|---|---|---|")
    for name, rate in {**rates, "assumed": 0.01}.items():
        for shared in (0.0, float(np.clip(luck, 0, 1))):
            kept = [
                year[: stop_after(year)] for year in with_luck(rng, max(rate, 1e-6), shared, SERIES)
            ]
            stopped = np.array(
                [has_stopped(np.where(year, "fail", "pass").tolist()) for year in kept]
            )
            published = 100 * np.mean([(~year).sum() / YEAR for year in kept])
            print(
                f"| {name}: {100 * rate:.2f} % | {shared:.2f} | {within(stopped)} |"
                f" {published:.1f} % |"
            )


def stop_after(failed: np.ndarray) -> int:
    """Return the number of nights until four of the last seven have failed, or all."""
    counts = np.convolve(failed, np.ones(STOP_OF), "full")[: len(failed)]
    return int((counts >= STOP).argmax()) + 1 if (counts >= STOP).any() else len(failed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a part of the study, or print the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("scores", "years", "report"))
    parser.add_argument("tables", nargs="+", help="Parquet files; for the report the results files")
    parser.add_argument(
        "--results", type=Path, default=Path("nights.jsonl"), help="file to append to"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, help="kinds of releases")
    parser.add_argument("--people", type=int, help="people in the table")
    parser.add_argument("--nights", type=int, default=40, help="number of nights")
    parser.add_argument("--seed", type=int, default=0, help="seed of the series")
    options = parser.parse_args(arguments)
    {"scores": scores, "years": years, "report": report}[options.part](options)


if __name__ == "__main__":
    main()
