"""Fixtures shared by all tests."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest

DATA = Path(__file__).with_name("data")

# In the background of a script SIGINT is ignored; Dagster then has SIGTERM ignored as well, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_storage_of_a_closed_instance() -> None:
    """Instances that close in another order than they opened leave the storage of a dead one as the current one."""
    module = sys.modules.get("dagster._core.storage.defs_state.base")
    if module is not None:
        module._current_storage.set(None)


@pytest.fixture(scope="session")
def adult_file() -> pd.DataFrame:
    """UCI Adult, 48,842 rows x 15 columns, in the order of the file."""
    return pd.read_parquet(DATA / "adult.parquet")


@pytest.fixture(scope="session")
def adult(adult_file: pd.DataFrame) -> pd.DataFrame:
    """UCI Adult, shuffled by a fixed seed."""
    return adult_file.sample(frac=1, random_state=0).reset_index(drop=True)


@pytest.fixture(scope="session")
def uk_census() -> pd.DataFrame:
    """2011 census microdata, 50,000 rows x 17 columns, every column a category, shuffled by a fixed seed."""
    frame = pd.read_parquet(DATA / "uk_census.parquet").drop(columns=["Person ID"])
    return frame.astype(str).sample(frac=1, random_state=0).reset_index(drop=True)
