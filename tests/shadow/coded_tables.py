"""Mixed tables and their coded cells, for the tests of shadow work."""

from __future__ import annotations

import numpy as np
import pandas as pd

from privacy_assets.tables.coding import Coding
from privacy_assets.tables.schema import infer_schema
from privacy_assets.tables.table import Table

# Of Adult's complete rows in the order of the file: published with the code of the paper.
ADULT_MOST_VULNERABLE = [39435, 36838, 6066, 1678, 27566, 43082, 35988, 16525, 5918, 16249]


def coded(frame):
    schema = infer_schema(frame)
    table = Table.of(frame, schema, where="table", smallest=0)
    coding = Coding.fit([table], schema)
    return coding.code(table), coding


def mixed(g, n):
    return pd.DataFrame(
        {
            "age": g.integers(18, 90, n),
            "sex": g.choice(["f", "m"], n),
            "wage": np.where(g.random(n) < 0.6, 0.0, g.lognormal(10, 1, n)),
            "town": g.choice(list("abcdefgh"), n, p=[0.4, 0.3, 0.1, 0.1, 0.04, 0.03, 0.02, 0.01]),
            "smoker": g.random(n) < 0.3,
            "seen": pd.Timestamp("2020-01-01") + pd.to_timedelta(g.integers(0, 2000, n), unit="D"),
        }
    )


def with_gaps(g, n):
    frame = mixed(g, n).astype({"age": "Int64", "smoker": "boolean"})
    for name in ("age", "wage", "town", "smoker", "seen"):
        frame[name] = frame[name].mask(g.random(n) < 0.2)
    return frame


def repeated(g, n):
    return with_gaps(g, max(n // 4, 1)).sample(n, replace=True, random_state=1).reset_index(drop=True)
