"""Training with differential privacy: noisy gradients, noisy votes of teachers (PATE-GAN) and their
accounting.

opacus is imported late, because PATE-GAN does not need it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from privacy_assets.errors import ConfigError
from privacy_assets.generators.networks.training import GanSampler, Shape, layers, step

ORDERS = np.arange(1.0, 10_001.0)
ROUNDS = 3  # rounds of labeled rows kept for the student; older rows differ from current output
_BETAS = (0.5, 0.9)
_TEACHER_RATE, _STUDENT_RATE, _GENERATOR_RATE = 3e-3, 1e-3, 3e-4  # learning rates of PATE-GAN
_TEACHER_WIDTH, _TEACHER_BATCH = 32, 64  # hidden units of a teacher, and rows per step
# of a teacher; without a limit teachers memorize their rows, and the generator oscillates
_LARGEST_WEIGHT = 0.3
_REDRAWN = 1 / 16  # share of labeled rows with redrawn cells
Steps = Sequence[tuple[float, float, int]]  # noise multiplier, sampling rate, number of steps
_FINEST, _COARSEST = 5e-4, 0.01
_LEAST_NOISE, _MOST_NOISE = 0.3, 1e6
_RDP_ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(12, 10_000, 50))


class ConditionalSampler(GanSampler):
    """A generator conditioned on one code of one column (Xu et al. 2019, section 4.3).

    ``shares`` (width,) are the frequencies of the codes within their columns, divided by the number
    of columns.
    """

    shares: Tensor

    def __init__(self, shape: Shape, hidden_dims: Sequence[int], noise: int) -> None:
        super().__init__(shape, hidden_dims, noise, conditions=shape.width)
        self.register_buffer("shares", torch.zeros(shape.width))

    def conditions(self, count: int, device: torch.device) -> Tensor:
        """Draw one-hot conditions (count, width): a uniform column, and one of its codes by
        frequency.
        """
        places = torch.multinomial(self.shares.to(device), count, replacement=True)
        return F.one_hot(places, self.shape.width).float()

    def draw(self, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Implement :meth:`Sampler.draw`, with conditions drawn by frequency."""
        logits = self.logits(rows, device, self.conditions(rows, device))
        return logits[:, :0], self.shape.drawn(logits)


