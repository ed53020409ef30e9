"""Private tables in canonical form, with the subject of each row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from privacy_assets.tables.column import stacked
from privacy_assets.tables.contract import REAL_ROLES, check_ids, infer_schema, joint_schema, subject_column
from privacy_assets.tables.declared import NOTHING, Declared
from privacy_assets.tables.names import as_named
from privacy_assets.tables.roles import with_roles
from privacy_assets.tables.schema import Kind, TableSchema, check_frame, check_subject
from privacy_assets.tables.table import Table


def private_table(frame: pd.DataFrame, schema: TableSchema, subject: str | None, *, where: str) -> Table:
    """Convert a frame with the columns of ``schema`` and ``subject``; InputError for other columns."""
    table = Table.of(_without(frame, subject, where), schema, where=where, external=True)
    return table if subject is None else table.with_subject(subject_column(frame[subject], where))


def people_of(tables: Iterable[Table]) -> np.ndarray | None:
    """Return the int64 subject code of each row of the stacked tables, or None without subjects."""
    ids = [table.subject_ids for table in tables if table.subject_ids is not None]
    return pd.factorize(stacked(ids).cells)[0].astype(np.int64) if ids else None


def canonical_source(
    frame: pd.DataFrame,
    subject: str | None,
    kinds: Mapping[str, Kind] | None,
    declared: Declared = NOTHING,
    *,
    where: str = "source",
) -> Table:
    """Convert a dataframe to canonical form with an inferred schema. Row order is kept.

    Raises:
        InputError: If the table cannot be used, the subject column or a subject is missing, or a column is open
            (:func:`.roles.with_roles`).
    """
    subject, kinds = as_named(subject), as_named(kinds)
    check_frame(frame, where=where)
    declared.check(list(frame.columns))
    frame = declared.without_dropped(frame, subject)
    schema = infer_schema(_without(frame, subject, where), kinds, where=where, declared=declared)
    table = private_table(frame, schema, subject, where=where)
    return _in_roles({where: table}, kinds, declared, where)[where]


def external_splits(
    frames: Mapping[str, pd.DataFrame],
    subject: str | None,
    kinds: Mapping[str, Kind] | None,
    declared: Declared = NOTHING,
) -> dict[str, Table]:
    """Convert the tables of an external split. The schema is inferred from all of them, dtypes from train."""
    subject, kinds = as_named(subject), as_named(kinds)
    declared.check([name for role in REAL_ROLES if role in frames for name in frames[role].columns])
    frames = {role: declared.without_dropped(frames[role], subject) for role in REAL_ROLES if role in frames}
    real = {role: _without(frame, subject, role) for role, frame in frames.items()}
    names = {role: role for role in real}
    schema, _ = joint_schema(real, names, kinds, declared)
    tables = {role: private_table(frame, schema, subject, where=role) for role, frame in frames.items()}
    check_ids({role: table.subject_ids for role, table in tables.items() if table.subject_ids is not None}, names)
    return _in_roles(tables, kinds, declared, " and ".join(tables))


def _in_roles(
    tables: Mapping[str, Table], kinds: Mapping[str, Kind] | None, declared: Declared, where: str
) -> dict[str, Table]:
    """Return the tables, which have one schema, with the role of each column in the schema."""
    rows = [table.without_subject() for table in tables.values()]
    schema = with_roles(rows[0].schema, rows, people_of(tables.values()), declared, kinds, where=where)
    return {role: table.with_schema(schema) for role, table in tables.items()}


def _without(frame: pd.DataFrame, subject: str | None, where: str) -> pd.DataFrame:
    if subject is None:
        return frame
    check_subject(frame.columns, subject, where)
    return frame.drop(columns=[subject])
