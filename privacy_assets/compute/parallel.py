"""Parallel work of the engine: threads of this process, or the workers of a cluster that is in use.

Results never depend on where the work was done, nor on how many took part: parts are set by the data alone and put
together in their order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from privacy_assets.compute.on_ray import RayWorkers

_Part = TypeVar("_Part")
_Done = TypeVar("_Done")


_IN_USE: ContextVar[RayWorkers | None] = ContextVar("workers", default=None)


@contextmanager
def using(workers: RayWorkers) -> Iterator[None]:
    """Let ``workers`` do what :func:`in_parallel` is asked for in the ``with`` block, by this thread."""
    before = _IN_USE.set(workers)
    try:
        yield
    finally:
        _IN_USE.reset(before)


def on_cluster() -> bool:
    """True while the workers of a cluster are in use."""
    return _IN_USE.get() is not None


def in_parallel(work: Callable[[_Part], _Done], parts: Sequence[_Part], least: int = 2) -> list[_Done]:
    """Results of ``work`` on each part, in order: by the workers in use, else in threads.

    ``work`` changes nothing but what it returns, and holds nothing that cannot be sent: no open file, no log. Fewer
    parts than ``least`` are not worth sending.
    """
    workers = _IN_USE.get()
    return in_threads(work, parts) if workers is None or len(parts) < least else workers.run(work, parts)


def in_threads(work: Callable[[_Part], _Done], parts: Sequence[_Part]) -> list[_Done]:
    """Results of ``work`` on each part, in order; in as many threads as :func:`threads` allows."""
    with ThreadPoolExecutor(max(1, min(threads(), len(parts)))) as pool:
        return list(pool.map(work, parts))


def at_once() -> int:
    """How many parts are worked on at once: by the workers in use, else by the threads of this process."""
    workers = _IN_USE.get()
    return threads() if workers is None else workers.count


def threads() -> int:
    """Cores that this process may use, but no more than OMP_NUM_THREADS and NUMBA_NUM_THREADS say."""
    import joblib

    settings = [os.environ.get(name, "").split(",")[0].strip() for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")]
    return min([joblib.cpu_count(), *(int(setting) for setting in settings if setting.isdecimal() and int(setting))])
