"""Crashes and failures while a table is published on disk: readers see the old release or the new
one, complete.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import publisher
import pytest
from gate_standins import (
    FAILING,
    INPUTS,
    METRICS,
    PLACE,
    POLICY,
    SETUP,
    blocked,
    chain,
    files_of,
    make_gate,
    open_gate,
    publisher_of,
    read,
    result,
    rows,
    shown,
    sign_settings,
    signed,
)
from publisher import (
    KILLS,
    SCENARIOS,
    Disk,
    Dying,
    Failing,
    Full,
    Short,
    begun,
    died,
    ends_well,
    left_over,
    on,
)

from privacy_assets.errors import PublicationBlocked, StoreUnavailable
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keys import first_key, rotate_key
from privacy_assets.gate.snapshot import read_snapshot
from privacy_assets.infra.storage import hash_file
from privacy_assets.tables.table import Table
from tests.helpers.marks import weekly_except

NUMBERS = [errno.ENOSPC, errno.EIO]
# A file system with fast flushes, if there is one.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Deployment:
    """A deployment just before some ``work``; each test uses a copy of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.numbers = folder, count(1)
        self.gate = make_gate(folder / "0")

    @contextmanager
    def copied(self) -> Iterator[Gate]:
        copy = self.folder / str(next(self.numbers))
        shutil.copytree(self.folder / "0", copy)
        yield open_gate(copy)
        shutil.rmtree(copy, ignore_errors=True)

    def calls(self, work: publisher.Work) -> list[str]:
        """The calls of ``work`` that change the disk, in order."""
        disk = Disk()
        with self.copied() as gate, on(disk):
            work(gate)
        return disk.calls


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    with TemporaryDirectory(dir=MEMORY) as folder:
        yield Deployment(Path(folder))


class Scene(Deployment):
    """A deployment with a table that is to be published, or rolled back."""

    def __init__(self, folder: Path, scenario: str) -> None:
        super().__init__(folder)
        # a part of an old release may remain until the next operation
        self.removes = scenario in ("withdraw", "prune")
        self.before, self.work, self.after = begun(self.gate, scenario)
        self.changes = self.calls(self.work)
        self.writes = [at for at, name in enumerate(self.changes) if name == "write"]


# the quick run tests a release after another, and a rollback
SLOW = ("first", "again", "withdraw", "prune", "accept")
EACH = [pytest.param(one, marks=pytest.mark.slow if one in SLOW else ()) for one in SCENARIOS]


@pytest.fixture(scope="module", params=EACH)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with TemporaryDirectory(dir=MEMORY) as folder:
        yield Scene(Path(folder), request.param)


@pytest.mark.slow
@pytest.mark.parametrize("kind", weekly_except(publisher.ORDERS, "back"))
def test_kills_at_random_moments(kind: str) -> None:
    with TemporaryDirectory(dir=MEMORY) as folder:
        root, kills = Path(folder), max(KILLS // len(publisher.ORDERS), 1)
        gate = make_gate(root)
        with publisher.victim(root) as victim:
            seen = publisher.kill_at_random(gate, root, victim, kind, kills)
        assert seen["old"] >= kills // 20
        assert [target for target in gate.store.targets() if left_over(gate, target)] == []
        kept = {".keys.lock", ".lock", ".privacy-assets", ".gitignore"}
        assert not [path for path in root.rglob(".*") if path.name not in kept]


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.weekly)])
def test_death_at_every_call_that_changes_the_disk(scene: Scene, step: int) -> None:
    seen = set()
    deaths = [
        *((at, False) for at in range(len(scene.changes))),
        *((at, True) for at in scene.writes),
    ]
    for at, halfway in deaths[::-step]:  # from the end, where the release becomes current
        with scene.copied() as gate:
            assert died(partial(scene.work, gate), Dying(at, halfway)), (scene.changes[at], halfway)
            found = shown(gate)
            assert found in (scene.before, scene.after), (at, scene.changes[at])
            seen.add(found == scene.after)
            ends_well(gate, scene.work, scene.after)
            later = chain(gate, 3)
            later.publish()
            assert shown(gate) == later.signed_file.data
    assert seen == ({True} if scene.before == scene.after else {False, True})


