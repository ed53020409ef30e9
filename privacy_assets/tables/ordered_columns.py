"""Columns that share their levels, so that one of them is never above the other after the threshold rule, either.

Examples are ``paid <= amount`` and ``start <= end``. Two columns of the same kind and dtype share their levels if
a <= b in all real rows that have both (of at least 100 subjects), levels of their own would break this in at least one
row, and each of them keeps at least half of its levels. Without the last condition, accidental orders would destroy
columns. The pair that would break most rows comes first. A pair that joins others is judged for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from privacy_assets.tables.column import Column, distinct_sorted
from privacy_assets.tables.published_levels import Levels, PresentCells, make_levels
from privacy_assets.tables.schema import ColumnSchema

_MIN_PEOPLE = 100  # subjects with both values of an ordered pair
_MIN_KEPT = 0.5  # share of its own levels that a column keeps if it shares levels
_FIRST_ROWS = 200  # rows that rule out most pairs


@dataclass(frozen=True, eq=False)
class NumberColumn:
    """A column of numbers or times of the stacked real tables.

    Attributes:
        schema: Schema.
        column: Cells of all rows.
        people: Subject of each row, int64 (n,).
        levels: Levels of the column alone.
    """

    schema: ColumnSchema
    column: Column
    people: np.ndarray
    levels: Levels

    @classmethod
    def of(
        cls, schema: ColumnSchema, column: Column, people: np.ndarray, k: int, public: np.ndarray | None = None
    ) -> NumberColumn:
        """Create a column with its levels, see :func:`.published_levels.make_levels`."""
        present = _present(column, people)
        return cls(schema, column, people, make_levels([present], schema, k, public))

    @property
    def present(self) -> PresentCells:
        """Cells that are not missing."""
        return _present(self.column, self.people)

    def published(self) -> Column:
        """Return the column with the levels of the column alone. Missing values stay."""
        cells = self.column.cells.copy()
        is_present = ~self.column.missing
        cells[is_present] = self.levels.replace(cells[is_present])
        return replace(self.column, cells=cells)

    def n_levels(self, levels: Levels) -> int:
        """Return the number of groups of ``levels`` that have a value of this column."""
        groups = levels.groups_of(self.column.distinct().cells)
        return len(distinct_sorted(groups))


def _present(column: Column, people: np.ndarray) -> PresentCells:
    is_present = ~column.missing
    return PresentCells(column.cells[is_present], people[is_present])


class OrderedPair(NamedTuple):
    """Columns of which the first one is in no real row above the second one.

    Attributes:
        low: Name of the first column.
        high: Name of the second column.
        n_broken: Number of real rows in which the published value of ``low`` is above that of ``high``.
        n_rows: Number of real rows with both published values.
    """

    low: str
    high: str
    n_broken: int
    n_rows: int


class SharedLevels(NamedTuple):
    """Levels of the columns of a table.

    Attributes:
        levels: Levels by column.
        shared: Names of the columns that share their levels, in each set of such columns.
        ordered: Ordered pairs of columns.
    """

    levels: Mapping[str, Levels]
    shared: Sequence[tuple[str, ...]]
    ordered: Sequence[OrderedPair]


def share_levels(columns: Sequence[NumberColumn], k: int) -> SharedLevels:
    """Return the levels of columns, some of which share theirs.

    Args:
        columns: Columns of one table, with the same rows.
        k: Minimum number of subjects.
    """
    by_name = {column.schema.name: column for column in columns}
    levels = {name: column.levels for name, column in by_name.items()}
    ordered = _ordered_pairs(columns)
    published = {name: by_name[name].published() for pair in ordered for name in (pair.low, pair.high)}
    pairs = broken_pairs(ordered, published)
    sets: dict[str, tuple[str, ...]] = {name: (name,) for name in by_name}
    for pair in sorted(pairs, key=lambda pair: -pair.n_broken):
        if sets[pair.low] == sets[pair.high]:
            continue
        names = sets[pair.low] + sets[pair.high]
        members = [by_name[name] for name in names]
        joint = make_levels([member.present for member in members], members[0].schema, k)
        if all(member.n_levels(joint) >= _MIN_KEPT * len(member.levels) for member in members):
            sets |= dict.fromkeys(names, names)
            levels |= dict.fromkeys(names, joint)
    shared = [names for names in dict.fromkeys(sets.values()) if len(names) > 1]
    return SharedLevels(levels, shared, ordered)


def _ordered_pairs(columns: Sequence[NumberColumn]) -> list[OrderedPair]:
    """Return the pairs of columns of the same kind and dtype that have an order in all real rows with both."""
    by_form = dict[tuple[str, str], list[NumberColumn]]()
    for column in columns:
        if len(column.levels):
            by_form.setdefault((column.schema.kind, column.schema.dtype), []).append(column)
    pairs = []
    for alike in by_form.values():
        first_rows = np.array([column.column.take(slice(_FIRST_ROWS)).floats() for column in alike])
        for low, cells in zip(alike, first_rows, strict=True):
            is_possible = ~(cells > first_rows).any(axis=1)
            for i in np.flatnonzero(is_possible):
                if alike[i] is not low and _is_ordered(low, alike[i]):
                    pairs.append(OrderedPair(low.schema.name, alike[i].schema.name, 0, 0))
    return pairs


def _is_ordered(low: NumberColumn, high: NumberColumn) -> bool:
    has_both = ~(low.column.missing | high.column.missing)
    if (has_both & (low.column.cells > high.column.cells)).any():
        return False
    return len(distinct_sorted(low.people[has_both])) >= _MIN_PEOPLE


def broken_pairs(ordered: Sequence[OrderedPair], published: Mapping[str, Column]) -> list[OrderedPair]:
    """Return the ordered pairs that published values break in some rows, with the number of these rows.

    Args:
        ordered: Ordered pairs of columns.
        published: The columns of these pairs with published values.
    """
    broken = []
    for pair in ordered:
        low = published[pair.low]
        high = published[pair.high]
        has_both = ~(low.missing | high.missing)
        n_broken = int((has_both & (low.cells > high.cells)).sum())
        if n_broken:
            broken.append(pair._replace(n_broken=n_broken, n_rows=int(has_both.sum())))
    return broken
