"""A column of a table as numpy codes or numbers; pandas series are created on request.

Cells by kind: categorical and boolean as int8 to int32 positions in the sorted ``values``, missing
-1; numeric as float64, missing NaN; integer as int64 and datetime as int64 microseconds since 1970
(UTC), missing :data:`MISSING`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.tables.arrays import mapped, mapped_concatenate, mapped_empty, mapped_take
from privacy_assets.tables.schema import Kind

MISSING = int(np.iinfo(np.int64).min)  # a missing integer or time; not a valid value
DAY = 86_400e6  # microseconds
_TRUTH = (False, True)


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
        """Create a categorical or boolean column of positions (n,) in its sorted ``values``; -1 is
        missing.
        """
        small = next(
            dtype for dtype in (np.int8, np.int16, np.int32) if len(values) <= np.iinfo(dtype).max
        )
        return cls(name, kind, mapped(codes.astype(small, copy=False)), tuple(values))

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def missing(self) -> np.ndarray:
        """True for cells without a value, shape (n,)."""
        if self.values is not None:
            return np.asarray(self.cells < 0)
        return np.isnan(self.cells) if self.kind == "numeric" else np.asarray(self.cells == MISSING)

    def floats(self) -> np.ndarray:
        """Return numbers, dates in days since 1970, or codes as float64 (n,), missing as NaN;
        rounded beyond 2**53.
        """
        if self.kind == "numeric":
            return self.cells
        floats = self.cells.astype(np.float64)
        floats[self.missing] = np.nan
        return floats / DAY if self.kind == "datetime" else floats

    def compact(self) -> Column:
        """Return the column without values that no row has."""
        if self.kind != "categorical":
            return self
        (ranks,), values = ranked([self])
        return Column.of_codes(self.name, self.kind, ranks, values.objects())

    def present(self) -> Column:
        """Return the non-missing cells in order."""
        missing = self.missing
        return self.take(~missing) if missing.any() else self

    def distinct(self) -> Column:
        """Return the distinct non-missing values, ascending."""
        return replace(self, cells=distinct_sorted(self.present().cells))

    def take(self, rows: np.ndarray | slice) -> Column:
        """Select cells by position, slice or mask (n,)."""
        return replace(self, cells=mapped_take(self.cells, rows))

    def take_or_missing(self, rows: np.ndarray) -> Column:
        """Select cells by position (n,); a position of -1 gives a missing cell."""
        nothing = -1 if self.values is not None else np.nan if self.kind == "numeric" else MISSING
        return replace(
            self, cells=np.append(self.cells, np.array([nothing], dtype=self.cells.dtype))[rows]
        )

    def index_in(
        self, values: Sequence[Any], *, unknown: int = -1, missing: int = -1
    ) -> np.ndarray:
        """Return the position in ``values`` of each cell of a category or boolean, int32 (n,).

        Other values map to ``unknown``, missing cells to ``missing``.
        """
        place = {value: at for at, value in enumerate(values)}
        return looked_up(
            [place.get(value, unknown) for value in self.values or ()], self.cells, missing
        )

    def where(self, keep: np.ndarray, other: Column) -> Column:
        """Return this column's cells where ``keep`` (n,) is true, and those of ``other``
        elsewhere.
        """
        first, second = of_one_vocabulary([self, other])
        return replace(first, cells=np.where(keep, first.cells, second.cells))

    def equals(self, other: Column) -> bool:
        """Return True if both contain the same values in the same order; missing equals missing."""
        first, second = of_one_vocabulary([self, other])
        return np.array_equal(first.cells, second.cells, equal_nan=self.kind == "numeric")

    def objects(self) -> list[Any]:
        """Return the values (n,) as str, bool, float, int or Timestamp, missing as None."""
        if self.values is not None:
            known = [*self.values, None]  # -1, missing, selects the last
            return [known[code] for code in self.cells.tolist()]
        values = self.series().tolist()
        return [
            None if gone else value
            for value, gone in zip(values, self.missing.tolist(), strict=True)
        ]

    def series(self) -> pd.Series:
        """Return a pandas column: float64, Int64, object of str and None, boolean, or
        datetime64[us].
        """
        if self.kind == "categorical":
            texts = np.array([*(self.values or ()), None], dtype=object)[self.cells]
            return pd.Series(texts, name=self.name, dtype=object)
        if self.kind == "boolean":
            return pd.Series(pd.arrays.BooleanArray(self.cells == 1, self.missing), name=self.name)
        if self.kind == "integer":
            missing = self.missing
            return pd.Series(
                pd.arrays.IntegerArray(np.where(missing, 0, self.cells), missing), name=self.name
            )
        cells = self.cells.view("datetime64[us]") if self.kind == "datetime" else self.cells
        return pd.Series(cells, name=self.name)


def distinct_sorted(values: np.ndarray) -> np.ndarray:
    """Return the distinct values of an array (n,), ascending. For a million numbers, np.unique is
    ten times slower.
    """
    in_order = np.sort(values)
    return in_order[
        np.append(np.ones(min(len(in_order), 1), dtype=bool), in_order[1:] != in_order[:-1])
    ]


def of_one_vocabulary(columns: Sequence[Column]) -> list[Column]:
    """Convert a column of several tables to common ``values``, so that equal cells are equal
    values.
    """
    first = columns[0].values
    if first is None or all(column.values is first or column.values == first for column in columns):
        return [replace(column, values=first) for column in columns]
    every = tuple(sorted(set().union(*(column.values or () for column in columns))))
    return [Column.of_codes(one.name, one.kind, one.index_in(every), every) for one in columns]


def looked_up(places: Sequence[int], codes: np.ndarray, missing: int = -1) -> np.ndarray:
    """Return ``places[code]`` of the codes (n,), and ``missing`` for -1; int32."""
    table = np.array([*places, missing], dtype=np.int32)
    out = mapped_empty(len(codes), np.int32)
    np.take(table, codes, out=out, mode="wrap")  # -1 selects the last
    return out


def stacked(columns: Sequence[Column]) -> Column:
    """Concatenate a column of several tables."""
    if len(columns) == 1:
        return columns[0]
    alike = of_one_vocabulary(columns)
    return replace(alike[0], cells=mapped_concatenate([column.cells for column in alike]))


def vocabulary(columns: Sequence[Column]) -> tuple[Any, ...]:
    """Return the distinct values of a column of several tables, ascending."""
    return tuple(stacked(columns).distinct().objects())


def ranked(columns: Sequence[Column]) -> tuple[list[np.ndarray], Column]:
    """Rank the values of a column of several tables.

    Returns int64 ranks per table, -1 for missing, and the distinct values, ascending. Equal values
    have equal ranks, and every rank occurs.
    """
    whole = stacked(columns)
    missing, ends = whole.missing, np.cumsum([len(column) for column in columns])[:-1]
    ranks = np.full(len(whole), -1, dtype=np.int64)
    if whole.values is not None:
        seen = np.bincount(whole.cells[~missing], minlength=len(whole.values)) > 0
        ranks = np.append(np.cumsum(seen) - 1, -1)[whole.cells]
        cells = np.flatnonzero(seen).astype(whole.cells.dtype)
    else:
        cells, ranks[~missing] = np.unique(whole.cells[~missing], return_inverse=True)
    return np.split(ranks, ends), replace(whole, cells=cells)


def row_ids(tables: Sequence[Mapping[str, Column]], names: Sequence[str]) -> list[np.ndarray]:
    """Return int64 ids of rows, equal if and only if two rows agree in all named columns (missing
    equals missing).

    Ids start at 0 and do not depend on the order of rows: they rank the rows lexicographically by
    column values.
    """
    lengths = [len(next(iter(table.values()))) if table else 0 for table in tables]
    ids = np.zeros(sum(lengths), dtype=np.int64)
    for name in names:
        ranks, values = ranked([table[name] for table in tables])
        ids = np.unique(ids * (len(values) + 1) + np.concatenate(ranks) + 1, return_inverse=True)[
            1
        ].astype(np.int64)
    return np.split(ids, np.cumsum(lengths)[:-1])
