"""RVAE: a variational autoencoder for mixed tables, robust to outlying cells (Eduardo et al.
2020).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import Field

from privacy_assets.errors import InputError
from privacy_assets.generators.base import Training
from privacy_assets.infra.settings import Layers, declared
from privacy_assets.networks.layout import Layout
from privacy_assets.networks.neural import History, NeuralGenerator, shape_of
from privacy_assets.tables.fingerprints import cells_fingerprint

if TYPE_CHECKING:
    from privacy_assets.networks.training import Sampler, Shape

_CLEAN = 0.95  # prior probability that a cell is clean
# Deliberate overfitting. With the full weight of the divergence from the prior, the loss hardly
# exceeds its minimum.
_OVERFIT_EPOCHS = 1000
_OVERFIT_BATCH = 32
_OVERFIT_DIVERGENCE = 0.1


class _FirstTraining(NamedTuple):
    """Result of the first training, which deliberate overfitting continues."""

    network: Sampler
    history: History
    least_loss: float


@declared
class RVAE(NeuralGenerator):
    """A variational autoencoder in which each cell is clean with probability 0.95, otherwise an
    outlier.

    Numbers are represented by the normal scores of their ranks, with one decoder variance per
    column. Training ends after ``epochs``, or when the loss on validation subjects has not improved
    for ``patience`` epochs. The weights of the best epoch are kept.

    Attributes:
        hidden_dims: Widths of the encoder layers; the decoder mirrors them.
        latent: Dimension of the latent code.
        epochs: Maximum number of passes over the rows.
        batch_size: Rows per step.
        learning_rate: Learning rate of Adam.
        dropout: Share of dropped units.
        validation: Share of subjects in the validation set.
        patience: Number of epochs without improvement after which training stops.
        overfit: Factor f in [1, 2] for deliberate overfitting (Palacios 4.2, 5.2). A second
            training continues the first one until the validation loss is f L*, for at most 1,000
            epochs, where L* is the least validation loss of both. It has no early stopping and no
            regularization: no dropout, and a tenth of the weight of the divergence from the prior
            (the validation loss has the full weight). Batches have at most 32 rows. The last
            "overfitting_ratio" in the history is the factor reached. 1: the first training only.
            Never publish the output. None: off.
    """

    name = "rvae"
    summary = "Robust variational autoencoder for mixed tables (RVAE)."
    hidden_dims: Layers = (256, 256)
    latent: int = Field(default=20, ge=1, le=4096)
    epochs: int = Field(default=300, ge=1, le=100_000)
    batch_size: int = Field(default=256, ge=2, le=1_000_000)
    learning_rate: float = Field(default=1e-3, ge=1e-8, le=1)
    dropout: float = Field(default=0.1, ge=0, le=0.95)
    validation: float = Field(default=0.1, ge=0.01, le=0.5)
    patience: int = Field(default=20, ge=1, le=100_000)
    overfit: float | None = Field(default=None, ge=1, le=2)

    @property
    def _overfits(self) -> bool:
        return self.overfit is not None and self.overfit > 1

    def _train(
        self, cells: np.ndarray, layout: Layout, training: Training
    ) -> tuple[Sampler, History]:
        network, history = self._fit_network(cells, layout, training)
        if not self._overfits:
            return network, history
        first = _FirstTraining(network, history, _least_loss(history))
        return self._overfit(cells, layout, training, first)

    def _overfit(
        self, cells: np.ndarray, layout: Layout, training: Training, first: _FirstTraining
    ) -> tuple[Sampler, History]:
        """Continue the first training until the validation loss is ``overfit`` times L*."""
        goal = f"{self.overfit:g} times {first.least_loss:.4g}"
        training.progress(f"{self.name}: overfitting deliberately to {goal}")
        checkpoint = None
        if training.checkpoint is not None:
            checkpoint = training.checkpoint / "overfit"
        training = replace(training, checkpoint=checkpoint)
        second = replace(
            self,
            dropout=0.0,
            epochs=_OVERFIT_EPOCHS,
            batch_size=min(self.batch_size, _OVERFIT_BATCH),
        )
        network, history = second._fit_network(cells, layout, training, first)
        least_loss = _least_loss(first.history + history)
        with_ratios = []
        for epoch in history:
            ratio = epoch["validation_loss"] / least_loss
            with_ratios.append({**epoch, "overfitting_ratio": ratio})
        last_ratio = with_ratios[-1]["overfitting_ratio"]
        if last_ratio < (self.overfit or 1):
            reached = f"{last_ratio:.3g} after {len(history)} epochs"
            training.progress(
                f"{self.name}: overfitting ended at {reached}, {self.overfit:g} was not reached"
            )
        return network, tuple(with_ratios)

    def _fit_network(
        self,
        cells: np.ndarray,
        layout: Layout,
        training: Training,
        first: _FirstTraining | None = None,
    ) -> tuple[Sampler, History]:
        """Train a network; or overfit that of the ``first`` training."""
        import torch

        from privacy_assets.networks.training import (
            Loop,
            batches,
            seeded,
            split_rows,
            step,
        )

        train, validation = split_rows(layout, cells, self.validation, training)
        with seeded(training.seed, torch.device("cpu")):
            network: Any = self.sampler(shape_of(layout))
        patience: int | None = self.patience
        divergence_weight = 1.0
        first_least_loss = math.inf
        if first is not None:
            network.load_state_dict(first.network.state_dict())
            patience = None
            divergence_weight = _OVERFIT_DIVERGENCE
            first_least_loss = first.least_loss
        device = torch.device(training.device)
        network.to(device)
        optimizer = torch.optim.Adam(network.parameters(), lr=self.learning_rate)

        def epoch(number: int) -> dict[str, float]:
            network.train()
            losses = []
            for positions in batches(len(train), self.batch_size):
                batch = train.take(positions.to(device))
                loss = network.loss(batch.levels, batch.codes, _CLEAN, divergence_weight)
                losses.append(step(optimizer, loss))
            network.eval()
            torch.manual_seed(0)  # same noise in every epoch, so that losses are comparable
            with torch.no_grad():
                validation_loss = network.loss(validation.levels, validation.codes, _CLEAN)
            return {
                "loss": sum(losses) / len(losses),
                "validation_loss": float(validation_loss),
            }

        def is_overfitted(history: list[dict[str, float]]) -> bool:
            """Return True once the loss is ``overfit`` times the least one of both trainings."""
            if first is None:
                return False
            least_loss = min(first_least_loss, _least_loss(history))
            return history[-1]["validation_loss"] >= (self.overfit or 1) * least_loss

        parts = {"network": network, "optimizer": optimizer}
        loop = Loop(self.name, training, parts, self.epochs, patience, is_overfitted)
        fingerprint = cells_fingerprint(cells, self.settings(), first_least_loss)
        return network, loop.run(epoch, fingerprint)

    def overfitting_protection(self) -> dict[str, float]:
        """Implement :meth:`Generator.overfitting_protection`."""
        if self._overfits:
            return {}
        return {"patience": self.patience, "dropout": self.dropout}

    def sampler(self, shape: Shape) -> Sampler:
        """Implement :meth:`NeuralGenerator.sampler`."""
        from privacy_assets.networks.models import RvaeNetwork

        return RvaeNetwork(shape, self.hidden_dims, self.latent, self.dropout)


def _least_loss(history: Sequence[Mapping[str, float]]) -> float:
    """Return the least validation loss, of which a multiple is reached by overfitting.

    Raises InputError unless it is positive.
    """
    least_loss = min(epoch["validation_loss"] for epoch in history)
    if least_loss <= 0:
        fix = "remove overfit: with this many numeric columns the ratio of losses is not meaningful"
        raise InputError("the best validation loss is not positive", where="train", fix=fix)
    return least_loss
