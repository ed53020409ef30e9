"""Report of the study of usefulness: a table of Markdown per measure, and the cells in which a peer is better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.usefulness_tables import TABLES

OUR_PREFIX = "ours"  # names of our generators begin with it, in any state of the package
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Section:
    """Measure with a table in the report.

    Attributes:
        title: Heading.
        is_higher_better: False for shares of broken rows, attacks and costs.
        decimals: Number of decimals.
        tolerance: Difference up to which no generator is behind.
    """

    title: str
    is_higher_better: bool
    decimals: int
    tolerance: float


PAIR_TRENDS = Section("Pair trends with held-out rows", True, 3, 0.0005)
PAIR_TRENDS_TRAIN = Section("Pair trends with training rows", True, 3, 0.0005)
BROKEN = Section("Broken relations, % of rows", False, 1, 0.05)
PREDICTION = Section("Prediction of held-out rows, R2", True, 2, 0.005)
MEMBERSHIP = Section("Membership AUC beyond chance", False, 3, 0.01)
SECONDS = Section("CPU seconds", False, 1, 0.05)
SECTIONS = (PAIR_TRENDS, PAIR_TRENDS_TRAIN, BROKEN, PREDICTION, MEMBERSHIP, SECONDS)


@dataclass
class Column:
    """Column of a section.

    Attributes:
        section: Its measure.
        name: Name of a table, and of the relation or number.
        values: Values by generator, one a split.
    """

    section: Section
    name: str
    values: dict[str, list[float]] = field(default_factory=dict)

    def mean(self, generator: str) -> float:
        """Return the mean of all splits, NaN if there are none."""
        if generator not in self.values:
            return float("nan")
        return float(np.mean(self.values[generator]))

    def text(self, generator: str) -> str:
        """Return the mean as text, "-" if there is none."""
        mean = self.mean(generator)
        if np.isnan(mean):
            return "-"
        return f"{mean:.{self.section.decimals}f}"

    def lead(self, generator: str, other: str) -> float:
        """Return by how much ``generator`` is better than ``other``; an attack below chance counts as chance."""
        if self.section.is_higher_better:
            return self.mean(generator) - self.mean(other)
        return max(self.mean(other), 0.0) - max(self.mean(generator), 0.0)

    def better_peers(self, generator: str, peers: Iterable[str]) -> list[str]:
        """Return the peers that are better than ``generator`` beyond the tolerance, best first."""
        better = [peer for peer in peers if self.lead(peer, generator) > self.section.tolerance]
        return sorted(better, key=lambda peer: self.lead(generator, peer))


def add_line(columns: dict[tuple[Section, str], Column], line: Line) -> None:
    """Add the measures of one release to the columns."""

    def add(section: Section, name: str, value: float) -> None:
        column = columns.setdefault((section, name), Column(section, name))
        column.values.setdefault(line["generator"], []).append(value)

    table_name = line["table"]
    add(PAIR_TRENDS, table_name, line["pair_trends"])
    add(PAIR_TRENDS_TRAIN, table_name, line["pair_trends_train"])
    add(MEMBERSHIP, table_name, line["membership"])
    for relation, share in line["broken"].items():
        add(BROKEN, f"{table_name}: {relation}", 100 * share)
    target = TABLES[table_name].target
    if target is not None:
        add(PREDICTION, f"{table_name}: {target.title}", max(line["r2"], 0.0))
    if line["seconds"] is not None:
        add(SECONDS, table_name, line["seconds"])


def columns_of(measured: Iterable[Line]) -> list[Column]:
    """Return the columns of all sections, in the order of :data:`TABLES`."""
    columns: dict[tuple[Section, str], Column] = {}
    for line in measured:
        add_line(columns, line)
    table_names = list(TABLES)

    def position(column: Column) -> int:
        return table_names.index(column.name.partition(":")[0])

    return sorted(columns.values(), key=position)


def is_ours(generator: str) -> bool:
    """Return True for a generator of this package."""
    return generator.startswith(OUR_PREFIX)


def record(cells: Iterable[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def section_text(section: Section, columns: Sequence[Column], generators: Sequence[str], peers: Sequence[str]) -> str:
    """Return the table of a section, with our cells in bold if a peer is better."""
    records = [record(["generator", *(column.name for column in columns)]), "|" + "---|" * (len(columns) + 1)]
    for generator in generators:
        if not any(generator in column.values for column in columns):
            continue
        cells = [generator]
        for column in columns:
            text = column.text(generator)
            if is_ours(generator) and column.better_peers(generator, peers):
                text = f"**{text}**"
            cells.append(text)
        records.append(record(cells))
    return "\n".join([f"### {section.title}", "", *records])


def behind_text(columns: Sequence[Column], generator: str, peers: Sequence[str]) -> str:
    """Return a line with the cells in which a peer is better than ``generator``."""
    compared = [column for column in columns if generator in column.values]
    worse = []
    for column in compared:
        better = column.better_peers(generator, peers)
        if better:
            worse.append(f"{column.name} {column.text(generator)} ({better[0]}: {column.text(better[0])})")
    names = "; ".join(worse) or "none"
    return f"{len(worse)} of {len(compared)}: {names}"


def report_text(found: Sequence[Line], order: Sequence[str], peers: Sequence[str]) -> str:
    """Return the report.

    Args:
        found: Measured lines, and lines with an error.
        order: Generators in the order of the report. A state in brackets may follow the name.
        peers: Generators of other tools.
    """
    measured = [line for line in found if "error" not in line]
    columns = columns_of(measured)
    names = {line["generator"] for line in measured}
    generators = sorted(names, key=lambda name: (order.index(name.partition(" (")[0]), name))
    n_seeds = len({line["seed"] for line in measured})
    parts = [f"Means of {n_seeds} splits. Bold: a peer is better than ours."]
    behind = []
    for section in SECTIONS:
        of_section = [column for column in columns if column.section == section]
        if not of_section:
            continue
        parts.append(section_text(section, of_section, generators, peers))
        for generator in filter(is_ours, generators):
            behind.append(f"- {section.title}, {generator}: {behind_text(of_section, generator, peers)}")
    parts.append("\n".join(["### Cells in which a peer is better", "", *behind]))
    failed = [line for line in found if "error" in line]
    if failed:
        failures = [f"- {line['table']}, {line['generator']}, seed {line['seed']}: {line['error']}" for line in failed]
        parts.append("\n".join(["### Failures", "", *failures]))
    return "\n\n".join(parts) + "\n"
