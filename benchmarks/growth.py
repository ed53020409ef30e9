"""Measure the cost of exact nearest neighbors and of whole metrics by number of rows.

    OMP_NUM_THREADS=1 python -m benchmarks.growth adult.parquet --columns 12
    python -m benchmarks.growth adult.parquet --columns 12 --metrics \\
        dcr,singling_out,membership_inference
    python -m benchmarks.growth adult.parquet --metrics dcr,singling_out,membership_inference \\
        --files --attacked 200000

Rows are drawn with replacement, with numbers shifted by 0.1 standard deviations and one category in
20 taken from another row. Neighbors: n encoded rows are searched for the nearest row of each of
50,000 others. Metrics: n rows of train, n synthetic rows and n / 4 rows of holdout, as canonical
frames in memory; all people are attacked. Each size has its own process: user plus system seconds
and peak memory.

With ``--files`` the tables are Parquet files whose paths are passed to ``privacy_assets.evaluate``;
``--attacked`` is the budget of the metrics that have one. Private memory excludes pages that the
system can write back to their own file.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.measured import cost, peak
from privacy_assets.distances.mixed_tree import MixedTree
from privacy_assets.generators.copies import jittered, resampled
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.policies import default_policy
from privacy_assets.metrics.registry import build_metric
from privacy_assets.metrics.release_tables import ReleaseTables
from privacy_assets.tables.column import Column
from privacy_assets.tables.encoding import EncodedTable, TabularEncoder
from privacy_assets.tables.table import Table

SIZES = (50_000, 200_000, 1_000_000, 5_000_000)
QUERIES = 50_000


def drawn(pool: EncodedTable, rows: int, rng: np.random.Generator) -> EncodedTable:
    """Draw ``rows`` rows of ``pool`` with jitter."""
    chosen = pool.take(rng.integers(0, len(pool), rows))
    numbers = chosen.numeric + rng.normal(scale=0.1, size=chosen.numeric.shape).astype(np.float32)
    others = pool.codes[rng.integers(0, len(pool), rows)]
    codes = np.where(rng.random(chosen.codes.shape, dtype=np.float32) < 0.05, others, chosen.codes)
    return EncodedTable(numbers.astype(np.float32), codes.astype(np.int32), pool.sizes)


def measure(path: Path, columns: int, rows: int) -> tuple[float, float, float]:
    """Return CPU seconds to build the tree, microseconds per query, and peak memory in MB."""
    frame = pd.read_parquet(path).iloc[:, :columns]
    table = Table.read(frame, where=path.name)
    pool = TabularEncoder.fit([table], table.schema).transform(table)
    rng = np.random.default_rng(0)
    warm = MixedTree.build(drawn(pool, 3_000, rng))
    warm.search(drawn(pool, 3_000, rng), 1)
    points, queries = drawn(pool, rows, rng), drawn(pool, QUERIES, rng)
    growing, tree = cost(MixedTree.build, points)
    asking, _ = cost(tree.search, queries, 1)
    return growing, asking / QUERIES * 1e6, peak()


def grown(table: Table, rows: int, rng: np.random.Generator) -> Table:
    """Draw ``rows`` rows of ``table`` with jitter."""

    def moved(column: Column) -> Column:
        known = table[column.name].present()
        if column.values is not None:
            return resampled(column, known, 0.05, rng)
        return jittered(column, known, 0.1, rng)

    return table.take(rng.integers(0, len(table), rows)).map(moved)


def metrics(path: Path, columns: int, rows: int, names: list[str]) -> tuple[list[float], float]:
    """Return CPU seconds of preparation and of each metric, and peak memory in MB."""
    frame = pd.read_parquet(path).iloc[:, :columns]
    table, rng = Table.read(frame, where=path.name), np.random.default_rng(0)
    sizes = {"train": rows, "holdout": rows // 4, "synthetic": rows}
    small = {role: grown(table, 2_000, rng) for role in sizes}
    for name in names:
        build_metric(name).measure(EvaluationInputs.of(ReleaseTables(table.schema, small)))
    tables = {role: grown(table, count, rng) for role, count in sizes.items()}
    inputs = EvaluationInputs.of(ReleaseTables(table.schema, tables))
    spent = [cost(lambda: [inputs.row_ids, *(inputs.encoded(role) for role in sizes)])[0]]
    spent += [cost(build_metric(name).measure, inputs)[0] for name in names]
    return spent, peak()


def write(path: Path, columns: int, rows: int, folder: Path) -> None:
    """Write the three tables as files with the dtypes of the source."""
    frame = pd.read_parquet(path).iloc[:, :columns]
    table, rng = Table.read(frame, where=path.name), np.random.default_rng(0)
    for role, count in {"train": rows, "holdout": rows // 4, "synthetic": rows}.items():
        grown(table, count, rng).to_published_frame().to_parquet(folder / f"{role}.parquet")


@contextmanager
def private() -> Iterator[list[float]]:
    """Yield a list that contains, after the block, the peak private memory in MB, sampled 50 times
    a second.
    """
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


def through_files(
    small: Path, folder: Path, names: list[str], max_targets: int | None
) -> list[float]:
    """Evaluate the files; return wall and CPU seconds, wall seconds per metric, peak memory and
    private peak in MB.

    Compilation happens beforehand on ``small`` files.
    """
    from privacy_assets import evaluate

    budget = {"max_targets": max_targets}
    settings = {
        name: budget
        for name in names
        if max_targets and "max_targets" in build_metric(name).settings()
    }
    policy = replace(default_policy(), name="benchmark", settings=settings, embedder=False)
    roles = ("train", "holdout", "synthetic")
    few, paths = ([str(where / f"{role}.parquet") for role in roles] for where in (small, folder))
    evaluate(*few, metrics=names, policy=policy, embedder=False)
    started = time.perf_counter()
    with private() as most:
        spent, report = cost(lambda: evaluate(*paths, metrics=names, policy=policy, embedder=False))
    each = [report.results[name].seconds for name in names]
    return [time.perf_counter() - started, spent, *each, peak(), most[0]]


def files(options: argparse.Namespace) -> None:
    """Print one row per size for tables in files."""
    names, alone = options.metrics.split(","), multiprocessing.get_context("spawn")
    print(
        f"| rows | wall, s | CPU s | {' | '.join(f'{name}, s' for name in names)} | peak"
        " memory, MB | private, MB |"
    )
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
                found = worker.apply(
                    through_files, (folders[4_000], folder, names, options.max_targets)
                )
            print(f"| {rows:,} | {' | '.join(f'{one:,.0f}' for one in found)} |", flush=True)


def main() -> None:
    """Print one row per size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path, help="a Parquet file")
    parser.add_argument(
        "--columns", type=int, default=12, help="use this number of its first columns"
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument(
        "--metrics", help="names, separated by commas: measure these instead of neighbors"
    )
    parser.add_argument(
        "--files", action="store_true", help="measure the metrics on files, by evaluate"
    )
    parser.add_argument(
        "--attacked",
        dest="max_targets",
        type=int,
        help="with --files: maximum number of attacked rows (default: all)",
    )
    options = parser.parse_args()
    if options.files:
        files(options)
        return
    if options.metrics:
        names = options.metrics.split(",")
        print(
            f"| rows | preparing | {' | '.join(names)} | peak memory, MB"
            f" |\n|---|---|{'---|' * len(names)}---|"
        )
        for rows in options.sizes:
            with multiprocessing.get_context("spawn").Pool(1) as alone:
                spent, mb = alone.apply(metrics, (options.table, options.columns, rows, names))
            print(
                f"| {rows:,} | {' | '.join(f'{one:.1f}' for one in spent)} | {mb:,.0f} |",
                flush=True,
            )
        return
    print(
        "| rows searched | building the tree, CPU s | a query, µs | growth of a query | peak"
        " memory, MB |"
    )
    print("|---|---|---|---|---|")
    before: tuple[int, float] | None = None
    for rows in options.sizes:
        with multiprocessing.get_context("spawn").Pool(1) as alone:
            growing, micros, mb = alone.apply(measure, (options.table, options.columns, rows))
        power = (
            ""
            if before is None
            else f"n^{np.log(micros / before[1]) / np.log(rows / before[0]):.2f}"
        )
        print(f"| {rows:,} | {growing:.1f} | {micros:.0f} | {power} | {mb:,.0f} |", flush=True)
        before = rows, micros


if __name__ == "__main__":
    main()
