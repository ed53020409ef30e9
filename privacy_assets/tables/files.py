"""Finding the files of a table, and the first fault of a CSV file, without reading its rows."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import shlex
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from privacy_assets.errors import ConfigError, InputError, is_transient, safe_repr
from privacy_assets.infra.files import is_path, not_a_file
from privacy_assets.infra.objects import Location, location
from privacy_assets.infra.storage import local_path
from privacy_assets.tables.folders import (
    SUFFIXES,
    check_is_no_lakehouse,
    check_layout,
    folder_files,
    glob_files,
    is_pattern,
    root_of,
    suffix_of,
    unescaped,
)
from privacy_assets.tables.schema import yaml_text

_NO_MATCH = "no file matches the pattern"
_NO_TABLES = "the folder contains no .parquet or .csv file"


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """Form of the files of a table.

    Attributes:
        sep: Separator of fields of CSV files. "": a tab in .tsv files, a comma in others.
        encoding: Encoding of CSV files. "": UTF-8, or UTF-16 if the file begins with its byte order
            mark.
        snapshots: True if several files are snapshots of the same people: they may have equal rows.
        drop: Columns that are dropped later, so several files need not agree in them.
    """

    sep: str = ""
    encoding: str = ""
    snapshots: bool = False
    drop: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Any) -> CsvFormat:
        """Create a format from user input.

        Args:
            given: A mapping with ``sep``, ``encoding`` or both, or a format, which is returned as
                it is. None: the default format.

        Raises:
            ConfigError: If it has other keys, the separator is not one character, or the encoding
                is unknown.
        """
        if isinstance(given, CsvFormat):
            return given
        settings = given or {}
        if not isinstance(settings, Mapping) or not set(settings) <= {"sep", "encoding"}:
            raise ConfigError(
                'read must be a mapping with sep, encoding or both, such as {sep: ";",'
                " encoding: cp1252}."
            )
        sep = settings.get("sep") or ""
        encoding = settings.get("encoding") or ""
        if not isinstance(sep, str) or len(sep) > 1 or sep in ('"', "\n", "\r"):
            raise ConfigError('read: sep must be one character, such as ";".')
        if not _decodes_text(encoding or "utf-8"):
            raise ConfigError(
                "read: the encoding is unknown, or it is not one of text. Fix: name one, such"
                " as utf-8, cp1252 or"
                " latin-1."
            )
        return cls(sep, encoding)


def _decodes_text(encoding: Any) -> bool:
    """Return True if the encoding can read text as pyarrow does, unlike codecs such as zip, hex and
    punycode.
    """
    try:
        sample = pa.py_buffer("a".encode(encoding))
        text = codecs.getincrementaldecoder(encoding)().decode(sample)
    except Exception:  # noqa: BLE001 (each codec has errors of its own)
        return False
    return isinstance(text, str)


def table_files(path: str | Location) -> list[Location]:
    """Return the files that ``path`` names: one file, the matches of a glob pattern, or the tables
    in a folder.

    Pipes and devices are not opened, because that could block forever. See :mod:`.folders` for
    folders and globs.

    Args:
        path: Path, or a URL such as ``s3://bucket/patients/*.parquet`` of any file system that
            fsspec supports.

    Returns:
        The sorted files.

    Raises:
        InputError: If ``path`` is not a path, does not exist or cannot be read, a match is not a
            regular file, or the files are not those of one table: they belong to a Delta, Iceberg
            or Hudi table, have several formats, or are not all in Hive folders.
    """
    return find_files(location(path))[1]


def find_files(path: Location) -> tuple[Location, list[Location]]:
    """Find the files of :func:`table_files`.

    Args:
        path: Path of a file, folder or glob, or its URL.

    Returns:
        The folder below which Hive folders are columns, and the sorted files.
    """
    local = local_path(path)
    if local is not None and not is_path(local):
        fix = "pass a dataframe, or the path of a .parquet or .csv file"
        raise InputError(
            f"a string of {len(str(path))} characters is not the path of a table", fix=fix
        )
    try:
        root, files = _root_and_files(path)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        fix = "check path and permissions"
        raise InputError(problem, where=str(path), fix=fix, transient=is_transient(error)) from None
    for file in files:
        local = local_path(file)
        fault = None if local is None else not_a_file(local)
        if local is not None and fault:
            fix = _advice_for_missing(local) or "give .parquet or .csv files"
            raise InputError(fault, where=str(file), fix=fix)
    return root, files


def _root_and_files(path: Location) -> tuple[Location, list[Location]]:
    """Return the root and the sorted files of a path, which exist unless it is a path that names
    one.
    """
    exists = path.exists()
    is_glob = is_pattern(str(path)) and not exists
    literal = path if is_glob or exists else unescaped(path)
    if literal.is_file():
        check_is_no_lakehouse(literal.parent, [literal])
        return literal.parent, [literal]
    root: Location
    if is_glob:
        root = root_of(path)
    elif local_path(literal) is None or literal.is_dir():
        root = literal
    elif literal == path:
        return path.parent, [path]  # a pipe, or no file
    else:
        raise InputError(_NO_MATCH, where=str(path), fix="check the path")
    files = sorted(glob_files(path) if is_glob else folder_files(root))
    check_is_no_lakehouse(root, files)
    if not files:
        raise _no_files(path, is_glob)
    check_layout(root, files)
    return root, files


def _no_files(path: Location, is_glob: bool) -> InputError:
    """Return the error of a folder or glob without table files."""
    if local_path(path) is None:
        return InputError("no such file", where=str(path), fix="check the URL")
    if not is_glob:
        fix = "check the path; names that begin with a dot or an underscore are left out"
        return InputError(_NO_TABLES, where=str(path), fix=fix)
    return InputError(_NO_MATCH, where=str(path), fix="check the path")


def _advice_for_missing(missing: Path) -> str:
    """Return advice for a missing file: its missing folder, or similarly named tables in the
    folder. Otherwise "".
    """
    if missing.exists():
        return ""
    if not missing.parent.is_dir():
        return f"check the path: there is no folder {safe_repr(missing.parent)}"
    try:
        names = [file.name for file in missing.parent.iterdir() if suffix_of(file) in SUFFIXES]
    except OSError:  # a folder without permission to list it
        return ""
    near = get_close_matches(missing.name, names, cutoff=0.7)
    if not near:
        return ""
    return f"check the path. Did you mean {' or '.join(map(safe_repr, near))}?"


_WIDE = {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}
_SIGNS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
csv.field_size_limit(1 << 28)  # characters
_INSTRUCTION = re.compile("sep=(.)", re.IGNORECASE | re.DOTALL)


def encoding_of(start: bytes) -> str:
    """Return the encoding of a text by its first bytes: UTF-16 if they are its byte order mark,
    else UTF-8.
    """
    return "utf-16" if start[:2] in _WIDE else "utf-8-sig"


def guess_format(file: Path) -> CsvFormat:
    """Guess the format of a CSV file from its first 64 KiB.

    Args:
        file: Path of the file, which may be compressed.

    Returns:
        The separator that the first line contains most, and the encoding.
    """
    try:
        with gzip.open(file) if suffix_of(file).endswith(".gz") else file.open("rb") as stream:
            start: bytes = stream.read(1 << 16)
    except (OSError, EOFError, zlib.error):
        return CsvFormat()  # the file cannot be read, which is reported when it is
    try:
        encoding = encoding_of(start)
        text = codecs.getincrementaldecoder(encoding)().decode(start)
    except UnicodeError:
        encoding = "cp1252"
        text = start.decode(encoding, errors="replace")
    header = re.sub(r'"[^"]*"', "", text.split("\n", 1)[0])
    sep = max(_SIGNS, key=header.count)
    if sep not in header:
        sep = ","
    return CsvFormat(sep, encoding)


def csv_fault(
    stream: BinaryIO, where: str, sep: str = ",", encoding: str = "utf-8-sig"
) -> InputError | None:
    """Find the first line of a CSV file with another encoding or another number of fields than the
    header.

    Args:
        stream: The file. It is read from its start.
        where: Name of the table in messages.
        sep: Separator.
        encoding: Encoding.

    Returns:
        The error for this line. None: there is no such line.
    """
    stream.seek(0)
    if encoding in ("utf-8-sig", "utf-8"):
        fault = _encoding_fault(stream, where, sep)
        if fault is not None:
            return fault
        stream.seek(0)
    return _shape_fault(stream, where, sep, encoding)


def separator_fault(names: Sequence[str], where: str, sep: str) -> InputError | None:
    """Return the error for a header that another sign separates. None: no other sign does.

    Args:
        names: Fields of the first line.
        where: Name of the table in messages.
        sep: Separator.
    """
    sign = _other_separator(names, sep)
    if not sign:
        return None
    problem = f"its columns are separated by {_SIGNS[sign]}"
    return InputError(problem, where=where, fix=_read_fix(sep=sign))


def _other_separator(names: Sequence[str], sep: str) -> str:
    """Return the separator of a header that ``sep`` does not separate, or ""."""
    if len(names) != 1:
        return ""
    for sign in _SIGNS:
        if sign in names[0] and sign != sep:
            return sign
    return ""


def _read_fix(**settings: str) -> str:
    """Return the advice to state how a CSV file is written."""
    declared = dict[str, str]()
    options = []
    for name, value in settings.items():
        if value:
            declared[name] = value
            options.append(f"--{name} {shlex.quote(value)}")
    names = " and ".join(declared).replace("sep", "separator")
    setting = yaml_text({"read": declared})
    return f"name the {names} (data: {setting}, on the command line {' '.join(options)})"


def _encoding_fault(stream: BinaryIO, where: str, sep: str) -> InputError | None:
    start = 0
    sign = ""
    for number, line in enumerate(stream, start=1):
        if number == 1:
            names = line.decode("cp1252", errors="replace").split(sep)
            sign = _other_separator(names, sep)
        try:
            line.decode()
        except UnicodeDecodeError as error:
            position = start + error.start
            problem = f"line {number} is not UTF-8 text (byte {position} of the file)"
            return InputError(problem, where=where, fix=_read_fix(sep=sign, encoding="cp1252"))
        start += len(line)
    return None


def _shape_fault(stream: BinaryIO, where: str, sep: str, encoding: str) -> InputError | None:
    """Find a record whose number of fields differs from the header, or an unclosed quote."""
    text = io.TextIOWrapper(stream, encoding=encoding, newline="")
    records = _Records(csv.reader(text, strict=True, delimiter=sep))
    try:
        return _record_fault(records, where, sep)
    except UnicodeError:
        fix = _read_fix(encoding="cp1252")
        return InputError(f"it is not {encoding} text", where=where, fix=fix)
    except csv.Error:
        problem = f"the quotes of the record that begins in line {records.first_line} do not match"
        fix = "close every quote, and double quotes within a quoted string"
        return InputError(problem, where=where, fix=fix)
    finally:
        text.detach()  # keep the stream open for its owner


class _Records:
    """The records of a CSV file that are not empty.

    Attributes:
        first_line: Number of the first line of the last record, or of the one that cannot be read.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.first_line = 1

    def __iter__(self) -> Iterator[list[str]]:
        for fields in self._reader:
            if fields:
                yield fields
            self.first_line = self._reader.line_num + 1


