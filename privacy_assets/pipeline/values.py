"""Storage of step values: one private folder per value, with files written atomically, on disk or
as objects.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from privacy_assets.errors import InputError
from privacy_assets.gate.envelope import KINDS, SignedFile, SignedFileKind
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import storage_of
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.stored_inputs import load_inputs, save_inputs
from privacy_assets.report.report import Report
from privacy_assets.tables.given import given_frame
from privacy_assets.tables.table import Table

TABLE = "table.bin"
FRAME = "table.parquet"
MODEL = "model.json"
REPORT = "report.json"
PAGE = "report.html"
PUBLISHED = "published.json"
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
    """Store a value by its type.

    Args:
        value: Table, data frame, signed file, report, or an object with ``save``.
        folder: Folder of the value. Files of earlier values are removed.

    Raises:
        InputError: If values of this type are not stored.
        FolderError: If the disk is full or read-only.
    """
    storage = storage_of(folder)
    with storage.explained():
        storage.make_private()
        written = _write(value, folder)
        # files of an earlier definition of the asset would be read
        for name in set(storage.names()) & set(_LOADERS):
            if name != written:
                (folder / name).unlink(missing_ok=True)


def _write(value: Any, folder: Location) -> str:
    """Write a value, and return the name of the file from which it is loaded."""
    if isinstance(value, Table):
        value.save(folder / TABLE)
        return TABLE
    if isinstance(value, pd.DataFrame | pd.Series) or hasattr(value, "__arrow_c_stream__"):
        rows = _rows(value)
        storage_of(folder / FRAME).put(
            lambda stream: pq.write_table(rows, stream, compression="zstd")
        )
        return FRAME
    if isinstance(value, SignedFile):
        name = f"{value.kind}.json"
        storage_of(folder / name).put(value.data)
        return name
    if isinstance(value, Published):
        storage_of(folder / PUBLISHED).put(json.dumps(asdict(value)).encode())
        return PUBLISHED
    if isinstance(value, Report):
        storage_of(folder / PAGE).put(value.to_html().encode())
        text = json.dumps(value.to_json(), allow_nan=False)
        storage_of(folder / REPORT).put(text.encode())
        return REPORT
    if isinstance(value, EvaluationInputs) or callable(getattr(value, "save", None)):
        _store_model(value, folder)
        return MODEL
    fix = "return a data frame, or use another IO manager for the asset"
    raise InputError(f"PrivacyIOManager does not store {type(value).__name__}", fix=fix)


def _rows(value: Any) -> pa.Table:
    if isinstance(value, pd.Series):
        value = value.to_frame()
    if not isinstance(value, pd.DataFrame):
        value = given_frame(value, where="the value")
    try:
        return pa.Table.from_pandas(value)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        fix = "convert each column to one type, or use another IO manager for the asset"
        problem = "a column of the data frame contains values of several types"
        InputError(problem, fix=fix).raise_without_context()


def load_stored(folder: Location, kinds: Collection[str] = ()) -> Any:
    """Load the value that :func:`store_value` stored in ``folder``.

    A generator is returned as its folder, whose signature is verified before it is read. Signatures
    are not verified.

    Args:
        folder: Folder of the value.
        kinds: File names to look for. Default: all.

    Returns:
        The value, or None if there is no such file.
    """
    stored = set(storage_of(folder).names())
    for name in kinds or _LOADERS:
        if name in stored:
            return _LOADERS[name](folder / name)
    return None


def _store_model(value: Any, folder: Location) -> None:
    """Save a model into a new folder, and replace the pointer to it, so that readers never see a
    partial model.
    """
    written_at = datetime.now(UTC)
    name = f"{_model_name(written_at)}-{uuid.uuid4().hex}"
    with storage_of(folder / name).filled() as model_folder:
        _save_model(value, model_folder)
    storage = storage_of(folder)
    old_name = None
    if MODEL in storage.names():
        old_name = _folder_of(folder / MODEL)
    text = json.dumps({"kind": _model_kind(value), "folder": name})
    storage_of(folder / MODEL).put(text.encode())
    earliest = _model_name(written_at - SPARED)
    latest = _model_name(written_at + SPARED)
    for entry in storage.names():
        is_spared = entry == old_name or earliest <= entry <= latest
        if entry.startswith("model-") and not is_spared:
            storage_of(folder / entry).remove_below()


def _folder_of(pointer: Location) -> str | None:
    try:
        return str(json.loads(storage_of(pointer).read())["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _model_name(when: datetime) -> str:
    return f"model-{when:%Y%m%dT%H%M%S}"


def _save_model(value: Any, folder: Path) -> None:
    if isinstance(value, EvaluationInputs):
        save_inputs(value, folder)
    else:
        value.save(folder)


def _model_kind(value: Any) -> str:
    kinds = {"Embedder": "embedder", "EvaluationInputs": "inputs"}
    return kinds.get(type(value).__name__, "generator")


def _load_model(path: Location) -> Any:
    pointer = json.loads(storage_of(path).read())
    stored = path.parent / pointer["folder"]
    if pointer["kind"] == "inputs":
        return load_inputs(stored)
    if pointer["kind"] != "embedder":
        return stored
    from privacy_assets.distances.embedder import Embedder

    with storage_of(stored).local_copy() as folder:
        return Embedder.load(folder)


def _load_frame(path: Location) -> Any:
    with storage_of(path).open() as stream:
        return pq.ParquetFile(stream).read().to_pandas()


def _load_report(path: Location) -> Any:
    from privacy_assets.report.report import Report

    return Report.from_json(json.loads(storage_of(path).read()))


def _load_signed_file(kind: SignedFileKind, path: Location) -> SignedFile:
    return SignedFile(kind, storage_of(path).read())


def _load_published(path: Location) -> Published:
    return Published(**json.loads(storage_of(path).read()))


_LOADERS: dict[str, Callable[[Location], Any]] = {
    TABLE: Table.load,
    FRAME: _load_frame,
    MODEL: _load_model,
    REPORT: _load_report,
    PUBLISHED: _load_published,
    **{f"{kind}.json": partial(_load_signed_file, kind) for kind in KINDS},
}
