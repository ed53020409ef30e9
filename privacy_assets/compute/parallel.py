"""Parallel work of the engine: threads of this process, or the workers of a cluster that is in use.

Results never depend on where the work was done, nor on how many took part: parts are set by the data alone and put
together in their order.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from privacy_assets.compute.on_ray import RayWorkers

_Part = TypeVar("_Part")
_Done = TypeVar("_Done")
_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
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
    """:func:`cores`, but no more than OMP_NUM_THREADS and NUMBA_NUM_THREADS say."""
    settings = [os.environ.get(name, "").split(",")[0].strip() for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")]
    return min([cores(), *(int(setting) for setting in settings if setting.isdecimal() and int(setting))])


def cores() -> int:
    """Cores that this process may use: those it is bound to, and as many as its control groups give it time for."""
    return max(1, math.ceil(min([_bound(), *map(_quota, _groups())])))


def share_cores() -> None:
    """Let the thread pools of libraries leave the cores to others; settings of the user stay as they are.

    OpenMP's threads sleep while they wait: by default they spin, and beside other work that takes minutes. A container
    with time for fewer cores than it sees gets OMP_NUM_THREADS, which OpenMP, BLAS, torch and Arrow read when they are
    loaded; what is loaded already is told as well.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if cores() < _bound() and "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(cores())
        if "numpy" in sys.modules:
            from threadpoolctl import threadpool_limits

            threadpool_limits(cores())


def _bound() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _groups() -> Iterator[Path]:
    """Folders of the control groups of this process that limit its time, of version 2 and 1, and those above them."""
    try:
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if not kinds or "cpu" in kinds.split(","):
            own = PurePosixPath(path.lstrip("/"))
            yield from (_GROUPS / ("cpu" if kinds else "") / group for group in (own, *own.parents))


def _quota(group: Path) -> float:
    """Cores' worth of time that a control group allows, inf where it sets no limit."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{part}_us").read_text() for part in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError):  # no limit is "max", or no file
        return math.inf
