"""The pipeline of a table as a task group: one task per step, with mapped tasks for the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from airflow.sdk import TaskGroup

from privacy_assets.airflow.deployment import AirflowDeployment, AirflowTable
from privacy_assets.airflow.operators import (
    PrivacyPublishOperator,
    PrivacyStepOperator,
    Table,
    warn_of_overlaps,
)
from privacy_assets.pipeline.steps import ATTEST, PUBLISH, Task, grouped_tasks, upstream
from privacy_assets.policy import Policy

_DOCS = {
    "read": "Reads the private table.",
    "split": "Splits the people of the table into train, holdout and reference. Each part is"
    " signed.",
    "embed": "Trains an encoder of real rows, which detects similarity across columns.",
    "fit": "Fits the generator to train only.",
    "sample": "Creates the synthetic table, and writes it once to a file of the gate, which later"
    " tasks use.",
    "prepare": "Prepares, verifies and signs all tables once, for all scores.",
    "score": "Measures one metric: how much the table discloses about people. The result is"
    " signed.",
    ATTEST: "Evaluates the policy on all scores, and signs the verdict. It fails if a limit"
    " does not hold. The log ends with the limits, advice, and the address of the report.",
}


def privacy_gate(  # noqa: PLR0913
    table: Table,
    *,
    source: str | Path | None = None,
    subject: str | Mapping[str, Any] | None = None,
    generator: str | Mapping[str, Any] | Callable[..., Any] | None = None,
    policy: Policy | Mapping[str, Any] | str | Path | None = None,
    data: Mapping[str, Any] | None = None,
    split: Mapping[str, float] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
    deployment: AirflowDeployment | str | Path | None = None,
    partitions: Any = None,
    group_id: str | None = None,
    outlets: Sequence[Any] = (),
    **kwargs: Any,
) -> TaskGroup:
    """Create the steps of a table as tasks of the DAG in whose ``with`` block it is called.

    The tasks are read, split, embed, fit, sample, prepare, score (mapped over the metrics; metrics
    that can use an accelerator are in ``score_on_device``), attest and publish. Tasks upstream of
    the group run before all of them (``extract >> privacy_gate(...)``). Downstream tasks run after
    publication. Verdict and release are the same as with the Dagster component and ``privacy-assets
    run``.

    Only one run of a table proceeds at a time: give the DAG ``max_active_runs=1``, so that further
    runs wait. Otherwise a warning is given when the DAG is parsed, and the first task of an
    overlapping run fails.

    Tasks that can use an accelerator run in the pool of the setting ``run: {airflow_pool: gpu}``
    and lease it as well.

    Args:
        table: See :class:`PrivacyGateOperator`, also for the settings of the table, ``deployment``
            and ``partitions``.
        source: Private table.
        subject: Column that identifies subjects.
        generator: Generator.
        policy: Policy.
        data: Further sources and declarations of columns.
        split: Shares of subjects in train, holdout and reference.
        evaluation: Metrics and embedder.
        run: Options of a run.
        deployment: Locations and keys.
        partitions: Partitions. None: unpartitioned.
        group_id: Id of the group. None: the table's name.
        outlets: Outlets of ``publish`` in addition to the release.
        **kwargs: Arguments of every task, such as ``retries``, ``execution_timeout`` and ``queue``.

    Returns:
        The task group.

    Raises:
        ConfigError: If settings are invalid; raised when the DAG is parsed, which reads no data.
    """
    table_settings = {
        "source": source,
        "subject": subject,
        "generator": generator,
        "policy": policy,
        "data": data,
        "split": split,
        "evaluation": evaluation,
        "run": run,
    }
    gated = AirflowTable.of(table, deployment, partitions, **table_settings)
    group = TaskGroup(group_id or gated.resolved.name, tooltip=f"The privacy gate of {gated}")
    warn_of_overlaps(group.dag, str(gated))
    operators = dict[str, list[Any]]()  # by verb of their step
    with group:
        for name, tasks in grouped_tasks(gated.resolved).items():
            task = tasks[0]
            upstream_operators = _upstream_operators(gated, task, operators)
            arguments = {**kwargs, **_pool(gated, task.uses_device)}
            arguments |= {"task_id": name, "table": gated}
            operator: Any
            if task.step.verb == PUBLISH:
                (attest,) = upstream_operators[ATTEST]
                operator = PrivacyPublishOperator(
                    **arguments, attested_by=attest.task_id, outlets=outlets
                )
            else:
                operator = _step_operator(tasks, arguments, upstream_operators)
            operator.set_upstream(list(chain.from_iterable(upstream_operators.values())))
            operators.setdefault(task.step.verb, []).append(operator)
    return group


def _upstream_operators(
    gated: AirflowTable, task: Task, operators: Mapping[str, list[Any]]
) -> dict[str, list[Any]]:
    """Return those of the earlier operators that run directly before a task, by verb.

    Publication reads the verdict only.
    """
    if task.step.verb == PUBLISH:
        return {ATTEST: operators[ATTEST]}
    verbs = [earlier.step.verb for earlier in upstream(gated.resolved, task)]
    return {verb: operators[verb] for verb in verbs}


def _step_operator(
    tasks: Sequence[Task],
    arguments: Mapping[str, Any],
    upstream_operators: Mapping[str, list[Any]],
) -> Any:
    """Return the operator of a step, which is mapped over the metrics if they have a task each."""
    step = tasks[0].step
    task_ids = dict[str, list[str]]()
    for verb, operators in upstream_operators.items():
        task_ids[verb] = [operator.task_id for operator in operators]
    doc_md = _DOCS.get(step.verb, "")
    arguments = {**arguments, "step": step.verb, "task_ids": task_ids, "doc_md": doc_md}
    if not step.one_each:
        return PrivacyStepOperator(**arguments)
    partial = PrivacyStepOperator.partial(**arguments, map_index_template="{{ task.metric }}")
    return partial.expand(metric=[task.name for task in tasks])


def _pool(gated: AirflowTable, on_device: bool) -> dict[str, str]:
    pool = gated.resolved.spec.run.airflow_pool
    if on_device and pool:
        return {"pool": pool}
    return {}
