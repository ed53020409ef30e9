"""Locations, keys and credentials of Airflow's tasks, a sensor in the triggerer, and the cost of
parsing a DAG.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_airflow import airflow_in

from privacy_assets.airflow import AirflowDeployment
from privacy_assets.airflow.provider import get_provider_info
from privacy_assets.errors import ConfigError
from privacy_assets.gate.keys import first_key
from privacy_assets.infra.objects import ObjectPath
from tests.stores import extend_to_null, new_bucket, s3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"releases": "releases"}, "releases is relative"),
        ({"releases": "/r", "private": "p"}, "private: p is relative"),
        ({"releases": "/r", "values": "v"}, "values: v is relative"),
        ({"releases": "/r", "trusted_keys": "k"}, "trusted_keys: k is relative"),
        ({"releases": "/r", "signing_key": "k"}, "signing_key: k is relative"),
        ({"releases": "/r", "signing_key": "s3://bucket/key"}, "an object store cannot hold keys"),
        ({"releases": "/r", "split_key": "a word"}, "a DAG file must not contain the split key"),
        ({"releases": "s4://bucket"}, "Did you mean s3"),
        ({"releases": 3}, "expected a path"),
        ({"releases": "gs://bucket/releases", "store_conn_id": "store"}, "only S3 is supported"),
        (
            {"releases": "/srv/{{ var.value.gate }}/releases"},
            "is a template, and settings are not rendered",
        ),
        ({"home": "/srv/{% if x %}y{% endif %}"}, "is a template"),
        ({"releases": "s3://{{ var.value.bucket }}/releases"}, "is a template"),
        ({"releases": "/r", "signing_key": "secrets:{{ params.key }}"}, "is a template"),
        ({"releases": "/r", "report_url": "https://{{ var.value.host }}"}, "is a template"),
        ({"releases": "/r", "store_conn_id": "{{ params.store }}"}, "is a template"),
        ({"releases": "/r", "device": "{{ params.device }}"}, "is a template"),
        ({"releases": "/r", "report_url": "reports.example"}, "is not the URL of a web server"),
        ({"releases": "/r", "report_url": "file:///srv"}, "is not the URL of a web server"),
    ],
)
def test_mistakes_are_told_when_the_dag_is_parsed(given: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        AirflowDeployment(**given)


def test_what_is_not_given_comes_from_the_environment_of_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RELEASES", "PRIVATE", "TRUSTED_KEYS", "REPORT_URL"):
        monkeypatch.delenv(f"PRIVACY_ASSETS_{name}", raising=False)
    with pytest.raises(ConfigError, match="the release folder is not set"):
        AirflowDeployment().open()
    monkeypatch.setenv("PRIVACY_ASSETS_RELEASES", "/srv/releases")
    found = AirflowDeployment().open()
    assert (found.releases, found.private) == (Path("/srv/releases"), Path("/srv/private"))
    assert AirflowDeployment().values_of(found) == Path("/srv/private/values")
    monkeypatch.setenv("PRIVACY_ASSETS_RELEASES", "s3://bucket/releases")
    with pytest.raises(ConfigError, match="the private folder of .* is not set"):
        AirflowDeployment().open()
    monkeypatch.setenv("PRIVACY_ASSETS_PRIVATE", "s3://bucket/private")
    assert AirflowDeployment().open().private == ObjectPath("s3://bucket/private")
    monkeypatch.setenv("PRIVACY_ASSETS_RELEASES", "releases")
    with pytest.raises(ConfigError, match="PRIVACY_ASSETS_RELEASES: releases is relative"):
        AirflowDeployment().open()
    assert AirflowDeployment(releases="/other").open().releases == Path("/other"), (
        "the DAG file comes first"
    )
    monkeypatch.setenv("PRIVACY_ASSETS_RELEASES", "/srv/{{ var.value.gate }}/releases")
    with pytest.raises(ConfigError, match="is a template"):
        AirflowDeployment().open()
    monkeypatch.setenv("PRIVACY_ASSETS_REPORT_URL", "reports.example")
    with pytest.raises(
        ConfigError, match="PRIVACY_ASSETS_REPORT_URL: 'reports.example' is not the URL"
    ):
        AirflowDeployment(releases="/other").open()


def test_its_text_names_settings_and_no_values() -> None:
    text = str(
        AirflowDeployment(
            releases="/srv/releases", signing_key="secrets:NAME", report_url="https://host/word"
        )
    )
    assert text == "AirflowDeployment(releases, signing_key, report_url)"


def test_the_address_of_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRIVACY_ASSETS_REPORT_URL", raising=False)
    values = Path("/srv/private/values")
    report = values / "adult/_all/reports/0123"
    assert AirflowDeployment().page(report, values) == f"{report}/report.html", "a path"
    wanted = "https://reports.example/adult/_all/reports/0123/report.html"
    assert AirflowDeployment(report_url="https://reports.example/").page(report, values) == wanted
    monkeypatch.setenv("PRIVACY_ASSETS_REPORT_URL", "https://reports.example")
    assert AirflowDeployment().page(report, values) == wanted
    hourly = values / "adult/partition=2026-01-01-05%3A00/reports/0123"
    quoted = (
        "https://reports.example/adult/partition%3D2026-01-01-05%253A00/reports/0123/report.html"
    )
    assert AirflowDeployment().page(hourly, values) == quoted
    stored = ObjectPath("s3://bucket/values")
    assert AirflowDeployment().page(stored / "a", stored) == "https://reports.example/a/report.html"


def told(printed: str) -> list[str]:
    """Output of a script."""
    return [line.removeprefix(">> ") for line in printed.splitlines() if line.startswith(">> ")]


CREDENTIALS = """
import os
from functools import partial
print = partial(print, ">>")  # Airflow writes warnings to standard output
from fsspec.config import conf
from privacy_assets.airflow import AirflowDeployment
from privacy_assets.airflow.provider import get_provider_info
from privacy_assets.errors import ConfigError
from privacy_assets.gate.releases import ReleaseStore
from privacy_assets.infra.objects import location
bucket = os.environ["BUCKET"]
place = location(bucket) / "x"
with AirflowDeployment(releases=f"{bucket}/releases", store_conn_id="store").credentials():
    place.put(b"by the connection")
    print(place.read_bytes(), sorted(conf["s3"]))
