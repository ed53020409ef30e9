"""Spherelets against plain numpy on the dense form, and geometry whose answer is known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from privacy_assets.distances.mixed_tree import MixedTree
from privacy_assets.distances.nearest import distinct_encoded
from privacy_assets.metrics.memorization import Memorization, tables_of
from privacy_assets.studies.spherelets import SphereletMemorization
from privacy_assets.studies.spherelets.distances import (
    Spherelets,
    divergences,
    spherelet_near,
    spherelet_radius,
    spheres_of,
)
from privacy_assets.tables.encoding import EncodedTable
from tests.distances.encoded_tables import (
    categories_only,
    copies,
    mixed,
    numbers_only,
    squared,
    table,
)
from tests.metrics.given_tables import given
from tests.metrics.test_memorization import memorization_of, release

CASES = pytest.mark.parametrize(
    "case", [mixed, numbers_only, categories_only, copies], ids=lambda c: c.__name__
)


def sphere(points, dimension):
    """Center, radius and error by the textbook, in all dimensions."""
    mean = points.mean(axis=0)
    _, singular, axes = np.linalg.svd(points - mean, full_matrices=False)
    axes = axes[: dimension + 1][
        singular[: dimension + 1] ** 2 > 1e-9 * max(singular[0] ** 2, 1e-300)
    ]
    flat = (points - mean) @ axes.T
    if len(axes):
        # |y|^2 = 2 c y + constant, by least squares
        system = np.column_stack([2 * flat, np.ones(len(flat))])
        center = np.linalg.lstsq(system, (flat**2).sum(axis=1), rcond=None)[0][:-1]
        mean = mean + center @ axes
    away = np.linalg.norm(points - mean, axis=1)
    return mean, away.mean(), ((away - away.mean()) ** 2).mean()


def definite(points, dimension):
    """Whether no two equal variances are on both sides of the principal subspace's boundary."""
    spread = np.append(
        np.linalg.svd(points - points.mean(axis=0), compute_uv=False) ** 2, np.zeros(9)
    )
    return spread[dimension] == 0 or spread[dimension] - spread[dimension + 1] > 1e-4 * spread[0]


def naive(one, other, dimension):
    """d_R of two sets of points."""
    (c1, r1, e1), (c2, r2, e2) = sphere(one, dimension), sphere(other, dimension)
    cross = ((np.linalg.norm(one - c2, axis=1) - r2) ** 2).mean() - e1
    back = ((np.linalg.norm(other - c1, axis=1) - r1) ** 2).mean() - e2
    return math.sqrt((max(cross, 0) + max(back, 0)) / 2)


def dense(rows):
    return rows.dense.astype(np.float64)


@CASES
@pytest.mark.parametrize("dimension", [1, 2])
def test_divergences_are_those_of_plain_numpy(case, dimension):
    queries, train = case(np.random.default_rng(0))
    queries = queries.take(np.s_[:40])
    one, other = (Spherelets.fit(rows, train, 8, dimension) for rows in (queries, train))
    g = np.random.default_rng(1)
    pairs = np.column_stack([g.integers(0, len(part.unique), 60) for part in (one, other)])
    found = divergences(one, other, train, pairs)
    points, compared = dense(train), 0
    for (a, b), value in zip(pairs, found, strict=True):
        first, second = points[one.rows[a]], points[other.rows[b]]
        if definite(first, dimension) and definite(second, dimension):
            compared += 1
            assert value == pytest.approx(naive(first, second, dimension), abs=2e-4)
    assert compared >= 5


@CASES
def test_pairs_within_a_radius_are_all_of_them(case):
    queries, points = case(np.random.default_rng(2))
    points, _ = distinct_encoded(points)
    away = np.sqrt(squared(queries, points))
    for most in (1, 50, 10**6):
        parts = list(MixedTree.build(points).pairs(queries, 1.4, most))
        asked, rows, distances = (np.concatenate(part) for part in zip(*parts, strict=True))
        expected = {(int(a), int(b)) for a, b in np.argwhere(away <= 1.4)}
        assert {(int(a), int(b)) for a, b in zip(asked, rows, strict=True)} == expected and len(
            asked
        ) == len(expected)
        np.testing.assert_array_equal(distances, away[asked, rows])
        assert most > 1 or max(len(part[0]) for part in parts) == (away <= 1.4).sum(axis=1).max()


@CASES
def test_counts_are_those_of_every_pair(case):
    queries, train = case(np.random.default_rng(3))
    queries, train = queries.take(np.s_[:30]), train.take(np.s_[:120])
    twice = EncodedTable.stack([train, train.take(np.s_[:20])])
    one, other = Spherelets.fit(queries, twice, 6, 2), Spherelets.fit(twice, twice, 6, 2)
    away = np.sqrt(squared(queries, twice))
    everything = np.stack(np.meshgrid(one.codes, other.codes, indexing="ij"), axis=2).reshape(-1, 2)
    whole = away + divergences(one, other, twice, everything).reshape(away.shape)
    for radius in np.quantile(whole, (0.02, 0.3)) + 1e-9:
        np.testing.assert_array_equal(
            spherelet_near(one, other, twice, radius), (whole <= radius).sum(axis=1)
        )


