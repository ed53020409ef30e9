"""Near copies: in how many releases ``copies.near_share`` sees them, beside other statistics of closeness.

    python -m benchmarks.near --results near.jsonl tests/data/adult.parquet demo DIRECTORY/*.parquet
    python -m benchmarks.near --report near.jsonl

Splits and releases are those of :mod:`benchmarks.leaks`, with leaks of few rows that are moved, rounded or have one
column of somebody else; of harmless releases ``copies`` alone is measured. A statistic sees a leak where the low end of
its interval is above what chance shows: that of ``membership_inference.advantage`` is at 95 %, the others are at 99.5 %
over all their entries together. Each release is one line and is never measured twice.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.copies import table_of
from benchmarks.dimensions import lines
from benchmarks.leaks import HARMLESS, Leak, anywhere, built, changed, jittered, released, rounded, sizes
from benchmarks.measured import cost
from privacy_assets.metrics.registry import build_metric

LEAKS: Mapping[str, Leak] = {
    **{f"{share:.0%} moved".replace("%", " %"): changed(share, jittered) for share in (0.01, 0.02, 0.05)},
    "5 % rounded": changed(0.05, rounded),
    "5 % with one column of another": built(0.05, anywhere(lambda columns: columns - 1)),
}
STATISTICS: Mapping[str, tuple[str, ...]] = {
    "copies": ("near_share", "partial_advantage"),
    "dcr": ("member_excess_any",),
    "membership_inference": ("advantage",),
}
KEYS = [f"{metric}.{name}" for metric, names in STATISTICS.items() for name in names]


def run(options: argparse.Namespace) -> None:
    """Add the lines that the results do not hold yet."""
    held = {(line["table"], line["people"], line["kind"], line["seed"]) for line in lines(options.results)}
    for seed in range(options.draws):
        for name in options.tables:
            frame, whose = table_of(name, None)
            for people in sizes(int(whose.max()) + 1, options.people):
                for kind in (*HARMLESS, *(() if options.harmless else LEAKS)):
                    told = {"table": Path(name).stem, "people": people, "kind": kind, "seed": seed}
                    if tuple(told.values()) in held:
                        continue
                    held.add(tuple(told.values()))
                    inputs = released(frame, whose, people, kind, seed, LEAKS)
                    found: dict[str, list[float]] = {}
                    for metric, names in STATISTICS.items():
                        if metric == "copies" or kind in LEAKS:
                            seconds, result = cost(build_metric(metric).evaluate, inputs)
                            for one in map(result.estimate, names):
                                found[f"{metric}.{one.name}"] = [one.value, one.low, one.high, seconds]
                    with options.results.open("a") as file:
                        file.write(json.dumps({**told, "found": found}) + "\n")
                    sys.stderr.write(f"{', '.join(map(str, told.values()))}\n")


def report_text(found: Sequence[dict[str, Any]]) -> str:
    """Markdown: mean values and how often they are seen, by table, people in train and kind; intervals of fresh rows."""
    every: dict[tuple[str, int, str], list[Mapping[str, list[float]]]] = defaultdict(list)
    for line in found:
        every[line["table"], line["people"], line["kind"]].append(line["found"])
    heads = [head for key in KEYS for head in (f"`{key}`", "seen")]
    out = [f"| table, people in train | release | {' | '.join(heads)} |", "|" + "---|" * (len(heads) + 2)]
    order = [*HARMLESS, *LEAKS]
    for table, people, kind in sorted(every, key=lambda at: (at[0], at[1], order.index(at[2]))):
        cells = []
        for key in KEYS:
            told = np.array([one[key] for one in every[table, people, kind] if key in one]).reshape(-1, 4)
            seen = f"{(told[:, 1] > 0).mean():.0%}".replace("%", " %") if len(told) else ""
            cells += [f"{told[:, 0].mean():.3f}" if len(told) else "", seen]
        out.append(f"| {table}, {people:,} | {kind} | {' | '.join(cells)} |")
    ends = np.array([one["copies.near_share"][1:3] for at, of in every.items() if at[2] == "fresh rows" for one in of])
    inside = (ends[:, 0] <= 0) & (ends[:, 1] >= 0)
    out.append(f"\n{inside.sum()} of {len(inside)} intervals of `near_share` hold 0 where the rows are fresh.")
    return "\n".join(out) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help='Parquet files, or "demo"')
    parser.add_argument(
        "--people", type=int, nargs="+", default=[2_000, 6_000], help="in train; a third of all at most"
    )
    parser.add_argument("--draws", type=int, default=20, help="splits and releases of each table, size and kind")
    parser.add_argument("--harmless", action="store_true", help="without the leaks")
    parser.add_argument("--results", type=Path, default=Path("near.jsonl"), help="where lines are added")
    parser.add_argument("--report", type=Path, help="a file to report on; nothing is run")
    options = parser.parse_args(arguments)
    if options.report is not None:
        sys.stdout.write(report_text(lines(options.report)))
    elif options.tables:
        run(options)
    else:
        parser.error("name a table, or a --report file")


if __name__ == "__main__":
    main()
