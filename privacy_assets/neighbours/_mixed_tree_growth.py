"""Compiled growth of the mixed tree (see :mod:`privacy_assets.neighbours.mixed_tree`). Imports numba."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from privacy_assets.compute.compiling import compiled
from privacy_assets.neighbours._vectors import LEAF, WIDE

Array = np.ndarray
SLOTS = 256  # bits of one categorical column at most
ABSENT = np.iinfo(np.int32).max  # a child that is not there


class Tree(NamedTuple):
    """Nodes, the root first, and their rows, which stand leaf by leaf in places 0..n-1; the axis w is the child.

    ``child`` int32 (nodes, w): a node, or -1 - leaf, or ``ABSENT``. ``least`` int32 (nodes, w): its smallest row.
    ``low`` and ``high`` float32 (nodes, p, w): the box of its rows. ``held`` uint16 (nodes, slots): bit c says that
    child c has the category. ``leaves`` int32 (leaves,): first place. ``filled`` uint32 (leaves,): mask of its rows.
    ``lanes`` float32 (leaves, p, LEAF) and ``slots`` uint8 (leaves, q, LEAF): its rows, column by column. ``order``
    int32 (n,), ``numbers`` (n, p) and ``codes`` (n, q): the row at each place. ``room``: nodes that may wait at once.
    """

    child: Array
    least: Array
    low: Array
    high: Array
    held: Array
    leaves: Array
    filled: Array
    lanes: Array
    slots: Array
    order: Array
    numbers: Array
    codes: Array
    room: int


@compiled
def _count(slots: Array, column: int, rows: Array, counts: Array) -> None:
    counts[:] = 0
    for row in rows:
        counts[slots[row, column]] += 1


@compiled
def _widest(numbers: Array, slots: Array, weight: Array, rows: Array, counts: Array) -> int:
    """The column in which ``rows`` differ most, by half their mean squared difference; -1 when they do not differ.

    Numbers come first; the share of a categorical column is multiplied by its ``weight``.
    """
    best, most = -1, 0.0
    for column in range(numbers.shape[1]):
        total, squares, first = 0.0, 0.0, np.float64(numbers[rows[0], column])
        for row in rows:
            value = numbers[row, column] - first
            total += value
            squares += value * value
        spread = (squares - total * total / len(rows)) / len(rows)
        if spread > most:
            best, most = column, spread
    for column in range(slots.shape[1]):
        _count(slots, column, rows, counts)
        alike = 0.0
        for count in counts:
            alike += np.float64(count) * count
        spread = 0.5 * weight[column] * (1 - alike / (np.float64(len(rows)) * len(rows)))
        if spread > most:
            best, most = numbers.shape[1] + column, spread
    return best


@compiled
def _ranks(slots: Array, column: int, rows: Array, counts: Array, out: Array) -> None:
    """The rank of each row's slot, the most frequent first."""
    _count(slots, column, rows, counts)
    rank, left = np.zeros(len(counts)), len(rows)
    while left > 0:
        slot = np.argmax(counts)
        left -= counts[slot]
        counts[slot] = 0
        rank[slot] = left
    for place in range(len(rows)):
        out[place] = -rank[slots[rows[place], column]]


@compiled
def _middle(values: Array) -> float:
    """The value from which on the right half begins: a cut between distinct values, the one nearest to the middle."""
    ordered = np.sort(values)
    half = len(ordered) // 2
    if half > LEAF:
        half -= half % LEAF  # full leaves
    below, beyond = half, half
    while below > 0 and ordered[below - 1] == ordered[half]:
        below -= 1
    while beyond < len(ordered) and ordered[beyond] == ordered[half]:
        beyond += 1
    if below > 0 and (beyond == len(ordered) or half - below <= beyond - half):
        return ordered[half]
    return ordered[beyond]


@compiled
def _split(numbers: Array, slots: Array, weight: Array, rows: Array, counts: Array) -> int:
    """Put the rows of one half first, in place; returns how many there are."""
    column = _widest(numbers, slots, weight, rows, counts)
    if column < 0:  # codes that share a bit
        return len(rows) // 2
    values, others = np.empty(len(rows)), np.empty(len(rows), np.int32)
    if column < numbers.shape[1]:
        for place in range(len(rows)):
            values[place] = numbers[rows[place], column]
    else:
        _ranks(slots, column - numbers.shape[1], rows, counts, values)
    middle, left, right = _middle(values), 0, 0
    for place in range(len(rows)):
        if values[place] < middle:
            rows[left] = rows[place]
            left += 1
        else:
            others[right] = rows[place]
            right += 1
    rows[left:] = others[:right]
    return left


