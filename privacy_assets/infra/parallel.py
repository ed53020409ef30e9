"""Parallel work of the package, in threads of this process or on the workers of a Ray cluster.

Results do not depend on the number or location of workers: parts are determined by the data and
joined in order.

On a cluster, work is submitted as Ray tasks. Ray (extra ``ray``) is imported on first use. Shared
data is stored in the object store once, and tasks of lost workers or machines are repeated
elsewhere. A task uses one CPU and no device, so it cannot use a device leased by ``GpuResource``.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import joblib
from threadpoolctl import threadpool_limits

from privacy_assets.errors import ClusterError, ConfigError, StepError, safe_repr
from privacy_assets.infra.objects import check_no_credentials

_Part = TypeVar("_Part")
_Done = TypeVar("_Done")


class Workers(Protocol):
    """Workers of a cluster."""

    @property
    def count(self) -> int:
        """Number of parts that they process in parallel."""

    def run(self, work: Callable[[_Part], _Done], parts: Sequence[_Part]) -> list[_Done]:
        """Apply a function to each part, and return the results in order.

        Args:
            work: Function without side effects.
            parts: Its arguments.
        """


_IN_USE: ContextVar[Workers | None] = ContextVar("workers", default=None)


@contextmanager
def using(workers: Workers) -> Iterator[None]:
    """Let workers run the :func:`in_parallel` calls of this thread within the ``with`` block.

    Args:
        workers: Workers of a cluster.
    """
    before = _IN_USE.set(workers)
    try:
        yield
    finally:
        _IN_USE.reset(before)


def on_cluster() -> bool:
    """Return True if the workers of a cluster are in use."""
    return _IN_USE.get() is not None


def in_parallel(
    work: Callable[[_Part], _Done], parts: Sequence[_Part], least: int = 2
) -> list[_Done]:
    """Apply a function to each part on the workers in use, else in threads, and return the results
    in order.

    Args:
        work: Function without side effects. It must not hold objects that cannot be serialized,
            such as open files or loggers.
        parts: Its arguments.
        least: Minimum number of parts that are sent to workers.
    """
    workers = _IN_USE.get()
    if workers is None or len(parts) < least:
        return in_threads(work, parts)
    return workers.run(work, parts)


def in_threads(work: Callable[[_Part], _Done], parts: Sequence[_Part]) -> list[_Done]:
    """Apply a function to each part in at most :func:`threads` threads, and return the results in
    order.

    Args:
        work: Function without side effects.
        parts: Its arguments.
    """
    n_threads = max(1, min(threads(), len(parts)))
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(work, parts))


def at_once() -> int:
    """Return the number of parts processed in parallel by the workers in use, else by the threads
    of this process.
    """
    workers = _IN_USE.get()
    if workers is None:
        return threads()
    return workers.count


def threads() -> int:
    """Return :func:`cores`, limited by OMP_NUM_THREADS and NUMBA_NUM_THREADS."""
    n_threads = [cores()]
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        setting = os.environ.get(name, "").split(",")[0].strip()
        if setting.isdecimal() and int(setting):
            n_threads.append(int(setting))
    return min(n_threads)


def cores() -> int:
    """Return the number of cores available to this process, by CPU affinity and control group
    quota.
    """
    return int(joblib.cpu_count())


def share_cores() -> None:
    """Configure the thread pools of libraries to share the cores; variables set by the user are
    kept.

    OpenMP threads sleep while waiting; by default they spin, which costs minutes if other work runs
    on the machine. If fewer cores are available than the machine has, OMP_NUM_THREADS is set, which
    OpenMP, BLAS, torch and Arrow read when loaded. Libraries that are already loaded are limited
    too.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if cores() < (os.cpu_count() or 1) and "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(cores())
        threadpool_limits(cores())


_NOT_INSTALLED = "Ray is not installed. Fix: pip install 'privacy-assets[ray]'."
_CLIENT_PORT = "10001"
# Ray shows all GPUs to tasks that request none
_HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
_SHARES = 4  # tasks per worker, which balances the load
_last_work: dict[str, Callable[[Any], Any]] = {}  # on a worker, by its reference
# connection, work
_sent: WeakKeyDictionary[Callable[[Any], Any], tuple[tuple[str, str], Any]] = WeakKeyDictionary()


