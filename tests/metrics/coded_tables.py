"""Mixed tables, their coded cells and written-out distances between their rows, for the tests of
the shadow attack.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy.spatial.distance import cdist

from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.table import Table

# Among Adult's complete rows in file order; published with the code of the paper.
ADULT_MOST_VULNERABLE = [39435, 36838, 6066, 1678, 27566, 43082, 35988, 16525, 5918, 16249]


def coded(frame):
    schema = infer_schema(frame)
    table = Table.of(frame, schema, where="table", smallest=0)
    coding = MatrixCoding.fit([table], schema)
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
    return (
        with_gaps(g, max(n // 4, 1)).sample(n, replace=True, random_state=1).reset_index(drop=True)
    )


def attributes(frame):
    """Computed by hand: continuous columns scaled, categorical columns as strings, constant columns
    left out.
    """
    continuous, categorical = [], []
    for name in frame:
        column = frame[name]
        if pd.api.types.is_bool_dtype(column) or not pd.api.types.is_any_real_numeric_dtype(column):
            if not pd.api.types.is_datetime64_any_dtype(column):
                categorical.append([repr(value) for value in column])
                continue
            column = column.astype("datetime64[us]").astype("int64").where(column.notna())
        values = [float(value) / 2 if not pd.isna(value) else None for value in column]
        there = [value for value in values if value is not None]
        categorical.append([value is None for value in values])
        if there and max(there) > min(there):
            scaled = [
                None if v is None else (v - min(there)) / (max(there) - min(there)) for v in values
            ]
            mean = math.fsum(v for v in scaled if v is not None) / len(there)
            continuous.append([mean if v is None else v for v in scaled])
    return continuous, [column for column in categorical if len(set(column)) > 1]


def pairwise(frame, distance):
    """Equations 5 and 6 as they are printed, over one-hot vectors, (n, n)."""
    continuous, categorical = attributes(frame)
    n, deep, wide = len(frame), len(continuous), len(categorical)
    f = deep + wide
    hot = [
        [value == one for value in column]
        for column in categorical
        for one in sorted(set(column), key=repr)
    ]
    h, c = (np.array(columns, dtype=float).reshape(-1, n).T for columns in (hot, continuous))
    if f == 0:
        return np.zeros((n, n))
    if distance != "cosine":
        p = int(distance[-1])
        return sum(k / f * cdist(x, x, "minkowski", p=p) for k, x in ((wide, h), (deep, c)) if k)
    similar = wide / f * (1 - cdist(h, h, "cosine")) if wide else np.zeros((n, n))
    if deep:
        length = np.array([math.hypot(*row) for row in c])
        unit = c / np.where(length > 0, length, 1)[:, None]
        similar += deep / f * (unit @ unit.T + np.outer(length == 0, length == 0))
    return 1 - similar
