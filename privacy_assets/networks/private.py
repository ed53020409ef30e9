"""Training with differential privacy: noisy gradients, noisy votes of teachers (PATE-GAN) and their
accounting.

opacus is imported late, because PATE-GAN does not need it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from privacy_assets.errors import ConfigError
from privacy_assets.networks.training import GanSampler, Shape, layers, step

ORDERS = np.arange(1.0, 10_001.0)
ROUNDS = 3  # rounds of labeled rows kept for the student; older rows differ from current output
_BETAS = (0.5, 0.9)
_TEACHER_RATE = 3e-3  # learning rates of PATE-GAN
_STUDENT_RATE = 1e-3
_GENERATOR_RATE = 3e-4
_TEACHER_WIDTH = 32  # hidden units of a teacher
_TEACHER_BATCH = 64  # rows per step of a teacher
# of a teacher; without a limit teachers memorize their rows, and the generator oscillates
_MAX_WEIGHT = 0.3
_REDRAWN_SHARE = 1 / 16  # share of labeled rows with redrawn cells
_MIN_PRECISION = 5e-4  # of epsilon; a finer grid takes gigabytes for thousands of steps
_MAX_PRECISION = 0.01
_MIN_NOISE = 0.3
_MAX_NOISE = 1e6
_NOISE_RATIO = 1.01  # ratio of the bounds at which the search for the noise ends
_RDP_ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(12, 10_000, 50))


class NoisySteps(NamedTuple):
    """Poisson-sampled Gaussian steps.

    Attributes:
        noise: Noise multiplier: standard deviation of the noise, divided by the sensitivity.
        rate: Probability with which a row is used in a step.
        n_steps: Number of steps.
    """

    noise: float
    rate: float
    n_steps: int


class ConditionalSampler(GanSampler):
    """A generator conditioned on one code of one column (Xu et al. 2019, section 4.3).

    ``shares`` (width,) are the frequencies of the codes within their columns, divided by the number
    of columns.
    """

    shares: Tensor

    def __init__(self, shape: Shape, hidden_dims: Sequence[int], noise: int) -> None:
        super().__init__(shape, hidden_dims, noise, conditions=shape.width)
        self.register_buffer("shares", torch.zeros(shape.width))

    def conditions(self, n_rows: int, device: torch.device) -> Tensor:
        """Draw conditions: a uniform column, and one of its codes by frequency.

        Args:
            n_rows: Number of conditions.
            device: Device of the network.

        Returns:
            One-hot vectors, float32 of shape (n_rows, width).
        """
        positions = torch.multinomial(self.shares.to(device), n_rows, replacement=True)
        return F.one_hot(positions, self.shape.width).float()

    def draw(self, n_rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Implement :meth:`Sampler.draw`, with conditions drawn by frequency."""
        logits = self.logits(n_rows, device, self.conditions(n_rows, device))
        return logits[:, :0], self.shape.draw_codes(logits)


