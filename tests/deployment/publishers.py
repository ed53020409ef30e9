"""Unattended launches of ``published`` alone: sensors, a schedule and the automation sensor."""

from collections.abc import Iterator

import dagster as dg


def publishers(location: str, table: str) -> dg.Definitions:
    """One of each kind. All are stopped until a test starts them, except the automation sensor."""
    published = dg.AssetSelection.assets([table, "published"])
    job = dg.define_asset_job("publish", selection=published)

    @dg.sensor(name="by_selection", asset_selection=published, minimum_interval_seconds=5)
    def by_selection() -> Iterator[dg.RunRequest]:
        yield dg.RunRequest(run_key="once")

    @dg.sensor(name="by_job", job=job, minimum_interval_seconds=5)
    def by_job() -> Iterator[dg.RunRequest]:
        yield dg.RunRequest(run_key="once")

    @dg.asset_sensor(
        dg.AssetKey([table, "synthetic"]), name="by_asset", job=job, minimum_interval_seconds=5
    )
    def by_asset() -> Iterator[dg.RunRequest]:
        yield dg.RunRequest(run_key="once")

    @dg.schedule(name="by_schedule", job=job, cron_schedule="* * * * *")
    def by_schedule() -> Iterator[dg.RunRequest]:
        yield dg.RunRequest(run_key="once")

    automation = dg.AutomationConditionSensorDefinition(
        f"{location}_automation",
        target=dg.AssetSelection.all(),
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=5,
    )
    return dg.Definitions(
        jobs=[job],
        schedules=[by_schedule],
        sensors=[by_selection, by_job, by_asset, automation],
        executor=dg.in_process_executor,
    )
