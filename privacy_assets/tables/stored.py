"""Tables in Parquet files, read one column at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from privacy_assets.infra.objects import Location, ObjectPath, location
from privacy_assets.tables.arrays import mapped_empty
from privacy_assets.tables.file_agreement import TableFile, check_agreement
from privacy_assets.tables.files import CsvFormat, find_files, table_files
from privacy_assets.tables.folders import folder_values
from privacy_assets.tables.names import as_named
from privacy_assets.tables.reading import (
    CSV,
    SAME_COLUMNS,
    UNREADABLE,
    check_index,
    frame_of,
    joined,
    kind_of,
    other_kind,
    read_files,
    unread_file,
    unreadable,
)
from privacy_assets.tables.schema import check_frame, check_same_columns

# files that one table keeps open, each of them twice: a process may open about 1,000
_MOST_OPEN = 64


def open_table(path: str | Location, form: CsvFormat = CSV) -> pd.DataFrame | StoredTable:
    """Open the table at ``path``: Parquet files as a :class:`StoredTable`, CSV files by
    :func:`~.reading.read_table`.

    See :func:`~.reading.read_table` for arguments and errors.
    """
    place = location(path)
    root, files = find_files(place)
    if {kind_of(file) for file in files} != {"parquet"} or any(
        folder_values(root, file) for file in files
    ):
        return read_files(place, root, files, form)
    table = StoredTable(files)
    # its files know the columns by other names
    if as_named(list(table.columns)) != list(table.columns):
        return read_files(place, root, files, form)
    check_frame(table, where=str(place))
    table.check_agreement(form)
    return table


def stored_rows(path: str | Location) -> int:
    """Return the number of rows of Parquet files by their footers, without reading a row. Other
    files count as 0.

    Raises InputError naming the file.
    """
    n_rows = 0
    for file in table_files(path):
        if kind_of(file) != "parquet":
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
        self._parts = [_Part(file, stays_open=len(files) <= _MOST_OPEN) for file in files]
        first = self._parts[0]
        for part in self._parts[1:]:
            check_same_columns(first.names, first.where, part.names, part.where, SAME_COLUMNS)
        self.columns = pd.Index(first.names)
        dtypes = {name: {part.texts.get(name, "") for part in self._parts} for name in first.names}
        self.texts = {
            name: min(found) for name, found in dtypes.items() if len(found) == 1 and min(found)
        }

    def __len__(self) -> int:
        return sum(part.rows for part in self._parts)

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
        files = [
            TableFile(part.where, {}, part.rows, part.types, part.column) for part in self._parts
        ]
        names = [name for name in self.columns if name not in form.drop]
        check_agreement(files, names, snapshots=form.snapshots)

    def drop(self, *, columns: Sequence[str]) -> StoredTable:
        """Return the table without these columns."""
        other = StoredTable.__new__(StoredTable)
        other.__dict__.update(self.__dict__, columns=self.columns.drop(list(columns)))
        return other

    def _coded(self, name: str) -> pd.Series:
        """Return a column of strings as Categorical, in order of first occurrence."""
        codes, start = mapped_empty(len(self), np.int32), 0
        places: dict[str | None, int] = {}
        for part in self._parts:
            for chunk in part.chunks(name):
                known = [
                    -1 if text is None else places.setdefault(text, len(places))
                    for text in chunk[0]
                ]
                stop = start + len(chunk[1])
                np.take(
                    np.array([*known, -1], dtype=np.int32),
                    chunk[1],
                    out=codes[start:stop],
                    mode="wrap",
                )
                start = stop
        dtype = pd.CategoricalDtype(pd.Index(list(places), dtype=object))
        return pd.Series(
            pd.Categorical.from_codes(codes, dtype=dtype, validate=False), name=name, copy=False
        )


class _Part:
    """One file: ``names`` and Arrow ``types`` of its columns, number of ``rows``, dtypes of its
    strings (``texts``).
    """

    def __init__(self, file: Location, stays_open: bool = True) -> None:
        self.where, self._stays_open = str(file), stays_open
        self._files: dict[tuple[str, ...], pa.parquet.ParquetFile] = {}
        try:
            # fetch an object once
            self._source = file.open("rb") if isinstance(file, ObjectPath) else file
        except OSError as error:
            unreadable("parquet", self.where, error).raise_without_context()
        opened = self._opened()
        layout, self.rows = opened.schema_arrow, opened.metadata.num_rows
        self.types = dict(zip(layout.names, layout.types, strict=True))
        self._metadata = layout.pandas_metadata or {}
        described = self._metadata.get("columns", ())
        self._columns = {
            column["field_name"]: column for column in described if "field_name" in column
        }
        listed = self._metadata.get("index_columns", [])
        self._index = [name for name in layout.names if name in listed]
        plain = [name for name in layout.names if name not in self._index]
        self._first, self._stored = plain[:1], frozenset(layout.names)
        index = [name for name in self._frame(self._first).columns if name not in self._first]
        check_index(index, plain, self.where)
        self.names = [*index, *plain]
        dtypes = frame_of(layout.empty_table(), self.where).dtypes
        self.texts = {
            name: str(dtypes[name])
            for name in plain
            if layout.field(name).type in (pa.string(), pa.large_string())
            and isinstance(dtypes[name], pd.StringDtype)
        }

    def column(self, name: str) -> pd.Series:
        """Return a column as in a frame of the whole file."""
        return self._frame([name] if name in self._stored else self._first)[name]

    def chunks(self, name: str) -> Iterator[tuple[list[str | None], np.ndarray]]:
        """Yield distinct strings of a part of a row group, and the position of each row's string,
        -1 for missing.
        """
        try:
            opened = self._opened(tuple(self.texts))
            for group in range(opened.num_row_groups):
                for chunk in opened.read_row_group(group, columns=[name]).column(name).chunks:
                    coded = (
                        chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
                    )
                    yield coded.dictionary.to_pylist(), coded.indices.fill_null(-1).to_numpy()
        except (*UNREADABLE, ValueError) as error:
            unread_file("parquet", self.where, error).raise_without_context()

    def _frame(self, names: Sequence[str]) -> pd.DataFrame:
        """Return the frame of some columns, and of a named index."""
        wanted = [*self._index, *(name for name in names if name not in self._index)]
        try:
            table = self._opened().read(columns=wanted, use_threads=False)  # one column, mostly
        except UNREADABLE as error:
            unread_file("parquet", self.where, error).raise_without_context()
        if self._columns:  # otherwise pandas would parse the metadata of every column of the file
            own = [self._columns[name] for name in wanted if name in self._columns]
            table = table.replace_schema_metadata(
                {"pandas": json.dumps({**self._metadata, "columns": own})}
            )
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
