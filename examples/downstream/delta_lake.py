"""A Delta Lake table as the source, and another one as the sink (docs/downstream.md).

LAKE names the folder of the Delta tables.
"""

import os
from pathlib import Path

import dagster as dg
import pandas as pd
from deltalake import DeltaTable, write_deltalake

import privacy_assets as pa


class DeltaLake(dg.ConfigurableIOManager):
    """Store each asset as a Delta table. Any other IO manager works as well."""

    folder: str

    def handle_output(self, context: dg.OutputContext, obj: pd.DataFrame) -> None:
        """Write the next version of the table."""
        write_deltalake(Path(self.folder, *context.asset_key.path), obj, mode="overwrite")

    def load_input(self, context: dg.InputContext) -> pd.DataFrame:
        """Read the latest version of the table."""
        return DeltaTable(Path(self.folder, *context.asset_key.path)).to_pandas()


raw = dg.AssetSpec("raw_patients").with_io_manager_key("lake")  # another program writes it


@dg.asset(io_manager_key="lake", group_name="patients")
def by_health(published: pd.DataFrame) -> pd.DataFrame:
    """Visits by health, in the lake."""
    return published.groupby("health", observed=True, as_index=False)["doctor_visits"].mean()


defs = dg.Definitions.merge(
    pa.build_privacy_assets("patients", subject="person", assets={"source": raw}),
    dg.Definitions(
        assets=[raw, by_health],
        resources=pa.resources(lake=DeltaLake(folder=os.environ["LAKE"])),
        executor=pa.frozen_config(dg.in_process_executor),
    ),
)
