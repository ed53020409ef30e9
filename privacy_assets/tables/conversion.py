"""Conversion between pandas columns and :class:`~.column.Column`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from privacy_assets.errors import InputError, safe_repr
from privacy_assets.tables.arrays import mapped_copy
from privacy_assets.tables.column import MISSING, Column, looked_up, positions_in
from privacy_assets.tables.precision import (
    UNITS,
    Precision,
    decimals_of,
    round_decimals,
    round_to_multiple,
    unit_of,
    whole_decimals_of,
)
from privacy_assets.tables.schema import ColumnSchema, Kind
from privacy_assets.tables.text import MARKERS, Texts, have_markers
from privacy_assets.tables.written_dates import ZONED, parse_times
from privacy_assets.tables.written_numbers import NumberFormat, filled, parse_numbers, without_unit

_A = {
    "numeric": "a number",
    "integer": "an integer",
    "boolean": "true or false",
    "datetime": "a date or time",
}
_WORDS = {"true": True, "false": False, 1: True, 0: False}
# Range of pandas nanosecond times, which the generators use. The year 9999 usually means "no date".
_TIMES = (
    np.array(["1678-01-01", "2261-12-31T23:59:59.999999"], dtype="datetime64[us]")
    .view(np.int64)
    .tolist()
)
_YEARS = "a date is outside of the years 1678 to 2261"
_INFINITE = "a value is infinite", "replace it by a number or a missing value"
_CONTAINERS = (bytes, bytearray, list, tuple, dict, set, frozenset, np.ndarray)


def column_of(
    series: pd.Series,
    column: ColumnSchema,
    where: str,
    *,
    synthetic: bool = False,
    external: bool = False,
) -> Column:
    """Convert a pandas column to the kind of ``column``. Text is read in the format of the column,
    see :mod:`.text`.

    Args:
        series: Values.
        column: Schema of the column.
        where: Name of the table in messages.
        synthetic: If True, numbers and times are rounded to the precision of the column, because
            additional digits could encode information.
        external: If True, the values come from the user: declared missing values become missing,
            and times have the time zone of the column. Otherwise they are canonical, and times are
            UTC.

    Raises:
        InputError: If a value does not convert. Names the first such row.
    """
    series = series.reset_index(drop=True)
    if external:
        series = without_markers(series, [*column.missing, *_plain_markers(column)])
    if column.kind == "categorical":
        return Column.of_codes(
            column.name, column.kind, *_convert_categories(series, column.name, where)
        )
    series = without_markers(series, MARKERS)
    if column.kind == "datetime":
        zone = _zone_of(series, column, where) if external else ""
        converted = _convert_times(series, column.format, zone)
    elif column.kind == "boolean":
        converted = _convert_booleans(series)
    else:
        converted = _convert_numbers(series, column.format)
    is_invalid = (converted.isna() & ~series.isna()).to_numpy()
    unit = NumberFormat.of(column.format).unit if column.kind in ("numeric", "integer") else ""
    problem = f"a value is not {_A[column.kind]}"
    fix = "convert it, or declare the column as categorical"
    if unit:
        problem = f"{problem} with the unit {safe_repr(unit)}"
        fix = "write all values with this unit, or without a unit"
    _reject(is_invalid, problem, fix, column.name, where)
    if column.kind == "boolean":
        codes = converted.to_numpy(np.float64, na_value=-1).astype(np.int8)
        return Column.of_codes(column.name, column.kind, codes)
    if column.kind == "numeric":
        cells = converted.to_numpy(np.float64, na_value=np.nan)
    elif column.kind == "integer":
        cells = _convert_integers(converted, column.name, where, rounds=synthetic)
    else:
        cells = converted.to_numpy().view(np.int64)
    # a copy, because the caller's array may change
    result = Column(column.name, column.kind, mapped_copy(cells))
    if synthetic:
        return synthetic_column(result, column, where)
    _check_cells(result, where)
    return result


def _plain_markers(column: ColumnSchema) -> list[str]:
    """Return the declared missing values of numbers with a unit as plain numbers."""
    unit = NumberFormat.of(column.format).unit
    if column.kind not in ("numeric", "integer") or not unit:
        return []
    markers: list[str] = without_unit(pa.array(column.missing, pa.large_string()), unit).to_pylist()
    return markers


def synthetic_column(column: Column, schema: ColumnSchema, where: str) -> Column:
    """Return a column of a synthetic table, rounded to the precision in ``schema``.

    Args:
        column: Column of the kind of ``schema``.
        schema: Schema of the real column.
        where: Name of the table in messages.

    Raises:
        InputError: If it has infinite numbers or dates outside of the supported years.
    """
    _check_cells(column, where)
    return rounded(column, schema)


def _check_cells(column: Column, where: str) -> None:
    """Raise InputError for infinite numbers and dates outside of the supported years."""
    if column.kind == "numeric":
        _reject(np.isinf(column.cells), *_INFINITE, column.name, where)
    elif column.kind == "datetime":
        outside = ((column.cells < _TIMES[0]) | (column.cells > _TIMES[1])) & ~column.missing
        _reject(
            outside, _YEARS, "leave it empty if it means that there is no date", column.name, where
        )


def check_shares(series: pd.Series, real: Column, column: ColumnSchema, where: str) -> None:
    """Raise InputError for numbers without a sign that are probably shares of 1, but percentages in
    the real tables.

    They are: none is above 1, but real ones are, and some are finer than the percentages.

    Args:
        series: Values of the synthetic table.
        real: Values of train.
        column: Schema of a column with the unit %.
        where: Name of the synthetic table in messages.

    Raises:
        InputError: If the numbers are probably shares of 1.
    """
    if _has_unit(series, "%"):
        return
    markers = [*MARKERS, *column.missing, *_plain_markers(column)]
    numbers = _convert_numbers(without_markers(series, markers), column.format).dropna()
    shares = numbers.to_numpy(dtype=np.float64)
    decimals = column.precision if isinstance(column.precision, int) else 0
    is_finer = shares != round_decimals(shares, max(decimals, 0))
    has_large = bool((np.abs(real.cells[~real.missing]) > 1).any())
    if has_large and is_finer.any() and np.abs(shares).max() <= 1:
        fix = "write them as in the private tables, with the sign"
        problem = "its numbers have no %, and may be shares of 1"
        raise InputError(problem, where=where, column=column.name, fix=fix)


def _has_unit(series: pd.Series, unit: str) -> bool:
    """Return True if a cell contains the unit."""
    return is_text(series) and bool(pc.any(pc.match_substring(texts_of(series)[0], unit)).as_py())


def _reject(is_invalid: np.ndarray, problem: str, fix: str, column: str, where: str) -> None:
    """Raise InputError with the first row where ``is_invalid`` (n,) is true, if any."""
    rows = np.flatnonzero(is_invalid)
    if len(rows):
        fix = f"{fix}; {len(rows)} rows are affected"
        raise InputError(problem, where=where, column=column, row=int(rows[0]), fix=fix)


def precision_of(parts: Sequence[pd.Series], column: ColumnSchema) -> Precision:
    """Return the coarsest precision that leaves every value of a column unchanged.

    Args:
        parts: The column in each table.
        column: Its schema, without the precision.

    Returns:
        Number of decimals, or a unit of times. None: the column has no numbers or times, or more
        than fifteen decimals.
    """
    if column.kind not in ("datetime", "numeric", "integer"):
        return None
    parts = [without_markers(part, MARKERS) for part in parts]
    if column.kind == "datetime":
        return _unit_of_times(parts, column)
    numbers = [_convert_numbers(part, column.format).dropna() for part in parts]
    dtypes = [part.dtype for part in numbers]
    if column.kind == "integer" and all(map(pd.api.types.is_integer_dtype, dtypes)):
        return whole_decimals_of(_joined_cells(numbers, np.int64))
    values = _joined_cells(numbers, np.float64)
    values = values[np.isfinite(values)]
    if column.kind == "numeric":
        return decimals_of(values, float_dtype(column.dtype))
    return whole_decimals_of(values[np.abs(values) < 2**63].astype(np.int64))


def _unit_of_times(parts: Sequence[pd.Series], column: ColumnSchema) -> Precision:
    """Return the precision of the times of a column, converted as its cells."""
    times = []
    for part in parts:
        zone = column.timezone
        if has_zone(part):
            zone = ""
        converted = _convert_times(part, column.format, zone)
        times.append(converted.dropna().astype("int64"))
    return unit_of(_joined_cells(times, np.int64))


def _joined_cells(parts: Sequence[pd.Series], dtype: type[np.generic]) -> np.ndarray:
    """Return the cells of a column of several tables, of which there may be none."""
    cells = [np.array([], dtype)]
    for part in parts:
        cells.append(part.to_numpy(dtype))
    return np.concatenate(cells)


class RawColumn(NamedTuple):
    """A column of a table before its kind is known.

    Attributes:
        series: Cells, without declared missing values.
        texts: Distinct texts, and the number of rows of each. None: the column is not text.
        is_empty: True if all cells are missing.
    """

    series: pd.Series
    texts: Texts | None
    is_empty: bool

    @property
    def is_text(self) -> bool:
        """True for text."""
        return self.texts is not None

    @property
    def has_missing(self) -> bool:
        """True if a cell is missing."""
        return bool(self.series.isna().any())

    @property
    def has_gaps(self) -> bool:
        """True if a cell is missing, or is a text that means a missing number."""
        return self.has_missing or (self.texts is not None and have_markers(self.texts))


def raw_column(series: pd.Series, markers: Sequence[str]) -> RawColumn:
    """Return a column of a table before its kind is known.

    Args:
        series: Column of any dtype.
        markers: Declared texts that mean a missing value.
    """
    series = without_markers(series, markers)
    texts = texts_of(series) if is_text(series) else None
    return RawColumn(series, texts, bool(series.isna().all()))


def is_text(series: pd.Series) -> bool:
    """Return True for a column that contains strings.

    Args:
        series: Column of any dtype. A column of objects may contain other values, too.
    """
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return is_text(pd.Series(series.cat.categories))
    if pd.api.types.is_object_dtype(dtype):
        return any(isinstance(value, str) for value in series)
    return isinstance(dtype, pd.StringDtype) or pd.api.types.is_string_dtype(dtype)


def texts_of(series: pd.Series) -> Texts:
    """Return the distinct strings of a column.

    Args:
        series: Column of any dtype, whose cells are converted to strings.

    Returns:
        Distinct cells that are not missing (m,), and the number of rows of each, int64 (m,).
    """
    if isinstance(series.dtype, pd.CategoricalDtype):
        codes = series.cat.codes
        categories = series.cat.categories
        rows = np.bincount(codes[codes >= 0], minlength=len(categories))
        texts = as_texts(pd.Series(categories[rows > 0]))
        return texts, rows[rows > 0]
    counted = pc.value_counts(as_texts(series).drop_null())
    return counted.field("values"), counted.field("counts").to_numpy(zero_copy_only=False)


def as_texts(series: pd.Series) -> pa.Array:
    """Return the cells of a column as Arrow strings.

    Args:
        series: Column of any dtype (n,).

    Returns:
        Strings (n,), null for missing cells.
    """
    try:
        texts = pa.array(series, pa.large_string(), from_pandas=True)
    # values that are not strings; lone surrogates
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError):
        cells = zip(series.astype(object), series.isna(), strict=True)
        strings: list[str | None] = []
        for cell, is_missing in cells:
            strings.append(None if is_missing else valid_unicode(str(cell)))
        texts = pa.array(strings, pa.large_string())
    return texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts


def valid_unicode(text: str) -> str:
    """Replace lone surrogates, which Arrow does not accept."""
    return text.encode(errors="replace").decode()


def without_markers(series: pd.Series, missing: Sequence[str]) -> pd.Series:
    """Return a column in which some values are missing.

    Args:
        series: Column of any dtype.
        missing: Texts that mean a missing value. In a column of text, the empty text means one,
            too. In a column of numbers, only texts that are numbers count.
    """
    if is_text(series):
        is_marker = _is_text_marker(series, missing)
        return series.mask(is_marker) if is_marker.any() else series
    dtype = series.dtype
    if not pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_bool_dtype(dtype):
        return series
    numbers = [float(text) for text in missing if is_number(text)]
    if not numbers:
        return series
    is_marker = series.isin(numbers).to_numpy(dtype=bool)
    return series.convert_dtypes().mask(is_marker) if is_marker.any() else series


def _is_text_marker(series: pd.Series, missing: Sequence[str]) -> np.ndarray:
    """Return True for cells of a text column that are empty or in ``missing``, shape (n,)."""
    is_categorical = isinstance(series.dtype, pd.CategoricalDtype)
    texts = as_texts(pd.Series(series.cat.categories) if is_categorical else series)
    is_listed = pc.is_in(pc.utf8_trim_whitespace(texts), pa.array(missing, pa.large_string()))
    is_marker = pc.fill_null(pc.or_(is_listed, pc.equal(texts, "")), False)
    mask: np.ndarray = is_marker.to_numpy(zero_copy_only=False)
    if is_categorical:
        # code -1, a missing cell, is the last element
        mask = np.append(mask, False)[series.cat.codes]
    return mask


def unread(series: pd.Series, kind: Kind, form: str) -> np.ndarray:
    """Find cells of a text column that cannot be read.

    Args:
        series: Column of text.
        kind: Kind of its values.
        form: Their format, see :attr:`.text.TextForm.format`.

    Returns:
        True for cells that are neither missing nor of the kind in this format, bool (n,).
    """
    series = without_markers(series, MARKERS).reset_index(drop=True)
    read = _convert_times(series, form) if kind == "datetime" else _convert_numbers(series, form)
    return (read.isna() & series.notna()).to_numpy()


def is_number(text: str) -> bool:
    """Return True if ``text`` is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def has_zone(series: pd.Series) -> bool:
    """Return True for times with a time zone.

    Args:
        series: Column of times, of any dtype that can contain them, also text.
    """
    if is_text(series):
        texts, _ = texts_of(series)
        return bool(pc.any(pc.match_substring_regex(pc.utf8_trim_whitespace(texts), ZONED)).as_py())
    if pd.api.types.is_object_dtype(series.dtype):
        return any(getattr(value, "tzinfo", None) is not None for value in series.dropna())
    return isinstance(series.dtype, pd.DatetimeTZDtype)


