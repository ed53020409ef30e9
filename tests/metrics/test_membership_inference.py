"""Membership inference against naive twins, enumeration, and releases of known truth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from privacy_assets.distances.nearest import nearest_rows
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.membership_inference.metric import attack
from privacy_assets.metrics.membership_inference.no_box import (
    SPECS,
    NoBoxScores,
    auc_estimates,
    score_rows,
)
from privacy_assets.metrics.membership_inference.scores import (
    CrossFittedScore,
    Population,
    build_population,
)
from privacy_assets.policy import Limit, Policy
from tests.metrics.given_tables import cut, given, naive_rates, release

ANY = Limit("membership_inference.advantage_any", 0.025, bound="proven")
POLICY = Policy((*MembershipInference.default_limits, ANY))
QUICK = MembershipInference(n_permutations=199)
AREAS = [spec.name for spec in SPECS]  # which need a reference


def evaluate(*tables, metric=QUICK, **options):
    return metric.measure(given(*tables, **options))


def judged(result):
    return POLICY.judge({"membership_inference": result})


def broken(result):
    return {outcome.limit.key for outcome in judged(result).not_passed}


# ------------------------------------------------------------------------- cross-fitted rates


def random_case(seed, subjects=60, decimals=1):
    g = np.random.default_rng(seed)
    codes = np.concatenate([np.arange(subjects), g.integers(0, subjects, subjects)])
    score = np.round(g.gamma(2, 1, len(codes)), decimals)
    score[:3], score[5:8] = math.inf, 0.0
    member = g.permutation(subjects) < 2 * subjects // 3
    return score, codes, g.permutation(subjects) % 2 == 1, member


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("decimals", [-2, 0, 1, 8])
def test_rates_of_each_labeling_are_the_naive_ones_with_ties(seed, decimals):
    score, codes, half, member = random_case(seed, decimals=decimals)
    g, shares = np.random.default_rng(seed), (0.001, 0.01, 0.1, 0.25, 0.5, 1.0)
    labels = np.stack([g.permutation(member) for _ in range(3)])
    tpr, fpr = CrossFittedScore(score, codes, half).rates(labels.astype(np.float32), shares)
    for at, label in enumerate(labels):
        naive = [
            naive_rates(score, codes, half, label, share, range(len(score))) for share in shares
        ]
        np.testing.assert_allclose(np.column_stack([tpr[at], fpr[at]]), naive, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("decimals", [0, 8])
def test_a_subject_counted_so_many_times_is_as_many_subjects_of_its_half(seed, decimals):
    score, codes, half, member = random_case(seed, decimals=decimals)
    times = np.random.default_rng(seed).integers(0, 4, (3, len(half)))
    shares, fitted = (0.001, 0.01, 0.1, 0.5, 1.0), CrossFittedScore(score, codes, half)
    tpr, fpr = fitted.rates(member.astype(np.float32)[None], shares, times)
    for at, drawn in enumerate(times):
        rows = np.repeat(np.arange(len(codes)), drawn[codes])
        naive = [naive_rates(score, codes, half, member, share, rows) for share in shares]
        np.testing.assert_allclose(np.column_stack([tpr[at], fpr[at]]), naive, atol=1e-12)


def blind_population(seed, by_row):
    """Scores that are one number per subject of four rows, independent of membership."""
    g = np.random.default_rng(seed)
    codes = np.repeat(np.arange(120), 4)
    score = g.random(120)[codes]
    member = g.permutation(120) < 80
    if by_row:
        codes, member = np.arange(480), member[codes]
    half = g.permutation(len(member)) % 2 == 1
    return Population(
        codes, member, {"distance": score, "distance / reference": score}, g.random(480), half
    )


@pytest.mark.weekly
def test_intervals_by_subject_hold_their_level_where_rows_repeat():
    misses = {True: np.zeros(2), False: np.zeros(2)}
    for seed, by_row in itertools.product(range(100), (False, True)):
        people, rng = blind_population(seed, by_row), np.random.default_rng(seed)
        found = NoBoxScores({}, dict.fromkeys(AREAS[1:], -people.scores["distance"]))
        estimates = attack(people, 199, rng)[0][0], auc_estimates(people, found, 199, rng)[0]
        misses[by_row] += [not one.low <= one.null <= one.high for one in estimates]
    assert (misses[False] <= 11).all()  # 5 expected, 99.5 % of the time at most 11
    assert (misses[True] >= 20).all()  # rows counted as subjects would be wrong


# ------------------------------------------------------------------------- scores


def naive_ratio(away, scale):
    return [
        1.0 if d == s == 0 else math.inf if s == 0 else d / s
        for d, s in zip(away, scale, strict=True)
    ]


def test_distances_are_the_naive_ones():
    """The first four rows are equal: three of one person, one of another, and S contains them
    too.
    """
    train, holdout, synthetic, reference = release(60, 40, 60, 60, copies=5)
    train = pd.concat([train.iloc[:1]] * 4 + [train.iloc[4:]], ignore_index=True)
    subjects = {
        "train": np.r_[0, 0, 0, 1, np.arange(2, 58) // 2 * 2],
        "holdout": np.arange(100, 140),
    }
    inputs = given(train, holdout, synthetic, reference, subjects=subjects)
    population = build_population(inputs)
    pool = np.concatenate([inputs.encoded(role).dense for role in ("train", "holdout")]).astype(
        float
    )
    synthetic, reference = (
        inputs.encoded(role).dense.astype(float) for role in ("synthetic", "reference")
    )
    away = [
        np.sqrt(((pool[:, None] - x[None]) ** 2).sum(axis=2)) for x in (synthetic, reference, pool)
    ]
    codes = np.concatenate(list(subjects.values()))
    away[2][codes[:, None] == codes] = np.inf
    d, r, n = (x.min(axis=1) for x in away)
    assert n[:4].max() == 0
    naive = {
        "distance": d,
        "distance / reference": naive_ratio(d, r),
        "distance / neighbor": naive_ratio(d, n),
    }
    handed = build_population(inputs, score_rows(inputs).distances)  # the search is not repeated
    rows = np.r_[0:4, 60:100]
    some = build_population(inputs, rows=rows)
    np.testing.assert_array_equal(
        some.member[some.codes], population.member[population.codes[rows]]
    )
    np.testing.assert_array_equal(
        some.codes, np.unique(population.codes[rows], return_inverse=True)[1]
    )
    for name, score in naive.items():
        np.testing.assert_allclose(population.scores[name], score, atol=1e-6)
        np.testing.assert_array_equal(handed.scores[name], population.scores[name])
        np.testing.assert_array_equal(some.scores[name], population.scores[name][rows])


# ------------------------------------------------------------------------- known truth, made-up
# table


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes",
    [
        (1600, 400, 500, 1200),
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ((400, 1600, 2000, 300), (400, 1600, 400))
        ),
    ],
)
def test_copy_is_worst_and_fresh_is_null_at_any_sizes(sizes):
    train, holdout, fresh, *reference = release(*sizes)
    null, copy = (evaluate(train, holdout, synthetic, *reference) for synthetic in (fresh, train))
    for name in ["advantage", *(AREAS if reference else ())]:
        estimate = null.estimate(name)
        assert estimate.measurable and estimate.low <= estimate.null <= estimate.high
        assert copy.estimate(name).low > estimate.null
    assert "fail" not in {outcome.status for outcome in judged(null).outcomes}
    assert copy.estimate("precision").value > 0.88 and copy.estimate("advantage_any").low > 0.9
    assert judged(copy).status == "fail"
    assert len(copy.tables["curve"]) == (18 if reference else 12)
    if reference:
        assert copy.estimate("auc_reference_ratio").value > 0.99


@pytest.mark.slow
def test_more_copies_are_never_safer():
    results = [
        evaluate(*release(1000, 500, 1000, 600, copies=copies)) for copies in (0, 200, 500, 1000)
    ]
    for name in ("advantage", *AREAS):
        values = [result.estimate(name).value for result in results]
        assert values == sorted(values), name


@pytest.mark.slow
def test_avoiding_the_training_rows_is_blocked():
    train, holdout, fresh, reference = release(3000, 1000, 3000, 1000)
    inputs = given(train, holdout, fresh)
    away = nearest_rows(inputs.encoded("synthetic"), inputs.encoded("train")).distances[:, 0]
    result = evaluate(train, holdout, fresh[away > np.quantile(away, 0.2)], reference)
    assert (
        result.estimate("advantage").high < 0 and result.estimate("auc_reference_ratio").high < 0.5
    )
    assert "membership_inference.advantage_any.proven" in broken(result)
    assert judged(result).status == "fail"


@pytest.mark.slow
def test_duplicated_people_do_not_hide_a_copy():
    train, holdout, _ = release(600, 300, 0)
    doubled = [pd.concat([x, x], ignore_index=True) for x in (train, holdout)]
    result = evaluate(*doubled, train)
    assert result.estimate("precision").value > 0.88
    assert judged(result).status == "fail"


# ------------------------------------------------------------------------- too few rows to evaluate


@pytest.mark.parametrize("sizes", [(19, 50), (2000, 19)])
def test_too_few_subjects_are_not_measurable(sizes):
    result = evaluate(*release(*sizes, 60))
    assert all(
        math.isnan(estimate.value) and "not measurable" in estimate.note
        for estimate in result.estimates
    )
    assert judged(result).status == "undecided"


def test_a_small_holdout_is_blind():
    result = evaluate(*release(4000, 40, 4000))
    assert judged(result).status == "undecided"
    assert math.isnan(result.estimate("precision").value)
    assert result.estimate("advantage").minimum_detectable_effect > 0.07


@pytest.mark.slow
def test_the_lowest_rate_needs_ten_thousand_non_members():
    few = evaluate(*release(300, 300, 1)).estimate("tpr_low_fpr")
    assert math.isnan(few.value)
    assert few.note.startswith("not measurable: 300 non-members")
    members = np.arange(11_500) < 1500
    g = np.random.default_rng(0)
    score = np.where(members & (g.random(11_500) < 0.3), 0.0, g.random(11_500))
    population = Population(
        np.arange(11_500), members, {"distance": score}, g.random(11_500), g.random(11_500) < 0.5
    )
    enough = {estimate.name: estimate for estimate in attack(population, 199, g)[0]}["tpr_low_fpr"]
    assert enough.value == pytest.approx(0.3, abs=0.03)
    assert enough.low > 0.001


@pytest.mark.slow
@pytest.mark.parametrize("column", ["seen", "smokes"])
def test_tables_of_one_column(column):
    result = evaluate(*(table[[column]] for table in release(400, 300, 300, 200)))
    for name in ("advantage", *AREAS):
        estimate = result.estimate(name)
        assert (
            max(estimate.high - estimate.null, estimate.null - estimate.low)
            <= estimate.minimum_detectable_effect
        )


# ------------------------------------------------------------------------- known truth, a real
# table


@pytest.mark.weekly
def test_jittered_copies_of_isolated_people_are_seen_where_all_together_are_not(adult):
    train, holdout, fresh, reference = cut(adult, 8000, 2000, 8000, 2000)
    g, outliers = (
        np.random.default_rng(0),
        build_population(given(train, holdout, fresh)).neighbor[: len(train)],
    )
    jittered = train.iloc[np.argsort(-outliers)[:40]].copy()
    for name in jittered.select_dtypes("number"):
        moved = jittered[name] + g.normal(0, 0.1 * adult[name].std(), 40)
        jittered[name] = moved.round().astype(adult[name].dtype)
    isolated = pd.concat([jittered, fresh.iloc[40:]], ignore_index=True)
    honest, leak = (
        evaluate(train, holdout, synthetic, reference) for synthetic in (fresh, isolated)
    )
    assert broken(honest) == set()
    assert leak.estimate("outlier_excess").low > 0 > leak.estimate("advantage").low
