"""Files and folders of the gate: atomic writes, privacy until publication, ownership, leftovers of
killed writers.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest
from gate_standins import (
    FAILING,
    PLACE,
    Chain,
    at_most,
    blocked,
    chain,
    make_gate,
    mode,
    open_gate,
    overwrite,
    read,
    tree,
)

from privacy_assets.cli.main import main
from privacy_assets.errors import (
    ConfigError,
    Damaged,
    InputError,
    NotTrusted,
    OutOfDate,
    PublicationBlocked,
    StoreUnavailable,
    WrongTarget,
)
from privacy_assets.gate import release_disk
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.keeper import Keeper
from privacy_assets.gate.releases import POINTER, TRUSTED_VARIABLE, read_published
from privacy_assets.gate.verification import verify_file
from privacy_assets.infra import files
from privacy_assets.infra.files import (
    check_above,
    check_private,
    create_once,
    make_folder,
    open_regular,
    private_folder,
    put_atomic,
)
from privacy_assets.pipeline.advice import with_advice

NOBODY = 65534
as_root = pytest.mark.skipif(
    os.getuid() != 0, reason="only root can give a file away, or become another user"
)


def python(script: str, *arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, **more)


# The folder of a release


def test_a_release_is_complete_and_not_writable_and_its_id_says_when_and_what(ready: Chain) -> None:
    release = ready.publish()
    folder = release.folder.parents[1]
    assert {path.name: mode(path) for path in release.folder.iterdir()} == dict.fromkeys(
        ("table.parquet", "attestation.json"), 0o444
    )
    assert mode(release.folder) == 0o555
    assert {path.name for path in folder.iterdir()} == {"releases", POINTER, ".lock"}
    assert ready.gate.store.pointer(PLACE, ready.gate.key.trusted).release == release.id
    assert release.id.endswith(ready.snapshot.sha256[:12])
    said, stated = pd.Timestamp(release.time), pd.Timestamp(ready.attestation.made_at)
    assert pd.Timedelta(seconds=-1) <= said - stated < pd.Timedelta(minutes=10)


def test_the_copy_is_made_in_a_private_folder_that_is_gone_afterwards(
    ready: Chain, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []
    copy, releases = release_disk.copy_hashed, PLACE.below(ready.gate.releases) / "releases"

    def watched(*rest: Any) -> None:
        (folder,) = releases.iterdir()
        (draft,) = folder.iterdir()
        seen.extend((mode(folder), mode(draft)))
        assert folder.name == "staging"
        copy(*rest)

    monkeypatch.setattr(release_disk, "copy_hashed", watched)
    left = releases / "staging" / "table.parquet"  # left by a killed process
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    left.parent.chmod(0o555)
    with caplog.at_level(logging.WARNING):
        release = ready.publish()
    assert seen == [0o700, 0o600]
    assert "staging" in caplog.text
    assert not left.parent.exists()
    assert ready.gate.store.history(PLACE) == [release]


def test_a_link_in_place_of_staging_is_not_followed(ready: Chain, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_bytes(b"kept")
    folder = PLACE.below(ready.gate.releases) / "releases"
    folder.mkdir(parents=True)
    (folder / "staging").symlink_to(tmp_path / "elsewhere")
    ready.publish()
    assert not (folder / "staging").is_symlink()
    assert tree(tmp_path / "elsewhere") == {"kept": b"kept"}


@pytest.mark.parametrize("name", ["releases/staging/sub", "latest.json", ".lock"])
@pytest.mark.parametrize("full", [False, True])
def test_a_folder_in_the_place_of_a_file_is_named_with_the_fix(
    ready: Chain, name: str, full: bool
) -> None:
    odd = PLACE.below(ready.gate.releases) / name
    (odd / "below" if full else odd).mkdir(parents=True)
    with pytest.raises((ConfigError, PublicationBlocked)) as caught:
        ready.publish()
    said = with_advice(caught.value)
    assert str(odd) in said and said.count("Fix:") == 1 and "Fix: remove this folder" in said


def test_the_history_holds_releases_only(ready: Chain) -> None:
    made = ready.publish()
    for name in (
        "notes",
        ".hidden",
        "20240101T000000.000000Z-0123456789AB",
        "x20240101T000000.000000Z-0123456789ab",
    ):
        (made.folder.parent / name).mkdir()
    assert ready.gate.store.history(PLACE) == [made]
    pointer = made.folder.parents[1] / POINTER
    pointer.unlink()
    pointer.mkdir()
    with blocked(StoreUnavailable, retry=False, path=str(pointer.parent)):
        read(ready.gate)


def moved_from(target: ReleaseTarget) -> Callable[[Chain], bytes]:
    return lambda ready: chain(ready.gate, target=target).signed_file.data


ATTESTATIONS: dict[str, tuple[Callable[[Chain], bytes], type[PublicationBlocked]]] = {
    "of another table": (moved_from(ReleaseTarget("others")), WrongTarget),
    "of a partition": (moved_from(ReleaseTarget("patients", "_all")), WrongTarget),
    "of other bytes": (lambda x: chain(x.gate, 1).signed_file.data, Damaged),
    "of a failure": (lambda x: x.restated(verdict="fail").data, Damaged),
    "of a stranger": (
        lambda x: chain(make_gate(x.gate.private / "stranger")).signed_file.data,
        NotTrusted,
    ),
    "a result": (lambda x: x.score.data, NotTrusted),
    "changed": (lambda x: x.signed_file.data.replace(b"a", b"b", 1), NotTrusted),
    "empty": (lambda _: b"", OutOfDate),
    "no envelope": (lambda _: b"{}", NotTrusted),
}


def test_a_release_with_another_attestation_or_none_is_not_read(ready: Chain) -> None:
    release = ready.publish()
    for name, (other, kind) in ATTESTATIONS.items():
        overwrite(release.attestation, other(ready))
        with blocked(kind, record=None, reader=True):
            pytest.fail(f"{name}: {read(ready.gate)}")
    release.attestation.unlink()
    with blocked(StoreUnavailable, path=str(release.attestation), retry=False, reader=True):
        read(ready.gate)


def test_readers_find_the_trusted_keys_beside_the_releases_or_where_the_environment_says(
    ready: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready.publish()
    monkeypatch.chdir(ready.gate.releases)
    for root in (ready.gate.releases, "."):
        assert len(read_published(root, "patients")) == 3
    stranger = make_gate(tmp_path / "stranger").key.trusted.paths[0]
    monkeypatch.setenv(TRUSTED_VARIABLE, str(stranger))
    with blocked(NotTrusted, reader=True):
        read_published(ready.gate.releases, "patients")
    monkeypatch.setenv(TRUSTED_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="no trusted key in .*nowhere"):
        read_published(ready.gate.releases, "patients")


# Permissions under any umask

_PUBLISH = """
import os, sys
from pathlib import Path
os.umask(int(sys.argv[2], 8))
from gate_standins import chain, make_gate
chain(make_gate(Path(sys.argv[1]))).publish()
"""


@pytest.mark.slow
@pytest.mark.parametrize("umask", ["000", "022", "077"])
def test_readers_can_read_and_nobody_else_can_write_whatever_the_umask(
    tmp_path: Path, umask: str
) -> None:
    root = tmp_path / "made" / "here"
    python(_PUBLISH, root, umask, check=True)
    found = {path.relative_to(root): mode(path) for path in root.rglob("*")}
    private = {bits for path, bits in found.items() if path.parts[0] == "private"}
    assert private == {0o700, 0o600}
    public = {
        path: bits
        for path, bits in found.items()
        if path.parts[0] != "private" and path.name[0] != "."
    }
    assert {bits & 0o055 for path, bits in public.items() if (root / path).is_dir()} == {0o055}
    assert {bits & 0o044 for bits in public.values()} == {0o044}
    assert {bits & 0o022 for bits in public.values()} == {0}
    assert (mode(root), mode(root.parent)) == (0o755, 0o755)


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o711)
    assert mode(make_folder(tmp_path / "there" / "new", 0o755)) == 0o755
    assert mode(tmp_path / "there") == 0o711


# Ownership


def test_git_does_not_see_private_folders(tmp_path: Path) -> None:
    assert private_folder(tmp_path / "a" / "b" / "c") == tmp_path / "a" / "b" / "c"
    private_folder(tmp_path / "a" / "d" / "e")
    put_atomic(tmp_path / "a" / "f" / "g", b"x")
    put_atomic(tmp_path / "public" / "g", b"x", mode=0o644)
    (tmp_path / "kept").mkdir()
    private_folder(tmp_path / "kept")  # created elsewhere
    put_atomic(tmp_path / "kept" / "h" / "i", b"x")
    assert {
        str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob(".gitignore")
    } == {
        "a/.gitignore": "*\n",
        "kept/h/.gitignore": "*\n",
    }
    (tmp_path / ".gitignore").write_text("*\n")
    private_folder(tmp_path / "hidden")
    assert not (tmp_path / "hidden" / ".gitignore").exists()
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    # parent folders belong to other repositories
    private_folder(tmp_path / "repository" / "private")
    assert (tmp_path / "repository" / "private" / ".gitignore").exists()


def refuses_keys(root: Path, match: str) -> None:
    """Check that no operation signs, publishes, rolls back or reads with these trusted keys."""
    gate = open_gate(root)
    release = gate.store.history(PLACE)[0]
    acts: list[Callable[[], object]] = [
        gate.key.check,
        lambda: Keeper(gate).roll_back(PLACE, release.id),
        lambda: read(gate),
        lambda: verify_file(release.table, gate.key.trusted, gate.releases),
    ]
    for act in acts:
        with pytest.raises(ConfigError, match=match):
            act()


def test_trusted_keys_that_others_may_change_are_blocked(ready: Chain, tmp_path: Path) -> None:
    ready.publish()
    (file,) = (tmp_path / "trusted_keys").iterdir()
    for path, usual in ((tmp_path / "trusted_keys", 0o755), (file, 0o644)):
        for bits in (0o775, 0o757, 0o777, 0o1777):
            path.chmod(bits)
            refuses_keys(tmp_path, f"{path.name}: (every user|a group) may write")
        path.chmod(usual)


def test_a_folder_above_that_others_may_change_is_blocked_unless_it_is_sticky(
    tmp_path: Path,
) -> None:
    gate = make_gate(tmp_path / "a" / "b")
    chain(gate).publish()
    for bits in (0o777, 0o757):
        (tmp_path / "a").chmod(bits)
        refuses_keys(tmp_path / "a" / "b", f"other users may write to {tmp_path / 'a'},")
        with pytest.raises(ConfigError, match=f"other users may write to {tmp_path / 'a'},"):
            check_private(gate.private)
    (tmp_path / "a").chmod(0o1777)  # like /tmp
    assert len(read(gate)) == 3
    gate.key.check()


def test_a_folder_above_a_link_counts_as_well(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "open" / "link").symlink_to(tmp_path / "closed")
    (tmp_path / "open").chmod(0o777)
    check_above(tmp_path / "closed" / "x")
    with pytest.raises(ConfigError, match="other users may write"):
        check_above(tmp_path / "open" / "link" / "x")


def test_a_group_of_the_owner_alone_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o775)
    name = files.pwd.getpwuid(os.getuid()).pw_name

    def group(members: list[str], name: str) -> None:
        made = files.grp.struct_group((name, "x", os.getgid(), members))
        monkeypatch.setattr(files.grp, "getgrgid", lambda _: made)

    group([], name)
    check_above(tmp_path / "home" / "keys")
    for members, called in ((["mallory"], name), ([], "users")):
        group(members, called)
        with pytest.raises(ConfigError, match="other users may write"):
            check_above(tmp_path / "home" / "keys")


@as_root
def test_keys_and_private_folders_of_another_user_are_blocked(ready: Chain, tmp_path: Path) -> None:
    release, gate = ready.publish(), ready.gate
    (file,) = (tmp_path / "trusted_keys").iterdir()
    for path in (tmp_path / "trusted_keys", file):
        os.chown(path, NOBODY, -1)
        refuses_keys(tmp_path, f"{path.name}: this trusted file or folder belongs to another user")
        os.chown(path, 0, -1)
    os.chown(gate.private, NOBODY, -1)
    for act in (
        lambda: check_private(gate.private),
        lambda: Keeper(gate).roll_back(PLACE, release.id),
    ):
        with pytest.raises(ConfigError, match="private folder belongs to another user"):
            act()


_READ = """
import os, sys
from pathlib import Path
from gate_standins import chain, make_gate, read
from privacy_assets.errors import ConfigError
from privacy_assets.gate.releases import default_trusted, read_published
root, elsewhere = Path(sys.argv[1]), make_gate(Path(sys.argv[3]))
chain(elsewhere).publish()
read(elsewhere)  # whatever is imported on the way may not be for the other user to read
os.setuid(int(sys.argv[2]))
for reading in (True, False):
    try:
        print(len(default_trusted(root / "releases", reading=reading).by_id))
    except ConfigError as error:
        print(error)
