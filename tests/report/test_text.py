"""Plain-text form of a report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privacy_assets.policy import Limit
from privacy_assets.report.text import aligned, verdict_lines, width
from privacy_assets.report.words import clean, limit_interval
from tests.report.report_examples import (
    ALL,
    LIMITS,
    dcr,
    failing,
    passing,
    report,
)


def limits_of(text: str) -> list[str]:
    """The lines of the section on limits."""
    lines = text.splitlines()
    start = lines.index("Limits") + 1
    return lines[start : lines.index("", start)]


def test_the_verdict_comes_first_and_each_limit_has_its_name_verdict_and_numbers():
    assert failing().to_text().splitlines()[0] == "FAIL  patients"
    names = [line for line in limits_of(failing().to_text()) if not line.startswith(" ")]
    assert len(names) == len(LIMITS) + 1 and all(len(line) == 80 for line in names)
    assert "limit ≤ 0.09, 1 [0.97, 1] (95 %)" in failing().to_text(columns=200)
    assert (
        passing().to_text().startswith("PASS  patients\nTables ")
        and "\nAll 6 limits hold" in passing().to_text()
    )


def test_a_console_counts_limits_that_pass_and_lists_the_others():
    assert limits_of(passing().to_text(every_limit=False)) == ["6 limits hold (-v lists them)."]
    made = failing()
    broken = [
        outcome.limit.key for outcome in made.policy_verdict.outcomes if outcome.status != "pass"
    ]
    short = limits_of(made.to_text(every_limit=False))
    assert len([line for line in short if not line.startswith(" ")]) == len(broken) + 1


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("columns", [80, 100])
def test_lines_fit_the_terminal(make, columns: int):
    """Only the title, or a single word such as a path, is longer."""
    for line in make().to_text(columns=columns).splitlines()[1:]:
        assert width(line) <= columns or len(line.split()) <= 2, line


def test_the_last_column_of_a_table_is_wrapped_or_below_the_others():
    rows = [("name", "kind", "note"), ("a" * 20, "text", "many words " * 9), ("b", "text", "")]
    wrapped = aligned(rows, 60)
    assert wrapped[2].startswith("a" * 20 + "  text  many words") and wrapped[3].startswith(
        " " * 28 + "many"
    )
    below = aligned(rows, 40)
    assert below[0] == "name                  kind" and below[3].startswith("    many words")
    assert all(width(line) <= 60 for line in wrapped) and all(width(line) <= 40 for line in below)
    assert aligned(rows)[2].endswith("words")


def test_what_to_do_stands_once_for_all_limits_with_the_same_advice():
    made = report(
        dcr(0.31, 1.0), limits=tuple(replace(limit, advice="do this") for limit in LIMITS[:3])
    )
    assert "  dcr.member_excess, dcr.identical_excess: Do this." in made.to_text().splitlines()
    assert made.to_html().count("<p>Do this. ") == 1
    steps = passing().to_text().partition("What to do")[2].partition("For the data team")[0]
    assert (
        steps.split()[:3] == ["Decide", "whether", "leaks"]
        and "Decide whether" not in made.to_text()
    )


def test_wide_names_keep_the_columns():
    limits = (
        Limit("測定値.図", at_most=0.1),
        Limit("e\u0301tude.x", at_most=0.1),
        Limit("plain.y", at_most=0.1),
    )
    names = [
        line for line in limits_of(report(limits=limits).to_text()) if not line.startswith(" ")
    ]
    assert {width(line) for line in names} == {80}


@pytest.mark.parametrize("make", ALL)
def test_the_lines_of_the_verdict_have_every_limit_and_no_measured_number(make):
    made = make()
    text = "\n".join(verdict_lines(made.page()))
    for outcome in made.policy_verdict.outcomes:
        assert clean(outcome.limit.key, 60) in text
        if outcome.estimate is not None and outcome.estimate.measurable:
            assert (
                limit_interval(outcome) in made.to_text(columns=1000)
                and limit_interval(outcome) not in text
            )
    assert "What to do" in text


def test_a_sentence_is_wrapped_in_a_terminal_and_one_line_in_a_log():
    advice = f"increase the leaves of the trees{' and their shrinkage' * 5}, or generate fewer rows"
    made = report(
        dcr(0.31, 1.0), limits=tuple(replace(limit, advice=advice) for limit in LIMITS[:3])
    )
    (line,) = [line for line in verdict_lines(made.page()) if "ncrease the leaves" in line]
    assert "or generate fewer rows" in line and len(line) > 120
    assert line not in made.to_text() and "".join(line.split()) in "".join(made.to_text().split())
