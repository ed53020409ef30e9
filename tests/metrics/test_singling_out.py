"""Singling out: brute-force twins of its statistics, and what must happen to copies, fresh rows and odd tables."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from privacy_assets.errors import ConfigError
from privacy_assets.metrics.singling_out import SinglingOut
from privacy_assets.metrics.singling_out import metric as singling_out
from privacy_assets.metrics.singling_out.evidence import (
    Configuration,
    exactly_one,
    giomi_risk,
    label_sets,
    risks,
)
from privacy_assets.stats.inference import permutation_band
from privacy_assets.stats.limits import judge_limit
from privacy_assets.stats.results import Estimate, MetricResult
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.table import Table
from tests.metrics.given_tables import given

QUICK = SinglingOut(attacks=300, permutations=200, candidates=50_000, patience=5_000, outliers=200)
LIMIT = SinglingOut.default_limits[0]


def people_table(rows: int, seed: int, columns: int = 8) -> pd.DataFrame:
    """A table of every kind of column, with missing values in each."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "income": np.round(rng.lognormal(size=rows) * 1_000, -1),
            "age": pd.array(rng.integers(18, 90, rows), dtype="Int64"),
            "place": rng.choice(["O'Hara", 'the "Hill"', "x", "y", "z"], rows, p=[0.05, 0.1, 0.2, 0.3, 0.35]),
            "smoker": pd.array(rng.random(rows) < 0.3, dtype="boolean"),
            "visit": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), unit="D"),
            "plan": rng.integers(0, 6, rows).astype(str),
            "weight": np.round(rng.normal(70, 12, rows)),
            "health": rng.choice(["good", "fair", "poor"], rows, p=[0.7, 0.2, 0.1]),
        }
    ).iloc[:, :columns]
    return frame.mask(rng.random(frame.shape) < 0.03)


def run(train: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame, metric=QUICK, **more) -> MetricResult:
    return metric.evaluate(given(train, holdout, synthetic, **more))


def parts(sizes: tuple[int, int, int], seed: int, columns: int = 8) -> list[pd.DataFrame]:
    table = people_table(sum(sizes), seed, columns)
    ends = np.cumsum(sizes)
    return [table[end - size : end].reset_index(drop=True) for size, end in zip(sizes, ends, strict=True)]


# ---- the statistics against enumeration ----


@pytest.mark.parametrize(("total", "drawn"), [(7, 3), (6, 5), (5, 1), (4, 4)])
def test_the_chance_of_exactly_one_is_that_of_all_ways_to_draw(total: int, drawn: int) -> None:
    ways = [set(way) for way in itertools.combinations(range(total), drawn)]
    naive = [np.mean([len(way & set(range(marked))) == 1 for way in ways]) for marked in range(total + 1)]
    assert exactly_one(total, np.arange(total + 1), drawn) == pytest.approx(naive, abs=1e-12)


def centre(hits: float, n: int) -> float:
    z = 1.959963984540054
    return (hits + z * z / 2) / (n + z * z)


def test_giomi_at_equal_sizes_is_the_papers() -> None:
    rng = np.random.default_rng(0)
    k, m = rng.integers(0, 4, 500), rng.integers(0, 3, 500)
    train, control = centre((k == 1).sum(), 500), centre((m == 1).sum(), 500)
    assert giomi_risk(k, m, 80, 80) == pytest.approx((train - control) / (1 - control), abs=1e-12)


@pytest.mark.parametrize(("members", "others"), [(9, 4), (4, 9)])
def test_giomi_brings_the_larger_side_to_the_size_of_the_smaller(members: int, others: int) -> None:
    rng = np.random.default_rng(0)
    k, m = rng.integers(0, members + 1, 40), rng.integers(0, others + 1, 40)
    small, large, most = (m, k, members) if others < members else (k, m, others)
    ways = [set(way) for way in itertools.combinations(range(most), min(members, others))]
    expected = sum(np.mean([len(way & set(range(x))) == 1 for way in ways]) for x in large)
    exact = (small == 1).sum()
    hits = (expected, exact) if others < members else (exact, expected)
    train, control = (centre(x, 40) for x in hits)
    assert giomi_risk(k, m, members, others) == pytest.approx((train - control) / (1 - control), abs=1e-12)


