"""All SVG: limits, curves, intervals, bars and pies. Deterministic, without scripts or fonts.

Functions take aggregates and return well-formed XML, or an empty string if there is no data. Text
is cleaned and escaped. Plots use the page's classes for colors (``s0`` .. ``s3`` for series, ``l0``
to ``l5`` for levels). Series also differ in shape and dash.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

from privacy_assets.metrics.base import (
    CurvePlot,
    GradePlot,
    IntervalPlot,
    LevelPlot,
    Plot,
    SharePlot,
)
from privacy_assets.policy import LimitOutcome
from privacy_assets.report.words import clean, limit_interval, limit_symbol, measured_text, number

Rows = Sequence[Mapping[str, Any]]
Scale = Callable[[float], float]

XMLNS = "http://www.w3.org/2000/svg"
COLOURS = {"pass": "#0072b2", "fail": "#d55e00", "undecided": "#8a6d00"}
SERIES = 4
WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 14, 42


def interval_svg(
    outcome: LimitOutcome,
    width: int = 320,
    height: int = 48,
    ink: str = "currentColor",
    *,
    hover: bool = True,
) -> str:
    """Draw a limit, with a mark for the evaluated number and a shaded area beyond the limit.

    A filled circle passes, a diamond fails, a ring is undecided. The interval is a thin line, the
    value a tick on it, the null a dashed line. Two-sided statistics are drawn as distances from the
    null.

    Args:
        outcome: Limit and estimate.
        width: Pixels.
        height: Pixels.
        ink: Color of axis and text. Images inherit no color and need a fixed one.
        hover: Whether the drawing has a tooltip.
    """
    limit, middle, bound = outcome.limit, height / 2, outcome.limit.value
    null, low, value, high = _along(outcome)
    x = _linear([bound, null, low, value, high, drawn_number(outcome)], 12, width - 12)
    start, end = (0.0, x(bound)) if limit.at_least is not None else (x(bound), float(width))
    parts = [
        f'<svg xmlns="{XMLNS}" viewBox="0 0 {width} {height}" width="{width}"'
        ' font-family="sans-serif" font-size="10" '
        f'text-anchor="middle" fill="{ink}">',
        f"<title>{escape(limit_words(outcome))}</title>" if hover else "",
        f'<rect x="{tenth(start)}" y="{tenth(middle - 9)}" width="{tenth(end - start)}"'
        ' height="18" opacity=".15"/>',
        f'<path d="M0 {tenth(middle)}H{width}M{tenth(x(bound))} {tenth(middle - 11)}v22"'
        f' stroke="{ink}"/>',
    ]
    if math.isfinite(null):
        parts.append(
            f'<path d="M{tenth(x(null))} {tenth(middle - 11)}v22" stroke="{ink}"'
            ' stroke-dasharray="2"/>'
        )
    words = f"limit {number(bound)}"
    at = tenth(_inside(x(bound), width, 4 + 2.7 * len(words)))
    label = f'<text x="{at}" y="{tenth(height - 2)}">{words}</text>'
    return "".join([*parts, _mark(outcome, (low, value, high), x, middle, width), label, "</svg>"])


def limit_words(outcome: LimitOutcome) -> str:
    """Describe a limit in one line: verdict, number compared with the limit, value and interval."""
    held = f"{measured_text(outcome)}, limit {limit_symbol(outcome.limit)}"
    return f"{outcome.status}: {held}; {limit_interval(outcome)}"


def interval_markdown(outcome: LimitOutcome) -> str:
    """Return :func:`interval_svg` as a Markdown image (data URI) of under 1,000 characters.

    Dagster drops raw SVG.
    """
    alt = limit_words(outcome).replace("[", "(").replace("]", ")")
    return _markdown(alt, interval_svg(outcome, ink="gray", hover=False))


def line_markdown(
    alt: str, points: Sequence[tuple[float, float]], dashed: Sequence[tuple[float, float]] = ()
) -> str:
    """Return a line plot of ``points`` (x, y) as a Markdown image; empty for fewer than two finite
    points.

    ``dashed`` are the points of a second line on the same axes, for example a limit.
    """
    finite, second = (
        [(x, y) for x, y in line if math.isfinite(x) and math.isfinite(y)]
        for line in (points, dashed)
    )
    if len(finite) < 2:
        return ""
    xs, ys = zip(*finite, *second, strict=True)
    x, up = _linear(xs, 5, 235, pad=0), _linear(ys, 55, 5, pad=0)

    def line(these: Sequence[tuple[float, float]], style: str) -> str:
        path = " ".join(f"{x(a):.0f},{up(b):.0f}" for a, b in these)
        return f'<polyline fill="none" {style} points="{path}"/>' if these else ""

    lines = line(finite, 'stroke="steelblue" stroke-width="2"') + line(
        second, 'stroke="gray" stroke-dasharray="4"'
    )
    return _markdown(alt, f'<svg xmlns="{XMLNS}" width="240" height="60">{lines}</svg>')


def _markdown(alt: str, svg: str) -> str:
    address = quote(svg.replace('"', "'"), safe="=/:;,.'")
    return f"![{alt}](data:image/svg+xml,{address})"


def _along(outcome: LimitOutcome) -> tuple[float, float, float, float]:
    """Return null, low, value and high as compared with the limit, at the confidence level of the
    limit.

    For two-sided statistics they are distances from the null.
    """
    estimate = outcome.estimate
    if estimate is None or outcome.interval is None:
        return (math.nan,) * 4
    null, value, ends = estimate.null, estimate.value, sorted(outcome.interval[:2])
    if estimate.direction != "two_sided":
        return null, ends[0], value, ends[1]
    side = 1 if sum(ends) >= 2 * null else -1
    low, high = sorted(side * (end - null) for end in ends)
    return 0.0, low, side * (value - null), high


def drawn_number(outcome: LimitOutcome) -> float:
    """Return the number compared with the limit. A negative distance of a two-sided statistic is
    drawn as 0.

    Args:
        outcome: Limit and estimate.
    """
    if outcome.estimate is not None and outcome.estimate.direction == "two_sided":
        return max(outcome.measured, 0.0) if math.isfinite(outcome.measured) else outcome.measured
    return outcome.measured


def legend() -> list[tuple[str, str]]:
    """Return SVG and meaning of each symbol of :func:`interval_svg`."""
    start = f'<svg xmlns="{XMLNS}" viewBox="0 0 24 18" width="24" height="18">'
    shapes = {
        "pass": f'<circle cx="12" cy="9" r="5" fill="{COLOURS["pass"]}"/>',
        "fail": f'<path d="M12 2l7 7-7 7-7-7z" fill="{COLOURS["fail"]}"/>',
        "undecided": f'<circle cx="12" cy="9" r="5" fill="none" stroke="{COLOURS["undecided"]}"'
        ' stroke-width="3"/>',
        "beyond the limit": '<rect width="24" height="18" fill="currentColor" opacity=".15"/>',
        "no leak": '<path d="M12 0v18" stroke="currentColor" stroke-dasharray="2"/>',
    }
    return [(f"{start}{shape}</svg>", meaning) for meaning, shape in shapes.items()]


def _mark(
    outcome: LimitOutcome, along: tuple[float, float, float], x: Scale, middle: float, width: int
) -> str:
    colour, (low, value, high) = COLOURS[outcome.status], along
    if not math.isfinite(outcome.measured):
        return f'<text x="{tenth(width / 2)}" y="{tenth(middle - 14)}">not measured</text>'
    at, y, lines = tenth(x(drawn_number(outcome))), tenth(middle), ""
    if all(map(math.isfinite, along)):
        tick = f"M{tenth(x(value))} {tenth(middle - 5)}v10"
        lines = (
            f'<path d="M{tenth(x(low))} {y}H{tenth(x(high))}{tick}" stroke="{colour}"'
            ' stroke-width="2"/>'
        )
    shapes = {
        "pass": f'<circle cx="{at}" cy="{y}" r="5" fill="{colour}"/>',
        "fail": f'<path d="M{at} {tenth(middle - 7)}l7 7-7 7-7-7z" fill="{colour}"/>',
        "undecided": f'<circle cx="{at}" cy="{y}" r="5" fill="none" stroke="{colour}"'
        ' stroke-width="3"/>',
    }
    left = tenth(_inside(x(drawn_number(outcome)), width, 20))
    label = f'<text x="{left}" y="{tenth(middle - 14)}">{number(drawn_number(outcome))}</text>'
    return lines + shapes[outcome.status] + label


def curves_svg(
    rows: Rows, curves: Mapping[str, tuple[str, str]], labels: tuple[str, str], *, log: bool = False
) -> str:
    """Draw one curve per label, given its x and y columns; rows without numbers are skipped.

    With ``log`` both axes are logarithmic, and only positive points are drawn.
    """
    lines = [_points(rows, x, y, log) for x, y in curves.values()]
    points = [point for line in lines for point in line]
    if len(points) < 2:
        return ""
    ticks = _decades if log else nice_ticks
    x_ticks, y_ticks = ticks([p[0] for p in points]), ticks([p[1] for p in points])
    x, up = (
        _linear(x_ticks, LEFT, WIDTH - RIGHT, pad=0),
        _linear(y_ticks, HEIGHT - BOTTOM, TOP, pad=0),
    )
    word = _power if log else number
    parts = [_frame(labels), _y_axis(y_ticks, up, word), *(_x_tick(x(t), word(t)) for t in x_ticks)]
    for i, line in enumerate(lines):
        path = " ".join(
            f"{tenth(x(a))},{tenth(up(b))}" for a, b in sorted(line, key=lambda p: (p[1], p[0]))
        )
        parts.append(f'<polyline class="curve s{i % SERIES}" points="{path}"/>')
        parts += [_spot(x(a), up(b), f"{word(a)}: {word(b)}") for a, b in line]
    return canvas(
        [*parts, *_legend(list(curves), lines=True)],
        HEIGHT + _legend_height(len(curves)),
        _title(labels),
    )


def _points(rows: Rows, x: str, y: str, log: bool) -> list[tuple[float, float]]:
    pairs = [(as_number(row.get(x)), as_number(row.get(y))) for row in rows]
    known = [pair for pair in pairs if all(map(math.isfinite, pair))]
    return [(math.log10(a), math.log10(b)) for a, b in known if a > 0 and b > 0] if log else known


def intervals_svg(
    rows: Rows,
    *,
    x: str,
    y: str,
    series: Sequence[str],
    labels: tuple[str, str],
    log: bool = False,
    null: float = 0.0,
) -> str:
    """Draw values and intervals (columns ``low``, ``high``) by ``x`` and series, with a line at
    ``null``.

    Distinct values of ``x`` are evenly spaced in ascending order, with series next to each other.
    With ``log`` the x axis is logarithmic, and rows with ``x`` <= 0 are skipped.
    """
    kept = [
        row
        for row in rows
        if math.isfinite(as_number(row.get(y)))
        and (not log or 0 < as_number(row.get(x)) < math.inf)
    ]
    if not kept:
        return ""
    names = list(dict.fromkeys(_series(row, series) for row in kept))
    bounds = [
        v
        for row in kept
        for v in map(as_number, (row.get(y), row.get("low"), row.get("high")))
        if math.isfinite(v)
    ]
    ticks = nice_ticks([null, *bounds])
    up = _linear(ticks, HEIGHT - BOTTOM, TOP, pad=0)
    places, words = _log_places(kept, x) if log else _places(kept, x)
    gap = 7.0 if log else min(14.0, 0.8 * (WIDTH - LEFT - RIGHT) / len(places) / len(names))
    parts = [
        _frame(labels),
        _y_axis(ticks, up),
        f'<path class="zero" d="M{LEFT} {tenth(up(null))}H{WIDTH - RIGHT}"/>',
    ]
    parts += [_x_tick(at, word) for word, at in words.items()]
    for row in kept:
        i = names.index(_series(row, series))
        parts.append(
            _point(places[_word(row.get(x))] + gap * (i - (len(names) - 1) / 2), row, y, up, i)
        )
    legend = _legend(names, lines=False) if len(names) > 1 or names[0] else []
    return canvas(
        [*parts, *legend], HEIGHT + (_legend_height(len(names)) if legend else 0), _title(labels)
    )


def _places(rows: Rows, x: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return evenly spaced positions of the distinct values of ``x``, by their text, and the
    positions with a label.
    """
    sizes = {_word(row.get(x)): as_number(row.get(x)) for row in rows}
    spots = sorted(sizes, key=lambda word: (math.isnan(sizes[word]), sizes[word], word))
    step = (WIDTH - LEFT - RIGHT) / len(spots)
    places = {word: LEFT + step * (i + 0.5) for i, word in enumerate(spots)}
    return places, {word: places[word] for word in spots[:: math.ceil(len(spots) / 12)]}


