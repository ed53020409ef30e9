"""One inference: what labels permuted by subject say about statistics of the labels, and the statistics made of it.

If a synthetic table does not depend on which subjects were in T, their labels are exchangeable given the table, at any
sizes and for any statistic. So the permuted statistics are its law where nothing leaks, and the interval of the
observed one comes from it: simultaneous over all entries that were tried, and wider where subjects resampled vary
more, as a leak makes them.
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

REPLICATES = 200  # of subjects resampled
_GAP_TRIALS = 5
_CELLS = 16_000_000  # labels of subjects held at once


@dataclass(frozen=True, eq=False)
class Band:
    """Simultaneous interval of m statistics whose null law was drawn by permutation; arrays have shape (m,).

    ``low``/``high`` cover all m statistics at once with the confidence asked for; ``sd`` is the null deviation,
    ``critical`` the width of the band in deviations, ``z`` the excess over the null mean in deviations (``critical``
    where the band just reaches it), ``p_value`` the two-sided simultaneous p-value, and ``rare`` the number of
    deviations within which all statistics stay in 99.5 % of cases where nothing leaks.
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
    """Band of ``observed`` (m,) from ``null`` (permutations, m): observed -+ critical x null deviation.

    Where there is a leak, some statistics vary more than chance alone makes them: with ``resampled`` (replicates, m),
    the same over subjects resampled, their band takes the place of the other where it is wider. A statistic that never
    varies has z = 0 and a band of width 0; or, a difference of shares among ``people`` on the smaller side, the exact
    one of none of so many.
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
    """Mean (m,), deviation (m,), and the largest number of deviations from the mean in each draw (draws,)."""
    mean, sd = drawn.mean(axis=0), drawn.std(axis=0)
    return mean, sd, (np.abs(drawn - mean) / np.where(sd > 0, sd, np.inf)).max(axis=1)


@dataclass(frozen=True, eq=False)
class Evidence:
    """Statistics: observed (m,), under permuted labels (permutations, m), with subjects resampled (replicates, m)."""

    observed: np.ndarray
    null: np.ndarray
    resampled: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.observed)

    def __getitem__(self, entries: slice | np.ndarray | list[int]) -> Evidence:
        resampled = None if self.resampled is None else self.resampled[:, entries]
        return Evidence(self.observed[entries], self.null[:, entries], resampled)

    def over(self, scale: np.ndarray) -> Evidence:
        """The statistics divided by a ``scale`` (m,), the same for the labels that were observed and for all others."""
        resampled = None if self.resampled is None else self.resampled / scale
        return Evidence(self.observed / scale, self.null / scale, resampled)

    @property
    def mean(self) -> Evidence:
        """The mean over all entries, as one statistic."""
        resampled = None if self.resampled is None else self.resampled.mean(axis=1, keepdims=True)
        return Evidence(self.observed.mean(keepdims=True), self.null.mean(axis=1, keepdims=True), resampled)

    def band(self, confidence: float = CONFIDENCE) -> Band:
        """The interval that holds for all entries at once."""
        return permutation_band(self.observed, self.null, confidence, self.resampled)

    def estimate(
        self,
        spec: StatisticSpec,
        counts: tuple[int, int],
        *,
        at: int = 0,
        confidence: float = CONFIDENCE,
        within: tuple[float, float] = (-math.inf, math.inf),
        note: str = "",
    ) -> Estimate:
        """The entry ``at`` with its part of the simultaneous interval; everything is cut off at ``within``.

        ``counts`` are rows and subjects. ``minimum_detectable_effect`` is how far from its null mean the conservative
        bound of this entry stays in 99.5 % of cases where nothing leaks: when two-sided, as if it were the farthest of
        all entries.
        """
        band = self.band(confidence)
        low, high = reaching(band, spec.null or 0.0)
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
    ) -> Estimate:
        """The worst of m entries, with the interval that holds for all of them at once; ``names`` (m,): the note's.

        The "headline" is the entry with the worst conservative bound, at 95 %: evidence of safety must hold for it. The
        "strongest" is the one most deviations away from chance, at 99.5 %: its other end is what is significant.
        ``minimum_detectable_effect`` is the 99.5 % quantile of the conservative bound of the entry chosen in the same
        way under the null.
        """
        strongest = choose == "strongest"
        confidence = LEAK_CONFIDENCE if strongest else CONFIDENCE
        band = self.band(confidence)
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
        """The largest entry, cut off at 1; its null is the mean largest one where nothing leaks, so above 0."""
        parts = (self.observed, *reaching(self.band(), 0.0))
        value, low, high = (min(float(part.max()), 1.0) for part in parts)
        null = float(np.minimum(self.null.max(axis=1), 1.0).mean())
        return spec.estimate(value, low, high, counts, null=null, note=note)


def reaching(band: Band, null: float) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of a band (m,); of statistics that no permutation moves they reach to ``null``.

    What comes true under no permutation has a chance too, of which these tell nothing.
    """
    never = band.sd == 0
    low, high = np.minimum(band.low, null), np.maximum(band.high, null)
    return np.where(never, low, band.low), np.where(never, high, band.high)


