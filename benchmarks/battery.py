"""Evaluate releases of known truth with the gate and three public tools.

    python -m benchmarks.battery FOLDER --results battery.jsonl
    python -m benchmarks.battery --setup
    python -m benchmarks.battery FOLDER --results battery.jsonl --tools \\
        ours,anonymeter,sdmetrics,mostlyai
    python -m benchmarks.battery --report battery.jsonl

FOLDER contains adult.parquet and uk_census.parquet; releases of missing tables are skipped. "ours"
is the default policy with a reference and, except for two releases, without an embedding.
``--setup`` creates two environments for the peers, which read the same tables from files and have
``--limit`` seconds per release.

Each verdict is one line of the results and is computed once, so an interrupted battery resumes; use
a new file after a change of the code. Lines contain measurements; :mod:`benchmarks.battery_rules`
derives the peers' verdicts from them when the report is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import battery_peers
from benchmarks.battery_releases import BATTERY, PASS, REFUSED, Entry, Given
from benchmarks.battery_rules import NO_VERDICT, Line, right, verdict_of
from benchmarks.battery_tables import Sources
from benchmarks.peers import ROOT, THREADS, python_of, set_up
from benchmarks.peers_tables import table
from privacy_assets import evaluate
from privacy_assets.errors import InputError
from privacy_assets.evaluation.evaluate import build_report
from privacy_assets.evaluation.measuring import run_metrics, with_embedder
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.policies import choose_metrics, default_policy
from privacy_assets.metrics.registry import default_metrics
from privacy_assets.report.report import Report
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.table import Table

PEERS = {
    "anonymeter": ("peers", "peers.txt"),
    "sdmetrics": ("peers", "peers.txt"),
    "mostlyai": ("mostly", "mostly.txt"),
}
TOOLS = ("ours", *PEERS)
EPOCHS = 5  # of the embedder


# --- ours
# --------------------------------------------------------------------------------------------------


def ours(entry: Entry, given: Given) -> Line:
    """Return the verdict and the violated limits with their measured values."""
    before = time.process_time()
    try:
        report = judged(entry, given)
    except InputError as error:
        return {
            "verdict": "undecided",
            "broken": {"refused before measuring": str(error)},
            "seconds": 0.0,
        }
    broken = {
        outcome.limit.key: f"{outcome.status}: {outcome.reason}"
        for outcome in report.policy_verdict.not_passed
    }
    verdict = report.verdict.replace("_", " ")
    return {"verdict": verdict, "broken": broken, "seconds": time.process_time() - before}


def judged(entry: Entry, given: Given) -> Report:
    """Evaluate the metrics of the policy alone; a requested embedder trains few epochs."""
    policy = default_policy([*default_metrics(), *entry.also])
    tables = (given.train, given.holdout, given.synthetic)
    options: dict[str, Any] = {
        "reference": given.reference,
        "device": "cpu",
    }
    if not entry.embedder:
        return evaluate(
            *tables,
            subject=given.subject,
            metrics=policy.metrics,
            embedder=False,
            allowed_values=given.domains,
            **options,
        )
    chosen, _ = choose_metrics(None, policy)
    inputs = read_inputs(*tables, declared=Declared(subject=given.subject), **options)
    inputs = with_embedder(inputs, max_epochs=EPOCHS)
    return build_report(inputs, run_metrics(inputs, chosen, policy.limits), policy)


# --- peers
# --------------------------------------------------------------------------------------------------


class Peer:
    """Process of a peer, started for the first release and again after a timeout."""

    def __init__(self, tool: str, python: Path, limit: float) -> None:
        self.command, self.limit = [str(python), battery_peers.__file__, tool], limit
        self.process: subprocess.Popen[str] | None = None

    def ask(self, given: Given) -> Line:
        """Return the peer's result, or the reason why there is none."""
        with TemporaryDirectory() as name:
            task = json.dumps(write(given, Path(name)))
            process = self.process = self.process or self._start()
            with contextlib.suppress(BrokenPipeError):  # the process has ended: no output to read
                process.stdin.write(task + "\n")
                process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], self.limit)
            said = process.stdout.readline() if ready else ""
        if said:
            return json.loads(said)
        self.stop()
        return {"error": "it ended" if ready else f"over {self.limit:.0f} s"}

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _start(self) -> subprocess.Popen[str]:
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        kept |= {f"{library}_NUM_THREADS": "1" for library in THREADS} | {"POLARS_MAX_THREADS": "1"}
        kept |= {"HF_HUB_OFFLINE": "1"}  # no model hub is queried
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.command, env=kept, text=True, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
        )


def write(given: Given, folder: Path) -> dict[str, str]:
    """Write train, holdout and release as plain files without the subject column; peers use no
    reference.
    """
    paths = {}
    for role in ("train", "holdout", "synthetic"):
        frame = getattr(given, role)[given.world.schema.names]
        if len(frame):
            frame = Table.of(frame, given.world.schema, where=role).to_published_frame()
        paths[role] = str(folder / f"{role}.parquet")
        frame.to_parquet(paths[role])
    return paths


# --- runs
# --------------------------------------------------------------------------------------------------


