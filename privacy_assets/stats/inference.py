"""Permutation tests by subject, and estimates with simultaneous intervals.

If a synthetic table does not depend on which subjects were in T, the labels of subjects are exchangeable given the
table, for any sizes and any statistic. The statistics under permuted labels are therefore the null distribution, and
determine the interval of the observed statistic. The interval is simultaneous over all entries, and wider where
resampled subjects vary more, which happens if there is a leak.
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
from privacy_assets.stats.intervals import CONFIDENCE, LEAK_CONFIDENCE, MDE_QUANTILE, clopper_pearson
from privacy_assets.stats.subjects import SETS, Subjects, permute_labels, resample_subjects

N_BOOTSTRAPS = 200  # number of bootstrap samples of subjects
_GAP_TRIALS = 5
_CELLS = 16_000_000  # maximum number of labels in memory


@dataclass(frozen=True, eq=False)
class Band:
    """Simultaneous interval of m statistics with a permutation null distribution; arrays have shape (m,).

    Attributes:
        low: Lower ends, covering all m statistics simultaneously.
        high: Upper ends.
        mean: Mean under the null.
        sd: Standard deviation under the null.
        z: Distance from the null mean in standard deviations, scaled so that it equals ``critical`` at the edge of the
            band.
        critical: Half-width of the band in standard deviations.
        rare: Number of standard deviations within which all statistics are in 99.5 % of leak-free cases.
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
    people: int | None = None,
) -> Band:
    """Compute the band ``observed`` +- critical x null standard deviation.

    Args:
        observed: Statistics, shape (m,).
        null: Statistics under permuted labels, shape (n_permutations, m).
        confidence: Simultaneous confidence level.
        resampled: Statistics of resampled subjects, shape (n_bootstraps, m). A leak increases their variance; the wider
            of both bands is used.
        people: Number of subjects on the smaller side, if the statistics are differences of shares. A statistic that no
            permutation changes then gets the exact interval of 0 hits out of this number. None: it gets width 0 and z =
            0.
    """
    mean, sd, largest = _standardised(null)
    levels = (confidence, MDE_QUANTILE)
    critical, rare = (float(np.quantile(largest, level, method="higher")) for level in levels)
    farthest = (np.abs(observed - mean) / np.where(sd > 0, sd, np.inf)).max()
    p_value = float((1 + (largest >= farthest).sum()) / (len(null) + 1))
    half = np.where(sd > 0, critical * sd, 0.0 if people is None else clopper_pearson(0, people)[1])
    if resampled is not None:
        _, spread, away = _standardised(resampled)
        half = np.maximum(half, float(np.quantile(away, confidence, method="higher")) * spread)
    z = critical * (observed - mean) / np.where(half > 0, half, np.inf)
    return Band(observed - half, observed + half, mean, sd, z, critical, rare, p_value)


