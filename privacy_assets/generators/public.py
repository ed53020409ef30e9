"""What a differentially private generator may know of a table without paying for it: bounds and categories."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
from pydantic import Field

from privacy_assets.errors import ConfigError, did_you_mean, shown
from privacy_assets.generators.domains import Domain, Domains
from privacy_assets.tables.coding import Coding
from privacy_assets.tables.schema import ColumnSchema, TableSchema
from privacy_assets.tables.table import Table

_LISTS = "a mapping of columns to lists"
Bounds = Annotated[Any, Field(title=_LISTS, description="public [low, high], dates as text")]
Categories = Annotated[Any, Field(title=_LISTS, description="public values")]


class PublicKnowledge:
    """A generator's settings ``bounds`` ({number: [low, high]}, dates as text) and ``categories`` ({column: [texts]}).

    Numbers stand in ``bins`` of equal width between their bounds, beyond which they count to the nearest bin; texts
    that are no category count as missing. The schema is public: names, kinds and precision of columns, which have gaps,
    and which dates have a time of day. What is not given is read from the private rows: :meth:`outside_guarantee` names
    it.
    """

    name: ClassVar[str]
    bins: int
    bounds: Mapping[str, Sequence[Any]] | None
    categories: Mapping[str, Sequence[str]] | None

    def __post_init__(self) -> None:
        """Check the two, and make them unchangeable."""
        for setting in ("bounds", "categories"):
            value = getattr(self, setting)
            if value is None:
                continue
            if not isinstance(value, Mapping) or not all(isinstance(one, list | tuple) for one in value.values()):
                raise ConfigError(f"{self.name}: {setting} must give a list for each column.")
            plain = {str(name): tuple(_as_text(end) for end in one) for name, one in value.items()}
            object.__setattr__(self, setting, plain)
        for name, texts in (self.categories or {}).items():
            if not texts or not all(isinstance(text, str) for text in texts):
                raise ConfigError(f"{self.name}: categories of {shown(name)} must be one or more texts.")

    def public_coding(self, train: Table) -> Coding:
        """The coding of ``train`` that knows public values where they are given; ConfigError as for domains."""
        schema = train.schema
        self._check_names(schema)
        found = Coding.fit([train], schema)
        public = [self._values(column) for column in schema.columns]
        return Coding(schema, tuple(own or read for own, read in zip(public, found.values, strict=True)))

    def public_domains(self, cells: np.ndarray, coding: Coding) -> Domains:
        """The domains of cells (F, n); ConfigError when a setting names an unknown column or one of another kind."""
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
        """What is read from the private rows, in words without values."""
        given = {*(self.bounds or {}), *(self.categories or {}), *schema.of_kind("boolean")}
        read = ["values" if column.kind == "categorical" else "range or few values" for column in schema.columns]
        return tuple(f"{what} of {name}" for what, name in zip(read, schema.names, strict=True) if name not in given)

    def _values(self, column: ColumnSchema) -> tuple[object, ...] | None:
        if column.kind == "boolean":
            return (False, True)
        given = (self.categories or {}).get(column.name)
        return None if given is None else tuple(sorted(set(given)))

    def _of_bounds(self, column: ColumnSchema, cells: np.ndarray) -> Domain:
        wrong = f"{self.name}: bounds of {shown(column.name)} must be [low, high], "
        pair = (self.bounds or {})[column.name]
        if column.kind == "datetime":
            try:
                low, high = ((pd.Timestamp(end) - pd.Timestamp(0)) / pd.Timedelta(1, "D") for end in pair)
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
        for setting, kinds in (("bounds", ("numeric", "integer", "datetime")), ("categories", ("categorical",))):
            for name in getattr(self, setting) or {}:
                if name not in schema.names:
                    hint = did_you_mean(name, schema.names)
                    raise ConfigError(f"{self.name}: {setting} names the unknown column {shown(name)}.{hint}")
                if schema[name].kind not in kinds:
                    wrong = f"{setting} cannot be given for the {schema[name].kind} {shown(name)}."
                    raise ConfigError(f"{self.name}: {wrong}")


def _as_text(value: object) -> object:
    """Dates as text, which JSON can hold: YAML reads 2020-01-01 as a date."""
    return value.isoformat() if isinstance(value, dt.date) else value


def is_number(value: object) -> bool:
    """True for a finite number that is no boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _of_categories(values: Sequence[object], known: Sequence[object], *, missing: bool) -> Domain:
    """Cells of the public ``values`` in a coding that knows ``known``; those that it does not know stand at the end.

    Any other cell counts as missing, if anything can be ``missing``.
    """
    codes = [place for place, value in enumerate(known) if value in values]
    unseen = [len(known) + 1] * (len(values) - len(codes))
    cells = [*codes, *[len(known)] * missing, *unseen]
    return Domain.of_values(np.array(cells, dtype=np.float64), outside=len(codes) if missing else len(cells) - 1)
