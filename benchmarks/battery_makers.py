"""How releases of known truth are made of a world: fresh rows, copies of every kind, and rows of generators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from benchmarks.releases import SUBJECT, World, bare, independent, jittered, resampled
from privacy_assets.compute.progress import silent
from privacy_assets.generators import build_generator
from privacy_assets.neighbours.nearest import nearest, nearest_rows
from privacy_assets.tables.table import Table

Make = Callable[[World], pd.DataFrame]
HUGE = 10**9


def fresh(world: World) -> pd.DataFrame:
    """Rows of people who are in no other table."""
    return world.fresh


def copies(share: float) -> Make:
    """So many training rows, the others fresh."""
    return lambda world: world.beside(world.some(share))


def among_shuffled(world: World) -> pd.DataFrame:
    """A tenth copies; the others are fresh rows whose columns were shuffled one by one."""
    return world.beside(world.some(0.1), independent(world))


def moved(share: float) -> Make:
    """Copies with numbers moved by 0.1 standard deviations."""
    return lambda world: world.beside(jittered(world.some(share), world.schema, world.rng()))


def one_redrawn(share: float) -> Make:
    """Copies with one column of each resampled."""
    return lambda world: world.beside(resampled(world.some(share), bare(world.train), world.rng()))


def rounded(share: float) -> Make:
    """Copies whose numbers are the middle of one of 20 bins of equal width."""

    def make(world: World) -> pd.DataFrame:
        rows = world.some(share).reset_index(drop=True)
        for name in world.schema.of_kind("integer", "numeric"):
            low, high = world.train[name].min(), world.train[name].max()
            bins = np.floor((rows[name] - low) / (high - low) * 20).clip(0, 19)
            rows[name] = (low + (bins + 0.5) * (high - low) / 20).round().astype(world.train[name].dtype)
        return world.beside(rows)

    return make


def blanked(share: float) -> Make:
    """Copies of which a fifth of the cells are missing."""

    def make(world: World) -> pd.DataFrame:
        rows = world.some(share)
        return world.beside(rows.mask(world.rng().random(rows.shape) < 0.2))

    return make


def isolated(number: int) -> Make:
    """Copies of the training rows farthest from all others."""

    def make(world: World) -> pd.DataFrame:
        rows = world.encoded(world.train).dense
        alone = np.argsort(-nearest(rows, rows, 1, exclude_self=True).distances[:, 0], kind="stable")[:number]
        return world.beside(bare(world.train).iloc[alone])

    return make


def generated(name: str, **settings: object) -> Make:
    """As many rows of a generator fitted on train."""
    return lambda world: _generated(world, world.train, name, settings)


def saw_holdout(name: str, **settings: object) -> Make:
    """The same, but fitted on train and holdout."""
    return lambda world: _generated(world, pd.concat([world.train, world.holdout]), name, settings)


def _generated(world: World, learnt: pd.DataFrame, name: str, settings: dict[str, object]) -> pd.DataFrame:
    rows = Table.of(bare(learnt), world.schema, where="train")
    fitted = build_generator(name, settings).fit(rows, seed=world.seed, device="cpu", progress=silent)
    return fitted.sample(len(world.fresh), seed=world.seed).frame()


def both_copied(share: float) -> Make:
    """Copies of rows of train and holdout together."""

    def make(world: World) -> pd.DataFrame:
        real = bare(pd.concat([world.train, world.holdout]))
        return world.beside(real.sample(round(share * len(world.fresh)), random_state=world.seed))

    return make


def holdout_copied(world: World) -> pd.DataFrame:
    """Rows of the holdout, a fifth of the release."""
    return world.beside(bare(world.holdout).head(len(world.fresh) // 5))


def people_copied(share: float, times: int) -> Make:
    """All rows of so many people in train (at least one of them), each row so often, the others fresh."""

    def make(world: World) -> pd.DataFrame:
        people = world.train[SUBJECT].drop_duplicates()
        chosen = people.head(max(1, round(share * len(people))))
        rows = bare(world.train[world.train[SUBJECT].isin(chosen)])
        return world.beside(pd.concat([rows] * times, ignore_index=True))

    return make


def law_fitted(world: World) -> pd.DataFrame:
    """Rows of the normal law that has the mean and the covariance of train: 44 numbers of 8,000 people."""
    known = bare(world.train)
    drawn = world.rng().multivariate_normal(known.mean(), known.cov(), len(world.fresh))
    return pd.DataFrame(drawn, columns=known.columns)


def between(world: World) -> pd.DataFrame:
    """Each row stands somewhere between a person in train and the one nearest to them, as SMOTE does it."""
    known = bare(world.train)
    rows = world.encoded(known)
    other = nearest_rows(rows, rows, k=1, exclude_self=True).indices[:, 0]
    part = world.rng().random((len(known), 1))
    return pd.DataFrame(known.to_numpy() * (1 - part) + known.to_numpy()[other] * part, columns=known.columns)


def first(rows: int, make: Make = fresh) -> Make:
    """The first rows of a release."""
    return lambda world: make(world).head(rows)


def outlier(role: str) -> Callable[[World], World]:
    """One absurd value in a table of the world."""

    def change(world: World) -> World:
        rows = getattr(world, role).copy()
        rows.loc[len(rows) - 1, "capital_gain"] = HUGE
        return replace(world, **{role: rows})

    return change