def _standardised(drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean (m,), standard deviation (m,), and largest standardized deviation of each draw (draws,)."""
    mean, sd = drawn.mean(axis=0), drawn.std(axis=0)
    return mean, sd, (np.abs(drawn - mean) / np.where(sd > 0, sd, np.inf)).max(axis=1)


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
        resampled = None if self.resampled is None else self.resampled[:, entries]
        return PermutationResult(self.observed[entries], self.null[:, entries], resampled)

    def over(self, scale: np.ndarray) -> PermutationResult:
        """Divide all statistics by ``scale`` (m,), which must not depend on the labels."""
        resampled = None if self.resampled is None else self.resampled / scale
        return PermutationResult(self.observed / scale, self.null / scale, resampled)

    @property
    def mean(self) -> PermutationResult:
        """The mean over all entries, as one statistic."""
        resampled = None if self.resampled is None else self.resampled.mean(axis=1, keepdims=True)
        return PermutationResult(self.observed.mean(keepdims=True), self.null.mean(axis=1, keepdims=True), resampled)

    def band(self, confidence: float = CONFIDENCE, people: int | None = None) -> Band:
        """Return the simultaneous interval of all entries; for ``people`` see :func:`permutation_band`."""
        return permutation_band(self.observed, self.null, confidence, self.resampled, people)

    def estimate(
        self,
        spec: StatisticSpec,
        counts: tuple[int, int],
        *,
        at: int = 0,
        confidence: float = CONFIDENCE,
        within: tuple[float, float] = (-math.inf, math.inf),
        note: str = "",
        people: int | None = None,
    ) -> Estimate:
        """Create the estimate of one entry, with its part of the simultaneous interval.

        ``minimum_detectable_effect`` is the distance from the null mean within which the conservative bound of this
        entry is in 99.5 % of leak-free cases; for two-sided statistics, as if it were the most extreme entry.

        Args:
            spec: Statistic.
            counts: Numbers of rows and subjects.
            at: Entry.
            confidence: Simultaneous confidence level.
            within: Range to which all values are clipped.
            note: Explanation for readers.
            people: See :func:`permutation_band`.
        """
        band = self.band(confidence, people)
        low, high = extend_to_null(band, spec.null or 0.0)
        rare = band.rare * band.sd[at]
        if not _two_sided(spec):
            rare = np.quantile(self.null[:, at] - band.mean[at], MDE_QUANTILE, method="higher")
        found = [self.observed[at], low[at], high[at], rare + band.critical * band.sd[at]]
        value, low, high, reached = np.clip(found, *within).tolist()
        return spec.estimate(
            value, low, high, counts, confidence=confidence, minimum_detectable_effect=reached, note=note
        )

    def worst(
        self,
        spec: StatisticSpec,
        counts: tuple[int, int],
        names: Sequence[str] | np.ndarray,
        choose: Literal["headline", "strongest"],
        people: int | None = None,
    ) -> Estimate:
        """Create the estimate of the worst entry, with an interval that holds for all entries simultaneously.

        ``minimum_detectable_effect`` is the 99.5 % quantile of the null distribution of the conservative bound of the
        entry chosen by the same rule.

        Args:
            spec: Statistic.
            counts: Numbers of rows and subjects.
            names: Name of each entry, shown as note; shape (m,).
            choose: "headline": the entry with the worst conservative bound, at 95 %; evidence of safety must hold for
                it. "strongest": the entry farthest from the null in standard deviations, at 99.5 %; its other bound
                shows a significant leak.
            people: See :func:`permutation_band`.
        """
        strongest = choose == "strongest"
        confidence = LEAK_CONFIDENCE if strongest else CONFIDENCE
        band = self.band(confidence, people)
        every = np.vstack([self.observed, self.null])
        away = np.abs(every - spec.null) if _two_sided(spec) else every
        conservative = away + band.critical * band.sd
        conservative[0] = away[0] + band.high - self.observed
        deviations = np.abs(every - spec.null) / np.where(band.sd > 0, band.sd, np.inf)
        deviations[0] = np.abs(band.z)
        chosen = (deviations if strongest else conservative).argmax(axis=1)
        at = int(chosen[0])
        reached = np.quantile(conservative[np.arange(len(every)), chosen][1:], MDE_QUANTILE, method="higher")
        value, low, high = np.clip([self.observed[at], band.low[at], band.high[at]], -1 if _two_sided(spec) else 0, 1)
        return spec.estimate(
            value, low, high, counts, confidence=confidence, minimum_detectable_effect=reached, note=str(names[at])
        )

    def largest(self, spec: StatisticSpec, counts: tuple[int, int], note: str) -> Estimate:
        """Create the estimate of the largest entry, clipped at 1; its null is the mean under permutation."""
        parts = (self.observed, *extend_to_null(self.band(), 0.0))
        value, low, high = (min(float(part.max()), 1.0) for part in parts)
        null = float(np.minimum(self.null.max(axis=1), 1.0).mean())
        return spec.estimate(value, low, high, counts, null=null, note=note)


def extend_to_null(band: Band, null: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of a band (m,), extended to ``null`` for statistics that no permutation changes.

    The permutations do not bound the probability of an event that none of them produced.
    """
    never = band.sd == 0
    low, high = np.minimum(band.low, null), np.maximum(band.high, null)
    return np.where(never, low, band.low), np.where(never, high, band.high)


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
        statistic: Maps float32 labels (b, s), 1 for members, to (b, m). If ``n_bootstraps`` > 0, it also accepts labels
            (1, s) with the number of times each subject was drawn, int64 (b, s).
        subjects: Subjects whose labels are permuted.
        n_permutations: Number of permutations.
        rng: Generator of the draws.
        n_bootstraps: Number of bootstrap samples of subjects. 0: none.
    """
    member = subjects.member
    observed = np.asarray(statistic(member.astype(np.float32)[None]), dtype=np.float64)[0]
    null = permute_labels(member, n_permutations, rng, statistic, subjects.block)
    resampled = resample_subjects(member, n_bootstraps, rng, statistic, subjects.block) if n_bootstraps else None
    return PermutationResult(observed, null, resampled)


def excess(weights: np.ndarray, subjects: Subjects, n_permutations: int, rng: np.random.Generator) -> PermutationResult:
    """Compute the excess (m,) of members: (weighted mean label - share of members) / (1 - share of members).

    ``weights`` has shape (m, s). The statistic is linear in the labels, so only subjects with a nonzero weight are
    used.
    """
    share, total = subjects.member.mean(), weights.sum(axis=1)
    weights, member = weights.T, subjects.member

    def statistic(labels: np.ndarray) -> np.ndarray:
        return (labels @ weights - share * total) / (1 - share)

    observed = statistic(member.astype(np.float64))
    weights = weights[np.lexsort(weights.T)]  # draws then depend on content, not on the order of subjects
    seen = np.flatnonzero(weights.any(axis=1))
    weights = weights[seen]
    block = int(np.clip(_CELLS // max(len(seen), 1), 1, SETS))
    return PermutationResult(observed, permute_labels(np.sort(member), n_permutations, rng, statistic, block, seen))


def bootstrap(
    member: np.ndarray,
    drawn: Callable[[np.ndarray], np.ndarray],
    permuted: Callable[[], np.ndarray],
    score: Callable[[np.ndarray], float],
    rng: np.random.Generator,
) -> tuple[float, float, float]:
    """Return the 95 % percentile interval of a score, and its minimum detectable effect, by subject.

    Lower scores are riskier. The minimum detectable effect is the 0.5 % quantile of the permuted scores minus the mean
    distance between a score under permuted labels and its lower bound. NaN scores are ignored.

    Args:
        member: Labels, bool of shape (s,).
        drawn: Returns the scores of resampled subjects with the given labels.
        permuted: Returns the scores under permuted labels.
        score: Returns the score under the given labels.
        rng: Generator of the draws.

    Returns:
        Low, high, minimum detectable effect.
    """
    tail = (1 - CONFIDENCE) / 2
    low, high = np.nanquantile(drawn(member), [tail, 1 - tail])
    rare = np.nanquantile(permuted(), 1 - MDE_QUANTILE)
    gaps = []
    for _ in range(_GAP_TRIALS):
        label = rng.permutation(member)
        end = np.nanquantile(drawn(label), tail)
        gaps.append(score(label) - end)
    return float(low), float(high), float(rare - max(np.mean(gaps), 0))


def mean_difference(
    values: np.ndarray, subjects: Subjects, n_permutations: int, rng: np.random.Generator
) -> PermutationResult:
    """Test the difference of the mean ``values`` (s, m) between members and non-members."""
    return permutation_test(partial(_difference, values), subjects, n_permutations, rng, n_bootstraps=N_BOOTSTRAPS)


class DrawnLabels:
    """Draws of labels shared by tests of many values of the same subjects; all labels must fit into memory."""

    def __init__(self, subjects: Subjects, n_permutations: int, rng: np.random.Generator) -> None:
        member = subjects.member
        self._permuted = permute_labels(member, n_permutations, rng, lambda labels: labels).astype(np.float32)
        self._times = resample_subjects(member, N_BOOTSTRAPS, rng, lambda _, times: times).astype(np.float32)
        self._member = member

    def of(self, member: np.ndarray) -> DrawnLabels:
        """Return the same draws for other labels, bool (s,), with the same number of members."""
        found = copy(self)
        found.__dict__.pop("_inside", None)
        found._member = member
        return found

    @cached_property
    def _inside(self) -> np.ndarray:
        return self._times * self._member

    def mean_difference(self, values: np.ndarray) -> PermutationResult:
        """Compute :func:`mean_difference` of ``values`` (s, m), with single-precision sums for the draws."""
        once, member = values.astype(np.float32), self._member.astype(np.float64)[None]
        rows = np.concatenate([part @ once for part in (self._permuted, self._inside, self._times)], dtype=np.float64)
        permuted, inside, every = np.split(rows, np.cumsum([len(self._permuted), len(self._times)]))
        people, members, total = len(self._member), self._member.sum(), values.sum(axis=0)
        drawn = self._inside.sum(axis=1, keepdims=True, dtype=np.float64)
        return PermutationResult(
            _difference(values, member)[0],
            permuted / members - (total - permuted) / (people - members),
            inside / drawn - (every - inside) / (people - drawn),
        )


def _difference(values: np.ndarray, labels: np.ndarray, times: np.ndarray | None = None) -> np.ndarray:
    """Return the mean of members minus the mean of non-members: (b, m).

    ``labels`` has shape (b or 1, s); ``times`` (b, s) is the number of times each subject counts.
    """
    every = np.ones_like(labels) if times is None else times
    member = labels * every
    inside, seen = member.sum(axis=1, keepdims=True), member @ values
    return np.asarray(seen / inside - (every @ values - seen) / (every.sum(axis=1, keepdims=True) - inside))
