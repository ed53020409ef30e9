"""WGAN-GP on mixed tables (Gulrajani et al. 2017; Camino et al. 2018 for several categorical columns)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from privacy_assets.errors import InputError
from privacy_assets.generators.base import Training
from privacy_assets.generators.layout import Layout
from privacy_assets.generators.neural import History, NeuralGenerator, shape_of
from privacy_assets.settings import Layers, declared
from privacy_assets.tables.fingerprints import cells_fingerprint

if TYPE_CHECKING:
    from privacy_assets.generators.networks.blocks import Sampler

_BETAS = (0.5, 0.9)


@declared
class WGANGP(NeuralGenerator):
    """A generator that learns to deceive a critic whose gradient is held near 1 by a penalty.

    Generator and critic have ``hidden`` layers; the generator starts from ``noise`` normal numbers and gives levels
    (sigmoid) and choices (Gumbel softmax). For each of its steps the critic takes ``critic_steps``, with the penalty
    weighted by ``penalty``. Wasserstein losses do not say when to stop: each epoch the sliced Wasserstein distance
    between as many new rows and the ``validation`` share of the people, who are not trained on, is measured, training
    ends when it has not improved for ``patience`` epochs, and the weights of the best epoch are kept.
    """

    name = "wgan_gp"
    summary = "Wasserstein GAN with gradient penalty (WGAN-GP)."
    hidden: Layers = Field(default=(256, 256), description="widths of the layers")
    noise: int = Field(default=128, ge=1, le=4096, description="inputs of the network")
    epochs: int = Field(default=300, ge=1, le=100_000, description="passes over the training rows")
    batch: int = Field(default=500, ge=2, le=1_000_000, description="rows of a step")
    learning_rate: float = Field(default=2e-4, ge=1e-8, le=1, description="of Adam")
    critic_steps: int = Field(default=5, ge=1, le=100, description="steps of the critic for one of the generator")
    penalty: float = Field(default=10.0, ge=0, le=1000, description="weight of the gradient penalty")
    validation: float = Field(default=0.1, ge=0.01, le=0.5, description="share of people held out for early stopping")
    patience: int = Field(default=50, ge=1, le=100_000, description="epochs without a better loss that end training")

    def overfitting_protection(self) -> str:
        """See :meth:`Generator.overfitting_protection`."""
        return f"early stopping after {self.patience} epochs without getting nearer to unseen people"

    def _train(self, cells: np.ndarray, layout: Layout, training: Training) -> tuple[Sampler, History]:
        import torch

        from privacy_assets.generators.networks.blocks import layers, seeded
        from privacy_assets.generators.networks.gan import gradient_penalty, sliced_distance
        from privacy_assets.generators.networks.training import Loop, batches, split_rows, step

        device = torch.device(training.device)
        shape = shape_of(layout)
        if cells.shape[1] < 2:
            raise InputError("one row is too few to learn from", where="train", fix="give more rows")
        learned, judged = split_rows(layout, cells, self.validation, training)
        with seeded(training.seed, torch.device("cpu")):
            network: Any = self.sampler(shape)
            critic: Any = layers(shape.width, self.hidden, 1, slope=0.2)
        network.to(device), critic.to(device)
        own, other = (torch.optim.Adam(part.parameters(), self.learning_rate, _BETAS) for part in (network, critic))

        def epoch(number: int) -> dict[str, float]:
            network.train()
            losses = []
            for size in [len(part) for part in batches(len(learned[0]), self.batch)]:
                for _ in range(self.critic_steps):
                    rows = torch.randint(len(learned[0]), (size,), device=device)
                    real, fake = shape.expand(*[part[rows] for part in learned]), network.rows(size, device).detach()
                    distance = critic(fake).mean() - critic(real).mean()
                    gap = step(other, distance + self.penalty * gradient_penalty(critic, real, fake))
                losses.append((step(own, -critic(network.rows(size, device)).mean()), gap))
            network.eval()
            torch.manual_seed(0)  # the same noise for every epoch, so that distances can be compared
            with torch.no_grad():
                made = shape.expand(*network.draw(len(judged[0]), device))
                distance_now = sliced_distance(shape.expand(*judged), made, 0)
            loss, gap = np.mean(losses, axis=0).tolist()
            return {"generator_loss": loss, "critic_loss": gap, "validation_loss": distance_now}

        parts = {"network": network, "critic": critic, "generator_optimiser": own, "critic_optimiser": other}
        loop = Loop(self.name, training, parts, self.epochs, self.patience)
        return network, loop.run(epoch, cells_fingerprint(cells, self.settings()))
