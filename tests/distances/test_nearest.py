"""Exact neighbors, by tree and by product, against a brute-force twin, on tables where approximate
searches fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from functools import cache
from pathlib import Path

import faiss
import numpy as np
import pandas as pd
import pytest
from encoded_tables import OF_MIXED, OF_NUMBERS, brute, mixed, numbers, outlier, table, wide_grid
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privacy_assets.distances import exact_search, mixed_tree
from privacy_assets.distances import nearest as mixed_search
from privacy_assets.distances.embedder import train_embedder
from privacy_assets.distances.embedder_settings import EmbedderSettings
from privacy_assets.distances.nearest import distinct_encoded, distinct_rows, nearest, nearest_rows
from privacy_assets.errors import InputError
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.tables.encoding import EncodedTable
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.table import Table

ADULT = Path(__file__).parents[1] / "data" / "adult.parquet"
by_name = pytest.mark.parametrize("case", [*OF_MIXED, *OF_NUMBERS], ids=lambda case: case.__name__)


def worst(queries, points, count):
    """A library with the worst errors of float32: products too small for the nearest row, too large
    for all others.
    """
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
    """:func:`nearest_rows` on one path: the tree, or products by a library, row by row (faiss) or
    in blocks.
    """
    if request.param == "blocks":
        monkeypatch.setattr(faiss.swigfaiss.cvar, "distance_compute_blas_threshold", 1)
        monkeypatch.setattr(exact_search, "_CELLS", 1)
    if request.param == "worst":
        monkeypatch.setattr(exact_search, "_faiss", worst)
    if request.param == "torch":
        monkeypatch.setattr(
            exact_search, "_faiss", lambda q, p, count: exact_search._torch(q, p, count, "cpu")
        )
    path = "tree" if request.param == "tree" else "product"
    return lambda queries, points, k, **options: nearest_rows(
        queries, points, k, path=path, **options
    )


def same(found, expected):
    np.testing.assert_array_equal(found.indices, expected[1])
    np.testing.assert_array_equal(found.distances, expected[0])


@cache
def twins(case):
    """Queries and points of a case, and the expected results of :func:`test_brute_force_twin`."""
    queries, points = case(np.random.default_rng(0))
    points.numeric[11], points.codes[11] = points.numeric[12], points.codes[12]
    return queries, points, brute(queries, points, 5), brute(points, points, 3, exclude_self=True)


@by_name
def test_brute_force_twin(case, search):
    queries, points, among_others, among_themselves = twins(case)
    same(search(queries, points, 5), among_others)
    found = search(points, points, 3, exclude_self=True)
    same(found, among_themselves)
    assert found.distances[11, 0] == found.distances[12, 0] == 0


@st.composite
def tables(draw):
    """Two small tables of one encoder, with few values so that ties and copies abound."""
    p, sizes = (
        draw(st.integers(0, 3)),
        draw(st.lists(st.sampled_from([1, 2, 3, 70, 600]), max_size=3)),
    )
    values = st.sampled_from([-1e15, -1.5, -0.0, 0.0, 0.25, 1.0, 1.0000001, 3e7])
    parts = []
    for _ in range(2):
        n = draw(st.integers(1, 70))
        codes = [draw(hnp.arrays(np.int32, n, elements=st.integers(0, size - 1))) for size in sizes]
        numeric = draw(hnp.arrays(np.float32, (n, p), elements=values.map(np.float32)))
        parts.append(table(numeric, np.stack(codes, axis=1) if codes else np.zeros((n, 0)), sizes))
    return tuple(parts)


@pytest.mark.slow
@settings(max_examples=50)
@given(tables(), st.integers(1, 6), st.sampled_from(("tree", "product")))
def test_any_tables(both, k, path):
    queries, points = both
    same(nearest_rows(queries, points, k, path=path), brute(queries, points, k))
    same(
        nearest_rows(points, points, k, exclude_self=True, path=path),
        brute(points, points, k, exclude_self=True),
    )


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


@pytest.mark.parametrize("case", [mixed, wide_grid, outlier])
def test_neither_order_of_rows_nor_blocks_nor_threads_matter(case, search, monkeypatch):
    g = np.random.default_rng(2)
    queries, points = case(g)
    by_query, by_point = g.permutation(len(queries)), g.permutation(len(points))
    one = search(queries, points, 3)
    monkeypatch.setattr(exact_search, "_BLOCK", 64)
    monkeypatch.setattr(mixed_tree, "_CHUNK", 16)
    monkeypatch.setattr("privacy_assets.infra.parallel.threads", lambda: 8)
    other = search(queries.take(by_query), points.take(by_point), 3)
    np.testing.assert_array_equal(other.distances, one.distances[by_query])
    left, right = (
        points.take(by_point).take(other.indices.ravel()),
        points.take(one.indices[by_query].ravel()),
    )
    np.testing.assert_array_equal(left.dense, right.dense)


@pytest.mark.parametrize("width", [0, 109])
def test_blocks_that_are_not_full(width, search):
    """1,025 rows: one more than a block of the product or a multiple of the leaf size."""
    queries, points = numbers(*np.random.default_rng(4).normal(size=(2, 1025, width)))
    found, rows = search(queries, points, 2), [0, 1, 1023, 1024]
    expected = brute(queries.take(rows), points, 2)
    np.testing.assert_array_equal(found.indices[rows], expected[1])
    np.testing.assert_array_equal(found.distances[rows], expected[0])


@pytest.mark.parametrize("scale", [1e-30, 2e-23, 1e-22, 1e-19, 1e18, 1e37])
def test_numbers_that_float32_cannot_square(scale, search):
    """In float32 squares vanish, are rounded to almost 0, or overflow; the difference in float64
    does not.
    """
    g = np.random.default_rng(5)
    both = numbers(
        *(np.float32(scale) * g.normal(size=(n, 6)).astype(np.float32) for n in (80, 300))
    )
    same(search(*both, 3), brute(*both, 3))


@pytest.mark.parametrize("gap", [1e-7, 1e-5])
def test_distances_that_agree_but_for_float32_rounding(gap, search):
    """Points on spheres whose squared radii differ by less than float32 resolves: float64
    decides.
    """
    g = np.random.default_rng(6)
    directions = g.normal(size=(600, 8))
    radii = 1 + gap * g.random(600)
    queries = np.zeros((40, 8))
    queries[:, 0] = np.float32(1e-9) * np.arange(40)
    both = numbers(
        queries, directions / np.linalg.norm(directions, axis=1)[:, None] * radii[:, None]
    )
    same(search(*both, 7), brute(*both, 7))


def test_the_bound_leaves_no_gap(monkeypatch):
    """The nearest row is found for the worst errors of the products, if another one is almost as
    near.

    Half of the bound would miss it at some of these gaps.
    """
    monkeypatch.setattr(exact_search, "_faiss", worst)
    g, query = np.random.default_rng(7), np.zeros((1, 64))
    half = g.normal(size=(200, 64))
    directions = (
        np.concatenate([half, -half]) / np.linalg.norm(half, axis=1)[list(range(200)) * 2, None]
    )
    for gap in np.linspace(0, 1.5, 31) * 4 * 65 * 2.0**-24:
        squared = np.full((400, 1), 1 + gap)
        squared[123], squared[124] = 1, 1 + gap / 20
        both = numbers(query, directions * np.sqrt(squared))
        same(nearest_rows(*both, path="product"), brute(*both, 1))


def test_fewer_points_than_asked_for_and_none():
    points = np.array([[0.0], [3.0], [3.0]])
    found = nearest(np.array([[1.0]]), points, 5)
    assert found.distances.tolist() == [[1, 2, 2, np.inf, np.inf]]
    assert found.indices.tolist() == [[0, 1, 2, -1, -1]]
    itself = nearest(points, points, 3, exclude_self=True)
    assert itself.indices.tolist() == [[1, 2, -1], [2, 0, -1], [1, 0, -1]]
    assert itself.distances.tolist() == [[3, 3, np.inf], [0, 3, np.inf], [0, 3, np.inf]]
    assert (nearest(points[:1], points[:1], exclude_self=True).indices == -1).all()
    assert nearest(points[:0], points).indices.shape == (0, 1)
    assert np.isinf(nearest(points, points[:0], 2).distances).all()
    bare = table(np.zeros((3, 0)), np.zeros((3, 0)), [])
    assert nearest_rows(bare, bare, 2).indices.tolist() == [[0, 1]] * 3


def test_bad_tables_are_named():
    queries, points = mixed(np.random.default_rng(6))
    with pytest.raises(InputError, match="different encodings"):
        nearest_rows(queries, table(points.numeric, points.codes, points.sizes + 1))
    with pytest.raises(InputError, match="equal width"):
        nearest_rows(queries, table(points.numeric[:, :1], points.codes, points.sizes))
    with pytest.raises(InputError, match="equal width"):
        nearest(np.ones(3), np.ones((2, 3)))
    with pytest.raises(InputError, match="same table"):
        nearest_rows(queries, points, exclude_self=True)
    points.numeric[7, 1] = np.nan
    with pytest.raises(InputError, match="points, row 7"):
        nearest_rows(queries, points)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distinct_rows(dtype):
    g = np.random.default_rng(4)
    matrix = g.integers(-1, 2, (300, 3)).astype(dtype) * dtype(0.1)
    matrix[0], matrix[1] = 0.0, -0.0
    unique, place = distinct_rows(matrix)
    np.testing.assert_array_equal(unique[place], matrix)
    assert len(unique) == len(np.unique(matrix, axis=0))
    assert place[0] == place[1]
    np.testing.assert_array_equal(distinct_rows(matrix[g.permutation(300)])[0], unique)


@pytest.mark.parametrize("case", OF_MIXED, ids=lambda case: case.__name__)
def test_distinct_rows_stand_in_the_order_of_dense_ones(case):
    points = case(np.random.default_rng(7))[1]
    unique, place = distinct_encoded(points)
    dense, expected = distinct_rows(points.dense)
    np.testing.assert_array_equal(unique.dense, dense)
    np.testing.assert_array_equal(place, expected)


@pytest.mark.slow
def test_memory_stays_linear_with_ties_everywhere():
    g = np.random.default_rng(5)
    # a dense float64 table of distances would take 512 MB
    points = g.integers(0, 2, (8000, 14)).astype(np.float32)
    queries = (g.integers(0, 2, (8000, 14)) + 0.25).astype(np.float32)
    tracemalloc.start()
    found = nearest(queries, points)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6
    np.testing.assert_array_equal(found.distances[:50], brute(*numbers(queries[:50], points), 1)[0])


def test_nearly_unique_texts_need_no_dense_form(monkeypatch):
    g = np.random.default_rng(8)
    n = 20_000
    points = table(g.normal(size=(n, 2)), g.permutation(n)[:, None], [n + 1])
    kept = g.random(n) < 0.5
    queries = table(points.numeric + 1e-3, np.where(kept[:, None], points.codes, n), [n + 1])
    monkeypatch.setattr(
        EncodedTable, "dense", property(lambda self: pytest.fail("the dense form was made"))
    )
    found = nearest_rows(queries, points)
    assert (found.indices[kept, 0] == np.flatnonzero(kept)).all()
    assert found.distances[kept].max() < 0.01 < 1 <= found.distances[~kept].min()


@pytest.fixture(scope="module")
def adult():
    """Two encoded tables of 4,000 rows of Adult, and their embeddings in 10 and 30 dimensions."""
    frame = pd.read_parquet(ADULT).sample(8000, random_state=0).reset_index(drop=True)
    schema = infer_schema(frame)
    train, rest = (Table.of(part, schema, where="rows") for part in (frame[:4000], frame[4000:]))
    inputs = read_inputs(train.frame(), rest.frame(), rest.frame(), schema=schema)
    out = {"mixed": (inputs.encoded("holdout"), inputs.encoded("train"))}
    for dims in (10, 30):
        embedder = train_embedder(
            [train], schema, EmbedderSettings(width=128, dims=dims, max_epochs=2), seed=0
        )
        out[f"embedded in {dims}"] = numbers(embedder.embed(rest), embedder.embed(train))
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "path"),
    [
        ("mixed", "tree"),
        ("embedded in 10", "tree"),
        ("embedded in 30", "tree"),
        ("30 independent numbers", "product"),
        ("109 independent numbers", "product"),
    ],
)
def test_the_tree_is_left_where_it_leaves_nothing_out(what, path, adult, monkeypatch):
    """On the CPU the tree is always used if it prunes: faiss would take several times as long."""
    if what in adult:
        queries, points = adult[what]
    else:
        queries, points = numbers(
            *np.random.default_rng(9).normal(size=(2, 4000, int(what.split()[0])))
        )
    taken = []
    product = mixed_search._by_product
    monkeypatch.setattr(
        mixed_search, "_by_product", lambda *given: taken.append("product") or product(*given)
    )
    found = nearest_rows(queries, points)
    assert (taken or ["tree"]) == [path]
    same(found, tuple(vars(nearest_rows(queries, points, path="tree")).values()))


@pytest.mark.slow
def test_works_where_nothing_can_be_cached():
    code = (
        "import numpy as np\n"
        "from privacy_assets.distances.nearest import nearest_rows\n"
        "from privacy_assets.tables.encoding import EncodedTable\n"
        "x = EncodedTable.of_numbers(np.arange(60.0)[:, None])\n"
        "raise SystemExit(int(nearest_rows(x, x, exclude_self=True).distances.max() != 1))"
    )
    environment = {
        **os.environ,
        "NUMBA_CACHE_LOCATOR_CLASSES": "ZipCacheLocator",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment, timeout=300).returncode == 0
    )


@pytest.mark.gpu
def test_cuda_agrees_with_the_tree():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    for case in OF_NUMBERS:
        tables = case(np.random.default_rng(6))
        one = nearest_rows(*tables, 3, path="tree")
        same(nearest_rows(*tables, 3, path="product", device="cuda"), (one.distances, one.indices))
