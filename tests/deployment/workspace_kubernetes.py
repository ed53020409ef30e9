"""The code location in Kubernetes: two tables, the resources of production, a pod for each step."""

import os
from pathlib import Path

import dagster as dg
from standins import QUICK, independent, study_of, table_of

from resources.kubernetes import EXECUTOR, RESOURCES

SOURCE = Path(os.environ["DEPLOYMENT_ROOT"]) / "people.parquet"
GPU = {"dagster-k8s/config": {"container_config": {"resources": {"limits": {"nvidia.com/gpu": 1}}}}}
NETS = {
    "source": SOURCE, "subject": "pid", "generator": "rvae", "metrics": ["dcr", "linkability"],
    "gpu_tags": GPU,
}  # fmt: skip

defs = dg.Definitions.merge(
    table_of("people", source=SOURCE, subject="pid", generator=independent, **QUICK),
    table_of("nets", **NETS),
    study_of("nets", **NETS),
    dg.Definitions(resources=RESOURCES, executor=EXECUTOR),
)  # fmt: skip
