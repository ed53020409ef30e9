"""Scores of the attacked real rows, and rates at cross-fitted thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from privacy_assets.distances.nearest import distance_to_other_subjects
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.stats.intervals import ratio
from privacy_assets.stats.subjects import MIN_SUBJECTS_PER_SIDE, Subjects, order_by_content
from privacy_assets.tables.encoding import EncodedTable

RATES = (0.01, 0.02, 0.05, 0.10, 0.20, 0.50)  # shares of non-members that pass the thresholds


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
        rank = np.unique(score, return_inverse=True)[1]
        levels = np.arange(int(rank.max(initial=-1)) + 1)
        self._subjects, self._ranks, self._below, self._upto = [], [], [], []
        for side in (False, True):
            rows = np.flatnonzero(half[codes] == side)
            rows = rows[np.argsort(rank[rows], kind="stable")]
            self._subjects.append(codes[rows])
            self._ranks.append(rank[rows])
            self._below.append(np.searchsorted(rank[rows], levels, side="left"))
            self._upto.append(np.searchsorted(rank[rows], levels, side="right"))

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
        counted = labels if times is None else labels * times
        members = [_cumulative(counted[:, subjects]) for subjects in self._subjects]
        if times is None:
            others = [np.arange(counts.shape[1], dtype=np.int32) - counts for counts in members]
        else:
            totals = (_cumulative(times[:, subjects]) for subjects in self._subjects)
            others = [total - counts for total, counts in zip(totals, members, strict=True)]
        found = np.zeros((2, len(counted), len(shares)))
        for fit, test in ((0, 1), (1, 0)):
            rank, weight = self._threshold(fit, others[fit], shares)
            for kind, counts in enumerate((members[test], others[test])):
                below = np.take_along_axis(counts, self._below[test][rank], axis=1)
                upto = np.take_along_axis(counts, self._upto[test][rank], axis=1)
                found[kind] += (below + weight * (upto - below)) / np.maximum(counts[:, -1:], 1) / 2
        return found[0], found[1]

    def _threshold(
        self, fit: int, others: np.ndarray, shares: tuple[float, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the rank of each threshold (b, shares) and the weight of the rows tied at it."""
        width = others.shape[1]
        target = others[:, -1:] * np.array(shares)
        wanted = np.maximum(np.ceil(target - 1e-9), 1).astype(others.dtype)
        position = np.stack(
            [np.searchsorted(counts, least) for counts, least in zip(others, wanted, strict=True)]
        )
        rank = self._ranks[fit][np.clip(position - 1, 0, width - 2)]
        below = np.take_along_axis(others, self._below[fit][rank], axis=1)
        upto = np.take_along_axis(others, self._upto[fit][rank], axis=1)
        return rank, np.clip((target - below) / np.maximum(upto - below, 1), 0, 1)


def _cumulative(labels: np.ndarray) -> np.ndarray:
    counts = np.zeros((labels.shape[0], labels.shape[1] + 1), dtype=np.int32)
    np.cumsum(labels, axis=1, dtype=np.int32, out=counts[:, 1:])
    return counts


