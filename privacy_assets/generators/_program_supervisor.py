"""Runs a program for its parent, and ends it with everything that it started, whichever of the two ends first.

Started alone, as ``python -I -S _program_supervisor.py PROGRAM ARGUMENT...``, at the head of a session. Standard input
is a pipe whose other end its parent holds: the system closes it also when the parent is killed.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

NOT_STARTED = 127  # as a shell does
_STDIN, _ADOPT = 0, 36  # PR_SET_CHILD_SUBREAPER


def main(arguments: list[str]) -> int:
    """Exit status of the program; a signal that ended it ends this process as well."""
    if sys.platform == "linux":  # what the program leaves behind, in another session or not, becomes a child of ours
        ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump would hold private rows
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        program = subprocess.Popen(arguments, stdin=subprocess.DEVNULL)
    except (OSError, ValueError) as error:
        sys.stderr.write(type(error).__name__)
        return NOT_STARTED
    while program.poll() is None:
        if _STDIN in select.select([_STDIN, woken], [], [])[0]:  # its other end is closed
            _end(program)
            os.killpg(0, signal.SIGKILL)  # where the system does not tell who the children are; and this process
        os.read(woken, 4096)
    _end(program)
    if program.returncode < 0:
        with suppress(OSError):
            signal.signal(-program.returncode, signal.SIG_DFL)
        os.kill(os.getpid(), -program.returncode)
    return program.returncode


def _end(program: subprocess.Popen[bytes]) -> None:
    program.kill()
    program.wait()
    while children := _children():  # the children of one that ends become ours in turn
        for pid in children:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with suppress(OSError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == os.getpid():
                found.append(int(stat.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
