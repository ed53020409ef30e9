"""DAGs of the task group: a non-leaking table and its reader, a leaky one, one by date, and one
that a person publishes.
"""

import os
from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import DAG, CronDataIntervalTimetable, task

from privacy_assets.airflow import (
    AirflowDeployment,
    PrivacyGateOperator,
    PrivacyPublishOperator,
    ReleaseSensor,
    TimePartitions,
    privacy_gate,
)
from privacy_assets.pipeline.spec import TableSpec

PLACE = Path(os.environ["PLACE"])
GATE = AirflowDeployment(
    releases=PLACE / "grouped/releases", device="cpu", report_url="https://reports.example/"
)
NON_LEAKING = TableSpec.load(PLACE / "honest.yaml")
OWN = "broken_generators:honest"
DATES = {"dated": datetime(2026, 1, 10, tzinfo=UTC)}  # of the run that airflow_worker.py starts


def like_honest(name: str, **settings: object) -> TableSpec:
    """Return a table like the honest one.

    Args:
        name: Name of the table.
        **settings: Settings that differ.
    """
    defaults = {
        "name": name,
        "data": NON_LEAKING.data,
        "evaluation": NON_LEAKING.evaluation,
        "policy": NON_LEAKING.policy,
    }
    return TableSpec(**{**defaults, **settings})


with DAG("grouped", schedule=None) as grouped:
    wait = ReleaseSensor(task_id="wait", table="honest", deployment=GATE, deferrable=True)

    @task
    def read() -> int:
        import privacy_assets as pa

        return len(pa.read_published(str(GATE.releases), "honest"))

    privacy_gate(PLACE / "honest.yaml", deployment=GATE, retries=0) >> wait >> read()

with DAG("grouped_leak", schedule=None) as grouped_leak:
    leaky = like_honest("leak", generator="drawing:memorize", run={"airflow_pool": "gpu"})
    privacy_gate(leaky, deployment=GATE, retries=2)

daily = CronDataIntervalTimetable("@daily", timezone="UTC")
with DAG(
    "dated", schedule=daily, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False
) as dated:
    months = like_honest(
        "dated",
        data={"source": PLACE / "month_{partition}.parquet", "subject": "pid"},
        generator=OWN,
    )
    privacy_gate(months, deployment=GATE, partitions=TimePartitions("2026-01-01", "month"))

with DAG("looked_at", schedule=None) as looked_at:
    seen = like_honest("seen", generator=OWN)
    judge = PrivacyGateOperator(task_id="judge", table=seen, deployment=GATE, publish=False)
    publish = PrivacyPublishOperator(
        task_id="publish", table=seen, deployment=GATE, attested_by="judge"
    )
    judge >> publish
