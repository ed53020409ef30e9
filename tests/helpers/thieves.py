"""Generators that search for more than their input. They write their findings to the file that LOOT
names.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
from drawing import independent


def looks_around(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Collect its environment and its parent's, arguments, folders, frames, and every string in its
    memory.
    """
    loot = [str(dict(os.environ)), str(sys.argv), os.getcwd(), str(train)]
    for pid in ("self", os.getppid()):
        process = Path(f"/proc/{pid}")
        # the process that adopted the test process may belong to another user
        with suppress(PermissionError):
            for name in ("environ", "cmdline"):
                loot.append((process / name).read_bytes().decode("latin-1"))
            for link in (process / "fd").iterdir():
                if link.is_symlink():
                    loot.append(str(link.readlink()))
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        loot.append(str(frame.f_locals))
    for container in gc.get_objects():
        loot.extend(text for text in gc.get_referents(container) if isinstance(text, str))
    with Path(os.environ["LOOT"]).open("a", encoding="utf-8", errors="replace") as file:
        file.write("\n".join(loot))
    return independent(train, rows, seed)


def stays(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Start a process in another session, and wait forever."""
    command = [sys.executable, "-c", "import time; time.sleep(300)"]
    child = subprocess.Popen(command, start_new_session=True)
    Path(os.environ["LOOT"]).write_text(f"{os.getpid()} {child.pid}.")
    time.sleep(300)
    return train
