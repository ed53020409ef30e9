"""Exact neighbours against a brute-force twin, on the inputs that break approximate ones."""

from __future__ import annotations

import tracemalloc
from functools import cache

import faiss
import numpy as np
import pytest

from privacy_assets.errors import InputError
from privacy_assets.neighbours import exact_search
from privacy_assets.neighbours.nearest import Neighbours, distinct_rows, nearest, nearest_rows
from privacy_assets.tables.encoding import EncodedTable


def brute(queries, points, k, exclude_self=False):
    """Direct differences in float64; order by distance, then by the row's bytes, then by position."""
    distances = np.full((len(queries), k), np.inf)
    indices = np.full((len(queries), k), -1)
    content = [(row + np.float32(0)).tobytes() for row in points]
    for i, query in enumerate(queries.astype(np.float64)):
        d = np.zeros(len(points))
        for column in range(points.shape[1]):
            d += (points[:, column].astype(np.float64) - query[column]) ** 2
        d = np.sqrt(d)
        rows = [j for j in range(len(points)) if not (exclude_self and i == j)]
        best = sorted(rows, key=lambda j: (d[j], content[j], j))[:k]
        distances[i, : len(best)], indices[i, : len(best)] = d[best], best
    return distances, indices


def test_against_faiss():
    g = np.random.default_rng(0)
    queries, points = (g.normal(size=(rows, 12)).astype(np.float32) for rows in (500, 3000))
    queries[:50] = points[:50]
    index = faiss.IndexFlatL2(12)
    index.add(points)
    squared, indices = index.search(queries, 5)
    found = nearest(queries, points, 5)
    np.testing.assert_array_equal(found.indices, indices)
    np.testing.assert_allclose(found.distances**2, squared, atol=1e-4)
    assert (found.distances[:50, 0] == 0).all()


def gaussian(g):
    return g.normal(size=(150, 6)), g.normal(size=(200, 6))


def grid(g):  # few distinct rows: thousands of ties and duplicates
    return g.integers(0, 3, (150, 4)), g.integers(0, 3, (400, 4))


def wide_grid(g):  # mostly distinct rows, far more ties than candidates
    return g.integers(0, 2, (120, 12)), g.integers(0, 2, (400, 12))


def outlier(g):
    queries, points = gaussian(g)
    points[7, 2] = queries[3, 2] = 1e9
    queries[4], queries[5] = points[7], points[7] + [0, 0, 64, 0, 0, 0]
    return queries, points


def huge(g):
    queries, points = gaussian(g)
    points[3], queries[3] = 1e25, -1e25
    return queries, points


def far_cluster(g):  # half of the rows lie where the product's rounding error is 10,000 times their spacing
    queries, points = gaussian(g)
    queries[::2], points[::2] = 1e4 + 1e-2 * queries[::2], 1e4 + 1e-2 * points[::2]
    return queries, points


def copies(g):  # |a|^2 + |b|^2 - 2ab of equal rows is not 0 here
    points = g.normal(size=(300, 30)) * 50 + 10
    return points[g.integers(0, 300, 200)], points


def offset(g):  # all rows a million away from 0, a few thousandths apart
    return tuple(1e6 + 0.125 * g.integers(-9, 9, (n, 5)) for n in (150, 300))


def near_ties(g):  # around each query many points whose distances differ in the last digits
    queries = g.normal(size=(30, 16))
    away = np.repeat(np.eye(16), 2, axis=0) * np.tile([1.0, -1.0], 16)[:, None]
    return queries, (queries[:, None] + away * (1 + 1e-6 * g.random((30, 32, 1)))).reshape(-1, 16)


def constant(g):  # columns of one value, large and small
    queries, points = (np.full((n, 6), [7e8, -1e-30, 0, 3, 0, 0]) for n in (100, 200))
    queries[:, 4:], points[:, 4:] = g.normal(size=(100, 2)), g.normal(size=(200, 2))
    return queries, points


def line(g):  # one column, most rows twice
    return g.integers(0, 400, (150, 1)) * 0.1 + 1e3, g.integers(0, 200, (400, 1)) * 0.2 + 1e3


CASES = (gaussian, grid, wide_grid, outlier, huge, far_cluster, copies, offset, near_ties, constant, line)
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


