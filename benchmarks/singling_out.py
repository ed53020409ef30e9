"""Measure CPU seconds, wall seconds and memory of singling out, from raw tables to statistics, and
of its parts.

    python -m benchmarks.singling_out adult.parquet --threads 1

39,032 training rows, 9,758 others, and 39,040 rows of sequential trees trained on them; 2,000
queries per configuration. ``--large`` adds n training rows, n / 4 others and n synthetic ones:
resampled, jittered and rounded, or not rounded with ``--unique`` (no repeated numbers). Each time
is the minimum of three, or a single one if a side has more than 100,000 rows. Compilation, once per
machine, is timed last.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from benchmarks.neighbors import cost

TRAIN, HOLDOUT, SYNTHETIC = 39_032, 9_758, 39_040
COLD = """
import time, numpy as np, pandas as pd
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.singling_out import SinglingOut
table = pd.DataFrame(np.random.default_rng(0).integers(0, 90, (90, 4)), columns=list("abcd"))
inputs = read_inputs(table[:30], table[30:60], table[60:])
def spent():
    start = time.process_time()
    SinglingOut(n_queries=5, patience=99).measure(inputs)
    return time.process_time() - start
print(spent() - spent())
"""


def tables(path: str) -> list[pd.DataFrame]:
    """Return train, holdout and synthetic rows."""
    from privacy_assets.generators import build_generator
    from privacy_assets.infra.progress import silent
    from privacy_assets.tables.table import Table

    frame = pd.read_parquet(path).sample(frac=1, random_state=0).reset_index(drop=True)
    train, holdout = frame[:TRAIN], frame[TRAIN : TRAIN + HOLDOUT]
    learnt = Table.read(frame).take(slice(TRAIN))
    fitted = build_generator("synthpop", {}).fit(learnt, seed=0, device="cpu", progress=silent)
    return [train, holdout, fitted.sample(SYNTHETIC, seed=0).frame()]


def resampled(frame: pd.DataFrame, rows: int, seed: int, unique: bool) -> pd.DataFrame:
    """Draw ``count`` rows with replacement and shift numbers by 0.1 standard deviations."""
    g = np.random.default_rng(seed)
    drawn = frame.iloc[g.integers(0, len(frame), rows)].reset_index(drop=True)
    for name in drawn.select_dtypes("number"):
        moved = drawn[name].to_numpy(dtype=np.float64) + g.normal(0, 0.1 * frame[name].std(), rows)
        drawn[name] = moved if unique else np.round(moved).astype(np.int64)
    return drawn


def report(name: str, given: list[pd.DataFrame], times: int) -> None:
    """Print the cost of the whole and of its parts."""
    from privacy_assets.evaluation.reading import read_inputs
    from privacy_assets.metrics.singling_out import SinglingOut
    from privacy_assets.metrics.singling_out import queries as predicates
    from privacy_assets.metrics.singling_out.metric import label_sets

    def line(what: str, spent: tuple[float, float]) -> None:
        print(f"{name:12} {what:34} {spent[0]:7.3f} CPU s {spent[1]:7.3f} s")

    whole = SinglingOut()
    for what, metric in (
        ("3 columns", SinglingOut(query_sizes=(3,))),
        ("1, 3, 4, 6, 8, 10, 12 columns", whole),
    ):
        line(what, cost(lambda metric=metric: metric.measure(read_inputs(*given)), times))
    inputs = read_inputs(*given)
    line("of it: checks, canonical form", cost(lambda: read_inputs(*given), times))
    people = inputs.labeled_subjects
    frames = [[inputs.synthetic], [inputs.train, inputs.holdout]]
    line("of it: codes", cost(lambda: predicates.code_tables(frames, inputs.schema), times))
    labels = label_sets(people, whole.n_permutations, np.random.default_rng(0))
    line(
        "of it: permutations",
        cost(lambda: label_sets(people, whole.n_permutations, np.random.default_rng(0)), times),
    )
    table, real = predicates.code_tables(frames, inputs.schema)
    schemes = predicates.threshold_scheme(table), predicates.bin_scheme(table)
    targets = np.arange(len(table.codes))
    for width in whole.query_sizes:

        def queries(width: int = width) -> predicates.Queries:
            limits = {"candidates": whole.candidates, "patience": whole.patience}
            args = (table, schemes, targets, width, whole.n_queries, np.random.default_rng(0))
            return predicates.multivariate(*args, **limits)

        line(f"of it: queries of {width} columns", cost(queries, times))
        asked = queries()
        line(
            f"of it: their matches ({len(asked)} queries)",
            cost(
                lambda asked=asked: predicates.matched_subjects(
                    asked, real, people.codes, people.member, labels
                ),
                times,
            ),
        )
    print(
        f"{name:12} most memory so far"
        f" {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"
    )


def main() -> None:
    """Print the statistics."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", help="a Parquet file of at least 48,790 rows")
    parser.add_argument("--threads", type=int, default=1, help="0 means all cores")
    parser.add_argument(
        "--large", type=int, action="append", default=[], help="further training rows (repeatable)"
    )
    parser.add_argument(
        "--unique", action="store_true", help="leave the numbers of --large unrounded"
    )
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads or os.cpu_count())
    print(
        f"{options.threads or os.cpu_count()} threads, {os.cpu_count()} CPUs, load"
        f" {os.getloadavg()[0]:.1f}"
    )
    given = tables(options.table)
    report("Adult", given, 3)
    real = pd.concat(given[:2], ignore_index=True)
    for rows in options.large:
        sources = ((real, rows), (real, rows // 4), (given[2], rows))
        large = [
            resampled(frame, size, at, options.unique) for at, (frame, size) in enumerate(sources)
        ]
        report(f"{rows:,} rows", large, 1 if rows > 100_000 else 3)
    with TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        done = subprocess.run(
            [sys.executable, "-c", COLD],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    print(f"compiling from nothing: {float(done.stdout):.1f} CPU s")


if __name__ == "__main__":
    main()
