"""Epsilon of one run: the published p-value, generators of known epsilon, and pairs without
evidence.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from privacy_assets.metrics.membership_inference.no_box import SCORE, epsilon_one_run, lower_bound
from privacy_assets.metrics.membership_inference.scores import Population


def population(score, member, codes=None):
    codes = np.arange(len(member)) if codes is None else codes
    return Population(
        codes, member, {SCORE: np.asarray(score, dtype=float)}, np.ones(len(codes)), member
    )


def bound(score, member, codes=None, seed=0):
    return epsilon_one_run(population(score, member, codes), np.random.default_rng(seed))


def members(subjects, inside, seed=0):
    return np.random.default_rng(seed).permutation(subjects) < inside


@pytest.mark.parametrize(("right", "guesses"), [(20, 20), (95, 100), (60, 100), (400, 500)])
def test_the_bound_is_where_the_published_p_value_is_five_percent(right, guesses):
    epsilon = lower_bound(right, guesses)
    # Steinke et al. at delta = 0
    chance = stats.binom.sf(right - 1, guesses, 1 / (1 + math.exp(-epsilon)))
    assert epsilon > 0 and chance == pytest.approx(0.05, abs=1e-9)
    assert lower_bound(guesses // 2, guesses) == lower_bound(0, 0) == 0  # never negative


@pytest.mark.parametrize("inside", [200, 1800])
def test_a_blind_score_shows_nothing_at_any_sizes(inside):
    """Where nine in ten are members, the guess "member" would be right nine times in ten."""
    shown = []
    for seed in range(300):
        g = np.random.default_rng(seed)
        shown.append(bound(g.random(2000), g.permutation(2000) < inside, seed=seed).value > 0)
    assert np.mean(shown) <= 0.09  # at most 5 % expected, 99.5 % of the time at most 8.7 %


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_bound_stays_below_the_epsilon_of_a_private_release(epsilon):
    """Randomized response reports each person's side: epsilon bounds the odds ratio when a person
    is replaced.
    """
    q, found = 1 / (1 + math.exp(-epsilon / 2)), []
    for seed in range(200):
        g = np.random.default_rng(seed)
        member = g.permutation(4000) < 3000
        # replacing a person changes two people's answers
        told = np.where(g.random(4000) < q, member, ~member)
        found.append(bound(np.where(told, 0.0, 1.0), member, seed=seed).value)
    assert np.mean(np.array(found) > epsilon) <= 0.1  # 5 % expected
    assert np.mean(found) > epsilon / 6  # of 50 guesses


def test_a_leak_of_everybody_shows_what_the_counts_can():
    member = members(4000, 3000)
    estimate = bound(np.where(member, 0.0, 1 + np.random.default_rng(0).random(4000)), member)
    assert (estimate.n, estimate.subjects) == (50, 2000)
    assert estimate.value == estimate.low == estimate.high == lower_bound(50, 50)
    assert (
        estimate.note == "50 of 50 guesses are right; this number of guesses can show"
        f" {lower_bound(50, 50):.3g} at most"
    )
    assert 0 < estimate.minimum_detectable_effect < estimate.value


def test_a_leak_of_a_few_is_shown_and_members_that_are_avoided_show_nothing():
    g, member = np.random.default_rng(0), members(4000, 3000)
    score = np.where(member & (g.random(4000) < 0.05), 0.0, 0.1 + g.random(4000))
    assert bound(score, member).value > 1.5
    assert bound(np.where(member, 1.0, 0.0), member).value == 0


def test_a_person_has_one_guess_by_the_best_row():
    """300 rows of one leaked member count as one guess instead of hundreds."""
    g = np.random.default_rng(0)
    member = members(200, 100)
    codes = np.r_[np.arange(200), np.full(300, np.flatnonzero(member)[0])]
    score = np.r_[1 + g.random(200), np.zeros(300)]
    estimate = bound(score, member, codes)
    assert (estimate.n, estimate.subjects, estimate.value) == (20, 200, 0)


def test_equal_people_are_not_guessed():
    member = members(200, 100)
    estimate = bound(np.zeros(200), member)
    assert (estimate.n, estimate.value, estimate.minimum_detectable_effect) == (0, 0, 0)
    assert estimate.measurable and "0 of 0 guesses" in estimate.note
    some = np.where(np.arange(200) == np.flatnonzero(member)[0], 0.0, math.inf)
    assert bound(some, member).n == 1


@pytest.mark.slow
def test_coins_of_pairs_are_fair_and_independent_although_sizes_are_fixed():
    """Over all sets of 2 in 6 and random pairs, the number of right guesses among two is
    binomial(2, 1/2).
    """
    score, right = np.array([0.1, 0.9, 0.2, 0.3, 0.5, 0.4]), []
    for seed, chosen in itertools.product(range(150), itertools.combinations(range(6), 2)):
        estimate = bound(score, np.isin(np.arange(6), chosen), seed=seed)
        assert estimate.n == 2
        right.append(int(estimate.note.split(" ")[0]))
    # 4 deviations
    np.testing.assert_allclose(np.bincount(right) / len(right), [0.25, 0.5, 0.25], atol=0.04)
