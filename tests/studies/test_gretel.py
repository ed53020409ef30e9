"""Gretel's points, grades and grid of attacks against naive twins."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from privacy_assets import Policy, evaluate
from privacy_assets.infra.settings import settings_of
from privacy_assets.metrics.membership_inference.scores import build_population
from privacy_assets.metrics.policies import default_policy
from privacy_assets.stats import inference
from privacy_assets.studies.data_privacy import DataPrivacy
from privacy_assets.studies.data_privacy.grades import LEVELS, data_privacy_score, grade
from privacy_assets.studies.data_privacy.membership import (
    AttackGrid,
    attack_grades,
    level_table,
    mean_points,
    protect,
    protection_points,
)
from tests.metrics.given_tables import cut, given
from tests.metrics.surveys import parts


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
        points.append(
            100.0 if middle <= 0.5 else 0.0 if middle >= 0.8 else 100 * (0.8 - middle) / 0.3
        )
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
    return grid.counts(distances, np.arange(len(distances))), np.arange(len(distances)) < len(
        members
    )


@pytest.mark.parametrize(
    ("precision", "accuracy", "points"),
    [
        (0.5, 0.5, 100),
        (0.2, 0.1, 100),
        (0.8, 0.8, 0),
        (1.0, 1.0, 0),
        (0.65, 0.65, 50),
        (0.9, 0.4, 50),
        (1.0, 0.6, 0),
        (math.nan, 0.5, math.nan),
    ],
)
def test_points_are_linear_on_the_mean_of_precision_and_accuracy(precision, accuracy, points):
    found = protection_points(np.array([precision]), np.array([accuracy]))
    np.testing.assert_allclose(found, [points], atol=1e-12)


def test_grades_are_cut_at_20_40_60_80():
    points = [0, 19.999, 20, 39.9, 40, 60, 79.999, 80, 100, math.nan]
    levels = (
        ["Poor"] * 2
        + ["Moderate"] * 2
        + ["Good"]
        + ["Very Good"] * 2
        + ["Excellent"] * 2
        + ["Unavailable"]
    )
    assert [grade(one) for one in points] == levels


# Precision, accuracy, and the grade by the paper and by default (significant above an accuracy of
# 0.53).
ATTACKS = [
    (0.45, 0.49, "Excellent", "Excellent"),
    (0.5, 0.5, "Very Good", "Excellent"),
    (0.58, 0.52, "Very Good", "Excellent"),
    (0.58, 0.54, "Very Good", "Very Good"),
    (0.55, 0.55, "Very Good", "Very Good"),
    (0.7, 0.51, "Good", "Excellent"),
    (0.7, 0.6, "Good", "Good"),
    (0.75, 0.79, "Moderate", "Moderate"),
    (0.95, 0.6, "Moderate", "Moderate"),
    (0.79, 1.0, "Moderate", "Moderate"),
    (0.8, 0.8, "Poor", "Poor"),
    (1.0, 0.9, "Poor", "Poor"),
    (math.nan, 0.5, "Unavailable", "Unavailable"),
]


def test_one_attack_is_graded_by_precision_and_accuracy():
    precision, accuracy = np.array(ATTACKS)[:, :2].astype(float).T
    assert attack_grades(precision, accuracy).tolist() == [row[2] for row in ATTACKS]
    assert attack_grades(precision, accuracy, np.full(len(ATTACKS), 0.53)).tolist() == [
        row[3] for row in ATTACKS
    ]
    few = attack_grades(np.array([0.85, 0.79]), np.array([0.8, 0.85]), np.array([0.9, 0.9]))
    assert few.tolist() == ["Poor", "Excellent"], (
        "few people: an accuracy of 0.9 is not significant"
    )


@pytest.mark.parametrize("n", [200, 1500])
def test_significance_is_that_of_the_hypergeometric_test(n):
    """An attack on all rows of equal sides has a fixed number of positives, of which a random half
    are members.
    """
    grid = AttackGrid(sizes=(1.0,), samples=3)
    counts, member = as_counts(
        grid, *(np.random.default_rng(side).gamma(4, 1, n) for side in (0, 1))
    )
    found = grid.chance(counts, member, 4999, np.random.default_rng(2)).reshape(3, -1)
    assert (found == found[0]).all(), "one threshold for all samples"
    positives = np.ceil(np.array(grid.quantiles) * 2 * n - 1e-9)
    exact = 0.5 + (2 * stats.hypergeom.ppf(0.95, 2 * n, n, positives) - positives) / (2 * n)
    np.testing.assert_allclose(found[0], exact, atol=1.01 / n)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 4])
def test_without_a_leak_one_attack_in_twenty_is_not_excellent(rows):
    """Also with several equal rows per person, where a test by row would find half of the attacks
    significant.
    """
    grid, g, shares, paper = AttackGrid(samples=1), np.random.default_rng(0), [], []
    for _ in range(20):
        counts = grid.counts(np.repeat(g.gamma(4, 1, 1200), rows), np.repeat(np.arange(1200), rows))
        member = np.arange(1200) < 700
        rates = grid.attacks(counts, member, g)
        usable = ~np.isnan(rates[0])
        shares.append(
            np.mean(
                attack_grades(*rates, grid.chance(counts, member, 199, g))[usable] == "Excellent"
            )
        )
        paper.append(np.mean(attack_grades(*rates)[usable] == "Excellent"))
    assert np.mean(shares) == pytest.approx(0.95, abs=0.04)
    assert np.mean(paper) == pytest.approx(0.5, abs=0.12)


def test_levels_count_every_attack_once():
    table = level_table(np.array(["Poor", "Poor", "Good", "Excellent", "Unavailable"]))
    assert [row["level"] for row in table] == [*LEVELS, "Unavailable"]
    assert [row["attacks"] for row in table] == [2, 0, 1, 0, 1, 1]
    assert [row["share"] for row in table] == [0.4, 0.0, 0.2, 0.0, 0.2, 0.2]
    assert [row["share"] for row in level_table(np.array([]))] == [0.0] * 6


def test_the_rule_for_excellent_changes_no_number(monkeypatch):
    # slow, and not the subject
    monkeypatch.setattr(inference, "bootstrap", lambda *_: (0.0, 100.0, math.nan))
    train, holdout, fresh = parts((500, 400, 500), 3)
    shares = {}
    for name, synthetic in (("fresh", fresh), ("copy", train)):
        population = build_population(given(train, holdout, synthetic))
        spec = DataPrivacy.statistic("membership_protection_score")
        found = [
            protect(spec, population, n, *map(np.random.default_rng, (0, 1))) for n in (199, None)
        ]
        assert found[0][0].value == found[1][0].value
        for rule, (_, levels) in zip(("default", "paper"), found, strict=True):
            shares[name, rule] = {row["level"]: row["share"] for row in levels}
    assert shares["fresh", "default"]["Excellent"] > 0.5 > shares["fresh", "paper"]["Excellent"]
    for rule in ("default", "paper"):
        assert shares["copy", rule]["Excellent"] == 0 and shares["copy", rule]["Poor"] > 0.2
    settings = {setting.name: setting for setting in settings_of(DataPrivacy)}
    assert (
        settings["excellent"].default == "not_significant"
        and "below_half" in settings["excellent"].domain
    )


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
    np.testing.assert_allclose(
        ours[:, usable].mean(axis=0), naive[:, usable].mean(axis=0), atol=4 * spread.max() / 14
    )
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
    # a quarter of 40 rows per side: always below 50 positives
    assert np.isnan(points.reshape(3, 10, 10)[0]).all()
    for sides in ((8000, 20), (100, 0)):
        counts, member = as_counts(grid, *scores(*sides, 0))
        assert math.isnan(mean_points(grid.points(counts, member, np.random.default_rng(0))))


def test_counts_are_by_subject():
    grid = AttackGrid(quantiles=(0.25, 0.5))
    counts = grid.counts(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0, 1, 0, 1]))
    np.testing.assert_array_equal(counts.distinct[counts.kind], [[1, 0, 1], [0, 1, 1]])


def test_the_bootstrap_draws_subjects_not_rows():
    grid, g = AttackGrid(samples=3), np.random.default_rng(0)
    members, others = g.gamma(4, 1, 150), g.gamma(4, 1, 150)
    distances = np.repeat(np.concatenate([members, others]), 4)
    by_subject = grid.counts(distances, np.repeat(np.arange(300), 4)), np.arange(300) < 150
    by_row = grid.counts(distances, np.arange(1200)), np.arange(1200) < 600
    wide, narrow = (
        grid.bootstrap(*x, 100, np.random.default_rng(1)).std() for x in (by_subject, by_row)
    )
    assert wide > 1.4 * narrow


# ------------------------------------------------------------------------- the score of releases of
# known truth


def test_the_score_is_graded_by_its_worse_component() -> None:
    assert data_privacy_score(90, 50) == (70, "Good")
    assert data_privacy_score(100, 80) == (90, "Excellent")
    assert data_privacy_score(10, 95)[1] == "Poor"
    assert (
        math.isnan(data_privacy_score(math.nan, 90)[0])
        and data_privacy_score(90, math.nan)[1] == "Unavailable"
    )


def scored(train, holdout, synthetic):
    metrics = ["membership_inference", "attribute_inference"]
    policy = Policy(
        default_policy(metrics).limits, settings={name: {"n_permutations": 199} for name in metrics}
    )
    known = {
        name: list(synthetic[name].dropna().unique())
        for name in synthetic.select_dtypes(exclude="number")
    }
    report = evaluate(
        train,
        holdout,
        synthetic,
        policy=policy,
        metrics=[*metrics, "data_privacy"],
        allowed_values=known,
        embedder=False,
        device="cpu",
    )
    return report.scores


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [(3000, 1000), pytest.param((1000, 3000), marks=pytest.mark.weekly)]
)
def test_a_resampled_copy_gets_the_worst_grade_and_unseen_rows_the_best(adult, sizes):
    train, holdout, fresh = cut(adult, *sizes, 3000)
    copy = scored(
        train,
        holdout,
        train.sample(len(fresh), replace=True, random_state=0).reset_index(drop=True),
    )
    parts = ("membership inference protection", "attribute inference protection")
    assert (copy[parts[0]].grade, copy["Data Privacy Score"].grade) == ("Poor", "Poor")
    assert copy["Data Privacy Score"].value < 60  # the attribute score cannot raise it
    honest = scored(train, holdout, fresh)
    assert {honest[name].grade for name in (*parts, "Data Privacy Score")} == {"Excellent"}
