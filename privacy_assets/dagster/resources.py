"""Resource with the deployment: locations of releases and private data, signing key, split key."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import dagster as dg
import pandas as pd
import pyarrow as pa
from pydantic import Field, PrivateAttr

from privacy_assets.dagster.failures import redact_exceptions
from privacy_assets.dagster.frozen_config import RELEASES, FixedConfig, frozen_config
from privacy_assets.errors import ConfigError, InputError, WrongTarget
from privacy_assets.gate.deployment import Deployment, DeploymentSettings
from privacy_assets.gate.envelope import ReleaseTarget, SignedFile, SignedFileKind, quoted
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keys import key_path
from privacy_assets.gate.releases import read_published
from privacy_assets.infra.devices import lease_device
from privacy_assets.infra.objects import Location, location
from privacy_assets.pipeline.values import PAGE, PUBLISHED, Published, load_stored, store_value
from privacy_assets.report.report import Report
from privacy_assets.tables.table import Table

# prefix of the temporary homes of `dagster dev` and other commands
_TEMPORARY_HOME = ".tmp_dagster_home_"
# kind and name of the file that is the value of an asset, by the name of the asset
_SIGNED_KINDS: dict[str, SignedFileKind] = {"synthetic": "snapshot", "attestation": "attestation"}
_RECORD_FILES = {
    "synthetic": "snapshot.json",
    "attestation": "attestation.json",
    "published": PUBLISHED,
}
_CONFIGURABLE = (dg.ResourceDefinition, dg.ConfigurableResource, dg.ConfigurableIOManagerFactory)
_LOGGER = logging.getLogger(__name__)


class ReleaseResource(FixedConfig, DeploymentSettings, dg.ConfigurableResource):
    """Resource with the settings of a deployment; see :class:`.DeploymentSettings`.

    The default ``home`` is DAGSTER_HOME. It is required on a temporary Dagster instance (without
    DAGSTER_HOME), unless ``releases`` and ``private`` are set, which are never read from the
    environment.

    The split key determines the split: which subjects are in train, holdout and reference. Keep it,
    and keep it secret. It is created on first use. ``split.check`` in the private folder, a keyed
    hash of a constant, detects a changed or lost split key, which is not replaced.

    The first key pair is created only if no key was configured, no key is trusted and no release
    exists. If keys are configured, the private folder must exist. Provide the variable of the
    signing key only to steps, or use the file: the code server and the run process also evaluate
    the configuration of other assets, which can refer to any variable.

    In an object store, ``releases`` and ``private`` must be prepared by ``privacy-assets prepare``.
    Object stores cannot hold keys: set the variables of the signing key and the split key, and use
    a local folder of trusted keys.

    The attributes are paths and names, never keys, because the UI displays them. Run configuration
    cannot change them.

    Raises:
        ConfigError: If an attribute is empty, or (on use) no location is known or it would be
            temporary.
    """

    _home: Path | None = PrivateAttr(default=None)
    _is_temporary: bool = PrivateAttr(default=False)
    _deployment: Deployment | None = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Store the home of the Dagster instance, the default location, and whether it is
        temporary.

        Args:
            context: Context of the resource.
        """
        self._home = home_of(context.instance)
        self._deployment = None
        self._is_temporary = is_temporary(context.instance)

    @property
    def deployment(self) -> Deployment:
        """Locations and keys of the gate."""
        if self._deployment is None:
            self._deployment = self.open()
        return self._deployment

    def gate(self) -> Gate:
        """Return the gate of this deployment. Creates the first key pair if none exists or is
        configured.
        """
        return self.deployment.gate()

    def key(self, purpose: str) -> bytes:
        """Derive a key from the split key.

        Args:
            purpose: Purpose of the key. Different purposes have independent keys.
        """
        return self.deployment.key(purpose)

    def folder(self, name: Literal["releases", "private"]) -> Location | None:
        """Return the location of a folder, from the setting, ``home`` or DAGSTER_HOME, in this
        order.

        Args:
            name: Name of the setting.

        Raises:
            ConfigError: If no home is known, or it is temporary.
        """
        if getattr(self, name) is not None or self.home is not None:
            return super().folder(name)
        if self._is_temporary:
            raise ConfigError(
                f"ReleaseResource: this Dagster instance is temporary, and the folder for {name}"
                " would be deleted with it. Fix: set DAGSTER_HOME to a folder that stays (from"
                " Python, also pass instance=DagsterInstance.get()), or give ReleaseResource a"
                " home."
            )
        home = self._home
        if home is None and os.environ.get("DAGSTER_HOME"):
            home = Path(os.environ["DAGSTER_HOME"])
        if home is None:
            raise ConfigError(
                "ReleaseResource: no home is set. Fix: set DAGSTER_HOME, or give"
                " ReleaseResource a home."
            )
        return home / name


