"""What can be done: which recourse for which failure, in which order, and where it is shown."""

from __future__ import annotations

import json

import pytest
from test_report import Page, dcr, estimate, failing, not_assessable, passing, report

from privacy_assets.metrics.registry import METRICS, statistic_specs
from privacy_assets.policy import Policy
from privacy_assets.report.configuration import privacy_configuration
from privacy_assets.report.recourse import RECOURSES, recourses, state_of
from privacy_assets.stats.limits import Limit, judge_limit
from privacy_assets.stats.results import Estimate, MetricResult

LOSSES = ["none", "small", "medium", "large"]


def outcome(limit, value, *, reach=0.02, **more):
    spec = statistic_specs()[limit.statistic]
    found = estimate(spec.name, value, value - reach, value + reach, direction=spec.direction, null=spec.null, **more)
    return judge_limit(limit, MetricResult(limit.metric, (found,)))


def broken(limit, side=1):
    """The outcome of a limit far beyond it, on the risky side; ``side`` -1 is the other one of two-sided statistics."""
    spec = statistic_specs()[limit.statistic]
    off = 50.0 if spec.direction == "lower_is_riskier" else 0.95
    return outcome(limit, spec.null - off if spec.direction == "lower_is_riskier" else spec.null + side * off)


def names(*outcomes):
    return [found["name"] for found in recourses(outcomes)]


def test_recourses_stand_in_order_of_loss_each_with_a_reason():
    assert [found.loss for found in RECOURSES] == sorted((found.loss for found in RECOURSES), key=LOSSES.index)
    assert len({found.name for found in RECOURSES}) == len({found.action for found in RECOURSES}) == len(RECOURSES)
    assert {found.loss for found in RECOURSES} == set(LOSSES)
    assert all(found.why for found in RECOURSES)


def test_what_metrics_declare_of_recourses_is_there():
    asked_for = {found.name for found in RECOURSES if found.asked_for}
    assert {name for metric in METRICS.values() for name in metric.recourses.also} == asked_for
    for metric in METRICS.values():
        assert metric.recourses.never <= {found.name for found in RECOURSES} - asked_for


@pytest.mark.parametrize("limit", Policy.default().limits, ids=lambda limit: limit.key)
def test_every_default_limit_has_recourses_when_it_is_broken(limit):
    state = broken(limit)
    assert state.status == "fail"
    cells = {"value_disclosure.foreign_cells": "values of the real table"}  # of these none of the others helps
    if limit.metric == "value_disclosure":
        assert names(state) == [cells.get(limit.statistic, "invented values")]
    else:
        wanted = {"more training people", "similarity filter", "less fitting", "differential privacy"}
        assert wanted <= set(names(state))
    assert [found["limits"] for found in recourses([state])] == [[limit.key]] * len(names(state))


def test_which_recourses_apply_hangs_on_which_limits_failed():
    limits = {limit.key: limit for limit in Policy.default().limits}
    rows = names(broken(limits["dcr.member_excess"]))
    assert "outlier filter" not in rows and "coarser columns" not in rows
    assert "outlier filter" in names(broken(limits["membership_inference.outlier_excess.lower"]))
    assert "outlier filter" not in names(broken(limits["singling_out.risk"])), "measured: it does not help there"
    assert "coarser columns" in names(broken(limits["attribute_inference.protection_score"]))
    assert "coarser columns" in names(broken(limits["singling_out.risk"]))


def test_each_recourse_names_the_limits_it_is_for_and_no_other():
    limits = {limit.key: limit for limit in Policy.default().limits}
    leak, lone = broken(limits["dcr.member_excess"]), broken(limits["membership_inference.outlier_excess.lower"])
    found = {entry["name"]: entry["limits"] for entry in recourses([leak, lone, *passing().judgement.outcomes])}
    assert found["less fitting"] == ["dcr.member_excess", "membership_inference.outlier_excess.lower"]
    assert found["outlier filter"] == ["membership_inference.outlier_excess.lower"]
    assert "more people to judge by" not in found


