"""One machine: everything below DAGSTER_HOME, all steps in one process."""

import dagster as dg

from privacy_assets import GpuResource, PrivacyIOManager, ReleaseResource

RESOURCES = {"privacy_io": PrivacyIOManager(), "releases": ReleaseResource(), "gpu": GpuResource()}
EXECUTOR = dg.in_process_executor
