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
(:func:`.grade`), without rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privacy_assets.metrics.base import TableRows, table_rows
from privacy_assets.metrics.inputs import EvaluationInputs, target_rows
from privacy_assets.metrics.membership_inference.metric import PURPOSE, SMALLEST_POSITIVES
from privacy_assets.metrics.membership_inference.scores import Population, build_population
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.inference import N_BOOTSTRAPS
from privacy_assets.studies.data_privacy.grades import LEVELS, UNAVAILABLE

GUESS = 0.5  # mean of precision and accuracy with all points
CERTAIN = 0.8  # mean of precision and accuracy with no points
VERY_GOOD = 0.6  # mean below which one attack is graded Very Good
GOOD = 0.7  # mean below which one attack is graded Good
SIGNIFICANCE = 0.05  # one-sided


def protection_points(precision: np.ndarray, accuracy: np.ndarray) -> np.ndarray:
    """Compute the points of attacks: 100 (0.8 - m) / 0.3.

    m is the mean of precision and accuracy, clipped to 0.5..0.8.

    Args:
        precision: Precision, float64 of any shape. NaN: the attack is "Unavailable".
        accuracy: Accuracy, same shape.

    Returns:
        Points 0..100, float64 of the same shape. NaN is kept.
    """
    mean = (np.asarray(precision, dtype=np.float64) + accuracy) / 2
    clipped = np.clip(mean, GUESS, CERTAIN)
    return 100 * (CERTAIN - clipped) / (CERTAIN - GUESS)


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
    larger = np.maximum(precision, accuracy)
    smaller = np.minimum(precision, accuracy)
    mean = (precision + accuracy) / 2
    if chance is None:
        is_excellent = larger < GUESS
    else:
        is_excellent = (larger <= GUESS) | (accuracy <= chance)
    rules = (np.isnan(precision), smaller >= CERTAIN, is_excellent, mean < VERY_GOOD, mean < GOOD)
    return np.select(rules, (UNAVAILABLE, "Poor", "Excellent", "Very Good", "Good"), "Moderate")


def level_table(grades: np.ndarray) -> list[dict[str, Any]]:
    """Count the attacks with each grade.

    Args:
        grades: Grade of each attack, strings of any shape.

    Returns:
        A row for each grade, "Unavailable" last, with the number of its attacks and their share.
    """
    levels = (*LEVELS, UNAVAILABLE)
    attacks = np.array([np.count_nonzero(grades == level) for level in levels])
    return table_rows(level=levels, attacks=attacks, share=attacks / max(grades.size, 1))


def mean_points(points: np.ndarray) -> float:
    """Average points over the available attacks.

    Args:
        points: Points of the attacks, float64 (attacks,). NaN: unavailable.

    Returns:
        The mean, or NaN if no attack is available.
    """
    available = points[~np.isnan(points)]
    if available.size == 0:
        return math.nan
    return float(available.mean())


