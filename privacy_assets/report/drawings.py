"""The plots of a result, drawn as its metric declares them."""

from __future__ import annotations

from privacy_assets.metrics.declarations import Curves, Grades, Intervals, Levels, Plot, Shares
from privacy_assets.metrics.registry import METRICS
from privacy_assets.report.bars import bars_svg
from privacy_assets.report.memorization_drawings import shares_svg
from privacy_assets.report.pie import pie_svg
from privacy_assets.report.plots import Rows, curves_svg, intervals_svg
from privacy_assets.report.text import clean

Drawn = tuple[str, str]  # caption, SVG


def plots_of(metric: str, table: str, rows: Rows) -> list[Drawn]:
    """Caption and SVG of each plot of a table, the SVG empty where nothing can be drawn; none for unknown tables."""
    plots = [plot for plot in METRICS[metric].plots if plot.table == table] if metric in METRICS else []
    return [drawn for plot in plots for drawn in _drawn(plot, rows)]


def _drawn(plot: Plot, rows: Rows) -> list[Drawn]:
    column = plot.by
    if column is None:
        return [(plot.caption, _svg(plot, rows))]
    values = dict.fromkeys(row.get(column) for row in rows)
    chosen = {value: [row for row in rows if row.get(column) == value] for value in values}
    return [(plot.caption.format(clean(value, 40)), _svg(plot, some)) for value, some in chosen.items()]


def _svg(plot: Plot, rows: Rows) -> str:
    match plot:
        case Intervals(x=x, y=y, series=series, labels=labels, log=log, null=null):
            return intervals_svg(rows, x=x, y=y, series=series, labels=labels, log=log, null=null)
        case Curves(curves=curves, labels=labels, log=log):
            return curves_svg(rows, curves, labels, log=log)
        case Grades(label=label, points=points):
            return bars_svg(rows, label, points)
        case Levels():
            return pie_svg(rows)
        case Shares(label=label, series=words, log=log):
            return shares_svg(rows, label, words, log=log)
    raise TypeError(f"nothing draws a {type(plot).__name__}.")
