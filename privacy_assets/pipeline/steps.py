"""Steps of a table, declared once.

``privacy-assets run``, stored runs, Dagster assets and Airflow tasks derive from this list. A new
step is one entry here and one function in :mod:`privacy_assets.pipeline.work`; its texts are in
``airflow/task_group.py`` and ``dagster/assets.py``. A value of a new class needs an entry in
``pipeline/values.py``, and a new kind of signed record one in ``gate/statements.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from privacy_assets.errors import ConfigError, PrivacyAssetsError
from privacy_assets.infra.host import isolated
from privacy_assets.pipeline import work
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.work import Attested, StepResult, TableRun

Names = Callable[[ResolvedTable], tuple[str, ...]]
Work = Callable[[TableRun, str, Mapping[str, Any]], StepResult]
ATTEST, PUBLISH = "attest", "publish"


@dataclass(frozen=True)
class Step:
    """One step of the pipeline.

    Attributes:
        verb: Name in commands, Airflow and Dagster.
        work: Function that executes the step. Arguments: the run, the task name, and the input
            values by name.
        makes: Maps a table to the names of the values that the step creates (in Dagster: asset
            names). If it returns none, the table has no such step.
        reads: Maps a table to the names of the values that the step reads. Names that the table
            lacks are ignored.
        accepts: Maps a table to the roles whose rows the caller may pass instead of a path.
        device: Returns True if creating the named value for a table can use an accelerator.
        one_each: Whether each value is made by a task of its own.
    """

    verb: str
    work: Work
    makes: Names
    reads: Names = lambda table: ()
    accepts: Names = lambda table: ()
    device: Callable[[ResolvedTable, str], bool] = lambda table, name: False
    one_each: bool = False


class Task(NamedTuple):
    """A step of one table.

    Attributes:
        step: The step.
        makes: Names of the values that it makes.
        reads: Names of the values that it reads.
        uses_device: Whether it can use an accelerator.
    """

    step: Step
    makes: tuple[str, ...]
    reads: tuple[str, ...]
    uses_device: bool

    @property
    def name(self) -> str:
        """Verb of the step, or the name of the metric for a score."""
        return self.makes[0] if self.step.one_each else self.step.verb

    @isolated()
    def run(self, run: TableRun, values: Mapping[str, Any]) -> StepResult:
        """Run the step, while its run holds the lock of the table.

        The lock is freed after publication, a refused verdict or an error.

        Args:
            run: Table, partition, deployment and device.
            values: Values by name, at least those that the task reads.

        Returns:
            The result of the step.

        Raises:
            TableBusy: If another run of the table is in progress.
        """
        with run.lease.held(run.ended):
            result = self.step.work(run, self.name, {name: values[name] for name in self.reads})
        refused = isinstance(result.shown, Attested) and result.shown.stated.verdict != "pass"
        if refused or self.step.verb == PUBLISH:
            run.lease.free()
        return result


def _fits_network(table: ResolvedTable, name: str) -> bool:
    return "torch" in table.generator.modules


def _measures_on_device(table: ResolvedTable, name: str) -> bool:
    return table.uses_embedder(table.metrics[name]) or table.metrics[name].uses_device


STEPS = (
    Step(
        "read",
        work.read,
        lambda t: () if t.external else ("source",),
        accepts=lambda t: ("source",),
    ),
    Step("split", work.split, lambda t: t.roles, lambda t: ("source",), accepts=lambda t: t.roles),
    Step(
        "embed",
        work.embed,
        lambda t: ("embedder",) if t.embeds else (),
        lambda t: t.roles,
        device=lambda t, name: True,
    ),
    Step(
        "fit",
        work.fit,
        lambda t: () if t.external else ("generator",),
        lambda t: ("train",),
        device=_fits_network,
    ),
    Step(
        "sample",
        work.sample,
        lambda t: ("synthetic",),
        lambda t: (*(t.roles if t.filters else ("train",)), "generator"),
        accepts=lambda t: ("synthetic",),
    ),
    Step(
        "prepare",
        work.prepare,
        lambda t: ("evaluation_inputs",),
        lambda t: (*t.roles, "synthetic", "embedder"),
        device=lambda t, name: t.embeds,
    ),
    Step(
        "score",
        work.score,
        lambda t: tuple(t.metrics),
        lambda t: ("evaluation_inputs",),
        device=_measures_on_device,
        one_each=True,
    ),
    Step(
        ATTEST,
        work.attest,
        lambda t: ("attestation", "privacy_report"),
        lambda t: (*t.roles, "synthetic", "evaluation_inputs", *t.metrics),
    ),
    Step(PUBLISH, work.publish, lambda t: ("published",), lambda t: ("attestation", "synthetic")),
)


def tasks(table: ResolvedTable) -> Iterator[Task]:
    """List the tasks of a table.

    Args:
        table: Settings of the table.

    Yields:
        The tasks, in an order in which every value is made before it is read.
    """
    made: set[str] = set()
    for step in STEPS:
        names, reads = step.makes(table), tuple(name for name in step.reads(table) if name in made)
        for group in [(name,) for name in names] if step.one_each else [names] if names else []:
            yield Task(step, group, reads, step.device(table, group[0]))
        made.update(names)


def upstream(table: ResolvedTable, task: Task) -> list[Task]:
    """List the tasks whose values a task reads.

    Args:
        table: Settings of the table.
        task: One of its tasks.

    Returns:
        The upstream tasks, in order.
    """
    return [other for other in tasks(table) if set(other.makes) & set(task.reads)]


def grouped_tasks(table: ResolvedTable) -> dict[str, list[Task]]:
    """Group the tasks that an orchestrator runs together: the scores without and those with an
    accelerator.

    Args:
        table: Settings of the table.

    Returns:
        The tasks of each group, in order, by the name of the group. Groups other than those of
        scores have one task.
    """
    groups: dict[str, list[Task]] = {}
    for task in tasks(table):
        name = (
            f"{task.step.verb}_on_device"
            if task.step.one_each and task.uses_device
            else task.step.verb
        )
        groups.setdefault(name, []).append(task)
    return groups


def run_table(
    run: TableRun,
    device_for: Callable[[bool], AbstractContextManager[str]],
    during: Callable[[str], AbstractContextManager[None]],
) -> Iterator[tuple[Task, StepResult]]:
    """Run the tasks of a table in this process, with values in memory until no later task reads
    them.

    Args:
        run: Table, partition and deployment.
        device_for: Context manager with the name of a device, given whether the task can use an
            accelerator.
        during: Context manager around a task, by its name.

    Yields:
        Each task with its result, before the next task starts.

    Raises:
        ConfigError: If the caller would have to pass rows of a table.
        InputError: If a table cannot be used.
        PublicationRefused: If the gate rejects a record, or the policy does not hold.
    """
    require_paths(run.table, run.given)
    todo, values = list(tasks(run.table)), dict[str, Any]()
    for number, task in enumerate(todo, start=1):
        with during(task.name), device_for(task.uses_device) as device:
            result = task.run(replace(run, device=device), values)
        read_later = {name for later in todo[number:] for name in later.reads}
        values = {
            name: value for name, value in {**values, **result.values}.items() if name in read_later
        }
        yield task, result


def require_paths(table: ResolvedTable, given: Collection[str] = ()) -> None:
    """Raise ConfigError if the caller would have to pass rows of a table, except those of the roles
    in ``given``.
    """
    for role, row_source in table.row_sources.items():
        if row_source.kind == "given" and role not in given:
            raise ConfigError(f"table {table.name}, data: {role} must be a path here.")


@contextmanager
def timed(ended: Callable[[float | None], None]) -> Iterator[None]:
    """Pass the duration of the ``with`` block in seconds to ``ended``, or None after a
    PrivacyAssetsError.
    """
    start = time.perf_counter()
    try:
        yield
    except PrivacyAssetsError:
        ended(None)
        raise
    ended(time.perf_counter() - start)
