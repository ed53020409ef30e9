"""The schema travels with the private tables, in ``DataFrame.attrs``, so that every step reads the same columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from privacy_assets.errors import InputError
from privacy_assets.evaluation import joint_schema
from privacy_assets.metrics.inputs import REAL_ROLES
from privacy_assets.tables.conversion import column_of
from privacy_assets.tables.roles import NOTHING, Declared, with_roles
from privacy_assets.tables.schema import ColumnSchema, Kind, TableSchema, check_frame, infer_schema
from privacy_assets.tables.table import Table

_TAG = "privacy_assets"


def tag(frame: pd.DataFrame, schema: TableSchema, subject: str | None) -> pd.DataFrame:
    """A shallow copy of ``frame`` that carries ``schema`` (without the subject) and the name of the subject column."""
    tagged = frame.copy(deep=False)
    tagged.attrs = {_TAG: {"schema": schema.to_json(), "subject": subject}}
    return tagged


def schema_of(frame: pd.DataFrame, where: str) -> TableSchema:
    """The schema that ``frame`` carries; InputError when it carries none."""
    return TableSchema.from_json(_tag_of(frame, where)["schema"])


def subject_of(frame: pd.DataFrame, where: str) -> str | None:
    """Name of the subject column that ``frame`` carries, or None."""
    subject: str | None = _tag_of(frame, where)["subject"]
    return subject


def with_seal(frame: pd.DataFrame, seal: bytes) -> pd.DataFrame:
    """``frame`` that also carries what the split signed about it."""
    frame.attrs = {_TAG: {**_tag_of(frame, "split"), "seal": seal.decode()}}
    return frame


def seal_of(frame: pd.DataFrame, where: str) -> bytes:
    """What the split signed about ``frame``; empty when it carries nothing."""
    return str(_tag_of(frame, where).get("seal", "")).encode()


def _tag_of(frame: pd.DataFrame, where: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = frame.attrs.get(_TAG)
    if found is None:
        fix = "read it through the pipeline's own IO manager, or materialise it again"
        raise InputError("the table does not carry its schema", where=where, fix=fix)
    return found


def canonical_source(
    frame: pd.DataFrame,
    subject: str | None,
    kinds: Mapping[str, Kind] | None,
    declared: Declared = NOTHING,
    *,
    where: str = "source",
) -> pd.DataFrame:
    """The table in canonical form with its inferred schema; the subject column comes first, as text.

    Row order is kept. Raises InputError for tables that cannot be used, a missing subject column, a missing subject, or
    open columns (:func:`.roles.with_roles`).
    """
    check_frame(frame, where=where)
    declared.check(list(frame.columns))
    frame = declared.left(frame)
    schema = infer_schema(_without(frame, subject, where), kinds, where=where)
    return _in_roles({where: with_schema(frame, schema, subject, where=where)}, kinds, declared, where)[where]


def _in_roles(
    tables: Mapping[str, pd.DataFrame], kinds: Mapping[str, Kind] | None, declared: Declared, where: str
) -> dict[str, pd.DataFrame]:
    """Tagged tables of one schema, which now says the role of each column."""
    first = next(iter(tables))
    schema, subject = schema_of(tables[first], first), subject_of(tables[first], first)
    people = None
    if subject is not None:
        people = pd.factorize(pd.concat([table[subject] for table in tables.values()], ignore_index=True))[0]
    real = [data_columns(table, role) for role, table in tables.items()]
    schema = with_roles(schema, real, people, declared, kinds, where=where)
    return {role: tag(table, schema, subject) for role, table in tables.items()}


def with_schema(frame: pd.DataFrame, schema: TableSchema, subject: str | None, *, where: str) -> pd.DataFrame:
    """``frame`` in the canonical form of ``schema``, tagged; the subject column comes first, as text."""
    table = Table.of(_without(frame, subject, where), schema, where=where).frame()
    if subject is not None:
        ids = column_of(frame[subject], ColumnSchema(subject, "categorical", False, "str"), where)
        missing = ids.missing.nonzero()[0]
        if len(missing):
            fix = "give every row the id of its person"
            raise InputError("the subject is missing", where=where, column=subject, row=int(missing[0]), fix=fix)
        table.insert(0, subject, ids.series())
    return tag(table, schema, subject)


def data_columns(frame: pd.DataFrame, where: str) -> Table:
    """The rows of a tagged frame without the subject column."""
    schema = schema_of(frame, where)
    return Table.of(frame[schema.names], schema, where=where)


def content_of(frame: pd.DataFrame, where: str) -> str:
    """Fingerprint of the content of a tagged frame: its rows, and whose they are."""
    table, subject = data_columns(frame, where), subject_of(frame, where)
    if subject is None:
        return table.fingerprint
    ids = column_of(frame[subject], ColumnSchema(subject, "categorical", False, "str"), where)
    return table.with_columns(ids).fingerprint


def _without(frame: pd.DataFrame, subject: str | None, where: str) -> pd.DataFrame:
    if subject is None:
        return frame
    if subject not in frame.columns:
        raise InputError("the subject column is missing", where=where, column=subject, fix="name an existing column")
    return frame.drop(columns=[subject])


def external_splits(
    frames: Mapping[str, pd.DataFrame],
    subject: str | None,
    kinds: Mapping[str, Kind] | None,
    declared: Declared = NOTHING,
) -> dict[str, pd.DataFrame]:
    """Tables that the user split: the schema is inferred over all of them together, dtypes are those of train."""
    declared.check([name for role in REAL_ROLES if role in frames for name in frames[role].columns])
    frames = {role: declared.left(frame) for role, frame in frames.items()}
    real = {role: _without(frames[role], subject, role) for role in REAL_ROLES if role in frames}
    schema = joint_schema(real, {role: role for role in real}, kinds)
    tables = {role: with_schema(frames[role], schema, subject, where=role) for role in real}
    return _in_roles(tables, kinds, declared, " and ".join(tables))
