"""A table as whole numbers from 0 on and as codes: the form in which a language model of rows reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.errors import InputError
from privacy_assets.tables.coding import Coding
from privacy_assets.tables.column import Column
from privacy_assets.tables.schema import ColumnSchema, TableSchema
from privacy_assets.tables.table import Table

_DAY = 86_400_000_000
_TIMES = (_DAY, 3_600_000_000, 60_000_000, 1_000_000, 1_000, 1)  # microseconds
_EXACT, _SHORT = 9, 6  # decimal digits of a span: as far as values have that many, and otherwise


@dataclass(frozen=True, slots=True)
class Grid:
    """The places ``(low + k) / 10**decimals`` of a number, k = 0, 1, ...; of a datetime ``(low + k) * unit`` in µs.

    ``gaps``: values are missing.
    """

    low: int
    decimals: int = 0
    unit: int = 0
    gaps: bool = False

    @classmethod
    def of(cls, column: ColumnSchema, cells: np.ndarray) -> Grid | None:
        """The coarsest grid on which all ``cells`` lie, numbers of more digits rounded; None without any value."""
        gaps = bool(np.isnan(cells).any())
        cells = cells[~np.isnan(cells)]
        if not len(cells):
            return None
        if column.kind == "datetime":
            micros = np.rint(cells * _DAY).astype(np.int64)
            unit = next(unit for unit in _TIMES if not (micros % unit).any())
            return cls(int(micros.min() // unit), unit=unit, gaps=gaps)
        if column.kind == "integer":
            return cls(int(cells.min()), gaps=gaps)
        decimals = _decimals(cells)
        return cls(int(_scaled(cells, decimals).min()), decimals, gaps=gaps)

    def code(self, cells: np.ndarray) -> np.ndarray:
        """Float64 k of each cell, NaN where it is missing."""
        places = np.rint(cells * _DAY) // self.unit if self.unit else _scaled(cells, self.decimals)
        return places - self.low

    def cells(self, codes: np.ndarray) -> np.ndarray:
        """Inverse of :meth:`code`."""
        places = codes + self.low
        if self.unit:
            return places * self.unit / _DAY
        if self.decimals < 0:
            return places * 10.0**-self.decimals
        return np.round(places / 10.0**self.decimals, self.decimals)


@dataclass(frozen=True, eq=False)
class DigitCoding:
    """Columns ``c0``, ``c1``, ... in the order of the schema: numbers int64 from 0, or texts ``v<k>``.

    A number with gaps comes after a column ``c<i>m`` of its own, ``v1`` where it is missing; it is 0 there.
    What stands in no ``grids`` (None) is a category of :class:`Coding`, missing one of its codes; so is a number of
    which no value is known. Numbers keep nine digits where all have no more, else six digits of their span; whole
    numbers and times are exact up to 2**53.
    """

    coding: Coding
    grids: tuple[Grid | None, ...]

    @classmethod
    def fit(cls, table: Table) -> DigitCoding:
        """Know the values of a table."""
        coding = Coding.fit([table], table.schema)
        cells = coding.code(table)
        numbers = zip(table.schema.columns, coding.is_number, cells, strict=True)
        return cls(coding, tuple(Grid.of(column, row) if number else None for column, number, row in numbers))

    def code(self, table: Table) -> pd.DataFrame:
        """Codes of a table; of a category that is not known, those of a missing one."""
        coded: dict[str, Any] = {}
        for place, (grid, cells) in enumerate(zip(self.grids, self.coding.code(table), strict=True)):
            if grid is not None:
                if grid.gaps:
                    coded[f"c{place}m"] = pd.Series(np.where(np.isnan(cells), "v1", "v0"), dtype=object)
                coded[f"c{place}"] = pd.Series(np.nan_to_num(grid.code(cells)).astype(np.int64))
                continue
            codes = np.minimum(np.nan_to_num(cells), self._missing(place)).astype(np.int64)
            coded[f"c{place}"] = pd.Series([f"v{code}" for code in codes], dtype=object)
        return pd.DataFrame(coded)

    def table(self, frame: pd.DataFrame, *, where: str) -> Table:
        """Inverse of :meth:`code`; InputError for other columns and codes that there are not."""
        coded = Table.of(frame, self._schema(), where=where)
        cells = np.empty((len(self.grids), len(coded)))
        for place, grid in enumerate(self.grids):
            if grid is None:
                codes = _codes(coded[f"c{place}"], self._missing(place), where)
                cells[place] = np.nan if self.coding.is_number[place] else codes
                continue
            cells[place] = grid.cells(coded[f"c{place}"].floats())
            if grid.gaps:
                cells[place, _codes(coded[f"c{place}m"], 1, where) == 1] = np.nan
        return self.coding.table(cells)

    def to_json(self) -> dict[str, Any]:
        """Values of the private table, as JSON can hold them."""
        grids = [None if grid is None else [grid.low, grid.decimals, grid.unit, grid.gaps] for grid in self.grids]
        return {"values": self.coding.plain_values(), "grids": grids}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], schema: TableSchema) -> DigitCoding:
        """Inverse of :meth:`to_json`."""
        grids = tuple(None if grid is None else Grid(*grid) for grid in data["grids"])
        return cls(Coding.of_plain(schema, data["values"]), grids)

    def _missing(self, place: int) -> int:
        return len(self.coding.values[place] or ())

    def _schema(self) -> TableSchema:
        columns = []
        for place, grid in enumerate(self.grids):
            if grid is not None and grid.gaps:
                columns.append(ColumnSchema(f"c{place}m", "categorical", False, "object"))
            columns.append(ColumnSchema(f"c{place}", "categorical" if grid is None else "integer", False, "object"))
        return TableSchema(tuple(columns))


def _codes(texts: Column, last: int, where: str) -> np.ndarray:
    known = {f"v{code}": float(code) for code in range(last + 1)}
    codes = np.array([known.get(text, np.nan) for text in texts.objects()])
    bad = np.flatnonzero(np.isnan(codes))
    if len(bad):
        raise InputError("a code is not known", where=where, column=texts.name, row=int(bad[0]))
    return codes


def _decimals(cells: np.ndarray) -> int:
    """Decimal places that all values have, if the span then has at most nine digits; else those of six."""
    size = float(np.ptp(cells)) or float(np.abs(cells).max()) or 1.0
    digits = math.ceil(math.log10(size))
    for decimals in range(max(_EXACT - digits, 0) + 1):
        if digits <= _EXACT and np.array_equal(np.round(cells, decimals), cells):
            return decimals
    return _SHORT - digits


def _scaled(cells: np.ndarray, decimals: int) -> np.ndarray:
    return np.rint(cells * 10.0**decimals if decimals >= 0 else cells / 10.0**-decimals)
