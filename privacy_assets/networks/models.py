"""Networks and losses of RVAE and WGAN-GP."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from privacy_assets.networks.training import (
    GanSampler,
    Rows,
    Sampler,
    Shape,
    layers,
    step,
)

_MARGIN = 1e-4  # distance of levels from 0 and 1, which avoids extreme normal scores
_OUTLIER = 2.0  # standard deviation of outlying numbers, in normal scores (S of the paper)
_LOG_2PI = math.log(2 * math.pi)
_N_DIRECTIONS = 100
_BETAS = (0.5, 0.9)
_PENALTY = 10.0  # weight of the gradient penalty (Gulrajani et al. 2017)


class RvaeNetwork(Sampler):
    """Encoder and decoder of the robust VAE (RVAE). Numbers are quantile-transformed to a normal
    distribution.
    """

    def __init__(
        self, shape: Shape, hidden_dims: Sequence[int], latent: int, dropout: float
    ) -> None:
        super().__init__()
        self.noise = latent
        self.shape = shape
        self.encoder = layers(shape.width, hidden_dims, 2 * latent, dropout=dropout)
        self.decoder = layers(latent, list(reversed(hidden_dims)), shape.width, dropout=dropout)
        self.log_sigma = nn.Parameter(torch.zeros(shape.n_numbers))

    def loss(
        self, levels: Tensor, codes: Tensor, clean: float, divergence_weight: float = 1.0
    ) -> Tensor:
        """Return the negative bound, averaged over rows: equation 4 with optimal weights of each
        cell (equation 6).

        With one draw of z, the optimal weight pi of a cell gives log(clean p(x|z) + (1 - clean)
        p_0(x)), where p_0 is a wide normal for numbers and uniform for choices.

        Args:
            levels: Levels in [0, 1], float32 of shape (n, p).
            codes: int64 of shape (n, q).
            clean: Prior probability that a cell is clean, in (0, 1].
            divergence_weight: Factor of the divergence from the prior.
        """
        scores = normal_scores(levels)
        vectors = self.shape.expand(scores, codes)
        mean, log_variance = self.encoder(vectors).chunk(2, dim=1)
        log_variance = log_variance.clamp(-10, 10)
        z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        log_cells, log_outliers = self._log_likelihoods(self.decoder(z), scores, codes)
        if clean < 1:
            log_clean = log_cells + math.log(clean)
            log_cells = torch.logaddexp(log_clean, log_outliers + math.log1p(-clean))
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1)
        return (divergence_weight * divergence - log_cells.sum(1)).mean()

    def _log_likelihoods(
        self, outputs: Tensor, scores: Tensor, codes: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the log-likelihoods of each cell (n, p + q) under the decoder and as an
        outlier.
        """
        sigma = self._sigma()
        means = outputs[:, : self.shape.n_numbers]
        wide_sigma = torch.full_like(sigma, _OUTLIER)
        columns = [_log_normal(scores, means, sigma)]
        outlier_columns = [_log_normal(scores, torch.zeros_like(scores), wide_sigma)]
        blocks = self.shape.choices(outputs)
        for block, code in zip(blocks, codes.T, strict=True):
            log_choice = -F.cross_entropy(block, code, reduction="none")
            log_uniform = torch.full_like(log_choice, -math.log(block.shape[1]))
            columns.append(log_choice[:, None])
            outlier_columns.append(log_uniform[:, None])
        return torch.cat(columns, dim=1), torch.cat(outlier_columns, dim=1)

    def _sigma(self) -> Tensor:
        return self.log_sigma.clamp(-4, 2).exp()

    def draw(self, n_rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Implement :meth:`Sampler.draw`: clean cells for z from the prior."""
        outputs = self.decoder(torch.randn(n_rows, self.noise, device=device))
        means = outputs[:, : self.shape.n_numbers]
        scores = means + self._sigma() * torch.randn_like(means)
        return torch.special.ndtr(scores), self.shape.draw_codes(outputs)


def normal_scores(levels: Tensor) -> Tensor:
    """Return normal quantiles of levels in [0, 1]."""
    return torch.special.ndtri(levels.clamp(_MARGIN, 1 - _MARGIN))


def _log_normal(x: Tensor, mean: Tensor, sigma: Tensor) -> Tensor:
    return -0.5 * ((x - mean) / sigma) ** 2 - sigma.log() - 0.5 * _LOG_2PI


class WganSteps:
    """Training steps of critic and generator of WGAN-GP."""

    def __init__(
        self,
        network: GanSampler,
        critic: nn.Module,
        train: Rows,
        validation: Rows,
        *,
        learning_rate: float,
    ) -> None:
        """Create optimizers for the networks.

        Args:
            network: The generator.
            critic: The critic.
            train: Training rows, on the device of the networks.
            validation: Validation rows, on the same device.
            learning_rate: Learning rate of both networks.
        """
        self.network = network
        self.critic = critic
        self.train = train
        self.validation = validation
        self.shape = network.shape
        self.device = train.codes.device
        self.generator_optimizer = torch.optim.Adam(network.parameters(), learning_rate, _BETAS)
        self.critic_optimizer = torch.optim.Adam(critic.parameters(), learning_rate, _BETAS)

    @property
    def parts(self) -> Mapping[str, Any]:
        """Modules and optimizers to store in a checkpoint."""
        return {
            "network": self.network,
            "critic": self.critic,
            "generator_optimizer": self.generator_optimizer,
            "critic_optimizer": self.critic_optimizer,
        }

    def critic_step(self, n_rows: int) -> float:
        """Take a step, and return its loss.

        Args:
            n_rows: Number of real rows, and of generated rows.
        """
        positions = torch.randint(len(self.train), (n_rows,), device=self.device)
        real = self._vectors(self.train.take(positions))
        generated = self.network.rows(n_rows, self.device).detach()
        distance = self.critic(generated).mean() - self.critic(real).mean()
        penalty = gradient_penalty(self.critic, real, generated)
        return step(self.critic_optimizer, distance + _PENALTY * penalty)

    def generator_step(self, n_rows: int) -> float:
        """Take a step, and return its loss.

        Args:
            n_rows: Number of generated rows.
        """
        generated = self.network.rows(n_rows, self.device)
        return step(self.generator_optimizer, -self.critic(generated).mean())

    def validation_distance(self) -> float:
        """Return the sliced Wasserstein distance between validation rows and the same number of
        generated rows.
        """
        torch.manual_seed(0)  # same noise in every epoch, so that distances are comparable
        with torch.no_grad():
            levels, codes = self.network.draw(len(self.validation), self.device)
            generated = self._vectors(Rows(levels, codes))
            return sliced_distance(self._vectors(self.validation), generated, 0)

    def _vectors(self, rows: Rows) -> Tensor:
        return self.shape.expand(rows.levels, rows.codes)


def gradient_penalty(critic: Callable[[Tensor], Tensor], real: Tensor, fake: Tensor) -> Tensor:
    """Return the mean squared deviation from 1 of the critic's gradient norm (Gulrajani et al.
    2017, equation 3).

    Gradients are evaluated between real and generated rows.

    Args:
        critic: Maps rows (n, width) to scores.
        real: Real rows, shape (n, width).
        fake: Generated rows, shape (n, width).
    """
    share = torch.rand(len(real), 1, device=real.device)
    between = (share * real + (1 - share) * fake).requires_grad_()
    (gradient,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return ((gradient.norm(dim=1) - 1) ** 2).mean()


def sliced_distance(first: Tensor, second: Tensor, seed: int) -> float:
    """Return the sliced Wasserstein distance of two tables, averaged over random directions.

    The larger table is truncated to the size of the smaller one.

    Args:
        first: Rows, shape (n, width).
        second: Rows, shape (m, width).
        seed: Seed of the directions.
    """
    n_rows = min(len(first), len(second))
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(first.shape[1], _N_DIRECTIONS, generator=generator)
    directions = (directions / directions.norm(dim=0)).to(first.device)
    first_sorted = torch.sort(first[:n_rows] @ directions, dim=0).values
    second_sorted = torch.sort(second[:n_rows] @ directions, dim=0).values
    return float((first_sorted - second_sorted).abs().mean())
