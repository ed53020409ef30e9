"""Copies: small tables whose share is known, and planted shares."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chisquare

from privacy_assets.evaluation.evaluate import read_inputs
from privacy_assets.metrics.copies import Copies, copied, repeated
from privacy_assets.metrics.policies import default_policy
from privacy_assets.policy import Policy
from privacy_assets.stats.estimates import Estimate
from privacy_assets.stats.inference import mean_difference
from privacy_assets.stats.subjects import Subjects

People = dict[str, list[str]]  # rows by person


def measured(
    train: dict[str, list[str]],
    others: dict[str, list[str]],
    synthetic: Sequence[str],
    n_permutations: int = 199,
    max_holders: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """The metric's two estimates, and the first under permuted labels."""
    names = sorted({*synthetic, *(row for rows in [*train.values(), *others.values()] for row in rows)})
    held = [(who, row) for side in (train, others) for who, rows in side.items() for row in rows]
    codes = np.unique([who for who, _ in held], return_inverse=True)[1]
    cells, ids = (np.array([names.index(row) for row in rows]) for rows in ([row for _, row in held], synthetic))
    people = Subjects.of(codes, sum(map(len, train.values())))
    difference = partial(mean_difference, subjects=people, n_permutations=n_permutations, rng=np.random.default_rng(0))
    found = copied(cells, ids, people, max_holders, difference)
    return found.observed, found.null[:, 0]


@pytest.mark.parametrize(
    ("train", "others", "synthetic", "share"),
    [
        ({"a": ["1"], "b": ["2"]}, {"c": ["3"], "d": ["4"]}, ["1", "9"], 1 / 2),
        ({"a": ["1"], "b": ["2"]}, {"c": ["3"], "d": ["4"]}, ["1", "3"], 0),
        ({"a": ["1"], "b": ["2"]}, {"c": ["3"], "d": ["4"]}, ["3", "4"], -1),
        ({"a": ["1"], "b": ["2"]}, {"c": ["3"], "d": ["1"]}, ["1", "2", "3", "4"] * 50, 0),
        ({"a": ["1", "2"], "b": ["3", "4"]}, {"c": ["5", "6"], "d": ["7", "8"]}, ["1", "9"], 1 / 4),
        ({"a": ["1"], "b": ["2"], "c": ["3"]}, {"d": ["4"], "e": ["4"], "f": ["4"]}, ["1", "2", "3"], 1),
        ({"a": ["1"], "b": ["2"], "c": ["3"]}, {"d": ["2"], "e": ["4"], "f": ["5"]}, ["1", "2", "6"], 1 / 3),
    ],
)
@pytest.mark.parametrize("max_holders", [1, 2])
def test_the_share_of_copied_rows_is_estimated(
    train: People, others: People, synthetic: list[str], share: float, max_holders: int
) -> None:
    assert measured(train, others, synthetic, max_holders=max_holders)[0] == pytest.approx([share] * 2, abs=0.002)


def test_rare_rows_are_those_of_at_most_max_holders_people() -> None:
    """Row 2 belongs to three people, so its copies count in the first estimate only."""
    train, others = {"a": ["1", "2"], "b": ["2"]}, {"c": ["2", "2", "2"], "d": ["3"]}
    for max_holders in (1, 2):
        every, rare = measured(train, others, ["2"], max_holders=max_holders)[0]
        assert every > 0.05 and rare == 0
    assert measured(train, others, ["2"], max_holders=3)[0][1] > 0.05


def test_where_everybody_shares_their_row_no_row_is_ones_own() -> None:
    shared = {who: ["1"] for who in "abc"}
    found = measured(shared, {who.upper(): rows for who, rows in shared.items()}, ["1"] * 5)[0]
    assert found == pytest.approx([0, 0], abs=1e-12)


