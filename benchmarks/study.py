"""Command line and results file shared by the studies: a line of JSON per measurement, and a report
on these lines.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from privacy_assets.policy import WORST_FIRST, Policy, Verdict, judge_limit
from privacy_assets.stats.estimates import MetricResult

SEVERAL = 'Parquet files, or "demo"'


def study_parser(description: str | None, results: str) -> argparse.ArgumentParser:
    """Create the parser of a study, with ``--results`` (default: the given file name) and
    ``--report``.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path(results), help="file to append to")
    parser.add_argument(
        "--report", type=Path, nargs="+", help="report on these files without running"
    )
    return parser


def run_or_report(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    run: Callable[[argparse.Namespace], None],
    report: Callable[[argparse.Namespace, list[dict[str, Any]]], str],
) -> None:
    """Run the study, or print its report if ``--report`` is given.

    The positional argument of the parser, ``table`` or ``tables``, is required for a run only.
    """
    options = parser.parse_args(arguments)
    if options.report:
        print(report(options, lines(*options.report)), end="")
    elif getattr(options, "tables", None) or getattr(options, "table", None):
        run(options)
    else:
        parser.error("name a table, or a --report file")


def limits_alone(policy: Policy, results: Mapping[str, MetricResult]) -> Verdict:
    """Return the verdict without the rule that a limit must fail on a copy of train, for results
    without a copy.
    """
    outcomes = tuple(judge_limit(limit, results.get(limit.metric)) for limit in policy.limits)
    return Verdict(min((outcome.status for outcome in outcomes), key=WORST_FIRST.index), outcomes)


def lines(*paths: Path) -> list[dict[str, Any]]:
    """Read the lines of the results files that exist."""
    return [
        json.loads(line)
        for path in paths
        if path.exists()
        for line in path.read_text().splitlines()
    ]


def append(path: Path, line: dict[str, Any]) -> None:
    """Append one line to a results file."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
