"""Compiled search of the mixed tree (see :mod:`privacy_assets.distances.mixed_tree`). Imports
numba.

A squared distance is the number of mismatching codes plus the squared differences of the numbers,
added column by column in float64. Bounds, and the first filter on the rows of a leaf, use float32
and numbers clipped at 1e15. Each of the p + 5 roundings changes a sum by at most 6e-8 of its value;
the margin is twice that, plus ``_TINY`` for values that float32 cannot represent. Remaining rows
are computed in float64, so results do not depend on float32.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from privacy_assets.distances._vectors import (
    LEAF,
    WIDE,
    children_inside,
    children_within,
    lowest_bit,
    rows_within,
)
from privacy_assets.infra.compiling import compiled, inlined
from privacy_assets.tables.arrays import mapped_empty

Array = np.ndarray
SLOTS = 256  # maximum number of slots of a categorical column
ABSENT = np.iinfo(np.int32).max  # an absent child


class Tree(NamedTuple):
    """Nodes, root first, and their rows, stored leaf by leaf at positions 0..n-1. Axis w is the
    child.

    Attributes:
        child: A node, -1 - leaf, or ``ABSENT``; int32 (nodes, w).
        least: Smallest row of the child; int32 (nodes, w).
        low: Lower bounds of the child's box; float32 (nodes, p, w).
        high: Upper bounds of the child's box; float32 (nodes, p, w).
        held: Bit c is set if child c has the category; uint16 (nodes, slots).
        leaves: First position of each leaf; int32 (leaves,).
        filled: Mask of the rows of each leaf; uint32 (leaves,).
        lanes: Numbers of each leaf, column by column; float32 (leaves, p, LEAF).
        slots: Slots of each leaf, column by column; uint8 (leaves, q, LEAF).
        order: Row at each position; int32 (n,).
        numbers: Numbers at each position; (n, p).
        codes: Codes at each position; (n, q).
        room: Maximum number of pending nodes.
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
    """Return the column with the largest half mean squared difference among ``rows``, or -1 if all
    rows are equal.

    Numbers come first. The value of a categorical column is multiplied by its ``weight``.
    """
    best = -1
    most = 0.0
    for column in range(numbers.shape[1]):
        total = 0.0
        squares = 0.0
        first = np.float64(numbers[rows[0], column])
        for row in rows:
            value = numbers[row, column] - first
            total += value
            squares += value * value
        spread = (squares - total * total / len(rows)) / len(rows)
        if spread > most:
            best = column
            most = spread
    for column in range(slots.shape[1]):
        _count(slots, column, rows, counts)
        alike = 0.0
        for slot in range(SLOTS):
            alike += np.float64(counts[slot]) * counts[slot]
        spread = 0.5 * weight[column] * (1 - alike / (np.float64(len(rows)) * len(rows)))
        if spread > most:
            best = numbers.shape[1] + column
            most = spread
    return best


@inlined
def _rank(size: int, counts: Array, rank: Array) -> None:
    """Write minus the number of rows in less frequent slots to ``rank``, so that the most frequent
    slot has the lowest.

    Sets the counts of the ``size`` rows to 0.
    """
    left = size
    while left > 0:
        slot = 0
        for candidate in range(1, SLOTS):
            if counts[candidate] > counts[slot]:
                slot = candidate
        left -= counts[slot]
        counts[slot] = 0
        rank[slot] = -left


