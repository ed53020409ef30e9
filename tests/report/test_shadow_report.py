"""Drawings of shadow membership: intervals around guessing, and curves down to rare false alarms."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

from privacy_assets.report import plots
from privacy_assets.report.drawings import plots_of

ROC = [{"fpr": 10.0**k, "all": min(1.0, 3 * 10.0**k), "worst": None if k < -2 else 0.9} for k in (-3, -2, -1, 0)]


def words(svg: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter("text")]


def paths(svg: str) -> list[list[tuple[float, float]]]:
    lines = [line.get("points", "") for line in ET.fromstring(svg).iter("polyline")]
    return [[tuple(map(float, point.split(","))) for point in line.split()] for line in lines]


def test_curves_are_drawn_whole_and_on_logarithmic_axes():
    (_, whole), (_, zoom) = plots_of("shadow_membership", "roc", ROC)
    assert {"all records", "the record told most easily", "guessing"} <= set(words(whole)) & set(words(zoom))
    assert {"0.001", "0.01", "0.1", "1"} <= set(words(zoom))
    every, worst, guessing = paths(zoom)
    assert len(every) == len(guessing) == 4 and len(worst) == 3
    steps = [b[0] - a[0] for a, b in zip(guessing, guessing[1:], strict=False)]
    assert max(steps) - min(steps) < 0.2  # decades are equally wide
    assert all(below[1] > above[1] for below, above in zip(guessing, every, strict=True) if above[1] > every[-1][1])


def test_nothing_is_drawn_of_nothing():
    for rows in ([], [{"fpr": 0.0, "all": 0.0, "worst": 0.0}], [{"fpr": 0.1, "all": None, "worst": math.nan}]):
        assert plots.lines_svg({"a": [(r["fpr"], r["all"] or math.nan) for r in rows][:0]}, ("x", "y"), log=True) == ""
        for _, svg in plots_of("shadow_membership", "roc", rows):
            assert svg == "" or ET.fromstring(svg) is not None


def test_records_stand_around_the_line_of_guessing():
    rows = [
        {"record": 1, "role": "train", "row": 4, "auc": 0.9, "low": 0.8, "high": 0.95},
        {"record": 2, "role": "holdout", "row": 0, "auc": 0.6, "low": 0.5, "high": 0.7},
    ]
    ((_, svg),) = plots_of("shadow_membership", "records", rows)
    root = ET.fromstring(svg)
    assert {"train", "holdout", "1", "2"} <= set(words(svg))
    (line,) = [path for path in root.iter("path") if path.get("class") == "zero"]
    at_half = float(line.get("d").split()[1].partition("H")[0])
    places = {
        float(text.text): float(text.get("y")) - 4 for text in root.iter("text") if text.get("text-anchor") == "end"
    }
    assert abs(at_half - (places[0.4] + places[0.6]) / 2) < 0.2 and 0.0 not in places
