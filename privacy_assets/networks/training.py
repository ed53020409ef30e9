"""Training loop and shared parts of the neural generators: vectors of rows, layers, samplers and
seeds.

A row with p numeric and q categorical variables (of k_1..k_q categories) is encoded as p + k_1 +
... + k_q entries: the quantile level of each number, then one-hot blocks.
"""

from __future__ import annotations

import copy
import hashlib
import io
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from privacy_assets.distances.network import one_thread
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators.base import Training
from privacy_assets.infra.files import private_folder, put_atomic
from privacy_assets.infra.progress import advance
from privacy_assets.networks.layout import Layout
from privacy_assets.version import PACKAGE_VERSION

_CHECKPOINT_FILE = "training.pt"
_DIGEST_BYTES = 32
_CHECKPOINT_SECONDS = 20.0  # minimum time between checkpoints
_MIN_SUBJECTS_TO_SPLIT = 20  # fewest subjects of which some are selected for validation
OneEpoch = Callable[[int], dict[str, float] | None]
TEMPERATURE = 0.2  # temperature of the relaxed choices of a GAN (Xu et al. 2019)


@dataclass(eq=False)
class Loop:
    """Training loop in which each epoch has its own random state.

    Attributes:
        name: Name in messages.
        training: Arguments of the fit.
        parts: All modules and optimizers that an epoch changes.
        epochs: Maximum number of epochs.
        patience: Number of epochs without a lower ``validation_loss`` after which training ends and
            the best weights are restored. None: keep the last weights.
        stop: Called with the history after each epoch; True ends training.
    """

    name: str
    training: Training
    parts: Mapping[str, nn.Module | torch.optim.Optimizer]
    epochs: int
    patience: int | None = None
    stop: Callable[[list[dict[str, float]]], bool] = lambda history: False

    def run(self, epoch: OneEpoch, fingerprint: str) -> tuple[dict[str, float], ...]:
        """Train, and return one mapping of losses per epoch.

        With a checkpoint folder the state is stored regularly, and a run with the same
        ``fingerprint`` (of rows and settings) resumes from it, with the same weights as an
        uninterrupted run.

        Args:
            epoch: Trains one epoch and returns its losses, or None to end before it.
            fingerprint: Identifies rows and settings.

        Raises:
            InputError: If a loss is not finite.
        """
        device = torch.device(self.training.device)
        checkpoint = _Checkpoint(self.training.checkpoint, self._mark(fingerprint))
        history: list[dict[str, float]] = []
        best_weights: dict[str, Any] = {}
        stored = checkpoint.read()
        if stored is not None:
            history = stored["history"]
            best_weights = stored["best"]
            for name, part in self.parts.items():
                part.load_state_dict(stored["parts"][name])
            self.training.progress(f"{self.name}: resuming after epoch {len(history)}")

        def state() -> dict[str, Any]:
            return {"history": history, "best": best_weights, "parts": self._states()}

        while len(history) < self.epochs and not self._is_over(history):
            with seeded(stream_seed(self.training.seed, len(history)), device):
                losses = epoch(len(history))
            if losses is None:
                break
            history.append({"epoch": len(history) + 1, **losses})
            self._report(history[-1])
            if self.patience is not None and _best_epoch(history) == len(history) - 1:
                best_weights.update(copy.deepcopy(self._weights()))
            checkpoint.write_if_due(state)
        advance(self.training.progress, f"{self.name}: epochs", None)
        for name, weights in best_weights.items():
            self.parts[name].load_state_dict(weights)
        checkpoint.write(state)
        return tuple(history)

    def _mark(self, fingerprint: str) -> str:
        """Return the identity of the training: version, name, seed, subjects and fingerprint."""
        subject_bytes = b""
        if self.training.subject_codes is not None:
            subject_bytes = np.asarray(self.training.subject_codes, dtype=np.int64).tobytes()
        digest = hashlib.sha256(subject_bytes).hexdigest()
        return f"{PACKAGE_VERSION} {self.name} {self.training.seed} {digest} {fingerprint}"

    def _is_over(self, history: list[dict[str, float]]) -> bool:
        if not history:
            return False
        if self.stop(history):
            return True
        if self.patience is None:
            return False
        n_without_improvement = len(history) - 1 - _best_epoch(history)
        return n_without_improvement >= self.patience

    def _report(self, losses: Mapping[str, float]) -> None:
        """Report the end of an epoch. Raises InputError if a loss is not finite."""
        if not all(math.isfinite(value) for value in losses.values()):
            raise InputError(
                f"the loss of {self.name} is not a finite number", fix="lower its learning_rate"
            )
        advance(self.training.progress, f"{self.name}: epochs", losses["epoch"], self.epochs)

    def _weights(self) -> dict[str, Any]:
        """Return the states of the modules, without those of the optimizers."""
        weights = {}
        for name, part in self.parts.items():
            if isinstance(part, nn.Module):
                weights[name] = part.state_dict()
        return weights

    def _states(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}


