"""Column kinds, schema inference, and the canonical form of a table.

Canonical dtypes by kind: numeric ``float64``, integer ``Int64``, categorical ``object`` holding ``str``, boolean
``boolean``, datetime ``datetime64[us]`` (UTC, without zone). Missing is NaN, NA, None or NaT and nothing else.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from privacy_assets.errors import ConfigError, InputError, did_you_mean

Kind = Literal["numeric", "integer", "categorical", "boolean", "datetime"]


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """Name, kind and nullability of a column, and the pandas dtype that :func:`restore` gives back."""

    name: str
    kind: Kind
    nullable: bool
    dtype: str


@dataclass(frozen=True, slots=True)
class TableSchema:
    """Columns in the order of the private table."""

    columns: tuple[ColumnSchema, ...]

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [column.name for column in self.columns]

    def of_kind(self, *kinds: Kind) -> list[str]:
        """Names of the columns of these kinds, in order."""
        return [column.name for column in self.columns if column.kind in kinds]

    def __getitem__(self, name: str) -> ColumnSchema:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def without(self, *names: str | None) -> TableSchema:
        """The schema less the named columns."""
        return TableSchema(tuple(column for column in self.columns if column.name not in names))

    def to_json(self) -> list[dict[str, Any]]:
        """Return one plain mapping a column."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def from_json(cls, data: list[dict[str, Any]]) -> TableSchema:
        """Inverse of :meth:`to_json`."""
        return cls(tuple(ColumnSchema(**column) for column in data))


def check_frame(frame: pd.DataFrame, *, where: str, smallest: int = 1) -> None:
    """Raise InputError unless ``frame`` has unique text column names, at least one column and ``smallest`` rows."""
    if frame.shape[1] == 0:
        raise InputError("the table has no columns", where=where, fix="give a table with at least one column")
    for name in frame.columns:
        if not isinstance(name, str):
            raise InputError(f"column name {name!r} is not text", where=where, fix="rename the columns to text")
    repeated = frame.columns[frame.columns.duplicated()]
    if len(repeated):
        raise InputError("the name stands twice", where=where, column=str(repeated[0]), fix="rename one of the columns")
    if len(frame) < smallest:
        raise InputError(f"the table has {len(frame)} rows, at least {smallest} are needed", where=where, fix="add rows")


def infer_schema(frame: pd.DataFrame, overrides: Mapping[str, Kind] | None = None, *, where: str = "table") -> TableSchema:
    """Infer kind and nullability of each column; ``overrides`` win.

    Booleans are boolean, whole numbers integer (also when stored as floats beside missing values), other numbers
    numeric, timestamps and dates datetime, all else categorical. A column without any value cannot be typed and is an
    error unless ``overrides`` name it.
    """
    check_frame(frame, where=where)
    overrides = dict(overrides or {})
    for name, kind in overrides.items():
        if name not in frame.columns:
            raise ConfigError(f"{where}: kind given for unknown column {name!r}.{did_you_mean(name, frame.columns)}")
        if kind not in get_args(Kind):
            raise ConfigError(f"{where}: unknown kind {kind!r} of column {name!r}.{did_you_mean(str(kind), get_args(Kind))}")
    columns = []
    for name in frame.columns:
        series = frame[name]
        missing = series.isna()
        if missing.all():
            fix = "drop the column or fill it"
            raise InputError("every value is missing", where=where, column=name, fix=fix)
        kind = overrides.get(name) or _infer_kind(series, where)
        columns.append(ColumnSchema(name, kind, bool(missing.any()), str(series.dtype)))
    return TableSchema(tuple(columns))


def _infer_kind(series: pd.Series, where: str) -> Kind:
    dtype = series.dtype
    if pd.api.types.is_bool_dtype(dtype):
        return "boolean"
    if pd.api.types.is_integer_dtype(dtype):
        return "integer"
    if pd.api.types.is_float_dtype(dtype):
        values = series.to_numpy(dtype=np.float64, na_value=np.nan)
        finite = values[np.isfinite(values)]
        whole = bool(np.isnan(values).any()) and finite.size > 0 and bool((finite == np.round(finite)).all())
        return "integer" if whole and np.abs(finite).max() < 2**53 else "numeric"
    if isinstance(dtype, (pd.DatetimeTZDtype,)) or pd.api.types.is_datetime64_any_dtype(dtype):
        return "datetime"
    if isinstance(dtype, pd.CategoricalDtype) or pd.api.types.is_string_dtype(dtype) and dtype != object:
        return "categorical"
    if dtype == object:
        return _infer_object(series, where)
    raise InputError(
        f"dtype {dtype} is not supported", where=where, column=str(series.name), fix="convert it to a number, date or text"
    )


def _infer_object(series: pd.Series, where: str) -> Kind:
    kinds: dict[type, Kind] = {
        bool: "boolean", np.bool_: "boolean", int: "integer", float: "numeric", decimal.Decimal: "numeric",
        dt.datetime: "datetime", pd.Timestamp: "datetime", dt.date: "datetime", str: "categorical",
    }  # fmt: skip
    found: set[Kind] = set()
    for row, value in enumerate(series):
        if value is None or value is pd.NA or value is pd.NaT or value != value:  # noqa: PLR0124 (NaN)
            continue
        if type(value) not in kinds:
            raise InputError(
                f"values of type {type(value).__name__} are not supported",
                where=where, column=str(series.name), row=row, fix="convert the column to a number, date or text",
            )  # fmt: skip
        found.add(kinds[type(value)])
    if found == {"integer", "numeric"}:
        return "numeric"
    return found.pop() if len(found) == 1 else "categorical"


