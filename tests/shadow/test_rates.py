"""AUC, TPR at low FPR and epsilon bounds: brute force, coverage by simulation, mechanisms of known epsilon."""

from __future__ import annotations

from math import exp, isnan, log

import numpy as np
import pytest
from scipy import stats

from privacy_assets.shadow.rates import auc, choose_cut, epsilon_bound, tpr_at


def sides(inside, outside):
    scores = np.concatenate([inside, outside])
    return scores, np.arange(len(scores)) < len(inside)


@pytest.mark.parametrize("seed", range(6))
def test_auc_is_the_share_of_pairs_in_order_a_tie_counting_half(seed):
    g = np.random.default_rng(seed)
    inside, outside = g.integers(0, 6, g.integers(1, 40)) / 5, g.integers(0, 5, g.integers(1, 40)) / 5
    pairs = (inside[:, None] > outside).mean() + (inside[:, None] == outside).mean() / 2
    found = auc(*sides(inside, outside))
    assert found.value == pytest.approx(pairs) and found.low <= found.value <= found.high
    mirrored = auc(*sides(-inside, -outside))
    assert (mirrored.value, mirrored.low, mirrored.high) == pytest.approx((1 - pairs, 1 - found.high, 1 - found.low))


def normal(mean, sd, mixed=0.0):
    def draw(g, n):
        inside = np.where(g.random(n) < mixed, 99.0, g.normal(mean, sd, n))
        return inside, g.normal(0, 1, n)

    return draw


def tied(share):
    def draw(g, n):
        return (g.random(n) < share).astype(float), (g.random(n) < 1 - share).astype(float)

    return draw


