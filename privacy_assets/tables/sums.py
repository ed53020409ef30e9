"""Columns that are the sum of two or three others in all real rows, such as ``total = net + tax``.

The threshold rule changes the values of each column on its own, so published rows do not add up.
Such a column can be dropped and computed after reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from privacy_assets.tables.column import Column, distinct_sorted, stacked_floats, values_at
from privacy_assets.tables.relations import differs_if_shuffled

_MAX_PARTS = 3
# of parts; wider tables have sums of two columns only, or none, see find_sums
_MAX_COMBINATIONS = 20_000
_FEW_ROWS = 64  # rows that rule out most combinations
_FIRST_ROWS = 500  # rows that rule out most of the others
_MIN_NONZERO = 3  # of these rows, because 0 = 0 + 0 rules out nothing
_TOLERANCE = 1e-12  # relative to the largest number of a row


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


def find_sums(columns: Sequence[Column], subject_codes: np.ndarray) -> list[Sum]:
    """Return the columns that are the sum of two or three others in all rows that have all of them.

    A sum must not hold by chance: if one of its parts were shuffled, at least 1 % of the rows, and
    at least 20, would change. At least 100 people must have all of its columns. With more than 50
    columns of numbers only sums of two columns are found, with more than 200 none, because the
    number of combinations grows fast.

    Args:
        columns: Columns of the stacked real tables, in the order of the table.
        subject_codes: Subject of each row, int64 (n,).

    Returns:
        At most one sum for each column, one of two columns if there is one.
    """
    numbers = [column for column in columns if column.kind in ("numeric", "integer")]
    if comb(len(numbers), 2) > _MAX_COMBINATIONS:
        return []
    sums = dict[str, Sum]()
    for total, parts in _possible_sums(numbers):
        if total.name in sums:
            continue
        if _is_sum(total, parts, subject_codes):
            names = [part.name for part in parts]
            sums[total.name] = Sum(total.name, tuple(names))
    in_order = []
    for column in numbers:
        if column.name in sums:
            in_order.append(sums[column.name])
    return in_order


def _possible_sums(numbers: Sequence[Column]) -> Iterator[tuple[Column, list[Column]]]:
    """Yield the totals and their parts that agree in a few rows, sums of two columns first.

    Args:
        numbers: Columns of numbers.
    """
    if not numbers:
        return
    n_nonzero = np.zeros(len(numbers[0]), dtype=np.int64)
    for column in numbers:
        n_nonzero += ~column.missing & (column.cells != 0)
    few_rows = np.argsort(-n_nonzero, kind="stable")[:_FEW_ROWS]
    cells = stacked_floats(numbers, few_rows)
    is_nonzero = ~np.isnan(cells) & (cells != 0)
    candidates = np.flatnonzero(is_nonzero.sum(axis=1) >= _MIN_NONZERO)
    for n_parts in range(2, _MAX_PARTS + 1):
        if comb(len(candidates), n_parts) > _MAX_COMBINATIONS:
            return
        listed = list(combinations(candidates, n_parts))
        parts = np.array(listed, dtype=np.int64).reshape(-1, n_parts)
        parts_cells = cells[parts]
        for total in candidates.tolist():
            adds_up = ~_differs(cells[total], parts_cells).any(axis=1)
            is_without_total = (parts != total).all(axis=1)
            for position in np.flatnonzero(adds_up & is_without_total):
                yield numbers[total], values_at(numbers, parts[position].tolist())


def _is_sum(total: Column, parts: Sequence[Column], subject_codes: np.ndarray) -> bool:
    """Return True if at least 100 people have all columns, and the parts add up to the total in
    their rows.
    """
    for rows in (slice(_FIRST_ROWS), slice(None)):
        total_cells = total.take(rows).floats()
        parts_cells = stacked_floats(parts, rows)
        if _differs(total_cells, parts_cells).any():
            return False
    has_all = ~np.isnan(total_cells + parts_cells.sum(axis=0))
    n_subjects = len(distinct_sorted(subject_codes[has_all]))
    return all(differs_if_shuffled(part[has_all], n_subjects) for part in parts_cells)


def _differs(total: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Return True where parts do not add up to the total. Missing values do not differ.

    Args:
        total: Numbers, float64 (rows,).
        parts: Numbers of the parts, float64 (..., parts, rows).
    """
    largest = np.maximum(np.abs(parts).max(axis=-2), np.abs(total))
    return np.asarray(np.abs(total - parts.sum(axis=-2)) > _TOLERANCE * largest)
