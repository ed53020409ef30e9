"""What every default metric costs by the number of rows (Palacios, appendix B), and an epoch of the encoder.

    OMP_NUM_THREADS=1 python -m benchmarks.scalability adult.parquet --results scalability.jsonl
    python -m benchmarks.scalability --report scalability.jsonl

Each half of the table makes one side, train and holdout, of as many rows as --sizes says: first its own rows, then
copies of them, with numbers moved by 0.1 standard deviations and one category in 20 resampled.
Sequential trees of train's half make as many synthetic rows. Above the size of the table only what it costs means
anything. Every metric runs in a process of its own after a warm-up on 1,000 rows, raw and, where it can use one, with
an encoder as well, which was trained for --epochs epochs only: that changes no cost. Seconds are of the processor,
memory is the most that the process held. Each measurement is one line of the results and is never made twice.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.measured import ROLES, WARM_ROWS, cost, peak
from privacy_assets.embedding.embedder import Embedder
from privacy_assets.evaluation import attach_embedder, fit_embedder, prepare_inputs
from privacy_assets.generators import build_generator
from privacy_assets.metrics.inputs import MetricInputs
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
    """``rows`` rows of the ``pool``: its own, then copies of them, jittered."""
    if rows <= len(pool):
        return pool.take(slice(rows))
    copies = build_generator("noisy_copy", JITTER).fit(pool, seed=0)
    return Table.stack([pool, copies.sample(rows - len(pool), seed=0)])


def tables_of(path: Path, rows: int, seed: int) -> dict[str, pd.DataFrame]:
    """Train, holdout and synthetic rows, as many each, as a user would give them."""
    table = Table.read(path)
    order = np.random.default_rng(seed).permutation(len(table))
    train, holdout = (table.take(half) for half in np.array_split(order, 2))
    trees = build_generator("synthpop", {}).fit(train, seed=seed)
    made = {"train": grown(train, rows), "holdout": grown(holdout, rows), "synthetic": trees.sample(rows, seed=seed)}
    return {name: part.restored() for name, part in made.items()}


def measure(folder: Path, work: str, epochs: int) -> dict[str, float]:
    """CPU seconds of one piece of work on the tables in ``folder``, and the most memory of this process in MB."""
    tables = [pd.read_parquet(folder / f"{role}.parquet") for role in ROLES]
    prepare, do = prepare_inputs, _steps(folder, work, epochs)
    compiling, _ = cost(lambda: do(prepare(*(table[:WARM_ROWS] for table in tables))))
    preparing, inputs = cost(prepare, *tables)
    seconds, _ = cost(do, inputs)
    return {"cpu": seconds / (epochs if work == ENCODER else 1), "preparing": preparing, "mb": peak()}


def _steps(folder: Path, work: str, epochs: int) -> Callable[[MetricInputs], object]:
    if work == ENCODER:
        return lambda inputs: fit_embedder(inputs, max_epochs=epochs).save(folder / "encoder")
    metric = build_metric(work.removesuffix(EMBEDDED), {})
    if not work.endswith(EMBEDDED):
        return metric.evaluate
    embedder = Embedder.load(folder / "encoder")
    return lambda inputs: metric.evaluate(attach_embedder(inputs, embedder))


def works() -> list[str]:
    """The encoder, which others read, then every metric: raw, and with the encoder where it can use one."""
    found = [ENCODER]
    for name in default_metrics():
        found += [name, name + EMBEDDED] if "embedder" in build_metric(name, {}).optional else [name]
    return found


def run(options: argparse.Namespace) -> None:
    """Add the lines that the results do not hold yet."""
    held = {key_of(line) for line in lines(options.results)}
    for rows in options.sizes:
        head = {"table": options.table.stem, "seed": options.seed, "rows": rows}
        left = [work for work in works() if key_of({**head, "work": work}) not in held]
        if not left:
            continue
        needed = [ENCODER, *left] if any(EMBEDDED in work for work in left) and ENCODER not in left else left
        with TemporaryDirectory() as place:
            folder = Path(place)
            for name, table in tables_of(options.table, rows, options.seed).items():
                table.to_parquet(folder / f"{name}.parquet")
            for work in needed:
                with multiprocessing.get_context("spawn").Pool(1) as alone:  # its memory is its own
                    told = alone.apply(measure, (folder, work, options.epochs))
                if work in left:
                    with options.results.open("a") as file:
                        file.write(json.dumps({**head, "work": work, **told}) + "\n")
                sys.stderr.write(f"{rows:,} rows, {work}: {told['cpu']:.1f} CPU s, {told['mb']:.0f} MB\n")


def key_of(line: dict[str, Any]) -> tuple[Any, ...]:
    """What was measured."""
    return tuple(line[key] for key in ("table", "seed", "rows", "work"))


def lines(path: Path) -> list[dict[str, Any]]:
    """Results, if there are any."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def report_text(found: list[dict[str, Any]]) -> str:
    """A Markdown table: CPU s and MB by rows, with the paper's seconds below what they are of."""
    sizes = sorted({line["rows"] for line in found})
    head = ["CPU s, MB", *(f"{rows:,} rows" for rows in sizes)]
    out = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for work in [work for work in works() if any(line["work"] == work for line in found)]:
        costs = {line["rows"]: line for line in found if line["work"] == work}
        cells = [f"{costs[n]['cpu']:.2f}, {costs[n]['mb']:,.0f}" if n in costs else "" for n in sizes]
        out.append(f"| {' | '.join([work, *cells])} |")
        if work in PAPER:
            theirs = dict(zip(SIZES, PAPER[work], strict=True))
            cells = [f"{theirs[n]:,.0f}" if n in theirs else "" for n in sizes]
            out.append(f"| {' | '.join(['paper, s', *cells])} |")
    preparing = [max(line["preparing"] for line in found if line["rows"] == n) for n in sizes]
    out.append(f"| {' | '.join(['preparing, once for all', *(f'{seconds:.2f}' for seconds in preparing)])} |")
    return "\n".join(out) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", type=Path, help="a Parquet file")
    sizes = "rows of train, of holdout and of the synthetic table"
    parser.add_argument("--sizes", type=lambda text: [int(n) for n in text.split(",")], default=SIZES, help=sizes)
    parser.add_argument("--epochs", type=int, default=3, help="epochs of the encoder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=Path("scalability.jsonl"), help="where lines are added")
    parser.add_argument("--report", type=Path, help="a file to report on; nothing is run")
    options = parser.parse_args(arguments)
    if options.report is not None:
        sys.stdout.write(report_text(lines(options.report)))
    elif options.table is None:
        parser.error("name a table, or a --report file")
    else:
        run(options)


if __name__ == "__main__":
    main()
