"""Protection points, grades and attack grid of Gretel's Data Privacy Protection Score.

Gretel, section "Membership Inference Protection": "Each attack has a precision and accuracy which
we then translate into a 0 to 100 scale (100 indicating the strongest protection) with grades
ranging from Poor to Excellent protection. Generally speaking, both precision and accuracy should be
below .5 to get a grade of Excellent. When both precision and accuracy are .8 or above that results
in a grade of Poor. Scores that fall between .5 and .8 translate into Moderate, Good or Very Good,
depending on where they fall in the range. [...] The overall protection score is the average of all
the individual attack protection scores."

Points are linear in the mean of precision and accuracy: 100 at 0.5, 0 at 0.8. One attack is graded
by :func:`attack_grades`. Scores over many attacks or columns have five equal grades
(:func:`grade`), without rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from privacy_assets.metrics.base import table_rows

LEVELS = ("Poor", "Moderate", "Good", "Very Good", "Excellent")
UNAVAILABLE = "Unavailable"
GUESS, CERTAIN = 0.5, 0.8  # mean of precision and accuracy with all points, and with none
VERY_GOOD, GOOD = 0.6, 0.7  # mean below which one attack is graded Very Good, and Good
SMALLEST_POSITIVES = 50
SIGNIFICANCE = 0.05  # one-sided
Excellent = Literal["not_significant", "below_half"]


def protection_points(precision: np.ndarray, accuracy: np.ndarray) -> np.ndarray:
    """Return points 0..100 of attacks, float64 of any shape: 100 (0.8 - m) / 0.3.

    m is the mean of precision and accuracy, clipped to 0.5..0.8. NaN is kept.
    """
    middle = np.clip((np.asarray(precision, dtype=np.float64) + accuracy) / 2, GUESS, CERTAIN)
    return 100 * (CERTAIN - middle) / (CERTAIN - GUESS)


def attack_grades(
    precision: np.ndarray, accuracy: np.ndarray, chance: np.ndarray | None = None
) -> np.ndarray:
    """Return the grade of each attack, strings of the shape of ``precision``.

    Poor: precision and accuracy are at least 0.8. Excellent: both are not significantly above 0.5.
    In between, the mean of both decides: Very Good below 0.6, Good below 0.7, otherwise Moderate.
    The paper gives the first two rules and leaves the cuts in between open. Its Excellent is "both
    precision and accuracy should be below .5", which only half of the attacks on a table without
    any leak reach.

    Both are above 0.5 in the same cases: if more members than non-members are predicted to be
    members. One test therefore decides about both.

    Args:
        precision: Precision. NaN: the attack is "Unavailable".
        accuracy: Accuracy, same shape.
        chance: Largest accuracy that is not significant, same shape; see :meth:`AttackGrid.chance`.
            None: the paper's rule for Excellent.
    """
    larger, smaller = np.maximum(precision, accuracy), np.minimum(precision, accuracy)
    middle = (precision + accuracy) / 2
    excellent = larger < GUESS if chance is None else (larger <= GUESS) | (accuracy <= chance)
    rules = (np.isnan(precision), smaller >= CERTAIN, excellent, middle < VERY_GOOD, middle < GOOD)
    return np.select(rules, (UNAVAILABLE, "Poor", "Excellent", "Very Good", "Good"), "Moderate")


def grade(points: float) -> str:
    """Return the grade of a score (0..100), cut at 20, 40, 60 and 80 (inclusive). NaN:
    "Unavailable".

    For scores over many attacks or columns, and for the Data Privacy Score.
    """
    return UNAVAILABLE if math.isnan(points) else LEVELS[min(int(points // 20), len(LEVELS) - 1)]


def data_privacy_score(membership: float, attribute: float) -> tuple[float, str]:
    """Return the mean of the two protection scores, and the grade of the worse one.

    NaN and "Unavailable" if either is NaN.
    """
    mean = (membership + attribute) / 2
    return mean, grade(mean if math.isnan(mean) else min(membership, attribute))


def level_table(grades: np.ndarray) -> list[dict[str, Any]]:
    """Return a row for each grade, "Unavailable" last: the number of attacks with it and their
    share.
    """
    levels = (*LEVELS, UNAVAILABLE)
    attacks = np.array([np.count_nonzero(grades == level) for level in levels])
    return table_rows(level=levels, attacks=attacks, share=attacks / max(grades.size, 1))


def mean_points(points: np.ndarray) -> float:
    """Return the mean over the available attacks. NaN if there are none."""
    available = points[~np.isnan(points)]
    return float(available.mean()) if available.size else math.nan


@dataclass(frozen=True, eq=False)
class Histograms:
    """Histograms of subjects, stored once for each distinct histogram.

    Subjects with equal histograms are exchangeable, so a draw of subjects is determined by the
    number of each kind.

    Attributes:
        rows: Distinct histograms, int64 (k, cells).
        kind: Histogram of each subject, shape (s,).
    """

    rows: np.ndarray
    kind: np.ndarray

    def sides(self, member: np.ndarray) -> np.ndarray:
        """Return the numbers of members and non-members of each kind, int64 (2, k), for ``member``
        bool (s,).
        """
        return np.stack(
            [
                np.bincount(self.kind[member == side], minlength=len(self.rows))
                for side in (True, False)
            ]
        )


@dataclass(frozen=True)
class AttackGrid:
    """Hundreds of no-box membership attacks: every sample size with every threshold.

    An attack draws the same number of members and non-members (``sizes`` times the smaller side,
    without replacement) and predicts membership at distance <= threshold. (With "less than", as in
    the paper, verbatim copies would not be found.) Only the attacked rows are sampled; the
    synthetic table is searched completely.

    Attributes:
        quantiles: Quantiles of the distances of all real rows, which are the thresholds.
        sizes: Sample sizes as shares of the smaller side.
        samples: Number of samples of each size.
    """

    quantiles: tuple[float, ...] = (0.01, 0.02, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.40, 0.50)
    sizes: tuple[float, ...] = (0.25, 0.5, 1.0)
    samples: int = 10

    def counts(self, distances: np.ndarray, subjects: np.ndarray) -> Histograms:
        """Count each subject's rows in the quantiles + 1 cells between thresholds.

        A distance equal to a threshold is within it.

        Args:
            distances: Distances to the synthetic table, shape (n,).
            subjects: Subject codes 0..s-1, shape (n,).

        Returns:
            The histograms.
        """
        thresholds = np.quantile(distances, self.quantiles, method="inverted_cdf")
        cells = np.searchsorted(thresholds, distances, side="left")
        width = len(self.quantiles) + 1
        flat = np.bincount(subjects * width + cells, minlength=(int(subjects.max()) + 1) * width)
        rows, kind = np.unique(flat.reshape(-1, width), axis=0, return_inverse=True)
        return Histograms(rows, kind.ravel())

    def rates(
        self, members: np.ndarray, others: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return precision and accuracy of every attack, float64 (attacks,), from the histograms
        (cells,) of both sides.

        The histogram of a sample without replacement is multivariate hypergeometric, and is drawn
        directly. Precision is NaN, and the attack unavailable, with fewer than 50 predicted
        positives.
        """
        smaller = int(min(members.sum(), others.sum()))
        precision, accuracy = [], []
        for share in self.sizes:
            size = max(1, round(share * smaller))
            hits = np.cumsum(rng.multivariate_hypergeometric(members, size, self.samples), axis=1)[
                :, :-1
            ]
            alarms = np.cumsum(rng.multivariate_hypergeometric(others, size, self.samples), axis=1)[
                :, :-1
            ]
            positives = hits + alarms
            enough = positives >= SMALLEST_POSITIVES
            precision.append(np.where(enough, hits / np.maximum(positives, 1), np.nan))
            accuracy.append((hits + size - alarms) / (2 * size))
        return np.concatenate(precision).ravel(), np.concatenate(accuracy).ravel()

    def attacks(
        self, counts: Histograms, member: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return precision and accuracy of every attack (attacks,) for ``member`` bool (s,). NaN:
        unavailable.
        """
        members, others = counts.sides(member) @ counts.rows
        return self._attacks(members, others, rng)

    def _attacks(
        self, members: np.ndarray, others: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        if min(members.sum(), others.sum()) == 0:
            none = np.full(len(self.sizes) * self.samples * len(self.quantiles), np.nan)
            return none, none
        return self.rates(members, others, rng)

    def points(
        self, counts: Histograms, member: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return the points of every attack (attacks,) for ``member`` bool (s,). NaN:
        unavailable.
        """
        return protection_points(*self.attacks(counts, member, rng))

    def chance(
        self, counts: Histograms, member: np.ndarray, n_permutations: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Return the largest accuracy of every attack that is not significantly above 0.5, float64
        (attacks,).

        It is the 95 % quantile over permuted labels of subjects (one-sided), for each size and
        threshold. NaN without members or non-members.
        """
        once = replace(self, samples=1)
        drawn = [
            once._attacks(*sides, rng)[1]
            for sides in self._permuted(counts, member, n_permutations, rng)
        ]
        largest = np.quantile(drawn, 1 - SIGNIFICANCE, axis=0, method="inverted_cdf").reshape(
            len(self.sizes), 1, -1
        )
        return np.repeat(largest, self.samples, axis=1).ravel()

    def bootstrap(
        self, counts: Histograms, member: np.ndarray, n_bootstraps: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Return scores (n_bootstraps,) with the subjects of each side resampled with replacement,
        and new samples.
        """
        sides = counts.sides(member)
        people = sides.sum(axis=1)
        if people.min() == 0:
            return np.full(n_bootstraps, np.nan)
        drawn = [
            rng.multinomial(n, side / n, size=n_bootstraps)
            for n, side in zip(people, sides, strict=True)
        ]
        return self._scores(list(zip(*(side @ counts.rows for side in drawn), strict=True)), rng)

    def permuted(
        self, counts: Histograms, member: np.ndarray, n_bootstraps: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Return scores (n_bootstraps,) under permuted labels, which is the distribution for
        leak-free releases.
        """
        return self._scores(self._permuted(counts, member, n_bootstraps, rng), rng)

    def _permuted(
        self, counts: Histograms, member: np.ndarray, number: int, rng: np.random.Generator
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the histograms of members and of non-members under permuted labels of subjects."""
        every = counts.sides(member).sum(axis=0)
        members = rng.multivariate_hypergeometric(every, int(member.sum()), number)
        return list(zip(members @ counts.rows, (every - members) @ counts.rows, strict=True))

    def _scores(
        self, sides: list[tuple[np.ndarray, np.ndarray]], rng: np.random.Generator
    ) -> np.ndarray:
        return np.array(
            [mean_points(protection_points(*self._attacks(*pair, rng))) for pair in sides]
        )
