"""GANs whose discriminator learns from noisy gradients: the part of training that sees private rows (opacus)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from torch import Tensor, nn

from privacy_assets.generators.networks.blocks import GanSampler, Shape


class ConditionalSampler(GanSampler):
    """A generator that is told one code of one column to make (Xu et al. 2019, section 4.3).

    ``shares`` (width,) are the shares of the codes within their columns; each of the columns is asked for as often.
    """

    shares: Tensor

    def __init__(self, shape: Shape, hidden: Sequence[int], noise: int) -> None:
        super().__init__(shape, hidden, noise, conditions=shape.width)
        self.register_buffer("shares", torch.zeros(shape.width))

    def conditions(self, count: int, device: torch.device) -> Tensor:
        """One-hot conditions (count, width): a column drawn uniformly, and one of its codes by its share."""
        places = torch.multinomial(self.shares.to(device), count, replacement=True)
        return F.one_hot(places, self.shape.width).float()

    def draw(self, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """See :meth:`Sampler.draw`: conditions are drawn by their shares."""
        logits = self.logits(rows, device, self.conditions(rows, device))
        return logits[:, :0], self.shape.drawn(logits)


class PrivateSteps:
    """Steps of a discriminator that see rows through clipped, noisy gradients only, and steps of the generator.

    ``codes`` (n, q) are the private rows, each of which takes part in a step with probability ``rate``. Its gradient is
    clipped to norm ``clip``; the sum gets normal noise of ``noise`` times that. Rows that the generator made are
    nobody's: their gradients get no noise.
    """

    def __init__(
        self, sampler: GanSampler, critic: nn.Module, codes: Tensor, *, rate: float, clip: float, noise: float,
        learning_rate: float, wasserstein: float | None,
    ) -> None:  # fmt: skip
        self.sampler, self.codes, self.rate, self.wasserstein = sampler, codes, rate, wasserstein
        self.shape, self.device = sampler.shape, codes.device
        # Gradients of single rows are never held, only their norms: they took most of the time.
        self.critic = GradSampleModuleFastGradientClipping(critic, loss_reduction="sum", max_grad_norm=clip)
        kind = torch.optim.Adam if wasserstein is None else torch.optim.RMSprop
        more: dict[str, Any] = {"betas": (0.5, 0.9)} if wasserstein is None else {}
        self.own = kind(sampler.parameters(), lr=learning_rate, **more)
        self.noisy = kind(self.critic.parameters(), lr=learning_rate, **more)
        self.scale = clip * noise
        self.expected = max(1.0, rate * len(codes))
        self.made = max(2, round(self.expected))  # generated rows cost nothing, and batch normalisation needs two

    def use(self, rng: np.random.Generator) -> None:
        """Draw rows and noise from ``rng`` from now on."""
        self.rng = rng

    @property
    def parts(self) -> Mapping[str, Any]:
        """What a checkpoint keeps."""
        return {"network": self.sampler, "critic": self.critic, "own": self.own, "noisy": self.noisy}

    def critic_step(self) -> float:
        """One step of the discriminator; returns its loss on generated rows, which is no secret."""
        made, _ = self._made(self.made)
        # Inputs that take gradients too, or torch warns at every step that its hooks see none.
        loss = self._judged(made.detach().requires_grad_(), real=False)
        plain = self._clipped(loss)
        chosen = torch.from_numpy(self.rng.random(len(self.codes)) < self.rate).to(self.device)
        real = self.shape.expand(self.codes.new_zeros(int(chosen.sum()), 0), self.codes[chosen])
        shown = self._with_conditions(real, self.codes[chosen]).requires_grad_()
        private = self._clipped(self._judged(shown, real=True)) if len(shown) else [0.0 * part for part in plain]
        weights = list(self.critic.parameters())
        for weight, rows, free in zip(weights, private, plain, strict=True):
            weight.grad = (rows + self._noise(weight)) / self.expected + free / len(loss)
        self.noisy.step()
        if self.wasserstein is not None:
            with torch.no_grad():
                for weight in weights:
                    weight.clamp_(-self.wasserstein, self.wasserstein)
        return float(loss.detach().mean())

    def _clipped(self, losses: Tensor) -> list[Tensor]:
        """Sum of the gradients of the ``losses`` (n,), each clipped; those of generated rows too: neither outweighs."""
        losses.sum().backward(retain_graph=True)  # hooks find the norm of each row's gradient
        factors = self.critic.get_clipping_coef().detach()
        self.critic.disable_hooks()
        gradients = torch.autograd.grad((factors * losses).sum(), list(self.critic.parameters()))
        self.critic.enable_hooks()
        self.critic.zero_grad()
        return list(gradients)

    def _noise(self, weight: Tensor) -> Tensor:
        """Normal noise from numpy (torch's CPU generator has seeds of 32 bits, which could be tried one by one).

        The sum of four draws is safe against Mironov (2012), as in opacus.
        """
        drawn = self.rng.normal(0, self.scale, (4, *weight.shape)).sum(0) / 2
        return torch.from_numpy(drawn).to(weight)

    def generator_step(self) -> float:
        """One step of the generator: deceive the discriminator, and make the codes that were asked for."""
        made, missed = self._made(self.made)
        weights = list(self.sampler.parameters())
        self.critic.disable_hooks()
        loss = self._judged(made, real=True).mean() + missed
        gradients = torch.autograd.grad(loss, weights)
        self.critic.enable_hooks()
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        self.own.step()
        return float(loss.detach())

    def _made(self, count: int) -> tuple[Tensor, Tensor]:
        """What the discriminator is shown of ``count`` new rows, and how much they miss their conditions by."""
        if not isinstance(self.sampler, ConditionalSampler):
            return self.sampler.rows(count, self.device), torch.zeros((), device=self.device)
        asked = self.sampler.conditions(count, self.device)
        logits = self.sampler.logits(count, self.device, asked)
        log_shares = torch.cat([block.log_softmax(1) for block in self.shape.choices(logits)], dim=1)
        return torch.cat([self.shape.relaxed(logits), asked], dim=1), -(log_shares * asked).sum(1).mean()

    def _with_conditions(self, real: Tensor, codes: Tensor) -> Tensor:
        """Real rows with a condition that they meet: their own code of a column drawn uniformly."""
        if not isinstance(self.sampler, ConditionalSampler):
            return real
        column = torch.randint(codes.shape[1], (len(codes),), device=self.device)
        places = codes.gather(1, column[:, None]).squeeze(1) + self.shape.starts.to(self.device)[column]
        return torch.cat([real, F.one_hot(places, self.shape.width).float()], dim=1)

    def _judged(self, rows: Tensor, *, real: bool) -> Tensor:
        """Loss (n,) of taking ``rows`` for what they are not; with ``wasserstein`` weights, minus or plus the score."""
        scores: Tensor = self.critic(rows).squeeze(1)
        sign = -1.0 if real else 1.0
        return sign * scores if self.wasserstein is not None else F.softplus(sign * scores)


def noisy_shares(codes: Tensor, shape: Shape, noise: float, rng: np.random.Generator) -> Tensor:
    """Shares (width,) of the codes within their columns, of counts with normal noise.

    A row adds 1 to one count of each of the q columns: their norm changes by sqrt(q), so that the noise has ``noise``
    times that as standard deviation. Negative counts are 0; a column without any count is uniform.
    """
    counts = shape.expand(codes.new_zeros(len(codes), 0), codes).sum(0).cpu()
    drawn = torch.from_numpy(rng.normal(0, noise * len(shape.sizes) ** 0.5, len(counts)))
    counts = (counts + drawn.to(counts)).clamp(min=0)
    blocks = [block / block.sum() if block.sum() > 0 else torch.full_like(block, 1 / len(block))
              for block in counts.split(shape.sizes)]  # fmt: skip
    return torch.cat(blocks) / len(blocks)
