"""Verify the detectable leaks stated by controls: plant leaks at the stated fraction and a third of
it.

    python -m benchmarks.controls adult.parquet --repetitions 200 --results controls.jsonl
    python -m benchmarks.controls --report controls.jsonl

Each repetition shuffles the table and cuts 8,000 rows of train, 2,000 of holdout, 2,000 of
reference and 8,000 fresh rows, which leak nothing. The default policy evaluates the fresh rows
(false alarms, with the controls' own verdict), and controls state the smallest detectable leak of
each kind. This leak and a third of it are planted again into the fresh rows. A leak is caught if a
limit used by controls fails according to ``copies`` and ``membership_inference``. Each repetition
is one line and is computed once. No embedding.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.study import append, limits_alone, lines, run_or_report, study_parser
from privacy_assets.evaluation.measuring import run_metrics
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.controls import KINDS, Controls, canaries, plantable
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.membership_inference.scores import build_population
from privacy_assets.metrics.policies import default_policy
from privacy_assets.metrics.registry import METRICS, build_metric, default_metrics
from privacy_assets.policy import Policy
from privacy_assets.tables.table import Table

SHAPE = {"train": 8_000, "holdout": 2_000, "reference": 2_000, "synthetic": 8_000}
SHARES = (1.0, 1 / 3)
LIMITED = [
    name for name in default_metrics(SHAPE) if METRICS[name].default_limits or name == "controls"
]
FEWER = {"membership_inference": {"n_permutations": 199}}  # not required by the statistic
LOOKED_AT = Policy(Controls().limits)


def draw(frame: pd.DataFrame, seed: int) -> EvaluationInputs:
    """Draw four tables of different people."""
    mixed = frame.sample(frac=1, random_state=seed)
    ends = np.cumsum([0, *SHAPE.values()])
    parts = [
        mixed.iloc[a:b].reset_index(drop=True) for a, b in zip(ends[:-1], ends[1:], strict=True)
    ]
    return read_inputs(**dict(zip(SHAPE, parts, strict=True)), seed=seed)


def repetition(frame: pd.DataFrame, seed: int, planted: bool) -> dict[str, Any]:
    """Return the default verdict on fresh rows, the stated leaks and, if ``planted``, the caught
    leaks.
    """
    inputs = draw(frame, seed)
    seconds, results = {}, {}
    for name in LIMITED:
        started = time.process_time()
        results |= run_metrics(inputs, {name: build_metric(name)})
        seconds[name] = time.process_time() - started
    policy_verdict = limits_alone(default_policy(LIMITED), results)
    stated = {kind: results["controls"].estimate(f"smallest_leak_{kind}").value for kind in KINDS}
    places = {
        kind: np.flatnonzero(own)
        for kind, own in plantable(inputs, build_population(inputs)).items()
    }
    rng = np.random.default_rng([seed, 5])
    caught = {
        kind: [refused(inputs, kind, share * leak, places[kind], rng) for share in SHARES]
        if planted and leak > 0
        else None
        for kind, leak in stated.items()
    }
    return {
        "seed": seed,
        "verdict": policy_verdict.status,
        "broken": [outcome.limit.key for outcome in policy_verdict.not_passed],
        "false_alarm_rate": results["controls"].estimate("false_alarm_rate").value,
        "stated": stated,
        "caught": caught,
        "seconds": seconds,
    }


def refused(
    inputs: EvaluationInputs, kind: str, leak: float, places: np.ndarray, rng: np.random.Generator
) -> bool:
    """Return True if a leak of this kind and share of all rows fails a limit used by controls."""
    count = max(1, round(leak / (1 - leak) * len(inputs.synthetic)))
    planted = canaries(kind, inputs.train, places, count, rng)
    simulated = {**inputs.tables, "synthetic": Table.stack([inputs.synthetic, planted])}
    metrics: dict[str, Metric] = {
        name: build_metric(name, FEWER.get(name)) for name in LOOKED_AT.metrics
    }
    release = replace(inputs.release, tables=simulated)
    results = run_metrics(EvaluationInputs.of(release, inputs.context), metrics)
    return LOOKED_AT.judge(results).status == "fail"


def report_text(found: list[dict[str, Any]]) -> str:
    """Return counts over all repetitions."""
    refusals = [one for one in found if one["verdict"] != "pass"]
    broken = dict(Counter(k for o in refusals for k in o["broken"]))
    own = np.median([one["seconds"]["controls"] for one in found])
    others = np.median([sum(one["seconds"].values()) - one["seconds"]["controls"] for one in found])
    out = [
        f"{len(found)} tables of fresh rows, {len(refusals)} refused: {broken}",
        f"controls: {own:.1f} CPU seconds, the other limited metrics {others:.1f} (medians)",
        "",
        "| kind | stated: median | lowest | highest | caught at the stated leak | at a third"
        " of it |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        stated = [one["stated"][kind] for one in found if one["caught"][kind] is not None]
        caught = np.array([one["caught"][kind] for one in found if one["caught"][kind] is not None])
        cells = [f"{x:.4f}" for x in (np.median(stated), min(stated), max(stated))]
        cells += [f"{count} of {len(caught)}" for count in caught.sum(axis=0)]
        out.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(out) + "\n"


def run(options: argparse.Namespace) -> None:
    """Run the repetitions that the results do not contain yet."""
    frame = pd.read_parquet(options.table).drop(columns=options.drop)
    done = {line["seed"] for line in lines(options.results)}
    for seed in sorted(set(range(options.repetitions)) - done):
        append(options.results, repetition(frame, seed, seed < options.planted))
        sys.stderr.write(f"\r{seed + 1} of {options.repetitions}")


def main() -> None:
    """Run the missing repetitions, or report."""
    parser = study_parser(__doc__, "controls.jsonl")
    parser.add_argument("table", nargs="?", help="a Parquet file of at least 20,000 rows")
    parser.add_argument(
        "--drop",
        action="append",
        default=[],
        help="a column to leave out, such as an id (repeatable)",
    )
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument(
        "--planted", type=int, default=100, help="number of them with planted leaks"
    )
    run_or_report(parser, None, run, lambda _, found: report_text(found))


if __name__ == "__main__":
    main()