@dataclass(frozen=True, eq=False)
class Rows:
    """Encoded rows.

    Attributes:
        levels: Quantile levels of the numbers, float32 of shape (n, p).
        codes: Codes of the categories, int64 of shape (n, q).
    """

    levels: Tensor
    codes: Tensor

    def __len__(self) -> int:
        return len(self.levels)

    def take(self, selection: Tensor) -> Rows:
        """Return some of the rows.

        Args:
            selection: Positions, int64 of shape (m,), or a mask, bool of shape (n,).
        """
        return Rows(self.levels[selection], self.codes[selection])


def consecutive_codes(n_rows: int, subject_codes: np.ndarray | None) -> np.ndarray:
    """Return the code 0..s-1 of the subject of each row, int64 of shape (n_rows,).

    Args:
        n_rows: Number of rows.
        subject_codes: Subject of each row, shape (n_rows,). None: each row is a subject.
    """
    if subject_codes is None:
        return np.arange(n_rows)
    return np.unique(subject_codes, return_inverse=True)[1]


def held_out(n_rows: int, share: float, subject_codes: np.ndarray | None, seed: int) -> np.ndarray:
    """Select validation rows: all rows of about ``share`` of the subjects.

    None are selected with fewer than 20 subjects.

    Args:
        n_rows: Number of rows, at least 1.
        share: Share of the subjects, in [0, 1].
        subject_codes: Subject of each row, shape (n_rows,). None: each row is a subject.
        seed: Seed of the training.

    Returns:
        True for validation rows, shape (n_rows,).
    """
    rng = np.random.default_rng([seed, 1])
    codes = consecutive_codes(n_rows, subject_codes)
    n_subjects = int(codes.max()) + 1
    is_validation = np.zeros(n_subjects, dtype=bool)
    if n_subjects >= _MIN_SUBJECTS_TO_SPLIT:
        n_selected = max(1, round(share * n_subjects))
        is_validation[rng.permutation(n_subjects)[:n_selected]] = True
    return is_validation[codes]


def split_rows(
    layout: Layout, cells: np.ndarray, share: float, training: Training
) -> tuple[Rows, Rows]:
    """Encode the rows, and split them into training and validation rows.

    Both are all rows if there are too few subjects.

    Args:
        layout: Layout of the columns.
        cells: Cells of the columns, float64 of shape (F, n).
        share: Share of subjects in the validation set.
        training: Arguments of the fit.

    Returns:
        Training and validation rows on the device of the training.
    """
    levels, codes = layout.encode(cells, np.random.default_rng([training.seed, 3]))
    mask = held_out(cells.shape[1], share, training.subject_codes, training.seed)
    rows = Rows(
        torch.from_numpy(levels).to(training.device), torch.from_numpy(codes).to(training.device)
    )
    if not mask.any():
        training.progress(
            "too few people for a validation set: early stopping uses the training rows"
        )
        return rows, rows
    is_validation = torch.from_numpy(mask).to(training.device)
    return rows.take(~is_validation), rows.take(is_validation)


