"""Column roles: which values a column may contain when the table is published (docs/columns.md).

*Closed* columns are categories, booleans, and numbers with few distinct values. Categories and
booleans contain only values of the real tables or declared allowed values. *Numbers* and *dates*
may be new. *Identifying* columns (identifiers, free text, nearly unique codes, direct identifiers)
are rejected, because each of their values belongs to one person, whom a copied value discloses. New
values are allowed in *generated* columns, which are declared with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_float_dtype

from privacy_assets.errors import InputError, safe_repr
from privacy_assets.tables.column import (
    Column,
    columns_named,
    have_missing,
    of_one_vocabulary,
    ranked,
    stacked,
    vocabulary,
)
from privacy_assets.tables.column_rule import reach_of, unknown_categories
from privacy_assets.tables.conversion import (
    as_texts,
    column_of,
    is_text,
    texts_of,
    valid_unicode,
)
from privacy_assets.tables.declared import NOTHING, Declared, subject_and_drop
from privacy_assets.tables.names import without
from privacy_assets.tables.published_categories import OTHER, count_holders
from privacy_assets.tables.schema import (
    ColumnRole,
    ColumnSchema,
    TableSchema,
)
from privacy_assets.tables.table import Table
from privacy_assets.tables.text import (
    YEARS,
    recognize_text,
)
from privacy_assets.tables.written_numbers import find, parse_numbers

# minimum share of rows with an e-mail address, or with the form of a phone or card number
_MIN_IDENTIFIER_SHARE = 0.2
_MAX_CHECKED = 5000  # maximum number of distinct values tested
_MAX_CHARACTERS = 500  # maximum number of characters tested of each
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
_PLAIN_DOT = r"(?:[.。]|%2E|&#0*46;|&#x0*2e;|&period;)"
_SPELT_DOT = r"\s?[(\[{<]\s?dot\s?[)\]}>]\s?"
_DOT = rf"(?:{_PLAIN_DOT}|{_SPELT_DOT})"
_LETTER = r"[\p{L}\p{M}]"
_IN_LABEL = r"[\p{L}\p{M}\p{N}_-]"
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
    rf"|{_SPACED_AT}(?:{_LABELS}(?:{_SPELT_DOT}{_TOP}|{_PLAIN_DOT}{_TOP_IN_ONE_CASE})"
    rf"|{_DIGITS_DOMAIN}))"
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


def certain_identifier(texts: Sequence[str]) -> str:
    """Return the kind of direct identifier that occurs in ``texts``, see
    :func:`certain_identifiers`.
    """
    return certain_identifiers(texts)[0]


def certain_identifiers(texts: Sequence[str] | np.ndarray) -> tuple[str, np.ndarray]:
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
    normalized = _normalized(texts)
    has_email = find(normalized, rf"(?i){_AT}|{_SPACED_AT}")
    if has_email.any():
        has_email[has_email] = find(normalized.filter(has_email), _EMAIL)
    may_have_iban = find(normalized, _MAYBE_IBAN)
    have_ibans = _have_ibans(normalized.filter(may_have_iban).to_pylist())
    kind = ""
    if has_email.any():
        kind = "e-mail addresses"
    elif have_ibans:
        kind = "bank account numbers"
    return kind, has_email | (may_have_iban & have_ibans)


def _normalized(texts: Sequence[str] | np.ndarray) -> pa.Array:
    """Convert to NFKC, remove invisible characters and replace dashes by hyphens."""
    try:
        strings = pa.array(texts, pa.large_string())
    except UnicodeEncodeError:  # lone surrogate
        encodable = [valid_unicode(text) for text in texts]
        strings = pa.array(encodable, pa.large_string())
    is_unusual = pc.match_substring_regex(strings, _UNUSUAL)
    plain = pc.utf8_normalize(strings.filter(is_unusual), "NFKC")
    for pattern, replacement in ((r"\p{Cf}", ""), (r"\p{Pd}", "-")):
        plain = pc.replace_substring_regex(plain, pattern, replacement)
    return pc.replace_with_mask(strings, is_unusual, plain)


class _IbanCandidate(NamedTuple):
    """Part of a text that has the form of an IBAN.

    Attributes:
        written: The part as it is written.
        code: Its letters and digits, in upper case.
    """

    written: str
    code: str


def _have_ibans(texts: Iterable[str]) -> bool:
    """Return True if one text contains a valid IBAN in a usual spelling, or most of those in other
    spellings are valid.
    """
    n_texts = 0
    n_valid = 0
    for text in texts:
        candidates = _iban_candidates(text)
        if not candidates:
            continue
        valid = [candidate for candidate in candidates if _is_valid(candidate.code)]
        if any(_has_usual_spelling(candidate.written) for candidate in valid):
            return True
        n_texts += 1
        n_valid += bool(valid)
    return 2 * n_valid > n_texts


def _iban_candidates(text: str) -> list[_IbanCandidate]:
    """Return the parts of a text that have the form of an IBAN, which consists mostly of digits
    after its first four characters.
    """
    candidates = []
    for match in _IBAN.finditer(text):
        if not _is_apart(match):
            continue
        code = _letters_and_digits(match[1])
        n_digits = sum(map(str.isdigit, code[4:]))
        if 2 * n_digits > len(code) - 4:
            candidates.append(_IbanCandidate(match[1], code))
    return candidates


def _has_usual_spelling(iban: str) -> bool:
    return bool(_PLAIN_IBAN.fullmatch(iban) or _IBAN_IN_FOURS.fullmatch(iban))


def _letters_and_digits(text: str) -> str:
    return re.sub(r"[^A-Z0-9]", "", text.upper())


def _is_apart(match: re.Match[str]) -> bool:
    """Return False for a part of a longer code, such as a UUID. A code of digits only has no
    further parts.
    """
    written = match[1]
    after = match[2] or ""
    before = match.string[: match.start()].upper()
    if _letters_and_digits(written)[2:].isdigit():
        return True
    if len(after) > 1:
        return False
    follows_hyphen = before.endswith("-") and not before.endswith("IBAN-")
    return "-" not in written or not (after == "-" or follows_hyphen)


def _is_valid(iban: str) -> bool:
    """Check ISO 13616: with the first four characters moved to the end and letters as numbers, the
    value is 1 modulo 97.
    """
    rearranged = iban[4:] + iban[:4]
    digits = "".join(str(int(character, 36)) for character in rearranged)
    return int(digits) % 97 == 1


def likely_identifier(texts: np.ndarray, n_rows: np.ndarray, shared: bool = False) -> str:
    """Return the kind of direct identifier that a column contains by the form of its values.

    Phone and card numbers also occur by chance, so at least 20 % of the rows must have the form.

    Args:
        texts: Distinct strings of the column, (m,).
        n_rows: Number of rows with each string, int64 (m,).
        shared: True if many people share a value, as they share codes of drugs: then only numbers
            that begin with "+" count as phone numbers.

    Returns:
        "phone numbers", "payment card numbers", or "" for neither.
    """
    step = -(-len(texts) // _MAX_CHECKED)
    texts = texts[::step]
    n_rows = n_rows[::step]
    forms = dict(_FORMS)
    if shared:
        forms["phone numbers"] = _is_international_phone
    for kind, has_form in forms.items():
        matches = (has_form(text[:_MAX_CHARACTERS].strip()) for text in texts)
        is_match = np.fromiter(matches, dtype=bool, count=len(texts))
        if n_rows[is_match].sum() >= _MIN_IDENTIFIER_SHARE * n_rows.sum():
            return kind
    return ""


def _is_phone(text: str) -> bool:
    n_digits = sum(map(str.isdigit, text))
    if not 8 <= n_digits <= 15 or not _PHONE.fullmatch(text):
        return False
    return not _DATE_OR_PERIOD.fullmatch(text)


def _is_international_phone(text: str) -> bool:
    return text.startswith("+") and _is_phone(text)


def _is_card(text: str) -> bool:
    """Check the Luhn sum: with every second digit from the right doubled, the sum of all digits
    ends in 0.
    """
    if not _CARD.fullmatch(text):
        return False
    digits = [int(c) for c in reversed(text) if c.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


_FORMS: dict[str, Callable[[str], bool]] = {
    "phone numbers": _is_phone,
    "payment card numbers": _is_card,
}


# numbers with at most this many values, each in at least this many rows on average, are closed
MAX_CLOSED_VALUES = 20
_MAJORITY = 0.5  # share of rows or values above which they are "most"
_MIN_UNIQUE_SHARE = 0.5  # minimum share of rows with a value of a single subject
_MIN_VALUES = 20  # minimum number of distinct or unique values for a decision
_MIN_CODES = 100  # minimum number of rarely shared values, if they are not unique
_MAX_MEAN_HOLDERS = 5.0  # each has fewer subjects than this on average
_MIN_FREQUENT_HOLDERS = 20  # minimum number of subjects that share a frequent value
_MAX_FREQUENT_SHARE = 0.1  # frequent values have less than this share of the subjects
_MAX_PARSED = 5000  # maximum number of distinct strings parsed
_MIN_PARSED_SHARE = 0.9  # minimum share of them that must parse
_MIN_NOTE_LENGTH = 40  # characters
_MIN_KEY_DIGITS = 6  # integers are keys if all have the same number of digits, at least this many
_MIN_LONG_KEY_DIGITS = 8  # or if most of them have
_MIN_SAME_LENGTH_SHARE = 0.8  # share of "most": one in ten loses a leading zero
_MIN_FILLER_SHARE = 0.2  # minimum share of rows with a placeholder such as "none" or "unknown"
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
    r"(^|[^a-z])((un|pre|re)?paid|aid|bid|kid|said|(in)?valid|covid|hybrid|fluid|liquid|solid"
    r"|grid|acid|lipid|thyroid|steroid|humid|android|rapid|rigid|void|hemorrhoid)$",
    re.IGNORECASE,
)
_KEY_TEXT = "integers that look like a key, not a measurement"


def may_identify_people(frame: Any, drop: Sequence[str]) -> list[str]:
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
    id_columns = list[str]()
    code_columns = list[str]()
    for name in frame.columns:
        has_id_name = _is_id_name(name)
        values = frame[name]
        if is_datetime64_any_dtype(values) or _has_fractions(values):
            continue
        try:
            codes, distinct = pd.factorize(values)
        except TypeError:  # lists and mappings are not identifiers
            continue
        is_present = codes >= 0
        codes = codes[is_present]
        n_rows = np.bincount(codes)
        n_repeated = n_rows[n_rows > 1].sum()
        if len(n_rows) < _MIN_VALUES or n_repeated <= _MAJORITY * len(codes):
            continue
        is_rarely_shared = _rarely_shared(codes, n_rows)
        if has_id_name or (name in drop and is_rarely_shared):
            id_columns.append(name)
        elif is_present.all() and is_rarely_shared and _are_codes(pd.Series(distinct), n_rows):
            code_columns.append(name)
    return [*id_columns, *code_columns]


def _has_fractions(values: pd.Series) -> bool:
    return is_float_dtype(values) and bool((values % 1 > 0).any())


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
    names = list[str]()
    for name in frame.columns:
        values = frame[name]
        if is_datetime64_any_dtype(values) or is_bool_dtype(values):
            continue
        if len(values) < _MIN_VALUES or values.isna().any():
            continue
        try:
            distinct = pd.unique(values)
        except TypeError:  # lists and mappings are not identifiers
            continue
        if len(distinct) < len(values):
            continue
        if _are_codes(pd.Series(distinct), np.ones(len(values), dtype=np.int64)):
            names.append(name)
    return names


def _are_codes(distinct: pd.Series, n_rows: np.ndarray) -> bool:
    """Return True for integers that look like keys, and for strings without blanks of which each
    has a digit.
    """
    if is_text(distinct):
        texts = texts_of(distinct)[0]
        text_form = recognize_text([(texts, np.ones(len(texts), dtype=np.int64))])
        if text_form.kind == "categorical" and not text_form.ambiguity:
            is_code = pc.match_substring_regex(texts, r"^[^\s@]*[0-9][^\s@]*$")
            return bool(pc.all(is_code).as_py())
        if text_form.kind != "integer":
            return False
        distinct = parse_numbers(as_texts(distinct))
    numbers = pd.to_numeric(distinct, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    if np.isnan(numbers).any():
        return False
    is_integer = bool((numbers == np.round(numbers)).all())
    return is_integer and _is_key(numbers, n_rows)


def with_roles(
    schema: TableSchema,
    tables: Sequence[Table],
    subject_codes: np.ndarray | None,
    declared: Declared = NOTHING,
    *,
    where: str,
) -> TableSchema:
    """Return ``schema`` with the role of each column.

    Args:
        schema: Schema of the tables.
        tables: Real tables.
        subject_codes: Subject of each row of the stacked tables, shape (n,). None: each row is a
            subject.
        declared: Declarations by the user. A numeric column with a declared kind is a measurement
            and never open.
        where: Name of the tables in messages.

    Raises:
        InputError: If a column is open and its values are not all declared as allowed values, or a
            public list contains e-mail addresses or IBANs. The message gives column, reason and
            possible fixes.
    """
    columns = list[ColumnSchema]()
    reasons = {}
    for column in schema.columns:
        parts = columns_named(column.name, tables)
        if column.name in declared.allowed_values:
            values, source = declared.allowed_values[column.name]
            column = replace(column, allowed_values=values, source=source)
        if column.name in declared.new_values:
            columns.append(replace(column, role="generated"))
            continue
        has_declared_kind = column.name in declared.kinds
        reason = open_reason(column, parts, subject_codes, has_declared_kind)
        if reason:
            reason = _remaining_reason(reason, column, parts, declared)
        if column.source:
            # A list that identifies people is not public, whatever its source says.
            listed = list(map(str, column.allowed_values))
            reason = certain_identifier(listed) or reason
        if reason:
            reasons[column.name] = reason
        columns.append(replace(column, role=natural_role(column, parts)))
    if reasons:
        has_one_row_each = subject_codes is None or len(np.unique(subject_codes)) == len(
            subject_codes
        )
        subject = _likely_subject(reasons, tables) if has_one_row_each else None
        raise _rejected(reasons, where, declared.drop, subject)
    return TableSchema(tuple(columns))


def _remaining_reason(
    reason: str, column: ColumnSchema, real: Sequence[Column], declared: Declared
) -> str:
    """Return the reason why a column is open, or "" if a declaration permits the column."""
    if reason in (_SHARED_TEXT, _ALONE_TEXT) and column.name in declared.prefix_lengths:
        return ""  # shortened until enough people have each code
    if _covered(column, real):
        return ""
    return reason


def _likely_subject(reasons: Mapping[str, str], tables: Sequence[Table]) -> str | None:
    """Return the column of codes, among rejected ones, that several rows of a person share. None:
    no such column.
    """
    shared = []
    for name, reason in reasons.items():
        if reason not in (_SHARED_TEXT, _KEY_TEXT):
            continue
        (codes,), _ = ranked([stacked(columns_named(name, tables))])
        n_rows = np.bincount(codes[codes >= 0])
        if n_rows[n_rows > 1].sum() > _MAJORITY * len(codes):
            shared.append(name)
    shared.sort(key=lambda name: not _is_id_name(name))
    return shared[0] if shared else None


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
        if column.role == "generated":
            continue
        values = table[name].present().distinct().objects()
        undeclared = without(values, column.allowed_values)
        reason = certain_identifier(undeclared)
        if reason:
            reasons[name] = reason
    if reasons:
        raise _rejected(
            reasons,
            where,
            drop,
            first_fix="make the table with privacy-assets run, which replaces them; ",
        )


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
        parts = columns_named(name, real)
        is_unknown = foreign_cells(column, parts, table[name]) & ~table[name].missing
        if column.role == "closed" and is_unknown.any():
            raise unknown_categories(is_unknown, name, where)


def natural_role(column: ColumnSchema, real: Sequence[Column]) -> ColumnRole:
    """Return the role (closed, number or date) of a real column that is neither open nor
    generated.

    Args:
        column: Schema of the column.
        real: The column in each real table.
    """
    if column.kind == "datetime" and not column.allowed_values:
        return "date"
    if column.kind in ("categorical", "boolean") or column.allowed_values:
        return "closed"
    values = stacked(real).present()
    n_distinct = len(values.distinct())
    has_few_values = (
        n_distinct <= MAX_CLOSED_VALUES and len(values) >= MAX_CLOSED_VALUES * n_distinct
    )
    return "closed" if has_few_values else "number"


def allowed_values(column: ColumnSchema, real: Sequence[Column]) -> Column:
    """Return the values that a closed column may contain, ascending: those of the real tables and
    the declared ones.

    A category may also be :data:`.published_categories.OTHER`, which replaces rare values.

    Args:
        column: Schema of the column.
        real: The column in each real table.
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
    column_role = column.role or natural_role(column, real)
    is_missing = synthetic.missing
    if column_role == "generated":
        return np.zeros(len(is_missing), dtype=bool)
    is_nullable = have_missing(real)
    is_foreign_gap = is_missing & (not is_nullable)
    if column.kind in ("categorical", "boolean"):
        allowed, published = of_one_vocabulary([allowed_values(column, real), synthetic])
        is_foreign = ~np.isin(published.cells, allowed.cells)
    else:
        reach = reach_of(column, real)
        if reach is None:
            return ~is_missing
        low, high = reach
        is_foreign = (synthetic.cells < low) | (synthetic.cells > high)
    return cast("np.ndarray", (is_foreign & ~is_missing) | is_foreign_gap)


