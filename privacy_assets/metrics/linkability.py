"""Linkability: joining two halves of a person's record through the synthetic table (Giomi et al.).

A synthetic row is *near* a real row by a set of columns if its distance is at most that of the k-th
nearest synthetic row. All rows at that distance are near, so an exact copy is near by both sets. A
real row is linked if some synthetic row is near by both sets. Rows of S that agree in all columns
of both sets count once.

Squared distances by both sets add up to the squared distance by all their columns. A row that is
near by both is therefore at most as far from the real row, by all columns, as the two reaches
together. If the nearest row by all columns is farther, no row is near by both; if it is within both
reaches, it is one. With k = 1 this decides all cases except near ties.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from privacy_assets.distances.mixed_tree import squared_distances
from privacy_assets.distances.nearest import Neighbours, distinct_encoded, nearest_rows
from privacy_assets.errors import ConfigError, did_you_mean, safe_repr
from privacy_assets.infra.progress import advance
from privacy_assets.infra.settings import InvalidSetting, Tuple, declared
from privacy_assets.metrics.base import IntervalPlot, Metric, Plot, Question
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.policy import Limit
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import MetricResult, StatisticSpec
from privacy_assets.stats.inference import PermutationResult
from privacy_assets.stats.intervals import excess_success
from privacy_assets.stats.subjects import MIN_SUBJECTS_PER_SIDE, Subjects
from privacy_assets.tables.encoding import EncodedTable
from privacy_assets.tables.names import as_named

TIE = 1e-6  # relative difference below which squared distances are equal
_CELLS = 1_000_000  # maximum number of row pairs in memory


@dataclass(frozen=True, eq=False)
class Linkage:
    """Attacked rows, and synthetic rows that are distinct by some columns.

    Attributes:
        attacked: Attacked real rows.
        synthetic: Distinct synthetic rows.
        nearest: For each attacked row, the nearest synthetic row by all these columns.
        device: torch device name.
    """

    attacked: EncodedTable
    synthetic: EncodedTable
    nearest: Neighbours
    device: str

    @classmethod
    def of(
        cls,
        synthetic: EncodedTable,
        attacked: EncodedTable,
        columns: Sequence[int],
        device: str = "cpu",
    ) -> Linkage:
        """Search both tables, neither empty, by the given encoded columns (numbered as in
        ``EncodedTable.pick``).
        """
        place = distinct_encoded(synthetic.pick(columns))[1]
        rows = synthetic.take(np.unique(place, return_index=True)[1])
        nearest = nearest_rows(attacked.pick(columns), rows.pick(columns), device=device)
        return cls(attacked, rows, nearest, device)

    def hits(self, first: Sequence[int], second: Sequence[int], k: int = 1) -> np.ndarray:
        """Return which attacked rows are linked, bool (n_Q,).

        Args:
            first: Encoded columns of the first set.
            second: Encoded columns of the second set. The sets are disjoint and together contain
                all columns of the search.
            k: Number of nearest synthetic rows by each set.

        Returns:
            True for linked rows.
        """
        distance, nearest = self.nearest.distances[:, 0], self.nearest.indices
        found = distance == 0  # exact copy
        rows = np.flatnonzero(~found)
        one, other = (self._side(columns, rows, k) for columns in (first, second))
        within = distance[rows] ** 2 <= (one.reach + other.reach) * (1 + TIE)
        every = np.arange(len(rows))
        by_both = (one.near(every, nearest[rows]) & other.near(every, nearest[rows]))[:, 0]
        found[rows[by_both]] = True
        open_ = np.flatnonzero(within & ~by_both)
        for part in np.array_split(open_, 1 + len(open_) * len(self.synthetic) // _CELLS):
            found[rows[part]] = _any_near(one, other, part)
        return found

    def _side(self, columns: Sequence[int], rows: np.ndarray, k: int) -> _Side:
        queries, points = self.attacked.take(rows).pick(columns), self.synthetic.pick(columns)
        farthest = nearest_rows(queries, points, min(k, len(points)), device=self.device).distances[
            :, -1
        ]
        return _Side(queries, points, farthest**2 * (1 + TIE))


@dataclass(frozen=True, eq=False)
class _Side:
    """Both tables restricted to one set of columns.

    Attributes:
        queries: Attacked rows.
        points: Synthetic rows.
        reach: Squared distance within which points are near, float64 (n_q,).
    """

    queries: EncodedTable
    points: EncodedTable
    reach: np.ndarray

    def near(self, queries: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return which of the points (n, c) are near the queries (n,), bool (n, c)."""
        return (
            squared_distances(self.queries.take(queries), self.points, points)
            <= self.reach[queries, None]
        )


