"""Reading of tables from Parquet and CSV files and globs, by pyarrow."""

from __future__ import annotations

import csv
import datetime as dt
import errno
import gzip
import io
import itertools
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from privacy_assets.errors import InputError, environment_problem, is_transient, safe_repr
from privacy_assets.infra.objects import Location, location
from privacy_assets.infra.storage import local_path, storage_of
from privacy_assets.tables.file_agreement import TableFile, check_agreement
from privacy_assets.tables.files import (
    CsvFormat,
    check_no_instruction,
    csv_fault,
    encoding_of,
    find_files,
    separator_fault,
)
from privacy_assets.tables.folders import SUFFIXES, folder_values, suffix_of
from privacy_assets.tables.meaning import Meaning
from privacy_assets.tables.names import as_named, without
from privacy_assets.tables.schema import check_columns, check_same_columns
from privacy_assets.tables.text import MARKERS, recognize_text
from privacy_assets.tables.written_numbers import parse_numbers

_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)
_DAMAGED_PARQUET = (pa.ArrowException, OSError)  # its parser has no error of its own for them
_RESOURCES = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
UNREADABLE = (pa.ArrowException, OSError, UnicodeError, csv.Error, MemoryError, *_DAMAGED)
_Frame = TypeVar("_Frame", pd.DataFrame, pd.Series)
_BLOCK = 1 << 24  # bytes parsed at once: the longest row of a CSV file
CSV = CsvFormat()
SAME_COLUMNS = "give all files of a glob the same columns"
_NO_HEADER = "give the file a first line with the names of the columns"
_LONG = 19  # digits
_FIRST_CELLS = 10_000  # from which the meaning of a column is inferred
# minimum number of names to be recognized as a sequence; two numbers always form one
_FEWEST_NAMES = 3


def read_table(path: str | Location, form: CsvFormat = CSV) -> pd.DataFrame:
    """Read a Parquet or CSV file, or several with the same columns, as one frame with a new index.

    CSV files need a header line. Empty fields are missing; other fields are strings, whose type
    :mod:`.inference` infers. In Parquet files, a named index stored by pandas becomes a column, and
    so do the Hive folders of a table (``sex=F/1.parquet``). Column names are normalized to Unicode
    NFC.

    Args:
        path: Path or URL of a file, folder or glob.
        form: How the files are written.

    Raises:
        InputError: If a file cannot be read, or the files disagree. The message names the file.
    """
    table_path = location(path)
    root, files = find_files(table_path)
    return read_files(table_path, root, files, form)


def read_files(
    path: Location, root: Location, files: Sequence[Location], form: CsvFormat
) -> pd.DataFrame:
    """Read the files of :func:`.find_files`, see :func:`read_table`.

    Args:
        path: Path of the table, for messages.
        root: Folder below which Hive folders are columns.
        files: Files of the table.
        form: How the files are written.
    """
    frames = []
    table_files = []
    for file in files:
        frame, schema = _read_file(file, form)
        types = dict(zip(as_named(schema.names), schema.types, strict=True))
        values = folder_values(root, file)
        _check_folder_values(frame, values, str(file))
        compared_values = _without(values, form.drop)
        table_files.append(
            TableFile(str(file), compared_values, len(frame), types, frame.__getitem__)
        )
        frames.append(frame.assign(**values))
    columns = frames[0].columns
    for file, frame in zip(files, frames, strict=True):
        check_same_columns(columns, str(files[0]), frame.columns, str(file), SAME_COLUMNS)
    not_compared = {*folder_values(root, files[0]), *form.drop}
    names = without(columns, not_compared)
    check_agreement(table_files, names, snapshots=form.snapshots)
    rows = joined([frame[columns] for frame in frames], str(path))
    check_columns(rows.columns, len(rows), where=str(path))
    return rows


def _without(values: Mapping[str, str | None], names: Collection[str]) -> dict[str, str | None]:
    """Return the values of Hive folders without those of some columns."""
    remaining = dict(values)
    for name in names:
        remaining.pop(name, None)
    return remaining


