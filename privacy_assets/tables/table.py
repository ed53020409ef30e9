"""A table as the package knows it: the columns of one schema. pandas stands at its doors only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.errors import InputError
from privacy_assets.tables.column import Column, of_one_vocabulary, stacked
from privacy_assets.tables.conversion import check_cells, column_of, restored, rounded
from privacy_assets.tables.fingerprints import content_fingerprint
from privacy_assets.tables.given import load
from privacy_assets.tables.schema import Frame, Kind, TableSchema, check_frame, infer_schema, option_text


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of one schema, column by column; ``table[name]`` is a :class:`Column`.

    Immutable: whatever changes a table makes another. Made by :meth:`of` from what a user gave; :meth:`frame` and
    :meth:`restored` give pandas back.
    """

    schema: TableSchema
    columns: Mapping[str, Column]
    rows: int

    @classmethod
    def of(cls, frame: Frame, schema: TableSchema, *, where: str, smallest: int = 1, synthetic: bool = False) -> Table:
        """The table of a frame that has exactly the columns of ``schema``, in any order.

        Missing values are allowed in any column (one that the private table does not have is a value of its own to the
        metrics). ``synthetic`` numbers and times are rounded to the precision of their column. Raises InputError, named
        ``where``, for missing or extra columns, values that do not convert, and infinities.
        """
        check_frame(frame, where=where, smallest=smallest)
        _check_columns(frame, schema, where)
        if isinstance(frame, pd.DataFrame) and frame.attrs:
            frame = frame.copy(deep=False)
            frame.attrs = {}  # pandas copies them, deeply, in most of what is done to a column
        columns = {c.name: column_of(frame[c.name], c, where, synthetic=synthetic) for c in schema.columns}
        return cls(schema, columns, len(frame))

    @classmethod
    def read(cls, given: Any, *, where: str = "table", kinds: Mapping[str, Kind] | None = None) -> Table:
        """The table of a path, or of a dataframe of any library, with the schema that it suggests.

        ``kinds`` overrides the kind of columns. Nobody has looked for identifiers: see :mod:`.roles`.
        """
        frame = load(given, where)
        return cls.of(frame, infer_schema(frame, kinds, where=where), where=where)

    @classmethod
    def of_columns(cls, schema: TableSchema, columns: Mapping[str, Column]) -> Table:
        """The table of the columns of ``schema``, at least one."""
        named = {name: columns[name] for name in schema.names}
        return cls(schema, named, len(next(iter(named.values()))))

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def take(self, rows: np.ndarray | slice) -> Table:
        """The rows at these positions, or where bool (n,) says so."""
        if isinstance(rows, np.ndarray) and rows.dtype == bool:
            rows = np.flatnonzero(rows)
        count = len(range(*rows.indices(self.rows))) if isinstance(rows, slice) else len(rows)
        return replace(self, columns={name: column.take(rows) for name, column in self.columns.items()}, rows=count)

    def select(self, names: Sequence[str]) -> Table:
        """The named columns, in this order."""
        return self.under(TableSchema(tuple(self.schema[name] for name in names)))

    def under(self, schema: TableSchema) -> Table:
        """The columns of ``schema``, which may say more of each than the table's own does."""
        return replace(self, schema=schema, columns={name: self.columns[name] for name in schema.names})

    def with_columns(self, *columns: Column) -> Table:
        """The table with these columns in place of those of their names."""
        return replace(self, columns={**self.columns, **{column.name: column for column in columns}})

    def map(self, change: Callable[[Column], Column]) -> Table:
        """The table with every column changed."""
        return self.with_columns(*(change(column) for column in self.columns.values()))

    @classmethod
    def stack(cls, tables: Sequence[Table]) -> Table:
        """The rows of one or more tables, one after the other, in the schema of the first."""
        first = tables[0]
        columns = {name: stacked([table[name] for table in tables]) for name in first.schema.names}
        return cls(first.schema, columns, sum(map(len, tables)))

    def as_synthetic(self, schema: TableSchema, *, where: str) -> Table:
        """What a generator made, as a table of ``schema``: rounded; InputError for what :meth:`of` refuses."""
        _check_columns(self, schema, where)
        for column in schema.columns:
            if self.columns[column.name].kind != column.kind:
                fix = f"make it {column.kind}"
                raise InputError("the column is of another kind", where=where, column=column.name, fix=fix)
            check_cells(self.columns[column.name], where)
        return self.under(schema).map(lambda column: rounded(column, schema[column.name]))

    def frame(self) -> pd.DataFrame:
        """The canonical pandas form, see :meth:`Column.series`."""
        names = self.schema.names
        series = {name: self.columns[name].series() for name in names}
        return pd.DataFrame(series, columns=names, index=pd.RangeIndex(self.rows))

    def restored(self) -> pd.DataFrame:
        """The table in the dtypes of the private table, for publication.

        A dtype that cannot hold a missing value becomes its nullable counterpart when one is there. A value that the
        dtype cannot hold otherwise (300 in int8, text in a number) is an InputError: it is never changed without a
        word; only shorter floats and coarser or finer times round.
        """
        schema = self.schema
        series = {c.name: restored(self.columns[c.name], c) for c in schema.columns}
        return pd.DataFrame(series, columns=schema.names, index=pd.RangeIndex(self.rows))

    @cached_property
    def fingerprint(self) -> str:
        """Order-free fingerprint of the content, see :func:`~.fingerprints.content_fingerprint`. Keep it private."""
        return content_fingerprint(self.columns, self.rows)


def joint(tables: Mapping[str, Table]) -> dict[str, Table]:
    """Tables of the same columns, by role, in which equal cells of a column are equal values."""
    roles = list(tables)
    for name in tables[roles[0]].columns:
        alike = of_one_vocabulary([tables[role][name] for role in roles])
        tables = {role: tables[role].with_columns(column) for role, column in zip(roles, alike, strict=True)}
    return dict(tables)


def _check_columns(frame: Frame | Table, schema: TableSchema, where: str) -> None:
    names = schema.names
    absent = [name for name in names if name not in frame.columns]
    if absent:
        fix = "give every table the same columns"
        if len(absent) == len(names):  # this table or the private one may be turned, its names the cells of a row
            raise InputError("it has none of the columns of the private table", where=where, fix=fix)
        fix += f", drop it (--drop {option_text(absent[:1])}), or, if it tells people apart, name it as the subject"
        raise InputError("the column is missing", where=where, column=absent[0], fix=fix)
    extra = [position for position, name in enumerate(frame.columns) if name not in names]
    if extra:
        problem = f"{len(extra)} columns do not stand in the schema, the first at position {extra[0]}"
        raise InputError(problem, where=where, fix="drop them, or add them to every table")