# --- identifying columns
# --------------------------------------------------------------------------------------------------


def open_reason(
    column: ColumnSchema,
    real: Sequence[Column],
    subject_codes: np.ndarray | None = None,
    declared: bool = False,
) -> str:
    """Return the reason why a column is open, without cell values, or "" if it is not.

    Args:
        column: Schema of the column.
        real: The column in each real table.
        subject_codes: Subject of each row of the stacked tables, shape (n,). None: each row is a
            subject.
        declared: True if the kind is declared: then only categories may be open.
    """
    if column.kind in ("boolean", "datetime") or (declared and column.kind != "categorical"):
        return ""
    (codes,), distinct = ranked([stacked(real)])
    is_present = codes >= 0
    if not is_present.any():
        return ""
    codes = codes[is_present]
    present_subjects = None if subject_codes is None else subject_codes[is_present]
    n_holders = count_holders(codes, present_subjects, len(distinct))
    if column.kind == "categorical":
        texts = _Texts(np.array(distinct.objects(), dtype=object), codes, n_holders)
        return _open_text(texts, len(is_present))
    numbers = distinct.floats()
    is_integer = bool((numbers == np.round(numbers)).all())
    if is_integer and _rarely_shared(codes, n_holders) and _is_key(numbers, n_holders):
        return _KEY_TEXT
    return ""


