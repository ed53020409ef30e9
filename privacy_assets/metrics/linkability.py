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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from privacy_assets.distances.mixed_tree import squared_distances
from privacy_assets.distances.nearest import Neighbors, distinct_encoded, nearest_rows
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
    nearest: Neighbors
    device: str

    @classmethod
    def of(
        cls,
        synthetic: EncodedTable,
        attacked: EncodedTable,
        columns: Sequence[int],
        device: str = "cpu",
    ) -> Linkage:
        """Search the nearest synthetic row of each attacked row.

        Args:
            synthetic: Synthetic rows, at least one.
            attacked: Attacked rows, at least one, encoded by the same encoder.
            columns: Encoded columns to search by, numbered as in ``EncodedTable.pick``.
            device: Torch device of the search.
        """
        _, codes = distinct_encoded(synthetic.pick(columns))
        _, first_rows = np.unique(codes, return_index=True)
        distinct = synthetic.take(first_rows)
        nearest = nearest_rows(attacked.pick(columns), distinct.pick(columns), device=device)
        return cls(attacked, distinct, nearest, device)

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
        distances = self.nearest.distances[:, 0]
        is_linked = distances == 0  # exact copy
        rows = np.flatnonzero(~is_linked)
        first_side = self._side(first, rows, k)
        second_side = self._side(second, rows, k)

        # The nearest row by all columns decides most cases.
        queries = np.arange(len(rows))
        nearest = self.nearest.indices[rows]
        by_both = (first_side.near(queries, nearest) & second_side.near(queries, nearest))[:, 0]
        is_linked[rows[by_both]] = True

        reach = first_side.reach + second_side.reach
        is_within = distances[rows] ** 2 <= reach * (1 + TIE)
        undecided = np.flatnonzero(is_within & ~by_both)
        n_batches = 1 + len(undecided) * len(self.synthetic) // _CELLS
        for batch in np.array_split(undecided, n_batches):
            is_linked[rows[batch]] = _any_near(first_side, second_side, batch)
        return is_linked

    def _side(self, columns: Sequence[int], rows: np.ndarray, k: int) -> _Side:
        queries = self.attacked.take(rows).pick(columns)
        points = self.synthetic.pick(columns)
        neighbors = nearest_rows(queries, points, min(k, len(points)), device=self.device)
        farthest = neighbors.distances[:, -1]
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
        squared = squared_distances(self.queries.take(queries), self.points, points)
        return squared <= self.reach[queries, None]


def _any_near(first: _Side, second: _Side, queries: np.ndarray) -> np.ndarray:
    """Return which queries have a point that is near by both sides, bool (n,). All points are
    tested.
    """
    all_points = np.tile(np.arange(len(first.points)), (len(queries), 1))
    pair_queries, pair_points = np.nonzero(first.near(queries, all_points))
    by_both = second.near(queries[pair_queries], pair_points[:, None])[:, 0]
    n_near = np.bincount(pair_queries[by_both], minlength=len(queries))
    return n_near > 0


