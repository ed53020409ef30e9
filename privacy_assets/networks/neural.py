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
from privacy_assets.infra.settings import Layers
from privacy_assets.networks.layout import Layout
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from torch import nn

    from privacy_assets.networks.training import Sampler, Shape

_WEIGHTS = "network."  # prefix of the names of weights
_MAX_WIDTH = 10_000  # of all one-hot vectors together
_N_BLOCK_ROWS = 4096  # rows per pass through the network when sampling
# The stream of seeds for sampling. With that of fitting, rows would repeat the protective noise.
_SAMPLING_STREAM = 2**32 - 1

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
        fitted.history = history
        fitted.privacy = self._privacy_budget(train.schema, training)
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

    def _privacy_budget(self, schema: TableSchema, training: Training) -> PrivacyBudget:
        """Return the budget spent by training. By default, there is no guarantee."""
        return PrivacyBudget()

    def sampler(self, shape: Shape) -> Sampler:
        """Create the network that generates rows, with weights from torch's global random state.

        The default is the generator of a GAN.

        Args:
            shape: Sizes of the vectors of the rows.
        """
        from privacy_assets.networks.training import GanSampler

        return GanSampler(shape, self.hidden_dims, self.noise)

    def load(
        self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]
    ) -> FittedGenerator:
        """Implement :meth:`Generator.load`."""
        arrays = read_arrays(folder)
        layout = Layout.from_arrays(arrays)
        shape = shape_of(layout)
        network = with_weights(lambda: self.sampler(shape), arrays)
        coding = MatrixCoding.of_plain(schema, manifest["values"])
        return FittedNeural(self, coding, layout, network)


class FittedNeural(FittedGenerator):
    """A trained network with its coding and layout."""

    def __init__(
        self, generator: NeuralGenerator, coding: MatrixCoding, layout: Layout, network: Any
    ) -> None:
        self.generator = generator
        self.schema = coding.schema
        self.coding = coding
        self.layout = layout
        self.network = network.cpu().eval()

    def _sample(self, n_rows: int, seed: int) -> Table:
        import torch

        from privacy_assets.networks.training import seeded, stream_seed

        device = torch.device("cpu")
        level_blocks = []
        code_blocks = []
        with torch.inference_mode(), seeded(stream_seed(seed, _SAMPLING_STREAM), device):
            for start in range(0, n_rows, _N_BLOCK_ROWS):
                size = min(_N_BLOCK_ROWS, n_rows - start)
                block_levels, block_codes = self.network.draw(size, device)
                level_blocks.append(block_levels)
                code_blocks.append(block_codes)
        levels = torch.cat(level_blocks).numpy()
        codes = torch.cat(code_blocks).numpy()
        cells = self.layout.decode(levels, codes, np.random.default_rng([seed, 2]))
        return self.coding.table(cells)

    def _save(self, folder: Path) -> dict[str, Any]:
        write_arrays(folder, weights_of(self.network) | self.layout.to_arrays())
        return {"values": self.coding.plain_values()}


def shape_of(layout: Layout) -> Shape:
    """Return the vector sizes of a layout.

    Args:
        layout: Layout of the columns.

    Raises:
        InputError: If vectors are too wide.
    """
    from privacy_assets.networks.training import Shape

    width = sum(layout.sizes)
    if width > _MAX_WIDTH:
        problem = f"its columns have {width:,} distinct categories, more than {_MAX_WIDTH:,}"
        fix = "drop identifiers and names, or group rare categories"
        raise InputError(problem, where="train", fix=fix)
    return Shape(len(layout.scales), layout.sizes)


def weights_of(network: nn.Module) -> dict[str, np.ndarray]:
    """Return the weights of a network as arrays for :func:`with_weights`."""
    arrays = {}
    for name, weight in network.state_dict().items():
        arrays[f"{_WEIGHTS}{name}"] = weight.detach().cpu().numpy()
    return arrays


def with_weights(make: Callable[[], nn.Module], arrays: Mapping[str, np.ndarray]) -> nn.Module:
    """Create a network and load its weights.

    Args:
        make: Creates the network.
        arrays: Output of :func:`weights_of`; other arrays are ignored.

    Raises:
        RuntimeError: If the weights do not fit.
    """
    import torch

    with torch.device("meta"):  # draws no weights from the global generator
        network = make()
    weights = {}
    for name, array in arrays.items():
        if name.startswith(_WEIGHTS):
            weights[name.removeprefix(_WEIGHTS)] = torch.from_numpy(array)
    network.load_state_dict(weights, assign=True)
    return network
