"""Take the pictures of docs/airflow.md: the leaky demo, run by a scheduler of Airflow, in a
headless Chromium.

``python docs/images/take_airflow.py [FOLDER]`` writes them to FOLDER, by default to the folder of
this file. It needs the extra ``airflow``, websocket-client and Chromium on PATH, takes minutes, and
runs in no test.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from take import BROWSERS, ROOT, SMALLEST, free_port, wait_for

TABLE, RUN = "patients_leak", "a_run"
PICTURES = {  # the page below that of the run, and width and height in pixels
    "airflow_blocked": ("", (1200, 1300)),
}
SHOWN = {  # stored preferences of the UI user
    f"{TABLE}/open-groups": f'["{TABLE}"]',
    "default_dag_view": '"graph"',
    f"direction-{TABLE}": '"DOWN"',
}
DRAWN = "document.querySelectorAll('.react-flow__node').length > 3"  # more than the closed group
LONGEST = 3600  # seconds


def main() -> int:
    """Take the pictures and return the exit status."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent).resolve()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.stdout.write(f"pictures: SKIPPED, none of {', '.join(BROWSERS)} is on PATH\n")
        return 0
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        port = free_port()
        environment = {
            **os.environ,
            # standalone starts `airflow`
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "AIRFLOW_HOME": scratch,
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "examples/airflow/demo"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "true",
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "120",  # seconds, for a busy machine
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
            "PRIVACY_ASSETS_RELEASES": f"{scratch}/gate/releases",
        }
        command = [sys.executable, "-m", "airflow", "standalone"]
        with started(command, environment):
            wait_for(port)
            run(environment)
            with started([browser, *flags(scratch)], environment):
                for name, (page, size) in PICTURES.items():
                    made = picture(
                        scratch, f"http://127.0.0.1:{port}", f"dags/{TABLE}/runs/{RUN}/{page}", size
                    )
                    if len(made) < SMALLEST:
                        sys.stdout.write(f"pictures: {name} is empty\n")
                        return 1
                    (out / f"{name}.png").write_bytes(made)
                    sys.stdout.write(f"pictures: {out / name}.png\n")
    return 0


def run(environment: dict[str, str]) -> None:
    """Run the DAG once, until it has failed; raise TimeoutError otherwise."""

    def airflow(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "airflow", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    until = time.monotonic() + LONGEST
    while (
        airflow("dags", "unpause", TABLE, "-y").returncode
        or airflow("dags", "trigger", TABLE, "-r", RUN).returncode
    ):
        time.sleep(5)  # the DAG is not parsed yet
    while '"failed"' not in airflow("dags", "list-runs", TABLE, "-o", "json").stdout:
        if time.monotonic() > until:
            raise TimeoutError("the run did not end")
        time.sleep(15)


def flags(scratch: str) -> list[str]:
    """Return the options of Chromium, which writes its debugging port to its folder."""
    given = (
        "headless=new",
        "no-sandbox",
        "hide-scrollbars",
        "remote-debugging-port=0",
        "remote-allow-origins=*",
    )
    return [*(f"--{one}" for one in given), f"--user-data-dir={scratch}/chrome"]


def picture(scratch: str, site: str, page: str, size: tuple[int, int]) -> bytes:
    """Return a page of Airflow as PNG, after it has drawn the fetched data."""
    import websocket

    port_file = Path(scratch, "chrome", "DevToolsActivePort")
    while not port_file.exists():
        time.sleep(1)
    with urlopen(f"http://127.0.0.1:{port_file.read_text().split()[0]}/json") as answer:
        tab = next(one for one in json.load(answer) if one["type"] == "page")
    socket = websocket.create_connection(tab["webSocketDebuggerUrl"], timeout=120)

    def call(method: str, **given: Any) -> dict[str, Any]:
        socket.send(json.dumps({"id": 1, "method": method, "params": given}))
        while (found := json.loads(socket.recv())).get("id") != 1:
            pass
        return found["result"]

    width, height = size
    call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=height,
        deviceScaleFactor=1,
        mobile=False,
    )
    call("Page.navigate", url=site)
    time.sleep(15)
    for key, value in SHOWN.items():
        call(
            "Runtime.evaluate",
            expression=f"localStorage.setItem({json.dumps(key)}, {json.dumps(value)})",
        )
    call("Page.navigate", url=f"{site}/{page}")
    for _ in range(120):
        time.sleep(1)
        if call("Runtime.evaluate", expression=DRAWN)["result"]["value"]:
            break
    time.sleep(5)  # it moves until all fits
    return base64.b64decode(call("Page.captureScreenshot", format="png")["data"])


@contextmanager
def started(command: list[str], environment: dict[str, str]) -> Iterator[None]:
    """Run the program in the ``with`` block, and end all processes that it started."""
    quiet = subprocess.DEVNULL
    program = subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=quiet, stderr=quiet
    )
    try:
        yield
    finally:
        os.killpg(program.pid, signal.SIGTERM)
        try:
            program.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()


if __name__ == "__main__":
    sys.exit(main())
