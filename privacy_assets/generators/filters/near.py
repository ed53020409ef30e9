"""Filters of synthetic rows that stand close to real people: all of them, or those that point at few."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from privacy_assets.generators.filters.base import ROUNDING, Filter
from privacy_assets.neighbours.radius import typical_radius
from privacy_assets.settings import declared_by_name
from privacy_assets.tables.encoding import EncodedTable


@declared_by_name
class SimilarityFilter(Filter):
    """Leave out every synthetic row with a real person within the radius (Gretel's similarity filter).

    Without ``radius`` it is lambda: the ``quantile`` of the distances of real rows to the nearest other one (of another
    person, where people are known), as for :class:`~privacy_assets.metrics.memorization.Memorization`. Where
    that many rows have an equal one, lambda is 0, and what goes are the rows that equal a real one.
    """

    quantile: float = Field(
        default=0.02, ge=1e-9, le=0.5, description="the radius, as a quantile of distances of real rows"
    )

    name = "similarity"
    covers = "copies of real rows and what comes close to them, combinations that many people share included"
    fix = "let the generator memorise less (larger leaves, fewer epochs), lower quantile, or take filter memorization"

    def _typical(self, rows: EncodedTable, subjects: np.ndarray) -> float:
        return typical_radius(rows, subjects, self.quantile, "cpu")

    def leaves_out(self, people: np.ndarray) -> np.ndarray:
        """Those with anybody near them."""
        return people > ROUNDING


@declared_by_name
class MemorizationFilter(SimilarityFilter):
    """Leave out synthetic rows that point at few people (Kuppa et al., section 3).

    The similarity filter that spares crowds: a synthetic row with real people within lambda, but fewer than ``crowd``
    of them, is left out; with none near it points at nobody, with a crowd at no one in particular.
    """

    crowd: int = Field(default=5, ge=2, description="people within the radius: with fewer a row is left out")

    name = "memorization"
    covers = "rows that point at few people: copies, unless many people share them"
    fix = "let the generator memorise less (larger leaves, fewer epochs), or ask for fewer rows"

    def leaves_out(self, people: np.ndarray) -> np.ndarray:
        """Those with somebody near them, but no crowd."""
        return super().leaves_out(people) & (people < self.crowd - ROUNDING)
