"""One table for all its tasks: its settings, the deployment, and of which partition a run is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privacy_assets.airflow.deployment import GateDeployment
from privacy_assets.compute.progress import Lines
from privacy_assets.errors import PublicationRefused, door
from privacy_assets.gate.statements import Place
from privacy_assets.pipeline.partitions import KeyPartitions, Partitions, as_partitions
from privacy_assets.pipeline.plan import TablePlan
from privacy_assets.pipeline.spec import TableSpec, spec_of
from privacy_assets.pipeline.steps import Steps
from privacy_assets.pipeline.stored_steps import StoredSteps

if TYPE_CHECKING:
    from airflow.sdk import Context

_FILES = (".yaml", ".yml")


@dataclass(frozen=True, eq=False, repr=False)
class GatedTable:
    """The settings of one table, checked when the DAG is parsed.

    Its text is the name alone: of what a mapped task was given Airflow keeps the text.
    """

    spec: TableSpec
    deployment: GateDeployment
    partitions: Partitions | None = None

    @classmethod
    @door
    def of(
        cls,
        table: GatedTable | TableSpec | str | Path,
        deployment: GateDeployment | str | Path | None = None,
        partitions: Any = None,
        **short: Any,
    ) -> GatedTable:
        """From a spec, the path of its YAML file, or a name and the ``short`` settings; ConfigError for a mistake."""
        if isinstance(table, GatedTable):
            return table
        if isinstance(table, Path) or (isinstance(table, str) and table.endswith(_FILES)):
            table = TableSpec.load(table)
        made = cls(spec_of(table, **short), GateDeployment.of(deployment), as_partitions(partitions))
        _ = made.plan  # the checks of all settings together
        return made

    def __str__(self) -> str:
        return self.spec.name

    __repr__ = __str__

    @cached_property
    def plan(self) -> TablePlan:
        """What the pipeline is made of."""
        return TablePlan.of(self.spec, partitioned=self.partitions is not None)

    def place(self, context: Context) -> Place:
        """Table and partition of this run; PublicationRefused for a run of no partition that there is.

        Whoever triggers a run chooses its partition key and logical date, and the gate remembers by place: so a key is
        one that the DAG knows, in one spelling.
        """
        if self.partitions is None:
            return Place(self.spec.name)
        asked: Mapping[str, Any] = context  # what versions before 3.2 do not have
        key, when = asked.get("partition_key"), asked.get("partition_date")
        if not isinstance(self.partitions, KeyPartitions):
            when = when or (None if key else asked.get("data_interval_start") or asked.get("logical_date"))
            key = self.partitions.of(when) if isinstance(when, datetime) else key
        if not isinstance(key, str):
            fix = "trigger it with a partition key, or let an asset or a timetable with partitions do so"
            raise PublicationRefused(f"table {self.spec.name}: this run is of no partition. Fix: {fix}.")
        return Place(self.spec.name, self.partitions.check(key))

    def stored(self, context: Context, say: Callable[[str], Any]) -> StoredSteps:
        """The steps of the table and partition of this run, which keep their values in a folder of the run."""
        place, deployment = self.place(context), self.deployment.opened()
        window = None if self.partitions is None or place.partition is None else self.partitions.window(place.partition)
        steps = Steps(self.plan, deployment, place, window, Lines(say))
        run = context["dag_run"]
        return StoredSteps(steps, self.deployment.values_of(deployment), f"{run.dag_id}\0{run.run_id}")
