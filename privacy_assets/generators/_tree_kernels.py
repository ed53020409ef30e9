"""Compiled parts of the sequential trees: growing, and drawing rows. :class:`CartTree` is their
form.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from privacy_assets.infra.compiling import compiled

# relative to the largest possible gain of a node; smaller differences are rounding errors
_SAME = 1e-9


class CartTree(NamedTuple):
    """A binary tree over coded columns, with the donors of each leaf, as a tuple of arrays for
    compiled code.

    Feature f maps each code of column columns[f] to a float32 value. These tables are concatenated
    in ``tables``, with ends ``ends``. Node v sends a row to node v + 1 if its feature
    ``feature[v]`` is <= ``threshold[v]``, otherwise to ``right[v]``. A leaf has feature -1. The
    donors (codes, int32) of node v are ``donors[start[v] : stop[v]]``. ``reach`` is the maximum
    distance by which each donor's value may be moved; it is empty if values are not moved.
    ``climb[v]`` is the probability that a row that reaches node v draws from ``parent[v]`` instead,
    see :func:`climbing`; above the root (parent -1), it draws uniformly from the codes ``levels``,
    if there are any.
    """

    columns: np.ndarray
    ends: np.ndarray
    tables: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    right: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    parent: np.ndarray
    climb: np.ndarray
    levels: np.ndarray
    donors: np.ndarray
    reach: np.ndarray


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
    """Assign levels to groups, with levels of fewer than ``smallest`` rows in group 0.

    Args:
        codes: Level of each row, int32 of shape (n,).
        goal: Target, see :func:`grow`; float64 of shape (n,).
        kinds: Number of classes, see :func:`grow`.
        smallest: Minimum number of rows (or people) of a level that has its own group.
        group: Number of rows (or people) of each level, int64 of shape (levels,). Replaced by the
            group of each level.
        weights: Zeros, float64 of shape (levels + 1,). Receives the number of rows of each group.
        shares: Zeros, float64 of shape (levels + 1, width). For more than two classes width is
            ``kinds``, otherwise 1. Receives the difference of each group's class frequencies (or
            mean goal) from the overall mean; 0 for a group without rows.

    Returns:
        Number of groups, including group 0.
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
    beyond: float = -np.inf,
) -> tuple[np.ndarray, ...]:
    """Grow a CART on features given as ``places`` int32 (f, n), 0..spans - 1; ``spans`` int64 (f,).

    A node is split as long as a split is possible, its goal is not constant, as in scikit-learn,
    and the split is better than chance. ``rng`` decides between equal splits of different features;
    for one feature the lowest is used.

    Args:
        places: Features.
        spans: Number of distinct values of each feature.
        goal: Numbers (squared error) if ``kinds`` is 0; classes 0 and 1 if it is 2, where Gini
            gives the same splits; otherwise the class of each row (Gini). float64 of shape (n,).
        kinds: Number of classes, or 0.
        smallest: Minimum number of rows (or people) in a leaf, unless there are fewer in total.
        rng: Generator of the choice between equal splits.
        people: Subject of each row, codes below n, int64 of shape (n,). None: count rows.
        beyond: The gain of a split must exceed that of a random split by this number of standard
            deviations. Mean and variance of a random split follow from sums of squares of
            multinomial counts, times :func:`rows_each`, as if a subject's rows were equal.

    Returns:
        (feature, low, high, right, start, rows) of the nodes, each before its descendants, left
        child first. Rows up to position ``low`` go left; the next position that occurs in the node
        is ``high``. Leaves have feature -1. The rows of leaf v are rows[start[v] : start[v + 1]].
    """
    f, n = places.shape
    nodes = np.full((2 * max(n // smallest, 1) + 1, 5), -1)
    lists = np.empty((f + 1, n), dtype=np.uint32)
    lists[f] = np.arange(n)
    stack, side, spare = (
        np.empty((len(nodes), 4), dtype=np.int64),
        np.empty(n, np.uint8),
        np.empty(n, np.uint32),
    )
    live, inverse, counts = (
        np.arange(f),
        1 / np.maximum(np.arange(n + 1), 1),
        np.zeros((2, max(kinds, 1)), np.int64),
    )
    ends = np.zeros(int(spans.max(initial=0)) + 1, dtype=np.int64)
    whose = np.zeros(0, np.int64) if people is None else people
    each = rows_each(people)
    work = (nodes, stack, side, spare, live, inverse, counts, ends, np.zeros(len(whose), np.int64))
    found = _grow(places, spans, goal, kinds, smallest, rng, whose, each, beyond, lists, *work)
    nodes[found, 4] = n
    return (*nodes[:found, :4].T, nodes[: found + 1, 4], lists[f])


def rows_each(people: np.ndarray | None) -> float:
    """Return the number of rows per subject that half of the rows reach.

    Args:
        people: Subject of each row, codes of shape (n,), n >= 1. None: each row is a subject.

    Returns:
        The number; 1 if ``people`` is None.
    """
    return 1.0 if people is None else float(np.median(np.bincount(people)[people]))


@compiled
def _grow(
    places: np.ndarray,
    spans: np.ndarray,
    goal: np.ndarray,
    kinds: int,
    smallest: int,
    rng: np.random.Generator,
    whose: np.ndarray,
    each: float,
    beyond: float,
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
    """Fill ``nodes`` int64 (nodes, 5) with feature, low, high, right and start, and return their
    number.

    ``lists`` uint32 (f + 1, n) contains the rows of each node contiguously, sorted by each feature,
    and unsorted. ``live`` int64 (f,) are the features, those that are constant in a node (and thus
    below it) first. ``whose`` are the people of :func:`grow`, or empty if rows are counted, and
    ``each`` is :func:`rows_each`. ``met`` int64 has the same length and must be zero.
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
    # first row, end, parent of a right node, constant
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = 0, n, -1, 0
    open_, found = 1, 0
    while open_ > 0:
        open_ -= 1
        begin, end, parent, constant = (
            stack[open_, 0],
            stack[open_, 1],
            stack[open_, 2],
            stack[open_, 3],
        )
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
            second, third = squares * inverse[s] ** 2, 0.0  # sums of powers of the shares
            for kind in range(kinds):
                third += (total[kind] * inverse[s]) ** 3
            deviation = np.sqrt(2 * max(second - 2 * third + second * second, 0.0))
            least_gain = squares * inverse[s] + each * (1 - second + beyond * deviation)
        else:
            for row in own:
                whole += goal[row]
                squares += goal[row] * goal[row]
                pure &= goal[row] == goal[own[0]]
            spread = squares - whole * whole / s
            least_gain = whole * whole * inverse[s] + each * spread * inverse[s] * (
                1 + beyond * np.sqrt(2.0)
            )
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
        if best_feature < 0 or best < least_gain:
            continue
        chosen = lists[best_feature, begin:end]
        nodes[node, 0] = best_feature
        nodes[node, 1], nodes[node, 2] = (
            places[best_feature, chosen[cut - 1]],
            places[best_feature, chosen[cut]],
        )
        for i in range(s):
            side[chosen[i]] = i < cut
        again = max(cut, s - cut) >= 2 * smallest  # otherwise no descendant needs the sorted lists
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
        stack[open_, 0], stack[open_, 1], stack[open_, 2], stack[open_, 3] = (
            begin + cut,
            end,
            node,
            constant,
        )
        stack[open_ + 1, 0], stack[open_ + 1, 1], stack[open_ + 1, 2] = begin, begin + cut, -1
        stack[open_ + 1, 3] = constant
        open_ += 2
    return found


@compiled
def _rows_of(smallest: int, whose: np.ndarray, rows: np.ndarray, met: np.ndarray, walk: int) -> int:
    """Return the number of ``rows`` from one end that contain ``smallest`` people, or the number of
    rows + 1.

    Odd walks start at the first row, even ones at the last. ``met`` stores the last ``walk`` in
    which each person was met; ``walk`` must be larger than all of them.
    """
    people, last = 0, len(rows) - 1
    for i in range(len(rows)):
        person = whose[rows[i if walk % 2 == 1 else last - i]]
        people += met[person] != walk
        met[person] = walk
        if people >= smallest:
            return i + 1
    return len(rows) + 1


def reach_of_donors(
    start: np.ndarray, values: np.ndarray, people: np.ndarray, smallest: int
) -> np.ndarray:
    """Return the maximum move of each donor's value.

    It is the distance to the nearest k other people of the leaf, where k is a fifth of the rows of
    the leaf, between 1 and ``smallest``.

    Args:
        start: First row of each leaf, then the number of rows, int64 of shape (leaves + 1,).
        values: Values of the donors, float64 of shape (rows,), ascending within each leaf.
        people: Subject of each row, codes below the number of rows, int64 of shape (rows,).
        smallest: Maximum number k of people.

    Returns:
        Moves, float64 of shape (rows,). If the leaf has fewer than k other people, the distance to
        the farthest of them; 0 if there is none.
    """
    reach, met = np.zeros(len(values)), np.full(len(values), -1)
    _reach(start, values, people, smallest, met, reach)
    return reach


@compiled
def _reach(
    start: np.ndarray,
    values: np.ndarray,
    people: np.ndarray,
    smallest: int,
    met: np.ndarray,
    reach: np.ndarray,
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


def climbing(
    feature: np.ndarray, right: np.ndarray, start: np.ndarray, levels: np.ndarray, shrinkage: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the parents of nodes, and the probability that a row climbs from a node to its parent.

    It is a / (n + a) for n donors, with a = ``shrinkage`` x (l - 1) for l effective levels, 1 /
    (sum of squared shares of the donors' levels). Drawing from the leaf or climbing, from node to
    node, is hierarchical shrinkage (Agarwal et al. 2022): the counts of a leaf are a sample, and
    say little about many levels.

    Args:
        feature: Feature of each node of :func:`grow`, shape (nodes,); -1 for leaves.
        right: Right child of each node, shape (nodes,).
        start: Start of the node's donors, int64 (nodes + 1,).
        levels: Level of each donor, int (n,), at least -1.
        shrinkage: Number of donors per effective level. 0: rows never climb.

    Returns:
        For each node, the end of its donors, int64 (nodes,); its parent, int64 (nodes,), -1 for the
        root; and the probability, float64 (nodes,), in [0, 1).
    """
    nodes = len(feature)
    stop, parent, climb = np.full(nodes, len(levels)), np.full(nodes, -1), np.zeros(nodes)
    counts = np.zeros(int(levels.max(initial=-1)) + 2, np.int64)
    # one layout, so that it is compiled once
    nodes_at = (np.ascontiguousarray(one) for one in (feature, right, start))
    _climbing(*nodes_at, levels.astype(np.int64), shrinkage, counts, stop, parent, climb)
    return stop, parent, climb


@compiled
def _climbing(
    feature: np.ndarray,
    right: np.ndarray,
    start: np.ndarray,
    levels: np.ndarray,
    shrinkage: float,
    counts: np.ndarray,
    stop: np.ndarray,
    parent: np.ndarray,
    climb: np.ndarray,
) -> None:
    for node in range(len(feature)):  # parents precede their children
        if feature[node] >= 0:
            other = right[node]
            parent[node + 1], parent[other] = node, node
            stop[node + 1], stop[other] = start[other], stop[node]
        own, squares = levels[start[node] : stop[node]], 0
        for code in own:
            squares += 2 * counts[code + 1] + 1
            counts[code + 1] += 1
        for code in own:
            counts[code + 1] = 0
        added = shrinkage * (len(own) * len(own) / squares - 1) if squares > 0 else 0.0
        climb[node] = added / (len(own) + added) if added > 0 else 0.0


def draw_codes(
    tree: CartTree, codes: np.ndarray, out: np.ndarray, moves: np.ndarray, rng: np.random.Generator
) -> None:
    """Draw a donor for each row that has none yet.

    Donors are drawn uniformly from the row's leaf or a node above it, see :func:`climbing`.

    Args:
        tree: Tree on f or fewer columns.
        codes: Codes of the previous columns, int32 of shape (f, rows).
        out: Receives the code of the donor where it is negative, int32 of shape (rows,). Other
            elements do not change.
        moves: Receives the move of the value of each drawn donor, uniform within its reach, float64
            of shape (rows,). Not changed if the tree has no reach.
        rng: Generator of the draws.
    """
    _draw(*tree, codes, out, moves, rng)  # numba processes a tuple more slowly than its parts


@compiled
def _draw(
    columns: np.ndarray,
    ends: np.ndarray,
    tables: np.ndarray,
    feature: np.ndarray,
    threshold: np.ndarray,
    right: np.ndarray,
    start: np.ndarray,
    stop: np.ndarray,
    parent: np.ndarray,
    climb: np.ndarray,
    levels: np.ndarray,
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
            while node >= 0 and rng.random() < climb[node]:
                node = parent[node]
            if node < 0:
                out[i] = levels[int(rng.random() * len(levels))]
                continue
            donor = start[node] + int(rng.random() * (stop[node] - start[node]))
            out[i] = donors[donor]
            if len(reach) > 0:
                moves[i] = reach[donor] * (2 * rng.random() - 1)
