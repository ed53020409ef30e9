"""Generators that leak on purpose, to demonstrate that the gate blocks them. Never publish their
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
    summary = "DEMONSTRATION ONLY: copies the private rows, to show that the gate blocks them."

    def overfitting_protection(self) -> dict[str, float]:
        """Implement :meth:`Generator.overfitting_protection`: none."""
        return {}

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        return FittedCopy(self, train)

    def load(
        self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]
    ) -> FittedGenerator:
        """Implement :meth:`Generator.load`."""
        return FittedCopy(self, read_train(folder, schema))

    def changed(self, sample: Table, train: Table, rng: np.random.Generator) -> Table:
        """Modify sampled rows. The default returns them unchanged.

        Args:
            sample: Rows drawn from ``train``.
            train: Training rows.
            rng: Random generator.
        """
        return sample


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

    noise: float = Field(default=0.1, ge=0)
    redraw: float = Field(default=0.05, ge=0, le=1)

    def changed(self, sample: Table, train: Table, rng: np.random.Generator) -> Table:
        """Implement :meth:`Copy.changed`: add noise."""

        def noisy(column: Column) -> Column:
            source = train[column.name].present()
            if len(source) == 0:
                return column
            if column.values is not None:
                return resampled(column, source, self.redraw, rng)
            return jittered(column, source, self.noise, rng)

        return sample.map(noisy)


class FittedCopy(FittedGenerator):
    """The training table as a fitted generator."""

    generator: Copy

    def __init__(self, generator: Copy, train: Table) -> None:
        self.generator = generator
        self.schema = train.schema
        self.train = train

    def _sample(self, n_rows: int, seed: int) -> Table:
        rng = np.random.default_rng(seed)
        n_train = len(self.train)
        without_replacement = rng.permutation(n_train)[:n_rows]
        with_replacement = rng.integers(0, n_train, max(n_rows - n_train, 0))
        positions = np.concatenate([without_replacement, with_replacement])
        return self.generator.changed(self.train.take(positions), self.train, rng)

    def _save(self, folder: Path) -> dict[str, Any]:
        write_table(self.train.frame(), folder)
        return {}


def resampled(
    column: Column, source: Column, probability: float, rng: np.random.Generator
) -> Column:
    """Replace random cells by cells of another column. Missing cells are kept.

    Args:
        column: Column to change.
        source: Column without missing values from which new cells are drawn.
        probability: Probability that a cell is replaced.
        rng: Random generator.
    """
    new_cells = source.take(rng.integers(0, len(source), len(column)))
    is_changed = (rng.random(len(column)) < probability) & ~column.missing
    return column.where(~is_changed, new_cells)


def _deviation(values: np.ndarray) -> float:
    """Return the standard deviation, also of numbers with squares that are not finite."""
    largest = float(np.abs(values).max())
    unit = largest if largest > _LARGE else 1.0
    return float((values / unit).std()) * unit


def jittered(column: Column, source: Column, noise: float, rng: np.random.Generator) -> Column:
    """Add normal noise to numbers or datetimes. Missing cells are kept.

    Integers and datetimes change by exact multiples of their precision.

    Args:
        column: Column to change.
        source: Column without missing values, whose precision and range the result has.
        noise: Standard deviation of the noise, in standard deviations of ``source``.
        rng: Random generator.
    """
    values = source.cells
    low = values.min()
    high = values.max()
    if column.kind == "numeric":
        with np.errstate(over="ignore"):  # infinite values are clipped below
            cells = column.cells + noise * _deviation(values) * rng.normal(size=len(column))
        decimals = decimals_of(values)
        if decimals is not None:
            cells = round_decimals(cells, decimals)
        return replace(column, cells=np.clip(cells, low, high))
    if column.kind == "datetime":
        step = UNITS[unit_of(values)]
    else:
        step = 10 ** -whole_decimals_of(values)
    is_missing = column.missing
    error = noise * values.astype(np.float64).std() * rng.normal(size=len(column))
    n_steps = np.round(error / step).astype(np.int64)
    cells = np.where(is_missing, 0, column.cells) + n_steps * step
    cells = np.where(is_missing, column.cells, np.clip(cells, low, high))
    return replace(column, cells=cells)
