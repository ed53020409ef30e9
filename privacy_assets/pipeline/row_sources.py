"""Reading the rows of a table from its sources, in canonical form."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from privacy_assets.errors import InputError
from privacy_assets.pipeline.resolve import PARTITION_MARK, ResolvedTable, RowSource
from privacy_assets.tables.column import Column
from privacy_assets.tables.given import given_frame
from privacy_assets.tables.private_table import canonical_source, external_splits
from privacy_assets.tables.reading import read_table
from privacy_assets.tables.roles import check_identifiers
from privacy_assets.tables.schema import TableSchema, check_not_published
from privacy_assets.tables.table import Table

Window = tuple[Any, Any]  # start and end of a time partition


def read_source(row_source: RowSource, given: object, partition: str | None) -> pd.DataFrame:
    """Read the rows of a source.

    Args:
        row_source: Source.
        given: Rows from the caller, for a source of kind "given".
        partition: Key of the partition, which replaces the placeholder in a path.
    """
    if row_source.kind == "given":
        return given_frame(given, where=row_source.describe()).reset_index(drop=True)
    if row_source.kind == "demo":
        from privacy_assets.tables.demo import load_patients

        return load_patients()
    return read_table(partition_path(row_source.path, partition))


def partition_path(template: str, partition: str | None) -> str:
    """Return the path of one partition. ``*?[`` in the key match only themselves.

    Raises:
        InputError: If the key is empty, so the path would match all partitions, or would lead to another folder.
    """
    if PARTITION_MARK not in template or partition is None:
        return template
    if partition in ("", "..") or Path(partition).name != partition:
        fix = "use a key that is not empty and has no slashes"
        raise InputError("the partition key cannot be part of a path", where=template, fix=fix)
    return template.replace(PARTITION_MARK, glob.escape(partition))


def select_partition(
    frame: pd.DataFrame, column: str | None, partition: str | None, window: Window | None, *, where: str
) -> pd.DataFrame:
    """Return the rows of one partition, with their index.

    Args:
        frame: Rows of all partitions.
        column: Partition column. None: all rows.
        partition: Key of the partition, compared with the column as strings in Unicode form NFC. None: all rows.
        window: Start and end of a time partition, used instead of the key.
        where: Name of the table in messages.

    Raises:
        InputError: If the column is missing, or the partition has no rows.
    """
    if column is None or partition is None:
        return frame
    if column not in frame.columns:
        raise InputError("the partition column is missing", where=where, column=column, fix="name an existing column")
    if window is not None:
        times = pd.to_datetime(frame[column], utc=True, errors="coerce")
        chosen = frame[(times >= window[0]) & (times < window[1])]
    else:
        chosen = frame[frame[column].astype(str).str.normalize("NFC") == partition]
    if chosen.empty:
        raise InputError("the partition has no rows", where=where, column=column, fix="check partitions and data")
    return chosen


def source_table(
    resolved: ResolvedTable, given: pd.DataFrame | None, partition: str | None, window: Window | None
) -> Table:
    """Return the private table in canonical form. The schema is inferred before the partition is selected."""
    row_source = resolved.row_sources["source"]
    frame, data = read_source(row_source, given, partition), resolved.spec.data
    whole = canonical_source(frame, data.subject, data.kinds, resolved.declared)
    return _of_partition(whole, resolved, "source", partition, window)


def user_splits(
    resolved: ResolvedTable, given: Mapping[str, pd.DataFrame], partition: str | None, window: Window | None
) -> dict[str, Table]:
    """Return the external train, holdout and reference in canonical form, with one schema."""
    frames = {role: read_source(resolved.row_sources[role], given.get(role), partition) for role in resolved.roles}
    data = resolved.spec.data
    tables = external_splits(frames, data.subject, data.kinds, resolved.declared)
    return {role: _of_partition(table, resolved, role, partition, window) for role, table in tables.items()}


def _of_partition(
    table: Table, resolved: ResolvedTable, role: str, partition: str | None, window: Window | None
) -> Table:
    """Return the rows of one partition, unless the path of ``role`` selected them. The schema is kept."""
    data = resolved.spec.data
    if PARTITION_MARK in resolved.row_sources[role].path or data.partition_column is None or partition is None:
        return table
    chosen = select_partition(table.frame(), data.partition_column, partition, window, where=role)
    return table.take(chosen.index.to_numpy()).map(Column.compact)


def user_synthetic(
    resolved: ResolvedTable,
    given: pd.DataFrame | None,
    schema: TableSchema,
    partition: str | None,
    window: Window | None,
) -> Table:
    """Return the external synthetic table with the columns and precision of the private one."""
    row_source = resolved.row_sources["synthetic"]
    rows = resolved.declared.without_dropped(read_source(row_source, given, partition))
    check_not_published(rows.columns, resolved.spec.data.subject, "synthetic")
    table = Table.of(rows, schema, where="synthetic", synthetic=True, external=True)
    check_identifiers(table, resolved.declared.drop, where="synthetic")
    column = None if PARTITION_MARK in row_source.path else resolved.spec.data.partition_column
    chosen = select_partition(table.frame(), column, partition, window, where="synthetic")
    return table.take(chosen.index.to_numpy())
