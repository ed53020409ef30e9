"""Encoded tables on which inexact searches fail, and the brute-force twin of every search."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from privacy_assets.tables.encoding import EncodedTable

Both = tuple[EncodedTable, EncodedTable]  # queries and points
Case = Callable[[np.random.Generator], Both]


def table(numeric, codes, sizes) -> EncodedTable:
    return EncodedTable(
        np.asarray(numeric, np.float32), np.asarray(codes, np.int32), np.asarray(sizes, np.int64)
    )


def squared(queries: EncodedTable, points: EncodedTable) -> np.ndarray:
    """Mismatches, then squared differences column by column, float64 (n_q, n_p)."""
    out = (queries.codes[:, None] != points.codes[None]).sum(axis=2).astype(float)
    for column in range(points.numeric.shape[1]):
        away = points.numeric[None, :, column].astype(float) - queries.numeric[
            :, None, column
        ].astype(float)
        out += away * away
    return out


def brute(queries: EncodedTable, points: EncodedTable, k: int, exclude_self: bool = False):
    """Distances and positions (n_q, k), in the order of distance, bytes of the dense row,
    position.
    """
    out = np.full((len(queries), k), np.inf), np.full((len(queries), k), -1)
    content = [(row + np.float32(0)).tobytes() for row in points.dense]
    for i, away in enumerate(squared(queries, points)):
        rows = [j for j in range(len(points)) if not (exclude_self and i == j)]
        best = sorted(rows, key=lambda j: (away[j], content[j], j))[:k]
        out[0][i, : len(best)], out[1][i, : len(best)] = np.sqrt(away[best]), best
    return out


def drawn(
    g: np.random.Generator, n: int, sizes: tuple[int, ...], numbers: np.ndarray
) -> EncodedTable:
    return table(numbers, np.stack([g.integers(0, size, n) for size in sizes], axis=1), sizes)


def mixed(g) -> Both:
    return tuple(drawn(g, n, (2, 5, 40, 9), g.normal(size=(n, 3))) for n in (150, 400))


def categories_only(g) -> Both:  # every distance is an integer: ties everywhere
    return tuple(drawn(g, n, (3, 3, 4, 2, 5), np.zeros((n, 0))) for n in (150, 600))


def grid(g) -> Both:  # few distinct rows: ties and duplicates
    return tuple(drawn(g, n, (2, 3), g.integers(-1, 2, (n, 2)) * 0.5) for n in (100, 500))


def texts(g) -> Both:  # more categories than bits, nearly unique
    return tuple(drawn(g, n, (5000, 3), g.normal(size=(n, 2)).round(1)) for n in (100, 500))


def colliding(g) -> Both:  # distinct categories that share a bit: rows that no cut can separate
    parts = []
    for n in (60, 200):
        codes = np.stack([256 * g.integers(0, 40, n), g.integers(0, 2, n)], axis=1)
        parts.append(table(np.zeros((n, 1)), codes, (10_241, 2)))
    return tuple(parts)


# more columns than a byte can count, and rows that differ in more than 255 of them
def many_columns(g) -> Both:
    return tuple(drawn(g, n, (9,) * 300, g.normal(size=(n, 1))) for n in (60, 200))


def skewed(g) -> Both:  # most values equal, the others far apart: cuts far from the middle
    parts = []
    for n in (100, 600):
        numbers = np.where(g.random((n, 6)) < 0.9, 0.0, 10.0 ** g.integers(-3, 15, (n, 6)))
        codes = np.where(g.random((n, 3)) < 0.95, 0, g.integers(0, 100, (n, 3)))
        parts.append(table(numbers, codes, (100,) * 3))
    return tuple(parts)


def copies(g) -> Both:  # |a|^2 + |b|^2 - 2ab of equal rows is not 0 here
    points = drawn(g, 300, (4, 4), g.normal(size=(300, 28)) * 50 + 10)
    return points.take(g.integers(0, 300, 200)), points


def numbers(queries: np.ndarray, points: np.ndarray) -> Both:
    return EncodedTable.of_numbers(queries), EncodedTable.of_numbers(points)


def numbers_only(g) -> Both:
    return numbers(g.normal(size=(150, 4)), g.normal(size=(400, 4)))


def wide_grid(g) -> Both:  # mostly distinct rows, far more ties than candidates
    return numbers(g.integers(0, 2, (120, 12)), g.integers(0, 2, (400, 12)))


def outlier(g) -> Both:
    queries, points = g.normal(size=(150, 6)), g.normal(size=(200, 6))
    points[7, 2] = queries[3, 2] = 1e9
    queries[4], queries[5] = points[7], points[7] + [0, 0, 64, 0, 0, 0]
    points[8], queries[8] = 1e25, -1e25
    return numbers(queries, points)


# half of the rows are where the product's rounding error is 10,000 times their spacing
def far_cluster(g) -> Both:
    queries, points = g.normal(size=(150, 6)), g.normal(size=(200, 6))
    queries[::2], points[::2] = 1e4 + 1e-2 * queries[::2], 1e4 + 1e-2 * points[::2]
    return numbers(queries, points)


def offset(g) -> Both:  # all rows a million away from 0, a few thousandths apart
    return numbers(*(1e6 + 0.125 * g.integers(-9, 9, (n, 5)) for n in (150, 300)))


def near_ties(g) -> Both:  # around each query many points whose distances differ in the last digits
    queries = g.normal(size=(30, 16))
    away = np.repeat(np.eye(16), 2, axis=0) * np.tile([1.0, -1.0], 16)[:, None]
    return numbers(
        queries, (queries[:, None] + away * (1 + 1e-6 * g.random((30, 32, 1)))).reshape(-1, 16)
    )


def constant(g) -> Both:  # columns of one value, large and small
    queries, points = (np.full((n, 6), [7e8, -1e-30, 0, 3, 0, 0]) for n in (100, 200))
    queries[:, 4:], points[:, 4:] = g.normal(size=(100, 2)), g.normal(size=(200, 2))
    return numbers(queries, points)


def line(g) -> Both:  # one column, most rows twice
    return numbers(
        g.integers(0, 400, (150, 1)) * 0.1 + 1e3, g.integers(0, 200, (400, 1)) * 0.2 + 1e3
    )


OF_MIXED: tuple[Case, ...] = (
    mixed,
    categories_only,
    grid,
    texts,
    colliding,
    many_columns,
    skewed,
    copies,
)
OF_NUMBERS: tuple[Case, ...] = (
    numbers_only,
    wide_grid,
    outlier,
    far_cluster,
    offset,
    near_ties,
    constant,
    line,
)
