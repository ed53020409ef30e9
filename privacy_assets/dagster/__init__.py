"""Dagster integration: assets, checks, sensors, schedules and resources."""

from privacy_assets.errors import require

for _package in ("dagster", "great_expectations"):
    require(_package, "the Dagster part of privacy-assets", "dagster")
