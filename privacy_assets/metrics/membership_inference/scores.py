"""Scores of the attacked real rows, and rates at cross-fitted thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from privacy_assets.distances.nearest import distance_to_other_subjects
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.stats.intervals import ratio
from privacy_assets.stats.subjects import MIN_SUBJECTS_PER_SIDE, Subjects, order_by_content
from privacy_assets.tables.encoding import EncodedTable

RATES = (0.01, 0.02, 0.05, 0.10, 0.20, 0.50)  # shares of non-members that pass the thresholds


class _SortedHalf(NamedTuple):
    """Rows of one half of the subjects, ascending by score.

    Attributes:
        codes: Subject of each row, shape (n,).
        ranks: Rank of each row's score among the scores of both halves, shape (n,).
        n_below: Number of rows below each rank, shape (ranks,).
        n_up_to: Number of rows up to each rank, shape (ranks,).
    """

    codes: np.ndarray
    ranks: np.ndarray
    n_below: np.ndarray
    n_up_to: np.ndarray

    def counts_at(self, cumulative: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the counts below and up to each of the ``ranks`` (b, shares).

        Args:
            cumulative: Counts among the first rows, shape (b, n + 1).
            ranks: Ranks, shape (b, shares).
        """
        below = np.take_along_axis(cumulative, self.n_below[ranks], axis=1)
        up_to = np.take_along_axis(cumulative, self.n_up_to[ranks], axis=1)
        return below, up_to


