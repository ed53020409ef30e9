"""Agreement of the files of one table: their columns have the same types, and no row is in two
files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from privacy_assets.errors import InputError
from privacy_assets.tables.column import values_at
from privacy_assets.tables.names import without
from privacy_assets.tables.schema import yaml_text

_NUMBER = "number"
_DECIMAL = "decimal"
_SAME_TYPES = "write the column with the same type in all files"
_LARGEST_EXACT = 2**53  # largest integer up to which floats hold all integers
_MIN_DISTINCT = 0.9  # share of distinct rows from which equal rows are not equal by chance
_MIN_ROWS = 20  # rows from which files are not equal by chance
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bit of a hash is lost


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table with several files.

    Attributes:
        where: Path or URL, for messages.
        hive: Values of its Hive folders by column, without dropped columns. {}: it is in none.
        n_rows: Number of rows.
        types: Arrow types of its columns. A column without one fits each type.
        column: Reads a column.
    """

    where: str
    hive: Mapping[str, str | None]
    n_rows: int
    types: Mapping[str, pa.DataType]
    column: Callable[[str], pd.Series]

    def type_of(self, name: str) -> pa.DataType:
        """Return the Arrow type of a column, or the type of missing values."""
        return self.types.get(name, pa.null())


def check_agreement(
    files: Sequence[TableFile], names: Sequence[str], *, snapshots: bool = False
) -> None:
    """Check the files of a table.

    Args:
        files: Files with the same columns.
        names: Names of the columns to be compared.
        snapshots: Files may have equal rows.

    Raises:
        InputError: If a column has two types, or two files have the same rows.
    """
    if len(files) < 2:
        return
    for name in names:
        _check_types(name, files)
    if not snapshots:
        _check_rows(files, names)


def _check_types(name: str, files: Sequence[TableFile]) -> None:
    """Raise InputError if a column has two types. Missing values fit each type, and integers fit
    other numbers.
    """
    typed = [file for file in files if _kind_of(file.type_of(name))]
    if len(set(map(_kind_of, _types_of(name, typed)))) > 1:
        typed = _with_values(name, typed)
    if not typed:
        return
    first = typed[0]
    expected = _kind_of(first.type_of(name))
    for file in typed[1:]:
        kind = _kind_of(file.type_of(name))
        if kind != expected:
            problem = f"it has the type {kind} here and {expected} in {first.where}"
            raise InputError(problem, where=file.where, column=name, fix=_SAME_TYPES)
    if expected == _NUMBER and len(set(map(_number_of, _types_of(name, typed)))) > 1:
        _check_exact(name, typed)


def _with_values(name: str, files: Sequence[TableFile]) -> list[TableFile]:
    """Return the files in which a column has a value. It is read from each file."""
    with_values = []
    for file in files:
        if not file.column(name).isna().all():
            with_values.append(file)
    return with_values


def _types_of(name: str, files: Sequence[TableFile]) -> list[pa.DataType]:
    """Return the Arrow types of a column."""
    return [file.type_of(name) for file in files]


def _kind_of(arrow_type: pa.DataType) -> str:
    """Return the kind of a type in messages, "" for a column of missing values."""
    types = pa.types
    if types.is_dictionary(arrow_type):
        return _kind_of(arrow_type.value_type)
    if types.is_null(arrow_type):
        return ""
    if types.is_boolean(arrow_type):
        return "boolean"
    is_integer_or_float = types.is_integer(arrow_type) or types.is_floating(arrow_type)
    if is_integer_or_float or types.is_decimal(arrow_type):
        return _NUMBER
    if types.is_timestamp(arrow_type):
        return "time without a time zone" if arrow_type.tz is None else "time with a time zone"
    if types.is_date(arrow_type):
        return "time without a time zone"
    is_any_string = types.is_string(arrow_type) or types.is_large_string(arrow_type)
    if is_any_string or types.is_string_view(arrow_type):
        return "text"
    return str(arrow_type)


def _number_of(arrow_type: pa.DataType) -> str:
    """Return "integer", "uint64" or "decimal" for a type of numbers."""
    if pa.types.is_dictionary(arrow_type):
        return _number_of(arrow_type.value_type)
    if pa.types.is_uint64(arrow_type):
        return "uint64"
    return "integer" if pa.types.is_integer(arrow_type) else _DECIMAL


