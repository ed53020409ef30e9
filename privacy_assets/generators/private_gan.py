"""What the private networks share, and what DPGAN and DPCTGAN do: budgets, and training by noisy gradients."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators.base import PrivacyBudget, Training
from privacy_assets.generators.layout import Layout
from privacy_assets.generators.neural import History, NeuralGenerator, shape_of
from privacy_assets.generators.public import Bounds, Categories, PublicKnowledge
from privacy_assets.settings import Layers, declared
from privacy_assets.tables.coding import Coding
from privacy_assets.tables.fingerprints import cells_fingerprint
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.generators.networks.blocks import Sampler


@declared
class PrivateNetwork(PublicKnowledge, NeuralGenerator):
    """A network under (``epsilon``, ``delta``)-differential privacy that learns codes only: numbers stand in ``bins``.

    ``bounds``, ``categories`` and ``bins`` are those of ``privbayes``: what they do not give is read from the private
    rows, outside the guarantee, and named in the privacy budget. It holds towards those who do not know the seed.
    """

    secret_seed = True
    ACCOUNTANT: ClassVar[str]

    hidden: Layers = Field(default=(128, 128), description="widths of the layers")
    noise: int = Field(default=64, ge=1, le=4096, description="inputs of the network")
    epsilon: float = Field(default=1.0, ge=1e-3, le=1e6, description="privacy budget")
    delta: float = Field(default=1e-5, ge=1e-12, le=0.1, description="of the guarantee")
    bins: int = Field(default=20, ge=1, le=10_000, description="bins of a number")
    bounds: Bounds = None
    categories: Categories = None

    def _coded(self, train: Table) -> tuple[np.ndarray, Coding, Layout]:
        coding = self.public_coding(train)
        cells = coding.code(train)
        layout = Layout.of_domains(self.public_domains(cells, coding))
        if not layout.choices:
            fix = "give bounds or categories, or leave the table to another generator"
            raise InputError("no column has more than one value", where="train", fix=fix)
        return cells, coding, layout

    def _spent(self, schema: TableSchema, training: Training) -> PrivacyBudget:
        covers = f"{self._covers(training)}, towards those who do not know the seed"
        outside = self.outside_guarantee(schema)
        return PrivacyBudget(float(self.epsilon), float(self.delta), outside, self.ACCOUNTANT, covers)

    @abstractmethod
    def _covers(self, training: Training) -> str:
        """What the guarantee is about."""


@declared
class PrivateGan(PrivateNetwork):
    """Settings of a GAN under (``epsilon``, ``delta``)-differential privacy.

    Every row takes part in a step of the discriminator with probability ``batch`` / n; its gradient is clipped to norm
    ``clip``. The noise is the least with which ``epochs`` epochs, n / batch steps each, keep within the budget. There
    is no early stopping: choosing an epoch by private rows would have to be paid for.

    It protects a row, not a person with several. The number of rows is public.
    """

    modules = ("torch", "opacus")
    ACCOUNTANT = "privacy loss distributions of Poisson-sampled Gaussian steps (Gopi et al. 2021, opacus)"
    extra = "dp"
    WASSERSTEIN: ClassVar[float | None] = None

    epochs: int = Field(default=100, ge=1, le=100_000, description="passes over the training rows")
    batch: int = Field(default=256, ge=1, le=1_000_000, description="rows of a step")
    learning_rate: float = Field(default=1e-3, ge=1e-8, le=1, description="of Adam")
    critic_steps: int = Field(default=1, ge=1, le=100, description="steps of the critic for one of the generator")
    clip: float = Field(default=1.0, ge=1e-6, le=1e6, description="norm to which the gradient of a row is clipped")

    def _train(self, cells: np.ndarray, layout: Layout, training: Training) -> tuple[Sampler, History]:
        import torch

        from privacy_assets.generators.networks.blocks import layers, seeded
        from privacy_assets.generators.networks.private import PrivateSteps
        from privacy_assets.generators.networks.training import Loop

        device, shape = torch.device(training.device), shape_of(layout)
        codes = torch.from_numpy(layout.encode(cells, np.random.default_rng(0))[1]).to(device)
        rate = min(1.0, self.batch / len(codes))
        steps = math.ceil(1 / rate)
        if steps * self.epochs < self.critic_steps:
            raise ConfigError(f"{self.name}: with critic_steps {self.critic_steps} the generator would take no step.")
        noises = [noise_stream(training.seed, number) for number in range(self.epochs + 1)]
        with seeded(training.seed, torch.device("cpu")):
            network: Any = self.sampler(shape)
            noise = self._prepare(network, codes, rate, steps * self.epochs, noises[0])
            critic = layers(self._judged_width(shape.width), self.hidden, 1, slope=0.2)
        training.progress(f"{self.name}: {steps * self.epochs} noisy steps, noise multiplier {noise:.3g}")
        private = PrivateSteps(
            network.to(device), critic.to(device), codes, rate=rate, clip=self.clip, noise=noise,
            learning_rate=self.learning_rate, wasserstein=self.WASSERSTEIN,
        )  # fmt: skip

        def epoch(number: int) -> dict[str, float]:
            private.sampler.train()
            private.use(noises[number + 1])
            losses = []
            for step in range(steps):
                critic_loss = private.critic_step()
                if (number * steps + step + 1) % self.critic_steps == 0:
                    losses.append((private.generator_step(), critic_loss))
            if not losses:
                return {"critic_loss": critic_loss}
            own, other = np.mean(losses, axis=0).tolist()
            return {"generator_loss": own, "critic_loss": other}

        loop = Loop(self.name, training, private.parts, self.epochs)
        return network, loop.run(epoch, cells_fingerprint(cells, self.settings()))

    def overfitting_protection(self) -> str:
        """See :meth:`Generator.overfitting_protection`."""
        return f"gradients of single rows, clipped to {self.clip:g} and with noise"

    def _covers(self, training: Training) -> str:
        return "one row added or removed, their number taken as a public constant"

    def _prepare(self, network: Any, codes: Any, rate: float, steps: int, rng: np.random.Generator) -> float:
        """The noise multiplier of the discriminator's steps."""
        from privacy_assets.generators.networks.accounting import noise_for

        return noise_for(self.epsilon, self.delta, rate, steps)

    def _judged_width(self, width: int) -> int:
        return width


def noise_stream(seed: int, number: int) -> np.random.Generator:
    """Random numbers for the noise of one epoch, which nothing else is made from."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number, 7)))
