"""Keys: the one that signs here, and the public ones that are trusted. Ed25519 only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privacy_assets.errors import ConfigError
from privacy_assets.files import create_once, locked, private_folder, put_atomic, read_secret
from privacy_assets.objects import Location, location

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

SIGNING_KEY, SIGNING_VARIABLE = "signing.key", "PRIVACY_ASSETS_SIGNING_KEY"
_WORLD_WRITABLE = 0o002


@dataclass(frozen=True)
class TrustedKeys:
    """Public keys whose signatures count: a folder of ``*.pem`` files, or single files.

    Read on first use. ConfigError, naming the place, when it holds none, when one is no Ed25519 public key, or when
    everybody may write to it: a key that cannot be judged is no reason to go on with the others.
    """

    places: tuple[Path, ...]

    @cached_property
    def by_id(self) -> dict[str, SSlibKey]:
        """The keys by key id; the id is computed from the key, whatever its file is called."""
        keys = [_public_key(file) for place in self.places for file in _some(place)]
        return {key.keyid: key for key in keys}


@dataclass(frozen=True)
class SigningKey:
    """The private key of this deployment: PEM text in the environment variable ``variable``, else the file ``path``.

    It signs only when its own id is among the ``trusted`` keys: a flipped bit can load as another key.
    """

    path: Path | None
    variable: str
    trusted: TrustedKeys

    @cached_property
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
    private_folder(path.parent)
    with locked(path.parent / ".keys.lock"):
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
    private_folder(path.parent)
    with locked(path.parent / ".keys.lock"):
        draft = path.with_name(f".{path.name}.new")
        draft.unlink(missing_ok=True)
        create_once(draft, _new_private_pem())
        # Trusted first: a crash in between leaves a deployment that still signs with the old key.
        name = _trust(draft, trusted)
        os.replace(draft, path)
    return name


def _trust(private: Path, trusted: Path) -> str:
    """Place the public half of a private key among the trusted keys."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from securesystemslib.signer import SSlibKey

    public = _private_key(read_secret(private), str(private)).public_key()
    keyid = SSlibKey.from_crypto(public).keyid
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    trusted.mkdir(mode=0o755, parents=True, exist_ok=True)  # whatever the umask: who can add a file adds a signer
    put_atomic(trusted / f"{keyid[:16]}.pem", pem, mode=0o644)
    return keyid


def _new_private_pem() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _closed(place: Path) -> None:
    if place.stat().st_mode & _WORLD_WRITABLE:
        raise ConfigError(f"{place}: everybody may write to what is trusted here. Fix: chmod o-w.")


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


def _some(place: Path) -> list[Path]:
    files = key_files(place)
    if not files:
        raise ConfigError(f"no trusted key in {place}: give the public key (PEM) of the publisher, who brings it back.")
    if place.is_dir():
        _closed(place)  # who can add a file there can add a signer
    return files


def _public_key(file: Path) -> SSlibKey:
    from cryptography.exceptions import InternalError, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    try:
        _closed(file)
        if not file.is_file():  # to read a pipe would wait for ever
            raise ConfigError(f"{file}: a trusted key must be a regular file.")
        key = load_pem_public_key(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file}: the trusted key cannot be read ({error.strerror}).") from None
    except (ValueError, UnsupportedAlgorithm, InternalError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{file}: no public key in PEM form.") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{file}: a trusted key must be an Ed25519 public key.")
    return SSlibKey.from_crypto(key)
