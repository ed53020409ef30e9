"""What can be done: which recourse for which failure, in which order, and where it is shown."""

from __future__ import annotations

import math

import pytest

from privacy_assets.metrics.registry import METRICS, statistic_specs
from privacy_assets.policy import Policy
from privacy_assets.report.configuration import privacy_configuration
from privacy_assets.report.recourse import RECOURSES, recourses, state_of
from privacy_assets.report.report import Report
from privacy_assets.stats.limits import Limit, judge_limit
from privacy_assets.stats.results import MetricResult
from tests.report.report_examples import Page, dcr, estimate, failing, not_assessable, passing, report

LOSSES = ["none", "small", "medium", "large"]
LIMITS = {limit.key: limit for limit in Policy.default().limits}
GATE = {limit.key: limit for limit in Policy.default(["controls", "holdout_leakage"]).limits}
LEAK, LONE = "dcr.member_excess", "membership_inference.outlier_excess.lower"


def outcome(limit, value, **more):
    spec = statistic_specs()[limit.statistic]
    found = estimate(spec.name, value, **{"direction": spec.direction, "null": spec.null, **more})
    return judge_limit(limit, MetricResult(limit.metric, (found,)))


def broken(limit, side=1):
    """The outcome of a limit far beyond it, on the risky side; ``side`` -1 is the other one of two-sided statistics."""
    spec = statistic_specs()[limit.statistic]
    return outcome(limit, spec.null - 50 if spec.direction == "lower_is_riskier" else spec.null + side * 0.95)


def names(*outcomes):
    return [found["name"] for found in recourses(outcomes)]


def test_recourses_stand_in_order_of_loss_each_with_a_reason_and_turn_what_there_is():
    losses = [found.loss for found in RECOURSES]
    assert losses == sorted(losses, key=LOSSES.index) and set(losses) == set(LOSSES)
    assert len({found.name for found in RECOURSES}) == len({found.action for found in RECOURSES}) == len(RECOURSES)
    assert all(found.why for found in RECOURSES)
    known = {protection.name for protection in privacy_configuration(None)}
    assert {name for found in RECOURSES for name in (*found.turns_on, *found.turns_up)} == known


def test_what_metrics_declare_of_recourses_is_there():
    asked_for = {found.name for found in RECOURSES if found.asked_for}
    assert {name for metric in METRICS.values() for name in metric.recourses.also} == asked_for
    for metric in METRICS.values():
        assert metric.recourses.never <= {found.name for found in RECOURSES} - asked_for


def test_every_default_limit_has_recourses_when_it_is_broken():
    invented = {"value_disclosure.foreign_cells": "values of the real table"}  # of these none of the others helps
    for key, limit in LIMITS.items():
        state = broken(limit)
        assert state.status == "fail"
        assert [found["limits"] for found in recourses([state])] == [[key]] * len(names(state))
        if limit.metric == "value_disclosure":
            assert names(state) == [invented.get(limit.statistic, "invented values")]
        else:
            wanted = {"more training people", "similarity filter", "less fitting", "differential privacy"}
            assert wanted <= set(names(state))


def test_members_who_are_avoided_ask_for_another_recourse_than_members_who_leak():
    avoided = [broken(limit, -1) for limit in LIMITS.values() if limit.metric != "cumulative_disclosure"]
    avoided = [state for state in avoided if state.estimate.direction == "two_sided"]
    assert len(avoided) > 3 and {state.status for state in avoided} == {"fail"}
    assert {tuple(names(state)) for state in avoided} == {("no one-sided filter",)}


@pytest.mark.parametrize(
    ("recourse", "helped", "not_helped"),
    [
        ("outlier filter", [LONE], [LEAK, "singling_out.risk"]),  # measured: it does not help against singling out
        ("coarser columns", ["attribute_inference.protection_score", "singling_out.risk"], [LEAK]),
        ("new people", ["cumulative_disclosure.identical_excess.lower"], ["dcr.identical_excess.lower"]),
    ],
)
def test_which_recourses_apply_hangs_on_which_limits_failed(recourse, helped, not_helped):
    found = {entry["name"]: entry["limits"] for entry in recourses(broken(LIMITS[key]) for key in helped + not_helped)}
    assert found[recourse] == helped


def test_each_recourse_names_the_limits_it_is_for_and_no_other():
    states = [broken(LIMITS[LEAK]), broken(LIMITS[LONE]), *passing().judgement.outcomes]
    found = {entry["name"]: entry["limits"] for entry in recourses(states)}
    assert found["less fitting"] == [LEAK, LONE] and "more people to judge by" not in found
    sides_changed = broken(LIMITS["cumulative_disclosure.identical_excess.lower"], -1)
    assert "new people" in names(sides_changed)


