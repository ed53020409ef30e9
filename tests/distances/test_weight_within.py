"""Counting within a radius against a brute-force twin, on tables of every shape."""

from __future__ import annotations

import numpy as np
import pytest
from encoded_tables import OF_MIXED, mixed, numbers_only, squared, table
from hypothesis import given, settings
from hypothesis import strategies as st
from test_nearest import tables

from privacy_assets.distances import _tree_kernels as kernels
from privacy_assets.distances import mixed_tree
from privacy_assets.distances.mixed_tree import MixedTree
from privacy_assets.distances.nearest import distinct_encoded, weight_within
from privacy_assets.tables.encoding import EncodedTable

by_name = pytest.mark.parametrize("case", [*OF_MIXED, numbers_only], ids=lambda case: case.__name__)
RADII = (0, 1, 1.5, 4, 1e20)


def brute(queries, points, radius, weights=None):
    within = squared(queries, points) <= float(radius) ** 2
    return within @ (np.ones(len(points)) if weights is None else weights)


@by_name
@pytest.mark.parametrize("radius", RADII)
def test_brute_force_twin(case, radius):
    g = np.random.default_rng(0)
    queries, points = case(g)
    weights = g.random(len(points)) * (g.random(len(points)) < 0.8)
    np.testing.assert_array_equal(
        weight_within(queries, points, radius), brute(queries, points, radius)
    )
    found = weight_within(queries, points, radius, weights)
    np.testing.assert_allclose(
        found, brute(queries, points, radius, weights), rtol=1e-12, atol=1e-12
    )


@by_name
def test_rows_exactly_at_the_radius_count(case):
    queries, points = case(np.random.default_rng(1))
    away = np.sqrt(squared(queries, points))
    for radius in np.quantile(away, (0.01, 0.2, 0.9), method="lower"):
        np.testing.assert_array_equal(
            weight_within(queries, points, radius), brute(queries, points, radius)
        )


@pytest.mark.slow
@settings(max_examples=100)
@given(tables(), st.sampled_from((0.0, 0.25, 1.0, 1.5, 3e7, 1e15)))
def test_any_tables(both, radius):
    queries, points = both
    np.testing.assert_array_equal(
        weight_within(queries, points, radius), brute(queries, points, radius)
    )
    np.testing.assert_array_equal(
        weight_within(points, points, radius), brute(points, points, radius)
    )


@pytest.mark.parametrize("largest", [1e14, 1e18, 3e38])
def test_numbers_beyond_what_boxes_hold(largest):
    g = np.random.default_rng(2)
    points = EncodedTable.of_numbers(
        (g.normal(size=(300, 2)) * largest / 5).clip(-largest, largest)
    )
    for radius in (0, largest / 10, largest):
        np.testing.assert_array_equal(
            weight_within(points, points, radius), brute(points, points, radius)
        )


def test_order_of_rows_and_threads_do_not_matter(monkeypatch):
    g = np.random.default_rng(3)
    queries, points = mixed(g)
    weights, by_query, by_point = g.random(400), g.permutation(150), g.permutation(400)
    one = weight_within(queries, points, 1.5, weights)
    monkeypatch.setattr(mixed_tree, "_CHUNK", 16)
    monkeypatch.setattr("privacy_assets.infra.parallel.threads", lambda: 8)
    other = weight_within(queries.take(by_query), points.take(by_point), 1.5, weights[by_point])
    np.testing.assert_allclose(other, one[by_query], rtol=1e-12)


def test_copies_count_as_often_as_they_stand():
    points = mixed(np.random.default_rng(4))[1]
    twice = EncodedTable.stack([points, points, points.take(np.s_[:10])])
    once = weight_within(points, points, 1.2)
    more = weight_within(points, points.take(np.s_[:10]), 1.2)
    np.testing.assert_array_equal(weight_within(points, twice, 1.2), 2 * once + more)
    assert (weight_within(twice, points, 0)[:10] == weight_within(points, points, 0)[:10]).all()


def test_what_lies_within_reach_as_a_whole_is_not_looked_into(monkeypatch):
    """A wide radius visits the root only, a narrow one a few leaves, never every pair."""
    g = np.random.default_rng(6)
    points, _ = distinct_encoded(
        table(g.normal(size=(20_000, 2)), g.integers(0, 3, (20_000, 2)), (3, 3))
    )
    tree, queries = MixedTree.build(points), points.take(np.s_[:200])
    looked = np.ones(len(points))
    looked[:] = np.nan  # a row that is visited individually makes the result NaN
    mass = kernels.masses(tree.tree, np.ones(len(points)))
    plain = mixed_tree._plain(queries)
    wide = kernels.within(tree.tree, tree._mixed, mass, looked, *plain, tree.bases, 1e6, True, 0)[0]
    assert (wide == len(points)).all()


def test_empty_tables_and_tables_without_columns():
    _, points = mixed(np.random.default_rng(7))
    none = points.take(np.s_[:0])
    assert weight_within(none, points, 1).shape == (0,)
    assert (weight_within(points, none, 1) == 0).all()
    bare = table(np.zeros((3, 0)), np.zeros((3, 0)), [])
    assert weight_within(bare, bare, 0).tolist() == [3, 3, 3]
