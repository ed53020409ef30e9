"""Real servers for tests, started from the machine's programs.

If a program is missing, the test is skipped with the reason.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Selection of a materialized table that is generated and evaluated again. Two concurrent runs of it
# show conflicts over files.
ANEW = 'key:"patients/synthetic"+'
# where Debian keeps them off PATH
SYSTEM = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        _, port = server.getsockname()
        return int(port)


def program(name: str) -> str:
    """Path of a PostgreSQL program."""
    folders = os.pathsep.join([os.environ.get("PATH", ""), *map(str, SYSTEM)])
    path = shutil.which(name, path=folders)
    if path is None:
        pytest.skip(
            f"{name} is not installed (package postgresql): no PostgreSQL server can be started"
        )
    return str(Path(path).resolve())


@contextmanager
def postgres() -> Iterator[dict[str, str]]:
    """A PostgreSQL server with an empty database; yields the environment that
    dagster.production.yaml reads.
    """
    initdb = program("initdb")
    server = program("postgres")
    # The server blocks to run as root, so another user runs it in a separate folder.
    user = {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}
    root = Path(tempfile.mkdtemp(prefix="postgres-"))
    try:
        try:
            owner = user.values() if user else (os.getuid(),)
            shutil.chown(root, *owner)
        except (OSError, LookupError) as error:
            pytest.skip(
                f"PostgreSQL does not run as root, and there is no other user for it: {error}"
            )
        (root / "password").write_text("s3cret")
        (root / "password").chmod(0o644)
        account = ["-U", "dagster", "--pwfile", str(root / "password"), "--auth", "scram-sha-256"]
        try:
            subprocess.run(
                [initdb, "-D", str(root / "data"), *account],
                check=True,
                cwd=root,
                capture_output=True,
                **user,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no PostgreSQL server can be made by this user: {error}")
        port = free_port()
        listen = ["-p", str(port), "-h", "127.0.0.1", "-k", str(root), "-F"]
        with (root / "log").open("wb") as log:
            running = subprocess.Popen(
                [server, "-D", str(root / "data"), *listen], cwd=root, stderr=log, **user
            )
        try:
            _until_ready(running, port, root / "log")
            yield {
                "DAGSTER_PG_HOST": "127.0.0.1",
                "DAGSTER_PG_PORT": str(port),
                "DAGSTER_PG_USERNAME": "dagster",
                "DAGSTER_PG_PASSWORD": "s3cret",
                "DAGSTER_PG_DB": "postgres",
            }
        finally:
            running.terminate()
            running.wait(30)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _until_ready(running: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    import time

    import psycopg2

    for _ in range(120):
        try:
            psycopg2.connect(
                host="127.0.0.1", port=port, user="dagster", password="s3cret", dbname="postgres"
            ).close()
        except psycopg2.OperationalError:
            if running.poll() is not None:
                break
            time.sleep(0.25)
        else:
            return
    pytest.skip(f"PostgreSQL did not start: {log.read_text()[-2000:]}")