def _check_exact(name: str, files: Sequence[TableFile]) -> None:
    """Raise InputError if integers of a column are too large to be joined with the decimal numbers
    of other files.
    """
    for file in files:
        if _number_of(file.type_of(name)) == _DECIMAL:
            continue
        cells = file.column(name).dropna()
        if len(cells) and max(abs(int(cells.min())), abs(int(cells.max()))) > _LARGEST_EXACT:
            problem = "it has integers over 2^53, and another file has numbers of another type"
            raise InputError(problem, where=file.where, column=name, fix=_SAME_TYPES)


def _check_rows(files: Sequence[TableFile], names: Sequence[str]) -> None:
    """Raise InputError if two files have the same rows, or if more than half of their rows are
    equal.

    Rows are hashed column by column. After each column, files that share too few hashes with all
    others are left out, so that one column suffices if it identifies people. Nested columns are not
    compared, nor are columns with one value in each file, such as the day of the export.
    """
    candidates = [file for file in files if file.n_rows >= _MIN_ROWS]
    hashes = [np.zeros(file.n_rows, dtype=np.uint64) for file in candidates]
    nested = _nested_columns(files)
    plain = without(names, nested)
    if not plain:
        return
    for name in plain:
        if len(candidates) < 2:
            return
        columns = [_hashed(file.column(name)) for file in candidates]
        if all(map(_is_constant, columns)):
            continue
        for column, row_hashes in zip(columns, hashes, strict=True):
            row_hashes *= _MULTIPLIER
            row_hashes += column
        positions = np.flatnonzero(_may_repeat(hashes)).tolist()
        candidates = values_at(candidates, positions)
        hashes = values_at(hashes, positions)
    _check_copies(candidates, hashes)
    _check_overlaps(candidates, hashes)


def _nested_columns(files: Sequence[TableFile]) -> set[str]:
    """Return the columns that have a nested type in a file. Their cells cannot be hashed."""
    nested = set()
    for file in files:
        for name, arrow_type in file.types.items():
            if _is_nested(arrow_type):
                nested.add(name)
    return nested


def _is_nested(arrow_type: pa.DataType) -> bool:
    """Return True for lists, maps and structs, also as the storage of an extension type."""
    if isinstance(arrow_type, pa.BaseExtensionType):
        return _is_nested(arrow_type.storage_type)
    return bool(pa.types.is_nested(arrow_type))


def _may_repeat(hashes: Sequence[np.ndarray]) -> np.ndarray:
    """Return True for each file that may have more than half of its rows in another file, or of the
    rows of another file.
    """
    if not hashes:
        return np.zeros(0, dtype=bool)
    n_rows = np.array(list(map(len, hashes)))
    file_numbers = np.repeat(np.arange(len(hashes)), n_rows)
    is_shared = _shared_codes(hashes, file_numbers) >= 0
    n_shared = np.bincount(file_numbers[is_shared], minlength=len(hashes))
    may_be_contained = 2 * n_shared > n_rows
    smallest = n_rows[may_be_contained].min(initial=n_rows.max())
    may_contain = 2 * n_shared > smallest
    return may_be_contained | may_contain


def _shared_codes(hashes: Sequence[np.ndarray], file_numbers: np.ndarray) -> np.ndarray:
    """Return a code of each hash that is in two files, -1 for other hashes, int64 (n,)."""
    codes, distinct = pd.factorize(np.concatenate(hashes))
    first_file = np.empty(len(distinct), dtype=np.int64)
    last_file = np.empty(len(distinct), dtype=np.int64)
    first_file[codes[::-1]] = file_numbers[::-1]  # of equal codes, numpy assigns the last one
    last_file[codes] = file_numbers
    is_shared = first_file != last_file
    shared_codes = np.where(is_shared, np.cumsum(is_shared) - 1, -1)
    return shared_codes[codes]


def _check_copies(files: Sequence[TableFile], hashes: Sequence[np.ndarray]) -> None:
    """Raise InputError if two files have the same rows, which are not in two Hive folders: these
    rows differ in the column of the folder.
    """
    first_files: dict[tuple[str, int, int], TableFile] = {}
    for file, row_hashes in zip(files, hashes, strict=True):
        content = (str(file.hive), file.n_rows, int(row_hashes.sum()))
        first = first_files.setdefault(content, file)
        if first is not file:
            raise _repeated(f"it has the same rows as {first.where}", file)


