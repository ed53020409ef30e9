"""Compiled selection from blocks of a matrix product (see ``geometry.exact_search``). Imports numba."""

from __future__ import annotations

import numpy as np

from privacy_assets.engine.compiling import compiled
from privacy_assets.engine.geometry._vectors import STRETCH, cells_below, lowest_bit

Array = np.ndarray


@compiled
def smallest(block: Array, added: Array, first: int, values: Array, places: Array) -> None:
    """Put the cells of float32 ``block`` (m, w) plus ``added`` (w,) among the smallest ``values`` (m, c), ascending.

    ``places`` int64 (m, c) has their columns, the first of which counts as ``first``. w is a multiple of STRETCH.
    """
    cells, width, last = block.ravel(), block.shape[1], values.shape[1] - 1
    for row in range(len(block)):
        kept, place = values[row], places[row]
        for start in range(0, width, STRETCH):
            mask = cells_below(cells, row * width + start, added, start, kept[last])
            while mask:
                column = start + lowest_bit(mask)
                mask &= mask - np.uint64(1)
                value, slot = block[row, column] + added[column], last
                if value >= kept[last]:  # others of this stretch came in since
                    continue
                while slot > 0 and kept[slot - 1] > value:
                    kept[slot], place[slot] = kept[slot - 1], place[slot - 1]
                    slot -= 1
                kept[slot], place[slot] = value, first + column
