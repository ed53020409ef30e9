"""Compiled trees against scikit-learn and brute force; SynthPop against a twin, its drawer against
its sampler.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from privacy_assets.errors import ConfigError
from privacy_assets.generators._tree_kernels import (
    CartTree,
    climbing,
    draw_codes,
    grow,
    median_rows_per_subject,
    reach_of_donors,
)
from privacy_assets.generators.synthpop import (
    CodedColumns,
    FittedSynthPop,
    SynthPop,
    Target,
    classes,
    fit_tree,
    level_scores,
)
from privacy_assets.tables.canonical import real_tables
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.table import Table
from privacy_assets.tables.threshold_rule import without_rare_values
from tests.generators.known import SCHEMA, TRAIN, table

Grown = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def grown(
    places: np.ndarray,
    goal: np.ndarray,
    kinds: int,
    smallest: int,
    seed: int = 0,
    people: np.ndarray | None = None,
    beyond: float = -np.inf,
) -> Grown:
    spans, rng = places.max(axis=1).astype(np.int64) + 1, np.random.default_rng(seed)
    return grow(
        places.astype(np.int32), spans, goal.astype(float), kinds, smallest, rng, people, beyond
    )  # type: ignore[return-value]


def leaves(tree: Grown) -> set[frozenset[int]]:
    feature, _, _, _, start, rows = tree
    return {
        frozenset(rows[start[v] : start[v + 1]].tolist())
        for v in range(len(feature))
        if feature[v] < 0
    }


def grid(kinds: int, n: int, seed: int, levels: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Positions (4, n), all different or of a few levels, and a target that depends on them."""
    rng = np.random.default_rng(seed)
    places = np.array(
        [rng.permutation(n) if levels is None else rng.integers(0, levels, n) for _ in range(4)]
    )
    share = places / places.max()
    signal = np.sin(5 * share[0]) + share[1] * share[2] + 0.3 * rng.normal(size=n)
    if kinds == 0:
        return places, signal
    return places, np.digitize(signal, np.quantile(signal, np.arange(1, kinds) / kinds)).astype(
        float
    )


# Growing


def cost(goal: np.ndarray, kinds: int) -> float:
    """Sum of squares, or rows times Gini."""
    if kinds == 0:
        return float(((goal - goal.mean()) ** 2).sum())
    shares = np.bincount(goal.astype(int)) / len(goal)
    return float(len(goal) * (1 - (shares**2).sum()))


