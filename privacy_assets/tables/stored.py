"""Tables in Parquet files, read one column at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import local_path
from privacy_assets.tables.arrays import mapped_empty
from privacy_assets.tables.file_agreement import TableFile, check_agreement
from privacy_assets.tables.files import CsvFormat, table_files
from privacy_assets.tables.names import without
from privacy_assets.tables.reading import (
    SAME_COLUMNS,
    UNREADABLE,
    check_index,
    file_format_of,
    frame_of,
    joined,
    other_kind,
    unread_file,
    unreadable,
)
from privacy_assets.tables.schema import check_same_columns

# files that one table keeps open, each of them twice: a process may open about 1,000
_MAX_OPEN_FILES = 64


def stored_rows(path: str | Location) -> int:
    """Return the number of rows of Parquet files by their footers, without reading a row. Other
    files count as 0.

    Raises InputError naming the file.
    """
    n_rows = 0
    for file in table_files(path):
        if file_format_of(file) != "parquet":
            continue
        try:
            with file.open("rb") as stream:
                n_rows += pa.parquet.read_metadata(stream).num_rows
        except UNREADABLE:
            continue  # reported with its reason when the file is read
    return n_rows


class StoredTable:
    """One or more Parquet files as one table.

    Implements the parts of the dataframe interface that checks and conversion use: ``columns``,
    ``len``, ``table[name]``, ``drop``. Columns equal those of a frame of all files, except strings:
    row groups are read one by one and distinct strings are stored once, so these columns are
    Categorical. ``texts`` maps them to their original dtype. Up to 64 files are opened twice and
    stay open; files of a longer list are opened for each column.
    """

    def __init__(self, files: Sequence[Location]) -> None:
        self._parts = [_Part(file, stays_open=len(files) <= _MAX_OPEN_FILES) for file in files]
        first = self._parts[0]
        for part in self._parts[1:]:
            check_same_columns(first.names, first.where, part.names, part.where, SAME_COLUMNS)
        self.columns = pd.Index(first.names)
        self.texts = {}
        for name, dtype in first.texts.items():
            if all(part.texts.get(name) == dtype for part in self._parts):
                self.texts[name] = dtype

    def __len__(self) -> int:
        return sum(part.n_rows for part in self._parts)

    def __getitem__(self, name: str) -> pd.Series:
        """Return a column with a new index.

        Raises KeyError if it does not exist, InputError if a file cannot be read.
        """
        if name not in self.columns:
            raise KeyError(name)
        if name in self.texts:
            return self._coded(name)
        return joined([part.column(name) for part in self._parts], self._parts[0].where)

    def check_agreement(self, form: CsvFormat) -> None:
        """Raise InputError if a column has two types, or two files have the same rows; see
        :mod:`.file_agreement`.
        """
        files = []
        for part in self._parts:
            files.append(TableFile(part.where, {}, part.n_rows, part.types, part.column))
        names = without(self.columns, form.drop)
        check_agreement(files, names, snapshots=form.snapshots)

    def drop(self, *, columns: Sequence[str]) -> StoredTable:
        """Return the table without these columns."""
        table = StoredTable.__new__(StoredTable)
        table.__dict__.update(self.__dict__, columns=self.columns.drop(list(columns)))
        return table

    def _coded(self, name: str) -> pd.Series:
        """Return a column of strings as Categorical, in order of first occurrence."""
        codes = mapped_empty(len(self), np.int32)
        start = 0
        code_of: dict[str | None, int] = {}
        for part in self._parts:
            for texts, positions in part.chunks(name):
                lookup = np.full(len(texts) + 1, -1, dtype=np.int32)
                for i, text in enumerate(texts):
                    if text is not None:
                        lookup[i] = code_of.setdefault(text, len(code_of))
                stop = start + len(positions)
                # -1, missing, selects the last
                np.take(lookup, positions, out=codes[start:stop], mode="wrap")
                start = stop
        dtype = pd.CategoricalDtype(pd.Index(list(code_of), dtype=object))
        categories = pd.Categorical.from_codes(codes, dtype=dtype, validate=False)
        return pd.Series(categories, name=name, copy=False)


class _Part:
    """One file: ``names`` and Arrow ``types`` of its columns, number of ``rows``, dtypes of its
    strings (``texts``).
    """

    def __init__(self, file: Location, stays_open: bool = True) -> None:
        self.where = str(file)
        self._stays_open = stays_open
        self._files: dict[tuple[str, ...], pa.parquet.ParquetFile] = {}
        try:
            # fetch an object once
            self._source = local_path(file) or file.open("rb")
        except OSError as error:
            unreadable("parquet", self.where, error).raise_without_context()
        opened = self._opened()
        layout = opened.schema_arrow
        self.n_rows = opened.metadata.num_rows
        self.types = dict(zip(layout.names, layout.types, strict=True))
        self._metadata = layout.pandas_metadata or {}
        described = self._metadata.get("columns", ())
        self._columns = dict[str, Any]()
        for column in described:
            if "field_name" in column:
                self._columns[column["field_name"]] = column
        listed = self._metadata.get("index_columns", [])
        self._index = list[str]()
        plain = list[str]()
        for name in layout.names:
            if name in listed:
                self._index.append(name)
            else:
                plain.append(name)
        self._first = plain[:1]
        self._stored = frozenset(layout.names)
        index = without(self._frame(self._first).columns, self._first)
        check_index(index, plain, self.where)
        self.names = [*index, *plain]
        dtypes = frame_of(layout.empty_table(), self.where).dtypes
        self.texts = {}
        for name in plain:
            is_text = layout.field(name).type in (pa.string(), pa.large_string())
            if is_text and isinstance(dtypes[name], pd.StringDtype):
                self.texts[name] = str(dtypes[name])

    def column(self, name: str) -> pd.Series:
        """Return a column as in a frame of the whole file."""
        names = [name] if name in self._stored else self._first
        return self._frame(names)[name]

    def chunks(self, name: str) -> Iterator[tuple[list[str | None], np.ndarray]]:
        """Yield distinct strings of a part of a row group, and the position of each row's string,
        -1 for missing.
        """
        try:
            opened = self._opened(tuple(self.texts))
            for group in range(opened.num_row_groups):
                column = opened.read_row_group(group, columns=[name]).column(name)
                for chunk in column.chunks:
                    if not pa.types.is_dictionary(chunk.type):
                        chunk = chunk.dictionary_encode()
                    yield chunk.dictionary.to_pylist(), chunk.indices.fill_null(-1).to_numpy()
        except (*UNREADABLE, ValueError) as error:
            unread_file("parquet", self.where, error).raise_without_context()

    def _frame(self, names: Sequence[str]) -> pd.DataFrame:
        """Return the frame of some columns, and of a named index."""
        with_index = list(dict.fromkeys([*self._index, *names]))
        try:
            table = self._opened().read(columns=with_index, use_threads=False)  # one column, mostly
        except UNREADABLE as error:
            unread_file("parquet", self.where, error).raise_without_context()
        if self._columns:  # otherwise pandas would parse the metadata of every column of the file
            described = [self._columns[name] for name in with_index if name in self._columns]
            metadata = json.dumps({**self._metadata, "columns": described})
            table = table.replace_schema_metadata({"pandas": metadata})
        return frame_of(table, self.where)

    def _opened(self, dictionaries: tuple[str, ...] = ()) -> pa.parquet.ParquetFile:
        """Open the file, or return the open one. Strings of the columns ``dictionaries`` are read
        as dictionaries.
        """
        if dictionaries not in self._files:
            footer = self._files[()].metadata if () in self._files else None
            try:
                opened = pa.parquet.ParquetFile(
                    self._source, read_dictionary=dictionaries, metadata=footer
                )
            except UNREADABLE as error:
                fault = other_kind(self._source, "parquet", self.where)
                (fault or unread_file("parquet", self.where, error)).raise_without_context()
            if not self._stays_open:
                return opened
            self._files[dictionaries] = opened
        return self._files[dictionaries]
