"""Functions used as generators. This module imports little, because every sample imports it
again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd

SECRET = "Zebulon-77123"


def uniform(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """A custom generator."""
    return train.sample(rows, replace=True, random_state=seed)


def changes_its_input(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    train.loc[:, "age"] = 0
    return train.head(rows)


def takes_one(train: pd.DataFrame) -> pd.DataFrame:
    return train


def raises(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    raise ValueError(f"cannot handle {train['town'].iloc[0]} {SECRET}")


def returns_text(train: pd.DataFrame, rows: int, seed: int) -> str:
    return SECRET


def drops_a_column(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    return uniform(train, rows, seed).drop(columns="age")


def returns_too_few(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    return train.head(rows - 1)


def returns_wrong_types(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    return uniform(train, rows, seed).assign(age=SECRET)


def exits(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    sys.exit(SECRET)


def mixes_types(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    return uniform(train, rows, seed).assign(age=[SECRET, *range(rows - 1)])


def returns_foreign_columns(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    return uniform(train, rows, seed).set_axis([SECRET] * train.shape[1], axis=1)


def spies(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    train.to_pickle(os.environ["SEEN"])
    return train.sample(rows, random_state=seed)


def raises_a_row(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    raise ValueError(str(train.iloc[0].tolist()))


def leaves_others_behind(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Start one child in its own session, and one in another session whose parent ends; record all
    three.
    """
    sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
    child = subprocess.Popen(sleep)
    forks = (
        f"import subprocess; print(subprocess.Popen({sleep!r}, start_new_session=True, stdout=-3,"
        " stderr=-3).pid)"
    )
    orphan = subprocess.run(
        [sys.executable, "-c", forks], start_new_session=True, capture_output=True, check=True
    )
    Path(os.environ["NOTE"]).write_text(f"{os.getpid()} {child.pid} {int(orphan.stdout)}.")
    return uniform(train, rows, seed)


def never_ends(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    leaves_others_behind(train, rows, seed)
    time.sleep(300)
    return train
