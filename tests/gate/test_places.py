"""Files and folders of the gate: whose they are, who may change them, what they are, and what killed writers left."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gate_standins import FRAME, PLACE, at_most, chain, make_gate, open_gate, read, rows, tree

from privacy_assets.cli.main import main
from privacy_assets.errors import ConfigError, InputError, PublicationRefused
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keys import rotate_key
from privacy_assets.gate.releases import POINTER
from privacy_assets.gate.verification import verify_file
from privacy_assets.storage import files
from privacy_assets.storage.files import check_above, check_private, create_once, make_folder, open_regular, put_atomic

NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away, or become another user")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# Whatever the umask

_PUBLISH = """
import os, sys
from pathlib import Path
os.umask(int(sys.argv[2], 8))
from gate_standins import chain, make_gate
chain(make_gate(Path(sys.argv[1]))).publish()
"""


def python(script: str, *arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, **more)


@pytest.mark.slow
@pytest.mark.parametrize("umask", ["000", "022", "077"])
def test_readers_can_read_and_nobody_else_can_write_whatever_the_umask(tmp_path: Path, umask: str) -> None:
    root = tmp_path / "made" / "here"
    python(_PUBLISH, root, umask, check=True)
    found = {path.relative_to(root): mode(path) for path in root.rglob("*")}
    private = {bits for path, bits in found.items() if path.parts[0] == "private"}
    assert private == {0o700, 0o600}
    shown = {path: bits for path, bits in found.items() if path.parts[0] != "private" and path.name != ".lock"}
    assert {bits & 0o055 for path, bits in shown.items() if (root / path).is_dir()} == {0o055}
    assert {bits & 0o044 for bits in shown.values()} == {0o044}
    assert {bits & 0o022 for bits in shown.values()} == {0}
    assert (mode(root), mode(root.parent)) == (0o755, 0o755)


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o711)
    assert mode(make_folder(tmp_path / "there" / "new", 0o755)) == 0o755
    assert mode(tmp_path / "there") == 0o711


# Whose it is


def refuses_keys(root: Path, match: str) -> None:
    """Nothing is signed, published, rolled back or read by these trusted keys."""
    gate = open_gate(root)
    release = gate.store.history(PLACE)[0]
    acts: list[Callable[[], object]] = [
        gate.key.check,
        lambda: gate.roll_back(PLACE, release.id),
        lambda: read(gate),
        lambda: verify_file(release.table, gate.key.trusted, gate.releases),
    ]
    for act in acts:
        with pytest.raises(ConfigError, match=match):
            act()


@pytest.mark.parametrize("bits", [0o775, 0o757, 0o777, 0o1777])
def test_trusted_keys_that_others_may_change_are_refused(gate: Gate, tmp_path: Path, bits: int) -> None:
    chain(gate).publish()
    (file,) = (tmp_path / "trusted_keys").iterdir()
    (tmp_path / "trusted_keys").chmod(bits)
    refuses_keys(tmp_path, "trusted_keys: (everybody|a group) may write")
    (tmp_path / "trusted_keys").chmod(0o755)
    file.chmod(bits & 0o666)
    refuses_keys(tmp_path, f"{file.name}: (everybody|a group) may write")


def test_a_folder_above_that_others_may_change_is_refused_unless_it_is_sticky(tmp_path: Path) -> None:
    gate = make_gate(tmp_path / "a" / "b")
    chain(gate).publish()
    for bits in (0o777, 0o757):
        (tmp_path / "a").chmod(bits)
        refuses_keys(tmp_path / "a" / "b", f"others may write to {tmp_path / 'a'},")
        with pytest.raises(ConfigError, match=f"others may write to {tmp_path / 'a'},"):
            check_private(gate.private)
    (tmp_path / "a").chmod(0o1777)  # as /tmp
    assert len(read(gate)) == len(FRAME)
    gate.key.check()


def test_a_folder_above_a_link_counts_as_well(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "open" / "link").symlink_to(tmp_path / "closed")
    (tmp_path / "open").chmod(0o777)
    check_above(tmp_path / "closed" / "x")
    with pytest.raises(ConfigError, match="others may write"):
        check_above(tmp_path / "open" / "link" / "x")


def test_a_group_of_the_owner_alone_is_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        with pytest.raises(ConfigError, match="others may write"):
            check_above(tmp_path / "home" / "keys")


@as_root
def test_keys_and_private_folders_of_another_user_are_refused(gate: Gate, tmp_path: Path) -> None:
    chain(gate).publish()
    (file,) = (tmp_path / "trusted_keys").iterdir()
    for path in (tmp_path / "trusted_keys", file):
        os.chown(path, NOBODY, -1)
        refuses_keys(tmp_path, f"{path.name}: what is trusted here belongs to another user")
        os.chown(path, 0, -1)
    os.chown(gate.private, NOBODY, -1)
    with pytest.raises(ConfigError, match="private folder belongs to another user"):
        check_private(gate.private)
    with pytest.raises(ConfigError, match="private folder belongs to another user"):
        gate.roll_back(PLACE, gate.store.current(PLACE).id)


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
def test_a_reader_who_is_another_user_believes_the_owner_of_the_releases_and_nobody_else(tmp_path: Path) -> None:
    """The publisher is user 1001, the reader 1002; a publisher who is 1002 would not believe these keys."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        chain(make_gate(root)).publish()
        for path in [root, *root.rglob("*")]:
            os.chown(path, 1001, -1)
        said = python(_READ, root, 1002, tmp_path / "one")
        read, strict, rows, named = said.stdout.splitlines()
        assert (read, rows) == ("1", str(len(FRAME))), said.stderr
        assert "belongs to another user (uid 1001)" in strict
        assert "belongs to another user (uid 1001)" in named
        os.chown(root / "trusted_keys", 1003, -1)
        assert "uid 1003" in python(_READ, root, 1002, tmp_path / "two").stdout.splitlines()[0]


