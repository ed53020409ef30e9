"""Keys: the one that signs here, and the public ones that are trusted. Ed25519 only."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privacy_assets.errors import ConfigError
from privacy_assets.storage.files import (
    check_kept,
    create_once,
    locked,
    make_folder,
    private_folder,
    put_atomic,
    read_regular,
    read_secret,
    sweep,
)
from privacy_assets.storage.objects import Location, location

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

SIGNING_KEY, SIGNING_VARIABLE = "signing.key", "PRIVACY_ASSETS_SIGNING_KEY"
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrustedKeys:
    """Public keys whose signatures count: a folder of ``*.pem`` files, or single files.

    Read at each use: a key whose file was removed counts no more, also in a process that goes on. ConfigError, naming
    the place, when it holds none, when one is no Ed25519 public key, or when anybody but the own user and root can
    change it: a key that cannot be judged is no reason to go on with the others. ``publisher`` is the uid of one more
    whose keys are believed, for who only reads.
    """

    places: tuple[Path, ...]
    publisher: int | None = None

    @property
    def by_id(self) -> dict[str, SSlibKey]:
        """The keys by key id; the id is computed from the key, whatever its file is called."""
        keys = [_public_key(file) for place in self.places for file in _some(place, self.publisher)]
        return {key.keyid: key for key in keys}


@dataclass(frozen=True)
class SigningKey:
    """The private key of this deployment: PEM text in the environment variable ``variable``, else the file ``path``.

    It signs only as long as its own id is among the ``trusted`` keys: a flipped bit can load as another key.
    """

    path: Path | None
    variable: str
    trusted: TrustedKeys

    @property
    def signer(self) -> CryptoSigner:
        """What signs; ConfigError when the key is missing, unreadable, open to others, foreign or not trusted."""
        from securesystemslib.signer import CryptoSigner, SSlibKey

        private = self._load()
        public = SSlibKey.from_crypto(private.public_key())
        if public.keyid not in self.trusted.by_id:
            raise ConfigError(
                f"{self._where}: the signing key {public.keyid[:12]} is not among the trusted keys. Fix: bring the key"
                " of this deployment back, or add its public half to the trusted keys."
            )
        return CryptoSigner(private, public)

    def check(self) -> None:
        """ConfigError unless the key is in order: with a lost or a foreign one nothing is done."""
        _ = self.signer

    @property
    def _where(self) -> str:
        return self.variable if os.environ.get(self.variable) else str(self.path)

    def _load(self) -> Any:
        given = os.fsencode(os.environ.get(self.variable, ""))
        if not given and self.path is None:
            raise ConfigError(f"{self.variable}: no signing key. Fix: set it; a key never lies in an object store.")
        lost = "bring the signing key back, or make a new one: privacy-assets keys --new"
        return _private_key(given or (read_secret(self.path, fix=lost) if self.path else b""), self._where)


def key_path(given: str | Path) -> Path:
    """A path to keys on this machine; ConfigError for a URL, or what may have been meant as one."""
    found = location(str(given))
    if not isinstance(found, Path):
        raise ConfigError(f"{found}: keys are read from this machine alone. Fix: give a folder or file.")
    return found


def key_file(private: Location) -> Path | None:
    """Where the signing key lies in the private folder; nowhere in an object store."""
    return private / SIGNING_KEY if isinstance(private, Path) else None


def first_key(path: Path, trusted: Path) -> None:
    """Make the first signing key and its trusted public half, unless the folder of trusted keys is there.

    A deployment that has that folder but no signing key, or no key in it, lost them: nothing is made in their place. A
    signing key without that folder is that of a first run that was killed.
    """
    with _alone(path, trusted):
        # An empty folder is no fresh start: whoever took the last key out of it no longer trusts it.
        if trusted.exists():
            return
        if not path.exists():
            create_once(path, _new_private_pem())
        _trust(path, trusted)


def rotate_key(path: Path, trusted: Path) -> str:
    """Replace the signing key by a new one; the old public key stays trusted. Returns the new key's id.

    The old private key is gone. To distrust what it signed, remove its file from the trusted keys.
    """
    with _alone(path, trusted):
        draft = _unused(path)
        create_once(draft, _new_private_pem())
        # Trusted first: a crash in between leaves a deployment that still signs with the old key.
        name = _trust(draft, trusted)
        os.replace(draft, path)
    return name


@contextmanager
def _alone(path: Path, trusted: Path) -> Iterator[None]:
    """Make the private folder and lock its keys; the new key of a rotation that was killed goes, and its trust."""
    make_folder(path.parent.parent, 0o755)
    with locked(private_folder(path.parent) / ".keys.lock"):
        sweep(path.parent)
        sweep(trusted)
        draft = _unused(path)
        if os.path.lexists(draft):
            with suppress(ConfigError):  # else its public half was never made
                (trusted / f"{_public(draft)[0][:16]}.pem").unlink(missing_ok=True)
            draft.unlink()
            _LOGGER.warning("%s: removed the unused key of a rotation that was killed", draft)
        yield


def _unused(path: Path) -> Path:
    """Where a new key lies before it takes the place of the old one; it has signed nothing."""
    return path.with_name(f".{path.name}.new")


def _trust(private: Path, trusted: Path) -> str:
    """Place the public half of a private key among the trusted keys."""
    keyid, pem = _public(private)
    make_folder(trusted, 0o755)  # whatever the umask: who can add a file adds a signer
    put_atomic(trusted / f"{keyid[:16]}.pem", pem, mode=0o644)
    return keyid


def _public(private: Path) -> tuple[str, bytes]:
    """Id and PEM of the public half of a private key."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from securesystemslib.signer import SSlibKey

    public = _private_key(read_secret(private), str(private)).public_key()
    pem: bytes = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return SSlibKey.from_crypto(public).keyid, pem


def _new_private_pem() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _private_key(pem: bytes, where: str) -> Any:
    """The Ed25519 key in ``pem``; ConfigError, which names ``where`` and never the key, for anything else."""
    from cryptography.exceptions import InternalError, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm, InternalError):
        raise ConfigError(f"{where}: no private key in PEM form without a password.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{where}: the signing key must be an Ed25519 key.")
    return key


def key_files(place: Path) -> list[Path]:
    """The key files of a folder, or the one file; nothing when it is not there."""
    return sorted(place.glob("*.pem")) if place.is_dir() else [place] if place.exists() else []


def _some(place: Path, publisher: int | None) -> list[Path]:
    files = key_files(place)
    if not files:
        raise ConfigError(f"no trusted key in {place}: give the public key (PEM) of the publisher, who brings it back.")
    try:
        for path in dict.fromkeys([place, *files]):  # who can add a file to the folder can add a signer
            check_kept(path, publisher)
    except OSError as error:
        raise ConfigError(f"{error.filename}: the trusted key cannot be read ({error.strerror}).") from None
    return files


def _public_key(file: Path) -> SSlibKey:
    from cryptography.exceptions import InternalError, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    try:
        key = load_pem_public_key(read_regular(file))
    except OSError as error:
        raise ConfigError(f"{file}: the trusted key cannot be read ({error.strerror}).") from None
    except (ValueError, UnsupportedAlgorithm, InternalError):
        raise ConfigError(f"{file}: no public key in PEM form.") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{file}: a trusted key must be an Ed25519 public key.")
    return SSlibKey.from_crypto(key)