@inlined
def _middle(values: Array) -> float:
    """Return the smallest value of the right half, cutting between distinct values as near to the
    middle as possible.

    Reorders ``values`` (Hoare 1961, algorithm 65).
    """
    half = len(values) // 2
    if half > LEAF:
        half -= half % LEAF  # fill leaves completely
    low = 0
    high = len(values) - 1
    while low < high:
        pivot = values[half]
        left = low
        right = high
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
    middle = values[half]
    following = np.inf
    below = 0
    beyond = 0
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
    numbers: Array,
    slots: Array,
    weight: Array,
    rows: Array,
    counts: Array,
    rank: Array,
    buffers: Array,
    right_rows: Array,
) -> int:
    """Move the rows of one half to the front, in place, and return their number."""
    column = _widest(numbers, slots, weight, rows, counts)
    if column < 0:  # several codes share a slot
        return len(rows) // 2
    values = buffers[0, : len(rows)]
    reordered = buffers[1, : len(rows)]
    if column < numbers.shape[1]:
        for i in range(len(rows)):
            values[i] = numbers[rows[i], column]
    else:
        _count(slots, column - numbers.shape[1], rows, counts)
        _rank(len(rows), counts, rank)
        for i in range(len(rows)):
            values[i] = rank[slots[rows[i], column - numbers.shape[1]]]
    for i in range(len(rows)):
        reordered[i] = values[i]
    middle = _middle(reordered)
    left = 0
    right = 0
    for i in range(len(rows)):
        if values[i] < middle:
            rows[left] = rows[i]
            left += 1
        else:
            right_rows[right] = rows[i]
            right += 1
    for i in range(right):
        rows[left + i] = right_rows[i]
    return left


@inlined
def _groups(rows: int) -> int:
    """Return the number of children at which a node of ``rows`` rows stops splitting.

    It is 2 or 4 if the nodes above the leaves then get WIDE leaves.
    """
    halvings = 0
    while rows > LEAF << halvings:
        halvings += 1
    return WIDE if halvings <= 4 or halvings % 4 in (0, 3) else 1 << halvings % 4


def grow(numbers: Array, slots: Array, weight: Array) -> tuple[Array, Array, Array, Array, int]:
    """Build the tree of distinct rows.

    Args:
        numbers: Numbers clipped at 1e15, float32 (n, p), n >= 1.
        slots: Codes modulo SLOTS, uint8 (n, q).
        weight: Weight of each categorical column in the choice of splits, float64 (q,).

    Returns:
        ``child`` of :class:`Tree`; the range of positions [start, end) of each child, int32
        (nodes, WIDE, 2), and of each leaf, int32 (leaves, 2); the row at each position, int32 (n,);
        and the depth of the tree, at least 1.
    """
    n = len(numbers)
    # a node has two inner children, or 15 leaves, or more than LEAF rows in leaves
    capacity = n // 10 + 2
    child = np.full((capacity, WIDE), ABSENT, np.int32)
    depth = np.ones(capacity, np.int32)
    ranges = np.zeros((capacity, WIDE, 2), np.int32)
    leaves = np.zeros((n, 2), np.int32)
    order = np.arange(n, dtype=np.int32)
    counts = np.zeros(SLOTS, np.int64)
    rank = np.zeros(SLOTS)
    buffers = np.empty((2, n))
    right_rows = np.empty(n, np.int32)
    nodes, leaf = _grow(
        numbers,
        slots,
        weight,
        child,
        depth,
        ranges,
        leaves,
        order,
        counts,
        rank,
        buffers,
        right_rows,
    )
    return child[:nodes].copy(), ranges[:nodes], leaves[:leaf], order, int(depth[nodes - 1])


@compiled
def _grow(
    numbers: Array,
    slots: Array,
    weight: Array,
    child: Array,
    depth: Array,
    ranges: Array,
    leaves: Array,
    order: Array,
    counts: Array,
    rank: Array,
    buffers: Array,
    right_rows: Array,
) -> tuple[int, int]:
    """Fill the arrays of :func:`grow` and return the numbers of nodes and leaves."""
    ranges[0, 0, 1] = len(numbers)
    nodes = 1
    leaf = 0
    node = 0
    while node < nodes:  # a pending node stores its range in the slot of its first child
        groups = ranges[node]
        count = 1
        most = _groups(groups[0, 1] - groups[0, 0])
        while count < WIDE:  # split the largest group
            largest = 0
            inner = 0
            for group in range(count):
                inner += groups[group, 1] - groups[group, 0] > LEAF
                if groups[group, 1] - groups[group, 0] > groups[largest, 1] - groups[largest, 0]:
                    largest = group
            low = groups[largest, 0]
            high = groups[largest, 1]
            if inner == 0 or (count >= most and inner > 1):
                break
            cut = _split(numbers, slots, weight, order[low:high], counts, rank, buffers, right_rows)
            groups[largest, 1] = groups[count, 0] = low + cut
            groups[count, 1] = high
            count += 1
        for group in range(count):
            start = groups[group, 0]
            stop = groups[group, 1]
            if stop - start <= LEAF:
                leaves[leaf, 0] = start
                leaves[leaf, 1] = stop
                leaf += 1
                child[node, group] = -leaf
            else:
                ranges[nodes, 0, 0] = start
                ranges[nodes, 0, 1] = stop
                child[node, group] = nodes
                depth[nodes] = depth[node] + 1
                nodes += 1
        node += 1
    return nodes, leaf


