"""PATE-GAN: a GAN whose discriminator learns from the noisy votes of teachers (Jordon et al. 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from privacy_assets.errors import InputError
from privacy_assets.generators.base import Training
from privacy_assets.generators.layout import Layout
from privacy_assets.generators.neural import History, shape_of
from privacy_assets.generators.private_gan import PrivateNetwork, noise_stream
from privacy_assets.settings import declared
from privacy_assets.tables.fingerprints import cells_fingerprint

if TYPE_CHECKING:
    from privacy_assets.generators.networks.blocks import Sampler

_FEWEST_ROWS = 2  # of a teacher


@declared
class PATEGAN(PrivateNetwork):
    """Each of the ``teachers`` sees rows of its own; the student, and through it the generator, only their noisy votes.

    A teacher tells its rows from generated ones. In each of ``epochs`` rounds the teachers take ``teacher_steps``, then
    ``batch`` new rows are labelled: each teacher takes half of them for real, both counts get Laplace noise, and the
    larger one is the row's label. Student and generator take ``student_steps`` each on the rows labelled last. The
    noise is the least with which all labels keep within (``epsilon``, ``delta``); it is the same for few teachers and
    for many, so that many (by default one for 10 people, at most 1,000) with few rows each are heard better.

    Unlike in the paper a label costs the same whatever the votes are: its cheaper bound for votes that agree depends on
    the private rows, and so would the number of steps. And there a teacher may take all rows for generated, which
    teaches the student nothing.

    It protects all rows of a person where people are known, since these go to one teacher, else one row; their number
    is public. The other settings are those of :class:`PrivateNetwork`.
    """

    name = "pategan"
    summary = "GAN taught by the noisy votes of teachers, with differential privacy (PATE-GAN)."
    ACCOUNTANT = "moments of noisy votes, whatever the votes are (Papernot et al. 2017, theorem 2)"
    epochs: int = Field(default=200, ge=1, le=100_000, description="passes over the training rows")
    batch: int = Field(default=64, ge=2, le=100_000, description="rows of a step")
    learning_rate: float = Field(default=1e-3, ge=1e-8, le=1, description="of Adam")
    generator_rate: float = Field(default=1e-4, ge=1e-8, le=1, description="learning rate of the generator")
    teacher_steps: int = Field(default=10, ge=1, le=1000, description="steps of each teacher")
    student_steps: int = Field(default=5, ge=1, le=1000, description="steps of the student")
    teachers: int | None = Field(default=None, ge=2, le=100_000, description="teachers; by the number of rows without")

    def _covers(self, training: Training) -> str:
        covers = "one row" if training.people is None else "all rows of one person"
        return f"the replacement of {covers}"

    def overfitting_protection(self) -> str:
        """See :meth:`Generator.overfitting_protection`."""
        return "learns from noisy votes, never from rows"

    def _train(self, cells: np.ndarray, layout: Layout, training: Training) -> tuple[Sampler, History]:
        import torch

        from privacy_assets.generators.networks.blocks import seeded
        from privacy_assets.generators.networks.pate import PateSteps, Student, Teachers, vote_noise
        from privacy_assets.generators.networks.training import Loop

        device, shape = torch.device(training.device), shape_of(layout)
        codes = torch.from_numpy(layout.encode(cells, np.random.default_rng(0))[1])
        parts = self._parts(cells.shape[1], training)
        sizes = torch.tensor([len(part) for part in parts])
        data = torch.zeros(len(parts), int(sizes.max()), shape.width)
        for place, part in enumerate(parts):
            data[place, : len(part)] = shape.expand(codes.new_zeros(len(part), 0), codes[torch.from_numpy(part)])
        labels = self.epochs * self.batch
        scale = vote_noise(self.epsilon, self.delta, labels)
        text = f"{len(parts)} teachers, {labels} labels, noise of scale {scale:.3g} on the votes"
        training.progress(f"{self.name}: {text}")
        with seeded(training.seed, torch.device("cpu")):
            network: Any = self.sampler(shape)
            teachers, student = Teachers(len(parts), shape.width), Student(shape.width, self.hidden, self.batch)
        run = PateSteps(
            network.to(device), teachers.to(device), student.to(device), data.to(device), sizes.to(device),
            batch=self.batch, scale=scale, learning_rate=self.learning_rate, generator_rate=self.generator_rate,
        )  # fmt: skip

        def epoch(number: int) -> dict[str, float]:
            network.train()
            for _ in range(self.teacher_steps):
                run.teach()
            run.label(number, noise_stream(training.seed, number))
            losses = [run.learn(number) for _ in range(self.student_steps)]
            judged, own = np.mean(losses, axis=0).tolist()
            return {"generator_loss": own, "student_loss": judged}

        optimisers = {f"{name} optimiser": one for name, one in run.optimisers.items()}
        kept = {"network": network, "teachers": teachers, "student": student, **optimisers}
        loop = Loop(self.name, training, kept, self.epochs)
        return network, loop.run(epoch, cells_fingerprint(cells, self.settings()))

    def _parts(self, rows: int, training: Training) -> list[np.ndarray]:
        """The rows of each teacher, as equal in number as people allow; InputError when there are too few."""
        whose = np.arange(rows) if training.people is None else np.unique(training.people, return_inverse=True)[1]
        people = int(whose.max()) + 1
        teachers = self.teachers or min(max(people // 10, 10), 1000, people // _FEWEST_ROWS)
        if teachers < 2 or people < _FEWEST_ROWS * teachers:
            needed = _FEWEST_ROWS * max(teachers, 2)
            fix = f"give rows of at least {needed} people, or ask for fewer teachers"
            raise InputError(f"{people} people are too few for {max(teachers, 2)} teachers", where="train", fix=fix)
        teacher_of = np.random.default_rng([training.seed, 4]).permutation(people) % teachers
        return [np.flatnonzero(teacher_of[whose] == place) for place in range(teachers)]