def is_temporary(instance: dg.DagsterInstance | None) -> bool:
    """Return True if the home of ``instance`` is temporary: ephemeral, or of a Dagster command
    without DAGSTER_HOME.
    """
    if instance is None:
        return False
    if instance.is_ephemeral:
        return True
    folders = Path(instance.root_directory).parts
    return any(folder.startswith(_TEMPORARY_HOME) for folder in folders)


def home_of(instance: dg.DagsterInstance | None) -> Path | None:
    """Return the home of a Dagster instance: DAGSTER_HOME, or the temporary folder of an ephemeral
    one.
    """
    if instance is None:
        return None
    return Path(instance.root_directory)


class GpuResource(FixedConfig, dg.ConfigurableResource):
    """Resource that leases a device to the steps that use torch, on the machine where the step
    runs.

    Attributes:
        device: "auto" (a free CUDA device, else MPS, else the CPU), "cuda" (any CUDA device),
            "cuda:N", "mps" or "cpu". The CPU is not leased; limit its use with the executor.
        slots: Maximum number of steps that share an accelerator, at least 1.
        lock_folder: Folder of the lock files. All processes that share the devices need the same
            one. "": a folder of the current user below the temporary directory, independent of
            DAGSTER_HOME. Set it if containers or users share a GPU.
        timeout_s: Maximum wait in seconds. None: no limit.
    """

    device: str = "auto"
    slots: int = Field(default=1, ge=1)
    lock_folder: str = ""
    timeout_s: float | None = None

    @contextmanager
    def lease(self, log: logging.Logger | None = None) -> Iterator[str]:
        """Lease a device for the ``with`` block, and yield its torch name.

        Args:
            log: Logger for the device and for waiting, for example ``context.log``. None: the
                logger of this module.

        Raises:
            LeaseTimeout: If no device became free in time.
            ConfigError: If the device does not exist.
        """
        say = (log or _LOGGER).info
        lock_folder = self.lock_folder or None
        with lease_device(
            lock_folder, self.device, self.slots, self.timeout_s, on_wait=say
        ) as device:
            say(f"device: {device}")
            yield device


@dataclass(frozen=True, slots=True)
class ReleaseAccess:
    """Access to published tables.

    Attributes:
        releases: Folder of releases.
        trusted_keys: Trusted public keys. None: the default of :func:`read_published`.
    """

    releases: Location
    trusted_keys: Path | None = None


