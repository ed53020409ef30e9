"""Fingerprints of table contents, independent of row order, and of files."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.infra.objects import Location, location
from privacy_assets.infra.storage import hash_file
from privacy_assets.tables.column import Column, positions_in, ranked


def content_fingerprint(columns: Mapping[str, Column], rows: int) -> str:
    """Return the SHA-256 (hex) of a table's content: column names, and rows as a multiset.

    It does not depend on the order of rows and columns or on the file format. The hash covers the
    values of each column and the sorted rows as positions of these values. Two tables have the same
    hash only if they contain the same rows.

    Args:
        columns: Columns by name.
        rows: Number of rows.
    """
    coded = {}
    for name, column in columns.items():
        (ranks,), values = ranked([column])
        coded[name] = ranks, distinct_bytes(values.series())
    return coded_fingerprint(coded, rows)


def cells_fingerprint(cells: np.ndarray, *facts: Any) -> str:
    """Return the SHA-256 (hex) of coded cells, including the order of rows, and of facts.

    Args:
        cells: Array of any shape and dtype.
        *facts: JSON-compatible facts about the cells.
    """
    header = json.dumps([*facts, cells.shape], sort_keys=True, default=repr)
    digest = hashlib.sha256(header.encode())
    digest.update(np.ascontiguousarray(cells).data)
    return digest.hexdigest()


def coded_fingerprint(
    columns: Mapping[str, tuple[np.ndarray, Sequence[bytes | None]]], rows: int
) -> str:
    """Return the SHA-256 (hex) of the rows of coded columns as a multiset.

    Args:
        columns: Codes (rows,), -1 for missing, and the bytes of each code's value (None: missing).
            Values with the same bytes count as equal.
        rows: Number of rows.
    """
    names = sorted(columns)
    ranks = np.empty((rows, len(names)), dtype=">u4")
    digest = hashlib.sha256()
    for i, name in enumerate(names):
        codes, spelled = columns[name]
        distinct = sorted({value for value in spelled if value is not None})
        ordered = [*distinct, None]
        rank_of_code = positions_in(ordered, [*spelled, None])  # -1 selects the last
        ranks[:, i] = np.array(rank_of_code, dtype=np.uint32)[codes]
        digest.update(_framed([name.encode()]) + _framed(distinct))
    if names:  # without columns all rows are equal
        ranks.view(f"V{4 * len(names)}").sort(axis=0)
    digest.update(rows.to_bytes(8, "big"))
    digest.update(ranks.data)
    return digest.hexdigest()


def _framed(parts: Sequence[bytes]) -> bytes:
    """Return an unambiguous concatenation: the number of parts, their lengths, and the parts."""
    lengths = np.array([len(parts), *map(len, parts)], dtype=">u8")
    return lengths.tobytes() + b"".join(parts)


def file_fingerprint(path: str | Location) -> str:
    """Return the SHA-256 (hex) of a file."""
    return hash_file(location(path))


def keyed_fingerprint(fingerprint: str, key: bytes) -> str:
    """Return the HMAC-SHA256 (hex) of a fingerprint.

    Fingerprints of private tables may be published only in this form.

    Args:
        fingerprint: SHA-256 (hex) of a table or file.
        key: Secret key.
    """
    return hmac.new(key, fingerprint.encode(), hashlib.sha256).hexdigest()


def derive_key(split_key: bytes, purpose: str) -> bytes:
    """Derive a key for one purpose.

    Args:
        split_key: Split key of the deployment.
        purpose: Name of the purpose. Different purposes have independent keys.

    Returns:
        Key of 32 bytes.
    """
    return hmac.new(split_key, purpose.encode(), hashlib.sha256).digest()


def distinct_bytes(values: Any) -> list[bytes]:
    """Apply :func:`value_bytes` to the distinct values of a column, with a fast path for numbers.

    Args:
        values: Distinct values, an array or an index.
    """
    if pd.api.types.is_integer_dtype(values.dtype):
        return [b"i" + text for text in np.asarray(values).astype("S").tolist()]
    if pd.api.types.is_float_dtype(values.dtype):
        floats = np.asarray(values, dtype=np.float64) + 0.0
        return [b"f" + cell for cell in floats.view("V8").tolist()]
    return [value_bytes(value) for value in values]


def value_bytes(value: object) -> bytes:
    """Return bytes of a value, distinct for distinct values of a column; 1, 1.0 and True differ."""
    if isinstance(value, (bool, np.bool_)):
        return b"b1" if value else b"b0"
    if isinstance(value, pd.Timestamp):
        return b"t" + str(value.as_unit("us").value).encode()
    if isinstance(value, (int, np.integer)):
        return b"i" + str(int(value)).encode()
    if isinstance(value, (float, np.floating)):
        return b"f" + np.float64(value + 0.0).tobytes()
    return b"s" + str(value).encode("utf-8", "surrogatepass")