def test_the_radius_is_the_quantile_of_the_nearest_by_spherelets():
    train = numbers_only(np.random.default_rng(4))[1].take(np.s_[:80])
    own = Spherelets.fit(train, train, 10, 2)
    away = np.sqrt(squared(train, train))
    everything = np.stack(np.meshgrid(own.codes, own.codes, indexing="ij"), axis=2).reshape(-1, 2)
    whole = away + divergences(own, own, train, everything).reshape(away.shape)
    np.fill_diagonal(whole, np.inf)
    exact = np.sort(whole.min(axis=1))
    for quantile in (0.02, 0.1):  # the ten nearest by distance hold the nearest by spherelets
        assert spherelet_radius(own, train, None, quantile) == pytest.approx(
            exact[math.ceil(80 * quantile) - 1]
        )
    people = np.arange(80) // 2
    whole[people[:, None] == people] = np.inf
    other = np.sort(whole.min(axis=1))
    assert spherelet_radius(own, train, people, 0.05) == pytest.approx(other[3])


def test_points_of_a_sphere_have_its_center_and_no_error():
    g = np.random.default_rng(5)
    around = g.normal(size=(30, 3))
    points = 2.5 * around / np.linalg.norm(around, axis=1, keepdims=True) + [1, -4, 2]
    points = np.column_stack([points, np.zeros((30, 2))])
    apart = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    weights, spheres = spheres_of(apart[None], 2)
    np.testing.assert_allclose(weights[0] @ points, [1, -4, 2, 0, 0], atol=1e-9)
    assert spheres[0, 1] == pytest.approx(2.5) and spheres[0, 2] == pytest.approx(0, abs=1e-12)


def test_equal_neighborhoods_do_not_diverge_and_bent_ones_do():
    angles = np.linspace(0, np.pi, 200)
    circle = np.column_stack([np.cos(angles), np.sin(angles), np.zeros(200)])
    line = np.column_stack([np.linspace(5, 8, 200), np.zeros((200, 2))])
    train = EncodedTable.of_numbers(np.concatenate([circle, line]))
    found = Spherelets.fit(train, train, 12, 1)
    where = found.codes[[50, 52, 250, 252]]
    pairs = np.array(
        [[where[0], where[0]], [where[0], where[1]], [where[0], where[2]], [where[2], where[3]]]
    )
    same, beside, bent, straight = divergences(found, found, train, pairs)
    assert same == 0 and beside < 1e-3 and straight < 0.05 and bent > 1


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_and_equal_rows_have_spheres(n):
    train = EncodedTable.of_numbers(np.zeros((n, 2)))
    found = Spherelets.fit(train, train, 20, 2)
    assert np.isfinite(found.weights).all() and found.spheres.tolist() == [[0, 0, 0]]
    assert spherelet_near(found, found, train, 0.0).tolist() == [n] * n


def test_order_of_rows_does_not_matter():
    g = np.random.default_rng(6)
    queries, train = mixed(g)
    by_query, by_row = g.permutation(len(queries)), g.permutation(len(train))
    counts = []
    for asked, rows in ((queries, train), (queries.take(by_query), train.take(by_row))):
        one, other = Spherelets.fit(asked, rows, 8, 2), Spherelets.fit(rows, rows, 8, 2)
        counts.append(spherelet_near(one, other, rows, 1.6))
    np.testing.assert_array_equal(counts[1], counts[0][by_query])


def test_columns_of_many_categories_need_no_dense_form(monkeypatch):
    g = np.random.default_rng(7)
    train = table(g.normal(size=(300, 2)), g.permutation(300)[:, None], [301])
    monkeypatch.setattr(
        EncodedTable, "dense", property(lambda self: pytest.fail("the dense form was made"))
    )
    found = Spherelets.fit(train, train, 10, 2)
    assert (spherelet_near(found, found, train, 1e-6) == 1).all()


@pytest.mark.slow
def test_spherelets_count_no_more_than_euclid_does_and_find_copies():
    inputs = given(*release(600, 200, 600, copies=60))
    euclid, bent = (
        kind(n_permutations=199).measure(inputs) for kind in (Memorization, SphereletMemorization)
    )
    assert bent.estimate("exposed_excess") == euclid.estimate("exposed_excess")
    assert math.isnan(bent.estimate("exposed").null) and bent.estimate("exposed").measurable
    tables = tables_of(inputs, "raw")
    plain = memorization_of(inputs)
    same = SphereletMemorization(radius=plain.radius).for_alpha(plain, tables, None, "cpu")
    assert (same.train <= plain.train).all() and (same.synthetic <= plain.synthetic).all()
    assert (same.train[:60] >= 1).all()  # a copy has the spherelet of its original
    found = SphereletMemorization().for_alpha(plain, tables, None, "cpu")
    assert found.radius >= plain.radius
    assert roc_auc_score(np.arange(600) < 60, -found.alpha) > 0.95
    json.dumps(bent.to_json(), allow_nan=False)
