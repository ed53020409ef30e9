"""DAGs of mapped gates, and of several gates of one table in a run."""

import os
from pathlib import Path

from airflow.sdk import DAG, task, task_group

from privacy_assets.airflow import AirflowDeployment, PrivacyGateOperator, privacy_gate
from privacy_assets.pipeline.spec import TableSpec

PLACE = Path(os.environ["PLACE"])
GATE = AirflowDeployment(releases=PLACE / "mapped/releases", device="cpu")
NON_LEAKING = TableSpec.load(PLACE / "honest.yaml")
SETTINGS = {
    "subject": "pid",
    "generator": "broken_generators:honest",
    "evaluation": NON_LEAKING.evaluation,
    "policy": NON_LEAKING.policy,
    "deployment": GATE,
}
SOURCE = {"source": str(NON_LEAKING.data.source)}
REGIONS = {
    "source": str(PLACE / "month_{partition}.parquet"),
    "partitions": ["2026-01-01", "2026-02-01"],
}


@task
def listed(values):
    return values


@task_group
def each(region):
    PrivacyGateOperator(task_id="gate", table="grouped", partition=region, **SETTINGS, **REGIONS)


with DAG("tables", schedule=None, max_active_runs=1) as tables:
    PrivacyGateOperator.partial(task_id="gate", **SETTINGS, **SOURCE).expand(table=["a", "b"])

with DAG("named", schedule=None, max_active_runs=1) as equal_names:
    gate = PrivacyGateOperator.partial(
        task_id="gate", max_active_tis_per_dagrun=1, **SETTINGS, **SOURCE
    )
    gate.expand(table=listed(["c", "c"]))

with DAG("groups", schedule=None, max_active_runs=1) as groups:
    each.expand(region=listed(["2026-01-01", None]))

with DAG("twice", schedule=None, max_active_runs=1) as twice:
    settings = {**SETTINGS, "source": str(PLACE / "absent.parquet")}
    first = PrivacyGateOperator(task_id="first", table="twice", **settings)
    first >> privacy_gate("twice", trigger_rule="all_done", **settings)
