"""The lock of this package, and temporary private folders, which other processes remove if their
owner is killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from privacy_assets.errors import is_showable

_PREFIX = "privacy-assets-work-"


def lock(descriptor: int, name: str, folder: int | None = None) -> bool:
    """Lock an open file or folder (``flock``). The lock ends when all copies of the descriptor are
    closed.

    Args:
        descriptor: Open file or folder.
        name: Its path, or its name in ``folder``.
        folder: Descriptor of an open folder. None: ``name`` is a path.

    Returns:
        False if it is locked already, or if another process has removed or replaced ``name``.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(
            os.fstat(descriptor), os.stat(name, dir_fd=folder, follow_symlinks=False)
        )
    except (BlockingIOError, FileNotFoundError):
        return False


def lock_holder(name: str, folder: int | None = None) -> str:
    """Return the process that holds the lock of ``name``, with the host if it is this one.

    Args:
        name: Path of the locked file, or its name in ``folder``.
        folder: Descriptor of an open folder. None: ``name`` is a path.
    """
    # Nothing is written to the file: in a shared folder it may be a link to another file.
    process = _local_holder(name, folder)
    if process is None:
        return "another process"
    return process_text(process, socket.gethostname())


def process_text(process: int, host: str) -> str:
    """Return a process and its host, for messages about the holder of a lock.

    Args:
        process: Id of the process.
        host: Name of the machine, left out unless it is short printable text.
    """
    on_host = f" on {host}" if is_showable(host) else ""
    return f"process {process}{on_host}"


def time_text(seconds: float) -> str:
    """Return a time in UTC, for messages about the holder of a lock.

    Args:
        seconds: Seconds since 1970.
    """
    return f"{time.strftime('%d %b at %H:%M', time.gmtime(seconds))} UTC"


def _local_holder(name: str, folder: int | None) -> int | None:
    """Return the process of this host that holds the lock, as Linux lists it."""
    with suppress(OSError):
        file = f":{os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino}"
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            parts = line.split()
            if parts[1] == "FLOCK" and parts[5].endswith(file) and parts[4] != "0":
                return int(parts[4])
    return None


def remove_unlocked(
    names: Iterable[str], remove: Callable[[str], object], folder: int | None = None
) -> list[str]:
    """Remove this user's files or folders whose lock ended with their process, and return their
    names.

    Args:
        names: Paths, or names in ``folder``.
        remove: Removes the file or folder of this name.
        folder: Descriptor of an open folder. None: names are paths.
    """
    swept = []
    for name in names:
        with suppress(OSError):  # already removed, a link, or of another user
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            try:
                if os.fstat(descriptor).st_uid == os.getuid() and lock(descriptor, name, folder):
                    remove(name)
                    swept.append(name)
            finally:
                os.close(descriptor)
    return swept


class WorkFolder:
    """New private temporary folder.

    It is removed by :meth:`close`, at the end of a ``with`` block, or when this object is deleted.
    If the process is killed, its lock is released, and the next work folder that the same user
    creates removes the folder.

    Attributes:
        path: Path of the folder.
    """

    def __init__(self) -> None:
        remove_dead_work_folders()
        self.path, descriptor = _claimed()
        self._remove = weakref.finalize(self, _remove, self.path, descriptor)

    def close(self) -> None:
        """Remove the folder and its content."""
        self._remove()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_dead_work_folders() -> None:
    """Remove this user's work folders whose process has ended."""
    work_folders = map(str, Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"))
    remove_unlocked(work_folders, partial(shutil.rmtree, ignore_errors=True))


def _claimed() -> tuple[Path, int]:
    """Create and lock a new folder, and retry if another process removed it before it was
    locked.
    """
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        if lock(descriptor, folder):
            return Path(folder), descriptor
        os.close(descriptor)


def _remove(folder: Path, descriptor: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(descriptor)
