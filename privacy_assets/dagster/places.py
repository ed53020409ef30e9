"""Of which table and partition a step works: the one place that decides what of a run's tags is believed.

Anybody who may launch a run writes its tags. What the gate remembers (attempts, failures, releases) it remembers by
place, so a key that was made up, or spelt in another way, would be a place without a past.
"""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg
from dagster._core.errors import DagsterInvalidPropertyError

from privacy_assets.compute.progress import Lines
from privacy_assets.dagster.settings import TableSettings
from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.statements import Place
from privacy_assets.pipeline.row_sources import Window
from privacy_assets.pipeline.steps import Steps

_KEY = "dagster/partition"
_PARTITIONED = (f"{_KEY}/", "dagster/asset_partition_range_")  # dimensions of a key, ends of a range
Context = dg.AssetExecutionContext | dg.AssetCheckExecutionContext


def place_of(context: Context, settings: TableSettings) -> Place:
    """Table and partition of this step, to be asked for before anything is read, signed or shown.

    The partition is the one that the run's tags name: exactly one, known to the definition of the table, and spelt as
    there. PublicationRefused for any other tags, and for any on a table without partitions.
    """
    asked = {name: value for name, value in _tags(context).items() if name == _KEY or name.startswith(_PARTITIONED)}
    definition, where = settings.partitions_def, f"table {settings.name}"
    if definition is None:
        if asked:
            fix = "launch it without partition tags, apart from partitioned assets"
            raise PublicationRefused(f"{where} has no partitions, and this run asks for one. Fix: {fix}.")
        return Place(settings.name)
    key = asked.get(_KEY)
    if key is None:
        raise PublicationRefused(f"{where}: the gate works on one partition a run. Fix: launch one run a partition.")
    with dg.partition_loading_context(dynamic_partitions_store=context.instance):
        known = definition.has_partition_key(key)
    if not known or not asked.items() <= definition.get_tags_for_partition_key(key).items():
        fix = "take the key as the definition spells it, and no other partition tags"
        raise PublicationRefused(f"{where}: there is no such partition as the tags of this run name. Fix: {fix}.")
    return Place(settings.name, key)


def _tags(context: Context) -> Mapping[str, str]:
    """Tags of the run; of a step that is called directly, without a run, what its context says."""
    try:
        return context.run.tags
    except DagsterInvalidPropertyError:
        return {_KEY: context.partition_key} if context.has_partition_key else {}


def window_of(place: Place, settings: TableSettings) -> Window | None:
    """The time window of the partition, when partitions are windows of time."""
    if place.partition is None or not isinstance(settings.partitions_def, dg.TimeWindowPartitionsDefinition):
        return None
    window = settings.partitions_def.time_window_for_partition_key(place.partition)
    return window.start, window.end


def steps_of(context: Context, settings: TableSettings) -> Steps:
    """The steps of the table and partition that this one is of, in the deployment of the resource ``releases``."""
    place = place_of(context, settings)
    deployment = context.resources.releases.deployment
    return Steps(settings, deployment, place, window_of(place, settings), Lines(context.log.info))
