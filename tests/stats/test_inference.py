"""Permutation tests and bands against enumeration, and estimates of one and of the worst entry."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import chisquare

from privacy_assets.stats.estimates import StatisticSpec
from privacy_assets.stats.inference import (
    DrawnLabels,
    PermutationResult,
    bootstrap,
    excess,
    extend_to_null,
    mean_difference,
    permutation_band,
    permutation_test,
)
from privacy_assets.stats.subjects import Subjects

MEMBER = np.array([True, True, False, False, False])
SUBJECTS = Subjects(np.arange(5), MEMBER)
SPEC = StatisticSpec("gap", "A gap.", "two_sided", 0.0)


def test_the_null_is_that_of_all_labelings() -> None:
    values = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    found = permutation_test(
        lambda labels: labels @ values[:, None], SUBJECTS, 5000, np.random.default_rng(0)
    )
    assert (
        found.observed.tolist() == [3.0]
        and found.null.shape == (5000, 1)
        and found.resampled is None
    )
    sums, times = np.unique(found.null, return_counts=True)
    assert sums.tolist() == sorted(a + b for a, b in itertools.combinations(values, 2))
    assert chisquare(times).pvalue > 0.001


def test_resampled_subjects_keep_the_size_of_each_side() -> None:
    def statistic(labels: np.ndarray, times: np.ndarray | None = None) -> np.ndarray:
        times = np.ones_like(labels) if times is None else times
        return np.stack([(labels * times).sum(axis=1), times.sum(axis=1)], axis=1)

    found = permutation_test(statistic, SUBJECTS, 99, np.random.default_rng(0), n_bootstraps=70)
    assert found.resampled is not None and found.resampled.shape == (70, 2)
    assert (found.resampled == [2, 5]).all() and (found.null == [2, 5]).all()


def test_a_difference_of_means_is_that_of_shared_draws() -> None:
    values = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 3.0], [0.0, 0.0], [3.0, 0.0]])
    plain = mean_difference(values, SUBJECTS, 199, np.random.default_rng(3))
    assert plain.observed == pytest.approx([2 - 1, 0 - 1])
    shared = DrawnLabels(SUBJECTS, 199, np.random.default_rng(3))
    for found in (shared.mean_difference(values), shared.of(MEMBER).mean_difference(values)):
        for part in ("observed", "null", "resampled"):
            np.testing.assert_allclose(getattr(found, part), getattr(plain, part), atol=1e-6)


@pytest.mark.parametrize(
    ("weights", "value"), [([1, 1, 0, 0, 0], 1), ([0, 0, 1, 0, 0], -2 / 3), ([1] * 5, 0)]
)
def test_the_excess_is_one_for_members_and_zero_by_chance(
    weights: list[float], value: float
) -> None:
    scaled = np.array([weights]) / np.sum(weights)
    found = excess(scaled, SUBJECTS, 499, np.random.default_rng(0))
    assert found.observed == pytest.approx([value])
    assert abs(found.null.mean()) <= 4 * found.null.std() / 499**0.5 + 1e-6


def test_a_bootstrap_interval_and_what_it_can_detect() -> None:
    drawn, permuted = np.linspace(0, 1, 101), np.append(np.linspace(0.4, 0.6, 201), np.nan)
    low, high, detectable = bootstrap(
        MEMBER, lambda _: drawn, lambda: permuted, lambda _: 0.5, np.random.default_rng(0)
    )
    assert (low, high) == pytest.approx((0.025, 0.975))
    assert detectable == pytest.approx(0.401 - (0.5 - 0.025))


def test_a_statistic_that_no_permutation_changes_reaches_to_its_null() -> None:
    band = permutation_band(
        np.array([0.3, 0.3]), np.column_stack([np.zeros(99), np.linspace(-1, 1, 99)])
    )
    low, high = extend_to_null(band, 0.0)
    assert (low[0], high[0]) == (0.0, 0.3)
    assert (low[1], high[1]) == (band.low[1], band.high[1])


def test_an_estimate_is_one_entry_of_the_simultaneous_band() -> None:
    null = np.random.default_rng(0).normal(size=(999, 2)) * [0.05, 0.1]
    result = PermutationResult(np.array([0.1, 0.8]), null)
    band, found = result.band(), result.estimate(SPEC, (50, 20), at=1, within=(-1, 1))
    assert (found.value, found.low, found.high) == pytest.approx(
        (0.8, band.low[1], min(band.high[1], 1))
    )
    assert (found.n, found.subjects, found.confidence) == (50, 20, 0.95)
    assert found.minimum_detectable_effect == pytest.approx(
        (band.rare + band.critical) * band.sd[1]
    )
    assert result.mean.estimate(SPEC, (50, 20)).value == pytest.approx(0.45)
    assert result[[1]].observed.tolist() == [0.8] and len(result) == 2


def test_the_worst_entry_has_the_worst_bound_or_is_the_farthest_from_the_null() -> None:
    null = np.random.default_rng(0).normal(size=(999, 2)) * [0.01, 0.3]
    result = PermutationResult(np.array([0.2, 0.3]), null)  # 20 and 1 standard deviations
    headline, strongest = (
        result.worst(SPEC, (9, 9), ["narrow", "wide"], choose)
        for choose in ("headline", "strongest")
    )
    assert (headline.note, headline.value) == ("wide", 0.3)
    assert (strongest.note, strongest.value) == ("narrow", 0.2)
    assert strongest.low > 0 > headline.low and strongest.confidence > headline.confidence


def test_the_largest_entry_has_the_largest_bounds() -> None:
    result = PermutationResult(
        np.array([0.2, 1.4]), np.random.default_rng(0).normal(size=(999, 2)) * 0.1
    )
    spec = StatisticSpec("risk", "A risk.", null=None)
    found, band = result.largest(spec, (9, 9), "x"), result.band()
    assert (found.value, found.low, found.high) == pytest.approx((1.0, min(band.low.max(), 1), 1.0))
    assert found.null == pytest.approx(result.null.max(axis=1).mean())
