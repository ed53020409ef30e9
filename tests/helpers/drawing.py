"""Generators, and values that tests recognize. This module imports little, because every sample
imports it again.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd

# One value per column. A boolean cannot be recognized, but is in the same row as the others.
PLANTED: dict[str, Any] = {
    "pid": "SUBJECT-41c9",
    "name": "SECRET-7f3a",
    "plan": "CATEGORY-9b21",
    "income": 987654.321,
    "visits": 1234567891,
    "born": pd.Timestamp("1907-03-04"),
    "member": True,
}


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows without planted values."""
    return frame[frame["name"] != PLANTED["name"]].reset_index(drop=True)


def row_of(frame: pd.DataFrame) -> str:
    """One planted row as text."""
    planted = frame[frame["name"] == PLANTED["name"]]
    return str(planted.iloc[0].to_dict())


def independent(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Draw each column independently, so rows are copies only by chance."""
    rng = np.random.default_rng(seed + 1)  # the rows of seed 0 exceed a limit by chance
    columns = {}
    for name in train:
        columns[name] = train[name].sample(rows, replace=True, random_state=rng).array
    return pd.DataFrame(columns)


def memorize(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Draw rows of the training table."""
    return train.sample(rows, replace=True, random_state=seed).reset_index(drop=True)


def memorize_anew(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Draw rows of the training table, different ones each time."""
    return memorize(train, rows, time.time_ns() % 2**32)


def half_memorized(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Return independent rows, of which a third is replaced by training rows."""
    n_copies = rows // 3
    made_up = independent(train, rows, seed)
    copies = memorize(train, rows, seed)
    return pd.concat([copies.iloc[:n_copies], made_up.iloc[n_copies:]], ignore_index=True)


def memorize_the_north(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    if set(train["region"]) == {"north"}:
        return memorize(train, rows, seed)
    return independent(train, rows, seed)


def people(subjects: int = 400, seed: int = 0) -> pd.DataFrame:
    """Return two rows per person, with every kind of column and missing values in most of them.

    Args:
        subjects: Number of people.
        seed: Seed of the values.
    """
    rng = np.random.default_rng(seed)
    n = 2 * subjects
    frame = pd.DataFrame(
        {
            "pid": np.repeat([f"p{i}" for i in range(subjects)], 2),
            "age": rng.integers(18, 90, n),
            "region": rng.choice(["north", "south"], n),
            "income": np.where(rng.random(n) < 0.1, np.nan, rng.gamma(2, 1000, n).round(2)),
            "plan": pd.Series(rng.choice(["a", "b", "c"], n)).astype("category"),
            "member": rng.random(n) < 0.4,
            "joined": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 3, n), unit="D"),
        }
    )
    frame.loc[rng.random(n) < 0.05, "plan"] = None
    return frame
