"""Contrastive embedder of mixed tables (Palacios 4.1, 5.2, appendix C).

A network learns to tell which two random maskings come from the same record; distances between its outputs then stand
for the likeness of records whatever their columns are. Torch is imported where it is used.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privacy_assets.compute.devices import halve_on_out_of_memory
from privacy_assets.compute.progress import Progress, silent
from privacy_assets.embedding.settings import EmbedderSettings, Epoch
from privacy_assets.errors import InputError
from privacy_assets.neighbours.nearest import distinct_rows
from privacy_assets.tables.encoding import Encoder
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    import torch

    from privacy_assets.embedding.network import EmbedderNetwork

_BLOCK = 2048  # rows that go through the network at once when a table is embedded
_WEIGHTS, _FACTS = "network.safetensors", "embedder.json"


@dataclass(frozen=True, eq=False)
class Embedder:
    """A trained embedder. It holds scales and category values of the private table: store it as such."""

    schema: TableSchema
    encoder: Encoder
    settings: EmbedderSettings
    seed: int
    history: tuple[Epoch, ...]
    network: EmbedderNetwork

    @property
    def dims(self) -> int:
        """Dimension of the embedding."""
        return self.settings.dims_for(len(self.schema.columns))

    def embed(self, table: Table, device: str = "cpu") -> np.ndarray:
        """Embed a table: float32 (n, dims), each row of Euclidean length 1.

        The length is taken out (f^N in the paper, not f) since training constrains directions alone; squared Euclidean
        distance is then 2 - 2 cosine similarity, the likeness that was trained, and lies in [0, 4].

        Equal rows have bit-equal embeddings within a call and, but for chances of one in millions, across calls, tables
        and devices: distinct rows go through the network once, in blocks of one size, in double precision, and are then
        rounded. (In single precision the position of a row in its batch decides its last bits, and a copy would no
        longer be at distance 0.) MPS has no double precision: there the CPU computes.
        """
        import torch

        from privacy_assets.embedding.network import one_thread

        distinct, inverse = distinct_rows(_cells(table, self.schema, self.encoder))
        on = torch.device("cpu" if device.startswith("mps") else device)
        network = copy.deepcopy(self.network).double().to(on)
        out = np.zeros((len(distinct), self.dims), dtype=np.float32)
        start, size = 0, _BLOCK
        with one_thread(), torch.inference_mode():
            while start < len(distinct):
                block, size = halve_on_out_of_memory(partial(_embed_block, network, distinct, start, on), size)
                out[start : start + len(block)] = block
                start += len(block)
        return out[inverse]

    def fingerprint(self) -> str:
        """SHA-256 (hex) of settings, schema, encoder and weights."""
        from safetensors.torch import save

        facts = [asdict(self.settings), self.schema.to_json(), self.encoder.to_json()]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode() + save(self.network.state_dict())).hexdigest()

    def save(self, folder: str | Path) -> None:
        """Write the weights (safetensors) and everything else (JSON) into ``folder``; equal embedders, equal bytes."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.network.state_dict(), folder / _WEIGHTS)
        facts = {
            "format": 1,
            "seed": self.seed,
            "settings": asdict(self.settings),
            "schema": self.schema.to_json(),
            "encoder": self.encoder.to_json(),
            "history": [asdict(epoch) for epoch in self.history],
        }
        (folder / _FACTS).write_text(json.dumps(facts, allow_nan=False), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Embedder:
        """Inverse of :meth:`save`. Raises InputError when ``folder`` does not hold an embedder."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        folder = Path(folder)
        try:
            facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
            schema = TableSchema.from_json(facts["schema"])
            encoder = Encoder.from_json(facts["encoder"])
            settings = EmbedderSettings(**facts["settings"])
            history = tuple(Epoch(**epoch) for epoch in facts["history"])
            network = _network(schema, encoder, settings)
            network.load_state_dict(load_file(folder / _WEIGHTS), assign=True)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            problem = f"no embedder can be loaded from it ({type(error).__name__})"
            raise InputError(problem, where=str(folder), fix="train the embedder again") from None
        return cls(schema, encoder, settings, int(facts["seed"]), history, network)


def train_embedder(
    tables: Sequence[Table],
    schema: TableSchema,
    settings: EmbedderSettings | None = None,
    *,
    seed: int,
    device: str = "cpu",
    progress: Progress = silent,
) -> Embedder:
    """Train an embedder on all rows of the ``tables`` (train, holdout and reference) alike.

    Rows are put in order of their content first, so neither their order nor the table they stand in decides anything.
    The same rows and seed give the same bytes on one machine's CPU. Torch's global random state is left alone.
    ``progress`` hears of each step. Raises InputError without rows, or when the loss diverges.
    """
    import torch

    from privacy_assets.embedding.training import Trainer

    settings = settings or EmbedderSettings()
    if sum(map(len, tables)) == 0:
        raise InputError("there are no rows to train the embedder on", fix="give at least one real row")
    encoder = Encoder.fit(tables, schema)
    cells = [_cells(table, schema, encoder) for table in tables if len(table)]
    distinct, inverse = distinct_rows(np.concatenate(cells))
    rows = distinct[np.sort(inverse)]
    network = _network(schema, encoder, settings)
    values, codes = rows[:, : network.numbers].astype(np.float32), rows[:, network.numbers :].astype(np.int64)
    trainer = Trainer(network, settings, torch.from_numpy(values), torch.from_numpy(codes), seed, device, progress)
    history = trainer.run()
    return Embedder(schema, encoder, settings, seed, history, network.cpu())


def _cells(table: Table, schema: TableSchema, encoder: Encoder) -> np.ndarray:
    """Float64 (n, p + columns): values of the p numbers beside codes of all columns, numbers first, then categories.

    The code of a number says present (0) or missing (1); a category's is that of the encoder. Masked comes after these.
    """
    absent = [name for name in schema.names if name not in table.columns]
    if absent:
        raise InputError("the column is missing", column=absent[0], fix="embed tables of the embedder's schema")
    encoded = encoder.transform(table)
    missing = [table[number.name].missing[:, None] for number in encoder.numbers]
    own = encoded.codes[:, encoded.codes.shape[1] - len(encoder.categories) :]
    return np.concatenate([encoded.numeric, *missing, own], axis=1, dtype=np.float64)


def _network(schema: TableSchema, encoder: Encoder, settings: EmbedderSettings) -> EmbedderNetwork:
    """A network without weights. Codes: present, missing and masked; or the values, unseen, missing and masked."""
    from privacy_assets.embedding.network import EmbedderNetwork

    sizes = [3] * len(encoder.numbers) + [len(category.values) + 3 for category in encoder.categories]
    dims = settings.dims_for(len(schema.columns))
    return EmbedderNetwork(sizes, len(encoder.numbers), settings.width or 1, dims, settings.dropout)


def _embed_block(network: EmbedderNetwork, rows: np.ndarray, start: int, on: torch.device, size: int) -> np.ndarray:
    """Embed the ``size`` rows from ``start`` on, filled up to ``size`` so that every block takes the same kernels."""
    import torch

    block = np.zeros((size, rows.shape[1]))
    part = rows[start : start + size]
    block[: len(part)] = part
    values = torch.from_numpy(block[:, : network.numbers]).to(on)
    codes = torch.from_numpy(block[:, network.numbers :].astype(np.int64)).to(on)
    return network(values, codes)[: len(part)].float().cpu().numpy()
