"""Compiled divergence of spherelets (see :mod:`privacy_assets.distances.spherelets`). Imports
numba.
"""

from __future__ import annotations

import math

import numpy as np

from privacy_assets.infra.compiling import compiled

Array = np.ndarray


@compiled
def between(numbers: Array, codes: Array, first: Array, second: Array, out: Array) -> None:
    """Compute the squared distances between two sets of rows of a table.

    Args:
        numbers: Numbers of the table, float32 (n_T, p).
        codes: Codes of the table, int32 (n_T, q).
        first: Rows of the first set, int64 (k,).
        second: Rows of the second set, int64 (k,).
        out: Receives the distance of row ``first[i]`` to row ``second[j]`` at [i, j], float64
            (k, k).
    """
    for i in range(len(first)):
        for j in range(len(second)):
            total = 0.0
            for column in range(codes.shape[1]):
                total += codes[first[i], column] != codes[second[j], column]
            for column in range(numbers.shape[1]):
                away = np.float64(numbers[first[i], column]) - np.float64(
                    numbers[second[j], column]
                )
                total += away * away
            out[i, j] = total


@compiled
def among(numbers: Array, codes: Array, rows: Array) -> Array:
    """Compute the squared distances within sets of rows of a table.

    Args:
        numbers: Numbers of the table, float32 (n_T, p).
        codes: Codes of the table, int32 (n_T, q).
        rows: Rows of each set, int64 (n, k).

    Returns:
        Squared distances, float64 (n, k, k).
    """
    out = np.empty((len(rows), rows.shape[1], rows.shape[1]))
    for n in range(len(rows)):
        between(numbers, codes, rows[n], rows[n], out[n])
    return out


@compiled
def _error(squared: Array, weights: Array, offset: float, radius: float) -> float:
    """Return the mean squared distance of points from a sphere, from their ``squared`` (k, k)
    distances to its rows.
    """
    total = 0.0
    for i in range(len(squared)):
        reach = -offset
        for j in range(len(weights)):
            reach += weights[j] * squared[i, j]
        away = math.sqrt(max(reach, 0.0)) - radius
        total += away * away
    return total / len(squared)


@compiled
def divergence(
    numbers: Array,
    codes: Array,
    rows: tuple[Array, Array],
    weights: tuple[Array, Array],
    spheres: tuple[Array, Array],
    pairs: Array,
) -> Array:
    """Compute d_R for pairs of a spherelet of one set and a spherelet of another.

    Args:
        numbers: Numbers of the training rows, float32 (n_T, p).
        codes: Codes of the training rows, int32 (n_T, q).
        rows: Training rows of the spherelets of each set, int64 (n, k); n may differ between the
            sets.
        weights: Centers of each set as weights of these rows, float64 (n, k).
        spheres: Offset, radius, and error of its own rows, for each spherelet of each set, float64
            (n, 3).
        pairs: Positions of a spherelet of the first set and one of the second, int64 (m, 2).

    Returns:
        d_R, float64 (m,). 0 if both spherelets have the same rows in the same order.
    """
    out = np.zeros(len(pairs))
    k = rows[0].shape[1]
    squared = np.empty((k, k))
    for m in range(len(pairs)):
        a, b = pairs[m]
        is_equal = True
        for j in range(k):
            is_equal &= rows[0][a, j] == rows[1][b, j]
        if is_equal:
            continue
        between(numbers, codes, rows[0][a], rows[1][b], squared)
        first = spheres[0][a]
        second = spheres[1][b]
        cross = max(0.0, _error(squared, weights[1][b], second[0], second[1]) - first[2])
        back = max(0.0, _error(squared.T, weights[0][a], first[0], first[1]) - second[2])
        out[m] = math.sqrt((cross + back) / 2)
    return out