class CrossFittedScore:
    """Rates of one score at thresholds fitted on one half of the subjects and applied to the other,
    for many labelings.

    Exactly the requested share of the non-members of the fitted half passes a threshold: rows tied
    at it have a weight, in both halves. If the share is less than one row, the nearest non-member
    has a weight below one.

    Args:
        score: Scores, shape (n,); smaller ones are more member-like.
        codes: Subject codes 0..s-1, shape (n,).
        half: Half of each subject, bool (s,).
    """

    def __init__(self, score: np.ndarray, codes: np.ndarray, half: np.ndarray) -> None:
        ranks = np.unique(score, return_inverse=True)[1]
        levels = np.arange(int(ranks.max(initial=-1)) + 1)
        self._halves: list[_SortedHalf] = []
        for is_second in (False, True):
            rows = np.flatnonzero(half[codes] == is_second)
            rows = rows[np.argsort(ranks[rows], kind="stable")]
            sorted_ranks = ranks[rows]
            n_below = np.searchsorted(sorted_ranks, levels, side="left")
            n_up_to = np.searchsorted(sorted_ranks, levels, side="right")
            self._halves.append(_SortedHalf(codes[rows], sorted_ranks, n_below, n_up_to))

    def rates(
        self, labels: np.ndarray, shares: tuple[float, ...], times: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute true and false positive rates, averaged over both halves.

        Args:
            labels: Labels, shape (b, s). 1: member. With ``times``, a single row is allowed.
            shares: Shares of non-members that pass.
            times: Weight of each subject, shape (b, s). None: 1.

        Returns:
            True and false positive rates, float64 (b, shares) each.
        """
        if times is not None:
            labels = labels * times
        n_members = []
        n_nonmembers = []
        for half in self._halves:
            member_counts, nonmember_counts = _cumulative_sides(labels, times, half.codes)
            n_members.append(member_counts)
            n_nonmembers.append(nonmember_counts)

        shape = (len(n_members[0]), len(shares))
        tpr = np.zeros(shape)
        fpr = np.zeros(shape)
        for fitted, tested in ((0, 1), (1, 0)):
            ranks, weights = self._thresholds(self._halves[fitted], n_nonmembers[fitted], shares)
            half = self._halves[tested]
            tpr += _passing_share(half, n_members[tested], ranks, weights) / 2
            fpr += _passing_share(half, n_nonmembers[tested], ranks, weights) / 2
        return tpr, fpr

    @staticmethod
    def _thresholds(
        half: _SortedHalf, n_nonmembers: np.ndarray, shares: tuple[float, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the rank of each threshold (b, shares) and the weight of the rows tied at it.

        Args:
            half: The half on which thresholds are fitted.
            n_nonmembers: Non-members among its first rows, shape (b, n + 1).
            shares: Shares of non-members that pass.
        """
        targets = n_nonmembers[:, -1:] * np.array(shares)
        min_counts = np.maximum(np.ceil(targets - 1e-9), 1).astype(n_nonmembers.dtype)
        positions = np.empty(min_counts.shape, dtype=np.int64)
        for i, counts in enumerate(n_nonmembers):
            positions[i] = np.searchsorted(counts, min_counts[i])
        ranks = half.ranks[np.clip(positions - 1, 0, len(half.ranks) - 1)]
        below, up_to = half.counts_at(n_nonmembers, ranks)
        weights = np.clip((targets - below) / np.maximum(up_to - below, 1), 0, 1)
        return ranks, weights


def _passing_share(
    half: _SortedHalf, cumulative: np.ndarray, ranks: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Return the share of counted rows below the thresholds, tied ones by weight (b, shares)."""
    below, up_to = half.counts_at(cumulative, ranks)
    return (below + weights * (up_to - below)) / np.maximum(cumulative[:, -1:], 1)


def _cumulative_sides(
    labels: np.ndarray, times: np.ndarray | None, codes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of members and of non-members among the first rows, int32 (b, n + 1).

    Args:
        labels: Labels of the subjects, multiplied by their weights, shape (b, s).
        times: Weight of each subject, shape (b, s). None: 1.
        codes: Subject of each row, shape (n,).
    """
    n_members = _cumulative(labels[:, codes])
    if times is None:
        n_rows = np.arange(n_members.shape[1], dtype=np.int32)
    else:
        n_rows = _cumulative(times[:, codes])
    return n_members, n_rows - n_members


def _cumulative(labels: np.ndarray) -> np.ndarray:
    counts = np.zeros((labels.shape[0], labels.shape[1] + 1), dtype=np.int32)
    np.cumsum(labels, axis=1, dtype=np.int32, out=counts[:, 1:])
    return counts


@dataclass(frozen=True, eq=False)
class Population(Subjects):
    """Attacked real rows, T stacked on H.

    Attributes:
        scores: Scores by name, shape (n,).
        neighbor: Distance to the nearest row of another subject, attacked or not, shape (n,).
        half: Half of each subject, bool (s,).
        rows: Positions in T stacked on H, shape (n,). None: all rows.
        reference: Distance to the nearest row of R, shape (n,). None: there is no reference.
    """

    scores: Mapping[str, np.ndarray]
    neighbor: np.ndarray
    half: np.ndarray
    rows: np.ndarray | None = None
    reference: np.ndarray | None = None

    @property
    def outlier_rows(self) -> np.ndarray:
        """The most isolated tenth of the rows, bool (n,). Ties at the cut are included."""
        return np.asarray(self.neighbor >= np.quantile(self.neighbor, 0.9, method="inverted_cdf"))

    def outliers(self) -> Population:
        """Select the outliers. Subjects keep their codes."""
        return self.among(self.outlier_rows)

    def among(self, rows: np.ndarray) -> Population:
        """Select rows. Subjects keep their codes.

        Args:
            rows: True for the rows to select, bool (n,).
        """
        scores = {name: score[rows] for name, score in self.scores.items()}
        positions = np.flatnonzero(rows)
        if self.rows is not None:
            positions = self.rows[positions]
        reference = None
        if self.reference is not None:
            reference = self.reference[rows]
        return Population(
            self.codes[rows],
            self.member,
            scores,
            self.neighbor[rows],
            self.half,
            positions,
            reference,
        )

    @property
    def measurable(self) -> bool:
        """Whether both sides have enough subjects for thresholds."""
        return min(self.side(True)[1], self.side(False)[1]) >= MIN_SUBJECTS_PER_SIDE

    def fitted(self) -> list[CrossFittedScore]:
        """Return the scores, ready for computing rates."""
        return [CrossFittedScore(score, self.codes, self.half) for score in self.scores.values()]


def advantages(
    fitted: Sequence[CrossFittedScore], labels: np.ndarray, times: np.ndarray | None = None
) -> np.ndarray:
    """Compute true minus false positive rates, see :meth:`CrossFittedScore.rates`.

    Args:
        fitted: The scores.
        labels: Labels, shape (b, s). 1: member. With ``times``, a single row is allowed.
        times: Weight of each subject, shape (b, s). None: 1.

    Returns:
        Differences, float64 (b, scores x ``RATES``).
    """
    differences = []
    for score in fitted:
        tpr, fpr = score.rates(labels, RATES, times)
        differences.append(tpr - fpr)
    return np.column_stack(differences)


def named_entries(population: Population) -> np.ndarray:
    """Return descriptions of the entries of :func:`advantages`."""
    descriptions = []
    for name in population.scores:
        descriptions += [f"{name} at {100 * rate:.2g} % of the non-members" for rate in RATES]
    return np.array(descriptions)


def build_population(
    inputs: EvaluationInputs,
    distances: Mapping[str, np.ndarray] | None = None,
    rows: np.ndarray | None = None,
) -> Population:
    """Score the rows of T and H against S (and R), with halves of the subjects drawn independently
    of their labels.

    Subjects are numbered by row content, so that the order of rows has no effect.

    Args:
        inputs: Tables of one release.
        distances: Distances (n,) to the nearest row of "synthetic" and "reference". None: they are
            searched.
        rows: Positions of the attacked rows in T stacked on H, all rows of some subjects. None: all
            rows. Other rows are neighbors nevertheless.

    Returns:
        The attacked rows with scores.
    """
    from privacy_assets.distances.nearest import nearest_rows

    pool = EncodedTable.stack([inputs.encoded("train"), inputs.encoded("holdout")])
    row_ids = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
    codes = order_by_content(inputs.subject_codes("train", "holdout"), row_ids)
    subjects = Subjects.of(codes, len(inputs.train))
    attacked = pool
    if rows is not None:
        attacked = pool.take(rows)
        subjects = subjects.take(rows)

    def nearest(role: str) -> np.ndarray:
        if distances is not None:
            return distances[role]
        return nearest_rows(attacked, inputs.encoded(role), device=inputs.device).distances[:, 0]

    distance = nearest("synthetic")
    neighbor = distance_to_other_subjects(pool, codes, inputs.device, rows)
    scores = {"distance": distance, "distance / neighbor": ratio(distance, neighbor)}
    reference = None
    if inputs.release.reference is not None:
        reference = nearest("reference")
        scores["distance / reference"] = ratio(distance, reference)
    half = inputs.rng("membership_inference.halves").permutation(len(subjects)) % 2 == 1
    return Population(subjects.codes, subjects.member, scores, neighbor, half, rows, reference)


def with_reference(inputs: EvaluationInputs, population: Population) -> Population:
    """Add the subjects of R as non-members. Only the score "distance / neighbor" is kept.

    Neighbors are then rows of T, H and R. The population is returned unchanged if there is no
    reference.
    """
    from privacy_assets.distances.nearest import nearest_rows

    if population.reference is None:
        return population
    device = inputs.device
    reference = inputs.encoded("reference")
    pool = EncodedTable.stack([inputs.encoded("train"), inputs.encoded("holdout")])
    codes = inputs.subject_codes("reference")
    to_synthetic = nearest_rows(reference, inputs.encoded("synthetic"), device=device).distances[
        :, 0
    ]
    to_other_subjects = nearest_rows(reference, pool, device=device).distances[:, 0]
    if len(reference) > 1:
        within_reference = distance_to_other_subjects(reference, codes, device)
        to_other_subjects = np.minimum(to_other_subjects, within_reference)

    distances = np.append(population.scores["distance"], to_synthetic)
    neighbors = np.append(np.minimum(population.neighbor, population.reference), to_other_subjects)
    members = np.append(population.member, np.zeros(int(codes.max()) + 1, dtype=bool))
    return Population(
        codes=np.append(population.codes, len(population) + codes),
        member=members,
        scores={"distance / neighbor": ratio(distances, neighbors)},
        neighbor=neighbors,
        half=np.zeros_like(members),
    )