def _check_folder_values(frame: pd.DataFrame, values: Mapping[str, str | None], where: str) -> None:
    """Raise InputError if a column has another value than the Hive folder of its name."""
    for name, value in values.items():
        if name not in frame:
            continue
        cells = frame[name].dropna().astype(str)
        n_expected = len(frame)
        if value is None:
            n_expected = 0
        if len(cells) != n_expected or (cells != value).any():
            problem = "the file has another value than its folder"
            fix = "rename the folder or the column"
            raise InputError(problem, where=where, column=name, fix=fix)


def joined(parts: Sequence[_Frame], where: str) -> _Frame:
    """Return the rows of several files.

    Args:
        parts: A frame or a column of each file.
        where: Name of the table in messages.

    Raises:
        InputError: If a date of one file does not fit the unit of another.
    """
    try:
        return pd.concat(parts, ignore_index=True)
    except pd.errors.OutOfBoundsDatetime:
        pass  # raised below, without the error as its context, whose message has the date
    fix = (
        "write times with the same unit in all files, or replace dates outside of the years 1678"
        " to 2261"
    )
    raise InputError(
        "files have times of several units, and a date does not fit the finest",
        where=where,
        fix=fix,
    )


def file_format_of(file: Location) -> str:
    """Return the format of a file, "parquet" or "csv".

    Raises:
        InputError: The file is empty, or has another suffix.
    """
    kind = SUFFIXES.get(suffix_of(file))
    if storage_of(file).size() == 0:
        raise InputError(
            "the file is empty", where=str(file), fix="use a file with a header and rows"
        )
    if kind is None:
        fix = f"use one of {', '.join(SUFFIXES)}"
        raise InputError(f"unknown file type {safe_repr(file.suffix)}", where=str(file), fix=fix)
    return kind


def unreadable(kind: str, where: str, error: Exception) -> InputError:
    """Return the error for a parser failure, without the parser's message, which can quote cells.

    It names the system error, or the resource that the process lacked: memory, threads, open files
    or space.

    Args:
        kind: Format of the file, "parquet" or "csv".
        where: Name of the file in messages.
        error: Error of the parser.
    """
    if isinstance(error, OSError) and error.errno is not None and error.errno not in _RESOURCES:
        fix = "check the path, its permissions, and the disk or network"
        problem = f"cannot be read ({os.strerror(error.errno)})"
        return InputError(problem, where=where, fix=fix, transient=is_transient(error))
    lacking = environment_problem(error)
    if lacking is not None:
        cause, fix = lacking
        cause = cause or os.strerror(getattr(error, "errno", 0))
        is_temporary = isinstance(error, OSError)
        return InputError(f"cannot be read ({cause})", where=where, fix=fix, transient=is_temporary)
    return InputError(f"cannot be read as {kind} ({type(error).__name__})", where=where)


def unread_file(kind: str, where: str, error: Exception) -> InputError:
    """Return the error for a file that cannot be parsed: as :func:`unreadable`, or that the file is
    damaged.

    Args:
        kind: Format of the file, "parquet" or "csv".
        where: Name of the file in messages.
        error: Error of the parser.
    """
    is_damaged = isinstance(error, _DAMAGED)
    if kind == "parquet" and isinstance(error, _DAMAGED_PARQUET):
        is_damaged = True
    has_errno = getattr(error, "errno", None) is not None
    if not is_damaged or has_errno or environment_problem(error) is not None:
        return unreadable(kind, where, error)
    problem = f"cannot be read as {kind}, because the file is cut off or damaged"
    return InputError(problem, where=where, fix="copy or write the file again")


def _read_file(file: Location, form: CsvFormat) -> tuple[pd.DataFrame, pa.Schema]:
    kind = file_format_of(file)
    if suffix_of(file).startswith(".tsv") and not form.sep:
        form = replace(form, sep="\t")
    local = local_path(file)
    try:
        stream: Any = file.open("rb")
        if suffix_of(file).endswith(".gz"):
            stream = gzip.GzipFile(fileobj=stream)
        elif local is not None and kind == "parquet":
            return _parsed(local, kind, str(file), form)
    except OSError as error:
        raise unreadable(kind, str(file), error) from None
    with stream:
        return _parsed(stream, kind, str(file), form)


