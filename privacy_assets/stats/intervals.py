"""Confidence intervals of proportions, and comparisons of distances and rates."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

CONFIDENCE = 0.95
# for statistics of which a proven leak fails a release, so that false alarms are rare
LEAK_CONFIDENCE = 0.995
MDE_QUANTILE = 0.995


def wilson(hits: float, n: float, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Compute Wilson's score interval of a proportion (Wilson 1927).

    Args:
        hits: Number of hits, in [0, n]; it need not be an integer.
        n: Number of cases.
        confidence: Two-sided confidence level, in (0, 1).

    Returns:
        Center, low and high, in [0, 1]. NaN for n = 0.
    """
    if n == 0:
        return (np.nan, np.nan, np.nan)
    z = _normal(confidence)
    center = float(wilson_center(hits, n, confidence))
    half = z / (n + z * z) * np.sqrt(hits * (n - hits) / n + z * z / 4)
    return center, float(max(0.0, center - half)), float(min(1.0, center + half))


def wilson_center(hits: Any, n: Any, confidence: float = CONFIDENCE) -> np.ndarray:
    """Return the center of Wilson's interval.

    Args:
        hits: Numbers of hits, a number or an array.
        n: Numbers of cases, greater than 0, of a shape that broadcasts with ``hits``.
        confidence: Two-sided confidence level, in (0, 1).

    Returns:
        Centers in [0, 1], float64 of the broadcast shape.
    """
    z = _normal(confidence)
    return np.asarray((hits + z * z / 2) / (n + z * z))


def _normal(confidence: float) -> float:
    from scipy import stats  # slow to import

    return float(stats.norm.ppf(0.5 + confidence / 2))


