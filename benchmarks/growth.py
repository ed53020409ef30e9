"""How the cost of a nearest neighbour grows with the rows that are searched, and how much memory it takes.

    OMP_NUM_THREADS=1 python -m benchmarks.growth adult.parquet --columns 12

Rows of the table, encoded, are drawn with replacement; numbers move by 0.1 standard deviations and one code in 20 is
that of another row. So many of them are searched for the nearest row of 50,000 others. Every size is a process of its
own: user plus system seconds a query, growing the tree apart, and the most memory that it held.
"""

from __future__ import annotations

import argparse
import multiprocessing
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.measured import cost, peak
from privacy_assets.engine.geometry.mixed_tree import MixedTree
from privacy_assets.engine.tables.encoding import EncodedTable, Encoder
from privacy_assets.engine.tables.schema import conform, infer_schema

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
    schema = infer_schema(frame)
    canonical = conform(frame, schema, where=path.name)
    pool = Encoder.fit([canonical], schema).transform(canonical)
    rng = np.random.default_rng(0)
    warm = MixedTree.build(drawn(pool, 3_000, rng))
    warm.search(drawn(pool, 3_000, rng), 1)
    points, queries = drawn(pool, rows, rng), drawn(pool, QUERIES, rng)
    growing, tree = cost(MixedTree.build, points)
    asking, _ = cost(tree.search, queries, 1)
    return growing, asking / QUERIES * 1e6, peak()


def main() -> None:
    """Print a row a size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="a Parquet file")
    parser.add_argument("--columns", type=int, default=12, help="so many of its first columns")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args()
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
