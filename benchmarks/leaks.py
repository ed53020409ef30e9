"""Planted leaks of many kinds beside harmless releases: what the default policy says, and which limit says it.

    python -m benchmarks.leaks --results leaks.jsonl tests/data/adult.parquet tests/data/uk_census.parquet demo
    python -m benchmarks.leaks --report leaks.jsonl

Real people are train, six tenths as many the holdout and four tenths the reference, the default shares; others, who
stand in no table, give the fresh rows of a release, and a leak takes the place of some of them, so that the truth is
certain. (Of these others only rows are taken whose values the real tables have too: a category of somebody unseen is
refused as a foreign value, which no generator could make.) Two generators stand beside. All default metrics with limits
are measured but the controls, without an encoder, and linkability. A line a release with every statistic, so that a
report judges it by the limits of its day, or by a --policy; never measured twice.
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
from privacy_assets.evaluation import prepare_inputs, run_metrics
from privacy_assets.generators import build_generator
from privacy_assets.metrics.membership_inference.scores import build_population
from privacy_assets.metrics.registry import build_metric
from privacy_assets.policy import Judgement, Policy
from privacy_assets.report.evaluate import as_policy
from privacy_assets.stats.estimates import Estimate
from privacy_assets.stats.results import MetricResult

WHO = "who"
GAPS = "20 %, six of ten cells missing"  # where every column has missing values
ENOUGH = 1_500  # people in train; fewer are for the policy `small`
FEW_VALUES = 100  # of a column: what else it holds is foreign
MEASURED = (
    "dcr", "copies", "singling_out", "linkability", "attribute_inference", "membership_inference", "value_disclosure"
)  # fmt: skip
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


def gaps(share: float, missing: float) -> Leak:
    """Copies of a share of the rows, most of whose cells are left out."""

    def leak(train: pd.DataFrame, apart: np.ndarray, fresh: pd.DataFrame, rng: Rng) -> pd.DataFrame:
        rows = some(share)(train, apart, fresh, rng)
        return rows.mask(rng.random(rows.shape) < missing)

    return leak


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
    GAPS: gaps(0.2, 0.6),
}
HARMLESS: Mapping[str, tuple[str, Mapping[str, Any]] | None] = {
    "fresh rows": None,
    "synthpop": ("synthpop", {}),
    "baynet": ("baynet", {}),
}


def measured(frame: pd.DataFrame, whose: np.ndarray, people: int, kind: str, seed: int) -> dict[str, Any]:
    """Verdict, broken limits with their status, and CPU seconds of one release."""
    rng = np.random.default_rng([seed, *kind.encode()])
    place = rng.permutation(whose.max() + 1)[whose]
    ends = np.array([0, 1, 1.6, 2]) * people
    tables = [
        frame[(place >= low) & (place < high)].assign(**{WHO: whose[(place >= low) & (place < high)]})
        for low, high in zip(ends[:-1], ends[1:], strict=True)
    ]
    train, holdout, reference = (table.reset_index(drop=True) for table in tables)
    own = train.drop(columns=WHO)
    others = known_rows(frame[place >= ends[-1]], frame[place < ends[-1]])
    fresh = others.iloc[rng.choice(len(others), len(own))].reset_index(drop=True)
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
    seconds, results = cost(lambda: run_metrics(inputs, {name: build_metric(name) for name in MEASURED}))
    return {"results": {name: result.to_json()["estimates"] for name, result in results.items()}, "seconds": seconds}


def known_rows(rows: pd.DataFrame, real: pd.DataFrame) -> pd.DataFrame:
    """Those of ``rows`` whose values, in columns of few values, ``real`` has too."""
    known = np.ones(len(rows), dtype=bool)
    for name in rows:
        if rows[name].dtype.kind not in "iufM" or rows[name].nunique() <= FEW_VALUES:
            known &= (rows[name].isin(real[name].unique()) | rows[name].isna()).to_numpy()
    return rows[known]


def judged(line: Mapping[str, Any], policy: Policy) -> Judgement:
    """What the policy says of a line, by its limits on what was measured."""
    results = {
        name: MetricResult(name, tuple(Estimate.from_json(*pair) for pair in estimates.items()))
        for name, estimates in line["results"].items()
    }
    return Policy(tuple(limit for limit in policy.limits if limit.metric in results), "of a study").judge(results)


def run(options: argparse.Namespace) -> None:
    """Add the lines that the results do not hold yet."""
    held = {(line["table"], line["people"], line["kind"], line["seed"]) for line in lines(options.results)}
    for seed in range(options.draws):
        for name in options.tables:
            frame, whose = table_of(name, None)
            table = Path(name).stem + (", cells missing" if options.missing else "")
            blank = np.random.default_rng(0).random(frame.shape) < options.missing
            frame = frame.mask(blank) if options.missing else frame
            for wanted in options.people:
                people = min(wanted, (int(whose.max()) + 1) // 3)
                for kind in (*HARMLESS, *LEAKS):
                    if (table, people, kind, seed) in held or (kind == GAPS and not options.missing):
                        continue
                    told = {"table": table, "people": people, "kind": kind, "seed": seed}
                    held.add(tuple(told.values()))
                    line = {**told, **measured(frame, whose, people, kind, seed)}
                    with options.results.open("a") as file:
                        file.write(json.dumps(line) + "\n")
                    sys.stderr.write(
                        f"{', '.join(map(str, told.values()))}: {judged(line, Policy.default()).verdict}\n"
                    )


def report_text(found: Sequence[dict[str, Any]], policy: Policy) -> str:
    """Markdown: the verdicts by kind and number of people, by table, and which limits refuse alone."""
    lines = [(line, judged(line, policy)) for line in found]
    sizes = {"at least 1,500": lambda people: people >= ENOUGH, "fewer": lambda people: people < ENOUGH}
    out = ["| release | " + " | ".join(f"{size} people in train" for size in sizes) + " |", "|---|---|---|"]
    for kind in (*HARMLESS, *LEAKS):
        cells = [
            _counts([x for line, x in lines if line["kind"] == kind and of(line["people"])]) for of in sizes.values()
        ]
        out.append(f"| {kind} | {' | '.join(cells)} |")
    out += ["", "| table | people in train | harmless | leaks |", "|---|---|---|---|"]
    for table, people in sorted({(line["table"], line["people"]) for line in found}):
        own = [(line["kind"] in HARMLESS, x) for line, x in lines if (line["table"], line["people"]) == (table, people)]
        cells = [_counts([x for harmless, x in own if harmless is wanted]) for wanted in (True, False)]
        out.append(f"| {table} | {people:,} | {' | '.join(cells)} |")
    fails, alone, honest = Counter[str](), Counter[str](), Counter[str]()
    for line, x in lines:
        if line["kind"] in HARMLESS:
            honest.update(outcome.limit.key for outcome in x.broken)
            continue
        sure = [outcome.limit.key for outcome in x.broken if outcome.status == "fail"]
        fails.update(sure)
        alone.update(sure if len(x.broken) == 1 else ())
    out += ["", "| limit | leaks that it fails | alone | harmless releases that it holds back |", "|---|---|---|---|"]
    for key in [limit.key for limit in policy.limits if limit.metric in MEASURED]:
        out.append(f"| `{key}` | {fails[key]} | {alone[key]} | {honest[key]} |")
    leaks = sum(line["kind"] in LEAKS for line in found)
    seconds = np.mean([line["seconds"] for line in found] or [math.nan])
    out.append(f"\n{leaks} leaks and {len(found) - leaks} harmless releases; {seconds:.1f} CPU s each")
    return "\n".join(out) + ".\n"


def _counts(judgements: Sequence[Judgement]) -> str:
    seen = Counter(x.verdict for x in judgements)
    return " / ".join(str(seen[verdict]) for verdict in ("pass", "not_assessable", "fail"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help='Parquet files, or "demo"')
    parser.add_argument(
        "--people", type=int, nargs="+", default=[1_000, 1_500, 2_000, 6_000], help="in train; a third at most"
    )
    parser.add_argument("--missing", type=float, default=0.0, help="share of the cells that is blanked in every column")
    parser.add_argument("--draws", type=int, default=4, help="splits and releases of each table and kind")
    parser.add_argument("--results", type=Path, default=Path("leaks.jsonl"), help="where lines are added")
    parser.add_argument("--report", type=Path, help="a file to report on; nothing is run")
    parser.add_argument("--policy", help="a policy file, or small; the default limits without")
    options = parser.parse_args(arguments)
    if options.report is not None:
        policy = as_policy(options.policy) or Policy.default()
        sys.stdout.write(report_text(lines(options.report), policy))
    elif options.tables:
        run(options)
    else:
        parser.error("name a table, or a --report file")


if __name__ == "__main__":
    main()
