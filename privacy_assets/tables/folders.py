"""The files of a table in a folder or glob, local or in an object store, and the folders that are
no such table.

A folder has the table files directly in it, or Hive folders (``sex=F/1.parquet``). In globs, ``*``
and ``?`` are wildcards, and ``**`` is any number of folders. Brackets are part of a name.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote_to_bytes

from privacy_assets.errors import InputError, is_transient, safe_repr
from privacy_assets.infra.objects import Location, ObjectPath
from privacy_assets.infra.storage import local_path
from privacy_assets.tables.names import as_named

SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".csv.gz": "csv",
    ".tsv.gz": "csv",
}
# Names that writers (Spark, Hive), office programs and systems give to files that contain no rows
# of a table.
_LEFT_OUT_STARTS = (".", "_", "~$")
_LEFT_OUT_NAMES = ("thumbs.db", "desktop.ini")
_LEFT_OUT_SUFFIX = ".crc"
# kinds of tables, by their folder of metadata
_ICEBERG_FOLDER = "metadata"  # it also has other uses, so its files decide
_ICEBERG_FILE = ".metadata.json"
_LAKEHOUSES = {"_delta_log": "a Delta", ".hoodie": "a Hudi", _ICEBERG_FOLDER: "an Iceberg"}
_MAX_REQUESTS = 16  # at a time
_SLASHES_OF_A_BUCKET = 2  # "s3://bucket"
_HIVE_MISSING = ("", "__HIVE_DEFAULT_PARTITION__")
_BRACKET = re.compile(r"\[(?![*?[]\])")  # not that of the escapes [*], [?] and [[]
_ESCAPED = re.compile(r"\[([*?[])\]")
_ASSET = (
    "\n  @dg.asset\n  def people(): return {read}\nand name the asset as the source"
    " (assets={{'source': people}})"
)


def suffix_of(file: Location) -> str:
    """Return the suffix of a file in lower case, with that of the text in a compressed file
    (".csv.gz").
    """
    suffixes = list(map(str.lower, Path(file.name).suffixes))
    if suffixes[-1:] == [".gz"]:
        return "".join(suffixes[-2:])
    return "".join(suffixes[-1:])


def is_left_out(name: str) -> bool:
    """Return True for files and folders of writers and systems, such as ``_SUCCESS`` and
    ``Thumbs.db``.
    """
    plain = name.lower()
    return (
        plain.startswith(_LEFT_OUT_STARTS)
        or plain in _LEFT_OUT_NAMES
        or plain.endswith(_LEFT_OUT_SUFFIX)
    )


def pattern_of(text: str) -> str:
    """Return a path as a pattern of :mod:`glob`, in which brackets are part of a name."""
    return _BRACKET.sub("[[]", text)


def is_pattern(text: str) -> bool:
    """Return True if a path has the wildcards ``*`` or ``?``."""
    return bool(set(_ESCAPED.sub("", text)) & {"*", "?"})


class _Listed(Protocol):
    """A location whose files are listed, on disk or in an object store."""

    def unescaped(self) -> Location:
        """Return the path with escaped wildcards as characters of its name."""

    def root(self) -> Location:
        """Return the folder above the first wildcard of a glob."""

    def files(self) -> Iterable[Location]:
        """Return files of any type in a folder and in its Hive folders."""

    def matches(self) -> Iterable[Location]:
        """Return what matches a glob. In an object store, and below ``**``, only files match."""

    def parts(self, file: Location) -> list[str]:
        """Return the components of the path of a file below this folder."""

    def with_parents(self) -> list[Location]:
        """Return a folder and the folders above it."""

    def names(self) -> list[str] | None:
        """Return the names in a folder, or None if it does not exist."""


@dataclass(frozen=True, slots=True)
class _OnDisk(_Listed):
    path: Path

    def unescaped(self) -> Path:
        return Path(_ESCAPED.sub(r"\1", str(self.path)))

    def root(self) -> Path:
        return Path(*_literal_parts(self.path.parts))

    def files(self) -> Iterator[Path]:
        # Next to Hive folders, other folders may hold rows of the table, too.
        has_hive = any(map(_is_hive, os.listdir(self.path)))
        return _local_files(self.path, is_recursive=has_hive)

    def matches(self) -> Iterator[Path]:
        for match in map(Path, glob.glob(pattern_of(str(self.path)), recursive=True)):
            if self.path.name != "**" or match.is_file():
                yield match

    def parts(self, file: Location) -> list[str]:
        local = local_path(file)
        if local is None or not local.is_relative_to(self.path):
            return [file.name]
        return list(local.relative_to(self.path).parts)

    def with_parents(self) -> list[Location]:
        return [self.path, *self.path.absolute().parents, *self.path.resolve().parents]

    def names(self) -> list[str] | None:
        try:
            return os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None


@dataclass(frozen=True, slots=True)
class _InStore(_Listed):
    path: ObjectPath

    def unescaped(self) -> ObjectPath:
        return ObjectPath(_ESCAPED.sub(r"\1", self.path.url))

    def root(self) -> ObjectPath:
        protocol, _, key = self.path.url.partition("://")
        plain = _literal_parts(key.split("/"))
        return ObjectPath(f"{protocol}://{'/'.join(plain)}")

    def files(self) -> Iterator[ObjectPath]:
        names = self.path.names()
        if any(map(_is_hive, names)):
            names = self.path.below()  # one listing for all folders
        for name in names:
            parts = name.split("/")
            if not any(map(is_left_out, parts)):
                yield self.path.joinpath(*parts)

    def matches(self) -> Iterator[ObjectPath]:
        for match in ObjectPath(pattern_of(self.path.url)).matches():
            if match.is_file():
                yield match

    def parts(self, file: Location) -> list[str]:
        return str(file).removeprefix(f"{self.path}/").split("/")

    def with_parents(self) -> list[Location]:
        if self.path.protocol in ("http", "https"):  # a web server has no folders
            return []
        parents = list[Location]()
        folder = self.path
        while folder.url.count("/") >= _SLASHES_OF_A_BUCKET:
            parents.append(folder)
            folder = folder.parent
        return parents

    def names(self) -> list[str] | None:
        return self.path.names() or None


def _listed(path: Location) -> _Listed:
    if isinstance(path, ObjectPath):
        return _InStore(path)
    return _OnDisk(path)


def unescaped(path: Location) -> Location:
    """Return a path whose escaped wildcards (``[*]``) are characters of its name."""
    return _listed(path).unescaped()


def root_of(path: Location) -> Location:
    """Return the folder above the first wildcard of a glob."""
    return _listed(path).root()


def _literal_parts(parts: Sequence[str]) -> list[str]:
    literal = []
    for part in parts:
        if is_pattern(part):
            break
        literal.append(_ESCAPED.sub(r"\1", part))
    return literal


def folder_files(folder: Location) -> list[Location]:
    """Return the table files of a folder: those directly in it and in its Hive folders.

    Raises:
        OSError: If a folder cannot be read.
    """
    return [file for file in _listed(folder).files() if suffix_of(file) in SUFFIXES]


def _local_files(folder: Path, *, is_recursive: bool) -> Iterator[Path]:
    for entry in folder.iterdir():
        if is_left_out(entry.name):
            continue
        if is_recursive and entry.is_dir():
            yield from _local_files(entry, is_recursive=True)
        else:
            yield entry


def _is_hive(name: str) -> bool:
    return "=" in name and not is_left_out(name)


def glob_files(path: Location) -> list[Location]:
    """Return the files that match a glob, without those of writers and systems unless the glob
    names them.
    """
    root = _listed(root_of(path))
    names_hidden = is_left_out(path.name)
    visible = []
    for match in _listed(path).matches():
        *folders, name = root.parts(match)
        if any(map(is_left_out, folders)):
            continue
        if names_hidden or not is_left_out(name):
            visible.append(match)
    return visible


def folder_values(root: Location, file: Location) -> dict[str, str | None]:
    """Return the values that Hive folders state for a file: ``sex=F/1.parquet``.

    Args:
        root: Folder of the table. Folders below it count.
        file: File of the table.

    Returns:
        Values by column. Names and values are decoded (``A%2FB`` is "A/B"). None: a missing value.

    Raises:
        InputError: If a name is not UTF-8 text.
    """
    values: dict[str, str | None] = {}
    for part in _listed(root).parts(file)[:-1]:
        name, sign, value = part.partition("=")
        if not sign:
            continue
        column = as_named(_decoded(name, file))
        if value in _HIVE_MISSING:
            values[column] = None
        else:
            values[column] = _decoded(value, file)
    return values


def _decoded(text: str, file: Location) -> str:
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        pass  # raised below, without the error as its context
    problem = "the name of a folder is not UTF-8 text after decoding"
    raise InputError(problem, where=str(file), fix="rename the folder")


def check_layout(root: Location, files: Sequence[Location]) -> None:
    """Raise InputError if the files of a table have two formats, or one is not in the Hive folders
    of the others.
    """
    _check_one_format(files)
    deepest = max(files, key=lambda file: len(_layout(root, file)))
    expected = _layout(root, deepest)
    if "=" not in expected:
        return
    for file in files:
        if _layout(root, file) != expected:
            problem = f"it is not in folders {expected}, as {_name_of(deepest)} is"
            raise InputError(problem, where=str(file), fix="move the file to another folder")


def _check_one_format(files: Sequence[Location]) -> None:
    first = files[0]
    first_format = _format(first)
    for file in files:
        file_format = _format(file)
        if file_format != first_format:
            problem = f"it is a {file_format} file, and {_name_of(first)} is a {first_format} file"
            fix = (
                "one folder has files of one format: move the others to another folder, or name"
                " one of the files"
            )
            raise InputError(problem, where=str(file), fix=fix)


def _layout(root: Location, file: Location) -> str:
    """Return the folders between ``root`` and a file without their values: "sex=.../..."."""
    layout = []
    for part in _listed(root).parts(file)[:-1]:
        name, sign, _ = part.partition("=")
        if sign:
            layout.append(f"{name}=...")
        else:
            layout.append("...")
    return "/".join(layout)


def _format(file: Location) -> str:
    suffix = suffix_of(file).removesuffix(".gz")
    return {".pq": ".parquet"}.get(suffix, suffix)


def _name_of(file: Location) -> str:
    """Return a file as messages name it."""
    local = local_path(file)
    return str(file) if local is None else safe_repr(local)


def check_is_no_lakehouse(root: Location, files: Sequence[Location]) -> None:
    """Raise InputError if a folder is, or is part of, a Delta, Iceberg or Hudi table: its files
    have deleted rows, too.

    Args:
        root: Folder, the folder above the first wildcard of a glob, or the folder of a file.
        files: Files below it. The folders between them and ``root`` are looked at, too.

    Raises:
        InputError: Also if a folder cannot be listed, so that its kind is unknown.
    """
    folders = _folders_of(root, files)
    for folder, kind in zip(folders, _lakehouses(root, folders), strict=True):
        if not kind:
            continue
        problem = (
            f"this is {kind} table, and its folder also contains files of deleted and replaced rows"
        )
        asset = _ASSET.format(read=_reader(kind, folder))
        fix = f"read its rows in an asset,{asset}, or pass such a dataframe to evaluate"
        raise InputError(problem, where=str(folder), fix=fix)


def _lakehouses(root: Location, folders: Sequence[Location]) -> list[str]:
    """Return :func:`_lakehouse` of each folder. Folders in a store are read concurrently."""
    if local_path(root) is not None:
        return [_lakehouse(folder) for folder in folders]

    def kind_of(folder: Location) -> str:
        is_above = str(root).startswith(f"{folder}/")
        return _lakehouse(folder, may_be_closed=is_above)

    with ThreadPoolExecutor(_MAX_REQUESTS) as pool:
        return list(pool.map(kind_of, folders))


def _folders_of(root: Location, files: Iterable[Location]) -> list[Location]:
    """Return each folder that contains the root, a file, or the file that a link leads to."""
    folders = dict.fromkeys(_listed(root).with_parents())
    for file in files:
        if file.parent not in folders:
            folders.update(dict.fromkeys(_listed(file.parent).with_parents()))
        local = local_path(file)
        if local is not None and local.is_symlink():
            target = Path(os.path.realpath(local))
            folders.update(dict.fromkeys(_listed(target.parent).with_parents()))
    return list(folders)


def _lakehouse(folder: Location, may_be_closed: bool = False) -> str:
    """Return the kind of a lakehouse table with its article, "" for other folders.

    Args:
        folder: The folder.
        may_be_closed: It is treated as another folder if a store does not list it.
    """
    for name, kind in _LAKEHOUSES.items():
        try:
            if _has_metadata(folder / name):
                return kind
        except OSError as error:
            if may_be_closed:
                continue
            problem = (
                f"the folder cannot be listed ({error.strerror}), so the table may be a Delta,"
                " Iceberg or Hudi table"
            )
            fix = "check the permissions of the folder, and the disk or network"
            transient = is_transient(error)
            raise InputError(
                problem, where=str(folder / name), fix=fix, transient=transient
            ) from None
    return ""


def _has_metadata(folder: Location) -> bool:
    """Return True if a folder exists and is the one of the metadata of a lakehouse table."""
    names = _listed(folder).names()
    if names is None:
        return False
    return folder.name != _ICEBERG_FOLDER or any(_ICEBERG_FILE in name for name in names)


def _reader(kind: str, folder: Location) -> str:
    """Return the line of Python that reads the current rows of a table."""
    if kind == _LAKEHOUSES["_delta_log"]:
        return f"deltalake.DeltaTable({str(folder)!r}).to_pandas()"
    if kind == _LAKEHOUSES[".hoodie"]:
        return f"spark.read.format('hudi').load({str(folder)!r}).toPandas()"
    return "pyiceberg.catalog.load_catalog().load_table('DATABASE.TABLE').scan().to_pandas()"
