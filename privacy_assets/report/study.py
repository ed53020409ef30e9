"""The page of a study (leaky or over-fit evaluation): every statistic over the leak, as in Palacios' figures 3 and
4.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from privacy_assets.calibration import Fit, Point, fits
from privacy_assets.metrics.registry import METRICS
from privacy_assets.report.html import environment
from privacy_assets.report.plots import COLOURS, SERIES, intervals_svg
from privacy_assets.stats.estimates import plain
from privacy_assets.storage.files import put_atomic

POINTS, PAGE, RESULTS = "points.jsonl", "calibration.html", "calibration.json"
LEAK, RATIO = "fraction of the rows that are training rows", "loss on unseen people over the best, L/L*"
_LEAKY = (
    "Each table is made of training rows, with or without noise, and of rows of other people. A statistic that is of "
    "use on these data rises with the fraction of training rows. Bars are the intervals of the statistics."
)
_OVERFITTED = (
    "Each table is drawn from a generator that was over-fitted on purpose. A statistic that is of use on these data "
    "rises with the loss on unseen people. Bars are the intervals of the statistics."
)


def write_study(folder: Path, title: str, points: Sequence[Point], *, axis: str = LEAK) -> list[Fit]:
    """Place the page and the JSON of a study in ``folder``, for the own user only; returns the lines.

    ``axis`` says which study it is: LEAK or RATIO.
    """
    lines = fits(points)
    page = study_page(title, _LEAKY if axis == LEAK else _OVERFITTED, axis, points)
    content = {"points": [point.to_json() for point in points], "fits": [plain(asdict(line)) for line in lines]}
    put_atomic(folder / PAGE, page.encode())
    put_atomic(folder / RESULTS, json.dumps(content, indent=2, allow_nan=False).encode())
    return lines


def study_page(title: str, what: str, axis: str, points: Sequence[Point]) -> str:
    """A self-contained page with a plot and the lines through it for every statistic that was measured."""
    from markupsafe import Markup

    lines = fits(points)
    estimates = [
        {
            "name": name,
            "summary": _summary(name),
            "plots": [Markup(svg) for svg in study_plots(points, name, axis)],  # noqa: S704 (our own drawing, escaped)
            "fits": [line for line in lines if line.statistic == name],
        }
        for name in dict.fromkeys(name for point in points for name in point.estimates)
    ]
    shown = [estimate for estimate in estimates if estimate["plots"]]
    return environment().get_template("study.html.j2").render(title=title, what=what, estimates=shown, colours=COLOURS)


def study_plots(points: Sequence[Point], statistic: str, axis: str) -> Iterator[str]:
    """SVGs of one statistic with its intervals over the axis, as many series in each as have a colour of their own."""
    names = list(dict.fromkeys(point.series for point in points))
    for first in range(0, len(names), SERIES):
        chosen = names[first : first + SERIES]
        rows = [_row(point, statistic) for point in points if point.series in chosen and statistic in point.estimates]
        svg = intervals_svg(rows, x="x", y="value", series=("series",), labels=(axis, statistic))
        if svg:
            yield svg


def _row(point: Point, statistic: str) -> dict[str, object]:
    value, low, high = point.estimates[statistic]
    return {"series": point.series, "x": round(point.x, 3), "value": value, "low": low, "high": high}


def _summary(name: str) -> str:
    metric, _, statistic = name.partition(".")
    specs = {spec.name: spec.meaning for spec in METRICS[metric].statistics} if metric in METRICS else {}
    return specs.get(statistic, "")
