"""Measure what the threshold rule costs and prevents: utility, refusals, own values, nights and CPU
seconds.

    python -m benchmarks.rare_values --results rare_values.jsonl tests/data/adult.parquet demo \\
        DIRECTORY/*.parquet
    python -m benchmarks.rare_values --study refusals --results refusals.jsonl \\
        tests/data/adult.parquet DIRECTORY/*
    python -m benchmarks.rare_values --study own_values --results own_values.jsonl \\
        tests/data/adult.parquet DIRECTORY/*
    python -m benchmarks.rare_values --study nights --results rule_nights.jsonl \\
        tests/data/adult.parquet DIRECTORY/*
    python -m benchmarks.rare_values --study cost --results rule_cost.jsonl business
    python -m benchmarks.rare_values --report rare_values.jsonl

:mod:`benchmarks.leak_tables` writes the tables of a directory. Half of the people (at most 5,000)
are train, three tenths holdout and two tenths reference, as in a pipeline. The default generator is
trained on the real rows and on those after the rule. Fidelity and ``own_values`` compare each
synthetic table with the real rows as they are, and so does the share of rows whose date has another
day of the week than expected. Rare cells are released cells whose value fewer than five people of
the three real tables have after the rule; before it, as they are.

``refusals`` evaluates the same releases of 1,000 people with and without the rule by the default
limits of four metrics: fresh rows of other people, copies, near copies, rows with one cell redrawn,
and moved rows (:mod:`benchmarks.leaks`).

``own_values`` calibrates the limit on this statistic with 1,500, 2,000 and 8,000 people in train:
fresh rows of other people, the same with 1 and 2 % of the people's own codes in a column, and
independent columns, which have the values of train, except in columns of numbers in which at least
20 rows have a number of their own.

``nights`` counts on 40 nights of 5,000 people, of whom 1 % are exchanged each night, how many
categories appear and disappear, and how often pairs of columns begin or cease to share their
values. ``cost`` measures the rule on 10,000 and 1,000,000 rows of 15 columns, one of the two forms
of a business table.
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
from benchmarks.leaks import (
    LEAKS,
    WHO,
    changed,
    jittered,
    known_rows,
    measured_on,
    released,
    results_of,
)
from benchmarks.measured import cost
from benchmarks.nights import series
from benchmarks.study import SEVERAL, append, lines, run_or_report, study_parser
from privacy_assets.evaluation.measuring import run_metrics
from privacy_assets.evaluation.reading import build_inputs, read_inputs
from privacy_assets.generators import build_generator
from privacy_assets.metrics.policies import default_policy
from privacy_assets.metrics.registry import build_metric
from privacy_assets.policy import MIN_HOLDERS, judge_limit
from privacy_assets.tables.canonical import real_tables
from privacy_assets.tables.column import ranked, stacked
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.published_categories import count_holders
from privacy_assets.tables.table import Table, subject_codes_of
from privacy_assets.tables.threshold_rule import without_rare_values

SIZES = (1_500, 2_000, 8_000)
SHARES, MOST = {"train": 0.5, "holdout": 0.3, "reference": 0.2}, 5_000
UTILITY = ("column_similarity", "pair_similarity", "prediction")
RULES = ("real rows", "without rare values")


def rare_cells(real: Sequence[Table], made: Table, people: np.ndarray) -> int:
    """Return the number of cells whose value one to four people have."""
    cells = 0
    for name in made.schema.names:
        (codes, drawn), values = ranked([stacked([table[name] for table in real]), made[name]])
        there = codes >= 0
        n_holders = count_holders(codes[there], people[there], len(values))
        is_rare = (n_holders > 0) & (n_holders < MIN_HOLDERS)
        cells += int(is_rare[drawn[drawn >= 0]].sum())
    return cells


def weekdays(real: Table, made: Table) -> float | None:
    """Return the largest total variation of the days of the week of a column of dates, or None
    without dates.
    """
    distances = []
    for name in real.schema.of_kind("datetime"):
        shares = []
        for table in (real, made):
            days = table[name].series().dropna().dt.dayofweek
            shares.append(days.value_counts(normalize=True).reindex(range(7), fill_value=0))
        distances.append(float((shares[0] - shares[1]).abs().sum() / 2))
    return max(distances, default=None)


def measured(name: str, seed: int) -> list[dict[str, Any]]:
    """Return one line without the rule and one with it."""
    frame, whose = table_of(name, None)
    people = int(whose.max()) + 1
    place = np.random.default_rng(seed).permutation(people)[whose]
    most = min(people, round(MOST / SHARES["train"]))
    ends = np.cumsum([0, *(round(share * most) for share in SHARES.values())])
    frames: Any = {
        role: frame[(place >= low) & (place < high)].assign(
            **{WHO: whose[(place >= low) & (place < high)]}
        )
        for role, low, high in zip(SHARES, ends[:-1], ends[1:], strict=True)
    }
    real = real_tables(frames, {role: role for role in SHARES}, Declared(subject=WHO))
    seconds, replaced = cost(lambda: without_rare_values(real, MIN_HOLDERS))
    codes = subject_codes_of(real.values())
    found = []
    for rule, tables in zip(RULES, (real, replaced), strict=True):
        train = tables["train"]
        fitted = build_generator("synthpop", {}).fit(
            train.without_subject(), seed=seed, subject_codes=subject_codes_of([train])
        )
        made = fitted.sample(len(train), seed=seed)
        scored = made.without_rare(train.rules).with_schema(real["train"].schema)
        inputs = build_inputs(real, scored, seed=seed)
        results = run_metrics(
            inputs, {name: build_metric(name) for name in ("fidelity", "value_disclosure")}
        )
        utility = {
            one.name: [one.value, one.null]
            for one in results["fidelity"].estimates
            if one.name in UTILITY
        }
        own = next(
            one.value for one in results["value_disclosure"].estimates if one.name == "own_values"
        )
        rare = rare_cells(list(tables.values()), scored, np.asarray(codes))
        number_rules = [rule for rule in train.rules.values() if rule.groups is not None]
        line = {
            "table": Path(name).stem,
            "people": int(ends[1]),
            "rows": len(train),
            "trained on": rule,
            "seed": seed,
        }
        found.append(
            {
                **line,
                "utility": utility,
                "rare": rare,
                "own": own,
                "weekdays": weekdays(real["holdout"], scored),
                "moved": max((rule.mean_change for rule in number_rules), default=0.0),
                "changed": [rule.n_changed / max(rule.n_rows, 1) for rule in number_rules],
                "seconds": seconds,
            }
        )
    return found


REFUSED = {
    "fresh rows": None,
    "5 % copies": LEAKS["5 % copies"],
    "10 % copies": LEAKS["10 % copies"],
    "3 % with one cell redrawn": LEAKS["3 % with one cell redrawn"],
    "20 % moved": LEAKS["20 % moved"],
    "10 % near copies": changed(0.1, jittered),
}


ATTACKS = ("dcr", "copies", "singling_out", "membership_inference")


def refused(name: str, seed: int, people: int = 1_000) -> list[dict[str, Any]]:
    """Return a line for each kind of release with and without the rule, with every estimate."""
    frame, whose = table_of(name, None)
    people = min(people, (int(whose.max()) + 1) // 3)
    found = []
    leaks = {kind: leak for kind, leak in {**LEAKS, **REFUSED}.items() if leak is not None}
    for kind in REFUSED:
        for rule in RULES:
            inputs = released(frame, whose, people, kind, seed, leaks, rule=rule == RULES[1])
            line = {
                "table": Path(name).stem,
                "people": people,
                "seed": seed,
                "release": kind,
                "rule": rule,
            }
            found.append({**line, **measured_on(inputs, ATTACKS)})
    return found


def nights(name: str, seed: int, people: int = 5_000, number: int = 40) -> list[dict[str, Any]]:
    """Return one line with the changes of published categories and shared columns from night to
    night.
    """
    frame, whose = table_of(name, None)
    known: dict[str, set[Any]] = {}
    shared: set[str] = set()
    came = gone = began = ceased = levels = 0
    for night in series(
        "synthpop",
        seed,
        min(people, int(whose.max()) // 2),
        number,
        np.zeros(whose.max() + 1, bool),
    ):
        frames: Any = {
            role: frame[np.isin(whose, rows)].assign(**{WHO: whose[np.isin(whose, rows)]})
            for role, rows in night.roles.items()
        }
        rules = without_rare_values(
            real_tables(frames, {role: role for role in frames}, Declared(subject=WHO)), MIN_HOLDERS
        )["train"].rules
        now = {
            column: set(rule.recoding.values())
            for column, rule in rules.items()
            if rule.recoding is not None
        }
        pairs = {
            f"{a}, {b}"
            for a, first in rules.items()
            for b, second in rules.items()
            if a < b
            and first.groups is not None
            and second.groups is not None
            and first.groups.equals(second.groups)
        }
        if known:
            came += sum(len(values - known[column]) for column, values in now.items())
            gone += sum(len(known[column] - values) for column, values in now.items())
            began += len(pairs - shared)
            ceased += len(shared - pairs)
        levels = sum(map(len, now.values()))
        known, shared = now, pairs
    line = {
        "table": Path(name).stem,
        "seed": seed,
        "nights": number,
        "categories": levels,
        "came": came,
        "gone": gone,
    }
    return [{**line, "pairs": len(shared), "began": began, "ceased": ceased}]


def business(rows: int, seed: int) -> pd.DataFrame:
    """Return a table of 15 columns: amounts, ages, times, codes and flags."""
    rng = np.random.default_rng(seed)
    amount = np.round(rng.lognormal(6, 1, rows), 2)
    start = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 10**8, rows), unit="s")
    columns = {
        "amount": amount,
        "paid": np.round(amount * rng.choice([0.0, 0.8, 1.0], rows), 2),
        "start": start,
        "end": start + pd.to_timedelta(rng.integers(0, 10**6, rows), unit="s"),
        "salary": np.round(rng.lognormal(10, 0.5, rows), 2),
        "age": rng.integers(18, 95, rows),
        "height": np.round(rng.normal(170, 10, rows), 1),
        "score": rng.normal(size=rows),
        "visits": rng.poisson(3, rows),
        "born": pd.Timestamp("1950-01-01")
        + pd.to_timedelta(rng.integers(0, 20_000, rows), unit="D"),
        "code": np.minimum(rng.zipf(1.5, rows), 5_000).astype(str),
        "region": rng.choice(list("abcdefgh"), rows),
        "plan": rng.choice(["s", "m", "l"], rows),
        "member": rng.random(rows) < 0.3,
        "sex": rng.choice(["f", "m"], rows),
    }
    return pd.DataFrame(columns)


def costs(name: str, seed: int) -> list[dict[str, Any]]:
    """Return the CPU seconds of the rule by number of rows, after one run that compiles."""
    found = []
    for rows in (10_000, 10_000, 1_000_000):
        real = real_tables({"train": business(rows, seed)}, {"train": "train"})
        seconds, _ = cost(lambda real=real: without_rare_values(real, MIN_HOLDERS))
        found.append({"table": name, "seed": seed, "rows": rows, "seconds": seconds})
    return found[1:]


KINDS = ("fresh rows", "independent columns", "1 % own codes", "2 % own codes")


def calibrated(name: str, seed: int) -> list[dict[str, Any]]:
    """Return a line for each size of train and kind of release, with the estimate of
    ``own_values``.
    """
    frame, whose = table_of(name, None)
    third = (int(whose.max()) + 1) // 3
    found = []
    for people in sorted({min(third, size) for size in SIZES}):
        rng = np.random.default_rng([seed, people])
        place, ends = rng.permutation(whose.max() + 1)[whose], np.array([0, 1, 1.6, 2]) * people
        parts = [
            (place >= low) & (place < high) for low, high in zip(ends[:-1], ends[1:], strict=True)
        ]
        tables = [frame[part].assign(**{WHO: whose[part]}).reset_index(drop=True) for part in parts]
        others = known_rows(frame[place >= ends[-1]], frame[place < ends[-1]])
        own = tables[0].drop(columns=WHO)
        fresh = others.iloc[np.resize(rng.permutation(len(others)), len(own))].reset_index(
            drop=True
        )
        for kind in KINDS:
            real, made = tables, fresh
            if kind == "independent columns":
                made = independent(own, fresh, rng)
            elif kind != "fresh rows":
                real, made = with_codes(tables, fresh, float(kind.split()[0]) / 100)
            inputs = read_inputs(
                real[0], real[1], made, declared=Declared(subject=WHO), reference=real[2], seed=seed
            )
            result = build_metric("value_disclosure").measure(inputs)
            estimate = next(one for one in result.estimates if one.name == "own_values")
            line = {"table": Path(name).stem, "people": people, "seed": seed, "kind": kind}
            found.append({**line, "value": estimate.value, "low": estimate.low})
    return found


def independent(own: pd.DataFrame, fresh: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Draw each column independently from train, or from other people if 20 rows have a number of
    their own.
    """
    columns = {}
    for name in own:
        fine = own[name].dtype.kind in "iufM" and (own[name].value_counts() == 1).sum() >= 20
        columns[name] = (
            (fresh if fine else own)[name].iloc[rng.integers(0, len(own), len(own))].to_numpy()
        )
    return pd.DataFrame(columns).astype(own.dtypes.to_dict())


