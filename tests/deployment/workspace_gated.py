"""Code location of the gated tables: generators that memorise, and honest ones."""

import os
from pathlib import Path

import dagster as dg
import pandas as pd
from publishers import publishers
from standins import QUICK, independent, memorise, resources

from privacy_assets import build_privacy_assets, build_table_schedule

ROOT = Path(os.environ["DEPLOYMENT_ROOT"])
REGIONS = dg.StaticPartitionsDefinition(["north", "south"])


def turning(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Honest until somebody leaves a file named ``leak``."""
    return (memorise if (ROOT / "leak").exists() else independent)(train, rows, seed)


def gated(name, generator, *, regions: bool = False) -> dg.Definitions:
    """A small gated table."""
    split = {"partitions_def": REGIONS, "partition_column": "region"} if regions else {}
    source = ROOT / "people.parquet"
    return build_privacy_assets(name, source=source, subject="pid", generator=generator, **QUICK, **split)


def eagerly_published(table: dg.Definitions) -> dg.Definitions:
    """The table, its ``published`` launched after every change upstream, whatever the checks say."""
    eager = dg.AutomationCondition.eager()
    return table.map_resolved_asset_specs(
        func=lambda spec: (
            spec.replace_attributes(automation_condition=eager) if spec.key.path[-1] == "published" else spec
        )
    )


defs = dg.Definitions.merge(
    gated("leaky", memorise),
    gated("leaky_regions", memorise, regions=True),
    eagerly_published(gated("leaky_eager", memorise)),
    gated("turned", turning),
    gated("honest", independent),
    gated("honest_regions", independent, regions=True),
    dg.Definitions(schedules=[build_table_schedule("honest", "* * * * *")]),
    publishers("gated", "leaky"),
    resources(ROOT),
)
