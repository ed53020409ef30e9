"""Base classes of neural generators and their fitted networks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from privacy_assets.errors import InputError
from privacy_assets.generators.base import (
    FittedGenerator,
    Generator,
    PrivacyBudget,
    Training,
    read_arrays,
    write_arrays,
)
from privacy_assets.generators.layout import Layout
from privacy_assets.infra.settings import Layers
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from torch import nn

    from privacy_assets.generators.networks.training import Sampler, Shape

_WEIGHTS = "network."
_WIDEST = 10_000  # maximum width of all one-hot vectors together
_BLOCK = 4096  # rows per pass through the network when sampling

History = tuple[Mapping[str, float], ...]


class NeuralGenerator(Generator):
    """Base class of generators that are neural networks."""

    modules: ClassVar[tuple[str, ...]] = ("torch",)
    extra: ClassVar[str | None] = "torch"

    hidden_dims: Layers
    noise: int

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        # MPS lacks double precision, some functions, and a random state that can be saved
        if training.device == "mps":
            training = replace(training, device="cpu")
        cells, coding, layout = self._coded(train)
        network, history = self._train(cells, layout, training)
        fitted = FittedNeural(self, coding, layout, network)
        fitted.history, fitted.privacy = history, self._spent(train.schema, training)
        return fitted

    def _coded(self, train: Table) -> tuple[np.ndarray, MatrixCoding, Layout]:
        """Return the cells (F, n), their coding and their layout."""
        coding = MatrixCoding.fit([train], train.schema)
        cells = coding.code(train)
        return cells, coding, Layout.of_cells(cells, coding)

    @abstractmethod
    def _train(
        self, cells: np.ndarray, layout: Layout, training: Training
    ) -> tuple[Sampler, History]:
        """Train on the cells (F, n), on the CPU or CUDA."""

    def _spent(self, schema: TableSchema, training: Training) -> PrivacyBudget:
        return PrivacyBudget()

    def sampler(self, shape: Shape) -> Sampler:
        """Create the network that generates rows of this ``shape``, with weights from torch's
        global random state.

        The default is the generator of a GAN.
        """
        from privacy_assets.generators.networks.training import GanSampler

        return GanSampler(shape, self.hidden_dims, self.noise)

    def load(
        self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]
    ) -> FittedGenerator:
        """Implement :meth:`Generator.load`."""
        arrays = read_arrays(folder)
        layout = Layout.from_arrays(arrays)
        shape = shape_of(layout)
        network = with_weights(lambda: self.sampler(shape), arrays)
        return FittedNeural(
            self, MatrixCoding.of_plain(schema, manifest["values"]), layout, network
        )


class FittedNeural(FittedGenerator):
    """A trained network with its coding and layout."""

    def __init__(
        self, generator: NeuralGenerator, coding: MatrixCoding, layout: Layout, network: Any
    ) -> None:
        self.generator, self.schema, self.coding, self.layout = (
            generator,
            coding.schema,
            coding,
            layout,
        )
        self.network = network.cpu().eval()

    def _sample(self, rows: int, seed: int) -> Table:
        import torch

        from privacy_assets.generators.networks.training import seeded

        # A separate stream: with that of fitting, rows would repeat the protective noise.
        stream = int(
            np.random.SeedSequence(seed, spawn_key=(2**32 - 1,)).generate_state(1, np.uint64)[0]
            >> 1
        )
        device = torch.device("cpu")
        with torch.inference_mode(), seeded(stream, device):
            sizes = [min(_BLOCK, rows - start) for start in range(0, rows, _BLOCK)]
            parts = zip(*[self.network.draw(size, device) for size in sizes], strict=True)
            levels, codes = (torch.cat(part).numpy() for part in parts)
        cells = self.layout.decode(levels, codes, np.random.default_rng([seed, 2]))
        return self.coding.table(cells)

    def _save(self, folder: Path) -> dict[str, Any]:
        write_arrays(folder, weights_of(self.network) | self.layout.to_arrays())
        return {"values": self.coding.plain_values()}


def shape_of(layout: Layout) -> Shape:
    """Return the vector sizes of a layout. Raises InputError if vectors are too wide."""
    from privacy_assets.generators.networks.training import Shape

    if sum(layout.sizes) > _WIDEST:
        wrong = f"its columns have {sum(layout.sizes):,} distinct categories, more than {_WIDEST:,}"
        fix = "drop identifiers and names, or group rare categories"
        raise InputError(wrong, where="train", fix=fix)
    return Shape(len(layout.scales), layout.sizes)


def weights_of(network: nn.Module) -> dict[str, np.ndarray]:
    """Return the weights of a network as arrays."""
    return {
        f"{_WEIGHTS}{name}": part.detach().cpu().numpy()
        for name, part in network.state_dict().items()
    }


def with_weights(make: Callable[[], nn.Module], arrays: Mapping[str, np.ndarray]) -> nn.Module:
    """Create a network by ``make`` and load its weights. Raises RuntimeError if they do not fit."""
    import torch

    with torch.device("meta"):  # draws no weights from the global generator
        network = make()
    own = {
        name.removeprefix(_WEIGHTS): part
        for name, part in arrays.items()
        if name.startswith(_WEIGHTS)
    }
    network.load_state_dict(
        {name: torch.from_numpy(part) for name, part in own.items()}, assign=True
    )
    return network
