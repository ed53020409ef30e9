"""DAGs with the tasks publish and read: a non-leaking table, a leaky one, and one whose step prints
its rows.
"""

import logging
import os
import runpy
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
from airflow.sdk import DAG, task
from drawing import row_of

from privacy_assets.airflow import AirflowDeployment, PrivacyGateOperator, release_asset
from privacy_assets.pipeline import steps, work
from privacy_assets.pipeline.results import StepResult
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.pipeline.work import TableRun

PLACE = Path(os.environ["PLACE"])
RELEASES = PLACE / "deployment/releases"
NON_LEAKING = TableSpec.load(PLACE / "honest.yaml")


@task(inlets=[release_asset("honest")])
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


def split(run: TableRun, name: str, values: Mapping[str, Any]) -> StepResult:
    if run.table.name == "says":
        says_rows(values["source"].frame())
    return work.split(run, name, values)


def with_split(step: steps.Step) -> steps.Step:
    if step.verb != "split":
        return step
    return replace(step, work=split)


steps.STEPS = tuple(map(with_split, steps.STEPS))

with DAG("honest", schedule=None) as non_leaking:
    script = PLACE / "extract.py"
    extract = []
    if script.exists():
        module = runpy.run_path(str(script))
        extract.append(module["extract"]())
    publish = PrivacyGateOperator(
        task_id="publish",
        table=PLACE / "honest.yaml",
        deployment=AirflowDeployment(releases=RELEASES, device="cpu"),
    )
    extract >> publish >> read("honest")

with DAG("leaks", schedule=None) as leaks:
    table = TableSpec(
        name="leaks",
        data=NON_LEAKING.data,
        evaluation=NON_LEAKING.evaluation,
        policy=NON_LEAKING.policy,
        generator="drawing:memorize",
    )
    publish = PrivacyGateOperator(
        task_id="publish",
        table=table,
        deployment=str(RELEASES),
        retries=2,
        retry_delay=timedelta(0),
    )
    publish >> read("leaks")

with DAG("says", schedule=None) as says:
    publish = PrivacyGateOperator(
        task_id="publish",
        table="says",
        source=NON_LEAKING.data.source,
        subject="pid",
        generator="broken_generators:honest",
        policy=NON_LEAKING.policy,
        deployment=RELEASES,
        retries=1,
        retry_delay=timedelta(0),
    )
    publish >> read("says")
