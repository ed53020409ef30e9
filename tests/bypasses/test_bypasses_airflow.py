"""Bypasses of the gate on Airflow: each publishes a leaky table of plain tasks, and no rows of a
gated table.

One Airflow on the loopback serves all of them, with its API, its scheduler and workers as
processes. ``ACTS`` performs all user actions once, and the tests check the results. A secrets
backend holds its key and secret. The private table has planted values, for which all files of
Airflow are searched at the end.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import pytest
import yaml
from airflow_served import Act, Airflow, database, log_of, serving
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from planting import private, readable, traces
from standins import LENIENT

from privacy_assets import read_published
from privacy_assets.errors import InputError
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.keys import TrustedKeys
from privacy_assets.gate.releases import ReleaseStore
from tests.helpers.accepting import accept_all

pytestmark = pytest.mark.weekly

PASSWORD = "s3cret-of-the-store"
HUGE = "x" * 1_000_000
SCORES = {"metrics": ["dcr", "value_disclosure"], "embedder": False}
KEYS = {
    "slashes": "../../x",
    "space": "north ",
    "case": "North",
    "dots": "..",
    "unicode": "nörth",
    "long": "n" * 250,
}
ACTS: dict[str, Callable[[Airflow], Act]] = {}


def act(function: Callable[[Airflow], Act]) -> Callable[[Airflow], Act]:
    ACTS[function.__name__] = function
    return function


def note(airflow: Airflow, name: str, dag: str, run: str, task: str) -> None:
    """Keep the current log of the last try of a task, because the next bypass runs it again."""
    (airflow.folder / "noted").mkdir(exist_ok=True)
    (airflow.folder / "noted" / name).write_text(log_of(airflow.folder, dag, run, task))


def values(airflow: Airflow, table: str, dag: str, run: str, step: str) -> Path:
    """Location of a step's value in a run."""
    named = hashlib.sha256(f"{dag}/{run}".encode()).hexdigest()[:16]
    kept = "reports" if step == "attest" else "runs"  # a verdict is stored with its page
    return airflow.folder / "deployment/private/values" / table / "_all" / kept / named / step


@act
def plain(airflow: Airflow) -> Act:
    """All bypasses of one run for the table of plain tasks."""
    both = [airflow.trigger("plain", run) for run in ("first", "second")]
    yield lambda: all(ready() for ready in both)
    for name in ("publish", "publish_by_score"):
        assert not (airflow.folder / f"public/plain/first/{name}.csv").exists(), (
            "the checks stop the table"
        )
    yield airflow.mark("plain", "first", "check", "success")
    airflow.forge("plain", "first", "score", 0.0)
    yield airflow.clear("plain", "first", "publish_by_score")


@act
def plain_event(airflow: Airflow) -> Act:
    yield airflow.ended("plain", "first")
    (asset,) = airflow.ask("GET", "assets?name_pattern=plain_score")["assets"]
    airflow.ask("POST", "assets/events", asset_id=asset["id"], extra={"copies": 0.0})
    yield airflow.all_ended("plain_event", 1)


@act
def plain_settings(airflow: Airflow) -> Act:
    yield airflow.trigger("plain_settings", "before")
    assert not (airflow.folder / "public/plain_settings").exists(), "the checks stop the table"
    airflow.ask("POST", "variables", key="at_most", value="1.0")
    airflow.ask(
        "POST",
        "connections",
        connection_id="limits",
        conn_type="generic",
        extra=json.dumps({"at_most": 1.0}),
    )
    yield airflow.trigger("plain_settings", "after", conf={"at_most": 1.0, "limit": 1.0})


@act
def plain_keys(airflow: Airflow) -> Act:
    for number, key in enumerate(("north", "north ", "North")):
        yield airflow.trigger("plain_keys", f"run{number}", partition_key=key)


@act
def plain_daily(airflow: Airflow) -> Act:
    dates = {"from_date": "2025-12-30T00:00:00Z", "to_date": "2026-01-01T00:00:00Z"}
    airflow.ask("POST", "backfills", dag_id="plain_daily", **dates, max_active_runs=1)
    yield airflow.all_ended("plain_daily", 3)


@act
def plain_retried(airflow: Airflow) -> Act:
    yield airflow.trigger("plain_retried", "first")


