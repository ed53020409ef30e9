"""Gretel's points, grades and grid of attacks against naive twins."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privacy_assets import Policy, evaluate
from privacy_assets.metrics.membership_inference.gretel import (
    LEVELS,
    AttackGrid,
    grade,
    level_table,
    mean_points,
    protection_points,
)
from privacy_assets.metrics.policies import default_policy
from tests.metrics.given_tables import cut


def naive_points(members, others, thresholds, size, rng):
    """One row-wise attack per threshold on ``size`` rows a side, straight from the definition."""
    m = rng.choice(members, size, replace=False)
    o = rng.choice(others, size, replace=False)
    points = []
    for threshold in thresholds:
        hits, alarms = sum(x <= threshold for x in m), sum(x <= threshold for x in o)
        if hits + alarms < 50:
            points.append(math.nan)
            continue
        precision, accuracy = hits / (hits + alarms), (hits + (size - alarms)) / (2 * size)
        middle = (precision + accuracy) / 2
        points.append(100.0 if middle <= 0.5 else 0.0 if middle >= 0.8 else 100 * (0.8 - middle) / 0.3)
    return points


def naive_thresholds(distances, quantiles):
    ordered = sorted(distances)
    return [ordered[max(math.ceil(q * len(ordered) - 1e-9), 1) - 1] for q in quantiles]


def scores(n_members, n_others, seed, *, leak=0.2):
    g = np.random.default_rng(seed)
    members = np.where(g.random(n_members) < leak, 0.0, np.round(g.gamma(4, 1, n_members), 1))
    others = np.round(g.gamma(4, 1, n_others), 1)
    return members, others


def as_counts(grid, members, others):
    distances = np.concatenate([members, others])
    return grid.counts(distances, np.arange(len(distances))), np.arange(len(distances)) < len(members)


@pytest.mark.parametrize(
    ("precision", "accuracy", "points"),
    [(0.5, 0.5, 100), (0.2, 0.1, 100), (0.8, 0.8, 0), (1.0, 1.0, 0), (0.65, 0.65, 50), (0.9, 0.4, 50), (1.0, 0.6, 0),
     (math.nan, 0.5, math.nan)],
)  # fmt: skip
def test_points_are_linear_on_the_mean_of_precision_and_accuracy(precision, accuracy, points):
    found = protection_points(np.array([precision]), np.array([accuracy]))
    np.testing.assert_allclose(found, [points], atol=1e-12)


def test_grades_are_cut_at_20_40_60_80():
    points = [0, 19.999, 20, 39.9, 40, 60, 79.999, 80, 100, math.nan]
    levels = ["Poor"] * 2 + ["Moderate"] * 2 + ["Good"] + ["Very Good"] * 2 + ["Excellent"] * 2 + ["Unavailable"]
    assert [grade(one) for one in points] == levels


def test_levels_count_every_attack_once():
    table = level_table(np.array([0.0, 10.0, 50.0, 100.0, math.nan]))
    assert [row["level"] for row in table] == [*LEVELS, "Unavailable"]
    assert [row["attacks"] for row in table] == [2, 0, 1, 0, 1, 1]
    assert [row["share"] for row in table] == [0.4, 0.0, 0.2, 0.0, 0.2, 0.2]


@pytest.mark.parametrize("seed", [0, 1])
def test_an_attack_on_all_rows_is_the_naive_one(seed):
    grid = AttackGrid(sizes=(1.0,), samples=1)
    members, others = scores(700, 700, seed)
    counts, member = as_counts(grid, members, others)
    thresholds = naive_thresholds([*members, *others], grid.quantiles)
    naive = naive_points(members, others, thresholds, 700, np.random.default_rng(0))
    np.testing.assert_allclose(grid.points(counts, member, np.random.default_rng(1)), naive)


@pytest.mark.parametrize("sides", [(1200, 600), (600, 1200)])
def test_sampled_attacks_have_the_law_of_the_naive_ones(sides):
    grid = AttackGrid(sizes=(2 / 3,), samples=400)
    members, others = scores(*sides, seed=3)
    counts, member = as_counts(grid, members, others)
    ours = grid.points(counts, member, np.random.default_rng(0)).reshape(400, -1)
    g, thresholds = np.random.default_rng(1), naive_thresholds([*members, *others], grid.quantiles)
    naive = np.array([naive_points(members, others, thresholds, 400, g) for _ in range(200)])
    usable = ~np.isnan(naive).any(axis=0)
    assert usable.sum() >= 5
    spread = naive[:, usable].std(axis=0)
    np.testing.assert_allclose(ours[:, usable].mean(axis=0), naive[:, usable].mean(axis=0), atol=4 * spread.max() / 14)
    np.testing.assert_allclose(ours[:, usable].std(axis=0), spread, rtol=0.25, atol=0.2)


@pytest.mark.parametrize("sides", [(2000, 500), (500, 2000)])
def test_of_hundreds_of_attacks_copies_score_nothing_and_guessing_nearly_everything(sides):
    grid, g = AttackGrid(), np.random.default_rng(5)
    others = g.gamma(4, 1, sides[1])
    for members, low, high in ((np.zeros(sides[0]), 0, 10), (g.gamma(4, 1, sides[0]), 90, 100)):
        counts, member = as_counts(grid, members, others)
        points = grid.points(counts, member, g)
        assert points.size == 300 and low <= mean_points(points) <= high


def test_few_predicted_positives_leave_an_attack_unavailable():
    grid = AttackGrid()
    counts, member = as_counts(grid, *scores(8000, 40, 0))
    points = grid.points(counts, member, np.random.default_rng(0))
    assert np.isnan(points.reshape(3, 10, 10)[0]).all()  # a quarter of 40 rows per side: always below 50 positives
    for sides in ((8000, 20), (100, 0)):
        counts, member = as_counts(grid, *scores(*sides, 0))
        assert math.isnan(mean_points(grid.points(counts, member, np.random.default_rng(0))))


def test_counts_are_by_subject():
    grid = AttackGrid(quantiles=(0.25, 0.5))
    counts = grid.counts(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0, 1, 0, 1]))
    np.testing.assert_array_equal(counts.rows[counts.kind], [[1, 0, 1], [0, 1, 1]])


def test_the_bootstrap_draws_subjects_not_rows():
    grid, g = AttackGrid(samples=3), np.random.default_rng(0)
    members, others = g.gamma(4, 1, 150), g.gamma(4, 1, 150)
    distances = np.repeat(np.concatenate([members, others]), 4)
    by_subject = grid.counts(distances, np.repeat(np.arange(300), 4)), np.arange(300) < 150
    by_row = grid.counts(distances, np.arange(1200)), np.arange(1200) < 600
    wide, narrow = (grid.bootstrap(*x, 100, np.random.default_rng(1)).std() for x in (by_subject, by_row))
    assert wide > 1.4 * narrow


# ------------------------------------------------------------------------- the score of releases of known truth


def scored(train, holdout, synthetic):
    metrics = ["membership_inference", "attribute_inference"]
    policy = Policy(default_policy(metrics).limits, settings={name: {"n_permutations": 199} for name in metrics})
    known = {name: list(synthetic[name].dropna().unique()) for name in synthetic.select_dtypes(exclude="number")}
    report = evaluate(train, holdout, synthetic, policy=policy, allowed_values=known, embedder=False, device="cpu")
    return report.data_privacy_score


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(3000, 1000), pytest.param((1000, 3000), marks=pytest.mark.slow)])
def test_a_resampled_copy_gets_the_worst_grade_and_unseen_rows_the_best(adult, sizes):
    train, holdout, fresh = cut(adult, *sizes, 3000)
    copy = scored(train, holdout, train.sample(len(fresh), replace=True, random_state=0).reset_index(drop=True))
    assert (grade(copy["membership"]), copy["grade"]) == ("Poor", "Poor")
    assert copy["score"] < 60  # the attribute score cannot raise it
    honest = scored(train, holdout, fresh)
    assert (grade(honest["membership"]), grade(honest["attribute"]), honest["grade"]) == ("Excellent",) * 3
