"""Who can be linked: real rows whose nearest synthetic rows by two sets of columns have a row in common.

A synthetic row is *near* a real row by a set of columns when its distance there is at most that of the k-th nearest
synthetic row: rows at one distance are all near, so that the real row itself, where S holds it, is near by both sets.
Rows of S that agree in all columns of both sets count once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from privacy_assets.engine.tables.encoding import EncodedTable

TIE = 1e-6  # squared distances that differ by less than this share are one distance
_CANDIDATES = 8  # neighbours searched for; where more are tied, all points are compared
_CELLS = 4_000_000  # numbers held at once


@dataclass(frozen=True, eq=False)
class Tables:
    """Synthetic and attacked rows in one encoding; neither is empty.

    Encoded columns are numbered numbers first, then categories. ``codes`` int64 (n_S + n_Q, encoded columns): two rows
    agree in a column exactly when their codes do.
    """

    synthetic: EncodedTable
    attacked: EncodedTable
    codes: np.ndarray

    @classmethod
    def of(cls, synthetic: EncodedTable, attacked: EncodedTable) -> Tables:
        """Code the encoded columns of both tables together."""
        numbers = np.concatenate([synthetic.numeric, attacked.numeric])
        codes = np.zeros((len(numbers), numbers.shape[1] + synthetic.codes.shape[1]), dtype=np.int64)
        for at, column in enumerate(numbers.T):
            codes[:, at] = np.unique(column, return_inverse=True)[1]
        codes[:, numbers.shape[1] :] = np.concatenate([synthetic.codes, attacked.codes])
        return cls(synthetic, attacked, codes)

    def hits(self, first: Sequence[int], second: Sequence[int], k: int = 1, device: str = "cpu") -> np.ndarray:
        """Bool (n_Q,): is some synthetic row near the attacked row by both sets of encoded columns?"""
        sides = self._side(first), self._side(second)
        shape = len(sides[0].points), len(sides[1].points)
        pairs = np.divmod(np.unique(sides[0].of_synthetic * shape[1] + sides[1].of_synthetic), shape[1])
        standing = _matrix(*pairs, shape)
        beside = standing, standing.T.tocsr()
        near = [side.near(np.diff(x.indptr), k, device) for side, x in zip(sides, beside, strict=True)]
        # The rows near by one set are looked at by the other, from the side where they are fewer and none is cut off.
        work = np.array([found.work(x)[s.of_attacked] for found, x, s in zip(near, beside, sides, strict=True)])
        start = np.where(np.isfinite(work).any(axis=0), work.argmin(axis=0), int(shape[1] < shape[0]))
        out = np.zeros(len(start), dtype=bool)
        for at, (side, other) in enumerate((sides, sides[::-1])):
            rows = np.flatnonzero(start == at)
            for part in np.split(rows, np.flatnonzero(np.diff(_parts(work[at, rows], shape[at]))) + 1):
                points = side.within(near[at], side.of_attacked[part])
                reached = (points @ beside[at]).tocoo()
                asked = other.of_attacked[part][reached.row]
                out[part[reached.row[other.squared(asked, reached.col) <= near[1 - at].reach[asked]]]] = True
        return out

    def _side(self, columns: Sequence[int]) -> _Side:
        """Both tables as seen by the given encoded columns."""
        keys, most = np.zeros(len(self.codes), dtype=np.int64), 1
        for column in self.codes[:, list(columns)].T:
            size = int(column.max(initial=0)) + 1
            if most * size >= 2**62:  # number the keys anew before they leave int64
                keys = np.unique(keys, return_inverse=True)[1].astype(np.int64)
                most = int(keys.max(initial=0)) + 1
            keys, most = keys * size + column, most * size
        n_s, numbers = len(self.synthetic), self.synthetic.numeric.shape[1]
        points, first, of_synthetic = np.unique(keys[:n_s], return_index=True, return_inverse=True)
        queries, asked, of_attacked = np.unique(keys[n_s:], return_index=True, return_inverse=True)
        place = np.minimum(np.searchsorted(points, queries), len(points) - 1)
        split = [c for c in columns if c < numbers], [c - numbers for c in columns if c >= numbers]
        return _Side(
            _projection(self.synthetic, first, *split),
            _projection(self.attacked, asked, *split),
            np.where(points[place] == queries, place, -1),
            of_synthetic,
            of_attacked,
        )


def _projection(table: EncodedTable, rows: np.ndarray, numbers: list[int], categories: list[int]) -> EncodedTable:
    sizes = table.sizes[np.array(categories, dtype=np.int64)]
    return EncodedTable(table.numeric[rows][:, numbers], table.codes[rows][:, categories], sizes)


def _parts(work: np.ndarray, everything: int) -> np.ndarray:
    """Number (n,) of the part in which each of the rows is done, so that little is held at once."""
    return np.cumsum(np.where(np.isfinite(work), work, everything)) // _CELLS


@dataclass(frozen=True, eq=False)
class _Near:
    """Per query: ``reach`` float64, the squared distance within which points are near; ``complete`` bool, whether
    ``points``, a 0/1 matrix (queries, points), holds all of these.
    """

    reach: np.ndarray
    complete: np.ndarray
    points: sparse.csr_array

    def work(self, beside: sparse.csr_array) -> np.ndarray:
        """How many synthetic rows are near each query; inf where some are cut off."""
        return np.where(self.complete, self.points @ np.diff(beside.indptr), np.inf)


@dataclass(frozen=True, eq=False)
class _Side:
    """Distinct projections of both tables on one set of columns.

    ``own`` (queries,) is the point equal to each query or -1; ``of_synthetic`` and ``of_attacked`` number the
    projection of each row.
    """

    points: EncodedTable
    queries: EncodedTable
    own: np.ndarray
    of_synthetic: np.ndarray
    of_attacked: np.ndarray

    def squared(self, query: np.ndarray, point: np.ndarray) -> np.ndarray:
        """Squared distances float64 of the pairs at these positions, by direct difference."""
        out = np.empty(len(query))
        step = max(1, _CELLS // (1 + self.points.numeric.shape[1] + self.points.codes.shape[1]))
        for start in range(0, len(query), step):
            q, p = query[start : start + step], point[start : start + step]
            difference = self.queries.numeric[q].astype(np.float64) - self.points.numeric[p]
            mismatches = (self.queries.codes[q] != self.points.codes[p]).sum(axis=1)
            out[start : start + step] = np.einsum("ij,ij->i", difference, difference) + mismatches
        return out

    def near(self, weights: np.ndarray, k: int, device: str) -> _Near:
        """The points near each query; ``weights`` (points,) says for how many synthetic rows each of them stands."""
        from privacy_assets.engine.geometry.neighbours import nearest

        copied = (self.own >= 0) & (weights[self.own] >= k)
        rows = np.flatnonzero(~copied)
        count = min(max(_CANDIDATES, k), len(self.points))
        found = nearest(self.queries.take(rows).dense, self.points.dense, count, device=device).indices
        squared = self.squared(np.repeat(rows, count), found.ravel()).reshape(found.shape)
        order = np.argsort(squared, axis=1, kind="stable")
        enough = np.take_along_axis(weights[found], order, 1).cumsum(axis=1) >= k
        at = np.where(enough.any(axis=1), enough.argmax(axis=1), count - 1)[:, None]
        reach, complete = np.zeros(len(copied)), copied.copy()
        reach[rows] = np.take_along_axis(np.take_along_axis(squared, order, 1), at, 1)[:, 0] * (1 + TIE)
        near = squared <= reach[rows, None]
        complete[rows] = (squared.max(axis=1, initial=0) > reach[rows] * (1 + TIE)) | (count == len(self.points))
        query = np.concatenate([np.flatnonzero(copied), np.repeat(rows, near.sum(axis=1))])
        points = np.concatenate([self.own[copied], found[near]])
        return _Near(reach, complete, _matrix(query, points, (len(reach), len(self.points))))

    def within(self, near: _Near, queries: np.ndarray) -> sparse.csr_array:
        """0/1 matrix (len(queries), points) of all points within reach of these queries."""
        known = near.points[queries].tocoo()
        whole = near.complete[queries]
        row, point = [known.row[whole[known.row]]], [known.col[whole[known.row]]]
        points = self.points.dense.astype(np.float64)
        norms = np.einsum("ij,ij->i", points, points)
        for cut in np.array_split(np.flatnonzero(~whole), 1 + (~whole).sum() * len(points) // _CELLS):
            asked = self.queries.take(queries[cut]).dense.astype(np.float64)
            norm = np.einsum("ij,ij->i", asked, asked)[:, None] + norms
            rough = norm - 2 * (asked @ points.T) <= near.reach[queries[cut], None] * (1 + TIE) + 1e-9 * norm
            at, found = np.nonzero(rough)
            exact = self.squared(queries[cut][at], found) <= near.reach[queries[cut][at]]
            row.append(cut[at[exact]])
            point.append(found[exact])
        return _matrix(np.concatenate(row), np.concatenate(point), (len(queries), len(points)))


def _matrix(row: np.ndarray, column: np.ndarray, shape: tuple[int, int]) -> sparse.csr_array:
    return sparse.csr_array((np.ones(len(row), dtype=np.int32), (row, column)), shape=shape)