@pytest.mark.slow
@pytest.mark.parametrize(
    "for_good",
    [pytest.param(False, marks=pytest.mark.weekly, id="once"), pytest.param(True, id="every time")],
)
def test_failure_of_every_call_that_changes_the_disk(scene: Scene, for_good: bool) -> None:
    """Each call fails once for lack of space and permanently with an I/O error, or the other way
    round.
    """
    blocked = 0
    for at, name in enumerate(scene.changes):
        number, done = NUMBERS[(at + for_good) % 2], True
        with scene.copied() as gate:
            try:
                with on(Failing(at, number, for_good)):
                    scene.work(gate)
            except PublicationBlocked as error:
                blocked, done = blocked + 1, False
                assert os.strerror(number) in str(error)
            assert shown(gate) == (scene.after if done else scene.before), (at, name)
            assert scene.removes or name in ("unlink", "rmdir") or left_over(gate) == [], (at, name)
            ends_well(gate, scene.work, scene.after)
    assert blocked > len(scene.changes) // 3  # the state of the log is written again


@pytest.mark.slow
def test_a_disk_that_takes_a_part_of_what_is_written(scene: Scene) -> None:
    """Half of one write is stored, or all bytes until the disk is full."""
    outcomes = set()
    for disk in [*map(Short, scene.writes), *map(Full, range(0, 8192, 512))]:
        with scene.copied() as gate:
            done = True
            try:
                with on(disk):
                    scene.work(gate)
            except PublicationBlocked:
                done = False
            outcomes.add((type(disk), done))
            assert shown(gate) == (scene.after if done else scene.before)
            assert left_over(gate) == []
            ends_well(gate, scene.work, scene.after)
    assert {(Full, False), (Full, True)} <= outcomes


@pytest.mark.slow
@pytest.mark.parametrize("step", weekly_except(("score", "attestation"), "score"))
def test_nothing_is_signed_without_the_record_of_its_failure(
    deployment: Deployment, step: str
) -> None:
    taken = files_of(deployment.gate).take_snapshot(Table.read(rows(1)), PLACE, INPUTS["train"])[1]
    measured = result(FAILING)

    def judge(gate: Gate) -> object:
        snapshot = files_of(gate).open_snapshot(taken, PLACE)
        if step == "score":
            return files_of(gate).sign_result(
                measured, snapshot, POLICY.judge({"dcr": measured}).outcomes
            )
        sign_settings(gate)
        return publisher_of(gate).attest(
            snapshot, POLICY, signed(gate, snapshot, measured), INPUTS, METRICS, SETUP
        )

    def earlier_failures(gate: Gate) -> bool:
        return bool(
            gate.log.state("patients").failures(
                POLICY, files_of(gate).open_snapshot(taken, PLACE), None
            )
        )

    calls = deployment.calls(judge)
    assert "write" in calls
    for at, name in enumerate(calls):
        with deployment.copied() as gate:
            done = False
            with suppress(OSError, PublicationBlocked), on(Failing(at, NUMBERS[at % 2])):
                done = bool(judge(gate))
            assert earlier_failures(gate) or not done, (at, name)
            judge(gate)
            assert earlier_failures(gate)
        with deployment.copied() as gate:
            assert died(partial(judge, gate), Dying(at, halfway=True))
            earlier_failures(gate)  # either is fine, but no half-written record exists
            judge(gate)
            assert earlier_failures(gate)


@pytest.mark.slow
def test_no_half_snapshot(deployment: Deployment) -> None:
    def take(gate: Gate) -> Any:
        return read_snapshot(files_of(gate).take_snapshot(Table.read(rows(2)), PLACE, "t")[0])

    for at in range(len(deployment.calls(take))):
        for works in (
            lambda gate, at=at: suppressed(take, gate, Failing(at, errno.ENOSPC)),
            lambda gate, at=at: died(partial(take, gate), Dying(at, halfway=True)),
        ):
            with deployment.copied() as gate:
                works(gate)
                for path in PLACE.below(gate.private / "snapshots").glob("[!.]*.parquet"):
                    assert hash_file(path) == path.stem
                assert len(take(gate)) == 3


