"""Generators that leak on purpose, to demonstrate that the gate rejects them. Never publish their
output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from privacy_assets.generators.base import (
    FittedGenerator,
    Generator,
    Training,
    read_train,
    write_table,
)
from privacy_assets.infra.settings import declared
from privacy_assets.tables.column import Column
from privacy_assets.tables.precision import (
    UNITS,
    decimals_of,
    round_decimals,
    unit_of,
    whole_decimals_of,
)
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

_LARGE = 1e150  # squares of larger numbers are not finite, or their sum is not


@declared
class Copy(Generator):
    """Return training rows, drawn without replacement until all are used, then with replacement."""

    name = "copy"
    summary = "DEMONSTRATION ONLY: copies the private rows, to show that the gate rejects them."

    def overfitting_protection(self) -> str:
        """Implement :meth:`Generator.overfitting_protection`: none."""
        return ""

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        return FittedCopy(self, train)

    def load(
        self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]
    ) -> FittedGenerator:
        """Implement :meth:`Generator.load`."""
        return FittedCopy(self, read_train(folder, schema))

    def changed(self, drawn: Table, train: Table, rng: np.random.Generator) -> Table:
        """Modify the rows ``drawn`` from ``train``. The default returns them unchanged."""
        return drawn


@declared
class NoisyCopy(Copy):
    """Return training rows with small changes, like a generator that memorized them.

    Numbers and datetimes get normal noise, are rounded to the precision of the column and clipped
    to its range. Missing values are kept.

    Attributes:
        noise: Standard deviation of the noise, in standard deviations of the column.
        redraw: Probability that a category or boolean is redrawn from its column.
    """

    name = "noisy_copy"
    summary = (
        "DEMONSTRATION ONLY: copies the private rows with small changes, to show that the gate"
        " rejects them."
    )

    noise: float = Field(
        default=0.1,
        ge=0,
        description="standard deviation of the noise, relative to that of the column",
    )
    redraw: float = Field(
        default=0.05, ge=0, le=1, description="probability that a category is resampled"
    )

    def changed(self, drawn: Table, train: Table, rng: np.random.Generator) -> Table:
        """Add noise to the rows ``drawn`` from ``train``."""

        def noisy(column: Column) -> Column:
            known = train[column.name].present()
            if len(known) == 0:
                return column
            if column.values is not None:
                return resampled(column, known, self.redraw, rng)
            return jittered(column, known, self.noise, rng)

        return drawn.map(noisy)


class FittedCopy(FittedGenerator):
    """The training table as a fitted generator."""

    generator: Copy

    def __init__(self, generator: Copy, train: Table) -> None:
        self.generator, self.schema, self.train = generator, train.schema, train

    def _sample(self, rows: int, seed: int) -> Table:
        rng, n = np.random.default_rng(seed), len(self.train)
        once = rng.permutation(n)[:rows]
        again = rng.integers(0, n, max(rows - n, 0))
        return self.generator.changed(
            self.train.take(np.concatenate([once, again])), self.train, rng
        )

    def _save(self, folder: Path) -> dict[str, Any]:
        write_table(self.train.frame(), folder)
        return {}


def resampled(
    column: Column, known: Column, probability: float, rng: np.random.Generator
) -> Column:
    """Replace cells with ``probability`` by random cells of ``known``, which has no missing values.

    Missing cells are kept.
    """
    others = known.take(rng.integers(0, len(known), len(column)))
    change = (rng.random(len(column)) < probability) & ~column.missing
    return column.where(~change, others)


def _deviation(values: np.ndarray) -> float:
    """Return the standard deviation, also of numbers with squares that are not finite."""
    largest = float(np.abs(values).max())
    unit = largest if largest > _LARGE else 1.0
    return float((values / unit).std()) * unit


def jittered(column: Column, known: Column, noise: float, rng: np.random.Generator) -> Column:
    """Add normal noise to numbers or datetimes, with ``noise`` standard deviations of ``known``;
    keep missing cells.

    The result has the precision and range of ``known``, which has no missing values. Integers and
    datetimes change by exact multiples of their precision.
    """
    values, gone = known.cells, column.missing
    low, high = values.min(), values.max()
    if column.kind == "numeric":
        with np.errstate(over="ignore"):  # infinite values are clipped below
            moved = column.cells + noise * _deviation(values) * rng.normal(size=len(column))
        decimals = decimals_of(values)
        moved = moved if decimals is None else round_decimals(moved, decimals)
        return replace(column, cells=np.clip(moved, low, high))
    step = UNITS[unit_of(values)] if column.kind == "datetime" else 10 ** -whole_decimals_of(values)
    error = noise * values.astype(np.float64).std() * rng.normal(size=len(column))
    moved = np.where(gone, 0, column.cells) + np.round(error / step).astype(np.int64) * step
    return replace(column, cells=np.where(gone, column.cells, np.clip(moved, low, high)))
