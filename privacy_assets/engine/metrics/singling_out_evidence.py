"""The statistics of singling out: what the matches of a set of queries say about the table, and their null law."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from privacy_assets.engine.inputs import MetricInputs
from privacy_assets.engine.intervals import RESOLUTION_QUANTILE, permutation_band, permute_labels, wilson

_NEGLIGIBLE = 1e-6  # chance of a hit below which a query with very many matches is left out of the permutations


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

    @cached_property
    def keep(self) -> int:
        """Matches of a query beyond which a hit has a chance below 1e-6 under any relabelling."""
        keep = 8
        while keep < len(self):
            past_the_mode = keep * self.members > len(self)
            if past_the_mode and exactly_one(len(self), np.array([keep]), self.members)[0] < _NEGLIGIBLE:
                return keep
            keep *= 2
        return len(self)


@dataclass(frozen=True, eq=False)
class Configuration:
    """The queries of one kind and the people they match.

    ``first`` int32 (queries, keep) as from ``predicates.matched_subjects``; ``in_train`` and ``in_holdout`` int64
    (queries,), how many members and other people match.
    """

    attack: str
    columns: int
    first: np.ndarray
    in_train: np.ndarray
    in_holdout: np.ndarray

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


def weigh(
    attacked: Sequence[Configuration],
    pools: Mapping[str, Sequence[int]],
    people: People,
    permutations: int,
    rng: np.random.Generator,
) -> Evidence:
    """Estimate the risk of each configuration and of each pool (positions in ``attacked``)."""
    nothing = Estimate(math.nan, math.nan, math.nan, math.nan)
    measured = [at for at, found in enumerate(attacked) if len(found)]
    sets = {name: [at for at in pool if at in measured] for name, pool in pools.items()}
    sets = {name: pool for name, pool in sets.items() if pool}
    if not measured:
        return Evidence([nothing] * len(attacked), {}, math.nan)
    observed, null = _statistics(attacked, [[at] for at in measured] + list(sets.values()), people, permutations, rng)
    alone = len(measured)
    of = dict(zip(measured, _estimates(observed[:alone], null[:, :alone]), strict=True))
    pooled = {name: _estimates(observed[[at]], null[:, [at]])[0] for at, name in enumerate(sets, start=alone)}
    largest = float(np.minimum(null[:, :alone].max(axis=1), 1.0).mean())
    return Evidence([of.get(at, nothing) for at in range(len(attacked))], pooled, largest)


def _statistics(
    attacked: Sequence[Configuration],
    groups: list[list[int]],
    people: People,
    permutations: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Risk of each group of configurations: observed (groups,), and under permuted labels (permutations, groups)."""
    sizes = np.array([len(found) for found in attacked])
    owner = np.repeat(np.arange(len(sizes)), sizes)
    weights = np.stack([np.isin(owner, group) / sizes[group].sum() for group in groups])
    matched = np.concatenate([found.in_train + found.in_holdout for found in attacked])
    chance = weights @ exactly_one(len(people), matched, people.members)
    scale = 1 / (1 - people.members / len(people))
    hits = np.concatenate([found.in_train == 1 for found in attacked])
    first = np.concatenate([found.first for found in attacked])
    first[matched > people.keep] = -1
    touched, incidence = _incidence(first)

    def risk(labels: np.ndarray) -> np.ndarray:
        counts = incidence @ np.ascontiguousarray(labels[:, touched].T)
        return scale * ((weights @ (counts == 1)).T - chance)

    return scale * (weights @ hits - chance), permute_labels(people.member, permutations, rng, risk)


def _incidence(first: np.ndarray) -> tuple[np.ndarray, sparse.csr_array]:
    """People that stand anywhere in ``first``, and the 0/1 matrix (queries, these people)."""
    query, place = np.nonzero(first >= 0)
    touched, column = np.unique(first[query, place], return_inverse=True)
    ones = np.ones(len(query), dtype=np.float32)
    return touched, sparse.csr_array((ones, (query, column)), shape=(len(first), len(touched)))


def _estimates(observed: np.ndarray, null: np.ndarray) -> list[Estimate]:
    """Intervals of the groups' risks, simultaneous; everything is cut off at 1."""
    band = permutation_band(observed, null)
    spread = np.quantile(null - band.mean, RESOLUTION_QUANTILE, axis=0, method="higher")
    numbers = np.minimum([observed, band.low, band.high, spread + band.critical * band.sd], 1.0)
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
