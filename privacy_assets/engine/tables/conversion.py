"""Conversion of single columns into canonical form and back; :mod:`.schema` applies it to tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from privacy_assets.engine.tables.precision import (
    UNITS,
    Precision,
    decimals_of,
    round_decimals,
    round_to_multiple,
    unit_of,
    whole_decimals_of,
)
from privacy_assets.errors import InputError

if TYPE_CHECKING:
    from privacy_assets.engine.tables.schema import ColumnSchema, Kind

_A = {"numeric": "a number", "integer": "a whole number", "boolean": "true or false", "datetime": "a date or time"}
_WORDS = {"true": True, "false": False, 1: True, 0: False}
# What pandas holds to the nanosecond: the generators compute with these, and the year 9999 means "no date".
_TIMES = (pd.Timestamp("1678-01-01").as_unit("us"), pd.Timestamp("2261-12-31T23:59:59.999999").as_unit("us"))
_CONTAINERS = (bytes, bytearray, list, tuple, dict, set, frozenset, np.ndarray)


def canonical(series: pd.Series, column: ColumnSchema, where: str) -> pd.Series:
    """Return ``series`` in the canonical dtype of its kind with a fresh index; InputError names the first bad row."""
    series = series.reset_index(drop=True)
    if column.kind == "categorical":
        return _texts(series, column.name, where)
    missing = series.isna()
    convert = {"datetime": _datetimes, "boolean": _booleans}.get(column.kind, _numbers)
    converted = convert(series)
    bad = np.flatnonzero((converted.isna() & ~missing).to_numpy())
    if len(bad):
        raise InputError(
            f"a value is not {_A[column.kind]}", where=where, column=column.name, row=int(bad[0]),
            fix=f"convert it, or declare the column as categorical; {len(bad)} rows are affected",
        )  # fmt: skip
    if column.kind == "datetime":
        _check_years(converted, column.name, where)
        return converted
    if column.kind == "boolean":
        return converted
    infinite = np.flatnonzero(np.isinf(converted.to_numpy(dtype=np.float64, na_value=np.nan)))
    if len(infinite):
        fix = "replace it by a number or a missing value"
        raise InputError("a value is infinite", where=where, column=column.name, row=int(infinite[0]), fix=fix)
    return _whole(converted, column.name, where) if column.kind == "integer" else converted.astype("float64")


def _check_years(series: pd.Series, name: str, where: str) -> None:
    outside = np.flatnonzero(((series < _TIMES[0]) | (series > _TIMES[1])).to_numpy())
    if len(outside):
        fix = f"leave it empty where it stands for no date; {len(outside)} rows are affected"
        problem = f"a date lies outside of the years {_TIMES[0].year} to {_TIMES[1].year}"
        raise InputError(problem, where=where, column=name, row=int(outside[0]), fix=fix)


def precision_of(series: pd.Series, kind: Kind, dtype: str) -> Precision:
    """The precision of a column as it was read: the coarsest at which each of its values stays itself in ``dtype``."""
    if kind == "datetime":
        return unit_of(_datetimes(series).dropna().astype("int64").to_numpy())
    if kind not in ("numeric", "integer"):
        return None
    numbers = _numbers(series).dropna()
    if pd.api.types.is_integer_dtype(numbers.dtype) and kind == "integer":
        return whole_decimals_of(numbers.to_numpy())
    values = numbers.to_numpy(dtype=np.float64)
    values = values[np.isfinite(values)]
    if kind == "numeric":
        return decimals_of(values, _float_dtype(dtype))
    return whole_decimals_of(values[np.abs(values) < 2**63].astype(np.int64))


def rounded(series: pd.Series, column: ColumnSchema) -> pd.Series:
    """A canonical column at the precision of ``column``: to the nearest number or time of it, the even one of two.

    What is at that precision stays bit for bit what it is, but for -0.0, which becomes 0.0; what is missing stays so.
    """
    if column.kind == "numeric":
        values, fine = series.to_numpy(dtype=np.float64), _float_dtype(column.dtype)
        if isinstance(column.precision, int):
            values = round_decimals(values, column.precision)
        with np.errstate(over="ignore"):
            short = values.astype(fine).astype(np.float64)
        # What overflows a short float stays: that it does not fit is found by :func:`restored`.
        return pd.Series(np.where(np.isinf(short), values, short) + 0.0, index=series.index, name=series.name)
    if column.kind == "integer" and isinstance(column.precision, int) and column.precision < 0:
        there = series.notna()
        known = round_to_multiple(series[there].to_numpy(dtype=np.int64), 10**-column.precision)
        return series.mask(there, pd.Series(known, index=series.index[there], dtype="Int64"))
    if column.kind == "datetime" and isinstance(column.precision, str):
        there = series.notna()
        micros = round_to_multiple(series[there].astype("int64").to_numpy(), UNITS[column.precision])
        return series.mask(there, pd.Series(micros.astype("datetime64[us]"), index=series.index[there]))
    return series


def _float_dtype(name: str) -> np.dtype[Any]:
    """The short float that values of the dtype ``name`` are; else float64."""
    dtype = pd.api.types.pandas_dtype(name)
    found: Any = getattr(dtype, "numpy_dtype", dtype)
    short = isinstance(found, np.dtype) and found.kind == "f" and found.itemsize < 8
    return found if short else np.dtype(np.float64)


def _texts(series: pd.Series, name: str, where: str) -> pd.Series:
    """Text of each value; whole floats read as whole numbers, since CSV and missing values turn codes into floats."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        texts = np.array([_text(value) for value in series.cat.categories] + [None], dtype=object)
        return pd.Series(texts[series.cat.codes.to_numpy()], name=series.name, dtype=object)
    if not pd.api.types.is_object_dtype(series.dtype) or pd.api.types.infer_dtype(series, skipna=True) == "string":
        codes, different = pd.factorize(series)  # one text for all equal values
        known = np.array([*map(_text, pd.Series(different).astype(object)), None], dtype=object)
        return pd.Series(known[codes], name=series.name, dtype=object)
    missing = series.isna().to_numpy()
    values = np.empty(len(series), dtype=object)
    for row, value in enumerate(series.astype(object)):
        if isinstance(value, _CONTAINERS):
            kind = type(value).__name__
            raise InputError(f"a {kind} is not a category", where=where, column=name, row=row, fix="convert it to text")
        values[row] = None if missing[row] else _text(value)
    return pd.Series(values, name=series.name, dtype=object)


