"""Files: placed atomically, locked, and, where they are secret, for the own user only; objects where it says so."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

from privacy_assets.errors import ConfigError
from privacy_assets.objects import Location, ObjectPath

Place = TypeVar("Place", Path, ObjectPath, Location)


def put_atomic(path: Place, write: bytes | memoryview | Callable[[BinaryIO], None], *, mode: int = 0o600) -> Place:
    """Place bytes, or what ``write(stream)`` writes, at ``path``; parent folders are made.

    A reader sees the old bytes or the new ones, never a mixture: written to a temporary file beside the target, flushed
    to disk and renamed over it; the folder is flushed last. On any error the target is untouched and the temporary file
    is gone. In an object store: one put; ``mode`` is for files.
    """
    if isinstance(path, ObjectPath):
        return path.put(write)
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
        with suppress(OSError):  # nothing to remove after the rename; else the first error is the one to tell
            os.unlink(name)
    sync_folder(path.parent)
    return path


def create_once(path: Location, data: bytes) -> bool:
    """Place bytes where nothing is, whole at once, mode 0600; False when something is there, which stays."""
    if isinstance(path, ObjectPath):
        return path.create(data)
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(6)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(draft, path)  # unlike a rename, never replaces a file
        except FileExistsError:
            return False
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def names(folder: Location) -> list[str]:
    """Names of what lies directly in ``folder``, sorted; none without it. OSError when it cannot be read."""
    if isinstance(folder, ObjectPath):
        return folder.names()
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def contents(folder: Location) -> dict[str, bytes]:
    """The bytes of every file directly in ``folder`` by name, but for those that begin with a point; none without it.

    OSError when it cannot be read, where a glob would find nothing.
    """
    if isinstance(folder, ObjectPath):
        return folder.contents()
    return {name: (folder / name).read_bytes() for name in names(folder) if not name.startswith(".")}


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reason(error: OSError) -> str:
    """What a system error says: where, and what."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path`` against other processes; it waits, and the lock goes when the process does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def private_folder(folder: Place) -> Place:
    """Make ``folder``, and the parents that it lacks, for the own user only; one that is there keeps its mode.

    An object store has no folders to make.
    """
    if isinstance(folder, ObjectPath):
        return folder
    for parent in reversed([folder, *folder.parents]):
        if not parent.exists():
            parent.mkdir(mode=0o700, exist_ok=True)
    return folder


def check_private(folder: Place) -> Place:
    """ConfigError when anybody else may enter ``folder``; of an object store the gate asks more."""
    if isinstance(folder, ObjectPath):
        return folder
    if folder.stat().st_mode & 0o077:
        raise ConfigError(f"{folder}: others may enter the gate's private folder. Fix: chmod 700.")
    return folder


def read_secret(path: Path, *, fix: str = "bring it back") -> bytes:
    """Read a secret file; ConfigError unless it is a regular file of the own user that nobody else can read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"{path}: the secret cannot be read ({error.strerror}). Fix: {fix}.") from None
    try:
        facts = os.fstat(descriptor)  # before fdopen, which a folder makes fail
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
            raise ConfigError(f"{path}: the secret must be a regular file of your own with mode 0600. Fix: chmod 600.")
        return os.read(descriptor, 65536)
    finally:
        os.close(descriptor)
