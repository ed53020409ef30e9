"""The code location of this repository: tables, resources, sensors, executor."""

import dagster as dg

from privacy_assets import build_privacy_assets
from resources import EXECUTOR, RESOURCES
from sensors import SCHEDULES, SENSORS

DEMO = {"source": "demo", "subject": "person", "embedder": {"max_epochs": 15}}
MEMORISING = {"name": "synthpop", "settings": {"min_leaf": 1}}

defs = dg.Definitions.merge(
    # An honest generator: sequential trees whose leaves hold at least 50 rows.
    build_privacy_assets("patients", **DEMO, generator="synthpop"),
    # One row a leaf: this generator memorises, and its publication is blocked.
    build_privacy_assets("patients_leak", **DEMO, generator=MEMORISING),
    dg.Definitions(resources=RESOURCES, schedules=SCHEDULES, sensors=SENSORS, executor=EXECUTOR),
)
