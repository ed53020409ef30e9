"""Page one: five questions and what answers them; and one number of a limit, the same everywhere."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from privacy_assets.cli.verify import limits_table
from privacy_assets.dagster.metadata import limit_metadata, report_metadata
from privacy_assets.gate.attestation import refusal
from privacy_assets.metrics.registry import METRICS
from privacy_assets.report.answers import TITLES
from privacy_assets.report.plots import interval_svg
from privacy_assets.report.text import LABELS, clean, headline, interval, judged_text, limit_text, number
from privacy_assets.stats.limits import Limit, judge_limit, tally
from privacy_assets.stats.results import Estimate, MetricResult
from tests.report.report_examples import ALL, Page, dcr, estimate, failing, not_assessable, passing, report

MAKERS = pytest.mark.parametrize("make", [passing, failing, not_assessable])


# --- one number -------------------------------------------------------------------------------------------------------


def rows_of(page: str) -> list[str]:
    """The words of each row of the tables of limits."""
    tables = re.findall(r'<details class="limits".*?</details>', page, re.S)
    return [Page(row).words for table in tables for row in re.findall(r"<tr class=.*?</tr>", table, re.S)]


@MAKERS
@pytest.mark.parametrize("attempt", [1, 3])
def test_value_interval_bound_and_verdict_agree_in_page_json_check_and_command_line(make, attempt: int) -> None:
    made = make()
    made = replace(made, judgement=made.policy.judge(made.results, attempt), attempt=attempt)
    data, outcomes = made.to_json(), made.judgement.outcomes
    page, lines, notebook = rows_of(made.to_html()), limits_table(outcomes)[2:], Page(made._repr_html_()).words
    assert len(page) == len(lines) == len(data["limits"]) == len(outcomes)
    for outcome, entry, line in zip(outcomes, data["limits"], lines, strict=True):
        metric, _, name = entry["statistic"].partition(".")
        raw = data["metrics"].get(metric, {}).get("estimates", {}).get(name)
        bound = "not measured" if entry["measured"] is None else number(entry["measured"])
        known = raw is not None and raw["value"] is not None
        value = f"{number(raw['value'])} [{number(raw['low'])}, {number(raw['high'])}]" if known else "not measured"
        held, verdict = limit_text(outcome.limit), LABELS[entry["status"]]
        (row,) = [row for row in page if row.startswith(f"{metric}. {name} ") and f" {held} " in row]
        for shown in (row, line):
            assert f"{bound} " in shown and held in shown and value in shown
            assert verdict in shown.lower()
        assert value in notebook
        told = limit_metadata(outcome)
        assert (told["status"], told["limit"], told["bound"]) == (entry["status"], entry["limit"], entry["bound"])
        numbers = {"measured": entry["measured"]} | (
            {key: raw[key] for key in ("value", "low", "high")} if known else {}
        )
        for key, expected in numbers.items():
            assert (key not in told) if expected is None else told[key] == pytest.approx(expected, rel=1e-3), key


def test_the_number_that_is_drawn_is_the_one_that_is_judged_and_a_pass_never_lies_in_the_shade() -> None:
    rng = np.random.default_rng(0)
    outcomes = [outcome for make in ALL for outcome in make().judgement.outcomes]
    for direction in ("higher_is_riskier", "two_sided", "lower_is_riskier"):
        for bound in ("upper", "lower", "value"):
            for _ in range(40):
                low, value, high = sorted(rng.normal(0.5, 0.3, 3))
                found = Estimate("f", value, low, high, 90, 90, null=rng.choice([0.0, 0.5]), direction=direction)
                side = "at_least" if direction == "lower_is_riskier" else "at_most"
                limit = Limit("m.f", **{side: float(rng.uniform(0.05, 0.9))}, bound=bound)
                outcomes.append(judge_limit(limit, MetricResult("m", (found,)), int(rng.integers(1, 4))))
    assert {outcome.status for outcome in outcomes} == set(LABELS)
    for outcome in outcomes:
        if not math.isfinite(outcome.measured):
            continue
        root = ET.fromstring(interval_svg(outcome))
        assert number(outcome.measured) in [text.text for text in root.findall("{*}text")]
        (shade,) = root.findall("{*}rect")
        start = float(shade.get("x"))
        end = start + float(shade.get("width"))
        circle = root.find("{*}circle")
        at = (
            float(circle.get("cx"))
            if circle is not None
            else float(root.findall("{*}path")[-1].get("d")[1:].split()[0])
        )
        inside = start + 0.1 < at < end - 0.1
        assert inside == outcome.limit.exceeded_by(outcome.measured) or abs(at - start) < 0.2 or abs(at - end) < 0.2
        assert not (outcome.passed and inside)


@MAKERS
def test_the_count_of_limits_is_the_same_in_report_and_refusal(make) -> None:
    made = make()
    outcomes = made.judgement.outcomes
    count = tally(outcomes)
    assert count.lower() in headline(made).lower() and count.lower() in made.to_text().lower().replace("\n", " ")
    if made.verdict != "pass":
        assert count in refusal(made.judgement)
        assert f"{sum(x.status == 'fail' for x in outcomes)} of" in count or "could not be judged" in count


def test_counts_in_words() -> None:
    passed, failed = passing().judgement.outcomes[0], failing().judgement.outcomes[1]
    unjudged = not_assessable().judgement.outcomes[-1]
    assert tally([passed]) == "the limit holds" and tally([passed] * 2) == "all 2 limits hold"
    assert tally([failed, passed]) == "1 of 2 limits is broken"
    assert tally([failed, failed, unjudged]) == "2 of 3 limits are broken, 1 could not be judged"
    assert tally([unjudged, passed]) == "1 of 2 limits could not be judged"


@pytest.mark.parametrize(
    ("found", "limit", "words"),
    [
        ({"subjects": 90}, {"smallest_n": 500}, "too few subjects: 90 of 500; 410 more subjects are needed"),
        ({"subjects": 20, "reach": 0.09}, {"smallest_n": 30}, "; 10 more subjects are needed"),
        (
            {"subjects": 600, "reach": 0.2},
            {},
            "; about 6,900 more subjects decide it with 90%",
        ),
        (
            {"subjects": 600, "value": 0.06, "reach": 0.05},
            {},
            "; about 2,300 more subjects decide it with 90%",
        ),
        (
            {"subjects": 600, "value": 0.055, "reach": 0.056},
            {},
            "; 90% of such releases are decided",
        ),
        ({"subjects": 20, "value": math.nan, "note": "no pair"}, {}, "no pair; 10 more subjects are needed"),
        (
            {"subjects": 100, "value": 0.3, "about": "gate"},
            {},
            "underpowered here: 0.32 is above the limit",
        ),
    ],
)
def test_what_could_not_be_assessed_says_how_many_more_subjects_are_needed(found, limit, words) -> None:
    """Twice the limit by chance takes four times as many."""
    value = found.pop("value", 0.0)
    outcome = judge_limit(Limit("m.f", at_most=0.1, **limit), MetricResult("m", (estimate("f", value, **found),)))
    assert outcome.status == "not_assessable" and words in outcome.reason
    shown = report(MetricResult("m", (outcome.estimate,)), limits=(outcome.limit,))
    assert words.partition("; ")[2] in " ".join(shown.to_text().split()) and words.partition("; ")[2] in shown.to_html()


# --- questions --------------------------------------------------------------------------------------------------------


def test_every_metric_that_limits_leaks_by_default_answers_a_question() -> None:
    unasked = {name for name, metric in METRICS.items() if metric.default_limits and metric.question is None}
    assert all(spec.about == "gate" for name in unasked for spec in METRICS[name].statistics)
    assert {metric.question for metric in METRICS.values()} - {None} == set(TITLES)
    assert {question for metric in METRICS.values() for question in metric.smallest_leak} <= set(TITLES)


@pytest.mark.parametrize("make", ALL)
def test_each_limit_and_each_result_stands_under_one_question(make) -> None:
    made = make()
    found = made.answers
    assert [answer.title for answer in found[:5]] == list(TITLES.values()) and all(x.main for x in found[:5])
    assert sorted(x.limit.key for answer in found for x in answer.outcomes) == sorted(
        x.limit.key for x in made.judgement.outcomes
    )
    assert sorted(name for answer in found for name in answer.metrics) == sorted(made.results)
    assert [entry["question"] for entry in made.to_json()["answers"]] == [answer.title for answer in found]


def test_an_answer_rests_on_the_limit_that_is_broken_most_or_comes_closest() -> None:
    copies, singled, linked, _, members = failing().answers[:5]
    assert (copies.word, copies.strongest.limit.key) == ("Yes", "dcr.identical_excess")
    assert (singled.word, singled.strongest.limit.key) == ("Within limits", "singling_out.risk")
    assert (linked.word, linked.strongest, linked.not_tested) == (
        "Not tested",
        None,
        ("linkability", "value_disclosure"),
    )
    assert members.word == "Yes" and "shadow_membership" in members.not_tested
    assert "membership_inference.precision" in members.not_tested
    closest = passing().answers[0].strongest
    assert closest.limit.key == "dcr.member_excess" and closest.used() == pytest.approx(closest.measured / 0.05)


def test_members_who_are_avoided_are_recognised_as_members() -> None:
    copies, *_, members = report(dcr(-0.31), limits=(Limit("dcr.member_excess", at_most=0.05),)).answers[:5]
    assert (copies.word, members.word) == ("No limit", "Yes")
    assert members.strongest.limit.key == "dcr.member_excess"


def test_values_of_no_real_row_alone_trace_nobody_but_rule_nothing_out() -> None:
    foreign = MetricResult("value_disclosure", (estimate("foreign_cells", 0.002, 0.0, null=0.0),))
    limits = (Limit("value_disclosure.foreign_cells", at_most=0.0), Limit("dcr.member_excess", at_most=0.05))
    copies, _, linked, *_ = report(dcr(0.31), foreign, limits=limits).answers
    assert [(one.word, one.status) for one in (copies, linked)] == [("Yes", "fail"), ("Not ruled out", "fail")]


def test_the_smallest_leak_is_that_of_planted_copies_or_what_could_be_detected() -> None:
    assert passing().answers[0].smallest_leak == "dcr.member_excess of 0.03"
    planted = tuple(
        Estimate(f"smallest_leak_{kind}", at, 0.5 * at, at, 500, 500, about="gate")
        for kind, at in (("exact", 0.0147), ("jittered", math.nan))
    )
    made = report(dcr(), MetricResult("controls", planted), limits=(Limit("dcr.member_excess", at_most=0.05),))
    assert made.answers[0].smallest_leak == "1.5 % copies of training rows"
    assert "1.5 % copies of training rows" in made.to_html() and "1.5 % copies" in made._repr_html_()


def test_page_one_says_why_and_that_a_leak_was_seen_where_planted_ones_were_not_measured() -> None:
    planted = MetricResult(
        "controls", (Estimate("smallest_leak_exact", math.nan, math.nan, math.nan, 0, 0, about="gate"),)
    )
    limits = (Limit("dcr.identical_excess", at_most=0.05), Limit("controls.smallest_leak_exact", at_most=0.1))
    leaks = report(failing().results["dcr"], planted, limits=limits)
    assert leaks.verdict == "fail" and leaks.answers[-1].word == "Yes, it saw one"
    first = leaks.to_html().partition("<ol")[0]
    assert "The table holds copies" in first and "The table holds copies" in leaks._repr_html_()
    harmless = report(passing().results["dcr"], planted, limits=limits[1:])
    assert harmless.answers[-1].word == "Not shown" and "copies" not in harmless.to_html().partition("<ol")[0]


def test_page_one_answers_before_any_section_and_bears_no_grade() -> None:
    attribute = MetricResult("attribute_inference", (estimate("protection_score", 62.5, null=100.0),))
    made = report(*failing().results.values(), attribute)
    assert made.data_privacy_score["grade"] in made.to_html()
    first = made.to_html().partition("<section>")[0]
    for question in TITLES.values():
        assert question in first
    for grade in ("Excellent", "Very Good", "Moderate", "Poor", "Data Privacy Score"):
        assert grade not in first
    for words in ("Strongest attack", "Smallest leak told from chance", "Not tested", "Not covered"):
        assert words in first


def test_page_one_says_who_signed_what_and_when_or_that_nobody_did() -> None:
    signed = {"date": "2031-05-04T03:02:01+00:00", "key": "ab" * 32, "sha256": "cd" * 32}
    made = replace(passing(), signed=signed, attempt=2)
    for words in ("2031-05-04T03:02:01+00:00", "ab" * 32, "cd" * 6, made.policy.digest()[:12]):
        assert words in made.to_html().partition("<section>")[0]
    assert type(made).from_json(made.to_json()).signed == signed
    assert "signed" not in passing().to_json() and "nobody: this report was not made by a gate" in passing().to_html()


def test_sections_have_one_chart_with_how_to_read_it_and_a_table_of_limits_that_folds() -> None:
    page = passing().to_html()
    sections = {title: page.partition(f"<h2>{title} <span")[2].partition("</section>")[0] for title in TITLES.values()}
    drawn = [section for section in sections.values() if '<svg class="plot"' in section]
    assert len(drawn) == 3 and all(section.count("How to read this") == 1 for section in drawn)
    assert page.count('<details class="limits">') == 3 and "details-content" in page
    assert failing().to_html().count('<details class="limits" open>') == 2  # what did not pass stands open
    inside = re.search(r'<table class="stack">.*?</table>', page, re.S)
    assert inside and all(f'data-label="{word}"' in inside[0] for word in ("Judged", "Limit", "Value"))


def test_values_are_told_on_hover_without_a_script() -> None:
    page = passing().to_html()
    outcome = passing().judgement.outcomes[0]
    words = (
        f"pass: judged {judged_text(outcome)}, limit {limit_text(outcome.limit)}; value {interval(outcome.estimate)}"
    )
    assert f"<title>{words}</title>" in page
    assert "<title>0.012 [" in page or "<title>0.02: " in page or re.search(r"<title>[\d.]+: [\d.]+</title>", page)
    assert page.count("<title>") > 20 and "<script" not in page


def test_verdict_and_judged_numbers_have_room_in_the_ui() -> None:
    """At 1,200 pixels it shows about 300 of each row, or 36 letters."""
    for make in ALL:
        told = report_metadata(make())
        rows = [record.data for record in told["limits"].value.records]
        assert list(told)[:2] == ["verdict", "limits"] and list(rows[0]) == ["judged", "limit"]
        signs = {"pass": "✓", "fail": "✗", "not_assessable": "?"}
        found = {
            f"{limit_text(x.limit)} {clean(x.limit.key, 60)}": f"{signs[x.status]} {number(x.measured)}"
            for x in make().judgement.outcomes
        }
        assert {row["limit"]: row["judged"] for row in rows} == found
        assert max(len(row["judged"]) for row in rows) <= 12
