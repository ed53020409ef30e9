"""File operations on disk: atomic writes, verified reads and permissions."""

from __future__ import annotations

import glob
import grp
import io
import os
import pwd
import stat
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from privacy_assets.errors import ConfigError, FolderError
from privacy_assets.infra import folders

_LONGEST = 80  # maximum length of a path that may appear in messages without further checks

_GITIGNORE = ".gitignore"
_IGNORE_ALL = b"*\n"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FS_GROUP = (
    " On a Kubernetes volume with fsGroup, mount a subPath of it and set fsGroupChangePolicy to"
    " OnRootMismatch"
    " (docs/kubernetes.md)."
)


def put_atomic(path: Path, write: folders.Writer, *, mode: int = 0o600) -> Path:
    """Write a file atomically, after creating its parent folders.

    A reader sees the old bytes or the new ones, never a mixture: a temporary file next to the
    target is written, flushed to disk and renamed, and the folder is flushed last. On any error,
    the target is unchanged and the temporary file is removed. Temporary files of killed processes
    are removed by the next write.

    Args:
        path: Target.
        write: Bytes, or a function that writes to the stream that it gets.
        mode: Mode of the file. New parent folders are readable by others only if the file is.

    Returns:
        The target.

    Raises:
        OSError: If it cannot be written.
    """
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

    Args:
        path: Path that a user passed.
    """
    text = str(path)
    if not text.isprintable():
        return False
    if len(text) <= _LONGEST:
        return True
    folder = Path(*takewhile(lambda part: not glob.has_magic(part), path.parts))
    if folder == path:
        folder = path.parent
    try:
        if len(path.name) <= _LONGEST and os.path.lexists(folder):
            return True
        return os.path.lexists(path)
    except OSError:  # longer than file systems allow
        return False


def not_a_file(path: Path) -> str | None:
    """Return why ``path`` cannot be read as a regular file, or None. Opening a pipe could block
    forever.

    Args:
        path: Path.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if path.is_symlink() or path.exists():
            return f"cannot be read ({error.strerror})"
        return "no such file"
    if stat.S_ISDIR(mode):
        return "this is a folder, not a file"
    if not stat.S_ISREG(mode):
        return "this is a pipe or device, not a file"
    return None


def create_once(path: Path, data: bytes) -> bool:
    """Create a file atomically with mode 0600.

    Args:
        path: File.
        data: Its bytes.

    Returns:
        False if the path exists, which does not change it.

    Raises:
        OSError: If it cannot be created.
    """
    with folders.opened(path.parent) as folder:
        return folders.create(folder, path.name, data)


def open_regular(path: Path, *, below: Path | None = None) -> io.BufferedReader:
    """Open a regular file for reading.

    Args:
        path: File.
        below: Folder to which others may write. If it contains the file, links below it are not
            followed.

    Raises:
        OSError: If it cannot be opened, or is a folder, pipe or device.
    """
    if below is not None:
        root = Path(os.path.abspath(below))
        file = Path(os.path.abspath(path))
        if root in file.parents:
            *parts, name = file.relative_to(root).parts
            with folders.opened(below, *parts) as folder:
                return folders.open_file(folder, name)
    return folders.regular(os.open(path, os.O_RDONLY | os.O_NONBLOCK), str(path))


def read_regular(path: Path, *, below: Path | None = None, most: int | None = None) -> bytes:
    """Read a regular file.

    Args:
        path: File.
        below: See :func:`open_regular`.
        most: Maximum number of bytes to read. None: no maximum.

    Raises:
        OSError: If it cannot be read, or is a folder, pipe or device.
    """
    with open_regular(path, below=below) as stream:
        return stream.read(most)


def names(folder: Path) -> list[str]:
    """Return the sorted names in ``folder``, or [] if it does not exist.

    Args:
        folder: Folder.

    Raises:
        OSError: If it cannot be read.
    """
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def reason(error: OSError) -> str:
    """Return the path and message of a system error."""
    if error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error.strerror)


def fix_of(error: OSError) -> str:
    """Return the advice of a FolderError as a further sentence, or "" for other errors."""
    if isinstance(error, FolderError):
        return f" Fix: {error.fix}."
    return ""


def make_folder(folder: Path, mode: int) -> Path:
    """Create ``folder`` and missing parents, independent of the umask.

    Args:
        folder: Folder.
        mode: Mode of new folders. Existing ones keep their mode.

    Returns:
        The folder.

    Raises:
        OSError: If it cannot be created.
    """
    existing = folder
    for path in (folder, *folder.parents):
        if path.exists():
            existing = path
            break
    if existing != folder:
        with folders.opened(existing, *folder.relative_to(existing).parts, mode=mode):
            pass
    return folder


def private_folder(folder: Path) -> Path:
    """Create ``folder`` and missing parents with mode 0700. Existing ones keep their mode.

    The topmost new folder is ignored by git.

    Args:
        folder: Folder.

    Returns:
        The folder.

    Raises:
        OSError: If it cannot be created.
    """
    topmost = None
    for path in (*reversed(folder.parents), folder):
        if not path.exists():
            topmost = path
            break
    make_folder(folder, 0o700)
    if topmost is not None:
        ignore_in_git(topmost)
    return folder


def ignore_in_git(folder: Path) -> None:
    """Make git ignore the content of ``folder`` by a ``.gitignore`` with ``*``, in it or in a
    folder above it.

    Args:
        folder: Folder.

    Raises:
        OSError: If the file cannot be written.
    """
    for path in (folder, *folder.absolute().parents):
        with suppress(OSError):
            if read_regular(path / _GITIGNORE) == _IGNORE_ALL:
                return
        if (path / ".git").exists():  # folders above belong to another repository
            break
    create_once(folder / _GITIGNORE, _IGNORE_ALL)


