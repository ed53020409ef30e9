"""Exact nearest neighbours: copies, ties and order of rows settled here.

Rows are first put into distinct rows in an order that depends on their content alone; the search itself
(:mod:`privacy_assets.neighbours.mixed_search`) sees nothing else, so no result depends on the order of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privacy_assets.errors import InputError
from privacy_assets.neighbours.mixed_search import Path, search_rows
from privacy_assets.neighbours.mixed_tree import MixedTree
from privacy_assets.tables.encoding import EncodedTable
from privacy_assets.tables.memory_mapping import mapped_empty

_COMPARED = 1 << 18  # rows compared at a time


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
    first, place = _by_bytes(np.ascontiguousarray(matrix + 0.0))
    return matrix[first] + 0.0, place


def distinct_encoded(table: EncodedTable) -> tuple[EncodedTable, np.ndarray]:
    """:func:`distinct_rows` of an encoded table, in the order that its dense form has there."""
    width = table.numeric.shape[1]
    cells = mapped_empty((len(table), width + table.codes.shape[1]), np.float32)
    np.add(table.numeric, np.float32(0), out=cells[:, :width])
    codes = cells.view(">u4")
    for column, size in enumerate(table.sizes):
        codes[:, width + column] = size - 1 - table.codes[:, column]
    first, place = _by_bytes(cells)
    return table.take(first), place


def _by_bytes(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each distinct row stands first, in order of their bytes, and the place (n,) of each row among them."""
    if matrix.size == 0:
        return np.arange(min(1, len(matrix))), np.zeros(len(matrix), dtype=np.int64)
    rows = matrix.view(np.dtype((np.void, matrix.strides[0]))).ravel()
    order, new = np.argsort(rows, kind="stable"), np.ones(len(rows), dtype=bool)
    for start in range(1, len(rows), _COMPARED):
        ordered = rows[order[start - 1 : start + _COMPARED]]
        new[start : start + _COMPARED] = ordered[1:] != ordered[:-1]
    place = np.empty(len(rows), dtype=np.int64)
    place[order] = np.cumsum(new) - 1
    return order[new], place


def nearest(
    queries: np.ndarray, points: np.ndarray, k: int = 1, *, exclude_self: bool = False, device: str = "cpu"
) -> Neighbours:
    """:func:`nearest_rows` of matrices (n_q, d) and (n_p, d), say embeddings. They are rounded to float32 first."""
    if queries.ndim != 2 or points.ndim != 2:
        raise InputError(f"neighbours need two tables of equal width, got shapes {queries.shape} and {points.shape}")
    tables = (EncodedTable.of_numbers(queries), EncodedTable.of_numbers(points))
    return nearest_rows(*tables, k, exclude_self=exclude_self, device=device)


def nearest_rows(
    queries: EncodedTable,
    points: EncodedTable,
    k: int = 1,
    *,
    exclude_self: bool = False,
    device: str = "cpu",
    path: Path | None = None,
) -> Neighbours:
    """Find the ``k`` rows of an encoded table nearest to each query by Euclidean distance, exactly.

    Both tables come from one encoder. Squared distance = number of mismatching codes + squared differences of the
    numbers, added up in this order in float64; only rows at equal sums tie, and are ordered by content, equal rows by
    position. A row equal to the query has distance exactly 0. ``exclude_self`` (the same table twice) leaves out the
    row at the query's own position: a duplicate of it is still a neighbour at distance 0.

    Columns of any number of categories will do: the dense form is made only where it is small and the search by matrix
    product quicker than that by the tree. ``path`` ("tree", "product") sets which; both give the same result, and so
    does any number of threads. Memory is linear in the cells of both tables. Raises InputError for tables of other
    shapes or with NaN or infinite numbers.
    """
    _comparable(queries, points, exclude_self)
    if len(queries) == 0 or len(points) == 0 or k < 1:
        return _nothing(len(queries), k)
    unique, place = distinct_encoded(points if exclude_self else EncodedTable.stack([points, queries]))
    n_p = len(points)
    of_points, of_queries = place[:n_p], (place if exclude_self else place[n_p:])
    counts = np.bincount(of_points, minlength=len(unique))
    held, asked = np.flatnonzero(counts), np.unique(of_queries)
    own = np.full(len(unique), -1)
    own[held] = np.arange(len(held))
    wanted = min(k + int(exclude_self), len(held))
    distances, groups = search_rows(unique.take(asked), unique.take(held), wanted, own[asked], device, path)
    out, row = _nothing(len(of_queries), k), np.searchsorted(asked, of_queries)
    _expand(out, distances[row], groups[row], counts[held], own[of_points], exclude_self)
    return out


def weight_within(
    queries: EncodedTable, points: EncodedTable, radius: float, weights: np.ndarray | None = None
) -> np.ndarray:
    """Weight float64 (n_q,) of the rows of ``points`` within ``radius`` >= 0 of each query; their number when None.

    Exact, with the distance of :func:`nearest_rows`: rows whose squared distance is at most ``radius`` squared count,
    rows equal to the query at any radius. A query that stands among the points counts itself. Any order of rows gives
    the same; memory is linear in the cells of both tables, however many rows are near. Raises InputError as
    :func:`nearest_rows` does.
    """
    _comparable(queries, points)
    if len(queries) == 0 or len(points) == 0:
        return np.zeros(len(queries))
    held, place = distinct_encoded(points)
    asked, row = distinct_encoded(queries)
    return MixedTree.build(held).weigh(asked, radius, np.bincount(place, weights, len(held)))[row]


def _nothing(n_q: int, k: int) -> Neighbours:
    return Neighbours(np.full((n_q, max(k, 0)), np.inf), np.full((n_q, max(k, 0)), -1, dtype=np.int64))


def _comparable(queries: EncodedTable, points: EncodedTable, exclude_self: bool = False) -> None:
    shapes = queries.numeric.shape, points.numeric.shape
    if shapes[0][1] != shapes[1][1]:
        raise InputError(f"neighbours need two tables of equal width, got shapes {shapes[0]} and {shapes[1]}")
    if exclude_self and len(queries) != len(points):
        raise InputError("exclude_self needs the same table twice", fix="pass one table as queries and as points")
    for table, name in ((queries, "queries"), (points, "points")):
        bad = np.flatnonzero(~np.isfinite(table.numeric).all(axis=1))
        if len(bad):
            raise InputError("a coordinate is missing or infinite", where=name, row=int(bad[0]), fix="encode the table")
    if not np.array_equal(queries.sizes, points.sizes):
        raise InputError("neighbours need two tables of one encoder", fix="encode both tables alike")


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