class _Texts(NamedTuple):
    """Strings of a column, without missing ones.

    Attributes:
        distinct: Distinct strings, object (m,).
        codes: Index into ``distinct`` of each row, (n,).
        n_holders: Number of subjects with each distinct string, (m,).
    """

    distinct: np.ndarray
    codes: np.ndarray
    n_holders: np.ndarray

    def selected(self, is_selected: np.ndarray) -> _Texts:
        """Return the selected strings, bool (m,), and their rows."""
        new_codes = np.cumsum(is_selected) - 1
        old_codes = self.codes[is_selected[self.codes]]
        return _Texts(self.distinct[is_selected], new_codes[old_codes], self.n_holders[is_selected])


def _near_unique(codes: np.ndarray, n_holders: np.ndarray) -> bool:
    """Return True if at least 20 values have one subject only, and at least half of the rows have
    such a value.

    Args:
        codes: Value of each row, int64 (n,).
        n_holders: Number of subjects with each value, int64 (m,).
    """
    is_unique = n_holders == 1
    return bool(is_unique.sum() >= _MIN_VALUES and is_unique[codes].mean() >= _MIN_UNIQUE_SHARE)


def _rarely_shared(codes: np.ndarray, n_holders: np.ndarray) -> bool:
    """Return True for nearly unique values, and for many values with few subjects each, unless
    frequent values have at least a tenth of the subjects. It has the arguments of
    :func:`_near_unique`.
    """
    if _near_unique(codes, n_holders):
        return True
    share_frequent = n_holders[n_holders >= _MIN_FREQUENT_HOLDERS].sum() / max(n_holders.sum(), 1)
    has_many_values = len(n_holders) >= _MIN_CODES
    has_few_holders = has_many_values and n_holders.mean() < _MAX_MEAN_HOLDERS
    return bool(has_few_holders and share_frequent < _MAX_FREQUENT_SHARE)


