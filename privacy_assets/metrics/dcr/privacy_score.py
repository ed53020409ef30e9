"""Palacios' privacy score (eq. 1-4) as a function of two sets of distances, repaired for ties."""

from __future__ import annotations

import numpy as np

from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.intervals import MDE_QUANTILE

_ROUNDING = 1e-9
_DRAWS = 50  # bootstrap draws that are evaluated together
_CELLS = 4_000_000  # weights of holdout rows held at once


def privacy_score(
    spec: StatisticSpec,
    srd: np.ndarray,
    rrd: np.ndarray,
    subjects: np.ndarray,
    alpha: float,
    bootstraps: int,
    rng: np.random.Generator,
) -> Estimate:
    """Statistic of the privacy score from ``srd`` (n_S,) and ``rrd`` (n_H,), both distances to the training rows.

    q is the smallest RRD with P(RRD <= q) >= alpha; a synthetic row at q counts with weight
    w = (alpha - P(RRD < q)) / P(RRD = q); score = (P(SRD < q) + w P(SRD = q) - alpha) / (1 - alpha), at most 1.
    ``subjects`` (n_H,) are codes 0..s-1. Interval: 95 % percentile bootstrap over holdout subjects and synthetic rows,
    the training rows fixed: the paper's statistic holds S against H and is no statistic of labels, so that permuting
    these says nothing of it. Neither set may be empty.
    """
    law = _QuantileLaw(srd, rrd, alpha)
    value = float(law.score(np.ones((1, len(rrd))))[0])
    drawn, null = law.bootstrap(subjects, bootstraps, rng)
    low, high = (float(x) for x in np.quantile(drawn, (0.025, 0.975)))
    mde = float(np.quantile(null, MDE_QUANTILE) + np.quantile(null, 0.975))
    people = int(subjects.max()) + 1
    return spec.estimate(value, min(low, value), max(high, value), (len(srd), people), minimum_detectable_effect=mde)


class _QuantileLaw:
    """The score as a function of weights on the holdout rows."""

    def __init__(self, srd: np.ndarray, rrd: np.ndarray, alpha: float) -> None:
        self.alpha, self.n, self.rrd = alpha, len(srd), rrd
        self.order = np.argsort(rrd, kind="stable")
        self.values, self.first = np.unique(rrd[self.order], return_index=True)
        self.law, self.null_law = self._below_and_at(srd), self._below_and_at(rrd)

    def _below_and_at(self, distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Shares of ``distances`` below and at each distinct RRD."""
        ordered = np.sort(distances)
        below = np.searchsorted(ordered, self.values, side="left") / len(ordered)
        return below, np.searchsorted(ordered, self.values, side="right") / len(ordered) - below

    def _quantile(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Position of q among the distinct RRD, and w, for weights (b, n_H)."""
        mass = np.add.reduceat(weights[:, self.order], self.first, axis=1).cumsum(axis=1)
        target = self.alpha * mass[:, -1]
        place = (mass < target[:, None] - _ROUNDING).sum(axis=1)
        rows = np.arange(len(weights))
        before = np.where(place > 0, mass[rows, place - 1], 0.0)
        return place, np.clip((target - before) / (mass[rows, place] - before), 0, 1)

    def score(self, weights: np.ndarray) -> np.ndarray:
        """Score (b,) for weights (b, n_H)."""
        place, w = self._quantile(weights)
        below, at = self.law
        return (below[place] + w * at[place] - self.alpha) / (1 - self.alpha)

    def bootstrap(self, subjects: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Scores (count,) of resampled holdout subjects and synthetic rows, and the same with SRD following RRD."""
        subjects = self._by_content(subjects)
        drawn, null = [], []
        for start in range(0, count, _DRAWS):
            size = min(_DRAWS, count - start)
            few = max(1, _CELLS // len(subjects))
            parts = [self._resampled_quantile(subjects, min(few, size - at), rng) for at in range(0, size, few)]
            place, w = (np.concatenate(part) for part in zip(*parts, strict=True))
            drawn.append(self._resampled(self.law, place, w, rng))
            null.append(self._resampled(self.null_law, place, w, rng))
        return np.concatenate(drawn), np.concatenate(null)

    def _resampled_quantile(
        self, subjects: np.ndarray, count: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """:meth:`_quantile` of ``count`` draws of as many holdout subjects."""
        people = int(subjects.max()) + 1
        picks = rng.integers(0, people, (count, people)) + people * np.arange(count)[:, None]
        times = np.bincount(picks.ravel(), minlength=count * people).reshape(count, people)
        return self._quantile(times[:, subjects].astype(np.float64))

    def _by_content(self, subjects: np.ndarray) -> np.ndarray:
        """Codes renumbered by the distances of the subjects' rows, so that draws do not depend on the order of rows."""
        rows = np.bincount(subjects)
        smallest = np.full(len(rows), np.inf)
        np.minimum.at(smallest, subjects, self.rrd)
        order = np.lexsort((rows, np.bincount(subjects, weights=self.rrd), smallest))
        return np.argsort(order)[subjects]

    def _resampled(
        self, law: tuple[np.ndarray, np.ndarray], place: np.ndarray, w: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Scores of one resample of n_S synthetic rows for each q: only the counts below and at q are drawn."""
        below, at = (part[place] for part in law)
        smaller = rng.binomial(self.n, below)
        equal = rng.binomial(self.n - smaller, np.clip(at / np.maximum(1 - below, 1e-300), 0, 1))
        return ((smaller + w * equal) / self.n - self.alpha) / (1 - self.alpha)
