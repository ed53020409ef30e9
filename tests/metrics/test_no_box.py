"""No-box attacks against densities written out, refitted ones, pairs counted one by one, and known releases."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from privacy_assets.metrics.membership_inference import MembershipInference, no_box
from privacy_assets.metrics.membership_inference.no_box import (
    BANDWIDTHS,
    INFLUENCED,
    NEIGHBOURS,
    SPECS,
    NoBoxScores,
    auc_estimates,
    choose_bandwidth,
    plagiarism_index,
    score_rows,
)
from privacy_assets.metrics.membership_inference.scores import Population, build_population
from privacy_assets.shadow.rates import auc
from privacy_assets.tables.encoding import EncodedTable
from privacy_assets.tables.schema import infer_schema
from privacy_assets.tables.table import Table
from tests.tables import metric_inputs

NAMES = [spec.name for spec in SPECS]


def mixed(n, seed, missing=0.0):
    g = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": g.integers(18, 90, n),
            "income": g.lognormal(3, 0.5, n),
            "region": g.choice(list("abcdef"), n, p=[0.4, 0.2, 0.2, 0.1, 0.05, 0.05]),
            "smokes": g.random(n) < 0.3,
        }
    )
    if missing:
        hidden = g.random(frame.shape) < missing
        frame = frame.astype(object).mask(hidden).infer_objects().convert_dtypes()
    return frame


def release(sizes, seed=0, copies=0, missing=0.0):
    """Train, holdout, synthetic and reference rows of one law; ``copies`` of the synthetic rows are training rows."""
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    frame = mixed(sum(sizes), seed, missing)
    train, holdout, fresh, reference = (frame.iloc[part].reset_index(drop=True) for part in parts)
    return train, holdout, pd.concat([train.iloc[:copies], fresh.iloc[copies:]], ignore_index=True), reference


def inputs_of(train, holdout, synthetic, reference=None, subjects=None, seed=0):
    frames = {"train": train, "holdout": holdout, "synthetic": synthetic}
    frames |= {} if reference is None else {"reference": reference}
    schema = infer_schema(pd.concat(list(frames.values()), ignore_index=True))
    tables = {role: Table.of(frame, schema, where=role, smallest=0).frame() for role, frame in frames.items()}
    return metric_inputs(schema, tables, subjects or {}, seed=seed)


def estimates(*tables, **options):
    return MembershipInference(permutations=199).evaluate(inputs_of(*tables, **options))


# ------------------------------------------------------------------------- densities, written out


def density(x, rows, width):
    """Density at row ``x`` of the normed product kernel over ``rows``; categories are normed by the encoder's."""
    away = np.exp(-1 / (2 * width**2))
    numbers = stats.norm.pdf(x.numeric.astype(float), rows.numeric.astype(float), width).prod(axis=1)
    categories = np.where(x.codes == rows.codes, 1, away) / (1 + (rows.sizes - 1) * away)
    return float((numbers * categories.prod(axis=1)).mean())


def distance(x, rows):
    return np.sqrt(((x.numeric.astype(float) - rows.numeric) ** 2).sum(axis=1) + (x.codes != rows.codes).sum(axis=1))


def encoded(inputs):
    pool = EncodedTable.stack([inputs.encoded("train"), inputs.encoded("holdout")])
    return pool, inputs.encoded("synthetic"), inputs.encoded("reference")


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_domias_is_the_ratio_of_densities(missing):
    inputs = inputs_of(*release((30, 25, 18, 20), missing=missing))  # no more than are summed over
    pool, synthetic, reference = encoded(inputs)
    width = choose_bandwidth(reference, np.arange(20))
    naive = [
        math.log(density(pool.take([i]), synthetic, width) / density(pool.take([i]), reference, width))
        for i in range(len(pool))
    ]
    np.testing.assert_allclose(score_rows(inputs).scores["auc_domias"], naive, atol=1e-9)


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_gen_lra_is_the_likelihood_under_a_refitted_density(missing):
    inputs = inputs_of(*release((30, 25, 40, 20), missing=missing, copies=10))
    pool, synthetic, reference = encoded(inputs)
    width = choose_bandwidth(reference, np.arange(20))
    naive = []
    for i in range(len(pool)):
        x = pool.take([i])
        joined = EncodedTable.stack([reference, x])
        nearest = np.argsort(distance(x, synthetic), kind="stable")[:INFLUENCED]
        rows = [synthetic.take([s]) for s in nearest]
        naive.append(sum(math.log(density(s, joined, width) / density(s, reference, width)) for s in rows))
    np.testing.assert_allclose(score_rows(inputs).scores["auc_gen_lra"], naive, atol=1e-9)


