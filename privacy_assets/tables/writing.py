"""Tables as the bytes of Parquet and CSV files; the same table gives the same bytes."""

from __future__ import annotations

import io

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from privacy_assets.errors import InputError
from privacy_assets.tables.reading import parse_table
from privacy_assets.tables.table import Table


def parquet_bytes(frame: pd.DataFrame) -> memoryview:
    """Bytes of a Parquet file of ``frame``, without its index."""
    table = pa.Table.from_pandas(frame.reset_index(drop=True), preserve_index=False)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", version="2.6")
    return buffer.getbuffer()


def table_bytes(table: Table, kind: str, *, where: str) -> memoryview | bytes:
    """Bytes of a "parquet" or "csv" file of a table, in the columns' original dtypes.

    A CSV file holds the very values that those dtypes hold: a short float with all its digits, a whole number without
    a decimal point. InputError names ``where`` and the column when a value does not fit its dtype, and when the CSV
    file would be read back as another table (a text "007" or "NA").
    """
    original = table.restored()
    if kind == "parquet":
        return parquet_bytes(original)
    values = Table.of(original, table.schema, where=where)
    zoned = {name: original[name] for name in table.schema.of_kind("datetime")}
    data = values.frame().assign(**zoned).to_csv(index=False, lineterminator="\n").encode()
    _check_same(data, values, where)
    return data


def _check_same(data: bytes, table: Table, where: str) -> None:
    fix = "write Parquet, or declare another kind of the column"
    try:
        again = Table.of(parse_table(io.BytesIO(data), "csv", where=where), table.schema, where=where)
    except InputError as error:
        lost = "as CSV the table could not be read back"
        raise InputError(lost, where=where, column=error.column, row=error.row, fix=fix) from None
    for name in table.schema.names:
        if not table[name].equals(again[name]):
            problem = "as CSV the column would be read back with other values"
            raise InputError(problem, where=where, column=name, fix=fix)
