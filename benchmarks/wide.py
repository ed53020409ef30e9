"""Measure the cost of a default evaluation by number of columns, and that of public tools on the
same tables.

    python -m benchmarks.peers --setup
    python -m benchmarks.wide

The first command creates the environment of the peers. Tables of 1,500 training, 750 holdout and
1,250 synthetic rows are drawn by :mod:`benchmarks.wide_tables`. Each measurement is the user plus
system seconds of one call in its own process with one thread, without imports and, for a peer,
without reading. An evaluation of a narrow table compiles the functions before. Markdown on stdout,
progress on stderr. Linux only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measured import ROLES
from benchmarks.peers import ROOT, Runs, listed, machine, peer_versions, python_of
from benchmarks.peers_tables import table
from benchmarks.wide_tables import ROWS, wide_tables

WIDTHS, COMPARED, NARROW = (100, 300, 1_000), 300, 20
TARGETS = ROWS["holdout"]


def peers(columns: Sequence[str]) -> list[tuple[str, str, str, dict[str, Any]]]:
    """Return our metric, the peer with similar work, and the peer's tool and settings."""
    middle = len(columns) // 2
    halves = [list(columns[:middle]), list(columns[middle:])]
    return [
        (
            "linkability",
            "anonymeter, one pair of halves",
            "linkability",
            {"columns": halves, "attacks": TARGETS},
        ),
        ("fidelity", "SDMetrics QualityReport, all pairs", "quality", {}),
        (
            "singling_out",
            "anonymeter, 3 columns",
            "singling_out",
            {"columns": [3], "attacks": TARGETS},
        ),
        ("attribute_inference", "anonymeter, every column", "inference", {"attacks": TARGETS}),
    ]


def evaluated(runs: Runs, columns: int) -> dict[str, Any]:
    """Return the measurement of a default evaluation."""
    paths = _paths(runs, columns)
    return runs.run(sys.executable, True, _task("whole", {"paths": list(paths.values())}, paths))


def _paths(runs: Runs, columns: int) -> dict[str, str]:
    return {role: str(runs.folder / str(columns) / f"{role}.parquet") for role in ROLES}


def _task(tool: str, settings: dict[str, Any], paths: dict[str, str]) -> dict[str, Any]:
    return {"tool": tool, "settings": settings, "tables": paths, "warm": False}


def growth(found: dict[int, dict[str, Any]]) -> str:
    """Return the CPU seconds by metric and number of columns, their sums, and peak memory."""
    names = dict.fromkeys(name for run in found.values() for name in run["answer"])
    rows = [[name, *(f"{run['answer'][name][0]:.1f}" for run in found.values())] for name in names]
    rows.append(["everything", *(f"{run['cpu']:.1f}" for run in found.values())])
    rows.append(["peak memory, MB", *(f"{run['mb']:,.0f}" for run in found.values())])
    return "CPU s\n\n" + table(["work", *(f"{columns:,} columns" for columns in found)], rows)


def compared(ours: dict[str, Any], theirs: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Return the CPU seconds by peer, next to the metric with similar work, and the ratio."""
    rows = []
    for (metric, peer), run in theirs.items():
        here = ours["answer"][metric][0]
        cells = (
            [f"{run['cpu']:.1f}", f"{run['cpu'] / here:.1f}"]
            if "cpu" in run
            else [run["error"], ""]
        )
        rows.append([f"`{metric}`", f"{here:.1f}", peer, *cells])
    return table(["metric", "here, CPU s", "peer", "peer, CPU s", "peer / here"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--environment", type=Path, default=ROOT / ".peers", help="of the peers (default: .peers)"
    )
    parser.add_argument(
        "--columns", type=int, nargs="+", default=WIDTHS, help="numbers of columns, ascending"
    )
    parser.add_argument(
        "--compared", type=int, default=COMPARED, help="columns of the table for the peers"
    )
    parser.add_argument(
        "--limit", type=float, default=900, help="seconds that a peer may take (default: 900)"
    )
    options = parser.parse_args(arguments)
    about = machine() | {"peers": listed(peer_versions(options.environment))}
    with TemporaryDirectory() as name:
        runs = Runs(Path(name), options.environment, options.limit)
        for columns in {NARROW, options.compared, *options.columns}:
            (runs.folder / str(columns)).mkdir()
            for role, frame in wide_tables(columns).items():
                frame.to_parquet(runs.folder / str(columns) / f"{role}.parquet")
        evaluated(runs, NARROW)  # fills the cache of compiled functions
        found = {}
        for columns in sorted({options.compared, *options.columns}):
            found[columns] = evaluated(runs, columns)
            print(
                f"{columns:,} columns: {found[columns]['cpu']:.1f} CPU s",
                file=sys.stderr,
                flush=True,
            )
        theirs = {}
        for metric, peer, tool, settings in peers(
            list(wide_tables(options.compared)["train"].columns)
        ):
            task = _task(tool, settings, _paths(runs, options.compared))
            theirs[metric, peer] = runs.run(str(python_of(options.environment)), False, task)
            print(f"{peer}: {json.dumps(theirs[metric, peer])}", file=sys.stderr, flush=True)
    print(
        "; ".join(f"{name}: {value}" for name, value in about.items()),
        growth(found),
        sep="\n\n",
        end="\n\n",
    )
    print(f"{options.compared:,} columns\n\n{compared(found[options.compared], theirs)}")


if __name__ == "__main__":
    main()
