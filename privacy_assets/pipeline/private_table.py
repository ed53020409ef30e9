"""A private table between two steps: its rows in canonical form, whose they are, and what the split signed of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow as pa

from privacy_assets.evaluation import joint_schema, subject_column
from privacy_assets.metrics.inputs import REAL_ROLES
from privacy_assets.tables.column import Column, stacked
from privacy_assets.tables.roles import NOTHING, Declared, with_roles
from privacy_assets.tables.schema import Kind, TableSchema, check_frame, check_subject, infer_schema
from privacy_assets.tables.splitting import split_table
from privacy_assets.tables.table import Table

_KEY = b"privacy_assets"  # of the metadata of a Parquet file


@dataclass(frozen=True, eq=False)
class PrivateTable:
    """``rows`` without the subject, the ``subject`` of each row as text, and the ``seal`` of the split, if any."""

    rows: Table = field(repr=False)
    subject: Column | None = field(default=None, repr=False)
    seal: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, frame: pd.DataFrame, schema: TableSchema, subject: str | None, *, where: str) -> PrivateTable:
        """The table of a frame of the columns of ``schema`` and the column ``subject``; InputError for any other."""
        rows = Table.of(_without(frame, subject, where), schema, where=where)
        return cls(rows, None if subject is None else subject_column(frame[subject], where))

    @property
    def schema(self) -> TableSchema:
        """The columns without the subject."""
        return self.rows.schema

    @cached_property
    def fingerprint(self) -> str:
        """Order-free fingerprint of the rows and of whose they are. Keep it private."""
        return (self.rows if self.subject is None else self.rows.with_columns(self.subject)).fingerprint

    def split(self, key: bytes, shares: Mapping[str, float]) -> dict[str, PrivateTable]:
        """Tables by role, disjoint by subject, see :func:`~privacy_assets.tables.splitting.split_table`."""
        name = None if self.subject is None else self.subject.name
        parts = split_table(self.frame(), name, key, shares)
        return {
            role: PrivateTable.of(part.reset_index(drop=True), self.schema, name, where=role)
            for role, part in parts.items()
        }

    def sealed(self, seal: bytes) -> PrivateTable:
        """The same table with the seal of the split."""
        return PrivateTable(self.rows, self.subject, seal)

    def __len__(self) -> int:
        return len(self.rows)

    def frame(self) -> pd.DataFrame:
        """The canonical pandas form; the subject comes first."""
        frame = self.rows.frame()
        if self.subject is not None:
            frame.insert(0, self.subject.name, self.subject.series())
        return frame

    def to_arrow(self) -> pa.Table:
        """The frame, with all else as metadata; :meth:`of_arrow` is the inverse."""
        table = pa.Table.from_pandas(self.frame(), preserve_index=False)
        subject = None if self.subject is None else self.subject.name
        more = json.dumps({"schema": self.schema.to_json(), "subject": subject, "seal": self.seal.decode()})
        return table.replace_schema_metadata({**(table.schema.metadata or {}), _KEY: more.encode()})

    @classmethod
    def of_arrow(cls, table: pa.Table, *, where: str) -> PrivateTable | None:
        """What :meth:`to_arrow` made; None for any other table."""
        more = (table.schema.metadata or {}).get(_KEY)
        if more is None:
            return None
        found = json.loads(more)
        private = cls.of(table.to_pandas(), TableSchema.from_json(found["schema"]), found["subject"], where=where)
        return private.sealed(found["seal"].encode())


def people_of(tables: Iterable[PrivateTable]) -> np.ndarray | None:
    """Int64 code of the subject of each row of the tables, one after the other; None where there are no subjects."""
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
    """The private table in canonical form with its inferred schema; row order is kept.

    Raises InputError for tables that cannot be used, a missing subject column, a missing subject, or open columns
    (:func:`.roles.with_roles`).
    """
    check_frame(frame, where=where)
    declared.check(list(frame.columns))
    frame = declared.left(frame, subject)
    schema = infer_schema(_without(frame, subject, where), kinds, where=where)
    return _in_roles({where: PrivateTable.of(frame, schema, subject, where=where)}, kinds, declared, where)[where]


def external_splits(
    frames: Mapping[str, pd.DataFrame],
    subject: str | None,
    kinds: Mapping[str, Kind] | None,
    declared: Declared = NOTHING,
) -> dict[str, PrivateTable]:
    """Tables that the user split: the schema is inferred over all of them together, dtypes are those of train."""
    declared.check([name for role in REAL_ROLES if role in frames for name in frames[role].columns])
    frames = {role: declared.left(frames[role], subject) for role in REAL_ROLES if role in frames}
    real = {role: _without(frame, subject, role) for role, frame in frames.items()}
    schema = joint_schema(real, {role: role for role in real}, kinds)
    tables = {role: PrivateTable.of(frame, schema, subject, where=role) for role, frame in frames.items()}
    return _in_roles(tables, kinds, declared, " and ".join(tables))


def _in_roles(
    tables: Mapping[str, PrivateTable], kinds: Mapping[str, Kind] | None, declared: Declared, where: str
) -> dict[str, PrivateTable]:
    """Tables of one schema, which now says the role of each column."""
    rows = [table.rows for table in tables.values()]
    schema = with_roles(rows[0].schema, rows, people_of(tables.values()), declared, kinds, where=where)
    return {role: PrivateTable(table.rows.under(schema), table.subject) for role, table in tables.items()}


def _without(frame: pd.DataFrame, subject: str | None, where: str) -> pd.DataFrame:
    if subject is None:
        return frame
    check_subject(frame.columns, subject, where)
    return frame.drop(columns=[subject])
