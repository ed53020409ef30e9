"""Coverage of intervals: a small version of the study in ``benchmarks/calibration.py``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from benchmarks.calibration import REDRAWS, Case, coverage, judge
from privacy_assets.metrics.registry import build_metric

QUICK = {
    "dcr": {"n_permutations": 199, "n_bootstraps": 100},
    "singling_out": {"n_permutations": 199, "n_queries": 300, "query_sizes": (3, 6)},
    "linkability": {"n_permutations": 199, "n_splits": 4},
    "attribute_inference": {"n_permutations": 199},
    "membership_inference": {"n_permutations": 199},
}
SHAPES = {"4 : 1": (1200, 300, 900), "1 : 4": (300, 1200, 250)}
# Each release has both shapes and both kinds of people; each pair of these has at least one
# release.
RELEASES = {
    ("4 : 1", "one row"): ("fresh rows", "20 % copies"),
    ("4 : 1", "repeated"): ("5 % copies",),
    ("1 : 4", "one row"): ("5 % copies",),
    ("1 : 4", "repeated"): ("fresh rows", "20 % copies"),
}
LEAST = 1e-4  # probability of a false alarm in each of about 130 kinds of intervals


def survey(rows, seed=0):
    g = np.random.default_rng(seed)
    ward = g.integers(0, 6, rows)
    return pd.DataFrame(
        {
            "age": np.clip(g.normal(40 + 5 * ward, 15), 0, 100).round().astype(int),
            "income": np.exp(g.normal(10, 0.7, rows)).round(2),
            "ward": np.array(list("abcdef"))[ward],
            "smokes": g.random(rows) < 0.1 + 0.1 * ward,
            "visits": g.poisson(1 + ward),
            "seen": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(g.integers(0, 900, rows), unit="D"),
        }
    )


@pytest.mark.weekly
@pytest.mark.parametrize(("shape", "people"), RELEASES)
def test_intervals_hold_the_truth(shape, people):
    frame = survey(20_000)
    metrics = {name: build_metric(name, dict(settings)) for name, settings in QUICK.items()}
    found = {}
    for release in RELEASES[shape, people]:
        for seed in range(REDRAWS):
            case = Case("coverage", shape, people, release, seed)
            found[case] = judge(frame, case, metrics, SHAPES[shape])
    checked = list(coverage(found))
    assert len(checked) >= 20 * len(RELEASES[shape, people])
    assert [(name, sum(held), len(held)) for name, held, p in checked if p < LEAST] == []


@pytest.mark.weekly
def test_the_study_sees_an_interval_that_is_too_narrow():
    frame = survey(4_000)
    metrics = {
        "membership_inference": build_metric("membership_inference", {"n_permutations": 199})
    }
    found = {}
    for seed in range(12):
        case = Case("coverage", "4 : 1", "one row", "fresh rows", seed)
        found[case] = judge(frame, case, metrics, (400, 100, 400))
    chances = {name[0]: p for name, _, p in coverage(found)}
    assert min(chances.values()) > LEAST
    for case, results in found.items():
        result = results["membership_inference"]
        found[case] = {
            result.metric: replace(
                result, estimates=tuple(narrowed(estimate) for estimate in result.estimates)
            )
        }
    chances = {name[0]: p for name, _, p in coverage(found)}
    assert chances["membership_inference.advantage"] < LEAST


def narrowed(estimate):
    """The statistic with a tenth of the interval's width."""
    return replace(
        estimate, low=estimate.value - (estimate.value - estimate.low) / 10, high=estimate.value
    )
