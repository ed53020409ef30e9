"""Object stores: places known by a URL, with those operations of ``pathlib.Path`` that an object store can keep.

An object appears whole or not at all, and there are neither locks nor renames. What must happen once is decided by
:meth:`ObjectPath.create`, which the store itself refuses when the object is there (S3: If-None-Match, Google Cloud
Storage: ifGenerationMatch).
"""

from __future__ import annotations

import errno
import glob
import io
import os
import posixpath
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from privacy_assets.errors import ConfigError, StoreError, shown
from privacy_assets.storage.work import WorkFolder

# The places of a deployment, where nobody names them.
RELEASES_VARIABLE, PRIVATE_VARIABLE = "PRIVACY_ASSETS_RELEASES", "PRIVACY_ASSETS_PRIVATE"
_AT_ONCE = 16  # requests
_WRITABLE = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}  # protocols that create once; the extra each needs


@dataclass(frozen=True, slots=True, order=True)
class ObjectPath:
    """A place in an object store. Nothing is cached: every call asks the store.

    All errors of a store are StoreError, an OSError with an errno and the URL, the server's own words left out;
    ConfigError when the library for its protocol is not installed, or, on writing, when the store is not known to
    create an object once.
    """

    url: str

    def __truediv__(self, part: str) -> ObjectPath:
        return ObjectPath(f"{self.url}/{part}")

    def joinpath(self, *parts: str) -> ObjectPath:
        """The place below this one."""
        return ObjectPath("/".join([self.url, *parts]))

    def __str__(self) -> str:
        return self.url.partition("?")[0] if self.protocol in ("http", "https") else self.url  # a query may sign

    @property
    def name(self) -> str:
        """The last part."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """The place above."""
        return ObjectPath(self.url.rpartition("/")[0])

    @property
    def suffix(self) -> str:
        """What the name ends with, from its last point on."""
        return posixpath.splitext(self.name)[1]

    @property
    def protocol(self) -> str:
        """What the URL starts with."""
        return self.url.partition("://")[0]

    def absolute(self) -> ObjectPath:
        """The place itself."""
        return self

    def is_file(self) -> bool:
        """True when there is an object of this very name."""
        return self._kind() == "file"

    def is_dir(self) -> bool:
        """True when there are objects below this name."""
        return bool(self.names())

    def exists(self) -> bool:
        """True when there is an object of this name, or below it."""
        return self.is_file() or self.is_dir()

    def names(self) -> list[str]:
        """Names of what lies directly below, sorted; none where there is nothing."""
        with self._store() as (store, key):
            try:
                found = store.ls(key, detail=False)
            except FileNotFoundError:
                return []
            below = [str(name).rstrip("/") for name in found]
            return sorted({posixpath.basename(name) for name in below if name not in (key, "")})

    def glob(self, pattern: str) -> list[ObjectPath]:
        """Objects below that match, sorted."""
        with self._store() as (store, key):
            return sorted(self._of(store, name) for name in store.glob(f"{glob.escape(key)}/{pattern}"))

    def matches(self) -> list[ObjectPath]:
        """Objects that the URL itself matches, when it holds a pattern."""
        with self._store() as (store, key):
            return sorted(self._of(store, name) for name in store.glob(key))

    def below(self) -> list[str]:
        """Names of all objects below, relative, however deep."""
        with self._store() as (store, key):
            return sorted(str(name)[len(key) + 1 :] for name in store.find(key))

    def contents(self) -> dict[str, bytes]:
        """The bytes of every object directly below, by name, but for those that begin with a point."""
        names = [name for name in self.names() if not name.startswith(".")]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(zip(names, pool.map(lambda name: (self / name).read_bytes(), names), strict=True))

    def version(self) -> list[Any]:
        """Size and entity tag or time, of which one changes with the bytes."""
        with self._store() as (store, key):
            facts = store.info(key)
            mark = next(
                (facts[name] for name in ("ETag", "etag", "LastModified", "mtime", "created") if name in facts), ""
            )
            return [facts.get("size"), str(mark)]

    def read_bytes(self) -> bytes:
        """All bytes."""
        with self._store() as (store, key):
            return bytes(store.cat_file(key))

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """The bytes as a local stream: fetched first, into a file that nobody else can open."""
        if mode != "rb":
            raise ValueError(f"an object is read by open, not written ({mode!r})")
        with WorkFolder() as folder, self._store() as (store, key):
            store.get_file(key, str(folder / "object"))
            return (folder / "object").open("rb")  # the name goes, the stream stays

    def put(self, write: bytes | memoryview | Callable[[BinaryIO], None]) -> ObjectPath:
        """Place bytes, or what ``write(stream)`` writes: a reader gets the old object or the new one."""
        self._check_writable()
        if callable(write):
            with WorkFolder() as folder:
                with (folder / "object").open("wb") as draft:
                    write(draft)  # what it raises is no error of the store
                with self._store() as (store, key):
                    store.put_file(str(folder / "object"), key)
            return self
        with self._store() as (store, key):
            store.pipe_file(key, bytes(write))
        return self

    def create(self, data: bytes) -> bool:
        """Place bytes where nothing is; False when other bytes are there, which stay.

        True too when these very bytes are there: a request whose answer was lost is sent again. Servers say in many
        ways that something is there, so whatever they say, it is looked at.
        """
        self._check_writable()
        try:
            with self._store() as (store, key):
                store.pipe_file(key, data, mode="create")
        except StoreError as error:
            try:
                return self.read_bytes() == data
            except StoreError:
                raise error from None
        return True

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object."""
        with self._store() as (store, key):
            try:
                store.rm_file(key)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def remove_below(self) -> None:
        """Remove every object below."""
        for name in self.below():
            (self / name).unlink(missing_ok=True)

    def upload(self, folder: Path) -> None:
        """Place every file below ``folder``."""
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            with file.open("rb") as stream:
                self.joinpath(*file.relative_to(folder).parts).put(lambda target: _copy(stream, target))

    def download(self, folder: Path) -> None:
        """Fetch every object below into ``folder``."""
        for name in self.below():
            target = folder / name
            if folder.resolve() not in target.resolve().parents:
                raise OSError(errno.EINVAL, "a name leaves its folder", str(self))
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._store() as (store, key):
                store.get_file(f"{key}/{name}", str(target))

    def _kind(self) -> str:
        with self._store() as (store, key):
            try:
                return str(store.info(key)["type"])
            except FileNotFoundError:
                return ""

    def _of(self, store: Any, name: str) -> ObjectPath:
        return ObjectPath(f"{self.protocol}://{store._strip_protocol(name).lstrip('/')}")

    def _check_writable(self) -> None:
        if self.protocol not in _WRITABLE:
            known = ", ".join(f"{name}://" for name in _WRITABLE)
            raise ConfigError(f"{self}: nothing is written there, since it may overwrite what is there. Fix: {known}.")

    @contextmanager
    def _store(self) -> Iterator[tuple[Any, str]]:
        """The file system and the key; whatever goes wrong there is an OSError."""
        from fsspec.core import url_to_fs

        try:
            store, key = url_to_fs(self.url, use_listings_cache=False)
        except (ImportError, ValueError, OSError) as error:
            extra = _WRITABLE.get(self.protocol)
            fix = f" Fix: pip install 'privacy-assets[{extra}]'." if extra and isinstance(error, ImportError) else ""
            raise ConfigError(f"{self}: no library for {self.protocol}:// works here.{fix}") from None
        try:
            yield store, key
        except OSError as error:
            number = next((number for kind, number in _KINDS.items() if isinstance(error, kind)), error.errno)
            raise StoreError(number or errno.EIO, _words(number or errno.EIO), str(self)) from None
        except Exception as error:  # noqa: BLE001 (every library of a store has errors of its own)
            raise StoreError(errno.EIO, f"{os.strerror(errno.EIO)}: {type(error).__name__}", str(self)) from None


