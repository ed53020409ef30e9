"""The report: JSON form, HTML that is safe and self-contained, plain text."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from jinja2 import UndefinedError

from privacy_assets.errors import ConfigError
from privacy_assets.metrics.registry import METRICS
from privacy_assets.policy import Policy
from privacy_assets.report.html import environment
from privacy_assets.report.report import Report, installed_versions, plain
from privacy_assets.report.text import clean, headline, number, what_to_do, width
from privacy_assets.stats.limits import Limit, judge_limit
from privacy_assets.stats.results import Estimate, MetricResult
from privacy_assets.version import ENGINE_VERSION
from tests.report.report_examples import (
    ALL,
    LIMITS,
    PRIVATE_HASH,
    Page,
    dcr,
    estimate,
    failing,
    hostile,
    membership,
    not_assessable,
    passing,
    report,
)

FORMS = (Report.to_html, Report._repr_html_, Report.to_text)


def again(made: Report) -> Report:
    return Report.from_json(json.loads(json.dumps(made.to_json(), allow_nan=False)))


# --- JSON -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ALL)
def test_json_has_the_documented_form_and_gives_the_same_report_in_every_form(make):
    data = make().to_json()
    assert data["verdict"] in {"pass", "fail", "not_assessable"}
    assert (data["engine_version"], data["seed"]) == (ENGINE_VERSION, 3)
    for metric in data["metrics"].values():
        assert set(metric) == {"estimates", "tables", "settings", "seconds"}
        for values in metric["estimates"].values():
            assert {"value", "low", "high", "n", "subjects", "null", "confidence", "direction", "note"} <= set(values)
    for limit in data["limits"]:
        assert {"statistic", "limit", "bound", "measured", "passed", "status", "reason"} <= set(limit)
    assert again(make()).to_json() == data
    for form in FORMS:
        assert form(again(make())) == form(make())


def test_json_tells_nan_as_null_and_keeps_the_raw_number():
    data = report(dcr(excess=0.123456789), membership()).to_json()["metrics"]
    assert data["membership_inference"]["estimates"]["precision"]["value"] is None
    assert data["dcr"]["settings"]["nested"] == {"k": None}
    assert data["dcr"]["estimates"]["member_excess"]["value"] == 0.123456789


def test_a_later_attempt_is_judged_at_its_own_level_wherever_the_report_is_read():
    results = {"dcr": MetricResult("dcr", (estimate("member_excess", 0.1, 0.1, direction="two_sided"),))}
    policy = Policy((Limit("dcr.member_excess", at_most=0.22),))
    known = {"title": "t", "policy": policy, "results": results, "tables": {}, "seed": 0}
    first, third = (Report(judgement=policy.judge(results, m), attempt=m, **known) for m in (1, 3))
    assert (first.verdict, third.verdict) == ("pass", "not_assessable")
    assert (again(third).attempt, again(third).verdict) == (3, "not_assessable")
    assert "at attempt 3" in again(third).to_html() and "at attempt 3" in again(third).to_text()
    with pytest.raises(ConfigError, match="its statistics give 'pass'"):
        Report.from_json({**third.to_json(), "attempt": 1})


def test_rows_that_failed_before_fail_on_their_page_too():
    told = replace(passing(), remembered=("dcr.member_excess: 0.3 is above the limit 0.1",))
    assert again(told).verdict == told.verdict == "fail"
    assert "failed before" in told.to_text() and "0.3 is above the limit" in again(told).to_html()
    assert "remembered" not in passing().to_json()


@pytest.mark.parametrize(("about", "said"), [("release", True), ("gate", False)])
def test_nobody_is_told_to_leave_out_a_limit_that_says_whether_the_gate_sees(about: str, said: bool):
    underpowered = estimate("false_alarm_rate", math.nan, about=about)
    outcome = judge_limit(Limit("controls.false_alarm_rate", at_most=0.1), MetricResult("controls", (underpowered,)))
    assert outcome.status == "not_assessable"
    assert ("leave this limit out" in what_to_do(outcome)) is said


def test_fingerprints_of_the_inputs_of_metrics_are_never_shown():
    for shown in (json.dumps(passing().to_json()), *(form(passing()) for form in FORMS)):
        assert PRIVATE_HASH not in shown


def test_plain_names_objects_by_type_only():
    class Holder:
        def __repr__(self) -> str:
            raise AssertionError("a repr could hold private values")

    numpy_values = {"a": np.float64("nan"), "b": np.int64(3), "c": np.array([1.0, np.inf]), "d": np.bool_(True)}
    assert plain({**numpy_values, "e": {2, 1}, "f": len}) == {
        "a": None, "b": 3, "c": [1.0, None], "d": True, "e": [1, 2], "f": "<len>",
    }  # fmt: skip
    assert plain(Holder()).endswith("Holder>")


# --- HTML -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("form", [Report.to_html, Report._repr_html_])
def test_html_is_well_formed_and_can_neither_run_nor_load_anything(make, form):
    text = form(make())
    page = Page(text)
    assert page.open == []
    for tag, attrs in page.tags:
        assert tag not in {"script", "iframe", "object", "embed", "link", "img", "base", "form", "image", "use", "a"}
        assert not [name for name in attrs if name.startswith("on") or name in {"src", "href", "srcset", "action"}]
        assert not [value for value in attrs.values() if "://" in (value or "") and not value.endswith("/2000/svg")]
    assert "url(" not in text and "@import" not in text


@pytest.mark.parametrize("make", ALL)
def test_hidden_and_control_characters_never_reach_an_output(make):
    for form in FORMS:
        assert not set(form(make())) & set("\u202e\u2066\x1b\x00\u200b")
    assert "W" * 700 not in make().to_html()


def test_hostile_text_is_shown_escaped():
    text = hostile().to_html()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text and "\\u202e" in text


def test_the_page_says_how_it_may_be_shown_and_the_fragment_changes_nothing_around_it():
    text = failing().to_html()
    page = Page(text)
    csp = next(attrs["content"] for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert csp == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert page.count("html", lang="en") == page.count("meta", name="viewport") == 1
    assert "prefers-color-scheme: dark" in text
    assert all("scope" in attrs for tag, attrs in page.tags if tag == "th")
    assert not {tag for tag, _ in Page(failing()._repr_html_()).tags} & {"style", "html", "body", "head", "script"}


def test_verdict_stands_first_then_what_to_do():
    text = failing().to_html()
    order = ["Fail</strong>", "are broken", "traced to a real person", "What to do", "Filter the copied rows.",
             "How to read this", "Every statistic", "compared"]  # fmt: skip
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_limits_that_were_not_judged_are_not_called_broken():
    made = not_assessable()
    assert made.verdict == "not_assessable"
    words = Page(made.to_html()).words
    assert "Broken limits" not in words and "Fewer than 50 predicted positives; 30 more subjects are needed." in words
    assert "linkability.risk was not computed." in words and "Run the metric linkability" in words


def test_every_statistic_of_the_registry_is_explained():
    for name, metric in METRICS.items():
        results = MetricResult(name, tuple(estimate(spec.name, 0.1) for spec in metric.statistics))
        words = Page(report(results).to_html()).words
        assert all(" ".join(spec.meaning.split()) in words for spec in metric.statistics)


def test_unknown_metrics_and_long_tables_are_shown_and_nothing_is_drawn():
    rows = [{"i": i} for i in range(500)]
    later = MetricResult("later", (estimate("surprise", 0.25),), {"odd_rows": [{"a": 1}, {"b": "x"}], "long": rows})
    made = report(later, limits=(Limit("later.surprise", at_most=0.5),))
    page = Page(made.to_html())
    assert "later. surprise" in page.words and "Table: odd rows (2 rows)" in page.words
    assert "The first 60 rows; the JSON report holds all." in page.words
    assert len(made.to_json()["metrics"]["later"]["tables"]["long"]) == 500
    assert page.count("svg", **{"class": "plot"}) == 0


def test_report_without_results_is_not_assessable_and_renders():
    policy = Policy(LIMITS)
    empty = Report(title="", policy=policy, judgement=policy.judge({}), results={}, tables={}, seed=0)
    assert empty.verdict == "not_assessable" and empty.versions == installed_versions()
    assert empty.versions["numpy"] == np.__version__
    assert "No statistic was measured." in empty.to_html() and "was not computed" in empty.to_text()


def test_a_name_missing_from_the_view_is_an_error():
    with pytest.raises(UndefinedError):
        environment().get_template("report.html.j2").render(title="only this")


# --- plain text -------------------------------------------------------------------------------------------------------


def test_text_is_aligned_and_says_the_verdict_first():
    lines = failing().to_text().splitlines()
    assert lines[0] == "FAIL  patients"
    start = next(i for i, line in enumerate(lines) if line.startswith("statistic"))
    header, rows = lines[start], lines[start + 2 : start + 2 + len(LIMITS) + 1]
    for word in ("judged", "limit  ", "verdict", "value [low, high]", "reason"):
        column = header.index(word)
        assert all(row[column - 1] == " " and row[column] != " " for row in rows), word
    assert "1 [0.97, 1.03]" in lines[start + 4]
    assert passing().to_text().startswith("PASS  patients\nAll 6 limits hold")


def test_what_to_do_stands_once_for_all_limits_with_the_same_advice():
    made = report(dcr(0.31, 1.0), limits=tuple(replace(limit, advice="do this") for limit in LIMITS[:3]))
    assert "  dcr.member_excess, dcr.identical_excess: Do this." in made.to_text().splitlines()
    assert made.to_html().count(": Do this.") == 1
    assert "What to do" not in passing().to_text()


def test_wide_names_keep_the_columns():
    limits = (Limit("測定値.図", at_most=0.1), Limit("e\u0301tude.x", at_most=0.1), Limit("plain.y", at_most=0.1))
    table = [line for line in report(limits=limits).to_text().splitlines() if "was not computed" in line]
    assert len({width(line[: line.index("not measured")]) for line in table[:3]}) == 1


def test_headline():
    absent = estimate("privacy_score_embedded", math.nan, note="not measured: no embedder")
    blind = report(replace(dcr(), estimates=(*dcr().estimates, absent)))
    three = (
        "3 of 7 limits are broken, 1 could not be judged: this table must not be published. Broken: dcr.member_excess,"
    )
    without = "There was no embedder, so nothing is known of dcr.privacy_score_embedded."
    for made, words in ((passing(), "All 6 limits hold"), (failing(), three), (blind, without),
                        (not_assessable(), "2 of 8 limits could not be judged (membership_")):  # fmt: skip
        assert words in headline(made)
    assert "embedder" not in headline(passing())


NUMBERS = {0.12345: "0.1235", -0.0: "0", None: "–", 12114: "12,114", 0.05004: "0.05004", math.inf: "inf"}
TEXTS = {"a\u202eb": "a\\u202eb", "a\tb\n\nc": "a b c", "\x1b[0m": "\\u001b[0m", "\U000e0041": "\\U000e0041",
         "e" + "\u0301" * 9: "e\u0301\u0301\u0301"}  # fmt: skip


def test_numbers_and_texts_are_safe_to_read():
    assert {value: number(value) for value in NUMBERS} == NUMBERS and number(math.nan) == "–"
    assert {text: clean(text) for text in TEXTS} == TEXTS
    assert clean("a" * 99 + "b" * 99, 11) == "aaaaa…bbbbb"


# --- in every form ----------------------------------------------------------------------------------------------------


def test_utility_stands_in_every_form_beside_that_of_real_rows():
    names = ("column_similarity", "pair_similarity", "correlation_difference", "prediction")
    found = [
        estimate(name + end, value + at / 100, 0.01)
        for at, name in enumerate(names)
        for end, value in (("", 0.611), ("_real", 0.711))
    ]
    made = report(dcr(), MetricResult("fidelity", tuple(found)))
    assert "0.611 [0.601, 0.621] 0.711 [0.701, 0.721]" in Page(made.to_html()).words
    for shown in (" ".join(made.to_text().split()), Page(made._repr_html_()).words):
        assert "column similarity 0.611 (real 0.711), pair similarity 0.621 (real 0.721)" in shown
    for less in (report(dcr()), report(dcr(), MetricResult("fidelity", (estimate("prediction", math.nan),)))):
        assert all("Utility" not in form(less) for form in FORMS)


def attribute(value: float) -> MetricResult:
    score = Estimate("protection_score", value, 40, 90, 500, 500, null=100.0, direction="lower_is_riskier")
    return MetricResult("attribute_inference", (score,))


def test_the_data_privacy_score_is_the_mean_with_the_worse_grade():
    both = report(membership(), attribute(62.5))
    score = {"score": (91.2 + 62.5) / 2, "grade": "Very Good", "membership": 91.2, "attribute": 62.5}
    assert both.data_privacy_score == both.to_json()["data_privacy_score"] == score
    assert "Data Privacy Score: 76.85, Very Good" in both.to_html() == again(both).to_html()
    unmeasured = replace(attribute(1.0), estimates=())
    for part in ((membership(),), (attribute(80.0),), (membership(), unmeasured), (membership(), attribute(math.nan))):
        assert report(*part).data_privacy_score is None and "Data Privacy Score" not in report(*part).to_html()
