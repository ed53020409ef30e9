"""Shared code of the crash tests: work to interrupt, failing disks, and a victim process if run as
a script.

    python tests/gate/publisher.py FOLDER [BUCKET]

The script reads lines: "publish PLACE ATTESTATION SNAPSHOT" (names of files below FOLDER), "back
PLACE RELEASE", "withdraw PLACE RELEASE", "prune PLACE RELEASE", "accept PLACE", "rotate". For each
line it forks a child that does the work. It prints the child's process id just before the work, and
its exit code just after. With a BUCKET the releases and the private folder are stored there.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from gate_standins import (
    PLACE,
    POLICY,
    SETUP,
    Chain,
    chain,
    in_bucket,
    make_gate,
    publisher_of,
    rows,
    shown,
)

from privacy_assets.errors import InputError, PublicationBlocked, StoreUnavailable, Superseded
from privacy_assets.gate.envelope import ReleaseTarget, SignedFile
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keeper import Keeper
from privacy_assets.gate.keys import first_key, rotate_key
from privacy_assets.gate.release import is_id
from privacy_assets.gate.releases import Release
from privacy_assets.infra.storage import storage_of

DIED, REFUSED = 9, 3  # exit codes of a child
KILLS, SEED = int(os.environ.get("PRIVACY_ASSETS_KILLS", "60")), 20  # 10 of each order
PLACED = 3  # orders at one place: all of its releases are read again after each
SCENARIOS = ["first", "next", "again", "back", "withdraw", "prune", "accept"]
_times = count(1)
Work = Callable[[Gate], object]


def begun(
    gate: Gate, scenario: str, target: ReleaseTarget = PLACE
) -> tuple[bytes | None, Work, bytes]:
    """The release that readers see before, the work, and the release that they see after it."""
    first = chain(gate, 1, target=target)
    if scenario == "first":
        return None, lambda gate: first.publish(gate=gate), first.signed_file.data
    release = first.publish()
    if scenario == "again":
        return first.signed_file.data, lambda gate: first.publish(gate=gate), first.signed_file.data
    second = chain(gate, 2, target=target)
    if scenario == "next":
        return (
            first.signed_file.data,
            lambda gate: second.publish(gate=gate),
            second.signed_file.data,
        )
    second.publish()
    if scenario == "back":
        return (
            second.signed_file.data,
            lambda gate: Keeper(gate).roll_back(target, release.id),
            first.signed_file.data,
        )

    def work(gate: Gate) -> None:
        if scenario == "accept":
            return Keeper(gate).accept(target.table, "tried")
        if scenario == "prune":
            Keeper(gate).prune(target, 1, 0)
        else:
            with suppress(InputError):  # it was removed before this process died
                Keeper(gate).withdraw(target, release.id, "tried")
        try:
            return gate.store.remove(target, [])
        except OSError as error:
            raise StoreUnavailable.of(f"{error.strerror}", error) from None

    return second.signed_file.data, work, second.signed_file.data


def ends_well(gate: Gate, work: Work, after: bytes, target: ReleaseTarget = PLACE) -> None:
    """Check that the same work now succeeds, and that no leftovers remain."""
    work(gate)
    assert shown(gate, target) == after
    assert left_over(gate, target) == []


def again(part: Chain) -> SignedFile:
    """A different attestation of the same table."""
    return part.restated(made_at=f"time {next(_times)} of {os.getpid()}")


def left_over(gate: Gate, target: ReleaseTarget = PLACE) -> list[str]:
    """Leftover names in a place's folder: unknown files, and entries of ``releases`` that are not
    release ids.
    """
    known, folder = (
        {".lock", "latest.json", "releases", "claims", "pointers"},
        target.below(gate.releases),
    )
    return sorted(
        [
            *({*storage_of(folder).names()} - known),
            *(name for name in storage_of(folder / "releases").names() if not is_id(name)),
        ]
    )


def forget(gate: Gate, target: ReleaseTarget, kept: Release) -> None:
    """Free space: remove all releases except ``kept``."""
    for release in gate.store.history(target):
        if release != kept and isinstance(release.folder, Path):
            release.folder.chmod(0o755)
            shutil.rmtree(release.folder)


Victim = Callable[[str, float | None], tuple[str, float]]


@contextmanager
def victim(root: Path, *bucket: str) -> Iterator[Victim]:
    """Run an order in a process that is killed after the given seconds; return its exit code and
    its lifetime.
    """
    command = [sys.executable, __file__, str(root), *bucket]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        orders, answers = process.stdin, process.stdout
        assert orders is not None and answers is not None
        assert answers.readline() == "ready\n"

        def do(line: str, seconds: float | None) -> tuple[str, float]:
            print(line, file=orders, flush=True)
            child, begin = int(answers.readline()), time.perf_counter()
            if seconds is not None:
                time.sleep(seconds)
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            return answers.readline().strip(), time.perf_counter() - begin

        yield do
        orders.close()


@dataclass(frozen=True)
class Order:
    """A victim's order: its line, the states ``seen`` before and after (None: any other), and how
    to end it.
    """

    line: str
    after: object
    seen: Callable[[], object]
    finish: Callable[[], object]


def order_to_publish(gate: Gate, root: Path, number: int) -> Order:
    target = ReleaseTarget(f"published-{number // PLACED}")
    # On a disk, writing the table takes most of the time; in a store it is one request.
    part = chain(
        gate,
        frame=rows(number, 80_000 if isinstance(gate.releases, Path) else 10_000),
        target=target,
    )
    (root / "attestation").write_bytes(part.signed_file.data)
    (root / "snapshot").write_bytes(part.taken.data)

    def finish() -> None:
        # the same record again, or a new one
        signed_file = part.signed_file if number % 4 < 2 else again(part)
        kept = part.publish(signed_file=signed_file)
        assert shown(gate, target) in (
            signed_file.data,
            part.signed_file.data,
        )  # a current release is kept
        forget(gate, target, kept)

    line = f"publish {target.table} attestation snapshot"
    return Order(line, part.signed_file.data, partial(shown, gate, target), finish)


def order_to_go_back(gate: Gate, root: Path, number: int) -> Order:
    target = ReleaseTarget(f"back-{number // PLACED}")
    if number % PLACED == 0:
        chain(gate, 2 * number, target=target).publish()
    first, other = (
        gate.store.current(target, gate.key.trusted),
        chain(gate, 2 * number + 1, target=target),
    )
    before = shown(gate, target)
    other.publish()

    def finish() -> None:
        assert (
            Keeper(gate).roll_back(target, first.id)
            == first
            == gate.store.current(target, gate.key.trusted)
        )
        with pytest.raises(Superseded):
            other.publish()

    return Order(f"back {target.table} {first.id}", before, partial(shown, gate, target), finish)


def order_to_rotate(gate: Gate, root: Path, number: int) -> Order:
    target, trusted = ReleaseTarget("rotated"), gate.key.trusted.paths[0]
    before = {path.name for path in trusted.iterdir()}
    if not number:
        chain(gate, 1, target=target).publish()

    def signs() -> object:
        assert shown(gate, target)
        return gate.key.signer.public_key.keyid

    def finish() -> None:
        first_key(gate.key.path, trusted)  # as at the beginning of the next run
        assert {path.name for path in trusted.iterdir()} == before | {f"{str(signs())[:16]}.pem"}
        kept = {
            ".gitignore",
            ".keys.lock",
            ".privacy-assets",
            "latest",
            "accepted",
            "log",
            "results",
            "signing.key",
        }
        assert set(storage_of(root / "private").names()) == kept | {"snapshots"}

    return Order("rotate", None, signs, finish)


def order_to_remove(gate: Gate, root: Path, number: int, kind: str) -> Order:
    """Withdraw or prune an old release. Readers keep the current one, and the log is whole."""
    target = ReleaseTarget(f"{kind}-{number // PLACED}")
    old = chain(gate, frame=rows(3 * number + 1, 10_000), target=target).publish()
    current = chain(gate, 3 * number + 2, target=target)
    current.publish()

    def seen() -> object:
        assert shown(gate, target) == current.signed_file.data
        gate.check_not_suspended(target.table)
        return old in gate.store.history(target)

    def finish() -> None:
        with suppress(InputError):
            if kind == "withdraw":
                Keeper(gate).withdraw(target, old.id, "tried")
            else:
                Keeper(gate).prune(target, 1, 0)
        gate.store.remove(target, [])
        assert not seen() and not [
            problem for *_, problem in gate.log.entries(target.table) if problem
        ]

    return Order(f"{kind} {target.table} {old.id}", False, seen, finish)


def order_to_accept(gate: Gate, root: Path, number: int) -> Order:
    target = ReleaseTarget(f"accept-{number}")
    chain(gate, number, target=target).publish()

    def seen() -> object:
        gate.check_not_suspended(target.table)
        assert not [problem for *_, problem in gate.log.entries(target.table) if problem]
        return gate.log.state(target.table).first

    return Order(
        f"accept {target.table}", None, seen, lambda: Keeper(gate).accept(target.table, "tried")
    )


ORDERS: dict[str, Callable[[Gate, Path, int], Order]] = {
    "publish": order_to_publish,
    "back": order_to_go_back,
    "rotate": order_to_rotate,
    "withdraw": partial(order_to_remove, kind="withdraw"),
    "prune": partial(order_to_remove, kind="prune"),
    "accept": order_to_accept,
}


def kill_at_random(gate: Gate, root: Path, victim: Victim, kind: str, kills: int) -> Counter[str]:
    """Kill processes at random moments of their work: readers see the old or the new state, never a
    mixture.
    """
    rng, whole, seen = random.Random(f"{kind} {SEED}"), deque[float](maxlen=21), Counter[str]()
    for number in range(20 * kills):
        order = ORDERS[kind](gate, root, number)
        before = order.seen()
        code, seconds = victim(
            order.line, rng.uniform(0, 1.1 * statistics.median(whole)) if len(whole) > 4 else None
        )
        now = order.seen()
        assert now == before or order.after in (None, now)
        if code == "0":  # killed too late: a measurement of the current duration
            assert now != before
            whole.append(seconds)
        else:
            assert int(code) == -signal.SIGKILL
            seen["old" if now == before else "new"] += 1
        order.finish()
        if seen.total() == kills:
            break
    print(
        f"{kind}, seed {SEED}: it took {statistics.median(whole) * 1e3:.1f} ms; the kills left"
        f" {dict(seen)}"
    )
    assert seen.total() == kills
    return seen


class Disk:
    """Count the calls that change the disk.

    ``reached`` returns, before each, the number of bytes that a write takes.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.inodes: list[int] = []  # the flushed inode, 0 for other calls

    def call(self, name: str, size: int = 0, target: Any = None) -> int:
        self.calls.append(name)
        self.inodes.append(os.fstat(target).st_ino if name == "fsync" else 0)
        return self.reached(len(self.calls) - 1, name, size)

    def reached(self, number: int, name: str, size: int) -> int:
        return size

    def torn(self) -> None:
        """Called after a write that stored fewer bytes than it was given."""


