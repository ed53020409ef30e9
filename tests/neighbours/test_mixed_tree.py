"""Neighbours among encoded rows, by tree and by product, against a brute-force twin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privacy_assets.embedding.embedder import train_embedder
from privacy_assets.embedding.settings import EmbedderSettings
from privacy_assets.errors import InputError
from privacy_assets.evaluation import prepare_inputs
from privacy_assets.neighbours import mixed_search, mixed_tree
from privacy_assets.neighbours.nearest import distinct_encoded, distinct_rows, nearest_rows
from privacy_assets.tables.encoding import EncodedTable
from privacy_assets.tables.schema import infer_schema
from privacy_assets.tables.table import Table

ADULT = Path(__file__).parents[1] / "data" / "adult.parquet"
PATHS = ("tree", "product")


def table(numeric, codes, sizes):
    return EncodedTable(np.asarray(numeric, np.float32), np.asarray(codes, np.int32), np.asarray(sizes, np.int64))


def brute(queries, points, k, exclude_self=False):
    """Mismatches, then squared differences column by column; order by distance, bytes of the dense row, position."""
    out = np.full((len(queries), k), np.inf), np.full((len(queries), k), -1)
    content = [(row + np.float32(0)).tobytes() for row in points.dense]
    for i in range(len(queries)):
        squared = (points.codes != queries.codes[i]).sum(axis=1).astype(float)
        for column in range(points.numeric.shape[1]):
            squared += (points.numeric[:, column].astype(float) - float(queries.numeric[i, column])) ** 2
        rows = [j for j in range(len(points)) if not (exclude_self and i == j)]
        best = sorted(rows, key=lambda j: (squared[j], content[j], j))[:k]
        out[0][i, : len(best)], out[1][i, : len(best)] = np.sqrt(squared[best]), best
    return out


def drawn(g, n, sizes, numbers):
    return table(numbers, np.stack([g.integers(0, size, n) for size in sizes], axis=1), sizes)


def mixed(g):
    return tuple(drawn(g, n, (2, 5, 40, 9), g.normal(size=(n, 3))) for n in (150, 400))


def numbers_only(g):
    return tuple(EncodedTable.of_numbers(g.normal(size=(n, 4))) for n in (150, 400))


def categories_only(g):  # every distance is a whole number: ties everywhere
    return tuple(drawn(g, n, (3, 3, 4, 2, 5), np.zeros((n, 0))) for n in (150, 600))


def grid(g):  # few distinct rows
    return tuple(drawn(g, n, (2, 3), g.integers(-1, 2, (n, 2)) * 0.5) for n in (100, 500))


def texts(g):  # more categories than bits, nearly unique
    return tuple(drawn(g, n, (5000, 3), g.normal(size=(n, 2)).round(1)) for n in (100, 500))


def colliding(g):  # distinct categories that share a bit: rows that no cut can separate
    parts = []
    for n in (100, 300):
        codes = np.stack([256 * g.integers(0, 40, n), g.integers(0, 2, n)], axis=1)
        parts.append(table(np.zeros((n, 1)), codes, (10_241, 2)))
    return tuple(parts)


def many_columns(g):  # several words of bits, more columns than rows in a leaf
    return tuple(drawn(g, n, (7,) * 70, g.normal(size=(n, 1))) for n in (60, 200))


def skewed(g):  # most values equal, the others far apart: cuts far from the middle
    parts = []
    for n in (100, 600):
        numbers = np.where(g.random((n, 6)) < 0.9, 0.0, 10.0 ** g.integers(-3, 15, (n, 6)))
        codes = np.where(g.random((n, 3)) < 0.95, 0, g.integers(0, 100, (n, 3)))
        parts.append(table(numbers, codes, (100,) * 3))
    return tuple(parts)


def copies(g):
    points = drawn(g, 300, (4, 4), g.normal(size=(300, 5)) * 50 + 10)
    return points.take(g.integers(0, 300, 200)), points


CASES = (mixed, numbers_only, categories_only, grid, texts, colliding, many_columns, skewed, copies)
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


def same(found, expected):
    np.testing.assert_array_equal(found.indices, expected[1])
    np.testing.assert_array_equal(found.distances, expected[0])


@by_name
@pytest.mark.parametrize("path", PATHS)
def test_brute_force_twin(case, path):
    queries, points = case(np.random.default_rng(0))
    points.numeric[11], points.codes[11] = points.numeric[12], points.codes[12]
    same(nearest_rows(queries, points, 4, path=path), brute(queries, points, 4))
    found = nearest_rows(points, points, 3, exclude_self=True, path=path)
    same(found, brute(points, points, 3, exclude_self=True))
    assert found.distances[11, 0] == found.distances[12, 0] == 0


@st.composite
def tables(draw):
    """Two small tables of one encoder, with few values so that ties and copies abound."""
    p, sizes = draw(st.integers(0, 3)), draw(st.lists(st.sampled_from([1, 2, 3, 70, 600]), max_size=3))
    values = st.sampled_from([-1e15, -1.5, -0.0, 0.0, 0.25, 1.0, 1.0000001, 3e7])
    parts = []
    for _ in range(2):
        n = draw(st.integers(1, 70))
        codes = [draw(hnp.arrays(np.int32, n, elements=st.integers(0, size - 1))) for size in sizes]
        numeric = draw(hnp.arrays(np.float32, (n, p), elements=values.map(np.float32)))
        parts.append(table(numeric, np.stack(codes, axis=1) if codes else np.zeros((n, 0)), sizes))
    return tuple(parts)


@settings(max_examples=100, deadline=None)
@given(tables(), st.integers(1, 6), st.sampled_from(PATHS))
def test_any_tables(both, k, path):
    queries, points = both
    same(nearest_rows(queries, points, k, path=path), brute(queries, points, k))
    same(nearest_rows(points, points, k, exclude_self=True, path=path), brute(points, points, k, exclude_self=True))


@by_name
def test_order_of_rows_does_not_matter(case):
    g = np.random.default_rng(3)
    queries, points = case(g)
    by_query, by_point = g.permutation(len(queries)), g.permutation(len(points))
    one, other = nearest_rows(queries, points, 3), nearest_rows(queries.take(by_query), points.take(by_point), 3)
    np.testing.assert_array_equal(other.distances, one.distances[by_query])
    left, right = points.take(by_point).take(other.indices.ravel()), points.take(one.indices[by_query].ravel())
    np.testing.assert_array_equal(left.dense, right.dense)


def test_threads_do_not_matter(monkeypatch):
    queries, points = mixed(np.random.default_rng(4))
    monkeypatch.setattr(mixed_tree, "_CHUNK", 16)
    monkeypatch.setattr("privacy_assets.compute.parallel.threads", lambda: 1)
    one = nearest_rows(queries, points, 3, path="tree")
    monkeypatch.setattr("privacy_assets.compute.parallel.threads", lambda: 8)
    many = nearest_rows(queries, points, 3, path="tree")
    same(many, (one.distances, one.indices))


def test_empty_tables_and_fewer_points_than_asked_for():
    _, points = mixed(np.random.default_rng(5))
    none, one = points.take(np.s_[:0]), points.take(np.s_[:1])
    assert nearest_rows(none, points).indices.shape == (0, 1)
    assert np.isinf(nearest_rows(points, none, 2).distances).all()
    assert (nearest_rows(one, one, exclude_self=True).indices == -1).all()
    assert nearest_rows(one, one, 3).indices.tolist() == [[0, -1, -1]]
    bare = table(np.zeros((3, 0)), np.zeros((3, 0)), [])
    assert nearest_rows(bare, bare, 2).indices.tolist() == [[0, 1]] * 3


def test_bad_tables_are_named():
    queries, points = mixed(np.random.default_rng(6))
    with pytest.raises(InputError, match="one encoder"):
        nearest_rows(queries, table(points.numeric, points.codes, points.sizes + 1))
    with pytest.raises(InputError, match="equal width"):
        nearest_rows(queries, table(points.numeric[:, :1], points.codes, points.sizes))
    with pytest.raises(InputError, match="same table"):
        nearest_rows(queries, points, exclude_self=True)
    points.numeric[7, 1] = np.nan
    with pytest.raises(InputError, match="points, row 7"):
        nearest_rows(queries, points)


@by_name
def test_distinct_rows_stand_in_the_order_of_dense_ones(case):
    points = case(np.random.default_rng(7))[1]
    unique, place = distinct_encoded(points)
    dense, expected = distinct_rows(points.dense)
    np.testing.assert_array_equal(unique.dense, dense)
    np.testing.assert_array_equal(place, expected)


def test_nearly_unique_texts_need_no_dense_form(monkeypatch):
    g = np.random.default_rng(8)
    n = 20_000
    points = table(g.normal(size=(n, 2)), g.permutation(n)[:, None], [n + 1])
    kept = g.random(n) < 0.5
    queries = table(points.numeric + 1e-3, np.where(kept[:, None], points.codes, n), [n + 1])
    monkeypatch.setattr(EncodedTable, "dense", property(lambda self: pytest.fail("the dense form was made")))
    found = nearest_rows(queries, points)
    assert (found.indices[kept, 0] == np.flatnonzero(kept)).all()
    assert found.distances[kept].max() < 0.01 < 1 <= found.distances[~kept].min()


@pytest.fixture(scope="module")
def adult():
    """Two encoded tables of 4,000 rows of Adult, and their embeddings in 10 and 30 dimensions."""
    frame = pd.read_parquet(ADULT).sample(8000, random_state=0).reset_index(drop=True)
    schema = infer_schema(frame)
    train, rest = (Table.of(part, schema, where="rows") for part in (frame[:4000], frame[4000:]))
    inputs = prepare_inputs(train.frame(), rest.frame(), rest.frame(), schema=schema)
    out = {"mixed": (inputs.encoded("holdout"), inputs.encoded("train"))}
    for dims in (10, 30):
        embedder = train_embedder([train], schema, EmbedderSettings(width=128, dims=dims, max_epochs=2), seed=0)
        out[f"embedded in {dims}"] = tuple(EncodedTable.of_numbers(embedder.embed(part)) for part in (rest, train))
    return out


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
    """And never on the CPU where it does: faiss would take several times as long."""
    if what in adult:
        queries, points = adult[what]
    else:
        cloud = EncodedTable.of_numbers(np.random.default_rng(9).normal(size=(8000, int(what.split()[0]))))
        queries, points = cloud.take(np.s_[:4000]), cloud.take(np.s_[4000:])
    taken = []
    product = mixed_search._by_product
    monkeypatch.setattr(mixed_search, "_by_product", lambda *given: taken.append("product") or product(*given))
    found = nearest_rows(queries, points)
    assert (taken or ["tree"]) == [path]
    same(found, tuple(vars(nearest_rows(queries, points, path="tree")).values()))


@pytest.mark.slow
def test_works_where_nothing_can_be_cached():
    code = (
        "import numpy as np\n"
        "from privacy_assets.neighbours.nearest import nearest_rows\n"
        "from privacy_assets.tables.encoding import EncodedTable\n"
        "x = EncodedTable.of_numbers(np.arange(60.0)[:, None])\n"
        "raise SystemExit(int(nearest_rows(x, x, exclude_self=True).distances.max() != 1))"
    )
    environment = {
        **os.environ,
        "NUMBA_CACHE_LOCATOR_CLASSES": "ZipCacheLocator",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=300).returncode == 0
