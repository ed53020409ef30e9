"""Markdown tables of :mod:`benchmarks.peers`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# work, side, rows, release, and the output of benchmarks.measured or an "error"
Run = Mapping[str, Any]


@dataclass(frozen=True)
class Peer:
    """Task of a peer: ``sizes`` for measuring its cost, rows for comparing its answers."""

    name: str
    tool: str
    settings: Mapping[str, Any]
    sizes: Sequence[int]
    answers_at: int


@dataclass(frozen=True)
class Work:
    """Metric with its settings, its answer statistics, and the peers with equal or similar work."""

    name: str
    metric: str
    estimates: Sequence[str]
    settings: Mapping[str, Any]
    peers: Sequence[Peer] = field(default_factory=list)


def costs(runs: Sequence[Run], works: Sequence[Work], rows: int) -> str:
    """Return CPU seconds, ratios and memory at ``rows`` rows.

    Peers run with fewer rows compare all pairs, so their time is extrapolated quadratically.
    """
    lines = []
    for work in works:
        here = found(runs, work, "here", rows)
        ours = [work.name, seconds(here["cpu"]), seconds(here["preparing"]), megabytes(here)]
        if not work.peers:
            lines.append([*ours, "no peer run", "", "", "", ""])
        for peer in work.peers:
            at = max(size for size in peer.sizes if size <= rows)
            run = found(runs, work, peer.name, at)
            if "error" in run:
                lines.append([*ours, peer.name, run["error"], "", "", ""])
                continue
            theirs = run["cpu"] * (rows / at) ** 2
            note = f" (extrapolated from {at:,} rows)" if at < rows else ""
            ratios = [
                f"{theirs / cpu:,.0f}" for cpu in (here["cpu"], here["cpu"] + here["preparing"])
            ]
            lines.append([*ours, peer.name, seconds(theirs) + note, megabytes(run), *ratios])
    head = [
        "work",
        "here, CPU s",
        "preparing, CPU s",
        "here, MB",
        "peer",
        "peer, CPU s",
        "peer, MB",
        "ratio",
    ]
    return f"{rows:,} rows\n\n" + table([*head, "ratio with preparing"], lines)


def growth(runs: Sequence[Run], works: Sequence[Work], sizes: Sequence[int]) -> str:
    """Return CPU seconds and peak memory of each side at each size, and the maximum compilation
    time.
    """
    lines = []
    for work in works:
        for side in ("here", *(peer.name for peer in work.peers)):
            every = [found(runs, work, side, rows) for rows in sizes]
            compiled = max(
                (run["compiling"] for run in every if "compiling" in run), default=math.nan
            )
            lines.append([work.name, side, *map(cell, every), seconds(compiled)])
    return "CPU s, peak MB\n\n" + table(
        ["work", "side", *(f"{rows:,}" for rows in sizes), "compiling, CPU s"], lines
    )


def answers(runs: Sequence[Run], works: Sequence[Work], releases: Sequence[str]) -> str:
    """Return the results of each side per release."""
    lines = []
    for work in works:
        asked = dict.fromkeys(peer.answers_at for peer in work.peers)
        for rows in asked:
            for side in ("here", *(peer.name for peer in work.peers if peer.answers_at == rows)):
                every = [found(runs, work, side, rows, release) for release in releases]
                lines.append([work.name, f"{rows:,}", side, *map(answer, every)])
    return table(["work", "rows", "side", *releases], lines)


def found(runs: Sequence[Run], work: Work, side: str, rows: int, release: str = "honest") -> Run:
    """Return the requested measurement, empty if it was not made."""
    key = (work.name, side, rows, release)
    return next(
        (run for run in runs if (run["work"], run["side"], run["rows"], run["release"]) == key), {}
    )


def cell(run: Run) -> str:
    """Format CPU seconds and memory of a run, or the reason why there are none."""
    return run.get("error", "") if "cpu" not in run else f"{seconds(run['cpu'])}, {megabytes(run)}"


def answer(run: Run) -> str:
    """Format every statistic with its interval."""
    said = []
    for name, (value, *ends) in run.get("answer", {}).items():
        interval = f" [{', '.join(f'{end:.2f}' for end in ends)}]" if ends else ""
        said.append(f"{name} {value:.2f}{interval}")
    return run.get("error", "; ".join(said))


def seconds(value: float) -> str:
    """Format CPU seconds with significant digits."""
    return "" if math.isnan(value) else f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def megabytes(run: Run) -> str:
    """Format peak memory."""
    return f"{run['mb']:,.0f}"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(
        "| " + " | ".join(str(text).replace("|", "\\|") for text in row) + " |" for row in rows
    )
