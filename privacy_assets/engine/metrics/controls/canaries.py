"""Canaries: training rows that are planted in a scratch copy of the synthetic table, so that the gate is seen to close.

Exact copies; copies whose numbers moved; copies with one column drawn anew; and moved
copies of those who are like nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.engine.generators.copies import jittered
from privacy_assets.engine.tables.schema import TableSchema

JITTER = 0.1  # standard deviations of the column
KINDS = ("exact", "jittered", "redrawn", "rare")


def canaries(
    kind: str, train: pd.DataFrame, places: np.ndarray, count: int, schema: TableSchema, rng: np.random.Generator
) -> pd.DataFrame:
    """At most ``count`` planted rows made of different rows of canonical ``train``, those at ``places``.

    Rows are drawn without replacement: there may be fewer. A moved number is one that its column has, a missing value
    stays missing.
    """
    rows = train.iloc[rng.permutation(places)[:count]].reset_index(drop=True)
    return rows if kind == "exact" or rows.empty else _CHANGES[kind](rows, train, schema, rng)


def _moved(rows: pd.DataFrame, train: pd.DataFrame, schema: TableSchema, rng: np.random.Generator) -> pd.DataFrame:
    """Numbers and dates moved to the nearest value that the column has; where there are none, rows stay what they are.

    Few columns are continuous. A fee of 450 different values, or a share that is 0 or 1 for most, moved to where nobody
    ever was, would stand behind all that an honest table meets by chance, and be no leak that a generator makes.
    """
    for column in schema.columns:
        known = train[column.name].dropna()
        if column.kind not in ("categorical", "boolean") and not known.empty:
            rows[column.name] = _landed(jittered(rows[column.name], known, JITTER, rng), known)
    return rows


def _landed(values: pd.Series, known: pd.Series) -> pd.Series:
    """``values``, each replaced by the nearest one of ``known``; a missing one stays."""
    there = values.notna()
    dtype: Any = "int64" if known.dtype == "Int64" else known.dtype
    places = pd.Index(np.unique(known.astype(dtype)))
    nearest = places.get_indexer(pd.Index(values[there].astype(dtype)), method="nearest")
    landed = values.copy()
    landed[there] = places[nearest]
    return landed


def _redrawn(rows: pd.DataFrame, train: pd.DataFrame, schema: TableSchema, rng: np.random.Generator) -> pd.DataFrame:
    """One random column of each row is that of another row."""
    chosen = rng.integers(0, len(schema.columns), len(rows))
    for place, column in enumerate(schema.columns):
        others = train[column.name].iloc[rng.integers(0, len(train), len(rows))].reset_index(drop=True)
        rows[column.name] = rows[column.name].where(chosen != place, others)
    return rows


_CHANGES: dict[
    str, Callable[[pd.DataFrame, pd.DataFrame, TableSchema, np.random.Generator], pd.DataFrame]
] = {"jittered": _moved, "redrawn": _redrawn, "rare": _moved}  # fmt: skip
