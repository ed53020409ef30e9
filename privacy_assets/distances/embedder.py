"""Contrastive embedder of mixed tables (Palacios 4.1, 5.2, appendix C).

A network learns to recognize two random maskings of the same record. Distances between its outputs
then measure the similarity of records with any column types. Torch is imported lazily.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privacy_assets.distances.embedder_settings import EmbedderSettings, Epoch
from privacy_assets.distances.nearest import distinct_rows
from privacy_assets.errors import InputError
from privacy_assets.infra.devices import halve_on_out_of_memory
from privacy_assets.infra.files import private_folder
from privacy_assets.infra.progress import Progress, silent
from privacy_assets.tables.encoding import TabularEncoder
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    import torch

    from privacy_assets.distances.network import EmbedderNetwork

_BLOCK = 2048  # rows per pass through the network
_WEIGHTS = "network.safetensors"
_FACTS = "embedder.json"
_FIGURES = ("train_loss", "validation_loss", "validation_accuracy")


@dataclass(frozen=True, eq=False)
class Embedder:
    """A trained embedder.

    It contains scales and category values of the private table and must be stored accordingly.

    Attributes:
        schema: Schema of the tables it embeds.
        encoder: Encoder fitted on the training rows.
        settings: Settings of its training.
        seed: Seed of its training.
        history: One entry per epoch.
        network: Trained network.
    """

    schema: TableSchema
    encoder: TabularEncoder
    settings: EmbedderSettings
    seed: int
    history: tuple[Epoch, ...]
    network: EmbedderNetwork

    @property
    def dims(self) -> int:
        """Dimension of the embedding."""
        return self.settings.dims_for(len(self.schema.columns))

    @property
    def description(self) -> dict[str, Any]:
        """Settings and training for reports, as plain values.

        "epochs" is the number of epochs, "kept_epoch" the one with the lowest monitored loss, whose
        weights are kept, and "train_loss", "validation_loss" and "validation_accuracy" are its
        figures, see :class:`.Epoch`.
        """
        # the last of equal ones, as in training
        best = min(reversed(self.history), key=lambda epoch: epoch.monitored)
        figures = {}
        for name in _FIGURES:
            value = getattr(best, name)
            figures[name] = None if value is None else round(value, 4)
        settings = {**asdict(self.settings), "dims": self.dims}
        return {
            "settings": settings,
            "epochs": len(self.history),
            "kept_epoch": best.epoch,
            **figures,
        }

    def embed(self, table: Table, device: str = "cpu") -> np.ndarray:
        """Embed a table.

        Vectors are normalized (f^N in the paper, not f) because training constrains directions
        only. The squared Euclidean distance is then 2 - 2 cosine similarity, in [0, 4].

        Equal rows have bit-equal embeddings within a call. Across calls, tables and devices they
        are bit-equal except with a probability of about one in millions: distinct rows are
        evaluated once, in blocks of a fixed size, in double precision, and then rounded. In single
        precision the last bits depend on the row's position in the batch, so copies would have a
        nonzero distance.

        Args:
            table: Table with the columns of ``schema``, n rows.
            device: Torch device. MPS does not support double precision and is replaced by the CPU.

        Returns:
            Embeddings, float32 (n, dims). Each row has Euclidean length 1.

        Raises:
            InputError: If a column of ``schema`` is missing.
        """
        import torch

        from privacy_assets.distances.network import one_thread

        distinct, inverse = distinct_rows(_cells(table, self.schema, self.encoder))
        torch_device = torch.device("cpu" if device.startswith("mps") else device)
        network = copy.deepcopy(self.network).double().to(torch_device)
        out = np.zeros((len(distinct), self.dims), dtype=np.float32)
        start = 0
        size = _BLOCK
        with one_thread(), torch.inference_mode():
            while start < len(distinct):
                block, size = halve_on_out_of_memory(
                    partial(_embed_block, network, distinct, start, torch_device), size
                )
                out[start : start + len(block)] = block
                start += len(block)
        return out[inverse]

    def fingerprint(self) -> str:
        """Return the SHA-256 (hex) of settings, schema, encoder and weights."""
        from safetensors.torch import save

        facts = [asdict(self.settings), self.schema.to_json(), self.encoder.to_json()]
        text = json.dumps(facts, sort_keys=True).encode()
        weights = save(self.network.state_dict())
        return hashlib.sha256(text + weights).hexdigest()

    def save(self, folder: str | Path) -> None:
        """Write the embedder to a folder. Equal embedders have equal bytes.

        Args:
            folder: Folder of the weights (safetensors) and other fields (JSON).
        """
        from safetensors.torch import save

        folder = private_folder(Path(folder))
        (folder / _WEIGHTS).write_bytes(save(self.network.state_dict()))
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
        """Load an embedder written by :meth:`save`.

        Args:
            folder: Folder of the embedder.

        Returns:
            The embedder.

        Raises:
            InputError: If ``folder`` does not contain a valid one.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        folder = Path(folder)
        try:
            facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
            schema = TableSchema.from_json(facts["schema"])
            encoder = TabularEncoder.from_json(facts["encoder"])
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
    """Train an embedder on all rows of the tables, usually train, holdout and reference.

    Rows are sorted by content first, so the result does not depend on their order or table. The
    same rows and seed give the same bytes on the CPU of one machine. Torch's global random state is
    not changed.

    Args:
        tables: Tables with real rows.
        schema: Their schema.
        settings: Default: :class:`.EmbedderSettings` with its defaults.
        seed: Seed of weights, order and maskings.
        device: Torch device.
        progress: Called after each step.

    Returns:
        The trained embedder.

    Raises:
        InputError: If there are no rows or the loss diverges.
    """
    import torch

    from privacy_assets.distances.network import Trainer

    settings = settings or EmbedderSettings()
    if sum(map(len, tables)) == 0:
        raise InputError(
            "there are no rows to train the embedder on", fix="pass at least one real row"
        )
    encoder = TabularEncoder.fit(tables, schema)
    cells = [_cells(table, schema, encoder) for table in tables if len(table)]
    distinct, inverse = distinct_rows(np.concatenate(cells))
    rows = distinct[np.sort(inverse)]
    network = _network(schema, encoder, settings)
    values = rows[:, : network.numbers].astype(np.float32)
    codes = rows[:, network.numbers :].astype(np.int64)
    trainer = Trainer(
        network, settings, torch.from_numpy(values), torch.from_numpy(codes), seed, device, progress
    )
    history = trainer.run()
    return Embedder(schema, encoder, settings, seed, history, network.cpu())


