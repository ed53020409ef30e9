"""Meaning of a column of text. The first row that applies decides:

| row | the column                                            | means                           |
|-----|-------------------------------------------------------|---------------------------------|
| 1   | is declared as categorical                            | a category                      |
| 2   | has a declared format                                 | numbers or dates of this format |
| 3   | is accepted as a category, and is text in all tables  | a category                      |
| 4   | has true and false only                               | booleans                        |
| 5   | has plain numbers only                                | numbers                         |
| 6   | has dates of one format only                          | dates                           |
| 7   | has numbers only, with one known unit or other marks  | numbers                         |
| 8   | has codes with letters next to digits                 | a category of codes             |
| 9   | has numbers or dates in at least half of the rows     | the run stops                   |
| 10  | has other texts                                       | a category                      |

For recognition, markers of missing values such as ``#N/A`` are ignored; in a category they are
values. Row 8 applies to texts without a unit and without dates. Row 9 applies to more than 20
distinct texts, or if all are numbers with known units; pairs of numbers such as 120/80 do not count
as numbers. Rows 5 to 7 stop the run if the texts have two meanings (1,234; 1.1 and 1.10; 1_000; (1)
and no number without brackets; 01/02/2024), for two-digit years, for times of which some have a
time zone, and for numbers that cannot be computed with. If accepted settings state one of the
meanings, it is taken instead. In rows 5 and 7, leading zeros, codes such as 12E5 and integers of
one length with too many digits make a category of codes. If a kind without a format is declared,
rows 4 to 10 find its format. Afterwards, integers with one number of digits may be codes, see
:mod:`.codes`. Known units and marks are in :mod:`.written_numbers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from privacy_assets.errors import InputError
from privacy_assets.tables.meaning import Meaning
from privacy_assets.tables.schema import Kind
from privacy_assets.tables.written_dates import DATES, ISO, ZONED, parse_times
from privacy_assets.tables.written_numbers import (
    CODE_WITH_E,
    NUMBERS,
    WHOLE,
    NumberFormat,
    WrittenNumbers,
    all_match,
    find,
    is_unit,
    parse_numbers,
    split_numbers,
    to_mask,
    without_unit,
)

# Texts that mean a missing value in a column of numbers or dates. In other columns only the empty
# text does: NA is a country.
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
_MIN_SHARE = 0.5  # minimum share of rows that are numbers or dates in an ambiguous column
_MIN_UNIT_SHARE = 0.1  # minimum share of rows with an unknown unit
# maximum number of distinct numbers or dates in a category with other texts, such as 1, 2, 3, other
_MAX_NUMBERS_OF_CATEGORY = 20
# minimum share of the integers up to the largest one, in names such as site 1, site 2
_MIN_DENSITY = 0.5
_MAX_BOOLEAN_TEXTS = 20  # distinct texts, among them the spellings of true and false

Texts = tuple[pa.Array, np.ndarray]  # distinct strings of a column, and the number of rows of each

_LEADING_ZERO = r"^[+-]?0[0-9]"
_CODE = r"^[A-Za-z]{1,4}[ .-]?[0-9]|^[0-9]+[A-Za-z]"  # letters next to digits
# One number with marks: ~5, [5], CHF 5.-, <1,000.50, 1 000-; ≥5 mg; 5*10^3 and 1,5E5.
_WITH_MARKS = "|".join(
    (
        r"^[^\p{L}\p{N}]*([A-Z]{3}\p{Zs})?"
        r"[0-9]+(([,'’`´\x{AD}]|\p{Zs}{2})[0-9]+)*(\.[0-9]+)?[^\p{L}\p{Nd}]*$",
        r"^[<>≤≥≈~=±]+\p{Zs}*[0-9][0-9.,' ]*[^\p{L}\p{Nd}]*\p{L}{1,8}$",
        r"^[+-]?[0-9]+([.,][0-9]+)?\p{Zs}?[*x×·]\p{Zs}?10\^?[+-]?[0-9]+$",
        r"^[+-]?[0-9]+,[0-9]+[eE][+-]?[0-9]+$",
    )
)
_PAIR = r"^[0-9]+([.,][0-9]+)?\p{Zs}?[/:–-]\p{Zs}?[0-9]+([.,][0-9]+)?$"  # 120/80, 150-155, 1:30
_INDIAN = ",[0-9]{2},"
_WORD = r"^\p{L}"
_CODES = "codes stay text"
UNMEASURED = "categories, as declared: whether their numbers or dates are near is not measured"
UNMEASURED_ACCEPTED = (
    "categories, as accepted: whether their numbers or dates are near is not measured"
)
CATEGORY = Meaning("categorical")
_SIGN_NOTES = {
    "": "",
    ",": "numbers with decimal commas",
    ".": "numbers with commas between thousands",
}
_MIN_CODE_DIGITS = 4
_DIGITS = 17  # significant digits of a float
_MIN_NAMED_ROWS = 10  # minimum number of rows with a text that a message names
_MAX_NAMED_STRAYS = 10  # maximum number of such texts


class Digits(NamedTuple):
    """Integers of a text column that all have the same number of digits, at least four, and no
    sign.

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
        format: Dates: the format of ``strptime``, or "" for ISO 8601. Numbers: that of
            :class:`.written_numbers.NumberFormat`.
        is_zoned: True for times with a time zone.
        is_integer: True if all numbers are integers.
        note: What had to be recognized, for the reader; "" if nothing.
        ambiguity: Why the column is ambiguous; "" if it is not. Neither contains cells.
        choices: Meanings between which the user decides if the column is ambiguous.
        strays: Texts that the first choice needs as declared missing values. Many rows have each of
            them.
        digits: Values of a column that may be a code, see :class:`Digits`, else None.
    """

    kind: Kind
    format: str = ""
    is_zoned: bool = False
    is_integer: bool = False
    note: str = ""
    ambiguity: str = ""
    choices: tuple[Meaning, ...] = ()
    strays: tuple[str, ...] = ()
    digits: Digits | None = field(default=None, compare=False)

    @property
    def has_distances(self) -> bool:
        """True if the values are numbers or dates, or at least half of them are."""
        return self.kind in ("integer", "numeric", "datetime") or bool(self.ambiguity)

    def with_note(self, note: str) -> TextForm:
        """Return the form with a further note."""
        notes = [self.note, note]
        return replace(self, note="; ".join(text for text in notes if text))


class TextDeclaration(NamedTuple):
    """Declarations of users about a column of text.

    Attributes:
        meaning: Declared meaning. None: none.
        missing: Declared texts that mean a missing value, in addition to :data:`MARKERS`.
        accepted: What accepted settings state, see :meth:`.Meaning.accepted_text`. "": nothing.
    """

    meaning: Meaning | None = None
    missing: Sequence[str] = ()
    accepted: str = ""


def read_texts(
    name: str, tables: Mapping[str, Texts], declaration: TextDeclaration, has_typed_parts: bool
) -> TextForm:
    """Decide what a column of text means, see the table of this module.

    Args:
        name: Name of the column.
        tables: The column in each real table in which it is text, by the name of the table in
            messages.
        declaration: What users state about it.
        has_typed_parts: True if it is not text in another real table.

    Returns:
        The form of its cells. Its ``ambiguity`` is set if the user has to declare the column.

    Raises:
        InputError: If every table alone contains numbers or dates, but no single form fits all of
            them.
    """
    meaning = declaration.meaning
    texts = list(tables.values())
    if meaning is None:
        return _undeclared(name, tables, declaration, has_typed_parts)
    if meaning.kind == "categorical":
        form = recognize_text(texts, declaration.missing)
        return TextForm("categorical", note=UNMEASURED if form.has_distances else "")
    if meaning.format is not None:
        return _with_decimal(meaning, texts, declaration.missing)
    return _of_declared_kind(recognize_text(texts, declaration.missing), meaning.kind)


def _undeclared(
    name: str, tables: Mapping[str, Texts], declaration: TextDeclaration, has_typed_parts: bool
) -> TextForm:
    """Return the form of a column without a declared meaning, see :func:`read_texts`."""
    form = recognize_text(list(tables.values()), declaration.missing)
    is_number = form.kind in ("integer", "numeric")
    if declaration.accepted == "categorical" and not has_typed_parts:
        may_be_code = form.digits is not None
        is_unmeasured = form.has_distances and not may_be_code
        return TextForm("categorical", note=UNMEASURED_ACCEPTED if is_unmeasured else "")
    if has_typed_parts and is_number and NumberFormat.of(form.format).unit:
        ambiguity = "the numbers of some tables have a unit, and those of others have none"
        choices = (_numeric(NumberFormat.of(form.format)), CATEGORY)
        return replace(form, ambiguity=ambiguity, choices=choices)
    is_plain_category = form.kind == "categorical" and not form.note
    if is_plain_category and len(tables) > 1 and not _has_unit(form):
        _check_one_form(name, tables, declaration.missing, form)
    return _as_accepted(form, declaration.accepted)


def _has_unit(form: TextForm) -> bool:
    """Return True if a doubtful column has numbers with a unit."""
    likely = form.choices[0] if form.choices else CATEGORY
    return likely.kind == "numeric" and NumberFormat.of(likely.format or "").unit != ""


def _with_decimal(meaning: Meaning, texts: Sequence[Texts], missing: Sequence[str]) -> TextForm:
    """Return the form of a declared format. The decimal sign of numbers with a unit is recognized
    if it is missing.
    """
    stored = meaning.format or ""
    if meaning.kind == "datetime":
        return TextForm("datetime", stored, is_zoned="%z" in stored)
    if NumberFormat.of(stored).decimal:
        return TextForm(meaning.kind, stored)
    form = recognize_text(texts, missing, unit=stored)
    if form.ambiguity and len(form.choices) > 2:  # the decimal sign has two meanings
        return form
    likely = form.choices[0] if form.choices else Meaning(form.kind, form.format)
    if likely.kind not in ("integer", "numeric"):
        return TextForm(meaning.kind, stored)
    decimal = NumberFormat.of(likely.format or "").decimal
    return TextForm(meaning.kind, NumberFormat(decimal, stored).stored)


def _of_declared_kind(form: TextForm, kind: Kind) -> TextForm:
    """Return the form of text of a declared kind: the declared one, unless its format is ambiguous
    as well.
    """
    numbers = {"numeric", "integer"}
    # a few cells are not of this kind: the conversion names them
    if form.ambiguity and form.kind == "categorical":
        likely = form.choices[0]
        is_same = likely.kind == kind or {likely.kind, kind} <= numbers
        return TextForm(kind, (likely.format or "") if is_same else "")
    if form.kind != kind and not {form.kind, kind} <= numbers:
        return TextForm(kind)
    if form.ambiguity and form.choices[0].format:
        return form
    return replace(form, ambiguity="")


def _as_accepted(form: TextForm, accepted: str) -> TextForm:
    """Return the meaning of an ambiguous column that accepted settings state, or ``form`` if there
    is none.

    A form of kind "categorical" has other texts as well, or numbers with several units: no meaning
    fits all of them.
    """
    if form.kind == "categorical":
        return form
    for choice in form.choices:
        if accepted in (choice.accepted_text(), choice.accepted_text(is_zoned=True)):
            return TextForm(choice.kind, choice.format or "")
    return form


def _check_one_form(
    name: str, tables: Mapping[str, Texts], missing: Sequence[str], joint: TextForm
) -> None:
    """Raise InputError if every table alone contains numbers or dates, but no single form fits all
    of them.
    """
    meanings = {}
    for where, table in tables.items():
        form = recognize_text([table], missing)
        if form.kind == "categorical" and (joint.ambiguity or not form.ambiguity):
            return
        meanings[where] = form.kind, form.format
    first, *later = meanings
    different = [table for table in later if meanings[table] != meanings[first]]
    where = different[0] if different else later[0]
    fix = "write the column in the same form in all tables, or declare it as categorical"
    raise InputError(
        f"its numbers or dates have another form than in {first}", where=where, column=name, fix=fix
    )


def have_markers(texts: Texts) -> bool:
    """Return True if a text is one of :data:`MARKERS`, apart from blanks around it."""
    values = pc.utf8_trim_whitespace(texts[0])
    return bool(pc.any(pc.is_in(values, pa.array(MARKERS, pa.large_string()))).as_py())


def recognize_text(
    tables: Sequence[Texts], missing: Sequence[str] = (), unit: str | None = None
) -> TextForm:
    """Recognize the form of a text column.

    Args:
        tables: The column in each real table.
        missing: Declared texts that mean a missing value, in addition to :data:`MARKERS`.
        unit: Declared unit of numbers; some may be without it. None: it is recognized.

    Returns:
        The form. Its ``ambiguity`` is set if the user has to declare the column.
    """
    texts, rows = _together(tables)
    values = pc.utf8_trim_whitespace(texts)
    is_missing = to_mask(pc.is_in(values, pa.array(["", *missing], pa.large_string())))
    is_marker = to_mask(pc.is_in(values, pa.array(MARKERS, pa.large_string()))) & ~is_missing
    markers = sorted(set(values.filter(pa.array(is_marker)).to_pylist()))
    is_filled = ~is_missing & ~is_marker
    if not is_filled.all():
        values = values.filter(pa.array(is_filled))
        rows = rows[is_filled]
    if not len(values):
        return TextForm("categorical")
    form = (
        _recognize_booleans(values)
        or _recognize_numbers(values, tables, missing)
        or _recognize_dates(values)
    )
    if form is None and rows[find(values, r"\p{Nd}")].sum() >= _MIN_SHARE * rows.sum():
        written = split_numbers(values)
        form = _recognize_marked_numbers(values, written, tables, missing, unit)
        if form is None:
            form = _recognize_mixed(values, rows, written)
    if form is None:
        return TextForm("categorical")
    if form.kind == "categorical" or form.ambiguity or not markers:
        return form
    verb = "is" if len(markers) == 1 else "are"
    return form.with_note(f"{', '.join(markers)} {verb} missing")


def _together(tables: Sequence[Texts]) -> Texts:
    """Return the distinct texts of all tables, and the number of rows of each."""
    if len(tables) == 1:
        return tables[0]
    texts, rows = zip(*tables, strict=True)
    table = pa.table({"text": pa.concat_arrays(texts), "rows": np.concatenate(rows)})
    counted = table.group_by("text").aggregate([("rows", "sum")]).combine_chunks()
    return counted["text"].combine_chunks(), counted["rows_sum"].to_numpy()


def _recognize_booleans(values: pa.Array) -> TextForm | None:
    """Return the form of a column of true and false. None: it has other values."""
    if len(values) > _MAX_BOOLEAN_TEXTS:
        return None
    words = set(pc.utf8_lower(values).to_pylist())
    return TextForm("boolean") if words <= {"true", "false"} else None


def _numeric(form: NumberFormat) -> Meaning:
    return Meaning("numeric", form.stored or None)


def _recognize_numbers(
    values: pa.Array, tables: Sequence[Texts], missing: Sequence[str], unit: str = ""
) -> TextForm | None:
    """Return the form of a column of which all values are numbers. None: some are not.

    Args:
        values: Distinct texts without their unit.
        tables: The column in each real table.
        missing: Declared texts that mean a missing value.
        unit: Unit.
    """
    sign = _decimal_sign(values)
    if sign is None:
        return None
    number_format = NumberFormat(sign, unit)
    meaning = _numeric(number_format)
    if sign == "," and all_match(values, NUMBERS["."]):
        choices = (meaning, _numeric(NumberFormat(".", unit)), CATEGORY)
        ambiguity = "a comma may separate decimals or thousands"
        return TextForm("numeric", ambiguity=ambiguity, choices=choices)
    if find(values, _LEADING_ZERO).any():
        return TextForm("categorical", note="codes with leading zeros stay text")
    if find(values, CODE_WITH_E).any():
        return TextForm("categorical", note=_CODES)
    numbers = parse_numbers(values, sign)
    has_integer_dtype = pd.api.types.is_integer_dtype(numbers)
    too_long = _too_many_digits(values, has_integer_dtype)
    if too_long is not None:
        return too_long
    may_be_spelt_twice = numbers.nunique() < len(values)
    if may_be_spelt_twice and any(_spelt_twice(table, number_format, missing) for table in tables):
        if has_integer_dtype and not unit:
            meaning = Meaning("integer")
        ambiguity = "one number is written in two ways, as 1.1 and 1.10 are"
        return TextForm("numeric", ambiguity=ambiguity, choices=(meaning, CATEGORY))
    if find(values, _INDIAN).any():
        ambiguity = "commas may be between groups of two digits"
        return TextForm("numeric", ambiguity=ambiguity, choices=(meaning, CATEGORY))
    return TextForm(
        "integer" if has_integer_dtype else "numeric",
        number_format.stored,
        is_integer=has_integer_dtype or bool((numbers % 1 == 0).all()),
        note=_SIGN_NOTES[sign],
        digits=_digits(values, numbers),
    )


def _decimal_sign(values: pa.Array) -> str | None:
    """Return the first decimal sign with which all texts are numbers. None: some are not."""
    for sign, pattern in NUMBERS.items():
        if all_match(values, pattern):
            return sign
    return None


def _too_many_digits(values: pa.Array, are_whole: bool) -> TextForm | None:
    """Return the form of numbers with more digits than a float has. None: they have fewer.

    Args:
        values: Distinct texts of numbers.
        are_whole: True if they are integers of 64 bits.
    """
    if are_whole:
        return None
    lengths = pc.utf8_length(values)
    if all_match(values, WHOLE):  # integers beyond 64 bits
        if pc.min(lengths) == pc.max(lengths):
            return TextForm("categorical", note="codes of many digits stay text")
    else:
        long = values.filter(pc.greater(lengths, _DIGITS))
        digits = pc.utf8_ltrim(pc.replace_substring_regex(long, r"[eE].*$|[^0-9]", ""), "0")
        if not pc.any(pc.greater(pc.utf8_length(digits), _DIGITS)).as_py():
            return None
    ambiguity = "numbers have more digits than can be computed with"
    return TextForm("numeric", ambiguity=ambiguity, choices=(CATEGORY,))


def _digits(values: pa.Array, numbers: pd.Series) -> Digits | None:
    """Return the values of a column if all are integers with the same number of digits, at least
    four, else None.

    Args:
        values: Texts of numbers, distinct except for blanks around them.
        numbers: Their numbers.
    """
    lengths = pc.min_max(pc.utf8_length(values)).as_py()
    if lengths["min"] != lengths["max"] or lengths["min"] < _MIN_CODE_DIGITS:
        return None
    has_blanks_in_some = len(pc.unique(values)) < len(values)
    if has_blanks_in_some or not all_match(values, "^[0-9]+$"):
        return None
    return Digits(int(numbers.min()), int(numbers.max()), len(values))


def _spelt_twice(table: Texts, form: NumberFormat, missing: Sequence[str]) -> bool:
    """Return True if a table contains two spellings of one number. Two tables may differ in their
    spelling.

    Spellings differ in their digits: units, thousands marks and brackets do not count.
    """
    texts = pc.unique(pc.utf8_trim_whitespace(table[0]))
    texts = texts.filter(
        pc.invert(pc.is_in(texts, pa.array([*MARKERS, *missing], pa.large_string())))
    )
    texts = pc.unique(without_unit(texts, form.unit))
    # programs write -0.0 and 0.0
    texts = texts.filter(pc.invert(pc.match_substring_regex(texts, r"^-[0.,]*$")))
    return parse_numbers(texts, form.decimal).nunique() < len(texts)


def _recognize_marked_numbers(
    values: pa.Array,
    written: WrittenNumbers,
    tables: Sequence[Texts],
    missing: Sequence[str],
    unit: str | None,
) -> TextForm | None:
    """Return the form of a column of which all values are numbers, with thousands marks, brackets
    or one unit.

    Args:
        values: Distinct texts.
        written: Their numbers and units.
        tables: The column in each real table.
        missing: Declared texts that mean a missing value.
        unit: Declared unit. None: it is recognized.

    Returns:
        The form, or None if some are not numbers, or have another or an unknown unit.
    """
    units = set(written.units)
    if unit is None:
        if len(units) > 1 or not written.is_known.all():
            return None
        (unit,) = units
    elif not units <= {"", unit}:
        return None
    form = _recognize_numbers(written.numbers, tables, missing, unit)
    if form is None or form.ambiguity or form.kind == "categorical":
        return form
    choices = (_numeric(NumberFormat.of(form.format)), CATEGORY)
    is_in_brackets = find(values, "[(]")
    if is_in_brackets.all():
        return replace(form, ambiguity="all numbers are in brackets", choices=choices)
    if find(values, "[0-9][_`´·][0-9]").any():
        return replace(
            form, ambiguity="underscores, accents or dots may be marks in numbers", choices=choices
        )
    if unit:
        form = form.with_note(f"numbers with the unit {unit}")
    if find(pc.replace_substring_regex(values, "[0-9]", ""), r"[\p{Nd}٫٬]").any():
        form = form.with_note("digits of other scripts are digits")
    if is_in_brackets.any():
        form = form.with_note("numbers in brackets are negative")
    if find(values, "[0-9][^0-9.,][0-9]{3}").any():
        form = form.with_note("numbers with blanks or apostrophes between thousands")
    return replace(form, digits=None)


def _recognize_dates(values: pa.Array) -> TextForm | None:
    """Return the form of a column of which all values are dates. None: some are not."""
    if all_match(values, ISO):
        if parse_times(values).isna().any():
            return None
        with_zone = find(values, ZONED)
        if with_zone.any() and not with_zone.all():
            ambiguity = "some times have a time zone, and others have none"
            return TextForm("datetime", ambiguity=ambiguity, choices=(CATEGORY,))
        return TextForm("datetime", is_zoned=bool(with_zone.any()))
    date_formats = _date_formats(values)
    if not date_formats:
        return None
    first = date_formats[0]
    if len(date_formats) > 1:
        ambiguity = "the day or the month may come first"
    elif "%y" in first:
        ambiguity = "the years have two digits"
    else:
        return TextForm("datetime", first, note=f"dates of the form {first}")
    meanings = [Meaning("datetime", date_format) for date_format in date_formats]
    return TextForm("datetime", ambiguity=ambiguity, choices=(*meanings, CATEGORY))


def _date_formats(values: pa.Array) -> list[str]:
    """Return the formats in which all texts are dates."""
    date_formats = []
    for date_format, pattern in DATES.items():
        if not all_match(values, pattern):
            continue
        if not parse_times(values, date_format).isna().any():
            date_formats.append(date_format)
    if len(date_formats) > 1 and date_formats[0].startswith("%d.") and "%Y" in date_formats[0]:
        return date_formats[:1]  # the day is first where points separate
    return date_formats


def _recognize_mixed(
    values: pa.Array, rows: np.ndarray, written: WrittenNumbers
) -> TextForm | None:
    """Return a doubtful form if at least half of the values are numbers or dates. None: the column
    is a category.

    Args:
        values: Distinct texts.
        rows: Number of rows of each.
        written: Their numbers and units.
    """
    is_number = written.is_known | _has_common_unit(values, rows, written)
    counts = _rows_by_unit(written.units, rows, is_number)
    unit = max(counts, key=counts.__getitem__, default="")
    numbers = pc.if_else(pa.array(is_number), written.numbers, values)
    if find(numbers.filter(pa.array(is_number)), CODE_WITH_E).any():
        return TextForm("categorical", note=_CODES)
    for pattern, texts, meaning in _likely_meanings(values, numbers, unit):
        fits = find(texts, pattern)
        has_few = fits.sum() <= _MAX_NUMBERS_OF_CATEGORY
        are_all_known = fits.all() and written.is_known.all()
        if (has_few and not are_all_known) or rows[fits].sum() < _MIN_SHARE * rows.sum():
            continue
        strays = values.filter(pa.array(~fits))
        if meaning.kind == "numeric":
            if not unit and find(strays, _CODE).any():
                return TextForm("categorical", note=_CODES)
            are_names = not written.is_known[fits].any() and find(values, _WORD)[fits].all()
            if _number_things(numbers.filter(pa.array(fits)), are_names):
                return TextForm("categorical", note=_CODES)
        choices = _choices(meaning, rows, written)
        if not len(strays):
            return _all_fit(written, choices)
        return _some_fit(choices, strays, rows, fits)
    form = _recognize_other_marks(values, rows, written)
    if form is not None:
        return form
    return _recognize_codes(values, rows, written)


def _recognize_codes(
    values: pa.Array, rows: np.ndarray, written: WrittenNumbers
) -> TextForm | None:
    """Return a category if most texts are codes or pairs of numbers, else None. Arguments are those
    of :func:`_recognize_mixed`.
    """
    if _are_most(written.is_code, rows):
        return TextForm("categorical", note=_CODES)
    if _are_most(find(values, _PAIR), rows):
        return TextForm("categorical", note="pairs of numbers stay text")
    return None


def _likely_meanings(
    values: pa.Array, numbers: pa.Array, unit: str
) -> Iterator[tuple[str, pa.Array, Meaning]]:
    """Yield patterns, the texts to match them with, and what texts that match mean.

    Args:
        values: Distinct texts.
        numbers: The same without units, where they are numbers.
        unit: Most frequent unit.
    """
    for sign, pattern in NUMBERS.items():
        yield pattern, numbers, _numeric(NumberFormat(sign, unit))
    yield ISO, values, Meaning("datetime")
    for date_format, pattern in DATES.items():
        yield pattern, values, Meaning("datetime", date_format)


def _are_most(is_form: np.ndarray, rows: np.ndarray) -> bool:
    """Return True if more than 20 distinct texts, with half of the rows, have a form.

    Args:
        is_form: True for texts that have it, bool (n,).
        rows: Number of rows of each text, int64 (n,).
    """
    if is_form.sum() <= _MAX_NUMBERS_OF_CATEGORY:
        return False
    return bool(rows[is_form].sum() >= _MIN_SHARE * rows.sum())


def _number_things(numbers: pa.Array, are_names: bool) -> bool:
    """Return True for numbers with leading zeros, and for integers in names such as site 1, site 2,
    site 3: their smallest quarter begins with 0 or 1 and has few gaps. Large ones may have gaps.
    """
    if find(numbers, _LEADING_ZERO).any():
        return True
    if not are_names or not all_match(numbers, WHOLE):
        return False
    distinct = np.unique(parse_numbers(numbers))
    smallest = distinct[: len(distinct) // 4 + 1]
    return bool(smallest[0] in (0, 1) and len(smallest) >= _MIN_DENSITY * smallest[-1])


def _choices(likely: Meaning, rows: np.ndarray, written: WrittenNumbers) -> tuple[Meaning, ...]:
    """Return the meanings that a message may name: a unit that few rows have may be private.

    Args:
        likely: The most likely meaning.
        rows: Number of rows of each text.
        written: Numbers and units of the texts.
    """
    unit = NumberFormat.of(likely.format or "").unit if likely.kind == "numeric" else ""
    has_unit = written.units == unit
    is_common = rows[has_unit].sum() >= max(_MIN_NAMED_ROWS, _MIN_UNIT_SHARE * rows.sum())
    is_public = bool(written.is_known[has_unit].all())
    if unit and not ((is_common or is_public) and is_unit(unit)):
        return (CATEGORY,)
    return likely, CATEGORY


def _some_fit(
    choices: tuple[Meaning, ...], strays: pa.Array, rows: np.ndarray, fits: np.ndarray
) -> TextForm:
    """Return a doubtful form of a column of which some values do not have the most likely meaning.

    Args:
        choices: Meanings for the message, the most likely one first.
        strays: Texts that do not have it.
        rows: Number of rows of each text.
        fits: True for texts that have it.
    """
    likely = choices[0]
    what = "dates" if likely.kind == "datetime" else "numbers"
    n_strays = int(rows[~fits].sum())
    ambiguity = f"{n_strays} of {int(rows.sum())} values are not {what}"
    form = TextForm("categorical", ambiguity=ambiguity, choices=choices)
    has_few = len(strays) <= _MAX_NAMED_STRAYS and rows[~fits].min() >= _MIN_NAMED_ROWS
    if has_few and likely != CATEGORY:
        return replace(form, strays=tuple(strays.to_pylist()))
    return form


def _has_common_unit(values: pa.Array, rows: np.ndarray, written: WrittenNumbers) -> np.ndarray:
    """Return True for numbers with an unknown unit that many rows have, shape (n,). Half of the
    rows must have one.

    The digits of a unit may differ if the text begins with the number: 104 of 1000, 99 of 950.
    Codes count if some rows have a unit: 104g and 104 kg.

    Args:
        values: Distinct texts.
        rows: Number of rows of each.
        written: Their numbers and units.
    """
    units = pa.array(written.units, pa.large_string())
    same_digits = pc.replace_substring_regex(units, "[0-9]+", "#")
    has_words = find(values, _WORD)
    shapes = pc.if_else(pa.array(has_words), units, same_digits).to_numpy(zero_copy_only=False)
    has_unit = np.array([bool(unit) for unit in shapes])
    is_sure = has_unit & ~written.is_code
    begins_with_number = is_sure & (written.is_known | ~has_words)
    min_rows = _MIN_UNIT_SHARE * rows.sum()
    if rows[begins_with_number].sum() < min_rows:
        has_unit = is_sure
    common = set()
    for unit, n_rows in _rows_by_unit(shapes, rows, has_unit).items():
        if n_rows >= min_rows:
            common.add(unit)
    is_common = has_unit & np.array([unit in common for unit in shapes])
    if rows[is_common].sum() < _MIN_SHARE * rows.sum():
        return np.zeros(len(rows), dtype=bool)
    return is_common


def _rows_by_unit(units: np.ndarray, rows: np.ndarray, is_number: np.ndarray) -> dict[str, int]:
    """Return the number of rows with each unit.

    Args:
        units: Unit of each distinct text.
        rows: Number of rows of each.
        is_number: True for texts that count.
    """
    counts: dict[str, int] = {}
    for unit, n_rows in zip(units[is_number], rows[is_number], strict=True):
        if unit:
            counts[unit] = counts.get(unit, 0) + int(n_rows)
    return counts


def _all_fit(written: WrittenNumbers, choices: tuple[Meaning, ...]) -> TextForm:
    """Return a doubtful form of a column of numbers with several or unknown units, or of dates
    without an order. ``choices`` are the meanings for the message, the most likely one first.
    """
    if choices[0].kind == "datetime":
        ambiguity = "the dates have no common order"
        return TextForm("categorical", ambiguity=ambiguity, choices=(CATEGORY,))
    units = set(written.units)
    ambiguity = "the numbers have several units"
    if len(units) == 1:
        ambiguity = "the unit of the numbers is unknown"
    elif len(units) == 2 and "" in units:
        ambiguity = "some numbers have a unit, and others have none"
    return TextForm("categorical", ambiguity=ambiguity, choices=choices)


def _recognize_other_marks(
    values: pa.Array, rows: np.ndarray, written: WrittenNumbers
) -> TextForm | None:
    """Return the form of texts that contain a number with marks other than a unit. None: they do
    not.
    """
    has_number = find(values, _WITH_MARKS) | written.is_known
    if not _are_most(has_number, rows):
        return None
    if (
        find(values, "^[^0-9]*0[0-9]").any()
        or find(values.filter(pa.array(~has_number)), _CODE).any()
    ):
        return None
    ambiguity = "numbers have marks that cannot be a unit"
    return TextForm("categorical", ambiguity=ambiguity, choices=(CATEGORY,))
