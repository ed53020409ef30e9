"""Copies: against sums written out in loops, and shares that were planted."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq
from scipy.stats import binom

from privacy_assets.evaluation import prepare_inputs
from privacy_assets.metrics.copies import Copies
from privacy_assets.metrics.copies.exact import copied, repeated
from privacy_assets.policy import Policy
from privacy_assets.stats.inference import mean_difference
from privacy_assets.stats.results import Estimate
from privacy_assets.stats.subjects import Subjects

People = dict[str, list[str]]  # rows by person


class Twin:
    """The estimate of rows that at most ``few`` people have, in loops."""

    def __init__(self, train: People, others: People, synthetic: Sequence[str], few: float = math.inf) -> None:
        self.train, self.others, self.everybody = train, others, {**train, **others}
        self.real = Counter(row for rows in self.everybody.values() for row in rows)
        self.found = Counter(synthetic)
        holders = Counter(row for rows in self.everybody.values() for row in {*rows})
        self.rare = {row for row in self.real if holders[row] <= few}
        self.even = max((0, 1, 4, 16, 64, 256, 1024), key=self.told)

    def weight(self, row: str, more: float, even: float) -> float:
        hits = self.found[row] + more
        return hits / (even + self.real[row] + hits - 1) if hits and row in self.rare else 0.0

    def mean(self, rows: list[str], even: float) -> float:
        return float(np.mean([self.weight(row, 0, even) for row in rows]))

    def added(self, people: People, share: float, even: float) -> float:
        """Mean over people of what it adds to the mean weight of their rows when each is copied with this chance."""
        told = 0.0
        for rows in people.values():
            for row, times in Counter(rows).items():
                after = [self.weight(row, copies, even) for copies in range(times + 1)]
                told += times / len(rows) * (binom.pmf(range(times + 1), times, share) @ after - after[0])
        return told / len(people)

    def told(self, even: float) -> float:
        spread = np.std([self.mean(rows, even) for rows in self.everybody.values()])
        return self.added(self.everybody, 1e-4, even) / spread if spread > 0 else 0.0

    @property
    def apart(self) -> float:
        inside, outside = ([self.mean(rows, self.even) for rows in side.values()] for side in (self.train, self.others))
        return float(np.mean(inside) - np.mean(outside))

    @property
    def share(self) -> float:
        if not self.rare:
            return 0.0
        held = np.mean([np.mean([row in self.rare for row in rows]) for rows in self.everybody.values()])
        left = self.others if self.apart >= 0 else self.train
        if not any(row in self.rare for rows in left.values() for row in rows):
            left = self.everybody
        most = self.added(left, 1, self.even)
        if most < abs(self.apart):  # more than all
            return float(held * self.apart / most)
        share = brentq(lambda x: self.added(left, x, self.even) - abs(self.apart), 0, 1)
        return float(held * math.copysign(share, self.apart))


def measured(
    train: dict[str, list[str]],
    others: dict[str, list[str]],
    synthetic: Sequence[str],
    permutations: int = 199,
    few: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """The metric's two estimates, and the first under permuted labels."""
    names = sorted({*synthetic, *(row for rows in [*train.values(), *others.values()] for row in rows)})
    held = [(who, row) for side in (train, others) for who, rows in side.items() for row in rows]
    codes = np.unique([who for who, _ in held], return_inverse=True)[1]
    cells, ids = (np.array([names.index(row) for row in rows]) for rows in ([row for _, row in held], synthetic))
    people = Subjects.of(codes, sum(map(len, train.values())))
    difference = partial(mean_difference, subjects=people, permutations=permutations, rng=np.random.default_rng(0))
    found = copied(cells, ids, people, few, difference)
    return found.observed, found.null[:, 0]


@pytest.mark.parametrize(
    ("train", "others", "synthetic"),
    [
        ({"a": ["1"], "b": ["2"]}, {"c": ["3"], "d": ["4"]}, ["1", "9"]),
        ({"a": ["1"], "b": ["1"], "c": ["2"]}, {"d": ["1"], "e": ["3"]}, ["1", "2"]),
        ({"a": ["1", "1", "2"], "b": ["3"]}, {"c": ["1"], "d": ["4", "5"]}, ["1", "3", "8", "8"]),
        ({"a": ["1", "2"], "b": ["2"]}, {"c": ["2", "2", "2"], "d": ["3"]}, ["2"]),
        ({"a": ["1"] * 18, "b": ["2"]}, {"c": ["3"] * 15 + ["1"] * 3, "d": ["4"]}, ["1"] * 5 + ["3", "2"]),
        ({"a": ["1"], "b": ["2"], "c": ["3"]}, {"d": ["4"], "e": ["4"], "f": ["4"]}, ["1", "2", "3"]),
        ({"a": ["1"], "b": ["2"]}, {"c": ["3"], "d": ["1"]}, ["1", "2", "3", "4"] * 50),
    ],
)
@pytest.mark.parametrize("few", [1, 2])
def test_the_estimates_are_those_of_sums_written_out(train, others, synthetic, few) -> None:
    twin = Twin(train, others, synthetic).share, Twin(train, others, synthetic, few).share
    assert measured(train, others, synthetic, few=few)[0] == pytest.approx(twin, rel=1e-6, abs=1e-12)


