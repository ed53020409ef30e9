"""Asset checks of limits."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import unquote

import dagster as dg

from privacy_assets.dagster.metadata import limit_result, report_metadata
from privacy_assets.policy import Limit, Policy, judge_limit
from privacy_assets.report.report import Report
from privacy_assets.stats.estimates import Estimate, MetricResult

LIMIT = Limit("dcr.privacy_score", at_most=0.12)
FOUND = Estimate("privacy_score", 0.01, 0.0, 0.02, n=500, subjects=500, question="copies")


def test_a_limit_that_cannot_fail_gives_a_warning_that_blocks_nothing() -> None:
    def check(on_copy: float | None, value: float = 0.01) -> dg.AssetCheckResult:
        copy = (
            () if on_copy is None else (replace(FOUND, value=on_copy, low=on_copy, high=on_copy),)
        )
        found = replace(FOUND, value=value, low=value, high=value)
        outcome = judge_limit(LIMIT, MetricResult("dcr", (found,), on_copy=copy))
        return limit_result(dg.AssetKey("synthetic"), outcome)

    error, warning = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN
    assert [check(on_copy).passed for on_copy in (None, 0.9, 0.03)] == [True, True, False]
    assert check(0.03).severity == warning and check(0.03).description.startswith(
        "no evidence on this table"
    )
    assert (check(0.9, value=0.3).passed, check(0.9, value=0.3).severity) == (False, error)
    assert (check(0.03, value=0.3).passed, check(0.03, value=0.3).severity) == (False, error)


def test_judged_number_and_limit_of_all_runs_are_in_one_plot() -> None:
    outcome = judge_limit(LIMIT, MetricResult("dcr", (FOUND,)))
    first = limit_result(dg.AssetKey("synthetic"), outcome)
    earlier = [{"privacy_score: measured": 0.24, "privacy_score: limit": 0.12}, {}]
    later = limit_result(dg.AssetKey("synthetic"), outcome, earlier=earlier)
    plot = later.metadata.pop("measured and limit by run").value
    assert first.metadata == later.metadata and len(plot) < 1000
    # The judged number falls from twice the limit; the limit stays. The second run has no numbers.
    judged, limit = re.findall(r"points='([^']*)'", unquote(plot))
    (_, at_limit), (_, still) = [point.split(",") for point in limit.split()]
    (_, top), (_, now) = [point.split(",") for point in judged.split()]
    assert int(top) < int(at_limit) == int(still) < int(now)


def test_the_list_of_limits_marks_those_that_cannot_fail() -> None:
    copy = (replace(FOUND, value=0.03, low=0.03, high=0.03),)
    results = {"dcr": MetricResult("dcr", (FOUND,), on_copy=copy)}
    policy = Policy((LIMIT,))
    made = Report(
        title="t",
        policy=policy,
        policy_verdict=policy.judge(results),
        results=results,
        tables={},
        seed=0,
    )
    assert made.verdict == "undecided"  # the only limit on copies is blind
    answers = {
        one.data["question"]: one.data["answer"]
        for one in report_metadata(made)["answers"].value.records
    }
    assert answers == {answer.title: answer.word for answer in made.answers if answer.is_displayed}
    told = report_metadata(made)["limits"].value.records[0].data
    assert told["measured"].startswith("?")