class Short(Disk):
    """The write ``at`` stores half of its bytes and returns that number, as every file system
    may.
    """

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def reached(self, number: int, name: str, size: int) -> int:
        return size // 2 if number == self.at else size


class Dying(Short):
    """The process dies before call ``at``; with ``halfway``, in the middle of a write."""

    def __init__(self, at: int, halfway: bool = False) -> None:
        super().__init__(at)
        self.halfway = halfway

    def reached(self, number: int, name: str, size: int) -> int:
        if number == self.at and not (self.halfway and name == "write"):
            os._exit(DIED)
        return super().reached(number, name, size)

    def torn(self) -> None:
        os._exit(DIED)


class Failing(Disk):
    """Call ``at`` fails with ``number``; with ``for_good``, so does each later call that needs
    space.
    """

    def __init__(self, at: int, number: int, for_good: bool = False) -> None:
        super().__init__()
        self.at, self.number, self.for_good = at, number, for_good

    def reached(self, number: int, name: str, size: int) -> int:
        needs_space = name in ("write", "create", "mkdir", "fsync")
        if number == self.at or (self.for_good and number > self.at and needs_space):
            raise OSError(self.number, os.strerror(self.number))
        return size


class Full(Disk):
    """A disk with ``free`` bytes: the write that does not fit is cut short, and the next one
    fails.
    """

    def __init__(self, free: int) -> None:
        super().__init__()
        self.free = free

    def reached(self, number: int, name: str, size: int) -> int:
        taken = min(size, self.free)
        if (name == "write" and size and not taken) or (
            name in ("create", "mkdir") and not self.free
        ):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.free -= taken
        return taken


