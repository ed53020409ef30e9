"""A column of a table as numpy codes or numbers; pandas series are created on request.

Cells by kind: categorical and boolean as int8 to int32 positions in the sorted ``values``, missing
-1; numeric as float64, missing NaN; integer as int64 and datetime as int64 microseconds since 1970
(UTC), missing :data:`MISSING`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import pandas as pd

from privacy_assets.tables.arrays import mapped, mapped_concatenate, mapped_empty, mapped_take
from privacy_assets.tables.schema import Kind

MISSING = int(np.iinfo(np.int64).min)  # a missing integer or time; not a valid value
DAY = 86_400e6  # microseconds
_TRUTH = (False, True)
_Value = TypeVar("_Value")


@dataclass(frozen=True, eq=False)
class Column:
    """A column.

    Attributes:
        name: Name.
        kind: Kind.
        cells: Numbers, or positions in ``values``; shape (n,).
        values: Sorted values of a category or boolean, else None. It may contain values that no row
            has: tables of one release share it, so that equal cells are equal values.
    """

    name: str
    kind: Kind
    cells: np.ndarray
    values: tuple[Any, ...] | None = None

    @classmethod
    def of_codes(
        cls, name: str, kind: Kind, codes: np.ndarray, values: Sequence[Any] = _TRUTH
    ) -> Column:
        """Create a categorical or boolean column.

        Args:
            name: Name.
            kind: "categorical" or "boolean".
            codes: Positions in ``values``, integers (n,); -1 is missing.
            values: Sorted values of a category, or False and True.
        """
        dtype = _code_dtype(len(values))
        return cls(name, kind, mapped(codes.astype(dtype, copy=False)), tuple(values))

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def missing(self) -> np.ndarray:
        """True for cells without a value, shape (n,)."""
        if self.values is not None:
            return np.asarray(self.cells < 0)
        if self.kind == "numeric":
            return np.isnan(self.cells)
        return np.asarray(self.cells == MISSING)

    def floats(self) -> np.ndarray:
        """Return numbers, dates in days since 1970, or codes as float64 (n,), missing as NaN;
        rounded beyond 2**53.
        """
        if self.kind == "numeric":
            return self.cells
        floats = self.cells.astype(np.float64)
        floats[self.missing] = np.nan
        if self.kind == "datetime":
            return floats / DAY
        return floats

    def compact(self) -> Column:
        """Return the column without values that no row has."""
        if self.kind != "categorical":
            return self
        (ranks,), values = ranked([self])
        return Column.of_codes(self.name, self.kind, ranks, values.objects())

    def present(self) -> Column:
        """Return the non-missing cells in order."""
        is_missing = self.missing
        if not is_missing.any():
            return self
        return self.take(~is_missing)

    def distinct(self) -> Column:
        """Return the distinct non-missing values, ascending."""
        return replace(self, cells=distinct_sorted(self.present().cells))

    def take(self, rows: np.ndarray | slice) -> Column:
        """Select cells.

        Args:
            rows: Positions (n,), a mask with the length of the column, or a slice.
        """
        return replace(self, cells=mapped_take(self.cells, rows))

    def take_or_missing(self, rows: np.ndarray) -> Column:
        """Select cells by position.

        Args:
            rows: Positions, int64 (n,). A position of -1 gives a missing cell.
        """
        missing_cell: float = MISSING
        if self.values is not None:
            missing_cell = -1
        elif self.kind == "numeric":
            missing_cell = np.nan
        last_cell = np.array([missing_cell], dtype=self.cells.dtype)
        return replace(self, cells=np.append(self.cells, last_cell)[rows])

    def index_in(
        self, values: Sequence[Any], *, unknown: int = -1, missing: int = -1
    ) -> np.ndarray:
        """Return the position in ``values`` of each cell of a category or boolean.

        Args:
            values: Values, in any order.
            unknown: Position of cells with another value.
            missing: Position of missing cells.

        Returns:
            Positions, int32 (n,).
        """
        positions = positions_in(values, self.values or (), unknown)
        return looked_up(positions, self.cells, missing)

    def where(self, keep: np.ndarray, replacement: Column) -> Column:
        """Return this column's cells where ``keep`` is true, and those of ``replacement``
        elsewhere.

        Args:
            keep: Bool (n,).
            replacement: Column of the same kind, with n cells.
        """
        first, second = of_one_vocabulary([self, replacement])
        return replace(first, cells=np.where(keep, first.cells, second.cells))

    def equals(self, column: Column) -> bool:
        """Return True if both contain the same values in the same order; missing equals missing."""
        first, second = of_one_vocabulary([self, column])
        return np.array_equal(first.cells, second.cells, equal_nan=self.kind == "numeric")

    def objects(self) -> list[Any]:
        """Return the values (n,) as str, bool, float, int or Timestamp, missing as None."""
        if self.values is not None:
            values = [*self.values, None]  # -1, missing, selects the last
            return values_at(values, self.cells.tolist())
        objects: list[Any] = self.series().tolist()
        for i in np.flatnonzero(self.missing):
            objects[i] = None
        return objects

    def series(self) -> pd.Series:
        """Return a pandas column: float64, Int64, object of str and None, boolean, or
        datetime64[us].
        """
        if self.kind == "categorical":
            texts = np.array([*(self.values or ()), None], dtype=object)[self.cells]
            return pd.Series(texts, name=self.name, dtype=object)
        if self.kind == "boolean":
            booleans = pd.arrays.BooleanArray(self.cells == 1, self.missing)
            return pd.Series(booleans, name=self.name)
        if self.kind == "integer":
            is_missing = self.missing
            integers = pd.arrays.IntegerArray(np.where(is_missing, 0, self.cells), is_missing)
            return pd.Series(integers, name=self.name)
        if self.kind == "datetime":
            return pd.Series(self.cells.view("datetime64[us]"), name=self.name)
        return pd.Series(self.cells, name=self.name)


def _code_dtype(n_values: int) -> type[np.signedinteger[Any]]:
    """Return the smallest dtype of codes."""
    if n_values <= np.iinfo(np.int8).max:
        return np.int8
    if n_values <= np.iinfo(np.int16).max:
        return np.int16
    return np.int32


def distinct_sorted(values: np.ndarray) -> np.ndarray:
    """Return the distinct values of an array, ascending. For a million numbers, np.unique is ten
    times slower.

    Args:
        values: Values without NaN, shape (n,).
    """
    in_order = np.sort(values)
    is_first = np.ones(len(in_order), dtype=bool)
    np.not_equal(in_order[1:], in_order[:-1], out=is_first[1:])
    return in_order[is_first]


class _Columns(Protocol):
    """A table, or a mapping of columns by name."""

    def __getitem__(self, name: str, /) -> Column: ...


def of_one_vocabulary(columns: Sequence[Column]) -> list[Column]:
    """Convert a column of several tables to common ``values``, so that equal cells are equal
    values.

    Args:
        columns: The column in each table, of one kind. There is at least one.

    Returns:
        The converted columns. Numbers and times are unchanged.
    """
    first = columns[0].values
    if first is None or all(column.values is first or column.values == first for column in columns):
        return [replace(column, values=first) for column in columns]
    distinct = set[Any]()
    for column in columns:
        distinct.update(column.values or ())
    values = tuple(sorted(distinct))
    converted = []
    for column in columns:
        codes = column.index_in(values)
        converted.append(Column.of_codes(column.name, column.kind, codes, values))
    return converted


def columns_named(name: str, tables: Iterable[_Columns]) -> list[Column]:
    """Return a column of each table."""
    return [table[name] for table in tables]


def columns_by_name(columns: Iterable[Column]) -> dict[str, Column]:
    """Return the columns by name."""
    return {column.name: column for column in columns}


def stacked_floats(columns: Iterable[Column], rows: np.ndarray | slice) -> np.ndarray:
    """Return some rows of columns of numbers.

    Args:
        columns: Columns of one table.
        rows: Positions (n,), a mask with the length of the columns, or a slice.

    Returns:
        Numbers as :meth:`Column.floats`, float64 (columns, n).
    """
    return np.array([column.take(rows).floats() for column in columns])


def have_missing(columns: Iterable[Column]) -> bool:
    """Return True if a cell of a column is missing.

    Args:
        columns: The column in each table.
    """
    return any(column.missing.any() for column in columns)


def values_at(values: Sequence[_Value], positions: Iterable[int]) -> list[_Value]:
    """Return the value at each position.

    Args:
        values: Values.
        positions: Positions in ``values``, in any order; -1 is the last one.
    """
    return [values[position] for position in positions]


def position_of_each(values: Iterable[Any]) -> dict[Any, int]:
    """Return the position of each value. Of equal values, the last position counts."""
    return {value: position for position, value in enumerate(values)}


def positions_in(values: Iterable[Any], searched: Iterable[Any], unknown: int = -1) -> list[int]:
    """Return the position in ``values`` of each searched value.

    Args:
        values: Values.
        searched: Values to be looked up.
        unknown: Position of a searched value that is not in ``values``.
    """
    position_of = position_of_each(values)
    return [position_of.get(value, unknown) for value in searched]


def looked_up(positions: Sequence[int], codes: np.ndarray, missing: int = -1) -> np.ndarray:
    """Return the position of each code.

    Args:
        positions: Position of code 0, 1, ...
        codes: Integers (n,); -1 is missing.
        missing: Position of -1.

    Returns:
        Positions, int32 (n,).
    """
    lookup = np.array([*positions, missing], dtype=np.int32)
    out = mapped_empty(len(codes), np.int32)
    np.take(lookup, codes, out=out, mode="wrap")  # -1 selects the last
    return out


def stacked(columns: Sequence[Column]) -> Column:
    """Concatenate a column of several tables.

    Args:
        columns: The column in each table, of one kind. There is at least one.
    """
    if len(columns) == 1:
        return columns[0]
    alike = of_one_vocabulary(columns)
    return replace(alike[0], cells=mapped_concatenate([column.cells for column in alike]))


def vocabulary(columns: Sequence[Column]) -> tuple[Any, ...]:
    """Return the distinct values of a column of several tables, ascending.

    Args:
        columns: The column in each table, of one kind. There is at least one.

    Returns:
        Values as :meth:`Column.objects`, without missing ones.
    """
    return tuple(stacked(columns).distinct().objects())


def ranked(columns: Sequence[Column]) -> tuple[list[np.ndarray], Column]:
    """Rank the values of a column of several tables.

    Args:
        columns: The column in each table.

    Returns:
        Ranks of each table, int64 (n,), -1 for missing; and the distinct values, ascending. Equal
        values have equal ranks, and every rank occurs.
    """
    column = stacked(columns)
    is_present = ~column.missing
    ranks = np.full(len(column), -1, dtype=np.int64)
    if column.values is not None:
        is_used = np.bincount(column.cells[is_present], minlength=len(column.values)) > 0
        rank_of_code = np.cumsum(is_used) - 1
        ranks = np.append(rank_of_code, -1)[column.cells]
        distinct = np.flatnonzero(is_used).astype(column.cells.dtype)
    else:
        distinct, ranks[is_present] = np.unique(column.cells[is_present], return_inverse=True)
    ends = np.cumsum(list(map(len, columns)))[:-1]
    return np.split(ranks, ends), replace(column, cells=distinct)


def row_ids(tables: Sequence[Mapping[str, Column]], names: Sequence[str]) -> list[np.ndarray]:
    """Return int64 ids of rows, equal if and only if two rows agree in all named columns (missing
    equals missing).

    Ids start at 0 and do not depend on the order of rows: they rank the rows lexicographically by
    column values.

    Args:
        tables: Columns of each table, by name.
        names: Names of the compared columns.

    Returns:
        Ids of the rows of each table, int64 (n,).
    """
    lengths = []
    for table in tables:
        columns = list(table.values())
        lengths.append(len(columns[0]) if columns else 0)
    ids = np.zeros(sum(lengths), dtype=np.int64)
    for name in names:
        ranks, values = ranked(columns_named(name, tables))
        pairs = ids * (len(values) + 1) + np.concatenate(ranks) + 1
        _, codes = np.unique(pairs, return_inverse=True)
        ids = codes.astype(np.int64)
    return np.split(ids, np.cumsum(lengths)[:-1])


def count_changed(before: Column, after: Column) -> int:
    """Return the number of cells with a value that differ between two columns of the same rows.

    Args:
        before: Column whose missing cells are not counted.
        after: Column of the same kind and rows.
    """
    first, second = of_one_vocabulary([before, after])
    is_changed = (first.cells != second.cells) & ~first.missing
    return int(is_changed.sum())


def joint_codes(columns: Sequence[Column]) -> list[np.ndarray]:
    """Return the code of each row of some columns, such as the subjects of several tables. Equal
    values have one code.

    Args:
        columns: Columns of one kind.

    Returns:
        Codes from 0 on in the order of first occurrence, int64 (n,), for each column; none for no
        columns.
    """
    if not columns:
        return []
    ends = np.cumsum(list(map(len, columns)))[:-1]
    codes, _ = pd.factorize(stacked(columns).cells)
    return np.split(codes.astype(np.int64), ends)
