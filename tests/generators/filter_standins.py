"""A generator that draws from a given table, and tables of every dtype, for tests of the
filters.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from privacy_assets.generators.base import FittedGenerator
from privacy_assets.tables.table import Table


class Given(FittedGenerator):
    """Draws rows of a table in order, from a start position that depends on the seed."""

    def __init__(self, pool):
        self.pool, self.asked = pool, []

    def sample(self, rows, *, seed):
        self.asked.append((rows, seed))
        start = 0 if seed < 1000 else sum(asked for asked, _ in self.asked[:-1])
        return self.pool.take(np.arange(start, start + rows) % len(self.pool))

    def _sample(self, rows, seed):
        raise NotImplementedError

    def _save(self, folder):
        raise NotImplementedError


def mixed(n, seed):
    g = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": g.integers(18, 90, n),
            "income": np.where(g.random(n) < 0.1, np.nan, g.lognormal(10, 1, n)),
            "region": g.choice(list("abc"), n),
            "smokes": g.random(n) < 0.3,
            "seen": pd.Timestamp("2020-01-01") + pd.to_timedelta(g.integers(0, 900, n), unit="D"),
        }
    )
    frame["region"] = frame["region"].where(g.random(n) < 0.9)
    return Table.read(frame)


def changed(table, **columns):
    """The table with other values in these columns."""
    return Table.of(table.frame().assign(**columns), table.schema, where="changed")


def split(table, *sizes):
    ends = np.cumsum([0, *sizes])
    return [table.take(slice(a, b)) for a, b in zip(ends[:-1], ends[1:], strict=True)]
