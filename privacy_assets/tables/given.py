"""Tables as they are given: files, folders and globs, the dataframes of any library that narwhals knows, or Arrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from privacy_assets.errors import InputError
from privacy_assets.storage.objects import ObjectPath
from privacy_assets.tables.reading import frame_of
from privacy_assets.tables.stored import StoredTable, open_table

PATHS = (str, Path, ObjectPath)
_STREAM = "__arrow_c_stream__"


def load(table: Any, where: str = "table") -> pd.DataFrame | StoredTable:
    """A dataframe of any library as one of pandas, or the table of a file, folder or glob; InputError for else.

    See :func:`given_frame` and :func:`~.stored.open_table`.
    """
    return open_table(table) if isinstance(table, PATHS) else given_frame(table, where=where)


def given_frame(table: object, *, where: str) -> pd.DataFrame:
    """``table`` as a pandas frame: itself, or what it hands over through Arrow; a lazy one is computed.

    The columns are what the same table in a Parquet file would give. InputError naming ``where`` for anything that is
    no dataframe, or that cannot be read; what its library says of that is not told, because it can quote cells.
    """
    if isinstance(table, pd.DataFrame):
        return table
    fix = "give a dataframe (pandas, polars, DuckDB, Arrow ...) or the path of a .parquet or .csv file"
    try:
        arrow = _arrow(table)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 (any library; a panic of one written in Rust is no Exception)
        problem = f"the {type(table).__name__} cannot be read ({type(error).__name__})"
        InputError(problem, where=where, fix=fix).raise_alone()
    if arrow is None:
        raise InputError(f"it is a {type(table).__name__}, not a table", where=where, fix=fix)
    return frame_of(arrow, where, "a table")


def _arrow(table: Any) -> pa.Table | None:
    import narwhals.stable.v2 as nw  # only where a table is not of pandas

    known = nw.from_native(nw.to_native(table, pass_through=True), pass_through=True)
    if isinstance(known, nw.LazyFrame):
        known = known.collect("pyarrow")
    if isinstance(known, nw.DataFrame):
        return known.to_arrow()
    return pa.table(table) if hasattr(table, _STREAM) else None
