"""Files: placed atomically, locked, and, where they are secret, for the own user only; objects where it says so."""

from __future__ import annotations

import errno
import fcntl
import glob
import grp
import io
import logging
import os
import pwd
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, TypeVar

from privacy_assets.errors import ConfigError
from privacy_assets.storage.objects import Location, ObjectPath

_LONGEST = 80  # characters of a name that anything may be called

Place = TypeVar("Place", Path, ObjectPath, Location)
_LOGGER = logging.getLogger(__name__)
_DRAFT = re.compile(r"\..+\.[0-9a-f]{8}\.draft")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def put_atomic(path: Place, write: bytes | memoryview | Callable[[BinaryIO], None], *, mode: int = 0o600) -> Place:
    """Place bytes, or what ``write(stream)`` writes, at ``path``; parent folders are made, for others to read as it is.

    A reader sees the old bytes or the new ones, never a mixture: written to a temporary file beside the target, flushed
    to disk and renamed over it; the folder is flushed last. On any error the target is untouched and the temporary file
    is gone; what a killed process left goes with the next write. In an object store: one put; ``mode`` is for files.
    """
    if isinstance(path, ObjectPath):
        return path.put(write)
    make_folder(path.parent, 0o755 if mode & stat.S_IROTH else 0o700)
    with _written(path, write, mode) as draft:
        os.replace(draft, path)
    sync_folder(path.parent)
    return path


def is_path(path: Path) -> bool:
    """False for a text that stands where a path should, and so in no message: it can be the rows of a table.

    A path is one line. A long one is there, or could be, in a folder that is there (before any pattern).
    """
    text = str(path)
    if not text.isprintable():
        return False
    plain = Path(*takewhile(lambda part: not glob.has_magic(part), path.parts))
    try:
        place = plain.parent if plain == path else plain
        named = len(text) <= _LONGEST or (len(path.name) <= _LONGEST and os.path.lexists(place))
        return named or os.path.lexists(path)
    except OSError:  # longer than any name
        return False


def not_a_file(path: Path) -> str | None:
    """Why ``path`` is no file that can be read to its end; None when it is one. To open a pipe can wait for ever."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"cannot be read ({error.strerror})" if path.is_symlink() or path.exists() else "no such file"
    if stat.S_ISDIR(mode):
        return "this is a folder, not a file"
    return None if stat.S_ISREG(mode) else "this is a pipe or device, not a file"


def create_once(path: Location, data: bytes) -> bool:
    """Place bytes where nothing is, whole at once, mode 0600; False when something is there, which stays."""
    if isinstance(path, ObjectPath):
        return path.create(data)
    with _written(path, data, 0o600) as draft:
        try:
            os.link(draft, path)  # unlike a rename, never replaces a file
        except FileExistsError:
            return False
    sync_folder(path.parent)
    return True


@contextmanager
def _written(path: Path, write: bytes | memoryview | Callable[[BinaryIO], None], mode: int) -> Iterator[Path]:
    """A new file beside ``path``, whole and flushed, and gone in the end; others' that nobody writes go before."""
    sweep(path.parent)
    draft, descriptor = _locked_draft(path)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if callable(write):
                write(stream)
            else:
                stream.write(write)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
            yield draft  # still locked
    finally:
        with suppress(OSError):  # nothing to remove after a rename; else the first error is the one to tell
            os.unlink(draft)


