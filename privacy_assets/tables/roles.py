"""The role of a column: what may stand in it when the table is published (docs/columns.md).

*Closed* columns (categories, booleans, numbers of few values) hold values of the real tables or of a declared domain
and nothing else. *Numbers* and *dates* may be new. *Open* columns (identifiers, free text, near-unique codes, direct
identifiers) hold what belongs to one person: every value that a generator copies from them is that person's, so that
they are refused. In *generated* columns, which somebody declared with a reason, new values are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pandas as pd
from pandas.api.types import is_datetime64_any_dtype, is_float_dtype

from privacy_assets.errors import ConfigError, InputError, near_name
from privacy_assets.tables.column import Column, of_one_vocabulary, ranked, stacked
from privacy_assets.tables.conversion import column_of
from privacy_assets.tables.identifiers import identifier_in
from privacy_assets.tables.schema import ColumnSchema, Kind, Role, TableSchema, option_text
from privacy_assets.tables.table import Table

FEW_VALUES = 20  # a number with at most so many values, each in so many rows on average, is closed
_ALONE = 0.5  # share of rows whose value no second person has: from here on a column is near-unique
_SOME = 20  # so many people at least, before anything is said of them; a value that so many share is frequent
_MANY_VALUES, _FEW_HOLDERS = 100, 5.0  # so many values, with fewer people each than this, and none of them frequent
_LOOKED_AT, _MOST = 5000, 0.9  # different texts that are read, and how many of them must be of a kind
_LONG = 40  # characters: of such a length are notes, not categories
_DIGITS = 6  # whole numbers that all have so many digits, or more, read as codes
_LONG_KEY, _SAME_LENGTH = 8, 0.8  # so do longer ones of which most are as long: leading zeros are gone from every tenth
_FILLER = 0.2  # share of rows: a text that so many have says that there is nothing ("none", "unknown")
_TOO_EVEN = -5.0  # deviations: no measure of independent people repeats its values so much less than chance
_YEARS = (1500, 2100)

_ALONE_TEXT = "nearly every value belongs to one person"
_SHARED_TEXT = "codes that no more than a few rows share"
_NOTE_TEXT = "free text"
_DATE_TEXT = "dates that were read as text: their kind is datetime"
_NUMBER_TEXT = "numbers that were read as text: their kind is numeric"
_KEY_TEXT = "whole numbers that are given out like a key, not measured"


@dataclass(frozen=True, slots=True)
class Declared:
    """What the owner of a table says of its columns.

    ``drop`` are left out of every table; the subject among them only of the synthetic one, where it must not be
    published. ``generated`` gives, for columns in which new values are allowed, the reason, which is signed.
    ``domains`` are values that may stand in a closed column whether a real row has them or not.
    """

    drop: tuple[str, ...] = ()
    generated: Mapping[str, str] = field(default_factory=dict)
    domains: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, drop: Any, generated: Any, domains: Any, *, subject: str | None = None) -> Declared:
        """The same from what a user wrote; ConfigError names argument, column and fix."""
        if isinstance(drop, str) or not all(isinstance(name, str) for name in drop or ()):
            raise ConfigError("drop: give a list of column names.")
        for argument, given, form in (
            ("generated", generated, "{column: reason}"),
            ("domains", domains, "{column: [values]}"),
        ):
            if not isinstance(given or {}, Mapping) or not all(isinstance(name, str) for name in given or ()):
                raise ConfigError(f"{argument}: give a mapping {form}.")
        for name, reason in (generated or {}).items():
            if not isinstance(reason, str) or not reason.strip():
                fix = f"generated: {{{name}: why new values are safe here}}"
                raise ConfigError(f"generated: {name!r} has no reason, which is signed. Fix: {fix}.")
        for name, values in (domains or {}).items():
            listed = values if isinstance(values, list | tuple) else ()
            if not listed or not all(isinstance(one, str | bool | int | float) for one in listed):
                raise ConfigError(f"domains: {name!r} needs a list of texts or numbers.")
        named = [*(drop or ()), *(generated or {}), *(domains or {})]
        for name in named:
            if named.count(name) > 1:
                raise ConfigError(f"column {name!r} is named twice in drop, generated and domains.")
            if name == subject and name not in (drop or ()):
                raise ConfigError(f"column {name!r} is the subject: it is never published, and needs no role.")
        return cls(tuple(drop or ()), dict(generated or {}), {name: tuple(x) for name, x in (domains or {}).items()})

    @property
    def stated(self) -> dict[str, Any]:
        """What is signed: all that was declared, in plain values."""
        domains = {name: list(values) for name, values in self.domains.items()}
        found = {"drop": list(self.drop), "generated": dict(self.generated), "domains": domains}
        return {name: value for name, value in found.items() if value}

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of :meth:`of`, and of every function that takes them by the same names."""
        return {"drop": self.drop, "generated": self.generated, "domains": self.domains}

    def check(self, columns: Sequence[str]) -> None:
        """ConfigError for a declared column that none of the tables has."""
        for argument, names in (("drop", self.drop), ("generated", self.generated), ("domains", self.domains)):
            for name in names:
                if name not in columns:
                    raise ConfigError(f"{argument}: there is no column {name!r}.{near_name(name, columns)}")

    def left(self, frame: Any, subject: str | None = None) -> Any:
        """``frame``, a table with ``columns`` and ``drop``, without the columns to leave out; a real one keeps
        ``subject``.
        """
        gone = [name for name in self.drop if name in frame.columns and name != subject]
        return frame.drop(columns=gone) if gone else frame


