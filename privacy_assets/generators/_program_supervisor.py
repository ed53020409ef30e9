"""Run a program, and end it with all processes it started when either the program or the parent
ends.

Started as ``python -I -S _program_supervisor.py PROGRAM ARGUMENT...``, as the leader of a session.
Standard input is a pipe held open by the parent, which the system closes if the parent is killed.
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

NOT_STARTED = 127  # same as in a shell
_STDIN, _ADOPT = 0, 36  # PR_SET_CHILD_SUBREAPER


def main(arguments: list[str]) -> int:
    """Return the exit status of the program; a signal that ended it is sent to this process as
    well.
    """
    # orphaned descendants, in any session, become children of this process
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would contain private rows
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
        if _STDIN in select.select([_STDIN, woken], [], [])[0]:  # the parent closed its end
            _end(program)
            # includes this process; needed where the system does not list children
            os.killpg(0, signal.SIGKILL)
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
    while children := _children():  # children of a process that ends become children of this one
        for pid in children:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with suppress(OSError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            if int(stat.read_bytes().rsplit(b")", 1)[1].split()[1]) == os.getpid():
                found.append(int(stat.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
