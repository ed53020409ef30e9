"""Compiled loops behind :mod:`privacy_assets.stats.subjects`. Imports numba: import it where it is used."""

from __future__ import annotations

import numpy as np

from privacy_assets.compute.compiling import compiled


@compiled
def resize(sets: np.ndarray, size: int, rng: np.random.Generator) -> None:
    """Bring each of 64 sets, a bit each of uint64 (people,), to ``size`` by random people joining or leaving it."""
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