def boxes(
    numbers: Array, slots: Array, bases: Array, bits: int, ranges: Array, order: Array
) -> tuple[Array, ...]:
    """Compute the bounds and categories of the children.

    Args:
        numbers: Numbers clipped at 1e15, float32 (n, p).
        slots: Codes modulo SLOTS, uint8 (n, q).
        bases: First slot of each categorical column, int64 (q,). Slot s of column j has index
            ``bases[j] + s``.
        bits: Number of slots of all columns together.
        ranges: Range of positions of each child, int32 (nodes, WIDE, 2), see :func:`grow`.
        order: Row at each position, int32 (n,).

    Returns:
        ``least``, ``low``, ``high`` and ``held`` of :class:`Tree`. An absent child has ``low`` inf,
        ``high`` -inf and no category.
    """
    nodes = len(ranges)
    p = numbers.shape[1]
    low = np.full((nodes, p, WIDE), np.inf, np.float32)
    high = np.full((nodes, p, WIDE), -np.inf, np.float32)
    least = np.full((nodes, WIDE), ABSENT, np.int32)
    categories = np.zeros((nodes, bits), np.uint16)
    _fill_boxes(numbers, slots, bases, ranges, order, least, low, high, categories)
    return least, low, high, categories


@compiled
def _fill_boxes(
    numbers: Array,
    slots: Array,
    bases: Array,
    ranges: Array,
    order: Array,
    least: Array,
    low: Array,
    high: Array,
    categories: Array,
) -> None:
    for node in range(len(ranges)):
        for group in range(WIDE):
            for position in range(ranges[node, group, 0], ranges[node, group, 1]):
                row = order[position]
                least[node, group] = min(least[node, group], row)
                for column in range(numbers.shape[1]):
                    value = numbers[row, column]
                    low[node, column, group] = min(low[node, column, group], value)
                    high[node, column, group] = max(high[node, column, group], value)
                for column in range(slots.shape[1]):
                    categories[node, bases[column] + slots[row, column]] |= np.uint16(1 << group)


def by_leaf(table: Array, leaves: Array, order: Array) -> Array:
    """Rearrange a table by leaf, column by column.

    Args:
        table: Cells of any dtype, shape (n, columns).
        leaves: Range of positions of each leaf, int32 (leaves, 2), see :func:`grow`.
        order: Row at each position, int32 (n,).

    Returns:
        The cells in the same dtype, shape (leaves, columns, LEAF). 0 where a leaf has fewer rows.
    """
    positions = leaves[:, :1] + np.arange(LEAF)
    is_filled = positions < leaves[:, 1:]
    rows = order[np.where(is_filled, positions, 0)]
    lanes = mapped_empty((len(leaves), table.shape[1], LEAF), table.dtype)
    for column in range(table.shape[1]):
        lanes[:, column] = np.where(is_filled, table[rows, column], table.dtype.type(0))
    return lanes


_TINY = 1e-37  # squares of smaller numbers may underflow, or have a larger relative error