print(conf.get("s3"), "PRIVACY_ASSETS_SIGNING_KEY" in os.environ)
with AirflowDeployment(releases="/r", signing_key="secrets:gate_key", split_key="secrets:gate_split_key").credentials():
    print(os.environ["PRIVACY_ASSETS_SIGNING_KEY"][:27], os.environ["PRIVACY_ASSETS_SPLIT_KEY"])
print("PRIVACY_ASSETS_SIGNING_KEY" in os.environ, os.environ.get("PRIVACY_ASSETS_SPLIT_KEY"))
for given in (
    {"signing_key": "secrets:other"},
    {"signing_key": "secrets:edited"},
    {"store_conn_id": "empty"},
    {"store_conn_id": "absent"},
):
    try:
        AirflowDeployment(releases="/r", **given).credentials().__enter__()
    except ConfigError as error:
        print(error)
os.environ["PRIVACY_ASSETS_SIGNING_KEY"] = "another key"
with AirflowDeployment(releases="/r", signing_key="/keys/signing.key").credentials():
    print("PRIVACY_ASSETS_SIGNING_KEY" in os.environ)
print(os.environ["PRIVACY_ASSETS_SIGNING_KEY"])
"""  # noqa: E501


@pytest.mark.slow
def test_credentials_come_from_a_connection_and_keys_from_the_secrets_backend(
    tmp_path: Path,
) -> None:
    environment = airflow_in(tmp_path)
    first_key(tmp_path / "made/signing.key", tmp_path / "keys")
    variables = {
        "gate_key": (tmp_path / "made/signing.key").read_text(),
        "gate_split_key": "a secret of sixteen bytes",
    }
    (tmp_path / "variables.json").write_text(json.dumps(variables))
    with s3() as store, extend_to_null(store):
        environment |= {name: value for name, value in store.items() if "KEY" not in name}
        # The host of a connection can be edited to name another store, so it is ignored.
        environment["AIRFLOW_CONN_STORE"] = json.dumps(
            {
                "conn_type": "aws",
                "login": "someone",
                "password": "password",
                "host": "http://127.0.0.1:9",
                "extra": {"endpoint_url": "http://127.0.0.1:9"},
            }
        )
        environment |= {
            "BUCKET": new_bucket(),
            "AIRFLOW__SECRETS__BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
            "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps(
                {"variables_file_path": str(tmp_path / "variables.json")}
            ),
            "AIRFLOW_VAR_EDITED": "a key that any user may edit",
            "AIRFLOW_CONN_EMPTY": json.dumps({"conn_type": "aws", "login": "someone"}),
            "PRIVACY_ASSETS_SPLIT_KEY": "the own one, which stays",
        }
        done = subprocess.run(
            [sys.executable, "-c", CREDENTIALS],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    assert told(done.stdout) == [
        "b'by the connection' ['key', 'secret']",
        "None False",
        "-----BEGIN PRIVATE KEY----- a secret of sixteen bytes",
        "False the own one, which stays",
        "secrets:other: the secrets backend of this worker has no such variable.",
        "secrets:edited: the secrets backend of this worker has no such variable.",
        "Connection 'empty' has no login or no password. Fix: set them to the access key and"
        " secret key of"
        " the object store.",
        "store_conn_id: no Connection 'absent' (AirflowNotFoundException).",
        "False",
        "another key",
    ]


LISTED = """
from functools import partial
print = partial(print, ">>")
from airflow.providers_manager import ProvidersManager
manager = ProvidersManager()
print(manager.providers["privacy-assets"].data["name"])
print(*[link for link in manager.extra_links_class_names if "privacy" in link])
"""


@pytest.mark.slow
def test_airflow_lists_the_provider_and_its_link(tmp_path: Path) -> None:
    environment = airflow_in(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", LISTED],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert told(done.stdout) == [
        "privacy-assets",
        "privacy_assets.airflow.operators.PrivacyReportLink",
    ]


def test_what_the_provider_names_is_there() -> None:
    found = get_provider_info()
    places = [
        place
        for kind in ("operators", "sensors", "triggers")
        for one in found[kind]
        for place in one["python-modules"]
    ]
    named = [
        *found["extra-links"],
        *(one["to_openlineage_converter"] for one in found["asset-uris"]),
    ]
    assert all(
        find_spec(place) for place in [*places, *(name.rpartition(".")[0] for name in named)]
    )


WAITS = """
import asyncio, os, shutil, sys, time
from functools import partial
from pathlib import Path
print = partial(print, ">>")
import airflow.sdk
from airflow.sdk.exceptions import TaskDeferred
from datetime import UTC, datetime, timedelta
from airflow.sdk import DAG, Asset
from privacy_assets.airflow import AirflowDeployment, PrivacyGateOperator, ReleaseSensor, privacy_gate
from privacy_assets.airflow.operators import redact_exceptions
from privacy_assets.airflow.sensor import ReleaseTrigger
from privacy_assets.errors import ConfigError, OutOfDate, StoreUnavailable
from airflow.sdk.module_loading import import_string
from dataclasses import replace
from privacy_assets.gate.keys import SigningKey, TrustedKeys
from privacy_assets.gate.releases import ReleaseStore
from privacy_assets.gate.envelope import ReleaseTarget, sign_payload

