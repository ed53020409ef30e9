"""Near copies: how near a synthetic row comes to a real row, measured by how far somebody else's row is from it."""

from __future__ import annotations

import numpy as np

from privacy_assets.metrics.copies.match_weight import Difference
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.neighbours.nearest import nearest_rows
from privacy_assets.neighbours.radius import distance_to_other_subjects
from privacy_assets.stats.inference import Evidence
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.encoding import EncodedTable

REACHES = (0.125, 0.25, 0.5)  # at most 0.5, so that a synthetic row is near to rows of one person only
NAMES = tuple(f"within {reach:g} of the distance to somebody else" for reach in REACHES)
_MOSTLY_FULL = 0.9  # share of rows that have a near copy anyway, at most: where all have, nothing can be seen


def nearness(inputs: MetricInputs) -> tuple[np.ndarray, np.ndarray]:
    """How near the release comes to each row of all real tables stacked: (N, reaches), and which are own rows, (N,).

    A row is its person's own where nobody else has an equal one, nor the person eight more. With d its distance to the
    nearest synthetic row and a that to the nearest row of somebody else, it is max(0, 1 - (d / (reach a))^2); rows that
    others have are at 0.
    """
    real = EncodedTable.stack([inputs.encoded(role) for role in inputs.real_roles])
    apart = distance_to_other_subjects(real, inputs.everyone.codes, inputs.device)
    away = nearest_rows(real, inputs.encoded("synthetic"), device=inputs.device).distances[:, 0]
    own = apart > 0
    ratio = np.divide(away, apart, out=np.full(len(apart), np.inf), where=own)
    return np.maximum(1 - (ratio[:, None] / np.array(REACHES)) ** 2, 0), own


def near_shares(near: np.ndarray, own: np.ndarray, people: Subjects, difference: Difference) -> Evidence:
    """``near_share`` at each of ``REACHES`` of what :func:`nearness` found, see :class:`.Copies`."""
    rows = people.totals()
    values = np.stack([people.totals(part) / rows for part in near.T], axis=1)
    held = people.totals(own.astype(np.float64)) / rows
    found, unseen = difference(values), ~people.member
    full = values[unseen].mean(axis=0) / max(float(held[unseen].mean()), 1 / len(own))
    return found.over(1 - np.minimum(full, _MOSTLY_FULL))
