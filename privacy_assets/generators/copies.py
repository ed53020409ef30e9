"""Generators that leak on purpose, to show that the gate closes. Never publish what they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from privacy_assets.generators.base import FittedGenerator, Generator, Training, read_train, write_table
from privacy_assets.settings import declared
from privacy_assets.tables.column import Column
from privacy_assets.tables.precision import UNITS, decimals_of, round_decimals, unit_of, whole_decimals_of
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table


@declared
class Copy(Generator):
    """Training rows drawn without replacement, and with replacement once all are used."""

    name = "copy"
    summary = "DEMONSTRATION ONLY: publishes the private rows themselves, so that the gate can be seen to close."

    def overfitting_protection(self) -> str:
        """See :meth:`Generator.overfitting_protection`: nothing."""
        return ""

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        return FittedCopy(self, train)

    def load(self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]) -> FittedGenerator:
        """See :meth:`Generator.load`."""
        return FittedCopy(self, read_train(folder, schema))

    def changed(self, drawn: Table, train: Table, rng: np.random.Generator) -> Table:
        """What becomes of the rows ``drawn`` from ``train``: nothing."""
        return drawn


@declared
class NoisyCopy(Copy):
    """Copies with small changes: what a generator that has over-learned its training rows makes.

    Numbers and dates move by a normal error of ``noise`` standard deviations of their column, rounded to the column's
    own precision and clipped to its range. A category or boolean is resampled from its column with probability
    ``redraw``. A missing value stays missing.
    """

    name = "noisy_copy"
    summary = (
        "DEMONSTRATION ONLY: publishes the private rows with slight changes, so that the gate can be seen to close."
    )

    noise: float = Field(default=0.1, ge=0, description="standard deviations by which numbers move")
    redraw: float = Field(default=0.05, ge=0, le=1, description="probability that a category is resampled")

    def changed(self, drawn: Table, train: Table, rng: np.random.Generator) -> Table:
        """The rows ``drawn`` from ``train`` with noise on them."""

        def noisy(column: Column) -> Column:
            known = train[column.name].present()
            if len(known) == 0:
                return column
            if column.values is not None:
                return resampled(column, known, self.redraw, rng)
            return jittered(column, known, self.noise, rng)

        return drawn.map(noisy)


class FittedCopy(FittedGenerator):
    """The training table itself."""

    generator: Copy

    def __init__(self, generator: Copy, train: Table) -> None:
        self.generator, self.schema, self.train = generator, train.schema, train

    def _sample(self, rows: int, seed: int) -> Table:
        rng, n = np.random.default_rng(seed), len(self.train)
        once = rng.permutation(n)[:rows]
        again = rng.integers(0, n, max(rows - n, 0))
        return self.generator.changed(self.train.take(np.concatenate([once, again])), self.train, rng)

    def _save(self, folder: Path) -> dict[str, Any]:
        write_table(self.train.frame(), folder)
        return {}


def resampled(column: Column, known: Column, probability: float, rng: np.random.Generator) -> Column:
    """Each cell with ``probability`` replaced by one of ``known``, of which none is missing; missing ones stay."""
    others = known.take(rng.integers(0, len(known), len(column)))
    change = (rng.random(len(column)) < probability) & ~column.missing
    return column.where(~change, others)


def jittered(column: Column, known: Column, noise: float, rng: np.random.Generator) -> Column:
    """Numbers or dates moved by normal errors of ``noise`` standard deviations of ``known``; a missing one stays.

    They keep the precision and the range of ``known``, of which none is missing. Whole numbers and dates move by whole
    steps of it, exactly.
    """
    values, gone = known.cells, column.missing
    low, high = values.min(), values.max()
    if column.kind == "numeric":
        moved = column.cells + noise * values.std() * rng.normal(size=len(column))
        decimals = decimals_of(values)
        moved = moved if decimals is None else round_decimals(moved, decimals)
        return replace(column, cells=np.clip(moved, low, high))
    step = UNITS[unit_of(values)] if column.kind == "datetime" else 10 ** -whole_decimals_of(values)
    error = noise * values.astype(np.float64).std() * rng.normal(size=len(column))
    moved = np.where(gone, 0, column.cells) + np.round(error / step).astype(np.int64) * step
    return replace(column, cells=np.where(gone, column.cells, np.clip(moved, low, high)))
