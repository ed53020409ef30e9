"""Threads of the engine's own loops: compiled code lets go of the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Part = TypeVar("_Part")
_Done = TypeVar("_Done")


def in_threads(work: Callable[[_Part], _Done], parts: Sequence[_Part]) -> list[_Done]:
    """Results of ``work`` on each part, in order; in as many threads as :func:`threads` allows."""
    with ThreadPoolExecutor(max(1, min(threads(), len(parts)))) as pool:
        return list(pool.map(work, parts))


def threads() -> int:
    """Cores that this process may use, but no more than OMP_NUM_THREADS and NUMBA_NUM_THREADS say."""
    import joblib

    settings = [os.environ.get(name, "").split(",")[0].strip() for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")]
    return min([joblib.cpu_count(), *(int(setting) for setting in settings if setting.isdecimal() and int(setting))])
