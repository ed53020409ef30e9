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
_MIN_ROWS_PER_VALUE = 5
_FEW_VALUES = 10
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
    def of_cells(cls, numbers: np.ndarray) -> Scale:
        """Fit the scale.

        Args:
            numbers: Non-missing numbers, float64 of shape (n,), n >= 1.
        """
        values, counts = np.unique(numbers, return_counts=True)
        max_values = max(_FEW_VALUES, len(numbers) // _MIN_ROWS_PER_VALUE)
        # Otherwise numbers of single rows would be repeated.
        if len(values) <= min(_KNOTS, max_values):
            levels = np.concatenate([[0.0], np.cumsum(counts) / len(numbers)])
            return cls(values, levels, steps=True, decimals=_ALL_DECIMALS)
        levels = np.linspace(0, 1, min(_KNOTS, len(numbers)))
        knots = np.quantile(numbers, levels)
        rises = np.diff(knots) > 0
        # of each run of equal quantiles
        is_end = np.concatenate([[True], rises]) | np.concatenate([rises, [True]])
        decimals = decimals_of(values)
        if decimals is None:
            decimals = _ALL_DECIMALS
        return cls(knots[is_end], levels[is_end], steps=False, decimals=decimals)

    def encode(self, cells: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return levels, uniform within the levels of a value.

        Args:
            cells: Non-missing numbers, float64 of shape (n,).
            rng: Random generator.

        Returns:
            float64 of shape (n,), in [0, 1].
        """
        last_position = len(self.values) - 1
        first = np.clip(np.searchsorted(self.values, cells, side="left"), 0, last_position)
        if self.steps:
            return self._uniform_levels(first, first + 1, rng)
        last = np.clip(np.searchsorted(self.values, cells, side="right") - 1, 0, last_position)
        within_run = self._uniform_levels(first, last, rng)
        return np.where(last > first, within_run, np.interp(cells, self.values, self.levels))

    def _uniform_levels(
        self, first: np.ndarray, last: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw levels between the levels at two positions each."""
        width = self.levels[last] - self.levels[first]
        return self.levels[first] + rng.random(len(first)) * width

    def decode(self, levels: np.ndarray) -> np.ndarray:
        """Return numbers float64 (n,) of levels in [0, 1]."""
        if self.steps:
            positions = np.searchsorted(self.levels[1:-1], levels, side="right")
            return self.values[positions]
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
        """Fit scales and categories.

        A column without values only has the code for missing.

        Args:
            cells: Cells of the columns, float64 of shape (F, n), n >= 1.
            coding: Coding of the cells.
        """
        domains: list[Domain] = []
        scales: dict[int, Scale] = {}
        for i, column_cells in enumerate(cells):
            is_missing = np.isnan(column_cells)
            if coding.is_number[i] and not is_missing.all():
                codes = [0.0, np.nan] if is_missing.any() else [0.0]
                domains.append(Domain.of_values(np.array(codes)))
                scales[i] = Scale.of_cells(column_cells[~is_missing])
            else:
                domains.append(Domain.of_values(np.unique(column_cells)))
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
        return [int(self.domains.sizes[i]) for i in self.choices]

    def encode(self, cells: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Encode cells.

        Args:
            cells: Cells of the columns, float64 of shape (F, n).
            rng: Random generator.

        Returns:
            Levels, float32 of shape (n, scales), random where missing; codes, int64 of shape (n,
            choices).
        """
        levels = np.empty((cells.shape[1], len(self.scales)), dtype=np.float32)
        coded_cells = cells.copy()
        for i_level, (i, scale) in enumerate(self.scales.items()):
            is_missing = np.isnan(cells[i])
            levels[:, i_level] = rng.random(len(is_missing))
            levels[~is_missing, i_level] = scale.encode(cells[i][~is_missing], rng)
            coded_cells[i] = np.where(is_missing, np.nan, 0.0)
        codes = self.domains.encode(coded_cells)[self.choices].T
        return levels, np.ascontiguousarray(codes, dtype=np.int64)

    def decode(self, levels: np.ndarray, codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Decode levels and codes. Binned numbers are drawn uniformly within their bin.

        Args:
            levels: Levels in [0, 1], shape (n, scales).
            codes: Codes of the ``choices``, integers of shape (n, choices).
            rng: Random generator.

        Returns:
            Cells of all columns, float64 of shape (F, n).
        """
        from privacy_assets.generators._bayes_kernels import decode

        all_codes = np.zeros((len(self.domains.columns), len(codes)), dtype=np.uint32)
        all_codes[self.choices] = codes.T
        cells: np.ndarray = decode(all_codes, self.domains.flat, rng)
        for i_level, (i, scale) in enumerate(self.scales.items()):
            numbers = scale.decode(levels[:, i_level].astype(np.float64))
            cells[i] = np.where(np.isnan(cells[i]), np.nan, numbers)
        return cells

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return arrays to store."""
        flags = [(i, scale.steps, scale.decimals) for i, scale in self.scales.items()]
        arrays = self.domains.to_arrays()
        arrays["scales"] = np.array(flags, dtype=np.int64).reshape(-1, 3)
        for i, scale in self.scales.items():
            arrays[f"scale.values.{i}"] = scale.values
            arrays[f"scale.levels.{i}"] = scale.levels
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Layout:
        """Create a layout from stored arrays.

        Args:
            arrays: Output of :meth:`to_arrays`.

        Raises:
            KeyError: If an array is missing.
        """
        scales = {}
        for i, steps, decimals in arrays["scales"].tolist():
            values = arrays[f"scale.values.{i}"]
            levels = arrays[f"scale.levels.{i}"]
            scales[i] = Scale(values, levels, bool(steps), decimals)
        return cls(Domains.from_arrays(arrays), scales)
