"""Candidates for the nearest rows by float32 inner products, and a proof that no other row is
nearer.

Faiss (CPU) or torch (other devices) finds more candidates than requested, and the caller computes
their distances by direct difference in float64. Another row can be nearer only if the rounding
error of its inner product exceeds the gap between the last candidate and the k-th neighbor. Queries
for which this is possible are returned, and searched again without a product.

The row p nearest to q has the largest qp - |p|^2 / 2. With an additional coordinate, 1 for q and
-|p|^2 / 2 for p, this is a single inner product. The proof therefore assumes only that the library
multiplies and adds in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from privacy_assets.infra.parallel import in_parallel

EXTRA = 8  # candidates in addition to k
_BLOCK = 1024  # query rows per multiplication: products with 1024 points fit the cache
# query cells below which faiss 1.15 multiplies row by row, which takes five times longer
_CELLS = 128_000
_WIDE = 8 * _BLOCK  # points per multiplication on an accelerator
_WORTH = 16  # minimum number of blocks for sending work and all points to a cluster
_CLIP = 1e15  # squares stay finite in float32; clipping only reduces distances, so the proof holds
_TINY = 1e-37  # smaller products may underflow in float32
_UNIT = 2.0**-24  # largest relative error of one rounding to float32


def candidates(
    queries: np.ndarray, points: np.ndarray, k: int, equal_points: np.ndarray, device: str
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Find the k + EXTRA approximately nearest ``points`` of each query.

    Args:
        queries: float32 of shape (n_q, d).
        points: Distinct rows, more than k + EXTRA, float32 of shape (n_p, d).
        k: Number of neighbors.
        equal_points: The point equal to each query, or -1, shape (n_q,). It is always included.
        device: "cpu" (faiss) or a torch device.

    Returns:
        Rows int64 (n_q, k + EXTRA), and a function that maps the squared distances (n_q,) of the
        k-th neighbors among these to the positions of the queries for which another row may be as
        near.
    """
    center = _center(points)
    q = _widened(queries, center)
    p = _widened(points, center)
    norms = _squares(q)
    halves = -_squares(p) / 2
    q[:, -1] = 1
    p[:, -1] = halves
    if device == "cpu":
        least, rows = _faiss(q, p, k + EXTRA)
    else:
        least, rows = _torch(q, p, k + EXTRA, device)
    last = norms - 2 * least.astype(np.float64)
    has_equal_point = (rows == equal_points[:, None]).any(axis=1)
    lacks_copy = (equal_points >= 0) & ~has_equal_point
    rows[lacks_copy, -1] = equal_points[lacks_copy]  # included regardless of its product

    def in_doubt(squared: np.ndarray) -> np.ndarray:
        return np.flatnonzero(~_farther(last, norms, squared, queries.shape[1]))

    return rows, in_doubt