place = Path(os.environ["PLACE"])
gate = place / "deployed/releases"
sensor = ReleaseSensor(task_id="wait", table="people", deployment=gate, deferrable=True, poke_interval=0.1)
try:
    print("not deferred", sensor.execute({}))
except TaskDeferred as deferred:
    path, given = deferred.trigger.serialize()
print(path, given)
trigger = import_string(path)(**given)

async def first():
    async def publish():
        await asyncio.sleep(0.5)
        shutil.copytree(place / "made", place / "deployed", dirs_exist_ok=True)
    later = asyncio.create_task(publish())
    async for event in trigger.run():
        await later
        return event.payload

event = asyncio.run(first())
print(event)
print(sensor.execute_complete({}, event))


class Between(ReleaseSensor):
    def _release(self):
        shutil.copytree(place / "made", place / "later", dirs_exist_ok=True)


try:
    Between(task_id="race", table="people", deployment=place / "later/releases", deferrable=True).execute({})
except TaskDeferred as deferred:
    print(deferred.trigger.seen)
stored = AirflowDeployment(releases="s3://b/r", store_conn_id="s")
for given in ({"newer_than": datetime(2026, 1, 1)}, {"deployment": stored}):
    try:
        ReleaseSensor(task_id="wrong", table="people", **{"deployment": place, "deferrable": True, **given})
    except ConfigError as error:
        print(error)
now = datetime.now(UTC)
for end in (now - timedelta(days=1), now + timedelta(days=1), "", now.replace(tzinfo=None)):
    waits = ReleaseSensor(task_id="new", table="people", newer_than="{{ data_interval_end }}", deployment=gate)
    try:
        waits.render_template_fields({"data_interval_end": end})
        print(waits.poke({}).is_done)
    except Exception as error:
        print(type(error).__name__, error)
people, store = ReleaseTarget("people"), ReleaseStore(gate)
key = SigningKey(place / "deployed/private/signing.key", "", TrustedKeys((place / "deployed/trusted_keys",)))
pointer, release = store.pointer(people, key.trusted), store.current(people, key.trusted)
for ahead in (timedelta(minutes=9), timedelta(minutes=11)):
    (gate / "people/_all/latest.json").write_bytes(replace(pointer, at=now + ahead).signed(people, key))
    young = ReleaseSensor(task_id="young", table="people", max_age=timedelta(days=1), deployment=gate)
    print("young", young.poke({}).is_done)
