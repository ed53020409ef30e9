"""Intervals of proportions, rates held against each other, and trials that end when enough is shown."""

from __future__ import annotations

from typing import Any

import numpy as np

CONFIDENCE = 0.95
LEAK_CONFIDENCE = 0.995  # of the statistics on which a significant leak fails, so that false alarms are rare
MDE_QUANTILE = 0.995


def wilson(hits: float, n: float, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Centre, low and high of Wilson's score interval of ``hits`` out of ``n``; NaN for n = 0."""
    if n == 0:
        return (np.nan, np.nan, np.nan)
    z = _normal(confidence)
    centre = float(wilson_centre(hits, n, confidence))
    half = z / (n + z * z) * np.sqrt(hits * (n - hits) / n + z * z / 4)
    return centre, float(max(0.0, centre - half)), float(min(1.0, centre + half))


def wilson_centre(hits: Any, n: Any, confidence: float = CONFIDENCE) -> np.ndarray:
    """Centre of Wilson's interval, for arrays that fit together."""
    z = _normal(confidence)
    return np.asarray((hits + z * z / 2) / (n + z * z))


def _normal(confidence: float) -> float:
    from scipy import stats  # slow to import: only where a table is measured

    return float(stats.norm.ppf(0.5 + confidence / 2))


def clopper_pearson(hits: float, n: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Exact two-sided interval of a proportion; (0, 1) for n = 0."""
    tail = (1 - confidence) / 2
    return float(exact_low(hits, n, tail)), float(exact_high(hits, n, tail))


def exact_low(hits: Any, n: float, level: float) -> np.ndarray:
    """The proportion under which ``hits`` and more out of ``n`` have the probability ``level``; 0 without a hit.

    ``hits`` is a number or an array, and need not be whole (Clopper and Pearson 1934).
    """
    from scipy import stats

    hits = np.asarray(hits, dtype=np.float64)
    return np.where(hits > 0, stats.beta.ppf(level, np.maximum(hits, 1e-9), n - hits + 1), 0.0)


def exact_high(hits: Any, n: float, level: float) -> np.ndarray:
    """The same for ``hits`` and fewer; 1 where all are hits."""
    return 1 - exact_low(n - np.asarray(hits, dtype=np.float64), n, level)


def ratio(distance: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """``distance / scale`` with 0/0 = 1 and x/0 = inf.

    A row with a twin in the population that S holds too is as near to S as to the population: nothing suspicious.
    """
    safe = np.where(scale > 0, scale, 1)
    return np.where(scale > 0, distance / safe, np.where(distance > 0, np.inf, 1.0))


def beyond(members: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Success on members beyond that on others, as a share of what these leave: (m - o) / (1 - o) (Giomi et al.).

    The plain difference where all attacks on others succeed: nothing is left.
    """
    return np.asarray((members - others) / np.where(others < 1, 1 - others, 1))
