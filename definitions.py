"""Dagster code location of this repository: tables, resources, sensors, executor."""

import dagster as dg

from privacy_assets.dagster.demo import demo_table
from resources import EXECUTOR, RESOURCES
from sensors import SCHEDULES, SENSORS

defs = dg.Definitions.merge(
    demo_table(),  # `patients`: a generator that does not leak; the release is published
    demo_table(leak=True),  # `patients_leak`: a generator that memorizes; publication is blocked
    dg.Definitions(resources=RESOURCES, schedules=SCHEDULES, sensors=SENSORS, executor=EXECUTOR),
)
