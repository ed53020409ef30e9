"""Storage of step values: one private folder per value, with files written atomically, on disk or
as objects.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from privacy_assets.errors import InputError
from privacy_assets.gate.statements import KINDS, RecordKind, SignedRecord
from privacy_assets.infra import folders
from privacy_assets.infra.files import names, open_regular, private_folder, put_atomic, read_regular
from privacy_assets.infra.objects import Location, ObjectPath, local_copy
from privacy_assets.infra.work import WorkFolder
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.report.report import Report
from privacy_assets.tables.given import given_frame
from privacy_assets.tables.table import Table

TABLE, FRAME, MODEL = "table.bin", "table.parquet", "model.json"
REPORT, PAGE, PUBLISHED = "report.json", "report.html", "published.json"
# A concurrent run may still write or read a model of this age. The model just replaced is kept at
# any age.
SPARED = timedelta(hours=6)


@dataclass(frozen=True, slots=True)
class Published:
    """Record of a publication. It names no folder: readers use their own configuration instead of
    this file.
    """

    table: str
    partition: str | None
    release: str


def store_value(value: Any, folder: Location) -> None:
    """Store ``value`` in ``folder`` by its type.

    Raises:
        InputError: If values of this type are not stored.
        FolderError: If the disk is full or read-only.
    """
    with folders.explained(folder) if isinstance(folder, Path) else nullcontext():
        _store_value(value, private_folder(folder))


def _store_value(value: Any, folder: Location) -> None:
    if isinstance(value, Table):
        value.save(kept := folder / TABLE)
    elif isinstance(value, pd.DataFrame | pd.Series) or hasattr(value, "__arrow_c_stream__"):
        rows = _rows(value)
        kept = put_atomic(
            folder / FRAME, lambda stream: pq.write_table(rows, stream, compression="zstd")
        )
    elif isinstance(value, SignedRecord):
        kept = put_atomic(folder / f"{value.kind}.json", value.data)
    elif isinstance(value, Published):
        kept = put_atomic(folder / PUBLISHED, json.dumps(asdict(value)).encode())
    elif isinstance(value, Report):
        put_atomic(folder / PAGE, value.to_html().encode())
        kept = put_atomic(folder / REPORT, json.dumps(value.to_json(), allow_nan=False).encode())
    elif callable(getattr(value, "save", None)):
        kept = _store_model(value, folder)
    else:
        fix = "return a data frame, or use another IO manager for the asset"
        raise InputError(f"PrivacyIOManager does not store {type(value).__name__}", fix=fix)
    # files of an earlier definition of the asset would be read
    for name in set(names(folder)) & set(_LOADERS):
        if name != kept.name:
            (folder / name).unlink(missing_ok=True)


def _rows(value: Any) -> pa.Table:
    frame = value.to_frame() if isinstance(value, pd.Series) else value
    frame = frame if isinstance(frame, pd.DataFrame) else given_frame(frame, where="the value")
    try:
        return pa.Table.from_pandas(frame)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        fix = "convert each column to one type, or use another IO manager for the asset"
        InputError(
            "a column of the data frame contains values of several types", fix=fix
        ).raise_without_context()


def load_stored(folder: Location, kinds: Collection[str] = ()) -> Any:
    """Load the value that :func:`store_value` stored in ``folder``.

    A generator is returned as its folder, whose signature is verified before it is read. Seals are
    not verified.

    Args:
        folder: Folder of the value.
        kinds: File names to look for. Default: all.

    Returns:
        The value, or None if there is no such file.
    """
    there = set(names(folder))
    for name in kinds or _LOADERS:
        if name in there:
            return _LOADERS[name](folder / name)
    return None


def _store_model(value: Any, folder: Location) -> Location:
    """Save a model into a new folder, and replace the pointer to it, so that readers never see a
    partial model.
    """
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
    pointer = put_atomic(
        folder / MODEL, json.dumps({"kind": _model_kind(value), "folder": name}).encode()
    )
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
    """Remove ``folder`` and its content. Errors on disk are ignored."""
    if isinstance(folder, ObjectPath):
        folder.remove_below()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _model_kind(value: Any) -> str:
    return {"Embedder": "embedder", "EvaluationInputs": "inputs"}.get(
        type(value).__name__, "generator"
    )


def _load_model(path: Location) -> Any:
    pointer = json.loads(read_regular(path))
    place = path.parent / pointer["folder"]
    if pointer["kind"] == "inputs":
        return EvaluationInputs.load(place)
    if pointer["kind"] != "embedder":
        return place
    from privacy_assets.distances.embedder import Embedder

    with local_copy(place) as folder:
        return Embedder.load(folder)


def _load_frame(path: Location) -> Any:
    with open_regular(path) as stream:
        return pq.ParquetFile(stream).read().to_pandas()


def _load_report(path: Location) -> Any:
    from privacy_assets.report.report import Report

    return Report.from_json(json.loads(read_regular(path)))


def _load_sealed(kind: RecordKind, path: Location) -> SignedRecord:
    return SignedRecord(kind, read_regular(path))


def _load_published(path: Location) -> Published:
    return Published(**json.loads(read_regular(path)))


_LOADERS: dict[str, Callable[[Location], Any]] = {
    TABLE: Table.load,
    FRAME: _load_frame,
    MODEL: _load_model,
    REPORT: _load_report,
    PUBLISHED: _load_published,
    **{f"{kind}.json": partial(_load_sealed, kind) for kind in KINDS},
}