@act
def plain_again(airflow: Airflow) -> Act:
    yield airflow.trigger("plain_again", "first")
    for _ in range(9):
        if (airflow.folder / "public/plain_again/first").exists():
            break
        yield airflow.clear("plain_again", "first", "check_one_row", downstream=True)


@act
def plain_shared(airflow: Airflow) -> Act:
    yield airflow.trigger("plain_shared", "honest")
    shutil.rmtree(airflow.folder / "public/plain_shared/honest")
    yield airflow.trigger("plain_shared", "leaky")
    assert not (airflow.folder / "public/plain_shared/leaky").exists()
    yield airflow.clear("plain_shared", "honest", "publish")


@act
def leaks(airflow: Airflow) -> Act:
    """A gated table: two concurrent runs, one of them with other settings, then the bypasses of
    the first.
    """
    given = {
        "at_most": 1.0,
        "policy": LENIENT,
        "table": "other",
        "releases": "/tmp",
        "generator": "synthpop",
    }
    both = [airflow.trigger("leaks", "first"), airflow.trigger("leaks", "second", conf=given)]
    yield lambda: all(ready() for ready in both)
    first = {"dag": "leaks", "run": "first"}
    for task in ("publish_all_done", "publish_teardown"):
        note(airflow, task, **first, task=task)
    for run in ("first", "second"):
        note(airflow, f"{run}_attest", "leaks", run, "leaks.attest")
    publish, own = (
        {**first, "task": "leaks.publish"},
        airflow.xcom("leaks", "first", "leaks.attest"),
    )
    yield airflow.mark("leaks", "first", "leaks.attest", "success")
    note(airflow, "marked", **publish)
    yield airflow.clear("leaks", "first", "leaks.publish")
    note(airflow, "cleared", **publish)
    other = airflow.xcom("leaks", "second", "leaks.attest")
    forged = {
        "of_another_run": other,
        "of_another_table": {**own, "table": "turned"},
        "of_another_step": airflow.xcom("leaks", "first", "leaks.prepare"),
        "a_path": str(values(airflow, "leaks", "leaks", "first", "attest")),
        "a_digest_that_is_a_path": {**own, "digest": "../../../../../../releases"},
        "a_huge_text": HUGE,
        "a_list": [own],
        "a_number": 1,
    }
    for name, value in forged.items():
        airflow.forge("leaks", "first", "leaks.attest", value)
        yield airflow.clear("leaks", "first", "leaks.publish")
        note(airflow, f"forged_{name}", **publish)
    airflow.forget("leaks", "first", "leaks.attest")
    yield airflow.clear("leaks", "first", "leaks.publish")
    note(airflow, "forged_missing", **publish)
    # The values of another run in this run's folder, and the reference to them.
    shutil.copytree(
        values(airflow, "leaks", "leaks", "second", "attest"),
        values(airflow, "leaks", "leaks", "first", "attest"),
        dirs_exist_ok=True,
    )
    airflow.forge("leaks", "first", "leaks.attest", other)
    yield airflow.clear("leaks", "first", "leaks.publish")
    note(airflow, "swapped_attest", **publish)
    for step, reader in {
        "attest": "publish",
        "prepare": "score",
        "fit": "sample",
        "split": "fit",
    }.items():
        if step == "attest":
            airflow.forge("leaks", "first", "leaks.attest", own)
        for file in sorted(values(airflow, "leaks", "leaks", "first", step).rglob("*")):
            if file.is_file():
                file.chmod(0o600)
                file.write_bytes(file.read_bytes()[:-9] + b"overwrite")
        yield airflow.clear("leaks", "first", f"leaks.{reader}")
        note(airflow, f"overwritten_{step}", **first, task=f"leaks.{reader}")
    airflow.forget("leaks", "second", "leaks.score", 0)
    yield airflow.clear("leaks", "second", "leaks.attest")
    note(airflow, "without_scores", "leaks", "second", "leaks.attest")
    yield lambda: "plain" not in airflow.waiting
    for dag in ("plain", "leaks"):  # otherwise the scheduler would take part in these runs
        airflow.ask("PATCH", f"dags/{dag}", is_paused=True)
    said = airflow.commands(
        ["tasks", "test", "plain", "publish", "second"],
        ["tasks", "test", "leaks", "leaks.publish", "second"],
        ["dags", "test", "plain", "--mark-success-pattern", "check"],
        ["dags", "test", "leaks", "--mark-success-pattern", "leaks.attest"],
    )
    (airflow.folder / "noted/tasks_test").write_text(said[: said.index("command dags test plain")])
    (airflow.folder / "noted/dags_test").write_text(said[said.index("command dags test leaks") :])