def _zone_of(series: pd.Series, column: ColumnSchema, where: str) -> str:
    """Return the declared zone of times without a zone. Raise InputError if they and the column
    differ.
    """
    is_zoned = has_zone(series) or "%z" in column.format
    if is_zoned == column.is_zoned or series.isna().all():
        return ""
    if not is_zoned and column.timezone:
        return column.timezone
    states = ("a time zone", "none") if is_zoned else ("no time zone", "one")
    fix = (
        "write the times as in the private tables, or set the zone of times without one"
        " (timezone: Europe/Berlin)"
    )
    problem = f"its times have {states[0]}, and those of the private tables have {states[1]}"
    raise InputError(problem, where=where, column=column.name, fix=fix)


def rounded(column: Column, schema: ColumnSchema) -> Column:
    """Round a column to the precision in ``schema``, half to even.

    Values at this precision remain bit-identical, except that -0.0 becomes 0.0. Missing values are
    kept. Times are rounded as UTC.

    Args:
        column: Column of any kind. Categories and booleans are unchanged.
        schema: Schema of the column.
    """
    cells = column.cells
    if column.kind == "numeric":
        values = cells
        dtype = float_dtype(schema.dtype)
        if isinstance(schema.precision, int):
            values = round_decimals(values, schema.precision)
        with np.errstate(over="ignore"):
            short = values.astype(dtype).astype(np.float64)
        # Values that overflow a short float are kept; :func:`restored` reports them.
        return replace(column, cells=np.where(np.isinf(short), values, short) + 0.0)
    is_present = cells != MISSING
    step = 1
    if column.kind == "integer" and isinstance(schema.precision, int) and schema.precision < 0:
        step = 10**-schema.precision
    elif column.kind == "datetime" and isinstance(schema.precision, str):
        step = UNITS[schema.precision]
    if step == 1:
        return column
    multiples = round_to_multiple(np.where(is_present, cells, 0), step)
    return replace(column, cells=np.where(is_present, multiples, MISSING))


