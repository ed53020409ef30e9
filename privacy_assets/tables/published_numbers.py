"""Published values of numbers and times: each stands for a group of values that at least k subjects
of the real tables have.

A value that k subjects have is frequent, and a group of its own. The values between two frequent
ones are cut, in their order, into groups that at least k subjects have; a remainder that is too
small joins its nearer neighbor, which may be a frequent value. Each cell of a real or synthetic
table gets the value of the group in whose range it is, else of the group with the nearest range (a
tie: the lower one). A group with a frequent value is published as this value (with several: the
lowest), another one as the median of its distinct values (of two, the lower), rounded as far as it
stays between the smallest and the largest of them. Statistical offices call this univariate
microaggregation (Defays and Nanopoulos 1993).

If columns share their groups, a value is frequent if k subjects have it in each column that has it.

A group without a frequent value is not cut as soon as it has k subjects, but before k further
subjects, where the bits of two neighboring values differ most, which is at a round binary number.
So the limits of groups depend on nearby values only: otherwise, one more subject would move the
limits of all groups above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from privacy_assets.tables.arrays import mapped_empty
from privacy_assets.tables.column import MISSING, Column
from privacy_assets.tables.conversion import float_dtype, from_clock, to_clock
from privacy_assets.tables.schema import ColumnSchema

_BLOCK = 1 << 18  # cells that are replaced at a time
_DIGITS = 17  # significant digits that identify a float64
_EXACT_POWERS = np.array([float(f"1e{power}") for power in range(23)])  # 10.0 ** 23 is not exact
_EXACT = 2.0**51  # below this, a scaled number that is rounded to an integer is exact
_TIE = 1e-4  # distance from a tie of rounding within which a scaled number may have been a tie
_UNITS = ("Y", "M", "D", "h", "m", "s")


@dataclass(frozen=True, eq=False)
class ValueGroups:
    """Groups of neighboring values with the value that is published for each of them.

    The ends of the groups are exact values of single subjects, so this object must be kept as
    private as the table.

    Attributes:
        low: Smallest value of each group, ascending, float64 or int64 as in :class:`.Column`, shape
            (groups,).
        high: Largest value of each group, shape (groups,).
        published: Published value of each group, shape (groups,).
    """

    low: np.ndarray
    high: np.ndarray
    published: np.ndarray

    def __len__(self) -> int:
        return len(self.published)

    def groups_of(self, cells: np.ndarray) -> np.ndarray:
        """Return the group in whose range each cell is, else the one with the nearest range; int64
        (n,).

        Args:
            cells: Cells without missing ones, shape (n,). There is at least one group.
        """
        position = np.minimum(np.searchsorted(self.high, cells), len(self) - 1)
        below = np.maximum(position - 1, 0)
        is_between = cells < self.low[position]
        from_below = _distances(self.high[below], cells)
        from_above = _distances(cells, self.low[position])
        return np.where(is_between & (from_below <= from_above), below, position)

    def replace(self, cells: np.ndarray) -> np.ndarray:
        """Return the published value of each cell.

        Args:
            cells: Cells without missing ones, shape (n,). There is at least one group.

        Returns:
            Published values (n,) with the dtype of the cells.
        """
        published = mapped_empty(len(cells), cells.dtype)
        for start in range(0, len(cells), _BLOCK):
            block = cells[start : start + _BLOCK]
            published[start : start + _BLOCK] = self.published[self.groups_of(block)]
        return published

    def equals(self, groups: ValueGroups) -> bool:
        """Return True if both have the same groups and published values."""
        pairs = zip(self.arrays, groups.arrays, strict=True)
        return all(np.array_equal(first, second) for first, second in pairs)

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The arrays ``low``, ``high`` and ``published``, to be stored."""
        return self.low, self.high, self.published


@dataclass(frozen=True, eq=False)
class PresentCells:
    """Cells of a column of the real tables that are not missing.

    Attributes:
        cells: Numbers or times as in :class:`.Column`, shape (n,).
        subject_codes: Subject of each cell, int64 (n,).
    """

    cells: np.ndarray
    subject_codes: np.ndarray


