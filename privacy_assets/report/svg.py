"""All SVG: limits, curves, intervals, bars and pies. Deterministic, without scripts or fonts.

Functions take aggregates and return well-formed XML, or an empty string if there is no data. Text
is cleaned and escaped. Plots use the page's classes for colors (``s0`` .. ``s3`` for series, ``l0``
to ``l5`` for levels). Series also differ in shape and dash.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple
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
COLORS = {"pass": "#0072b2", "fail": "#d55e00", "undecided": "#8a6d00"}
SERIES = 4
WIDTH = 560
HEIGHT = 260
# margins of the axes
LEFT = 58
RIGHT = 14
TOP = 14
BOTTOM = 42


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

    Returns:
        SVG markup.
    """
    middle = height / 2
    bound = outcome.limit.value
    along = _along(outcome)
    x_values = [bound, along.null, along.low, along.value, along.high, drawn_number(outcome)]
    x = _linear(x_values, 12, width - 12)
    x_bound = x(bound)
    # The shaded area is beyond the limit.
    start = x_bound
    end = float(width)
    if outcome.limit.at_least is not None:
        start = 0.0
        end = x_bound
    parts = [
        f'<svg xmlns="{XMLNS}" viewBox="0 0 {width} {height}" width="{width}"'
        ' font-family="sans-serif" font-size="10" '
        f'text-anchor="middle" fill="{ink}">'
    ]
    if hover:
        parts.append(f"<title>{escape(limit_words(outcome))}</title>")
    parts.append(
        f'<rect x="{tenth(start)}" y="{tenth(middle - 9)}" width="{tenth(end - start)}"'
        ' height="18" opacity=".15"/>'
    )
    parts.append(
        f'<path d="M0 {tenth(middle)}H{width}M{tenth(x_bound)} {tenth(middle - 11)}v22"'
        f' stroke="{ink}"/>'
    )
    if math.isfinite(along.null):
        parts.append(
            f'<path d="M{tenth(x(along.null))} {tenth(middle - 11)}v22" stroke="{ink}"'
            ' stroke-dasharray="2"/>'
        )
    parts.append(_mark(outcome, along, x, middle, width))
    words = f"limit {number(bound)}"
    x_label = tenth(_inside(x_bound, width, 4 + 2.7 * len(words)))
    parts.append(f'<text x="{x_label}" y="{tenth(height - 2)}">{words}</text>')
    parts.append("</svg>")
    return "".join(parts)


def limit_words(outcome: LimitOutcome) -> str:
    """Describe a limit in one line: verdict, number compared with the limit, value and interval."""
    compared = f"{measured_text(outcome)}, limit {limit_symbol(outcome.limit)}"
    return f"{outcome.status}: {compared}; {limit_interval(outcome)}"


def interval_markdown(outcome: LimitOutcome) -> str:
    """Return :func:`interval_svg` as a Markdown image (data URI) of under 1,000 characters.

    Dagster drops raw SVG.

    Args:
        outcome: Limit and estimate.
    """
    alt = limit_words(outcome).replace("[", "(").replace("]", ")")
    return _markdown(alt, interval_svg(outcome, ink="gray", hover=False))


def line_markdown(
    alt: str, points: Sequence[tuple[float, float]], dashed: Sequence[tuple[float, float]] = ()
) -> str:
    """Draw a line plot as a Markdown image.

    Args:
        alt: Text of the image for screen readers.
        points: Points (x, y) of the line. Points that are not finite are skipped.
        dashed: Points of a second line on the same axes, for example a limit.

    Returns:
        Markdown, or "" if ``points`` has fewer than two finite points.
    """
    solid_points = _finite_points(points)
    dashed_points = _finite_points(dashed)
    if len(solid_points) < 2:
        return ""
    xs, ys = zip(*solid_points, *dashed_points, strict=True)
    x = _linear(xs, 5, 235, pad=0)
    y = _linear(ys, 55, 5, pad=0)

    def polyline(line: Sequence[tuple[float, float]], style: str) -> str:
        if not line:
            return ""
        path = " ".join(f"{x(x_value):.0f},{y(y_value):.0f}" for x_value, y_value in line)
        return f'<polyline fill="none" {style} points="{path}"/>'

    lines = polyline(solid_points, 'stroke="steelblue" stroke-width="2"')
    lines += polyline(dashed_points, 'stroke="gray" stroke-dasharray="4"')
    return _markdown(alt, f'<svg xmlns="{XMLNS}" width="240" height="60">{lines}</svg>')


