"""Hand-made SVG: one limit's interval, curves, intervals by group. Deterministic, no scripts, no fonts to load.

Every function takes aggregates and returns well-formed XML, or an empty string when there is nothing to draw. Text is
cleaned and escaped. The plots of the page take their colours from its classes (``s0`` .. ``s3`` for series, ``l0`` to
``l5`` for levels); series differ in shape and dash as well as in colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

from privacy_assets.report.text import LABELS, clean, interval, judged_text, limit_text, number
from privacy_assets.stats.estimates import Estimate
from privacy_assets.stats.limits import LimitOutcome

Rows = Sequence[Mapping[str, Any]]
Scale = Callable[[float], float]

XMLNS = "http://www.w3.org/2000/svg"
COLOURS = {"pass": "#0072b2", "fail": "#d55e00", "not_assessable": "#8a6d00"}
SERIES = 4
WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 14, 42


def interval_svg(
    outcome: LimitOutcome, width: int = 320, height: int = 48, ink: str = "currentColor", *, hover: bool = True
) -> str:
    """Return a small SVG of one limit: the number that is judged as a mark, and shaded what would break the limit.

    A filled circle passes, a diamond fails, a ring is not assessable. Behind it lie the interval as a thin line, the
    value as a tick on it and the null as a dashed line. A two-sided statistic is drawn by its distance from the null,
    on the side where it lies. ``ink`` colours axis and text: a fixed colour is needed where the SVG is shown as an
    image, which inherits none, and shows no words on ``hover``.
    """
    limit, middle, bound = outcome.limit, height / 2, outcome.limit.value
    null, low, value, high = _along(outcome.estimate)
    x = _linear([bound, null, low, value, high, outcome.measured], 12, width - 12)
    start, end = (0.0, x(bound)) if limit.at_least is not None else (x(bound), float(width))
    parts = [
        f'<svg xmlns="{XMLNS}" viewBox="0 0 {width} {height}" width="{width}" font-family="sans-serif" font-size="10" '
        f'text-anchor="middle" fill="{ink}">',
        f"<title>{escape(limit_words(outcome))}</title>" if hover else "",
        f'<rect x="{tenth(start)}" y="{tenth(middle - 9)}" width="{tenth(end - start)}" height="18" opacity=".15"/>',
        f'<path d="M0 {tenth(middle)}H{width}M{tenth(x(bound))} {tenth(middle - 11)}v22" stroke="{ink}"/>',
    ]
    if math.isfinite(null):
        parts.append(f'<path d="M{tenth(x(null))} {tenth(middle - 11)}v22" stroke="{ink}" stroke-dasharray="2"/>')
    words = f"limit {number(bound)}"
    at = tenth(_inside(x(bound), width, 4 + 2.7 * len(words)))
    label = f'<text x="{at}" y="{tenth(height - 2)}">{words}</text>'
    return "".join([*parts, _mark(outcome, (low, value, high), x, middle, width), label, "</svg>"])


def limit_words(outcome: LimitOutcome) -> str:
    """A limit in one line of words: verdict, what is judged and against what, value and interval."""
    held = f"judged {judged_text(outcome)}, limit {limit_text(outcome.limit)}"
    return f"{LABELS[outcome.status]}: {held}; value {interval(outcome.estimate)}"


def interval_markdown(outcome: LimitOutcome) -> str:
    """Return :func:`interval_svg` as a Markdown image of under 1,000 characters (a data URI; Dagster drops raw SVG)."""
    alt = limit_words(outcome).replace("[", "(").replace("]", ")")
    svg = interval_svg(outcome, ink="gray", hover=False).replace('"', "'")
    address = quote(svg, safe="=/:;,.'")
    return f"![{alt}](data:image/svg+xml,{address})"


def _along(estimate: Estimate | None) -> tuple[float, float, float, float]:
    """Null, low, value and high as they are judged: of a two-sided statistic the distances from the null."""
    if estimate is None:
        return (math.nan,) * 4
    null, value, ends = estimate.null, estimate.value, sorted((estimate.low, estimate.high))
    if estimate.direction != "two_sided":
        return null, ends[0], value, ends[1]
    side = 1 if sum(ends) >= 2 * null else -1
    low, high = sorted(side * (end - null) for end in ends)
    return 0.0, low, side * (value - null), high


def _mark(outcome: LimitOutcome, along: tuple[float, float, float], x: Scale, middle: float, width: int) -> str:
    colour, (low, value, high) = COLOURS[outcome.status], along
    if not math.isfinite(outcome.measured):
        return f'<text x="{tenth(width / 2)}" y="{tenth(middle - 14)}">not measured</text>'
    at, y, lines = tenth(x(outcome.measured)), tenth(middle), ""
    if all(map(math.isfinite, along)):
        tick = f"M{tenth(x(value))} {tenth(middle - 5)}v10"
        lines = f'<path d="M{tenth(x(low))} {y}H{tenth(x(high))}{tick}" stroke="{colour}" stroke-width="2"/>'
    shapes = {
        "pass": f'<circle cx="{at}" cy="{y}" r="5" fill="{colour}"/>',
        "fail": f'<path d="M{at} {tenth(middle - 7)}l7 7-7 7-7-7z" fill="{colour}"/>',
        "not_assessable": f'<circle cx="{at}" cy="{y}" r="5" fill="none" stroke="{colour}" stroke-width="3"/>',
    }
    left = tenth(_inside(x(outcome.measured), width, 20))
    return (
        lines + shapes[outcome.status] + f'<text x="{left}" y="{tenth(middle - 14)}">{number(outcome.measured)}</text>'
    )


def curves_svg(rows: Rows, curves: Mapping[str, tuple[str, str]], labels: tuple[str, str], *, log: bool = False) -> str:
    """Draw a curve by label -> its columns of x and of y; rows without a number break none.

    With ``log`` both axes are logarithmic, and points above 0 are drawn.
    """
    lines = [_points(rows, x, y, log) for x, y in curves.values()]
    points = [point for line in lines for point in line]
    if len(points) < 2:
        return ""
    ticks = _decades if log else nice_ticks
    x_ticks, y_ticks = ticks([p[0] for p in points]), ticks([p[1] for p in points])
    x, up = _linear(x_ticks, LEFT, WIDTH - RIGHT, pad=0), _linear(y_ticks, HEIGHT - BOTTOM, TOP, pad=0)
    word = _power if log else number
    parts = [_frame(labels), _y_axis(y_ticks, up, word), *(_x_tick(x(t), word(t)) for t in x_ticks)]
    for i, line in enumerate(lines):
        path = " ".join(f"{tenth(x(a))},{tenth(up(b))}" for a, b in sorted(line, key=lambda p: (p[1], p[0])))
        parts.append(f'<polyline class="curve s{i % SERIES}" points="{path}"/>')
        parts += [_spot(x(a), up(b), f"{word(a)}: {word(b)}") for a, b in line]
    return canvas([*parts, *_legend(list(curves), lines=True)], HEIGHT + _legend_height(len(curves)), _title(labels))


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
    """Draw value and interval (columns ``low``, ``high``) by ``x`` and series, with a line at ``null``.

    Every distinct ``x`` has a place of its own, in order of size, where the series stand side by side; with ``log`` the
    places lie on a logarithmic axis, and rows whose ``x`` is not above zero are left out.
    """
    kept = [
        row
        for row in rows
        if math.isfinite(as_number(row.get(y))) and (not log or 0 < as_number(row.get(x)) < math.inf)
    ]
    if not kept:
        return ""
    names = list(dict.fromkeys(_series(row, series) for row in kept))
    bounds = [
        v for row in kept for v in map(as_number, (row.get(y), row.get("low"), row.get("high"))) if math.isfinite(v)
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
        parts.append(_point(places[_word(row.get(x))] + gap * (i - (len(names) - 1) / 2), row, y, up, i))
    legend = _legend(names, lines=False) if len(names) > 1 or names[0] else []
    return canvas([*parts, *legend], HEIGHT + (_legend_height(len(names)) if legend else 0), _title(labels))


def _places(rows: Rows, x: str) -> tuple[dict[str, float], dict[str, float]]:
    """Evenly spaced places of the distinct values of ``x``, by their word; and those that get a label."""
    sizes = {_word(row.get(x)): as_number(row.get(x)) for row in rows}
    spots = sorted(sizes, key=lambda word: (math.isnan(sizes[word]), sizes[word], word))
    step = (WIDTH - LEFT - RIGHT) / len(spots)
    places = {word: LEFT + step * (i + 0.5) for i, word in enumerate(spots)}
    return places, {word: places[word] for word in spots[:: math.ceil(len(spots) / 12)]}


def _log_places(rows: Rows, x: str) -> tuple[dict[str, float], dict[str, float]]:
    """Places on a logarithmic axis, by the word of the value; and the labels 1, 2, 5, 10, ... within its range."""
    logs = {_word(row.get(x)): math.log10(as_number(row.get(x))) for row in rows}
    scale = _linear(logs.values(), LEFT + 16, WIDTH - RIGHT - 16, pad=0)
    low, high = min(logs.values()), max(logs.values())
    marks = [m * 10.0**k for k in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)]
    inside = [mark for mark in marks if low - 0.1 <= math.log10(mark) <= high + 0.1]
    return {word: scale(v) for word, v in logs.items()}, {number(m): scale(math.log10(m)) for m in inside}


def _point(at: float, row: Mapping[str, Any], y: str, up: Scale, i: int) -> str:
    value, low, high = (as_number(row.get(column)) for column in (y, "low", "high"))
    bar = ""
    if math.isfinite(low) and math.isfinite(high):
        bar = f'<path class="bar s{i % SERIES}" d="M{tenth(at)} {tenth(up(low))}V{tenth(up(high))}"/>'
    shown = f"{number(value)} [{number(low)}, {number(high)}]" if bar else number(value)
    return f"<g><title>{shown}</title>{bar}{_shape(i, at, up(value))}</g>"


def _spot(x: float, y: float, words: str) -> str:
    """An unseen place that tells its numbers to whoever points at it."""
    spot = f'<circle cx="{tenth(x)}" cy="{tenth(y)}" r="5" fill="none" pointer-events="all">'
    return f"{spot}<title>{words}</title></circle>"


def nice_ticks(values: Iterable[float], count: int = 5) -> list[float]:
    """Return round, evenly spaced numbers that enclose the finite ``values``; about ``count`` of them."""
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
    """Whole powers of ten that enclose some decimal logarithms."""
    found = list(logs)
    return [float(k) for k in range(math.floor(min(found)), max(math.ceil(max(found)), math.floor(min(found)) + 1) + 1)]


def _power(log: float) -> str:
    return number(10.0**log)


def _linear(values: Iterable[float], start: float, end: float, pad: float = 0.06) -> Scale:
    finite = [v for v in values if math.isfinite(v)] or [0.0]
    low, high = min(finite), max(finite)
    room = (high - low) * pad if high > low else max(abs(high), 1.0) * 0.5  # one value stands in the middle
    low, high = low - room, high + room
    return lambda v: start + (v - low) / (high - low) * (end - start)


def _title(labels: tuple[str, str]) -> str:
    return f"{labels[1]} by {labels[0]}"


def _frame(labels: tuple[str, str]) -> str:
    place = f'text-anchor="middle" transform="translate(12 {tenth((TOP + HEIGHT - BOTTOM) / 2)}) rotate(-90)"'
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
        parts.append((line if lines else _shape(i, x + 13, y)) + text_at(x + 34, y + 4, name, anchor="start"))
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
    """A plot of the page, ``WIDTH`` wide, with the name and description that a screen reader tells."""
    heading = f"<title>{escape(title)}</title>" + (f"<desc>{escape(description)}</desc>" if description else "")
    return f'<svg class="plot" role="img" viewBox="0 0 {WIDTH} {height:g}">{heading}{"".join(parts)}</svg>'


def text_at(x: float, y: float, words: str, anchor: str = "middle") -> str:
    """Small text at a place."""
    return f'<text class="axis" x="{tenth(x)}" y="{tenth(y)}" text-anchor="{anchor}">{escape(words)}</text>'


def _series(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    return ", ".join(_word(row[column]) for column in columns if row.get(column) is not None)


def _word(value: Any) -> str:
    return number(value) if _is_number(value) else clean(value, 30)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def as_number(value: Any) -> float:
    """The number in a table's cell; NaN for anything else."""
    return float(value) if _is_number(value) else math.nan


def _inside(x: float, width: float, half: float) -> float:
    return min(max(x, half), width - half)


def tenth(value: float) -> str:
    """A coordinate to a tenth."""
    return f"{value:.1f}".removesuffix(".0")
