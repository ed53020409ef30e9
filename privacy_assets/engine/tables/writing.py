"""Tables as the bytes of Parquet and CSV files; the same table gives the same bytes."""

from __future__ import annotations

import io

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from privacy_assets.engine.tables.reading import parse_table
from privacy_assets.engine.tables.schema import TableSchema, conform, restore
from privacy_assets.errors import InputError


def parquet_bytes(frame: pd.DataFrame) -> memoryview:
    """Bytes of a Parquet file of ``frame``, without its index."""
    table = pa.Table.from_pandas(frame.reset_index(drop=True), preserve_index=False)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", version="2.6")
    return buffer.getbuffer()


def table_bytes(frame: pd.DataFrame, schema: TableSchema, kind: str, *, where: str) -> memoryview | bytes:
    """Bytes of a "parquet" or "csv" file of a canonical frame, in the columns' original dtypes.

    A CSV file holds the very values that those dtypes hold: a short float with all its digits, a whole number without
    a decimal point. InputError names ``where`` and the column when a value does not fit its dtype, and when the CSV
    file would be read back as another table (a text "007" or "NA").
    """
    original = restore(frame, schema)
    if kind == "parquet":
        return parquet_bytes(original)
    values = conform(original, schema, where=where)
    zoned = {name: original[name] for name in schema.of_kind("datetime")}
    data = values.assign(**zoned).to_csv(index=False, lineterminator="\n").encode()
    _check_same(data, values, schema, where)
    return data


def _check_same(data: bytes, frame: pd.DataFrame, schema: TableSchema, where: str) -> None:
    fix = "write Parquet, or declare another kind of the column"
    try:
        again = conform(parse_table(io.BytesIO(data), "csv", where=where), schema, where=where)
    except InputError as error:
        lost = "as CSV the table could not be read back"
        raise InputError(lost, where=where, column=error.column, row=error.row, fix=fix) from None
    for name in schema.names:
        if not again[name].equals(frame[name]):
            raise InputError(
                "as CSV the column would be read back with other values", where=where, column=name, fix=fix
            )
