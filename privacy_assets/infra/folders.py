"""Operations on open folders.

Files and folders are named relative to a descriptor, and links are not followed. So another user
who may write to a folder cannot redirect an operation to a file elsewhere, even by replacing names
while the operation runs.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from privacy_assets.errors import ConfigError, FolderError, PrivacyAssetsError
from privacy_assets.infra.temp_folders import lock, lock_holder, remove_unlocked

Writer = bytes | memoryview | Callable[[BinaryIO], None]
LOCK_WAIT = 600.0  # seconds
_POLL = 0.05  # seconds
_STAGING = "staging"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_DRAFT = re.compile(r"\..+\.[0-9a-f]{8}\.draft")
_FIXES = {
    errno.ENOSPC: "free space on this disk, then run this again",
    errno.EDQUOT: "free space or raise the disk quota, then run this again",
    errno.EROFS: "mount this file system for writing, then run this again",
    errno.EISDIR: "remove this folder, then run this again",  # it has the name of a file
    errno.ENOTEMPTY: "remove this folder, then run this again",
}
_LOGGER = logging.getLogger(__name__)
_warned: set[Path] = set()


class Folder(NamedTuple):
    """An open folder: its descriptor, and its path, which only messages use."""

    descriptor: int
    path: Path


@contextmanager
def opened(start: Path | Folder, *parts: str, mode: int | None = None) -> Iterator[Folder]:
    """Open a folder below ``start`` without following links.

    Args:
        start: Trusted path, which may be a link, or an open folder.
        parts: Names of the folders below ``start``, from the outermost to the one to open.
        mode: Mode of missing folders, which are created. None: no folder is created.

    Raises:
        FolderError: If a part is a link, or the disk is full or read-only.
        OSError: If a folder cannot be opened. Errors in the ``with`` block get the folder's path.
    """
    if isinstance(start, Folder):
        path = start.path
        descriptor = os.open(".", _FOLDER, dir_fd=start.descriptor)
    else:
        path = start
        descriptor = os.open(path, _FOLDER)
    try:
        for part in parts:
            with explained(path):
                below = _enter(Folder(descriptor, path), part, mode)
            os.close(descriptor)
            descriptor = below
            path = path / part
        with explained(path):
            yield Folder(descriptor, path)
    finally:
        os.close(descriptor)


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Add the path of ``folder`` to system errors, and the fix if it is known.

    Args:
        folder: Path of the folder in which the ``with`` block works.

    Raises:
        FolderError: If the disk is full or read-only, or a folder has the name of a file.
    """
    try:
        yield
    except PrivacyAssetsError:
        raise
    except OSError as error:
        name = error.filename2 or error.filename  # the second name is the target of a rename
        path = folder / name if isinstance(name, str) else folder
        error.filename = str(path)
        fix = _FIXES.get(error.errno or 0)
        if fix:
            raise FolderError(error.errno, f"{error.filename}: {error.strerror}", fix) from None
        raise


def _enter(above: Folder, name: str, mode: int | None) -> int:
    """Open the folder ``name`` in ``above``, after creating it if it is missing and ``mode`` is not
    None.
    """
    created = False
    if mode is not None:
        with suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=above.descriptor)
            created = True
    descriptor = _open(above, name, _FOLDER)
    facts = os.fstat(descriptor)
    # The umask may have removed bits. A folder with content is not the one just created.
    narrowed = created and mode and facts.st_mode & mode != mode
    if narrowed and facts.st_uid == os.geteuid() and not os.listdir(descriptor):
        os.fchmod(descriptor, stat.S_IMODE(facts.st_mode) | (mode or 0))
    return descriptor


def _open(folder: Folder, name: str, flags: int, mode: int = 0o600) -> int:
    """Open a file or folder without following a link, and return its descriptor."""
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode, dir_fd=folder.descriptor)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        if stat.S_ISLNK(_facts(folder, name).st_mode):
            text = f"{folder.path / name} is a link, and links are not followed here"
            raise FolderError(errno.ELOOP, text, "remove it") from None
        raise


def _facts(folder: Folder, name: str) -> os.stat_result:
    return os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)


def check_shared(folder: Folder) -> None:
    """Check who may write to a release folder, and log a warning once per process if its group may.

    Args:
        folder: Open folder.

    Raises:
        ConfigError: If every user may write to it.
    """
    path = folder.path
    mode = os.fstat(folder.descriptor).st_mode
    if mode & stat.S_IWOTH:
        raise ConfigError(
            f"{path}: every user may write to this release folder. Fix: chmod o-w {path}"
        )
    if mode & stat.S_IWGRP and path not in _warned:
        _warned.add(path)
        text = (
            "%s: the group may write to this release folder, and can delete releases. To prevent"
            " this: chmod g-w %s"
        )
        _LOGGER.warning(text, path, path)


