"""Another team's code location: it reads, checks and publishes the synthetic tables of the first
two.
"""

import os
from pathlib import Path

import dagster as dg
import pandas as pd
from standins import resources
from stock import Folder, copies

FOLDER = Folder(Path(os.environ["DEPLOYMENT_ROOT"]))
LEAKY = dg.AssetKey(["leaky", "synthetic"])
OTHERS = [
    dg.AssetSpec(["plain", "synthetic"]),
    dg.AssetSpec(["far", "synthetic"]),
    dg.AssetSpec(LEAKY).with_io_manager_key("privacy_io"),
]


@dg.asset(ins={"synthetic": dg.AssetIn(key=["plain", "synthetic"])})
def stock_publisher(context: dg.AssetExecutionContext, synthetic: pd.DataFrame) -> None:
    """Publish the copy of the stock table."""
    FOLDER.write_public(synthetic, "elsewhere", context.run.run_id)


@dg.asset(ins={"synthetic": dg.AssetIn(key=LEAKY)})
def gated_publisher(context: dg.AssetExecutionContext, synthetic: pd.DataFrame) -> None:
    """Would publish the gated table if it received its rows."""
    FOLDER.write_public(synthetic, "elsewhere", context.run.run_id)


@dg.asset_check(asset=["far", "synthetic"], blocking=True)
def far_has_no_copies(synthetic: pd.DataFrame) -> dg.AssetCheckResult:
    """A check of a table whose own location has no check."""
    return dg.AssetCheckResult(passed=copies(FOLDER.private, synthetic) == 0)


@dg.asset_check(asset=LEAKY)
def looks_at_rows(synthetic: pd.DataFrame) -> dg.AssetCheckResult:
    """Would see the rows of the gated table."""
    return dg.AssetCheckResult(passed=True, metadata={"copies": copies(FOLDER.private, synthetic)})


@dg.asset_check(asset=LEAKY)
def waved_through() -> dg.AssetCheckResult:
    """Pass for all rows."""
    return dg.AssetCheckResult(passed=True)


defs = dg.Definitions.merge(
    dg.Definitions(
        assets=[*OTHERS, stock_publisher, gated_publisher],
        asset_checks=[far_has_no_copies, looks_at_rows, waved_through],
    ),
    resources(FOLDER.root),
)
