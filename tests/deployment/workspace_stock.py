"""Code location of the tables that only Dagster's own checks guard."""

import dagster as dg
from publishers import publishers
from stock import stock_table

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
    publishers("stock", "plain"),
)
