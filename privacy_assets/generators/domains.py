"""Domains: the finite codes of each column, and the bounds and categories that are publicly
known.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
from pydantic import Field

from privacy_assets.errors import ConfigError, did_you_mean, safe_repr
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.schema import ColumnSchema, TableSchema
from privacy_assets.tables.table import Table

_LISTS = "a mapping of columns to lists"
Bounds = Annotated[
    Any, Field(title=_LISTS, description="publicly known [low, high], dates as strings")
]
Categories = Annotated[Any, Field(title=_LISTS, description="publicly known values")]


@dataclass(frozen=True, eq=False)
class Domain:
    """Codes 0..k-1 of one column. Code c represents the cells from ``starts[c]`` to ``starts[c] +
    spans[c]``.

    Attributes:
        starts: First cell of each code, float64 of shape (k,).
        spans: Width of each code, float64 of shape (k,). 0: a single value. If ``whole``, the
            number (at least 1) of integers from ``starts[c]``.
        whole: True for integers.
        edges: Ascending edges of the bins of a number, the last bin closed; empty for single
            values.
        outside: Code of missing cells, and of cells that are not one of the single values.
    """

    starts: np.ndarray
    spans: np.ndarray
    whole: bool
    edges: np.ndarray
    outside: int

    @classmethod
    def of_values(cls, values: np.ndarray, *, whole: bool = False, outside: int = -1) -> Domain:
        """Create one code per ascending value (NaN last); ``outside`` is one of the codes, by
        default the last.
        """
        spans = np.full(len(values), 1.0 if whole else 0.0)
        return cls(values.astype(np.float64), spans, whole, np.empty(0), outside % len(values))

    @classmethod
    def of_range(cls, low: float, high: float, bins: int, *, whole: bool, missing: bool) -> Domain:
        """Create ``bins`` bins of equal width from ``low`` to ``high``, or fewer if there are fewer
        integers.

        ``missing`` adds a code for missing cells.
        """
        if low == high or (whole and high - low < bins):
            values = np.arange(low, high + 1) if whole else np.array([low])
            return cls.of_values(np.append(values, [np.nan] * missing), whole=whole)
        shares = np.arange(bins + 1) / bins
        # An integer's bin extends to the next integer; the last is closed.
        edges = (1 - shares) * low + shares * (high + whole)
        edges = np.maximum.accumulate(np.ceil(edges)) if whole else edges
        spans = np.maximum(np.diff(edges), 1.0) if whole else np.diff(edges)
        starts, spans = np.append(edges[:-1], [np.nan] * missing), np.append(spans, [1.0] * missing)
        return cls(starts, spans, whole, edges, len(starts) - 1)

    def encode(self, cells: np.ndarray) -> np.ndarray:
        """Return the code of each cell, uint32 (n,); numbers beyond the bins belong to the nearest
        one.
        """
        there = ~np.isnan(cells)
        codes = np.full(len(cells), self.outside, dtype=np.uint32)
        if len(self.edges):
            found = np.searchsorted(self.edges, cells[there], side="right") - 1
            codes[there] = np.clip(found, 0, len(self.edges) - 2)
            return codes
        places = np.minimum(np.searchsorted(self.starts, cells[there]), len(self.starts) - 1)
        codes[there] = np.where(self.starts[places] == cells[there], places, self.outside)
        return codes


@dataclass(frozen=True, eq=False)
class Domains:
    """Domains of all columns, in schema order."""

    columns: tuple[Domain, ...]

    @classmethod
    def of_cells(
        cls,
        cells: np.ndarray,
        coding: MatrixCoding,
        bins: int,
        given: Mapping[str, Domain] | None = None,
    ) -> Domains:
        """Fit domains to the cells (F, N), N >= 1: occurring categories, and numbers in ``bins``
        bins.

        A number with at most ``bins`` distinct values keeps them. Integer columns are whole, and
        datetime columns (in days) if all values are whole days. Columns in ``given`` are not read.
        """
        known = given or {}
        columns = zip(coding.schema.columns, cells, strict=True)
        return cls(
            tuple(
                known.get(column.name) or _domain(row, column.kind, bins) for column, row in columns
            )
        )

    @cached_property
    def sizes(self) -> np.ndarray:
        """Number of codes of each column, int64 (F,)."""
        return np.array([len(domain.starts) for domain in self.columns], dtype=np.int64)

    @cached_property
    def flat(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Offset (F,) of each column in the concatenated starts and spans, these arrays, and
        ``whole`` (F,).
        """
        first = np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)
        starts, spans = (
            np.concatenate([getattr(d, part) for d in self.columns]) for part in ("starts", "spans")
        )
        return (
            first,
            starts,
            spans,
            np.array([domain.whole for domain in self.columns], dtype=np.bool_),
        )

    def encode(self, cells: np.ndarray) -> np.ndarray:
        """Return codes uint32 (F, N) of cells (F, N)."""
        return np.stack(
            [domain.encode(row) for domain, row in zip(self.columns, cells, strict=True)]
        )

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return arrays to store."""
        plain = np.array(
            [(domain.whole, domain.outside) for domain in self.columns], dtype=np.int64
        )
        out = {"domains": plain}
        for place, domain in enumerate(self.columns):
            out.update(
                {f"{part}.{place}": getattr(domain, part) for part in ("starts", "spans", "edges")}
            )
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Domains:
        """Create domains from the output of :meth:`to_arrays`. Raises KeyError if an array is
        missing.
        """
        columns = []
        for place, (whole, outside) in enumerate(arrays["domains"].tolist()):
            starts, spans, edges = (
                arrays[f"{part}.{place}"] for part in ("starts", "spans", "edges")
            )
            columns.append(Domain(starts, spans, bool(whole), edges, outside))
        return cls(tuple(columns))


def _domain(row: np.ndarray, kind: str, bins: int) -> Domain:
    values = np.unique(row)  # NaN once, last
    if kind in ("categorical", "boolean"):
        return Domain.of_values(values)
    known = values[~np.isnan(values)]
    whole = kind == "integer" or (kind == "datetime" and bool((known == np.floor(known)).all()))
    if len(known) <= bins:
        return Domain.of_values(values, whole=whole)
    return Domain.of_range(known[0], known[-1], bins, whole=whole, missing=len(known) < len(values))


class PublicKnowledge:
    """Settings of public bounds and categories.

    Numbers are assigned to ``bins`` of equal width between their bounds; numbers beyond belong to
    the nearest bin. Strings that are not a category count as missing. The schema is public: names,
    kinds and precision of columns, which columns contain missing values, and which datetimes have a
    time of day. Everything else that is not declared is read from the private rows and listed by
    :meth:`outside_guarantee`.

    Attributes:
        bins: Number of bins of a number.
        bounds: [low, high] by number or datetime column; datetimes as strings.
        categories: Allowed strings by categorical column.
    """

    name: ClassVar[str]
    bins: int
    bounds: Mapping[str, Sequence[Any]] | None
    categories: Mapping[str, Sequence[str]] | None

    @property
    def bounded_columns(self) -> tuple[str, ...]:
        """Columns with public bounds."""
        return tuple(self.bounds or ())

    def __post_init__(self) -> None:
        """Validate bounds and categories, and make them immutable."""
        for setting in ("bounds", "categories"):
            value = getattr(self, setting)
            if value is None:
                continue
            if not isinstance(value, Mapping) or not all(
                isinstance(one, list | tuple) for one in value.values()
            ):
                raise ConfigError(f"{self.name}: {setting} must give a list for each column.")
            plain = {str(name): tuple(_as_text(end) for end in one) for name, one in value.items()}
            object.__setattr__(self, setting, plain)
        for name, texts in (self.categories or {}).items():
            if not texts or not all(isinstance(text, str) for text in texts):
                raise ConfigError(
                    f"{self.name}: categories of {safe_repr(name)} must be one or more strings."
                )

    def public_coding(self, train: Table) -> MatrixCoding:
        """Return a coding of ``train`` that contains the public values where they are declared.

        Raises ConfigError as in :meth:`public_domains`.
        """
        schema = train.schema
        self._check_names(schema)
        found = MatrixCoding.fit([train], schema)
        public = [self._values(column) for column in schema.columns]
        return MatrixCoding(
            schema, tuple(own or read for own, read in zip(public, found.values, strict=True))
        )

    def public_domains(self, cells: np.ndarray, coding: MatrixCoding) -> Domains:
        """Return the domains of cells (F, n).

        Raises:
            ConfigError: If a setting names an unknown column or a column of another kind.
        """
        self._check_names(coding.schema)
        given = {}
        for column, known, row in zip(coding.schema.columns, coding.values, cells, strict=True):
            values = self._values(column)
            if values is not None and known is not None:
                missing = column.nullable or column.kind == "categorical"
                given[column.name] = _of_categories(values, known, missing=missing)
            elif column.name in (self.bounds or {}):
                given[column.name] = self._of_bounds(column, row[~np.isnan(row)])
        return Domains.of_cells(cells, coding, self.bins, given)

    def outside_guarantee(self, schema: TableSchema) -> tuple[str, ...]:
        """List what is read from the private rows, without values."""
        given = {*(self.bounds or {}), *(self.categories or {}), *schema.of_kind("boolean")}
        read = [
            "values" if column.kind == "categorical" else "range or few values"
            for column in schema.columns
        ]
        return tuple(
            f"{what} of {name}"
            for what, name in zip(read, schema.names, strict=True)
            if name not in given
        )

    def _values(self, column: ColumnSchema) -> tuple[object, ...] | None:
        if column.kind == "boolean":
            return (False, True)
        given = (self.categories or {}).get(column.name)
        return None if given is None else tuple(sorted(set(given)))

    def _of_bounds(self, column: ColumnSchema, cells: np.ndarray) -> Domain:
        wrong = f"{self.name}: bounds of {safe_repr(column.name)} must be [low, high], "
        pair = (self.bounds or {})[column.name]
        if column.kind == "datetime":
            try:
                low, high = (
                    (pd.Timestamp(end) - pd.Timestamp(0)) / pd.Timedelta(1, "D") for end in pair
                )
            except (TypeError, ValueError):
                raise ConfigError(wrong + "dates as text.") from None
            whole = bool((cells == np.floor(cells)).all())
        else:
            if len(pair) != 2 or not all(is_number(end) for end in pair):
                raise ConfigError(wrong + "finite numbers.")
            low, high = (float(end) for end in pair)
            whole = column.kind == "integer"
        if not low <= high:
            raise ConfigError(wrong + "low not above high.")
        if whole:
            low, high = float(np.floor(low)), float(np.ceil(high))
        return Domain.of_range(low, high, self.bins, whole=whole, missing=column.nullable)

    def _check_names(self, schema: TableSchema) -> None:
        for setting, kinds in (
            ("bounds", ("numeric", "integer", "datetime")),
            ("categories", ("categorical",)),
        ):
            for name in getattr(self, setting) or {}:
                if name not in schema.names:
                    hint = did_you_mean(name, schema.names)
                    raise ConfigError(
                        f"{self.name}: {setting} names the unknown column {safe_repr(name)}.{hint}"
                    )
                if schema[name].kind not in kinds:
                    wrong = (
                        f"{setting} cannot be given for the {schema[name].kind} {safe_repr(name)}."
                    )
                    raise ConfigError(f"{self.name}: {wrong}")


def _as_text(value: object) -> object:
    """Convert dates to strings for JSON: YAML reads 2020-01-01 as a date."""
    return value.isoformat() if isinstance(value, dt.date) else value


def is_number(value: object) -> bool:
    """Return True for a finite number that is not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _of_categories(values: Sequence[object], known: Sequence[object], *, missing: bool) -> Domain:
    """Return the domain of public ``values`` in a coding that contains ``known``; other values
    follow at the end.

    All other cells count as missing if the column can be ``missing``.
    """
    codes = [place for place, value in enumerate(known) if value in values]
    unseen = [len(known) + 1] * (len(values) - len(codes))
    cells = [*codes, *[len(known)] * missing, *unseen]
    return Domain.of_values(
        np.array(cells, dtype=np.float64), outside=len(codes) if missing else len(cells) - 1
    )
