"""One schema of all real tables of a release, with kinds inferred from values.

This module decides the kind of each column. The steps of :func:`_infer_column`, and afterwards of
:func:`columns_of`, have this order:

| step | the column                                      | its kind                                |
|------|-------------------------------------------------|-----------------------------------------|
| 1    | has no value, and no declared kind              | none: the run stops                     |
| 2    | is text                                         | see the table of :mod:`.text`           |
| 3    | is text that has several meanings               | none: the user declares one             |
| 4    | is not text, and has a declared kind            | the declared one                        |
| 5    | is not text                                     | that of its dtype, or of its objects    |
| 6    | is text with whole numbers and missing cells    | integer                                 |
| 7    | has integers in some tables, numbers in others  | numeric                                 |
| 8    | has other kinds in different tables             | none: the run stops                     |
| 9    | is text with integers that look like codes, and | a category, see :mod:`.codes`           |
|      | has no declared or accepted kind                |                                         |

Steps 6 to 8 apply to columns without a declared kind.

Other modules take part:

- Before: :mod:`.reading` reads files, cells of a CSV file as text. :mod:`.declared` and
  :mod:`.meaning` have what users declare.
- Step 2: :mod:`.text` recognizes numbers, dates and booleans, with the patterns in
  :mod:`.written_numbers` and :mod:`.written_dates`.
- After: :mod:`.roles` decides the role of each column, for example closed or open.
  :mod:`.conversion` converts the cells to the kind.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import is_datetime64_any_dtype, is_object_dtype

from privacy_assets.errors import ConfigError, InputError, near_name, safe_repr
from privacy_assets.tables.codes import (
    IS_CODE,
    IS_NUMBER,
    RealColumns,
    find_codes,
)
from privacy_assets.tables.conversion import (
    RawColumn,
    has_zone,
    is_text,
    precision_of,
    raw_column,
    unread,
)
from privacy_assets.tables.declared import NOTHING, Declared
from privacy_assets.tables.meaning import Meaning
from privacy_assets.tables.names import without
from privacy_assets.tables.schema import (
    ColumnSchema,
    Frame,
    Kind,
    TableSchema,
    check_columns,
    check_same_columns,
    option_text,
    yaml_text,
)
from privacy_assets.tables.text import (
    UNMEASURED,
    Digits,
    TextDeclaration,
    TextForm,
    read_texts,
)

REAL_ROLES = ("train", "holdout", "reference")
REAL = "train, holdout and reference"

_TEXT_DTYPES = {"integer": "int64", "numeric": "float64", "boolean": "bool"}
_NUMBER_KINDS = {"integer", "numeric"}
_MAX_EXACT_INTEGER = 2**53  # from here on, floats cannot represent each integer
_KINDS_OF_TYPES: tuple[tuple[tuple[type, ...], Kind], ...] = (
    ((bool, np.bool_), "boolean"),
    ((int, np.integer), "integer"),
    ((float, np.floating, decimal.Decimal), "numeric"),
    ((dt.date, np.datetime64), "datetime"),
    ((str,), "categorical"),
)


class InferredColumn(NamedTuple):
    """Schema of a column, and how its text is read."""

    schema: ColumnSchema
    text_form: TextForm


class _RealColumn(NamedTuple):
    """A column of all real tables.

    Attributes:
        name: Name of the column.
        parts: The column in each real table, by the name of the table in messages.
        dtype: Dtype in the first table.
        markers: Declared missing values.
        timezone: Declared zone of times without one.
    """

    name: str
    parts: Mapping[str, RawColumn]
    dtype: str
    markers: Sequence[str]
    timezone: str

    @property
    def filled(self) -> dict[str, RawColumn]:
        """The column in each table in which it has a value."""
        return {where: part for where, part in self.parts.items() if not part.is_empty}

    @property
    def is_typed(self) -> bool:
        """True if it has values that are not text."""
        return any(not part.is_text for part in self.filled.values())


def joint_schema(
    frames: Mapping[str, Frame],
    names: Mapping[str, str],
    declared: Declared = NOTHING,
    accepted_columns: Mapping[str, str] | None = None,
    subject_codes: np.ndarray | None = None,
    left_out: Collection[str] = (),
) -> tuple[TableSchema, tuple[str, ...]]:
    """Infer one schema of the real tables, by role and without the subject.

    Whole numbers are integer (also if stored as floats because values are missing), other numbers
    numeric, timestamps and dates datetime, and all other values except booleans categorical.
    Columns of text are read as numbers, dates or booleans if all their values in all tables have
    one form, see :mod:`.text`.

    Args:
        frames: Real tables, train first.
        names: Names of the tables in messages.
        declared: Declared kinds, missing values and time zone.
        accepted_columns: Accepted columns of the table, see :func:`columns_to_accept`. It
            decides how text is read that has several meanings: codes without a zero stay text, and
            days that may be months stay days. Text that was accepted as a category stays one. None:
            there is none.
        subject_codes: Subject of each row of the stacked tables, int64 (n,). None: each row is a
            person.
        left_out: Columns that the schema lacks, such as the subject.

    Returns:
        The schema, and notes on how columns of text are read.

    Raises:
        InputError: If tables have different columns or kinds, a column has no values or unsupported
            ones, or columns of text can be read in several ways.
        ConfigError: If a declaration names an unknown column or kind.
    """
    where = [names[role] for role in frames]
    columns = columns_of(
        list(frames.values()), where, declared, accepted_columns, subject_codes, left_out
    )
    schemas = []
    ambiguous = {}
    for schema, text_form in columns:
        schemas.append(schema)
        if text_form.ambiguity:
            ambiguous[schema.name] = text_form
    if ambiguous:
        raise _ambiguous(ambiguous, REAL if len(frames) > 1 else where[0])
    return TableSchema(tuple(schemas)), _notes(columns)


def _notes(columns: Sequence[InferredColumn]) -> tuple[str, ...]:
    """Return each note on how text is read, with the names of its columns."""
    names_by_note: dict[str, list[str]] = {}
    for schema, text_form in columns:
        if text_form.note:
            names_by_note.setdefault(text_form.note, []).append(safe_repr(schema.name))
    notes = []
    for note, names in names_by_note.items():
        notes.append(f"{', '.join(names)}: {note}.")
    return tuple(notes)


def columns_of(
    frames: Sequence[Frame],
    names: Sequence[str],
    declared: Declared = NOTHING,
    accepted_columns: Mapping[str, str] | None = None,
    subject_codes: np.ndarray | None = None,
    left_out: Collection[str] = (),
) -> list[InferredColumn]:
    """Infer the schema of each column of some tables together, and how its text is read.

    Args:
        frames: Real tables, train first.
        names: Name of each table in messages.
        declared: Declared kinds, missing values and time zone.
        accepted_columns: What the accepted settings state about each column, see
            :func:`joint_schema`. None: there is none.
        subject_codes: Subject of each row of the stacked tables, int64 (n,). None: each row is a
            person.
        left_out: Columns that are not inferred. If they are not text, other columns of digits are
            codes, see :mod:`.codes`.

    Returns:
        The columns in the order of the first table. Ambiguous ones have an ``ambiguity``.

    Raises:
        InputError, ConfigError: As :func:`joint_schema`, but not for ambiguous columns.
    """
    column_names = _common_columns(frames, names, left_out)
    meanings = {}
    for name, kind in declared.kinds.items():
        meanings[name] = Meaning.of(kind, name)
    _check_declared_names(column_names, names[0], meanings, declared)
    columns: dict[str, InferredColumn] = {}
    code_candidates: dict[str, Digits] = {}
    for name in column_names:
        real_column = _real_column(name, frames, names, declared)
        meaning = meanings.get(name)
        accepted = (accepted_columns or {}).get(name, "")
        column = _infer_column(real_column, meaning, accepted)
        columns[name] = column
        digits = column.text_form.digits
        if meaning is not None or accepted or real_column.is_typed:
            continue
        if column.schema.kind == "integer" and digits is not None:
            code_candidates[name] = digits
    if not code_candidates:
        return list(columns.values())

    real_columns = RealColumns(frames, _unambiguous(columns), _have_types(frames), subject_codes)
    codes = find_codes(code_candidates, real_columns)
    for name, digits in code_candidates.items():
        if name in codes:
            columns[name] = _as_code(_real_column(name, frames, names, declared))
        elif not digits.are_years:
            schema, text_form = columns[name]
            columns[name] = InferredColumn(schema, text_form.with_note(IS_NUMBER))
    return list(columns.values())


def _unambiguous(columns: Mapping[str, InferredColumn]) -> dict[str, ColumnSchema]:
    """Return the schemas of the columns that are not ambiguous, by name."""
    schemas = {}
    for name, column in columns.items():
        if not column.text_form.ambiguity:
            schemas[name] = column.schema
    return schemas


def _common_columns(
    frames: Sequence[Frame], names: Sequence[str], left_out: Collection[str]
) -> list[str]:
    """Return the columns of the tables, except some. Raise InputError if tables are invalid or have
    different columns.
    """
    fix = "use the same columns in every table"
    first = without(frames[0].columns, left_out)
    for frame, name in zip(frames, names, strict=True):
        check_columns(frame.columns, len(frame), where=name)
        check_same_columns(first, names[0], without(frame.columns, left_out), name, fix)
    return first


def _as_code(real_column: _RealColumn) -> InferredColumn:
    """Return a column of codes as a category."""
    # A column that is accepted as a category is read as text.
    schema, text_form = _infer_column(real_column, None, accepted="categorical")
    return InferredColumn(schema, replace(text_form, note=IS_CODE))


def _check_declared_names(
    columns: Sequence[str], where: str, meanings: Mapping[str, object], declared: Declared
) -> None:
    """Raise ConfigError if a kind or missing value is declared for an unknown column."""
    for name in (*meanings, *declared.missing):
        if name not in columns:
            what = "kind" if name in meanings else "missing value"
            hint = near_name(name, columns)
            raise ConfigError(
                f"{where}: {what} declared for unknown column {safe_repr(name)}.{hint}"
            )


def _real_column(
    name: str, frames: Sequence[Frame], names: Sequence[str], declared: Declared
) -> _RealColumn:
    """Return a column of all real tables, without declared missing values."""
    markers = declared.missing.get(name, ())
    parts = {}
    for table_name, frame in zip(names, frames, strict=True):
        parts[table_name] = raw_column(frame[name], markers)
    dtype = dtype_of(frames[0], frames[0][name])
    return _RealColumn(name, parts, dtype, markers, declared.timezone or "")


def _have_types(frames: Iterable[Frame]) -> bool:
    """Return True if a column of some tables has values that are not text, such as the subject of a
    Parquet file.
    """
    for frame in frames:
        for name in frame.columns:
            column = frame[name]
            if not is_text(column) and not column.isna().all():
                return True
    return False


def columns_to_accept(schema: TableSchema) -> dict[str, str]:
    """Return what the accepted settings of a table state about each column: its kind, and how its
    text and times are read.

    Integers and other numbers are one kind, and precision is left out: larger, finer and missing
    values fit, and so do new categories.
    """
    accepted = {}
    for column in schema.columns:
        meaning = Meaning(column.kind, column.format)
        accepted[column.name] = meaning.accepted_text(column.is_zoned)
    return accepted


def published_names(columns: Iterable[str]) -> str:
    """Return a sentence with the names of all columns, in full: a name can contain private values,
    too.
    """
    names = ", ".join(map(repr, columns))
    return f"The release publishes the names of its columns, so check them: {names}."


def infer_schema(
    frame: Frame,
    kinds: Mapping[str, Any] | None = None,
    *,
    where: str = "table",
) -> TableSchema:
    """Infer the schema of one table, see :func:`joint_schema`.

    Args:
        frame: Table.
        kinds: Declared kinds, see :meth:`.Meaning.of`. None: there are none.
        where: Name of the table in messages.
    """
    schema, _ = joint_schema({where: frame}, {where: where}, Declared(kinds=dict(kinds or {})))
    return schema


def _infer_column(column: _RealColumn, meaning: Meaning | None, accepted: str) -> InferredColumn:
    """Infer the schema of a column, and how its text is read.

    Args:
        column: The column in all real tables.
        meaning: Declared meaning. None: inferred.
        accepted: What accepted settings state about the column, see :func:`columns_to_accept`. "":
            nothing.

    Raises:
        InputError: See :func:`joint_schema`.
    """
    filled = column.filled
    if not filled and meaning is None:
        raise _without_values(column)
    has_text = any(part.is_text for part in filled.values())
    text_form = _text_form(column, meaning, accepted)
    if text_form.ambiguity:
        placeholder = ColumnSchema(column.name, "categorical", False, column.dtype)
        return InferredColumn(placeholder, _with_row(text_form, filled))
    has_gaps = any(part.has_gaps for part in column.parts.values())
    if meaning is None:
        kinds = _kinds_by_table(filled, text_form, has_gaps)
        kind = _joint_kind(column.name, kinds)
    else:
        kind = meaning.kind
    is_nullable = has_gaps
    if kind == "categorical":  # "NA" may be a category.
        is_nullable = any(part.has_missing for part in column.parts.values())
    schema = ColumnSchema(
        column.name,
        kind,
        is_nullable,
        column.dtype,
        format=text_form.format,
        missing=tuple(column.markers),
        timezone=column.timezone if kind == "datetime" else "",
    )
    if kind == "datetime":
        dtype = _time_dtype(schema, filled, text_form.is_zoned)
    else:
        first = next(iter(column.parts.values()))
        is_text_first = first.is_text and not first.is_empty
        dtype = _dtype_of_kind(kind, column.dtype, has_text, is_text_first)
    schema = replace(schema, dtype=dtype)
    schema = replace(
        schema, precision=precision_of([part.series for part in filled.values()], schema)
    )
    return InferredColumn(schema, text_form)


def _without_values(column: _RealColumn) -> InputError:
    """Return the error for a column without values and without a declared kind."""
    setting = yaml_text({"drop": [column.name]})
    option = option_text([column.name])
    fix = (
        f"drop the column (data: {setting}, on the command line --drop {option}), fill it, or"
        " declare its kind"
    )
    where = " and ".join(column.parts)
    return InputError("every value is missing", where=where, column=column.name, fix=fix)


def _text_form(column: _RealColumn, meaning: Meaning | None, accepted: str) -> TextForm:
    """Return how the cells of a column are read. Raise InputError for unsupported objects."""
    tables = {}
    for where, part in column.filled.items():
        if part.texts is None:
            continue
        if is_object_dtype(part.series):
            _kind_of_objects(part.series, where)  # raises for values of other types
        tables[where] = part.texts
    if not tables:
        return _form_without_text(column.filled, meaning)
    declaration = TextDeclaration(meaning, column.markers, accepted)
    return read_texts(column.name, tables, declaration, column.is_typed)


def _kinds_by_table(
    filled: Mapping[str, RawColumn], text_form: TextForm, has_gaps: bool
) -> dict[str, Kind]:
    """Return the kind of a column in each table. Text has the recognized kind."""
    text_kind = text_form.kind
    if text_kind == "numeric" and text_form.is_integer and has_gaps:
        # Programs write integers as 1.0 and 2.0 if values are missing.
        text_kind = "integer"
    kinds: dict[str, Kind] = {}
    for where, part in filled.items():
        kinds[where] = text_kind if part.is_text else _kind_of_dtype(part.series, where)
    return kinds


def _dtype_of_kind(kind: Kind, dtype: str, has_text: bool, is_text_first: bool) -> str:
    """Return the dtype of a column that has no times.

    Args:
        kind: Kind of the column.
        dtype: Dtype in the first table.
        has_text: True if the column is text in a table.
        is_text_first: True if it is text in the first table.
    """
    if is_text_first:
        return _TEXT_DTYPES.get(kind, dtype)
    if has_text and kind == "categorical":
        return "str"
    if kind == "numeric" and dtype.lower().startswith(("int", "uint")):
        return "float64"
    return dtype


def _form_without_text(filled: Mapping[str, RawColumn], meaning: Meaning | None) -> TextForm:
    """Return the form of a column without text, which has only a declared meaning."""
    if meaning is None:
        return TextForm("categorical")
    if meaning.kind != "categorical":
        date_format = meaning.format or ""
        return TextForm(meaning.kind, date_format, is_zoned="%z" in date_format)
    kinds = set()
    for where, part in filled.items():
        kinds.add(_kind_of_dtype(part.series, where))
    has_distances = bool(kinds & {"integer", "numeric", "datetime"})
    note = UNMEASURED if has_distances else ""
    return TextForm("categorical", note=note)


def _with_row(text_form: TextForm, filled: Mapping[str, RawColumn]) -> TextForm:
    """Add the first row that is not a number or date to the ambiguity, if there are such rows."""
    likely = text_form.choices[0]
    if text_form.kind != "categorical" or likely.kind == "categorical":
        return text_form
    for where, part in filled.items():
        if not part.is_text:
            continue
        rows = np.flatnonzero(unread(part.series, likely.kind, likely.format or ""))
        if len(rows):
            ambiguity = f"{text_form.ambiguity}, the first in row {rows[0]} of {where}"
            return replace(text_form, ambiguity=ambiguity)
    return text_form


def _time_dtype(schema: ColumnSchema, filled: Mapping[str, RawColumn], text_zoned: bool) -> str:
    """Return the dtype of a column of times. Raise InputError if only some tables have a time
    zone.
    """
    dtypes = [part.series.dtype for part in filled.values()]
    time_dtypes = [str(dtype) for dtype in dtypes if is_datetime64_any_dtype(dtype)]
    dtype = time_dtypes[0] if time_dtypes else "datetime64[us]"
    with_zone = []
    without_zone = []
    for where, part in filled.items():
        is_zoned = text_zoned if part.is_text else has_zone(part.series)
        if is_zoned:
            with_zone.append(where)
        else:
            without_zone.append(where)
    if schema.timezone:
        return dtype if "," in dtype else f"datetime64[us, {schema.timezone}]"
    if with_zone and without_zone:
        fix = (
            "set the zone of times without one (timezone: Europe/Berlin, on the command line"
            " --timezone)"
        )
        problem = f"its times have no time zone, and those in {with_zone[0]} have one"
        raise InputError(problem, where=without_zone[0], column=schema.name, fix=fix)
    if with_zone and "," not in dtype:
        return "datetime64[us, UTC]"
    return dtype


def lines_to_paste(ambiguous: Mapping[str, TextForm]) -> str:
    """Return the declarations of ambiguous columns, as settings and as options of the command line.

    Args:
        ambiguous: Forms of the columns by name, each with an ambiguity.
    """
    settings: dict[str, Any] = {"kinds": {}}
    kind_options = []
    missing_options = []
    alternatives = ""
    for name, form in ambiguous.items():
        likely = form.choices[0]
        settings["kinds"][name] = likely.declaration
        kind_options.append(f"--kind {option_text([f'{name}={likely.option}'])}")
        if form.strays:
            settings.setdefault("missing", {})[name] = list(form.strays)
            missing_options.append(f"--missing {option_text(list(form.strays), f'{name}=')}")
        if len(form.choices) > 1:
            meanings = " or ".join(yaml_text(choice.declaration) for choice in form.choices[1:])
            alternatives += f"; {safe_repr(name)} can also be {meanings}"
    options = " ".join(kind_options + missing_options)
    return f"data: {yaml_text(settings)}; on the command line {options}{alternatives}"


def _ambiguous(ambiguous: Mapping[str, TextForm], where: str) -> InputError:
    """Return the error that names all ambiguous columns, with the declarations to paste."""
    reasons = ", ".join(f"{safe_repr(name)} ({form.ambiguity})" for name, form in ambiguous.items())
    count = "a column of text is"
    if len(ambiguous) > 1:
        count = f"{len(ambiguous)} columns of text are"
    fix = f"declare what the cells mean, for example {lines_to_paste(ambiguous)}"
    return InputError(f"{count} ambiguous: {reasons}", where=where, fix=fix)


def _joint_kind(name: str, kinds: Mapping[str, Kind]) -> Kind:
    """Return the kind of a column from its kind in each table. Raise InputError if kinds
    conflict.
    """
    first, *later = kinds
    for where in later:
        pair = {kinds[first], kinds[where]}
        if len(pair) > 1 and pair != _NUMBER_KINDS:
            fix = (
                "use values of one kind, or declare the kind (kinds={...}, --kind"
                f" {name}=categorical)"
            )
            problem = f"it is {kinds[where]} here and {kinds[first]} in {first}"
            raise InputError(problem, where=where, column=name, fix=fix)
    if len(set(kinds.values())) > 1:
        return "numeric"
    return kinds[first]


def dtype_of(table: Frame, series: pd.Series) -> str:
    """Return the dtype of a column of ``table``; for strings read as codes, the dtype of the
    strings.
    """
    return str(getattr(table, "texts", {}).get(series.name, series.dtype))


def _kind_of_dtype(series: pd.Series, where: str) -> Kind:
    """Return the kind of a column of one table. Raise InputError if its dtype is not supported."""
    dtype = series.dtype
    if pd.api.types.is_object_dtype(dtype):
        return _kind_of_objects(series, where)
    if pd.api.types.is_bool_dtype(dtype):
        return "boolean"
    if pd.api.types.is_integer_dtype(dtype):
        return "integer"
    if pd.api.types.is_float_dtype(dtype):
        return "integer" if _are_integers_with_gaps(series) else "numeric"
    if pd.api.types.is_datetime64_any_dtype(dtype):
        return "datetime"
    if isinstance(dtype, pd.CategoricalDtype) or pd.api.types.is_string_dtype(dtype):
        return "categorical"
    fix = "convert it to a number, date or text"
    raise InputError(
        f"dtype {dtype} is not supported", where=where, column=str(series.name), fix=fix
    )


def _are_integers_with_gaps(series: pd.Series) -> bool:
    """Return True for floats that are integers with missing values: pandas stores them so."""
    values = series.to_numpy(dtype=np.float64, na_value=np.nan)
    finite = values[np.isfinite(values)]
    if not np.isnan(values).any() or not finite.size:
        return False
    if not (finite == np.round(finite)).all():
        return False
    return bool(np.abs(finite).max() < _MAX_EXACT_INTEGER)


def _kind_of_objects(series: pd.Series, where: str) -> Kind:
    """Return the kind of a column of Python objects. Raise InputError for unsupported types."""
    kinds: set[Kind] = set()
    for value_type in dict.fromkeys(map(type, series.dropna())):
        kind = _kind_of_type(value_type)
        if kind is None:
            row = next(row for row, value in enumerate(series) if type(value) is value_type)
            problem = f"values of type {value_type.__name__} are not supported"
            fix = "convert the column to a number, date or text"
            raise InputError(problem, where=where, column=str(series.name), row=row, fix=fix)
        kinds.add(kind)
    if kinds == _NUMBER_KINDS:
        return "numeric"
    return kinds.pop() if len(kinds) == 1 else "categorical"


def _kind_of_type(value_type: type) -> Kind | None:
    """Return the kind of values of a Python type. None: it is not supported."""
    for types, kind in _KINDS_OF_TYPES:
        if issubclass(value_type, types):
            return kind
    return None