def worst(queries, points, count):
    """A library whose products are as wrong as float32 allows: the nearest row's too small, all others' too large."""
    q, p = queries.astype(np.float64), points.astype(np.float64)
    exact, terms = q @ p.T, q.shape[1]
    unit = terms * 2.0**-24
    error = unit / (1 - unit) * (np.abs(q) @ np.abs(p).T)
    products = exact + error
    nearest_row = np.argmax(exact, axis=1)[:, None]
    np.put_along_axis(products, nearest_row, np.take_along_axis(exact - error, nearest_row, 1), 1)
    found = np.argsort(-products, axis=1)[:, :count]
    return np.take_along_axis(products, found[:, -1:], 1)[:, 0], found


@pytest.fixture(params=("tree", "rows", "blocks", "worst", "torch"))
def search(request, monkeypatch):
    """:func:`nearest` along one path: the tree, or products by a library, faiss's row by row or in blocks."""
    if request.param == "blocks":
        monkeypatch.setattr(faiss.swigfaiss.cvar, "distance_compute_blas_threshold", 1)
        monkeypatch.setattr(exact_search, "_CELLS", 1)
    if request.param == "worst":
        monkeypatch.setattr(exact_search, "_faiss", worst)
    if request.param == "torch":
        monkeypatch.setattr(exact_search, "_faiss", lambda q, p, count: exact_search._torch(q, p, count, "cpu"))

    def run(queries, points, k=1, **options):
        path = "tree" if request.param == "tree" else "product"
        tables = [EncodedTable.of_numbers(matrix) for matrix in (queries, points)]
        return nearest_rows(*tables, k, path=path, **options)

    return run


def same(found, expected):
    np.testing.assert_allclose(found.distances, expected[0], rtol=1e-11)
    np.testing.assert_array_equal(found.indices, expected[1])


@cache
def between(case, k):
    """Queries and points of a case, and what is expected of every search."""
    queries, points = (x.astype(np.float32) for x in case(np.random.default_rng(0)))
    return queries, points, brute(queries, points, k)


@cache
def within(case, k):
    points = case(np.random.default_rng(1))[1].astype(np.float32)
    points[11] = points[12]
    return points, brute(points, points, k, exclude_self=True)


@by_name
def test_brute_force_twin(case, search):
    queries, points, expected = between(case, 5)
    same(search(queries, points, 5), expected)


@by_name
def test_exclude_self_keeps_duplicates(case, search):
    points, expected = within(case, 3)
    found = search(points, points, 3, exclude_self=True)
    same(found, expected)
    assert found.distances[11, 0] == found.distances[12, 0] == 0


@pytest.mark.parametrize("case", [wide_grid, outlier])
def test_order_of_rows_does_not_matter(case, search):
    g = np.random.default_rng(2)
    queries, points = (x.astype(np.float32) for x in case(g))
    by_query, by_point = g.permutation(len(queries)), g.permutation(len(points))
    one, other = search(queries, points, 3), search(queries[by_query], points[by_point], 3)
    np.testing.assert_array_equal(other.distances, one.distances[by_query])
    np.testing.assert_array_equal(points[by_point][other.indices], points[one.indices[by_query]])


def test_block_and_threads_do_not_matter(search, monkeypatch):
    queries, points = (x.astype(np.float32) for x in wide_grid(np.random.default_rng(3)))
    one = search(queries, points, 2)
    monkeypatch.setattr(exact_search, "_BLOCK", 64)
    monkeypatch.setattr("privacy_assets.compute.parallel.threads", lambda: 8)
    other = search(queries, points, 2)
    np.testing.assert_array_equal(other.indices, one.indices)
    np.testing.assert_array_equal(other.distances, one.distances)


@pytest.mark.parametrize("width", [0, 109])
def test_blocks_that_are_not_full(width, search):
    """1,025 rows: one more than a block of the product has, and than whole leaves hold."""
    g = np.random.default_rng(4)
    queries, points = (g.normal(size=(1025, width)).astype(np.float32) for _ in range(2))
    found, rows = search(queries, points, 2), [0, 1, 1023, 1024]
    same(Neighbours(found.distances[rows], found.indices[rows]), brute(queries[rows], points, 2))


