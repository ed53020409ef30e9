"""Object stores: locations named by a URL, with the ``pathlib.Path`` operations that object stores
support.

Objects are written atomically, and there are no locks and no renames. :meth:`ObjectPath.create`
decides what happens once: the store itself rejects it if the object exists (S3: If-None-Match,
Google Cloud Storage: ifGenerationMatch).
"""

from __future__ import annotations

import errno
import glob
import io
import os
import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any, BinaryIO
from urllib.parse import unquote

from privacy_assets.errors import ConfigError, StoreError, safe_repr
from privacy_assets.infra.work import WorkFolder

# Default locations of a deployment.
RELEASES_VARIABLE, PRIVATE_VARIABLE = "PRIVACY_ASSETS_RELEASES", "PRIVACY_ASSETS_PRIVATE"
_AT_ONCE = 16  # concurrent requests
# they carry no secrets
_PARAMETERS = ("versionId", "generation", "version", "region", "endpoint_url", "format")
_SET = (
    "set the environment variables of the store's library (for s3:// AWS_ACCESS_KEY_ID and"
    " AWS_SECRET_ACCESS_KEY), or"
    " in Airflow name a Connection (store_conn_id)."
)
_CREDENTIALS = (
    "a URL must not contain credentials, because messages and signed records can show it. Fix:"
    f" {_SET}"
)
_QUERY = (
    "a URL must not contain credentials, because messages and signed records can show it, so"
    " its only parameters are"
    f" {', '.join(_PARAMETERS)}. Fix: leave out the others, or copy the file. For credentials,"
    f" {_SET}"
)
_PORT = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[^:]*)(:[0-9]*)?")
_NOT_SECRET = {name.lower() for name in _PARAMETERS}
_NAMES_USER = (  # user@host
    "abfs",
    "abfss",
    "wasb",
    "wasbs",
    "hdfs",
    "webhdfs",
    "sftp",
    "ssh",
    "smb",
    "oci",  # bucket@namespace
    "ocilake",
)
_NAMES_BRANCH = ("github",)  # organization:repository@branch
# with conditional create, and their extras
_WRITABLE = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
# Protocols that are recognized in a URL without slashes (https:host), which is a mistyped one.
_MISTYPED = "|".join((*_NAMES_USER, *_WRITABLE, "https?", "ftps?"))
_NO_SLASHES = rf"\b(?i:{_MISTYPED}):(?=[^/\\\s])"
_HOST = r"([^/\\?#\s]*)"
_AUTHORITY = re.compile(rf"([A-Za-z][A-Za-z0-9+.-]*:[/\\]+|{_NO_SLASHES}){_HOST}")
# A password in a URL with another protocol without slashes, or without a protocol
# (https//user:password@host).
_PASSWORD = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]*:|(?<![:/\\])[/\\]{2,})[^:@/\\?#\s]+:[^/\\?#\s]*@"
)
_URL = re.compile(rf"([A-Za-z][A-Za-z0-9+.-]+:[/\\]+|{_NO_SLASHES})(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class ObjectPath:
    """Location in an object store. Every call asks the store.

    Attributes:
        url: URL without a final slash.

    Raises:
        StoreError: On use, for every error of a store. It is an OSError with errno and URL, without
            the message of the server, which could contain secrets.
        ConfigError: On use, if the library for the protocol is not installed; on writing, if the
            store is not known to support conditional create.
    """

    url: str

    def __truediv__(self, part: str) -> ObjectPath:
        return ObjectPath(f"{self.url}/{part}")

    def joinpath(self, *parts: str) -> ObjectPath:
        """Return the location below this one."""
        return ObjectPath("/".join([self.url, *parts]))

    def __str__(self) -> str:
        # a query may sign
        return self.url.partition("?")[0] if self.protocol in ("http", "https") else self.url

    @property
    def name(self) -> str:
        """Last component of the URL."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """Location above this one."""
        return ObjectPath(self.url.rpartition("/")[0])

    @property
    def suffix(self) -> str:
        """Extension of the name, with its dot."""
        return posixpath.splitext(self.name)[1]

    @property
    def protocol(self) -> str:
        """Protocol of the URL."""
        return self.url.partition("://")[0]

    def absolute(self) -> ObjectPath:
        """Return the location itself."""
        return self

    def is_file(self) -> bool:
        """Return True if an object has exactly this name."""
        return self._kind() == "file"

    def is_dir(self) -> bool:
        """Return True if there are objects below this name."""
        return bool(self.names())

    def exists(self) -> bool:
        """Return True if there is an object of this name, or below it."""
        return self.is_file() or self.is_dir()

    def names(self) -> list[str]:
        """Return the sorted names directly below, or []."""
        with self._store() as (store, key):
            try:
                found = store.ls(key, detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
            below = [str(name).rstrip("/") for name in found]
            return sorted({posixpath.basename(name) for name in below if name not in (key, "")})

    def glob(self, pattern: str) -> list[ObjectPath]:
        """Return the sorted objects below that match ``pattern``."""
        with self._store() as (store, key):
            return sorted(
                self._of(store, name) for name in store.glob(f"{glob.escape(key)}/{pattern}")
            )

    def matches(self) -> list[ObjectPath]:
        """Return the sorted objects that match the URL itself as a pattern."""
        with self._store() as (store, key):
            return sorted(self._of(store, name) for name in store.glob(key))

    def below(self) -> list[str]:
        """Return the relative names of all objects below, at any depth."""
        with self._store() as (store, key):
            return sorted(str(name)[len(key) + 1 :] for name in store.find(key))

    def contents(self) -> dict[str, bytes]:
        """Return the bytes of each object directly below by name, except names that start with a
        dot.
        """
        names = [name for name in self.names() if not name.startswith(".")]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(
                zip(names, pool.map(lambda name: (self / name).read_bytes(), names), strict=True)
            )

    def version(self) -> list[Any]:
        """Return the size, and the entity tag or "" if the store has none.

        A time is no such tag: other bytes of the same size can have the same time.
        """
        with self._store() as (store, key):
            facts = store.info(key)
            tag = next((facts[name] for name in _TAGS if facts.get(name)), "")
            return [facts.get("size"), str(tag)]

    def read_bytes(self, most: int | None = None) -> bytes:
        """Return the bytes, or only the first ``most``."""
        with self._store() as (store, key):
            if most is None:
                return bytes(store.cat_file(key))
            size = store.info(key)["size"]
            return bytes(store.cat_file(key, start=0, end=min(size, most))) if size else b""

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """Fetch the object into a private file without a name, and return it as a stream."""
        if mode != "rb":
            raise ValueError(f"an object is read by open, not written ({mode!r})")
        with WorkFolder() as folder, self._store() as (store, key):
            store.get_file(key, str(folder / "object"))
            return (folder / "object").open("rb")  # the file is removed, the stream stays open

    def put(self, write: bytes | memoryview | Callable[[BinaryIO], None]) -> ObjectPath:
        """Write bytes, or the output of ``write(stream)``. A reader gets the old object or the new
        one.
        """
        self._check_writable()
        if callable(write):
            with WorkFolder() as folder:
                with (folder / "object").open("wb") as draft:
                    write(draft)  # its errors are not errors of the store
                with self._store() as (store, key):
                    store.put_file(str(folder / "object"), key)
            return self
        with self._store() as (store, key):
            store.pipe_file(key, bytes(write))
        return self

    def create(self, data: bytes) -> bool:
        """Create an object. Return False, without changing it, if it exists with other bytes.

        Returns True if it exists with the same bytes, because a request whose answer was lost is
        sent again. Servers report existing objects in different ways, so after any error the object
        is read.
        """
        self._check_writable()
        try:
            with self._store() as (store, key):
                store.pipe_file(key, data, mode="create")
        except StoreError as error:
            try:
                return self.read_bytes(len(data) + 1) == data
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
        """Remove all objects below."""
        for name in self.below():
            (self / name).unlink(missing_ok=True)

    def upload(self, folder: Path) -> None:
        """Upload all files below ``folder``."""
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            with file.open("rb") as stream:
                self.joinpath(*file.relative_to(folder).parts).put(
                    lambda target: _copy(stream, target)
                )

    def download(self, folder: Path) -> None:
        """Download all objects below into ``folder``."""
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
            raise ConfigError(
                f"{self}: this store cannot prevent overwriting existing objects. Fix: use {known}."
            )

    @contextmanager
    def _store(self) -> Iterator[tuple[Any, str]]:
        """Open the file system and the key, and convert its errors to StoreError."""
        from fsspec.core import url_to_fs

        try:
            store, key = url_to_fs(self.url, use_listings_cache=False)
        except (ImportError, ValueError, OSError) as error:
            extra = _WRITABLE.get(self.protocol)
            fix = (
                f" Fix: pip install 'privacy-assets[{extra}]'."
                if extra and isinstance(error, ImportError)
                else ""
            )
            raise ConfigError(
                f"{self}: no library for {self.protocol}:// can be used.{fix}"
            ) from None
        try:
            yield store, key
        except OSError as error:
            number = next(
                (number for kind, number in _KINDS.items() if isinstance(error, kind)), error.errno
            )
            raise StoreError(number or errno.EIO, _words(number or errno.EIO), str(self)) from None
        except Exception as error:  # noqa: BLE001 (every library of a store has errors of its own)
            raise StoreError(
                errno.EIO, f"{os.strerror(errno.EIO)}: {type(error).__name__}", str(self)
            ) from None


# names in the libraries of stores
_TAGS = ("ETag", "etag", "generation", "md5Hash", "content_md5", "checksum")
_KINDS = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    PermissionError: errno.EACCES,
}


def _words(number: int) -> str:
    return "no such bucket or object" if number == errno.ENOENT else os.strerror(number)


Location = Path | ObjectPath


def location(given: str | Location) -> Location:
    """Convert a string to a path, or to the location of a URL (``s3://bucket/folder``).

    Raises:
        ConfigError: If it is neither, a URL with credentials (:func:`check_no_credentials`) or a
            template (:func:`check_no_template`). Mistyped URLs are not paths: private rows would be
            written to a local folder.
    """
    if isinstance(given, ObjectPath):
        check_no_credentials(given.url)
        return given
    text = path_text(given)
    check_no_credentials(text)
    check_no_template(text)
    scheme, mark, rest = text.partition("://")
    if not text or (not mark and re.match(rf"[A-Za-z][A-Za-z0-9+.-]+:/|{_NO_SLASHES}", text)):
        raise ConfigError(
            f"{safe_repr(text)} is neither a path nor a URL such as s3://bucket/folder."
        )
    if not mark:
        return Path(text)
    if scheme.lower() == "file":
        if not rest.startswith("/"):
            raise ConfigError(
                f"{safe_repr(text)}: a file URL needs three slashes (file:///folder)."
            )
        return Path(rest)
    _check_scheme(scheme.lower())
    if not rest.strip("/"):
        raise ConfigError(f"{safe_repr(text)}: the URL has no bucket.")
    return ObjectPath(f"{scheme.lower()}://{rest.strip('/')}")


def is_template(text: str) -> bool:
    """Return True for Jinja templates of Airflow."""
    return "{{" in text or "{%" in text


def check_no_template(text: str) -> None:
    """Reject Jinja templates, which are not rendered here.

    The literal text would name a new folder, whose private folder has no record of earlier
    failures.

    Args:
        text: Value of a setting.

    Raises:
        ConfigError: If it contains ``{{`` or ``{%``.
    """
    if is_template(text):
        raise ConfigError(
            f"{safe_repr(text)} is a template, and settings are not rendered. Fix: set the"
            " value itself."
        )


def check_no_credentials(text: str) -> None:
    """Reject URLs in a text that contain credentials before the host, or a parameter that may
    contain a secret.

    Every parameter may, except versionId, generation, version, region, endpoint_url and format.

    Args:
        text: A URL, or any text. Every URL in it is checked, because fsspec chains several.

    Raises:
        ConfigError: If there are credentials. The message does not repeat them.
    """
    plain = unicodedata.normalize("NFKC", text)
    while (decoded := unquote(plain)) != plain:
        plain = decoded
    for start, host in _AUTHORITY.findall(plain):
        scheme = start.partition(":")[0]
        if scheme.lower() in _NAMES_BRANCH:
            continue
        user, at, _ = host.rpartition("@")
        name = bool(user) and ":" not in user and scheme.lower() in _NAMES_USER
        port = scheme.lower() not in _WRITABLE and _PORT.fullmatch(host.rpartition("@")[2])
        if (at and not name) or (":" in host.rpartition("@")[2] and not port):
            raise ConfigError(f"{scheme}://...: {_CREDENTIALS}")
    if _PASSWORD.search(plain):
        raise ConfigError(f"a text with a password: {_CREDENTIALS}")
    if (url := _URL.search(plain)) and not _parameters(plain, url[2]) <= _NOT_SECRET:
        raise ConfigError(f"{url[1].partition(':')[0]}://...?...: {_QUERY}")


def _parameters(text: str, rest: str) -> set[str]:
    """Return the names of the parameters in ``rest``, the part of a text after the first ``://``,
    in lower case.

    In the URLs of object stores a question mark without ``name=`` is a pattern. On the web it
    begins a query.
    """
    names = re.findall(r"[?&#;]([^?&#;/=]*)=", rest)
    if re.search(r"https?:", text, re.IGNORECASE):
        for query in re.findall(r"\?(\S+)", rest):
            names += [part.partition("=")[0] for part in re.split("[?&#;]", query) if part]
    return {name.lower() for name in names}


def path_text(given: object) -> str:
    """Return the text of a path or URL, ignoring ``__str__`` of subclasses. ConfigError for other
    types.
    """
    if isinstance(given, str):
        return str.__str__(given)
    if isinstance(given, PurePath):
        return PurePath.__str__(given)
    raise ConfigError(
        f"expected a path, or a URL such as s3://bucket/folder, got {type(given).__name__}."
    )


def _check_scheme(scheme: str) -> None:
    """Raise ConfigError for a protocol that fsspec does not know."""
    from fsspec import available_protocols

    known = set(available_protocols())
    if scheme not in known:
        close = get_close_matches(scheme, sorted(known), n=1, cutoff=0.65) or get_close_matches(
            scheme, [*_WRITABLE], n=1, cutoff=0.5
        )
        hint = (
            f" Did you mean {close[0]}://?"
            if close
            else " Known are s3://, gs:// and others that fsspec lists."
        )
        raise ConfigError(f"{safe_repr(scheme)} is not a URL protocol.{hint}")


@contextmanager
def local_copy(folder: Location) -> Iterator[Path]:
    """Yield ``folder`` itself, or a private temporary copy of the objects below it.

    Changes to a copy are not uploaded, see :meth:`ObjectPath.upload`.
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
