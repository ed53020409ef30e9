"""No-box attacks against written-out densities, refitted densities, and pairs counted one by one.

test_membership_inference.py runs all attacks on releases of known truth.
"""

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
    NEIGHBORS,
    SPECS,
    NoBoxScores,
    auc_estimates,
    choose_bandwidth,
    plagiarism_index,
    score_rows,
)
from privacy_assets.metrics.membership_inference.scores import Population
from privacy_assets.studies.shadow_membership.rates import auc
from privacy_assets.tables.encoding import EncodedTable
from tests.metrics.given_tables import given, mixed, release

NAMES = [spec.name for spec in SPECS]


def estimates(*tables, **options):
    return MembershipInference(n_permutations=199).measure(given(*tables, **options))


# ------------------------------------------------------------------------- densities, written out


def density(x, rows, width):
    """Density at row ``x`` of the normalized product kernel over ``rows``; ``rows.sizes``
    normalizes categories.
    """
    away = np.exp(-1 / (2 * width**2))
    numbers = stats.norm.pdf(x.numeric.astype(float), rows.numeric.astype(float), width).prod(
        axis=1
    )
    categories = np.where(x.codes == rows.codes, 1, away) / (1 + (rows.sizes - 1) * away)
    return float((numbers * categories.prod(axis=1)).mean())


def distance(x, rows):
    return np.sqrt(
        ((x.numeric.astype(float) - rows.numeric) ** 2).sum(axis=1)
        + (x.codes != rows.codes).sum(axis=1)
    )


def encoded(inputs):
    pool = EncodedTable.stack([inputs.encoded("train"), inputs.encoded("holdout")])
    return pool, inputs.encoded("synthetic"), inputs.encoded("reference")


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_domias_is_the_ratio_of_densities_and_gen_lra_the_likelihood_under_a_refitted_one(missing):
    # no more rows than the sum uses
    inputs = given(*release(30, 25, 18, 20, missing=missing, copies=10))
    pool, synthetic, reference = encoded(inputs)
    width = choose_bandwidth(reference, np.arange(20))
    domias, gen_lra = [], []
    for x in (pool.take([i]) for i in range(len(pool))):
        domias.append(math.log(density(x, synthetic, width) / density(x, reference, width)))
        joined = EncodedTable.stack([reference, x])
        nearest = np.argsort(distance(x, synthetic), kind="stable")[:INFLUENCED]
        rows = [synthetic.take([s]) for s in nearest]
        gen_lra.append(
            sum(math.log(density(s, joined, width) / density(s, reference, width)) for s in rows)
        )
    found = score_rows(inputs).scores
    np.testing.assert_allclose(found["auc_domias"], domias, atol=1e-9)
    np.testing.assert_allclose(found["auc_gen_lra"], gen_lra, atol=1e-9)


@pytest.mark.parametrize("seed", range(2))
def test_the_bandwidth_is_the_likeliest_for_rows_of_others(seed):
    frame = mixed(20, seed)
    frame = pd.concat(
        [frame, frame.iloc[:6].assign(age=lambda part: part.age + 1)], ignore_index=True
    )
    codes = np.r_[np.arange(20), np.arange(6)]
    rows = given(frame, frame, frame, frame).encoded("reference")
    rows = EncodedTable(
        rows.numeric, rows.codes, np.array([np.unique(column).size for column in rows.codes.T])
    )
    away = np.array([distance(rows.take([i]), rows) for i in range(len(rows))])
    away[codes[:, None] == codes] = np.inf
    nearest = away.min(axis=1)
    typical = np.flatnonzero(nearest <= np.sort(nearest)[math.ceil(0.95 * len(rows)) - 1])

    def likelihood(width):
        # all rows of other people except a few
        others = [np.argsort(away[i], kind="stable")[:19] for i in typical]
        kept = [
            other[np.isfinite(away[i][other])] for i, other in zip(typical, others, strict=True)
        ]
        return sum(
            math.log(density(rows.take([i]), rows.take(other), width) * len(other) + 1e-300)
            for i, other in zip(typical, kept, strict=True)
        )

    assert choose_bandwidth(rows, codes) == max(BANDWIDTHS, key=likelihood)
    # near-equal rows would count
    assert choose_bandwidth(rows, np.arange(26)) < choose_bandwidth(rows, codes)


def test_one_outlier_does_not_widen_the_kernel():
    frame = mixed(400, 0)
    plain = given(frame, frame, frame, frame)
    away = frame.assign(income=frame.income.where(frame.index > 0, 1e12))
    outlying = given(frame, frame, frame, away)
    chosen = [
        choose_bandwidth(one.encoded("reference"), np.arange(400)) for one in (plain, outlying)
    ]
    assert chosen[0] == chosen[1]


