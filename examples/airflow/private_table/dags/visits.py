"""A private table of your own: split, synthesised, attacked, judged, and published only if the policy holds.

DAG `visits` publishes; DAG `visits_readers`, of another team, runs after each release and reads nothing else.
"""

from datetime import datetime
from pathlib import Path

from airflow.sdk import DAG, task

from privacy_assets import TableSpec
from privacy_assets.airflow import GateDeployment, privacy_gate, release_asset

# For a trial all lies in this project. Later: folders that all workers share, outside of what is deployed, and a
# private folder that only the gate's user can read (or PRIVACY_ASSETS_RELEASES, ... in the workers' environment).
PROJECT = Path(__file__).resolve().parents[1]
RELEASES = PROJECT / "gate" / "releases"

TABLE = TableSpec(
    name="visits",
    source=PROJECT / "data" / "visits.csv",
    subject="person",  # who a row is about: the split goes by person
    generator={"name": "synthpop", "settings": {"min_leaf": 100}},  # or "module:function" of your own
)

with DAG("visits", schedule="@weekly", start_date=datetime(2026, 1, 1), catchup=False):
    privacy_gate(TABLE, deployment=GateDeployment(RELEASES))

with DAG("visits_readers", schedule=release_asset("visits"), catchup=False):

    @task
    def report() -> dict[str, float]:
        """Read the current release. The event that started this run proves nothing: read_published verifies."""
        import privacy_assets as pa

        released = pa.read_published(RELEASES, "visits")
        return {"rows": len(released), "visits": float(released["doctor_visits"].mean())}

    report()