def _open_text(texts: _Texts, n_rows: int) -> str:
    """Return the reason why a column of text is open, or "".

    Args:
        texts: Strings of the column.
        n_rows: Number of rows, with missing ones.
    """
    identifier, is_certain = certain_identifiers(texts.distinct)
    if identifier and is_certain[texts.codes].sum() >= _MIN_IDENTIFIER_SHARE * n_rows:
        return identifier
    if identifier:  # rare values, which are replaced: see .threshold_rule
        texts = texts.selected(~is_certain)
    texts = _without_placeholders(texts)
    has_notes = _has_notes(texts)
    if len(texts.codes) < _MIN_IDENTIFIER_SHARE * n_rows:  # rare values
        return _NOTE_TEXT if has_notes else ""
    is_rarely_shared = _rarely_shared(texts.codes, texts.n_holders)
    identifier = likely_identifier(texts.distinct, np.bincount(texts.codes), not is_rarely_shared)
    if identifier:
        return identifier
    if is_rarely_shared:
        reason = _numbers_or_dates_reason(texts.distinct)
        if reason:
            return reason
    if has_notes:
        return _NOTE_TEXT
    if _near_unique(texts.codes, texts.n_holders):
        return _ALONE_TEXT
    return _SHARED_TEXT if is_rarely_shared else ""


