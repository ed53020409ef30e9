"""Budgets of attacked rows: whole people, independent of labels, and never fewer searched rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privacy_assets.distances.nearest import distance_to_other_subjects
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.controls import Controls, PlantedReleases
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.holdout_leakage import HoldoutLeakage
from privacy_assets.metrics.inputs import EvaluationInputs, target_rows
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.membership_inference.metric import PURPOSE
from privacy_assets.metrics.membership_inference.outliers import outlier_matches
from privacy_assets.metrics.membership_inference.scores import build_population
from privacy_assets.metrics.policies import choose_metrics, default_policy
from privacy_assets.metrics.registry import build_metric
from privacy_assets.policy import Policy
from privacy_assets.stats.estimates import Estimate
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.encoding import EncodedTable
from privacy_assets.tables.table import Table
from tests.metrics.given_tables import mixed

SIDES = ("train", "holdout")


def of_persons(frame: pd.DataFrame, first: int, seed: int) -> pd.DataFrame:
    """One to twelve rows a person."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(len(frame)), rng.integers(1, 13, len(frame)))[: len(frame)]
    return frame.assign(person=first + codes)


def inputs_of(
    copies: int = 0, seed: int = 0, sizes: tuple[int, int] = (3000, 2000), **options: Any
) -> EvaluationInputs:
    train, holdout = mixed(sizes[0], 10 * seed + 1), mixed(sizes[1], 10 * seed + 2)
    synthetic = pd.concat(
        [train[:copies], mixed(sizes[0] - copies, 10 * seed + 3)], ignore_index=True
    )
    if options.pop("persons", False):
        train, holdout = of_persons(train, 0, seed), of_persons(holdout, 100_000, seed + 1)
        options["declared"] = Declared(subject="person")
    return read_inputs(
        train, holdout, synthetic, options.pop("reference", None), seed=seed, **options
    )


def estimates(metric: Metric, inputs: EvaluationInputs) -> dict[str, Estimate]:
    return {estimate.name: estimate for estimate in metric.measure(inputs).estimates}


