"""The people of T u H, and what permuting their labels makes of statistics that are linear in these."""

from __future__ import annotations

from copy import copy
from functools import cached_property

import numpy as np

from privacy_assets.engine.intervals import SETS, permute_labels

_CELLS = 16_000_000  # labels of people held at once


class People:
    """Subjects of T u H: ``codes`` (N,) of the stacked rows, of which the first ``n_train`` are T; ``member`` (s,)."""

    def __init__(self, codes: np.ndarray, n_train: int) -> None:
        self.codes = codes
        self.member = np.zeros(int(codes.max()) + 1, dtype=bool)
        self.member[codes[:n_train]] = True

    def relabelled(self, member: np.ndarray) -> People:
        """The same people with other members, bool (s,)."""
        other = copy(self)
        other.__dict__.pop("smallest_side", None)
        other.member = member
        return other

    @cached_property
    def smallest_side(self) -> int:
        """Subjects on the smaller side."""
        return int(min(self.member.sum(), (~self.member).sum()))

    def weights(self, groups: np.ndarray, hit: np.ndarray) -> np.ndarray:
        """Weights (s,) that turn labels into the mean, over distinct rows ``hit``, of their rows' mean label.

        ``groups`` (N,) number the distinct rows of T u H.
        """
        rows = np.isin(groups, hit)
        share = 1 / (np.bincount(groups)[groups[rows]] * max(1, len(hit)))
        return np.bincount(self.codes[rows], weights=share, minlength=len(self.member))

    def excess(self, weights: np.ndarray, permutations: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Excess (m,) of the labels, and its null law (permutations, m), for ``weights`` (m, s)."""
        share, total = self.member.mean(), weights.sum(axis=1)
        weights, member = weights.T, self.member

        def statistic(labels: np.ndarray) -> np.ndarray:
            return (labels @ weights - share * total) / (1 - share)

        observed = statistic(member.astype(np.float64))
        weights = weights[np.lexsort(weights.T)]  # the draws then depend on content, not on the order of subjects
        seen = np.flatnonzero(weights.any(axis=1))
        weights = weights[seen]
        block = int(np.clip(_CELLS // max(len(seen), 1), 1, SETS))
        return observed, permute_labels(np.sort(member), permutations, rng, statistic, block, seen)