def test_the_sum_over_the_nearest_rows_is_that_over_all():
    inputs = inputs_of(*release((300, 200, 400, 300)))
    pool, synthetic, reference = encoded(inputs)
    width = choose_bandwidth(reference, np.arange(300))
    found = score_rows(inputs).scores["auc_domias"]
    full = [
        math.log(density(pool.take([i]), synthetic, width) / density(pool.take([i]), reference, width))
        for i in range(len(pool))
    ]
    assert stats.spearmanr(found, full).statistic > 0.95


@pytest.mark.parametrize("seed", range(4))
def test_the_bandwidth_is_the_likeliest_for_rows_of_others(seed):
    frame = mixed(20, seed)
    frame = pd.concat([frame, frame.iloc[:6].assign(age=lambda part: part.age + 1)], ignore_index=True)
    codes = np.r_[np.arange(20), np.arange(6)]
    rows = inputs_of(frame, frame, frame, frame).encoded("reference")
    rows = EncodedTable(rows.numeric, rows.codes, np.array([np.unique(column).size for column in rows.codes.T]))
    away = np.array([distance(rows.take([i]), rows) for i in range(len(rows))])
    away[codes[:, None] == codes] = np.inf
    nearest = away.min(axis=1)
    typical = np.flatnonzero(nearest <= np.sort(nearest)[math.ceil(0.95 * len(rows)) - 1])

    def likelihood(width):
        others = [np.argsort(away[i], kind="stable")[:19] for i in typical]  # all rows of other people but a few
        kept = [other[np.isfinite(away[i][other])] for i, other in zip(typical, others, strict=True)]
        return sum(
            math.log(density(rows.take([i]), rows.take(other), width) * len(other) + 1e-300)
            for i, other in zip(typical, kept, strict=True)
        )

    assert choose_bandwidth(rows, codes) == max(BANDWIDTHS, key=likelihood)
    assert choose_bandwidth(rows, np.arange(26)) < choose_bandwidth(rows, codes)  # near-equal rows would count


def test_one_outlier_does_not_widen_the_kernel():
    frame = mixed(400, 0)
    plain = inputs_of(frame, frame, frame, frame)
    away = frame.assign(income=frame.income.where(frame.index > 0, 1e12))
    outlying = inputs_of(frame, frame, frame, away)
    chosen = [choose_bandwidth(one.encoded("reference"), np.arange(400)) for one in (plain, outlying)]
    assert chosen[0] == chosen[1]


# ------------------------------------------------------------------------- the data plagiarism index


def naive_index(near, away):
    """Every neighbour one by one; those at the distance of the last one share the places that are left."""
    both = sorted([*near, *away])
    k = min(NEIGHBOURS, len(both))
    last = both[k - 1]
    left = k - sum(d < last for d in both)
    copied = sum(d < last for d in near) + left * sum(d == last for d in near) / sum(d == last for d in both)
    return (copied + 0.5) / len(near) / ((k - copied + 0.5) / len(away))


@pytest.mark.parametrize("seed", range(20))
def test_the_index_is_the_naive_one_with_ties(seed):
    g = np.random.default_rng(seed)
    near, away = (np.sort(g.integers(0, 6, g.integers(1, 21)).astype(float)) for _ in range(2))
    padded = [np.pad(found, (0, NEIGHBOURS - len(found)), constant_values=np.inf)[None] for found in (near, away)]
    found = plagiarism_index(*padded, len(near), len(away))
    np.testing.assert_allclose(found, [naive_index(near, away)], rtol=1e-12)


def test_the_index_is_one_where_both_tables_are_as_near():
    near = np.arange(20.0)[None]
    np.testing.assert_allclose(plagiarism_index(near, near, 500, 500), [1.0])
    assert plagiarism_index(near, near + 100, 500, 500) > 30
    assert plagiarism_index(near, near + 100, 5000, 500) < plagiarism_index(near, near + 100, 500, 500)


# ------------------------------------------------------------------------- areas and their intervals


