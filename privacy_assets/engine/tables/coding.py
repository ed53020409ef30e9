"""Mixed tables as one matrix of numbers, and back: the form in which shadow work fits, samples and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from privacy_assets.engine.tables.encoding import as_float
from privacy_assets.engine.tables.schema import ColumnSchema, TableSchema


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
    def fit(cls, frames: Sequence[pd.DataFrame], schema: TableSchema) -> Coding:
        """Know all values of the canonical ``frames``, whatever the order of their rows."""
        return cls(
            schema, tuple(_values([frame[column.name] for frame in frames], column) for column in schema.columns)
        )

    @cached_property
    def is_number(self) -> np.ndarray:
        """Bool (F,): columns whose cells are numbers, not codes."""
        return np.array([values is None for values in self.values], dtype=bool)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Int64 (F,): codes a category can have, missing and unknown included; 0 for numbers."""
        return np.array([0 if values is None else len(values) + 2 for values in self.values], dtype=np.int64)

    def code(self, frame: pd.DataFrame) -> np.ndarray:
        """Cells float64 (F, n), C order, of a canonical frame."""
        cells = np.empty((len(self.values), len(frame)))
        for place, (column, values) in enumerate(zip(self.schema.columns, self.values, strict=True)):
            series = frame[column.name]
            if values is None:
                cells[place] = as_float(series)
                continue
            found = pd.Index(list(values), dtype=object).get_indexer(pd.Index(series.astype(object)))
            found[found < 0] = len(values) + 1
            found[series.isna().to_numpy()] = len(values)
            cells[place] = found
        return cells

    def plain_values(self) -> list[list[object] | None]:
        """The ``values`` as JSON can hold them; :meth:`of_plain` takes them back."""
        plain = zip(self.schema.columns, self.values, strict=True)
        return [
            values if values is None else [value if c.kind == "categorical" else bool(value) for value in values]
            for c, values in plain
        ]

    @classmethod
    def of_plain(cls, schema: TableSchema, plain: Sequence[Sequence[object] | None]) -> Coding:
        """Inverse of :meth:`plain_values`."""
        return cls(schema, tuple(None if values is None else tuple(values) for values in plain))

    def frame(self, cells: np.ndarray) -> pd.DataFrame:
        """Inverse of :meth:`code`: a canonical frame. Whole numbers are rounded; unknown values become missing."""
        columns = zip(self.schema.columns, self.values, cells, strict=True)
        return pd.DataFrame({column.name: _series(column, values, row) for column, values, row in columns})


def _values(parts: Sequence[pd.Series], column: ColumnSchema) -> tuple[object, ...] | None:
    if column.kind not in ("categorical", "boolean"):
        return None
    return tuple(sorted({value for part in parts for value in part.dropna().unique()}))


def _series(column: ColumnSchema, values: tuple[object, ...] | None, row: np.ndarray) -> pd.Series:
    missing = np.isnan(row) if values is None else row >= len(values)
    if values is not None:
        known = np.array([*values, None], dtype=object)
        taken = pd.Series(known[np.where(missing, len(values), row).astype(np.int64)], dtype=object)
        return taken if column.kind == "categorical" else taken.astype("boolean")
    filled = np.where(missing, 0.0, row)
    if column.kind == "datetime":
        micros = np.rint(filled * 86_400e6).astype(np.int64)
        return pd.Series(micros.astype("datetime64[us]")).mask(missing)
    if column.kind == "integer":
        return pd.Series(np.rint(filled).astype(np.int64)).astype("Int64").mask(missing, pd.NA)
    return pd.Series(row)
