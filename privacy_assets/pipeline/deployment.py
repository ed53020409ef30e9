"""One deployment: where releases and snapshots lie, the keys of the gate, and the secret of the split."""

from __future__ import annotations

import hmac
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from privacy_assets.errors import ConfigError
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keys import SIGNING_VARIABLE, SigningKey, TrustedKeys, first_key, key_file, key_path
from privacy_assets.gate.releases import TRUSTED_VARIABLE, ReleaseStore, default_trusted
from privacy_assets.storage.files import (
    check_private,
    create_once,
    make_folder,
    names,
    private_folder,
    read_regular,
    read_secret,
    reason,
)
from privacy_assets.storage.objects import Location, ObjectPath
from privacy_assets.tables.fingerprints import derived, keyed

SECRET_VARIABLE = "PRIVACY_ASSETS_SECRET"
SECRET, CHECK = "secret.key", "secret.check"
_SMALLEST = 16  # bytes of a secret
_MEMORY = ("snapshots", "failures", "attempts")
_LOST = (
    "Without it every split changes, and no row that failed or was released is known again. Fix: bring it back from its"
    " copy. If it is lost for good, begin anew: with an empty private folder, and a new release folder."
)


@dataclass(eq=False)
class Deployment:
    """The folders ``root`` of releases and ``private`` of all else that the gate keeps, and where its keys stand.

    The secret decides on which side of the split a person stands. It is read from the environment variable
    ``secret_variable`` when that is set, else from ``private/secret.key``, which is made on first use;
    ``private/secret.check``, a keyed hash of a constant, tells a secret that changed, and one that was lost: none is
    made in its place. The signing key is read from the variable ``signing_key_variable`` when that is set, else from
    the file ``signing_key`` (``private/signing.key``); ``trusted_keys`` is a folder of public keys (that of
    :func:`~privacy_assets.gate.releases.default_trusted`). Only when none of these was given, and nothing is trusted or
    released yet, is a first pair made; otherwise ``private`` must be there already.
    """

    root: Location
    private: Location
    secret_variable: str = SECRET_VARIABLE
    signing_key: str | None = None
    signing_key_variable: str = SIGNING_VARIABLE
    trusted_keys: str | None = None
    _checked: bytes = field(default=b"", repr=False)  # the secret that was found to be the one of this deployment

    @property
    def store(self) -> ReleaseStore:
        """The releases."""
        return ReleaseStore(self.root)

    @property
    def trusted(self) -> TrustedKeys:
        """The public keys that this deployment trusts."""
        given = self.trusted_keys
        return default_trusted(self.root) if given is None else TrustedKeys((key_path(given),))

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
        gate = Gate(self.root, private, key, self.key("content"))
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

    def _private(self) -> Location:
        folder = self.private
        # Not mounted: an empty one would have forgotten every failure.
        if isinstance(folder, Path) and self._keys_given() and not folder.is_dir():
            raise ConfigError(
                f"{folder}: the gate's private folder is not there. Fix: mount it, or make it (mode 700)."
            )
        if isinstance(folder, Path):
            make_folder(folder.parent, 0o755)  # the releases may lie beside it
        return check_private(private_folder(folder))

    def _secret(self) -> bytes:
        """The secret of this deployment; ConfigError when it is lost, or another one."""
        secret, private = os.environ.get(self.secret_variable, "").encode(), None
        where = self.secret_variable
        if not secret:
            private = self._private()
            if isinstance(private, ObjectPath):
                fix = f"set {self.secret_variable}"
                raise ConfigError(f"{private}: the secret of a deployment never lies in an object store. Fix: {fix}.")
            where = str(private / SECRET)
            if not (private / SECRET).exists():
                if not self._first(private):
                    raise ConfigError(f"{where}: the secret of this deployment is gone. {_LOST}")
                create_once(private / SECRET, secrets.token_bytes(32))
            secret = read_secret(private / SECRET)
        if len(secret) < _SMALLEST:
            raise ConfigError(f"{where}: the secret needs at least {_SMALLEST} bytes.")
        if secret != self._checked:
            self._check(secret, where, private or self._private())
            self._checked = secret
        return secret

    def _check(self, secret: bytes, where: str, private: Location) -> None:
        """ConfigError unless this is the secret that was first used with the private folder."""
        check, mine = private / CHECK, keyed("the secret of this deployment", derived(secret, "check")).encode()
        try:
            if CHECK not in names(private):
                if not self._first(private):
                    raise ConfigError(f"{check}: gone, so nobody can tell whether {where} is still the same. {_LOST}")
                create_once(check, mine)
            found = read_regular(check)
        except OSError as error:
            raise ConfigError(f"{where} cannot be checked ({reason(error)}).") from None
        if not hmac.compare_digest(found, mine):
            raise ConfigError(f"{where}: this is not the secret of this deployment ({check} is of another). {_LOST}")

    def _first(self, private: Location) -> bool:
        """True where nothing was remembered or released yet."""
        return not {CHECK, *_MEMORY} & set(names(private)) and not any(self.store.places())
