"""Exact nearest neighbours (DESIGN section 5, "Exact neighbours", path b): copies, ties and order of rows settled here.

Rows are first put into distinct rows in an order that depends on their content alone; the search itself
(:mod:`privacy_assets.engine.geometry.exact_search`) sees nothing else, so no result depends on the order of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privacy_assets.engine.geometry.exact_search import BLOCK, Backend, search_distinct
from privacy_assets.errors import InputError


@dataclass(frozen=True, eq=False)
class Neighbours:
    """``distances`` float64 (n_q, k), Euclidean, ascending; ``indices`` int64 (n_q, k) into the searched points.

    Where fewer than k points are there, the rest is inf and -1.
    """

    distances: np.ndarray
    indices: np.ndarray


def distinct_rows(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows of a 2-D array, and the int64 position (n,) of each row among them.

    The distinct rows stand in an order of their content (that of their bytes, not a numeric one); -0.0 equals 0.0.
    """
    matrix = np.ascontiguousarray(matrix + 0.0)
    if matrix.size == 0:
        return matrix[:1], np.zeros(len(matrix), dtype=np.int64)
    rows = matrix.view(np.dtype((np.void, matrix.strides[0]))).ravel()
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    return matrix[first], inverse.ravel().astype(np.int64)


def nearest(
    queries: np.ndarray,
    points: np.ndarray,
    k: int = 1,
    *,
    exclude_self: bool = False,
    device: str = "cpu",
    block: int = BLOCK,
    backend: Backend | None = None,
) -> Neighbours:
    """Find the ``k`` points nearest to each query by Euclidean distance, exactly.

    ``queries`` (n_q, d) and ``points`` (n_p, d) are finite float32 or float64. A point equal to the query has distance
    exactly 0; other distances are direct differences in float64. Points at one distance (squared distances that agree
    to 1e-11 may count as one) are ordered by content, equal points by position. ``exclude_self`` (both arrays are the
    same table) leaves out the point at the query's own position: a duplicate of it is still a neighbour at distance 0.

    Memory is linear in n_q + n_p, plus about 100 bytes x ``block`` squared. ``backend`` None takes faiss for device
    "cpu" and torch for any other. Raises InputError for arrays of other shapes or with NaN or infinite numbers.
    """
    queries, points = _checked(queries, points, exclude_self)
    n_q, n_p = len(queries), len(points)
    out = Neighbours(np.full((n_q, k), np.inf), np.full((n_q, k), -1, dtype=np.int64))
    if n_q == 0 or n_p == 0 or k < 1:
        return out
    unique, place = distinct_rows(points if exclude_self else np.concatenate([points, queries]))
    of_points, of_queries = place[:n_p], (place if exclude_self else place[n_p:])
    counts = np.bincount(of_points, minlength=len(unique))
    held, asked = np.flatnonzero(counts), np.unique(of_queries)
    lookup = np.full(len(unique), -1)
    lookup[held] = np.arange(len(held))
    wanted = min(k + int(exclude_self), len(held))
    distances, groups = search_distinct(
        unique[asked],
        unique[held],
        wanted,
        lookup[asked],
        backend or ("faiss" if device == "cpu" else "torch"),
        device,
        block,
    )
    row = np.searchsorted(asked, of_queries)
    _expand(out, distances[row], groups[row], counts[held], lookup[of_points], exclude_self)
    return out


def _checked(queries: np.ndarray, points: np.ndarray, exclude_self: bool) -> tuple[np.ndarray, np.ndarray]:
    if queries.ndim != 2 or points.ndim != 2 or queries.shape[1] != points.shape[1]:
        raise InputError(f"neighbours need two tables of equal width, got shapes {queries.shape} and {points.shape}")
    if exclude_self and len(queries) != len(points):
        raise InputError("exclude_self needs the same table twice", fix="pass one table as queries and as points")
    common = np.float32 if queries.dtype == points.dtype == np.float32 else np.float64
    for array, name in ((queries, "queries"), (points, "points")):
        bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
        if len(bad):
            raise InputError("a coordinate is missing or infinite", where=name, row=int(bad[0]), fix="encode the table")
    return queries.astype(common, copy=False), points.astype(common, copy=False)


def _expand(
    out: Neighbours,
    distances: np.ndarray,
    groups: np.ndarray,
    counts: np.ndarray,
    of_points: np.ndarray,
    exclude_self: bool,
) -> None:
    """Turn neighbouring distinct rows (n_q, wanted) into points: a row that stands c times fills c slots."""
    members = np.argsort(of_points, kind="stable")
    starts = np.cumsum(counts) - counts
    room = counts[groups]
    if exclude_self:  # a query's own distinct row is at distance 0, hence first
        room[:, 0] -= 1
    ends = np.cumsum(room, axis=1)
    rank = np.empty(len(of_points), dtype=np.int64)
    rank[members] = np.arange(len(members)) - np.repeat(starts, counts)
    rows = np.arange(len(groups))
    for slot in range(min(out.indices.shape[1], int(ends[:, -1].max(initial=0)))):
        filled = rows[ends[:, -1] > slot]
        column = (ends[filled] <= slot).sum(axis=1)
        group = groups[filled, column]
        offset = slot - (ends[filled, column] - room[filled, column])
        if exclude_self:
            offset += (column == 0) & (offset >= rank[filled])
        out.distances[filled, slot] = distances[filled, column]
        out.indices[filled, slot] = members[starts[group] + offset]
