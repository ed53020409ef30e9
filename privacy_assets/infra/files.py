"""File operations: atomic writes, verified reads and permissions. Some also accept objects in
stores.
"""

from __future__ import annotations

import errno
import glob
import grp
import hashlib
import io
import os
import pwd
import stat
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from privacy_assets.errors import ConfigError, FolderError
from privacy_assets.infra import folders
from privacy_assets.infra.objects import Location, ObjectPath

_LONGEST = 80  # maximum length of a path that may appear in messages without further checks

P = TypeVar("P", Path, ObjectPath, Location)
_GITIGNORE, _IGNORE_ALL = ".gitignore", b"*\n"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FS_GROUP = (
    " On a Kubernetes volume with fsGroup, mount a subPath of it and set fsGroupChangePolicy to"
    " OnRootMismatch"
    " (docs/kubernetes.md)."
)


def put_atomic(path: P, write: folders.Writer, *, mode: int = 0o600) -> P:
    """Write a file atomically, after creating its parent folders.

    A reader sees the old bytes or the new ones, never a mixture: a temporary file next to the
    target is written, flushed to disk and renamed, and the folder is flushed last. On any error,
    the target is unchanged and the temporary file is removed. Temporary files of killed processes
    are removed by the next write. In an object store this is a single put.

    Args:
        path: Target.
        write: Bytes, or a function that writes to the stream that it gets.
        mode: Mode of a file on disk. New parent folders are readable by others only if the file is.
    """
    if isinstance(path, ObjectPath):
        return path.put(write)
    if mode & stat.S_IROTH:
        make_folder(path.parent, 0o755)
    else:
        private_folder(path.parent)
    with folders.opened(path.parent) as folder:
        folders.put(folder, path.name, write, mode)
    return path


def is_path(path: Path) -> bool:
    """Return False for a string that is not a plausible path and must not appear in messages.

    Such a string can be the content of a table. A path is a single printable line. A long one must
    exist, or its parent folder (before any glob pattern) must.
    """
    text = str(path)
    if not text.isprintable():
        return False
    plain = Path(*takewhile(lambda part: not glob.has_magic(part), path.parts))
    try:
        place = plain.parent if plain == path else plain
        named = len(text) <= _LONGEST or (len(path.name) <= _LONGEST and os.path.lexists(place))
        return named or os.path.lexists(path)
    except OSError:  # longer than file systems allow
        return False


