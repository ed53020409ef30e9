"""DAGs of `make demo-airflow` and `make demo-airflow-leak`: a real health survey, and a generator
that memorizes it.

The environment variable PRIVACY_ASSETS_RELEASES names the folder of releases.
"""

from airflow.sdk import DAG

from privacy_assets.airflow import privacy_gate
from privacy_assets.metrics.registry import default_metrics

EVALUATION = {"metrics": [*default_metrics(), "data_privacy"]}  # with Gretel's Data Privacy Score

with DAG("patients", schedule=None, max_active_runs=1) as non_leaking:
    privacy_gate("patients", source="demo", subject="person", evaluation=EVALUATION)

MEMORIZING = {
    "name": "synthpop",
    "settings": {"min_samples_leaf": 1, "shrinkage": 0, "smoothing": False},
}  # a leaf for every row

with DAG("patients_leak", schedule=None, max_active_runs=1) as leaks:
    privacy_gate(
        "patients_leak",
        source="demo",
        subject="person",
        generator=MEMORIZING,
        evaluation=EVALUATION,
    )
