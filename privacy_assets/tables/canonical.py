"""Tables of a release in canonical form: the one way from frames and files to
:class:`.table.Table`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from privacy_assets.errors import InputError, integer, safe_repr
from privacy_assets.tables.column import joint_codes
from privacy_assets.tables.conversion import check_shares
from privacy_assets.tables.declared import NOTHING, Declared
from privacy_assets.tables.given import load
from privacy_assets.tables.inference import REAL, joint_schema
from privacy_assets.tables.names import without
from privacy_assets.tables.relations import Relation, find_relations
from privacy_assets.tables.roles import with_roles
from privacy_assets.tables.schema import (
    Frame,
    TableSchema,
    check_columns,
    check_named,
    check_not_published,
    yaml_text,
)
from privacy_assets.tables.subject_ids import checked_subjects, subject_columns
from privacy_assets.tables.table import (
    Table,
    person_codes_of,
    stacked_columns,
    subject_ids_of,
)
from privacy_assets.tables.written_numbers import NumberFormat

_MAX_ROWS = 1_000_000
_MAX_ROWS_RATIO = 10
_FEW_ROWS_PER_PERSON = 1.1  # mean below which the mean says little


def canonical_table(
    source: Any,
    declared: Declared = NOTHING,
    *,
    where: str = "source",
    accepted_columns: Mapping[str, str] | None = None,
) -> Table:
    """Convert one private table, see :func:`real_tables`.

    Args:
        source: Path or dataframe.
        declared: Declarations about columns.
        where: Name of the table in messages.
        accepted_columns: See :func:`real_tables`.
    """
    # the table is not split yet; a table needs a role, and none depends on it here
    frames: dict[str, Frame] = {"train": load(source, where, declared.csv_format)}
    tables = real_tables(frames, {"train": where}, declared, accepted_columns=accepted_columns)
    return tables["train"]


def real_tables(
    frames: MutableMapping[str, Frame],
    names: Mapping[str, str],
    declared: Declared = NOTHING,
    *,
    accepted_columns: Mapping[str, str] | None = None,
    schema: TableSchema | None = None,
) -> dict[str, Table]:
    """Convert the real tables of a release to canonical form, with one schema. Row order is kept.

    Args:
        frames: Train and, if they exist, holdout and reference, by role. It is emptied, so that
            frames that nothing else uses are freed one by one.
        names: Names of the tables in messages, by role.
        declared: Declarations about columns.
        accepted_columns: Accepted columns of the table, see
            :func:`.inference.joint_schema`.
        schema: Schema without the subject. None: inferred from all tables together; identifying
            columns are then rejected, see :func:`.roles.with_roles`.

    Returns:
        The tables by role, with notes on how columns of text are read.

    Raises:
        InputError: If a table cannot be used, the subject column or a subject is missing, or a
            column is identifying.
        ConfigError: If a declaration names an unknown column or kind.
    """
    column_names = list[str]()
    for role, frame in frames.items():
        check_columns(frame.columns, len(frame), where=names[role])
        column_names.extend(frame.columns)
    declared.check(column_names)
    left_out = declared.not_published
    for role, frame in frames.items():
        check_named(without(frame.columns, left_out), names[role])
    subject_codes = None
    if schema is None:
        ids, doubts = checked_subjects(frames, names, declared)
        if ids:
            subject_codes = np.concatenate(joint_codes(list(ids.values())))
        inferred, notes = joint_schema(
            frames, names, declared, accepted_columns, subject_codes, left_out
        )
    else:
        ids = subject_columns(frames, names, declared)
        doubts = []
        inferred = schema
        notes = ()
    tables = {}
    for role in list(frames):
        frame = _without_columns(frames.pop(role), left_out)
        table = Table.of(frame, inferred, where=names[role], external=True)
        tables[role] = table.with_subject(ids.get(role))
    related: tuple[Relation, ...] = ()
    if schema is None:
        real = list(tables.values())
        where = REAL
        if len(names) == 1:
            where = next(iter(names.values()))
        inferred = with_roles(inferred, real, subject_codes, declared, where=where)
        related = relations_of(real, declared.relations)
    all_notes = (*notes, *doubts, *_unlinked_rows_notes(tables.values()))
    canonical = {}
    for role, table in tables.items():
        canonical[role] = replace(table.with_schema(inferred), notes=all_notes, relations=related)
    return canonical


def _without_columns(frame: Frame, names: Collection[str]) -> Frame:
    """Return a frame without some columns, which it may lack."""
    dropped = [name for name in frame.columns if name in names]
    return frame.drop(columns=dropped) if dropped else frame


def relations_of(tables: Sequence[Table], declared: Mapping[str, bool]) -> tuple[Relation, ...]:
    """Return the relations between the columns of the real tables of a release, without generated
    columns.

    Args:
        tables: The real tables, with one schema.
        declared: Declared relations by name; False switches a relation off that would be found.
    """
    columns = stacked_columns(tables)
    return tuple(find_relations(columns, person_codes_of(tables), declared))


def _unlinked_rows_notes(tables: Iterable[Table]) -> list[str]:
    """Return a sentence about the rows of a person, if people have several."""
    ids = subject_ids_of(tables)
    if ids is None:
        return []
    rows_per_person = len(ids) / len(ids.distinct())
    if rows_per_person == 1:
        return []
    how_many = f"People have {rows_per_person:.1f} rows on average"
    if rows_per_person < _FEW_ROWS_PER_PERSON:
        how_many = "Some people have several rows"
    return [
        f"{how_many}. The column {safe_repr(ids.name)} is not published, so rows of one person"
        " are not linked in the synthetic table. It has no statistics by person, such as their"
        " number of rows."
    ]


def check_synthetic_rows(n_rows: int, n_train: int, max_rows: int | None, where: str) -> None:
    """Check the size of a synthetic table that the user brought, because a small file can expand to
    any number of rows.

    Args:
        n_rows: Number of its rows.
        n_train: Number of rows of train.
        max_rows: Setting ``max_synthetic_rows``. None: ten times the rows of train, or 1,000,000 if
            that is more.
        where: Name of the table in messages.

    Raises:
        ConfigError: If the setting is not an integer of at least 1.
        InputError: If it has more rows than allowed.
    """
    allowed = max(_MAX_ROWS, _MAX_ROWS_RATIO * n_train)
    if max_rows is not None:
        allowed = integer("max_synthetic_rows", max_rows, 1)
    if n_rows > allowed:
        problem = f"the synthetic table has {n_rows:,} rows, and at most {allowed:,} are allowed"
        setting = yaml_text({"max_synthetic_rows": n_rows})
        option = f"--max-synthetic-rows {n_rows}"
        fix = f"provide fewer rows, or allow them (data: {setting}, on the command line {option})"
        raise InputError(problem, where=where, fix=fix)


def synthetic_table(
    frame: Frame,
    schema: TableSchema,
    declared: Declared = NOTHING,
    *,
    train: Table,
    where: str = "synthetic",
) -> Table:
    """Convert a synthetic table that the user brought, with the columns and precision of the real
    ones.

    Args:
        frame: Synthetic table.
        schema: Schema of the real tables.
        declared: Declarations about columns.
        train: Real table.
        where: Name of the synthetic table in messages.

    Raises:
        InputError: If it does not fit the schema, or contains the subject column.
    """
    frame = _without_columns(frame, declared.drop)
    check_not_published(frame.columns, declared.subject, where)
    check_named(frame.columns, where)
    table = Table.of(frame, schema, where=where, synthetic=True, external=True)
    for column in schema.columns:
        if NumberFormat.of(column.format).unit == "%":
            check_shares(frame[column.name], train[column.name], column, where)
    return table
