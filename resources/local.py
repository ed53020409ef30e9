"""One machine: everything below DAGSTER_HOME, all steps in one process."""

import dagster as dg

from privacy_assets import GpuResource, PrivacyIOManager, ReleaseResource, fixed

RESOURCES = {
    "io_manager": PrivacyIOManager(),  # of assets that name none: Dagster's own one unpickles from where a run says
    "privacy_io": PrivacyIOManager(),
    "releases": ReleaseResource(),
    "gpu": GpuResource(),
}
EXECUTOR = fixed(dg.in_process_executor)
