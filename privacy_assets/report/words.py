"""Numbers and names that are safe to show to readers."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

from privacy_assets.policy import Limit, LimitOutcome
from privacy_assets.stats.estimates import Estimate, decimal

LABELS = {"pass": "pass", "fail": "fail", "not_assessable": "not assessable"}
NOTHING = "–"
NOT_MEASURED = "not measured"
LONGEST = 120
_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}  # control, bidi and zero-width, unassigned, private, surrogates
_PLACED = {"Mn", "Me"}  # combining marks: a few are part of a letter, many hide the neighboring text


def clean(value: object, longest: int = LONGEST) -> str:
    """Return text without characters that affect the surrounding text.

    Control, bidirectional, zero-width and unassigned characters are escaped, white space becomes a single space,
    combining marks beyond three in a row are dropped, and text longer than ``longest`` characters is cut in the middle.
    """
    kept: list[str] = []
    marks = 0
    for character in " ".join(str(value).split()):
        kind = unicodedata.category(character)
        marks = marks + 1 if kind in _PLACED else 0
        if kind in _HIDDEN:
            kept.append(f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}")
        elif marks <= 3:
            kept.append(character)
    text = "".join(kept)
    if len(text) <= longest:
        return text
    half = (longest - 1) // 2
    return f"{text[:half]}…{text[len(text) - (longest - 1 - half) :]}"


def number(value: Any) -> str:
    """Format a number with up to four significant digits, and missing or NaN as a dash.

    Decisions use the exact number.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    return decimal(value)


def interval(estimate: Estimate | None) -> str:
    """Return ``value [low, high]`` of a statistic, the value alone if it is exact, or "not measured"."""
    if estimate is None or math.isnan(estimate.value):
        return NOT_MEASURED
    if estimate.low == estimate.value == estimate.high:
        return number(estimate.value)
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"


def limit_symbol(limit: Limit) -> str:
    """Return the limit with its symbol: ``≤ 0.05`` or ``≥ 60``. Two-sided limits are distances from the null."""
    return f"{'≤' if limit.at_least is None else '≥'} {number(limit.value)}"


def judged_text(outcome: LimitOutcome) -> str:
    """Return the number compared with the limit; for two-sided statistics, its distance from a null other than 0."""
    estimate, text = outcome.estimate, number(outcome.measured)
    if estimate is None or text == NOTHING:
        return NOT_MEASURED
    return f"{text} from {number(estimate.null)}" if estimate.direction == "two_sided" and estimate.null else text


def sentence(text: str) -> str:
    """Capitalize ``text`` (unless it starts with a name) and end it with a full stop; empty text is unchanged."""
    text = text.strip()
    if not text:
        return ""
    start = text[0].upper() if text.split()[0].rstrip(",:;").isalpha() else text[0]
    return start + text[1:] + ("" if text[-1] in ".!?…" else ".")