def check_private(folder: Path) -> Path:
    """Check that no other user may enter the private folder or replace it.

    Args:
        folder: Private folder.

    Returns:
        The folder.

    Raises:
        ConfigError: If another user may.
        OSError: If it does not exist.
    """
    facts = folder.stat()
    if facts.st_mode & 0o077:
        raise ConfigError(
            f"{folder}: other users can access the gate's private folder. Fix: chmod"
            f" 700.{_fs_group(facts)}"
        )
    if facts.st_uid != os.getuid():
        raise ConfigError(
            f"{folder}: the gate's private folder belongs to another user (uid {facts.st_uid})."
            " Fix: chown."
        )
    check_above(folder)
    return folder


def check_kept(path: Path, trusted_uid: int | None = None) -> None:
    """Check that no other user than the current one and root can change or replace ``path``.

    Args:
        path: File or folder.
        trusted_uid: Id of a further user who may change it.

    Raises:
        ConfigError: If there is such a user.
        OSError: If it does not exist.
    """
    facts = path.stat()
    if facts.st_uid not in {0, os.getuid(), trusted_uid}:
        raise ConfigError(
            f"{path}: this trusted file or folder belongs to another user (uid {facts.st_uid})."
            " Fix: chown it, or use your own copy."
        )
    if facts.st_mode & _OTHERS_WRITE:
        who = "every user" if facts.st_mode & stat.S_IWOTH else "a group"
        raise ConfigError(
            f"{path}: {who} may write to this trusted file or folder. Fix: chmod"
            f" go-w.{_fs_group(facts)}"
        )
    check_above(path, trusted_uid)


def check_code(path: Path, trusted_uid: int) -> None:
    """Raise ConfigError if another user than the current one and root can change or replace
    ``path``, which is run.

    As in :func:`check_kept`, but a group whose only member is the owner may write.

    Args:
        path: File or folder.
        trusted_uid: Id of a further user who may change it, such as the owner of the source.

    Raises:
        ConfigError: If there is such a user.
        OSError: If it does not exist.
    """
    facts = path.stat()
    if facts.st_uid not in {0, os.getuid(), trusted_uid}:
        raise ConfigError(
            f"{path} belongs to another user (uid {facts.st_uid}). Fix: remove it, or chown it."
        )
    if _others_write(facts):
        raise ConfigError(
            f"{path}: other users may write to it. Fix: chmod go-w {path}.{_fs_group(facts)}"
        )
    check_above(path, trusted_uid)


def check_above(path: Path, trusted_uid: int | None = None) -> None:
    """Check that no folder above ``path`` permits another user to replace it.

    As in ssh, but with exceptions. Sticky folders (/tmp) and read-only file systems are accepted,
    because others cannot rename files there. A group whose only member is the owner is accepted. If
    the process runs as root, the owner of the folders does not matter, because a container can use
    folders of the host's user.

    Args:
        path: File or folder.
        trusted_uid: Id of a further user who may replace it.

    Raises:
        ConfigError: If a folder permits it.
        OSError: If a folder does not exist.
    """
    users = {0, os.getuid(), trusted_uid}
    real_path = path.resolve()
    for folder in dict.fromkeys([*path.absolute().parents, *real_path.parents]):
        facts = folder.stat()
        if facts.st_uid not in users and os.getuid() != 0:
            raise ConfigError(
                f"{path}: {folder} belongs to another user (uid {facts.st_uid}), who could"
                " replace it."
            )
        if facts.st_mode & stat.S_ISVTX or not _others_write(facts):
            continue
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            continue
        raise ConfigError(
            f"{path}: other users may write to {folder}, and could replace it. Fix: chmod go-w"
            f" {folder}.{_fs_group(facts)}"
        )


def _fs_group(facts: os.stat_result) -> str:
    """Return the fix for a folder that Kubernetes may have made writable for the group of a volume,
    or "".
    """
    if facts.st_mode & stat.S_ISGID and facts.st_mode & stat.S_IWGRP:
        return _FS_GROUP
    return ""


def _others_write(facts: os.stat_result) -> bool:
    """Return True if other users may write. A group whose only member is the owner may."""
    if facts.st_mode & stat.S_IWOTH:
        return True
    if not facts.st_mode & stat.S_IWGRP:
        return False
    try:
        user = pwd.getpwuid(facts.st_uid)
        group = grp.getgrgid(facts.st_gid)
    except KeyError:
        return True
    return group.gr_name != user.pw_name or not {*group.gr_mem} <= {user.pw_name}


def read_key(path: Path, *, fix: str = "restore it") -> bytes:
    """Read a file with a key.

    Args:
        path: File.
        fix: What to do if it cannot be read.

    Raises:
        ConfigError: If it is not a regular file of the current user that others cannot read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(
            f"{path}: this key file cannot be read ({error.strerror}). Fix: {fix}."
        ) from None
    try:
        facts = os.fstat(descriptor)  # before os.fdopen, which fails for folders
        is_own_file = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.getuid()
        if not is_own_file or facts.st_mode & 0o077:
            raise ConfigError(
                f"{path}: this key file must be your own regular file with mode 0600."
                " Fix: chmod 600."
            )
        return os.read(descriptor, 65536)
    finally:
        os.close(descriptor)