_KINDS = {FileNotFoundError: errno.ENOENT, FileExistsError: errno.EEXIST, PermissionError: errno.EACCES}


def _words(number: int) -> str:
    return "no such bucket or object" if number == errno.ENOENT else os.strerror(number)


Location = Path | ObjectPath


def location(given: str | Location) -> Location:
    """A path, or the place that a URL (``s3://bucket/folder``) names; ConfigError for neither.

    What looks like a mistyped URL is no path: it would put private rows into a folder of this machine.
    """
    if isinstance(given, ObjectPath):
        return given
    text = path_text(given)
    scheme, mark, rest = text.partition("://")
    if not text or (not mark and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text)):
        raise ConfigError(f"{shown(text)} is neither a path nor a URL such as s3://bucket/folder.")
    if not mark:
        return Path(text)
    if scheme.lower() == "file":
        if not rest.startswith("/"):
            raise ConfigError(f"{shown(text)}: a file URL needs three slashes (file:///folder).")
        return Path(rest)
    _check_scheme(scheme.lower())
    if not rest.strip("/"):
        raise ConfigError(f"{shown(text)}: the URL names no bucket.")
    return ObjectPath(f"{scheme.lower()}://{rest.strip('/')}")


def path_text(given: object) -> str:
    """The text of a path or URL, whatever a subclass makes of it; ConfigError for another object."""
    if isinstance(given, str):
        return str.__str__(given)
    if isinstance(given, PurePath):
        return PurePath.__str__(given)
    raise ConfigError(f"give a path, or a URL such as s3://bucket/folder, not {type(given).__name__}.")


def _check_scheme(scheme: str) -> None:
    """ConfigError for a protocol that fsspec does not know."""
    from fsspec import available_protocols

    known = set(available_protocols())
    if scheme not in known:
        close = get_close_matches(scheme, sorted(known), n=1, cutoff=0.65) or get_close_matches(
            scheme, [*_WRITABLE], n=1, cutoff=0.5
        )
        hint = f" Did you mean {close[0]}://?" if close else " Known are s3://, gs:// and others that fsspec lists."
        raise ConfigError(f"{shown(scheme)} is no protocol of a URL.{hint}")


@contextmanager
def local_copy(folder: Location) -> Iterator[Path]:
    """``folder`` on this machine, as long as this lasts: itself, or a copy of the objects below, for the own user only.

    What is written into a copy is not put back: see :meth:`ObjectPath.upload`.
    """
    if isinstance(folder, Path):
        yield folder
        return
    with WorkFolder() as copy:
        folder.download(copy)
        yield copy


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    while block := source.read(1 << 20):
        target.write(block)
