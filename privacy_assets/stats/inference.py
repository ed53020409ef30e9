"""Permutation tests by subject, and estimates with simultaneous intervals.

If a synthetic table does not depend on which subjects were in T, the labels of subjects are
exchangeable given the table, for any sizes and any statistic. The statistics under permuted labels
are therefore the null distribution, and determine the interval of the observed statistic. The
interval is simultaneous over all entries, and wider where resampled subjects vary more, which
happens if there is a leak.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import numpy as np

from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.intervals import (
    CONFIDENCE,
    LEAK_CONFIDENCE,
    MDE_QUANTILE,
    clopper_pearson,
)
from privacy_assets.stats.subjects import SETS, Subjects, permute_labels, resample_subjects

N_BOOTSTRAPS = 200  # number of bootstrap samples of subjects
_GAP_TRIALS = 5
_CELLS = 16_000_000  # maximum number of labels in memory


@dataclass(frozen=True, eq=False)
class Band:
    """Simultaneous interval of m statistics with a permutation null distribution; arrays have shape
    (m,).

    Attributes:
        low: Lower ends, covering all m statistics simultaneously.
        high: Upper ends.
        mean: Mean under the null.
        sd: Standard deviation under the null.
        z: Distance from the null mean in standard deviations, scaled so that it equals ``critical``
            at the edge of the band.
        critical: Half-width of the band in standard deviations.
        rare: Number of standard deviations within which all statistics are in 99.5 % of non-leaking
            cases.
        p_value: Two-sided simultaneous p-value.
    """

    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    z: np.ndarray
    critical: float
    rare: float
    p_value: float


def permutation_band(
    observed: np.ndarray,
    null: np.ndarray,
    confidence: float = CONFIDENCE,
    resampled: np.ndarray | None = None,
    smaller_side: int | None = None,
) -> Band:
    """Compute the band ``observed`` +- critical x null standard deviation.

    Args:
        observed: Statistics, shape (m,).
        null: Statistics under permuted labels, shape (n_permutations, m).
        confidence: Simultaneous confidence level.
        resampled: Statistics of resampled subjects, shape (n_bootstraps, m). A leak increases their
            variance; the wider of both bands is used.
        smaller_side: Number of subjects on the smaller side, if the statistics are differences of
            shares. A statistic that no permutation changes then gets the exact interval of 0 hits
            out of this number. None: it gets width 0 and z = 0.
    """
    mean, sd, deviations = _standardized(null)
    critical = _quantile(deviations, confidence)
    rare = _quantile(deviations, MDE_QUANTILE)
    observed_deviation = (np.abs(observed - mean) / _or_infinite(sd)).max()
    n_as_far = (deviations >= observed_deviation).sum()
    p_value = float((1 + n_as_far) / (len(null) + 1))

    half_of_constant = 0.0
    if smaller_side is not None:
        _, half_of_constant = clopper_pearson(0, smaller_side, confidence)
    half = np.where(sd > 0, critical * sd, half_of_constant)
    if resampled is not None:
        _, resampled_sd, resampled_deviations = _standardized(resampled)
        half = np.maximum(half, _quantile(resampled_deviations, confidence) * resampled_sd)
    z = critical * (observed - mean) / _or_infinite(half)
    return Band(
        low=observed - half,
        high=observed + half,
        mean=mean,
        sd=sd,
        z=z,
        critical=critical,
        rare=rare,
        p_value=p_value,
    )


def _standardized(statistics: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean (m,), standard deviation (m,), and each draw's largest deviation (draws,).

    A deviation is the distance from the mean in standard deviations.

    Args:
        statistics: Statistics of each draw, shape (draws, m).
    """
    mean = statistics.mean(axis=0)
    sd = statistics.std(axis=0)
    deviations = np.abs(statistics - mean) / _or_infinite(sd)
    return mean, sd, deviations.max(axis=1)


def _or_infinite(divisor: np.ndarray) -> np.ndarray:
    """Return ``divisor`` with infinity instead of 0, so that the quotient is 0."""
    return np.where(divisor > 0, divisor, np.inf)


def _quantile(values: np.ndarray, level: float) -> float:
    """Return the smallest value that at least a share of ``level`` does not exceed."""
    return float(np.quantile(values, level, method="higher"))