def test_where_everybody_shares_their_row_no_row_is_ones_own() -> None:
    shared = {who: ["1"] for who in "abc"}
    found = measured(shared, {who.upper(): rows for who, rows in shared.items()}, ["1"] * 5)[0]
    assert found == pytest.approx([0, 0], abs=1e-12)


def test_permuted_labels_have_the_law_of_all_labellings() -> None:
    train, others = {"a": ["1"], "b": ["2", "2"], "c": ["3"]}, {"d": ["2"], "e": ["4"], "f": ["5"]}
    synthetic = ["1", "2", "6"]
    people = {**train, **others}
    every = [
        Twin({x: people[x] for x in "abcdef" if x in chosen}, {x: people[x] for x in "abcdef" if x not in chosen},
             synthetic).apart
        for chosen in itertools.combinations("abcdef", 3)
    ]  # fmt: skip
    observed, null = measured(train, others, synthetic, permutations=4000)
    scale = observed[0] / Twin(train, others, synthetic).apart  # what copies add is of the labels that were observed
    assert sorted({*np.round(null / scale, 9)}) == sorted({*np.round(every, 9)})
    assert null.mean() == pytest.approx(0, abs=4 * null.std() / 4000**0.5) and np.mean(every) == pytest.approx(0)


def rows(number: int, levels: int, rng: np.random.Generator) -> pd.DataFrame:
    """Few levels make many equal rows; of many hardly any two are."""
    drawn = {name: np.minimum(rng.geometric(3 / levels, number), levels) for name in "abcd"}
    kind = pd.CategoricalDtype(range(1, levels + 1))
    return pd.DataFrame(drawn).astype({"d": kind}).mask(rng.random((number, 4)) < 0.02)


def release(share: float, levels: int, seed: int, each: int = 1, people: int = 600) -> tuple[Estimate, float]:
    """A release of which some rows are training rows: the estimate, and the share of training rows that it repeats."""
    both, whole, _ = _released(share, levels, seed, each, people)
    return both[0], whole


def rare_release(share: float, levels: int, seed: int, each: int = 1) -> tuple[Estimate, float, float]:
    """The estimate of rows that few have, the share of rows and that of people's own rows which it repeats."""
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
    inputs = prepare_inputs(tables[0], tables[1], synthetic, reference=tables[2], subject="who", seed=seed)
    real = pd.concat(tables).astype(str)
    holders = real.groupby(list("abcd"))["who"].transform("nunique").to_numpy()[: len(train)]
    own = repeated & (holders <= 2)
    return Copies(permutations=199).measure(inputs).estimates, float(repeated.mean()), float(own.mean())


@pytest.mark.parametrize("levels", [4, 60])
@pytest.mark.parametrize("each", [1, 3])
def test_planted_shares_lie_in_the_interval_and_are_met_on_average(levels: int, each: int) -> None:
    inside, errors = [], []
    for seed, share in enumerate([0.0, 0.05, 0.2, 0.5, 1.0] * 4):
        found, truth = release(share, levels, seed, each, people=300)
        inside.append(found.low <= truth <= found.high)
        errors.append((found.value - truth) / max(found.high - found.low, 0.01))
    assert sum(inside) >= 17  # of 20: fewer with a probability of 0.016 at 95 %
    assert abs(np.mean(errors)) < 0.2


def test_a_copy_is_one_and_an_avoided_train_is_negative() -> None:
    assert release(1.0, 60, 0)[0].value == pytest.approx(1, abs=0.02)
    rng = np.random.default_rng(1)
    train, holdout = rows(400, 60, rng), rows(400, 60, rng)
    inputs = prepare_inputs(train, holdout, holdout.copy(), seed=1)
    found = Copies(permutations=199).measure(inputs).estimates[0]
    assert found.value < -0.9 and found.high < -0.5


@pytest.mark.parametrize("longer", [1, 10, 60])
def test_a_copy_is_one_in_a_long_release_too(longer: int) -> None:
    """Where every row stands in the release without a copy, the weights that see little are left aside."""
    values, spread = [], []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        real, fresh = rng.integers(0, 1000, 1000), rng.integers(0, 1000, 500 * longer - 500)
        people = Subjects.of(np.arange(1000), 500)
        difference = partial(mean_difference, subjects=people, permutations=199, rng=rng)
        found = copied(real, np.concatenate([real[:500], fresh]), people, 2, difference)
        values.append(found.observed[0])
        spread.append(found.null[:, 0].std())
        assert abs(found.observed[0] - 1) < 4 * spread[-1]
    assert abs(np.mean(values) - 1) < 4 * np.mean(spread) / 5**0.5 and np.mean(spread) < 0.06 * longer


