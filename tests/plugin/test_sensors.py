"""Schedule, source sensor and alerts, ticked by hand against real instances."""

import json
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import dagster as dg
import pytest
from standins import QUICK, checks, independent, memorise, people, resources, run, sqlite_instance, table_of

from privacy_assets import build_failed_check_sensor, build_source_sensor, build_table_schedule
from privacy_assets.dagster.run_requests import TAG
from privacy_assets.errors import ConfigError


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["in memory", "sqlite"])
def instance(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    made = sqlite_instance(tmp_path) if request.param else dg.DagsterInstance.ephemeral()
    with made as found:
        yield found


def table(place: Path, **changes: object) -> dg.Definitions:
    source = place / "people.parquet"
    if not source.exists():
        people(100).to_parquet(source)
    arguments = {"source": source, "subject": "pid", "generator": independent, **QUICK, **changes}
    return dg.Definitions.merge(
        table_of("people", **arguments),
        dg.Definitions(
            schedules=[build_table_schedule("people", "0 6 * * *")],
            sensors=[build_source_sensor("people", str(changes.get("source", source))), build_failed_check_sensor()],
        ),
        resources(place),
    )


def tick(defs: dg.Definitions, name: str, instance: dg.DagsterInstance, cursor: str | None = None):
    sensor = defs.resolve_sensor_def(name) if hasattr(defs, "resolve_sensor_def") else defs.get_sensor_def(name)
    with dg.build_sensor_context(
        instance=instance, cursor=cursor, definitions=defs, resources=defs.resources
    ) as context:
        return sensor.evaluate_tick(context)


def scheduled(defs: dg.Definitions, instance: dg.DagsterInstance):
    schedule = defs.resolve_schedule_def("people_schedule")
    with dg.build_schedule_context(
        instance=instance, repository_def=defs.get_repository_def(), resources=defs.resources
    ) as context:
        return schedule.evaluate_tick(context)


def verdict(instance: dg.DagsterInstance, fingerprint: str) -> None:
    """What a finished run leaves behind: source and attestation."""
    metadata = {"privacy_assets/source_fingerprint": fingerprint}
    instance.report_runless_asset_event(dg.AssetMaterialization(["people", "source"], metadata=metadata))
    instance.report_runless_asset_event(dg.AssetMaterialization(["people", "attestation"]))


def launched(instance: dg.DagsterInstance, request: dg.RunRequest, status: dg.DagsterRunStatus) -> None:
    instance.add_run(dg.DagsterRun("people_pipeline", tags=dict(request.tags), status=status))


def fingerprint_of(request: dg.RunRequest) -> str:
    return request.tags[TAG].partition("|")[2]


def test_a_new_source_runs_until_there_is_a_verdict(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    defs = table(tmp_path)
    first = tick(defs, "people_source_sensor", instance)
    (request,) = first.run_requests
    launched(instance, request, dg.DagsterRunStatus.STARTED)
    assert "under way" in tick(defs, "people_source_sensor", instance, first.cursor).skip_message
    verdict(instance, fingerprint_of(request))
    for run_record in instance.get_runs():
        instance.delete_run(run_record.run_id)
    assert "unchanged" in tick(defs, "people_source_sensor", instance, first.cursor).skip_message


def test_the_verdict_of_a_real_run_counts(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    defs = table(tmp_path, generator=memorise)
    assert not run(defs, instance).success  # blocked: that is a verdict too
    assert "unchanged" in tick(defs, "people_source_sensor", instance).skip_message


def test_three_attempts_then_a_person_must_look(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    defs, keys = table(tmp_path), set()
    for _ in range(3):
        (request,) = tick(defs, "people_source_sensor", instance).run_requests
        keys.add(request.run_key)
        launched(instance, request, dg.DagsterRunStatus.FAILURE)
    assert len(keys) == 3
    assert "3 attempts" in tick(defs, "people_source_sensor", instance).skip_message


def test_a_source_that_goes_back_runs_again(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    defs, source = table(tmp_path), tmp_path / "people.parquet"
    first_bytes, seen, cursor = source.read_bytes(), [], None
    for content in (first_bytes, None, first_bytes):
        if content is None:
            people(120).to_parquet(source)
        else:
            source.write_bytes(content)
        found = tick(defs, "people_source_sensor", instance, cursor)
        (request,) = found.run_requests
        launched(instance, request, dg.DagsterRunStatus.SUCCESS)
        verdict(instance, fingerprint_of(request))
        cursor = found.cursor
        seen.append(request)
    assert fingerprint_of(seen[0]) == fingerprint_of(seen[2]) != fingerprint_of(seen[1])
    assert len({request.run_key for request in seen}) == 3


def test_a_touched_file_is_read_again_and_an_untouched_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    from privacy_assets.dagster import sensors

    reads = []
    real = sensors.files_fingerprint
    monkeypatch.setattr(sensors, "files_fingerprint", lambda path, key: reads.append(path) or real(path, key))
    defs = table(tmp_path)
    first = tick(defs, "people_source_sensor", instance)
    again = tick(defs, "people_source_sensor", instance, first.cursor)
    assert len(reads) == 1 and again.cursor == first.cursor
    os.utime(tmp_path / "people.parquet", ns=(1, 1))
    touched = tick(defs, "people_source_sensor", instance, again.cursor)
    assert len(reads) == 2
    assert touched.run_requests[0].run_key == first.run_requests[0].run_key  # the bytes are the same


def test_a_missing_file_and_a_wrong_name_say_so(tmp_path: Path) -> None:
    defs = table(tmp_path)
    (tmp_path / "people.parquet").unlink()
    with sqlite_instance(tmp_path) as instance:
        assert "no such file" in tick(defs, "people_source_sensor", instance).skip_message
        assert "no such file" in scheduled(defs, instance).skip_message


def test_a_wrong_table_name_is_caught(tmp_path: Path) -> None:
    wrong = dg.Definitions(
        schedules=[build_table_schedule("peeple", "0 6 * * *")],
        sensors=[build_failed_check_sensor("watch", tables=["peeple"])],
    )
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="peeple_pipeline"):
        dg.Definitions.validate_loadable(dg.Definitions.merge(table(tmp_path), wrong))
    defs = dg.Definitions.merge(table(tmp_path), dg.Definitions(sensors=wrong.sensors))
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(ConfigError, match="mean 'people'"):
        tick(defs, "watch", instance)


def test_a_sensor_on_a_table_without_a_source_does_not_loop(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    files = {role: tmp_path / f"{role}.csv" for role in ("train", "holdout", "synthetic")}
    for seed, (role, file) in enumerate(files.items()):
        people(100, seed).assign(pid=lambda frame, role=role: role + frame["pid"]).to_csv(file, index=False)
    people(100, 3).drop(columns="pid").to_csv(files["synthetic"], index=False)
    sensor = build_source_sensor("people", str(files["synthetic"]))
    tables = table_of("people", subject="pid", **files, **QUICK)
    defs = dg.Definitions.merge(tables, dg.Definitions(sensors=[sensor]), resources(tmp_path))
    (request,) = tick(defs, "people_source_sensor", instance).run_requests
    job = defs.resolve_job_def("people_pipeline")
    job.execute_in_process(instance=instance, tags=dict(request.tags), raise_on_error=False)
    assert "unchanged" in tick(defs, "people_source_sensor", instance).skip_message
    people(100, 4).drop(columns="pid").to_csv(files["synthetic"], index=False)
    assert len(tick(defs, "people_source_sensor", instance).run_requests) == 1


def test_the_schedule_runs_only_for_a_new_source(tmp_path: Path) -> None:
    defs = table(tmp_path)
    with sqlite_instance(tmp_path) as instance:
        (request,) = scheduled(defs, instance).run_requests
        assert request.tags[TAG].startswith("people|")
        verdict(instance, fingerprint_of(request))  # of a run by hand, without the schedule's tag
        assert "unchanged" in scheduled(defs, instance).skip_message
        people(150).to_parquet(tmp_path / "people.parquet")
        assert len(scheduled(defs, instance).run_requests) == 1


def test_partitions_are_looked_at_one_by_one(tmp_path: Path) -> None:
    people(100).to_csv(tmp_path / "people_north.csv", index=False)
    regions = dg.StaticPartitionsDefinition(["north", "south"])
    defs = table(tmp_path, source=str(tmp_path / "people_{partition}.csv"), partitions_def=regions)
    with sqlite_instance(tmp_path) as instance:
        assert [r.partition_key for r in scheduled(defs, instance).run_requests] == ["north"]
        assert [r.partition_key for r in tick(defs, "people_source_sensor", instance).run_requests] == ["north"]


def test_schedules_and_sensors_are_stopped_by_default(tmp_path: Path) -> None:
    defs = table(tmp_path)
    assert all(s.default_status == dg.DefaultSensorStatus.STOPPED for s in defs.sensors)
    assert all(s.default_status == dg.DefaultScheduleStatus.STOPPED for s in defs.schedules)


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list]]:
    got: dict[str, list] = {"bodies": [], "answers": []}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got["bodies"].append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(got["answers"].pop(0) if got["answers"] else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("PRIVACY_ASSETS_WEBHOOK", f"http://127.0.0.1:{server.server_port}/hook")
    yield got
    server.shutdown()


def test_each_failed_check_alerts_once(tmp_path: Path, instance: dg.DagsterInstance, webhook: dict[str, list]) -> None:
    defs = table(tmp_path, generator=memorise)
    quiet = tick(defs, "privacy_check_alerts", instance)
    assert quiet.skip_message.startswith("0 alerts")
    blocked = run(defs, instance)
    webhook["answers"] += [200, 500]
    first = tick(defs, "privacy_check_alerts", instance, quiet.cursor)
    assert first.skip_message.startswith("1 alerts, one to be sent again") and len(webhook["bodies"]) == 2
    second = tick(defs, "privacy_check_alerts", instance, first.cursor)
    assert tick(defs, "privacy_check_alerts", instance, second.cursor).skip_message.startswith("0 alerts,")
    told = [body["check"] for body in webhook["bodies"]]
    broken = sorted(name for (_, name), found in checks(blocked).items() if not found.passed)
    assert sorted(set(told)) == broken and {"dcr_identical_excess_lower", "policy_holds"} <= set(broken)
    assert len(told) == len(broken) + 1  # one of them twice: the webhook had not taken it
    assert {body["run_id"] for body in webhook["bodies"]} == {blocked.run_id}
    assert "above the limit" in webhook["bodies"][0]["text"] or "verdict" in webhook["bodies"][0]["text"]
    assert run(defs, instance).success is False
    third = tick(defs, "privacy_check_alerts", instance, second.cursor)
    assert third.skip_message.startswith(f"{len(broken)} alerts,")


def test_a_slow_webhook_does_not_outlast_the_tick(
    tmp_path: Path, webhook: dict[str, list], monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    from privacy_assets.dagster import sensors

    defs = table(tmp_path, generator=memorise)
    cursor = tick(defs, "privacy_check_alerts", instance).cursor
    run(defs, instance)
    clock = iter(range(0, 1000, 15))
    monkeypatch.setattr(sensors.time, "monotonic", lambda: float(next(clock)))
    first = tick(defs, "privacy_check_alerts", instance, cursor)
    assert first.skip_message.startswith("1 alerts, more at the next tick")
    tick(defs, "privacy_check_alerts", instance, first.cursor)
    told = [body["check"] for body in webhook["bodies"]]
    assert len(told) == len(set(told)) == 2


@pytest.mark.slow
def test_alerts_of_partitions(tmp_path: Path, webhook: dict[str, list], instance: dg.DagsterInstance) -> None:
    regions = dg.StaticPartitionsDefinition(["north", "south"])
    defs = table(tmp_path, generator=memorise, partitions_def=regions, partition_column="region")
    cursor = tick(defs, "privacy_check_alerts", instance).cursor
    for region in ("north", "south"):
        run(defs, instance, partition=region)
    tick(defs, "privacy_check_alerts", instance, cursor)
    assert {body["partition"] for body in webhook["bodies"] if body["check"] == "policy_holds"} == {"north", "south"}


def test_an_address_that_is_no_web_address(monkeypatch: pytest.MonkeyPatch) -> None:
    from privacy_assets.dagster.alerts import webhook_of

    monkeypatch.setenv("HOOK", "file:///etc/passwd")
    with pytest.raises(ConfigError, match="HOOK"):
        webhook_of("HOOK")
    assert webhook_of("NO_SUCH_HOOK") is None
