"""Compiled part of the match weights."""

from __future__ import annotations

import numpy as np

from privacy_assets.compute.compiling import compiled

_BLOCK = 4096  # synthetic rows whose weights stay in the fastest memory


def best_weights(real: np.ndarray, weights: np.ndarray, synthetic: np.ndarray) -> np.ndarray:
    """Largest sum of ``weights`` of the columns in which a real and a synthetic row agree, float32 (n,).

    ``real`` int32 (F, n) and ``synthetic`` int32 (F, m) are codes, ``weights`` float32 (F, n) those of the cells of the
    real rows, at least 0. Without synthetic rows all are 0.
    """
    best = np.zeros(real.shape[1], np.float32)
    _best(real, weights, synthetic, np.zeros(_BLOCK, np.float32), best)
    return best


@compiled
def _best(real: np.ndarray, weights: np.ndarray, synthetic: np.ndarray, held: np.ndarray, best: np.ndarray) -> None:
    columns, rows = synthetic.shape
    for first in range(0, rows, len(held)):
        size = min(len(held), rows - first)
        for i in range(real.shape[1]):
            for j in range(size):
                held[j] = 0
            for column in range(columns):
                weight, code = weights[column, i], real[column, i]
                if weight > 0:
                    codes = synthetic[column, first : first + size]
                    for j in range(size):
                        held[j] += weight if codes[j] == code else np.float32(0)
            for j in range(size):
                best[i] = max(best[i], held[j])
