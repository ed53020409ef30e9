"""How many of the people whom a synthetic table picks out are members for no other reason than membership."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from privacy_assets.stats.intervals import MDE_QUANTILE


def leaked_subjects(people: np.ndarray, matched: np.ndarray, member: np.ndarray, confidence: float) -> np.ndarray:
    """Leaked people among the ``matched`` of ``people``: value, low, high and minimum detectable effect, float64 (4,).

    Both are codes of different subjects, those in ``matched`` among ``people``; ``member`` bool (s,). Exactly zeros
    where nobody is matched; NaN where all people stand on one side.
    """
    k, k_t, u, u_t = len(matched), int(member[matched].sum()), len(people), int(member[people].sum())
    if k == 0:
        return np.zeros(4)
    return np.array(leaked(k, k_t, u, u_t, confidence)) if 0 < u_t < u else np.full(4, np.nan)


def leaked(k: int, k_t: int, u: int, u_t: int, confidence: float) -> tuple[float, float, float, float]:
    """Leaked people L among the ``k`` of ``u`` subjects that S picks out: value, low, high and minimum
    detectable effect.

    ``k_t`` of the k and ``u_t`` of the u are members, 0 < u_t < u, 1 <= k <= u. While S does not depend on who was in
    T, k_t is hypergeometric(u, u_t, k). L = (k_t - k u_t / u) / (1 - u_t / u), the number that only membership
    explains; below expectation its mirror image, the number that only non-membership explains, with a minus. The
    interval is exact, see :func:`leaked_interval`; ``minimum_detectable_effect`` is what its conservative bound stays
    within in 99.5 % of cases when nothing leaks.
    """
    from scipy import stats  # slow to import: only where a table is measured

    surplus = k_t * u - k * u_t
    value = surplus / (u - u_t if surplus > 0 else u_t)
    low, high = leaked_interval(k, k_t, u, u_t, confidence)
    # Both ends rise with k_T: its 0.25 % and 99.75 % points under the null hold the conservative bound in 99.5 % of
    # cases.
    points = ((1 - MDE_QUANTILE) / 2, (1 + MDE_QUANTILE) / 2)
    rare = [leaked_interval(k, int(stats.hypergeom.ppf(p, u, u_t, k)), u, u_t, confidence) for p in points]
    return value, min(low, value), max(high, value), max(-rare[0][0], rare[1][1])


def leaked_interval(k: int, k_t: int, u: int, u_t: int, confidence: float) -> tuple[int, int]:
    """Exact interval of L, the number of the k matches that are leaks of members (negative: of non-members).

    L matches are members for certain, the other k - L a random draw from the remaining u - L subjects, u_T - L of them
    members (mirrored for L < 0). The ends are the smallest and the largest L under which k_T and beyond has more than
    half of 1 - ``confidence``; both probabilities are monotone in L.
    """
    from scipy import stats

    level = (1 - confidence) / 2

    def tail(leaks: int, side: str) -> float:
        members = max(leaks, 0)
        sizes = (u - abs(leaks), u_t - members, k - abs(leaks))
        seen = k_t - members
        return float(stats.hypergeom.sf(seen - 1, *sizes) if side == "high" else stats.hypergeom.cdf(seen, *sizes))

    bottom, top = k_t - k, k_t
    low = _first_true(bottom, top, lambda leaks: tail(leaks, "high") > level)
    return low, -_first_true(-top, -bottom, lambda leaks: tail(-leaks, "low") > level)


def _first_true(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Smallest whole number in low..high from which a condition holds; it is taken to hold at ``high``."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