def batches(n_rows: int, size: int) -> list[Tensor]:
    """Shuffle positions into the fewest equal batches of at most ``size`` and at least 2 rows.

    Args:
        n_rows: Number of rows.
        size: Maximum number of rows in a batch, except to avoid a batch of one row.

    Returns:
        Positions of the rows of each batch, int64, drawn by torch's global random state.
    """
    n_batches = max(1, min(math.ceil(n_rows / size), n_rows // 2))
    return list(torch.randperm(n_rows).tensor_split(n_batches))


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
    """Take a gradient step.

    Args:
        optimizer: Optimizer of the weights.
        loss: Loss, a scalar.

    Returns:
        The loss before the step.
    """
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def stream_seed(seed: int, stream: int) -> int:
    """Derive a seed of 63 bits.

    Args:
        seed: Non-negative seed.
        stream: Number of the stream; streams of one seed are independent.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(stream,))
    state = sequence.generate_state(1, np.uint64)
    return int(state[0] >> 1)


def _best_epoch(history: list[dict[str, float]]) -> int:
    """Return the position of the first epoch with the lowest validation loss."""
    losses = [epoch["validation_loss"] for epoch in history]
    return losses.index(min(losses))


class _Checkpoint:
    """The checkpoint of a training that ``mark`` identifies. Without a folder it stores nothing."""

    def __init__(self, folder: Path | None, mark: str) -> None:
        self.path: Path | None = None
        if folder is not None:
            self.path = private_folder(folder) / _CHECKPOINT_FILE
        self.mark = mark
        self.last_write = time.monotonic()

    def read(self) -> dict[str, Any] | None:
        """Return the stored state, or None if there is no file.

        Raises:
            InputError: If the file is damaged.
            ConfigError: If it belongs to another training.
        """
        if self.path is None or not self.path.exists():
            return None
        content = self.path.read_bytes()
        digest = content[:_DIGEST_BYTES]
        data = content[_DIGEST_BYTES:]
        if hashlib.sha256(data).digest() != digest:
            raise InputError(
                "the checkpoint cannot be read", where=str(self.path), fix="delete this file"
            )
        stored: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if stored["mark"] != self.mark:
            fix = "Fix: give an empty folder, or the same rows, settings and seed as before"
            raise ConfigError(
                f"{self.path}: the checkpoint belongs to another training or version. {fix}."
            )
        return stored

    def write_if_due(self, state: Callable[[], dict[str, Any]]) -> None:
        """Call :meth:`write` unless the state was written less than 20 seconds ago."""
        if time.monotonic() - self.last_write >= _CHECKPOINT_SECONDS:
            self.write(state)

    def write(self, state: Callable[[], dict[str, Any]]) -> None:
        """Replace the stored state by the result of ``state``."""
        if self.path is None:
            return
        stream = io.BytesIO()
        torch.save({"mark": self.mark, **state()}, stream)
        data = stream.getvalue()
        put_atomic(self.path, hashlib.sha256(data).digest() + data)
        self.last_write = time.monotonic()


class Shape:
    """Sizes of the vectors of a layout.

    Attributes:
        n_numbers: Number p of levels.
        sizes: Number of codes of each choice.
        width: Number of entries of a vector.
        starts: Position of the first entry of each choice, int64 of shape (q,).
    """

    def __init__(self, n_numbers: int, sizes: Sequence[int]) -> None:
        self.n_numbers = n_numbers
        self.sizes = list(sizes)
        self.width = n_numbers + sum(self.sizes)
        ends = torch.tensor([n_numbers, *self.sizes]).cumsum(0)
        self.starts = ends[:-1]

    def expand(self, levels: Tensor, codes: Tensor) -> Tensor:
        """Return the vectors of rows.

        Args:
            levels: Shape (n, p).
            codes: int64 of shape (n, q).

        Returns:
            float32 of shape (n, width).
        """
        vectors = torch.zeros(len(codes), self.width, device=codes.device)
        vectors[:, : self.n_numbers] = levels
        return vectors.scatter_(1, codes + self.starts.to(codes.device), 1.0)

    def one_hot(self, codes: Tensor) -> Tensor:
        """Apply :meth:`expand` to rows without numbers.

        Args:
            codes: int64 of shape (n, q).

        Returns:
            float32 of shape (n, width).
        """
        return self.expand(codes.new_zeros(len(codes), 0), codes)

    def choices(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """Return the entries of each choice.

        Args:
            vectors: Shape (n, width).

        Returns:
            One tensor of shape (n, k) per choice with k codes.
        """
        if not self.sizes:
            return ()
        return vectors[:, self.n_numbers :].split(self.sizes, dim=1)

    def relaxed(self, logits: Tensor) -> Tensor:
        """Draw differentiable vectors: sigmoid for numbers, Gumbel softmax for choices.

        Args:
            logits: Shape (n, width).

        Returns:
            Shape (n, width).
        """
        blocks = [torch.sigmoid(logits[:, : self.n_numbers])]
        for block in self.choices(logits):
            blocks.append(F.gumbel_softmax(block, tau=TEMPERATURE))
        return torch.cat(blocks, dim=1)

    def draw_codes(self, logits: Tensor) -> Tensor:
        """Draw codes.

        Args:
            logits: Logits of the probabilities, shape (n, width).

        Returns:
            int64 of shape (n, q).
        """
        if not self.sizes:
            return logits.new_zeros(len(logits), 0, dtype=torch.int64)
        codes = [(block + _gumbel(block)).argmax(dim=1) for block in self.choices(logits)]
        return torch.stack(codes, dim=1)


def _gumbel(like: Tensor) -> Tensor:
    """Draw noise whose argmax, added to logits, has their probabilities."""
    return -torch.empty_like(like).exponential_().log()


def layers(
    n_inputs: int,
    hidden_dims: Sequence[int],
    n_outputs: int,
    *,
    slope: float = 0.0,
    dropout: float | None = None,
) -> nn.Module:
    """Build linear layers with (leaky) ReLU and dropout.

    Args:
        n_inputs: Number of inputs.
        hidden_dims: Widths of the hidden layers.
        n_outputs: Number of outputs.
        slope: Slope of leaky ReLU for negative inputs. 0: ReLU.
        dropout: Share of dropped units; 0 keeps the layer, so that weight names match. None: no
            layer.
    """
    modules: list[nn.Module] = []
    width = n_inputs
    for size in hidden_dims:
        modules.append(nn.Linear(width, size))
        modules.append(nn.LeakyReLU(slope) if slope else nn.ReLU())
        if dropout is not None:
            modules.append(nn.Dropout(dropout))
        width = size
    return nn.Sequential(*modules, nn.Linear(width, n_outputs))


class Sampler(nn.Module):
    """A network that generates rows.

    Attributes:
        noise: Number of noise inputs.
        shape: Sizes of the vectors of the rows.
    """

    noise: int
    shape: Shape

    def draw(self, n_rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Draw rows, using torch's global random state.

        Args:
            n_rows: Number of rows.
            device: Device of the network.

        Returns:
            Levels, float32 of shape (n_rows, p), and codes, int64 of shape (n_rows, q).
        """
        raise NotImplementedError


class GanSampler(Sampler):
    """The generator of a GAN: maps standard normal noise to logits, with batch normalization
    between layers.
    """

    def __init__(
        self, shape: Shape, hidden_dims: Sequence[int], noise: int, conditions: int = 0
    ) -> None:
        super().__init__()
        self.noise = noise
        self.shape = shape
        modules: list[nn.Module] = []
        width = noise + conditions
        for size in hidden_dims:
            modules.append(nn.Linear(width, size))
            modules.append(nn.BatchNorm1d(size))
            modules.append(nn.ReLU())
            width = size
        self.body = nn.Sequential(*modules, nn.Linear(width, shape.width))

    def logits(self, n_rows: int, device: torch.device, conditions: Tensor | None = None) -> Tensor:
        """Return logits of new noise.

        Args:
            n_rows: Number of rows.
            device: Device of the network.
            conditions: Conditions of the rows, shape (n_rows, c). None: the network has none.

        Returns:
            Shape (n_rows, width).
        """
        inputs = torch.randn(n_rows, self.noise, device=device)
        if conditions is not None:
            inputs = torch.cat([inputs, conditions], dim=1)
        outputs: Tensor = self.body(inputs)
        return outputs

    def rows(self, n_rows: int, device: torch.device) -> Tensor:
        """Draw relaxed vectors for training.

        Args:
            n_rows: Number of rows.
            device: Device of the network.

        Returns:
            Shape (n_rows, width).
        """
        return self.shape.relaxed(self.logits(n_rows, device))

    def draw(self, n_rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Implement :meth:`Sampler.draw`."""
        logits = self.logits(n_rows, device)
        levels = torch.sigmoid(logits[:, : self.shape.n_numbers])
        return levels, self.shape.draw_codes(logits)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Set torch's global random state within the ``with`` block, then restore it. The block uses
    one CPU thread.

    Args:
        seed: Seed.
        device: Device of the block. The random state of a CUDA device is set, too.
    """
    cuda_devices = []
    if device.type == "cuda":
        cuda_devices.append(device)
    with torch.random.fork_rng(devices=cuda_devices), one_thread():
        torch.manual_seed(seed)
        yield
