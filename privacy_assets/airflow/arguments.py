"""Arguments of operators that are known only when a task runs: rendered templates and mapped
values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Self

from airflow.sdk import BaseOperator
from airflow.sdk.definitions.mappedoperator import MappedOperator, OperatorPartial

from privacy_assets.airflow.deployment import table_name
from privacy_assets.airflow.outlets import NAMED_LATER, release_asset
from privacy_assets.errors import ConfigError
from privacy_assets.infra.objects import is_template

NOT_GIVEN: Any = object()  # default of templated arguments, because a mapped value can be None
_EMPTY = ("", "None")  # rendered templates without a value


def given_arguments(operator: BaseOperator, **arguments: Any) -> dict[str, Any]:
    """Return the templated arguments that were given, which must have a value when the task runs.

    Args:
        operator: The operator, in its ``__init__``.
        **arguments: Its templated arguments, of which ``NOT_GIVEN`` is the default.

    Returns:
        The arguments. None in a DAG file is an argument that is not given, but a mapped None was
        given.
    """
    # Airflow's decorators read it in this way
    is_mapped = getattr(operator, "_BaseOperator__from_mapped", False)
    passed = dict[str, Any]()
    for name, value in arguments.items():
        if value is not NOT_GIVEN and (value is not None or is_mapped):
            passed[name] = value
    return passed


def check_rendered(operator: BaseOperator, names: Iterable[str]) -> None:
    """Check the templated arguments of a task after rendering.

    Args:
        operator: The operator.
        names: Names of the arguments that were given.

    Raises:
        ConfigError: If one is None, an empty string or the string "None", or a partition is not a
            string.
    """
    for name in names:
        value = getattr(operator, name)
        argument = f"{type(operator).__name__}: {name}"
        if value is None or (isinstance(value, str) and value.strip() in _EMPTY):
            fix = f"use a value that each run has, or leave {name} out"
            raise ConfigError(f"{argument} was given, and is {value!r} in this run. Fix: {fix}.")
        if name == "partition" and not isinstance(value, str):
            fix = "use a template that renders to a string"
            raise ConfigError(
                f"{argument} is of type {type(value).__name__} in this run. Fix: {fix}."
            )


class GatePartial(OperatorPartial):
    """Result of ``partial`` of a gate. Mapping checks that no two tasks have the same table and
    partition.
    """

    @classmethod
    def of(cls, partial: OperatorPartial) -> Self:
        """Create from the result of ``BaseOperator.partial``.

        Args:
            partial: The result, which the caller no longer uses.
        """
        partial._expand_called = True  # otherwise Airflow warns that it was never mapped
        return cls(
            operator_class=partial.operator_class, kwargs=partial.kwargs, params=partial.params
        )

    def expand(self, **mapped_kwargs: Any) -> MappedOperator:
        """Map over all combinations of values.

        Args:
            **mapped_kwargs: Values of each argument, or the result of a task.

        Raises:
            ConfigError: If two tasks have the same table and partition.
        """
        return _checked(super().expand(**mapped_kwargs), mapped_kwargs)

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> MappedOperator:
        """Map over the arguments of each task.

        Args:
            kwargs: Arguments of each task, or the result of a task.
            strict: Whether arguments of ``partial`` cannot be mapped as well.

        Raises:
            ConfigError: If two tasks have the same table and partition.
        """
        return _checked(super().expand_kwargs(kwargs, strict=strict), kwargs)


def known_tasks(mapped: Any) -> list[Mapping[str, Any] | None]:
    """Return the mapped arguments of each task, as far as they are known when the DAG is parsed.

    Args:
        mapped: Values of each argument, of which each combination is a task, or the arguments of
            each task.

    Returns:
        The known arguments. An argument whose values a task returns is missing: each combination of
        the others then is a task for each of its values. None: one or several tasks whose arguments
        a task returns.
    """
    if isinstance(mapped, Mapping):
        lists = {name: values for name, values in mapped.items() if isinstance(values, Sequence)}
        return [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]
    if not isinstance(mapped, Sequence):
        return [None]
    tasks = list[Mapping[str, Any] | None]()
    for task in mapped:
        if is_reference(task):
            tasks.append(None)
        else:
            tasks.append(task)
    return tasks


def check_pairs(task_id: str, tasks: Iterable[Mapping[str, Any]]) -> None:
    """Check that no two tasks have the same table and partition.

    Args:
        task_id: Id of the mapped task.
        tasks: Known arguments of each task.

    Raises:
        ConfigError: If two have the same, so that in each run one release would replace the other.
    """
    seen = set[tuple[str | None, str]]()
    for task in tasks:
        table = task.get("table")
        partition = task.get("partition")
        if _is_open(table) or _is_open(partition):
            continue
        if partition is None:
            partition = task.get("partitions")  # of which the run selects one
        name = table_name(table)
        pair = (name, repr(partition))
        if pair in seen:
            raise ConfigError(
                f"{task_id}: two mapped tasks have the same table and partition (table:"
                f" {name or 'mapped'}). Fix: map table or partition, with different values."
            )
        seen.add(pair)


def is_reference(value: object) -> bool:
    """Return True for a value that is not known when the DAG is parsed.

    Args:
        value: An argument. References are results of tasks, and arguments of a mapped task group.
    """
    return hasattr(value, "iter_references")


def _is_open(value: object) -> bool:
    return is_reference(value) or (isinstance(value, str) and is_template(value))


def _checked(operator: MappedOperator, mapped: Any) -> MappedOperator:
    """Check the known tasks of a mapped gate, and set the arguments that depend on all of them."""
    tables = list[str | None]()
    outlets = list[Any]()
    known_arguments = list[Mapping[str, Any]]()
    for task in known_tasks(mapped):
        arguments = {**operator.partial_kwargs, **(task or {})}
        table = table_name(arguments.get("table"))
        tables.append(table)
        if arguments.get("publish", True):
            outlets.append(NAMED_LATER if table is None else release_asset(table))
        if task is not None:
            known_arguments.append(arguments)
    check_pairs(operator.task_id, known_arguments)
    operator.outlets = [*operator.outlets, *dict.fromkeys(outlets)]
    if "table" in operator.partial_kwargs or len(set(tables)) < len(tables):
        one_at_a_time(operator)
    return operator


def one_at_a_time(operator: Any) -> None:
    """Let the tasks of a mapped gate run one after the other, unless their number was set.

    The run lease of a table does not separate tasks of the same run, and a verdict can depend on
    the releases before it.

    Args:
        operator: The operator.
    """
    if operator.max_active_tis_per_dagrun is None:
        operator.max_active_tis_per_dagrun = 1
