"""Lease of a table for the duration of a run.

A run consists of steps in several processes, possibly on several machines, so the lease is a file
with the id of the run and the time of its last sign of life. A lease without a sign of life
is free after some minutes, so that a killed process does not block the table. The lease is not
signed, and no publication depends on it. It prevents runs from making each other's signed files out
of date.
"""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from privacy_assets.errors import PrivacyAssetsError, StoreUnavailable, TableBusy, is_showable
from privacy_assets.gate.envelope import quoted
from privacy_assets.infra.files import reason
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import storage_of
from privacy_assets.infra.temp_folders import process_text, time_text

SILENT = 300.0  # seconds after the last sign of life until a lease is free
_SIGN = 60.0  # seconds between two signs of life of a step


@dataclass(frozen=True, slots=True)
class Holder:
    """Content of a lease.

    Attributes:
        run: Id of the run.
        started: Time at which the run took the lease, in seconds since 1970.
        seen: Time of its last sign of life.
        process: Id of the process of its last step.
        host: Name of the machine of this process.
    """

    run: str
    started: float
    seen: float
    process: int
    host: str

    @classmethod
    def of(cls, data: bytes) -> Holder:
        """Create from the content of a lease.

        Args:
            data: Bytes of the file.

        Raises:
            Exception: If they are not those of a lease.
        """
        stored = json.loads(data)
        return cls(
            run=str(stored["run"]),
            started=_time(stored["started"]),
            seen=_time(stored["seen"]),
            process=int(stored["process"]),
            host=str(stored["host"]),
        )

    def __str__(self) -> str:
        """Return run, process, host and start."""
        run = self.run
        if not is_showable(run):
            run = run[:8]
        process = process_text(self.process, self.host)
        return f"run {run} ({process}) started on {time_text(self.started)}"


def _time(stored: Any) -> float:
    seconds = float(stored)
    dt.datetime.fromtimestamp(seconds, dt.UTC)  # raises for NaN, and for times that no calendar has
    return seconds


@dataclass(frozen=True, slots=True)
class Lease:
    """Lease of a table, stored in ``private/running/TABLE.json``.

    Attributes:
        private: Private folder.
        table: Name of the table. Its partitions share the lease.
        owner: Id of the run, the same in all of its steps.
    """

    private: Location
    table: str
    owner: str

    @contextmanager
    def held(self, ended: Callable[[str], bool]) -> Iterator[None]:
        """Hold the lease for a step. Afterwards the run keeps it for its next step, unless the step
        failed.

        Args:
            ended: Returns True if the run with this id is known to have ended.

        Raises:
            TableBusy: If another run holds it, and showed a sign of life in the last ``SILENT``
                seconds.
            StoreUnavailable: If the lease cannot be read or written. Its run may be in progress.
        """
        try:
            self._take(ended)
        except OSError as error:
            raise self._unusable(error) from None
        stop = threading.Event()
        signs = threading.Thread(target=self._show_signs, args=(stop,), daemon=True)
        signs.start()
        has_failed = True
        try:
            yield
            has_failed = False
        finally:
            stop.set()
            signs.join()
            if has_failed:
                self.free()

    def holder(self) -> Holder | None:
        """Return the holder, for messages; None if there is none, or it cannot be read."""
        with suppress(OSError, PrivacyAssetsError):
            return self._read()
        return None

    def free(self) -> None:
        """Remove the lease if this run holds it."""
        with suppress(OSError, PrivacyAssetsError):  # it becomes free without further signs of life
            holder = self._read()
            if holder is not None and holder.run == self.owner:
                self._file.unlink(missing_ok=True)

    def _take(self, ended: Callable[[str], bool]) -> None:
        """Write the lease. Try again while other runs are faster."""
        while True:
            holder = self._read()
            if holder is not None and holder.run == self.owner:
                storage_of(self._file).put(self._entry(holder.started))
                return
            if holder is not None:
                self._check_free(holder, ended)
                self._file.unlink(missing_ok=True)
            storage_of(self._file.parent).make_private()
            if storage_of(self._file).create(self._entry(time.time())):
                return

    def _check_free(self, holder: Holder, ended: Callable[[str], bool]) -> None:
        """Raise TableBusy if the run of a lease is in progress."""
        # a time in the future means that a clock was wrong
        is_silent = abs(time.time() - holder.seen) >= SILENT
        if is_silent or ended(holder.run):
            return
        raise TableBusy(
            f"{self.table}: {holder} is still in progress", table=self.table, run=holder.run
        )

    def _show_signs(self, stop: threading.Event) -> None:
        is_stopped = False
        while not is_stopped:
            is_stopped = stop.wait(_SIGN)
            with suppress(OSError, PrivacyAssetsError):
                holder = self._read()
                if holder is not None and holder.run == self.owner:
                    storage_of(self._file).put(self._entry(holder.started))

    def _read(self) -> Holder | None:
        """Return the content of the lease, or None if there is none.

        Raises:
            OSError: If it cannot be read.
            StoreUnavailable: If it is damaged. Then it is not known whether its run is in progress.
        """
        try:
            data = storage_of(self._file).read(below=self.private)
        except OSError as error:
            if error.errno == errno.ENOENT:  # errors of object stores have no class of their own
                return None
            raise
        try:
            return Holder.of(data)
        except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
            text = f"{self._file}: the run lease of {self.table} is damaged"
            fix = "make sure that no run of this table is in progress, then remove this file"
            raise StoreUnavailable(
                text, path=str(self._file), errno=errno.EINVAL, fix=fix
            ) from None

    def _unusable(self, error: OSError) -> StoreUnavailable:
        text = f"the run lease of {self.table} cannot be used ({reason(error)})"
        unavailable = StoreUnavailable.of(text, error, self._file)
        # something else is in the place of the file or its folder
        if unavailable.errno in (errno.EINVAL, errno.ENOTDIR):
            unavailable.fix = f"remove {unavailable.path}"
        return unavailable

    def _entry(self, started: float) -> bytes:
        holder = Holder(self.owner, started, time.time(), os.getpid(), socket.gethostname())
        return json.dumps(asdict(holder)).encode()

    @property
    def _file(self) -> Location:
        return self.private / "running" / f"{quoted(self.table)}.json"
