"""Alerts: one message for each failed run, with reason, next step, current release and link."""

from pathlib import Path

import dagster as dg
import pytest
from standins import failed_run, memorize, people, people_table, resources, run

from privacy_assets import build_run_failure_sensor
from privacy_assets.errors import TableSuspended
from privacy_assets.gate.deployment import DeploymentSettings
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.log import LogState
from privacy_assets.gate.releases import Release
from privacy_assets.pipeline.current_release import day

REGIONS = dg.StaticPartitionsDefinition(["north", "south"])


def current_release(home: Path) -> Release:
    deployment = DeploymentSettings(home=home).open()
    return deployment.store.current(ReleaseTarget("people"), deployment.trusted)


class Watch:
    """The sensor in a code location, ticked as the daemon does: each tick continues at the cursor
    of the last one.
    """

    def __init__(self, defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
        self.told: list[str] = []
        sensor = build_run_failure_sensor(
            self.told.append, webserver_base_url="https://dagster.example.org/"
        )
        self.defs = dg.Definitions.merge(defs, dg.Definitions(sensors=[sensor]))
        self.instance, self.cursor = instance, None
        self.tick()

    def tick(self) -> list[str]:
        """Messages of one tick."""
        before, repository = len(self.told), self.defs.get_repository_def()
        given = {"repository_def": repository, "resources": self.defs.resources}
        with dg.build_sensor_context(self.instance, self.cursor, **given) as context:
            self.cursor = (
                self.defs.resolve_sensor_def("privacy_run_failures").evaluate_tick(context).cursor
            )
        return self.told[before:]


@pytest.mark.slow
def test_one_refusal_sends_one_message(
    tmp_path: Path, instance: dg.DagsterInstance, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checks and steps that fail, and steps that are skipped, belong to the same message."""
    watch = Watch(people_table(tmp_path), instance)
    assert run(watch.defs, instance).success
    assert watch.tick() == []
    people(300, 1).to_parquet(tmp_path / "people.parquet")
    leaky = people_table(tmp_path, generator=memorize)
    blocked = run(leaky, instance)
    assert sum(not check.passed for check in blocked.get_asset_check_evaluations()) == 3
    (text,) = watch.tick()
    release = current_release(tmp_path)
    reason = "dcr.identical_excess.proven (fail), dcr.member_excess.proven (fail). Fix: "
    first, place, step, readers = text.splitlines()
    assert (
        first == f"Run {blocked.run_id} of people_pipeline failed:"
        f" https://dagster.example.org/runs/{blocked.run_id}"
    )
    assert place == "people:"
    assert step.startswith(
        f"  people__attest: the policy does not hold (fail: 2 of 2 limits fail): {reason}"
    )
    assert readers == f"  Readers have the release of {day(release.time)} ({release.id})."
    assert text in capsys.readouterr().err
    assert watch.tick() == []


@pytest.mark.slow
def test_the_failure_that_stops_a_table_says_so(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only the next one, which the stop itself fails."""
    watch = Watch(people_table(tmp_path, generator=memorize), instance)
    assert not run(watch.defs, instance).success

    def stop(*_: object) -> None:
        raise TableSuspended(
            "people is suspended: 4 of its last 7 verdicts are 'fail'", table="people"
        )

    monkeypatch.setattr(LogState, "check_not_suspended", stop)
    end = (
        "people is suspended: 4 of its last 7 verdicts are 'fail'. Fix: find the cause, then:"
        " privacy-assets accept"
    )
    (text,) = watch.tick()
    assert "the policy does not hold" in text and text.endswith(f'\n  {end} people --reason "..."')
    people(300, 1).to_parquet(tmp_path / "people.parquet")
    assert not run(watch.defs, instance).success
    (text,) = watch.tick()
    assert "people__split: people is suspended" in text and text.count("is suspended") == 1


@pytest.mark.slow
def test_fifty_passes_do_not_push_a_failure_out(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    @dg.op
    def works() -> None:
        pass

    @dg.job
    def other() -> None:
        works()

    watch = Watch(people_table(tmp_path, generator=memorize), instance)
    blocked = run(watch.defs, instance)
    for _ in range(50):
        assert other.execute_in_process(instance=instance).success
    (text,) = watch.tick()
    assert blocked.run_id in text and "There is no release." in text
    assert watch.tick() == []


@pytest.mark.slow
def test_a_partition_is_named(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    defs = people_table(
        tmp_path, generator=memorize, partitions_def=REGIONS, partition_column="region"
    )
    blocked = run(defs, instance, partition="north")
    told: list[str] = []
    for notify in (told.append, None):
        build_run_failure_sensor(notify)(failed_run(blocked, instance, defs))
    (text,) = told
    assert text.startswith(
        f"Run {blocked.run_id} of people_pipeline failed.\npeople, north:\n  people__attest: "
    )


def test_a_run_that_was_killed_says_what_to_do(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """A process that disappears fails no step. The run was launched by the job, or from the asset
    graph.
    """
    watch = Watch(people_table(tmp_path), instance)
    selection = frozenset(
        {dg.AssetKey(["people", "attestation"]), dg.AssetKey(["people", "published"])}
    )
    for given in ({"job_name": "people_pipeline", "tags": {"privacy_assets/table": "people"}},
                  {"job_name": "__ASSET_JOB", "asset_selection": selection}):  # fmt: skip
        killed = dg.DagsterRun(status=dg.DagsterRunStatus.STARTED, **given)
        instance.add_run(killed)
        instance.report_run_failed(killed)
        (text,) = watch.tick()
        assert text.splitlines()[1:] == [
            "No step gave a reason. Fix: see the log of the run, then re-execute it from failure.",
            "people:",
            "  There is no release.",
        ]


@pytest.mark.slow
def test_each_of_thirty_failed_runs_is_reported_over_several_ticks(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Dagster reports at most five runs in a tick, and none that failed before the first tick."""

    @dg.op
    def fails() -> None:
        raise ValueError

    @dg.job
    def nightly() -> None:
        fails()

    watch = Watch(
        dg.Definitions.merge(dg.Definitions(jobs=[nightly]), resources(tmp_path)), instance
    )
    runs = [
        nightly.execute_in_process(instance=instance, raise_on_error=False).run_id
        for _ in range(30)
    ]
    for _ in range(7):
        watch.tick()
    assert [text.split()[1] for text in watch.told] == runs


def test_an_error_of_another_asset_is_reported_without_its_message(
    instance: dg.DagsterInstance,
) -> None:
    @dg.asset
    def breaks() -> None:
        raise ValueError("a private value")

    result = dg.materialize([breaks], instance=instance, raise_on_error=False)
    told: list[str] = []
    build_run_failure_sensor(told.append)(failed_run(result, instance))
    assert told[0].endswith(
        "failed.\n  breaks: no reason was given. Fix: see the log of the run, then re-execute"
        " it from failure."
    )


@pytest.mark.slow
def test_a_release_folder_that_cannot_be_used_does_not_stop_the_message(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    watch = Watch(people_table(tmp_path, generator=memorize), instance)
    assert not run(watch.defs, instance).success
    pointer = tmp_path / "releases/people/_all/latest.json"
    pointer.parent.mkdir(parents=True)
    pointer.write_text("{")
    (text,) = watch.tick()
    assert text.splitlines()[-1].startswith("  The current release is unknown: ")
