"""The statistics of singling out: what the matches of a set of queries say about the table, and their null law."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from privacy_assets.engine.inputs import MetricInputs
from privacy_assets.engine.intervals import RESOLUTION_QUANTILE, permutation_band, random_sets, wilson
from privacy_assets.engine.parallel import in_threads
from privacy_assets.engine.tables.blocks import block


@dataclass(frozen=True, eq=False)
class People:
    """The people of train and holdout, numbered from 0.

    ``subject`` int64 (rows,) names the person of each row of train and holdout stacked, ``member`` bool (people,) says
    who stands in train. People are numbered by the content of their rows, so that the order of rows does not steer the
    permutations.
    """

    subject: np.ndarray
    member: np.ndarray

    @classmethod
    def of(cls, inputs: MetricInputs) -> People:
        """The people of ``inputs``."""
        codes = inputs.subject_codes("train", "holdout")
        content = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
        train = np.arange(len(codes)) < len(inputs.train)
        first = np.unique(codes[np.lexsort((codes, train, content))], return_index=True)[1]
        number = np.empty(len(first), dtype=np.int64)
        number[np.argsort(first)] = np.arange(len(first))
        member = np.zeros(len(first), dtype=bool)
        member[number[codes[train]]] = True
        return cls(number[codes], member)

    def __len__(self) -> int:
        return len(self.member)

    @cached_property
    def members(self) -> int:
        """How many stand in train."""
        return int(self.member.sum())

    def relabelled(self, permutations: int, rng: np.random.Generator) -> np.ndarray:
        """Random sets of as many members, uint64 (people, words): a bit a set, at least ``permutations`` of them.

        Which threads draw them does not matter: each word has its own random stream.
        """
        streams = rng.spawn(-(-permutations // 64))
        out = block((len(self), len(streams)), np.uint64)

        def fill(word: int) -> None:
            out[:, word] = random_sets(len(self), self.members, streams[word])

        in_threads(fill, range(len(streams)))
        return out


@dataclass(frozen=True, eq=False)
class Configuration:
    """The queries of one kind and how many people they match.

    ``in_train`` and ``in_holdout`` int64 (queries,), how many members and other people match; ``null_hits`` int64
    (permutations,), how many queries match exactly one member under permuted labels.
    """

    attack: str
    columns: int
    in_train: np.ndarray
    in_holdout: np.ndarray
    null_hits: np.ndarray

    def __len__(self) -> int:
        return len(self.in_train)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A risk, its interval, and the value that the upper end stays within in 99.5 % of leak-free releases."""

    value: float
    low: float
    high: float
    resolution: float


@dataclass(frozen=True, eq=False)
class Evidence:
    """Risk of each configuration (NaN without queries) and of each pool that has queries, and E[max] under the null.

    Intervals are simultaneous over the configurations, and single for each pool.
    """

    configurations: list[Estimate]
    pools: dict[str, Estimate]
    null_max: float


def exactly_one(total: int, marked: np.ndarray, drawn: int) -> np.ndarray:
    """Probability that ``drawn`` of ``total`` people, without replacement, hold exactly one of the ``marked``."""
    from scipy import stats  # slow to import: only where a table is measured

    values, inverse = np.unique(marked, return_inverse=True)
    return np.asarray(stats.hypergeom.pmf(1, total, values, drawn))[inverse]


def weigh(attacked: Sequence[Configuration], pools: Mapping[str, Sequence[int]], people: People) -> Evidence:
    """Estimate the risk of each configuration and of each pool (positions in ``attacked``)."""
    nothing = Estimate(math.nan, math.nan, math.nan, math.nan)
    measured = [at for at, found in enumerate(attacked) if len(found)]
    sets = {name: [at for at in pool if at in measured] for name, pool in pools.items()}
    sets = {name: pool for name, pool in sets.items() if pool}
    if not measured:
        return Evidence([nothing] * len(attacked), {}, math.nan)
    groups = [[at] for at in measured] + list(sets.values())
    risks = [_risks([attacked[at] for at in group], people) for group in groups]
    observed, null = np.array([value for value, _ in risks]), np.stack([law for _, law in risks], axis=1)
    alone = len(measured)
    of = dict(zip(measured, _estimates(observed[:alone], null[:, :alone]), strict=True))
    pooled = {name: _estimates(observed[[at]], null[:, [at]])[0] for at, name in enumerate(sets, start=alone)}
    largest = float(np.minimum(null[:, :alone].max(axis=1), 1.0).mean())
    return Evidence([of.get(at, nothing) for at in range(len(attacked))], pooled, largest)


def _risks(group: Sequence[Configuration], people: People) -> tuple[float, np.ndarray]:
    """Risk of the queries of some configurations: observed, and under permuted labels (permutations,)."""
    queries = sum(len(found) for found in group)
    matched = np.concatenate([found.in_train + found.in_holdout for found in group])
    chance = exactly_one(len(people), matched, people.members).mean()
    scale = 1 / (1 - people.members / len(people))
    hits = sum(int((found.in_train == 1).sum()) for found in group)
    null_hits = np.sum([found.null_hits for found in group], axis=0)
    return scale * (hits / queries - chance), scale * (null_hits / queries - chance)


def _estimates(observed: np.ndarray, null: np.ndarray) -> list[Estimate]:
    """Intervals of the groups' risks, simultaneous; everything is cut off at 1.

    Queries that come true under no permutation have a chance too, of which the permutations tell nothing: theirs reach
    to 0.
    """
    band = permutation_band(observed, null)
    never = band.sd == 0
    low, high = np.where(never, np.minimum(band.low, 0), band.low), np.where(never, np.maximum(band.high, 0), band.high)
    spread = np.quantile(null - band.mean, RESOLUTION_QUANTILE, axis=0, method="higher")
    numbers = np.minimum([observed, low, high, spread + band.critical * band.sd], 1.0)
    return [Estimate(*(float(x) for x in column)) for column in numbers.T]


def describe(found: Configuration, estimate: Estimate, people: People) -> dict[str, Any]:
    """The row of a configuration in the table of the result: counts and rates only."""
    attacks, hits = len(found), (found.in_train == 1, found.in_holdout == 1)
    return {
        "attack": found.attack,
        "columns": found.columns,
        "attacks": attacks,
        "hits_train": int(hits[0].sum()),
        "hits_holdout": int(hits[1].sum()),
        "rate_train": wilson(hits[0].sum(), attacks)[0],
        "rate_holdout": wilson(hits[1].sum(), attacks)[0],
        "risk": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "giomi": giomi_risk(found.in_train, found.in_holdout, people.members, len(people) - people.members),
    }


def giomi_risk(in_train: np.ndarray, in_holdout: np.ndarray, members: int, others: int) -> float:
    """Giomi's R (Palacios eq. 6-7) at the size of the smaller side; NaN without queries.

    The hits of the larger side are replaced by their expectation on a random subset as large as the smaller one. At
    equal sizes it is (r_T - r_H) / (1 - r_H) with Wilson centres r.
    """
    size = min(members, others)
    train = wilson(float(exactly_one(members, in_train, size).sum()), len(in_train))[0]
    control = wilson(float(exactly_one(others, in_holdout, size).sum()), len(in_holdout))[0]
    return (train - control) / (1 - control)
