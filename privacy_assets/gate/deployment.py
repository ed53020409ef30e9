"""Deployments: settings, folders, keys of the gate, and the split key."""

from __future__ import annotations

import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from privacy_assets.errors import ConfigError, StoreUnavailable
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keys import (
    SIGNING_KEY,
    SIGNING_VARIABLE,
    SigningKey,
    TrustedKeys,
    first_key,
    key_file,
    key_path,
)
from privacy_assets.gate.markers import (
    FolderRole,
    check_deployment,
    check_marker,
    entries,
    is_unused,
    mark_deployment,
    write_marker,
)
from privacy_assets.gate.releases import TRUSTED_VARIABLE, ReleaseStore, default_trusted
from privacy_assets.infra.files import create_once, fix_of, private_folder, read_key, reason
from privacy_assets.infra.objects import (
    PRIVATE_VARIABLE,
    RELEASES_VARIABLE,
    Location,
    check_no_credentials,
    location,
    path_text,
)
from privacy_assets.infra.settings import problem
from privacy_assets.infra.storage import local_path, storage_of
from privacy_assets.tables.fingerprints import derive_key, keyed_fingerprint

SPLIT_KEY_VARIABLE = "PRIVACY_ASSETS_SPLIT_KEY"
SPLIT_KEY = "split.key"
SPLIT_KEY_CHECK = "split.check"
_MIN_BYTES = 16  # of a split key
# possible content of the private folder before the first signed file
_UNUSED = {SPLIT_KEY, SIGNING_KEY}
_LOST = (
    "Without the split key, every split changes, and rows that failed or were released are not"
    " recognized. Fix:"
    " restore it from a backup. If there is none, start with an empty private folder and a new"
    " release folder."
)
_VARIABLES = {"releases": RELEASES_VARIABLE, "private": PRIVATE_VARIABLE}


def _folder(path: object) -> object:
    """Convert a path to its text. Other strings, such as Dagster's environment variables, keep
    their class.
    """
    if path is None:
        return None
    text = path_text(path)
    check_no_credentials(text)
    if isinstance(path, str):
        return path
    return text


Folder = Annotated[str | None, BeforeValidator(_folder)]  # path or URL; None: not set