# What it is


def pipe(path: Path) -> None:
    path.parent.chmod(0o755)
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)


PIPES = ["pointer", "attestation", "table", "trusted", "snapshot", "record", "failure"]


@pytest.mark.parametrize("what", PIPES)
def test_no_pipe_is_waited_for(gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    for name in [name for name in os.environ if name.startswith("PRIVACY_ASSETS_")]:
        monkeypatch.delenv(name)
    part = chain(gate, high=0.05)
    release = part.publish()
    chain(gate, frame=rows(5), high=0.2)
    (trusted,) = (tmp_path / "trusted_keys").iterdir()
    (record,) = gate.private.glob("attempts/*/*/released/[!.]*")
    (failure,) = gate.private.glob("failures/*/*/*/*.json")
    places = {"pointer": release.folder.parents[1] / POINTER, "attestation": release.attestation,
              "table": release.table, "trusted": trusted, "snapshot": part.snapshot.path, "record": record,
              "failure": failure}  # fmt: skip
    received = tmp_path / "received.parquet"
    received.write_bytes(release.table.read_bytes())
    later = chain(gate, frame=rows(7))
    pipe(places[what])
    root = str(gate.releases)
    with at_most(60):
        acts = [lambda: read(gate), lambda: later.publish(), lambda: chain(gate, frame=rows(5))]
        told = 0
        for act in acts:
            try:
                act()
            except (PublicationRefused, ConfigError, InputError) as error:
                told += "regular" in str(error) or "damaged" in str(error) or "cannot be read" in str(error)
        assert told or what == "snapshot"
        for file in (received, release.table):
            assert main(["verify", str(file), "--releases", root]) in (0, 1, 2)
        assert main(["verify", str(received), "--attestation", str(release.attestation), "--releases", root]) in (
            0,
            1,
            2,
        )
        assert main(["releases", "--releases", root]) in (0, 1, 2)
        assert main(["keys", "--releases", root]) in (0, 1)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_only_regular_files_are_opened(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "x")
    with at_most(20), pytest.raises(OSError, match="not a regular file|Is a directory"):
        open_regular(tmp_path / "x")


# What killed writers left

_DIE = """
import os, sys
from pathlib import Path
from privacy_assets.storage.files import create_once, put_atomic
die = lambda *_, **__: os._exit(9)
os.replace = os.link = die
place = Path(sys.argv[1])
create_once(place, b"half") if sys.argv[2] == "once" else put_atomic(place, b"half")
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


_ROTATE = """
import os, sys
from pathlib import Path
from privacy_assets.gate.keys import rotate_key
replace, done = os.replace, []
def dying(source, target):
    done.append(target)
    if len(done) == int(sys.argv[2]):
        os._exit(9)
    replace(source, target)
os.replace = dying
rotate_key(Path(sys.argv[1]) / "private" / "signing.key", Path(sys.argv[1]) / "trusted_keys")
"""


@pytest.mark.parametrize("at", [1, 2], ids=["before the new key is trusted", "before it is in its place"])
@pytest.mark.parametrize("next_writer", ["a run", "a rotation"])
def test_the_unused_key_of_a_killed_rotation_goes_with_its_trust(
    gate: Gate, tmp_path: Path, caplog: pytest.LogCaptureFixture, at: int, next_writer: str
) -> None:
    from privacy_assets.gate.keys import first_key

    before = tree(tmp_path / "trusted_keys")
    assert python(_ROTATE, tmp_path, at).returncode == 9
    assert (tmp_path / "private" / ".signing.key.new").exists()
    assert open_gate(tmp_path).key.signer.public_key.keyid == gate.key.signer.public_key.keyid
    with caplog.at_level(logging.WARNING):
        if next_writer == "a run":
            first_key(gate.key.path, tmp_path / "trusted_keys")
            assert tree(tmp_path / "trusted_keys") == before
        else:
            new = rotate_key(gate.key.path, tmp_path / "trusted_keys")
            assert tree(tmp_path / "trusted_keys").keys() == {*before, f"{new[:16]}.pem"}
    assert {path.name for path in (tmp_path / "private").iterdir()} == {"signing.key", ".keys.lock"}
    assert "removed the unused key of a rotation that was killed" in caplog.text


def test_staging_that_a_killed_publication_left_is_told(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    (PLACE.below(gate.releases) / "staging").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        chain(gate).publish()
    assert "staging" in caplog.text
    assert not (PLACE.below(gate.releases) / "staging").exists()


# A key that is trusted no more


def test_a_revoked_key_counts_no_more_in_a_process_that_goes_on(gate: Gate, tmp_path: Path) -> None:
    release, keys = chain(gate).publish(), gate.key.trusted
    left = chain(gate, frame=rows(1))
    (file,) = (tmp_path / "trusted_keys").iterdir()
    assert release.opened(PLACE, keys).verdict == "pass"
    file.rename(tmp_path / "kept.pem")
    other = make_gate(tmp_path / "other").key.trusted.places[0]
    (next(other.iterdir())).rename(tmp_path / "trusted_keys" / "other.pem")
    for act in (lambda: read(gate), lambda: gate.roll_back(PLACE, release.id), lambda: release.opened(PLACE, keys)):
        with pytest.raises(PublicationRefused, match="not trusted"):
            act()
    with pytest.raises(ConfigError, match="not among the trusted keys"):
        left.publish()
    with pytest.raises(ConfigError, match="not among the trusted keys"):
        gate.take_snapshot(FRAME, PLACE, "t")
    (tmp_path / "kept.pem").rename(file)
    left.publish()