def _finite_points(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    return [point for point in points if all(map(math.isfinite, point))]


class _Along(NamedTuple):
    """Null and estimate of a limit as positions along its axis; NaN: not known."""

    null: float
    low: float
    value: float
    high: float


def _markdown(alt: str, svg: str) -> str:
    address = quote(svg.replace('"', "'"), safe="=/:;,.'")
    return f"![{alt}](data:image/svg+xml,{address})"


def _along(outcome: LimitOutcome) -> _Along:
    """Return null, low, value and high as compared with the limit, at the confidence level of the
    limit.

    For two-sided statistics they are distances from the null.
    """
    estimate = outcome.estimate
    if estimate is None or outcome.interval is None:
        return _Along(math.nan, math.nan, math.nan, math.nan)
    null = estimate.null
    ends = sorted(outcome.interval[:2])
    if estimate.direction != "two_sided":
        return _Along(null, ends[0], estimate.value, ends[1])
    side = -1
    if sum(ends) >= 2 * null:
        side = 1
    low, high = sorted((side * (ends[0] - null), side * (ends[1] - null)))
    return _Along(0.0, low, side * (estimate.value - null), high)


def drawn_number(outcome: LimitOutcome) -> float:
    """Return the number compared with the limit. A negative distance of a two-sided statistic is
    drawn as 0.

    Args:
        outcome: Limit and estimate.
    """
    compared = outcome.compared
    is_two_sided = outcome.estimate is not None and outcome.estimate.direction == "two_sided"
    if is_two_sided and math.isfinite(compared):
        return max(compared, 0.0)
    return compared


def legend() -> list[tuple[str, str]]:
    """Return SVG and meaning of each symbol of :func:`interval_svg`."""
    start = f'<svg xmlns="{XMLNS}" viewBox="0 0 24 18" width="24" height="18">'
    shapes = {
        "pass": f'<circle cx="12" cy="9" r="5" fill="{COLORS["pass"]}"/>',
        "fail": f'<path d="M12 2l7 7-7 7-7-7z" fill="{COLORS["fail"]}"/>',
        "undecided": f'<circle cx="12" cy="9" r="5" fill="none" stroke="{COLORS["undecided"]}"'
        ' stroke-width="3"/>',
        "beyond the limit": '<rect width="24" height="18" fill="currentColor" opacity=".15"/>',
        "no leak": '<path d="M12 0v18" stroke="currentColor" stroke-dasharray="2"/>',
    }
    symbols = []
    for meaning, shape in shapes.items():
        symbols.append((f"{start}{shape}</svg>", meaning))
    return symbols


def _mark(outcome: LimitOutcome, along: _Along, x: Scale, middle: float, width: int) -> str:
    """Draw the evaluated number with its interval, or state that it was not measured."""
    color = COLORS[outcome.status]
    y_words = tenth(middle - 14)
    if not math.isfinite(outcome.compared):
        return f'<text x="{tenth(width / 2)}" y="{y_words}">not measured</text>'
    compared = drawn_number(outcome)
    x_mark = tenth(x(compared))
    y = tenth(middle)
    lines = ""
    if all(map(math.isfinite, (along.low, along.value, along.high))):
        tick = f"M{tenth(x(along.value))} {tenth(middle - 5)}v10"
        lines = (
            f'<path d="M{tenth(x(along.low))} {y}H{tenth(x(along.high))}{tick}" stroke="{color}"'
            ' stroke-width="2"/>'
        )
    shapes = {
        "pass": f'<circle cx="{x_mark}" cy="{y}" r="5" fill="{color}"/>',
        "fail": f'<path d="M{x_mark} {tenth(middle - 7)}l7 7-7 7-7-7z" fill="{color}"/>',
        "undecided": f'<circle cx="{x_mark}" cy="{y}" r="5" fill="none" stroke="{color}"'
        ' stroke-width="3"/>',
    }
    x_words = tenth(_inside(x(compared), width, 20))
    label = f'<text x="{x_words}" y="{y_words}">{number(compared)}</text>'
    return lines + shapes[outcome.status] + label


def curves_svg(
    rows: Rows, curves: Mapping[str, tuple[str, str]], labels: tuple[str, str], *, log: bool = False
) -> str:
    """Draw one curve per label.

    Args:
        rows: Rows of a table. Rows without numbers are skipped.
        curves: Names of the x and the y column by label.
        labels: Labels of the x and the y axis.
        log: Whether both axes are logarithmic, with positive points only.

    Returns:
        SVG markup, or "" for fewer than two points.
    """
    lines = []
    for x_column, y_column in curves.values():
        lines.append(_points(rows, x_column, y_column, log))
    points = list(chain.from_iterable(lines))
    if len(points) < 2:
        return ""
    ticks: Callable[[Iterable[float]], list[float]] = nice_ticks
    word: Callable[[float], str] = number
    if log:
        ticks = _decades
        word = _power
    xs, ys = zip(*points, strict=True)
    x_ticks = ticks(xs)
    y_ticks = ticks(ys)
    x = _linear(x_ticks, LEFT, WIDTH - RIGHT, pad=0)
    y = _linear(y_ticks, HEIGHT - BOTTOM, TOP, pad=0)
    parts = [_frame(labels), _y_axis(y_ticks, y, word)]
    for tick in x_ticks:
        parts.append(_x_tick(x(tick), word(tick)))
    for i, line in enumerate(lines):
        ordered = sorted(line, key=lambda point: (point[1], point[0]))
        path = " ".join(f"{tenth(x(x_value))},{tenth(y(y_value))}" for x_value, y_value in ordered)
        parts.append(f'<polyline class="curve s{i % SERIES}" points="{path}"/>')
        for x_value, y_value in line:
            tooltip = f"{word(x_value)}: {word(y_value)}"
            parts.append(_spot(x(x_value), y(y_value), tooltip))
    parts += _legend(list(curves), lines=True)
    return canvas(parts, HEIGHT + _legend_height(len(curves)), _title(labels))


def _points(rows: Rows, x_column: str, y_column: str, log: bool) -> list[tuple[float, float]]:
    """Return the finite points, with ``log`` as decimal logarithms of the positive ones."""
    points = []
    for row in rows:
        x = as_number(row.get(x_column))
        y = as_number(row.get(y_column))
        if not (math.isfinite(x) and math.isfinite(y)):
            continue
        if not log:
            points.append((x, y))
        elif x > 0 and y > 0:
            points.append((math.log10(x), math.log10(y)))
    return points


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

    Args:
        rows: Rows of a table. Rows without a value are skipped.
        x: Column of the x axis.
        y: Column of the value.
        series: Columns that distinguish the series.
        labels: Labels of the x and the y axis.
        log: Whether the x axis is logarithmic. Rows with ``x`` <= 0 are then skipped.
        null: Value without an effect.

    Returns:
        SVG markup, or "" if no row is drawn.
    """
    drawn_rows = _rows_of_intervals(rows, x, y, log)
    if not drawn_rows:
        return ""
    names = list(dict.fromkeys(_series(row, series) for row in drawn_rows))
    ticks = nice_ticks([null, *_interval_values(drawn_rows, y)])
    y_scale = _linear(ticks, HEIGHT - BOTTOM, TOP, pad=0)
    if log:
        axis = _log_axis(drawn_rows, x)
        gap = 7.0
    else:
        axis = _even_axis(drawn_rows, x)
        gap = min(14.0, 0.8 * (WIDTH - LEFT - RIGHT) / len(axis.positions) / len(names))
    parts = [
        _frame(labels),
        _y_axis(ticks, y_scale),
        f'<path class="zero" d="M{LEFT} {tenth(y_scale(null))}H{WIDTH - RIGHT}"/>',
    ]
    for word, position in axis.labels.items():
        parts.append(_x_tick(position, word))
    for row in drawn_rows:
        i = names.index(_series(row, series))
        position = axis.positions[_word(row.get(x))] + gap * (i - (len(names) - 1) / 2)
        parts.append(_point(position, row, y, y_scale, i))
    if len(names) == 1 and not names[0]:
        return canvas(parts, HEIGHT, _title(labels))
    parts += _legend(names, lines=False)
    return canvas(parts, HEIGHT + _legend_height(len(names)), _title(labels))


def _rows_of_intervals(rows: Rows, x: str, y: str, log: bool) -> Rows:
    """Return the rows with a finite ``y`` and, with ``log``, a finite positive ``x``."""
    drawn_rows = []
    for row in rows:
        if not math.isfinite(as_number(row.get(y))):
            continue
        if log and not 0 < as_number(row.get(x)) < math.inf:
            continue
        drawn_rows.append(row)
    return drawn_rows


def _interval_values(rows: Rows, y: str) -> list[float]:
    """Return the finite values and ends of intervals."""
    values = []
    for row in rows:
        for column in (y, "low", "high"):
            value = as_number(row.get(column))
            if math.isfinite(value):
                values.append(value)
    return values


class _XAxis(NamedTuple):
    """Positions on the x axis.

    Attributes:
        positions: By text of the value.
        labels: Positions of the labels by their text.
    """

    positions: dict[str, float]
    labels: dict[str, float]


def _even_axis(rows: Rows, x: str) -> _XAxis:
    """Space the distinct values of ``x`` evenly, with at most twelve labels."""
    sizes = {_word(row.get(x)): as_number(row.get(x)) for row in rows}
    words = sorted(sizes, key=lambda word: (math.isnan(sizes[word]), sizes[word], word))
    step = (WIDTH - LEFT - RIGHT) / len(words)
    words_per_label = math.ceil(len(words) / 12)
    positions = {}
    labels = {}
    for i, word in enumerate(words):
        positions[word] = LEFT + step * (i + 0.5)
        if i % words_per_label == 0:
            labels[word] = positions[word]
    return _XAxis(positions, labels)


def _log_axis(rows: Rows, x: str) -> _XAxis:
    """Place the values of ``x`` on a logarithmic axis, with labels 1, 2, 5, 10, ... within its
    range.
    """
    logs = {_word(row.get(x)): math.log10(as_number(row.get(x))) for row in rows}
    scale = _linear(logs.values(), LEFT + 16, WIDTH - RIGHT - 16, pad=0)
    low = min(logs.values())
    high = max(logs.values())
    positions = {}
    for word, log in logs.items():
        positions[word] = scale(log)
    labels = {}
    for exponent in range(math.floor(low), math.ceil(high) + 1):
        for factor in (1, 2, 5):
            mark = factor * 10.0**exponent
            if low - 0.1 <= math.log10(mark) <= high + 0.1:
                labels[number(mark)] = scale(math.log10(mark))
    return _XAxis(positions, labels)


def _point(x: float, row: Mapping[str, Any], column: str, y: Scale, i: int) -> str:
    """Draw a value of series ``i`` with its interval and a tooltip."""
    value = as_number(row.get(column))
    low = as_number(row.get("low"))
    high = as_number(row.get("high"))
    bar = ""
    tooltip = number(value)
    if math.isfinite(low) and math.isfinite(high):
        bar = f'<path class="bar s{i % SERIES}" d="M{tenth(x)} {tenth(y(low))}V{tenth(y(high))}"/>'
        tooltip = f"{number(value)} [{number(low)}, {number(high)}]"
    return f"<g><title>{tooltip}</title>{bar}{_shape(i, x, y(value))}</g>"


def _spot(x: float, y: float, words: str) -> str:
    """Return an invisible target with a tooltip."""
    spot = f'<circle cx="{tenth(x)}" cy="{tenth(y)}" r="5" fill="none" pointer-events="all">'
    return f"{spot}<title>{words}</title></circle>"


def nice_ticks(values: Iterable[float], count: int = 5) -> list[float]:
    """Return round, evenly spaced numbers that enclose the finite values.

    Args:
        values: Numbers. Without a finite one, the ticks enclose 0.
        count: Approximate number of ticks.

    Returns:
        Ascending numbers.
    """
    low, high = _finite_range(values)
    if low == high:
        low = min(low, 0.0)
        high = max(high, 0.0)
        if high == 0 and low == 0:
            high = 1.0
    raw = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [k * step for k in range(first, last + 1)]


def _finite_range(values: Iterable[float]) -> tuple[float, float]:
    """Return minimum and maximum of the finite values, or zeros if there are none."""
    finite = list(filter(math.isfinite, values)) or [0.0]
    return min(finite), max(finite)


def _decades(logs: Iterable[float]) -> list[float]:
    """Return the integers, at least two, that enclose decimal logarithms."""
    exponents = list(logs)
    first = math.floor(min(exponents))
    last = max(math.ceil(max(exponents)), first + 1)
    return list(map(float, range(first, last + 1)))


def _power(log: float) -> str:
    return number(10.0**log)


def _linear(values: Iterable[float], start: float, end: float, pad: float = 0.06) -> Scale:
    """Return a scale from the range of the finite values, with a margin, to ``start`` to ``end``.

    A single value is centered.
    """
    low, high = _finite_range(values)
    margin = max(abs(high), 1.0) * 0.5
    if high > low:
        margin = (high - low) * pad
    low -= margin
    high += margin
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _title(labels: tuple[str, str]) -> str:
    return f"{labels[1]} by {labels[0]}"


def _frame(labels: tuple[str, str]) -> str:
    y_middle = tenth((TOP + HEIGHT - BOTTOM) / 2)
    placement = f'text-anchor="middle" transform="translate(12 {y_middle}) rotate(-90)"'
    x_label = text_at((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, labels[0])
    return f'{x_label}<text class="axis" {placement}>{escape(labels[1])}</text>'


def _y_axis(ticks: Sequence[float], y: Scale, word: Callable[[float], str] = number) -> str:
    lines = ""
    words = ""
    for tick in ticks:
        lines += f"M{LEFT} {tenth(y(tick))}H{WIDTH - RIGHT}"
        words += text_at(LEFT - 6, y(tick) + 4, word(tick), anchor="end")
    return f'<path class="grid" d="{lines}"/>{words}'


def _x_tick(x: float, word: str) -> str:
    return text_at(x, HEIGHT - BOTTOM + 16, word)


def _legend(names: Sequence[str], *, lines: bool) -> list[str]:
    """Draw the names of the series in two columns, with a line or the mark of each series."""
    parts = []
    for i, name in enumerate(names):
        x = LEFT + 250 * (i % 2)
        y = HEIGHT + 14 + 20 * (i // 2)
        symbol = _shape(i, x + 13, y)
        if lines:
            symbol = f'<path class="curve s{i % SERIES}" d="M{x} {y}h26"/>'
        parts.append(symbol + text_at(x + 34, y + 4, name, anchor="start"))
    return parts


def _legend_height(n_names: int) -> int:
    return 10 + 20 * math.ceil(n_names / 2)


def _shape(i: int, x: float, y: float) -> str:
    """Draw the mark of a series: a circle, square, diamond or triangle."""
    top = f"{tenth(x)} {tenth(y - 5)}"
    paths = (
        f"M{top}a5 5 0 1 1 0 10a5 5 0 1 1 0-10z",
        f"M{tenth(x - 4.5)} {tenth(y - 4.5)}h9v9h-9z",
        f"M{tenth(x)} {tenth(y - 6)}l6 6-6 6-6-6z",
        f"M{top}l5.5 10h-11z",
    )
    return f'<path class="mark s{i % SERIES}" d="{paths[i % SERIES]}"/>'


def canvas(parts: Iterable[str], height: float, title: str, description: str = "") -> str:
    """Return a plot of width ``WIDTH`` with a name and description for screen readers.

    Args:
        parts: SVG markup of the plot.
        height: Pixels.
        title: Name, as plain text.
        description: Plain text, or "" for none.
    """
    heading = f"<title>{escape(title)}</title>"
    if description:
        heading += f"<desc>{escape(description)}</desc>"
    return (
        f'<svg class="plot" role="img" viewBox="0 0 {WIDTH}'
        f' {height:g}">{heading}{"".join(parts)}</svg>'
    )


def text_at(x: float, y: float, words: str, anchor: str = "middle") -> str:
    """Return small text at a position.

    Args:
        x: Pixels from the left.
        y: Distance of the base line from the top, in pixels.
        words: Plain text.
        anchor: "start", "middle" or "end": part of the text that is at ``x``.
    """
    return (
        f'<text class="axis" x="{tenth(x)}" y="{tenth(y)}"'
        f' text-anchor="{anchor}">{escape(words)}</text>'
    )


def _series(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    words = []
    for column in columns:
        value = row.get(column)
        if value is not None:
            words.append(_word(value))
    return ", ".join(words)


def _word(value: Any) -> str:
    if _is_number(value):
        return number(value)
    return clean(value, 30)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def as_number(value: Any) -> float:
    """Return a cell's number; NaN for other types."""
    if _is_number(value):
        return float(value)
    return math.nan


def _inside(x: float, width: float, half: float) -> float:
    return min(max(x, half), width - half)


def tenth(value: float) -> str:
    """Format a coordinate with one decimal place."""
    return f"{value:.1f}".removesuffix(".0")


LEVELS = ("excellent", "very good", "good", "moderate", "poor")
_LAST = (*LEVELS, "unavailable")
MOST_BARS = 40
MOST_GROUPS = 30
_LEFT = 170  # left end of the bars
# largest length of a bar, with space for its number
_ROOM_OF_POINTS = WIDTH - _LEFT - 60
_ROOM_OF_SHARES = WIDTH - _LEFT - 66
_POINTS_STEP = 20
_BAR = 14
_GAP = 8
_SMALLEST_SHARE = 1e-5  # smaller shares have length 0 on the logarithmic axis
# center and radius of the pie
_X = 112
_Y = 112
_R = 84
_PIE_LEGEND = 240  # left end of its legend
_PIE_STEP = 27
_SMALLEST_MARKED = 0.02  # smaller slices show no number


def draw(plot: Plot, rows: Rows) -> str:
    """Draw a declared plot of the rows of its table.

    Args:
        plot: Declared plot.
        rows: Rows of its table.

    Returns:
        SVG markup, or "" if there are no data.

    Raises:
        TypeError: If the type of the plot is not supported.
    """
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

    Args:
        rows: Rows of a table. Rows without a number, and bars beyond the first 40, are skipped.
        label: Column of the names.
        points: Column of the numbers. Numbers are clipped to 0 to 100.

    Returns:
        SVG markup, or "" if no row has a number.
    """
    bars = []
    for row in rows:
        value = min(max(as_number(row.get(points)), 0.0), 100.0)
        if math.isfinite(value):
            bars.append((clean(row.get(label), 24), value))
    if not bars:
        return ""
    bars.sort(key=lambda bar: bar[1])
    bars = bars[:MOST_BARS]
    bottom = 10 + _POINTS_STEP * len(bars)
    parts = []
    for i, (name, value) in enumerate(bars):
        top = 8 + _POINTS_STEP * i
        level = max(len(LEVELS) - 1 - int(value // 20), 0)
        length = _ROOM_OF_POINTS * value / 100
        parts.append(
            f'<rect class="l{level}" x="{_LEFT}" y="{top}" width="{length:.1f}"'
            f' height="14">{_tooltip(name, value)}</rect>'
        )
        parts.append(text_at(_LEFT - 8, top + 11, name, anchor="end"))
        parts.append(text_at(_LEFT + _ROOM_OF_POINTS + 8, top + 11, number(value), anchor="start"))
    marks = {}
    for mark in (0, 20, 40, 60, 80, 100):
        marks[number(mark)] = _LEFT + _ROOM_OF_POINTS * mark / 100
    return canvas(_over_grid(parts, marks, bottom), bottom + 22, f"{points} by {label}")


def shares_svg(rows: Rows, label: str, series: Mapping[str, str], *, log: bool = False) -> str:
    """Draw one bar per row and series, from 0 to 1, in the given order, labeled with its number.

    Args:
        rows: Rows of a table. Rows without any number, and those beyond the first 30, are skipped.
        label: Column of the names.
        series: Labels by column. Numbers are clipped to 0 to 1; cells without a number have no bar.
        log: Whether the axis is logarithmic, from 0.00001.

    Returns:
        SVG markup, or "" if no row has a number.
    """
    groups = [row for row in rows if _has_share(row, series)][:MOST_GROUPS]
    if not groups:
        return ""
    step = _BAR * len(series) + _GAP
    bottom = 10 + step * len(groups)
    bars = []
    for i, row in enumerate(groups):
        top = 10 + step * i
        name = clean(row.get(label), 24)
        bars.append(text_at(_LEFT - 8, top + _BAR * len(series) / 2 + 4, name, anchor="end"))
        for j, column in enumerate(series):
            bars.append(_share(as_number(row.get(column)), top + _BAR * j, j, log, name))
    parts = _over_grid(bars, _marks_of_shares(log), bottom)
    height = bottom + 22
    if len(series) > 1:
        for j, words in enumerate(series.values()):
            parts.append(_series_word(j, words, height))
        height += 22
    return canvas(parts, height, clean(f"{', '.join(series.values())} by {label}", 120))


def _marks_of_shares(log: bool) -> dict[str, float]:
    """Return the positions of the grid lines by their labels."""
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    if log:
        shares = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    marks = {}
    for share in shares:
        marks[number(share)] = _across(share, log)
    return marks


def _has_share(row: Mapping[str, Any], columns: Iterable[str]) -> bool:
    return any(math.isfinite(as_number(row.get(column))) for column in columns)


def _over_grid(bars: list[str], marks: Mapping[str, float], bottom: int) -> list[str]:
    """Add grid lines and labels, given label and position, to the bars."""
    lines = ""
    words = []
    for word, x in marks.items():
        lines += f"M{tenth(x)} 6V{bottom}"
        words.append(text_at(x, bottom + 15, word))
    return [f'<path class="grid" d="{lines}"/>', *bars, *words]


def _across(value: float, log: bool) -> float:
    share = min(max(value, 0.0), 1.0)
    if log:
        share = 1 - math.log(max(share, _SMALLEST_SHARE)) / math.log(_SMALLEST_SHARE)
    return _LEFT + _ROOM_OF_SHARES * share


def _share(value: float, top: float, i: int, log: bool, name: str) -> str:
    """Draw the bar of series ``i`` with its number."""
    if not math.isfinite(value):
        return ""
    end = _across(value, log)
    size = f'x="{_LEFT}" y="{tenth(top)}" width="{tenth(end - _LEFT)}" height="{_BAR - 3}"'
    bar = f'<rect class="mark s{i % 4}" {size}>{_tooltip(name, value)}</rect>'
    return bar + text_at(end + 6, top + 9, number(value), anchor="start")


def _tooltip(name: str, value: float) -> str:
    return f"<title>{escape(name)}: {number(value)}</title>"


def _series_word(i: int, words: str, height: float) -> str:
    x = _LEFT + 190 * i
    box = f'<rect class="mark s{i % 4}" x="{x}" y="{tenth(height)}" width="14" height="11"/>'
    return box + text_at(x + 20, height + 10, clean(words, 30), anchor="start")


class _Level(NamedTuple):
    """A level of protection with its attacks."""

    name: str
    n_attacks: float
    share: float


def pie_svg(rows: Rows) -> str:
    """Draw a pie of the levels reached by Gretel's attacks, best first, scaled to sum to one.

    Slices and legend lines share numbers, so the plot does not depend on color. The legend lists
    attacks and share of all levels, including empty ones.

    Args:
        rows: Rows with the columns "level", "attacks" and "share". Rows without a share are
            skipped.

    Returns:
        SVG markup, or "" if the shares are 0 or missing.
    """
    levels = _levels(rows)
    total = sum(level.share for level in levels)
    if total <= 0:
        return ""
    parts = []
    lines = []
    turn = 0.0
    for i, level in enumerate(levels):
        share = level.share / total
        color = f"l{_class(level.name, i % len(_LAST))}"
        mark = str(i + 1)
        y = 32 + _PIE_STEP * i
        words = f"{level.name}: {_attacks(level.n_attacks)}{100 * share:.3g} %"
        piece = _slice(color, mark, turn, turn + share)
        parts.append(f"<g><title>{escape(words)}</title>{piece}</g>")
        turn += share
        lines.append(words)
        parts.append(
            f'<rect class="{color}" x="{_PIE_LEGEND}" y="{y - 11}" width="14" height="14"/>'
        )
        parts.append(text_at(_PIE_LEGEND + 30, y, mark))
        parts.append(text_at(_PIE_LEGEND + 44, y, words, anchor="start"))
    height = max(2 * _Y, 32 + _PIE_STEP * len(levels))
    return canvas(parts, height, "Attacks by level of protection", "; ".join(lines))


def _levels(rows: Rows) -> list[_Level]:
    """Return the levels with a share, best first."""
    levels = []
    for row in rows:
        share = as_number(row.get("share"))
        if 0 <= share < math.inf:
            name = clean(row.get("level"), 30)
            levels.append(_Level(name, as_number(row.get("attacks")), share))
    return sorted(levels, key=lambda level: _class(level.name, len(_LAST)))


def _slice(color: str, mark: str, start: float, end: float) -> str:
    """Draw a slice from ``start`` to ``end`` (shares of a turn, clockwise from the top) with its
    number outside.
    """
    if end == start:
        return ""
    x0, y0 = _rim(start, _R)
    x1, y1 = _rim(end, _R)
    if end - start > 1 - 1e-9:
        shape = f'<circle class="{color}" cx="{_X}" cy="{_Y}" r="{_R}"/>'
    else:
        arc = f"A{_R} {_R} 0 {int(end - start > 0.5)} 1 {tenth(x1)} {tenth(y1)}"
        shape = f'<path class="{color}" d="M{_X} {_Y}L{tenth(x0)} {tenth(y0)}{arc}z"/>'
    if end - start < _SMALLEST_MARKED:
        return shape
    x, y = _rim((start + end) / 2, _R + 13)
    return shape + text_at(x, y + 4, mark)


def _rim(turn: float, radius: float) -> tuple[float, float]:
    """Return x and y of a point at a share of a turn, clockwise from the top."""
    return _X + radius * math.sin(math.tau * turn), _Y - radius * math.cos(math.tau * turn)


def _class(name: str, default: int) -> int:
    """Return the position of a level, or ``default`` for other names."""
    level = name.lower().replace("_", " ")
    if level in _LAST:
        return _LAST.index(level)
    return default


def _attacks(count: float) -> str:
    if math.isnan(count):
        return ""
    noun = "attack" if count == 1 else "attacks"
    return f"{number(int(count))} {noun}, "
