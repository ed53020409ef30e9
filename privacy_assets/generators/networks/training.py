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
from privacy_assets.generators.layout import Layout
from privacy_assets.infra.files import private_folder, put_atomic
from privacy_assets.infra.progress import advance
from privacy_assets.version import ENGINE_VERSION

_STATE = "training.pt"
_DIGEST = 32  # bytes
_EVERY = 20.0  # minimum seconds between checkpoints
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
        people = (
            b""
            if self.training.people is None
            else np.asarray(self.training.people, dtype=np.int64).tobytes()
        )
        mark = (
            f"{self.name} {self.training.seed} {hashlib.sha256(people).hexdigest()} {fingerprint}"
        )
        store = _Store(self.training.checkpoint, f"{ENGINE_VERSION} {mark}")
        history: list[dict[str, float]] = []
        best: dict[str, Any] = {}
        if (kept := store.read()) is not None:
            history, best = kept["history"], kept["best"]
            for name, part in self.parts.items():
                part.load_state_dict(kept["parts"][name])
            self.training.progress(f"{self.name}: resuming after epoch {len(history)}")

        def state() -> dict[str, Any]:
            return {"history": history, "best": best, "parts": self._states()}

        while len(history) < self.epochs and not self._over(history):
            with seeded(_seed_of(self.training.seed, len(history)), device):
                losses = epoch(len(history))
            if losses is None:
                break
            history.append({"epoch": len(history) + 1, **losses})
            self._tell(history[-1])
            if self.patience is not None and _best(history) == len(history) - 1:
                best.update(copy.deepcopy(self._weights()))
            store.keep(state)
        advance(self.training.progress, f"{self.name}: epochs", None)
        for name, weights in best.items():
            self.parts[name].load_state_dict(weights)
        store.keep(state, at_once=True)
        return tuple(history)

    def _over(self, history: list[dict[str, float]]) -> bool:
        waited = len(history) - 1 - _best(history) if history and self.patience is not None else 0
        return bool(history) and (
            self.stop(history) or (self.patience is not None and waited >= self.patience)
        )

    def _tell(self, losses: Mapping[str, float]) -> None:
        if not all(math.isfinite(value) for value in losses.values()):
            raise InputError(
                f"the loss of {self.name} is not a finite number", fix="lower its learning_rate"
            )
        advance(self.training.progress, f"{self.name}: epochs", losses["epoch"], self.epochs)

    def _weights(self) -> dict[str, Any]:
        return {
            name: part.state_dict()
            for name, part in self.parts.items()
            if isinstance(part, nn.Module)
        }

    def _states(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}


def held_out(rows: int, share: float, people: np.ndarray | None, seed: int) -> np.ndarray:
    """Select validation rows, bool (rows,): all rows of about ``share`` of the subjects.

    None are selected with fewer than 20 subjects.
    """
    rng = np.random.default_rng([seed, 1])
    whose = np.arange(rows) if people is None else np.unique(people, return_inverse=True)[1]
    count = int(whose.max()) + 1
    chosen = np.zeros(count, dtype=bool)
    if count >= 20:
        chosen[rng.permutation(count)[: max(1, round(share * count))]] = True
    return chosen[whose]


