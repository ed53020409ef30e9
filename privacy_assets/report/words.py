"""Numbers and names that are safe to show to readers."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from privacy_assets.policy import Limit, LimitOutcome, size_text
from privacy_assets.stats.estimates import Estimate, decimal

NO_EVIDENCE = "no evidence"  # label of a limit that holds without evidence
NOTHING = "–"
NOT_MEASURED = "not measured"
LONGEST = 120
# control, bidi and zero-width, unassigned, private, surrogates
_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
# combining marks: a few are part of a letter, many hide the neighboring text
_MARKS = {"Mn", "Me"}
_MAX_MARKS = 3  # in a row


def clean(value: object, longest: int = LONGEST) -> str:
    """Return text without characters that affect the surrounding text.

    Control, bidirectional, zero-width and unassigned characters are escaped, white space becomes a
    single space, combining marks beyond three in a row are dropped, and text longer than
    ``longest`` characters is cut in the middle.

    Args:
        value: Any value.
        longest: Maximum number of characters.
    """
    parts: list[str] = []
    n_marks = 0
    for character in " ".join(str(value).split()):
        category = unicodedata.category(character)
        n_marks = n_marks + 1 if category in _MARKS else 0
        if category in _HIDDEN:
            parts.append(_escaped(character))
        elif n_marks <= _MAX_MARKS:
            parts.append(character)
    text = "".join(parts)
    if len(text) <= longest:
        return text
    n_first = (longest - 1) // 2
    n_last = longest - 1 - n_first
    return f"{text[:n_first]}…{text[len(text) - n_last :]}"


def _escaped(character: str) -> str:
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


def cleaned(values: Iterable[object], longest: int = LONGEST) -> list[str]:
    """Return the text of each value, see :func:`clean`.

    Args:
        values: Any values.
        longest: Maximum number of characters of each text.
    """
    return [clean(value, longest) for value in values]


def number(value: Any) -> str:
    """Format a number with up to four significant digits, and missing or NaN as a dash.

    Decisions use the exact number.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    return decimal(value)


def interval(estimate: Estimate | None, statistic: str = "") -> str:
    """Return ``value [low, high]`` of a statistic, the value alone if it is exact, or "not
    measured".

    Args:
        estimate: Statistic.
        statistic: METRIC.STATISTIC. Shares and differences of shares are cut to their range.
    """
    if estimate is None or math.isnan(estimate.value):
        return NOT_MEASURED
    value, low, high = cut_to_range(estimate, statistic)
    if low == value == high:
        return number(value)
    return f"{number(value)} [{number(low)}, {number(high)}]"


def percent(share: float, rounded: Callable[[float], int] = round) -> str:
    """Return a share in percent with two significant digits, for example ``8.3 %``.

    Args:
        share: Share.
        rounded: ``round``, ``math.floor`` or ``math.ceil``.
    """
    return f"{decimal(100 * two_digits(share, rounded))} %"


def two_digits(number: float, rounded: Callable[[float], int] = round) -> float:
    """Round a number to two significant digits.

    Args:
        number: Number.
        rounded: ``round``, ``math.floor`` or ``math.ceil``.
    """
    if number == 0 or not math.isfinite(number):
        return number
    unit = 10.0 ** (math.floor(math.log10(abs(number))) - 1)
    return rounded(float(f"{number / unit:.9g}")) * unit  # without the error of the division


def percent_interval(outcome: LimitOutcome, people: str = "") -> str:
    """Return ``8.3 % (7 % to 10 % with 95 % confidence)``, or :func:`limit_interval` if it is not a
    share.

    Args:
        outcome: Outcome of a limit.
        people: The share as a number of people, for example "about 166 people", or "".
    """
    from privacy_assets.metrics.registry import statistic_spec  # slow to import

    estimate = outcome.estimate
    spec = statistic_spec(outcome.limit.statistic)
    if estimate is None or outcome.interval is None or spec is None or not spec.is_share:
        return limit_interval(outcome)
    displayed = replace(estimate, low=outcome.interval.low, high=outcome.interval.high)
    value, low, high = cut_to_range(displayed, outcome.limit.statistic)
    if low != high:
        level = f"{100 * outcome.interval.level:.3g} % confidence"
        ends = f"{percent(low, math.floor)} to {percent(high, math.ceil)} with {level}"
        details = f"{people}; {ends}" if people else ends
        return f"{percent(value)} ({details})"
    if people:
        return f"{percent(value)} ({people})"
    return percent(value)


def cut_to_range(estimate: Estimate, statistic: str) -> tuple[float, float, float]:
    """Return value, low and high. A share is cut to 0 and 1, and a difference of shares to -1 and
    1.

    Args:
        estimate: Statistic.
        statistic: METRIC.STATISTIC.
    """
    from privacy_assets.metrics.registry import statistic_spec  # slow to import

    spec = statistic_spec(statistic)
    if spec is None or not spec.is_share or math.isnan(estimate.null):
        return estimate.value, estimate.low, estimate.high
    lowest = -1.0 if estimate.null == 0 else 0.0
    return (
        _cut(estimate.value, lowest),
        _cut(estimate.low, lowest),
        _cut(estimate.high, lowest),
    )


def _cut(number: float, lowest: float) -> float:
    """Return the number cut to ``lowest`` and 1; NaN is unchanged."""
    if math.isnan(number):
        return number
    return min(max(number, lowest), 1.0)


def limit_symbol(limit: Limit) -> str:
    """Return the limit with its symbol: ``≤ 0.05`` or ``≥ 60``. Two-sided limits are distances from
    the null.
    """
    symbol = "≤" if limit.at_least is None else "≥"
    return f"{symbol} {number(limit.value)}"


def measured_text(outcome: LimitOutcome) -> str:
    """Return the number compared with the limit: "at most 0.1", "at least 0.1", "no leak proven" or
    a number.
    """
    estimate = outcome.estimate
    if estimate is None or not math.isfinite(outcome.compared):
        return NOT_MEASURED
    has_interval = estimate.low < estimate.high
    if outcome.limit.bound == "proven" and has_interval and outcome.proven == 0:
        return "no leak proven"
    return size_text(outcome.limit, estimate, outcome.limit.bound, outcome.compared)


def limit_interval(outcome: LimitOutcome) -> str:
    """Return ``value [low, high] (97 %)``: a statistic with its interval at the confidence level of
    the limit.

    Shares and differences of shares are cut to their range.
    """
    estimate = outcome.estimate
    if estimate is None or outcome.interval is None:
        return NOT_MEASURED
    low, high, level = outcome.interval
    text = interval(replace(estimate, low=low, high=high), outcome.limit.statistic)
    if estimate.low == estimate.high:
        return text
    return f"{text} ({100 * level:.3g} %)"


def sentence(text: str) -> str:
    """Capitalize ``text`` (unless it starts with a name) and end it with a full stop; empty text is
    unchanged.
    """
    text = text.strip()
    if not text:
        return ""
    starts_with_word = text.split()[0].rstrip(",:;").isalpha()
    if text[-1] not in ".!?…":
        text += "."
    if starts_with_word:
        return text[0].upper() + text[1:]
    return text
