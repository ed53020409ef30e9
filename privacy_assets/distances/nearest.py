"""Exact nearest neighbors, with defined results for duplicates, ties and any row order.

Rows are first reduced to distinct rows, sorted by content. The search uses only these, so results
do not depend on the order of rows. It uses a :class:`.MixedTree` or a matrix product of one-hot
encoded rows. The share of rows that a tree visits depends on the data: 1 in 60 on Adult, 1 in 40 on
its embeddings, nearly all for 20 independent numbers. The choice is therefore based on the work
that up to 32 probe queries cause in the tree. The tree is always used for few rows, or if the
one-hot encoding would be too large. Elapsed time is not used, so the choice is reproducible. Both
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
_N_PROBES = 32  # number of queries that the tree is tried on
_MAX_DENSE_CELLS = 500_000_000  # of both dense forms: 2 GB
_NODE_NS = 20.0  # nanoseconds per node or leaf
_NODE_COLUMN_NS = 3.5  # nanoseconds per column of a node or leaf
_PAIR_NS = 0.7  # nanoseconds per pair of rows in a product
_PAIR_COLUMN_NS = 0.02  # nanoseconds per column of a pair
_ACCELERATION = 20.0  # assumed speedup of a product on an accelerator; affects time only


def search_rows(
    queries: EncodedTable,
    points: EncodedTable,
    k: int,
    equal_points: np.ndarray,
    device: str,
    path: Path | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest rows of a table without duplicates, ties by position.

    Args:
        queries: Rows to find neighbors of.
        points: Distinct rows, encoded by the same encoder.
        k: Number of neighbors, 1 <= k <= n_p.
        equal_points: Position of the point that equals each query, int64 (n_q,); -1: none does.
        device: Torch device of the matrix product.
        path: Method. None: the faster one.

    Returns:
        Distances float64 (n_q, k), and positions int64 (n_q, k).
    """
    tree = MixedTree.build(points)
    if len(points) <= k + EXTRA:
        path = "tree"
    elif path is None:
        path = _faster_path(tree, queries, points, k, device)
    if path == "product":
        squared, positions = _by_product(tree, queries, points, k, equal_points, device)
    else:
        squared, positions, _ = tree.search(queries, k)
    return np.sqrt(squared), positions


