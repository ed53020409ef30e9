"""Synthetic tables of known truth, made from real rows and trees, for the calibration and power
studies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from privacy_assets.distances.nearest import nearest, nearest_rows
from privacy_assets.generators import build_generator
from privacy_assets.infra.progress import silent
from privacy_assets.tables.encoding import EncodedTable, TabularEncoder
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

SUBJECT = "person"


@dataclass(frozen=True, eq=False)
class World:
    """Draw of the population: ``train``, ``holdout`` and as many ``fresh`` rows as a release has.

    ``spare`` are further rows, from which :func:`densest` selects. The column ``person`` of the
    real tables identifies subjects; with repeated subjects a person has 1 to 4 slightly different
    rows.
    """

    train: pd.DataFrame
    holdout: pd.DataFrame
    fresh: pd.DataFrame
    spare: pd.DataFrame
    seed: int

    @cached_property
    def schema(self) -> TableSchema:
        """Schema of all real rows, without the subject column."""
        return infer_schema(
            pd.concat([bare(self.train), bare(self.holdout), self.fresh, self.spare])
        )

    @cached_property
    def encoder(self) -> TabularEncoder:
        """Encoder fitted on train and holdout."""
        known = [bare(self.train), bare(self.holdout)]
        return TabularEncoder.fit(
            [Table.of(table, self.schema, where="real") for table in known], self.schema
        )

    def encoded(self, table: pd.DataFrame) -> EncodedTable:
        """Encode rows as metrics do."""
        return self.encoder.transform(Table.of(bare(table), self.schema, where="table"))

    def rng(self) -> np.random.Generator:
        """Return the same random generator for each release of this world."""
        return np.random.default_rng([self.seed, 1])

    def trees(self, leaf: int) -> pd.DataFrame:
        """Generate as many rows as a release has by sequential trees fitted on train."""
        learnt = Table.of(bare(self.train), self.schema, where="train")
        generator = build_generator("synthpop", {"min_samples_leaf": leaf, "shrinkage": 0})
        fitted = generator.fit(learnt, seed=self.seed, device="cpu", progress=silent)
        return fitted.sample(len(self.fresh), seed=self.seed).frame()

    def chosen(self, share: float) -> pd.DataFrame:
        """Draw a share of the release from the training rows, with the subject column."""
        wanted = round(share * len(self.fresh))
        return self.train.sample(wanted, replace=wanted > len(self.train), random_state=self.seed)

    def some(self, share: float) -> pd.DataFrame:
        """Draw a share of the release from the training rows, without the subject column."""
        return bare(self.chosen(share))

    def with_leak(self, leaked: pd.DataFrame, others: pd.DataFrame | None = None) -> pd.DataFrame:
        """Fill up leaked rows with others (fresh ones) to the size of the release."""
        others = self.fresh if others is None else others
        return pd.concat([leaked, others.iloc[len(leaked) :]], ignore_index=True)


def draw_world(
    frame: pd.DataFrame, shape: tuple[int, int, int], seed: int, *, repeated: bool = False
) -> World:
    """Split a shuffled table into ``shape`` rows of train, holdout and release; people are not
    split.

    Rows of the release belong to other people and are drawn individually: one row per person with
    several rows.
    """
    mixed = frame.sample(frac=1, random_state=seed).reset_index(drop=True)
    if repeated:
        mixed = with_repeats(mixed.iloc[: sum(shape)], np.random.default_rng([seed, 2]))
    else:
        mixed[SUBJECT] = np.arange(len(mixed))
    first = np.append(np.flatnonzero(np.diff(mixed[SUBJECT].to_numpy(), prepend=-1)), len(mixed))
    middle, end = first[np.searchsorted(first, np.cumsum(shape[:2]))]  # a person is never cut
    train, holdout = (
        part.reset_index(drop=True) for part in (mixed.iloc[:middle], mixed.iloc[middle:end])
    )
    others = mixed.iloc[end:]
    if repeated:
        others = others.groupby(SUBJECT).sample(1, random_state=seed)
    fresh, spare = (bare(part) for part in (others.iloc[: shape[2]], others.iloc[shape[2] :]))
    return World(train, holdout, fresh.reset_index(drop=True), spare, seed)


def relabeled(world: World, leaked: pd.DataFrame, seed: int) -> World:
    """Return the same people and release with shuffled membership, except that people in ``leaked``
    stay in train.

    Intervals of label-conditional statistics refer to this distribution, in which the release is
    fixed.
    """
    real = pd.concat([world.train, world.holdout], ignore_index=True)
    fixed = leaked[SUBJECT].unique()
    free = np.setdiff1d(real[SUBJECT].unique(), fixed)
    members = np.random.default_rng([seed, 3]).permutation(free)[
        : world.train[SUBJECT].nunique() - len(fixed)
    ]
    inside = real[SUBJECT].isin(np.concatenate([fixed, members]))
    sides = (real[inside].reset_index(drop=True), real[~inside].reset_index(drop=True))
    return World(*sides, world.fresh, world.spare, world.seed)


def with_repeats(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Give each person 1 to 4 rows, with numbers shifted by 0.1 standard deviations between
    them.
    """
    times = rng.integers(1, 5, len(frame))
    people = np.repeat(np.arange(len(frame)), times)
    repeated = frame.iloc[people].reset_index(drop=True)
    later = np.flatnonzero(np.diff(people, prepend=-1) == 0)
    moved = jittered(repeated.iloc[later], infer_schema(frame), rng)
    for column in repeated.columns:
        repeated.loc[later, column] = moved[column].to_numpy()
    return repeated.assign(**{SUBJECT: people})