def subfolders(folder: Folder) -> list[str]:
    """Return the sorted names of the folders in ``folder``, without links.

    Args:
        folder: Open folder.
    """
    with os.scandir(folder.descriptor) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def open_file(folder: Folder, name: str) -> io.BufferedReader:
    """Open a regular file for reading.

    Args:
        folder: Open folder.
        name: Name of the file.

    Raises:
        FolderError: If it is a link.
        OSError: If it is anything else but a regular file, or cannot be opened.
    """
    return regular(_open(folder, name, os.O_RDONLY), str(folder.path / name))


def regular(descriptor: int, path: str) -> io.BufferedReader:
    """Return a stream of an open regular file.

    Args:
        descriptor: Descriptor, which is closed on an error.
        path: Path, for messages.

    Raises:
        OSError: If it is a folder, pipe or device.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "not a regular file", path)


def put(folder: Folder, name: str, write: Writer, mode: int = 0o600) -> None:
    """Replace the file ``name`` atomically: readers get the old bytes or the new ones.

    Args:
        folder: Open folder.
        name: Name of the file.
        write: Bytes, or a function that writes to the stream that it gets.
        mode: Mode of the file.
    """
    with _draft(folder, name, write, mode) as draft:
        rename(folder, draft, name)
    sync(folder)


def create(folder: Folder, name: str, data: bytes) -> bool:
    """Create a file atomically with mode 0600.

    Args:
        folder: Open folder.
        name: Name of the file.
        data: Its bytes.

    Returns:
        False if the name exists.
    """
    with _draft(folder, name, data, 0o600) as draft:
        try:
            _link(folder, draft, name)  # unlike a rename, a link never replaces a file
        except FileExistsError:
            return False
    sync(folder)
    return True


def _link(folder: Folder, name: str, copy: str) -> None:
    """Give the file ``name`` the second name ``copy``."""
    os.link(
        name,
        copy,
        src_dir_fd=folder.descriptor,
        dst_dir_fd=folder.descriptor,
        follow_symlinks=False,
    )


@contextmanager
def _draft(folder: Folder, name: str, write: Writer, mode: int) -> Iterator[str]:
    """Write a temporary file, which is locked until the end and then removed; remove those of
    killed processes.
    """
    sweep(folder)
    draft, descriptor = _locked_draft(folder, name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if callable(write):
                write(stream)
            else:
                stream.write(write)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
            yield draft
    finally:
        with suppress(OSError):  # already renamed, or the first error is the one to report
            os.unlink(draft, dir_fd=folder.descriptor)


def _locked_draft(folder: Folder, name: str) -> tuple[str, int]:
    """Create and lock a temporary file, and return its name and descriptor."""
    while True:
        draft = f".{name}.{secrets.token_hex(4)}.draft"
        descriptor = os.open(
            draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder.descriptor
        )
        try:
            # False if another process is removing it
            is_usable = lock(descriptor, draft, folder.descriptor)
        except OSError:  # no process removes drafts on file systems without locks
            is_usable = True
        if is_usable:
            return draft, descriptor
        os.close(descriptor)


def sweep(folder: Folder) -> None:
    """Remove the temporary files of killed processes, and log their names.

    A process holds a lock on its file until it ends.

    Args:
        folder: Open folder.
    """
    try:
        drafts = sorted(filter(_DRAFT.fullmatch, os.listdir(folder.descriptor)))
    except OSError:
        return
    remove = partial(os.unlink, dir_fd=folder.descriptor)
    swept = remove_unlocked(drafts, remove, folder.descriptor)
    if swept:
        _LOGGER.warning(
            "%s: removed the files of a killed process: %s", folder.path, ", ".join(swept)
        )


def rename(folder: Folder, old: str, new: str) -> None:
    """Rename a file or folder.

    Args:
        folder: Open folder.
        old: Its name.
        new: Its new name. An existing file of this name is replaced.
    """
    os.replace(old, new, src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)


def unlink(folder: Folder, name: str) -> None:
    """Remove the file or link ``name`` if it exists."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder.descriptor)