NOTHING = Declared()


def may_tell_people_apart(frame: Any, drop: Sequence[str]) -> list[str]:
    """Columns of a real table without a subject that look like the id of people with several rows each.

    Most rows share their value with another one, and the column is called an id, or was left out and few rows share
    a value.
    """
    found = []
    for name in frame.columns:
        called = name.lower().endswith("id")
        if not called and name not in drop:
            continue
        values = frame[name]
        if is_datetime64_any_dtype(values) or is_float_dtype(values) and (values % 1 > 0).any():
            continue
        try:
            codes, _ = pd.factorize(values)
        except TypeError:  # lists and mappings are no ids
            continue
        codes = codes[codes >= 0]
        rows = np.bincount(codes)
        repeated = len(rows) >= _SOME and rows[rows > 1].sum() > _ALONE * len(codes)
        if repeated and (called or _rarely_shared(codes, rows)):
            found.append(name)
    return found


def with_roles(
    schema: TableSchema,
    tables: Sequence[Table],
    people: np.ndarray | None,
    declared: Declared = NOTHING,
    kinds: Mapping[str, Kind] | None = None,
    *,
    where: str,
) -> TableSchema:
    """``schema`` with the role of each column, found in the real ``tables`` or ``declared``.

    ``people`` (n,) tell whose each of all rows is; None: each row is a person. ``kinds`` are those that were declared:
    a whole number that was called one is a measure. InputError names every open column with its reason, and the ways
    out.
    """
    columns, reasons = [], {}
    for column in schema.columns:
        parts = [table[column.name] for table in tables]
        column = replace(column, domain=tuple(declared.domains.get(column.name, ())))
        if column.name in declared.generated:
            columns.append(replace(column, role="generated"))
            continue
        reason = _open(column, parts, people, column.name in (kinds or {}))
        if reason and not _covered(column, parts):
            reasons[column.name] = reason
        columns.append(replace(column, role=natural_role(column, parts)))
    if reasons:
        raise _refused(reasons, where, people is None)
    return TableSchema(tuple(columns))


def natural_role(column: ColumnSchema, real: Sequence[Column]) -> Role:
    """Closed, number or date: the role of a column of the real tables that is neither open nor generated."""
    if column.kind == "datetime" and not column.domain:
        return "date"
    if column.kind in ("categorical", "boolean") or column.domain:
        return "closed"
    values = stacked(real).present()
    different = len(values.distinct())
    return "closed" if different <= FEW_VALUES and len(values) >= FEW_VALUES * different else "number"


def domain(column: ColumnSchema, real: Sequence[Column]) -> Column:
    """Values that may stand in a closed column, ascending: those of the real tables, and the declared ones."""
    parts = list(real)
    if column.domain:
        declared = pd.Series(list(column.domain), name=column.name, dtype=object)
        parts.append(column_of(declared, column, "domains"))
    return stacked(parts).distinct()


def bounds(real: Sequence[Column]) -> tuple[Any, Any] | None:
    """Smallest and largest cell that may stand in a number or date: no farther out than the real range is wide.

    A number far outside of it could hold a whole row in its digits. None where no real row has a value.
    """
    values = stacked(real).present().cells
    if not len(values):
        return None
    low, high = values.min().item(), values.max().item()
    return low - (high - low), high + (high - low)


def foreign_cells(column: ColumnSchema, real: Sequence[Column], synthetic: Column) -> np.ndarray:
    """Bool (n,): cells of ``synthetic`` that may not stand there; ``real`` are the same column of the real tables.

    A missing value may where a real row has one.
    """
    role = column.role or natural_role(column, real)
    missing = synthetic.missing
    if role == "generated":
        return np.zeros(len(missing), dtype=bool)
    gap = missing & (not any(part.missing.any() for part in real))
    if role == "closed":
        known, own = of_one_vocabulary([domain(column, real), synthetic])
        return cast("np.ndarray", (~np.isin(own.cells, known.cells) & ~missing) | gap)
    limits = bounds(real)
    if limits is None:
        return ~missing
    low, high = limits
    return cast("np.ndarray", (((synthetic.cells < low) | (synthetic.cells > high)) & ~missing) | gap)


# --- open columns -----------------------------------------------------------------------------------------------------