@dataclass(frozen=True, eq=False)
class PermutationResult:
    """Statistics of a permutation test.

    Attributes:
        observed: Under the actual labels, shape (m,).
        null: Under permuted labels, shape (n_permutations, m).
        resampled: With resampled subjects, shape (n_bootstraps, m), or None.
    """

    observed: np.ndarray
    null: np.ndarray
    resampled: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.observed)

    def __getitem__(self, entries: slice | np.ndarray | list[int]) -> PermutationResult:
        resampled = self.resampled
        if resampled is not None:
            resampled = resampled[:, entries]
        return PermutationResult(self.observed[entries], self.null[:, entries], resampled)

    def over(self, scale: np.ndarray) -> PermutationResult:
        """Divide all statistics.

        Args:
            scale: Divisors, shape (m,). They must not depend on the labels.
        """
        resampled = self.resampled
        if resampled is not None:
            resampled = resampled / scale
        return PermutationResult(self.observed / scale, self.null / scale, resampled)

    @property
    def mean(self) -> PermutationResult:
        """The mean over all entries, as one statistic."""
        observed = self.observed.mean(keepdims=True)
        null = self.null.mean(axis=1, keepdims=True)
        resampled = self.resampled
        if resampled is not None:
            resampled = resampled.mean(axis=1, keepdims=True)
        return PermutationResult(observed, null, resampled)

    def band(self, confidence: float = CONFIDENCE, smaller_side: int | None = None) -> Band:
        """Return the simultaneous interval of all entries.

        Args:
            confidence: Simultaneous confidence level.
            smaller_side: See :func:`permutation_band`.
        """
        return permutation_band(self.observed, self.null, confidence, self.resampled, smaller_side)

    def estimate(
        self,
        spec: StatisticSpec,
        counts: tuple[int, int],
        *,
        at: int = 0,
        confidence: float = CONFIDENCE,
        within: tuple[float, float] = (-math.inf, math.inf),
        note: str = "",
        smaller_side: int | None = None,
    ) -> Estimate:
        """Create the estimate of one entry, with its part of the simultaneous interval.

        ``minimum_detectable_effect`` is the distance from the null mean within which the
        conservative bound of this entry is in 99.5 % of non-leaking cases; for two-sided
        statistics, as if it were the most extreme entry.

        Args:
            spec: Statistic.
            counts: Numbers of rows and subjects.
            at: Entry.
            confidence: Simultaneous confidence level.
            within: Range to which all values are clipped.
            note: Explanation for readers.
            smaller_side: See :func:`permutation_band`.
        """
        band = self.band(confidence, smaller_side)
        low, high = extend_to_null(band, spec.null or 0.0)
        half = band.critical * band.sd[at]
        if _two_sided(spec):
            detectable = band.rare * band.sd[at] + half
        else:
            detectable = _quantile(self.null[:, at] - band.mean[at], MDE_QUANTILE) + half
        results = [self.observed[at], low[at], high[at], detectable]
        value, low_end, high_end, detectable = np.clip(results, *within).tolist()
        return spec.estimate(
            value,
            low_end,
            high_end,
            counts,
            confidence=confidence,
            minimum_detectable_effect=detectable,
            note=note,
        )

    def worst(
        self,
        spec: StatisticSpec,
        counts: tuple[int, int],
        names: Sequence[str] | np.ndarray,
        choose: Literal["headline", "strongest"],
        smaller_side: int | None = None,
    ) -> Estimate:
        """Create the estimate of the worst entry, with an interval that holds for all entries
        simultaneously.

        ``minimum_detectable_effect`` is the 99.5 % quantile of the null distribution of the
        conservative bound of the entry chosen by the same rule.

        Args:
            spec: Statistic.
            counts: Numbers of rows and subjects.
            names: Name of each entry, shown as note; shape (m,).
            choose: "headline": the entry with the worst conservative bound, at 95 %; evidence of
                safety must hold for it. "strongest": the entry farthest from the null in standard
                deviations, at 99.5 %; its other bound shows a significant leak.
            smaller_side: See :func:`permutation_band`.
        """
        confidence = CONFIDENCE
        if choose == "strongest":
            confidence = LEAK_CONFIDENCE
        band = self.band(confidence, smaller_side)
        # The first row is the observed one, the others are permuted.
        statistics = np.vstack([self.observed, self.null])
        distances = np.abs(statistics - spec.null)
        smallest = -1 if _two_sided(spec) else 0

        risks = distances if _two_sided(spec) else statistics
        conservative = risks + band.critical * band.sd
        conservative[0] = risks[0] + band.high - self.observed
        if choose == "strongest":
            deviations = distances / _or_infinite(band.sd)
            deviations[0] = np.abs(band.z)
            worst_entries = deviations.argmax(axis=1)
        else:
            worst_entries = conservative.argmax(axis=1)

        bounds = conservative[np.arange(len(statistics)), worst_entries]
        entry = int(worst_entries[0])
        ends = [self.observed[entry], band.low[entry], band.high[entry]]
        value, low, high = np.clip(ends, smallest, 1)
        return spec.estimate(
            value,
            low,
            high,
            counts,
            confidence=confidence,
            minimum_detectable_effect=_quantile(bounds[1:], MDE_QUANTILE),
            note=str(names[entry]),
        )

    def largest(self, spec: StatisticSpec, counts: tuple[int, int], note: str) -> Estimate:
        """Create the estimate of the largest entry, clipped at 1; its null is the mean under
        permutation.

        Args:
            spec: Statistic.
            counts: Numbers of rows and subjects.
            note: Explanation for readers.
        """
        lows, highs = extend_to_null(self.band(), 0.0)
        value = min(float(self.observed.max()), 1.0)
        low = min(float(lows.max()), 1.0)
        high = min(float(highs.max()), 1.0)
        null = np.minimum(self.null.max(axis=1), 1.0).mean()
        return spec.with_null(null).estimate(value, low, high, counts, note=note)