def with_codes(
    tables: Sequence[pd.DataFrame], fresh: pd.DataFrame, share: float
) -> tuple[list[pd.DataFrame], pd.DataFrame]:
    """Add a column in which 4 % of the rows have a code of their own. A share of those of train is
    in the release.
    """
    real = [
        table.assign(
            code=[f"{at}{row}" if row % 25 == 0 else f"c{row % 7}" for row in range(len(table))]
        )
        for at, table in enumerate(tables)
    ]
    codes, leaked = (
        [f"c{row % 7}" for row in range(len(fresh))],
        real[0]["code"][real[0].index % 25 == 0],
    )
    count = min(round(share * len(fresh)), len(leaked))
    codes[:count] = leaked.iloc[:count]
    return real, fresh.assign(code=codes)


def run(options: argparse.Namespace) -> None:
    """Measure the tables that the results do not contain yet."""
    held = {(line["table"], line["seed"]) for line in lines(options.results)}
    for name in options.tables:
        for seed in range(options.draws):
            if (Path(name).stem, seed) not in held:
                for line in STUDIES[options.study](name, seed):
                    append(options.results, line)
                sys.stderr.write(f"{Path(name).stem}, {seed}\n")


STUDIES = {
    "utility": measured,
    "refusals": refused,
    "own_values": calibrated,
    "nights": nights,
    "cost": costs,
}


