"""The ground-truth battery: releases of known truth, each with the verdict that the truth asks for.

"pass": no real person is given away. "refused": somebody is. "not assessable": there is too little to judge by, or the
holdout was not unseen.
Truths and expected verdicts were written down before any tool had seen a release.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from benchmarks.battery_tables import Sources, draw
from benchmarks.releases import RELEASES, SUBJECT, World, bare, independent, jittered, redrawn
from privacy_assets.engine.generators import build_generator
from privacy_assets.engine.geometry.neighbours import nearest, nearest_rows
from privacy_assets.engine.inputs import silent
from privacy_assets.engine.tables.schema import conform

PASS, REFUSED, UNKNOWN = "pass", "refused", "not assessable"
Make = Callable[[World], pd.DataFrame]
LARGE = (8_000, 2_000, 8_000)
HALF = (4_000, 2_000, 4_000)
PEOPLE = (1_700, 1_700, 1_300)
REFERENCE = 2_000
HUGE = 10**9


@dataclass(frozen=True, eq=False)
class Given:
    """What a tool is given; ``subject`` names the column of people in the real tables, if there is one."""

    train: pd.DataFrame
    holdout: pd.DataFrame
    synthetic: pd.DataFrame
    reference: pd.DataFrame | None
    subject: str | None
    world: World


@dataclass(frozen=True)
class Entry:
    """A release of the battery.

    ``leaked`` is the share of its rows, or of its people, that stand for somebody in train; NaN where it is no share.
    ``also`` are metrics asked for beyond the default ones.
    """

    table: str
    what: str
    expected: str
    leaked: float
    make: Make
    shape: tuple[int, int, int] = LARGE
    change: Callable[[World], World] = lambda world: world
    also: tuple[str, ...] = ()
    embedder: bool = False

    @property
    def name(self) -> str:
        """Unique in the battery."""
        return f"{self.table}: {self.what}"

    def build(self, sources: Sources) -> Given:
        """The tables of the release, the same each time."""
        seed = zlib.crc32(self.name.encode()) % 2**31
        frame = sources[self.table]
        reference = 500 if SUBJECT in frame else REFERENCE
        world, others = draw(frame, self.shape, reference, seed)
        world = self.change(world)
        subject = SUBJECT if SUBJECT in frame else None
        real = [part if subject else bare(part) for part in (world.train, world.holdout, others)]
        return Given(real[0], real[1], self.make(world).reset_index(drop=True), real[2], subject, world)


# --- how releases are made --------------------------------------------------------------------------------------------


def fresh(world: World) -> pd.DataFrame:
    """Rows of people who are in no other table."""
    return world.fresh


def copies(share: float) -> Make:
    """So many training rows, the others fresh."""
    return lambda world: world.beside(world.some(share))


def moved(share: float) -> Make:
    """Copies with numbers moved by 0.1 standard deviations."""
    return lambda world: world.beside(jittered(world.some(share), world.schema, world.rng()))


def one_redrawn(share: float) -> Make:
    """Copies with one column of each drawn anew."""
    return lambda world: world.beside(redrawn(world.some(share), bare(world.train), world.rng()))


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
    rows = conform(bare(learnt), world.schema, where="train")
    fitted = build_generator(name, settings).fit(rows, world.schema, seed=world.seed, device="cpu", progress=silent)
    return fitted.sample(len(world.fresh), seed=world.seed)


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


# --- the battery ------------------------------------------------------------------------------------------------------

_ADULT = [
    Entry("adult", "fresh rows", PASS, 0, fresh),
    Entry("adult", "fresh rows, columns shuffled one by one", PASS, 0, independent),
    Entry("adult", "densest unseen rows", PASS, 0, RELEASES["densest unseen rows"]),
    *(Entry("adult", f"{share:.0%} copies", REFUSED, share, copies(share)) for share in (0.05, 0.1, 0.2, 0.5, 1.0)),
    *(Entry("adult", f"{share:.0%} copies, numbers moved", REFUSED, share, moved(share)) for share in (0.1, 0.2, 1.0)),
    *(Entry("adult", f"{share:.0%} copies, a column redrawn", REFUSED, share, one_redrawn(share)) for share in (0.1, 0.2)),
    *(Entry("adult", f"{share:.0%} copies, numbers binned", REFUSED, share, rounded(share)) for share in (0.2, 1.0)),
    Entry("adult", "10% copies, the others shuffled", REFUSED, 0.1, RELEASES["10 % copies, others independent"]),
    Entry("adult", "80 isolated rows copied", REFUSED, 0.01, isolated(80)),
    Entry("adult", "40 isolated rows copied, numbers moved", REFUSED, 0.005, RELEASES["40 isolated, jittered"]),
    Entry("adult", "fresh rows less the tenth nearest to train", REFUSED, math.nan, RELEASES["rows near train dropped"]),
    Entry("adult", "20% copies of the holdout", REFUSED, math.nan, holdout_copied),
]  # fmt: skip
_GENERATORS = [
    Entry("adult", "trees, leaf 50", PASS, 0, generated("synthpop", min_leaf=50)),
    Entry("adult", "trees, leaf 5", REFUSED, math.nan, generated("synthpop", min_leaf=5)),
    Entry("adult", "Bayesian network", PASS, 0, generated("baynet")),
    Entry("adult", "PrivBayes, epsilon 1", PASS, 0, generated("privbayes", epsilon=1.0)),
    Entry("adult", "RVAE, 20 epochs", PASS, 0, generated("rvae", epochs=20), HALF),
    Entry("adult", "generator of noisy copies", REFUSED, 1, generated("noisy_copy")),
    Entry("census", "trees, leaf 50", PASS, 0, generated("synthpop", min_leaf=50)),
    Entry("census", "trees, leaf 5", REFUSED, math.nan, generated("synthpop", min_leaf=5)),
    Entry("census", "Bayesian network", PASS, 0, generated("baynet")),
]
_SIZES = [
    Entry("adult", "holdout of 1,000, fresh rows", PASS, 0, fresh, (8_000, 1_000, 8_000)),
    Entry("adult", "holdout of 1,000, 10% copies", REFUSED, 0.1, copies(0.1), (8_000, 1_000, 8_000)),
    Entry("adult", "holdout twice train, fresh rows", PASS, 0, fresh, (4_000, 8_000, 4_000)),
    Entry("adult", "holdout twice train, 5% copies", REFUSED, 0.05, copies(0.05), (4_000, 8_000, 4_000)),
    Entry("adult", "short release, fresh rows", PASS, 0, fresh, (8_000, 2_000, 2_000)),
    Entry("adult", "short release, 20% copies", REFUSED, 0.2, copies(0.2), (8_000, 2_000, 2_000)),
    Entry("adult", "long release, fresh rows", PASS, 0, fresh, (6_000, 2_000, 24_000)),
    Entry("adult", "long release, 5% copies", REFUSED, 0.05, copies(0.05), (6_000, 2_000, 24_000)),
    Entry("adult", "holdout of 40, fresh rows", UNKNOWN, 0, fresh, (2_000, 40, 2_000)),
    Entry("adult", "holdout of 40, 100% copies", REFUSED, 1, copies(1.0), (2_000, 40, 2_000)),
    Entry("adult", "no rows", UNKNOWN, 0, first(0)),
    Entry("adult", "one fresh row", UNKNOWN, 0, first(1)),
]
_VALUES = [
    Entry("adult", "outlier in train, fresh rows", PASS, 0, fresh, change=outlier("train")),
    Entry("adult", "outlier in the release, fresh rows", PASS, 0, fresh, change=outlier("fresh")),
    Entry("adult", "outlier in train, 10% copies", REFUSED, 0.1, copies(0.1), change=outlier("train")),
    Entry("adult", "outlier in the holdout, 5% copies", REFUSED, 0.05, copies(0.05), change=outlier("holdout")),
    Entry("adult, cells missing", "fresh rows", PASS, 0, fresh),
    Entry("adult, cells missing", "10% copies", REFUSED, 0.1, copies(0.1)),
    Entry("adult, cells missing", "20% copies, further cells missing", REFUSED, 0.2, blanked(0.2)),
    Entry("adult, cells missing", "trees, leaf 50", PASS, 0, generated("synthpop", min_leaf=50)),
    Entry("adult, one-hot", "fresh rows", PASS, 0, fresh, HALF),
    Entry("adult, one-hot", "10% copies", REFUSED, 0.1, copies(0.1), HALF),
    Entry("adult, 50 numbers more", "fresh rows", PASS, 0, fresh, HALF),
    Entry("adult, 50 numbers more", "10% copies, numbers moved", REFUSED, 0.1, moved(0.1), HALF),
    Entry("levels", "fresh rows", PASS, 0, fresh),
    Entry("levels", "10% copies", REFUSED, 0.1, copies(0.1)),
    Entry("levels", "100% copies", REFUSED, 1, copies(1.0)),
    Entry("cells", "fresh rows", PASS, 0, fresh),
    Entry("stays", "fresh rows", PASS, 0, fresh),
    Entry("stays", "10% copies", REFUSED, 0.1, copies(0.1)),
    Entry("stays", "trees, leaf 50", PASS, 0, generated("synthpop", min_leaf=50)),
]
_TABLES = [
    Entry("census", "fresh rows", PASS, 0, fresh),
    Entry("census", "densest unseen rows", PASS, 0, RELEASES["densest unseen rows"]),
    Entry("census", "5% copies", REFUSED, 0.05, copies(0.05)),
    Entry("census", "20% copies, a column redrawn", REFUSED, 0.2, one_redrawn(0.2)),
    Entry("census", "100% copies", REFUSED, 1, copies(1.0)),
    Entry("normal", "fresh rows", PASS, 0, fresh),
    Entry("normal", "the law with mean and covariance of train", PASS, 0, law_fitted),
    Entry("normal", "5% copies", REFUSED, 0.05, copies(0.05)),
    Entry("normal", "20% copies, numbers moved", REFUSED, 0.2, moved(0.2)),
    Entry("normal", "between nearest people of train", REFUSED, 1, between),
    Entry("patients", "fresh rows", PASS, 0, fresh, PEOPLE),
    Entry("patients", "20% of the people copied", REFUSED, 0.2, people_copied(0.2, 1), PEOPLE),
    Entry("patients", "5% of the people copied, 4 times", REFUSED, 0.05, people_copied(0.05, 4), PEOPLE),
    Entry("patients", "one person copied, 100 times", REFUSED, 1 / PEOPLE[0], people_copied(0, 100), PEOPLE),
    Entry("patients", "trees, leaf 1,000", PASS, 0, generated("synthpop", min_leaf=1_000), PEOPLE),
    Entry("patients", "trees, leaf 1", REFUSED, math.nan, generated("synthpop", min_leaf=1), PEOPLE),
]
_ASKED = ("contamination",)
_BROUGHT = [
    Entry("adult", "brought, fresh rows", PASS, 0, fresh, also=_ASKED),
    Entry("adult", "brought, 20% copies of train and holdout", UNKNOWN, 0.2, both_copied(0.2), also=_ASKED),
    Entry("census", "brought, trees, leaf 5, of train and holdout", UNKNOWN, math.nan,
          saw_holdout("synthpop", min_leaf=5), also=_ASKED),
    Entry("adult", "embedded, fresh rows", PASS, 0, fresh, HALF, embedder=True),
    Entry("adult", "embedded, 10% copies, numbers moved", REFUSED, 0.1, moved(0.1), HALF, embedder=True),
]  # fmt: skip
BATTERY = [*_ADULT, *_GENERATORS, *_SIZES, *_VALUES, *_TABLES, *_BROUGHT]
