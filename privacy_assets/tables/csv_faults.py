"""What is wrong with a CSV file, found by a second look: the parser's own messages quote cells."""

from __future__ import annotations

import codecs
import csv
import datetime as dt
import io
from collections.abc import Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from privacy_assets.errors import InputError

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null")
_WIDE = {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}
_NO_HEADER = "give the file a first line with the names of the columns"
_SIGNS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_LONG = 19  # digits
_FEWEST_NAMES = 3  # that count up: two numbers always do


def csv_fault(stream: BinaryIO, where: str) -> InputError | None:
    """The first line of ``stream``, from its beginning, that is no UTF-8 or does not have the fields of the header."""
    stream.seek(0)
    fault = _encoding_fault(stream, where)
    if fault is None:
        stream.seek(0)
        fault = _shape_fault(stream, where)
    return fault


def _separator_fault(names: Sequence[str], where: str) -> InputError | None:
    found = [word for sign, word in _SIGNS.items() if len(names) == 1 and sign in names[0]]
    if not found:
        return None
    fix = "save it with commas between the columns, and with points in decimals"
    return InputError(f"its columns are separated by {found[0]}", where=where, fix=fix)


def _encoding_fault(stream: BinaryIO, where: str) -> InputError | None:
    start, fix = 0, "save the file as UTF-8"
    for number, line in enumerate(stream, start=1):
        if number == 1 and line[:2] in _WIDE:
            return InputError("it is UTF-16 text, not UTF-8", where=where, fix=fix)
        try:
            line.decode()
        except UnicodeDecodeError as error:
            at = start + error.start
            return InputError(f"line {number} is not UTF-8 text (byte {at} of the file)", where=where, fix=fix)
        start += len(line)
    return None


def _shape_fault(stream: BinaryIO, where: str) -> InputError | None:
    """A record that has more or fewer fields than the header, or a quote that is never closed."""
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    records = csv.reader(text, strict=True)
    wanted, row, line = 0, -1, 1
    try:
        for fields in records:
            if fields and not wanted:
                wanted = len(fields)
                if (fault := _separator_fault(fields, where)) is not None:
                    return fault
            elif fields:
                row += 1
                if len(fields) != wanted:
                    problem = f"line {line} has {len(fields)} fields, and the header {wanted}"
                    fix = "give every line as many fields as the header, and quote texts that hold commas"
                    return InputError(problem, where=where, row=row, fix=fix)
            line = records.line_num + 1
    except csv.Error:
        fix = "close every quote, and double quotes inside of a quoted text"
        return InputError(f"the quotes of the record that begins in line {line} do not match", where=where, fix=fix)
    finally:
        text.detach()  # the stream stays open: it is its owner's
    return None


def check_header(table: pa.Table, where: str) -> None:
    """Raise InputError when the first line of a CSV file holds cells of a row, or a name twice, or other separators
    than commas; no name is told.

    A row: its names are numbers, dates, booleans and texts as in the column below, and no name stands above a column of
    another kind. Numbers that count up (years, positions) can be names.
    """
    names = table.column_names
    if (fault := _separator_fault(names, where)) is not None:
        raise fault
    repeated = [position for position, name in enumerate(names) if name in names[:position]]
    if repeated:
        first, second = names.index(names[repeated[0]]), repeated[0]
        problem = f"line 1 names columns {first} and {second} alike"
        raise InputError(problem, where=where, fix=f"rename one of them, or, if line 1 is a row, {_NO_HEADER}")
    votes = [_vote(name, column) for name, column in zip(names, table.columns, strict=True)]
    cells = votes.count("value") + votes.count("text")
    if "name" in votes or not cells or _counts_up(names):
        return
    if "value" in votes or (cells >= 2 and 2 * cells > len(votes)):
        raise InputError(f"line 1 looks like a row: {cells} of its fields fit into the columns", where=where,
                         fix=f"{_NO_HEADER}, or rename these")  # fmt: skip


def _vote(name: str, column: pa.ChunkedArray) -> str:
    """What a name looks like above its column: a "value" or "text" of it, a "name", or "" for either."""
    kind = column.type
    if name in MISSING or pa.types.is_null(kind):
        return ""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "value" if _is_number(name) else "name"
    if pa.types.is_temporal(kind):
        return "value" if _is_time(name) else "name"
    if pa.types.is_boolean(kind):
        return "value" if name.lower() in ("true", "false") else "name"
    return "text" if pc.any(pc.equal(column, name)).as_py() else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_time(text: str) -> bool:
    for read in (dt.datetime.fromisoformat, dt.time.fromisoformat):
        try:
            read(text)
        except ValueError:
            continue
        return True
    return False


def _counts_up(names: Sequence[str]) -> bool:
    numbers = [int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < _LONG]
    steps = {after - before for before, after in zip(numbers, numbers[1:], strict=False)}
    only = len(numbers) == sum(map(bool, names))
    return only and len(numbers) >= _FEWEST_NAMES and len(steps) == 1 and min(steps) > 0
