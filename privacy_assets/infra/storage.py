"""Files and folders at a location: :class:`Disk` and :class:`Objects` have the same operations."""

from __future__ import annotations

import hashlib
import io
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from privacy_assets.infra import files, folders
from privacy_assets.infra.folders import Writer
from privacy_assets.infra.objects import Location, ObjectPath
from privacy_assets.infra.temp_folders import WorkFolder


class Storage(Protocol):
    """Operations at one location, which all raise OSError if the disk or store fails."""

    @property
    def local(self) -> Path | None:
        """Path on this machine. None in an object store."""

    @property
    def protocol(self) -> str:
        """Protocol of the URL. "file" on disk."""

    def put(self, write: Writer) -> None:
        """Write a file atomically, with mode 0600 and after creating its parent folders.

        Args:
            write: Bytes, or a function that writes to the stream that it gets.
        """

    def create(self, data: bytes) -> bool:
        """Create a file atomically, with mode 0600.

        Args:
            data: Bytes of the file.

        Returns:
            False if the file exists, which does not change it. True for an object that exists with
            these bytes, see :meth:`.ObjectPath.create`.
        """

    def open(self, *, below: Location | None = None) -> io.BufferedReader:
        """Open a regular file for reading.

        Args:
            below: Folder to which others may write. If it is on the same disk and contains the
                file, links below it are not followed.
        """

    def read(self, *, below: Location | None = None, most: int | None = None) -> bytes:
        """Return the bytes of a regular file.

        Args:
            below: See :meth:`open`.
            most: Maximum number of bytes to read. None: no maximum.
        """

    def size(self) -> int | None:
        """Return the size of a file in bytes. None: the store does not report it."""

    def version(self) -> list[Any] | None:
        """Return facts that change with the content of a file. None: the store has no tags."""

    def names(self) -> list[str]:
        """Return the sorted names in a folder, or [] if it does not exist."""

    def make_folder(self, mode: int) -> None:
        """Create a folder and missing parents. Object stores have no folders to create.

        Args:
            mode: Mode of new folders. Existing ones keep their mode.
        """

    def make_private(self) -> None:
        """Create a folder and missing parents with mode 0700, ignored by git."""

    def check_private(self) -> None:
        """Raise ConfigError if another user may enter a private folder or replace it.

        Object stores are not checked here.
        """

    def ignore_in_git(self) -> None:
        """Make git ignore the content of a folder."""

    def remove_below(self) -> None:
        """Remove a folder and its content. Errors on disk are ignored."""

    def explained(self) -> AbstractContextManager[None]:
        """Add this folder and the fix to errors of a disk, see :func:`.folders.explained`."""

    def local_copy(self) -> AbstractContextManager[Path]:
        """Yield a folder itself, or a private temporary copy of its objects, not uploaded."""

    def edited(self) -> AbstractContextManager[Path]:
        """Yield :meth:`local_copy`, and upload it at the end, also after an error."""

    def filled(self) -> AbstractContextManager[Path]:
        """Yield a new private folder. Its files are at this location if no error occurs."""

    def draft(self) -> AbstractContextManager[Path]:
        """Yield a new private folder for :meth:`take` of a location below. It is removed."""

    def take(self, draft: Path) -> None:
        """Replace a folder by the files of ``draft``.

        Args:
            draft: Folder of :meth:`draft`.
        """


