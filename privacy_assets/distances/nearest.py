"""Exact nearest neighbors, with defined results for duplicates, ties and any row order.

Rows are first reduced to distinct rows, sorted by content. The search uses only these, so results do not depend on the
order of rows. It uses a :class:`.MixedTree` or a matrix product of one-hot encoded rows. The share of rows that a tree
visits depends on the data: 1 in 60 on Adult, 1 in 40 on its embeddings, nearly all for 20 independent numbers. The
choice is therefore based on the work that up to 32 probe queries cause in the tree. The tree is always used for few
rows, or if the one-hot encoding would be too large. Elapsed time is not used, so the choice is reproducible. Both
methods compute final distances by the same sums, so the choice does not affect results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from privacy_assets.distances.exact_search import EXTRA, candidates, ordered
from privacy_assets.distances.mixed_tree import MixedTree, squared_distances
from privacy_assets.errors import InputError
from privacy_assets.tables.arrays import mapped_empty
from privacy_assets.tables.encoding import EncodedTable

Path = Literal["tree", "product"]
_PROBES = 32  # number of queries that the tree is tried on
_DENSE = 500_000_000  # maximum cells of both dense forms: 2 GB
_LOOK, _CELL = 20.0, 3.5  # nanoseconds per node or leaf, and per column of it
_PAIR, _TERM = 0.7, 0.02  # nanoseconds per pair of rows in a product, and per column of it
_ACCELERATION = 20.0  # assumed speedup of a product on an accelerator; affects time only


def search_rows(
    queries: EncodedTable, points: EncodedTable, k: int, own: np.ndarray, device: str, path: Path | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return distances float64 (n_q, k) and positions int64 (n_q, k) of the nearest ``points``, ties by position.

    Rows of ``points`` must be distinct, and 1 <= k <= n_p. ``own`` (n_q,) is the point equal to each query, or -1.
    """
    tree = MixedTree.build(points)
    if len(points) > k + EXTRA and (path or _quicker(tree, queries, points, k, device)) == "product":
        squared, found = _by_product(tree, queries, points, k, own, device)
    else:
        squared, found, _ = tree.search(queries, k)
    return np.sqrt(squared), found


