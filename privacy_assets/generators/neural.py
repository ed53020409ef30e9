"""What the neural generators share: settings that are checked, and the fitted network with its layout."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from privacy_assets.errors import InputError
from privacy_assets.generators.base import DAMAGED, FittedGenerator, Generator, PrivacyBudget, Training
from privacy_assets.generators.layout import Layout
from privacy_assets.tables.coding import Coding
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.generators.networks.blocks import Sampler, Shape

_WEIGHTS, _ARRAYS, _VALUES = "network.safetensors", "layout.npz", "values.json"
_WIDEST = 10_000  # entries of a one-hot vector
_BLOCK = 4096  # rows that go through the network at once when rows are drawn


class NeuralGenerator(Generator):
    """A generator that is a network."""

    modules: ClassVar[tuple[str, ...]] = ("torch",)
    extra: ClassVar[str | None] = "torch"

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        # MPS lacks double precision and some of the functions, and its random state cannot be set aside.
        return self._learn(train, replace(training, device="cpu") if training.device == "mps" else training)

    @abstractmethod
    def _learn(self, train: Table, training: Training) -> FittedGenerator:
        """Fit to checked input on the CPU or CUDA."""

    @abstractmethod
    def sampler(self, shape: Shape) -> Sampler:
        """The network that makes rows of this ``shape``, with weights from torch's global random state."""

    @classmethod
    def load(cls, folder: Path, manifest: Mapping[str, Any]) -> FittedGenerator:
        """See :meth:`Generator.load`."""
        return FittedNeural.read(cls(**manifest["settings"]), folder, manifest)


class FittedNeural(FittedGenerator):
    """A trained network, and what its outputs stand for."""

    def __init__(
        self,
        generator: NeuralGenerator,
        coding: Coding,
        layout: Layout,
        network: Sampler,
        history: tuple[Mapping[str, float], ...],
        privacy: PrivacyBudget | None = None,
    ) -> None:
        self.generator, self.schema, self.coding, self.layout = generator, coding.schema, coding, layout
        self.network, self.history = network.cpu().eval(), history
        self.privacy = privacy or PrivacyBudget()

    def _sample(self, rows: int, seed: int) -> Table:
        import torch

        from privacy_assets.generators.networks.blocks import seeded

        # A stream of its own: with that of fitting, rows would repeat the noise that protects people.
        stream = int(np.random.SeedSequence(seed, spawn_key=(2**32 - 1,)).generate_state(1, np.uint64)[0] >> 1)
        device = torch.device("cpu")
        with torch.inference_mode(), seeded(stream, device):
            sizes = [min(_BLOCK, rows - start) for start in range(0, rows, _BLOCK)]
            parts = [self.network.draw(size, device) for size in sizes]
            levels = torch.cat([part[0] for part in parts]).numpy()
            codes = torch.cat([part[1] for part in parts]).numpy()
        cells = self.layout.decode(levels, codes, np.random.default_rng([seed, 2]))
        return self.coding.table(cells)

    def _save(self, folder: Path) -> dict[str, Any]:
        from safetensors.torch import save_file

        save_file(self.network.state_dict(), folder / _WEIGHTS)
        np.savez_compressed(folder / _ARRAYS, **self.layout.to_arrays())  # type: ignore[arg-type]
        (folder / _VALUES).write_text(json.dumps(self.coding.plain_values()), encoding="utf-8")
        return {}

    @classmethod
    def read(cls, generator: NeuralGenerator, folder: Path, manifest: Mapping[str, Any]) -> FittedNeural:
        """Inverse of :meth:`save`; InputError when a part is missing or does not fit."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            schema = TableSchema.from_json(manifest["schema"])
            coding = Coding.of_plain(schema, json.loads((folder / _VALUES).read_text(encoding="utf-8")))
            with np.load(folder / _ARRAYS, allow_pickle=False) as stored:
                layout = Layout.from_arrays(dict(stored))
            network = generator.sampler(shape_of(layout))
            network.load_state_dict(load_file(folder / _WEIGHTS))
        except (*DAMAGED, RuntimeError, SafetensorError) as error:
            wrong = f"the fitted generator is not complete ({type(error).__name__})"
            raise InputError(wrong, where=str(folder), fix="fit it again") from None
        return cls(generator, coding, layout, network, ())


def shape_of(layout: Layout) -> Shape:
    """The sizes of the vectors of a layout; InputError when they would be too wide to learn from."""
    from privacy_assets.generators.networks.blocks import Shape

    if sum(layout.sizes) > _WIDEST:
        wrong = f"its columns have {sum(layout.sizes):,} different categories, more than {_WIDEST:,}"
        fix = "drop identifiers and names, or group rare categories"
        raise InputError(wrong, where="train", fix=fix)
    return Shape(len(layout.numbers), layout.sizes)