def parse_table(
    source: Path | BinaryIO, kind: str, *, where: str, form: CsvFormat = CSV
) -> pd.DataFrame:
    """Parse a file.

    Args:
        source: Path or stream.
        kind: Format of the file, "parquet" or "csv".
        where: Name of the table in messages.
        form: Separator and encoding of a CSV file.

    Raises:
        InputError: If it cannot be parsed.
    """
    return _parsed(source, kind, where, form)[0]


def _parsed(
    source: Path | BinaryIO, kind: str, where: str, form: CsvFormat
) -> tuple[pd.DataFrame, pa.Schema]:
    """Return the rows of :func:`parse_table`, and the schema of the file."""
    sep = form.sep or ","
    encoding = form.encoding or "utf-8-sig"
    try:
        if kind == "parquet":
            table = pa.parquet.ParquetFile(source).read()
            return renamed(frame_of(table, where, kind), where), table.schema
        if not isinstance(source, Path) and not form.encoding:
            encoding = encoding_of(source.read(4))
            source.seek(0)
        table = _read_csv(source, sep, encoding, where)
    except UNREADABLE as error:
        fault = None
        if environment_problem(error) is None:
            fault = other_kind(source, kind, where)
            if fault is None and kind == "csv" and not isinstance(error, _DAMAGED):
                fault = _second_look(source, where, sep, encoding)
        if fault is None:
            fault = unread_file(kind, where, error)
        fault.raise_without_context()
    _check_header(table, where, sep)
    return renamed(frame_of(table, where, kind), where), table.schema


def other_kind(source: Path | BinaryIO, kind: str, where: str) -> InputError | None:
    """Return an error if the content of a file does not match its suffix, else None.

    Args:
        source: Path or stream.
        kind: Format by the name, "parquet" or "csv".
        where: Name of the file in messages.
    """
    try:
        with _opened(source) as stream:
            stream.seek(0)
            is_parquet = stream.read(4) == b"PAR1"
    except UNREADABLE:
        return None
    if is_parquet == (kind == "parquet"):
        return None
    problem = "it is not a Parquet file"
    if is_parquet:
        problem = "it is a Parquet file with the name of a CSV file"
    fix = "give the file the suffix of its content (.parquet or .csv)"
    return InputError(problem, where=where, fix=fix)


def _opened(source: Path | BinaryIO) -> AbstractContextManager[BinaryIO]:
    """Open a path. A stream is left open after the ``with`` block, for its owner."""
    if isinstance(source, Path):
        return source.open("rb")
    return nullcontext(source)


def _read_csv(source: Path | BinaryIO, sep: str, encoding: str, where: str) -> pa.Table:
    """Read a CSV file as text, so that no cell is changed: types are decided for all tables of a
    release together.
    """
    if isinstance(source, Path):
        with source.open("rb") as stream:
            return _read_csv(stream, sep, encoding, where)
    # The types of pyarrow need the number of columns. A reader of pyarrow would still read ahead in
    # a thread.
    header = _first_line(source, sep, encoding)
    check_no_instruction(header, where, sep)
    positions = list(map(str, range(len(header))))
    arrow_encoding = "utf8" if encoding == "utf-8-sig" else encoding
    blocks = pa.csv.ReadOptions(block_size=_BLOCK, encoding=arrow_encoding, column_names=positions)
    parsing = pa.csv.ParseOptions(newlines_in_values=True, delimiter=sep)
    types = dict.fromkeys(positions, pa.large_string())
    texts = pa.csv.ConvertOptions(
        column_types=types, strings_can_be_null=True, null_values=[""], check_utf8=True
    )
    table = pa.csv.read_csv(
        source, read_options=blocks, parse_options=parsing, convert_options=texts
    )
    names = [column[0].as_py() or "" for column in table.columns]
    return table.slice(1).rename_columns(names)


def _first_line(source: BinaryIO, sep: str, encoding: str) -> list[str]:
    """Return the fields in the first line of a CSV file that is not empty."""
    text = io.TextIOWrapper(source, encoding=encoding, newline="")
    try:
        header = next(filter(None, csv.reader(text, delimiter=sep)), [])
    finally:
        text.detach()  # keep the stream open for its owner
    source.seek(0)
    return header


