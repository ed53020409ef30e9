"""Domains: the finite set of codes that a Bayesian network sees of each column, and how a code becomes a cell again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privacy_assets.engine.tables.coding import Coding


@dataclass(frozen=True, eq=False)
class Domain:
    """Codes 0..k-1 of one column; code c stands for the cells from ``starts[c]`` to ``starts[c] + spans[c]``.

    ``starts`` (k,) and ``spans`` (k,) are float64. A span of 0 is one value; missing is a code with start NaN. When
    ``whole``, code c stands for the ``spans[c]`` (at least 1) whole numbers from ``starts[c]``. ``edges`` (float64,
    ascending; empty for single values) part the bins of a number, the last being closed.
    """

    starts: np.ndarray
    spans: np.ndarray
    whole: bool
    edges: np.ndarray

    @classmethod
    def of_values(cls, values: np.ndarray, *, whole: bool) -> Domain:
        """One code for each of the ascending ``values``, NaN last."""
        spans = np.full(len(values), 1.0 if whole else 0.0)
        return cls(values.astype(np.float64), spans, whole, np.empty(0))

    @classmethod
    def of_range(cls, low: float, high: float, bins: int, *, whole: bool, missing: bool) -> Domain:
        """``bins`` bins of equal width from ``low`` to ``high``; fewer when there are fewer whole numbers."""
        if low == high or (whole and high - low < bins):
            values = np.arange(low, high + 1) if whole else np.array([low])
            return cls.of_values(np.append(values, [np.nan] * missing), whole=whole)
        shares = np.arange(bins + 1) / bins
        edges = (1 - shares) * low + shares * high
        if whole:  # whole numbers from low to high, each in the bin of its place; high + 1 closes the last bin
            edges = np.maximum.accumulate(np.ceil((1 - shares) * low + shares * (high + 1)))
        spans = np.maximum(np.diff(edges), 1.0) if whole else np.diff(edges)
        return cls(np.append(edges[:-1], [np.nan] * missing), np.append(spans, [1.0] * missing), whole, edges)

    @property
    def missing(self) -> bool:
        """True when missing is one of the codes: the last one."""
        return bool(len(self.starts)) and bool(np.isnan(self.starts[-1]))

    def encode(self, cells: np.ndarray) -> np.ndarray:
        """Code of each cell, uint32 (n,): values beyond the range count to the nearest bin, unknown ones as missing."""
        known = len(self.starts) - self.missing
        there = ~np.isnan(cells)
        codes = np.full(len(cells), len(self.starts) - 1, dtype=np.uint32)
        if len(self.edges):
            codes[there] = np.clip(np.searchsorted(self.edges, cells[there], side="right") - 1, 0, known - 1)
            return codes
        places = np.searchsorted(self.starts[:known], cells[there])
        found = self.starts[np.minimum(places, known - 1)] == cells[there] if known else np.zeros(len(places), bool)
        codes[there] = np.where(found, places, len(self.starts) - 1)
        return codes


@dataclass(frozen=True, eq=False)
class Domains:
    """Domains of all columns, in the order of the schema."""

    columns: tuple[Domain, ...]

    @classmethod
    def of_cells(cls, cells: np.ndarray, coding: Coding, bins: int) -> Domains:
        """Domains of the cells (F, N), N >= 1: the codes of categories that occur; numbers in ``bins`` bins.

        A number with at most ``bins`` different values keeps these. A number is whole when its column is, a datetime
        (in days) when all of its values are whole days.
        """
        kinds = [column.kind for column in coding.schema.columns]
        return cls(tuple(_domain(row, kind, bins) for row, kind in zip(cells, kinds, strict=True)))

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
        out: dict[str, np.ndarray] = {"whole": np.array([domain.whole for domain in self.columns], dtype=np.bool_)}
        for place, domain in enumerate(self.columns):
            for part in ("starts", "spans", "edges"):
                out[f"{part}.{place}"] = getattr(domain, part)
        return out

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Domains:
        """Inverse of :meth:`to_arrays`."""
        whole: Sequence[bool] = arrays["whole"].tolist()
        return cls(
            tuple(
                Domain(arrays[f"starts.{place}"], arrays[f"spans.{place}"], one, arrays[f"edges.{place}"])
                for place, one in enumerate(whole)
            )
        )


def _domain(row: np.ndarray, kind: str, bins: int) -> Domain:
    values = np.unique(row)  # NaN last, once
    if kind in ("categorical", "boolean"):
        return Domain.of_values(values, whole=False)
    known = values[~np.isnan(values)]
    whole = kind == "integer" or (kind == "datetime" and bool((known == np.floor(known)).all()))
    if len(known) <= bins:
        return Domain.of_values(values, whole=whole)
    return Domain.of_range(known[0], known[-1], bins, whole=whole, missing=len(known) < len(values))
