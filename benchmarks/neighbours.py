"""What exact nearest neighbours cost: the mixed tree against faiss on the dense form, CPU and wall seconds.

    python -m benchmarks.neighbours adult.parquet --threads 1

39,032 training rows are searched from as many rows of sequential trees trained on them, then fewer, and, with
``--large``, resampled rows whose numbers are jittered. Each figure is the least of three, or of one above 100,000 rows,
where faiss is timed on 2,000 queries. Compiling from nothing takes some seconds, once per machine: it is timed last.
"""

from __future__ import annotations

import argparse
import os
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
    """Training rows, as many synthetic ones, and the rest of the real ones, of one encoder."""
    from privacy_assets.engine.evaluation import prepare_inputs
    from privacy_assets.engine.generators import build_generator
    from privacy_assets.engine.inputs import silent
    from privacy_assets.engine.tables.schema import conform, infer_schema

    frame = pd.read_parquet(path).sample(frac=1, random_state=0).reset_index(drop=True)
    schema, train, rest = infer_schema(frame), frame[:ROWS], frame[ROWS:]
    learnt = conform(train, schema, where="train")
    fitted = build_generator("synthpop", {}).fit(learnt, schema, seed=0, device="cpu", progress=silent)
    inputs = prepare_inputs(train, rest, fitted.sample(ROWS, seed=0), schema=schema)
    return inputs.encoded("train"), inputs.encoded("synthetic"), inputs.encoded("holdout")


def resampled(table, rows: int, seed: int):
    """So many rows of ``table`` drawn with replacement, their numbers moved by 0.1 standard deviations."""
    from privacy_assets.engine.tables.encoding import EncodedTable

    g = np.random.default_rng(seed)
    drawn = table.take(g.integers(0, len(table), rows))
    moved = drawn.numeric + g.normal(0, 0.1, drawn.numeric.shape).astype(np.float32)
    return EncodedTable(moved, drawn.codes, drawn.sizes)


def cost(work: Callable[[], object], times: int) -> tuple[float, float]:
    """CPU and wall seconds of ``work``: the least of so many."""
    used, lasted = [], []
    for _ in range(times):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        used.append(time.process_time() - cpu)
        lasted.append(time.perf_counter() - wall)
    return min(used), min(lasted)


def dense_without_unused(*tables) -> list[np.ndarray]:
    """Dense forms less the columns of categories that stand nowhere, such as "missing": what faiss is given."""
    dense = [table.dense for table in tables]
    used = np.any([(part != 0).any(axis=0) for part in dense], axis=0)
    return [np.ascontiguousarray(part[:, used]) for part in dense]


def compare(name: str, queries, points) -> None:
    """Print one line: the search that metrics use, faiss, and their ratio."""
    import faiss

    from privacy_assets.engine.geometry.neighbours import nearest_rows

    large = len(points) > 100_000
    q, p = dense_without_unused(queries.take(np.s_[:PROBES]) if large else queries, points)

    def mixed() -> object:
        return nearest_rows(queries, points)

    def by_faiss() -> object:
        index = faiss.IndexFlatL2(p.shape[1])
        index.add(p)
        return index.search(q, 1)

    mine = cost(mixed, 1 if large else 3)
    peer = tuple(seconds * len(queries) / len(q) for seconds in cost(by_faiss, 1 if large else 3))
    print(
        f"{name:24} {len(queries):>7} x {len(points):>7}  here {mine[0]:7.2f} CPU s {mine[1]:7.2f} s  "
        f"faiss on {p.shape[1]} columns {peer[0]:8.2f} CPU s {peer[1]:8.2f} s  ratio {mine[0] / peer[0]:.3f} CPU "
        f"{mine[1] / peer[1]:.3f} wall  {1e6 * mine[0] / len(queries):.1f} us a query"
    )


def cold() -> float:
    """Seconds of a first search in a new process without any cache, less those of a second one."""
    code = (
        "import time, numpy as np\n"
        "from privacy_assets.engine.geometry.neighbours import nearest_rows\n"
        "from privacy_assets.engine.tables.encoding import EncodedTable\n"
        "x = EncodedTable.of_numbers(np.arange(60.0)[:, None])\n"
        "def spent():\n"
        "    start = time.process_time(); nearest_rows(x, x, path='tree'); return time.process_time() - start\n"
        "print(spent() - spent())"
    )
    with TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="a Parquet file of at least 48,000 rows")
    parser.add_argument("--threads", type=int, default=1, help="0 means all cores")
    parser.add_argument("--large", type=int, action="append", default=[], help="further rows a side (repeatable)")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads or os.cpu_count())  # before faiss is imported
    train, synthetic, unseen = encoded(options.table)
    print(f"{options.threads or os.cpu_count()} threads, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    compare("(warm)", synthetic.take(np.s_[:2000]), train.take(np.s_[:2000]))
    compare("synthetic rows", synthetic, train)
    compare("unseen real rows", unseen, train)
    for rows in (10_000, 20_000):
        compare("synthetic rows", synthetic.take(np.s_[:rows]), train.take(np.s_[:rows]))
    for rows in options.large:
        compare("resampled, jittered", resampled(synthetic, rows, 0), resampled(train, rows, 1))
    print(f"compiling from nothing: {cold():.1f} CPU s")


if __name__ == "__main__":
    main()
