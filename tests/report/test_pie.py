"""The pie of attack levels, read back from its SVG."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from privacy_assets.metrics.membership_inference.gretel import level_table
from privacy_assets.report.pie import pie_svg

CENTRE, RADIUS = 112, 84


def drawn(rows):
    return ET.fromstring(pie_svg(rows))


def slices(root):
    """Class and share of each slice, from the angles of its path."""
    found = []
    for path in root.iter("path"):
        x0, y0, x1, y1 = (
            float(x) for x in re.match(r"M112 112L(\S+) (\S+)A84 84 0 [01] 1 (\S+) (\S+)z", path.get("d")).groups()
        )
        start, end = (math.atan2(x - CENTRE, CENTRE - y) / math.tau % 1 for x, y in ((x0, y0), (x1, y1)))
        large = re.search(r"A84 84 0 ([01])", path.get("d")).group(1) == "1"
        share = (end - start) % 1
        assert large == (share > 0.5)
        found.append((path.get("class"), share))
    return found


def texts(root):
    return [text.text for text in root.iter("text")]


def test_the_shares_of_the_engine_are_drawn_best_level_first():
    points = np.array([90.0] * 55 + [70.0] * 20 + [50.0] * 10 + [30.0] * 5 + [10.0] * 4 + [math.nan] * 6)
    root = drawn(level_table(points))
    shares = slices(root)
    assert [level for level, _ in shares] == ["l0", "l1", "l2", "l3", "l4", "l5"]
    assert [share for _, share in shares] == pytest.approx([0.55, 0.2, 0.1, 0.05, 0.04, 0.06], abs=0.002)
    lines = [
        "Excellent (80 to 100): 55 attacks, 55 %",
        "Very Good (60 to 80): 20 attacks, 20 %",
        "Good (40 to 60): 10 attacks, 10 %",
        "Moderate (20 to 40): 5 attacks, 5 %",
        "Poor (0 to 20): 4 attacks, 4 %",
        "Unavailable: 6 attacks, 6 %",
    ]
    assert [text for text in texts(root) if len(text) > 1] == lines
    assert root.find("desc").text == "; ".join(lines)
    assert root.find("title").text
    assert root.get("role") == "img"
    for number in "123456":  # nothing hangs on colour: slice and legend bear the same number
        assert texts(root).count(number) == 2


def test_a_single_level_is_a_disc_and_the_others_stay_in_the_legend():
    root = drawn(level_table(np.full(300, 10.0)))
    assert [circle.get("class") for circle in root.iter("circle")] == ["l4"]
    assert slices(root) == []
    assert [text.partition(":")[2] for text in texts(root) if ":" in text] == [
        " 0 attacks, 0 %", " 0 attacks, 0 %", " 0 attacks, 0 %", " 0 attacks, 0 %", " 300 attacks, 100 %",
        " 0 attacks, 0 %",
    ]  # fmt: skip


def test_small_slices_bear_no_number():
    root = drawn([{"level": "Poor", "attacks": 1, "share": 0.005}, {"level": "Good", "attacks": 199, "share": 0.995}])
    assert texts(root).count("1") == 2
    assert texts(root).count("2") == 1
    assert "Poor (0 to 20): 1 attack, 0.5 %" in texts(root)


def test_shares_are_scaled_and_what_has_none_is_left_out():
    rows = [{"level": "poor", "share": 3}, {"level": "good", "share": 1}, {"level": "x", "share": math.nan}, {}]
    root = drawn(
        [*rows, {"level": "y", "share": -1.0}, {"level": "z", "share": "1"}, {"level": "w", "share": math.inf}]
    )
    assert [share for _, share in slices(root)] == pytest.approx([0.25, 0.75], abs=0.002)
    assert [text for text in texts(root) if ":" in text] == ["good (40 to 60): 25 %", "poor (0 to 20): 75 %"]


@pytest.mark.parametrize("rows", [[], [{}], [{"level": "Poor", "attacks": 0, "share": 0.0}]])
def test_nothing_to_draw_draws_nothing(rows):
    assert pie_svg(rows) == ""
