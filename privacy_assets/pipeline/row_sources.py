"""The rows of a table, from where its plan says that they come, in canonical form."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from privacy_assets.errors import InputError
from privacy_assets.pipeline.plan import PARTITION_MARK, RowSource, TablePlan
from privacy_assets.pipeline.private_table import PrivateTable, canonical_source, external_splits
from privacy_assets.tables.given import given_frame
from privacy_assets.tables.reading import read_table
from privacy_assets.tables.schema import TableSchema, check_not_published
from privacy_assets.tables.table import Table

Window = tuple[Any, Any]  # start and end of a partition that is a window of time


def read_source(row_source: RowSource, given: object, partition: str | None) -> pd.DataFrame:
    """Rows of ``row_source``: the demo set, files (those of the partition when the path says so), or an upstream
    value.
    """
    if row_source.kind == "given":
        return given_frame(given, where=row_source.describe()).reset_index(drop=True)
    if row_source.kind == "demo":
        from privacy_assets.tables.demo import load_patients

        return load_patients()
    return read_table(partition_path(row_source.path, partition))


def partition_path(template: str, partition: str | None) -> str:
    """The path of one partition; a key that would leave its place is refused, and its ``*?[`` match only themselves."""
    if PARTITION_MARK not in template or partition is None:
        return template
    if partition == ".." or Path(partition).name != partition:
        raise InputError("the partition key cannot stand in a path", where=template, fix="use a key without slashes")
    return template.replace(PARTITION_MARK, glob.escape(partition))


def select_partition(
    frame: pd.DataFrame, column: str | None, partition: str | None, window: Window | None, *, where: str
) -> pd.DataFrame:
    """Rows of one partition: those in the time window, or those whose ``column`` reads as the partition's key.

    They keep their index.
    """
    if column is None or partition is None:
        return frame
    if column not in frame.columns:
        raise InputError("the partition column is missing", where=where, column=column, fix="name an existing column")
    if window is not None:
        times = pd.to_datetime(frame[column], utc=True, errors="coerce")
        chosen = frame[(times >= window[0]) & (times < window[1])]
    else:
        chosen = frame[frame[column].astype(str) == partition]
    if chosen.empty:
        raise InputError("the partition has no rows", where=where, column=column, fix="check partitions and data")
    return chosen


def source_table(
    plan: TablePlan, given: pd.DataFrame | None, partition: str | None, window: Window | None
) -> PrivateTable:
    """The private table in canonical form; its schema is inferred before a partition is cut out."""
    row_source = plan.row_sources["source"]
    whole = canonical_source(read_source(row_source, given, partition), plan.subject, plan.kinds, plan.declared)
    return _of_partition(whole, plan, "source", partition, window)


def user_splits(
    plan: TablePlan, given: Mapping[str, pd.DataFrame], partition: str | None, window: Window | None
) -> dict[str, PrivateTable]:
    """The user's own train, holdout and reference in canonical form under one schema."""
    frames = {role: read_source(plan.row_sources[role], given.get(role), partition) for role in plan.roles}
    tables = external_splits(frames, plan.subject, plan.kinds, plan.declared)
    return {role: _of_partition(table, plan, role, partition, window) for role, table in tables.items()}


def _of_partition(
    table: PrivateTable, plan: TablePlan, role: str, partition: str | None, window: Window | None
) -> PrivateTable:
    """The rows of one partition, where the path of ``role`` has not chosen them; the schema stays."""
    if PARTITION_MARK in plan.row_sources[role].path or plan.partition_column is None or partition is None:
        return table
    chosen = select_partition(table.frame(), plan.partition_column, partition, window, where=role)
    return PrivateTable.of(chosen.reset_index(drop=True), table.schema, plan.subject, where=role)


def user_synthetic(
    plan: TablePlan,
    given: pd.DataFrame | None,
    schema: TableSchema,
    partition: str | None,
    window: Window | None,
) -> pd.DataFrame:
    """The user's own synthetic table with the columns, precision and dtypes of the private one."""
    row_source = plan.row_sources["synthetic"]
    rows = plan.declared.left(read_source(row_source, given, partition))
    check_not_published(rows.columns, plan.subject, "synthetic")
    table = Table.of(rows, schema, where="synthetic", synthetic=True)
    column = None if PARTITION_MARK in row_source.path else plan.partition_column
    chosen = select_partition(table.frame(), column, partition, window, where="synthetic")
    return table.take(chosen.index.to_numpy()).restored()
