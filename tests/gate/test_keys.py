"""Keys: each that is not in order signs and publishes nothing, says which it is, and shows nothing of itself."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

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
from gate_standins import FRAME, PLACE, VARIABLE, Chain, at_most, chain, make_gate, open_gate, read, small_sealed, tree

from privacy_assets.dagster.resources import ReleaseResource
from privacy_assets.errors import ConfigError, InputError, PublicationRefused
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keys import SigningKey, TrustedKeys, first_key, rotate_key
from privacy_assets.gate.releases import TRUSTED_VARIABLE, read_published
from privacy_assets.gate.statements import unseal

PASSWORD = b"a password"


def private_pem(key: object = None, password: bytes = b"", form: PrivateFormat = PrivateFormat.PKCS8) -> bytes:
    lock = BestAvailableEncryption(password) if password else NoEncryption()
    return (key or Ed25519PrivateKey.generate()).private_bytes(Encoding.PEM, form, lock)  # type: ignore[attr-defined]


def public_pem(key: object = None) -> bytes:
    public = (key or Ed25519PrivateKey.generate()).public_key()  # type: ignore[attr-defined]
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 1024)  # quick, and never used


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


def foreign(path: Path) -> None:
    os.chown(path, 65534, -1)


SECRET_FILE = "regular file of your own with mode 0600"
NO_KEY = "no private key in PEM form without a password"
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
if os.getuid() == 0:  # only root can give a file away
    BROKEN_SIGNING["of another user"] = (foreign, SECRET_FILE)


@pytest.fixture
def ready(gate: Gate) -> Chain:
    """Everything signed and judged to pass; only the publication is left."""
    return chain(gate)


def body(path: Path) -> set[str]:
    """The lines of a PEM file that hold the key."""
    return {line for line in path.read_text("latin-1").splitlines() if len(line) > 20 and "-----" not in line}


def refuses_all(ready: Chain, root: Path, match: str, culprit: object, *, signs: bool = False) -> None:
    """Publishes nothing, and signs nothing unless ``signs``; names the culprit, changes no file and shows no key."""
    before = tree(root)
    secrets = set().union(*(body(path) for path in (root / "private").glob("*.key") if path.is_file()))
    gate = open_gate(root)
    acts = [lambda: small_sealed(gate), lambda: gate.take_snapshot(FRAME.iloc[:1], PLACE, "t"), gate.key.check]
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
    with pytest.raises(InputError, match="nothing was published"):
        read(ready.gate)


def test_a_signing_key_of_another_user_is_refused(
    ready: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above without the right to give a file away."""
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    refuses_all(ready, tmp_path, SECRET_FILE, ready.gate.key.path)


def test_the_key_in_order_signs_and_publishes(ready: Chain, tmp_path: Path) -> None:
    assert unseal(small_sealed(open_gate(tmp_path)), ready.gate.key.trusted)
    ready.publish(gate=open_gate(tmp_path))
    assert len(read(ready.gate)) == len(FRAME)


BROKEN_TRUSTED: dict[str, tuple[Callable[[Path], object], str]] = {
    "garbage": (written(b"garbage"), "no public key in PEM form"),
    "empty": (written(b""), "no public key in PEM form"),
    "a private key": (written(private_pem()), "no public key in PEM form"),
    "RSA": (written(public_pem(rsa_key())), "must be an Ed25519 public key"),
    "EC": (written(public_pem(ec_key())), "must be an Ed25519 public key"),
    "a folder": (replaced_by(Path.mkdir), "regular file|cannot be read"),
    "a pipe": (replaced_by(os.mkfifo), "regular file"),
    "a link to nothing": (replaced_by(lambda path: path.symlink_to("nowhere")), "cannot be read"),
    "writable by everybody": (lambda path: path.chmod(0o646), "everybody may write"),
}


