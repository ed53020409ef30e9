"""Choice of a torch device, leases of accelerators across processes, and smaller batches when
memory runs out.

A lease is a lock (:func:`.temp_folders.lock`), which the system releases when the process ends for
any reason. Children that Python forks close their copies of the descriptor, so they do not keep a
device leased. Requires a POSIX system.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypeVar

from privacy_assets.errors import ConfigError, LeaseTimeout, safe_repr
from privacy_assets.infra import (
    folders,
    parallel,  # noqa: F401 (it configures the thread pools, which must happen before torch is loaded)
)
from privacy_assets.infra.temp_folders import lock_holder

T = TypeVar("T")
Say = Callable[[str], None]
_LOGGER = logging.getLogger(__name__)
_POLL = 0.2  # seconds between attempts to lock
_GUARD = threading.Lock()
_LEASES: set[int] = set()  # descriptors of the leases of this process
_MEMORY_TEXTS = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "can't allocate memory",
    "not enough memory",
)


@dataclass(frozen=True)
class Device:
    """A torch device.

    Attributes:
        name: Torch name in this process.
        identity: Identifier that is the same in every process of this machine.
    """

    name: str
    identity: str


CPU = Device("cpu", "cpu")


class Slot(NamedTuple):
    """A device that one holder can lease.

    Attributes:
        device: Torch name of the device.
        file: Name of its lock file.
    """

    device: str
    file: str


def accelerators() -> list[Device]:
    """Return the visible CUDA devices, else MPS, else an empty list. Imports torch if it is
    installed.
    """
    if find_spec("torch") is None:
        return []
    import torch

    if torch.cuda.is_available():
        return _cuda_devices()
    if torch.backends.mps.is_available():
        return [Device("mps", "mps")]
    return []


def _cuda_devices() -> list[Device]:
    import torch

    devices = []
    try:
        for i in range(torch.cuda.device_count()):
            # "cuda:0" depends on CUDA_VISIBLE_DEVICES; the UUID of the card does not.
            identity = str(torch.cuda.get_device_properties(i).uuid)
            devices.append(Device(f"cuda:{i}", f"cuda-{identity}"))
    except RuntimeError as error:
        if "forked" not in str(error):
            raise
        fix = "start the process with the method spawn, or pass device='cpu'"
        ConfigError(f"CUDA cannot be used in a forked process. Fix: {fix}.").raise_without_context()
    return devices


def matching_devices(device: str = "auto") -> list[Device]:
    """Return the devices that match a name, at least one.

    Args:
        device: "auto" (accelerators, else the CPU), "cuda" (any), "cuda:1", "mps" or "cpu".

    Raises:
        ConfigError: If the name is unknown or no such device exists.
    """
    if device == "cpu":
        return [CPU]
    if not re.fullmatch(r"auto|mps|cuda(:\d+)?", device):
        raise ConfigError(
            f"device {safe_repr(device)} is unknown. Known: auto, cpu, mps, cuda, cuda:N."
        )
    available = accelerators()
    if device == "auto":
        return available or [CPU]
    matching = []
    for accelerator in available:
        if device in (accelerator.name, accelerator.name.partition(":")[0]):
            matching.append(accelerator)
    if not matching:
        names = ", ".join([*(accelerator.name for accelerator in available), "cpu"])
        raise ConfigError(
            f"device {safe_repr(device)} is not available. This machine has: {names}."
        )
    return matching


def pick_device(device: str = "auto") -> str:
    """Return the torch name of the first device that matches a name; no lease.

    Args:
        device: See :func:`matching_devices`.

    Raises:
        ConfigError: If the name is unknown or no such device exists.
    """
    return matching_devices(device)[0].name


@contextmanager
def lease_device(
    folder: str | Path | None = None,
    device: str = "auto",
    slots: int = 1,
    timeout: float | None = None,
    on_wait: Say | None = None,
    interval: float = 30.0,
) -> Iterator[str]:
    """Lease a device for the ``with`` block, and yield its torch name.

    At most ``slots`` threads and processes that use the same ``folder`` and ``slots`` hold an
    accelerator at a time. If several devices match, the first free one is leased. The order of
    waiting holders is not preserved. The CPU needs no lease. A holder that requests a second lease
    may wait for itself.

    Args:
        folder: Folder of the lock files. None: a folder of the current user below the temporary
            directory.
        device: See :func:`matching_devices`.
        slots: Maximum number of holders of a device.
        timeout: Maximum wait in seconds. None: no limit.
        on_wait: Called with the current holders immediately and then every ``interval`` seconds.
        interval: Seconds between these calls.

    Raises:
        LeaseTimeout: If no device became free in time.
        ConfigError: If ``slots`` is below 1 or the device does not exist.
    """
    if slots < 1:
        raise ConfigError("slots must be at least 1.")
    devices = matching_devices(device)
    if devices == [CPU]:
        yield CPU.name
        return
    folder = _own_folder() if folder is None else Path(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lease_slots = _slots(devices, slots)
    name, descriptor = _wait_for(folder, lease_slots, timeout, on_wait, interval)
    try:
        yield name
    finally:
        _release(descriptor)


def _slots(devices: Sequence[Device], n_slots: int) -> list[Slot]:
    """Return the slots of all devices: the first of each device, then the second, and so on."""
    slots = []
    for i in range(n_slots):
        for device in devices:
            stem = re.sub("[^A-Za-z0-9.-]", "_", device.identity)
            slots.append(Slot(device.name, f"{stem}.{i}.lock"))
    return slots


def _own_folder() -> Path:
    """Return the lock folder of this user, or raise ConfigError if another user owns it or can
    write to it.
    """
    folder = Path(tempfile.gettempdir()) / f"privacy-assets-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    is_own_folder = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
    if not is_own_folder or facts.st_mode & 0o022:
        raise ConfigError(
            f"{folder}, where devices are leased, must be a folder that only you can write to."
            " Fix: remove it, or give GpuResource a lock_folder."
        )
    return folder


def _wait_for(
    folder: Path,
    slots: Sequence[Slot],
    timeout: float | None,
    on_wait: Say | None,
    interval: float,
) -> tuple[str, int]:
    """Take the first slot that becomes free, and return the device and the descriptor of the lock.

    Args:
        folder: Folder of the lock files.
        slots: Slots of all devices.
        timeout: Maximum wait in seconds. None: no limit.
        on_wait: See :func:`lease_device`.
        interval: See :func:`lease_device`.

    Raises:
        LeaseTimeout: If none became free in time.
    """
    start = time.monotonic()
    next_message = start
    while True:
        for slot in slots:
            descriptor = _take(folder, slot.file)
            if descriptor is not None:
                return slot.device, descriptor
        time_now = time.monotonic()
        remaining = float("inf")
        if timeout is not None:
            remaining = start + timeout - time_now
        if remaining <= 0:
            raise LeaseTimeout(
                f"no device became free within {timeout:g} s: {_holders(folder, slots)}."
            )
        if on_wait is not None and time_now >= next_message:
            on_wait(f"waiting for a device: {_holders(folder, slots)}")
            next_message = time_now + interval
        time.sleep(min(_POLL, remaining))


def _holders(folder: Path, slots: Sequence[Slot]) -> str:
    texts = []
    for slot in slots:
        holder = lock_holder(str(folder / slot.file))
        texts.append(f"{slot.device} is held by {holder}")
    return "; ".join(texts)


def _take(folder: Path, file: str) -> int | None:
    """Return the descriptor of a new lease, or None if the file is locked."""
    with _GUARD, folders.opened(folder) as open_folder:
        descriptor = folders.take(open_folder, file, 0o666)
        if descriptor is not None:
            _LEASES.add(descriptor)
    return descriptor


def _release(descriptor: int) -> None:
    """End a lease. Does nothing in a child forked within the lease."""
    with _GUARD:
        if descriptor in _LEASES:
            _LEASES.remove(descriptor)
            os.close(descriptor)


def _forget() -> None:
    """Close the leases in a forked child; those of its parent continue."""
    for descriptor in _LEASES:
        os.close(descriptor)
    _LEASES.clear()
    _GUARD.release()


os.register_at_fork(before=_GUARD.acquire, after_in_parent=_GUARD.release, after_in_child=_forget)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for torch's out-of-memory errors on CUDA, MPS or CPU.

    Args:
        error: Error of a computation.
    """
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _MEMORY_TEXTS)


def halve_on_out_of_memory(fn: Callable[[int], T], batch: int, minimum: int = 1) -> tuple[T, int]:
    """Call a function with a batch size, halving the size each time memory runs out.

    Other errors, and out-of-memory errors at ``minimum``, are raised. Each halving is logged.

    Args:
        fn: Function of the batch size.
        batch: First batch size.
        minimum: Smallest batch size.

    Returns:
        The result, and the batch size to continue with.
    """
    while True:
        try:
            return fn(batch), batch
        except (RuntimeError, MemoryError) as error:
            if batch <= minimum or not is_out_of_memory(error):
                raise
        # Outside of the handler, whose traceback keeps the tensors of the failed call alive.
        batch = max(minimum, batch // 2)
        _free_cached_memory()
        _LOGGER.warning("out of memory: continuing with batches of %d rows", batch)


def _free_cached_memory() -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()
