"""Measure what the replacement of rare values costs and prevents: utility and released values, before and after.

    python -m benchmarks.rare_values --results rare_values.jsonl tests/data/adult.parquet demo DIRECTORY/*.parquet
    python -m benchmarks.rare_values --report rare_values.jsonl

:mod:`benchmarks.leak_tables` writes the tables of a directory. Half of the people (at most 5,000) are train, three
tenths holdout and two tenths reference, as in a pipeline. The default generator is trained on the real rows and on
those without rare values. Fidelity and ``own_values`` compare each synthetic table with the real rows as they are. Rare
categories are released cells whose value fewer than five people of the three real tables have.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.copies import table_of
from benchmarks.leaks import WHO
from benchmarks.measured import cost
from benchmarks.study import SEVERAL, append, lines, run_or_report, study_parser
from privacy_assets.evaluation.evaluate import build_inputs, run_metrics
from privacy_assets.generators import build_generator
from privacy_assets.metrics.registry import build_metric
from privacy_assets.policy import MIN_HOLDERS
from privacy_assets.tables.canonical import people_of, real_tables, without_rare_values
from privacy_assets.tables.column import ranked, stacked
from privacy_assets.tables.rare import count_holders
from privacy_assets.tables.table import Table

SHARES, MOST = {"train": 0.5, "holdout": 0.3, "reference": 0.2}, 5_000
UTILITY = ("column_similarity", "pair_similarity", "prediction")
RULES = ("real rows", "without rare values")


def rare_cells(real: Sequence[Table], made: Table, people: np.ndarray) -> int:
    """Return the number of cells of categories whose value fewer than five people have."""
    cells = 0
    for name in made.schema.of_kind("categorical"):
        (codes, drawn), values = ranked([stacked([table[name] for table in real]), made[name]])
        there = codes >= 0
        held = count_holders(codes[there], people[there], len(values))
        cells += int(((held > 0) & (held < MIN_HOLDERS))[drawn[drawn >= 0]].sum())
    return cells


def measured(name: str, seed: int) -> list[dict[str, Any]]:
    """Return one line without the rule and one with it."""
    frame, whose = table_of(name, None)
    people = int(whose.max()) + 1
    place = np.random.default_rng(seed).permutation(people)[whose]
    most = min(people, round(MOST / SHARES["train"]))
    ends = np.cumsum([0, *(round(share * most) for share in SHARES.values())])
    frames: Any = {
        role: frame[(place >= low) & (place < high)].assign(**{WHO: whose[(place >= low) & (place < high)]})
        for role, low, high in zip(SHARES, ends[:-1], ends[1:], strict=True)
    }
    real = real_tables(frames, {role: role for role in SHARES}, WHO)
    seconds, replaced = cost(lambda: without_rare_values(real, MIN_HOLDERS))
    codes = people_of(real.values())
    found = []
    for rule, tables in zip(RULES, (real, replaced), strict=True):
        train = tables["train"]
        fitted = build_generator("synthpop", {}).fit(train.without_subject(), seed=seed, people=people_of([train]))
        made = fitted.sample(len(train), seed=seed)
        scored = made.without_rare(train.rules).with_schema(real["train"].schema)
        inputs = build_inputs(real, scored, seed=seed)
        results = run_metrics(inputs, {name: build_metric(name) for name in ("fidelity", "value_disclosure")})
        utility = {one.name: [one.value, one.null] for one in results["fidelity"].estimates if one.name in UTILITY}
        own = next(one.value for one in results["value_disclosure"].estimates if one.name == "own_values")
        rare = rare_cells(list(real.values()), scored, np.asarray(codes))
        shares = [rule.share for rule in train.rules.values()]
        line = {"table": Path(name).stem, "people": int(ends[1]), "rows": len(train), "trained on": rule, "seed": seed}
        found.append(
            {
                **line,
                "utility": utility,
                "rare": rare,
                "own": own,
                "share": max(shares, default=0.0),
                "seconds": seconds,
            }
        )
    return found


def run(options: argparse.Namespace) -> None:
    """Measure the tables that the results do not contain yet."""
    held = {(line["table"], line["seed"]) for line in lines(options.results)}
    for name in options.tables:
        for seed in range(options.draws):
            if (Path(name).stem, seed) not in held:
                for line in measured(name, seed):
                    append(options.results, line)
                sys.stderr.write(f"{Path(name).stem}, {seed}\n")


def report(options: argparse.Namespace, found: list[dict[str, Any]]) -> str:
    """Return a Markdown table with a row per table: means over the seeds, before -> after."""
    out = [
        "| table | rows of train | columns | pairs | prediction | rare categories, cells | `own_values` | replaced cells"
        ", worst column | CPU s of the rule |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for table in dict.fromkeys(line["table"] for line in found):
        own = [line for line in found if line["table"] == table]
        sides = [[line for line in own if line["trained on"] == rule] for rule in RULES]
        utility = [
            " → ".join(f"{np.mean([line['utility'][name][0] for line in side]):.3f}" for side in sides)
            + f" (real {np.mean([line['utility'][name][1] for line in own]):.3f})"
            for name in UTILITY
        ]
        rare, alone = (" → ".join(form.format(np.mean([line[key] for line in side])) for side in sides)
                       for key, form in (("rare", "{:,.0f}"), ("own", "{:.4f}")))  # fmt: skip
        worst, seconds = np.mean([line["share"] for line in sides[1]]), np.mean([line["seconds"] for line in own])
        utilities = " | ".join(utility)
        out.append(f"| {table} | {own[0]['rows']:,} | {utilities} | {rare} | {alone} | {worst:.1%} | {seconds:.2f} |")
    return "\n".join(out) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = study_parser(__doc__, "rare_values.jsonl")
    parser.add_argument("tables", nargs="*", help=SEVERAL)
    parser.add_argument("--draws", type=int, default=3, help="splits of each table")
    run_or_report(parser, arguments, run, report)


if __name__ == "__main__":
    main()
