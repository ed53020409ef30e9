"""The precision of a column, and rounding to it.

Digits beyond the precision of the private column carry no information about it, but could encode
other information.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Precision = int | str | None  # decimals of a number, unit of a time, or None: as fine as the dtype

UNITS: Mapping[str, int] = {  # microseconds
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
_MAX_DECIMALS = 15
_EXACT = 2.0**51  # below this, scaling a number by its decimals gives the exact integer
_LARGEST = np.iinfo(np.int64).max


def decimals_of(values: np.ndarray, dtype: Any = np.float64) -> int | None:
    """Return the smallest number of decimals that represents all finite floats.

    A value is represented if it is unchanged in ``dtype``: 0.1 as float32 has one decimal, although
    as float64 it has many.

    Args:
        values: Finite floats, shape (n,).
        dtype: Dtype of the original values.

    Returns:
        Number of decimals. Multiples of 10, 100, ... have -1, -2, ... decimals, unless all are 0.
        None: more than fifteen.
    """
    values = np.asarray(values, dtype=np.float64)
    original_dtype = np.dtype(dtype)
    if not np.any(values):
        return 0
    changed = values
    decimals = -1
    while len(changed) and decimals < _MAX_DECIMALS:
        decimals += 1
        changed = changed[~_unchanged(changed, decimals, original_dtype)]
    if not _unchanged(values, decimals, original_dtype).all():
        return None
    while -_MAX_DECIMALS < decimals <= 0:
        if not _unchanged(values, decimals - 1, original_dtype).all():
            break
        decimals -= 1
    return decimals


def _unchanged(values: np.ndarray, decimals: int, dtype: np.dtype[Any]) -> np.ndarray:
    is_unchanged: np.ndarray = round_decimals(values, decimals, dtype) == values.astype(dtype)
    return is_unchanged


def whole_decimals_of(values: np.ndarray) -> int:
    """Return :func:`decimals_of` of integers: 0, or negative if all are multiples of 10, 100, ...

    Args:
        values: Integers, int64 (n,).
    """
    if len(values) == 0:
        return 0
    divisor = abs(int(np.gcd.reduce(values)))
    decimals = 0
    while divisor and divisor % 10 == 0:
        divisor //= 10
        decimals -= 1
    return decimals


def unit_of(micros: np.ndarray) -> str:
    """Return the largest unit of which all times are multiples.

    Args:
        micros: Microseconds since 1970, int64 (n,).

    Returns:
        Name of the unit, from "day" to "microsecond".
    """
    divisor = 0
    if len(micros):
        divisor = int(np.gcd.reduce(micros))
    return next(unit for unit, step in UNITS.items() if divisor % step == 0)


def round_decimals(values: np.ndarray, decimals: int, dtype: Any = np.float64) -> np.ndarray:
    """Round floats (n,) to ``decimals`` decimal places, half to even, in ``dtype``.

    Rounding follows scaling in float64, as in numpy. Floats with no more decimals are unchanged, as
    are floats so large that their spacing is close to the rounding step.

    Args:
        values: Floats, float64 (n,).
        decimals: Number of decimal places. Negative: round to multiples of 10, 100, ...
        dtype: Dtype of the result.
    """
    scale = 10.0 ** abs(decimals)
    with np.errstate(over="ignore", invalid="ignore"):
        if decimals > 0:
            scaled = values * scale
            nearest = np.rint(scaled) / scale
        else:
            scaled = values / scale
            nearest = np.rint(scaled) * scale
        rounded: np.ndarray = np.where(np.abs(scaled) < _EXACT, nearest, values).astype(dtype)
    return rounded


def round_to_multiple(values: np.ndarray, step: int) -> np.ndarray:
    """Round integers to the nearest multiple of ``step``, half to even. The result is exact.

    Args:
        values: Integers, int64 (n,).
        step: Positive integer.
    """
    quotient, remainder = np.divmod(values, step)
    is_above_tie = remainder > step - remainder
    is_odd_tie = (remainder == step - remainder) & (quotient % 2 == 1)
    largest = _LARGEST // step
    return np.clip(quotient + (is_above_tie | is_odd_tie), -largest, largest) * step
