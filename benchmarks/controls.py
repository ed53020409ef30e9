"""Is what the controls state right? Leaks planted at the stated fraction, and at a third of it, judged by the metrics.

    python -m benchmarks.controls adult.parquet --repetitions 200 --results controls.jsonl
    python -m benchmarks.controls --report controls.jsonl

Each repetition shuffles the table and cuts 8,000 rows of train, 2,000 of holdout, 2,000 of reference and 8,000 fresh
rows, a table that leaks nothing. The default policy judges it (false alarms, with the controls' own verdict), the
controls state the smallest leak of each kind, and that leak and a third of it are planted anew beside the fresh rows:
caught when one of the limits that controls look at fails, as ``copies`` and ``membership_inference`` measure it. One
line a repetition, never computed twice. No embedding.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.evaluation import prepare_inputs, run_metrics
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.controls import Controls
from privacy_assets.metrics.controls.canaries import KINDS, canaries
from privacy_assets.metrics.controls.planted_releases import plantable
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.membership_inference.scores import build_population
from privacy_assets.metrics.registry import METRICS, build_metric, default_metrics
from privacy_assets.policy import Policy
from privacy_assets.stats.limits import Limit
from privacy_assets.tables.table import Table

SHAPE = {"train": 8_000, "holdout": 2_000, "reference": 2_000, "synthetic": 8_000}
SHARES = (1.0, 1 / 3)
LIMITED = [name for name in default_metrics(SHAPE) if METRICS[name].default_limits or name == "controls"]
FEWER = {"membership_inference": {"permutations": 199}}  # the statistic that is looked at needs none
LOOKED_AT = Policy(tuple(Limit(**limit) for limit in Controls().limits))


def draw(frame: pd.DataFrame, seed: int) -> MetricInputs:
    """Four tables of different people."""
    mixed = frame.sample(frac=1, random_state=seed)
    ends = np.cumsum([0, *SHAPE.values()])
    parts = [mixed.iloc[a:b].reset_index(drop=True) for a, b in zip(ends[:-1], ends[1:], strict=True)]
    return prepare_inputs(**dict(zip(SHAPE, parts, strict=True)), seed=seed)


def repetition(frame: pd.DataFrame, seed: int, planted: bool) -> dict[str, Any]:
    """What the default policy says about fresh rows, what the controls state, and, when ``planted``, what is caught."""
    inputs = draw(frame, seed)
    seconds, results = {}, {}
    for name in LIMITED:
        started = time.process_time()
        results |= run_metrics(inputs, {name: build_metric(name)})
        seconds[name] = time.process_time() - started
    judgement = Policy.default(LIMITED).judge(results)
    stated = {kind: results["controls"].estimate(f"smallest_leak_{kind}").value for kind in KINDS}
    places = {kind: np.flatnonzero(own) for kind, own in plantable(inputs, build_population(inputs)).items()}
    rng = np.random.default_rng([seed, 5])
    caught = {
        kind: [refused(inputs, kind, share * leak, places[kind], rng) for share in SHARES]
        if planted and leak > 0
        else None
        for kind, leak in stated.items()
    }
    return {
        "seed": seed, "verdict": judgement.verdict, "broken": [outcome.limit.key for outcome in judgement.broken],
        "false_alarm_rate": results["controls"].estimate("false_alarm_rate").value, "stated": stated, "caught": caught,
        "seconds": seconds,
    }  # fmt: skip


def refused(inputs: MetricInputs, kind: str, leak: float, places: np.ndarray, rng: np.random.Generator) -> bool:
    """Whether a leak of this kind and share of all rows fails a limit that controls look at."""
    count = max(1, round(leak / (1 - leak) * len(inputs.synthetic)))
    planted = canaries(kind, inputs.train, places, count, rng)
    simulated = {**inputs.tables, "synthetic": Table.stack([inputs.synthetic, planted])}
    metrics: dict[str, Metric] = {name: build_metric(name, FEWER.get(name)) for name in LOOKED_AT.metrics}
    return LOOKED_AT.judge(run_metrics(replace(inputs, tables=simulated), metrics)).verdict == "fail"


def report(path: Path) -> None:
    """Print counts over all repetitions."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    refusals = [one for one in found if one["verdict"] != "pass"]
    print(
        f"{len(found)} tables of fresh rows, {len(refusals)} refused:",
        dict(Counter(k for o in refusals for k in o["broken"])),
    )
    own = np.median([one["seconds"]["controls"] for one in found])
    others = np.median([sum(one["seconds"].values()) - one["seconds"]["controls"] for one in found])
    print(f"controls: {own:.1f} CPU seconds, the other limited metrics {others:.1f} (medians)\n")
    print(
        "| kind | stated: median | lowest | highest | caught at the stated leak | at a third of it |\n"
        "|---|---|---|---|---|---|"
    )
    for kind in KINDS:
        stated = [one["stated"][kind] for one in found if one["caught"][kind] is not None]
        caught = np.array([one["caught"][kind] for one in found if one["caught"][kind] is not None])
        cells = [f"{x:.4f}" for x in (np.median(stated), min(stated), max(stated))]
        cells += [f"{count} of {len(caught)}" for count in caught.sum(axis=0)]
        print(f"| {kind} | {' | '.join(cells)} |")


def main() -> None:
    """Run the repetitions that are not there yet, or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", help="a Parquet file of at least 20,000 rows")
    parser.add_argument("--drop", action="append", default=[], help="a column to leave out, such as an id (repeatable)")
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--planted", type=int, default=100, help="leaks are planted in so many of them")
    parser.add_argument("--results", type=Path, default=Path("controls.jsonl"), help="where lines are added")
    parser.add_argument("--report", type=Path, help="a file to report on; nothing is run")
    options = parser.parse_args()
    if options.report:
        report(options.report)
        return
    if not options.table:
        parser.error("name a table, or --report")
    frame = pd.read_parquet(options.table).drop(columns=options.drop)
    held = options.results.read_text().splitlines() if options.results.exists() else []
    done = {json.loads(line)["seed"] for line in held}
    for seed in sorted(set(range(options.repetitions)) - done):
        line = json.dumps(repetition(frame, seed, seed < options.planted))
        with options.results.open("a") as file:
            file.write(line + "\n")
        sys.stderr.write(f"\r{seed + 1} of {options.repetitions}")
    report(options.results)


if __name__ == "__main__":
    main()
