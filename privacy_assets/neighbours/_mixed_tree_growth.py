"""Compiled growth of the mixed tree (see :mod:`privacy_assets.neighbours.mixed_tree`). Imports numba."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from privacy_assets.compute.compiling import compiled, inlined
from privacy_assets.neighbours._vectors import LEAF, WIDE
from privacy_assets.tables.memory_mapping import mapped_empty

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


@inlined
def _count(slots: Array, column: int, rows: Array, counts: Array) -> None:
    for slot in range(SLOTS):
        counts[slot] = 0
    for row in rows:
        counts[slots[row, column]] += 1


@inlined
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
        for slot in range(SLOTS):
            alike += np.float64(counts[slot]) * counts[slot]
        spread = 0.5 * weight[column] * (1 - alike / (np.float64(len(rows)) * len(rows)))
        if spread > most:
            best, most = numbers.shape[1] + column, spread
    return best


@inlined
def _rank(size: int, counts: Array, rank: Array) -> None:
    """Minus the rank of each slot by its count, the most frequent first; the counts of ``size`` rows go down to 0."""
    left = size
    while left > 0:
        slot = 0
        for other in range(1, SLOTS):
            if counts[other] > counts[slot]:
                slot = other
        left -= counts[slot]
        counts[slot] = 0
        rank[slot] = -left


@inlined
def _middle(values: Array) -> float:
    """The value from which on the right half begins: a cut between distinct values, the one nearest to the middle.

    It brings the values into another order (Hoare 1961, algorithm 65).
    """
    half = len(values) // 2
    if half > LEAF:
        half -= half % LEAF  # full leaves
    low, high = 0, len(values) - 1
    while low < high:
        pivot, left, right = values[half], low, high
        while left <= right:
            while values[left] < pivot:
                left += 1
            while values[right] > pivot:
                right -= 1
            if left <= right:
                values[left], values[right] = values[right], values[left]
                left += 1
                right -= 1
        if right < half:
            low = left
        if left > half:
            high = right
    middle, following, below, beyond = values[half], np.inf, 0, 0
    for value in values:
        below += value < middle
        beyond += value <= middle
        if value > middle:
            following = min(following, value)
    if below > 0 and (beyond == len(values) or half - below <= beyond - half):
        return middle
    return following


@inlined
def _split(
    numbers: Array, slots: Array, weight: Array, rows: Array, counts: Array, rank: Array, held: Array, others: Array
) -> int:
    """Put the rows of one half first, in place; returns how many there are."""
    column = _widest(numbers, slots, weight, rows, counts)
    if column < 0:  # codes that share a bit
        return len(rows) // 2
    values, again = held[0, : len(rows)], held[1, : len(rows)]
    if column < numbers.shape[1]:
        for place in range(len(rows)):
            values[place] = numbers[rows[place], column]
    else:
        _count(slots, column - numbers.shape[1], rows, counts)
        _rank(len(rows), counts, rank)
        for place in range(len(rows)):
            values[place] = rank[slots[rows[place], column - numbers.shape[1]]]
    for place in range(len(rows)):
        again[place] = values[place]
    middle, left, right = _middle(again), 0, 0
    for place in range(len(rows)):
        if values[place] < middle:
            rows[left] = rows[place]
            left += 1
        else:
            others[right] = rows[place]
            right += 1
    for place in range(right):
        rows[left + place] = others[place]
    return left


def grow(numbers: Array, slots: Array, weight: Array) -> tuple[Array, Array, Array, Array, int]:
    """Split distinct rows: float32 (n, p), uint8 ``slots`` (n, q), ``weight`` (q,) of a column in the choice of splits.

    Returns ``child``, the places int32 (nodes, w, 2) of each child, those of each leaf int32 (leaves, 2), ``order`` and
    the nodes on the longest way from the root.
    """
    n = len(numbers)
    capacity = n // 10 + 2  # a node has two inner children, or 15 leaves, or more than LEAF rows in leaves
    child, depth = np.full((capacity, WIDE), ABSENT, np.int32), np.ones(capacity, np.int32)
    places, leaves = np.zeros((capacity, WIDE, 2), np.int32), np.zeros((n, 2), np.int32)
    order, counts, rank = np.arange(n, dtype=np.int32), np.zeros(SLOTS, np.int64), np.zeros(SLOTS)
    held, others = np.empty((2, n)), np.empty(n, np.int32)
    nodes, leaf = _grow(numbers, slots, weight, child, depth, places, leaves, order, counts, rank, held, others)
    return child[:nodes].copy(), places[:nodes], leaves[:leaf], order, int(depth[nodes - 1])


@compiled
def _grow(
    numbers: Array,
    slots: Array,
    weight: Array,
    child: Array,
    depth: Array,
    places: Array,
    leaves: Array,
    order: Array,
    counts: Array,
    rank: Array,
    held: Array,
    others: Array,
) -> tuple[int, int]:
    """Fill the arrays of :func:`grow`; returns the numbers of nodes and leaves."""
    places[0, 0, 1] = len(numbers)
    nodes, leaf, node = 1, 0, 0
    while node < nodes:  # a node that waits has its places where those of its first child will be
        groups, count = places[node], 1
        while count < WIDE:  # the largest group is split
            largest = 0
            for group in range(1, count):
                if groups[group, 1] - groups[group, 0] > groups[largest, 1] - groups[largest, 0]:
                    largest = group
            low, high = groups[largest, 0], groups[largest, 1]
            if high - low <= LEAF:
                break
            cut = _split(numbers, slots, weight, order[low:high], counts, rank, held, others)
            groups[largest, 1] = groups[count, 0] = low + cut
            groups[count, 1] = high
            count += 1
        for group in range(count):
            start, stop = groups[group, 0], groups[group, 1]
            if stop - start <= LEAF:
                leaves[leaf, 0], leaves[leaf, 1] = start, stop
                leaf += 1
                child[node, group] = -leaf
            else:
                places[nodes, 0, 0], places[nodes, 0, 1] = start, stop
                child[node, group], depth[nodes] = nodes, depth[node] + 1
                nodes += 1
        node += 1
    return nodes, leaf


def boxes(numbers: Array, slots: Array, bases: Array, bits: int, places: Array, order: Array) -> tuple[Array, ...]:
    """``least``, ``low``, ``high`` and ``held`` (see :class:`Tree`); slot ``bases[j] + slot`` is that of column j."""
    nodes, p = len(places), numbers.shape[1]
    low, high = np.full((nodes, p, WIDE), np.inf, np.float32), np.full((nodes, p, WIDE), -np.inf, np.float32)
    least, held = np.full((nodes, WIDE), ABSENT, np.int32), np.zeros((nodes, bits), np.uint16)
    _fill_boxes(numbers, slots, bases, places, order, least, low, high, held)
    return least, low, high, held


@compiled
def _fill_boxes(
    numbers: Array,
    slots: Array,
    bases: Array,
    places: Array,
    order: Array,
    least: Array,
    low: Array,
    high: Array,
    held: Array,
) -> None:
    for node in range(len(places)):
        for group in range(WIDE):
            for place in range(places[node, group, 0], places[node, group, 1]):
                row = order[place]
                least[node, group] = min(least[node, group], row)
                for column in range(numbers.shape[1]):
                    value = numbers[row, column]
                    low[node, column, group] = min(low[node, column, group], value)
                    high[node, column, group] = max(high[node, column, group], value)
                for column in range(slots.shape[1]):
                    held[node, bases[column] + slots[row, column]] |= np.uint16(1 << group)


def by_leaf(table: Array, leaves: Array, order: Array) -> Array:
    """The cells of a table (n, columns) as (leaves, columns, LEAF), 0 where a leaf has fewer rows."""
    places = leaves[:, :1] + np.arange(LEAF)
    there = places < leaves[:, 1:]
    rows = order[np.where(there, places, 0)]
    out = mapped_empty((len(leaves), table.shape[1], LEAF), table.dtype)
    for column in range(table.shape[1]):
        out[:, column] = np.where(there, table[rows, column], table.dtype.type(0))
    return out
