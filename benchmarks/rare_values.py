"""Measure what the replacement of rare values costs and prevents: utility and released values, before and after.

    python -m benchmarks.rare_values --results rare_values.jsonl tests/data/adult.parquet demo DIRECTORY/*.parquet
    python -m benchmarks.rare_values --study own_values --results own_values.jsonl tests/data/adult.parquet DIRECTORY/*
    python -m benchmarks.rare_values --report rare_values.jsonl

:mod:`benchmarks.leak_tables` writes the tables of a directory. Half of the people (at most 5,000) are train, three
tenths holdout and two tenths reference, as in a pipeline. The default generator is trained on the real rows and on
those without rare values. Fidelity and ``own_values`` compare each synthetic table with the real rows as they are. Rare
categories are released cells whose value fewer than five people of the three real tables have.

``own_values`` calibrates the limit on this statistic with 1,500, 2,000 and 8,000 people in train: fresh rows of other
people, the same with 1 and 2 % of the people's own codes in a column, and independent columns, which have the values of
train, except in columns of fine numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.copies import table_of
from benchmarks.leaks import WHO, known_rows
from benchmarks.measured import cost
from benchmarks.study import SEVERAL, append, lines, run_or_report, study_parser
from privacy_assets.evaluation.evaluate import build_inputs, read_inputs, run_metrics
from privacy_assets.generators import build_generator
from privacy_assets.metrics.policies import default_policy
from privacy_assets.metrics.registry import build_metric
from privacy_assets.policy import MIN_HOLDERS
from privacy_assets.tables.canonical import people_of, real_tables, without_rare_values
from privacy_assets.tables.column import ranked, stacked
from privacy_assets.tables.rare import count_holders
from privacy_assets.tables.table import Table

SIZES = (1_500, 2_000, 8_000)
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
        shares = [rule.cells / max(rule.rows, 1) for rule in train.rules.values()]
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


KINDS = ("fresh rows", "independent columns", "1 % own codes", "2 % own codes")


def calibrated(name: str, seed: int) -> list[dict[str, Any]]:
    """Return a line for each size of train and kind of release, with the estimate of ``own_values``."""
    frame, whose = table_of(name, None)
    third = (int(whose.max()) + 1) // 3
    found = []
    for people in sorted({min(third, size) for size in SIZES}):
        rng = np.random.default_rng([seed, people])
        place, ends = rng.permutation(whose.max() + 1)[whose], np.array([0, 1, 1.6, 2]) * people
        parts = [(place >= low) & (place < high) for low, high in zip(ends[:-1], ends[1:], strict=True)]
        tables = [frame[part].assign(**{WHO: whose[part]}).reset_index(drop=True) for part in parts]
        others = known_rows(frame[place >= ends[-1]], frame[place < ends[-1]])
        own = tables[0].drop(columns=WHO)
        fresh = others.iloc[np.resize(rng.permutation(len(others)), len(own))].reset_index(drop=True)
        for kind in KINDS:
            real, made = tables, fresh
            if kind == "independent columns":
                made = independent(own, fresh, rng)
            elif kind != "fresh rows":
                real, made = with_codes(tables, fresh, float(kind.split()[0]) / 100)
            inputs = read_inputs(real[0], real[1], made, reference=real[2], subject=WHO, seed=seed)
            result = build_metric("value_disclosure").measure(inputs)
            estimate = next(one for one in result.estimates if one.name == "own_values")
            line = {"table": Path(name).stem, "people": people, "seed": seed, "kind": kind}
            found.append({**line, "value": estimate.value, "low": estimate.low})
    return found


def independent(own: pd.DataFrame, fresh: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Draw each column independently from train, or from other people if its numbers are fine."""
    columns = {}
    for name in own:
        fine = own[name].dtype.kind in "iufM" and own[name].nunique() > own[name].notna().sum() / 8
        columns[name] = (fresh if fine else own)[name].iloc[rng.integers(0, len(own), len(own))].to_numpy()
    return pd.DataFrame(columns).astype(own.dtypes.to_dict())


def with_codes(
    tables: Sequence[pd.DataFrame], fresh: pd.DataFrame, share: float
) -> tuple[list[pd.DataFrame], pd.DataFrame]:
    """Add a column in which 4 % of the rows have a code of their own. A share of those of train is in the release."""
    real = [
        table.assign(code=[f"{at}{row}" if row % 25 == 0 else f"c{row % 7}" for row in range(len(table))])
        for at, table in enumerate(tables)
    ]
    codes, leaked = [f"c{row % 7}" for row in range(len(fresh))], real[0]["code"][real[0].index % 25 == 0]
    count = min(round(share * len(fresh)), len(leaked))
    codes[:count] = leaked.iloc[:count]
    return real, fresh.assign(code=codes)


def run(options: argparse.Namespace) -> None:
    """Measure the tables that the results do not contain yet."""
    held = {(line["table"], line["seed"]) for line in lines(options.results)}
    for name in options.tables:
        for seed in range(options.draws):
            if (Path(name).stem, seed) not in held:
                for line in (measured if options.study == "utility" else calibrated)(name, seed):
                    append(options.results, line)
                sys.stderr.write(f"{Path(name).stem}, {seed}\n")


def refused_text(found: list[dict[str, Any]]) -> str:
    """Return a Markdown table: refused releases by kind and people in train."""
    limit = next(one for one in default_policy().limits if one.statistic == "value_disclosure.own_values")
    sizes = {size: [line for line in found if line["people"] == size] for size in SIZES}
    sizes["other"] = [line for line in found if line["people"] not in SIZES]
    out = [f"| release | {' | '.join(f'{size} people' for size in sizes)} |", "|" + "---|" * (1 + len(sizes))]
    for kind in KINDS:
        own = [[limit.exceeded_by(line["low"]) for line in part if line["kind"] == kind] for part in sizes.values()]
        out.append(f"| {kind} | {' | '.join(f'{sum(of)} of {len(of)}' for of in own)} |")
    return "\n".join(out) + "\n"


def report(options: argparse.Namespace, found: list[dict[str, Any]]) -> str:
    """Return a Markdown table with a row per table: means over the seeds, before -> after."""
    if "kind" in found[0]:
        return refused_text(found)
    out = [
        "| table | rows of train | columns | pairs | prediction | rare categories, cells | `own_values` |"
        " replaced cells, worst column | CPU s of the rule |",
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
    parser.add_argument("--study", choices=("utility", "own_values"), default="utility", help="what to measure")
    run_or_report(parser, arguments, run, report)


if __name__ == "__main__":
    main()