def to_clock(column: Column, schema: ColumnSchema) -> Column:
    """Convert times from UTC to the clock of their zone.

    Args:
        column: Times in UTC.
        schema: Schema of a column with a time zone.
    """
    zone: Any = pd.api.types.pandas_dtype(schema.dtype)
    local = column.series().dt.tz_localize("UTC").dt.tz_convert(zone.tz).dt.tz_localize(None)
    return replace(column, cells=local.astype("datetime64[us]").to_numpy().view(np.int64))


def from_clock(column: Column, schema: ColumnSchema) -> Column:
    """Convert times of the clock of a zone to UTC. In the hour that occurs twice, the later one is
    taken.

    Args:
        column: Times of the clock.
        schema: Schema of a column with a time zone.
    """
    zone: Any = pd.api.types.pandas_dtype(schema.dtype)
    local = column.series()
    times = local.dt.tz_localize(
        zone.tz, ambiguous=np.zeros(len(local), dtype=bool), nonexistent="shift_forward"
    )
    utc = times.dt.tz_convert("UTC").dt.tz_localize(None).astype("datetime64[us]")
    return replace(column, cells=utc.to_numpy().view(np.int64))


def float_dtype(name: str) -> np.dtype[Any]:
    """Return the short float dtype named ``name``, or float64.

    Args:
        name: Name of a pandas dtype.
    """
    dtype = pd.api.types.pandas_dtype(name)
    numpy_dtype: Any = getattr(dtype, "numpy_dtype", dtype)
    if not isinstance(numpy_dtype, np.dtype) or numpy_dtype.kind != "f":
        return np.dtype(np.float64)
    return numpy_dtype if numpy_dtype.itemsize < 8 else np.dtype(np.float64)


