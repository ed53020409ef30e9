"""Reading the rows of a table from its sources, in canonical form."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype

from privacy_assets.errors import InputError, safe_repr
from privacy_assets.pipeline.resolve import PARTITION_MARK, ResolvedTable, RowSource
from privacy_assets.tables.canonical import check_synthetic_rows, real_tables, synthetic_table
from privacy_assets.tables.column import Column
from privacy_assets.tables.declared import EACH_ROW, Declared
from privacy_assets.tables.files import CsvFormat
from privacy_assets.tables.given import given_frame, load
from privacy_assets.tables.roles import may_identify_people
from privacy_assets.tables.schema import Frame, TableSchema, yaml_text
from privacy_assets.tables.splitting import split_rows
from privacy_assets.tables.stored import stored_rows
from privacy_assets.tables.subject_ids import subject_columns
from privacy_assets.tables.table import Table

Window = tuple[Any, Any]  # start and end of a time partition


def read_source(
    row_source: RowSource, passed_rows: object, partition: str | None, form: CsvFormat
) -> Frame:
    """Open the rows of a source. Columns of Parquet files are read when they are used.

    Args:
        row_source: Rows passed by the caller, the demo table, or a path.
        passed_rows: Rows from the caller, for a source of kind "given".
        partition: Key of the partition, which replaces the placeholder in a path.
        form: Separator and encoding of CSV files.

    Returns:
        The rows, before any conversion.

    Raises:
        InputError: If the rows cannot be read.
    """
    if row_source.kind == "given":
        return given_frame(passed_rows, where=row_source.describe()).reset_index(drop=True)
    if row_source.kind == "demo":
        from privacy_assets.tables.demo import load_patients

        return load_patients()
    return load(partition_path(row_source.path, partition), form=form)


def partition_path(template: str, partition: str | None) -> str:
    """Return the path of one partition.

    Args:
        template: Path, with or without a placeholder.
        partition: Key that replaces the placeholder. ``*?[`` in it match only themselves. None:
            all partitions.

    Raises:
        InputError: If the key is empty, so the path would match all partitions, or would lead to
            another folder.
    """
    if PARTITION_MARK not in template or partition is None:
        return template
    if partition in ("", "..") or Path(partition).name != partition:
        fix = "use a key that is not empty and has no slashes"
        raise InputError("the partition key cannot be part of a path", where=template, fix=fix)
    return template.replace(PARTITION_MARK, glob.escape(partition))


def select_partition(
    frame: pd.DataFrame,
    column: str | None,
    partition: str | None,
    window: Window | None,
    *,
    where: str,
    is_zoned: bool = True,
) -> pd.DataFrame:
    """Return the rows of one partition, with their index.

    Args:
        frame: Rows of all partitions.
        column: Partition column. None: all rows.
        partition: Key of the partition, compared with the column as strings in Unicode form NFC.
            None: all rows.
        window: Start and end of a time partition, used instead of the key.
        where: Name of the table in messages.
        is_zoned: False if the times of the column have no time zone: they are times of the clock of
            the window.

    Raises:
        InputError: If the column is missing, or the partition has no rows.
    """
    if column is None or partition is None:
        return frame
    if column not in frame.columns:
        raise InputError(
            "the partition column is missing",
            where=where,
            column=column,
            fix="set it to an existing column",
        )
    if window is not None:
        start, end = window
        if not is_zoned:
            start = start.replace(tzinfo=UTC)
            end = end.replace(tzinfo=UTC)
        times = pd.to_datetime(frame[column], utc=True, errors="coerce")
        selected = frame[(times >= start) & (times < end)]
    else:
        key = partition
        if is_bool_dtype(frame[column]):
            key = partition.lower()
        keys = frame[column].astype(object).map(_key_of).str.normalize("NFC")
        selected = frame[keys == key]
    if selected.empty:
        raise InputError(
            "the partition has no rows", where=where, column=column, fix="check partitions and data"
        )
    return selected


def _key_of(value: object) -> str:
    """Return the partition key of a cell: 2020.0 is 2020, and booleans are in lower case."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def source_table(
    resolved: ResolvedTable,
    passed_rows: pd.DataFrame | None,
    partition: str | None,
    window: Window | None,
    accepted_columns: Mapping[str, str] | None = None,
) -> Table:
    """Read the private table in canonical form.

    The schema is inferred before the partition is selected.

    Args:
        resolved: Settings of the table.
        passed_rows: Rows from the caller. None: the rows of the configured source.
        partition: Key of the partition. None: all rows.
        window: Start and end of a time partition. None: rows are selected by the key.
        accepted_columns: Columns in the signed settings of the table, see
            :func:`~.tables.inference.joint_schema`.

    Raises:
        InputError: If the rows cannot be read, or the partition has none.
    """
    row_source = resolved.row_sources["source"]
    frame = read_source(row_source, passed_rows, partition, resolved.declared.csv_format)
    _check_people_known(frame, resolved.declared, "source")
    table = _source_in_canonical_form(frame, resolved.declared, accepted_columns)
    return _of_partition(table, resolved, "source", partition, window)


def _source_in_canonical_form(
    frame: Frame, declared: Declared, accepted_columns: Mapping[str, str] | None
) -> Table:
    # the table is not split yet, and no role depends on the name
    frames = {"source": frame}
    tables = real_tables(frames, {"source": "source"}, declared, accepted_columns=accepted_columns)
    return tables["source"]


