"""Arrays that need not lie in memory: large ones are mapped from temporary files that have no name."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from privacy_assets.errors import InputError

LARGE = 1 << 24  # bytes from which an array is mapped
_ROWS = 1 << 18  # copied at a time


def mapped_empty(shape: int | tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An array to be filled, C order, of any content; mapped from a file when it takes 16 MiB and more.

    The system writes pages of a mapped array out and reads them in again as it needs memory for others. Its file lies
    in the folder that TMPDIR names, and no other user can open it: it has no name, and is gone with the last array that
    uses it, or with the process, however that ends. InputError when the folder has no room for it.
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
            problem, fix = f"no room for {size} bytes of temporary files", "free some, or set TMPDIR to another folder"
            raise InputError(problem, where=tempfile.gettempdir(), fix=fix) from None
        return np.asarray(np.memmap(stream, dtype, "r+", shape=shape))


def mapped(array: np.ndarray) -> np.ndarray:
    """The same values in one of :func:`mapped_empty`; the array itself where it is small."""
    return array if array.nbytes < LARGE else mapped_copy(array)


def mapped_copy(array: np.ndarray) -> np.ndarray:
    """The same values in an array of their own, of :func:`mapped_empty`."""
    out = mapped_empty(array.shape, array.dtype)
    out[...] = array
    return out


def mapped_concatenate(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays of one dtype and width, one after the other, in an array of :func:`mapped_empty`."""
    out = mapped_empty((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
    return np.concatenate(arrays, out=out)


def mapped_take(array: np.ndarray, rows: np.ndarray | Sequence[int] | slice) -> np.ndarray:
    """``array[rows]``: of :func:`mapped_empty` for positions or bool (n,), for a slice a part of itself."""
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
    """Room on the disk now: to find none only when a page is written would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:  # macOS
        os.ftruncate(file, size)