LAWS = {
    "null": (normal(0, 1), 0.5),
    "normal": (normal(1.19, 1), stats.norm.cdf(1.19 / 2**0.5)),
    "near one": (normal(3.29, 1), stats.norm.cdf(3.29 / 2**0.5)),
    "wide": (normal(2, 3), stats.norm.cdf(2 / 10**0.5)),
    "mixed": (normal(0, 1, 0.6), 0.8),
    "mixed near one": (normal(0, 1, 0.98), 0.99),
    "tied": (tied(0.8), 0.8),
    "tied near one": (tied(0.99), 0.99),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("n", [20, 100])
def test_the_interval_of_the_auc_covers_the_truth(law, n):
    draw, truth = LAWS[law]
    g = np.random.default_rng(n)
    found = [auc(*sides(*draw(g, n))) for _ in range(400)]
    covered = np.mean([rate.low <= truth <= rate.high for rate in found])
    assert covered >= 0.92  # 400 repetitions of 0.95 have a deviation of 0.011


def test_extremes_keep_an_honest_interval():
    perfect = auc(*sides(np.ones(100), np.zeros(100)))
    assert perfect.value == perfect.high == 1 and 0.9 < perfect.low < 0.98
    constant = auc(*sides(np.zeros(100), np.zeros(100)))
    assert constant.value == 0.5 and constant.low < 0.42 and constant.high > 0.58
    assert isnan(auc(*sides(np.ones(3), np.ones(0))).value)
    single = auc(*sides(np.ones(1), np.zeros(1)))
    assert single.value == 1 and single.low < 0.3


# --- TPR at a low FPR -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_tpr_counts_members_above_all_but_the_allowed_others(seed):
    g = np.random.default_rng(seed)
    inside, outside = np.round(g.normal(1, 1, 150), 1), np.round(g.normal(0, 1, 200), 1)
    found = tpr_at(*sides(inside, outside), 0.05)
    threshold = min(t for t in np.unique(outside) if (outside > t).sum() <= 10)
    assert found.value == pytest.approx((inside > threshold).mean())
    assert found.low < found.value < found.high


def test_a_tpr_that_the_counts_do_not_allow_is_not_measurable():
    scores, labels = sides(np.ones(100), np.zeros(100))
    assert tpr_at(scores, labels, 0.05).value == 1
    found = tpr_at(scores, labels, 0.01)
    assert isnan(found.value) and isnan(found.low) and "1,000 test sets" in found.note
    assert not tpr_at(*sides(np.ones(500), np.zeros(500)), 0.01).note


def test_scores_that_all_agree_hit_nothing():
    assert tpr_at(*sides(np.ones(100), np.ones(100)), 0.1).value == 0


# --- epsilon ----------------------------------------------------------------------------------------------------------


def answers(g, epsilon, n):
    """Randomised response: the worst that a mechanism of this epsilon can be."""
    truth = g.random((2, n)) < exp(epsilon) / (1 + exp(epsilon))
    return truth[0].astype(float), 1 - truth[1].astype(float)


def laplace(g, epsilon, n):
    return 1 + g.laplace(0, 1 / epsilon, n), g.laplace(0, 1 / epsilon, n)


@pytest.mark.parametrize("mechanism", [answers, laplace])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_the_bound_stays_below_the_epsilon_of_a_known_mechanism(mechanism, epsilon):
    g, bounds = np.random.default_rng(7), []
    for _ in range(300):
        cut = choose_cut(*sides(*mechanism(g, epsilon, 300)), 200)
        bounds.append(epsilon_bound(*sides(*mechanism(g, epsilon, 100)), cut).value)
    assert np.mean(np.array(bounds) > epsilon) <= 0.05
    assert epsilon < 1 or np.median(bounds) > 0.35 * min(epsilon, 2.5)


def test_a_null_attack_hardly_ever_shows_an_epsilon():
    g, above = np.random.default_rng(8), 0
    for _ in range(300):
        cut = choose_cut(*sides(g.normal(size=300), g.normal(size=300)), 200)
        above += epsilon_bound(*sides(g.normal(size=100), g.normal(size=100)), cut).value > 0
    assert above <= 15


def test_the_bound_is_the_ratio_of_two_exact_bounds():
    scores, labels = sides(np.repeat([1.0, 0.0], [60, 40]), np.repeat([1.0, 0.0], [10, 90]))
    cut = choose_cut(scores, labels, 200)
    found = epsilon_bound(scores, labels, cut)
    tails = [
        log(stats.binomtest(right, 100).proportion_ci(0.95).low / stats.binomtest(wrong, 100).proportion_ci(0.95).high)
        for right, wrong in ((60, 10), (90, 40))
    ]
    assert found.value == pytest.approx(max(tails)) and (found.right, found.wrong) == (60, 10)
    assert cut.inside and cut.score == 0.5


def test_the_other_direction_is_tried_as_well():
    scores, labels = sides(np.repeat([1.0, 0.0], [95, 5]), np.repeat([1.0, 0.0], [50, 50]))
    cut = choose_cut(scores, labels, 200)
    found = epsilon_bound(scores, labels, cut)
    assert not cut.inside and cut.score == 0.5 and (found.right, found.wrong) == (50, 5)
    assert found.value > 1


def test_certainty_shows_the_largest_epsilon_of_these_counts():
    scores, labels = sides(np.ones(100), np.zeros(100))
    found = epsilon_bound(scores, labels, choose_cut(scores, labels, 200))
    tail = 0.025 ** (1 / 100)
    assert found.value == found.certifiable == pytest.approx(log(tail / (1 - tail)))
    stricter = epsilon_bound(scores, labels, choose_cut(scores, labels, 200), 0.995)
    assert 0 < stricter.value < found.value


def test_an_attack_that_is_always_wrong_shows_it_only_when_turned_round_beforehand():
    scores, labels = sides(np.zeros(100), np.ones(100))
    right_way = choose_cut(*sides(np.ones(100), np.zeros(100)), 200)
    assert epsilon_bound(scores, labels, right_way).value == 0


@pytest.mark.parametrize("unseen", [np.full(6, np.nan), np.array([1.0, 1, 1, np.nan, np.nan, np.nan]), np.zeros(0)])
def test_without_unseen_scores_on_both_sides_nothing_is_claimed(unseen):
    labels = np.arange(len(unseen)) < 3
    assert choose_cut(unseen, labels, 200) is None
    assert epsilon_bound(*sides(np.ones(100), np.zeros(100)), None).value == 0


def test_the_cut_promises_the_most_of_all():
    g = np.random.default_rng(5)
    scores, labels = sides(np.round(g.normal(0.8, 1, 90), 1), np.round(g.normal(0, 1, 90), 1))
    cut = choose_cut(scores, labels, 180)
    best = epsilon_bound(scores, labels, cut).value
    for score in np.unique(scores):
        for inside in (True, False):
            other = epsilon_bound(scores, labels, type(cut)(score, inside)).value
            assert other <= best + 1e-9
