"""A hand-made bar chart of points 0 to 100, coloured by grade; the rules of :mod:`privacy_assets.report.plots`."""

from __future__ import annotations

import math

from privacy_assets.report.pie import LEVELS
from privacy_assets.report.plots import WIDTH, Rows, as_number, canvas, text_at
from privacy_assets.report.text import clean, number

MOST_BARS = 40
_LEFT, _RIGHT, _STEP = 170, 60, 20


def bars_svg(rows: Rows, label: str, points: str) -> str:
    """Draw one bar a row, the fewest points first; rows without a number, and all beyond the first 40, are left out."""
    found = [(clean(row.get(label), 24), min(max(as_number(row.get(points)), 0.0), 100.0)) for row in rows]
    kept = sorted((pair for pair in found if math.isfinite(pair[1])), key=lambda pair: pair[1])[:MOST_BARS]
    if not kept:
        return ""
    room, bottom = WIDTH - _LEFT - _RIGHT, 10 + _STEP * len(kept)
    across = {mark: _LEFT + room * mark / 100 for mark in (0, 20, 40, 60, 80, 100)}
    parts = [f'<path class="grid" d="{"".join(f"M{x:g} 6V{bottom}" for x in across.values())}"/>']
    for at, (name, value) in enumerate(kept):
        top = 8 + _STEP * at
        level = max(len(LEVELS) - 1 - int(value // 20), 0)
        parts.append(f'<rect class="l{level}" x="{_LEFT}" y="{top}" width="{room * value / 100:.1f}" height="14"/>')
        parts.append(text_at(_LEFT - 8, top + 11, name, anchor="end"))
        parts.append(text_at(WIDTH - _RIGHT + 8, top + 11, number(value), anchor="start"))
    parts += [text_at(x, bottom + 15, str(mark)) for mark, x in across.items()]
    return canvas(parts, bottom + 22, f"{points} by {label}")
