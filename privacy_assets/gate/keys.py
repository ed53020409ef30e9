"""Signing key of a deployment and trusted public keys, all Ed25519."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privacy_assets.errors import ConfigError
from privacy_assets.gate.markers import is_unused
from privacy_assets.infra import folders
from privacy_assets.infra.files import (
    check_kept,
    make_folder,
    private_folder,
    read_key,
    read_regular,
)
from privacy_assets.infra.folders import Folder
from privacy_assets.infra.objects import Location, location
from privacy_assets.infra.storage import local_path

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

SIGNING_KEY = "signing.key"
SIGNING_VARIABLE = "PRIVACY_ASSETS_SIGNING_KEY"
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrustedKeys:
    """Public keys whose signatures are accepted.

    Keys are read at each use, so a key is no longer accepted after its file is removed, even in a
    running process.

    Attributes:
        paths: Folders of ``*.pem`` files, or single files.
        publisher: User id of another owner whose keys are accepted, for reading releases. None:
            only the current user and root.

    Raises:
        ConfigError: On use, if a place has no key, a file is hidden or is not one Ed25519 public
            key, or another user can change one. A single invalid key is an error even if other keys
            are valid.
    """

    paths: tuple[Path, ...]
    publisher: int | None = None

    @property
    def by_id(self) -> dict[str, SSlibKey]:
        """Keys by key id. The id is computed from the key, not from the file name."""
        keys = {}
        for path in self.paths:
            for file in _trusted_files(path, self.publisher):
                key = _public_key(file)
                keys[key.keyid] = key
        return keys


@dataclass(frozen=True)
class SigningKey:
    """Private key of a deployment.

    It signs only while its own id is among the trusted keys, because a flipped bit can load as
    another valid key.

    Attributes:
        path: File of the key, used if the variable is not set.
        variable: Environment variable with the key as PEM text.
        trusted: Trusted public keys.
    """

    path: Path | None
    variable: str
    trusted: TrustedKeys

    @property
    def signer(self) -> CryptoSigner:
        """Signer.

        Raises:
            ConfigError: If the key is missing, unreadable, accessible to other users, owned by
                another user, or not trusted.
        """
        from securesystemslib.signer import CryptoSigner, SSlibKey

        private = self._load()
        public = SSlibKey.from_crypto(private.public_key())
        if public.keyid not in self.trusted.by_id:
            raise ConfigError(
                f"{self._where}: the signing key {public.keyid[:12]} is not among the trusted"
                " keys. Fix: restore"
                " the key of this deployment, or add its public key to the trusted keys."
            )
        return CryptoSigner(private, public)

    def check(self) -> None:
        """Raise ConfigError unless the key can be used for signing."""
        _ = self.signer

    @property
    def _where(self) -> str:
        return self.variable if os.environ.get(self.variable) else str(self.path)

    def _load(self) -> Any:
        pem = os.fsencode(os.environ.get(self.variable, ""))
        if pem:
            return _private_key(pem, self._where)
        if self.path is None:
            raise ConfigError(
                f"{self.variable}: the signing key is not set. Fix: set this environment"
                " variable; object stores cannot hold keys."
            )
        fix = "restore the signing key, or create a new one: privacy-assets keys --new"
        return _private_key(read_key(self.path, fix=fix), self._where)


def key_path(path: str | Path) -> Path:
    """Return a local path of keys.

    Args:
        path: Path of a folder or file.

    Raises:
        ConfigError: If it is a URL, or a mistyped one.
    """
    key_location = location(str(path))
    local = local_path(key_location)
    if local is None:
        raise ConfigError(
            f"{key_location}: keys are read from this machine only. Fix: pass a folder or file."
        )
    return local


def key_file(private: Location) -> Path | None:
    """Return the path of the signing key in the private folder, or None in an object store.

    Args:
        private: Private folder.
    """
    folder = local_path(private)
    return None if folder is None else folder / SIGNING_KEY


def first_key(path: Path, trusted: Path) -> None:
    """Create the first signing key and its trusted public key, unless the folder of trusted keys
    was used before.

    A folder with a file or a marker was used before. If such a folder has no public key, or there
    is no signing key, the deployment has lost its keys, and no key is created. A signing key
    without such a folder was left by an interrupted first run.

    Args:
        path: File of the signing key.
        trusted: Folder of the trusted keys.
    """
    with _locked_folder(path, trusted) as private:
        # The marker remains in a folder whose last key was removed: that key is no longer trusted.
        if is_unused(trusted, "trusted_keys"):
            if not path.exists():
                folders.create(private, path.name, _new_private_pem())
            _trust(path, trusted)


def rotate_key(path: Path, trusted: Path) -> str:
    """Replace the signing key by a new one, and return the id of the new key.

    The old private key is deleted. The old public key stays trusted until its file is removed from
    the trusted keys.

    Args:
        path: File of the signing key.
        trusted: Folder of the trusted keys.
    """
    with _locked_folder(path, trusted) as private:
        draft = _draft(path)
        folders.create(private, draft.name, _new_private_pem())
        # Trusted first: after a crash in between, the deployment still signs with the old key.
        keyid = _trust(draft, trusted)
        folders.rename(private, draft.name, path.name)
    return keyid


@contextmanager
def _locked_folder(path: Path, trusted: Path) -> Iterator[Folder]:
    """Create, open and lock the private folder, and remove the new key of an interrupted
    rotation.
    """
    make_folder(path.parent.parent, 0o755)
    with (
        folders.opened(private_folder(path.parent)) as private,
        folders.locked(private, ".keys.lock"),
    ):
        folders.sweep(private)
        draft = _draft(path)
        is_interrupted = os.path.lexists(draft)
        with suppress(FileNotFoundError), folders.opened(trusted.parent, trusted.name) as public:
            folders.sweep(public)
            if is_interrupted:
                with suppress(ConfigError):  # its public key was never written
                    keyid, _ = _public(draft)
                    folders.unlink(public, _file_name(keyid))
        folders.unlink(private, draft.name)
        if is_interrupted:
            _LOGGER.warning("%s: removed the unused key of a rotation that was killed", draft)
        yield private


def _draft(path: Path) -> Path:
    """Return the path of a new key before it replaces the old one. It has signed nothing."""
    return path.with_name(f".{path.name}.new")


def _trust(private: Path, trusted: Path) -> str:
    """Add the public key of a private key to the trusted keys, and return its id."""
    keyid, pem = _public(private)
    # Independent of the umask, because write access to this folder allows adding signers.
    with folders.opened(make_folder(trusted.parent, 0o755), trusted.name, mode=0o755) as public:
        folders.put(public, _file_name(keyid), pem, 0o644)
    return keyid


def _file_name(keyid: str) -> str:
    return f"{keyid[:16]}.pem"


def _public(private: Path) -> tuple[str, bytes]:
    """Return id and PEM of the public key of a private key."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from securesystemslib.signer import SSlibKey

    public = _private_key(read_key(private), str(private)).public_key()
    pem: bytes = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return SSlibKey.from_crypto(public).keyid, pem


