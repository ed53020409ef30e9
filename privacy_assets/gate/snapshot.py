"""Snapshots: the one file of a synthetic table that is scored, judged and published."""

from __future__ import annotations

import hashlib
import io
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.atomic import put_atomic


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A Parquet file known by the SHA-256 of its bytes. ``train``: keyed fingerprint of the rows it was made from."""

    path: str
    sha256: str
    rows: int
    train: str

    def to_json(self) -> dict[str, Any]:
        """Return a plain mapping."""
        return asdict(self)


def write_snapshot(frame: pd.DataFrame, folder: Path, train: str) -> Snapshot:
    """Write ``frame`` (published dtypes) to ``folder/<sha256>.parquet``; the same table gives the same file."""
    table = pa.Table.from_pandas(frame.reset_index(drop=True), preserve_index=False)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", version="2.6")
    data = buffer.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    path = put_atomic(folder / f"{digest}.parquet", data)
    return Snapshot(str(path), digest, len(frame), train)


def read_snapshot(snapshot: Snapshot) -> pd.DataFrame:
    """Read a snapshot back; PublicationRefused unless its file has the bytes that the hash names."""
    try:
        data = Path(snapshot.path).read_bytes()
    except OSError as error:
        text = f"the synthetic table's file cannot be read ({error.strerror}); materialise it again."
        raise PublicationRefused(text) from None
    if hashlib.sha256(data).hexdigest() != snapshot.sha256:
        raise PublicationRefused("the synthetic table's file changed after it was written; materialise it again.")
    frame: pd.DataFrame = pq.ParquetFile(io.BytesIO(data)).read().to_pandas()
    return frame
