"""Training of the contrastive embedder (Palacios 5.2). Imports torch."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from privacy_assets.compute.devices import halve_on_out_of_memory
from privacy_assets.compute.progress import Progress, advance
from privacy_assets.embedding.network import (
    EmbedderNetwork,
    contrastive_accuracy,
    contrastive_loss,
    draw_mask,
    one_thread,
    view_logits,
)
from privacy_assets.embedding.settings import EmbedderSettings, Epoch
from privacy_assets.errors import InputError

_WORK = "training the embedder: steps"
_HELD_OUT = 0.1  # share of the rows that only early stopping sees
_SMALLEST = 20  # rows below which none are held out


class Trainer:
    """One training run; :meth:`run` leaves the best weights in ``network``.

    ``values`` float32 (n, numbers) and ``codes`` int64 (n, columns) are all rows in an order that depends on content
    alone, of which at most ``max_rows``, drawn at random, take part. A tenth of these is held out and judged under the
    same maskings after each epoch; below 20 rows none is, and the training loss is monitored. The weights kept are
    those of the lowest monitored loss. Batches of an epoch have equal sizes, as a small last one would be an easier
    task; the last epoch ends with the budget of steps. On CUDA the layers run in bfloat16.
    """

    def __init__(
        self,
        network: EmbedderNetwork,
        settings: EmbedderSettings,
        values: Tensor,
        codes: Tensor,
        seed: int,
        device: str,
        progress: Progress,
    ) -> None:
        self.settings, self.progress, self.batch = settings, progress, settings.batch
        self.device = torch.device(device)
        weights, order, self.validation_seed = np.random.SeedSequence(seed).generate_state(3).tolist()
        network.initialise(torch.Generator().manual_seed(weights))
        self.network = network.to(self.device)
        self.values, self.codes = values.to(self.device), codes.to(self.device)
        self.generator = torch.Generator(self.device).manual_seed(order)
        rows = torch.randperm(len(codes), generator=self.generator, device=self.device)[: settings.max_rows]
        held_out = int(_HELD_OUT * len(rows)) if len(rows) >= _SMALLEST else 0
        self.validation, self.training = rows[:held_out], rows[held_out:]
        self.steps = 0
        self.optimiser = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)

    def run(self) -> tuple[Epoch, ...]:
        """Train until early stopping or the last epoch; returns the history."""
        history: list[Epoch] = []
        monitored: list[float] = []
        best_weights = copy.deepcopy(self.network.state_dict())
        best_mean, waited = math.inf, 0
        with one_thread():
            while len(history) < self.settings.max_epochs and waited < self.settings.patience and self._left() > 0:
                epoch = self._epoch(len(history) + 1)
                history.append(epoch)
                monitored.append(epoch.train_loss if epoch.validation_loss is None else epoch.validation_loss)
                if monitored[-1] <= min(monitored):
                    best_weights = copy.deepcopy(self.network.state_dict())
                mean = sum(monitored[-self.settings.window :]) / len(monitored[-self.settings.window :])
                waited = 0 if mean < best_mean else waited + 1
                best_mean = min(best_mean, mean)
        advance(self.progress, _WORK, None)
        self.network.load_state_dict(best_weights)
        return tuple(history)

    def _epoch(self, number: int) -> Epoch:
        order = self.training[torch.randperm(len(self.training), generator=self.generator, device=self.device)]
        loss, _ = self._over(order[: self._left()], self._learn)
        if not math.isfinite(loss):
            raise InputError("the embedder's loss is not a finite number", fix="lower its learning_rate")
        if len(self.validation) == 0:
            return Epoch(number, loss, None, None)
        views = torch.Generator(self.device).manual_seed(self.validation_seed)
        judged, accuracy = self._over(self.validation, partial(self._judge, views))
        return Epoch(number, loss, judged, accuracy)

    def _left(self) -> int:
        """Rows of the next epoch that the budget of steps leaves: all, or so many whole batches."""
        rows = len(self.training)
        return min((self._most() - self.steps) * _even(rows, self.batch), rows)

    def _most(self) -> int:
        """Steps that all epochs would take, or those of the budget."""
        every = self.settings.max_epochs * math.ceil(len(self.training) / self.batch)
        return min(self.settings.max_steps or every, every)

    def _over(self, rows: Tensor, step: Callable[[Tensor], Tensor]) -> list[float]:
        """Mean over ``rows`` of the two numbers of ``step``, in equal batches; smaller ones once memory ran out."""
        total = torch.zeros(2, device=self.device)
        start, size = 0, _even(len(rows), self.batch)
        while start < len(rows):
            losses, fitted = halve_on_out_of_memory(partial(_first, step, rows[start:]), size, minimum=2)
            if fitted < size:
                self.batch = size = fitted
            total += losses * min(size, len(rows) - start)
            start += size
        means: list[float] = (total / len(rows)).tolist()
        return means

    def _learn(self, rows: Tensor) -> Tensor:
        """Take one step down the gradient; returns the loss (and 0 for the accuracy, which nobody reads)."""
        loss = contrastive_loss(self._logits(rows, self.generator, self.generator))
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        self.steps += 1
        advance(self.progress, _WORK, self.steps, self._most())
        return torch.stack([loss.detach(), torch.zeros_like(loss)])

    @torch.no_grad()
    def _judge(self, generator: torch.Generator, rows: Tensor) -> Tensor:
        """Loss and accuracy without dropout."""
        logits = self._logits(rows, generator, None)
        return torch.stack([contrastive_loss(logits), contrastive_accuracy(logits)])

    def _logits(self, rows: Tensor, generator: torch.Generator, dropout: torch.Generator | None) -> Tensor:
        """Logits of two maskings of each row, which go through the network together."""
        twice = torch.cat([rows, rows])
        mask = draw_mask(len(twice), self.codes.shape[1], generator)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.device.type == "cuda"):
            first, second = self.network(self.values[twice], self.codes[twice], mask, dropout).chunk(2)
        return view_logits(first, second, self.settings.temperature)


def _first(step: Callable[[Tensor], Tensor], rows: Tensor, size: int) -> Tensor:
    return step(rows[:size])


def _even(rows: int, batch: int) -> int:
    """Size of the batches when ``rows`` are cut into as few equal ones as fit ``batch``."""
    return math.ceil(rows / math.ceil(rows / batch))
