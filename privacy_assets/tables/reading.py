"""Reading tables from Parquet and CSV files and globs, through pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from privacy_assets.errors import InputError, shown
from privacy_assets.storage.objects import Location, ObjectPath, location
from privacy_assets.tables.csv_faults import MISSING, check_header, csv_fault
from privacy_assets.tables.files import SUFFIXES, table_files
from privacy_assets.tables.schema import check_frame, check_same_columns

SAME_COLUMNS = "give all files of a glob the same columns"


def read_table(path: str | Location) -> pd.DataFrame:
    """Read a Parquet or CSV file, or several with the same columns, as one frame with a fresh index.

    CSV: header line, UTF-8, empty fields, NA, NaN and null are missing, types inferred per file. Parquet: an index that
    pandas stored under a name is a column. Raises InputError naming the file.
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
    """Kind of a file, "parquet" or "csv"; InputError for another file, or an empty one."""
    kind = SUFFIXES.get(file.suffix.lower())
    size = file.version()[0] if isinstance(file, ObjectPath) else file.stat().st_size
    if size == 0:
        raise InputError("the file is empty", where=str(file), fix="give a file with a header and rows")
    if kind is None:
        raise InputError(f"unknown file type {shown(file.suffix)}", where=str(file), fix="give .parquet or .csv")
    return kind


def unreadable(kind: str, where: str, error: Exception) -> InputError:
    """What to raise for a parser's error: its own message can quote cells of the private table."""
    return InputError(f"cannot be read as {kind} ({type(error).__name__})", where=where)


def _read_file(file: Location) -> pd.DataFrame:
    kind = kind_of(file)
    if not isinstance(file, ObjectPath):
        return parse_table(file, kind, where=str(file))
    try:
        stream = file.open("rb")
    except OSError as error:
        raise unreadable(kind, str(file), error) from None
    with stream:
        return parse_table(stream, kind, where=str(file))


def parse_table(source: Path | BinaryIO, kind: str, *, where: str) -> pd.DataFrame:
    """Parse one file, or a stream of its bytes, of ``kind`` "parquet" or "csv"; InputError naming ``where``."""
    try:
        if kind == "parquet":
            return frame_of(pa.parquet.ParquetFile(source).read(), where, kind)
        options = pa.csv.ConvertOptions(strings_can_be_null=True, null_values=list(MISSING))
        table = pa.csv.read_csv(source, convert_options=options)
        # What is no UTF-8 is found late: cells of it become bytes, and a name is decoded when it is asked for.
        clean = bool(table.column_names) and not any(map(pa.types.is_binary, table.schema.types))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        fault = None if kind == "parquet" else _second_look(source, where)
        (fault or unreadable(kind, where, error)).raise_alone()
    fault = None if clean else _second_look(source, where)
    if fault is not None:
        raise fault
    check_header(table, where)
    return frame_of(table, where, kind)


def _second_look(source: Path | BinaryIO, where: str) -> InputError | None:
    try:
        if not isinstance(source, Path):
            return csv_fault(source, where)
        with source.open("rb") as stream:
            return csv_fault(stream, where)
    except OSError:
        return None


def frame_of(table: pa.Table, where: str, kind: str = "parquet") -> pd.DataFrame:
    """An Arrow table as a frame; an index that pandas stored under a name is a column. InputError naming ``where``."""
    repeated = [name for name in table.column_names if table.column_names.count(name) > 1]
    if repeated:
        problem = f"the name of column {table.column_names.index(repeated[0])} stands twice"
        raise InputError(problem, where=where, fix="rename one of the columns")
    try:
        frame: pd.DataFrame = table.to_pandas(date_as_object=False)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        unreadable(kind, where, error).raise_alone()
    stored = [name for name in frame.index.names if name is not None]
    return frame.reset_index(level=stored) if stored else frame