def _without_placeholders(texts: _Texts) -> _Texts:
    """Return the strings that few rows have, or all strings if there is none."""
    n_rows = np.bincount(texts.codes, minlength=len(texts.distinct))
    is_infrequent = n_rows < _MIN_FILLER_SHARE * len(texts.codes)
    if is_infrequent.any() and not is_infrequent.all():
        return texts.selected(is_infrequent)
    return texts


def _has_notes(texts: _Texts) -> bool:
    """Return True if some rows contain notes: long strings, nearly all of one subject each."""
    lengths = np.array(list(map(len, texts.distinct)), dtype=int)
    is_long = lengths >= _MIN_NOTE_LENGTH
    row_is_long = is_long[texts.codes]
    if not row_is_long.any():
        return False
    return _near_unique(texts.codes[row_is_long], np.where(is_long, texts.n_holders, 0))


def _numbers_or_dates_reason(texts: np.ndarray) -> str:
    """Return the reason if nearly all strings are numbers or dates, or "" for neither.

    :mod:`.text` decides the kind before; this is about columns that are categories.
    """
    step = -(-len(texts) // _MAX_PARSED)
    sample = pd.Series(texts[::step], dtype=object)
    numbers = pd.to_numeric(sample, errors="coerce")
    if numbers.notna().mean() > _MIN_PARSED_SHARE:
        return "" if sample.str.fullmatch(r"\d+").all() else _NUMBER_TEXT
    times = pd.to_datetime(sample, errors="coerce", format="ISO8601", utc=True)
    return _DATE_TEXT if times.notna().mean() > _MIN_PARSED_SHARE else ""


def _is_key(numbers: np.ndarray, holders: np.ndarray) -> bool:
    """Return True if integers look like keys: all long and of equal length, or with too few
    coincidences.

    If independent measures were uniform over their range, n subjects would have n (n - 1) / (2
    range) pairs with equal values. Other distributions give more pairs. Keys are unique, so they
    give fewer. Years from 1500 to 2100 are exempt.
    """
    digits = 1 + np.floor(np.log10(np.maximum(np.abs(numbers), 1))).astype(int)
    usual_length = int(np.bincount(digits).argmax())
    share_usual = float((digits == usual_length).mean())
    if usual_length >= _MIN_KEY_DIGITS and share_usual == 1:
        return True
    if usual_length >= _MIN_LONG_KEY_DIGITS and share_usual >= _MIN_SAME_LENGTH_SHARE:
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


def _rejected(
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
    columns = ", ".join(f"{name!r} ({reason})" for name, reason in reasons.items())
    dropped = [*drop, *without(reasons, drop)]
    leave_out = "leave it out" if len(reasons) == 1 else "leave them out"
    advice = f"{leave_out} ({subject_and_drop(None, dropped)})"
    if subject is not None:
        remaining = without(dropped, [subject])
        also = " and leave the rest out" if remaining else ""
        declared = f"declare it{also} ({subject_and_drop(subject, remaining)})"
        advice = f"if {safe_repr(subject)} identifies people, {declared}; otherwise {advice}"
    fix = (
        f"{first_fix}{advice}. Numbers that are measurements and strings that are dates can be"
        " kept with kinds, public lists with allowed_values, values that are not derived from real"
        " ones with new_values, and codes, shortened in a pipeline, with prefix_lengths:"
        " {column: [5, 3, 1]}"
    )
    count = "a column contains" if len(reasons) == 1 else f"{len(reasons)} columns contain"
    problem = f"{count} values of individual people that would be published: {columns}"
    return InputError(problem, where=where, fix=fix)
