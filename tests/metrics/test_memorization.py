"""Memorization against brute-force twins, and on releases of known truth."""

from __future__ import annotations

import itertools
import json
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from privacy_assets.distances.nearest import TIE, typical_radius
from privacy_assets.errors import InputError
from privacy_assets.metrics.memorization import (
    Memorization,
    RowMemorization,
    alpha_table,
    by_chance,
    clustered_share,
    tables_of,
)
from tests.metrics.given_tables import cut, given, leaky, mixed
from tests.metrics.given_tables import release as release_of
from tests.tables import metric_inputs

QUICK = Memorization(n_permutations=199)


def release(*sizes, **more):
    return release_of(*sizes, missing=0.1, **more)


def memorization_of(inputs, radius=None):
    tables = tables_of(inputs, "raw")
    radius = typical_radius(tables["train"], None, 0.02, "cpu") if radius is None else radius
    return RowMemorization.of(tables, radius, "cpu")


def distances(inputs, first, second):
    """All Euclidean distances of encoded rows, cell by cell."""
    one, other = inputs.encoded(first), inputs.encoded(second)
    out = (one.codes[:, None] != other.codes[None]).sum(axis=2).astype(float)
    for column in range(one.numeric.shape[1]):
        out += (
            np.subtract.outer(
                one.numeric[:, column].astype(float), other.numeric[:, column].astype(float)
            )
            ** 2
        )
    return np.sqrt(out)


def naive(inputs, radius):
    """Counts, alpha and ratios, row by row."""
    to_t, to_h, to_s = (
        distances(inputs, "synthetic", role) for role in ("train", "holdout", "synthetic")
    )
    rows = []
    for s in range(len(to_t)):
        others = [to_s[s, o] for o in range(len(to_s)) if o != s]
        t, g = (
            sum(d <= radius * (1 + TIE) for d in to_t[s]),
            sum(d <= radius * (1 + TIE) for d in others),
        )
        near, h = min(to_t[s]), sum(d <= radius * (1 + TIE) for d in to_h[s])
        quotients = [
            near / d if d > 0 else (math.inf if near > 0 else 1.0)
            for d in (min(others), min(to_h[s]))
        ]
        rows.append((t, h, g, (g + 0.5) / (t + 0.5), *quotients))
    return np.array(rows, dtype=float).T


# -----------------------------------------------------------------------------------------------
# twins


@pytest.mark.parametrize("radius", [None, 0.0, 1.0, 30.0])
@pytest.mark.parametrize("sizes", [(120, 40, 90), (40, 120, 150)])
def test_counts_alpha_and_ratios_are_the_naive_ones(radius, sizes):
    train, holdout, synthetic = release(*sizes, copies=12)
    synthetic = pd.concat([synthetic, synthetic.iloc[:3], holdout.iloc[:4]], ignore_index=True)
    found = memorization_of(inputs := given(train, holdout, synthetic), radius)
    if radius is None:  # the 2 % quantile of leave-one-out distances
        away = distances(inputs, "train", "train")
        np.fill_diagonal(away, np.inf)
        assert found.radius == pytest.approx(
            np.sort(away.min(axis=1))[math.ceil(0.02 * len(away)) - 1], abs=1e-12
        )
    t, h, g, alpha, by_synthetic, by_holdout = naive(inputs, found.radius)
    counted = [found.train, found.holdout, found.synthetic, found.alpha]
    np.testing.assert_array_equal(counted, [t, h, g, alpha])
    np.testing.assert_allclose(found.train_to_synthetic, by_synthetic)
    np.testing.assert_allclose(found.train_to_holdout, by_holdout)


def test_every_row_has_its_coefficient_outside_of_the_report():
    """Kuppa et al., abstract: a score "for each synthetic sample". Reports get none of them."""
    inputs = given(*release(120, 40, 90, copies=30))
    result = Memorization(n_permutations=199, radius=1.0).measure(inputs)
    t, h, g, alpha, by_synthetic, by_holdout = naive(inputs, 1.0)
    rows = pd.DataFrame(result.row_scores)
    expected = {"row": range(90), "alpha_m": alpha, "train": t, "holdout": h, "synthetic": g}
    for name, values in expected.items():
        np.testing.assert_array_equal(rows[name], values)
    with np.errstate(divide="ignore", invalid="ignore"):
        for other, ratios in (("to_synthetic", by_synthetic), ("to_holdout", by_holdout)):
            found = rows["to_train"] / rows[other]
            np.testing.assert_allclose(found[rows[other] > 0], ratios[rows[other] > 0], atol=1e-9)
    assert "rows" not in result.to_json() and "alpha_m" not in json.dumps(result.to_json()) + repr(
        result
    )