print(len(read_published(root / "releases", "patients")))
try:
    read_published(root / "releases", "patients", trusted_keys=root / "trusted_keys")
except ConfigError as error:
    print(error)
"""


@as_root
@pytest.mark.slow
def test_a_reader_who_is_another_user_believes_the_owner_of_the_releases_and_nobody_else(
    tmp_path: Path,
) -> None:
    """The publisher is user 1001, the reader 1002. A publisher with id 1002 would not trust these
    keys.
    """
    with TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        chain(make_gate(root)).publish()
        for path in [root, *root.rglob("*")]:
            os.chown(path, 1001, -1)
        said = python(_READ, root, 1002, tmp_path / "one")
        found, strict, length, named = said.stdout.splitlines()
        assert (found, length) == ("1", "3"), said.stderr
        assert "belongs to another user (uid 1001)" in strict
        assert "belongs to another user (uid 1001)" in named
        os.chown(root / "trusted_keys", 1003, -1)
        assert "uid 1003" in python(_READ, root, 1002, tmp_path / "two").stdout.splitlines()[0]


# Type of file


@pytest.mark.slow
def test_no_pipe_is_waited_for(
    ready: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PRIVACY_ASSETS_")]:
        monkeypatch.delenv(name)
    gate, release = ready.gate, ready.publish()
    chain(gate, 5, high=FAILING)
    received = tmp_path / "received.parquet"
    received.write_bytes(release.table.read_bytes())
    numbers, root = count(7), ["--releases", str(gate.releases)]
    acts = [
        lambda: read(gate),
        lambda: chain(gate, next(numbers)).publish(),
        lambda: chain(gate, 5),
    ]
    commands = [["verify", str(received)], ["verify", str(release.table)], ["releases"], ["keys"],
                ["verify", str(received), "--attestation", str(release.attestation)]]  # fmt: skip
    (trusted,) = (tmp_path / "trusted_keys").iterdir()
    *_, entry, state = sorted((gate.private / "log" / "patients").glob("[!.]*"))
    pointer = release.folder.parents[1] / POINTER
    for path in (
        entry,
        state,
        pointer,
        release.attestation,
        release.table,
        trusted,
        ready.snapshot.path,
    ):
        path.parent.chmod(0o755)
        kept = path.rename(path.with_name(".kept"))
        os.mkfifo(path, 0o600)
        told = 0
        with at_most(60):
            for act in acts:
                try:
                    act()
                except (PublicationBlocked, ConfigError, InputError) as error:
                    told += any(
                        words in str(error) for words in ("regular", "damaged", "cannot be read")
                    )
            assert all(main([*command, *root]) in (0, 1, 2, 3) for command in commands)
        assert told or path == ready.snapshot.path
        kept.replace(path)
        Keeper(gate).roll_back(PLACE, release.id)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_only_regular_files_are_opened(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "x")
    with at_most(20), pytest.raises(OSError, match="not a regular file|Is a directory"):
        open_regular(tmp_path / "x")


# Atomic placement of one file, and leftovers of killed writers


def test_put_atomic_keeps_the_old_file_when_the_writer_fails(tmp_path: Path) -> None:
    path = put_atomic(tmp_path / "x", b"old")

    def broken(stream: Any) -> None:
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        put_atomic(path, broken)
    assert tree(tmp_path) == {"x": b"old"}
    assert mode(path) == 0o600


def test_put_atomic_replaces_a_link_and_not_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    (tmp_path / "x").symlink_to("kept")
    put_atomic(tmp_path / "x", b"new")
    assert tree(tmp_path) == {"kept": b"kept", "x": b"new"}


_DIE = """
import os, sys
from pathlib import Path
from privacy_assets.infra.files import create_once, put_atomic
die = lambda *_, **__: os._exit(9)
os.replace = os.link = die
target = Path(sys.argv[1])
create_once(target, b"half") if sys.argv[2] == "once" else put_atomic(target, b"half")
"""


@pytest.mark.parametrize("how", ["once", "atomic"])
def test_the_next_write_sweeps_what_a_killed_one_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    assert python(_DIE, tmp_path / "x", how).returncode == 9
    (left,) = os.listdir(tmp_path)
    assert left.startswith(".x.")
    (tmp_path / ".x.notes").write_bytes(b"somebody else's")
    with caplog.at_level(logging.WARNING):
        put_atomic(tmp_path / "y", b"whole")
    assert sorted(os.listdir(tmp_path)) == [".x.notes", "y"]
    assert left in caplog.text


def test_what_is_being_written_is_not_swept(tmp_path: Path) -> None:
    def write(stream: Any) -> None:
        stream.write(b"one")
        put_atomic(tmp_path / "other", b"two")
        create_once(tmp_path / "third", b"three")
        stream.write(b" and a half")

    put_atomic(tmp_path / "slow", write)
    assert tree(tmp_path) == {"slow": b"one and a half", "other": b"two", "third": b"three"}
