"""Page one: questions and their answers. The number of a limit is the same everywhere."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from privacy_assets.dagster.metadata import report_metadata
from privacy_assets.metrics.policies import default_policy
from privacy_assets.policy import Limit, Policy, judge_limit, tally
from privacy_assets.report.answers import TITLES, Sizes, leak_sentence
from privacy_assets.report.report import Report
from privacy_assets.report.words import clean, limit_symbol, number
from privacy_assets.stats.estimates import Estimate, MetricResult
from tests.report.report_examples import ALL, dcr, estimate, failing, passing, report, undecided
from tests.shipped import METRICS

COPIES = replace(estimate("member_excess", 0.0, 0.01, null=0.0), question="copies")
SINGLED = replace(estimate("risk", 0.0, 0.01, null=0.0), question="singling out")


def test_counts_in_words() -> None:
    passed, failed = passing().policy_verdict.outcomes[0], failing().policy_verdict.outcomes[1]
    unjudged = undecided().policy_verdict.outcomes[-1]
    assert tally([passed]) == "the limit holds" and tally([passed] * 2) == "all 2 limits hold"
    assert tally([failed, passed]) == "1 of 2 limits fails"
    assert tally([failed, failed, unjudged]) == "2 of 3 limits fail"
    assert tally([unjudged, passed]) == "1 of 2 limits is undecided"


@pytest.mark.parametrize(
    ("found", "limit", "words", "factor"),
    [
        (
            {"subjects": 90},
            {"min_subjects": 500},
            "too few people: the attack needs 500, and the tables have 90",
            500 / 90,
        ),
        ({"subjects": 600, "reach": 0.15}, {}, "up to 0.1657 cannot be excluded", 7.0),
        ({"subjects": 600, "reach": 0.2}, {}, "up to 0.2209 cannot be excluded", math.nan),
        (
            {"subjects": 600, "value": 0.05, "reach": 0.06},
            {},
            "up to 0.1163 cannot be excluded",
            math.nan,
        ),
        (
            {"subjects": 600, "value": 0.06, "reach": 0.05},
            {},
            "up to 0.1152 cannot be excluded",
            4.8,
        ),
        (
            {"subjects": 600, "value": 0.055, "reach": 0.056},
            {},
            "up to 0.1169 cannot be excluded",
            math.nan,
        ),
        (
            {
                "subjects": 600,
                "reach": 0.15,
                "note": "with 3 columns, 36% of the rows are in the table by chance",
            },
            {},
            "(97 % confidence); with 3 columns, 36% of the rows are in the table by chance",
            math.nan,
        ),
        ({"subjects": 20, "value": math.nan, "note": "no pair"}, {}, "no pair", 1.5),
        (
            {"subjects": 100, "value": 0.3, "measures": "evaluation"},
            {},
            "too weak here: at most 0.32, beyond the limit 0.1",
            math.nan,
        ),
    ],
)
def test_an_undecided_limit_states_how_many_people_would_decide_it(
    found, limit, words, factor
) -> None:
    """Half the standard error needs four times as many people."""
    value = found.pop("value", 0.0)
    outcome = judge_limit(
        Limit("m.f", at_most=0.1, **limit), MetricResult("m", (estimate("f", value, **found),))
    )
    assert outcome.status == "undecided" and words in outcome.reason
    assert outcome.people_factor == pytest.approx(factor, rel=0.02, nan_ok=True)
    shown = report(MetricResult("m", (outcome.estimate,)), limits=(outcome.limit,))
    assert (
        words.partition("; ")[2] in " ".join(shown.to_text().split())
        and words.partition("; ")[2] in shown.to_html()
    )


@pytest.mark.parametrize(("value", "subjects"), [(0.001, 200), (0.02, 500), (0.0, 1000)])
def test_a_weak_limit_gives_evidence_with_the_stated_number_of_people(
    value: float, subjects: int
) -> None:
    limit = Limit("m.f", at_most=0.01, bound="proven")

    def outcome_of(factor: float):
        found = estimate(
            "f", value, 0.15 / factor**0.5, null=0.0, question="inference", is_share=True
        )
        found = replace(found, subjects=round(subjects * factor))
        return Policy((limit,)).judge({"m": MetricResult("m", (found,))}).outcomes[0]

    weak = outcome_of(1)
    assert weak.status == "undecided" and 1 < weak.people_factor < 100
    assert (
        not outcome_of(1.01 * weak.people_factor).is_weak
        and outcome_of(0.9 * weak.people_factor).is_weak
    )


# --- questions
# --------------------------------------------------------------------------------------------------


def test_every_metric_that_limits_leaks_by_default_answers_a_question() -> None:
    unasked = {
        name
        for name, metric in METRICS.items()
        if metric.default_limits and metric.question is None
    }
    assert all(
        spec.measures == "evaluation" for name in unasked for spec in METRICS[name].statistics
    )
    assert {metric.question for metric in METRICS.values()} - {None} == set(TITLES)
    assert {question for metric in METRICS.values() for question in metric.detectable_leaks} <= set(
        TITLES
    )


@pytest.mark.parametrize("make", ALL)
def test_each_limit_and_each_result_stands_under_one_question(make) -> None:
    made = make()
    found = made.answers
    assert [answer.title for answer in found[:6]] == list(TITLES.values()) and all(
        x.main for x in found[:6]
    )
    assert sorted(x.limit.key for answer in found for x in answer.outcomes) == sorted(
        x.limit.key for x in made.policy_verdict.outcomes
    )
    assert sorted(name for answer in found for name in answer.metrics) == sorted(made.results)
    assert [entry["question"] for entry in made.to_json()["answers"]] == [
        answer.title for answer in found
    ]


def test_an_answer_rests_on_the_limit_that_is_broken_most_or_comes_closest() -> None:
    copies, singled, linked, _, members = failing().answers[:5]
    assert (copies.word, copies.strongest.limit.key) == ("Yes", "dcr.identical_excess")
    assert (singled.word, singled.strongest.limit.key) == ("No leak found", "singling_out.risk")
    assert (linked.word, linked.strongest, linked.not_tested) == (
        "Not tested",
        None,
        ("linkability",),
    )
    assert members.word == "Yes" and "cumulative_disclosure" in members.not_tested
    assert "membership_inference.precision" in members.not_tested
    closest = passing().answers[0].strongest
    assert closest.limit.key == "dcr.member_excess" and closest.used() == pytest.approx(
        closest.compared / 0.05
    )


def test_a_broken_limit_on_rows_names_the_columns_that_match() -> None:
    rows = [
        {"column": "income", "share": 0.8},
        {"column": "age", "share": 0.15},
        {"column": "sex", "share": 0.05},
    ]
    copies = MetricResult(
        "copies", (estimate("copied_share", 0.0, 0.01, null=0.0),), {"matched_columns": rows}
    )
    limits = (Limit("dcr.member_excess", at_most=0.05),)
    broken, held = (report(dcr(value), copies, limits=limits) for value in (0.31, 0.0))
    named = "Their rows agree most in these columns: income, age."
    assert named in broken.to_html() and named not in held.to_html()
    assert broken.answers[0].statement.endswith(named)


def test_members_who_are_avoided_are_recognized_as_members() -> None:
    copies, _, _, _, members, _ = report(
        dcr(-0.31), limits=(Limit("dcr.member_excess", at_most=0.05),)
    ).answers[:6]
    assert (copies.word, members.word) == ("Not limited by this policy", "Yes")
    assert copies.statement.startswith("dcr.")
    assert members.strongest.limit.key == "dcr.member_excess"


def test_values_of_no_real_row_alone_trace_nobody_but_rule_nothing_out() -> None:
    foreign = MetricResult("value_disclosure", (estimate("foreign_cells", 0.002, 0.0, null=0.0),))
    limits = (
        Limit("value_disclosure.foreign_cells", at_most=0.0),
        Limit("dcr.member_excess", at_most=0.05),
    )
    copies, *_, values = report(dcr(0.31), foreign, limits=limits).answers[:6]
    assert [(one.word, one.status) for one in (copies, values)] == [
        ("Yes", "fail"),
        ("Not ruled out", "fail"),
    ]


def test_the_detectable_leaks_is_that_of_planted_copies_or_what_could_be_detected() -> None:
    assert passing().answers[0].detectable_leaks == (
        "A leak would have been found if 5 % of the released rows were closer to people in the"
        " training data than by"
        " chance."
    )
    unknown = (
        report(dcr(), limits=(Limit("dcr.member_excess", at_most=0.05),))
        .answers[0]
        .detectable_leaks
    )
    assert unknown == "A leak would have been found if it moved dcr.member_excess by 0.05."
    planted = tuple(
        Estimate(f"smallest_leak_{kind}", at, 0.5 * at, at, 500, 500, measures="evaluation")
        for kind, at in (("exact", 0.0147), ("jittered", math.nan))
    )
    made = report(
        dcr(), MetricResult("controls", planted), limits=(Limit("dcr.member_excess", at_most=0.05),)
    )
    assert made.answers[0].detectable_leaks.startswith(
        "Copies of training rows would have been found if they were at least 1.5 % of the"
        " released rows (about"
    )
    assert (
        "at least 1.5 % of the released rows" in made.to_html()
        and "at least 1.5 %" in made._repr_html_()
    )


def test_a_limit_that_a_copy_of_train_does_not_break_is_no_evidence() -> None:
    """It makes its question, and with it the table, undecided."""
    limits = tuple(Limit(name, at_most=0.5) for name in ("dcr.member_excess", "singling_out.risk"))

    def made(*on_copy: float) -> Report:
        results = (
            MetricResult(
                metric, (one,), on_copy=(replace(one, value=value, low=value, high=value),)
            )
            for metric, one, value in zip(
                ("dcr", "singling_out"), (COPIES, SINGLED), on_copy, strict=True
            )
        )
        return report(*results, limits=limits)

    both, second, neither = made(1.0, 1.0), made(1.0, 0.1), made(0.1, 0.1)
    assert [one.verdict for one in (both, second, neither)] == ["pass", "undecided", "undecided"]
    assert [one.word for one in both.answers[:2]] == ["No leak found", "No leak found"]
    assert [one.word for one in second.answers[:2]] == ["No leak found", "Cannot tell"]
    assert [one.word for one in neither.answers[:2]] == ["Cannot tell", "Cannot tell"]
    assert [one.can_fail for one in second.policy_verdict.outcomes] == [True, False]
    assert (
        "even a copy of train" in " ".join(second.to_text().split())
        and "It holds even for a verbatim copy of train" in second.to_html()
    )
    assert Report.from_json(neither.to_json()).verdict == "undecided"
    assert not neither.advice and "more of its columns" in next(iter(neither.page().limit_advice))


def test_verdict_and_judged_numbers_have_room_in_the_ui() -> None:
    """At a width of 1,200 pixels the UI shows about 300 pixels of each row, or 36 letters."""
    for make in ALL:
        told = report_metadata(make())
        rows = [record.data for record in told["limits"].value.records]
        assert list(told)[:3] == ["verdict", "answers", "limits"] and list(rows[0]) == [
            "measured",
            "limit",
        ]
        signs = {"pass": "✓", "fail": "✗", "undecided": "?"}
        found = {
            f"{limit_symbol(x.limit)} {clean(x.limit.key, 60)}": f"{signs[x.status]}"
            f" {number(max(x.compared, 0))}"
            for x in make().policy_verdict.outcomes
        }
        assert {row["limit"]: row["measured"] for row in rows} == found
        assert max(len(row["measured"]) for row in rows) <= 12


@pytest.mark.parametrize(
    ("n_released", "people"),
    [(2_000, " (about 100 people)"), (200, " who fit into the release (about 10 people)")],
)
def test_a_share_of_a_small_release_counts_the_people_who_fit(n_released: int, people: str) -> None:
    sizes = Sizes(n_members=2_000, n_rows=2_000, n_released=n_released)
    (limit,) = (
        limit for limit in default_policy().limits if limit.key == "copies.copied_share.proven"
    )
    share = estimate(
        "copied_share", 0.0, 0.047, null=0.0, direction="two_sided", minimum_detectable_effect=0.047
    )
    outcome = judge_limit(limit, MetricResult("copies", (share,)))
    assert outcome.smallest_leak == pytest.approx(0.05)
    assert leak_sentence(outcome, sizes).startswith(
        "A leak would have been found if it copied the rows of 5 % of the people in the training"
        f" data{people}."
    )
