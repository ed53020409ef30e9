"""Linkability: brute-force twins of the search and the statistics, and expected results for tables
of known truth.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from privacy_assets.distances.nearest import Neighbors
from privacy_assets.errors import ConfigError
from privacy_assets.metrics import linkability
from privacy_assets.metrics.linkability import (
    TIE,
    Linkability,
    Linkage,
    random_halves,
    target_rows,
    varying_columns,
    weigh,
)
from privacy_assets.policy import Limit, judge_limit
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.encoding import EncodedTable, TabularEncoder
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.table import Table
from tests.metrics.given_tables import given
from tests.metrics.surveys import parts, survey

QUICK = Linkability(n_splits=6, n_permutations=199)
UPPER, LOWER = Limit("linkability.excess", 0.1), Limit("linkability.excess", 0.025, bound="proven")


def run(
    train: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame, metric=QUICK, **more
) -> MetricResult:
    return metric.measure(given(train, holdout, synthetic, **more))


def verdicts(result: MetricResult) -> list[str]:
    return [judge_limit(limit, result).status for limit in (UPPER, LOWER)]


# ---- the search against brute force ----


def naive_hits(
    synthetic: EncodedTable, attacked: EncodedTable, sets: list[list[int]], k: int
) -> list[bool]:
    """The definition, row by row: encoded columns 0..p-1 are numbers, columns from p on are
    categories.
    """
    p = synthetic.numeric.shape[1]

    def picked(table: EncodedTable, row: int, columns: list[int]) -> tuple[float, ...]:
        return tuple(
            float(table.numeric[row, c] if c < p else table.codes[row, c - p]) for c in columns
        )

    rows = {tuple(picked(synthetic, s, columns) for columns in sets) for s in range(len(synthetic))}
    out = []
    for q in range(len(attacked)):
        near = []
        for side, columns in enumerate(sets):
            asked = picked(attacked, q, columns)
            away = {
                row: sum(
                    (x - y) ** 2 if c < p else float(x != y)
                    for x, y, c in zip(row[side], asked, columns, strict=True)
                )
                for row in rows
            }
            reach = sorted(away.values())[min(k, len(rows)) - 1] * (1 + TIE)
            near.append({row for row, distance in away.items() if distance <= reach})
        out.append(bool(near[0] & near[1]))
    return out


def encoded(frame: pd.DataFrame, *others: pd.DataFrame) -> list[EncodedTable]:
    schema = infer_schema(pd.concat([frame, *others], ignore_index=True))
    tables = [Table.of(x, schema, where="t") for x in (frame, *others)]
    encoder = TabularEncoder.fit(tables, schema)
    return [encoder.transform(table) for table in tables]


def coarse_table(rows: int, seed: int) -> pd.DataFrame:
    """Few values, so that most distances tie; some numbers are missing."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({name: rng.integers(0, 3, rows).astype(float) for name in "ab"})
    frame = frame.mask(rng.random(frame.shape) < 0.1)
    for name in "cdefgh":
        frame[name] = rng.choice(["p", "q", "r"], rows, p=[0.5, 0.3, 0.2])
    return frame


@pytest.mark.parametrize("make", [survey, coarse_table])
@pytest.mark.parametrize("k", [1, 5])
def test_hits_agree_with_brute_force(make, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linkability, "_CELLS", 2_000)  # several parts
    for seed in range(2):
        synthetic, attacked = encoded(
            make(120, seed), pd.concat([make(60, seed + 90), make(120, seed)[:5]])
        )
        width = attacked.numeric.shape[1] + attacked.codes.shape[1]
        order = np.random.default_rng(seed).permutation(width).tolist()
        for sets in ([order[:3], order[3:]], [order[:1], order[1:3]]):
            searched = Linkage.of(synthetic, attacked, sum(sets, []))
            found, truth = (
                searched.hits(*sets, k=k).tolist(),
                naive_hits(synthetic, attacked, sets, k),
            )
            assert found == truth
            assert all(found[-5:])  # copies
            assert searched.hits(*sets[::-1], k=k).tolist() == truth
            # The nearest row is a shortcut. Without it all rows are searched, with the same result.
            blind = Neighbors(
                np.full((len(attacked), 1), 1e-200), np.zeros((len(attacked), 1), dtype=np.int64)
            )
            assert replace(searched, nearest=blind).hits(*sets, k=k).tolist() == truth


