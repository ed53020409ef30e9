"""Measure how often ``copies.near_share`` and other statistics of closeness detect near copies.

    python -m benchmarks.near --results near.jsonl tests/data/adult.parquet demo DIRECTORY/*.parquet
    python -m benchmarks.near --report near.jsonl

Splits and releases follow :mod:`benchmarks.leaks`, with few leaked rows that are moved, rounded or have one column of
another person; for harmless releases only ``copies`` is measured. A statistic detects a leak if the lower bound of its
interval is above the null value: at 95 % for ``membership_inference.advantage``, at 99.5 % jointly over all entries
for the others. Each release is one line and is measured once.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.copies import table_of
from benchmarks.leaks import HARMLESS, Leak, anywhere, built, changed, jittered, released, rounded, sizes
from benchmarks.study import SEVERAL, append, lines, run_or_report, study_parser
from privacy_assets.metrics.copies import Copies
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.membership_inference.metric import MembershipInference, attack
from privacy_assets.metrics.membership_inference.scores import build_population

LEAKS: Mapping[str, Leak] = {
    **{f"{share:.0%} moved".replace("%", " %"): changed(share, jittered) for share in (0.01, 0.02, 0.05)},
    "5 % rounded": changed(0.05, rounded),
    "5 % with one column of another": built(0.05, anywhere(lambda columns: columns - 1)),
}
KEYS = ("copies.near_share", "copies.partial_advantage", "dcr.member_excess_any", "membership_inference.advantage")
KINDS = (*HARMLESS, *LEAKS)


def measured(inputs: EvaluationInputs, *, whole: bool) -> dict[str, list[float]]:
    """Return value and bounds of each statistic in ``KEYS``; only ``copies`` unless ``whole``."""
    found = {"copies": Copies().measure(inputs).estimates}
    if whole:
        found["dcr"] = Dcr().measure(inputs).estimates
        metric, population = MembershipInference(), build_population(inputs)
        labels = inputs.rng("membership_inference.labels")
        found["membership_inference"] = tuple(attack(population, metric.n_permutations, labels)[0])
    named = {f"{metric}.{one.name}": [one.value, one.low, one.high] for metric, of in found.items() for one in of}
    return {key: named[key] for key in KEYS if key in named}


def run(options: argparse.Namespace) -> None:
    """Measure the releases that the results do not contain yet."""
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
                    append(options.results, {**told, "found": found})
                    sys.stderr.write(f"{', '.join(map(str, told.values()))}\n")


def report_text(found: Sequence[dict[str, Any]]) -> str:
    """Return Markdown: mean values and detection rates by table, size and kind, and coverage on fresh rows."""
    every: dict[tuple[str, int, str], list[Mapping[str, list[float]]]] = defaultdict(list)
    for line in found:
        every[line["table"], line["people"], line["kind"]].append(line["found"])
    heads = [head for key in KEYS for head in (f"`{key}`", "seen, %")]
    out = [f"| table, people in train | releases | {' | '.join(heads)} |", "|" + "---|" * (len(heads) + 2)]
    last = ""
    for table, people, kind in sorted(every, key=lambda at: (at[0], at[1], KINDS.index(at[2]))):
        cells = []
        for key in KEYS:
            told = np.array([one[key] for one in every[table, people, kind] if key in one]).reshape(-1, 3)
            seen = f"{100 * (told[:, 1] > 0).mean():.0f}" if len(told) else ""
            cells += [f"{told[:, 0].mean():.3f}" if len(told) else "", seen]
        kinds = f"{len(every[table, people, kind])} of {kind}"
        name = f"{table}, {people:,}"
        out.append(f"| {name if name != last else ''} | {kinds} | {' | '.join(cells)} |")
        last = name
    fresh = [one[KEYS[0]] for (_, _, kind), of in every.items() if kind == "fresh rows" for one in of]
    inside = np.array([low <= 0 <= high for _, low, high in fresh], dtype=bool)
    out.append(f"\n{inside.sum()} of {len(inside)} intervals of `near_share` contain 0 where the rows are fresh.")
    return "\n".join(out) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = study_parser(__doc__, "near.jsonl")
    parser.add_argument("tables", nargs="*", help=SEVERAL)
    parser.add_argument(
        "--people", type=int, nargs="+", default=[2_000, 6_000], help="in train; a third of all at most"
    )
    parser.add_argument("--draws", type=int, default=20, help="splits and releases of each table, size and kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of releases")
    run_or_report(parser, arguments, run, lambda _, found: report_text(found))


if __name__ == "__main__":
    main()