def population(score, codes, member):
    g = np.random.default_rng(0)
    scores = {"distance / reference": -np.asarray(score, dtype=float)}
    return Population(codes, member, scores, np.ones(len(codes)), g.random(len(member)) < 0.5)


def areas(score, codes, member, permutations=199, seed=0):
    same = dict.fromkeys(NAMES[1:], np.asarray(score, dtype=float))
    people = population(score, codes, member)
    return auc_estimates(people, NoBoxScores({}, same), permutations, np.random.default_rng(seed))


@pytest.mark.parametrize("seed", range(6))
def test_the_area_counts_pairs_of_rows_a_tie_as_half(seed):
    g = np.random.default_rng(seed)
    codes = np.r_[np.arange(50), g.integers(0, 50, 30)]
    member, score = g.permutation(50) < 30, g.integers(0, 8, 80) / 7
    score[:2] = math.inf, -math.inf
    inside, outside = (score[member[codes] == side] for side in (True, False))
    naive = np.mean([(a > b) + (a == b) / 2 for a, b in itertools.product(inside, outside)])
    for estimate in areas(score, codes, member):
        assert estimate.value == pytest.approx(naive, abs=1e-12)
        assert estimate.low <= estimate.value <= estimate.high
        assert (estimate.n, estimate.subjects, estimate.null) == (80, 50, 0.5)


def test_the_interval_is_that_of_all_labellings():
    codes, score = np.r_[np.arange(9), 0, 1, 2], np.r_[0.0, 5, 3, 3, 1, 8, 2, 4, 4, 0, 5, 2]
    member = np.arange(9) < 4
    every = []
    for chosen in itertools.combinations(range(9), 4):
        rows = np.isin(codes, chosen)
        pairs = itertools.product(score[rows], score[~rows])
        every.append(np.mean([(a > b) + (a == b) / 2 for a, b in pairs]))
    away = np.sort(np.abs(np.array(every) - np.mean(every)))
    estimate = areas(score, codes, member, permutations=20_000)[0]
    half = estimate.high - estimate.value if estimate.high < 1 else estimate.value - estimate.low
    assert half >= away[math.ceil(0.95 * len(away)) - 1] - 0.01
    rare = away[math.ceil(0.995 * len(away)) - 1]
    assert estimate.minimum_detectable_effect == pytest.approx(rare + away[math.ceil(0.95 * len(away)) - 1], abs=0.05)


def test_one_row_a_person_has_delongs_deviation():
    g = np.random.default_rng(3)
    member = np.arange(900) < 600
    score = np.where(member & (g.random(900) < 0.3), 9.0, g.normal(size=900))  # a leak of some, all tied
    found = auc(score, member)  # on the logit scale
    slope = found.value * (1 - found.value)
    half = (math.log(found.high / (1 - found.high)) - math.log(found.low / (1 - found.low))) / 2 * slope
    ranks = stats.rankdata(score)
    assert no_box._half_width(ranks, np.arange(900), member) == pytest.approx(half, rel=1e-6)
    twice = np.repeat(np.arange(900), 2)  # a second row says nothing new
    again = no_box._half_width(stats.rankdata(score[twice]), twice, member)
    assert again == pytest.approx(half, rel=1e-6)
    as_people = no_box._half_width(stats.rankdata(score[twice]), np.arange(1800), member[twice])
    assert as_people < 0.75 * half


def test_intervals_hold_their_level_by_person():
    wrong = {True: 0, False: 0}
    for seed, by_row in itertools.product(range(100), (False, True)):
        g = np.random.default_rng(seed)
        codes = np.repeat(np.arange(120), 4)
        score, member = g.random(120)[codes], g.permutation(120) < 80
        if by_row:
            codes, member = np.arange(480), member[codes]
        estimate = areas(score, codes, member, seed=seed)[0]
        wrong[by_row] += not estimate.low <= 0.5 <= estimate.high
    assert wrong[False] <= 11  # 5 expected, 99.5 % of the time at most 11
    assert wrong[True] >= 20  # rows taken for people would be wrong


# ------------------------------------------------------------------------- releases of known truth


