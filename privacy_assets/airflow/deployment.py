"""Where the tasks of Airflow find the gate: places, keys and credentials, by the DAG file and the worker alone.

What the UI can edit (params, Variables, Connections, the configuration of a run) decides nothing here: an edited
private place would be a memory without a past, and an added key an open gate. Credentials of an object store may come
from a Connection, since buckets are named here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from privacy_assets.errors import ConfigError, door, shown
from privacy_assets.gate.keys import SIGNING_VARIABLE, TrustedKeys, key_path
from privacy_assets.gate.releases import TRUSTED_VARIABLE, default_trusted
from privacy_assets.pipeline.deployment import SECRET_VARIABLE, Deployment
from privacy_assets.storage.objects import PRIVATE_VARIABLE, RELEASES_VARIABLE, Location, ObjectPath, location

REPORT_URL_VARIABLE = "PRIVACY_ASSETS_REPORT_URL"
_BACKEND = "secrets:"


@dataclass(frozen=True)
class GateDeployment:
    """The places and keys of the gate, for all tasks of a table; what is not given comes from the worker's environment.

    ``releases`` is the folder of releases or its URL (PRIVACY_ASSETS_RELEASES), ``private`` the gate's private folder
    (PRIVACY_ASSETS_PRIVATE, else ``private`` beside the releases), ``trusted_keys`` a folder of public keys
    (PRIVACY_ASSETS_TRUSTED_KEYS, else ``trusted_keys`` beside the releases), and ``values`` where the steps of a run
    keep what they hand on (``values`` in the private folder): private rows, which go a day after their run, when the
    next one begins. Places must be absolute: a task starts in any folder, and an empty one would have forgotten every
    failure. All workers need the same ones.

    ``signing_key`` is the file of the key (its path, or a ``file:///`` URL), or ``secrets:NAME``: the variable NAME of
    the secrets backend that Airflow's configuration names, never one of the UI; likewise ``secret``, the secret of the
    split. Without, PRIVACY_ASSETS_SIGNING_KEY and PRIVACY_ASSETS_SECRET, else the files of the private folder.

    ``report_url`` is the address under which a server of yours shows the folders ``reports`` of ``values``, and nothing
    else of it (PRIVACY_ASSETS_REPORT_URL). ``store_conn_id`` is a Connection with the credentials of an S3 store:
    login and password are key and secret, ``token`` of its extra a session token; nothing else of it counts.
    ``device`` is "auto", "cpu", "cuda", "cuda:N" or "mps"; an accelerator is leased by the step that uses it.
    """

    releases: str | Path | None = None
    private: str | Path | None = None
    trusted_keys: str | Path | None = None
    signing_key: str | Path | None = None
    secret: str | None = None
    values: str | Path | None = None
    report_url: str | None = None
    store_conn_id: str | None = None
    device: str = "auto"

    @door
    def __post_init__(self) -> None:
        for field in ("releases", "private", "trusted_keys", "values"):
            if getattr(self, field) is not None:
                _place(getattr(self, field), field)
        key = str(self.signing_key or "")
        if key and not key.startswith(_BACKEND) and isinstance(_place(key, "signing_key"), ObjectPath):
            raise ConfigError("signing_key: keys are read from the worker, or from its secrets backend (secrets:NAME).")
        places = [location(one) for one in (self.releases, self.private, self.values) if one is not None]
        if self.store_conn_id is not None and {"gs", "gcs"} & {x.protocol for x in places if isinstance(x, ObjectPath)}:
            raise ConfigError(
                "store_conn_id: of S3 alone; the workers' environment has the credentials of other stores."
            )
        if self.secret is not None and not self.secret.startswith(_BACKEND):
            raise ConfigError(f"secret: it never stands in a DAG. Fix: give {_BACKEND}NAME, or {SECRET_VARIABLE}.")

    def __str__(self) -> str:
        """Which settings were given: Airflow keeps the text of what a mapped task was given."""
        return f"GateDeployment({', '.join(field.name for field in fields(self) if getattr(self, field.name))})"

    __repr__ = __str__

    @classmethod
    def of(cls, given: GateDeployment | str | Path | None) -> GateDeployment:
        """Itself, or that of a release folder; ConfigError for anything else."""
        if given is None or isinstance(given, (str, Path)):
            return cls(releases=given)
        if not isinstance(given, GateDeployment):
            raise ConfigError(f"deployment: give a GateDeployment or the folder of releases, not {shown(given)}.")
        return given

    def opened(self) -> Deployment:
        """The deployment as this worker sees it; ConfigError when a place is missing or relative."""
        releases, trusted = self._releases(), self._found("trusted_keys", TRUSTED_VARIABLE)
        private = self._found("private", PRIVATE_VARIABLE)
        if private is None:
            if not isinstance(releases, Path):
                fix = f"give private, or set {PRIVATE_VARIABLE}"
                raise ConfigError(f"where is the private folder of {releases}? Fix: {fix}.")
            private = releases.parent / "private"
        key = None if self.signing_key is None or str(self.signing_key).startswith(_BACKEND) else self.signing_key
        return Deployment(
            releases,
            private,
            signing_key=None if key is None else str(_place(key, "signing_key")),
            trusted_keys=None if self.trusted_keys is None else str(trusted),
        )

    def reading(self) -> tuple[Location, TrustedKeys]:
        """The folder of releases, and the keys whose signatures count for who reads them."""
        releases, trusted = self._releases(), self._found("trusted_keys", TRUSTED_VARIABLE)
        if self.trusted_keys is None:
            return releases, default_trusted(releases, reading=True)
        return releases, TrustedKeys((key_path(str(trusted)),))

    def _releases(self) -> Location:
        releases = self._found("releases", RELEASES_VARIABLE)
        if releases is None:
            raise ConfigError(f"where do releases go? Fix: give the deployment releases, or set {RELEASES_VARIABLE}.")
        return releases

    def values_of(self, deployment: Deployment) -> Location:
        """Where the steps keep their values."""
        return deployment.private / "values" if self.values is None else _place(self.values, "values")

    def page(self, report: Location, values: Location) -> str:
        """The address of the page in the folder ``report``: below the report URL, else of the file itself."""
        file = report / "report.html"
        url = self.report_url or os.environ.get(REPORT_URL_VARIABLE)
        if url:
            return f"{url.rstrip('/')}/{quote(str(file).removeprefix(str(values)).lstrip('/'))}"
        return file.as_uri() if isinstance(file, Path) else str(file)

    @contextmanager
    def credentials(self) -> Iterator[None]:
        """In the ``with`` block this process can sign and reach the store as the settings say."""
        given = {SIGNING_VARIABLE: self.signing_key, SECRET_VARIABLE: self.secret}
        secrets = {variable: _secret(str(value)) for variable, value in given.items() if value is not None}
        before = {variable: os.environ.get(variable) for variable in secrets}
        _set(secrets)
        try:
            with self.store_credentials():
                yield
        finally:
            _set(before)

    @contextmanager
    def store_credentials(self) -> Iterator[None]:
        """In the ``with`` block this process can reach the store, as far as a Connection is named for that."""
        if self.store_conn_id is None:
            yield
            return
        from fsspec.config import conf

        own = _of_connection(self.store_conn_id)
        before = {protocol: conf.get(protocol) for protocol in ("s3", "s3a")}
        for protocol in before:
            conf[protocol] = {**conf.get(protocol, {}), **own}
        try:
            yield
        finally:
            for protocol, settings in before.items():
                conf.pop(protocol, None)
                if settings is not None:
                    conf[protocol] = settings

    def _found(self, field: str, variable: str) -> Location | None:
        given = getattr(self, field)
        if given is not None:
            return _place(given, field)
        named = os.environ.get(variable)
        return _place(named, variable) if named else None


def _place(given: Any, what: str) -> Location:
    """The place that is given; ConfigError for a relative one."""
    found = location(given)
    if isinstance(found, Path) and not found.is_absolute():
        raise ConfigError(f"{what}: {found} is relative, and tasks start in any folder. Fix: give the whole path.")
    return found


def _set(variables: Mapping[str, str | None]) -> None:
    """Set variables of the environment, or take away those of None."""
    for variable, value in variables.items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value


def _of_connection(name: str) -> dict[str, str]:
    """Key, secret and token of an S3 store; ConfigError where the Connection does not hold them."""
    from airflow.sdk import Connection

    try:
        found = Connection.get(name)
    except Exception as error:  # noqa: BLE001 (each version of Airflow has its own, which can quote the Connection)
        ConfigError(f"store_conn_id: no Connection {shown(name)} ({type(error).__name__}).").raise_alone()
    if not found.login or not found.password:
        raise ConfigError(f"Connection {shown(name)} needs login and password: key and secret of the object store.")
    token = (found.extra_dejson or {}).get("token")
    return {"key": found.login, "secret": found.password, **({"token": token} if token else {})}


def _secret(given: str) -> str | None:
    """The secret that a setting names: None where it is a file, beside which the environment does not count."""
    return _from_backend(given.removeprefix(_BACKEND)) if given.startswith(_BACKEND) else None


def _from_backend(name: str) -> str:
    """A variable of the configured secrets backend, and of nothing that the UI can edit."""
    try:
        from airflow.sdk.configuration import get_custom_secret_backend
    except ImportError:  # before Airflow 3.2
        from airflow.configuration import get_custom_secret_backend

    backend = get_custom_secret_backend(worker_mode=True)
    if backend is None:
        raise ConfigError(
            f"{_BACKEND}{name}: this worker has no secrets backend. Fix: [secrets] backend in airflow.cfg."
        )
    found = backend.get_variable(name)
    if not found:
        raise ConfigError(f"{_BACKEND}{name}: the secrets backend of this worker has no such variable.")
    _mask(str(found))
    return str(found)


def _mask(secret: str) -> None:
    try:
        from airflow.sdk.log import mask_secret
    except ImportError:  # Airflow 3.0
        from airflow.sdk.execution_time.secrets_masker import mask_secret

    mask_secret(secret)
