"""Target attention: a membership attack that reads the synthetic rows themselves (Meeus et al. 2023, appendix 0.A).

Of each synthetic table the different rows nearest to the target go into a small network, which learns what of them
tells that the target was among the rows that the generator was fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from privacy_assets.compute.progress import Progress, silent
from privacy_assets.errors import require
from privacy_assets.settings import declared
from privacy_assets.tables.coding import Coding

if TYPE_CHECKING:
    from privacy_assets.shadow.attention_training import AttentionScorer

Scores = Literal["key", "value"]
Scale = Literal["range", "none"]


@declared
class AttentionSettings:
    """Sizes and training of the network; the defaults are the paper's but for ``patience``.

    ``closest`` different rows of each table are read. ``scores`` are the target's query times the keys, as in the text
    and in the authors' program; "value" times the values, as algorithm 1 prints it. ``scale`` "range" brings numbers to
    0..1 over the audited table, as the authors' program does; "none" leaves them untouched, as the paper says. The
    learning rate is 0.001, as in their program; the paper prints "10e-3". Training ends after ``patience`` epochs
    without a lower validation loss; None trains for all ``epochs``. ``device`` is a torch device name.
    """

    part: ClassVar[str] = "attack attention"

    closest: int = Field(default=100, ge=1, description="different rows of each table that are read")
    embedding: int = Field(default=20, ge=1, description="size of an embedded cell")
    embedding_hidden: int = Field(default=20, ge=1, description="units of its layer")
    attention: int = Field(default=15, ge=1, description="size of queries and keys")
    prediction_hidden: int = Field(default=10, ge=1, description="units of the last layer")
    scores: Scores = Field(default="key", description="what the query is multiplied with")
    scale: Scale = Field(default="range", description="what is done to numbers")
    dropout: float = Field(default=0.15, ge=0, lt=1, description="share of units that are dropped")
    learning_rate: float = Field(default=1e-3, gt=0, description="of Adam")
    batch: int = Field(default=20, ge=1, description="tables of a step")
    epochs: int = Field(default=500, ge=1, description="passes over the tables, at most")
    validation: float = Field(default=0.1, gt=0, lt=1, description="share of tables held out")
    patience: int | None = Field(default=50, ge=1, description="epochs without a lower loss that end training")
    device: str = Field(default="cpu", description="a torch device")


class AttentionAttack:
    """The attack on tables of one ``coding``; numbers are scaled over ``cells`` (F, N), all rows that are known.

    It keeps the scales, and no row.
    """

    def __init__(self, coding: Coding, cells: np.ndarray, settings: AttentionSettings | None = None) -> None:
        require("torch", "the attack attention", "torch", "take the attack queries")
        self.settings = settings or AttentionSettings()
        self.scales = Scales.fit(cells, coding.is_number)
        self.sizes = np.concatenate([coding.sizes, np.full(len(self.scales.missing), 2)])  # codes by attribute

    def features(self, cells: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Float32 (1 + closest, A + 2): the target, then the nearest different rows of ``cells`` (F, m), m >= 1.

        Each has its A attributes (numbers, and categories as codes), its multiplicity and its generalised cosine
        distance to the target (eq. 5; attributes of one value left out); multiplicity 0 where there are fewer rows. A
        missing number stands at the mean of the others, and that it is missing is one more category. Rows at the same
        distance are ordered by content, so that the order of the columns of ``cells`` does not matter.
        """
        from privacy_assets.shadow._attention_kernels import closest_unique, target_distances

        scales, varies = self.scales, self.scales.varies
        rows, aim = scales.apply(cells), scales.apply(target[:, None])
        distances = target_distances(rows[varies], aim[varies, 0], self.sizes[varies] == 0)
        kept, counts = closest_unique(rows, distances, self.settings.closest)
        nearest = rows[:, kept]
        if self.settings.scale == "none":
            nearest, aim = scales.undo(nearest), scales.undo(aim)
        out = np.zeros((1 + self.settings.closest, len(rows) + 2), dtype=np.float32)
        out[0, :-2], out[0, -2] = aim[:, 0], 1
        found = out[1 : 1 + len(kept)]
        found[:, :-2], found[:, -2], found[:, -1] = nearest.T, counts, distances[kept]
        return out

    def fit(
        self, features: np.ndarray, labels: np.ndarray, rng: np.random.Generator, progress: Progress = silent
    ) -> AttentionScorer:
        """Train on ``features`` (s, 1 + closest, A + 2) of s >= 2 tables and their labels bool (s,).

        A share of the tables, drawn at random, only chooses the epoch. Scores are log odds of membership. The same
        features, labels and state of ``rng`` give the same scores on one machine. InputError when the loss is not a
        finite number.
        """
        from privacy_assets.shadow.attention_training import train

        return train(features, labels, self.sizes, self.settings, rng, progress)


@dataclass(frozen=True, eq=False)
class Scales:
    """From cells (F, m) to attributes (A, m): numbers to 0..1, missing ones to ``fill``; then which are ``missing``.

    ``missing`` int64 are the number columns that have an indicator; ``varies`` bool (A,) the attributes that had more
    than one value.
    """

    low: np.ndarray
    span: np.ndarray
    fill: np.ndarray
    missing: np.ndarray
    varies: np.ndarray

    @classmethod
    def fit(cls, cells: np.ndarray, is_number: np.ndarray) -> Scales:
        """Learn from the cells of all rows."""
        low, span, fill = np.zeros(len(cells)), np.ones(len(cells)), np.zeros(len(cells))
        varies = np.array([bool((row != row[:1]).any()) for row in cells], dtype=bool)
        for column in np.flatnonzero(is_number):
            known = cells[column][~np.isnan(cells[column])]
            varies[column] = known.size > 0 and known.min() < known.max()
            if known.size:
                low[column] = known.min()
            if varies[column]:
                span[column] = known.max() - known.min()
                fill[column] = ((known - low[column]) / span[column]).mean()
        gaps = np.isnan(cells)
        missing = np.flatnonzero(is_number & gaps.any(axis=1))
        return cls(low, span, fill, missing, np.concatenate([varies, ~gaps[missing].all(axis=1)]))

    def apply(self, cells: np.ndarray) -> np.ndarray:
        """Attributes of cells."""
        gaps = np.isnan(cells)
        scaled = np.where(gaps, self.fill[:, None], (cells - self.low[:, None]) / self.span[:, None])
        return np.concatenate([scaled, gaps[self.missing]])

    def undo(self, attributes: np.ndarray) -> np.ndarray:
        """The attributes with their numbers as they were in the cells."""
        columns = len(self.low)
        plain = attributes[:columns] * self.span[:, None] + self.low[:, None]
        return np.concatenate([plain, attributes[columns:]])
