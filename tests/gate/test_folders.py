"""Folders that other users can write to: operations reach no file elsewhere, even if names are
replaced meanwhile.
"""

from __future__ import annotations

import ast
import itertools
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from gate_standins import PLACE, Chain, chain, make_gate, mode, open_gate, read, shown
from publisher import Disk, on
from swaps import NOBODY, Victims, put_back, replace_by_link, swapping, swaps_of

from privacy_assets.errors import ConfigError, InputError, PublicationBlocked
from privacy_assets.gate import release_disk
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keeper import Keeper
from privacy_assets.gate.keys import first_key, rotate_key
from privacy_assets.gate.verification import states_of, verify_file
from privacy_assets.infra import folders
from privacy_assets.infra.files import make_folder
from privacy_assets.pipeline.advice import advice

GATE = Path(__file__).parents[2] / "privacy_assets" / "gate"
USERS = {"the same user": os.getuid(), **({"another user": NOBODY} if os.getuid() == 0 else {})}
_numbers = itertools.count(1)
Act = Callable[[Gate, Path], object]


# Replacements while the gate works


def publish(gate: Gate, root: Path) -> None:
    chain(gate, next(_numbers)).publish()


def roll_back(gate: Gate, root: Path) -> None:
    for release in gate.store.history(PLACE)[:1]:
        Keeper(gate).roll_back(PLACE, release.id)


def rotate(gate: Gate, root: Path) -> None:
    keys = root / "made" / "trusted_keys"
    with suppress(OSError):
        tidy(keys)
    rotate_key(root / "private" / "signing.key", keys)


def tidy(folder: Path, most: int = 30) -> None:
    """Keep ``folder`` small and replaceable: the gate makes a new folder if the old one is replaced
    at that moment.
    """
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        names = os.listdir(opened)
        if len(names) > most:
            for name in names[: most // 2]:
                os.unlink(name, dir_fd=opened)
        if os.getuid() == 0:
            os.fchown(opened, -1, NOBODY)
        os.fchmod(opened, 0o775)
    finally:
        os.close(opened)


def create_folders(gate: Gate, root: Path) -> None:
    made = root / "made" / str(next(_numbers))
    make_folder(made / "a" / "b" / "c", 0o755)
    first_key(root / "private" / "other" / "signing.key", made / "trusted_keys")
    shutil.rmtree(root / "private" / "other")


ACTS: dict[str, Act] = {
    "publish": publish,
    "rotate": rotate,
    "roll back": roll_back,
    "folders": create_folders,
}


def shared_deployment(root: Path) -> Gate:
    """A deployment with one release whose folders a group may write to."""
    root.chmod(0o755)
    gate = make_gate(root)
    chain(gate, next(_numbers)).publish()
    (root / "made").mkdir()
    for folder in (root / "made", gate.releases, *gate.releases.glob("*"),
                   *gate.releases.glob("*/*"), *gate.releases.glob("*/*/releases")):  # fmt: skip
        if os.getuid() == 0:
            os.chown(folder, -1, NOBODY)
        folder.chmod(0o775)
    return gate


@pytest.mark.slow
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    ("swaps", "times"), [(100, 5), pytest.param(2000, 80, marks=pytest.mark.weekly)]
)
def test_no_swap_reaches_a_file_elsewhere(act: str, user: str, swaps: int, times: int) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        gate, victims, done = shared_deployment(root), Victims(root / "victims"), 0
        # so that the modes have to be set
        old_umask = os.umask(0o077 if act == "folders" else 0o022)
        watched, end = (
            gate.releases if act in ("publish", "roll back") else root / "made",
            time.monotonic() + 600,
        )
        try:
            with swapping([watched], victims, USERS[user]) as count:
                for number in itertools.count():
                    if number >= times and swaps_of(count) >= swaps:
                        break
                    assert time.monotonic() < end, f"only {swaps_of(count)} swaps in {number} tries"
                    with suppress(PublicationBlocked, ConfigError, InputError, OSError):
                        ACTS[act](gate, root)
                        done += 1
                    victims.check()
                    if act == "rotate":
                        assert mode(root / "private" / "signing.key") == 0o600
        finally:
            os.umask(old_umask)
        victims.check()
        if act in ("publish", "roll back"):  # afterwards every operation works again
            for kept in gate.store.history(PLACE):
                with suppress(PublicationBlocked, InputError):
                    Keeper(gate).roll_back(PLACE, kept.id)


class Swap(Disk):
    """Before call ``at``, replace every name of one kind by a link that remains."""

    def __init__(self, at: int, pattern: str, root: Path, victim: Path) -> None:
        super().__init__()
        self.at, self.pattern, self.root, self.victim = at, pattern, root, victim
        self.replaced: list[Path] = []

    def reached(self, number: int, name: str, size: int) -> int:
        if number == self.at:
            paths = sorted(self.root.glob(self.pattern))
            self.replaced = [path for path in paths if replace_by_link(path, self.victim)]
        return size


