"""Split a private table, generate and attack a synthetic one, and publish it only if it meets the
policy.

DAG `visits` publishes. DAG `visits_readers` of another team runs after each release and reads only
the release.
"""

from datetime import datetime
from pathlib import Path

from airflow.sdk import DAG, task

from privacy_assets import TableSpec
from privacy_assets.airflow import AirflowDeployment, privacy_gate, release_asset

# For a trial, all files are in this project. In production, use folders that all workers share,
# outside of the deployed code, and a private folder that only the gate's user can read.
# Alternatively set PRIVACY_ASSETS_RELEASES and the other variables in the workers' environment.
PROJECT = Path(__file__).resolve().parents[1]
RELEASES = PROJECT / "gate" / "releases"

TABLE = TableSpec(
    name="visits",
    source=PROJECT / "data" / "visits.csv",
    subject="person",  # the person of a row; all rows of a person are on one side of the split
    # or your own "module:function"
    generator={"name": "synthpop", "settings": {"min_samples_leaf": 100}},
)

with DAG(
    "visits", schedule="@weekly", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1
):
    privacy_gate(TABLE, deployment=AirflowDeployment(releases=RELEASES))

with DAG("visits_readers", schedule=release_asset("visits"), catchup=False):

    @task
    def report() -> dict[str, float]:
        """Read the current release. read_published verifies it; do not trust the event that started
        this run.
        """
        import privacy_assets as pa

        released = pa.read_published(RELEASES, "visits")
        return {"rows": len(released), "visits": float(released["doctor_visits"].mean())}

    report()
