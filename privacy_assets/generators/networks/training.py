"""The training loop of the neural generators: seeds, early stopping, checkpoints and progress."""

from __future__ import annotations

import copy
import hashlib
import io
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from privacy_assets.compute.progress import advance
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators.base import Training
from privacy_assets.generators.layout import Layout
from privacy_assets.generators.networks.blocks import seeded
from privacy_assets.storage.files import private_folder, put_atomic
from privacy_assets.version import ENGINE_VERSION

_STATE = "training.pt"
_DIGEST = 32  # bytes
_EVERY = 20.0  # seconds between two checkpoints

OneEpoch = Callable[[int], dict[str, float] | None]


@dataclass(eq=False)
class Loop:
    """Epochs of one training run, each of which draws from a random state of its own.

    ``parts`` are all modules and optimisers that an epoch changes. ``epoch(number)`` trains through one epoch and
    returns its losses, or None to end before it. With ``patience`` the run ends once ``validation_loss`` has not
    improved for so many epochs, and the weights of its best epoch are put back; without, those of the last stay.
    ``stop(history)`` ends the run after an epoch.
    """

    name: str
    training: Training
    parts: Mapping[str, nn.Module | torch.optim.Optimizer]
    epochs: int
    patience: int | None = None
    stop: Callable[[list[dict[str, float]]], bool] = lambda history: False

    def run(self, epoch: OneEpoch, fingerprint: str) -> tuple[dict[str, float], ...]:
        """Train; returns one mapping an epoch.

        With a checkpoint folder the state is kept there now and then, and a run of the same ``fingerprint`` (of the
        rows and settings) goes on from it: to the same weights as without the interruption. InputError when a loss is
        not finite.
        """
        device = torch.device(self.training.device)
        people = b"" if self.training.people is None else np.asarray(self.training.people, dtype=np.int64).tobytes()
        mark = f"{self.name} {self.training.seed} {hashlib.sha256(people).hexdigest()} {fingerprint}"
        store = _Store(self.training.checkpoint, f"{ENGINE_VERSION} {mark}")
        history: list[dict[str, float]] = []
        best: dict[str, Any] = {}
        if (kept := store.read()) is not None:
            history, best = kept["history"], kept["best"]
            for name, part in self.parts.items():
                part.load_state_dict(kept["parts"][name])
            self.training.progress(f"{self.name}: going on after epoch {len(history)}")

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
        return bool(history) and (self.stop(history) or (self.patience is not None and waited >= self.patience))

    def _tell(self, losses: Mapping[str, float]) -> None:
        if not all(math.isfinite(value) for value in losses.values()):
            raise InputError(f"the loss of {self.name} is not a finite number", fix="lower its learning_rate")
        advance(self.training.progress, f"{self.name}: epochs", losses["epoch"], self.epochs)

    def _weights(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items() if isinstance(part, nn.Module)}

    def _states(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}


def held_out(rows: int, share: float, people: np.ndarray | None, seed: int) -> np.ndarray:
    """Which rows early stopping judges by, bool (rows,): all rows of about ``share`` of the people; none below 20."""
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
    """Levels and codes of the rows to learn from, and of those held out; all rows twice when there are too few."""
    levels, codes = layout.encode(cells, np.random.default_rng([training.seed, 3]))
    aside = held_out(cells.shape[1], share, training.people, training.seed)
    data = [torch.from_numpy(part).to(training.device) for part in (levels, codes)]
    if not aside.any():
        training.progress("too few people to hold any out: early stopping goes by the rows that are learned")
        return data, data
    chosen = torch.from_numpy(aside).to(training.device)
    return [part[~chosen] for part in data], [part[chosen] for part in data]


def batches(rows: int, size: int) -> list[torch.Tensor]:
    """A random order of ``rows`` in as few equal parts as are not larger than ``size``, at least 2 rows in each."""
    parts = max(1, min(math.ceil(rows / size), rows // 2))
    return list(torch.randperm(rows).tensor_split(parts))


def step(optimiser: torch.optim.Optimizer, loss: torch.Tensor) -> float:
    """One step down the ``loss``, which is returned."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()
    return float(loss.detach())


def _best(history: list[dict[str, float]]) -> int:
    losses = [losses["validation_loss"] for losses in history]
    return losses.index(min(losses))


def _seed_of(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(epoch,)).generate_state(1, np.uint64)[0] >> 1)


class _Store:
    """Where a run keeps its state; without a folder nowhere."""

    def __init__(self, folder: Path | None, mark: str) -> None:
        self.path = None if folder is None else private_folder(folder) / _STATE
        self.mark, self.last = mark, time.monotonic()

    def read(self) -> dict[str, Any] | None:
        """The state, None when there is none; ConfigError when it belongs to another run."""
        if self.path is None or not self.path.exists():
            return None
        digest, data = (content := self.path.read_bytes())[:_DIGEST], content[_DIGEST:]
        if hashlib.sha256(data).digest() != digest:
            raise InputError("the checkpoint cannot be read", where=str(self.path), fix="delete this file")
        kept: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if kept["mark"] != self.mark:
            fix = "Fix: give an empty folder, or the same rows, settings and seed as before"
            raise ConfigError(f"{self.path}: the checkpoint belongs to another training or version. {fix}.")
        return kept

    def keep(self, state: Callable[[], dict[str, Any]], *, at_once: bool = False) -> None:
        if self.path is None or (not at_once and time.monotonic() - self.last < _EVERY):
            return
        stream = io.BytesIO()
        torch.save({"mark": self.mark, **state()}, stream)
        data = stream.getvalue()
        put_atomic(self.path, hashlib.sha256(data).digest() + data)
        self.last = time.monotonic()