def _convert_categories(series: pd.Series, name: str, where: str) -> tuple[np.ndarray, list[str]]:
    """Return codes (n,) of the strings of the values, -1 for missing, and the sorted distinct
    strings.

    Integer-valued floats are formatted as integers, because CSV and missing values convert codes to
    floats.
    """
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        codes = series.cat.codes.to_numpy()
        distinct = series.cat.categories
    elif _has_other_objects(series):
        _check_no_containers(series, name, where)
        codes, distinct_texts = pd.factorize(_object_texts(series))
        distinct = pd.Index(distinct_texts)
    else:
        codes, distinct = pd.factorize(series)
    texts_by_code = [_text(value) for value in pd.Series(distinct).astype(object)]
    # Different values can have the same string, and a dtype can contain unused ones.
    is_used = np.bincount(codes[codes >= 0], minlength=len(texts_by_code)) > 0
    texts = sorted(set(itertools.compress(texts_by_code, is_used)))
    return looked_up(positions_in(texts, texts_by_code), codes), texts


def _has_other_objects(series: pd.Series) -> bool:
    """Return True for a column of Python objects that are not all strings."""
    if not pd.api.types.is_object_dtype(series.dtype):
        return False
    return bool(pd.api.types.infer_dtype(series, skipna=True) != "string")


