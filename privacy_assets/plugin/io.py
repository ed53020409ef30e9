"""Storage of the pipeline's values: one private folder an asset and partition, every file placed atomically."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from privacy_assets.engine.results import MetricResult
from privacy_assets.errors import InputError
from privacy_assets.gate.atomic import put_atomic
from privacy_assets.gate.attestation import Attestation
from privacy_assets.gate.releases import quoted, read_published
from privacy_assets.gate.snapshot import Snapshot, read_snapshot
from privacy_assets.plugin.resources import home_of, private_folder

TABLE, MODEL, REPORT, PAGE = "table.parquet", "model.json", "report.json", "report.html"
TRAINED_ON = "trained_on.json"


@dataclass(frozen=True, slots=True)
class Published:
    """Where a published table stands; loaded as a frame it is read, and verified, through the gate."""

    root: str
    table: str
    partition: str | None
    release: str


@dataclass(frozen=True, slots=True)
class Trained:
    """A fitted generator, and the keyed fingerprint of the train table that it was fitted to."""

    generator: Any
    train: str

    def save(self, folder: Path) -> None:
        """Write both into ``folder``."""
        self.generator.save(folder)
        put_atomic(folder / TRAINED_ON, json.dumps({"train": self.train}).encode())

    @classmethod
    def load(cls, folder: Path) -> Trained:
        """Inverse of :meth:`save`."""
        from privacy_assets.engine.generators import load_generator

        return cls(load_generator(folder), json.loads((folder / TRAINED_ON).read_bytes())["train"])


class PrivacyIOManager(dg.ConfigurableIOManager):
    """Stores tables as Parquet, results as JSON and models as folders, readable by the own user only.

    ``base`` is the folder (default ``DAGSTER_HOME/storage/privacy_assets``), with one folder an asset and partition.
    A value is stored by its type. Loading gives it back; a snapshot or a published table comes as a DataFrame when the
    input is annotated so. Several partitions of tables come as one frame. A local or shared folder, no object store.
    """

    base: str = ""

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Store ``obj``; nothing for None."""
        if obj is None:
            return
        partition = context.asset_partition_key if context.has_asset_partitions else None
        folder = self.folder(context.asset_key, partition, home=home_of(context.step_context.instance))
        store_value(obj, folder)
        shown = folder / PAGE if (folder / PAGE).is_file() else folder
        context.add_output_metadata({"path": dg.MetadataValue.path(str(shown))})

    def load_input(self, context: dg.InputContext) -> Any:
        """Load what the upstream asset stored; InputError when that was never materialised."""
        wanted = context.dagster_type.typing_type
        home = home_of(context.instance)
        keys: list[str | None] = list(context.asset_partition_keys) if context.has_asset_partitions else [None]
        found = [
            load_value(self.folder(context.asset_key, key, home=home), context.asset_key, key, wanted) for key in keys
        ]
        return found[0] if len(found) == 1 else _joined(found, context.asset_key)

    def folder(self, key: dg.AssetKey, partition: str | None = None, *, home: Path | None = None) -> Path:
        """Folder of one asset and partition; names are quoted, so that none can leave the base."""
        if not self.base and home is None:
            raise InputError("no folder for stored values", fix="set DAGSTER_HOME or give PrivacyIOManager a base")
        base = Path(self.base) if self.base else Path(str(home)) / "storage" / "privacy_assets"
        parts = [*key.path, *([] if partition is None else [f"partition={partition}"])]
        return base.joinpath(*[quoted(part) for part in parts])


def store_value(value: Any, folder: Path) -> None:
    """Store ``value`` in ``folder`` by its type; TypeError for a type that is not stored here."""
    private_folder(folder)
    if isinstance(value, pd.DataFrame):
        table = pa.Table.from_pandas(value.reset_index(drop=True), preserve_index=False)
        put_atomic(folder / TABLE, lambda stream: pq.write_table(table, stream, compression="zstd"))
    elif type(value) in _JSON:
        name, encode, _ = _JSON[type(value)]
        put_atomic(folder / name, encode(value))
    elif type(value).__name__ == "Report":
        put_atomic(folder / PAGE, value.to_html().encode())
        put_atomic(folder / REPORT, json.dumps(value.to_json(), allow_nan=False).encode())
    elif callable(getattr(value, "save", None)):
        _store_model(value, folder)
    else:
        raise TypeError(f"PrivacyIOManager does not store {type(value).__name__}; give the asset another IO manager.")