class DeploymentSettings(BaseModel):
    """Settings of a deployment: its folders, its keys, and its split key.

    Values are paths, URLs and names, never keys, because user interfaces display them.

    Attributes:
        home: Folder with ``releases``, ``private`` and ``trusted_keys``. None: they are set
            separately.
        releases: Release folder or its URL (``s3://bucket/releases``). None: ``releases`` in
            ``home``, otherwise PRIVACY_ASSETS_RELEASES.
        private: The gate's private folder or its URL, with unpublished snapshots, failed verdicts,
            signing key and split key. No other user may have access. None: ``private`` in ``home``,
            otherwise PRIVACY_ASSETS_PRIVATE, otherwise ``private`` next to the releases.
        trusted_keys: Folder of trusted public keys (PEM), or one key. None:
            PRIVACY_ASSETS_TRUSTED_KEYS, otherwise ``trusted_keys`` in ``home`` or next to the
            releases.
        signing_key: File of the signing key (Ed25519, PEM). None: ``signing.key`` in the private
            folder.
        signing_key_variable: Environment variable of the signing key (PEM), which overrides the
            file.
        split_key_variable: Environment variable of the split key. If it is unset, the split key is
            ``split.key`` in the private folder.

    Raises:
        ConfigError: If a setting is unknown or has the wrong type.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Folder = None
    releases: Folder = None
    private: Folder = None
    trusted_keys: Folder = None
    signing_key: Folder = None
    signing_key_variable: str = SIGNING_VARIABLE
    split_key_variable: str = SPLIT_KEY_VARIABLE

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
            return
        except ValidationError as error:
            invalid = error
        # outside the handler, because the original error contains the value
        raise problem(type(self), invalid)

    def locate(self, path: str | Location, setting: str) -> Location:
        """Return the absolute location of a folder or file.

        Args:
            path: Path or URL.
            setting: Name of the setting or environment variable.

        Raises:
            ConfigError: If it is neither a path nor a URL.
        """
        return location(path).absolute()

    def folder(self, name: Literal["releases", "private"]) -> Location | None:
        """Return the location of a folder, from the setting, ``home`` or the environment, in this
        order.

        Args:
            name: Name of the setting.

        Returns:
            The location. None if it is not set.
        """
        setting = getattr(self, name)
        if setting is not None:
            return self.locate(setting, name)
        if self.home is not None:
            return self.locate(self.home, "home") / name
        variable = _VARIABLES[name]
        path = os.environ.get(variable)
        if not path:
            return None
        return self.locate(path, variable)

    def release_folder(self) -> Location:
        """Return the location of the release folder.

        Raises:
            ConfigError: If it is not set.
        """
        releases = self.folder("releases")
        if releases is None:
            raise ConfigError(
                f"the release folder is not set. Fix: set home, releases, or {RELEASES_VARIABLE}."
            )
        return releases

    def private_folder(self) -> Location:
        """Return the location of the private folder: ``private`` next to the releases if it is not
        set.

        Raises:
            ConfigError: If it is not set and the releases are in an object store.
        """
        private = self.folder("private")
        releases = self.release_folder()
        if private is not None:
            return private
        if local_path(releases) is None:
            raise ConfigError(
                f"the private folder of {releases} is not set. Fix: set private, or"
                f" {PRIVATE_VARIABLE}."
            )
        return releases.parent / "private"

    def trusted(self, *, reading: bool = False) -> TrustedKeys:
        """Return the trusted public keys.

        Args:
            reading: Also accept keys in the home that belong to the owner of the release folder.

        Raises:
            ConfigError: If they would be in an object store.
        """
        if self.trusted_keys is not None:
            trusted_keys = self.locate(self.trusted_keys, "trusted_keys")
            return TrustedKeys((key_path(str(trusted_keys)),))
        home = None
        if self.home is not None:
            home = self.locate(self.home, "home")
        return default_trusted(self.release_folder(), home, reading=reading)

    def signing_key_file(self) -> Path | None:
        """Return the file of the signing key. None: it is not set, and the private folder is in an
        object store.

        Raises:
            ConfigError: If it would be in an object store.
        """
        if self.signing_key is None:
            return key_file(self.private_folder())
        return key_path(str(self.locate(self.signing_key, "signing_key")))

    def open(self) -> Deployment:
        """Return the deployment with these settings.

        Raises:
            ConfigError: If a folder is not set.
        """
        return Deployment(self)


class Deployment:
    """Folders and keys of one deployment.

    All folders contain the same marker (:mod:`privacy_assets.gate.markers`), which is created on
    first use. A folder of another deployment is rejected.

    The split key determines the side of each subject in the split. A new one is created only on
    first use: ``private/split.check``, a keyed hash of a constant, detects a changed or lost split
    key. A first pair of keys is created only if neither signing key nor trusted keys were
    configured, and no key is trusted and no release exists. If keys were configured, ``private``
    must exist.

    Args:
        settings: Settings of the deployment.

    Attributes:
        settings: Settings of the deployment.
        releases: Release folder.
        private: Private folder of the gate.

    Raises:
        ConfigError: If a folder is not set.
    """

    def __init__(self, settings: DeploymentSettings) -> None:
        self.settings = settings
        self.releases = settings.release_folder()
        self.private = settings.private_folder()
        self._is_marked = False
        # last split key that was verified to belong to this deployment
        self._checked_split_key = b""
        self._gate: Gate | None = None

    @classmethod
    def temporary(cls, folder: Path, split_key: bytes) -> Deployment:
        """Create a deployment with new keys in an empty folder. It ignores environment variables.

        Args:
            folder: Empty folder.
            split_key: Split key of the deployment.
        """
        private = private_folder(folder / "private")
        trusted = folder / "trusted_keys"
        settings = DeploymentSettings(
            home=str(folder),
            trusted_keys=str(trusted),
            signing_key_variable="",
            split_key_variable="",
        )
        deployment = cls(settings)
        deployment._marked_private()  # marks the folders while they are empty
        create_once(private / SPLIT_KEY, split_key)
        first_key(private / SIGNING_KEY, trusted)
        return deployment

    @property
    def store(self) -> ReleaseStore:
        """Release store."""
        return ReleaseStore(self.releases)

    @property
    def trusted(self) -> TrustedKeys:
        """Public keys that this deployment trusts."""
        return self.settings.trusted()

    def gate(self) -> Gate:
        """Return the gate. A first pair of keys is created if there is none and none was
        configured. Later calls return the same gate, which reads its keys again on each use.
        """
        if self._gate is None:
            self._gate = self._open_gate()
        return self._gate

    def _open_gate(self) -> Gate:
        """Check folders and keys, create the keys on first use, and return the gate."""
        private = self._marked_private()
        trusted = self.trusted
        self.check()  # creates the split key before the keys
        path = self.settings.signing_key_file()
        trusted_folder = trusted.paths[0]
        if not self._has_configured_keys() and path is not None:
            if is_unused(trusted_folder, "trusted_keys") and any(self.store.targets()):
                raise ConfigError(
                    f"{trusted_folder}: there are releases, but the trusted keys are missing. Fix:"
                    " restore the keys."
                )
            first_key(path, trusted_folder)
        key = SigningKey(path, self.settings.signing_key_variable, trusted)
        if not self._has_configured_keys():
            key.check()  # mark the folder only if it contains a key of this deployment
            write_marker(trusted_folder, "trusted_keys", check_marker(private, "private"))
        gate = Gate(self.releases, private, key)
        gate.check_folders()
        return gate

    def key(self, purpose: str) -> bytes:
        """Return a key derived from the split key.

        Args:
            purpose: Purpose of the key. Other purposes have other keys.
        """
        return derive_key(self._split_key(), purpose)

    def keyed_fingerprint(self, fingerprint: str) -> str:
        """Return the keyed fingerprint of a private table, the only form that may be disclosed.

        Args:
            fingerprint: Fingerprint of the table.
        """
        return keyed_fingerprint(fingerprint, self.key("fingerprints"))

    def _has_configured_keys(self) -> bool:
        if self.settings.signing_key or self.settings.trusted_keys:
            return True
        variables = (self.settings.signing_key_variable, TRUSTED_VARIABLE)
        return any(os.environ.get(name) for name in variables)

    def check(self) -> None:
        """Check folders and split key, and create them on first use; ConfigError for a folder of
        another deployment.
        """
        self._split_key()

    def _marked_private(self) -> Location:
        """Return the private folder, after all folders were marked or their markers checked."""
        folder = self.private
        storage = storage_of(folder)
        if self._is_marked:
            storage.make_private()
            storage.check_private()
            return folder
        has_keys = self._has_configured_keys()
        # If the folder is not mounted, a new one would contain no log of failures.
        if has_keys and storage.local is not None and not storage.local.is_dir():
            raise ConfigError(
                f"{folder}: the gate's private folder does not exist. Fix: mount it, or create"
                " it (mode 700)."
            )
        locations: dict[FolderRole, Location] = {"private": folder, "releases": self.releases}
        with suppress(ConfigError):  # gate() reports missing trusted keys
            locations["trusted_keys"] = self.trusted.paths[0]
        try:
            check_deployment(locations, own_keys=not has_keys)
            storage_of(folder.parent).make_folder(0o755)  # the releases may be next to it
            storage.make_private()
            storage.check_private()
            mark_deployment(locations, own_keys=not has_keys)
        except OSError as error:
            raise StoreUnavailable.of(f"{reason(error)}; nothing changed", error) from None
        self._is_marked = True
        return folder

    def _split_key(self) -> bytes:
        """Return the split key, or raise ConfigError if it is lost or belongs to another
        deployment.
        """
        variable = self.settings.split_key_variable
        split_key = os.environ.get(variable, "").encode()
        private = None
        where = variable
        if not split_key:
            private = local_path(self._marked_private())
            if private is None:
                raise ConfigError(
                    f"{self.private}: an object store cannot hold the split key of a deployment."
                    f" Fix: set {variable}."
                )
            where = str(private / SPLIT_KEY)
            split_key = self._stored_split_key(private)
        if len(split_key) < _MIN_BYTES:
            raise ConfigError(f"{where}: the split key needs at least {_MIN_BYTES} bytes.")
        if split_key != self._checked_split_key:
            self._check(split_key, where, private or self._marked_private())
            self._checked_split_key = split_key
        return split_key

    def _stored_split_key(self, private: Path) -> bytes:
        """Read the split key in the private folder, which is created on first use."""
        path = private / SPLIT_KEY
        if not path.exists():
            if not self._is_new(private):
                raise ConfigError(f"{path}: the split key of this deployment is missing. {_LOST}")
            create_once(path, secrets.token_bytes(32))
        return read_key(path)

    def _check(self, split_key: bytes, where: str, private: Location) -> None:
        """Raise ConfigError unless the private folder was first used with this split key."""
        check = private / SPLIT_KEY_CHECK
        storage = storage_of(check)
        key = derive_key(split_key, "check")
        expected = keyed_fingerprint("the split key of this deployment", key).encode()
        try:
            if SPLIT_KEY_CHECK not in storage_of(private).names():
                if not self._is_new(private):
                    raise ConfigError(
                        f"{check}: missing, so the split key in {where} cannot be checked. {_LOST}"
                    )
                storage.create(expected)
            stored = storage.read()
        except OSError as error:
            raise ConfigError(
                f"{where} cannot be checked ({reason(error)}).{fix_of(error)}"
            ) from None
        if not hmac.compare_digest(stored, expected):
            raise ConfigError(
                f"{where}: this is not the split key of this deployment ({check} belongs to"
                f" another split key). {_LOST}"
            )

    def _is_new(self, private: Location) -> bool:
        """Return True if there is no signed file and no release yet."""
        return entries(private) <= _UNUSED and not any(self.store.targets())
