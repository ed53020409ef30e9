"""Compilation of hot loops. Imports numba: import it where it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile, cached on disk: beside its file, else in the user's cache folder; neither writable: not cached."""
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True)(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile into each compiled function of the same file that calls it: arrays are not handed over, which takes long.

    Not across files: the cache of a function is renewed when its own file changes, and only then.
    """
    return numba.njit(inline="always")(function)
