"""How alike two tables are, by column, by pair of columns and by rank correlation, for rows that count several times.

Each function returns float64 (entries, 2, b): for b replicates, the synthetic rows beside the holdout and the real rows
of train beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from privacy_assets.metrics.fidelity.tables import CANDIDATES, Cells, Weights, tally

_VARIES = 1e-9  # of a variance in units of the whole table's: less is rounding


def similarity(columns: Iterable[Cells], weights: Weights) -> np.ndarray:
    """1 less the Kolmogorov-Smirnov distance of ordered cells, or the total variation distance of others."""
    found = [_similarity(column, weights) for column in columns]
    return np.stack(found) if found else np.empty((0, 2, weights["holdout"].shape[1]))


def _similarity(column: Cells, weights: Weights) -> np.ndarray:
    occupied = np.zeros(column.size, dtype=bool)  # most cells of a pair of columns hold no row of any table
    for cells in column.cells.values():
        occupied[cells] = True
    place, size = np.cumsum(occupied) - 1, int(occupied.sum())
    counts = {role: tally(place[cells], size, weights[role]) for role, cells in column.cells.items()}
    shares = {role: count / count.sum(axis=0) for role, count in counts.items()}
    apart = np.stack([shares[role] - shares["holdout"] for role in CANDIDATES])
    distance = np.abs(np.cumsum(apart, axis=1)).max(axis=1) if column.ordered else np.abs(apart).sum(axis=1) / 2
    return np.clip(1 - distance, 0, 1)


def correlation_differences(
    columns: Mapping[str, Cells], pairs: Sequence[tuple[str, str]], weights: Weights
) -> np.ndarray:
    """Absolute difference of Spearman correlations; ranks are those of the rows counted once.

    Rows that miss one of both values are left out; where a correlation is not defined, nothing is related: 0.
    """
    found = []
    for first, second in pairs:
        rho = {
            role: _spearman(columns[first].cells[role], columns[second].cells[role], weights[role]) for role in weights
        }
        found.append(np.abs(np.stack([rho[role] - rho["holdout"] for role in CANDIDATES])))
    return np.stack(found) if found else np.empty((0, 2, weights["holdout"].shape[1]))


def related(columns: Mapping[str, Cells], pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs whose correlation is defined in the holdout: both vary among its rows that miss neither."""
    return [pair for pair in pairs if _varies(*(columns[name].cells["holdout"] for name in pair))]


def _varies(first: np.ndarray, second: np.ndarray) -> bool:
    both = (first > 0) & (second > 0)
    return bool(both.any() and np.ptp(first[both]) and np.ptp(second[both]))


def _spearman(first: np.ndarray, second: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Correlation (b,) of the ranks of two columns of cells (n,), 0 for missing, under weights (n, b)."""
    both = (first > 0) & (second > 0)
    if not both.any():
        return np.zeros(weights.shape[1])
    x, y = (_standard_ranks(cells[both]) for cells in (first, second))
    terms = np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=1).astype(weights.dtype)
    weight, *sums = np.asarray(weights[both].T @ terms, dtype=np.float64).T
    mean_x, mean_y, xx, yy, xy = (total / np.where(weight > 0, weight, 1) for total in sums)
    spread = (xx - mean_x**2) * (yy - mean_y**2)
    defined = spread > _VARIES**2
    return np.where(defined, (xy - mean_x * mean_y) / np.sqrt(np.where(defined, spread, 1)), 0).clip(-1, 1)


def _standard_ranks(cells: np.ndarray) -> np.ndarray:
    """Middle ranks less their mean, over their deviation; zeros where there is one value."""
    counts = np.bincount(cells)
    ranks = (np.cumsum(counts) - counts / 2)[cells] - len(cells) / 2
    deviation = np.sqrt(np.mean(ranks * ranks))
    return ranks / deviation if deviation > 0 else ranks
