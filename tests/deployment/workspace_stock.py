"""Code location of the tables that only Dagster's own checks guard, and of a gated one among them, ``loose``.

Nothing binds the default IO manager here.
"""

import dagster as dg
from publishers import publishers
from quotas import quota_table
from standins import QUICK, independent, resources, table_of
from stock import PRIVATE, ROOT, stock_table

EAGER = dg.AutomationCondition.eager()
GUARDED = EAGER & dg.AutomationCondition.all_deps_blocking_checks_passed()

defs = dg.Definitions.merge(
    stock_table("plain"),
    stock_table("far", checked=False),
    stock_table("eager_failed", condition=EAGER),
    stock_table("eager_warned", condition=EAGER, severity=dg.AssetCheckSeverity.WARN),
    stock_table("eager_raised", condition=EAGER, raises=True),
    stock_table("eager_unchecked", condition=EAGER),
    stock_table("forged_by_rest", condition=GUARDED),
    stock_table("forged_by_graphql", condition=GUARDED),
    quota_table(ROOT, "nights"),
    quota_table(ROOT, "nights_by_day", dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-04")),
    publishers("stock", "plain"),
    dg.Definitions(
        jobs=[dg.define_asset_job("apart", selection="plain/synthetic", executor_def=dg.multiprocess_executor)]
    ),
    table_of("loose", source=PRIVATE, subject="pid", generator=independent, **QUICK),
    dg.Definitions(resources={k: v for k, v in resources(ROOT).resources.items() if k != "io_manager"}),
)