@pytest.mark.parametrize("sizes", [(1000, 1000, 1000, 400), (1600, 400, 500, 1200), (400, 1600, 2000, 300)])
def test_a_copy_is_found_and_fresh_rows_are_null_at_any_sizes(sizes):
    train, holdout, fresh, reference = release(sizes)
    null, copied = (estimates(train, holdout, synthetic, reference) for synthetic in (fresh, train))
    for name in NAMES:
        estimate = null.estimate(name)
        assert estimate.low <= 0.5 <= estimate.high and estimate.measurable
        assert copied.estimate(name).low > 0.5  # little where many stand near: a copy is one of 20 rows
    assert copied.estimate("auc_reference_ratio").value > 0.99


def test_more_copies_are_never_safer():
    found = [estimates(*release((1000, 600, 1000, 600), copies=c)) for c in (0, 200, 500, 1000)]
    for name in NAMES:
        values = [result.estimate(name).value for result in found]
        assert values == sorted(values)


def test_rows_that_avoid_members_are_below_a_half():
    train, holdout, fresh, reference = release((3000, 1000, 3000, 1000))
    inputs = inputs_of(train, holdout, fresh, reference)
    from privacy_assets.neighbours.nearest import nearest_rows

    away = nearest_rows(inputs.encoded("synthetic"), inputs.encoded("train")).distances[:, 0]
    result = estimates(train, holdout, fresh[away > np.quantile(away, 0.2)].reset_index(drop=True), reference)
    assert result.estimate("auc_reference_ratio").high < 0.5


def test_without_a_reference_nothing_is_measured():
    train, holdout, fresh, reference = release((300, 200, 300, 100))
    few = {"train": np.arange(300), "holdout": 1000 + np.arange(200), "reference": 2000 + np.arange(100) // 6}
    results = (
        estimates(train, holdout, fresh),
        estimates(train, holdout, fresh, reference.iloc[:19]),
        estimates(train, holdout, fresh, reference, subjects=few),
    )
    for result in results:
        for name in NAMES:
            estimate = result.estimate(name)
            assert (
                math.isnan(estimate.value) and estimate.note == "not measurable: no reference of at least 20 subjects"
            )
        assert result.estimate("epsilon_one_run").measurable
    assert estimates(train, holdout, fresh, reference.iloc[:20]).estimate("auc_domias").measurable


def test_one_synthetic_row_and_equal_rows_are_measured():
    train, holdout, fresh, reference = release((300, 200, 300, 100))
    one = estimates(train, holdout, fresh.iloc[:1], reference)
    same = estimates(*(table.assign(age=1, income=1.0, region="a", smokes=True) for table in (train, holdout, fresh)),
                   reference.assign(age=1, income=1.0, region="a", smokes=True),
                   subjects={"train": np.arange(300), "holdout": 300 + np.arange(200),
                             "reference": 500 + np.arange(100)})  # fmt: skip
    for name in NAMES:
        assert one.estimate(name).measurable
        assert same.estimate(name).value == same.estimate(name).low == same.estimate(name).high == 0.5


@pytest.mark.parametrize("columns", [["age"], ["region"], ["income", "smokes"]])
def test_few_columns(columns):
    tables = release((600, 400, 600, 300))
    null = estimates(*(table[columns] for table in tables))
    for name in NAMES:
        assert null.estimate(name).low <= 0.5 <= null.estimate(name).high


def test_missing_values_in_every_column():
    train, holdout, fresh, reference = release((800, 500, 800, 400), missing=0.15)
    for name in NAMES:
        assert estimates(train, holdout, fresh, reference).estimate(name).measurable
    assert estimates(train, holdout, train, reference).estimate("auc_reference_ratio").low > 0.8


def test_blocks_and_order_change_nothing(monkeypatch):
    tables = release((400, 200, 300, 250), copies=40)
    first = estimates(*tables)
    monkeypatch.setattr(no_box, "_BLOCK", 64)
    second = estimates(*tables)
    g = np.random.default_rng(5)
    third = estimates(*(table.iloc[g.permutation(len(table))].reset_index(drop=True) for table in tables))
    for name in NAMES:
        assert first.estimate(name) == second.estimate(name) == third.estimate(name)


def test_what_was_searched_is_not_searched_again():
    inputs = inputs_of(*release((300, 200, 300, 100)))
    alone, handed = build_population(inputs), build_population(inputs, score_rows(inputs).distances)
    for name, score in alone.scores.items():
        np.testing.assert_array_equal(score, handed.scores[name])
