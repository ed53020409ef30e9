"""AUC, TPR at low FPR and epsilon bounds: brute force, coverage by simulation, mechanisms of known
epsilon.
"""

from __future__ import annotations

from math import exp, isnan, log

import numpy as np
import pytest
from scipy import stats

from privacy_assets.studies.shadow_membership.rates import (
    Cut,
    auc,
    choose_cut,
    epsilon_bound,
    tpr_at,
)


def sides(inside, outside):
    scores = np.concatenate([inside, outside])
    return scores, np.arange(len(scores)) < len(inside)


@pytest.mark.parametrize("seed", range(6))
def test_auc_is_the_share_of_pairs_in_order_a_tie_counting_half(seed):
    g = np.random.default_rng(seed)
    inside, outside = (
        g.integers(0, 6, g.integers(1, 40)) / 5,
        g.integers(0, 5, g.integers(1, 40)) / 5,
    )
    pairs = (inside[:, None] > outside).mean() + (inside[:, None] == outside).mean() / 2
    found = auc(*sides(inside, outside))
    assert found.value == pytest.approx(pairs) and found.low <= found.value <= found.high
    mirrored = auc(*sides(-inside, -outside))
    assert (mirrored.value, mirrored.low, mirrored.high) == pytest.approx(
        (1 - pairs, 1 - found.high, 1 - found.low)
    )


def normal(mean, sd, mixed=0.0):
    return lambda g, n: (
        np.where(g.random(n) < mixed, 99.0, g.normal(mean, sd, n)),
        g.normal(0, 1, n),
    )


def tied(share):
    return lambda g, n: (
        (g.random(n) < share).astype(float),
        (g.random(n) < 1 - share).astype(float),
    )


LAWS = {
    "null": (normal(0, 1), 0.5),
    "near one": (normal(3.29, 1), stats.norm.cdf(3.29 / 2**0.5)),
    "wide": (normal(2, 3), stats.norm.cdf(2 / 10**0.5)),
    "mixed": (normal(0, 1, 0.6), 0.8),
    "tied": (tied(0.8), 0.8),
    "tied near one": (tied(0.99), 0.99),
}


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("n", [20, 100])
def test_the_interval_of_the_auc_covers_the_truth(law, n):
    draw, truth = LAWS[law]
    g = np.random.default_rng(n)
    found = [auc(*sides(*draw(g, n))) for _ in range(400)]
    # 0.95 has a deviation of 0.011
    assert np.mean([rate.low <= truth <= rate.high for rate in found]) >= 0.92


def test_extremes_keep_an_honest_interval():
    perfect = auc(*sides(np.ones(100), np.zeros(100)))
    assert perfect.value == perfect.high == 1 and 0.9 < perfect.low < 0.98
    constant = auc(*sides(np.zeros(100), np.zeros(100)))
    assert constant.value == 0.5 and constant.low < 0.42 and constant.high > 0.58
    assert isnan(auc(*sides(np.ones(3), np.ones(0))).value)
    single = auc(*sides(np.ones(1), np.zeros(1)))
    assert single.value == 1 and single.low < 0.3


# --- TPR at a low FPR
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_tpr_counts_members_above_all_but_the_allowed_others(seed):
    g = np.random.default_rng(seed)
    inside, outside = np.round(g.normal(1, 1, 150), 1), np.round(g.normal(0, 1, 200), 1)
    found = tpr_at(*sides(inside, outside), 0.05)
    threshold = min(t for t in np.unique(outside) if (outside > t).sum() <= 10)
    assert found.value == pytest.approx((inside > threshold).mean())
    assert found.low < found.value < found.high


def test_a_tpr_that_the_counts_do_not_allow_is_not_measurable():
    apart = sides(np.ones(100), np.zeros(100))
    assert (
        tpr_at(*apart, 0.05).value == 1
        and tpr_at(*sides(np.ones(100), np.ones(100)), 0.1).value == 0
    )
    found = tpr_at(*apart, 0.01)
    assert isnan(found.value) and isnan(found.low) and "1,000 test sets" in found.note
    assert not tpr_at(*sides(np.ones(500), np.zeros(500)), 0.01).note


