"""RVAE: a variational autoencoder for mixed tables, robust to outlying cells (Eduardo et al.
2020).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from privacy_assets.errors import InputError
from privacy_assets.generators.base import Training
from privacy_assets.generators.layout import Layout
from privacy_assets.generators.neural import History, NeuralGenerator, shape_of
from privacy_assets.infra.settings import Layers, declared
from privacy_assets.tables.fingerprints import cells_fingerprint

if TYPE_CHECKING:
    from privacy_assets.generators.networks.training import Sampler, Shape

_CLEAN = 0.95  # prior probability that a cell is clean
# Deliberate overfitting. With the full weight of the divergence from the prior, the loss hardly
# exceeds its minimum.
_OVERFIT_EPOCHS = 1000
_OVERFIT_BATCH = 32
_OVERFIT_DIVERGENCE = 0.1


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
    hidden_dims: Layers = Field(default=(256, 256), description="widths of the hidden layers")
    latent: int = Field(default=20, ge=1, le=4096, description="dimension of the latent code")
    epochs: int = Field(
        default=300, ge=1, le=100_000, description="number of passes over the training rows"
    )
    batch_size: int = Field(default=256, ge=2, le=1_000_000, description="number of rows per step")
    learning_rate: float = Field(default=1e-3, ge=1e-8, le=1, description="learning rate of Adam")
    dropout: float = Field(default=0.1, ge=0, le=0.95, description="share of dropped units")
    validation: float = Field(
        default=0.1, ge=0.01, le=0.5, description="share of people in the validation set"
    )
    patience: int = Field(
        default=20,
        ge=1,
        le=100_000,
        description="training stops after this many epochs without improvement",
    )
    overfit: float | None = Field(
        default=None,
        ge=1,
        le=2,
        description="factor of deliberate overfitting: validation loss relative to the best",
    )

    @property
    def _overfits(self) -> bool:
        return self.overfit is not None and self.overfit > 1

    def _train(
        self, cells: np.ndarray, layout: Layout, training: Training
    ) -> tuple[Sampler, History]:
        network, history = self._trained(cells, layout, training)
        if not self._overfits:
            return network, history
        best = _least(history)
        training.progress(
            f"{self.name}: overfitting deliberately to {self.overfit:g} times {best:.4g}"
        )
        aside = None if training.checkpoint is None else training.checkpoint / "overfit"
        again = replace(
            self,
            dropout=0.0,
            epochs=_OVERFIT_EPOCHS,
            batch_size=min(self.batch_size, _OVERFIT_BATCH),
        )
        network, second = again._trained(
            cells, layout, replace(training, checkpoint=aside), network, best
        )
        least = _least(history + second)
        history = tuple(
            {**row, "overfitting_ratio": row["validation_loss"] / least} for row in second
        )
        if history[-1]["overfitting_ratio"] < (self.overfit or 1):
            reached = f"{history[-1]['overfitting_ratio']:.3g} after {len(history)} epochs"
            training.progress(
                f"{self.name}: overfitting ended at {reached}, {self.overfit:g} was not reached"
            )
        return network, history

    def _trained(
        self,
        cells: np.ndarray,
        layout: Layout,
        training: Training,
        before: Sampler | None = None,
        best: float = math.inf,
    ) -> tuple[Sampler, History]:
        """Train; or overfit the network ``before``, whose validation loss is ``best``, by the
        factor ``overfit``.
        """
        import torch

        from privacy_assets.generators.networks.training import (
            Loop,
            batches,
            seeded,
            split_rows,
            step,
        )

        device = torch.device(training.device)
        learned, judged = split_rows(layout, cells, self.validation, training)
        with seeded(training.seed, torch.device("cpu")):
            network: Any = self.sampler(shape_of(layout))
        if before is not None:
            network.load_state_dict(before.state_dict())
        network.to(device)
        weight = 1.0 if before is None else _OVERFIT_DIVERGENCE
        optimiser = torch.optim.Adam(network.parameters(), lr=self.learning_rate)

        def epoch(number: int) -> dict[str, float]:
            network.train()
            losses = []
            for rows in batches(len(learned[0]), self.batch_size):
                some = [part[rows.to(device)] for part in learned]
                losses.append(step(optimiser, network.loss(*some, _CLEAN, weight)))
            network.eval()
            torch.manual_seed(0)  # same noise in every epoch, so that losses are comparable
            with torch.no_grad():
                loss = float(network.loss(*judged, _CLEAN))
            return {"loss": sum(losses) / len(losses), "validation_loss": loss}

        def exceeded(history: list[dict[str, float]]) -> bool:
            """Return True once the loss is ``overfit`` times the least one of both trainings."""
            if before is None:
                return False
            return history[-1]["validation_loss"] >= (self.overfit or 1) * min(
                best, _least(history)
            )

        parts = {"network": network, "optimiser": optimiser}
        loop = Loop(
            self.name,
            training,
            parts,
            self.epochs,
            self.patience if before is None else None,
            exceeded,
        )
        return network, loop.run(epoch, cells_fingerprint(cells, self.settings(), best))

    def overfitting_protection(self) -> str:
        """Implement :meth:`Generator.overfitting_protection`."""
        if self._overfits:
            return ""
        stops = (
            f"early stopping after {self.patience} epochs without improvement on validation people"
        )
        return f"{stops}, dropout {self.dropout:g}"

    def sampler(self, shape: Shape) -> Sampler:
        """Implement :meth:`NeuralGenerator.sampler`."""
        from privacy_assets.generators.networks.models import RvaeNetwork

        return RvaeNetwork(shape, self.hidden_dims, self.latent, self.dropout)


def _least(history: Sequence[Mapping[str, float]]) -> float:
    """Return the least validation loss, of which a multiple is reached by overfitting.

    Raises InputError unless it is positive.
    """
    least = min(row["validation_loss"] for row in history)
    if least <= 0:
        fix = "remove overfit: with this many numeric columns the ratio of losses is not meaningful"
        raise InputError("the best validation loss is not positive", where="train", fix=fix)
    return least
