"""Measure the cost of every default metric by number of rows (Palacios, appendix B), and of an
encoder epoch.

    OMP_NUM_THREADS=1 python -m benchmarks.scalability adult.parquet --results scalability.jsonl
    python -m benchmarks.scalability --report scalability.jsonl

Each half of the table supplies train or holdout with --sizes rows: first its own rows, then copies
with numbers shifted by 0.1 standard deviations and one category in 20 resampled. Sequential trees
of the training half generate the synthetic rows. Above the size of the table only the costs are
meaningful. Every metric runs in its own process after a warm-up on 1,000 rows, raw and, if it can
use one, with an encoder, trained for only --epochs epochs because this does not change the cost.
Results are CPU seconds and peak memory. Each measurement is one line of the results and is made
once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.measured import ROLES, WARM_ROWS, cost, peak
from benchmarks.study import append, lines, run_or_report, study_parser
from privacy_assets.distances.embedder import Embedder
from privacy_assets.evaluation.measuring import attach_embedder, fit_embedder
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.generators import build_generator
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.registry import build_metric, default_metrics
from privacy_assets.tables.table import Table

SIZES = (25_000, 50_000, 75_000, 100_000)
JITTER = {"noise": 0.1, "redraw": 0.05}
ENCODER = "encoder, an epoch"
EMBEDDED = " with the encoder"
PAPER = {  # appendix B: seconds on Census, 25,000 to 100,000 rows
    "singling_out": (12906.35, 17124.45, 21748.37, 26377.15),
    "singling_out" + EMBEDDED: (1467.05, 13238.44, 17256.22, 23583.04),
}


def grown(pool: Table, rows: int) -> Table:
    """Return ``rows`` rows of the ``pool``: its own, then jittered copies."""
    if rows <= len(pool):
        return pool.take(slice(rows))
    copies = build_generator("noisy_copy", JITTER).fit(pool, seed=0)
    return Table.stack([pool, copies.sample(rows - len(pool), seed=0)])


def tables_of(path: Path, rows: int, seed: int) -> dict[str, pd.DataFrame]:
    """Return train, holdout and synthetic rows of equal size, as a user would pass them."""
    table = Table.read(path)
    order = np.random.default_rng(seed).permutation(len(table))
    train, holdout = (table.take(half) for half in np.array_split(order, 2))
    trees = build_generator("synthpop", {}).fit(train, seed=seed)
    made = {
        "train": grown(train, rows),
        "holdout": grown(holdout, rows),
        "synthetic": trees.sample(rows, seed=seed),
    }
    return {name: part.to_published_frame() for name, part in made.items()}


def measure(folder: Path, work: str, epochs: int) -> dict[str, float]:
    """Return CPU seconds of one task on the tables in ``folder``, and peak memory in MB."""
    tables = [pd.read_parquet(folder / f"{role}.parquet") for role in ROLES]
    prepare, do = read_inputs, _steps(folder, work, epochs)
    compiling, _ = cost(lambda: do(prepare(*(table[:WARM_ROWS] for table in tables))))
    preparing, inputs = cost(prepare, *tables)
    seconds, _ = cost(do, inputs)
    return {
        "cpu": seconds / (epochs if work == ENCODER else 1),
        "preparing": preparing,
        "mb": peak(),
    }


def _steps(folder: Path, work: str, epochs: int) -> Callable[[EvaluationInputs], object]:
    if work == ENCODER:
        return lambda inputs: fit_embedder(
            inputs.real, {"max_epochs": epochs}, seed=inputs.seed, device=inputs.device
        ).save(folder / "encoder")
    metric = build_metric(work.removesuffix(EMBEDDED), {})
    if not work.endswith(EMBEDDED):
        return metric.measure
    embedder = Embedder.load(folder / "encoder")
    return lambda inputs: metric.measure(attach_embedder(inputs, embedder))


def works() -> list[str]:
    """Return the encoder, which others read, then every metric: raw, and with the encoder if it can
    use one.
    """
    found = [ENCODER]
    for name in default_metrics():
        found += (
            [name, name + EMBEDDED]
            if "embedder" in build_metric(name, {}).optional_inputs
            else [name]
        )
    return found


def run(options: argparse.Namespace) -> None:
    """Run the measurements that the results do not contain yet."""
    held = {key_of(line) for line in lines(options.results)}
    for rows in options.sizes:
        head = {"table": options.table.stem, "seed": options.seed, "rows": rows}
        left = [work for work in works() if key_of({**head, "work": work}) not in held]
        if not left:
            continue
        needed = (
            [ENCODER, *left]
            if any(EMBEDDED in work for work in left) and ENCODER not in left
            else left
        )
        with TemporaryDirectory() as place:
            folder = Path(place)
            for name, table in tables_of(options.table, rows, options.seed).items():
                table.to_parquet(folder / f"{name}.parquet")
            for work in needed:
                with multiprocessing.get_context("spawn").Pool(1) as alone:  # separate peak memory
                    result = alone.apply(measure, (folder, work, options.epochs))
                if work in left:
                    append(options.results, {**head, "work": work, **result})
                sys.stderr.write(
                    f"{rows:,} rows, {work}: {result['cpu']:.1f} CPU s, {result['mb']:.0f} MB\n"
                )


def key_of(line: dict[str, Any]) -> tuple[Any, ...]:
    """Identify the measurement of a line."""
    return tuple(line[key] for key in ("table", "seed", "rows", "work"))


def report_text(found: list[dict[str, Any]]) -> str:
    """Return a Markdown table of CPU s and MB by rows, with the paper's seconds below the
    corresponding metric.
    """
    sizes = sorted({line["rows"] for line in found})
    head = ["CPU s, MB", *(f"{rows:,} rows" for rows in sizes)]
    out = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for work in [work for work in works() if any(line["work"] == work for line in found)]:
        costs = {line["rows"]: line for line in found if line["work"] == work}
        cells = [
            f"{costs[n]['cpu']:.2f}, {costs[n]['mb']:,.0f}" if n in costs else "" for n in sizes
        ]
        out.append(f"| {' | '.join([work, *cells])} |")
        if work in PAPER:
            theirs = dict(zip(SIZES, PAPER[work], strict=True))
            cells = [f"{theirs[n]:,.0f}" if n in theirs else "" for n in sizes]
            out.append(f"| {' | '.join(['paper, s', *cells])} |")
    preparing = [max(line["preparing"] for line in found if line["rows"] == n) for n in sizes]
    out.append(
        f"| {' | '.join(['preparing, once for all', *(f'{seconds:.2f}' for seconds in preparing)])} |"  # noqa: E501
    )
    return "\n".join(out) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = study_parser(__doc__, "scalability.jsonl")
    parser.add_argument("table", nargs="?", type=Path, help="a Parquet file")
    sizes = "rows each of train, holdout and synthetic table"
    parser.add_argument(
        "--sizes", type=lambda text: [int(n) for n in text.split(",")], default=SIZES, help=sizes
    )
    parser.add_argument("--epochs", type=int, default=3, help="epochs of the encoder")
    parser.add_argument("--seed", type=int, default=0)
    run_or_report(parser, arguments, run, lambda _, found: report_text(found))


if __name__ == "__main__":
    main()