def clopper_pearson(hits: float, n: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Compute the exact two-sided interval of a proportion (Clopper and Pearson 1934).

    Args:
        hits: Number of hits, in [0, n]; it need not be an integer.
        n: Number of cases.
        confidence: Two-sided confidence level, in (0, 1).

    Returns:
        Low and high, in [0, 1]. (0, 1) for n = 0.
    """
    tail = (1 - confidence) / 2
    return float(exact_low(hits, n, tail)), float(exact_high(hits, n, tail))


def exact_low(hits: Any, n: float, level: float) -> np.ndarray:
    """Return the proportion p with P(``hits`` or more out of ``n``) = ``level``.

    It is the lower end of the interval of Clopper and Pearson 1934.

    Args:
        hits: Numbers of hits, a number or an array; they need not be integers.
        n: Number of cases.
        level: Probability of the tail, in (0, 1).

    Returns:
        Proportions in [0, 1], float64 of the shape of ``hits``. 0 without hits.
    """
    from scipy import stats

    hits = np.asarray(hits, dtype=np.float64)
    return np.where(hits > 0, stats.beta.ppf(level, np.maximum(hits, 1e-9), n - hits + 1), 0.0)


def exact_high(hits: Any, n: float, level: float) -> np.ndarray:
    """Return the proportion p with P(``hits`` or fewer out of ``n``) = ``level``.

    It is the upper end of the interval of Clopper and Pearson 1934.

    Args:
        hits: Numbers of hits, a number or an array; they need not be integers.
        n: Number of cases.
        level: Probability of the tail, in (0, 1).

    Returns:
        Proportions in [0, 1], float64 of the shape of ``hits``. 1 if all cases are hits.
    """
    return 1 - exact_low(n - np.asarray(hits, dtype=np.float64), n, level)


def ratio(distance: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return ``distance / scale``, with 0/0 = 1 and x/0 = inf.

    0/0 is a row that occurs both in S and elsewhere in the population. It is equally near to both,
    which is not suspicious.

    Args:
        distance: Distances, 0 or greater.
        scale: Divisors, 0 or greater, of a shape that broadcasts with ``distance``.

    Returns:
        Ratios in [0, inf], float64 of the broadcast shape.
    """
    safe = np.where(scale > 0, scale, 1)
    return np.where(scale > 0, distance / safe, np.where(distance > 0, np.inf, 1.0))


def excess_success(members: np.ndarray, non_members: np.ndarray) -> np.ndarray:
    """Return the excess success on members, (m - o) / (1 - o) (Giomi et al.).

    Args:
        members: Rate m of success on members, in [0, 1].
        non_members: Rate o of success on non-members, in [0, 1], of the same shape. Where o = 1,
            the difference m - o is returned.
    """
    return np.asarray((members - non_members) / np.where(non_members < 1, 1 - non_members, 1))


_N_CANDIDATES = 4  # per scipy call, whose overhead dominates


def leaked_subjects(
    attacked: np.ndarray, matched: np.ndarray, member: np.ndarray, confidence: float
) -> np.ndarray:
    """Estimate the number of leaked subjects among those that S matches, see :func:`leaked`.

    Args:
        attacked: Codes of distinct subjects that could have been matched, int64 (u,).
        matched: Codes of those that were matched, int64 (k,), a subset of ``attacked``.
        member: True for subjects in train, shape (s,).
        confidence: Two-sided confidence level, in (0, 1).

    Returns:
        Value, low, high and minimum detectable effect, float64 (4,), in subjects. All are 0 if no
        subject matches, and NaN if all attacked subjects have the same label.
    """
    k = len(matched)
    k_t = int(member[matched].sum())
    u = len(attacked)
    u_t = int(member[attacked].sum())
    if k == 0:
        return np.zeros(4)
    if u_t in (0, u):
        return np.full(4, np.nan)
    return np.array(leaked(k, k_t, u, u_t, confidence))


@lru_cache(maxsize=256)
def leaked(
    k: int, k_t: int, u: int, u_t: int, confidence: float
) -> tuple[float, float, float, float]:
    """Estimate the number L of leaked subjects among the ``k`` of ``u`` subjects that S matches.

    If S does not depend on membership, k_t is hypergeometric(u, u_t, k). L = (k_t - k u_t / u) /
    (1 - u_t / u) is the number that only membership explains. Below expectation it is negative,
    the number that only non-membership explains.

    Args:
        k: Number of matched subjects, 1 <= k <= u.
        k_t: Number of members among them.
        u: Number of subjects.
        u_t: Number of members among them, 0 < u_t < u.
        confidence: Two-sided confidence level, in (0, 1).

    Returns:
        Value, low and high (see :func:`leaked_interval`), and the minimum detectable effect: the
        99.5 % quantile of the conservative bound without a leak.
    """
    from scipy import stats  # slow to import

    surplus = k_t * u - k * u_t
    if surplus > 0:
        value = surplus / (u - u_t)
    else:
        value = surplus / u_t
    # Both ends increase with k_T, so its 0.25 % and 99.75 % quantiles under the null contain the
    # conservative bound in 99.5 % of cases.
    few = int(stats.hypergeom.ppf((1 - MDE_QUANTILE) / 2, u, u_t, k))
    many = int(stats.hypergeom.ppf((1 + MDE_QUANTILE) / 2, u, u_t, k))
    counts = np.array([k_t, few, many], dtype=np.int64)
    low, high = leaked_interval(k, counts, u, u_t, confidence)
    detectable = float(max(-low[1], high[2]))
    return value, min(float(low[0]), value), max(float(high[0]), value), detectable


def leaked_interval(
    k: int, k_t: np.ndarray, u: int, u_t: int, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact interval of L, the number of leaked members (negative: non-members) among
    the k matches.

    L matches are members with certainty; the other k - L are a random draw from the remaining u - L
    subjects, of which u_T - L are members (mirrored for L < 0). The ends are the smallest and
    largest L for which the tail probability of k_T exceeds half of 1 - ``confidence``; both
    probabilities are monotone in L.

    Args:
        k: Number of matched subjects.
        k_t: Numbers of members among them, int64 (c,); one interval for each.
        u: Number of subjects.
        u_t: Number of members among them.
        confidence: Two-sided confidence level, in (0, 1).

    Returns:
        Low and high, int64 (c,), in subjects.
    """
    from scipy import stats

    level = (1 - confidence) / 2

    def arguments(leaks: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return k_T and the parameters of its distribution, without the leaked subjects."""
        leaked_members = np.maximum(leaks, 0)
        return k_t[:, None] - leaked_members, u - abs(leaks), u_t - leaked_members, k - abs(leaks)

    def is_above_low(leaks: np.ndarray) -> np.ndarray:
        n_members, *parameters = arguments(leaks)
        return np.asarray(stats.hypergeom.sf(n_members - 1, *parameters) > level)

    def is_below_high(negative_leaks: np.ndarray) -> np.ndarray:
        return np.asarray(stats.hypergeom.cdf(*arguments(-negative_leaks)) > level)

    low = _first_true(k_t - k, k_t, is_above_low)
    high = -_first_true(-k_t, k - k_t, is_below_high)
    return low, high


def _first_true(
    low: np.ndarray, high: np.ndarray, holds: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the smallest integer in each low..high, int64 (c,), for which a monotone condition on
    (c, n) holds.

    It must hold at ``high``.
    """
    fractions = np.arange(_N_CANDIDATES)
    is_true_at_high = np.ones(len(low), dtype=bool)
    while (low < high).any():
        candidates = low[:, None] + (high - low)[:, None] * fractions // _N_CANDIDATES
        is_true = np.column_stack([holds(candidates), is_true_at_high])
        first = is_true.argmax(axis=1)[:, None]
        # The last candidate that does not hold, and the first one that does.
        ends = np.column_stack([low - 1, candidates, high])
        low = np.take_along_axis(ends, first, axis=1)[:, 0] + 1
        high = np.take_along_axis(ends, first + 1, axis=1)[:, 0]
    return low