@act
def events(airflow: Airflow) -> Act:
    yield airflow.ended("leaks", "second")
    (asset,) = airflow.ask("GET", "assets?name_pattern=leaks_release")["assets"]
    extra = {
        "table": "leaks",
        "partition": None,
        "release": "20260101T000000Z-0123456789ab",
        "sha256": "0" * 64,
    }
    airflow.ask("POST", "assets/events", asset_id=asset["id"], extra=extra)
    yield airflow.all_ended("consumer", 1)


@act
def skips(airflow: Airflow) -> Act:
    yield airflow.trigger("skips", "first")


@act
def torn(airflow: Airflow) -> Act:
    yield airflow.trigger("törn.1", "first")


@act
def laxer(airflow: Airflow) -> Act:
    yield airflow.trigger("strict", "first")
    yield airflow.trigger("lax", "blocked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PRIVACY_ASSETS_SIGNING_KEY", (airflow.folder / "vault/privacy_signing_key").read_text()
        )
        accept_all("laxly", "--releases", airflow.folder / "deployment/releases")
    yield airflow.trigger("lax", "first")
    theirs = airflow.xcom("lax", "first", "judge")
    here, there = (values(airflow, "laxly", dag, "first", "attest") for dag in ("strict", "lax"))
    shutil.copytree(there, here, dirs_exist_ok=True)
    airflow.forge("strict", "first", "judge", theirs)
    yield airflow.mark("strict", "first", "judge", "success")
    note(airflow, "of_a_laxer_policy", "strict", "first", "publish")


@act
def turned(airflow: Airflow) -> Act:
    yield airflow.trigger("turned_before", "first")
    yield airflow.trigger("turned", "first")
    theirs = airflow.xcom("turned_before", "first", "judge")
    yield airflow.mark("turned", "first", "judge", "success")
    airflow.forge("turned", "first", "judge", theirs)
    yield airflow.clear("turned", "first", "publish")
    note(airflow, "of_a_run_that_passed", "turned", "first", "publish")
    here, there = (
        values(airflow, "turned", dag, "first", "attest") for dag in ("turned", "turned_before")
    )
    shutil.copytree(there, here, dirs_exist_ok=True)
    yield airflow.clear("turned", "first", "publish")
    note(airflow, "of_a_run_that_passed_with_its_values", "turned", "first", "publish")


@act
def hostile_keys(airflow: Airflow) -> Act:
    for name, key in KEYS.items():
        yield airflow.trigger("keys", name, partition_key=key)
    yield airflow.trigger("keys", "none")


@act
def daily(airflow: Airflow) -> Act:
    dates = {"from_date": "2025-12-31T00:00:00Z", "to_date": "2026-01-01T00:00:00Z"}
    airflow.ask("POST", "backfills", dag_id="daily", **dates, max_active_runs=2)
    today = datetime.now(UTC).isoformat()
    made_up = {"past": "1970-01-01T00:00:00Z", "before": "2025-12-31T23:59:59Z", "today": today}
    for name, when in made_up.items():
        airflow.trigger("dated", name, logical_date=when)
    yield airflow.all_ended("daily", 2)
    yield airflow.all_ended("dated", 3)


@act
def draws(airflow: Airflow) -> Act:
    """The first run is deleted, and the second one gets its id."""
    yield airflow.trigger("draws", "first")
    airflow.ask("DELETE", "dags/draws/dagRuns/first")
    yield lambda: ("draws", "first") not in airflow.runs
    yield airflow.trigger("draws", "first")
    for _ in range(2):
        yield airflow.clear("draws", "first", "publish")


@act
def store(airflow: Airflow) -> Act:
    evil = {
        "host": "http://127.0.0.1:1",
        "extra": json.dumps({"endpoint_url": "http://127.0.0.1:1", "token": "t0ken"}),
    }
    airflow.ask(
        "POST",
        "connections",
        connection_id="store",
        conn_type="aws",
        login="someone",
        password=PASSWORD,
        **evil,
    )
    yield airflow.trigger("store", "first")