PEOPLE = {
    "rows": np.arange(250),
    "four rows each": np.repeat(np.arange(63), 4)[:250],
    "one person with many": np.maximum(np.arange(250) - 60, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [0, 2, 3, 40])
@pytest.mark.parametrize(("smallest", "levels"), [(1, 3), (2, 12), (5, 50), (20, 4)])
@pytest.mark.parametrize("whose", PEOPLE)
def test_every_split_is_a_best_one_and_none_is_left_out(
    kinds: int, smallest: int, levels: int, whose: str
) -> None:
    places, goal = grid(kinds, 250, 1, levels)
    people = PEOPLE[whose]
    feature, low, high, right, start, rows = grown(places, goal, kinds, smallest, people=people)
    seen = 0
    if whose == "rows":
        counted = feature, low, high, right, start, rows
        assert all(map(np.array_equal, counted, grown(places, goal, kinds, smallest)))

    def check(node: int, end: int) -> None:
        nonlocal seen
        own = rows[start[node] : end].astype(int)
        costs = [
            cost(goal[own[left]], kinds) + cost(goal[own[~left]], kinds)
            for place in places
            for left in (place[own] <= value for value in np.unique(place[own])[:-1])
            if min(len(np.unique(people[own[left]])), len(np.unique(people[own[~left]])))
            >= smallest
        ]
        if feature[node] < 0:
            assert not costs or len(set(goal[own])) == 1
            return
        seen += 1
        left = places[feature[node]][own] <= low[node]
        assert set(own[left]) == set(rows[start[node + 1] : start[right[node]]].astype(int))
        assert cost(goal[own[left]], kinds) + cost(goal[own[~left]], kinds) == pytest.approx(
            min(costs), rel=1e-7
        )
        assert places[feature[node]][own[~left]].min() == high[node] > low[node]
        check(node + 1, int(start[right[node]]))
        check(int(right[node]), end)

    check(0, 250)
    assert seen > 1 and sorted(rows.tolist()) == list(range(250))


def test_equal_splits_of_different_features_are_drawn() -> None:
    place = np.random.default_rng(0).integers(0, 9, 80)
    goal = (place > 4).astype(float)
    first = [
        int(grown(np.array([place, 8 - place, place]), goal, 2, 5, seed)[0][0])
        for seed in range(600)
    ]
    assert stats.chisquare(np.bincount(first, minlength=3)).pvalue > 1e-4


def test_constant_goals_constant_features_and_no_features_are_one_leaf() -> None:
    place = np.arange(40)
    for places, goal in (
        (np.array([place]), np.ones(40)),
        (np.zeros((2, 40), dtype=int), place.astype(float)),
        (np.zeros((0, 40), dtype=int), place.astype(float)),
        (np.array([place[:3]]), place[:3].astype(float)),
    ):
        spans = np.full(len(places), 40)
        tree = grow(places.astype(np.int32), spans, goal, 0, 2, np.random.default_rng(0))
        assert leaves(tree) == {frozenset(range(len(goal)))}


def test_a_person_with_many_outlying_rows_takes_no_split_from_the_others() -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(size=2000)
    both = np.stack([first, first + 0.3 * rng.normal(size=2000)])
    heavy = np.concatenate([both, np.tile([[40.0], [-40.0]], 20)], axis=1)
    frame = pd.DataFrame(heavy.T, columns=["a", "b"])
    people = np.minimum(np.arange(2020), 2000)
    drawn = (
        SynthPop(min_samples_leaf=10, smoothing=False)
        .fit(Table.read(frame), seed=0, subject_codes=people)
        .sample(2000, seed=1)
        .frame()
    )
    drawn = drawn[drawn.abs().max(axis=1) < 20]
    assert drawn["a"].corr(drawn["b"]) > 0.9


# Features


def twin_scores(
    codes: np.ndarray, levels: int, goal: np.ndarray, kinds: int, smallest: int, people: np.ndarray
) -> np.ndarray:
    """Order of the levels by the first principal component, with numpy's singular values."""
    shares = np.eye(kinds)[goal.astype(int)] if kinds > 2 else goal[:, None]
    rare = np.array([len(set(people[codes == level])) < smallest for level in range(levels)])
    scores = np.zeros((levels, shares.shape[1]))
    for level in range(levels):
        rows = np.flatnonzero(rare[codes] if rare[level] else codes == level)
        scores[level] = (
            shares[rows].mean(axis=0) if len(rows) else shares.mean(axis=0)
        ) - shares.mean(axis=0)
    repeats = np.sqrt(np.bincount(codes, minlength=levels))[:, None] * scores
    return scores @ np.linalg.svd(repeats)[2][0]


@pytest.mark.parametrize("kinds", [0, 2, 3, 20])
@pytest.mark.parametrize("smallest", [1, 5, 60])
@pytest.mark.parametrize("people", [None, np.repeat(np.arange(40), 10)], ids=["rows", "people"])
def test_levels_are_ordered_by_the_first_component(
    kinds: int, smallest: int, people: np.ndarray | None
) -> None:
    rng = np.random.default_rng(kinds)
    codes = np.minimum(rng.geometric(0.25, 400), 11).astype(np.int32)
    goal = rng.normal(size=400) if kinds == 0 else (codes * 3 + rng.integers(0, kinds, 400)) % kinds
    ours = level_scores(codes, 13, goal.astype(float), kinds, smallest, people).astype(float)
    whose = np.arange(400) if people is None else people
    twin = twin_scores(codes, 13, goal.astype(float), kinds, smallest, whose)
    twin *= np.sign(twin[np.abs(twin).argmax()] * ours[np.abs(twin).argmax()])
    np.testing.assert_allclose(ours, twin, atol=2e-6)
    assert ours[0] == ours[12], "levels without rows have equal scores"


def chance(goal: np.ndarray, kinds: int) -> tuple[float, float]:
    """Mean and standard deviation of the decrease of :func:`cost` by a random split of many
    rows.
    """
    if kinds == 0:
        return float(goal.var()), float(goal.var() * 2**0.5)
    shares = np.bincount(goal.astype(int)) / len(goal)
    spread = np.diag(shares) - np.outer(shares, shares)
    scale = 1 if kinds > 2 else 0.5  # the kernel counts one of two classes
    return float(np.trace(spread)) * scale, float((2 * np.trace(spread @ spread)) ** 0.5) * scale


@pytest.mark.parametrize("kinds", [0, 2, 3, 40])
def test_a_split_is_made_if_it_is_better_than_a_random_one(kinds: int) -> None:
    """One feature of two values allows one split; its gain is compared with the mean and deviation
    of random ones.
    """
    rng, gains, made = np.random.default_rng(kinds), [], []
    shares = rng.dirichlet(np.ones(max(kinds, 2)))
    for _ in range(400):
        goal = (
            rng.normal(size=300)
            if kinds == 0
            else rng.choice(len(shares), 300, p=shares).astype(float)
        )
        place = rng.integers(0, 2, 300)
        both = [cost(goal[place == side], kinds) for side in (0, 1)]
        mean, deviation = chance(goal, kinds)
        gain = (cost(goal, kinds) - sum(both)) * (0.5 if kinds == 2 else 1)
        gains.append((gain - mean) / deviation)
        made.append(len(grown(place[None], goal, kinds, 5, beyond=1.5)[0]) == 3)
        assert made[-1] == (gains[-1] > 1.5)
    assert abs(np.mean(gains)) < 0.2 and 0.75 < np.std(gains) < 1.25, (
        "the gains of random splits are as computed"
    )
    assert 0 < sum(made) < 80


@pytest.mark.slow
def test_equal_rows_of_a_person_are_one_row_for_the_comparison_with_chance() -> None:
    for kinds in (0, 2, 5):
        places, goal = grid(kinds, 200, kinds, 6)
        once = grown(places, goal, kinds, 10, people=np.arange(200), beyond=3)
        thrice = grown(
            places.repeat(3, 1),
            goal.repeat(3),
            kinds,
            10,
            people=np.arange(200).repeat(3),
            beyond=3,
        )
        assert 1 < len(once[0]) < len(grown(places, goal, kinds, 10)[0])
        assert all(
            np.array_equal(one, other) for one, other in zip(once[:4], thrice[:4], strict=True)
        )
    assert median_rows_per_subject(None) == median_rows_per_subject(np.arange(4)) == 1
    assert median_rows_per_subject(np.array([0, 1, 0, 0, 1])) == 3, (
        "three of five rows are of a person with three"
    )


def test_the_probability_of_climbing_is_that_of_the_definition() -> None:
    places, goal = grid(40, 250, 3, 12)
    feature, _, _, right, start, rows = grown(places, goal, 40, 20)
    levels = goal[rows].astype(np.int32) - 1  # -1 is a level as well
    stop, parent, climb = climbing(feature, right, start, levels, 7.0)

    def check(node: int, end: int, above: int) -> None:
        assert (stop[node], parent[node]) == (end, above)
        shares = np.unique(levels[start[node] : end], return_counts=True)[1] / (end - start[node])
        added = 7 * (1 / (shares**2).sum() - 1)
        assert climb[node] == pytest.approx(added / (end - start[node] + added))
        if feature[node] >= 0:
            check(node + 1, start[right[node]], node)
            check(right[node], end, node)

    check(0, 250, -1)
    assert not climbing(feature, right, start, levels, 0.0)[2].any()


def test_classes_by_frequency_with_a_rest() -> None:
    codes = np.repeat(np.arange(100), np.arange(100, 0, -1)).astype(np.int32)
    found, kinds = classes(codes, 120)
    assert (
        kinds == 64
        and (found[codes < 63] == codes[codes < 63]).all()
        and (found[codes >= 63] == 63).all()
    )
    assert classes(codes[:150], 120)[1] == 2


def test_rows_go_down_to_their_own_leaves() -> None:
    """Every donor, passed down again with the codes of its row, reaches its own leaf.

    Values in between are split at the midpoint.
    """
    rng = np.random.default_rng(5)
    codes = np.array(
        [rng.integers(0, 30, 300), rng.integers(0, 6, 300), rng.integers(0, 9, 300)], dtype=np.int32
    )
    goal = (
        (codes[0] > 7) * 9.0
        + codes[0] / 9
        + rng.normal(size=6)[codes[1]]
        + (codes[2] == 8) * 2.0
        + rng.normal(size=300)
    )
    # the last codes of 1 and 2 are missing
    levels, is_number = np.array([30, 5, 8]), np.array([True, False, True])
    rows = np.flatnonzero(codes[0] != 7)
    leaf = SynthPop(min_samples_leaf=4, shrinkage=0)
    predictors = CodedColumns(codes, levels, is_number)
    target = Target(goal[rows], 0, rows.astype(np.int32))
    tree = fit_tree(leaf, predictors, rows, target, np.random.default_rng(0))
    assert tree.columns.tolist() == [0, 1, 2, 2]
    ranked, missing = np.split(tree.tables, tree.ends)[2:4]
    assert ranked[:8].tolist() == list(range(8)) and missing.tolist() == [0] * 8 + [1]
    assert ranked[8] == pytest.approx(codes[2][codes[2] < 8].mean()), "missing has the mean rank"
    for v in np.flatnonzero(tree.feature < 0):
        for donor in tree.donors[tree.start[v] : tree.start[v + 1]]:
            out = np.full(1, -1, dtype=np.int32)
            draw_codes(tree, codes[:, [donor]], out, np.zeros(1), np.random.default_rng(0))
            assert out[0] in tree.donors[tree.start[v] : tree.start[v + 1]]
    ranks = [t for f, t in zip(tree.feature, tree.threshold, strict=True) if f == 0]
    assert ranks[0] == 7.0 and all(2 * rank == int(2 * rank) for rank in ranks)


# SynthPop


def test_every_value_comes_from_the_leaf_of_its_row() -> None:
    """The twin rebuilds each leaf from the training rows one by one, without the stored donors."""
    fitted = SynthPop(min_samples_leaf=20, shrinkage=0, smoothing=False).fit(TRAIN, seed=0)
    assert isinstance(fitted, FittedSynthPop)
    trained, sample = TRAIN.frame(), fitted.sample(400, seed=3).frame()
    codes = {
        name: {value: code for code, value in enumerate(sorted(trained[name].dropna().unique()))}
        for name in fitted.order
    }

    def coded(frame: pd.DataFrame, name: str) -> list[int]:
        return [len(codes[name]) if pd.isna(value) else codes[name][value] for value in frame[name]]

    train, drawn = (
        {name: coded(frame, name) for name in fitted.order} for frame in (trained, sample)
    )
    leaves_seen = 0
    for position, name in enumerate(fitted.order):
        before = fitted.order[:position]
        for part, tree in enumerate(fitted.steps[position]):
            tables = np.split(tree.tables, tree.ends)

            def leaf(
                data: dict[str, list[int]],
                row: int,
                tree: CartTree = tree,
                before: list[str] = before,
                tables: list[np.ndarray] = tables,
            ) -> int:
                values = [
                    float(tables[f][data[before[c]][row]]) for f, c in enumerate(tree.columns)
                ]
                node = 0
                while tree.feature[node] >= 0:
                    low = values[tree.feature[node]] <= tree.threshold[node]
                    node = node + 1 if low else int(tree.right[node])
                return node

            missing = len(codes[name])
            donors: dict[int, list[int]] = {}
            for row, code in enumerate(train[name]):
                if part == 0 or code != missing:
                    donors.setdefault(leaf(train, row), []).append(code)
            assert min(map(len, donors.values())) >= 20
            leaves_seen += len(donors)
            for row, code in enumerate(drawn[name]):
                if part == 0 and len(fitted.steps[position]) == 2:
                    allowed = {c == missing for c in donors[leaf(drawn, row)]}
                    assert (code == missing) in allowed
                elif part == 0 or code != missing:
                    assert code in donors[leaf(drawn, row)]
    assert leaves_seen > 40, "trees without splits would make this test empty"


def test_donors_are_drawn_uniformly_from_the_leaf() -> None:
    train = table(g=["a"] * 60 + ["b"] * 60, x=list(range(120)))
    generator = SynthPop(min_samples_leaf=60, shrinkage=0, smoothing=False)
    sample = generator.fit(train, seed=0).sample(24_000, seed=0).frame()
    assert ((sample["x"] < 60) == (sample["g"] == "a")).all()
    counts = np.bincount(sample["x"].to_numpy(dtype=int), minlength=120)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_values_come_from_nodes_above_as_often_as_the_shrinkage_says() -> None:
    """Two groups of 60 have the values p, q and r in 40, 20, 0 and 0, 20, 40 rows; all values have
    1/3 at the root.
    """
    groups, values = ["a"] * 60 + ["b"] * 60, ["p"] * 40 + ["q"] * 40 + ["r"] * 40
    generator = SynthPop(min_samples_leaf=60, shrinkage=10, smoothing=False)
    sample = generator.fit(table(g=groups, x=values), seed=0).sample(24_000, seed=0).frame()
    added = 10 * (1 / ((2 / 3) ** 2 + (1 / 3) ** 2) - 1)
    climb = added / (60 + added)
    leaf, root = np.array([2 / 3, 1 / 3, 0]), np.full(3, 1 / 3)
    for group, own in (("a", leaf), ("b", leaf[::-1])):
        drawn = (
            sample["x"][sample["g"] == group]
            .value_counts()
            .reindex(["p", "q", "r"], fill_value=0)
            .to_numpy()
        )
        assert (
            stats.chisquare(drawn, drawn.sum() * ((1 - climb) * own + climb * root)).pvalue > 1e-4
        )


def test_published_categories_without_training_rows_are_drawn() -> None:
    """A value that five unseen people have may be published: its absence would show that no
    training row has it.
    """

    def rows(**counts: int) -> pd.DataFrame:
        return pd.DataFrame({"x": np.repeat(list(counts), list(counts.values()))})

    frames = {"train": rows(a=150, b=50), "holdout": rows(a=60, c=60, d=1)}
    train = without_rare_values(real_tables(frames, dict(zip(frames, frames, strict=True))), 5)[
        "train"
    ]
    sample = SynthPop(shrinkage=40).fit(train, seed=0).sample(30_000, seed=0).frame()["x"]
    added = 40 * (1 / (0.75**2 + 0.25**2) - 1)
    published = set(train.rules["x"].recoding.values())
    assert set(sample) == {"a", "b", "c"} == published
    share = added / (200 + added) / len(published)
    assert (sample == "c").mean() == pytest.approx(share, abs=4 * (share / 30_000) ** 0.5)


def twin_reach(values: np.ndarray, people: np.ndarray, smallest: int) -> list[float]:
    """Maximum distance that each row of one leaf may be moved, by sorting all distances."""
    wanted, found = max(1, min(len(values) // 5, smallest)), []
    for value, person in zip(values, people, strict=True):
        nearest = sorted(
            {
                other: np.abs(values[people == other] - value).min()
                for other in set(people) - {person}
            }.items(),
            key=lambda x: x[1],
        )
        found.append(float(nearest[:wanted][-1][1]) if nearest else 0.0)
    return found


@pytest.mark.parametrize(
    "people", [np.arange(90), np.repeat(np.arange(30), 3), np.zeros(90, dtype=int)]
)
@pytest.mark.parametrize("smallest", [1, 6, 40])
def test_a_value_is_moved_as_far_as_a_fifth_of_its_leaf(people: np.ndarray, smallest: int) -> None:
    values = np.random.default_rng(1).lognormal(size=90).round(1)
    parts = [slice(0, 50), slice(50, 90)]
    order = np.concatenate([part.start + np.argsort(values[part], kind="stable") for part in parts])
    found = reach_of_donors(np.array([0, 50, 90]), values[order], people[order], smallest)
    twin = [twin_reach(values[order][part], people[order][part], smallest) for part in parts]
    np.testing.assert_allclose(found, np.concatenate(twin))


@pytest.mark.slow
def test_smoothed_numbers_are_nobodys_and_spikes_stay() -> None:
    rng = np.random.default_rng(0)
    pay = np.where(rng.random(2000) < 0.3, 0.0, rng.lognormal(8, 1, 2000).round(2))
    train = table(
        group=rng.choice(["a", "b"], 2000),
        pay=pay,
        days=pd.Timestamp("2020-01-01") + pd.to_timedelta(pay * 99 // 1, "s"),
        gap=np.where(pay > 5000, np.nan, pay * 10),
    )
    whole, kept = (
        SynthPop(smoothing=on).fit(train, seed=0).sample(4000, seed=0).frame()
        for on in (True, False)
    )
    for name in ("pay", "days", "gap"):
        real = train.frame()[name]
        rare = real.value_counts().index[real.value_counts() < 20]
        assert whole[name].isin(rare).mean() < 0.05 < 0.3 < kept[name].isin(rare).mean()
        assert real.min() <= whole[name].min() and whole[name].max() <= real.max()
        assert abs(whole[name].isna().mean() - real.isna().mean()) < 0.04
        assert (
            stats.ks_2samp(
                *(
                    x[name].dropna().astype(float if name != "days" else "int64")
                    for x in (whole, train.frame())
                )
            ).pvalue
            > 1e-4
        )
    assert abs((whole["pay"] == 0).mean() - (pay == 0).mean()) < 0.03, (
        "a value that many share stays"
    )
    assert (whole["pay"].round(2) == whole["pay"]).all() and (
        whole["days"].dt.microsecond == 0
    ).all()
    assert whole["pay"].rank().corr(whole["days"].astype("int64").rank()) > 0.97


def test_fewer_rows_than_a_leaf_are_drawn_independently() -> None:
    train = table(a=list(range(30)), b=list(range(30)))
    sample = SynthPop().fit(train, seed=0).sample(3000, seed=0).frame()
    assert set(sample["a"]) == set(range(30))
    assert abs(np.corrcoef(sample["a"].astype(float), sample["b"].astype(float))[0, 1]) < 0.06


def test_missing_values_follow_the_other_columns() -> None:
    group = np.repeat(["a", "b"], 500)
    value = np.where(group == "a", np.nan, np.arange(1000.0))
    train = table(g=group, x=value, y=np.isnan(value))
    for visit in (["g", "x", "y"], ["y", "x", "g"], ["x", "g", "y"]):
        sample = SynthPop(visit=visit).fit(train, seed=0).sample(2000, seed=0).frame()
        assert list(sample) == ["g", "x", "y"]
        assert (sample["x"].isna() == (sample["g"] == "a")).all(), visit
        assert (sample["y"].astype(bool) == sample["x"].isna()).all(), visit
        assert 0.45 < sample["x"].isna().mean() < 0.55


def test_extreme_numbers_come_back_exactly() -> None:
    values = [2**62, 2**62 + 1, -(2**62), 0]
    train = table(
        a=np.repeat(values, 50), f=np.repeat([1e300, -1e300, 5e-324, 0.1], 50), g=np.arange(200) % 2
    )
    sample = (
        SynthPop(min_samples_leaf=10, shrinkage=0).fit(train, seed=0).sample(500, seed=0).frame()
    )
    assert set(sample["a"]) == set(values)
    assert set(sample["f"]) == {1e300, -1e300, 5e-324, 0.1}
    assert (sample["f"][sample["a"] == 2**62] == 1e300).all(), (
        "integers above 2**53 are distinguished"
    )
    assert (sample["f"][sample["a"] == 2**62 + 1] == -1e300).all()


def test_rare_categories_cannot_look_the_target_up() -> None:
    """Names that each occur once carry no information to the next column, however well they fit in
    training.
    """
    rng = np.random.default_rng(0)
    train = table(name=[f"n{k}" for k in range(1000)], x=rng.normal(size=1000))
    known = train.frame().set_index("name")["x"]
    sample = SynthPop().fit(train, seed=0).sample(2000, seed=0).frame()
    assert abs(np.corrcoef(sample["name"].map(known), sample["x"])[0, 1]) < 0.08


def test_visit_must_name_every_column_once() -> None:
    for visit in (SCHEMA.names[1:], [*SCHEMA.names, "age"]):
        with pytest.raises(ConfigError, match="every column once"):
            SynthPop(visit=visit).fit(TRAIN, seed=0)
    with pytest.raises(ConfigError, match="Did you mean 'age'"):
        SynthPop(visit=["aeg", *SCHEMA.names[1:]]).fit(TRAIN, seed=0)


@pytest.mark.slow
def test_marginals_and_pairs_of_adult(adult: pd.DataFrame) -> None:
    whole = Table.read(adult)
    kept = whole.take(slice(20_000))
    sample = SynthPop().fit(kept, seed=0).sample(20_000, seed=0).frame()
    train, fresh = kept.frame(), whole.take(slice(20_000, 40_000)).frame()

    def distance(frame: pd.DataFrame, names: list[str]) -> float:
        left, right = (x.groupby(names, dropna=False).size() / len(x) for x in (train, frame))
        return float(left.sub(right, fill_value=0).abs().sum() / 2)

    words = whole.schema.of_kind("categorical")
    for name in whole.schema.names:
        if name in words:
            assert distance(sample, [name]) < 0.02
        else:
            assert (
                stats.ks_2samp(train[name].astype(float), sample[name].astype(float)).statistic
                < 0.02
            )
    pairs = [[a, b] for i, a in enumerate(words) for b in words[:i]]
    ours, sampling = (
        np.mean([distance(frame, pair) for pair in pairs]) for frame in (sample, fresh)
    )
    assert ours < 1.5 * sampling
    exact = train.merge(sample.drop_duplicates(), how="inner")
    assert len(exact) / len(train) < 0.02, "leaves of 50 rows copy few rows of Adult"


# The drawer


CODING = MatrixCoding.fit([TRAIN], SCHEMA)
CELLS = CODING.code(TRAIN)


@pytest.mark.slow
@pytest.mark.parametrize("visit", [None, SCHEMA.names[::-1]])
@pytest.mark.parametrize("smoothing", [False, True])
def test_drawn_cells_are_distributed_as_those_of_the_fitted_generator(
    visit: list[str] | None, smoothing: bool
) -> None:
    generator = SynthPop(min_samples_leaf=20, visit=visit, smoothing=smoothing)
    rows = np.arange(20, 380)
    fitted = generator.fit(TRAIN.take(rows), seed=0)
    theirs = CODING.code(fitted.sample(20_000, seed=1))
    ours = generator.drawer(CELLS, CODING)(rows, 20_000, 2)
    assert ours.shape == (12, 20_000)
    for own, other, train in zip(ours, theirs, CELLS[:, rows], strict=True):
        assert smoothing or set(own[~np.isnan(own)]) <= set(train)
        assert np.isnan(own).any() == np.isnan(train).any()
        if not np.isnan(train).all():
            edges = np.unique(np.nanquantile(other, np.linspace(0, 1, 30)))
            counts = np.array(
                [np.bincount(np.searchsorted(edges, part), minlength=31) for part in (own, other)]
            )
            counts = counts[:, counts.sum(axis=0) > 10]
            assert counts.shape[1] < 2 or stats.chi2_contingency(counts).pvalue > 1e-4
    for a in range(8):
        for b in range(a):
            ab = [
                pd.Series(cells[a])
                .rank(pct=True)
                .fillna(-1)
                .corr(pd.Series(cells[b]).fillna(-1), method="spearman")
                for cells in (ours, theirs)
            ]
            assert abs(ab[0] - ab[1]) < 0.05, (a, b)


# Categories smaller than a leaf


def towns(n_people_each: int, n_towns: int = 30) -> Table:
    rng = np.random.default_rng(0)
    town = np.repeat(np.arange(n_towns), n_people_each)
    frame = pd.DataFrame(
        {"town": [f"T{code:02}" for code in town], "age": rng.integers(18, 90, len(town))}
    )
    frame["group"] = rng.choice(["a", "b"], len(town))
    return real_tables({"train": frame}, {"train": "train"})["train"]


def said_about(train: Table, people: np.ndarray | None = None, **settings: object) -> list[str]:
    messages = list[str]()
    SynthPop(**settings).fit(train, seed=0, progress=messages.append, subject_codes=people)  # type: ignore[arg-type]
    return messages


def test_categories_smaller_than_a_leaf_are_told_with_the_setting_to_rehearse():
    (message,) = said_about(towns(83), min_samples_leaf=100)
    assert message == (
        "town: 30 of 30 categories have fewer people than a leaf (100), so other columns depend"
        " less on them. Smaller"
        " leaves keep more and can disclose more. Try them without publication: privacy-assets"
        " run TABLE --rehearse"
        " --try min_samples_leaf=50,20"
    )
    (message,) = said_about(towns(30), min_samples_leaf=50)
    assert message.endswith(" --try min_samples_leaf=20")


def test_large_categories_and_the_last_column_are_not_told():
    assert said_about(towns(83), min_samples_leaf=50) == []
    assert said_about(towns(83), min_samples_leaf=20) == []
    assert said_about(towns(15), min_samples_leaf=20) == []  # there is no smaller leaf to try
    assert said_about(towns(83), min_samples_leaf=100, visit=("age", "group", "town")) == []


def test_people_are_counted_instead_of_rows():
    train = towns(100)
    assert said_about(train, min_samples_leaf=60) == []
    assert len(said_about(train, people=np.arange(len(train)) // 2, min_samples_leaf=60)) == 1


def test_few_rows_in_small_categories_are_not_told():
    large = pd.DataFrame({"town": ["T"] * 900, "group": "a"})
    small = pd.DataFrame({"town": [f"S{code}" for code in np.arange(100) // 10], "group": "b"})
    table = real_tables({"train": pd.concat([large, small])}, {"train": "train"})["train"]
    assert said_about(table, min_samples_leaf=100) == []


@pytest.mark.parametrize(("n_people_each", "is_kept"), [(60, True), (49, False)])
def test_categories_of_fifty_people_keep_their_dependence_in_larger_leaves(
    n_people_each: int, is_kept: bool
):
    """Towns with an even number have high values. With 49 people, all towns look the same to the
    tree.
    """
    train = towns(n_people_each)
    frame = train.frame()
    is_high = frame["town"].str[1:].astype(int) % 2 == 0
    frame["value"] = np.where(is_high, 100, 0) + np.random.default_rng(1).integers(
        0, 50, len(frame)
    )
    train = real_tables({"train": frame}, {"train": "train"})["train"]
    drawn = SynthPop(min_samples_leaf=100).fit(train, seed=0).sample(4_000, seed=0).frame()
    means = drawn.groupby(drawn["town"].str[1:].astype(int) % 2)["value"].mean()
    assert (means[0] - means[1] > 80) == is_kept
    assert (abs(means[0] - means[1]) < 10) == (not is_kept)
