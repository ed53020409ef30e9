"""Domains: the finite set of codes that a Bayesian network sees of each column, and how a code becomes a cell again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privacy_assets.tables.coding import Coding


@dataclass(frozen=True, eq=False)
class Domain:
    """Codes 0..k-1 of one column; code c stands for the cells from ``starts[c]`` to ``starts[c] + spans[c]``.

    ``starts`` (k,) and ``spans`` (k,) are float64; a span of 0 is one value. When ``whole``, code c stands for the
    ``spans[c]`` (at least 1) whole numbers from ``starts[c]`` on. ``edges`` (float64, ascending; empty for single
    values) part the bins of a number, the last being closed. The code ``outside`` is that of missing cells, and of
    cells that are none of the single values.
    """

    starts: np.ndarray
    spans: np.ndarray
    whole: bool
    edges: np.ndarray
    outside: int

    @classmethod
    def of_values(cls, values: np.ndarray, *, whole: bool = False, outside: int = -1) -> Domain:
        """One code for each of the ascending ``values`` (NaN last), ``outside`` being one of the codes, or the last."""
        spans = np.full(len(values), 1.0 if whole else 0.0)
        return cls(values.astype(np.float64), spans, whole, np.empty(0), outside % len(values))

    @classmethod
    def of_range(cls, low: float, high: float, bins: int, *, whole: bool, missing: bool) -> Domain:
        """``bins`` bins of equal width from ``low`` to ``high``; fewer when there are fewer whole numbers.

        ``missing`` adds a code for missing cells.
        """
        if low == high or (whole and high - low < bins):
            values = np.arange(low, high + 1) if whole else np.array([low])
            return cls.of_values(np.append(values, [np.nan] * missing), whole=whole)
        shares = np.arange(bins + 1) / bins
        edges = (1 - shares) * low + shares * (high + whole)  # a whole number up to the next one: the last is closed
        edges = np.maximum.accumulate(np.ceil(edges)) if whole else edges
        spans = np.maximum(np.diff(edges), 1.0) if whole else np.diff(edges)
        starts, spans = np.append(edges[:-1], [np.nan] * missing), np.append(spans, [1.0] * missing)
        return cls(starts, spans, whole, edges, len(starts) - 1)

    def encode(self, cells: np.ndarray) -> np.ndarray:
        """Code of each cell, uint32 (n,); numbers beyond the bins count to the nearest one."""
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
    """Domains of all columns, in the order of the schema."""

    columns: tuple[Domain, ...]

    @classmethod
    def of_cells(
        cls, cells: np.ndarray, coding: Coding, bins: int, given: Mapping[str, Domain] | None = None
    ) -> Domains:
        """Domains of the cells (F, N), N >= 1: the codes of categories that occur; numbers in ``bins`` bins.

        A number with at most ``bins`` different values keeps these. A number is whole when its column is, a datetime
        (in days) when all of its values are whole days. Columns that are ``given`` are not looked at.
        """
        known = given or {}
        columns = zip(coding.schema.columns, cells, strict=True)
        return cls(tuple(known.get(column.name) or _domain(row, column.kind, bins) for column, row in columns))

    @cached_property
    def sizes(self) -> np.ndarray:
        """Number of codes of each column, int64 (F,)."""
        return np.array([len(domain.starts) for domain in self.columns], dtype=np.int64)

    @cached_property
    def flat(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """First place (F,) of each column in the starts and spans (all codes) of all columns; whole (F,)."""
        first = np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)
        starts, spans = (np.concatenate([getattr(d, part) for d in self.columns]) for part in ("starts", "spans"))
        return first, starts, spans, np.array([domain.whole for domain in self.columns], dtype=np.bool_)

    def encode(self, cells: np.ndarray) -> np.ndarray:
        """Codes uint32 (F, N) of cells (F, N)."""
        return np.stack([domain.encode(row) for domain, row in zip(self.columns, cells, strict=True)])

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Arrays to store."""
        plain = np.array([(domain.whole, domain.outside) for domain in self.columns], dtype=np.int64)
        out = {"domains": plain}
        for place, domain in enumerate(self.columns):
            out.update({f"{part}.{place}": getattr(domain, part) for part in ("starts", "spans", "edges")})
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Domains:
        """Inverse of :meth:`to_arrays`; KeyError when one is missing."""
        columns = []
        for place, (whole, outside) in enumerate(arrays["domains"].tolist()):
            starts, spans, edges = (arrays[f"{part}.{place}"] for part in ("starts", "spans", "edges"))
            columns.append(Domain(starts, spans, bool(whole), edges, outside))
        return cls(tuple(columns))


def _domain(row: np.ndarray, kind: str, bins: int) -> Domain:
    values = np.unique(row)  # NaN last, once
    if kind in ("categorical", "boolean"):
        return Domain.of_values(values)
    known = values[~np.isnan(values)]
    whole = kind == "integer" or (kind == "datetime" and bool((known == np.floor(known)).all()))
    if len(known) <= bins:
        return Domain.of_values(values, whole=whole)
    return Domain.of_range(known[0], known[-1], bins, whole=whole, missing=len(known) < len(values))
