"""A second process that replaces names in folders by links to private files, while the gate works
there.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

NOBODY = 65534
SECRETS = {"signing.key": b"the key", "train.parquet": b"private rows"}


class Victims:
    """Private files that no operation of the gate may change."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self.files = [folder / name for name in SECRETS]
        for path in self.files:
            path.write_bytes(SECRETS[path.name])
            path.chmod(0o600)
        self.before = self.facts()

    def facts(self) -> list[tuple[int, int, bytes]]:
        return [(path.stat().st_mode, path.stat().st_uid, path.read_bytes()) for path in self.files]

    def check(self) -> None:
        """Fail if mode, owner or bytes of a file have changed."""
        assert self.facts() == self.before


def replace_by_link(path: Path, victim: Path) -> bool:
    """Move ``path`` aside and put a link to ``victim`` in its target; False if that is not possible
    any more.
    """
    aside = path.with_name(f".aside.{path.name}")
    try:
        os.rename(path, aside)
    except OSError:
        return False
    with suppress(OSError):
        os.symlink(victim, path)
    return True


def put_back(path: Path) -> None:
    """Undo :func:`replace_by_link`, unless something else is at ``path`` by now."""
    aside = path.with_name(f".aside.{path.name}")
    with suppress(OSError):
        if path.is_symlink():
            path.unlink()
        if path.exists() and aside.is_dir():
            # its name is needed for the next swap
            os.rename(aside, aside.with_name(f".aside.{time.monotonic_ns()}"))
        elif path.exists():
            aside.unlink()
        else:
            os.rename(aside, path)


def _below(folder: str, depth: int = 5) -> Iterator[str]:
    """Names that this process can replace, in ``folder`` and below it."""
    writable = os.access(folder, os.W_OK)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.name.startswith(".aside."):
                continue
            if writable:
                yield entry.path
            with suppress(OSError):
                if depth and entry.is_dir(follow_symlinks=False):
                    yield from _below(entry.path, depth - 1)


@contextmanager
def swapping(folders: Sequence[Path], victims: Victims, uid: int) -> Iterator[mmap.mmap]:
    """Replace names below ``folders`` by links from another process of user ``uid``; yields the
    number of swaps.

    New names are replaced first: they are what a publisher is about to use.
    """
    count = mmap.mmap(-1, 8)
    child = os.fork()
    if not child:
        try:
            if uid != os.getuid():
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            _swap(folders, victims.files, count)
        finally:
            os._exit(0)
    try:
        yield count
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for folder in folders:
            for path in [*folder.rglob(".aside.*")]:
                put_back(path.with_name(path.name.removeprefix(".aside.")))


def _swap(folders: Sequence[Path], victims: Sequence[Path], count: mmap.mmap) -> None:
    known, swaps, turn = set[str](), 0, 0
    while True:
        found = [path for folder in folders for path in _below(str(folder), 3)]
        new = [path for path in found if path not in known]
        known.update(new)
        turn = (turn + 1) % (16 * len(found) or 1)  # old names are replaced now and then
        for name in new or ([] if turn % 16 else found[turn // 16 : turn // 16 + 1]):
            path = Path(name)
            if replace_by_link(path, victims[swaps % len(victims)]):
                swaps += 1
                count[:8] = struct.pack("q", swaps)
                time.sleep(0.003 if new else 0.0005)
                put_back(path)


def swaps_of(count: mmap.mmap) -> int:
    return int(struct.unpack("q", count[:8])[0])
