"""Deployment settings of the gate for Airflow tasks.

Locations, keys and credentials come from the DAG file and the worker only. Settings that can be
edited in the UI (params, Variables, Connections, run configuration) have no effect, because an
edited private location would hide earlier failures, and an added key would disable the gate.
Credentials of an object store may come from a Connection, because the buckets are named here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from pydantic import model_validator

from privacy_assets.errors import ConfigError, WrongTarget, redact_foreign_errors, safe_repr
from privacy_assets.gate.deployment import (
    SPLIT_KEY_VARIABLE,
    Deployment,
    DeploymentSettings,
    Folder,
)
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.keys import TrustedKeys
from privacy_assets.gate.releases import TRUSTED_VARIABLE
from privacy_assets.infra.objects import (
    Location,
    check_no_credentials,
    check_no_template,
    location,
    path_text,
)
from privacy_assets.infra.progress import Lines
from privacy_assets.infra.storage import local_path, storage_of
from privacy_assets.pipeline.partitions import KeyPartitions, Partitions, as_partitions
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.spec import TableSpec, spec_of
from privacy_assets.pipeline.stored_run import StoredRun
from privacy_assets.pipeline.work import TableRun

if TYPE_CHECKING:
    from airflow.sdk import Context


REPORT_URL_VARIABLE = "PRIVACY_ASSETS_REPORT_URL"
WEB = ("https://", "http://")
_BACKEND = "secrets:"
_LOCATIONS = ("home", "releases", "private", "trusted_keys", "values")  # settings
_YAML_SUFFIXES = (".yaml", ".yml")


class AirflowDeployment(DeploymentSettings):
    """Settings of a deployment for all tasks of a table.

    Unset values are read from the worker's environment. Locations must be absolute, because tasks
    start in arbitrary folders and a new private folder would contain no log of earlier failures.
    All workers need the same locations.

    Attributes:
        signing_key: File of the signing key (path or ``file:///`` URL), or ``secrets:NAME`` for the
            variable NAME of the secrets backend in Airflow's configuration; variables from the UI
            are not used. None: PRIVACY_ASSETS_SIGNING_KEY, otherwise the file in the private
            folder.
        split_key: ``secrets:NAME`` for the split key. None: PRIVACY_ASSETS_SPLIT_KEY, otherwise
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

    split_key: str | None = None
    values: Folder = None
    report_url: str | None = None
    store_conn_id: str | None = None
    device: str = "auto"

    @model_validator(mode="after")
    def _check(self) -> Self:
        locations = [
            self.locate(getattr(self, name), name)
            for name in _LOCATIONS
            if getattr(self, name) is not None
        ]
        _check_report_url(self.report_url, "report_url")
        self._check_signing_key()
        self._check_store_connection(locations)
        self._check_split_key()
        for _, value in self:
            _check_no_template(value)
        return self

    def _check_signing_key(self) -> None:
        """Raise ConfigError if the signing key is relative or in an object store."""
        path = self.signing_key
        if not path or path.startswith(_BACKEND):
            return
        if local_path(self.locate(path, "signing_key")) is None:
            raise ConfigError(
                "signing_key: an object store cannot hold keys. Fix: use a path of the worker,"
                " or secrets:NAME."
            )

    def _check_store_connection(self, locations: Iterable[Location]) -> None:
        """Raise ConfigError if a Connection is set for a store other than S3."""
        if self.store_conn_id is None:
            return
        protocols = {storage_of(path).protocol for path in locations}
        if "gs" in protocols or "gcs" in protocols:
            raise ConfigError(
                "store_conn_id: only S3 is supported; other stores use the credentials in the"
                " workers' environment."
            )

    def _check_split_key(self) -> None:
        """Raise ConfigError if the split key itself is set instead of the name of a variable."""
        if self.split_key is not None and not self.split_key.startswith(_BACKEND):
            raise ConfigError(
                f"split_key: a DAG file must not contain the split key. Fix: set {_BACKEND}NAME, or"
                f" {SPLIT_KEY_VARIABLE}."
            )

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
    def of(cls, deployment: AirflowDeployment | str | Path | None) -> AirflowDeployment:
        """Return the settings of a deployment.

        Args:
            deployment: The settings, which are returned unchanged, or the folder of releases. None:
                all are unset.

        Raises:
            ConfigError: If ``deployment`` has another type.
        """
        if deployment is None:
            return cls(releases=None)
        if isinstance(deployment, (str, Path)):
            return cls(releases=path_text(deployment))
        if not isinstance(deployment, AirflowDeployment):
            raise ConfigError(
                "deployment: expected an AirflowDeployment or the release folder, got"
                f" {safe_repr(deployment)}."
            )
        return deployment

    def locate(self, path: str | Location, setting: str) -> Location:
        """Return the location of a folder or file.

        Args:
            path: Path or URL.
            setting: Name of the setting or environment variable.

        Raises:
            ConfigError: If it is relative, or neither a path nor a URL.
        """
        located = location(path)
        if not located.is_absolute():
            raise ConfigError(
                f"{setting}: {located} is relative, and tasks start in any folder. Fix: set the"
                " absolute path."
            )
        return located

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
        if self.values is None:
            return deployment.private / "values"
        return self.locate(self.values, "values")

    def page(self, report: Location, values: Location) -> str:
        """Return the address of a report: below the report URL if set, otherwise the path or URL of
        the file.

        Args:
            report: Folder of the report.
            values: Folder of values, which contains ``report``.
        """
        file = report / "report.html"
        url = self.report_url or os.environ.get(REPORT_URL_VARIABLE)
        if not url:
            return str(file)
        check_no_credentials(url)
        relative_path = str(file).removeprefix(str(values)).lstrip("/")
        return f"{url.rstrip('/')}/{quote(relative_path)}"

    @contextmanager
    def credentials(self) -> Iterator[None]:
        """Set the signing key, the split key and the store's credentials of this process within the
        block.
        """
        settings = {
            self.signing_key_variable: self.signing_key,
            self.split_key_variable: self.split_key,
        }
        secrets = {
            variable: _secret(setting)
            for variable, setting in settings.items()
            if setting is not None
        }
        previous = {variable: os.environ.get(variable) for variable in secrets}
        _set(secrets)
        try:
            with self.store_credentials():
                yield
        finally:
            _set(previous)

    @contextmanager
    def store_credentials(self) -> Iterator[None]:
        """Set the store's credentials from the Connection, if one is named, within the block."""
        if self.store_conn_id is None:
            yield
            return
        from fsspec.config import conf

        credentials = _connection_credentials(self.store_conn_id)
        previous = {protocol: conf.get(protocol) for protocol in ("s3", "s3a")}
        for protocol in previous:
            conf[protocol] = {**conf.get(protocol, {}), **credentials}
        try:
            yield
        finally:
            for protocol, settings in previous.items():
                conf.pop(protocol, None)
                if settings is not None:
                    conf[protocol] = settings


def _check_no_template(value: object) -> None:
    """Raise ConfigError if the value of a setting, or a key of partitions, is a template."""
    texts: Iterable[object] = (value,)
    if isinstance(value, KeyPartitions):
        texts = value.keys
    for text in texts:
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


def _connection_credentials(name: str) -> dict[str, str]:
    """Return key, secret and token of an S3 store.

    Raises:
        ConfigError: If the Connection does not exist or contains no key and secret.
    """
    from airflow.sdk import Connection

    try:
        connection = Connection.get(name)
    except Exception as error:  # noqa: BLE001 (depends on the version of Airflow; can quote the Connection)
        ConfigError(
            f"store_conn_id: no Connection {safe_repr(name)} ({type(error).__name__})."
        ).raise_without_context()
    if not connection.login or not connection.password:
        raise ConfigError(
            f"Connection {safe_repr(name)} has no login or no password. Fix: set them to the"
            " access key and secret key of the object store."
        )
    credentials = {"key": connection.login, "secret": connection.password}
    extra = connection.extra_dejson or {}
    token = extra.get("token")
    if token:
        credentials["token"] = token
    return credentials


def _secret(setting: str) -> str | None:
    """Return the named secret, or None for a file, so that the environment variable is removed."""
    if not setting.startswith(_BACKEND):
        return None
    return _from_backend(setting.removeprefix(_BACKEND))


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
    value = backend.get_variable(name)
    if not value:
        raise ConfigError(
            f"{_BACKEND}{name}: the secrets backend of this worker has no such variable."
        )
    secret = str(value)
    _mask(secret)
    return secret


def _mask(secret: str) -> None:
    try:
        from airflow.sdk.log import mask_secret
    except ImportError:  # Airflow 3.0
        from airflow.sdk.execution_time.secrets_masker import mask_secret

    mask_secret(secret)


def _task_id(context: Context) -> str:
    """Return the id of a task, with its index if it is one of several mapped ones."""
    task = context["ti"]
    if task.map_index is None or task.map_index < 0:
        return task.task_id
    return f"{task.task_id}[{task.map_index}]"


def _loaded(table: TableSpec | str | Path) -> TableSpec | str:
    """Return the spec of a YAML file; a spec and a name are returned unchanged."""
    if isinstance(table, Path) or (isinstance(table, str) and table.endswith(_YAML_SUFFIXES)):
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
    if isinstance(spec, str):
        return spec
    return None


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
        **table_settings: Any,
    ) -> AirflowTable:
        """Create the settings; see :class:`PrivacyGateOperator`.

        Args:
            table: Spec, path of its YAML file, or name.
            deployment: Settings of the deployment, or its folder of releases.
            partitions: Partitions or list of keys.
            **table_settings: ``source``, ``subject``, ``generator``, ``policy`` and the groups
                ``data``, ``split``, ``evaluation`` and ``run``.

        Returns:
            The table. An AirflowTable is returned unchanged.

        Raises:
            ConfigError: If a setting is invalid.
        """
        if isinstance(table, AirflowTable):
            return table
        spec = spec_of(_loaded(table), **table_settings)
        deployment = AirflowDeployment.of(deployment)
        partitions = as_partitions(partitions)
        _check_no_template(partitions)
        resolved = ResolvedTable.of(spec, partitioned=partitions is not None)
        return cls(resolved, deployment, partitions)

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
        key = _run_partition(self.partitions, context)
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
        target = self.target(context, partition)
        deployment = self.deployment.open()
        window = None
        if self.partitions is not None and target.partition is not None:
            window = self.partitions.window(target.partition)
        # no dag_id contains a slash
        run_id = f"{context['dag_run'].dag_id}/{context['dag_run'].run_id}"
        run = TableRun(self.resolved, deployment, target, window, Lines(say), run_id=run_id)
        return StoredRun(run, self.deployment.values_of(deployment), run_id, _task_id(context))


def _run_partition(partitions: Partitions, context: Mapping[str, Any]) -> Any:
    """Return the partition key of a run, or None if it has none.

    The key of a time window follows from a time of the run if it has one. Before Airflow 3.2, the
    context contains no partition.
    """
    key = context.get("partition_key")
    if isinstance(partitions, KeyPartitions):
        return key
    when = context.get("partition_date")
    if not when and not key:
        when = context.get("data_interval_start") or context.get("logical_date")
    if isinstance(when, datetime):
        return partitions.of(when)
    return key
