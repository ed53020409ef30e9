"""Measure coverage of intervals, false rejections of honest tables and detection of leaks on
releases of known truth.

    python -m benchmarks.calibration adult.parquet --study rule --repetitions 200 --results \\
        adult.jsonl
    python -m benchmarks.calibration --report adult.jsonl

``coverage``: 2,000 rows of train and 500 of holdout, and 600 and 2,400; one row per person, and 1
to 4; fresh rows, 5 % and 20 % copies. With copies, the membership of all people who were not copied
is redrawn 25 times per release, and the truth is the mean, because the statistics refer to a given
release. ``rule``: fresh rows, densest unseen rows and trees with leaves of 50 rows under the
default policy, at 8,000/2,000/8,000 rows. ``power``: leaks at these sizes. ``order``: five tables
from a copy to an honest one.

Each repetition is one line of the results and is computed once, so an interrupted study resumes,
and ``--metrics`` can add a metric later. No reference and no embedding.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from scipy import stats

from benchmarks.releases import RELEASES, SUBJECT, bare, draw_world, relabeled
from benchmarks.study import limits_alone
from privacy_assets.evaluation.measuring import run_metrics
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.policies import default_policy
from privacy_assets.metrics.registry import METRICS, build_metric, study_metrics
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.stats.intervals import CONFIDENCE
from privacy_assets.tables.declared import Declared

LIMITED = [name for name in study_metrics() if METRICS[name].default_limits]
LARGE = (8_000, 2_000, 8_000)
SMALL = {"4 : 1": (2_000, 500, 1_500), "1 : 4": (600, 2_400, 500)}
COPIED = {"5 % copies": 0.05, "20 % copies": 0.2}
REDRAWS = 25  # number of label draws per release with copies
NON_LEAKING = ("fresh rows", "densest unseen rows", "trees, leaf 50")
LEAKS = (
    "5 % copies", "20 % jittered", "20 % with a column redrawn", "10 % copies, others independent",
    "40 isolated, jittered", "rows near train dropped", "100 % copies",
)  # fmt: skip
ORDER = ("100 % copies", "100 % jittered", "trees, leaf 5", "trees, leaf 50", "fresh rows")
COMPARABLE = (
    "privacy_score",
    "singling_out.risk",
    "singling_out.risk_giomi",
)  # statistics of the paper; the others depend on labels only
BOUNDS = ("membership_inference.epsilon_one_run",)  # bounds have no interval
ENTRIES = ("tails", "curve", "configurations", "columns")  # tables with an interval per row,
VALUES = ("excess", "advantage", "risk")  # of these numbers
BEST = {
    "dcr.member_excess_any": "tails",
    "membership_inference.advantage_any": "curve",
    "attribute_inference.excess": "columns",
}
ROUNDING = 1e-12


class Case(NamedTuple):
    """One release of one repetition."""

    study: str
    shape: str
    people: str
    release: str
    seed: int


def cases(study: str, repetitions: int) -> Iterator[Case]:
    """Return all cases of a study, repetition by repetition."""
    for seed in range(repetitions):
        if study == "coverage":
            for shape in SMALL:
                for people in ("one row", "repeated"):
                    for release in ("fresh rows", *COPIED):
                        yield Case(study, shape, people, release, seed)
        else:
            for release in {"rule": NON_LEAKING, "power": LEAKS, "order": ORDER}[study]:
                yield Case(study, "8,000/2,000", "one row", release, seed)


def world_of(case: Case) -> int:
    """Return the number of the population draw; copies are evaluated under many labels in one
    world.
    """
    return (
        case.seed // REDRAWS if case.study == "coverage" and case.release in COPIED else case.seed
    )


def judge(
    frame: pd.DataFrame, case: Case, metrics: Mapping[str, Metric], shape: tuple[int, int, int]
) -> dict[str, MetricResult]:
    """Return the result of each metric in one case."""
    repeated = case.people == "repeated"
    world = draw_world(frame, shape, world_of(case), repeated=repeated)
    release = RELEASES[case.release](world)
    if case.study == "coverage" and case.release in COPIED:
        world = relabeled(world, world.chosen(COPIED[case.release]), case.seed)
    train, holdout = (table if repeated else bare(table) for table in (world.train, world.holdout))
    subject = SUBJECT if repeated else None
    inputs = read_inputs(
        train,
        holdout,
        release,
        declared=Declared(subject=subject),
        schema=world.schema,
        seed=case.seed,
    )
    results = run_metrics(inputs, metrics)
    return {
        name: replace(
            result, tables={key: rows for key, rows in result.tables.items() if key in ENTRIES}
        )
        for name, result in results.items()
    }


def line_of(frame: pd.DataFrame, case: Case, names: list[str]) -> str:
    """Return one line of the results."""
    results = judge(
        frame, case, {name: build_metric(name) for name in names}, SMALL.get(case.shape, LARGE)
    )
    return json.dumps(
        {"case": case, "results": {name: result.to_json() for name, result in results.items()}}
    )


def run(
    frame: pd.DataFrame,
    study: str,
    repetitions: int,
    metrics: list[str],
    path: Path,
    processes: int,
) -> None:
    """Compute the cases that ``path`` does not contain yet."""
    held = {(case, name) for case, results in lines([path]) for name in results}
    left = [
        (case, [name for name in metrics if (case, name) not in held])
        for case in cases(study, repetitions)
    ]
    left = [(case, names) for case, names in left if names]
    work = (delayed(line_of)(frame, case, names) for case, names in left)
    with path.open("a") as file:
        for done, line in enumerate(
            Parallel(n_jobs=processes, return_as="generator_unordered")(work), start=1
        ):
            file.write(line + "\n")
            file.flush()
            sys.stderr.write(f"\r{study}: {done} of {len(left)}")
    sys.stderr.write("\n")


def lines(paths: Iterable[Path]) -> Iterator[tuple[Case, dict[str, MetricResult]]]:
    """Read cases with their results from the files that exist."""
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else []:
            data = json.loads(line)
            yield (
                Case(*data["case"]),
                {n: MetricResult.from_json(r) for n, r in data["results"].items()},
            )


def report(paths: list[Path]) -> None:
    """Print the summary of the results."""
    studies: dict[str, dict[Case, dict[str, MetricResult]]] = defaultdict(lambda: defaultdict(dict))
    for case, results in lines(paths):
        studies[case.study][case].update(results)
    for study, found in studies.items():
        print(f"\n## {study}\n")
        {"coverage": print_coverage, "order": print_order}.get(study, print_verdicts)(found)


def print_coverage(found: dict[Case, dict[str, MetricResult]]) -> None:
    """Print one line per kind of interval; p is the probability of so low a coverage at the nominal
    level.
    """
    print(
        "| statistic | holdout | people | release | held the truth | p |\n|---|---|---|---|---|---|"
    )
    for (name, *key), held, p in coverage(found):
        mark = " **" if p < 0.01 else ""
        print(f"| {name} | {' | '.join(key)} | {sum(held)}/{len(held)} | {p:.3f}{mark} |")


def coverage(
    found: dict[Case, dict[str, MetricResult]],
) -> Iterator[tuple[tuple[str, ...], list[bool], float]]:
    """Return, per statistic or table and kind of case, which intervals contain the truth, and a
    p-value of the count.

    The truth is the null value, or the mean over the repetitions of one world if no null value is
    known. If a statistic selects the largest row of a table, its truth is the mean of the selected
    row.
    """
    worlds: dict[tuple[str, ...], dict[int, list[dict[str, MetricResult]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for case, results in found.items():
        world = world_of(case) if case.release in COPIED else -1  # if labels are uninformative
        worlds[case.shape, case.people, case.release][world].append(results)
    for key, groups in sorted(worlds.items()):
        held: dict[tuple[str, float], list[bool]] = defaultdict(list)
        for world, group in groups.items():
            for name, metric in METRICS.items():
                mine = [results[name] for results in group if name in results]
                for spec in metric.statistics if mine else ():
                    full = f"{name}.{spec.name}"
                    seen = [
                        (result.estimate(spec.name), result)
                        for result in mine
                        if full not in BOUNDS
                    ]
                    seen = [(estimate, result) for estimate, result in seen if estimate.measurable]
                    if seen:
                        truths = np.full(
                            len(seen), np.mean([estimate.value for estimate, _ in seen])
                        )
                        if world < 0 and not full.endswith(COMPARABLE):
                            truths[:] = 0.0 if spec.null is None else spec.null
                        elif full in BEST:
                            truths = truths_of_best(
                                [(f.value, result.tables[BEST[full]]) for f, result in seen]
                            )
                        inside = [
                            f.low - ROUNDING <= truth <= f.high + ROUNDING
                            for (f, _), truth in zip(seen, truths, strict=True)
                        ]
                        held[full, seen[0][0].confidence] += inside
                for table in mine[0].tables if mine else ():
                    tables = [result.tables[table] for result in mine]
                    held[f"{name}, table {table}", CONFIDENCE] += held_together(
                        tables, 0.0 if world < 0 else None
                    )
        for (name, confidence), flags in held.items():
            yield (name, *key), flags, float(stats.binom.cdf(sum(flags), len(flags), confidence))


def numbers(table: list[dict[str, Any]]) -> list[Any]:
    """Return the index of each row that has an interval."""
    return [next(row[key] for key in VALUES if key in row) for row in table]


def held_together(tables: list[list[dict[str, Any]]], truth: float | None) -> list[bool]:
    """Return, per repetition, whether the intervals of all rows contain the truth (None: means over
    all) jointly.
    """
    parts = [[[row.get(key) for row in table] for table in tables] for key in ("low", "high")]
    low, high, value = (
        np.array(part, dtype=np.float64) for part in (*parts, list(map(numbers, tables)))
    )
    known = np.isfinite(value) & np.isfinite(low) & np.isfinite(high)
    means = truth if truth is not None else np.nanmean(np.where(known, value, np.nan), axis=0)
    held = (low - ROUNDING <= means) & (means <= high + ROUNDING)
    return list((held | ~known).all(axis=1))


def truths_of_best(seen: list[tuple[float, list[dict[str, Any]]]]) -> np.ndarray:
    """Return, per repetition, a value and its table: the mean of the selected row over all
    repetitions.
    """
    rows = []
    for _, table in seen:
        found = np.array(numbers(table), dtype=np.float64)
        weighted = [found @ [row["weight"] for row in table]] if "weight" in table[0] else []
        rows.append([*found, *weighted])
    every = np.array(rows, dtype=np.float64)
    at = np.nanargmin(np.abs(every - np.array([[value] for value, _ in seen])), axis=1)
    return np.nanmean(every, axis=0)[at]


def print_verdicts(found: dict[Case, dict[str, MetricResult]]) -> None:
    """Print, per release, the number of rejections and the violated limits by kind.

    Cases that lack a metric present in others are excluded and reported, because their limits would
    be missing.
    """
    names = {name for results in found.values() for name in results}
    whole = {case: results for case, results in found.items() if set(results) == names}
    if len(whole) < len(found):
        print(f"{len(found) - len(whole)} cases lack a metric and are excluded.\n")
    found, releases = whole, defaultdict(list)
    for case, results in found.items():
        policy = default_policy(results)
        verdict = limits_alone(policy, results)
        broken = {outcome.limit.key for outcome in verdict.outcomes if outcome.status == "fail"}
        releases[case.release].append((verdict.status, broken))
    print(
        "| release | repetitions | refused | undecided | by two statistics, one"
        " label-conditional | by every metric |"
    )
    print("|---|---|---|---|---|---|")
    for release, seen in releases.items():
        limited = [{key.removesuffix(".significant") for key in broken} for _, broken in seen]
        label_conditional = [
            {name for name in broken if not name.endswith(COMPARABLE)} for broken in limited
        ]
        counts = (
            sum(bool(broken) for broken in limited),
            sum(verdict == "undecided" for verdict, _ in seen),
            sum(
                len(broken) >= 2 and bool(b)
                for broken, b in zip(limited, label_conditional, strict=True)
            ),
            sum({name.partition(".")[0] for name in broken} == set(LIMITED) for broken in limited),
        )
        print(f"| {release} | {len(seen)} | {' | '.join(map(str, counts))} |")
    print("\nLimits broken:\n")
    for release, seen in releases.items():
        keys = sorted({key for _, broken in seen for key in broken})
        print(
            f"- {release}: "
            + ", ".join(f"{key} {sum(key in broken for _, broken in seen)}" for key in keys)
        )
    print_demonstrated(found)


def print_demonstrated(found: dict[Case, dict[str, MetricResult]]) -> None:
    """Print the maximum disclosure demonstrated by honest trees, from which the tolerances
    derive.
    """
    shown: dict[str, list[float]] = defaultdict(list)
    for case, results in found.items():
        if case.release == "trees, leaf 50":
            for outcome in default_policy(results).judge(results).outcomes:
                if (
                    outcome.limit.bound == "proven"
                    and (estimate := outcome.estimate) is not None
                    and estimate.measurable
                ):
                    shown[outcome.limit.statistic].append(
                        max(estimate.low - estimate.null, estimate.null - estimate.high, 0.0)
                    )
    for name, ends in shown.items():
        print(f"- trees, leaf 50 demonstrate {name} of at most {max(ends):.4f} in {len(ends)}")


def print_order(found: dict[Case, dict[str, MetricResult]]) -> None:
    """Print the means of the two statistics that rank leaks."""
    print("| release | membership_inference.advantage | dcr.member_excess |\n|---|---|---|")
    for release in ORDER:
        cells = []
        for name in ("membership_inference.advantage", "dcr.member_excess"):
            metric, statistic = name.split(".")
            values = [
                r[metric].estimate(statistic).value
                for case, r in found.items()
                if case.release == release
            ]
            cells.append(f"{np.mean(values):.3f} ({np.min(values):.3f} to {np.max(values):.3f})")
        print(f"| {release} | {' | '.join(cells)} |")


def main() -> None:
    """Run a study, or report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", nargs="?", help="a Parquet file of at least 20,000 rows")
    parser.add_argument(
        "--drop",
        action="append",
        default=[],
        help="a column to leave out, such as an id (repeatable)",
    )
    parser.add_argument("--as-text", action="store_true", help="every column is a category")
    parser.add_argument("--study", choices=("coverage", "rule", "power", "order"), default="rule")
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--metrics", default=",".join(LIMITED))
    parser.add_argument(
        "--results", type=Path, default=Path("calibration.jsonl"), help="file to append to"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--report", type=Path, nargs="+", help="report on these files without running"
    )
    options = parser.parse_args()
    if options.report:
        report(options.report)
    elif options.table:
        names = options.metrics.split(",")
        frame = pd.read_parquet(options.table).drop(columns=options.drop)
        frame = "=" + frame.astype(str) if options.as_text else frame
        run(frame, options.study, options.repetitions, names, options.results, options.processes)
        report([options.results])
    else:
        parser.error("name a table, or --report")


if __name__ == "__main__":
    main()
