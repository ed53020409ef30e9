"""The network of RVAE and its loss (Eduardo et al. 2020, section 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from privacy_assets.generators.networks.blocks import Sampler, Shape, layers

_EDGE = 1e-4  # levels closer to 0 and 1 than this would be far out as normal scores
_OUTLIER = 2.0  # standard deviation of a number that is an outlier, in normal scores (S of the paper)
_LOG_2PI = math.log(2 * math.pi)


class RvaeNetwork(Sampler):
    """Encoder and decoder of a mixed table; numbers stand as normal scores of their levels."""

    def __init__(self, shape: Shape, hidden: Sequence[int], latent: int, dropout: float) -> None:
        super().__init__()
        self.noise, self.shape = latent, shape
        self.encoder = layers(shape.width, hidden, 2 * latent, dropout=dropout)
        self.decoder = layers(latent, list(reversed(hidden)), shape.width, dropout=dropout)
        self.log_sigma = nn.Parameter(torch.zeros(shape.numbers))

    def loss(self, levels: Tensor, codes: Tensor, clean: float) -> Tensor:
        """Negative bound of a row, mean over rows: equation 4 with the best weights for each cell (equation 6).

        With one draw of z the weight pi that makes the bound of a cell highest gives log(clean p(x|z) + (1 - clean)
        p_0(x)), where p_0 is a wide normal for numbers and uniform for choices.
        """
        scores = normal_scores(levels)
        vectors = self.shape.expand(scores, codes)
        mean, log_variance = self.encoder(vectors).chunk(2, dim=1)
        log_variance = log_variance.clamp(-10, 10)
        z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        own, outlying = self._log_likelihoods(self.decoder(z), scores, codes)
        cells = torch.logaddexp(own + math.log(clean), outlying + math.log1p(-clean)) if clean < 1 else own
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1)
        return (divergence - cells.sum(1)).mean()

    def _log_likelihoods(self, out: Tensor, scores: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Of each cell (n, p + q): under the decoder, and as an outlier."""
        p, sigma = self.shape.numbers, self._sigma()
        numbers = _log_normal(scores, out[:, :p], sigma)
        outside = _log_normal(scores, torch.zeros_like(scores), torch.full_like(sigma, _OUTLIER))
        blocks = zip(self.shape.choices(out), codes.T, strict=True)
        choices = [-F.cross_entropy(block, code, reduction="none") for block, code in blocks]
        uniform = [torch.full_like(numbers[:, :1].sum(1), -math.log(size)) for size in self.shape.sizes]
        return _joined(numbers, choices), _joined(outside, uniform)

    def _sigma(self) -> Tensor:
        return self.log_sigma.clamp(-4, 2).exp()

    def draw(self, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """See :meth:`Sampler.draw`: clean cells for z from the prior."""
        out = self.decoder(torch.randn(rows, self.noise, device=device))
        means = out[:, : self.shape.numbers]
        scores = means + self._sigma() * torch.randn_like(means)
        return torch.special.ndtr(scores), self.shape.drawn(out)


def normal_scores(levels: Tensor) -> Tensor:
    """Normal quantiles of levels in [0, 1]."""
    return torch.special.ndtri(levels.clamp(_EDGE, 1 - _EDGE))


def _log_normal(x: Tensor, mean: Tensor, sigma: Tensor) -> Tensor:
    return -0.5 * ((x - mean) / sigma) ** 2 - sigma.log() - 0.5 * _LOG_2PI


def _joined(numbers: Tensor, choices: Sequence[Tensor]) -> Tensor:
    return torch.cat([numbers, *[choice[:, None] for choice in choices]], dim=1)
