"""Count the people who share each cell of a release, independently of the rule."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pandas as pd

from privacy_assets.tables import splitting
from privacy_assets.tables.table import Table
from privacy_assets.tables.threshold_rule import ColumnRule

GONE = "a missing value"


def fewest_holders(rows: Table, real: Sequence[Table]) -> dict[str, int]:
    """Return the smallest number of people who share a cell of a column, in the release and in the
    real tables.

    Columns that share their levels count together. Left out are generated columns, columns without
    a rule because their bounds are public, and values of public lists.
    """
    rules = real[0].rules
    stacked = pd.concat([table.frame() for table in real], ignore_index=True)
    subject = real[0].subject
    people = pd.Series(stacked.index) if subject is None else stacked[subject]
    fewest = {}
    for name, rule in rules.items():
        column = real[0].schema[name]
        alike = [other for other, its in rules.items() if other != name and same_levels(rule, its)]
        held = pd.concat(
            [
                pd.DataFrame({"value": cells(stacked[other]), "person": people})
                for other in [name, *alike]
            ]
        )
        holders = held.groupby("value")["person"].nunique()
        public = (
            set(cells(pd.Series(list(column.allowed_values), dtype=object)))
            if column.source
            else set()
        )
        if public and column.kind != "categorical":
            public = {float(value) for value in public}
        shown = set(cells(rows.frame()[name])) | set(cells(stacked[name]))
        fewest[name] = min(
            (int(holders.get(value, 0)) for value in shown - public), default=sys.maxsize
        )
    return fewest


def same_levels(first: ColumnRule, second: ColumnRule) -> bool:
    if first.groups is None or second.groups is None:
        return False
    return first.groups.low.dtype == second.groups.low.dtype and first.groups.equals(second.groups)


def cells(column: pd.Series) -> pd.Series:
    return column.astype(object).where(column.notna(), GONE)


def install() -> None:
    """Count the holders in each table that a step `prepare` of this process reads: it is scored,
    and then published.
    """
    original = splitting.pseudonyms

    def counted(table: Table, key: bytes, exact_ids: bool = False) -> np.ndarray:
        frame = sys._getframe(1)
        while frame is not None and not {"run", "rows", "tables"} <= set(frame.f_locals):
            frame = frame.f_back  # of a comprehension
        if frame is not None and table is next(iter(frame.f_locals["tables"].values())):
            k = frame.f_locals["run"].table.policy.min_holders
            fewest = fewest_holders(frame.f_locals["rows"], list(frame.f_locals["tables"].values()))
            rare = {name: n for name, n in fewest.items() if n < k}
            assert not rare, f"cells of fewer than {k} people: {rare}"
        return original(table, key, exact_ids)

    splitting.pseudonyms = counted
