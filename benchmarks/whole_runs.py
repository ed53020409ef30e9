"""Run tables from a CSV file to a release with ``privacy-assets run``, with several split keys.

    python -m benchmarks.whole_runs --results whole_runs.jsonl DIRECTORY/*.parquet
    python -m benchmarks.whole_runs --results tried.jsonl --generator shrinkage=0 --try \\
        shrinkage=10,30 -- FILES
    python -m benchmarks.whole_runs --report whole_runs.jsonl tried.jsonl

:mod:`benchmarks.business_tables` and :mod:`benchmarks.leak_tables` write the tables. Each run
starts in an empty folder, so it counts as a first attempt. With ``--try``, a table that is refused
is rehearsed with the values and the same split key, and run again with the setting that the
rehearsal prints.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import yaml

from benchmarks.leak_tables import PERSON
from benchmarks.study import SEVERAL, append, lines, run_or_report, study_parser
from privacy_assets.cli.main import main as command
from privacy_assets.gate.deployment import SPLIT_KEY_VARIABLE


def attempted(spec: dict[str, Any], folder: Path, *options: str) -> tuple[int, str]:
    """Run a table in a new deployment, and return the exit status and the printed text."""
    with TemporaryDirectory(dir=folder) as home:
        path = Path(home) / "table.yaml"
        path.write_text(yaml.safe_dump(spec, sort_keys=False))
        printed = StringIO()
        with redirect_stdout(printed):
            status = command(["run", str(path), "--home", f"{home}/home", "--quiet", *options])
    return status, printed.getvalue()


def measured(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run a table, and return the exit status and the limits that do not hold."""
    out = folder / "report"
    status, _ = attempted(spec, folder, "--out", str(out))
    report = json.loads((out / "report.json").read_text())
    broken = [entry["statistic"] for entry in report["limits"] if entry["status"] != "pass"]
    return {"status": status, "broken": broken}


def of_table(source: Path, split_key: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run one table with one split key, and rehearse it if it is refused and values are tried."""
    os.environ[SPLIT_KEY_VARIABLE] = hashlib.sha256(str(split_key).encode()).hexdigest()
    with TemporaryDirectory() as name:
        folder = Path(name)
        rows = pd.read_parquet(source)
        rows.to_csv(folder / "rows.csv", index=False)
        chosen = yaml.safe_load(f"{{{', '.join(options.generator).replace('=', ': ')}}}")
        generator = {"name": "synthpop", "settings": chosen}
        subject = PERSON if PERSON in rows else {"each_row": True}
        data = {"source": str(folder / "rows.csv"), "subject": subject}
        spec = {"name": source.stem, "data": data, "generator": generator}
        line: dict[str, Any] = {**measured(spec, folder), "rehearsed": None}
        if line["status"] and options.tried:
            tried = [text for pair in options.tried for text in ("--try", pair)]
            _, printed = attempted(spec, folder, "--rehearse", *tried)
            _, found, setting = printed.partition("table.yaml:\n\n")
            chosen = yaml.safe_load(setting) if found else None
            line["rehearsed"] = {
                "chosen": chosen,
                **(measured({**spec, **chosen}, folder) if chosen else {}),
            }
    return line


def run(options: argparse.Namespace) -> None:
    """Run the tables and split keys that the results do not contain yet."""
    held = {(line["table"], line["split_key"], line["settings"]) for line in lines(options.results)}
    settings = " ".join(options.generator) or "defaults"
    for split_key in range(options.split_keys):
        for file in map(Path, options.tables):
            key = {"table": file.stem, "split_key": split_key, "settings": settings}
            if tuple(key.values()) not in held:
                append(options.results, {**key, **of_table(file, split_key, options)})
                sys.stderr.write(f"{file.stem}, {split_key}\n")


def report_text(found: Sequence[dict[str, Any]]) -> str:
    """Return Markdown: published runs of each table, failed limits, and rehearsals of those that
    were refused.
    """
    cells: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in found:
        cells[line["table"], line["settings"]].append(line)
    out = [
        "| table, generator | published | failed limits | rehearsal found a setting | published"
        " with it |"
    ]
    out.append("|---|---|---|---|---|")
    for (table, settings), runs in sorted(cells.items()):
        broken = ", ".join(
            f"`{key}`" for key in sorted({key for line in runs for key in line["broken"]})
        )
        rehearsed = [line["rehearsed"] for line in runs if line["rehearsed"]]
        chosen = [one for one in rehearsed if one["chosen"]]
        shares = [
            f"{sum(not line['status'] for line in runs)} of {len(runs)}",
            broken,
            f"{len(chosen)} of {len(rehearsed)}" if rehearsed else "",
            f"{sum(not one['status'] for one in chosen)} of {len(chosen)}" if chosen else "",
        ]
        out.append(f"| {table}, {settings} | {' | '.join(shares)} |")
    return "\n".join(out) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = study_parser(__doc__, "whole_runs.jsonl")
    parser.add_argument("tables", nargs="*", help=SEVERAL)
    parser.add_argument("--split-keys", type=int, default=10, help="split keys of each table")
    parser.add_argument(
        "--generator", nargs="+", default=[], metavar="SETTING=VALUE", help="of SynthPop"
    )
    parser.add_argument(
        "--try", dest="tried", nargs="+", default=[], metavar="SETTING=VALUE,..", help="rehearsed"
    )
    run_or_report(parser, arguments, run, lambda options, found: report_text(found))


if __name__ == "__main__":
    main()
