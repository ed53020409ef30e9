"""The report: JSON form, data privacy score, and the content of every form."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privacy_assets.dagster.metadata import report_metadata
from privacy_assets.errors import ConfigError
from privacy_assets.metrics.base import score_row
from privacy_assets.policy import Limit, Policy, judge_limit
from privacy_assets.report.advice import what_to_do
from privacy_assets.report.answers import TITLES
from privacy_assets.report.report import Report
from privacy_assets.stats.estimates import MetricResult, to_jsonable
from privacy_assets.version import PACKAGE_VERSION
from tests.report.report_examples import (
    ALL,
    PRIVATE_HASH,
    ParsedPage,
    dcr,
    estimate,
    membership,
    passing,
    report,
)

FORMS = (Report.to_html, Report._repr_html_, Report.to_text)


def again(made: Report) -> Report:
    return Report.from_json(json.loads(json.dumps(made.to_json(), allow_nan=False)))


# --- JSON
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ALL)
def test_json_has_the_documented_form_and_gives_the_same_report_in_every_form(make):
    data = make().to_json()
    assert data["verdict"] in {"pass", "fail", "undecided"}
    assert (data["package_version"], data["seed"]) == (PACKAGE_VERSION, 3)
    for metric in data["metrics"].values():
        assert set(metric) == {"estimates", "tables", "settings", "seconds", "on_copy"}
        for values in metric["estimates"].values():
            assert {
                "value",
                "low",
                "high",
                "n",
                "subjects",
                "null",
                "confidence",
                "direction",
                "note",
            } <= set(values)
    for limit in data["limits"]:
        assert {"statistic", "limit", "bound", "measured", "passed", "status", "reason"} <= set(
            limit
        )
    assert again(make()).to_json() == data
    for form in FORMS:
        assert form(again(make())) == form(make())


def test_json_tells_nan_as_null_and_keeps_the_raw_number():
    data = report(dcr(excess=0.123456789), membership()).to_json()["metrics"]
    assert data["membership_inference"]["estimates"]["precision"]["value"] is None
    assert data["dcr"]["settings"]["nested"] == {"k": None}
    assert data["dcr"]["estimates"]["member_excess"]["value"] == 0.123456789


def test_a_later_attempt_is_judged_at_its_own_level_wherever_the_report_is_read():
    results = {
        "dcr": MetricResult("dcr", (estimate("member_excess", 0.1, 0.1, direction="two_sided"),))
    }
    policy = Policy((Limit("dcr.member_excess", at_most=0.22),))
    known = {"title": "t", "policy": policy, "results": results, "tables": {}, "seed": 0}
    first, third = (
        Report(policy_verdict=policy.judge(results, m), attempt=m, **known) for m in (1, 3)
    )
    assert (first.verdict, third.verdict) == ("pass", "undecided")
    assert (again(third).attempt, again(third).verdict) == (3, "undecided")
    assert "at attempt 3" in again(third).to_html() and "at attempt 3" in again(third).to_text(
        columns=1000
    )
    with pytest.raises(ConfigError, match="its statistics give 'pass'"):
        Report.from_json({**third.to_json(), "attempt": 1})


def test_rows_that_failed_before_fail_on_their_page_too():
    told = replace(passing(), earlier_failures=("dcr.member_excess at most 0.1",))
    assert again(told).verdict == told.verdict == "fail"
    assert (
        "failed before" in told.to_text()
        and "dcr.member_excess at most 0.1" in again(told).to_html()
    )
    assert "earlier_failures" not in passing().to_json()
    words = {answer.title: answer.word for answer in again(told).answers}
    assert words[TITLES["copies"]] == "Yes" and words[TITLES["singling out"]] == "No leak found"
    singled_out = replace(passing(), earlier_failures=("singling_out.risk at most 0.09",)).answers[
        1
    ]
    assert (
        singled_out.statement
        == "A limit on this failed for the same rows in an earlier evaluation."
    )
    foreign = replace(
        passing(), earlier_failures=("value_disclosure.foreign_cells at most 0",)
    ).answers[5]
    assert (foreign.word, foreign.status, foreign.strongest) == ("Not ruled out", "fail", None)


@pytest.mark.parametrize(("measures", "said"), [("release", True), ("evaluation", False)])
def test_nobody_is_told_to_leave_out_a_limit_that_says_whether_the_gate_sees(
    measures: str, said: bool
):
    underpowered = estimate("false_alarm_rate", math.nan, measures=measures)
    outcome = judge_limit(
        Limit("controls.false_alarm_rate", at_most=0.1), MetricResult("controls", (underpowered,))
    )
    assert outcome.status == "undecided"
    assert ("remove this limit" in what_to_do(outcome)) is said


def test_fingerprints_of_the_inputs_of_metrics_are_never_shown():
    for shown in (json.dumps(passing().to_json()), *(form(passing()) for form in FORMS)):
        assert PRIVATE_HASH not in shown


def test_plain_names_objects_by_type_only():
    class Holder:
        def __repr__(self) -> str:
            raise AssertionError("a repr could hold private values")

    numpy_values = {
        "a": np.float64("nan"),
        "b": np.int64(3),
        "c": np.array([1.0, np.inf]),
        "d": np.bool_(True),
    }
    assert to_jsonable({**numpy_values, "e": {2, 1}, "f": len}) == {
        "a": None, "b": 3, "c": [1.0, None], "d": True, "e": [1, 2], "f": "<len>",
    }  # fmt: skip
    assert to_jsonable(Holder()).endswith("Holder>")


def test_utility_stands_in_every_form_beside_that_of_real_rows():
    names = ("column_similarity", "pair_similarity", "prediction")
    found = [
        replace(estimate(name, 0.611 + at / 100, 0.01), null=0.711 + at / 100)
        for at, name in enumerate(names)
    ]
    made = report(dcr(), MetricResult("fidelity", tuple(found)))
    assert "0.611 [0.601, 0.621] 0.711" in ParsedPage(made.to_html()).words
    for shown in (" ".join(made.to_text().split()), ParsedPage(made._repr_html_()).words):
        assert (
            "column similarity 0.611 (real rows 0.711), pair similarity 0.621 (real rows 0.721)"
            in shown
        )
    for less in (
        report(dcr()),
        report(dcr(), MetricResult("fidelity", (estimate("prediction", math.nan),))),
    ):
        assert all("Utility" not in form(less) for form in FORMS)


def scored(*scores: dict[str, Any]) -> MetricResult:
    return MetricResult("data_privacy", (), {"graded_scores": list(scores)})


TOTAL = score_row("Data Privacy Score", 76.85, "Very Good", "The mean of both.")
PART = score_row("membership inference protection", 91.2, "Excellent")


def test_a_score_is_shown_if_a_metric_gives_it_and_its_grade_if_the_table_passes():
    shown = report(dcr(), scored(TOTAL, PART))
    assert shown.scores["Data Privacy Score"] == (76.85, "Very Good", "The mean of both.")
    assert list(shown.scores) == ["Data Privacy Score", "membership inference protection"]
    assert again(shown).scores == shown.scores
    page = shown.to_html()
    assert "Data Privacy Score: 76.85</h2>" in page == again(shown).to_html()
    assert "Very Good" not in page and "The mean of both." in page
    none = report(dcr())
    assert none.scores == {} and "scores, 0 to 100" not in none.to_text()
    assert "Data Privacy Score" not in none.to_html()
    assert report_metadata(none)["grades"] == "–"


def test_scores_are_in_text_page_json_and_metadata():
    protected = {
        "filter": None,
        "overfitting": {"min_samples_leaf": 50},
        "privacy": {"epsilon": 1.0},
    }
    limits = (Limit("membership_inference.advantage", at_most=0.1),)
    both = report(membership(), scored(TOTAL, PART), limits=limits, generator=protected)
    assert both.verdict == "pass"
    lines = [" ".join(line.split()) for line in both.to_text().splitlines()]
    assert "Data Privacy Score 76.85 Very Good" in lines
    assert "membership inference protection 91.2 Excellent" in lines
    page = both.to_html()
    assert "<h2>Data Privacy Score: 76.85, Very Good</h2>" in page
    assert "Membership inference protection: 91.2, Excellent." in page
    assert "<h2>Privacy configuration</h2>" in page
    (stored, _) = both.to_json()["metrics"]["data_privacy"]["tables"]["graded_scores"]
    assert (stored["score"], stored["grade"]) == (76.85, "Very Good")
    told = report_metadata(both)
    assert (told["Data Privacy Score"], told["membership inference protection"]) == (76.85, 91.2)
    assert told["grades"] == (
        "Data Privacy Score: Very Good, membership inference protection: Excellent"
    )
    undecided = report(membership(), scored(PART))
    assert report_metadata(undecided)["grades"] == "–", "no grade without a pass"
    assert undecided.verdict != "pass"
