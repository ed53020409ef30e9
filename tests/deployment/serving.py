"""Start and stop a deployment: a webserver and a daemon over an instance on SQLite."""

import json
import os
import signal
import socket
import subprocess
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
from served import BIN, HERE, Served, until
from servers import free_port

SECRET = "what-nobody-is-to-be-shown"  # DEPLOYMENT_SECRET of every process
LOCATIONS = ("stock", "gated", "elsewhere")
CONFIG = """\
telemetry:
  enabled: false
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config:
    max_concurrent_runs: 2
    dequeue_interval_seconds: 1
    tag_concurrency_limits:  # as in dagster.local.yaml
      - {key: privacy_assets/table, value: {applyLimitPerUniqueValue: true}, limit: 1}
      - {key: dagster/backfill, value: {applyLimitPerUniqueValue: true}, limit: 1}
"""


@contextmanager
def serve(root: Path) -> Iterator[Served]:
    """Start one server for each code location, a webserver and a daemon; on exit, end them with all
    their children.
    """
    home = root / "home"
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text(CONFIG)
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "DEPLOYMENT_ROOT": str(root),
        "DEPLOYMENT_SECRET": SECRET,
        "PRIVACY_ASSETS_SPLIT_KEY": "the same split in every run of the tests",
        "PYTHONPATH": os.pathsep.join(
            [str(HERE.parents[1]), str(HERE.parent / "helpers"), str(HERE)]
        ),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    port = free_port()
    started: list[subprocess.Popen[bytes]] = []
    # A test run that is terminated (by a time limit) must end its servers, too.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        served = Served(root, f"http://127.0.0.1:{port}", environment, instance)
        try:
            _start_all(served, started, port)
            yield served
        finally:
            _stop(started)
            signal.signal(signal.SIGTERM, before)


def _start_all(served: Served, started: list[subprocess.Popen[bytes]], port: int) -> None:
    """Start the code servers first. Webserver and daemon share them, so they do not reload the code
    every minute.
    """
    ports = {name: free_port() for name in LOCATIONS}
    for name, own in ports.items():
        file = ["-f", str(HERE / f"workspace_{name}.py"), "-d", str(HERE), "--location-name", name]
        started.append(
            _start(
                served, name, ["dagster", "api", "grpc", "-h", "127.0.0.1", "-p", str(own), *file]
            )
        )
    entries = [
        {"host": "127.0.0.1", "port": own, "location_name": name} for name, own in ports.items()
    ]
    workspace = served.root / "workspace.yaml"
    # JSON is YAML
    workspace.write_text(json.dumps({"load_from": [{"grpc_server": entry} for entry in entries]}))
    try:
        until(
            "answer of every code server",
            lambda: _alive(started) and all(map(_listening, ports.values())),
        )
        web = ["dagster-webserver", "-h", "127.0.0.1", "-p", str(port), "-w", str(workspace)]
        started.append(_start(served, "webserver", web))
        started.append(_start(served, "daemon", ["dagster-daemon", "run", "-w", str(workspace)]))
        until("workspace with all code locations", lambda: _alive(started) and _loaded(served))
    except AssertionError as error:
        error.add_note("\n\n".join(text for _, text in served.log_tails()))
        raise


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _start(served: Served, name: str, command: list[str]) -> subprocess.Popen[bytes]:
    served.logs[name] = served.root / f"{name}.log"
    with served.logs[name].open("wb") as out:
        return subprocess.Popen(
            [BIN / command[0], *command[1:]],
            env=served.environment,
            cwd=served.root,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _alive(started: list[subprocess.Popen[bytes]]) -> bool:
    ended = [process.args for process in started if process.poll() is not None]
    assert not ended, f"ended: {ended}"
    return True


def _loaded(served: Served) -> bool:
    """Whether the webserver has loaded every code location. Raises AssertionError if one cannot be
    loaded.
    """
    query = """{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus
        locationOrLoadError { __typename ... on PythonError { message } } } } } }"""
    try:
        entries = served.graphql(query)["locationEntries"]
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
    broken = [
        entry
        for entry in entries
        if (entry["locationOrLoadError"] or {}).get("__typename") == "PythonError"
    ]
    assert not broken, broken
    return sorted(entry["name"] for entry in entries if entry["loadStatus"] == "LOADED") == sorted(
        LOCATIONS
    )


def _stop(started: list[subprocess.Popen[bytes]]) -> None:
    for sign, seconds in ((signal.SIGTERM, 15), (signal.SIGKILL, 5)):
        for process in started:
            try:
                os.killpg(process.pid, sign)
            except ProcessLookupError:
                continue
        for process in started:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                continue
