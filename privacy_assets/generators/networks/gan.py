"""Critics: the gradient penalty of WGAN-GP, and the distance by which a GAN's early stopping judges."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_PROJECTIONS = 100


def gradient_penalty(critic: Callable[[Tensor], Tensor], real: Tensor, fake: Tensor) -> Tensor:
    """Mean squared distance from 1 of the critic's gradient norm between rows (Gulrajani et al. 2017, equation 3)."""
    share = torch.rand(len(real), 1, device=real.device)
    between = (share * real + (1 - share) * fake).requires_grad_()
    (gradient,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return ((gradient.norm(dim=1) - 1) ** 2).mean()


def sliced_distance(first: Tensor, second: Tensor, seed: int) -> float:
    """Sliced Wasserstein distance between rows (n, width) and (m, width): mean over random directions.

    The directions are those of ``seed``. Of the larger table as many rows are taken as the smaller one has.
    """
    rows = min(len(first), len(second))
    directions = torch.randn(first.shape[1], _PROJECTIONS, generator=torch.Generator().manual_seed(seed))
    directions = (directions / directions.norm(dim=0)).to(first.device)
    one, other = (torch.sort(part[:rows] @ directions, dim=0).values for part in (first, second))
    return float((one - other).abs().mean())