def split_rows(
    layout: Layout, cells: np.ndarray, share: float, training: Training
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return levels and codes of the training and validation rows; both are all rows if there are
    too few subjects.
    """
    levels, codes = layout.encode(cells, np.random.default_rng([training.seed, 3]))
    aside = held_out(cells.shape[1], share, training.people, training.seed)
    data = [torch.from_numpy(part).to(training.device) for part in (levels, codes)]
    if not aside.any():
        training.progress(
            "too few people for a validation set: early stopping uses the training rows"
        )
        return data, data
    chosen = torch.from_numpy(aside).to(training.device)
    return [part[~chosen] for part in data], [part[chosen] for part in data]


def batches(rows: int, size: int) -> list[torch.Tensor]:
    """Shuffle ``rows`` into the fewest equal batches of at most ``size`` and at least 2 rows."""
    parts = max(1, min(math.ceil(rows / size), rows // 2))
    return list(torch.randperm(rows).tensor_split(parts))


def step(optimiser: torch.optim.Optimizer, loss: torch.Tensor) -> float:
    """Take a gradient step, and return the ``loss``."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()
    return float(loss.detach())


def _best(history: list[dict[str, float]]) -> int:
    losses = [losses["validation_loss"] for losses in history]
    return losses.index(min(losses))


def _seed_of(seed: int, epoch: int) -> int:
    return int(
        np.random.SeedSequence(seed, spawn_key=(epoch,)).generate_state(1, np.uint64)[0] >> 1
    )


class _Store:
    """The checkpoint of a run; without a folder it stores no state."""

    def __init__(self, folder: Path | None, mark: str) -> None:
        self.path = None if folder is None else private_folder(folder) / _STATE
        self.mark, self.last = mark, time.monotonic()

    def read(self) -> dict[str, Any] | None:
        """Return the stored state, or None. Raises ConfigError if it belongs to another run."""
        if self.path is None or not self.path.exists():
            return None
        digest, data = (content := self.path.read_bytes())[:_DIGEST], content[_DIGEST:]
        if hashlib.sha256(data).digest() != digest:
            raise InputError(
                "the checkpoint cannot be read", where=str(self.path), fix="delete this file"
            )
        kept: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if kept["mark"] != self.mark:
            fix = "Fix: give an empty folder, or the same rows, settings and seed as before"
            raise ConfigError(
                f"{self.path}: the checkpoint belongs to another training or version. {fix}."
            )
        return kept

    def keep(self, state: Callable[[], dict[str, Any]], *, at_once: bool = False) -> None:
        if self.path is None or (not at_once and time.monotonic() - self.last < _EVERY):
            return
        stream = io.BytesIO()
        torch.save({"mark": self.mark, **state()}, stream)
        data = stream.getvalue()
        put_atomic(self.path, hashlib.sha256(data).digest() + data)
        self.last = time.monotonic()


class Shape:
    """Sizes of the vectors of a layout: ``numbers`` p, and ``sizes`` of the choices."""

    def __init__(self, numbers: int, sizes: Sequence[int]) -> None:
        self.numbers, self.sizes = numbers, list(sizes)
        self.width = numbers + sum(self.sizes)
        ends = torch.tensor([numbers, *self.sizes]).cumsum(0)
        self.starts = ends[:-1]

    def expand(self, levels: Tensor, codes: Tensor) -> Tensor:
        """Return vectors float32 (n, width) of ``levels`` (n, p) and ``codes`` int64 (n, q)."""
        out = torch.zeros(len(codes), self.width, device=codes.device)
        out[:, : self.numbers] = levels
        return out.scatter_(1, codes + self.starts.to(codes.device), 1.0)

    def choices(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """Return the blocks (n, k) of the choices."""
        return vectors[:, self.numbers :].split(self.sizes, dim=1) if self.sizes else ()

    def relaxed(self, logits: Tensor) -> Tensor:
        """Return differentiable vectors of logits (n, width): sigmoid for numbers, Gumbel softmax
        for choices.
        """
        parts = [torch.sigmoid(logits[:, : self.numbers])]
        parts += [F.gumbel_softmax(block, tau=TEMPERATURE) for block in self.choices(logits)]
        return torch.cat(parts, dim=1)

    def drawn(self, logits: Tensor) -> Tensor:
        """Draw codes int64 (n, q) with the probabilities of the logits (n, width)."""
        blocks = [(block + _gumbel(block)).argmax(dim=1) for block in self.choices(logits)]
        return (
            torch.stack(blocks, dim=1)
            if blocks
            else logits.new_zeros(len(logits), 0, dtype=torch.int64)
        )


def _gumbel(like: Tensor) -> Tensor:
    return -torch.empty_like(like).exponential_().log()


def layers(
    inputs: int,
    hidden_dims: Sequence[int],
    outputs: int,
    *,
    slope: float = 0.0,
    dropout: float | None = None,
) -> nn.Module:
    """Build linear layers with (leaky) ReLU and dropout; a dropout of 0 keeps its layer, so that
    weight names match.
    """
    parts: list[nn.Module] = []
    for size in hidden_dims:
        parts += [nn.Linear(inputs, size), nn.LeakyReLU(slope) if slope else nn.ReLU()]
        parts += [] if dropout is None else [nn.Dropout(dropout)]
        inputs = size
    return nn.Sequential(*parts, nn.Linear(inputs, outputs))


class Sampler(nn.Module):
    """A network that generates rows from ``noise`` inputs."""

    noise: int
    shape: Shape

    def draw(self, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Draw levels float32 (rows, p) and codes int64 (rows, q), using torch's global random
        state.
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
        self.noise, self.shape = noise, shape
        parts: list[nn.Module] = []
        inputs = noise + conditions
        for size in hidden_dims:
            parts += [nn.Linear(inputs, size), nn.BatchNorm1d(size), nn.ReLU()]
            inputs = size
        self.body = nn.Sequential(*parts, nn.Linear(inputs, shape.width))

    def logits(self, count: int, device: torch.device, conditions: Tensor | None = None) -> Tensor:
        """Return logits (count, width) of new noise, given ``conditions`` (count, c) if the network
        is conditional.
        """
        noise = torch.randn(count, self.noise, device=device)
        out: Tensor = self.body(
            noise if conditions is None else torch.cat([noise, conditions], dim=1)
        )
        return out

    def rows(self, count: int, device: torch.device) -> Tensor:
        """Return relaxed vectors (count, width) for training."""
        return self.shape.relaxed(self.logits(count, device))

    def draw(self, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Implement :meth:`Sampler.draw`."""
        logits = self.logits(rows, device)
        return torch.sigmoid(logits[:, : self.shape.numbers]), self.shape.drawn(logits)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Set torch's global random state to ``seed`` within the ``with`` block, with one CPU thread,
    then restore it.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), one_thread():
        torch.manual_seed(seed)
        yield
