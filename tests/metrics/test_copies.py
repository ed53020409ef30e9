"""Copies: small tables whose share is known, and planted shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chisquare

from privacy_assets.evaluation.measuring import run_metrics
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.copies import (
    Copies,
    SimilarRows,
    copied,
    count_similar_rows,
    largest_copied_share,
    repeated_share,
    share_estimates,
    similar_rows,
)
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.policies import default_policy
from privacy_assets.policy import Policy
from privacy_assets.stats.estimates import Estimate
from privacy_assets.stats.inference import PermutationResult, mean_difference
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.declared import Declared

People = dict[str, list[str]]  # rows by person


def similar(
    real: np.ndarray,
    synthetic: np.ndarray,
    people: np.ndarray,
    max_holders: int = 2,
    rows: np.ndarray | None = None,
) -> SimilarRows:
    """Similar rows of codes (columns, rows)."""
    rows = np.arange(real.shape[1]) if rows is None else rows
    return similar_rows(
        real.astype(np.int32), synthetic.astype(np.int32), people, rows, max_holders
    )


def apart(cells: np.ndarray) -> np.ndarray:
    """Codes of rows that differ in all of four columns if their cell differs."""
    return np.tile(cells, (4, 1))


def shares(
    cells: np.ndarray,
    release: np.ndarray,
    people: Subjects,
    n_permutations: int = 199,
    max_holders: int = 2,
    largest_share: float = 1.0,
) -> PermutationResult:
    difference = partial(
        mean_difference,
        subjects=people,
        n_permutations=n_permutations,
        rng=np.random.default_rng(0),
    )
    rows = similar(apart(cells), apart(release), people.codes, max_holders)
    return copied(rows, people, difference, largest_share)


def measured(
    train: People,
    others: People,
    synthetic: Sequence[str],
    n_permutations: int = 199,
    max_holders: int = 1,
) -> tuple[float, np.ndarray]:
    """The estimate for rows without changed cells, and the estimates under permuted labels."""
    names = sorted(
        {*synthetic, *(row for rows in [*train.values(), *others.values()] for row in rows)}
    )
    held = [(who, row) for side in (train, others) for who, rows in side.items() for row in rows]
    codes = np.unique([who for who, _ in held], return_inverse=True)[1]
    cells, ids = (
        np.array([names.index(row) for row in rows])
        for rows in ([row for _, row in held], synthetic)
    )
    people = Subjects.of(codes, sum(map(len, train.values())))
    found = shares(cells, ids, people, n_permutations, max_holders)
    return float(found.observed[0]), found.null[:, 0]


# --- similar rows and weights
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "levels", "made"), [(1, 3, 40), (3, 2, 100), (6, 4, 5000), (4, 2, 0), (70, 2, 30)]
)
def test_rows_with_changed_cells_are_counted_as_pair_by_pair(
    columns: int, levels: int, made: int
) -> None:
    """Some persons have several rows, which do not count for each other; -1 is a missing cell."""
    rng = np.random.default_rng(columns)
    real, synthetic = (rng.integers(-1, levels, (columns, number)) for number in (60, made))
    real[:, 1], people = real[:, 0], np.append([0, 0], rng.integers(0, 40, 58))
    rows, real_rows = (
        np.flatnonzero(rng.random(60) < 0.7),
        {(*real[:, i], people[i]) for i in range(60)},
    )
    found = similar(real, synthetic, people, rows=rows)
    for at, row in enumerate(rows):
        others = [
            (one[:-1] != real[:, row]).sum()
            for one in map(np.array, real_rows)
            if one[-1] != people[row]
        ]
        release = [
            (np.array(one) != real[:, row]).sum() for one in {tuple(each) for each in synthetic.T}
        ]
        assert found.n_real[:, at].tolist() == [others.count(changed) for changed in range(3)]
        assert found.n_synthetic[:, at].tolist() == [release.count(changed) for changed in range(3)]


def test_the_weight_of_a_row_is_that_of_the_definition() -> None:
    rng = np.random.default_rng(5)
    counts = SimilarRows(rng.integers(0, 3, (3, 200)), rng.integers(0, 4, (3, 200)), 2)
    for changed in range(3):
        now, then = counts.weights(changed)
        for at in range(200):
            made, others = counts.n_synthetic[:, at].tolist(), counts.n_real[:, at].tolist()
            matches = [3.0**-cells for cells in range(changed + 1) if made[cells]]
            best = max(matches, default=0.0)
            dense = sum(
                3.0**-cells * (made[cells] + others[cells])
                for cells in range(min(changed + 1, 2) + 1)
            )
            own = others[0] <= 1
            assert now[at] == pytest.approx(own * best / (0.5 + dense - best))
            assert then[at] == pytest.approx(now[at] if best == 1 else own / (0.5 + dense))


# --- copied_share and changed_share
# -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "others", "synthetic", "share"),
    [
        ({"a": ["1"], "b": ["2"]}, {"c": ["3"], "d": ["4"]}, ["1", "9"], 1 / 2),
        ({"a": ["1"], "b": ["2"]}, {"c": ["3"], "d": ["4"]}, ["1", "3"], 0),
        ({"a": ["1"], "b": ["2"]}, {"c": ["3"], "d": ["4"]}, ["3", "4"], -1),
        ({"a": ["1", "2"], "b": ["3", "4"]}, {"c": ["5", "6"], "d": ["7", "8"]}, ["1", "9"], 1 / 4),
        (
            {"a": ["1"], "b": ["2"], "c": ["3"]},
            {"d": ["2"], "e": ["4"], "f": ["5"]},
            ["1", "2", "6"],
            1 / 3,
        ),
    ],
)
def test_the_share_of_copied_rows_is_estimated(
    train: People, others: People, synthetic: list[str], share: float
) -> None:
    assert measured(train, others, synthetic)[0] == pytest.approx(share, abs=0.002)


def test_own_rows_are_those_of_at_most_max_holders_people() -> None:
    """Row 2 belongs to three people."""
    train, others = {"a": ["1", "2"], "b": ["2"]}, {"c": ["2"], "d": ["3"]}
    for max_holders in (1, 2):
        assert measured(train, others, ["2"], max_holders=max_holders)[0] == 0
    assert measured(train, others, ["2"], max_holders=3)[0] > 0.05


def test_where_everybody_shares_their_row_no_row_is_ones_own() -> None:
    shared = {who: ["1"] for who in "abc"}
    found = measured(shared, {who.upper(): rows for who, rows in shared.items()}, ["1"] * 5)[0]
    assert found == pytest.approx(0, abs=1e-12)


def test_permuted_labels_have_the_law_of_all_labelings() -> None:
    """Of eight people with distinct rows, four rows are copied: 4 members hold k of them with C(4,
    k)^2 / 70.

    The statistic is then proportional to k - (4 - k). Three of the four copies are from train.
    """
    train, others = {who: [who] for who in "abcd"}, {who: [who] for who in "efgh"}
    observed, null = measured(train, others, ["a", "b", "c", "e"], n_permutations=4000)
    values, times = np.unique(np.round(null / observed).astype(int), return_counts=True)
    assert null / observed == pytest.approx(np.round(null / observed), abs=1e-9)
    assert values.tolist() == [-2, -1, 0, 1, 2]
    assert chisquare(times, 4000 * np.array([1, 16, 36, 16, 1]) / 70).pvalue > 0.001


def rows(number: int, levels: int, rng: np.random.Generator) -> pd.DataFrame:
    """With few levels many rows are equal; with many, hardly any two are."""
    drawn = {name: np.minimum(rng.geometric(3 / levels, number), levels) for name in "abcd"}
    kind = pd.CategoricalDtype(range(1, levels + 1))
    return pd.DataFrame(drawn).astype({"d": kind}).mask(rng.random((number, 4)) < 0.02)


def release(
    share: float, levels: int, seed: int, each: int = 1, people: int = 300
) -> tuple[Estimate, float]:
    """A release in which some rows are training rows: the estimate, and the share of people whose
    own row is copied.
    """
    rng = np.random.default_rng(seed)
    train, holdout, reference = (
        rows(number, levels, rng)
        .loc[lambda frame: np.arange(len(frame)).repeat(each)]
        .reset_index(drop=True)
        for number in (people, people // 2, people // 4)
    )
    repeated = rng.random(len(train)) < share
    synthetic = pd.concat([train[repeated], rows((~repeated).sum(), levels, rng)])
    tables = [
        frame.assign(who=np.arange(len(frame)) // each + first)
        for first, frame in zip((0, 10_000, 20_000), (train, holdout, reference), strict=True)
    ]
    inputs = read_inputs(
        tables[0],
        tables[1],
        synthetic,
        declared=Declared(subject="who"),
        reference=tables[2],
        seed=seed,
    )
    real = pd.concat(tables).astype(str)
    holders = real.groupby(list("abcd"))["who"].transform("nunique").to_numpy()[: len(train)]
    own = repeated & (holders <= 2)
    people_copied = own.reshape(-1, each).any(axis=1)
    return Copies(n_permutations=199).measure(inputs).estimate("copied_share"), float(
        people_copied.mean()
    )


def test_a_copy_is_one_and_an_avoided_train_is_negative() -> None:
    assert release(1.0, 60, 0)[0].value == pytest.approx(1, abs=0.02)
    rng = np.random.default_rng(1)
    train, holdout = rows(400, 60, rng), rows(400, 60, rng)
    inputs = read_inputs(train, holdout, holdout.copy(), seed=1)
    found = Copies(n_permutations=199).measure(inputs).estimates[0]
    assert found.value < -0.9 and found.high < -0.5


def test_copies_that_are_repeated_a_few_times_are_counted_once() -> None:
    people, real = Subjects.of(np.arange(2000), 1000), np.arange(2000)
    for times in (1, 2, 4, 8):
        release = np.concatenate(
            [np.repeat(np.arange(50), times), np.arange(3000, 4000 - 50 * times)]
        )
        found = shares(real, release, people).observed[0]
        assert found == pytest.approx(0.05, rel=0.01)


@pytest.mark.parametrize(("n_copied", "expected"), [(0, 0.0), (5, 0.05), (100, 1.0)])
def test_shares_of_a_small_release_are_of_the_people_who_fit(
    n_copied: int, expected: float
) -> None:
    """100 rows, of which some are copies of 1,000 people in train."""
    people, real = Subjects.of(np.arange(2000), 1000), np.arange(2000)
    release = np.concatenate([np.arange(n_copied), np.arange(3000, 3100 - n_copied)])
    effect = shares(real, release, people, largest_share=0.1)
    copied_share, _ = share_estimates(effect, people, 0.1, is_chance=False)
    assert copied_share.value == pytest.approx(expected, abs=1e-9)
    # the interval has the length for 100 people, not for 1,000
    assert copied_share.value - copied_share.low > 0.03
    in_full, _ = share_estimates(shares(real, release, people), people, 1.0, is_chance=False)
    assert in_full.value == pytest.approx(expected / 10, abs=1e-9)


@pytest.mark.parametrize(("n_copied", "is_long"), [(10, False), (500, True)])
@pytest.mark.parametrize("more_members", [-5, 5])
def test_the_end_of_a_long_interval_nearer_to_zero_is_at_a_higher_confidence(
    n_copied: int, is_long: bool, more_members: int
) -> None:
    """Members and non-members are copied almost alike; the more, the longer is the interval."""
    people, real = Subjects.of(np.arange(2000), 1000), np.arange(2000)
    copies = [np.arange(n_copied + more_members), np.arange(1000, 1000 + n_copied)]
    effect = shares(real, np.concatenate([*copies, np.arange(3000, 3500)]), people)
    copied_share, changed_share = share_estimates(effect, people, 1.0, is_chance=False)
    at_95, at_995 = (
        effect[[0]].estimate(Copies.statistic("copied_share"), people.counts, confidence=level)
        for level in (0.95, 0.995)
    )
    assert (at_95.high - at_95.value > 0.03) == is_long
    assert changed_share.confidence == 0.995
    assert at_95.low < 0 < at_95.high
    low, high = at_95.low, at_95.high
    if is_long and more_members > 0:
        low = at_995.low
    elif is_long:
        high = at_995.high
    assert (copied_share.low, copied_share.high) == pytest.approx((low, high))
    with_few_columns, _ = share_estimates(effect, people, 1.0, is_chance=True)
    assert with_few_columns.low <= copied_share.low
    assert with_few_columns.high >= copied_share.high


@pytest.mark.parametrize(
    ("rows_of_a_person", "released", "expected"),
    [
        (1, range(100), 0.1),
        (1, range(3000), 1.0),
        (4, range(1000), 1.0),  # one row for the equal rows of each person
        (1, [0, 1] * 500, 1.0),  # a release of few values
    ],
)
def test_the_share_of_train_that_a_release_could_contain(
    rows_of_a_person: int, released: Sequence[int], expected: float
) -> None:
    train = pd.DataFrame({"a": np.repeat(np.arange(1000), rows_of_a_person)})
    holdout = pd.DataFrame({"a": np.arange(2000, 2100)})
    synthetic = pd.DataFrame({"a": list(released)})
    declared = Declared(subject={"each_row": True}, kinds={"a": "integer"})
    inputs = read_inputs(train, holdout, synthetic, declared=declared)
    assert largest_copied_share(inputs) == pytest.approx(expected)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("columns", "is_decided"), [(1, False), (2, False), (3, True)])
def test_with_two_columns_fresh_rows_are_not_decided_and_a_copy_fails(
    columns: int, is_decided: bool, constant: bool
) -> None:
    rng = np.random.default_rng(8)
    names = list("abc")[:columns]

    def numbers() -> pd.DataFrame:
        frame = pd.DataFrame({name: rng.integers(0, 60, 2000) for name in names})
        return frame.assign(constant="same") if constant else frame

    train, holdout, fresh = numbers(), numbers(), numbers()
    policy = default_policy(["copies"])
    copied_limits = ("copies.copied_share", "copies.copied_share.proven")
    for synthetic in (fresh, train):
        inputs = read_inputs(
            train, holdout, synthetic, declared=Declared(subject={"each_row": True}), seed=8
        )
        results = run_metrics(inputs, {"copies": Copies(n_permutations=199)}, policy.limits)
        statuses = set()
        for outcome in policy.judge(results).outcomes:
            if outcome.limit.key in copied_limits:
                statuses.add(outcome.status)
        note = results["copies"].estimate("copied_share").note
        if synthetic is fresh:
            assert statuses == ({"pass"} if is_decided else {"undecided"})
            assert note.startswith("not measurable: with") != is_decided
        elif columns > 1:
            assert "fail" in statuses


def test_two_columns_of_many_values_are_decided() -> None:
    rng = np.random.default_rng(9)
    train, holdout, fresh = (
        pd.DataFrame({name: rng.normal(size=900) for name in "ab"}) for _ in range(3)
    )
    metric = Copies(n_permutations=199)
    fresh_share = metric.measure(read_inputs(train, holdout, fresh)).estimate("copied_share")
    assert fresh_share.measurable and fresh_share.value == 0
    copy_share = metric.measure(read_inputs(train, holdout, train.copy())).estimate("copied_share")
    assert copy_share.value == pytest.approx(1)


def test_one_row_repeated_a_hundred_times_is_one_row() -> None:
    rng = np.random.default_rng(2)
    train, holdout, fresh = (rows(500, 60, rng) for _ in range(3))
    repeated = train.iloc[[7]].loc[lambda one: one.index.repeat(100)]
    synthetic = pd.concat([fresh, repeated])
    found = (
        Copies(n_permutations=199)
        .measure(read_inputs(train, holdout, synthetic, seed=2))
        .estimates[0]
    )
    assert found.value < 0.02


@pytest.mark.parametrize("released", [1, 19, 20])
def test_releases_of_a_few_rows_are_undecided(released: int) -> None:
    """Even if they are copies: there are too few rows for any share of the training people."""
    rng = np.random.default_rng(6)
    train, holdout = rows(400, 60, rng), rows(400, 60, rng)
    measured = Copies(n_permutations=199).measure(
        read_inputs(train, holdout, train.iloc[:released], seed=6)
    )
    assert all(estimate.measurable == (released >= 20) for estimate in measured.estimates)
    limits = Policy(tuple(limit for limit in default_policy().limits if limit.metric == "copies"))
    assert limits.judge({"copies": measured}).status == ("undecided" if released < 20 else "fail")


def test_people_of_the_reference_are_unseen_too() -> None:
    rng = np.random.default_rng(3)
    train, holdout, reference, fresh = (rows(400, 4, rng) for _ in range(4))
    alone, both = (
        Copies(n_permutations=199)
        .measure(read_inputs(train, holdout, fresh, reference=more, seed=3))
        .estimates[0]
        for more in (None, reference)
    )
    assert both.subjects > alone.subjects and both.high - both.low < alone.high - alone.low


@pytest.mark.slow
@pytest.mark.parametrize(("levels", "each"), [(7, 1), (7, 3), (60, 1), (60, 3)])
def test_planted_copies_of_own_rows_lie_in_the_interval(levels: int, each: int) -> None:
    inside = []
    for seed, share in enumerate([0.0, 0.05, 0.2, 0.5, 1.0] * 4):
        found, truth = release(share, levels, seed, each)
        inside.append(found.low - 1e-9 <= truth <= found.high + 1e-9)
    assert sum(inside) >= 17  # of 20: fewer have a probability of 0.016 at 95 %


def inputs_of(*frames: pd.DataFrame, seed: int = 0) -> EvaluationInputs:
    return read_inputs(*frames[:3], reference=frames[3] if len(frames) > 3 else None, seed=seed)


def test_what_metrics_share_is_made_once_for_each_seed() -> None:
    rows = pd.DataFrame({"a": range(3)})
    inputs, made = inputs_of(rows, rows, rows), []

    def make(own: EvaluationInputs, number: int) -> list[int]:
        made.append((own.seed, number))
        return [number]

    other_device = inputs.with_context(replace(inputs.context, device="cuda"))
    other_seed = inputs.with_context(replace(inputs.context, seed=1))
    assert other_device.once(make, 2) is inputs.once(make, 2)
    assert inputs.once(make, 3) == [3] and other_seed.once(make, 2) == [2]
    assert made == [(0, 2), (0, 3), (1, 2)]


def changed_share(*frames: pd.DataFrame, seed: int = 0) -> Estimate:
    return (
        Copies(n_permutations=199).measure(inputs_of(*frames, seed=seed)).estimate("changed_share")
    )


def redrawn(rows: pd.DataFrame, cells: int, rng: np.random.Generator) -> pd.DataFrame:
    """Rows in which some cells of each come from other rows."""
    hidden = rng.random(rows.shape).argsort(axis=1) < cells
    others = pd.DataFrame(
        {name: rng.permutation(column) for name, column in rows.items()}, index=rows.index
    )
    return rows.where(~hidden, others).astype(rows.dtypes.to_dict())


@pytest.mark.parametrize("cells", [0, 1, 2])
def test_copies_with_changed_cells_are_seen(cells: int) -> None:
    rng = np.random.default_rng(cells)
    train, holdout, fresh = (wide(600, rng) for _ in range(3))
    copies = redrawn(train.iloc[:60], cells, rng)
    found = changed_share(train, holdout, pd.concat([fresh.iloc[:540], copies], ignore_index=True))
    assert found.low > 0.003
    unseen = redrawn(holdout.iloc[:60], cells, rng)
    avoided = changed_share(
        train, holdout, pd.concat([fresh.iloc[:540], unseen], ignore_index=True)
    )
    assert avoided.high < -0.003


@pytest.mark.slow
def test_fresh_rows_have_no_changed_copies() -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        found = changed_share(*(wide(300, rng) for _ in range(4)), seed=seed)
        assert found.low <= 0.001 <= found.high + 0.001


@pytest.mark.slow
def test_the_order_of_rows_and_columns_and_names_of_values_change_nothing() -> None:
    rng = np.random.default_rng(8)
    train, holdout, fresh = (wide(300, rng) for _ in range(3))
    synthetic = pd.concat([fresh.iloc[:240], redrawn(train.iloc[:60], 1, rng)], ignore_index=True)
    first = changed_share(train, holdout, synthetic)
    shuffled = [
        frame.sample(frac=1, random_state=1).reset_index(drop=True)
        for frame in (train, holdout, synthetic)
    ]
    renamed = [
        frame.replace({"plan": {"a": "z", "b": "y"}}) for frame in (train, holdout, synthetic)
    ]
    turned = [frame[frame.columns[::-1]] for frame in (train, holdout, synthetic)]
    for frames in (shuffled, renamed, turned):
        again = changed_share(*frames)
        assert again.value == pytest.approx(first.value, abs=1e-9)


def wide(number: int, rng: np.random.Generator) -> pd.DataFrame:
    """Rows of ten columns of each kind; a few cells are missing."""
    numbers = {f"n{at}": rng.integers(0, 40, number) for at in range(4)}
    frame = pd.DataFrame({**numbers, "pay": rng.lognormal(6, 1, number).round(2)})
    frame = frame.assign(plan=rng.choice(list("abcd"), number), on=rng.random(number) < 0.5)
    frame = frame.assign(
        since=pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 300, number), unit="D")
    )
    frame["area"] = rng.choice([f"area {at}" for at in range(12)], number)
    return frame.astype({"pay": float}).assign(plan=frame["plan"].where(rng.random(number) > 0.05))


# --- matched columns
# --------------------------------------------------------------------------------------------------


def test_the_columns_in_which_training_people_agree_with_the_release_are_named() -> None:
    """A fifth of the released rows have the numbers of training people in two columns, the other
    cells of others.
    """
    rng = np.random.default_rng(6)
    train, holdout, fresh = (wide(600, rng) for _ in range(3))
    kept = ["pay", "since"]
    synthetic = fresh.copy()
    synthetic.loc[:119, kept] = train.loc[:119, kept].to_numpy()
    synthetic = synthetic.astype(fresh.dtypes.to_dict())
    rows = (
        Copies(n_permutations=199)
        .measure(inputs_of(train, holdout, synthetic))
        .tables["matched_columns"]
    )
    assert {row["column"] for row in rows[:2]} == set(kept)
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert sum(row["share"] for row in rows[:2]) > 0.7
    unseen = Copies(n_permutations=199).measure(inputs_of(train, holdout, fresh))
    assert "matched_columns" not in unseen.tables


# --- repeated_share
# --------------------------------------------------------------------------------------------------


def test_a_few_people_repeated_many_times_are_seen() -> None:
    rng = np.random.default_rng(4)
    train, holdout, fresh = (rows(500, 60, rng) for _ in range(3))
    for real, seen in ((train, 0.2), (holdout, 0.0)):
        ten = real.iloc[np.repeat(np.arange(10), 12)]
        inputs = read_inputs(train, holdout, pd.concat([fresh.iloc[:480], ten]), seed=4)
        assert Copies(n_permutations=199).measure(inputs).estimate(
            "repeated_share"
        ).value == pytest.approx(seen, abs=0.03)


def spread_of(hits: Sequence[int], fewest: float = 3.0) -> float:
    """Half the interval for rows of single unseen people with these numbers, where half of the
    people are members.
    """
    return 1.959964 * (sum(2 * hit**2 for hit in hits) + 2 * fewest**2) ** 0.5


def alone(rows: np.ndarray) -> np.ndarray:
    """No rows of other people differ in one cell."""
    return np.zeros(len(rows))


def test_rows_repeated_as_often_as_similar_people_are_expected() -> None:
    """Row 1 is repeated five times, and one person has it: with at most 12 similar rows, it
    counts.
    """
    cells, people = np.arange(100), Subjects(np.arange(100), np.arange(100) % 2 == 1)
    release = np.concatenate([[1] * 5, np.full(95, 200)])
    for similar_rows_of_others, counted in ((0, 5), (12, 5), (13, 0)):
        assert (
            repeated_share(
                cells, release, people, lambda rows, n=similar_rows_of_others: np.full(len(rows), n)
            )[0]
            == counted / 100
        )


def test_of_several_people_with_a_row_the_one_with_the_fewest_similar_rows_of_others_counts() -> (
    None
):
    """Persons 0 and 1 have row 1. The other rows of person 0 differ from it in one cell."""
    cells = pd.DataFrame(
        {"a": ["x"] * 15 + list("bcdefghij"), "b": [1, 1, *range(2, 15), *range(50, 59)]}
    )
    codes = np.concatenate([[0, 1], np.zeros(13, np.int64), np.arange(2, 11)])
    member = np.arange(11) < 6
    ids = np.unique(cells.astype(str).agg("|".join, axis=1), return_inverse=True)[1]
    coded_cells = np.stack([pd.factorize(cells[name])[0] for name in cells]).astype(np.int32)
    release = np.concatenate([np.repeat(ids[0], 6), np.full(18, 99)])
    shares = set()
    for seed in range(6):
        order = np.random.default_rng(seed).permutation(len(ids))
        real = coded_cells[:, order]
        subjects = Subjects(codes[order], member)
        shares.add(
            repeated_share(
                ids[order],
                release,
                subjects,
                lambda rows, real=real, subjects=subjects: count_similar_rows(
                    real, subjects.codes, rows
                )[1],
            ).share
        )
    # person 0 has 13 of the similar rows: without them, 2 equal rows are expected, and 6 are there
    assert shares == {6 / 24}


def test_rows_of_training_people_count_as_repeated() -> None:
    """Rows 1 to 4: one member, two members, an unseen person, a member with the row twice; all
    others have row 9.
    """
    cells = np.concatenate([[1, 2, 2, 3, 4, 4], np.full(94, 9)])
    codes = np.concatenate([[0, 1, 2, 3, 4, 4], np.full(94, 5)])
    people = Subjects(codes, np.array([True, True, True, False, True, False]))
    others = 1 / 3  # share of unseen people, so that two members stand for one unseen person
    for hits, counted, unseen in (
        ([1, 1, 1], 3, []),
        ([1, 1], 0, []),
        ([2] * 6, 6, []),
        ([2] * 5, 0, []),
        ([4] * 6, 6, []),
        ([4] * 5, 0, []),
        ([1] * 3 + [3] * 3, 3 - 2 * 3, [3]),
    ):
        release = np.concatenate([hits, np.full(100 - len(hits), 8)])
        value, half = repeated_share(cells, release, people, alone)
        assert value == pytest.approx(counted / 100)
        more = (1 - others) / others
        spread = sum(hit**2 * more / others for hit in unseen) + 2 * more * 3**2
        assert half == pytest.approx(1.959964 * spread**0.5 / 100, rel=1e-5)
    assert repeated_share(cells, np.repeat([1, 8], [5, 195]), people, alone)[0] == 0, (
        "of a release twice as long, six are needed"
    )
    assert repeated_share(cells, np.repeat([1, 8], [6, 194]), people, alone)[0] == 6 / 200


def test_rows_of_more_than_ten_people_are_nobodys_that_is_repeated() -> None:
    cells, codes = np.repeat([1, 2, 9], [10, 11, 200]), np.arange(221)
    people = Subjects(codes, codes % 2 == 0)
    assert repeated_share(cells, np.repeat([1, 3], [101, 99]), people, alone)[0] == 0.505
    assert repeated_share(cells, np.repeat([2, 3], [111, 89]), people, alone)[0] == 0


@pytest.mark.parametrize("holders", [1, 2, 4])
def test_rows_repeated_whoever_has_them_cancel(holders: int) -> None:
    """Each row has the same number of people and copies. Membership is random, so the interval
    contains 0.
    """
    inside, values = [], []
    for seed in range(40):
        cells, rng = np.arange(2000).repeat(holders), np.random.default_rng(seed)
        people = Subjects(np.arange(len(cells)), rng.random(len(cells)) < 0.5)
        release = np.concatenate(
            [np.arange(60).repeat(4 * holders), np.full(len(cells) - 240 * holders, 3000)]
        )
        value, half = repeated_share(cells, release, people, alone)
        inside.append(abs(value) <= half)
        values.append(value * len(release) / (240 * holders))
    assert sum(inside) >= 33  # of 40: fewer have a probability below 0.001 at 95 %
    assert abs(np.mean(values)) < 4 * (2**holders - 1) ** 0.5 / (60 * 40) ** 0.5


@pytest.mark.parametrize(("people", "times"), [(15, 3), (1, 200), (10, 20)])
def test_few_people_repeated_break_the_limit_and_unseen_ones_do_not(
    people: int, times: int
) -> None:
    cells, rng = np.arange(4000), np.random.default_rng(3)
    subjects = Subjects.of(cells, 2000)
    fresh = rng.integers(5000, 10**6, 2000 - people * times)
    limit = next(one for one in Copies.default_limits if one.statistic == "copies.repeated_share")
    for first, breaks in ((0, True), (2000, False)):
        release = np.concatenate([np.arange(first, first + people).repeat(times), fresh])
        value, half = repeated_share(cells, release, subjects, alone)
        assert limit.exceeded_by(value - half) is breaks
