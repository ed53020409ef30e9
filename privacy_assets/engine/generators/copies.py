"""Generators that leak on purpose, to show that the gate closes. Never publish what they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field

from privacy_assets.engine.generators.base import FittedGenerator, Generator, Training, read_train, write_train
from privacy_assets.engine.settings import declared
from privacy_assets.engine.tables.precision import UNITS, decimals_of, round_decimals, unit_of, whole_decimals_of
from privacy_assets.engine.tables.schema import TableSchema


@dataclass(frozen=True)
class Copy(Generator):
    """Training rows drawn without replacement, and with replacement once all are used."""

    name = "copy"
    summary = "DEMONSTRATION ONLY: publishes the private rows themselves, so that the gate can be seen to close."

    def overfitting_protection(self) -> str:
        """See :meth:`Generator.overfitting_protection`: nothing."""
        return ""

    def _fit(self, train: pd.DataFrame, schema: TableSchema, training: Training) -> FittedGenerator:
        return FittedCopy(self, schema, train.copy())

    @classmethod
    def load(cls, folder: Path, manifest: Mapping[str, Any]) -> FittedGenerator:
        """See :meth:`Generator.load`."""
        schema = TableSchema.from_json(manifest["schema"])
        return FittedCopy(cls(**manifest["settings"]), schema, read_train(folder, schema))


@declared
class NoisyCopy(Copy):
    """Copies with small changes: what a generator that has over-learned its training rows makes.

    Numbers and dates move by a normal error of ``noise`` standard deviations of their column, rounded to the column's
    own precision and clipped to its range. A category or boolean is redrawn from its column with probability
    ``redraw``. A missing value stays missing.
    """

    name = "noisy_copy"
    summary = (
        "DEMONSTRATION ONLY: publishes the private rows with slight changes, so that the gate can be seen to close."
    )

    noise: float = Field(default=0.1, ge=0, description="standard deviations by which numbers move")
    redraw: float = Field(default=0.05, ge=0, le=1, description="probability that a category is resampled")

    def _fit(self, train: pd.DataFrame, schema: TableSchema, training: Training) -> FittedGenerator:
        return FittedNoisyCopy(self, schema, train.copy())

    @classmethod
    def load(cls, folder: Path, manifest: Mapping[str, Any]) -> FittedGenerator:
        """See :meth:`Generator.load`."""
        schema = TableSchema.from_json(manifest["schema"])
        return FittedNoisyCopy(cls(**manifest["settings"]), schema, read_train(folder, schema))


class FittedCopy(FittedGenerator):
    """The training table itself."""

    def __init__(self, generator: Copy, schema: TableSchema, train: pd.DataFrame) -> None:
        self.generator, self.schema, self.train = generator, schema, train

    def _sample(self, rows: int, seed: int) -> pd.DataFrame:
        return self._drawn(rows, np.random.default_rng(seed))

    def _drawn(self, rows: int, rng: np.random.Generator) -> pd.DataFrame:
        n = len(self.train)
        once = rng.permutation(n)[:rows]
        again = rng.integers(0, n, max(rows - n, 0))
        return self.train.iloc[np.concatenate([once, again])].reset_index(drop=True)

    def _save(self, folder: Path) -> dict[str, Any]:
        write_train(self.train, folder)
        return {}


class FittedNoisyCopy(FittedCopy):
    """The training table and the noise to put on it."""

    generator: NoisyCopy

    def _sample(self, rows: int, seed: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        drawn = self._drawn(rows, rng)
        for column in self.schema.columns:
            known = self.train[column.name].dropna()
            if known.empty:
                continue
            if column.kind in ("categorical", "boolean"):
                drawn[column.name] = redrawn(drawn[column.name], known, self.generator.redraw, rng)
            else:
                drawn[column.name] = jittered(drawn[column.name], known, self.generator.noise, rng)
        return drawn


def redrawn(values: pd.Series, known: pd.Series, probability: float, rng: np.random.Generator) -> pd.Series:
    """``values``, each with ``probability`` replaced by one of ``known``; missing ones stay."""
    others = known.iloc[rng.integers(0, len(known), len(values))].reset_index(drop=True)
    change = (rng.random(len(values)) < probability) & values.notna().to_numpy()
    return values.where(~change, others)


def jittered(values: pd.Series, known: pd.Series, noise: float, rng: np.random.Generator) -> pd.Series:
    """Canonical ``values`` moved by normal errors of ``noise`` standard deviations of ``known``; a missing one stays.

    They keep the precision and the range of ``known``. Whole numbers and dates move by whole steps of it, exactly.
    """
    there = values.notna().to_numpy()
    moved = values.copy()
    if pd.api.types.is_float_dtype(known.dtype):
        error = noise * known.std(ddof=0) * rng.normal(size=len(values))
        decimals, shifted = decimals_of(known.to_numpy(dtype=np.float64)), values + error
        if decimals is not None:
            shifted = pd.Series(round_decimals(shifted.to_numpy(dtype=np.float64), decimals), index=values.index)
        return moved.where(~there, shifted.clip(known.min(), known.max()))
    dates = pd.api.types.is_datetime64_any_dtype(known.dtype)
    numbers = known.astype("datetime64[us]").astype("int64") if dates else known.astype("int64")
    step = UNITS[unit_of(numbers.to_numpy())] if dates else 10 ** -whole_decimals_of(numbers.to_numpy())
    error = noise * numbers.astype("float64").std(ddof=0) * rng.normal(size=len(values))
    steps = pd.Series(np.round(error / step).astype("int64") * step, dtype="Int64")
    current = (
        (values.where(there).astype("datetime64[us]") - pd.Timestamp(0)) // pd.Timedelta(1, "us") if dates else values
    )
    shifted = (current.astype("Int64") + steps).clip(int(numbers.min()), int(numbers.max()))
    return pd.to_datetime(shifted, unit="us").astype("datetime64[us]") if dates else shifted
