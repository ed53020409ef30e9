"""Where a step does its work: on a leased device, and with threads of its own or the workers of a cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg

from privacy_assets.compute.parallel import using
from privacy_assets.dagster.settings import TableSettings

GPU, RAY = "gpu", "ray"


def needed(settings: TableSettings, on_device: bool) -> set[str]:
    """Resources of a step that measures."""
    return {*([GPU] if on_device else []), *([RAY] if settings.workers == "ray" else [])}


def placed(settings: TableSettings, on_device: bool) -> dict[str, Any]:
    """Where Dagster runs a step: one that may use a device carries the table's tags.

    It is in no pool: whether there is a device is known where the step runs, and the lease is taken there.
    """
    return {"op_tags": dict(settings.gpu_tags)} if on_device else {}


@contextmanager
def device_of(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext, wanted: bool) -> Iterator[str]:
    """Lease a device when ``wanted``, else name the CPU."""
    if not wanted:
        yield "cpu"
        return
    with context.resources.gpu.lease(context.log) as device:
        yield str(device)


@contextmanager
def workers_of(settings: TableSettings) -> Iterator[None]:
    """Measure with the workers of the table; the resource ``ray`` has connected this process by now."""
    if settings.workers == "local":
        yield
        return
    from privacy_assets.compute.on_ray import RayWorkers

    with using(RayWorkers()):
        yield
