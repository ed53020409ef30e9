"""One schema of all real tables of a release: kinds inferred from values, subjects as strings."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import pandas as pd

from privacy_assets.errors import ConfigError, InputError, did_you_mean, near_name, safe_repr
from privacy_assets.tables.column import Column, stacked
from privacy_assets.tables.conversion import column_of, precision_of
from privacy_assets.tables.schema import (
    ColumnSchema,
    Frame,
    Kind,
    TableSchema,
    check_frame,
    check_not_published,
    check_same_columns,
    check_subject,
)
from privacy_assets.tables.stored import StackedTable

REAL_ROLES = ("train", "holdout", "reference")
REAL = "train, holdout and reference"


def check_reading(subject: object, kinds: object) -> None:
    """Raise ConfigError if ``subject`` is not a column name or ``kinds`` does not map columns to kinds."""
    if subject is not None and not isinstance(subject, str):
        raise ConfigError(f"subject must be the name of a column, not {type(subject).__name__}.")
    if not isinstance(kinds, Mapping | None):
        raise ConfigError(f"kinds must be a mapping of columns to kinds, not {type(kinds).__name__}.")
    for column, kind in (kinds or {}).items():
        if not isinstance(column, str) or not isinstance(kind, str) or kind not in get_args(Kind):
            hint = did_you_mean(kind, get_args(Kind))
            raise ConfigError(f"unknown kind {safe_repr(kind)} of column {safe_repr(column)}.{hint}")


def take_subjects(frames: dict[str, Any], names: Mapping[str, str], subject: str | None) -> dict[str, Column]:
    """Remove the subject column from the real frames, in place, and return it by role.

    Raises InputError if the column or a subject is missing, or if the synthetic table has the column. ``names`` are the
    names of the tables in messages.
    """
    if subject is None:
        return {}
    if "synthetic" in frames:
        check_not_published(frames["synthetic"].columns, subject, names["synthetic"])
    ids = {}
    for role in REAL_ROLES:
        if role not in frames:
            continue
        check_subject(frames[role].columns, subject, names[role])
        ids[role] = subject_column(frames[role][subject], names[role])
        frames[role] = frames[role].drop(columns=[subject])
    return ids


def subject_column(series: pd.Series, where: str) -> Column:
    """Convert subject identifiers to strings: 7, 7.0 and "7" are one subject, whichever dtype a file gives the column.

    Raises InputError if an identifier is missing.
    """
    name = str(series.name)
    ids = column_of(series, ColumnSchema(name, "categorical", False, "str"), where)
    missing = np.flatnonzero(ids.missing)
    if len(missing):
        fix = "add the id of the person to every row"
        raise InputError("the subject is missing", where=where, column=name, row=int(missing[0]), fix=fix)
    return ids


def joint_codes(subjects: Mapping[str, Column]) -> dict[str, np.ndarray]:
    """Return the int64 subject code of each row by role, coded jointly over the roles."""
    if not subjects:
        return {}
    ends = np.cumsum([len(column) for column in subjects.values()])[:-1]
    codes, _ = pd.factorize(stacked(list(subjects.values())).cells)
    return dict(zip(subjects, np.split(codes.astype(np.int64), ends), strict=True))


def joint_schema(
    frames: Mapping[str, Frame], names: Mapping[str, str], kinds: Mapping[str, Kind] | None
) -> TableSchema:
    """Return the schema of the real tables, by role and without the subject.

    Kinds and precision are inferred from all rows, dtypes from train. Raises InputError if columns or kinds differ
    between tables: a single string among the numbers of train would turn every number into a category that no other
    table has. Integers and other numbers are compatible; ``kinds`` overrides the inferred kinds. ``names`` are the
    names of the tables in messages.
    """
    train = frames["train"]
    real = {role: frames[role] for role in REAL_ROLES if role in frames}
    for role, frame in real.items():
        fix = "use the same columns in every table"
        check_same_columns(train.columns, names["train"], frame.columns, names[role], fix)
    dtypes = _check_kinds_agree(real, names, kinds or {})
    return infer_schema(StackedTable(list(real.values())), kinds, where=REAL, dtypes=dtypes)


def _check_kinds_agree(
    real: Mapping[str, Frame], names: Mapping[str, str], kinds: Mapping[str, Kind]
) -> dict[str, str]:
    """Return the dtypes of train. Raise InputError if kinds differ."""
    seen: dict[str, tuple[str, str]] = {}
    dtypes: dict[str, str] = {}
    for role, frame in real.items():
        for name in frame.columns:
            series = frame[name]
            dtypes.setdefault(name, dtype_of(frame, series))
            if name in kinds or series.isna().all():
                continue
            kind = infer_kind(series, names[role])
            kind = "numeric" if kind == "integer" else kind
            other, where = seen.setdefault(name, (kind, role))
            if kind != other:
                fix = f"use values of one kind, or declare the kind (kinds={{...}}, --kind {name}=categorical)"
                problem, row = f"it is {kind} here and {other} in {names[where]}", None
                if kind == "categorical" and other == "numeric":
                    row = next(iter(stray_rows(series).tolist()), None)
                raise InputError(problem, where=names[role], column=name, row=row, fix=fix)
    return dtypes


_LOOK, _FEW, _CODES = 1000, 0.01, 20  # rows tested first, maximum share of stray strings, maximum number of codes


def infer_schema(
    frame: Frame,
    overrides: Mapping[str, Kind] | None = None,
    *,
    where: str = "table",
    dtypes: Mapping[str, str] | None = None,
) -> TableSchema:
    """Infer kind, nullability and precision of each column.
    Whole numbers are integer (also if stored as floats because values are missing), other numbers numeric, timestamps
    and dates datetime, and all other values except booleans categorical.

    Args:
        frame: Table with valid column names.
        overrides: Kind of columns by name, instead of the inferred one.
        where: Name of the table in messages.
        dtypes: Dtype of columns by name, instead of the table's own.

    Raises:
        InputError: If a column has unsupported values, a few strings among numbers, or no value and no override.
        ConfigError: If an override names an unknown column or kind.
    """
    check_frame(frame, where=where)
    overrides = dict(overrides or {})
    for name, kind in overrides.items():
        if name not in frame.columns:
            hint = near_name(name, frame.columns)
            raise ConfigError(f"{where}: kind declared for unknown column {safe_repr(name)}.{hint}")
        if kind not in get_args(Kind):
            hint = did_you_mean(kind, get_args(Kind))
            raise ConfigError(f"{where}: unknown kind {safe_repr(kind)} of column {safe_repr(name)}.{hint}")
    columns = []
    for name in frame.columns:
        series = frame[name]
        missing = series.isna()
        if missing.all() and name not in overrides:
            fix = "drop the column, fill it, or declare its kind"
            raise InputError("every value is missing", where=where, column=name, fix=fix)
        kind = overrides.get(name) or infer_kind(series, where)
        dtype = (dtypes or {}).get(name) or dtype_of(frame, series)
        columns.append(ColumnSchema(name, kind, bool(missing.any()), dtype, precision_of(series, kind, dtype)))
    return TableSchema(tuple(columns))


def dtype_of(table: Frame, series: pd.Series) -> str:
    """Return the dtype of a column of ``table``; for strings read as codes, the dtype of the strings."""
    return str(getattr(table, "texts", {}).get(series.name, series.dtype))


def infer_kind(series: pd.Series, where: str) -> Kind:
    """Infer the kind of a column that has values.

    Raises:
        InputError: If values have an unsupported type, or a few strings occur among numbers.
    """
    kind = _kind_of(series, where)
    if kind == "categorical":
        _check_stray(series, where)
    return kind


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
        whole = bool(np.isnan(values).any()) and finite.size > 0 and bool((finite == np.round(finite)).all())
        return "integer" if whole and np.abs(finite).max() < 2**53 else "numeric"
    if pd.api.types.is_datetime64_any_dtype(dtype):
        return "datetime"
    if isinstance(dtype, pd.CategoricalDtype) or pd.api.types.is_string_dtype(dtype):
        return "categorical"
    fix = "convert it to a number, date or text"
    raise InputError(f"dtype {dtype} is not supported", where=where, column=str(series.name), fix=fix)


def _infer_object(series: pd.Series, where: str) -> Kind:
    found: set[Kind] = set()
    there = series.notna().to_numpy()
    for row in np.flatnonzero(there):
        value = series.iloc[row]
        kind = next((kind for types, kind in _KINDS if isinstance(value, types)), None)
        if kind is None:
            problem = f"values of type {type(value).__name__} are not supported"
            fix = "convert the column to a number, date or text"
            raise InputError(problem, where=where, column=str(series.name), row=int(row), fix=fix)
        found.add(kind)
    if found == {"integer", "numeric"}:
        return "numeric"
    return found.pop() if len(found) == 1 else "categorical"


def _check_stray(series: pd.Series, where: str) -> None:
    """Check that a column of strings does not consist of numbers with a few exceptions, probably typing errors.

    Raises:
        InputError: If it does. Otherwise the column would silently become categorical.
    """
    first = series.head(_LOOK).dropna()
    if 2 * len(stray_rows(first)) > len(first):  # mostly strings that are not numbers: the usual case
        return
    rows = stray_rows(series)
    there = int(series.notna().sum())
    if 0 < len(rows) <= max(1, _FEW * there) and series.nunique() > _CODES:
        fix = "replace them by numbers or missing values, or declare the column as categorical"
        problem = f"{len(rows)} of {there} rows contain strings, and the others numbers"
        raise InputError(problem, where=where, column=str(series.name), row=int(rows[0]), fix=fix)


def stray_rows(series: pd.Series) -> np.ndarray:
    """Return the positions of values that are neither missing nor numbers."""
    codes, values = pd.factorize(series)
    numbers = pd.to_numeric(pd.Series(values).astype(object), errors="coerce").notna().to_numpy()
    return np.flatnonzero((codes >= 0) & ~np.append(numbers, True)[codes])


_KINDS: tuple[tuple[tuple[type, ...], Kind], ...] = (
    ((bool, np.bool_), "boolean"),
    ((int, np.integer), "integer"),
    ((float, np.floating, decimal.Decimal), "numeric"),
    ((dt.date, np.datetime64), "datetime"),
    ((str,), "categorical"),
)