def _cells(table: Table, schema: TableSchema, encoder: TabularEncoder) -> np.ndarray:
    """Return float64 (n, p + columns): the values of the p numbers, then the codes of numbers and
    of categories.

    The code of a number is 0 (present) or 1 (missing), the code of a category is the encoder's. The
    highest code means masked.
    """
    for name in schema.names:
        if name not in table.columns:
            fix = "embed tables of the embedder's schema"
            raise InputError("the column is missing", column=name, fix=fix)
    encoded = encoder.transform(table)
    is_missing = [table[number.name].missing[:, None] for number in encoder.numbers]
    first_category = encoded.codes.shape[1] - len(encoder.categories)
    categories = encoded.codes[:, first_category:]
    blocks = [encoded.numeric, *is_missing, categories]
    return np.concatenate(blocks, axis=1, dtype=np.float64)


def _network(
    schema: TableSchema, encoder: TabularEncoder, settings: EmbedderSettings
) -> EmbedderNetwork:
    """Create a network without weights. Codes: present, missing, masked; or the values, unseen,
    missing, masked.
    """
    from privacy_assets.distances.network import EmbedderNetwork

    sizes = [3] * len(encoder.numbers)
    sizes += [len(category.values) + 3 for category in encoder.categories]
    dims = settings.dims_for(len(schema.columns))
    return EmbedderNetwork(sizes, len(encoder.numbers), settings.width or 1, dims, settings.dropout)


def _embed_block(
    network: EmbedderNetwork, rows: np.ndarray, start: int, on: torch.device, size: int
) -> np.ndarray:
    """Embed ``size`` rows from ``start``, padded to ``size`` so that every block uses the same
    kernels.
    """
    import torch

    block = np.zeros((size, rows.shape[1]))
    part = rows[start : start + size]
    block[: len(part)] = part
    values = torch.from_numpy(block[:, : network.numbers]).to(on)
    integer_codes = block[:, network.numbers :].astype(np.int64)
    codes = torch.from_numpy(integer_codes).to(on)
    vectors = network(values, codes)[: len(part)]
    return vectors.float().cpu().numpy()
