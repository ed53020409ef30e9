"""Single machine: all data below DAGSTER_HOME, all steps in one process."""

import dagster as dg

from privacy_assets import GpuResource, PrivacyIOManager, ReleaseResource, frozen_config

RESOURCES = {
    "io_manager": PrivacyIOManager(),  # default IO manager; Dagster's unpickles from a path that a run can set
    "privacy_io": PrivacyIOManager(),
    "releases": ReleaseResource(),
    "gpu": GpuResource(),
}
EXECUTOR = frozen_config(dg.in_process_executor)
