"""Filters of synthetic rows that stand close to real people: all of them, or those that point at few."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privacy_assets.engine.filters.base import ROUNDING, Filter
from privacy_assets.engine.metrics.exposure import typical_radius
from privacy_assets.engine.tables.encoding import EncodedTable


@dataclass(frozen=True, kw_only=True)
class SimilarityFilter(Filter):
    """Leave out every synthetic row with a real person within the radius (Gretel's similarity filter).

    Without ``radius`` it is lambda: the ``quantile`` of the distances of real rows to the nearest other one (of another
    person, where people are known), as for :class:`~privacy_assets.engine.metrics.memorization.Memorization`. Where
    that many rows have an equal one, lambda is 0, and what goes are the rows that equal a real one.
    """

    quantile: float = 0.02

    name = "similarity"
    covers = "copies of real rows and what comes close to them, combinations that many people share included"
    fix = "let the generator memorise less (larger leaves, fewer epochs), lower quantile, or take filter memorization"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("quantile", 1e-9, 0.5)

    def _typical(self, rows: EncodedTable, subjects: np.ndarray) -> float:
        return typical_radius(rows, subjects, self.quantile, "cpu")

    def leaves_out(self, people: np.ndarray) -> np.ndarray:
        """Those with anybody near them."""
        return people > ROUNDING


@dataclass(frozen=True, kw_only=True)
class MemorizationFilter(SimilarityFilter):
    """Leave out synthetic rows that point at few people (Kuppa et al., section 3; DESIGN section 5, "Memorization").

    The similarity filter that spares crowds: a synthetic row with real people within lambda, but fewer than ``crowd``
    of them, is left out; with none near it points at nobody, with a crowd at no one in particular.
    """

    crowd: int = 5

    name = "memorization"
    covers = "rows that point at few people: copies, unless many people share them"
    fix = "let the generator memorise less (larger leaves, fewer epochs), or ask for fewer rows"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("crowd", 2, whole=True)

    def leaves_out(self, people: np.ndarray) -> np.ndarray:
        """Those with somebody near them, but no crowd."""
        return super().leaves_out(people) & (people < self.crowd - ROUNDING)
