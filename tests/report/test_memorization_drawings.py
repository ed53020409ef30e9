"""Bars of shares, read back from their SVG."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from privacy_assets.metrics.memorization.metric import alpha_table
from privacy_assets.report.drawings import plots_of
from privacy_assets.report.memorization_drawings import before_and_after, shares_svg
from privacy_assets.stats.results import Estimate, MetricResult

ROOM = 324  # pixels of the whole axis


def bars(svg):
    return [(rect.get("class"), float(rect.get("width"))) for rect in ET.fromstring(svg).iter("rect")]


def words(svg):
    return [text.text for text in ET.fromstring(svg).iter("text")]


def test_bars_are_as_long_as_their_shares():
    rows = [{"size": "1,000", "before": 0.75, "after": 0.5}, {"size": "4,000", "before": 1.0, "after": math.nan}]
    svg = shares_svg(rows, "size", {"before": "before", "after": "after the filter"})
    found = bars(svg)
    assert [kind for kind, _ in found] == ["mark s0", "mark s1", "mark s0", "mark s0", "mark s1"]  # two of the legend
    assert [width for _, width in found[:3]] == pytest.approx([0.75 * ROOM, 0.5 * ROOM, ROOM], abs=0.1)
    assert {"0.75", "0.5", "1", "1,000", "before", "after the filter"} <= set(words(svg))


def test_a_logarithmic_axis_gives_each_tenth_the_same_length():
    svg = shares_svg([{"x": str(p), "y": p} for p in (1.0, 0.1, 0.01, 0.001, 0.0)], "x", {"y": "share"}, log=True)
    assert [width for _, width in bars(svg)] == pytest.approx([ROOM * part for part in (1, 0.8, 0.6, 0.4, 0)], abs=0.1)


def test_the_histogram_of_the_engine_is_drawn():
    table = alpha_table(np.array([1 / 3] * 10 + [1.0] * 85 + [3.0] * 5))
    (caption, svg), *rest = plots_of("memorization", "alpha", table)
    assert not rest and "Below 1" in caption
    assert {"1/4 to 1/2", "0.1", "0.85", "0.05"} <= set(words(svg))
    assert len(bars(svg)) == 9


def result(metric, name, value, **changes):
    estimate = Estimate(name=name, value=value, low=0.0, high=1.0, n=10, subjects=10)
    return MetricResult(metric, (estimate,), **{"settings": {"a": (1, 2)}, "seed": 3, "engine_version": "1"} | changes)


def test_statistics_before_and_after_a_filter():
    before = {
        "membership_inference": result("membership_inference", "precision", 0.75).to_json(),
        "memorization": result("memorization", "exposed", 0.25).to_json(),
    }
    after = {
        "membership_inference": result("membership_inference", "precision", 0.5),
        "memorization": result("memorization", "exposed", math.nan),
        "dcr": result("dcr", "privacy_score", 0.0),
    }
    caption, svg = before_and_after(before, after)
    assert "0.5 is guessing" in caption and "Exposed" not in caption and "attack precision" in words(svg)
    assert [width for _, width in bars(svg)[:2]] == pytest.approx([0.75 * ROOM, 0.5 * ROOM], abs=0.1)
    assert len(bars(svg)) == 2 + 2  # the legend has two
    for nothing in ({}, None, "text", {"membership_inference": 1}, {"membership_inference": {}}):
        assert before_and_after(nothing, after)[1] == ""
    assert before_and_after(before, {})[1] == ""


@pytest.mark.parametrize("changes", [{"settings": {"a": (1, 3)}}, {"seed": 4}, {"engine_version": "2"}])
def test_what_was_measured_otherwise_is_not_set_beside(changes):
    then = {"memorization": result("memorization", "exposed", 0.25).to_json()}
    assert before_and_after(then, {"memorization": result("memorization", "exposed", 0.2)})[1]
    assert not before_and_after(then, {"memorization": result("memorization", "exposed", 0.2, **changes)})[1]


@pytest.mark.parametrize("rows", [[], [{"alpha": "1"}], [{"alpha": "1", "share": "a"}], [{"share": math.nan}]])
def test_nothing_to_draw(rows):
    assert plots_of("memorization", "alpha", rows)[0][1] == ""


def test_hostile_words_are_escaped_and_long_tables_cut():
    hostile = "<script>alert(1)</script>\u202e" + "W" * 500
    svg = shares_svg([{"x": hostile, "y": 5.0}] * 99, "x", {"y": hostile, "z": hostile})
    assert "<script" not in svg and "\u202e" not in svg
    assert len(bars(svg)) == 30 + 2 and max(width for _, width in bars(svg)) == pytest.approx(ROOM)