def test_permuted_labels_have_the_law_of_all_labellings() -> None:
    """Of eight people with distinct rows, four rows are copied: 4 members hold k of them with C(4, k)^2 / 70.

    The statistic is then proportional to k - (4 - k). Three of the four copies are from train.
    """
    train, others = {who: [who] for who in "abcd"}, {who: [who] for who in "efgh"}
    observed, null = measured(train, others, ["a", "b", "c", "e"], n_permutations=4000)
    values, times = np.unique(np.round(null / observed[0]).astype(int), return_counts=True)
    assert null / observed[0] == pytest.approx(np.round(null / observed[0]), abs=1e-9)
    assert values.tolist() == [-2, -1, 0, 1, 2]
    assert chisquare(times, 4000 * np.array([1, 16, 36, 16, 1]) / 70).pvalue > 0.001


def rows(number: int, levels: int, rng: np.random.Generator) -> pd.DataFrame:
    """With few levels many rows are equal; with many, hardly any two are."""
    drawn = {name: np.minimum(rng.geometric(3 / levels, number), levels) for name in "abcd"}
    kind = pd.CategoricalDtype(range(1, levels + 1))
    return pd.DataFrame(drawn).astype({"d": kind}).mask(rng.random((number, 4)) < 0.02)


def release(share: float, levels: int, seed: int, each: int = 1, people: int = 600) -> tuple[Estimate, float]:
    """A release in which some rows are training rows: the estimate, and the share of training rows that it repeats."""
    both, whole, _ = _released(share, levels, seed, each, people)
    return both[0], whole


def rare_release(share: float, levels: int, seed: int, each: int = 1) -> tuple[Estimate, float, float]:
    """The estimate for rare rows, the share of repeated rows, and the share of repeated rare rows."""
    both, whole, own = _released(share, levels, seed, each, 300)
    return both[1], whole, own