class PrivateSteps:
    """Steps of a discriminator that sees rows only through clipped, noisy gradients, and steps of
    the generator.

    The gradient of each private row in a step is clipped. The sum gets normal noise. Gradients of
    generated rows get no noise.
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
        """Create optimizers for the networks.

        Args:
            sampler: The generator.
            critic: The discriminator.
            codes: Private rows, int64 of shape (n, q).
            rate: Probability with which a row is used in a step.
            max_grad_norm: Norm to which the gradient of a row is clipped.
            noise: Standard deviation of the noise, divided by ``max_grad_norm``.
            learning_rate: Learning rate of both networks.
            wasserstein: Maximum absolute weight of the discriminator, with Wasserstein losses and
                RMSprop. None: logistic losses and Adam.
        """
        from opacus.grad_sample import GradSampleModuleFastGradientClipping

        self.sampler = sampler
        self.codes = codes
        self.rate = rate
        self.wasserstein = wasserstein
        self.shape = sampler.shape
        self.device = codes.device
        # Only norms of single rows' gradients are stored; storing the gradients took most of the
        # time.
        self.critic = GradSampleModuleFastGradientClipping(
            critic, loss_reduction="sum", max_grad_norm=max_grad_norm
        )
        self.generator_optimizer = self._optimizer(sampler.parameters(), learning_rate)
        self.critic_optimizer = self._optimizer(self.critic.parameters(), learning_rate)
        self.noise_scale = max_grad_norm * noise
        self.n_expected = max(1.0, rate * len(codes))
        # generated rows have no privacy cost; batch normalization needs two
        self.n_generated = max(2, round(self.n_expected))

    def _optimizer(
        self, weights: Iterator[nn.Parameter], learning_rate: float
    ) -> torch.optim.Optimizer:
        if self.wasserstein is None:
            return torch.optim.Adam(weights, lr=learning_rate, betas=_BETAS)
        return torch.optim.RMSprop(weights, lr=learning_rate)

    def use(self, rng: np.random.Generator) -> None:
        """Draw rows and noise from ``rng`` from now on."""
        self.rng = rng

    @property
    def parts(self) -> Mapping[str, Any]:
        """Modules and optimizers to store in a checkpoint."""
        return {
            "network": self.sampler,
            "critic": self.critic,
            "own": self.generator_optimizer,
            "noisy": self.critic_optimizer,
        }

    def critic_step(self) -> float:
        """Take one step of the discriminator, and return its loss on generated rows, which is not
        private.
        """
        generated, _ = self._generate(self.n_generated)
        # Inputs require gradients, otherwise torch warns at every step that hooks miss them.
        losses = self._losses(generated.detach().requires_grad_(), as_real=False)
        generated_gradients = self._clipped_sum(losses)
        private_gradients = self._private_gradients()
        if private_gradients is None:
            private_gradients = [0.0 * gradient for gradient in generated_gradients]

        weights = list(self.critic.parameters())
        gradients = zip(weights, private_gradients, generated_gradients, strict=True)
        for weight, private_gradient, generated_gradient in gradients:
            noisy_gradient = (private_gradient + self._noise(weight)) / self.n_expected
            weight.grad = noisy_gradient + generated_gradient / len(losses)
        self.critic_optimizer.step()
        if self.wasserstein is not None:
            with torch.no_grad():
                for weight in weights:
                    weight.clamp_(-self.wasserstein, self.wasserstein)
        return float(losses.detach().mean())

    def _private_gradients(self) -> list[Tensor] | None:
        """Return the sum of the clipped gradients of sampled private rows, or None without rows."""
        is_sampled = torch.from_numpy(self.rng.random(len(self.codes)) < self.rate)
        codes = self.codes[is_sampled.to(self.device)]
        inputs = self._with_conditions(self.shape.one_hot(codes), codes).requires_grad_()
        if len(inputs) == 0:
            return None
        return self._clipped_sum(self._losses(inputs, as_real=True))

    def _clipped_sum(self, losses: Tensor) -> list[Tensor]:
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
        draws = self.rng.normal(0, self.noise_scale, (4, *weight.shape))
        return torch.from_numpy(draws.sum(0) / 2).to(weight)

    def generator_step(self) -> float:
        """Take one step of the generator, to deceive the discriminator and to meet the
        conditions.
        """
        generated, condition_loss = self._generate(self.n_generated)
        weights = list(self.sampler.parameters())
        self.critic.disable_hooks()
        loss = self._losses(generated, as_real=True).mean() + condition_loss
        gradients = torch.autograd.grad(loss, weights)
        self.critic.enable_hooks()
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        self.generator_optimizer.step()
        return float(loss.detach())

    def _generate(self, n_rows: int) -> tuple[Tensor, Tensor]:
        """Generate inputs of the discriminator, and the loss for missed conditions."""
        if not isinstance(self.sampler, ConditionalSampler):
            return self.sampler.rows(n_rows, self.device), torch.zeros((), device=self.device)
        conditions = self.sampler.conditions(n_rows, self.device)
        logits = self.sampler.logits(n_rows, self.device, conditions)
        log_blocks = [block.log_softmax(1) for block in self.shape.choices(logits)]
        log_shares = torch.cat(log_blocks, dim=1)
        inputs = torch.cat([self.shape.relaxed(logits), conditions], dim=1)
        return inputs, -(log_shares * conditions).sum(1).mean()

    def _with_conditions(self, real: Tensor, codes: Tensor) -> Tensor:
        """Append to each real row a condition that it meets: its code in a uniformly drawn
        column.
        """
        if not isinstance(self.sampler, ConditionalSampler):
            return real
        column = torch.randint(codes.shape[1], (len(codes),), device=self.device)
        code = codes.gather(1, column[:, None]).squeeze(1)
        positions = code + self.shape.starts.to(self.device)[column]
        return torch.cat([real, F.one_hot(positions, self.shape.width).float()], dim=1)

    def _losses(self, rows: Tensor, *, as_real: bool) -> Tensor:
        """Return the loss (n,) of each row for the target real or generated; with ``wasserstein``,
        minus or plus the score.
        """
        scores: Tensor = self.critic(rows).squeeze(1)
        if as_real:
            scores = -scores
        if self.wasserstein is not None:
            return scores
        return F.softplus(scores)


def noisy_shares(codes: Tensor, shape: Shape, noise: float, rng: np.random.Generator) -> Tensor:
    """Return the frequencies of codes from counts with normal noise, divided by the number of
    columns.

    A row adds 1 to one count of each of q columns, so the norm changes by sqrt(q), and the standard
    deviation is ``noise`` times this. Negative counts are set to 0; a column without positive
    counts is uniform.

    Args:
        codes: int64 of shape (n, q).
        shape: Sizes of the vectors, without numbers.
        noise: Noise multiplier.
        rng: Generator of the noise.

    Returns:
        float32 of shape (width,), with sum 1.
    """
    counts = shape.one_hot(codes).sum(0).cpu()
    noise_scale = noise * len(shape.sizes) ** 0.5
    noise_of_counts = torch.from_numpy(rng.normal(0, noise_scale, len(counts)))
    counts = (counts + noise_of_counts.to(counts)).clamp(min=0)
    blocks = []
    for block in counts.split(shape.sizes):
        total = block.sum()
        if total > 0:
            blocks.append(block / total)
        else:
            blocks.append(torch.full_like(block, 1 / len(block)))
    return torch.cat(blocks) / len(blocks)


class Teachers(nn.Module):
    """Perceptrons with one hidden layer, one per teacher, trained in parallel.

    Linear teachers see frequencies of values but no dependence between columns. Weights are
    limited, because teachers that memorize their few rows reject all generated rows, and such votes
    carry no information.
    """

    def __init__(self, teachers: int, width: int) -> None:
        super().__init__()
        self.first = _uniform_weights(teachers, width, _TEACHER_WIDTH)
        self.last = _uniform_weights(teachers, _TEACHER_WIDTH, 1)
        self.first_level = nn.Parameter(torch.zeros(teachers, 1, _TEACHER_WIDTH))
        self.last_level = nn.Parameter(torch.zeros(teachers, 1, 1))

    def forward(self, rows: Tensor) -> Tensor:
        """Return scores, positive for "real".

        Args:
            rows: Rows for each teacher, shape (k, b, width).

        Returns:
            Shape (k, b).
        """
        hidden = F.leaky_relu(torch.baddbmm(self.first_level, rows, self.first), 0.2)
        return torch.baddbmm(self.last_level, hidden, self.last).squeeze(2)

    def votes(self, rows: Tensor) -> Tensor:
        """Count the teachers that vote each row real.

        Each teacher votes for the half that is most similar to its own rows. Without a quota, votes
        would carry no information when all rows are recognized as generated.

        Args:
            rows: Shape (b, width).

        Returns:
            int64 of shape (b,).
        """
        blocks = rows.split(_TEACHER_BATCH)  # all rows at once would take gigabytes
        scores = torch.cat([self(block.expand(len(self.first), -1, -1)) for block in blocks], dim=1)
        return (scores > scores.median(dim=1, keepdim=True).values).sum(0)


def _uniform_weights(teachers: int, n_inputs: int, n_outputs: int) -> nn.Parameter:
    return nn.Parameter((2 * torch.rand(teachers, n_inputs, n_outputs) - 1) / n_inputs**0.5)


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
        """Return the expected label of each row: the share of teachers for it minus the share
        against.

        Args:
            rows: Shape (b, width).

        Returns:
            Shape (b,).
        """
        labels: Tensor = self.body(rows).squeeze(1)
        return labels


def vote_noise(epsilon: float, delta: float, n_labels: int) -> float:
    """Return the scale of the Laplace noise on both vote counts for which all labels stay within
    the budget.

    A subject changes the vote of one teacher. The pair of noisy counts, and the label computed from
    it, is therefore 2/scale-private, and its moments are at most 2 l (l + 1) / scale^2 for any
    votes (Papernot et al. 2017, theorem 2). Epsilon follows from theorem 2 of Abadi et al. 2016.

    Args:
        epsilon: Privacy budget.
        delta: Delta of the guarantee.
        n_labels: Number of labels.

    Raises:
        ConfigError: If no noise suffices.
    """
    budgets = epsilon * ORDERS + math.log(delta)
    is_feasible = budgets > 0
    if not is_feasible.any():
        raise ConfigError("the privacy budget is too small. Fix: raise epsilon or delta.")
    orders = ORDERS[is_feasible]
    scales = np.sqrt(2 * n_labels * orders * (orders + 1.0) / budgets[is_feasible])
    return float(scales.min())


class PateSteps:
    """Training steps of teachers, student and generator.

    The networks see a row and the standardized positions of its binned numbers, which depend on the
    public bins only.
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
        """Create optimizers for the networks.

        Args:
            sampler: The generator.
            teachers: k teachers.
            student: The discriminator.
            data: Rows of each teacher, float32 of shape (k, m, width).
            sizes: Number of rows of each teacher, of which the first are used, shape (k,).
            positions: Position of each bin of p numbers, float32 of shape (width, p).
            batch_size: Rows per step.
            scale: Scale of the noise on the votes.
        """
        self.sampler = sampler
        self.teachers = teachers
        self.student = student
        self.sizes = sizes
        self.positions = positions
        self.data = torch.cat([data, data @ positions], dim=-1)
        self.batch_size = batch_size
        self.scale = scale
        self.device = data.device
        self.optimizers = {
            "sampler": torch.optim.Adam(sampler.parameters(), _GENERATOR_RATE, _BETAS),
            "teachers": torch.optim.Adam(teachers.parameters(), _TEACHER_RATE, _BETAS),
            "student": torch.optim.Adam(student.parameters(), _STUDENT_RATE, _BETAS),
        }

    @property
    def parts(self) -> Mapping[str, Any]:
        """Modules and optimizers to store in a checkpoint."""
        modules = {"network": self.sampler, "teachers": self.teachers, "student": self.student}
        optimizers = {f"{name} optimizer": part for name, part in self.optimizers.items()}
        return {**modules, **optimizers}

    def teach(self) -> None:
        """Take one step of every teacher on its own rows and on generated ones."""
        n_teachers = len(self.data)
        shares = torch.rand(n_teachers, _TEACHER_BATCH, device=self.device)
        row_positions = (shares * self.sizes[:, None]).long()
        real = self.data.gather(1, row_positions[:, :, None].expand(-1, -1, self.data.shape[2]))
        generated = self._generate(_TEACHER_BATCH).detach().expand(n_teachers, -1, -1)
        losses = F.softplus(-self.teachers(real)) + F.softplus(self.teachers(generated))
        step(self.optimizers["teachers"], losses.mean(1).sum())
        with torch.no_grad():
            for weight in self.teachers.parameters():
                weight.clamp_(-_MAX_WEIGHT, _MAX_WEIGHT)

    def label(self, epoch: int, rng: np.random.Generator) -> None:
        """Label generated rows by noisy votes, replacing those of an earlier round.

        Args:
            epoch: Number of the epoch, from 0.
            rng: Generator of the noise.
        """
        n_teachers = len(self.data)
        n_redrawn = round(_REDRAWN_SHARE * self.batch_size)
        with torch.no_grad():
            generated = self._generate(self.batch_size, n_redrawn)
            votes = self.teachers.votes(generated)
        noise = torch.from_numpy(rng.laplace(0.0, self.scale, (2, self.batch_size))).to(self.device)
        n_real = votes + noise[0]
        n_generated = n_teachers - votes + noise[1]
        self.student.rows[epoch % ROUNDS] = generated
        self.student.labels[epoch % ROUNDS] = ((n_real - n_generated) / n_teachers).float()

    def learn(self, epoch: int) -> tuple[float, float]:
        """Take a step of the student on labeled rows and one of the generator.

        Reusing labels has no privacy cost.

        Args:
            epoch: Number of the epoch, from 0.

        Returns:
            Losses of student and generator.
        """
        rows = self.student.rows[: epoch + 1].flatten(0, 1)
        labels = self.student.labels[: epoch + 1].flatten()
        batch = torch.randint(len(rows), (self.batch_size,), device=self.device)
        label_loss = F.mse_loss(self.student(rows[batch]), labels[batch])
        student_loss = step(self.optimizers["student"], label_loss)
        mean_label = self.student(self._generate(self.batch_size)).mean()
        return student_loss, step(self.optimizers["sampler"], -mean_label)

    def _generate(self, n_rows: int, n_redrawn: int = 0) -> Tensor:
        """Generate inputs of the networks: choices as drawn (with gradients of relaxed ones) and
        positions.

        In the first ``n_redrawn`` rows about one cell each is drawn uniformly. Otherwise no label
        would show that a value is missing that the generator no longer generates.
        """
        relaxed = self.sampler.rows(n_rows, self.device)
        cell_share = 1 / len(self.sampler.shape.sizes)
        blocks = []
        for block in self.sampler.shape.choices(relaxed):
            codes = block.argmax(1)
            uniform_codes = torch.randint(block.shape[1], (n_redrawn,), device=self.device)
            is_redrawn = torch.rand(n_redrawn, device=self.device) < cell_share
            codes[:n_redrawn] = torch.where(is_redrawn, uniform_codes, codes[:n_redrawn])
            blocks.append(F.one_hot(codes, block.shape[1]).float())
        rows = torch.cat(blocks, dim=1) + (relaxed - relaxed.detach())
        return torch.cat([rows, rows @ self.positions], dim=1)


