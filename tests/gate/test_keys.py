"""Keys: an invalid key neither signs nor publishes; the error identifies the key without showing
its content.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from gate_standins import (
    PLACE,
    VARIABLE,
    Chain,
    at_most,
    blocked,
    chain,
    files_of,
    open_gate,
    read,
    rows,
    small_signed_file,
    tree,
)

from privacy_assets.dagster.resources import ReleaseResource
from privacy_assets.errors import ConfigError, InputError, NotTrusted, TableSuspended
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keeper import Keeper
from privacy_assets.gate.keys import SigningKey, TrustedKeys, first_key, rotate_key
from privacy_assets.gate.markers import MARKER, write_marker
from privacy_assets.gate.releases import TRUSTED_VARIABLE, read_published
from privacy_assets.tables.table import Table

PASSWORD = b"a password"


def private_pem(
    key: object = None, password: bytes = b"", form: PrivateFormat = PrivateFormat.PKCS8
) -> bytes:
    lock = BestAvailableEncryption(password) if password else NoEncryption()
    return (key or Ed25519PrivateKey.generate()).private_bytes(Encoding.PEM, form, lock)  # type: ignore[attr-defined]


def public_pem(key: object = None) -> bytes:
    public = (key or Ed25519PrivateKey.generate()).public_key()  # type: ignore[attr-defined]
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 1024)  # quick to create, and never used


def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def written(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def replaced_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


SECRET_FILE = "your own regular file with mode 0600"
NO_KEY = "not an unencrypted private key in PEM form"
BROKEN_SIGNING: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "cannot be read"),
    "empty": (written(b""), NO_KEY),
    "garbage": (written(b"\x00\xffgarbage"), NO_KEY),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:60]), NO_KEY),
    "encrypted": (written(private_pem(password=PASSWORD)), NO_KEY),
    "a public key": (written(public_pem()), NO_KEY),
    "OpenSSH form": (written(private_pem(form=PrivateFormat.OpenSSH)), NO_KEY),
    "RSA": (written(private_pem(rsa_key())), "must be an Ed25519 key"),
    "EC": (written(private_pem(ec_key())), "must be an Ed25519 key"),
    "Ed448": (written(private_pem(ed448.Ed448PrivateKey.generate())), "must be an Ed25519 key"),
    "changed": (written(private_pem()), "not among the trusted keys"),
    "a folder": (replaced_by(lambda path: path.mkdir(0o700)), SECRET_FILE),
    "a link": (linked, "cannot be read"),
    "a pipe": (replaced_by(lambda path: os.mkfifo(path, 0o600)), SECRET_FILE),
    "readable by the group": (lambda path: path.chmod(0o640), SECRET_FILE),
    "readable by others": (lambda path: path.chmod(0o604), SECRET_FILE),
    "writable by the group": (lambda path: path.chmod(0o620), SECRET_FILE),
    "writable by others": (lambda path: path.chmod(0o602), SECRET_FILE),
}


def body(path: Path) -> set[str]:
    """The lines of a PEM file that hold the key."""
    return {
        line
        for line in path.read_text("latin-1").splitlines()
        if len(line) > 20 and "-----" not in line
    }


def refuses_all(
    ready: Chain, root: Path, match: str, culprit: object, *, signs: bool = False
) -> None:
    """Check that the key does not publish, and signs only if ``signs``.

    The error names the key; no file changes, no key is shown.
    """
    before = tree(root)
    secrets = set().union(
        *(body(path) for path in (root / "private").glob("*.key") if path.is_file())
    )
    gate = open_gate(root)
    acts = [
        lambda: small_signed_file(gate),
        lambda: files_of(gate).take_snapshot(Table.read(rows(5)), PLACE, "t"),
        gate.key.check,
    ]
    for act in [lambda: ready.publish(gate=gate), *([] if signs else acts)]:
        with at_most(20), pytest.raises(ConfigError, match=match) as caught:
            act()
        assert str(culprit) in str(caught.value)
        text = "".join(traceback.format_exception(caught.value))
        assert not [line for line in secrets if line in text]
    assert tree(root) == before


@pytest.mark.parametrize(("change", "match"), BROKEN_SIGNING.values(), ids=BROKEN_SIGNING.keys())
def test_a_signing_key_that_is_not_in_order_signs_and_publishes_nothing(
    ready: Chain, tmp_path: Path, change: Callable[[Path], object], match: str
) -> None:
    change(ready.gate.key.path)
    refuses_all(ready, tmp_path, match, ready.gate.key.path)
    with pytest.raises(InputError, match="there is no release"):
        read(ready.gate)


def test_a_signing_key_of_another_user_is_blocked(
    ready: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # not every user can change a file's owner
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    refuses_all(ready, tmp_path, SECRET_FILE, ready.gate.key.path)


BROKEN_TRUSTED: dict[str, tuple[Callable[[Path], object], str]] = {
    "garbage": (written(b"garbage"), "not a public key in PEM form"),
    "empty": (written(b""), "not a public key in PEM form"),
    "a private key": (written(private_pem()), "not a public key in PEM form"),
    "RSA": (written(public_pem(rsa_key())), "must be an Ed25519 public key"),
    "EC": (written(public_pem(ec_key())), "must be an Ed25519 public key"),
    "two keys": (
        lambda path: path.write_bytes(path.read_bytes() + public_pem()),
        "more than one PEM block",
    ),
    "a folder": (replaced_by(Path.mkdir), "regular file|cannot be read"),
    "a pipe": (replaced_by(os.mkfifo), "regular file"),
    "a link to nothing": (replaced_by(lambda path: path.symlink_to("nowhere")), "cannot be read"),
    "writable by every user": (lambda path: path.chmod(0o646), "every user may write"),
}


@pytest.mark.parametrize(("change", "match"), BROKEN_TRUSTED.values(), ids=BROKEN_TRUSTED.keys())
@pytest.mark.parametrize("extra", [False, True], ids=["the only key", "next to a good key"])
def test_a_trusted_key_that_is_not_in_order_stops_everything(
    ready: Chain, tmp_path: Path, change: Callable[[Path], object], match: str, extra: bool
) -> None:
    """Valid keys in the same folder do not help: an invalid key stops everything."""
    (file,) = (tmp_path / "trusted_keys").glob("*.pem")
    if extra:
        file = file.with_name("second.pem")
        file.write_bytes(public_pem())
    change(file)
    refuses_all(ready, tmp_path, match, file)


def test_bypass_60_a_hidden_file_in_the_folder_of_trusted_keys_stops_everything(
    ready: Chain, tmp_path: Path
) -> None:
    """The owner, who lists the folder, does not see this signer."""
    ready.publish()
    file = tmp_path / "trusted_keys" / ".second.pem"
    file.write_bytes(public_pem())
    refuses_all(ready, tmp_path, "must not be a hidden file", file)
    with pytest.raises(ConfigError, match="must not be a hidden file"):
        read(ready.gate)


def test_a_folder_of_trusted_keys_that_everybody_may_write_to_is_blocked(
    ready: Chain, tmp_path: Path
) -> None:
    """A user who can add a file there can add a signer."""
    (tmp_path / "trusted_keys").chmod(0o777)
    refuses_all(ready, tmp_path, "every user may write", tmp_path / "trusted_keys")


def test_without_a_trusted_key_nothing_is_signed_published_or_read(
    ready: Chain, tmp_path: Path
) -> None:
    ready.publish()
    folder = tmp_path / "trusted_keys"
    (file,) = folder.iterdir()
    file = file.rename(file.with_suffix(".txt"))  # files with other names are not trusted keys
    for empty in (lambda: None, file.unlink, folder.rmdir):
        empty()
        refuses_all(ready, tmp_path, "no trusted key", folder)
        with pytest.raises(ConfigError, match="no trusted key"):
            read(ready.gate)


def test_the_key_in_the_environment_goes_before_the_file(
    ready: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, ready.gate.key.path.read_text())
    ready.gate.key.path.unlink()
    ready.publish(gate=open_gate(tmp_path))
    assert len(read(ready.gate)) == 3


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (private_pem(), "not among the trusted keys"),
        (private_pem(rsa_key()), "must be an Ed25519 key"),
        (private_pem(password=PASSWORD), NO_KEY),
        (private_pem()[:-40], NO_KEY),
        (private_pem().replace(b"A", b"\xff", 1), NO_KEY),
        (b"/run/secrets/signing.key", NO_KEY),
        (b" ", NO_KEY),
    ],
    ids=["foreign", "RSA", "encrypted", "cut", "not text", "a path", "white space"],
)
def test_a_wrong_key_in_the_environment_signs_nothing_though_the_file_is_right(
    ready: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bytes, match: str
) -> None:
    monkeypatch.setenv(VARIABLE, os.fsdecode(given))
    # so that the errors are searched for its lines
    (tmp_path / "private" / "given.key").write_bytes(given)
    refuses_all(ready, tmp_path, match, VARIABLE)


# The first pair


@pytest.fixture
def fresh(tmp_path: Path) -> tuple[Path, Path]:
    """Locations of the signing key and the trusted keys of a deployment that has neither."""
    return tmp_path / "new" / "private" / "signing.key", tmp_path / "new" / "trusted_keys"


@pytest.fixture
def first(fresh: tuple[Path, Path]) -> tuple[Path, Path]:
    """The same deployment with a signing key: a first run ended before it wrote the public half."""
    path, trusted = fresh
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_bytes(private_pem())
    path.chmod(0o600)
    return path, trusted


def one_pair(path: Path, trusted: Path) -> str:
    """Id of the only stored pair of keys."""
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    (file,) = trusted.iterdir()
    assert file.stat().st_mode & 0o022 == 0
    assert {name.name for name in path.parent.glob("[!.]*")} == {"signing.key"}
    keyid: str = SigningKey(path, VARIABLE, TrustedKeys((trusted,))).signer.public_key.keyid
    assert file.stem == keyid[:16]
    return keyid


def test_all_that_start_at_once_make_one_pair_and_it_stays(fresh: tuple[Path, Path]) -> None:
    start = Barrier(8)

    def begin(_: int) -> str:
        start.wait()
        first_key(*fresh)
        return one_pair(*fresh)

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(begin, range(8)))
    first_key(*fresh)
    assert found == {one_pair(*fresh)}


def test_no_key_is_made_where_one_was_trusted_before(fresh: tuple[Path, Path]) -> None:
    """Trusted keys without a signing key: it is lost. A marker without trusted keys: the last one
    was revoked.
    """
    path, trusted = fresh
    write_marker(trusted, "trusted_keys", "1" * 32)
    for name in (MARKER, "old.pem"):
        (trusted / "old.pem").write_bytes(public_pem())
        for other in trusted.iterdir():
            if other.name != name:
                other.unlink()
        before = tree(trusted)
        first_key(path, trusted)
        assert not path.exists()
        assert [*tree(trusted)] == [name] and tree(trusted) == before
        write_marker(trusted, "trusted_keys", "1" * 32)


@pytest.mark.parametrize("inside", [(), ("lost+found",), (".snapshot", "empty")])
def test_an_empty_folder_of_trusted_keys_is_that_of_a_first_run(
    tmp_path: Path, inside: tuple[str, ...]
) -> None:
    (tmp_path / "trusted_keys").mkdir()
    for name in inside:
        (tmp_path / "trusted_keys" / name).mkdir()
    resource(tmp_path).gate().key.check()
    assert len([*(tmp_path / "trusted_keys").glob("*.pem")]) == 1


def test_a_first_run_after_the_last_key_was_revoked_makes_no_key(tmp_path: Path) -> None:
    resource(tmp_path).gate()
    for file in (tmp_path / "trusted_keys").glob("*.pem"):
        file.unlink()
    with pytest.raises(ConfigError, match="no trusted key"):
        resource(tmp_path).gate()
    assert not [*(tmp_path / "trusted_keys").glob("*.pem")]


def test_a_signing_key_that_is_there_is_never_replaced(first: tuple[Path, Path]) -> None:
    before = first[0].read_bytes()
    first_key(*first)
    assert first[0].read_bytes() == before
    one_pair(*first)


@pytest.mark.parametrize(
    "name", [name for name in BROKEN_SIGNING if name not in ("missing", "changed")]
)
def test_a_first_signing_key_that_is_not_in_order_gets_no_trust(
    first: tuple[Path, Path], name: str
) -> None:
    (path, trusted), (change, match) = first, BROKEN_SIGNING[name]
    change(path)
    with at_most(20), pytest.raises(ConfigError, match=match) as caught:
        first_key(path, trusted)
    assert str(path) in str(caught.value)
    assert not trusted.exists() or not list(trusted.iterdir())


def test_a_dangling_link_is_not_followed_to_make_a_key(
    first: tuple[Path, Path], tmp_path: Path
) -> None:
    first[0].unlink()
    first[0].symlink_to(tmp_path / "elsewhere.key")
    with pytest.raises(ConfigError, match="cannot be read"):
        first_key(*first)
    assert not (tmp_path / "elsewhere.key").exists()


# The resource: where a first pair may be created


def resource(root: Path, **given: str) -> ReleaseResource:
    return ReleaseResource(releases=str(root / "releases"), private=str(root / "private"), **given)


def test_the_resource_makes_a_first_pair_and_no_other_when_it_is_lost(tmp_path: Path) -> None:
    keyid = resource(tmp_path).gate().key.signer.public_key.keyid
    (file,) = (tmp_path / "trusted_keys").glob("[!.]*")
    assert [*TrustedKeys((file,)).by_id] == [keyid]
    (tmp_path / "private" / "signing.key").unlink()
    with pytest.raises(ConfigError, match=r"signing\.key"):
        resource(tmp_path).gate().key.check()
    assert not (tmp_path / "private" / "signing.key").exists()
    (tmp_path / "private").chmod(0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        resource(tmp_path).gate()


@pytest.mark.parametrize(
    "told", ["signing_key", "trusted_keys", "PRIVACY_ASSETS_SIGNING_KEY", TRUSTED_VARIABLE]
)
def test_no_key_is_made_where_one_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    path = str(tmp_path / "given")
    if told.isupper():
        monkeypatch.setenv(told, path)
    with pytest.raises(ConfigError):
        resource(tmp_path, **({} if told.isupper() else {told: path})).gate().key.check()
    assert not [
        name
        for name in ("private/signing.key", "trusted_keys", "given")
        if (tmp_path / name).exists()
    ]


# Rotation and revocation


def test_after_rotation_old_releases_are_read_and_the_new_key_signs(
    gate: Gate, tmp_path: Path
) -> None:
    old, earlier = gate.key.signer.public_key.keyid, chain(gate).publish()
    new = rotate_key(gate.key.path, gate.key.trusted.paths[0])
    assert new != old
    assert gate.key.path.stat().st_mode & 0o777 == 0o600
    after = open_gate(tmp_path)
    assert len(read(after)) == 3
    later = chain(after, 1).publish()
    assert earlier.opened(PLACE, after.key.trusted).keyid == old
    assert later.opened(PLACE, after.key.trusted).keyid == new == after.key.signer.public_key.keyid
    assert Keeper(after).roll_back(PLACE, earlier.id) == earlier


def test_what_a_removed_key_signed_is_not_read_or_rolled_back_to(
    gate: Gate, tmp_path: Path
) -> None:
    kept, old = gate.key.path.read_bytes(), gate.key.signer.public_key.keyid
    release, left = chain(gate).publish(), chain(gate, 1)
    rotate_key(gate.key.path, gate.key.trusted.paths[0])
    (gate.key.trusted.paths[0] / f"{old[:16]}.pem").unlink()
    after = open_gate(tmp_path)
    for act in (
        lambda: read(after),
        lambda: Keeper(after).roll_back(PLACE, release.id),
        lambda: left.publish(gate=after),
    ):
        with blocked((NotTrusted, TableSuspended)):
            act()
    with blocked(TableSuspended, table="patients"):
        chain(after, 2)
    Keeper(after).accept("patients", "a stranger had the key")
    chain(after, 2).publish()
    assert read(after)["number"].iloc[0] == 2
    left.put_in_force(PLACE, left.policy, left.setup, left.signed_file)
    gate.key.path.write_bytes(kept)  # the old private key does not sign any more
    refuses_all(left, tmp_path, "not among the trusted keys", gate.key.path)


def test_a_revoked_key_counts_no_more_in_a_process_that_goes_on(gate: Gate, tmp_path: Path) -> None:
    release, keys, left = chain(gate).publish(), gate.key.trusted, chain(gate, 1)
    (file,) = (tmp_path / "trusted_keys").iterdir()
    assert release.opened(PLACE, keys).verdict == "pass"
    file.rename(tmp_path / "kept.pem")
    (tmp_path / "trusted_keys" / "other.pem").write_bytes(public_pem())
    for act in (
        lambda: read(gate),
        lambda: Keeper(gate).roll_back(PLACE, release.id),
        lambda: release.opened(PLACE, keys),
    ):
        with blocked((NotTrusted, TableSuspended)):
            act()
    for act in (
        left.publish,
        lambda: files_of(gate).take_snapshot(Table.read(rows(2)), PLACE, "t"),
    ):
        with pytest.raises(ConfigError, match="not among the trusted keys"):
            act()
    (tmp_path / "kept.pem").rename(file)
    left.publish()


def test_a_pair_of_another_tool_works(gate: Gate, tmp_path: Path) -> None:
    """openssl writes PKCS8 and SubjectPublicKeyInfo, too."""
    path = tmp_path / "public"
    path.write_bytes(public_pem(load_pem_private_key(gate.key.path.read_bytes(), password=None)))
    release = chain(gate).publish()
    assert release.opened(PLACE, TrustedKeys((path,))).verdict == "pass"
    assert len(read_published(gate.releases, "patients", trusted_keys=path)) == 3
