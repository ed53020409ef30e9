"""Compare the CPU seconds of exact nearest neighbors with faiss and a float32 product of the same
shape.

    python -m benchmarks.neighbors adult.parquet --threads 1 --large 160000 --large 1000000

39,032 training rows are searched for equally many rows of sequential trees trained on them, and for
fewer; then their embeddings, then their 109 one-hot columns as a wide table of numbers; with
``--large``, resampled rows with jittered numbers. Each time is the minimum of three, or a single
one above 100,000 rows, where faiss and the product are timed on 2,000 queries. Faiss and the
product get the dense form without unused columns; the product selects no rows. Memory is the peak
of the process so far, without faiss. Compilation, once per machine, is timed last.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

ROWS = 39_032
PROBES = 2_000


def encoded(path: str):
    """Return encoded training, synthetic and remaining real rows, the first two also embedded."""
    from privacy_assets.distances.embedder import train_embedder
    from privacy_assets.distances.embedder_settings import EmbedderSettings
    from privacy_assets.evaluation.reading import read_inputs
    from privacy_assets.generators import build_generator
    from privacy_assets.infra.progress import silent
    from privacy_assets.tables.encoding import EncodedTable
    from privacy_assets.tables.table import Table

    frame = pd.read_parquet(path).sample(frac=1, random_state=0).reset_index(drop=True)
    whole = Table.read(frame)
    schema, learnt, train, rest = whole.schema, whole.take(slice(ROWS)), frame[:ROWS], frame[ROWS:]
    fitted = build_generator("synthpop", {}).fit(learnt, seed=0, device="cpu", progress=silent)
    synthetic = fitted.sample(ROWS, seed=0)
    inputs = read_inputs(train, rest, synthetic.frame(), schema=schema)
    embedded = {}
    for dims in (10, 20, 30):
        embedder = train_embedder(
            [learnt], schema, EmbedderSettings(width=128, dims=dims, max_epochs=8), seed=0
        )
        embedded[dims] = [
            EncodedTable.of_numbers(embedder.embed(one)) for one in (learnt, synthetic)
        ]
    return inputs.encoded("train"), inputs.encoded("synthetic"), inputs.encoded("holdout"), embedded


def resampled(table, rows: int, seed: int):
    """Draw ``count`` rows of ``table`` with replacement and shift numbers by 0.1 standard
    deviations.
    """
    from privacy_assets.tables.encoding import EncodedTable

    g = np.random.default_rng(seed)
    drawn = table.take(g.integers(0, len(table), rows))
    moved = drawn.numeric + g.normal(0, 0.1, drawn.numeric.shape).astype(np.float32)
    return EncodedTable(moved, drawn.codes, drawn.sizes)


def cost(work: Callable[[], object], times: int) -> float:
    """Return CPU seconds of ``work``: the minimum of several runs."""
    used = []
    for _ in range(times):
        start = time.process_time()
        work()
        used.append(time.process_time() - start)
    return min(used)


def dense_without_unused(*tables) -> list[np.ndarray]:
    """Return dense forms without columns of unused categories, such as "missing", as input of
    faiss.
    """
    dense = [table.dense for table in tables]
    used = np.any([(part != 0).any(axis=0) for part in dense], axis=0)
    return [np.ascontiguousarray(part[:, used]) for part in dense]


def product(queries: np.ndarray, points: np.ndarray, block: int = 1024) -> None:
    """Multiply block by block without keeping results, one thread per block as in the search."""
    from threadpoolctl import threadpool_limits

    out = np.empty((block, block), np.float32)
    with threadpool_limits(1, user_api="blas"):
        for start in range(0, len(queries), block):
            query = queries[start : start + block]
            for first in range(0, len(points), block):
                point = points[first : first + block]
                np.matmul(query, point.T, out=out[: len(query), : len(point)])


def compare(name: str, queries, points, path=None) -> None:
    """Print one line: our search, faiss, the product, and the ratios."""
    import faiss

    from privacy_assets.distances.nearest import nearest_rows

    large = len(points) > 100_000
    times = 1 if large else 3
    mine = cost(lambda: nearest_rows(queries, points, path=path), times)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    q, p = dense_without_unused(queries.take(np.s_[:PROBES]) if large else queries, points)

    def by_faiss() -> object:
        index = faiss.IndexFlatL2(p.shape[1])
        index.add(p)
        return index.search(q, 1)

    share = len(q) / len(queries)
    peer, bare = cost(by_faiss, times) / share, cost(lambda: product(q, p), times) / share
    print(
        f"{name:24} {len(queries):>7} x {len(points):>7} x {p.shape[1]:>3}  here {mine:6.2f}"
        " CPU s, "
        f"{1e6 * mine / len(queries):5.1f} us a query, {peak:.2f} GiB  faiss {peer:8.2f}"
        f" ({mine / peer:.3f})  "
        f"product {bare:8.2f} ({mine / bare:.3f})",
        flush=True,
    )


def cold() -> float:
    """Return the seconds of a first search in a new process without cache, minus a second
    search.
    """
    code = (
        "import time, numpy as np\n"
        "from privacy_assets.distances.nearest import nearest_rows\n"
        "from privacy_assets.tables.encoding import EncodedTable\n"
        "x = EncodedTable.of_numbers(np.arange(60.0)[:, None])\n"
        "def spent():\n"
        "    start = time.process_time(); nearest_rows(x, x, path='tree'); return"
        " time.process_time() - start\n"
        "print(spent() - spent())"
    )
    with TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    return float(done.stdout)


def main() -> None:
    """Print the statistics."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", help="a Parquet file of at least 48,000 rows")
    parser.add_argument("--threads", type=int, default=1, help="0 means all cores")
    parser.add_argument(
        "--large", type=int, action="append", default=[], help="further rows a side (repeatable)"
    )
    options = parser.parse_args()
    # before faiss is imported
    os.environ["OMP_NUM_THREADS"] = str(options.threads or os.cpu_count())
    from privacy_assets.tables.encoding import EncodedTable

    train, synthetic, unseen, embedded = encoded(options.table)
    print(
        f"{options.threads or os.cpu_count()} threads, {os.cpu_count()} CPUs, load"
        f" {os.getloadavg()[0]:.1f}"
    )
    few = np.s_[:2000]
    compare("(warm)", synthetic.take(few), train.take(few))
    for rows in (5_000, 10_000, 20_000, ROWS):
        compare("synthetic rows", synthetic.take(np.s_[:rows]), train.take(np.s_[:rows]))
    compare("unseen real rows", unseen, train)
    for dims, (real, made) in embedded.items():
        compare(f"embedded in {dims}", made, real)
    wide = [EncodedTable.of_numbers(part) for part in dense_without_unused(synthetic, train)]
    compare("(warm)", wide[0].take(few), wide[1].take(few), "product")
    compare("wide, by product", *wide, "product")
    for rows in options.large:
        compare("resampled, jittered", resampled(synthetic, rows, 0), resampled(train, rows, 1))
    print(f"compiling from nothing: {cold():.1f} CPU s")


if __name__ == "__main__":
    main()