@dataclass(frozen=True, eq=False)
class Population(Subjects):
    """Attacked real rows, T stacked on H.

    Attributes:
        scores: Scores by name, shape (n,).
        neighbour: Distance to the nearest row of another subject, attacked or not, shape (n,).
        half: Half of each subject, bool (s,).
        rows: Positions in T stacked on H, shape (n,). None: all rows.
        reference: Distance to the nearest row of R, shape (n,). None: there is no reference.
    """

    scores: Mapping[str, np.ndarray]
    neighbour: np.ndarray
    half: np.ndarray
    rows: np.ndarray | None = None
    reference: np.ndarray | None = None

    @property
    def outlier_rows(self) -> np.ndarray:
        """The most isolated tenth of the rows, bool (n,). Ties at the cut are included."""
        return np.asarray(self.neighbour >= np.quantile(self.neighbour, 0.9, method="inverted_cdf"))

    def outliers(self) -> Population:
        """Select the outliers. Subjects keep their codes."""
        return self.among(self.outlier_rows)

    def among(self, rows: np.ndarray) -> Population:
        """Select the rows where ``rows``, bool (n,), is true. Subjects keep their codes."""
        scores = {name: score[rows] for name, score in self.scores.items()}
        places = np.flatnonzero(rows) if self.rows is None else self.rows[rows]
        near = None if self.reference is None else self.reference[rows]
        return Population(
            self.codes[rows], self.member, scores, self.neighbour[rows], self.half, places, near
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
    """Return true minus false positive rates (b, scores x ``RATES``), see
    :meth:`CrossFittedScore.rates`.
    """
    rates = (score.rates(labels, RATES, times) for score in fitted)
    return np.column_stack([tpr - fpr for tpr, fpr in rates])


def named_entries(population: Population) -> np.ndarray:
    """Return descriptions of the entries of :func:`advantages`."""
    rates = [f"{100 * rate:.2g} %" for rate in RATES]
    return np.array(
        [f"{name} at {rate} of the non-members" for name in population.scores for rate in rates]
    )


def build_population(
    inputs: EvaluationInputs,
    known: Mapping[str, np.ndarray] | None = None,
    rows: np.ndarray | None = None,
) -> Population:
    """Score the rows of T and H against S (and R), with halves of the subjects drawn independently
    of their labels.

    Subjects are numbered by row content, so that the order of rows has no effect.

    Args:
        inputs: Tables of one release.
        known: Distances (n,) to the nearest row of "synthetic" and "reference". None: they are
            searched.
        rows: Positions of the attacked rows in T stacked on H, all rows of some subjects. None: all
            rows. Other rows are neighbors nevertheless.

    Returns:
        The attacked rows with scores.
    """
    from privacy_assets.distances.nearest import nearest_rows

    pool = EncodedTable.stack([inputs.encoded("train"), inputs.encoded("holdout")])
    raw = inputs.subject_codes("train", "holdout")
    codes = order_by_content(
        raw, np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
    )
    subjects = Subjects.of(codes, len(inputs.train))
    attacked = pool if rows is None else pool.take(rows)

    def nearest(role: str) -> np.ndarray:
        if known is not None:
            return known[role]
        return nearest_rows(attacked, inputs.encoded(role), device=inputs.device).distances[:, 0]

    distance = nearest("synthetic")
    neighbour = distance_to_other_subjects(pool, codes, inputs.device, rows)
    scores = {"distance": distance, "distance / neighbour": ratio(distance, neighbour)}
    unseen = None if inputs.reference is None else nearest("reference")
    if unseen is not None:
        scores["distance / reference"] = ratio(distance, unseen)
    subjects = subjects if rows is None else subjects.take(rows)
    half = inputs.rng("membership_inference.halves").permutation(len(subjects)) % 2 == 1
    return Population(subjects.codes, subjects.member, scores, neighbour, half, rows, unseen)


def with_reference(inputs: EvaluationInputs, population: Population) -> Population:
    """Add the subjects of R as non-members. Only the score "distance / neighbour" is kept.

    Neighbors are then rows of T, H and R. The population is returned unchanged if there is no
    reference.
    """
    from privacy_assets.distances.nearest import nearest_rows

    if population.reference is None:
        return population
    others, device = inputs.encoded("reference"), inputs.device
    pool = EncodedTable.stack([inputs.encoded("train"), inputs.encoded("holdout")])
    codes = inputs.subject_codes("reference")
    distance, known = (
        nearest_rows(others, rows, device=device).distances[:, 0]
        for rows in (inputs.encoded("synthetic"), pool)
    )
    among = distance_to_other_subjects(others, codes, device) if len(others) > 1 else known
    neighbour = np.append(
        np.minimum(population.neighbour, population.reference), np.minimum(known, among)
    )
    near = ratio(np.append(population.scores["distance"], distance), neighbour)
    members = np.append(population.member, np.zeros(int(codes.max()) + 1, dtype=bool))
    people = np.append(population.codes, len(population) + codes)
    return Population(
        people, members, {"distance / neighbour": near}, neighbour, np.zeros_like(members)
    )
