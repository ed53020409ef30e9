"""Numeric encoding of mixed tables for distances.

The squared distance of two rows is the sum of squared differences of standardized numbers plus the
number of mismatching categories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from privacy_assets.errors import InputError
from privacy_assets.tables.arrays import mapped_concatenate, mapped_empty, mapped_take
from privacy_assets.tables.column import (
    DAY,
    MISSING,
    Column,
    columns_named,
    have_missing,
    looked_up,
    vocabulary,
)
from privacy_assets.tables.conversion import rounded
from privacy_assets.tables.schema import ColumnSchema, TableSchema
from privacy_assets.tables.table import Table


@dataclass(frozen=True, eq=False)
class MatrixCoding:
    """Maps the columns of ``schema`` to the rows of a float64 matrix (F, n), in schema order.

    Numbers, integers and datetimes (days since 1970) are stored as they are, missing as NaN. A
    category or boolean with v ``values`` (sorted; None for a number) is stored as its position
    0..v-1, missing as v, and an unknown value as v +
    1. Integers beyond 2**53 lose their last digits.
    """

    schema: TableSchema
    values: tuple[tuple[object, ...] | None, ...]

    @classmethod
    def fit(cls, tables: Sequence[Table], schema: TableSchema) -> MatrixCoding:
        """Fit to the values of some tables. The order of rows does not matter.

        Args:
            tables: Tables with the columns of the schema.
            schema: Schema of the columns to encode.
        """
        values = dict[str, tuple[object, ...] | None].fromkeys(schema.names)
        for name in schema.of_kind("categorical", "boolean"):
            values[name] = vocabulary(columns_named(name, tables))
        return cls(schema, tuple(values.values()))

    @cached_property
    def is_number(self) -> np.ndarray:
        """True for columns whose cells are numbers, not codes; shape (F,)."""
        return np.array([values is None for values in self.values], dtype=bool)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Number of codes of each category, including missing and unknown; 0 for numbers; int64
        (F,).
        """
        sizes = np.zeros(len(self.values), dtype=np.int64)
        for i, values in enumerate(self.values):
            if values is not None:
                sizes[i] = len(values) + 2
        return sizes

    def code(self, table: Table) -> np.ndarray:
        """Encode the cells of a table.

        Args:
            table: Table with the columns of the schema.

        Returns:
            Cells, float64 (F, n), C order.
        """
        cells = np.empty((len(self.values), len(table)))
        for i, values in enumerate(self.values):
            column = table[self.schema.columns[i].name]
            if values is None:
                cells[i] = column.floats()
            else:
                n_values = len(values)
                cells[i] = column.index_in(values, unknown=n_values + 1, missing=n_values)
        return cells

    def rounded(self, position: int, cells: np.ndarray) -> np.ndarray:
        """Round cells of a number to the precision of its column.

        Args:
            position: Position of the column in the schema.
            cells: Numbers, float64 (n,).
        """
        column = self.schema.columns[position]
        return rounded(_column(column, None, cells), column).floats()

    def plain_values(self) -> list[list[object] | None]:
        """Return ``values`` as JSON-compatible lists for :meth:`of_plain`."""
        plain = list[list[object] | None]()
        for values in self.values:
            if values is None:
                plain.append(None)
            else:
                plain.append(list(values))
        return plain

    @classmethod
    def of_plain(
        cls, schema: TableSchema, plain: Sequence[Sequence[object] | None]
    ) -> MatrixCoding:
        """Create a coding.

        Args:
            schema: Schema of the encoded columns.
            plain: Output of :meth:`plain_values`.
        """
        values_of_columns = list[tuple[object, ...] | None]()
        for values in plain:
            if values is None:
                values_of_columns.append(None)
            else:
                values_of_columns.append(tuple(values))
        return cls(schema, tuple(values_of_columns))

    def table(self, cells: np.ndarray) -> Table:
        """Convert encoded cells to a table.

        Args:
            cells: Cells, float64 (F, n). Numbers of integer columns are rounded; unknown values
                become missing.

        Raises:
            InputError: If an integer or time does not fit 64 bits.
        """
        columns = {}
        for column, values, row in zip(self.schema.columns, self.values, cells, strict=True):
            columns[column.name] = _column(column, values, row)
        return Table.of_columns(self.schema, columns)