def suppressed(work: publisher.Work, gate: Gate, disk: Disk) -> None:
    with suppress(OSError), on(disk):
        work(gate)


@pytest.mark.slow
def test_death_at_every_call_of_a_rotation(deployment: Deployment) -> None:
    """The old key signs; after the next run or rotation every stored key is in use."""

    def rotate(gate: Gate) -> str:
        assert gate.key.path is not None
        return rotate_key(gate.key.path, gate.key.trusted.paths[0])

    def trusted(gate: Gate) -> set[str]:
        return {path.stem for path in gate.key.trusted.paths[0].iterdir()}

    old = deployment.gate.key.signer.public_key.keyid
    private = set(os.listdir(deployment.gate.private))
    for at, _ in enumerate(deployment.calls(rotate)):
        for again in (rotate, lambda gate: first_key(gate.key.path, gate.key.trusted.paths[0])):
            with deployment.copied() as gate:
                assert died(partial(rotate, gate), Dying(at))
                assert gate.key.signer.public_key.keyid == old
                again(gate)
                now = gate.key.signer.public_key.keyid
                assert (now == old) is (again is not rotate)
                assert trusted(gate) == {old[:16], now[:16]}
                assert set(os.listdir(gate.private)) == private


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO], ids=["EACCES", "EIO"])
def test_a_memory_that_cannot_be_listed_refuses(
    gate: Gate, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = chain(gate)
    plain = os.listdir

    def failing(path: Any = ".") -> list[str]:
        if "/log" in str(path):
            raise OSError(number, os.strerror(number), str(path))
        return plain(path)

    monkeypatch.setattr(os, "listdir", failing)
    with blocked(StoreUnavailable):
        part.publish()
    assert gate.store.history(PLACE) == []


def test_all_is_flushed_before_it_is_pointed_to(gate: Gate) -> None:
    _, work, _ = begun(gate, "next")
    disk = Disk()
    with on(disk):
        work(gate)
    release = gate.store.current(PLACE, gate.key.trusted)
    pointer = PLACE.below(gate.releases) / "latest.json"

    def flushed(path: Any) -> int:
        return disk.inodes.index(path.stat().st_ino)

    # The files of the release are moved in place first, then its folder, then the pointer.
    moved, pointed = [at for at, name in enumerate(disk.calls) if name == "replace"][-2:]
    assert max(map(flushed, (release.table, release.attestation, release.folder))) < moved
    assert moved < flushed(release.folder.parent) < pointed
    assert (
        flushed(pointer)
        < pointed
        < len(disk.inodes) - 1 - disk.inodes[::-1].index(pointer.parent.stat().st_ino)
    )


@pytest.mark.slow
@pytest.mark.parametrize("same", [False, True], ids=["two tables", "one attestation"])
def test_two_publishers_at_once(deployment: Deployment, same: bool) -> None:
    with deployment.copied() as gate:
        chain(gate, 1).publish()
        for number in range(2, 10, 2):
            first = chain(gate, number)
            second = first if same else chain(gate, number + 1)
            known, (gun, trigger) = gate.store.history(PLACE), os.pipe()
            children = [publisher.start(part.publish, (gun, trigger)) for part in (first, second)]
            os.close(gun)
            os.close(trigger)
            for _ in range(3):  # the reader never sees another state meanwhile
                assert read(gate)["number"].iloc[0] in range(1, number + 2)
            codes = sorted(publisher.ended(child) for child in children)
            assert codes in ([[0, 0]] if same else [[0, 0], [0, publisher.REFUSED]])
            assert shown(gate) in (first.signed_file.data, second.signed_file.data)
            assert len(gate.store.history(PLACE)) == len(known) + (
                1 if same else 2 - bool(codes[1])
            )
            assert left_over(gate) == []
