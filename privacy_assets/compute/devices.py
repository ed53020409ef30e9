"""Choice of a torch device, leases of accelerators across processes, and halving when memory runs out.

Leases are POSIX record locks, which ``fcntl.lockf`` takes. The kernel drops them when the process ends, however it
ends, and a child never has them: a BSD lock (``flock``, which the filelock package takes) belongs to the open file
instead, so that a child forked by the holder keeps the device locked after the holder was killed. The price of a record
lock is that closing *any* descriptor of the file in the holding process drops it, and that threads of one process do
not exclude each other; both are dealt with by ``_Locks``, the only place that opens the files. Needs a POSIX system.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from privacy_assets.errors import ConfigError, LeaseTimeout, shown

T = TypeVar("T")
Say = Callable[[str], None]
_LOGGER = logging.getLogger(__name__)
_POLL = 0.2  # seconds between two looks at the locks
_NOTE = 200  # bytes of a holder's note that are read
_MEMORY_TEXTS = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "can't allocate memory", "not enough memory")


@dataclass(frozen=True)
class Device:
    """A torch device: ``name`` as torch calls it here, ``identity`` the same in every process of this machine."""

    name: str
    identity: str


CPU = Device("cpu", "cpu")


def accelerators() -> list[Device]:
    """Accelerators of this machine: the visible CUDA devices, else MPS, else none. Imports torch where it is there."""
    if find_spec("torch") is None:
        return []
    import torch

    if torch.cuda.is_available():
        # "cuda:0" is another card under another CUDA_VISIBLE_DEVICES; the card's UUID is not.
        ids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
        return [Device(f"cuda:{i}", f"cuda-{identity}") for i, identity in enumerate(ids)]
    return [Device("mps", "mps")] if torch.backends.mps.is_available() else []


def matching_devices(wanted: str = "auto") -> list[Device]:
    """Devices that fit ``wanted``: "auto" (accelerators, else the CPU), "cuda" (any), "cuda:1", "mps" or "cpu".

    Never empty: ConfigError when the device is not there or the name is not one of these.
    """
    if wanted == "cpu":
        return [CPU]
    if not re.fullmatch(r"auto|mps|cuda(:\d+)?", wanted):
        raise ConfigError(f"device {shown(wanted)} is unknown. Known: auto, cpu, mps, cuda, cuda:N.")
    found = accelerators()
    if wanted == "auto":
        return found or [CPU]
    fitting = [device for device in found if wanted in (device.name, device.name.partition(":")[0])]
    if not fitting:
        there = ", ".join([device.name for device in found] + ["cpu"])
        raise ConfigError(f"device {shown(wanted)} is not there. This machine has: {there}.")
    return fitting


def pick_device(wanted: str = "auto") -> str:
    """Torch name of the first device that fits ``wanted`` (see :func:`matching_devices`); takes no lease."""
    return matching_devices(wanted)[0].name


@contextmanager
def lease_device(
    folder: str | Path | None = None,
    device: str = "auto",
    slots: int = 1,
    timeout: float | None = None,
    on_wait: Say | None = None,
    every: float = 30.0,
) -> Iterator[str]:
    """Hold a device for the ``with`` block; yields its torch name.

    An accelerator goes to ``slots`` holders at a time, threads and processes counted alike, among all who use the same
    ``folder`` (by default one of the own user among the temporary files) with the same ``slots``; with several fitting
    devices to whichever is free first. The CPU is shared and needs no lease. Waiting is not in order of arrival.
    ``on_wait`` is told who holds the devices (process, since when) at once and then every so many seconds. After
    ``timeout`` seconds (None: never) LeaseTimeout is raised. A holder that asks again waits for itself.
    """
    if slots < 1:
        raise ConfigError("slots must be at least 1.")
    devices = matching_devices(device)
    if devices == [CPU]:
        yield CPU.name
        return
    folder = _own_folder() if folder is None else Path(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = folder.resolve()  # one file, one path: locks are told apart by path within the process
    names = {item.name: re.sub("[^A-Za-z0-9.-]", "_", item.identity) for item in devices}
    places = [(name, str(folder / f"{stem}.{slot}.lock")) for slot in range(slots) for name, stem in names.items()]
    name, path = _wait_for(places, timeout, on_wait, every)
    try:
        yield name
    finally:
        _LOCKS.release(path)


def _own_folder() -> Path:
    """Folder of this user among the temporary files; ConfigError when somebody else made it first."""
    folder = Path(tempfile.gettempdir()) / f"privacy-assets-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o022:
        raise ConfigError(
            f"{folder}, where devices are leased, must be a folder that only you can write to. Fix: remove it, or give"
            " GpuResource a lock_folder."
        )
    return folder


def _wait_for(
    places: Sequence[tuple[str, str]], timeout: float | None, on_wait: Say | None, every: float
) -> tuple[str, str]:
    """Take the first lock of ``places`` (device name, file) that becomes free."""
    started = time.monotonic()
    next_word = started
    while True:
        for name, path in places:
            if _LOCKS.take(path):
                return name, path
        now = time.monotonic()
        left = float("inf") if timeout is None else started + timeout - now
        if left <= 0:
            raise LeaseTimeout(f"no device became free within {timeout:g} s: {_who_holds(places)}.")
        if on_wait is not None and now >= next_word:
            on_wait(f"waiting for a device: {_who_holds(places)}")
            next_word = now + every
        time.sleep(min(_POLL, left))


def _who_holds(places: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"{name} is held by {_LOCKS.holder(path)}" for name, path in places)


@dataclass
class _Locks:
    """Record locks of this process, by file. All opening and closing of lock files happens here, under ``guard``."""

    guard: threading.Lock = field(default_factory=threading.Lock)
    held: dict[str, int] = field(default_factory=dict)

    def take(self, path: str) -> bool:
        """Lock the file ``path`` for this thread; False when anybody holds it."""
        with self.guard:
            if path in self.held:
                return False
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            if not _locked(descriptor) or not _is_at(descriptor, path):
                os.close(descriptor)
                return False
            self.held[path] = descriptor
            since = datetime.now(UTC).isoformat(timespec="seconds")
            with suppress(OSError):  # the note is a courtesy: a full disk must not stop the work
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "since": since}).encode(), 0)
            return True

    def release(self, path: str) -> None:
        """Free ``path``; does nothing in a child that was forked inside the lease."""
        with self.guard:
            descriptor = self.held.pop(path, None)
            if descriptor is None:
                return
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)

    def holder(self, path: str) -> str:
        """Who holds ``path``, in words."""
        with self.guard:
            try:
                if path in self.held:
                    note = os.pread(self.held[path], _NOTE, 0)
                else:
                    with open(path, "rb") as stream:
                        note = stream.read(_NOTE)
                facts = json.loads(note)
                return f"process {int(facts['pid'])} since {facts['since']}"
            except (OSError, ValueError, KeyError, TypeError):
                return "another process"

    def forget(self) -> None:
        """Start afresh in a forked child. Closing the copies drops no lock: record locks are the parent's."""
        self.guard = threading.Lock()
        for descriptor in self.held.values():
            os.close(descriptor)
        self.held = {}


def _locked(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def _is_at(descriptor: int, path: str) -> bool:
    """False when the file was deleted or replaced (by a cleaner of temporary files) since it was opened."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


_LOCKS = _Locks()
os.register_at_fork(after_in_child=_LOCKS.forget)


def is_out_of_memory(error: BaseException) -> bool:
    """True for the errors by which torch says that memory ran out, on CUDA, MPS or CPU."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _MEMORY_TEXTS)


def halve_on_out_of_memory(fn: Callable[[int], T], batch: int, minimum: int = 1) -> tuple[T, int]:
    """Call ``fn(batch)``, and again with half the batch as often as memory runs out.

    Returns the result and the batch size that fitted: go on with that. At ``minimum`` the error is raised; other errors
    are raised at once. The log is told of each halving.
    """
    while True:
        try:
            return fn(batch), batch
        except (RuntimeError, MemoryError) as error:
            if batch <= minimum or not is_out_of_memory(error):
                raise
        # Outside the handler: until here the traceback kept the tensors of the failed call alive.
        batch = max(minimum, batch // 2)
        _free_cached_memory()
        _LOGGER.warning("out of memory: going on with batches of %d rows", batch)


def _free_cached_memory() -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()
