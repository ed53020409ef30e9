"""Numeric form of mixed tables for distances (DESIGN section 5, "Encoding").

Squared distance of two rows = sum of squared differences of standardised numbers + number of mismatching categories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.engine.tables.blocks import block, joined, taken
from privacy_assets.engine.tables.schema import TableSchema

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

        A column of nearly unique texts makes it as wide as the table is long: see ``geometry.nearest_rows``.
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
        numeric, codes = (joined([getattr(table, part) for table in tables]) for part in ("numeric", "codes"))
        return cls(numeric, codes, tables[0].sizes)

    @classmethod
    def of_numbers(cls, matrix: np.ndarray) -> EncodedTable:
        """A matrix (n, p) as a table without categories."""
        empty = np.zeros((len(matrix), 0), dtype=np.int32)
        return cls(matrix.astype(np.float32, copy=False), empty, np.zeros(0, dtype=np.int64))

    def take(self, rows: np.ndarray | slice) -> EncodedTable:
        """The given rows."""
        parts = (self.numeric, self.codes)
        numeric, codes = (part[rows] if isinstance(rows, slice) else taken(part, rows) for part in parts)
        return EncodedTable(numeric, codes, self.sizes)

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
    def fit(cls, frames: Sequence[pd.DataFrame], schema: TableSchema, others: Sequence[pd.DataFrame] = ()) -> Encoder:
        """Fit on the stacked canonical ``frames``; the order of rows and frames does not matter.

        ``others`` will be encoded too and decide nothing but which numbers need a missing indicator.
        """
        numbers, categories = [], []
        for column in schema.columns:
            parts = [frame[column.name] for frame in frames]
            if column.kind in ("categorical", "boolean"):
                known = {value for part in parts for value in part.drop_duplicates().dropna()}
                categories.append(_Category(column.name, tuple(sorted(known))))
            else:
                values = np.concatenate([as_float(part) for part in parts])
                centre, scale = _centre_and_scale(np.sort(values[~np.isnan(values)]))
                missing = any(frame[column.name].isna().any() for frame in (*frames, *others))
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
        categories = [{"name": c.name, "values": [_plain(value) for value in c.values]} for c in self.categories]
        return {"numbers": [asdict(number) for number in self.numbers], "categories": categories}

    @classmethod
    def from_json(cls, data: dict[str, list[dict[str, Any]]]) -> Encoder:
        """Inverse of :meth:`to_json`."""
        categories = (_Category(item["name"], tuple(item["values"])) for item in data["categories"])
        return cls(tuple(_Number(**item) for item in data["numbers"]), tuple(categories))

    def transform(self, frame: pd.DataFrame) -> EncodedTable:
        """Encode a canonical frame."""
        sizes = [2 for number in self.numbers if number.indicator]
        sizes += [len(category.values) + 2 for category in self.categories]
        numeric = block((len(frame), len(self.numbers)), np.float32)
        codes = block((len(frame), len(sizes)), np.int32)
        coded = iter(range(len(sizes)))
        for position, number in enumerate(self.numbers):
            values = as_float(frame[number.name])
            missing = np.isnan(values)
            numeric[:, position] = 0
            if number.scale > 0:
                scaled = np.where(missing, 0.0, (values - number.centre) / number.scale)
                numeric[:, position] = np.clip(scaled, -_FARTHEST, _FARTHEST)
            if number.indicator:
                codes[:, next(coded)] = missing
        for category in self.categories:
            places = {value: place for place, value in enumerate(category.values)}
            own, different = pd.factorize(frame[category.name])
            found = [places.get(value, len(places)) for value in different]
            codes[:, next(coded)] = np.array([*found, len(places) + 1], dtype=np.int32)[own]  # -1, missing, is the last
        return EncodedTable(numeric, codes, np.array(sizes, dtype=np.int64))


def _plain(value: object) -> object:
    return bool(value) if isinstance(value, np.bool_) else value


def as_float(series: pd.Series) -> np.ndarray:
    """Float64 values of a canonical numeric, integer or datetime column (days since 1970); missing is NaN."""
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        micros = series.astype("datetime64[us]").to_numpy().astype("int64").astype(np.float64)
        return np.where(series.isna().to_numpy(), np.nan, micros / 86_400e6)
    return series.to_numpy(dtype=np.float64, na_value=np.nan)


def _centre_and_scale(ordered: np.ndarray) -> tuple[float, float]:
    if len(ordered) == 0 or ordered[0] == ordered[-1]:
        return (float(ordered[0]) if len(ordered) else 0.0), 0.0
    cut = max(1, int(_CLIP * len(ordered)))
    inner = np.clip(ordered, ordered[min(cut, len(ordered) - 1)], ordered[max(len(ordered) - 1 - cut, 0)])
    if inner[0] >= inner[-1]:  # nearly constant: only the plain deviation is left
        inner = ordered
    size = np.abs(inner).max()  # at most 1 before squaring: values near the end of float64 do not overflow
    return float((inner / size).mean() * size), float((inner / size).std() * size)
