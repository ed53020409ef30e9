"""A synthetic table that you have already: one task judges it, and publishes it if the policy holds."""

from pathlib import Path

from airflow.sdk import DAG

from privacy_assets import TableSpec
from privacy_assets.airflow import PrivacyGateOperator

PROJECT = Path(__file__).resolve().parents[1]  # for a trial; see ../../private_table/dags/visits.py
DATA = PROJECT / "data"

TABLE = TableSpec(
    name="survey",
    data={
        "synthetic": DATA / "synthetic.parquet",  # what is to be published
        "train": DATA / "train.parquet",  # the rows that it was made from
        "holdout": DATA / "holdout.parquet",  # rows of other people, which its generator has not seen
        "subject": "person",
    },
)

with DAG("survey", schedule=None):
    PrivacyGateOperator(task_id="publish", table=TABLE, deployment=PROJECT / "gate" / "releases")
