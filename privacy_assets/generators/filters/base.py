"""The one form of a filter: it counts the real people near a synthetic row (docs/adr/0012)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.errors import InputError
from privacy_assets.neighbours.radius import near
from privacy_assets.settings import declared_by_name
from privacy_assets.tables.encoding import EncodedTable, Encoder
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

ROUNDING = 1e-9  # of people who are counted in parts


@declared_by_name
class Filter(ABC):
    """A filter: subclass it, with ``declared_by_name``, as a class whose fields are the settings, each with a default.

    It leaves out synthetic rows by how many real people stand within a radius of them: ``radius`` or, without one, what
    real rows themselves keep from each other. Distances are Euclidean in the raw encoding, up to a share of 1e-4. Real
    are all rows of train, holdout and reference alike: a filter by train alone empties the neighbourhoods of its
    members, which gives them away as well. Each row of a person counts as an equal part of them. Nothing but the row
    itself and the real rows decides: the order of rows, and how many are drawn, change nothing. At most ``attempts``
    times as many rows are drawn as are wanted.

    ``name`` is the registry key, ``covers`` what it protects from, ``fix`` what helps when it leaves too few rows.
    """

    radius: Annotated[
        float | None, Field(ge=0, description="nearer people count; without, what real rows keep from each other")
    ] = None
    attempts: Annotated[int, Field(ge=2, description="times as many rows are drawn as are wanted, at most")] = 10

    part: ClassVar[str] = "filter"
    name: ClassVar[str]
    covers: ClassVar[str]
    fix: ClassVar[str]

    def settings(self) -> dict[str, Any]:
        """The settings as a plain mapping that JSON can hold."""
        return asdict(self)

    def fit(self, real: Sequence[Table], schema: TableSchema, subjects: np.ndarray | None = None) -> FittedFilter:
        """Know all real rows: tables without the subject; ``subjects`` int64 (N,) tell whose they are.

        These are codes 0..s-1 of the stacked rows; None: each row is a person. InputError for fewer than two rows.
        """
        tables = [table for table in real if len(table)]
        rows = sum(map(len, tables))
        if rows < 2:
            raise InputError(f"{rows} real rows were given", where=f"filter {self.name}", fix="give two or more")
        codes = np.arange(rows) if subjects is None else subjects
        radius = self.radius
        if radius is None:
            radius = self._typical(encoded(Encoder.fit(tables, schema), tables), codes)
        return FittedFilter(self, schema, tuple(tables), parts(codes), float(radius))

    @abstractmethod
    def _typical(self, rows: EncodedTable, subjects: np.ndarray) -> float:
        """The radius that real rows (two or more) suggest; ``subjects`` int64 (n,), codes 0..s-1."""

    @abstractmethod
    def leaves_out(self, people: np.ndarray) -> np.ndarray:
        """Which rows go, bool (n,), by the number float64 (n,) of people within the radius, who may count in parts."""


@dataclass(frozen=True, eq=False)
class FittedFilter:
    """The filter and the real rows: as private as they are. ``weights`` (N,) is what part of a person each row is."""

    filter: Filter
    schema: TableSchema
    real: tuple[Table, ...]
    weights: np.ndarray
    radius: float

    def exposed(self, table: Table) -> np.ndarray:
        """Which rows of a table are to be left out, bool (n,)."""
        encoder = Encoder.fit(self.real, self.schema, others=[table])
        people = near(encoder.transform(table), encoded(encoder, self.real), self.radius, self.weights)
        return self.filter.leaves_out(people)


def parts(subjects: np.ndarray) -> np.ndarray:
    """What part of a person each row is, float64 (n,), of codes 0..s-1."""
    return np.asarray(1 / np.bincount(subjects)[subjects])


def encoded(encoder: Encoder, tables: Sequence[Table]) -> EncodedTable:
    """Stacked tables."""
    return EncodedTable.stack([encoder.transform(table) for table in tables])
