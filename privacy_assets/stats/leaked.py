"""How many of the people whom a synthetic table picks out are members for no other reason than membership."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from privacy_assets.stats.intervals import MDE_QUANTILE

_WAYS = 4  # numbers tried at once: a call of scipy takes much longer than a number


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
    # Both ends rise with k_T: its 0.25 % and 99.75 % points under the null hold the conservative bound in 99.5 % of
    # cases.
    points = [int(stats.hypergeom.ppf(p, u, u_t, k)) for p in ((1 - MDE_QUANTILE) / 2, (1 + MDE_QUANTILE) / 2)]
    low, high = leaked_interval(k, np.array([k_t, *points], dtype=np.int64), u, u_t, confidence)
    return value, min(float(low[0]), value), max(float(high[0]), value), float(max(-low[1], high[2]))


def leaked_interval(k: int, k_t: np.ndarray, u: int, u_t: int, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """Exact interval of L, the number of the k matches that are leaks of members (negative: of non-members).

    L matches are members for certain, the other k - L a random draw from the remaining u - L subjects, u_T - L of them
    members (mirrored for L < 0). The ends are the smallest and the largest L under which k_T and beyond has more than
    half of 1 - ``confidence``; both probabilities are monotone in L. ``k_t`` and both ends are int64 (c,).
    """
    from scipy import stats

    level = (1 - confidence) / 2

    def sizes(leaks: np.ndarray) -> tuple[np.ndarray, ...]:
        members = np.maximum(leaks, 0)
        return k_t[:, None] - members, u - abs(leaks), u_t - members, k - abs(leaks)

    def reached(leaks: np.ndarray) -> np.ndarray:
        seen, *rest = sizes(leaks)
        return np.asarray(stats.hypergeom.sf(seen - 1, *rest) > level)

    def kept(leaks: np.ndarray) -> np.ndarray:
        return np.asarray(stats.hypergeom.cdf(*sizes(-leaks)) > level)

    return _first_true(k_t - k, k_t, reached), -_first_true(-k_t, k - k_t, kept)


def _first_true(low: np.ndarray, high: np.ndarray, holds: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Smallest whole number in each low..high, int64 (c,), from which a condition on (c, n) holds, as at ``high``."""
    while (low < high).any():
        tried = low[:, None] + (high - low)[:, None] * np.arange(_WAYS) // _WAYS
        first = np.column_stack([holds(tried), np.ones(len(low), dtype=bool)]).argmax(axis=1)[:, None]
        ends = np.column_stack([low - 1, tried, high])
        low, high = (np.take_along_axis(ends, first + step, axis=1)[:, 0] for step in (0, 1))
        low = low + 1
    return low
