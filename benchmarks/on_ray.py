"""What Ray costs on one machine: a shadow audit in threads or plain processes, and the same on a local Ray cluster.

    python -m benchmarks.on_ray adult.parquet

The audit of one record, with a generator that works on codes (threads) and one that works on frames (processes), each
with as many workers as there are cores, in turns. The cluster is up and its workers have done a small audit before the
clock starts; the other side has compiled. Features and scores have to be the same. Wall seconds, since what Ray costs
is spent in processes of its own.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.compute.on_ray import on_ray
from privacy_assets.compute.parallel import threads
from privacy_assets.generators.registry import build_generator
from privacy_assets.shadow.audit import AuditPlan, run_audit
from privacy_assets.tables.coding import Coding
from privacy_assets.tables.table import Table

CASES: dict[str, tuple[str, dict[str, Any], int]] = {  # generator, settings, shadow sets
    "threads": ("synthpop", {}, 4_000),
    "processes": ("rvae", {"epochs": 5}, 240),
}
ROUNDS = 3


def audit(cells: np.ndarray, coding: Coding, name: str, settings: dict[str, Any], shadows: int) -> tuple[Any, float]:
    """The scores of the record, and wall seconds."""
    plan = AuditPlan(build_generator(name, settings), records=1, shadows=shadows, tests=40, size=1_000)
    started = time.perf_counter()
    (record,) = run_audit(cells, coding, plan, seed=0).records
    return record.scores, time.perf_counter() - started


def main() -> None:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="a Parquet file of at least 5,000 rows")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    frame = pd.read_parquet(options.table)
    table = Table.read(frame, where=options.table)
    coding = Coding.fit([table], table.schema)
    cells = coding.code(table)
    print(f"{threads()} workers on each side, best of {options.rounds} rounds\n")
    print("| plain | generator | sets | plain, s | Ray, s | Ray / plain |\n|---|---|---|---|---|---|")
    for kind, (name, settings, shadows) in CASES.items():
        best = {"plain": np.inf, "Ray": np.inf}
        scores = []
        for number in range(options.rounds + 1):  # the first is for compiling
            for side in best:
                with ExitStack() as stack:
                    if side == "Ray":
                        stack.enter_context(on_ray())
                        audit(cells, coding, name, settings, 16)
                    found, seconds = audit(cells, coding, name, settings, shadows if number else 16)
                if number:
                    best[side] = min(best[side], seconds)
                    scores.append(found)
        if not all(np.array_equal(scores[0], other) for other in scores):
            sys.exit(f"{name}: the scores differ")
        plain, ray = best.values()
        print(f"| {kind} | {name} | {shadows} | {plain:.1f} | {ray:.1f} | {ray / plain:.2f} |", flush=True)


if __name__ == "__main__":
    main()
