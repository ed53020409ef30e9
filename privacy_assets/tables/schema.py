"""Column kinds and roles, and the schema of a table, inferred from what a user gave."""

from __future__ import annotations

import datetime as dt
import decimal
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
import pandas as pd

from privacy_assets.errors import ConfigError, InputError, did_you_mean, near_name, shown
from privacy_assets.tables.conversion import precision_of
from privacy_assets.tables.precision import Precision

_LOOK, _FEW, _CODES = 1000, 0.01, 20  # rows for a first look, share of strays, different values that can be codes

Kind = Literal["numeric", "integer", "categorical", "boolean", "datetime"]
Role = Literal["closed", "number", "date", "generated"]  # open columns are refused: see .roles


class Frame(Protocol):
    """What checks and conversion ask of a table that was given: a frame, or one whose columns are read when asked."""

    @property
    def columns(self) -> pd.Index:
        """Names in order."""

    def __len__(self) -> int: ...

    def __getitem__(self, name: str, /) -> pd.Series: ...


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """Name, kind and nullability of a column, and the pandas dtype that :func:`restore` gives back.

    ``precision`` is that of its numbers and times, see :mod:`.precision`. ``role`` says what may stand in it once it is
    published, None where nobody has looked, and ``domain`` which values may in a closed one beside those of the real
    tables; see :mod:`.roles`.
    """

    name: str
    kind: Kind
    nullable: bool
    dtype: str
    precision: Precision = None
    role: Role | None = None
    domain: tuple[Any, ...] = ()


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

    @property
    def measured(self) -> TableSchema:
        """The schema less generated columns: those that metrics, filters and the embedder set side by side."""
        return self.without(*self.generated)

    @property
    def generated(self) -> list[str]:
        """Names of the columns in which new values are allowed."""
        return [column.name for column in self.columns if column.role == "generated"]

    def to_json(self) -> list[dict[str, Any]]:
        """Return one plain mapping a column."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def from_json(cls, data: list[dict[str, Any]]) -> TableSchema:
        """Inverse of :meth:`to_json`."""
        return cls(tuple(ColumnSchema(**{**column, "domain": tuple(column["domain"])}) for column in data))


def check_frame(frame: Frame, *, where: str, smallest: int = 1) -> None:
    """Raise InputError unless ``frame`` has unique text column names, at least one column and ``smallest`` rows."""
    if len(frame.columns) == 0:
        raise InputError("the table has no columns", where=where, fix="give a table with at least one column")
    # By position: in a table that was turned or pivoted by mistake, values of rows stand where names should be.
    for position, name in enumerate(frame.columns):
        if not isinstance(name, str):
            problem = f"the name of column {position} is a {type(name).__name__}, not text"
            raise InputError(problem, where=where, fix="rename the columns to text")
    repeated = frame.columns.duplicated().nonzero()[0]
    if len(repeated):
        problem = f"the name of column {repeated[0]} stands twice"
        raise InputError(problem, where=where, fix="rename one of the columns")
    if len(frame) < smallest:
        problem = f"the table has {len(frame)} rows, at least {smallest} are needed"
        raise InputError(problem, where=where, fix="add rows")


def option_text(names: Iterable[str]) -> str:
    """Names of columns as an option of the command line takes them in a shell."""
    return shlex.quote(",".join(map(_quoted, names)))


def _quoted(name: str) -> str:
    plain = name and not name.startswith((" ", '"')) and not set(name) & {",", "\n", "\r"}
    return name if plain else '"' + name.replace('"', '""') + '"'


def check_subject(columns: Iterable[str], subject: str, where: str) -> None:
    """Raise InputError unless the column ``subject`` is there."""
    if subject not in columns:
        fix = f"name one of its columns.{near_name(subject, columns)}"
        raise InputError("the subject column is missing", where=where, column=subject, fix=fix)


def check_not_published(columns: Iterable[str], subject: str | None, where: str) -> None:
    """Raise InputError when ``subject`` is a column of the synthetic table: the id of a real person in it is a leak."""
    if subject is not None and subject in columns:
        fix = (
            f"take the column out of the file; or drop it here (data: {{drop: [{subject}]}}, on the command line --drop"
            f" {option_text([subject])}), and publish the table without it"
        )
        problem = "the subject column stands in the synthetic table, where a row belongs to nobody"
        raise InputError(problem, where=where, column=subject, fix=fix)


def check_same_columns(first: Iterable[str], first_where: str, names: Iterable[str], where: str, fix: str) -> None:
    """Raise InputError unless two tables have the same columns, in any order; ``fix`` says what to do."""
    differing = sorted(set(first) ^ set(names))
    if differing:
        if not set(first) & set(names):  # one may be turned, its names the cells of a row
            raise InputError(f"it shares no column with {first_where}", where=where, fix=fix)
        raise InputError(f"the columns differ from {first_where}", where=where, column=differing[0], fix=fix)


def infer_schema(
    frame: Frame,
    overrides: Mapping[str, Kind] | None = None,
    *,
    where: str = "table",
    dtypes: Mapping[str, str] | None = None,
) -> TableSchema:
    """Infer kind, nullability and precision of each column; ``overrides`` win, as do ``dtypes``, if given, by name.

    Booleans are boolean, whole numbers integer (also when stored as floats beside missing values), other numbers
    numeric, timestamps and dates datetime, all else categorical. A column without any value cannot be typed and is an
    error unless ``overrides`` name it.
    """
    check_frame(frame, where=where)
    overrides = dict(overrides or {})
    for name, kind in overrides.items():
        if name not in frame.columns:
            hint = near_name(name, frame.columns)
            raise ConfigError(f"{where}: kind given for unknown column {shown(name)}.{hint}")
        if kind not in get_args(Kind):
            hint = did_you_mean(kind, get_args(Kind))
            raise ConfigError(f"{where}: unknown kind {shown(kind)} of column {shown(name)}.{hint}")
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
    """The dtype of a column of ``table``; of texts that were read as codes, the one that they would have."""
    return str(getattr(table, "texts", {}).get(series.name, series.dtype))


def infer_kind(series: pd.Series, where: str) -> Kind:
    """Kind of a column that has values; InputError for values of a type that has none, and for a few stray texts."""
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
    """InputError where all but a few texts of a column are numbers: it would become a category that nobody meant."""
    first = series.head(_LOOK).dropna()
    if 2 * len(stray_rows(first)) > len(first):  # texts, as nearly always
        return
    rows = stray_rows(series)
    there = int(series.notna().sum())
    if 0 < len(rows) <= max(1, _FEW * there) and series.nunique() > _CODES:
        fix = "make it a number or leave it empty, or declare the column as categorical"
        problem = f"a text stands among numbers, in {len(rows)} of {there} rows"
        raise InputError(problem, where=where, column=str(series.name), row=int(rows[0]), fix=fix)


def stray_rows(series: pd.Series) -> np.ndarray:
    """Positions of the values of a column that are there and read as no number."""
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