class PrivateSteps:
    """Steps of a discriminator that sees rows only through clipped, noisy gradients, and steps of
    the generator.

    ``codes`` (n, q) are the private rows. Each is used in a step with probability ``rate``, and its
    gradient is clipped to norm ``max_grad_norm``. The sum gets normal noise with standard deviation
    ``noise`` times ``max_grad_norm``. Gradients of generated rows get no noise.
    """

    def __init__(
        self,
        sampler: GanSampler,
        critic: nn.Module,
        codes: Tensor,
        *,
        rate: float,
        max_grad_norm: float,
        noise: float,
        learning_rate: float,
        wasserstein: float | None,
    ) -> None:
        from opacus.grad_sample import GradSampleModuleFastGradientClipping

        self.sampler, self.codes, self.rate, self.wasserstein = sampler, codes, rate, wasserstein
        self.shape, self.device = sampler.shape, codes.device
        # Only norms of single rows' gradients are stored; storing the gradients took most of the
        # time.
        self.critic = GradSampleModuleFastGradientClipping(
            critic, loss_reduction="sum", max_grad_norm=max_grad_norm
        )
        kind = torch.optim.Adam if wasserstein is None else torch.optim.RMSprop
        more: dict[str, Any] = {"betas": (0.5, 0.9)} if wasserstein is None else {}
        self.own = kind(sampler.parameters(), lr=learning_rate, **more)
        self.noisy = kind(self.critic.parameters(), lr=learning_rate, **more)
        self.scale = max_grad_norm * noise
        self.expected = max(1.0, rate * len(codes))
        # generated rows have no privacy cost; batch normalization needs two
        self.made = max(2, round(self.expected))

    def use(self, rng: np.random.Generator) -> None:
        """Draw rows and noise from ``rng`` from now on."""
        self.rng = rng

    @property
    def parts(self) -> Mapping[str, Any]:
        """Modules and optimizers to store in a checkpoint."""
        return {
            "network": self.sampler,
            "critic": self.critic,
            "own": self.own,
            "noisy": self.noisy,
        }

    def critic_step(self) -> float:
        """Take one step of the discriminator, and return its loss on generated rows, which is not
        private.
        """
        made, _ = self._made(self.made)
        # Inputs require gradients, otherwise torch warns at every step that hooks miss them.
        loss = self._judged(made.detach().requires_grad_(), real=False)
        plain = self._clipped(loss)
        chosen = torch.from_numpy(self.rng.random(len(self.codes)) < self.rate).to(self.device)
        real = self.shape.expand(self.codes.new_zeros(int(chosen.sum()), 0), self.codes[chosen])
        shown = self._with_conditions(real, self.codes[chosen]).requires_grad_()
        private = (
            self._clipped(self._judged(shown, real=True))
            if len(shown)
            else [0.0 * part for part in plain]
        )
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
        """Return the sum of the clipped gradients of ``losses`` (n,); clipping generated rows too
        keeps the balance.
        """
        losses.sum().backward(retain_graph=True)  # hooks compute the gradient norm of each row
        factors = self.critic.get_clipping_coef().detach()
        self.critic.disable_hooks()
        gradients = torch.autograd.grad((factors * losses).sum(), list(self.critic.parameters()))
        self.critic.enable_hooks()
        self.critic.zero_grad()
        return list(gradients)

    def _noise(self, weight: Tensor) -> Tensor:
        """Draw normal noise from numpy.

        Torch's CPU generator has 32-bit seeds, which could be found by exhaustive search.
        The sum of four draws protects against Mironov (2012), as in opacus.
        """
        drawn = self.rng.normal(0, self.scale, (4, *weight.shape)).sum(0) / 2
        return torch.from_numpy(drawn).to(weight)

    def generator_step(self) -> float:
        """Take one step of the generator, to deceive the discriminator and to meet the
        conditions.
        """
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
        """Generate ``count`` inputs of the discriminator, and the loss for missed conditions."""
        if not isinstance(self.sampler, ConditionalSampler):
            return self.sampler.rows(count, self.device), torch.zeros((), device=self.device)
        asked = self.sampler.conditions(count, self.device)
        logits = self.sampler.logits(count, self.device, asked)
        log_shares = torch.cat(
            [block.log_softmax(1) for block in self.shape.choices(logits)], dim=1
        )
        return torch.cat([self.shape.relaxed(logits), asked], dim=1), -(log_shares * asked).sum(
            1
        ).mean()

    def _with_conditions(self, real: Tensor, codes: Tensor) -> Tensor:
        """Append to each real row a condition that it meets: its code in a uniformly drawn
        column.
        """
        if not isinstance(self.sampler, ConditionalSampler):
            return real
        column = torch.randint(codes.shape[1], (len(codes),), device=self.device)
        places = (
            codes.gather(1, column[:, None]).squeeze(1) + self.shape.starts.to(self.device)[column]
        )
        return torch.cat([real, F.one_hot(places, self.shape.width).float()], dim=1)

    def _judged(self, rows: Tensor, *, real: bool) -> Tensor:
        """Return the loss (n,) for a target of ``real``; with ``wasserstein``, minus or plus the
        score.
        """
        scores: Tensor = self.critic(rows).squeeze(1)
        sign = -1.0 if real else 1.0
        return sign * scores if self.wasserstein is not None else F.softplus(sign * scores)


def noisy_shares(codes: Tensor, shape: Shape, noise: float, rng: np.random.Generator) -> Tensor:
    """Return the frequencies (width,) of codes from counts with normal noise, divided by the number
    of columns.

    A row adds 1 to one count of each of q columns, so the norm changes by sqrt(q), and the standard
    deviation is ``noise`` times this. Negative counts are set to 0; a column without positive
    counts is uniform.
    """
    counts = shape.expand(codes.new_zeros(len(codes), 0), codes).sum(0).cpu()
    drawn = torch.from_numpy(rng.normal(0, noise * len(shape.sizes) ** 0.5, len(counts)))
    counts = (counts + drawn.to(counts)).clamp(min=0)
    blocks = [block / block.sum() if block.sum() > 0 else torch.full_like(block, 1 / len(block))
              for block in counts.split(shape.sizes)]  # fmt: skip
    return torch.cat(blocks) / len(blocks)


