"""Saving the inputs of metrics with the values derived from them, so that each score loads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from privacy_assets.errors import Damaged
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import storage_of
from privacy_assets.metrics.inputs import EvaluationContext, EvaluationInputs
from privacy_assets.metrics.release_tables import DerivedValues, ReleaseTables
from privacy_assets.tables.arrays import array_digest, load_arrays, reporting_damage, save_arrays
from privacy_assets.tables.encoding import EncodedTable, TabularEncoder
from privacy_assets.tables.relations import Relation
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.distances.embedder import Embedder

_FILE = "inputs.bin"
_EMBEDDER = "embedder"


def digest_of(inputs: EvaluationInputs) -> str:
    """Return the SHA-256 (hex) of all tables and derived values that :func:`save_inputs` writes.
    Keep it private.

    Args:
        inputs: Tables of one release, and values derived from them.
    """
    key = (digest_of, inputs.release, inputs.embedder)
    return inputs.derived.once(key, lambda: array_digest(*_facts_and_arrays(inputs)))


def save_inputs(inputs: EvaluationInputs, folder: Path) -> None:
    """Write tables, derived values, embedder and envelope into a folder, for :func:`load_inputs`.

    Args:
        inputs: Tables of one release, and values derived from them.
        folder: Folder.
    """
    save_arrays(folder / _FILE, *_facts_and_arrays(inputs), inputs.context.envelope)
    if inputs.embedder is not None:
        inputs.embedder.save(folder / _EMBEDDER)


def load_inputs(folder: Location) -> EvaluationInputs:
    """Load the files that :func:`save_inputs` wrote. The envelope is not verified.

    Args:
        folder: Folder.

    Returns:
        The inputs, with the derived values that were saved.

    Raises:
        Damaged: If a file is missing or contains something else.
    """
    with reporting_damage(folder / _FILE, "prepared"):
        facts, arrays, envelope = load_arrays(folder / _FILE)
        # in the same order as in _facts_and_arrays
        tables = _read_tables(facts["tables"], arrays)
        generated = _read_tables(facts["generated"], arrays)
        release = ReleaseTables(
            TableSchema.from_json(facts["schema"]),
            tables,
            subjects=_read_arrays(facts["subjects"], arrays),
            generated=generated,
            pseudonyms=_read_arrays(facts["pseudonyms"], arrays),
            ruled=tuple(facts["ruled"]),
            relations=tuple(Relation.from_json(relation) for relation in facts["relations"]),
            notes=tuple(facts["notes"]),
        )
        row_ids = _read_arrays(tables, arrays)
        derived = DerivedValues(
            release,
            encoder=TabularEncoder.from_json(facts["encoder"]),
            row_ids=row_ids,
            encoded=_read_encoded(tables, arrays),
        )
        embedder = None
        if facts["embedder"] is not None:
            stored = _StoredEmbedder(folder / _EMBEDDER, *facts["embedder"])
            embedder = cast("Embedder", stored)
            derived.embeddings(embedder).update(_read_arrays(tables, arrays))
        context = EvaluationContext(embedder=embedder, envelope=envelope)
        return EvaluationInputs(release, context, derived)


def _facts_and_arrays(inputs: EvaluationInputs) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return JSON-compatible facts, and all arrays in the order in which :func:`load_inputs` reads
    them.
    """
    release = inputs.release
    facts: dict[str, Any] = {
        "schema": release.schema.to_json(),
        "encoder": inputs.derived.encoder.to_json(),
        "subjects": list(release.subjects),
        "pseudonyms": list(release.pseudonyms),
        "embedder": None,
        "ruled": list(release.ruled),
        "relations": [relation.to_json() for relation in release.relations],
        "notes": list(release.notes),
    }
    if inputs.embedder is not None:
        facts["embedder"] = [inputs.embedder.fingerprint(), inputs.embedder.description]
    arrays: list[np.ndarray] = []
    for key, tables in (("tables", release.tables), ("generated", release.generated)):
        facts[key] = {}
        for role, table in tables.items():
            facts[key][role], table_arrays = table.to_arrays()
            arrays.extend(table_arrays)
    arrays.extend(release.subjects.values())
    arrays.extend(release.pseudonyms.values())
    arrays.extend(inputs.row_ids[role] for role in release.tables)
    for role in release.tables:
        encoded = inputs.encoded(role)
        arrays.extend((encoded.numeric, encoded.codes, encoded.sizes))
    if inputs.embedder is not None:
        arrays.extend(inputs.embedded(role) for role in release.tables)
    return facts, arrays


def _read_tables(
    facts_by_role: Mapping[str, Mapping[str, Any]], arrays: Iterator[np.ndarray]
) -> dict[str, Table]:
    """Read tables from their facts and the next arrays, by role."""
    return {role: Table.of_arrays(facts, arrays) for role, facts in facts_by_role.items()}


def _read_arrays(roles: Iterable[str], arrays: Iterator[np.ndarray]) -> dict[str, np.ndarray]:
    """Read the next arrays, one for each role."""
    return {role: next(arrays) for role in roles}


def _read_encoded(roles: Iterable[str], arrays: Iterator[np.ndarray]) -> dict[str, EncodedTable]:
    """Read encoded tables from the next arrays, three for each role."""
    return {role: EncodedTable(next(arrays), next(arrays), next(arrays)) for role in roles}


@dataclass(frozen=True, eq=False)
class _StoredEmbedder:
    """Embedder of a release, loaded only to embed rows whose embeddings are not stored."""

    folder: Location
    digest: str
    description: Mapping[str, Any]

    @cached_property
    def _loaded(self) -> Embedder:
        from privacy_assets.distances.embedder import Embedder

        with storage_of(self.folder).local_copy() as folder:
            embedder = Embedder.load(folder)
        if embedder.fingerprint() != self.digest:
            text = "the embedder is not the one that was signed"
            raise Damaged(text, path=str(self.folder), record="embedder")
        return embedder

    def embed(self, table: Table, device: str = "cpu") -> np.ndarray:
        return self._loaded.embed(table, device=device)

    def fingerprint(self) -> str:
        return self.digest