def refusals_text(found: list[dict[str, Any]]) -> str:
    """Return a Markdown table: refused releases by kind, without and with the rule."""
    limits = default_policy().limits
    out = [
        "| release | " + " | ".join(f"{rule}: fail, not decided" for rule in RULES) + " |",
        "|---|---|---|",
    ]
    for kind in REFUSED:
        cells = []
        for rule in RULES:
            statuses = []
            for line in found:
                if line["release"] == kind and line["rule"] == rule:
                    results = results_of(line)
                    measured_limits = [limit for limit in limits if limit.metric in results]
                    statuses.append(
                        {
                            judge_limit(limit, results[limit.metric]).status
                            for limit in measured_limits
                        }
                    )
            n_failed = sum("fail" in status for status in statuses)
            n_open = sum("undecided" in status and "fail" not in status for status in statuses)
            cells.append(f"{n_failed}, {n_open} of {len(statuses)}")
        out.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(out) + "\n"


def plain_text(found: list[dict[str, Any]]) -> str:
    """Return a Markdown table with a row for each line and a column for each number."""
    names = list(found[0])
    rows = [
        [
            f"{line[name]:.3g}" if isinstance(line[name], float) else str(line[name])
            for name in names
        ]
        for line in found
    ]
    return (
        "\n".join(f"| {' | '.join(row)} |" for row in [names, ["---"] * len(names), *rows]) + "\n"
    )


