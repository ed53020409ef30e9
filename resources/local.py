"""Single machine: all data below DAGSTER_HOME, all steps in one process."""

import dagster as dg

from privacy_assets import frozen_config, resources

RESOURCES = resources()
EXECUTOR = frozen_config(dg.in_process_executor)