TWO_SIDED = [x for x in Policy.default().limits if broken(x, -1).estimate.direction == "two_sided"]


@pytest.mark.parametrize(
    "limit", [x for x in TWO_SIDED if x.metric != "cumulative_disclosure"], ids=lambda limit: limit.key
)
def test_members_who_are_avoided_ask_for_another_recourse_than_members_who_leak(limit):
    state = broken(limit, -1)
    assert state.status == "fail"
    assert names(state) == ["no one-sided filter"]
    assert recourses([state])[0]["loss"] == "none"


def about_the_gate(limit, value):
    found = Estimate(limit.statistic.partition(".")[2], value, value, value, 900, 900, about="gate")
    return judge_limit(limit, MetricResult(limit.metric, (found,)))


@pytest.mark.parametrize("value", [0.9, float("nan")])
def test_a_blind_gate_asks_for_people_and_splits_and_not_for_another_table(value):
    limits = {limit.key: limit for limit in Policy.default(["controls", "holdout_leakage"]).limits}
    underpowered = about_the_gate(limits["controls.smallest_leak_exact"], value)
    assert names(underpowered) == ["more people to judge by", "split by person"]
    assert names(about_the_gate(limits["holdout_leakage.advantage_any.lower"], value)) == ["unseen holdout"]


def test_releases_that_add_up_ask_for_new_people():
    limits = {limit.key: limit for limit in Policy.default().limits}
    assert "new people" in names(broken(limits["cumulative_disclosure.identical_excess.lower"]))
    assert "new people" in names(
        broken(limits["cumulative_disclosure.identical_excess.lower"], -1)
    )  # they changed sides since
    assert "new people" not in names(broken(limits["dcr.identical_excess.lower"]))


def test_too_few_people_ask_for_more_of_them():
    limit = Policy.default().limits[0]
    assert names(outcome(limit, 0.0, subjects=limit.smallest_n - 1)) == ["more people to judge by"]
    assert names(outcome(limit, 0.0, minimum_detectable_effect=1e9)) == ["more people to judge by"]


def test_attacks_on_the_generator_have_recourses_that_change_the_generator_or_the_tests():
    """They see neither the filter nor how many people there are: their training sets have a size of their own."""
    leak, few = METRICS["shadow_membership"].default_limits
    found = names(broken(leak))
    assert {"less fitting", "differential privacy"} <= set(found)
    assert not {"more training people", "similarity filter", "memorization filter", "stricter filters"} & set(found)
    assert names(outcome(few, 0.0, subjects=few.smallest_n - 1)) == ["more tests"]


def test_a_table_of_too_little_use_asks_for_more_fitting_and_not_for_less():
    at_least, at_most = Limit("fidelity.prediction", at_least=0.8), Limit("fidelity.prediction_loss", at_most=0.02)
    for state in (outcome(at_least, 0.6), outcome(at_most, 0.2)):
        assert state.status == "fail" and state_of(state) == "useless"
        assert names(state) == ["closer fitting"]
    assert names(outcome(at_least, 0.9, subjects=5)) == ["more people to judge by"]


def test_what_passed_or_was_not_measured_has_no_recourse():
    limit = Policy.default().limits[0]
    nothing = judge_limit(limit, None)
    unmeasured = judge_limit(limit, MetricResult("dcr", (Estimate("privacy_score", *[float("nan")] * 3, 5, 5),)))
    assert [state_of(x) for x in (nothing, unmeasured, outcome(limit, 0.0))] == ["other"] * 3
    assert recourses([nothing, unmeasured, outcome(limit, 0.0)]) == []


# --- what is on already -----------------------------------------------------------------------------------------------


def told(*filters, **more):
    """What a report tells of its generator, with these filters on."""
    stated = {"filters": {name: {} for name in filters}, "drawn": 10, "dropped": 1, "dropped_by": {}}
    return privacy_configuration({"filter": stated if filters else None, **more})


