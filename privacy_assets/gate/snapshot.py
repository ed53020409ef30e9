"""Snapshots: the one file of a synthetic table that is scored, judged and published."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.statements import Place, Statement
from privacy_assets.stats.estimates import plain
from privacy_assets.storage.files import put_atomic, read_regular
from privacy_assets.storage.objects import Location
from privacy_assets.tables.fingerprints import keyed_order

_WHOLE = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
_WRITER: Mapping[str, Any] = {  # what a writer would choose for itself, or write beside the values
    "compression": "zstd",
    "compression_level": 1,
    "version": "2.6",
    "data_page_version": "1.0",
    "row_group_size": 1 << 20,
    "store_schema": False,
}
_NULLABLE: Mapping[pa.DataType, Any] = {
    pa.bool_(): pd.BooleanDtype(),
    **{pa.type_for_alias(name.lower()): pd.api.types.pandas_dtype(name) for name in _WHOLE},
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A Parquet file known by the SHA-256 of its bytes, and where it comes from.

    ``train`` is the keyed fingerprint of the rows it was made from, ``content`` the keyed fingerprint of its own
    rows whatever their order and file format: by it a failed verdict is remembered. ``dtypes`` are those of pandas by
    column, which the file does not tell. ``filter`` says what left rows of it out, None for nothing: the settings of
    the "filters" by name, the keyed fingerprints by role of the real rows that they read, "inputs", how many rows were
    "drawn" and "dropped", "dropped_by" each, and statistics of what was drawn, "before" they went. ``generator`` is
    what made it, "name" and "settings", and what protects its training rows: "overfitting" and "privacy"; None for a
    table of the user's own.
    """

    place: Place
    path: Location
    sha256: str
    rows: int
    train: str
    content: str
    dtypes: Mapping[str, str]
    filter: Mapping[str, Any] | None = None
    generator: Mapping[str, Any] | None = None

    def statement(self) -> Statement:
        """What the step that made the table signs; the path is left out: the gate knows where its files lie."""
        how = {"filter": plain(self.filter), "generator": plain(self.generator)}
        body = {"rows": self.rows, "train": self.train, "content": self.content, "dtypes": dict(self.dtypes), **how}
        return Statement("snapshot", self.place, self.sha256, body)

    @classmethod
    def of(cls, statement: Statement, folder: Location) -> Snapshot:
        """Inverse of :meth:`statement`, for a file in ``folder``."""
        return cls(statement.place, folder / f"{statement.sha256}.parquet", statement.sha256, **statement.body)


def write_snapshot(frame: pd.DataFrame, folder: Location, key: bytes) -> tuple[Location, str]:
    """Write ``frame`` (published dtypes) to ``folder/<sha256>.parquet``, its rows ordered by ``key``.

    The same rows give the same file, whatever their order and whatever their frame says beside them: names and values
    are all that stands in it.
    """
    data = _bare_bytes(frame.take(keyed_order(frame, key)))
    digest = hashlib.sha256(data).hexdigest()
    return put_atomic(folder / f"{digest}.parquet", data), digest


def _bare_bytes(frame: pd.DataFrame) -> memoryview:
    """Bytes of a Parquet file without metadata, and of dictionaries only with the values that stand in rows."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    plain = {name: _decoded(column) for name, column in zip(frame.columns, table.columns, strict=True)}
    buffer = io.BytesIO()
    pq.write_table(pa.table(plain).combine_chunks(), buffer, **_WRITER)
    return buffer.getbuffer()


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def read_snapshot(snapshot: Snapshot) -> pd.DataFrame:
    """Read a snapshot back; PublicationRefused unless its file has the bytes that the hash names."""
    return read_hashed(snapshot.path, snapshot.sha256, snapshot.dtypes)


def read_hashed(path: Location, sha256: str, dtypes: Mapping[str, str] | None = None) -> pd.DataFrame:
    """The table in ``path``, parsed from the very bytes that were hashed; PublicationRefused when they differ.

    ``dtypes`` are those of its columns; one that is not named has the dtype, nullable of whole numbers and booleans,
    that its values have in the file.
    """
    try:
        data = read_regular(path)
    except OSError as error:
        raise PublicationRefused(f"{path.name} cannot be read ({error.strerror}); materialise it again.") from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise PublicationRefused(f"{path.name} changed after it was written; materialise it again.")
    frame: pd.DataFrame = pq.ParquetFile(io.BytesIO(data)).read().to_pandas(types_mapper=_NULLABLE.get)
    return pd.DataFrame({name: _in_dtype(frame[name], (dtypes or {}).get(name)) for name in frame.columns})


def _in_dtype(series: pd.Series, dtype: str | None) -> pd.Series:
    if dtype != "object":
        return series if dtype is None else series.astype(pd.api.types.pandas_dtype(dtype))
    return series.astype(object).where(series.notna(), None)
