"""Dates and times in text: their formats, and how a cell is read."""

from __future__ import annotations

import re

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

_DAY = "[0-9]{1,2}"
_YEAR = "[0-9]{4}"
_CLOCK = "[0-9]{1,2}:[0-9]{2}"
_ZONE = "(Z|[+-][0-9]{2}(:?[0-9]{2})?)"
ISO = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T"
    rf" ][0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}}([.][0-9]{{1,9}})?)?( ?{_ZONE})?)?$"
)
ZONED = rf":.*{_ZONE}$"
_TIMES = {
    "": "",
    "%H:%M": _CLOCK,
    "%H:%M:%S": f"{_CLOCK}:[0-9]{{2}}",
    "%I:%M %p": f"{_CLOCK} [AaPp][Mm]",
    "%I:%M:%S %p": f"{_CLOCK}:[0-9]{{2}} [AaPp][Mm]",
}
_ORDERS = {
    "%d{0}%m{0}%Y": (_DAY, _DAY, _YEAR),
    "%m{0}%d{0}%Y": (_DAY, _DAY, _YEAR),
    "%Y{0}%m{0}%d": (_YEAR, _DAY, _DAY),
    "%d{0}%m{0}%y": (_DAY, _DAY, "[0-9]{2}"),
    "%m{0}%d{0}%y": (_DAY, _DAY, "[0-9]{2}"),
}
_WITH_MONTH_NAMES = {
    "%d-%b-%Y": "[0-9]{1,2}-[A-Za-z]{3}-[0-9]{4}",
    "%d %b %Y": "[0-9]{1,2} [A-Za-z]{3} [0-9]{4}",
    "%d%b%Y": "[0-9]{1,2}[A-Za-z]{3}[0-9]{4}",
    "%d %B %Y": "[0-9]{1,2} [A-Za-z]{3,9} [0-9]{4}",
    "%B %d, %Y": "[A-Za-z]{3,9} [0-9]{1,2}, [0-9]{4}",
}


def _day_patterns() -> dict[str, str]:
    """Return the regular expression of each format of a day."""
    patterns = {}
    for separator in "./-":
        for order, parts in _ORDERS.items():
            patterns[order.format(separator)] = f"[{separator}]".join(parts)
    return patterns | _WITH_MONTH_NAMES


def _date_patterns() -> dict[str, str]:
    """Return the regular expression of each format of a day, with and without a time."""
    patterns = {}
    for time_format, time_pattern in _TIMES.items():
        for day_format, day_pattern in _day_patterns().items():
            date_format = f"{day_format} {time_format}".strip()
            date_pattern = f"{day_pattern} {time_pattern}".strip()
            patterns[date_format] = f"^{date_pattern}$"
    return patterns


DATES = _date_patterns()


def parse_times(texts: pa.Array, form: str = "") -> pd.Series:
    """Read times from texts.

    Args:
        texts: Strings (n,), with nulls.
        form: Format of ``strptime``. "": ISO 8601.

    Returns:
        Times in UTC, datetime64[us, UTC] (n,); NaT for texts of another form.
    """
    strings = pd.Series(pc.utf8_trim_whitespace(texts).to_pandas())
    times = pd.to_datetime(strings, errors="coerce", utc=True, format=form or "ISO8601")
    return times.astype("datetime64[us, UTC]")


def is_time_format(form: str) -> bool:
    """Return True if times can be read in this format of ``strptime``."""
    try:
        parse_times(pa.array(["2020"], pa.large_string()), form)
    except (ValueError, re.error):
        return False
    return "%" in form