def _any_near(first: _Side, second: _Side, queries: np.ndarray) -> np.ndarray:
    """Return which queries have a point that is near by both sides, bool (n,). All points are
    tested.
    """
    near = first.near(queries, np.tile(np.arange(len(first.points)), (len(queries), 1)))
    at, point = np.nonzero(near)
    both = second.near(queries[at], point[:, None])[:, 0]
    return np.bincount(at[both], minlength=len(queries)) > 0


Names = Annotated[tuple[str, ...], Tuple, Field(min_length=1)]
Pair = tuple[Names, Names]
_ROLES = ("train", "holdout", "synthetic")
# with 50 of 2,000 synthetic rows all of Adult is linked, so that a verbatim copy would pass
_MOST_NEIGHBOURS = 10


def _disjoint(pair: Pair | None) -> Pair | None:
    names = list(itertools.chain(*pair or ()))
    if len(set(names)) < len(names):
        raise InvalidSetting("must be two disjoint lists of column names")
    return pair


@declared
class Linkability(Metric):
    """Linkability of real rows through the synthetic table, averaged over pairs of disjoint column
    sets.

    The attacker has two files about the same people with different columns and without a common
    key, and joins two records if a synthetic row is near both. Records of typical people can be
    joined with any accurate table, which is not a leak: members (subjects in train) are compared
    with non-members (holdout).

    Args:
        column_sets: Two disjoint lists of column names. None: ``n_splits`` random halves of the
            columns.
        n_splits: Number of distinct random halves (or all, if there are fewer).
        max_targets: Maximum number of attacked rows per side. Subjects are drawn, and the same
            number of rows of each.
        n_neighbors: Number of nearest synthetic rows by each set, at most 10.
        n_permutations: Number of permutations of the membership labels.

    Attributes:
        excess: Mean over pairs of r_T - r_H. Negative: training rows are avoided.
        risk: Mean over pairs of (r_T - r_H) / (1 - r_H), or r_T - r_H if r_H = 1.

    Notes:
        A real row is linked by a pair if some synthetic row is among its nearest rows by both sets,
        see :class:`Linkage`. Ties are included, so a verbatim copy is linked by every pair. A
        subject's rate is the linked share of its attacked rows; r_T and r_H are the mean rates of
        members and non-members, with equal weights.

        The risk follows Giomi et al. but uses plain rates, because Wilson centers differ between
        sides of unequal size even without a leak. Both statistics are about 0 for a table that does
        not depend on membership, at any sizes of T and H, because the searched table is S. The
        excess of a copy is 1 - r_H, which is small if S links nearly everyone; its risk is 1.
        Intervals permute labels.

        Table: "sets", one row per pair. Constant columns are ignored. Not measurable if a set has
        no other columns, with fewer than 20 subjects in train or holdout, or without synthetic
        rows. Source: Giomi et al., "A unified framework for quantifying privacy risk in synthetic
        data", linkability attack.
    """

    name: ClassVar[str] = "linkability"
    summary: ClassVar[str] = (
        "Can two halves of a person's record be joined through the synthetic table?"
    )
    required_inputs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec(
            "excess",
            "Share of people in the training data for whom two halves of the record are joined"
            " through the table,"
            " minus the same share of held-out people.",
            "two_sided",
            leak="an attacker could link two halves of the record for {share} more of the people"
            " in the training"
            " data{people} than of other people",
        ),
        StatisticSpec(
            "risk",
            "Giomi's linkability risk: the excess as a share of the unseen people who are not"
            " joined.",
        ),
    )

    default_limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "linkability.excess",
            at_most=0.02,
            bound="proven",
            source="significant at 95 %; see the lab report on leaks",
        ),
    )

    plots: ClassVar[tuple[Plot, ...]] = (
        IntervalPlot(
            table="sets",
            caption="Excess of members over unseen people whose halves are joined, by pair of"
            " column"
            " sets. Zero is "
            "chance; both directions identify members.",
            x="sets",
            y="excess",
            axis_labels=("pair of column sets", "excess"),
        ),
    )
    question: ClassVar[Question | None] = "linking"

    column_sets: Annotated[
        Pair | None, Tuple, BeforeValidator(as_named), AfterValidator(_disjoint)
    ] = Field(
        default=None,
        title="two disjoint lists of column names, or null",
        description="columns of the two files; default: random halves",
    )
    n_splits: int = Field(default=20, ge=1, description="number of random halves of the columns")
    max_targets: int = Field(
        default=2000, ge=1, description="maximum number of attacked rows per side"
    )
    n_neighbors: int = Field(
        default=1,
        ge=1,
        le=_MOST_NEIGHBOURS,
        description="number of nearest synthetic rows by each half",
    )
    n_permutations: int = Field(
        default=1000, ge=199, description="number of permutations of the membership labels"
    )

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics and the table "sets"."""
        people = inputs.labelled_subjects
        if people.smallest_side < MIN_SUBJECTS_PER_SIDE or len(inputs.synthetic) == 0:
            reason = (
                f"at least {MIN_SUBJECTS_PER_SIDE} people are required in train and in holdout,"
                " and a synthetic row"
            )
            return self.not_measurable(inputs, reason, people.counts, sets=[])
        places = varying_columns(inputs)
        pairs = self._pairs(inputs, [name for name in inputs.schema.names if name in places])
        if not pairs:
            reason = "two sets are required, each with a column that varies"
            return self.not_measurable(inputs, reason, people.counts, sets=[])
        rows = target_rows(inputs, people, self.max_targets)
        sets = [
            [[place for name in names for place in places[name]] for names in pair]
            for pair in pairs
        ]
        real = EncodedTable.stack([inputs.encoded(role) for role in ("train", "holdout")]).take(
            rows
        )
        every = list(itertools.chain(*sets[0]))  # all pairs contain the same columns
        searched = Linkage.of(inputs.encoded("synthetic"), real, every, inputs.device)
        linked = np.empty((len(rows), len(pairs)))
        for at, (first, second) in enumerate(sets):
            linked[:, at] = searched.hits(first, second, self.n_neighbors)
            advance(inputs.progress, "linkability: pairs of column sets", at + 1, len(pairs))
        attacked = people.take(rows)
        rates = (
            np.stack([attacked.totals(column) for column in linked.T], axis=1)
            / attacked.totals()[:, None]
        )
        excess, risk = weigh(rates, attacked, self.n_permutations, inputs.rng("linkability labels"))
        estimates = tuple(
            found.mean.estimate(spec, attacked.counts, within=(-1, 1))
            for spec, found in zip(self.statistics, (excess, risk), strict=True)
        )
        return self.result(
            inputs, estimates, sets=_table(pairs, rates, attacked.member, excess, risk)
        )

    def _pairs(self, inputs: EvaluationInputs, usable: Sequence[str]) -> list[Pair]:
        """Return the pairs of column sets to attack with."""
        if self.column_sets is None:
            return random_halves(usable, self.n_splits, inputs.rng("linkability halves"))
        known = inputs.schema.names
        for name in itertools.chain(*self.column_sets):
            if name not in known:
                raise ConfigError(
                    "metric linkability: no table has a column"
                    f" {safe_repr(name)}.{did_you_mean(name, known)}"
                )
        first, second = (
            tuple(name for name in names if name in usable) for names in self.column_sets
        )
        return [(first, second)] if first and second else []


def random_halves(names: Sequence[str], number: int, rng: np.random.Generator) -> list[Pair]:
    """Return ``number`` distinct ways to cut the columns in two halves (sizes differ by at most 1),
    or all of them.
    """
    total, size = len(names), len(names) // 2
    even = total == 2 * size
    if size == 0:
        return []
    found: dict[tuple[int, ...], None] = {}
    if math.comb(total, size) // (1 + even) <= number:
        every = itertools.combinations(range(total), size)
        found = {half: None for half in every if not even or 0 in half}
    while len(found) < min(number, math.comb(total, size) // (1 + even)):
        order = rng.permutation(total)
        half = order[:size] if not even or 0 in order[:size] else order[size:]
        found[tuple(sorted(half.tolist()))] = None
    return [
        (tuple(names[c] for c in half), tuple(names[c] for c in range(total) if c not in half))
        for half in found
    ]


def target_rows(inputs: EvaluationInputs, people: Subjects, most: int) -> np.ndarray:
    """Return the positions in T stacked on H of at most ``most`` rows per side.

    Up to ``most`` subjects per side are drawn independently of the labels, and the same maximum
    number of rows of each, so that the labels of the drawn subjects stay exchangeable. Draws do not
    depend on the order of rows.
    """
    rng = inputs.rng("linkability people")
    order = rng.permutation(len(people))
    drawn = np.zeros(len(people), dtype=bool)
    for side in (True, False):
        drawn[order[people.member[order] == side][:most]] = True
    of_each = max(1, most // max(people.members, len(people) - people.members))
    content = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
    rows = np.lexsort((people.codes, content))
    rows = rows[rng.permutation(len(rows))]
    rows = rows[np.argsort(people.codes[rows], kind="stable")]
    rank = np.arange(len(rows)) - np.searchsorted(people.codes[rows], people.codes[rows])
    return rows[drawn[people.codes[rows]] & (rank < of_each)]


def varying_columns(inputs: EvaluationInputs) -> dict[str, list[int]]:
    """Return the encoded columns (numbered as in ``EncodedTable.pick``) by column, without constant
    ones.
    """
    tables = [inputs.encoded(role) for role in _ROLES]
    ends = []
    for part in ("numeric", "codes"):
        arrays = [getattr(table, part) for table in tables]
        ends.append(np.stack([[array.min(axis=0), array.max(axis=0)] for array in arrays]))
    varies = np.concatenate([end[:, 0].min(axis=0) < end[:, 1].max(axis=0) for end in ends])
    places = {
        name: [place for place in own if varies[place]]
        for name, own in inputs.encoder.places.items()
    }
    return {name: own for name, own in places.items() if own}


def weigh(
    rates: np.ndarray, people: Subjects, n_permutations: int, rng: np.random.Generator
) -> tuple[PermutationResult, PermutationResult]:
    """Return excess and Giomi's risk of every pair, from the rates (people, pairs)."""
    n_T, pairs = people.members, rates.shape[1]
    n_H = len(people) - n_T

    def statistic(labels: np.ndarray) -> np.ndarray:
        r_T, r_H = labels @ rates / n_T, (1 - labels) @ rates / n_H
        return np.column_stack([r_T - r_H, excess_success(r_T, r_H)])

    found = inference.permutation_test(statistic, people, n_permutations, rng)
    return found[:pairs], found[pairs:]


def _table(
    pairs: Sequence[Pair],
    rates: np.ndarray,
    member: np.ndarray,
    excess: PermutationResult,
    risk: PermutationResult,
) -> list[dict[str, Any]]:
    """Return a row for each pair: rates, excess with a simultaneous interval, and Giomi's risk."""
    band = excess.band()
    columns = {
        "rate_train": rates[member].mean(axis=0),
        "rate_holdout": rates[~member].mean(axis=0),
        "excess": excess.observed,
        "low": band.low,
        "high": band.high,
        "risk": risk.observed,
    }
    return [
        {
            "sets": at + 1,
            "columns": f"{len(first)} + {len(second)}",
            **{name: float(values[at]) for name, values in columns.items()},
        }
        for at, (first, second) in enumerate(pairs)
    ]
