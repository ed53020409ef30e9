"""Hand-made bars of shares, by category and series, and what the filters changed as such bars."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from privacy_assets.metrics.registry import METRICS
from privacy_assets.report.plots import WIDTH, Rows, as_number, canvas, tenth, text_at
from privacy_assets.report.text import clean, number
from privacy_assets.stats.results import MetricResult

MOST_GROUPS = 30
_LEFT, _RIGHT, _BAR, _GAP = 170, 66, 14, 8
_ROOM = WIDTH - _LEFT - _RIGHT
_SMALLEST = 1e-5  # a share below it has no length on a logarithmic axis


def before_and_after(before: Any, after: Mapping[str, MetricResult]) -> tuple[str, str]:
    """Bars of statistics before and after a filter, with their caption; empty without any.

    ``before`` are results by metric, in JSON. Only what a metric measured alike is set side by side: with the same
    settings, seed and version.
    """
    rows, caption = [], "Before and after the filter."
    for name, metric in METRICS.items():
        then, now = before.get(name) if isinstance(before, Mapping) else None, after.get(name)
        if metric.compared is None or not isinstance(then, Mapping) or now is None:
            continue
        sides = [then, now.to_json()]
        if any(then.get(key) != sides[1][key] for key in ("settings", "seed", "engine_version")):
            continue
        one = metric.compared
        values = [as_number(side["estimates"].get(one.statistic, {}).get("value")) for side in sides]
        if all(map(math.isfinite, values)):
            rows.append({"statistic": one.words, "before": values[0], "after": values[1]})
            caption += f" {one.meaning}"
    return caption, shares_svg(rows, "statistic", {"before": "before the filter", "after": "after"})


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
    marks = (1e-4, 1e-3, 1e-2, 1e-1, 1.0) if log else (0.0, 0.25, 0.5, 0.75, 1.0)
    parts = [f'<path class="grid" d="{"".join(f"M{tenth(_across(mark, log))} 6V{bottom}" for mark in marks)}"/>']
    for at, row in enumerate(kept):
        top = 10 + step * at
        words = clean(row.get(label), 24)
        parts.append(text_at(_LEFT - 8, top + _BAR * len(series) / 2 + 4, words, anchor="end"))
        for place, column in enumerate(series):
            parts.append(_bar(as_number(row.get(column)), top + _BAR * place, place, log))
    parts += [text_at(_across(mark, log), bottom + 15, number(mark)) for mark in marks]
    height = bottom + 22
    if len(series) > 1:
        parts += [_legend(place, words, height) for place, words in enumerate(series.values())]
        height += 22
    return canvas(parts, height, clean(f"{', '.join(series.values())} by {label}", 120))


def _across(value: float, log: bool) -> float:
    share = min(max(value, 0.0), 1.0)
    if log:
        share = 1 - math.log(max(share, _SMALLEST)) / math.log(_SMALLEST)
    return _LEFT + _ROOM * share


def _bar(value: float, top: float, place: int, log: bool) -> str:
    if not math.isfinite(value):
        return ""
    end = _across(value, log)
    size = f'x="{_LEFT}" y="{tenth(top)}" width="{tenth(end - _LEFT)}" height="{_BAR - 3}"'
    return f'<rect class="mark s{place % 4}" {size}/>' + text_at(end + 6, top + 9, number(value), anchor="start")


def _legend(place: int, words: str, height: float) -> str:
    x = _LEFT + 190 * place
    box = f'<rect class="mark s{place % 4}" x="{x}" y="{tenth(height)}" width="14" height="11"/>'
    return box + text_at(x + 20, height + 10, clean(words, 30), anchor="start")
