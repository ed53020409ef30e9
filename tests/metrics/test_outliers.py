"""The forty most exposed outliers, against a naive twin and releases of known truth."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from privacy_assets.metrics.inputs import target_rows
from privacy_assets.metrics.membership_inference.outliers import (
    MOST_EXPOSED,
    outlier_excess,
    outlier_matches,
)
from privacy_assets.metrics.membership_inference.scores import (
    Population,
    build_population,
    with_reference,
)
from privacy_assets.stats.intervals import leaked_interval
from tests.metrics.given_tables import cut, given, mixed


def population(near, alone, codes, member):
    """Rows with ratio ``near`` of the distance to S and to other people; ``member`` marks the
    people in train.
    """
    return Population(
        codes, member, {"distance / neighbor": near}, alone, np.zeros(len(member), dtype=bool)
    )


def drawn(seed, people=2000, share=0.8, rows=1, copied=0):
    """People at random distances; the nearest ``copied`` outliers among the members get a ratio
    below all others.
    """
    g = np.random.default_rng(seed)
    member = g.permutation(people) < round(share * people)
    codes = np.repeat(np.arange(people), rows)
    alone = g.gamma(2, size=len(codes))
    near = g.uniform(0.2, 2, len(codes))
    outliers = np.flatnonzero((alone >= np.quantile(alone, 0.9)) & member[codes])
    near[outliers[:copied]] = 0.05
    return population(near, alone, codes, member)


def naive(found):
    """k, k_T, u, u_T by loops over rows."""
    cut = np.quantile(found.neighbor, 0.9, method="inverted_cdf")
    best = {}
    for near, alone, code in zip(
        found.scores["distance / neighbor"], found.neighbor, found.codes, strict=True
    ):
        if alone >= cut:
            best[code] = min(best.get(code, (math.inf, 0.0)), (near, -alone))
    u, u_t = len(best), sum(found.member[code] for code in best)
    last = sorted(best.values())[
        min(max(MOST_EXPOSED, math.ceil(8.9 / -math.log(found.member.mean()))), u // 4) - 1
    ]
    picked = [code for code, key in best.items() if key <= last]
    return len(picked), sum(found.member[code] for code in picked), u, u_t


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.9])
@pytest.mark.parametrize("rows", [1, 4])
def test_against_a_naive_twin(share, rows):
    for seed in range(6):
        found = drawn(
            seed, people=2000 if share < 0.9 else 6000, share=share, rows=rows, copied=seed * 5
        )
        if seed % 2:  # many ties
            near, alone = (
                np.round(found.scores["distance / neighbor"], 1),
                np.round(found.neighbor),
            )
            found = population(near, alone, found.codes, found.member)
        k, k_t, u, u_t = naive(found)
        estimate = outlier_excess(found)
        value = (k_t - k * u_t / u) / ((1 - u_t / u) if k_t > k * u_t / u else u_t / u) / k
        (low,), (high,) = leaked_interval(k, np.array([k_t]), u, u_t, 0.95)
        assert (estimate.value, estimate.low, estimate.high) == pytest.approx(
            (value, min(low / k, value), max(high / k, value)), abs=1e-12
        )
        assert estimate.note == f"the {k} most exposed of {u} outliers"
        assert estimate.subjects == u


@pytest.mark.parametrize(
    ("people", "share", "copied", "least"),
    [
        (10_000, 0.5, 40, 0.7),
        (10_000, 0.8, 40, 0.4),
        (20_000, 0.8, 300, 0.4),
        (20_000, 0.9, 300, 0.4),
        (20_000, 0.95, 300, 0.4),
    ],
)
def test_copies_of_outliers_are_significant_however_few_are_not_members(
    people, share, copied, least
):
    for seed in range(5):
        estimate = outlier_excess(drawn(seed, people, share, copied=copied))
        assert estimate.value == pytest.approx(1) and estimate.low > least


def test_avoided_members_are_significant_from_the_other_side():
    found = drawn(0, people=10_000)
    found.scores["distance / neighbor"][found.member[found.codes]] += 2
    estimate = outlier_excess(found)
    assert estimate.value == pytest.approx(-1) and estimate.high < -0.4


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 4])
def test_coverage_and_minimum_detectable_effect_when_nothing_leaks(rows):
    estimates = [outlier_excess(drawn(seed, rows=rows)) for seed in range(400)]
    missed = sum(not estimate.low <= 0 <= estimate.high for estimate in estimates)
    assert missed <= 32  # at most 20 expected; 32 has a probability of 0.5 %
    beyond = sum(
        max(-estimate.low, estimate.high) > estimate.minimum_detectable_effect
        for estimate in estimates
    )
    assert beyond <= 7  # at most 2 expected
    assert not any(max(estimate.low, -estimate.high) > 0.4 for estimate in estimates)


def test_everybody_tied_is_no_evidence():
    g = np.random.default_rng(0)
    member = g.random(1000) < 0.8
    estimate = outlier_excess(population(np.ones(1000), np.zeros(1000), np.arange(1000), member))
    assert estimate.value == 0
    assert estimate.low < 0 < estimate.high


def test_few_outliers_are_not_measurable():
    estimate = outlier_excess(drawn(0, people=150))
    assert math.isnan(estimate.value)
    assert "fewer than 20 outliers" in estimate.note
    assert outlier_excess(drawn(0, people=600, share=0.5)).measurable


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("rows", [1, 4])
def test_matches_against_a_naive_twin(share, rows):
    for seed in range(6):
        found = drawn(seed, share=share, rows=rows, copied=seed * 5)
        if seed % 2:  # many ties
            found = population(
                np.round(found.scores["distance / neighbor"], 1),
                np.round(found.neighbor),
                found.codes,
                found.member,
            )
        every = list(
            zip(found.scores["distance / neighbor"], found.neighbor, found.codes, strict=True)
        )
        told = []
        for share_within, reach in ((0.9, 0.25), (0.9, 0.01), (0.98, 0.25)):
            cut = sorted(found.neighbor)[math.ceil(share_within * len(found.neighbor)) - 1]
            apart = [(near, code) for near, alone, code in every if alone > cut]
            outliers, matched = (
                {code for _, code in apart},
                {code for near, code in apart if near <= reach},
            )
            u, k = len(outliers), len(matched)
            u_t, k_t = (sum(found.member[code] for code in some) for some in (outliers, matched))
            if k == 0 or not 0 < u_t < u:
                told.append((0.0, 0.0, 0.0, u, "0"))
                continue
            value = (k_t - k * u_t / u) / ((1 - u_t / u) if k_t > k * u_t / u else u_t / u)
            (low,), (high,) = leaked_interval(k, np.array([k_t]), u, u_t, 1 - 0.01 / 3)
            told.append((value, min(low, value), max(high, value), u, f"{k} of {u} outliers"))
        value, low, high, u, note = max(told, key=lambda one: max(one[1], -one[2], 0.0))
        expected, estimate = u * found.member.mean(), outlier_matches(found)
        assert [
            x * expected for x in (estimate.value, estimate.low, estimate.high)
        ] == pytest.approx((value, low, high))
        assert estimate.note.startswith(note)


def test_where_chance_meets_many_the_farthest_are_asked_by_themselves():
    """By chance S matches one in ten outliers, but none of the farthest fiftieth except the copied
    ones.
    """
    for seed in range(10):
        found = drawn(seed, people=10_000, share=0.5)
        near, rng = np.ones(10_000), np.random.default_rng(seed)
        remote = found.neighbor > np.quantile(found.neighbor, 0.98)
        near[~remote & (rng.random(10_000) < 0.1)] = 0.1
        fresh = population(near.copy(), found.neighbor, found.codes, found.member)
        near[np.flatnonzero(remote & found.member[found.codes])[:15]] = 0.2
        leaking = population(near, found.neighbor, found.codes, found.member)
        assert (
            outlier_matches(leaking).low > 0
            and outlier_matches(leaking).note == "15 of 200 outliers have such a row"
        )
        assert outlier_matches(fresh).low <= 0 <= outlier_matches(fresh).high


def test_where_chance_comes_near_to_many_the_same_row_is_asked_for():
    """By chance S matches one in four outliers, at a fifth of the distance and at any position."""
    for seed in range(10):
        found = drawn(seed, people=10_000, share=0.5)
        near, rng = np.ones(10_000), np.random.default_rng(seed)
        near[rng.random(10_000) < 0.25] = 0.2
        fresh = population(near.copy(), found.neighbor, found.codes, found.member)
        remote = found.neighbor > np.quantile(found.neighbor, 0.98)
        near[np.flatnonzero(remote & found.member[found.codes])[:13]] = 0.0
        leaking = population(near, found.neighbor, found.codes, found.member)
        assert (
            outlier_matches(leaking).low > 0
            and outlier_matches(leaking).note == "13 of 1000 outliers have such a row"
        )
        assert outlier_matches(fresh).low <= 0 <= outlier_matches(fresh).high


def far(seed, copied):
    """8,000 people without matches by chance, five in eight of them in train; some outlying members
    are copied.
    """
    found = drawn(seed, people=8000, share=0.625)
    near = np.maximum(found.scores["distance / neighbor"], 0.3)
    outliers = np.flatnonzero(
        (found.neighbor > np.quantile(found.neighbor, 0.9)) & found.member[found.codes]
    )
    near[outliers[:copied]] = 0.0
    return population(near, found.neighbor, found.codes, found.member)


def test_fifteen_of_the_most_isolated_are_seen_and_fresh_rows_are_none():
    for seed in range(10):
        assert outlier_matches(far(seed, 15)).low > 0
        fresh = outlier_matches(far(seed, 0))
        assert (fresh.value, fresh.low, fresh.high) == (0, 0, 0)


def test_where_nobody_stands_apart_nobody_is_matched():
    member = np.arange(1000) < 500
    equally = population(np.zeros(1000), np.ones(1000), np.arange(1000), member)
    assert outlier_matches(equally).value == 0
    one = population(np.zeros(1000), np.append(np.ones(999), 2.0), np.arange(1000), member)
    assert (outlier_matches(one).low, outlier_matches(one).note) == (
        0,
        "0 of 1 outliers have such a row",
    )


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("most", [None, 1_000])
def test_the_reference_is_unseen_as_the_holdout_is(rows, most):
    train, holdout, reference, fresh = cut(mixed(2400, 5), 900, 420, 330, 600)
    people = {
        role: np.arange(len(part)) // rows + start
        for role, part, start in (
            ("train", train, 0),
            ("holdout", holdout, 3000),
            ("reference", reference, 6000),
        )
    }
    release = pd.concat([fresh, train[::60]], ignore_index=True)
    apart = given(train, holdout, release, reference, subjects=people)
    both = pd.concat([holdout, reference], ignore_index=True)
    together = {
        "train": people["train"],
        "holdout": np.concatenate([people["holdout"], people["reference"]]),
    }
    one = build_population(given(train, both, release, subjects=together))
    two = with_reference(
        apart, build_population(apart, rows=target_rows(apart, ("train", "holdout"), most, "x"))
    )
    if most is None:
        assert np.array_equal(two.neighbor, one.neighbor)
        assert outlier_matches(two) == outlier_matches(one)
    else:
        assert len(two.codes) <= most + len(reference)
        assert set(two.neighbor) <= set(one.neighbor)
    plain = build_population(given(train, holdout, release))
    assert with_reference(given(train, holdout, release), plain) is plain


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 4])
def test_coverage_of_matches_when_nothing_leaks(rows):
    estimates = [outlier_matches(drawn(seed, rows=rows)) for seed in range(400)]
    missed = sum(not estimate.low <= 0 <= estimate.high for estimate in estimates)
    assert missed <= 11  # at most 4 expected; 11 has a probability of 0.3 %
    beyond = sum(
        max(-estimate.low, estimate.high) > estimate.minimum_detectable_effect
        for estimate in estimates
    )
    assert beyond <= 7  # at most 2 expected
