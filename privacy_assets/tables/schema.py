"""Column kinds and roles, and the schema of a table."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import pandas as pd
import yaml

from privacy_assets.errors import InputError, near_name
from privacy_assets.tables.names import name_fault
from privacy_assets.tables.precision import Precision

Kind = Literal["numeric", "integer", "categorical", "boolean", "datetime"]
ColumnRole = Literal[
    "closed", "number", "date", "generated"
]  # identifying columns are rejected: see .roles


class Frame(Protocol):
    """Interface of input tables to checks and conversion: a dataframe, or a table whose columns are
    read on access.
    """

    @property
    def columns(self) -> pd.Index:
        """Column names in order."""

    def __len__(self) -> int: ...

    def __getitem__(self, name: str, /) -> pd.Series: ...

    def drop(self, *, columns: Sequence[str]) -> Any:
        """Return the table without these columns."""


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """Schema of a column.

    Attributes:
        name: Column name.
        kind: Kind of its values.
        nullable: True if values are missing.
        dtype: Pandas dtype of the published table.
        precision: Precision of numbers and times; see :mod:`.precision`.
        role: Which values the published column may contain; see :mod:`.roles`. None: not determined
            yet.
        allowed_values: Values that a closed column may contain in addition to those of the real
            tables.
        source: Source of ``allowed_values`` if they are a public list, whose values are published
            even if they are rare. "": no public list.
        format: Format of text cells that are numbers or dates; see :class:`.text.TextForm`.
        missing: Declared values that mean a missing value, in addition to empty cells.
        timezone: Declared zone of times without a time zone. "": they have none.
    """

    name: str
    kind: Kind
    nullable: bool
    dtype: str
    precision: Precision = None
    role: ColumnRole | None = None
    allowed_values: tuple[Any, ...] = ()
    source: str = ""
    format: str = ""
    missing: tuple[str, ...] = ()
    timezone: str = ""

    @property
    def is_zoned(self) -> bool:
        """True for times with a time zone."""
        return self.kind == "datetime" and "," in self.dtype


@dataclass(frozen=True, slots=True)
class TableSchema:
    """Schemas of the columns, in the order of the private table."""

    columns: tuple[ColumnSchema, ...]

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [column.name for column in self.columns]

    def of_kind(self, *kinds: Kind) -> list[str]:
        """Return the names of the columns of these kinds, in order."""
        return [column.name for column in self.columns if column.kind in kinds]

    def __getitem__(self, name: str) -> ColumnSchema:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def without(self, *names: str | None) -> TableSchema:
        """Return the schema without the named columns."""
        return TableSchema(tuple(column for column in self.columns if column.name not in names))

    @property
    def evaluated(self) -> TableSchema:
        """Schema without generated columns, which metrics, filters and the embedder ignore."""
        return self.without(*self.generated)

    @property
    def generated(self) -> list[str]:
        """Names of the columns in which new values are allowed."""
        return [column.name for column in self.columns if column.role == "generated"]

    def to_json(self) -> list[dict[str, Any]]:
        """Return one JSON-compatible mapping per column."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def from_json(cls, data: list[dict[str, Any]]) -> TableSchema:
        """Create a schema from the output of :meth:`to_json`."""
        columns = []
        for facts in data:
            attributes = dict(facts)
            for name in ("allowed_values", "missing"):  # JSON has no tuples
                attributes[name] = tuple(facts.get(name, ()))
            columns.append(ColumnSchema(**attributes))
        return cls(tuple(columns))


def check_columns(columns: pd.Index, n_rows: int, *, where: str, smallest: int = 1) -> None:
    """Check that a table has columns with unique names, and enough rows.

    Args:
        columns: Names of the columns.
        n_rows: Number of rows.
        where: Name of the table in messages.
        smallest: Minimum number of rows.

    Raises:
        InputError: If it has no columns, too few rows, or a name that is repeated, invalid or not a
            string.
    """
    if len(columns) == 0:
        fix = "pass a table with at least one column"
        raise InputError("the table has no columns", where=where, fix=fix)
    # Positions, not names: if a table was transposed by mistake, its column names are private
    # values.
    for position, name in enumerate(columns):
        if not isinstance(name, str):
            problem = f"the name of column {position} has type {type(name).__name__}, not string"
            raise InputError(problem, where=where, fix="convert the column names to strings")
        fault = name and name_fault(name)  # an unnamed column can be dropped
        if fault:
            problem = f"the name of column {position} {fault}"
            raise InputError(problem, where=where, fix="rename the column")
    repeated = columns.duplicated().nonzero()[0]
    if len(repeated):
        problem = f"the name of column {repeated[0]} occurs twice"
        raise InputError(problem, where=where, fix="rename one of the columns")
    if n_rows < smallest:
        problem = f"the table has {n_rows} rows, at least {smallest} are needed"
        raise InputError(problem, where=where, fix="add rows")


