"""Table and partition of a step, from the validated tags of its run.

Any user who can launch a run can write its tags. The gate records attempts, failures and releases
by table and partition, so an invented or differently spelled partition key would have no history.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import dagster as dg

from privacy_assets.dagster.resources import home_of
from privacy_assets.dagster.table import DagsterTable
from privacy_assets.errors import WrongTarget
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.infra.parallel import using
from privacy_assets.infra.progress import Lines
from privacy_assets.pipeline.partitions import check_key
from privacy_assets.pipeline.row_sources import Window
from privacy_assets.pipeline.work import TableRun

_KEY = "dagster/partition"
# dimensions of a key, bounds of a range
_PREFIXES = (f"{_KEY}/", "dagster/asset_partition_range_")
GPU = "gpu"
RAY = "ray"
Context = dg.AssetExecutionContext | dg.AssetCheckExecutionContext | dg.OpExecutionContext


def target_of(context: Context, table: DagsterTable) -> ReleaseTarget:
    """Return table and partition of this step. Call it before reading, signing or displaying data.

    Args:
        context: Context of the step.
        table: Table of the step.

    Raises:
        WrongTarget: If the tags do not name exactly one partition of the table, spelled as in its
            definition, or name a partition of an unpartitioned table.
    """
    where = f"table {table.name}"
    tags = _partition_tags(context)
    definition = table.partitions_def
    if definition is None:
        if tags:
            raise WrongTarget(f"{where} has no partitions, and the tags of this run name one")
        return ReleaseTarget(table.name)
    key = tags.get(_KEY)
    if key is None:
        raise WrongTarget(
            f"{where} has partitions, and the tags of this run do not name exactly one"
        )
    with dg.partition_loading_context(dynamic_partitions_store=context.instance):
        has_key = definition.has_partition_key(key)
    if not has_key or not tags.items() <= definition.get_tags_for_partition_key(key).items():
        raise WrongTarget(f"{where}: there is no such partition as the tags of this run name")
    check_key(key)
    return ReleaseTarget(table.name, key)


def _partition_tags(context: Context) -> dict[str, str]:
    """Return the tags of the run that name partitions."""
    tags = {}
    for name, value in _tags(context).items():
        if name == _KEY or name.startswith(_PREFIXES):
            tags[name] = value
    return tags


def _tags(context: Context) -> Mapping[str, str]:
    """Return the tags of the run. If the step was called without a run, return the partition of its
    context.
    """
    try:
        return context.run.tags
    except dg.DagsterError:
        if not context.has_partition_key:
            return {}
        return {_KEY: context.partition_key}


def window_of(target: ReleaseTarget, table: DagsterTable) -> Window | None:
    """Return start and end of the partition, or None if partitions are not time windows.

    Args:
        target: Table and partition.
        table: Table with its partitions.
    """
    definition = table.partitions_def
    if target.partition is None or not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return None
    window = definition.time_window_for_partition_key(target.partition)
    return window.start, window.end


def run_of(context: Context, table: DagsterTable) -> TableRun:
    """Return the run of this step's table and partition, in the deployment of the resource
    ``releases``.

    Args:
        context: Context of the step.
        table: Table of the step.

    Raises:
        WrongTarget: As :func:`target_of`.
    """
    target = target_of(context, table)
    return TableRun(
        table.resolved,
        context.resources.releases.deployment,
        target,
        window=window_of(target, table),
        scratch=home_of(context.instance),
        run_id=_run_id(context),
        ended=partial(has_ended, context.instance),
        progress=Lines(context.log.info),
    )


def _run_id(context: Context) -> str:
    """Return the id of the first run of this step: a re-execution belongs to the same run."""
    try:
        return context.run.root_run_id or context.run.run_id
    except dg.DagsterError:
        # the step was called without a run; calls of one process belong together
        return f"{socket.gethostname()}/{os.getpid()}"


def has_ended(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Return True if a run and all of its re-executions are finished, or False if there is no such
    run.

    Args:
        instance: Dagster instance that stores the runs.
        run_id: Id of the first run.
    """
    reexecutions = dg.RunsFilter(tags={"dagster/root_run_id": run_id})
    runs = list(instance.get_runs(reexecutions))
    first_run = instance.get_run_by_id(run_id)
    if first_run is not None:
        runs.append(first_run)
    return bool(runs) and all(run.is_finished for run in runs)


def resource_keys(table: DagsterTable, uses_device: bool, *, measures: bool = True) -> set[str]:
    """Return the resources that a step requires for a device and, if it runs metrics, for workers.

    Args:
        table: Table of the step.
        uses_device: Whether the step can use an accelerator.
        measures: Whether the step runs metrics.
    """
    keys = set()
    if uses_device:
        keys.add(GPU)
    if measures and table.resolved.spec.run.workers == "ray":
        keys.add(RAY)
    return keys


def op_tags(table: DagsterTable, uses_device: bool) -> dict[str, Any]:
    """Return the op tags of a step, which select where Dagster runs it.

    No concurrency pool is used, because only the machine that runs the step knows its devices and
    leases them.

    Args:
        table: Table of the step.
        uses_device: Whether the step can use an accelerator.

    Returns:
        An argument of Dagster's decorators by its name, or an empty mapping.
    """
    if not uses_device:
        return {}
    return {"op_tags": dict(table.gpu_tags)}


@contextmanager
def device_of(context: Context, uses_device: bool) -> Iterator[str]:
    """Lease a device for the ``with`` block.

    Args:
        context: Context of the step.
        uses_device: Whether the step can use an accelerator. Otherwise, nothing is leased.

    Yields:
        Name of the device, or "cpu".
    """
    if not uses_device:
        yield "cpu"
        return
    with context.resources.gpu.lease(context.log) as device:
        yield str(device)


@contextmanager
def workers_of(table: DagsterTable, *, measures: bool = True) -> Iterator[None]:
    """Use the workers of the table in the ``with`` block, if the step measures something.

    The resource ``ray`` has already connected this process.

    Args:
        table: Table of the step.
        measures: Whether the step runs metrics.
    """
    if table.resolved.spec.run.workers == "local" or not measures:
        yield
        return
    from privacy_assets.infra.parallel import RayWorkers

    with using(RayWorkers()):
        yield
