"""Exact search among distinct rows: candidates by matrix product, distances by direct difference, and a proof.

A float32 matrix product finds a few more candidates than wanted; their distances are recomputed by direct difference
in float64. A row that is no candidate can be nearer only where the rounding error of the product exceeds the gap
between the last candidate and the wanted neighbours; those queries are searched again in float64, and every row
that the float64 error leaves open is recomputed by direct difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

Backend = Literal["faiss", "torch"]
BLOCK = 1024  # rows of queries and of points multiplied at once
EXTRA = 8  # candidates beyond those wanted
_CELLS = 4_000_000  # float64 cells held at once by direct differences
_CLIP = 1e15  # squares stay finite in float32; clipping shortens distances only, so the proof holds
_TIE = 1e-11  # relative difference of squared distances that counts as a tie when candidates were in doubt


def search_distinct(
    queries: np.ndarray, points: np.ndarray, k: int, own: np.ndarray, backend: Backend, device: str, block: int
) -> tuple[np.ndarray, np.ndarray]:
    """Distances float64 (n_q, k) and positions int64 (n_q, k) of the nearest ``points``, ties by position.

    Rows of ``points`` are distinct, and 1 <= k <= n_p. ``own`` (n_q,) is the point equal to each query, or -1.
    """
    n_p = len(points)
    distances, places = np.zeros((len(queries), k)), own[:, None].repeat(k, axis=1)
    todo = np.flatnonzero(own < 0) if k == 1 else np.arange(len(queries))  # a copy's one neighbour is known
    if len(todo) == 0:
        return distances, places
    asked, own = queries[todo], own[todo]
    if n_p <= k + EXTRA:
        found = np.tile(np.arange(n_p), (len(todo), 1))
        squared, found = ordered(_direct(asked, points, found), found, k)
    else:
        squared, found = _searched(asked, points, k, own, backend, device, block)
    distances[todo], places[todo] = np.sqrt(squared), found
    return distances, places


def _searched(
    queries: np.ndarray, points: np.ndarray, k: int, own: np.ndarray, backend: Backend, device: str, block: int
) -> tuple[np.ndarray, np.ndarray]:
    found, in_doubt = candidates(queries, points, k, own, backend, device, block)
    squared, found = ordered(_direct(queries, points, found), found, k)
    open_ = in_doubt(squared[:, -1])
    if len(open_):
        where = device if backend == "torch" else "cpu"
        squared[open_], found[open_] = _recheck(queries[open_], points, squared[open_], found[open_], block, where)
    return squared, found


def candidates(
    queries: np.ndarray, points: np.ndarray, k: int, own: np.ndarray, backend: Backend, device: str, block: int
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Rows (n_q, k + EXTRA) of ``points``, which has more, nearest to each query but for rounding, ``own`` among them.

    Second: a function from the squared distances (n_q,) of the k-th neighbours among these to the positions of the
    queries to which another row may be as near.
    """
    centre = _centre(points)
    q, p = (np.clip(x - centre, -_CLIP, _CLIP).astype(np.float32) for x in (queries, points))
    if backend == "faiss":
        approximate, found = _faiss(q, p, k + EXTRA)
    else:
        approximate, found = _torch(q, p, k + EXTRA, device, block)
    absent = (own >= 0) & ~(found == own[:, None]).any(axis=1)
    found[absent, -1] = own[absent]  # a copy is found by content, whatever the product says
    return found, lambda known: np.flatnonzero(~(approximate - _error_bound(q, known, np.float32) > known))


