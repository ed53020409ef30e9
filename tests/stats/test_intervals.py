"""Intervals against statsmodels, enumeration and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from privacy_assets.stats.inference import PermutationResult, permutation_band
from privacy_assets.stats.intervals import clopper_pearson, wilson
from privacy_assets.stats.subjects import permute_labels, random_sets, resample_subjects


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (3, 10), (10, 10), (57, 2000), (1, 1)])
def test_proportions_agree_with_statsmodels(hits: int, n: int) -> None:
    center, low, high = wilson(hits, n)
    assert (low, high) == pytest.approx(proportion_confint(hits, n, method="wilson"), abs=1e-12)
    assert low <= center <= high
    assert clopper_pearson(hits, n) == pytest.approx(
        proportion_confint(hits, n, method="beta"), abs=1e-12
    )


def test_no_trials_say_nothing() -> None:
    assert np.isnan(wilson(0, 0)).all()
    assert clopper_pearson(0, 0) == (0.0, 1.0)


def test_permutations_keep_the_number_of_members_and_do_not_depend_on_the_block() -> None:
    member = np.arange(50) < 20
    draws = [
        permute_labels(
            member,
            130,
            np.random.default_rng(0),
            lambda labels: np.stack([labels.sum(1), labels[:, 0]], 1),
            block=b,
        )
        for b in (1, 64, 200)
    ]
    assert (draws[0][:, 0] == 20).all()
    assert 0.2 < draws[0][:, 1].mean() < 0.6
    assert all((draw == draws[0]).all() for draw in draws)


def bits(sets: np.ndarray) -> np.ndarray:
    return np.array([[int(word) >> at & 1 for word in sets] for at in range(64)])


@pytest.mark.parametrize(("people", "size"), [(0, 0), (1, 0), (1, 1), (7, 7), (1000, 633)])
def test_random_sets_have_their_size(people: int, size: int) -> None:
    sets = random_sets(people, size, np.random.default_rng(0))
    assert sets.shape == (people,) and (bits(sets).sum(axis=1) == size).all()


@pytest.mark.slow
def test_people_and_pairs_of_them_join_as_often() -> None:
    rng, share = np.random.default_rng(1), 297 / 300
    drawn = np.concatenate([bits(random_sets(300, 297, rng)) for _ in range(100)]).astype(bool)
    assert np.abs(drawn.sum(axis=0) - 6_400 * share).max() < 4.5 * np.sqrt(
        6_400 * share * (1 - share)
    )
    missing, chance = ~drawn, 6_400 * 150 * (1 - share) * 2 / 299
    assert abs((missing[:, ::2] & missing[:, 1::2]).sum() - chance) < 4.5 * np.sqrt(chance)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_sets_of_a_size_are_as_likely(size: int) -> None:
    rng = np.random.default_rng(size)
    drawn = np.concatenate([bits(random_sets(5, size, rng)) for _ in range(100)])
    kinds, times = np.unique(drawn, axis=0, return_counts=True)
    assert len(kinds) == math.comb(5, size)
    assert stats.chisquare(times).pvalue > 0.001


def test_the_band_covers_all_statistics_at_once_under_the_null() -> None:
    rng = np.random.default_rng(0)
    null = rng.normal(size=(999, 6)) * np.arange(1, 7)
    inside, within = 0, 0
    for _ in range(400):
        band = permutation_band(rng.normal(size=6) * np.arange(1, 7), null)
        inside += bool(((band.low <= 0) & (band.high >= 0)).all())
        within += bool(
            np.maximum(-band.low, band.high)[0] <= (band.rare + band.critical) * band.sd[0]
        )
    assert 0.92 < inside / 400 < 0.985
    assert within / 400 > 0.98


def test_a_statistic_that_cannot_vary_has_no_width() -> None:
    band = permutation_band(
        np.array([0.0, 3.0]),
        np.column_stack([np.zeros(99), np.random.default_rng(0).normal(size=99)]),
    )
    assert (band.low[0], band.high[0], band.z[0]) == (0.0, 0.0, 0.0)
    assert band.p_value <= 0.05


def test_subjects_are_drawn_anew_side_by_side() -> None:
    member = np.arange(50) < 20
    seen = []

    def statistic(labels: np.ndarray, times: np.ndarray) -> np.ndarray:
        assert (labels == member).all()
        seen.append(times)
        return np.stack(
            [times[:, member].sum(1), times[:, ~member].sum(1), times[:, 0], times[:, 49]], 1
        )

    draws = [resample_subjects(member, 130, np.random.default_rng(0), statistic) for _ in range(2)]
    assert (draws[0] == draws[1]).all()
    assert draws[0].shape == (130, 4)
    assert (draws[0][:, :2] == [20, 30]).all()
    # of one person: binomial(n, 1/n), mean 1 and variance 1 - 1/n
    times = np.concatenate(seen[: len(seen) // 2])
    assert np.abs(times.mean(axis=0) - 1).max() < 4.5 / np.sqrt(130)
    assert times.var() == pytest.approx(1 - 2 / 50, abs=0.05)


def test_subjects_drawn_anew_widen_a_band_and_never_narrow_it() -> None:
    rng = np.random.default_rng(1)
    null, observed = rng.normal(size=(999, 3)), np.array([0.5, 6.0, -1.0])
    resampled = rng.normal(size=(400, 3)) * [0.1, 3.0, 1.0] + 7  # whatever their mean is
    plain, wide = (
        permutation_band(observed, null),
        permutation_band(observed, null, resampled=resampled),
    )
    away = np.sort((np.abs(resampled - resampled.mean(axis=0)) / resampled.std(axis=0)).max(axis=1))
    reach = away[int(np.ceil(0.95 * 399))] * resampled.std(axis=0)
    assert reach[0] < 0.2 * (plain.high - observed)[0]
    np.testing.assert_allclose(wide.high - observed, np.maximum(plain.high - observed, reach))
    np.testing.assert_allclose(observed - wide.low, wide.high - observed)
    assert wide.z[0] == pytest.approx(plain.z[0])
    assert wide.z[1] == pytest.approx(plain.critical * (6 - null[:, 1].mean()) / reach[1])
    # The values that depend on permutations only do not change.
    assert (wide.p_value, wide.critical, wide.rare) == (plain.p_value, plain.critical, plain.rare)


def test_shares_that_cannot_vary_are_as_uncertain_as_none_of_so_many() -> None:
    band = permutation_band(
        np.zeros(2), np.column_stack([np.zeros(99), np.linspace(-1, 1, 99)]), smaller_side=500
    )
    assert band.high[0] == -band.low[0] == pytest.approx(clopper_pearson(0, 500)[1])
    assert band.z[0] == 0 and band.high[1] == pytest.approx(band.critical * band.sd[1])


@pytest.mark.parametrize("resampled", [False, True])
def test_evidence_over_a_scale_is_that_of_the_statistic_in_other_units(resampled: bool) -> None:
    rng = np.random.default_rng(2)
    drawn = rng.normal(size=(300, 2)) * 3 if resampled else None
    plain = PermutationResult(np.array([1.0, 6.0]), rng.normal(size=(999, 2)), drawn)
    scaled = plain.over(np.array([2.0, 0.5]))
    for end in ("low", "high", "mean"):
        np.testing.assert_allclose(
            getattr(scaled.band(), end), getattr(plain.band(), end) / [2, 0.5]
        )
    np.testing.assert_allclose(scaled.band().z, plain.band().z)
