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
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any, BinaryIO
from urllib.parse import unquote

from privacy_assets.errors import ConfigError, StoreError, safe_repr
from privacy_assets.infra.temp_folders import WorkFolder

# Default locations of a deployment.
RELEASES_VARIABLE = "PRIVACY_ASSETS_RELEASES"
PRIVATE_VARIABLE = "PRIVACY_ASSETS_PRIVATE"
# they carry no secrets
_PARAMETERS = ("versionId", "generation", "version", "region", "endpoint_url", "format")
_SET = (
    "set the environment variables of the store's library (for s3:// AWS_ACCESS_KEY_ID and"
    " AWS_SECRET_ACCESS_KEY), or"
    " in Airflow name a Connection (store_conn_id)."
)
_CREDENTIALS = (
    "a URL must not contain credentials, because messages and signed files can show it. Fix:"
    f" {_SET}"
)
_QUERY = (
    "a URL must not contain credentials, because messages and signed files can show it, so"
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
        """Return the location below this one.

        Args:
            *parts: Names, from the outermost to the innermost.
        """
        return ObjectPath("/".join([self.url, *parts]))

    def __str__(self) -> str:
        if self.protocol in ("http", "https"):
            return self.url.partition("?")[0]  # a query may sign
        return self.url

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

    def is_absolute(self) -> bool:
        """Return True."""
        return True

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
                keys = store.ls(key, detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
            names = set()
            for key_below in keys:
                path = str(key_below).rstrip("/")
                if path not in (key, ""):
                    names.add(posixpath.basename(path))
            return sorted(names)

    def glob(self, pattern: str) -> list[ObjectPath]:
        """Return the sorted objects below that match a pattern.

        Args:
            pattern: Glob pattern, relative to this location.
        """
        return self._matches(lambda key: f"{glob.escape(key)}/{pattern}")

    def matches(self) -> list[ObjectPath]:
        """Return the sorted objects that match the URL itself as a pattern."""
        return self._matches(lambda key: key)

    def below(self) -> list[str]:
        """Return the relative names of all objects below, at any depth."""
        with self._store() as (store, key):
            return sorted(str(name)[len(key) + 1 :] for name in store.find(key))

    def version(self) -> list[Any]:
        """Return the size, and the entity tag or "" if the store has none.

        A time is no such tag: other bytes of the same size can have the same time.
        """
        with self._store() as (store, key):
            facts = store.info(key)
            tags = [facts[name] for name in _TAGS if facts.get(name)]
            tag = tags[0] if tags else ""
            return [facts.get("size"), str(tag)]

    def read_bytes(self, most: int | None = None) -> bytes:
        """Return the bytes.

        Args:
            most: Maximum number of bytes, from the start. None: all.

        Raises:
            OSError: If there is no such object, or the store does not answer.
        """
        with self._store() as (store, key):
            if most is None:
                return bytes(store.cat_file(key))
            size = store.info(key)["size"]
            if not size:
                return b""
            return bytes(store.cat_file(key, start=0, end=min(size, most)))

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """Fetch the object into a private file without a name, and return it as a stream.

        Args:
            mode: "rb".

        Raises:
            ValueError: If the mode is another one.
            OSError: If there is no such object, or the store does not answer.
        """
        if mode != "rb":
            raise ValueError(f"an object is read by open, not written ({mode!r})")
        with WorkFolder() as folder, self._store() as (store, key):
            store.get_file(key, str(folder / "object"))
            return (folder / "object").open("rb")  # the file is removed, the stream stays open

    def put(self, write: bytes | memoryview | Callable[[BinaryIO], None]) -> ObjectPath:
        """Write an object. A reader gets the old object or the new one.

        Args:
            write: Bytes, or a function that writes to the stream that it gets.

        Returns:
            The location itself.

        Raises:
            ConfigError: If the store cannot prevent overwriting existing objects.
            OSError: If the object cannot be written.
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
        """Create an object.

        Servers report existing objects in different ways, so after any error the object is read.

        Args:
            data: Bytes of the object.

        Returns:
            False if the object exists with other bytes, which does not change it. True if it exists
            with the same bytes, because a request whose answer was lost is sent again.

        Raises:
            ConfigError: If the store cannot prevent overwriting existing objects.
            OSError: If the object cannot be created.
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
        """Remove the object.

        Args:
            missing_ok: If True, a missing object is not an error.

        Raises:
            OSError: If it cannot be removed.
        """
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
        """Upload all files below a folder.

        Args:
            folder: Folder on disk.

        Raises:
            OSError: If a file cannot be uploaded.
        """
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            target = self.joinpath(*file.relative_to(folder).parts)
            with file.open("rb") as stream:
                target.put(lambda draft: _copy(stream, draft))

    def download(self, folder: Path) -> None:
        """Download all objects below.

        Args:
            folder: Target folder on disk.

        Raises:
            OSError: If an object cannot be downloaded, or its name leaves the folder.
        """
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

    def _matches(self, pattern_of: Callable[[str], str]) -> list[ObjectPath]:
        """Return the sorted objects that match a pattern, which ``pattern_of`` derives from the
        key.
        """
        with self._store() as (store, key):
            paths = []
            for name in store.glob(pattern_of(key)):
                path = store._strip_protocol(name).lstrip("/")
                paths.append(ObjectPath(f"{self.protocol}://{path}"))
            return sorted(paths)

    def _check_writable(self) -> None:
        if self.protocol not in _WRITABLE:
            writable = ", ".join(f"{protocol}://" for protocol in _WRITABLE)
            raise ConfigError(
                f"{self}: this store cannot prevent overwriting existing objects. Fix: use"
                f" {writable}."
            )

    @contextmanager
    def _store(self) -> Iterator[tuple[Any, str]]:
        """Open the file system and the key, and convert its errors to StoreError."""
        from fsspec.core import url_to_fs

        try:
            store, key = url_to_fs(self.url, use_listings_cache=False)
        except (ImportError, ValueError, OSError) as error:
            extra = _WRITABLE.get(self.protocol)
            fix = ""
            if extra and isinstance(error, ImportError):
                fix = f" Fix: pip install 'privacy-assets[{extra}]'."
            raise ConfigError(
                f"{self}: no library for {self.protocol}:// can be used.{fix}"
            ) from None
        try:
            yield store, key
        except OSError as error:
            number = _error_number(error)
            raise StoreError(number, _error_text(number), str(self)) from None
        except Exception as error:  # noqa: BLE001 (every library of a store has errors of its own)
            text = f"{os.strerror(errno.EIO)}: {type(error).__name__}"
            raise StoreError(errno.EIO, text, str(self)) from None


# names in the libraries of stores
_TAGS = ("ETag", "etag", "generation", "md5Hash", "content_md5", "checksum")
_ERROR_NUMBERS = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    PermissionError: errno.EACCES,
}


def _error_number(error: OSError) -> int:
    """Return the number of an error, which libraries of stores often leave out."""
    for kind, number in _ERROR_NUMBERS.items():
        if isinstance(error, kind):
            return number
    return error.errno or errno.EIO


def _error_text(number: int) -> str:
    if number == errno.ENOENT:
        return "no such bucket or object"
    return os.strerror(number)


Location = Path | ObjectPath


def location(path: str | Location) -> Location:
    """Convert a string to a path, or to the location of a URL (``s3://bucket/folder``).

    Mistyped URLs are not paths: private rows would be written to a local folder.

    Args:
        path: Path or URL.

    Raises:
        ConfigError: If it is neither, a URL with credentials (:func:`check_no_credentials`) or a
            template (:func:`check_no_template`).
    """
    if isinstance(path, ObjectPath):
        check_no_credentials(path.url)
        return path
    text = path_text(path)
    check_no_credentials(text)
    check_no_template(text)
    scheme, mark, rest = text.partition("://")
    is_mistyped = not mark and re.match(rf"[A-Za-z][A-Za-z0-9+.-]+:/|{_NO_SLASHES}", text)
    if not text or is_mistyped:
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
    """Return True for Jinja templates of Airflow.

    Args:
        text: Value of a setting.
    """
    return "{{" in text or "{%" in text


def check_no_template(text: str) -> None:
    """Reject Jinja templates, which are not rendered here.

    The literal text would name a new folder, whose private folder has no log of earlier
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
    plain = _decoded(text)
    for start, authority in _AUTHORITY.findall(plain):
        scheme = start.partition(":")[0]
        if not _has_no_credentials(scheme.lower(), authority):
            raise ConfigError(f"{scheme}://...: {_CREDENTIALS}")
    if _PASSWORD.search(plain):
        raise ConfigError(f"a text with a password: {_CREDENTIALS}")
    url = _URL.search(plain)
    if url and not _parameters(plain, url[2]) <= _NOT_SECRET:
        raise ConfigError(f"{url[1].partition(':')[0]}://...?...: {_QUERY}")


def _decoded(text: str) -> str:
    """Return a text without percent escapes, also repeated ones, and without look-alike
    characters.
    """
    plain = unicodedata.normalize("NFKC", text)
    decoded = unquote(plain)
    while decoded != plain:
        plain = decoded
        decoded = unquote(plain)
    return plain


def _has_no_credentials(scheme: str, authority: str) -> bool:
    """Return True if the part of a URL between ``://`` and the path contains no credentials."""
    if scheme in _NAMES_BRANCH:
        return True
    user, at, host = authority.rpartition("@")
    if at:
        is_user_name = user and ":" not in user and scheme in _NAMES_USER
        if not is_user_name:
            return False
    if ":" not in host:
        return True
    # In the URL of an object store there is no port.
    return scheme not in _WRITABLE and _PORT.fullmatch(host) is not None


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


def path_text(path: object) -> str:
    """Return the text of a path or URL, ignoring ``__str__`` of subclasses.

    Args:
        path: Path or URL.

    Raises:
        ConfigError: If it has another type.
    """
    if isinstance(path, str):
        return str.__str__(path)
    if isinstance(path, PurePath):
        return PurePath.__str__(path)
    raise ConfigError(
        f"expected a path, or a URL such as s3://bucket/folder, got {type(path).__name__}."
    )


def _check_scheme(scheme: str) -> None:
    """Raise ConfigError for a protocol that fsspec does not know."""
    from fsspec import available_protocols

    protocols = set(available_protocols())
    if scheme in protocols:
        return
    close = get_close_matches(scheme, sorted(protocols), n=1, cutoff=0.65)
    if not close:
        close = get_close_matches(scheme, [*_WRITABLE], n=1, cutoff=0.5)
    hint = " Known are s3://, gs:// and others that fsspec lists."
    if close:
        hint = f" Did you mean {close[0]}://?"
    raise ConfigError(f"{safe_repr(scheme)} is not a URL protocol.{hint}")


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    block = source.read(1 << 20)
    while block:
        target.write(block)
        block = source.read(1 << 20)
