"""Plain-text form of a report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privacy_assets.policy import Limit
from privacy_assets.report.text import verdict_lines, width
from privacy_assets.report.words import clean, interval
from tests.report.report_examples import (
    ALL,
    LIMITS,
    dcr,
    failing,
    passing,
    report,
)


def test_text_is_aligned_and_says_the_verdict_first():
    lines = failing().to_text().splitlines()
    assert lines[0] == "FAIL  patients"
    start = next(i for i, line in enumerate(lines) if line.startswith("statistic"))
    header, rows = lines[start], lines[start + 2 : start + 2 + len(LIMITS) + 1]
    for word in ("compared value", "limit  ", "verdict", "value [low, high]", "reason"):
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


@pytest.mark.parametrize("make", ALL)
def test_the_lines_of_the_verdict_have_every_limit_and_no_measured_number(make):
    made = make()
    text = "\n".join(verdict_lines(made.page()))
    for outcome in made.policy_verdict.outcomes:
        assert clean(outcome.limit.key, 60) in text
        if outcome.estimate is not None and outcome.estimate.measurable:
            assert interval(outcome.estimate) in made.to_text() and interval(outcome.estimate) not in text
    assert "What to do" in text or made.verdict == "pass"


def test_a_sentence_is_wrapped_in_a_terminal_and_one_line_in_a_log():
    advice = f"increase the leaves of the trees{' and their shrinkage' * 5}, or generate fewer rows"
    made = report(dcr(0.31, 1.0), limits=tuple(replace(limit, advice=advice) for limit in LIMITS[:3]))
    (line,) = [line for line in verdict_lines(made.page()) if "ncrease the leaves" in line]
    assert "or generate fewer rows" in line and len(line) > 120
    assert line not in made.to_text() and "".join(line.split()) in "".join(made.to_text().split())
