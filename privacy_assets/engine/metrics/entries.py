"""One figure for the worst of many entries: scores, thresholds or groups that were all tried."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privacy_assets.engine.intervals import RESOLUTION_QUANTILE, Band, permutation_band
from privacy_assets.engine.results import Figure, FigureSpec

LEAK_CONFIDENCE = 0.995  # of the figures on which a demonstrated leak fails, so that false alarms are rare


@dataclass(frozen=True, eq=False)
class Drawn:
    """Statistics: observed (m,), under permuted labels (permutations, m), with subjects drawn anew (replicates, m)."""

    observed: np.ndarray
    null: np.ndarray
    resampled: np.ndarray | None = None

    def __getitem__(self, entries: slice | np.ndarray) -> Drawn:
        resampled = None if self.resampled is None else self.resampled[:, entries]
        return Drawn(self.observed[entries], self.null[:, entries], resampled)

    @property
    def mean(self) -> Drawn:
        """The mean over all entries, as one statistic."""
        resampled = None if self.resampled is None else self.resampled.mean(axis=1, keepdims=True)
        return Drawn(self.observed.mean(keepdims=True), self.null.mean(axis=1, keepdims=True), resampled)

    def band(self, confidence: float) -> Band:
        """The interval that holds for all entries at once."""
        return permutation_band(self.observed, self.null, confidence, self.resampled)


def worst_entry(
    spec: FigureSpec,
    drawn: Drawn,
    confidence: float,
    counts: tuple[int, int],
    entries: np.ndarray,
    *,
    evidence: bool = False,
) -> Figure:
    """One figure for the worst of m entries, with the interval that holds for all of them at once.

    ``counts`` are rows and subjects, ``entries`` the names of the m entries. The worst is the one with the worst
    cautious bound or, by ``evidence``, the one most null deviations from its null mean; the note names it.
    ``resolution`` is the 99.5 % quantile of the cautious bound of the entry chosen in the same way under the null.
    """
    band = drawn.band(confidence)
    every = np.vstack([drawn.observed, drawn.null])
    away = np.abs(every - spec.null) if spec.direction == "two_sided" else every
    cautious = away + band.critical * band.sd
    cautious[0] = away[0] + band.high - drawn.observed
    deviations = np.abs(every - band.mean) / np.where(band.sd > 0, band.sd, np.inf)
    deviations[0] = np.abs(band.z)
    chosen = (deviations if evidence else cautious).argmax(axis=1)
    worst = int(chosen[0])
    reached = cautious[np.arange(len(every)), chosen][1:]
    return spec.estimate(
        drawn.observed[worst],
        max(band.low[worst], -1 if spec.direction == "two_sided" else 0),
        min(band.high[worst], 1),
        counts,
        confidence=confidence,
        resolution=np.quantile(reached, RESOLUTION_QUANTILE, method="higher"),
        note=str(entries[worst]),
    )
