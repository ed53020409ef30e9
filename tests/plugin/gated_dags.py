"""DAGs of two tasks, publish and read: an honest table, one that leaks, and one whose step says what it reads."""

import logging
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import pandas as pd
from airflow.sdk import DAG, task
from drawing import row_of

from privacy_assets.airflow import GateDeployment, PrivacyGateOperator
from privacy_assets.pipeline.private_table import PrivateTable
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.pipeline.steps import Steps

PLACE = Path(os.environ["PLACE"])
RELEASES = PLACE / "deployment/releases"
HONEST = TableSpec.load(PLACE / "honest.yaml")


@task
def read(table: str) -> int:
    import privacy_assets as pa

    return len(pa.read_published(RELEASES, table))


def says_rows(source: pd.DataFrame) -> None:
    row = row_of(source)
    print(row)
    print(row, file=sys.stderr)
    warnings.warn(row, stacklevel=1)
    logging.getLogger("library").error(row)
    raise ValueError(row) from KeyError(row)


def splits(steps: Steps, source: PrivateTable, given: object = None) -> object:
    return says_rows(source.frame()) if steps.plan.name == "says" else SPLITS(steps, source, given)


SPLITS, Steps.splits = Steps.splits, splits

with DAG("honest", schedule=None) as honest:
    publish = PrivacyGateOperator(
        task_id="publish", table=PLACE / "honest.yaml", deployment=GateDeployment(RELEASES, device="cpu")
    )
    publish >> read("honest")

with DAG("leaks", schedule=None) as leaks:
    table = TableSpec(
        name="leaks", data=HONEST.data, attacks=HONEST.attacks, policy=HONEST.policy, generator="drawing:memorise"
    )
    publish = PrivacyGateOperator(
        task_id="publish", table=table, deployment=str(RELEASES), retries=2, retry_delay=timedelta(0)
    )
    publish >> read("leaks")

with DAG("says", schedule=None) as says:
    publish = PrivacyGateOperator(
        task_id="publish",
        table="says",
        source=HONEST.data.source,
        subject="pid",
        generator="broken_generators:honest",
        policy=HONEST.policy,
        deployment=RELEASES,
        retries=1,
        retry_delay=timedelta(0),
    )
    publish >> read("says")
