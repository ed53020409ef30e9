"""The engine's parallel work on a Ray cluster. Imports ray where it is used: it is the extra ``ray``.

Work is sent as Ray tasks: what all parts share lies in the object store once, tasks of a worker or a machine that is
lost are done again elsewhere, and a task takes the CPUs that it declares and no GPU, so that a device leased by
``GpuResource`` is never given to anybody else.
"""

from __future__ import annotations

import logging
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from privacy_assets.engine.parallel import using
from privacy_assets.errors import ClusterError, ConfigError

_Part = TypeVar("_Part")
_Done = TypeVar("_Done")

_ABSENT = "Ray is not installed. Fix: pip install 'privacy-assets[ray]'."
_SHARES = 4  # tasks a worker, so that the slowest one has little left to do in the end
_KEPT = 2  # pieces of work that a worker remembers
_known: OrderedDict[str, Callable[[Any], Any]] = OrderedDict()  # on a worker
_sent: WeakKeyDictionary[Callable[[Any], Any], tuple[str, Any]] = WeakKeyDictionary()  # here: connection, reference


@dataclass(frozen=True)
class RayWorkers:
    """The workers of the Ray cluster that this process is connected to (``ray.init``).

    ``cpus`` a task reserves, ``retries`` of a task whose worker or machine was lost; after that ClusterError. The
    package must be installed on every machine, in the same version.
    """

    cpus: float = 1.0
    retries: int = 3

    def __post_init__(self) -> None:
        if not self.cpus > 0 or self.retries < 0:
            raise ConfigError("RayWorkers: cpus must be above 0, retries at least 0.")

    @property
    def count(self) -> int:
        """Tasks that the cluster does at once, at least 1; ConfigError when no cluster is connected."""
        return max(1, int(_ray().cluster_resources().get("CPU", 0) / self.cpus))

    def run(self, work: Callable[[_Part], _Done], parts: Sequence[_Part]) -> list[_Done]:
        """Results of ``work`` on each part, in order.

        An error of ``work`` is raised here as it is, and stands in no log of the cluster. ClusterError when parts were
        lost with their machines more often than ``retries``.
        """
        ray, held = _ray(), _send(work)
        task = ray.remote(
            num_cpus=self.cpus,
            num_gpus=0,
            max_retries=self.retries,
            scheduling_strategy="SPREAD",
            name="privacy-assets",
        )(_done)
        size = -(-len(parts) // (_SHARES * self.count))
        asked = [task.remote([held], parts[start : start + size]) for start in range(0, len(parts), size)]
        results: list[_Done] = []
        try:
            for one in asked:
                found, problem = ray.get(one)
                if problem is not None:
                    raise problem
                results += found
        except ray.exceptions.RayError as error:
            raise ClusterError(f"work was lost on the Ray cluster ({type(error).__name__}).") from None
        finally:
            if len(results) < len(parts):
                for one in asked:
                    ray.cancel(one)
        return results


@contextmanager
def on_ray(address: str | None = None, cpus: float = 1.0) -> Iterator[RayWorkers]:
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
            _knock(address or "")
            ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"no Ray cluster at {address!r} ({type(error).__name__}).") from None
    try:
        workers = RayWorkers(cpus)
        with using(workers):
            yield workers
    finally:
        if own:
            ray.shutdown()


def _knock(address: str) -> None:
    """OSError when nobody listens at a host and port: Ray itself would go on trying for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _send(work: Callable[[Any], Any]) -> Any:
    """A reference to ``work`` in the object store, the same as long as the work lives."""
    ray = _ray()
    job = ray.get_runtime_context().get_job_id()
    if _sent.get(work, ("", None))[0] != job:
        # As bytes: arrays that workers read out of the store in place could not be written to, and compiled code takes
        # those for another type.
        _sent[work] = job, ray.put(ray.cloudpickle.dumps(work))
    return _sent[work][1]


def _done(held: list[Any], parts: Sequence[Any]) -> tuple[list[Any], Exception | None]:
    """On a worker: the results for some parts, and the error that ended them (raised here, it would go into logs)."""
    key = held[0].hex()
    if key not in _known:
        ray = _ray()
        _known[key] = ray.cloudpickle.loads(ray.get(held[0]))
        while len(_known) > _KEPT:
            _known.popitem(last=False)
    _known.move_to_end(key)
    try:
        return [_known[key](part) for part in parts], None
    except Exception as error:  # noqa: BLE001 (raised again where it was asked for)
        return [], error.with_traceback(None)


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError(_ABSENT) from None
    if not ray.is_initialized():
        raise ConfigError("no Ray cluster is connected. Fix: ray.init(), or a Ray resource in Dagster.")
    return ray
