"""Years of nightly releases: verdicts of the default policy night by night, the ledger, and what stops a series.

    python -m benchmarks.leak_tables DIRECTORY --set held-back     # crashes.parquet; --set final: vietnam.parquet
    python -m benchmarks.nights scores tests/data/adult.parquet DIRECTORY/crashes.parquet --results nights.jsonl
    python -m benchmarks.nights years DIRECTORY/crashes.parquet --kinds "fresh rows" slow --results years.jsonl
    python -m benchmarks.nights report nights.jsonl years.jsonl

A table has 6,000 people (``years``: 3,000), of whom 1 % are exchanged each night. Sides are fixed by person: half train,
0.3 holdout, 0.2 reference. ``scores`` evaluates 40 nights of each table and kind by the metrics of the default policy,
with an encoder, and appends one line with every estimate for each night. ``years`` publishes every night, and appends
one line with the statistics of ``cumulative_disclosure`` for each night. Both continue an interrupted file. Kinds:

    fresh rows  rows of other people: the release discloses nobody
    synthpop    the default generator, refitted each night without rare values, as in a pipeline
    copies      fresh rows, 5 % of them replaced by training rows
    slow        fresh rows, and copies of 0.2 % of the training people, different ones each night
    moved       as slow, with numbers of many values shifted by a tenth of their standard deviation
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.copies import table_of
from benchmarks.leaks import MEASURED, WHO, generated, judged, known_rows, measured_on, whole
from benchmarks.study import append, lines
from privacy_assets.evaluation.evaluate import read_inputs
from privacy_assets.generators import build_generator
from privacy_assets.metrics.cumulative_disclosure import CumulativeDisclosure
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.ledger import Ledger
from privacy_assets.metrics.policies import default_policy, load_policy
from privacy_assets.tables.table import Table

EXCHANGED, MOVED, SHARES = 0.01, 0.1, {"train": 0.5, "holdout": 0.8, "reference": 1.0}
LEAKS = {"copies": 0.05, "slow": 0.002, "moved": 0.002}  # share of the training people, each night
STOP, STOP_OF = 4, 7  # verdicts "fail" among the last ones that stop a series
KINDS = ("fresh rows", "synthpop", "copies", "slow", "moved")


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
            there[rng.choice(people, leave, replace=False)], waiting = waiting[:leave], waiting[leave:]
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
    """Return the inputs of all metrics: fresh rows and copies as they are, synthpop without rare values."""
    train, holdout, reference = (frame.iloc[at].assign(**{WHO: at}) for at in night.roles.values())
    if kind == "synthpop":
        return generated(train, holdout, reference, build_generator("synthpop"), 1000 * seed + night.number)
    real = pd.concat([table.drop(columns=WHO) for table in (train, holdout, reference)])
    fresh = known_rows(frame.iloc[night.fresh[: 2 * len(train)]], real)
    fresh = fresh.iloc[np.arange(len(train) - len(night.leaked)) % len(fresh)]
    synthetic = pd.concat([fresh, frame.iloc[night.leaked]], ignore_index=True)
    return read_inputs(train, holdout, synthetic, reference, subject=WHO, seed=night.number)


def inputs_of_ledger(
    frame: pd.DataFrame, table: Table, night: Night, kind: str, seed: int, ledger: Ledger | None
) -> EvaluationInputs:
    """Return the inputs of ``cumulative_disclosure``. ``table`` contains the rows of ``frame``."""
    roles, n = night.roles, len(night.roles["train"]) - len(night.leaked)
    real = {role: table.take(at) for role, at in roles.items()}
    if kind == "synthpop":
        night_seed = 1000 * seed + night.number
        synthetic = build_generator("synthpop").fit(real["train"], seed=night_seed).sample(n, seed=night_seed)
    elif kind == "moved":
        rows = frame.iloc[np.r_[np.resize(night.fresh, n), night.leaked]].reset_index(drop=True)
        rows.iloc[n:] = moved(rows, np.random.default_rng([seed, night.number])).iloc[n:]
        synthetic = Table.of(rows, table.schema, where="synthetic", synthetic=True)
    else:
        synthetic = table.take(np.r_[np.resize(night.fresh, n), night.leaked])
    people = {role: at.astype(np.uint64) for role, at in roles.items()}
    return EvaluationInputs(table.schema, {**real, "synthetic": synthetic}, roles, people=people, ledger=ledger)


def scores(options: argparse.Namespace) -> None:
    """Evaluate the nights that the results do not contain yet."""
    policy = load_policy("default")
    for name in options.tables:
        frame, _ = table_of(name, None)
        for kind in options.kinds or ("fresh rows", "synthpop", "copies"):
            told = {"table": Path(name).stem, "kind": kind, "seed": options.seed}
            held = [line["night"] for line in lines(options.results) if line.items() >= told.items()]
            nights = options.nights if kind != "copies" else options.nights // 4
            for night in series(kind, options.seed, options.people or 5000, nights, np.zeros(len(frame), dtype=bool)):
                if night.number in held:
                    continue
                inputs = inputs_of_scores(frame, night, kind, options.seed)
                line = {**told, "night": night.number, **measured_on(inputs, MEASURED)}
                append(options.results, line)
                verdict = judged(line, policy)
                broken = ", ".join(outcome.limit.key for outcome in verdict.broken)
                sys.stderr.write(f"{told} night {night.number}: {verdict.status} {broken} ({line['seconds']:.0f} s)\n")


def years(options: argparse.Namespace) -> None:
    """Publish the nights of series that the results do not contain yet, until the limits of the ledger stop them."""
    metric, policy = CumulativeDisclosure(), default_policy([CumulativeDisclosure.name])
    for name in options.tables:
        frame, _ = table_of(name, None)
        table = Table.read(frame)
        for kind in options.kinds or ("fresh rows", "synthpop", "slow", "moved"):
            told = {"table": Path(name).stem, "kind": kind, "seed": options.seed}
            if any(line.items() >= {**told, "last": True}.items() for line in lines(options.results)):
                continue
            out, ledger, verdicts = np.zeros(len(frame), dtype=bool), None, list[str]()
            for night in series(kind, options.seed, options.people or 4000, options.nights, out):
                inputs = inputs_of_ledger(frame, table, night, kind, options.seed, ledger)
                result = metric.measure(inputs)
                verdicts.append(policy.judge({metric.name: result}).status)
                if verdicts[-1] == "pass":
                    ledger, out[night.leaked] = inputs.merged_ledger, True
                last = verdicts[-STOP_OF:].count("fail") >= STOP or night.number == options.nights
                line = {**told, "night": night.number, "verdict": verdicts[-1], "last": last}
                line |= {one.name: [one.value, one.low] for one in result.estimates}
                append(options.results, {**line, "out": float(out[night.roles["train"]].mean())})
                if last:
                    break
            sys.stderr.write(f"{line}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a part of the study, or print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("scores", "years", "report"))
    parser.add_argument("tables", nargs="+", help="Parquet files; for the report the results files")
    parser.add_argument("--results", type=Path, default=Path("nights.jsonl"), help="file to append to")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, help="kinds of releases")
    parser.add_argument("--people", type=int, help="people in the table")
    parser.add_argument("--nights", type=int, default=40, help="number of nights")
    parser.add_argument("--seed", type=int, default=0, help="seed of the series")
    options = parser.parse_args(arguments)
    {"scores": scores, "years": years}[options.part](options)


if __name__ == "__main__":
    main()