def load_value(folder: Path, key: dg.AssetKey, partition: str | None, wanted: Any = None) -> Any:
    """Load what :func:`store_value` put into ``folder``; as a DataFrame when ``wanted`` is one."""
    for name, load in _LOADERS.items():
        if (folder / name).is_file():
            return _as_wanted(load(folder / name), wanted)
    place = key.to_user_string() + (f", partition {partition}" if partition is not None else "")
    raise InputError("it was not materialised yet", where=place, fix="materialise it first")


def _as_wanted(value: Any, wanted: Any) -> Any:
    if wanted is not pd.DataFrame:
        return value
    if isinstance(value, Snapshot):
        return read_snapshot(value)
    if isinstance(value, Published):
        return read_published(value.root, value.table, value.partition)
    return value


def _joined(found: list[Any], key: dg.AssetKey) -> Any:
    frames = [read_snapshot(value) if isinstance(value, Snapshot) else value for value in found]
    frames = [_as_wanted(value, pd.DataFrame) for value in frames]
    if not frames:
        raise InputError("no partition to load", where=key.to_user_string(), fix="check the partition mapping")
    if not all(isinstance(frame, pd.DataFrame) for frame in frames):
        fix = "map each partition to one upstream partition"
        raise InputError(
            "several partitions can be loaded together for tables only", where=key.to_user_string(), fix=fix
        )
    joined = pd.concat(frames, ignore_index=True)
    joined.attrs = dict(frames[0].attrs)
    return joined


def _store_model(value: Any, folder: Path) -> None:
    """Save into a new folder and point to it: a reader never sees half a model."""
    name = f"model-{uuid.uuid4().hex}"
    value.save(private_folder(folder / name))
    put_atomic(folder / MODEL, json.dumps({"kind": _model_kind(value), "folder": name}).encode())
    for old in folder.glob("model-*"):
        if old.name != name:
            shutil.rmtree(old, ignore_errors=True)


def _model_kind(value: Any) -> str:
    return "embedder" if type(value).__name__ == "Embedder" else "generator"


def _load_model(path: Path) -> Any:
    pointer = json.loads(path.read_bytes())
    folder = path.parent / pointer["folder"]
    if pointer["kind"] == "embedder":
        from privacy_assets.engine.geometry.embedder import Embedder

        return Embedder.load(folder)
    return Trained.load(folder)


def _load_table(path: Path) -> pd.DataFrame:
    frame: pd.DataFrame = pq.ParquetFile(path).read().to_pandas()
    return frame


def _load_report(path: Path) -> Any:
    from privacy_assets.report.report import Report

    return Report.from_json(json.loads(path.read_bytes()))


def _load_json(decode: Callable[[bytes], Any], path: Path) -> Any:
    return decode(path.read_bytes())


def _json_bytes(value: Any) -> bytes:
    return json.dumps(value.to_json() if hasattr(value, "to_json") else asdict(value), allow_nan=False).encode()


_JSON: dict[type, tuple[str, Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    MetricResult: ("result.json", _json_bytes, lambda data: MetricResult.from_json(json.loads(data))),
    Attestation: ("attestation.json", Attestation.to_bytes, Attestation.from_bytes),
    Snapshot: ("snapshot.json", _json_bytes, lambda data: Snapshot(**json.loads(data))),
    Published: ("published.json", _json_bytes, lambda data: Published(**json.loads(data))),
}
_LOADERS: dict[str, Callable[[Path], Any]] = {
    TABLE: _load_table,
    MODEL: _load_model,
    REPORT: _load_report,
    **{name: partial(_load_json, decode) for name, _, decode in _JSON.values()},
}