class Teachers(nn.Module):
    """Perceptrons with one hidden layer, trained in parallel: scores (k, b) of rows (k, b, width),
    one set per teacher.

    Linear teachers see frequencies of values but no dependence between columns. Weights are
    limited, because teachers that memorize their few rows reject all generated rows, and such votes
    carry no information.
    """

    def __init__(self, teachers: int, width: int) -> None:
        super().__init__()
        self.first, self.last = (
            nn.Parameter((2 * torch.rand(teachers, inputs, outputs) - 1) / inputs**0.5)
            for inputs, outputs in ((width, _TEACHER_WIDTH), (_TEACHER_WIDTH, 1))
        )
        self.first_level = nn.Parameter(torch.zeros(teachers, 1, _TEACHER_WIDTH))
        self.last_level = nn.Parameter(torch.zeros(teachers, 1, 1))

    def forward(self, rows: Tensor) -> Tensor:
        """Return scores (k, b), positive for "real"."""
        hidden = F.leaky_relu(torch.baddbmm(self.first_level, rows, self.first), 0.2)
        return torch.baddbmm(self.last_level, hidden, self.last).squeeze(2)

    def votes(self, rows: Tensor) -> Tensor:
        """Count the teachers that vote each of the rows (b, width) real, int64 (b,).

        Each teacher votes for the half that is most similar to its own rows. Without a quota, votes
        would carry no information when all rows are recognized as generated.
        """
        blocks = rows.split(_TEACHER_BATCH)  # all rows at once would take gigabytes
        scores = torch.cat([self(block.expand(len(self.first), -1, -1)) for block in blocks], dim=1)
        return (scores > scores.median(dim=1, keepdim=True).values).sum(0)


class Student(nn.Module):
    """The discriminator, which sees only generated rows with noisy labels, from recent rounds."""

    rows: Tensor
    labels: Tensor

    def __init__(self, width: int, hidden_dims: Sequence[int], batch_size: int) -> None:
        super().__init__()
        self.body = layers(width, hidden_dims, 1, slope=0.2)
        self.register_buffer("rows", torch.zeros(ROUNDS, batch_size, width))
        self.register_buffer("labels", torch.zeros(ROUNDS, batch_size))

    def forward(self, rows: Tensor) -> Tensor:
        """Return the expected label of each row, shape (b,): the share of teachers for it minus the
        share against.
        """
        out: Tensor = self.body(rows).squeeze(1)
        return out


def vote_noise(epsilon: float, delta: float, labels: int) -> float:
    """Return the scale of the Laplace noise on both vote counts for which ``labels`` labels stay
    within the budget.

    A subject changes the vote of one teacher. The pair of noisy counts, and the label computed from
    it, is therefore 2/scale-private, and its moments are at most 2 l (l + 1) / scale^2 for any
    votes (Papernot et al. 2017, theorem 2). Epsilon follows from theorem 2 of Abadi et al. 2016.
    """
    spare = epsilon * ORDERS + math.log(delta)
    if not (spare > 0).any():
        raise ConfigError("the privacy budget is too small. Fix: raise epsilon or delta.")
    return float(
        np.sqrt(2 * labels * ORDERS * (ORDERS + 1.0) / np.where(spare > 0, spare, np.nan))[
            spare > 0
        ].min()
    )