@inlined
def _distance(codes: Array, numbers: Array, row_codes: Array, row_numbers: Array) -> float:
    total = 0.0
    for column in range(len(codes)):
        total += codes[column] != row_codes[column]
    for column in range(len(numbers)):
        away = np.float64(row_numbers[column]) - np.float64(numbers[column])
        total += away * away
    return total


@compiled
def _keep(
    squared: Array, rows: Array, positions: Array, distance: float, row: int, position: int
) -> None:
    """Insert a row into the nearest, which are ordered by distance, then row; ignore a row that is
    already included.
    """
    last = len(squared) - 1
    if distance > squared[last] or (distance == squared[last] and row >= rows[last]):
        return
    slot = last
    while slot > 0 and (
        squared[slot - 1] > distance or (squared[slot - 1] == distance and rows[slot - 1] > row)
    ):
        slot -= 1
    if slot > 0 and rows[slot - 1] == row:
        return
    for i in range(last, slot, -1):
        squared[i] = squared[i - 1]
        rows[i] = rows[i - 1]
        positions[i] = positions[i - 1]
    squared[slot] = distance
    rows[slot] = row
    positions[slot] = position


@inlined
def _push(
    tree: Tree, node: int, mask: np.uint16, bound: Array, stack: Array, reach: Array, top: int
) -> int:
    """Push the children in ``mask`` on the stack int32 (room, 2), nearest on top, and return its
    new end.
    """
    base = top
    while mask:
        group = lowest_bit(mask)
        mask &= mask - np.uint16(1)
        child = tree.child[node, group]
        away = bound[group]
        if child == ABSENT:  # absent children pass the filter while the limit is infinite
            continue
        slot = top
        while slot > base and reach[slot - 1] < away:
            stack[slot, 0] = stack[slot - 1, 0]
            stack[slot, 1] = stack[slot - 1, 1]
            reach[slot] = reach[slot - 1]
            slot -= 1
        stack[slot, 0] = child
        stack[slot, 1] = tree.least[node, group]
        reach[slot] = away
        top += 1
    return top


def search(
    tree: Tree, numbers: Array, codes: Array, near: Array, slots: Array, bases: Array, k: int
) -> tuple[Array, Array, Array]:
    """Find the k nearest rows of each query.

    Args:
        tree: Tree of n rows.
        numbers: Numbers of the queries, float32 (m, p).
        codes: Codes of the queries, int32 (m, q).
        near: ``numbers`` clipped at 1e15, float32 (m, p).
        slots: ``codes`` modulo SLOTS, uint8 (m, q).
        bases: First slot of each categorical column, int64 (q,), see :func:`boxes`.
        k: Number of neighbors, from 1 to n.

    Returns:
        Squared distances, ascending, float64 (m, k); the rows, int32 (m, k), ties ordered by row;
        and the number of visited nodes and leaves, int64 (2,).
    """
    m = len(numbers)
    squared = np.full((m, k), np.inf)
    neighbors = np.full((m, k), ABSENT, np.int32)
    work = np.zeros(2, np.int64)
    stack, reach, bound, bit = _scratch(tree, len(bases))
    seen = np.full((2, k), -1)
    _search(
        tree,
        numbers,
        codes,
        near,
        slots,
        bases,
        squared,
        neighbors,
        work,
        stack,
        reach,
        bound,
        bit,
        seen,
    )
    return squared, neighbors, work


def _scratch(tree: Tree, q: int) -> tuple[Array, Array, Array, Array]:
    """Allocate pending nodes with their smallest rows, their bounds, bounds of one node's children,
    and query slots.
    """
    stack = np.empty((tree.room, 2), np.int32)
    reach = np.empty(tree.room, np.float32)
    return stack, reach, np.empty(WIDE, np.float32), np.empty(q, np.uint32)


