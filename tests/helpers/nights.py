"""Generators that make a different table each time: the file that NIGHTS names counts them."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
from drawing import people

LEAKED = 30  # training rows of 15 people in each table, different ones each time


def honest(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Rows of people outside the private table, different ones each night."""
    return people(rows, seed=1000 + _night())[list(train.columns)].iloc[:rows]


def drop_by_drop(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Honest rows with a few training rows, different ones each night."""
    honest_rows = honest(train, rows - LEAKED, seed)
    first = Path(os.environ["NIGHTS"]).stat().st_size * LEAKED
    leaked_rows = train.iloc[first : first + LEAKED]
    return pd.concat([leaked_rows, honest_rows], ignore_index=True)


def _night() -> int:
    with Path(os.environ["NIGHTS"]).open("a") as nights:
        nights.write(".")
        return nights.tell()
