"""The plots of a result, drawn as its metric declares them: intervals and curves, bars of points or shares, a pie.

All keep the rules of :mod:`privacy_assets.report.plots`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from xml.sax.saxutils import escape

from privacy_assets.metrics.declarations import Curves, Grades, Intervals, Levels, Plot, Shares
from privacy_assets.metrics.registry import METRICS
from privacy_assets.report.plots import WIDTH, Rows, as_number, canvas, curves_svg, intervals_svg, tenth, text_at
from privacy_assets.report.text import clean, number

Drawn = tuple[str, str]  # caption, SVG

LEVELS = ("excellent", "very good", "good", "moderate", "poor")
_LAST = (*LEVELS, "unavailable")
MOST_BARS, MOST_GROUPS = 40, 30
_LEFT = 170  # where bars begin
_ROOM_OF_POINTS, _ROOM_OF_SHARES = WIDTH - _LEFT - 60, WIDTH - _LEFT - 66  # numbers stand beside them
_POINTS_STEP, _BAR, _GAP = 20, 14, 8
_SMALLEST_SHARE = 1e-5  # a share below it has no length on a logarithmic axis
_X, _Y, _R = 112, 112, 84  # the pie's centre and radius
_PIE_LEGEND, _PIE_STEP = 240, 27
_SMALLEST_MARKED = 0.02  # smaller slices have no room for their number


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
            return points_svg(rows, label, points)
        case Levels():
            return pie_svg(rows)
        case Shares(label=label, series=words, log=log):
            return shares_svg(rows, label, words, log=log)
    raise TypeError(f"nothing draws a {type(plot).__name__}.")


def points_svg(rows: Rows, label: str, points: str) -> str:
    """Draw one bar a row, from 0 to 100 and coloured by grade, the fewest points first.

    Rows without a number, and all beyond the first 40, are left out.
    """
    found = [(clean(row.get(label), 24), min(max(as_number(row.get(points)), 0.0), 100.0)) for row in rows]
    kept = sorted((pair for pair in found if math.isfinite(pair[1])), key=lambda pair: pair[1])[:MOST_BARS]
    if not kept:
        return ""
    bottom = 10 + _POINTS_STEP * len(kept)
    parts = []
    for at, (name, value) in enumerate(kept):
        top = 8 + _POINTS_STEP * at
        level, width = max(len(LEVELS) - 1 - int(value // 20), 0), _ROOM_OF_POINTS * value / 100
        parts.append(
            f'<rect class="l{level}" x="{_LEFT}" y="{top}" width="{width:.1f}" height="14">{_told(name, value)}</rect>'
        )
        parts.append(text_at(_LEFT - 8, top + 11, name, anchor="end"))
        parts.append(text_at(_LEFT + _ROOM_OF_POINTS + 8, top + 11, number(value), anchor="start"))
    marks = {number(mark): _LEFT + _ROOM_OF_POINTS * mark / 100 for mark in (0, 20, 40, 60, 80, 100)}
    return canvas(_over_grid(parts, marks, bottom), bottom + 22, f"{points} by {label}")


def shares_svg(rows: Rows, label: str, series: Mapping[str, str], *, log: bool = False) -> str:
    """Draw one bar per row and entry of ``series`` (column -> words), from 0 to 1, in the order given.

    Numbers are cut to this range, cells without one get no bar, and rows beyond the first 30 are left out. With ``log``
    the axis is logarithmic, from 0.00001. The number stands beside each bar.
    """
    kept = [row for row in rows if any(math.isfinite(as_number(row.get(column))) for column in series)][:MOST_GROUPS]
    if not kept:
        return ""
    step = _BAR * len(series) + _GAP
    bottom = 10 + step * len(kept)
    parts = []
    for at, row in enumerate(kept):
        top = 10 + step * at
        words = clean(row.get(label), 24)
        parts.append(text_at(_LEFT - 8, top + _BAR * len(series) / 2 + 4, words, anchor="end"))
        for place, column in enumerate(series):
            parts.append(_share(as_number(row.get(column)), top + _BAR * place, place, log, words))
    marks = (1e-4, 1e-3, 1e-2, 1e-1, 1.0) if log else (0.0, 0.25, 0.5, 0.75, 1.0)
    parts = _over_grid(parts, {number(mark): _across(mark, log) for mark in marks}, bottom)
    height = bottom + 22
    if len(series) > 1:
        parts += [_series_word(place, words, height) for place, words in enumerate(series.values())]
        height += 22
    return canvas(parts, height, clean(f"{', '.join(series.values())} by {label}", 120))


def _over_grid(bars: list[str], marks: Mapping[str, float], bottom: int) -> list[str]:
    """The bars between the lines of a grid and their words, by word the place across."""
    lines = "".join(f"M{tenth(x)} 6V{bottom}" for x in marks.values())
    words = [text_at(x, bottom + 15, word) for word, x in marks.items()]
    return [f'<path class="grid" d="{lines}"/>', *bars, *words]


def _across(value: float, log: bool) -> float:
    share = min(max(value, 0.0), 1.0)
    if log:
        share = 1 - math.log(max(share, _SMALLEST_SHARE)) / math.log(_SMALLEST_SHARE)
    return _LEFT + _ROOM_OF_SHARES * share


def _share(value: float, top: float, place: int, log: bool, name: str) -> str:
    if not math.isfinite(value):
        return ""
    end = _across(value, log)
    size = f'x="{_LEFT}" y="{tenth(top)}" width="{tenth(end - _LEFT)}" height="{_BAR - 3}"'
    return f'<rect class="mark s{place % 4}" {size}>{_told(name, value)}</rect>' + text_at(
        end + 6, top + 9, number(value), anchor="start"
    )


def _told(name: str, value: float) -> str:
    return f"<title>{escape(name)}: {number(value)}</title>"


def _series_word(place: int, words: str, height: float) -> str:
    x = _LEFT + 190 * place
    box = f'<rect class="mark s{place % 4}" x="{x}" y="{tenth(height)}" width="14" height="11"/>'
    return box + text_at(x + 20, height + 10, clean(words, 30), anchor="start")


def pie_svg(rows: Rows) -> str:
    """Draw the levels that Gretel's attacks reached, the best first, as shares of a pie scaled to sum to one.

    ``rows`` have the columns "level", "attacks" and "share". Each slice and its line of the legend bear the same
    number, so that nothing hangs on colour; the legend gives range, attacks and share of every level, also of those
    that no attack reached. Rows without a share are left out.
    """
    kept = [(clean(row.get("level"), 30), as_number(row.get("attacks")), as_number(row.get("share"))) for row in rows]
    kept = sorted((row for row in kept if 0 <= row[2] < math.inf), key=lambda row: _class(row[0], len(_LAST)))
    total = sum(share for *_, share in kept)
    if total <= 0:
        return ""
    parts, lines, turn = [], [], 0.0
    for at, (name, attacks, share) in enumerate(kept):
        part, level, y = share / total, f"l{_class(name, at % len(_LAST))}", 32 + _PIE_STEP * at
        words = f"{name}{_range(name)}: {_attacks(attacks)}{100 * part:.3g} %"
        parts.append(f"<g><title>{escape(words)}</title>{_slice(level, str(at + 1), turn, turn + part)}</g>")
        turn += part
        lines.append(words)
        parts.append(f'<rect class="{level}" x="{_PIE_LEGEND}" y="{y - 11}" width="14" height="14"/>')
        parts.append(text_at(_PIE_LEGEND + 30, y, str(at + 1)) + text_at(_PIE_LEGEND + 44, y, words, anchor="start"))
    height = max(2 * _Y, 32 + _PIE_STEP * len(kept))
    return canvas(parts, height, "Attacks by level of protection", "; ".join(lines))


def _slice(level: str, mark: str, start: float, end: float) -> str:
    """One slice from ``start`` to ``end`` (shares of a turn, clockwise from the top) and its number outside."""
    if end == start:
        return ""
    (x0, y0), (x1, y1) = _rim(start, _R), _rim(end, _R)
    if end - start > 1 - 1e-9:
        drawn = f'<circle class="{level}" cx="{_X}" cy="{_Y}" r="{_R}"/>'
    else:
        arc = f"A{_R} {_R} 0 {int(end - start > 0.5)} 1 {tenth(x1)} {tenth(y1)}"
        drawn = f'<path class="{level}" d="M{_X} {_Y}L{tenth(x0)} {tenth(y0)}{arc}z"/>'
    x, y = _rim((start + end) / 2, _R + 13)
    return drawn + (text_at(x, y + 4, mark) if end - start >= _SMALLEST_MARKED else "")


def _rim(turn: float, radius: float) -> tuple[float, float]:
    return _X + radius * math.sin(math.tau * turn), _Y - radius * math.cos(math.tau * turn)


def _class(name: str, other: int) -> int:
    known = name.lower().replace("_", " ")
    return _LAST.index(known) if known in _LAST else other


def _range(name: str) -> str:
    at = _class(name, len(LEVELS))
    return f" ({80 - 20 * at} to {100 - 20 * at})" if at < len(LEVELS) else ""


def _attacks(count: float) -> str:
    return "" if math.isnan(count) else f"{number(int(count))} attack{'' if count == 1 else 's'}, "
