"""The pipeline of a table as a task group: one task per step, with mapped tasks for the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from privacy_assets.pipeline.steps import ATTEST, PUBLISH, grouped_tasks, upstream
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
    " does not"
    " hold. The log ends"
    " with the limits, advice, and the address of the report.",
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
    short = {"source": source, "subject": subject, "generator": generator, "policy": policy}
    short |= {"data": data, "split": split, "evaluation": evaluation, "run": run}
    gated = AirflowTable.of(table, deployment, partitions, **short)
    group = TaskGroup(group_id or gated.resolved.name, tooltip=f"The privacy gate of {gated}")
    warn_of_overlaps(group.dag, str(gated))
    with group:
        operators = dict[str, dict[str, Any]]()  # by verb and name of the group
        for name, (task, *others) in grouped_tasks(gated.resolved).items():
            verb, before = task.step.verb, dict[str, dict[str, Any]]()
            for other in upstream(gated.resolved, task):
                before[other.step.verb] = operators[other.step.verb]
            own = {**kwargs, **_pool(gated, task.uses_device), "task_id": name, "table": gated}
            operator: Any
            if verb == PUBLISH:
                before = {ATTEST: before[ATTEST]}
                (attest,) = before[ATTEST].values()
                operator = PrivacyPublishOperator(
                    **own, attested_by=attest.task_id, outlets=outlets
                )
            else:
                own |= {
                    "step": verb,
                    "task_ids": {one: _ids(found) for one, found in before.items()},
                }
                own["doc_md"] = _DOCS.get(verb, "")
                if task.step.one_each:
                    mapped = PrivacyStepOperator.partial(
                        **own, map_index_template="{{ task.metric }}"
                    )
                    operator = mapped.expand(metric=[one.name for one in (task, *others)])
                else:
                    operator = PrivacyStepOperator(**own)
            operator.set_upstream([one for found in before.values() for one in found.values()])
            operators.setdefault(verb, {})[name] = operator
    return group


def _pool(gated: AirflowTable, on_device: bool) -> dict[str, str]:
    pool = gated.resolved.spec.run.airflow_pool
    return {"pool": pool} if on_device and pool else {}


def _ids(operators: Mapping[str, Any]) -> list[str]:
    return [operator.task_id for operator in operators.values()]