def _second_look(source: Path | BinaryIO, where: str, sep: str, encoding: str) -> InputError | None:
    """Return what is wrong with a CSV file that pyarrow cannot parse, or None if it is unknown."""
    try:
        with _opened(source) as stream:
            return csv_fault(stream, where, sep, encoding)
    except UNREADABLE:
        return None


def _check_header(table: pa.Table, where: str, sep: str) -> None:
    """Check the first line of a CSV file.

    The first line is a row if its fields are numbers, dates, booleans and strings as in the columns
    below, and no field is above a column of another type. Numbers that count up (years, positions)
    can be names.

    Args:
        table: The other lines as text, with the first line as names of the columns.
        where: Name of the table in messages, which do not contain names of columns.
        sep: Separator.

    Raises:
        InputError: If the first line is a row, has duplicate names, or uses another separator.
    """
    names = table.column_names
    fault = separator_fault(names, where, sep)
    if fault is not None:
        raise fault
    _check_no_repeated_name(names, where)
    votes = list(map(_vote, names, table.columns))
    n_fitting = votes.count("value") + votes.count("text")
    if "name" in votes or n_fitting == 0 or _counts_up(names):
        return
    if "value" in votes or (n_fitting >= 2 and 2 * n_fitting > len(votes)):
        problem = f"line 1 looks like a row: {n_fitting} of its fields fit into the columns"
        raise InputError(problem, where=where, fix=f"{_NO_HEADER}, or rename these")


def _check_no_repeated_name(names: Sequence[str], where: str) -> None:
    first_position = dict[str, int]()
    for position, name in enumerate(names):
        first = first_position.setdefault(name, position)
        if first != position:
            problem = f"line 1 gives columns {first} and {position} the same name"
            fix = f"rename one of them, or, if line 1 is a row, {_NO_HEADER}"
            raise InputError(problem, where=where, fix=fix)


def _vote(name: str, column: pa.ChunkedArray) -> str:
    """Classify a name above its column: a "value" or "text" of it, a "name", or "" if
    undetermined.
    """
    meaning = _meaning_of_start(column)
    if name in ("", *MARKERS) or meaning is None:
        return ""
    if meaning.kind == "categorical":
        occurs = pc.any(pc.equal(column, name)).as_py()
        return "text" if occurs else ""
    if meaning.kind == "datetime":
        is_value = _is_time(name)
    elif meaning.kind == "boolean":
        is_value = name.lower() in ("true", "false")
    else:
        text = pa.array([name], pa.large_string())
        is_value = bool(parse_numbers(text, meaning.format or "").notna().all())
    return "value" if is_value else "name"


def _meaning_of_start(column: pa.ChunkedArray) -> Meaning | None:
    """Return the likely meaning of the first cells of a column, or None if all are missing."""
    start = column.slice(0, _FIRST_CELLS).combine_chunks()
    counted = pc.value_counts(start.drop_null())
    texts = counted.field("values").cast(pa.large_string())
    n_cells = counted.field("counts").to_numpy(zero_copy_only=False)
    text_form = recognize_text([(texts, n_cells)])
    if len(texts) == 0:
        return None
    if text_form.choices:
        return text_form.choices[0]
    return Meaning(text_form.kind, text_form.format)


def _is_time(text: str) -> bool:
    for read in (dt.datetime.fromisoformat, dt.time.fromisoformat):
        try:
            read(text)
        except ValueError:
            continue
        return True
    return False


def _counts_up(names: Sequence[str]) -> bool:
    """Return True if the names that are not empty are numbers with equal positive steps."""
    numbers = []
    for name in filter(None, names):
        if not name.isascii() or not name.isdecimal() or len(name) >= _LONG:
            return False
        numbers.append(int(name))
    if len(numbers) < _FEWEST_NAMES:
        return False
    step = numbers[1] - numbers[0]
    for previous, number in itertools.pairwise(numbers):
        if number - previous != step:
            return False
    return step > 0


_EXACT = {pa.int64(): pd.Int64Dtype(), pa.uint64(): pd.UInt64Dtype(), pa.int32(): pd.Int32Dtype(),
          pa.uint32(): pd.UInt32Dtype(), pa.int16(): pd.Int16Dtype(), pa.uint16(): pd.UInt16Dtype(),
          pa.int8(): pd.Int8Dtype(), pa.uint8(): pd.UInt8Dtype()}  # fmt: skip


