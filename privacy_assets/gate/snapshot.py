"""Snapshots: the single file of a synthetic table that is measured, evaluated and published."""

from __future__ import annotations

import hashlib
import hmac
import io
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from privacy_assets.errors import Damaged, RecordKind, StoreUnavailable
from privacy_assets.gate.envelope import Payload, ReleaseTarget
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import read_hashed_bytes, storage_of
from privacy_assets.stats.estimates import to_jsonable
from privacy_assets.tables.column import values_at
from privacy_assets.tables.fingerprints import (
    coded_fingerprint,
    derive_key,
    distinct_bytes,
    keyed_fingerprint,
)
from privacy_assets.tables.table import Table

_INTEGERS = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
_WRITER: Mapping[str, Any] = {  # fixes options that writers choose themselves, and omits metadata
    "compression": "zstd",
    "compression_level": 1,
    "version": "2.6",
    "data_page_version": "1.0",
    "row_group_size": 1 << 20,
    "store_schema": False,
}
_COLUMNS_IN_BLOCK = 8  # number of columns that are hashed together
_LARGEST_RATIO = 1000  # uncompressed to compressed bytes; files of the gate have far lower ratios
_NULLABLE: Mapping[pa.DataType, Any] = {
    pa.bool_(): pd.BooleanDtype(),
    **{pa.type_for_alias(name.lower()): pd.api.types.pandas_dtype(name) for name in _INTEGERS},
}
# Texts whose spelling the fingerprint of the rows ignores.
_WORDS = {
    "": None,
    "nan": None,
    "None": None,
    "NaT": None,
    "<NA>": None,
    "-0.0": b"0",
    "-0": b"0",
    "True": b"1",
    "False": b"0",
}
_INTEGER_TEXT = re.compile(r"-?(0|[1-9]\d*)(\.0)?")
_FLOAT_TEXT = re.compile(r"-?\d+(\.\d+)?(e[+-]\d+)?")
_MOMENT_TEXT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Parquet file of a synthetic table, identified by its hash, with the origin of its rows.

    Attributes:
        target: Table and partition.
        path: Path of the file.
        sha256: SHA-256 of its bytes.
        n_rows: Number of rows.
        train_fingerprint: Keyed fingerprint of the training rows.
        content: Keyed fingerprint of the synthetic rows before rare values were replaced,
            independent of row order and file format. Failures are recorded under it.
        dtypes: pandas dtypes by column, which the file does not contain.
        filter: None if there are no filters. Otherwise: "filters" (settings by name), "inputs"
            (keyed fingerprints of the real tables, by role), "drawn" and "dropped" (numbers of
            rows), "dropped_by" (by filter) and "before" (results on the unfiltered rows).
        generator: "name" and "settings" of the generator, and the protections of its training rows:
            "overfitting" and "privacy". None for an external table.
        n_replaced: Number of categories that the threshold rule replaced, by column; see
            :mod:`privacy_assets.tables.threshold_rule`.
    """

    target: ReleaseTarget
    path: Location
    sha256: str
    n_rows: int
    train_fingerprint: str
    content: str
    dtypes: Mapping[str, str]
    filter: Mapping[str, Any] | None = None
    generator: Mapping[str, Any] | None = None
    n_replaced: Mapping[str, int] = field(default_factory=dict)

    def payload(self) -> Payload:
        """Return the payload to sign. It omits the path, which the gate derives itself."""
        body = {
            "n_rows": self.n_rows,
            "train_fingerprint": self.train_fingerprint,
            "content": self.content,
            "dtypes": dict(self.dtypes),
            "filter": to_jsonable(self.filter),
            "generator": to_jsonable(self.generator),
            "n_replaced": dict(self.n_replaced),
        }
        return Payload("snapshot", self.target, self.sha256, body)

    @classmethod
    def of(cls, payload: Payload, folder: Location) -> Snapshot:
        """Create the snapshot of a payload.

        Args:
            payload: Verified payload.
            folder: Folder of the file.
        """
        path = folder / f"{payload.sha256}.parquet"
        return cls(payload.target, path, payload.sha256, **payload.body)


class WrittenRows(NamedTuple):
    """Facts of a snapshot that follow from its rows, see :class:`Snapshot`.

    Attributes:
        path: Path of the file.
        sha256: SHA-256 of its bytes.
        n_rows: Number of rows.
        content: Keyed fingerprint of the rows before rare values were replaced.
        dtypes: pandas dtypes by column.
    """

    path: Location
    sha256: str
    n_rows: int
    content: str
    dtypes: dict[str, str]


def write_rows(
    table: Table, folder: Location, content_key: bytes, before: Table | None = None
) -> WrittenRows:
    """Write the file of a synthetic table, and compute the fingerprint by which its rows are known
    again.

    Args:
        table: Rows with the schema of the private table.
        folder: Folder of the file.
        content_key: Key of the fingerprint and of the row order.
        before: Rows before rare values were replaced. None: ``table``.
    """
    frame = table.to_published_frame()
    path, sha256 = write_snapshot(frame, folder, derive_key(content_key, "order of rows"))
    remembered_frame = frame if before is None else before.to_published_frame()
    content = keyed_fingerprint(lasting_fingerprint(remembered_frame), content_key)
    dtypes = {name: str(frame[name].dtype) for name in frame.columns}
    return WrittenRows(path, sha256, len(frame), content, dtypes)


def write_snapshot(frame: pd.DataFrame, folder: Location, key: bytes) -> tuple[Location, str]:
    """Write a table to ``folder/<sha256>.parquet``, in a row order derived from a key.

    The file contains only names and values, so the same rows give the same file, independent of row
    order and metadata.

    Args:
        frame: Table with published dtypes.
        folder: Folder of the file.
        key: Key of the row order.

    Returns:
        Path and SHA-256 of the file.
    """
    data = _bare_bytes(frame.take(_keyed_order(frame, key)))
    digest = hashlib.sha256(data).hexdigest()
    path = folder / f"{digest}.parquet"
    storage_of(path).put(data)
    return path, digest


def _keyed_order(frame: pd.DataFrame, key: bytes) -> np.ndarray:
    """Return an order of rows that is determined only by their content and a key.

    Rows are sorted by their HMAC-SHA256, equal rows by their occurrence number. Without the key the
    order can neither be predicted nor reveal information. The input order does not matter.

    Args:
        frame: Table of n rows.
        key: Secret key.

    Returns:
        Positions of the rows in this order, int64 (n,).
    """
    digests = [b""] * len(frame)
    names = list(frame.columns)
    for start in range(0, len(names), _COLUMNS_IN_BLOCK):
        block = names[start : start + _COLUMNS_IN_BLOCK]
        cells = [_cells(frame[name]) for name in block]
        rows = zip(digests, *cells, strict=True)
        digests = [hashlib.sha256(b"".join(row)).digest() for row in rows]
    n_before = Counter[bytes]()
    tags = []
    for digest in digests:
        occurrence = n_before[digest].to_bytes(8, "big")
        tags.append(hmac.digest(key, digest + occurrence, "sha256"))
        n_before[digest] += 1
    return np.array(sorted(range(len(tags)), key=tags.__getitem__), dtype=np.int64)


def _cells(series: pd.Series) -> list[bytes]:
    """Return length-prefixed bytes of each value; missing values are empty."""
    codes, uniques = pd.factorize(series)
    framed = []
    for value in [*distinct_bytes(uniques), b""]:  # -1, missing, selects the last
        framed.append(len(value).to_bytes(8, "big") + value)
    return values_at(framed, codes.tolist())


def _bare_bytes(frame: pd.DataFrame) -> memoryview:
    """Return the bytes of a Parquet file without metadata. Unused categories of dictionary columns
    are omitted.
    """
    table = pa.Table.from_pandas(frame, preserve_index=False)
    columns = {}
    for name, column in zip(frame.columns, table.columns, strict=True):
        columns[name] = _decoded(column)
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns).combine_chunks(), buffer, **_WRITER)
    return buffer.getbuffer()


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def lasting_fingerprint(frame: pd.DataFrame) -> str:
    """Return a fingerprint like :func:`~.tables.fingerprints.content_fingerprint` that ignores how
    values are stored.

    The numbers 1 and 1.0, True and the texts that a program writes for them are the same value, as
    are a time and its ISO text, or an empty text and a missing value. Rows therefore keep their
    fingerprint if a column changes its kind or dtype. Other spellings ("01", "1e0", "1.00") and
    integers that differ in one digit are different values.

    Args:
        frame: Table with columns of any dtype.
    """
    coded = {}
    for name in frame.columns:
        codes, values = pd.factorize(frame[name])
        coded[name] = codes, [_lasting_bytes(value) for value in values]
    return coded_fingerprint(coded, len(frame))


def _lasting_bytes(value: object) -> bytes | None:
    """Return bytes of a value, equal for a number and the text that a program writes for it: 1,
    1.0, "1" and "1.0".
    """
    text = str(value)
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER_TEXT.fullmatch(text):
        return text.removesuffix(".0").encode()
    if _FLOAT_TEXT.fullmatch(text) and repr(float(text)) == text:
        if float(text).is_integer():
            text = str(int(float(text)))
        return text.encode()
    return _moment(text).encode("utf-8", "surrogatepass")


def _moment(text: str) -> str:
    """Normalize a date and time, to UTC if it has an offset; other strings are unchanged."""
    if not _MOMENT_TEXT.fullmatch(text):
        return text
    try:
        moment = pd.Timestamp(text)
    except ValueError:
        return text
    if moment.tzinfo is not None:
        moment = moment.tz_convert("UTC").tz_localize(None)
    return moment.isoformat().removesuffix("T00:00:00")


def read_snapshot(snapshot: Snapshot) -> pd.DataFrame:
    """Read a snapshot.

    Args:
        snapshot: Snapshot.

    Raises:
        StoreUnavailable: If the file cannot be read.
        Damaged: If its bytes differ from the hash.
    """
    return read_hashed(
        snapshot.path, snapshot.sha256, snapshot.dtypes, snapshot.n_rows, record="snapshot"
    )


def read_hashed(
    path: Location,
    sha256: str,
    dtypes: Mapping[str, str] | None = None,
    n_rows: int | None = None,
    below: Location | None = None,
    record: RecordKind | None = None,
) -> pd.DataFrame:
    """Read a Parquet table after verifying its hash.

    The file is hashed in constant memory, and is not decompressed if it declares an implausible
    size.

    Args:
        path: Path of the file.
        sha256: Expected hash of its bytes.
        dtypes: Dtypes of its columns. Default: those of the values in the file, nullable for
            integers and booleans.
        n_rows: Expected number of rows. None: any.
        below: See :meth:`.Storage.open`.
        record: Kind of record of the file, for errors. None: no step writes it again.

    Raises:
        StoreUnavailable: If the file cannot be read.
        Damaged: If it differs.
    """
    try:
        data = read_hashed_bytes(path, sha256, below=below)
    except OSError as error:
        text = f"{path.name} cannot be read ({error.strerror})"
        raise StoreUnavailable(text, path=str(path), errno=error.errno, record=record) from None
    if data is None:
        raise Damaged(f"{path.name} changed after it was written", path=str(path), record=record)
    table = open_parquet(data, path.name, n_rows).read()
    frame: pd.DataFrame = table.to_pandas(types_mapper=_NULLABLE.get)
    columns = {}
    for name in frame.columns:
        dtype = dtypes.get(name) if dtypes else None
        columns[name] = _in_dtype(frame[name], dtype)
    return pd.DataFrame(columns)


def open_parquet(data: bytes, name: str, n_rows: int | None = None) -> pq.ParquetFile:
    """Open a Parquet file without decompressing it, if its declared sizes are plausible.

    Args:
        data: Bytes of the file.
        name: Name of the file, for messages.
        n_rows: Expected number of rows. None: any.

    Raises:
        Damaged: If it is not a Parquet file, or declares another number of rows or an implausible
            size.
    """
    try:
        file = pq.ParquetFile(io.BytesIO(data))
    except (pa.ArrowException, OSError):
        raise Damaged(f"{name} is not a Parquet file", path=name) from None
    metadata = file.metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    n_declared = sum(group.num_rows for group in groups)
    if n_rows not in (None, n_declared) or metadata.num_rows != n_declared:
        raise Damaged(f"{name} declares {n_declared} rows, expected {n_rows}", path=name)
    n_uncompressed = 0  # bytes
    for group in groups:
        for i in range(group.num_columns):
            n_uncompressed += group.column(i).total_uncompressed_size
    if n_uncompressed > _LARGEST_RATIO * len(data):
        raise Damaged(
            f"{name} declares more than {_LARGEST_RATIO} times its size, uncompressed", path=name
        )
    return file


def _in_dtype(series: pd.Series, dtype: str | None) -> pd.Series:
    if dtype is None:
        return series
    if dtype == "object":
        return series.astype(object).where(series.notna(), None)
    return series.astype(pd.api.types.pandas_dtype(dtype))
