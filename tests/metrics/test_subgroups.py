"""Subgroup attacks, against a naive twin and releases of known truth."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from privacy_assets import evaluate
from privacy_assets.errors import ConfigError
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.membership_inference.outliers import (
    SMALLEST_GROUP,
    advantage_subgroups,
    find_subgroups,
)
from privacy_assets.metrics.membership_inference.scores import Population
from privacy_assets.policy import Limit, Policy
from privacy_assets.stats.intervals import LEAK_CONFIDENCE
from privacy_assets.tables.inference import infer_schema
from tests.metrics.given_tables import cut, naive_rates
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


def drawn(seed, n_train=1600, n_holdout=1600, rows=1, copied=""):
    """Stacked rows of invented people with scores; members of the ward ``copied`` are nearest."""
    g = np.random.default_rng(seed)
    n = n_train + n_holdout
    frame = people(n * rows, seed)
    codes = np.repeat(np.arange(n), rows)
    member = np.arange(n) < n_train
    near, alone = g.gamma(2, size=n * rows), g.gamma(2, size=n * rows)
    near[(frame["ward"] == copied).to_numpy() & member[codes]] *= 0.3
    half = g.permutation(n) % 2 == 1
    return frame, Population(
        codes, member, {"distance": near, "distance / neighbor": near / alone}, alone, half
    )


def as_given(frame, found):
    """The rows as tables of one schema."""
    schema, members = infer_schema(frame), int(found.member[found.codes].sum())
    return SimpleNamespace(
        train=as_table(frame[:members], schema), holdout=as_table(frame[members:], schema)
    )


def attacked(frame, found, columns=("ward",), seed=0):
    return advantage_subgroups(
        as_given(frame, found), found, columns, 199, np.random.default_rng(seed)
    )


@pytest.mark.parametrize(("rows", "decimals"), [(1, 8), (3, 1)])
def test_the_table_is_that_of_a_naive_twin(rows, decimals):
    frame, found = drawn(3, 900, 1100, rows, copied="geriatrics")
    for name in found.scores:
        found.scores[name] = np.round(found.scores[name], decimals)
    estimate, table = attacked(frame, found, ("ward", "smokes"))
    expected = []
    for column in ("ward", "smokes"):
        groups = {
            value: (at, set(found.codes[at])) for value, at in frame.groupby(column).indices.items()
        }
        ranked = sorted(groups, key=lambda value: (-len(groups[value][1]), value))
        for rank, value in enumerate(ranked, start=1):
            at, who = groups[value]
            members = sum(found.member[one] for one in who)
            if min(members, len(who) - members) >= SMALLEST_GROUP:
                expected.append((column, rank, members, len(who) - members, at))
    told = [
        tuple(row[key] for key in ("column", "group", "members", "non_members")) for row in table
    ]
    assert told == [row[:4] for row in expected]
    for row, (*_, at) in zip(table, expected, strict=True):
        tpr, fpr = naive_rates(
            found.scores[row["score"]], found.codes, found.half, found.member, row["fpr"], at
        )
        assert row["advantage"] == pytest.approx(tpr - fpr)
        assert row["low"] <= row["advantage"] <= row["high"]
    named = next(
        row
        for row in table
        if estimate.note.startswith(f"{row['column']}, group {row['group']} by size: ")
    )
    assert [estimate.value, estimate.low, estimate.high] == [
        named[key] for key in ("advantage", "low", "high")
    ]
    assert estimate.confidence == LEAK_CONFIDENCE


def test_the_group_that_leaks_is_told_and_the_others_are_not():
    estimate, table = attacked(*drawn(0, 3000, 3000, copied="maternity"))
    assert estimate.note.startswith("ward, group 3 by size: distance at ")
    assert estimate.low > 0.1
    assert [row["low"] > 0 for row in table] == [False, False, True]
    assert (estimate.n, estimate.subjects) == (table[2]["members"] + table[2]["non_members"],) * 2


def test_groups_that_are_avoided_are_significant_from_the_other_side():
    frame, found = drawn(0, 3000, 3000)
    found.scores["distance"][
        found.member[found.codes] & (frame["ward"] == "maternity").to_numpy()
    ] += 3
    assert attacked(frame, found)[0].high < -0.1


@pytest.mark.weekly
@pytest.mark.parametrize("rows", [1, 4])
def test_coverage_and_minimum_detectable_effect_when_nothing_leaks(rows):
    drawings = (drawn(seed, 1300, 700, rows) for seed in range(100))
    estimates = [attacked(*each, ("ward", "smokes"), seed)[0] for seed, each in enumerate(drawings)]
    # 0.5 to 1 of 100 expected; P(4) is 0.4 %
    assert sum(not f.low <= 0 <= f.high for f in estimates) <= 4
    assert sum(max(-f.low, f.high) > f.minimum_detectable_effect for f in estimates) <= 4


def groups_of(frame, found, *columns):
    return find_subgroups(as_given(frame, found), found, columns)


def test_groups_need_two_hundred_people_a_side_and_rows_are_not_people():
    frame, found = drawn(1, 400, 400, rows=4)
    place = np.arange(3200) % 1600
    frame["ward"] = np.select([place < 800, place < 1596], ["a", "b"], "c")
    groups = groups_of(frame, found, "ward")
    sides = [
        (group.rank, group.population.side(True), group.population.side(False)) for group in groups
    ]
    assert sides == [(1, (800, 200), (800, 200))]  # b has 199 people a side in 796 rows


def test_missing_values_are_a_group_of_their_own():
    frame, found = drawn(2)
    hidden = np.random.default_rng(0).random(len(frame)) < 0.4
    frame["ward"] = frame["ward"].astype(object).mask(hidden)
    frame["smokes"] = frame["smokes"].astype("boolean").mask(hidden)
    groups = groups_of(frame, found, "ward", "smokes")
    assert groups[0].population.counts[1] == hidden.sum()
    assert sum(group.population.counts[1] for group in groups if group.column == "smokes") == len(
        frame
    )


def test_a_person_of_two_groups_stands_in_both_with_the_rows_of_each():
    frame, found = drawn(4, 300, 300, rows=2)
    frame["ward"] = np.tile(["a", "b"], 600)
    assert [group.population.counts for group in groups_of(frame, found, "ward")] == [
        (600, 600),
        (600, 600),
    ]


# ------------------------------------------------------------------------- the whole metric


def release(copied=0, ward="oncology"):
    """``copied`` members of one ward among fresh rows, jittered."""
    train, holdout, fresh = cut(people(15_000, 0), 6000, 5000, 4000)
    rows = train[train["ward"] == ward][:copied].copy()
    rows["income"] *= 1.01
    return train, holdout, pd.concat([rows, fresh[copied:]], ignore_index=True)


def result_of(*tables, subgroups=("ward", "smokes"), **options):
    return MembershipInference(n_permutations=199, subgroups=subgroups).measure(
        read_inputs(*tables, **options)
    )


@pytest.mark.slow
def test_a_leak_of_one_group_is_significant_where_averages_tolerate_it():
    limits = MembershipInference.default_limits
    limited = Policy(
        (*limits, Limit("membership_inference.advantage_subgroups", at_most=0.05, bound="proven"))
    )
    leaking, honest = result_of(*release(copied=60)), result_of(*release())
    broken = {
        outcome.limit.key for outcome in limited.judge({"membership_inference": leaking}).not_passed
    }
    # the copied outliers do not represent the average
    few = "membership_inference.outlier_matches.proven"
    assert broken - {few} == {"membership_inference.advantage_subgroups.proven"}
    assert leaking.estimate("advantage_subgroups").note.startswith("ward, group 4 by size: ")
    assert limited.judge({"membership_inference": honest}).status == "pass"
    assert (
        honest.estimate("advantage_subgroups").low
        <= 0
        <= honest.estimate("advantage_subgroups").high
    )
    text = json.dumps(leaking.to_json(), allow_nan=False)
    assert '"ward"' in text and not [ward for ward in WARDS if ward in text]
    alone = result_of(*release(copied=60), subgroups=())
    pairs = zip(leaking.estimates, alone.estimates, strict=True)
    assert [one.name for one, other in pairs if one != other] == ["advantage_subgroups"]
    assert alone.estimate("advantage_subgroups").note == "not measurable: no subgroup is declared"
    assert "subgroups" not in alone.tables


@pytest.mark.slow
def test_small_groups_are_not_measurable():
    result = result_of(*cut(people(500, 0), 200, 150, 150))
    assert (
        result.estimate("advantage_subgroups").note
        == "not measurable: no value has 200 people in train and in holdout"
    )


@pytest.mark.parametrize(
    ("subgroups", "words"),
    [
        ("ward", "subgroups: Input should be a valid tuple"),
        (["ward", "ward"], "names a column twice"),
        (["ward", "wards"], "unknown column 'wards'. Did you mean 'ward'?"),
        (["ward", "income"], "'income' is numeric, not categorical"),
    ],
)
def test_what_is_no_list_of_columns_of_groups_is_blocked(subgroups, words):
    settings = {"membership_inference": {"subgroups": subgroups}}
    with pytest.raises(ConfigError) as caught:
        evaluate(*cut(people(40, 0), 20, 10, 10), metrics=settings, embedder=False)
    assert words in str(caught.value)


@pytest.mark.slow
def test_subgroups_are_declared_through_the_front_door():
    settings = {"membership_inference": {"subgroups": ["ward"]}}
    report = evaluate(*cut(people(1500, 0), 600, 500, 400), metrics=settings, embedder=False)
    assert [
        row["column"] for row in report.results["membership_inference"].tables["subgroups"]
    ] == ["ward"]
    assert "advantage_subgroups" in report.to_html()