def _log_places(rows: Rows, x: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return positions on a logarithmic axis, by text of the value, and of labels 1, 2, 5, 10, ...
    within its range.
    """
    logs = {_word(row.get(x)): math.log10(as_number(row.get(x))) for row in rows}
    scale = _linear(logs.values(), LEFT + 16, WIDTH - RIGHT - 16, pad=0)
    low, high = min(logs.values()), max(logs.values())
    marks = [m * 10.0**k for k in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)]
    inside = [mark for mark in marks if low - 0.1 <= math.log10(mark) <= high + 0.1]
    return {word: scale(v) for word, v in logs.items()}, {
        number(m): scale(math.log10(m)) for m in inside
    }


def _point(at: float, row: Mapping[str, Any], y: str, up: Scale, i: int) -> str:
    value, low, high = (as_number(row.get(column)) for column in (y, "low", "high"))
    bar = ""
    if math.isfinite(low) and math.isfinite(high):
        bar = (
            f'<path class="bar s{i % SERIES}" d="M{tenth(at)} {tenth(up(low))}V{tenth(up(high))}"/>'
        )
    shown = f"{number(value)} [{number(low)}, {number(high)}]" if bar else number(value)
    return f"<g><title>{shown}</title>{bar}{_shape(i, at, up(value))}</g>"


def _spot(x: float, y: float, words: str) -> str:
    """Return an invisible target with a tooltip."""
    spot = f'<circle cx="{tenth(x)}" cy="{tenth(y)}" r="5" fill="none" pointer-events="all">'
    return f"{spot}<title>{words}</title></circle>"


def nice_ticks(values: Iterable[float], count: int = 5) -> list[float]:
    """Return about ``count`` round, evenly spaced numbers that enclose the finite ``values``."""
    finite = [v for v in values if math.isfinite(v)] or [0.0]
    low, high = min(finite), max(finite)
    if low == high:
        low, high = min(low, 0.0), max(high, 0.0) or (1.0 if low == 0 else 0.0)
    raw = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [k * step for k in range(first, last + 1)]


def _decades(logs: Iterable[float]) -> list[float]:
    """Return the integers that enclose the given decimal logarithms."""
    found = list(logs)
    return [
        float(k)
        for k in range(
            math.floor(min(found)), max(math.ceil(max(found)), math.floor(min(found)) + 1) + 1
        )
    ]


def _power(log: float) -> str:
    return number(10.0**log)


def _linear(values: Iterable[float], start: float, end: float, pad: float = 0.06) -> Scale:
    finite = [v for v in values if math.isfinite(v)] or [0.0]
    low, high = min(finite), max(finite)
    # a single value is centered
    room = (high - low) * pad if high > low else max(abs(high), 1.0) * 0.5
    low, high = low - room, high + room
    return lambda v: start + (v - low) / (high - low) * (end - start)


def _title(labels: tuple[str, str]) -> str:
    return f"{labels[1]} by {labels[0]}"


def _frame(labels: tuple[str, str]) -> str:
    place = (
        f'text-anchor="middle" transform="translate(12 {tenth((TOP + HEIGHT - BOTTOM) / 2)})'
        ' rotate(-90)"'
    )
    across = text_at((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, labels[0])
    return f'{across}<text class="axis" {place}>{escape(labels[1])}</text>'


def _y_axis(ticks: Sequence[float], up: Scale, word: Callable[[float], str] = number) -> str:
    lines = "".join(f"M{LEFT} {tenth(up(t))}H{WIDTH - RIGHT}" for t in ticks)
    words = "".join(text_at(LEFT - 6, up(t) + 4, word(t), anchor="end") for t in ticks)
    return f'<path class="grid" d="{lines}"/>{words}'


def _x_tick(at: float, word: str) -> str:
    return text_at(at, HEIGHT - BOTTOM + 16, word)


def _legend(names: Sequence[str], *, lines: bool) -> list[str]:
    parts = []
    for i, name in enumerate(names):
        x, y = LEFT + 250 * (i % 2), HEIGHT + 14 + 20 * (i // 2)
        line = f'<path class="curve s{i % SERIES}" d="M{x} {y}h26"/>'
        parts.append(
            (line if lines else _shape(i, x + 13, y)) + text_at(x + 34, y + 4, name, anchor="start")
        )
    return parts


def _legend_height(names: int) -> int:
    return 10 + 20 * math.ceil(names / 2)


def _shape(i: int, x: float, y: float) -> str:
    at = f"{tenth(x)} {tenth(y - 5)}"
    paths = (
        f"M{at}a5 5 0 1 1 0 10a5 5 0 1 1 0-10z",
        f"M{tenth(x - 4.5)} {tenth(y - 4.5)}h9v9h-9z",
        f"M{tenth(x)} {tenth(y - 6)}l6 6-6 6-6-6z",
        f"M{at}l5.5 10h-11z",
    )
    return f'<path class="mark s{i % SERIES}" d="{paths[i % SERIES]}"/>'


def canvas(parts: Iterable[str], height: float, title: str, description: str = "") -> str:
    """Return a plot of width ``WIDTH`` with a name and description for screen readers."""
    heading = f"<title>{escape(title)}</title>" + (
        f"<desc>{escape(description)}</desc>" if description else ""
    )
    return (
        f'<svg class="plot" role="img" viewBox="0 0 {WIDTH}'
        f' {height:g}">{heading}{"".join(parts)}</svg>'
    )


def text_at(x: float, y: float, words: str, anchor: str = "middle") -> str:
    """Return small text at a position."""
    return (
        f'<text class="axis" x="{tenth(x)}" y="{tenth(y)}"'
        f' text-anchor="{anchor}">{escape(words)}</text>'
    )


def _series(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    return ", ".join(_word(row[column]) for column in columns if row.get(column) is not None)


def _word(value: Any) -> str:
    return number(value) if _is_number(value) else clean(value, 30)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def as_number(value: Any) -> float:
    """Return a cell's number; NaN for other types."""
    return float(value) if _is_number(value) else math.nan


def _inside(x: float, width: float, half: float) -> float:
    return min(max(x, half), width - half)


def tenth(value: float) -> str:
    """Format a coordinate with one decimal place."""
    return f"{value:.1f}".removesuffix(".0")


LEVELS = ("excellent", "very good", "good", "moderate", "poor")
_LAST = (*LEVELS, "unavailable")
MOST_BARS, MOST_GROUPS = 40, 30
_LEFT = 170  # left end of the bars
_ROOM_OF_POINTS, _ROOM_OF_SHARES = WIDTH - _LEFT - 60, WIDTH - _LEFT - 66  # leaves room for numbers
_POINTS_STEP, _BAR, _GAP = 20, 14, 8
_SMALLEST_SHARE = 1e-5  # smaller shares have length 0 on the logarithmic axis
_X, _Y, _R = 112, 112, 84  # center and radius of the pie
_PIE_LEGEND, _PIE_STEP = 240, 27
_SMALLEST_MARKED = 0.02  # smaller slices show no number


def draw(plot: Plot, rows: Rows) -> str:
    """Draw a declared plot of the rows of its table. Return "" if there are no data."""
    match plot:
        case IntervalPlot(x=x, y=y, series=series, axis_labels=labels, log_x=log, null=null):
            return intervals_svg(rows, x=x, y=y, series=series, labels=labels, log=log, null=null)
        case CurvePlot(curves=curves, axis_labels=labels, log=log):
            return curves_svg(rows, curves, labels, log=log)
        case GradePlot(label=label, points=points):
            return points_svg(rows, label, points)
        case LevelPlot():
            return pie_svg(rows)
        case SharePlot(label=label, series=words, log=log):
            return shares_svg(rows, label, words, log=log)
    raise TypeError(f"a plot of type {type(plot).__name__} cannot be drawn.")


def points_svg(rows: Rows, label: str, points: str) -> str:
    """Draw one bar per row, from 0 to 100 and colored by grade, lowest first.

    Rows without a number, and rows beyond the first 40, are skipped.
    """
    found = [
        (clean(row.get(label), 24), min(max(as_number(row.get(points)), 0.0), 100.0))
        for row in rows
    ]
    kept = sorted((pair for pair in found if math.isfinite(pair[1])), key=lambda pair: pair[1])[
        :MOST_BARS
    ]
    if not kept:
        return ""
    bottom = 10 + _POINTS_STEP * len(kept)
    parts = []
    for at, (name, value) in enumerate(kept):
        top = 8 + _POINTS_STEP * at
        level, width = max(len(LEVELS) - 1 - int(value // 20), 0), _ROOM_OF_POINTS * value / 100
        parts.append(
            f'<rect class="l{level}" x="{_LEFT}" y="{top}" width="{width:.1f}"'
            f' height="14">{_told(name, value)}</rect>'
        )
        parts.append(text_at(_LEFT - 8, top + 11, name, anchor="end"))
        parts.append(text_at(_LEFT + _ROOM_OF_POINTS + 8, top + 11, number(value), anchor="start"))
    marks = {
        number(mark): _LEFT + _ROOM_OF_POINTS * mark / 100 for mark in (0, 20, 40, 60, 80, 100)
    }
    return canvas(_over_grid(parts, marks, bottom), bottom + 22, f"{points} by {label}")


def shares_svg(rows: Rows, label: str, series: Mapping[str, str], *, log: bool = False) -> str:
    """Draw one bar per row and entry of ``series`` (column -> label), from 0 to 1, in the given
    order.

    Numbers are clipped to this range. Cells without a number have no bar, and rows beyond the first
    30 are skipped. With ``log`` the axis is logarithmic, from 0.00001. Each bar is labeled with its
    number.
    """
    kept = [
        row for row in rows if any(math.isfinite(as_number(row.get(column))) for column in series)
    ][:MOST_GROUPS]
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
    """Add grid lines and labels, given label and position, to the bars."""
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
    """Draw a pie of the levels reached by Gretel's attacks, best first, scaled to sum to one.

    ``rows`` have the columns "level", "attacks" and "share". Slices and legend lines share numbers,
    so the plot does not depend on color. The legend lists attacks and share of all levels,
    including empty ones. Rows without a share are skipped.
    """
    kept = [
        (clean(row.get("level"), 30), as_number(row.get("attacks")), as_number(row.get("share")))
        for row in rows
    ]
    kept = sorted(
        (row for row in kept if 0 <= row[2] < math.inf), key=lambda row: _class(row[0], len(_LAST))
    )
    total = sum(share for *_, share in kept)
    if total <= 0:
        return ""
    parts, lines, turn = [], [], 0.0
    for at, (name, attacks, share) in enumerate(kept):
        part, level, y = share / total, f"l{_class(name, at % len(_LAST))}", 32 + _PIE_STEP * at
        words = f"{name}: {_attacks(attacks)}{100 * part:.3g} %"
        parts.append(
            f"<g><title>{escape(words)}</title>{_slice(level, str(at + 1), turn, turn + part)}</g>"
        )
        turn += part
        lines.append(words)
        parts.append(
            f'<rect class="{level}" x="{_PIE_LEGEND}" y="{y - 11}" width="14" height="14"/>'
        )
        parts.append(
            text_at(_PIE_LEGEND + 30, y, str(at + 1))
            + text_at(_PIE_LEGEND + 44, y, words, anchor="start")
        )
    height = max(2 * _Y, 32 + _PIE_STEP * len(kept))
    return canvas(parts, height, "Attacks by level of protection", "; ".join(lines))


def _slice(level: str, mark: str, start: float, end: float) -> str:
    """Draw a slice from ``start`` to ``end`` (shares of a turn, clockwise from the top) with its
    number outside.
    """
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


def _attacks(count: float) -> str:
    return "" if math.isnan(count) else f"{number(int(count))} attack{'' if count == 1 else 's'}, "
