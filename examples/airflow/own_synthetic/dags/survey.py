"""Evaluate an existing synthetic table, and publish it if it meets the policy, in one task."""

from pathlib import Path

from airflow.sdk import DAG

from privacy_assets import TableSpec
from privacy_assets.airflow import PrivacyGateOperator

PROJECT = Path(__file__).resolve().parents[1]  # for a trial; see ../../private_table/dags/visits.py
DATA = PROJECT / "data"

TABLE = TableSpec(
    name="survey",
    data={
        "synthetic": DATA / "synthetic.parquet",  # the table to publish
        "train": DATA / "train.parquet",  # the rows that its generator was fitted to
        "holdout": DATA / "holdout.parquet",  # rows of other people, unknown to its generator
        "subject": "person",
    },
)

with DAG("survey", schedule=None, max_active_runs=1):
    PrivacyGateOperator(task_id="publish", table=TABLE, deployment=PROJECT / "gate" / "releases")