def _locked_draft(path: Path) -> tuple[Path, int]:
    while True:
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.draft")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with suppress(OSError):  # without locks here nobody sweeps either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:  # else somebody swept it before it was locked
            return draft, descriptor
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove the temporary files of killed processes in ``folder``, and tell it in the log.

    A writer holds a lock on its file, which goes with the process: neither clock nor process ids are asked.
    """
    swept = []
    with suppress(OSError):  # what cannot be swept stays
        for name in names(folder):
            if _DRAFT.fullmatch(name) and _swept(folder / name):
                swept.append(name)
    if swept:
        _LOGGER.warning("%s: removed what a killed process left: %s", folder, ", ".join(swept))


def _swept(draft: Path) -> bool:
    try:
        with open_regular(draft, follow=False) as stream:
            fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.unlink()
    except OSError:
        return False
    return True


def open_regular(path: Location, *, follow: bool = True) -> io.BufferedReader:
    """Open a regular file, or an object, for reading; OSError for all else: a pipe would keep the reader waiting."""
    if isinstance(path, ObjectPath):
        return path.open("rb")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        words = os.strerror(number) if stat.S_ISDIR(mode) else "not a regular file"
        raise OSError(number, words, str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Location) -> bytes:
    """All bytes of a regular file, or of an object; OSError for all else."""
    if isinstance(path, ObjectPath):
        return path.read_bytes()
    with open_regular(path) as stream:
        return stream.read()


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
    return {name: read_regular(folder / name) for name in names(folder) if not name.startswith(".")}


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


def make_folder(folder: Path, mode: int) -> Path:
    """Make ``folder`` and the parents that it lacks with this mode, whatever the umask; one that is there keeps its."""
    for one in reversed([folder, *folder.parents]):
        if one.exists():
            continue
        with suppress(FileExistsError):  # somebody else was quicker
            one.mkdir(mode=0o700)
            one.chmod(mode)
    return folder


def private_folder(folder: Place) -> Place:
    """Make ``folder``, and the parents that it lacks, for the own user only; one that is there keeps its mode.

    An object store has no folders to make.
    """
    return folder if isinstance(folder, ObjectPath) else make_folder(folder, 0o700)


def check_private(folder: Place) -> Place:
    """ConfigError when anybody else may enter ``folder`` or put another in its place.

    Of an object store the gate asks more.
    """
    if isinstance(folder, ObjectPath):
        return folder
    facts = folder.stat()
    if facts.st_mode & 0o077:
        raise ConfigError(f"{folder}: others may enter the gate's private folder. Fix: chmod 700.")
    if facts.st_uid != os.getuid():
        raise ConfigError(
            f"{folder}: the gate's private folder belongs to another user (uid {facts.st_uid}). Fix: chown."
        )
    check_above(folder)
    return folder


def check_kept(path: Path, believed: int | None = None) -> None:
    """ConfigError when anybody but the own user and root can change ``path``, a folder or file, or replace it.

    ``believed`` is the uid of one more who may. OSError when it is not there.
    """
    facts = path.stat()
    if facts.st_uid not in {0, os.getuid(), believed}:
        text = f"{path}: what is trusted here belongs to another user (uid {facts.st_uid})"
        raise ConfigError(f"{text}. Fix: chown, or a copy of your own.")
    if facts.st_mode & _OTHERS_WRITE:
        who = "everybody" if facts.st_mode & stat.S_IWOTH else "a group"
        raise ConfigError(f"{path}: {who} may write to what is trusted here. Fix: chmod go-w.")
    check_above(path, believed)


def check_above(path: Path, believed: int | None = None) -> None:
    """ConfigError when a folder above ``path`` lets others than the own user and root put something else in its place.

    As ssh has it for its keys, but: in a sticky folder (/tmp) nobody can move what is another's; on a read-only file
    system nobody can at all; a group of the owner alone is no other; and root in a container works below folders of the
    user that brought them.
    """
    real, users = path.resolve(), {0, os.getuid(), believed}
    for folder in dict.fromkeys([*path.absolute().parents, *real.parents]):
        facts = folder.stat()
        if facts.st_uid not in users and os.getuid() != 0:
            raise ConfigError(f"{path}: {folder} belongs to another user (uid {facts.st_uid}), who could replace it.")
        if facts.st_mode & stat.S_ISVTX or not _others_write(facts) or os.statvfs(folder).f_flag & os.ST_RDONLY:
            continue
        raise ConfigError(f"{path}: others may write to {folder}, and could replace it. Fix: chmod go-w {folder}.")


def _others_write(facts: os.stat_result) -> bool:
    if not facts.st_mode & stat.S_IWGRP or facts.st_mode & stat.S_IWOTH:
        return bool(facts.st_mode & stat.S_IWOTH)
    try:
        user, group = pwd.getpwuid(facts.st_uid), grp.getgrgid(facts.st_gid)
    except KeyError:
        return True
    return group.gr_name != user.pw_name or not {*group.gr_mem} <= {user.pw_name}


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
