"""Arrays of which large ones are mapped from unnamed temporary files."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from privacy_assets.errors import InputError

LARGE = 1 << 24  # bytes from which an array is mapped
_ROWS = 1 << 18  # rows copied at a time


def mapped_empty(shape: int | tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Allocate an uninitialized array, C order, mapped from a file if it takes 16 MiB or more.

    The system can write pages of a mapped array to disk to free memory. The file is in the TMPDIR folder and has no
    name, so other users cannot open it. It is deleted with the last array that uses it, or when the process ends for
    any reason. Raises InputError if there is no space.
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
            problem, fix = (
                f"no room for {size} bytes of temporary files",
                "free disk space, or set TMPDIR to another folder",
            )
            raise InputError(problem, where=tempfile.gettempdir(), fix=fix) from None
        return np.asarray(np.memmap(stream, dtype, "r+", shape=shape))


def mapped(array: np.ndarray) -> np.ndarray:
    """Copy an array by :func:`mapped_empty` if it is large, else return it."""
    return array if array.nbytes < LARGE else mapped_copy(array)


def mapped_copy(array: np.ndarray) -> np.ndarray:
    """Copy an array by :func:`mapped_empty`."""
    out = mapped_empty(array.shape, array.dtype)
    out[...] = array
    return out


def mapped_concatenate(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate arrays with the same dtype and width by :func:`mapped_empty`."""
    out = mapped_empty((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
    return np.concatenate(arrays, out=out)


def mapped_take(array: np.ndarray, rows: np.ndarray | Sequence[int] | slice) -> np.ndarray:
    """Return ``array[rows]``, allocated by :func:`mapped_empty` for positions or masks, as a view for slices."""
    if isinstance(rows, slice):
        return array[rows]
    rows = np.asarray(rows, dtype=None if len(rows) else np.int64)
    rows = np.flatnonzero(rows) if rows.dtype == bool else rows
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
