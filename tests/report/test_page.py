"""Content of a report, in every form of it."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from privacy_assets.dagster.metadata import limit_metadata
from privacy_assets.gate.attestation import blocking_error
from privacy_assets.metrics.base import score_row
from privacy_assets.metrics.memorization import alpha_table
from privacy_assets.metrics.policies import policy_digest
from privacy_assets.policy import Limit, Policy, tally
from privacy_assets.report.answers import TITLES
from privacy_assets.report.page import before_and_after, plots_of, useful
from privacy_assets.report.report import Report, installed_versions
from privacy_assets.report.words import limit_interval, limit_symbol, measured_text
from privacy_assets.stats.estimates import Estimate, MetricResult
from tests.report.report_examples import (
    HOSTILE,
    LIMITS,
    SHARES_ROOM,
    ParsedPage,
    bars,
    dcr,
    estimate,
    failing,
    passing,
    report,
    svg_words,
    undecided,
)
from tests.shipped import METRICS


def test_verdict_stands_first_then_what_to_do():
    text = failing().to_html()
    order = [
        "Fail</strong>",
        "limits fail",
        "traced to a real person",
        "What to do",
        "Filter the copied rows.",
        "How to read this",
        "Every statistic",
        "Tables and settings",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_limits_that_were_not_judged_are_not_called_broken():
    made = undecided()
    assert made.verdict == "undecided"
    words = ParsedPage(made.to_html()).words
    assert "Fewer than 50 predicted positives." in words
    assert "linkability.risk was not computed." in words and "Run the metric linkability" in words


def test_every_statistic_of_the_registry_is_explained():
    for name, metric in METRICS.items():
        results = MetricResult(name, tuple(estimate(spec.name, 0.1) for spec in metric.statistics))
        words = ParsedPage(report(results).to_html()).words
        assert all(" ".join(spec.meaning.split()) in words for spec in metric.statistics)


def test_unknown_metrics_and_long_tables_are_shown_and_nothing_is_drawn():
    rows = [{"i": i} for i in range(500)]
    later = MetricResult(
        "later", (estimate("surprise", 0.25),), {"odd_rows": [{"a": 1}, {"b": "x"}], "long": rows}
    )
    made = report(later, limits=(Limit("later.surprise", at_most=0.5),))
    page = ParsedPage(made.to_html())
    assert "later. surprise" in page.words and "Table: odd rows (2 rows)" in page.words
    assert "The first 60 rows; the JSON report contains all." in page.words
    assert len(made.to_json()["metrics"]["later"]["tables"]["long"]) == 500
    assert page.count("svg", **{"class": "plot"}) == 0


def test_report_without_results_is_undecided_and_renders():
    policy = Policy(LIMITS)
    empty = Report(
        title="", policy=policy, policy_verdict=policy.judge({}), results={}, tables={}, seed=0
    )
    assert empty.verdict == "undecided" and empty.versions == installed_versions()
    assert empty.versions["numpy"] == np.__version__
    assert "No statistic was measured." in empty.to_html() and "was not computed" in empty.to_text()


def test_headline():
    absent = estimate("privacy_score_embedded", math.nan, note="not measured: no embedder")
    blind = report(replace(dcr(), estimates=(*dcr().estimates, absent)))
    three = "3 of 7 limits fail. This table must not be published."
    for made, words in (
        (passing(), "All 6 limits hold"),
        (failing(), three),
        (undecided(), "2 of 8 limits are undecided"),
    ):
        assert words in made.page().headline
    without = (
        "1 statistic that the verdict does not use could not be computed. The part for the data"
        " team states why."
    )
    assert without in blind.page().doubts


def result(metric, name, value, **changes):
    return MetricResult(
        metric, (estimate(name, value),), **{"settings": {"a": 1}, "package_version": "1"} | changes
    )


def test_statistics_before_and_after_a_filter():
    guess, exposed = ("membership_inference", "precision"), ("memorization", "exposed")
    before = {name: result(name, statistic, 0.75).to_json() for name, statistic in (guess, exposed)}
    after = {
        guess[0]: result(*guess, 0.5),
        exposed[0]: result(*exposed, math.nan),
        "dcr": result("dcr", "x", 0.0),
    }
    caption, svg = before_and_after(before, after)
    assert (
        "0.5 is guessing" in caption
        and "Exposed" not in caption
        and "attack precision" in svg_words(svg)
    )
    assert [width for _, width in bars(svg)[:2]] == pytest.approx(
        [0.75 * SHARES_ROOM, 0.5 * SHARES_ROOM], abs=0.1
    )
    assert len(bars(svg)) == 2 + 2  # the legend has two
    for nothing in ({}, None, "text", {"membership_inference": 1}, {"membership_inference": {}}):
        assert before_and_after(nothing, after)[1] == ""
    for otherwise in ({"settings": {"a": 2}}, {"seed": 4}, {"package_version": "2"}):
        assert before_and_after(before, {guess[0]: result(*guess, 0.5, **otherwise)})[1] == ""


def test_every_known_table_is_drawn_on_the_page():
    sets = [
        {"sets": at, "columns": "4 + 4", "excess": 0.01, "low": -0.02, "high": 0.04}
        for at in range(1, 21)
    ]
    scores = [{"space": space, "rank": rank, "vulnerability": 0.3 / rank**0.5}
              for space in ("raw", "embedded") for rank in (1, 20, 4000)]  # fmt: skip
    ranking = [{"rank": 1, "role": "train", "row": 39435, "vulnerability": 0.281217}]
    alpha = alpha_table(np.repeat([1 / 3, 1.0, 3.0], [10, 85, 5]))
    largest = estimate("largest", 0.28, null=math.nan)
    more = (
        MetricResult("linkability", (), {"sets": sets}),
        MetricResult("vulnerability", (largest,), {"scores": scores, "ranking": ranking}),
        MetricResult("memorization", (), {"alpha": alpha}),
    )
    page = ParsedPage(report(*passing().results.values(), *more).to_html())
    # Distances twice, tails, configurations, curve, levels; sets; scores twice; alpha.
    assert page.count("svg", **{"class": "plot"}) == 6 + 1 + 2 + 1
    for shown in (
        "by rank, raw space",
        "by rank, embedded space",
        "Below 1",
        "1/4 to 1/2",
        "39,435",
        "0.2812",
    ):
        assert shown in page.words


EMPTY = [
    [],
    [{}],
    [{"space": None, "quantile": None, "rank": 0, "fpr": 0.1, "all": None, "srd": math.nan}],
]


ODD = [
    {
        "fpr": "x",
        "advantage": math.inf,
        "risk": None,
        "columns": [1, 2],
        "excess": "a",
        "level": None,
        "share": -1.0,
    },
    {
        "columns": [1, 2],
        "risk": 0.5,
        "tail": None,
        "excess": 0.0,
        "fpr": None,
        "advantage": 0,
        "level": 3,
        "share": 1,
        "column": 7,
        "points": True,
        "rank": "x",
        "vulnerability": None,
    },
    {
        "space": HOSTILE,
        "attack": HOSTILE,
        "score": HOSTILE,
        "role": HOSTILE,
        "alpha": HOSTILE,
        "level": HOSTILE,
        "column": HOSTILE,
        "share": 0.5,
        "points": 9.0,
        "risk": 0.5,
        "columns": 2,
        "rank": 5,
        "vulnerability": 0.1,
    },
]


@pytest.mark.parametrize("metric", [name for name, metric in METRICS.items() if metric.plots])
def test_strange_tables_leave_their_plot_out_or_are_well_formed(metric):
    for table in dict.fromkeys(plot.table for plot in METRICS[metric].plots):
        for rows in EMPTY:
            assert not any(svg for _, svg in plots_of(metric, table, rows)), table
        for row in ODD:
            drawn = [svg for _, svg in plots_of(metric, table, [row, row])]
            assert all(
                ET.fromstring(svg).get("class") == "plot" and "\u202e" not in svg
                for svg in drawn
                if svg
            )
    assert plots_of("later", "table", ODD) == []


MAKERS = pytest.mark.parametrize("make", [passing, failing, undecided])


def rows_of(page: str) -> list[str]:
    """The words of each row of the tables of limits."""
    tables = re.findall(r'<details class="limits".*?</details>', page, re.S)
    return [
        ParsedPage(row).words
        for table in tables
        for row in re.findall(r"<tr class=.*?</tr>", table, re.S)
    ]


def limit_lines(made) -> list[str]:
    """The lines of the limits in the text."""
    text = made.to_text(columns=1000)
    lines = text[text.index("\nLimits\n") :].splitlines()[2:]
    return ["".join(lines[i : i + 2]) for i in range(0, 2 * len(made.policy_verdict.outcomes), 2)]


@MAKERS
@pytest.mark.parametrize("attempt", [1, 3])
def test_value_interval_bound_and_verdict_agree_in_page_json_check_and_command_line(
    make, attempt: int
) -> None:
    made = make()
    made = replace(made, policy_verdict=made.policy.judge(made.results, attempt), attempt=attempt)
    data, outcomes = made.to_json(), made.policy_verdict.outcomes
    page, lines, notebook = (
        rows_of(made.to_html()),
        limit_lines(made),
        ParsedPage(made._repr_html_()).words,
    )
    assert len(page) == len(lines) == len(data["limits"]) == len(outcomes)
    for outcome, entry, line in zip(outcomes, data["limits"], lines, strict=True):
        metric, _, name = entry["statistic"].partition(".")
        raw = data["metrics"].get(metric, {}).get("estimates", {}).get(name)
        known = raw is not None and raw["value"] is not None
        held, verdict = limit_symbol(outcome.limit), entry["status"]
        value, bound = limit_interval(outcome), measured_text(outcome)
        (row,) = [row for row in page if row.startswith(f"{metric}. {name}") and f" {held} " in row]
        assert bound in row and held in row and value in row
        for shown in (row, line):
            assert held in shown and (value in shown or not known)
            assert verdict in shown.lower()
        assert value in notebook
        told = limit_metadata(outcome)
        assert (told["status"], told["limit"], told["bound"]) == (
            entry["status"],
            entry["limit"],
            entry["bound"],
        )
        numbers = {"measured": entry["measured"]} | (
            {key: raw[key] for key in ("value", "low", "high")} if known else {}
        )
        for key, expected in numbers.items():
            assert (
                (key not in told)
                if expected is None
                else told[key] == pytest.approx(expected, rel=1e-3)
            ), key


@MAKERS
def test_the_count_of_limits_is_the_same_in_report_and_refusal(make) -> None:
    made = make()
    outcomes = made.policy_verdict.outcomes
    count = tally(outcomes)
    assert (
        count.lower() in made.page().headline.lower()
        and count.lower() in made.to_text().lower().replace("\n", " ")
    )
    if made.verdict != "pass":
        assert count in str(blocking_error(made.policy_verdict))
        assert f"{sum(x.status == 'fail' for x in outcomes)} of" in count or "undecided" in count


def test_page_one_says_why_and_that_a_leak_was_seen_where_planted_ones_were_not_measured() -> None:
    planted = MetricResult(
        "controls",
        (
            Estimate(
                "smallest_leak_exact", math.nan, math.nan, math.nan, 0, 0, measures="evaluation"
            ),
        ),
    )
    limits = (
        Limit("dcr.identical_excess", at_most=0.05),
        Limit("controls.smallest_leak_exact", at_most=0.1),
    )
    leaks = report(failing().results["dcr"], planted, limits=limits)
    assert leaks.verdict == "fail" and leaks.answers[-1].word == "Yes, it detected one"
    first = leaks.to_html().partition('<details class="team">')[0]
    assert (
        "The table contains copies" in first and "The table contains copies" in leaks._repr_html_()
    )
    harmless = report(passing().results["dcr"], planted, limits=limits[1:])
    assert (
        harmless.answers[-1].word == "Cannot tell"
        and "copies" not in harmless.to_html().partition("<ol")[0]
    )


def test_page_one_answers_before_any_section_and_bears_no_grade() -> None:
    levels = [{"level": level, "attacks": 1, "share": 0.5} for level in ("Excellent", "Poor")]
    attacks = [{"known": 3, "score": 96.06, "grade": "Excellent"}]
    scores = [score_row("Data Privacy Score", 62.5, "Very Good", "The mean of both.")]
    tables = {"levels": levels, "attacks": attacks, "graded_scores": scores}
    graded = MetricResult("data_privacy", (estimate("score", 62.5, null=100.0),), tables)
    made = report(*failing().results.values(), graded)
    assert made.scores["Data Privacy Score"].grade == "Very Good", "of a table that fails"
    assert (
        not re.search("Excellent|Very Good|Moderate|Poor", made.to_html())
        and "96.06" in made.to_html()
    )
    assert "Excellent" in passing().to_html()
    first = made.to_html().partition('<details class="team">')[0]
    for question in TITLES.values():
        assert question in first
    for grade in ("Excellent", "Very Good", "Moderate", "Poor", "Data Privacy Score"):
        assert grade not in first
    for words in ("The verdict covers this table", "Is it useful?", "What to do", "Conditions"):
        assert words in first


def test_page_one_says_who_signed_what_and_when_or_that_nobody_did() -> None:
    signed = {"date": "2031-05-04T03:02:01+00:00", "key": "ab" * 32, "sha256": "cd" * 32}
    made = replace(passing(), signed=signed, attempt=2)
    for words in (
        "2031-05-04T03:02:01+00:00",
        "ab" * 32,
        "cd" * 6,
        policy_digest(made.policy)[:12],
    ):
        assert words in made.to_html().partition("<section>")[0]
    assert type(made).from_json(made.to_json()).signed == signed
    assert (
        "signed" not in passing().to_json()
        and "none: this evaluation published nothing" in passing().to_html()
    )


def test_sections_have_one_chart_with_how_to_read_it_and_a_table_of_limits_that_folds() -> None:
    page = passing().to_html()
    sections = {
        title: page.partition(f"<h2>{title} <span")[2].partition("</section>")[0]
        for title in TITLES.values()
    }
    drawn = [section for section in sections.values() if '<svg class="plot"' in section]
    assert len(drawn) == 3 and all(section.count("How to read this") == 1 for section in drawn)
    assert page.count('<details class="limits">') == 3 and "details-content" in page
    # limits that did not pass are expanded
    assert failing().to_html().count('<details class="limits" open>') == 2
    inside = re.search(r'<table class="stack">.*?</table>', page, re.S)
    assert inside and all(
        f'data-label="{word}"' in inside[0] for word in ("Measured", "Limit", "Value")
    )


def utility(value: float, null: float = 0.9) -> list[tuple[str, Estimate]]:
    return [("column similarity", estimate("column_similarity", value, null=null))]


def lost(*names: str) -> list[dict[str, object]]:
    return [{"column": name, "similarity": 0.5, "similarity_real": 0.9} for name in names]


@pytest.mark.parametrize("value", [0.2, 0.85, 0.9])
def test_usefulness_names_what_is_lost_whatever_the_grade(value: float):
    pair = {"first": "town", "second": "<b>", "similarity": 0.5, "similarity_real": 0.9}
    tables = {"columns": lost("age", "town", "visits", "weight"), "pairs": [pair]}
    result = MetricResult("fidelity", (), tables=tables)
    _, sentence = useful(utility(value), [result], has_copies=False)
    words = (
        " Most is lost in these columns: age, town, visits, and in these pairs of columns: town"
        " and <b>."
    )
    assert sentence.endswith(words) and "{" not in sentence
    _, sentence = useful(utility(value), [], has_copies=False)
    assert "lost" not in sentence and "{" not in sentence


def test_a_broken_relation_is_told_before_similarity():
    rows = [{"relation": "start <= end", "broken_real": 0.0, "broken_synthetic": 0.31}]
    result = MetricResult("fidelity", (), tables={"relations": rows})
    word, sentence = useful(utility(0.9), [result], has_copies=False)
    assert word == "It breaks relations of the real rows"
    assert (
        sentence
        == "The relation start <= end holds in the real rows, and 31 % of the synthetic rows"
        " break it."
    )
    intact = MetricResult(
        "fidelity", (), tables={"relations": [{**rows[0], "broken_synthetic": 0.0}]}
    )
    assert useful(utility(0.9), [intact], has_copies=False)[0] == "Like real rows"