class PrivacyIOManager(FixedConfig, dg.ConfigurableIOManager):
    """IO manager that stores tables, results as JSON and models as folders, for the current user
    only.

    The type of a value determines its format: private tables are files of arrays, data frames
    (pandas, polars, Arrow, DuckDB) and pandas series Parquet. Other values need another IO manager.
    A fitted generator is loaded as its folder, whose signature is verified before its contents are
    read (:meth:`.Trained.load`).

    An input that depends on ``published`` receives the released rows, read from the release folder
    and verified: as a pandas DataFrame, or as the type that annotates it (polars DataFrame or
    LazyFrame, Arrow Table, DuckDB relation). An input annotated as :class:`.Published` receives the
    record. The synthetic table may never be released, so it cannot be loaded as a data frame;
    depend on ``published`` instead. Several partitions of a table are concatenated. Run
    configuration cannot change the attributes.

    Attributes:
        base: Folder of the values or its URL (``s3://bucket/storage``), with one folder per asset
            and partition. None: ``storage/privacy_assets`` in ``home``.
        releases: Release folder or its URL, for loading published tables. None: ``releases`` in
            ``home``.
        trusted_keys: Folder of trusted public keys, or one key. None: PRIVACY_ASSETS_TRUSTED_KEYS,
            otherwise ``trusted_keys`` next to the releases.
        report_url: URL under which your web server serves ``TABLE/privacy_report/report.html`` of
            ``base``, and no other file of it (the rest is private). None: the UI shows the path of
            the report.
        home: Folder of the deployment; see :class:`ReleaseResource`. None: DAGSTER_HOME.
    """

    base: str | None = None
    releases: str | None = None
    trusted_keys: str | None = None
    report_url: str | None = None
    home: str | None = None

    @redact_exceptions
    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Store the value of an asset.

        Args:
            context: Context of the output.
            obj: Value. None is not stored.

        Raises:
            InputError: If the asset has the name of a signed file of the gate, and ``obj`` is
                another value.
        """
        if obj is None:
            return
        key = context.asset_key
        partition = None
        if context.has_asset_partitions:
            partition = context.asset_partition_key
        home = home_of(context.step_context.instance)
        folder = self.folder(key, partition, home=home)
        is_signed = isinstance(obj, SignedFile | Published)
        if key.path[-1] in _RECORD_FILES and not is_signed:
            fix = "rename the asset, or give it another IO manager"
            raise InputError(
                "only a signed file of the gate can be stored there", where=str(folder), fix=fix
            )
        store_value(obj, folder)
        metadata: dict[str, dg.MetadataValue[Any]] = {"path": dg.MetadataValue.path(str(folder))}
        is_attestation = isinstance(obj, SignedFile) and obj.kind == "attestation"
        if isinstance(obj, Report) or is_attestation:
            report_key = dg.AssetKey([*key.path[:-1], "privacy_report"])
            metadata["page"] = self.page(report_key, partition, home=home)
        context.add_output_metadata(metadata)

    @redact_exceptions
    def load_input(self, context: dg.InputContext) -> Any:
        """Load the value of the upstream asset.

        Args:
            context: Context of the input.

        Raises:
            InputError: If it was not materialized, several partitions of a value other than a table
                are requested, or rows of a table that is not released.
            PublicationBlocked: If the release fails verification.
        """
        home = home_of(context.instance)
        partitions: list[str | None] = [None]
        if context.has_asset_partitions:
            partitions = list(context.asset_partition_keys)
        input_type = context.dagster_type.typing_type
        access = self._release_access(home)
        key = context.asset_key
        if len(partitions) == 1:
            folder = self.folder(key, partitions[0], home=home)
            return load_value(folder, key, partitions[0], input_type, access)
        frames = []
        for partition in partitions:
            folder = self.folder(key, partition, home=home)
            frames.append(load_value(folder, key, partition, pd.DataFrame, access))
        return _converted(_concatenated(frames, key), input_type, key.to_user_string())

    def page(
        self, key: dg.AssetKey, partition: str | None, *, home: Path | None = None
    ) -> dg.MetadataValue[Any]:
        """Return the link to a report: its path, or a URL if ``report_url`` is set.

        Args:
            key: Key of the report asset.
            partition: Partition, or None.
            home: Home of the Dagster instance, used if the attribute ``home`` is None.
        """
        if self.report_url is None:
            folder = self.folder(key, partition, home=home)
            return dg.MetadataValue.path(str(folder / PAGE))
        parts = map(quote, _folder_parts(key, partition))
        url = "/".join([self.report_url.rstrip("/"), *parts, PAGE])
        return dg.MetadataValue.url(url)

    def folder(
        self, key: dg.AssetKey, partition: str | None = None, *, home: Path | None = None
    ) -> Location:
        """Return the folder of an asset and partition. Names are quoted, so that the folder is
        always within ``base``.

        Args:
            key: Key of the asset.
            partition: Partition, or None.
            home: Home of the Dagster instance, used if the attribute ``home`` is None.

        Raises:
            InputError: If neither ``base`` nor a home is known.
        """
        if self.base is None:
            base = self._home_folder(home) / "storage" / "privacy_assets"
        else:
            base = location(self.base)
        return base.joinpath(*_folder_parts(key, partition))

    def _home_folder(self, instance_home: Path | None) -> Location:
        if self.home is not None:
            return location(self.home)
        if instance_home is None:
            raise InputError(
                "no folder for stored values",
                fix="set DAGSTER_HOME or give PrivacyIOManager a home",
            )
        return instance_home

    def _release_access(self, instance_home: Path | None) -> ReleaseAccess:
        if self.releases is None:
            releases = self._home_folder(instance_home) / "releases"
        else:
            releases = location(self.releases)
        trusted_keys = None
        if self.trusted_keys is not None:
            trusted_keys = key_path(self.trusted_keys)
        return ReleaseAccess(releases, trusted_keys)


def _folder_parts(key: dg.AssetKey, partition: str | None) -> list[str]:
    parts = list(key.path)
    if partition is not None:
        parts.append(f"partition={partition}")
    return [quoted(part) for part in parts]


def load_value(
    folder: Location,
    key: dg.AssetKey,
    partition: str | None,
    input_type: Any = None,
    access: ReleaseAccess | None = None,
) -> Any:
    """Load a value written by :func:`store_value`.

    Args:
        folder: Folder of the value.
        key: Key of the asset.
        partition: Partition, or None.
        input_type: Type of the input. Tables, also private ones, are converted to it; None or Any:
            pandas. Steps of the pipeline request :class:`Table`.
        access: Access to published tables. None: their rows cannot be read.

    Returns:
        The value. If there is none and ``input_type`` is SignedFile, an empty file, which the
        gate rejects.

    Raises:
        InputError: If there is no value, a private table has no schema, a table cannot be converted
            to ``input_type``, or a data frame is requested for a table that is not released.
        PublicationBlocked: If the release fails verification.
    """
    asset = key.path[-1]
    files = []
    if asset in _RECORD_FILES:
        # Releases are read through this file only; other files in the folder are ignored.
        files.append(_RECORD_FILES[asset])
    value = load_stored(folder, files)
    if value is not None:
        return _as_input(value, input_type, key, partition, access)
    if input_type is SignedFile:  # the gate rejects it with its own message
        return SignedFile(_SIGNED_KINDS.get(asset, "result"), b"")
    raise InputError(
        "it was not materialized yet", where=_name_of(key, partition), fix="materialize it first"
    )


def _name_of(key: dg.AssetKey, partition: str | None) -> str:
    name = key.to_user_string()
    if partition is None:
        return name
    return f"{name}, partition {partition}"


def _as_input(
    value: Any,
    input_type: Any,
    key: dg.AssetKey,
    partition: str | None,
    access: ReleaseAccess | None,
) -> Any:
    """Return a stored value as the type that annotates the input; see :func:`load_value`."""
    where = _name_of(key, partition)
    if isinstance(value, Table):
        if input_type is Table:
            return value
        return _converted(value.frame(), input_type, where)
    if input_type is Table:
        fix = "materialize it again; only the pipeline may write this file"
        raise InputError("the table has no schema", where=where, fix=fix)
    if isinstance(value, SignedFile) and _type_name(input_type) in _CONVERTERS:
        published_key = dg.AssetKey([*key.path[:-1], "published"])
        raise InputError(
            "the table is not released",
            where=key.to_user_string(),
            fix=f"depend on {published_key.to_user_string()}",
        )
    if isinstance(value, Published) and input_type is not Published:
        value = _released_rows(value, key, partition, access)
    if isinstance(value, pd.DataFrame):
        return _converted(value, input_type, where)
    return value


def _released_rows(
    record: Published, key: dg.AssetKey, partition: str | None, access: ReleaseAccess | None
) -> pd.DataFrame:
    """Return the rows that readers have now, if ``record`` is of the table and partition of the
    asset.
    """
    target = ReleaseTarget(record.table, record.partition)
    table_name = "".join(key.path[-2:-1])
    if access is None or target != ReleaseTarget(table_name, partition):
        text = f"{_name_of(key, partition)}: this is the file of a release of {target}"
        raise WrongTarget(text, record="pointer")
    return read_published(
        access.releases, target.table, target.partition, trusted_keys=access.trusted_keys
    )


def _type_name(input_type: Any) -> str:
    """Return library and name of a type; its module within the library is not stable."""
    module = getattr(input_type, "__module__", "")
    library = module.strip("_").partition(".")[0]
    name = getattr(input_type, "__name__", "")
    return f"{library}.{name}"


def _arrow(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame)


def _polars(frame: pd.DataFrame) -> Any:
    import polars

    return polars.from_arrow(_arrow(frame))


def _relation(frame: pd.DataFrame) -> Any:
    import duckdb

    return duckdb.from_arrow(_arrow(frame))


_CONVERTERS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas.DataFrame": lambda frame: frame,
    # a table of several columns stays a frame
    "pandas.Series": lambda frame: frame.squeeze(axis="columns"),
    "polars.DataFrame": _polars,
    "polars.LazyFrame": lambda frame: _polars(frame).lazy(),
    "pyarrow.Table": _arrow,
    "duckdb.DuckDBPyRelation": _relation,
}


def _converted(frame: pd.DataFrame, input_type: Any, where: str) -> Any:
    """Convert a frame to the type that annotates an input. None, Any and object: pandas."""
    if input_type in (None, Any, object):
        return frame
    type_name = _type_name(input_type)
    if type_name not in _CONVERTERS:
        fix = f"annotate the input with {', '.join(_CONVERTERS)}, or not at all"
        raise InputError(f"a table cannot be loaded as {type_name}", where=where, fix=fix)
    return _CONVERTERS[type_name](frame)


def _concatenated(values: Sequence[Any], key: dg.AssetKey) -> pd.DataFrame:
    """Concatenate the tables of several partitions.

    Raises:
        InputError: If there is no partition, or a value is not a table.
    """
    where = key.to_user_string()
    if not values:
        raise InputError("no partition to load", where=where, fix="check the partition mapping")
    if not all(isinstance(value, pd.DataFrame) for value in values):
        raise InputError(
            "several partitions can be loaded together for tables only",
            where=where,
            fix="map each partition to one upstream partition",
        )
    return pd.concat(values, ignore_index=True)


def resources(**overrides: Any) -> dict[str, Any]:
    """Return the resources of :func:`build_privacy_assets`, and yours, with their configuration
    fixed in code.

    Args:
        overrides: Your resources by key, instead of or in addition to the defaults ``privacy_io``
            (:class:`PrivacyIOManager`), ``releases`` (:class:`ReleaseResource`), ``gpu``
            (:class:`GpuResource`) and ``io_manager``, the IO manager of assets that name none
            (default: ``privacy_io``).

    Returns:
        The resources of ``dg.Definitions``. Run configuration cannot change them, because
        :func:`.frozen_config` is applied to each that is configurable. Exception: those of
        ``configure_at_launch``, with which no table runs that requires them.
    """
    by_name = {
        "privacy_io": PrivacyIOManager(),
        RELEASES: ReleaseResource(),
        "gpu": GpuResource(),
        **overrides,
    }
    by_name = {"io_manager": by_name["privacy_io"], **by_name}
    frozen = {}
    for name, resource in by_name.items():
        frozen[name] = resource
        if isinstance(resource, _CONFIGURABLE):  # not a plain object
            frozen[name] = frozen_config(resource)
    return frozen
