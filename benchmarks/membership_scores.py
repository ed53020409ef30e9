"""Count for how many planted leaks each score of ``membership_inference`` is the best one.

    python -m benchmarks.membership_scores --results membership_scores.jsonl DIRECTORY/*.parquet
    python -m benchmarks.membership_scores --results membership_scores.jsonl FOLDER
    python -m benchmarks.membership_scores --report membership_scores.jsonl

Releases come from :mod:`benchmarks.leaks`, those of a FOLDER with adult.parquet and
uk_census.parquet from :mod:`benchmarks.battery`. A score detects a leak if the 95 % interval of its
AUC is above 0.5. The best score of a leak has the largest AUC, or the largest true positive rate at
1 % or 10 % false positives; the best score of a table has the largest mean AUC over its detected
leaks. k tied scores count 1 / k each. Each release is one line of the results and is measured once.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.battery_releases import BATTERY, PASS, UNKNOWN
from benchmarks.battery_tables import Sources
from benchmarks.copies import table_of
from benchmarks.leaks import FEWEST, HARMLESS, LEAKS, UNSEEN, released
from benchmarks.measured import cost
from benchmarks.study import SEVERAL, append, lines, run_or_report, study_parser
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.membership_inference.classifier import NAME, score_rows
from privacy_assets.metrics.membership_inference.metric import attack_scores, low_rates
from privacy_assets.metrics.membership_inference.no_box import areas
from privacy_assets.metrics.membership_inference.no_box import score_rows as no_box_scores
from privacy_assets.metrics.membership_inference.scores import build_population
from privacy_assets.stats.estimates import StatisticSpec
from privacy_assets.tables.declared import Declared

KINDS = (*HARMLESS, *LEAKS, *UNSEEN)
N_PERMUTATIONS = 199


def measured(inputs: EvaluationInputs) -> dict[str, Any]:
    """Return the AUC with its interval and both true positive rates of each score, and the
    classifier's CPU seconds.
    """
    found = no_box_scores(inputs)
    population = build_population(inputs, found.distances if found else None)
    seconds, learned = cost(lambda: score_rows(inputs))
    scores = attack_scores(population, found, learned)
    rng = np.random.default_rng(0)
    specs = {
        StatisticSpec(name, "", "two_sided", 0.5): -np.minimum(score, 1e9)
        for name, score in scores.items()
    }
    auc = {
        one.name: [one.value, one.low, one.high]
        for one in areas(specs, population, N_PERMUTATIONS, rng)
    }
    table = low_rates(population, scores, N_PERMUTATIONS, rng)[1]
    rates = {
        str(fpr): {row["score"]: row["tpr"] for row in table if row["fpr"] == fpr}
        for fpr in (0.01, 0.1)
    }
    return {"auc": auc, "tpr": rates, "seconds": seconds}


def run(options: argparse.Namespace) -> None:
    """Measure the releases that the results do not contain yet."""
    held = {(line["table"], line["kind"], line["seed"]) for line in lines(options.results)}
    for file in options.tables:
        if Path(file).is_dir():
            run_battery(Path(file), held, options.results)
            continue
        frame, whose = table_of(file, None)
        people = min(int(whose.max() + 1) // 3, options.people)
        for seed in range(options.draws):
            for kind in options.kinds:
                key = {"table": Path(file).stem, "kind": kind, "seed": seed}
                if people < min(FEWEST, options.people) or tuple(key.values()) in held:
                    continue
                inputs = released(frame, whose, people, kind, seed, {**LEAKS, **UNSEEN})
                append(options.results, {**key, "people": people, **measured(inputs)})
                sys.stderr.write(f"{', '.join(map(str, key.values()))}\n")


def run_battery(folder: Path, held: set[tuple[Any, ...]], path: Path) -> None:
    """Measure the releases of the battery whose truth is a leak or none."""
    sources = Sources(folder)
    for entry in BATTERY:
        key = {"table": f"battery, {entry.table}", "kind": entry.what, "seed": 0}
        if entry.expected == UNKNOWN or not sources.has(entry.table) or tuple(key.values()) in held:
            continue
        given = entry.build(sources)
        inputs = read_inputs(
            given.train,
            given.holdout,
            given.synthetic,
            given.reference,
            declared=Declared(subject=given.subject),
        )
        about = {"people": inputs.all_subjects.members, "harmless": entry.expected == PASS}
        append(path, {**key, **about, **measured(inputs)})
        sys.stderr.write(f"{', '.join(map(str, key.values()))}\n")


def report_text(found: Sequence[Mapping[str, Any]]) -> str:
    """Return Markdown with a row for each score, and a row for each kind of release."""
    leaks = [line for line in found if not line.get("harmless", line["kind"] in HARMLESS)]
    seen = [line for line in leaks if any(low > 0.5 for _, low, _ in line["auc"].values())]
    fresh = [line for line in found if line["kind"] == "fresh rows"]
    names = list(dict.fromkeys(name for line in found for name in line["auc"]))
    areas_of: dict[str, list[dict[str, float]]] = defaultdict(list)
    best = {name: [0.0, 0.0, 0.0, 0.0] for name in names}
    for line in seen:
        values = {name: value for name, (value, _, _) in line["auc"].items()}
        areas_of[line["table"]].append(values)
        for at, numbers in enumerate((values, line["tpr"]["0.01"], line["tpr"]["0.1"])):
            count_best(best, numbers, at)
    for lists in areas_of.values():
        shared = [name for name in names if all(name in values for values in lists)]
        count_best(
            best, {name: float(np.mean([values[name] for values in lists])) for name in shared}, 3
        )
    head = [
        "score",
        "best by AUC",
        "by TPR at 1 %",
        "at 10 %",
        "tables",
        "leaks detected",
        "fresh rows outside 95 %",
    ]
    out = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name in names:
        own = sum(line["auc"][name][1] > 0.5 for line in leaks if name in line["auc"])
        wrong = sum(
            not line["auc"][name][1] <= 0.5 <= line["auc"][name][2]
            for line in fresh
            if name in line["auc"]
        )
        counts = [f"{count:.1f}" for count in best[name]]
        cells = [
            *counts[:3],
            f"{counts[3]} of {len(areas_of)}",
            f"{own} of {len(leaks)}",
            f"{wrong} of {len(fresh)}",
        ]
        out.append(f"| {name} | {' | '.join(map(str, cells))} |")
    by_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for line in found:
        by_kind[line["kind"]].append(line)
    out += ["", f"| mean AUC | {' | '.join(names)} |", "|" + "---|" * (len(names) + 1)]
    for kind in (kind for kind in KINDS if kind in by_kind):
        means = (
            np.mean([one["auc"][name][0] for one in by_kind[kind] if name in one["auc"]])
            for name in names
        )
        out.append(f"| {kind} | {' | '.join(f'{mean:.3f}' for mean in means)} |")
    tables = len({line["table"] for line in found})
    seconds = np.mean([line["seconds"] for line in found]) if found else np.nan
    summary = f"{len(seen)} of {len(leaks)} leaks in {tables} tables are detected by a score"
    out.append(f"\n{summary}; {NAME}: {seconds:.1f} CPU s each")
    return "\n".join(out) + ".\n"


def count_best(best: dict[str, list[float]], numbers: Mapping[str, float], at: int) -> None:
    """Add 1 to the count ``at`` of the score with the largest number, shared by ties."""
    tied = [name for name, value in numbers.items() if value == max(numbers.values())]
    for name in tied:
        best[name][at] += 1 / len(tied)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = study_parser(__doc__, "membership_scores.jsonl")
    parser.add_argument("tables", nargs="*", help=SEVERAL)
    parser.add_argument(
        "--people", type=int, default=1_000, help="in train; a third of all at most"
    )
    parser.add_argument(
        "--draws", type=int, default=1, help="splits and releases of each table and kind"
    )
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="these alone"
    )
    run_or_report(parser, arguments, run, lambda options, found: report_text(found))


if __name__ == "__main__":
    main()