def test_copies_that_are_repeated_a_few_times_are_counted_once() -> None:
    people, real = Subjects.of(np.arange(2000), 1000), np.arange(2000)
    for times in (1, 2, 4, 8):
        release = np.concatenate([np.repeat(np.arange(50), times), np.arange(3000, 4000 - 50 * times)])
        difference = partial(mean_difference, subjects=people, permutations=199, rng=np.random.default_rng(0))
        assert copied(real, release, people, 2, difference).observed == pytest.approx([0.05, 0.05], rel=0.01)


def test_of_many_equal_rows_of_one_person_the_mean_number_is_copied() -> None:
    """21 and more rows each, a third of them copied."""
    rng, each = np.random.default_rng(0), 30
    codes = np.repeat(np.arange(400), each)
    release = np.concatenate([np.arange(200).repeat(rng.binomial(each, 1 / 3, 200)), np.full(4000, 999)])
    difference = partial(mean_difference, subjects=Subjects.of(codes, 200 * each), permutations=199, rng=rng)
    found = copied(codes, release, Subjects.of(codes, 200 * each), 2, difference)
    assert found.observed[1] == pytest.approx(1 / 3, abs=0.02)


def test_one_row_repeated_a_hundred_times_is_one_row() -> None:
    rng = np.random.default_rng(2)
    train, holdout, fresh = (rows(500, 60, rng) for _ in range(3))
    repeated = train.iloc[[7]].loc[lambda one: one.index.repeat(100)]
    synthetic = pd.concat([fresh, repeated])
    found = Copies(permutations=199).measure(prepare_inputs(train, holdout, synthetic, seed=2)).estimates[0]
    assert found.value < 0.02


@pytest.mark.parametrize("released", [1, 19, 20])
def test_releases_of_a_few_rows_are_not_assessable(released: int) -> None:
    """Though they be copies: too few for any share of the training people."""
    rng = np.random.default_rng(6)
    train, holdout = rows(400, 60, rng), rows(400, 60, rng)
    measured = Copies(permutations=199).evaluate(prepare_inputs(train, holdout, train.iloc[:released], seed=6))
    assert all(estimate.measurable == (released >= 20) for estimate in measured.estimates)
    limits = Policy(tuple(limit for limit in Policy.default().limits if limit.metric == "copies"))
    assert limits.judge({"copies": measured}).verdict == ("not_assessable" if released < 20 else "fail")


def test_people_of_the_reference_are_unseen_too() -> None:
    rng = np.random.default_rng(3)
    train, holdout, reference, fresh = (rows(400, 4, rng) for _ in range(4))
    alone, both = (
        Copies(permutations=199).measure(prepare_inputs(train, holdout, fresh, reference=more, seed=3)).estimates[0]
        for more in (None, reference)
    )
    assert both.subjects > alone.subjects and both.high - both.low < alone.high - alone.low


@pytest.mark.parametrize("levels", [7, 60])
@pytest.mark.parametrize("each", [1, 3])
def test_copied_rows_that_few_have_are_counted_in_people(levels: int, each: int) -> None:
    """Truth: the mean share of a training person's rows that at most two people have and that were repeated."""
    inside = []
    for seed, share in enumerate([0.0, 0.05, 0.2, 0.5, 1.0] * 4):
        found, _, truth = rare_release(share, levels, seed, each)
        inside.append(found.low - 1e-9 <= truth <= found.high + 1e-9)
        assert truth <= share + 0.05 and (levels < 60 or truth >= 0.5 * share)
    assert sum(inside) >= 17  # of 20: fewer with a probability of 0.016 at 95 %


def test_a_few_people_repeated_many_times_are_seen() -> None:
    rng = np.random.default_rng(4)
    train, holdout, fresh = (rows(500, 60, rng) for _ in range(3))
    for real, seen in ((train, 0.2), (holdout, 0.0)):
        ten = real.iloc[np.repeat(np.arange(10), 12)]
        inputs = prepare_inputs(train, holdout, pd.concat([fresh.iloc[:480], ten]), seed=4)
        assert Copies(permutations=199).evaluate(inputs).estimate("repeated_share").value == pytest.approx(
            seen, abs=0.03
        )


def test_rows_of_training_people_count_as_repeated() -> None:
    """Rows 1 to 5: of one member, of two members, of a member and another, of another, of nobody."""
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
    """Rows of as many people each, eleven times as often as among the real rows, by a coin's fall of members."""
    cells, rng = np.arange(2000).repeat(holders), np.random.default_rng(holders)
    people = Subjects(np.arange(len(cells)), rng.random(len(cells)) < 0.5)
    some = np.arange(len(cells) // (12 * holders))  # so many that the release is no longer than the real tables
    assert repeated(cells, some.repeat(11 * holders), people) < 4 * (2**holders - 1) ** 0.5 / len(some) ** 0.5
    leaking = np.flatnonzero(people.member.reshape(-1, holders).any(axis=1))[: len(some)]
    assert repeated(cells, leaking.repeat(11 * holders), people) == 1
