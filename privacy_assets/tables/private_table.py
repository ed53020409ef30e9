"""A private table as passed between steps: canonical rows, subjects, and the signature of the split."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow as pa

from privacy_assets.tables.column import Column, stacked
from privacy_assets.tables.contract import REAL_ROLES, check_ids, infer_schema, joint_schema, subject_column
from privacy_assets.tables.declared import NOTHING, Declared
from privacy_assets.tables.names import as_named
from privacy_assets.tables.roles import with_roles
from privacy_assets.tables.schema import Kind, TableSchema, check_frame, check_subject
from privacy_assets.tables.splitting import split_table
from privacy_assets.tables.table import Table

_KEY = b"privacy_assets"  # key in the metadata of a Parquet file


@dataclass(frozen=True, eq=False)
class PrivateTable:
    """Private table in canonical form.

    Attributes:
        rows: Rows without the subject column.
        subject: Subject of each row as a string. None: there is no subject column.
        seal: Signed record of the split. Empty before the split.
    """

    rows: Table = field(repr=False)
    subject: Column | None = field(default=None, repr=False)
    seal: bytes = field(default=b"", repr=False)

    @classmethod
    def of(
        cls, frame: pd.DataFrame, schema: TableSchema, subject: str | None, *, where: str, external: bool = False
    ) -> PrivateTable:
        """Convert a frame with the columns of ``schema`` and ``subject``; InputError for other columns."""
        rows = Table.of(_without(frame, subject, where), schema, where=where, external=external)
        return cls(rows, None if subject is None else subject_column(frame[subject], where))

    @property
    def schema(self) -> TableSchema:
        """Columns without the subject."""
        return self.rows.schema

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of rows and subjects, independent of row order. Keep it private."""
        return (self.rows if self.subject is None else self.rows.with_columns(self.subject)).fingerprint

    def split(self, key: bytes, shares: Mapping[str, float]) -> dict[str, PrivateTable]:
        """Split into subject-disjoint tables by role. See :func:`~privacy_assets.tables.splitting.split_table`."""
        name = None if self.subject is None else self.subject.name
        parts = split_table(self.frame(), name, key, shares)
        return {
            role: PrivateTable.of(part.reset_index(drop=True), self.schema, name, where=role)
            for role, part in parts.items()
        }

    def sealed(self, seal: bytes) -> PrivateTable:
        """Return the same table with the signed record of the split."""
        return PrivateTable(self.rows, self.subject, seal)

    def __len__(self) -> int:
        return len(self.rows)

    def frame(self) -> pd.DataFrame:
        """Return the canonical dataframe, with the subject as first column."""
        frame = self.rows.frame()
        if self.subject is not None:
            frame.insert(0, self.subject.name, self.subject.series())
        return frame

    def to_arrow(self) -> pa.Table:
        """Return the frame as an Arrow table, with schema, subject and seal as metadata. Inverse: :meth:`of_arrow`."""
        table = pa.Table.from_pandas(self.frame(), preserve_index=False)
        subject = None if self.subject is None else self.subject.name
        more = json.dumps({"schema": self.schema.to_json(), "subject": subject, "seal": self.seal.decode()})
        return table.replace_schema_metadata({**(table.schema.metadata or {}), _KEY: more.encode()})

    @classmethod
    def of_arrow(cls, table: pa.Table, *, where: str) -> PrivateTable | None:
        """Convert the output of :meth:`to_arrow`. Return None for other tables."""
        more = (table.schema.metadata or {}).get(_KEY)
        if more is None:
            return None
        found = json.loads(more)
        private = cls.of(table.to_pandas(), TableSchema.from_json(found["schema"]), found["subject"], where=where)
        return private.sealed(found["seal"].encode())


def people_of(tables: Iterable[PrivateTable]) -> np.ndarray | None:
    """Return the int64 subject code of each row of the stacked tables, or None without subjects."""
    ids = [table.subject for table in tables if table.subject is not None]
    return pd.factorize(stacked(ids).cells)[0].astype(np.int64) if ids else None


def canonical_source(
    frame: pd.DataFrame,
    subject: str | None,
    kinds: Mapping[str, Kind] | None,
    declared: Declared = NOTHING,
    *,
    where: str = "source",
) -> PrivateTable:
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
    table = PrivateTable.of(frame, schema, subject, where=where, external=True)
    return _in_roles({where: table}, kinds, declared, where)[where]


def external_splits(
    frames: Mapping[str, pd.DataFrame],
    subject: str | None,
    kinds: Mapping[str, Kind] | None,
    declared: Declared = NOTHING,
) -> dict[str, PrivateTable]:
    """Convert the tables of an external split. The schema is inferred from all of them, dtypes from train."""
    subject, kinds = as_named(subject), as_named(kinds)
    declared.check([name for role in REAL_ROLES if role in frames for name in frames[role].columns])
    frames = {role: declared.without_dropped(frames[role], subject) for role in REAL_ROLES if role in frames}
    real = {role: _without(frame, subject, role) for role, frame in frames.items()}
    names = {role: role for role in real}
    schema, _ = joint_schema(real, names, kinds, declared)
    tables = {
        role: PrivateTable.of(frame, schema, subject, where=role, external=True) for role, frame in frames.items()
    }
    check_ids({role: table.subject for role, table in tables.items() if table.subject is not None}, names)
    return _in_roles(tables, kinds, declared, " and ".join(tables))


def _in_roles(
    tables: Mapping[str, PrivateTable], kinds: Mapping[str, Kind] | None, declared: Declared, where: str
) -> dict[str, PrivateTable]:
    """Return the tables, which have one schema, with the role of each column in the schema."""
    rows = [table.rows for table in tables.values()]
    schema = with_roles(rows[0].schema, rows, people_of(tables.values()), declared, kinds, where=where)
    return {role: PrivateTable(table.rows.with_schema(schema), table.subject) for role, table in tables.items()}


def _without(frame: pd.DataFrame, subject: str | None, where: str) -> pd.DataFrame:
    if subject is None:
        return frame
    check_subject(frame.columns, subject, where)
    return frame.drop(columns=[subject])