@pytest.mark.parametrize(("rows", "k"), [(1, 2), (3, 1), (3, 3)])
def test_hits_of_a_few_synthetic_rows(rows: int, k: int) -> None:
    synthetic, attacked = encoded(survey(rows, 0), survey(30, 1))
    sets = [[0, 3], [1, 2, 4]]
    found = Linkage.of(synthetic, attacked, sum(sets, [])).hits(*sets, k=k)
    assert found.tolist() == naive_hits(synthetic, attacked, sets, k)
    assert found.all() or rows > k


def test_values_far_out_do_not_drown_the_other_columns() -> None:
    rng = np.random.default_rng(0)
    wide = pd.DataFrame(rng.normal(size=(300, 12)), columns=[f"c{at}" for at in range(12)])
    # the far value decides which row is the nearest in all columns, and all are at its distance
    for at in range(8):
        wide.loc[200 + at, f"c{at}"] = 1e5
    synthetic, attacked = encoded(wide[:200], wide[150:])
    assert np.abs(attacked.numeric[50:58]).max(axis=1).min() > 1e4
    for sets in ([list(range(10)), [10, 11]], [[0, 3], [1, 2, 4, 5, 6, 7, 8, 9, 10, 11]]):
        found = Linkage.of(synthetic, attacked, range(12)).hits(*sets)
        assert found.tolist() == naive_hits(synthetic, attacked, sets, 1)
        assert found[:50].all()
        assert not found[50:58].all()


def test_excess_and_risk_are_means_over_pairs_and_people() -> None:
    rng = np.random.default_rng(3)
    rates, member = rng.integers(0, 3, (50, 4)) / 2, rng.random(50) < 0.6
    excess, risk = weigh(rates, Subjects(np.arange(50), member), 6_000, rng)
    of_members, of_others = rates[member].mean(axis=0), rates[~member].mean(axis=0)
    assert excess.observed == pytest.approx(of_members - of_others, abs=1e-6)
    assert risk.observed == pytest.approx((of_members - of_others) / (1 - of_others), abs=1e-6)
    # The deviation of a difference of means under permuted labels is known.
    n_T, n_H = member.sum(), (~member).sum()
    assert excess.null.std(axis=0) == pytest.approx(
        rates.std(axis=0, ddof=1) * np.sqrt(1 / n_T + 1 / n_H), rel=0.04
    )
    assert np.abs(excess.null.mean(axis=0)).max() < 0.01


# ---- attacked rows ----


@pytest.mark.parametrize(("columns", "number"), [(1, 0), (2, 1), (5, 10), (6, 10), (9, 20)])
def test_halves_are_different_and_complete(columns: int, number: int) -> None:
    names = [f"c{at}" for at in range(columns)]
    pairs = random_halves(names, 20, np.random.default_rng(0))
    assert len(pairs) == len({frozenset(map(frozenset, pair)) for pair in pairs}) == number
    for first, second in pairs:
        assert sorted([*first, *second]) == names
        assert abs(len(first) - len(second)) <= 1


def test_halves_are_drawn_evenly() -> None:
    names = list("abcdefgh")
    drawn = [random_halves(names, 1, np.random.default_rng(seed))[0] for seed in range(2_000)]
    together = dict.fromkeys(itertools.combinations(names, 2), 0)
    for pair, half in itertools.product(together, drawn):
        together[pair] += set(pair) <= set(half[0]) or set(pair) <= set(half[1])
    assert np.array(list(together.values())) / 2_000 == pytest.approx(3 / 7, abs=0.05)


