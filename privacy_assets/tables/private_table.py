"""Private tables in canonical form, with the subject of each row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from privacy_assets.tables.column import stacked
from privacy_assets.tables.contract import REAL_ROLES, joint_schema, take_subjects
from privacy_assets.tables.declared import NOTHING, Declared
from privacy_assets.tables.names import as_named
from privacy_assets.tables.roles import with_roles
from privacy_assets.tables.schema import Kind, check_frame
from privacy_assets.tables.table import Table


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
    check_frame(frame, where=where)
    return external_splits({"train": frame}, subject, kinds, declared, {"train": where})["train"]


def external_splits(
    frames: Mapping[str, pd.DataFrame],
    subject: str | None,
    kinds: Mapping[str, Kind] | None,
    declared: Declared = NOTHING,
    names: Mapping[str, str] | None = None,
) -> dict[str, Table]:
    """Convert the tables of an external split. The schema is inferred from all of them, dtypes from train.

    ``names`` are the names of the tables in messages, by default their roles.
    """
    subject, kinds = as_named(subject), as_named(kinds)
    declared.check([name for role in REAL_ROLES if role in frames for name in frames[role].columns])
    real = {role: declared.without_dropped(frames[role], subject) for role in REAL_ROLES if role in frames}
    names = names or {role: role for role in real}
    ids = take_subjects(real, names, subject)
    schema, _ = joint_schema(real, names, kinds, declared)
    tables = {
        role: Table.of(frame, schema, where=names[role], external=True).with_subject(ids.get(role))
        for role, frame in real.items()
    }
    rows, people = list(tables.values()), people_of(tables.values())
    schema = with_roles(schema, rows, people, declared, kinds, where=" and ".join(names.values()))
    return {role: table.with_schema(schema) for role, table in tables.items()}
