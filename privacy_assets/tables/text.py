"""Text columns that hold numbers, dates or booleans: how they are recognized, and how a cell is read.

A column of text is read as numbers, dates or booleans if all its values have one form, apart from markers of missing
values such as ``#N/A``. If values have different forms, or a form has two meanings, the column is ambiguous and the
user declares it. Codes stay text, because ``007`` and ``7`` are different codes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from privacy_assets.tables.schema import Kind

# Texts that mean a missing value in a column of numbers or dates. In other columns only the empty text does: NA is a
# country.
MARKERS = (
    "",
    "NA",
    "N/A",
    "n/a",
    "#N/A",
    "NaN",
    "nan",
    "NULL",
    "null",
    "None",
    "<NA>",
    "NaT",
    "\\N",
    ".",
    "-",
    "--",
    "?",
)
YEARS = (1500, 2100)
MOST = 0.5  # minimum share of rows that are numbers or dates in an ambiguous column
FEW = 20  # a column with strays and at most this many numbers or dates is a category, such as 1, 2, 3, other

Texts = tuple[pa.Array, np.ndarray]  # distinct strings of a column, and the number of rows of each

_POINT = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_COMMA = r"^[+-]?([0-9]+|[0-9]{1,3}(\.[0-9]{3})+)(,[0-9]+)?$"
_GROUPED = r"^[+-]?([0-9]+|[0-9]{1,3}(,[0-9]{3})+)(\.[0-9]+)?$"
_NUMBERS = {"": _POINT, ",": _COMMA, ".": _GROUPED}  # by the format of the column
_CODE = r"^[A-Za-z]{1,4}[ .-]?[0-9]|^[0-9]+[A-Za-z]"  # letters next to digits
_WHOLE = r"^[+-]?[0-9]+$"
_MIN_CODE_DIGITS = 4
_DIGITS = 17  # significant digits of a float
_SHARED, _NAMED_STRAYS = 10, 10  # rows that must have a text that a message names, and maximum number of such texts

_DAY, _YEAR, _CLOCK = "[0-9]{1,2}", "[0-9]{4}", "[0-9]{1,2}:[0-9]{2}"
_ZONE = "(Z|[+-][0-9]{2}(:?[0-9]{2})?)"
_ISO = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}([T ][0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}}([.][0-9]{{1,9}})?)?( ?{_ZONE})?)?$"
ZONED = rf":.*{_ZONE}$"
_TIMES = {"": "", "%H:%M": _CLOCK, "%H:%M:%S": f"{_CLOCK}:[0-9]{{2}}", "%I:%M %p": f"{_CLOCK} [AaPp][Mm]",
          "%I:%M:%S %p": f"{_CLOCK}:[0-9]{{2}} [AaPp][Mm]"}  # fmt: skip
_ORDERS = {
    "%d{0}%m{0}%Y": (_DAY, _DAY, _YEAR),
    "%m{0}%d{0}%Y": (_DAY, _DAY, _YEAR),
    "%Y{0}%m{0}%d": (_YEAR, _DAY, _DAY),
    "%d{0}%m{0}%y": (_DAY, _DAY, "[0-9]{2}"),
    "%m{0}%d{0}%y": (_DAY, _DAY, "[0-9]{2}"),
}
_DAYS = {
    **{order.format(sign): f"[{sign}]".join(parts) for sign in "./-" for order, parts in _ORDERS.items()},
    "%d-%b-%Y": "[0-9]{1,2}-[A-Za-z]{3}-[0-9]{4}",
    "%d %b %Y": "[0-9]{1,2} [A-Za-z]{3} [0-9]{4}",
    "%d%b%Y": "[0-9]{1,2}[A-Za-z]{3}[0-9]{4}",
    "%d %B %Y": "[0-9]{1,2} [A-Za-z]{3,9} [0-9]{4}",
    "%B %d, %Y": "[A-Za-z]{3,9} [0-9]{1,2}, [0-9]{4}",
}
_DATES = {f"{day} {time}".strip(): f"^{f'{of_day} {of_time}'.strip()}$"
          for time, of_time in _TIMES.items() for day, of_day in _DAYS.items()}  # fmt: skip


class Digits(NamedTuple):
    """Integers of a text column that all have the same number of digits, at least four, and no sign.

    Attributes:
        smallest: Smallest value.
        largest: Largest value.
        n_distinct: Number of distinct values.
    """

    smallest: int
    largest: int
    n_distinct: int

    @property
    def are_years(self) -> bool:
        """True if all values may be years."""
        return YEARS[0] <= self.smallest and self.largest <= YEARS[1]

    @property
    def share_present(self) -> float:
        """Share of the integers from the smallest to the largest value that occur."""
        return self.n_distinct / (self.largest - self.smallest + 1)


@dataclass(frozen=True, slots=True)
class TextForm:
    """How the cells of a text column are read.

    Attributes:
        kind: Kind of the values.
        format: Dates: the format of ``strptime``, or "" for ISO 8601. Numbers: "" for a plain decimal point, "," for a
            decimal comma, "." for a decimal point with commas between groups of three digits.
        zoned: True for times with a time zone.
        whole: True if all numbers are whole.
        note: What had to be recognized, for the reader; "" if nothing.
        doubt: Why the column is ambiguous; "" if it is not. Neither contains cells.
        choices: Kinds between which the user decides if the column is ambiguous.
        strays: Texts that the first choice needs as declared missing values. Many rows have each of them.
        digits: Values of a column that may be a code, see :class:`Digits`, else None.
    """

    kind: Kind
    format: str = ""
    zoned: bool = False
    whole: bool = False
    note: str = ""
    doubt: str = ""
    choices: tuple[Any, ...] = ()
    strays: tuple[str, ...] = ()
    digits: Digits | None = field(default=None, compare=False)

    def with_note(self, note: str) -> TextForm:
        """Return the form with a further note."""
        notes = [self.note, note]
        return replace(self, note="; ".join(text for text in notes if text))


def infer_text(tables: Sequence[Texts], missing: Sequence[str] = ()) -> TextForm:
    """Recognize the form of a text column.

    Args:
        tables: The column in each real table.
        missing: Declared texts that mean a missing value, in addition to :data:`MARKERS`.

    Returns:
        The form. Its ``doubt`` is set if the user has to declare the column.
    """
    texts, rows = _together(tables)
    values = pc.utf8_trim_whitespace(texts)
    gone = _mask(pc.is_in(values, pa.array(["", *missing], pa.large_string())))
    marked = _mask(pc.is_in(values, pa.array(MARKERS, pa.large_string()))) & ~gone
    markers = sorted(set(values.filter(pa.array(marked)).to_pylist()))
    known = ~gone & ~marked
    if not known.all():
        values, rows = values.filter(pa.array(known)), rows[known]
    if not len(values):
        return TextForm("categorical")
    form = _booleans(values) or _numbers(values, tables, missing) or _dates(values) or _strays(values, rows)
    if form is None or form.kind == "categorical" or form.doubt:
        return form or TextForm("categorical")
    read = f"{', '.join(markers)} {'is' if len(markers) == 1 else 'are'} missing" if markers else ""
    return form.with_note(read)


def _together(tables: Sequence[Texts]) -> Texts:
    """Return the distinct texts of all tables, and the number of rows of each."""
    if len(tables) == 1:
        return tables[0]
    texts = pa.concat_arrays([texts for texts, _ in tables])
    table = pa.table({"text": texts, "rows": np.concatenate([rows for _, rows in tables])})
    counted = table.group_by("text").aggregate([("rows", "sum")]).combine_chunks()
    return counted["text"].combine_chunks(), counted["rows_sum"].to_numpy()


def _mask(values: pa.Array) -> np.ndarray:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=bool)


def _matches(values: pa.Array, pattern: str) -> np.ndarray:
    return _mask(pc.match_substring_regex(values, pattern))


def _all_match(values: pa.Array, pattern: str) -> bool:
    """Return True if all values match. The first ones are tried alone, because most columns fail there."""
    return bool(_matches(values.slice(0, 100), pattern).all() and _matches(values.slice(100), pattern).all())


def _booleans(values: pa.Array) -> TextForm | None:
    few = len(values) <= FEW and set(pc.utf8_lower(values).to_pylist()) <= {"true", "false"}
    return TextForm("boolean") if few else None


def _numbers(values: pa.Array, tables: Sequence[Texts], missing: Sequence[str]) -> TextForm | None:
    """Return the form of a column of which all values are numbers. None: some are not."""
    sign = next((sign for sign, pattern in _NUMBERS.items() if _all_match(values, pattern)), None)
    if sign is None:
        return None
    choice = {"numeric": {"decimal": sign}} if sign else "numeric"
    if sign == "," and _all_match(values, _NUMBERS["."]):
        choices = (choice, {"numeric": {"decimal": "."}}, "categorical")
        return TextForm("numeric", doubt="a comma may separate decimals or thousands", choices=choices)
    if _matches(values, r"^[+-]?0[0-9]").any():
        return TextForm("categorical", note="codes with leading zeros stay text")
    read = parse_numbers(values, sign)
    whole = pd.api.types.is_integer_dtype(read)
    lengths = pc.utf8_length(values)
    if whole or not _all_match(values, _WHOLE):
        long = values.filter(pc.greater(lengths, _DIGITS))
        digits = pc.utf8_length(pc.utf8_ltrim(pc.replace_substring_regex(long, r"[eE].*$|[^0-9]", ""), "0"))
        long_decimals = not whole and bool(pc.any(pc.greater(digits, _DIGITS)).as_py())
    else:  # integers beyond 64 bits
        if pc.min(lengths) == pc.max(lengths):
            return TextForm("categorical", note="codes of many digits stay text")
        long_decimals = True
    if long_decimals:
        return TextForm("numeric", doubt="numbers have more digits than can be computed with", choices=("categorical",))
    if read.nunique() < len(values) and any(_spelt_twice(table, sign, missing) for table in tables):
        choice = "integer" if whole else choice
        doubt = "one number is written in two ways, as 1.1 and 1.10 are"
        return TextForm("numeric", doubt=doubt, choices=(choice, "categorical"))
    note = {"": "", ",": "numbers with decimal commas", ".": "numbers with commas between thousands"}[sign]
    digits = _digits(values, read)
    all_whole = whole or bool((read % 1 == 0).all())
    return TextForm("integer" if whole else "numeric", sign, whole=all_whole, note=note, digits=digits)


def _digits(values: pa.Array, numbers: pd.Series) -> Digits | None:
    """Return the values of a column if all are integers with the same number of digits, at least four, else None.

    Args:
        values: Texts of numbers, distinct except for blanks around them.
        numbers: Their numbers.
    """
    lengths = pc.min_max(pc.utf8_length(values)).as_py()
    if lengths["min"] != lengths["max"] or lengths["min"] < _MIN_CODE_DIGITS:
        return None
    has_blanks_in_some = len(pc.unique(values)) < len(values)
    if has_blanks_in_some or not _all_match(values, "^[0-9]+$"):
        return None
    return Digits(int(numbers.min()), int(numbers.max()), len(values))


def _spelt_twice(table: Texts, sign: str, missing: Sequence[str]) -> bool:
    """Return True if a table contains two spellings of one number. Two tables may differ in their spelling."""
    texts = pc.unique(pc.utf8_trim_whitespace(table[0]))
    texts = texts.filter(pc.invert(pc.is_in(texts, pa.array([*MARKERS, *missing], pa.large_string()))))
    texts = texts.filter(pc.invert(pc.match_substring_regex(texts, r"^-[0.,]*$")))  # programs write -0.0 and 0.0
    return parse_numbers(texts, sign).nunique() < len(texts)


def _dates(values: pa.Array) -> TextForm | None:
    """Return the form of a column of which all values are dates. None: some are not."""
    if _all_match(values, _ISO):
        if parse_times(values).isna().any():
            return None
        zoned = _matches(values, ZONED)
        if zoned.any() and not zoned.all():
            doubt = "some times have a time zone, and others have none"
            return TextForm("datetime", doubt=doubt, choices=("categorical",))
        return TextForm("datetime", zoned=bool(zoned.any()))
    shaped = [form for form, pattern in _DATES.items() if _all_match(values, pattern)]
    fits = [form for form in shaped if not parse_times(values, form).isna().any()]
    if len(fits) > 1 and fits[0].startswith("%d.") and "%Y" in fits[0]:
        fits = fits[:1]  # the day is first where points separate
    if len(fits) > 1 or (fits and "%y" in fits[0]):
        doubt = "the day or the month may come first" if len(fits) > 1 else "the years have two digits"
        choices = (*({"datetime": form} for form in fits), "categorical")
        return TextForm("datetime", doubt=doubt, choices=choices)
    return TextForm("datetime", fits[0], note=f"dates of the form {fits[0]}") if fits else None


def _strays(values: pa.Array, rows: np.ndarray) -> TextForm | None:
    """Return a doubtful form if at least half of the values are numbers or dates. None: the column is a category."""
    patterns: list[tuple[str, str, Any]] = [
        (_POINT, "numbers", "numeric"),
        (_COMMA, "numbers", {"numeric": {"decimal": ","}}),
        (_GROUPED, "numbers", {"numeric": {"decimal": "."}}),
        (_ISO, "dates", "datetime"),
        *((pattern, "dates", {"datetime": form}) for form, pattern in _DATES.items()),
    ]
    for pattern, what, choice in patterns:
        fits = _matches(values, pattern)
        if fits.sum() <= FEW or rows[fits].sum() < MOST * rows.sum():
            continue
        others = values.filter(pa.array(~fits))
        if not len(others):
            return TextForm("categorical", doubt="the dates have no common order", choices=("categorical",))
        if what == "numbers" and (_matches(values, r"^0[0-9]").any() or _matches(others, _CODE).any()):
            return TextForm("categorical", note="codes stay text")
        count = int(rows[~fits].sum())
        doubt = f"{count} of {int(rows.sum())} values are not {what}"
        strays = tuple(others.to_pylist()) if len(others) <= _NAMED_STRAYS and rows[~fits].min() >= _SHARED else ()
        return TextForm("categorical", doubt=doubt, choices=(choice, "categorical"), strays=strays)
    return None


def parse_numbers(texts: pa.Array, sign: str = "") -> pd.Series:
    """Read numbers from texts, Int64 if all are whole and fit, else Float64; NA for texts that are not numbers.

    Args:
        texts: Strings, with nulls.
        sign: Format of the column, see :class:`TextForm`.
    """
    texts = pc.utf8_trim_whitespace(texts)
    fits = pc.match_substring_regex(texts, _NUMBERS[sign])
    texts = pc.if_else(fits, texts, None)
    if sign:
        texts = pc.replace_substring(texts, "." if sign == "," else ",", "")
        texts = pc.replace_substring(texts, ",", ".") if sign == "," else texts
    if _all_match(texts.drop_null(), _WHOLE):
        with suppress(pa.ArrowInvalid):  # one is too large
            whole = pc.cast(pc.utf8_ltrim(texts, "+"), pa.int64())
            return pd.Series(pd.arrays.IntegerArray(*_filled(whole, 0)))
    return pd.Series(pd.arrays.FloatingArray(*_filled(pc.cast(texts, pa.float64()), 0.0)))


def parse_booleans(texts: pa.Array) -> pd.Series:
    """Read true and false in any case as booleans; NA for other texts."""
    words = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    known = pc.is_in(words, pa.array(["true", "false"], pa.large_string()))
    truth = pc.if_else(known, pc.equal(words, "true"), None)
    return pd.Series(pd.arrays.BooleanArray(*_filled(truth, False)))


def _filled(numbers: pa.Array, zero: float) -> tuple[np.ndarray, np.ndarray]:
    numbers = numbers.combine_chunks() if isinstance(numbers, pa.ChunkedArray) else numbers
    gone = numbers.is_null().to_numpy(zero_copy_only=False)
    return numbers.fill_null(zero).to_numpy(zero_copy_only=False).copy(), gone


def parse_times(texts: pa.Array, form: str = "") -> pd.Series:
    """Read times from texts as UTC, datetime64[us, UTC]; NaT for texts of another form. "" is ISO 8601."""
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


def is_text(series: pd.Series) -> bool:
    """Return True for a column that contains strings."""
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return is_text(pd.Series(series.cat.categories))
    if pd.api.types.is_object_dtype(dtype):
        return any(isinstance(value, str) for value in series)
    return isinstance(dtype, pd.StringDtype) or pd.api.types.is_string_dtype(dtype)


def texts_of(series: pd.Series) -> Texts:
    """Return the distinct non-missing cells of a column as strings, and the number of rows of each."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        rows = np.bincount(series.cat.codes[series.cat.codes >= 0], minlength=len(series.cat.categories))
        return as_texts(pd.Series(series.cat.categories[rows > 0])), rows[rows > 0]
    counted = pc.value_counts(as_texts(series).drop_null())
    return counted.field("values"), counted.field("counts").to_numpy(zero_copy_only=False)


def as_texts(series: pd.Series) -> pa.Array:
    """Return the cells of a column as Arrow strings, with nulls."""
    try:
        texts = pa.array(series, pa.large_string(), from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError):  # values that are not strings; lone surrogates
        cells = zip(series.astype(object), series.isna(), strict=True)
        texts = pa.array([None if gone else str(cell).encode(errors="replace").decode() for cell, gone in cells],
                         pa.large_string())  # fmt: skip
    return texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
