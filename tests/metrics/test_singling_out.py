"""Singling out: brute-force twins of its statistics, and expected results for copies, fresh rows
and odd tables.
"""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from privacy_assets.metrics.policies import load_policy
from privacy_assets.metrics.singling_out import SinglingOut
from privacy_assets.metrics.singling_out import metric as singling_out
from privacy_assets.metrics.singling_out.metric import Configuration, exactly_one, giomi_risk, risks
from privacy_assets.policy import Limit, judge_limit
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.stats.intervals import wilson_center
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.table import Table
from tests.metrics.given_tables import given
from tests.metrics.surveys import parts

QUICK = SinglingOut(
    n_queries=300, n_permutations=200, candidates=50_000, patience=5_000, outliers=200
)
LIMIT = SinglingOut.default_limits[0]


def run(
    train: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame, metric=QUICK, **more
) -> MetricResult:
    return metric.measure(given(train, holdout, synthetic, **more))


# ---- the statistics against enumeration ----


@pytest.mark.parametrize(("total", "drawn"), [(7, 3), (6, 5), (5, 1), (4, 4)])
def test_the_chance_of_exactly_one_is_that_of_all_ways_to_draw(total: int, drawn: int) -> None:
    ways = [set(way) for way in itertools.combinations(range(total), drawn)]
    naive = [
        np.mean([len(way & set(range(marked))) == 1 for way in ways]) for marked in range(total + 1)
    ]
    assert exactly_one(total, np.arange(total + 1), drawn) == pytest.approx(naive, abs=1e-12)


@pytest.mark.parametrize(("members", "others"), [(9, 4), (4, 9), (6, 6)])
def test_giomi_brings_the_larger_side_to_the_size_of_the_smaller(members: int, others: int) -> None:
    rng = np.random.default_rng(0)
    k, m = rng.integers(0, members + 1, 40), rng.integers(0, others + 1, 40)
    small, large, most = (m, k, members) if others < members else (k, m, others)
    ways = [set(way) for way in itertools.combinations(range(most), min(members, others))]
    expected = sum(np.mean([len(way & set(range(x))) == 1 for way in ways]) for x in large)
    exact = (small == 1).sum()
    hits = (expected, exact) if others < members else (exact, expected)
    train, control = (wilson_center(x, 40) for x in hits)
    assert giomi_risk(k, m, members, others)[0] == pytest.approx(
        (train - control) / (1 - control), abs=1e-12
    )


@pytest.mark.parametrize(
    ("hits_train", "hits_non_members"), [(0, 0), (7, 0), (90, 30), (30, 90), (200, 199), (200, 0)]
)
def test_giomis_interval_is_that_of_equations_6_and_7(
    hits_train: int, hits_non_members: int
) -> None:
    """Wilson's interval by the roots of its quadratic, and delta_R by numeric derivatives of eq.
    7.
    """
    queries, z = 200, NormalDist().inv_cdf(0.975)

    def rate(hits: int) -> tuple[float, float]:
        # The ends p of Wilson's interval solve (p - hits / n)^2 = z^2 p (1 - p) / n.
        share = hits / queries
        ends = np.roots([1 + z * z / queries, -2 * share - z * z / queries, share * share]).real
        return ends.mean(), np.ptp(ends) / 2

    def risk(train: float, control: float) -> float:
        return (train - control) / (1 - control)

    (train, d_train), (control, d_control) = rate(hits_train), rate(hits_non_members)
    step = 1e-6
    slope_train = (risk(train + step, control) - risk(train - step, control)) / (2 * step)
    slope_control = (risk(train, control + step) - risk(train, control - step)) / (2 * step)
    half = math.sqrt((slope_train * d_train) ** 2 + (slope_control * d_control) ** 2)
    value = risk(train, control)
    found = giomi_risk(
        *(np.arange(queries) < hits for hits in (hits_train, hits_non_members)), 50, 50
    )
    assert found == pytest.approx((value, value - half, min(value + half, 1.0)), rel=1e-6, abs=1e-6)


def test_no_query_has_no_published_risk() -> None:
    assert all(
        math.isnan(end) for end in giomi_risk(np.zeros(0, np.int64), np.zeros(0, np.int64), 5, 5)
    )


