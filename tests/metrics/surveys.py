"""Rows of a survey for the attacks by columns: every kind of column, with missing values in
each.
"""

from __future__ import annotations

import numpy as np
import pandas as pd


def survey(rows: int, seed: int, columns: int = 8) -> pd.DataFrame:
    """The first columns of the given number of people."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "income": np.round(rng.lognormal(size=rows) * 1_000, -1),
            "age": pd.array(rng.integers(18, 90, rows), dtype="Int64"),
            "place": rng.choice(
                ["O'Hara", 'the "Hill"', "x", "y", "z"], rows, p=[0.05, 0.1, 0.2, 0.3, 0.35]
            ),
            "smoker": pd.array(rng.random(rows) < 0.3, dtype="boolean"),
            "visit": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(rng.integers(0, 300, rows), unit="D"),
            "plan": rng.integers(0, 6, rows).astype(str),
            "weight": np.round(rng.normal(70, 12, rows)),
            "health": rng.choice(["good", "fair", "poor"], rows, p=[0.7, 0.2, 0.1]),
        }
    ).iloc[:, :columns]
    return frame.mask(rng.random(frame.shape) < 0.03)


def parts(sizes: tuple[int, int, int], seed: int, columns: int = 8) -> list[pd.DataFrame]:
    """Train, holdout and fresh rows."""
    table = survey(sum(sizes), seed, columns)
    ends = np.cumsum(sizes)
    return [
        table[end - size : end].reset_index(drop=True)
        for size, end in zip(sizes, ends, strict=True)
    ]
