"""Numbers in text: plain ones, and those with thousands, brackets, a currency or a unit.

A number with a unit has the format of its column, see :class:`NumberFormat`. These units are known
without a declaration:

- a currency sign before or after the number, also after the letters of a country: ``$5``, ``5 €``,
  ``US$ 5``;
- a currency code of ISO 4217 after the number or, with a blank, before it: ``5 EUR``, ``EUR 5``;
- ``%`` and ``‰`` after the number;
- a unit of :data:`UNITS` after the number. A unit of one letter needs a blank before it, because
  ``5m`` may be a code.

Other units may be words before the number, with a blank or point (``Rs. 5``), or a text after it
that may contain digits (``5 mL/min/1.73m2``). A pair such as
``120/80`` or ``10:30`` is not a number with a unit.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

UNITS = ("kg", "g", "mg", "cm", "mm", "m", "km", "l", "ml", "h", "min", "s", "°C", "mmHg")
_LONG_UNITS = {unit.casefold() for unit in UNITS if len(unit) > 1}
_SHARES = ("%", "‰")
_ISO_4217 = """
    AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BOV BRL BSD BTN
    BWP BYN BZD CAD CDF CHE CHF CHW CLF CLP CNY COP COU CRC CUC CUP CVE CZK DJF DKK DOP DZD EGP
    ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD HKD HNL HRK HTG HUF IDR ILS INR IQD IRR
    ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD MDL MGA MKD
    MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR
    PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SLL SOS SRD SSP STN SVC SYP SZL
    THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD USN UYI UYU UYW UZS VED VES VND VUV WST XAF
    XAG XAU XCD XCG XOF XPD XPF XPT YER ZAR ZMW ZWG ZWL
    """
_CURRENCIES = frozenset(_ISO_4217.split())

_POINT = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_COMMA = r"^[+-]?([0-9]+|[0-9]{1,3}(\.[0-9]{3})+)(,[0-9]+)?$"
_GROUPED = r"^[+-]?([0-9]+|[0-9]{1,3}(,[0-9]{3})+|[0-9]{1,2}(,[0-9]{2})+,[0-9]{3})(\.[0-9]+)?$"
NUMBERS = {"": _POINT, ",": _COMMA, ".": _GROUPED}  # by the decimal sign of the format
WHOLE = r"^[+-]?[0-9]+$"
CODE_WITH_E = "^[+-]?[0-9]+[eE][0-9]+$"  # programs write 1e+05 or 1.0E5

_LONGEST = 80  # characters of a number with the text around it
_LONGEST_UNIT = 32
_BETWEEN = "\0"  # head and tail of a number
_COUNTRY = 3  # letters, such as US$
_BLANK = r"[\p{Zs}\t]"
_MARK = "'‘’ʼ_`´"  # between thousands, as are blanks
_NUMBER = rf"[0-9](?:[0-9.,{_MARK}\p{{Zs}}\t]*[0-9])?[.]?(?:[eE][+-]?[0-9]+)?"
_POWER = "10(?:[*^⁰¹²³⁴-⁹]|[eE][0-9])"  # 10^9/L is a unit
_BEGIN = rf"^(?P<head>[^0-9]*)(?P<number>{_NUMBER})"
_PARTS = (rf"{_BEGIN}(?P<tail>{_BLANK}{_POWER}.*)$", rf"{_BEGIN}(?P<tail>.*)$")
_THOUSANDS = (
    rf"^[0-9]{{1,3}}(?:(?:{_BLANK}[0-9]{{3}})+|(?:['‘’ʼ][0-9]{{3}})+|(?:[_`´][0-9]{{3}})+)"
    r"(?:[.,][0-9]*)?$"
)
_PHONE = rf"^[+][0-9]+{_BLANK}"
_IN_BRACKETS = r"^([^0-9()+-]*)[(]([^()]*)[)]([^0-9()]*)$"
_MINUS = "\u2212"
_NO_UNIT = r"\s.,()+<>≤≥\-\u2010-\u2015"  # no unit begins with one: a dash may be a minus
_HEAD = re.compile(rf"([+-]?)\s*((?:[^\d{_NO_UNIT}]\D*?)?)(\s*)([+-]?)([.]?)")
# A mark or x and a digit are the second number of a pair, such as 120/80, 10:30, 5 (7) and 3 x 4.
_TAIL = re.compile(
    rf"(\s*)((?:(?![xX]\s*\d)[^\W\d_]|[(](?=[^\W\d_])|[^\w{_NO_UNIT}](?!\s*\d)"
    rf"|[xX×]\s*{_POWER}|±|[+]/-|{_POWER}|,\s).*)?"
)
# A5, FY5 and A.5 are codes, Rs.5 is not
_CODE_BEFORE = re.compile(r".*[^\W\d_]|[^\W\d_][.]")
# 5m, 5B12 and 5A/3 are codes, 5m2 is not
_CODE_AFTER = re.compile(
    rf"(?!(?:[cdkm]?m|ft|in)[23]$|[xX]{_POWER})(?:[^\W\d_](?:[\W_].*\d.*)?|[^\W\d_]+\d.*)"
)
_DOT = re.compile(r"(?<=\d)·(?=\d)")
_ARABIC_SIGNS = {"٫": ".", "٬": "'"}


class NumberFormat(NamedTuple):
    """Format of numbers in text, which a schema stores as one string.

    Attributes:
        decimal: "" for a decimal point, "," for a decimal comma, "." for a decimal point with
            commas between groups of three digits.
        unit: Currency or unit. "": none.
    """

    decimal: str
    unit: str

    @classmethod
    def of(cls, stored: str) -> NumberFormat:
        """Return the format that a schema stores. A unit begins with neither comma nor point."""
        if stored[:1] in (",", "."):
            return cls(stored[0], stored[1:])
        return cls("", stored)

    @property
    def stored(self) -> str:
        """The format as one string."""
        return self.decimal + self.unit


class _Affix(NamedTuple):
    """Text around a number.

    Attributes:
        start: Signs of the number, and a decimal point without a zero.
        unit: Unit, "" for none.
        is_known: True for no unit, or a known one.
        is_code: True if the text is a code unless its unit is declared.
    """

    start: str
    unit: str
    is_known: bool
    is_code: bool


class WrittenNumbers(NamedTuple):
    """Texts as numbers and units.

    Attributes:
        numbers: Plain numbers without thousands marks, brackets and unit. Texts that are not
            numbers are unchanged.
        units: Unit of each number, "" for none. None: the text is not a number.
        is_known: True for numbers without a unit, or with a known one.
        is_code: True for texts that are a code unless their unit is declared, such as ``A5``,
            ``EUR5`` and ``5m``.
    """

    numbers: pa.Array
    units: np.ndarray
    is_known: np.ndarray
    is_code: np.ndarray


def is_unit(text: str) -> bool:
    """Return True if numbers can have this unit."""
    # column=kind:unit
    if not 0 < len(text) <= _LONGEST_UNIT or not text.isprintable() or "=" in text:
        return False
    if text[0] in ",.":
        return False
    examples = pa.array([f"{text} 5", f"5 {text}"], pa.large_string())
    return text in split_numbers(examples).units.tolist()


def is_currency_code(unit: str) -> bool:
    """Return True for a currency code of ISO 4217, also in lower case."""
    return unit in _CURRENCIES or (unit.islower() and unit.upper() in _CURRENCIES)


def split_numbers(texts: pa.Array) -> WrittenNumbers:
    """Split texts into numbers and units.

    Args:
        texts: Strings (n,) without nulls and without blanks around them.

    Returns:
        Arrays (n,), see :class:`WrittenNumbers`.
    """
    is_short = to_mask(pc.less_equal(pc.utf8_length(texts), _LONGEST))
    may_be_number = is_short & find(texts, r"\p{Nd}")
    candidates = texts.filter(pa.array(may_be_number))
    plain = _with_ascii_digits(candidates)
    plain = pc.utf8_trim_whitespace(pc.replace_substring_regex(plain, _IN_BRACKETS, r"-\1\2\3"))
    parts = [pc.extract_regex(plain, pattern) for pattern in _PARTS]
    head = _named_group(parts, "head")
    number = _named_group(parts, "number")
    tail = _named_group(parts, "tail")

    separator = pa.scalar(_BETWEEN, texts.type)
    pairs = pc.binary_join_element_wise(head, tail, separator).dictionary_encode()
    affixes = [_affix(*pair.split(_BETWEEN, 1)) for pair in pairs.dictionary.to_pylist()]
    starts = pa.array(_each(affixes, "start"), texts.type).take(pairs.indices)
    digits = _without_thousands(number, plain)
    numbers = pc.binary_join_element_wise(starts, digits, pa.scalar("", texts.type))
    is_number = np.zeros(len(numbers), dtype=bool)
    for pattern in NUMBERS.values():
        is_number |= to_mask(pc.fill_null(pc.match_substring_regex(numbers, pattern), False))

    positions = np.flatnonzero(may_be_number)[is_number]
    codes = pairs.indices.to_numpy()[is_number]
    units = np.full(len(texts), None, dtype=object)
    is_known = np.zeros(len(texts), dtype=bool)
    is_code = np.zeros(len(texts), dtype=bool)
    affix_units = np.array(_each(affixes, "unit"), dtype=object)
    affix_is_known = np.array(_each(affixes, "is_known"), dtype=bool)
    affix_is_code = np.array(_each(affixes, "is_code"), dtype=bool)
    units[positions] = affix_units[codes]
    is_known[positions] = affix_is_known[codes]
    is_code[positions] = affix_is_code[codes]
    has_letter_before = find(head, r"\p{L}")
    is_decimal = find(number, "[.,]")
    # 1.5M is a number with a unit, 3M a code
    is_code[positions] &= (has_letter_before | ~is_decimal)[is_number]
    numbers_or_texts = pc.if_else(pa.array(is_number), numbers, candidates)
    plain_texts = pc.replace_with_mask(texts, pa.array(may_be_number), numbers_or_texts)
    return WrittenNumbers(plain_texts, units, is_known, is_code)


def _each(affixes: Sequence[_Affix | None], attribute: str) -> list[Any]:
    """Return an attribute of each affix, None for texts that are no affix."""
    return [getattr(affix, attribute, None) for affix in affixes]


def _named_group(matches: Sequence[pa.Array], name: str) -> pa.Array:
    """Return a group of the first pattern that matches, "" if none does.

    Args:
        matches: Structs of the groups of each pattern, null where it does not match.
        name: Name of the group.
    """
    groups = [pc.struct_field(match, name) for match in matches]
    return pc.coalesce(*groups, "")


def _without_thousands(numbers: pa.Array, texts: pa.Array) -> pa.Array:
    """Return numbers without marks between thousands. Phone numbers begin with a plus, and keep
    their blanks.

    Args:
        numbers: Digits with marks.
        texts: Texts that contain them.
    """
    is_grouped = pc.match_substring_regex(numbers, _THOUSANDS)
    is_grouped = pc.and_not(is_grouped, pc.match_substring_regex(texts, _PHONE))
    joined = pc.replace_substring_regex(numbers, rf"([0-9])(?:{_BLANK}|[{_MARK}])([0-9])", r"\1\2")
    return pc.if_else(is_grouped, joined, numbers)


def _affix(head: str, tail: str) -> _Affix | None:
    """Return the sign and unit around a number. None: the text is not a number.

    Args:
        head: Text before the number.
        tail: Text after the number.
    """
    start = _HEAD.fullmatch(head)
    end = _TAIL.fullmatch(tail)
    if start is None or end is None:
        return None
    sign, before, gap, inner_sign, point = start.groups()
    space = end[1]
    after = end[2] or ""
    if point and before[-1:].isalpha():  # Rs.5 is not 0.5 Rs
        before = f"{before}."
        point = ""
    unit = f"{before} {after}".strip()
    if before and after:
        is_known = False
    else:
        is_known = not unit or _is_known(before, gap, space, after)
    is_after_letter = not gap and bool(_CODE_BEFORE.fullmatch(before))
    is_amount = _is_currency_sign(before) or is_currency_code(before)
    is_before_letter = not is_amount and not space and bool(_CODE_AFTER.fullmatch(after))
    is_code = not is_known and (is_after_letter or is_before_letter)
    return _Affix(f"{sign}{inner_sign}{point}", unit, is_known, is_code)


def _is_known(before: str, gap: str, space: str, after: str) -> bool:
    """Return True for a known unit.

    Args:
        before: Unit before the number, or "".
        gap: Blanks between them.
        space: Blanks after the number.
        after: Unit after the number, or "".
    """
    if _is_currency_sign(before or after):
        return True
    if before:
        return bool(gap) and is_currency_code(before)
    if len(after) == 1 and after.isalpha():
        return bool(space) and after in UNITS
    return after in _SHARES or is_currency_code(after) or after.casefold() in _LONG_UNITS


def _is_currency_sign(unit: str) -> bool:
    """Return True for a currency sign, also after the letters of a country."""
    if not unit or unicodedata.category(unit[-1]) != "Sc":
        return False
    letters = unit[:-1]
    return not letters or (letters.isalpha() and len(letters) <= _COUNTRY)


def _with_ascii_digits(texts: pa.Array) -> pa.Array:
    """Return texts with the digits of other scripts, full-width signs and the minus of typesetters
    as in ASCII.
    """
    has_other = pc.match_substring_regex(texts, r"[^\x00-\x7f]")
    if not pc.any(has_other).as_py():
        return texts
    converted = [_ascii_digits(text) for text in texts.filter(has_other).to_pylist()]
    return pc.replace_with_mask(texts, has_other, pa.array(converted, texts.type))


def _ascii_digits(text: str) -> str:
    characters = []
    for character in _DOT.sub(".", text):
        if character.isdecimal():
            character = str(unicodedata.decimal(character))
        elif unicodedata.east_asian_width(character) == "F":
            character = unicodedata.normalize("NFKC", character)
        elif character == _MINUS:
            character = "-"
        character = _ARABIC_SIGNS.get(character, character)
        characters.append(character)
    return "".join(characters)


def without_unit(texts: pa.Array, unit: str) -> pa.Array:
    """Return the plain numbers of texts that have this unit or none. Other texts are unchanged.

    Args:
        texts: Strings without nulls and without blanks around them.
        unit: Unit. "": none.
    """
    written = split_numbers(texts)
    has_unit = (written.units == unit) | (written.units == "")
    return pc.if_else(pa.array(has_unit), written.numbers, texts)


def parse_numbers(texts: pa.Array, form: str = "") -> pd.Series:
    """Read numbers from texts, Int64 if all are whole and fit, else Float64; NA for texts that are
    not numbers.

    Args:
        texts: Strings, with nulls.
        form: Format of the column, see :class:`NumberFormat`.
    """
    decimal, unit = NumberFormat.of(form)
    texts = pc.utf8_trim_whitespace(texts)
    is_other = pc.fill_null(pc.invert(pc.match_substring_regex(texts, NUMBERS[decimal])), False)
    if pc.any(is_other).as_py():
        encoded = texts.filter(is_other).dictionary_encode()
        plain = without_unit(encoded.dictionary, unit)
        texts = pc.replace_with_mask(texts, is_other, plain.take(encoded.indices))
    is_number = pc.match_substring_regex(texts, NUMBERS[decimal])
    texts = pc.if_else(is_number, texts, None)
    if decimal == ",":
        texts = pc.replace_substring(texts, ".", "")
        texts = pc.replace_substring(texts, ",", ".")
    elif decimal:
        texts = pc.replace_substring(texts, ",", "")
    if all_match(texts.drop_null(), WHOLE):
        with suppress(pa.ArrowInvalid):  # one is too large
            integers = pc.cast(pc.utf8_ltrim(texts, "+"), pa.int64())
            return pd.Series(pd.arrays.IntegerArray(*filled(integers, 0)))
    return pd.Series(pd.arrays.FloatingArray(*filled(pc.cast(texts, pa.float64()), 0.0)))


def filled(numbers: pa.Array, zero: float) -> tuple[np.ndarray, np.ndarray]:
    """Convert an Arrow array to numpy.

    Args:
        numbers: Numbers or booleans (n,), with nulls.
        zero: Value in place of nulls.

    Returns:
        The values (n,), and True for nulls, bool (n,).
    """
    if isinstance(numbers, pa.ChunkedArray):
        numbers = numbers.combine_chunks()
    is_null = numbers.is_null().to_numpy(zero_copy_only=False)
    values = numbers.fill_null(zero).to_numpy(zero_copy_only=False).copy()
    return values, is_null


def to_mask(values: pa.Array) -> np.ndarray:
    """Convert booleans of Arrow to numpy, bool (n,).

    Args:
        values: Booleans (n,), without nulls.
    """
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=bool)


def find(values: pa.Array, pattern: str) -> np.ndarray:
    """Return True for strings in which a pattern is found, bool (n,).

    Args:
        values: Strings (n,), without nulls.
        pattern: Regular expression of RE2.
    """
    return to_mask(pc.match_substring_regex(values, pattern))


def all_match(values: pa.Array, pattern: str) -> bool:
    """Return True if a pattern is found in all strings. The first ones are tried alone, because
    most columns fail there.

    Args:
        values: Strings (n,), without nulls.
        pattern: Regular expression of RE2.
    """
    if not find(values.slice(0, 100), pattern).all():
        return False
    return bool(find(values.slice(100), pattern).all())