def bare(frame: pd.DataFrame) -> pd.DataFrame:
    """Drop the subject column."""
    return frame.drop(columns=SUBJECT, errors="ignore")


def jittered(rows: pd.DataFrame, schema: TableSchema, rng: np.random.Generator) -> pd.DataFrame:
    """Shift numbers by 0.1 standard deviations, rounded and clipped to the values of the column."""
    out = rows.reset_index(drop=True)
    for name in schema.of_kind("integer", "numeric"):
        moved = out[name] + rng.normal(0, 0.1 * out[name].std(), len(out))
        moved = moved.clip(out[name].min(), out[name].max())
        out[name] = (
            moved.round().astype(out[name].dtype) if schema[name].kind == "integer" else moved
        )
    return out


def resampled(rows: pd.DataFrame, pool: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Resample one column of each row."""
    out = rows.reset_index(drop=True)
    chosen = rng.integers(0, out.shape[1], len(out))
    for position, name in enumerate(out.columns):
        mine = np.flatnonzero(chosen == position)
        out.loc[mine, name] = pool[name].to_numpy()[rng.integers(0, len(pool), len(mine))]
    return out


def independent(world: World) -> pd.DataFrame:
    """Return fresh rows with independently shuffled columns."""
    rng = world.rng()
    return world.fresh.apply(lambda column: column.to_numpy()[rng.permutation(len(column))])


def densest(world: World) -> pd.DataFrame:
    """Return the spare rows with the nearest fifth neighbor: near to many people, copies of
    none.
    """
    rows = world.encoded(world.spare)
    order = np.argsort(
        nearest_rows(rows, rows, k=5, exclude_self=True).distances[:, -1], kind="stable"
    )
    return world.spare.iloc[order[: len(world.fresh)]].reset_index(drop=True)


def away(world: World) -> pd.DataFrame:
    """Return fresh rows without the tenth nearest to train."""
    distance = nearest_rows(world.encoded(world.fresh), world.encoded(world.train)).distances[:, 0]
    return world.fresh[distance > np.quantile(distance, 0.1)].reset_index(drop=True)


def isolated_copies(world: World) -> pd.DataFrame:
    """Return jittered copies of the 40 training rows farthest from all other training rows."""
    rows = world.encoded(world.train).dense
    alone = np.argsort(-nearest(rows, rows, 1, exclude_self=True).distances[:, 0], kind="stable")[
        :40
    ]
    return world.with_leak(jittered(bare(world.train).iloc[alone], world.schema, world.rng()))


RELEASES: dict[str, Callable[[World], pd.DataFrame]] = {
    "fresh rows": lambda world: world.fresh,
    "densest unseen rows": densest,
    "trees, leaf 50": lambda world: world.trees(50),
    "trees, leaf 5": lambda world: world.trees(5),
    "5 % copies": lambda world: world.with_leak(world.some(0.05)),
    "20 % copies": lambda world: world.with_leak(world.some(0.2)),
    "20 % jittered": lambda world: world.with_leak(
        jittered(world.some(0.2), world.schema, world.rng())
    ),
    "20 % with a column redrawn": lambda world: world.with_leak(
        resampled(world.some(0.2), bare(world.train), world.rng())
    ),
    "10 % copies, others independent": lambda world: world.with_leak(
        world.some(0.1), independent(world)
    ),
    "40 isolated, jittered": isolated_copies,
    "rows near train dropped": away,
    "100 % jittered": lambda world: jittered(world.some(1.0), world.schema, world.rng()),
    "100 % copies": lambda world: world.some(1.0),
}
