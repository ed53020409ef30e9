"""Excess of members among the real people whose own row stands identically in a synthetic table."""

from __future__ import annotations

import math

import numpy as np

from privacy_assets.engine.metrics.leaked import leaked
from privacy_assets.engine.results import Figure, FigureSpec

IDENTICAL_EXCESS = FigureSpec(
    "identical_excess", "Share of identical matches with real people that only membership explains.", "two_sided"
)


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
    own = own_rows(real, subjects)
    people = np.unique(subjects[own])
    matched = np.unique(subjects[own & np.isin(real, synthetic)])
    u, u_t, k, k_t = len(people), int(member[people].sum()), len(matched), int(member[matched].sum())
    n, smallest = len(synthetic), int(min(member.sum(), (~member).sum()))

    def figure(value: float, low: float, high: float, resolution: float, note: str = "") -> Figure:
        ends, counts = (value, low, high), (n, smallest)
        return IDENTICAL_EXCESS.estimate(*ends, counts, confidence=confidence, resolution=resolution, note=note)

    if n == 0 or smallest == 0 or (k > 0 and u_t in (0, u)):
        return figure(math.nan, math.nan, math.nan, math.nan, "no rows of its own on one of the sides")
    if k == 0:
        return figure(0.0, 0.0, 0.0, 0.0)
    value, low, high, resolution = (count / max(k, floor) for count in leaked(k, k_t, u, u_t, confidence))
    return figure(value, low, high, resolution)


def own_rows(ids: np.ndarray, subjects: np.ndarray) -> np.ndarray:
    """True for the rows (N,) whose content one subject alone has."""
    pairs = np.unique(ids * (int(subjects.max(initial=0)) + 1) + subjects)
    holders = np.bincount(pairs // (int(subjects.max(initial=0)) + 1), minlength=int(ids.max(initial=0)) + 1)
    return holders[ids] == 1
