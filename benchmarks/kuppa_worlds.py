"""Generators and releases of the Kuppa study: with and without copies, with and without the
filter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.generators import build_generator
from privacy_assets.generators.base import FittedGenerator, Generator, Training
from privacy_assets.generators.filters import FittedFilter, build_filter, draw
from privacy_assets.tables.encoding import EncodedTable, TabularEncoder
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

# registered name, settings, share of planted copies
GENERATORS: dict[str, tuple[str, dict[str, Any], float]] = {
    "synthpop, leaf 50": ("synthpop", {"min_samples_leaf": 50, "shrinkage": 0}, 0.0),
    "synthpop, leaf 5": ("synthpop", {"min_samples_leaf": 5, "shrinkage": 0}, 0.0),
    "baynet": ("baynet", {}, 0.0),
    "baynet, 10 % copies": ("baynet", {}, 0.1),
    "privbayes, epsilon 1": ("privbayes", {"epsilon": 1.0}, 0.0),
}

LAYERS, EPOCHS, EPSILONS = (128, 128, 128), 100, (0.01, 0.1, 0.5, 1.0, 3.0)
NETWORK: dict[str, Any] = {"hidden_dims": LAYERS, "epochs": EPOCHS}
# The generators of the paper (section 5): three hidden layers and 100 epochs. It states no widths.
PAPER: dict[str, tuple[str, dict[str, Any], float]] = {
    "rvae": ("rvae", NETWORK, 0.0),
    "wgan_gp": ("wgan_gp", NETWORK, 0.0),
    "ctgan": (
        "ctgan",
        {"generator_dim": LAYERS, "discriminator_dim": LAYERS, "epochs": EPOCHS},
        0.0,
    ),
    **{
        f"{name}, epsilon {epsilon:g}": (name, {**NETWORK, "epsilon": epsilon}, 0.0)
        for name in ("dpgan", "pategan")
        for epsilon in EPSILONS
    },
}


@dataclass(frozen=True, eq=False)
class Leaky(Generator):
    """Generator wrapper that replaces some rows by training rows."""

    inner: Generator
    share: float

    name = "leaky"
    summary = "For this study only."

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        return FittedLeaky(self, self.inner._fit(train, training), train)

    @classmethod
    def load(cls, *_: Any) -> FittedGenerator:
        raise NotImplementedError


class FittedLeaky(FittedGenerator):
    """Fitted generator and the rows to copy."""

    def __init__(self, generator: Leaky, inner: FittedGenerator, train: Table) -> None:
        self.generator, self.inner, self.train, self.schema = generator, inner, train, inner.schema

    def _sample(self, rows: int, seed: int) -> Table:
        rng = np.random.default_rng([seed, 7])
        made = self.inner.sample(rows, seed=seed)
        copies = self.train.take(rng.integers(0, len(self.train), rows))
        both = Table.stack([made, copies])
        return both.take(np.arange(rows) + rows * (rng.random(rows) < self.generator.share))

    def _save(self, folder: Any) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Screened(Generator):
    """Generator wrapper with a filter, which reads the training rows and ``unseen`` real rows."""

    inner: Generator
    unseen: Table
    method: str = "memorization"

    name = "screened"
    summary = "For this study only."

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        return self.screen(train, self.inner._fit(train, training))

    def screen(self, train: Table, inner: FittedGenerator) -> FittedScreened:
        """Add the filter to a generator that is already fitted to ``train``."""
        fitted = build_filter(self.method, {"attempts": 50}).fit([train, self.unseen], train.schema)
        return FittedScreened(self, inner, fitted)

    @classmethod
    def load(cls, *_: Any) -> FittedGenerator:
        raise NotImplementedError


class FittedScreened(FittedGenerator):
    """Fitted generator and its filter."""

    def __init__(self, generator: Screened, inner: FittedGenerator, fitted: FittedFilter) -> None:
        self.generator, self.inner, self.fitted, self.schema = (
            generator,
            inner,
            fitted,
            inner.schema,
        )
        self.dropped = 0.0

    def _sample(self, rows: int, seed: int) -> Table:
        found = draw(self.inner, [self.fitted], rows, seed=seed)
        self.dropped = found.n_dropped / found.n_drawn
        return found.table

    def _save(self, folder: Any) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Kept(Generator):
    """Generator wrapper that fits each training table once, for all sizes and filters of a
    study.
    """

    inner: Generator
    fits: dict[tuple[str, int], FittedGenerator]

    name = "kept"
    summary = "For this study only."

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        key = train.fingerprint, training.seed
        if key not in self.fits:
            self.fits[key] = self.inner.fit(train, seed=training.seed)
        return self.fits[key]

    @classmethod
    def load(cls, *_: Any) -> FittedGenerator:
        raise NotImplementedError


@lru_cache(maxsize=1)
def kept(label: str) -> Kept:
    """Build one of ``PAPER``, which is fitted once to each training table until another one is
    built.
    """
    return Kept(generator_of(label), {})


def generator_of(label: str) -> Generator:
    """Build one of ``GENERATORS`` or ``PAPER``."""
    name, settings, copies = {**GENERATORS, **PAPER}[label]
    built = build_generator(name, settings)
    return Leaky(built, copies) if copies else built


@lru_cache(maxsize=8)
def fitted_to(label: str, train: Table, seed: int) -> FittedGenerator:
    """Fit a generator to ``train``, once for all cases that use this table."""
    return generator_of(label).fit(train, seed=seed)


@dataclass(frozen=True, eq=False)
class World:
    """Population draw: 60, 20 and 20 % of the owner's rows, people outside, and the attacker's
    rows.
    """

    train: Table
    holdout: Table
    reference: Table
    outside: Table
    auxiliary: Table
    schema: TableSchema

    @property
    def unseen(self) -> Table:
        """Rows that the filter reads in addition to train."""
        return Table.stack([self.holdout, self.reference])

    @cached_property
    def encoder(self) -> TabularEncoder:
        """Encoder fitted on the attacker's data."""
        return TabularEncoder.fit(
            [self.auxiliary], self.schema, later=[self.train, self.unseen, self.outside]
        )

    def encoded(self, table: Table) -> EncodedTable:
        """Encode rows as the attacker does."""
        return self.encoder.transform(table)


def draw_world(frame: pd.DataFrame, train: int, auxiliary: int, seed: int) -> World:
    """Draw ``train`` rows, thirds of holdout and of reference, equally many outside, and
    ``auxiliary`` rows.
    """
    mixed = Table.read(frame.sample(frac=1, random_state=seed))
    ends = np.cumsum([0, train, train // 3, train // 3, train, auxiliary])
    if ends[-1] > len(mixed):
        raise SystemExit(f"{ends[-1]} rows are needed, the table has {len(mixed)}")
    parts = [mixed.take(slice(a, b)) for a, b in zip(ends[:-1], ends[1:], strict=True)]
    return World(*parts, mixed.schema)
