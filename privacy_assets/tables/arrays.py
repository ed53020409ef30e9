"""Arrays of which large ones are mapped from unnamed temporary files, and their file format."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from privacy_assets.errors import Damaged, InputError, RecordKind, StoreError
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import storage_of

LARGE = 1 << 24  # bytes from which an array is mapped
_ROWS = 1 << 18  # rows copied at a time
_ALIGNED = 64  # bytes; parts of a file start at multiples
_FAULTS = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    StopIteration,
)


def mapped_empty(shape: int | tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Allocate an uninitialized array, C order, mapped from a file if it takes 16 MiB or more.

    The system can write pages of a mapped array to disk to free memory. The file is in the folder
    for temporary files (TMPDIR if set) and has no name, so other users cannot open it. It is
    deleted with the last array that uses it, or when the process ends for any reason.

    Args:
        shape: Shape of the array.
        dtype: Its dtype.

    Raises:
        InputError: If there is no space.
    """
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if size < LARGE:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as stream:
        try:
            _reserve(stream.fileno(), size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            problem = f"no room for {size} bytes of temporary files"
            fix = "free disk space, or set TMPDIR to another folder"
            raise InputError(problem, where=tempfile.gettempdir(), fix=fix) from None
        return np.asarray(np.memmap(stream, dtype, "r+", shape=shape))


def mapped(array: np.ndarray) -> np.ndarray:
    """Copy an array by :func:`mapped_empty` if it is large.

    Args:
        array: Array of any shape and dtype.

    Returns:
        The copy. If the array is smaller than 16 MiB, the array itself.
    """
    if array.nbytes < LARGE:
        return array
    return mapped_copy(array)


def mapped_copy(array: np.ndarray) -> np.ndarray:
    """Copy an array by :func:`mapped_empty`.

    Args:
        array: Array of any shape and dtype.
    """
    out = mapped_empty(array.shape, array.dtype)
    out[...] = array
    return out


def mapped_concatenate(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate arrays by :func:`mapped_empty`.

    Args:
        arrays: One or more arrays with the same dtype, of shape (n, ...) with equal further axes.
    """
    out = mapped_empty((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
    return np.concatenate(arrays, out=out)


def mapped_take(array: np.ndarray, rows: np.ndarray | Sequence[int] | slice) -> np.ndarray:
    """Select elements of an array along its first axis.

    Args:
        array: Array of shape (n, ...).
        rows: Positions, a mask (n,) or a slice.

    Returns:
        ``array[rows]``: a copy by :func:`mapped_empty` for positions and masks, a view for slices.
    """
    if isinstance(rows, slice):
        return array[rows]
    rows = np.asarray(rows, dtype=None if len(rows) else np.int64)
    if rows.dtype == bool:
        rows = np.flatnonzero(rows)
    if len(rows) * array[:1].nbytes < LARGE:
        return array[rows]
    out = mapped_empty((len(rows), *array.shape[1:]), array.dtype)
    for start in range(0, len(rows), _ROWS):
        out[start : start + _ROWS] = array[rows[start : start + _ROWS]]
    return out


def _reserve(file: int, size: int) -> None:
    """Reserve disk space now: running out of it when a page is written would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:  # macOS
        os.ftruncate(file, size)


def array_digest(facts: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> str:
    """Return the SHA-256 (hex) of facts and arrays, which determines the file except its envelope.

    Args:
        facts: JSON-compatible facts about the arrays.
        arrays: Arrays of numbers.
    """
    digest = hashlib.sha256(_header(facts, arrays))
    for data in _bytes(arrays):
        digest.update(data)
    return digest.hexdigest()


def save_arrays(
    path: Location, facts: Mapping[str, Any], arrays: Sequence[np.ndarray], envelope: bytes = b""
) -> None:
    """Write a file of facts and arrays atomically, for :func:`load_arrays`.

    Args:
        path: File or object.
        facts: JSON-compatible facts about the arrays.
        arrays: Arrays of numbers.
        envelope: Signed file, which the digest does not cover.
    """

    def fill(stream: Any) -> None:
        lengths = np.array([len(header), len(envelope)]).tobytes()
        for data in chain((lengths, header, envelope), _bytes(arrays)):
            stream.write(data)
            stream.write(bytes(-len(data) % _ALIGNED))

    header = _header(facts, arrays)
    storage_of(path).put(fill)


def load_arrays(path: Location) -> tuple[dict[str, Any], Iterator[np.ndarray], bytes]:
    """Read a file written by :func:`save_arrays` into memory, or into a mapped file without a name
    if it is large.

    Later changes of the file do not change the arrays.

    Args:
        path: File or object.

    Returns:
        Facts, arrays and envelope.

    Raises:
        ValueError, KeyError, TypeError: The file was not written by :func:`save_arrays`.
    """
    with storage_of(path).open() as stream:
        data = mapped_empty(stream.seek(0, os.SEEK_END), np.uint8)
        stream.seek(0)
        rest = data.data
        while count := stream.readinto(rest):
            rest = rest[count:]
    if len(rest):
        raise ValueError("the file became shorter")
    position = 0

    def next_part(size: int) -> np.ndarray:
        nonlocal position
        start = position
        position += size + -size % _ALIGNED
        return data[start : start + size]

    header_size, envelope_size = next_part(16).view(np.int64).tolist()
    header = json.loads(next_part(header_size).tobytes())
    envelope = next_part(envelope_size).tobytes()
    arrays = []
    for name, shape in header["arrays"]:
        dtype = np.dtype(name)
        if dtype.kind not in "biuf":  # other arrays could contain pointers
            raise ValueError("an array does not contain numbers")
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        arrays.append(next_part(size).view(dtype).reshape(shape))
    return header["facts"], iter(arrays), envelope


@contextmanager
def reporting_damage(path: Location, record: RecordKind | None = None) -> Iterator[None]:
    """Raise Damaged for errors of :func:`load_arrays` and of the conversion of its facts.

    Args:
        path: File, for the message.
        record: Kind of record of the file. None: no step writes it again.
    """
    try:
        yield
    except (*_FAULTS, OSError) as error:
        if isinstance(error, StoreError):
            raise
        text = f"{path.name} is missing, was changed, or was stored by another version"
        raise Damaged(text, path=str(path), record=record) from None


def _bytes(arrays: Sequence[np.ndarray]) -> Iterator[memoryview]:
    for array in arrays:
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _header(facts: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> bytes:
    forms = [[array.dtype.str, array.shape] for array in arrays]
    return json.dumps({"facts": facts, "arrays": forms}).encode()
