"""Subjects of the real tables: ids of people as exact text, and the plain form of an id.

Excel, databases and programs write one id in several ways: "P7" and "p7 ", 7 and "7.0", "007" and
"7". Such ids have one plain form. Two of them in the tables of a release stop a run; the split and
the ledger of disclosure use the plain form, so that a person remains the same one if the spelling
changes from night to night.

Ids are never published: a run stops if another column contains them, too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import is_float_dtype, is_integer_dtype

from privacy_assets.errors import InputError, safe_repr
from privacy_assets.tables.column import Column
from privacy_assets.tables.conversion import column_of, is_text
from privacy_assets.tables.declared import Declared, subject_and_drop
from privacy_assets.tables.names import is_invisible, without
from privacy_assets.tables.schema import ColumnSchema, Frame, check_subject, option_text, yaml_text

IGNORED = "case, blanks, invisible characters, leading zeros and the form of numbers"
# An exponent of two digits is enough for an id, and "1e999999" stays short.
_NUMBER = re.compile(r"([+-]?)([0-9]+)(?:\.([0-9]*))?(?:e([+-]?)0*([0-9]{1,2}))?")
_LEADING_ZEROS = re.compile(r"0+(?=[^\W_])")
_INTEGER = re.compile(r"-?\d+", re.ASCII)
_MIN_COPIED_IDS = 5  # minimum number of ids of people in another column
_MIN_COPIED_SHARE = 0.5  # minimum share of its values
_MIN_ID_LENGTH = 4  # minimum number of characters of an id that is looked for there
_BY_CHANCE = 1e-6  # smallest probability of a coincidence


class CheckedSubjects(NamedTuple):
    """Ids of the people of the real tables, which no other column contains.

    Attributes:
        ids: Subject column of each table, by role. Empty without a subject.
        notes: Notes on columns that may contain ids.
    """

    ids: dict[str, Column]
    notes: list[str]


def checked_subjects(
    frames: Mapping[str, Frame], names: Mapping[str, str], declared: Declared
) -> CheckedSubjects:
    """Return the subjects of the real tables, and reject other columns that contain their ids.

    Args:
        frames: Real tables by role.
        names: Names of the tables in messages, by role.
        declared: Declarations by the user.

    Raises:
        InputError: As :func:`subject_columns`, and if another column contains ids.
    """
    ids = subject_columns(frames, names, declared)
    if declared.subject is None:
        return CheckedSubjects(ids, [])
    return CheckedSubjects(ids, _check_not_copied(frames, names, ids, declared))


def subject_columns(
    frames: Mapping[str, Frame], names: Mapping[str, str], declared: Declared
) -> dict[str, Column]:
    """Return the subject column of the real tables, by role; nothing without a subject.

    Args:
        frames: Real tables by role.
        names: Names of the tables in messages, by role.
        declared: Declarations by the user.

    Raises:
        InputError: If the column or a subject is missing, or a person has two spellings.
    """
    subject = declared.subject
    if subject is None:
        return {}
    ids = {}
    for role, frame in frames.items():
        check_subject(frame.columns, subject, names[role])
        ids[role] = subject_column(frame[subject], names[role])
    if not declared.exact_ids:
        check_ids(ids, names)
    return ids


def subject_column(series: pd.Series, where: str) -> Column:
    """Convert subject identifiers to strings, exactly: the integer 7 is "7", and "007" is another
    text.

    Args:
        series: Subject column of a table.
        where: Name of the table in messages.

    Raises:
        InputError: If an identifier is missing or has only blanks and invisible characters.
    """
    name = str(series.name)
    ids = as_ids(series, where)
    is_empty = [not _is_visible(text) for text in ids.values or ()]
    is_missing = np.array([*is_empty, True])[ids.cells]  # -1, missing, selects the last
    missing = np.flatnonzero(is_missing)
    if len(missing):
        fix = "add the id of the person to every row"
        problem = "the subject is missing"
        raise InputError(problem, where=where, column=name, row=int(missing[0]), fix=fix)
    return ids


def as_ids(series: pd.Series, where: str) -> Column:
    """Return the texts of subject identifiers, some of which may be missing.

    Args:
        series: Subject column of a table.
        where: Name of the table in messages.
    """
    schema = ColumnSchema(str(series.name), "categorical", False, "str")
    return column_of(series, schema, where, external=True)


def _check_not_copied(
    frames: Mapping[str, Frame],
    names: Mapping[str, str],
    ids: Mapping[str, Column],
    declared: Declared,
) -> list[str]:
    """Reject columns that contain identifiers of other people, such as the manager of an employee.

    These are columns of codes of which most distinct values occur in the subject column. Two kinds
    of integers are exempt, because counts, amounts and years are often equal to an id by chance:
    short ones, and columns in which other integers of this size would also be ids, because people
    are numbered from 0 or 1 on. If all of the latter are ids, the column may contain a manager as
    well as a year, and a note names it.

    Args:
        frames: Real tables by role.
        names: Names of the tables in messages, by role.
        ids: Subject column of each table, by role.
        declared: Declarations by the user, with a subject. Columns with new values are exempt.

    Returns:
        Notes on columns that may contain identifiers.

    Raises:
        InputError: If there is a column that contains them.
    """
    notes = list[str]()
    subject = safe_repr(declared.subject)
    subject_ids: set[str] = set()
    for column in ids.values():
        subject_ids.update(plain_ids(column.present().distinct().objects()))
    first = next(iter(frames.values()))
    for name in without(first.columns, declared.not_published):
        codes: set[str] = set()
        for frame in frames.values():
            codes |= _codes_of(frame[name])
        n_ids = sum(code in subject_ids for code in codes)
        min_ids = max(_MIN_COPIED_IDS, _MIN_COPIED_SHARE * len(codes))
        if name in declared.new_values or n_ids < min_ids:
            continue
        if not _may_be_chance(subject_ids, codes, n_ids):
            problem = (
                f"most of its values are values of the subject {subject}, which is never published"
            )
            where = ", ".join(names[role] for role in frames)
            fix = f"leave it out ({subject_and_drop(None, [*declared.drop, name])})"
            raise InputError(problem, where=where, column=name, fix=fix)
        if n_ids == len(codes):
            note = f"All values of {safe_repr(name)} are also values of {subject}."
            notes.append(f"{note} If they identify people, leave it out.")
    return notes


def _may_be_chance(subject_ids: set[str], codes: set[str], n_ids: int) -> bool:
    """Return whether other integers of this size would also be identifiers of people.

    Such integers are taken as spread from 0 to twice the median of the codes. Their share of
    identifiers is counted twice, because amounts cluster.

    Args:
        subject_ids: Identifiers of people.
        codes: Values of a column.
        n_ids: Number of codes that are identifiers of people.
    """
    from scipy.stats import binom  # slow to import

    integers = [int(code) for code in codes if _INTEGER.fullmatch(code)]
    if len(integers) < len(codes):
        return False
    largest = max(2 * float(np.median(integers)), 1.0)
    n_possible = 0
    for text in subject_ids:
        if text.isdecimal() and int(text) <= largest:
            n_possible += 1
    density = n_possible / largest
    return bool(binom.sf(n_ids - 1, len(codes), min(2 * density, 1.0)) > _BY_CHANCE)


def _codes_of(values: pd.Series) -> set[str]:
    """Return the plain forms of the strings or integers of a column with enough characters to be an
    identifier.
    """
    is_whole = is_float_dtype(values) and bool((values.dropna() % 1 == 0).all())
    if is_whole:
        values = values.dropna().astype("int64")
    if not (is_text(values) or is_integer_dtype(values)):
        return set()
    texts = map(str, values.dropna().unique())
    long_texts = [text for text in texts if len(text) >= _MIN_ID_LENGTH]
    return set(plain_ids(long_texts))


class Spellings(NamedTuple):
    """Ids of some tables that have another spelling in these tables.

    Attributes:
        n_ids: Number of these ids.
        n_plain: Number of their plain forms.
        first: One of these ids.
        second: Another spelling of it.
    """

    n_ids: int
    n_plain: int
    first: str
    second: str

    @property
    def problem(self) -> str:
        """Sentence on these ids, without an id and without a full stop."""
        return f"{self.n_ids:,} ids are only {self.n_plain:,} if {IGNORED} are ignored"


def find_spellings(subjects: Iterable[Column]) -> Spellings | None:
    """Return the ids of some tables that have another spelling in these tables. None: no id has
    one.

    Args:
        subjects: Subject column of each table.
    """
    distinct = dict[str, None]()
    for column in subjects:
        distinct.update(dict.fromkeys(column.present().distinct().objects()))
    ids = list(distinct)
    codes, _ = pd.factorize(pd.Series(plain_ids(ids), dtype=object))
    n_spellings = np.bincount(codes)
    respelled = np.flatnonzero(n_spellings[codes] > 1)
    if not len(respelled):
        return None
    first, second = np.flatnonzero(codes == codes[respelled[0]])[:2]
    n_plain = int((n_spellings > 1).sum())
    return Spellings(len(respelled), n_plain, ids[first], ids[second])


def check_ids(subjects: Mapping[str, Column], names: Mapping[str, str]) -> None:
    """Raise InputError if two ids of one table or of two have one plain form, see :func:`plain_id`.

    They probably identify one person, who would then count as two people.

    Args:
        subjects: Subject column of each table, by role.
        names: Names of the tables in messages, by role.
    """
    spellings = find_spellings(subjects.values())
    if spellings is None:
        return
    first = _first_cell(subjects, spellings.first)
    second = _first_cell(subjects, spellings.second)
    earlier, later = sorted([first, second])
    roles = list(subjects)
    column = subjects[roles[earlier.table]].name
    earlier_where = names[roles[earlier.table]]
    later_where = names[roles[later.table]]
    example = f"such as the ids of this row and of row {earlier.row} in {earlier_where}"
    problem = f"{spellings.problem}, {example}"
    declared = yaml_text({"subject": {"column": column, "exact": True}})
    options = f"--subject {option_text([column])} --exact-ids"
    fix = (
        "write the id of a person in one way in all rows and tables; or, if these are different"
        " people, state it"
        f" (data: {declared}; on the command line {options})"
    )
    raise InputError(problem, where=later_where, column=column, row=later.row, fix=fix)


class _Cell(NamedTuple):
    """A cell of the subject columns.

    Attributes:
        table: Position of the table.
        row: Row in the table.
    """

    table: int
    row: int


def _first_cell(subjects: Mapping[str, Column], text: str) -> _Cell:
    """Return the first cell that contains an id."""
    for position, column in enumerate(subjects.values()):
        rows = np.flatnonzero(column.index_in([text]) == 0)
        if len(rows):
            return _Cell(position, int(rows[0]))
    raise KeyError


def plain_ids(texts: Sequence[str]) -> list[str]:
    """Return the plain form of each id, see :func:`plain_id`.

    Args:
        texts: Ids.
    """
    return [plain_id(text) for text in texts]


def plain_id(text: str) -> str:
    """Return the plain form of an id: "" if it has no visible character.

    It has no upper case, compatibility or invisible characters, no leading zeros, and one blank
    between two words. All dashes are hyphens, and decimal digits of any script are 0 to 9. A whole
    number, also with a fraction of 0 or with an exponent, becomes its digits.

    Args:
        text: An id.
    """
    if text.isascii() and text.isalnum() and text[0].isalpha():
        return text.lower()  # as below, faster
    if text.isascii() and text.isdigit():
        return text.lstrip("0") or "0"
    if not (text.isascii() and text.isprintable()):
        text = _folded(text)
    words = text.lower().split()
    plain = " ".join(words)
    digits = _digits_of(plain)
    if digits is not None:
        return digits
    zeros = _LEADING_ZEROS.match(plain)
    return plain[zeros.end() :] if zeros else plain


def _is_visible(text: str) -> bool:
    return any(_plain_character(character).strip() for character in text)


def _folded(text: str) -> str:
    """Return a text without case, compatibility and invisible characters."""
    plain = "".join(map(_plain_character, text))
    folded = unicodedata.normalize("NFKC", plain).casefold()
    # In Turkish, the upper case of "ı" is "I", and that of "i" has a dot.
    folded = folded.replace("ı", "i").replace("i\u0307", "i")
    return unicodedata.normalize("NFKC", folded)


@cache
def _plain_character(character: str) -> str:
    """Return the blank, hyphen or digit that a character means, "" for an invisible one, or else
    the character.
    """
    if character.isspace():
        return " "
    if is_invisible(character):
        return ""
    if character == "\N{MINUS SIGN}" or unicodedata.category(character) == "Pd":
        return "-"
    digit = unicodedata.decimal(character, None)
    return character if digit is None else str(digit)


def _digits_of(text: str) -> str | None:
    """Return the digits of a whole number, with "-" if it is negative, or None for another text."""
    number = _NUMBER.fullmatch(text)
    if number is None:
        return None
    sign, before_point, fraction, exponent_sign, exponent = number.groups()
    has_plain_exponent = exponent is not None and not exponent_sign and fraction is None
    if has_plain_exponent and before_point.startswith("0"):
        return None  # "0e123456" is a random code
    digits = before_point + (fraction or "")
    n_integer_digits = len(before_point)
    if exponent is not None:
        n_integer_digits = max(n_integer_digits + int(exponent_sign + exponent), 0)
    if digits[n_integer_digits:].strip("0"):
        return None
    integer = digits[:n_integer_digits].ljust(n_integer_digits, "0").lstrip("0")
    if not integer:
        return "0"
    return "-" + integer if sign == "-" else integer
