"""Fingerprints of table contents, independent of row order, and of files."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.infra.objects import Location, location
from privacy_assets.infra.storage import hash_file
from privacy_assets.tables.column import Column, positions_in, ranked

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
_INTEGER = re.compile(r"-?(0|[1-9]\d*)(\.0)?")
_FLOAT = re.compile(r"-?\d+(\.\d+)?(e[+-]\d+)?")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?")


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
    return _fingerprint(coded, rows)


def lasting_fingerprint(frame: pd.DataFrame) -> str:
    """Return a fingerprint like :func:`content_fingerprint` that ignores how values are stored.

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
    return _fingerprint(coded, len(frame))


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


def _fingerprint(
    columns: Mapping[str, tuple[np.ndarray, Sequence[bytes | None]]], rows: int
) -> str:
    """Hash columns given as codes (rows,), -1 for missing, and the bytes of each code's value
    (None: missing).

    Values with the same bytes count as equal.
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


def _lasting_bytes(value: object) -> bytes | None:
    """Return bytes of a value, equal for a number and the text that a program writes for it: 1,
    1.0, "1" and "1.0".
    """
    text = str(value)
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return text.removesuffix(".0").encode()
    if _FLOAT.fullmatch(text) and repr(float(text)) == text:
        if float(text).is_integer():
            text = str(int(float(text)))
        return text.encode()
    return _moment(text).encode("utf-8", "surrogatepass")


def _moment(text: str) -> str:
    """Normalize a date and time, to UTC if it has an offset; other strings are unchanged."""
    if not _MOMENT.fullmatch(text):
        return text
    try:
        moment = pd.Timestamp(text)
    except ValueError:
        return text
    if moment.tzinfo is not None:
        moment = moment.tz_convert("UTC").tz_localize(None)
    return moment.isoformat().removesuffix("T00:00:00")