def _center(points: np.ndarray) -> np.ndarray:
    """Return a central row, which keeps norms and thus rounding errors small."""
    return np.median(points[:: max(1, len(points) // 10_000)], axis=0).astype(np.float32)


def _widened(rows: np.ndarray, center: np.ndarray) -> np.ndarray:
    """Subtract the center, clip at ``_CLIP``, and append a column of 0."""
    shape = (len(rows), rows.shape[1] + 1)
    out = np.zeros(shape, dtype=np.float32)
    with np.errstate(over="ignore"):  # infinite values are clipped too
        np.subtract(rows, center, out=out[:, :-1])
    return np.clip(out, -_CLIP, _CLIP, out=out)


def _squares(rows: np.ndarray) -> np.ndarray:
    """Return squared norms, float64 (n,)."""
    return np.einsum("ij,ij->i", rows, rows, dtype=np.float64)


def _faiss(queries: np.ndarray, points: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the ``count`` points with the largest inner product.

    Returns the smallest of these products, float32 (n_q,), and the rows int64 (n_q, count),
    unordered.

    Blocks of queries run in our own threads, each with one faiss thread; their number does not
    affect results.
    """
    blocks = len(queries) // max(_BLOCK, -(-_CELLS // queries.shape[1]))
    parts = np.array_split(queries, max(1, blocks))
    return _joined(in_parallel(lambda part: _largest(part, points, count), parts, _WORTH))


def _joined(blocks: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the products and the rows of blocks of queries."""
    least = np.concatenate([block[0] for block in blocks])
    rows = np.concatenate([block[1] for block in blocks])
    return least, rows


def _largest(queries: np.ndarray, points: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    import faiss

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # OpenMP stores this per calling thread
    try:
        products, rows = faiss.knn(queries, points, count, metric=faiss.METRIC_INNER_PRODUCT)
    finally:
        faiss.omp_set_num_threads(threads)
    return products.min(axis=1), rows


def _torch(
    queries: np.ndarray, points: np.ndarray, count: int, device: str
) -> tuple[np.ndarray, np.ndarray]:
    """Do the same as :func:`_faiss` on any torch device."""
    import torch

    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # the error bound assumes float32, not TF32
    try:
        rows = torch.from_numpy(points).to(device)
        blocks = []
        for start in range(0, len(queries), 4 * _BLOCK):
            block = torch.from_numpy(queries[start : start + 4 * _BLOCK]).to(device)
            values = rows.new_empty((len(block), 0))
            positions = rows.new_empty((len(block), 0), dtype=torch.int64)
            for first in range(0, len(rows), _WIDE):
                products = block @ rows[first : first + _WIDE].T
                further_values, indices = products.topk(min(count, products.shape[1]), dim=1)
                values = torch.cat([values, further_values], dim=1)
                positions = torch.cat([positions, indices + first], dim=1)
                values, best = values.topk(min(count, values.shape[1]), dim=1)
                positions = positions.gather(1, best)
            least = values.amin(dim=1).cpu().numpy()
            blocks.append((least, positions.cpu().numpy()))
    finally:
        torch.set_float32_matmul_precision(precision)
    return _joined(blocks)


def ordered(squared: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k nearest candidates of each query.

    Args:
        squared: Squared distances, float64 (n_q, c).
        rows: Candidates, int64 (n_q, c).
        k: Number of neighbors, at most c.

    Returns:
        Squared distances (n_q, k), ascending, and the candidates, ties ordered by position.
    """
    order = np.argsort(rows, axis=1)
    squared = np.take_along_axis(squared, order, 1)
    rows = np.take_along_axis(rows, order, 1)
    order = np.argsort(squared, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(squared, order, 1), np.take_along_axis(rows, order, 1)


def _farther(last: np.ndarray, norms: np.ndarray, nearest: np.ndarray, width: int) -> np.ndarray:
    """Return whether all non-candidates are farther than ``nearest`` (n_q,), the squared distance
    of the k-th neighbor.

    ``last`` is |q|^2 - 2s, where s is the product of the last candidate, which no other row
    exceeds; ``norms`` is
    |q|^2.

    **The bound.** Let u = 2^-24, g(n) = nu / (1 - nu), and let p be a row with squared distance D
    <= ``nearest``. A float32 sum of n products, in any order, fused or not, has an error of at most
    g(n) times the sum of absolute values (Higham 2002, section 3.1), here g(d + 1) (|q||p| +
    |p|^2/2). The coordinate -|p|^2/2, rounded once, adds u |p|^2/2. Twice this, for 2s, is at most
    g(d + 2) (2 |q||p| + |p|^2) <= g(d + 2) (|q| + |p|)^2. Rounding of centered coordinates changes
    |q - p| by up to u (|q| + |p|), and D by up to g(3) (|q| + |p|)^2. In the dense form a mismatch
    costs 2 fl(1/sqrt 2)^2 instead of 1, which changes D by up to g(2) D. As |p| <= |q| + sqrt(D),
    up to a factor 1 + 4u, the total is at most g(d + 10) (2 |q| + sqrt(D))^2. The norm of p does
    not occur, so outliers do not widen the bound. In addition, each of at most 2 (d + 2)
    operations, doubled, may lose a number below 2^-126 < ``_TINY``.

    So if ``last`` minus the bound at D = ``nearest`` exceeds ``nearest``, no such p exists.
    ``nearest`` itself was rounded in float64, with a relative error below 1e-9 for up to four
    million columns. In case of overflow the result is False.
    """
    reach = nearest * (1 + 1e-9)
    terms = width + 10
    relative = terms * _UNIT / (1 - terms * _UNIT)
    bound = relative * (2 * np.sqrt(norms) + np.sqrt(reach)) ** 2 + 4 * terms * _TINY
    return last - bound > reach
