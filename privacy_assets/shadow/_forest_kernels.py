"""Compiled trees behind :mod:`privacy_assets.shadow.forest`. Imports numba: import it where it is used.

A feature is a row of ``codes`` uint8 (features, sets). Sums hold two numbers in one int64: how often sets were drawn,
and, times 2^32, how often sets with the target were.
"""

from __future__ import annotations

import numpy as np

from privacy_assets.compute.compiling import compiled

Array = np.ndarray

_LOW = 0xFFFFFFFF


@compiled
def _purity(total: int) -> float:
    """Sum of squared class sizes over the size: the larger, the purer (Gini)."""
    size, having = float(total & _LOW), float(total >> 32)
    return (having * having + (size - having) * (size - having)) / size


@compiled
def _best_cut(code: Array, rows: Array, sums: Array, total: int, bins: Array) -> tuple[float, int]:
    """Gain and code of the best cut ``code <= cut`` of these rows; gain -1 when all their codes are equal.

    ``bins`` int64 (512,) comes in and goes out as zeros: two histograms, so that a row need not wait for the one before
    it. The cut is halfway between the codes that it parts.
    """
    low, high, odd = 255, 0, len(rows) & 1
    if odd:
        at = code[rows[0]]
        bins[at] += sums[0]
        low, high = at, at
    for place in range(odd, len(rows), 2):
        one, two = code[rows[place]], code[rows[place + 1]]
        bins[one] += sums[place]
        bins[256 + two] += sums[place + 1]
        low, high = min(low, one, two), max(high, one, two)
    best, cut, left, last = -1.0, 0, 0, -1
    for at in range(low, high + 1):
        here = bins[at] + bins[256 + at]
        if here == 0:
            continue
        if left:
            gain = _purity(left) + _purity(total - left)
            if gain > best:
                best, cut = gain, (last + at) // 2
        left += here
        last = at
        bins[at] = 0
        bins[256 + at] = 0
    return best, cut


@compiled
def _parted(rows: Array, sums: Array, code: Array, cut: int) -> int:
    """Bring the rows with ``code <= cut``, and their sums, to the front; how many they are."""
    front, back = 0, len(rows) - 1
    while front <= back:
        if code[rows[front]] <= cut:
            front += 1
        else:
            rows[front], rows[back] = rows[back], rows[front]
            sums[front], sums[back] = sums[back], sums[front]
            back -= 1
    return front


@compiled
def grow(
    codes: Array, member: Array, drawn: Array, usable: Array, depth: int, tries: int, rng: np.random.Generator
) -> tuple[Array, Array, Array, Array]:
    """One tree on the sets that were ``drawn`` (sets,) times, ``member`` bool (sets,) being their labels.

    Each node looks at ``tries`` features of ``usable``, drawn without repeats, and at more only until one varies; it
    is a leaf when it is pure or ``depth`` levels down. Returns feature (-1: leaf), cut, left child (the right one is
    next) and share of members, by node.
    """
    rows = np.flatnonzero(drawn).astype(np.uint32)
    sums = drawn[rows] + ((drawn[rows] * member[rows]) << 32)
    most = min(2 * len(rows), 2 << depth)
    feature, cuts, child, share = np.full(most, -1), np.zeros(most, np.int64), np.zeros(most, np.int64), np.zeros(most)
    start, end, level = np.zeros(most, np.int64), np.zeros(most, np.int64), np.zeros(most, np.int64)
    end[0] = len(rows)
    deck = usable.copy()
    bins = np.zeros(512, np.int64)
    nodes, node = 1, 0
    while node < nodes:
        here, parts = rows[start[node] : end[node]], sums[start[node] : end[node]]
        total = parts.sum()
        size, having = total & _LOW, total >> 32
        share[node] = having / size
        if having > 0 and having < size and level[node] < depth:
            best, looked = -1.0, 0
            while looked < len(deck) and (looked < tries or best < 0):
                other = rng.integers(looked, len(deck))
                deck[looked], deck[other] = deck[other], deck[looked]
                gain, cut = _best_cut(codes[deck[looked]], here, parts, total, bins)
                if gain > best:
                    best, feature[node], cuts[node] = gain, deck[looked], cut
                looked += 1
            if best >= 0:
                middle = start[node] + _parted(here, parts, codes[feature[node]], cuts[node])
                child[node] = nodes
                for place, first, last in ((nodes, start[node], middle), (nodes + 1, middle, end[node])):
                    start[place], end[place], level[place] = first, last, level[node] + 1
                nodes += 2
        node += 1
    return feature[:nodes], cuts[:nodes], child[:nodes], share[:nodes]


@compiled
def add_shares(
    codes: Array, feature: Array, cuts: Array, child: Array, share: Array, wanted: Array, scores: Array, votes: Array
) -> None:
    """Add the share of the leaf of every set in ``wanted`` to its score, and one to its votes."""
    for column in wanted:
        node = 0
        while feature[node] >= 0:
            right = codes[feature[node], column] > cuts[node]
            node = child[node] + right
        scores[column] += share[node]
        votes[column] += 1
