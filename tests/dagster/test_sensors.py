"""Schedule and sensors, ticked by hand against real instances."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from standins import QUICK, failed_run, memorise, people, people_table, resources, run, sqlite_instance, table_of

from privacy_assets import build_run_failure_sensor, build_source_sensor, build_table_schedule
from privacy_assets.dagster import sensors
from privacy_assets.dagster.sensors import TAG

REGIONS = dg.StaticPartitionsDefinition(["north", "south"])


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance that schedules can read."""
    with sqlite_instance(tmp_path) as found:
        yield found


def table(place: Path, **changes: object) -> dg.Definitions:
    defs = people_table(place, **changes)
    source = build_source_sensor("people", str(changes.get("source", place / "people.parquet")))
    own = dg.Definitions(
        schedules=[build_table_schedule("people", "0 6 * * *")], sensors=[source, build_run_failure_sensor()]
    )
    return dg.Definitions.merge(defs, own)


def tick(defs: dg.Definitions, instance: dg.DagsterInstance, cursor: str | None = None) -> Any:
    given = {"instance": instance, "definitions": defs, "resources": defs.resources}
    with dg.build_sensor_context(cursor=cursor, **given) as context:
        return defs.resolve_sensor_def("people_source_sensor").evaluate_tick(context)


def scheduled(defs: dg.Definitions, instance: dg.DagsterInstance) -> Any:
    given = {"instance": instance, "repository_def": defs.get_repository_def(), "resources": defs.resources}
    with dg.build_schedule_context(**given) as context:
        return defs.resolve_schedule_def("people_schedule").evaluate_tick(context)


def verdict(instance: dg.DagsterInstance, request: dg.RunRequest) -> None:
    """The records of a finished run: source and attestation."""
    metadata = {"privacy_assets/source_fingerprint": fingerprint_of(request)}
    instance.report_runless_asset_event(dg.AssetMaterialization(["people", "source"], metadata=metadata))
    instance.report_runless_asset_event(dg.AssetMaterialization(["people", "attestation"]))


def launched(instance: dg.DagsterInstance, request: dg.RunRequest, status: dg.DagsterRunStatus) -> None:
    instance.add_run(dg.DagsterRun("people_pipeline", tags=dict(request.tags), status=status))


def fingerprint_of(request: dg.RunRequest) -> str:
    return request.tags[TAG].partition("|")[2]


