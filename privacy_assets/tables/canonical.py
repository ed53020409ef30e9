"""Tables of a release in canonical form: the one way from frames and files to
:class:`.table.Table`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.errors import ConfigError, InputError, integer, safe_repr
from privacy_assets.tables.codes import have_types
from privacy_assets.tables.column import Column, stacked
from privacy_assets.tables.contract import REAL, joint_schema
from privacy_assets.tables.conversion import check_shares
from privacy_assets.tables.declared import NOTHING, Declared
from privacy_assets.tables.given import load
from privacy_assets.tables.names import as_named
from privacy_assets.tables.relations import Relation, find_relations
from privacy_assets.tables.roles import check_subject_is_not_published, with_roles
from privacy_assets.tables.schema import (
    Frame,
    TableSchema,
    check_frame,
    check_named,
    check_not_published,
    yaml_text,
)
from privacy_assets.tables.subject_ids import joint_codes, subject_columns
from privacy_assets.tables.sums import find_sums
from privacy_assets.tables.table import Table
from privacy_assets.tables.threshold_rule import holds_text, make_rule, notes_of, published_schema
from privacy_assets.tables.written_numbers import NumberFormat

_MAX_ROWS = 1_000_000
_MAX_ROWS_RATIO = 10
_FEW_ROWS_PER_PERSON = 1.1  # mean below which the mean says little


def people_of(tables: Iterable[Table]) -> np.ndarray | None:
    """Return the int64 subject code of each row of the stacked tables, or None if there are no
    subjects.
    """
    ids = [table.subject_ids for table in tables if table.subject_ids is not None]
    if not ids:
        return None
    codes, _ = pd.factorize(stacked(ids).cells)
    return codes.astype(np.int64)


def canonical_table(
    given: Any,
    subject: str | None,
    kinds: Mapping[str, Any] | None,
    declared: Declared = NOTHING,
    *,
    where: str = "source",
    locked: Mapping[str, str] | None = None,
) -> Table:
    """Convert one private table, see :func:`real_tables`. ``given`` is a path or a dataframe."""
    frames: dict[str, Frame] = {"train": load(given, where, declared.read)}
    return real_tables(frames, {"train": where}, subject, kinds, declared, locked=locked)["train"]


def real_tables(
    frames: MutableMapping[str, Frame],
    names: Mapping[str, str],
    subject: str | None = None,
    kinds: Mapping[str, Any] | None = None,
    declared: Declared = NOTHING,
    *,
    locked: Mapping[str, str] | None = None,
    schema: TableSchema | None = None,
) -> dict[str, Table]:
    """Convert the real tables of a release to canonical form, with one schema. Row order is kept.

    Args:
        frames: Train and, if they exist, holdout and reference, by role. It is emptied, so that
            frames that nothing else uses are freed one by one.
        names: Names of the tables in messages, by role.
        subject: Column that identifies people. None: each row is a person.
        kinds: Declared kinds, see :meth:`.Meaning.of`.
        declared: Declarations about columns.
        locked: Contract of the columns in the lock of the table, see
            :func:`.contract.joint_schema`.
        schema: Schema without the subject. None: inferred from all tables together; open columns
            are then rejected, see :func:`.roles.with_roles`.

    Returns:
        The tables by role, with notes on how columns of text are read.

    Raises:
        InputError: If a table cannot be used, the subject column or a subject is missing, or a
            column is open.
        ConfigError: If a declaration names an unknown column or kind.
    """
    subject = as_named(subject)
    kinds = as_named(kinds)
    for role, frame in frames.items():
        check_frame(frame, where=names[role])
    declared.check([name for frame in frames.values() for name in frame.columns])
    ids = subject_columns(frames, names, subject, declared.exact_ids)
    are_typed = have_types(list(frames.values()))
    for role, frame in frames.items():
        frame = declared.without_dropped(frame, subject)
        frames[role] = frame if subject is None else frame.drop(columns=[subject])
        check_named(frames[role].columns, names[role])
    doubts = list[str]()
    if subject is not None and schema is None:
        doubts = check_subject_is_not_published(frames, names, ids, subject, declared)
    if schema is None:
        people = np.concatenate(list(joint_codes(ids).values())) if ids else None
        inferred, notes = joint_schema(frames, names, kinds, declared, locked, people, are_typed)
    else:
        inferred, notes = schema, ()
    tables = {}
    for role in list(frames):
        table = Table.of(frames.pop(role), inferred, where=names[role], external=True)
        tables[role] = table.with_subject(ids.get(role))
    related: tuple[Relation, ...] = ()
    if schema is None:
        real = list(tables.values())
        where = REAL if len(names) > 1 else next(iter(names.values()))
        inferred = with_roles(inferred, real, people_of(real), declared, kinds, where=where)
        related = relations_of(real, declared.relations)
    all_notes = (*notes, *doubts, *_unlinked_rows_notes(tables.values()))
    canonical = {}
    for role, table in tables.items():
        canonical[role] = replace(table.with_schema(inferred), notes=all_notes, relations=related)
    return canonical


def relations_of(tables: Sequence[Table], declared: Mapping[str, bool]) -> tuple[Relation, ...]:
    """Return the relations between the columns of the real tables of a release, without generated
    columns.

    Args:
        tables: The real tables, with one schema.
        declared: Declared relations by name; False switches a relation off that would be found.
    """
    people = people_of(tables)
    if people is None:
        people = np.arange(sum(map(len, tables)))
    names = tables[0].schema.measured.names
    columns = [stacked([table[name] for table in tables]) for name in names]
    return tuple(find_relations(columns, people, declared))


def without_rare_values(
    tables: Mapping[str, Table],
    min_holders: int,
    declared: Declared = NOTHING,
    bounded: Collection[str] = (),
) -> dict[str, Table]:
    """Apply the threshold rule to the real tables of a release, see :mod:`.threshold_rule`.

    Args:
        tables: Real tables by role.
        min_holders: Minimum number of people that share a published value.
        declared: Declarations about columns.
        bounded: Columns of numbers with public bounds of a generator that states an epsilon.

    Returns:
        The tables, with their rules, and with notes for the report.

    Raises:
        ConfigError: If prefixes are declared for a column that is not text.
    """
    schema = tables["train"].schema
    prefixes = declared.rare_values
    for name in prefixes:
        if not holds_text(schema, name):
            raise ConfigError(
                f"rare_values: column {name!r} has no text. Fix: remove it from rare_values."
            )
    people = people_of(tables.values())
    if people is None:
        people = np.arange(sum(map(len, tables.values())))
    parts = {name: [table[name] for table in tables.values()] for name in schema.names}
    rule = make_rule(
        schema, parts, people, min_holders, prefixes, bounded, tables["train"].relations
    )
    columns = [published_schema(column, rule.columns.get(column.name)) for column in schema.columns]
    published = TableSchema(tuple(columns))
    notes = [*notes_of(rule, schema, prefixes), *_sum_notes(schema, parts, people)]
    replaced = {}
    for role, table in tables.items():
        compact = table.without_rare(rule.columns).with_schema(published).map(Column.compact)
        replaced[role] = replace(compact, notes=(*table.notes, *notes), rules=rule.columns)
    relations = published_relations(tables["train"].relations, list(replaced.values()), min_holders)
    return {role: replace(table, relations=relations) for role, table in replaced.items()}


def _sum_notes(
    schema: TableSchema, parts: Mapping[str, Sequence[Column]], people: np.ndarray
) -> list[str]:
    """Return a sentence for each column that is the sum of others before the threshold rule.

    Args:
        schema: Schema of the real tables.
        parts: Columns of the real tables before the rule, by name.
        people: Subject of each row of the stacked tables, int64 (n,).
    """
    columns = [stacked(parts[name]) for name in schema.measured.names]
    notes = []
    for one_sum in find_sums(columns, people):
        drop = yaml_text({"drop": [one_sum.total]})
        notes.append(
            f"In all real rows, {one_sum.name}. Published rows need not add up. Fix: drop"
            f" {safe_repr(one_sum.total)}"
            f" (data: {drop}), and compute it after reading."
        )
    return notes


def _unlinked_rows_notes(tables: Iterable[Table]) -> list[str]:
    """Return a sentence about the rows of a person, if people have several."""
    subjects = [table.subject_ids for table in tables if table.subject_ids is not None]
    if not subjects:
        return []
    ids = stacked(subjects)
    rows_per_person = len(ids) / len(ids.distinct())
    if rows_per_person == 1:
        return []
    how_many = f"People have {rows_per_person:.1f} rows on average"
    if rows_per_person < _FEW_ROWS_PER_PERSON:
        how_many = "Some people have several rows"
    return [
        f"{how_many}. The column {safe_repr(ids.name)} is not published, so rows of one person"
        " are not linked in the"
        " synthetic table. It has no statistics by person, such as their number of rows."
    ]


def published_relations(
    relations: Iterable[Relation], published: Sequence[Table], min_holders: int
) -> tuple[Relation, ...]:
    """Return the relations with the values that determine others after the threshold rule.

    The rule itself breaks some orders in a few rows. Generators keep these as well.

    Args:
        relations: Relations of the real rows.
        published: Real tables after the rule.
        min_holders: Minimum number of people with a value that determines another. A public list
            may keep rarer ones.
    """
    people = people_of(published)
    after_rule = []
    for relation in relations:
        first = stacked([table[relation.first] for table in published])
        second = stacked([table[relation.second] for table in published])
        after_rule.append(relation.of_rows(first, second, people, min_holders))
    return tuple(after_rule)


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
    subject: str | None,
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
        subject: Column that identifies people in the real tables, or None.
        declared: Declarations about columns.
        train: Real table.
        where: Name of the synthetic table in messages.

    Raises:
        InputError: If it does not fit the schema, or contains the subject column.
    """
    frame = declared.without_dropped(frame)
    check_not_published(frame.columns, as_named(subject), where)
    check_named(frame.columns, where)
    table = Table.of(frame, schema, where=where, synthetic=True, external=True)
    for column in schema.columns:
        if NumberFormat.of(column.format).unit == "%":
            check_shares(frame[column.name], train[column.name], column, where)
    return table
