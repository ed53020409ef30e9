"""Schedule and sensors, ticked by hand against real instances."""

import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import fsspec
import pandas as pd
import pytest
from standins import (
    QUICK,
    memorize,
    people,
    people_table,
    resources,
    run,
    sqlite_instance,
    table_of,
)

from privacy_assets import build_run_failure_sensor, build_source_sensor, build_table_schedule
from privacy_assets.dagster import sensors
from privacy_assets.dagster.sensors import TAG
from privacy_assets.errors import TableSuspended
from privacy_assets.gate.deployment import DeploymentSettings
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.keeper import Keeper
from privacy_assets.gate.log import LogState
from privacy_assets.gate.release import Pointer
from privacy_assets.pipeline.current_release import day
from privacy_assets.pipeline.lease import Lease

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
        schedules=[build_table_schedule("people", "0 6 * * *")],
        sensors=[source, build_run_failure_sensor()],
    )
    return dg.Definitions.merge(defs, own)


def tick(defs: dg.Definitions, instance: dg.DagsterInstance, cursor: str | None = None) -> Any:
    given = {"instance": instance, "definitions": defs, "resources": defs.resources}
    with dg.build_sensor_context(cursor=cursor, **given) as context:
        return defs.resolve_sensor_def("people_source_sensor").evaluate_tick(context)


def scheduled(defs: dg.Definitions, instance: dg.DagsterInstance) -> Any:
    given = {
        "instance": instance,
        "repository_def": defs.get_repository_def(),
        "resources": defs.resources,
    }
    with dg.build_schedule_context(**given, scheduled_execution_time=datetime.now(UTC)) as context:
        return defs.resolve_schedule_def("people_schedule").evaluate_tick(context)


def verdict(instance: dg.DagsterInstance, request: dg.RunRequest) -> None:
    """The records of a finished run: source and attestation."""
    metadata = {"privacy_assets/source_fingerprint": fingerprint_of(request)}
    instance.report_runless_asset_event(
        dg.AssetMaterialization(["people", "source"], metadata=metadata)
    )
    instance.report_runless_asset_event(dg.AssetMaterialization(["people", "attestation"]))


def launched(
    instance: dg.DagsterInstance, request: dg.RunRequest, status: dg.DagsterRunStatus
) -> None:
    instance.add_run(dg.DagsterRun("people_pipeline", tags=dict(request.tags), status=status))


def fingerprint_of(request: dg.RunRequest) -> str:
    return request.tags[TAG].partition("|")[2]


