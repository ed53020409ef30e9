"""Column roles: which values a column may contain when the table is published (docs/columns.md).

*Closed* columns are categories, booleans, and numbers with few distinct values. Categories and
booleans contain only values of the real tables or declared allowed values. *Numbers* and *dates*
may be new. *Open* columns (identifiers, free text, nearly unique codes, direct identifiers) are
rejected, because each of their values belongs to one person, whom a copied value discloses. New
values are allowed in *generated* columns, which are declared with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_float_dtype

from privacy_assets.errors import InputError, safe_repr
from privacy_assets.tables.column import Column, of_one_vocabulary, ranked, stacked, vocabulary
from privacy_assets.tables.conversion import column_of
from privacy_assets.tables.declared import NOTHING, Declared
from privacy_assets.tables.published_categories import OTHER, count_holders
from privacy_assets.tables.schema import (
    ColumnSchema,
    Kind,
    Role,
    TableSchema,
    option_text,
    yaml_text,
)
from privacy_assets.tables.subject_ids import plain_ids
from privacy_assets.tables.table import Table
from privacy_assets.tables.text import YEARS, as_texts, is_text, recognize_text, texts_of
from privacy_assets.tables.threshold_rule import ColumnRule, reach_of
from privacy_assets.tables.written_numbers import parse_numbers

SHARE = 0.2  # minimum share of rows with an e-mail address, or the form of a phone or card number
# maximum number of distinct values tested, and of characters of each
_CHECKED_VALUES, _LONGEST = 5000, 500
_PHONE = re.compile(
    r"(\+|00)\d[\d ()./-]{6,20}|[(]?0\d+[ ()/-][\d ()/-]{5,18}|[(]?\d{3}[)]?[ .-]\d{3}[ .-]\d{4}"
)
_DATE_OR_PERIOD = re.compile(
    r"\d{1,4}([./-])\d{1,2}\1\d{1,4}( \d{1,2}:\d\d(:\d\d)?)?|\d\d[./]\d{4} ?- ?\d\d[./]\d{4}"
)
_CARD = re.compile(r"\d([ -]?\d){12,18}")

# RE2, which pyarrow applies to a million strings in half a second.
_AT = r"(?:@|%40|&#0*64;|&#x0*40;|&commat;|[(\[{<]at[)\]}>])"
_SPACED_AT = r"\s?[(\[{<]\s?at\s?[)\]}>]\s?"
_PLAIN_DOT, _SPELT_DOT = (
    r"(?:[.。]|%2E|&#0*46;|&#x0*2e;|&period;)",
    r"\s?[(\[{<]\s?dot\s?[)\]}>]\s?",
)
_DOT = rf"(?:{_PLAIN_DOT}|{_SPELT_DOT})"
_LETTER, _IN_LABEL = r"[\p{L}\p{M}]", r"[\p{L}\p{M}\p{N}_-]"
_USER = r"[\p{L}\p{M}\p{N}_.+\"'-][!#$%&*=?^`{|}~]*"
# At most the first label consists of digits, so that version numbers are not domains.
_LABELS = rf"(?:\p{{N}}+{_DOT})?[\p{{N}}_-]*{_LETTER}{_IN_LABEL}*(?:{_DOT}{_IN_LABEL}+)*"
# such as 163.com
_DIGITS_DOMAIN = rf"\p{{N}}+{_DOT}(?:com|net|org|info|biz|cn|co|de|eu|hk|ie|ru|tw|uk)\b"
_TOP = rf"(?:xn--[a-z0-9-]+|{_LETTER}{{2,}})"
# After a spaced "(at)" and a plain dot, the top-level domain has one letter case, unlike in "A (at)
# B.Sc".
_TOP_IN_ONE_CASE = r"(?-i:xn--[a-z0-9-]+|[\p{Ll}\p{Lo}\p{M}]{2,}|\p{Lu}{2,})"
_EMAIL = (
    rf"(?i){_USER}(?:{_AT}(?:{_LABELS}{_DOT}{_TOP}|{_DIGITS_DOMAIN})"
    rf"|{_SPACED_AT}(?:{_LABELS}(?:{_SPELT_DOT}{_TOP}|{_PLAIN_DOT}{_TOP_IN_ONE_CASE})|{_DIGITS_DOMAIN}))"
)

_COUNTRIES = {  # by the number of characters of an IBAN (ISO 13616)
    15: "NO",
    16: "BE",
    18: "DK|FI|FK|FO|GL|NL|SD",
    19: "MK|SI",
    20: "AT|BA|EE|KZ|LT|LU|MN|XK",
    21: "CH|HR|LI|LV",
    22: "BG|BH|CR|DE|GB|GE|IE|ME|RS|VA",
    23: "AE|GI|IL|IQ|OM|SO|TL",
    24: "AD|CZ|ES|MD|PK|RO|SA|SE|SK|TN|VG",
    25: "LY|PT|ST",
    26: "IS|TR",
    27: "BI|DJ|FR|GR|IT|MC|MR|SM",
    28: "AL|AZ|BY|CY|DO|GT|HN|HU|LB|NI|PL|SV",
    29: "BR|EG|PS|QA|UA",
    30: "JO|KW|MU|YE",
    31: "MT|SC",
    32: "LC",
    33: "RU",
}
_SEPARATOR = r"[\s._/-]{1,2}"
_GAP = rf"(?:{_SEPARATOR})?"
_ANY_IBAN = "|".join(
    rf"(?:{countries})(?:[0-9]{{2}}{_GAP}|{_SEPARATOR}[0-9]{{2}}{_SEPARATOR})"
    rf"[A-Z0-9](?:{_GAP}[A-Z0-9]){{{length - 5}}}"
    for length, countries in _COUNTRIES.items()
)
# An IBAN starts a word, possibly after "IBAN" or within one such as "KontoDE89...", and no digit
# follows it.
_MAYBE_IBAN = rf"(?i)(?:^|[^A-Z0-9]|IBAN|(?-i:[a-z]))(?:{_ANY_IBAN})(?:[^0-9]|$)"
# The look-ahead also finds overlapping matches.
_IBAN = re.compile(
    r"(?:(?<![A-Z0-9])|(?<=IBAN)|(?-i:(?<=[a-z])(?=[A-Z]{2})))"
    rf"(?=({_ANY_IBAN})(?![0-9])([A-Z]+[0-9]|-)?)",
    re.IGNORECASE | re.ASCII,
)
_PLAIN_IBAN = re.compile(r"[A-Z]{2}[0-9]{2}[^a-z]*")
_IBAN_IN_FOURS = re.compile(
    rf"[A-Z]{{2}}{_GAP}[0-9]{{2}}(?:{_SEPARATOR}[A-Z0-9]{{4}})+(?:{_SEPARATOR}[A-Z0-9]{{1,3}})?",
    re.IGNORECASE,
)
_UNUSUAL = r"[^\x00-\x7f\x{c0}-\x{24f}]"  # neither ASCII nor a Latin letter: may normalize to one


def certain_identifier(texts: Iterable[str]) -> str:
    """Return the kind of direct identifier that occurs in ``texts``, see
    :func:`certain_identifiers`.
    """
    return certain_identifiers(texts)[0]


def certain_identifiers(texts: Iterable[str]) -> tuple[str, np.ndarray]:
    """Find direct identifiers in ``texts``.

    A single e-mail address or IBAN suffices, also within a longer text and in another spelling
    (full-width or invisible characters, "(at)", an IBAN in groups). By chance, 1 in 97 codes of the
    form of an IBAN has valid check digits, so codes in lower case without groups of four count only
    if most of them are valid.

    Args:
        texts: Distinct strings (n,); their number and length are not limited.

    Returns:
        "e-mail addresses", else "bank account numbers", or "" for neither; and True for strings of
        either form, (n,).
    """
    given = _normalised(texts)
    with_at = pc.match_substring_regex(given, rf"(?i){_AT}|{_SPACED_AT}").to_numpy(
        zero_copy_only=False
    )
    if with_at.any():
        with_at[with_at] = pc.match_substring_regex(given.filter(with_at), _EMAIL).to_numpy(
            zero_copy_only=False
        )
    likely = pc.match_substring_regex(given, _MAYBE_IBAN).to_numpy(zero_copy_only=False)
    ibans = _hold_ibans(given.filter(likely).to_pylist())
    what = "e-mail addresses" if with_at.any() else "bank account numbers" if ibans else ""
    return what, with_at | (likely & ibans)


def _normalised(texts: Iterable[str]) -> pa.Array:
    """Convert to NFKC, remove invisible characters and replace dashes by hyphens."""
    try:
        given = pa.array(texts, pa.large_string())
    except UnicodeEncodeError:  # lone surrogate
        given = pa.array(
            [text.encode(errors="replace").decode() for text in texts], pa.large_string()
        )
    unusual = pc.match_substring_regex(given, _UNUSUAL)
    plain = pc.utf8_normalize(given.filter(unusual), "NFKC")
    for pattern, replacement in ((r"\p{Cf}", ""), (r"\p{Pd}", "-")):
        plain = pc.replace_substring_regex(plain, pattern, replacement)
    return pc.replace_with_mask(given, unusual, plain)


def _hold_ibans(texts: Iterable[str]) -> bool:
    """Return True if one text contains a valid IBAN in a usual spelling, or most of those in other
    spellings are valid.

    An IBAN consists mostly of digits after its first four characters.
    """
    other: list[bool] = []
    for text in texts:
        found = [
            (one[1], re.sub(r"[^A-Z0-9]", "", one[1].upper()))
            for one in _IBAN.finditer(text)
            if _is_apart(one)
        ]
        found = [
            (written, code)
            for written, code in found
            if 2 * sum(map(str.isdigit, code[4:])) > len(code) - 4
        ]
        valid = [written for written, code in found if _is_valid(code)]
        if any(
            _PLAIN_IBAN.fullmatch(written) or _IBAN_IN_FOURS.fullmatch(written) for written in valid
        ):
            return True
        other += [bool(valid)] if found else []
    return 2 * sum(other) > len(other)


def _is_apart(found: re.Match[str]) -> bool:
    """Return False for a part of a longer code, such as a UUID. A code of digits only has no
    further parts.
    """
    written, after, before = found[1], found[2] or "", found.string[: found.start()].upper()
    hyphens = after == "-" or (before.endswith("-") and not before.endswith("IBAN-"))
    digits = re.sub(r"[^A-Z0-9]", "", written.upper())[2:].isdigit()
    return digits or not (len(after) > 1 or (hyphens and "-" in written))


def _is_valid(iban: str) -> bool:
    """Check ISO 13616: with the first four characters moved to the end and letters as numbers, the
    value is 1 modulo 97.
    """
    return int("".join(str(int(c, 36)) for c in iban[4:] + iban[:4])) % 97 == 1


def likely_identifier(texts: np.ndarray, rows: np.ndarray, shared: bool = False) -> str:
    """Return the kind of direct identifier that a column contains by the form of its values.

    Phone and card numbers also occur by chance, so at least 20 % of the rows must have the form.

    Args:
        texts: Distinct strings of the column.
        rows: Number of rows with each string.
        shared: True if many people share a value, as they share codes of drugs: then only numbers
            that begin with "+" count as phone numbers.

    Returns:
        "phone numbers", "payment card numbers", or "" for neither.
    """
    step = -(-len(texts) // _CHECKED_VALUES)
    texts, rows = texts[::step], rows[::step]
    international = {"phone numbers": lambda text: text.startswith("+") and _is_phone(text)}
    forms = {**_FORMS, **(international if shared else {})}
    for what, found in forms.items():
        hits = np.fromiter(
            (found(text[:_LONGEST].strip()) for text in texts), dtype=bool, count=len(texts)
        )
        if rows[hits].sum() >= SHARE * rows.sum():
            return what
    return ""


def _is_phone(text: str) -> bool:
    digits = sum(c.isdigit() for c in text)
    return (
        8 <= digits <= 15
        and _PHONE.fullmatch(text) is not None
        and not _DATE_OR_PERIOD.fullmatch(text)
    )


def _is_card(text: str) -> bool:
    """Check the Luhn sum: with every second digit from the right doubled, the sum of all digits
    ends in 0.
    """
    if not _CARD.fullmatch(text):
        return False
    digits = [int(c) for c in reversed(text) if c.isdigit()]
    return sum(digits[::2] + [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]) % 10 == 0


_FORMS: dict[str, Callable[[str], bool]] = {
    "phone numbers": _is_phone,
    "payment card numbers": _is_card,
}


# numbers with at most this many values, each in at least this many rows on average, are closed
FEW_VALUES = 20
_ALONE = 0.5  # minimum share of rows with a value of a single subject in a nearly unique column
_SOME = 20  # minimum number of subjects for a decision, and of subjects that share a frequent value
# rarely shared: at least this many values, with fewer subjects per value
_MANY_VALUES, _FEW_HOLDERS = 100, 5.0
# maximum number of distinct strings parsed, and minimum share that must parse
_LOOKED_AT, _MOST = 5000, 0.9
_LONG = 40  # minimum length of notes, in characters
_DIGITS = 6  # integers that all have the same number of digits, at least this many, are codes
_LONG_KEY, _SAME_LENGTH = 8, 0.8  # or this many in most of them: one in ten loses a leading zero
_FILLER = 0.2  # minimum share of rows with a placeholder such as "none" or "unknown"
# standard deviations: measures of independent subjects are not that much more even than chance
_TOO_EVEN = -5.0

_ALONE_TEXT = "at least half of the rows have a value of one person only"
_SHARED_TEXT = "codes that only a few rows share"
_NOTE_TEXT = "free text"
_DATE_TEXT = "dates that were read as text: their kind is datetime"
_NUMBER_TEXT = "numbers that were read as text: their kind is numeric"
_ID_NAME = re.compile(r"id$", re.IGNORECASE)
# Words that end like the name of an identifier.
_NO_IDS = re.compile(
    r"(^|[^a-z])((un|pre|re)?paid|aid|bid|kid|said|(in)?valid|covid|hybrid|fluid|liquid|solid|grid|acid|lipid|thyroid"
    r"|steroid|humid|android|rapid|rigid|void|hemorrhoid)$",
    re.IGNORECASE,
)
_BY_CHANCE = 1e-6  # smallest probability of a coincidence
_INTEGER = re.compile(r"-?\d+", re.ASCII)
_FEW_SUBJECTS = 5  # minimum number of such identifiers in a column
# minimum number of characters of an identifier that is looked for in other columns
_SUBJECT_LENGTH = 4
_KEY_TEXT = "integers that look like a key, not a measurement"


def may_tell_people_apart(frame: Any, drop: Sequence[str]) -> list[str]:
    """Return columns that look like a subject identifier with several rows per subject.

    Most of their rows share the value with another row. In addition, the name ends like that of an
    identifier, or each value occurs in few rows, and the column is in ``drop`` or has codes in all
    rows.

    Args:
        frame: Real table without subject column.
        drop: Dropped columns.

    Returns:
        The columns, first those that are named like an identifier or dropped.
    """
    found, codes_only = [], []
    for name in frame.columns:
        is_named_id = _is_id_name(name)
        values = frame[name]
        if is_datetime64_any_dtype(values) or is_float_dtype(values) and (values % 1 > 0).any():
            continue
        try:
            codes, different = pd.factorize(values)
        except TypeError:  # lists and mappings are not identifiers
            continue
        whole, codes = bool((codes >= 0).all()), codes[codes >= 0]
        rows = np.bincount(codes)
        repeated = len(rows) >= _SOME and rows[rows > 1].sum() > _ALONE * len(codes)
        if repeated and (is_named_id or (name in drop and _rarely_shared(codes, rows))):
            found.append(name)
        elif (
            repeated
            and whole
            and _rarely_shared(codes, rows)
            and _are_codes(pd.Series(different), rows)
        ):
            codes_only.append(name)
    return [*found, *codes_only]


def _is_id_name(name: str) -> bool:
    """Return True for names such as "member_id", "memberId", "ID" and "pid", but not for "paid" and
    "covid".
    """
    return bool(_ID_NAME.search(name)) and not _NO_IDS.search(name)


def unique_codes(frame: Any) -> list[str]:
    """Return columns of codes of which each row has its own, as a person has who has one row.

    Args:
        frame: Real table without subject column.
    """
    names = []
    for name in frame.columns:
        values = frame[name]
        if (
            is_datetime64_any_dtype(values)
            or is_bool_dtype(values)
            or values.isna().any()
            or len(values) < _SOME
        ):
            continue
        try:
            distinct = pd.unique(values)
        except TypeError:  # lists and mappings are not identifiers
            continue
        if len(distinct) == len(values) and _are_codes(
            pd.Series(distinct), np.ones(len(values), dtype=np.int64)
        ):
            names.append(name)
    return names


def _are_codes(different: pd.Series, rows: np.ndarray) -> bool:
    """Return True for integers that look like keys, and for strings without blanks of which each
    has a digit.
    """
    if is_text(different):
        texts = texts_of(different)[0]
        read = recognize_text([(texts, np.ones(len(texts), dtype=np.int64))])
        if read.kind == "categorical" and not read.doubt:
            return bool(pc.all(pc.match_substring_regex(texts, r"^[^\s@]*[0-9][^\s@]*$")).as_py())
        if read.kind != "integer":
            return False
        different = parse_numbers(as_texts(different))
    numbers = pd.to_numeric(different, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    return (
        not np.isnan(numbers).any()
        and bool((numbers == np.round(numbers)).all())
        and _is_key(numbers, rows)
    )


def with_roles(
    schema: TableSchema,
    tables: Sequence[Table],
    people: np.ndarray | None,
    declared: Declared = NOTHING,
    kinds: Mapping[str, Kind] | None = None,
    *,
    where: str,
) -> TableSchema:
    """Return ``schema`` with the role of each column.

    Args:
        schema: Schema of the tables.
        tables: Real tables.
        people: Subject of each row of the stacked tables, shape (n,). None: each row is a subject.
        declared: Declarations by the user.
        kinds: Declared kinds by column. A numeric column with a declared kind is a measurement and
            never open.
        where: Name of the tables in messages.

    Raises:
        InputError: If a column is open and its values are not all declared as allowed values, or a
            public list contains e-mail addresses or IBANs. The message gives column, reason and
            possible fixes.
    """
    columns, reasons = [], {}
    for column in schema.columns:
        parts = [table[column.name] for table in tables]
        allowed, source = (
            declared.allowed_values.get(column.name, ()),
            declared.sources.get(column.name, ""),
        )
        column = replace(column, allowed_values=tuple(allowed), source=source)
        if column.name in declared.new_values:
            columns.append(replace(column, role="generated"))
            continue
        reason = open_reason(column, parts, people, column.name in (kinds or {}))
        if reason in (_SHARED_TEXT, _ALONE_TEXT) and column.name in declared.rare_values:
            reason = ""  # shortened until enough people have each code
        if reason and _covered(column, parts):
            reason = ""
        if source:
            # A list that identifies people is not public, whatever its source says.
            reason = certain_identifier(map(str, allowed)) or reason
        if reason:
            reasons[column.name] = reason
        columns.append(replace(column, role=natural_role(column, parts)))
    if reasons:
        has_one_row_each = people is None or len(np.unique(people)) == len(people)
        subject = _likely_subject(reasons, tables) if has_one_row_each else None
        raise _refused(reasons, where, declared.drop, subject)
    return TableSchema(tuple(columns))


def _likely_subject(reasons: Mapping[str, str], tables: Sequence[Table]) -> str | None:
    """Return the column of codes, among refused ones, that several rows of a person share. None: no
    such column.
    """
    shared = []
    for name, reason in reasons.items():
        if reason not in (_SHARED_TEXT, _KEY_TEXT):
            continue
        (codes,), _ = ranked([stacked([table[name] for table in tables])])
        n_rows = np.bincount(codes[codes >= 0])
        if n_rows[n_rows > 1].sum() > _ALONE * len(codes):
            shared.append(name)
    shared.sort(key=lambda name: not _is_id_name(name))
    return shared[0] if shared else None


def check_subject_is_not_published(
    frames: Mapping[str, Any],
    names: Mapping[str, str],
    ids: Mapping[str, Column],
    subject: str,
    declared: Declared,
) -> list[str]:
    """Reject columns that contain identifiers of other people, such as the manager of an employee.

    These are columns of codes of which most distinct values occur in the subject column. Two kinds
    of integers are exempt, because counts, amounts and years are often equal to an id by chance:
    short ones, and columns in which other integers of this size would also be ids, because people
    are numbered from 0 or 1 on. If all of the latter are ids, the column may contain a manager as
    well as a year, and a note names it.

    Args:
        frames: Real tables without the subject column, by role.
        names: Names of the tables in messages, by role.
        ids: Subject column of each table, by role.
        subject: Name of the subject column.
        declared: Declarations by the user. Columns with new values are exempt.

    Returns:
        Notes on columns that may contain identifiers.

    Raises:
        InputError: If there is a column that contains them.
    """
    notes = list[str]()
    people: set[str] = set()
    for column in ids.values():
        people.update(plain_ids(column.present().distinct().objects()))
    for name in next(iter(frames.values())).columns:
        codes: set[str] = set()
        for frame in frames.values():
            codes |= _codes_of(frame[name])
        n_people = sum(code in people for code in codes)
        if name in declared.new_values or n_people < max(_FEW_SUBJECTS, _ALONE * len(codes)):
            continue
        if not _may_be_chance(people, codes, n_people):
            what = (
                f"most of its values are values of the subject {safe_repr(subject)}, which is"
                " never published"
            )
            fix = f"leave it out ({_both_forms(None, [*declared.drop, name])})"
            raise InputError(
                what, where=", ".join(names[role] for role in frames), column=name, fix=fix
            )
        if n_people == len(codes):
            text = f"All values of {safe_repr(name)} are also values of {safe_repr(subject)}."
            notes.append(f"{text} If they identify people, leave it out.")
    return notes


def _may_be_chance(people: set[str], codes: set[str], n_people: int) -> bool:
    """Return whether other integers of this size would also be identifiers of people.

    Such integers are taken as spread from 0 to twice the median of the codes. Their share of
    identifiers is counted twice, because amounts cluster.

    Args:
        people: Identifiers of people.
        codes: Values of a column.
        n_people: Number of codes that are identifiers of people.
    """
    from scipy.stats import binom  # slow to import

    integers = [int(code) for code in codes if _INTEGER.fullmatch(code)]
    if len(integers) < len(codes):
        return False
    largest = max(2 * float(np.median(integers)), 1.0)
    density = sum(person.isdecimal() and int(person) <= largest for person in people) / largest
    return bool(binom.sf(n_people - 1, len(codes), min(2 * density, 1.0)) > _BY_CHANCE)


def _codes_of(values: pd.Series) -> set[str]:
    """Return the plain forms of the strings or integers of a column with enough characters to be an
    identifier.
    """
    is_whole = is_float_dtype(values) and bool((values.dropna() % 1 == 0).all())
    if is_whole:
        values = values.dropna().astype("int64")
    if not (is_text(values) or pd.api.types.is_integer_dtype(values)):
        return set()
    texts = (str(value) for value in values.dropna().unique())
    long_texts = [text for text in texts if len(text) >= _SUBJECT_LENGTH]
    return set(plain_ids(long_texts))


def check_identifiers(table: Table, drop: Sequence[str] = (), *, where: str) -> None:
    """Reject e-mail addresses and IBANs in a synthetic table.

    Args:
        table: Table with a schema that has the role of each column.
        drop: Columns that are already dropped.
        where: Name of the table in messages.

    Raises:
        InputError: If a categorical column contains one. Generated columns and declared allowed
            values are exempt.
    """
    reasons = {}
    for name in table.schema.of_kind("categorical"):
        column = table.schema[name]
        if column.role != "generated":
            values = table[name].present().distinct().objects()
            reasons[name] = certain_identifier(
                [value for value in values if value not in column.allowed_values]
            )
    reasons = {name: reason for name, reason in reasons.items() if reason}
    if reasons:
        raise _refused(
            reasons,
            where,
            drop,
            first_fix="make the table with privacy-assets run, which replaces them; ",
        )


_UNKNOWN = "it has categories that no real table has"
_KNOWN_FIX = "write them as in the real tables, or declare them as allowed_values"


def check_known_categories(table: Table, real: Sequence[Table], *, where: str) -> None:
    """Reject categories that no real table has, and that are not declared as allowed values.

    They do not come from real rows: a table that holds them is not the one that was declared.

    Args:
        table: Synthetic table with a schema that has the role of each column.
        real: Real tables.
        where: Name of the table in messages.

    Raises:
        InputError: If a categorical column contains one. Generated columns are exempt.
    """
    for name in table.schema.of_kind("categorical", "boolean"):
        column = table.schema[name]
        parts = [real_table[name] for real_table in real]
        is_unknown = foreign_cells(column, parts, table[name]) & ~table[name].missing
        if column.role == "closed" and is_unknown.any():
            raise _unpublishable(_UNKNOWN, _KNOWN_FIX, is_unknown, name, where)


def check_published(table: Table, rules: Mapping[str, ColumnRule], *, where: str) -> None:
    """Reject values of a synthetic table that the threshold rule does not replace.

    These are categories that no real table has and that are not declared as allowed values, and
    numbers and times that are farther outside the real range than it is wide. They do not come from
    real rows.

    Args:
        table: Synthetic table, to which the rules were applied.
        rules: Threshold rule by column.
        where: Name of the table in messages.

    Raises:
        InputError: If a column contains one. Columns without a rule are exempt.
    """
    for name, rule in rules.items():
        is_foreign = rule.is_foreign(table[name])
        if is_foreign.any() and rule.levels is not None:
            problem = (
                "it has numbers or times that are farther outside the range of the real tables"
                " than it is wide"
            )
            raise _unpublishable(problem, "keep within this range", is_foreign, name, where)
        if is_foreign.any():
            raise _unpublishable(_UNKNOWN, _KNOWN_FIX, is_foreign, name, where)


def _unpublishable(
    problem: str, fix: str, is_wrong: np.ndarray, column: str, where: str
) -> InputError:
    row = int(np.flatnonzero(is_wrong)[0])
    problem = f"{problem}, in {is_wrong.sum()} of {len(is_wrong)} cells"
    return InputError(problem, where=where, column=column, row=row, fix=fix)


def natural_role(column: ColumnSchema, real: Sequence[Column]) -> Role:
    """Return the role (closed, number or date) of a real column that is neither open nor
    generated.
    """
    if column.kind == "datetime" and not column.allowed_values:
        return "date"
    if column.kind in ("categorical", "boolean") or column.allowed_values:
        return "closed"
    values = stacked(real).present()
    n_distinct = len(values.distinct())
    has_few_values = n_distinct <= FEW_VALUES and len(values) >= FEW_VALUES * n_distinct
    return "closed" if has_few_values else "number"


def allowed_values(column: ColumnSchema, real: Sequence[Column]) -> Column:
    """Return the values that a closed column may contain, ascending: those of the real tables and
    the declared ones.

    A category may also be :data:`.published_categories.OTHER`, which replaces rare values.
    """
    parts = list(real)
    if column.kind == "categorical" and real:
        parts.append(Column.of_codes(column.name, column.kind, np.zeros(1, dtype=np.int8), [OTHER]))
    if column.allowed_values:
        declared = pd.Series(list(column.allowed_values), name=column.name, dtype=object)
        parts.append(column_of(declared, column, "allowed_values"))
    return stacked(parts).distinct()


def foreign_cells(column: ColumnSchema, real: Sequence[Column], synthetic: Column) -> np.ndarray:
    """Return True for cells of ``synthetic`` that are not allowed, bool of shape (n,).

    Missing values are allowed if a real row has one, and always in generated columns.

    Args:
        column: Schema of the column.
        real: The column in each real table.
        synthetic: The column in the synthetic table.
    """
    role = column.role or natural_role(column, real)
    missing = synthetic.missing
    if role == "generated":
        return np.zeros(len(missing), dtype=bool)
    gap = missing & (not any(part.missing.any() for part in real))
    if column.kind in ("categorical", "boolean"):
        known, own = of_one_vocabulary([allowed_values(column, real), synthetic])
        return cast("np.ndarray", (~np.isin(own.cells, known.cells) & ~missing) | gap)
    reach = reach_of(column, real)
    if reach is None:
        return ~missing
    low, high = reach
    return cast(
        "np.ndarray", (((synthetic.cells < low) | (synthetic.cells > high)) & ~missing) | gap
    )


# --- open columns
# --------------------------------------------------------------------------------------------------


def open_reason(
    column: ColumnSchema,
    real: Sequence[Column],
    people: np.ndarray | None = None,
    declared: bool = False,
) -> str:
    """Return the reason why a column is open, without cell values, or "" if it is not."""
    if column.kind in ("boolean", "datetime") or (declared and column.kind != "categorical"):
        return ""
    (codes,), different = ranked([stacked(real)])
    there = codes >= 0
    if not there.any():
        return ""
    codes, whose = codes[there], None if people is None else people[there]
    holders = count_holders(codes, whose, len(different))
    if column.kind == "categorical":
        return _open_text(np.array(different.objects(), dtype=object), codes, holders, len(there))
    numbers = different.floats()
    whole = bool((numbers == np.round(numbers)).all())
    return (
        _KEY_TEXT if whole and _rarely_shared(codes, holders) and _is_key(numbers, holders) else ""
    )


def _near_unique(codes: np.ndarray, holders: np.ndarray) -> bool:
    """Return True if most rows have a value of one subject only."""
    has_one_holder = holders == 1
    return bool(has_one_holder.sum() >= _SOME and has_one_holder[codes].mean() >= _ALONE)


def _rarely_shared(codes: np.ndarray, holders: np.ndarray) -> bool:
    frequent = holders[holders >= _SOME].sum() / max(holders.sum(), 1)
    few = len(holders) >= _MANY_VALUES and holders.mean() < _FEW_HOLDERS and frequent < 1 - _MOST
    return _near_unique(codes, holders) or bool(few)


def _selected(
    keep: np.ndarray, texts: np.ndarray, codes: np.ndarray, holders: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return texts[keep], (np.cumsum(keep) - 1)[codes[keep[codes]]], holders[keep]


def _open_text(texts: np.ndarray, codes: np.ndarray, holders: np.ndarray, rows: int) -> str:
    """Return the reason why a column of text is open, or "". ``rows`` is the number of rows, with
    missing ones.
    """
    found, certain = certain_identifiers(texts)
    if found and certain[codes].sum() >= SHARE * rows:
        return found
    if found:  # rare values, which are replaced: see .threshold_rule
        texts, codes, holders = _selected(~certain, texts, codes, holders)
    telling = np.bincount(codes, minlength=len(texts)) < _FILLER * len(codes)
    if not telling.all() and telling.any():  # values other than placeholders
        texts, codes, holders = _selected(telling, texts, codes, holders)
    lengths = np.array([len(text) for text in texts], dtype=int)
    long = lengths[codes] >= _LONG  # notes in some rows only
    has_notes = bool(long.any()) and _near_unique(
        codes[long], np.where(lengths >= _LONG, holders, 0)
    )
    if len(codes) < SHARE * rows:  # rare values
        return _NOTE_TEXT if has_notes else ""
    if found := likely_identifier(texts, np.bincount(codes), not _rarely_shared(codes, holders)):
        return found
    if _rarely_shared(codes, holders) and (read := _numbers_or_dates_reason(texts)):
        return read
    if has_notes:
        return _NOTE_TEXT
    if _near_unique(codes, holders):
        return _ALONE_TEXT
    return _SHARED_TEXT if _rarely_shared(codes, holders) else ""


def _numbers_or_dates_reason(texts: np.ndarray) -> str:
    """Return the reason if nearly all strings are numbers or dates, or "" for neither.

    :mod:`.text` decides the kind before; this is about columns that are categories.
    """
    step = -(-len(texts) // _LOOKED_AT)
    sample = pd.Series(texts[::step], dtype=object)
    numbers = pd.to_numeric(sample, errors="coerce")
    if numbers.notna().mean() > _MOST:
        return "" if sample.str.fullmatch(r"\d+").all() else _NUMBER_TEXT
    times = pd.to_datetime(sample, errors="coerce", format="ISO8601", utc=True)
    return _DATE_TEXT if times.notna().mean() > _MOST else ""


def _is_key(numbers: np.ndarray, holders: np.ndarray) -> bool:
    """Return True if integers look like keys: all long and of equal length, or with too few
    coincidences.

    If independent measures were uniform over their range, n subjects would have n (n - 1) / (2
    range) pairs with equal values. Other distributions give more pairs. Keys are unique, so they
    give fewer. Years from 1500 to 2100 are exempt.
    """
    digits = 1 + np.floor(np.log10(np.maximum(np.abs(numbers), 1))).astype(int)
    usual = int(np.bincount(digits).argmax())
    alike = float((digits == usual).mean())
    if usual >= _DIGITS and alike == 1 or usual >= _LONG_KEY and alike >= _SAME_LENGTH:
        return True
    if YEARS[0] <= numbers.min() and numbers.max() <= YEARS[1]:
        return False
    n_subjects = float(holders.sum())
    n_expected_pairs = n_subjects * (n_subjects - 1) / 2 / (numbers.max() - numbers.min() + 1)
    n_pairs = float((holders * (holders - 1.0)).sum() / 2)
    return n_pairs - n_expected_pairs < _TOO_EVEN * np.sqrt(n_expected_pairs)


def _covered(column: ColumnSchema, real: Sequence[Column]) -> bool:
    """Return True if the declared values contain every real value: values of a public list identify
    no subject.
    """
    if not column.allowed_values:
        return False
    return set(vocabulary(real)) <= set(allowed_values(column, []).objects())


def _refused(
    reasons: Mapping[str, str],
    where: str,
    drop: Sequence[str],
    subject: str | None = None,
    first_fix: str = "",
) -> InputError:
    """Return the error for columns whose values belong to single people.

    Args:
        reasons: Reason by column.
        where: Name of the tables.
        drop: Columns that are dropped already.
        subject: Column that probably identifies people, among those of ``reasons``, if none is
            declared.
        first_fix: First way out, with a semicolon.
    """
    named = ", ".join(f"{name!r} ({reason})" for name, reason in reasons.items())
    dropped = [*drop, *(name for name in reasons if name not in drop)]
    leave_out = "leave it out" if len(reasons) == 1 else "leave them out"
    what = f"{leave_out} ({_both_forms(None, dropped)})"
    if subject is not None:
        rest = [name for name in dropped if name != subject]
        also = " and leave the rest out" if rest else ""
        declared = f"declare it{also} ({_both_forms(subject, rest)})"
        what = f"if {safe_repr(subject)} identifies people, {declared}; otherwise {what}"
    fix = (
        f"{first_fix}{what}. Numbers that are measurements and strings that are dates can be"
        " kept with kinds, public"
        " lists with allowed_values, values that are not derived from real ones with"
        " new_values, and codes, shortened"
        " in a pipeline, with rare_values: {column: {prefix: [5, 3, 1]}}"
    )
    count = "a column contains" if len(reasons) == 1 else f"{len(reasons)} columns contain"
    return InputError(
        f"{count} values of individual people that would be published: {named}",
        where=where,
        fix=fix,
    )


def _both_forms(subject: str | None, drop: Sequence[str]) -> str:
    """Return the declaration of a subject and of columns to drop, as a setting and as options of
    the command line.
    """
    settings: dict[str, Any] = {}
    options = []
    if subject is not None:
        settings["subject"] = subject
        options.append(f"--subject {option_text([subject])}")
    if drop:
        settings["drop"] = list(drop)
        options.append(f"--drop {option_text(drop)}")
    return f"data: {yaml_text(settings)}; on the command line {' '.join(options)}"