def refused_text(found: list[dict[str, Any]]) -> str:
    """Return a Markdown table: refused releases by kind and people in train."""
    limit = next(
        one for one in default_policy().limits if one.statistic == "value_disclosure.own_values"
    )
    sizes = {size: [line for line in found if line["people"] == size] for size in SIZES}
    sizes["other"] = [line for line in found if line["people"] not in SIZES]
    out = [
        f"| release | {' | '.join(f'{size} people' for size in sizes)} |",
        "|" + "---|" * (1 + len(sizes)),
    ]
    for kind in KINDS:
        own = [
            [limit.exceeded_by(line["low"]) for line in part if line["kind"] == kind]
            for part in sizes.values()
        ]
        out.append(f"| {kind} | {' | '.join(f'{sum(of)} of {len(of)}' for of in own)} |")
    return "\n".join(out) + "\n"


def report(options: argparse.Namespace, found: list[dict[str, Any]]) -> str:
    """Return a Markdown table with a row per table: means over the seeds, before -> after."""
    if "kind" in found[0]:
        return refused_text(found)
    if "release" in found[0]:
        return refusals_text(found)
    if "trained on" not in found[0]:
        return plain_text(found)
    out = [
        "| table | rows of train | columns | pairs | prediction | days of the week | cells of"
        " fewer than 5 people |"
        " `own_values` | changed cells, median of the number columns | largest mean change (sd)"
        " | CPU s of the rule |",
        "|" + "---|" * 11,
    ]
    for table in dict.fromkeys(line["table"] for line in found):
        own = [line for line in found if line["table"] == table]
        sides = [[line for line in own if line["trained on"] == rule] for rule in RULES]
        utility = [
            " → ".join(
                f"{np.mean([line['utility'][name][0] for line in side]):.3f}" for side in sides
            )
            + f" (real {np.mean([line['utility'][name][1] for line in own]):.3f})"
            for name in UTILITY
        ]
        rare, alone = (
            " → ".join(form.format(np.mean([line[key] for line in side])) for side in sides)
            for key, form in (("rare", "{:,.0f}"), ("own", "{:.4f}"))
        )
        days = "-"
        if own[0]["weekdays"] is not None:
            days = " → ".join(
                f"{np.mean([line['weekdays'] for line in side]):.3f}" for side in sides
            )
        moved, seconds = (
            np.mean([line["moved"] for line in sides[1]]),
            np.mean([line["seconds"] for line in own]),
        )
        cells = [share for line in sides[1] for share in line["changed"]]
        share = f"{np.median(cells):.1%}" if cells else "-"
        utilities = " | ".join(utility)
        out.append(
            f"| {table} | {own[0]['rows']:,} | {utilities} | {days} | {rare} | {alone} |"
            f" {share} | {moved:.4f} |"
            f" {seconds:.2f} |"
        )
    return "\n".join(out) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = study_parser(__doc__, "rare_values.jsonl")
    parser.add_argument("tables", nargs="*", help=SEVERAL)
    parser.add_argument("--draws", type=int, default=3, help="splits of each table")
    parser.add_argument(
        "--study", choices=tuple(STUDIES), default="utility", help="what to measure"
    )
    run_or_report(parser, arguments, run, report)


if __name__ == "__main__":
    main()