@pytest.mark.parametrize("seed", range(2))
def test_statistics_are_the_naive_ones(seed):
    """The reference band of the excess shuffles labels here, with counts computed here."""
    inputs = given(*release(160, 60, 130, seed=seed, copies=20), seed=seed)
    result = Memorization(n_permutations=1999).measure(inputs)
    radius = typical_radius(inputs.encoded("train"), None, 0.02, "cpu")
    t, h, g, alpha, *_ = naive(inputs, radius)
    assert result.estimate("exposed").value == pytest.approx((alpha < 1).mean())
    near = np.hstack(
        [distances(inputs, "synthetic", role) for role in ("train", "holdout")]
    ) <= radius * (1 + TIE)
    rows = (t + h) * 160 / 220 > g
    shares = near[rows] / near[rows].sum(axis=1, keepdims=True)

    def excess(labels):
        return ((shares @ labels).mean() - 160 / 220) / (60 / 220)

    rng, labels = np.random.default_rng(5), np.arange(220) < 160
    drawn = np.array([excess(rng.permutation(labels)) for _ in range(4000)])
    estimate = result.estimate("exposed_excess")
    assert (
        estimate.value == pytest.approx(excess(labels))
        and estimate.note == f"{rows.sum()} exposed rows"
    )
    half = np.quantile(np.abs(drawn - drawn.mean()), 0.995)
    assert estimate.value - estimate.low == pytest.approx(half, rel=0.15)
    assert estimate.high - estimate.value == pytest.approx(half, rel=0.15)


def test_chance_is_that_of_every_way_to_draw_the_training_rows():
    found = SimpleNamespace(synthetic=np.array([0.0, 0, 1, 2, 0]), real=np.array([0.0, 1, 3, 2, 2]))
    drawn = [set(pick) for pick in itertools.combinations(range(7), 4)]
    expected = np.mean([
        np.mean([sum(row in pick for row in range(int(real))) > others for pick in drawn])
        for others, real in zip(found.synthetic, found.real, strict=True)
    ])  # fmt: skip
    assert by_chance(found, 4, 3) == pytest.approx(expected)


