"""Spherelet distance (Kuppa et al., eq. 3 and 4): Euclidean, plus how differently the data bend around two rows.

A row's spherelet is the sphere of dimension d through its k nearest training rows, by spherical PCA (Li, Mukhopadhyay
and Dunson, "Efficient manifold approximation with spherelets"): principal subspace of d + 1 dimensions, centre by least
squares of |y - c|^2 in it, radius r the mean distance to c. Its error of a set X is eq. 4 as printed, the mean of
(|x - c| - r)^2 over X, |x - c| in all dimensions. Then, for neighbourhoods A and B,

    d_R^2 = (max(0, e_B(A) - e_A(A)) + max(0, e_A(B) - e_B(B))) / 2,    d_S = d_E + d_R:

what the other's sphere misses beyond what the own one does, as a length. The paper leaves the form of d_R open.

Centres are kept as weights on the k rows, so that all distances come from those of training rows: no dense form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privacy_assets.compute.parallel import in_parallel
from privacy_assets.neighbours.mixed_tree import MixedTree, cells
from privacy_assets.neighbours.nearest import distinct_encoded, nearest_rows
from privacy_assets.tables.encoding import EncodedTable

_BLOCK = 4096  # spheres fitted at once
_PAIRS = 1_000_000  # pairs of rows looked at together, or those of one row where these are more
_FLAT = 1e-9  # principal variances below this share of the largest are none


@dataclass(frozen=True, eq=False)
class Spherelets:
    """Spheres of the distinct rows of a table.

    ``unique`` are the distinct rows, ``place`` int64 (n,) that of each row among them; ``rows`` int64 (u, k) their
    nearest training rows, ``weights`` float64 (u, k), of sum 1, the centres, and ``spheres`` float64 (u, 3) the offset
    in |x - c|^2 = sum of weights x squared distances - offset, the radius, and the error of the own neighbours.
    """

    unique: EncodedTable
    place: np.ndarray
    rows: np.ndarray
    weights: np.ndarray
    spheres: np.ndarray

    @classmethod
    def fit(cls, table: EncodedTable, train: EncodedTable, k: int, dimension: int, device: str = "cpu") -> Spherelets:
        """The spherelets of ``table`` through the min(k, n_T) nearest rows of ``train``, the row itself included."""
        from privacy_assets.neighbours import _spherelet_kernels as kernels

        unique, place = distinct_encoded(table)
        rows = nearest_rows(unique, train, min(k, len(train)), device=device).indices
        content = distinct_encoded(train)[1][rows]  # the same rows in the same order: equal variances have no other
        rows = np.take_along_axis(rows, np.argsort(content, axis=1, kind="stable"), axis=1)
        weights, spheres = np.empty(rows.shape), np.empty((len(rows), 3))
        numbers, codes = cells(train)
        for start in range(0, len(rows), _BLOCK):
            part = slice(start, start + _BLOCK)
            weights[part], spheres[part] = spheres_of(kernels.among(numbers, codes, rows[part]), dimension)
        return cls(unique, place, rows, weights, spheres)


def spheres_of(squared: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights (n, k) and ``spheres`` (n, 3) of sets of k points with ``squared`` distances (n, k, k) among them.

    With fewer than ``dimension`` + 1 principal directions the sphere has as many as there are; equal points have one of
    radius 0.
    """
    k = squared.shape[1]
    means = squared.mean(axis=2)
    gram = (means[:, :, None] + means[:, None, :] - squared - means.mean(axis=1)[:, None, None]) / 2
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[:, : -(dimension + 2) : -1], vectors[:, :, : -(dimension + 2) : -1]
    spread = values > _FLAT * np.maximum(values[:, :1], 1e-300)
    root = np.sqrt(np.where(spread, values, 1.0))
    projected = np.where(spread[:, None, :], vectors * root[:, None, :], 0.0)
    norms = (projected**2).sum(axis=2)
    centre = np.einsum("nkd,nk->nd", projected, norms - norms.mean(axis=1, keepdims=True)) / (2 * root**2)
    weights = 1 / k + np.einsum("nkd,nd->nk", np.where(spread[:, None, :], vectors, 0.0), centre / root)
    offset = np.einsum("ni,nij,nj->n", weights, squared, weights) / 2
    away = np.sqrt(np.maximum(np.einsum("nij,nj->ni", squared, weights) - offset[:, None], 0.0))
    radius = away.mean(axis=1)
    error = ((away - radius[:, None]) ** 2).mean(axis=1)
    return weights, np.column_stack([offset, radius, error])


def divergences(one: Spherelets, other: Spherelets, train: EncodedTable, pairs: np.ndarray) -> np.ndarray:
    """d_R float64 (m,) of ``pairs`` int64 (m, 2) of distinct rows of the two."""
    from privacy_assets.neighbours import _spherelet_kernels as kernels

    parts = [pairs[start : start + _BLOCK] for start in range(0, len(pairs), _BLOCK)]
    fixed = (*cells(train), (one.rows, other.rows), (one.weights, other.weights), (one.spheres, other.spheres))
    return np.concatenate([np.zeros(0), *in_parallel(lambda part: kernels.divergence(*fixed, part), parts)])


def spherelet_near(one: Spherelets, other: Spherelets, train: EncodedTable, radius: float) -> np.ndarray:
    """Rows (n,) of the second table within ``radius`` of each of the first by d_S; a row that stands in both counts.

    Every pair within ``radius`` by d_E is looked at, in blocks: some microseconds each, in memory that is linear in the
    rows.
    """
    tree, times = MixedTree.build(other.unique), np.bincount(other.place, minlength=len(other.unique))
    found = np.zeros(len(one.unique))
    for queries, points, distances in tree.pairs(one.unique, radius, _PAIRS):
        pairs = np.column_stack([queries, points])
        near = distances + divergences(one, other, train, pairs) <= radius
        found += np.bincount(queries[near], times[points[near]], len(found))
    return found[one.place]


def spherelet_radius(own: Spherelets, train: EncodedTable, subjects: np.ndarray | None, quantile: float) -> float:
    """The quantile of the distances d_S of training rows to the nearest other one, of those nearest by d_E.

    As many rows are looked at as a spherelet has. With ``subjects`` (n,) rows of the same person are left out, where
    there are others.
    """
    found = nearest_rows(train, train, own.rows.shape[1], exclude_self=True)
    queries = np.repeat(np.arange(len(train)), found.indices.shape[1])
    points, away = found.indices.ravel(), found.distances.ravel()
    there = points >= 0
    pairs = np.column_stack([own.place[queries[there]], own.place[points[there]]])
    away[there] += divergences(own, own, train, pairs)
    if subjects is not None:
        away[there & (subjects[queries] == subjects[points])] = np.inf
    nearest = away.reshape(len(train), -1).min(axis=1)
    nearest[np.isinf(nearest)] = found.distances[np.isinf(nearest), -1]
    return float(np.quantile(nearest, quantile, method="inverted_cdf"))
