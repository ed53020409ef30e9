"""Measure embeddings of 3 and more dimensions (Palacios, appendix C and figure 5): training quality
and risk.

    python -m benchmarks.dimensions adult.parquet --results dimensions.jsonl
    python -m benchmarks.dimensions --report dimensions.jsonl --images benchmarks/results

Train, holdout and release have --rows rows each, drawn with --seed. For each dimension from 3 to
one less than the number of columns, an encoder of train and holdout is trained with each of
--repeats seeds, the default width and at most --epochs epochs. Accuracy and loss refer to the kept
weights on validation rows. The first seed's encoder then serves the embedded statistics on tables
that leak 0, a quarter, half, three quarters and all of their rows. Each encoder is one line of the
results and is trained once.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.images import write_image
from benchmarks.measured import cost
from benchmarks.study import append, lines, run_or_report, study_parser
from privacy_assets.evaluation.measuring import attach_embedder, fit_embedder
from privacy_assets.metrics.inputs import EvaluationContext, EvaluationInputs
from privacy_assets.metrics.policies import choose_metrics
from privacy_assets.metrics.release_tables import ReleaseTables
from privacy_assets.report.svg import intervals_svg
from privacy_assets.studies.leak_study import (
    LinearFit,
    Noise,
    StudyPoint,
    leak_study,
    leaky_cases,
    linear_fits,
)
from privacy_assets.tables.table import Table

UNLIMITED = 10**9  # steps: this study limits epochs instead
FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
SEEN = {"singling_out.risk_embedded": "SO + CL", "dcr.privacy_score_embedded": "DCR + CL"}
PAPER = {  # appendix C, Adult: risk and half its interval
    3: (0.0089, 0.0134),
    4: (0.0124, 0.0121),
    5: (0.0168, 0.0281),
    6: (0.0074, 0.0303),
    7: (0.0098, 0.0113),
    8: (0.0152, 0.0289),
    9: (0.0087, 0.0307),
    10: (0.0243, 0.0272),
    11: (0.0078, 0.0277),
    12: (0.0167, 0.0303),
    13: (0.0123, 0.0180),
    14: (0.0066, 0.0281),
}
LEARNT = {"accuracy": "validation accuracy", "loss": "validation loss"}


def inputs_of(frame: pd.DataFrame, where: str, rows: int, seed: int) -> EvaluationInputs:
    """Return train, holdout and the release, used as synthetic rows; each row is a subject."""
    if 3 * rows > len(frame):
        raise SystemExit(
            f"{where}: {len(frame):,} rows are not enough for {3 * rows:,}; choose fewer --rows"
        )
    drawn = np.random.default_rng(seed).permutation(len(frame))[: 3 * rows]
    whole = Table.read(frame, where=where).take(drawn)
    roles = ("train", "holdout", "synthetic")
    tables = {role: whole.take(slice(i * rows, (i + 1) * rows)) for i, role in enumerate(roles)}
    release = ReleaseTables(whole.schema, tables)
    return EvaluationInputs.of(release, EvaluationContext(seed=seed))


def trained(
    inputs: EvaluationInputs, dims: int, seed: int, epochs: int, *, judge: bool
) -> dict[str, Any]:
    """Return accuracy, loss and cost of one encoder; with ``judge`` also the points of the leak
    study in its space.
    """
    seeded = inputs.with_context(EvaluationContext(seed=seed))
    seconds, embedder = cost(
        lambda: fit_embedder(
            seeded.real,
            {"dims": dims, "max_epochs": epochs, "max_steps": UNLIMITED},
            seed=seeded.seed,
            device=seeded.device,
        )
    )
    kept = min(embedder.history, key=lambda epoch: epoch.validation_loss)
    record = {
        "dims": dims,
        "seed": seed,
        "epochs": len(embedder.history),
        "kept": kept.epoch,
        "cpu": round(seconds, 1),
        "accuracy": kept.validation_accuracy,
        "loss": kept.validation_loss,
    }
    if not judge:
        return {**record, "points": []}
    cases = leaky_cases(
        inputs.train, inputs.synthetic, fractions=FRACTIONS, noises=[Noise()], seed=inputs.seed
    )
    metrics, _ = choose_metrics(["dcr", "singling_out"], None)
    points = leak_study(attach_embedder(inputs, embedder), cases, metrics)
    return {**record, "points": [point.to_json() for point in points]}


def run(options: argparse.Namespace) -> None:
    """Train the missing encoders: all dimensions with the first seed, then with the next."""
    inputs = inputs_of(
        pd.read_parquet(options.table), options.table.name, options.rows, options.seed
    )
    dims = options.dims or range(3, len(inputs.schema.columns))
    common = {"table": options.table.stem, "rows": options.rows, "most": options.epochs}
    held = {key_of(line) for line in lines(options.results)}
    for seed in range(options.seed, options.seed + options.repeats):
        for one in dims:
            if key_of({**common, "seed": seed, "dims": one}) in held:
                continue
            result = trained(inputs, one, seed, options.epochs, judge=seed == options.seed)
            append(options.results, {**common, **result})
            sys.stderr.write(
                f"{one} dimensions, seed {seed}: {result['cpu']:.0f} CPU s,"
                f" {result['accuracy']:.3f}\n"
            )


def key_of(line: dict[str, Any]) -> tuple[Any, ...]:
    """Identify the encoder of a line."""
    return tuple(line[key] for key in ("table", "rows", "most", "seed", "dims"))


# --- report
# --------------------------------------------------------------------------------------------------


def mean_of(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of its 95 % interval (Student's t); NaN for fewer than two
    values.
    """
    from scipy import stats

    if len(values) < 2:
        return float(np.mean(values)), math.nan
    return float(np.mean(values)), float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


