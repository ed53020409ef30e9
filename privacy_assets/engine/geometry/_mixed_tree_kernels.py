"""Compiled search of the mixed tree (see :mod:`privacy_assets.engine.geometry.mixed_tree`). Imports numba.

A squared distance is the number of mismatching codes, to which the squared differences of the numbers are added column
by column in float64; the bound of a node is made in the same way. Rounding keeps order, so a computed bound never
exceeds the computed distance to a row of the node, and no margin is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from privacy_assets.engine.compiling import compiled, inlined
from privacy_assets.engine.geometry._mixed_tree_growth import ABSENT, WIDE, Tree

Array = np.ndarray


def _popcount(typingctx: Any, word: Any) -> Any:
    return types.uint64(types.uint64), lambda context, builder, signature, args: builder.ctpop(args[0])


ones: Any = intrinsic(_popcount)  # number of bits set in a uint64


@compiled
def query_bits(slots: Array, bases: Array, words: int) -> Array:
    """Uint64 (n, words) with the bits of each row's categories."""
    out = np.zeros((len(slots), words), np.uint64)
    for row in range(len(slots)):
        for column in range(slots.shape[1]):
            bit = bases[column] + slots[row, column]
            out[row, bit >> 6] |= np.uint64(1) << np.uint64(bit & 63)
    return out


@inlined
def _bounds(tree: Tree, node: int, numbers: Array, bits: Array, out: Array) -> None:
    """Squared distance (w,) from a query to the children's boxes, plus 1 for each of its categories that they lack."""
    out[:] = 0
    for word in range(len(bits)):
        for group in range(WIDE):
            out[group] += np.float64(ones(bits[word] & ~tree.present[node, word, group]))
    for column in range(len(numbers)):
        value = numbers[column]
        for group in range(WIDE):
            away = max(max(tree.low[node, column, group] - value, value - tree.high[node, column, group]), 0.0)
            out[group] += away * away


@inlined
def _leaf_distances(tree: Tree, start: int, stop: int, numbers: Array, codes: Array, out: Array) -> None:
    count = stop - start
    out[:count] = 0
    for column in range(len(codes)):
        base, code = start * len(codes) + column * count, codes[column]
        for place in range(count):
            out[place] += tree.codes[base + place] != code
    for column in range(len(numbers)):
        base, value = start * len(numbers) + column * count, numbers[column]
        for place in range(count):
            away = np.float64(tree.numbers[base + place]) - value
            out[place] += away * away


@compiled
def _keep(squared: Array, found: Array, distance: float, row: int) -> None:
    """Insert a row among the nearest, which are ordered by distance, then row."""
    slot = len(squared) - 1
    while slot > 0 and (squared[slot - 1] > distance or (squared[slot - 1] == distance and found[slot - 1] > row)):
        squared[slot], found[slot] = squared[slot - 1], found[slot - 1]
        slot -= 1
    squared[slot], found[slot] = distance, row


@inlined
def _scan(tree: Tree, leaf: int, numbers: Array, codes: Array, away: Array, squared: Array, found: Array) -> int:
    """Put the rows of a leaf among the nearest (k,); returns how many rows it has."""
    start, stop, k = tree.leaves[leaf, 0], tree.leaves[leaf, 1], len(squared)
    _leaf_distances(tree, start, stop, numbers, codes, away)
    worst, last = squared[k - 1], found[k - 1]
    for place in range(stop - start):
        row = tree.order[start + place]
        if away[place] < worst or (away[place] == worst and row < last):
            _keep(squared, found, away[place], row)
            worst, last = squared[k - 1], found[k - 1]
    return stop - start


@inlined
def _push(tree: Tree, node: int, bound: Array, worst: float, last: int, stack: Array, reach: Array, top: int) -> int:
    """Put the children that may hold a nearer row on the stack int32 (room, 2), the nearest on top; returns its end."""
    base = top
    for group in range(WIDE):
        child, distance, least = tree.child[node, group], bound[group], tree.least[node, group]
        if child == ABSENT or distance > worst or (distance == worst and least >= last):
            continue
        slot = top
        while slot > base and reach[slot - 1] < distance:
            stack[slot, 0], stack[slot, 1], reach[slot] = stack[slot - 1, 0], stack[slot - 1, 1], reach[slot - 1]
            slot -= 1
        stack[slot, 0], stack[slot, 1], reach[slot] = child, least, distance
        top += 1
    return top


@compiled
def search(tree: Tree, numbers: Array, codes: Array, bits: Array, k: int, room: int, widest: int) -> tuple[Array, ...]:
    """The k nearest rows of each query: squared distances float64 (m, k), ties by row, and rows int32 (m, k).

    ``room``: size of the stack, ``widest``: rows of the largest leaf. Third: int64 (2,), nodes and rows looked at.
    """
    squared, found = np.full((len(numbers), k), np.inf), np.full((len(numbers), k), ABSENT, np.int32)
    stack, reach, bound = np.zeros((room, 2), np.int32), np.zeros(room), np.empty(WIDE)
    away, query, work = np.empty(widest), np.empty(numbers.shape[1]), np.zeros(2, np.int64)
    for q in range(len(numbers)):
        query[:] = numbers[q]
        own_codes, own_bits, near, rows = codes[q], bits[q], squared[q], found[q]
        stack[0, 0], stack[0, 1], reach[0], top = 0, 0, 0.0, 1  # the root
        while top > 0:
            top -= 1
            node, worst, last = stack[top, 0], near[k - 1], rows[k - 1]
            if reach[top] > worst or (reach[top] == worst and stack[top, 1] >= last):
                continue
            if node < 0:
                work[1] += _scan(tree, -1 - node, query, own_codes, away, near, rows)
            else:
                _bounds(tree, node, query, own_bits, bound)
                top = _push(tree, node, bound, worst, last, stack, reach, top)
                work[0] += 1
    return squared, found, work


@compiled
def direct(queries: Array, query_codes: Array, points: Array, point_codes: Array, found: Array) -> Array:
    """Squared distances float64 (m, c) of each query to the points at ``found`` int64 (m, c), as in :func:`search`."""
    out = np.empty(found.shape)
    for q in range(len(found)):
        for place in range(found.shape[1]):
            row, total = found[q, place], 0.0
            for column in range(query_codes.shape[1]):
                total += query_codes[q, column] != point_codes[row, column]
            for column in range(queries.shape[1]):
                away = np.float64(points[row, column]) - np.float64(queries[q, column])
                total += away * away
            out[q, place] = total
    return out
