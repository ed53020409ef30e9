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
from privacy_assets.metrics.copies import Copies
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.membership_inference.metric import MembershipInference, attack
from privacy_assets.metrics.membership_inference.scores import build_population

LEAKS: Mapping[str, Leak] = {
    **{f"{share:.0%} moved".replace("%", " %"): changed(share, jittered) for share in (0.01, 0.02, 0.05)},
    "5 % rounded": changed(0.05, rounded),
    "5 % with one column of another": built(0.05, anywhere(lambda columns: columns - 1)),
}
KEYS = ("copies.near_share", "copies.partial_advantage", "dcr.member_excess_any", "membership_inference.advantage")
KINDS = (*HARMLESS, *LEAKS)


def measured(inputs: MetricInputs, *, whole: bool) -> dict[str, list[float]]:
    """Value, low and high end of those of ``KEYS``; of ``copies`` alone where not ``whole``."""
    found = {"copies": Copies().evaluate(inputs).estimates}
    if whole:
        found["dcr"] = Dcr().evaluate(inputs).estimates
        metric, population = MembershipInference(), build_population(inputs)
        labels = inputs.rng("membership_inference.labels")
        found["membership_inference"] = tuple(attack(population, metric.permutations, labels)[0])
    named = {f"{metric}.{one.name}": [one.value, one.low, one.high] for metric, of in found.items() for one in of}
    return {key: named[key] for key in KEYS if key in named}


def run(options: argparse.Namespace) -> None:
    """Add the lines that the results do not hold yet."""
    held = {(line["table"], line["people"], line["kind"], line["seed"]) for line in lines(options.results)}
    for seed in range(options.draws):
        for name in options.tables:
            frame, whose = table_of(name, None)
            for people in sizes(int(whose.max()) + 1, options.people):
                for kind in options.kinds:
                    told = {"table": Path(name).stem, "people": people, "kind": kind, "seed": seed}
                    if tuple(told.values()) in held:
                        continue
                    held.add(tuple(told.values()))
                    inputs = released(frame, whose, people, kind, seed, LEAKS)
                    found = measured(inputs, whole=kind in LEAKS)
                    with options.results.open("a") as file:
                        file.write(json.dumps({**told, "found": found}) + "\n")
                    sys.stderr.write(f"{', '.join(map(str, told.values()))}\n")


def report_text(found: Sequence[dict[str, Any]]) -> str:
    """Markdown: mean values and how often they are seen, by table, people and kind; what holds where rows are fresh."""
    every: dict[tuple[str, int, str], list[Mapping[str, list[float]]]] = defaultdict(list)
    for line in found:
        every[line["table"], line["people"], line["kind"]].append(line["found"])
    heads = [head for key in KEYS for head in (f"`{key}`", "seen")]
    out = [f"| table, people in train | releases | {' | '.join(heads)} |", "|" + "---|" * (len(heads) + 2)]
    for table, people, kind in sorted(every, key=lambda at: (at[0], at[1], KINDS.index(at[2]))):
        cells = []
        for key in KEYS:
            told = np.array([one[key] for one in every[table, people, kind] if key in one]).reshape(-1, 3)
            seen = f"{(told[:, 1] > 0).mean():.0%}".replace("%", " %") if len(told) else ""
            cells += [f"{told[:, 0].mean():.3f}" if len(told) else "", seen]
        kinds = f"{len(every[table, people, kind])} of {kind}"
        out.append(f"| {table}, {people:,} | {kinds} | {' | '.join(cells)} |")
    fresh = [one[KEYS[0]] for (_, _, kind), of in every.items() if kind == "fresh rows" for one in of]
    inside = np.array([low <= 0 <= high for _, low, high in fresh], dtype=bool)
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
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of releases")
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
