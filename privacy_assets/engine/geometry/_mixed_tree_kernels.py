"""Compiled search of the mixed tree (see :mod:`privacy_assets.engine.geometry.mixed_tree`). Imports numba.

A squared distance is the number of mismatching codes, to which the squared differences of the numbers are added column
by column in float64. Bounds and a first look at rows take float32, and the nearer of numbers beyond 1e15; each of p + 5
roundings moves a sum by 6e-8 of it at most. Twice that is granted, and ``_TINY`` for what float32 cannot hold; what is
left is computed in float64, so that nothing that counts depends on float32.
"""

from __future__ import annotations

import numpy as np

from privacy_assets.engine.compiling import compiled, inlined
from privacy_assets.engine.geometry._mixed_tree_growth import ABSENT, Tree
from privacy_assets.engine.geometry._mixed_tree_vectors import WIDE, children_within, lowest_bit, rows_within

Array = np.ndarray
_TINY = 1e-37  # squares of less may vanish in float32


@compiled
def _distance(codes: Array, numbers: Array, other_codes: Array, other_numbers: Array) -> float:
    total = 0.0
    for column in range(len(codes)):
        total += codes[column] != other_codes[column]
    for column in range(len(numbers)):
        away = np.float64(numbers[column]) - np.float64(other_numbers[column])
        total += away * away
    return total


@compiled
def _keep(squared: Array, places: Array, rows: Array, distance: float, place: int, row: int) -> None:
    """Insert a row among the nearest, which are ordered by distance, then row, unless it is among them."""
    slot = len(squared) - 1
    while slot > 0 and (squared[slot - 1] > distance or (squared[slot - 1] == distance and rows[slot - 1] > row)):
        slot -= 1
    if slot > 0 and rows[slot - 1] == row:
        return
    for other in range(len(squared) - 1, slot, -1):
        squared[other], places[other], rows[other] = squared[other - 1], places[other - 1], rows[other - 1]
    squared[slot], places[slot], rows[slot] = distance, place, row


@compiled
def search(
    tree: Tree, numbers: Array, codes: Array, near: Array, slots: Array, bases: Array, k: int
) -> tuple[Array, Array, Array]:
    """The k nearest rows of each query: squared distances float64 (m, k), ties by row, and rows int32 (m, k).

    ``near`` are the numbers within the float32 reach. Third: int64 (2,), nodes and leaves looked at.
    """
    m, margin = len(numbers), (numbers.shape[1] + 8) * 2.0**-23
    squared, found = np.full((m, k), np.inf), np.full((m, k), ABSENT, np.int32)
    stack, reach, bound = np.zeros((tree.room, 2), np.int32), np.zeros(tree.room, np.float32), np.empty(WIDE, np.float32)
    bit, work, places = np.zeros(codes.shape[1], np.uint32), np.zeros(2, np.int64), np.full(k, -1)
    previous = places.copy()
    for q in range(m):
        best, rows = squared[q], found[q]
        for column in range(len(bit)):
            bit[column] = bases[column] + slots[q, column]
        previous[:], places[:] = places, -1
        for place in previous:  # what the query before found: like queries follow each other
            if place >= 0:
                d = _distance(codes[q], numbers[q], tree.codes[place], tree.numbers[place])
                _keep(best, places, rows, d, place, tree.order[place])
        stack[0, 0], stack[0, 1], reach[0], top = 0, 0, 0.0, 1  # the root
        while top > 0:
            top -= 1
            node, worst = stack[top, 0], best[k - 1]
            if reach[top] > worst or (reach[top] == worst and stack[top, 1] >= rows[k - 1]):
                continue
            limit = np.float32(worst * (1 + margin) + _TINY)
            if node < 0:
                leaf = -1 - node
                start = tree.leaves[leaf]
                mask = rows_within(tree.lanes, tree.slots, leaf, near[q], slots[q], limit)
                mask &= tree.filled[leaf]
                work[1] += 1
                while mask:
                    place = start + lowest_bit(mask)
                    mask &= mask - np.uint32(1)
                    d, row = _distance(codes[q], numbers[q], tree.codes[place], tree.numbers[place]), tree.order[place]
                    if d < best[k - 1] or (d == best[k - 1] and row < rows[k - 1]):
                        _keep(best, places, rows, d, place, row)
                continue
            work[0] += 1
            mask = children_within(
                tree.low, tree.high, tree.held, node, near[q], bit, np.float32(1 - margin), limit, bound
            )
            base = top
            while mask:
                group = lowest_bit(mask)
                mask &= mask - np.uint32(1)
                child, away, least = tree.child[node, group], bound[group], tree.least[node, group]
                if child == ABSENT:
                    continue
                slot = top
                while slot > base and reach[slot - 1] < away:
                    stack[slot, 0], stack[slot, 1], reach[slot] = stack[slot - 1, 0], stack[slot - 1, 1], reach[slot - 1]
                    slot -= 1
                stack[slot, 0], stack[slot, 1], reach[slot] = child, least, away
                top += 1
    return squared, found, work


@compiled
def direct(queries: Array, query_codes: Array, points: Array, point_codes: Array, found: Array) -> Array:
    """Squared distances float64 (m, c) of each query to the points at ``found`` int64 (m, c), as in :func:`search`."""
    out = np.empty(found.shape)
    for q in range(len(found)):
        for place in range(found.shape[1]):
            row = found[q, place]
            out[q, place] = _distance(query_codes[q], queries[q], point_codes[row], points[row])
    return out
