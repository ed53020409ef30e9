"""Lock of a table for the duration of a run.

A run consists of steps in several processes, possibly on several machines, so the lock is a file: a lease with the id
of the run and the time of its last sign of life. A lease without a sign of life is free after some minutes, so that a
killed process does not block the table. The lease is not signed, and no publication depends on it. It prevents runs
from making each other's records out of date.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from privacy_assets.errors import PrivacyAssetsError, TableBusy, is_showable
from privacy_assets.gate.statements import quoted
from privacy_assets.infra.files import contents, create_once, private_folder, put_atomic
from privacy_assets.infra.objects import Location

SILENT = 300.0  # seconds after the last sign of life until a lease is free
_SIGN = 60.0  # seconds between two signs of life of a step


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
        """Hold the lease for a step. Afterwards the run keeps it for its next step, unless the step failed.

        Args:
            ended: Returns True if the run with this id is known to have ended.

        Raises:
            TableBusy: If another run holds it, and showed a sign of life in the last ``SILENT`` seconds.
        """
        self._take(ended)
        stop, failed = threading.Event(), True
        signs = threading.Thread(target=self._show_signs, args=(stop,), daemon=True)
        signs.start()
        try:
            yield
            failed = False
        finally:
            stop.set()
            signs.join()
            if failed:
                self.free()

    def free(self) -> None:
        """Remove the lease if this run holds it."""
        with suppress(OSError, PrivacyAssetsError):  # it becomes free without further signs of life
            if (self._read() or {}).get("run") == self.owner:
                self._file.unlink(missing_ok=True)

    def _take(self, ended: Callable[[str], bool]) -> None:
        while (found := self._read()) is None or found["run"] != self.owner:
            if found is not None:
                # A time in the future means that a clock was wrong.
                if abs(time.time() - found["seen"]) < SILENT and not ended(run := found["run"]):
                    at = time.strftime("%d %b at %H:%M", time.gmtime(found["started"]))
                    text = f"run {run if is_showable(run) else run[:8]} started on {at} UTC"
                    raise TableBusy(f"{self.table}: {text} is still in progress", table=self.table, run=run)
                self._file.unlink(missing_ok=True)
            private_folder(self._file.parent)
            if create_once(self._file, self._entry(time.time())):
                return
        put_atomic(self._file, self._entry(found["started"]))

    def _show_signs(self, stop: threading.Event) -> None:
        last = False
        while not last:
            last = stop.wait(_SIGN)
            with suppress(OSError, PrivacyAssetsError):
                if (found := self._read()) is not None and found["run"] == self.owner:
                    put_atomic(self._file, self._entry(found["started"]))

    def _read(self) -> dict[str, Any] | None:
        """Return the lease, None if there is none, or one that is free if it cannot be read."""
        data = contents(self._file.parent, self._file.name).get(self._file.name)
        if data is None:
            return None
        try:
            found = json.loads(data)
            return {"run": str(found["run"]), **{name: float(found[name]) for name in ("started", "seen")}}
        except (ValueError, KeyError, TypeError, RecursionError):
            return {"run": "", "started": 0.0, "seen": 0.0}

    def _entry(self, started: float) -> bytes:
        return json.dumps({"run": self.owner, "started": started, "seen": time.time()}).encode()

    @property
    def _file(self) -> Location:
        return self.private / "running" / f"{quoted(self.table)}.json"