def _faster_path(
    tree: MixedTree, queries: EncodedTable, points: EncodedTable, k: int, device: str
) -> Path:
    """Compare the work of the tree, measured on evenly spaced queries, with the work of a
    product.
    """
    n_numbers = points.numeric.shape[1]
    n_columns = n_numbers + len(points.sizes)
    dense_width = n_numbers + int(points.sizes.sum())
    n_dense_cells = (len(queries) + len(points)) * dense_width
    if dense_width > 4 * n_columns and n_dense_cells > _MAX_DENSE_CELLS:
        return "tree"

    step = -(-len(queries) // _N_PROBES)
    probes = queries.take(np.s_[::step])
    _, _, n_visited = tree.search(probes, k)
    tree_ns = n_visited.sum() / len(probes) * (_NODE_NS + _NODE_COLUMN_NS * n_columns)
    product_ns = len(points) * (_PAIR_NS + _PAIR_COLUMN_NS * dense_width)
    if device != "cpu":
        product_ns = product_ns / _ACCELERATION
    if tree_ns <= product_ns:
        return "tree"
    return "product"


def _by_product(
    tree: MixedTree,
    queries: EncodedTable,
    points: EncodedTable,
    k: int,
    equal_points: np.ndarray,
    device: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Find candidates by a matrix product, and search the tree where float32 rounding leaves
    doubt.
    """
    positions, in_doubt = candidates(queries.dense, points.dense, k, equal_points, device)
    squared = squared_distances(queries, points, positions)
    squared, positions = ordered(squared, positions, k)
    doubtful = in_doubt(squared[:, -1])
    squared[doubtful], positions[doubtful], _ = tree.search(queries.take(doubtful), k)
    return squared, positions


MOST_NEIGHBORS = 8
TIE = 1e-4  # relative tolerance of the radius: float32 cells are not more precise than this


def near(
    queries: EncodedTable, points: EncodedTable, radius: float, weights: np.ndarray | None = None
) -> np.ndarray:
    """Apply :func:`weight_within` with the radius ``radius * (1 + TIE)``.

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
    return weight_within(queries, points, radius * (1 + TIE), weights)


def distance_to_other_subjects(
    pool: EncodedTable, codes: np.ndarray, device: str, rows: np.ndarray | None = None
) -> np.ndarray:
    """Return the distance of each row, or of those at ``rows``, to the nearest row of another
    subject.

    Rows of the same subject are ignored, so near-duplicates do not reduce a subject's isolation. At
    most the 8 nearest rows are considered; if all of them belong to the same subject, their largest
    distance is returned.

    Args:
        pool: Encoded rows, n of them.
        codes: Subject of each row, int64 (n,).
        device: Torch device of the search.
        rows: Positions of the rows whose distances are returned, int64 (m,). None: all.

    Returns:
        Distances, float64 of shape (m,).
    """
    k = min(int(np.bincount(codes).max()), MOST_NEIGHBORS, len(pool) - 1)
    if rows is None:
        neighbors = nearest_rows(pool, pool, k, exclude_self=True, device=device)
        subjects = codes
    else:
        # One more, because each row is its own neighbor.
        neighbors = _without_self(nearest_rows(pool.take(rows), pool, k + 1, device=device), rows)
        subjects = codes[rows]
    is_foreign = codes[neighbors.indices] != subjects[:, None]
    nearest_foreign = np.where(is_foreign.any(axis=1), is_foreign.argmax(axis=1), k - 1)
    return neighbors.distances[np.arange(len(subjects)), nearest_foreign]


def _without_self(neighbors: Neighbors, rows: np.ndarray) -> Neighbors:
    """Remove each row from its own neighbors.

    A row that is not among them has only equal neighbors. The last of them is removed instead.

    Args:
        neighbors: Neighbors of the rows, k + 1 each.
        rows: Positions of the rows in the searched points, int64 (m,).

    Returns:
        The other k neighbors of each row.
    """
    is_self = neighbors.indices == rows[:, None]
    has_self = is_self.any(axis=1)
    is_self[~has_self, -1] = True
    shape = (len(rows), is_self.shape[1] - 1)
    distances = neighbors.distances[~is_self].reshape(shape)
    indices = neighbors.indices[~is_self].reshape(shape)
    return Neighbors(distances, indices)


def typical_radius(
    rows: EncodedTable, subjects: np.ndarray | None, quantile: float, device: str
) -> float:
    """Return the smallest distance within which at least ``quantile`` of the rows have another row.

    Args:
        rows: Encoded rows, two or more.
        subjects: Codes 0..s-1 of the subjects of the rows, int64 (n,). Only rows of other subjects
            count, because rows of one subject are similar. None: each row is a subject.
        quantile: Share of rows, in [0, 1].
        device: Torch device of the search.
    """
    if subjects is None:
        subjects = np.arange(len(rows))
    distances = distance_to_other_subjects(rows, subjects, device)
    return float(np.quantile(distances, quantile, method="inverted_cdf"))


_N_COMPARED = 1 << 18  # rows compared at a time


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Nearest neighbors of a set of queries.

    Attributes:
        distances: Euclidean distances, ascending, float64 of shape (n_q, k); inf where fewer than k
            points exist.
        indices: Positions in the searched points, int64 of shape (n_q, k); -1 where fewer than k
            points exist.
    """

    distances: np.ndarray
    indices: np.ndarray


def distinct_rows(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the distinct rows of a matrix.

    Rows are equal if their bytes are; -0.0 equals 0.0. Distinct rows are sorted by their bytes,
    which is not a numeric order.

    Args:
        matrix: Numbers, shape (n, d).

    Returns:
        The distinct rows, shape (u, d), and the position of each row among them, int64 (n,).
    """
    first, positions = _by_bytes(np.ascontiguousarray(matrix + 0.0))
    return matrix[first] + 0.0, positions


def distinct_encoded(table: EncodedTable) -> tuple[EncodedTable, np.ndarray]:
    """Apply :func:`distinct_rows` to an encoded table.

    Args:
        table: Encoded rows, n of them.

    Returns:
        The distinct rows, sorted as in their dense form, and the position of each row among them,
        int64 (n,).
    """
    width = table.numeric.shape[1]
    cells = mapped_empty((len(table), width + table.codes.shape[1]), np.float32)
    np.add(table.numeric, np.float32(0), out=cells[:, :width])
    codes = cells.view(">u4")
    for column, size in enumerate(table.sizes):
        codes[:, width + column] = size - 1 - table.codes[:, column]
    first, positions = _by_bytes(cells)
    return table.take(first), positions


def _by_bytes(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first position of each distinct row, sorted by bytes, and each row's place among
    these.

    Args:
        matrix: Contiguous array of shape (n, d).

    Returns:
        Positions int64 of the distinct rows, and int64 (n,).
    """
    if matrix.size == 0:
        return np.arange(min(1, len(matrix))), np.zeros(len(matrix), dtype=np.int64)
    rows = matrix.view(np.dtype((np.void, matrix.strides[0]))).ravel()
    order = np.argsort(rows, kind="stable")
    is_first = np.ones(len(rows), dtype=bool)
    for start in range(1, len(rows), _N_COMPARED):
        end = start + _N_COMPARED
        sorted_rows = rows[order[start - 1 : end]]
        is_first[start:end] = sorted_rows[1:] != sorted_rows[:-1]
    positions = np.empty(len(rows), dtype=np.int64)
    positions[order] = np.cumsum(is_first) - 1
    return order[is_first], positions


def nearest(
    queries: np.ndarray,
    points: np.ndarray,
    k: int = 1,
    *,
    exclude_self: bool = False,
    device: str = "cpu",
) -> Neighbors:
    """Apply :func:`nearest_rows` to matrices, such as embeddings.

    Args:
        queries: Rows to find neighbors of, shape (n_q, d). They are rounded to float32.
        points: Rows to search, shape (n_p, d). They are rounded to float32.
        k: Number of neighbors per query.
        exclude_self: As in :func:`nearest_rows`.
        device: Torch device of the matrix product.

    Returns:
        Distances and positions of shape (n_q, k).

    Raises:
        InputError: If an array is not a matrix, the widths differ, a number is NaN or infinite as
            float32, or ``exclude_self`` is True and the numbers of rows differ.
    """
    if queries.ndim != 2 or points.ndim != 2:
        raise _widths_differ(queries.shape, points.shape)
    return nearest_rows(
        EncodedTable.of_numbers(queries),
        EncodedTable.of_numbers(points),
        k,
        exclude_self=exclude_self,
        device=device,
    )


def nearest_rows(
    queries: EncodedTable,
    points: EncodedTable,
    k: int = 1,
    *,
    exclude_self: bool = False,
    device: str = "cpu",
    path: Path | None = None,
) -> Neighbors:
    """Find the exact ``k`` nearest rows of an encoded table to each query, by Euclidean distance.

    The squared distance is the number of mismatching codes plus the squared differences of the
    numbers, summed in float64 in column order. A row equal to the query has distance exactly 0.
    Rows with equal sums are ordered by content, and equal rows by position. Memory is linear in the
    cells of both tables.

    Args:
        queries: Rows to find neighbors of.
        points: Rows to search, encoded by the same encoder.
        k: Number of neighbors per query.
        exclude_self: Exclude the row at the query's own position; ``queries`` and ``points`` must
            be the same table. A duplicate of the row remains a neighbor at distance 0.
        device: Torch device of the matrix product.
        path: "tree" or "product". None: the faster of the two; the dense form is built only if it
            is small. The result is the same, for any number of threads.

    Returns:
        Distances and positions of shape (n_q, k).

    Raises:
        InputError: If the tables differ in columns or encoder, or contain NaN or infinite numbers.
    """
    _check_comparable(queries, points, exclude_self)
    if len(queries) == 0 or len(points) == 0 or k < 1:
        return _no_neighbors(len(queries), k)

    # The search compares distinct rows only. A row of either table is stated by its code.
    if exclude_self:
        distinct, codes = distinct_encoded(points)
        point_codes = codes
        query_codes = codes
    else:
        distinct, codes = distinct_encoded(EncodedTable.stack([points, queries]))
        point_codes = codes[: len(points)]
        query_codes = codes[len(points) :]
    n_points = np.bincount(point_codes, minlength=len(distinct))
    n_queries = np.bincount(query_codes, minlength=len(distinct))
    with_points = np.flatnonzero(n_points)
    with_queries = np.flatnonzero(n_queries)
    group_of_code = np.full(len(distinct), -1)
    group_of_code[with_points] = np.arange(len(with_points))

    n_groups = min(k + int(exclude_self), len(with_points))
    distances, groups = search_rows(
        distinct.take(with_queries),
        distinct.take(with_points),
        n_groups,
        group_of_code[with_queries],
        device,
        path,
    )
    search_rank = np.cumsum(n_queries > 0) - 1
    result_rows = search_rank[query_codes]
    neighbors = _no_neighbors(len(query_codes), k)
    _expand(
        neighbors,
        distances[result_rows],
        groups[result_rows],
        n_points[with_points],
        group_of_code[point_codes],
        exclude_self,
    )
    return neighbors


def weight_within(
    queries: EncodedTable, points: EncodedTable, radius: float, weights: np.ndarray | None = None
) -> np.ndarray:
    """Sum the weights of the rows of ``points`` within ``radius`` of each query.

    Counts rows whose squared distance (as in :func:`nearest_rows`) is at most ``radius`` squared,
    and equal rows at any radius. A query that is among the points counts itself. The result is
    exact and independent of row order. Memory is linear in the cells of both tables, regardless of
    the number of rows within the radius.

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
    _check_comparable(queries, points)
    if len(queries) == 0 or len(points) == 0:
        return np.zeros(len(queries))
    distinct_points, point_codes = distinct_encoded(points)
    distinct_queries, query_codes = distinct_encoded(queries)
    total_weights = np.bincount(point_codes, weights, len(distinct_points))
    tree = MixedTree.build(distinct_points)
    return tree.weigh(distinct_queries, radius, total_weights)[query_codes]


def _no_neighbors(n_queries: int, k: int) -> Neighbors:
    shape = (n_queries, max(k, 0))
    return Neighbors(np.full(shape, np.inf), np.full(shape, -1, dtype=np.int64))


def _widths_differ(queries: tuple[int, ...], points: tuple[int, ...]) -> InputError:
    return InputError(
        f"queries and points must have equal width, got shapes {queries} and {points}"
    )


def _check_comparable(
    queries: EncodedTable, points: EncodedTable, exclude_self: bool = False
) -> None:
    if queries.numeric.shape[1] != points.numeric.shape[1]:
        raise _widths_differ(queries.numeric.shape, points.numeric.shape)
    if exclude_self and len(queries) != len(points):
        raise InputError(
            "exclude_self needs the same table twice", fix="pass one table as queries and as points"
        )
    for table, name in ((queries, "queries"), (points, "points")):
        is_finite = np.isfinite(table.numeric).all(axis=1)
        if not is_finite.all():
            row = int(is_finite.argmin())
            text = "a coordinate is missing or infinite"
            raise InputError(text, where=name, row=row, fix="encode the table")
    if not np.array_equal(queries.sizes, points.sizes):
        text = "queries and points have different encodings"
        raise InputError(text, fix="encode both tables with the same encoder")


def _expand(
    neighbors: Neighbors,
    distances: np.ndarray,
    groups: np.ndarray,
    counts: np.ndarray,
    group_of_point: np.ndarray,
    exclude_self: bool,
) -> None:
    """Expand neighboring groups of equal rows into points: a group of c points fills c slots.

    Args:
        neighbors: Result, which is filled.
        distances: Distance of each query to its nearest groups, float64 (n_q, g).
        groups: Nearest groups of each query, int64 (n_q, g).
        counts: Number of points of each group, int64.
        group_of_point: Group of each point, int64 (n_p,).
        exclude_self: If True, queries are the points, and none is its own neighbor.
    """
    # Points by group, and where each group starts among them.
    points = np.argsort(group_of_point, kind="stable")
    starts = np.cumsum(counts) - counts
    rank_in_group = np.empty(len(points), dtype=np.int64)
    rank_in_group[points] = np.arange(len(points)) - np.repeat(starts, counts)

    n_slots = counts[groups]
    if exclude_self:  # the query's own group has distance 0 and therefore comes first
        n_slots[:, 0] -= 1
    ends = np.cumsum(n_slots, axis=1)
    n_filled = ends[:, -1]
    for slot in range(min(neighbors.indices.shape[1], int(n_filled.max(initial=0)))):
        rows = np.flatnonzero(n_filled > slot)
        column = (ends[rows] <= slot).sum(axis=1)
        group = groups[rows, column]
        offset = slot - (ends[rows, column] - n_slots[rows, column])
        if exclude_self:  # skip the query itself
            offset += (column == 0) & (offset >= rank_in_group[rows])
        neighbors.distances[rows, slot] = distances[rows, column]
        neighbors.indices[rows, slot] = points[starts[group] + offset]
