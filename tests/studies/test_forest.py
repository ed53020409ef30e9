"""The forest of the query attack against scikit-learn's, which defines it."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score
from sklearn.tree import DecisionTreeClassifier

from privacy_assets.studies.shadow_membership._kernels import add_shares, grow
from privacy_assets.studies.shadow_membership.attacks import Forest

EVERY = np.arange(40)


def data(seed, sets, features=40, informative=4, most=200):
    g = np.random.default_rng(seed)
    member = g.random(sets) < 0.5
    codes = g.integers(0, most, (features, sets))
    codes[:informative] += (most // 6) * member
    return np.minimum(codes, 255).astype(np.uint8), member


def fit(codes, member, usable=EVERY, seed=0, **more):
    return Forest.fit(codes, member, usable, np.random.default_rng(seed), **more)


def tree_scores(codes, member, drawn, depth):
    """Shares of one tree that looks at every feature in every node."""
    tree = grow(
        codes, member, drawn, np.arange(len(codes)), depth, len(codes), np.random.default_rng(0)
    )
    scores, votes = np.zeros(len(member)), np.zeros(len(member))
    add_shares(codes, *tree, np.arange(len(member)), scores, votes)
    return scores


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_one_tree_on_all_features_is_that_of_scikit_learn(seed, depth):
    codes, member = data(seed, 400, features=6)
    drawn = np.random.default_rng(seed).integers(0, 4, 400)
    reference = DecisionTreeClassifier(max_depth=depth, random_state=0)
    reference.fit(codes.T, member, sample_weight=drawn)
    expected = reference.predict_proba(codes.T)[:, 1]
    seen = drawn > 0  # if two cuts split these equally, either is correct
    np.testing.assert_allclose(
        tree_scores(codes, member, drawn, depth)[seen], expected[seen], atol=1e-12
    )


def test_a_tree_without_a_limit_tells_all_different_rows_apart_and_equal_ones_share_a_leaf():
    codes, member = data(1, 120)
    np.testing.assert_array_equal(
        tree_scores(codes, member, np.ones(120, dtype=np.int64), 60), member
    )
    codes, member = np.zeros((3, 10), dtype=np.uint8), np.arange(10) < 4
    codes[1, :6] = 9
    scores = tree_scores(codes, member, np.ones(10, dtype=np.int64), 5)
    np.testing.assert_allclose(scores, [4 / 6] * 6 + [0] * 4)


@pytest.mark.slow
def test_the_forest_is_as_good_as_that_of_scikit_learn():
    codes, member = data(0, 1600, features=60)
    learned, judged, truth = codes[:, :600], codes[:, 600:], member[600:]
    reference = RandomForestClassifier(100, max_depth=10, random_state=0).fit(
        learned.T, member[:600]
    )
    expected = roc_auc_score(truth, reference.predict_proba(judged.T)[:, 1])
    found = roc_auc_score(truth, fit(learned, member[:600], np.arange(60)).scores(judged, 1000))
    assert found > 0.75 and abs(found - expected) < 0.03


@pytest.mark.slow
def test_scores_of_unseen_sets_do_not_know_their_labels():
    codes, member = data(0, 800, informative=0)
    forest = fit(codes, member)
    assert roc_auc_score(member, forest.scores(codes, 800)) > 0.9
    assert abs(roc_auc_score(member, forest.held_out_scores) - 0.5) < 0.07
    one = fit(codes[:, :4], member[:4], trees=1)
    assert np.isnan(one.held_out_scores).any() and np.isfinite(one.held_out_scores).any(), (
        "what every tree drew has no such score"
    )


def test_the_same_seed_gives_the_same_forest_on_any_number_of_threads(monkeypatch):
    codes, member = data(2, 200)
    first = fit(codes, member, trees=20)
    monkeypatch.setattr("privacy_assets.infra.parallel.threads", lambda: 3)
    again = fit(codes, member, trees=20)
    np.testing.assert_array_equal(again.scores(codes, 200), first.scores(codes, 200))
    np.testing.assert_array_equal(again.held_out_scores, first.held_out_scores)
    assert not np.array_equal(
        fit(codes, member, seed=1, trees=20).held_out_scores, first.held_out_scores
    )


def test_only_usable_features_are_looked_at():
    codes, member = data(3, 300)
    codes[7] = 200 * member
    assert all(
        7 not in tree[0] for tree in fit(codes, member, np.setdiff1d(EVERY, [7]), trees=30).trees
    )
    assert any(7 in tree[0] for tree in fit(codes, member).trees)
    without = fit(codes, member, EVERY[:0]).scores(codes, 300)
    assert np.ptp(without) == 0 and without[0] == pytest.approx(member.mean(), abs=0.02)
