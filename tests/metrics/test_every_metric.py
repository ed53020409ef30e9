"""What every metric of the registry must do, on one small release: each variant of it is measured once.

A new metric joins by its line in the registry; how to make it quick, or what it needs, stands in ``SHORT``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest

from privacy_assets.evaluation import prepare_inputs
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.registry import METRICS, build_metric
from privacy_assets.policy import Policy
from privacy_assets.report.configuration import privacy_configuration
from privacy_assets.stats.results import MetricResult

SHORT: dict[str, dict[str, object]] = {
    "dcr": {"bootstraps": 100, "permutations": 199},
    "copies": {"permutations": 199},
    "singling_out": {"attacks": 400, "permutations": 199, "outliers": 100},
    "linkability": {"attacks": 200, "permutations": 199},
    "attribute_inference": {"permutations": 199},
    "membership_inference": {"permutations": 199},
    "memorization": {"permutations": 199},
    "fidelity": {"replicates": 20},
    "cumulative_disclosure": {"permutations": 199},
    "controls": {"draws": 4, "nulls": 10, "permutations": 199},
    "holdout_leakage": {"permutations": 199},
    "shadow_membership": {
        "generator": {"name": "baynet"}, "records": 2, "shadows": 20, "tests": 20, "size": 100,
        "attack_settings": {"trees": 10},
    },
}  # fmt: skip
TRAIN, HOLDOUT, REFERENCE = 160, 120, 80  # people, two rows each
# Whose statistics do not depend on the seed, only tables and intervals; of these tables no row is copied.
DRAWS_LITTLE = {"controls", "copies", "fidelity", "vulnerability"}
# Those that do not set the rows beside train: a copy of it changes nothing that they say.
NOT_OF_COPIES = {name for name, metric in METRICS.items() if not {"train", "synthetic"} <= metric.needs}
# A copy is useful, invents nothing, and is no canary.
NOT_OF_LEAKS = {
    name for name, metric in METRICS.items()
    if metric.causes.broken in ("poor fit", "foreign values")
    or all(spec.about == "gate" for spec in metric.statistics)
}  # fmt: skip
TOWNS = ["Kilburn", "Leith", "Morden", "Neath", "Oban", "Poole"]
# Whose tables for the report say nothing of single rows, so that the order of these changes none of it.
TABLES_OF_NO_ROWS = {"singling_out", "linkability", "membership_inference", "attribute_inference", "fidelity"}
COARSE = "epsilon_one_run"  # a lower bound, without an interval: one right guess more moves it far
EVERY = pytest.mark.parametrize("name", METRICS)
# Controls measure the table some twenty times; what they plant and how they count has tests of its own.
ONCE = pytest.mark.parametrize("name", [name for name in METRICS if name != "controls"])

Tables = dict[str, pd.DataFrame]


def people(number: int, first: int, seed: int) -> pd.DataFrame:
    """Two rows a person with every kind of column, some values missing, nothing that the seed alone explains."""
    rng = np.random.default_rng(seed)
    whose = np.repeat(np.arange(first, first + number), 2)
    base = rng.normal(size=(number, 4)).repeat(2, axis=0) @ rng.normal(size=(4, 4))
    frame = pd.DataFrame(base.round(6), columns=["a", "b", "c", "d"])
    frame = frame.assign(
        visits=rng.poisson(3, 2 * number),
        town=rng.choice(TOWNS, 2 * number),
        smoker=rng.random(2 * number) < 0.3,
        born=pd.Timestamp("1960-01-01") + pd.to_timedelta(rng.integers(0, 9_000, 2 * number), unit="D"),
    )
    frame = frame.mask(rng.random(frame.shape) < 0.03)
    return frame.astype({"visits": "Int64", "smoker": "boolean"}).assign(pid=[f"p{one:04d}" for one in whose])


@cache
def fresh() -> Tables:
    """A release that knows nobody of train."""
    tables = {
        "train": people(TRAIN, 0, 1), "holdout": people(HOLDOUT, 1_000, 2), "reference": people(REFERENCE, 2_000, 3),
        "synthetic": people(TRAIN, 3_000, 8).drop(columns="pid"),
    }  # fmt: skip
    return tables


def copy(tables: Tables) -> Tables:
    return {**tables, "synthetic": tables["train"].drop(columns="pid")}


def tenth(tables: Tables) -> Tables:
    """A tenth of the rows are copies, so that there is something that could move."""
    own = tables["train"].drop(columns="pid").iloc[:32]
    return {**tables, "synthetic": pd.concat([own, tables["synthetic"].iloc[32:]], ignore_index=True)}


def shuffled(tables: Tables) -> Tables:
    """Rows in another order, and people under other names, of another order too."""
    tables = people_renamed(tables)
    return {role: frame.sample(frac=1, random_state=5).reset_index(drop=True) for role, frame in tables.items()}


def columns_shuffled(tables: Tables) -> Tables:
    return {role: frame[list(frame.columns)[::-1]] for role, frame in tenth(tables).items()}


def people_renamed(tables: Tables) -> Tables:
    return {
        role: frame.assign(pid=[f"{9_999 - int(name[1:])}x" for name in frame["pid"]]) if "pid" in frame else frame
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
def inputs_of(change: Callable[[Tables], Tables] = as_it_is, seed: int = 0) -> MetricInputs:
    return prepared(change(fresh()), seed)


def prepared(tables: Tables, seed: int = 0) -> MetricInputs:
    order = ("train", "holdout", "synthetic", "reference")
    earlier = [people(TRAIN, 4_000, 6).drop(columns="pid")]
    return prepare_inputs(*(tables[role] for role in order), subject="pid", released=earlier, seed=seed)


def first_rows(inputs: MetricInputs, role: str, rows: int) -> MetricInputs:
    """The same release with so few rows of one table; a table without any gets no further than the door."""
    codes = {one: of_rows[:rows] if one == role else of_rows for one, of_rows in inputs.subjects.items()}
    return replace(inputs, tables={**inputs.tables, role: inputs.tables[role].take(slice(rows))}, subjects=codes)


@cache
def measured(name: str, change: Callable[[Tables], Tables] = as_it_is, seed: int = 0) -> MetricResult:
    return build_metric(name, SHORT.get(name)).evaluate(inputs_of(change, seed))


def estimates(result: MetricResult) -> dict[str, tuple[float, float, float]]:
    """Value and interval of each statistic that could be measured."""
    return {one.name: (one.value, one.low, one.high) for one in result.estimates if one.measurable}


def same(first: MetricResult, second: MetricResult) -> None:
    one, other = estimates(first), estimates(second)
    assert one.keys() == other.keys()
    for name, ends in one.items():
        assert other[name] == pytest.approx(ends, abs=1e-9), name


def alike(first: MetricResult, second: MetricResult) -> None:
    """Intervals overlap, of what both could measure."""
    one, other = estimates(first), estimates(second)
    assert one.keys() & other.keys()
    for name in (one.keys() & other.keys()) - {COARSE}:
        _, low, high = one[name]
        assert other[name][1] <= high + 1e-9 and low - 1e-9 <= other[name][2], (name, one[name], other[name])


@EVERY
def test_what_it_declares_is_of_its_own_statistics(name: str) -> None:
    metric = METRICS[name]
    statistics = {spec.name for spec in metric.statistics}
    limited = {limit.statistic.removeprefix(f"{name}.") for limit in metric.default_limits}
    protected = {statistic for one in metric.protections for statistic in one.statistics}
    planted = {statistic for some in metric.smallest_leak.values() for statistic in some}
    compared = {metric.compared.statistic} if metric.compared else set()
    used = {*metric.utility, *metric.utility.values(), *metric.protection_score.values(), *metric.if_generated}
    assert limited | protected | {*metric.causes.by_statistic} | planted | compared | used <= statistics
    assert metric.summary and all(limit.source for limit in metric.default_limits)
    assert {one.by for one in metric.protections} <= {one.name for one in privacy_configuration(None)}
    if name in SHORT or metric.by_default:
        tables = measured(name, tenth).tables
        assert {plot.table for plot in metric.plots} <= {*tables, "subgroups"}, "subgroups are declared by the user"


@EVERY
def test_statistics_are_those_of_the_specs(name: str) -> None:
    for change in (as_it_is, copy) if name != "controls" else (as_it_is,):
        result = measured(name, change)
        assert result.metric == name and [one.name for one in result.estimates if one.measurable]
        specs = {spec.name: spec for spec in METRICS[name].statistics}
        assert {one.name for one in result.estimates} <= set(specs)
        for one in result.estimates:
            spec = specs[one.name]
            assert (one.direction, one.about) == (spec.direction, spec.about)
            if spec.null is not None:
                assert one.null == pytest.approx(spec.null, nan_ok=True)
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
    """Columns may be drawn by their place: then others are drawn."""
    alike(measured(name, tenth), measured(name, columns_shuffled))


@EVERY
def test_a_seed_gives_one_answer_and_zero_is_a_seed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, rng = [], MetricInputs.rng
    with monkeypatch.context() as patch:
        patch.setattr(MetricInputs, "rng", lambda self, purpose: drawn.append(purpose) or rng(self, purpose))
        again = build_metric(name, SHORT.get(name)).evaluate(prepared(fresh()))
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
    result = build_metric(name, SHORT.get(name)).evaluate(first_rows(inputs_of(), role, rows))
    if name != "value_disclosure":  # which holds synthetic cells against all real ones: a few rows will do
        assert all(one.measurable or one.note for one in result.estimates)
    limits = METRICS[name].default_limits
    judges = role != "synthetic" or name == "controls"  # which asks what would be seen in the synthetic table
    if limits and judges and name not in NOT_OF_COPIES | {"value_disclosure"}:
        assert Policy(limits).judge({name: result}).verdict != "pass"


@pytest.mark.parametrize("name", [name for name in METRICS if name not in NOT_OF_COPIES | NOT_OF_LEAKS])
def test_fresh_rows_are_at_the_null_and_a_copy_is_worst(name: str) -> None:
    honest, leak = measured(name), {one.name: one for one in measured(name, copy).estimates}
    compared = 0
    for one in honest.estimates:
        if not one.measurable or not math.isfinite(one.null) or not leak[one.name].measurable:
            continue
        sign = -1 if one.direction == "lower_is_riskier" else 1
        assert sign * (leak[one.name].value - one.value) >= -1e-9, one.name
        if one.direction == "two_sided":
            width = one.high - one.low  # twice as far as the interval reaches: there are twenty of them
            assert abs(one.value - one.null) <= width, one.name
            compared += leak[one.name].low > one.null
    limits = METRICS[name].default_limits
    if limits:
        assert Policy(limits).judge({name: measured(name, copy)}).verdict == "fail"
        assert Policy(limits).judge({name: honest}).verdict != "fail"
    assert compared or name == "singling_out"
