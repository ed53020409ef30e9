"""GANs for mixed tables: WGAN-GP, and DPGAN, DPCTGAN and PATE-GAN with differential privacy."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators.base import PrivacyBudget, Training
from privacy_assets.generators.domains import Bounds, Categories, PublicKnowledge
from privacy_assets.infra.settings import Layers, declared
from privacy_assets.networks.layout import Layout
from privacy_assets.networks.neural import History, NeuralGenerator, shape_of
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.fingerprints import cells_fingerprint
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from privacy_assets.networks.training import Sampler, Shape

_MIN_SUBJECTS_PER_TEACHER = 2  # of a teacher
_MAX_TEACHERS = 1000  # by default
_TEACHER_STEPS = 10  # per epoch
_STUDENT_STEPS = 10  # per epoch


@declared
class WGANGP(NeuralGenerator):
    """A Wasserstein GAN whose critic has a penalty on gradient norms other than 1.

    The generator maps normal noise to levels (sigmoid) and choices (Gumbel softmax). Wasserstein
    losses provide no stopping criterion. After each epoch the sliced Wasserstein distance between
    generated rows and the same number of validation rows is measured. Training ends when it has not
    improved for ``patience`` epochs, and the weights of the best epoch are kept.

    Attributes:
        hidden_dims: Widths of the layers of generator and critic.
        noise: Number of noise inputs.
        epochs: Maximum number of passes over the rows.
        batch_size: Rows per step.
        learning_rate: Learning rate of Adam.
        critic_steps: Steps of the critic per step of the generator.
        validation: Share of subjects in the validation set.
        patience: Number of epochs without improvement after which training stops.
    """

    name = "wgan_gp"
    summary = "Wasserstein GAN with gradient penalty (WGAN-GP)."
    hidden_dims: Layers = (256, 256)
    noise: int = Field(default=128, ge=1, le=4096)
    epochs: int = Field(default=300, ge=1, le=100_000)
    batch_size: int = Field(default=500, ge=2, le=1_000_000)
    learning_rate: float = Field(default=2e-4, ge=1e-8, le=1)
    critic_steps: int = Field(default=5, ge=1, le=100)
    validation: float = Field(default=0.1, ge=0.01, le=0.5)
    patience: int = Field(default=50, ge=1, le=100_000)

    def overfitting_protection(self) -> dict[str, float]:
        """Implement :meth:`Generator.overfitting_protection`."""
        return {"patience": self.patience}

    def _train(
        self, cells: np.ndarray, layout: Layout, training: Training
    ) -> tuple[Sampler, History]:
        import torch

        from privacy_assets.networks.models import WganSteps
        from privacy_assets.networks.training import (
            Loop,
            batches,
            layers,
            seeded,
            split_rows,
        )

        device = torch.device(training.device)
        shape = shape_of(layout)
        if cells.shape[1] < 2:
            raise InputError(
                "at least two rows are needed for training", where="train", fix="pass more rows"
            )
        train, validation = split_rows(layout, cells, self.validation, training)
        with seeded(training.seed, torch.device("cpu")):
            network: Any = self.sampler(shape)
            critic = layers(shape.width, self.hidden_dims, 1, slope=0.2)
        steps = WganSteps(
            network.to(device),
            critic.to(device),
            train,
            validation,
            learning_rate=self.learning_rate,
        )

        def epoch(number: int) -> dict[str, float]:
            network.train()
            losses = []
            for positions in batches(len(train), self.batch_size):
                n_rows = len(positions)
                for _ in range(self.critic_steps):
                    critic_loss = steps.critic_step(n_rows)
                losses.append((steps.generator_step(n_rows), critic_loss))
            network.eval()
            generator_loss, critic_loss = np.mean(losses, axis=0).tolist()
            return {
                "generator_loss": generator_loss,
                "critic_loss": critic_loss,
                "validation_loss": steps.validation_distance(),
            }

        loop = Loop(self.name, training, steps.parts, self.epochs, self.patience)
        return network, loop.run(epoch, cells_fingerprint(cells, self.settings()))


@declared
class PrivateNetwork(PublicKnowledge, NeuralGenerator):
    """A network with (``epsilon``, ``delta``)-differential privacy that learns codes only; numbers
    are binned.

    The guarantee requires that the attacker does not know the seed. Values not declared by
    ``bounds`` or ``categories`` are read from the private rows, outside of the guarantee, and
    listed in the privacy budget.

    Attributes:
        hidden_dims: Widths of the layers.
        noise: Number of noise inputs.
        epsilon: Privacy budget.
        delta: Delta of the guarantee.
        bins: Number of bins of a number.
        bounds: Publicly known [low, high] of numbers and times, by column. Times are strings.
        categories: Publicly known values, by column.
    """

    secret_seed = True
    ACCOUNTANT: ClassVar[str]

    hidden_dims: Layers = (128, 128)
    noise: int = Field(default=64, ge=1, le=4096)
    epsilon: float = Field(default=1.0, ge=1e-3, le=1e6)
    delta: float = Field(default=1e-5, ge=1e-12, le=0.1)
    bins: int = Field(default=20, ge=1, le=10_000)
    bounds: Bounds = None
    categories: Categories = None

    def _coded(self, train: Table) -> tuple[np.ndarray, MatrixCoding, Layout]:
        coding = self.public_coding(train)
        cells = coding.code(train)
        layout = Layout.of_domains(self.public_domains(cells, coding))
        if not layout.choices:
            fix = "set bounds or categories, or use another generator"
            raise InputError("no column has more than one value", where="train", fix=fix)
        return cells, coding, layout

    def _privacy_budget(self, schema: TableSchema, training: Training) -> PrivacyBudget:
        return PrivacyBudget(
            epsilon=float(self.epsilon),
            delta=float(self.delta),
            outside_guarantee=self.outside_guarantee(schema),
            accountant=self.ACCOUNTANT,
            covers=f"{self._covers(training)}, unless the seed is known",
        )

    @abstractmethod
    def _covers(self, training: Training) -> str:
        """Describe what the guarantee protects."""


@declared
class PrivateGan(PrivateNetwork):
    """A GAN with (``epsilon``, ``delta``)-differential privacy.

    Each row is used in a step of the discriminator with probability ``batch_size`` / n, and its
    gradient is clipped to norm ``max_grad_norm``. The noise is the smallest for which ``epochs``
    epochs of n / batch_size steps each stay within the budget. There is no early stopping, because
    selecting an epoch by private rows would spend budget. The guarantee protects a row, not a
    subject with several rows. The number of rows is public.

    Attributes:
        epochs: Passes over the training rows.
        batch_size: Expected rows per step.
        learning_rate: Learning rate of Adam (RMSprop with Wasserstein losses).
        critic_steps: Steps of the discriminator per step of the generator.
        max_grad_norm: Norm to which the gradient of a row is clipped.
    """

    modules = ("torch", "opacus")
    ACCOUNTANT = (
        "privacy loss distributions of Poisson-sampled Gaussian steps (Gopi et al. 2021, opacus)"
    )
    extra = "dp"
    WASSERSTEIN: ClassVar[float | None] = None

    epochs: int = Field(default=100, ge=1, le=100_000)
    batch_size: int = Field(default=256, ge=1, le=1_000_000)
    learning_rate: float = Field(default=1e-3, ge=1e-8, le=1)
    critic_steps: int = Field(default=1, ge=1, le=100)
    max_grad_norm: float = Field(default=1.0, ge=1e-6, le=1e6)

    def _train(
        self, cells: np.ndarray, layout: Layout, training: Training
    ) -> tuple[Sampler, History]:
        import torch

        from privacy_assets.networks.private import PrivateSteps
        from privacy_assets.networks.training import Loop, layers, seeded

        device = torch.device(training.device)
        shape = shape_of(layout)
        codes = _private_codes(cells, layout).to(device)
        rate = min(1.0, self.batch_size / len(codes))
        steps_per_epoch = math.ceil(1 / rate)
        n_steps = steps_per_epoch * self.epochs
        if n_steps < self.critic_steps:
            raise ConfigError(
                f"{self.name}: critic_steps {self.critic_steps} exceeds the number of steps, so"
                " the generator"
                " would not be trained. Fix: lower critic_steps."
            )
        with seeded(training.seed, torch.device("cpu")):
            network: Any = self.sampler(shape)
            noise = self._prepare(network, codes, rate, n_steps, noise_stream(training.seed, 0))
            critic = layers(self._critic_width(shape.width), self.hidden_dims, 1, slope=0.2)
        training.progress(f"{self.name}: {n_steps} noisy steps, noise multiplier {noise:.3g}")
        steps = PrivateSteps(
            network.to(device),
            critic.to(device),
            codes,
            rate=rate,
            max_grad_norm=self.max_grad_norm,
            noise=noise,
            learning_rate=self.learning_rate,
            wasserstein=self.WASSERSTEIN,
        )

        def epoch(number: int) -> dict[str, float]:
            network.train()
            steps.use(noise_stream(training.seed, number + 1))
            losses = []
            for i_step in range(number * steps_per_epoch, (number + 1) * steps_per_epoch):
                critic_loss = steps.critic_step()
                if (i_step + 1) % self.critic_steps == 0:
                    losses.append((steps.generator_step(), critic_loss))
            if not losses:
                return {"critic_loss": critic_loss}
            generator_loss, critic_loss = np.mean(losses, axis=0).tolist()
            return {"generator_loss": generator_loss, "critic_loss": critic_loss}

        loop = Loop(self.name, training, steps.parts, self.epochs)
        return network, loop.run(epoch, cells_fingerprint(cells, self.settings()))

    def overfitting_protection(self) -> dict[str, float]:
        """Implement :meth:`Generator.overfitting_protection`."""
        return {"max_grad_norm": self.max_grad_norm}

    def _covers(self, training: Training) -> str:
        return "addition or removal of one row; the number of rows is public"

    def _prepare(
        self, network: Any, codes: Tensor, rate: float, n_steps: int, rng: np.random.Generator
    ) -> float:
        """Return the noise multiplier of the discriminator's steps."""
        from privacy_assets.networks.private import noise_for

        return noise_for(self.epsilon, self.delta, rate, n_steps)

    def _critic_width(self, width: int) -> int:
        """Return the number of inputs of the discriminator, for rows of this width."""
        return width


