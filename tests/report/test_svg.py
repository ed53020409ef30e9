"""Plots, parsed from their SVG: limits, curves, intervals, bars and the pie."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from urllib.parse import unquote

import numpy as np
import pytest

from privacy_assets.policy import WORST_FIRST, Limit, judge_limit
from privacy_assets.report.page import plots_of
from privacy_assets.report.svg import (
    COLORS,
    drawn_number,
    interval_markdown,
    interval_svg,
    intervals_svg,
    line_markdown,
    nice_ticks,
    pie_svg,
    points_svg,
    shares_svg,
)
from privacy_assets.report.words import limit_interval, limit_symbol, measured_text, number
from privacy_assets.stats.estimates import Estimate, MetricResult
from privacy_assets.studies.data_privacy.membership import LEVELS as GRADES
from privacy_assets.studies.data_privacy.membership import level_table
from tests.report.report_examples import (
    ALL,
    HOSTILE,
    SHARES_ROOM,
    bars,
    estimate,
    passing,
    svg_words,
)

# --- a limit
# --------------------------------------------------------------------------------------------------


def judged(found: Estimate, **limit: object):
    return judge_limit(Limit("m.f", **limit), MetricResult("m", (found,)))


NAUGHT = Estimate("f", 0.0, 0.0, 0.0, 5, 5)
STRANGE = (
    NAUGHT,
    Estimate("f", -1234567.8, -2e9, 3e12, 500, 500, null=math.nan),
    Estimate("f", 0.2, 0.1, math.inf, 5, 5, null=math.nan, direction="two_sided"),
)
OUTCOMES = [
    *(outcome for make in ALL for outcome in make().policy_verdict.outcomes),
    *(judged(found, at_most=limit) for found in STRANGE for limit in (0.0, 1e-9, 0.1)),
    judged(replace(NAUGHT, direction="two_sided"), at_most=0.0, bound="proven"),
]


def test_limits_are_drawn_small_well_formed_and_finite():
    for outcome in OUTCOMES:
        svg, markdown = interval_svg(outcome), interval_markdown(outcome)
        assert ET.fromstring(svg).tag.endswith("svg")
        drawn = re.sub("<title>.*?</title>", "", svg)
        assert len(svg) < 1000 and "nan" not in drawn and "inf" not in drawn
        alt, _, address = markdown[2:-1].partition("](data:image/svg+xml,")
        assert len(markdown) < 1000, "it fits next to other metadata"
        assert not set(alt) & set("[]<>\n") and not set(address) & set("[]()<> \n")
        assert ET.fromstring(unquote(address)).tag.endswith("svg")


def test_each_status_of_a_limit_has_its_color_and_its_shape():
    base = passing().policy_verdict.outcomes[0]
    texts = {status: interval_svg(replace(base, status=status)) for status in COLORS}
    for status, text in texts.items():
        assert [s for s, color in COLORS.items() if color in text] == [status]
    assert len({text.replace(COLORS[status], "") for status, text in texts.items()}) == 3


@pytest.mark.parametrize(
    ("direction", "value", "limit", "places"),
    [
        ("higher_is_riskier", 0.2, {"at_most": 0.5}, ["right"]),
        ("two_sided", 0.2, {"at_most": 0.5}, ["right"]),
        ("two_sided", -0.2, {"at_most": 0.5}, ["right"]),
        ("lower_is_riskier", 70.0, {"at_least": 60.0}, ["left"]),
    ],
)
def test_what_breaks_a_limit_is_shaded(direction, value, limit, places):
    root = ET.fromstring(interval_svg(judged(estimate("f", value, direction=direction), **limit)))
    at = float(root.find("{*}circle").get("cx"))
    sides = [(float(rect.get("x")), float(rect.get("width"))) for rect in root.findall("{*}rect")]
    assert [
        ("left" if x + wide < at else "right" if x > at else "over") for x, wide in sides
    ] == places


# --- curves and intervals
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [[0.0, 1.0], [0.0], [-3.0, -3.0], [1e-12, 2e-12], [-1e9, 1e9], [math.nan], [], [0.013, 0.087]],
)
def test_ticks_enclose_the_values(values):
    ticks = nice_ticks(values)
    finite = [v for v in values if math.isfinite(v)]
    assert 2 <= len(ticks) <= 8 and ticks == sorted(set(ticks))
    assert all(
        ticks[0] - 1e-9 * abs(ticks[0]) <= v <= ticks[-1] + 1e-9 * abs(ticks[-1]) for v in finite
    )


def test_logarithmic_places_keep_order_and_leave_out_what_has_no_logarithm():
    rows = [{"x": x, "y": 0.1} for x in (0.5, 0.0101, 0.0099, 0.0, -1.0, None)]
    svg = intervals_svg(rows, x="x", y="y", series=(), labels=("x", "y"), log=True)
    paths = ET.fromstring(svg).iter("path")
    at = [
        float(mark.get("d").split()[0][1:])
        for mark in paths
        if mark.get("class", "").startswith("mark")
    ]
    assert len(at) == 3 and at[0] - at[1] > 100 > at[1] - at[2] > 0
    assert {"0.01", "0.1", "0.5"} <= set(svg_words(svg))


def test_curves_are_drawn_whole_and_on_logarithmic_axes():
    roc = [
        {"fpr": 10.0**k, "all": min(1.0, 3 * 10.0**k), "worst": None if k < -2 else 0.9}
        for k in (-3, -2, -1, 0)
    ]
    (_, whole), (_, zoom) = plots_of("shadow_membership", "roc", roc)
    assert {"all records", "most vulnerable record", "guessing"} <= set(svg_words(whole)) & set(
        svg_words(zoom)
    )
    assert {"0.001", "0.01", "0.1", "1"} <= set(svg_words(zoom))
    lines = [line.get("points", "").split() for line in ET.fromstring(zoom).iter("polyline")]
    every, worst, guessing = (
        [tuple(map(float, point.split(","))) for point in line] for line in lines
    )
    assert len(every) == len(guessing) == 4 and len(worst) == 3
    steps = np.diff([x for x, _ in guessing])
    assert np.ptp(steps) < 0.2  # decades are equally wide
    assert all(
        below[1] > above[1]
        for below, above in zip(guessing, every, strict=True)
        if above[1] > every[-1][1]
    )


def test_intervals_stand_around_the_line_of_the_null():
    rows = [{"record": at, "role": role, "auc": auc, "low": auc - 0.1, "high": auc + 0.05}
            for at, role, auc in ((1, "train", 0.9), (2, "holdout", 0.6))]  # fmt: skip
    ((_, svg),) = plots_of("shadow_membership", "records", rows)
    assert {"train", "holdout", "1", "2"} <= set(svg_words(svg))
    (line,) = [path for path in ET.fromstring(svg).iter("path") if path.get("class") == "zero"]
    at_half = float(line.get("d").split()[1].partition("H")[0])
    ticks = [text for text in ET.fromstring(svg).iter("text") if text.get("text-anchor") == "end"]
    places = {float(text.text): float(text.get("y")) - 4 for text in ticks}
    assert abs(at_half - (places[0.4] + places[0.6]) / 2) < 0.2 and 0.0 not in places


# --- bars
# --------------------------------------------------------------------------------------------------


def test_bars_have_the_length_and_the_color_of_their_points():
    points = (100.0, None, 19.9, 60.0, math.nan, -5.0)
    svg = points_svg(
        [{"column": f"c{at}", "points": value} for at, value in enumerate(points)],
        "column",
        "points",
    )
    full = max(width for _, width in bars(svg))
    assert [kind for kind, _ in bars(svg)] == ["l4", "l4", "l1", "l0"]
    assert [width for _, width in bars(svg)] == pytest.approx(
        [0, 0.199 * full, 0.6 * full, full], abs=0.1
    )
    assert [word for word in svg_words(svg) if word.startswith("c")] == ["c5", "c2", "c3", "c0"]
    assert (
        len(bars(points_svg([{"c": HOSTILE, "p": float(at)} for at in range(99)], "c", "p"))) == 40
    )
    assert points_svg([{"c": "x", "p": None}, {"c": "y", "p": "80"}], "c", "p") == ""


def test_bars_are_as_long_as_their_shares():
    rows = [
        {"size": "1,000", "before": 0.75, "after": 0.5},
        {"size": "4,000", "before": 1.0, "after": math.nan},
    ]
    svg = shares_svg(rows, "size", {"before": "before", "after": "after the filter"})
    found = bars(svg)
    # two of the legend
    assert [kind for kind, _ in found] == ["mark s0", "mark s1", "mark s0", "mark s0", "mark s1"]
    lengths = [0.75 * SHARES_ROOM, 0.5 * SHARES_ROOM, SHARES_ROOM]
    assert [width for _, width in found[:3]] == pytest.approx(lengths, abs=0.1)
    assert {"0.75", "0.5", "1", "1,000", "before", "after the filter"} <= set(svg_words(svg))
    tenths = shares_svg(
        [{"x": str(p), "y": p} for p in (1.0, 0.1, 0.01, 0.001, 0.0)], "x", {"y": "share"}, log=True
    )
    lengths = [SHARES_ROOM * part for part in (1, 0.8, 0.6, 0.4, 0)]
    assert [width for _, width in bars(tenths)] == pytest.approx(lengths, abs=0.1)
    long = shares_svg([{"x": HOSTILE, "y": 5.0}] * 99, "x", {"y": HOSTILE, "z": HOSTILE})
    assert len(bars(long)) == 30 + 2 and max(width for _, width in bars(long)) == SHARES_ROOM


# --- the pie
# --------------------------------------------------------------------------------------------------


def slices(svg: str) -> list[tuple[str | None, float]]:
    """Class and share of each slice, from the angles of its path."""
    found = []
    for path in ET.fromstring(svg).iter("path"):
        arc = re.match(r"M112 112L(\S+) (\S+)A84 84 0 ([01]) 1 (\S+) (\S+)z", path.get("d"))
        x0, y0, large, x1, y1 = map(float, arc.groups())
        start, end = (math.atan2(x - 112, 112 - y) / math.tau % 1 for x, y in ((x0, y0), (x1, y1)))
        assert (large == 1) == ((end - start) % 1 > 0.5)
        found.append((path.get("class"), (end - start) % 1))
    return found


def test_the_shares_of_the_engine_are_drawn_best_level_first():
    svg = pie_svg(level_table(np.repeat([*GRADES, "Unavailable"], [4, 5, 10, 20, 55, 6])))
    assert [level for level, _ in slices(svg)] == ["l0", "l1", "l2", "l3", "l4", "l5"]
    assert [share for _, share in slices(svg)] == pytest.approx(
        [0.55, 0.2, 0.1, 0.05, 0.04, 0.06], abs=0.002
    )
    lines = [
        "Excellent: 55 attacks, 55 %",
        "Very Good: 20 attacks, 20 %",
        "Good: 10 attacks, 10 %",
        "Moderate: 5 attacks, 5 %",
        "Poor: 4 attacks, 4 %",
        "Unavailable: 6 attacks, 6 %",
    ]
    assert [word for word in svg_words(svg) if len(word) > 1] == lines
    assert ET.fromstring(svg).find("desc").text == "; ".join(lines)
    assert all(svg_words(svg).count(number) == 2 for number in "123456"), (
        "slice and legend bear the same number"
    )


def test_a_single_level_is_a_disc_and_small_slices_bear_no_number():
    whole = pie_svg(level_table(np.full(300, "Poor")))
    assert [circle.get("class") for circle in ET.fromstring(whole).iter("circle")] == [
        "l4"
    ] and slices(whole) == []
    assert [word.partition(": ")[2] for word in svg_words(whole) if ":" in word].count(
        "0 attacks, 0 %"
    ) == 5
    rows = [
        {"level": "Poor", "attacks": 1, "share": 0.005},
        {"level": "Good", "attacks": 199, "share": 0.995},
    ]
    assert (svg_words(pie_svg(rows)).count("1"), svg_words(pie_svg(rows)).count("2")) == (2, 1)
    assert "Poor: 1 attack, 0.5 %" in svg_words(pie_svg(rows))


def test_shares_are_scaled_and_what_has_none_is_left_out():
    rows = [
        {"level": level, "share": share}
        for level, share in zip(
            ("poor", "good", "x", "y", "z", "w"), (3, 1, math.nan, -1.0, "1", math.inf), strict=True
        )
    ]
    assert [share for _, share in slices(pie_svg([*rows, {}]))] == pytest.approx(
        [0.25, 0.75], abs=0.002
    )
    assert [w for w in svg_words(pie_svg(rows)) if ":" in w] == ["good: 25 %", "poor: 75 %"]
    assert pie_svg([]) == pie_svg([{"level": "Poor", "attacks": 0, "share": 0.0}]) == ""


def test_a_line_is_an_image_within_its_frame_or_nothing():
    image = line_markdown("loss", [(0, 3.0), (1, 2.0), (2, math.nan), (3, 1.0)])
    assert image.startswith("![loss](data:image/svg+xml,")
    root = ET.fromstring(unquote(image.partition(",")[2][:-1]))
    assert root.find("{*}polyline").get("points") == "5,5 82,30 235,55"
    assert line_markdown("loss", [(0, 3.0), (1, math.nan)]) == ""


def test_two_lines_have_the_same_axes():
    image = line_markdown("judged", [(0, 0.0), (1, 1.0)], [(0, math.nan), (0, 2.0), (1, 2.0)])
    first, second = ET.fromstring(unquote(image.partition(",")[2][:-1])).findall("{*}polyline")
    assert (first.get("points"), second.get("points")) == ("5,55 235,30", "5,5 235,5")
    assert second.get("stroke-dasharray") and not first.get("stroke-dasharray")


def test_the_number_that_is_drawn_is_judged_and_a_pass_never_lies_in_the_shade() -> None:
    rng = np.random.default_rng(0)
    outcomes = [outcome for make in ALL for outcome in make().policy_verdict.outcomes]
    for direction in ("higher_is_riskier", "two_sided", "lower_is_riskier"):
        for bound in ("conservative", "proven", "value"):
            for _ in range(40):
                low, value, high = sorted(rng.normal(0.5, 0.3, 3))
                found = Estimate(
                    "f", value, low, high, 90, 90, null=rng.choice([0.0, 0.5]), direction=direction
                )
                side = "at_least" if direction == "lower_is_riskier" else "at_most"
                limit = Limit("m.f", **{side: float(rng.uniform(0.05, 0.9))}, bound=bound)
                outcomes.append(
                    judge_limit(limit, MetricResult("m", (found,)), int(rng.integers(1, 4)))
                )
    assert {outcome.status for outcome in outcomes} == set(WORST_FIRST)
    for outcome in outcomes:
        if not math.isfinite(outcome.compared):
            continue
        root = ET.fromstring(interval_svg(outcome))
        assert number(drawn_number(outcome)) in [text.text for text in root.findall("{*}text")]
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
        assert (
            inside == outcome.limit.exceeded_by(outcome.compared)
            or abs(at - start) < 0.2
            or abs(at - end) < 0.2
        )
        assert not (outcome.passed and inside)


def test_values_are_told_on_hover_without_a_script() -> None:
    page = passing().to_html()
    outcome = passing().policy_verdict.outcomes[0]
    measured = measured_text(outcome)
    words = f"pass: {measured}, limit {limit_symbol(outcome.limit)}; {limit_interval(outcome)}"
    assert f"<title>{words}</title>" in page
    assert (
        "<title>0.012 [" in page
        or "<title>0.02: " in page
        or re.search(r"<title>[\d.]+: [\d.]+</title>", page)
    )
    assert page.count("<title>") > 20 and "<script" not in page
