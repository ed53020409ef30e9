"""Construct releases of known truth from a world: fresh rows, copies of every kind, and generated
rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from benchmarks.releases import SUBJECT, World, bare, independent, jittered, resampled
from privacy_assets.distances.nearest import nearest, nearest_rows
from privacy_assets.generators import build_generator
from privacy_assets.infra.progress import silent
from privacy_assets.tables.table import Table

Make = Callable[[World], pd.DataFrame]
HUGE = 10**9


def fresh(world: World) -> pd.DataFrame:
    """Return rows of people who are in no other table."""
    return world.fresh


def copies(share: float) -> Make:
    """Return a release with this share of copied training rows; the other rows are fresh."""
    return lambda world: world.with_leak(world.some(share))


def among_shuffled(world: World) -> pd.DataFrame:
    """Return one tenth copies; the others are fresh rows with independently shuffled columns."""
    return world.with_leak(world.some(0.1), independent(world))


def moved(share: float) -> Make:
    """Return copies with numbers shifted by 0.1 standard deviations."""
    return lambda world: world.with_leak(jittered(world.some(share), world.schema, world.rng()))


def one_redrawn(share: float) -> Make:
    """Return copies in which one column of each row is resampled."""
    return lambda world: world.with_leak(
        resampled(world.some(share), bare(world.train), world.rng())
    )


def rounded(share: float) -> Make:
    """Return copies in which each number is the midpoint of one of 20 bins of equal width."""

    def make(world: World) -> pd.DataFrame:
        rows = world.some(share).reset_index(drop=True)
        for name in world.schema.of_kind("integer", "numeric"):
            low, high = world.train[name].min(), world.train[name].max()
            bins = np.floor((rows[name] - low) / (high - low) * 20).clip(0, 19)
            rows[name] = (
                (low + (bins + 0.5) * (high - low) / 20).round().astype(world.train[name].dtype)
            )
        return world.with_leak(rows)

    return make


def blanked(share: float) -> Make:
    """Return copies in which a fifth of the cells are missing."""

    def make(world: World) -> pd.DataFrame:
        rows = world.some(share)
        return world.with_leak(rows.mask(world.rng().random(rows.shape) < 0.2))

    return make


def isolated(number: int) -> Make:
    """Return copies of the training rows farthest from all others."""

    def make(world: World) -> pd.DataFrame:
        rows = world.encoded(world.train).dense
        alone = np.argsort(
            -nearest(rows, rows, 1, exclude_self=True).distances[:, 0], kind="stable"
        )[:number]
        return world.with_leak(bare(world.train).iloc[alone])

    return make


def generated(name: str, **settings: object) -> Make:
    """Generate a release of the usual size with a generator fitted on train."""
    return lambda world: _generated(world, world.train, name, settings)


def saw_holdout(name: str, **settings: object) -> Make:
    """Generate a release with a generator fitted on train and holdout."""
    return lambda world: _generated(world, pd.concat([world.train, world.holdout]), name, settings)


def _generated(
    world: World, learnt: pd.DataFrame, name: str, settings: dict[str, object]
) -> pd.DataFrame:
    rows = Table.of(bare(learnt), world.schema, where="train")
    fitted = build_generator(name, settings).fit(
        rows, seed=world.seed, device="cpu", progress=silent
    )
    return fitted.sample(len(world.fresh), seed=world.seed).frame()


def both_copied(share: float) -> Make:
    """Return copies of rows of train and holdout together."""

    def make(world: World) -> pd.DataFrame:
        real = bare(pd.concat([world.train, world.holdout]))
        return world.with_leak(
            real.sample(round(share * len(world.fresh)), random_state=world.seed)
        )

    return make


def holdout_copied(world: World) -> pd.DataFrame:
    """Return a release of which a fifth are rows of the holdout."""
    return world.with_leak(bare(world.holdout).head(len(world.fresh) // 5))


def people_copied(share: float, times: int) -> Make:
    """Repeat all rows of a share of the training people (at least one person); the other rows are
    fresh.
    """

    def make(world: World) -> pd.DataFrame:
        people = world.train[SUBJECT].drop_duplicates()
        chosen = people.head(max(1, round(share * len(people))))
        rows = bare(world.train[world.train[SUBJECT].isin(chosen)])
        return world.with_leak(pd.concat([rows] * times, ignore_index=True))

    return make


def law_fitted(world: World) -> pd.DataFrame:
    """Draw from the normal distribution with the mean and covariance of train: 44 parameters of
    8,000 people.
    """
    known = bare(world.train)
    drawn = world.rng().multivariate_normal(known.mean(), known.cov(), len(world.fresh))
    return pd.DataFrame(drawn, columns=known.columns)


def between(world: World) -> pd.DataFrame:
    """Return rows between a training person and the nearest other one, as in SMOTE."""
    known = bare(world.train)
    rows = world.encoded(known)
    other = nearest_rows(rows, rows, k=1, exclude_self=True).indices[:, 0]
    part = world.rng().random((len(known), 1))
    return pd.DataFrame(
        known.to_numpy() * (1 - part) + known.to_numpy()[other] * part, columns=known.columns
    )


def first(rows: int, make: Make = fresh) -> Make:
    """Return the first rows of a release."""
    return lambda world: make(world).head(rows)


def outlier(role: str) -> Callable[[World], World]:
    """Set one extreme value in a table of the world."""

    def change(world: World) -> World:
        rows = getattr(world, role).copy()
        rows.loc[len(rows) - 1, "capital_gain"] = HUGE
        return replace(world, **{role: rows})

    return change
