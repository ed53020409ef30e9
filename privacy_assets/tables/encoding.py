"""Numeric form of mixed tables for distances.

Squared distance of two rows = sum of squared differences of standardised numbers + number of mismatching categories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from privacy_assets.tables.column import vocabulary
from privacy_assets.tables.memory_mapping import mapped_concatenate, mapped_empty, mapped_take
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

_CLIP = 0.001  # share cut off on each side when scales are fitted: a single outlier must not flatten its column
_FARTHEST = 1e15  # deviations from the mean; squares of more would leave float32


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Encoded rows: ``numeric`` float32 (n, p) standardised, missing at 0; ``codes`` int32 (n, q) category codes.

    ``sizes`` int64 (q,) is the number of codes of each categorical column. Numbers that miss values bring one more code
    column, their missing indicator.
    """

    numeric: np.ndarray
    codes: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.numeric)

    @cached_property
    def dense(self) -> np.ndarray:
        """Float32 (n, p + sum(sizes)): numbers beside one-hot columns over sqrt(2), so that a mismatch costs 1.

        A column of nearly unique texts makes it as wide as the table is long: see ``neighbours.nearest``.
        """
        starts = self.numeric.shape[1] + np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        out = np.zeros((len(self), int(starts[-1])), dtype=np.float32)
        out[:, : self.numeric.shape[1]] = self.numeric
        rows = np.arange(len(self))
        for column in range(self.codes.shape[1]):
            out[rows, starts[column] + self.codes[:, column]] = np.float32(0.5**0.5)
        return out

    @classmethod
    def stack(cls, tables: Sequence[EncodedTable]) -> EncodedTable:
        """Rows of one or more tables of one encoder, one table after the other."""
        numeric, codes = (
            mapped_concatenate([getattr(table, part) for table in tables]) for part in ("numeric", "codes")
        )
        return cls(numeric, codes, tables[0].sizes)

    @classmethod
    def of_numbers(cls, matrix: np.ndarray) -> EncodedTable:
        """A matrix (n, p) as a table without categories."""
        empty = np.zeros((len(matrix), 0), dtype=np.int32)
        return cls(matrix.astype(np.float32, copy=False), empty, np.zeros(0, dtype=np.int64))

    def take(self, rows: np.ndarray | slice) -> EncodedTable:
        """The given rows."""
        return EncodedTable(mapped_take(self.numeric, rows), mapped_take(self.codes, rows), self.sizes)

    def pick(self, columns: Sequence[int]) -> EncodedTable:
        """The given encoded columns: ``numeric`` is numbered first, then ``codes``."""
        places, numbers = np.asarray(columns, dtype=np.int64), self.numeric.shape[1]
        coded = places[places >= numbers] - numbers
        return EncodedTable(self.numeric[:, places[places < numbers]], self.codes[:, coded], self.sizes[coded])


@dataclass(frozen=True)
class _Number:
    name: str
    centre: float
    scale: float
    indicator: bool


@dataclass(frozen=True)
class _Category:
    name: str
    values: tuple[object, ...]


@dataclass(frozen=True)
class Encoder:
    """Scales and category codes fitted on all real rows together.

    Numbers, whole numbers and datetimes: minus mean, over standard deviation, both of the values clipped to the inner
    99.8 %, so that one outlier does not flatten its column; missing -> 0 (the mean) and, where values are missing, an
    indicator that counts as a category. Categories and booleans: one code a value, one for missing, one for all values
    that no real row has. A constant column contributes nothing.
    """

    numbers: tuple[_Number, ...]
    categories: tuple[_Category, ...]

    @classmethod
    def fit(cls, tables: Sequence[Table], schema: TableSchema, others: Sequence[Table] = ()) -> Encoder:
        """Fit on the stacked ``tables``, in the columns of ``schema``; the order of rows and tables does not matter.

        ``others`` will be encoded too and decide nothing but which numbers need a missing indicator.
        """
        numbers, categories = [], []
        for column in schema.columns:
            parts = [table[column.name] for table in tables]
            if column.kind in ("categorical", "boolean"):
                categories.append(_Category(column.name, vocabulary(parts)))
            else:
                centre, scale = _centre_and_scale(np.sort(np.concatenate([part.present().floats() for part in parts])))
                missing = any(table[column.name].missing.any() for table in (*tables, *others))
                numbers.append(_Number(column.name, centre, scale, missing))
        return cls(tuple(numbers), tuple(categories))

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """By column, its encoded columns, as :meth:`EncodedTable.pick` numbers them."""
        found = {number.name: [place] for place, number in enumerate(self.numbers)}
        coded = [number.name for number in self.numbers if number.indicator] + [c.name for c in self.categories]
        for place, name in enumerate(coded, start=len(self.numbers)):
            found.setdefault(name, []).append(place)
        return found

    def to_json(self) -> dict[str, list[dict[str, Any]]]:
        """Return plain values. They hold category values of the private table."""
        return {"numbers": list(map(asdict, self.numbers)), "categories": list(map(asdict, self.categories))}

    @classmethod
    def from_json(cls, data: dict[str, list[dict[str, Any]]]) -> Encoder:
        """Inverse of :meth:`to_json`."""
        categories = (_Category(item["name"], tuple(item["values"])) for item in data["categories"])
        return cls(tuple(_Number(**item) for item in data["numbers"]), tuple(categories))

    def transform(self, table: Table) -> EncodedTable:
        """Encode a table that has the columns."""
        sizes = [2 for number in self.numbers if number.indicator]
        sizes += [len(category.values) + 2 for category in self.categories]
        numeric = mapped_empty((len(table), len(self.numbers)), np.float32)
        codes = mapped_empty((len(table), len(sizes)), np.int32)
        coded = iter(range(len(sizes)))
        for position, number in enumerate(self.numbers):
            values = table[number.name].floats()
            missing = np.isnan(values)
            numeric[:, position] = 0
            if number.scale > 0:
                scaled = np.where(missing, 0.0, (values - number.centre) / number.scale)
                numeric[:, position] = np.clip(scaled, -_FARTHEST, _FARTHEST)
            if number.indicator:
                codes[:, next(coded)] = missing
        for category in self.categories:
            known = len(category.values)
            column = table[category.name]
            codes[:, next(coded)] = column.places_in(category.values, unknown=known, missing=known + 1)
        return EncodedTable(numeric, codes, np.array(sizes, dtype=np.int64))


def _centre_and_scale(ordered: np.ndarray) -> tuple[float, float]:
    if len(ordered) == 0 or ordered[0] == ordered[-1]:
        return (float(ordered[0]) if len(ordered) else 0.0), 0.0
    cut = max(1, int(_CLIP * len(ordered)))
    inner = np.clip(ordered, ordered[min(cut, len(ordered) - 1)], ordered[max(len(ordered) - 1 - cut, 0)])
    if inner[0] >= inner[-1]:  # nearly constant: only the plain deviation is left
        inner = ordered
    size = np.abs(inner).max()  # at most 1 before squaring: values near the end of float64 do not overflow
    return float((inner / size).mean() * size), float((inner / size).std() * size)