def _released(
    share: float, levels: int, seed: int, each: int, people: int
) -> tuple[tuple[Estimate, ...], float, float]:
    rng = np.random.default_rng(seed)
    train, holdout, reference = (
        rows(number, levels, rng).loc[lambda frame: np.arange(len(frame)).repeat(each)].reset_index(drop=True)
        for number in (people, people // 2, people // 4)
    )
    repeated = rng.random(len(train)) < share
    synthetic = pd.concat([train[repeated], rows((~repeated).sum(), levels, rng)])
    tables = [frame.assign(who=np.arange(len(frame)) // each + first)
              for first, frame in zip((0, 10_000, 20_000), (train, holdout, reference), strict=True)]  # fmt: skip
    inputs = read_inputs(tables[0], tables[1], synthetic, reference=tables[2], subject="who", seed=seed)
    real = pd.concat(tables).astype(str)
    holders = real.groupby(list("abcd"))["who"].transform("nunique").to_numpy()[: len(train)]
    own = repeated & (holders <= 2)
    return Copies(n_permutations=199).measure(inputs).estimates, float(repeated.mean()), float(own.mean())


@pytest.mark.parametrize(
    ("levels", "each"), [(60, 3), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((4, 1), (4, 3), (60, 1)))]
)
def test_planted_shares_lie_in_the_interval_and_are_met_on_average(levels: int, each: int) -> None:
    inside, errors = [], []
    for seed, share in enumerate([0.0, 0.05, 0.2, 0.5, 1.0] * 4):
        found, truth = release(share, levels, seed, each, people=300)
        inside.append(found.low <= truth <= found.high)
        errors.append((found.value - truth) / max(found.high - found.low, 0.01))
    assert sum(inside) >= 17  # of 20: fewer have a probability of 0.016 at 95 %
    assert abs(np.mean(errors)) < 0.2


def test_a_copy_is_one_and_an_avoided_train_is_negative() -> None:
    assert release(1.0, 60, 0)[0].value == pytest.approx(1, abs=0.02)
    rng = np.random.default_rng(1)
    train, holdout = rows(400, 60, rng), rows(400, 60, rng)
    inputs = read_inputs(train, holdout, holdout.copy(), seed=1)
    found = Copies(n_permutations=199).measure(inputs).estimates[0]
    assert found.value < -0.9 and found.high < -0.5


@pytest.mark.parametrize("longer", [1, 10, 60])
def test_a_copy_is_one_in_a_long_release_too(longer: int) -> None:
    """If every row occurs in the release without copying, weights with little power are ignored."""
    values, spread = [], []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        real, fresh = rng.integers(0, 1000, 1000), rng.integers(0, 1000, 500 * longer - 500)
        people = Subjects.of(np.arange(1000), 500)
        difference = partial(mean_difference, subjects=people, n_permutations=199, rng=rng)
        found = copied(real, np.concatenate([real[:500], fresh]), people, 2, difference)
        values.append(found.observed[0])
        spread.append(found.null[:, 0].std())
        assert abs(found.observed[0] - 1) < 4 * spread[-1]
    assert abs(np.mean(values) - 1) < 4 * np.mean(spread) / 5**0.5 and np.mean(spread) < 0.06 * longer


def test_copies_that_are_repeated_a_few_times_are_counted_once() -> None:
    people, real = Subjects.of(np.arange(2000), 1000), np.arange(2000)
    for times in (1, 2, 4, 8):
        release = np.concatenate([np.repeat(np.arange(50), times), np.arange(3000, 4000 - 50 * times)])
        difference = partial(mean_difference, subjects=people, n_permutations=199, rng=np.random.default_rng(0))
        assert copied(real, release, people, 2, difference).observed == pytest.approx([0.05, 0.05], rel=0.01)


def test_of_many_equal_rows_of_one_person_the_mean_number_is_copied() -> None:
    """21 and more rows each, of which a third are copied."""
    rng, each = np.random.default_rng(0), 30
    codes = np.repeat(np.arange(400), each)
    release = np.concatenate([np.arange(200).repeat(rng.binomial(each, 1 / 3, 200)), np.full(4000, 999)])
    difference = partial(mean_difference, subjects=Subjects.of(codes, 200 * each), n_permutations=199, rng=rng)
    found = copied(codes, release, Subjects.of(codes, 200 * each), 2, difference)
    assert found.observed[1] == pytest.approx(1 / 3, abs=0.02)


def test_one_row_repeated_a_hundred_times_is_one_row() -> None:
    rng = np.random.default_rng(2)
    train, holdout, fresh = (rows(500, 60, rng) for _ in range(3))
    repeated = train.iloc[[7]].loc[lambda one: one.index.repeat(100)]
    synthetic = pd.concat([fresh, repeated])
    found = Copies(n_permutations=199).measure(read_inputs(train, holdout, synthetic, seed=2)).estimates[0]
    assert found.value < 0.02


@pytest.mark.parametrize("released", [1, 19, 20])
def test_releases_of_a_few_rows_are_not_assessable(released: int) -> None:
    """Even if they are copies: there are too few rows for any share of the training people."""
    rng = np.random.default_rng(6)
    train, holdout = rows(400, 60, rng), rows(400, 60, rng)
    measured = Copies(n_permutations=199).measure(read_inputs(train, holdout, train.iloc[:released], seed=6))
    assert all(estimate.measurable == (released >= 20) for estimate in measured.estimates)
    limits = Policy(tuple(limit for limit in default_policy().limits if limit.metric == "copies"))
    assert limits.judge({"copies": measured}).status == ("not_assessable" if released < 20 else "fail")


def test_people_of_the_reference_are_unseen_too() -> None:
    rng = np.random.default_rng(3)
    train, holdout, reference, fresh = (rows(400, 4, rng) for _ in range(4))
    alone, both = (
        Copies(n_permutations=199).measure(read_inputs(train, holdout, fresh, reference=more, seed=3)).estimates[0]
        for more in (None, reference)
    )
    assert both.subjects > alone.subjects and both.high - both.low < alone.high - alone.low


@pytest.mark.slow
@pytest.mark.parametrize(
    ("levels", "each"), [(7, 1), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((7, 3), (60, 1), (60, 3)))]
)
def test_copied_rows_that_few_have_are_counted_in_people(levels: int, each: int) -> None:
    """Truth: the mean share of a training person's rows that at most two people have and that are repeated."""
    inside = []
    for seed, share in enumerate([0.0, 0.05, 0.2, 0.5, 1.0] * 4):
        found, _, truth = rare_release(share, levels, seed, each)
        inside.append(found.low - 1e-9 <= truth <= found.high + 1e-9)
        assert truth <= share + 0.05 and (levels < 60 or truth >= 0.5 * share)
    assert sum(inside) >= 17  # of 20: fewer have a probability of 0.016 at 95 %


