"""The precision of a column: how fine the steps are in which its numbers and times stand, and rounding to them.

Whatever is finer than the private column says nothing about it, but can carry something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Precision = int | str | None  # decimals of a number, the unit of a time, None: as fine as its dtype

UNITS: Mapping[str, int] = {  # microseconds
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
_MOST_DECIMALS = 15
_EXACT = 2.0**51  # below, scaling a number of so many decimals gives the whole number that it is
_LARGEST = np.iinfo(np.int64).max


def decimals_of(values: np.ndarray, dtype: Any = np.float64) -> int | None:
    """Fewest decimals that hold every one of the finite floats (n,), or None where more than fifteen are needed.

    Multiples of 10, 100, ... have -1, -2, ... decimals, unless all are 0. What holds a value is that it stays itself in
    ``dtype``: 0.1 as a float32 has one decimal, though as a float64 it has many.
    """
    values, fine = np.asarray(values, dtype=np.float64), np.dtype(dtype)
    if not np.any(values):
        return 0
    left, decimals = values, -1
    while len(left) and decimals < _MOST_DECIMALS:
        decimals += 1
        left = left[~_unchanged(left, decimals, fine)]
    if not _unchanged(values, decimals, fine).all():
        return None
    while -_MOST_DECIMALS < decimals <= 0 and _unchanged(values, decimals - 1, fine).all():
        decimals -= 1
    return decimals


def _unchanged(values: np.ndarray, decimals: int, dtype: np.dtype[Any]) -> np.ndarray:
    same: np.ndarray = round_decimals(values, decimals, dtype) == values.astype(dtype)
    return same


def whole_decimals_of(values: np.ndarray) -> int:
    """:func:`decimals_of` of whole numbers int64 (n,): 0, or less where all are multiples of 10, 100, ..."""
    divisor, decimals = abs(int(np.gcd.reduce(values))) if len(values) else 0, 0
    while divisor and divisor % 10 == 0:
        divisor, decimals = divisor // 10, decimals - 1
    return decimals


def unit_of(micros: np.ndarray) -> str:
    """The largest of the units of which every time int64 (n,), in microseconds since 1970, is a multiple."""
    divisor = int(np.gcd.reduce(micros)) if len(micros) else 0
    return next(unit for unit, step in UNITS.items() if divisor % step == 0)


def round_decimals(values: np.ndarray, decimals: int, dtype: Any = np.float64) -> np.ndarray:
    """Floats (n,) at the nearest number of so many decimals, in ``dtype``; of two that are as near, the even one.

    What is nearest is seen after scaling in float64, as numpy does. A float that already has no more decimals stays
    what it is, and so does one so large that floats beside it are hardly closer than such numbers are.
    """
    scale = 10.0 ** abs(decimals)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = values * scale if decimals > 0 else values / scale
        nearest = np.rint(scaled) / scale if decimals > 0 else np.rint(scaled) * scale
        rounded: np.ndarray = np.where(np.abs(scaled) < _EXACT, nearest, values).astype(dtype)
    return rounded


def round_to_multiple(values: np.ndarray, step: int) -> np.ndarray:
    """Whole numbers int64 (n,) at the nearest multiple of ``step``, of two that are as near the even one; exact."""
    below, rest = np.divmod(values, step)
    up = (rest > step - rest) | ((rest == step - rest) & (below % 2 == 1))
    largest = _LARGEST // step
    return np.clip(below + up, -largest, largest) * step