@act
def planted(airflow: Airflow) -> Act:
    both = [airflow.trigger(dag, "first") for dag in ("planted", "planted_embedder")]
    yield lambda: all(ready() for ready in both)


@dataclass(frozen=True)
class Ran:
    """The results of all acts."""

    folder: Path

    @cached_property
    def failed(self) -> dict[str, str]:
        """The acts that could not be played, with the reason."""
        return json.loads((self.folder / "failed.json").read_text())

    def noted(self, name: str) -> str:
        return (self.folder / "noted" / name).read_text()

    def log(self, dag: str, run: str, task: str) -> str:
        return log_of(self.folder, dag, run, task)

    def states(self, dag: str, run: str) -> dict[str, tuple[str, int]]:
        """State and number of tries of each task; for a mapped task those of the last instance."""
        question = (
            "select task_id, state, try_number from task_instance where dag_id = ? and run_id = ?"
        )
        return {
            task: (state, tries) for task, state, tries in database(self.folder, question, dag, run)
        }

    def leaked(self, file: str) -> None:
        """Plain tasks published this file, and it contains private rows."""
        people = set((self.folder / "people.csv").read_text().splitlines())
        (found,) = (self.folder / "public").glob(file)
        assert sum(line in people for line in found.read_text().splitlines()) >= len(people) // 3

    def nothing(self, table: str, partition: str | None = None) -> None:
        """No rows of this table are readable, and none ever were."""
        releases = self.folder / "deployment/releases"
        assert ReleaseStore(releases).history(ReleaseTarget(table, partition)) == []
        with pytest.raises(InputError, match="there is no release"):
            read_published(
                releases, table, partition, trusted_keys=self.folder / "deployment/trusted_keys"
            )


def prepare(place: Path) -> dict[str, str]:
    """Write private rows, keys and secrets; return the environment in which workers find the
    latter.
    """
    for folder in (
        "made",
        "public",
        "failed",
        "vault",
        "deployment",
        "deployment/private",
        "deployment/trusted_keys",
    ):
        (place / folder).mkdir(mode=0o700)
    rows = private()
    for name in ("people", "people_2026-01-01", "people_north", "people_south"):
        rows.to_parquet(place / f"{name}.parquet")
    rows.drop(columns="pid").to_csv(place / "people.csv", index=False, header=False)
    data = {"source": str(place / "people.parquet"), "subject": "pid"}
    (place / "table.yaml").write_text(
        yaml.safe_dump({"data": data, "evaluation": SCORES, "policy": LENIENT})
    )
    key = Ed25519PrivateKey.from_private_bytes(secrets.token_bytes(32))
    private_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public_pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (place / "vault/privacy_signing_key").write_bytes(private_pem)
    (place / "vault/privacy_split_key").write_text(secrets.token_hex(16))
    (place / "deployment/trusted_keys/key.pem").write_bytes(public_pem)
    return {
        "AIRFLOW__SECRETS__BACKEND": "airflow_vault.Vault",
        "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps({"folder": str(place / "vault")}),
    }


