"""Compiled parts of the sequential trees: growing, and drawing rows. See :class:`trees.Tree` for the form of a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from privacy_assets.compute.compiling import compiled

if TYPE_CHECKING:
    from privacy_assets.generators.trees import Tree

_SAME = 1e-9  # of the largest gain that a node allows: splits that differ by less are equal but for rounding


@compiled
def count_levels(
    codes: np.ndarray,
    goal: np.ndarray,
    kinds: int,
    smallest: int,
    group: np.ndarray,
    weights: np.ndarray,
    shares: np.ndarray,
) -> int:
    """Group int64 (levels,) of each level, 0 for those with fewer than ``smallest``; returns how many there are.

    ``group`` comes in with the rows of each level, or the people where these are counted. ``weights`` float64 (groups,)
    become their rows, and ``shares`` float64 (groups, width) by how much the mean goal of each, or the share of each
    class where there are more than two, is above that of all. Both come in as zeros.
    """
    groups = 1
    for level in range(len(group)):
        if group[level] >= smallest:
            group[level] = groups
            groups += 1
        else:
            group[level] = 0
    for i in range(len(codes)):
        own = group[codes[i]]
        weights[own] += 1
        if kinds > 2:
            shares[own, int(goal[i])] += 1
        else:
            shares[own, 0] += goal[i]
    for kind in range(shares.shape[1]):
        mean = 0.0
        for own in range(groups):
            mean += shares[own, kind] / len(codes)
        for own in range(groups):
            shares[own, kind] = shares[own, kind] / weights[own] - mean if weights[own] > 0 else 0.0
    return groups


def grow(
    places: np.ndarray,
    spans: np.ndarray,
    goal: np.ndarray,
    kinds: int,
    smallest: int,
    rng: np.random.Generator,
    people: np.ndarray | None = None,
) -> tuple[np.ndarray, ...]:
    """Grow a CART on features that stand as ``places`` int32 (f, n), 0..spans - 1; ``spans`` int64 (f,).

    ``goal`` float64 (n,) holds numbers (squared error; with ``kinds`` 0, or 2 for two classes 0 and 1, where Gini gives
    the same splits) or, with more ``kinds``, the class of each row (Gini). Every leaf keeps at least ``smallest`` rows,
    or all when there are fewer; with ``people`` int64 (n,), codes below n of whose each row is, rows of as many people.
    A node is split as long as a split is possible and its goal is not constant, as in
    scikit-learn. ``rng`` decides between equal splits of different features; of one feature the lowest is taken.

    Returns (feature, low, high, right, start, rows) of the nodes, each before those below it, the left one first: rows
    up to the place ``low`` go left, from the next place that the node knows, ``high``, on right; leaves have feature
    -1. The rows of leaf v are rows[start[v] : start[v + 1]].
    """
    f, n = places.shape
    nodes = np.full((2 * max(n // smallest, 1) + 1, 5), -1)
    lists = np.empty((f + 1, n), dtype=np.uint32)
    lists[f] = np.arange(n)
    stack, side, spare = np.empty((len(nodes), 4), dtype=np.int64), np.empty(n, np.uint8), np.empty(n, np.uint32)
    live, inverse, counts = np.arange(f), 1 / np.maximum(np.arange(n + 1), 1), np.zeros((2, max(kinds, 1)), np.int64)
    ends = np.zeros(int(spans.max(initial=0)) + 1, dtype=np.int64)
    whose = np.zeros(0, np.int64) if people is None else people
    work = (nodes, stack, side, spare, live, inverse, counts, ends, np.zeros(len(whose), np.int64))
    found = _grow(places, spans, goal, kinds, smallest, rng, whose, lists, *work)
    nodes[found, 4] = n
    return (*nodes[:found, :4].T, nodes[: found + 1, 4], lists[f])


@compiled
def _grow(
    places: np.ndarray,
    spans: np.ndarray,
    goal: np.ndarray,
    kinds: int,
    smallest: int,
    rng: np.random.Generator,
    whose: np.ndarray,
    lists: np.ndarray,
    nodes: np.ndarray,
    stack: np.ndarray,
    side: np.ndarray,
    spare: np.ndarray,
    live: np.ndarray,
    inverse: np.ndarray,
    counts: np.ndarray,
    ends: np.ndarray,
    met: np.ndarray,
) -> int:
    """Fill ``nodes`` int64 (nodes, 5) by feature, low, high, right and start, and return their number.

    ``lists`` uint32 (f + 1, n): the rows of each node next to each other, sorted by each feature, and as they came.
    ``live`` int64 (f,): the features; those that are constant in a node, and so below it, come first. ``whose`` has the
    people of :func:`grow`, or nothing where rows are counted, and ``met`` int64 as many zeros.
    """
    f, n = places.shape
    walks = 0
    for j in range(f):
        place_of, row_of = places[j], lists[j]
        for place in range(spans[j] + 1):
            ends[place] = 0
        for i in range(n):
            ends[place_of[i] + 1] += 1
        for place in range(spans[j]):
            ends[place + 1] += ends[place]
        for i in range(n):
            row_of[ends[place_of[i]]] = i
            ends[place_of[i]] += 1
    total, left = counts[0], counts[1]
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = 0, n, -1, 0  # first row, end, parent of a right node, constant
    open_, found = 1, 0
    while open_ > 0:
        open_ -= 1
        begin, end, parent, constant = stack[open_, 0], stack[open_, 1], stack[open_, 2], stack[open_, 3]
        node, s = found, end - begin
        found += 1
        nodes[node, 4] = begin
        if parent >= 0:
            nodes[parent, 3] = node
        if s < 2 * smallest:
            continue
        own = lists[f, begin:end]
        whole, squares, pure = 0.0, 0.0, True
        if kinds > 2:
            for kind in range(kinds):
                total[kind] = 0
            for row in own:
                total[int(goal[row])] += 1
            whole_squares = 0
            for kind in range(kinds):
                whole_squares += total[kind] * total[kind]
                pure &= total[kind] == 0 or total[kind] == s
            squares = float(whole_squares)
            spread = s - squares / s
        else:
            for row in own:
                whole += goal[row]
                squares += goal[row] * goal[row]
                pure &= goal[row] == goal[own[0]]
            spread = squares - whole * whole / s
        if pure:
            continue
        same = _SAME * max(spread, 0.0) + 1e-13 * squares
        best, best_feature, cut, ties = -np.inf, -1, 0, 1
        for a in range(constant, f):
            j = live[a]
            row_of, place_of = lists[j, begin:end], places[j]
            if place_of[row_of[0]] == place_of[row_of[s - 1]]:
                live[a], live[constant] = live[constant], j
                constant += 1
                continue
            least, most = smallest, s - smallest  # rows on the left
            if len(whose) > 0:
                least = _rows_of(smallest, whose, row_of, met, walks + 1)
                most = s - _rows_of(smallest, whose, row_of, met, walks + 2)
                walks += 2
            most_gain, at = -np.inf, 0
            if kinds > 2:
                one, other = 0, int(squares)
                for kind in range(kinds):
                    left[kind] = 0
                for i in range(most):
                    c = int(goal[row_of[i]])
                    one += 2 * left[c] + 1
                    other -= 2 * (total[c] - left[c]) - 1
                    left[c] += 1
                    if i + 1 >= least and place_of[row_of[i]] != place_of[row_of[i + 1]]:
                        gain = one * inverse[i + 1] + other * inverse[s - i - 1]
                        if gain > most_gain:
                            most_gain, at = gain, i + 1
            else:
                part = 0.0
                for i in range(most):
                    part += goal[row_of[i]]
                    if i + 1 >= least and place_of[row_of[i]] != place_of[row_of[i + 1]]:
                        rest = whole - part
                        gain = part * part * inverse[i + 1] + rest * rest * inverse[s - i - 1]
                        if gain > most_gain:
                            most_gain, at = gain, i + 1
            if at == 0 or most_gain < best - same:
                continue
            ties = 1 if most_gain > best + same else ties + 1
            if ties == 1 or rng.random() * ties < 1:
                best, best_feature, cut = most_gain, j, at
        if best_feature < 0:
            continue
        chosen = lists[best_feature, begin:end]
        nodes[node, 0] = best_feature
        nodes[node, 1], nodes[node, 2] = places[best_feature, chosen[cut - 1]], places[best_feature, chosen[cut]]
        for i in range(s):
            side[chosen[i]] = i < cut
        again = max(cut, s - cut) >= 2 * smallest  # else nothing below needs the sorted lists
        for a in range(constant if again else f, f + 1):
            j = live[a] if a < f else f
            if j != best_feature:
                rows, ahead, behind = lists[j, begin:end], 0, 0
                for i in range(s):
                    row = rows[i]
                    rows[ahead] = row
                    spare[behind] = row
                    ahead += side[row]
                    behind += 1 - side[row]
                for i in range(behind):
                    rows[cut + i] = spare[i]
        stack[open_, 0], stack[open_, 1], stack[open_, 2], stack[open_, 3] = begin + cut, end, node, constant
        stack[open_ + 1, 0], stack[open_ + 1, 1], stack[open_ + 1, 2] = begin, begin + cut, -1
        stack[open_ + 1, 3] = constant
        open_ += 2
    return found


@compiled
def _rows_of(smallest: int, whose: np.ndarray, rows: np.ndarray, met: np.ndarray, walk: int) -> int:
    """How many of the ``rows``, from one end on, it takes to meet ``smallest`` people; one more than all if never.

    Odd walks start at the first row, even ones at the last. ``met`` has for each person the last ``walk`` on which they
    were met, all below this one.
    """
    people, last = 0, len(rows) - 1
    for i in range(len(rows)):
        person = whose[rows[i if walk % 2 == 1 else last - i]]
        people += met[person] != walk
        met[person] = walk
        if people >= smallest:
            return i + 1
    return len(rows) + 1


def reach_of_donors(start: np.ndarray, values: np.ndarray, people: np.ndarray, smallest: int) -> np.ndarray:
    """How far each donor's value may be moved, float64 (rows,): to that of a fifth of the people of its leaf.

    The rows start[v] : start[v + 1] are those of leaf v, sorted by ``values`` float64 (rows,); ``people`` int64 (rows,)
    are codes below the number of rows. It is the distance to the nearest k other people, k a fifth of the rows of the
    leaf, between 1 and ``smallest``; 0 where nobody else is in the leaf.
    """
    reach, met = np.zeros(len(values)), np.full(len(values), -1)
    _reach(start, values, people, smallest, met, reach)
    return reach


@compiled
def _reach(
    start: np.ndarray, values: np.ndarray, people: np.ndarray, smallest: int, met: np.ndarray, reach: np.ndarray
) -> None:
    for leaf in range(len(start) - 1):
        first, end = start[leaf], start[leaf + 1]
        wanted = max(1, min((end - first) // 5, smallest))
        for i in range(first, end):
            met[people[i]] = i
            below, above, found = i - 1, i + 1, 0
            while found < wanted and (below >= first or above < end):
                down = values[i] - values[below] if below >= first else np.inf
                up = values[above] - values[i] if above < end else np.inf
                if down <= up:
                    other, away = below, down
                    below -= 1
                else:
                    other, away = above, up
                    above += 1
                if met[people[other]] != i:
                    met[people[other]] = i
                    found += 1
                    reach[i] = away


def draw_codes(tree: Tree, codes: np.ndarray, out: np.ndarray, moves: np.ndarray, rng: np.random.Generator) -> None:
    """Write one donor for each of the rows ``codes`` (f, rows) into ``out`` int32 (rows,), where that is still below 0.

    It is drawn uniformly from the leaf of the row. ``moves`` float64 (rows,) become, where the tree has a reach, by how
    much its value is to be moved: uniform within the reach.
    """
    _draw(*tree, codes, out, moves, rng)  # numba looks longer at a tuple than at its parts


@compiled
def _draw(
    columns: np.ndarray,
    ends: np.ndarray,
    tables: np.ndarray,
    feature: np.ndarray,
    threshold: np.ndarray,
    right: np.ndarray,
    start: np.ndarray,
    donors: np.ndarray,
    reach: np.ndarray,
    codes: np.ndarray,
    out: np.ndarray,
    moves: np.ndarray,
    rng: np.random.Generator,
) -> None:
    for i in range(len(out)):
        if out[i] < 0:
            node = 0
            while feature[node] >= 0:
                j = feature[node]
                first = ends[j - 1] if j > 0 else 0
                low = tables[first + codes[columns[j], i]] <= threshold[node]
                node = node + 1 if low else right[node]
            donor = start[node] + int(rng.random() * (start[node + 1] - start[node]))
            out[i] = donors[donor]
            if len(reach) > 0:
                moves[i] = reach[donor] * (2 * rng.random() - 1)
