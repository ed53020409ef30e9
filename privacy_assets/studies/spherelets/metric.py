"""Memorization coefficient by spherelet distance (Kuppa et al.)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from pydantic import Field

from privacy_assets.distances.nearest import TIE
from privacy_assets.infra.settings import declared
from privacy_assets.metrics.memorization import Memorization, RowMemorization
from privacy_assets.studies.spherelets.distances import (
    Spherelets,
    spherelet_near,
    spherelet_radius,
)
from privacy_assets.tables.encoding import EncodedTable


@declared
class SphereletMemorization(Memorization):
    """Synthetic rows with more training rows than other synthetic rows near them, by spherelet
    distance.

    It is :class:`.Memorization` with another distance for lambda, alpha_m and ``exposed``, which
    has no null; ``exposed_excess`` and the ratios stay Euclidean. See
    :mod:`privacy_assets.studies.spherelets.distances`.

    Args:
        space: Encoding of distances: "raw", or "embedded", which requires an embedder.
        radius: Radius lambda. None: the ``quantile`` of the distances of training rows to the
            nearest other training row (of another subject, if subjects are known).
        quantile: Quantile for lambda.
        n_permutations: Number of permutations of the membership labels.
        n_neighbors: Number of training rows of a spherelet.
        dimension: Dimension of a spherelet.

    Attributes:
        exposed: Share of synthetic rows with alpha_m < 1.
        exposed_excess: As in :class:`.Memorization`.

    Notes:
        Tables as in :class:`.Memorization`.
    """

    n_neighbors: int = Field(default=20, ge=3)
    dimension: int = Field(default=2, ge=1)

    name = "spherelet_memorization"
    summary = "Which synthetic rows are among training rows, by the distance of Kuppa et al.?"
    runs_by_default = False
    protections = ()
    filter_comparison = None

    def for_alpha(
        self,
        memorization: RowMemorization,
        tables: Mapping[str, EncodedTable],
        subjects: np.ndarray | None,
        device: str,
    ) -> RowMemorization:
        """Replace the counts of T and S by counts within spherelet distance. Counts of H become
        NaN.

        Spherelets are fitted to training rows, which therefore appear nearer than rows of H, so
        comparisons with H are invalid. If ``radius`` is None, the quantile of the training rows'
        distances is used, as in :func:`~privacy_assets.metrics.memorization.typical_radius`.

        Args:
            memorization: Counts by Euclidean distance.
            tables: Encoded T, H and S by role.
            subjects: Subject of each training row, int64 (n_T,). Only rows of other subjects
                determine the radius. None: each row is a subject.
            device: Torch device of the search.
        """
        train = tables["train"]
        of_train = Spherelets.fit(train, train, self.n_neighbors, self.dimension, device)
        of_synthetic = Spherelets.fit(
            tables["synthetic"], train, self.n_neighbors, self.dimension, device
        )
        radius = self.radius
        if radius is None:
            radius = spherelet_radius(of_train, train, subjects, self.quantile)
        inclusive = radius * (1 + TIE)
        n_train = spherelet_near(of_synthetic, of_train, train, inclusive)
        n_synthetic = spherelet_near(of_synthetic, of_synthetic, train, inclusive)
        return replace(
            memorization,
            radius=radius,
            train=n_train,
            synthetic=n_synthetic - 1,
            holdout=np.full(len(n_train), np.nan),
        )