class PateSteps:
    """Training steps of teachers, student and generator.

    ``data`` (k, m, width) are the rows of each teacher, of which the first ``sizes`` (k,) are used.
    ``positions`` (width, p) maps a row to the standardized positions of its p binned numbers, which
    networks see in addition to the row. They depend on the public bins only.
    """

    def __init__(
        self,
        sampler: GanSampler,
        teachers: Teachers,
        student: Student,
        data: Tensor,
        sizes: Tensor,
        *,
        positions: Tensor,
        batch_size: int,
        scale: float,
    ) -> None:
        self.sampler, self.teachers, self.student, self.sizes = sampler, teachers, student, sizes
        self.positions, self.data = positions, torch.cat([data, data @ positions], dim=-1)
        self.batch_size, self.scale, self.device = batch_size, scale, data.device
        rates = {"sampler": _GENERATOR_RATE, "teachers": _TEACHER_RATE, "student": _STUDENT_RATE}
        self.optimisers = {
            name: torch.optim.Adam(getattr(self, name).parameters(), rate, _BETAS)
            for name, rate in rates.items()
        }

    def teach(self) -> None:
        """Take one step of every teacher on its own rows and on generated ones."""
        count = len(self.data)
        at = (torch.rand(count, _TEACHER_BATCH, device=self.device) * self.sizes[:, None]).long()
        real = self.data.gather(1, at[:, :, None].expand(-1, -1, self.data.shape[2]))
        made = self._made(_TEACHER_BATCH).detach()
        losses = F.softplus(-self.teachers(real)) + F.softplus(
            self.teachers(made.expand(count, -1, -1))
        )
        step(self.optimisers["teachers"], losses.mean(1).sum())
        with torch.no_grad():
            for weight in self.teachers.parameters():
                weight.clamp_(-_LARGEST_WEIGHT, _LARGEST_WEIGHT)

    def label(self, number: int, rng: np.random.Generator) -> None:
        """Label generated rows by noisy votes, replacing those of an earlier round."""
        with torch.no_grad():
            made = self._made(self.batch_size, redrawn=round(_REDRAWN * self.batch_size))
            votes = self.teachers.votes(made)
        noise = torch.from_numpy(rng.laplace(0.0, self.scale, (2, self.batch_size))).to(self.device)
        real, generated = votes + noise[0], len(self.data) - votes + noise[1]
        self.student.rows[number % ROUNDS] = made
        self.student.labels[number % ROUNDS] = ((real - generated) / len(self.data)).float()

    def learn(self, number: int) -> tuple[float, float]:
        """Take a step of the student on labeled rows and one of the generator, and return both
        losses.

        Reusing labels has no privacy cost.
        """
        rows, labels = (
            self.student.rows[: number + 1].flatten(0, 1),
            self.student.labels[: number + 1].flatten(),
        )
        some = torch.randint(len(rows), (self.batch_size,), device=self.device)
        judged = step(
            self.optimisers["student"], F.mse_loss(self.student(rows[some]), labels[some])
        )
        return judged, step(
            self.optimisers["sampler"], -self.student(self._made(self.batch_size)).mean()
        )

    def _made(self, count: int, redrawn: int = 0) -> Tensor:
        """Generate ``count`` inputs of the networks: choices as drawn (with gradients of relaxed
        ones) and positions.

        In the first ``redrawn`` rows about one cell each is drawn uniformly. Otherwise no label
        would show that a value is missing that the generator no longer generates.
        """
        relaxed = self.sampler.rows(count, self.device)
        blocks = []
        for block in self.sampler.shape.choices(relaxed):
            codes = block.argmax(1)
            other = torch.randint(block.shape[1], (redrawn,), device=self.device)
            chosen = torch.rand(redrawn, device=self.device) < 1 / len(self.sampler.shape.sizes)
            codes[:redrawn] = torch.where(chosen, other, codes[:redrawn])
            blocks.append(F.one_hot(codes, block.shape[1]).float())
        rows = torch.cat(blocks, dim=1) + (relaxed - relaxed.detach())
        return torch.cat([rows, rows @ self.positions], dim=1)


def epsilon_of(steps: Steps, delta: float, precision: float = _COARSEST) -> float:
    """Return an upper bound of epsilon of Poisson-sampled Gaussian ``steps``.

    It is at most ``precision`` above the estimate.
    """
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [tuple(step) for step in steps if step[2] > 0]
    with warnings.catch_warnings():
        # log(0) at points without probability; orders of an initial rough bound
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta, eps_error=precision))


def _rough(steps: Steps, delta: float) -> float:
    """Return a faster upper bound (Mironov 2017) to start the search."""
    from opacus.accountants.analysis import rdp

    spent = sum(rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=number, orders=_RDP_ORDERS)
                for noise, rate, number in steps)  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best order may be the last one
        return float(rdp.get_privacy_spent(orders=_RDP_ORDERS, rdp=spent, delta=delta)[0])


@lru_cache(maxsize=64)
def noise_for(
    epsilon: float,
    delta: float,
    rate: float,
    number: int,
    before: tuple[tuple[float, float, int], ...] = (),
) -> float:
    """Return the smallest noise multiplier (within 1 %) for which ``number`` steps after ``before``
    cost ``epsilon``.

    Raises:
        ConfigError: If no noise suffices.
    """
    # A fine grid takes gigabytes for thousands of steps, and little for a single one.
    precision = min(max(epsilon / 100, _FINEST if number > 1 else 0.0), _COARSEST)

    def spent(noise: float) -> float:
        return epsilon_of([*before, (noise, rate, number)], delta, precision)

    high = 0.6
    while _rough([*before, (high, rate, number)], delta) > epsilon or spent(high) > epsilon:
        high *= 2
        if high > _MOST_NOISE:
            raise ConfigError(
                "the privacy budget is too small. Fix: raise epsilon or delta, or train fewer"
                " epochs."
            )
    low = high / 2
    while low > _LEAST_NOISE and spent(low) <= epsilon:  # the rough bound may have overshot
        low, high = low / 2, low
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high