def test_a_few_people_repeated_many_times_are_seen() -> None:
    rng = np.random.default_rng(4)
    train, holdout, fresh = (rows(500, 60, rng) for _ in range(3))
    for real, seen in ((train, 0.2), (holdout, 0.0)):
        ten = real.iloc[np.repeat(np.arange(10), 12)]
        inputs = read_inputs(train, holdout, pd.concat([fresh.iloc[:480], ten]), seed=4)
        assert Copies(n_permutations=199).measure(inputs).estimate("repeated_share").value == pytest.approx(
            seen, abs=0.03
        )


def test_rows_of_training_people_count_as_repeated() -> None:
    """Holders of rows 1 to 5: one member, two members, a member and a non-member, a non-member, none."""
    cells, codes = np.array([1, 2, 2, 3, 1, 3, 4]), np.array([0, 1, 2, 3, 0, 4, 5])
    people = Subjects(codes, np.array([True, True, True, True, False, False]))
    cells, codes = np.append(cells, np.full(93, 9)), np.append(codes, np.full(93, 5))
    synthetic = np.repeat([1, 2, 3, 4, 5], [21, 11, 11, 10, 47])
    people = Subjects(codes, people.member)
    assert repeated(cells, synthetic, people) == 0.21
    assert repeated(cells, np.repeat([2, 3, 5], [21, 22, 57]), people) == 0.43
    assert repeated(cells, np.repeat([1, 4, 5], [51, 11, 38]), people) == pytest.approx(0.29)
    assert repeated(cells, np.repeat([1, 4, 5], [21, 11, 68]), people) == 0, "no more than unseen people are"
    assert repeated(cells, np.repeat([1, 5], [20, 80]), people) == 0, "ten times as often is not more"
    assert repeated(cells, np.repeat([1, 5], [41, 159]), people) == 0.205
    assert repeated(cells, np.repeat([1, 5], [40, 160]), people) == 0, "of a release twice as long as the real tables"


def test_rows_of_more_than_ten_people_are_nobodys_that_is_repeated() -> None:
    cells, codes = np.repeat([1, 2, 9], [10, 11, 200]), np.arange(221)
    people = Subjects(codes, codes % 2 == 0)
    assert repeated(cells, np.repeat([1, 3], [101, 99]), people) == 0.505
    assert repeated(cells, np.repeat([2, 3], [111, 89]), people) == 0


@pytest.mark.parametrize("holders", [1, 2, 4])
def test_rows_repeated_whoever_has_them_cancel(holders: int) -> None:
    """Rows with equally many people each, repeated eleven times as often as in the real rows; random membership."""
    cells, rng = np.arange(2000).repeat(holders), np.random.default_rng(holders)
    people = Subjects(np.arange(len(cells)), rng.random(len(cells)) < 0.5)
    some = np.arange(len(cells) // (12 * holders))  # few enough that the release is no longer than the real tables
    assert repeated(cells, some.repeat(11 * holders), people) < 4 * (2**holders - 1) ** 0.5 / len(some) ** 0.5
    leaking = np.flatnonzero(people.member.reshape(-1, holders).any(axis=1))[: len(some)]
    assert repeated(cells, leaking.repeat(11 * holders), people) == 1
