"""Releases of known truth for the battery, each with its expected verdict.

"pass": no real person is disclosed. "refused": a person is. "undecided": there is too little data,
or the holdout was not unseen. Truths and expected verdicts were written down before any tool
evaluated a release.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from benchmarks.battery_makers import (
    Make,
    among_shuffled,
    between,
    blanked,
    both_copied,
    copies,
    first,
    fresh,
    generated,
    holdout_copied,
    isolated,
    law_fitted,
    moved,
    one_redrawn,
    outlier,
    people_copied,
    rounded,
    saw_holdout,
)
from benchmarks.battery_tables import Sources, draw
from benchmarks.releases import SUBJECT, World, away, bare, densest, independent, isolated_copies

PASS, REFUSED, UNKNOWN = "pass", "refused", "undecided"
LARGE = (8_000, 2_000, 8_000)
HALF = (4_000, 2_000, 4_000)
PEOPLE = (1_700, 1_700, 1_300)
REFERENCE = 2_000
CODES = 100  # maximum number of values of a column with a known list of values


@dataclass(frozen=True, eq=False)
class Given:
    """Input of a tool; ``subject`` names the subject column of the real tables, if any.

    ``domains`` contain the values of low-cardinality columns in the whole table, as its owner would
    know them.
    """

    train: pd.DataFrame
    holdout: pd.DataFrame
    synthetic: pd.DataFrame
    reference: pd.DataFrame | None
    subject: str | None
    world: World
    domains: dict[str, list[Any]]


@dataclass(frozen=True)
class Entry:
    """Release of the battery.

    ``leaked`` is the share of its rows or people that represent a training person; NaN if no share
    is defined. ``also`` lists metrics evaluated in addition to the default ones.
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
        """Unique name in the battery."""
        return f"{self.table}: {self.what}"

    def build(self, sources: Sources) -> Given:
        """Build the tables of the release, deterministically."""
        seed = zlib.crc32(self.name.encode()) % 2**31
        frame = sources[self.table]
        reference = 500 if SUBJECT in frame else REFERENCE
        world, others = draw(frame, self.shape, reference, seed)
        world = self.change(world)
        subject = SUBJECT if SUBJECT in frame else None
        real = [part if subject else bare(part) for part in (world.train, world.holdout, others)]
        return Given(
            real[0],
            real[1],
            self.make(world).reset_index(drop=True),
            real[2],
            subject,
            world,
            codes_of(bare(frame)),
        )


def codes_of(frame: pd.DataFrame) -> dict[str, list[Any]]:
    """Return the values of string columns with few values and of columns with two integers."""
    texts, numbers = frame.select_dtypes(["object", "string"]), frame.select_dtypes("integer")
    most = dict.fromkeys(texts, CODES) | dict.fromkeys(numbers, 2)
    return {
        name: frame[name].dropna().unique().tolist()
        for name in most
        if frame[name].nunique() <= most[name]
    }