FIRST = next(iter(LIMITS.values()))
PEOPLE, FEWER = "more people to judge by", FIRST.smallest_n - 1
USE = Limit("fidelity.prediction", at_least=0.8), Limit("fidelity.prediction_loss", at_most=0.02)
SHADOW = METRICS["shadow_membership"].default_limits
BLIND = GATE["controls.smallest_leak_exact"], GATE["holdout_leakage.advantage_any.lower"]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (outcome(FIRST, 0.0, subjects=FEWER), [PEOPLE]),
        (outcome(FIRST, 0.0, minimum_detectable_effect=1e9), [PEOPLE]),
        (outcome(BLIND[0], 0.9, about="gate"), [PEOPLE, "split by person"]),
        (outcome(BLIND[0], math.nan, about="gate"), [PEOPLE, "split by person"]),
        (outcome(BLIND[1], 0.9, about="gate"), ["unseen holdout"]),
        (outcome(SHADOW[1], 0.0, subjects=SHADOW[1].smallest_n - 1), ["more tests"]),
        (outcome(USE[0], 0.6), ["closer fitting"]),
        (outcome(USE[1], 0.2), ["closer fitting"]),
        (outcome(USE[0], 0.9, subjects=5), [PEOPLE]),
        (outcome(FIRST, 0.0), []),
        (outcome(FIRST, math.nan), []),
        (judge_limit(FIRST, None), []),
    ],
)  # fmt: skip
def test_what_is_wrong_says_what_helps(state, expected):
    assert names(state) == expected
    assert (state_of(state) == "other") == (not expected)


def test_attacks_on_the_generator_have_recourses_that_change_the_generator_or_the_tests():
    """They see neither the filter nor how many people there are: their training sets have a size of their own."""
    found = set(names(broken(SHADOW[0])))
    assert {"less fitting", "differential privacy"} <= found
    assert not {"more training people", "similarity filter", "memorization filter", "stricter filters"} & found


def told(*filters, **more):
    """What a report tells of its generator, with these filters on."""
    stated = {"filters": {name: {} for name in filters}, "drawn": 10, "dropped": 1, "dropped_by": {}}
    return privacy_configuration({"filter": stated if filters else None, **more})


TURNED_ON = {"memorization filter", "similarity filter", "outlier filter", "over-fitting protection",
             "differential privacy"}  # fmt: skip


@pytest.mark.parametrize(
    ("configuration", "on_already", "turned_up"),
    [
        ((), set(), set()),
        (privacy_configuration({"name": "unknown: an external table"}), set(), set()),
        (told(overfitting="", privacy={"epsilon": None}), set(), set()),
        (told("memorization"), {"memorization filter"}, {"stricter filters"}),
        (told("similarity"), {"memorization filter", "similarity filter"}, {"stricter filters"}),
        (told("outliers"), {"outlier filter"}, {"stricter filters"}),
        (told(overfitting="leaves of 50 rows"), {"over-fitting protection"}, set()),
        (told(privacy={"epsilon": 1.0}), {"differential privacy"}, {"lower epsilon"}),
    ],
)
def test_what_is_on_is_not_asked_for_again_but_can_be_turned_up(configuration, on_already, turned_up):
    found = {entry["name"] for entry in recourses([broken(LIMITS[LONE])], configuration)}
    assert found & TURNED_ON == TURNED_ON - on_already
    assert found & {"stricter filters", "lower epsilon"} == turned_up
    assert {"less fitting", "more training people"} <= found


# --- where it is shown ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [failing, not_assessable, passing])
def test_every_form_shows_what_applies_and_nothing_else(make):
    made = make()
    found = recourses(made.judgement.outcomes)
    assert made.to_json()["recourses"] == found
    for shown in (Page(made.to_html()).words, " ".join(made.to_text().split()), Page(made._repr_html_()).words):
        assert ("What can be done" in shown) == bool(found)
        for recourse in RECOURSES:
            applies = recourse.name in [entry["name"] for entry in found]
            assert (recourse.action in shown) == applies
            assert (recourse.why in shown or recourse.why.capitalize() in shown) or not applies


def test_the_page_orders_them_by_loss_beside_their_limits():
    text = Report.to_html(failing())
    table = text[text.index("<h2>What can be done</h2>") : text.index("<h2>Every limit of the policy</h2>")]
    rows = table.split("<tr>")[2:]
    losses = [next(loss for loss in LOSSES if f">{loss.capitalize()}</th>" in row) for row in rows]
    assert losses == sorted(losses, key=LOSSES.index)
    assert all("dcr." in row or "membership_inference." in row for row in rows)


def test_the_text_has_the_words_of_the_policy_before_the_list_and_says_where_all_limits_are_meant():
    text = failing().to_text()
    assert text.index("What to do\n  dcr.member") < text.index("  dcr.identical_excess: Filter the copied rows.")
    assert text.index("Filter the copied rows.") < text.index("What can be done")
    limits = (Limit(LEAK, at_most=0.05), Limit("dcr.identical_excess", at_most=0.05))
    one, both = (report(dcr(0.31, 1.0), limits=limits[:n]).to_text() for n in (1, 2))
    assert "What to do\n" not in one and "  large   Use a differentially private generator" in one
    one, both = " ".join(one.split()), " ".join(both.split())
    assert one.count("For dcr.member_excess.") == 6
    assert (both.count("For all of them."), both.count("For dcr.identical_excess.")) == (6, 1)
