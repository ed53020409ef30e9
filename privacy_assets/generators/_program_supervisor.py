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
_STDIN = 0
_PR_SET_CHILD_SUBREAPER = 36


def main(arguments: list[str]) -> int:
    """Run the program.

    Args:
        arguments: Program and its arguments.

    Returns:
        Its exit status. A signal that ended it is sent to this process as well.
    """
    # orphaned descendants, in any session, become children of this process
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would contain private rows
    signalled, signal_end = os.pipe()  # readable after each SIGCHLD
    os.set_blocking(signal_end, False)
    signal.set_wakeup_fd(signal_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        program = subprocess.Popen(arguments, stdin=subprocess.DEVNULL)
    except (OSError, ValueError) as error:
        sys.stderr.write(type(error).__name__)
        return NOT_STARTED
    while program.poll() is None:
        readable, _, _ = select.select([_STDIN, signalled], [], [])
        if _STDIN in readable:  # the parent closed its end
            _end(program)
            # includes this process; needed where the system does not list children
            os.killpg(0, signal.SIGKILL)
        os.read(signalled, 4096)
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
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            fields = stat.read_bytes().rsplit(b")", 1)[1].split()  # after the name of the program
            parent = int(fields[1])
            if parent == os.getpid():
                children.append(int(stat.parent.name))
    return children


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
