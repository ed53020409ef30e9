"""Requirements on every metric of the registry, on one small release. Each variant of it is
evaluated once.

A new metric is included by its line in the registry; ``SHORT`` holds its quick settings and its
extra inputs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pandas as pd
import pytest

from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.registry import build_metric
from privacy_assets.policy import Policy
from privacy_assets.report.advice import privacy_configuration
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.tables.declared import Declared
from tests.shipped import METRICS
from tests.tables import with_tables

SHORT: dict[str, dict[str, object]] = {
    "dcr": {"n_bootstraps": 100, "n_permutations": 199},
    "copies": {"n_permutations": 199},
    "singling_out": {"n_queries": 400, "n_permutations": 199, "outliers": 100},
    "linkability": {"max_targets": 200, "n_permutations": 199},
    "attribute_inference": {"n_permutations": 199},
    "membership_inference": {"n_permutations": 199},
    "memorization": {"n_permutations": 199},
    "fidelity": {"n_bootstraps": 20},
    "controls": {"draws": 4, "nulls": 10, "n_permutations": 199},
    "holdout_leakage": {"n_permutations": 199},
    "shadow_membership": {
        "generator": {"name": "baynet"}, "max_targets": 2, "shadows": 20, "tests": 20, "size": 100,
        "attack_settings": {"trees": 10},
    },
}  # fmt: skip
TRAIN, HOLDOUT, REFERENCE = 160, 120, 80  # people, two rows each
# Metrics whose statistics do not depend on the seed, except through tables and intervals; of these
# tables no row is copied.
DRAWS_LITTLE = {"controls", "copies", "fidelity", "vulnerability"}
# Metrics that do not compare the rows with train: a copy of train does not change them.
NOT_OF_COPIES = {
    name for name, metric in METRICS.items() if not {"train", "synthetic"} <= metric.required_inputs
}
# A copy is useful, creates no values, and is not a canary.
NOT_OF_LEAKS = {
    name for name, metric in METRICS.items()
    if metric.causes.failed in ("poor fit", "values of no real row")
    or all(spec.measures == "evaluation" for spec in metric.statistics)
}  # fmt: skip
TOWNS = ["Kilburn", "Leith", "Morden", "Neath", "Oban", "Poole"]
# Metrics whose report tables are not about single rows, so that the order of rows does not change
# them.
TABLES_OF_NO_ROWS = {
    "singling_out",
    "linkability",
    "membership_inference",
    "attribute_inference",
    "fidelity",
}
# a lower bound without an interval: one more correct guess changes it much
COARSE = "epsilon_one_run"
# Reruns measure what another metric measures, on other tables; controls evaluate the table some
# twenty times.
SLOW = {"holdout_leakage", "controls", "data_privacy"}
NAMES = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in METRICS]
EVERY = pytest.mark.parametrize("name", NAMES)
# The plants and counts of the controls have their own tests.
ONCE = pytest.mark.parametrize(
    "name", [one for name, one in zip(METRICS, NAMES, strict=True) if name != "controls"]
)

Tables = dict[str, pd.DataFrame]


def people(number: int, first: int, seed: int) -> pd.DataFrame:
    """Two rows per person with every kind of column, some values missing, and no dependence on the
    seed alone.
    """
    rng = np.random.default_rng(seed)
    whose = np.repeat(np.arange(first, first + number), 2)
    base = rng.normal(size=(number, 4)).repeat(2, axis=0) @ rng.normal(size=(4, 4))
    frame = pd.DataFrame(base.round(6), columns=["a", "b", "c", "d"])
    frame = frame.assign(
        visits=rng.poisson(3, 2 * number),
        town=rng.choice(TOWNS, 2 * number),
        smoker=rng.random(2 * number) < 0.3,
        born=pd.Timestamp("1960-01-01")
        + pd.to_timedelta(rng.integers(0, 9_000, 2 * number), unit="D"),
    )
    frame = frame.mask(rng.random(frame.shape) < 0.03)
    return frame.astype({"visits": "Int64", "smoker": "boolean"}).assign(
        pid=[f"p{one:04d}" for one in whose]
    )


@cache
def fresh() -> Tables:
    """A release that is independent of train."""
    tables = {
        "train": people(TRAIN, 0, 1),
        "holdout": people(HOLDOUT, 1_000, 2),
        "reference": people(REFERENCE, 2_000, 3),
        "synthetic": people(TRAIN, 3_000, 8).drop(columns="pid"),
    }
    return tables


def copy(tables: Tables) -> Tables:
    return {**tables, "synthetic": tables["train"].drop(columns="pid")}


def tenth(tables: Tables) -> Tables:
    """A tenth of the rows are copies, so that some statistics differ from their null."""
    own = tables["train"].drop(columns="pid").iloc[:32]
    return {
        **tables,
        "synthetic": pd.concat([own, tables["synthetic"].iloc[32:]], ignore_index=True),
    }


def shuffled(tables: Tables) -> Tables:
    """Rows in another order, and people with other names in another order."""
    tables = people_renamed(tables)
    return {
        role: frame.sample(frac=1, random_state=5).reset_index(drop=True)
        for role, frame in tables.items()
    }


def columns_shuffled(tables: Tables) -> Tables:
    return {role: frame[list(frame.columns)[::-1]] for role, frame in tenth(tables).items()}


def people_renamed(tables: Tables) -> Tables:
    return {
        role: frame.assign(pid=[f"{9_999 - int(name[1:])}x" for name in frame["pid"]])
        if "pid" in frame
        else frame
        for role, frame in tenth(tables).items()
    }


def one_outlier(tables: Tables) -> Tables:
    """A cell in each table."""
    changed = {role: frame.copy() for role, frame in tenth(tables).items()}
    for place, frame in enumerate(changed.values()):
        frame.loc[70 + place, "b"] = 1e9 * (-1) ** place
    return changed


def missing_and_unseen(tables: Tables) -> Tables:
    synthetic = tables["synthetic"].copy()
    synthetic.loc[:20, "town"] = "nowhere"
    synthetic.loc[10:40, ["a", "visits", "smoker", "born"]] = None
    return {**tables, "synthetic": synthetic}


def as_it_is(tables: Tables) -> Tables:
    return tables


@cache
def inputs_of(change: Callable[[Tables], Tables] = as_it_is, seed: int = 0) -> EvaluationInputs:
    return prepared(change(fresh()), seed)


def prepared(tables: Tables, seed: int = 0) -> EvaluationInputs:
    order = ("train", "holdout", "synthetic", "reference")
    earlier = [people(TRAIN, 4_000, 6).drop(columns="pid")]
    return read_inputs(
        *(tables[role] for role in order),
        declared=Declared(subject="pid"),
        earlier_releases=earlier,
        seed=seed,
    )


def first_rows(inputs: EvaluationInputs, role: str, rows: int) -> EvaluationInputs:
    """The same release with the first ``rows`` rows of one table. A table without rows fails
    validation.
    """
    codes = {
        one: of_rows[:rows] if one == role else of_rows
        for one, of_rows in inputs.release.subjects.items()
    }
    tables = {**inputs.tables, role: inputs.tables[role].take(slice(rows))}
    return with_tables(inputs, tables, subjects=codes)


@cache
def measured(
    name: str, change: Callable[[Tables], Tables] = as_it_is, seed: int = 0
) -> MetricResult:
    return build_metric(name, SHORT.get(name)).measure(inputs_of(change, seed))


def estimates(result: MetricResult) -> dict[str, tuple[float, float, float]]:
    """Value and interval of each measurable statistic."""
    return {one.name: (one.value, one.low, one.high) for one in result.estimates if one.measurable}


def same(first: MetricResult, second: MetricResult) -> None:
    one, other = estimates(first), estimates(second)
    assert one.keys() == other.keys()
    for name, ends in one.items():
        assert other[name] == pytest.approx(ends, abs=1e-9), name


def alike(first: MetricResult, second: MetricResult) -> None:
    """Whether the intervals of statistics that both could measure overlap."""
    one, other = estimates(first), estimates(second)
    assert one.keys() & other.keys()
    for name in (one.keys() & other.keys()) - {COARSE}:
        _, low, high = one[name]
        assert other[name][1] <= high + 1e-9 and low - 1e-9 <= other[name][2], (
            name,
            one[name],
            other[name],
        )


@EVERY
def test_what_it_declares_is_of_its_own_statistics(name: str) -> None:
    metric = METRICS[name]
    statistics = {spec.name for spec in metric.statistics}
    limited = {limit.statistic.removeprefix(f"{name}.") for limit in metric.default_limits}
    protected = {statistic for one in metric.protections for statistic in one.statistics}
    planted = {statistic for some in metric.detectable_leaks.values() for statistic in some}
    compared = {metric.filter_comparison.statistic} if metric.filter_comparison else set()
    used = {*metric.utility, *metric.generated_column_statistics}
    assert (
        limited | protected | {*metric.causes.by_statistic} | planted | compared | used
        <= statistics
    )
    assert metric.summary and all(limit.source for limit in metric.default_limits)
    assert {one.protection for one in metric.protections} <= {
        one.name for one in privacy_configuration(None)
    }
    if name in SHORT or metric.runs_by_default:
        tables = measured(name, tenth).tables
        assert {plot.table for plot in metric.plots} <= {*tables, "subgroups"}, (
            "subgroups are declared by the user"
        )


@EVERY
def test_statistics_are_those_of_the_specs(name: str) -> None:
    for change in (as_it_is, copy) if name != "controls" else (as_it_is,):
        result = measured(name, change)
        assert result.metric == name and [one.name for one in result.estimates if one.measurable]
        assert {one.name for one in result.estimates} <= {
            spec.name for spec in METRICS[name].statistics
        }
        for one in result.estimates:
            assert one.subjects <= TRAIN + HOLDOUT + REFERENCE, "people, not rows"
            if one.measurable:
                assert one.low <= one.value <= one.high
            else:
                assert one.note, "why it is not measurable"


@EVERY
def test_results_survive_json_and_hold_no_value_of_a_cell(name: str) -> None:
    result = measured(name)
    text = json.dumps(result.to_json(), allow_nan=False)
    assert json.dumps(MetricResult.from_json(json.loads(text)).to_json(), allow_nan=False) == text
    cells = [*TOWNS, *fresh()["train"]["a"].dropna().abs().astype(str), "1960-", "1970-"]
    assert not [cell for cell in cells if cell in text]


@EVERY
def test_neither_the_order_of_rows_nor_names_of_people_change_anything(name: str) -> None:
    first, second = measured(name, tenth), measured(name, shuffled)
    if name == "shadow_membership":  # which draws other shadow tables
        alike(first, second)
    else:
        same(first, second)
    if name in TABLES_OF_NO_ROWS:
        assert json.dumps(first.to_json()["tables"]) == json.dumps(second.to_json()["tables"])


@ONCE
def test_the_order_of_columns_moves_nothing_beyond_its_interval(name: str) -> None:
    """Columns may be drawn by position, so another order draws others."""
    alike(measured(name, tenth), measured(name, columns_shuffled))


@EVERY
def test_a_seed_gives_one_answer_and_zero_is_a_seed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, rng = [], EvaluationInputs.rng
    with monkeypatch.context() as patch:
        patch.setattr(
            EvaluationInputs,
            "rng",
            lambda self, purpose: drawn.append(purpose) or rng(self, purpose),
        )
        again = build_metric(name, SHORT.get(name)).measure(prepared(fresh()))
    same(measured(name), again)
    assert again.seed == 0
    if drawn and name not in DRAWS_LITTLE:
        other = measured(name, seed=1)
        assert json.dumps(other.to_json()["estimates"]) != json.dumps(again.to_json()["estimates"])


@ONCE
def test_one_outlier_moves_little(name: str) -> None:
    before, after = estimates(measured(name, tenth)), estimates(measured(name, one_outlier))
    for estimate, (value, low, high) in before.items():
        reach = math.inf if estimate == COARSE else 0.05 * max(1.0, abs(value))
        assert low - reach <= after[estimate][0] <= high + reach, estimate


@ONCE
def test_missing_and_unseen_values_are_measured(name: str) -> None:
    assert estimates(measured(name, missing_and_unseen)).keys() >= estimates(measured(name)).keys()


@pytest.mark.parametrize("role", ["synthetic", "holdout", "train"])
@pytest.mark.parametrize("rows", [0, 1, 2])
@EVERY
def test_few_rows_are_told_and_never_pass(name: str, rows: int, role: str) -> None:
    result = build_metric(name, SHORT.get(name)).measure(first_rows(inputs_of(), role, rows))
    # which compares synthetic cells with all real ones, so a few rows suffice
    if name != "value_disclosure":
        assert all(one.measurable or one.note for one in result.estimates)
    limits = METRICS[name].default_limits
    # which tests the detection of leaks in the synthetic table
    judges = role != "synthetic" or name == "controls"
    if limits and judges and name not in NOT_OF_COPIES | {"value_disclosure"}:
        assert Policy(limits).judge({name: result}).status != "pass"


@pytest.mark.parametrize(
    "name", [name for name in METRICS if name not in NOT_OF_COPIES | NOT_OF_LEAKS]
)
def test_fresh_rows_are_at_the_null_and_a_copy_is_worst(name: str) -> None:
    honest, leak = measured(name), {one.name: one for one in measured(name, copy).estimates}
    compared = 0
    for one in honest.estimates:
        if not one.measurable or not math.isfinite(one.null) or not leak[one.name].measurable:
            continue
        sign = -1 if one.direction == "lower_is_riskier" else 1
        assert sign * (leak[one.name].value - one.value) >= -1e-9, one.name
        if one.direction == "two_sided":
            width = one.high - one.low  # the full width, because there are twenty statistics
            assert abs(one.value - one.null) <= width, one.name
            compared += leak[one.name].low > one.null
    limits = METRICS[name].default_limits
    if limits:
        assert Policy(limits).judge({name: measured(name, copy)}).status == "fail"
        assert Policy(limits).judge({name: honest}).status != "fail"
    assert compared or name in ("singling_out", "data_privacy")  # which have no two-sided statistic