def _new_private_pem() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )


def _private_key(pem: bytes, where: str) -> Any:
    """Load an Ed25519 private key, or raise ConfigError, which names ``where`` and never the
    key.
    """
    from cryptography.exceptions import InternalError, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm, InternalError):
        raise ConfigError(
            f"{where}: this is not an unencrypted private key in PEM form. Fix: restore the key."
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            f"{where}: the signing key must be an Ed25519 key. Fix: create one: privacy-assets"
            " keys --new."
        )
    return key


def key_files(path: Path) -> list[Path]:
    """Return the key files of a folder, or the single file, or an empty list if the path does not
    exist.

    Args:
        path: Folder or file.
    """
    if path.is_dir():
        return sorted(path.glob("*.pem"))
    if path.exists():
        return [path]
    return []


def _trusted_files(path: Path, publisher: int | None) -> list[Path]:
    """Return the key files of a folder or file, which no other user can change.

    Args:
        path: Folder or file.
        publisher: See :class:`TrustedKeys`.
    """
    files = key_files(path)
    if not files:
        fix = (
            "add the publisher's public key (PEM); a new deployment creates its keys with"
            " `privacy-assets keys --new`"
        )
        raise ConfigError(f"no trusted key in {path}. Fix: {fix}.")
    try:
        # write access to the folder allows adding signers
        for checked_path in dict.fromkeys([path, *files]):
            check_kept(checked_path, publisher)
    except OSError as error:
        raise ConfigError(
            f"{error.filename}: the trusted key cannot be read ({error.strerror})."
        ) from None
    return files


def _public_key(file: Path) -> SSlibKey:
    from cryptography.exceptions import InternalError, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    if file.name.startswith("."):
        fix = "rename or remove this file"
        raise ConfigError(f"{file}: a trusted key must not be a hidden file. Fix: {fix}.")
    try:
        pem = read_regular(file)
        key = load_pem_public_key(pem)
    except OSError as error:
        raise ConfigError(
            f"{file}: the trusted key cannot be read ({error.strerror}). Fix: grant read"
            " permission."
        ) from None
    except (ValueError, UnsupportedAlgorithm, InternalError):
        raise ConfigError(
            f"{file}: this is not a public key in PEM form. Fix: replace or remove this file."
        ) from None
    if pem.count(b"-----BEGIN ") > 1:  # only the first key would be read
        fix = "write each key to a file of its own"
        raise ConfigError(f"{file}: there is more than one PEM block. Fix: {fix}.")
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(
            f"{file}: a trusted key must be an Ed25519 public key. Fix: replace or remove"
            " this file."
        )
    return SSlibKey.from_crypto(key)
