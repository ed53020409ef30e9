"""Compiled parts of the Bayesian networks: structure, conditionals and sampling, on codes.

A network of F columns is ``order`` (F,), the columns in drawing order, and ``parents`` (F, degree):
row i contains the columns that column ``order[i]`` depends on, -1 for none. Its conditionals are
defined in :func:`learn_conditionals`. All code is in one file, because cached code is recompiled
only if its own file changes.
"""

from __future__ import annotations

import numpy as np

from privacy_assets.infra.compiling import compiled, inlined

Conditional = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Flat = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

_SAME = 1e-9  # nats; smaller differences in mutual information are rounding errors


@compiled
def max_lookup_size(n: int) -> int:
    """Return the maximum size of tables over possible keys; above it, sorting is faster than
    clearing.

    Args:
        n: Number of keys.
    """
    return max(65_536, 64 * n)


@inlined
def _at_least(ascending: np.ndarray, key: int) -> int:
    """Return the position of the first number that is at least ``key``."""
    low = 0
    high = len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def relabel(keys: np.ndarray, span: int, lookup: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the distinct keys in ascending order.

    Args:
        keys: Keys in 0..span - 1, int64 of shape (n,).
        span: Number of possible keys.
        lookup: Scratch space, uint32, zero before and after. If it is shorter than ``span``, the
            keys are sorted instead.

    Returns:
        The distinct keys, ascending, int64, and the position of each key among them, uint32 of
        shape (n,).
    """
    positions = np.empty(len(keys), dtype=np.uint32)
    if span > len(lookup):
        distinct = keys.copy()
        distinct.sort()
        n_distinct = 1
        for i in range(1, len(distinct)):
            if distinct[i] != distinct[n_distinct - 1]:
                distinct[n_distinct] = distinct[i]
                n_distinct += 1
        for i in range(len(keys)):
            positions[i] = _at_least(distinct[:n_distinct], keys[i])
        return distinct[:n_distinct], positions
    for key in keys:
        lookup[np.uint64(key)] = 1
    distinct = np.empty(min(len(keys), span), dtype=np.int64)
    n_distinct = 0
    for key in range(np.uint64(span)):
        if lookup[key] > 0:
            lookup[key] = n_distinct
            distinct[n_distinct] = key
            n_distinct += 1
    for i in range(len(keys)):
        positions[i] = lookup[np.uint64(keys[i])]
    lookup[:span] = 0
    return distinct[:n_distinct], positions


@compiled
def _sum_count_logs(
    first: np.ndarray,
    second: np.ndarray,
    levels: int,
    span: int,
    scaled: np.ndarray,
    counts: np.ndarray,
) -> int:
    """Return the sum of ``scaled[c]`` over the counts c of pairs, numbered first * levels + second
    < span.

    ``scaled[c]`` is c log c as an int64, so the order of rows does not matter. ``counts`` (uint32)
    is scratch space, zero before and after. Unsigned indices avoid the check for negative values.
    Both halves of the rows are counted separately, because consecutive additions to the same cell
    have to wait.
    """
    n = np.uint64(len(first))
    half = np.uint64(len(first) // 2)
    width = np.uint32(levels)
    total = 0
    if 2 * span > len(counts):
        keys = np.empty(n, dtype=np.int64)
        for i in range(n):
            keys[i] = np.int64(first[i]) * levels + second[i]
        keys.sort()
        n_equal = 0
        for i in range(n):
            n_equal += 1
            if i + 1 == n or keys[i] != keys[i + 1]:
                total += scaled[n_equal]
                n_equal = 0
        return total
    second_half_counts = counts[span : 2 * span]
    for i in range(half):
        counts[first[i] * width + second[i]] += 1
        second_half_counts[first[half + i] * width + second[half + i]] += 1
    if 2 * half < n:
        counts[first[n - 1] * width + second[n - 1]] += 1
    if span <= 2 * n:
        for pair in range(np.uint64(span)):
            total += scaled[counts[pair] + second_half_counts[pair]]
        counts[: 2 * span] = 0
        return total
    for i in range(n):
        pair = first[i] * width + second[i]
        total += scaled[counts[pair] + second_half_counts[pair]]
        counts[pair] = 0
        second_half_counts[pair] = 0
    return total


@compiled
def _sets(newest: int, size: int) -> np.ndarray:
    """Return all sets of ``size`` (1 to 3) positions in 0..newest that contain ``newest``,
    ascending: (sets, size).
    """
    if size == 1:
        return np.full((1, 1), newest, dtype=np.int64)
    n_sets = newest
    if size == 3:
        n_sets = newest * (newest - 1) // 2
    sets = np.full((n_sets, size), newest, dtype=np.int64)
    row = 0
    for i in range(newest):
        if size == 2:
            sets[row, 0] = i
            row += 1
        else:
            for j in range(i + 1, newest):
                sets[row, 0] = i
                sets[row, 1] = j
                row += 1
    return sets


@compiled
def keys_of(codes: np.ndarray, sizes: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, int]:
    """Combine the codes of several columns into a key.

    Args:
        codes: Codes, uint32 of shape (F, n).
        sizes: Number of codes of each column, int64 of shape (F,).
        columns: Positions of the columns, the most significant first. Negative positions are
            ignored.

    Returns:
        Key of each row, int64 of shape (n,), and the number of possible keys. Without columns: 0,
        and 1 key.
    """
    keys = np.zeros(codes.shape[1], dtype=np.int64)
    span = 1
    for column in columns:
        if column >= 0:
            span *= sizes[column]
            row = codes[column]
            for i in range(len(keys)):
                keys[i] = keys[i] * sizes[column] + row[i]
    return keys, span


@compiled
def sensitivity(n: int, binary: bool) -> float:
    """Return the maximum change of the mutual information of two columns if one row is replaced.

    Zhang et al. (2017), lemma 4.1.

    Args:
        n: Number of rows, at least 1.
        binary: True if one of the two columns has at most two values.

    Returns:
        The change in nats; 0 for one row.
    """
    if n == 1:
        return 0.0
    if binary:
        return np.log(n) / n + (n - 1) / n * np.log(n / (n - 1))
    return 2 / n * np.log((n + 1) / 2) + (n - 1) / n * np.log((n + 1) / (n - 1))


@inlined
def _best(
    information: np.ndarray,
    children: np.ndarray,
    sets: np.ndarray,
    sizes: np.ndarray,
    n: int,
    rate: float,
    rng: np.random.Generator,
) -> int:
    """Return the position of the largest mutual information, or draw it by the exponential
    mechanism.

    Draws use Gumbel noise.
    """
    best = 0
    best_score = -np.inf
    for pair in range(len(information)):
        score = information[pair]
        tolerance = _SAME
        if rate > 0:
            n_cells = 1
            for column in sets[pair]:
                n_cells = min(n_cells * sizes[column], 3)
            change = sensitivity(n, sizes[children[pair]] <= 2 or n_cells <= 2)
            score = score * rate / (2 * change) if change > 0 else 0.0
            score -= np.log(rng.standard_exponential())
            tolerance = 0.0
        if score > best_score + tolerance:
            best = pair
            best_score = score
    return best


@compiled
def learn_structure(
    codes: np.ndarray,
    sizes: np.ndarray,
    degree: int,
    root: int,
    rate: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Learn order and parents by GreedyBayes (Zhang et al. 2017, algorithm 2).

    Starting with ``root``, each round adds the pair of a new column and ``degree`` of the columns
    so far (all, if there are fewer) with the largest mutual information; among equal ones, the pair
    that became possible first. If ``rate`` > 0, the exponential mechanism is used instead.

    Args:
        codes: Codes, uint32 of shape (F, n), n >= 1.
        sizes: Number of codes of each column, int64 of shape (F,).
        degree: Maximum number of parents of a column, 1 to 3.
        root: First column.
        rate: Privacy budget (epsilon) of each of the F - 1 rounds. 0: no noise.
        rng: Generator of the noise, not used if ``rate`` is 0.

    Returns:
        ``order``, int64 of shape (F,), and ``parents``, int64 of shape (F, degree), see the module.
    """
    n_columns, n = codes.shape
    order = np.full(n_columns, root, dtype=np.int64)
    parents = np.full((n_columns, degree), -1, dtype=np.int64)
    is_open = np.ones(n_columns, dtype=np.bool_)
    is_open[root] = False
    scale = 2.0**61 / (n * np.log(n) + 1)
    scaled = np.zeros(n + 1, dtype=np.int64)
    for c in range(2, n + 1):
        scaled[c] = np.rint(c * np.log(c) * scale)
    counts = np.zeros(max_lookup_size(n), dtype=np.uint32)
    zeros = np.zeros(n, dtype=np.uint32)
    column_sums = np.empty(n_columns, dtype=np.int64)
    for column in range(n_columns):
        column_sums[column] = _sum_count_logs(
            zeros, codes[column], sizes[column], sizes[column], scaled, counts
        )
    max_pairs = 0
    for newest in range(n_columns - 1):
        n_sets = len(_sets(newest, min(newest + 1, degree)))
        max_pairs += n_sets * (n_columns - 1 - newest)
    children = np.empty(max_pairs, dtype=np.int64)
    sets = np.empty((max_pairs, degree), dtype=np.int64)
    information = np.empty(max_pairs)
    n_pairs = 0
    for n_ordered in range(1, n_columns):
        n_parents = min(n_ordered, degree)
        n_open = 0
        if n_ordered > degree:  # otherwise larger sets replace all smaller ones
            for pair in range(n_pairs):
                if is_open[children[pair]]:
                    children[n_open] = children[pair]
                    information[n_open] = information[pair]
                    for i in range(degree):
                        sets[n_open, i] = sets[pair, i]
                    n_open += 1
        n_pairs = n_open
        for positions in _sets(n_ordered - 1, n_parents):
            candidates = order[positions]
            if n_parents == 1:
                joint = codes[candidates[0]]
                levels = sizes[candidates[0]]
                joint_sum = column_sums[candidates[0]]
            else:
                keys, span = keys_of(codes, sizes, candidates)
                distinct, joint = relabel(keys, span, counts)
                levels = len(distinct)
                joint_sum = _sum_count_logs(zeros, joint, levels, levels, scaled, counts)
            for column in range(n_columns):
                if is_open[column]:
                    pair_sum = _sum_count_logs(
                        codes[column], joint, levels, sizes[column] * levels, scaled, counts
                    )
                    children[n_pairs] = column
                    for i in range(n_parents):
                        sets[n_pairs, i] = candidates[i]
                    excess = pair_sum - column_sums[column] - joint_sum
                    information[n_pairs] = excess / (scale * n) + np.log(n)
                    n_pairs += 1
        best = _best(information[:n_pairs], children, sets[:, :n_parents], sizes, n, rate, rng)
        order[n_ordered] = children[best]
        for i in range(n_parents):
            parents[n_ordered, i] = sets[best, i]
        is_open[children[best]] = False
    return order, parents


@compiled
def conditional(pairs: np.ndarray, levels: int, weights: np.ndarray) -> Conditional:
    """Return the distribution of a column given its parents, from weighted joint cells.

    Args:
        pairs: Key of the parents * ``levels`` + code, for each cell, int64 of shape (c,),
            ascending; repeats are allowed.
        levels: Number of codes of the column.
        weights: Weight of each cell, float64 of shape (c,).

    Returns:
        (groups, starts, values, ends). Group g has the key ``groups[g]`` of the parents
        (int64, ascending); the first key is -1, and its group contains all cells. The codes of the
        group are ``values[starts[g] : starts[g + 1]]`` (uint32), and ``ends`` (float64) at the same
        positions are their weights, cumulated within the group.
    """
    max_entries = levels + len(pairs)
    groups = np.full(len(pairs) + 1, -1, dtype=np.int64)
    starts = np.zeros(len(pairs) + 2, dtype=np.int64)
    values = np.empty(max_entries, dtype=np.uint32)
    ends = np.zeros(max_entries)
    for code in range(max_entries):
        values[code] = code
    entry = levels - 1
    group = 0
    first_pair = -levels
    last_pair = np.int64(-1)
    for i in range(len(pairs)):
        if pairs[i] - first_pair >= levels:
            group += 1
            groups[group] = pairs[i] // levels
            starts[group] = entry + 1
            first_pair = groups[group] * levels
        code = pairs[i] - first_pair
        if pairs[i] != last_pair:
            entry += 1
            last_pair = pairs[i]
            values[entry] = code
            ends[entry] = ends[entry - 1] if entry > starts[group] else 0.0
        ends[entry] += weights[i]
        ends[code] += weights[i]
    for code in range(1, levels):
        ends[code] += ends[code - 1]
    starts[group + 1] = entry + 1
    return groups[: group + 1], starts[: group + 2], values[: entry + 1], ends[: entry + 1]


@inlined
def _joint(
    codes: np.ndarray,
    sizes: np.ndarray,
    columns: np.ndarray,
    scale: float,
    noise: np.random.Generator,
    lookup: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys (ascending) and weights > 0 of the cells of the joint table of ``columns``.

    If ``scale`` > 0, Laplace noise of this scale is added to the count of every possible cell.
    """
    keys, span = keys_of(codes, sizes, columns)
    if scale == 0:
        cells, positions = relabel(keys, span, lookup)
        weights = np.zeros(len(cells))
        for position in positions:
            weights[position] += 1
        return cells, weights
    counts = np.zeros(span)
    for key in keys:
        counts[key] += 1
    for key in range(span):
        counts[key] += noise.laplace(0.0, scale)
    n_positive = 0
    for key in range(span):
        n_positive += counts[key] > 0
    if n_positive == 0:  # equal weights
        cells = np.empty(span, dtype=np.int64)
        for key in range(span):
            cells[key] = key
        return cells, np.ones(span)
    cells = np.empty(n_positive, dtype=np.int64)
    weights = np.empty(n_positive)
    cell = 0
    for key in range(span):
        if counts[key] > 0:
            cells[cell] = key
            weights[cell] = counts[key]
            cell += 1
    return cells, weights


@compiled
def learn_conditionals(
    codes: np.ndarray,
    sizes: np.ndarray,
    order: np.ndarray,
    parents: np.ndarray,
    scale: float,
    noise: np.random.Generator,
) -> list[Conditional]:
    """Learn the conditionals of a network (Zhang et al. 2017, algorithms 1 and 3).

    The first k + 1 of the F columns share one joint table, k = min(degree, F - 1), so there are F -
    k tables; one row changes two cells of each.

    Args:
        codes: Codes, uint32 of shape (F, n).
        sizes: Number of codes of each column, int64 of shape (F,).
        order: Columns in drawing order, int64 of shape (F,).
        parents: Parents of these columns, int64 of shape (F, degree), -1 for none.
        scale: Scale of the Laplace noise of the tables, in counts. 0: no noise.
        noise: Generator of the noise, not used if ``scale`` is 0.

    Returns:
        A :func:`conditional` for each column of ``order``.
    """
    lookup = np.zeros(max_lookup_size(codes.shape[1]), dtype=np.uint32)
    width = min(parents.shape[1] + 1, len(order))
    cells = np.zeros(0, dtype=np.int64)
    weights = np.zeros(0)
    columns = order[:width].copy()
    conditionals = []
    for i in range(len(order)):
        if i >= width:
            for j in range(width - 1):
                columns[j] = parents[i, j]
            columns[width - 1] = order[i]
        if i == 0 or i >= width:
            cells, weights = _joint(codes, sizes, columns, scale, noise, lookup)
        conditionals.append(_derived(cells, weights, sizes, order[i : max(width, i + 1)]))
    return conditionals


@inlined
def _derived(
    cells: np.ndarray, weights: np.ndarray, sizes: np.ndarray, last: np.ndarray
) -> Conditional:
    """Return the conditional of ``last[0]`` given the previous columns, from a joint table ending
    in ``last``.
    """
    tail = 1
    for column in last[1:]:
        tail *= sizes[column]
    pairs = np.empty(len(cells), dtype=np.int64)
    for i in range(len(cells)):
        pairs[i] = cells[i] // tail
    return conditional(pairs, sizes[last[0]], weights)


@compiled
def draw_column(
    distribution: Conditional,
    keys: np.ndarray,
    span: int,
    rng: np.random.Generator,
    lookup: np.ndarray,
) -> np.ndarray:
    """Draw a code for each row, given the key of its parents.

    Args:
        distribution: Distribution of the column, see :func:`conditional`. For a key without a
            group, the group of all cells is used.
        keys: Key of the parents of each row, int64 of shape (n,), in 0..span - 1.
        span: Number of possible keys.
        rng: Generator of the draws.
        lookup: Scratch space, uint32, zero before and after. If it is shorter than ``span``, keys
            are searched by bisection instead.

    Returns:
        Codes, uint32 of shape (n,).
    """
    groups, starts, values, ends = distribution
    codes = np.empty(len(keys), dtype=np.uint32)
    is_dense = span <= len(lookup)
    if is_dense:
        for group in range(1, len(groups)):
            lookup[groups[group]] = group
    for i in range(len(keys)):
        if is_dense:
            group = lookup[keys[i]]
        else:
            group = _at_least(groups, keys[i])
            if group == len(groups) or groups[group] != keys[i]:
                group = 0
        low = starts[group]
        high = starts[group + 1] - 1
        point = rng.random() * ends[high]
        while low < high:
            middle = (low + high) // 2
            if ends[middle] > point:
                high = middle
            else:
                low = middle + 1
        codes[i] = values[low]
    if is_dense:
        for group in range(1, len(groups)):
            lookup[groups[group]] = 0
    return codes


@compiled
def decode(codes: np.ndarray, flat: Flat, rng: np.random.Generator) -> np.ndarray:
    """Draw cells for codes, uniform within bins.

    Args:
        codes: Codes, uint32 of shape (F, size).
        flat: Bins of all columns, see :attr:`domains.Domains.flat`.
        rng: Generator of the draws. It is used for codes of a bin only, not for those of a single
            value.

    Returns:
        Cells, float64 of shape (F, size). NaN: missing.
    """
    offsets, starts, spans, is_integer = flat
    cells = np.empty(codes.shape)
    for column in range(len(codes)):
        for i in range(codes.shape[1]):
            code = offsets[column] + codes[column, i]
            span = spans[code]
            if span > is_integer[column]:
                shift = rng.random() * span
                cells[column, i] = starts[code] + (np.floor(shift) if is_integer[column] else shift)
            else:
                cells[column, i] = starts[code]
    return cells


@compiled
def fit_and_draw(
    all_codes: np.ndarray,
    sizes: np.ndarray,
    flat: Flat,
    degree: int,
    rate: float,
    scale: float,
    rows: np.ndarray,
    size: int,
    root: int,
    rng: np.random.Generator,
    noise: np.random.Generator,
) -> np.ndarray:
    """Learn a network from some rows, and draw new ones.

    Args:
        all_codes: Codes of all rows, uint32 of shape (F, N).
        sizes: Number of codes of each column, int64 of shape (F,).
        flat: Bins of all columns, see :attr:`domains.Domains.flat`.
        degree: Maximum number of parents of a column, 1 to 3.
        rate: Privacy budget (epsilon) of each round of :func:`learn_structure`. 0: no noise.
        scale: Scale of the Laplace noise of the tables of :func:`learn_conditionals`, in counts. 0:
            no noise.
        rows: Positions of the rows to learn from, int64 of shape (n,), n >= 1.
        size: Number of rows to draw.
        root: First column.
        rng: Generator of the rows.
        noise: Generator of the noise, see ``rate`` and ``scale``.

    Returns:
        Cells, float64 of shape (F, size). NaN: missing.
    """
    codes = all_codes[:, rows]
    order, parents = learn_structure(codes, sizes, degree, root, rate, noise)
    synthetic_codes = np.empty((len(codes), size), dtype=np.uint32)
    lookup = np.zeros(max_lookup_size(size), dtype=np.uint32)
    conditionals = learn_conditionals(codes, sizes, order, parents, scale, noise)
    for i in range(len(order)):
        keys, span = keys_of(synthetic_codes, sizes, parents[i])
        column_codes = draw_column(conditionals[i], keys, span, rng, lookup)
        for row in range(size):
            synthetic_codes[order[i], row] = column_codes[row]
    return decode(synthetic_codes, flat, rng)