def noise_stream(seed: int, stream: int) -> np.random.Generator:
    """Return a generator of noise, which is used for nothing else.

    Args:
        seed: Secret seed of the training.
        stream: Number of the stream.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream, 7)))


def _private_codes(cells: np.ndarray, layout: Layout) -> Tensor:
    """Return the codes of the rows, int64 (n, q). Without levels, the codes are not random."""
    import torch

    _, codes = layout.encode(cells, np.random.default_rng(0))
    return torch.from_numpy(codes)


@declared
class DPGAN(PrivateGan):
    """A GAN with Wasserstein losses, RMSProp, and critic weights clipped to 0.05 (algorithm 1 of
    the paper).

    Unlike in the paper, gradients are clipped per row, and the budget covers all steps.
    """

    name = "dpgan"
    summary = "Wasserstein GAN trained with differential privacy (DPGAN)."
    WASSERSTEIN = 0.05

    learning_rate: float = Field(default=5e-4, ge=1e-8, le=1)


@declared
class DPCTGAN(PrivateGan):
    """A GAN conditioned on one value of one column, as in CTGAN; the discriminator also sees the
    condition.

    Conditions are sampled by the frequencies in the private rows, counted once with noise. Rows are
    not sampled by condition, because the accountant assumes Poisson sampling. Instead, a sampled
    row's condition is one of its own values.

    Attributes:
        counts_share: Share of epsilon for the counts.
    """

    name = "dpctgan"
    summary = "Conditional tabular GAN trained with differential privacy (DPCTGAN)."
    counts_share: float = Field(default=0.1, ge=0.001, le=0.999)

    def sampler(self, shape: Shape) -> Sampler:
        """Implement :meth:`NeuralGenerator.sampler`."""
        from privacy_assets.networks.private import ConditionalSampler

        return ConditionalSampler(shape, self.hidden_dims, self.noise)

    def _prepare(
        self, network: Any, codes: Tensor, rate: float, n_steps: int, rng: np.random.Generator
    ) -> float:
        """Set the frequencies of the conditions, and return the noise multiplier."""
        from privacy_assets.networks.private import NoisySteps, noise_for, noisy_shares

        count_noise = noise_for(self.epsilon * self.counts_share, self.delta, 1.0, 1)
        network.shares.copy_(noisy_shares(codes, network.shape, count_noise, rng))
        counting = NoisySteps(count_noise, rate=1.0, n_steps=1)
        return noise_for(self.epsilon, self.delta, rate, n_steps, (counting,))

    def _critic_width(self, width: int) -> int:
        return 2 * width


@declared
class PATEGAN(PrivateNetwork):
    """A GAN trained by noisy votes of teachers, each of which sees a disjoint part of the rows.

    A teacher is a perceptron with one hidden layer that learns to distinguish its rows from
    generated ones. It sees one-hot codes and the standardized positions of the bins of numbers,
    which are public where bounds are set. In each epoch the teachers take ten steps, then
    ``batch_size`` generated rows are labeled: each teacher votes half of them real, Laplace noise
    is added to both counts, and the label is their difference, divided by the number of teachers.
    Student and generator take ten steps each on recently labeled rows. The noise is the smallest
    for which all labels stay within (``epsilon``, ``delta``). It does not depend on the number of
    teachers, so more teachers give a better signal.

    Unlike in the paper, the cost of a label does not depend on the votes, because the paper's
    tighter bound for unanimous votes depends on the private rows, and so would the number of steps.
    In the paper a teacher may also vote all rows generated, which teaches the student nothing. A
    label is the sign of the difference in the paper; both are computed from the same noisy counts
    at the same cost, and the difference tells small gaps from large ones. In the paper no labeled
    rows are redrawn, so a value that the generator lost does not come back. On a table of two
    columns the generator learned nothing even at epsilon 1,000 (docs/generators.md).

    The guarantee protects all rows of a subject if subjects are known (they are assigned to one
    teacher), otherwise one row. Their number is public. Other settings: see
    :class:`PrivateNetwork`.

    Attributes:
        epochs: Number of rounds.
        batch_size: Rows per step.
        teachers: Number of teachers. None: one per 10 subjects, at most 1,000. With a large
            ``epsilon``, fewer teachers with more rows each learn more.
    """

    name = "pategan"
    summary = "GAN taught by the noisy votes of teachers, with differential privacy (PATE-GAN)."
    ACCOUNTANT = "data-independent moments of noisy votes (Papernot et al. 2017, theorem 2)"
    epochs: int = Field(default=200, ge=1, le=100_000)
    batch_size: int = Field(default=512, ge=2, le=100_000)
    teachers: int | None = Field(default=None, ge=2, le=100_000)

    def _covers(self, training: Training) -> str:
        if training.subject_codes is None:
            return "the replacement of one row"
        return "the replacement of all rows of one person"

    def overfitting_protection(self) -> dict[str, float]:
        """Implement :meth:`Generator.overfitting_protection`: the student sees no rows."""
        return {"noisy_votes": True}

    def _train(
        self, cells: np.ndarray, layout: Layout, training: Training
    ) -> tuple[Sampler, History]:
        import torch

        from privacy_assets.networks.private import (
            PateSteps,
            Student,
            Teachers,
            vote_noise,
        )
        from privacy_assets.networks.training import Loop, seeded

        device = torch.device(training.device)
        shape = shape_of(layout)
        codes = _private_codes(cells, layout)
        parts = self._parts(len(codes), training)
        sizes = torch.tensor([len(part) for part in parts])
        data = torch.zeros(len(parts), int(sizes.max()), shape.width)
        for i, part in enumerate(parts):
            data[i, : len(part)] = shape.one_hot(codes[torch.from_numpy(part)])
        positions = bin_positions(layout)
        n_labels = self.epochs * self.batch_size
        scale = vote_noise(self.epsilon, self.delta, n_labels)
        text = f"{len(parts)} teachers, {n_labels} labels, noise of scale {scale:.3g} on the votes"
        training.progress(f"{self.name}: {text}")
        with seeded(training.seed, torch.device("cpu")):
            network: Any = self.sampler(shape)
            teachers = Teachers(len(parts), sum(positions.shape))
            student = Student(sum(positions.shape), self.hidden_dims, self.batch_size)
        steps = PateSteps(
            network.to(device),
            teachers.to(device),
            student.to(device),
            data.to(device),
            sizes.to(device),
            positions=positions.to(device),
            batch_size=self.batch_size,
            scale=scale,
        )

        def epoch(number: int) -> dict[str, float]:
            network.train()
            for _ in range(_TEACHER_STEPS):
                steps.teach()
            steps.label(number, noise_stream(training.seed, number))
            losses = [steps.learn(number) for _ in range(_STUDENT_STEPS)]
            student_loss, generator_loss = np.mean(losses, axis=0).tolist()
            return {"generator_loss": generator_loss, "student_loss": student_loss}

        loop = Loop(self.name, training, steps.parts, self.epochs)
        return network, loop.run(epoch, cells_fingerprint(cells, self.settings()))

    def _parts(self, n_rows: int, training: Training) -> list[np.ndarray]:
        """Assign subjects to teachers evenly, and return the positions of the rows of each.

        Raises InputError if there are too few subjects.
        """
        from privacy_assets.networks.training import consecutive_codes

        codes = consecutive_codes(n_rows, training.subject_codes)
        n_subjects = int(codes.max()) + 1
        n_teachers = self.teachers
        if n_teachers is None:
            n_teachers = min(
                max(n_subjects // 10, 10), _MAX_TEACHERS, n_subjects // _MIN_SUBJECTS_PER_TEACHER
            )
        if n_teachers < 2 or n_subjects < _MIN_SUBJECTS_PER_TEACHER * n_teachers:
            n_teachers = max(n_teachers, 2)
            n_needed = _MIN_SUBJECTS_PER_TEACHER * n_teachers
            raise InputError(
                f"{n_subjects} people are too few for {n_teachers} teachers",
                where="train",
                fix=f"pass rows of at least {n_needed} people, or use fewer teachers",
            )
        rng = np.random.default_rng([training.seed, 4])
        teacher_of_subject = rng.permutation(n_subjects) % n_teachers
        teacher_of_row = teacher_of_subject[codes]
        return [np.flatnonzero(teacher_of_row == teacher) for teacher in range(n_teachers)]


def bin_positions(layout: Layout) -> Tensor:
    """Return the standardized position of each bin of a number.

    Bins of equal width have mean 0 and variance 1 per column. The positions of missing values and
    of other codes are 0.

    Args:
        layout: Layout with codes for every column.

    Returns:
        float32 of shape (width, binned numbers).
    """
    import torch

    width = sum(layout.sizes)
    columns = []
    start = 0
    for i, size in zip(layout.choices, layout.sizes, strict=True):
        n_bins = len(layout.domains.columns[i].edges) - 1
        if n_bins > 1:
            deviation = ((n_bins**2 - 1) / 12) ** 0.5
            column = torch.zeros(width)
            column[start : start + n_bins] = (torch.arange(n_bins) - (n_bins - 1) / 2) / deviation
            columns.append(column)
        start += size
    if not columns:
        return torch.zeros(width, 0)
    return torch.stack(columns, dim=1)
