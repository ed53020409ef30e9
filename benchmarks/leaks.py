"""Planted leaks of many kinds beside harmless releases: what the default policy says, and which limit says it.

    python -m benchmarks.leaks --results leaks.jsonl tests/data/adult.parquet tests/data/uk_census.parquet demo
    python -m benchmarks.leaks --report leaks.jsonl

Real people are train, six tenths as many the holdout and four tenths the reference, the default shares; others, who
stand in no table, give the fresh rows of a release, and a leak takes the place of some of them, so that the truth is
certain. Two generators stand beside. All default metrics with limits are measured but the controls, without an encoder.
A line a release, never measured twice. It holds every estimate, so that the report judges it by the default limits of
today, and :func:`judged` by any other policy.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.copies import table_of
from benchmarks.dimensions import lines
from benchmarks.measured import cost
from privacy_assets.evaluation import choose_metrics, prepare_inputs, run_metrics
from privacy_assets.generators import build_generator
from privacy_assets.metrics.membership_inference.scores import build_population
from privacy_assets.policy import Judgement, Policy
from privacy_assets.stats.estimates import Estimate, plain
from privacy_assets.stats.results import MetricResult

WHO = "who"
LEFT_OUT = ("controls", "cumulative_disclosure", "holdout_leakage")
# What a limit is held against, in the order of a line; a line has no rows behind an estimate, and no notes.
KEPT = ("value", "low", "high", "null", "subjects", "confidence", "direction", "minimum_detectable_effect", "about")
Rng = np.random.Generator
# The rows of train, how far each person stands from others, as many fresh rows, and chance: the rows that leak.
Leak = Callable[[pd.DataFrame, np.ndarray, pd.DataFrame, Rng], pd.DataFrame]


def some(share: float) -> Leak:
    """Copies of a share of the rows."""
    return lambda train, apart, fresh, rng: train.iloc[rng.choice(len(train), round(share * len(train)), replace=False)]


def jittered(rows: pd.DataFrame, rng: Rng) -> pd.DataFrame:
    """Numbers of many values moved by a twentieth of their deviation."""
    out = rows.copy()
    for name in out.select_dtypes("number"):
        if out[name].nunique() > 20:
            moved = out[name] + rng.normal(0, 0.05 * out[name].std(), len(out))
            out[name] = (moved.round() if out[name].dtype.kind in "iu" else moved).astype(out[name].dtype)
    return out


def moved(share: float) -> Leak:
    """Copies of a share of the rows whose numbers moved."""
    return lambda train, apart, fresh, rng: jittered(some(share)(train, apart, fresh, rng), rng)


def built(share: float, kept: Callable[[int], int]) -> Leak:
    """A share of rows of which ``kept(columns)`` cells are a training row's, the others a fresh row's."""

    def leak(train: pd.DataFrame, apart: np.ndarray, fresh: pd.DataFrame, rng: Rng) -> pd.DataFrame:
        own = some(share)(train, apart, fresh, rng).reset_index(drop=True)
        cells = rng.random(own.shape).argsort(axis=1) < kept(own.shape[1])
        other = fresh.iloc[: len(own)].reset_index(drop=True)
        columns = {name: np.where(cells[:, at], own[name], other[name]) for at, name in enumerate(own)}
        return pd.DataFrame(columns).astype(own.dtypes.to_dict())

    return leak


def isolated(people: int, change: Callable[[pd.DataFrame, Rng], pd.DataFrame]) -> Leak:
    """Rows of some of the fiftieth of the rows, 60 at least, that stand farthest from everybody else."""

    def leak(train: pd.DataFrame, apart: np.ndarray, fresh: pd.DataFrame, rng: Rng) -> pd.DataFrame:
        farthest = np.argsort(-apart, kind="stable")[: max(60, len(train) // 50)]
        return change(train.iloc[rng.choice(farthest, people, replace=False)], rng)

    return leak


def repeated(people: int) -> Leak:
    """A tenth of the release are the rows of some people, again and again."""
    return lambda train, apart, fresh, rng: train.iloc[
        np.resize(rng.choice(len(train), people, replace=False), len(train) // 10)
    ]


LEAKS: Mapping[str, Leak] = {
    "5 % copies": some(0.05),
    "10 % copies": some(0.1),
    "20 % moved": moved(0.2),
    "20 % with one column of another": built(0.2, lambda columns: columns - 1),
    "20 % half built": built(0.2, lambda columns: columns // 2),
    "all half built": built(1.0, lambda columns: columns // 2),
    "15 isolated": isolated(15, lambda rows, rng: rows),
    "40 isolated, moved": isolated(40, jittered),
    "10 people repeated": repeated(10),
    "1 person repeated": repeated(1),
}
HARMLESS: Mapping[str, tuple[str, Mapping[str, Any]] | None] = {
    "fresh rows": None,
    "synthpop": ("synthpop", {}),
    "baynet": ("baynet", {}),
}


def measured(frame: pd.DataFrame, whose: np.ndarray, people: int, kind: str, seed: int) -> dict[str, Any]:
    """Every estimate of one release, and CPU seconds of all."""
    rng = np.random.default_rng([seed, *kind.encode()])
    place = rng.permutation(whose.max() + 1)[whose]
    ends = np.array([0, 1, 1.6, 2]) * people
    tables = [
        frame[(place >= low) & (place < high)].assign(**{WHO: whose[(place >= low) & (place < high)]})
        for low, high in zip(ends[:-1], ends[1:], strict=True)
    ]
    train, holdout, reference = (table.reset_index(drop=True) for table in tables)
    own = train.drop(columns=WHO)
    fresh = frame.iloc[rng.choice(np.flatnonzero(place >= ends[-1]), len(own))].reset_index(drop=True)
    synthetic, made, leak = fresh, HARMLESS.get(kind), LEAKS.get(kind)
    if made is not None or leak is not None:
        seen = prepare_inputs(train, holdout, fresh, reference=reference, subject=WHO, seed=seed)
    if made is not None:
        fitted = build_generator(*made).fit(seen.train, seed=seed, people=seen.subject_codes("train"))
        synthetic = fitted.sample(len(own), seed=seed).restored()
    if leak is not None:
        rows = leak(own, build_population(seen).neighbour[: len(own)], fresh, rng)
        synthetic = pd.concat([fresh.iloc[len(rows) :], rows], ignore_index=True)
    inputs = prepare_inputs(train, holdout, synthetic, reference=reference, subject=WHO, seed=seed)
    metrics, _ = choose_metrics(None, None)
    chosen = {name: metric for name, metric in metrics.items() if metric.default_limits and name not in LEFT_OUT}
    seconds, results = cost(lambda: run_metrics(inputs, chosen))
    estimates = {
        f"{name}.{estimate.name}": plain([getattr(estimate, part) for part in KEPT])
        for name, result in results.items()
        for estimate in result.estimates
    }
    return {"estimates": estimates, "seconds": seconds}


def results_of(line: Mapping[str, Any]) -> dict[str, MetricResult]:
    """The results of a line by metric, as a policy judges them."""
    found: dict[str, list[Estimate]] = {}
    for key, parts in line["estimates"].items():
        metric, _, statistic = key.partition(".")
        told = {"n": 0, "note": "", **dict(zip(KEPT, parts, strict=True))}
        found.setdefault(metric, []).append(Estimate.from_json(statistic, told))
    return {metric: MetricResult(metric, tuple(estimates)) for metric, estimates in found.items()}


def judged(line: Mapping[str, Any], policy: Policy) -> Judgement:
    """What ``policy`` says of a line, without the limits of metrics that were left out of the study."""
    results = results_of(line)
    return Policy(tuple(limit for limit in policy.limits if limit.metric in results)).judge(results)


def run(options: argparse.Namespace) -> None:
    """Add the lines that the results do not hold yet."""
    held = {(line["table"], line["people"], line["kind"], line["seed"]) for line in lines(options.results)}
    for seed in range(options.draws):
        for name in options.tables:
            frame, whose = table_of(name, None)
            for wanted in options.people:
                people = min(wanted, (int(whose.max()) + 1) // 3)
                for kind in (*HARMLESS, *LEAKS):
                    if (Path(name).stem, people, kind, seed) in held:
                        continue
                    told = {"table": Path(name).stem, "people": people, "kind": kind, "seed": seed}
                    held.add(tuple(told.values()))
                    line = {**told, **measured(frame, whose, people, kind, seed)}
                    with options.results.open("a") as file:
                        file.write(json.dumps(line) + "\n")
                    verdict = judged(line, Policy.default()).verdict
                    sys.stderr.write(f"{', '.join(map(str, told.values()))}: {verdict}\n")


def report_text(found: Sequence[dict[str, Any]], policy: Policy) -> str:
    """Markdown: verdicts by table and kind, what refuses leaks, alone or not, and what refuses harmless releases."""
    judgements = [judged(line, policy) for line in found]
    tables = sorted({(line["table"], line["people"]) for line in found})
    seen: dict[tuple[str, int, str], Counter[str]] = {}
    for line, judgement in zip(found, judgements, strict=True):
        seen.setdefault((line["table"], line["people"], line["kind"]), Counter())[judgement.verdict] += 1
    out = ["| release | " + " | ".join(f"{name}, {people:,}" for name, people in tables) + " |"]
    out.append("|" + "---|" * (len(tables) + 1))
    for kind in (*HARMLESS, *LEAKS):
        own = [seen.get((name, people, kind), Counter()) for name, people in tables]
        cells = [" / ".join(str(count[verdict]) for verdict in ("pass", "not_assessable", "fail")) for count in own]
        out.append(f"| {kind} | {' | '.join(cells)} |")
    fails: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    undecided: Counter[str] = Counter()
    for line, judgement in zip(found, judgements, strict=True):
        sure = [outcome.limit.key for outcome in judgement.broken if outcome.status == "fail"]
        if line["kind"] in HARMLESS:
            refused.update(sure)
            undecided.update(outcome.limit.key for outcome in judgement.broken if outcome.status != "fail")
        else:
            fails.update(sure)
            alone.update(sure if len(sure) == 1 else ())
    out += ["", "| limit | leaks that it fails | alone | harmless that it fails | undecided |", "|---|---|---|---|---|"]
    for limit in sorted({*fails, *refused, *undecided}, key=lambda limit: (-fails[limit], limit)):
        out.append(f"| `{limit}` | {fails[limit]} | {alone[limit]} | {refused[limit]} | {undecided[limit]} |")
    seconds = [line["seconds"] for line in found] or [math.nan]
    harmless = sum(line["kind"] in HARMLESS for line in found)
    out.append(f"\n{len(found) - harmless} leaks and {harmless} harmless releases; {np.mean(seconds):.1f} CPU s each")
    return "\n".join(out) + ".\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help='Parquet files, or "demo"')
    parser.add_argument("--people", type=int, nargs="+", default=[2_000, 6_000], help="in train; a third at most")
    parser.add_argument("--draws", type=int, default=4, help="splits and releases of each table and kind")
    parser.add_argument("--results", type=Path, default=Path("leaks.jsonl"), help="where lines are added")
    parser.add_argument("--report", type=Path, help="a file to report on; nothing is run")
    options = parser.parse_args(arguments)
    if options.report is not None:
        sys.stdout.write(report_text(lines(options.report), Policy.default()))
    elif options.tables:
        run(options)
    else:
        parser.error("name a table, or a --report file")


if __name__ == "__main__":
    main()
