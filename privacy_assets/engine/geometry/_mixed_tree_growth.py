"""Compiled growth of the mixed tree (see :mod:`privacy_assets.engine.geometry.mixed_tree`). Imports numba."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from privacy_assets.engine.compiling import compiled

Array = np.ndarray
LEAF = 24  # a node with more rows is split
WIDE = 8  # children of a node at most
SLOTS = 256  # bits of one categorical column at most
ABSENT = np.iinfo(np.int32).max  # a child that is not there


class Tree(NamedTuple):
    """Nodes, the root first, and their rows, which stand leaf by leaf in places 0..n-1; the axis w is the child.

    ``child`` int32 (nodes, w): a node, or -1 - leaf, or ``ABSENT``. ``low`` and ``high`` float64 (nodes, p, w): the box
    of its rows. ``present`` uint64 (nodes, words, w): bits of the categories among them. ``least`` int32 (nodes, w):
    its smallest row. ``leaves`` int32 (leaves, 2): first place and the one after the last. ``order`` int32 (n,): the
    row at each place. ``numbers`` float32 and ``codes``: per leaf of c rows, p (or q) times c cells, column by column.
    """

    child: Array
    low: Array
    high: Array
    present: Array
    least: Array
    leaves: Array
    order: Array
    numbers: Array
    codes: Array


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
    """Put the rows of one half first, in place; returns how many there are, 0 when the rows do not differ."""
    column = _widest(numbers, slots, weight, rows, counts)
    if column < 0:
        return 0
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
    whole, count = np.zeros(WIDE, np.bool_), 1
    while count < WIDE:
        largest, size = -1, LEAF
        for group in range(count):
            if not whole[group] and groups[group, 1] - groups[group, 0] > size:
                largest, size = group, groups[group, 1] - groups[group, 0]
        if largest < 0:
            break
        low, high = groups[largest]
        cut = _split(numbers, slots, weight, order[low:high], counts)
        if cut == 0:
            whole[largest] = True
            continue
        groups[largest, 1] = groups[count, 0] = low + cut
        groups[count, 1] = high
        count += 1
    return count


@compiled
def grow(numbers: Array, slots: Array, weight: Array) -> tuple[Array, ...]:
    """Split distinct rows: float32 (n, p), uint8 ``slots`` (n, q), ``weight`` (q,) of a column in the choice of splits.

    Returns ``child``, the places int32 (nodes, w, 2) of each child, ``leaves`` and ``order`` (see :class:`Tree`).
    """
    n = len(numbers)
    capacity = n // 3 + 2  # a node has two inner children, or seven leaves, or more than LEAF rows in leaves
    child = np.full((capacity, WIDE), ABSENT, np.int32)
    places, leaves = np.zeros((capacity, WIDE, 2), np.int32), np.zeros((n, 2), np.int32)
    order, counts = np.arange(n).astype(np.int32), np.zeros(SLOTS, np.int64)
    places[0, 0, 1] = n
    nodes, leaf, node = 1, 0, 0
    while node < nodes:  # a node that waits has its places where those of its first child will be
        count = _groups(numbers, slots, weight, order, counts, places[node])
        for group in range(count):
            start, stop = places[node, group]
            if stop - start <= LEAF or count == 1:
                leaves[leaf, 0], leaves[leaf, 1] = start, stop
                leaf += 1
                child[node, group] = -leaf
            else:
                places[nodes, 0, 0], places[nodes, 0, 1] = start, stop
                child[node, group] = nodes
                nodes += 1
        node += 1
    return child[:nodes], places[:nodes], leaves[:leaf], order


@compiled
def boxes(numbers: Array, slots: Array, bases: Array, words: int, places: Array, order: Array) -> tuple[Array, ...]:
    """``low``, ``high``, ``present`` and ``least`` (see :class:`Tree`); bit ``bases[j] + slot`` stands for a slot."""
    nodes = len(places)
    low = np.full((nodes, numbers.shape[1], WIDE), np.inf)
    high = np.full((nodes, numbers.shape[1], WIDE), -np.inf)
    present = np.zeros((nodes, words, WIDE), np.uint64)
    least = np.full((nodes, WIDE), ABSENT, np.int32)
    for node in range(nodes):
        for group in range(WIDE):
            for row in order[places[node, group, 0] : places[node, group, 1]]:
                least[node, group] = min(least[node, group], row)
                for column in range(numbers.shape[1]):
                    value = np.float64(numbers[row, column])
                    low[node, column, group] = min(low[node, column, group], value)
                    high[node, column, group] = max(high[node, column, group], value)
                for column in range(slots.shape[1]):
                    bit = bases[column] + slots[row, column]
                    present[node, bit >> 6, group] |= np.uint64(1) << np.uint64(bit & 63)
    return low, high, present, least


@compiled
def by_leaf(table: Array, leaves: Array, order: Array) -> Array:
    """The cells of a table (n, columns), leaf by leaf and in a leaf column by column."""
    columns = table.shape[1]
    out = np.empty(table.size, table.dtype)
    for leaf in range(len(leaves)):
        start, stop = leaves[leaf]
        for column in range(columns):
            base = start * columns + column * (stop - start)
            for place in range(start, stop):
                out[base + place - start] = table[order[place], column]
    return out
