"""Whatever dies or fails while a table is published: the old release or the new one, whole."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import publisher
import pytest
from gate_standins import same_rows
from publisher import (
    KILLS,
    POLICY,
    SETUP,
    Disk,
    Dying,
    Failing,
    Full,
    Short,
    current,
    forget,
    judged,
    left_over,
    on,
    shown,
    table,
)

from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.releases import hash_file, read_published
from privacy_assets.gate.snapshot import read_snapshot
from privacy_assets.gate.statements import Place

NUMBERS = [errno.ENOSPC, errno.EIO]
SCENARIOS = ["first", "next", "again", "back"]
PATIENTS = Place("patients")
_counted = count()
Work = Callable[[], object]


@pytest.fixture(scope="module")
def memory() -> Path | None:
    """A file system that does not keep us waiting for flushes, where there is one."""
    return Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture(scope="module")
def gate(memory: Path | None) -> Iterator[Gate]:
    with TemporaryDirectory(dir=memory) as folder:
        yield publisher.deployment(Path(folder))


def begun(gate: Gate, place: Place, scenario: str) -> tuple[bytes | None, Work, bytes]:
    """What is shown before, what is to be done, and what is shown when it is done."""
    sealed, taken = judged(gate, place, table(1))
    publish = partial(gate.publish, sealed, taken, place, POLICY, SETUP)
    if scenario == "first":
        return None, publish, sealed.data
    first = publish()
    if scenario == "again":
        return sealed.data, publish, sealed.data
    other, snapshot = judged(gate, place, table(2))
    if scenario == "next":
        return sealed.data, partial(gate.publish, other, snapshot, place, POLICY, SETUP), other.data
    gate.publish(other, snapshot, place, POLICY, SETUP)
    return other.data, partial(gate.roll_back, place, first.id), sealed.data


def done_after_all(gate: Gate, place: Place, work: Work, after: bytes) -> None:
    """The same works now, and so does the next table; nothing is left of what came before."""
    work()
    assert shown(gate, place) == after
    assert left_over(gate, place) == []
    sealed, taken = judged(gate, place, table(3))
    gate.publish(sealed, taken, place, POLICY, SETUP)
    assert shown(gate, place) == sealed.data
    assert left_over(gate, place) == []


def calls_of(gate: Gate, scenario: str) -> list[str]:
    """The calls that change the disk, in order."""
    disk = Disk()
    _, work, _ = begun(gate, Place(f"counted {next(_counted)}"), scenario)
    with on(disk):
        work()
    return disk.calls


@pytest.mark.slow
@pytest.mark.parametrize("kind", publisher.ORDERS)
def test_kills_at_random_moments(memory: Path | None, kind: str) -> None:
    with TemporaryDirectory(dir=memory) as folder:
        root, kills = Path(folder), KILLS // 3
        with publisher.victim(root) as victim:
            gate = publisher.deployment(root)
            seen = publisher.kill_at_random(gate, root, victim, kind, kills)
            assert seen["old"] >= kills // 20
            assert [place for place in gate.store.places() if left_over(gate, place)] == []
            assert not [path for path in root.rglob(".*") if path.name not in (".keys.lock", ".lock")]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_death_at_every_call_that_changes_the_disk(gate: Gate, scenario: str) -> None:
    calls = calls_of(gate, scenario)
    points = [(at, False) for at in range(len(calls))] + [(at, True) for at, x in enumerate(calls) if x == "write"]
    seen = set()
    for at, halfway in points:
        place = Place(f"dies {scenario} {at} {halfway}")
        before, work, after = begun(gate, place, scenario)
        assert publisher.died(work, Dying(at, halfway)), (calls[at], halfway)
        found = shown(gate, place)
        assert found in (before, after), (at, calls[at])
        seen.add(found == after)
        done_after_all(gate, place, work, after)
    assert seen == ({True} if scenario == "again" else {False, True})


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_failure_of_every_call_that_changes_the_disk(gate: Gate, scenario: str, for_good: bool) -> None:
    """Each call fails for want of space once and with an I/O error for good, or the other way round."""
    refused, calls = 0, calls_of(gate, scenario)
    for at, name in enumerate(calls):
        number = NUMBERS[(at + for_good) % 2]
        place = Place(f"fails {for_good} {scenario} {at}")
        before, work, after = begun(gate, place, scenario)
        try:
            with on(Failing(at, number, for_good)):
                work()
        except PublicationRefused as error:
            refused += 1
            assert os.strerror(number) in str(error)
            assert shown(gate, place) == before, (at, name)
        else:
            assert shown(gate, place) == after, (at, name)
        assert name in ("unlink", "rmdir") or left_over(gate, place) == [], (at, name)
        done_after_all(gate, place, work, after)
    assert refused > len(calls) // 2


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_write_that_takes_only_half(gate: Gate, scenario: str) -> None:
    for at, name in enumerate(calls_of(gate, scenario)):
        if name != "write":
            continue
        place = Place(f"short {scenario} {at}")
        before, work, after = begun(gate, place, scenario)
        try:
            with on(Short(at)):
                work()
        except PublicationRefused:
            assert shown(gate, place) == before
        else:
            assert shown(gate, place) == after
        done_after_all(gate, place, work, after)


@pytest.fixture
def small(tmp_path: Path, memory: Path | None) -> Iterator[tuple[Path, Callable[[int], Any]]]:
    """A folder, and what leaves it so many free bytes: a file system of 8 MiB, or counted writes without the right."""
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)]
    if shutil.which("mount") is None or subprocess.run(command, check=False, capture_output=True).returncode:
        with TemporaryDirectory(dir=memory) as folder:
            yield Path(folder), lambda free: on(Full(free))
        return

    @contextmanager
    def filled(free: int) -> Iterator[None]:
        facts = os.statvfs(tmp_path)
        with (tmp_path / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, facts.f_bavail * facts.f_bsize - free)
        try:
            yield
        finally:
            (tmp_path / "filler").unlink()

    yield tmp_path, filled
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk(small: tuple[Path, Callable[[int], AbstractContextManager[None]]]) -> None:
    root, filled = small
    gate, results = publisher.deployment(root), []
    for number, scenario in enumerate(SCENARIOS):
        for free in range(0, 1 << 16, 1 << 12):
            place = Place(f"{scenario} {free}")
            before, work, after = begun(gate, place, scenario)
            try:
                with filled(free):
                    work()
            except PublicationRefused as error:
                results.append(False)
                assert os.strerror(errno.ENOSPC) in str(error)
                assert shown(gate, place) == before
            else:
                results.append(True)
                assert shown(gate, place) == after
            assert left_over(gate, place) == []
            done_after_all(gate, place, work, after)
            forget(gate, place)
        assert set(results[16 * number :]) == {False, True}, scenario


@pytest.mark.parametrize("step", ["score", "attestation"])
def test_nothing_is_signed_without_the_record_of_its_failure(gate: Gate, step: str) -> None:
    def failed(place: Place) -> tuple[Work, Callable[[], list[str]]]:
        snapshot, _ = gate.take_snapshot(table(1), place, "t")
        results, outcomes = publisher.found(0.9)
        attest = partial(gate.attest, snapshot, POLICY, results, publisher.INPUTS, publisher.METRICS, SETUP)
        score = partial(gate.sign_result, results["dcr"], snapshot, outcomes)
        work = score if step == "score" else attest
        return work, partial(gate.failures.against, POLICY, place, snapshot.content)

    disk = Disk()
    work, remembered = failed(Place(f"memory {step}"))
    with on(disk):
        work()
    assert remembered() and "write" in disk.calls
    for at, name in enumerate(disk.calls):
        work, remembered = failed(Place(f"memory {step} failing {at}"))
        try:
            with on(Failing(at, NUMBERS[at % 2])):
                work()
        except (OSError, PublicationRefused):
            pass
        else:
            assert remembered(), (at, name)
        work()
        assert remembered()
        work, remembered = failed(Place(f"memory {step} dying {at}"))
        assert publisher.died(work, Dying(at, halfway=True))
        remembered()
        work()
        assert remembered()


def test_a_full_disk_leaves_no_half_snapshot_and_no_unrecorded_failure(
    small: tuple[Path, Callable[[int], AbstractContextManager[None]]],
) -> None:
    root, filled = small
    gate, done = publisher.deployment(root), set()
    for free in range(0, 1 << 14, 1 << 12):
        frame = table(100 + free, 500)
        try:
            with filled(free):
                snapshot, _ = gate.take_snapshot(frame, PATIENTS, "t")
        except OSError:
            done.add("no snapshot")
        snapshot, _ = gate.take_snapshot(frame, PATIENTS, "t")
        same_rows(read_snapshot(snapshot), frame)
        results, outcomes = publisher.found(0.9)
        try:
            with filled(free):
                gate.sign_result(results["dcr"], snapshot, outcomes)
        except (OSError, PublicationRefused):
            done.add("no result")
        else:
            done.add("result")
            assert gate.failures.against(POLICY, PATIENTS, snapshot.content)
    assert done == {"no snapshot", "no result", "result"}
    assert not [path for path in gate.private.rglob(".*") if path.name not in (".keys.lock", ".lock")]


def test_no_half_snapshot(gate: Gate) -> None:
    disk = Disk()
    with on(disk):
        gate.take_snapshot(table(1), Place("snapshots counted"), "t")
    for at in range(len(disk.calls)):
        fails, dies = Place(f"snapshots fail {at}"), Place(f"snapshots die {at}")
        with suppress(OSError), on(Failing(at, errno.ENOSPC)):
            same_rows(read_snapshot(gate.take_snapshot(table(1), fails, "t")[0]), table(1))
        assert publisher.died(partial(gate.take_snapshot, table(1), dies, "t"), Dying(at, halfway=True))
        for place in (fails, dies):
            for path in gate._snapshots(place).glob("[!.]*.parquet"):
                assert hash_file(path) == path.stem
            same_rows(read_snapshot(gate.take_snapshot(table(1), place, "t")[0]), table(1))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO], ids=["EACCES", "EIO"])
def test_a_memory_that_cannot_be_listed_refuses(gate: Gate, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(f"unreadable {number}")
    sealed, taken = judged(gate, place, table(1))
    results, outcomes = publisher.found(0.9)
    gate.sign_result(results["dcr"], gate.snapshot(taken, place), outcomes)
    for name in ("listdir", "scandir"):
        plain = getattr(os, name)

        def failing(path: Any = ".", plain: Callable[..., Any] = plain) -> Any:
            if "failures" in str(path):
                raise OSError(number, os.strerror(number), str(path))
            return plain(path)

        monkeypatch.setattr(os, name, failing)
    with pytest.raises((PublicationRefused, OSError)):
        gate.publish(sealed, taken, place, POLICY, SETUP)
    assert gate.store.history(place) == []


def test_all_is_flushed_before_it_is_pointed_to(gate: Gate) -> None:
    place, disk = Place("flushed"), Disk()
    _, work, _ = begun(gate, place, "next")
    with on(disk):
        work()
    release = current(gate, place)
    assert release is not None
    pointer = place.below(gate.releases) / "latest.json"

    def flushed(path: Path) -> int:
        return disk.inodes.index(path.stat().st_ino)

    moved, pointed = disk.calls.index("rename"), len(disk.calls) - disk.calls[::-1].index("replace")
    assert max(map(flushed, (release.table, release.attestation, release.folder))) < moved
    assert moved < flushed(release.folder.parent) < pointed
    assert flushed(pointer) < pointed <= len(disk.inodes) - 1 - disk.inodes[::-1].index(pointer.parent.stat().st_ino)


@pytest.mark.parametrize("same", [False, True], ids=["two tables", "one attestation"])
def test_two_publishers_at_once(gate: Gate, same: bool) -> None:
    place, numbers = Place(f"at once {same}"), {0}
    gate.publish(*judged(gate, place, table(0)), place, POLICY, SETUP)
    for number in range(1, 21):
        first = judged(gate, place, table(number))
        second = first if same else judged(gate, place, table(50 + number))
        numbers |= {number, 50 + number}
        known, (gun, trigger) = gate.store.history(place), os.pipe()
        children = []
        for sealed, taken in (first, second):
            children.append(publisher.start(partial(gate.publish, sealed, taken, place, POLICY, SETUP), (gun, trigger)))
        os.close(gun)
        os.close(trigger)
        for _ in range(3):  # a reader never sees anything else meanwhile
            read = read_published(gate.releases, place.table, trusted_keys=gate.key.trusted.places[0])
            assert read["number"].iloc[0] in numbers
        # The second of two tables was judged without the first: together they may give away more than either.
        assert sorted(publisher.ended(child) for child in children) == ([0, 0] if same else [0, publisher.REFUSED])
        assert shown(gate, place) in (first[0].data, second[0].data)
        assert len(gate.store.history(place)) == len(known) + 1
        assert left_over(gate, place) == []
