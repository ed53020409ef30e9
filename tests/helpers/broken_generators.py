"""Generators that fail in different ways while they hold private rows."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import warnings
from typing import Any

import pandas as pd
from drawing import PLANTED, independent, plain, row_of


def honest(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    return independent(plain(train), rows, seed)


def prints(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Print in each way that a library may use."""
    row = row_of(train)
    print(row)
    print(row, file=sys.stderr)
    os.write(1, row.encode())
    logging.getLogger("dagster").error(row)
    warnings.warn(row, stacklevel=1)
    atexit.register(print, row)
    thread = threading.Thread(target=raises, args=(train, rows, seed))
    thread.start()
    thread.join()
    return honest(train, rows, seed)


def raises(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    raise ValueError(row_of(train))


def raises_from(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    try:
        raise KeyError(row_of(train))
    except KeyError as error:
        error.add_note(row_of(train))
        raise RuntimeError(row_of(train)) from error


def exits(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    sys.exit(row_of(train))


def interrupts(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    raise KeyboardInterrupt(row_of(train))


def talks(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Output a private row in every way except an exception, and return a table that may be
    published.
    """

    def fails() -> None:
        raise ValueError(row_of(train))

    print(row_of(train))
    print(row_of(train), file=sys.stderr)
    os.write(2, row_of(train).encode())
    warnings.warn(row_of(train), stacklevel=1)
    logging.getLogger(__name__).warning(row_of(train))
    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()
    return honest(train, rows, seed)


def panics(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    raise type("PanicException", (BaseException,), {})(row_of(train))


def returns_an_object(train: pd.DataFrame, rows: int, seed: int) -> Any:
    def text(self: Any) -> str:
        return row_of(train)

    return type("Model", (), {"__repr__": text, "__str__": text})()


def names_columns_by_values(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    return train.join(pd.get_dummies(train["name"], prefix="name"))


def mixes_types(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    mixed = train["visits"].astype(object).where(train["name"] != PLANTED["name"], train["name"])
    return train.assign(visits=mixed)


def holds_foreign_objects(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    class Name:
        def __init__(self, text: str) -> None:
            self.text = text

        def __str__(self) -> str:
            raise TypeError(f"no text for {self.text}")

    return train.assign(name=[Name(name) for name in train["name"]])