# --- epsilon
# --------------------------------------------------------------------------------------------------


def answers(g, epsilon, n):
    """Randomized response: the worst mechanism of this epsilon."""
    truth = g.random((2, n)) < exp(epsilon) / (1 + exp(epsilon))
    return truth[0].astype(float), 1 - truth[1].astype(float)


def laplace(g, epsilon, n):
    return 1 + g.laplace(0, 1 / epsilon, n), g.laplace(0, 1 / epsilon, n)


def nothing(g, epsilon, n):
    return g.normal(size=n), g.normal(size=n)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "epsilon"),
    [
        (nothing, 0.0),
        (answers, 0.3),
        (answers, 1.0),
        (answers, 3.0),
        (laplace, 0.3),
        (laplace, 1.0),
        (laplace, 3.0),
    ],
)
def test_the_bound_stays_below_the_epsilon_of_a_known_mechanism(mechanism, epsilon):
    g, bounds = np.random.default_rng(7), []
    for _ in range(200):
        cut = choose_cut(*sides(*mechanism(g, epsilon, 200)), 200)
        bounds.append(epsilon_bound(*sides(*mechanism(g, epsilon, 100)), cut).value)
    assert np.mean(np.array(bounds) > epsilon) <= 0.05
    assert epsilon < 1 or np.median(bounds) > 0.35 * min(epsilon, 2.5)


@pytest.mark.parametrize(
    ("ones_inside", "ones_outside", "inside", "right", "wrong"),
    [(60, 10, True, 60, 10), (95, 50, False, 50, 5)],
)
def test_the_bound_is_the_ratio_of_two_exact_bounds_in_the_better_direction(
    ones_inside, ones_outside, inside, right, wrong
):
    scores, labels = sides(np.arange(100) < ones_inside, np.arange(100) < ones_outside)
    cut = choose_cut(scores.astype(float), labels, 200)
    found = epsilon_bound(scores, labels, cut)
    assert (cut.inside, cut.score, found.right, found.wrong) == (inside, 0.5, right, wrong)
    exact = [stats.binomtest(count, 100).proportion_ci(0.95) for count in (right, wrong)]
    assert found.value == pytest.approx(log(exact[0].low / exact[1].high))


def test_certainty_shows_the_largest_epsilon_of_these_counts_and_error_none():
    scores, labels = sides(np.ones(100), np.zeros(100))
    cut, tail = choose_cut(scores, labels, 200), 0.025 ** (1 / 100)
    found = epsilon_bound(scores, labels, cut)
    assert found.value == found.certifiable == pytest.approx(log(tail / (1 - tail)))
    assert 0 < epsilon_bound(scores, labels, cut, 0.995).value < found.value
    assert epsilon_bound(1 - scores, labels, cut).value == 0, "an attack is not inverted afterwards"
    assert epsilon_bound(scores, labels, None).value == 0


@pytest.mark.parametrize(
    "unseen", [np.full(6, np.nan), np.array([1.0, 1, 1, np.nan, np.nan, np.nan]), np.zeros(0)]
)
def test_without_unseen_scores_on_both_sides_nothing_is_claimed(unseen):
    assert choose_cut(unseen, np.arange(len(unseen)) < 3, 200) is None


def test_the_cut_promises_the_most_of_all():
    g = np.random.default_rng(5)
    scores, labels = sides(np.round(g.normal(0.8, 1, 90), 1), np.round(g.normal(0, 1, 90), 1))
    best = epsilon_bound(scores, labels, choose_cut(scores, labels, 180)).value
    others = [Cut(score, inside) for score in np.unique(scores) for inside in (True, False)]
    assert max(epsilon_bound(scores, labels, other).value for other in others) <= best + 1e-9
