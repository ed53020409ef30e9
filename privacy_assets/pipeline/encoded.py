"""All tables of one release in one coded form: prepared and verified once, signed, and mapped by every score.

What stands in the files can be replaced by a better form behind :class:`Opened`, which gives a score its inputs.
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

from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.snapshot import Snapshot
from privacy_assets.gate.statements import Place, Sealed
from privacy_assets.metrics.inputs import REAL_ROLES, MetricInputs, Views
from privacy_assets.storage.files import open_regular, put_atomic, read_regular
from privacy_assets.storage.objects import Location, local_copy
from privacy_assets.tables.column import Column
from privacy_assets.tables.encoding import EncodedTable, Encoder
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.embedding.embedder import Embedder

TABLES, EMBEDDINGS, EMBEDDER = "tables.bin", "embeddings.bin", "embedder"
INDEX, RECORD, SYNTHETIC = "tables.json", "encoded.json", "synthetic.json"
_ALIGNED = 64  # bytes; every array begins at a multiple


class EncodedMetadata(NamedTuple):
    """What is signed beside the files: keyed fingerprints and sizes of the tables, by role."""

    inputs: Mapping[str, str]
    sizes: Mapping[str, Mapping[str, int]]


class Opened(NamedTuple):
    """An encoded release that was found to be what this deployment signed."""

    inputs: MetricInputs
    metadata: EncodedMetadata
    snapshot: Snapshot


@dataclass(frozen=True, eq=False)
class Encoded:
    """The prepared ``inputs`` of one release, with the signed record of its ``synthetic`` table.

    ``seal`` signs what was written, by the SHA-256 of each file.
    """

    inputs: MetricInputs
    metadata: EncodedMetadata
    synthetic: Sealed
    snapshot: Snapshot
    seal: Callable[[Mapping[str, Any]], Sealed]

    def save(self, folder: Path) -> None:
        """Write the files into ``folder``, and the signed record of them."""
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
        put_atomic(folder / RECORD, self.seal({**self.metadata._asdict(), "files": files}).data)
        put_atomic(folder / SYNTHETIC, self.synthetic.data)

    def record(self, gate: Gate, place: Place, setup: Mapping[str, Any]) -> tuple[EncodedMetadata, Snapshot]:
        """Itself: it was handed on in memory, as when assets are called directly."""
        return self.metadata, self.snapshot

    def open(self, gate: Gate, place: Place, setup: Mapping[str, Any], keyed: Callable[[str], str]) -> Opened:
        """The same."""
        return Opened(self.inputs, self.metadata, self.snapshot)


@dataclass(frozen=True)
class StoredEncoded:
    """Inverse of :meth:`Encoded.save`: a ``folder`` whose files nobody has looked into yet."""

    folder: Location

    def record(self, gate: Gate, place: Place, setup: Mapping[str, Any]) -> tuple[EncodedMetadata, Snapshot]:
        """What is signed of it; PublicationRefused unless this deployment did so, under the settings of now."""
        body, snapshot = self._record(gate, place, setup)
        return _metadata(body), snapshot

    def _record(self, gate: Gate, place: Place, setup: Mapping[str, Any]) -> tuple[Mapping[str, Any], Snapshot]:
        try:
            record, synthetic = (read_regular(self.folder / name) for name in (RECORD, SYNTHETIC))
        except OSError:
            record = synthetic = b""
        snapshot = gate.snapshot(Sealed("snapshot", synthetic), place)
        return gate.encoded(Sealed("encoded", record), snapshot, setup), snapshot

    def open(self, gate: Gate, place: Place, setup: Mapping[str, Any], keyed: Callable[[str], str]) -> Opened:
        """Map the files; PublicationRefused unless their bytes are those that this deployment signed."""
        body, snapshot = self._record(gate, place, setup)
        metadata = _metadata(body)
        with local_copy(self.folder) as folder:
            index = json.loads(_mapped(folder / INDEX, body["files"]).tobytes())
            columns = _mapped(folder / TABLES, body["files"])
            embedder = None
            embedded: dict[str, np.ndarray] = {}
            if "embedded" in index:
                arrays = _mapped(folder / EMBEDDINGS, body["files"])
                embedded = {role: _array(arrays, place_) for role, place_ in index["embedded"].items()}
                embedder = cast("Embedder", _LazyEmbedder(self.folder / EMBEDDER, metadata.inputs["embedder"], keyed))
        inputs = MetricInputs(
            TableSchema.from_json(index["schema"]),
            {role: _loaded(columns, found) for role, found in index["tables"].items()},
            {role: _array(columns, found) for role, found in index["subjects"].items()},
            generated={role: _loaded(columns, found) for role, found in index["generated"].items()},
            embedder=embedder,
            views=Views(
                Encoder.from_json(index["encoder"]),
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
    """The encoder of a release, read when rows are to be embedded that the files do not hold."""

    folder: Location
    fingerprint_keyed: str
    keyed: Callable[[str], str] = field(repr=False)

    @cached_property
    def _loaded(self) -> Embedder:
        from privacy_assets.embedding.embedder import Embedder

        with local_copy(self.folder) as folder:
            found = Embedder.load(folder)
        if self.keyed(found.fingerprint()) != self.fingerprint_keyed:
            raise PublicationRefused("the encoder is not the one that was signed; materialise encoded again.")
        return found

    def embed(self, table: Table, device: str = "cpu") -> np.ndarray:
        return self._loaded.embed(table, device=device)

    def fingerprint(self) -> str:
        return self._loaded.fingerprint()


def _metadata(body: Mapping[str, Any]) -> EncodedMetadata:
    """What was signed, in the order of a report: the canonical form of a statement sorts names."""
    sizes = {role: body["sizes"][role] for role in (*REAL_ROLES, "synthetic") if role in body["sizes"]}
    ordered = {role: {name: size[name] for name in ("rows", "columns", "subjects")} for role, size in sizes.items()}
    return EncodedMetadata(body["inputs"], ordered)


def _mapped(path: Path, files: Mapping[str, str]) -> np.ndarray:
    """The bytes of a file, mapped; PublicationRefused unless they are those of which the SHA-256 was signed.

    What is hashed is what is mapped: the file is opened once. Writes stay in memory.
    """
    try:
        with open_regular(path) as stream:
            found = np.asarray(np.memmap(cast("Any", stream), np.uint8, "c"))
    except (OSError, ValueError):
        found = np.zeros(0, dtype=np.uint8)
    if hashlib.sha256(found.data).hexdigest() != files.get(path.name):
        raise PublicationRefused(f"{path.name} of the encoded tables was changed after it was signed; encode it again.")
    return found


class _Arrays:
    """Arrays one after the other in one file; each is known by dtype, shape and first byte."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.end = 0

    def add(self, array: np.ndarray) -> list[Any]:
        """Take ``array`` up; returns where it will be found."""
        plain = np.ascontiguousarray(array)
        start, self.end = self.end, self.end + -(-plain.nbytes // _ALIGNED) * _ALIGNED
        self.parts.append(plain)
        return [plain.dtype.str, list(array.shape), start]

    def write(self, path: Path) -> str:
        """Write the file; its SHA-256 (hex)."""
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
    """A table as arrays of cells, beside what its columns and cells mean."""
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


def for_metric(opened: Opened, embeds: bool, released: Table | None, **more: Any) -> MetricInputs:
    """The inputs of one metric: with the embeddings or without, and with what was ``released`` before."""
    inputs = opened.inputs
    views = Views(
        inputs.encoder,
        {role: inputs.encoded(role) for role in inputs.tables},
        inputs.row_ids,
        {role: inputs.embedded(role) for role in inputs.tables} if embeds else {},
        opened.metadata.inputs,
    )
    embedder = inputs.embedder if embeds else None
    return replace(inputs, embedder=embedder, released=released, views=views, **more)