def _open(column: ColumnSchema, real: Sequence[Column], people: np.ndarray | None, declared: bool) -> str:
    """Why a column is open, in words without values; empty when it is not."""
    if column.kind in ("boolean", "datetime") or (declared and column.kind != "categorical"):
        return ""
    (codes,), different = ranked([stacked(real)])
    there = codes >= 0
    if not there.any():
        return ""
    codes, whose = codes[there], None if people is None else people[there]
    holders = _holders(codes, whose, len(different))
    if column.kind == "categorical":
        return _open_text(np.array(different.objects(), dtype=object), codes, holders)
    numbers = different.floats()
    whole = bool((numbers == np.round(numbers)).all())
    return _KEY_TEXT if whole and _rarely_shared(codes, holders) and _is_key(numbers, holders) else ""


def _holders(codes: np.ndarray, whose: np.ndarray | None, different: int) -> np.ndarray:
    """How many people have each value."""
    if whose is None:
        return np.bincount(codes, minlength=different)
    people = int(whose.max()) + 1
    return np.bincount(np.unique(codes * people + whose) // people, minlength=different)


def _near_unique(codes: np.ndarray, holders: np.ndarray) -> bool:
    alone = holders == 1
    return bool(alone.sum() >= _SOME and alone[codes].mean() >= _ALONE)


def _rarely_shared(codes: np.ndarray, holders: np.ndarray) -> bool:
    frequent = holders[holders >= _SOME].sum() / max(holders.sum(), 1)
    few = len(holders) >= _MANY_VALUES and holders.mean() < _FEW_HOLDERS and frequent < 1 - _MOST
    return _near_unique(codes, holders) or bool(few)


def _open_text(texts: np.ndarray, codes: np.ndarray, holders: np.ndarray) -> str:
    telling = np.bincount(codes, minlength=len(texts)) < _FILLER * len(codes)
    if not telling.all() and telling.any():  # what stands beside a filler
        codes = (np.cumsum(telling) - 1)[codes[telling[codes]]]
        texts, holders = texts[telling], holders[telling]
    if not len(codes):
        return ""
    if found := identifier_in(texts, np.bincount(codes)):
        return found
    lengths = np.array([len(text) for text in texts])
    if _rarely_shared(codes, holders) and (read := _read_as_text(texts)):
        return read
    long = lengths[codes] >= _LONG  # some notes, where most rows have none
    if long.any() and _near_unique(codes[long], np.where(lengths >= _LONG, holders, 0)):
        return _NOTE_TEXT
    if _near_unique(codes, holders):
        return _ALONE_TEXT
    return _SHARED_TEXT if _rarely_shared(codes, holders) else ""


def _read_as_text(texts: np.ndarray) -> str:
    """What else they are, in words: numbers or dates that a file gave as text; empty for neither."""
    some = pd.Series(texts[:: -(-len(texts) // _LOOKED_AT)], dtype=object)
    if pd.to_numeric(some, errors="coerce").notna().mean() > _MOST:
        return "" if some.str.fullmatch(r"\d+").all() else _NUMBER_TEXT
    return (
        _DATE_TEXT if pd.to_datetime(some, errors="coerce", format="ISO8601", utc=True).notna().mean() > _MOST else ""
    )


def _is_key(numbers: np.ndarray, holders: np.ndarray) -> bool:
    """Are whole numbers given out like a key? All long and as long as each other, or too seldom the same.

    Two people share a measure at least as often as they would if it were spread evenly over its range; a key is given
    out once, however many there are.
    """
    digits = 1 + np.floor(np.log10(np.maximum(np.abs(numbers), 1))).astype(int)
    usual = int(np.bincount(digits).argmax())
    alike = float((digits == usual).mean())
    if usual >= _DIGITS and alike == 1 or usual >= _LONG_KEY and alike >= _SAME_LENGTH:
        return True
    if _YEARS[0] <= numbers.min() and numbers.max() <= _YEARS[1]:
        return False
    people = float(holders.sum())
    expected = people * (people - 1) / 2 / (numbers.max() - numbers.min() + 1)
    found = float((holders * (holders - 1.0)).sum() / 2)
    return found - expected < _TOO_EVEN * np.sqrt(expected)


def _covered(column: ColumnSchema, real: Sequence[Column]) -> bool:
    """True when a declared domain names every real value: what is on a public list gives nobody away."""
    if not column.domain:
        return False
    return len(domain(column, real)) == len(domain(column, []))


def _refused(reasons: Mapping[str, str], where: str, no_subject: bool) -> InputError:
    named = ", ".join(f"{name!r} ({reason})" for name, reason in reasons.items())
    first = "name the one that tells people apart, if any does, as the subject, and " if no_subject else ""
    fix = (
        f"{first}leave {'the others' if no_subject else 'them'} out (data: {{drop: [{', '.join(reasons)}]}}; on the"
        f" command line --drop {option_text(reasons)}); or, where a number is a measure or a text is a date, declare"
        f" what it is (kinds: {{column: integer}}); or, where the synthetic table has invented values of its own, say"
        f" so with a reason that is signed (generated: {{column: why}}); a public list of values is declared as domains"
    )
    count = "a column holds" if len(reasons) == 1 else f"{len(reasons)} columns hold"
    return InputError(f"{count} what belongs to single people and would be published: {named}", where=where, fix=fix)
