"""Serialization of tables as Parquet and CSV. With the same library versions, equal tables give
equal bytes.
"""

from __future__ import annotations

import io

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from privacy_assets.errors import InputError
from privacy_assets.tables.reading import parse_table
from privacy_assets.tables.table import Table


def parquet_bytes(frame: pd.DataFrame) -> memoryview:
    """Return a Parquet file of ``frame`` without its index."""
    table = pa.Table.from_pandas(frame.reset_index(drop=True), preserve_index=False)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", version="2.6")
    return buffer.getbuffer()


def table_bytes(table: Table, kind: str, *, where: str) -> memoryview | bytes:
    """Serialize a table as "parquet" or "csv", in the original dtypes of its columns.

    A CSV file contains exactly the values that these dtypes hold: short floats with all digits,
    integers without a decimal point.

    Args:
        table: Table.
        kind: Format of the file, "parquet" or "csv".
        where: Name of the table in messages.

    Raises:
        InputError: If a value does not fit its dtype, or the CSV file would be read back with other
            values (such as the strings "007" or "NA"). The message names the column.
    """
    original = table.to_published_frame()
    if kind == "parquet":
        return parquet_bytes(original)
    values = Table.of(original, table.schema, where=where)
    times = {name: original[name] for name in table.schema.of_kind("datetime")}
    frame = values.frame().assign(**times)
    data = frame.to_csv(index=False, lineterminator="\n").encode()
    _check_same(data, values, where)
    return data


def _check_same(data: bytes, table: Table, where: str) -> None:
    """Raise InputError if a CSV file is not read back as the table."""
    fix = "write Parquet, or declare another kind of the column"
    try:
        frame = parse_table(io.BytesIO(data), "csv", where=where)
        again = Table.of(frame, table.schema, where=where, external=True)
    except InputError as error:
        problem = "as CSV the table could not be read back"
        raise InputError(
            problem, where=where, column=error.column, row=error.row, fix=fix
        ) from None
    for name in table.schema.names:
        if not table[name].equals(again[name]):
            problem = "as CSV the column would be read back with other values"
            raise InputError(problem, where=where, column=name, fix=fix)
