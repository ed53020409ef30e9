"""The demo table as a cluster runs it: measured on Ray, with the resources of production."""

import dagster as dg
from dagster_ray import LocalRay
from standins import table_of

from privacy_assets import fixed
from resources.production import RESOURCES

RAY = fixed(LocalRay(ray_init_options={"num_cpus": 2, "include_dashboard": False, "log_to_driver": False}))

defs = dg.Definitions.merge(
    table_of(
        "patients",
        source="demo",
        subject="person",
        generator={"name": "synthpop", "settings": {"min_leaf": 1000}},
        shares={"train": 0.4, "holdout": 0.4, "reference": 0.2},
        embedder={"max_epochs": 12},
        workers="ray",
    ),
    dg.Definitions(resources={**RESOURCES, "ray": RAY}, executor=dg.in_process_executor),
)
