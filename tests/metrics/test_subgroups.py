"""Subgroups under attack, against a naive twin and releases whose truth is known."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from privacy_assets import evaluate
from privacy_assets.errors import ConfigError
from privacy_assets.evaluation import prepare_inputs
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.membership_inference.scores import Population, build_population
from privacy_assets.metrics.membership_inference.subgroups import (
    SMALLEST_GROUP,
    advantage_subgroups,
    find_subgroups,
)
from privacy_assets.policy import Policy
from privacy_assets.stats.intervals import LEAK_CONFIDENCE
from privacy_assets.stats.limits import Limit
from privacy_assets.tables.schema import infer_schema
from tests.tables import as_table

WARDS = ("oncology", "maternity", "paediatrics", "geriatrics")


def people(n, seed):
    g = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": g.integers(18, 90, n),
            "income": g.lognormal(10, 1, n),
            "weight": g.normal(70, 12, n),
            "ward": g.choice(WARDS, n, p=[0.05, 0.15, 0.3, 0.5]),
            "smokes": g.random(n) < 0.3,
        }
    )


def cut(frame, *sizes):
    ends = np.cumsum([0, *sizes])
    return tuple(frame.iloc[a:b].reset_index(drop=True) for a, b in zip(ends[:-1], ends[1:], strict=True))


def drawn(seed, n_train=1600, n_holdout=1600, rows=1, copied=""):
    """Columns and scored rows of made-up people; ``copied`` members of one ward stand nearest."""
    g = np.random.default_rng(seed)
    n = n_train + n_holdout
    frame = people(n * rows, seed)
    codes = np.repeat(np.arange(n), rows)
    member = np.arange(n) < n_train
    near, alone = g.gamma(2, size=n * rows), g.gamma(2, size=n * rows)
    near[(frame["ward"] == copied).to_numpy() & member[codes]] *= 0.3
    half = g.permutation(n) % 2 == 1
    inputs = SimpleNamespace(train=frame[: n_train * rows], holdout=frame[n_train * rows :])
    return inputs, Population(codes, member, {"distance": near, "distance / neighbour": near / alone}, alone, half)


def as_given(inputs):
    """The frames as tables of one schema."""
    schema = infer_schema(pd.concat([inputs.train, inputs.holdout]))
    return SimpleNamespace(train=as_table(inputs.train, schema), holdout=as_table(inputs.holdout, schema))


def naive_advantage(score, rows, found, share):
    """True minus false positive rate among ``rows``, each half judged by the cut of the other, row by row."""
    total, half, member = 0.0, found.half[found.codes], found.member[found.codes]
    for fit in (False, True):
        others = sorted(score[i] for i in rows if half[i] == fit and not member[i])
        wanted = share * len(others)
        threshold = others[max(math.ceil(wanted - 1e-9), 1) - 1]
        below, tied = sum(x < threshold for x in others), sum(x == threshold for x in others)
        weight = (wanted - below) / tied
        for sign, side in ((1, True), (-1, False)):
            judged = [i for i in rows if half[i] != fit and member[i] == side]
            named = sum(1.0 if score[i] < threshold else weight if score[i] == threshold else 0.0 for i in judged)
            total += sign * named / len(judged) / 2
    return total


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("decimals", [1, 8])
def test_the_table_is_that_of_a_naive_twin(rows, decimals):
    inputs, found = drawn(3, 900, 1100, rows, copied="geriatrics")
    for name in found.scores:
        found.scores[name] = np.round(found.scores[name], decimals)
    estimate, table = advantage_subgroups(as_given(inputs), found, ["ward", "smokes"], 199, np.random.default_rng(0))
    frame = pd.concat([inputs.train, inputs.holdout], ignore_index=True)
    expected = []
    for column in ("ward", "smokes"):
        sizes = {value: len({found.codes[i] for i in at}) for value, at in frame.groupby(column).indices.items()}
        for rank, value in enumerate(sorted(sizes, key=lambda value: (-sizes[value], value)), start=1):
            at = frame.groupby(column).indices[value]
            sides = [
                len({found.codes[i] for i in at if found.member[found.codes[i]] == side}) for side in (True, False)
            ]
            if min(sides) >= SMALLEST_GROUP:
                expected.append((column, rank, *sides, at))
    assert [tuple(row[key] for key in ("column", "group", "members", "non_members")) for row in table] == [
        row[:4] for row in expected
    ]
    for row, (*_, at) in zip(table, expected, strict=True):
        assert row["advantage"] == pytest.approx(naive_advantage(found.scores[row["score"]], at, found, row["fpr"]))
        assert row["low"] <= row["advantage"] <= row["high"]
    told = [row for row in table if estimate.note.startswith(f"{row['column']}, group {row['group']} by size: ")]
    assert [estimate.value, estimate.low, estimate.high] == [told[0][key] for key in ("advantage", "low", "high")]
    assert estimate.confidence == LEAK_CONFIDENCE


def test_the_group_that_leaks_is_told_and_the_others_are_not():
    inputs, found = drawn(0, 3000, 3000, copied="maternity")
    estimate, table = advantage_subgroups(as_given(inputs), found, ["ward"], 199, np.random.default_rng(0))
    assert estimate.note.startswith("ward, group 3 by size: distance at ")
    assert estimate.low > 0.1
    assert [row["low"] > 0 for row in table] == [False, False, True]
    assert (estimate.n, estimate.subjects) == (table[2]["members"] + table[2]["non_members"],) * 2


def test_groups_that_are_avoided_are_demonstrated_from_the_other_side():
    inputs, found = drawn(0, 3000, 3000)
    members = found.member[found.codes] & (pd.concat([inputs.train, inputs.holdout])["ward"] == "maternity").to_numpy()
    found.scores["distance"][members] += 3
    estimate, _ = advantage_subgroups(as_given(inputs), found, ["ward"], 199, np.random.default_rng(0))
    assert estimate.high < -0.1


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 4])
def test_coverage_and_minimum_detectable_effect_when_nothing_leaks(rows):
    estimates = []
    for seed in range(100):
        inputs, found = drawn(seed, 1300, 700, rows)
        estimates.append(
            advantage_subgroups(as_given(inputs), found, ["ward", "smokes"], 199, np.random.default_rng(seed))[0]
        )
    assert sum(not f.low <= 0 <= f.high for f in estimates) <= 4  # 0.5 to 1 expected of 100; 4 has a chance of 0.4 %
    assert sum(max(-f.low, f.high) > f.minimum_detectable_effect for f in estimates) <= 4


def test_groups_need_two_hundred_people_a_side_and_rows_are_not_people():
    inputs, found = drawn(1, 400, 400, rows=4)
    ward = np.where(np.arange(3200) % 1600 < 800, "a", np.where(np.arange(3200) % 1600 < 1596, "b", "c"))
    inputs.train["ward"], inputs.holdout["ward"] = ward[:1600], ward[1600:]
    groups = find_subgroups(as_given(inputs), found, ["ward"])
    assert [(group.rank, group.population.side(True), group.population.side(False)) for group in groups] == [
        (1, (800, 200), (800, 200))
    ]  # b has 199 people a side in 796 rows


def test_missing_values_are_a_group_of_their_own():
    inputs, found = drawn(2)
    for table in (inputs.train, inputs.holdout):
        hidden = np.random.default_rng(0).random(len(table)) < 0.4
        table["ward"] = table["ward"].astype(object).mask(hidden)
        table["smokes"] = table["smokes"].astype("boolean").mask(hidden)
    groups = find_subgroups(as_given(inputs), found, ["ward", "smokes"])
    every = pd.concat([inputs.train, inputs.holdout])
    sizes = [group.population.counts[1] for group in groups if group.column == "ward"]
    assert sizes[0] == every["ward"].isna().sum()
    assert sum(group.population.counts[1] for group in groups if group.column == "smokes") == len(every)


def test_a_person_of_two_groups_stands_in_both_with_the_rows_of_each():
    inputs, found = drawn(4, 300, 300, rows=2)
    ward = np.tile(["a", "b"], 600)
    inputs.train["ward"], inputs.holdout["ward"] = ward[:600], ward[600:]
    groups = find_subgroups(as_given(inputs), found, ["ward"])
    assert [group.population.counts for group in groups] == [(600, 600), (600, 600)]


# ------------------------------------------------------------------------- the whole metric


def release(copied=0, ward="oncology"):
    """``copied`` members of one ward among fresh rows, jittered."""
    train, holdout, fresh = cut(people(15_000, 0), 6000, 5000, 4000)
    rows = train[train["ward"] == ward][:copied].copy()
    rows["income"] *= 1.01
    return train, holdout, pd.concat([rows, fresh[copied:]], ignore_index=True)


def result_of(*tables, subgroups=("ward", "smokes"), **options):
    return MembershipInference(permutations=199, subgroups=subgroups).evaluate(prepare_inputs(*tables, **options))


def test_a_leak_of_one_group_is_demonstrated_where_averages_tolerate_it():
    limits = MembershipInference.default_limits
    limited = Policy((*limits, Limit("membership_inference.advantage_subgroups", at_most=0.05, bound="lower")))
    leaking, honest = result_of(*release(copied=60)), result_of(*release())
    broken = {outcome.limit.key for outcome in limited.judge({"membership_inference": leaking}).broken}
    assert broken == {"membership_inference.advantage_subgroups.lower"}
    assert leaking.estimate("advantage_subgroups").note.startswith("ward, group 4 by size: ")
    assert limited.judge({"membership_inference": honest}).verdict == "pass"
    assert honest.estimate("advantage_subgroups").low <= 0 <= honest.estimate("advantage_subgroups").high
    alone = result_of(*release(copied=60), subgroups=())
    same = [
        estimate.name for estimate, other in zip(leaking.estimates, alone.estimates, strict=True) if estimate == other
    ]
    assert set(same) == {spec.name for spec in MembershipInference.statistics} - {"advantage_subgroups"}


def test_a_copy_is_worst_in_every_group():
    train, holdout, _ = release()
    table = result_of(train, holdout, train).tables["subgroups"]
    assert {(row["column"], row["group"]) for row in table} == {("ward", at) for at in (1, 2, 3, 4)} | {
        ("smokes", 1),
        ("smokes", 2),
    }
    assert all(row["advantage"] > 0.9 and row["low"] > 0.8 for row in table)


def test_order_of_rows_changes_nothing():
    tables = cut(people(3500, 1), 1500, 1000, 1000)
    shuffled = [table.sample(frac=1, random_state=at).reset_index(drop=True) for at, table in enumerate(tables)]
    first, second = (result_of(*found) for found in (tables, shuffled))
    assert first.estimates == second.estimates
    assert first.tables == second.tables


def test_without_declared_subgroups_the_statistic_is_shown_and_stops_nothing():
    result = result_of(*release(), subgroups=())
    assert result.estimate("advantage_subgroups").note == "not measurable: no subgroup is declared"
    assert math.isnan(result.estimate("advantage_subgroups").value)
    assert "subgroups" not in result.tables
    assert Policy(MembershipInference.default_limits).judge({"membership_inference": result}).verdict == "pass"


def test_small_groups_are_not_measurable():
    result = result_of(*cut(people(500, 0), 200, 150, 150))
    assert result.estimate("advantage_subgroups").note == "not measurable: no value has 200 subjects on each side"


def test_no_category_reaches_the_result():
    text = json.dumps(result_of(*release()).to_json(), allow_nan=False)
    assert '"ward"' in text
    assert not [ward for ward in WARDS if ward in text]


@pytest.mark.parametrize(
    ("subgroups", "words"),
    [
        ("ward", "must be a list of texts"),
        (["ward", 3], "must be a list of texts"),
        (None, "must be a list of texts"),
        (["ward", "ward"], "names a column twice"),
    ],
)
def test_what_is_no_list_of_columns_is_refused(subgroups, words):
    with pytest.raises(ConfigError, match=words):
        MembershipInference(subgroups=subgroups)


@pytest.mark.parametrize("sizes", [(300, 300, 300), (20, 10, 10)])
@pytest.mark.parametrize(
    ("column", "words"),
    [("wards", "unknown column 'wards'. Did you mean 'ward'?"), ("income", "'income' is numeric, not categorical")],
)
def test_columns_that_are_no_groups_are_refused(sizes, column, words):
    tables = cut(people(sum(sizes), 0), *sizes)
    with pytest.raises(ConfigError) as caught:
        evaluate(*tables, metrics={"membership_inference": {"subgroups": ["ward", column]}}, embedder=False)
    assert words in str(caught.value)


def test_subgroups_are_declared_through_the_front_door():
    tables = cut(people(1500, 0), 600, 500, 400)
    report = evaluate(*tables, metrics={"membership_inference": {"subgroups": ["ward"]}}, embedder=False)
    assert [row["column"] for row in report.results["membership_inference"].tables["subgroups"]] == ["ward"]
    assert "advantage_subgroups" in report.to_html()


def test_groups_hold_the_rows_with_their_value():
    inputs = prepare_inputs(*release())
    population = build_population(inputs)
    groups = find_subgroups(inputs, population, ["ward"])
    every = pd.concat([inputs.train.frame(), inputs.holdout.frame()])["ward"].value_counts()
    assert [group.population.counts[0] for group in groups] == every.tolist()
