"""Code location of the gated tables: memorizing generators and honest ones."""

import os
from pathlib import Path

import dagster as dg
from publishers import publishers
from standins import QUICK, independent, memorize, resources, table_of
from turning import turning

from privacy_assets import build_table_schedule, frozen_config

ROOT = Path(os.environ["DEPLOYMENT_ROOT"])
DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-04")
REGIONS = dg.StaticPartitionsDefinition(["north", "south"])


def gated(name, generator, *, regions: bool = False, **more) -> dg.Definitions:
    """A small gated table."""
    split = {"partitions_def": REGIONS, "partition_column": "region"} if regions else {}
    source = ROOT / "people.parquet"
    return table_of(
        name, source=source, subject="pid", generator=generator, **QUICK, **split, **more
    )


def eagerly_published(table: dg.Definitions) -> dg.Definitions:
    """The table, with ``published`` launched after every upstream change, whatever the checks'
    results.
    """
    eager = dg.AutomationCondition.eager()
    return table.map_resolved_asset_specs(
        func=lambda spec: (
            spec.replace_attributes(automation_condition=eager)
            if spec.key.path[-1] == "published"
            else spec
        )
    )


@dg.asset
def note() -> int:
    """An ordinary asset in the same location."""
    return 1


@dg.asset
def noted(note: int) -> None:
    """Load the value of an ordinary asset."""


defs = dg.Definitions.merge(
    dg.Definitions(
        assets=[note, noted],
        jobs=[
            dg.define_asset_job(
                "apart",
                selection="honest_told/source",
                executor_def=frozen_config(dg.multiprocess_executor, {"max_concurrent": 1}),
            )
        ],
    ),
    gated("leaky", memorize),
    gated("leaky_regions", memorize, regions=True),
    eagerly_published(gated("leaky_eager", memorize)),
    gated(
        "turned",
        {"name": "callable", "settings": {"function": turning, "variables": ["DEPLOYMENT_ROOT"]}},
    ),
    gated("honest", independent),
    gated("honest_told", independent),
    gated("honest_regions", independent, regions=True),
    gated("nights", independent),
    gated("nights_by_day", independent, partitions_def=DAYS, partition_column="joined"),
    dg.Definitions(schedules=[build_table_schedule("honest", "* * * * *")]),
    publishers("gated", "leaky"),
    resources(ROOT),
)
