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
        codes: Position of each row among them; int64 (n,).
        rows: Nearest training rows; int64 (u, k).
        weights: Centers as weights of these rows, with sum 1; float64 (u, k).
        spheres: The offset in |x - c|^2 = sum of weights x squared distances - offset, the radius,
            and the error of the own neighbors; float64 (u, 3).
    """

    unique: EncodedTable
    codes: np.ndarray
    rows: np.ndarray
    weights: np.ndarray
    spheres: np.ndarray

    @classmethod
    def fit(
        cls, table: EncodedTable, train: EncodedTable, k: int, dimension: int, device: str = "cpu"
    ) -> Spherelets:
        """Fit the spherelets of a table.

        Args:
            table: Encoded rows.
            train: The n_T training rows, encoded by the same encoder.
            k: Number of nearest training rows, including equal rows, at most n_T of which are used.
            dimension: Dimension of the spheres.
            device: Torch device of the search.

        Returns:
            Spheres of the distinct rows of ``table``.
        """
        from privacy_assets.studies.spherelets import _kernels as kernels

        unique, codes_of_rows = distinct_encoded(table)
        rows = nearest_rows(unique, train, min(k, len(train)), device=device).indices
        # sort rows by content: equal variances are resolved by row order
        content = distinct_encoded(train)[1][rows]
        order = np.argsort(content, axis=1, kind="stable")
        rows = np.take_along_axis(rows, order, axis=1)
        weights = np.empty(rows.shape)
        spheres = np.empty((len(rows), 3))
        numbers, codes = cells(train)
        for start in range(0, len(rows), _BLOCK):
            part = slice(start, start + _BLOCK)
            squared = kernels.among(numbers, codes, rows[part])
            weights[part], spheres[part] = spheres_of(squared, dimension)
        return cls(unique, codes_of_rows, rows, weights, spheres)


def spheres_of(squared: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Fit a sphere to each of n sets of k points, given their distances.

    If the points span fewer than ``dimension`` + 1 principal directions, the
    sphere lies in the space that they span. If all points are equal, the radius is 0.

    Args:
        squared: Squared distances, float64 (n, k, k).
        dimension: Dimension of the spheres.

    Returns:
        Weights (n, k) and spheres (n, 3), whose columns are offset, radius and error, see
        :class:`Spherelets`.
    """
    k = squared.shape[1]
    means = squared.mean(axis=2)
    gram = (means[:, :, None] + means[:, None, :] - squared - means.mean(axis=1)[:, None, None]) / 2
    values, vectors = np.linalg.eigh(gram)
    values = values[:, : -(dimension + 2) : -1]
    vectors = vectors[:, :, : -(dimension + 2) : -1]
    is_spanned = values > _FLAT * np.maximum(values[:, :1], 1e-300)
    root = np.sqrt(np.where(is_spanned, values, 1.0))
    scaled_vectors = vectors * root[:, None, :]
    projected = np.where(is_spanned[:, None, :], scaled_vectors, 0.0)
    norms = (projected**2).sum(axis=2)
    centered_norms = norms - norms.mean(axis=1, keepdims=True)
    center = np.einsum("nkd,nk->nd", projected, centered_norms) / (2 * root**2)
    spanned_vectors = np.where(is_spanned[:, None, :], vectors, 0.0)
    weights = 1 / k + np.einsum("nkd,nd->nk", spanned_vectors, center / root)
    offset = np.einsum("ni,nij,nj->n", weights, squared, weights) / 2
    squared_away = np.einsum("nij,nj->ni", squared, weights) - offset[:, None]
    away = np.sqrt(np.maximum(squared_away, 0.0))
    radius = away.mean(axis=1)
    error = ((away - radius[:, None]) ** 2).mean(axis=1)
    return weights, np.column_stack([offset, radius, error])


def divergences(
    first: Spherelets, second: Spherelets, train: EncodedTable, pairs: np.ndarray
) -> np.ndarray:
    """Compute d_R of pairs of spherelets.

    Args:
        first: Spherelets, fitted to ``train``.
        second: Spherelets, fitted to ``train`` with equal settings.
        train: Encoded training rows.
        pairs: Distinct rows of ``first`` and of ``second``, int64 (m, 2).

    Returns:
        d_R, float64 (m,).
    """
    from privacy_assets.studies.spherelets import _kernels as kernels

    parts = [pairs[start : start + _BLOCK] for start in range(0, len(pairs), _BLOCK)]
    fixed = (
        *cells(train),
        (first.rows, second.rows),
        (first.weights, second.weights),
        (first.spheres, second.spheres),
    )
    results = in_parallel(lambda part: kernels.divergence(*fixed, part), parts)
    return np.concatenate([np.zeros(0), *results])


def spherelet_near(
    centers: Spherelets, counted: Spherelets, train: EncodedTable, radius: float
) -> np.ndarray:
    """Count the rows within a radius, including equal rows.

    Every pair with d_E within ``radius`` is evaluated, in blocks; this takes microseconds per pair,
    and memory linear in the rows.

    Args:
        centers: Spherelets of n rows, fitted to ``train``.
        counted: Spherelets of the rows to count, fitted to ``train`` with equal settings.
        train: Encoded training rows.
        radius: Radius, in terms of d_S.

    Returns:
        Number of rows around each center, float64 (n,).
    """
    tree = MixedTree.build(counted.unique)
    n_copies = np.bincount(counted.codes, minlength=len(counted.unique))
    counts = np.zeros(len(centers.unique))
    for queries, points, distances in tree.pairs(centers.unique, radius, _PAIRS):
        pairs = np.column_stack([queries, points])
        is_near = distances + divergences(centers, counted, train, pairs) <= radius
        counts += np.bincount(queries[is_near], n_copies[points[is_near]], len(counts))
    return counts[centers.codes]


def spherelet_radius(
    spherelets: Spherelets, train: EncodedTable, subjects: np.ndarray | None, quantile: float
) -> float:
    """Return a quantile of d_S between each training row and the nearest other row, among its k
    nearest by d_E.

    Args:
        spherelets: Spherelets of the training rows.
        train: Encoded training rows.
        subjects: Codes of their subjects, int64 (n,). Rows of the same subject are skipped; if all
            k rows are, the largest d_E is used. None: no row is skipped.
        quantile: Share of rows, in [0, 1].

    Returns:
        The distance.
    """
    neighbors = nearest_rows(train, train, spherelets.rows.shape[1], exclude_self=True)
    n_neighbors = neighbors.indices.shape[1]
    queries = np.repeat(np.arange(len(train)), n_neighbors)
    points = neighbors.indices.ravel()
    away = neighbors.distances.ravel()
    exists = points >= 0
    first = spherelets.codes[queries[exists]]
    second = spherelets.codes[points[exists]]
    pairs = np.column_stack([first, second])
    away[exists] += divergences(spherelets, spherelets, train, pairs)
    if subjects is not None:
        is_same_subject = subjects[queries] == subjects[points]
        away[exists & is_same_subject] = np.inf
    nearest = away.reshape(len(train), -1).min(axis=1)
    nearest[np.isinf(nearest)] = neighbors.distances[np.isinf(nearest), -1]
    return float(np.quantile(nearest, quantile, method="inverted_cdf"))
