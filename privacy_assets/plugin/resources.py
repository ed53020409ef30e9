"""The release resource: where releases and snapshots lie, the keys of the gate, and the secret of the split."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import PrivateAttr

from privacy_assets.engine.tables.fingerprints import derived, keyed
from privacy_assets.errors import ConfigError
from privacy_assets.files import check_private, create_once, private_folder, read_secret
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keys import SIGNING_VARIABLE, SigningKey, TrustedKeys, first_key, key_file, key_path
from privacy_assets.gate.releases import TRUSTED_VARIABLE, ReleaseStore, default_trusted
from privacy_assets.objects import Location, ObjectPath, location

_SMALLEST = 16  # bytes of a secret


class FixedConfig:
    """The values of a resource come from the code alone.

    Run configuration, which everybody with the UI can write, could otherwise name another private folder or key, or
    have any environment variable shown as a path.
    """

    @cached_property
    def _fixed(self) -> Any:
        fields = type(self).model_fields  # type: ignore[attr-defined]
        given = {name: self.__dict__[name] for name in fields}
        values = {name: {"env": value.env_var_name} if isinstance(value, dg.EnvVar) else value
                  for name, value in given.items()}  # fmt: skip
        return super().get_resource_definition().configured(values)  # type: ignore[misc]

    def get_resource_definition(self) -> Any:
        """The definition with its configuration filled in; one object, as Dagster compares them."""
        return self._fixed


class ReleaseResource(FixedConfig, dg.ConfigurableResource):
    """Where releases go, the keys that sign and are trusted, and the secret of this deployment.

    ``root`` is the folder of releases (default ``DAGSTER_HOME/releases``), ``private`` a folder for snapshots that were
    not published, failed verdicts, the signing key and the secret (default ``DAGSTER_HOME/private``); nobody else may
    read it. The secret decides on which side of the split a person stands: keep it, and keep it secret. It is read from
    the environment variable ``secret_variable`` when that is set, else from ``private/secret.key``, which is made on
    first use.

    The signing key (Ed25519, PEM) is read from the environment variable ``signing_key_variable`` when that is set, else
    from the file ``signing_key`` (default ``private/signing.key``). ``trusted_keys`` is a folder of public keys (PEM;
    default PRIVACY_ASSETS_TRUSTED_KEYS, else ``trusted_keys`` beside ``root``). Only when none of these was given, and
    nothing is trusted or released yet, is a first pair made; otherwise ``private`` must be there already. These fields
    are paths and names, never keys: a resource's fields are shown in the UI. Run configuration cannot change them. An
    empty one, as of a variable that is empty, is an error.

    ``root`` and ``private`` may be URLs of an object store (``s3://bucket/releases``) that was made ready by
    `privacy-assets prepare`. Keys never lie there: the signing key and the secret then come by their variables, the
    trusted keys from a folder of this machine.
    """

    root: str | None = None
    private: str | None = None
    secret_variable: str = "PRIVACY_ASSETS_SECRET"
    signing_key: str | None = None
    signing_key_variable: str = SIGNING_VARIABLE
    trusted_keys: str | None = None

    _home: Path | None = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Remember the folder of the Dagster instance, the default place."""
        self._home = home_of(context.instance)

    @property
    def store(self) -> ReleaseStore:
        """The releases."""
        return ReleaseStore(self._folder(self.root, "releases"))

    @property
    def trusted(self) -> TrustedKeys:
        """The public keys that this deployment trusts."""
        given = self.trusted_keys
        return default_trusted(self.store.root) if given is None else TrustedKeys((key_path(given),))

    def gate(self) -> Gate:
        """The gate of this deployment; a first pair of keys is made when there is none and none was configured."""
        private, trusted = self._private(), self.trusted
        path = key_file(private) if self.signing_key is None else key_path(self.signing_key)
        if not self._keys_given() and path is not None:
            if not trusted.places[0].exists() and any(self.store.places()):
                raise ConfigError(
                    f"{trusted.places[0]}: the trusted keys are gone, and there are releases: bring them back."
                )
            first_key(path, trusted.places[0])
        key = SigningKey(path, self.signing_key_variable, trusted)
        gate = Gate(self.store.root, private, key, self.key("content"))
        gate.check_places()
        return gate

    def key(self, purpose: str) -> bytes:
        """A key for one purpose, derived from the secret."""
        return derived(self._secret(), purpose)

    def keyed(self, fingerprint: str) -> str:
        """Fingerprint of a private table in the only form that may be shown."""
        return keyed(fingerprint, self.key("fingerprints"))

    def _keys_given(self) -> bool:
        variables = (self.signing_key_variable, TRUSTED_VARIABLE)
        return bool(self.signing_key or self.trusted_keys or any(os.environ.get(name) for name in variables))

    def _folder(self, given: str | None, default: str) -> Location:
        if given is not None:
            return location(given).absolute()
        home = self._home or (Path(os.environ["DAGSTER_HOME"]) if os.environ.get("DAGSTER_HOME") else None)
        if home is None:
            raise ConfigError(f"ReleaseResource: set DAGSTER_HOME, or give the folder for {default}.")
        return home / default

    def _private(self) -> Location:
        folder = self._folder(self.private, "private")
        # Not mounted: an empty one would have forgotten every failure.
        if isinstance(folder, Path) and self._keys_given() and not folder.is_dir():
            raise ConfigError(
                f"{folder}: the gate's private folder is not there. Fix: mount it, or make it (mode 700)."
            )
        return check_private(private_folder(folder))

    def _secret(self) -> bytes:
        secret, where = os.environ.get(self.secret_variable, "").encode(), self.secret_variable
        if not secret:
            private = self._private()
            if isinstance(private, ObjectPath):
                fix = f"set {self.secret_variable}"
                raise ConfigError(f"{private}: the secret of a deployment never lies in an object store. Fix: {fix}.")
            path = private / "secret.key"
            if not path.exists():
                create_once(path, secrets.token_bytes(32))
            secret, where = read_secret(path), str(path)
        if len(secret) < _SMALLEST:
            raise ConfigError(f"{where}: the secret needs at least {_SMALLEST} bytes.")
        return secret


def fixed_executor(executor: dg.ExecutorDefinition, settings: Mapping[str, Any]) -> dg.ExecutorDefinition:
    """``executor`` with ``settings`` to which run configuration can add nothing: no module to load, no image."""
    return executor.configured(lambda _: dict(settings), config_schema={})


def home_of(instance: dg.DagsterInstance | None) -> Path | None:
    """Folder of a Dagster instance (``DAGSTER_HOME``, or a temporary folder of an ephemeral one)."""
    return Path(instance.root_directory) if instance is not None else None