def _two_sided(spec: StatisticSpec) -> bool:
    return spec.direction == "two_sided"


def test(
    statistic: Callable[..., np.ndarray],
    subjects: Subjects,
    permutations: int,
    rng: np.random.Generator,
    *,
    replicates: int = 0,
) -> Evidence:
    """Observe a statistic, and permute the labels of the subjects; with ``replicates`` also draw subjects anew.

    ``statistic`` maps float32 labels (b, s), 1 = member, to (b, m), and with ``replicates`` also labels (1, s) and how
    often each subject counts, int64 (b, s). One run serves every statistic that is made of some of the m entries.
    """
    member = subjects.member
    observed = np.asarray(statistic(member.astype(np.float32)[None]), dtype=np.float64)[0]
    null = permute_labels(member, permutations, rng, statistic, subjects.block)
    resampled = resample_subjects(member, replicates, rng, statistic, subjects.block) if replicates else None
    return Evidence(observed, null, resampled)


test.__test__ = False  # type: ignore[attr-defined]  # what pytest asks before it takes a function for a test


def excess(weights: np.ndarray, subjects: Subjects, permutations: int, rng: np.random.Generator) -> Evidence:
    """Excess (m,) of members: the mean label under ``weights`` (m, s) less the share of members, over 1 - that share.

    Linear in the labels, so that only subjects with a weight are looked at.
    """
    share, total = subjects.member.mean(), weights.sum(axis=1)
    weights, member = weights.T, subjects.member

    def statistic(labels: np.ndarray) -> np.ndarray:
        return (labels @ weights - share * total) / (1 - share)

    observed = statistic(member.astype(np.float64))
    weights = weights[np.lexsort(weights.T)]  # the draws then depend on content, not on the order of subjects
    seen = np.flatnonzero(weights.any(axis=1))
    weights = weights[seen]
    block = int(np.clip(_CELLS // max(len(seen), 1), 1, SETS))
    return Evidence(observed, permute_labels(np.sort(member), permutations, rng, statistic, block, seen))


def bootstrap(
    member: np.ndarray,
    drawn: Callable[[np.ndarray], np.ndarray],
    permuted: Callable[[], np.ndarray],
    score: Callable[[np.ndarray], float],
    rng: np.random.Generator,
) -> tuple[float, float, float]:
    """Ends of the 95 % percentile interval of a score, a smaller one riskier, by subject; and its
    minimum detectable effect.

    ``drawn`` gives the scores of subjects resampled under given labels, bool (s,), ``permuted`` those of permuted
    labels, ``score`` that of given labels; NaN are left out. The minimum detectable effect is the 0.5 % quantile of the
    permuted scores less the mean distance from a score to its lower end there.
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


def mean_difference(values: np.ndarray, subjects: Subjects, permutations: int, rng: np.random.Generator) -> Evidence:
    """How much larger the ``values`` (s, m) of subjects are on average among members than among the others."""
    return test(partial(_difference, values), subjects, permutations, rng, replicates=REPLICATES)


class DrawnLabels:
    """The same of many values of the same subjects, few enough that all their labels fit into memory at once."""

    def __init__(self, subjects: Subjects, permutations: int, rng: np.random.Generator) -> None:
        member = subjects.member
        self._permuted = permute_labels(member, permutations, rng, lambda labels: labels).astype(np.float32)
        self._times = resample_subjects(member, REPLICATES, rng, lambda _, times: times).astype(np.float32)
        self._member = member

    def of(self, member: np.ndarray) -> DrawnLabels:
        """The same draws for other members, bool (s,), as many: those resampled are the same people, of either side."""
        found = copy(self)
        found.__dict__.pop("_inside", None)
        found._member = member
        return found

    @cached_property
    def _inside(self) -> np.ndarray:
        return self._times * self._member

    def mean_difference(self, values: np.ndarray) -> Evidence:
        """As :func:`mean_difference`, of ``values`` (s, m), which are summed in single precision where drawn."""
        once, member = values.astype(np.float32), self._member.astype(np.float64)[None]
        rows = np.concatenate([part @ once for part in (self._permuted, self._inside, self._times)], dtype=np.float64)
        permuted, inside, every = np.split(rows, np.cumsum([len(self._permuted), len(self._times)]))
        people, members, total = len(self._member), self._member.sum(), values.sum(axis=0)
        drawn = self._inside.sum(axis=1, keepdims=True, dtype=np.float64)
        return Evidence(
            _difference(values, member)[0],
            permuted / members - (total - permuted) / (people - members),
            inside / drawn - (every - inside) / (people - drawn),
        )


def _difference(values: np.ndarray, labels: np.ndarray, times: np.ndarray | None = None) -> np.ndarray:
    """Mean of members less that of the others, (b, m); ``labels`` (b or 1, s), ``times`` (b, s) counts of subjects."""
    every = np.ones_like(labels) if times is None else times
    member = labels * every
    inside, seen = member.sum(axis=1, keepdims=True), member @ values
    return np.asarray(seen / inside - (every @ values - seen) / (every.sum(axis=1, keepdims=True) - inside))
