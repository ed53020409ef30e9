"""The page of a study (leaky or over-fit evaluation): every figure over the leak, as in Palacios' figures 3 and 4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privacy_assets.engine.controls import Point, fits
from privacy_assets.engine.registry import METRICS
from privacy_assets.report.html import environment
from privacy_assets.report.plots import COLOURS, SERIES, intervals_svg


def study_page(title: str, what: str, axis: str, points: Sequence[Point]) -> str:
    """A self-contained page with a plot and the lines through it for every figure that was measured."""
    from markupsafe import Markup

    lines = fits(points)
    figures = [
        {
            "name": name,
            "summary": _summary(name),
            "plots": [Markup(svg) for svg in study_plots(points, name, axis)],  # noqa: S704 (our own drawing, escaped)
            "fits": [line for line in lines if line.figure == name],
        }
        for name in dict.fromkeys(name for point in points for name in point.figures)
    ]
    shown = [figure for figure in figures if figure["plots"]]
    return environment().get_template("study.html.j2").render(title=title, what=what, figures=shown, colours=COLOURS)


def study_plots(points: Sequence[Point], figure: str, axis: str) -> Iterator[str]:
    """SVGs of one figure with its intervals over the axis, as many series in each as have a colour of their own."""
    names = list(dict.fromkeys(point.series for point in points))
    for first in range(0, len(names), SERIES):
        chosen = names[first : first + SERIES]
        rows = [_row(point, figure) for point in points if point.series in chosen and figure in point.figures]
        svg = intervals_svg(rows, x="x", y="value", series=("series",), labels=(axis, figure))
        if svg:
            yield svg


def _row(point: Point, figure: str) -> dict[str, object]:
    value, low, high = point.figures[figure]
    return {"series": point.series, "x": round(point.x, 3), "value": value, "low": low, "high": high}


def _summary(name: str) -> str:
    metric, _, figure = name.partition(".")
    specs = {spec.name: spec.meaning for spec in METRICS[metric].figures} if metric in METRICS else {}
    return specs.get(figure, "")
