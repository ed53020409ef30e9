"""A real Airflow on the loopback: API server, scheduler, workers as processes, log files and a
SQLite database.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.stores import free_port

HERE = Path(__file__).parent
ENDS = {"success", "failed"}
Ready = Callable[[], object]
Act = Generator[Ready, None, None]  # user actions, and the conditions that they wait for in between
# Several commands in one process, because starting Airflow takes seconds.
_COMMANDS = """
import json, sys
from airflow.cli.cli_parser import get_parser
for words in json.loads(sys.argv[1]):
    print("command", *words, flush=True)
    try:
        arguments = get_parser().parse_args(words)
        arguments.func(arguments)
    except (Exception, SystemExit) as error:
        print("ended", type(error).__name__, error, flush=True)
"""
# Modules that the scheduler has imported are shared with its workers, which are forks of it.
_SETTINGS = """
import sys
if "scheduler" in sys.argv:
    import pandas, numba, scipy.stats, privacy_assets.airflow.task_group, privacy_assets.evaluation.evaluate
"""  # noqa: E501


@dataclass
class Airflow:
    """The running deployment below ``folder``."""

    folder: Path
    port: int
    environment: Mapping[str, str]
    said: list[str] = field(default_factory=list)
    # the last known state of each run
    runs: dict[tuple[str, str], str] = field(default_factory=dict)
    servers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    # the acts that have not ended
    waiting: dict[str, tuple[Act, Ready]] = field(default_factory=dict)

    def ask(self, method: str, path: str, **body: Any) -> Any:
        """Send one request to the public API.

        Args:
            method: HTTP method.
            path: Path below ``/api/v2/``.
            **body: Fields of the JSON body. Empty: no body.

        Returns:
            The JSON of the answer.

        Raises:
            RuntimeError: If the answer is an error, after some attempts if it is one of the server.
        """
        url = f"http://127.0.0.1:{self.port}/api/v2/{path}"
        headers = {"Content-Type": "application/json"}
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(url, data, headers, method=method)
        for wait in (1, 1, 2, 4, 8, 0):
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                if error.code < 500 or not wait:  # SQLite is locked while others write
                    text = error.read().decode()[:500]
                    raise RuntimeError(f"{method} {path}: {error.code} {text}") from None
                time.sleep(wait)
        return None

    def trigger(self, dag: str, run: str, **fields: Any) -> Ready:
        """Start a run.

        Args:
            dag: Id of the DAG.
            run: Id of the run.
            **fields: Further fields of the request.

        Returns:
            A condition that holds when the run has ended.
        """
        body = {"dag_run_id": run, "logical_date": None, **fields}
        self.ask("POST", f"dags/{quote(dag)}/dagRuns", **body)
        return self.ended(dag, run)

    def mark(self, dag: str, run: str, task: str, state: str) -> Ready:
        """Set the state of a task by hand.

        Args:
            dag: Id of the DAG.
            run: Id of the run.
            task: Id of the task.
            state: The new state, such as "success".

        Returns:
            A condition that holds when the run has ended.
        """
        self.ask("PATCH", f"{_run(dag, run)}/taskInstances/{task}", new_state=state)
        return self.ended(dag, run)

    def clear(self, dag: str, run: str, *tasks: str, downstream: bool = False) -> Ready:
        """Run tasks again.

        Args:
            dag: Id of the DAG.
            run: Id of the run.
            *tasks: Ids of the tasks.
            downstream: Also run the tasks downstream of them again.

        Returns:
            A condition that holds when the run has ended.
        """
        body = {
            "dry_run": False,
            "only_failed": False,
            "dag_run_id": run,
            "task_ids": tasks,
            "include_downstream": downstream,
        }
        self.ask("POST", f"dags/{dag}/clearTaskInstances", **body)
        return self.ended(dag, run)

    def forge(self, dag: str, run: str, task: str, value: Any) -> None:
        """Set the XCom of a task.

        Args:
            dag: Id of the DAG.
            run: Id of the run.
            task: Id of the task.
            value: The value, which JSON can represent.
        """
        path = f"{_run(dag, run)}/taskInstances/{task}/xcomEntries"
        try:
            self.ask("PATCH", f"{path}/return_value", value=value)
        except RuntimeError:
            self.ask("POST", path, key="return_value", value=value)

    def forget(self, dag: str, run: str, task: str, instance: int = -1) -> None:
        """Remove the XCom of a task.

        Args:
            dag: Id of the DAG.
            run: Id of the run.
            task: Id of the task.
            instance: Index of a mapped task. -1: the task is not mapped.
        """
        path = f"{_run(dag, run)}/taskInstances/{task}/xcomEntries/return_value"
        self.ask("DELETE", f"{path}?map_index={instance}")

    def xcom(self, dag: str, run: str, task: str) -> Any:
        """Return a task's XCom.

        Args:
            dag: Id of the DAG.
            run: Id of the run.
            task: Id of the task.
        """
        path = f"{_run(dag, run)}/taskInstances/{task}/xcomEntries/return_value"
        return self.ask("GET", path)["value"]

    def ended(self, dag: str, run: str) -> Ready:
        """Return a condition: the run has ended.

        Args:
            dag: Id of the DAG.
            run: Id of the run.
        """
        return lambda: self.runs.get((dag, run)) in ENDS

    def all_ended(self, dag: str, least: int) -> Ready:
        """Return a condition: a DAG has at least ``least`` runs, and all have ended.

        Args:
            dag: Id of the DAG.
            least: Minimum number of runs.
        """

        def ready() -> bool:
            states = [state for (dag_id, _), state in self.runs.items() if dag_id == dag]
            return len(states) >= least and set(states) <= ENDS

        return ready

    def commands(self, *words: Sequence[str], seconds: float = 600) -> str:
        """Run Airflow commands one after the other, and return their output.

        Args:
            *words: Words of each command.
            seconds: Time limit of all of them.
        """
        done = subprocess.run(
            [sys.executable, "-c", _COMMANDS, json.dumps(words)],
            env=dict(self.environment),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said[-5000:]
        self.said.append(said)
        return said

    def serve(self, name: str, *options: str) -> None:
        """Keep a server running, as a supervisor would: restart it when it ends.

        Args:
            name: Command of Airflow, such as "scheduler".
            *options: Options of the command.
        """
        if name in self.servers:
            if self.servers[name].poll() is None:
                return
            _stop(self.servers[name])  # the processes that it started
        with (self.folder / f"{name}.txt").open("ab") as log:
            self.servers[name] = subprocess.Popen(
                [sys.executable, "-m", "airflow", name, *options],
                env=dict(self.environment),
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def play(self, acts: Mapping[str, Act], seconds: float = 900) -> dict[str, str]:
        """Play all acts concurrently, in turns.

        The scheduler starts after the first turn, and again if SQLite was too slow for it.

        Args:
            acts: Acts by name.
            seconds: Time limit of all of them.

        Returns:
            The reason of each act that failed, by name.
        """
        failed = dict[str, str]()
        waiting = self.waiting
        for name, act in acts.items():
            _next(name, act, waiting, failed)
        end = time.monotonic() + seconds
        while waiting and time.monotonic() < end:
            self.serve("scheduler")
            time.sleep(1)
            with suppress(OSError):  # the server is busy: ask again
                runs = self.ask("GET", "dags/~/dagRuns?limit=500")["dag_runs"]
                self.runs = {(run["dag_id"], run["dag_run_id"]): run["state"] for run in runs}
                for name, (act, ready) in list(waiting.items()):
                    if ready():
                        _next(name, act, waiting, failed)
        return {**failed, **dict.fromkeys(waiting, f"it did not end in {seconds:g} s")}


def _next(
    name: str, act: Act, waiting: dict[str, tuple[Act, Ready]], failed: dict[str, str]
) -> None:
    waiting.pop(name, None)
    try:
        waiting[name] = (act, next(act))
    except StopIteration:
        return
    except Exception as error:  # reported by the test of all acts
        failed[name] = f"{type(error).__name__}: {error}"


def _run(dag: str, run: str) -> str:
    return f"dags/{quote(dag)}/dagRuns/{quote(run, safe='')}"


@contextmanager
def serving(folder: Path, dags: Sequence[str], **variables: str) -> Iterator[Airflow]:
    """Run an Airflow and its API in the ``with`` block.

    Args:
        folder: Empty folder for all of its files.
        dags: DAG files in this folder of helpers.
        **variables: Further environment variables of its processes.
    """
    for name in ("home", "dags", "home/config"):
        (folder / name).mkdir()
    (folder / "home/config/airflow_local_settings.py").write_text(_SETTINGS)
    for name in dags:
        shutil.copy(HERE / name, folder / "dags")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HOME": str(folder / "home"),
        "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
        "OMP_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
        "PLACE": str(folder),
        "AIRFLOW_HOME": str(folder / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "3",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "false",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "true",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__MAXIMUM_PAGE_LIMIT": "500",
        "AIRFLOW__API__SECRET_KEY": "of this test",
        "AIRFLOW__API_AUTH__JWT_SECRET": "of this test, and of nothing else that there is"
        " in the world",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "false",
        **variables,
    }
    airflow = Airflow(folder, port, environment)
    airflow.commands(["db", "migrate"], ["dags", "reserialize"])
    try:
        airflow.serve("api-server", "--host=127.0.0.1", f"--port={port}", "--workers=1")
        _until_ready(airflow)
        yield airflow
    finally:
        for server in airflow.servers.values():
            _stop(server)


def _until_ready(airflow: Airflow, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            airflow.ask("GET", "monitor/health")
            return
        except (OSError, RuntimeError):
            pass
        assert time.monotonic() < end, (airflow.folder / "api-server.txt").read_text()[-3000:]
        time.sleep(0.5)


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End a server and all processes in its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
            server.wait(20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def log_of(folder: Path, dag: str, run: str, task: str) -> str:
    """Return the log of a task's last try, or of all instances of a mapped task.

    Args:
        folder: Folder of the Airflow.
        dag: Id of the DAG.
        run: Id of the run, or a pattern such as ``*``.
        task: Id of the task.
    """
    tries = folder.glob(f"home/logs/dag_id={dag}/run_id={run}/task_id={task}/**/*.log")
    last_tries = {}
    for file in sorted(tries, key=lambda file: file.stat().st_mtime):
        last_tries[file.parent] = file
    lines = []
    for file in last_tries.values():
        lines.extend(map(_readable, file.read_text().splitlines()))
    return "\n".join(lines)


def _readable(line: str) -> str:
    entry = json.loads(line)
    lines = [str(entry["event"])]
    for cause in entry.get("error_detail") or ():
        lines.append(f"{cause['exc_type']}: {cause['exc_value']}")
    return "\n".join(lines)


def database(folder: Path, question: str, *values: str) -> list[tuple[Any, ...]]:
    """Return rows of Airflow's database.

    Args:
        folder: Folder of the Airflow.
        question: SQL query.
        *values: Values of its placeholders.
    """
    with sqlite3.connect(folder / "home/airflow.db") as opened:
        return opened.execute(question, values).fetchall()
