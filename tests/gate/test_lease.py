"""Lock of a table for a run: second runs, re-executions, crashes, and object stores."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gate_standins import at_most

from privacy_assets.errors import StoreUnavailable, TableBusy
from privacy_assets.infra import objects
from privacy_assets.infra.objects import Location, ObjectPath
from privacy_assets.pipeline import lease as lease_module
from privacy_assets.pipeline.advice import with_advice
from privacy_assets.pipeline.lease import SILENT, Lease


@pytest.fixture(params=["disk", "object store"])
def private(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Location:
    if request.param == "disk":
        return tmp_path / "private"
    monkeypatch.setitem(objects._WRITABLE, "memory", "")
    return ObjectPath(f"memory://{tmp_path.name}/private")


def never(run: str) -> bool:
    return False


def lease(private: Location, run: str, table: str = "patients") -> Lease:
    return Lease(private, table, run)


def file_of(private: Location) -> Location:
    return private / "running" / "patients.json"


def seen(private: Location, seconds_ago: float, run: str = "first") -> None:
    """Write a lease whose last sign of life was some seconds ago."""
    file, now = file_of(private), time.time()
    data = json.dumps(
        {"run": run, "started": 0.0, "seen": now - seconds_ago, "process": 7, "host": "node-3"}
    ).encode()
    if isinstance(file, Path):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    else:
        file.put(data)


def test_a_second_run_stops_with_one_sentence(private: Location) -> None:
    with lease(private, "first").held(never):
        pass  # between two steps
    with pytest.raises(TableBusy) as blocked, lease(private, "second").held(never):
        raise AssertionError
    at = time.strftime(
        "%d %b at %H:%M", time.gmtime(json.loads(file_of(private).read_bytes())["started"])
    )
    assert with_advice(blocked.value) == (
        f"patients: run first (process {os.getpid()} on {socket.gethostname()}) started on {at}"
        " UTC is still in"
        " progress. Fix: wait for it, or terminate it; then run again. The lease of a killed run"
        " ends after 5 minutes."
    )
    assert blocked.value.retry and (blocked.value.table, blocked.value.run) == ("patients", "first")
    with lease(private, "second", "visits").held(never):  # another table
        pass


def test_steps_of_one_run_share_the_lock_and_the_last_one_frees_it(private: Location) -> None:
    first = lease(private, "first")
    with first.held(never), first.held(never):  # scores run side by side
        started = json.loads(file_of(private).read_bytes())["started"]
    with first.held(never):
        assert json.loads(file_of(private).read_bytes())["started"] == started
    first.free()
    second = lease(private, "second")
    with second.held(never):
        first.free()  # another run holds the lease
        assert file_of(private).exists()


def test_an_error_frees_the_lock_but_not_that_of_another_run(private: Location) -> None:
    with pytest.raises(KeyboardInterrupt), lease(private, "first").held(never):
        raise KeyboardInterrupt
    with lease(private, "second").held(never):
        with pytest.raises(TableBusy), lease(private, "first").held(never):
            raise AssertionError
        assert json.loads(file_of(private).read_bytes())["run"] == "second"


def test_the_process_of_the_last_step_is_named_and_a_strange_host_is_not(private: Location) -> None:
    seen(private, 0)
    with pytest.raises(
        TableBusy, match=r"run first \(process 7 on node-3\) started on 01 Jan at 00:00 UTC"
    ):
        lease(private, "second")._take(never)
    with lease(private, "first").held(never):
        assert json.loads(file_of(private).read_bytes())["process"] == os.getpid()
    file = file_of(private)
    data = json.dumps({**json.loads(file.read_bytes()), "host": "a\nb"}).encode()
    _ = file.write_bytes(data) if isinstance(file, Path) else file.put(data)
    with pytest.raises(TableBusy, match=rf"run first \(process {os.getpid()}\) started on"):
        lease(private, "second")._take(never)


@pytest.mark.parametrize(
    ("ago", "free"),
    [(0, False), (SILENT - 20, False), (SILENT + 1, True), (-SILENT - 20, True), (-20, False)],
)
def test_a_silent_lock_is_taken_over(private: Location, ago: float, free: bool) -> None:
    """A wrong clock can set a time in the future, which must not block the table for longer."""
    seen(private, ago)
    if free:
        with lease(private, "second").held(never):
            assert json.loads(file_of(private).read_bytes())["run"] == "second"
        return
    with pytest.raises(TableBusy), lease(private, "second").held(never):
        raise AssertionError


def test_the_lock_of_a_run_that_ended_is_taken_over_at_once(private: Location) -> None:
    seen(private, 0)
    with lease(private, "second").held(lambda run: run == "first"):
        assert json.loads(file_of(private).read_bytes())["run"] == "second"


def blocked_for(file: Location, run: Lease) -> None:
    """Check that a run is blocked with the path of its lease and the fix, and does not wait."""
    with at_most(20), pytest.raises(StoreUnavailable) as blocked, run.held(never):
        raise AssertionError
    assert str(file) in str(blocked.value) and not blocked.value.retry
    assert "then remove" in with_advice(blocked.value) or "Fix: remove" in with_advice(
        blocked.value
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"run": 1}',
        b'{"run": "a", "started": 0, "seen": "x"}',
        b'{"run": "a", "started": 0, "seen": 1e300, "process": 7, "host": "h"}',
        b'{"run": "a", "started": 1e300, "seen": %d, "process": 7, "host": "h"}',
        b'{"run": "a", "started": NaN, "seen": %d, "process": 7, "host": "h"}',
        b'{"run": "a", "started": 0, "seen": NaN, "process": 7, "host": "h"}',
        b'{"run": "a", "started": -Infinity, "seen": %d, "process": 7, "host": "h"}',
        b'{"run": "a", "process": 7, "host": "h", "started": 0, "seen": 1' + 400 * b"0" + b"}",
        b'{"run": "a", "started": 0, "seen": %d, "process": "x", "host": "h"}',
        b'{"run": "a", "started": 0, "seen": %d, "process": Infinity, "host": "h"}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_lock_starts_no_second_run(private: Location, data: bytes) -> None:
    """Its run may be in progress, so a user decides."""
    seen(private, 0)
    file = file_of(private)
    data = data.replace(b"%d", f"{time.time():.0f}".encode())
    _ = file.write_bytes(data) if isinstance(file, Path) else file.put(data)
    blocked_for(file, lease(private, "second"))
    blocked_for(file, lease(private, "a"))
    file.unlink()
    with lease(private, "second").held(never):
        assert json.loads(file_of(private).read_bytes())["run"] == "second"


def dangling(file: Path) -> None:
    file.symlink_to("nowhere")


def link(file: Path) -> None:
    file.with_name("elsewhere").write_bytes(
        json.dumps({"run": "first", "started": 0, "seen": 0}).encode()
    )
    file.symlink_to("elsewhere")


@pytest.mark.parametrize("make", [dangling, link, Path.mkdir, os.mkfifo])
@pytest.mark.parametrize("above", [False, True], ids=["lease", "folder of leases"])
def test_what_is_no_file_in_the_place_of_a_lock_is_named(
    tmp_path: Path, make: Callable[[Path], Any], above: bool
) -> None:
    private = tmp_path / "private"
    file = private / "running" if above else file_of(private)
    if above and make is Path.mkdir:
        return
    file.parent.mkdir(parents=True)
    make(file)
    blocked_for(file, lease(private, "first"))
    file.rmdir() if make is Path.mkdir else file.unlink()
    with lease(private, "first").held(never):
        pass


def test_a_long_step_shows_signs_of_life(
    private: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "_SIGN", 0.02)

    def last() -> float:
        return float(json.loads(file_of(private).read_bytes())["seen"])

    with lease(private, "first").held(never):
        begun, deadline = last(), time.monotonic() + 60
        while last() == begun:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    ended = last()
    time.sleep(0.1)
    assert last() == ended, "no thread goes on after the step"


def test_only_one_of_many_runs_gets_the_lock(private: Location) -> None:
    together, got = threading.Barrier(8), list[str]()

    def one(run: str) -> None:
        together.wait()
        try:
            with lease(private, run).held(never):
                got.append(run)
        except TableBusy:
            return

    threads = [threading.Thread(target=one, args=(f"run {number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1


def test_a_killed_run_blocks_the_table_for_some_minutes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import sys, time; from pathlib import Path; from privacy_assets.pipeline.lease"
        " import Lease\n"
        f"with Lease(Path({str(tmp_path)!r}), 'patients', 'first').held(lambda run: False):\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as step:
        assert step.stdout is not None and step.stdout.readline() == "held\n"
        os.kill(step.pid, signal.SIGKILL)
    with pytest.raises(TableBusy), lease(tmp_path, "second").held(never):
        raise AssertionError
    with lease(tmp_path, "first").held(never):  # its retry goes on at once
        pass
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + SILENT + 1)
    with lease(tmp_path, "second").held(never):
        pass
