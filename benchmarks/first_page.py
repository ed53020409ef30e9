"""Answers on the first page of the report, and limits without evidence, for non-leaking releases
and planted leaks.

    python -m benchmarks.first_page DIRECTORY/*.parquet tests/data/adult.parquet \\
        tests/data/uk_census.parquet demo \\
        --people 800 1500 2000 --draws 2 --results first_page.jsonl
    python -m benchmarks.first_page TABLES --people 2000 --kinds "5 % copies" "20 % moved" "20 % \\
        half built" synthpop
    python -m benchmarks.business_tables DIRECTORY
    python -m benchmarks.first_page DIRECTORY/*.parquet --people 2000 --kinds "fresh rows" "5 % \\
        copies" synthpop
    python -m benchmarks.first_page --report first_page.jsonl

The study uses the tables and releases of :mod:`benchmarks.leaks`. In addition, limits are measured
on a copy of train, as in an evaluation. The report evaluates each release by the policy
``default``, or ``small`` below 1,500 people, and counts answers, releases that are undecided only
for lack of evidence, and the ratio of smallest leak and tolerance. It lists the releases whose
verdict changes by the rule that each question needs evidence.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.copies import table_of
from benchmarks.leaks import HARMLESS, LEAKS, UNSEEN, released, sizes
from benchmarks.measured import cost
from benchmarks.study import SEVERAL, append, lines, run_or_report, study_parser
from privacy_assets.evaluation.measuring import run_metrics
from privacy_assets.metrics.policies import load_policy, metrics_and_limits
from privacy_assets.metrics.registry import default_metrics
from privacy_assets.policy import WORST_FIRST, Policy, Verdict, judge_limit
from privacy_assets.report.answers import TITLES, answers
from privacy_assets.stats.estimates import MetricResult

WITHOUT = ("controls", "fidelity", "vulnerability")  # metrics without limits on leaks
SMALL = 1_500  # number of people in train below which the policy small applies
INFERENCE = "attribute_inference.excess"


def run(options: argparse.Namespace) -> None:
    """Measure the releases that the results do not contain yet."""
    done = {
        (line["table"], line["people"], line["kind"], line["seed"])
        for line in lines(options.results)
    }
    names = [name for name in default_metrics() if name not in WITHOUT]
    for seed in range(options.draws):
        for path in options.tables:
            frame, whose = table_of(path, None)
            for people in sizes(int(whose.max()) + 1, options.people):
                for kind in options.kinds:
                    key = (Path(path).stem, people, kind, seed)
                    if key in done:
                        continue
                    done.add(key)
                    inputs = released(frame, whose, people, kind, seed, {**LEAKS, **UNSEEN})
                    metrics, policy = metrics_and_limits(names, None, embedder=False)
                    limits = policy.limits if policy else ()
                    seconds, results = cost(
                        lambda inputs=inputs, metrics=metrics, limits=limits: run_metrics(
                            inputs, metrics, limits
                        )
                    )
                    line = dict(zip(("table", "people", "kind", "seed"), key, strict=True))
                    line["results"] = {name: result.to_json() for name, result in results.items()}
                    append(options.results, {**line, "seconds": seconds})
                    sys.stderr.write(f"{', '.join(map(str, key))}\n")


def judged(line: Mapping[str, Any]) -> tuple[Policy, Verdict, Mapping[str, MetricResult]]:
    """Return the policy for this number of people, its verdict, and the results."""
    results = {name: MetricResult.from_json(result) for name, result in line["results"].items()}
    policy = load_policy("small" if line["people"] < SMALL else "default")
    limits = tuple(limit for limit in policy.limits if limit.metric in results)
    policy = Policy(limits, name="study")
    return policy, policy.judge(results), results


def before(policy: Policy, results: Mapping[str, MetricResult]) -> str:
    """Return the verdict without the rule on questions: limits without evidence hold if a copy
    breaks any limit.
    """
    outcomes = [judge_limit(limit, results.get(limit.metric)) for limit in policy.limits]
    statuses = {outcome.status for outcome in outcomes}
    if any(outcome.blind for outcome in outcomes) and not any(
        outcome.can_fail for outcome in outcomes
    ):
        statuses.add("undecided")
    return next(status for status in WORST_FIRST if status in statuses)


def report(options: argparse.Namespace, found: list[dict[str, Any]]) -> str:
    """Return Markdown: verdicts and answers by kind and size, and the ratio of smallest leak and
    tolerance.
    """
    verdicts: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    words: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    unanswered: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    ratios: dict[int, list[float]] = defaultdict(list)
    changes: list[str] = []
    for line in found:
        policy, verdict, results = judged(line)
        size = max(
            (people for people in (0, 800, SMALL, 2_000) if people <= line["people"]), default=0
        )
        key = (line["kind"], size)
        verdicts[key][verdict.status] += 1
        earlier = before(policy, results)
        if earlier != verdict.status:
            undecided = [outcome for outcome in verdict.outcomes if outcome.status == "undecided"]
            questions = sorted(
                {outcome.estimate.question for outcome in undecided if outcome.estimate}
            )
            size_text = f"{line['people']:,} people"
            cells = (
                line["table"],
                size_text,
                line["kind"],
                f"{earlier} → {verdict.status}",
                ", ".join(questions),
            )
            changes.append(f"| {' | '.join(cells)} |")
        page_answers = answers(verdict.outcomes, results, verdict.status)[: len(TITLES)]
        words[key].update({answer.word for answer in page_answers})
        undecided = [outcome for outcome in verdict.outcomes if outcome.status == "undecided"]
        if undecided and all(outcome.blind or outcome.can_fail is None for outcome in undecided):
            weak = any(outcome.is_weak and outcome.can_fail is not False for outcome in undecided)
            unanswered[key][f"{line['table']} ({'weak' if weak else 'copy'})"] += 1
        for outcome in verdict.outcomes:
            if outcome.limit.statistic == INFERENCE:
                ratios[size].append(outcome.smallest_leak / outcome.tolerance)
    out = [
        "| release, people in train from | pass / undecided / fail | small leak | without"
        " evidence |",
        "|---|---|---|---|",
    ]
    for key in sorted(verdicts):
        counts = " / ".join(str(verdicts[key][status]) for status in ("pass", "undecided", "fail"))
        tables = ", ".join(f"{table}: {count}" for table, count in sorted(unanswered[key].items()))
        small = words[key]["A small leak, within the tolerance"]
        out.append(f"| {key[0]}, {key[1]:,} | {counts} | {small} | {tables} |")
    out += [
        "",
        f"| people in train from | smallest leak / tolerance of `{INFERENCE}`: median, 90 %,"
        " largest |",
        "|---|---|",
    ]
    for size, values in sorted(ratios.items()):
        median, most, largest = np.quantile(values, (0.5, 0.9, 1.0))
        out.append(f"| {size:,} | {median:.1f}, {most:.1f}, {largest:.1f} |")
    out += [
        "",
        "| table | train | release | verdict | questions without evidence |",
        "|---|---|---|---|---|",
        *changes,
    ]
    return "\n".join(out) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = study_parser(__doc__, "first_page.jsonl")
    parser.add_argument("tables", nargs="*", help=SEVERAL)
    parser.add_argument(
        "--people", type=int, nargs="+", default=[800, 1_500, 2_000], help="in train"
    )
    parser.add_argument(
        "--draws", type=int, default=1, help="splits and releases of each table and kind"
    )
    kinds = [*HARMLESS, *LEAKS, *UNSEEN]
    parser.add_argument(
        "--kinds", nargs="+", choices=kinds, default=["fresh rows"], help="these alone"
    )
    run_or_report(parser, arguments, run, report)


if __name__ == "__main__":
    main()