def everything(place: Path) -> None:
    """Start Airflow, and play all acts."""
    with serving(place, ("stock_dags.py", "bypasses_dags.py"), **prepare(place)) as airflow:
        for name in ("RELEASES", "PRIVATE", "TRUSTED_KEYS", "SIGNING_KEY", "SECRET", "POLICY"):
            airflow.ask("POST", "variables", key=f"PRIVACY_ASSETS_{name}", value="edited by a user")
        for name in ("privacy_signing_key", "privacy_split_key"):
            airflow.ask("POST", "variables", key=name, value="edited by another user")
        failed = airflow.play({name: function(airflow) for name, function in ACTS.items()})
    (place / "said.txt").write_text("\n".join(airflow.said))
    (place / "failed.json").write_text(json.dumps(failed))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """All acts, played once, even if several processes run the tests of this file."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "airflow_routes"
    with Path(f"{place}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            place.mkdir()
            everything(place)
    return Ran(place)


@dataclass(frozen=True)
class Bypass:
    """A bypass of the gate: the file that plain tasks published by it, and the gate's
    blocking_error.
    """

    stock: str
    ours: str  # a noted text, or "dag/run/task" of a log
    why: str
    table: str = "leaks"

    def __str__(self) -> str:
        return f"{self.ours} and {self.stock.replace('*', 'any')}"


POLICY = "dcr.identical_excess.proven (fail)"
GONE = "are not those that it stored in this run, or are missing. Fix: rerun the step {}."
NO_REFERENCE = "expected a reference to the values of step attest, got something else"
NOTHING = "leaks: step attest has no values in this run. Fix: rerun the step attest."
MARKED, BY_SCORE, SHARED = (
    "plain/first/publish.csv", "plain/first/publish_by_score.csv", "plain_shared/honest/publish.csv"
)  # fmt: skip
BYPASSES = (
    Bypass("plain/first/publish_all_done.csv", "publish_all_done", POLICY),
    Bypass(MARKED, "marked", POLICY),
    Bypass(SHARED, "cleared", POLICY),
    Bypass("plain_event/*/publish_by_event.csv", "consumer/*/read", "leaks: there is no release"),
    Bypass("plain_event/*/publish_by_event.csv", "consumer/*/wait", "AirflowSensorTimeout"),
    Bypass(BY_SCORE, "forged_of_another_run", GONE.format("attest")),
    Bypass(BY_SCORE, "forged_of_another_table", NO_REFERENCE),
    Bypass(BY_SCORE, "forged_of_another_step", NO_REFERENCE),
    Bypass(BY_SCORE, "forged_a_path", NO_REFERENCE),
    Bypass(BY_SCORE, "forged_a_digest_that_is_a_path", NO_REFERENCE),
    Bypass(BY_SCORE, "forged_a_huge_text", NO_REFERENCE),
    Bypass(BY_SCORE, "forged_a_list", NO_REFERENCE),
    Bypass(BY_SCORE, "forged_a_number", NO_REFERENCE),
    Bypass(BY_SCORE, "forged_missing", NOTHING),
    Bypass(
        BY_SCORE,
        "without_scores",
        "leaks: step dcr has no values in this run. Fix: rerun the step dcr.",
    ),
    Bypass("plain/second/publish.csv", "tasks_test", NOTHING),
    Bypass("plain/manual*/publish.csv", "dags_test", NOTHING),
    Bypass("plain/first/publish_teardown.csv", "publish_teardown", POLICY),
    Bypass("plain/first/publish_teardown.csv", "törn.1/first/publish", POLICY, "torn"),
    Bypass("plain/first/publish_none_failed.csv", "skips/first/publish", NOTHING),
    Bypass("plain/first/publish_one_success.csv", "skips/first/publish_one_success", NOTHING),
    Bypass("plain_settings/after/publish_conf.csv", "second_attest", POLICY),
    Bypass("plain_settings/after/publish_param.csv", "second_attest", POLICY),
    Bypass("plain_settings/after/publish_variable.csv", "second_attest", POLICY),
    Bypass("plain_settings/after/publish_connection.csv", "second_attest", POLICY),
    Bypass(SHARED, "first_attest", POLICY),  # while another run of the same table was active
    Bypass(SHARED, "swapped_attest", POLICY),
    Bypass(SHARED, "overwritten_attest", GONE.format("attest")),
    Bypass(SHARED, "overwritten_prepare", GONE.format("prepare")),
    Bypass(SHARED, "overwritten_fit", GONE.format("fit")),
    Bypass(SHARED, "overwritten_split", GONE.format("split")),
    Bypass("plain_retried/first/publish.csv", "draws/first/publish", POLICY, "draws"),
    Bypass("plain_again/first/publish.csv", "draws/first/publish", POLICY, "draws"),
)


def test_every_act_could_be_played(ran: Ran) -> None:
    assert ran.failed == {}


@pytest.mark.parametrize("bypass", BYPASSES, ids=str)
def test_plain_tasks_publish_by_this_route_and_the_gate_says_why_it_does_not(
    ran: Ran, bypass: Bypass
) -> None:
    ran.leaked(bypass.stock)
    said = ran.log(*bypass.ours.split("/")) if "/" in bypass.ours else ran.noted(bypass.ours)
    assert bypass.why in said
    ran.nothing(bypass.table)


@pytest.mark.parametrize("name", [*KEYS, "none"])
def test_a_made_up_partition_key_gets_no_fresh_memory(ran: Ran, name: str) -> None:
    people = sorted((ran.folder / "people.csv").read_text().splitlines())
    pieces = [
        file.read_text().splitlines() for file in (ran.folder / "public/plain_keys").rglob("*.csv")
    ]
    assert sorted(line for piece in pieces for line in piece) == people, (
        "plain tasks gave away all, a third a key"
    )
    said = ran.log("keys", name, "keys.read")
    assert (
        "has partitions, and this run has none. Fix" if name == "none" else "there is no partition"
    ) in said
    assert {state for state, _ in ran.states("keys", name).values()} == {
        "failed",
        "upstream_failed",
    }
    for key in ("north", KEYS.get(name)):
        ran.nothing("keys", key)


FIRST = "the first one is 2026-01-01"


@pytest.mark.parametrize(
    ("dag", "run", "why"),
    [
        ("daily", "backfill__2025-12-31*", f"there is no partition '2025-12-31'; {FIRST}"),
        ("daily", "backfill__2026-01-01*", POLICY),
        ("dated", "past", f"there is no partition '1970-01-01'; {FIRST}"),
        ("dated", "before", f"there is no partition '2025-12-31'; {FIRST}"),
        ("dated", "today", "has not ended. Fix: run one existing partition at a time"),
    ],
)
def test_a_backfill_of_old_dates_or_a_made_up_logical_date_gets_no_fresh_memory(
    ran: Ran, dag: str, run: str, why: str
) -> None:
    assert len(list((ran.folder / "public/plain_daily").rglob("*.csv"))) == 3, (
        "plain tasks gave away all"
    )
    assert why in ran.log(dag, run, "publish")
    for day in ("1970-01-01", "2025-12-31", "2026-01-01"):
        ran.nothing("daily", day)


def test_a_run_of_a_dag_with_a_laxer_policy_publishes_nothing_through_the_strict_one(
    ran: Ran,
) -> None:
    """The owner of the private folder accepts the other policy, and the release states which one
    was applied.
    """
    assert "privacy-assets accept laxly" in ran.log("lax", "blocked", "judge")
    assert "this run differs from the accepted settings of the table" in ran.noted(
        "of_a_laxer_policy"
    )
    releases, trusted = ran.folder / "deployment/releases", ran.folder / "deployment/trusted_keys"
    (release,) = ReleaseStore(releases).history(ReleaseTarget("laxly"))
    stated = release.opened(ReleaseTarget("laxly"), TrustedKeys((trusted,)))
    assert [limit["at_most"] for limit in stated.policy["limits"]] == [0.0]
    assert release.id in ran.log("lax", "first", "publish")


def test_what_a_run_that_passed_left_is_not_published_after_a_later_verdict(ran: Ran) -> None:
    assert GONE.format("attest") in ran.noted("of_a_run_that_passed")
    (release,) = ReleaseStore(ran.folder / "deployment/releases").history(ReleaseTarget("turned"))
    assert f"release {release.id} of turned is published" in ran.log(
        "turned_before", "first", "publish"
    )
    assert "this attestation of turned is not the latest one" in ran.noted(
        "of_a_run_that_passed_with_its_values"
    )


def test_a_refusal_is_not_tried_again_and_every_new_table_counts_as_an_attempt(ran: Ran) -> None:
    assert ran.states("draws", "first") == {"publish": ("failed", 3)}, (
        "one attempt, and one after each of two clearings"
    )
    (report,) = (ran.folder / "deployment/private/values/draws/_all/reports").rglob("report.json")
    assert json.loads(report.read_text())["attempt"] == 4  # the attempt of the deleted run counts
    assert ran.states("plain_retried", "first")["check_one_row"][1] > 1
    assert ran.states("plain_again", "first")["check_one_row"][1] > 1


def test_of_an_edited_connection_only_credentials_are_taken(ran: Ran) -> None:
    assert "{'taken': ['key', 'secret', 'token'], 'asked': ['key', 'secret', 'token']}" in ran.log(
        "store", "first", "credentials"
    )


def test_steps_that_fail_with_rows_are_tried_again_and_a_table_is_published_in_the_end(
    ran: Ran,
) -> None:
    states = {
        task.removeprefix("planted."): state
        for task, (state, _) in ran.states("planted", "first").items()
    }
    verbs = ("read", "split", "fit", "sample", "prepare", "score", "attest", "publish")
    assert states == dict.fromkeys(verbs, "success")
    # Each failed once, as these files and the logs show. Airflow repeats a try under its number if
    # it lost the worker.
    assert {file.name for file in (ran.folder / "failed").iterdir()} == set(verbs)
    logs = [file.read_text() for file in ran.folder.glob("home/logs/dag_id=planted/**/*.log")]
    assert sum("ValueError at" in log and "Its message is hidden" in log for log in logs) >= 8
    assert ReleaseStore(ran.folder / "deployment/releases").history(ReleaseTarget("planted"))
    embedder = ran.states("planted_embedder", "first")
    assert (embedder["planted_embedder.embed"], embedder["planted_embedder.sample"]) == (
        ("failed", 1),
        ("failed", 1),
    )
    assert "ValueError at" in ran.log("planted_embedder", "first", "planted_embedder.embed")


def kept(ran: Ran) -> dict[str, str]:
    """All data that Airflow has kept: logs, database, settings, and the output of its processes and
    commands.
    """
    files = [*(ran.folder / "home").rglob("*"), *ran.folder.glob("*.txt")]
    found = {str(file.relative_to(ran.folder)): readable(file) for file in files if file.is_file()}
    assert {"home/airflow.db", "scheduler.txt", "api-server.txt", "said.txt"} <= set(found)
    assert sum(name.endswith(".log") for name in found) > 100
    return found


def test_no_private_value_is_kept_by_airflow(ran: Ran) -> None:
    assert {name: found for name, text in kept(ran).items() if (found := traces(text))} == {}


def test_no_secret_is_kept_by_airflow(ran: Ran) -> None:
    key, secret = (
        (ran.folder / "vault" / name).read_text()
        for name in ("privacy_signing_key", "privacy_split_key")
    )
    (key,) = [line for line in key.splitlines() if "-" not in line]
    assert {
        name
        for name, text in kept(ran).items()
        if any(one in text for one in (key, secret, PASSWORD))
    } == set()


def test_xcoms_are_references_and_hold_no_path(ran: Ran) -> None:
    question = (
        "select value from xcom where dag_id in ('leaks', 'planted') and key = 'return_value'"
    )
    found = [json.loads(str(value)) for (value,) in database(ran.folder, question)]
    assert len(found) > 10
    for one in found:
        assert one.keys() in (
            {"table", "partition", "step", "values", "digest"},
            {"table", "partition", "release"},
        )
    assert str(ran.folder) not in json.dumps(found)


def test_what_is_run_by_dags_test_tells_its_steps_and_its_verdict(ran: Ran) -> None:
    said = ran.noted("dags_test")
    for line in ("step split", "step dcr", "step publish: blocked"):
        assert line in said


NAMES = """
import json, sys
from airflow.sdk import DAG
from privacy_assets.airflow import PrivacyGateOperator, privacy_gate
from privacy_assets.errors import ConfigError
given = {"source": "/rows.parquet", "subject": "pid", "deployment": "/srv/releases"}
for name in json.loads(sys.argv[1]):
    with DAG("dag", schedule=None):
        for make, more in ((privacy_gate, {}), (PrivacyGateOperator, {"task_id": "publish"})):
            try:
                make(table=name, **given, **more)
            except ConfigError as error:
                print(error)
with DAG("nörth.1-" + "x" * 200, schedule=None) as dag:
    privacy_gate("people", group_id="nörth", **given)
print(len(dag.task_dict))
"""


def test_a_table_is_named_by_letters_digits_and_underscores_alone(tmp_path: Path) -> None:
    odd = ["../up", "a/b", "a.b", "nörth", "", "a\nb", "1a", "{{ conf }}", None]
    done = subprocess.run(
        [sys.executable, "-c", NAMES, json.dumps(odd)],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [line for line in done.stdout.splitlines() if line]
    rule, template = "letters, digits and underscores, starting with a letter.", "is a template"
    assert sum(rule in line or template in line for line in lines) == 2 * len(odd), done.stderr
    assert int(lines[-1]) > 6