def learnt(found: list[dict[str, Any]], what: str) -> list[dict[str, float]]:
    """Return mean and interval over the seeds, by dimension."""
    rows = []
    for dims in sorted({line["dims"] for line in found}):
        value, half = mean_of([line[what] for line in found if line["dims"] == dims])
        rows.append({"dims": dims, "value": value, "low": value - half, "high": value + half})
    return rows


def points_of(found: list[dict[str, Any]]) -> dict[int, list[StudyPoint]]:
    """Return the points of the leak study by dimension."""
    return {
        line["dims"]: [StudyPoint.from_json(point) for point in line["points"]]
        for line in found
        if line["points"]
    }


def report_text(found: list[dict[str, Any]]) -> str:
    """Return a Markdown table with a row per dimension; risks with half the width of their
    intervals.
    """
    names = [
        f"{short} {part}"
        for short in SEEN.values()
        for part in ("at no leak", "at half", "at a full one", "R²")
    ]
    head = ["dimensions", *LEARNT.values(), "CPU s", *names, "paper's risk"]
    out = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    learned = {what: {row["dims"]: row for row in learnt(found, what)} for what in LEARNT}
    for dims, points in sorted(points_of(found).items()):
        lined = {fit.statistic: fit for fit in linear_fits(points)}
        cells = [str(dims), *(_shown(learned[what][dims]) for what in LEARNT)]
        cells.append(f"{np.mean([line['cpu'] for line in found if line['dims'] == dims]):.0f}")
        cells += [
            cell for statistic in SEEN for cell in _seen(points, statistic, lined.get(statistic))
        ]
        cells.append("{:.4f} ± {:.4f}".format(*PAPER[dims]) if dims in PAPER else "")
        out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out) + "\n"


def _shown(row: dict[str, float]) -> str:
    half = (row["high"] - row["low"]) / 2
    return f"{row['value']:.3f}" + (f" ± {half:.3f}" if math.isfinite(half) else "")


def _seen(points: Sequence[StudyPoint], statistic: str, line: LinearFit | None) -> list[str]:
    found = {point.x: _parts(point, statistic) for point in points}
    return [*(_shown(found[x]) for x in (0.0, 0.5, 1.0)), "–" if line is None else f"{line.r2:.3f}"]


def _parts(point: StudyPoint, statistic: str) -> dict[str, float]:
    return dict(zip(("value", "low", "high"), point.estimates[statistic], strict=True))


def images(found: list[dict[str, Any]]) -> dict[str, str]:
    """Return SVGs by name, as in figure 5: accuracy, loss (with a line at its minimum), and risk by
    leak.
    """
    drawn = {}
    for what, label in LEARNT.items():
        rows = learnt(found, what)
        null = 0.0 if what == "accuracy" else min(row["value"] for row in rows)
        drawn[what] = intervals_svg(
            rows, x="dims", y="value", series=(), labels=("dimensions", label), null=null
        )
    for statistic, short in SEEN.items():
        rows = [
            {"dims": dims, "leak": f"leak {point.x:g}", **_parts(point, statistic)}
            for dims, points in sorted(points_of(found).items())
            for point in points
            if point.x in (0.0, 0.5, 1.0)
        ]
        name = short.lower().replace(" + ", "_")
        drawn[name] = intervals_svg(
            rows, x="dims", y="value", series=("leak",), labels=("dimensions", short)
        )
    return drawn


def report(options: argparse.Namespace, found: list[dict[str, Any]]) -> str:
    """Return the report, and write the plots if ``--images`` is given."""
    for name, svg in images(found).items() if options.images else ():
        write_image(svg, options.images / f"dimensions_{name}.svg")
    return report_text(found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = study_parser(__doc__, "dimensions.jsonl")
    parser.add_argument("table", nargs="?", type=Path, help="a Parquet file")
    parser.add_argument(
        "--rows", type=int, default=4_000, help="rows each of train, holdout and release"
    )
    parser.add_argument(
        "--dims",
        type=lambda text: [int(part) for part in text.split(",")],
        help="3 to columns less 1",
    )
    parser.add_argument("--epochs", type=int, default=80, help="most epochs of an encoder")
    parser.add_argument("--repeats", type=int, default=3, help="encoders of a dimension")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=Path, help="a folder for the plots of the report")
    run_or_report(parser, arguments, run, report)


if __name__ == "__main__":
    main()
