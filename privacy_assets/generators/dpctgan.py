"""DPCTGAN: a conditional GAN for tables, trained with differential privacy (Fang et al. 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from privacy_assets.generators.private_gan import PrivateGan
from privacy_assets.settings import declared

if TYPE_CHECKING:
    from privacy_assets.generators.networks.blocks import Sampler, Shape


@declared
class DPCTGAN(PrivateGan):
    """The generator is told one value of one column to make, as in CTGAN, and the discriminator sees what was asked.

    How often a value is asked for follows the shares of the private rows, counted once with noise: ``counts_share`` of
    epsilon pays for it. Rows are not drawn by the condition, which would break the sampling that the accountant
    assumes: a row that is drawn brings a condition of its own, one of its values.
    """

    name = "dpctgan"
    summary = "Conditional tabular GAN trained with differential privacy (DPCTGAN)."
    counts_share: float = Field(default=0.1, ge=0.001, le=0.999, description="share of the budget for counts")

    def sampler(self, shape: Shape) -> Sampler:
        """See :meth:`NeuralGenerator.sampler`."""
        from privacy_assets.generators.networks.private import ConditionalSampler

        return ConditionalSampler(shape, self.hidden, self.noise)

    def _prepare(self, network: Any, codes: Any, rate: float, steps: int, rng: np.random.Generator) -> float:
        from privacy_assets.generators.networks.accounting import noise_for
        from privacy_assets.generators.networks.private import noisy_shares

        counting = noise_for(self.epsilon * self.counts_share, self.delta, 1.0, 1)
        network.shares.copy_(noisy_shares(codes, network.shape, counting, rng))
        return noise_for(self.epsilon, self.delta, rate, steps, ((counting, 1.0, 1),))

    def _judged_width(self, width: int) -> int:
        return 2 * width
