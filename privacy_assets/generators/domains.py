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
Bounds = Annotated[Any, Field(title=_LISTS)]
Categories = Annotated[Any, Field(title=_LISTS)]


@dataclass(frozen=True, eq=False)
class Domain:
    """Codes 0..k-1 of one column. Code c represents the cells from ``starts[c]`` to ``starts[c] +
    spans[c]``.

    Attributes:
        starts: First cell of each code, float64 of shape (k,).
        spans: Width of each code, float64 of shape (k,). 0: a single value. If ``is_integer``, the
            number (at least 1) of integers from ``starts[c]``.
        is_integer: True for integers.
        edges: Ascending edges of the bins of a number, the last bin closed; empty for single
            values.
        outside: Code of missing cells, and of cells that are not one of the single values.
    """

    starts: np.ndarray
    spans: np.ndarray
    is_integer: bool
    edges: np.ndarray
    outside: int

    @classmethod
    def of_values(
        cls, values: np.ndarray, *, is_integer: bool = False, outside: int = -1
    ) -> Domain:
        """Create a domain with one code per value.

        Args:
            values: Ascending cells of shape (k,), NaN last.
            is_integer: True for integers.
            outside: Code of all other cells, as an index into ``values``. -1: the last code.
        """
        spans = np.full(len(values), float(is_integer))
        starts = values.astype(np.float64)
        return cls(starts, spans, is_integer, np.empty(0), outside % len(values))

    @classmethod
    def of_range(
        cls, low: float, high: float, bins: int, *, is_integer: bool, nullable: bool
    ) -> Domain:
        """Create a domain of bins of equal width.

        Args:
            low: Smallest number.
            high: Largest number.
            bins: Number of bins. There are fewer if there are fewer integers.
            is_integer: True for integers.
            nullable: True adds a code for missing cells.
        """
        if low == high or (is_integer and high - low < bins):
            values = np.array([low])
            if is_integer:
                values = np.arange(low, high + 1)
            if nullable:
                values = np.append(values, np.nan)
            return cls.of_values(values, is_integer=is_integer)
        shares = np.arange(bins + 1) / bins
        # An integer's bin extends to the next integer; the last is closed.
        edges = (1 - shares) * low + shares * (high + is_integer)
        if is_integer:
            edges = np.maximum.accumulate(np.ceil(edges))
            spans = np.maximum(np.diff(edges), 1.0)
        else:
            spans = np.diff(edges)
        starts = edges[:-1]
        if nullable:
            starts = np.append(starts, np.nan)
            spans = np.append(spans, 1.0)
        return cls(starts, spans, is_integer, edges, len(starts) - 1)

    def encode(self, cells: np.ndarray) -> np.ndarray:
        """Return the code of each cell.

        Args:
            cells: Cells of the column, float64 of shape (n,). Numbers beyond the bins belong to the
                nearest bin.

        Returns:
            uint32 of shape (n,).
        """
        is_present = ~np.isnan(cells)
        present = cells[is_present]
        codes = np.full(len(cells), self.outside, dtype=np.uint32)
        if len(self.edges):
            bins = np.searchsorted(self.edges, present, side="right") - 1
            codes[is_present] = np.clip(bins, 0, len(self.edges) - 2)
            return codes
        positions = np.minimum(np.searchsorted(self.starts, present), len(self.starts) - 1)
        is_value = self.starts[positions] == present
        codes[is_present] = np.where(is_value, positions, self.outside)
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
        public: Mapping[str, Domain] | None = None,
    ) -> Domains:
        """Fit domains to the occurring categories and numbers.

        Integer columns have integer domains, as have datetime columns (in days) if all values are
        whole days.

        Args:
            cells: Cells of the columns, float64 of shape (F, N), N >= 1.
            coding: Coding of the cells.
            bins: Number of bins of a number. With at most this many distinct values, these are
                kept.
            public: Domains by name of columns whose cells are not read.
        """
        domains = []
        for column, column_cells in zip(coding.schema.columns, cells, strict=True):
            if public and column.name in public:
                domains.append(public[column.name])
            else:
                domains.append(_domain(column_cells, column.kind, bins))
        return cls(tuple(domains))

    @cached_property
    def sizes(self) -> np.ndarray:
        """Number of codes of each column, int64 (F,)."""
        return np.array([len(domain.starts) for domain in self.columns], dtype=np.int64)

    @cached_property
    def flat(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Offset (F,) of each column in the concatenated starts and spans, these arrays, and
        ``is_integer`` (F,).
        """
        offsets = np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)
        starts = np.concatenate([domain.starts for domain in self.columns])
        spans = np.concatenate([domain.spans for domain in self.columns])
        is_integer = np.array([domain.is_integer for domain in self.columns], dtype=np.bool_)
        return offsets, starts, spans, is_integer

    def encode(self, cells: np.ndarray) -> np.ndarray:
        """Return codes.

        Args:
            cells: Cells of the columns, float64 of shape (F, N).

        Returns:
            uint32 of shape (F, N).
        """
        codes = []
        for domain, column_cells in zip(self.columns, cells, strict=True):
            codes.append(domain.encode(column_cells))
        return np.stack(codes)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return arrays to store."""
        flags = [(domain.is_integer, domain.outside) for domain in self.columns]
        arrays = {"domains": np.array(flags, dtype=np.int64)}
        for i, domain in enumerate(self.columns):
            arrays[f"starts.{i}"] = domain.starts
            arrays[f"spans.{i}"] = domain.spans
            arrays[f"edges.{i}"] = domain.edges
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Domains:
        """Create domains from stored arrays.

        Args:
            arrays: Output of :meth:`to_arrays`.

        Raises:
            KeyError: If an array is missing.
        """
        columns = []
        for i, (is_integer, outside) in enumerate(arrays["domains"].tolist()):
            starts = arrays[f"starts.{i}"]
            spans = arrays[f"spans.{i}"]
            edges = arrays[f"edges.{i}"]
            columns.append(Domain(starts, spans, bool(is_integer), edges, outside))
        return cls(tuple(columns))


def _domain(cells: np.ndarray, kind: str, bins: int) -> Domain:
    values = np.unique(cells)  # NaN once, last
    if kind in ("categorical", "boolean"):
        return Domain.of_values(values)
    present = values[~np.isnan(values)]
    is_integer = kind == "integer" or (kind == "datetime" and _are_integers(present))
    if len(present) <= bins:
        return Domain.of_values(values, is_integer=is_integer)
    nullable = len(present) < len(values)
    return Domain.of_range(present[0], present[-1], bins, is_integer=is_integer, nullable=nullable)


def _are_integers(numbers: np.ndarray) -> bool:
    return bool((numbers == np.floor(numbers)).all())


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
            if not _maps_to_lists(value):
                raise ConfigError(f"{self.name}: {setting} must give a list for each column.")
            plain = {str(name): tuple(map(_as_text, entries)) for name, entries in value.items()}
            object.__setattr__(self, setting, plain)
        for name, texts in (self.categories or {}).items():
            if not texts or not all(isinstance(text, str) for text in texts):
                raise ConfigError(
                    f"{self.name}: categories of {safe_repr(name)} must be one or more strings."
                )

    def public_coding(self, train: Table) -> MatrixCoding:
        """Return a coding of ``train`` that contains the public values where they are declared.

        Args:
            train: Training rows.

        Raises:
            ConfigError: As in :meth:`public_domains`.
        """
        schema = train.schema
        self._check_names(schema)
        fitted = MatrixCoding.fit([train], schema)
        values = []
        for column, training_values in zip(schema.columns, fitted.values, strict=True):
            values.append(self._public_values(column) or training_values)
        return MatrixCoding(schema, tuple(values))

    def public_domains(self, cells: np.ndarray, coding: MatrixCoding) -> Domains:
        """Return the domains of cells, with the declared bounds and categories.

        Args:
            cells: Cells of the columns, float64 of shape (F, n).
            coding: Coding of the cells, by :meth:`public_coding`.

        Raises:
            ConfigError: If a setting names an unknown column or a column of another kind.
        """
        self._check_names(coding.schema)
        domains = {}
        columns = zip(coding.schema.columns, coding.values, cells, strict=True)
        for column, coded_values, column_cells in columns:
            values = self._public_values(column)
            if values is not None and coded_values is not None:
                nullable = column.nullable or column.kind == "categorical"
                domains[column.name] = _of_categories(values, coded_values, nullable=nullable)
            elif column.name in (self.bounds or {}):
                present = column_cells[~np.isnan(column_cells)]
                domains[column.name] = self._of_bounds(column, present)
        return Domains.of_cells(cells, coding, self.bins, domains)

    def outside_guarantee(self, schema: TableSchema) -> tuple[str, ...]:
        """List what is read from the private rows, without values.

        Args:
            schema: Schema of the rows.
        """
        public = {*(self.bounds or {}), *(self.categories or {}), *schema.of_kind("boolean")}
        outside = []
        for column in schema.columns:
            if column.name in public:
                continue
            if column.kind == "categorical":
                outside.append(f"values of {column.name}")
            else:
                outside.append(f"range or few values of {column.name}")
        return tuple(outside)

    def _public_values(self, column: ColumnSchema) -> tuple[object, ...] | None:
        if column.kind == "boolean":
            return (False, True)
        categories = (self.categories or {}).get(column.name)
        if categories is None:
            return None
        return tuple(sorted(set(categories)))

    def _of_bounds(self, column: ColumnSchema, cells: np.ndarray) -> Domain:
        """Return the domain of a column with bounds; ``cells`` are not missing."""
        problem = f"{self.name}: bounds of {safe_repr(column.name)} must be [low, high], "
        bounds = (self.bounds or {})[column.name]
        if column.kind == "datetime":
            try:
                low, high = map(_days_since_epoch, bounds)
            except (TypeError, ValueError):
                raise ConfigError(problem + "dates as text.") from None
            is_integer = _are_integers(cells)
        else:
            if len(bounds) != 2 or not all(map(is_number, bounds)):
                raise ConfigError(problem + "finite numbers.")
            low, high = map(float, bounds)
            is_integer = column.kind == "integer"
        if not low <= high:
            raise ConfigError(problem + "low not above high.")
        if is_integer:
            low = float(np.floor(low))
            high = float(np.ceil(high))
        return Domain.of_range(
            low, high, self.bins, is_integer=is_integer, nullable=column.nullable
        )

    def _check_names(self, schema: TableSchema) -> None:
        for name in self.bounds or {}:
            self._check_name("bounds", name, ("numeric", "integer", "datetime"), schema)
        for name in self.categories or {}:
            self._check_name("categories", name, ("categorical",), schema)

    def _check_name(
        self, setting: str, name: str, kinds: Sequence[str], schema: TableSchema
    ) -> None:
        if name not in schema.names:
            hint = did_you_mean(name, schema.names)
            raise ConfigError(
                f"{self.name}: {setting} names the unknown column {safe_repr(name)}.{hint}"
            )
        kind = schema[name].kind
        if kind not in kinds:
            raise ConfigError(
                f"{self.name}: {setting} cannot be given for the {kind} {safe_repr(name)}."
            )


def _maps_to_lists(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    return all(isinstance(entries, list | tuple) for entries in value.values())


def _days_since_epoch(date: Any) -> float:
    return (pd.Timestamp(date) - pd.Timestamp(0)) / pd.Timedelta(1, "D")


def _as_text(value: object) -> object:
    """Convert dates to strings for JSON: YAML reads 2020-01-01 as a date."""
    if isinstance(value, dt.date):
        return value.isoformat()
    return value


def is_number(value: object) -> bool:
    """Return True for a finite number that is not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _of_categories(
    values: Sequence[object], coded_values: Sequence[object], *, nullable: bool
) -> Domain:
    """Return the domain of public values; values that are not coded follow at the end.

    Args:
        values: Public values.
        coded_values: Values of the coding.
        nullable: True adds a code for missing, to which all other cells belong.
    """
    cells = [code for code, value in enumerate(coded_values) if value in values]
    n_coded = len(cells)
    if nullable:
        cells.append(len(coded_values))
    n_unseen = len(values) - n_coded
    cells += [len(coded_values) + 1] * n_unseen
    outside = len(cells) - 1
    if nullable:
        outside = n_coded
    return Domain.of_values(np.array(cells, dtype=np.float64), outside=outside)
