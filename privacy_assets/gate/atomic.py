"""Atomic placement of files: a reader sees the old bytes or the new ones, never a mixture."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def put_atomic(path: Path, write: bytes | Callable[[BinaryIO], None], *, mode: int = 0o600) -> Path:
    """Place bytes, or what ``write(stream)`` writes, at ``path``; parent folders are made.

    Written to a temporary file beside the target, flushed to disk and renamed over it; the folder is flushed last. On
    any error the target is untouched and the temporary file is gone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if callable(write):
                write(stream)
            else:
                stream.write(write)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
    sync_folder(path.parent)
    return path


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