def _column(column: ColumnSchema, values: tuple[object, ...] | None, row: np.ndarray) -> Column:
    if values is not None:
        codes = np.where(row >= len(values), -1, row).astype(np.int64)
        if column.kind == "boolean":  # a table may contain only one of the two values
            codes = looked_up([int(bool(value)) for value in values], codes)
            return Column.of_codes(column.name, column.kind, codes)
        return Column.of_codes(column.name, column.kind, codes, values)
    if column.kind == "numeric":
        return Column(column.name, column.kind, np.array(row, dtype=np.float64))
    is_missing = np.isnan(row)
    filled = np.where(is_missing, 0.0, row)
    if column.kind == "datetime":
        with np.errstate(over="ignore"):
            filled = filled * DAY
    is_large = np.abs(filled) >= 2**63
    if is_large.any():
        fix = "keep the generator within the range of the column"
        problem = "a value does not fit 64 bits"
        raise InputError(problem, column=column.name, row=int(is_large.argmax()), fix=fix)
    integers = np.rint(filled).astype(np.int64)
    return Column(column.name, column.kind, np.where(is_missing, MISSING, integers))


# share clipped on each side when scales are fitted, so that an outlier does not flatten its column
_CLIP = 0.001
# maximum number of deviations from the mean; squares of larger values overflow float32
_FARTHEST = 1e15


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Encoded rows.

    Attributes:
        numeric: Standardized numbers, missing at 0; float32 of shape (n, p).
        codes: Missing indicators of numbers with missing values, then category codes; int32 of
            shape (n, q).
        sizes: Number of codes of each column; int64 of shape (q,).
    """

    numeric: np.ndarray
    codes: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.numeric)

    @cached_property
    def dense(self) -> np.ndarray:
        """Numbers and one-hot columns over sqrt(2), so that a mismatch costs 1; float32 (n, p +
        sum(sizes)).

        With a column of nearly unique strings it is as wide as the table is long: see
        ``distances.nearest``.
        """
        n_numbers = self.numeric.shape[1]
        starts = n_numbers + np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        dense = np.zeros((len(self), int(starts[-1])), dtype=np.float32)
        dense[:, :n_numbers] = self.numeric
        rows = np.arange(len(self))
        for column in range(self.codes.shape[1]):
            dense[rows, starts[column] + self.codes[:, column]] = np.float32(0.5**0.5)
        return dense

    @classmethod
    def stack(cls, tables: Sequence[EncodedTable]) -> EncodedTable:
        """Concatenate one or more tables of the same encoder."""
        numeric = mapped_concatenate([table.numeric for table in tables])
        codes = mapped_concatenate([table.codes for table in tables])
        return cls(numeric, codes, tables[0].sizes)

    @classmethod
    def of_numbers(cls, matrix: np.ndarray) -> EncodedTable:
        """Create a table without categories.

        Args:
            matrix: Numbers, shape (n, p).
        """
        empty = np.zeros((len(matrix), 0), dtype=np.int32)
        return cls(matrix.astype(np.float32, copy=False), empty, np.zeros(0, dtype=np.int64))

    def take(self, rows: np.ndarray | slice) -> EncodedTable:
        """Select rows.

        Args:
            rows: Positions or a mask, shape (n,), or a slice.
        """
        return EncodedTable(
            mapped_take(self.numeric, rows), mapped_take(self.codes, rows), self.sizes
        )

    def pick(self, columns: Sequence[int]) -> EncodedTable:
        """Select encoded columns.

        Args:
            columns: Positions of the columns, those of ``numeric`` first, then those of ``codes``.
        """
        positions = np.asarray(columns, dtype=np.int64)
        n_numbers = self.numeric.shape[1]
        numeric = positions[positions < n_numbers]
        coded = positions[positions >= n_numbers] - n_numbers
        return EncodedTable(self.numeric[:, numeric], self.codes[:, coded], self.sizes[coded])


@dataclass(frozen=True)
class _Number:
    name: str
    center: float
    scale: float
    indicator: bool


@dataclass(frozen=True)
class _Category:
    name: str
    values: tuple[object, ...]


@dataclass(frozen=True)
class TabularEncoder:
    """Scales and category codes fitted on all real rows.

    Numbers, integers and datetimes are standardized by mean and standard deviation of the values
    clipped to the inner 99.8 %, so that an outlier does not flatten its column. Missing becomes 0
    (the mean) and, if there are missing values, an indicator that counts as a category. Categories
    and booleans have one code per value, one for missing, and one for all values that do not occur
    in real rows. A constant column contributes 0.
    """

    numbers: tuple[_Number, ...]
    categories: tuple[_Category, ...]

    @classmethod
    def fit(
        cls, tables: Sequence[Table], schema: TableSchema, later: Sequence[Table] = ()
    ) -> TabularEncoder:
        """Fit to the stacked rows of some tables. The order of rows and tables does not matter.

        Args:
            tables: Tables with the columns of the schema.
            schema: Schema of the columns to encode.
            later: Tables to encode later. They only determine which numbers need a missing
                indicator.
        """
        numbers = []
        categories = []
        for column in schema.columns:
            name = column.name
            parts = columns_named(name, tables)
            if column.kind in ("categorical", "boolean"):
                categories.append(_Category(name, vocabulary(parts)))
                continue
            values = np.concatenate([part.present().floats() for part in parts])
            center, scale = _center_and_scale(np.sort(values))
            has_missing = have_missing(columns_named(name, (*tables, *later)))
            numbers.append(_Number(name, center, scale, has_missing))
        return cls(tuple(numbers), tuple(categories))

    @cached_property
    def positions(self) -> dict[str, list[int]]:
        """Encoded columns by column, numbered as in :meth:`EncodedTable.pick`."""
        positions = dict[str, list[int]]()
        coded = list[str]()
        for i, number in enumerate(self.numbers):
            positions[number.name] = [i]
            if number.indicator:
                coded.append(number.name)
        for category in self.categories:
            coded.append(category.name)
        for position, name in enumerate(coded, start=len(self.numbers)):
            positions.setdefault(name, []).append(position)
        return positions

    def to_json(self) -> dict[str, list[dict[str, Any]]]:
        """Return plain values, which include category values of the private table."""
        return {
            "numbers": list(map(asdict, self.numbers)),
            "categories": list(map(asdict, self.categories)),
        }

    @classmethod
    def from_json(cls, data: dict[str, list[dict[str, Any]]]) -> TabularEncoder:
        """Create an encoder from the output of :meth:`to_json`."""
        numbers = []
        for item in data["numbers"]:
            numbers.append(_Number(**item))
        categories = []
        for item in data["categories"]:
            categories.append(_Category(item["name"], tuple(item["values"])))
        return cls(tuple(numbers), tuple(categories))

    def _code_sizes(self) -> list[int]:
        """Return the number of codes of each missing indicator and category."""
        sizes = []
        for number in self.numbers:
            if number.indicator:
                sizes.append(2)
        for category in self.categories:
            sizes.append(len(category.values) + 2)  # missing and unknown values
        return sizes

    def transform(self, table: Table) -> EncodedTable:
        """Encode a table.

        Args:
            table: Table with the fitted columns.
        """
        sizes = self._code_sizes()
        numeric = mapped_empty((len(table), len(self.numbers)), np.float32)
        codes = mapped_empty((len(table), len(sizes)), np.int32)
        coded = iter(range(len(sizes)))
        for position, number in enumerate(self.numbers):
            values = table[number.name].floats()
            missing = np.isnan(values)
            numeric[:, position] = 0
            if number.scale > 0:
                scaled = np.where(missing, 0.0, (values - number.center) / number.scale)
                numeric[:, position] = np.clip(scaled, -_FARTHEST, _FARTHEST)
            if number.indicator:
                codes[:, next(coded)] = missing
        for category in self.categories:
            n_values = len(category.values)
            column = table[category.name]
            positions = column.index_in(category.values, unknown=n_values, missing=n_values + 1)
            codes[:, next(coded)] = positions
        return EncodedTable(numeric, codes, np.array(sizes, dtype=np.int64))


def _center_and_scale(ordered: np.ndarray) -> tuple[float, float]:
    if len(ordered) == 0:
        return 0.0, 0.0
    if ordered[0] == ordered[-1]:
        return float(ordered[0]), 0.0
    last = len(ordered) - 1
    n_clipped = max(1, int(_CLIP * len(ordered)))
    low = ordered[min(n_clipped, last)]
    high = ordered[max(last - n_clipped, 0)]
    inner = np.clip(ordered, low, high)
    if inner[0] >= inner[-1]:  # nearly constant: use the unclipped standard deviation
        inner = ordered
    size = np.abs(inner).max()  # avoids overflow of squares near the limits of float64
    return float((inner / size).mean() * size), float((inner / size).std() * size)
