"""The demo table on a cluster: evaluated on Ray, with the resources of production."""

import dagster as dg
from dagster_ray import LocalRay

from privacy_assets import TableSpec, build_privacy_assets, frozen_config
from resources.production import RESOURCES

RAY = frozen_config(
    LocalRay(ray_init_options={"num_cpus": 2, "include_dashboard": False, "log_to_driver": False})
)
PATIENTS = TableSpec(name="patients", source="demo", subject="person", run={"workers": "ray"})

defs = dg.Definitions.merge(
    build_privacy_assets(PATIENTS),
    dg.Definitions(resources={**RESOURCES, "ray": RAY}, executor=dg.in_process_executor),
)
