"""Dagster code location of this repository: tables, resources, sensors, executor."""

import dagster as dg

from privacy_assets.dagster.demo import demo_spec, demo_table
from privacy_assets.studies.leak_study_job import build_leak_study
from resources import EXECUTOR, RESOURCES
from sensors import SCHEDULES, SENSORS

defs = dg.Definitions.merge(
    demo_table(),  # `patients`: a generator that does not leak; the release is published
    demo_table(leak=True),  # `patients_leak`: a generator that memorizes; publication is blocked
    build_leak_study(demo_spec()),  # which statistics of `patients` show a leak; optional
    dg.Definitions(resources=RESOURCES, schedules=SCHEDULES, sensors=SENSORS, executor=EXECUTOR),
)