def not_a_file(path: Path) -> str | None:
    """Return why ``path`` cannot be read as a regular file, or None. Opening a pipe could block
    forever.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return (
            f"cannot be read ({error.strerror})"
            if path.is_symlink() or path.exists()
            else "no such file"
        )
    if stat.S_ISDIR(mode):
        return "this is a folder, not a file"
    return None if stat.S_ISREG(mode) else "this is a pipe or device, not a file"


def create_once(path: Location, data: bytes) -> bool:
    """Create a file atomically with mode 0600. Return False, without changing it, if the path
    exists.
    """
    if isinstance(path, ObjectPath):
        return path.create(data)
    with folders.opened(path.parent) as folder:
        return folders.create(folder, path.name, data)


def open_regular(path: Location, *, below: Location | None = None) -> io.BufferedReader:
    """Open a regular file, or an object, for reading.

    Args:
        path: File or object.
        below: Folder to which others may write. If it contains the file, links below it are not
            followed.

    Raises:
        OSError: If it cannot be opened, or is a folder, pipe or device.
    """
    if isinstance(path, ObjectPath):
        return path.open("rb")
    if isinstance(below, Path):
        root, file = Path(os.path.abspath(below)), Path(os.path.abspath(path))
        if root in file.parents:
            *parts, name = file.relative_to(root).parts
            with folders.opened(below, *parts) as folder:
                return folders.open_file(folder, name)
    return folders.regular(os.open(path, os.O_RDONLY | os.O_NONBLOCK), str(path))


def read_regular(
    path: Location, *, below: Location | None = None, most: int | None = None
) -> bytes:
    """Read a regular file, or an object.

    Args:
        path: File or object.
        below: See :func:`open_regular`.
        most: Maximum number of bytes to read. None: no maximum.

    Raises:
        OSError: If it cannot be read, or is a folder, pipe or device.
    """
    if isinstance(path, ObjectPath):
        return path.read_bytes(most)
    with open_regular(path, below=below) as stream:
        return stream.read(-1 if most is None else most)


def read_hashed_bytes(
    path: Location, sha256: str, *, below: Location | None = None
) -> bytes | None:
    """Read a regular file, or an object, if its bytes have this SHA-256 (hex); otherwise return
    None.

    The file is hashed in constant memory before it is read, so an unexpected large file does not
    exhaust the memory.
    """
    with open_regular(path, below=below) as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            return None
        size = stream.tell()
        stream.seek(0)
        data = stream.read(size)
    return data if hashlib.sha256(data).hexdigest() == sha256 else None


def names(folder: Location) -> list[str]:
    """Return the sorted names in ``folder``, or [] if it does not exist. Raise OSError if it cannot
    be read.
    """
    if isinstance(folder, ObjectPath):
        return folder.names()
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def contents(folder: Location, only: str | None = None) -> dict[str, bytes]:
    """Return the bytes of each file in ``folder`` by name, except names that start with a dot.

    A missing folder is empty. Unlike a glob, this raises OSError if the folder cannot be read.

    Args:
        folder: Folder to read.
        only: Name of the only file to read, if it is there. None: all.
    """
    if only is not None:
        try:
            return {only: read_regular(folder / only)}
        except OSError as error:
            if error.errno == errno.ENOENT:  # errors of object stores have no class of their own
                return {}
            raise
    if isinstance(folder, ObjectPath):
        return folder.contents()
    return {name: read_regular(folder / name) for name in names(folder) if not name.startswith(".")}


def reason(error: OSError) -> str:
    """Return the path and message of a system error."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)


def fix_of(error: OSError) -> str:
    """Return the advice of a FolderError as a further sentence, or "" for other errors."""
    return f" Fix: {error.fix}." if isinstance(error, FolderError) else ""


def make_folder(folder: Path, mode: int) -> Path:
    """Create ``folder`` and missing parents with this mode, independent of the umask. Existing ones
    keep their mode.
    """
    there = next((one for one in (folder, *folder.parents) if one.exists()), folder)
    if there != folder:
        with folders.opened(there, *folder.relative_to(there).parts, mode=mode):
            pass
    return folder


def private_folder(folder: P) -> P:
    """Create ``folder`` and missing parents with mode 0700. Existing ones keep their mode.

    The topmost new folder is ignored by git. Object stores have no folders to create.
    """
    if isinstance(folder, ObjectPath):
        return folder
    made = next((one for one in reversed([folder, *folder.parents]) if not one.exists()), None)
    make_folder(folder, 0o700)
    if made is not None:
        ignore_in_git(made)
    return folder


def ignore_in_git(folder: Path) -> None:
    """Make git ignore the content of ``folder`` by a ``.gitignore`` with ``*``, in it or in a
    folder above it.
    """
    for one in (folder, *folder.absolute().parents):
        with suppress(OSError):
            if read_regular(one / _GITIGNORE) == _IGNORE_ALL:
                return
        if (one / ".git").exists():  # folders above belong to another repository
            break
    create_once(folder / _GITIGNORE, _IGNORE_ALL)


def check_private(folder: P) -> P:
    """Raise ConfigError if other users may enter ``folder`` or replace it.

    Object stores are not checked here.
    """
    if isinstance(folder, ObjectPath):
        return folder
    facts = folder.stat()
    if facts.st_mode & 0o077:
        text = f"{folder}: other users can access the gate's private folder. Fix: chmod 700."
        raise ConfigError(text + _fs_group(facts))
    if facts.st_uid != os.getuid():
        raise ConfigError(
            f"{folder}: the gate's private folder belongs to another user (uid {facts.st_uid})."
            " Fix: chown."
        )
    check_above(folder)
    return folder