# ------------------------------------------------------------------------- the data plagiarism
# index


def naive_index(near, away, n_synthetic, n_reference):
    """Each neighbor one by one; those at the distance of the last one share the remaining
    positions.
    """
    both = sorted([*near, *away])
    k = min(NEIGHBORS, len(both))
    last = both[k - 1]
    left = k - sum(d < last for d in both)
    copied = sum(d < last for d in near) + left * sum(d == last for d in near) / sum(
        d == last for d in both
    )
    return (copied + 0.5) / n_synthetic / ((k - copied + 0.5) / n_reference)


@pytest.mark.parametrize("seed", range(10))
def test_the_index_is_the_naive_one_with_ties(seed):
    g = np.random.default_rng(seed)
    near, away = (np.sort(g.integers(0, 6, g.integers(1, 21)).astype(float)) for _ in range(2))
    padded = [
        np.pad(found, (0, NEIGHBORS - len(found)), constant_values=np.inf)[None]
        for found in (near, away)
    ]
    np.testing.assert_allclose(
        plagiarism_index(*padded, len(near), len(away)),
        [naive_index(near, away, len(near), len(away))],
    )
    # tables with more rows than the attack reads
    full = np.sort(g.integers(0, 6, (2, 1, NEIGHBORS)).astype(float))
    np.testing.assert_allclose(
        plagiarism_index(*full, 500, 3000), [naive_index(*full[:, 0], 500, 3000)]
    )


# ------------------------------------------------------------------------- areas and their
# intervals


def areas(score, codes, member, n_permutations=199):
    """The four estimates of a row score; a larger score is more member-like."""
    score, half = np.asarray(score, dtype=float), np.arange(len(member)) % 2 == 0
    people = Population(codes, member, {"distance / reference": -score}, np.ones(len(codes)), half)
    found = NoBoxScores({}, dict.fromkeys(NAMES[1:], score))
    return auc_estimates(people, found, n_permutations, np.random.default_rng(0))


@pytest.mark.parametrize("seed", range(3))
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


def test_one_row_a_person_has_delongs_deviation():
    g = np.random.default_rng(3)
    member = np.arange(900) < 600
    # a leak of some, all tied
    score = np.where(member & (g.random(900) < 0.3), 9.0, g.normal(size=900))
    found = auc(score, member)  # on the logit scale
    slope = found.value * (1 - found.value)
    half = (
        (math.log(found.high / (1 - found.high)) - math.log(found.low / (1 - found.low)))
        / 2
        * slope
    )
    ranks = stats.rankdata(score)
    assert no_box._half_width(ranks, np.arange(900), member) == pytest.approx(half, rel=1e-6)
    twice = np.repeat(np.arange(900), 2)  # a second row adds no information
    again = no_box._half_width(stats.rankdata(score[twice]), twice, member)
    assert again == pytest.approx(half, rel=1e-6)
    as_people = no_box._half_width(stats.rankdata(score[twice]), np.arange(1800), member[twice])
    assert as_people < 0.75 * half


# ------------------------------------------------------------------------- attacked rows, and block
# sizes


@pytest.mark.slow
def test_without_a_reference_nothing_is_measured():
    train, holdout, fresh, reference = release(300, 200, 300, 100)
    few = {
        "train": np.arange(300),
        "holdout": 1000 + np.arange(200),
        "reference": 2000 + np.arange(100) // 6,
    }
    for result in (
        estimates(train, holdout, fresh),
        estimates(train, holdout, fresh, reference, subjects=few),
    ):
        notes = {result.estimate(name).note for name in NAMES}
        assert notes == {"not measurable: no reference of at least 20 people"}
        assert result.estimate("epsilon_one_run").measurable
    assert estimates(train, holdout, fresh, reference.iloc[:20]).estimate("auc_domias").measurable


@pytest.mark.slow
def test_one_synthetic_row_and_equal_rows_are_measured():
    tables = release(300, 200, 300, 100)
    one = estimates(*tables[:2], tables[2].iloc[:1], tables[3])
    subjects = {
        "train": np.arange(300),
        "holdout": 300 + np.arange(200),
        "reference": 500 + np.arange(100),
    }
    same = estimates(*(table.assign(**tables[0].iloc[0]) for table in tables), subjects=subjects)
    for name in NAMES:
        assert one.estimate(name).measurable
        assert (
            same.estimate(name).value == same.estimate(name).low == same.estimate(name).high == 0.5
        )


def test_blocks_change_nothing(monkeypatch):
    inputs = given(*release(400, 200, 300, 250, copies=40))
    whole = score_rows(inputs)
    monkeypatch.setattr(no_box, "_BLOCK", 64)
    for name, score in score_rows(inputs).scores.items():
        np.testing.assert_array_equal(score, whole.scores[name])
