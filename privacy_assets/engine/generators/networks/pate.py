"""PATE-GAN's teachers, their noisy votes, and what these cost (Jordon et al. 2019; Papernot et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from privacy_assets.engine.generators.networks.blocks import GanSampler, layers

ORDERS = np.arange(1, 201)
_BETAS = (0.5, 0.9)


class Teachers(nn.Module):
    """Logistic regressions, all trained at once: scores (k, b) of rows (k, b, width), one set of rows each.

    They are as weak as in the authors' program: teachers that know their few rows by heart take no generated row for
    real, and such votes teach nothing.
    """

    def __init__(self, teachers: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(teachers, width, 1))
        self.level = nn.Parameter(torch.zeros(teachers, 1, 1))

    def forward(self, rows: Tensor) -> Tensor:
        """Scores (k, b): above 0 for "real"."""
        return torch.baddbmm(self.level, rows, self.weight).squeeze(2)

    def votes(self, rows: Tensor) -> Tensor:
        """How many teachers take each of the rows (b, width) for real, int64 (b,)."""
        return (self(rows.expand(len(self.weight), -1, -1)) > 0).sum(0)


class Student(nn.Module):
    """The discriminator that only ever sees generated rows with noisy labels, and what these have cost so far."""

    moments: Tensor

    def __init__(self, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.body = layers(width, hidden, 1, slope=0.2)
        self.register_buffer("moments", torch.zeros(len(ORDERS), dtype=torch.float64))

    def forward(self, rows: Tensor) -> Tensor:
        """Scores (b,)."""
        out: Tensor = self.body(rows).squeeze(1)
        return out


def vote_moments(for_real: np.ndarray, teachers: int, inverse_scale: float) -> np.ndarray:
    """Bound of the moments of the votes' privacy loss, summed over queries, at ``ORDERS``; float64.

    ``for_real`` (b,) of ``teachers`` voted "real"; each side's count gets Laplace noise of scale 1 / ``inverse_scale``.
    The smaller of theorem 3 (a vote that all agree on tells little) and theorem 2 of Papernot et al.: it depends on the
    votes themselves.
    """
    gap = inverse_scale * np.abs(2 * for_real - teachers)
    flipped = (2 + gap) / (4 * np.exp(gap))
    bound = np.broadcast_to(2 * inverse_scale**2 * ORDERS * (ORDERS + 1.0), (len(gap), len(ORDERS))).copy()
    grown = math.exp(2 * inverse_scale)
    fits = flipped < (grown - 1) / (grown**2 - 1)
    q = flipped[fits, None]
    agreed = ORDERS * (np.log1p(-q) - np.log1p(-grown * q)) + np.log1p(-q)
    other = np.log(q) + 2 * inverse_scale * ORDERS
    bound[fits] = np.minimum(bound[fits], np.logaddexp(agreed, other))
    return np.asarray(bound.sum(0))


def epsilon_of_moments(moments: np.ndarray, delta: float) -> float:
    """Epsilon of moments at ``ORDERS`` (Abadi et al. 2016, theorem 2)."""
    return float(((moments - math.log(delta)) / ORDERS).min())


class PateSteps:
    """Steps of teachers, student and generator. ``data`` (k, m, width) are each teacher's own rows, ``sizes`` (k,) how
    many of the m places are filled.
    """

    def __init__(
        self, sampler: GanSampler, teachers: Teachers, student: Student, data: Tensor, sizes: Tensor, *,
        batch: int, inverse_scale: float, learning_rate: float,
    ) -> None:  # fmt: skip
        self.sampler, self.teachers, self.student, self.data, self.sizes = sampler, teachers, student, data, sizes
        self.batch, self.inverse_scale, self.device = batch, inverse_scale, data.device
        names = {"sampler": sampler, "teachers": teachers, "student": student}
        self.optimisers = {
            name: torch.optim.Adam(part.parameters(), lr=learning_rate, betas=_BETAS) for name, part in names.items()
        }

    def teach(self) -> float:
        """One step of every teacher on its own rows and on generated ones; returns the mean loss."""
        count = len(self.data)
        at = (torch.rand(count, self.batch, device=self.device) * self.sizes[:, None]).long()
        real = self.data.gather(1, at[:, :, None].expand(-1, -1, self.data.shape[2]))
        made = self.sampler.rows(self.batch, self.device).detach()
        losses = F.softplus(-self.teachers(real)) + F.softplus(self.teachers(made.expand(count, -1, -1)))
        self._step("teachers", losses.mean(1).sum())
        return float(losses.detach().mean())

    def label(self, delta: float, epsilon: float) -> tuple[Tensor, Tensor] | None:
        """New rows with noisy labels, paid for; None when they would exceed the budget."""
        with torch.no_grad():
            made = self.sampler.rows(self.batch, self.device)
            votes = self.teachers.votes(made)
        teachers = len(self.data)
        after = self.student.moments.cpu().numpy() + vote_moments(votes.cpu().numpy(), teachers, self.inverse_scale)
        if epsilon_of_moments(after, delta) > epsilon:
            return None
        self.student.moments.copy_(torch.from_numpy(after))
        noise = torch.distributions.Laplace(0.0, 1 / self.inverse_scale).sample((2, self.batch)).to(self.device)
        return made, (votes + noise[0] > teachers - votes + noise[1]).float()

    def learn(self, made: Tensor, labels: Tensor) -> tuple[float, float]:
        """One step of the student on labelled rows, and one of the generator against it; returns both losses."""
        judged = F.binary_cross_entropy_with_logits(self.student(made), labels)
        self._step("student", judged)
        deceiving = F.softplus(-self.student(self.sampler.rows(self.batch, self.device))).mean()
        self._step("sampler", deceiving)
        return float(judged.detach()), float(deceiving.detach())

    def _step(self, name: str, loss: Tensor) -> None:
        for optimiser in self.optimisers.values():
            optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimisers[name].step()
