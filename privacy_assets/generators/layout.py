"""Layouts: conversion of a mixed table to numbers in 0..1 and codes for neural generators, and
back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privacy_assets.generators.domains import Domain, Domains
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.precision import decimals_of, round_decimals

_KNOTS = 1000  # quantiles stored for a number with many values
# Values are kept if this many rows share each on average, or if there are at most this many values.
_OFTEN, _FEW = 5, 10
_ALL_DECIMALS = 15


@dataclass(frozen=True, eq=False)
class Scale:
    """The distribution function of a number's training values, and its inverse.

    ``values`` (k,) float64 are ascending; ``levels`` (k + 1 in ``steps``, otherwise k) are shares
    from 0 to 1. With ``steps``, used for numbers that many rows share, value v covers all levels up
    to that of the next value. Otherwise ``values`` are quantiles, the function is linear between
    them, and numbers are rounded to ``decimals``, so values of single rows are not repeated. A
    quantile that occurs several times (such as an income of 0) covers all levels in between.
    """

    values: np.ndarray
    levels: np.ndarray
    steps: bool
    decimals: int

    @classmethod
    def of_cells(cls, known: np.ndarray) -> Scale:
        """Fit to non-missing numbers ``known`` (n,), n >= 1."""
        values, counts = np.unique(known, return_counts=True)
        # Otherwise numbers of single rows would be repeated.
        if len(values) <= min(_KNOTS, max(_FEW, len(known) // _OFTEN)):
            return cls(
                values, np.concatenate([[0.0], np.cumsum(counts) / len(known)]), True, _ALL_DECIMALS
            )
        levels = np.linspace(0, 1, min(_KNOTS, len(known)))
        knots = np.quantile(known, levels)
        rises = np.diff(knots) > 0
        # of each run of equal quantiles
        ends = np.concatenate([[True], rises]) | np.concatenate([rises, [True]])
        decimals = decimals_of(values)
        return cls(
            knots[ends], levels[ends], False, _ALL_DECIMALS if decimals is None else decimals
        )

    def encode(self, cells: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return levels float64 (n,) in [0, 1] of non-missing numbers, uniform within the levels of
        their value.
        """
        if not self.steps:
            first = np.clip(
                np.searchsorted(self.values, cells, side="left"), 0, len(self.values) - 1
            )
            last = np.clip(
                np.searchsorted(self.values, cells, side="right") - 1, 0, len(self.values) - 1
            )
            within = self.levels[first] + rng.random(len(cells)) * (
                self.levels[last] - self.levels[first]
            )
            return np.where(last > first, within, np.interp(cells, self.values, self.levels))
        place = np.clip(np.searchsorted(self.values, cells), 0, len(self.values) - 1)
        return self.levels[place] + rng.random(len(cells)) * (
            self.levels[place + 1] - self.levels[place]
        )

    def decode(self, levels: np.ndarray) -> np.ndarray:
        """Return numbers float64 (n,) of levels in [0, 1]."""
        if self.steps:
            place = np.searchsorted(self.levels[1:-1], levels, side="right")
            return self.values[place]
        return round_decimals(np.interp(levels, self.levels, self.values), self.decimals)


@dataclass(frozen=True, eq=False)
class Layout:
    """Layout of the columns of the cells (F, n) of a :class:`MatrixCoding`.

    Every column has a code of ``domains``. Numbers with a scale (``scales``, by position) also have
    a level; their codes mean present and missing.
    """

    domains: Domains
    scales: Mapping[int, Scale]

    @classmethod
    def of_cells(cls, cells: np.ndarray, coding: MatrixCoding) -> Layout:
        """Fit scales and categories to the cells (F, n), n >= 1.

        A column without values only has the code for missing.
        """
        domains: list[Domain] = []
        scales: dict[int, Scale] = {}
        for place, row in enumerate(cells):
            missing = np.isnan(row)
            if coding.is_number[place] and not missing.all():
                domains.append(Domain.of_values(np.array([0.0, np.nan][: 1 + missing.any()])))
                scales[place] = Scale.of_cells(row[~missing])
            else:
                domains.append(Domain.of_values(np.unique(row)))
        return cls(Domains(tuple(domains)), scales)

    @classmethod
    def of_domains(cls, domains: Domains) -> Layout:
        """Create a layout with codes for every column; numbers are binned."""
        return cls(domains, {})

    @cached_property
    def choices(self) -> list[int]:
        """Positions of the columns with more than one code."""
        return np.flatnonzero(self.domains.sizes > 1).tolist()

    @cached_property
    def sizes(self) -> list[int]:
        """Number of codes of each of the ``choices``."""
        return [int(self.domains.sizes[place]) for place in self.choices]

    def encode(self, cells: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return levels float32 (n, numbers), random where missing, and codes int64 (n,
        choices).
        """
        levels = np.empty((cells.shape[1], len(self.scales)), dtype=np.float32)
        plain = cells.copy()
        for at, (place, scale) in enumerate(self.scales.items()):
            missing = np.isnan(cells[place])
            levels[:, at] = rng.random(len(missing))
            levels[~missing, at] = scale.encode(cells[place][~missing], rng)
            plain[place] = np.where(missing, np.nan, 0.0)
        codes = self.domains.encode(plain)[self.choices].T
        return levels, np.ascontiguousarray(codes, dtype=np.int64)

    def decode(self, levels: np.ndarray, codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return cells float64 (F, n); binned numbers are drawn uniformly within their bin."""
        from privacy_assets.generators._bayes_kernels import decode

        every = np.zeros((len(self.domains.columns), len(codes)), dtype=np.uint32)
        every[self.choices] = codes.T
        cells: np.ndarray = decode(every, self.domains.flat, rng)
        for at, (place, scale) in enumerate(self.scales.items()):
            cells[place] = np.where(
                np.isnan(cells[place]), np.nan, scale.decode(levels[:, at].astype(np.float64))
            )
        return cells

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return arrays to store."""
        flags = [(place, scale.steps, scale.decimals) for place, scale in self.scales.items()]
        out = {**self.domains.to_arrays(), "scales": np.array(flags, dtype=np.int64).reshape(-1, 3)}
        for place, scale in self.scales.items():
            out |= {f"scale.values.{place}": scale.values, f"scale.levels.{place}": scale.levels}
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Layout:
        """Create a layout from the output of :meth:`to_arrays`. Raises KeyError if an array is
        missing.
        """
        scales = {}
        for place, steps, decimals in arrays["scales"].tolist():
            values, levels = arrays[f"scale.values.{place}"], arrays[f"scale.levels.{place}"]
            scales[place] = Scale(values, levels, bool(steps), decimals)
        return cls(Domains.from_arrays(arrays), scales)
