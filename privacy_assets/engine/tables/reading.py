"""Reading tables from Parquet and CSV files and globs, through pyarrow."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from privacy_assets.engine.tables.schema import check_frame
from privacy_assets.errors import InputError

_MISSING = ["", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null"]
SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv"}


def table_files(path: str | Path) -> list[Path]:
    """Files that ``path`` names: itself, or the sorted matches of a glob, or the table files of a folder."""
    text = str(path)
    if Path(text).is_dir():
        found = [file for suffix in SUFFIXES for file in Path(text).glob(f"*{suffix}")]
    elif glob.has_magic(text) and not Path(text).exists():
        found = [Path(match) for match in glob.glob(text)]
    else:
        found = [Path(text)]
    files = sorted(found)
    if not files or not all(file.is_file() for file in files):
        raise InputError("no such file", where=text, fix="check the path")
    return files


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a Parquet or CSV file, or several with the same columns, as one frame with a fresh index.

    CSV: header line, UTF-8, empty fields, NA, NaN and null are missing, types inferred per file. Parquet: an index that
    pandas stored under a name is a column. Raises InputError naming the file.
    """
    frames = [(file, _read_file(file)) for file in table_files(path)]
    first_file, first = frames[0]
    for file, frame in frames[1:]:
        differing = sorted(set(first.columns) ^ set(frame.columns))
        if differing:
            fix = "give all files of a glob the same columns"
            raise InputError(f"the columns differ from {first_file}", where=str(file), column=differing[0], fix=fix)
    joined = pd.concat([frame[first.columns] for _, frame in frames], ignore_index=True)
    check_frame(joined, where=str(path))
    return joined


def _read_file(file: Path) -> pd.DataFrame:
    kind = SUFFIXES.get(file.suffix.lower())
    if file.stat().st_size == 0:
        raise InputError("the file is empty", where=str(file), fix="give a file with a header and rows")
    if kind is None:
        raise InputError(f"unknown file type {file.suffix!r}", where=str(file), fix="give .parquet or .csv")
    return parse_table(file, kind, where=str(file))


def parse_table(source: Path | BinaryIO, kind: str, *, where: str) -> pd.DataFrame:
    """Parse one file, or a stream of its bytes, of ``kind`` "parquet" or "csv"; InputError naming ``where``."""
    try:
        if kind == "parquet":
            table = pa.parquet.ParquetFile(source).read()
        else:
            options = pa.csv.ConvertOptions(strings_can_be_null=True, null_values=_MISSING)
            table = pa.csv.read_csv(source, convert_options=options)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        # The parser's own message can quote cells of the private table.
        raise InputError(f"cannot be read as {kind} ({type(error).__name__})", where=where) from None
    repeated = [name for name in table.column_names if table.column_names.count(name) > 1]
    if repeated:
        raise InputError("the name stands twice", where=where, column=repeated[0], fix="rename one of the columns")
    try:
        frame: pd.DataFrame = table.to_pandas(date_as_object=False)
    except (pa.ArrowException, ValueError) as error:
        raise InputError(f"cannot be read as {kind} ({type(error).__name__})", where=where) from None
    stored = [name for name in frame.index.names if name is not None]
    return frame.reset_index(level=stored) if stored else frame
