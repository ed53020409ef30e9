"""DAGs of gated tables: the counterparts of stock_dags, and a table whose every step fails once
while it holds rows.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from airflow.sdk import DAG, PartitionedAtRuntime, task

import privacy_assets as pa
from privacy_assets.airflow import (
    AirflowDeployment,
    PrivacyGateOperator,
    PrivacyPublishOperator,
    ReleaseSensor,
    TimePartitions,
    privacy_gate,
    release_asset,
)
from privacy_assets.pipeline import lease as lease_module
from privacy_assets.pipeline import steps
from privacy_assets.pipeline.results import StepResult
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.pipeline.work import TableRun

# Runs overlap here, because the gate must reject what they make even without the run lease of the
# table.
lease_module.SILENT = 0.0
PLACE = Path(os.environ["PLACE"])
GATE = AirflowDeployment(
    releases=PLACE / "deployment/releases",
    private=PLACE / "deployment/private",
    trusted_keys=PLACE / "deployment/trusted_keys",
    signing_key="secrets:privacy_signing_key",
    split_key="secrets:privacy_split_key",
    device="cpu",
)
TABLE = yaml.safe_load((PLACE / "table.yaml").read_text())
# A policy without limits on copies, since limits that not even a copy breaks are undecided.
LAX = {
    **TABLE["policy"],
    "limits": [{"statistic": "value_disclosure.foreign_cells", "at_most": 0.0}],
}


def table(name: str, generator: str = "drawing:memorize", **settings: Any) -> TableSpec:
    """Return a gated table.

    Args:
        name: Name of the table.
        generator: Name of the generator.
        **settings: Further settings of the table.
    """
    return TableSpec(**{**TABLE, "name": name, "generator": generator, **settings})


def two(spec: TableSpec, **options: Any) -> tuple[PrivacyGateOperator, PrivacyPublishOperator]:
    """Return the task of the verdict and the task of the publication.

    Args:
        spec: The table.
        **options: Further arguments of the publication.
    """
    judge = PrivacyGateOperator(task_id="judge", table=spec, deployment=GATE, publish=False)
    return judge, publisher(spec, "judge", "publish", **options)


def publisher(
    spec: TableSpec, attested_by: str, task_id: str, **options: Any
) -> PrivacyPublishOperator:
    return PrivacyPublishOperator(
        task_id=task_id, table=spec, deployment=GATE, attested_by=attested_by, **options
    )


@task.branch
def choose() -> str:
    return "nothing"


@task
def nothing() -> None: ...


with DAG(
    "leaks", schedule=None, params={"at_most": 0.3, "policy": "strict"}, max_active_tasks=4
) as leaks:
    spec = table("leaks")
    privacy_gate(spec, deployment=GATE, retries=2, retry_delay=timedelta(0))
    attest = leaks.get_task("leaks.attest")
    attest >> publisher(spec, "leaks.attest", "publish_all_done", trigger_rule="all_done")
    attest >> publisher(spec, "leaks.attest", "publish_teardown").as_teardown()

with DAG("skips", schedule=None):
    judge, none_failed = two(table("leaks"), trigger_rule="none_failed")
    start = nothing.override(task_id="start")()
    start >> choose() >> [nothing(), judge]
    judge >> none_failed
    one_success = publisher(
        table("leaks"), "judge", "publish_one_success", trigger_rule="none_failed_min_one_success"
    )
    [start, judge] >> one_success

with DAG("törn.1", schedule=None):
    judge, publish = two(table("torn"))
    judge.as_teardown() >> publish.as_teardown()

with DAG("strict", schedule=None):
    judge, publish = two(table("laxly"))
    judge >> publish

with DAG("lax", schedule=None):
    judge, publish = two(table("laxly", policy=LAX))
    judge >> publish

with DAG("turned_before", schedule=None):
    judge, publish = two(table("turned", "broken_generators:honest"))
    judge >> publish

with DAG("turned", schedule=None):
    judge, publish = two(table("turned"))
    judge >> publish

by_path = {**TABLE["data"], "source": str(PLACE / "people_{partition}.parquet")}

with DAG("keys", schedule=PartitionedAtRuntime()):
    privacy_gate(table("keys", data=by_path), deployment=GATE, partitions=["north", "south"])

# only backfills run
ended = {"start_date": datetime(2020, 1, 1), "end_date": datetime(2026, 1, 5), "catchup": False}
schedules = {"daily": {"schedule": "@daily", **ended}, "dated": {"schedule": None}}
for name, options in schedules.items():
    with DAG(name, **options):
        PrivacyGateOperator(
            task_id="publish",
            table=table("daily", data=by_path),
            deployment=GATE,
            partitions=TimePartitions("2026-01-01"),
        )

with DAG("draws", schedule=None):
    PrivacyGateOperator(
        task_id="publish",
        table=table("draws", "drawing:memorize_anew"),
        deployment=GATE,
        retries=3,
        retry_delay=timedelta(0),
    )

with DAG("consumer", schedule=[release_asset("leaks")]):

    @task
    def read() -> int:
        rows = pa.read_published(GATE.releases, "leaks", trusted_keys=GATE.trusted_keys)
        return len(rows)

    read()
    ReleaseSensor(task_id="wait", table="leaks", deployment=GATE, poke_interval=1, timeout=2)

with DAG("store", schedule=None):

    @task
    def credentials() -> dict[str, Any]:
        """Which fields of an edited Connection are used, and which store would be contacted."""
        import s3fs
        from fsspec.config import apply_config, conf

        folders = {"releases": "s3://bucket/releases", "private": "s3://bucket/private"}
        with AirflowDeployment(**folders, store_conn_id="store").credentials():
            options = apply_config(s3fs.S3FileSystem, {})
            return {"taken": sorted(conf["s3"]), "asked": sorted(options)}

    credentials()


def says_rows() -> None:
    import pandas as pd
    from drawing import row_of

    row = row_of(pd.read_parquet(PLACE / "people.parquet"))
    print(row)
    print(row, file=sys.stderr)
    os.write(2, b"a line without a row\n")
    warnings.warn(row, stacklevel=1)
    logging.getLogger("library").error(row)
    raise ValueError(row) from KeyError(row)


def fails_once(step: steps.Step) -> steps.Step:
    def call(run: TableRun, name: str, values: Mapping[str, Any]) -> StepResult:
        failed = PLACE / "failed" / step.verb
        if step.verb == "embed":
            says_rows()
        if run.table.name == "planted" and not failed.exists():
            failed.touch()
            says_rows()
        return step.work(run, name, values)

    return replace(step, work=call)


steps.STEPS = tuple(fails_once(step) for step in steps.STEPS)

with DAG("planted", schedule=None):
    privacy_gate(
        table("planted", "broken_generators:talks"),
        deployment=GATE,
        retries=2,
        retry_delay=timedelta(0),
    )

with DAG("planted_embedder", schedule=None):
    embeds = {
        "evaluation": {**TABLE["evaluation"], "embedder": True},
        "policy": {**TABLE["policy"], "embedder": {}},
    }
    privacy_gate(
        table("planted_embedder", "broken_generators:raises_from", **embeds), deployment=GATE
    )
