"""The release resource: where releases and snapshots lie, the keys of the gate, and the secret of the split."""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg
from pydantic import PrivateAttr

from privacy_assets.dagster.fixed import FixedConfig
from privacy_assets.errors import ConfigError
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keys import SIGNING_VARIABLE, TrustedKeys
from privacy_assets.gate.releases import ReleaseStore
from privacy_assets.pipeline.deployment import SECRET_VARIABLE, Deployment
from privacy_assets.storage.objects import Location, location

_COMMANDS = ".tmp_dagster_home_"  # how `dagster dev` and others name a folder of their own


class ReleaseResource(FixedConfig, dg.ConfigurableResource):
    """Where releases go, the keys that sign and are trusted, and the secret of this deployment.

    ``root`` is the folder of releases (default ``DAGSTER_HOME/releases``), ``private`` a folder for snapshots that were
    not published, failed verdicts, the signing key and the secret (default ``DAGSTER_HOME/private``); nobody else may
    read it. The secret decides on which side of the split a person stands: keep it, and keep it secret. It is read from
    the environment variable ``secret_variable`` when that is set, else from ``private/secret.key``, which is made on
    first use. ``private/secret.check``, a keyed hash of a constant, tells a secret that changed, and one that was lost:
    none is made in its place.

    The signing key (Ed25519, PEM) is read from the environment variable ``signing_key_variable`` when that is set, else
    from the file ``signing_key`` (default ``private/signing.key``). ``trusted_keys`` is a folder of public keys (PEM;
    default PRIVACY_ASSETS_TRUSTED_KEYS, else ``trusted_keys`` beside ``root``). Only when none of these was given, and
    nothing is trusted or released yet, is a first pair made; otherwise ``private`` must be there already. These fields
    are paths and names, never keys: a resource's fields are shown in the UI. Run configuration cannot change them. An
    empty one, as of a variable that is empty, is an error. Give the variable of the key to steps alone, or use the
    file: code server and run read the configuration of other assets too, which can ask for any variable.

    ``root`` and ``private`` may be URLs of an object store (``s3://bucket/releases``) that was made ready by
    `privacy-assets prepare`. Keys never lie there: the signing key and the secret then come by their variables, the
    trusted keys from a folder of this machine.

    On a temporary instance of Dagster (no DAGSTER_HOME) both must be given: ConfigError otherwise.
    """

    root: str | None = None
    private: str | None = None
    secret_variable: str = SECRET_VARIABLE
    signing_key: str | None = None
    signing_key_variable: str = SIGNING_VARIABLE
    trusted_keys: str | None = None

    _home: Path | None = PrivateAttr(default=None)
    _passing: bool = PrivateAttr(default=False)
    _deployment: Deployment | None = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Remember the folder of the Dagster instance, the default place, and whether it goes with the instance."""
        self._home, self._deployment = home_of(context.instance), None
        self._passing = is_passing(context.instance)

    @property
    def deployment(self) -> Deployment:
        """The folders and keys that these values name."""
        if self._deployment is None:
            self._deployment = Deployment(
                self._folder(self.root, "releases"),
                self._folder(self.private, "private"),
                self.secret_variable,
                self.signing_key,
                self.signing_key_variable,
                self.trusted_keys,
            )
        return self._deployment

    @property
    def store(self) -> ReleaseStore:
        """The releases."""
        return ReleaseStore(self._folder(self.root, "releases"))

    @property
    def trusted(self) -> TrustedKeys:
        """The public keys that this deployment trusts."""
        return self.deployment.trusted

    def gate(self) -> Gate:
        """The gate of this deployment; a first pair of keys is made when there is none and none was configured."""
        return self.deployment.gate()

    def key(self, purpose: str) -> bytes:
        """A key for one purpose, derived from the secret."""
        return self.deployment.key(purpose)

    def keyed(self, fingerprint: str) -> str:
        """Fingerprint of a private table in the only form that may be shown."""
        return self.deployment.keyed(fingerprint)

    def _folder(self, given: str | None, default: str) -> Location:
        if given is not None:
            return location(given).absolute()
        if self._passing:
            raise ConfigError(
                f"ReleaseResource: this Dagster instance is temporary, and the folder for {default} would be deleted"
                " with it. Fix: set DAGSTER_HOME to a folder that stays (from Python, also pass"
                " instance=DagsterInstance.get()), or give ReleaseResource root and private."
            )
        home = self._home or (Path(os.environ["DAGSTER_HOME"]) if os.environ.get("DAGSTER_HOME") else None)
        if home is None:
            raise ConfigError(f"ReleaseResource: set DAGSTER_HOME, or give the folder for {default}.")
        return home / default


def is_passing(instance: dg.DagsterInstance | None) -> bool:
    """True when the folder of ``instance`` goes with it: ephemeral, or of a Dagster command without DAGSTER_HOME."""
    if instance is None:
        return False
    return instance.is_ephemeral or any(part.startswith(_COMMANDS) for part in Path(instance.root_directory).parts)


def home_of(instance: dg.DagsterInstance | None) -> Path | None:
    """Folder of a Dagster instance (``DAGSTER_HOME``, or a temporary folder of an ephemeral one)."""
    return Path(instance.root_directory) if instance is not None else None
