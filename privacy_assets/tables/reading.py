"""Reading of tables from Parquet and CSV files and globs, by pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from privacy_assets.errors import InputError, is_transient, safe_repr
from privacy_assets.infra.objects import Location, ObjectPath, location
from privacy_assets.tables.files import SUFFIXES, check_header, csv_fault, table_files
from privacy_assets.tables.names import renamed
from privacy_assets.tables.schema import check_frame, check_same_columns

_BLOCK = 1 << 24  # bytes parsed at once: the longest row of a CSV file
SAME_COLUMNS = "give all files of a glob the same columns"


def read_table(path: str | Location) -> pd.DataFrame:
    """Read a Parquet or CSV file, or several with the same columns, as one frame with a new index.

    CSV: header line, UTF-8; empty fields are missing, and all others are text, which :mod:`.contract` reads. Parquet: a
    named index stored by pandas becomes a column. Names of columns are converted to Unicode form NFC. Raises InputError
    naming the file.
    """
    place = location(path)
    frames = [(file, _read_file(file)) for file in table_files(place)]
    first_file, first = frames[0]
    for file, frame in frames[1:]:
        check_same_columns(first.columns, str(first_file), frame.columns, str(file), SAME_COLUMNS)
    joined = pd.concat([frame[first.columns] for _, frame in frames], ignore_index=True)
    check_frame(joined, where=str(place))
    return joined


def kind_of(file: Location) -> str:
    """Return the kind of a file, "parquet" or "csv". Raises InputError for other or empty files."""
    kind = SUFFIXES.get(file.suffix.lower())
    size = file.version()[0] if isinstance(file, ObjectPath) else file.stat().st_size
    if size == 0:
        raise InputError("the file is empty", where=str(file), fix="give a file with a header and rows")
    if kind is None:
        raise InputError(f"unknown file type {safe_repr(file.suffix)}", where=str(file), fix="give .parquet or .csv")
    return kind


def unreadable(kind: str, where: str, error: Exception) -> InputError:
    """Return the error for a parser failure, without the parser's message, which can quote cells."""
    return InputError(f"cannot be read as {kind} ({type(error).__name__})", where=where)


def _read_file(file: Location) -> pd.DataFrame:
    kind = kind_of(file)
    if not isinstance(file, ObjectPath):
        return parse_table(file, kind, where=str(file))
    try:
        stream = file.open("rb")
    except OSError as error:
        unread = unreadable(kind, str(file), error)
        unread.transient = is_transient(error)
        raise unread from None
    with stream:
        return parse_table(stream, kind, where=str(file))


def parse_table(source: Path | BinaryIO, kind: str, *, where: str) -> pd.DataFrame:
    """Parse a file or stream of ``kind`` "parquet" or "csv". Raises InputError naming ``where``."""
    try:
        if kind == "parquet":
            return renamed(frame_of(pa.parquet.ParquetFile(source).read(), where, kind), where)
        table = _read_csv(source)
        # Invalid UTF-8 is detected late: its cells become bytes, and names are decoded on access.
        clean = bool(table.column_names) and not any(map(pa.types.is_binary, table.schema.types))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        fault = None if kind == "parquet" else _second_look(source, where)
        (fault or unreadable(kind, where, error)).raise_without_context()
    fault = None if clean else _second_look(source, where)
    if fault is not None:
        raise fault
    check_header(table, where)
    return renamed(frame_of(table, where, kind), where)


def _read_csv(source: Path | BinaryIO) -> pa.Table:
    """Read a CSV file as text, so that no cell is changed: types are decided for all tables of a release together."""
    blocks = pa.csv.ReadOptions(block_size=_BLOCK)
    parsing = pa.csv.ParseOptions(newlines_in_values=True)
    with pa.csv.open_csv(source, read_options=blocks, parse_options=parsing) as stream:
        types = dict.fromkeys(stream.schema.names, pa.large_string())
    if not isinstance(source, Path):
        source.seek(0)
    texts = pa.csv.ConvertOptions(column_types=types, strings_can_be_null=True, null_values=[""], check_utf8=True)
    return pa.csv.read_csv(source, read_options=blocks, parse_options=parsing, convert_options=texts)


def _second_look(source: Path | BinaryIO, where: str) -> InputError | None:
    try:
        if not isinstance(source, Path):
            return csv_fault(source, where)
        with source.open("rb") as stream:
            return csv_fault(stream, where)
    except OSError:
        return None


def frame_of(table: pa.Table, where: str, kind: str = "parquet") -> pd.DataFrame:
    """Convert an Arrow table to a frame; a named index stored by pandas becomes a column. Raises InputError."""
    repeated = [name for name in table.column_names if table.column_names.count(name) > 1]
    if repeated:
        problem = f"the name of column {table.column_names.index(repeated[0])} occurs twice"
        raise InputError(problem, where=where, fix="rename one of the columns")
    try:
        frame: pd.DataFrame = table.to_pandas(date_as_object=False)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        unreadable(kind, where, error).raise_without_context()
    stored = [name for name in frame.index.names if name is not None]
    return frame.reset_index(level=stored) if stored else frame