def test_rows_of_one_cluster_are_one_witness():
    flags = np.repeat([True, False], [30, 170])
    alone, together = (
        clustered_share(flags, np.arange(200)),
        clustered_share(flags, np.arange(200) // 10),
    )
    assert together[0] < alone[0] < 0.15 < alone[1] < together[1]
    # Twenty clusters of equal rows count as twenty rows.
    np.testing.assert_allclose(together, clustered_share(flags[::10], np.arange(20)))
    for constant in (True, False):
        low, high = clustered_share(np.full(50, constant), np.zeros(50, dtype=int))
        assert low <= constant <= high and high - low > 0.05


def test_the_histogram_counts_every_row_once():
    alpha = np.array([0.1, 0.125, 0.2, 0.25, 1 / 3, 0.5, 0.99, 1, 1, 1.01, 2, 3, 4, 8, 8.1, 99])
    rows = {row["alpha"]: row["rows"] for row in alpha_table(alpha)}
    assert list(rows.values()) == [1, 2, 2, 2, 2, 2, 2, 1, 2]
    assert sum(row["share"] for row in alpha_table(alpha)) == pytest.approx(1)


# ------------------------------------------------------------------------------------------- known
# truths


def test_copies_stand_first_in_the_list():
    inputs = given(*release(600, 200, 600, copies=10))
    listed = QUICK.measure(inputs).tables["most_exposed"]
    copies = [row for row in listed if row["train_to_synthetic"] == 0]
    assert {row["row"] for row in copies} == set(range(10))
    assert all(row["alpha"] < 1 for row in listed) and len(listed) <= 20


@pytest.mark.slow
def test_fresh_rows_sit_at_the_null():
    outside, exposed = 0, []
    for seed in range(20):
        result = QUICK.measure(given(*release(500, 300, 500, seed=seed), seed=seed))
        one, excess = result.estimates
        exposed.append(one.value - one.null)
        outside += not excess.low <= 0 <= excess.high
    assert outside == 0  # at 99.5 %
    assert abs(np.mean(exposed)) < 4 * np.std(exposed) / math.sqrt(20)


def test_members_who_are_avoided_show_as_well():
    train, holdout, fresh = release(600, 600, 2000)
    inputs = given(train, holdout, fresh)
    away = memorization_of(inputs, 0.6).train == 0
    estimate = (
        Memorization(radius=0.6)
        .measure(given(train, holdout, fresh[away]))
        .estimate("exposed_excess")
    )
    assert estimate.high < -0.5


@pytest.mark.slow
def test_the_null_follows_the_sizes():
    """Plain counts overrate a short table; the null states by how much."""
    nulls = []
    for rows in (200, 3000):
        tables = [given(*release(800, 400, rows, seed=seed)) for seed in range(3)]
        found = [
            Memorization(quantile=0.4, n_permutations=199).measure(inputs).estimates[0]
            for inputs in tables
        ]
        assert abs(np.mean([estimate.value - estimate.null for estimate in found])) < 0.02
        nulls.append(np.mean([estimate.null for estimate in found]))
    assert nulls[0] > 1.2 * nulls[1]


def test_a_table_of_few_distinct_rows():
    g = np.random.default_rng(0)
    tables = [
        pd.DataFrame({"a": g.choice(list("xyz"), n), "b": g.random(n) < 0.5})
        for n in (900, 400, 800)
    ]
    result = QUICK.measure(given(*tables))
    assert result.estimate("exposed").note == "lambda 0"
    assert all(estimate.measurable for estimate in result.estimates)


def test_a_radius_that_holds_everything():
    train, holdout, synthetic = release(300, 100, 301)
    metric = Memorization(radius=1e6, n_permutations=199)
    long, short = (
        metric.measure(given(train, holdout, synthetic.iloc[:rows])) for rows in (301, 200)
    )
    assert long.estimate("exposed").value == 0  # 300 others are near every row, and 300 of train
    assert short.estimate("exposed").value == short.estimate("exposed").null == 1
    assert short.estimate("exposed_excess").value == pytest.approx(0)


def test_people_with_several_rows():
    """A person's own rows do not determine lambda and are not counted as several observations."""
    train, holdout, synthetic = release(200, 80, 200, copies=30)
    thrice = [pd.concat([table] * 3, ignore_index=True) for table in (train, holdout)]
    codes = {"train": np.tile(np.arange(200), 3), "holdout": np.tile(np.arange(200, 280), 3)}
    own = QUICK.measure(given(*thrice, synthetic, subjects=codes)).estimate("exposed")
    assert own.subjects == 200 and float(own.note.removeprefix("lambda ")) > 0
    alike = QUICK.measure(given(*thrice, synthetic)).estimate("exposed")
    assert alike.note == "lambda 0"  # equal rows count as one person, but determine lambda


# -------------------------------------------------------------------------------------------- small
# tables


@pytest.mark.parametrize("sizes", [(1, 5, 5), (5, 0, 5), (2, 1, 1), (2, 1, 2), (3, 1, 1)])
def test_two_training_rows_and_a_row_of_the_others_are_needed(sizes):
    result = QUICK.measure(given(*cut(mixed(20, 1), *sizes)))
    for estimate in result.estimates:
        assert estimate.measurable == (sizes[0] > 1 and sizes[1] > 0)
        assert estimate.measurable or "not measurable: two training rows" in estimate.note
        assert not estimate.measurable or estimate.low <= estimate.value <= estimate.high
    json.dumps(result.to_json(), allow_nan=False)


def test_no_row_near_is_no_exposed_row():
    train, holdout, synthetic = release(100, 50, 100)
    result = Memorization(radius=0.0).measure(given(train, holdout, synthetic))
    exposed, excess = result.estimates
    assert exposed.value == exposed.null == 0 and exposed.high < 0.1
    assert (excess.value, excess.low, excess.high) == (0, 0, 0)
    assert result.tables["most_exposed"] == []


# ------------------------------------------------------------------------------------------------
# settings


def test_the_embedding_is_asked_for_by_name():
    inputs = given(*release(100, 40, 100, copies=10))
    assert (
        "embedder" in Memorization(space="embedded").required_inputs
        and "embedder" not in Memorization().required_inputs
    )
    with pytest.raises(InputError, match="embedder"):
        Memorization(space="embedded").measure(inputs)
    encoder = inputs.derived.encoder
    dense = SimpleNamespace(embed=lambda table, device: encoder.transform(table).dense)
    embedded = metric_inputs(inputs.schema, inputs.tables, embedder=dense)
    one = Memorization(space="embedded", n_permutations=199).measure(embedded)
    other = QUICK.measure(inputs)  # the dense form has the same distances
    assert one.estimate("exposed").value == other.estimate("exposed").value
    assert one.estimate("exposed_excess").value == pytest.approx(
        other.estimate("exposed_excess").value
    )


# ----------------------------------------------------------------------------------------------
# acceptance


def test_planted_copies_are_told_apart(adult):
    train, holdout, fresh = cut(adult, 5000, 5000, 5000)
    found, copied = (
        memorization_of(given(train, holdout, leaky(train, fresh, 500))),
        np.arange(5000) < 500,
    )
    assert roc_auc_score(copied, -found.alpha) >= 0.97
    for ratios in (found.train_to_synthetic, found.train_to_holdout):
        assert roc_auc_score(copied, -np.minimum(ratios, 1e9)) >= 0.99