def train_rows(
    resolved: ResolvedTable, key: bytes, accepted_columns: Callable[[], Mapping[str, str]]
) -> pd.DataFrame:
    """Return the rows of the source that the split of the table assigns to train, before any
    conversion.

    With a subject column, no other cell of the other rows is read.

    Args:
        resolved: Settings of the table.
        key: Key of the split.
        accepted_columns: Returns the columns in the signed settings of the table. Without a subject
            column, the content of a row determines its role, so the rows are read as in a run.

    Raises:
        InputError: If the rows cannot be read, or a role gets no rows.
    """
    declared = resolved.declared
    frame = read_source(resolved.row_sources["source"], None, None, resolved.declared.csv_format)
    _check_people_known(frame, resolved.declared, "source")
    if declared.subject is None:
        table = _source_in_canonical_form(frame, declared, accepted_columns())
    else:
        names = {"source": "source"}
        ids = subject_columns({"source": frame}, names, declared)
        table = Table(TableSchema(()), {}, len(frame)).with_subject(ids["source"])
    rows = split_rows(table, key, resolved.shares, exact_ids=declared.exact_ids)["train"]
    return pd.DataFrame({name: _of_rows(frame[name], rows) for name in frame.columns})


def _of_rows(cells: pd.Series, rows: np.ndarray) -> pd.Series:
    """Return some cells of a column with a new index. Categories of the other cells are removed."""
    selected = cells.iloc[rows].reset_index(drop=True)
    if isinstance(selected.dtype, pd.CategoricalDtype):
        return selected.astype(object)
    return selected


def user_splits(
    resolved: ResolvedTable,
    passed_rows: Mapping[str, pd.DataFrame],
    partition: str | None,
    window: Window | None,
    accepted_columns: Mapping[str, str] | None = None,
) -> dict[str, Table]:
    """Read the external train, holdout and reference in canonical form, with one schema.

    Args:
        resolved: Settings of the table.
        passed_rows: Rows from the caller, by role. Other roles have a configured source.
        partition: Key of the partition. None: all rows.
        window: Start and end of a time partition. None: rows are selected by the key.
        accepted_columns: Columns in the signed settings of the table, see
            :func:`~.tables.inference.joint_schema`.

    Returns:
        The tables by role.

    Raises:
        InputError: If the rows cannot be read, or the partition has none.
    """
    frames = {}
    for role in resolved.roles:
        frames[role] = read_source(
            resolved.row_sources[role],
            passed_rows.get(role),
            partition,
            resolved.declared.csv_format,
        )
    _check_people_known(frames["train"], resolved.declared, "train")
    names = {role: role for role in frames}
    tables = real_tables(
        frames,
        names,
        resolved.declared,
        accepted_columns=accepted_columns,
    )
    of_partition = {}
    for role, table in tables.items():
        of_partition[role] = _of_partition(table, resolved, role, partition, window)
    return of_partition


def _check_people_known(frame: Frame, declared: Declared, where: str) -> None:
    """Raise InputError if the settings do not state which rows belong to one person."""
    if declared.states_people:
        return
    candidates = may_identify_people(frame, declared.drop)
    column = "COLUMN"
    hint = ""
    if candidates:
        column = candidates[0]
        hint = f"; {', '.join(map(safe_repr, candidates))} may identify people"
    by_column = yaml_text({"subject": column})
    by_row = yaml_text({"subject": EACH_ROW})
    fix = (
        f"name the column that identifies people (data: {by_column}), or state that each row is"
        f" a different person (data: {by_row}){hint}"
    )
    raise InputError(
        "the settings do not state which rows belong to one person", where=where, fix=fix
    )


def _of_partition(
    table: Table, resolved: ResolvedTable, role: str, partition: str | None, window: Window | None
) -> Table:
    """Return the rows of one partition, unless the path of ``role`` selected them. The schema is
    unchanged.
    """
    column = resolved.spec.data.partition_column
    if column is None or partition is None:
        return table
    if PARTITION_MARK in resolved.row_sources[role].path:
        return table
    is_zoned = column == resolved.declared.subject or table.schema[column].is_zoned
    selected = select_partition(
        table.frame(), column, partition, window, where=role, is_zoned=is_zoned
    )
    return table.take(selected.index.to_numpy()).map(Column.compact)


def user_synthetic(
    resolved: ResolvedTable,
    passed_rows: pd.DataFrame | None,
    train: Table,
    schema: TableSchema,
    partition: str | None,
    window: Window | None,
) -> Table:
    """Read the external synthetic table with the columns and precision of the private one.

    Args:
        resolved: Settings of the table.
        passed_rows: Rows from the caller. None: the rows of the configured source.
        train: Real train table.
        schema: Schema of the real tables before the threshold rule.
        partition: Key of the partition. None: all rows.
        window: Start and end of a time partition. None: rows are selected by the key.

    Raises:
        InputError: If the table does not fit the schema, or has too many rows. The footers of
            Parquet files decide before their rows are read, because a small file can expand to
            more rows than fit in memory.
    """
    row_source = resolved.row_sources["synthetic"]
    data = resolved.spec.data
    column = data.partition_column
    if PARTITION_MARK in row_source.path:
        column = None  # the path selects the rows
    max_rows = data.max_synthetic_rows
    where = row_source.describe()
    if row_source.kind == "file" and column is None:
        n_stored = stored_rows(partition_path(row_source.path, partition))
        check_synthetic_rows(n_stored, len(train), max_rows, where)
    rows = read_source(row_source, passed_rows, partition, resolved.declared.csv_format)
    if column is None:  # otherwise the table has the rows of all partitions
        check_synthetic_rows(len(rows), len(train), max_rows, where)
    table = synthetic_table(rows, schema, resolved.declared, train=train)
    is_zoned = column is not None and schema[column].is_zoned
    selected = select_partition(
        table.frame(), column, partition, window, where="synthetic", is_zoned=is_zoned
    )
    check_synthetic_rows(len(selected), len(train), max_rows, where)
    return table.take(selected.index.to_numpy())