@dataclass(frozen=True)
class RayWorkers:
    """The workers of the connected Ray cluster (``ray.init``), one per CPU.

    The package, and modules of custom generators, must be installed on every machine in the same
    version.

    Attributes:
        retries: Number of retries of a task whose worker or machine was lost. Then ClusterError is
            raised.
    """

    retries: int = 3

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ConfigError("RayWorkers: retries must be at least 0.")

    @property
    def count(self) -> int:
        """Number of parallel tasks of the cluster, at least 1. Raises ConfigError if no cluster is
        connected.
        """
        return max(1, int(_ray().cluster_resources().get("CPU", 0)))

    def run(self, work: Callable[[_Part], _Done], parts: Sequence[_Part]) -> list[_Done]:
        """Apply a function to each part on the workers, and return the results in order.

        Errors of ``work`` are raised unchanged, or as a StepError that hides the message if they
        cannot be serialized. They do not appear in cluster logs, and neither does the output of
        ``work``.

        Args:
            work: Function without side effects.
            parts: Its arguments.

        Raises:
            ClusterError: If parts were lost more than ``retries`` times or the object store is
                full.
        """
        ray = _ray()
        size = max(1, -(-len(parts) // (_SHARES * self.count)))
        blocks = [parts[start : start + size] for start in range(0, len(parts), size)]
        task = _task().options(
            max_retries=self.retries, scheduling_strategy="SPREAD", name="privacy-assets"
        )
        results: list[_Done] = []
        try:
            reference = [_send(work)]  # in a list, so that Ray does not replace it by the work
            tasks = [task.remote(reference, block) for block in blocks]
            for submitted in tasks:
                block_results, problem = ray.get(submitted)
                if problem is not None:
                    # running tasks end by themselves: canceling ending tasks can kill this process
                    raise problem
                results += block_results
        except ray.exceptions.RayTaskError as error:
            raise ClusterError(
                f"a worker of the Ray cluster failed ({type(error.cause).__name__})."
            ) from None
        except ray.exceptions.RayError as error:
            raise ClusterError(
                f"work was lost on the Ray cluster ({type(error).__name__})."
            ) from None
        return results


@contextmanager
def on_ray(address: str | None = None) -> Iterator[RayWorkers]:
    """Compute metrics on a Ray cluster within the ``with`` block, then disconnect.

    An existing connection is reused and kept.

    Args:
        address: HOST:PORT or ray://HOST:PORT. "auto": the cluster running on this machine. None or
            "local": start one here.

    Yields:
        The workers.

    Raises:
        ConfigError: If ray is not installed or there is no such cluster.
    """
    check_no_credentials(address or "")
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError(_NOT_INSTALLED) from None
    is_connected = ray.is_initialized()
    if not is_connected:
        try:
            _check_reachable("local" if address is None else address)
            ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, ValueError, RuntimeError):
            raise ConfigError(
                f"there is no Ray cluster at {safe_repr(address)}. Fix: pass auto, local,"
                " HOST:PORT or ray://HOST:PORT."
            ) from None
    try:
        workers = RayWorkers()
        with using(workers):
            yield workers
    finally:
        if not is_connected:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise OSError or ValueError if the address is unreachable; Ray itself would retry for
    minutes.
    """
    if not address:
        raise ValueError("an empty address")
    is_client = address.startswith("ray://")
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        if not is_client:  # auto or local
            return
        host = port
        port = _CLIENT_PORT
    socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


@cache
def _task() -> Any:
    return _ray().remote(num_cpus=1, num_gpus=0, runtime_env={"env_vars": _HIDDEN})(_done)


def _send(work: Callable[[Any], Any]) -> Any:
    """Return a reference to ``work`` in the object store, reused during the lifetime of
    ``work``.
    """
    ray = _ray()
    context = ray.get_runtime_context()
    connection = (context.get_job_id(), context.get_node_id())
    sent_over, reference = _sent.get(work, (None, None))
    if sent_over == connection:
        return reference
    # Serialized, because arrays read in place from the store are read-only, which compiled code
    # treats as another type.
    reference = ray.put(ray.cloudpickle.dumps(work))
    _sent[work] = (connection, reference)
    return reference


def _done(reference: list[Any], parts: Sequence[Any]) -> tuple[list[Any], Exception | None]:
    """On a worker: return results and the error that ended them. A raised or printed error would be
    logged.

    Args:
        reference: List with the reference to the work.
        parts: Arguments of the work.
    """
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        try:
            work = _loaded(reference[0])
            return [work(part) for part in parts], None
        except Exception as error:  # noqa: BLE001 (raised again by the caller)
            return [], _sendable(error).with_traceback(None)


def _loaded(reference: Any) -> Callable[[Any], Any]:
    """On a worker: return the work of a reference, which is kept until the next one."""
    key = reference.hex()
    if key in _last_work:
        return _last_work[key]
    ray = _ray()
    _last_work.clear()  # free memory before unpacking the next, which can be as large as a table
    try:
        _last_work[key] = ray.cloudpickle.loads(ray.get(reference))
    except ImportError as error:
        raise ConfigError(
            f"{error.name} is not installed on every machine of the Ray cluster. Fix: install the"
            " version that is used here."
        ) from None
    return _last_work[key]


def _sendable(error: Exception) -> Exception:
    """Return an error, or a StepError in its place if it cannot be serialized."""
    cloudpickle = _ray().cloudpickle
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:  # noqa: BLE001 (copying may raise any exception)
        return StepError.hiding(error)
    return error


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError(_NOT_INSTALLED) from None
    if not ray.is_initialized():
        raise ConfigError(
            "no Ray cluster is connected. Fix: ray.init(), or a Ray resource in Dagster."
        )
    return ray


# Must run before libraries that read these variables are loaded, in every process that computes:
# commands, steps, cluster workers. It does not run in processes that only import the package, whose
# environment belongs to the host.
share_cores()