def make_groups(
    parts: Sequence[PresentCells], schema: ColumnSchema, k: int, public: np.ndarray | None = None
) -> ValueGroups:
    """Make the groups of a column, or the groups that some columns share.

    Args:
        parts: Cells of each of the columns, which have the kind and dtype of ``schema``.
        schema: Schema of one of the columns.
        k: Minimum number of subjects. At least this many have a value of a group, in each column
            that has one.
        public: Values of a public list, which are groups of their own even if fewer subjects have
            them. None: there is no list.

    Returns:
        The groups; none if fewer than ``k`` subjects have a value.
    """
    from privacy_assets.tables._group_kernels import count_value_holders

    cells, subject_codes, columns = _stacked(parts, public)
    if len(cells) == 0:
        return ValueGroups(cells, cells, cells)
    values, ranks, order = _ranked(cells)
    subject_codes = subject_codes[order]
    columns = columns[order]
    n_subjects = int(subject_codes.max()) + 1
    n_columns = len(parts)
    n_holders = np.zeros((len(values), n_columns), dtype=np.int64)
    last_value = np.full((n_columns, n_subjects), -1, dtype=np.int64)
    is_real = subject_codes >= 0  # others are public values
    count_value_holders(
        ranks[is_real], columns[is_real], subject_codes[is_real], last_value, n_holders
    )
    is_frequent_or_absent = (n_holders >= k) | (n_holders == 0)
    is_frequent = is_frequent_or_absent.all(axis=1) & (n_holders > 0).any(axis=1)
    if public is not None:
        is_frequent |= np.isin(values, public)

    groups = _grouped(values, ranks, columns, subject_codes, is_frequent, k, n_columns)
    if groups is None:
        return ValueGroups(values[:0], values[:0], values[:0])
    return _value_groups(values, *groups, schema)


