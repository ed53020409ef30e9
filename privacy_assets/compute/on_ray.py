"""The engine's parallel work on a Ray cluster. Imports ray where it is used: it is the extra ``ray``.

Work is sent as Ray tasks: what all parts share lies in the object store once, and tasks of a worker or a machine that
is lost are done again elsewhere. A task takes one CPU and sees no device, so that one leased by ``GpuResource`` is
never used by anybody else.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from privacy_assets.compute.parallel import using
from privacy_assets.errors import ClusterError, ConfigError, StepError, shown

_Part = TypeVar("_Part")
_Done = TypeVar("_Done")

_ABSENT = "Ray is not installed. Fix: pip install 'privacy-assets[ray]'."
_CLIENT_PORT = "10001"
_HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}  # with no GPU asked for, Ray shows them all
_SHARES = 4  # tasks a worker, so that the slowest one has little left to do in the end
_known: dict[str, Callable[[Any], Any]] = {}  # on a worker: the last work, by its reference
_sent: WeakKeyDictionary[Callable[[Any], Any], tuple[tuple[str, str], Any]] = WeakKeyDictionary()  # connection, work


@dataclass(frozen=True)
class RayWorkers:
    """The workers of the Ray cluster that this process is connected to (``ray.init``): one for each CPU.

    ``retries`` of a task whose worker or machine was lost; after that ClusterError. The package, and the module of a
    generator of your own, must be installed on every machine, in the same versions.
    """

    retries: int = 3

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ConfigError("RayWorkers: retries must be at least 0.")

    @property
    def count(self) -> int:
        """Tasks that the cluster does at once, at least 1; ConfigError when no cluster is connected."""
        return max(1, int(_ray().cluster_resources().get("CPU", 0)))

    def run(self, work: Callable[[_Part], _Done], parts: Sequence[_Part]) -> list[_Done]:
        """Results of ``work`` on each part, in order; ``work`` and parts are sent to the workers.

        An error of ``work`` is raised here as it is, or, when it cannot be sent, as a StepError that hides what it
        says; it stands in no log of the cluster, and neither does what the work prints. ClusterError when parts were
        lost with their machines more often than ``retries``, or the store is full.
        """
        ray = _ray()
        size = max(1, -(-len(parts) // (_SHARES * self.count)))
        blocks = [parts[start : start + size] for start in range(0, len(parts), size)]
        task = _task().options(max_retries=self.retries, scheduling_strategy="SPREAD", name="privacy-assets")
        results: list[_Done] = []
        try:
            held = [_send(work)]
            for one in [task.remote(held, block) for block in blocks]:
                found, problem = ray.get(one)
                if problem is not None:
                    raise problem  # what still runs ends by itself: to cancel tasks that just end can kill this process
                results += found
        except ray.exceptions.RayTaskError as error:
            raise ClusterError(f"a worker of the Ray cluster failed ({type(error.cause).__name__}).") from None
        except ray.exceptions.RayError as error:
            raise ClusterError(f"work was lost on the Ray cluster ({type(error).__name__}).") from None
        return results


@contextmanager
def on_ray(address: str | None = None) -> Iterator[RayWorkers]:
    """Measure on the Ray cluster at ``address`` in the ``with`` block, and disconnect after it.

    "auto" is the one that runs on this machine, None (and "local") starts one here. A connection that is there already
    is used and kept. ConfigError when there is no such cluster.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError(_ABSENT) from None
    own = not ray.is_initialized()
    if own:
        try:
            _knock("local" if address is None else address)
            ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, ValueError, RuntimeError):
            known = "auto, local, HOST:PORT or ray://HOST:PORT"
            raise ConfigError(f"there is no Ray cluster at {shown(address)}. Fix: give {known}.") from None
    try:
        workers = RayWorkers()
        with using(workers):
            yield workers
    finally:
        if own:
            ray.shutdown()


def _knock(address: str) -> None:
    """OSError or ValueError when nobody listens at a host and port: Ray itself would go on trying for minutes."""
    if not address:
        raise ValueError("an empty address")
    client = address.startswith("ray://")
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if client and not colon:
        host, colon, port = port, ":", _CLIENT_PORT
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


@cache
def _task() -> Any:
    return _ray().remote(num_cpus=1, num_gpus=0, runtime_env={"env_vars": _HIDDEN})(_done)


def _send(work: Callable[[Any], Any]) -> Any:
    """A reference to ``work`` in the object store, the same as long as the work lives."""
    ray = _ray()
    context = ray.get_runtime_context()
    connection = context.get_job_id(), context.get_node_id()
    if _sent.get(work, (None, None))[0] != connection:
        # As bytes: arrays that workers read out of the store in place could not be written to, and compiled code takes
        # those for another type.
        _sent[work] = connection, ray.put(ray.cloudpickle.dumps(work))
    return _sent[work][1]


def _done(held: list[Any], parts: Sequence[Any]) -> tuple[list[Any], Exception | None]:
    """On a worker: the results for some parts, and the error that ended them: raised or printed, it would be logged."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        try:
            work = _loaded(held[0])
            return [work(part) for part in parts], None
        except Exception as error:  # noqa: BLE001 (raised again where it was asked for)
            return [], _sendable(error).with_traceback(None)


def _loaded(reference: Any) -> Callable[[Any], Any]:
    key = reference.hex()
    if key not in _known:
        ray = _ray()
        _known.clear()  # before the next is unpacked: each can be as large as a table
        try:
            _known[key] = ray.cloudpickle.loads(ray.get(reference))
        except ImportError as error:
            where = f"{error.name} is not installed on every machine of the Ray cluster"
            raise ConfigError(f"{where}. Fix: install it there, in the version that is used here.") from None
    return _known[key]


def _sendable(error: Exception) -> Exception:
    cloudpickle = _ray().cloudpickle
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:  # noqa: BLE001 (whatever an exception of others does when it is copied)
        return StepError.hiding(error)
    return error


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError(_ABSENT) from None
    if not ray.is_initialized():
        raise ConfigError("no Ray cluster is connected. Fix: ray.init(), or a Ray resource in Dagster.")
    return ray