@pytest.mark.parametrize(("most", "of_each"), [(40, 1), (120, 2), (500, 4)])
def test_people_are_drawn_alike_on_both_sides(most: int, of_each: int) -> None:
    train, holdout, synthetic = parts((240, 60, 10), 0)
    subjects = {"train": np.repeat(np.arange(60), 4), "holdout": np.repeat(np.arange(60, 75), 4)}
    inputs = given(train, holdout, synthetic, subjects=subjects)
    rows = target_rows(inputs, inputs.labeled_subjects, most)
    assert len(np.unique(rows)) == len(rows)
    owner = np.concatenate([subjects["train"], subjects["holdout"]])[rows]
    assert set(np.unique(owner, return_counts=True)[1]) == {of_each}
    for side, people in ((owner < 60, 60), (owner >= 60, 15)):
        assert np.unique(owner[side]).size == min(people, most)
        assert side.sum() <= most


def test_constant_columns_are_no_columns() -> None:
    tables = parts((300, 100, 300), 1)
    first = run(*tables)
    for table in tables:
        table["same"], table["one"], table["day"] = 3, "x", pd.Timestamp("2020-01-01")
    assert run(*tables).estimates == first.estimates
    for table, value in zip(tables, "aab", strict=True):
        table["other"] = value
    assert set(varying_columns(given(*tables))) == {*survey(1, 0).columns, "other"}


# ---- expected results ----


@pytest.mark.slow
def test_the_excess_grows_with_the_share_copied_and_a_copy_is_linked_whole() -> None:
    train, holdout, fresh = parts((600, 300, 600), 1)
    results = [
        run(train, holdout, pd.concat([train[:copied], fresh[copied:]], ignore_index=True))
        for copied in (0, 60, 150, 300, 600)
    ]
    for name in ("excess", "risk"):
        values = [result.estimate(name).value for result in results]
        assert values == sorted(values) and abs(values[0]) < 0.05
    copy = results[-1]
    assert all(row["rate_train"] == 1 for row in copy.tables["sets"])
    assert copy.estimate("excess").value == pytest.approx(
        1 - np.mean([r["rate_holdout"] for r in copy.tables["sets"]])
    )
    assert copy.estimate("risk").value > 0.98
    assert [verdicts(result)[1] for result in (results[0], results[2], copy)] == [
        "pass",
        "fail",
        "fail",
    ]
    assert [verdicts(result)[0] for result in (results[0], copy)] == ["pass", "fail"]