def _grouped(
    values: np.ndarray,
    ranks: np.ndarray,
    columns: np.ndarray,
    subject_codes: np.ndarray,
    is_frequent: np.ndarray,
    k: int,
    n_columns: int,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Cut distinct values into groups.

    Args:
        values: Distinct values, ascending, shape (v,).
        ranks: Position of the value of each cell, ascending, int64 (n,).
        columns: Column of each cell, int64 (n,).
        subject_codes: Subject of each cell, int64 (n,).
        is_frequent: True for values with a group of their own, bool (v,).
        k: Minimum number of subjects.
        n_columns: Number of columns.

    Returns:
        Position of the first value of each group, and of its frequent value or -1, both int64
        (groups,). None: all values together have too few subjects.
    """
    from privacy_assets.tables._group_kernels import cut_groups, join_groups

    most_groups = min(len(values), 2 * int(is_frequent.sum()) + 1 + len(ranks) // k)
    starts = np.empty(most_groups + 1, dtype=np.int64)
    is_complete = np.zeros(most_groups, dtype=bool)
    has_column = np.zeros((most_groups, n_columns), dtype=bool)
    counts = np.zeros((most_groups, n_columns), dtype=np.int64)
    members = np.empty((most_groups, n_columns, k), dtype=np.int64)
    first_cells = np.append(np.flatnonzero(np.diff(ranks, prepend=-1)), len(ranks))
    last_group = np.full(int(subject_codes.max()) + 1, -1, dtype=np.int64)
    n_groups = cut_groups(
        first_cells,
        columns,
        subject_codes,
        is_frequent,
        _jumps(values),
        last_group,
        starts,
        is_complete,
        has_column,
        counts,
        members,
    )
    starts = starts[:n_groups]
    frequent_values = np.where(is_frequent[starts], starts, -1)
    previous = np.arange(-1, n_groups - 1)
    following = np.arange(1, n_groups + 1)
    has_enough = join_groups(
        starts,
        _gaps(values),
        is_complete,
        has_column,
        counts,
        members,
        frequent_values,
        previous,
        following,
    )
    if not has_enough:
        return None
    remaining = np.flatnonzero(following)
    return starts[remaining], frequent_values[remaining]


def _stacked(
    parts: Sequence[PresentCells], public: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return cells, subjects and columns of all parts. Public values have the subject -1."""
    cells = []
    subject_codes = []
    columns = []
    for position, part in enumerate(parts):
        cells.append(part.cells)
        subject_codes.append(part.subject_codes)
        columns.append(np.full(len(part.cells), position, dtype=np.int64))
    if public is not None:
        cells.append(public)
        subject_codes.append(np.full(len(public), -1, dtype=np.int64))
        columns.append(np.zeros(len(public), dtype=np.int64))
    return np.concatenate(cells), np.concatenate(subject_codes), np.concatenate(columns)


def _ranked(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct values, the ranks of the sorted cells int64 (n,), and the order that
    sorts them.
    """
    order = np.argsort(cells, kind="stable")
    in_order = cells[order]
    is_new = np.append(True, in_order[1:] != in_order[:-1])
    ranks = np.cumsum(is_new) - 1
    return in_order[is_new], ranks, order


def _jumps(values: np.ndarray) -> np.ndarray:
    """Return the bits in which each value differs from the previous one, uint64 (n,), 0 for the
    first.

    Bits have the order of the values. Among neighboring values, the largest result is where a
    multiple of the largest power of two is crossed, and it occurs only once.
    """
    bits = values.view(np.int64)
    sign = np.int64(-(2**63))
    if values.dtype == np.float64:
        bits = np.where(bits < 0, ~bits, bits ^ sign)
    else:
        bits = bits ^ sign
    ordered = bits.view(np.uint64)
    return np.append(np.uint64(0), ordered[1:] ^ ordered[:-1])


def _gaps(values: np.ndarray) -> np.ndarray:
    """Return the distance of each value from the previous one in a monotone unit, uint64 (n,), 0
    for the first.
    """
    gaps = _distances(values[:-1], values[1:])
    # the bits of floats from 0 on have their order
    return np.append(np.uint64(0), gaps.view(np.uint64))


def _distances(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return ``high - low``, which is exact for integers: as uint64, if ``low`` is not larger."""
    if low.dtype == np.int64:
        return np.asarray(high.view(np.uint64) - low.view(np.uint64))
    with np.errstate(over="ignore"):
        return np.asarray(high - low)


def _value_groups(
    values: np.ndarray, starts: np.ndarray, frequent_values: np.ndarray, schema: ColumnSchema
) -> ValueGroups:
    """Return the groups with their published values.

    Args:
        values: Distinct values, ascending, shape (v,).
        starts: Position of the first value of each group, int64 (groups,).
        frequent_values: Position of the frequent value of each group, or -1, int64 (groups,).
        schema: Schema of a column.
    """
    ends = np.append(starts[1:], len(values))
    low = values[starts]
    high = values[ends - 1]
    medians = values[starts + (ends - starts - 1) // 2]
    has_frequent_value = frequent_values >= 0
    published = np.where(has_frequent_value, values[frequent_values], medians)
    rows = np.flatnonzero(~has_frequent_value)
    published[rows] = rounded_between(medians[rows], low[rows], high[rows], schema)
    return ValueGroups(low, high, published)


def rounded_between(
    values: np.ndarray, low: np.ndarray, high: np.ndarray, schema: ColumnSchema
) -> np.ndarray:
    """Round numbers and times as far as they stay between two bounds. Where no rounded one does,
    they are unchanged.

    Numbers are rounded to the fewest significant digits (half to even), times to the coarsest of
    year, month, day, hour, minute and second of the clock of their zone (the nearest start of one;
    a tie: the earlier one).

    Args:
        values: Cells of a column with the schema, shape (n,).
        low: Bounds in the same form, at most ``values``, shape (n,).
        high: Bounds in the same form, at least ``values``, shape (n,).
        schema: Schema of the column.

    Returns:
        Rounded cells (n,). Integers stay integers, and floats have the precision of the dtype.
    """
    rounded = values.copy()
    pending = np.arange(len(values))
    for candidates_of in _roundings(schema):
        if len(pending) == 0:
            break
        candidates = candidates_of(values[pending])
        is_between = (low[pending] <= candidates) & (candidates <= high[pending])
        rounded[pending[is_between]] = candidates[is_between]
        pending = pending[~is_between]
    return rounded


def _roundings(schema: ColumnSchema) -> Iterator[Callable[[np.ndarray], np.ndarray]]:
    """Yield the functions that round cells, from the coarsest to the finest."""
    if schema.kind == "datetime":
        for unit in _UNITS:
            yield partial(_nearest_start, unit=unit, schema=schema)
    elif schema.kind == "integer":
        for digits in range(1, 20):
            yield partial(_rounded_integers, digits=digits)
    else:
        dtype = float_dtype(schema.dtype)
        for digits in range(1, _DIGITS + 1):
            yield partial(_rounded_floats, digits=digits, dtype=dtype)


def _nearest_start(values: np.ndarray, unit: str, schema: ColumnSchema) -> np.ndarray:
    """Return the start of a year, month, ... that is nearest to each time, as int64 microseconds
    (n,).
    """
    times = Column(schema.name, "datetime", values)
    if schema.is_zoned:
        times = to_clock(times, schema)
    clock = times.cells.view("datetime64[us]")
    period = clock.astype(f"datetime64[{unit}]")
    start = period.astype("datetime64[us]")
    end = (period + 1).astype("datetime64[us]")
    nearest = np.where(clock - start <= end - clock, start, end).view(np.int64)
    if not schema.is_zoned:
        return nearest
    return from_clock(Column(schema.name, "datetime", nearest), schema).cells


def _rounded_integers(values: np.ndarray, digits: int) -> np.ndarray:
    """Round integers int64 (n,) to significant digits, half to even."""
    magnitude = np.abs(values).astype(np.uint64)
    powers = 10 ** np.arange(1, 20, dtype=np.uint64)
    n_digits = np.searchsorted(powers, magnitude, side="right") + 1
    step = 10 ** np.maximum(n_digits - digits, 0).astype(np.uint64)
    quotient, remainder = np.divmod(magnitude, step)
    is_above_tie = remainder > step - remainder
    is_odd_tie = (remainder == step - remainder) & (quotient % 2 == 1)
    is_up = is_above_tie | is_odd_tie
    rounded = ((quotient + is_up) * step).view(np.int64)
    signed = np.where(values < 0, -rounded, rounded)
    is_too_large = rounded < 0
    return np.where(is_too_large, MISSING, signed)  # MISSING is below all bounds


def _rounded_floats(values: np.ndarray, digits: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Round floats (n,) to significant digits, half to even, in ``dtype``."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        exponents = np.floor(np.log10(np.abs(values)))
        decimals = np.where(values == 0, 0, digits - 1 - exponents).astype(np.int64)
        powers = _EXACT_POWERS[np.minimum(np.abs(decimals), len(_EXACT_POWERS) - 1)]
        scaled = np.where(decimals > 0, values * powers, values / powers)
        integers = np.rint(scaled)
        rounded = np.where(decimals > 0, integers / powers, integers * powers)
        fractions = np.abs(scaled - np.trunc(scaled))
        is_near_tie = np.abs(fractions - 0.5) < _TIE
        has_exact_power = np.abs(decimals) < len(_EXACT_POWERS)
        is_exact = has_exact_power & (np.abs(scaled) < _EXACT) & ~is_near_tie
        for row in np.flatnonzero(~is_exact):
            rounded[row] = float(f"{values[row]:.{digits - 1}e}")
        return np.asarray(rounded.astype(dtype).astype(np.float64))
