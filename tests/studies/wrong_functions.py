"""Invalid custom generators, which separate processes import by name."""

from __future__ import annotations

import pandas as pd


def returns_too_few(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    return train.head(rows - 1)


def raises_a_row(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    raise ValueError(str(train.iloc[0].tolist()))
