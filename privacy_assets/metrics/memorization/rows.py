"""How exposed each synthetic row is: what stands within a radius of it, and how near it stands to T, H and S."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.neighbours.nearest import nearest_rows
from privacy_assets.neighbours.radius import near
from privacy_assets.stats.intervals import ratio
from privacy_assets.tables.encoding import EncodedTable

ROLES = ("train", "holdout", "synthetic")


@dataclass(frozen=True, eq=False)
class RowMemorization:
    """The synthetic rows of ``tables`` (by role) as seen with one ``radius`` (lambda); arrays (n_S,) in their order.

    ``train``, ``holdout``, ``synthetic``: rows of T, of H, and other rows of S (the row itself left out by position)
    within the radius, those at it included. ``nearest`` int64: position of the nearest row of T; ``to_train``,
    ``to_holdout``, ``to_synthetic``: Euclidean distances to the nearest row of T, of H, and to the nearest other row.
    """

    radius: float
    train: np.ndarray
    holdout: np.ndarray
    synthetic: np.ndarray
    nearest: np.ndarray
    to_train: np.ndarray
    to_holdout: np.ndarray
    to_synthetic: np.ndarray

    @classmethod
    def of(cls, tables: Mapping[str, EncodedTable], radius: float, device: str) -> RowMemorization:
        """Count and search; T and H have rows."""
        rows = tables["synthetic"]
        counts = {role: near(rows, tables[role], radius) for role in ROLES}
        train = nearest_rows(rows, tables["train"], device=device)
        holdout = nearest_rows(rows, tables["holdout"], device=device).distances[:, 0]
        others = nearest_rows(rows, rows, exclude_self=True, device=device).distances[:, 0]
        return cls(
            radius, counts["train"], counts["holdout"], counts["synthetic"] - 1,
            train.indices[:, 0], train.distances[:, 0], holdout, others,
        )  # fmt: skip

    @property
    def real(self) -> np.ndarray:
        """Rows (n_S,) of T u H within the radius."""
        return self.train + self.holdout

    @cached_property
    def alpha(self) -> np.ndarray:
        """Kuppa's memorization coefficient (g + 1/2) / (t + 1/2)."""
        return (self.synthetic + 0.5) / (self.train + 0.5)

    @cached_property
    def train_to_synthetic(self) -> np.ndarray:
        """d(s, T) / d(s, S without s), with 0/0 = 1 and x/0 = inf."""
        return ratio(self.to_train, self.to_synthetic)

    @cached_property
    def train_to_holdout(self) -> np.ndarray:
        """d(s, T) / d(s, H), with 0/0 = 1 and x/0 = inf."""
        return ratio(self.to_train, self.to_holdout)


def tables_of(inputs: MetricInputs, space: str) -> dict[str, EncodedTable]:
    """T, H and S in the raw encoding ("raw") or in the embedding ("embedded")."""
    if space == "raw":
        return {role: inputs.encoded(role) for role in ROLES}
    return {role: EncodedTable.of_numbers(inputs.embedded(role)) for role in ROLES}
