"""Settings and scales of the target-attention attack. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from privacy_assets.infra.settings import declared

Scores = Literal["key", "value"]
Scale = Literal["range", "none"]


@declared
class AttentionSettings:
    """Architecture and training of the network. Defaults follow the paper except ``patience``.

    Attributes:
        closest: Number of distinct rows read from each table.
        embedding: Size of an embedded row.
        embedding_hidden: Units of the hidden layer of the embedding.
        attention: Size of queries, keys and values.
        prediction_hidden: Units of the last hidden layer.
        scores: "key": query times keys, as in the paper's text and the authors' program. "value":
            query times values, as in algorithm 1.
        scale: "range": scale numbers to 0..1 over the audited table, as in the authors' program.
            "none": do not scale, as in the paper.
        dropout: Share of dropped units.
        learning_rate: Learning rate of Adamax. 0.001 as in the authors' program; the paper prints
            "10e-3".
        batch_size: Tables per step.
        epochs: Maximum number of passes over the tables.
        validation: Share of tables in the validation set.
        patience: Number of epochs without a lower validation loss after which training stops. None:
            never.
        device: Torch device.
    """

    part: ClassVar[str] = "attack attention"

    closest: int = Field(default=100, ge=1)
    embedding: int = Field(default=20, ge=1)
    embedding_hidden: int = Field(default=20, ge=1)
    attention: int = Field(default=15, ge=1)
    prediction_hidden: int = Field(default=10, ge=1)
    scores: Scores = "key"
    scale: Scale = "range"
    dropout: float = Field(default=0.15, ge=0, lt=1)
    learning_rate: float = Field(default=1e-3, gt=0)
    batch_size: int = Field(default=20, ge=1)
    epochs: int = Field(default=500, ge=1)
    validation: float = Field(default=0.1, gt=0, lt=1)
    patience: int | None = Field(default=50, ge=1)
    device: str = "cpu"


@dataclass(frozen=True, eq=False)
class Scales:
    """Maps cells (F, m) to attributes (A, m).

    Numbers are scaled to 0..1, with missing replaced by ``fill``; indicators follow.

    Attributes:
        low: Minimum of each number column.
        span: Range of each number column.
        fill: Scaled mean of each number column.
        missing: Number columns with an indicator; int64.
        varies: True for attributes with more than one value, shape (A,).
    """

    low: np.ndarray
    span: np.ndarray
    fill: np.ndarray
    missing: np.ndarray
    varies: np.ndarray

    @classmethod
    def fit(cls, cells: np.ndarray, is_number: np.ndarray) -> Scales:
        """Fit the scales.

        Args:
            cells: Coded cells of all rows, float64 (F, m).
            is_number: True for numbers, bool (F,).
        """
        low = np.zeros(len(cells))
        span = np.ones(len(cells))
        fill = np.zeros(len(cells))
        varies = np.array([bool((row != row[:1]).any()) for row in cells], dtype=bool)
        is_missing = np.isnan(cells)
        for column in np.flatnonzero(is_number):
            numbers = cells[column][~is_missing[column]]
            varies[column] = numbers.size > 0 and numbers.min() < numbers.max()
            if numbers.size:
                low[column] = numbers.min()
            if varies[column]:
                span[column] = numbers.max() - numbers.min()
                fill[column] = ((numbers - low[column]) / span[column]).mean()
        missing = np.flatnonzero(is_number & is_missing.any(axis=1))
        indicator_varies = ~is_missing[missing].all(axis=1)
        return cls(low, span, fill, missing, np.concatenate([varies, indicator_varies]))

    def apply(self, cells: np.ndarray) -> np.ndarray:
        """Map cells to attributes.

        Args:
            cells: Coded cells, float64 (F, m).

        Returns:
            Attributes, float64 (A, m).
        """
        is_missing = np.isnan(cells)
        scaled = (cells - self.low[:, None]) / self.span[:, None]
        filled = np.where(is_missing, self.fill[:, None], scaled)
        return np.concatenate([filled, is_missing[self.missing]])

    def undo(self, attributes: np.ndarray) -> np.ndarray:
        """Convert the numbers among the attributes back to the scale of the cells.

        Args:
            attributes: Attributes, float64 (A, m).
        """
        columns = len(self.low)
        plain = attributes[:columns] * self.span[:, None] + self.low[:, None]
        return np.concatenate([plain, attributes[columns:]])
