"""Schedules and sensors of this deployment. Start them in the UI."""

import os

from privacy_assets import build_run_failure_sensor, build_table_schedule

SCHEDULES = [build_table_schedule("patients", "0 6 * * *")]
SENSORS = [
    build_run_failure_sensor(
        webserver_base_url=os.environ.get("DAGSTER_URL", "http://localhost:3000")
    )
]
