"""Protection points, grades and the grid of membership attacks of Gretel's Data Privacy Protection Score.

The paper gives all points at a precision and accuracy of 0.5 and none at 0.8; in between, points are linear here on the
mean of the two. Five equal grades. Nothing is rounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from privacy_assets.metrics.base import rows_of

LEVELS = ("Poor", "Moderate", "Good", "Very Good", "Excellent")
UNAVAILABLE = "Unavailable"
GUESS, CERTAIN = 0.5, 0.8  # mean of precision and accuracy with all points, and with none
SMALLEST_POSITIVES = 50


def protection_points(precision: np.ndarray, accuracy: np.ndarray) -> np.ndarray:
    """Points 0..100 of attacks, any shape, float64: 100 (0.8 - m) / 0.3 for m = mean(precision, accuracy) in 0.5..0.8.

    NaN stays NaN.
    """
    middle = np.clip((np.asarray(precision, dtype=np.float64) + accuracy) / 2, GUESS, CERTAIN)
    return 100 * (CERTAIN - middle) / (CERTAIN - GUESS)


def grade(points: float) -> str:
    """Grade of ``points`` (0..100), cut at 20, 40, 60 and 80, a cut belonging to the better grade; NaN: unavailable."""
    return UNAVAILABLE if math.isnan(points) else LEVELS[min(int(points // 20), len(LEVELS) - 1)]


def data_privacy_score(membership: float, attribute: float) -> tuple[float, str]:
    """Mean of the membership and attribute protection scores, and its grade: never above that of the worse of them.

    NaN and unavailable when either is NaN.
    """
    mean = (membership + attribute) / 2
    return mean, grade(mean if math.isnan(mean) else min(membership, attribute))


def level_table(points: np.ndarray) -> list[dict[str, Any]]:
    """One record a grade, "Unavailable" last: how many attacks reached it and their share of all attacks."""
    reached = [grade(float(x)) for x in np.ravel(points)]
    levels = (*LEVELS, UNAVAILABLE)
    attacks = np.array([reached.count(level) for level in levels])
    return rows_of(level=levels, attacks=attacks, share=attacks / max(len(reached), 1))


def mean_points(points: np.ndarray) -> float:
    """Mean over the available attacks; NaN when there is none."""
    available = points[~np.isnan(points)]
    return float(available.mean()) if available.size else math.nan


@dataclass(frozen=True, eq=False)
class Histograms:
    """Histograms of subjects: the distinct ones, ``rows`` int64 (k, cells), and which one each subject has (s,).

    Subjects with the same histogram are exchangeable: how many of each kind are drawn says all about a draw of them.
    """

    rows: np.ndarray
    kind: np.ndarray

    def sides(self, member: np.ndarray) -> np.ndarray:
        """Members and non-members of each kind, int64 (2, k), for ``member`` bool (s,)."""
        return np.stack([np.bincount(self.kind[member == side], minlength=len(self.rows)) for side in (True, False)])


@dataclass(frozen=True)
class AttackGrid:
    """Hundreds of no-box membership attacks: every sample, at every size, against every threshold.

    An attack takes as many non-members as members (``sizes`` times the smaller side, without replacement) and names
    those at distance <= threshold ("less than", as the paper puts it, would find no verbatim copy). Thresholds are
    absolute distances, the ``quantiles`` of all real rows alike. Samples are drawn of the attacked rows only; the
    synthetic table is always searched whole, so that no copy hides.
    """

    quantiles: tuple[float, ...] = (0.01, 0.02, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.40, 0.50)
    sizes: tuple[float, ...] = (0.25, 0.5, 1.0)
    samples: int = 10

    def counts(self, distances: np.ndarray, subjects: np.ndarray) -> Histograms:
        """Histogram of each subject's rows over the quantiles + 1 cells between thresholds.

        ``distances`` (n,) to the synthetic table, ``subjects`` (n,) codes 0..s-1. A distance equal to a threshold
        counts as within it.
        """
        thresholds = np.quantile(distances, self.quantiles, method="inverted_cdf")
        cells = np.searchsorted(thresholds, distances, side="left")
        width = len(self.quantiles) + 1
        flat = np.bincount(subjects * width + cells, minlength=(int(subjects.max()) + 1) * width)
        rows, kind = np.unique(flat.reshape(-1, width), axis=0, return_inverse=True)
        return Histograms(rows, kind.ravel())

    def rates(self, members: np.ndarray, others: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Precision and accuracy of every attack, float64 (attacks,), from the histograms (cells,) of both sides.

        A sample of rows without replacement has a multivariate hypergeometric histogram, which is drawn directly.
        Precision is NaN with fewer than 50 predicted positives: such an attack is unavailable.
        """
        smaller = int(min(members.sum(), others.sum()))
        precision, accuracy = [], []
        for share in self.sizes:
            size = max(1, round(share * smaller))
            hits = np.cumsum(rng.multivariate_hypergeometric(members, size, self.samples), axis=1)[:, :-1]
            alarms = np.cumsum(rng.multivariate_hypergeometric(others, size, self.samples), axis=1)[:, :-1]
            positives = hits + alarms
            enough = positives >= SMALLEST_POSITIVES
            precision.append(np.where(enough, hits / np.maximum(positives, 1), np.nan))
            accuracy.append((hits + size - alarms) / (2 * size))
        return np.concatenate(precision).ravel(), np.concatenate(accuracy).ravel()

    def points(self, counts: Histograms, member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Points of every attack (attacks,), NaN where unavailable; ``member`` bool (s,)."""
        members, others = counts.sides(member) @ counts.rows
        return self._points(members, others, rng)

    def _points(self, members: np.ndarray, others: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if min(members.sum(), others.sum()) == 0:
            return np.full(len(self.sizes) * self.samples * len(self.quantiles), np.nan)
        return protection_points(*self.rates(members, others, rng))

    def bootstrap(
        self, counts: Histograms, member: np.ndarray, replicates: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Scores (replicates,) with the subjects of each side resampled with replacement, and fresh samples."""
        sides = counts.sides(member)
        people = sides.sum(axis=1)
        if people.min() == 0:
            return np.full(replicates, np.nan)
        drawn = [rng.multinomial(n, side / n, size=replicates) for n, side in zip(people, sides, strict=True)]
        return self._scores(drawn[0] @ counts.rows, drawn[1] @ counts.rows, rng)

    def permuted(self, counts: Histograms, member: np.ndarray, replicates: int, rng: np.random.Generator) -> np.ndarray:
        """Scores (replicates,) under permuted labels of subjects: the law of a release that leaks nothing."""
        every = counts.sides(member).sum(axis=0)
        members = rng.multivariate_hypergeometric(every, int(member.sum()), replicates)
        return self._scores(members @ counts.rows, (every - members) @ counts.rows, rng)

    def _scores(self, members: np.ndarray, others: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.array([mean_points(self._points(*pair, rng)) for pair in zip(members, others, strict=True)])
