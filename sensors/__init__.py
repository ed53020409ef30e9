"""Schedules and sensors of this deployment; start them in the UI."""

from privacy_assets import build_failed_check_sensor, build_table_schedule

SCHEDULES = [build_table_schedule("patients", "0 6 * * *")]
SENSORS = [build_failed_check_sensor()]
