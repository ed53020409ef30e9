"""Count the people who share each cell of a release, independently of the rule."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType

import numpy as np
import pandas as pd

from privacy_assets.tables import splitting
from privacy_assets.tables.column_rule import ColumnRule
from privacy_assets.tables.schema import ColumnSchema
from privacy_assets.tables.table import Table

MISSING = "a missing value"
PREPARE = "privacy_assets.pipeline.work.prepare"


def fewest_holders(rows: Table, real: Sequence[Table]) -> dict[str, int]:
    """Return the smallest number of people who share a cell of a column, in the release and in the
    real tables.

    Columns that share their levels count together. Left out are generated columns, columns without
    a rule because their bounds are public, and values of public lists.

    Args:
        rows: Release.
        real: Real tables, all with the same rules and columns.

    Returns:
        The number of each column, by name.
    """
    rules = real[0].rules
    schema = real[0].schema
    subject = real[0].subject
    released = rows.frame()
    stacked = pd.concat([table.frame() for table in real], ignore_index=True)
    people = pd.Series(stacked.index) if subject is None else stacked[subject]
    fewest = {}
    for name, rule in rules.items():
        frames = []
        for column, column_rule in rules.items():
            if column == name or same_levels(rule, column_rule):
                frames.append(pd.DataFrame({"value": cells(stacked[column]), "person": people}))
        holders = pd.concat(frames).groupby("value")["person"].nunique()
        values = set(cells(released[name])) | set(cells(stacked[name]))
        counts = [int(holders.get(value, 0)) for value in values - _public_values(schema[name])]
        fewest[name] = min(counts, default=sys.maxsize)
    return fewest


def _public_values(column: ColumnSchema) -> set[object]:
    """Return the values of the public list of a column; empty without one."""
    if not column.source:
        return set()
    values = set(cells(pd.Series(list(column.allowed_values), dtype=object)))
    if column.kind == "categorical":
        return values
    return {float(value) for value in values}


def same_levels(first: ColumnRule, second: ColumnRule) -> bool:
    """Return True if two columns share their levels.

    Args:
        first: Rule of one column.
        second: Rule of the other column.
    """
    if first.groups is None or second.groups is None:
        return False
    return first.groups.low.dtype == second.groups.low.dtype and first.groups.equals(second.groups)


def cells(column: pd.Series) -> pd.Series:
    return column.astype(object).where(column.notna(), MISSING)


def _function_of(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"


def install() -> None:
    """Count the holders in each table that a step `prepare` of this process reads: it is scored,
    and then published.
    """
    original = splitting.pseudonyms

    def counted(table: Table, key: bytes, exact_ids: bool = False) -> np.ndarray:
        frame = sys._getframe(1)
        while frame is not None and _function_of(frame) != PREPARE:
            frame = frame.f_back  # of a comprehension
        if frame is None:
            return original(table, key, exact_ids)
        # a KeyError here: the step `prepare` has other names now
        run, rows, tables = (frame.f_locals[name] for name in ("run", "rows", "tables"))
        real = list(tables.values())
        if table is real[0]:
            min_holders = run.table.policy.min_holders
            fewest = fewest_holders(rows, real)
            rare = {name: n for name, n in fewest.items() if n < min_holders}
            assert not rare, f"cells of fewer than {min_holders} people: {rare}"
        return original(table, key, exact_ids)

    # also the name in modules that are imported already
    for module in list(sys.modules.values()):
        if getattr(module, "pseudonyms", None) is original:
            module.pseudonyms = counted  # type: ignore[attr-defined]
