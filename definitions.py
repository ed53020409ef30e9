"""The code location of this repository: tables, resources, sensors, executor."""

import dagster as dg

from privacy_assets.dagster.demo import demo_table
from resources import EXECUTOR, RESOURCES
from sensors import SCHEDULES, SENSORS

defs = dg.Definitions.merge(
    demo_table(),  # `patients`: an honest generator; the release is published
    demo_table(leak=True),  # `patients_leak`: a generator that memorises; its publication is blocked
    dg.Definitions(resources=RESOURCES, schedules=SCHEDULES, sensors=SENSORS, executor=EXECUTOR),
)