def bits(labels: np.ndarray) -> np.ndarray:
    """Bool (people, sets) of uint64 (people, words), bit by bit."""
    return (labels[:, :, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).reshape(len(labels), -1).astype(bool)


def test_risks_and_bands_agree_with_a_naive_twin() -> None:
    rng = np.random.default_rng(3)
    people = Subjects(np.arange(40), rng.random(40) < 0.6)
    matches = [[rng.choice(40, rng.integers(0, 6), replace=False) for _ in range(size)] for size in (12, 0, 30, 7)]
    relabelled = bits(label_sets(people, 150, np.random.default_rng(8)))[:, :150].T
    attacked = []
    for at, queries in enumerate(matches):
        k = np.array([people.member[found].sum() for found in queries], dtype=np.int64)
        null_hits = np.array([sum(member[found].sum() == 1 for found in queries) for member in relabelled])
        attacked.append(Configuration("multivariate", at, k, np.array([len(q) for q in queries]) - k, null_hits))
    alone, pool = risks([[attacked[at]] for at in (0, 2, 3)], people), risks([[attacked[2], attacked[3]]], people)

    share = people.member.mean()
    chances = [np.array([exactly_one(40, np.array([len(q)]), people.members)[0] for q in qs]) for qs in matches]

    def naive(member: np.ndarray, groups: list[list[int]]) -> list[float]:
        out = []
        for group in groups:
            excess = [
                float(member[q].sum() == 1) - chance
                for at in group
                for q, chance in zip(matches[at], chances[at], strict=True)
            ]
            out.append(np.mean(excess) / (1 - share))
        return out

    def twin(groups: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        null = np.array([naive(member, groups) for member in relabelled])
        band = permutation_band(np.array(naive(people.member, groups)), null)
        return band.low, band.high

    low, high = twin([[0], [2], [3]])
    assert alone.observed == pytest.approx(naive(people.member, [[0], [2], [3]]), abs=1e-9)
    assert alone.band().low == pytest.approx(low, abs=1e-6)
    assert alone.band().high == pytest.approx(high, abs=1e-6)
    low, high = twin([[2, 3]])
    estimate = pool.estimate(SinglingOut.spec("risk"), people.counts, within=(-math.inf, 1))
    assert (estimate.low, estimate.high) == pytest.approx((low[0], min(high[0], 1)), abs=1e-6)


@pytest.mark.parametrize(("total", "members"), [(2, 1), (5, 2), (6, 5), (300, 3), (300, 150), (300, 297)])
def test_relabelled_sets_have_the_size_and_all_are_as_likely(total: int, members: int) -> None:
    people = Subjects(np.arange(total), np.arange(total) < members)
    drawn = bits(label_sets(people, 6_400, np.random.default_rng(1)))
    assert drawn.shape == (total, 6_400)
    assert (drawn.sum(axis=0) == members).all()
    if total < 10:  # every set by itself
        ways = [set(way) for way in itertools.combinations(range(total), members)]
        found = np.array([sum(set(np.flatnonzero(one)) == way for one in drawn.T) for way in ways])
        assert found.sum() == 6_400
        assert stats.chisquare(found).pvalue > 1e-4
    else:  # every person, and pairs of people
        alone, share = drawn.sum(axis=1), members / total
        assert np.abs(alone - 6_400 * share).max() < 4.5 * np.sqrt(6_400 * share * (1 - share))
        both, chance = (drawn[::2] & drawn[1::2]).sum(), share * (members - 1) / (total - 1) * total / 2 * 6_400
        assert abs(both - chance) < 4.5 * np.sqrt(chance)


def test_hits_under_permuted_labels_follow_their_exact_law() -> None:
    """Twice the same chance: counted over permutations, and the hypergeometric one that the statistic subtracts."""
    attacked = []

    def keep(groups, people):
        attacked.append(([found for (found, *_) in groups], people))
        return risks(groups, people)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(singling_out, "risks", keep)
        run(*parts((300, 150, 300), 15), SinglingOut(columns=(2, 3), attacks=300, permutations=20_000, patience=5_000))
    found, people = attacked[0]
    for one in found:
        chance = exactly_one(len(people), one.in_train + one.in_holdout, people.members).sum()
        error = one.null_hits.std() / np.sqrt(len(one.null_hits))
        assert abs(one.null_hits.mean() - chance) < 4.5 * error


def test_the_number_of_threads_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, results = parts((300, 150, 300), 16), []
    for threads in ("1", "7"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        monkeypatch.setattr("joblib.cpu_count", lambda: 8)
        results.append(run(*tables, embedder=STUB).to_json())
    assert results[0]["estimates"] == results[1]["estimates"]
    assert results[0]["tables"] == results[1]["tables"]


# ---- what must happen ----


def test_a_copy_is_the_worst_and_the_risk_grows_with_the_share_copied() -> None:
    train, holdout, fresh = parts((600, 300, 600), 1)
    risks = []
    for copied in (0, 150, 300, 600):
        result = run(train, holdout, pd.concat([train[:copied], fresh[copied:]], ignore_index=True))
        risks.append(result.estimate("risk").value)
    assert risks == sorted(risks)
    assert abs(risks[0]) < 0.25 < risks[2] < 0.75
    copy = result
    assert risks[3] >= 0.98
    assert copy.estimate("risk").low > 0.8
    assert copy.estimate("risk_univariate").value >= 0.98
    assert copy.estimate("risk_max").value >= 0.98
    rows = {(row["attack"], row["columns"]): row for row in copy.tables["configurations"]}
    assert all(row["hits_train"] == row["attacks"] for row in rows.values())
    assert judge_limit(LIMIT, copy).status == "fail"


def standardised(estimates: list[Estimate]) -> np.ndarray:
    """Values over the null deviation that their own intervals claim."""
    return np.array([estimate.value / ((estimate.high - estimate.low) / 2 / 1.96) for estimate in estimates])


SMALL = SinglingOut(columns=(3, 6), attacks=200, permutations=100, candidates=20_000, patience=5_000)


@pytest.mark.parametrize(
    "sizes",
    [(400, 100, 300), *(pytest.param(one, marks=pytest.mark.slow) for one in [(100, 400, 300), (250, 250, 300)])],
)
def test_fresh_rows_sit_at_the_null_whatever_the_sizes(sizes: tuple[int, int, int]) -> None:
    z = standardised([run(*parts(sizes, seed + 10), SMALL).estimate("risk") for seed in range(24)])
    assert abs(z.mean()) < 3.5 / np.sqrt(24)
    assert 0.6 < z.std(ddof=1) < 1.5


def test_fresh_rows_lie_within_the_interval_about_as_often_as_it_says() -> None:
    inside = {"risk": 0, "risk_univariate": 0}
    for seed in range(40):
        result = run(*parts((200, 150, 200), seed + 50), SMALL)
        for name in inside:
            estimate = result.estimate(name)
            inside[name] += estimate.low <= 0 <= estimate.high
    assert stats.binom.cdf(min(inside.values()), 40, 0.95) > 0.005, inside


def test_intervals_hold_when_people_have_several_rows() -> None:
    estimates = []
    for seed in range(24):
        tables = [table.loc[table.index.repeat(4)].reset_index(drop=True) for table in parts((80, 40, 100), seed)]
        for table in tables:  # four years of a person: alike, not the same
            table["age"] = table["age"] + np.tile([0, 1, 2, 3], len(table) // 4)
            table["weight"] = table["weight"] + np.tile([0, 2, 0, 4], len(table) // 4)
        subjects = {"train": np.repeat(np.arange(80), 4), "holdout": np.repeat(np.arange(80, 120), 4)}
        estimates.append(run(*tables, SMALL, subjects=subjects).estimate("risk"))
    z = standardised(estimates)
    assert abs(z.mean()) < 3.5 / np.sqrt(24)
    assert 0.6 < z.std(ddof=1) < 1.5
    assert all((estimate.n, estimate.subjects) == (480, 120) for estimate in estimates)


def test_people_with_several_rows_are_counted_once() -> None:
    train, holdout, fresh = parts((150, 150, 300), 3)
    twice = [pd.concat([table, table], ignore_index=True) for table in (train, holdout)]
    subjects = {"train": np.tile(np.arange(150), 2), "holdout": np.tile(np.arange(150, 300), 2)}
    once, copied_once = run(train, holdout, fresh), run(train, holdout, train)
    double, copied = run(*twice, fresh, subjects=subjects), run(*twice, train, subjects=subjects)
    for a, b in ((once, double), (copied_once, copied)):
        assert a.estimate("risk").value == pytest.approx(b.estimate("risk").value, abs=1e-12)
        assert a.estimate("risk").subjects == b.estimate("risk").subjects == 300
        assert (a.estimate("risk").n, b.estimate("risk").n) == (300, 600)
    assert copied.estimate("risk").value >= 0.98


def test_repeating_every_row_does_not_hide_a_copy() -> None:
    train, holdout, decoys = parts((400, 200, 150), 5)
    once = run(train, holdout, train)
    assert run(train, holdout, pd.concat([train, train], ignore_index=True)).estimates == once.estimates
    # Nor do rows of no interest that stand once.
    hidden = run(train, holdout, pd.concat([train, train, decoys], ignore_index=True)).estimate("risk")
    assert hidden.value == pytest.approx(run(train, holdout, pd.concat([train, decoys])).estimate("risk").value)
    assert hidden.value > 0.5


def test_a_coarse_table_singles_nobody_out() -> None:
    rng = np.random.default_rng(0)
    tables = [pd.DataFrame(rng.random((n, 4)) < 0.4, columns=list("abcd")) for n in (800, 300, 800)]
    result = run(*tables)
    risk = result.estimate("risk")
    assert (risk.value, risk.high) == pytest.approx((0, 0), abs=1e-9)
    assert "queries have 4 columns" in risk.note
    assert math.isnan(result.estimate("risk_univariate").value)
    assert judge_limit(LIMIT, result).status == "pass"


def test_nothing_to_attack_is_not_measurable_and_does_not_pass() -> None:
    train, holdout, _ = parts((300, 300, 1), 6)
    for tables in ((train, holdout[:0], train), (train[:0], holdout, holdout), (train, holdout, train[:0])):
        result = run(*tables)
        assert not any(estimate.measurable for estimate in result.estimates)
        assert all(estimate.note for estimate in result.estimates)
        assert judge_limit(LIMIT, result).status == "not_assessable"
    constant = pd.DataFrame({"a": ["x"] * 50, "b": [1] * 50})
    result = run(constant, constant, constant)
    # The one query there is matches everyone: nobody is singled out.
    assert result.estimate("risk").value == pytest.approx(0, abs=1e-9)


def test_one_person_on_either_side() -> None:
    train, holdout, fresh = parts((200, 200, 200), 17)
    for tables in ((train[:1], holdout, fresh), (train, holdout[:1], fresh), (train[:1], holdout[:1], fresh)):
        estimate = run(*tables).estimate("risk")
        assert estimate.measurable
        assert estimate.low <= 0 <= estimate.high
    assert run(train[:1], holdout, train[:1]).estimate("risk").value >= 0.98


@pytest.mark.parametrize("rows", [1, 2])
def test_one_and_two_synthetic_rows(rows: int) -> None:
    train, holdout, fresh = parts((300, 300, 2), 7)
    assert run(train, holdout, fresh[:rows]).estimate("risk").measurable
    assert run(train, holdout, train[:rows], embedder=STUB).estimate("risk_embedded").value >= 0.98


@pytest.mark.parametrize(("columns", "pooled"), [(1, 1), (2, 2), (4, 4), (7, 7)])
def test_narrow_tables_use_the_columns_they_have(columns: int, pooled: int) -> None:
    result = run(*parts((200, 100, 200), 8, columns))
    widths = [row["columns"] for row in result.tables["configurations"] if row["attack"] == "multivariate"]
    assert max(widths) == columns
    assert len(widths) == len(set(widths))
    assert (f"queries have {pooled} columns" in result.estimate("risk").note) == (columns < 6)


def test_wide_tables_unseen_categories_and_an_outlier() -> None:
    train, holdout, fresh = parts((200, 100, 200), 9)
    for table in (train, holdout, fresh):
        for at in range(92):
            table[f"extra {at}"] = np.random.default_rng(at).integers(0, 3, len(table))
    fresh.loc[:20, "place"] = "nowhere"
    plain = run(train, holdout, fresh)
    assert plain.estimate("risk").measurable
    train.loc[0, "income"] = 1e12
    assert run(train, holdout, fresh).estimate("risk").value == pytest.approx(plain.estimate("risk").value, abs=0.02)


def embed(table: Table, device: str) -> np.ndarray:
    return table.frame()[["age", "weight"]].astype("Float64").fillna(50).to_numpy(dtype=np.float32)


STUB = SimpleNamespace(embed=embed)


def test_the_embedded_attack_is_a_family_of_its_own() -> None:
    tables = parts((400, 400, 400), 12)
    without, fresh, copy = (
        run(*tables),
        run(*tables, embedder=STUB),
        run(tables[0], *tables[1:2], tables[0], embedder=STUB),
    )
    assert without.estimate("risk_embedded").note == "no embedder was given"
    assert math.isnan(without.estimate("risk_embedded").value)
    # Looking from the embedding as well changes nothing about the other attacks.
    bounds = [
        [estimate.value, estimate.low, estimate.high] for estimate in (without.estimate("risk"), fresh.estimate("risk"))
    ]
    assert bounds[0] == pytest.approx(bounds[1], abs=1e-12)
    estimate = fresh.estimate("risk_embedded")
    assert estimate.low - 0.1 < 0 < estimate.high + 0.1
    assert copy.estimate("risk_embedded").value >= 0.98
    attacks = {row["attack"] for row in copy.tables["configurations"]}
    assert attacks == {"univariate", "multivariate", "embedded"}


def test_the_largest_risk_is_the_largest_of_the_table_and_its_null_is_above_zero() -> None:
    result = run(*parts((300, 150, 300), 13))
    estimate = result.estimate("risk_max")
    assert estimate.value == max(row["risk"] for row in result.tables["configurations"])
    assert estimate.high == max(row["high"] for row in result.tables["configurations"])
    assert 0 < estimate.null < 1
    assert "largest of" in estimate.note


@pytest.mark.parametrize(
    "wrong",
    [
        {"attacks": 0},
        {"columns": ()},
        {"columns": (3, 0)},
        {"columns": 6},
        {"permutations": 1.5},
        {"permutations": 1},
        {"outliers": True},
    ],
)
def test_wrong_settings_are_refused_when_the_metric_is_built(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SinglingOut(**wrong)


# ---- the truth on real tables ----


def cut(table: pd.DataFrame, sizes: tuple[int, ...], seed: int) -> list[pd.DataFrame]:
    order = np.random.default_rng(seed).permutation(len(table))[: sum(sizes)]
    return [table.iloc[rows].reset_index(drop=True) for rows in np.split(order, np.cumsum(sizes)[:-1])]


def test_a_holdout_of_40_people_cannot_judge(adult: pd.DataFrame) -> None:
    result = run(*cut(adult, (8_000, 40, 8_000), 0), SinglingOut(permutations=200))
    assert judge_limit(LIMIT, result).status == "not_assessable"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adult", "uk_census"])
def test_fresh_rows_hold_the_limit_and_copies_break_it(name: str, request: pytest.FixtureRequest) -> None:
    table = request.getfixturevalue(name)
    metric, held = SinglingOut(permutations=300), 0
    for seed in range(20):
        train, holdout, fresh = cut(table, (8_000, 2_000, 8_000), seed)
        held += judge_limit(LIMIT, run(train, holdout, fresh, metric)).status == "pass"
    assert held >= 19
    leak = pd.concat([train[:1_600], fresh[:6_400]], ignore_index=True)
    assert judge_limit(LIMIT, run(train, holdout, leak, metric)).status == "fail"
    copy = run(train, holdout, train, metric)
    wide = [row["risk"] for row in copy.tables["configurations"] if row["columns"] >= 6]
    assert min(wide) >= 0.98


def test_queries_that_never_come_true_do_not_rule_out_what_they_are_expected_to() -> None:
    """One query that five people match: no draw of labels leaves one member, though it has a chance."""
    people = Subjects(np.arange(1000), np.arange(1000) < 900)
    never = Configuration("univariate", 1, np.array([5]), np.array([0]), np.zeros(200, dtype=np.int64))
    estimate = risks([[never]], people).estimate(SinglingOut.spec("risk"), people.counts)
    assert estimate.value < 0 and estimate.low == estimate.value and estimate.high == 0
