"""What stands within a radius of a row, and the radius that rows themselves suggest."""

from __future__ import annotations

import numpy as np

from privacy_assets.neighbours.nearest import nearest_rows, weight_within
from privacy_assets.tables.encoding import EncodedTable

MOST_NEIGHBOURS = 8
TIE = 1e-4  # distances that exceed the radius by less than this share are within it: float32 cells are no more precise


def near(queries: EncodedTable, points: EncodedTable, radius: float, weights: np.ndarray | None = None) -> np.ndarray:
    """Number (n_q,), or weight, of the rows of ``points`` within ``radius`` of each query, up to ``TIE``."""
    return weight_within(queries, points, radius * (1 + TIE), weights)


def distance_to_other_subjects(
    pool: EncodedTable, codes: np.ndarray, device: str, rows: np.ndarray | None = None
) -> np.ndarray:
    """Distance of each row, or of those at ``rows``, to the nearest of all rows that is another subject's.

    A subject's own rows must not hide its isolation. Looks at the nearest 8 rows at most; where all of them are the
    subject's own, their largest distance stands in.
    """
    k = min(int(np.bincount(codes).max()), MOST_NEIGHBOURS, len(pool) - 1)
    if rows is None:
        found = nearest_rows(pool, pool, k, exclude_self=True, device=device)
        distances, indices, own = found.distances, found.indices, codes
    else:  # the row itself is among one more, unless as many others equal it: then the last of them is one too many
        found = nearest_rows(pool.take(rows), pool, k + 1, device=device)
        itself = found.indices == rows[:, None]
        itself[~itself.any(axis=1), -1] = True
        distances, indices = (part[~itself].reshape(len(rows), k) for part in (found.distances, found.indices))
        own = codes[rows]
    foreign = codes[indices] != own[:, None]
    first = np.where(foreign.any(axis=1), foreign.argmax(axis=1), k - 1)
    return distances[np.arange(len(own)), first]


def typical_radius(rows: EncodedTable, subjects: np.ndarray | None, quantile: float, device: str) -> float:
    """The smallest distance that at least ``quantile`` of the rows (two or more) keep from the nearest other row.

    With ``subjects`` (n,), codes 0..s-1, from the nearest row of another person: a person's own rows are alike.
    """
    codes = np.arange(len(rows)) if subjects is None else subjects
    distances = distance_to_other_subjects(rows, codes, device)
    return float(np.quantile(distances, quantile, method="inverted_cdf"))
