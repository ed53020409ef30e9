"""A table's pipeline as a task group: a task a step, and one mapped task for all metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, TaskGroup

from privacy_assets.airflow.deployment import GateDeployment
from privacy_assets.airflow.operators import PrivacyPublishOperator, PrivacyStepOperator, Table
from privacy_assets.airflow.table import GatedTable
from privacy_assets.pipeline.stored_steps import ATTEST, SCORE, steps_of_plan, uses_device
from privacy_assets.policy import Policy

_DOCS = {
    "split": "Reads the private table and splits it by person into train, holdout and reference. Each part is signed.",
    "embed": "Trains the encoder of real rows, which sees likeness beyond single columns.",
    "fit": "Fits the generator to train, and to nothing else.",
    "sample": "Makes the synthetic table, and writes it once to the gate's own file: what is judged and published.",
    "encode": "Brings all tables into one coded form, verified and signed, which every score reads.",
    SCORE: "Measures one metric each, and signs what it found: how much the table gives away about real people.",
    ATTEST: "Holds all scores against the policy and signs the verdict. It fails when a limit does not hold; the log"
    " ends with the limits and what to do, and **Privacy report** opens the page.",
}


def privacy_gate(
    table: Table,
    *,
    source: str | Path | None = None,
    subject: str | None = None,
    generator: str | Mapping[str, Any] | Callable[..., Any] | None = None,
    policy: Policy | Mapping[str, Any] | str | Path | None = None,
    deployment: GateDeployment | str | Path | None = None,
    partitions: Any = None,
    group_id: str | None = None,
    outlets: Sequence[Any] = (),
    **kwargs: Any,
) -> TaskGroup:
    """The steps of a table as tasks of the DAG in whose ``with`` block it stands; arguments of the operators.

    The group has the table's name (or ``group_id``): split, embed, fit, sample, encode, score (one mapped task for all
    metrics; those that can use a device are ``score_on_device``), attest, publish. What stands before the group runs
    before all of it (``extract >> privacy_gate(...)``), and what follows runs when the table was published.
    ``outlets`` are those of ``publish``, beside the release; ``kwargs`` go to every task: ``retries``,
    ``execution_timeout``, ``queue``. Tasks that can use a device stand in the pool that the settings name
    (``run: {device_pool: gpu}``), and lease it as well.

    The settings are those of the Dagster component and of ``privacy-assets run``, and so are verdict and release.
    ConfigError names a mistake when the DAG is parsed, for which nothing is read but settings.
    """
    short = {"source": source, "subject": subject, "generator": generator, "policy": policy}
    gated = GatedTable.of(table, deployment, partitions, **short)
    group = TaskGroup(group_id or gated.spec.name, tooltip=f"The privacy gate of {gated}")
    with group:
        tasks: dict[str, list[BaseOperator]] = {}
        for step, reads in steps_of_plan(gated.plan).items():
            given = {one: _ids(tasks[one]) if one == SCORE else _ids(tasks[one])[0] for one in reads}
            tasks[step] = _scores(gated, given, kwargs) if step == SCORE else [_step(gated, step, given, kwargs)]
            for task in tasks[step]:
                task.set_upstream([one for read in reads for one in tasks[read]])
        (attest,) = tasks[ATTEST]
        publish = PrivacyPublishOperator(
            task_id="publish", table=gated, attested_by=attest.task_id, outlets=outlets, **kwargs
        )
        publish.set_upstream(attest)
    return group


def _step(gated: GatedTable, step: str, given: Mapping[str, Any], kwargs: Mapping[str, Any]) -> BaseOperator:
    own = {**kwargs, **_pool(gated, uses_device(gated.plan, step))}
    return PrivacyStepOperator(task_id=step, table=gated, step=step, given=given, doc_md=_DOCS[step], **own)


def _scores(gated: GatedTable, given: Mapping[str, Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """A mapped task for the metrics that need no device, and one for those that can use it: a task has one pool."""
    found = []
    for on_device in (False, True):
        metrics = [name for name in gated.plan.metrics if uses_device(gated.plan, SCORE, name) == on_device]
        task = f"{SCORE}_on_device" if on_device else SCORE
        own = {**kwargs, **_pool(gated, on_device), "doc_md": _DOCS[SCORE], "map_index_template": "{{ task.metric }}"}
        if metrics:
            mapped = PrivacyStepOperator.partial(task_id=task, table=gated, step=SCORE, given=given, **own)
            found.append(mapped.expand(metric=metrics))
    return found


def _pool(gated: GatedTable, on_device: bool) -> dict[str, str]:
    pool = gated.spec.run.device_pool
    return {"pool": pool} if on_device and pool else {}


def _ids(tasks: Sequence[BaseOperator]) -> list[str]:
    return [task.task_id for task in tasks]