@compiled
def _groups(numbers: Array, slots: Array, weight: Array, order: Array, counts: Array, groups: Array) -> int:
    """Split the places ``groups[0]`` into up to ``WIDE`` groups int32 (w, 2), the largest first; returns how many."""
    count = 1
    while count < WIDE:
        largest = np.argmax(groups[:count, 1] - groups[:count, 0])
        low, high = groups[largest]
        if high - low <= LEAF:
            break
        cut = _split(numbers, slots, weight, order[low:high], counts)
        groups[largest, 1] = groups[count, 0] = low + cut
        groups[count, 1] = high
        count += 1
    return count


@compiled
def grow(numbers: Array, slots: Array, weight: Array) -> tuple[Array, ...]:
    """Split distinct rows: float32 (n, p), uint8 ``slots`` (n, q), ``weight`` (q,) of a column in the choice of splits.

    Returns ``child``, the places int32 (nodes, w, 2) of each child, those of each leaf int32 (leaves, 2), ``order`` and
    the nodes on the longest way from the root.
    """
    n = len(numbers)
    capacity = n // 10 + 2  # a node has two inner children, or 15 leaves, or more than LEAF rows in leaves
    child, depth = np.full((capacity, WIDE), ABSENT, np.int32), np.ones(capacity, np.int32)
    places, leaves = np.zeros((capacity, WIDE, 2), np.int32), np.zeros((n, 2), np.int32)
    order, counts = np.arange(n).astype(np.int32), np.zeros(SLOTS, np.int64)
    places[0, 0, 1] = n
    nodes, leaf, node = 1, 0, 0
    while node < nodes:  # a node that waits has its places where those of its first child will be
        for group in range(_groups(numbers, slots, weight, order, counts, places[node])):
            start, stop = places[node, group]
            if stop - start <= LEAF:
                leaves[leaf, 0], leaves[leaf, 1] = start, stop
                leaf += 1
                child[node, group] = -leaf
            else:
                places[nodes, 0, 0], places[nodes, 0, 1] = start, stop
                child[node, group], depth[nodes] = nodes, depth[node] + 1
                nodes += 1
        node += 1
    return child[:nodes], places[:nodes], leaves[:leaf], order, depth[nodes - 1]


@compiled
def boxes(numbers: Array, slots: Array, bases: Array, bits: int, places: Array, order: Array) -> tuple[Array, ...]:
    """``least``, ``low``, ``high`` and ``held`` (see :class:`Tree`); slot ``bases[j] + slot`` is that of column j."""
    nodes = len(places)
    low = np.full((nodes, numbers.shape[1], WIDE), np.inf, np.float32)
    high = np.full((nodes, numbers.shape[1], WIDE), -np.inf, np.float32)
    held = np.zeros((nodes, bits), np.uint16)
    least = np.full((nodes, WIDE), ABSENT, np.int32)
    for node in range(nodes):
        for group in range(WIDE):
            for row in order[places[node, group, 0] : places[node, group, 1]]:
                least[node, group] = min(least[node, group], row)
                for column in range(numbers.shape[1]):
                    value = numbers[row, column]
                    low[node, column, group] = min(low[node, column, group], value)
                    high[node, column, group] = max(high[node, column, group], value)
                for column in range(slots.shape[1]):
                    held[node, bases[column] + slots[row, column]] |= np.uint16(1 << group)
    return least, low, high, held


@compiled
def by_leaf(table: Array, leaves: Array, order: Array) -> Array:
    """The cells of a table (n, columns) as (leaves, columns, LEAF)."""
    out = np.zeros((len(leaves), table.shape[1], LEAF), table.dtype)
    for leaf in range(len(leaves)):
        for place in range(leaves[leaf, 0], leaves[leaf, 1]):
            for column in range(table.shape[1]):
                out[leaf, column, place - leaves[leaf, 0]] = table[order[place], column]
    return out