@pytest.mark.parametrize(("change", "match"), BROKEN_TRUSTED.values(), ids=BROKEN_TRUSTED.keys())
@pytest.mark.parametrize("extra", [False, True], ids=["the only key", "beside a good key"])
def test_a_trusted_key_that_is_not_in_order_stops_everything(
    ready: Chain, tmp_path: Path, change: Callable[[Path], object], match: str, extra: bool
) -> None:
    """Also beside good ones: a key that cannot be judged is no reason to go on with the others."""
    (file,) = (tmp_path / "trusted_keys").glob("*.pem")
    if extra:
        file = file.with_name("second.pem")
        file.write_bytes(public_pem())
    change(file)
    refuses_all(ready, tmp_path, match, file)


def test_a_folder_of_trusted_keys_that_everybody_may_write_to_is_refused(ready: Chain, tmp_path: Path) -> None:
    """Who can add a file there can add a signer."""
    (tmp_path / "trusted_keys").chmod(0o777)
    refuses_all(ready, tmp_path, "everybody may write", tmp_path / "trusted_keys")


@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_without_a_trusted_key_nothing_is_signed_published_or_read(ready: Chain, tmp_path: Path, folder: str) -> None:
    ready.publish()
    for file in (tmp_path / "trusted_keys").iterdir():
        file.unlink()
    if folder == "missing":
        (tmp_path / "trusted_keys").rmdir()
    refuses_all(ready, tmp_path, "no trusted key", tmp_path / "trusted_keys")
    with pytest.raises(ConfigError, match="no trusted key"):
        read(ready.gate)


def test_files_of_other_names_are_no_trusted_keys(ready: Chain, tmp_path: Path) -> None:
    (file,) = (tmp_path / "trusted_keys").glob("*.pem")
    file.rename(file.with_suffix(".txt"))
    refuses_all(ready, tmp_path, "no trusted key", tmp_path / "trusted_keys")


def test_the_key_in_the_environment_goes_before_the_file(
    ready: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, ready.gate.key.path.read_text())
    ready.gate.key.path.unlink()
    ready.publish(gate=open_gate(tmp_path))
    assert len(read(ready.gate)) == len(FRAME)


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
    (tmp_path / "private" / "given.key").write_bytes(given)  # so that its lines are looked for in the errors
    refuses_all(ready, tmp_path, match, VARIABLE)


# The first pair


def fresh(root: Path) -> tuple[Path, Path]:
    return root / "new" / "private" / "signing.key", root / "new" / "trusted_keys"


def one_pair(path: Path, trusted: Path) -> str:
    """The id of the only pair of keys that lies there."""
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    (file,) = trusted.iterdir()
    assert file.stat().st_mode & 0o022 == 0
    assert {name.name for name in path.parent.iterdir()} == {"signing.key", ".keys.lock"}
    keyid: str = SigningKey(path, VARIABLE, TrustedKeys((trusted,))).signer.public_key.keyid
    assert file.stem == keyid[:16]
    return keyid


def test_a_first_pair_is_made_once(tmp_path: Path) -> None:
    path, trusted = fresh(tmp_path)
    first_key(path, trusted)
    keyid = one_pair(path, trusted)
    first_key(path, trusted)
    assert one_pair(path, trusted) == keyid


def test_threads_that_start_at_once_make_one_pair(tmp_path: Path) -> None:
    path, trusted = fresh(tmp_path)
    start, found = threading.Barrier(8), []

    def begin() -> None:
        start.wait()
        first_key(path, trusted)
        found.append(SigningKey(path, VARIABLE, TrustedKeys((trusted,))).signer.public_key.keyid)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [one_pair(path, trusted)] * 8


BEGIN = """
import sys
from pathlib import Path
from privacy_assets.gate.keys import SigningKey, TrustedKeys, first_key
path, trusted = map(Path, sys.argv[1:])
import cryptography.hazmat.primitives.asymmetric.ed25519, securesystemslib.signer
print("ready", flush=True)
sys.stdin.readline()
first_key(path, trusted)
print(SigningKey(path, "", TrustedKeys((trusted,))).signer.public_key.keyid)
"""


