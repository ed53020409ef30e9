"""Compilation of hot loops. Imports numba, so import it lazily."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function, cached on disk.

    The cache is next to the file, or in the user's cache folder, or absent if neither is writable.

    The first call compiles while the user waits. Kernels should therefore take scratch arrays as arguments, loop over
    cells instead of using whole-array expressions, and avoid composite numpy functions (``sort``, ``unique``,
    ``where``), which are compiled for every type of their arguments. Division by 0 does not raise.
    """
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:
        return numba.njit(**_OPTIONS)(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Inline a helper into each compiled function of the same file that calls it.

    This avoids passing arrays, which is slow. It does not work across files: the cache of a function is renewed only if
    its own file changes.
    """
    return numba.njit(inline="always")(function)
