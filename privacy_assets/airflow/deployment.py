"""Deployment settings of the gate for Airflow tasks.

Locations, keys and credentials come from the DAG file and the worker only. Settings that can be
edited in the UI (params, Variables, Connections, run configuration) have no effect, because an
edited private location would hide earlier failures, and an added key would disable the gate.
Credentials of an object store may come from a Connection, because the buckets are named here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from pydantic import model_validator

from privacy_assets.errors import ConfigError, WrongTarget, redact_foreign_errors, safe_repr
from privacy_assets.gate.deployment import SECRET_VARIABLE, Deployment, DeploymentSettings, Folder
from privacy_assets.gate.keys import TrustedKeys
from privacy_assets.gate.releases import TRUSTED_VARIABLE
from privacy_assets.gate.statements import ReleaseTarget
from privacy_assets.infra.objects import (
    Location,
    ObjectPath,
    check_no_credentials,
    check_no_template,
    location,
    path_text,
)
from privacy_assets.infra.progress import Lines
from privacy_assets.pipeline.partitions import KeyPartitions, Partitions, as_partitions
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.spec import TableSpec, spec_of
from privacy_assets.pipeline.stored import StoredRun
from privacy_assets.pipeline.work import TableRun

if TYPE_CHECKING:
    from airflow.sdk import Context


REPORT_URL_VARIABLE = "PRIVACY_ASSETS_REPORT_URL"
WEB = ("https://", "http://")
_BACKEND = "secrets:"


class AirflowDeployment(DeploymentSettings):
    """Settings of a deployment for all tasks of a table.

    Unset values are read from the worker's environment. Locations must be absolute, because tasks
    start in arbitrary folders and a new private folder would contain no record of earlier failures.
    All workers need the same locations.

    Attributes:
        signing_key: File of the signing key (path or ``file:///`` URL), or ``secrets:NAME`` for the
            variable NAME of the secrets backend in Airflow's configuration; variables from the UI
            are not used. None: PRIVACY_ASSETS_SIGNING_KEY, otherwise the file in the private
            folder.
        secret: ``secrets:NAME`` for the secret of the split. None: PRIVACY_ASSETS_SECRET, otherwise
            the file in the private folder.
        values: Folder for values passed between steps, which contain private rows. The next run
            deletes values more than a day old. None: ``values`` in the private folder.
        report_url: URL under which your web server serves the folders ``reports`` in ``values``,
            and no other content of it. None: PRIVACY_ASSETS_REPORT_URL, otherwise reports have a
            path and no link.
        store_conn_id: Connection with the credentials of an S3 store: login (key), password
            (secret) and optionally ``token`` (session token) in its extra. Other fields are
            ignored.
        device: "auto", "cpu", "cuda", "cuda:N" or "mps". Steps lease an accelerator while they use
            it.

    Raises:
        ConfigError: If a location is relative or a setting is invalid.
    """

    secret: str | None = None
    values: Folder = None
    report_url: str | None = None
    store_conn_id: str | None = None
    device: str = "auto"

    @model_validator(mode="after")
    def _check(self) -> Self:
        named = {
            name: getattr(self, name)
            for name in ("home", "releases", "private", "trusted_keys", "values")
        }
        places = [self.locate(given, name) for name, given in named.items() if given is not None]
        _check_report_url(self.report_url, "report_url")
        key = self.signing_key or ""
        if (
            key
            and not key.startswith(_BACKEND)
            and isinstance(self.locate(key, "signing_key"), ObjectPath)
        ):
            raise ConfigError(
                "signing_key: an object store cannot hold keys. Fix: use a path of the worker,"
                " or secrets:NAME."
            )
        if self.store_conn_id is not None and {"gs", "gcs"} & {
            x.protocol for x in places if isinstance(x, ObjectPath)
        }:
            raise ConfigError(
                "store_conn_id: only S3 is supported; other stores use the credentials in the"
                " workers' environment."
            )
        if self.secret is not None and not self.secret.startswith(_BACKEND):
            raise ConfigError(
                f"secret: a DAG file must not contain the secret. Fix: set {_BACKEND}NAME, or"
                f" {SECRET_VARIABLE}."
            )
        for _, given in self:
            _check_no_template(given)
        return self

    def __str__(self) -> str:
        """Return the names of the settings that were set. Airflow stores this text for mapped
        tasks.
        """
        names = [name for name in type(self).model_fields if self._is_set(name)]
        return f"{type(self).__name__}({', '.join(names)})"

    __repr__ = __str__

    def _is_set(self, name: str) -> bool:
        return name in self.model_fields_set and getattr(self, name) is not None

    @classmethod
    def of(cls, given: AirflowDeployment | str | Path | None) -> AirflowDeployment:
        """Return the settings of a deployment.

        Args:
            given: The settings, which are returned unchanged, or the folder of releases. None: all
                are unset.

        Raises:
            ConfigError: If ``given`` has another type.
        """
        if given is None or isinstance(given, (str, Path)):
            return cls(releases=None if given is None else path_text(given))
        if not isinstance(given, AirflowDeployment):
            raise ConfigError(
                "deployment: expected an AirflowDeployment or the release folder, got"
                f" {safe_repr(given)}."
            )
        return given

    def locate(self, given: str | Location, setting: str) -> Location:
        """Return the location of a folder or file.

        Args:
            given: Path or URL.
            setting: Name of the setting or environment variable.

        Raises:
            ConfigError: If it is relative, or neither a path nor a URL.
        """
        found = location(given)
        if isinstance(found, Path) and not found.is_absolute():
            raise ConfigError(
                f"{setting}: {found} is relative, and tasks start in any folder. Fix: set the"
                " absolute path."
            )
        return found

    def trusted(self, *, reading: bool = False) -> TrustedKeys:
        """Return the trusted public keys.

        Args:
            reading: Also accept keys in the home that belong to the owner of the release folder.

        Raises:
            ConfigError: If their location is relative or in an object store.
        """
        self._check_trusted_variable()
        return super().trusted(reading=reading)

    def _check_trusted_variable(self) -> None:
        variable = os.environ.get(TRUSTED_VARIABLE)
        if self.trusted_keys is None and variable:
            self.locate(variable, TRUSTED_VARIABLE)

    def open(self) -> Deployment:
        """Return the deployment with these settings, resolved on this worker.

        Raises:
            ConfigError: If a location is missing or relative.
        """
        if self.signing_key is not None and self.signing_key.startswith(_BACKEND):
            return self.model_copy(update={"signing_key": None}).open()
        self._check_trusted_variable()  # an error before the first step
        _check_report_url(os.environ.get(REPORT_URL_VARIABLE), REPORT_URL_VARIABLE)
        return super().open()

    def values_of(self, deployment: Deployment) -> Location:
        """Return the folder for values passed between steps.

        Args:
            deployment: The resolved deployment, used if ``values`` is None.
        """
        return (
            deployment.private / "values"
            if self.values is None
            else self.locate(self.values, "values")
        )

    def page(self, report: Location, values: Location) -> str:
        """Return the address of a report: below the report URL if set, otherwise the path or URL of
        the file.

        Args:
            report: Folder of the report.
            values: Folder of values, which contains ``report``.
        """
        file = report / "report.html"
        url = self.report_url or os.environ.get(REPORT_URL_VARIABLE)
        if url:
            check_no_credentials(url)
            return f"{url.rstrip('/')}/{quote(str(file).removeprefix(str(values)).lstrip('/'))}"
        return str(file)

    @contextmanager
    def credentials(self) -> Iterator[None]:
        """Set the signing key, the secret and the store's credentials of this process within the
        block.
        """
        given = {self.signing_key_variable: self.signing_key, self.secret_variable: self.secret}
        secrets = {
            variable: _secret(value) for variable, value in given.items() if value is not None
        }
        before = {variable: os.environ.get(variable) for variable in secrets}
        _set(secrets)
        try:
            with self.store_credentials():
                yield
        finally:
            _set(before)

    @contextmanager
    def store_credentials(self) -> Iterator[None]:
        """Set the store's credentials from the Connection, if one is named, within the block."""
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


def _check_no_template(given: object) -> None:
    """Raise ConfigError if the value of a setting, or a key of partitions, is a template."""
    for text in given.keys if isinstance(given, KeyPartitions) else [given]:
        if isinstance(text, str):
            check_no_template(text)


def _check_report_url(url: str | None, setting: str) -> None:
    """Raise ConfigError unless the URL can be a link in the UI, which shows no other links."""
    check_no_credentials(url or "")
    if url and not url.startswith(WEB):
        raise ConfigError(
            f"{setting}: {safe_repr(url)} is not the URL of a web server. Fix: start it with"
            " https://."
        )


def _set(variables: Mapping[str, str | None]) -> None:
    """Set environment variables; None removes one."""
    for variable, value in variables.items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value


def _of_connection(name: str) -> dict[str, str]:
    """Return key, secret and token of an S3 store.

    Raises:
        ConfigError: If the Connection does not exist or contains no key and secret.
    """
    from airflow.sdk import Connection

    try:
        found = Connection.get(name)
    except Exception as error:  # noqa: BLE001 (depends on the version of Airflow; can quote the Connection)
        ConfigError(
            f"store_conn_id: no Connection {safe_repr(name)} ({type(error).__name__})."
        ).raise_without_context()
    if not found.login or not found.password:
        raise ConfigError(
            f"Connection {safe_repr(name)} has no login or no password. Fix: set them to the"
            " key and secret of the"
            " object store."
        )
    token = (found.extra_dejson or {}).get("token")
    return {"key": found.login, "secret": found.password, **({"token": token} if token else {})}


def _secret(given: str) -> str | None:
    """Return the named secret, or None for a file, so that the environment variable is removed."""
    return _from_backend(given.removeprefix(_BACKEND)) if given.startswith(_BACKEND) else None


def _from_backend(name: str) -> str:
    """Return a variable of the configured secrets backend. Variables from the UI are not used."""
    try:
        from airflow.sdk.configuration import get_custom_secret_backend
    except ImportError:  # before Airflow 3.2
        from airflow.configuration import get_custom_secret_backend

    backend = get_custom_secret_backend(worker_mode=True)
    if backend is None:
        raise ConfigError(
            f"{_BACKEND}{name}: this worker has no secrets backend. Fix: [secrets] backend in"
            " airflow.cfg."
        )
    found = backend.get_variable(name)
    if not found:
        raise ConfigError(
            f"{_BACKEND}{name}: the secrets backend of this worker has no such variable."
        )
    _mask(str(found))
    return str(found)


def _mask(secret: str) -> None:
    try:
        from airflow.sdk.log import mask_secret
    except ImportError:  # Airflow 3.0
        from airflow.sdk.execution_time.secrets_masker import mask_secret

    mask_secret(secret)


_FILES = (".yaml", ".yml")


def _task_id(context: Context) -> str:
    """Return the id of a task, with its index if it is one of several mapped ones."""
    task = context["ti"]
    if task.map_index is None or task.map_index < 0:
        return task.task_id
    return f"{task.task_id}[{task.map_index}]"


def _loaded(table: TableSpec | str | Path) -> TableSpec | str:
    """Return the spec of a YAML file; a spec and a name are returned unchanged."""
    if isinstance(table, Path) or (isinstance(table, str) and table.endswith(_FILES)):
        return TableSpec.load(table)
    return table


def table_name(table: Any) -> str | None:
    """Return the name of a table, or None if ``table`` does not name one, such as the result of a
    task.

    Args:
        table: See :meth:`AirflowTable.of`.

    Raises:
        ConfigError: If its YAML file is invalid.
    """
    if isinstance(table, AirflowTable):
        return str(table)
    spec: Any = _loaded(table)
    if isinstance(spec, TableSpec):
        return spec.name
    return spec if isinstance(spec, str) else None


@dataclass(frozen=True, eq=False, repr=False)
class AirflowTable:
    """Resolved table with its deployment and partitions, validated when the DAG is parsed.

    Its text is only the name, because Airflow stores the text of the arguments of mapped tasks.

    Attributes:
        resolved: The resolved table.
        deployment: Settings of the deployment.
        partitions: Partitions, or None.
    """

    resolved: ResolvedTable
    deployment: AirflowDeployment
    partitions: Partitions | None = None

    @classmethod
    @redact_foreign_errors
    def of(
        cls,
        table: AirflowTable | TableSpec | str | Path,
        deployment: AirflowDeployment | str | Path | None = None,
        partitions: Any = None,
        **short: Any,
    ) -> AirflowTable:
        """Create the settings; see :class:`PrivacyGateOperator`.

        Args:
            table: Spec, path of its YAML file, or name.
            deployment: Settings of the deployment, or its folder of releases.
            partitions: Partitions or list of keys.
            **short: Settings of the table: ``source``, ``subject``, ``generator``, ``policy`` and
                the groups ``data``, ``split``, ``evaluation`` and ``run``.

        Returns:
            The table. An AirflowTable is returned unchanged.

        Raises:
            ConfigError: If a setting is invalid.
        """
        if isinstance(table, AirflowTable):
            return table
        spec = spec_of(_loaded(table), **short)
        settings, known = AirflowDeployment.of(deployment), as_partitions(partitions)
        _check_no_template(known)
        return cls(ResolvedTable.of(spec, partitioned=known is not None), settings, known)

    def __str__(self) -> str:
        return self.resolved.name

    __repr__ = __str__

    def target(self, context: Context, partition: str | None = None) -> ReleaseTarget:
        """Return table and partition of this run.

        Users who trigger a run choose its partition key and logical date. Failures are recorded by
        partition, so only keys that the DAG defines are accepted, in exact spelling.

        Args:
            context: Context of the task.
            partition: Partition of the task. None: that of the run.

        Raises:
            WrongTarget: If the run has no partition, or an unknown one.
        """
        if self.partitions is None:
            return ReleaseTarget(self.resolved.name)
        if partition is not None:
            return ReleaseTarget(self.resolved.name, self.partitions.check(partition))
        asked: Mapping[str, Any] = context  # lacks the partition before Airflow 3.2
        key, when = asked.get("partition_key"), asked.get("partition_date")
        if not isinstance(self.partitions, KeyPartitions):
            when = when or (
                None if key else asked.get("data_interval_start") or asked.get("logical_date")
            )
            key = self.partitions.of(when) if isinstance(when, datetime) else key
        if not isinstance(key, str):
            raise WrongTarget(f"table {self.resolved.name} has partitions, and this run has none")
        return ReleaseTarget(self.resolved.name, self.partitions.check(key))

    def stored(
        self, context: Context, say: Callable[[str], Any], partition: str | None = None
    ) -> StoredRun:
        """Return the run of the table and partition of this Airflow run, with values stored in a
        folder of its own.

        Args:
            context: Context of the task.
            say: Receives messages.
            partition: Partition of the task. None: that of the run.
        """
        target, deployment = self.target(context, partition), self.deployment.open()
        window = (
            None
            if self.partitions is None or target.partition is None
            else self.partitions.window(target.partition)
        )
        # no dag_id contains a slash
        run_id = f"{context['dag_run'].dag_id}/{context['dag_run'].run_id}"
        run = TableRun(self.resolved, deployment, target, window, Lines(say), run_id=run_id)
        return StoredRun(run, self.deployment.values_of(deployment), run_id, _task_id(context))