def test_processes_that_start_at_once_make_one_pair(tmp_path: Path) -> None:
    path, trusted = fresh(tmp_path)
    command = [sys.executable, "-c", BEGIN, str(path), str(trusted)]
    started = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        for _ in range(3)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    found = [process.communicate(timeout=60)[0].strip() for process in started]
    assert found == [one_pair(path, trusted)] * 3


def test_no_key_is_made_where_one_is_trusted_already(tmp_path: Path) -> None:
    """A deployment with trusted keys and no signing key lost it."""
    path, trusted = fresh(tmp_path)
    trusted.mkdir(parents=True)
    (trusted / "old.pem").write_bytes(public_pem())
    before = tree(trusted)
    first_key(path, trusted)
    assert not path.exists()
    assert tree(trusted) == before


def test_a_key_that_lost_its_trust_does_not_get_it_back(tmp_path: Path) -> None:
    """Taking the last public key out of the folder revokes it; the next run must not put it back."""
    path, trusted = fresh(tmp_path)
    first_key(path, trusted)
    for file in trusted.iterdir():
        file.unlink()
    first_key(path, trusted)
    assert list(trusted.iterdir()) == []


def test_a_signing_key_that_is_there_is_never_replaced(tmp_path: Path) -> None:
    path, trusted = fresh(tmp_path)
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_bytes(private_pem())
    path.chmod(0o600)
    before = path.read_bytes()
    first_key(path, trusted)  # a crash after the signing key and before its public half
    assert path.read_bytes() == before
    one_pair(path, trusted)


BROKEN_FIRST = {name: case for name, case in BROKEN_SIGNING.items() if name not in ("missing", "changed")}


@pytest.mark.parametrize(("change", "match"), BROKEN_FIRST.values(), ids=BROKEN_FIRST.keys())
def test_a_first_signing_key_that_is_not_in_order_gets_no_trust(
    tmp_path: Path, change: Callable[[Path], object], match: str
) -> None:
    path, trusted = fresh(tmp_path)
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_bytes(private_pem())
    path.chmod(0o600)
    change(path)
    with at_most(20), pytest.raises(ConfigError, match=match) as caught:
        first_key(path, trusted)
    assert str(path) in str(caught.value)
    assert not trusted.exists() or not list(trusted.iterdir())


def test_a_dangling_link_is_not_followed_to_make_a_key(tmp_path: Path) -> None:
    path, trusted = fresh(tmp_path)
    path.parent.mkdir(parents=True, mode=0o700)
    path.symlink_to(tmp_path / "elsewhere.key")
    with pytest.raises(ConfigError, match="cannot be read"):
        first_key(path, trusted)
    assert not (tmp_path / "elsewhere.key").exists()


# The resource: where a first pair may be made at all


def test_the_resource_makes_a_first_pair_only_when_nothing_was_constatisticd(tmp_path: Path) -> None:
    found = ReleaseResource(root=str(tmp_path / "releases"), private=str(tmp_path / "private")).gate()
    assert one_pair_of(tmp_path) == found.key.signer.public_key.keyid


def one_pair_of(root: Path) -> str:
    (file,) = (root / "trusted_keys").iterdir()
    (keyid,) = TrustedKeys((file,)).by_id
    return keyid


@pytest.mark.parametrize("configured", ["signing_key", "trusted_keys", "signing variable", "trusted variable"])
def test_no_key_is_made_where_one_was_constatisticd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: str
) -> None:
    path, given = tmp_path / "given", {}
    if "variable" in configured:
        name = TRUSTED_VARIABLE if configured == "trusted variable" else "PRIVACY_ASSETS_SIGNING_KEY"
        monkeypatch.setenv(name, str(path))
    else:
        given = {configured: str(path)}
    resource = ReleaseResource(root=str(tmp_path / "releases"), private=str(tmp_path / "private"), **given)
    with pytest.raises(ConfigError):
        resource.gate().key.check()
    assert not (tmp_path / "private" / "signing.key").exists()
    assert not (tmp_path / "trusted_keys").exists()
    assert not path.exists()