_ADULT = [
    Entry("adult", "fresh rows", PASS, 0, fresh),
    Entry("adult", "fresh rows, columns shuffled one by one", PASS, 0, independent),
    Entry("adult", "densest unseen rows", PASS, 0, densest),
    *(
        Entry("adult", f"{part:.0%} copies", REFUSED, part, copies(part))
        for part in (0.05, 0.1, 0.2, 0.5, 1.0)
    ),
    *(
        Entry("adult", f"{part:.0%} copies, numbers moved", REFUSED, part, moved(part))
        for part in (0.1, 0.2, 1.0)
    ),
    *(
        Entry("adult", f"{part:.0%} copies, a column redrawn", REFUSED, part, one_redrawn(part))
        for part in (0.1, 0.2)
    ),
    *(
        Entry("adult", f"{part:.0%} copies, numbers binned", REFUSED, part, rounded(part))
        for part in (0.2, 1.0)
    ),
    Entry("adult", "10% copies, the others shuffled", REFUSED, 0.1, among_shuffled),
    Entry("adult", "80 isolated rows copied", REFUSED, 0.01, isolated(80)),
    Entry("adult", "40 isolated rows copied, numbers moved", REFUSED, 0.005, isolated_copies),
    Entry("adult", "fresh rows less the tenth nearest to train", REFUSED, math.nan, away),
    Entry("adult", "20% copies of the holdout", REFUSED, math.nan, holdout_copied),
]
_GENERATORS = [
    Entry("adult", "trees, leaf 50", PASS, 0, generated("synthpop", min_samples_leaf=50)),
    Entry(
        "adult",
        "trees, leaf 5",
        REFUSED,
        math.nan,
        generated("synthpop", min_samples_leaf=5, shrinkage=0),
    ),
    Entry("adult", "Bayesian network", PASS, 0, generated("baynet")),
    Entry("adult", "PrivBayes, epsilon 1", PASS, 0, generated("privbayes", epsilon=1.0)),
    Entry("adult", "RVAE, 20 epochs", PASS, 0, generated("rvae", epochs=20), HALF),
    Entry("adult", "generator of noisy copies", REFUSED, 1, generated("noisy_copy")),
    Entry("census", "trees, leaf 50", PASS, 0, generated("synthpop", min_samples_leaf=50)),
    Entry(
        "census",
        "trees, leaf 5",
        REFUSED,
        math.nan,
        generated("synthpop", min_samples_leaf=5, shrinkage=0),
    ),
    Entry("census", "Bayesian network", PASS, 0, generated("baynet")),
]
_SIZES = [
    Entry("adult", "holdout of 1,000, fresh rows", PASS, 0, fresh, (8_000, 1_000, 8_000)),
    Entry(
        "adult", "holdout of 1,000, 10% copies", REFUSED, 0.1, copies(0.1), (8_000, 1_000, 8_000)
    ),
    Entry("adult", "holdout twice train, fresh rows", PASS, 0, fresh, (4_000, 8_000, 4_000)),
    Entry(
        "adult",
        "holdout twice train, 5% copies",
        REFUSED,
        0.05,
        copies(0.05),
        (4_000, 8_000, 4_000),
    ),
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
    Entry(
        "adult", "outlier in train, 10% copies", REFUSED, 0.1, copies(0.1), change=outlier("train")
    ),
    Entry(
        "adult",
        "outlier in the holdout, 5% copies",
        REFUSED,
        0.05,
        copies(0.05),
        change=outlier("holdout"),
    ),
    Entry("adult, cells missing", "fresh rows", PASS, 0, fresh),
    Entry("adult, cells missing", "10% copies", REFUSED, 0.1, copies(0.1)),
    Entry("adult, cells missing", "20% copies, further cells missing", REFUSED, 0.2, blanked(0.2)),
    Entry(
        "adult, cells missing",
        "trees, leaf 50",
        PASS,
        0,
        generated("synthpop", min_samples_leaf=50),
    ),
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
    Entry("stays", "trees, leaf 50", PASS, 0, generated("synthpop", min_samples_leaf=50)),
]
_TABLES = [
    Entry("census", "fresh rows", PASS, 0, fresh),
    Entry("census", "densest unseen rows", PASS, 0, densest),
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
    Entry(
        "patients",
        "5% of the people copied, 4 times",
        REFUSED,
        0.05,
        people_copied(0.05, 4),
        PEOPLE,
    ),
    Entry(
        "patients",
        "one person copied, 100 times",
        REFUSED,
        1 / PEOPLE[0],
        people_copied(0, 100),
        PEOPLE,
    ),
    Entry(
        "patients",
        "trees, leaf 1,000",
        PASS,
        0,
        generated("synthpop", min_samples_leaf=1_000),
        PEOPLE,
    ),
    Entry(
        "patients",
        "trees, leaf 1",
        REFUSED,
        math.nan,
        generated("synthpop", min_samples_leaf=1, shrinkage=0),
        PEOPLE,
    ),
]
_ASKED = ("holdout_leakage",)
_BROUGHT = [
    Entry("adult", "brought, fresh rows", PASS, 0, fresh, also=_ASKED),
    Entry(
        "adult",
        "brought, 20% copies of train and holdout",
        UNKNOWN,
        0.2,
        both_copied(0.2),
        also=_ASKED,
    ),
    Entry(
        "census",
        "brought, trees fitted to train and holdout, leaf 5",
        UNKNOWN,
        math.nan,
        saw_holdout("synthpop", min_samples_leaf=5, shrinkage=0),
        also=_ASKED,
    ),
    Entry("adult", "embedded, fresh rows", PASS, 0, fresh, HALF, embedder=True),
    Entry(
        "adult",
        "embedded, 10% copies, numbers moved",
        REFUSED,
        0.1,
        moved(0.1),
        HALF,
        embedder=True,
    ),
]
BATTERY = [*_ADULT, *_GENERATORS, *_SIZES, *_VALUES, *_TABLES, *_BROUGHT]
