"""Steps of a table, declared once.

``privacy-assets run``, stored runs, Dagster assets and Airflow tasks derive from this list. A new
step is one entry here, one function in :mod:`privacy_assets.pipeline.work` and one class in
:mod:`privacy_assets.pipeline.results`; its texts are in ``airflow/task_group.py`` and
``dagster/assets.py``. A value of a new class needs an entry in ``pipeline/values.py``, and a new
kind of signed file one in ``gate/envelope.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from privacy_assets.errors import ConfigError, PrivacyAssetsError, StepError
from privacy_assets.infra.host import isolated
from privacy_assets.pipeline import work
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.results import AttestResult, PublishResult, StepResult
from privacy_assets.pipeline.work import TableRun

Names = Callable[[ResolvedTable], tuple[str, ...]]
Work = Callable[[TableRun, str, Mapping[str, Any]], StepResult]
ATTEST = "attest"
PUBLISH = "publish"


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
        if self.step.one_each:
            return self.makes[0]
        return self.step.verb

    @isolated()
    def run(self, run: TableRun, values: Mapping[str, Any]) -> StepResult:
        """Run the step, while its run holds the run lease of the table.

        The lease is freed after publication, a verdict other than "pass" or an error.

        Args:
            run: Table, partition, deployment and device.
            values: Values by name, at least those that the task reads.

        Returns:
            The result of the step.

        Raises:
            TableBusy: If another run of the table is in progress.
        """
        run.gate.check_folders()  # the lease is a file in them; first use creates them and the keys
        with run.lease.held(run.ended):
            read_values = {name: values[name] for name in self.reads}
            result = self._work(run, read_values)
        if _ends_run(result):
            run.lease.free()
        return result

    def _work(self, run: TableRun, values: Mapping[str, Any]) -> StepResult:
        """Do the work of the step. Foreign code that ends the process fails it."""
        try:
            return self.step.work(run, self.name, values)
        except SystemExit as error:
            failure = StepError.hiding(error)
        # outside of the handler, because the exception may contain private values
        raise failure


def _ends_run(result: StepResult) -> bool:
    """Return True after publication, and after a verdict that blocks it."""
    match result:
        case AttestResult():
            return result.attestation.verdict != "pass"
        case PublishResult():
            return True
        case _:
            return False


def _constant(*names: str) -> Names:
    """Return a function that returns these names for every table."""
    return lambda table: names


def _unless_external(name: str) -> Names:
    """Return a function that returns the name for tables whose rows a generator creates."""
    return lambda table: () if table.external else (name,)


def _roles(table: ResolvedTable) -> tuple[str, ...]:
    return table.roles


def _embedder(table: ResolvedTable) -> tuple[str, ...]:
    if table.embeds:
        return ("embedder",)
    return ()


def _sampled_from(table: ResolvedTable) -> tuple[str, ...]:
    if table.filters:  # they compare with all real rows
        return (*table.roles, "generator")
    return ("train", "generator")


def _prepared_from(table: ResolvedTable) -> tuple[str, ...]:
    return (*table.roles, "synthetic", "embedder")


def _metric_names(table: ResolvedTable) -> tuple[str, ...]:
    return tuple(table.metrics)


def _attested(table: ResolvedTable) -> tuple[str, ...]:
    return (*table.roles, "synthetic", "evaluation_inputs", *table.metrics)


def _always(table: ResolvedTable, name: str) -> bool:
    return True


def _embeds(table: ResolvedTable, name: str) -> bool:
    return table.embeds


def _fits_network(table: ResolvedTable, name: str) -> bool:
    return "torch" in table.generator.modules


def _measures_on_device(table: ResolvedTable, name: str) -> bool:
    metric = table.metrics[name]
    return table.uses_embedder(metric) or metric.uses_device


STEPS = (
    Step(
        "read",
        work.read,
        makes=_unless_external("source"),
        accepts=_constant("source"),
    ),
    Step(
        "split",
        work.split,
        makes=_roles,
        reads=_constant("source"),
        accepts=_roles,
    ),
    Step(
        "embed",
        work.embed,
        makes=_embedder,
        reads=_roles,
        device=_always,
    ),
    Step(
        "fit",
        work.fit,
        makes=_unless_external("generator"),
        reads=_constant("train"),
        device=_fits_network,
    ),
    Step(
        "sample",
        work.sample,
        makes=_constant("synthetic"),
        reads=_sampled_from,
        accepts=_constant("synthetic"),
    ),
    Step(
        "prepare",
        work.prepare,
        makes=_constant("evaluation_inputs"),
        reads=_prepared_from,
        device=_embeds,
    ),
    Step(
        "score",
        work.score,
        makes=_metric_names,
        reads=_constant("evaluation_inputs"),
        device=_measures_on_device,
        one_each=True,
    ),
    Step(
        ATTEST,
        work.attest,
        makes=_constant("attestation", "privacy_report"),
        reads=_attested,
    ),
    Step(
        PUBLISH,
        work.publish,
        makes=_constant("published"),
        reads=_constant("attestation", "synthetic"),
    ),
)


def tasks(table: ResolvedTable) -> Iterator[Task]:
    """List the tasks of a table.

    Args:
        table: Settings of the table.

    Yields:
        The tasks, in an order in which every value is made before it is read.
    """
    available: set[str] = set()
    for step in STEPS:
        names = step.makes(table)
        reads = tuple(name for name in step.reads(table) if name in available)
        for group in _by_task(step, names):
            uses_device = step.device(table, group[0])
            yield Task(step, group, reads, uses_device)
        available.update(names)


def _by_task(step: Step, names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the names of the values that each task of a step makes."""
    if step.one_each:
        return [(name,) for name in names]
    if not names:
        return []
    return [names]


