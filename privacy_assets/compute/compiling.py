"""Compilation of hot loops. Imports numba: import it where it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile, cached on disk: beside its file, else in the user's cache folder; neither writable: not cached.

    The first call compiles, and a user waits for it. So a kernel takes its scratch arrays from the caller, loops over
    cells in place of expressions of whole arrays, and calls no function of numpy that is made of others (``sort``,
    ``unique``, ``where``): each is compiled too, for every type of its arguments. Division by 0 is no error.
    """
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:
        return numba.njit(**_OPTIONS)(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile into each compiled function of the same file that calls it, and not alone: for helpers of one caller.

    Arrays are not handed over, which takes long. Not across files: the cache of a function is renewed when its own file
    changes, and only then.
    """
    return numba.njit(inline="always")(function)