ALONE = next(x for x in Policy.default().limits if x.key == "membership_inference.outlier_excess.lower")
TURNED_ON = {"memorization filter", "similarity filter", "outlier filter", "over-fitting protection",
             "differential privacy"}  # fmt: skip


@pytest.mark.parametrize(
    ("configuration", "turned_on", "turned_up"),
    [
        ((), TURNED_ON, set()),
        (privacy_configuration({"name": "unknown: an external table"}), TURNED_ON, set()),
        (told(), TURNED_ON, set()),
        (told("memorization"), TURNED_ON - {"memorization filter"}, {"stricter filters"}),
        (told("similarity"), TURNED_ON - {"memorization filter", "similarity filter"}, {"stricter filters"}),
        (told("outliers"), TURNED_ON - {"outlier filter"}, {"stricter filters"}),
        (told(overfitting="leaves of 50 rows"), TURNED_ON - {"over-fitting protection"}, set()),
        (told(overfitting=""), TURNED_ON, set()),
        (told(privacy={"epsilon": 1.0}), TURNED_ON - {"differential privacy"}, {"lower epsilon"}),
        (told(privacy={"epsilon": None}), TURNED_ON, set()),
    ],
)
def test_what_is_on_is_not_asked_for_again_but_can_be_turned_up(configuration, turned_on, turned_up):
    found = {entry["name"] for entry in recourses([broken(ALONE)], configuration)}
    assert found & TURNED_ON == turned_on
    assert found & {"stricter filters", "lower epsilon"} == turned_up
    assert {"less fitting", "more training people"} <= found


def test_every_protection_that_a_recourse_turns_is_one():
    known = {protection.name for protection in privacy_configuration(None)}
    assert {name for found in RECOURSES for name in (*found.turns_on, *found.turns_up)} == known


# --- where it is shown ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [failing, not_assessable, passing])
def test_every_form_shows_what_applies_and_nothing_else(make):
    made = make()
    found = recourses(made.judgement.outcomes)
    page, text = " ".join(" ".join(Page(made.to_html()).words).split()), " ".join(made.to_text().split())
    note = " ".join(" ".join(Page(made._repr_html_()).words).split())
    assert json.loads(json.dumps(made.to_json()))["recourses"] == found
    for recourse in RECOURSES:
        applies = recourse.name in [entry["name"] for entry in found]
        for shown in (page, text, note):
            assert (recourse.action in shown) == applies
            assert (recourse.why in shown or recourse.why.capitalize() in shown) or not applies
    for shown in (page, text, note):
        assert ("What can be done" in shown) == bool(found)


def test_the_page_orders_them_by_loss_beside_their_limits():
    text = failing().to_html()
    table = text[text.index("<h2>What can be done</h2>") : text.index("<h2>Every limit of the policy</h2>")]
    rows = table.split("<tr>")[2:]
    losses = [next(loss for loss in LOSSES if f">{loss.capitalize()}</th>" in row) for row in rows]
    assert losses == sorted(losses, key=LOSSES.index)
    assert all("dcr." in row or "membership_inference." in row for row in rows)


def test_the_words_of_a_policy_stand_beside_the_list():
    text = failing().to_text()
    assert "  dcr.identical_excess: Filter the copied rows." in text
    assert text.index("What to do\n") < text.index("What can be done")
    silent = report(dcr(0.31, 1.0), limits=(Limit("dcr.member_excess", at_most=0.05),)).to_text()
    assert "What to do\n" not in silent
    assert "  large   Use a differentially private generator" in silent


def test_text_names_the_limits_or_says_that_all_are_meant():
    limits = (Limit("dcr.member_excess", at_most=0.05), Limit("dcr.identical_excess", at_most=0.05))
    one, both = (" ".join(report(dcr(0.31, 1.0), limits=limits[:n]).to_text().split()) for n in (1, 2))
    assert one.count("For dcr.member_excess.") == 6
    assert (both.count("For all of them."), both.count("For dcr.identical_excess.")) == (6, 1)
