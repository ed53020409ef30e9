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
    n_classes: int,
    smallest: int,
    group: np.ndarray,
    weights: np.ndarray,
    shares: np.ndarray,
) -> int:
    """Assign levels to groups, with levels of fewer than ``smallest`` rows in group 0.

    Args:
        codes: Level of each row, int32 of shape (n,).
        goal: Target, see :func:`grow`; float64 of shape (n,).
        n_classes: Number of classes, see :func:`grow`.
        smallest: Minimum number of rows (or subjects) of a level that has its own group.
        group: Number of rows (or subjects) of each level, int64 of shape (levels,). Replaced by the
            group of each level.
        weights: Zeros, float64 of shape (levels + 1,). Receives the number of rows of each group.
        shares: Zeros, float64 of shape (levels + 1, width). For more than two classes width is
            ``n_classes``, otherwise 1. Receives the difference of each group's class frequencies
            (or mean goal) from the overall mean; 0 for a group without rows.

    Returns:
        Number of groups, including group 0.
    """
    n_groups = 1
    for level in range(len(group)):
        if group[level] >= smallest:
            group[level] = n_groups
            n_groups += 1
        else:
            group[level] = 0
    for i in range(len(codes)):
        g = group[codes[i]]
        weights[g] += 1
        if n_classes > 2:
            shares[g, int(goal[i])] += 1
        else:
            shares[g, 0] += goal[i]
    for c in range(shares.shape[1]):
        mean = 0.0
        for g in range(n_groups):
            mean += shares[g, c] / len(codes)
        for g in range(n_groups):
            shares[g, c] = shares[g, c] / weights[g] - mean if weights[g] > 0 else 0.0
    return n_groups