@dataclass(frozen=True, eq=False)
class Histograms:
    """Histograms of subjects, stored once for each distinct histogram.

    Subjects with equal histograms are exchangeable, so a draw of subjects is determined by the
    number of each kind.

    Attributes:
        distinct: Distinct histograms, int64 (k, cells).
        kind: Histogram of each subject, shape (s,).
    """

    distinct: np.ndarray
    kind: np.ndarray

    def sides(self, member: np.ndarray) -> np.ndarray:
        """Count the subjects of each kind by membership.

        Args:
            member: Whether each subject is a member, bool (s,).

        Returns:
            Numbers of members and of non-members of each kind, int64 (2, k).
        """
        n_members = np.bincount(self.kind[member], minlength=len(self.distinct))
        n_nonmembers = np.bincount(self.kind[~member], minlength=len(self.distinct))
        return np.stack([n_members, n_nonmembers])


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
        n_subjects = int(subjects.max()) + 1
        counts = np.bincount(subjects * width + cells, minlength=n_subjects * width)
        histograms, kind = np.unique(counts.reshape(-1, width), axis=0, return_inverse=True)
        return Histograms(histograms, kind.ravel())

    def rates(
        self, members: np.ndarray, nonmembers: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute precision and accuracy of every attack.

        The histogram of a sample without replacement is multivariate hypergeometric, and is drawn
        directly.

        Args:
            members: Histogram of the members' rows, int64 (cells,).
            nonmembers: Histogram of the non-members' rows, int64 (cells,).
            rng: Generator of the samples.

        Returns:
            Precision and accuracy, float64 (attacks,) each. Precision is NaN, and the attack
            unavailable, with fewer than 50 predicted positives.
        """
        smaller = int(min(members.sum(), nonmembers.sum()))
        precisions = []
        accuracies = []
        for share in self.sizes:
            size = max(1, round(share * smaller))
            true_positives = self._positives(members, size, rng)
            false_positives = self._positives(nonmembers, size, rng)
            positives = true_positives + false_positives
            precision = true_positives / np.maximum(positives, 1)
            precisions.append(np.where(positives >= SMALLEST_POSITIVES, precision, np.nan))
            accuracies.append((true_positives + size - false_positives) / (2 * size))
        return np.concatenate(precisions).ravel(), np.concatenate(accuracies).ravel()

    def _positives(self, histogram: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return the number of sampled rows within each threshold (samples, thresholds)."""
        samples = rng.multivariate_hypergeometric(histogram, size, self.samples)
        return np.cumsum(samples, axis=1)[:, :-1]

    def attacks(
        self, counts: Histograms, member: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw the samples of every attack, and compute precision and accuracy.

        Args:
            counts: Histograms of the subjects.
            member: Whether each subject is a member, bool (s,).
            rng: Generator of the samples.

        Returns:
            Precision and accuracy, float64 (attacks,) each. NaN: unavailable.
        """
        members, nonmembers = counts.sides(member) @ counts.distinct
        return self._attacks(members, nonmembers, rng)

    def _attacks(
        self, members: np.ndarray, nonmembers: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        if min(members.sum(), nonmembers.sum()) == 0:
            unavailable = np.full(len(self.sizes) * self.samples * len(self.quantiles), np.nan)
            return unavailable, unavailable
        return self.rates(members, nonmembers, rng)

    def points(
        self, counts: Histograms, member: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw the samples of every attack, and compute its points.

        Args:
            counts: Histograms of the subjects.
            member: Whether each subject is a member, bool (s,).
            rng: Generator of the samples.

        Returns:
            Points 0..100, float64 (attacks,). NaN: unavailable.
        """
        return protection_points(*self.attacks(counts, member, rng))

    def chance(
        self, counts: Histograms, member: np.ndarray, n_permutations: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Compute the largest accuracy of every attack that is not significantly above 0.5.

        It is the 95 % quantile over permuted labels of subjects (one-sided), for each size and
        threshold.

        Args:
            counts: Histograms of the subjects.
            member: Whether each subject is a member, bool (s,).
            n_permutations: Number of permutations of the membership labels.
            rng: Generator of the permutations and samples.

        Returns:
            Accuracy, float64 (attacks,). NaN without members or non-members.
        """
        grid = replace(self, samples=1)
        accuracies = []
        sides = self._permuted(counts, member, n_permutations, rng)
        for members, nonmembers in zip(*sides, strict=True):
            _, accuracy = grid._attacks(members, nonmembers, rng)
            accuracies.append(accuracy)
        largest = np.quantile(accuracies, 1 - SIGNIFICANCE, axis=0, method="inverted_cdf")
        by_size = largest.reshape(len(self.sizes), 1, -1)
        return np.repeat(by_size, self.samples, axis=1).ravel()

    def bootstrap(
        self, counts: Histograms, member: np.ndarray, n_bootstraps: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw the score with the subjects of each side resampled with replacement, and new
        samples.

        Args:
            counts: Histograms of the subjects.
            member: Whether each subject is a member, bool (s,).
            n_bootstraps: Number of scores.
            rng: Generator of the subjects and samples.

        Returns:
            Scores, float64 (n_bootstraps,). NaN without members or non-members.
        """
        n_members, n_nonmembers = counts.sides(member)
        if min(n_members.sum(), n_nonmembers.sum()) == 0:
            return np.full(n_bootstraps, np.nan)
        members = _resampled(n_members, n_bootstraps, rng) @ counts.distinct
        nonmembers = _resampled(n_nonmembers, n_bootstraps, rng) @ counts.distinct
        return self._scores(members, nonmembers, rng)

    def permuted(
        self, counts: Histograms, member: np.ndarray, n_bootstraps: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw the score under permuted labels, as for releases without a leak.

        Args:
            counts: Histograms of the subjects.
            member: Whether each subject is a member, bool (s,).
            n_bootstraps: Number of scores.
            rng: Generator of the permutations and samples.

        Returns:
            Scores, float64 (n_bootstraps,).
        """
        members, nonmembers = self._permuted(counts, member, n_bootstraps, rng)
        return self._scores(members, nonmembers, rng)

    def _permuted(
        self, counts: Histograms, member: np.ndarray, n_permutations: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the histograms of members and of non-members (permutations, cells) under permuted
        labels of subjects.
        """
        n_subjects = counts.sides(member).sum(axis=0)
        n_members = rng.multivariate_hypergeometric(n_subjects, int(member.sum()), n_permutations)
        return n_members @ counts.distinct, (n_subjects - n_members) @ counts.distinct

    def _scores(
        self, members: np.ndarray, nonmembers: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return the score (n,) of each pair of histograms (n, cells)."""
        scores = np.empty(len(members))
        for i in range(len(members)):
            precision, accuracy = self._attacks(members[i], nonmembers[i], rng)
            scores[i] = mean_points(protection_points(precision, accuracy))
        return scores


def _resampled(counts: np.ndarray, n_bootstraps: int, rng: np.random.Generator) -> np.ndarray:
    """Resample subjects with replacement, and return the number of each kind (n_bootstraps, k)."""
    n_subjects = counts.sum()
    return rng.multinomial(n_subjects, counts / n_subjects, size=n_bootstraps)


def attacked_population(inputs: EvaluationInputs, max_targets: int | None) -> Population:
    """Return the rows that ``membership_inference`` attacks.

    Args:
        inputs: Tables of one release, with people in train and holdout, and a synthetic row.
        max_targets: Maximum number of attacked rows. None: all rows.
    """
    rows = target_rows(inputs, ("train", "holdout"), max_targets, PURPOSE)
    return build_population(inputs, rows=rows)


def protect(
    spec: StatisticSpec,
    population: Population,
    n_permutations: int | None,
    rng: np.random.Generator,
    labels: np.random.Generator,
) -> tuple[Estimate, TableRows]:
    """Return Gretel's score with a bootstrap interval by subject, and the table "levels".

    Args:
        spec: Statistic of the score.
        population: Attacked rows with scores.
        n_permutations: Number of permuted labels that show which accuracies are significant. None:
            the paper's rule for the grade Excellent of one attack, see
            :func:`attack_grades`.
        rng: Generator of attacks and bootstraps.
        labels: Generator of the permuted labels.
    """
    grid = AttackGrid()
    member = population.member
    counts = grid.counts(population.scores["distance"], population.codes)
    precision, accuracy = grid.attacks(counts, member, rng)
    points = protection_points(precision, accuracy)
    chance = None
    if n_permutations is not None:
        chance = grid.chance(counts, member, n_permutations, labels)
    score = mean_points(points)
    grades = attack_grades(precision, accuracy, chance)
    levels = level_table(grades)
    if math.isnan(score):
        reason = f"no attack has {SMALLEST_POSITIVES} predicted positives"
        return spec.not_measurable(reason, population.counts), levels
    low, high, mde = inference.bootstrap(
        member,
        lambda label: grid.bootstrap(counts, label, N_BOOTSTRAPS, rng),
        lambda: grid.permuted(counts, member, N_BOOTSTRAPS, rng),
        lambda label: mean_points(grid.points(counts, label, rng)),
        rng,
    )
    estimate = spec.estimate(
        score,
        min(low, score),
        max(high, score),
        population.counts,
        minimum_detectable_effect=mde,
    )
    return estimate, levels
