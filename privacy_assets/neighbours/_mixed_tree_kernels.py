"""Compiled search of the mixed tree (see :mod:`privacy_assets.neighbours.mixed_tree`). Imports numba.

A squared distance is the number of mismatching codes, to which the squared differences of the numbers are added column
by column in float64. Bounds, and a first look at the rows of a leaf, take float32 and numbers of at most 1e15; each of
the p + 5 roundings moves a sum by at most 6e-8 of it. Twice that is granted, and ``_TINY`` for what float32 cannot
hold. What is left is computed in float64, so that no result depends on float32.
"""

from __future__ import annotations

import numpy as np

from privacy_assets.compute.compiling import compiled, inlined
from privacy_assets.neighbours._mixed_tree_growth import ABSENT, Tree
from privacy_assets.neighbours._vectors import WIDE, children_inside, children_within, lowest_bit, rows_within

Array = np.ndarray
_TINY = 1e-37  # squares of smaller numbers may vanish, or be rounded by more than their share


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
def _keep(squared: Array, found: Array, places: Array, distance: float, row: int, place: int) -> None:
    """Insert a row among the nearest, which are ordered by distance, then row; one that is there stays."""
    last = len(squared) - 1
    if distance > squared[last] or (distance == squared[last] and row >= found[last]):
        return
    slot = last
    while slot > 0 and (squared[slot - 1] > distance or (squared[slot - 1] == distance and found[slot - 1] > row)):
        slot -= 1
    if slot > 0 and found[slot - 1] == row:
        return
    for other in range(last, slot, -1):
        squared[other], found[other], places[other] = squared[other - 1], found[other - 1], places[other - 1]
    squared[slot], found[slot], places[slot] = distance, row, place


@inlined
def _push(tree: Tree, node: int, mask: np.uint16, bound: Array, stack: Array, reach: Array, top: int) -> int:
    """Put the children of the mask on the stack int32 (room, 2), the nearest on top; returns its end."""
    base = top
    while mask:
        group = lowest_bit(mask)
        mask &= mask - np.uint16(1)
        child, away = tree.child[node, group], bound[group]
        if child == ABSENT:  # within reach as long as nothing is known
            continue
        slot = top
        while slot > base and reach[slot - 1] < away:
            stack[slot, 0], stack[slot, 1], reach[slot] = stack[slot - 1, 0], stack[slot - 1, 1], reach[slot - 1]
            slot -= 1
        stack[slot, 0], stack[slot, 1], reach[slot] = child, tree.least[node, group], away
        top += 1
    return top


def search(
    tree: Tree, numbers: Array, codes: Array, near: Array, slots: Array, bases: Array, k: int
) -> tuple[Array, Array, Array]:
    """The k nearest rows of each query: squared distances float64 (m, k), ties by row, and rows int32 (m, k).

    ``near`` are ``numbers`` within 1e15, ``slots`` the ``codes`` modulo SLOTS; slot ``bases[j] + slot`` is that of
    column j. Third: int64 (2,), nodes and leaves looked at.
    """
    m = len(numbers)
    squared, found, work = np.full((m, k), np.inf), np.full((m, k), ABSENT, np.int32), np.zeros(2, np.int64)
    stack, reach, bound, bit = _scratch(tree, len(bases))
    seen = np.full((2, k), -1)
    _search(tree, numbers, codes, near, slots, bases, squared, found, work, stack, reach, bound, bit, seen)
    return squared, found, work


def _scratch(tree: Tree, q: int) -> tuple[Array, Array, Array, Array]:
    """Nodes that wait and their smallest rows, their bounds, those of the children of one, and the query's slots."""
    stack, reach = np.empty((tree.room, 2), np.int32), np.empty(tree.room, np.float32)
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
    found: Array,
    work: Array,
    stack: Array,
    reach: Array,
    bound: Array,
    bit: Array,
    seen: Array,
) -> None:
    k, margin = squared.shape[1], (numbers.shape[1] + 8) * 2.0**-23
    shrink, tiny = np.float32(1 - margin), np.float32(_TINY)
    places, before = seen[0], seen[1]
    for q in range(len(numbers)):
        best, rows = squared[q], found[q]
        for column in range(len(bases)):
            bit[column] = bases[column] + slots[q, column]
        for slot in range(k):
            before[slot], places[slot] = places[slot], -1
        for place in before:  # what the query before found: like queries follow each other
            if place >= 0:
                distance = _distance(codes[q], numbers[q], tree.codes[place], tree.numbers[place])
                _keep(best, rows, places, distance, tree.order[place], place)
        stack[0, 0], stack[0, 1], reach[0], top = 0, 0, 0.0, 1  # the root
        while top > 0:
            top -= 1
            node, worst = stack[top, 0], best[k - 1]
            if reach[top] > worst or (reach[top] == worst and stack[top, 1] >= rows[k - 1]):
                continue
            limit = np.float32(worst * (1 + margin) + _TINY)
            if node >= 0:
                inside = children_within(tree.low, tree.high, tree.held, node, near[q], bit, shrink, tiny, limit, bound)
                top = _push(tree, node, inside, bound, stack, reach, top)
                work[0] += 1
                continue
            leaf = -1 - node
            mask = rows_within(tree.lanes, tree.slots, leaf, near[q], slots[q], limit) & tree.filled[leaf]
            while mask:
                place = tree.leaves[leaf] + lowest_bit(mask)
                mask &= mask - np.uint32(1)
                distance = _distance(codes[q], numbers[q], tree.codes[place], tree.numbers[place])
                _keep(best, rows, places, distance, tree.order[place], place)
            work[1] += 1