def _numbered(row_hashes: np.ndarray) -> np.ndarray:
    """Return the hashes with a number added to repeated ones, so that each occurs once."""
    occurrence = pd.Series(row_hashes).groupby(row_hashes).cumcount()
    return row_hashes + occurrence.to_numpy(dtype=np.uint64) * _MULTIPLIER


def _check_overlaps(files: Sequence[TableFile], hashes: Sequence[np.ndarray]) -> None:
    """Raise InputError if more than half of the rows of a file are in another one, and at least
    90 % of the rows of each are distinct.
    """
    distinct = []
    numbered = []
    for file, row_hashes in zip(files, hashes, strict=True):
        if len(np.unique(row_hashes)) >= _MIN_DISTINCT * file.n_rows:
            distinct.append(file)
            numbered.append(_numbered(row_hashes))
    if len(distinct) > 1:
        _compare(distinct, numbered)


def _compare(files: Sequence[TableFile], hashes: Sequence[np.ndarray]) -> None:
    """Raise InputError for the first pair of files of which more than half of the rows are equal.
    Each hash occurs once in a file.
    """
    from scipy import sparse  # slow to import, and rarely needed

    n_rows = np.array([file.n_rows for file in files])
    file_numbers = np.repeat(np.arange(len(files)), n_rows)
    codes = _shared_codes(hashes, file_numbers)
    is_shared = codes >= 0
    cells = (np.ones(is_shared.sum(), dtype=np.int64), (file_numbers[is_shared], codes[is_shared]))
    rows_of_files = sparse.csr_matrix(cells, shape=(len(files), codes.max() + 1))
    files_of_rows = rows_of_files.T.tocsr()
    for i, first in enumerate(files[:-1]):
        n_equal = (rows_of_files[i] @ files_of_rows).toarray()[0]
        is_repeated = 2 * n_equal > np.minimum(n_rows[i], n_rows)
        is_repeated[: i + 1] = False
        if not is_repeated.any():
            continue
        j = int(np.argmax(is_repeated))
        second = files[j]
        if n_equal[j] == first.n_rows == second.n_rows:
            raise _repeated(f"it has the same rows as {first.where}", second)
        raise _repeated(
            f"{n_equal[j]:,} of its {second.n_rows:,} rows are in {first.where}, too", second
        )


def _repeated(problem: str, file: TableFile) -> InputError:
    setting = yaml_text({"snapshots": True})
    fix = (
        "remove one of the two; or, if the files are snapshots of the same people, state it (data:"
        f" {setting}, on the command line --snapshots)"
    )
    return InputError(problem, where=file.where, fix=fix)


def _is_constant(column: np.ndarray) -> bool:
    return bool((column == column[0]).all())


def _hashed(column: pd.Series) -> np.ndarray:
    """Return a hash of each cell, uint64 (n,), which is equal for equal values of all dtypes.

    Fractions are compared in float32, and texts without case, outer blanks and final zeros: another
    writer of the same rows may change them.
    """
    codes, values = pd.factorize(column)
    plain = _plain_values(pd.Series(values))
    value_hashes = pd.util.hash_array(plain, categorize=False)
    return np.append(value_hashes, np.uint64(0))[codes]


def _plain_values(values: pd.Series) -> np.ndarray[Any, Any]:
    """Return values as floats, as microseconds of UTC, or as strings."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(values.cat.categories.dtype)
    if pd.api.types.is_datetime64_any_dtype(values.dtype):
        times = pd.DatetimeIndex(values)
        if times.tz is not None:
            times = times.tz_convert("UTC").tz_localize(None)
        return times.as_unit("us").asi8
    kind = pd.api.types.infer_dtype(values, skipna=True)
    if kind in ("integer", "floating", "mixed-integer-float", "decimal"):
        return _rounded(values.to_numpy(dtype=np.float64))
    texts = values.astype(str).str.strip().str.casefold()
    numbers = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64)
    is_number = np.isfinite(numbers)
    plain = texts.to_numpy(dtype=object)
    plain[is_number] = _rounded(numbers[is_number]).astype(str)
    return plain


def _rounded(numbers: np.ndarray) -> np.ndarray:
    """Return numbers with fractions in the precision of float32, and others as they are."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = numbers.astype(np.float32).astype(np.float64)
        is_integer = numbers == np.floor(numbers)
    return np.where(is_integer, numbers, single) + 0.0