def check_kept(path: Path, believed: int | None = None) -> None:
    """Raise ConfigError if another user than the current one and root can change or replace
    ``path``.

    Args:
        path: File or folder.
        believed: Id of a further user who may change it.

    Raises:
        ConfigError: If there is such a user.
        OSError: If it does not exist.
    """
    facts = path.stat()
    if facts.st_uid not in {0, os.getuid(), believed}:
        text = f"{path}: this trusted file or folder belongs to another user (uid {facts.st_uid})"
        raise ConfigError(f"{text}. Fix: chown it, or use your own copy.")
    if facts.st_mode & _OTHERS_WRITE:
        who = "every user" if facts.st_mode & stat.S_IWOTH else "a group"
        text = f"{path}: {who} may write to this trusted file or folder. Fix: chmod go-w."
        raise ConfigError(text + _fs_group(facts))
    check_above(path, believed)


def check_code(path: Path, believed: int) -> None:
    """Raise ConfigError if another user than the current one and root can change or replace
    ``path``, which is run.

    As in :func:`check_kept`, but a group whose only member is the owner may write.

    Args:
        path: File or folder.
        believed: Id of a further user who may change it, such as the owner of the source.

    Raises:
        ConfigError: If there is such a user.
        OSError: If it does not exist.
    """
    facts = path.stat()
    if facts.st_uid not in {0, os.getuid(), believed}:
        raise ConfigError(
            f"{path} belongs to another user (uid {facts.st_uid}). Fix: remove it, or chown it."
        )
    if _others_write(facts):
        raise ConfigError(
            f"{path}: other users may write to it. Fix: chmod go-w {path}.{_fs_group(facts)}"
        )
    check_above(path, believed)


def check_above(path: Path, believed: int | None = None) -> None:
    """Raise ConfigError if a folder above ``path`` permits another user to replace it.

    As in ssh, but with exceptions. Sticky folders (/tmp) and read-only file systems are accepted,
    because others cannot rename files there. A group whose only member is the owner is accepted. If
    the process runs as root, the owner of the folders does not matter, because a container can use
    folders of the host's user.
    """
    real, users = path.resolve(), {0, os.getuid(), believed}
    for folder in dict.fromkeys([*path.absolute().parents, *real.parents]):
        facts = folder.stat()
        if facts.st_uid not in users and os.getuid() != 0:
            raise ConfigError(
                f"{path}: {folder} belongs to another user (uid {facts.st_uid}), who could"
                " replace it."
            )
        if (
            facts.st_mode & stat.S_ISVTX
            or not _others_write(facts)
            or os.statvfs(folder).f_flag & os.ST_RDONLY
        ):
            continue
        text = (
            f"{path}: other users may write to {folder}, and could replace it. Fix: chmod go-w"
            f" {folder}."
        )
        raise ConfigError(text + _fs_group(facts))


def _fs_group(facts: os.stat_result) -> str:
    """Return the fix for a folder that Kubernetes may have made writable for the group of a volume,
    or "".
    """
    return _FS_GROUP if facts.st_mode & stat.S_ISGID and facts.st_mode & stat.S_IWGRP else ""


def _others_write(facts: os.stat_result) -> bool:
    if not facts.st_mode & stat.S_IWGRP or facts.st_mode & stat.S_IWOTH:
        return bool(facts.st_mode & stat.S_IWOTH)
    try:
        user, group = pwd.getpwuid(facts.st_uid), grp.getgrgid(facts.st_gid)
    except KeyError:
        return True
    return group.gr_name != user.pw_name or not {*group.gr_mem} <= {user.pw_name}


def read_secret(path: Path, *, fix: str = "restore it") -> bytes:
    """Read a secret file. ConfigError unless it is a regular file of the current user that others
    cannot read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(
            f"{path}: the secret cannot be read ({error.strerror}). Fix: {fix}."
        ) from None
    try:
        facts = os.fstat(descriptor)  # before os.fdopen, which fails for folders
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
            raise ConfigError(
                f"{path}: the secret must be your own regular file with mode 0600. Fix: chmod 600."
            )
        return os.read(descriptor, 65536)
    finally:
        os.close(descriptor)