def grow(
    positions: np.ndarray,
    spans: np.ndarray,
    goal: np.ndarray,
    n_classes: int,
    smallest: int,
    rng: np.random.Generator,
    subject_codes: np.ndarray | None = None,
    n_deviations: float = -np.inf,
) -> tuple[np.ndarray, ...]:
    """Grow a CART.

    A node is split as long as a split is possible, its goal is not constant, as in scikit-learn,
    and the split is better than chance. ``rng`` decides between equal splits of different features;
    for one feature the lowest is used.

    Args:
        positions: Features as positions among their distinct values, 0..spans - 1, int32 of shape
            (f, n).
        spans: Number of distinct values of each feature, int64 of shape (f,).
        goal: Numbers (squared error) if ``n_classes`` is 0; classes 0 and 1 if it is 2, where Gini
            gives the same splits; otherwise the class of each row (Gini). float64 of shape (n,).
        n_classes: Number of classes, or 0.
        smallest: Minimum number of rows (or subjects) in a leaf, unless there are fewer in total.
        rng: Generator of the choice between equal splits.
        subject_codes: Subject of each row, codes below n, int64 of shape (n,). None: count rows.
        n_deviations: The gain of a split must exceed that of a random split by this number of
            standard deviations. Mean and variance of a random split follow from sums of squares of
            multinomial counts, times :func:`median_rows_per_subject`, as if a subject's rows were
            equal.

    Returns:
        (feature, low, high, right, start, rows) of the nodes, each before its descendants, left
        child first. Rows up to position ``low`` go left; the next position that occurs in the node
        is ``high``. Leaves have feature -1. The rows of leaf v are rows[start[v] : start[v + 1]].
    """
    f, n = positions.shape
    nodes = np.full((2 * max(n // smallest, 1) + 1, 5), -1)
    lists = np.empty((f + 1, n), dtype=np.uint32)
    lists[f] = np.arange(n)
    stack = np.empty((len(nodes), 4), dtype=np.int64)
    goes_left = np.empty(n, np.uint8)
    spare = np.empty(n, np.uint32)
    features = np.arange(f)
    inverse = 1 / np.maximum(np.arange(n + 1), 1)
    counts = np.zeros((2, max(n_classes, 1)), np.int64)
    ends = np.zeros(int(spans.max(initial=0)) + 1, dtype=np.int64)
    rows_per_subject = median_rows_per_subject(subject_codes)
    if subject_codes is None:
        subject_codes = np.zeros(0, np.int64)
    last_walk = np.zeros(len(subject_codes), np.int64)
    n_nodes = _grow(
        positions,
        spans,
        goal,
        n_classes,
        smallest,
        rng,
        subject_codes,
        rows_per_subject,
        n_deviations,
        lists,
        nodes,
        stack,
        goes_left,
        spare,
        features,
        inverse,
        counts,
        ends,
        last_walk,
    )
    nodes[n_nodes, 4] = n
    return (*nodes[:n_nodes, :4].T, nodes[: n_nodes + 1, 4], lists[f])


def median_rows_per_subject(subject_codes: np.ndarray | None) -> float:
    """Return the number of rows per subject that half of the rows reach.

    Args:
        subject_codes: Subject of each row, shape (n,), n >= 1. None: each row is a subject.

    Returns:
        The number; 1 if ``subject_codes`` is None.
    """
    if subject_codes is None:
        return 1.0
    return float(np.median(np.bincount(subject_codes)[subject_codes]))


@compiled
def _grow(
    positions: np.ndarray,
    spans: np.ndarray,
    goal: np.ndarray,
    n_classes: int,
    smallest: int,
    rng: np.random.Generator,
    subject_codes: np.ndarray,
    rows_per_subject: float,
    n_deviations: float,
    lists: np.ndarray,
    nodes: np.ndarray,
    stack: np.ndarray,
    goes_left: np.ndarray,
    spare: np.ndarray,
    features: np.ndarray,
    inverse: np.ndarray,
    counts: np.ndarray,
    ends: np.ndarray,
    last_walk: np.ndarray,
) -> int:
    """Fill ``nodes`` int64 (nodes, 5) with feature, low, high, right and start, and return their
    number.

    ``lists`` uint32 (f + 1, n) contains the rows of each node contiguously, sorted by each feature,
    and unsorted. ``features`` int64 (f,) has those that are constant in a node (and thus below it)
    first. ``subject_codes`` is as in :func:`grow`, or empty if rows are counted, and
    ``rows_per_subject`` is their :func:`median_rows_per_subject`. ``last_walk`` int64 has the same
    length and must be zero. ``inverse[k]`` is 1 / k.
    """
    f, n = positions.shape
    n_walks = 0
    for j in range(f):
        position_of = positions[j]
        sorted_rows = lists[j]
        for position in range(spans[j] + 1):
            ends[position] = 0
        for i in range(n):
            ends[position_of[i] + 1] += 1
        for position in range(spans[j]):
            ends[position + 1] += ends[position]
        for i in range(n):
            sorted_rows[ends[position_of[i]]] = i
            ends[position_of[i]] += 1
    total = counts[0]
    left = counts[1]
    # first row, end, parent of a right node, number of constant features
    stack[0, 0] = 0
    stack[0, 1] = n
    stack[0, 2] = -1
    stack[0, 3] = 0
    n_open = 1
    n_nodes = 0
    while n_open > 0:
        n_open -= 1
        begin = stack[n_open, 0]
        end = stack[n_open, 1]
        parent = stack[n_open, 2]
        n_constant = stack[n_open, 3]
        node = n_nodes
        size = end - begin
        n_nodes += 1
        nodes[node, 4] = begin
        if parent >= 0:
            nodes[parent, 3] = node
        if size < 2 * smallest:
            continue
        rows = lists[f, begin:end]
        goal_sum = 0.0
        squares = 0.0
        is_pure = True
        if n_classes > 2:
            for c in range(n_classes):
                total[c] = 0
            for row in rows:
                total[int(goal[row])] += 1
            count_squares = 0
            for c in range(n_classes):
                count_squares += total[c] * total[c]
                is_pure &= total[c] == 0 or total[c] == size
            squares = float(count_squares)
            spread = size - squares / size
            # sums of powers of the shares
            second = squares * inverse[size] ** 2
            third = 0.0
            for c in range(n_classes):
                third += (total[c] * inverse[size]) ** 3
            deviation = np.sqrt(2 * max(second - 2 * third + second * second, 0.0))
            random_gain = rows_per_subject * (1 - second + n_deviations * deviation)
            least_gain = squares * inverse[size] + random_gain
        else:
            for row in rows:
                goal_sum += goal[row]
                squares += goal[row] * goal[row]
                is_pure &= goal[row] == goal[rows[0]]
            spread = squares - goal_sum * goal_sum / size
            mean_gain = rows_per_subject * spread * inverse[size]
            random_gain = mean_gain * (1 + n_deviations * np.sqrt(2.0))
            least_gain = goal_sum * goal_sum * inverse[size] + random_gain
        if is_pure:
            continue
        tolerance = _SAME * max(spread, 0.0) + 1e-13 * squares
        best_gain = -np.inf
        best_feature = -1
        best_cut = 0
        n_ties = 1
        for a in range(n_constant, f):
            j = features[a]
            sorted_rows = lists[j, begin:end]
            position_of = positions[j]
            if position_of[sorted_rows[0]] == position_of[sorted_rows[size - 1]]:
                features[a] = features[n_constant]
                features[n_constant] = j
                n_constant += 1
                continue
            min_left = smallest
            max_left = size - smallest
            if len(subject_codes) > 0:
                min_left = _rows_of(smallest, subject_codes, sorted_rows, last_walk, n_walks + 1)
                n_walks += 2
                min_right = _rows_of(smallest, subject_codes, sorted_rows, last_walk, n_walks)
                max_left = size - min_right
            feature_gain = -np.inf
            cut = 0
            if n_classes > 2:
                left_squares = 0
                right_squares = int(squares)
                for c in range(n_classes):
                    left[c] = 0
                for i in range(max_left):
                    c = int(goal[sorted_rows[i]])
                    left_squares += 2 * left[c] + 1
                    right_squares -= 2 * (total[c] - left[c]) - 1
                    left[c] += 1
                    if (
                        i + 1 >= min_left
                        and position_of[sorted_rows[i]] != position_of[sorted_rows[i + 1]]
                    ):
                        gain = left_squares * inverse[i + 1] + right_squares * inverse[size - i - 1]
                        if gain > feature_gain:
                            feature_gain = gain
                            cut = i + 1
            else:
                left_sum = 0.0
                for i in range(max_left):
                    left_sum += goal[sorted_rows[i]]
                    if (
                        i + 1 >= min_left
                        and position_of[sorted_rows[i]] != position_of[sorted_rows[i + 1]]
                    ):
                        right_sum = goal_sum - left_sum
                        gain = (
                            left_sum * left_sum * inverse[i + 1]
                            + right_sum * right_sum * inverse[size - i - 1]
                        )
                        if gain > feature_gain:
                            feature_gain = gain
                            cut = i + 1
            if cut == 0 or feature_gain < best_gain - tolerance:
                continue
            if feature_gain > best_gain + tolerance:
                n_ties = 1
            else:
                n_ties += 1
            if n_ties == 1 or rng.random() * n_ties < 1:
                best_gain = feature_gain
                best_feature = j
                best_cut = cut
        if best_feature < 0 or best_gain < least_gain:
            continue
        sorted_rows = lists[best_feature, begin:end]
        nodes[node, 0] = best_feature
        nodes[node, 1] = positions[best_feature, sorted_rows[best_cut - 1]]
        nodes[node, 2] = positions[best_feature, sorted_rows[best_cut]]
        for i in range(size):
            goes_left[sorted_rows[i]] = i < best_cut
        first_list = n_constant
        if max(best_cut, size - best_cut) < 2 * smallest:
            first_list = f  # no descendant needs the sorted lists
        for a in range(first_list, f + 1):
            j = features[a] if a < f else f
            if j != best_feature:
                rows = lists[j, begin:end]
                n_left = 0
                n_right = 0
                for i in range(size):
                    row = rows[i]
                    rows[n_left] = row
                    spare[n_right] = row
                    n_left += goes_left[row]
                    n_right += 1 - goes_left[row]
                for i in range(n_right):
                    rows[best_cut + i] = spare[i]
        stack[n_open, 0] = begin + best_cut
        stack[n_open, 1] = end
        stack[n_open, 2] = node
        stack[n_open, 3] = n_constant
        stack[n_open + 1, 0] = begin
        stack[n_open + 1, 1] = begin + best_cut
        stack[n_open + 1, 2] = -1
        stack[n_open + 1, 3] = n_constant
        n_open += 2
    return n_nodes


@compiled
def _rows_of(
    smallest: int, subject_codes: np.ndarray, rows: np.ndarray, last_walk: np.ndarray, walk: int
) -> int:
    """Return the number of ``rows`` from one end that contain ``smallest`` subjects, or the number
    of rows + 1.

    Odd walks start at the first row, even ones at the last. ``last_walk`` stores the last ``walk``
    that met each subject; ``walk`` must be larger than all of them.
    """
    n_subjects = 0
    last = len(rows) - 1
    for i in range(len(rows)):
        subject = subject_codes[rows[i if walk % 2 == 1 else last - i]]
        n_subjects += last_walk[subject] != walk
        last_walk[subject] = walk
        if n_subjects >= smallest:
            return i + 1
    return len(rows) + 1


def reach_of_donors(
    start: np.ndarray, values: np.ndarray, subject_codes: np.ndarray, smallest: int
) -> np.ndarray:
    """Return the maximum move of each donor's value.

    It is the distance to the nearest k other subjects of the leaf, where k is a fifth of the rows
    of the leaf, between 1 and ``smallest``.

    Args:
        start: First row of each leaf, then the number of rows, int64 of shape (leaves + 1,).
        values: Values of the donors, float64 of shape (rows,), ascending within each leaf.
        subject_codes: Subject of each row, codes below the number of rows, int64 of shape (rows,).
        smallest: Maximum of k.

    Returns:
        Moves, float64 of shape (rows,). If the leaf has fewer than k other subjects, the distance
        to the farthest of them; 0 if there is none.
    """
    reach = np.zeros(len(values))
    last_row = np.full(len(values), -1)
    _reach(start, values, subject_codes, smallest, last_row, reach)
    return reach


@compiled
def _reach(
    start: np.ndarray,
    values: np.ndarray,
    subject_codes: np.ndarray,
    smallest: int,
    last_row: np.ndarray,
    reach: np.ndarray,
) -> None:
    """Fill ``reach``. ``last_row`` stores the last row whose search met each subject; -1: none."""
    for leaf in range(len(start) - 1):
        first = start[leaf]
        end = start[leaf + 1]
        k = max(1, min((end - first) // 5, smallest))
        for i in range(first, end):
            last_row[subject_codes[i]] = i
            below = i - 1
            above = i + 1
            n_subjects = 0
            while n_subjects < k and (below >= first or above < end):
                down = values[i] - values[below] if below >= first else np.inf
                up = values[above] - values[i] if above < end else np.inf
                if down <= up:
                    nearest = below
                    distance = down
                    below -= 1
                else:
                    nearest = above
                    distance = up
                    above += 1
                if last_row[subject_codes[nearest]] != i:
                    last_row[subject_codes[nearest]] = i
                    n_subjects += 1
                    reach[i] = distance


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
    n_nodes = len(feature)
    stop = np.full(n_nodes, len(levels))
    parent = np.full(n_nodes, -1)
    climb = np.zeros(n_nodes)
    counts = np.zeros(int(levels.max(initial=-1)) + 2, np.int64)
    # one layout, so that it is compiled once
    nodes = [np.ascontiguousarray(array) for array in (feature, right, start)]
    _climbing(*nodes, levels.astype(np.int64), shrinkage, counts, stop, parent, climb)
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
            right_child = right[node]
            parent[node + 1] = node
            parent[right_child] = node
            stop[node + 1] = start[right_child]
            stop[right_child] = stop[node]
        node_levels = levels[start[node] : stop[node]]
        n_donors = len(node_levels)
        squares = 0
        for code in node_levels:
            squares += 2 * counts[code + 1] + 1
            counts[code + 1] += 1
        for code in node_levels:
            counts[code + 1] = 0
        pseudo_count = 0.0
        if squares > 0:
            pseudo_count = shrinkage * (n_donors * n_donors / squares - 1)
        if pseudo_count > 0:
            climb[node] = pseudo_count / (n_donors + pseudo_count)
        else:
            climb[node] = 0.0


def draw_codes(
    tree: CartTree,
    codes: np.ndarray,
    column_codes: np.ndarray,
    moves: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Draw a donor for each row that has none yet.

    Donors are drawn uniformly from the row's leaf or a node above it, see :func:`climbing`.

    Args:
        tree: Tree on f or fewer columns.
        codes: Codes of the previous columns, int32 of shape (f, rows).
        column_codes: Receives the code of the donor where it is negative, int32 of shape (rows,).
            Other elements do not change.
        moves: Receives the move of the value of each drawn donor, uniform within its reach, float64
            of shape (rows,). Not changed if the tree has no reach.
        rng: Generator of the draws.
    """
    _draw(
        *tree, codes, column_codes, moves, rng
    )  # numba processes a tuple more slowly than its parts


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
    column_codes: np.ndarray,
    moves: np.ndarray,
    rng: np.random.Generator,
) -> None:
    for i in range(len(column_codes)):
        if column_codes[i] < 0:
            node = 0
            while feature[node] >= 0:
                j = feature[node]
                first = ends[j - 1] if j > 0 else 0
                goes_left = tables[first + codes[columns[j], i]] <= threshold[node]
                node = node + 1 if goes_left else right[node]
            while node >= 0 and rng.random() < climb[node]:
                node = parent[node]
            if node < 0:
                column_codes[i] = levels[int(rng.random() * len(levels))]
                continue
            donor = start[node] + int(rng.random() * (stop[node] - start[node]))
            column_codes[i] = donors[donor]
            if len(reach) > 0:
                moves[i] = reach[donor] * (2 * rng.random() - 1)
