"""Run processes that are killed during their work, and check that their children are gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path


def gone(pid: int, seconds: float = 60) -> bool:
    """Return whether the process ends in time (a zombie has ended)."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


def killed(arguments: list[str], note: Path, seconds: float = 600, **variables: str) -> list[int]:
    """Start Python with ``arguments``, kill it (-9) once ``note`` ends with "."; return the pids in
    the note.
    """
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, *arguments], env={**os.environ, "PYTHONPATH": path, **variables}
    ) as process:
        end = time.monotonic() + seconds
        while not (note.exists() and note.read_text().endswith(".")):
            assert process.poll() is None and time.monotonic() < end, "it never came so far"
            time.sleep(0.1)
        process.kill()
    return [int(pid) for pid in note.read_text().rstrip(".").split()]
