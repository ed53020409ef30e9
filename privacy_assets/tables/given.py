"""Tables as users give them: files, folders, globs, dataframes supported by narwhals, and Arrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from privacy_assets.errors import InputError
from privacy_assets.infra.objects import Location, ObjectPath, location
from privacy_assets.tables.files import CsvFormat, find_files
from privacy_assets.tables.folders import folder_values
from privacy_assets.tables.names import as_named
from privacy_assets.tables.reading import (
    CSV,
    file_format_of,
    frame_of,
    plain_types,
    read_files,
    renamed,
)
from privacy_assets.tables.schema import check_columns
from privacy_assets.tables.stored import StoredTable

PATHS = (str, Path, ObjectPath)
_STREAM = "__arrow_c_stream__"


def load(table: Any, where: str = "table", form: CsvFormat = CSV) -> pd.DataFrame | StoredTable:
    """Load a dataframe, or the table of a file, folder or glob.

    The columns of Parquet files are read when they are used. See :func:`given_frame` for
    dataframes, and :func:`~.reading.read_table` for files.

    Args:
        table: Dataframe or path.
        where: Name of the table in messages, if it is a dataframe.
        form: Options of CSV files.

    Raises:
        InputError: For other objects, and for files that cannot be read or disagree.
    """
    if isinstance(table, StoredTable):
        return table
    if isinstance(table, PATHS):
        return _open_files(table, form)
    return given_frame(table, where=where)


def _open_files(path: str | Location, form: CsvFormat) -> pd.DataFrame | StoredTable:
    """Open Parquet files as a :class:`StoredTable`, and read other files as a frame."""
    source = location(path)
    root, files = find_files(source)
    kinds = set(map(file_format_of, files))
    if kinds != {"parquet"} or any(folder_values(root, file) for file in files):
        return read_files(source, root, files, form)
    table = StoredTable(files)
    # its files know the columns by other names
    if as_named(list(table.columns)) != list(table.columns):
        return read_files(source, root, files, form)
    check_columns(table.columns, len(table), where=str(source))
    table.check_agreement(form)
    return table


def given_frame(table: object, *, where: str) -> pd.DataFrame:
    """Convert a dataframe to pandas, through Arrow unless it is a pandas frame; lazy frames are
    computed.

    The columns equal those read from a Parquet file of the table, with names in Unicode form NFC.

    Args:
        table: Dataframe of any library.
        where: Name of the table in messages.

    Raises:
        InputError: If the object is not a dataframe or cannot be read. Names ``where`` and omits
            the library's message, which may contain cell values.
    """
    if isinstance(table, pd.DataFrame):
        return renamed(plain_types(table), where)
    fix = (
        "pass a dataframe (pandas, polars, DuckDB, Arrow ...) or the path of a .parquet or"
        " .csv file"
    )
    try:
        arrow = _arrow(table)
    except (KeyboardInterrupt, SystemExit):
        raise
    # any library may raise; Rust panics do not derive from Exception
    except BaseException as error:  # noqa: BLE001
        problem = f"the {type(table).__name__} cannot be read ({type(error).__name__})"
        InputError(problem, where=where, fix=fix).raise_without_context()
    if arrow is None:
        raise InputError(
            f"it has type {type(table).__name__}, which is not a table", where=where, fix=fix
        )
    return renamed(frame_of(arrow, where, "a table"), where)


def _arrow(table: Any) -> pa.Table | None:
    import narwhals.stable.v2 as nw  # imported lazily, for other libraries than pandas

    frame = nw.from_native(nw.to_native(table, pass_through=True), pass_through=True)
    if isinstance(frame, nw.LazyFrame):
        frame = frame.collect("pyarrow")
    if isinstance(frame, nw.DataFrame):
        return frame.to_arrow()
    return pa.table(table) if hasattr(table, _STREAM) else None
