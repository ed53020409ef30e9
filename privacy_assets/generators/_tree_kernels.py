"""Compiled parts of the sequential trees: growing, and drawing rows. See :class:`trees.Tree` for the form of a tree.

Columns are codes (F, n) int32, in the order in which they are drawn: 0..levels - 1 for the known values of a column,
``levels`` for missing. All in one file: compiled code is made anew only when its own file changes.
"""

from __future__ import annotations

import numpy as np

from privacy_assets.compute.compiling import compiled
from privacy_assets.generators.trees import Tree

MOST_CLASSES = 64
_SAME = 1e-9  # of the largest gain that a node allows: splits that differ by less are equal but for rounding


@compiled
def classes(codes: np.ndarray, levels: int) -> tuple[np.ndarray, int]:
    """Class of each code < ``levels`` by falling frequency (float64), and how many; from 64 on they share the last."""
    counts = np.bincount(codes, minlength=levels)
    place, found = np.full(levels, MOST_CLASSES - 1.0), 0
    for level in np.argsort(-counts, kind="mergesort")[:MOST_CLASSES]:
        if counts[level] > 0:
            place[level] = found
            found += 1
    return place[codes], found


@compiled
def level_scores(codes: np.ndarray, levels: int, goal: np.ndarray, kinds: int, smallest: int) -> np.ndarray:
    """A number for each of ``levels`` codes, float32 (levels,), that orders them by ``goal`` (n,), see :func:`grow`.

    A goal of numbers or two classes: the mean of the level's rows. More classes: the projection of the level's class
    shares on their first principal component, weighted by rows (Coppersmith, Hong and Hosking 1999). Levels with fewer
    than ``smallest`` rows are taken together, levels without rows stand with them: the mean goal of a level of few rows
    is that of its rows, and would let the tree look the target up.
    """
    counts = np.bincount(codes, minlength=levels)
    group, groups = np.zeros(levels, dtype=np.int64), 1
    for level in range(levels):
        if counts[level] >= smallest:
            group[level] = groups
            groups += 1
    width = kinds if kinds > 2 else 1
    weights, shares, mean = np.zeros(groups), np.zeros((groups, width)), np.zeros(width)
    for i in range(len(codes)):
        weights[group[codes[i]]] += 1
        shares[group[codes[i]], int(goal[i]) if kinds > 2 else 0] += 1.0 if kinds > 2 else goal[i]
    for g in range(groups):
        mean += shares[g] / len(codes)
    for g in range(groups):
        if weights[g] > 0:
            shares[g] = shares[g] / weights[g] - mean
    if kinds <= 2:
        scores = shares[:, 0].copy()
    else:
        root = np.sqrt(np.maximum(weights, 1.0))
        scaled = shares * root.reshape(-1, 1)
        if groups <= kinds:  # the smaller of the two matrices that share the component
            sizes, vectors = np.linalg.eigh(scaled @ scaled.T)
            scores = vectors[:, -1] * np.sqrt(max(sizes[-1], 0.0)) / root
        else:
            sizes, vectors = np.linalg.eigh(scaled.T @ scaled)
            scores = shares @ np.ascontiguousarray(vectors[:, -1])
    return scores[group].astype(np.float32)


@compiled
def _places(table: np.ndarray) -> tuple[np.ndarray, int]:
    """Place of each value of ``table`` among its different values, and their number."""
    order, out, place = np.argsort(table), np.zeros(len(table), dtype=np.int32), 0
    for i in range(1, len(table)):
        place += table[order[i]] > table[order[i - 1]]
        out[order[i]] = place
    return out, place + 1


@compiled
def _rank_places(table: np.ndarray) -> tuple[np.ndarray, int]:
    """:func:`_places` of a table of ranks whose last value is their mean, without sorting."""
    known = len(table) - 1
    below = int(table[known])
    apart = known > 0 and table[known] > below
    out = np.arange(known + 1).astype(np.int32)
    out[below + 1 :] += apart
    out[known] = below + apart
    return out, max(known + apart, 1)