def _text(value: Any) -> str:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _datetimes(series: pd.Series) -> pd.Series:
    if pd.api.types.is_numeric_dtype(series.dtype):
        return pd.Series(pd.NaT, index=series.index, dtype="datetime64[us]")
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(object)
    times = pd.to_datetime(series, errors="coerce", utc=True, format=None if _is_time(series) else "ISO8601")
    return times.dt.tz_localize(None).astype("datetime64[us]")


def _is_time(series: pd.Series) -> bool:
    return pd.api.types.is_datetime64_any_dtype(series.dtype)


def _booleans(series: pd.Series) -> pd.Series:
    if pd.api.types.is_bool_dtype(series.dtype):
        return series.astype("boolean")
    return series.astype(object).map(_truth).astype("boolean")


def _truth(value: object) -> bool | None:
    """True, 1, 1.0 and "true" in any case are true; likewise false; anything else is None."""
    if isinstance(value, str):
        return _WORDS.get(value.lower())
    return _WORDS.get(value) if isinstance(value, (bool, np.bool_, int, float)) else None


def _numbers(series: pd.Series) -> pd.Series:
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(object)
    dtype = series.dtype
    if pd.api.types.is_object_dtype(dtype) or pd.api.types.is_string_dtype(dtype):
        # Nullable: beside missing values whole numbers beyond 2**53 would otherwise lose their last digits.
        return pd.to_numeric(series, errors="coerce", dtype_backend="numpy_nullable")
    if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype):
        return series
    return pd.Series(np.nan, index=series.index)


def _whole(series: pd.Series, name: str, where: str) -> pd.Series:
    large = np.abs(series.to_numpy(dtype=np.float64, na_value=np.nan)) >= 2**63
    if large.any():
        fix = "declare the column as categorical"
        raise InputError(
            "a whole number does not fit 64 bits", where=where, column=name, row=int(large.argmax()), fix=fix
        )
    if pd.api.types.is_integer_dtype(series.dtype):
        return series.astype("Int64")
    values = series.to_numpy(dtype=np.float64, na_value=np.nan)
    broken = np.flatnonzero(~np.isnan(values) & (values != np.round(values)))
    if len(broken):
        fix = f"declare the column as numeric; {len(broken)} rows are affected"
        raise InputError("a value is not a whole number", where=where, column=name, row=int(broken[0]), fix=fix)
    return pd.Series(values, index=series.index, name=series.name).astype("Int64")


def restored(series: pd.Series, column: ColumnSchema) -> pd.Series:
    """Return a canonical column in the original dtype; InputError when a value does not survive."""
    misfit = InputError(
        f"a value does not fit the dtype {column.dtype} of the private table", column=column.name,
        fix="make the generator keep to the range and form of the column",
    )  # fmt: skip
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = _texts(series, column.name, "restored")
    try:
        out = _in_dtype(series, column.dtype)
        again = canonical(out, column, "restored")
    except (ValueError, TypeError, OverflowError):
        raise misfit from None
    rounds = pd.api.types.is_float_dtype(out.dtype) or pd.api.types.is_datetime64_any_dtype(out.dtype)
    if not rounds and not again.equals(series.reset_index(drop=True)):
        raise misfit
    return out


def _in_dtype(series: pd.Series, name: str) -> pd.Series:
    has_missing = bool(series.isna().any())
    if has_missing and name == "bool":
        name = "boolean"
    if has_missing and name.startswith(("int", "uint")) and "[" not in name:
        name = name.replace("int", "Int").replace("uInt", "UInt")
    dtype = pd.api.types.pandas_dtype(name)
    if isinstance(dtype, pd.DatetimeTZDtype):
        return series.dt.tz_localize("UTC").astype(dtype)
    if pd.api.types.is_object_dtype(dtype):
        return series.astype(object).where(series.notna(), None)
    if pd.api.types.is_bool_dtype(dtype):
        return _booleans(series).astype(dtype)
    if pd.api.types.is_numeric_dtype(dtype):
        series = pd.to_numeric(series) if pd.api.types.is_object_dtype(series.dtype) else series
        with np.errstate(over="ignore"):  # what overflows is found afterwards
            return series.astype(dtype)
    return series.astype(dtype)
