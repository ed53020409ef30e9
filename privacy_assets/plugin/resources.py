"""The release resource: where releases and snapshots lie, and the secret behind splits and keyed fingerprints."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

import dagster as dg
from pydantic import PrivateAttr

from privacy_assets.engine.tables.fingerprints import keyed
from privacy_assets.errors import ConfigError
from privacy_assets.gate.releases import ReleaseStore

_SMALLEST = 16  # bytes of a secret


class ReleaseResource(dg.ConfigurableResource):
    """Where releases go, and the secret of this deployment.

    ``root`` is the folder of releases (default ``DAGSTER_HOME/releases``), ``private`` a folder for snapshots that were
    not published and for the secret (default ``DAGSTER_HOME/private``). The secret decides on which side of the split a
    person stands: keep it, and keep it secret. It is read from the environment variable ``secret_variable`` when
    that is set, else from ``private/secret.key``, which is made on first use, for the own user only.
    """

    root: str = ""
    private: str = ""
    secret_variable: str = "PRIVACY_ASSETS_SECRET"

    _home: Path | None = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Remember the folder of the Dagster instance, the default place."""
        self._home = home_of(context.instance)

    @property
    def store(self) -> ReleaseStore:
        """The releases."""
        return ReleaseStore(self._folder(self.root, "releases"))

    def snapshots(self, table: str, partition: str | None) -> Path:
        """Private folder for the snapshots of one table and partition."""
        folder = self._folder(self.private, "private")
        return private_folder(ReleaseStore(folder / "snapshots").place(table, partition))

    def key(self, purpose: str) -> bytes:
        """A key for one purpose, derived from the secret."""
        return hmac.new(self._secret(), purpose.encode(), hashlib.sha256).digest()

    def keyed(self, fingerprints: Mapping[str, str]) -> dict[str, str]:
        """Fingerprints of private tables in the only form that may be shown."""
        key = self.key("fingerprints")
        return {role: keyed(fingerprint, key) for role, fingerprint in fingerprints.items()}

    def _folder(self, given: str, default: str) -> Path:
        if given:
            return Path(given)
        home = self._home or (Path(os.environ["DAGSTER_HOME"]) if os.environ.get("DAGSTER_HOME") else None)
        if home is None:
            raise ConfigError(f"ReleaseResource: set DAGSTER_HOME, or give the folder for {default}.")
        return home / default

    def _secret(self) -> bytes:
        given = os.environ.get(self.secret_variable, "")
        if given:
            if len(given.encode()) < _SMALLEST:
                raise ConfigError(f"{self.secret_variable}: the secret needs at least {_SMALLEST} bytes.")
            return given.encode()
        return read_secret(private_folder(self._folder(self.private, "private")) / "secret.key")


def home_of(instance: dg.DagsterInstance | None) -> Path | None:
    """Folder of a Dagster instance (``DAGSTER_HOME``, or a temporary folder of an ephemeral one)."""
    return Path(instance.root_directory) if instance is not None else None


def private_folder(folder: Path) -> Path:
    """Make ``folder`` for the own user only; one that is there keeps its mode."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def read_secret(path: Path) -> bytes:
    """Read the secret in ``path``, made (32 random bytes, mode 0600) when it is not there.

    ConfigError unless it is a regular file of the own user that nobody else can read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        _make_secret(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise ConfigError(f"{path}: the secret cannot be read ({error.strerror}).") from None
    with os.fdopen(descriptor, "rb") as stream:
        facts = os.fstat(stream.fileno())
        secret = stream.read(4096)
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise ConfigError(f"{path}: the secret must be a regular file of your own with mode 0600.")
    if len(secret) < _SMALLEST:
        raise ConfigError(f"{path}: the secret needs at least {_SMALLEST} bytes.")
    return secret


def _make_secret(path: Path) -> None:
    """Place a new secret unless another process was quicker: a link, unlike a rename, never replaces a file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(6)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(secrets.token_bytes(32))
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        draft.unlink(missing_ok=True)