def check_named(columns: Iterable[str], where: str) -> None:
    """Raise InputError if a column has a blank name. Files of tables with an index have one."""
    for position, name in enumerate(columns):
        if name.strip():
            continue
        settings = yaml_text({"drop": [name]})
        options = f"--drop {option_text([name])}"
        fix = f"name it, or drop it (data: {settings}; on the command line {options})"
        raise InputError(f"column {position} has no name", where=where, fix=fix)


def yaml_text(value: object) -> str:
    """Format a value as YAML in one line, to paste into the settings of a table."""
    text: str = yaml.safe_dump(
        value, default_flow_style=True, allow_unicode=True, sort_keys=False, width=math.inf
    )
    return text.removesuffix("\n").removesuffix("\n...")


def option_text(names: Iterable[str], start: str = "") -> str:
    """Format strings such as column names as the value of a command-line option, quoted for a
    shell.

    Args:
        names: Strings, which are separated by commas.
        start: Start of the value, for example ``"crp="``.
    """
    return shlex.quote(start + ",".join(map(_quoted, names)))


def _quoted(name: str) -> str:
    has_quoted_start = name.startswith((" ", '"'))
    if name and not has_quoted_start and not set(name) & {",", "\n", "\r"}:
        return name
    return '"' + name.replace('"', '""') + '"'


def check_subject(columns: Iterable[str], subject: str, where: str) -> None:
    """Check that a table has the subject column.

    Args:
        columns: Columns of the table.
        subject: Column that identifies people.
        where: Name of the table in messages.

    Raises:
        InputError: If the column does not exist.
    """
    if subject in columns:
        return
    if subject.endswith("?"):
        problem = "the subject is a question of `inspect`"
        fix = "write the name of the column that identifies people, without a question mark"
        raise InputError(problem, where=where, column=subject, fix=fix)
    fix = f"set subject to a column of this table.{near_name(subject, columns)}"
    if " or " in subject:
        fix = "keep one of these names, that of the column that identifies people"
    problem = "the column configured as the subject does not exist"
    raise InputError(problem, where=where, column=subject, fix=fix)


def check_not_published(columns: Iterable[str], subject: str | None, where: str) -> None:
    """Check that the synthetic table does not contain the subject column.

    A synthetic row belongs to no subject, and the identifier of a real one would be disclosed.

    Args:
        columns: Columns of the synthetic table.
        subject: Column that identifies people. None: there is none.
        where: Name of the table in messages.

    Raises:
        InputError: If it does.
    """
    if subject is None or subject not in columns:
        return
    settings = yaml_text({"subject": subject, "drop": [subject]})
    options = f"--subject {option_text([subject])} --drop {option_text([subject])}"
    fix = (
        "remove the column from the file; or keep the subject, and drop the column here as well"
        f" (data: {settings}; on the command line {options}), and publish the table without it"
    )
    problem = "the synthetic table contains the subject column, although its rows belong to no one"
    raise InputError(problem, where=where, column=subject, fix=fix)


def check_same_columns(
    first: Iterable[str], first_where: str, names: Iterable[str], where: str, fix: str
) -> None:
    """Check that two tables have the same columns in any order.

    Args:
        first: Columns of the first table.
        first_where: Name of the first table in messages.
        names: Columns of the second table.
        where: Name of the second table in messages.
        fix: Advice.

    Raises:
        InputError: If the columns differ.
    """
    differing = sorted(set(first) ^ set(names))
    if not differing:
        return
    # a table may be transposed, so that its names are private values
    if not set(first) & set(names):
        raise InputError(f"it shares no column with {first_where}", where=where, fix=fix)
    problem = f"the columns differ from {first_where}"
    raise InputError(problem, where=where, column=differing[0], fix=fix)
