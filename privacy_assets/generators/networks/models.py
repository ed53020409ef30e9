"""Networks and losses of RVAE and WGAN-GP."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from privacy_assets.generators.networks.training import Sampler, Shape, layers

_EDGE = 1e-4  # margin from 0 and 1, which avoids extreme normal scores
_OUTLIER = 2.0  # standard deviation of outlying numbers, in normal scores (S of the paper)
_LOG_2PI = math.log(2 * math.pi)
_PROJECTIONS = 100


class RvaeNetwork(Sampler):
    """Encoder and decoder of the robust VAE (RVAE). Numbers are quantile-transformed to a normal
    distribution.
    """

    def __init__(
        self, shape: Shape, hidden_dims: Sequence[int], latent: int, dropout: float
    ) -> None:
        super().__init__()
        self.noise, self.shape = latent, shape
        self.encoder = layers(shape.width, hidden_dims, 2 * latent, dropout=dropout)
        self.decoder = layers(latent, list(reversed(hidden_dims)), shape.width, dropout=dropout)
        self.log_sigma = nn.Parameter(torch.zeros(shape.numbers))

    def loss(
        self, levels: Tensor, codes: Tensor, clean: float, divergence_weight: float = 1.0
    ) -> Tensor:
        """Return the negative bound, averaged over rows: equation 4 with optimal weights of each
        cell (equation 6).

        With one draw of z, the optimal weight pi of a cell gives log(clean p(x|z) + (1 - clean)
        p_0(x)), where p_0 is a wide normal for numbers and uniform for choices.
        ``divergence_weight`` multiplies the divergence from the prior.
        """
        scores = normal_scores(levels)
        vectors = self.shape.expand(scores, codes)
        mean, log_variance = self.encoder(vectors).chunk(2, dim=1)
        log_variance = log_variance.clamp(-10, 10)
        z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        own, outlying = self._log_likelihoods(self.decoder(z), scores, codes)
        cells = (
            torch.logaddexp(own + math.log(clean), outlying + math.log1p(-clean))
            if clean < 1
            else own
        )
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1)
        return (divergence_weight * divergence - cells.sum(1)).mean()

    def _log_likelihoods(self, out: Tensor, scores: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-likelihoods of each cell (n, p + q) under the decoder and as an
        outlier.
        """
        p, sigma = self.shape.numbers, self._sigma()
        numbers = _log_normal(scores, out[:, :p], sigma)
        outside = _log_normal(scores, torch.zeros_like(scores), torch.full_like(sigma, _OUTLIER))
        blocks = zip(self.shape.choices(out), codes.T, strict=True)
        choices = [-F.cross_entropy(block, code, reduction="none") for block, code in blocks]
        uniform = [
            torch.full_like(numbers[:, :1].sum(1), -math.log(size)) for size in self.shape.sizes
        ]
        return _joined(numbers, choices), _joined(outside, uniform)

    def _sigma(self) -> Tensor:
        return self.log_sigma.clamp(-4, 2).exp()

    def draw(self, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Implement :meth:`Sampler.draw`: clean cells for z from the prior."""
        out = self.decoder(torch.randn(rows, self.noise, device=device))
        means = out[:, : self.shape.numbers]
        scores = means + self._sigma() * torch.randn_like(means)
        return torch.special.ndtr(scores), self.shape.drawn(out)


def normal_scores(levels: Tensor) -> Tensor:
    """Return normal quantiles of levels in [0, 1]."""
    return torch.special.ndtri(levels.clamp(_EDGE, 1 - _EDGE))


def _log_normal(x: Tensor, mean: Tensor, sigma: Tensor) -> Tensor:
    return -0.5 * ((x - mean) / sigma) ** 2 - sigma.log() - 0.5 * _LOG_2PI


def _joined(numbers: Tensor, choices: Sequence[Tensor]) -> Tensor:
    return torch.cat([numbers, *[choice[:, None] for choice in choices]], dim=1)


def gradient_penalty(critic: Callable[[Tensor], Tensor], real: Tensor, fake: Tensor) -> Tensor:
    """Return the mean squared deviation from 1 of the critic's gradient norm (Gulrajani et al.
    2017, equation 3).

    Gradients are evaluated between real and generated rows.
    """
    share = torch.rand(len(real), 1, device=real.device)
    between = (share * real + (1 - share) * fake).requires_grad_()
    (gradient,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return ((gradient.norm(dim=1) - 1) ** 2).mean()


def sliced_distance(first: Tensor, second: Tensor, seed: int) -> float:
    """Return the sliced Wasserstein distance of rows (n, width) and (m, width), averaged over
    random directions.

    Directions are drawn by ``seed``. The larger table is truncated to the size of the smaller one.
    """
    rows = min(len(first), len(second))
    directions = torch.randn(
        first.shape[1], _PROJECTIONS, generator=torch.Generator().manual_seed(seed)
    )
    directions = (directions / directions.norm(dim=0)).to(first.device)
    one, other = (torch.sort(part[:rows] @ directions, dim=0).values for part in (first, second))
    return float((one - other).abs().mean())