PATTERNS = [
    "*",
    "*/_all",
    "*/_all/releases",
    "*/_all/releases/[!.]*",
    "*/_all/releases/*/*",
    "*/_all/*.json*",
]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.weekly)])
def test_a_swap_before_a_call_that_changes_the_disk(
    tmp_path: Path, pattern: str, step: int
) -> None:
    gate, victims = shared_deployment(tmp_path), Victims(tmp_path / "victims")
    disk = Disk()
    with on(disk):
        publish(gate, tmp_path)
    first = gate.store.history(PLACE)[0]
    for at in range(PATTERNS.index(pattern) % step, len(disk.calls), step):
        part = chain(gate, next(_numbers))
        swap = Swap(at, pattern, gate.releases, victims.files[at % 2])
        with suppress(PublicationBlocked), on(swap):
            part.publish()
        victims.check()
        for path in reversed(swap.replaced):
            put_back(path)
        for left in first.folder.parent.iterdir():  # after a replacement the release is damaged
            if left.is_symlink():
                left.unlink()
            elif left != first.folder:
                left.chmod(0o755)
                shutil.rmtree(left)
        Keeper(gate).roll_back(PLACE, first.id)
        assert shown(gate)


# Who may write there


@pytest.mark.parametrize("bits", [0o777, 0o757, 0o1777, 0o702])
def test_a_release_folder_that_every_user_may_write_to_is_blocked(ready: Chain, bits: int) -> None:
    release, gate = ready.publish(), ready.gate
    later = chain(gate, 1)
    places = [gate.releases, *list(release.folder.parents)[:3]]
    # others stay the same
    back = [folder for folder in places if folder.name != "releases" or folder == gate.releases]
    for act, folders_of in (
        (later.publish, places),
        (lambda: Keeper(gate).roll_back(PLACE, release.id), back),
    ):
        for folder in folders_of:
            usual = mode(folder)
            folder.chmod(bits)
            with pytest.raises(
                ConfigError, match=f"{folder}: every user may write .* Fix: chmod o-w {folder}"
            ):
                act()
            assert len(read(gate)) == 3  # a reader verifies signatures
            folder.chmod(usual)
        act()


def test_a_release_folder_that_a_group_may_write_to_works_and_logs_one_line(
    ready: Chain, caplog: pytest.LogCaptureFixture
) -> None:
    ready.gate.releases.mkdir(exist_ok=True)
    ready.gate.releases.chmod(0o2775)
    with caplog.at_level(logging.WARNING):
        release = ready.publish()
        chain(ready.gate, 1).publish()
        Keeper(ready.gate).roll_back(PLACE, release.id)
    said = [
        record.getMessage() for record in caplog.records if "group may write" in record.getMessage()
    ]
    assert len(said) == 1 and said[0].endswith(f"chmod g-w {ready.gate.releases}")


def test_folders_made_by_somebody_before_the_first_run_work(tmp_path: Path) -> None:
    from privacy_assets.gate.deployment import DeploymentSettings

    for target in ("patients/_all/releases", "others/partition=a/releases", "empty"):
        (tmp_path / "releases" / target).mkdir(parents=True)
    gate = (
        DeploymentSettings(releases=tmp_path / "releases", private=tmp_path / "private")
        .open()
        .gate()
    )
    release = chain(gate).publish()
    assert [*gate.store.targets()] == [PLACE] and mode(release.folder) == 0o555


# Waiting for a lock