def extend_to_null(band: Band, null: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of a band, extended to ``null`` for statistics that no permutation changes.

    The permutations do not bound the probability of an event that none of them produced.

    Args:
        band: Simultaneous interval of m statistics.
        null: Value of the statistics without any leak.

    Returns:
        Lower and upper ends, shape (m,) each.
    """
    is_constant = band.sd == 0
    low = np.where(is_constant, np.minimum(band.low, null), band.low)
    high = np.where(is_constant, np.maximum(band.high, null), band.high)
    return low, high


def _two_sided(spec: StatisticSpec) -> bool:
    return spec.direction == "two_sided"


def permutation_test(
    statistic: Callable[..., np.ndarray],
    subjects: Subjects,
    n_permutations: int,
    rng: np.random.Generator,
    *,
    n_bootstraps: int = 0,
) -> PermutationResult:
    """Evaluate a statistic under the actual and under permuted labels.

    Args:
        statistic: Maps float32 labels (b, s), 1 for members, to (b, m). If ``n_bootstraps`` > 0, it
            also accepts labels (1, s) with the number of times each subject was drawn, int64 (b,
            s).
        subjects: Subjects whose labels are permuted.
        n_permutations: Number of permutations.
        rng: Generator of the draws.
        n_bootstraps: Number of bootstrap samples of subjects. 0: none.
    """
    member = subjects.member
    observed = np.asarray(statistic(member.astype(np.float32)[None]), dtype=np.float64)[0]
    null = permute_labels(member, n_permutations, rng, statistic, subjects.block)
    resampled = None
    if n_bootstraps:
        resampled = resample_subjects(member, n_bootstraps, rng, statistic, subjects.block)
    return PermutationResult(observed, null, resampled)


def excess(
    weights: np.ndarray, subjects: Subjects, n_permutations: int, rng: np.random.Generator
) -> PermutationResult:
    """Test the excess of members: (weighted mean label - share of members) / (1 - share of
    members).

    The statistic is linear in the labels, so only subjects with a nonzero weight are used.

    Args:
        weights: Weight of each subject in each of m statistics, shape (m, s). A row that adds up
            to 1 gives a weighted mean; another sum multiplies the excess.
        subjects: Subjects whose labels are permuted.
        n_permutations: Number of permutations.
        rng: Generator of the draws.

    Returns:
        m statistics, without resampled subjects.
    """
    member = subjects.member
    share = member.mean()
    total = weights.sum(axis=1)

    def excess_of(labels: np.ndarray, weights_by_subject: np.ndarray) -> np.ndarray:
        return (labels @ weights_by_subject - share * total) / (1 - share)

    by_subject = weights.T
    observed = excess_of(member.astype(np.float64), by_subject)

    # Sorted by content, so that the draws do not depend on the order of subjects.
    by_subject = by_subject[np.lexsort(weights)]
    weighted = np.flatnonzero(by_subject.any(axis=1))
    by_subject = by_subject[weighted]
    statistic = partial(excess_of, weights_by_subject=by_subject)
    block = int(np.clip(_CELLS // max(len(weighted), 1), 1, SETS))
    null = permute_labels(np.sort(member), n_permutations, rng, statistic, block, weighted)
    return PermutationResult(observed, null)


def bootstrap(
    member: np.ndarray,
    resampled_scores: Callable[[np.ndarray], np.ndarray],
    permuted_scores: Callable[[], np.ndarray],
    score: Callable[[np.ndarray], float],
    rng: np.random.Generator,
) -> tuple[float, float, float]:
    """Return the 95 % percentile interval of a score, and its minimum detectable effect, by
    subject.

    Lower scores are riskier. The minimum detectable effect is the 0.5 % quantile of the permuted
    scores minus the mean distance between a score under permuted labels and its lower bound. NaN
    scores are ignored.

    Args:
        member: Labels, bool of shape (s,).
        resampled_scores: Returns the scores of resampled subjects with the given labels.
        permuted_scores: Returns the scores under permuted labels.
        score: Returns the score under the given labels.
        rng: Generator of the draws.

    Returns:
        Low, high, minimum detectable effect.
    """
    tail = (1 - CONFIDENCE) / 2
    low, high = np.nanquantile(resampled_scores(member), [tail, 1 - tail])
    rare = np.nanquantile(permuted_scores(), 1 - MDE_QUANTILE)
    gaps = []
    for _ in range(_GAP_TRIALS):
        permuted = rng.permutation(member)
        permuted_low = np.nanquantile(resampled_scores(permuted), tail)
        gaps.append(score(permuted) - permuted_low)
    detectable = rare - max(np.mean(gaps), 0)
    return float(low), float(high), float(detectable)


def mean_difference(
    values: np.ndarray, subjects: Subjects, n_permutations: int, rng: np.random.Generator
) -> PermutationResult:
    """Test the difference of means between members and non-members.

    Args:
        values: m numbers of each subject, shape (s, m).
        subjects: Subjects whose labels are permuted.
        n_permutations: Number of permutations.
        rng: Generator of the draws.

    Returns:
        m differences, in the unit of ``values``, with resampled subjects.
    """
    statistic = partial(_difference, values)
    return permutation_test(statistic, subjects, n_permutations, rng, n_bootstraps=N_BOOTSTRAPS)


class DrawnLabels:
    """Draws of labels shared by tests of many values of the same subjects; all labels must fit into
    memory.
    """

    def __init__(self, subjects: Subjects, n_permutations: int, rng: np.random.Generator) -> None:
        member = subjects.member
        permuted = permute_labels(member, n_permutations, rng, lambda labels: labels)
        times = resample_subjects(member, N_BOOTSTRAPS, rng, lambda _, times: times)
        self._member = member
        self._permuted = permuted.astype(np.float32)
        self._times = times.astype(np.float32)

    def of(self, member: np.ndarray) -> DrawnLabels:
        """Return the same draws for other labels.

        Args:
            member: True for subjects in train, shape (s,), with the same number of members.
        """
        draws = copy(self)
        draws.__dict__.pop("_member_times", None)
        draws._member = member
        return draws

    @cached_property
    def _member_times(self) -> np.ndarray:
        return self._times * self._member

    def mean_difference(self, values: np.ndarray) -> PermutationResult:
        """Compute :func:`mean_difference`, with single-precision sums for the draws.

        Args:
            values: m numbers of each subject, shape (s, m).
        """
        single = values.astype(np.float32)
        n_subjects = len(self._member)

        n_members = self._member.sum()
        total = values.sum(axis=0)
        permuted_sums = (self._permuted @ single).astype(np.float64)
        permuted = permuted_sums / n_members - (total - permuted_sums) / (n_subjects - n_members)

        # A sample has n_subjects draws, of which n_drawn_members are members.
        n_drawn_members = self._member_times.sum(axis=1, keepdims=True, dtype=np.float64)
        member_sums = (self._member_times @ single).astype(np.float64)
        other_sums = (self._times @ single).astype(np.float64) - member_sums
        resampled = member_sums / n_drawn_members - other_sums / (n_subjects - n_drawn_members)

        observed = _difference(values, self._member.astype(np.float64)[None])[0]
        return PermutationResult(observed, permuted, resampled)


def _difference(
    values: np.ndarray, labels: np.ndarray, times: np.ndarray | None = None
) -> np.ndarray:
    """Return the mean of members minus the mean of non-members: (b, m).

    ``labels`` has shape (b or 1, s); ``times`` (b, s) is the number of times each subject counts.
    """
    if times is None:
        times = np.ones_like(labels)
    member_times = labels * times
    n_members = member_times.sum(axis=1, keepdims=True)
    n_others = times.sum(axis=1, keepdims=True) - n_members
    member_sums = member_times @ values
    other_sums = times @ values - member_sums
    return np.asarray(member_sums / n_members - other_sums / n_others)
