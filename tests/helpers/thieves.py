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
    found = [str(dict(os.environ)), str(sys.argv), os.getcwd(), str(train)]
    for pid in ("self", os.getppid()):
        # the process that adopted the test process may belong to another user
        with suppress(PermissionError):
            found += [
                Path(f"/proc/{pid}/{name}").read_bytes().decode("latin-1")
                for name in ("environ", "cmdline")
            ]
            found += [
                str(link.readlink())
                for link in Path(f"/proc/{pid}/fd").iterdir()
                if link.is_symlink()
            ]
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        found.append(str(frame.f_locals))
    found += [
        text
        for thing in gc.get_objects()
        for text in gc.get_referents(thing)
        if isinstance(text, str)
    ]
    with Path(os.environ["LOOT"]).open("a", encoding="utf-8", errors="replace") as loot:
        loot.write("\n".join(found))
    return independent(train, rows, seed)


def stays(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Start a process in another session, and wait forever."""
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True
    )
    Path(os.environ["LOOT"]).write_text(f"{os.getpid()} {other.pid}.")
    time.sleep(300)
    return train
