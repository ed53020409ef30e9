"""RVAE: a variational autoencoder of mixed tables that is robust against outlying cells (Eduardo et al. 2020)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from privacy_assets.errors import InputError
from privacy_assets.generators.base import Training
from privacy_assets.generators.layout import Layout
from privacy_assets.generators.neural import History, NeuralGenerator, shape_of
from privacy_assets.settings import Layers, declared
from privacy_assets.tables.fingerprints import cells_fingerprint

if TYPE_CHECKING:
    from privacy_assets.generators.networks.blocks import Sampler, Shape

_OVERFIT_EPOCHS = 100


@declared
class RVAE(NeuralGenerator):
    """Each cell is clean with probability ``clean``, else an outlier that the network need not explain.

    Encoder and decoder have ``hidden`` layers (mirrored) around ``latent`` standard normal numbers. Numbers go in as
    normal scores of their rank, and come out so, with one spread a column. Training ends after ``epochs`` epochs, or
    when the loss on the ``validation`` share of the people, who are not trained on, has not improved for ``patience``;
    the weights of the best epoch are kept.

    ``overfit`` f in [1, 2] over-fits on purpose (Palacios 4.2): a first training finds the best validation loss L*, a
    second one without dropout or early stopping goes on until its loss L reaches L/L* = f after its own best, 100
    epochs at most. The last "overfitting ratio" of the history is the one reached. Never publish what that makes.
    """

    name = "rvae"
    summary = "Robust variational autoencoder for mixed tables (RVAE)."
    hidden: Layers = Field(default=(256, 256), description="widths of the layers")
    latent: int = Field(default=20, ge=1, le=4096, description="size of the latent code")
    epochs: int = Field(default=300, ge=1, le=100_000, description="passes over the training rows")
    batch: int = Field(default=256, ge=2, le=1_000_000, description="rows of a step")
    learning_rate: float = Field(default=1e-3, ge=1e-8, le=1, description="of Adam")
    dropout: float = Field(default=0.1, ge=0, le=0.95, description="share of units that are dropped")
    clean: float = Field(default=0.95, ge=0.01, le=1, description="share of rows that are taken to be clean")
    validation: float = Field(default=0.1, ge=0.01, le=0.5, description="share of people held out for early stopping")
    patience: int = Field(default=20, ge=1, le=100_000, description="epochs without a better loss that end training")
    overfit: float | None = Field(default=None, ge=1, le=2, description="how far it is over-fitted on purpose")

    @property
    def _overfits(self) -> bool:
        return self.overfit is not None and self.overfit > 1

    def _train(self, cells: np.ndarray, layout: Layout, training: Training) -> tuple[Sampler, History]:
        network, history = self._trained(cells, layout, training)
        if not self._overfits:
            return network, history
        best = min(row["validation_loss"] for row in history)
        if best <= 0:
            fix = "leave overfit out: with so many numbers among the columns the ratio of losses says nothing"
            raise InputError("the best validation loss is not positive", where="train", fix=fix)
        training.progress(f"{self.name}: over-fitting on purpose to {self.overfit:g} times {best:.4g}")
        aside = None if training.checkpoint is None else training.checkpoint / "overfit"
        again = replace(self, dropout=0.0, epochs=_OVERFIT_EPOCHS)
        network, history = again._trained(cells, layout, replace(training, checkpoint=aside), best)
        if history[-1]["overfitting_ratio"] < (self.overfit or 1):
            reached = f"{history[-1]['overfitting_ratio']:.3g} after {len(history)} epochs"
            training.progress(f"{self.name}: over-fitting ended at {reached}, {self.overfit:g} was not reached")
        return network, history

    def _trained(
        self, cells: np.ndarray, layout: Layout, training: Training, best: float | None = None
    ) -> tuple[Sampler, History]:
        """Train; with a ``best`` loss L*, until it is exceeded by the factor asked for."""
        import torch

        from privacy_assets.generators.networks.blocks import seeded
        from privacy_assets.generators.networks.training import Loop, batches, split_rows, step

        device = torch.device(training.device)
        learned, judged = split_rows(layout, cells, self.validation, training)
        with seeded(training.seed, torch.device("cpu")):
            network: Any = self.sampler(shape_of(layout))
        network.to(device)
        optimiser = torch.optim.Adam(network.parameters(), lr=self.learning_rate)

        def epoch(number: int) -> dict[str, float]:
            network.train()
            losses = []
            for rows in batches(len(learned[0]), self.batch):
                some = [part[rows.to(device)] for part in learned]
                losses.append(step(optimiser, network.loss(*some, self.clean)))
            network.eval()
            torch.manual_seed(0)  # the same noise for every epoch, so that losses can be compared
            with torch.no_grad():
                loss = float(network.loss(*judged, self.clean))
            measured = {"loss": sum(losses) / len(losses), "validation_loss": loss}
            return measured if best is None else {**measured, "overfitting_ratio": loss / best}

        def exceeded(history: list[dict[str, float]]) -> bool:
            """True once the loss has passed its lowest point and is as many times ``best`` as was asked for."""
            losses = [row["validation_loss"] for row in history]
            return best is not None and losses[-1] > min(losses) and losses[-1] >= (self.overfit or 1) * best

        parts = {"network": network, "optimiser": optimiser}
        loop = Loop(self.name, training, parts, self.epochs, self.patience if best is None else None, exceeded)
        return network, loop.run(epoch, cells_fingerprint(cells, self.settings(), best))

    def overfitting_protection(self) -> str:
        """See :meth:`Generator.overfitting_protection`."""
        if self._overfits:
            return ""
        stops = f"early stopping after {self.patience} epochs without a better loss on unseen people"
        return f"{stops}, dropout {self.dropout:g}"

    def sampler(self, shape: Shape) -> Sampler:
        """See :meth:`NeuralGenerator.sampler`."""
        from privacy_assets.generators.networks.rvae import RvaeNetwork

        return RvaeNetwork(shape, self.hidden, self.latent, self.dropout)
