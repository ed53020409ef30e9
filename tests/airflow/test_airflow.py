"""A table's pipeline on Airflow 3 without Dagster: two tasks, and the records that Airflow keeps of
them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pandas as pd
import pytest
import yaml
from planting import private, readable, traces
from servers import postgres
from sqlalchemy import NullPool, create_engine
from standins import LENIENT, resources, run

from privacy_assets import TableSpec, build_privacy_assets, read_published
from privacy_assets.cli.main import main
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.releases import Release, ReleaseStore, default_trusted

FUNCTIONS_APART = True
HERE, ROOT = Path(__file__).parents[1] / "helpers", Path(__file__).parents[2]
HAS_POSTGRES = "apache-airflow-providers-postgres" in {
    distribution.name for distribution in distributions()
}  # looking for the module would import Airflow
SECRET = "the same split in every run"
LINK = "_link_PrivacyReportLink"
TABLE = {
    "name": "honest",
    "subject": "pid",
    "generator": "broken_generators:honest",
    "evaluation": {"metrics": ["dcr"], "embedder": False},
    "policy": LENIENT,
}


def blocks(page: str, language: str = "python") -> list[str]:
    """Code blocks of a page."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL
    )


@dataclass(frozen=True)
class Ran:
    """All DAGs of the file, run once."""

    folder: Path
    said: str

    def ask(self, question: str, *values: str) -> list[tuple[Any, ...]]:
        """Rows of Airflow's database."""
        with sqlite3.connect(self.folder / "home/airflow.db") as database:
            return database.execute(question, values).fetchall()

    def states(self, dag: str) -> dict[str, tuple[str, int]]:
        """State and number of tries of each task."""
        found = self.ask(
            "select task_id, state, try_number from task_instance where dag_id = ?", dag
        )
        return {task: (state, tries) for task, state, tries in found}

    def xcoms(self, dag: str) -> dict[str, Any]:
        """The return value of each task."""
        found = self.ask(
            "select task_id, value from xcom where dag_id = ? and key = 'return_value'", dag
        )
        # SQLite returns it as a number
        return {task: json.loads(str(value)) for task, value in found}

    def log(self, dag: str, task: str = "publish") -> list[str]:
        """The log files of a task, attempt by attempt."""
        files = sorted(self.folder.glob(f"home/logs/dag_id={dag}/*/task_id={task}/*.log"))
        return [
            json.loads(line)["event"] for file in files for line in file.read_text().splitlines()
        ]

    def logged(self, dag: str) -> str:
        """All log files of a DAG."""
        return "\n".join(
            file.read_text() for file in self.folder.glob(f"home/logs/dag_id={dag}/*/*/*.log")
        )

    @property
    def store(self) -> ReleaseStore:
        return ReleaseStore(self.folder / "deployment/releases")


