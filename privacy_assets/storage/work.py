"""Folders for private work: held by a lock that goes with its owner, so that the next one sweeps what was left."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

_PREFIX = "privacy-assets-work-"


class WorkFolder:
    """A new folder ``path`` among the temporary ones, for the own user only, until :meth:`close` or the block's end.

    It goes with this object at the latest. A process that is killed leaves its folder, whose lock is then free: making
    one first removes these (:func:`sweep`).
    """

    def __init__(self) -> None:
        sweep()
        self.path, lock = _claimed()
        self._remove = weakref.finalize(self, _remove, self.path, lock)

    def close(self) -> None:
        """Remove it, and what is in it."""
        self._remove()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def sweep() -> None:
    """Remove the work folders of this user, on this machine, whose owner is gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # gone by now, or not ours
            continue
        if os.fstat(lock).st_uid == os.getuid() and _locked(lock):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _claimed() -> tuple[Path, int]:
    """A new folder, and the open lock on it; another one when somebody swept it before it was locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        if _locked(lock) and folder.exists():
            return folder, lock
        os.close(lock)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
