"""Spherelet distance (Kuppa et al., eq. 3 and 4): Euclidean distance plus the difference in local
curvature.

The spherelet of a row is the d-dimensional sphere through its k nearest training rows, by spherical
PCA (Li, Mukhopadhyay and Dunson, "Efficient manifold approximation with spherelets"): principal
subspace of d + 1 dimensions, center c by least squares of |y - c|^2 in it, radius r the mean
distance to c. Its error for a set X is eq. 4 as printed: the mean of (|x - c| - r)^2 over X, with
|x - c| in all dimensions. For neighborhoods A and B,

    d_R^2 = (max(0, e_B(A) - e_A(A)) + max(0, e_A(B) - e_B(B))) / 2,    d_S = d_E + d_R.

d_R is the excess error of each sphere on the other neighborhood, as a length. The paper does not
define d_R.

Centers are stored as weights of the k rows, so all distances follow from those between training
rows, without a dense form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privacy_assets.distances.mixed_tree import MixedTree, cells
from privacy_assets.distances.nearest import distinct_encoded, nearest_rows
from privacy_assets.infra.parallel import in_parallel
from privacy_assets.tables.encoding import EncodedTable

_BLOCK = 4096  # spheres fitted at a time
_PAIRS = 1_000_000  # pairs of rows per block; more only if one row has more
_FLAT = 1e-9  # principal variances below this share of the largest count as 0


@dataclass(frozen=True, eq=False)
class Spherelets:
    """Spheres of the distinct rows of a table.

    Attributes:
        unique: The u distinct rows.
        place: Position of each row among them; int64 (n,).
        rows: Nearest training rows; int64 (u, k).
        weights: Centers as weights of these rows, with sum 1; float64 (u, k).
        spheres: The offset in |x - c|^2 = sum of weights x squared distances - offset, the radius,
            and the error of the own neighbors; float64 (u, 3).
    """

    unique: EncodedTable
    place: np.ndarray
    rows: np.ndarray
    weights: np.ndarray
    spheres: np.ndarray

    @classmethod
    def fit(
        cls, table: EncodedTable, train: EncodedTable, k: int, dimension: int, device: str = "cpu"
    ) -> Spherelets:
        """Fit the spherelets of ``table`` to the min(k, n_T) nearest rows of ``train``, including
        equal rows.
        """
        from privacy_assets.distances import _spherelet_kernels as kernels

        unique, place = distinct_encoded(table)
        rows = nearest_rows(unique, train, min(k, len(train)), device=device).indices
        # sort rows by content: equal variances are resolved by row order
        content = distinct_encoded(train)[1][rows]
        rows = np.take_along_axis(rows, np.argsort(content, axis=1, kind="stable"), axis=1)
        weights, spheres = np.empty(rows.shape), np.empty((len(rows), 3))
        numbers, codes = cells(train)
        for start in range(0, len(rows), _BLOCK):
            part = slice(start, start + _BLOCK)
            weights[part], spheres[part] = spheres_of(
                kernels.among(numbers, codes, rows[part]), dimension
            )
        return cls(unique, place, rows, weights, spheres)


def spheres_of(squared: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Fit a sphere to each of n sets of k points, given their ``squared`` distances (n, k, k).

    Return weights (n, k) and spheres (n, 3), whose columns are offset, radius and error, see
    :class:`Spherelets`. If the points span fewer than ``dimension`` + 1 principal directions, the
    sphere lies in the space that they span. If all points are equal, the radius is 0.
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
    centre = np.einsum("nkd,nk->nd", projected, norms - norms.mean(axis=1, keepdims=True)) / (
        2 * root**2
    )
    weights = 1 / k + np.einsum(
        "nkd,nd->nk", np.where(spread[:, None, :], vectors, 0.0), centre / root
    )
    offset = np.einsum("ni,nij,nj->n", weights, squared, weights) / 2
    away = np.sqrt(np.maximum(np.einsum("nij,nj->ni", squared, weights) - offset[:, None], 0.0))
    radius = away.mean(axis=1)
    error = ((away - radius[:, None]) ** 2).mean(axis=1)
    return weights, np.column_stack([offset, radius, error])


def divergences(
    one: Spherelets, other: Spherelets, train: EncodedTable, pairs: np.ndarray
) -> np.ndarray:
    """Return d_R, float64 (m,), for ``pairs`` int64 (m, 2) of distinct rows of ``one`` and
    ``other``.
    """
    from privacy_assets.distances import _spherelet_kernels as kernels

    parts = [pairs[start : start + _BLOCK] for start in range(0, len(pairs), _BLOCK)]
    fixed = (
        *cells(train),
        (one.rows, other.rows),
        (one.weights, other.weights),
        (one.spheres, other.spheres),
    )
    return np.concatenate(
        [np.zeros(0), *in_parallel(lambda part: kernels.divergence(*fixed, part), parts)]
    )


def spherelet_near(
    one: Spherelets, other: Spherelets, train: EncodedTable, radius: float
) -> np.ndarray:
    """Count the rows of ``other`` within ``radius`` (d_S) of each row of ``one``: (n,). Equal rows
    count.

    Every pair with d_E within ``radius`` is evaluated, in blocks; this takes microseconds per pair,
    and memory linear in the rows.
    """
    tree, times = (
        MixedTree.build(other.unique),
        np.bincount(other.place, minlength=len(other.unique)),
    )
    found = np.zeros(len(one.unique))
    for queries, points, distances in tree.pairs(one.unique, radius, _PAIRS):
        pairs = np.column_stack([queries, points])
        near = distances + divergences(one, other, train, pairs) <= radius
        found += np.bincount(queries[near], times[points[near]], len(found))
    return found[one.place]


def spherelet_radius(
    own: Spherelets, train: EncodedTable, subjects: np.ndarray | None, quantile: float
) -> float:
    """Return the quantile of d_S between each training row and the nearest other row, among its k
    nearest by d_E.

    If ``subjects`` (n,) is passed, rows of the same subject are skipped; if all k rows are, the
    largest d_E is used.
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
