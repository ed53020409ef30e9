"""Dates and times in text: their formats, and how a cell is read."""

from __future__ import annotations

import re

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

_DAY, _YEAR, _CLOCK = "[0-9]{1,2}", "[0-9]{4}", "[0-9]{1,2}:[0-9]{2}"
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
_DAYS = {
    **{
        order.format(sign): f"[{sign}]".join(parts)
        for sign in "./-"
        for order, parts in _ORDERS.items()
    },
    "%d-%b-%Y": "[0-9]{1,2}-[A-Za-z]{3}-[0-9]{4}",
    "%d %b %Y": "[0-9]{1,2} [A-Za-z]{3} [0-9]{4}",
    "%d%b%Y": "[0-9]{1,2}[A-Za-z]{3}[0-9]{4}",
    "%d %B %Y": "[0-9]{1,2} [A-Za-z]{3,9} [0-9]{4}",
    "%B %d, %Y": "[A-Za-z]{3,9} [0-9]{1,2}, [0-9]{4}",
}
DATES = {f"{day} {time}".strip(): f"^{f'{of_day} {of_time}'.strip()}$"
          for time, of_time in _TIMES.items() for day, of_day in _DAYS.items()}  # fmt: skip


def parse_times(texts: pa.Array, form: str = "") -> pd.Series:
    """Read times from texts as UTC, datetime64[us, UTC]; NaT for texts of another form. "" is ISO
    8601.
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
