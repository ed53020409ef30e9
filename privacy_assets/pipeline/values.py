"""Values of the steps in storage: one private folder a value, every file placed atomically, on disk or as objects."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from privacy_assets.errors import InputError
from privacy_assets.gate.statements import KINDS, Kind, Sealed
from privacy_assets.pipeline.encoded import StoredEncoded
from privacy_assets.pipeline.private_table import PrivateTable
from privacy_assets.pipeline.training import StoredTrained
from privacy_assets.storage.files import names, open_regular, private_folder, put_atomic, read_regular
from privacy_assets.storage.objects import Location, ObjectPath, local_copy
from privacy_assets.storage.work import WorkFolder

TABLE, MODEL, REPORT, PAGE = "table.parquet", "model.json", "report.json", "report.html"
PUBLISHED = "published.json"
# Another run may be writing a model of this age, or reading it; it may be reading the one just replaced at any age.
SPARED = timedelta(hours=6)


@dataclass(frozen=True, slots=True)
class Published:
    """That a table was published. It names no folder: a reader believes its own configuration, not this file."""

    table: str
    partition: str | None
    release: str


def store_value(value: Any, folder: Location) -> None:
    """Store ``value`` in ``folder`` by its type; InputError for a type that is not stored here."""
    private_folder(folder)
    if isinstance(value, PrivateTable):
        kept = _store_table(value.to_arrow(), folder)
    elif isinstance(value, pd.DataFrame):
        kept = _store_table(pa.Table.from_pandas(value, preserve_index=False), folder)
    elif isinstance(value, Sealed):
        kept = put_atomic(folder / f"{value.kind}.json", value.data)
    elif isinstance(value, Published):
        kept = put_atomic(folder / PUBLISHED, json.dumps(asdict(value)).encode())
    elif type(value).__name__ == "Report":
        put_atomic(folder / PAGE, value.to_html().encode())
        kept = put_atomic(folder / REPORT, json.dumps(value.to_json(), allow_nan=False).encode())
    elif callable(getattr(value, "save", None)):
        kept = _store_model(value, folder)
    else:
        fix = "give the asset another IO manager"
        raise InputError(f"PrivacyIOManager does not store {type(value).__name__}", fix=fix)
    for name in set(names(folder)) & set(_LOADERS):  # what an earlier definition of the asset left would be read
        if name != kept.name:
            (folder / name).unlink(missing_ok=True)


def load_stored(folder: Location, kinds: Collection[str] = ()) -> Any:
    """What :func:`store_value` put into ``folder``; None when nothing of ``kinds``, names of files (all), is there.

    A model comes as its folder, whose seal is checked before anything of it is read.
    """
    there = set(names(folder))
    for name in kinds or _LOADERS:
        if name in there:
            return _LOADERS[name](folder / name)
    return None


def _store_table(table: pa.Table, folder: Location) -> Location:
    return put_atomic(folder / TABLE, lambda stream: pq.write_table(table, stream, compression="zstd"))


def _store_model(value: Any, folder: Location) -> Location:
    """Save into a new folder and point to it: a reader never sees half a model."""
    now = datetime.now(UTC)
    name = f"{_named(now)}-{uuid.uuid4().hex}"
    place = folder / name
    if isinstance(place, ObjectPath):
        with WorkFolder() as made:
            value.save(made)
            place.upload(made)
    else:
        value.save(private_folder(place))
    replaced = _folder_of(folder / MODEL) if MODEL in names(folder) else None
    pointer = put_atomic(folder / MODEL, json.dumps({"kind": _model_kind(value), "folder": name}).encode())
    for other in names(folder):
        young = _named(now - SPARED) <= other <= _named(now + SPARED)
        if other.startswith("model-") and other != replaced and not young:
            remove_folder(folder / other)
    return pointer


def _folder_of(pointer: Location) -> str | None:
    try:
        return str(json.loads(read_regular(pointer))["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _named(when: datetime) -> str:
    return f"model-{when:%Y%m%dT%H%M%S}"


def remove_folder(folder: Location) -> None:
    """Remove all that lies in ``folder``; what cannot be removed stays."""
    if isinstance(folder, ObjectPath):
        folder.remove_below()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _model_kind(value: Any) -> str:
    return {"Embedder": "embedder", "Encoded": "encoded"}.get(type(value).__name__, "generator")


def _load_model(path: Location) -> Any:
    pointer = json.loads(read_regular(path))
    place = path.parent / pointer["folder"]
    if pointer["kind"] == "encoded":
        return StoredEncoded(place)
    if pointer["kind"] != "embedder":
        return StoredTrained(place)
    from privacy_assets.embedding.embedder import Embedder

    with local_copy(place) as folder:
        return Embedder.load(folder)


def _load_table(path: Location) -> Any:
    with open_regular(path) as stream:
        table = pq.ParquetFile(stream).read()
    return PrivateTable.of_arrow(table, where=path.parent.name) or table.to_pandas()


def _load_report(path: Location) -> Any:
    from privacy_assets.report.report import Report

    return Report.from_json(json.loads(read_regular(path)))


def _load_sealed(kind: Kind, path: Location) -> Sealed:
    return Sealed(kind, read_regular(path))


def _load_published(path: Location) -> Published:
    return Published(**json.loads(read_regular(path)))


_LOADERS: dict[str, Callable[[Location], Any]] = {
    TABLE: _load_table,
    MODEL: _load_model,
    REPORT: _load_report,
    PUBLISHED: _load_published,
    **{f"{kind}.json": partial(_load_sealed, kind) for kind in KINDS},
}
