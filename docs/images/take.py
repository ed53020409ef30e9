"""Take the pictures of the docs: both demos in a separate Dagster instance, rendered by a headless
Chromium.

``python docs/images/take.py [FOLDER]`` writes them to FOLDER, by default to the folder of this
file. It needs the extra ``ui``, and takes no pictures without Chromium on PATH.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

ROOT, BIN = Path(__file__).parents[2], Path(sys.executable).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
ONE_TABLE = 'key:"patients_leak/*" and not key:"*/leak_study"'
OPENED = "global@global:patients_leak"
PICTURES = {  # the page, and width and height in pixels
    "lineage": (f"asset-groups~{quote(ONE_TABLE, safe='')}?expanded={OPENED}", "2200,2300"),
    "blocked": ("assets/patients_leak/attestation", "1900,1350"),
}
SMALLEST = 20_000  # bytes of a picture; a page that did not load is smaller


def main() -> int:
    """Take the pictures and return the exit status."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent).resolve()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.stdout.write(f"pictures: SKIPPED, none of {', '.join(BROWSERS)} is on PATH\n")
        return 0
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "dagster_home"
        home.mkdir()
        shutil.copy(ROOT / "dagster.local.yaml", home / "dagster.yaml")
        environment = {**os.environ, "DAGSTER_HOME": str(home)}
        for options, expected in (([], 0), (["--leak"], 1)):
            command = [sys.executable, "-m", "privacy_assets", "demo", *options]
            ended = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False
            )
            if ended.returncode != expected:
                sys.stdout.write(
                    f"pictures: the demo {' '.join(options)} ended with status {ended.returncode}\n"
                )
                return 1
        return take(browser, Path(scratch), environment, out)


def take(browser: str, scratch: Path, environment: dict[str, str], out: Path) -> int:
    """Start the UI, take each picture, and stop the UI."""
    port = free_port()
    served = subprocess.Popen(
        [BIN / "dg", "dev", "--port", str(port)], cwd=ROOT, env=environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(port)
        for name, (page, size) in PICTURES.items():
            made = scratch / f"{name}.png"
            subprocess.run(
                [
                    browser,
                    "--headless=new",
                    "--no-sandbox",
                    "--hide-scrollbars",
                    f"--user-data-dir={scratch}/chrome",
                    f"--window-size={size}",
                    "--virtual-time-budget=40000",
                    f"--screenshot={made}",
                    f"http://localhost:{port}/{page}",
                ],
                check=True,
                stderr=subprocess.DEVNULL,
                timeout=180,
            )
            if made.stat().st_size < SMALLEST:
                sys.stdout.write(f"pictures: {name} is empty\n")
                return 1
            shutil.copy(made, out)
            sys.stdout.write(f"pictures: {out / made.name}\n")
    finally:
        os.killpg(served.pid, signal.SIGTERM)
        try:
            served.wait(30)
        except subprocess.TimeoutExpired:  # on a busy machine it can hang while it ends
            os.killpg(served.pid, signal.SIGKILL)
            served.wait()
    return 0


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for(port: int) -> None:
    """Wait until the UI listens; raise TimeoutError after two minutes."""
    for _ in range(120):
        try:
            socket.create_connection(("localhost", port), timeout=5).close()
            return
        except OSError:
            time.sleep(1)
    raise TimeoutError("the UI did not start in two minutes")


if __name__ == "__main__":
    sys.exit(main())