@pytest.mark.parametrize("copied", [0, 200, 400])
def test_the_published_risk_is_the_largest_configuration(copied: int) -> None:
    """Equal sides: the counts of the table give R by hand. The embedded attack has its own
    figure.
    """
    train, holdout, fresh = parts((400, 400, 400), 21)
    synthetic = pd.concat([train[:copied], fresh[copied:]], ignore_index=True)
    result = run(train, holdout, synthetic, embedder=STUB)
    by_hand: dict[bool, list[float]] = {True: [], False: []}
    for row in result.tables["configurations"]:
        n, z2 = row["attacks"], 1.959964**2
        rate_train, rate_control = (
            (row[f"hits_{side}"] + z2 / 2) / (n + z2) for side in ("train", "non_members")
        )
        by_hand[row["attack"] == "embedded"].append(
            (rate_train - rate_control) / (1 - rate_control)
        )
    for name, embedded in (("risk_giomi", False), ("risk_giomi_embedded", True)):
        estimate = result.estimate(name)
        assert estimate.value == pytest.approx(max(by_hand[embedded]), abs=1e-6)
        assert estimate.low < estimate.value < estimate.high <= 1
        assert f"the largest of {len(by_hand[embedded])} configurations" in estimate.note
    assert result.estimate("risk_giomi").low > 0.9 or copied < 400
    assert result.estimate("risk_giomi").low < 0.2 or copied > 0
    order = np.random.default_rng(0).permutation(400)
    again = run(train.iloc[order], holdout.iloc[::-1], synthetic.iloc[order], embedder=STUB)
    assert again.estimate("risk_giomi") == result.estimate("risk_giomi")


@pytest.mark.parametrize("statistic", ["risk_giomi", "risk_giomi_embedded"])
def test_the_published_risk_can_be_limited(statistic: str) -> None:
    limit = Limit(f"singling_out.{statistic}", at_most=0.3)
    train, holdout, fresh = parts((400, 400, 400), 22)
    found = [
        judge_limit(limit, run(train, holdout, rows, embedder=STUB)).status
        for rows in (fresh, train)
    ]
    assert found == ["pass", "fail"]
    assert load_policy({"limits": [{"statistic": limit.statistic, "at_most": 0.3}]}).limits == (
        limit,
    )