@compiled
def _search(
    tree: Tree,
    numbers: Array,
    codes: Array,
    near: Array,
    slots: Array,
    bases: Array,
    squared: Array,
    neighbors: Array,
    work: Array,
    stack: Array,
    reach: Array,
    bound: Array,
    bit: Array,
    seen: Array,
) -> None:
    k = squared.shape[1]
    margin = (numbers.shape[1] + 8) * 2.0**-23
    shrink = np.float32(1 - margin)
    tiny = np.float32(_TINY)
    positions = seen[0]
    before = seen[1]
    for q in range(len(numbers)):
        best = squared[q]
        rows = neighbors[q]
        for column in range(len(bases)):
            bit[column] = bases[column] + slots[q, column]
        for slot in range(k):
            before[slot] = positions[slot]
            positions[slot] = -1
        # start with the neighbors of the previous query, because consecutive queries are similar
        for position in before:
            if position >= 0:
                distance = _distance(
                    codes[q], numbers[q], tree.codes[position], tree.numbers[position]
                )
                _keep(best, rows, positions, distance, tree.order[position], position)
        stack[0, 0] = 0
        stack[0, 1] = 0
        reach[0] = 0.0
        top = 1  # the root
        while top > 0:
            top -= 1
            node = stack[top, 0]
            worst = best[k - 1]
            if reach[top] > worst or (reach[top] == worst and stack[top, 1] >= rows[k - 1]):
                continue
            limit = np.float32(worst * (1 + margin) + _TINY)
            if node >= 0:
                inside = children_within(
                    tree.low, tree.high, tree.held, node, near[q], bit, shrink, tiny, limit, bound
                )
                top = _push(tree, node, inside, bound, stack, reach, top)
                work[0] += 1
                continue
            leaf = -1 - node
            mask = (
                rows_within(tree.lanes, tree.slots, leaf, near[q], slots[q], limit)
                & tree.filled[leaf]
            )
            while mask:
                position = tree.leaves[leaf] + lowest_bit(mask)
                mask &= mask - np.uint32(1)
                distance = _distance(
                    codes[q], numbers[q], tree.codes[position], tree.numbers[position]
                )
                _keep(best, rows, positions, distance, tree.order[position], position)
            work[1] += 1


@compiled
def direct(
    queries: Array, query_codes: Array, points: Array, point_codes: Array, rows: Array, out: Array
) -> None:
    """Compute the squared distances of queries to selected points.

    Args:
        queries: Numbers of the queries, float32 (m, p).
        query_codes: Codes of the queries, int32 (m, q).
        points: Numbers of the points, float32 (n, p).
        point_codes: Codes of the points, int32 (n, q).
        rows: Positions of points for each query, int64 (m, c).
        out: Receives the squared distances, float64 (m, c).
    """
    for q in range(len(rows)):
        for i in range(rows.shape[1]):
            row = rows[q, i]
            out[q, i] = _distance(query_codes[q], queries[q], point_codes[row], points[row])


def masses(tree: Tree, weights: Array) -> Array:
    """Sum the weights of the rows below each child.

    Args:
        tree: Tree of n rows.
        weights: Weight of the row at each position of the tree, float64 (n,).

    Returns:
        Weights, float64 (nodes, WIDE). 0 for absent children.
    """
    out = np.zeros(tree.child.shape)
    _add_up(tree.child, tree.filled, tree.leaves, weights, out)
    return out


@compiled
def _add_up(children: Array, filled: Array, leaves: Array, weights: Array, out: Array) -> None:
    for node in range(len(out) - 1, -1, -1):  # children are stored after their parents
        for group in range(WIDE):
            child = children[node, group]
            if child < 0:
                mask = filled[-1 - child]
                while mask:
                    out[node, group] += weights[leaves[-1 - child] + lowest_bit(mask)]
                    mask &= mask - np.uint32(1)
            elif child != ABSENT:
                for below in out[child]:
                    out[node, group] += below


