"""Candidates for the nearest rows by float32 matrix product, and a proof of what they leave out.

The product finds a few more candidates than wanted; the caller computes their distances by direct difference in
float64. A row that is no candidate can be nearer only where the rounding error of the product exceeds the gap between
the last candidate and the wanted neighbours: those queries are named, and searched again without a product.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np

from privacy_assets.engine.parallel import in_parallel

EXTRA = 8  # candidates beyond those wanted
_BLOCK = 1024  # rows of queries and of points multiplied at once: the product stays in the cache
_WORTH = 16  # blocks that are worth sending away, with all points
_CLIP = 1e15  # squares stay finite in float32; clipping shortens distances only, so the proof holds
_TINY = 1e-37  # products that are smaller may vanish in float32
_ALONE = Lock()  # how many threads the BLAS takes is a setting of the process


def candidates(
    queries: np.ndarray, points: np.ndarray, k: int, own: np.ndarray, device: str
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Rows int64 (n_q, k + EXTRA) of ``points`` nearest to each query but for rounding, ``own`` among them.

    ``queries`` and ``points`` (n, d) float32, the latter distinct and more than k + EXTRA; ``own`` (n_q,) is the point
    equal to each query, or -1. Second: a function from the squared distances (n_q,) of the k-th neighbours among these
    to the positions of the queries to which another row may be as near.
    """
    centre = _centre(points)
    q, p = (np.clip(x - centre, -_CLIP, _CLIP).astype(np.float32) for x in (queries, points))
    last, found = _blas(q, p, k + EXTRA) if device == "cpu" else _torch(q, p, k + EXTRA, device)
    absent = (own >= 0) & ~(found == own[:, None]).any(axis=1)
    found[absent, -1] = own[absent]  # a copy is found by content, whatever the product says
    return found, lambda known: np.flatnonzero(~(last - _error_bound(q, known) > known))


def _centre(points: np.ndarray) -> np.ndarray:
    """A row amid the points: small norms, small rounding errors."""
    return np.median(points[:: max(1, len(points) // 10_000)], axis=0)


def _blas(queries: np.ndarray, points: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The last squared distance float64 (n_q,) and the rows int64 (n_q, count) of the ``count`` nearest, in any order.

    Blocks of queries run in threads; their number changes nothing.
    """
    from threadpoolctl import threadpool_limits

    norms, doubled = np.einsum("ij,ij->i", points, points), -2 * queries

    def run(start: int) -> tuple[np.ndarray, np.ndarray]:
        return _block(doubled[start : start + _BLOCK], points, norms, count)

    with _ALONE, threadpool_limits(1, user_api="blas"):
        found = in_parallel(run, range(0, len(queries), _BLOCK), _WORTH)
    values = np.concatenate([np.zeros((0, count), dtype=np.float32), *(value for value, _ in found)])
    places = np.concatenate([np.zeros((0, count), dtype=np.int64), *(place for _, place in found)])
    return values[:, -1].astype(np.float64) + np.einsum("ij,ij->i", queries, queries), places


def _block(doubled: np.ndarray, points: np.ndarray, norms: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Values float32 and places of the ``count`` smallest products of each row, in any order."""
    from privacy_assets.engine.geometry._product_kernels import smallest

    values = np.full((len(doubled), count), np.inf, dtype=np.float32)
    places = np.zeros((len(doubled), count), dtype=np.int64)
    product, added = np.zeros((len(doubled), _BLOCK), dtype=np.float32), np.empty(_BLOCK, dtype=np.float32)
    for first in range(0, len(points), _BLOCK):
        part = points[first : first + _BLOCK]
        np.matmul(doubled, part.T, out=product[:, : len(part)])
        added[: len(part)], added[len(part) :] = norms[first : first + _BLOCK], np.inf
        smallest(product, added, first, values, places)
    return values, places


def _torch(queries: np.ndarray, points: np.ndarray, count: int, device: str) -> tuple[np.ndarray, np.ndarray]:
    import torch

    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # the error bound is that of float32, not of TF32
    try:
        rows = torch.from_numpy(points).to(device)
        norms = (rows * rows).sum(dim=1)
        parts = []
        for start in range(0, len(queries), 4 * _BLOCK):
            query = torch.from_numpy(queries[start : start + 4 * _BLOCK]).to(device)
            value, place = _torch_block(query, rows, norms, count, 8 * _BLOCK)
            parts.append(((value + (query * query).sum(dim=1)).cpu().numpy(), place.cpu().numpy()))
    finally:
        torch.set_float32_matmul_precision(precision)
    return np.concatenate([v for v, _ in parts]).astype(np.float64), np.concatenate([p for _, p in parts])


def _torch_block(query: Any, rows: Any, norms: Any, count: int, width: int) -> tuple[Any, Any]:
    """The last value (less the query's norm) and the positions of the ``count`` best rows of a block of queries."""
    import torch

    values, places = rows.new_empty((len(query), 0)), rows.new_empty((len(query), 0), dtype=torch.int64)
    for start in range(0, len(rows), width):
        part = rows[start : start + width]
        squared = torch.addmm(norms[start : start + width][None, :], query, part.T, alpha=-2)
        value, place = squared.topk(min(count, len(part)), dim=1, largest=False)
        place += start
        value, place = torch.cat([values, value], dim=1), torch.cat([places, place], dim=1)
        values, best = value.topk(min(count, value.shape[1]), dim=1, largest=False)
        places = place.gather(1, best)
    return values.amax(dim=1), places


def ordered(squared: np.ndarray, found: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest per row, ties by position."""
    order = np.argsort(found, axis=1)
    squared, found = np.take_along_axis(squared, order, 1), np.take_along_axis(found, order, 1)
    order = np.argsort(squared, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(squared, order, 1), np.take_along_axis(found, order, 1)


def _error_bound(centred: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """Largest error (n_q,) of a squared distance computed as |q|^2 + |p|^2 - 2qp for rows within ``reach`` (squared).

    A row p within reach has |p| <= |q| + sqrt(reach), so that an outlier among the points costs nothing.
    """
    norm = np.sqrt(np.einsum("ij,ij->i", centred, centred, dtype=np.float64))
    unit = float(np.finfo(np.float32).eps) / 2
    return 2 * (centred.shape[1] + 4) * (unit * (norm**2 + (norm + np.sqrt(reach)) ** 2) + _TINY)
