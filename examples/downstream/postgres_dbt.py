"""A table of PostgreSQL as the source, and a dbt model of the release (docs/downstream.md).

PGHOST, PGPORT, PGUSER, PGPASSWORD and PGDATABASE name the server, as for its other clients. DBT
names the dbt program if another environment contains it.
"""

import os
from pathlib import Path

import dagster as dg
import pandas as pd
from dagster_dbt import DbtCliResource, dbt_assets
from sqlalchemy import NullPool, create_engine

import privacy_assets as pa

# the driver reads the variables
WAREHOUSE = create_engine("postgresql+psycopg2://", poolclass=NullPool)
PROJECT = Path(__file__).parent / "dbt"


@dg.asset
def patients_rows() -> pd.DataFrame:
    """Private rows."""
    return pd.read_sql_table("patients", WAREHOUSE)


@dg.asset(group_name="patients")
def patients_released(published: pd.DataFrame) -> None:
    """The release as a table of the warehouse, the source of the dbt models."""
    published.to_sql("patients_released", WAREHOUSE, if_exists="replace", index=False)


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
                target="postgres",
            )
        ),
        executor=pa.frozen_config(dg.in_process_executor),
    ),
)