def test_a_lost_signing_key_is_not_made_anew_by_the_resource(tmp_path: Path) -> None:
    resource = ReleaseResource(root=str(tmp_path / "releases"), private=str(tmp_path / "private"))
    resource.gate()
    (tmp_path / "private" / "signing.key").unlink()
    with pytest.raises(ConfigError, match=r"signing\.key"):
        resource.gate().key.check()
    assert not (tmp_path / "private" / "signing.key").exists()


def test_a_private_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        ReleaseResource(root=str(tmp_path / "releases"), private=str(tmp_path / "private")).gate()


# Rotation


def test_after_rotation_old_releases_are_read_and_the_new_key_signs(gate: Gate, tmp_path: Path) -> None:
    trusted, old = gate.key.trusted.places[0], gate.key.signer.public_key.keyid
    first = chain(gate).publish()
    new = rotate_key(gate.key.path, trusted)
    assert new != old
    assert gate.key.path.stat().st_mode & 0o777 == 0o600
    assert {file.name for file in gate.key.path.parent.iterdir()} == {
        "signing.key",
        ".keys.lock",
        "snapshots",
        "attempts",
    }
    after = make_gate(tmp_path)
    assert len(read(after)) == len(FRAME)
    second = chain(after, frame=FRAME.iloc[:2]).publish()
    assert first.opened(PLACE, after.key.trusted).keyid == old
    assert second.opened(PLACE, after.key.trusted).keyid == new == after.key.signer.public_key.keyid
    assert after.roll_back(PLACE, first.id) == first


def test_what_a_removed_key_signed_is_not_read_or_rolled_back_to(gate: Gate, tmp_path: Path) -> None:
    trusted, old = gate.key.trusted.places[0], gate.key.signer.public_key.keyid
    first, left = chain(gate).publish(), chain(gate, frame=FRAME.iloc[:1])
    rotate_key(gate.key.path, trusted)
    (trusted / f"{old[:16]}.pem").unlink()
    after = open_gate(tmp_path)
    for act in (lambda: read(after), lambda: after.roll_back(PLACE, first.id), lambda: left.publish(gate=after)):
        with pytest.raises(PublicationRefused, match="which is not trusted"):
            act()
    chain(after, frame=FRAME.iloc[:2]).publish()
    assert len(read(after)) == 2


def test_the_old_private_key_signs_no_more_once_its_public_half_is_removed(gate: Gate, tmp_path: Path) -> None:
    kept, old = gate.key.path.read_bytes(), gate.key.signer.public_key.keyid
    ready = chain(gate)
    rotate_key(gate.key.path, gate.key.trusted.places[0])
    (gate.key.trusted.places[0] / f"{old[:16]}.pem").unlink()
    gate.key.path.write_bytes(kept)
    refuses_all(ready, tmp_path, "not among the trusted keys", gate.key.path)


@pytest.mark.parametrize("step", [1, 2])
def test_a_rotation_that_ends_early_leaves_a_deployment_that_signs(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Stopped before the first file is in its place, or between the two."""
    old, replace, done = gate.key.signer.public_key.keyid, os.replace, []

    def stopping(source: Path, target: Path) -> None:
        done.append(target)
        if len(done) == step:
            raise OSError("stopped")
        replace(source, target)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="stopped"):
        patched.setattr(os, "replace", stopping)
        rotate_key(gate.key.path, gate.key.trusted.places[0])
    assert open_gate(tmp_path).key.signer.public_key.keyid == old
    assert rotate_key(gate.key.path, gate.key.trusted.places[0]) == open_gate(tmp_path).key.signer.public_key.keyid


def test_a_pair_of_another_tool_works(tmp_path: Path) -> None:
    """PKCS8 and SubjectPublicKeyInfo are what openssl writes."""
    gate = make_gate(tmp_path / "one")
    key = load_pem_private_key(gate.key.path.read_bytes(), password=None)
    path = tmp_path / "public"
    path.write_bytes(public_pem(key))
    release = chain(gate).publish()
    assert release.opened(PLACE, TrustedKeys((path,))).verdict == "pass"
    assert len(read_published(gate.releases, "patients", trusted_keys=path)) == len(FRAME)
