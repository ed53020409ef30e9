"""RVAE: a variational autoencoder of mixed tables that is robust against outlying cells (Eduardo et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from privacy_assets.errors import InputError
from privacy_assets.generators.base import FittedGenerator, Training
from privacy_assets.generators.layout import Layout
from privacy_assets.generators.neural import FittedNeural, NeuralGenerator, shape_of
from privacy_assets.settings import Layers, declared
from privacy_assets.tables.coding import Coding
from privacy_assets.tables.fingerprints import cells_fingerprint
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.generators.networks.blocks import Sampler, Shape
    from privacy_assets.generators.networks.rvae import RvaeNetwork

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

    def _learn(self, train: Table, training: Training) -> FittedGenerator:
        coding = Coding.fit([train], train.schema)
        cells = coding.code(train)
        layout = Layout.of_cells(cells, coding)
        run = _Run(self, cells, layout, training)
        network, history = run.train(self)
        if self.overfit is not None and self.overfit > 1:
            network, history = run.overfit(self.overfit, min(row["validation_loss"] for row in history))
            if history[-1]["overfitting_ratio"] < self.overfit:
                reached = f"{history[-1]['overfitting_ratio']:.3g} after {len(history)} epochs"
                training.progress(f"{self.name}: over-fitting ended at {reached}, {self.overfit:g} was not reached")
        return FittedNeural(self, coding, layout, network, history)

    def overfitting_protection(self) -> str:
        """See :meth:`Generator.overfitting_protection`."""
        if self.overfit is not None and self.overfit > 1:
            return ""
        stops = f"early stopping after {self.patience} epochs without a better loss on unseen people"
        return f"{stops}, dropout {self.dropout:g}"

    def sampler(self, shape: Shape) -> Sampler:
        """See :meth:`NeuralGenerator.sampler`."""
        from privacy_assets.generators.networks.rvae import RvaeNetwork

        return RvaeNetwork(shape, self.hidden, self.latent, self.dropout)


class _Run:
    """Training of RVAE on the cells (F, n)."""

    def __init__(self, generator: RVAE, cells: np.ndarray, layout: Layout, training: Training) -> None:
        import torch

        from privacy_assets.generators.networks.training import split_rows

        self.generator, self.layout, self.training, self.cells = generator, layout, training, cells
        self.device = torch.device(training.device)
        self.learned, self.judged = split_rows(layout, cells, generator.validation, training)

    def train(self, chosen: RVAE, best: float | None = None) -> tuple[RvaeNetwork, tuple[dict[str, float], ...]]:
        """Train with the settings ``chosen``; with a ``best`` loss L*, until it is exceeded by the factor asked for."""
        import torch

        from privacy_assets.generators.networks.blocks import seeded
        from privacy_assets.generators.networks.training import Loop, batches

        with seeded(self.training.seed, torch.device("cpu")):
            network: Any = chosen.sampler(shape_of(self.layout))
        network.to(self.device)
        optimiser = torch.optim.Adam(network.parameters(), lr=chosen.learning_rate)

        def epoch(number: int) -> dict[str, float]:
            network.train()
            parts = batches(len(self.learned[0]), chosen.batch)
            losses = [_step(network, optimiser, self.learned, rows.to(self.device), chosen.clean) for rows in parts]
            network.eval()
            torch.manual_seed(0)  # the same noise for every epoch, so that losses can be compared
            with torch.no_grad():
                judged = float(network.loss(*self.judged, chosen.clean))
            told = {"loss": sum(losses) / len(losses), "validation_loss": judged}
            return told if best is None else {**told, "overfitting_ratio": judged / best}

        patience = chosen.patience if best is None else None
        parts = {"network": network, "optimiser": optimiser}
        loop = Loop(chosen.name, self.training, parts, chosen.epochs, patience, _exceeds(chosen.overfit or 1, best))
        mark = cells_fingerprint(self.cells, chosen.settings(), best)
        return network, loop.run(epoch, mark)

    def overfit(self, ratio: float, best: float) -> tuple[RvaeNetwork, tuple[dict[str, float], ...]]:
        """Train again until the validation loss is ``ratio`` times ``best``."""
        if best <= 0:
            fix = "leave overfit out: with so many numbers among the columns the ratio of losses says nothing"
            raise InputError("the best validation loss is not positive", where="train", fix=fix)
        self.training.progress(f"{self.generator.name}: over-fitting on purpose to {ratio:g} times {best:.4g}")
        aside = None if self.training.checkpoint is None else self.training.checkpoint / "overfit"
        self.training = replace(self.training, checkpoint=aside)
        return self.train(replace(self.generator, dropout=0.0, epochs=_OVERFIT_EPOCHS), best)


def _step(network: Any, optimiser: Any, data: Sequence[Any], rows: Any, clean: float) -> float:
    loss = network.loss(*[part[rows] for part in data], clean)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()
    return float(loss.detach())


def _exceeds(ratio: float, best: float | None) -> Any:
    """True once the loss has passed its lowest point and is ``ratio`` times ``best``."""

    def stop(history: list[dict[str, float]]) -> bool:
        if best is None:
            return False
        losses = [row["validation_loss"] for row in history]
        return losses[-1] > min(losses) and losses[-1] >= ratio * best

    return stop