@pytest.mark.parametrize("scale", [1e-30, 2e-23, 1e-22, 1e-19, 1e18, 1e37])
def test_numbers_that_float32_cannot_square(scale, search):
    """Squares vanish, are rounded to almost nothing, or overflow in float32; the difference in float64 does neither."""
    g = np.random.default_rng(5)
    queries, points = (np.float32(scale) * g.normal(size=(n, 6)).astype(np.float32) for n in (80, 300))
    same(search(queries, points, 3), brute(queries, points, 3))


@pytest.mark.parametrize("gap", [1e-7, 1e-5])
def test_distances_that_agree_but_for_float32_rounding(gap, search):
    """Points on spheres whose squared radii differ by less than float32 tells apart: float64 decides."""
    g = np.random.default_rng(6)
    directions = g.normal(size=(600, 8))
    radii = 1 + gap * g.random(600)
    points = (directions / np.linalg.norm(directions, axis=1)[:, None] * radii[:, None]).astype(np.float32)
    queries = np.zeros((40, 8), np.float32)
    queries[:, 0] = np.float32(1e-9) * np.arange(40)
    same(search(queries, points, 7), brute(queries, points, 7))


def test_the_bound_leaves_no_gap(monkeypatch):
    """The nearest row is found however wrong the products are, another one as near being known.

    Half of the bound would let it be missed at some of these gaps between both and all other rows.
    """
    monkeypatch.setattr(exact_search, "_faiss", worst)
    g, query = np.random.default_rng(7), np.zeros((1, 64), np.float32)
    half = g.normal(size=(200, 64))
    directions = np.concatenate([half, -half]) / np.linalg.norm(half, axis=1)[list(range(200)) * 2, None]
    for gap in np.linspace(0, 1.5, 31) * 4 * 65 * 2.0**-24:
        squared = np.full((400, 1), 1 + gap)
        squared[123], squared[124] = 1, 1 + gap / 20
        points = (directions * np.sqrt(squared)).astype(np.float32)
        same(nearest_rows(*map(EncodedTable.of_numbers, (query, points)), path="product"), brute(query, points, 1))


def test_fewer_points_than_asked_for():
    points = np.array([[0.0], [3.0], [3.0]])
    found = nearest(np.array([[1.0]]), points, 5)
    assert found.distances.tolist() == [[1, 2, 2, np.inf, np.inf]]
    assert found.indices.tolist() == [[0, 1, 2, -1, -1]]
    itself = nearest(points, points, 3, exclude_self=True)
    assert itself.indices.tolist() == [[1, 2, -1], [2, 0, -1], [1, 0, -1]]
    assert itself.distances.tolist() == [[3, 3, np.inf], [0, 3, np.inf], [0, 3, np.inf]]


def test_bad_tables_are_named():
    for queries, points, message in (
        (np.ones(3), np.ones((2, 3)), "equal width"),
        (np.array([[np.inf, 1]]), np.ones((2, 2)), "queries, row 0"),
    ):
        with pytest.raises(InputError, match=message):
            nearest(queries, points)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distinct_rows(dtype):
    g = np.random.default_rng(4)
    matrix = g.integers(-1, 2, (300, 3)).astype(dtype) * dtype(0.1)
    matrix[0], matrix[1] = 0.0, -0.0
    unique, place = distinct_rows(matrix)
    np.testing.assert_array_equal(unique[place], matrix)
    assert len(unique) == len(np.unique(matrix, axis=0))
    assert place[0] == place[1]
    shuffled = g.permutation(300)
    again, _ = distinct_rows(matrix[shuffled])
    np.testing.assert_array_equal(again, unique)


def test_memory_stays_linear_with_ties_everywhere():
    g = np.random.default_rng(5)
    points = g.integers(0, 2, (8000, 14)).astype(np.float32)  # a dense float64 table of distances would take 512 MB
    queries = g.integers(0, 2, (8000, 14)) + np.float32(0.25)
    tracemalloc.start()
    found = nearest(queries.astype(np.float32), points)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6
    np.testing.assert_allclose(found.distances[:50], brute(queries[:50], points, 1)[0], rtol=1e-11)


@pytest.mark.gpu
def test_cuda_agrees_with_the_tree():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    for case in CASES:
        tables = [EncodedTable.of_numbers(x) for x in case(np.random.default_rng(6))]
        one, other = nearest_rows(*tables, 3, path="tree"), nearest_rows(*tables, 3, path="product", device="cuda")
        np.testing.assert_array_equal(other.indices, one.indices)
        np.testing.assert_array_equal(other.distances, one.distances)
