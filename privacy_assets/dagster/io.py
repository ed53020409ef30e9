"""The IO manager: where the values of each asset and partition lie, and who is given them in which form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dagster as dg
import pandas as pd

from privacy_assets.dagster.fixed import FixedConfig
from privacy_assets.dagster.redaction import redact_exceptions
from privacy_assets.dagster.resources import home_of
from privacy_assets.errors import InputError, PublicationRefused
from privacy_assets.gate.keys import key_path
from privacy_assets.gate.releases import read_published
from privacy_assets.gate.statements import Kind, Place, Sealed, quoted
from privacy_assets.pipeline.private_table import PrivateTable
from privacy_assets.pipeline.values import PAGE, PUBLISHED, Published, load_stored, store_value
from privacy_assets.storage.objects import Location, location


@dataclass(frozen=True, slots=True)
class Readable:
    """Where a reader finds releases, and which keys it trusts (None: the default)."""

    releases: Location
    trusted_keys: Path | None = None


class PrivacyIOManager(FixedConfig, dg.ConfigurableIOManager):
    """Stores tables as Parquet, results as JSON and models as folders, readable by the own user only.

    ``base`` is the folder (default ``DAGSTER_HOME/storage/privacy_assets``), with one folder an asset and partition.
    A value is stored by its type. Loading gives it back, of a generator the folder: its seal is checked before anything
    of it is read (:class:`StoredTrained`). A published table comes as a DataFrame when the input is annotated so, read
    and verified from the release folder ``releases`` (default ``DAGSTER_HOME/releases``) with ``trusted_keys`` (default
    as in :class:`ReleaseResource`); the synthetic table, which may never be released, does not: depend on
    ``published``. Several partitions of tables come as one frame. ``base`` and ``releases`` may be URLs of an object
    store (``s3://bucket/storage``). Run configuration cannot change these values.

    The UI shows the path of each report page, or with ``report_url`` a link: the address under which a server of yours
    shows ``TABLE/privacy_report/report.html`` of ``base``, and nothing else of it (the rest is private).
    """

    base: str | None = None
    releases: str | None = None
    trusted_keys: str | None = None
    report_url: str | None = None

    @redact_exceptions
    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Store ``obj``; nothing for None."""
        if obj is None:
            return
        partition = context.asset_partition_key if context.has_asset_partitions else None
        home = home_of(context.step_context.instance)
        folder = self.folder(context.asset_key, partition, home=home)
        if isinstance(obj, pd.DataFrame | PrivateTable) and context.asset_key.path[-1] in _RECORDS:
            fix = "name the asset otherwise, or give it another IO manager"
            raise InputError("only a record of the gate can be stored there", where=str(folder), fix=fix)
        store_value(obj, folder)
        metadata: dict[str, dg.MetadataValue[Any]] = {"path": dg.MetadataValue.path(str(folder))}
        if type(obj).__name__ == "Report" or (isinstance(obj, Sealed) and obj.kind == "attestation"):
            report = dg.AssetKey([*context.asset_key.path[:-1], "privacy_report"])
            metadata["page"] = self.page(report, partition, home=home)
        context.add_output_metadata(metadata)

    @redact_exceptions
    def load_input(self, context: dg.InputContext) -> Any:
        """Load what the upstream asset stored; InputError when that was never materialised."""
        home = home_of(context.instance)
        keys: list[str | None] = list(context.asset_partition_keys) if context.has_asset_partitions else [None]
        wanted = context.dagster_type.typing_type if len(keys) == 1 else pd.DataFrame  # nothing else can be joined
        readable = Readable(
            Path(str(home)) / "releases" if self.releases is None else location(self.releases),
            None if self.trusted_keys is None else key_path(self.trusted_keys),
        )
        found = [
            load_value(self.folder(context.asset_key, key, home=home), context.asset_key, key, wanted, readable)
            for key in keys
        ]
        return found[0] if len(found) == 1 else _joined(found, context.asset_key)

    def page(self, key: dg.AssetKey, partition: str | None, *, home: Path | None = None) -> dg.MetadataValue[Any]:
        """Where the page of the report ``key`` opens: its path, or a link where pages are served."""
        if self.report_url is None:
            return dg.MetadataValue.path(str(self.folder(key, partition, home=home) / PAGE))
        return dg.MetadataValue.url("/".join([self.report_url.rstrip("/"), *map(quote, _parts(key, partition)), PAGE]))

    def folder(self, key: dg.AssetKey, partition: str | None = None, *, home: Path | None = None) -> Location:
        """Folder of one asset and partition; names are quoted, so that none can leave the base."""
        if self.base is None and home is None:
            raise InputError("no folder for stored values", fix="set DAGSTER_HOME or give PrivacyIOManager a base")
        base = Path(str(home)) / "storage" / "privacy_assets" if self.base is None else location(self.base)
        return base.joinpath(*_parts(key, partition))


def _parts(key: dg.AssetKey, partition: str | None) -> list[str]:
    return [quoted(part) for part in (*key.path, *([] if partition is None else [f"partition={partition}"]))]


def load_value(
    folder: Location, key: dg.AssetKey, partition: str | None, wanted: Any = None, readable: Readable | None = None
) -> Any:
    """Load what :func:`store_value` put into ``folder``; as a DataFrame when ``wanted`` is one.

    A private table is a DataFrame too, but for the pipeline's own steps, which want a :class:`PrivateTable`.

    InputError when nothing was stored; where a sealed record is wanted, an empty one, which no gate lets through.
    """
    # Whatever else lies beside a record, a release is read through the record alone.
    found = load_stored(folder, [_RECORDS[key.path[-1]]] if key.path[-1] in _RECORDS else ())
    if found is not None:
        return _as_wanted(found, wanted, key, partition, readable)
    if wanted is Sealed:  # the gate refuses it in its own words, and its check alerts
        return Sealed(_KINDS.get(key.path[-1], "result"), b"")
    raise InputError("it was not materialised yet", where=_shown(key, partition), fix="materialise it first")


def _shown(key: dg.AssetKey, partition: str | None) -> str:
    return key.to_user_string() + (f", partition {partition}" if partition is not None else "")


def _as_wanted(value: Any, wanted: Any, key: dg.AssetKey, partition: str | None, readable: Readable | None) -> Any:
    if isinstance(value, PrivateTable):
        return value if wanted is PrivateTable else value.frame()
    if wanted is PrivateTable:
        fix = "materialise it again: nothing but the pipeline writes it"
        raise InputError("the table does not carry its schema", where=_shown(key, partition), fix=fix)
    if wanted is not pd.DataFrame:
        return value
    if isinstance(value, Sealed):
        text = f"{key.to_user_string()} is not released: depend on {key.path[0]}/published, which is."
        raise PublicationRefused(text)
    if isinstance(value, Published):
        place = Place(value.table, value.partition)
        if readable is None or place != Place(key.path[0], partition):
            raise PublicationRefused(f"{_shown(key, partition)}: this record is of {place}; materialise it again.")
        return read_published(readable.releases, place.table, place.partition, trusted_keys=readable.trusted_keys)
    return value


def _joined(frames: list[Any], key: dg.AssetKey) -> Any:
    if not frames:
        raise InputError("no partition to load", where=key.to_user_string(), fix="check the partition mapping")
    if not all(isinstance(frame, pd.DataFrame) for frame in frames):
        fix = "map each partition to one upstream partition"
        raise InputError(
            "several partitions can be loaded together for tables only", where=key.to_user_string(), fix=fix
        )
    return pd.concat(frames, ignore_index=True)


_KINDS: dict[str, Kind] = {"synthetic": "snapshot", "attestation": "attestation"}
_RECORDS = {**{asset: f"{kind}.json" for asset, kind in _KINDS.items()}, "published": PUBLISHED}
