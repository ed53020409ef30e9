"""How costs grow with the rows: exact nearest neighbours alone, and whole metrics on tables of that many rows.

    OMP_NUM_THREADS=1 python -m benchmarks.growth adult.parquet --columns 12
    python -m benchmarks.growth adult.parquet --columns 12 --metrics dcr,singling_out,membership_inference
    python -m benchmarks.growth adult.parquet --metrics dcr,singling_out,membership_inference --files --attacked 200000

Rows of the table are drawn with replacement; numbers move by 0.1 standard deviations and one category in 20 is that of
another row. Neighbours: so many rows, encoded, are searched for the nearest row of each of 50,000 others. Metrics: so
many rows of train, as many synthetic ones and a quarter of it as holdout, canonical frames in memory; everybody is
attacked. Every size is a process of its own: user plus system seconds, and the most memory that it held.

With ``--files`` the tables are Parquet files, and ``privacy_assets.evaluate`` is given their paths; ``--attacked`` is
the budget of the metrics that have one. Private memory is what the system cannot write out to a file of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.measured import cost, peak
from privacy_assets.generators.copies import jittered, resampled
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.registry import build_metric
from privacy_assets.neighbours.mixed_tree import MixedTree
from privacy_assets.tables.column import Column
from privacy_assets.tables.encoding import EncodedTable, Encoder
from privacy_assets.tables.table import Table

SIZES = (50_000, 200_000, 1_000_000, 5_000_000)
QUERIES = 50_000


def drawn(pool: EncodedTable, rows: int, rng: np.random.Generator) -> EncodedTable:
    """``rows`` rows of ``pool``, moved."""
    chosen = pool.take(rng.integers(0, len(pool), rows))
    numbers = chosen.numeric + rng.normal(scale=0.1, size=chosen.numeric.shape).astype(np.float32)
    others = pool.codes[rng.integers(0, len(pool), rows)]
    codes = np.where(rng.random(chosen.codes.shape, dtype=np.float32) < 0.05, others, chosen.codes)
    return EncodedTable(numbers.astype(np.float32), codes.astype(np.int32), pool.sizes)


def measure(path: Path, columns: int, rows: int) -> tuple[float, float, float]:
    """CPU seconds to grow the tree, microseconds a query, and the most memory in MB."""
    frame = pd.read_parquet(path).iloc[:, :columns]
    table = Table.read(frame, where=path.name)
    pool = Encoder.fit([table], table.schema).transform(table)
    rng = np.random.default_rng(0)
    warm = MixedTree.build(drawn(pool, 3_000, rng))
    warm.search(drawn(pool, 3_000, rng), 1)
    points, queries = drawn(pool, rows, rng), drawn(pool, QUERIES, rng)
    growing, tree = cost(MixedTree.build, points)
    asking, _ = cost(tree.search, queries, 1)
    return growing, asking / QUERIES * 1e6, peak()


def grown(table: Table, rows: int, rng: np.random.Generator) -> Table:
    """``rows`` rows of ``table``, moved."""

    def moved(column: Column) -> Column:
        known = table[column.name].present()
        if column.values is not None:
            return resampled(column, known, 0.05, rng)
        return jittered(column, known, 0.1, rng)

    return table.take(rng.integers(0, len(table), rows)).map(moved)


def metrics(path: Path, columns: int, rows: int, names: list[str]) -> tuple[list[float], float]:
    """CPU seconds of preparing and of each metric, and the most memory in MB."""
    frame = pd.read_parquet(path).iloc[:, :columns]
    table, rng = Table.read(frame, where=path.name), np.random.default_rng(0)
    sizes = {"train": rows, "holdout": rows // 4, "synthetic": rows}
    small = {role: grown(table, 2_000, rng) for role in sizes}
    for name in names:
        build_metric(name).measure(MetricInputs(table.schema, small))
    inputs = MetricInputs(table.schema, {role: grown(table, count, rng) for role, count in sizes.items()})
    spent = [cost(lambda: [inputs.row_ids, *(inputs.encoded(role) for role in sizes)])[0]]
    spent += [cost(build_metric(name).measure, inputs)[0] for name in names]
    return spent, peak()


def write(path: Path, columns: int, rows: int, folder: Path) -> None:
    """Files of the three tables, in the dtypes of the table itself."""
    frame = pd.read_parquet(path).iloc[:, :columns]
    table, rng = Table.read(frame, where=path.name), np.random.default_rng(0)
    for role, count in {"train": rows, "holdout": rows // 4, "synthetic": rows}.items():
        grown(table, count, rng).restored().to_parquet(folder / f"{role}.parquet")


@contextmanager
def private() -> Iterator[list[float]]:
    """The most private memory in MB, as far as looking 50 times a second shows it, when the block has ended."""
    most, over = [0.0], threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            lines = Path("/proc/self/status").read_text().splitlines()
            now = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))
            most[0] = max(most[0], now)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def through_files(small: Path, folder: Path, names: list[str], max_targets: int | None) -> list[float]:
    """Wall and CPU seconds of evaluating the files, wall seconds of each metric, most memory and most private, in MB.

    What is compiled is compiled on ``small`` files before.
    """
    from privacy_assets import evaluate

    metrics = {
        name: {"max_targets": max_targets} if "max_targets" in build_metric(name).settings() else {} for name in names
    }
    roles = ("train", "holdout", "synthetic")
    few, paths = ([str(where / f"{role}.parquet") for role in roles] for where in (small, folder))
    evaluate(*few, metrics=metrics, embedder=False)
    started = time.perf_counter()
    with private() as most:
        spent, report = cost(lambda: evaluate(*paths, metrics=metrics, embedder=False))
    each = [report.results[name].seconds for name in names]
    return [time.perf_counter() - started, spent, *each, peak(), most[0]]


def files(options: argparse.Namespace) -> None:
    """Print a row a size, of tables in files."""
    names, alone = options.metrics.split(","), multiprocessing.get_context("spawn")
    print(f"| rows | wall, s | CPU s | {' | '.join(f'{name}, s' for name in names)} | most memory, MB | private, MB |")
    print(f"|---|---|---|{'---|' * len(names)}---|---|")
    with tempfile.TemporaryDirectory() as place:
        folders = {rows: Path(place) / str(rows) for rows in (4_000, *options.sizes)}
        for rows, folder in folders.items():
            folder.mkdir()
            with alone.Pool(1) as worker:
                worker.apply(write, (options.table, options.columns, rows, folder))
            if rows == 4_000:
                continue
            with alone.Pool(1) as worker:
                found = worker.apply(through_files, (folders[4_000], folder, names, options.max_targets))
            print(f"| {rows:,} | {' | '.join(f'{one:,.0f}' for one in found)} |", flush=True)


def main() -> None:
    """Print a row a size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="a Parquet file")
    parser.add_argument("--columns", type=int, default=12, help="so many of its first columns")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--metrics", help="names, separated by commas: measure these in place of neighbours")
    parser.add_argument("--files", action="store_true", help="measure the metrics on files, by evaluate")
    parser.add_argument(
        "--attacked", dest="max_targets", type=int, help="with --files: attack so many rows (default: all)"
    )
    options = parser.parse_args()
    if options.files:
        files(options)
        return
    if options.metrics:
        names = options.metrics.split(",")
        print(f"| rows | preparing | {' | '.join(names)} | most memory, MB |\n|---|---|{'---|' * len(names)}---|")
        for rows in options.sizes:
            with multiprocessing.get_context("spawn").Pool(1) as alone:
                spent, mb = alone.apply(metrics, (options.table, options.columns, rows, names))
            print(f"| {rows:,} | {' | '.join(f'{one:.1f}' for one in spent)} | {mb:,.0f} |", flush=True)
        return
    print("| rows searched | growing the tree, CPU s | a query, µs | growth of a query | most memory, MB |")
    print("|---|---|---|---|---|")
    before: tuple[int, float] | None = None
    for rows in options.sizes:
        with multiprocessing.get_context("spawn").Pool(1) as alone:
            growing, micros, mb = alone.apply(measure, (options.table, options.columns, rows))
        power = "" if before is None else f"n^{np.log(micros / before[1]) / np.log(rows / before[0]):.2f}"
        print(f"| {rows:,} | {growing:.1f} | {micros:.0f} | {power} | {mb:,.0f} |", flush=True)
        before = rows, micros


if __name__ == "__main__":
    main()
