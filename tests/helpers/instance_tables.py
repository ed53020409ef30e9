"""Code location of leaky gated tables, loaded by an in-process GraphQL server
(test_bypasses_instance).
"""

import os
from pathlib import Path

import dagster as dg
from standins import QUICK, memorize, resources, table_of

ROOT = Path(os.environ["INSTANCE_ROOT"])
LEAKY = {"source": ROOT / "people.parquet", "subject": "pid", "generator": memorize, **QUICK}
SHOPS = {
    "partitions_def": dg.DynamicPartitionsDefinition(name="shops"),
    "partition_column": "region",
}

defs = dg.Definitions.merge(
    table_of("leaky", **LEAKY), table_of("leaky_shops", **LEAKY, **SHOPS), resources(ROOT)
)
