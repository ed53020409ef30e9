"""Mixed tables as one matrix of numbers, and back: the form in which shadow work fits, samples and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privacy_assets.errors import InputError
from privacy_assets.tables.column import MISSING, Column, looked_up, vocabulary
from privacy_assets.tables.conversion import rounded
from privacy_assets.tables.schema import ColumnSchema, TableSchema
from privacy_assets.tables.table import Table


@dataclass(frozen=True, eq=False)
class Coding:
    """How the columns of ``schema`` become rows of a float64 matrix (F, n), in the order of the schema.

    Numbers, whole numbers and datetimes (days since 1970) stand as they are, missing as NaN. Of a category or boolean
    with v known ``values`` (sorted; None for a number) the cell is its place 0..v-1, v for missing, v + 1 for a value
    that is not known. Whole numbers beyond 2**53 lose their last digits.
    """

    schema: TableSchema
    values: tuple[tuple[object, ...] | None, ...]

    @classmethod
    def fit(cls, tables: Sequence[Table], schema: TableSchema) -> Coding:
        """Know all values of the ``tables``, whatever the order of their rows."""
        coded = schema.of_kind("categorical", "boolean")
        known = {name: vocabulary([table[name] for table in tables]) for name in coded}
        return cls(schema, tuple(known.get(name) for name in schema.names))

    @cached_property
    def is_number(self) -> np.ndarray:
        """Bool (F,): columns whose cells are numbers, not codes."""
        return np.array([values is None for values in self.values], dtype=bool)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Int64 (F,): codes a category can have, missing and unknown included; 0 for numbers."""
        return np.array([0 if values is None else len(values) + 2 for values in self.values], dtype=np.int64)

    def code(self, table: Table) -> np.ndarray:
        """Cells float64 (F, n), C order, of a table with the columns of the schema."""
        cells = np.empty((len(self.values), len(table)))
        for place, (column, values) in enumerate(zip(self.schema.columns, self.values, strict=True)):
            own, known = table[column.name], len(values or ())
            cells[place] = own.floats() if values is None else own.places_in(values, unknown=known + 1, missing=known)
        return cells

    def rounded(self, place: int, cells: np.ndarray) -> np.ndarray:
        """Cells (n,) of the number at ``place``, at the precision of its column."""
        column = self.schema.columns[place]
        return rounded(_column(column, None, cells), column).floats()

    def plain_values(self) -> list[list[object] | None]:
        """The ``values`` as JSON can hold them; :meth:`of_plain` takes them back."""
        return [None if values is None else list(values) for values in self.values]

    @classmethod
    def of_plain(cls, schema: TableSchema, plain: Sequence[Sequence[object] | None]) -> Coding:
        """Inverse of :meth:`plain_values`."""
        return cls(schema, tuple(None if values is None else tuple(values) for values in plain))

    def table(self, cells: np.ndarray) -> Table:
        """Inverse of :meth:`code`. Whole numbers are rounded; unknown values become missing."""
        columns = zip(self.schema.columns, self.values, cells, strict=True)
        return Table.of_columns(self.schema, {c.name: _column(c, values, row) for c, values, row in columns})


def _column(column: ColumnSchema, values: tuple[object, ...] | None, row: np.ndarray) -> Column:
    if values is not None:
        codes = np.where(row >= len(values), -1, row).astype(np.int64)
        if column.kind == "boolean":  # a table may hold only one of the two
            codes = looked_up([int(bool(value)) for value in values], codes)
            return Column.of_codes(column.name, column.kind, codes)
        return Column.of_codes(column.name, column.kind, codes, values)
    if column.kind == "numeric":
        return Column(column.name, column.kind, np.array(row, dtype=np.float64))
    missing = np.isnan(row)
    with np.errstate(over="ignore"):
        filled = np.where(missing, 0.0, row) * (86_400e6 if column.kind == "datetime" else 1)
    if (large := np.abs(filled) >= 2**63).any():
        problem, fix = "a value does not fit 64 bits", "make the generator keep to the range of the column"
        raise InputError(problem, column=column.name, row=int(large.argmax()), fix=fix)
    return Column(column.name, column.kind, np.where(missing, MISSING, np.rint(filled).astype(np.int64)))
