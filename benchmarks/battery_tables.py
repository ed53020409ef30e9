"""Source tables of the battery: two read from files, the demo, and tables drawn from known
distributions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.releases import SUBJECT, World, bare
from privacy_assets.tables.demo import load_patients

FILES = {"adult": "adult.parquet", "census": "uk_census.parquet"}
LAW_ROWS = 30_000
LEVELS = ("low", "some", "usual", "more", "high")
START = pd.Timestamp("2020-01-01")


@dataclass
class Sources:
    """Tables by name, each built or read once. ``folder`` contains the files (None: no files)."""

    folder: Path | None
    _made: dict[str, pd.DataFrame] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Return True if the table is available."""
        file = FILES.get(name.partition(",")[0])
        return file is None or (self.folder is not None and (self.folder / file).exists())

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> pd.DataFrame:
        rng = np.random.default_rng(2026)
        if name in FILES:
            read = pd.read_parquet(self.folder / FILES[name])
            return "=" + read.drop(columns="Person ID").astype(str) if name == "census" else read
        if name == "patients":
            return load_patients()
        if name == "adult, cells missing":
            adult = self["adult"]
            return adult.mask(rng.random(adult.shape) < 0.1)
        if name == "adult, one-hot":
            return one_hot(self["adult"])
        if name == "adult, 50 numbers more":
            adult = self["adult"]
            more = pd.DataFrame(
                rng.normal(size=(len(adult), 50)), columns=[f"x{i}" for i in range(50)]
            )
            return pd.concat([adult, more], axis=1)
        return {"normal": normal, "levels": levels, "cells": cells, "stays": stays}[name](rng)


def one_hot(frame: pd.DataFrame) -> pd.DataFrame:
    """Encode categories as columns of 0 and 1, about a hundred columns."""
    wide = pd.get_dummies(frame, dtype="int64")
    return wide.set_axis([f"c{i}" for i in range(wide.shape[1])], axis=1)


def normal(rng: np.random.Generator) -> pd.DataFrame:
    """Draw eight normal columns with pairwise correlation 0.5."""
    common = rng.normal(size=(LAW_ROWS, 1))
    return pd.DataFrame(
        np.sqrt(0.5) * (common + rng.normal(size=(LAW_ROWS, 8))), columns=list("abcdefgh")
    )


def levels(rng: np.random.Generator) -> pd.DataFrame:
    """Draw six columns of five levels that depend on a hidden class of four: 15,625
    combinations.
    """
    hidden = rng.integers(0, 4, LAW_ROWS)
    drawn = {name: _level(hidden, 5, rng) for name in "abcdef"}
    return pd.DataFrame({name: np.array(LEVELS)[codes] for name, codes in drawn.items()}).astype(
        object
    )


def cells(rng: np.random.Generator) -> pd.DataFrame:
    """Draw three columns of three levels: 27 combinations, each with a thousand people."""
    hidden = rng.integers(0, 2, LAW_ROWS)
    return pd.DataFrame({name: np.array(LEVELS)[_level(hidden, 3, rng)] for name in "abc"}).astype(
        object
    )


def _level(hidden: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    chances = rng.dirichlet(np.full(number, 2.0), hidden.max() + 1).cumsum(axis=1)
    return np.minimum((rng.random(len(hidden))[:, None] > chances[hidden]).sum(axis=1), number - 1)


def stays(rng: np.random.Generator) -> pd.DataFrame:
    """Draw hospital stays: dates, booleans, numbers, a category, and missing discharge dates."""
    age = rng.integers(0, 100, LAW_ROWS)
    urgent = rng.random(LAW_ROWS) < 0.2 + age / 200
    days = rng.gamma(1.5, 1 + age / 20, LAW_ROWS)
    come = START + pd.to_timedelta(rng.integers(0, 3 * 365 * 24 * 60, LAW_ROWS), unit="min")
    left = pd.Series(come + pd.to_timedelta(np.round(days * 24), unit="h"))
    return pd.DataFrame(
        {
            "age": age,
            "urgent": urgent,
            "come": come,
            "left": left.where(rng.random(LAW_ROWS) > 0.05),
            "smoker": rng.random(LAW_ROWS) < 0.25,
            "cost": np.round(np.exp(rng.normal(6, 0.5, LAW_ROWS)) * (1 + days), 2),
            "ward": np.array(list("ABCDE"))[_level(np.minimum(age // 25, 3), 5, rng)],
        }
    )


def draw(
    frame: pd.DataFrame, shape: tuple[int, int, int], reference: int, seed: int
) -> tuple[World, pd.DataFrame]:
    """Split by subject into ``shape`` of train, holdout and fresh rows, a reference, and the
    remaining rows.

    Without a column ``person`` each row is a subject. Fresh rows and reference contain all rows of
    their subjects.
    """
    rng = np.random.default_rng([seed, 4])
    named = frame if SUBJECT in frame else frame.assign(**{SUBJECT: np.arange(len(frame))})
    people = rng.permutation(named[SUBJECT].unique())
    ends = np.cumsum([*shape, reference])
    if ends[-1] > len(people):
        raise ValueError(f"{ends[-1]} people are requested, the table has {len(people)}")
    side = pd.Series(np.searchsorted(ends, np.arange(len(people)), side="right"), index=people)
    mixed = named.iloc[rng.permutation(len(named))]
    sides = mixed[SUBJECT].map(side).to_numpy()
    train, holdout, fresh, others, spare = (
        mixed[sides == part].reset_index(drop=True) for part in range(5)
    )
    return World(train, holdout, bare(fresh), bare(spare), seed), others
