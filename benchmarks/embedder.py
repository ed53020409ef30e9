"""How long the embedder has to be trained: what more steps cost, and what is seen in its space on known truth.

    python -m benchmarks.embedder --results embedder.jsonl tests/data/adult.parquet tests/data/uk_census.parquet demo
    python -m benchmarks.embedder --report embedder.jsonl

--rows rows of each table are train, as many holdout and as many the release, drawn by --seed; "demo" is the table of
the demo, a row of each person. Encoders of train and holdout with one seed differ in their budget of steps alone; the
last one has none and stops by itself, after 300 epochs at most. In each one's space the embedded statistics are
measured on releases of which a known share are training rows, as they are or near copies. Each encoder is one line of
the results and is never trained twice.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.dimensions import UNLIMITED, inputs_of, lines
from benchmarks.measured import cost
from privacy_assets.calibration import Noise, leaky_cases, run_study
from privacy_assets.evaluation import attach_embedder, choose_metrics, fit_embedder
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.tables.demo import load_patients

BUDGETS = (10, 50, 80, 120, 200, 400, 800, None)  # steps; None: without
RELEASES = {  # share of the release that stems from training rows, and what was done to these
    "fresh": (0.0, Noise()),
    "2 % copies": (0.02, Noise()),
    "5 % copies": (0.05, Noise()),
    "5 % near copies": (0.05, Noise(0.05, 0.05, 0.05)),
    "20 % near copies": (0.2, Noise(0.05, 0.05, 0.05)),
}
SEEN = {"dcr.privacy_score_embedded": "DCR", "singling_out.risk_embedded": "SO"}


def table_of(name: str, rows: int, seed: int) -> MetricInputs:
    """The rows of a file, or one row of each person of the demo."""
    if name != "demo":
        return inputs_of(pd.read_parquet(name), name, rows, seed)
    frame = load_patients().groupby("person").head(1).drop(columns="person").reset_index(drop=True)
    return inputs_of(frame, name, min(rows, len(frame) // 3), seed)


def trained(inputs: MetricInputs, budget: int | None) -> dict[str, Any]:
    """What one encoder learnt and cost, and what is seen in its space."""
    steps = {"max_steps": budget or UNLIMITED, "max_rows": len(inputs.train) + len(inputs.holdout)}
    seconds, embedder = cost(lambda: fit_embedder(inputs, **steps))
    kept = min(embedder.history, key=lambda epoch: epoch.validation_loss)
    metrics, _ = choose_metrics(["dcr", "singling_out"], None)
    inputs = attach_embedder(inputs, embedder)
    seen: dict[str, Any] = {}
    for name, (fraction, noise) in RELEASES.items():
        cases = leaky_cases(inputs.train, inputs.synthetic, fractions=[fraction], noises=[noise], seed=inputs.seed)
        (point,) = run_study(inputs, cases, metrics)
        seen[name] = {statistic: point.estimates[statistic] for statistic in SEEN}
    return {
        "steps": budget, "epochs": len(embedder.history), "cpu": round(seconds, 1), "loss": kept.validation_loss,
        "accuracy": kept.validation_accuracy, "seen": seen,
    }  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """Add the lines that the results do not hold yet."""
    held = {(line["table"], line["seed"], line["steps"]) for line in lines(options.results)}
    for name in options.tables:
        inputs, table = table_of(name, options.rows, options.seed), Path(name).stem
        for budget in BUDGETS:
            if (table, options.seed, budget) in held:
                continue
            told = {"table": table, "rows": len(inputs.train), "seed": options.seed, **trained(inputs, budget)}
            with options.results.open("a") as file:
                file.write(json.dumps(told, allow_nan=False) + "\n")
            sys.stderr.write(f"{table}, {budget or 'all'} steps: {told['cpu']:.0f} CPU s, {told['accuracy']:.3f}\n")


def report_text(found: list[dict[str, Any]]) -> str:
    """Markdown: a table for each one that was read, a row for each budget; ± is half of the interval."""
    out = []
    for table in dict.fromkeys(line["table"] for line in found):
        mine = [line for line in found if line["table"] == table]
        head = ["steps", "epochs", "CPU s", "loss", "accuracy"]
        head += [f"{short}, {release}" for short in SEEN.values() for release in RELEASES]
        out += [f"\n{table}, {mine[0]['rows']:,} rows\n", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
        for line in sorted(mine, key=lambda line: line["steps"] or UNLIMITED):
            cells = [line["steps"] or "all", line["epochs"], f"{line['cpu']:.0f}"]
            cells += [f"{line[what]:.3f}" for what in ("loss", "accuracy")]
            cells += [shown(*line["seen"][release][statistic]) for statistic in SEEN for release in RELEASES]
            out.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(out) + "\n"


def shown(value: float, low: float, high: float) -> str:
    """Value and half of its interval."""
    return f"{value:.3f} ± {(high - low) / 2:.3f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help='Parquet files, or "demo"')
    parser.add_argument("--rows", type=int, default=4_000, help="rows of train, of holdout and of the release")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=Path("embedder.jsonl"), help="where lines are added")
    parser.add_argument("--report", type=Path, help="a file to report on; nothing is run")
    options = parser.parse_args(arguments)
    if options.report is not None:
        sys.stdout.write(report_text(lines(options.report)))
    elif options.tables:
        run(options)
    else:
        parser.error("name a table, or a --report file")


if __name__ == "__main__":
    main()