def attack(**settings: Any) -> MembershipInference:
    return MembershipInference(n_permutations=199, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dcr", "membership_inference"])
def test_a_budget_for_everybody_changes_nothing(name: str) -> None:
    inputs = inputs_of(copies=150, persons=True, sizes=(1500, 1000))
    whole, budgeted = (
        build_metric(name, {"max_targets": rows}).measure(inputs) for rows in (None, 2500)
    )
    assert (
        whole.to_json()["estimates"] == budgeted.to_json()["estimates"]
        and whole.tables == budgeted.tables
    )


def test_whole_people_are_drawn_as_far_as_they_fit() -> None:
    inputs = inputs_of(persons=True)
    codes = inputs.subject_codes(*SIDES)
    rows = target_rows(inputs, SIDES, 2000, "test")
    assert rows is not None and (np.diff(rows) > 0).all() and 2000 - 12 < len(rows) <= 2000
    assert set(np.flatnonzero(np.isin(codes, codes[rows]))) == set(rows), (
        "each person is drawn with all rows"
    )
    assert (
        target_rows(inputs, SIDES, 5000, "test") is None
        and target_rows(inputs, SIDES, None, "test") is None
    )
    other = target_rows(inputs_of(persons=True), SIDES, 2000, "other purpose")
    assert other is not None and len(np.intersect1d(rows, other)) < 0.6 * len(rows)
    share = (rows < 3000).mean()
    assert abs(share - 0.6) < 0.06, "train and holdout alike"


def test_one_person_is_attacked_whatever_the_budget() -> None:
    train = mixed(3000, 1).assign(person=np.arange(3000) // 1500)
    holdout = mixed(3000, 2).assign(person=2 + np.arange(3000) // 1500)
    inputs = read_inputs(train, holdout, mixed(500, 3), declared=Declared(subject="person"))
    rows = target_rows(inputs, SIDES, 1000, "test")
    assert rows is not None and len(rows) == 1500


def test_neither_the_order_of_rows_nor_names_nor_sides_decide_who_is_drawn() -> None:
    train, holdout, synthetic = mixed(1600, 1), mixed(1600, 2), mixed(100, 3)
    turned = np.random.default_rng(0).permutation(1600)

    def drawn(*tables: pd.DataFrame) -> set[tuple[Any, ...]]:
        named = [
            table.assign(person=10_000 * side + np.arange(1600))
            for side, table in enumerate(tables)
        ]
        inputs = read_inputs(*named, synthetic, declared=Declared(subject="person"))
        rows = target_rows(inputs, SIDES, 1000, "test")
        stacked = Table.stack([inputs.train, inputs.holdout]).frame()
        return set(stacked.iloc[rows].astype(str).itertuples(index=False, name=None))

    first = drawn(train, holdout)
    assert len(first) == 1000
    assert drawn(train.iloc[turned].reset_index(drop=True), holdout) == first
    assert drawn(holdout, train) == first


def test_the_nearest_others_of_some_rows_are_those_of_all_where_many_are_equal() -> None:
    rng = np.random.default_rng(0)
    pool = EncodedTable.of_numbers(rng.integers(0, 3, (400, 2)).astype(np.float32))
    codes, rows = np.arange(400) // 3, np.sort(rng.permutation(400)[:150])
    whole = distance_to_other_subjects(pool, codes, "cpu")
    np.testing.assert_array_equal(distance_to_other_subjects(pool, codes, "cpu", rows), whole[rows])


@pytest.mark.slow
def test_statistics_speak_of_those_attacked_and_a_copy_is_caught() -> None:
    inputs = inputs_of(copies=600, reference=mixed(900, 77))
    some, whole = estimates(attack(max_targets=1500), inputs), estimates(attack(), inputs)
    for name in ("advantage", "advantage_any", "precision", "auc_domias"):
        assert some[name].n == some[name].subjects == 1500
    assert some["advantage_any"].low > 0.025 and some["auc_reference_ratio"].low > 0.5
    width = {
        name: found["advantage"].high - found["advantage"].low
        for name, found in (("some", some), ("all", whole))
    }
    assert width["some"] > 1.3 * width["all"]


@pytest.mark.slow
def test_a_budget_reaches_subgroups() -> None:
    found = estimates(
        attack(max_targets=2500, subgroups=["region", "smokes"]), inputs_of(copies=500)
    )
    assert 400 < found["advantage_subgroups"].n < 2500


def test_too_few_people_drawn_of_a_side_are_not_measurable() -> None:
    train = mixed(4000, 1).assign(person=np.arange(4000))
    holdout = mixed(400, 2).assign(person=9000 + np.arange(400) // 10)
    inputs = read_inputs(train, holdout, mixed(400, 3), declared=Declared(subject="person"))
    for estimate in estimates(attack(max_targets=1000), inputs).values():
        assert np.isnan(estimate.value) and "among the attacked ones" in estimate.note


def test_dcr_samples_nobody_but_the_holdout_of_the_privacy_score() -> None:
    inputs = inputs_of(copies=200, persons=True)
    whole, some = estimates(Dcr(), inputs), estimates(Dcr(max_targets=1000), inputs)
    for name in ("member_excess", "member_excess_any", "identical_excess"):
        assert some[name] == whole[name]
    score, everybody = some["privacy_score"], whole["privacy_score"]
    assert score.n == 3000, "synthetic rows are never sampled"
    assert 0.4 < score.subjects / everybody.subjects < 0.6
    assert abs(score.value - everybody.value) < 0.05 and score.low > 0


@pytest.mark.slow
def test_the_holdout_is_asked_with_the_budget() -> None:
    inputs = inputs_of(copies=600, reference=mixed(1500, 9))
    some, whole = (
        estimates(HoldoutLeakage(max_targets=1500), inputs),
        estimates(HoldoutLeakage(), inputs),
    )
    assert some["advantage_any"].n == 1500 < whole["advantage_any"].n
    assert some["identical_excess"] == whole["identical_excess"]


@pytest.mark.slow
def test_controls_look_with_the_budget_of_the_gate() -> None:
    policy = default_policy(["dcr", "membership_inference"])
    budget = Policy(
        policy.limits, settings={"controls": {}, "membership_inference": {"max_targets": 1500}}
    )
    chosen, _ = choose_metrics(None, budget)
    controls = chosen["controls"]
    assert isinstance(controls, Controls) and controls.max_targets == 1500
    inputs = inputs_of(copies=300)
    found = PlantedReleases(inputs, controls)._population
    whole = build_population(inputs, rows=target_rows(inputs, ("train", "holdout"), 1500, PURPOSE))
    assert (
        outlier_matches(found)
        == outlier_matches(whole)
        == replace(estimates(attack(max_targets=1500), inputs)["outlier_matches"], question="")
    )
    measured = estimates(controls, inputs_of())
    assert measured["smallest_leak_exact"].value < 0.2 and measured["false_alarm_rate"].value < 0.3
