"""Code location of the tables that only Dagster's own checks guard, and of a gated one, ``loose``.

The default IO manager is not bound here.
"""

import os
from pathlib import Path

import dagster as dg
from publishers import publishers
from standins import QUICK, independent, resources, table_of
from stock import Folder, quota_table, stock_table

FOLDER = Folder(Path(os.environ["DEPLOYMENT_ROOT"]))
EAGER = dg.AutomationCondition.eager()
GUARDED = EAGER & dg.AutomationCondition.all_deps_blocking_checks_passed()

defs = dg.Definitions.merge(
    stock_table(FOLDER, "plain"),
    stock_table(FOLDER, "far", checked=False),
    stock_table(FOLDER, "eager_failed", condition=EAGER),
    stock_table(FOLDER, "eager_warned", condition=EAGER, severity=dg.AssetCheckSeverity.WARN),
    stock_table(FOLDER, "eager_raised", condition=EAGER, raises=True),
    stock_table(FOLDER, "eager_unchecked", condition=EAGER),
    stock_table(FOLDER, "forged_by_rest", condition=GUARDED),
    stock_table(FOLDER, "forged_by_graphql", condition=GUARDED),
    quota_table(FOLDER, "nights"),
    quota_table(
        FOLDER, "nights_by_day", dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-04")
    ),
    publishers("stock", "plain"),
    dg.Definitions(
        jobs=[
            dg.define_asset_job(
                "apart", selection="plain/synthetic", executor_def=dg.multiprocess_executor
            )
        ]
    ),
    table_of(
        "loose",
        source=FOLDER.root / "people.parquet",
        subject="pid",
        generator=independent,
        **QUICK,
    ),
    dg.Definitions(
        resources={k: v for k, v in resources(FOLDER.root).resources.items() if k != "io_manager"}
    ),
)