Names = Annotated[tuple[str, ...], Tuple, Field(min_length=1)]
Pair = tuple[Names, Names]
_ROLES = ("train", "holdout", "synthetic")
# with 50 of 2,000 synthetic rows all of Adult is linked, so that a verbatim copy would pass
_MOST_NEIGHBORS = 10


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
            "Giomi's linkability risk: the excess as a share of the non-members who are not"
            " joined.",
        ),
    )

    default_limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "linkability.excess",
            at_most=0.02,
            bound="proven",
            source="significant at 95 %; see the benchmark on leaks",
        ),
    )

    plots: ClassVar[tuple[Plot, ...]] = (
        IntervalPlot(
            table="sets",
            caption="Excess of members over non-members whose halves are joined, by pair of"
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
    ] = Field(default=None, title="two disjoint lists of column names, or null")
    n_splits: int = Field(default=20, ge=1)
    max_targets: int = Field(default=2000, ge=1)
    n_neighbors: int = Field(default=1, ge=1, le=_MOST_NEIGHBORS)
    n_permutations: int = Field(default=1000, ge=199)

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics and the table "sets"."""
        subjects = inputs.labeled_subjects
        if subjects.smallest_side < MIN_SUBJECTS_PER_SIDE or len(inputs.synthetic) == 0:
            reason = (
                f"at least {MIN_SUBJECTS_PER_SIDE} people are required in train and in holdout,"
                " and a synthetic row"
            )
            return self.not_measurable(inputs, reason, subjects.counts, sets=[])
        encoded_columns = varying_columns(inputs)
        usable = []
        for name in inputs.schema.names:
            if name in encoded_columns:
                usable.append(name)
        pairs = self._pairs(inputs, usable)
        if not pairs:
            reason = "two sets are required, each with a column that varies"
            return self.not_measurable(inputs, reason, subjects.counts, sets=[])

        rows = target_rows(inputs, subjects, self.max_targets)
        attacked = subjects.take(rows)
        linked = self._linked(inputs, rows, pairs, encoded_columns)
        n_linked = np.stack([attacked.totals(of_pair) for of_pair in linked.T], axis=1)
        rates = n_linked / attacked.totals()[:, None]
        excess, risk = weigh(rates, attacked, self.n_permutations, inputs.rng("linkability labels"))
        excess_spec, risk_spec = self.statistics
        mean_excess = excess.mean.estimate(excess_spec, attacked.counts, within=(-1, 1))
        mean_risk = risk.mean.estimate(risk_spec, attacked.counts, within=(-1, 1))
        records = _table(pairs, rates, attacked.member, excess, risk)
        return self.result(inputs, (mean_excess, mean_risk), sets=records)

    def _linked(
        self,
        inputs: EvaluationInputs,
        rows: np.ndarray,
        pairs: Sequence[Pair],
        encoded_columns: Mapping[str, Sequence[int]],
    ) -> np.ndarray:
        """Return 1 for rows that are linked by a pair of column sets and 0 for others, float64
        (rows, pairs).
        """
        # All pairs contain the same columns.
        searched = _encoded(itertools.chain(*pairs[0]), encoded_columns)
        real = EncodedTable.stack([inputs.encoded("train"), inputs.encoded("holdout")]).take(rows)
        linkage = Linkage.of(inputs.encoded("synthetic"), real, searched, inputs.device)
        linked = np.empty((len(rows), len(pairs)))
        for i, (first, second) in enumerate(pairs):
            first_columns = _encoded(first, encoded_columns)
            second_columns = _encoded(second, encoded_columns)
            linked[:, i] = linkage.hits(first_columns, second_columns, self.n_neighbors)
            advance(inputs.progress, "linkability: pairs of column sets", i + 1, len(pairs))
        return linked

    def _pairs(self, inputs: EvaluationInputs, usable: Sequence[str]) -> list[Pair]:
        """Return the pairs of column sets to attack with."""
        if self.column_sets is None:
            return random_halves(usable, self.n_splits, inputs.rng("linkability halves"))
        valid_names = inputs.schema.names
        for name in itertools.chain(*self.column_sets):
            if name not in valid_names:
                raise ConfigError(
                    "metric linkability: no table has a column"
                    f" {safe_repr(name)}.{did_you_mean(name, valid_names)}"
                )
        first_names, second_names = self.column_sets
        first = tuple(name for name in first_names if name in usable)
        second = tuple(name for name in second_names if name in usable)
        return [(first, second)] if first and second else []


def _encoded(names: Iterable[str], encoded_columns: Mapping[str, Sequence[int]]) -> list[int]:
    """Return the encoded columns of some columns, in this order."""
    return list(itertools.chain.from_iterable(encoded_columns[name] for name in names))


def random_halves(names: Sequence[str], n_pairs: int, rng: np.random.Generator) -> list[Pair]:
    """Cut the columns in two halves, whose sizes differ by at most 1.

    Args:
        names: Names of the columns.
        n_pairs: Maximum number of distinct cuts.
        rng: Source of the draws. There is no draw if there are at most ``n_pairs`` cuts.

    Returns:
        The cuts. If the halves have equal sizes, the first one contains the first column.
    """
    n_columns = len(names)
    size = n_columns // 2
    if size == 0:
        return []
    is_even = n_columns == 2 * size
    n_cuts = math.comb(n_columns, size) // (1 + is_even)
    halves: dict[tuple[int, ...], None] = {}  # a set in the order of the draws
    if n_cuts <= n_pairs:
        combinations = itertools.combinations(range(n_columns), size)
        halves = {half: None for half in combinations if not is_even or 0 in half}
    while len(halves) < min(n_pairs, n_cuts):
        order = rng.permutation(n_columns)
        sample = order[:size]
        if is_even and 0 not in sample:
            sample = order[size:]
        halves[tuple(sorted(sample.tolist()))] = None
    pairs = []
    for half in halves:
        first = tuple(names[i] for i in half)
        second = tuple(names[i] for i in range(n_columns) if i not in half)
        pairs.append((first, second))
    return pairs


def target_rows(inputs: EvaluationInputs, subjects: Subjects, max_rows: int) -> np.ndarray:
    """Draw the rows to attack.

    Up to ``max_rows`` subjects per side are drawn independently of the labels, and the same maximum
    number of rows of each, so that the labels of the drawn subjects stay exchangeable. Draws do not
    depend on the order of rows.

    Args:
        inputs: Inputs of the metric.
        subjects: Subjects of the rows of T stacked on H.
        max_rows: Maximum number of rows per side.

    Returns:
        Positions in T stacked on H, ordered by subject, int64 (n,).
    """
    rng = inputs.rng("linkability people")
    order = rng.permutation(len(subjects))
    is_target = np.zeros(len(subjects), dtype=bool)
    for is_member in (True, False):
        side = order[subjects.member[order] == is_member]
        is_target[side[:max_rows]] = True
    largest_side = max(subjects.members, len(subjects) - subjects.members)
    rows_per_subject = max(1, max_rows // largest_side)

    # Shuffled rows, sorted by content before and grouped by subject after.
    row_ids = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
    rows = np.lexsort((subjects.codes, row_ids))
    rows = rows[rng.permutation(len(rows))]
    rows = rows[np.argsort(subjects.codes[rows], kind="stable")]
    codes = subjects.codes[rows]
    rank = np.arange(len(rows)) - np.searchsorted(codes, codes)
    return rows[is_target[codes] & (rank < rows_per_subject)]


def varying_columns(inputs: EvaluationInputs) -> dict[str, list[int]]:
    """Return the encoded columns (numbered as in ``EncodedTable.pick``) by column, without constant
    ones.
    """
    tables = inputs.derived.encoded_tables(_ROLES)
    numeric_varies = _varies([table.numeric for table in tables])
    codes_vary = _varies([table.codes for table in tables])
    varies = np.concatenate([numeric_varies, codes_vary])
    varying = {}
    for name, positions in inputs.derived.encoder.positions.items():
        columns = [position for position in positions if varies[position]]
        if columns:
            varying[name] = columns
    return varying


def _varies(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return which columns of stacked arrays (n, c) have different values, bool (c,)."""
    smallest = np.stack([array.min(axis=0) for array in arrays]).min(axis=0)
    largest = np.stack([array.max(axis=0) for array in arrays]).max(axis=0)
    return np.asarray(smallest < largest)


def weigh(
    rates: np.ndarray, subjects: Subjects, n_permutations: int, rng: np.random.Generator
) -> tuple[PermutationResult, PermutationResult]:
    """Compare members with non-members.

    Args:
        rates: Share of the attacked rows of each subject that each pair links, (subjects, pairs).
        subjects: The subjects, with their membership.
        n_permutations: Number of permutations of the labels.
        rng: Source of the permutations.

    Returns:
        Excess and Giomi's risk of every pair.
    """
    n_T = subjects.members
    n_H = len(subjects) - n_T

    def statistic(labels: np.ndarray) -> np.ndarray:
        r_T = labels @ rates / n_T
        r_H = (1 - labels) @ rates / n_H
        return np.column_stack([r_T - r_H, excess_success(r_T, r_H)])

    evidence = inference.permutation_test(statistic, subjects, n_permutations, rng)
    n_pairs = rates.shape[1]
    return evidence[:n_pairs], evidence[n_pairs:]


def _table(
    pairs: Sequence[Pair],
    rates: np.ndarray,
    member: np.ndarray,
    excess: PermutationResult,
    risk: PermutationResult,
) -> list[dict[str, Any]]:
    """Return a row for each pair: rates, excess with a simultaneous interval, and Giomi's risk."""
    band = excess.band()
    rates_train = rates[member].mean(axis=0)
    rates_holdout = rates[~member].mean(axis=0)
    records = []
    for i, (first, second) in enumerate(pairs):
        record = {
            "sets": i + 1,
            "columns": f"{len(first)} + {len(second)}",
            "rate_train": float(rates_train[i]),
            "rate_holdout": float(rates_holdout[i]),
            "excess": float(excess.observed[i]),
            "low": float(band.low[i]),
            "high": float(band.high[i]),
            "risk": float(risk.observed[i]),
        }
        records.append(record)
    return records