def lines(path: Path) -> list[Line]:
    """Read the lines written so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(
    entries: Sequence[Entry],
    sources: Sources,
    tools: Sequence[str],
    path: Path,
    peers: Mapping[str, Peer],
) -> None:
    """Compute the verdicts that ``path`` does not contain yet."""
    held = {(line["release"], line["tool"]) for line in lines(path)}
    with path.open("a") as file:
        for number, entry in enumerate(entries, start=1):
            left = [tool for tool in tools if (entry.name, tool) not in held]
            given = entry.build(sources) if left else None
            for tool in left:
                found = ours(entry, given) if tool == "ours" else peers[tool].ask(given)
                line = {"release": entry.name, "tool": tool, **found}
                file.write(json.dumps(line) + "\n")
                file.flush()
                said = f"{entry.name}, {tool}: {verdict_of(line)} ({entry.expected} expected)"
                print(f"{number} of {len(entries)}: {said}", file=sys.stderr, flush=True)


def report(found: Sequence[Line], entries: Sequence[Entry] = BATTERY) -> str:
    """Print the table, the wrong verdicts with their reasons, and the costs."""
    said = {(line["release"], line["tool"]): line for line in found}
    tools = [tool for tool in TOOLS if any(line["tool"] == tool for line in found)]
    shown = [entry for entry in entries if any((entry.name, tool) in said for tool in tools)]
    rows = [
        [
            entry.name,
            _share(entry),
            entry.expected,
            *(_cell(entry, said.get((entry.name, tool))) for tool in tools),
        ]
        for entry in shown
    ]
    rows.append(["wrong", "", "", *(_wrong(shown, said, tool) for tool in tools)])
    parts = [table(["release", "leaked", "expected", *tools], rows), *_explained(shown, said)]
    for tool in tools:
        spent = [line.get("seconds", 0.0) for line in found if line["tool"] == tool]
        parts.append(f"{tool}: {sum(spent):.0f} CPU s, {max(spent):.0f} at most")
    return "\n\n".join(parts)


def _explained(entries: Sequence[Entry], said: Mapping[tuple[str, str], Line]) -> list[str]:
    """Name the limits behind our wrong verdicts and the leaks that were rejected without
    significance.
    """
    mine = [(entry, said[entry.name, "ours"]) for entry in entries if (entry.name, "ours") in said]
    wrong = [pair for pair in mine if not right(pair[0], pair[1]["verdict"])]
    luck = [
        (entry, line)
        for entry, line in mine
        if entry.expected == REFUSED and line["verdict"] == "undecided"
    ]
    parts = []
    for title, pairs in (("Wrong:", wrong), ("Refused, but not significant:", luck)):
        if pairs:
            reasons = [
                "; ".join(f"`{key}` {reason}" for key, reason in line["broken"].items())
                for _, line in pairs
            ]
            lines = [
                f"- {entry.name}: {reason}"
                for (entry, _), reason in zip(pairs, reasons, strict=True)
            ]
            parts.append("\n".join([title, "", *lines]))
    return parts


def _share(entry: Entry) -> str:
    return "" if entry.leaked != entry.leaked or not entry.leaked else f"{entry.leaked:.2g}"


def _cell(entry: Entry, line: Line | None) -> str:
    if line is None:
        return ""
    verdict = verdict_of(line)
    return verdict if right(entry, verdict) else f"**{verdict}**"


def _wrong(entries: Sequence[Entry], said: Mapping[tuple[str, str], Line], tool: str) -> str:
    """Count the wrong verdicts by kind."""
    made = [
        (entry, verdict_of(said[entry.name, tool]))
        for entry in entries
        if (entry.name, tool) in said
    ]
    wrong = [(entry, verdict) for entry, verdict in made if not right(entry, verdict)]
    silent = sum(verdict == NO_VERDICT for _, verdict in wrong)
    alarms = sum(entry.expected == PASS and verdict != NO_VERDICT for entry, verdict in wrong)
    parts = {
        "harmless refused": alarms,
        "let through": len(wrong) - alarms - silent,
        "no verdict": silent,
    }
    return f"{len(wrong)} of {len(made)} ({', '.join(f'{n} {what}' for what, n in parts.items())})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the battery, or report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, help="where adult.parquet and uk_census.parquet are"
    )
    parser.add_argument("--tools", default="ours", help=f"some of {','.join(TOOLS)}")
    parser.add_argument(
        "--only", action="append", default=[], help="releases whose name contains this (repeatable)"
    )
    parser.add_argument(
        "--results", type=Path, default=Path("battery.jsonl"), help="file to append to"
    )
    parser.add_argument(
        "--setup", action="store_true", help="make the peers' environments, and end"
    )
    parser.add_argument(
        "--peers", type=Path, default=ROOT / ".peers", help="that of anonymeter and SDMetrics"
    )
    parser.add_argument("--mostly", type=Path, default=ROOT / ".mostly", help="that of mostlyai-qa")
    parser.add_argument(
        "--limit", type=float, default=300, help="seconds that a peer may take for a release"
    )
    parser.add_argument("--report", type=Path, help="report on this file without running")
    options = parser.parse_args(arguments)
    if options.setup:
        for where, wanted in sorted(set(PEERS.values())):
            set_up(getattr(options, where), wanted)
    elif options.report:
        print(report(lines(options.report)))
    elif options.folder is None:
        parser.error("name a folder, --setup or --report")
    else:
        sources = Sources(options.folder)
        entries = [entry for entry in BATTERY if sources.has(entry.table)]
        entries = [
            entry
            for entry in entries
            if not options.only or any(part in entry.name for part in options.only)
        ]
        tools = options.tools.split(",")
        peers = {
            tool: Peer(tool, python_of(getattr(options, where)), options.limit)
            for tool, (where, _) in PEERS.items()
            if tool in tools
        }
        try:
            run(entries, sources, tools, options.results, peers)
        finally:
            for peer in peers.values():
                peer.stop()
        print(report(lines(options.results)))


if __name__ == "__main__":
    main()
