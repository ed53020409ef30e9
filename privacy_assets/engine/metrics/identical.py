"""Excess of members among the real people whose own row stands identically in a synthetic table."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from privacy_assets.engine.intervals import RESOLUTION_QUANTILE
from privacy_assets.engine.results import Figure


def identical_excess(
    real: np.ndarray, subjects: np.ndarray, member: np.ndarray, synthetic: np.ndarray, floor: float, confidence: float
) -> Figure:
    """Figure ``identical_excess``: leaked subjects over max(k, ``floor``), between -1 and 1.

    ``real`` (N,) and ``synthetic`` (n_S,) are row ids; ``subjects`` (N,) codes; ``member`` (s,) says who stands in T. A
    row counts when one subject alone has it. Of u subjects with such a row, u_T are members; k of the u have such a row
    standing in S, k_T of them members. While S does not depend on who was in T, k_T is hypergeometric(u, u_T, k).
    Leaked subjects: (k_T - k u_T / u) / (1 - u_T / u), the number of matches that only membership explains; below
    expectation its mirror image, the number that only non-membership explains, with a minus. No match: 0, exactly.
    """
    own = _own_rows(real, subjects)
    people = np.unique(subjects[own])
    matched = np.unique(subjects[own & np.isin(real, synthetic)])
    u, u_t, k, k_t = len(people), int(member[people].sum()), len(matched), int(member[matched].sum())
    n, smallest = len(synthetic), int(min(member.sum(), (~member).sum()))

    def figure(value: float, low: float, high: float, resolution: float, note: str = "") -> Figure:
        return Figure(
            "identical_excess", value, low, high, n, smallest, direction="two_sided",
            confidence=confidence, resolution=resolution, note=note,
        )  # fmt: skip

    from scipy import stats  # slow to import: only where a table is measured

    if n == 0 or smallest == 0 or (k > 0 and u_t in (0, u)):
        return figure(math.nan, math.nan, math.nan, math.nan, "no rows of its own on one of the sides")
    if k == 0:
        return figure(0.0, 0.0, 0.0, 0.0)
    over, surplus = max(k, floor), k_t * u - k * u_t
    leaked = surplus / (u - u_t if surplus > 0 else u_t)
    low, high = leaked_interval(k, k_t, u, u_t, confidence)
    # Both ends rise with k_T: its 0.25 % and 99.75 % points under the null hold the cautious end in 99.5 % of cases.
    points = ((1 - RESOLUTION_QUANTILE) / 2, (1 + RESOLUTION_QUANTILE) / 2)
    rare = [leaked_interval(k, int(stats.hypergeom.ppf(p, u, u_t, k)), u, u_t, confidence) for p in points]
    return figure(leaked / over, min(low, leaked) / over, max(high, leaked) / over, max(-rare[0][0], rare[1][1]) / over)


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


def _own_rows(ids: np.ndarray, subjects: np.ndarray) -> np.ndarray:
    """True for the rows (N,) whose content one subject alone has."""
    pairs = np.unique(ids * (int(subjects.max(initial=0)) + 1) + subjects)
    holders = np.bincount(pairs // (int(subjects.max(initial=0)) + 1), minlength=int(ids.max(initial=0)) + 1)
    return holders[ids] == 1


def _first_true(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Smallest whole number in low..high from which a condition holds; it is taken to hold at ``high``."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
