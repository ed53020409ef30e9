"""Parts of rows: how rare is what a real row has in common with the synthetic row that agrees with it best."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from privacy_assets.stats.inference import Evidence
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.column import ranked
from privacy_assets.tables.table import Table

Difference = Callable[[np.ndarray], Evidence]  # members less others, of the means of values (s, m) of people
TAILS = (0.2, 0.05, 0.01)
NAMES = ("mean rank of all rows", *(f"{tail:.0%} of the rows that agree best" for tail in TAILS))


def match_weights(real: Sequence[Table], synthetic: Table, rows: np.ndarray) -> np.ndarray:
    """Match weight float32 (n,), in bits, of the ``rows`` (n,) of the tables ``real`` stacked.

    A cell that agrees counts -log2 of the share of real rows with its value, independently of others, as in Fellegi and
    Sunter (1969); one that does not, or is missing, counts nothing, so that cells which were drawn anew or left out
    hide no copy of the rest. The weight of a row is the largest over the synthetic rows.
    """
    from privacy_assets.metrics.copies._match_kernels import best_weights

    return best_weights(*coded(real, synthetic, rows))


def coded(real: Sequence[Table], synthetic: Table, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes and weights (F, n) of the real rows, and codes (F, m) of the synthetic ones, as the kernel takes them."""
    codes, weights, others = [], [], []
    for name in synthetic.schema.names:
        *own, made = ranked([*(table[name] for table in real), synthetic[name]])[0]
        known = np.concatenate(own)
        others.append(made)
        shares = np.bincount(known[known >= 0], minlength=1) / len(known)
        codes.append(known[rows])
        bits = -np.log2(np.maximum(shares, 1 / len(known)))
        weights.append(np.where(codes[-1] >= 0, bits[codes[-1]], 0.0))
    return np.array(codes, np.int32), np.array(weights, np.float32), np.array(others, np.int32)


def advantages(weights: np.ndarray, people: Subjects, difference: Difference) -> Evidence:
    """How much larger the weights (n,) of members are: an entry for each of ``NAMES``, between -1 and 1.

    The first is 2 AUC - 1, with ties as halves; the others the share of the members among the rows that agree best
    minus that of the others, where rows at the cut share what is left of the tail.
    """
    _, tied, counts = np.unique(weights, return_inverse=True, return_counts=True)
    above = len(weights) - np.cumsum(counts)  # rows of a larger weight
    parts = [1 - (2 * above + counts) / len(weights)]
    parts += [np.clip((tail * len(weights) - above) / counts, 0, 1) for tail in TAILS]
    rows = people.totals()
    values = np.stack([people.totals(part[tied]) / rows for part in parts], axis=1)
    return difference(values)
