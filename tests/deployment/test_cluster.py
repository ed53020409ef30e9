"""A deployment without a shared disk:

PostgreSQL for runs, an object store for tables and releases, Ray for the work.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import ANEW, postgres

from privacy_assets import read_published
from privacy_assets.errors import InputError
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.keys import TrustedKeys
from privacy_assets.gate.release import pointed
from privacy_assets.gate.releases import ReleaseStore
from privacy_assets.infra.objects import ObjectPath, location
from privacy_assets.infra.storage import hash_file
from tests.rays import ray_alone
from tests.stores import extend_to_null, new_bucket, s3

ROOT = Path(__file__).parents[2]
PLACE = ReleaseTarget("patients")
pytestmark = pytest.mark.weekly
pytest.importorskip("dagster_postgres", reason="the extra 'postgres' is not installed")
pytest.importorskip("dagster_ray", reason="the extra 'ray' is not installed")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment of a worker in this deployment. This process also gets the location of the
    store.
    """
    root = tmp_path_factory.mktemp("cluster")
    with postgres() as database, s3() as store, extend_to_null(store):
        yield described(
            root,
            {
                **os.environ,
                **database,
                **store,
                "OMP_NUM_THREADS": "1",
                "RAY_AUTH_MODE": "disabled",
            },
        )


def described(root: Path, environment: dict[str, str]) -> dict[str, str]:
    """Environment that results from the commands of docs/scale.md, with this test's locations
    instead of the page's.
    """
    page = (ROOT / "docs" / "scale.md").read_text().partition("## Object store")[2]
    commands = (
        page.partition("```sh\n")[2]
        .partition("```")[0]
        .replace("privacy-assets ", "python -m privacy_assets ")
    )
    private, released = new_bucket(), new_bucket()
    for theirs, ours in (
        ("s3://privacy/", f"{private}/"),
        ("s3://released/", f"{released}/"),
        ("/srv/", f"{root}/"),
    ):
        assert theirs in commands
        commands = commands.replace(theirs, ours)
    *setting_up, run = (
        commands.replace("SECRET=...", "SECRET='the split key of this deployment'")
        .strip()
        .splitlines()
    )
    assert run.startswith("dagster job execute")
    (root / "privacy").mkdir()
    (root / "dagster.production.yaml").write_bytes((ROOT / "dagster.production.yaml").read_bytes())
    script = ["set -e", "umask 022", *setting_up, f"env -0 > {root}/environment"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    told = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=root,
        env={**environment, "PATH": path},
        capture_output=True,
    )
    assert told.returncode == 0, told.stderr.decode()
    shown = (root / "environment").read_text().split("\0")
    (root / "environment").unlink()
    return dict(line.split("=", 1) for line in shown if line)


def run(
    environment: dict[str, str], *arguments: str, file: str = "definitions.py"
) -> "subprocess.Popen[bytes]":
    """Start a run in its own process group, so that it can be killed as a whole."""
    command = [sys.executable, "-m", "dagster", *arguments, "-f", file]
    log = Path(environment["DAGSTER_HOME"]).parent / "log"
    with log.open("ab") as told:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stderr=told, start_new_session=True
        )


def store_of(environment: dict[str, str]) -> ReleaseStore:
    return ReleaseStore(location(environment["PRIVACY_ASSETS_RELEASES"]))


def read(environment: dict[str, str]) -> int | None:
    """Rows of the release that readers get; None before the first publication."""
    keys = environment["PRIVACY_ASSETS_TRUSTED_KEYS"]
    try:
        return len(
            read_published(environment["PRIVACY_ASSETS_RELEASES"], "patients", trusted_keys=keys)
        )
    except InputError:
        return None


def check_whole(environment: dict[str, str]) -> None:
    trusted, store = (
        TrustedKeys((Path(environment["PRIVACY_ASSETS_TRUSTED_KEYS"]),)),
        store_of(environment),
    )
    for release in store.history(PLACE):  # each holds the bytes that its own attestation names
        assert hash_file(release.table) == release.opened(PLACE, trusted).sha256


def test_a_run_that_is_killed_while_it_publishes_and_the_next_one(environment) -> None:
    claims = PLACE.below(store_of(environment).root) / "claims"
    assert isinstance(claims, ObjectPath)
    workspace = "tests/deployment/workspace_cluster.py"
    with ray_alone():
        running = run(environment, "job", "execute", "-j", "patients_pipeline", file=workspace)
        while running.poll() is None and not claims.names():
            time.sleep(0.05)
        assert claims.names(), (Path(environment["DAGSTER_HOME"]).parent / "log").read_text()[
            -4000:
        ]
        os.killpg(running.pid, signal.SIGKILL)
        running.wait(60)
        subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", "stop", "--force"], capture_output=True
        )
    assert read(environment) is None or read(environment) > 5_000
    check_whole(environment)

    # as after five minutes
    (location(environment["PRIVACY_ASSETS_PRIVATE"]) / "running" / "patients.json").unlink()
    again = run(environment, "asset", "materialize", "--select", "patients/published")
    assert again.wait(300) == 0
    assert read(environment) > 5_000
    assert len(store_of(environment).history(PLACE)) == 1
    check_whole(environment)


def test_two_runs_at_once_publish_what_was_judged(environment) -> None:
    store = store_of(environment)
    before = len(store.history(PLACE))
    running = [run(environment, "asset", "materialize", "--select", ANEW) for _ in range(2)]
    ended = [one.wait(900) for one in running]
    releases = store.history(PLACE)
    # A run that finds a run in progress is blocked. The same rows as before make no new release.
    assert ended.count(0) >= 1
    assert max(before, 1) <= len(releases) <= before + ended.count(0)
    assert pointed(*store._kind.pointer(PLACE.below(store.root))) == releases[-1].id
    check_whole(environment)


def test_the_tables_are_in_the_store_alone_and_the_keys_nowhere(environment) -> None:
    bucket = location(environment["PRIVACY_ASSETS_STORAGE"]).parent
    released = location(environment["PRIVACY_ASSETS_RELEASES"]).parent
    names = bucket.below()
    for part in ("storage/patients/source/table.bin", "storage/patients/generator/model.json"):
        assert part in names
    assert any(name.startswith("private/log/patients/") for name in names)
    secrets = [
        environment[name].encode() for name in ("PRIVACY_ASSETS_SPLIT_KEY", "AWS_SECRET_ACCESS_KEY")
    ]
    signing = Path(environment["PRIVACY_ASSETS_SIGNING_KEY_FILE"])
    secrets.append(signing.read_bytes().splitlines()[1])
    for place in (bucket, released):
        for name in place.below():
            data = place.joinpath(*name.split("/")).read_bytes()
            assert not any(secret in data for secret in secrets), name
    folder = Path(environment["DAGSTER_HOME"]).parent
    here = [path for path in folder.rglob("*") if path.is_file() and path != signing]
    assert not [path for path in here if path.suffix in (".parquet", ".db")]
    assert not any(secret in path.read_bytes() for path in here for secret in secrets)
