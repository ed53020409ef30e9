"""Results survive JSON, with NaN as null."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from privacy_assets.metrics.dcr import Dcr
from privacy_assets.stats import estimates as results
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec


def test_a_result_survives_json() -> None:
    estimates = (
        Estimate("a", 0.1, 0.0, 0.2, 10, 5, minimum_detectable_effect=0.3, note="n"),
        Estimate(
            "b", math.nan, math.nan, math.nan, 0, 0, 0.5, "two_sided", 0.99, note="not measurable"
        ),
    )
    tables = {"t": [{"x": np.float64(1.5), "y": np.int64(2), "z": float("nan"), "w": "é"}]}
    result = MetricResult(
        "m", estimates, tables, {"columns": (3, 4), "k": None}, {"train": "h"}, 7, "0.1.0", 1.25
    )
    text = json.dumps(result.to_json(), allow_nan=False)
    back = MetricResult.from_json(json.loads(text))
    assert json.dumps(back.to_json()) == text
    assert back.estimate("a") == estimates[0]
    assert not back.estimate("b").measurable
    assert back.tables["t"][0]["z"] is None
    with pytest.raises(KeyError, match="no statistic 'c'"):
        back.estimate("c")


def test_direction_null_and_what_it_is_about_come_from_the_spec_alone() -> None:
    spec = StatisticSpec("excess", "An excess.", "two_sided", 0.5, measures="evaluation")
    estimate = spec.estimate(
        np.float32(0.5),
        0,
        1,
        (10, 5),
        confidence=0.99,
        minimum_detectable_effect=np.float64(0.3),
        note="n",
    )
    assert estimate == Estimate(
        "excess",
        0.5,
        0.0,
        1.0,
        10,
        5,
        0.5,
        "two_sided",
        0.99,
        0.3,
        "n",
        "evaluation",
        is_share=True,
    )
    assert {
        type(end)
        for end in (estimate.value, estimate.low, estimate.high, estimate.minimum_detectable_effect)
    } == {float}
    none = spec.not_measurable("too few rows", (3, 2))
    assert (none.null, none.direction, none.measures, none.n, none.subjects) == (
        0.5, "two_sided", "evaluation", 3, 2,
    )  # fmt: skip
    assert not none.measurable and none.note == "not measurable: too few rows"
    with pytest.raises(TypeError, match="excess: the specification sets null"):
        spec.with_null(0.0)


def test_a_null_that_differs_from_release_to_release_is_given() -> None:
    spec = StatisticSpec("risk", "A risk.", null=None)
    assert spec.with_null(0.02).estimate(0.1, 0, 1, (10, 5)).null == 0.02
    assert math.isnan(spec.missing("no rows", (0, 0)).null) and spec.limits == (0.0, 1.0)
    with pytest.raises(TypeError, match="risk: the specification has no null"):
        spec.estimate(0.1, 0, 1, (10, 5))


def test_nothing_else_in_the_package_makes_a_statistic() -> None:
    package = Path(results.__file__).parents[1]
    calls = {
        path.relative_to(package).as_posix(): len(
            re.findall(r"(?<![\w.])Estimate\(", path.read_text())
        )
        for path in package.rglob("*.py")
    }
    assert {path: number for path, number in calls.items() if number} == {"stats/estimates.py": 1}


def test_statistics_of_a_metric_are_those_of_its_specs() -> None:
    assert Dcr.statistic("member_excess").direction == "two_sided"
    with pytest.raises(KeyError, match="dcr has no statistic 'excess'"):
        Dcr.statistic("excess")