def conform(frame: pd.DataFrame, schema: TableSchema, *, where: str, smallest: int = 1) -> pd.DataFrame:
    """Return a canonical copy of ``frame`` with exactly the columns of ``schema``, in its order and a fresh index.

    Missing values are allowed in any column (a missing value that the private table does not have is a value of its
    own to the metrics). Raises InputError for missing or extra columns, values that do not convert, and infinities.
    """
    check_frame(frame, where=where, smallest=smallest)
    names = schema.names
    absent = [name for name in names if name not in frame.columns]
    if absent:
        raise InputError("the column is missing", where=where, column=absent[0], fix="give every table the same columns")
    extra = [name for name in frame.columns if name not in names]
    if extra:
        fix = "drop it, or add it to every table"
        raise InputError("the column does not stand in the schema", where=where, column=str(extra[0]), fix=fix)
    data = {column.name: _canonical(frame[column.name], column, where) for column in schema.columns}
    return pd.DataFrame(data, columns=names).reset_index(drop=True)


def _canonical(series: pd.Series, column: ColumnSchema, where: str) -> pd.Series:
    series = series.reset_index(drop=True)
    if column.kind == "categorical":
        return _canonical_text(series)
    missing = series.isna()
    if column.kind == "datetime":
        converted = _datetimes(series)
    elif column.kind == "boolean":
        converted = _booleans(series)
    else:
        converted = _numbers(series)
    bad = np.flatnonzero((converted.isna() & ~missing).to_numpy())
    if len(bad):
        raise InputError(
            f"a value is not {_A[column.kind]}", where=where, column=column.name, row=int(bad[0]),
            fix=f"convert it, or declare the column as categorical; {len(bad)} rows are affected",
        )  # fmt: skip
    if column.kind in ("numeric", "integer"):
        infinite = np.flatnonzero(np.isinf(converted.to_numpy(dtype=np.float64, na_value=np.nan)))
        if len(infinite):
            fix = "replace it by a number or a missing value"
            raise InputError("a value is infinite", where=where, column=column.name, row=int(infinite[0]), fix=fix)
    if column.kind == "integer":
        return _whole(converted, column.name, where)
    return converted.astype("float64") if column.kind == "numeric" else converted


_A = {"numeric": "a number", "integer": "a whole number", "boolean": "true or false", "datetime": "a date or time"}


def _canonical_text(series: pd.Series) -> pd.Series:
    """Text of each value; whole floats read as whole numbers, since CSV and missing values turn codes into floats."""
    out = series.astype(object).where(series.notna(), None)
    codes, uniques = pd.factorize(out)
    texts = np.array([_text(value) for value in uniques] + [None], dtype=object)
    return pd.Series(texts[codes], name=series.name, dtype=object)


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
    words = {True: True, False: False, 1: True, 0: False, "true": True, "false": False, "True": True, "False": False}
    known = series.astype(object).map(lambda value: words.get(value) if isinstance(value, (bool, int, float, str)) else None)
    return known.astype("boolean")


def _numbers(series: pd.Series) -> pd.Series:
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(object)
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        return pd.Series(np.nan, index=series.index)
    return pd.to_numeric(series, errors="coerce")


def _whole(series: pd.Series, name: str, where: str) -> pd.Series:
    if pd.api.types.is_integer_dtype(series.dtype):
        return series.astype("Int64")
    values = series.to_numpy(dtype=np.float64, na_value=np.nan)
    broken = np.flatnonzero(~np.isnan(values) & (values != np.round(values)))
    if len(broken):
        fix = f"declare the column as numeric; {len(broken)} rows are affected"
        raise InputError("a value is not a whole number", where=where, column=name, row=int(broken[0]), fix=fix)
    large = np.flatnonzero(np.abs(values) >= 2**63)
    if len(large):
        fix = "declare the column as categorical"
        raise InputError("a whole number does not fit 64 bits", where=where, column=name, row=int(large[0]), fix=fix)
    return pd.Series(values, index=series.index, name=series.name).astype("Int64")


def restore(frame: pd.DataFrame, schema: TableSchema) -> pd.DataFrame:
    """Give a canonical frame the columns' original dtypes back, for publication.

    A dtype that cannot hold a missing value becomes its nullable counterpart when one is there.
    """
    return pd.DataFrame({c.name: _restored(frame[c.name], c.dtype) for c in schema.columns}, columns=schema.names)


def _restored(series: pd.Series, dtype: str) -> pd.Series:
    has_missing = bool(series.isna().any())
    if dtype == "category":
        return series.astype("category")
    if dtype.startswith("datetime64"):
        zoned = "," in dtype
        times = series.dt.tz_localize("UTC") if zoned else series
        return times.astype(dtype)
    if dtype == "bool":
        return series if has_missing else series.astype(bool)
    if dtype.startswith(("int", "uint")):
        name = dtype.replace("int", "Int").replace("uInt", "UInt") if has_missing else dtype
        return _as_number(series).astype(name)
    if dtype in ("str", "string", "object"):
        return series.astype(dtype) if dtype != "object" else series.astype(object).where(series.notna(), None)
    if dtype.startswith("float"):
        return pd.to_numeric(series).astype("float64").astype(dtype)
    return series.astype(dtype)


def _as_number(series: pd.Series) -> pd.Series:
    return pd.to_numeric(series) if series.dtype == object else series
