"""Canaries: training rows that are planted in a simulated copy of the synthetic table, so that the gate is seen to
close.

Exact copies; copies whose numbers moved; copies with one column resampled; and moved
copies of those who are like nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from privacy_assets.generators.copies import jittered
from privacy_assets.tables.column import Column
from privacy_assets.tables.table import Table

JITTER = 0.1  # standard deviations of the column
KINDS = ("exact", "jittered", "resampled", "rare")


def canaries(kind: str, train: Table, places: np.ndarray, count: int, rng: np.random.Generator) -> Table:
    """At most ``count`` planted rows made of different rows of ``train``, those at ``places``.

    Rows are drawn without replacement: there may be fewer. A moved number is one that its column has, a missing value
    stays missing.
    """
    rows = train.take(rng.permutation(places)[:count])
    return rows if kind == "exact" or len(rows) == 0 else _CHANGES[kind](rows, train, rng)


def _moved(rows: Table, train: Table, rng: np.random.Generator) -> Table:
    """Numbers and dates moved to the nearest value that the column has; where there are none, rows stay what they are.

    Few columns are continuous. A fee of 450 different values, or a share that is 0 or 1 for most, moved to where nobody
    ever was, would stand behind all that an honest table meets by chance, and be no leak that a generator makes.
    """

    def moved(column: Column) -> Column:
        known = train[column.name].present()
        if column.values is not None or len(known) == 0:
            return column
        return _landed(jittered(column, known, JITTER, rng), known)

    return rows.map(moved)


def _landed(column: Column, known: Column) -> Column:
    """Each cell replaced by the nearest one of ``known``, of two the larger; a missing one stays."""
    places, cells = np.unique(known.cells), np.where(column.missing, known.cells[0], column.cells)
    below = np.maximum(np.searchsorted(places, cells, side="right") - 1, 0)
    above = np.minimum(np.searchsorted(places, cells, side="left"), len(places) - 1)
    nearest = np.where(cells - places[below] < places[above] - cells, places[below], places[above])
    return replace(column, cells=np.where(column.missing, column.cells, nearest))


def _resampled(rows: Table, train: Table, rng: np.random.Generator) -> Table:
    """One random column of each row is that of another row."""
    names = rows.schema.names
    chosen = rng.integers(0, len(names), len(rows))

    def resampled(column: Column) -> Column:
        others = train[column.name].take(rng.integers(0, len(train), len(rows)))
        return column.where(chosen != names.index(column.name), others)

    return rows.map(resampled)


_CHANGES: dict[str, Callable[[Table, Table, np.random.Generator], Table]] = {
    "jittered": _moved,
    "resampled": _resampled,
    "rare": _moved,
}