def _record_fault(records: _Records, where: str, sep: str) -> InputError | None:
    """Find a record whose number of fields differs from the header."""
    n_columns = 0
    n_rows = 0
    for fields in records:
        if n_columns == 0:  # the header
            n_columns = len(fields)
            fault = separator_fault(fields, where, sep)
            if fault is not None:
                return fault
            continue
        if len(fields) != n_columns:
            n_fields = len(fields)
            problem = f"line {records.first_line} has {n_fields} fields, and the header {n_columns}"
            fix = (
                "give every line as many fields as the header, and quote strings that contain"
                " commas"
            )
            return InputError(problem, where=where, row=n_rows, fix=fix)
        n_rows += 1
    if n_columns and n_rows == 0:
        problem = "the table has 0 rows, at least 1 are needed"
        return InputError(problem, where=where, fix="add rows")
    return None


def check_no_instruction(fields: Sequence[str], where: str, sep: str) -> None:
    """Raise InputError if the first line of a CSV file tells Excel the separator (``sep=;``).

    Args:
        fields: Fields of the first line.
        where: Name of the table in messages.
        sep: Separator of the fields.
    """
    instruction = _INSTRUCTION.fullmatch(sep.join(fields))
    if instruction is None:
        return
    sign = instruction[1]
    fix = "remove line 1"
    if sign != sep:
        fix += f", and {_read_fix(sep=sign)}"
    raise InputError(
        "line 1 is an instruction to Excel, not the names of the columns", where=where, fix=fix
    )
