"""Bypasses of the gate that need a real webserver and daemon: stock checks let each pass, the
gate none.

Every test does the same to two tables. From a table of ``stock.py`` the private rows must be
published, otherwise the test is not meaningful. From a gated table whose generator memorizes, no
row may be published, and the error must give the reason.
"""

import shutil
import time

import pytest
from served import GATED, Served
from stock import Folder

from privacy_assets import read_published
from privacy_assets.errors import InputError
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.releases import Release, ReleaseStore, default_trusted

pytestmark = pytest.mark.slow

STOCK = ("synthetic", "score", "published")
EAGER = ("eager_failed", "eager_warned", "eager_raised", "eager_unchecked")
FORGED = ("forged_by_rest", "forged_by_graphql")
Runs = dict[str, str]


def of(table: str, assets: tuple[str, ...], *, but: str = "") -> list[str]:
    return [f"{table}/{asset}" for asset in assets if asset != but]


def history(served: Served, table: str, partition: str | None = None) -> list[Release]:
    return ReleaseStore(served.root / "releases").history(ReleaseTarget(table, partition))


@pytest.fixture(scope="module")
def runs(served: Served) -> Runs:
    """Full runs, stock and gated, that the checks stopped, and the runs that later tests wait for,
    all concurrent.
    """
    started = {
        "plain": served.launch("stock", *of("plain", STOCK)),
        "leaky": served.launch("gated", *of("leaky", GATED)),
        "leaky_regions": served.launch("gated", *of("leaky_regions", GATED), partition="north"),
    }
    assert [served.finished(run) for run in started.values()] == [False] * 3
    assert served.checks(started["plain"]) == {"few_copies": False}
    # other tests publish in this deployment too
    assert not [*(served.root / "public").rglob(f"{started['plain']}*")]
    for table in ("leaky", "leaky_regions"):
        assert served.checks(started[table])["policy_holds"] is False
        assert list(served.failures(started[table])) == [f"{table}__attest"]
    started |= {
        location: served.start_schedule(location, "by_schedule") for location in ("stock", "gated")
    }
    served.start_schedule("gated", "honest_schedule")
    started["backfill"] = served.backfill(
        *of("honest_regions", GATED), partitions=["north", "south"]
    )
    started["turned"] = served.launch("gated", *of("turned", GATED, but="published"))
    return started


@pytest.fixture(scope="module")
def turned(served: Served, runs: Runs) -> Release:
    """An honest release, published by the factory's automation condition. Afterwards the generator
    memorizes.
    """
    assert served.finished(runs["turned"])
    assert served.finished(served.automated("gated", "turned/published"))
    (release,) = history(served, "turned")
    (served.root / "leak").touch()
    return release


def leaked(served: Served, run_id: str, table: str) -> None:
    """The run published every private row."""
    assert served.finished(run_id), {
        step: found.error for step, found in served.failures(run_id).items()
    }
    Folder(served.root).leaked(table, run_id)


def blocked(served: Served, run_id: str, table: str, why: str = "policy does not hold") -> None:
    """The run failed at ``published`` with this reason, and left a failed check for the alert
    sensor.
    """
    assert not served.finished(run_id)
    assert served.checks(run_id)["released"] is False
    failure = served.failures(run_id)[f"{table}__publish"]
    assert failure.user_failure_data is not None, failure.error
    assert why in failure.user_failure_data.description.lower()


def nothing_published(served: Served, table: str, partition: str | None = None) -> None:
    assert history(served, table, partition) == []
    with pytest.raises(InputError, match="there is no release"):
        read_published(served.root / "releases", table, partition)


LEAKY = {"leaky": None, "leaky_regions": "north"}  # the partition of each


def test_bypass_01_published_alone_after_a_failed_check(served: Served, runs: Runs) -> None:
    stock = [served.launch("stock", "plain/published"), served.command("stock", "plain/published")]
    gated = {
        table: [
            how("gated", f"{table}/published", partition=partition)
            for how in (served.launch, served.command)
        ]
        for table, partition in LEAKY.items()
    }
    for run in stock:
        leaked(served, run, "plain")
    for table, partition in LEAKY.items():
        for run in gated[table]:
            blocked(served, run, table)
        nothing_published(served, table, partition)


def test_bypass_10_only_the_step_of_a_failed_run(served: Served, runs: Runs) -> None:
    again = {table: served.execute_step_again(runs[table], f"{table}__publish") for table in LEAKY}
    again["plain"] = served.execute_step_again(runs["plain"], "plain__published")
    leaked(served, again["plain"], "plain")
    for table, partition in LEAKY.items():
        blocked(served, again[table], table)
        nothing_published(served, table, partition)


@pytest.mark.weekly
def test_bypass_12_automation_after_checks_that_failed_or_warned(
    served: Served, runs: Runs
) -> None:
    """The stock tables whose checks raised or never ran are part of the same run."""
    checked = [f"{table}/score:few_copies" for table in EAGER if table != "eager_unchecked"]
    stock = served.launch(
        "stock", *[a for t in EAGER for a in of(t, STOCK, but="published")], checks=checked
    )
    served.launch("gated", *of("leaky_eager", GATED, but="published"))
    for table in EAGER:
        leaked(served, served.automated("stock", f"{table}/published"), table)
    assert set(served.failures(stock)) == {
        "eager_failed__score_few_copies",
        "eager_raised__score_few_copies",
    }
    blocked(served, served.automated("gated", "leaky_eager/published"), "leaky_eager")
    since = served.after_a_tick("gated")
    served.report_check("leaky_eager/attestation", "policy_holds", passed=False, severity="WARN")
    served.report_materialization("leaky_eager/attestation")
    blocked(served, served.automated("gated", "leaky_eager/published", since), "leaky_eager")
    nothing_published(served, "leaky_eager")


