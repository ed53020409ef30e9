"""A table of a DuckDB file as the source, and a dbt model of the release (docs/downstream.md).

WAREHOUSE names the DuckDB file, and DBT the dbt program if another environment contains it.
"""

import os
from pathlib import Path

import dagster as dg
import duckdb
import pandas as pd
from dagster_dbt import DbtCliResource, dbt_assets

import privacy_assets as pa

WAREHOUSE = os.environ["WAREHOUSE"]
PROJECT = Path(__file__).parent / "dbt"


@dg.asset
def patients_rows() -> pd.DataFrame:
    """Private rows."""
    with duckdb.connect(WAREHOUSE, read_only=True) as warehouse:
        return warehouse.table("patients").df()


@dg.asset(group_name="patients")
def patients_released(published: pd.DataFrame) -> None:
    """The release as a table of the warehouse, the source of the dbt models."""
    with duckdb.connect(WAREHOUSE) as warehouse:
        warehouse.execute("create or replace table patients_released as select * from published")


@dbt_assets(manifest=PROJECT / "target" / "manifest.json")
def models(context: dg.AssetExecutionContext, dbt: DbtCliResource):  # noqa: ANN201
    """Run the dbt models."""
    yield from dbt.cli(["build"], context=context).stream()


defs = dg.Definitions.merge(
    pa.build_privacy_assets("patients", subject="person", assets={"source": patients_rows}),
    dg.Definitions(
        assets=[patients_rows, patients_released, models],
        resources=pa.resources(
            dbt=DbtCliResource(
                project_dir=str(PROJECT),
                dbt_executable=os.environ.get("DBT", "dbt"),
                target="duckdb",
            )
        ),
        executor=pa.frozen_config(dg.in_process_executor),
    ),
)