_CHANGES = ("mkdir", "rename", "replace", "link", "unlink", "rmdir", "chmod", "fchmod", "fsync")


@contextmanager
def on(disk: Disk) -> Iterator[None]:
    """Route all of this process's changes on disk through ``disk``."""

    class Raw(io.FileIO):
        def write(self, data: Any) -> int:
            data = memoryview(data).cast("B")
            taken = disk.call("write", len(data))
            done = super().write(data[:taken])
            if taken < len(data):
                disk.torn()
            return done

    def opening(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
        if "b" not in mode or not set(mode) & set("wxa"):
            return plain_open(file, mode, buffering, *rest, **named)
        if not isinstance(file, int):
            disk.call("create")
        raw = Raw(file, mode.replace("b", ""))
        return raw if buffering == 0 else io.BufferedWriter(raw)

    def creating(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_CREAT:
            disk.call("create")
        return plain_creating(path, flags, *rest, **named)

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*rest: Any, **named: Any) -> Any:
            disk.call(name, target=rest[0])
            return function(*rest, **named)

        return call

    plain_open, plain_creating = io.open, os.open
    gc.disable()  # otherwise the removal of another test's temporary folder could be counted
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(io, "open", opening)
            patch.setattr(os, "open", creating)
            for name in _CHANGES:
                patch.setattr(os, name, counted(name, getattr(os, name)))
            yield
    finally:
        gc.enable()


def died(work: Callable[[], object], disk: Dying) -> bool:
    """Whether a child that does ``work`` on this disk dies from it."""

    def working() -> None:
        with on(disk):
            work()

    return ended(start(working)) == DIED


def start(work: Callable[[], object], gun: tuple[int, int] | None = None) -> int:
    """Fork a child that does ``work`` once the pipe ``gun`` has no other writer; return its process
    id.
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if gun is not None:
            os.close(gun[1])
            os.read(gun[0], 1)
        work()
        code = 0
    except PublicationBlocked:
        code = REFUSED
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Exit code of a child, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    """Execute the lines of the standard input."""
    root, *bucket = sys.argv[1:]
    gate = make_gate(Path(root))
    gate = in_bucket(gate, *bucket) if bucket else gate
    print("ready", flush=True)
    for line in sys.stdin:
        kind, *rest = line.split()
        gate.key.check()  # here, so that children spend no time on imports and keys
        print(ended(start(partial(_do, gate, Path(root), kind, *rest))), flush=True)


def _do(gate: Gate, root: Path, kind: str, *rest: str) -> None:
    os.write(1, f"{os.getpid()}\n".encode())
    if kind == "rotate":
        rotate_key(root / "private" / "signing.key", root / "trusted_keys")
    elif kind == "back":
        Keeper(gate).roll_back(ReleaseTarget(rest[0]), rest[1])
    elif kind == "withdraw":
        Keeper(gate).withdraw(ReleaseTarget(rest[0]), rest[1], "tried")
    elif kind == "prune":
        Keeper(gate).prune(ReleaseTarget(rest[0]), 1, 0)
    elif kind == "accept":
        Keeper(gate).accept(rest[0], "tried")
    else:
        attestation, snapshot = ((root / name).read_bytes() for name in rest[1:])
        signed_file, taken = (
            SignedFile("attestation", attestation),
            SignedFile("snapshot", snapshot),
        )
        publisher_of(gate).publish(signed_file, taken, ReleaseTarget(rest[0]), POLICY, SETUP)


if __name__ == "__main__":
    main()
