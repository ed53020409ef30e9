"""PATE-GAN: teachers, their noisy votes, and what these cost (Jordon et al. 2019; Papernot et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from privacy_assets.errors import ConfigError
from privacy_assets.generators.networks.blocks import GanSampler, layers
from privacy_assets.generators.networks.training import step

ORDERS = np.arange(1.0, 10_001.0)
ROUNDS = 3  # whose labelled rows the student learns from: older ones are no longer what the generator makes
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
        """How many teachers take each of the rows (b, width) for real, int64 (b,).

        Each takes the half of them for real that look most like its own rows: of rows that are all seen through, votes
        without a quota say nothing.
        """
        scores = self(rows.expand(len(self.weight), -1, -1))
        return (scores > scores.median(dim=1, keepdim=True).values).sum(0)


class Student(nn.Module):
    """The discriminator that only ever sees generated rows with noisy labels, and those of the last rounds."""

    rows: Tensor
    labels: Tensor

    def __init__(self, width: int, hidden: Sequence[int], batch: int) -> None:
        super().__init__()
        self.body = layers(width, hidden, 1, slope=0.2)
        self.register_buffer("rows", torch.zeros(ROUNDS, batch, width))
        self.register_buffer("labels", torch.zeros(ROUNDS, batch))

    def forward(self, rows: Tensor) -> Tensor:
        """Scores (b,)."""
        out: Tensor = self.body(rows).squeeze(1)
        return out


def vote_noise(epsilon: float, delta: float, labels: int) -> float:
    """The scale of Laplace noise on both counts of votes with which so many ``labels`` keep within the budget.

    A person changes the vote of one teacher: a label is 2/scale-private, and its moments are at most 2 l (l + 1) /
    scale^2 (Papernot et al. 2017, theorem 2) whatever the votes are; epsilon follows by Abadi et al. 2016, theorem 2.
    """
    spare = epsilon * ORDERS + math.log(delta)
    if not (spare > 0).any():
        raise ConfigError("the privacy budget is too small. Fix: raise epsilon or delta.")
    return float(np.sqrt(2 * labels * ORDERS * (ORDERS + 1.0) / np.where(spare > 0, spare, np.nan))[spare > 0].min())


class PateSteps:
    """Steps of teachers, student and generator. ``data`` (k, m, width) are each teacher's own rows, ``sizes`` (k,) how
    many of the m places are filled.
    """

    def __init__(
        self, sampler: GanSampler, teachers: Teachers, student: Student, data: Tensor, sizes: Tensor, *,
        batch: int, scale: float, learning_rate: float, generator_rate: float,
    ) -> None:  # fmt: skip
        self.sampler, self.teachers, self.student, self.data, self.sizes = sampler, teachers, student, data, sizes
        self.batch, self.scale, self.device = batch, scale, data.device
        rates = {"sampler": generator_rate, "teachers": learning_rate, "student": learning_rate}
        self.optimisers = {
            name: torch.optim.Adam(getattr(self, name).parameters(), rate, _BETAS) for name, rate in rates.items()
        }

    def teach(self) -> None:
        """One step of every teacher on its own rows and on generated ones."""
        count = len(self.data)
        at = (torch.rand(count, self.batch, device=self.device) * self.sizes[:, None]).long()
        real = self.data.gather(1, at[:, :, None].expand(-1, -1, self.data.shape[2]))
        made = self.sampler.rows(self.batch, self.device).detach()
        losses = F.softplus(-self.teachers(real)) + F.softplus(self.teachers(made.expand(count, -1, -1)))
        step(self.optimisers["teachers"], losses.mean(1).sum())

    def label(self, number: int, rng: np.random.Generator) -> None:
        """Have new rows labelled by the noisy votes, and keep them in place of those of an earlier round."""
        with torch.no_grad():
            made = self.sampler.rows(self.batch, self.device)
            votes = self.teachers.votes(made)
        noise = torch.from_numpy(rng.laplace(0.0, self.scale, (2, self.batch))).to(self.device)
        self.student.rows[number % ROUNDS] = made
        self.student.labels[number % ROUNDS] = (votes + noise[0] > len(self.data) - votes + noise[1]).float()

    def learn(self, number: int) -> tuple[float, float]:
        """A step of the student on rows labelled up to round ``number``, one of the generator against it; both losses.

        Learning from a label again costs nothing.
        """
        rows, labels = self.student.rows[: number + 1].flatten(0, 1), self.student.labels[: number + 1].flatten()
        some = torch.randint(len(rows), (self.batch,), device=self.device)
        judged = step(
            self.optimisers["student"], F.binary_cross_entropy_with_logits(self.student(rows[some]), labels[some])
        )
        deceiving = F.softplus(-self.student(self.sampler.rows(self.batch, self.device))).mean()
        return judged, step(self.optimisers["sampler"], deceiving)