def frame_of(table: pa.Table, where: str, kind: str = "parquet") -> pd.DataFrame:
    """Convert an Arrow table to a frame. A named index stored by pandas becomes a column.

    Args:
        table: Arrow table.
        where: Name of the table in messages.
        kind: Format of its file, "parquet" or "csv".

    Raises:
        InputError: If two columns have one name, or a column cannot be converted.
    """
    for position, name in enumerate(table.column_names):
        if name in table.column_names[position + 1 :]:
            problem = f"the name of column {position} occurs twice"
            raise InputError(problem, where=where, fix="rename one of the columns")
    try:
        frame: pd.DataFrame = table.to_pandas(date_as_object=False)
        for name, column in zip(table.column_names, table.columns, strict=True):
            if pa.types.is_integer(column.type) and column.null_count and name in frame:
                # pandas would read them as floats
                frame[name] = column.to_pandas(types_mapper=_EXACT.get).array
    except (*UNREADABLE, ValueError, OverflowError) as error:
        unreadable(kind, where, error).raise_without_context()
    stored = without(frame.index.names, [None])
    check_index(stored, list(frame.columns), where)
    if stored:
        frame = frame.reset_index(level=stored)
    return plain_types(frame)


def check_index(stored: Sequence[Any], columns: Sequence[Any], where: str) -> None:
    """Raise InputError if an index that pandas stored in a Parquet file has the name of a column.

    Args:
        stored: Names of the indexes.
        columns: Names of the columns.
        where: Name of the table in messages.
    """
    for position, name in enumerate(stored):
        if name in stored[:position]:
            fix = "rename one of them, or write the file without its index (index=False)"
            raise InputError("two indexes have one name", where=where, column=name, fix=fix)
    for name in stored:
        if name in columns:
            problem = "the index has the name of a column"
            fix = "rename the index, or write the file without it (index=False)"
            raise InputError(problem, where=where, column=name, fix=fix)


def plain_types(frame: pd.DataFrame) -> pd.DataFrame:
    """Convert Arrow columns, and categories of numbers or times, to the dtype of their values.

    Args:
        frame: Frame with any index, which is kept.
    """
    columns = []
    has_changed = False
    for position, dtype in enumerate(frame.dtypes):
        column = frame.iloc[:, position]
        if isinstance(dtype, pd.ArrowDtype):
            plain = frame_of(pa.table({"plain": pa.array(column)}), "table")["plain"]
        elif _has_other_categories(dtype):
            plain = _category_values(column)
        else:
            columns.append(column)
            continue
        columns.append(plain.set_axis(frame.index))
        has_changed = True
    if not has_changed:
        return frame
    return pd.concat(columns, axis=1).set_axis(frame.columns, axis=1)


def _has_other_categories(dtype: Any) -> bool:
    """Return True for categories that are not strings."""
    if not isinstance(dtype, pd.CategoricalDtype):
        return False
    return not pd.api.types.is_string_dtype(dtype.categories)


def _category_values(column: pd.Series) -> pd.Series:
    """Return the value of each cell of a column of categories."""
    codes = column.cat.codes.to_numpy()
    values = pd.Series(column.cat.categories)
    if (codes < 0).any() and pd.api.types.is_integer_dtype(values):
        # pandas would read integers next to missing cells as floats
        values = values.convert_dtypes()
    return values.reindex(codes)


def renamed(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """Normalize the column names of a table to Unicode form NFC.

    Args:
        frame: Table.
        where: Name of the table in messages.

    Raises:
        InputError: If two names become equal.
    """
    names = list(frame.columns)
    for position, name in enumerate(names):
        if isinstance(name, str):
            names[position] = as_named(name)
    if names == list(frame.columns):
        return frame
    for position, name in enumerate(names):
        if name in names[:position]:
            problem = (
                f"the names of columns {names.index(name)} and {position} are equal in Unicode"
                " form NFC"
            )
            raise InputError(problem, where=where, fix="rename one of the columns")
    return frame.set_axis(names, axis=1)
