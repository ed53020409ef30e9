"""Columns that are the sum of two or three others in all real rows, such as ``total = net + tax``.

The threshold rule changes the values of each column on its own, so published rows do not add up. Such a column can be
dropped and computed after reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from privacy_assets.tables.column import Column, distinct_sorted
from privacy_assets.tables.relations import differs_if_shuffled

_MOST_PARTS = 3
_MOST_COMBINATIONS = 20_000  # of parts; wider tables have sums of two columns only, or none, see find_sums
_FEW_ROWS = 64  # rows that rule out most combinations
_FIRST_ROWS = 500  # rows that rule out most of the others
_MIN_NONZERO = 3  # of these rows, because 0 = 0 + 0 rules out nothing
_TOLERANCE = 1e-9  # relative to the largest number of a row


@dataclass(frozen=True, slots=True)
class Sum:
    """A column that is the sum of others.

    Attributes:
        total: The column.
        parts: The other columns, in the order of the table.
    """

    total: str
    parts: tuple[str, ...]

    @property
    def name(self) -> str:
        """The sum as a formula: ``total = net + tax``."""
        return f"{self.total} = {' + '.join(self.parts)}"


def find_sums(columns: Sequence[Column], people: np.ndarray) -> list[Sum]:
    """Return the columns that are the sum of two or three others in all rows that have all of them.

    A sum must not hold by chance: if one of its parts were shuffled, at least 1 % of the rows, and at least 20, would
    change. At least 100 people must have all of its columns. With more than 50 columns of numbers only sums of two
    columns are found, with more than 200 none, because the number of combinations grows fast.

    Args:
        columns: Columns of the stacked real tables, in the order of the table.
        people: Subject of each row, int64 (n,).

    Returns:
        At most one sum for each column, one of two columns if there is one.
    """
    numbers = [column for column in columns if column.kind in ("numeric", "integer")]
    if len(numbers) < 3:
        return []
    cells = np.array([column.floats() for column in numbers])
    names = [column.name for column in numbers]
    sums = dict[str, Sum]()
    for total, parts in _possible_sums(cells):
        name = names[total]
        if name not in sums and _is_sum(cells[total], cells[list(parts)], people):
            sums[name] = Sum(name, tuple(names[part] for part in parts))
    return [sums[name] for name in names if name in sums]


def _possible_sums(cells: np.ndarray) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the totals and their parts that agree in the first rows, sums of two columns first.

    Args:
        cells: Numbers of the columns, float64 (columns, rows).
    """
    is_nonzero = ~np.isnan(cells) & (cells != 0)
    few_rows = cells[:, np.argsort(-is_nonzero.sum(axis=0), kind="stable")[:_FEW_ROWS]]
    n_nonzero = (~np.isnan(few_rows) & (few_rows != 0)).sum(axis=1)
    candidates = np.flatnonzero(n_nonzero >= _MIN_NONZERO)
    for n_parts in range(2, _MOST_PARTS + 1):
        if comb(len(candidates), n_parts) > _MOST_COMBINATIONS:
            return
        parts = np.array(list(combinations(candidates, n_parts)), dtype=np.int64).reshape(-1, n_parts)
        sums = few_rows[parts].sum(axis=1)
        for total in candidates.tolist():
            is_possible = ~_differs(few_rows[total], sums).any(axis=1) & (parts != total).all(axis=1)
            for position in np.flatnonzero(is_possible):
                yield total, tuple(parts[position].tolist())


def _is_sum(total: np.ndarray, parts: np.ndarray, people: np.ndarray) -> bool:
    """Return True if at least 100 people have all columns, and the parts add up to the total in their rows."""
    if _differs(total[:_FIRST_ROWS], parts[:, :_FIRST_ROWS].sum(axis=0)).any():
        return False
    sums = parts.sum(axis=0)
    if _differs(total, sums).any():
        return False
    has_all = ~np.isnan(total + sums)
    n_people = len(distinct_sorted(people[has_all]))
    return all(differs_if_shuffled(part[has_all], n_people) for part in parts)


def _differs(total: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Return True where a sum is not the total. Missing values do not differ."""
    size = np.maximum(np.abs(total), np.abs(sums))
    return np.asarray(np.abs(total - sums) > _TOLERANCE * np.maximum(size, 1.0))