def test_a_new_source_runs_until_there_is_a_verdict(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    defs = table(tmp_path)
    first = tick(defs, instance)
    (request,) = first.run_requests
    launched(instance, request, dg.DagsterRunStatus.STARTED)
    assert "in progress" in tick(defs, instance, first.cursor).skip_message
    verdict(instance, request)
    for run_record in instance.get_runs():
        instance.delete_run(run_record.run_id)
    assert "has not changed since" in tick(defs, instance, first.cursor).skip_message


def test_a_run_of_any_kind_stops_the_next_request(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """A run by hand, or from the asset graph. Not a part of the pipeline, or another table."""
    defs = table(tmp_path)
    attestation, score = (dg.AssetKey(["people", name]) for name in ("attestation", "dcr"))
    graph = "__ASSET_JOB"
    for job, selection, status, waits in (
        ("people_pipeline", None, dg.DagsterRunStatus.STARTED, True),
        (graph, {attestation, score}, dg.DagsterRunStatus.STARTING, True),
        ("people_pipeline", {score}, dg.DagsterRunStatus.STARTED, False),
        (graph, {dg.AssetKey(["visits", "attestation"])}, dg.DagsterRunStatus.STARTED, False),
        ("visits_pipeline", None, dg.DagsterRunStatus.STARTED, False),
        ("people_pipeline", None, dg.DagsterRunStatus.CANCELED, False),
    ):
        other = dg.DagsterRun(
            job, asset_selection=selection and frozenset(selection), status=status
        )
        instance.add_run(other)
        found = tick(defs, instance)
        assert bool(found.run_requests) != waits
        if waits:
            text = (
                f"people: run {other.run_id} is in progress. Fix: wait for it, or terminate it if"
                " its process was"
            )
            assert found.skip_message == f"{text} killed."
        instance.delete_run(other.run_id)


def test_a_run_that_holds_the_lock_is_named_with_process_host_and_start(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    defs = table(tmp_path)
    tick(defs, instance)
    first = dg.DagsterRun("people_pipeline", status=dg.DagsterRunStatus.FAILURE)
    again = dg.DagsterRun(
        "people_pipeline",
        status=dg.DagsterRunStatus.STARTED,
        root_run_id=first.run_id,
        parent_run_id=first.run_id,
    )
    instance.add_run(first)
    instance.add_run(again)
    with Lease(tmp_path / "private", "people", first.run_id).held(lambda run: False):
        holder = f"run {first.run_id} (process {os.getpid()} on {socket.gethostname()}) started on "
        assert tick(defs, instance).skip_message.startswith(f"people: {holder}")
    with Lease(tmp_path / "private", "people", "another").held(lambda run: True):
        assert tick(defs, instance).skip_message.startswith(
            f"people: run {again.run_id} is in progress."
        )


def test_three_attempts_then_a_person_must_look(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
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
    monkeypatch.setattr(
        sensors, "files_fingerprint", lambda path, key: reads.append(path) or real(path, key)
    )
    defs = table(tmp_path)
    first = tick(defs, instance)
    again = tick(defs, instance, first.cursor)
    assert len(reads) == 1 and again.cursor == first.cursor
    os.utime(tmp_path / "people.parquet", ns=(1, 1))
    touched = tick(defs, instance, again.cursor)
    assert len(reads) == 2
    # the bytes are the same
    assert touched.run_requests[0].run_key == first.run_requests[0].run_key


def other_rows(folder: Path, seed: int) -> pd.DataFrame:
    """Write rows of one size with one modification time."""
    frame = people(100, seed).assign(age=lambda rows: rows["age"].round().astype(int))
    text = frame.to_csv(index=False)[:2000].rpartition("\n")[0].ljust(2000, "\n")
    (folder / "people.csv").write_text(text)
    os.utime(folder / "people.csv", ns=(10**18, 10**18))
    return frame


@pytest.mark.parametrize("replaced", [False, True])
def test_other_rows_of_the_same_size_and_time_are_noticed(
    replaced: bool, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    other_rows(tmp_path, 0)
    defs = table(tmp_path, source=tmp_path / "people.csv")
    first = tick(defs, instance)
    size = (tmp_path / "people.csv").stat().st_size
    if replaced:
        (tmp_path / "people.csv").unlink()
    other_rows(tmp_path, 1)
    facts = (tmp_path / "people.csv").stat()
    assert (facts.st_size, facts.st_mtime_ns) == (size, 10**18)
    second = tick(defs, instance, first.cursor)
    assert fingerprint_of(first.run_requests[0]) != fingerprint_of(second.run_requests[0])


def test_other_objects_of_the_same_size_and_time_are_noticed(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """This store has no entity tags, so its objects are read at every tick."""
    store = fsspec.filesystem("memory")
    place = f"memory://{tmp_path.name}/people.csv"
    tokens = []
    for seed in (0, 1):
        other_rows(tmp_path, seed)
        store.pipe_file(place, (tmp_path / "people.csv").read_bytes())
        store.store[f"/{tmp_path.name}/people.csv"].created = datetime(2026, 1, 1, tzinfo=UTC)
        tokens.append(sensors._file_version(place, tokens[-1] if tokens else None, b"key"))
    assert tokens[0][1] != tokens[1][1]


def test_a_renamed_hive_folder_is_another_source(tmp_path: Path) -> None:
    (tmp_path / "sex=F").mkdir()
    people(50, 0).to_parquet(tmp_path / "sex=F" / "0.parquet")
    before = sensors.files_fingerprint(str(tmp_path), b"key")
    (tmp_path / "sex=F").rename(tmp_path / "sex=M")
    assert sensors.files_fingerprint(str(tmp_path), b"key") != before


def test_a_folder_that_is_no_table_skips_the_tick_and_fails_the_run(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    folder = tmp_path / "in"
    (folder / "_delta_log").mkdir(parents=True)
    people(100, 0).to_parquet(folder / "0.parquet")
    defs = table(tmp_path, source=folder)
    assert "this is a Delta table" in tick(defs, instance).skip_message
    assert not run(defs, instance).success


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


@pytest.mark.slow
@pytest.mark.parametrize("cursor", WRONG_CURSORS, ids=range(len(WRONG_CURSORS)))
def test_a_cursor_that_is_not_the_expected_mapping_is_reset(
    cursor: str, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    defs = table(tmp_path)
    fresh, found = (tick(defs, instance, given) for given in (None, cursor))
    assert found.cursor == fresh.cursor
    assert [one.run_key for one in found.run_requests or ()] == [
        one.run_key for one in fresh.run_requests or ()
    ]


def test_a_missing_file_says_so(tmp_path: Path, stored: dg.DagsterInstance) -> None:
    defs = table(tmp_path)
    (tmp_path / "people.parquet").unlink()
    for found in (tick(defs, stored), scheduled(defs, stored)):
        assert "no such file" in found.skip_message


def test_a_wrong_table_name_is_caught(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    source = dg.Definitions(
        sensors=[build_source_sensor("peeple", str(tmp_path / "people.parquet"))]
    )
    wrong = dg.Definitions(schedules=[build_table_schedule("peeple", "0 6 * * *")])
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="peeple_pipeline"):
        dg.Definitions.validate_loadable(dg.Definitions.merge(table(tmp_path), wrong))
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="peeple_pipeline"):
        dg.Definitions.validate_loadable(dg.Definitions.merge(table(tmp_path), source))


@pytest.mark.slow
def test_a_sensor_on_a_table_without_a_source_does_not_loop(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
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
    assert "has not changed since" in tick(defs, instance).skip_message
    people(100, 4).drop(columns="pid").to_csv(files["synthetic"], index=False)
    assert len(tick(defs, instance).run_requests) == 1


def test_the_schedule_runs_only_for_a_new_source(
    tmp_path: Path, stored: dg.DagsterInstance
) -> None:
    defs = table(tmp_path)
    (request,) = scheduled(defs, stored).run_requests
    assert request.tags[TAG].startswith("people|")
    verdict(stored, request)  # of a run by hand, without the schedule's tag
    assert "has not changed since" in scheduled(defs, stored).skip_message
    people(150).to_parquet(tmp_path / "people.parquet")
    assert len(scheduled(defs, stored).run_requests) == 1


def test_partitions_are_looked_at_one_by_one(tmp_path: Path, stored: dg.DagsterInstance) -> None:
    people(100).to_csv(tmp_path / "people_north.csv", index=False)
    defs = table(tmp_path, source=str(tmp_path / "people_{partition}.csv"), partitions_def=REGIONS)
    for found in (scheduled(defs, stored), tick(defs, stored)):
        assert [request.partition_key for request in found.run_requests] == ["north"]


DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-06-01")
MAY = [f"2026-05-{day:02}" for day in range(1, 32)]


def judged(instance: dg.DagsterInstance, *partitions: str, name: str = "people") -> None:
    for partition in partitions:
        instance.report_runless_asset_event(
            dg.AssetMaterialization([name, "attestation"], partition=partition)
        )


@pytest.mark.parametrize(
    ("done", "watched"),
    [
        ([], MAY[30:]),  # a new table starts with the latest window
        (["2026-05-30"], MAY[30:]),
        (["2026-05-27"], MAY[27:]),  # three days without the daemon
        (["2026-05-27", "2026-05-31"], MAY[27:]),  # and the latest by hand
        (["2026-05-25", "2026-05-27", "2026-05-29"], [*MAY[25:26], *MAY[27:28], *MAY[29:]]),
        (MAY, MAY[30:]),
        (["2026-05-01"], MAY[1:]),
    ],
)
def test_windows_that_ended_without_the_daemon_are_watched(
    done: list[str], watched: list[str], instance: dg.DagsterInstance
) -> None:
    judged(instance, *done)
    assert sensors.partitions_to_watch(dg.AssetKey(["people", "attestation"]), DAYS, instance) == (
        watched,
        "",
    )


# the second is before the windows that are looked at
@pytest.mark.parametrize("done", ["2026-04-21", "2026-01-05"])
def test_older_windows_without_a_verdict_are_named(done: str, instance: dg.DagsterInstance) -> None:
    judged(instance, done)
    watched, note = sensors.partitions_to_watch(
        dg.AssetKey(["people", "attestation"]), DAYS, instance
    )
    assert watched == MAY[1:]
    first, n = ("2026-04-22", 10) if done == "2026-04-21" else ("2026-02-21", 70)
    assert (
        f"the {n} partitions without a verdict from {first} to 2026-05-01 are not requested" in note
    )
    assert "Fix: launch a backfill" in note


@pytest.mark.slow
def test_after_three_days_without_the_daemon_each_day_is_requested(
    tmp_path: Path, stored: dg.DagsterInstance
) -> None:
    days = ["2026-05-29", "2026-05-30", "2026-05-31"]
    for one in days:
        people(100).to_csv(tmp_path / f"people_{one}.csv", index=False)
    defs = table(tmp_path, source=str(tmp_path / "people_{partition}.csv"), partitions_def=DAYS)
    judged(stored, "2026-05-28")
    for found in (scheduled(defs, stored), tick(defs, stored)):
        assert [request.partition_key for request in found.run_requests] == days
    (tmp_path / "people_2026-05-30.csv").unlink()  # the others do not wait for it
    assert [request.partition_key for request in scheduled(defs, stored).run_requests] == [
        days[0],
        days[2],
    ]
    for one in days:
        (tmp_path / f"people_{one}.csv").unlink(missing_ok=True)
    stored.wipe_assets([dg.AssetKey(["people", "attestation"])])
    judged(stored, "2026-01-05")
    skipped = scheduled(defs, stored).skip_message
    assert (
        "from 2026-02-21 to 2026-05-01" in skipped and "25 more partitions are skipped" in skipped
    )
    assert (
        "people_2026-05-31.csv: no such file" in skipped and "people_2026-05-02.csv" not in skipped
    )


def external(place: Path, partitions: dg.PartitionsDefinition) -> dg.Definitions:
    files = {
        role: place / f"{role}_{{partition}}.csv" for role in ("train", "holdout", "synthetic")
    }
    tables = table_of("people", subject="pid", **files, **QUICK, partitions_def=partitions)
    schedule = dg.Definitions(schedules=[build_table_schedule("people", "0 6 * * *")])
    return dg.Definitions.merge(tables, schedule, resources(place))


def test_a_table_without_a_source_runs_each_partition_at_each_tick(
    tmp_path: Path, stored: dg.DagsterInstance
) -> None:
    defs, keys = external(tmp_path, REGIONS), set()
    for _ in range(2):
        requests = scheduled(defs, stored).run_requests
        assert [request.partition_key for request in requests] == ["north", "south"]
        keys |= {request.run_key for request in requests}
    assert len(keys) == 4


def test_a_table_without_a_source_requests_a_missed_window_until_it_has_a_verdict(
    tmp_path: Path, stored: dg.DagsterInstance
) -> None:
    defs = external(tmp_path, DAYS)
    judged(stored, "2026-05-29")
    first = scheduled(defs, stored).run_requests
    assert [request.partition_key for request in first] == ["2026-05-30", "2026-05-31"]
    launched(stored, first[0], dg.DagsterRunStatus.STARTED)
    assert [request.partition_key for request in scheduled(defs, stored).run_requests] == [
        "2026-05-31"
    ]


def test_schedules_and_sensors_are_stopped_by_default(tmp_path: Path) -> None:
    defs = table(tmp_path)
    assert all(s.default_status == dg.DefaultSensorStatus.STOPPED for s in defs.sensors)
    assert all(s.default_status == dg.DefaultScheduleStatus.STOPPED for s in defs.schedules)


def skipped(defs: dg.Definitions, instance: dg.DagsterInstance) -> str:
    """The reason of a tick of the schedule and of the sensor, which is the same."""
    texts = {found.skip_message for found in (scheduled(defs, instance), tick(defs, instance))}
    (text,) = texts
    return str(text)


@pytest.mark.slow
def test_the_reason_of_a_tick_has_verdict_limits_and_release(
    tmp_path: Path, stored: dg.DagsterInstance
) -> None:
    today = day(datetime.now(UTC))
    honest = table(tmp_path)
    assert run(honest, stored).success
    assert (
        skipped(honest, stored)
        == f"Skipped: the source has not changed since its release on {today}."
    )
    people(300, 1).to_parquet(tmp_path / "people.parquet")
    leaky = table(tmp_path, generator=memorize)
    assert not run(leaky, stored).success
    blocked = "dcr.identical_excess.proven, dcr.member_excess.proven"
    text = f"Skipped: the source has not changed since its verdict 'fail' on {today} ({blocked})."
    assert skipped(leaky, stored) == f"{text} The release of {today} remains current."
    (tmp_path / "releases/people/_all/latest.json").write_text("{")
    assert skipped(leaky, stored).startswith(f"{text} The current release is unknown: ")


def pointer(home: Path) -> Pointer:
    deployment = DeploymentSettings(home=home).open()
    return deployment.store.pointer(ReleaseTarget("people"), deployment.trusted)


@pytest.mark.slow
def test_a_release_of_an_unchanged_source_is_renewed_once_a_day(
    tmp_path: Path, stored: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    defs = table(tmp_path)
    assert run(defs, stored).success
    before = pointer(tmp_path)
    assert "has not changed since" in skipped(defs, stored)  # it was published today
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date()
    monkeypatch.setattr(sensors, "_today", lambda zone: tomorrow)
    requests = [*scheduled(defs, stored).run_requests, *tick(defs, stored).run_requests]
    assert {request.run_key for request in requests} == {f"people|renewal|{tomorrow}"}
    assert requests[0].asset_selection == [dg.AssetKey(["people", "published"])]
    own = {"privacy_assets/renewal": "people", "privacy_assets/table": "people"}
    assert own.items() <= requests[0].tags.items()
    job = defs.resolve_job_def("people_pipeline")
    ran = job.execute_in_process(
        instance=stored, asset_selection=requests[0].asset_selection, tags=dict(requests[0].tags)
    )
    assert ran.success and {event.step_key for event in ran.get_step_success_events()} == {
        "people__publish"
    }
    after = pointer(tmp_path)
    assert (after.release, after.number) == (
        before.release,
        before.number,
    ) and after.at >= before.at
    monkeypatch.undo()
    assert skipped(defs, stored).endswith(f"since its release on {day(datetime.now(UTC))}.")


@pytest.mark.slow
def test_a_stopped_table_and_a_release_that_is_not_current_are_not_renewed(
    tmp_path: Path, stored: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    defs, today = table(tmp_path), day(datetime.now(UTC))
    assert run(defs, stored).success
    monkeypatch.setattr(
        sensors, "_today", lambda zone: datetime.now(UTC).date() + timedelta(days=1)
    )
    with monkeypatch.context() as stopped:

        def stop(*_: object) -> None:
            raise TableSuspended(
                "people is suspended: 4 of its last 7 verdicts are 'fail'", table="people"
            )

        stopped.setattr(LogState, "check_not_suspended", stop)
        text = (
            f"Skipped: the source has not changed since its release on {today}. people is"
            " suspended: 4 of its last 7"
        )
        fix = (
            "verdicts are 'fail'. Fix: find the cause, then: privacy-assets accept people"
            ' --reason "..."'
        )
        assert skipped(defs, stored) == f"{text} {fix}"
    gate = DeploymentSettings(home=tmp_path).open().gate()
    Keeper(gate).withdraw(
        ReleaseTarget("people"), pointer(tmp_path).release, "a person asked for it"
    )
    text = (
        f"Skipped: the source has not changed since its release on {today}, which is no longer"
        " current."
    )
    assert (
        skipped(defs, stored)
        == f"{text} The current release was withdrawn, and there is no new one yet."
    )


def test_days_have_a_year_only_if_it_is_not_the_current_one() -> None:
    now = datetime.now(UTC)
    assert day(now.replace(month=11, day=3)) == "3 Nov"
    assert day(datetime(2019, 12, 31, 23, 30, tzinfo=UTC)) == "31 Dec 2019"
    assert day(datetime(2019, 12, 31, 23, 30, tzinfo=UTC), "Europe/Berlin") == "1 Jan 2020"