def airflow_in(place: Path) -> dict[str, str]:
    """The environment of an Airflow below ``place`` that cannot import Dagster."""
    for folder in ("home", "dags", "blocked"):
        (place / folder).mkdir()
    (place / "blocked/dagster.py").write_text("raise ImportError('dagster is blocked')\n")
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(place / "home"),
        "PYTHONPATH": os.pathsep.join([str(place / "blocked"), str(HERE), *sys.path]),
        "OMP_NUM_THREADS": "1",
        "AIRFLOW_HOME": str(place / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(place / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__EXECUTOR": "airflow_worker.Worker",
        "PRIVACY_ASSETS_SPLIT_KEY": SECRET,
        "PLACE": str(place),
    }


def rows() -> pd.DataFrame:
    people = private()
    # rare values
    people["contact"] = ["mail" if i % 20 != 7 else f"name{i}@x.org" for i in range(len(people))]
    rng = np.random.default_rng(0)
    own = rng.random(len(people)) < 0.45
    people["lab"] = np.where(
        own, np.round(rng.normal(5, 1, len(people)), 6), rng.integers(3, 8, len(people))
    )
    people["seen"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(
        np.where(own, rng.integers(1, 10**7, len(people)), 0), "s"
    )
    return people


def run_all(place: Path, dags: str, source: str = "people.parquet", **variables: str) -> Ran:
    """Run every DAG of the file ``dags`` below ``place``."""
    environment = airflow_in(place) | variables
    for file in ("people", "month_2026-01-01"):
        rows().to_parquet(place / f"{file}.parquet")
    (place / "honest.yaml").write_text(yaml.safe_dump({**TABLE, "source": str(place / source)}))
    (place / "dags" / dags).write_text((HERE / dags).read_text())
    said = ""
    for command in (
        ["-m", "airflow", "db", "migrate"],
        [HERE / "airflow_worker.py", place / "dags" / dags],
    ):
        done = subprocess.run(
            [sys.executable, *command],
            env=environment,
            cwd=place,
            capture_output=True,
            text=True,
            timeout=600,
        )
        said += done.stdout + done.stderr
        assert done.returncode == 0, said[-5000:]
    return Ran(place, said)


def current_release(root: Path, table: str = "honest") -> Release:
    """The current release of a table."""
    return ReleaseStore(root).current(ReleaseTarget(table), default_trusted(root))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """The honest table is read from PostgreSQL if its provider is installed, and OpenLineage events
    go to a file.
    """
    place = tmp_path_factory.mktemp("airflow")
    transport = {"type": "file", "log_file_path": str(place / "home/events.jsonl"), "append": True}
    lineage = {"AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport)}
    if not HAS_POSTGRES:
        yield run_all(place, "gated_dags.py", **lineage)
        return
    (block,) = [one for one in blocks("docs/airflow.md") if "PostgresHook" in one]
    (place / "extract.py").write_text(block.replace("/srv/privacy", str(place)))
    with postgres() as given:
        host, port, login, password, name = given.values()
        uri = f"postgresql://{login}:{password}@{host}:{port}/{name}"
        engine = create_engine(uri.replace("postgresql", "postgresql+psycopg2"), poolclass=NullPool)
        rows().to_sql("visits", engine, index=False)
        yield run_all(
            place, "gated_dags.py", "extract/visits.parquet", AIRFLOW_CONN_WAREHOUSE=uri, **lineage
        )


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_all(tmp_path_factory.mktemp("airflow"), "grouped_dags.py")


@pytest.mark.slow
def test_a_table_that_holds_its_policy_is_published_and_read(ran: Ran) -> None:
    before = {"extract": ("success", 1)} if HAS_POSTGRES else {}
    assert ran.states("honest") == {**before, "publish": ("success", 1), "read": ("success", 1)}
    release = current_release(ran.store.root)
    assert {task: value for task, value in ran.xcoms("honest").items() if task != "extract"} == {
        "publish": {"table": "honest", "partition": None, "release": release.id},
        "read": len(read_published(ran.store.root, "honest")),
    }
    released, real = read_published(ran.store.root, "honest"), rows()
    assert set(released["contact"]) == {"mail", "other"}
    assert not released["lab"].isin(real["lab"][real["lab"] % 1 > 0]).any()
    assert (
        not released["seen"].isin(real["seen"][real["seen"].dt.normalize() != real["seen"]]).any()
    )
    log = ran.log("honest")
    assert [line for line in log if line.startswith("step ") and ":" not in line] == [
        f"step {name}"
        for name in ("read", "split", "fit", "sample", "prepare", "dcr", "attest", "publish")
    ]
    assert any(line.startswith("PASS") for line in log)
    assert any(line.startswith("contract of the columns: ") for line in log)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_POSTGRES, reason="apache-airflow-providers-postgres is not installed")
def test_a_source_in_a_database_is_read_with_a_connection(ran: Ran) -> None:
    extract = ran.folder / "extract/visits.parquet"
    assert extract.parent.stat().st_mode & 0o777 == 0o700
    assert sorted(pd.read_parquet(extract)["pid"]) == sorted(rows()["pid"])


@pytest.mark.slow
def test_a_report_without_a_server_is_a_path_and_no_link(ran: Ran) -> None:
    for dag in ("honest", "leaks"):
        ((path,),) = ran.ask(
            "select value from xcom where dag_id = ? and key = ?", dag, "privacy_report"
        )
        assert Path(json.loads(str(path))).is_file()
        assert f"report: {json.loads(str(path))}" in ran.log(dag)
        ((link,),) = ran.ask(
            "select value from xcom where dag_id = ? and key = ? and task_id = 'publish'", dag, LINK
        )
        assert json.loads(str(link)) == ""


@pytest.mark.slow
def test_events_of_openlineage_have_release_and_verdict(ran: Ran) -> None:
    pytest.importorskip("airflow.providers.openlineage")
    events = [
        json.loads(line) for line in (ran.folder / "home/events.jsonl").read_text().splitlines()
    ]
    ended = {(one["job"]["name"], one["eventType"]): one for one in events}
    (release,) = ended["honest.publish", "COMPLETE"]["outputs"]
    assert (release["namespace"], release["name"]) == ("x-privacy-assets://releases", "honest")
    current = current_release(ran.store.root)
    assert release["facets"]["version"]["datasetVersion"] == current.id
    tags = {tag["key"]: tag["value"] for tag in release["facets"]["tags"]["tags"]}
    assert tags == {
        "verdict": "pass",
        "sha256": hashlib.sha256(current.table.read_bytes()).hexdigest(),
    }
    (seen,) = ended["honest.read", "COMPLETE"]["inputs"]
    assert (seen["namespace"], seen["name"]) == (release["namespace"], release["name"])
    failed = ended["leaks.publish", "FAIL"]
    assert [(one["name"], one.get("facets", {})) for one in failed["outputs"]] == [("leaks", {})]
    assert "the policy does not hold" in failed["run"]["facets"]["errorMessage"]["message"]
    assert ("leaks.read", "COMPLETE") not in ended and ("says.publish", "FAIL") in ended
    if HAS_POSTGRES:
        (table,) = ended["honest.extract.query.1", "COMPLETE"]["inputs"]
        assert table["name"] == "postgres.public.visits"


@pytest.mark.slow
def test_it_is_the_table_that_the_command_makes(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", SECRET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(HERE)
    assert (
        main(
            [
                "run",
                str(ran.folder / "honest.yaml"),
                "--releases=releases",
                "--device=cpu",
                "--quiet",
            ]
        )
        == 0
    )
    ours, theirs = (current_release(root).table for root in (ran.store.root, tmp_path / "releases"))
    assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.slow
def test_a_table_that_leaks_fails_for_good_and_nobody_reads(ran: Ran) -> None:
    assert ran.states("leaks") == {"publish": ("failed", 1), "read": ("upstream_failed", 0)}
    assert ran.xcoms("leaks") == {}
    assert not ran.store.history(ReleaseTarget("leaks"))
    log = ran.log("leaks")
    assert "step published" not in log, "it ends with the verdict"
    assert any(line.startswith("FAIL") for line in log)
    assert [line for line in log if line.startswith("dcr.") and line.endswith("  fail")]
    assert not [line for line in log if "value [low, high]" in line], "numbers are in the report"
    assert "the policy does not hold" in ran.logged("leaks")


@pytest.mark.slow
def test_what_goes_wrong_in_a_step_is_tried_again_and_told_without_values(ran: Ran) -> None:
    assert ran.states("says") == {"publish": ("failed", 2), "read": ("upstream_failed", 0)}
    log = ran.logged("says")
    assert "StepError" in log and "ValueError at" in log
    assert '"says_rows"' not in log, (
        "no frame of a step: some versions and settings show its local variables"
    )


@pytest.mark.slow
def test_no_private_value_is_kept_by_airflow(ran: Ran) -> None:
    kept = {
        str(file): readable(file) for file in (ran.folder / "home").rglob("*") if file.is_file()
    }
    assert (
        any(name.endswith("airflow.db") for name in kept)
        and sum(name.endswith(".log") for name in kept) == 5 + HAS_POSTGRES
    )
    assert {
        name: found for name, text in {**kept, "said": ran.said}.items() if (found := traces(text))
    } == {}


BLOCKS = """
from pathlib import Path
from runpy import run_path
from airflow.sdk import DAG
made = DAG.__exit__
DAG.__exit__ = lambda self, *ended: (parsed.append(self.dag_id), made(self, *ended))[1]
for block in sorted(Path().glob("block_*.py")):
    parsed = []
    run_path(str(block))
    print(f"{block.name}: {', '.join(parsed)}")
"""
MISTAKES = """
import os
import sys
from pathlib import Path
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from datetime import date
from privacy_assets.airflow import PrivacyGateOperator, PrivacyPublishOperator, ReleaseSensor
from privacy_assets.errors import ConfigError
table = Path("honest.yaml")
for given in (
    {"table": table, "deployment": "releases"},
    {"table": table, "source": "demo"},
    {"table": Path("nowhere.yaml")},
    {"table": "honest", "source": "people.parquet", "generator": "sinthpop"},
    {"table": "honest", "source": "people_{partition}.parquet"},
    {"table": table, "deployment": "/srv/{{ var.value.gate }}/releases"},
    {"table": "honest", "source": "/srv/{{ ds }}.parquet"},
    {"table": "honest", "source": "people.parquet", "partitions": ["{{ ds }}"]},
    {"table": "honest", "source": "people.parquet", "subject": {"column": "id", "exact": 1}},
):
    try:
        PrivacyGateOperator(task_id="publish", **given)
    except ConfigError as error:
        print(error)
exact = {"table": "honest", "source": "people.parquet", "subject": {"column": "id", "exact": True}}
print(PrivacyGateOperator(task_id="exact", **exact).gated.resolved.spec.data.exact_ids)
for kind, given in (
    (PrivacyPublishOperator, {"table": table, "attested_by": "{{ params.task }}"}),
    (ReleaseSensor, {"table": "{{ params.table }}"}),
    (ReleaseSensor, {"table": "honest", "newer_than": "yesterday"}),
    (ReleaseSensor, {"table": "honest", "newer_than": date(2026, 1, 1)}),
):
    try:
        kind(task_id="publish", **given)
    except ConfigError as error:
        print(error)
os.environ["PRIVACY_ASSETS_TRUSTED_KEYS"] = "keys"
try:
    PrivacyGateOperator(task_id="publish", table=table, deployment="/releases").execute({})
except AirflowFailException as error:
    print(error)
print({"torch", "faiss", "sklearn", "numba", "scipy"} & set(sys.modules))
"""


@pytest.mark.slow
def test_mistakes_are_told_when_a_dag_is_parsed_or_a_task_begins_and_nothing_heavy_is_imported(
    tmp_path: Path,
) -> None:
    environment = airflow_in(tmp_path)
    (tmp_path / "honest.yaml").write_text(yaml.safe_dump({**TABLE, "source": "people.parquet"}))
    (tmp_path / "patients.yaml").write_text(blocks("docs/airflow.md", "yaml")[0])
    for number, block in enumerate(
        block for block in blocks("docs/airflow.md") if "airflow" in block
    ):
        (tmp_path / f"block_{number}.py").write_text(block)
    (tmp_path / "parsed.py").write_text(f"{BLOCKS}\n{MISTAKES}")
    done = subprocess.run(
        [sys.executable, "parsed.py"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    warned = "cannot be called outside of the Task Runner"
    assert [line for line in done.stdout.splitlines() if warned not in line] == [
        "block_0.py: patients, patients_leak",
        "block_1.py: patients, patients_readers",
        "block_2.py: visits_of_warehouse",
        "block_3.py: visits, visits_by_hand",
        "block_4.py: readers",
        "block_5.py: visits, claims",
        "block_6.py: regions",
        "releases: releases is relative, and tasks start in any folder. Fix: set the"
        " absolute path.",
        "table honest: source was passed in addition to a spec. Fix: set it in the spec.",
        "nowhere.yaml: no such file. Fix: pass the path of a table's YAML file.",
        "table honest, generator: unknown generator 'sinthpop'. Did you mean 'synthpop'?",
        "table honest, data: the path of source has {partition}, and the table has no partitions.",
        "'/srv/{{ var.value.gate }}/releases' is a template, and settings are not rendered."
        " Fix: set the value itself.",
        "table honest, source: '/srv/{{ ds }}.parquet' is a template, and settings are not"
        " rendered. Fix: set the value"
        " itself.",
        "'{{ ds }}' is a template, and settings are not rendered. Fix: set the value itself.",
        "table honest, data: subject must be the name of a column, {each_row: true} or {column:"
        " id, exact: true}.",
        "True",
        "'{{ params.task }}' is a template, and settings are not rendered. Fix: set the value"
        " itself.",
        "'{{ params.table }}' is a template, and settings are not rendered. Fix: set the value"
        " itself.",
        "ReleaseSensor: newer_than is 'yesterday', not a time. Fix: set a time with a time"
        " zone, for example"
        " datetime(2026, 1, 1, tzinfo=UTC).",
        "ReleaseSensor: newer_than has no time zone. Fix: set a time with a time zone, for example"
        " datetime(2026, 1, 1, tzinfo=UTC).",
        "PRIVACY_ASSETS_TRUSTED_KEYS: keys is relative, and tasks start in any folder. Fix: set"
        " the absolute path.",
        "set()",
    ]


STEPS = ("read", "split", "fit", "sample", "prepare", "score", "attest", "publish")


@pytest.mark.weekly
def test_a_task_group_publishes_what_the_other_doors_publish(
    grouped: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = grouped.states("grouped")
    assert states == {
        **{f"honest.{step}": ("success", 1) for step in STEPS},
        "wait": ("success", 1),
        "read": ("success", 1),
    }
    ours = current_release(grouped.folder / "grouped/releases")
    told = grouped.xcoms("grouped")
    assert told["honest.publish"] == {"table": "honest", "partition": None, "release": ours.id}
    assert told["wait"]["release"] == ours.id and told["read"] == len(
        read_published(grouped.folder / "grouped/releases", "honest")
    )
    assert set(told["honest.split"]) == {"table", "partition", "step", "values", "digest"}
    ((task, contract),) = grouped.ask(
        "select task_id, value from xcom where dag_id = ? and key = ?", "grouped", "contract"
    )
    contract = json.loads(str(contract))
    assert task == "honest.prepare" and contract["expectations"] > 5 and contract["broken"] == 0
    names = ", ".join(map(repr, rows().columns.drop("pid")))
    assert (
        f"The release publishes the names of its columns, so check them: {names}."
        in grouped.log("grouped", "honest.split")
    )

    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", SECRET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(HERE)
    assert (
        main(
            [
                "run",
                str(grouped.folder / "honest.yaml"),
                "--releases=cli/releases",
                "--device=cpu",
                "--quiet",
            ]
        )
        == 0
    )
    built = dg.Definitions.merge(
        build_privacy_assets(TableSpec.load(grouped.folder / "honest.yaml")), resources(tmp_path)
    )
    with dg.DagsterInstance.ephemeral() as instance:
        assert run(built, instance, table="honest").success
    stores = {"command": "cli/releases", "dagster": "releases"}
    theirs = {
        redact_foreign_errors: current_release(tmp_path / folder)
        for redact_foreign_errors, folder in stores.items()
    }
    for redact_foreign_errors, release in theirs.items():
        assert release.table.read_bytes() == ours.table.read_bytes(), redact_foreign_errors
        assert attested_by(release.attestation) == attested_by(ours.attestation), (
            redact_foreign_errors
        )


def attested_by(file: Path) -> dict[str, Any]:
    """The content of an attestation, except its time and the digests of the results, which contain
    their seconds.
    """
    stated = json.loads(base64.b64decode(json.loads(file.read_bytes())["payload"]))["predicate"]
    stated.pop("made_at")
    return {**stated, "results": sorted(stated["results"])}


@pytest.mark.weekly
def test_the_release_event_tells_release_and_digest(grouped: Ran) -> None:
    events = grouped.ask(
        "select a.uri, e.extra, e.partition_key from asset_event e join asset a on a.id ="
        " e.asset_id"
    )
    found = {uri: (json.loads(extra), key) for uri, extra, key in events}
    assert set(found) == {
        f"x-privacy-assets://releases/{table}" for table in ("honest", "dated", "seen")
    }
    release = current_release(grouped.folder / "grouped/releases")
    extra, _ = found["x-privacy-assets://releases/honest"]
    assert (extra["release"], extra["sha256"]) == (
        release.id,
        hashlib.sha256(release.table.read_bytes()).hexdigest(),
    )
    assert found["x-privacy-assets://releases/dated"][1] == "2026-01-01"


@pytest.mark.weekly
def test_a_group_of_a_table_that_leaks_ends_at_its_verdict(grouped: Ran) -> None:
    states = grouped.states("grouped_leak")
    assert states["leak.attest"] == ("failed", 1) and states["leak.publish"] == (
        "upstream_failed",
        0,
    ), "no retry"
    assert not ReleaseStore(grouped.folder / "grouped/releases").history(ReleaseTarget("leak"))
    log = grouped.log("grouped_leak", "leak.attest")
    assert any(line.startswith("FAIL") for line in log)
    assert next(
        line
        for line in log
        if line.startswith("report: https://reports.example/leak/_all/reports/")
    )
    failed = grouped.logged("grouped_leak")
    assert (
        "leak: the policy does not hold" in failed
        and "dcr.member_excess" in failed
        and "Fix:" in failed
    )
    assert "There is no release." in failed
    links = grouped.ask(
        "select task_id, value from xcom where dag_id = ? and key = ?", "grouped_leak", LINK
    )
    assert [(task, json.loads(link)) for task, link in links if "https" in link] == [
        (
            "leak.attest",
            log[log.index(next(line for line in log if line.startswith("report: ")))].removeprefix(
                "report: "
            ),
        )
    ]


@pytest.mark.weekly
def test_a_date_is_the_partition_that_holds_it(grouped: Ran) -> None:
    store = ReleaseStore(grouped.folder / "grouped/releases")
    assert list(store.targets("dated")) == [ReleaseTarget("dated", "2026-01-01")]
    assert grouped.xcoms("dated")["dated.publish"]["partition"] == "2026-01-01"


@pytest.mark.weekly
def test_a_person_can_stand_between_verdict_and_publication(grouped: Ran) -> None:
    assert grouped.states("looked_at") == {"judge": ("success", 1), "publish": ("success", 1)}
    assert grouped.xcoms("looked_at")["judge"]["step"] == "attest"
    assert current_release(grouped.folder / "grouped/releases", "seen")


@pytest.mark.weekly
def test_nothing_of_a_group_is_kept_by_airflow(grouped: Ran) -> None:
    kept = {
        str(file): readable(file) for file in (grouped.folder / "home").rglob("*") if file.is_file()
    }
    assert {
        name: found
        for name, text in {**kept, "said": grouped.said}.items()
        if (found := traces(text))
    } == {}
    (fields,) = grouped.ask(
        "select count(*) from rendered_task_instance_fields where dag_id != 'x' and"
        " rendered_fields != '{}'"
    )
    (serialized,) = grouped.ask("select group_concat(data) from serialized_dag")
    assert "people.parquet" not in str(serialized) and "SECRET" not in str(serialized)
    assert fields[0] <= 2, "only the tasks `read` and `wait` have templates"