@compiled
def grow(
    places: np.ndarray, spans: np.ndarray, goal: np.ndarray, kinds: int, smallest: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Grow a CART on features that stand as ``places`` int32 (f, n), 0..spans - 1.

    ``goal`` float64 (n,) holds numbers (squared error; with ``kinds`` 0, or 2 for two classes 0 and 1, where Gini gives
    the same splits) or, with more ``kinds``, the class of each row (Gini). Every leaf keeps at least ``smallest`` rows,
    or all when there are fewer; a node is split as long as a split is possible and its goal is not constant, as in
    scikit-learn. ``rng`` decides between equal splits of different features; of one feature the lowest is taken.

    Returns (feature, low, high, right, start, rows) of the nodes, each before those below it, the left one first: rows
    up to the place ``low`` go left, from the next place that the node knows, ``high``, on right; leaves have feature
    -1. The rows of leaf v are rows[start[v] : start[v + 1]].
    """
    f, n = places.shape
    lists = np.empty((f + 1, n), dtype=np.uint32)  # the rows of each node, next to each other, sorted by each feature
    for j in range(f):
        ends = np.zeros(spans[j] + 1, dtype=np.int64)
        for i in range(n):
            ends[places[j, i] + 1] += 1
        for place in range(spans[j]):
            ends[place + 1] += ends[place]
        for i in range(n):
            lists[j, ends[places[j, i]]] = i
            ends[places[j, i]] += 1
    lists[f] = np.arange(n)
    most = 2 * max(n // smallest, 1)
    feature, low = np.full(most, -1, dtype=np.int32), np.zeros(most, dtype=np.int32)
    high, right = np.zeros(most, dtype=np.int32), np.full(most, -1, dtype=np.int32)
    start = np.full(most + 1, n, dtype=np.int64)
    stack = np.empty((most, 4), dtype=np.int64)  # first row, end, parent of a right node, features known as constant
    stack[0] = np.array([0, n, -1, 0])
    open_, nodes = 1, 0
    live = np.arange(f)  # those that are constant in a node, and so below it, come first
    side, spare = np.zeros(n, dtype=np.uint8), np.empty(n, dtype=np.uint32)
    inverse = 1 / np.maximum(np.arange(n + 1), 1)
    class_of = goal.astype(np.int64)
    total, left = np.zeros(max(kinds, 1), dtype=np.int64), np.zeros(max(kinds, 1), dtype=np.int64)
    while open_ > 0:
        open_ -= 1
        begin, end, parent, constant = stack[open_]
        node, s = nodes, end - begin
        nodes += 1
        start[node] = begin
        if parent >= 0:
            right[parent] = node
        if s < 2 * smallest:
            continue
        own = lists[f, begin:end]
        if kinds > 2:
            total[:] = 0
            for row in own:
                total[class_of[row]] += 1
            whole, squares, pure = 0.0, float((total * total).sum()), total.max() == s
            spread = s - squares / s
        else:
            whole, squares, pure = 0.0, 0.0, True
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
            most_gain, at = -np.inf, 0
            if kinds > 2:
                left[:] = 0
                one, other = 0, int(squares)
                for i in range(s - smallest):
                    c = class_of[row_of[i]]
                    one += 2 * left[c] + 1
                    other -= 2 * (total[c] - left[c]) - 1
                    left[c] += 1
                    if i + 1 >= smallest and place_of[row_of[i]] != place_of[row_of[i + 1]]:
                        gain = one * inverse[i + 1] + other * inverse[s - i - 1]
                        if gain > most_gain:
                            most_gain, at = gain, i + 1
            else:
                part = 0.0
                for i in range(s - smallest):
                    part += goal[row_of[i]]
                    if i + 1 >= smallest and place_of[row_of[i]] != place_of[row_of[i + 1]]:
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
        feature[node] = best_feature
        low[node], high[node] = places[best_feature, chosen[cut - 1]], places[best_feature, chosen[cut]]
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
                rows[cut:] = spare[:behind]
        stack[open_, 0], stack[open_, 1], stack[open_, 2], stack[open_, 3] = begin + cut, end, node, constant
        stack[open_ + 1, 0], stack[open_ + 1, 1], stack[open_ + 1, 2] = begin, begin + cut, -1
        stack[open_ + 1, 3] = constant
        open_ += 2
    return feature[:nodes], low[:nodes], high[:nodes], right[:nodes], start[: nodes + 1], lists[f]


@compiled
def fit_tree(
    codes: np.ndarray,
    levels: np.ndarray,
    is_number: np.ndarray,
    rows: np.ndarray,
    goal: np.ndarray,
    kinds: int,
    donors: np.ndarray,
    smallest: int,
    rng: np.random.Generator,
) -> Tree:
    """Tree of ``goal`` on all columns ``codes`` (f, n), grown on some ``rows``, that keeps their ``donors``.

    A number is its rank, missing the mean rank, with an indicator where there is missing; a category has its
    :func:`level_scores`.
    """
    columns, ends, held = np.empty(2 * len(codes), dtype=np.int64), np.empty(2 * len(codes), dtype=np.int64), 0
    tables = np.empty(2 * (levels[: len(codes)].sum() + len(codes)), dtype=np.float32)
    ranked = np.empty_like(tables)  # the values of each table by their places
    places, spans = np.empty((2 * len(codes), len(rows)), dtype=np.int32), np.empty(2 * len(codes), dtype=np.int64)
    begin = 0
    for column in range(len(codes)):
        own, known = codes[column], levels[column]
        missing = (own == known).sum() if is_number[column] else 0
        for part in range(2 if missing > 0 else 1):
            end = begin + known + 1
            if part == 1:
                table, place, span = np.zeros(known + 1, dtype=np.float32), np.zeros(known + 1, dtype=np.int32), 2
                table[known], place[known] = 1, 1
            elif is_number[column]:
                table = np.arange(known + 1).astype(np.float32)
                table[known] = (own.sum() - missing * known) / max(len(own) - missing, 1)
                place, span = _rank_places(table)
            else:
                table = level_scores(own[rows], known + 1, goal, kinds, smallest)
                place, span = _places(table)
            tables[begin:end] = table
            for level in range(known + 1):
                ranked[begin + place[level]] = table[level]
            for i in range(len(rows)):
                places[held, i] = place[own[rows[i]]]
            columns[held], ends[held], spans[held] = column, end, span
            held, begin = held + 1, end
    feature, low, high, right, start, order = grow(places[:held], spans, goal, kinds, smallest, rng)
    threshold = np.zeros(len(feature))
    for node in range(len(feature)):
        if feature[node] >= 0:
            first = ends[feature[node] - 1] if feature[node] > 0 else 0
            threshold[node] = (np.float64(ranked[first + low[node]]) + np.float64(ranked[first + high[node]])) / 2
    return Tree(columns[:held], ends[:held], tables[:begin], feature, threshold, right, start, donors[order])


@compiled
def has_part(own: np.ndarray, known: int, is_number: bool, part: int) -> bool:
    """True when a column ``own`` of ``known`` values has the tree ``part``, 0 or 1, see :func:`fit_part`."""
    if not is_number:
        return part == 0
    return bool((own == known).any()) if part == 0 else bool((own < known).any())


@compiled
def fit_part(
    codes: np.ndarray,
    levels: np.ndarray,
    is_number: np.ndarray,
    numbers: np.ndarray,
    column: int,
    part: int,
    smallest: int,
    rng: np.random.Generator,
) -> Tree:
    """One of the trees of ``column`` given those before it; ``numbers`` (n,) are its values, if it is a number.

    A category has tree 0, whose donors are codes. A number has tree 0 when it misses values, whose donors are
    ``levels`` (missing) or -1 (not), and tree 1 for the rows that are there, if any.
    """
    own, known = codes[column], levels[column]
    rows, kinds, donors = np.arange(len(own)), 2, own
    if not is_number[column]:
        goal, kinds = classes(own, known + 1)
    elif part == 0:
        goal, donors = (own == known).astype(np.float64), np.where(own == known, own, np.int32(-1))
    else:
        rows = np.flatnonzero(own < known)
        goal, donors = _standardised(numbers[rows]), own[rows]
    return fit_tree(codes[:column], levels, is_number, rows, goal, kinds, donors, smallest, rng)


@compiled
def _standardised(values: np.ndarray) -> np.ndarray:
    """Values at mean 0 and deviation 1, whatever their magnitude; a constant becomes 0."""
    largest = np.abs(values).max()
    scaled = values / largest if largest > 0 else values
    deviation = scaled.std()
    return (scaled - scaled.mean()) / deviation if deviation > 0 else np.zeros(len(values))


@compiled
def draw_codes(tree: Tree, codes: np.ndarray, out: np.ndarray, rng: np.random.Generator) -> None:
    """Write one donor for each of the rows ``codes`` (f, rows) into ``out`` int32 (rows,), where that is still below 0.

    It is drawn uniformly from the leaf of the row.
    """
    columns, ends, tables, feature, threshold, right, start, donors = tree
    for i in range(len(out)):
        if out[i] < 0:
            node = 0
            while feature[node] >= 0:
                j = feature[node]
                first = ends[j - 1] if j > 0 else 0
                low = tables[first + codes[columns[j], i]] <= threshold[node]
                node = node + 1 if low else right[node]
            out[i] = donors[start[node] + int(rng.random() * (start[node + 1] - start[node]))]


@compiled
def fit_and_draw(
    everyone: np.ndarray,
    is_number: np.ndarray,
    cells: np.ndarray,
    smallest: int,
    rows: np.ndarray,
    size: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Cells (F, size) from trees grown on the columns ``rows`` of ``cells`` (F, N), all in the order of the trees.

    ``everyone`` are the ranks of all cells, int32 (F, N); of a number that misses values the last is that of missing.
    """
    columns, n = len(everyone), len(rows)
    codes, held = np.empty((columns, n), dtype=np.int32), cells[:, rows]
    levels, known = np.empty(columns, dtype=np.int64), np.empty((columns, n))
    for column in range(columns):
        own = everyone[column][rows]
        seen = np.zeros(own.max() + 1, dtype=np.int32)
        seen[own] = 1
        codes[column] = np.cumsum(seen)[own] - 1
        known[column][codes[column]] = held[column]
        last = codes[column].max()
        levels[column] = last + 1 - int(np.isnan(known[column, last]))
    drawn, out = np.empty((columns, size), dtype=np.int32), np.empty((columns, size))
    for column in range(columns):
        drawn[column] = -1
        for part in range(2):
            if has_part(codes[column], levels[column], is_number[column], part):
                tree = fit_part(codes, levels, is_number, held[column], column, part, smallest, rng)
                draw_codes(tree, drawn[:column], drawn[column], rng)
        for i in range(size):
            code = drawn[column, i]
            out[column, i] = known[column, code] if code < levels[column] else np.nan
    return out