@dataclass(frozen=True, slots=True)
class Disk:
    """Operations on disk.

    Attributes:
        path: File or folder.
    """

    path: Path

    @property
    def local(self) -> Path:
        """The path."""
        return self.path

    @property
    def protocol(self) -> str:
        """The protocol of files."""
        return "file"

    def put(self, write: Writer) -> None:
        """See :func:`.put_atomic`."""
        files.put_atomic(self.path, write)

    def create(self, data: bytes) -> bool:
        """See :func:`.create_once`."""
        return files.create_once(self.path, data)

    def open(self, *, below: Location | None = None) -> io.BufferedReader:
        """See :func:`.open_regular`."""
        return files.open_regular(self.path, below=local_path(below))

    def read(self, *, below: Location | None = None, most: int | None = None) -> bytes:
        """See :func:`.read_regular`."""
        return files.read_regular(self.path, below=local_path(below), most=most)

    def size(self) -> int:
        """Return the size in bytes."""
        return self.path.stat().st_size

    def version(self) -> list[Any]:
        """Return size, inode and times of the last change."""
        facts = self.path.stat()
        return [facts.st_size, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns]

    def names(self) -> list[str]:
        """See :func:`.names`."""
        return files.names(self.path)

    def make_folder(self, mode: int) -> None:
        """See :func:`.make_folder`."""
        files.make_folder(self.path, mode)

    def make_private(self) -> None:
        """See :func:`.private_folder`."""
        files.private_folder(self.path)

    def check_private(self) -> None:
        """See :func:`.check_private`."""
        files.check_private(self.path)

    def ignore_in_git(self) -> None:
        """See :func:`.ignore_in_git`."""
        files.ignore_in_git(self.path)

    def remove_below(self) -> None:
        """Remove the folder, and ignore errors."""
        shutil.rmtree(self.path, ignore_errors=True)

    def explained(self) -> AbstractContextManager[None]:
        """See :func:`.folders.explained`."""
        return folders.explained(self.path)

    def local_copy(self) -> AbstractContextManager[Path]:
        """Yield the folder."""
        return nullcontext(self.path)

    def edited(self) -> AbstractContextManager[Path]:
        """Yield the folder."""
        return nullcontext(self.path)

    def filled(self) -> AbstractContextManager[Path]:
        """Yield the folder, which is created."""
        return nullcontext(files.private_folder(self.path))

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield a folder in this one, so that it can be renamed."""
        draft = files.private_folder(self.path / f".{uuid.uuid4().hex}")
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def take(self, draft: Path) -> None:
        """Rename ``draft``, after removing the folder."""
        self.remove_below()
        self.path.unlink(missing_ok=True)
        draft.rename(self.path)


@dataclass(frozen=True, slots=True)
class Objects:
    """Operations in an object store.

    Attributes:
        path: Object, or prefix of objects.
    """

    path: ObjectPath

    @property
    def local(self) -> None:
        """No path."""
        return

    @property
    def protocol(self) -> str:
        """See :attr:`.ObjectPath.protocol`."""
        return self.path.protocol

    def put(self, write: Writer) -> None:
        """See :meth:`.ObjectPath.put`."""
        self.path.put(write)

    def create(self, data: bytes) -> bool:
        """See :meth:`.ObjectPath.create`."""
        return self.path.create(data)

    def open(self, *, below: Location | None = None) -> io.BufferedReader:
        """See :meth:`.ObjectPath.open`."""
        return self.path.open()

    def read(self, *, below: Location | None = None, most: int | None = None) -> bytes:
        """See :meth:`.ObjectPath.read_bytes`."""
        return self.path.read_bytes(most)

    def size(self) -> int | None:
        """Return the size in bytes."""
        size, _ = self.path.version()
        return size

    def version(self) -> list[Any] | None:
        """Return size and tag, or None without a tag."""
        size, tag = self.path.version()
        return [size, tag] if tag else None

    def names(self) -> list[str]:
        """See :meth:`.ObjectPath.names`."""
        return self.path.names()

    def make_folder(self, mode: int) -> None:
        """Do nothing."""

    def make_private(self) -> None:
        """Do nothing."""

    def check_private(self) -> None:
        """Do nothing."""

    def ignore_in_git(self) -> None:
        """Do nothing."""

    def remove_below(self) -> None:
        """See :meth:`.ObjectPath.remove_below`."""
        self.path.remove_below()

    def explained(self) -> AbstractContextManager[None]:
        """Leave errors unchanged: they have their location."""
        return nullcontext()

    @contextmanager
    def local_copy(self) -> Iterator[Path]:
        """Yield a temporary copy."""
        with WorkFolder() as copy:
            self.path.download(copy)
            yield copy

    @contextmanager
    def edited(self) -> Iterator[Path]:
        """Yield a temporary copy, and upload it."""
        with self.local_copy() as copy:
            try:
                yield copy
            finally:
                self.path.upload(copy)

    @contextmanager
    def filled(self) -> Iterator[Path]:
        """Yield a temporary folder, and upload it."""
        with WorkFolder() as folder:
            yield folder
            self.path.upload(folder)

    def draft(self) -> AbstractContextManager[Path]:
        """Yield a temporary folder."""
        return WorkFolder()

    def take(self, draft: Path) -> None:
        """Upload ``draft``."""
        self.path.upload(draft)


def storage_of(location: Location) -> Storage:
    """Return the operations at a location.

    Args:
        location: Path or URL.
    """
    if isinstance(location, ObjectPath):
        return Objects(location)
    return Disk(location)


def local_path(location: Location | None) -> Path | None:
    """Return a location if it is a path on this machine, otherwise None.

    Args:
        location: Path, URL or None.
    """
    if location is None:
        return None
    return storage_of(location).local


def hash_file(path: Location, below: Location | None = None) -> str:
    """Return the SHA-256 (hex) of a regular file, or of an object.

    Args:
        path: File or object.
        below: See :meth:`Storage.open`.

    Raises:
        OSError: If it cannot be read, or is a folder, pipe or device.
    """
    with storage_of(path).open(below=below) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_hashed_bytes(
    path: Location, sha256: str, *, below: Location | None = None
) -> bytes | None:
    """Read a regular file, or an object, if its bytes have this SHA-256.

    The file is hashed in constant memory before it is read, so an unexpected large file does not
    exhaust the memory.

    Args:
        path: File or object.
        sha256: Expected SHA-256, in hex.
        below: See :meth:`Storage.open`.

    Returns:
        The bytes, or None if they have another SHA-256.

    Raises:
        OSError: If it cannot be read, or is a folder, pipe or device.
    """
    with storage_of(path).open(below=below) as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            return None
        size = stream.tell()
        stream.seek(0)
        data = stream.read(size)
    return data if hashlib.sha256(data).hexdigest() == sha256 else None
