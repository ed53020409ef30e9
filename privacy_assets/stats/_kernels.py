"""Compiled loops of :mod:`privacy_assets.stats.subjects`. Imports numba, so import it lazily."""

from __future__ import annotations

import numpy as np

from privacy_assets.infra.compiling import compiled


@compiled
def resize(sets: np.ndarray, size: int, rng: np.random.Generator) -> None:
    """Add or remove random subjects until each of the 64 sets has ``size``; each bit of uint64
    (n_subjects,) is a set.
    """
    sizes = np.zeros(64, np.int64)
    for word in sets:
        for at in range(64):
            sizes[at] += np.int64((word >> np.uint64(at)) & np.uint64(1))
    for at in range(64):
        bit = np.uint64(1) << np.uint64(at)
        while sizes[at] != size:
            person = int(rng.random() * len(sets))
            inside = sets[person] & bit != 0
            if inside == (sizes[at] > size):
                sets[person] ^= bit
                sizes[at] += -1 if inside else 1
