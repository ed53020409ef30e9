"""A hand-made pie of the levels that Gretel's attacks reached; the rules of :mod:`privacy_assets.report.plots`."""

from __future__ import annotations

import math

from privacy_assets.report.plots import Rows, as_number, canvas, tenth, text_at
from privacy_assets.report.text import clean, number

LEVELS = ("excellent", "very good", "good", "moderate", "poor")
_LAST = (*LEVELS, "unavailable")
_X, _Y, _R, _LEGEND, _STEP = 112, 112, 84, 240, 27
_SMALLEST_MARKED = 0.02  # smaller slices have no room for their number


def pie_svg(rows: Rows) -> str:
    """Draw the shares of ``rows`` (columns "level", "attacks", "share"), scaled to sum to one, the best level first.

    Each slice and its line of the legend bear the same number, so that nothing hangs on colour; the legend gives range,
    attacks and share of every level, also of those that no attack reached. Rows without a share are left out.
    """
    kept = [(clean(row.get("level"), 30), as_number(row.get("attacks")), as_number(row.get("share"))) for row in rows]
    kept = sorted((row for row in kept if 0 <= row[2] < math.inf), key=lambda row: _class(row[0], len(_LAST)))
    total = sum(share for *_, share in kept)
    if total <= 0:
        return ""
    parts, lines, turn = [], [], 0.0
    for at, (name, attacks, share) in enumerate(kept):
        part, level, y = share / total, f"l{_class(name, at % len(_LAST))}", 32 + _STEP * at
        parts.append(_slice(level, str(at + 1), turn, turn + part))
        turn += part
        words = f"{name}{_range(name)}: {_attacks(attacks)}{100 * part:.3g} %"
        lines.append(words)
        parts.append(f'<rect class="{level}" x="{_LEGEND}" y="{y - 11}" width="14" height="14"/>')
        parts.append(text_at(_LEGEND + 30, y, str(at + 1)) + text_at(_LEGEND + 44, y, words, anchor="start"))
    height = max(2 * _Y, 32 + _STEP * len(kept))
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
