"""Run your own task between verdict and publication, for example to inform a person or to ask for
approval.

`publish` does not rely on earlier tasks: it verifies the signed verdict, the policy and the bytes
itself.
"""

from pathlib import Path

from airflow.sdk import DAG, task

from privacy_assets import TableSpec
from privacy_assets.airflow import PrivacyGateOperator, PrivacyPublishOperator

PROJECT = Path(__file__).resolve().parents[1]  # for a trial; see ../../private_table/dags/visits.py
DATA = {role: PROJECT / "data" / f"{role}.parquet" for role in ("synthetic", "train", "holdout")}
GATE = {
    "table": TableSpec(name="survey", subject="person", data=DATA),
    "deployment": PROJECT / "gate" / "releases",
}

with DAG("survey_by_hand", schedule=None, max_active_runs=1):
    judge = PrivacyGateOperator(task_id="judge", publish=False, **GATE)

    @task
    def tell_the_officer() -> str:
        """Send a mail or open a ticket. With Airflow 3.1, use `ApprovalOperator` to wait for a
        person's answer.
        """
        return "the table holds its policy: see the XCom privacy_report of task judge"

    publish = PrivacyPublishOperator(task_id="publish", attested_by=judge.task_id, **GATE)
    judge >> tell_the_officer() >> publish