def within(
    tree: Tree,
    mixed: Array,
    mass: Array,
    weights: Array,
    numbers: Array,
    codes: Array,
    near: Array,
    slots: Array,
    bases: Array,
    most: float,
    counts_inside: bool,
    total: int,
) -> tuple[Array, Array, Array, Array]:
    """Find the rows at a squared distance of at most ``most`` from each query.

    Args:
        tree: Tree of n rows.
        mixed: Children that may have several categories, uint16 (nodes, q), see
            :func:`.children_inside`.
        mass: Weight of each child, float64 (nodes, WIDE), see :func:`masses`.
        weights: Weight of the row at each position of the tree, float64 (n,).
        numbers: Numbers of the queries, float32 (m, p).
        codes: Codes of the queries, int32 (m, q).
        near: ``numbers`` clipped at 1e15, float32 (m, p).
        slots: ``codes`` modulo SLOTS, uint8 (m, q).
        bases: First slot of each categorical column, int64 (q,), see :func:`boxes`.
        most: Maximum squared distance.
        counts_inside: True counts a child that is entirely within reach without visiting its rows.
            False is required for pairs, and where numbers may have been clipped at 1e15.
        total: Maximum number of pairs to return.

    Returns:
        The weight per query, float64 (m,); and the first ``total`` pairs: queries and rows, int64
        (total,), and squared distances, float64 (total,). Pairs are ordered by query, not by row.
        If there are fewer than ``total``, the remaining elements are undefined.
    """
    out = np.zeros(len(numbers))
    pairs = np.empty((2, total), np.int64)
    squared = np.empty(total)
    stack = np.empty(tree.room, np.int32)
    _, _, bound, bit = _scratch(tree, len(bases))
    query = (numbers, codes, near, slots, bases)
    _within(
        tree,
        mixed,
        mass,
        weights,
        *query,
        most,
        counts_inside,
        out,
        pairs,
        squared,
        stack,
        bound,
        bit,
    )
    return out, pairs[0], pairs[1], squared


@compiled
def _within(
    tree: Tree,
    mixed: Array,
    mass: Array,
    weights: Array,
    numbers: Array,
    codes: Array,
    near: Array,
    slots: Array,
    bases: Array,
    most: float,
    counts_inside: bool,
    out: Array,
    pairs: Array,
    squared: Array,
    stack: Array,
    bound: Array,
    bit: Array,
) -> None:
    margin = (numbers.shape[1] + 8) * 2.0**-23
    n_pairs = 0
    total = len(squared)
    shrink = np.float32(1 - margin)
    grow = np.float32(1 + margin)
    tiny = np.float32(_TINY)
    limit = np.float32(most * (1 + margin) + _TINY)
    surely = np.float32(most * (1 - margin) - _TINY)
    for q in range(len(numbers)):
        for column in range(len(bases)):
            bit[column] = bases[column] + slots[q, column]
        stack[0] = 0
        top = 1  # the root
        while top > 0:
            top -= 1
            node = stack[top]
            if node < 0:
                leaf = -1 - node
                mask = (
                    rows_within(tree.lanes, tree.slots, leaf, near[q], slots[q], limit)
                    & tree.filled[leaf]
                )
                while mask:
                    position = tree.leaves[leaf] + lowest_bit(mask)
                    mask &= mask - np.uint32(1)
                    distance = _distance(
                        codes[q], numbers[q], tree.codes[position], tree.numbers[position]
                    )
                    if distance <= most:
                        out[q] += weights[position]
                        if n_pairs < total:
                            pairs[0, n_pairs] = q
                            pairs[1, n_pairs] = tree.order[position]
                            squared[n_pairs] = distance
                            n_pairs += 1
                continue
            reached = children_within(
                tree.low, tree.high, tree.held, node, near[q], bit, shrink, tiny, limit, bound
            )
            if counts_inside:
                inside = children_inside(
                    tree.low, tree.high, tree.held, mixed, node, near[q], bit, grow, surely
                )
                inside &= reached
                reached &= ~inside
                while inside:
                    out[q] += mass[node, lowest_bit(inside)]
                    inside &= inside - np.uint16(1)
            while reached:
                group = lowest_bit(reached)
                reached &= reached - np.uint16(1)
                if tree.child[node, group] != ABSENT:
                    stack[top] = tree.child[node, group]
                    top += 1
