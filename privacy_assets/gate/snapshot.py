"""Snapshots: the one file of a synthetic table that is scored, judged and published."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from privacy_assets.engine.results import plain
from privacy_assets.engine.tables.writing import parquet_bytes
from privacy_assets.errors import PublicationRefused
from privacy_assets.files import put_atomic
from privacy_assets.gate.statements import Place, Statement
from privacy_assets.objects import Location


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A Parquet file known by the SHA-256 of its bytes, and where it comes from.

    ``train`` is the keyed fingerprint of the rows it was made from, ``content`` the keyed fingerprint of its own
    rows whatever their order and file format: by it a failed verdict is remembered. ``filter`` says what left rows of
    it out, None for nothing: the settings of the "filters" by name, the keyed fingerprints by role of the real rows
    that they read, "inputs", how many rows were "drawn" and "dropped", "dropped_by" each, and figures of what was
    drawn, "before" they went. ``generator`` is what made it, "name" and "settings", and what protects its training
    rows: "overfitting" and "privacy"; None for a table that was brought.
    """

    place: Place
    path: Location
    sha256: str
    rows: int
    train: str
    content: str
    filter: Mapping[str, Any] | None = None
    generator: Mapping[str, Any] | None = None

    def statement(self) -> Statement:
        """What the step that made the table signs; the path is left out: the gate knows where its files lie."""
        how = {"filter": plain(self.filter), "generator": plain(self.generator)}
        body = {"rows": self.rows, "train": self.train, "content": self.content, **how}
        return Statement("snapshot", self.place, self.sha256, body)

    @classmethod
    def of(cls, statement: Statement, folder: Location) -> Snapshot:
        """Inverse of :meth:`statement`, for a file in ``folder``."""
        return cls(statement.place, folder / f"{statement.sha256}.parquet", statement.sha256, **statement.body)


def write_snapshot(frame: pd.DataFrame, folder: Location) -> tuple[Location, str]:
    """Write ``frame`` (published dtypes) to ``folder/<sha256>.parquet``; the same table gives the same file."""
    data = parquet_bytes(frame)
    digest = hashlib.sha256(data).hexdigest()
    return put_atomic(folder / f"{digest}.parquet", data), digest


def read_snapshot(snapshot: Snapshot) -> pd.DataFrame:
    """Read a snapshot back; PublicationRefused unless its file has the bytes that the hash names."""
    return read_hashed(snapshot.path, snapshot.sha256)


def read_hashed(path: Location, sha256: str) -> pd.DataFrame:
    """The table in ``path``, parsed from the very bytes that were hashed; PublicationRefused when they differ."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PublicationRefused(f"{path.name} cannot be read ({error.strerror}); materialise it again.") from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise PublicationRefused(f"{path.name} changed after it was written; materialise it again.")
    frame: pd.DataFrame = pq.ParquetFile(io.BytesIO(data)).read().to_pandas()
    return frame
