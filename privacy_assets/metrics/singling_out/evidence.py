"""The statistics of singling out: what the matches of a set of queries say about the table, and their null law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privacy_assets.compute.parallel import in_threads
from privacy_assets.stats.inference import Evidence
from privacy_assets.stats.intervals import beyond, wilson, wilson_centre
from privacy_assets.stats.subjects import SETS, Subjects, random_sets
from privacy_assets.tables.memory_mapping import mapped_empty


def label_sets(people: Subjects, permutations: int, rng: np.random.Generator) -> np.ndarray:
    """Random sets of as many members, uint64 (people, words): a bit a set, at least ``permutations`` of them.

    Which threads draw them does not matter: each word has its own random stream.
    """
    streams = rng.spawn(-(-permutations // SETS))
    out = mapped_empty((len(people), len(streams)), np.uint64)

    def fill(word: int) -> None:
        out[:, word] = random_sets(len(people), people.members, streams[word])

    in_threads(fill, range(len(streams)))
    return out


@dataclass(frozen=True, eq=False)
class Configuration:
    """The queries of one kind and how many people they match.

    ``in_train`` and ``in_unseen`` int64 (queries,), how many members and other people match; ``null_hits`` int64
    (permutations,), how many queries match exactly one member under permuted labels.
    """

    attack: str
    columns: int
    in_train: np.ndarray
    in_unseen: np.ndarray
    null_hits: np.ndarray

    def __len__(self) -> int:
        return len(self.in_train)


def exactly_one(total: int, marked: np.ndarray, drawn: int) -> np.ndarray:
    """Probability that ``drawn`` of ``total`` people, without replacement, hold exactly one of the ``marked``."""
    from scipy import stats  # slow to import: only where a table is measured

    values, inverse = np.unique(marked, return_inverse=True)
    return np.asarray(stats.hypergeom.pmf(1, total, values, drawn))[inverse]


def risks(groups: Sequence[Sequence[Configuration]], people: Subjects, fewest: float = 0) -> Evidence:
    """Risk of the queries of each group of configurations, which have some; fewer than ``fewest`` count as so many."""
    found = [_risk(group, people, fewest) for group in groups]
    return Evidence(np.array([value for value, _ in found]), np.stack([law for _, law in found], axis=1))


def _risk(group: Sequence[Configuration], people: Subjects, fewest: float) -> tuple[float, np.ndarray]:
    """Observed, and under permuted labels (permutations,)."""
    matched = np.concatenate([found.in_train + found.in_unseen for found in group])
    chance = exactly_one(len(people), matched, people.members).sum()
    scale = 1 / (1 - people.members / len(people)) / max(len(matched), fewest)
    hits = sum(int((found.in_train == 1).sum()) for found in group)
    null_hits = np.sum([found.null_hits for found in group], axis=0)
    return scale * (hits - chance), scale * (null_hits - chance)


def describe(found: Configuration, people: Subjects) -> dict[str, Any]:
    """The row of a configuration in the table of the result, without its risk: counts and rates only."""
    attacks, hits = len(found), (found.in_train == 1, found.in_unseen == 1)
    return {
        "attack": found.attack,
        "columns": found.columns,
        "attacks": attacks,
        "hits_train": int(hits[0].sum()),
        "hits_unseen": int(hits[1].sum()),
        "rate_train": wilson(hits[0].sum(), attacks)[0],
        "rate_unseen": wilson(hits[1].sum(), attacks)[0],
        "risk": math.nan,
        "low": math.nan,
        "high": math.nan,
        "giomi": giomi_risk(found.in_train, found.in_unseen, people.members, len(people) - people.members),
    }


def giomi_risk(in_train: np.ndarray, in_unseen: np.ndarray, members: int, others: int) -> float:
    """Giomi's R (Palacios eq. 6-7) at the size of the smaller side; NaN without queries.

    The hits of the larger side are replaced by their expectation on a random subset as large as the smaller one. At
    equal sizes it is (r_T - r_H) / (1 - r_H) with Wilson centres r.
    """
    size, queries = min(members, others), len(in_train)
    if queries == 0:
        return math.nan
    hits = exactly_one(members, in_train, size).sum(), exactly_one(others, in_unseen, size).sum()
    return float(beyond(*(wilson_centre(found, queries) for found in hits)))