_HOLD = """
import fcntl, os, sys, time
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(path: Path) -> Iterator[int]:
    """Another process holds the lock file ``path``; yields its process id."""
    command = [sys.executable, "-c", _HOLD, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.stdin.close()


@pytest.mark.slow
def test_the_wait_for_a_lock_ends_and_names_the_process(
    ready: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, later = ready.publish(), chain(ready.gate, 1)
    monkeypatch.setattr(folders, "LOCK_WAIT", 0.2)
    lock = PLACE.below(ready.gate.releases) / ".lock"
    for act in (later.publish, lambda: Keeper(ready.gate).roll_back(PLACE, release.id)):
        with held(lock) as process:
            with pytest.raises(
                PublicationBlocked, match=f"{lock}: locked by process {process} "
            ) as caught:
                act()
            assert advice(caught.value).startswith("wait")
            assert len(read(ready.gate)) == 3
        act()
    keys = tmp_path / "private" / ".keys.lock"
    with (
        held(keys) as process,
        pytest.raises(ConfigError, match=f"{keys}: locked by process {process}"),
    ):
        rotate(ready.gate, tmp_path)
    rotate(ready.gate, tmp_path)


def test_the_wait_for_a_publication_names_the_process_and_the_host(
    ready: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "LOCK_WAIT", 0.01)
    path = PLACE.below(ready.gate.releases)
    assert ready.publish()
    with folders.opened(path) as folder, folders.locked(folder, ".lock"):
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        with pytest.raises(PublicationBlocked, match=re.escape(f"locked by {holder} for more")):
            ready.publish()
    assert ready.publish()


def test_a_lock_file_that_is_a_hard_link_changes_no_other_file(tmp_path: Path) -> None:
    """A user who can write to the release folder may link the lock to a file of the publisher."""
    file = tmp_path / "notes"
    file.write_text("of the publisher")
    shared = tmp_path / "shared"
    shared.mkdir()
    os.link(file, shared / ".lock")
    with folders.opened(shared) as folder, folders.locked(folder, ".lock"):
        pass
    assert file.read_text() == "of the publisher"


def test_a_lock_file_that_was_replaced_is_taken_again(tmp_path: Path) -> None:
    """Otherwise two publishers could hold two files of the same name."""
    with folders.opened(tmp_path) as folder, folders.locked(folder, ".lock"):
        (tmp_path / ".lock").unlink()
        with folders.locked(folder, ".lock"):
            assert (tmp_path / ".lock").exists()


# Calls that name a path in the release folder

_named: list[str] | None = None
_below = ""


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if _named is None or not event.startswith(("open", "os.", "shutil.", "pathlib.", "glob.")):
        return
    paths = [os.fsdecode(one) for one in arguments if isinstance(one, (str, bytes, os.PathLike))]
    _named.extend(f"{event} {path}" for path in paths if path.startswith(_below))


@contextmanager
def calls_by_name(root: Path) -> Iterator[list[str]]:
    """Collect every call of this process that names a path in ``root``."""
    global _named, _below
    if not getattr(_listen, "installed", False):
        sys.addaudithook(_listen)
        _listen.installed = True  # type: ignore[attr-defined]
    _below, _named = f"{root}{os.sep}", []
    try:
        yield _named
    finally:
        _named = None


def everything(gate: Gate, root: Path) -> None:
    """All operations of the gate on a release folder."""
    first = chain(gate, next(_numbers))
    release = first.publish()
    first.publish()
    publish(gate, root)
    read(gate)
    roll_back(gate, root)
    trusted = gate.key.trusted
    assert all(not state.damage for state in states_of(gate.store, PLACE, trusted))
    assert [*gate.store.targets()] == [PLACE]
    copy = root / "copy.parquet"
    shutil.copy(first.snapshot.path, copy)
    for file in (copy, release.table):
        assert verify_file(file, trusted, gate.releases).passed


def test_nothing_in_the_release_folder_is_named_by_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = make_gate(tmp_path)
    with calls_by_name(gate.releases) as found:
        everything(gate, tmp_path)
        assert found == []
    point = release_disk._point

    def by_name(target: Any, data: bytes) -> None:
        point(target, data)
        (gate.releases / "patients").chmod(0o755)

    monkeypatch.setattr(release_disk, "_point", by_name)
    with calls_by_name(gate.releases) as found:
        publish(open_gate(tmp_path), tmp_path)
        assert found and all(one.startswith("os.chmod ") for one in found)


CHANGES = {
    "access",
    "chmod",
    "chown",
    "lchown",
    "link",
    "listdir",
    "makedirs",
    "mkdir",
    "mkfifo",
    "open",
    "remove",
    "removedirs",
    "rename",
    "renames",
    "replace",
    "rmdir",
    "scandir",
    "symlink",
    "truncate",
    "unlink",
    "utime",
    "walk",
}
METHODS = {
    "chmod",
    "hardlink_to",
    "iterdir",
    "mkdir",
    "rename",
    "rglob",
    "rmdir",
    "rmtree",
    "symlink_to",
    "touch",
    "write_bytes",
    "write_text",
}


def named_calls(source: str) -> list[str]:
    """Calls that open or change a file by its path."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, name = node.func.value, node.func.attr
            of_os = isinstance(owner, ast.Name) and owner.id == "os" and name in CHANGES
            of_folders = isinstance(owner, ast.Name) and owner.id == "folders"
            if of_os or (name in METHODS and not of_folders):
                found.append(ast.unparse(node.func))
    return found


def test_the_gate_changes_files_through_the_module_of_folders_alone() -> None:
    calls = {path.name: named_calls(path.read_text(encoding="utf-8")) for path in GATE.glob("*.py")}
    assert {name: found for name, found in calls.items() if found} == {}
    assert named_calls("os.chmod(path, 0o555)\nfolder.mkdir()\nos.fspath(path)") == [
        "os.chmod",
        "folder.mkdir",
    ]
