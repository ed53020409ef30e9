"""Leaky evaluation (Palacios 4.2, figures 2 and 3): tables of which a known fraction are training rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.calibration.study import Case
from privacy_assets.errors import ConfigError
from privacy_assets.generators.copies import jittered, resampled
from privacy_assets.settings import declared
from privacy_assets.tables.column import Column
from privacy_assets.tables.table import Table

FRACTIONS = tuple(tenth / 10 for tenth in range(11))


@declared
class Noise:
    """What is done to the training rows before they are leaked; a missing value stays missing.

    Numbers and dates get a normal error of ``sigma`` standard deviations of their column (the paper gives no unit),
    rounded to the column's own precision and kept within its range. To whole numbers a Poisson number of mean ``lam``
    is added. A category or boolean is resampled from its column with probability ``p``.
    """

    part: ClassVar[str] = "noise"

    sigma: float = Field(default=0.0, ge=0, le=10, description="deviations of numbers and dates")
    lam: float = Field(default=0.0, ge=0, le=1000, description="mean of what is added to whole numbers")
    p: float = Field(default=0.0, ge=0, le=1, description="probability that a category is resampled")

    def __str__(self) -> str:
        parts = [f"{name} {value:g}" for name, value in zip(("σ", "λ", "p"), self.values, strict=True) if value]
        return ", ".join(parts) or "no noise"

    @property
    def values(self) -> tuple[float, float, float]:
        """sigma, lam and p."""
        return self.sigma, self.lam, self.p

    def added(self, rows: Table, known: Table, rng: np.random.Generator) -> Table:
        """``rows`` with noise; precision, range, spread and categories are those of ``known``."""

        def noisy(column: Column) -> Column:
            there = known[column.name].present()
            if len(there) == 0:
                return column
            if column.values is not None:
                return resampled(column, there, self.p, rng)
            if column.kind != "integer":
                return jittered(column, there, self.sigma, rng)
            more = rng.poisson(self.lam, len(column))
            return replace(column, cells=np.where(column.missing, column.cells, column.cells + more))

        return rows.map(noisy)


def every_noise(levels: Sequence[float] = (0.0, 0.05)) -> list[Noise]:
    """All configurations of sigma, lam and p over ``levels``, the one without noise first."""
    return [Noise(*values) for values in itertools.product(sorted(set(levels)), repeat=3)]


def leaky_table(train: Table, release: Table, fraction: float, noise: Noise, seed: int) -> Table:
    """As many rows as ``release`` has: ``fraction`` of them from ``train``, with noise, the others from ``release``.

    Tables of one schema. Training rows are drawn without replacement, and all of them once before any twice:
    where both have the same number of rows, fraction 1 is a copy of train. With one ``seed`` a larger fraction leaks
    the same rows and more, with the same noise.
    """
    _check(fraction)
    rng, size = np.random.default_rng([seed, 11]), len(release)
    rounds = [rng.permutation(len(train)) for _ in range(-(-size // max(len(train), 1)))]
    leaked = train.take(np.concatenate(rounds)[:size])
    others = release.take(rng.permutation(size))
    noisy = noise.added(leaked, train, np.random.default_rng([seed, 12]))
    count = round(fraction * size)
    return Table.stack([noisy.take(slice(count)), others.take(slice(count, None))])


def leaky_cases(
    train: Table,
    release: Table,
    *,
    fractions: Iterable[float] = FRACTIONS,
    noises: Iterable[Noise] | None = None,
    seed: int = 0,
) -> Iterator[Case]:
    """The cases of the leaky evaluation: every fraction with every noise (default: all of {0, 0.05})."""
    chosen = sorted(set(fractions))
    _check(*chosen)

    def case(noise: Noise, fraction: float) -> Case:
        rows = partial(leaky_table, train, release, fraction, noise, seed)
        return Case(str(noise), fraction, lambda: (rows(), fraction))

    for noise in every_noise() if noises is None else noises:
        yield from (case(noise, fraction) for fraction in chosen)


def _check(*fractions: float) -> None:
    if not all(0 <= fraction <= 1 for fraction in fractions):
        raise ConfigError("the fraction that leaks must be a number from 0 to 1.")
