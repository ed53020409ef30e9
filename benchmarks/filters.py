"""Measure the dropped rows and the remaining leak of each filter, on releases of known truth.

    python -m benchmarks.filters adult.parquet --results filters.jsonl
    python -m benchmarks.filters adult.parquet --results filters.jsonl --filters memorization \\
        --releases "trees, leaf 50" "trees, leaf 5"
    python -m benchmarks.filters uk_census.parquet --drop "Person ID" --as-text --results \\
        filters.jsonl
    python -m benchmarks.filters --report filters.jsonl

"unseen rows" are real rows of other people, which disclose nothing; in "10 % copies", 10 % of them
are replaced by training rows. Trees are fitted to train. 8,000 training rows, 2,600 each of holdout
and reference, releases of 8,000 rows. "copies" is the share of rows equal to a training row. The
default limits of ``dcr``, ``membership_inference`` and ``singling_out`` apply. Each case is one
line of the results and is computed once.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.study import append, lines, run_or_report, study_parser
from privacy_assets.evaluation.measuring import run_metrics
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.generators import build_generator
from privacy_assets.generators.base import FittedGenerator
from privacy_assets.generators.filters import build_filter, draw
from privacy_assets.metrics.policies import default_policy
from privacy_assets.metrics.registry import build_metric
from privacy_assets.tables.table import Table

ROWS, UNSEEN, POOL = 8_000, 2_600, 16_000
COPIES = 0.1
LEAVES = {"trees, leaf 50": 50, "trees, leaf 5": 5}
RELEASES = ("unseen rows", "10 % copies", *LEAVES)
FILTERS = ("memorization", "similarity", "outliers", "memorization+outliers", "alpha_m")
METRICS = ("dcr", "membership_inference", "singling_out")
SHOWN = (
    "membership_inference.advantage",
    "membership_inference.precision",
    "dcr.member_excess_any",
    "singling_out.risk",
)


class Given(FittedGenerator):
    """Draws the rows of a table in order."""

    def __init__(self, pool: Table) -> None:
        self.pool, self.schema, self.start = pool, pool.schema, 0

    def sample(self, rows: int, *, seed: int) -> Table:
        """Return the next rows."""
        self.start += rows
        return self.pool.take(slice(self.start - rows, self.start))

    def _sample(self, rows: int, seed: int) -> Table:
        raise NotImplementedError

    def _save(self, folder: Path) -> dict[str, Any]:
        raise NotImplementedError


def real_rows(frame: pd.DataFrame, seed: int) -> tuple[dict[str, Table], Table]:
    """Return the real tables by role, and the rows of other people."""
    table = Table.read(frame.sample(frac=1, random_state=seed))
    ends = np.cumsum([0, ROWS, UNSEEN, UNSEEN, POOL])
    if ends[-1] > len(table):
        raise SystemExit(f"{ends[-1]:,} rows are needed, the table has {len(table):,}")
    *real, fresh = (table.take(slice(a, b)) for a, b in zip(ends[:-1], ends[1:], strict=True))
    return dict(zip(("train", "holdout", "reference"), real, strict=True)), fresh


def pool_of(release: str, train: Table, fresh: Table, seed: int) -> Table:
    """Return the rows from which a release is drawn in order."""
    if release in LEAVES:
        generator = build_generator(
            "synthpop", {"min_samples_leaf": LEAVES[release], "shrinkage": 0}
        )
        return generator.fit(train, seed=seed).sample(POOL, seed=seed)
    if release == "unseen rows":
        return fresh
    rng = np.random.default_rng(seed)
    copies = train.take(rng.integers(0, ROWS, POOL))
    return Table.stack([fresh, copies]).take(np.arange(POOL) + POOL * (rng.random(POOL) < COPIES))


def measured(real: Mapping[str, Table], pool: Table, name: str) -> dict[str, Any]:
    """Return the share of dropped rows and of copies, statistics and the verdict; ``name`` joins
    filters by "+".
    """
    schema, dropped, rows = pool.schema, 0.0, pool.take(slice(ROWS))
    if name:
        filters = [build_filter(one).fit(list(real.values()), schema) for one in name.split("+")]
        found = draw(Given(pool), filters, ROWS, seed=0)
        dropped, rows = found.n_dropped / found.n_drawn, found.table
    frames = [
        real["train"].frame(),
        real["holdout"].frame(),
        rows.frame(),
        real["reference"].frame(),
    ]
    metrics = {key: build_metric(key) for key in METRICS}
    policy = default_policy(metrics)
    results = run_metrics(read_inputs(*frames, schema=schema), metrics, policy.limits)
    estimates = {
        f"{key}.{one.name}": [one.value, one.low, one.high]
        for key, result in results.items()
        for one in result.estimates
    }
    known = frames[0].drop_duplicates()
    copies = len(frames[2].merge(known)) / ROWS
    return {
        "dropped": dropped, "copies": copies, "verdict": policy.judge(results).status,
        "estimates": {key: estimates[key] for key in SHOWN},
    }  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """Run the cases that the results do not contain yet."""
    frame = pd.read_parquet(options.table).drop(columns=options.drop)
    frame = "=" + frame.astype(str) if options.as_text else frame
    real, fresh = real_rows(frame, options.seed)
    done = [line["case"] for line in lines(options.results)]
    for release in options.releases:
        pool = pool_of(release, real["train"], fresh, options.seed)
        for name in ("", *options.filters.split(",")):
            case = {
                "table": options.table.stem,
                "release": release,
                "filter": name,
                "seed": options.seed,
            }
            if case not in done:
                append(options.results, {"case": case, **measured(real, pool, name)})


def report_text(found: list[dict[str, Any]]) -> str:
    """Return a Markdown table; statistics with their intervals."""
    head = ["table", "release", "filter", "dropped", "copies", *SHOWN, "verdict"]
    out = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for line in found:
        case = line["case"]
        shown = [
            f"{value:.3f} ({low:.3f} to {high:.3f})"
            for value, low, high in map(line["estimates"].get, SHOWN)
        ]
        shares = [f"{100 * line[key]:.1f} %" for key in ("dropped", "copies")]
        cells = [
            case["table"],
            case["release"],
            case["filter"] or "none",
            *shares,
            *shown,
            line["verdict"],
        ]
        out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out)


def main() -> None:
    """Run or report."""
    parser = study_parser(__doc__, "filters.jsonl")
    parser.add_argument(
        "table", nargs="?", type=Path, help="a Parquet file of at least 29,200 rows"
    )
    parser.add_argument(
        "--drop",
        action="append",
        default=[],
        help="a column to leave out, such as an id (repeatable)",
    )
    parser.add_argument("--as-text", action="store_true", help="every column is a category")
    parser.add_argument(
        "--releases", nargs="+", choices=RELEASES, default=RELEASES[:2], help="these alone"
    )
    parser.add_argument(
        "--filters", default=",".join(FILTERS), help='comma-separated; "+" applies several at once'
    )
    parser.add_argument("--seed", type=int, default=0)
    run_or_report(parser, None, run, lambda _, found: report_text(found))


if __name__ == "__main__":
    main()
