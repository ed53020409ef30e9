"""The table of this package: columns of a schema. pandas is used for input and output only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.errors import InputError, near_name
from privacy_assets.infra.objects import Location
from privacy_assets.tables.arrays import array_digest, load_arrays, reporting_damage, save_arrays
from privacy_assets.tables.column import (
    Column,
    columns_by_name,
    columns_named,
    of_one_vocabulary,
    stacked,
)
from privacy_assets.tables.column_rule import ColumnRule, rules_from_json
from privacy_assets.tables.conversion import column_of, restored, synthetic_column
from privacy_assets.tables.fingerprints import content_fingerprint
from privacy_assets.tables.given import load
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.names import without
from privacy_assets.tables.relations import Relation
from privacy_assets.tables.schema import Frame, Kind, TableSchema, check_columns, option_text

# dtypes of stored cells by kind, and of those of categories and booleans
_DTYPES: Mapping[str, tuple[str, ...]] = {
    "numeric": ("f8",),
    "integer": ("i8",),
    "datetime": ("i8",),
}
_CODE_DTYPES = ("i1", "i2", "i4")


@dataclass(frozen=True, eq=False)
class Table:
    """Immutable rows of a schema, stored by column; ``table[name]`` is a :class:`Column`.

    Created by :meth:`of` from user input; :meth:`frame` and
    :meth:`to_published_frame` return pandas frames.

    Attributes:
        schema: Schema, without the subject.
        columns: Columns by name, with the subject.
        n_rows: Number of rows.
        subject: Name of the column that identifies subjects, as strings. None: there is none.
        envelope: Signed file of the step that made a private table. Empty: not signed.
        notes: Notes for the report on how a private table was read. They contain no cell.
        rules: Threshold rule by column, if it was applied; see :mod:`.threshold_rule`.
        relations: Relations between columns of the real rows; see :mod:`.relations`.
    """

    schema: TableSchema
    columns: Mapping[str, Column] = field(repr=False)
    n_rows: int
    subject: str | None = None
    envelope: bytes = field(default=b"", repr=False)
    notes: tuple[str, ...] = ()
    rules: Mapping[str, ColumnRule] = field(default_factory=dict, repr=False)
    relations: tuple[Relation, ...] = ()

    @classmethod
    def of(
        cls,
        frame: Frame,
        schema: TableSchema,
        *,
        where: str,
        smallest: int = 1,
        synthetic: bool = False,
        external: bool = False,
    ) -> Table:
        """Create a table from a frame with exactly the columns of ``schema``, in any order.

        Missing values are allowed in any column; in one without missing values in the private
        table, metrics treat them as a separate value.

        Args:
            frame: Values.
            schema: Schema.
            where: Name of the table in messages.
            smallest: Minimum number of rows.
            synthetic: If True, numbers and times are rounded to the precision of their column.
            external: If True, the values come from the user, see :func:`~.conversion.column_of`.

        Raises:
            InputError: If columns are missing or unexpected, values do not convert, or numbers are
                infinite.
        """
        check_columns(frame.columns, len(frame), where=where, smallest=smallest)
        _check_columns(list(frame.columns), schema, where)
        if isinstance(frame, pd.DataFrame) and frame.attrs:
            frame = frame.copy(deep=False)
            frame.attrs = {}  # pandas deep-copies them in most operations on a column
        columns = {}
        for column in schema.columns:
            columns[column.name] = column_of(
                frame[column.name], column, where, synthetic=synthetic, external=external
            )
        return cls(schema, columns, len(frame))

    @classmethod
    def read(
        cls, given: Any, *, where: str = "table", kinds: Mapping[str, Kind] | None = None
    ) -> Table:
        """Create a table with an inferred schema. Identifiers are not checked: see :mod:`.roles`.

        Args:
            given: Path or dataframe.
            where: Name of the table in messages.
            kinds: Kinds that replace the inferred ones, by column. None: there are none.
        """
        frame = load(given, where)
        return cls.of(frame, infer_schema(frame, kinds, where=where), where=where, external=True)

    @classmethod
    def of_columns(cls, schema: TableSchema, columns: Mapping[str, Column]) -> Table:
        """Create a table from columns of ``schema``.

        Args:
            schema: Schema of one or more columns.
            columns: Columns by name. Those that the schema lacks are left out.
        """
        selected = {name: columns[name] for name in schema.names}
        n_rows = len(selected[schema.names[0]])
        return cls(schema, selected, n_rows)

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def take(self, rows: np.ndarray | slice) -> Table:
        """Select rows.

        Args:
            rows: Positions (n,), a mask with the length of the table, or a slice.
        """
        if isinstance(rows, slice):
            n_rows = len(range(*rows.indices(self.n_rows)))
        else:
            if isinstance(rows, np.ndarray) and rows.dtype == bool:
                rows = np.flatnonzero(rows)
            n_rows = len(rows)
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        return replace(self, columns=columns, n_rows=n_rows)

    def select(self, names: Sequence[str]) -> Table:
        """Select columns, in this order."""
        return self.with_schema(TableSchema(tuple(self.schema[name] for name in names)))

    def with_schema(self, schema: TableSchema) -> Table:
        """Select the columns of ``schema``, which replaces the table's own schema, and the
        subject.
        """
        columns = {name: self.columns[name] for name in schema.names}
        if self.subject is not None:
            columns[self.subject] = self.columns[self.subject]
        return replace(self, schema=schema, columns=columns)

    @property
    def subject_ids(self) -> Column | None:
        """Subject of each row. None: there is no subject column."""
        if self.subject is None:
            return None
        return self.columns[self.subject]

    def with_subject(self, ids: Column | None) -> Table:
        """Return the table with the subject of each row. None: without one."""
        if ids is None:
            return self
        return replace(self.with_columns(ids), subject=ids.name)

    def without_subject(self) -> Table:
        """Return the columns of the schema without subject, envelope, notes, rules, relations."""
        return self.of_columns(self.schema, self.columns)

    def for_training(self) -> Table:
        """Return the columns of the schema with rules and relations, which generators use."""
        return replace(self.without_subject(), rules=self.rules, relations=self.relations)

    def with_columns(self, *columns: Column) -> Table:
        """Replace the columns with these names."""
        replacements = columns_by_name(columns)
        return replace(self, columns={**self.columns, **replacements})

    def map(self, change: Callable[[Column], Column]) -> Table:
        """Apply ``change`` to every column."""
        return self.with_columns(*(change(column) for column in self.columns.values()))

    def without_rare(self, rules: Mapping[str, ColumnRule], *, where: str | None = None) -> Table:
        """Apply the threshold rule. The schema is kept.

        Args:
            rules: Rules by column.
            where: Name of a synthetic table in messages, see :meth:`.ColumnRule.apply`.

        Raises:
            InputError: If a synthetic table has values that no rule replaces.
        """
        published = []
        for name, rule in rules.items():
            published.append(rule.apply(self[name], where=where))
        return self.with_columns(*published)

    @classmethod
    def stack(cls, tables: Sequence[Table]) -> Table:
        """Concatenate one or more tables, in the schema of the first."""
        first = tables[0]
        columns = {}
        for name in first.schema.names:
            columns[name] = stacked_column(tables, name)
        return cls(first.schema, columns, sum(map(len, tables)))

    def as_synthetic(self, schema: TableSchema, *, where: str) -> Table:
        """Convert generator output to a synthetic table.

        Args:
            schema: Schema of the real tables. Numbers and times are rounded to its precision.
            where: Name of the table in messages.

        Raises:
            InputError: As in :meth:`of`.
        """
        _check_columns(list(self.columns), schema, where)
        columns = []
        for column in schema.columns:
            if self.columns[column.name].kind != column.kind:
                problem = "the column has another kind"
                fix = f"make it {column.kind}"
                raise InputError(problem, where=where, column=column.name, fix=fix)
            columns.append(synthetic_column(self.columns[column.name], column, where))
        return self.with_schema(schema).with_columns(*columns)

    def frame(self) -> pd.DataFrame:
        """Return the canonical pandas form, see :meth:`Column.series`, with the subject as first
        column.
        """
        names = list(self.schema.names)
        if self.subject is not None:
            names.insert(0, self.subject)
        series = {name: self.columns[name].series() for name in names}
        return pd.DataFrame(series, columns=names, index=pd.RangeIndex(self.n_rows))

    def to_published_frame(self) -> pd.DataFrame:
        """Return the table in the dtypes of the private table, for publication.

        If values are missing, a dtype that cannot hold them is replaced by its nullable
        counterpart. Values of float16 and float32 columns and of other time units are rounded;
        other changes of a value (300 in int8, text in a number) raise InputError.
        """
        series = {}
        for column in self.schema.columns:
            series[column.name] = restored(self[column.name], column)
        return pd.DataFrame(series, columns=self.schema.names, index=pd.RangeIndex(self.n_rows))

    @cached_property
    def fingerprint(self) -> str:
        """Order-independent fingerprint, see :func:`~.fingerprints.content_fingerprint`. Keep it
        private.
        """
        return content_fingerprint(self.columns, self.n_rows)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the file of :meth:`save`, except its envelope. Keep it private."""
        return array_digest(*self.to_arrays())

    def save(self, path: Location) -> None:
        """Write the table, with subject and envelope, for :meth:`load`."""
        save_arrays(path, *self.to_arrays(), self.envelope)

    @classmethod
    def load(cls, path: Location) -> Table:
        """Load a table written by :meth:`save`. Its envelope is not verified.

        Raises:
            Damaged: If the file is missing or contains something else.
        """
        with reporting_damage(path, "table"):
            facts, arrays, envelope = load_arrays(path)
            return replace(cls.of_arrays(facts, arrays), envelope=envelope)

    def to_arrays(self) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Return JSON-compatible facts, and the arrays of columns and rules. Inverse:
        :meth:`of_arrays`.
        """
        columns = []
        arrays = []
        for column in self.columns.values():
            columns.append([column.name, column.kind, column.values])
            arrays.append(column.cells)
        rules = {}
        for name, rule in self.rules.items():
            rules[name] = rule.to_json()
            if rule.groups is not None:
                arrays.extend(rule.groups.arrays)
        facts = {
            "schema": self.schema.to_json(),
            "subject": self.subject,
            "n_rows": self.n_rows,
            "columns": columns,
            "notes": list(self.notes),
            "rules": rules,
            "relations": [relation.to_json() for relation in self.relations],
        }
        return facts, arrays

    @classmethod
    def of_arrays(cls, facts: Mapping[str, Any], arrays: Iterator[np.ndarray]) -> Table:
        """Create a table from the output of :meth:`to_arrays`.

        Args:
            facts: Facts.
            arrays: Arrays, of which those of the table are taken.

        Raises:
            ValueError: If cells are invalid.
        """
        n_rows = facts["n_rows"]
        columns = {}
        for name, kind, values in facts["columns"]:
            columns[name] = _checked_column(name, kind, values, next(arrays), n_rows)
        schema = TableSchema.from_json(facts["schema"])
        rules = rules_from_json(facts["rules"], arrays)
        return cls(
            schema,
            columns,
            n_rows,
            facts["subject"],
            notes=tuple(facts["notes"]),
            rules=rules,
            relations=tuple(Relation.from_json(relation) for relation in facts["relations"]),
        )


def _checked_column(
    name: str, kind: Kind, values: Sequence[Any] | None, cells: np.ndarray, n_rows: int
) -> Column:
    """Return a column of a file.

    Raises:
        ValueError: If its cells do not fit its kind, values and number of rows.
    """
    if cells.shape != (n_rows,) or cells.dtype.str[1:] not in _DTYPES.get(kind, _CODE_DTYPES):
        raise ValueError("the cells of a column have another form")
    if kind in _DTYPES:
        return Column(name, kind, cells)
    n_values = len(values)  # type: ignore[arg-type]
    if not -1 <= cells.min(initial=-1) <= cells.max(initial=-1) < n_values:
        raise ValueError("a code has no value")
    return Column(name, kind, cells, tuple(values))  # type: ignore[arg-type]


def stacked_column(tables: Iterable[Table], name: str) -> Column:
    """Return a column of stacked tables.

    Args:
        tables: One or more tables.
        name: Name of the column.
    """
    return stacked(columns_named(name, tables))


def subject_codes_of(tables: Iterable[Table]) -> np.ndarray | None:
    """Return the subject code of each row of stacked tables, int64 (n,). None: no subjects.

    Args:
        tables: One or more tables.
    """
    ids = subject_ids_of(tables)
    if ids is None:
        return None
    codes, _ = pd.factorize(ids.cells)
    return codes.astype(np.int64)


def subject_ids_of(tables: Iterable[Table]) -> Column | None:
    """Return the subject of each row of stacked tables. None: there are no subjects.

    Args:
        tables: One or more tables.
    """
    ids = []
    for table in tables:
        if table.subject_ids is not None:
            ids.append(table.subject_ids)
    if not ids:
        return None
    return stacked(ids)


def person_codes_of(tables: Sequence[Table]) -> np.ndarray:
    """Return :func:`subject_codes_of`. Without subjects, each row is a person.

    Args:
        tables: One or more tables.
    """
    subject_codes = subject_codes_of(tables)
    if subject_codes is None:
        return np.arange(sum(map(len, tables)))
    return subject_codes


def stacked_columns(tables: Sequence[Table]) -> list[Column]:
    """Return the columns of stacked tables, without generated ones.

    Args:
        tables: One or more tables with one schema.
    """
    names = tables[0].schema.evaluated.names
    return [stacked_column(tables, name) for name in names]


def joint(tables: Mapping[str, Table]) -> dict[str, Table]:
    """Convert tables so that equal cells of a column are equal values.

    Args:
        tables: One or more tables with the same columns, by role.
    """
    first = next(iter(tables.values()))
    columns: dict[str, list[Column]] = {role: [] for role in tables}
    for name in first.columns:
        converted = of_one_vocabulary(columns_named(name, tables.values()))
        for role, column in zip(tables, converted, strict=True):
            columns[role].append(column)
    converted_tables = {}
    for role, table in tables.items():
        converted_tables[role] = table.with_columns(*columns[role])
    return converted_tables


def _check_columns(columns: Sequence[str], schema: TableSchema, where: str) -> None:
    names = schema.names
    missing = without(names, columns)
    extra = without(columns, names)
    if missing:
        fix = "give every table the same columns"
        # one of the tables may lack a header, so that its names are cells
        if len(missing) == len(names):
            problem = "it has none of the columns of the private table"
            raise InputError(problem, where=where, fix=fix)
        fix += (
            f", drop it (--drop {option_text(missing[:1])}), or, if it identifies subjects, name"
            " it as the subject"
        )
        fix += f".{near_name(missing[0], extra)}".rstrip(".")
        raise InputError("the column is missing", where=where, column=missing[0], fix=fix)
    if extra:
        position = columns.index(extra[0])
        problem = f"{len(extra)} columns are not in the schema, the first at position {position}"
        raise InputError(problem, where=where, fix="drop them, or add them to every table")