def epsilon_of(
    steps: Sequence[NoisySteps], delta: float, precision: float = _MAX_PRECISION
) -> float:
    """Return an upper bound of epsilon of Poisson-sampled Gaussian steps.

    Args:
        steps: Steps that are taken one after the other.
        delta: Delta of the guarantee.
        precision: Maximum difference of the bound and the estimate.
    """
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    for noise, rate, n_steps in steps:
        if n_steps > 0:
            accountant.history.append((noise, rate, n_steps))
    with warnings.catch_warnings():
        # log(0) at points without probability; orders of an initial rough bound
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta, eps_error=precision))


def _rough_epsilon(steps: Sequence[NoisySteps], delta: float) -> float:
    """Return a faster upper bound (Mironov 2017) to start the search."""
    from opacus.accountants.analysis import rdp

    divergences = np.zeros(len(_RDP_ORDERS))
    for noise, rate, n_steps in steps:
        divergences += rdp.compute_rdp(
            q=rate, noise_multiplier=noise, steps=n_steps, orders=_RDP_ORDERS
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best order may be the last one
        epsilon, _ = rdp.get_privacy_spent(orders=_RDP_ORDERS, rdp=divergences, delta=delta)
    return float(epsilon)


@lru_cache(maxsize=64)
def noise_for(
    epsilon: float,
    delta: float,
    rate: float,
    n_steps: int,
    before: tuple[NoisySteps, ...] = (),
) -> float:
    """Return the smallest noise multiplier (within 1 %) for which steps stay within the budget.

    Args:
        epsilon: Privacy budget.
        delta: Delta of the guarantee.
        rate: Probability with which a row is used in a step.
        n_steps: Number of steps.
        before: Steps taken before, which are part of the budget.

    Raises:
        ConfigError: If no noise suffices.
    """
    # A fine grid takes little memory for a single step.
    min_precision = _MIN_PRECISION if n_steps > 1 else 0.0
    precision = min(max(epsilon / 100, min_precision), _MAX_PRECISION)

    def spent(noise: float) -> float:
        return epsilon_of([*before, NoisySteps(noise, rate, n_steps)], delta, precision)

    def roughly_spent(noise: float) -> float:
        return _rough_epsilon([*before, NoisySteps(noise, rate, n_steps)], delta)

    high = 0.6

    def is_enough(noise: float) -> bool:  # not if the accountant returns NaN
        return roughly_spent(noise) <= epsilon and spent(noise) <= epsilon

    while not is_enough(high):
        high *= 2
        if high > _MAX_NOISE:
            raise ConfigError(
                "the privacy budget is too small. Fix: raise epsilon or delta, or train fewer"
                " epochs."
            )
    low = high / 2
    while low > _MIN_NOISE and spent(low) <= epsilon:  # the rough bound may have overshot
        high = low
        low = low / 2
    while high / low > _NOISE_RATIO:
        middle = (low * high) ** 0.5
        if spent(middle) <= epsilon:
            high = middle
        else:
            low = middle
    return high
