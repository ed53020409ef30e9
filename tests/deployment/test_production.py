"""The production environment of this repository, with a real PostgreSQL server: instance,
resources, executor, demo.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from servers import ANEW, postgres

from privacy_assets import read_published
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.keys import TrustedKeys
from privacy_assets.gate.release import pointed
from privacy_assets.gate.releases import ReleaseStore
from privacy_assets.infra.storage import hash_file

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.weekly
pytest.importorskip("dagster_postgres", reason="the extra 'postgres' is not installed")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment of a production worker: the database, folders, keys and the home of the
    instance.
    """
    root = tmp_path_factory.mktemp("production")
    with postgres() as database:
        home = root / "home"
        home.mkdir()
        shutil.copy(ROOT / "dagster.production.yaml", home / "dagster.yaml")
        made = {
            **os.environ,
            **database,
            "DAGSTER_HOME": str(home),
            "PRIVACY_ASSETS_ENV": "production",
            "PRIVACY_ASSETS_SPLIT_KEY": "the same split in every run of the tests",
            "PRIVACY_ASSETS_STORAGE": str(root / "storage"),
            "PRIVACY_ASSETS_RELEASES": str(root / "releases"),
            "PRIVACY_ASSETS_PRIVATE": str(root / "private"),
            "PRIVACY_ASSETS_TRUSTED_KEYS": str(root / "keys"),
            "OMP_NUM_THREADS": "1",
        }
        (root / "private").mkdir(mode=0o700)
        keys = [sys.executable, "-m", "privacy_assets", "keys", "--new"]
        subprocess.run(keys, check=True, env=made, cwd=root, capture_output=True)
        yield made


def dagster(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dagster", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )


def test_the_demo_is_published_and_the_runs_are_in_postgresql(environment, monkeypatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    told = dagster(environment, "job", "execute", "-f", "definitions.py", "-j", "patients_pipeline")
    assert told.returncode == 0, told.stderr[-4000:]
    table = read_published(
        environment["PRIVACY_ASSETS_RELEASES"],
        "patients",
        trusted_keys=environment["PRIVACY_ASSETS_TRUSTED_KEYS"],
    )
    assert len(table) > 5_000

    with dg.DagsterInstance.from_config(environment["DAGSTER_HOME"]) as instance:
        assert "postgres" in type(instance.event_log_storage).__module__.lower()
        (run,) = instance.get_run_records()
        assert run.dagster_run.status is dg.DagsterRunStatus.SUCCESS
        event = instance.get_latest_materialization_event(dg.AssetKey(["patients", "published"]))
        assert event is not None and event.run_id == run.dagster_run.run_id
    files = [path for path in Path(environment["DAGSTER_HOME"]).parent.rglob("*") if path.is_file()]
    assert not any(path.suffix == ".db" for path in files)  # nothing fell back to SQLite
    assert len(files) > 10 and not any(b"s3cret" in path.read_bytes() for path in files)


def test_two_runs_at_once_publish_what_was_judged(environment) -> None:
    store = ReleaseStore(Path(environment["PRIVACY_ASSETS_RELEASES"]))
    trusted, place = (
        TrustedKeys((Path(environment["PRIVACY_ASSETS_TRUSTED_KEYS"]),)),
        ReleaseTarget("patients"),
    )
    before = len(store.history(place))
    command = [
        sys.executable,
        "-m",
        "dagster",
        "asset",
        "materialize",
        "-f",
        "definitions.py",
        "--select",
        ANEW,
    ]
    running = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    ended = [one.wait(900) for one in running]
    releases = store.history(place)
    # A run that finds a run in progress is blocked. The same rows as before make no new release.
    assert ended.count(0) >= 1
    assert max(before, 1) <= len(releases) <= before + ended.count(0)
    assert pointed(*store._kind.pointer(place.below(store.root))) == releases[-1].id
    for release in releases:  # each holds the bytes that its own attestation names
        assert hash_file(release.table) == release.opened(place, trusted).sha256


def test_the_password_is_not_shown(environment) -> None:
    told = dagster(environment, "instance", "info")
    assert told.returncode == 0 and "s3cret" not in told.stdout


def test_without_the_database_nothing_runs(environment) -> None:
    away = {**environment, "DAGSTER_PG_HOST": "127.0.0.1", "DAGSTER_PG_PORT": "1"}
    before = sorted(Path(environment["PRIVACY_ASSETS_RELEASES"]).rglob("*"))
    told = dagster(away, "job", "execute", "-f", "definitions.py", "-j", "patients_pipeline")
    assert told.returncode != 0
    assert sorted(Path(environment["PRIVACY_ASSETS_RELEASES"]).rglob("*")) == before
    assert environment["DAGSTER_PG_PASSWORD"] not in told.stdout + told.stderr
