"""Measure the dropped rows and the remaining leak of each filter, on releases of known truth.

    python -m benchmarks.filters adult.parquet --filters memorization,alpha_m --results filters.jsonl
    python -m benchmarks.filters --report filters.jsonl

Two releases are filtered: real rows of other people, which disclose nothing, and the same rows of which 10 % are
replaced by training rows. 8,000 training rows, 2,600 each of holdout and reference, releases of 8,000 rows. The default
limits of ``dcr`` and ``membership_inference`` apply. Each case is one line of the results and is computed once.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.study import append, lines, run_or_report, study_parser
from privacy_assets.evaluation.evaluate import read_inputs, run_metrics
from privacy_assets.generators.base import FittedGenerator
from privacy_assets.generators.filters import build_filter, draw
from privacy_assets.metrics.policies import default_policy
from privacy_assets.metrics.registry import build_metric
from privacy_assets.tables.table import Table

ROWS, UNSEEN, POOL = 8_000, 2_600, 12_000
COPIES = 0.1
METRICS = ("dcr", "membership_inference")
SHOWN = ("membership_inference.advantage", "membership_inference.precision", "dcr.member_excess_any")


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


def worlds(path: Path, seed: int) -> tuple[dict[str, Table], dict[str, Table]]:
    """Return the real tables by role, and the rows of both releases by name."""
    table = Table.read(pd.read_parquet(path).sample(frac=1, random_state=seed))
    ends = np.cumsum([0, ROWS, UNSEEN, UNSEEN, POOL])
    if ends[-1] > len(table):
        raise SystemExit(f"{ends[-1]:,} rows are needed, the table has {len(table):,}")
    *real, fresh = (table.take(slice(a, b)) for a, b in zip(ends[:-1], ends[1:], strict=True))
    rng = np.random.default_rng(seed)
    copies = real[0].take(rng.integers(0, ROWS, POOL))
    leaky = Table.stack([fresh, copies]).take(np.arange(POOL) + POOL * (rng.random(POOL) < COPIES))
    return dict(zip(("train", "holdout", "reference"), real, strict=True)), {"unseen rows": fresh, "10 % copies": leaky}


def measured(real: Mapping[str, Table], pool: Table, name: str) -> dict[str, Any]:
    """Return the share of dropped rows, statistics and the verdict."""
    schema, dropped, rows = pool.schema, 0.0, pool.take(slice(ROWS))
    if name:
        found = draw(Given(pool), [build_filter(name).fit(list(real.values()), schema)], ROWS, seed=0)
        dropped, rows = found.dropped / found.drawn, found.rows
    frames = [real["train"].frame(), real["holdout"].frame(), rows.frame(), real["reference"].frame()]
    metrics = {key: build_metric(key) for key in METRICS}
    policy = default_policy(metrics)
    results = run_metrics(read_inputs(*frames, schema=schema), metrics, policy.limits)
    estimates = {
        f"{key}.{one.name}": [one.value, one.low, one.high]
        for key, result in results.items()
        for one in result.estimates
    }
    return {
        "dropped": dropped, "verdict": policy.judge(results).status,
        "estimates": {key: estimates[key] for key in SHOWN},
    }  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """Run the cases that the results do not contain yet."""
    real, releases = worlds(options.table, options.seed)
    done = [line["case"] for line in lines(options.results)]
    for release, pool in releases.items():
        for name in ("", *options.filters.split(",")):
            case = {"table": options.table.stem, "release": release, "filter": name, "seed": options.seed}
            if case not in done:
                append(options.results, {"case": case, **measured(real, pool, name)})


def report_text(found: list[dict[str, Any]]) -> str:
    """Return a Markdown table; statistics with their intervals."""
    head = ["table", "release", "filter", "dropped", *SHOWN, "verdict"]
    out = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for line in found:
        case = line["case"]
        shown = [f"{value:.3f} ({low:.3f} to {high:.3f})" for value, low, high in map(line["estimates"].get, SHOWN)]
        dropped = f"{100 * line['dropped']:.1f} %"
        cells = [case["table"], case["release"], case["filter"] or "none", dropped, *shown, line["verdict"]]
        out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out)


def main() -> None:
    """Run or report."""
    parser = study_parser(__doc__, "filters.jsonl")
    parser.add_argument("table", nargs="?", type=Path, help="a Parquet file of at least 25,200 rows")
    parser.add_argument("--filters", default="memorization,alpha_m", help="names, comma-separated")
    parser.add_argument("--seed", type=int, default=0)
    run_or_report(parser, None, run, lambda _, found: report_text(found))


if __name__ == "__main__":
    main()