def test_a_new_source_runs_until_there_is_a_verdict(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    defs = table(tmp_path)
    first = tick(defs, instance)
    (request,) = first.run_requests
    launched(instance, request, dg.DagsterRunStatus.STARTED)
    assert "in progress" in tick(defs, instance, first.cursor).skip_message
    verdict(instance, request)
    for run_record in instance.get_runs():
        instance.delete_run(run_record.run_id)
    assert "unchanged" in tick(defs, instance, first.cursor).skip_message


def test_three_attempts_then_a_person_must_look(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    defs, keys = table(tmp_path), set()
    for _ in range(3):
        (request,) = tick(defs, instance).run_requests
        keys.add(request.run_key)
        launched(instance, request, dg.DagsterRunStatus.FAILURE)
    assert len(keys) == 3
    assert "3 attempts" in tick(defs, instance).skip_message


def test_a_source_that_goes_back_runs_again(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    defs, seen, cursor = table(tmp_path), [], None
    for seed in (0, 1, 0):
        people(100, seed).to_parquet(tmp_path / "people.parquet")
        found = tick(defs, instance, cursor)
        (request,) = found.run_requests
        launched(instance, request, dg.DagsterRunStatus.SUCCESS)
        verdict(instance, request)
        cursor = found.cursor
        seen.append(request)
    assert fingerprint_of(seen[0]) == fingerprint_of(seen[2]) != fingerprint_of(seen[1])
    assert len({request.run_key for request in seen}) == 3


def test_a_touched_file_is_read_again_and_an_untouched_one_is_not(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    real = sensors.files_fingerprint
    monkeypatch.setattr(sensors, "files_fingerprint", lambda path, key: reads.append(path) or real(path, key))
    defs = table(tmp_path)
    first = tick(defs, instance)
    again = tick(defs, instance, first.cursor)
    assert len(reads) == 1 and again.cursor == first.cursor
    os.utime(tmp_path / "people.parquet", ns=(1, 1))
    touched = tick(defs, instance, again.cursor)
    assert len(reads) == 2
    assert touched.run_requests[0].run_key == first.run_requests[0].run_key  # the bytes are the same


WRONG_CURSORS = [
    "[]",
    "null",
    "3",
    '"text"',
    "{",
    "[" * 100_000,
    '{"": null}',
    '{"": [1]}',
    '{"": {}}',
    '{"": [[], ""]}',
]


@pytest.mark.parametrize("cursor", WRONG_CURSORS, ids=range(len(WRONG_CURSORS)))
def test_a_cursor_that_is_not_the_expected_mapping_is_reset(
    cursor: str, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    defs = table(tmp_path)
    fresh, found = (tick(defs, instance, given) for given in (None, cursor))
    assert found.cursor == fresh.cursor
    assert [one.run_key for one in found.run_requests or ()] == [one.run_key for one in fresh.run_requests or ()]


def test_a_missing_file_says_so(tmp_path: Path, stored: dg.DagsterInstance) -> None:
    defs = table(tmp_path)
    (tmp_path / "people.parquet").unlink()
    for found in (tick(defs, stored), scheduled(defs, stored)):
        assert "no such file" in found.skip_message


def test_a_wrong_table_name_is_caught(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    source = dg.Definitions(sensors=[build_source_sensor("peeple", str(tmp_path / "people.parquet"))])
    wrong = dg.Definitions(schedules=[build_table_schedule("peeple", "0 6 * * *")])
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="peeple_pipeline"):
        dg.Definitions.validate_loadable(dg.Definitions.merge(table(tmp_path), wrong))
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="peeple_pipeline"):
        dg.Definitions.validate_loadable(dg.Definitions.merge(table(tmp_path), source))


@pytest.mark.slow
def test_a_sensor_on_a_table_without_a_source_does_not_loop(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """The verdict of a real run counts."""
    files = {role: tmp_path / f"{role}.csv" for role in ("train", "holdout", "synthetic")}
    for seed, (role, file) in enumerate(files.items()):
        rows = people(100, seed).assign(pid=lambda frame, role=role: role + frame["pid"])
        rows.drop(columns=["pid"] if role == "synthetic" else []).to_csv(file, index=False)
    sensor = build_source_sensor("people", str(files["synthetic"]))
    tables = table_of("people", subject="pid", **files, **QUICK)
    defs = dg.Definitions.merge(tables, dg.Definitions(sensors=[sensor]), resources(tmp_path))
    (request,) = tick(defs, instance).run_requests
    job = defs.resolve_job_def("people_pipeline")
    job.execute_in_process(instance=instance, tags=dict(request.tags), raise_on_error=False)
    assert "unchanged" in tick(defs, instance).skip_message
    people(100, 4).drop(columns="pid").to_csv(files["synthetic"], index=False)
    assert len(tick(defs, instance).run_requests) == 1


def test_the_schedule_runs_only_for_a_new_source(tmp_path: Path, stored: dg.DagsterInstance) -> None:
    defs = table(tmp_path)
    (request,) = scheduled(defs, stored).run_requests
    assert request.tags[TAG].startswith("people|")
    verdict(stored, request)  # of a run by hand, without the schedule's tag
    assert "unchanged" in scheduled(defs, stored).skip_message
    people(150).to_parquet(tmp_path / "people.parquet")
    assert len(scheduled(defs, stored).run_requests) == 1


def test_partitions_are_looked_at_one_by_one(tmp_path: Path, stored: dg.DagsterInstance) -> None:
    people(100).to_csv(tmp_path / "people_north.csv", index=False)
    defs = table(tmp_path, source=str(tmp_path / "people_{partition}.csv"), partitions_def=REGIONS)
    for found in (scheduled(defs, stored), tick(defs, stored)):
        assert [request.partition_key for request in found.run_requests] == ["north"]


def test_schedules_and_sensors_are_stopped_by_default(tmp_path: Path) -> None:
    defs = table(tmp_path)
    assert all(s.default_status == dg.DefaultSensorStatus.STOPPED for s in defs.sensors)
    assert all(s.default_status == dg.DefaultScheduleStatus.STOPPED for s in defs.schedules)


def test_a_rejected_publication_is_a_failed_run_that_is_reported(
    tmp_path: Path, instance: dg.DagsterInstance, capsys: pytest.CaptureFixture[str]
) -> None:
    defs = table(tmp_path, generator=memorise, partitions_def=REGIONS, partition_column="region")
    blocked = run(defs, instance, partition="north")
    told: list[str] = []
    for notify in (told.append, None):
        build_run_failure_sensor(notify)(failed_run(blocked, instance))
    (text,) = told
    assert text.startswith(f"run {blocked.run_id} of people_pipeline, partition north failed.\n  people__attest: ")
    assert "dcr.identical_excess" in text and capsys.readouterr().err.count(text) == 2


def test_an_error_of_another_asset_is_reported_without_its_message(instance: dg.DagsterInstance) -> None:
    @dg.asset
    def breaks() -> None:
        raise ValueError("a private value")

    result = dg.materialize([breaks], instance=instance, raise_on_error=False)
    told: list[str] = []
    build_run_failure_sensor(told.append)(failed_run(result, instance))
    assert told[0].endswith("failed.\n  breaks: see the log of the run")