@pytest.mark.weekly
def test_bypass_12_automation_after_scores_that_never_ran_or_raised(
    served: Served, turned: Release
) -> None:
    """The last verdict is the honest table's "pass". The stock half is in the test above."""
    since = served.after_a_tick("gated")
    assert served.finished(served.launch("gated", "turned/generator", "turned/synthetic"))
    blocked(
        served,
        served.automated("gated", "turned/published", since),
        "turned",
        "another synthetic table",
    )
    shutil.rmtree(served.root / "storage" / "turned" / "holdout")
    since = served.after_a_tick("gated")
    scored = served.launch("gated", "turned/synthetic", "turned/evaluation_inputs", "turned/dcr")
    assert sorted(served.failures(scored)) == ["turned__prepare", "turned__synthetic_contract"]
    blocked(
        served,
        served.automated("gated", "turned/published", since),
        "turned",
        "another synthetic table",
    )
    assert history(served, "turned") == [turned]


@pytest.mark.weekly
def test_bypass_13_sensors_and_schedules(served: Served, runs: Runs) -> None:
    sensors = ("by_selection", "by_job", "by_asset")
    for location in ("stock", "gated"):
        for sensor in sensors:
            served.start_sensor(location, sensor)
    triggers = [("dagster/sensor_name", sensor) for sensor in sensors] + [
        ("dagster/schedule_name", "by_schedule")
    ]
    for trigger in triggers:
        leaked(served, served.launched_by("stock", *trigger), "plain")
        blocked(served, served.launched_by("gated", *trigger), "leaky")
    for location in ("stock", "gated"):
        served.stop_schedule(runs[location])
    nothing_published(served, "leaky")


@pytest.mark.weekly
def test_bypass_18_a_publisher_in_another_code_location(served: Served, runs: Runs) -> None:
    stock, gated = (
        served.launch("elsewhere", asset) for asset in ("stock_publisher", "gated_publisher")
    )
    leaked(served, stock, "elsewhere")
    assert "not released" in str(served.failures(gated)["gated_publisher"].error)
    assert [file.stem for file in (served.root / "public" / "elsewhere").iterdir()] == [stock]
    nothing_published(served, "leaky")


@pytest.mark.weekly
def test_bypass_19_a_check_in_another_code_location(served: Served, runs: Runs) -> None:
    leaked(served, served.launch("stock", *of("far", STOCK)), "far")
    attempts = [
        served.launch("elsewhere", checks=["far/synthetic:far_has_no_copies"]),
        served.launch("elsewhere", checks=["leaky/synthetic:looks_at_rows"]),
        served.launch("elsewhere", checks=["leaky/synthetic:waved_through"]),
    ]
    assert [served.finished(run) for run in attempts] == [False, False, True]
    assert served.checks(attempts[0]) == {"far_has_no_copies": False}
    assert "not released" in str(
        served.failures(attempts[1])["leaky__synthetic_looks_at_rows"].error
    )
    assert served.checks(attempts[2]) == {"waved_through": True}
    stock, gated = (
        served.launch("stock", "far/published"),
        served.launch("gated", "leaky/published"),
    )
    leaked(served, stock, "far")
    blocked(served, gated, "leaky")
    nothing_published(served, "leaky")


def test_bypass_20_a_forged_check_result(served: Served, runs: Runs) -> None:
    """The automation condition waits for the checks; the forged results trigger it."""
    scored = served.launch("stock", *[a for t in FORGED for a in of(t, STOCK, but="published")])
    assert not served.finished(scored)
    # a check reported within the same second counts as older than the materialization
    time.sleep(1)
    since = time.time()
    served.report_check("forged_by_rest/score", "few_copies", passed=True)
    served.report_check_by_graphql("forged_by_graphql/score", "few_copies")
    served.report_materialization("leaky/attestation")
    served.report_check("leaky/attestation", "policy_holds", passed=True)
    blocked(served, served.automated("gated", "leaky/published", since), "leaky")
    served.report_check_by_graphql("leaky/attestation", "policy_holds")
    blocked(served, served.launch("gated", "leaky/published"), "leaky")
    for table in FORGED:
        leaked(served, served.automated("stock", f"{table}/published", since), table)
    nothing_published(served, "leaky")


def test_the_automation_condition_publishes_the_honest_table(
    served: Served, turned: Release
) -> None:
    assert (
        ReleaseStore(served.root / "releases").current(
            ReleaseTarget("turned"), default_trusted(served.root / "releases")
        )
        == turned
    )
    assert len(read_published(served.root / "releases", "turned")) > 0


def test_a_schedule_publishes_the_honest_table(served: Served, runs: Runs) -> None:
    assert served.finished(served.launched_by("gated", "dagster/schedule_name", "honest_schedule"))
    assert len(read_published(served.root / "releases", "honest")) > 0


def test_a_backfill_publishes_every_partition(served: Served, runs: Runs) -> None:
    for region in ("north", "south"):
        run = served.launched_by("gated", "dagster/backfill", runs["backfill"], region)
        assert served.finished(run), served.failures(run)
        assert set(
            read_published(served.root / "releases", "honest_regions", region)["region"]
        ) == {region}
