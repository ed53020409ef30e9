"""Signed, encoded tables of one release, prepared once and memory-mapped by every metric.

The file format is internal: metrics get their inputs from :class:`Opened`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from privacy_assets.errors import Damaged
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.snapshot import Snapshot
from privacy_assets.gate.statements import ReleaseTarget, SignedRecord
from privacy_assets.infra.files import open_regular, put_atomic, read_regular
from privacy_assets.infra.objects import Location, local_copy
from privacy_assets.metrics.inputs import EvaluationInputs, Views
from privacy_assets.tables.column import Column
from privacy_assets.tables.contract import REAL_ROLES
from privacy_assets.tables.encoding import EncodedTable, TabularEncoder
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.distances.embedder import Embedder

TABLES, EMBEDDINGS, EMBEDDER = "tables.bin", "embeddings.bin", "embedder"
INDEX, RECORD, SYNTHETIC = "tables.json", "encoded.json", "synthetic.json"
_ALIGNED = 64  # bytes; arrays start at multiples


class EncodedMetadata(NamedTuple):
    """Signed metadata of the files.

    Attributes:
        inputs: Keyed fingerprints of the tables and the embedder, by role.
        sizes: Numbers of "rows", "columns" and "subjects", by role.
    """

    inputs: Mapping[str, str]
    sizes: Mapping[str, Mapping[str, int]]


class Opened(NamedTuple):
    """Encoded release whose signature was verified."""

    inputs: EvaluationInputs
    metadata: EncodedMetadata
    snapshot: Snapshot


@dataclass(frozen=True, eq=False)
class Encoded:
    """Prepared inputs of one release.

    Attributes:
        inputs: Inputs of the metrics.
        metadata: Metadata to sign.
        synthetic: Signed record of the synthetic table.
        snapshot: Synthetic table.
        seal: Signs the metadata and the keyed digest of each file.
        keyed: Computes keyed digests.
    """

    inputs: EvaluationInputs
    metadata: EncodedMetadata
    synthetic: SignedRecord
    snapshot: Snapshot
    seal: Callable[[Mapping[str, Any]], SignedRecord]
    keyed_fingerprint: Callable[[str], str]

    def save(self, folder: Path) -> None:
        """Write the files and their signed record into ``folder``."""
        inputs = self.inputs
        columns = _Arrays()
        index: dict[str, Any] = {
            "schema": inputs.schema.to_json(),
            "encoder": inputs.encoder.to_json(),
            "tables": {role: _stored(table, columns) for role, table in inputs.tables.items()},
            "generated": {role: _stored(table, columns) for role, table in inputs.generated.items()},
            "subjects": {role: columns.add(codes) for role, codes in inputs.subjects.items()},
            "row_ids": {role: columns.add(ids) for role, ids in inputs.row_ids.items()},
            "encoded": {
                role: [columns.add(getattr(inputs.encoded(role), part)) for part in ("numeric", "codes", "sizes")]
                for role in inputs.tables
            },
        }
        files = {TABLES: columns.write(folder / TABLES)}
        if inputs.embedder is not None:
            embedded = _Arrays()
            index["embedded"] = {role: embedded.add(inputs.embedded(role)) for role in inputs.tables}
            files[EMBEDDINGS] = embedded.write(folder / EMBEDDINGS)
            inputs.embedder.save(folder / EMBEDDER)
        data = json.dumps(index, allow_nan=False).encode()
        put_atomic(folder / INDEX, data)
        files[INDEX] = hashlib.sha256(data).hexdigest()
        digests = {name: self.keyed_fingerprint(sha256) for name, sha256 in files.items()}
        put_atomic(folder / RECORD, self.seal({**self.metadata._asdict(), "files": digests}).data)
        put_atomic(folder / SYNTHETIC, self.synthetic.data)

    def record(self, gate: Gate, place: ReleaseTarget, setup: Mapping[str, Any]) -> tuple[EncodedMetadata, Snapshot]:
        """Return metadata and snapshot. Values in memory need no verification."""
        return self.metadata, self.snapshot

    def open(
        self, gate: Gate, place: ReleaseTarget, setup: Mapping[str, Any], keyed_fingerprint: Callable[[str], str]
    ) -> Opened:
        """Return the inputs. Values in memory need no verification."""
        return Opened(self.inputs, self.metadata, self.snapshot)


@dataclass(frozen=True)
class StoredEncoded:
    """Encoded release in ``folder``, not verified yet. Inverse of :meth:`Encoded.save`."""

    folder: Location

    def record(self, gate: Gate, place: ReleaseTarget, setup: Mapping[str, Any]) -> tuple[EncodedMetadata, Snapshot]:
        """Return metadata and snapshot.

        Raises:
            PublicationRefused: Unless this deployment signed them under the current settings.
        """
        body, snapshot = self._record(gate, place, setup)
        return _metadata(body), snapshot

    def _record(self, gate: Gate, place: ReleaseTarget, setup: Mapping[str, Any]) -> tuple[Mapping[str, Any], Snapshot]:
        try:
            record, synthetic = (read_regular(self.folder / name) for name in (RECORD, SYNTHETIC))
        except OSError:
            record = synthetic = b""
        snapshot = gate.snapshot(SignedRecord("snapshot", synthetic), place)
        return gate.encoded(SignedRecord("encoded", record), snapshot, setup), snapshot

    def open(
        self, gate: Gate, place: ReleaseTarget, setup: Mapping[str, Any], keyed_fingerprint: Callable[[str], str]
    ) -> Opened:
        """Map the files.

        Raises:
            PublicationRefused: Unless this deployment signed their bytes under the current settings.
        """
        body, snapshot = self._record(gate, place, setup)
        metadata = _metadata(body)
        with local_copy(self.folder) as folder:
            index = json.loads(_mapped(folder / INDEX, body["files"], keyed_fingerprint).tobytes())
            columns = _mapped(folder / TABLES, body["files"], keyed_fingerprint)
            embedder = None
            embedded: dict[str, np.ndarray] = {}
            if "embedded" in index:
                arrays = _mapped(folder / EMBEDDINGS, body["files"], keyed_fingerprint)
                embedded = {role: _array(arrays, place_) for role, place_ in index["embedded"].items()}
                embedder = cast(
                    "Embedder", _LazyEmbedder(self.folder / EMBEDDER, metadata.inputs["embedder"], keyed_fingerprint)
                )
        inputs = EvaluationInputs(
            TableSchema.from_json(index["schema"]),
            {role: _loaded(columns, found) for role, found in index["tables"].items()},
            {role: _array(columns, found) for role, found in index["subjects"].items()},
            generated={role: _loaded(columns, found) for role, found in index["generated"].items()},
            embedder=embedder,
            views=Views(
                TabularEncoder.from_json(index["encoder"]),
                {
                    role: EncodedTable(*(_array(columns, at) for at in parts))
                    for role, parts in index["encoded"].items()
                },
                {role: _array(columns, found) for role, found in index["row_ids"].items()},
                embedded,
                metadata.inputs,
            ),
        )
        return Opened(inputs, metadata, snapshot)


@dataclass(frozen=True, eq=False)
class _LazyEmbedder:
    """Embedder of a release, loaded only to embed rows whose embeddings are not stored."""

    folder: Location
    fingerprint_keyed: str
    keyed_fingerprint: Callable[[str], str] = field(repr=False)

    @cached_property
    def _loaded(self) -> Embedder:
        from privacy_assets.distances.embedder import Embedder

        with local_copy(self.folder) as folder:
            found = Embedder.load(folder)
        if self.keyed_fingerprint(found.fingerprint()) != self.fingerprint_keyed:
            text = "the embedder is not the one that was signed"
            raise Damaged(text, path=str(self.folder), redo=("embed", "prepare"))
        return found

    def embed(self, table: Table, device: str = "cpu") -> np.ndarray:
        return self._loaded.embed(table, device=device)

    def fingerprint(self) -> str:
        return self._loaded.fingerprint()


def _metadata(body: Mapping[str, Any]) -> EncodedMetadata:
    """Return the signed metadata in report order, because the canonical form of a statement sorts keys."""
    sizes = {role: body["sizes"][role] for role in (*REAL_ROLES, "synthetic") if role in body["sizes"]}
    ordered = {role: {name: size[name] for name in ("rows", "columns", "subjects")} for role, size in sizes.items()}
    return EncodedMetadata(body["inputs"], ordered)


def _mapped(path: Path, files: Mapping[str, str], keyed_fingerprint: Callable[[str], str]) -> np.ndarray:
    """Map the bytes of a file. Writes stay in memory.

    The file is opened once, so the mapped bytes are the hashed ones.

    Raises:
        Damaged: Unless the keyed digest was signed.
    """
    try:
        with open_regular(path) as stream:
            found = np.asarray(np.memmap(cast("Any", stream), np.uint8, "c"))
    except (OSError, ValueError):
        found = np.zeros(0, dtype=np.uint8)
    if keyed_fingerprint(hashlib.sha256(found.data).hexdigest()) != files.get(path.name):
        text = f"{path.name} of the encoded tables was changed after it was signed"
        raise Damaged(text, path=str(path), redo=("prepare",))
    return found


class _Arrays:
    """Arrays stored consecutively in one file, each located by dtype, shape and offset."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.end = 0

    def add(self, array: np.ndarray) -> list[Any]:
        """Add ``array``, and return its dtype, shape and offset."""
        plain = np.ascontiguousarray(array)
        start, self.end = self.end, self.end + -(-plain.nbytes // _ALIGNED) * _ALIGNED
        self.parts.append(plain)
        return [plain.dtype.str, list(array.shape), start]

    def write(self, path: Path) -> str:
        """Write the file, and return its SHA-256 (hex)."""
        digest = hashlib.sha256()

        def fill(stream: Any) -> None:
            for part in self.parts:
                rest = -part.nbytes % _ALIGNED
                for data in (part.reshape(-1).view(np.uint8), np.zeros(rest, dtype=np.uint8)):
                    digest.update(data.data)
                    stream.write(data.data)

        put_atomic(path, fill)
        return digest.hexdigest()


def _array(data: np.ndarray, place: list[Any]) -> np.ndarray:
    dtype, shape, start = np.dtype(place[0]), tuple(place[1]), place[2]
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return data[start : start + size].view(dtype).reshape(shape)


def _stored(table: Table, arrays: _Arrays) -> dict[str, Any]:
    """Return the JSON form of a table, whose cells are added to ``arrays``."""
    columns = [
        {"name": c.name, "kind": c.kind, "cells": arrays.add(c.cells), "values": c.values}
        for c in table.columns.values()
    ]
    return {"schema": table.schema.to_json(), "rows": len(table), "columns": columns}


def _loaded(data: np.ndarray, found: Mapping[str, Any]) -> Table:
    columns = {}
    for one in found["columns"]:
        values = None if one["values"] is None else tuple(one["values"])
        columns[one["name"]] = Column(one["name"], one["kind"], _array(data, one["cells"]), values)
    return Table(TableSchema.from_json(found["schema"]), columns, found["rows"])


def for_metric(opened: Opened, embeds: bool, earlier_releases: Table | None, **more: Any) -> EvaluationInputs:
    """Return the inputs of one metric, with or without embeddings, and with the stacked earlier releases."""
    inputs = opened.inputs
    views = Views(
        inputs.encoder,
        {role: inputs.encoded(role) for role in inputs.tables},
        inputs.row_ids,
        {role: inputs.embedded(role) for role in inputs.tables} if embeds else {},
        opened.metadata.inputs,
    )
    embedder = inputs.embedder if embeds else None
    return replace(inputs, embedder=embedder, earlier_releases=earlier_releases, views=views, **more)