def coarse_parts(sizes: tuple[int, int, int], seed: int) -> list[pd.DataFrame]:
    table, ends = coarse_table(sum(sizes), seed).iloc[:, :6], np.cumsum(sizes)
    return [
        table[end - size : end].reset_index(drop=True)
        for size, end in zip(sizes, ends, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "people", [(400, 100, 200), pytest.param((100, 400, 200), marks=pytest.mark.weekly)]
)
@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.weekly), 4])
def test_fresh_rows_sit_at_the_null_whatever_the_sizes_and_rows_of_a_person(
    people: tuple[int, int, int], rows: int
) -> None:
    """Values divided by the null deviation that their own intervals state are standard normal."""
    people = tuple(number // rows for number in people)
    subjects = {"train": np.arange(people[0]), "holdout": np.arange(people[0], sum(people[:2]))}
    subjects = {role: codes.repeat(rows) for role, codes in subjects.items()}
    z = []
    for seed in range(24):
        tables = [
            table.loc[table.index.repeat(rows)].reset_index(drop=True)
            for table in coarse_parts(people, seed)
        ]
        for table in tables:  # the years of a person: similar, not equal
            table["a"] += np.arange(len(table)) % rows // 2
        metric = Linkability(n_splits=3, n_permutations=199, max_targets=600)
        estimates = run(*tables, metric, subjects=subjects).estimates
        assert {one.subjects for one in estimates} == {sum(people[:2])}
        z.append([one.value / ((one.high - one.low) / 2 / 1.96) for one in estimates])
    assert np.abs(np.mean(z, axis=0)).max() < 3.5 / np.sqrt(24)
    assert np.abs(np.std(z, axis=0, ddof=1) - 1.05).max() < 0.45


def test_rows_that_keep_away_from_train_break_the_limit_from_the_other_side() -> None:
    train, holdout, fresh = coarse_parts((400, 400, 800), 2)
    known = set(train.fillna(-1).itertuples(index=False, name=None))
    kept = [row not in known for row in fresh.fillna(-1).itertuples(index=False, name=None)]
    result = run(train, holdout, fresh[kept])
    assert result.estimate("excess").high < -0.02
    assert verdicts(result)[1] == "fail"
    assert verdicts(run(train, holdout, fresh))[1] == "pass"


@pytest.mark.slow
def test_repeated_rows_change_nothing() -> None:
    train, holdout, fresh = parts((150, 150, 300), 4)
    once = run(train, holdout, fresh)
    for k in (1, 2):
        metric = Linkability(n_splits=6, n_permutations=199, n_neighbors=k)
        doubled = pd.concat([fresh, fresh[:100], fresh], ignore_index=True)
        assert (
            run(train, holdout, doubled, metric).estimates
            == run(train, holdout, fresh, metric).estimates
        )
    twice = [pd.concat([table, table], ignore_index=True) for table in (train, holdout)]
    subjects = {"train": np.tile(np.arange(150), 2), "holdout": np.tile(np.arange(150, 300), 2)}
    double = run(*twice, fresh, subjects=subjects)
    for a, b in zip(once.estimates, double.estimates, strict=True):
        assert b.value == pytest.approx(a.value, abs=1e-12)
        assert (a.n, b.n, a.subjects, b.subjects) == (300, 600, 300, 300)


def test_nothing_to_attack_is_not_measurable_and_does_not_pass() -> None:
    tables = [table.assign(same=1) for table in parts((100, 100, 100), 6)]
    own = Linkability(column_sets=(("age", "plan"), ("same",)), n_permutations=199)
    one_column = [table[["age"]] for table in tables]
    for result in (run(tables[0][:0], *tables[1:]), run(*one_column), run(*tables, own)):
        assert not any(estimate.measurable for estimate in result.estimates)
        assert verdicts(result) == ["undecided", "undecided"]


def test_a_coarse_table_links_everybody_and_gives_nobody_away() -> None:
    rng = np.random.default_rng(0)
    tables = [pd.DataFrame(rng.random((n, 4)) < 0.4, columns=list("abcd")) for n in (800, 300, 800)]
    result = run(*tables)
    assert result.estimate("excess").value == 0
    assert all(row["rate_holdout"] == 1 for row in result.tables["sets"])
    assert verdicts(result) == ["pass", "pass"]


def test_sets_of_ones_own() -> None:
    train, holdout, fresh = parts((300, 200, 300), 9)
    metric = Linkability(
        column_sets=[["income", "age"], ["weight", "visit", "place"]], n_permutations=199
    )
    result = run(train, holdout, train, metric)
    assert [row["columns"] for row in result.tables["sets"]] == ["2 + 3"]
    assert result.tables["sets"][0]["rate_train"] == 1
    assert metric == Linkability(
        column_sets=(("income", "age"), ("weight", "visit", "place")), n_permutations=199
    )
    # The other columns do not matter.
    fresh["plan"], fresh["smoker"] = "9", True
    scrambled = train.assign(plan=train["plan"].to_numpy()[::-1])
    assert run(train, holdout, scrambled, metric).estimates == result.estimates
    wrong = Linkability(column_sets=[["income"], ["wieght"]])
    with pytest.raises(ConfigError, match="Did you mean 'weight'"):
        run(train, holdout, fresh, wrong)


@pytest.mark.parametrize(
    "columns",
    [
        ["age", "plan"],
        [["age"], ["age"]],
        [["age", "age"], ["plan"]],
        [["age"], []],
        [["age"]],
        [["age"], [3]],
        "ab",
    ],
)
def test_sets_that_are_none_are_rejected_when_the_metric_is_built(columns: object) -> None:
    with pytest.raises(ConfigError, match="column_sets: .*two disjoint lists of column names"):
        Linkability(column_sets=columns)
