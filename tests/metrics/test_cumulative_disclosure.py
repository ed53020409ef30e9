"""Metric ``cumulative_disclosure``: releases that disclose little alone and much together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from privacy_assets import Policy, evaluate
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.evaluation.evaluate import read_inputs
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.policies import default_policy
from privacy_assets.metrics.reruns import ADVANTAGE_ANY, CumulativeDisclosure
from tests.metrics.test_holdout_leakage import FRESH, HOLDOUT, REFERENCE, TRAIN, mixed, population


def drops(count: int, size: int = 18) -> list[pd.DataFrame]:
    """Tables in which 2 % of the rows are copies; each table copies different training rows."""
    return [
        pd.concat([TRAIN.iloc[k * size : (k + 1) * size], population(900 - size, 100 + k)], ignore_index=True)
        for k in range(count)
    ]


def judged(synthetic: pd.DataFrame, *released: pd.DataFrame):
    result = CumulativeDisclosure().measure(
        read_inputs(TRAIN, HOLDOUT, synthetic, REFERENCE, earlier_releases=released)
    )
    return result, default_policy(["cumulative_disclosure"]).judge({"cumulative_disclosure": result})


def test_without_an_earlier_release_there_is_nothing_to_add() -> None:
    result, policy_verdict = judged(TRAIN)  # a copy, which other metrics detect
    assert [(f.value, f.low, f.high, f.note) for f in result.estimates] == [(0, 0, 0, "no earlier release")] * 4
    assert policy_verdict.status == "pass"


def test_honest_releases_may_be_many() -> None:
    tables = [population(900, 200 + k) for k in range(10)]
    result, policy_verdict = judged(tables[-1], *tables[:-1])
    assert policy_verdict.status == "pass"
    assert all(estimate.low <= 0 <= estimate.high for estimate in result.estimates)


@pytest.mark.slow
def test_noisy_copies_average_out() -> None:
    """Nine tables with large noise: the nearest of nine rows is near."""
    rng = np.random.default_rng(5)

    def noisy() -> pd.DataFrame:
        moved = TRAIN.assign(
            x=(TRAIN.x + rng.normal(0, 0.8, 900)).round(3), y=(TRAIN.y + rng.normal(0, 3, 900)).round(2)
        )
        return moved.assign(n=(TRAIN.n + rng.integers(-8, 9, 900)), c=rng.permutation(TRAIN.c))

    tables = [noisy() for _ in range(9)]
    one = judged(tables[0], FRESH)[0].estimate("advantage_any")
    nine = judged(tables[0], *tables[1:])[0].estimate("advantage_any")
    assert nine.value > one.value
    assert nine.low > one.low


@pytest.mark.slow
def test_each_statistic_is_that_of_the_other_metric_on_the_union_in_any_order() -> None:
    released = [mixed((TRAIN, 40), (FRESH, 400)), population(300, 8)]
    result, _ = judged(FRESH, *released)
    assert result.estimates == judged(FRESH, *released[::-1])[0].estimates
    union = pd.concat([*released, FRESH], ignore_index=True)
    inputs = read_inputs(TRAIN, HOLDOUT, union, REFERENCE)
    found = {f.name: f for metric in (Dcr(), MembershipInference()) for f in metric.measure(inputs).estimates}
    for estimate in result.estimates:
        assert replace(estimate, question=found[estimate.name].question) == found[estimate.name]


def test_a_column_that_came_or_went_since_does_not_stop_anything() -> None:
    older = population(300, 8).drop(columns="n").assign(gone=1)
    result, policy_verdict = judged(FRESH, older)
    assert policy_verdict.status == "pass" and result.estimate("advantage_any").note != "no earlier release"


def test_renamed_columns_and_other_kinds_hide_no_copy() -> None:
    """Releases are compared in the columns that they share, so a copy remains a copy."""
    copied = TRAIN.rename(columns={"x": "other", "c": "kind"}).assign(n="text")
    assert judged(FRESH, copied, population(300, 8))[1].status == "fail"


def test_releases_without_a_common_column_are_refused() -> None:
    strange = population(300, 8).rename(columns=str.upper)
    with pytest.raises(InputError, match="earlier releases: they and this table have no common column"):
        judged(FRESH, FRESH, strange)


@pytest.mark.slow
def test_each_leaks_too_little_and_the_union_too_much() -> None:
    tables = drops(9)
    lower = Policy((ADVANTAGE_ANY,))
    for table in tables[::4]:
        assert (
            evaluate(TRAIN, HOLDOUT, table, metrics="membership_inference", policy=lower, embedder=False).verdict
            == "pass"
        )
    report = evaluate(
        TRAIN, HOLDOUT, tables[0], earlier_releases=tables[1:], metrics="cumulative_disclosure", embedder=False
    )
    assert report.verdict == "fail"
    with pytest.raises(ConfigError, match="no metric uses them"):
        evaluate(TRAIN, HOLDOUT, tables[0], earlier_releases=tables[1:], metrics="dcr", embedder=False)
