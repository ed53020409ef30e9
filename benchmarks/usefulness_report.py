"""Report of the study of usefulness: a table of Markdown per measure, and the cells in which a peer
is better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
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
        values: Value of each seed by generator.
    """

    section: Section
    name: str
    values: dict[str, dict[int, float]] = field(default_factory=dict)

    def mean(self, generator: str, seeds: Collection[int] | None = None) -> float:
        """Return the mean of the seeds, all of them by default."""
        values = self.values[generator]
        return float(np.mean([values[seed] for seed in values if seeds is None or seed in seeds]))

    def text(self, generator: str, seeds: Collection[int] | None = None) -> str:
        """Return the mean as text, "-" without values."""
        if generator not in self.values:
            return "-"
        return f"{self.mean(generator, seeds):.{self.section.decimals}f}"

    def common_seeds(self, generator: str, other: str) -> set[int]:
        """Return the seeds of which both generators have values."""
        return set(self.values.get(generator, ())) & set(self.values.get(other, ()))

    def lead(self, generator: str, other: str) -> float:
        """Return by how much ``generator`` is better than ``other``, NaN without common seeds.

        An attack below chance counts as chance.
        """
        seeds = self.common_seeds(generator, other)
        if not seeds:
            return float("nan")
        mean = self.mean(generator, seeds)
        other_mean = self.mean(other, seeds)
        if self.section.is_higher_better:
            return mean - other_mean
        return max(other_mean, 0.0) - max(mean, 0.0)

    def better_peers(self, generator: str, peers: Iterable[str]) -> list[str]:
        """Return the peers that are better than ``generator`` beyond the tolerance, best first."""
        better = [peer for peer in peers if self.lead(peer, generator) > self.section.tolerance]
        return sorted(better, key=lambda peer: self.lead(generator, peer))


def add_line(columns: dict[tuple[Section, str], Column], line: Line) -> None:
    """Add the measures of one release to the columns."""

    def add(section: Section, name: str, value: float) -> None:
        column = columns.setdefault((section, name), Column(section, name))
        column.values.setdefault(line["generator"], {})[line["seed"]] = value

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


def section_text(
    section: Section, columns: Sequence[Column], generators: Sequence[str], peers: Sequence[str]
) -> str:
    """Return the table of a section, with our cells in bold if a peer is better."""
    records = [
        record(["generator", *(column.name for column in columns)]),
        "|" + "---|" * (len(columns) + 1),
    ]
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
    return "\n".join([f"## {section.title}", "", *records])


def behind_text(columns: Sequence[Column], generator: str, peers: Sequence[str]) -> str:
    """Return a line with the cells in which a peer is better than ``generator``."""
    compared = [column for column in columns if generator in column.values]
    worse = []
    for column in compared:
        better = column.better_peers(generator, peers)
        if not better:
            continue
        best = better[0]
        seeds = column.common_seeds(generator, best)
        worse.append(
            f"{column.name} {column.text(generator, seeds)} ({best}: {column.text(best, seeds)})"
        )
    names = "; ".join(worse) or "none"
    return f"{len(worse)} of {len(compared)}: {names}"


def splits_text(measured: Sequence[Line], generators: Sequence[str]) -> str:
    """Return the introduction, with the numbers of measured releases."""
    counts = Counter(line["generator"] for line in measured)
    names = ", ".join(f"{generator}: {counts[generator]}" for generator in generators)
    introduction = (
        "Cells are means of all splits of a generator. Bold: a peer is better in the splits that"
        " both have."
    )
    return f"{introduction} Releases: {names}."


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
    parts = [splits_text(measured, generators)]
    behind = []
    for section in SECTIONS:
        of_section = [column for column in columns if column.section == section]
        if not of_section:
            continue
        parts.append(section_text(section, of_section, generators, peers))
        for generator in filter(is_ours, generators):
            behind.append(
                f"- {section.title}, {generator}: {behind_text(of_section, generator, peers)}"
            )
    parts.append("\n".join(["## Cells in which a peer is better", "", *behind]))
    failed = [line for line in found if "error" in line]
    if failed:
        failures = [
            f"- {line['table']}, {line['generator']}, seed {line['seed']}: {line['error']}"
            for line in failed
        ]
        parts.append("\n".join(["## Failures", "", *failures]))
    return "\n\n".join(parts) + "\n"