def _centre(points: np.ndarray) -> np.ndarray:
    """A row amid the points: small norms, small rounding errors."""
    return np.median(points[:: max(1, len(points) // 10_000)], axis=0)


def _faiss(queries: np.ndarray, points: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    import faiss
    import joblib

    # Never more threads than cores that this process may use, nor than OMP_NUM_THREADS.
    faiss.omp_set_num_threads(min(faiss.omp_get_max_threads(), joblib.cpu_count()))
    index = faiss.IndexFlatL2(points.shape[1])
    index.add(points)
    squared, found = index.search(queries, count)
    return squared[:, -1].astype(np.float64), found


def _torch(
    queries: np.ndarray, points: np.ndarray, count: int, device: str, block: int
) -> tuple[np.ndarray, np.ndarray]:
    import torch

    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # the error bound is that of float32, not of TF32
    try:
        rows = torch.from_numpy(points).to(device)
        norms = (rows * rows).sum(dim=1)
        parts = []
        for start in range(0, len(queries), 4 * block):
            query = torch.from_numpy(queries[start : start + 4 * block]).to(device)
            value, place = _torch_block(query, rows, norms, count, 8 * block)
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


def _direct(queries: np.ndarray, points: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Squared distances (n_q, c) of each query to the points at ``found`` (n_q, c)."""
    query = np.repeat(np.arange(len(queries)), found.shape[1])
    return _direct_pairs(queries, points, query, found.ravel()).reshape(found.shape)


def _direct_pairs(queries: np.ndarray, points: np.ndarray, query: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Squared distances (m,) of the pairs at positions ``query`` and ``point``, by direct difference in float64."""
    out = np.empty(len(query))
    step = max(1, _CELLS // max(1, queries.shape[1]))
    for start in range(0, len(query), step):
        pairs = slice(start, start + step)
        difference = points[point[pairs]].astype(np.float64)
        difference -= queries[query[pairs]]
        np.einsum("ij,ij->i", difference, difference, out=out[pairs])
    return out


def ordered(squared: np.ndarray, found: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest per row, ties by position."""
    order = np.argsort(found, axis=1)
    squared, found = np.take_along_axis(squared, order, 1), np.take_along_axis(found, order, 1)
    order = np.argsort(squared, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(squared, order, 1), np.take_along_axis(found, order, 1)


def _error_bound(centred: np.ndarray, reach: np.ndarray, dtype: type[np.floating]) -> np.ndarray:
    """Largest error (n_q,) of a squared distance computed as |q|^2 + |p|^2 - 2qp for rows within ``reach`` (squared).

    A row p within reach has |p| <= |q| + sqrt(reach), so that an outlier among the points costs nothing.
    """
    norm = np.sqrt(np.einsum("ij,ij->i", centred, centred, dtype=np.float64))
    unit = float(np.finfo(dtype).eps) / 2
    return 2 * (centred.shape[1] + 4) * unit * (norm**2 + (norm + np.sqrt(reach)) ** 2)


def _recheck(
    queries: np.ndarray,
    points: np.ndarray,
    squared: np.ndarray,
    found: np.ndarray,
    block: int,
    device: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Settle in float64 the queries whose candidates (``squared``, ``found``: (n_q, k)) float32 leaves in doubt."""
    centre = _centre(points).astype(np.float64)
    squared, found = squared.copy(), found.copy()
    for start in range(0, len(queries), block):
        rows = slice(start, start + block)
        q = queries[rows] - centre
        product = _product(q, device)
        for first in range(0, len(points), 4 * block):
            p = points[first : first + 4 * block] - centre
            query, point = _open_pairs(q, p, product(p), squared[rows])
            if len(query):
                squared[rows], found[rows] = _merged(queries[rows], points, found[rows], query, point + first)
    return squared, found


def _open_pairs(q: np.ndarray, p: np.ndarray, product: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs that may be nearer than the k-th known neighbour, and the first k of each query that may tie with it."""
    squared = np.einsum("ij,ij->i", q, q)[:, None] + np.einsum("ij,ij->i", p, p)[None, :] - 2 * product
    reach = known[:, -1]
    error = _error_bound(q, reach, np.float64)
    nearer = squared < (reach * (1 - _TIE) + error)[:, None]
    tied = squared <= (reach * (1 + _TIE) + error)[:, None]
    tied &= ~nearer
    pairs = np.concatenate([np.argwhere(nearer), _first(tied, known.shape[1])])
    return pairs[:, 0], pairs[:, 1]


def _first(mask: np.ndarray, count: int) -> np.ndarray:
    """Positions (m, 2) of the first ``count`` true cells of each row; ``mask`` is used up."""
    pairs = [np.zeros((0, 2), dtype=np.int64)]
    rows = np.flatnonzero(mask.any(axis=1))
    for _ in range(count):
        column = mask[rows].argmax(axis=1)
        hit = mask[rows, column]
        rows, column = rows[hit], column[hit]
        pairs.append(np.stack([rows, column], axis=1))
        mask[rows, column] = False
    return np.concatenate(pairs)


def _merged(
    queries: np.ndarray, points: np.ndarray, found: np.ndarray, query: np.ndarray, point: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest of the known neighbours ``found`` (n_q, k) and of the pairs (``query``, ``point``)."""
    k = found.shape[1]
    query = np.concatenate([np.repeat(np.arange(len(found)), k), query])
    point = np.concatenate([found.ravel(), point])
    query, point = np.divmod(np.unique(query * len(points) + point), len(points))
    squared = _direct_pairs(queries, points, query, point)
    order = np.lexsort((point, squared, query))
    query, point, squared = query[order], point[order], squared[order]
    keep = np.arange(len(query)) - np.searchsorted(query, query) < k
    return squared[keep].reshape(-1, k), point[keep].reshape(-1, k)


def _product(q: np.ndarray, device: str) -> Callable[[np.ndarray], np.ndarray]:
    """A function from points float64 (m, d) to their inner products (n_q, m) with ``q``."""
    if not device.startswith("cuda"):
        return lambda p: q @ p.T
    import torch

    held = torch.from_numpy(q).to(device)
    return lambda p: (held @ torch.from_numpy(p).to(device).T).cpu().numpy()
