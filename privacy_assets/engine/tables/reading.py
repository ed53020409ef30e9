"""Reading tables from Parquet and CSV files and globs, through pyarrow."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from privacy_assets.engine.tables.schema import check_frame
from privacy_assets.errors import InputError
from privacy_assets.objects import Location, ObjectPath, location

_MISSING = ["", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null"]
SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv"}


def table_files(path: str | Path) -> list[Location]:
    """Files that ``path`` names: itself, or the sorted matches of a glob, or the table files of a folder.

    ``path`` may be a URL (``s3://bucket/patients/*.parquet``) of any file system that fsspec has a library for.
    """
    place = location(path)
    try:
        found = sorted(_objects(place) if isinstance(place, ObjectPath) else _on_disk(str(place)))
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(place), fix="check path and rights") from None
    if not found:
        raise InputError("no such file", where=str(place), fix="check the path")
    return found


def _objects(place: ObjectPath) -> list[Location]:
    if glob.has_magic(str(place)):
        return [match for match in place.matches() if match.is_file()]
    return [place] if place.is_file() else [match for suffix in SUFFIXES for match in place.glob(f"*{suffix}")]


def _on_disk(text: str) -> list[Location]:
    if Path(text).is_dir():
        return [file for suffix in SUFFIXES for file in Path(text).glob(f"*{suffix}")]
    if glob.has_magic(text) and not Path(text).exists():
        found = [Path(match) for match in glob.glob(text)]
    else:
        found = [Path(text)]
    return list(found) if all(file.is_file() for file in found) else []


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a Parquet or CSV file, or several with the same columns, as one frame with a fresh index.

    CSV: header line, UTF-8, empty fields, NA, NaN and null are missing, types inferred per file. Parquet: an index that
    pandas stored under a name is a column. Raises InputError naming the file.
    """
    frames = [(file, _read_file(file)) for file in table_files(path)]
    first_file, first = frames[0]
    for file, frame in frames[1:]:
        check_same_columns(first.columns, str(first_file), frame.columns, str(file))
    joined = pd.concat([frame[first.columns] for _, frame in frames], ignore_index=True)
    check_frame(joined, where=str(path))
    return joined


def check_same_columns(first: Iterable[str], first_file: str, names: Iterable[str], file: str) -> None:
    """Raise InputError unless two files have the same columns, in any order."""
    differing = sorted(set(first) ^ set(names))
    if differing:
        fix = "give all files of a glob the same columns"
        raise InputError(f"the columns differ from {first_file}", where=file, column=differing[0], fix=fix)


def kind_of(file: Location) -> str:
    """Kind of a file, "parquet" or "csv"; InputError for another file, or an empty one."""
    kind = SUFFIXES.get(file.suffix.lower())
    size = file.version()[0] if isinstance(file, ObjectPath) else file.stat().st_size
    if size == 0:
        raise InputError("the file is empty", where=str(file), fix="give a file with a header and rows")
    if kind is None:
        raise InputError(f"unknown file type {file.suffix!r}", where=str(file), fix="give .parquet or .csv")
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
            table = pa.parquet.ParquetFile(source).read()
        else:
            options = pa.csv.ConvertOptions(strings_can_be_null=True, null_values=_MISSING)
            table = pa.csv.read_csv(source, convert_options=options)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise unreadable(kind, where, error) from None
    return frame_of(table, where, kind)


def frame_of(table: pa.Table, where: str, kind: str = "parquet") -> pd.DataFrame:
    """An Arrow table as a frame; an index that pandas stored under a name is a column. InputError naming ``where``."""
    repeated = [name for name in table.column_names if table.column_names.count(name) > 1]
    if repeated:
        raise InputError("the name stands twice", where=where, column=repeated[0], fix="rename one of the columns")
    try:
        frame: pd.DataFrame = table.to_pandas(date_as_object=False)
    except (pa.ArrowException, ValueError) as error:
        raise unreadable(kind, where, error) from None
    stored = [name for name in frame.index.names if name is not None]
    return frame.reset_index(level=stored) if stored else frame
