"""Who can be linked: real rows whose nearest synthetic rows by two sets of columns have a row in common.

A synthetic row is *near* a real row by a set of columns when its distance there is at most that of the k-th nearest
synthetic row: rows at one distance are all near, so that the real row itself, where S holds it, is near by both sets.
Rows of S that agree in all columns of both sets count once.

Squared distances by both sets add up to that by all their columns. A row near by both is hence no farther from the
real row, by all columns, than the two reaches together; when the nearest row of all is, there is none, and when it
lies within both, it is one. With k = 1 this settles all but near ties, whatever the number of ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privacy_assets.neighbours.mixed_tree import squared_distances
from privacy_assets.neighbours.nearest import Neighbours, distinct_encoded, nearest_rows
from privacy_assets.tables.encoding import EncodedTable

TIE = 1e-6  # squared distances that differ by less than this share are one distance
_CELLS = 1_000_000  # pairs of rows that are looked at together


@dataclass(frozen=True, eq=False)
class Linkage:
    """Attacked rows, synthetic rows that are distinct by some columns, and of these the one nearest by all of them."""

    attacked: EncodedTable
    synthetic: EncodedTable
    nearest: Neighbours
    device: str

    @classmethod
    def of(
        cls, synthetic: EncodedTable, attacked: EncodedTable, columns: Sequence[int], device: str = "cpu"
    ) -> Linkage:
        """Both tables, neither empty, by the given encoded columns (as ``EncodedTable.pick`` numbers them)."""
        place = distinct_encoded(synthetic.pick(columns))[1]
        rows = synthetic.take(np.unique(place, return_index=True)[1])
        nearest = nearest_rows(attacked.pick(columns), rows.pick(columns), device=device)
        return cls(attacked, rows, nearest, device)

    def hits(self, first: Sequence[int], second: Sequence[int], k: int = 1) -> np.ndarray:
        """Bool (n_Q,): is some synthetic row near the attacked row by both sets?

        The sets are disjoint, and together they are the columns that the tables were made for.
        """
        distance, nearest = self.nearest.distances[:, 0], self.nearest.indices
        found = distance == 0  # the row itself
        rows = np.flatnonzero(~found)
        one, other = (self._side(columns, rows, k) for columns in (first, second))
        within = distance[rows] ** 2 <= (one.reach + other.reach) * (1 + TIE)
        every = np.arange(len(rows))
        by_both = (one.near(every, nearest[rows]) & other.near(every, nearest[rows]))[:, 0]
        found[rows[by_both]] = True
        open_ = np.flatnonzero(within & ~by_both)
        for part in np.array_split(open_, 1 + len(open_) * len(self.synthetic) // _CELLS):
            found[rows[part]] = _any_near(one, other, part)
        return found

    def _side(self, columns: Sequence[int], rows: np.ndarray, k: int) -> _Side:
        queries, points = self.attacked.take(rows).pick(columns), self.synthetic.pick(columns)
        farthest = nearest_rows(queries, points, min(k, len(points)), device=self.device).distances[:, -1]
        return _Side(queries, points, farthest**2 * (1 + TIE))


@dataclass(frozen=True, eq=False)
class _Side:
    """Both tables by one set of columns; points are near within the squared distance ``reach`` float64 (n_q,)."""

    queries: EncodedTable
    points: EncodedTable
    reach: np.ndarray

    def near(self, queries: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Bool (n, c): which of these points (n, c) are near these queries (n,)?"""
        return squared_distances(self.queries.take(queries), self.points, points) <= self.reach[queries, None]


def _any_near(first: _Side, second: _Side, queries: np.ndarray) -> np.ndarray:
    """Bool (n,): is any point near by both sides? Looks at all of them."""
    near = first.near(queries, np.tile(np.arange(len(first.points)), (len(queries), 1)))
    at, point = np.nonzero(near)
    both = second.near(queries[at], point[:, None])[:, 0]
    return np.bincount(at[both], minlength=len(queries)) > 0