@compiled
def direct(queries: Array, query_codes: Array, points: Array, point_codes: Array, found: Array, out: Array) -> None:
    """Squared distances ``out`` float64 (m, c) of each query to the points at ``found`` int64 (m, c), as in search."""
    for q in range(len(found)):
        for place in range(found.shape[1]):
            row = found[q, place]
            out[q, place] = _distance(query_codes[q], queries[q], point_codes[row], points[row])


def masses(tree: Tree, weights: Array) -> Array:
    """Weight float64 (nodes, WIDE) of the rows below each child; ``weights`` (n,) in the order of the places."""
    out = np.zeros(tree.child.shape)
    _add_up(tree.child, tree.filled, tree.leaves, weights, out)
    return out


@compiled
def _add_up(children: Array, filled: Array, leaves: Array, weights: Array, out: Array) -> None:
    for node in range(len(out) - 1, -1, -1):  # children stand behind their parents
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
    whole: bool,
    total: int,
) -> tuple[Array, Array, Array, Array]:
    """Weight float64 (m,) of the rows at a squared distance of at most ``most`` from each query, and ``total`` pairs.

    Of the pairs of a query and a row within reach: queries and rows int64 (total,), and squared distances float64;
    queries in order, rows of a query in any. ``mixed`` as in ``children_inside``, ``mass`` from :func:`masses`, the
    others as in :func:`search`. Where ``whole``, a child within reach as a whole is not looked into: not for pairs, nor
    where its box may be cut off at 1e15.
    """
    out, pairs, squared = np.zeros(len(numbers)), np.empty((2, total), np.int64), np.empty(total)
    stack, (_, _, bound, bit) = np.empty(tree.room, np.int32), _scratch(tree, len(bases))
    query = (numbers, codes, near, slots, bases)
    _within(tree, mixed, mass, weights, *query, most, whole, out, pairs, squared, stack, bound, bit)
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
    whole: bool,
    out: Array,
    pairs: Array,
    squared: Array,
    stack: Array,
    bound: Array,
    bit: Array,
) -> None:
    margin, found, total = (numbers.shape[1] + 8) * 2.0**-23, 0, len(squared)
    shrink, grow, tiny = np.float32(1 - margin), np.float32(1 + margin), np.float32(_TINY)
    limit, surely = np.float32(most * (1 + margin) + _TINY), np.float32(most * (1 - margin) - _TINY)
    for q in range(len(numbers)):
        for column in range(len(bases)):
            bit[column] = bases[column] + slots[q, column]
        stack[0], top = 0, 1  # the root
        while top > 0:
            top -= 1
            node = stack[top]
            if node < 0:
                leaf = -1 - node
                mask = rows_within(tree.lanes, tree.slots, leaf, near[q], slots[q], limit) & tree.filled[leaf]
                while mask:
                    place = tree.leaves[leaf] + lowest_bit(mask)
                    mask &= mask - np.uint32(1)
                    distance = _distance(codes[q], numbers[q], tree.codes[place], tree.numbers[place])
                    if distance <= most:
                        out[q] += weights[place]
                        if found < total:
                            pairs[0, found], pairs[1, found], squared[found] = q, tree.order[place], distance
                            found += 1
                continue
            reached = children_within(tree.low, tree.high, tree.held, node, near[q], bit, shrink, tiny, limit, bound)
            if whole:
                inside = children_inside(tree.low, tree.high, tree.held, mixed, node, near[q], bit, grow, surely)
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
