"""Measure the effect of the training budget of the embedder on cost and on detection at known
truth.

    python -m benchmarks.embedder --results embedder.jsonl tests/data/adult.parquet \\
        tests/data/uk_census.parquet demo
    python -m benchmarks.embedder --report embedder.jsonl

Train, holdout and release have --rows rows of each table, drawn with --seed; "demo" is the demo
table with one row per person. Encoders of train and holdout share a seed and differ only in their
number of steps; the last one has no budget and stops early, after at most 300 epochs. The embedded
statistics are measured in each space on releases with a known share of training rows, copied
exactly or nearly. Each encoder is one line of the results and is trained once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.dimensions import UNLIMITED, inputs_of
from benchmarks.measured import cost
from benchmarks.study import SEVERAL, append, lines, run_or_report, study_parser
from privacy_assets.evaluation.measuring import attach_embedder, fit_embedder
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.policies import choose_metrics
from privacy_assets.studies.leak_study import Noise, leak_study, leaky_cases
from privacy_assets.tables.demo import load_patients

BUDGETS = (10, 50, 80, 120, 200, 400, 800, None)  # steps; None: no budget
RELEASES = {  # share of the release from training rows, and their noise
    "fresh": (0.0, Noise()),
    "2 % copies": (0.02, Noise()),
    "5 % copies": (0.05, Noise()),
    "5 % near copies": (0.05, Noise(0.05, 0.05, 0.05)),
    "20 % near copies": (0.2, Noise(0.05, 0.05, 0.05)),
}
SEEN = {"dcr.privacy_score_embedded": "DCR", "singling_out.risk_embedded": "SO"}


def table_of(name: str, rows: int, seed: int) -> EvaluationInputs:
    """Return the rows of a file, or one row of each person of the demo."""
    if name != "demo":
        return inputs_of(pd.read_parquet(name), name, rows, seed)
    frame = load_patients().groupby("person").head(1).drop(columns="person").reset_index(drop=True)
    return inputs_of(frame, name, min(rows, len(frame) // 3), seed)


def trained(inputs: EvaluationInputs, budget: int | None) -> dict[str, Any]:
    """Return accuracy and cost of one encoder, and the statistics in its space."""
    steps = {"max_steps": budget or UNLIMITED, "max_rows": len(inputs.train) + len(inputs.holdout)}
    seconds, embedder = cost(
        lambda: fit_embedder(inputs.real, steps, seed=inputs.seed, device=inputs.device)
    )
    kept = min(embedder.history, key=lambda epoch: epoch.validation_loss)
    metrics, _ = choose_metrics(["dcr", "singling_out"], None)
    inputs = attach_embedder(inputs, embedder)
    seen: dict[str, Any] = {}
    for name, (fraction, noise) in RELEASES.items():
        cases = leaky_cases(
            inputs.train, inputs.synthetic, fractions=[fraction], noises=[noise], seed=inputs.seed
        )
        (point,) = leak_study(inputs, cases, metrics)
        seen[name] = {statistic: point.estimates[statistic] for statistic in SEEN}
    return {
        "steps": budget,
        "epochs": len(embedder.history),
        "cpu": round(seconds, 1),
        "loss": kept.validation_loss,
        "accuracy": kept.validation_accuracy,
        "seen": seen,
    }


def run(options: argparse.Namespace) -> None:
    """Train the encoders that the results do not contain yet."""
    held = {(line["table"], line["seed"], line["steps"]) for line in lines(options.results)}
    for name in options.tables:
        inputs, table = table_of(name, options.rows, options.seed), Path(name).stem
        for budget in BUDGETS:
            if (table, options.seed, budget) in held:
                continue
            record = {
                "table": table,
                "rows": len(inputs.train),
                "seed": options.seed,
                **trained(inputs, budget),
            }
            append(options.results, record)
            sys.stderr.write(
                f"{table}, {budget or 'all'} steps: {record['cpu']:.0f} CPU s,"
                f" {record['accuracy']:.3f}\n"
            )


def report_text(found: list[dict[str, Any]]) -> str:
    """Return Markdown: one table per source, one row per budget; ± is half of the interval."""
    out = []
    for table in dict.fromkeys(line["table"] for line in found):
        mine = [line for line in found if line["table"] == table]
        head = ["steps", "epochs", "CPU s", "loss", "accuracy"]
        head += [f"{short}, {release}" for short in SEEN.values() for release in RELEASES]
        out += [
            f"\n{table}, {mine[0]['rows']:,} rows\n",
            f"| {' | '.join(head)} |",
            "|" + "---|" * len(head),
        ]
        for line in sorted(mine, key=lambda line: line["steps"] or UNLIMITED):
            cells = [line["steps"] or "all", line["epochs"], f"{line['cpu']:.0f}"]
            cells += [f"{line[what]:.3f}" for what in ("loss", "accuracy")]
            cells += [
                shown(*line["seen"][release][statistic])
                for statistic in SEEN
                for release in RELEASES
            ]
            out.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(out) + "\n"


def shown(value: float, low: float, high: float) -> str:
    """Format a value and half of its interval."""
    return f"{value:.3f} ± {(high - low) / 2:.3f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = study_parser(__doc__, "embedder.jsonl")
    parser.add_argument("tables", nargs="*", help=SEVERAL)
    parser.add_argument(
        "--rows", type=int, default=4_000, help="rows each of train, holdout and release"
    )
    parser.add_argument("--seed", type=int, default=0)
    run_or_report(parser, arguments, run, lambda _, found: report_text(found))


if __name__ == "__main__":
    main()