def link_copy(folder: Folder, name: str, copy: str) -> None:
    """Give the file ``name``, if it exists, a second name.

    Args:
        folder: Open folder.
        name: Name of the file.
        copy: Second name. An existing file of this name is removed.
    """
    unlink(folder, copy)
    with suppress(FileNotFoundError):
        _link(folder, name, copy)


def sync(folder: Folder) -> None:
    """Flush the entries of ``folder`` to disk."""
    os.fsync(folder.descriptor)


def place_folder(folder: Folder, name: str, write: Callable[[Folder], None]) -> None:
    """Create the read-only folder ``name`` with the files that ``write`` puts into it, atomically.

    The files are written into the folder ``staging`` next to it. Files of an earlier process are
    removed first, so the caller must hold a lock.

    Args:
        folder: Open folder.
        name: Name of the new folder.
        write: Writes the files into the open folder that it gets.

    Raises:
        OSError: If it cannot be written, or if another process replaced it.
    """
    if _remove(folder, _STAGING):
        _LOGGER.warning("%s: removed the files of a killed process", folder.path / _STAGING)
    try:
        os.mkdir(_STAGING, 0o700, dir_fd=folder.descriptor)
        with opened(folder, _STAGING) as staging:
            facts = os.fstat(staging.descriptor)
            if facts.st_uid != os.geteuid() or os.listdir(staging.descriptor):
                raise _replaced(staging.path)
            write(staging)
            os.fchmod(staging.descriptor, 0o555)
            sync(staging)
            rename(folder, _STAGING, name)
            if not os.path.samestat(facts, _facts(folder, name)):
                raise _replaced(folder.path / name)
        sync(folder)
    except BaseException:
        with suppress(OSError):
            _remove(folder, _STAGING)
        raise


def _replaced(path: Path) -> OSError:
    return OSError(errno.EEXIST, "another process replaced this folder", str(path))


def discard(folder: Folder, names: Iterable[str]) -> None:
    """Remove folders of files, each atomically: a reader sees the whole folder or none.

    Files of an earlier process are removed first, so the caller must hold a lock.

    Args:
        folder: Open folder.
        names: Names of the folders below it. Missing ones are ignored.
    """
    _remove(folder, _STAGING)
    for name in names:
        with suppress(FileNotFoundError):
            rename(folder, name, _STAGING)
            _remove(folder, _STAGING)
    sync(folder)


def _remove(folder: Folder, name: str) -> bool:
    """Remove a folder of files, or a file or link. Return False if it does not exist."""
    try:
        with opened(folder, name) as below:
            facts = os.fstat(below.descriptor)
            if facts.st_uid == os.geteuid() and not facts.st_mode & stat.S_IWUSR:
                os.fchmod(below.descriptor, 0o700)
            for file_name in os.listdir(below.descriptor):
                os.unlink(file_name, dir_fd=below.descriptor)
        os.rmdir(name, dir_fd=folder.descriptor)
    except FileNotFoundError:
        return False
    except (NotADirectoryError, FolderError) as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        unlink(folder, name)
    return True


@contextmanager
def locked(folder: Folder, name: str) -> Iterator[None]:
    """Hold a lock file against other processes; the lock ends with the process.

    Args:
        folder: Open folder.
        name: Name of the lock file, which is created if it is missing.

    Raises:
        FolderError: If another process holds it for ``LOCK_WAIT`` seconds.
    """
    deadline = time.monotonic() + LOCK_WAIT
    descriptor = take(folder, name)
    while descriptor is None:
        if time.monotonic() > deadline:
            holder = lock_holder(name, folder.descriptor)
            text = f"{folder.path / name}: locked by {holder} for more than {LOCK_WAIT:.0f} seconds"
            raise FolderError(
                errno.ETIMEDOUT, text, "wait for that process or end it, then run this again"
            )
        time.sleep(_POLL)
        descriptor = take(folder, name)
    try:
        yield
    finally:
        os.close(descriptor)


def take(folder: Folder, name: str, mode: int = 0o600) -> int | None:
    """Open and lock a lock file.

    Args:
        folder: Open folder.
        name: Name of the lock file.
        mode: Mode with which it is created if it is missing.

    Returns:
        The descriptor to close at the end, or None if another process holds the file or has
        replaced it.

    Raises:
        OSError: If it cannot be opened or locked.
    """
    descriptor = _open(folder, name, os.O_RDWR | os.O_CREAT, mode)
    try:
        is_locked = lock(descriptor, name, folder.descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    if is_locked:
        return descriptor
    os.close(descriptor)
    return None
