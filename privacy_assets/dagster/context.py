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
from privacy_assets.gate.statements import ReleaseTarget
from privacy_assets.infra.parallel import using
from privacy_assets.infra.progress import Lines
from privacy_assets.pipeline.partitions import check_key
from privacy_assets.pipeline.row_sources import Window
from privacy_assets.pipeline.work import TableRun

_KEY = "dagster/partition"
# dimensions of a key, bounds of a range
_PARTITIONED = (f"{_KEY}/", "dagster/asset_partition_range_")
Context = dg.AssetExecutionContext | dg.AssetCheckExecutionContext | dg.OpExecutionContext


def target_of(context: Context, table: DagsterTable) -> ReleaseTarget:
    """Return table and partition of this step. Call it before reading, signing or displaying data.

    Raises:
        WrongTarget: If the tags do not name exactly one partition of the table, spelled as in its
            definition, or name a partition of an unpartitioned table.
    """
    asked = {
        name: value
        for name, value in _tags(context).items()
        if name == _KEY or name.startswith(_PARTITIONED)
    }
    definition, where = table.partitions_def, f"table {table.name}"
    if definition is None:
        if asked:
            raise WrongTarget(f"{where} has no partitions, and the tags of this run name one")
        return ReleaseTarget(table.name)
    key = asked.get(_KEY)
    if key is None:
        raise WrongTarget(
            f"{where} has partitions, and the tags of this run do not name exactly one"
        )
    with dg.partition_loading_context(dynamic_partitions_store=context.instance):
        known = definition.has_partition_key(key)
    if not known or not asked.items() <= definition.get_tags_for_partition_key(key).items():
        raise WrongTarget(f"{where}: there is no such partition as the tags of this run name")
    check_key(key)
    return ReleaseTarget(table.name, key)


def _tags(context: Context) -> Mapping[str, str]:
    """Return the tags of the run. If the step was called without a run, return the partition of its
    context.
    """
    try:
        return context.run.tags
    except dg.DagsterError:
        return {_KEY: context.partition_key} if context.has_partition_key else {}


def window_of(target: ReleaseTarget, table: DagsterTable) -> Window | None:
    """Return start and end of the partition, or None if partitions are not time windows."""
    if target.partition is None or not isinstance(
        table.partitions_def, dg.TimeWindowPartitionsDefinition
    ):
        return None
    window = table.partitions_def.time_window_for_partition_key(target.partition)
    return window.start, window.end


def run_of(context: Context, table: DagsterTable) -> TableRun:
    """Return the run of this step's table and partition, in the deployment of the resource
    ``releases``.
    """
    target = target_of(context, table)
    deployment = context.resources.releases.deployment
    window, scratch = window_of(target, table), home_of(context.instance)
    try:
        # a re-execution belongs to the same run
        run_id = context.run.root_run_id or context.run.run_id
    # the step was called without a run; calls of one process belong together
    except dg.DagsterError:
        run_id = f"{socket.gethostname()}/{os.getpid()}"
    ended = partial(has_ended, context.instance)
    lines = Lines(context.log.info)
    return TableRun(
        table.resolved,
        deployment,
        target,
        window,
        lines,
        scratch=scratch,
        run_id=run_id,
        ended=ended,
    )


def has_ended(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Return True if a run and all of its re-executions are finished, or False if there is no such
    run.
    """
    again = instance.get_runs(dg.RunsFilter(tags={"dagster/root_run_id": run_id}))
    runs = [run for run in (instance.get_run_by_id(run_id), *again) if run is not None]
    return bool(runs) and all(run.is_finished for run in runs)


GPU, RAY = "gpu", "ray"


def resource_keys(table: DagsterTable, on_device: bool, *, measures: bool = True) -> set[str]:
    """Return the resources that a step requires for a device and, if it runs metrics, for
    workers.
    """
    return {
        *([GPU] if on_device else []),
        *([RAY] if table.resolved.spec.run.workers == "ray" and measures else []),
    }


def op_tags(table: DagsterTable, on_device: bool) -> dict[str, Any]:
    """Return the op tags of a step, which select where Dagster runs it.

    No concurrency pool is used, because only the machine that runs the step knows its devices and
    leases them.
    """
    return {"op_tags": dict(table.gpu_tags)} if on_device else {}


@contextmanager
def device_of(context: Context, wanted: bool) -> Iterator[str]:
    """Lease a device for the ``with`` block if ``wanted``, and yield its name; otherwise yield
    "cpu".
    """
    if not wanted:
        yield "cpu"
        return
    with context.resources.gpu.lease(context.log) as device:
        yield str(device)


@contextmanager
def workers_of(table: DagsterTable, *, measures: bool = True) -> Iterator[None]:
    """Use the workers of the table in the ``with`` block, if the step measures something.

    The resource ``ray`` has already connected this process.
    """
    if table.resolved.spec.run.workers == "local" or not measures:
        yield
        return
    from privacy_assets.infra.parallel import RayWorkers

    with using(RayWorkers()):
        yield
