"""Candidates for the nearest rows by float32 inner products, and a proof of what they leave out.

Faiss on the CPU, torch elsewhere, finds a few more candidates than wanted; the caller computes their distances by
direct difference in float64. A row that is no candidate can be nearer only where the rounding error of its inner
product exceeds the gap between the last candidate and the wanted neighbours: those queries are named, and searched
again without a product.

Of all rows p, the nearest to q has the largest qp - |p|^2 / 2. With 1 as another coordinate of q, and -|p|^2 / 2 as one
of p, this is a single inner product, so the proof needs to know nothing of the library but that it multiplies and adds
in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from privacy_assets.compute.parallel import in_parallel

EXTRA = 8  # candidates beyond those wanted
_BLOCK = 1024  # rows of queries multiplied at once: their products with as many points stay in the cache
_CELLS = 128_000  # of queries, below which faiss 1.15 multiplies no matrices but row by row, in five times the time
_WIDE = 8 * _BLOCK  # points multiplied at once on another device
_WORTH = 16  # blocks that are worth sending away, with all points
_CLIP = 1e15  # squares stay finite in float32; clipping shortens distances only, so the proof holds
_TINY = 1e-37  # products that are smaller may vanish in float32
_UNIT = 2.0**-24  # largest relative error of one rounding to float32


def candidates(
    queries: np.ndarray, points: np.ndarray, k: int, own: np.ndarray, device: str
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Rows int64 (n_q, k + EXTRA) of ``points`` nearest to each query but for rounding, ``own`` among them.

    ``queries`` and ``points`` (n, d) float32, the latter distinct and more than k + EXTRA; ``own`` (n_q,) is the point
    equal to each query, or -1. Second: a function from the squared distances (n_q,) of the k-th neighbours among these
    to the positions of the queries to which another row may be as near.
    """
    centre = _centre(points)
    q, p = _widened(queries, centre), _widened(points, centre)
    norms, halves = _squares(q), -_squares(p) / 2
    q[:, -1], p[:, -1] = 1, halves
    least, found = _faiss(q, p, k + EXTRA) if device == "cpu" else _torch(q, p, k + EXTRA, device)
    last = norms - 2 * least.astype(np.float64)
    absent = (own >= 0) & ~(found == own[:, None]).any(axis=1)
    found[absent, -1] = own[absent]  # a copy is found by content, whatever the product says
    return found, lambda known: np.flatnonzero(~_farther(last, norms, known, queries.shape[1]))


def _centre(points: np.ndarray) -> np.ndarray:
    """A row amid the points: small norms, small rounding errors."""
    return np.median(points[:: max(1, len(points) // 10_000)], axis=0).astype(np.float32)


def _widened(rows: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """The rows less the centre and cut off at ``_CLIP``, with a last column of 0."""
    out = np.zeros((len(rows), rows.shape[1] + 1), dtype=np.float32)
    with np.errstate(over="ignore"):  # infinite ones are cut off as well
        np.subtract(rows, centre, out=out[:, :-1])
    return np.clip(out, -_CLIP, _CLIP, out=out)


def _squares(rows: np.ndarray) -> np.ndarray:
    """Squared norms float64 (n,)."""
    return np.einsum("ij,ij->i", rows, rows, dtype=np.float64)


def _faiss(queries: np.ndarray, points: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The least inner product float32 (n_q,) and the rows int64 (n_q, count) of the ``count`` largest, in any order.

    Blocks of queries run in threads of ours, one of faiss's own each; their number changes nothing.
    """
    blocks = len(queries) // max(_BLOCK, -(-_CELLS // queries.shape[1]))
    parts = np.array_split(queries, max(1, blocks))
    found = in_parallel(lambda part: _largest(part, points, count), parts, _WORTH)
    return np.concatenate([least for least, _ in found]), np.concatenate([rows for _, rows in found])


def _largest(queries: np.ndarray, points: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    import faiss

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # OpenMP keeps it for the calling thread alone
    try:
        products, rows = faiss.knn(queries, points, count, metric=faiss.METRIC_INNER_PRODUCT)
    finally:
        faiss.omp_set_num_threads(threads)
    return products.min(axis=1), rows


def _torch(queries: np.ndarray, points: np.ndarray, count: int, device: str) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`_faiss`, on any device of torch."""
    import torch

    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # the error bound is that of float32, not of TF32
    try:
        rows, parts = torch.from_numpy(points).to(device), []
        for start in range(0, len(queries), 4 * _BLOCK):
            query = torch.from_numpy(queries[start : start + 4 * _BLOCK]).to(device)
            values, places = rows.new_empty((len(query), 0)), rows.new_empty((len(query), 0), dtype=torch.int64)
            for first in range(0, len(rows), _WIDE):
                product = query @ rows[first : first + _WIDE].T
                value, place = product.topk(min(count, product.shape[1]), dim=1)
                value, place = torch.cat([values, value], dim=1), torch.cat([places, place + first], dim=1)
                values, best = value.topk(min(count, value.shape[1]), dim=1)
                places = place.gather(1, best)
            parts.append((values.amin(dim=1).cpu().numpy(), places.cpu().numpy()))
    finally:
        torch.set_float32_matmul_precision(precision)
    return np.concatenate([least for least, _ in parts]), np.concatenate([rows for _, rows in parts])


def ordered(squared: np.ndarray, found: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest per row, ties by position."""
    order = np.argsort(found, axis=1)
    squared, found = np.take_along_axis(squared, order, 1), np.take_along_axis(found, order, 1)
    order = np.argsort(squared, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(squared, order, 1), np.take_along_axis(found, order, 1)


def _farther(last: np.ndarray, norms: np.ndarray, known: np.ndarray, width: int) -> np.ndarray:
    """Whether all rows but the candidates are farther than ``known`` (n_q,), the squared distance of the k-th of them.

    ``last`` is |q|^2 - 2s of the last candidate, whose product s no other row exceeds; ``norms`` are |q|^2.

    **The bound.** Let u = 2^-24, g(n) = nu / (1 - nu), and take a row p with a squared distance D <= ``known``. A sum
    of n products in float32, in any order, fused or not, is off by at most g(n) times the sum of their absolute values
    (Higham 2002, section 3.1), here g(d + 1) (|q||p| + |p|^2/2). The coordinate -|p|^2/2, rounded once, adds
    u |p|^2/2. Twice this for 2s: at most g(d + 2) (2 |q||p| + |p|^2) <= g(d + 2) (|q| + |p|)^2. Centred coordinates
    were rounded, which moves |q - p| by up to u (|q| + |p|), and D by up to g(3) (|q| + |p|)^2. In the dense form a
    mismatch costs 2 fl(1/sqrt 2)^2 instead of 1, which moves D by up to g(2) D. With |p| <= |q| + sqrt(D), but for a
    factor 1 + 4u, all of it is at most g(d + 10) (2 |q| + sqrt(D))^2: as p's own norm does not occur, an outlier costs
    nothing. Each of at most 2 (d + 2) operations, doubled, may lose a number below 2^-126 < ``_TINY`` besides.

    So if ``last`` minus the bound at D = ``known`` is above ``known``, there is no such p. ``known`` was itself rounded
    in float64, by a share below 1e-9 up to four million columns. Where anything overflows, the answer is no.
    """
    reach, terms = known * (1 + 1e-9), width + 10
    bound = terms * _UNIT / (1 - terms * _UNIT) * (2 * np.sqrt(norms) + np.sqrt(reach)) ** 2 + 4 * terms * _TINY
    return last - bound > reach