def _quicker(tree: MixedTree, queries: EncodedTable, points: EncodedTable, k: int, device: str) -> Path:
    """Compare the work of the tree, measured on evenly spaced queries, with the work of a product."""
    cells = points.numeric.shape[1] + len(points.sizes)
    width = points.numeric.shape[1] + int(points.sizes.sum())
    if width > 4 * cells and (len(queries) + len(points)) * width > _DENSE:
        return "tree"
    probes = queries.take(np.s_[:: -(-len(queries) // _PROBES)])
    work = tree.search(probes, k)[2].sum() / len(probes)
    by_product = len(points) * (_PAIR + _TERM * width) / (1.0 if device == "cpu" else _ACCELERATION)
    by_tree = work * (_LOOK + _CELL * cells)
    return "tree" if by_tree <= by_product else "product"


def _by_product(
    tree: MixedTree, queries: EncodedTable, points: EncodedTable, k: int, own: np.ndarray, device: str
) -> tuple[np.ndarray, np.ndarray]:
    """Find candidates by matrix product, and search the tree where float32 rounding leaves the result uncertain."""
    found, in_doubt = candidates(queries.dense, points.dense, k, own, device)
    squared, found = ordered(squared_distances(queries, points, found), found, k)
    open_ = in_doubt(squared[:, -1])
    squared[open_], found[open_], _ = tree.search(queries.take(open_), k)
    return squared, found


MOST_NEIGHBOURS = 8
TIE = 1e-4  # relative tolerance of the radius: float32 cells are not more precise than this


def near(queries: EncodedTable, points: EncodedTable, radius: float, weights: np.ndarray | None = None) -> np.ndarray:
    """Sum the weights (default: 1) of the rows of ``points`` within ``radius * (1 + TIE)`` of each query: (n_q,)."""
    return weight_within(queries, points, radius * (1 + TIE), weights)


def distance_to_other_subjects(
    pool: EncodedTable, codes: np.ndarray, device: str, rows: np.ndarray | None = None
) -> np.ndarray:
    """Return the distance of each row, or of those at ``rows``, to the nearest row of another subject.

    Rows of the same subject are ignored, so near-duplicates do not reduce a subject's isolation. At most the 8 nearest
    rows are considered; if all of them belong to the same subject, their largest distance is returned.
    """
    k = min(int(np.bincount(codes).max()), MOST_NEIGHBOURS, len(pool) - 1)
    if rows is None:
        found = nearest_rows(pool, pool, k, exclude_self=True, device=device)
        distances, indices, own = found.distances, found.indices, codes
    else:  # k + 1 includes the row itself, unless that many others equal it: then the last one is dropped
        found = nearest_rows(pool.take(rows), pool, k + 1, device=device)
        itself = found.indices == rows[:, None]
        itself[~itself.any(axis=1), -1] = True
        distances, indices = (part[~itself].reshape(len(rows), k) for part in (found.distances, found.indices))
        own = codes[rows]
    foreign = codes[indices] != own[:, None]
    first = np.where(foreign.any(axis=1), foreign.argmax(axis=1), k - 1)
    return distances[np.arange(len(own)), first]


def typical_radius(rows: EncodedTable, subjects: np.ndarray | None, quantile: float, device: str) -> float:
    """Return the smallest distance within which at least ``quantile`` of the rows have another row.

    Needs two or more rows. If ``subjects`` (n,) is passed (codes 0..s-1), only rows of other subjects count, because
    rows of one subject are similar.
    """
    codes = np.arange(len(rows)) if subjects is None else subjects
    distances = distance_to_other_subjects(rows, codes, device)
    return float(np.quantile(distances, quantile, method="inverted_cdf"))


_COMPARED = 1 << 18  # rows compared at a time


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Nearest neighbors of a set of queries.

    Attributes:
        distances: Euclidean distances, ascending, float64 of shape (n_q, k); inf where fewer than k points exist.
        indices: Positions in the searched points, int64 of shape (n_q, k); -1 where fewer than k points exist.
    """

    distances: np.ndarray
    indices: np.ndarray


def distinct_rows(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows of a 2-D array, and the position of each row among them, int64 of shape (n,).

    Distinct rows are sorted by their bytes, which is not a numeric order. -0.0 equals 0.0.
    """
    first, place = _by_bytes(np.ascontiguousarray(matrix + 0.0))
    return matrix[first] + 0.0, place


def distinct_encoded(table: EncodedTable) -> tuple[EncodedTable, np.ndarray]:
    """Apply :func:`distinct_rows` to an encoded table; rows are sorted as in its dense form."""
    width = table.numeric.shape[1]
    cells = mapped_empty((len(table), width + table.codes.shape[1]), np.float32)
    np.add(table.numeric, np.float32(0), out=cells[:, :width])
    codes = cells.view(">u4")
    for column, size in enumerate(table.sizes):
        codes[:, width + column] = size - 1 - table.codes[:, column]
    first, place = _by_bytes(cells)
    return table.take(first), place


def _by_bytes(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first position of each distinct row, sorted by bytes, and each row's position (n,) among these."""
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
    """Apply :func:`nearest_rows` to matrices (n_q, d) and (n_p, d), such as embeddings, rounded to float32."""
    if queries.ndim != 2 or points.ndim != 2:
        raise InputError(f"queries and points must have equal width, got shapes {queries.shape} and {points.shape}")
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
    """Find the exact ``k`` nearest rows of an encoded table to each query, by Euclidean distance.

    The squared distance is the number of mismatching codes plus the squared differences of the numbers, summed in
    float64 in column order. A row equal to the query has distance exactly 0. Rows with equal sums are ordered by
    content, and equal rows by position. Memory is linear in the cells of both tables.

    Args:
        queries: Rows to find neighbors of.
        points: Rows to search, encoded by the same encoder.
        k: Number of neighbors per query.
        exclude_self: Exclude the row at the query's own position; ``queries`` and ``points`` must be the same table. A
            duplicate of the row remains a neighbor at distance 0.
        device: Torch device of the matrix product.
        path: "tree" or "product". None: the faster of the two; the dense form is built only if it is small. The result
            is the same, for any number of threads.

    Returns:
        Distances and positions of shape (n_q, k).

    Raises:
        InputError: If the tables differ in columns or encoder, or contain NaN or infinite numbers.
    """
    _comparable(queries, points, exclude_self)
    if len(queries) == 0 or len(points) == 0 or k < 1:
        return _nothing(len(queries), k)
    unique, place = distinct_encoded(points if exclude_self else EncodedTable.stack([points, queries]))
    n_p = len(points)
    of_points, of_queries = place[:n_p], (place if exclude_self else place[n_p:])
    counts = np.bincount(of_points, minlength=len(unique))
    times_asked = np.bincount(of_queries, minlength=len(unique))
    held, asked = np.flatnonzero(counts), np.flatnonzero(times_asked)
    own = np.full(len(unique), -1)
    own[held] = np.arange(len(held))
    wanted = min(k + int(exclude_self), len(held))
    distances, groups = search_rows(unique.take(asked), unique.take(held), wanted, own[asked], device, path)
    out, row = _nothing(len(of_queries), k), (np.cumsum(times_asked > 0) - 1)[of_queries]
    _expand(out, distances[row], groups[row], counts[held], own[of_points], exclude_self)
    return out


def weight_within(
    queries: EncodedTable, points: EncodedTable, radius: float, weights: np.ndarray | None = None
) -> np.ndarray:
    """Sum the weights of the rows of ``points`` within ``radius`` of each query.

    Counts rows whose squared distance (as in :func:`nearest_rows`) is at most ``radius`` squared, and equal rows at any
    radius. A query that is among the points counts itself. The result is exact and independent of row order. Memory is
    linear in the cells of both tables, regardless of the number of rows within the radius.

    Args:
        queries: Centers.
        points: Rows to count, encoded by the same encoder.
        radius: Non-negative distance.
        weights: Weights of the points, shape (n_p,). None: each point counts 1.

    Returns:
        float64 of shape (n_q,).

    Raises:
        InputError: As in :func:`nearest_rows`.
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
        raise InputError(f"queries and points must have equal width, got shapes {shapes[0]} and {shapes[1]}")
    if exclude_self and len(queries) != len(points):
        raise InputError("exclude_self needs the same table twice", fix="pass one table as queries and as points")
    for table, name in ((queries, "queries"), (points, "points")):
        bad = np.flatnonzero(~np.isfinite(table.numeric).all(axis=1))
        if len(bad):
            raise InputError("a coordinate is missing or infinite", where=name, row=int(bad[0]), fix="encode the table")
    if not np.array_equal(queries.sizes, points.sizes):
        raise InputError("queries and points have different encodings", fix="encode both tables with the same encoder")


def _expand(
    out: Neighbours,
    distances: np.ndarray,
    groups: np.ndarray,
    counts: np.ndarray,
    of_points: np.ndarray,
    exclude_self: bool,
) -> None:
    """Expand neighboring distinct rows (n_q, wanted) into points: a row with c duplicates fills c slots."""
    members = np.argsort(of_points, kind="stable")
    starts = np.cumsum(counts) - counts
    room = counts[groups]
    if exclude_self:  # the query's own distinct row has distance 0 and therefore comes first
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
