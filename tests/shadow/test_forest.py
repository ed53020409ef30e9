"""The forest of the query attack against scikit-learn's, which it is defined by."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score
from sklearn.tree import DecisionTreeClassifier

from privacy_assets.shadow._forest_kernels import add_shares, grow
from privacy_assets.shadow.forest import Forest


def data(seed, sets, features=40, informative=4, most=200):
    g = np.random.default_rng(seed)
    member = g.random(sets) < 0.5
    codes = g.integers(0, most, (features, sets))
    codes[:informative] += (most // 6) * member
    return np.minimum(codes, 255).astype(np.uint8), member


def tree_scores(codes, member, drawn, depth, seed=0):
    """Shares of one tree that looks at every feature in every node."""
    usable = np.arange(len(codes))
    tree = grow(codes, member, drawn, usable, depth, len(usable), np.random.default_rng(seed))
    scores, votes = np.zeros(len(member)), np.zeros(len(member))
    add_shares(codes, *tree, np.arange(len(member)), scores, votes)
    return scores


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_one_tree_on_all_features_is_that_of_scikit_learn(seed, depth):
    codes, member = data(seed, 400, features=6)
    drawn = np.random.default_rng(seed).integers(0, 4, 400)
    reference = DecisionTreeClassifier(max_depth=depth, random_state=0)
    reference.fit(codes.T, member, sample_weight=drawn)
    expected = reference.predict_proba(codes.T)[:, 1]
    seen = drawn > 0  # of two cuts that part these alike, either will do
    np.testing.assert_allclose(tree_scores(codes, member, drawn, depth)[seen], expected[seen], atol=1e-12)


def test_a_tree_without_a_limit_tells_all_different_rows_apart():
    codes, member = data(1, 120)
    once = np.ones(120, dtype=np.int64)
    np.testing.assert_array_equal(tree_scores(codes, member, once, 60), member)


def test_equal_rows_share_a_leaf():
    codes, member = np.zeros((3, 10), dtype=np.uint8), np.arange(10) < 4
    codes[1, :6] = 9
    scores = tree_scores(codes, member, np.ones(10, dtype=np.int64), 5)
    np.testing.assert_allclose(scores, [4 / 6] * 6 + [0] * 4)


@pytest.mark.slow
def test_the_forest_is_as_good_as_that_of_scikit_learn():
    differences = []
    for seed in range(3):
        codes, member = data(seed, 1000, features=150, informative=4)
        ours = Forest.fit(codes[:, :600], member[:600], np.arange(150), np.random.default_rng(seed))
        reference = RandomForestClassifier(100, max_depth=10, random_state=seed).fit(codes[:, :600].T, member[:600])
        judged = slice(600, None)
        found = roc_auc_score(member[judged], ours.scores(codes[:, judged], 400))
        differences.append(found - roc_auc_score(member[judged], reference.predict_proba(codes[:, judged].T)[:, 1]))
        assert found > 0.75
    assert abs(np.mean(differences)) < 0.02


def test_scores_of_unseen_sets_do_not_know_their_labels():
    codes, member = data(0, 800, informative=0)
    forest = Forest.fit(codes, member, np.arange(40), np.random.default_rng(0))
    assert roc_auc_score(member, forest.scores(codes, 800)) > 0.9
    assert abs(roc_auc_score(member, forest.unseen) - 0.5) < 0.07


def test_the_same_seed_gives_the_same_forest_on_any_number_of_threads(monkeypatch):
    codes, member = data(2, 200)
    found = []
    for threads in ("1", "2", "2"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        forest = Forest.fit(codes, member, np.arange(40), np.random.default_rng(0), trees=20)
        found.append((forest.scores(codes, 200), forest.unseen))
    for scores, unseen in found[1:]:
        np.testing.assert_array_equal(scores, found[0][0])
        np.testing.assert_array_equal(unseen, found[0][1])
    other = Forest.fit(codes, member, np.arange(40), np.random.default_rng(1), trees=20)
    assert not np.array_equal(other.unseen, found[0][1])


def test_only_usable_features_are_looked_at():
    codes, member = data(3, 300)
    codes[7] = 200 * member
    forest = Forest.fit(codes, member, np.setdiff1d(np.arange(40), [7]), np.random.default_rng(0), trees=30)
    assert all(7 not in tree[0] for tree in forest.trees)
    assert any(7 in tree[0] for tree in Forest.fit(codes, member, np.arange(40), np.random.default_rng(0)).trees)


def test_without_usable_features_every_set_scores_the_share_of_members():
    codes, member = data(4, 400)
    forest = Forest.fit(codes, member, np.zeros(0, dtype=np.int64), np.random.default_rng(0))
    assert np.ptp(forest.scores(codes, 400)) == 0
    assert forest.scores(codes, 400)[0] == pytest.approx(member.mean(), abs=0.02)


def test_a_set_that_every_tree_drew_has_no_unseen_score():
    codes, member = data(5, 4)
    forest = Forest.fit(codes, member, np.arange(40), np.random.default_rng(0), trees=1)
    assert np.isnan(forest.unseen).any() and np.isfinite(forest.unseen).any()
