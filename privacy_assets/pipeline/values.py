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
from privacy_assets.gate.envelope import KINDS, SignedFile, SignedFileKind
from privacy_assets.infra import folders
from privacy_assets.infra.files import names, open_regular, private_folder, put_atomic, read_regular
from privacy_assets.infra.objects import Location, ObjectPath, local_copy
from privacy_assets.infra.temp_folders import WorkFolder
from privacy_assets.metrics.inputs import EvaluationInputs
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
    with folders.explained(folder) if isinstance(folder, Path) else nullcontext():
        _store_value(value, private_folder(folder))


def _store_value(value: Any, folder: Location) -> None:
    written = _write(value, folder)
    # files of an earlier definition of the asset would be read
    for name in set(names(folder)) & set(_LOADERS):
        if name != written.name:
            (folder / name).unlink(missing_ok=True)


def _write(value: Any, folder: Location) -> Location:
    """Write a value, and return the file from which it is loaded."""
    if isinstance(value, Table):
        value.save(folder / TABLE)
        return folder / TABLE
    if isinstance(value, pd.DataFrame | pd.Series) or hasattr(value, "__arrow_c_stream__"):
        rows = _rows(value)
        return put_atomic(
            folder / FRAME, lambda stream: pq.write_table(rows, stream, compression="zstd")
        )
    if isinstance(value, SignedFile):
        return put_atomic(folder / f"{value.kind}.json", value.data)
    if isinstance(value, Published):
        return put_atomic(folder / PUBLISHED, json.dumps(asdict(value)).encode())
    if isinstance(value, Report):
        put_atomic(folder / PAGE, value.to_html().encode())
        text = json.dumps(value.to_json(), allow_nan=False)
        return put_atomic(folder / REPORT, text.encode())
    if callable(getattr(value, "save", None)):
        return _store_model(value, folder)
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
    stored = set(names(folder))
    for name in kinds or _LOADERS:
        if name in stored:
            return _LOADERS[name](folder / name)
    return None


def _store_model(value: Any, folder: Location) -> Location:
    """Save a model into a new folder, and replace the pointer to it, so that readers never see a
    partial model.
    """
    written_at = datetime.now(UTC)
    name = f"{_model_name(written_at)}-{uuid.uuid4().hex}"
    model_folder = folder / name
    if isinstance(model_folder, ObjectPath):
        with WorkFolder() as draft:
            value.save(draft)
            model_folder.upload(draft)
    else:
        value.save(private_folder(model_folder))
    old_name = None
    if MODEL in names(folder):
        old_name = _folder_of(folder / MODEL)
    text = json.dumps({"kind": _model_kind(value), "folder": name})
    pointer = put_atomic(folder / MODEL, text.encode())
    earliest = _model_name(written_at - SPARED)
    latest = _model_name(written_at + SPARED)
    for entry in names(folder):
        is_spared = entry == old_name or earliest <= entry <= latest
        if entry.startswith("model-") and not is_spared:
            remove_folder(folder / entry)
    return pointer


def _folder_of(pointer: Location) -> str | None:
    try:
        return str(json.loads(read_regular(pointer))["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _model_name(when: datetime) -> str:
    return f"model-{when:%Y%m%dT%H%M%S}"


def remove_folder(folder: Location) -> None:
    """Remove a folder and its content.

    Args:
        folder: Folder or prefix of objects. Errors on disk are ignored.
    """
    if isinstance(folder, ObjectPath):
        folder.remove_below()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _model_kind(value: Any) -> str:
    kinds = {"Embedder": "embedder", "EvaluationInputs": "inputs"}
    return kinds.get(type(value).__name__, "generator")


def _load_model(path: Location) -> Any:
    pointer = json.loads(read_regular(path))
    stored = path.parent / pointer["folder"]
    if pointer["kind"] == "inputs":
        return EvaluationInputs.load(stored)
    if pointer["kind"] != "embedder":
        return stored
    from privacy_assets.distances.embedder import Embedder

    with local_copy(stored) as folder:
        return Embedder.load(folder)


def _load_frame(path: Location) -> Any:
    with open_regular(path) as stream:
        return pq.ParquetFile(stream).read().to_pandas()


def _load_report(path: Location) -> Any:
    from privacy_assets.report.report import Report

    return Report.from_json(json.loads(read_regular(path)))


def _load_signed_file(kind: SignedFileKind, path: Location) -> SignedFile:
    return SignedFile(kind, read_regular(path))


def _load_published(path: Location) -> Published:
    return Published(**json.loads(read_regular(path)))


_LOADERS: dict[str, Callable[[Location], Any]] = {
    TABLE: Table.load,
    FRAME: _load_frame,
    MODEL: _load_model,
    REPORT: _load_report,
    PUBLISHED: _load_published,
    **{f"{kind}.json": partial(_load_signed_file, kind) for kind in KINDS},
}
