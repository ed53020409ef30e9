"""DPGAN: a Wasserstein GAN whose critic learns from noisy gradients (Xie et al. 2018)."""

from __future__ import annotations

from pydantic import Field

from privacy_assets.generators.private_gan import PrivateGan
from privacy_assets.settings import declared


@declared
class DPGAN(PrivateGan):
    """Wasserstein losses, RMSProp, and weights of the critic held within 0.05 as in the paper's algorithm 1.

    Unlike there the clipped gradient is that of each row, and the budget is that of all steps together.
    """

    name = "dpgan"
    summary = "Wasserstein GAN trained with differential privacy (DPGAN)."
    WASSERSTEIN = 0.05

    learning_rate: float = Field(default=5e-4, ge=1e-8, le=1, description="of Adam")