def test_hits_under_permuted_labels_follow_their_exact_law() -> None:
    """One probability twice: counted over permutations, and the hypergeometric one that the
    statistic subtracts.
    """
    attacked = []

    def keep(groups, people, *fewest):
        attacked.append(([found for (found, *_) in groups], people))
        return risks(groups, people, *fewest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(singling_out, "risks", keep)
        run(
            *parts((300, 150, 300), 15),
            SinglingOut(query_sizes=(2, 3), n_queries=300, n_permutations=6_000, patience=5_000),
        )
    found, people = attacked[0]
    for one in found:
        chance = exactly_one(len(people), one.in_train + one.in_non_members, people.members).sum()
        error = one.null_hits.std() / np.sqrt(len(one.null_hits))
        assert abs(one.null_hits.mean() - chance) < 4.5 * error


def test_the_number_of_threads_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, results = parts((300, 150, 300), 16), []
    for threads in ("1", "7"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        monkeypatch.setattr("privacy_assets.infra.parallel.cores", lambda: 8)
        results.append(run(*tables, embedder=STUB).to_json())
    assert results[0]["estimates"] == results[1]["estimates"]
    assert results[0]["tables"] == results[1]["tables"]


# ---- expected results ----


def test_the_risk_grows_with_the_share_copied_and_a_copy_is_singled_out_whole() -> None:
    train, holdout, fresh = parts((600, 300, 600), 1)
    results = [
        run(train, holdout, pd.concat([train[:copied], fresh[copied:]], ignore_index=True))
        for copied in (0, 150, 300, 600)
    ]
    risks = [result.estimate("risk").value for result in results]
    assert risks == sorted(risks)
    assert abs(risks[0]) < 0.25 < risks[2] < 0.75
    copy = results[-1]
    assert (
        min(copy.estimate(name).value for name in ("risk", "risk_univariate", "risk_max")) >= 0.98
    )
    assert copy.estimate("risk").low > 0.8
    assert all(row["hits_train"] == row["attacks"] for row in copy.tables["configurations"])
    assert judge_limit(LIMIT, copy).status == "fail"


SMALL = SinglingOut(
    query_sizes=(3, 6), n_queries=200, n_permutations=100, candidates=20_000, patience=5_000
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "people", [(400, 100, 300), pytest.param((100, 400, 300), marks=pytest.mark.weekly)]
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
            for table in parts(people, seed + 10)
        ]
        for table in tables:  # the years of a person: similar, not equal
            table["age"] += np.arange(len(table)) % rows
            table["weight"] += 2 * (np.arange(len(table)) % rows)
        estimate = run(*tables, SMALL, subjects=subjects).estimate("risk")
        assert (estimate.n, estimate.subjects) == (rows * sum(people[:2]), sum(people[:2]))
        z.append(estimate.value / ((estimate.high - estimate.low) / 2 / 1.96))
    assert abs(np.mean(z)) < 3.5 / np.sqrt(24)
    assert 0.6 < np.std(z, ddof=1) < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_reference_counts_as_unseen_and_makes_the_interval_narrower(rows: int) -> None:
    """Fresh rows stay at the null. The people of a small holdout and the reference are pooled."""
    z, narrower = [], []
    for seed in range(12):
        train, holdout, fresh = parts((300, 400, 300), seed + 40)
        codes = np.arange(700) // rows
        sides = {"train": (train, codes[:300]), "holdout": (holdout[:101], codes[300:401])}
        pieces = {"reference": (holdout[101:].reset_index(drop=True), 10_000 + codes[401:])}
        whole = {
            "train": sides["train"],
            "holdout": (holdout, np.append(codes[300:401], pieces["reference"][1])),
        }
        few, more, same = (
            run(
                **{role: frame for role, (frame, _) in given.items()},
                synthetic=fresh,
                metric=SMALL,
                subjects={role: codes for role, (_, codes) in given.items()},
            ).estimate("risk")
            for given in (sides, sides | pieces, whole)
        )
        assert (more.value, more.low, more.high) == (same.value, same.low, same.high)
        assert more.subjects == same.subjects > few.subjects
        z.append(more.value / ((more.high - more.low) / 2 / 1.96))
        narrower.append((more.high - more.low) / (few.high - few.low))
    assert np.median(narrower) < 0.8
    assert abs(np.mean(z)) < 3.5 / np.sqrt(12)
    assert 0.5 < np.std(z, ddof=1) < 1.5


def test_repeating_every_row_does_not_hide_a_copy() -> None:
    train, holdout, decoys = parts((400, 200, 150), 5)
    once = run(train, holdout, train)
    assert (
        run(train, holdout, pd.concat([train, train], ignore_index=True)).estimates
        == once.estimates
    )
    # Unrelated rows that occur once do not hide it either.
    hidden = run(train, holdout, pd.concat([train, train, decoys], ignore_index=True)).estimate(
        "risk"
    )
    assert hidden.value == pytest.approx(
        run(train, holdout, pd.concat([train, decoys])).estimate("risk").value
    )
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


@pytest.mark.slow
def test_the_smallest_tables() -> None:
    train, holdout, fresh = parts((200, 200, 200), 17)
    for tables in (
        (train[:1], holdout, fresh),
        (train, holdout[:1], fresh),
        (train[:1], holdout[:1], fresh),
    ):
        estimate = run(*tables).estimate("risk")
        assert estimate.measurable and estimate.low <= 0 <= estimate.high
    assert run(train[:1], holdout, train[:1]).estimate("risk").value >= 0.98
    for rows in (1, 2):
        assert (
            run(train, holdout, train[:rows], embedder=STUB).estimate("risk_embedded").value >= 0.98
        )
    assert not any(estimate.measurable for estimate in run(train[:0], holdout, holdout).estimates)
    constant = pd.DataFrame({"a": ["x"] * 50, "b": [1] * 50})
    # The only query matches all people, so no person is singled out.
    assert run(constant, constant, constant).estimate("risk").value == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("columns", [1, 4, 7])
def test_narrow_tables_use_the_columns_they_have(columns: int) -> None:
    result = run(*parts((200, 100, 200), 8, columns))
    widths = [
        row["columns"] for row in result.tables["configurations"] if row["attack"] == "multivariate"
    ]
    assert max(widths) == columns
    assert len(widths) == len(set(widths))
    assert (f"queries have {columns} columns" in result.estimate("risk").note) == (columns < 6)


def embed(table: Table, device: str) -> np.ndarray:
    return table.frame()[["age", "weight"]].astype("Float64").fillna(50).to_numpy(dtype=np.float32)


STUB = SimpleNamespace(embed=embed)


def test_the_embedded_attack_is_a_family_of_its_own() -> None:
    train, holdout, fresh = parts((400, 400, 400), 12)
    without, with_, copy = (
        run(train, holdout, synthetic, embedder=embedder)
        for synthetic, embedder in ((fresh, None), (fresh, STUB), (train, STUB))
    )
    assert without.estimate("risk_embedded").note == "no embedder was passed"
    assert not without.estimate("risk_embedded").measurable
    # The additional attack on the embedding does not change the other attacks.
    assert without.estimate("risk") == with_.estimate("risk")
    estimate = with_.estimate("risk_embedded")
    assert estimate.low - 0.1 < 0 < estimate.high + 0.1
    assert copy.estimate("risk_embedded").value >= 0.98
    assert without.estimate("risk_giomi_embedded").note == "no embedder was passed"
    assert without.estimate("risk_giomi") == with_.estimate("risk_giomi")
    assert copy.estimate("risk_giomi_embedded").low > 0.9
    assert {row["attack"] for row in copy.tables["configurations"]} == {
        "univariate",
        "multivariate",
        "embedded",
    }


def test_a_holdout_of_40_people_cannot_judge() -> None:
    assert judge_limit(LIMIT, run(*parts((1_500, 40, 1_500), 2))).status == "undecided"


def test_queries_that_never_come_true_do_not_rule_out_what_they_are_expected_to() -> None:
    """One query that five people match: no draw of labels leaves one member, though this has a
    positive probability.
    """
    people = Subjects(np.arange(1000), np.arange(1000) < 900)
    never = Configuration(
        "univariate", 1, np.array([5]), np.array([0]), np.zeros(200, dtype=np.int64)
    )
    estimate = risks([[never]], people).estimate(SinglingOut.statistic("risk"), people.counts)
    assert estimate.value < 0 and estimate.low == estimate.value and estimate.high == 0


def test_a_handful_of_queries_is_a_share_of_the_people_and_not_of_themselves() -> None:
    """Ten people of a thousand are unique, and leaked: ten of 75 guesses come true, a quarter of
    the attacks.
    """
    rng = np.random.default_rng(0)
    crowd = [
        pd.DataFrame(rng.integers(0, 2, (1000, 1)).astype(str), columns=["a"]) for _ in range(3)
    ]
    apart = pd.DataFrame([[f"own {i}"] for i in range(10)], columns=["a"])
    train, synthetic = (
        pd.concat([table[:-10], apart], ignore_index=True) for table in (crowd[0], crowd[2])
    )
    risk = run(train, crowd[1], synthetic).estimate("risk")
    assert risk.value == pytest.approx(10 / 75) and risk.low > 0
    few = synthetic[-10:].reset_index(drop=True)
    assert run(train, crowd[1], few).estimate("risk").value == pytest.approx(1)
    # Many people and few attacks do not reduce power: ten of the twelve existing queries come true.
    metric = SinglingOut(n_queries=20, n_permutations=200, candidates=50_000, patience=5_000)
    assert run(train, crowd[1], synthetic, metric).estimate("risk").value == pytest.approx(10 / 12)


@pytest.mark.slow
def test_on_a_table_of_few_coarse_columns_a_copy_is_told_from_fresh_rows() -> None:
    """Thresholds isolate only its corners; bins of the numbers make the interval narrow enough."""

    def coarse(rows: int, seed: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        flags = {f"f{i}": rng.random(rows) < 0.3 for i in range(5)}
        return pd.DataFrame(
            {"age": rng.integers(18, 70, rows), "school": rng.integers(1, 6, rows), **flags}
        )

    metric, (train, holdout, fresh) = (
        SinglingOut(n_permutations=400),
        (coarse(1_500, seed) for seed in range(3)),
    )
    harmless, copy = (
        run(train, holdout, table, metric).estimate("risk") for table in (fresh, train)
    )
    assert harmless.low < 0 < harmless.high < 0.09 < 0.8 < copy.low
