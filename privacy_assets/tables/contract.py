"""One schema of all real tables of a release, with kinds inferred from values."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pandas as pd
from pandas.api.types import is_datetime64_any_dtype, is_object_dtype

from privacy_assets.errors import ConfigError, InputError, near_name, safe_repr
from privacy_assets.tables.codes import (
    IS_CODE,
    IS_NUMBER,
    RealColumns,
    find_codes,
    has_type,
    have_types,
)
from privacy_assets.tables.conversion import has_zone, precision_of, unread, without_markers
from privacy_assets.tables.declared import NOTHING, Declared
from privacy_assets.tables.meaning import Meaning
from privacy_assets.tables.schema import (
    ColumnSchema,
    Frame,
    Kind,
    TableSchema,
    check_frame,
    check_same_columns,
    option_text,
    yaml_text,
)
from privacy_assets.tables.text import (
    MARKERS,
    UNMEASURED,
    Digits,
    Stated,
    TextForm,
    is_text,
    read_texts,
    texts_of,
)

REAL_ROLES = ("train", "holdout", "reference")
REAL = "train, holdout and reference"


def check_reading(kinds: object) -> None:
    """Raise ConfigError if ``kinds`` does not map columns to kinds."""
    if not isinstance(kinds, Mapping | None):
        raise ConfigError(
            f"kinds must be a mapping of columns to kinds, not {type(kinds).__name__}."
        )
    for column, kind in (kinds or {}).items():
        if not isinstance(column, str):
            raise ConfigError(f"kinds: {safe_repr(column)} is not the name of a column.")
        Meaning.of(kind, column)


def joint_schema(
    frames: Mapping[str, Frame],
    names: Mapping[str, str],
    kinds: Mapping[str, Any] | None = None,
    declared: Declared = NOTHING,
    locked: Mapping[str, str] | None = None,
    people: np.ndarray | None = None,
    are_typed: bool | None = None,
) -> tuple[TableSchema, tuple[str, ...]]:
    """Infer one schema of the real tables, by role and without the subject.

    Whole numbers are integer (also if stored as floats because values are missing), other numbers
    numeric, timestamps and dates datetime, and all other values except booleans categorical.
    Columns of text are read as numbers, dates or booleans if all their values in all tables have
    one form, see :mod:`.text`.

    Args:
        frames: Real tables, train first.
        names: Names of the tables in messages.
        kinds: Declared kinds, see :meth:`.Meaning.of`.
        declared: Declared missing values and time zone.
        locked: Contract of the columns in the lock of the table, see :func:`contract_of`. It
            decides how text is read that has several meanings: codes without a zero stay text, and
            days that may be months stay days. None: there is none.
        people: Subject of each row of the stacked tables, int64 (n,). None: each row is a person.
        are_typed: Whether a column of the tables is not text, also one that is left out here, see
            :mod:`.codes`. None: none is left out.

    Returns:
        The schema, and notes on how columns of text are read.

    Raises:
        InputError: If tables have different columns or kinds, a column has no values or unsupported
            ones, or columns of text can be read in several ways.
        ConfigError: If a declaration names an unknown column or kind.
    """
    where = [names[role] for role in frames]
    found = columns_of(list(frames.values()), where, kinds, declared, locked, people, are_typed)
    if doubts := {column.name: read for column, read in found if read.doubt}:
        raise _ambiguous(doubts, REAL if len(frames) > 1 else names[next(iter(frames))])
    noted = dict[str, list[str]]()
    for column, read in found:
        noted.setdefault(read.note, []).append(safe_repr(column.name))
    notes = tuple(f"{', '.join(columns)}: {note}." for note, columns in noted.items() if note)
    return TableSchema(tuple(column for column, _ in found)), notes


def columns_of(
    frames: Sequence[Frame],
    names: Sequence[str],
    kinds: Mapping[str, Any] | None = None,
    declared: Declared = NOTHING,
    locked: Mapping[str, str] | None = None,
    people: np.ndarray | None = None,
    are_typed: bool | None = None,
) -> list[tuple[ColumnSchema, TextForm]]:
    """Return the schema of each column of some tables together, and how its text is read.

    Arguments and errors are those of :func:`joint_schema`. Ambiguous columns are returned, with
    their ``doubt``.
    """
    first, where = frames[0], names[0]
    for frame, name in zip(frames, names, strict=True):
        check_frame(frame, where=name)
        fix = "use the same columns in every table"
        check_same_columns(first.columns, where, frame.columns, name, fix)
    stated = {name: Meaning.of(kind, name) for name, kind in (kinds or {}).items()}
    _check_declared_names(first, where, stated, declared)
    columns = dict[str, tuple[ColumnSchema, TextForm]]()
    candidates = dict[str, Digits]()
    for name in first.columns:
        meaning = stated.get(name)
        parts = _parts(name, frames, names, declared)
        locked_kind = (locked or {}).get(name, "")
        schema, read = _column(
            name, parts, dtype_of(first, first[name]), meaning, declared, locked_kind
        )
        columns[name] = (schema, read)
        is_free = meaning is None and not locked_kind and not has_type(list(parts.values()))
        if is_free and schema.kind == "integer" and read.digits is not None:
            candidates[name] = read.digits
    if not candidates:
        return list(columns.values())
    if are_typed is None:
        are_typed = have_types(frames)
    schemas = {name: schema for name, (schema, read) in columns.items() if not read.doubt}
    codes = find_codes(candidates, RealColumns(frames, schemas, are_typed, people))
    for name, digits in candidates.items():
        schema, read = columns[name]
        if name in codes:
            parts = _parts(name, frames, names, declared)
            columns[name] = _as_code(name, parts, dtype_of(first, first[name]), declared)
        elif not digits.are_years:
            columns[name] = (schema, read.with_note(IS_NUMBER))
    return list(columns.values())


def _as_code(
    name: str, parts: Mapping[str, pd.Series], dtype: str, declared: Declared
) -> tuple[ColumnSchema, TextForm]:
    """Return the schema of a column of codes, and how its text is read; see :func:`_column`."""
    # A column that is locked as a category is read as text.
    schema, read = _column(name, parts, dtype, None, declared, locked="categorical")
    return schema, replace(read, note=IS_CODE)


def _check_declared_names(
    first: Frame, where: str, stated: Mapping[str, object], declared: Declared
) -> None:
    """Raise ConfigError if a kind or missing value is declared for an unknown column."""
    for name in (*stated, *declared.missing):
        if name not in first.columns:
            what = "kind" if name in stated else "missing value"
            hint = near_name(name, first.columns)
            raise ConfigError(
                f"{where}: {what} declared for unknown column {safe_repr(name)}.{hint}"
            )


def _parts(
    name: str, frames: Sequence[Frame], names: Sequence[str], declared: Declared
) -> dict[str, pd.Series]:
    """Return a column of each table without declared missing values, by the name of the table in
    messages.
    """
    markers = declared.missing.get(name, ())
    return {
        table: without_markers(frame[name], markers)
        for table, frame in zip(names, frames, strict=True)
    }


def contract_of(schema: TableSchema) -> dict[str, str]:
    """Return what the lock of a table states about each column: its kind, and how its text and
    times are read.

    Integers and other numbers are one kind, and precision is left out: larger, finer and missing
    values fit, and so do new categories.
    """
    return {
        column.name: Meaning(column.kind, column.format).accepted(column.zoned)
        for column in schema.columns
    }


def published_names(columns: Iterable[str]) -> str:
    """Return a sentence with the names of all columns, in full: a name can contain private values,
    too.
    """
    named = ", ".join(map(repr, columns))
    return f"The release publishes the names of its columns, so check them: {named}."


def infer_schema(
    frame: Frame,
    overrides: Mapping[str, Any] | None = None,
    *,
    where: str = "table",
    declared: Declared = NOTHING,
) -> TableSchema:
    """Infer the schema of one table, see :func:`joint_schema`."""
    return joint_schema({where: frame}, {where: where}, overrides, declared)[0]


def _column(
    name: str,
    parts: Mapping[str, pd.Series],
    dtype: str,
    meaning: Meaning | None,
    declared: Declared,
    locked: str,
) -> tuple[ColumnSchema, TextForm]:
    """Return the schema of a column, and how its text is read.

    Args:
        name: Name of the column.
        parts: The column in each real table, by the name of the table in messages.
        dtype: Dtype of the first of them.
        meaning: Declared meaning. None: inferred.
        declared: Declared missing values and time zone.
        locked: What the lock of the table states about the column. "": nothing.
    """
    filled = {where: part for where, part in parts.items() if not part.isna().all()}
    kind = None if meaning is None else meaning.kind
    if not filled and kind is None:
        dropped = (
            f"data: {yaml_text({'drop': [name]})}, on the command line --drop {option_text([name])}"
        )
        fix = f"drop the column ({dropped}), fill it, or declare its kind"
        raise InputError("every value is missing", where=" and ".join(parts), column=name, fix=fix)
    texts = {where: part for where, part in filled.items() if is_text(part)}
    for where, part in texts.items():
        if is_object_dtype(part):
            _infer_object(part, where)  # raises for values of other types
    if texts:
        stated = Stated(meaning, declared.missing.get(name, ()), locked)
        tables = {where: texts_of(part) for where, part in texts.items()}
        read = read_texts(name, tables, stated, has_typed_parts=len(texts) < len(filled))
    else:
        read = _typed(filled, meaning)
    gaps = any(without_markers(part, MARKERS).isna().any() for part in parts.values())
    if read.doubt:
        return ColumnSchema(name, "categorical", False, dtype), _with_row(read, texts)
    if kind is None:
        told = "integer" if read.kind == "numeric" and read.whole and gaps else read.kind
        kinds = {
            where: told if where in texts else _kind_of(part, where)
            for where, part in filled.items()
        }
        kind = _joint_kind(name, kinds)
    zone = declared.timezone if kind == "datetime" else ""
    missing = gaps if kind != "categorical" else any(part.isna().any() for part in parts.values())
    schema = ColumnSchema(name, kind, missing, dtype, format=read.format,
                          missing=tuple(declared.missing.get(name, ())), timezone=zone)  # fmt: skip
    if kind == "datetime":
        schema = replace(schema, dtype=_time_dtype(schema, filled, texts, read.zoned))
    elif texts and (kind == "categorical" or next(iter(parts)) in texts):
        schema = replace(
            schema, dtype=_TEXT_DTYPES.get(kind, dtype if next(iter(parts)) in texts else "str")
        )
    elif kind == "numeric" and dtype.lower().startswith(("int", "uint")):
        schema = replace(schema, dtype="float64")
    return replace(schema, precision=precision_of(list(filled.values()), schema)), read


def _typed(filled: Mapping[str, pd.Series], meaning: Meaning | None) -> TextForm:
    """Return the form of a column without text, which has only a declared meaning."""
    if meaning is None:
        return TextForm("categorical")
    if meaning.kind != "categorical":
        form = meaning.format or ""
        return TextForm(meaning.kind, form, zoned="%z" in form)
    kinds = {_kind_of(part, where) for where, part in filled.items()}
    has_distances = bool(kinds & {"integer", "numeric", "datetime"})
    return TextForm("categorical", note=UNMEASURED if has_distances else "")


def _with_row(read: TextForm, texts: Mapping[str, pd.Series]) -> TextForm:
    """Add the first row that is not a number or date to the doubt, if there are such rows."""
    likely = read.choices[0]
    if read.kind != "categorical" or likely.kind == "categorical":
        return read
    for where, part in texts.items():
        rows = np.flatnonzero(unread(part, likely.kind, likely.format or ""))
        if len(rows):
            return replace(read, doubt=f"{read.doubt}, the first in row {rows[0]} of {where}")
    return read


_TEXT_DTYPES = {"integer": "int64", "numeric": "float64", "boolean": "bool"}


def _time_dtype(
    schema: ColumnSchema, filled: Mapping[str, pd.Series], texts: Container[str], zoned: bool
) -> str:
    """Return the dtype of a column of times. Raise InputError if only some tables have a time
    zone.
    """
    dtype = next(
        (str(part.dtype) for part in filled.values() if is_datetime64_any_dtype(part)),
        "datetime64[us]",
    )
    zones = {where: zoned if where in texts else has_zone(part) for where, part in filled.items()}
    if schema.timezone:
        return dtype if "," in dtype else f"datetime64[us, {schema.timezone}]"
    if len(set(zones.values())) > 1:
        where = next(table for table in zones if not zones[table])
        other = next(table for table in zones if zones[table])
        fix = (
            "set the zone of times without one (timezone: Europe/Berlin, on the command line"
            " --timezone)"
        )
        problem = f"its times have no time zone, and those in {other} have one"
        raise InputError(problem, where=where, column=schema.name, fix=fix)
    return "datetime64[us, UTC]" if any(zones.values()) and "," not in dtype else dtype


def lines_to_paste(doubts: Mapping[str, TextForm]) -> str:
    """Return the declarations of ambiguous columns, as settings and as options of the command line.

    Args:
        doubts: Forms of the columns by name, each with a doubt.
    """
    likely = {name: form.choices[0] for name, form in doubts.items()}
    missing = {name: list(form.strays) for name, form in doubts.items() if form.strays}
    pasted: dict[str, Any] = {
        "kinds": {name: meaning.declaration for name, meaning in likely.items()}
    }
    if missing:
        pasted["missing"] = missing
    options = [
        f"--kind {option_text([f'{name}={meaning.option}'])}" for name, meaning in likely.items()
    ]
    options += [f"--missing {option_text(texts, f'{name}=')}" for name, texts in missing.items()]
    lines = f"data: {yaml_text(pasted)}; on the command line {' '.join(options)}"
    for name, form in doubts.items():
        others = [yaml_text(meaning.declaration) for meaning in form.choices[1:]]
        if others:
            lines += f"; {safe_repr(name)} can also be {' or '.join(others)}"
    return lines


def _ambiguous(doubts: Mapping[str, TextForm], where: str) -> InputError:
    """Return the error that names all ambiguous columns, with the declarations to paste."""
    reasons = ", ".join(f"{safe_repr(name)} ({form.doubt})" for name, form in doubts.items())
    count = "a column of text is" if len(doubts) == 1 else f"{len(doubts)} columns of text are"
    fix = f"declare what the cells mean, for example {lines_to_paste(doubts)}"
    return InputError(f"{count} ambiguous: {reasons}", where=where, fix=fix)


def _joint_kind(name: str, kinds: Mapping[str, Kind]) -> Kind:
    """Return the kind of a column from its kind in each table. Raise InputError if kinds
    conflict.
    """
    found = set(kinds.values())
    if found == {"integer", "numeric"}:
        return "numeric"
    if len(found) > 1:
        first, *others = kinds
        where = next(
            place
            for place in others
            if {kinds[place], kinds[first]} not in ({"integer", "numeric"}, {kinds[first]})
        )
        fix = (
            "use values of one kind, or declare the kind (kinds={...}, --kind"
            f" {name}=categorical)"
        )
        problem = f"it is {kinds[where]} here and {kinds[first]} in {first}"
        raise InputError(problem, where=where, column=name, fix=fix)
    return found.pop()


def dtype_of(table: Frame, series: pd.Series) -> str:
    """Return the dtype of a column of ``table``; for strings read as codes, the dtype of the
    strings.
    """
    return str(getattr(table, "texts", {}).get(series.name, series.dtype))


def _kind_of(series: pd.Series, where: str) -> Kind:
    dtype = series.dtype
    if pd.api.types.is_object_dtype(dtype):
        return _infer_object(series, where)
    if pd.api.types.is_bool_dtype(dtype):
        return "boolean"
    if pd.api.types.is_integer_dtype(dtype):
        return "integer"
    if pd.api.types.is_float_dtype(dtype):
        values = series.to_numpy(dtype=np.float64, na_value=np.nan)
        finite = values[np.isfinite(values)]
        whole = (
            bool(np.isnan(values).any())
            and finite.size > 0
            and bool((finite == np.round(finite)).all())
        )
        return "integer" if whole and np.abs(finite).max() < 2**53 else "numeric"
    if pd.api.types.is_datetime64_any_dtype(dtype):
        return "datetime"
    if isinstance(dtype, pd.CategoricalDtype) or pd.api.types.is_string_dtype(dtype):
        return "categorical"
    fix = "convert it to a number, date or text"
    raise InputError(
        f"dtype {dtype} is not supported", where=where, column=str(series.name), fix=fix
    )


def _infer_object(series: pd.Series, where: str) -> Kind:
    kinds: dict[type, Kind | None] = {}
    for value_type in dict.fromkeys(map(type, series.dropna())):
        kinds[value_type] = next(
            (kind for types, kind in _KINDS if issubclass(value_type, types)), None
        )
        if kinds[value_type] is None:
            row = next(row for row, value in enumerate(series) if type(value) is value_type)
            problem = f"values of type {value_type.__name__} are not supported"
            fix = "convert the column to a number, date or text"
            raise InputError(problem, where=where, column=str(series.name), row=row, fix=fix)
    found = set(kinds.values())
    if found == {"integer", "numeric"}:
        return "numeric"
    return cast("Kind", found.pop()) if len(found) == 1 else "categorical"


_KINDS: tuple[tuple[tuple[type, ...], Kind], ...] = (
    ((bool, np.bool_), "boolean"),
    ((int, np.integer), "integer"),
    ((float, np.floating, decimal.Decimal), "numeric"),
    ((dt.date, np.datetime64), "datetime"),
    ((str,), "categorical"),
)