def _check_no_containers(series: pd.Series, name: str, where: str) -> None:
    """Raise InputError for lists and other values that cannot be categories."""
    for row, value in enumerate(series):
        if isinstance(value, _CONTAINERS):
            problem = f"a value of type {type(value).__name__} is not a category"
            fix = "convert it to text"
            raise InputError(problem, where=where, column=name, row=row, fix=fix)


def _object_texts(series: pd.Series) -> np.ndarray:
    """Return the strings of Python objects, None for missing ones, shape (n,)."""
    texts = np.empty(len(series), dtype=object)
    for row, (value, is_missing) in enumerate(zip(series, series.isna(), strict=True)):
        texts[row] = None if is_missing else _text(value)
    return texts


def _text(value: Any) -> str:
    """Return a value as a string: 3.0 as "3"."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _convert_texts(series: pd.Series, read: Callable[[pa.Array], pd.Series]) -> pd.Series:
    """Read the cells of a text column; those of a category once for each of its values."""
    if not isinstance(series.dtype, pd.CategoricalDtype):
        return read(as_texts(series))
    values = read(as_texts(pd.Series(series.cat.categories)))
    # -1, missing, is in no index
    return values.reindex(series.cat.codes.to_numpy()).reset_index(drop=True)


def _convert_times(series: pd.Series, form: str = "", zone: str = "") -> pd.Series:
    """Return times as datetime64[us] in UTC. Times without a zone are in ``zone``, or else in
    UTC.
    """
    if pd.api.types.is_numeric_dtype(series.dtype):
        return pd.Series(pd.NaT, index=series.index, dtype="datetime64[us]")
    if is_text(series):
        times = _convert_texts(series, lambda texts: parse_times(texts, form))
    else:
        has_times = pd.api.types.is_datetime64_any_dtype(series.dtype)
        if isinstance(series.dtype, pd.CategoricalDtype):
            series = series.astype(object)
        time_format = None if has_times else "ISO8601"
        times = pd.to_datetime(series, errors="coerce", utc=True, format=time_format)
    times = times.dt.tz_localize(None)
    if zone:
        times = times.dt.tz_localize(
            zone, ambiguous=np.zeros(len(times), dtype=bool), nonexistent="shift_forward"
        )
        times = times.dt.tz_convert("UTC").dt.tz_localize(None)
    return times.astype("datetime64[us]")


def _parse_booleans(texts: pa.Array) -> pd.Series:
    """Read true and false in any case as booleans, NA for other texts."""
    words = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    is_boolean = pc.is_in(words, pa.array(["true", "false"], pa.large_string()))
    truth = pc.if_else(is_boolean, pc.equal(words, "true"), None)
    return pd.Series(pd.arrays.BooleanArray(*filled(truth, False)))


def _convert_booleans(series: pd.Series) -> pd.Series:
    if pd.api.types.is_bool_dtype(series.dtype):
        return series.astype("boolean")
    if is_text(series) and not pd.api.types.is_object_dtype(series.dtype):
        return _convert_texts(series, _parse_booleans)
    return series.astype(object).map(_truth).astype("boolean")


def _truth(value: object) -> bool | None:
    """Return True for True, 1, 1.0 and "true" in any case, False for the corresponding values, else
    None.
    """
    if isinstance(value, str):
        return _WORDS.get(value.lower())
    return _WORDS.get(value) if isinstance(value, (bool, np.bool_, int, float)) else None


def _convert_numbers(series: pd.Series, form: str = "") -> pd.Series:
    if is_text(series):
        return _convert_texts(series, lambda texts: parse_numbers(texts, form))
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(object)
    dtype = series.dtype
    if pd.api.types.is_object_dtype(dtype):
        # Nullable, because integers beyond 2**53 would lose digits in the presence of missing
        # values.
        return pd.to_numeric(series, errors="coerce", dtype_backend="numpy_nullable")
    if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype):
        return series
    return pd.Series(np.nan, index=series.index)


def _convert_integers(series: pd.Series, name: str, where: str, *, rounds: bool) -> np.ndarray:
    """Convert numeric values to int64 cells. ``rounds``: fractions are rounded, otherwise
    rejected.
    """
    values = series.to_numpy(dtype=np.float64, na_value=np.nan)
    _reject(np.isinf(values), *_INFINITE, name, where)
    is_large = np.abs(values) >= 2**63
    problem = "an integer does not fit 64 bits"
    _reject(is_large, problem, "declare the column as categorical", name, where)
    if not pd.api.types.is_integer_dtype(series.dtype):
        is_fraction = ~np.isnan(values) & (values != np.round(values))
        if not rounds:
            fix = "round it, or declare the column as numeric"
            _reject(is_fraction, "a value is not an integer", fix, name, where)
        series = pd.Series(np.round(values))
    cells: np.ndarray = series.astype("Int64").to_numpy(np.int64, na_value=MISSING)
    return cells


def restored(column: Column, schema: ColumnSchema) -> pd.Series:
    """Convert a column to the dtype of the private table.

    Args:
        column: Column.
        schema: Schema with this dtype.

    Raises:
        InputError: If a value changes. Floats and times may be rounded to the dtype.
    """
    problem = f"a value does not fit the dtype {schema.dtype} of the private table"
    fix = "keep the generator within the range and format of the column"
    misfit = InputError(problem, column=schema.name, fix=fix)
    try:
        out = _in_dtype(column.series(), schema.dtype)
        again = column_of(out, schema, "restored")
    except (ValueError, TypeError, OverflowError):
        raise misfit from None
    rounds = pd.api.types.is_float_dtype(out.dtype) or pd.api.types.is_datetime64_any_dtype(
        out.dtype
    )
    if not rounds and not column.equals(again):
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
        return _convert_booleans(series).astype(dtype)
    if pd.api.types.is_numeric_dtype(dtype):
        series = pd.to_numeric(series) if pd.api.types.is_object_dtype(series.dtype) else series
        with np.errstate(over="ignore"):  # overflow is detected below
            return series.astype(dtype)
    return series.astype(dtype)
