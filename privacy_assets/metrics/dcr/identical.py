"""Excess of members among the real people whose own row stands identically in a synthetic table."""

from __future__ import annotations

import numpy as np

from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.leaked import leaked_subjects
from privacy_assets.stats.subjects import Subjects

IDENTICAL_EXCESS = StatisticSpec(
    "identical_excess", "Share of identical matches with real people that only membership explains.", "two_sided"
)


def identical_excess(
    real: np.ndarray, people: Subjects, synthetic: np.ndarray, floor: float, confidence: float
) -> Estimate:
    """Statistic ``identical_excess``: leaked subjects over max(k, ``floor``), between -1 and 1.

    ``real`` (N,) and ``synthetic`` (n_S,) are row ids; ``people`` says whose the real rows are. A row counts when one
    subject alone has it. Of u subjects with such a row, u_T are members; k of the u have such a row standing in S, k_T
    of them members. While S does not depend on who was in T, k_T is hypergeometric(u, u_T, k). Leaked subjects:
    (k_T - k u_T / u) / (1 - u_T / u), the number of matches that only membership explains; below expectation its mirror
    image, the number that only non-membership explains, with a minus. No match: 0, exactly.
    """
    own, counts = own_rows(real, people.codes), (len(synthetic), people.smallest_side)
    matched = np.unique(people.codes[own & np.isin(real, synthetic)])
    found = leaked_subjects(np.unique(people.codes[own]), matched, people.member, confidence)
    if min(counts) == 0 or np.isnan(found).any():
        return IDENTICAL_EXCESS.missing("no rows of its own on one of the sides", counts, confidence)
    value, low, high, mde = (found / max(len(matched), floor, 1)).tolist()
    return IDENTICAL_EXCESS.estimate(value, low, high, counts, confidence=confidence, minimum_detectable_effect=mde)


def own_rows(ids: np.ndarray, subjects: np.ndarray) -> np.ndarray:
    """True for the rows (N,) whose content one subject alone has."""
    pairs = np.unique(ids * (int(subjects.max(initial=0)) + 1) + subjects)
    holders = np.bincount(pairs // (int(subjects.max(initial=0)) + 1), minlength=int(ids.max(initial=0)) + 1)
    return holders[ids] == 1