def upstream(table: ResolvedTable, task: Task) -> list[Task]:
    """List the tasks whose values a task reads.

    Args:
        table: Settings of the table.
        task: One of its tasks.

    Returns:
        The upstream tasks, in order.
    """
    reads = set(task.reads)
    return [earlier for earlier in tasks(table) if not reads.isdisjoint(earlier.makes)]


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
        name = task.step.verb
        if task.step.one_each and task.uses_device:
            name = f"{name}_on_device"
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
        PublicationBlocked: If the gate rejects a signed file, or the policy does not hold.
    """
    require_paths(run.table, run.passed_rows)
    all_tasks = list(tasks(run.table))
    values: dict[str, Any] = {}
    for number, task in enumerate(all_tasks, start=1):
        with during(task.name), device_for(task.uses_device) as device:
            result = task.run(replace(run, device=device), values)
        values.update(result.values)
        values = _read_by(all_tasks[number:], values)
        yield task, result


def _read_by(later_tasks: Sequence[Task], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that one of the tasks reads."""
    read_names: set[str] = set()
    for task in later_tasks:
        read_names.update(task.reads)
    return {name: value for name, value in values.items() if name in read_names}


def require_paths(table: ResolvedTable, passed_roles: Collection[str] = ()) -> None:
    """Require that the caller needs to pass no further rows.

    Args:
        table: Settings of the table.
        passed_roles: Roles whose rows the caller passes.

    Raises:
        ConfigError: If the caller would have to pass the rows of another role.
    """
    for role, row_source in table.row_sources.items():
        if row_source.kind == "given" and role not in passed_roles:
            raise ConfigError(f"table {table.name}, data: {role} must be a path here.")


@contextmanager
def timed(ended: Callable[[float | None], None]) -> Iterator[None]:
    """Measure the duration of the ``with`` block.

    Args:
        ended: Called with the duration in seconds, or with None after a PrivacyAssetsError.
    """
    start = time.perf_counter()
    try:
        yield
    except PrivacyAssetsError:
        ended(None)
        raise
    ended(time.perf_counter() - start)