(gate / "people/_all/latest.json").write_bytes(pointer.signed(people, key))
stated = release.opened(people, key.trusted)
release.folder.chmod(0o755)
for ahead in (timedelta(minutes=9), timedelta(minutes=11)):
    release.attestation.unlink()
    made = replace(stated, made_at=(now + ahead).isoformat(timespec="seconds"))
    release.attestation.write_bytes(sign_payload(made.payload(), key).data)
    new = ReleaseSensor(task_id="newer", table="people", newer_than=now, deployment=gate)
    print("new", new.poke({}).is_done)
with DAG("outlets", default_args={"outlets": [Asset("other")]}) as dag:
    group = privacy_gate("people", source="/rows.parquet", deployment="/r", outlets=[Asset("own")])
    alone = PrivacyGateOperator(task_id="alone", table="all", source="/rows.parquet", deployment="/r")
print([[one.name for one in dag.task_dict[task].outlets] for task in ("people.publish", "alone")])
for behind in (TimeoutError(110, "timed out"), FileNotFoundError(2, "gone"), None):
    @redact_exceptions
    def step():
        try:
            if behind is not None:
                raise behind
        except OSError as error:
            raise StoreUnavailable.of("the pointer cannot be read", error) from None
        raise OutOfDate("no")
    try:
        step()
    except Exception as error:
        print(type(error).__name__, error.__context__)
"""  # noqa: E501


@pytest.mark.slow
def test_the_sensor_waits_in_the_triggerer_and_verifies_by_itself(tmp_path: Path) -> None:
    from drawing import independent, people

    from privacy_assets.cli.main import main

    tables = {role: tmp_path / f"{role}.parquet" for role in ("train", "holdout", "synthetic")}
    rows = people(300)
    rows.iloc[:200].to_parquet(tables["train"])
    rows.iloc[200:400].to_parquet(tables["holdout"])
    independent(rows.iloc[:200].drop(columns="pid"), 200, 0).to_parquet(tables["synthetic"])
    spec = {
        "name": "people",
        "data": {**{role: str(path) for role, path in tables.items()}, "subject": "pid"},
    }
    spec |= {"evaluation": {"metrics": ["dcr"], "embedder": False}}
    spec["policy"] = {
        "name": "x",
        "limits": [{"statistic": "dcr.privacy_score", "at_most": 0.9, "min_subjects": 5}],
    }
    (tmp_path / "people.yaml").write_text(json.dumps(spec))
    made = f"--releases={tmp_path / 'made/releases'}"
    assert (
        main(["run", str(tmp_path / "people.yaml"), made, f"--out={tmp_path / 'out'}", "--quiet"])
        == 0
    )
    environment = {**airflow_in(tmp_path), "PLACE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", WAITS],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    deferred, event, found, *rest = told(done.stdout)
    assert deferred.startswith("privacy_assets.airflow.sensor.ReleaseTrigger {'releases': ")
    assert event == "{'table': 'people', 'partition': None}"
    assert "'release': " in found and "'sha256': " in found
    fix = "Fix: set a time with a time zone, for example datetime(2026, 1, 1, tzinfo=UTC)."
    assert rest == [
        "None",
        f"ReleaseSensor: newer_than has no time zone. {fix}",
        "ReleaseSensor: deferrable and store_conn_id cannot be combined. Fix: remove one.",
        "True",
        "False",
        f"AirflowFailException ReleaseSensor: newer_than is '', not a time. {fix}",
        f"AirflowFailException ReleaseSensor: newer_than has no time zone. {fix}",
        "young True",
        "young False",
        "new True",
        "new False",
        "[['own', 'people_release'], ['other', 'all_release']]",
        "AirflowException None",
        "AirflowFailException None",
        "AirflowFailException None",
    ]


PARSED = """
import sys, time
from functools import partial
print = partial(print, ">>")
for name in ("torch", "faiss", "great_expectations", "dagster", "scipy", "sklearn", "numba"):
    sys.modules[name] = None  # importing one of them would fail
before = time.process_time()
from airflow.sdk import DAG, BaseOperator
with DAG("empty"):
    BaseOperator(task_id="nothing")
empty = time.process_time() - before
from privacy_assets.airflow import privacy_gate
with DAG("gated") as dag:
    privacy_gate("patients", source="/nowhere/rows.parquet", subject="person", deployment="/nowhere/releases")
print(len(dag.task_dict), (time.process_time() - before) / empty)
"""  # noqa: E501


@pytest.mark.slow
def test_a_dag_is_parsed_without_data_keys_or_heavy_packages(tmp_path: Path) -> None:
    environment = airflow_in(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PARSED],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    ((tasks, cost),) = [line.split() for line in told(done.stdout)]
    assert int(tasks) == 10 and float(cost) < 3, (
        "CPU of an empty DAG and this one over that of the empty one"
    )
    assert not os.path.exists("/nowhere")
