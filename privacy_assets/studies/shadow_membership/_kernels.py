"""Compiled loops of the shadow-model attacks: target attention, forest and query attack.

Imports numba: import this module where it is used.

Forest: a feature is a row of ``codes`` uint8 (features, sets). Sums pack two counts in one int64:
draws of all sets (low 32 bits) and draws of sets with the target (high 32 bits).

Query attack: a synthetic row is represented by its matches with the target: bit j is set if it
matches in column j. A query is a set of columns in the same representation; its count is the number
of rows that match in all of them.
"""

from __future__ import annotations

import numpy as np

from privacy_assets.infra.compiling import compiled, inlined


@compiled
def target_distances(
    attributes: np.ndarray, target: np.ndarray, is_number: np.ndarray
) -> np.ndarray:
    """Compute the generalized cosine distance (Meeus et al. 2023, eq. 5) of rows to a target.

    The cosine of two rows without any number above 0 is 1, the cosine of one such row and another
    row is 0.

    Args:
        attributes: Attributes of the rows, numbers scaled to 0..1, shape (A, m).
        target: Attributes of the target, shape (A,).
        is_number: True for numbers, False for codes of categories, bool (A,).

    Returns:
        Distances, float64 (m,).
    """
    n_columns, n_rows = attributes.shape
    n_equal = np.zeros(n_rows)
    products = np.zeros(n_rows)
    row_norms = np.zeros(n_rows)
    target_norm = 0.0
    n_numbers = 0
    for column in range(n_columns):
        target_value = target[column]
        if is_number[column]:
            n_numbers += 1
            target_norm += target_value * target_value
            for row in range(n_rows):
                products[row] += target_value * attributes[column, row]
                row_norms[row] += attributes[column, row] * attributes[column, row]
        else:
            for row in range(n_rows):
                n_equal[row] += attributes[column, row] == target_value
    distances = np.empty(n_rows)
    for row in range(n_rows):
        length = np.sqrt(target_norm * row_norms[row])
        cosine = 1.0 if target_norm == row_norms[row] else 0.0
        if length > 0:
            cosine = products[row] / length
        distances[row] = 1.0 - (n_equal[row] + n_numbers * cosine) / max(n_columns, 1)
    return distances


@inlined
def _order(attributes: np.ndarray, distances: np.ndarray, row: int, other_row: int) -> int:
    """Compare two rows by distance, then by content: -1, 0 or 1."""
    if distances[row] != distances[other_row]:
        return -1 if distances[row] < distances[other_row] else 1
    for column in range(len(attributes)):
        if attributes[column, row] != attributes[column, other_row]:
            return -1 if attributes[column, row] < attributes[column, other_row] else 1
    return 0


@compiled
def closest_unique(
    attributes: np.ndarray, distances: np.ndarray, keep: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest distinct rows. Ties are ordered by content, so the order of rows does not
    matter.

    Args:
        attributes: Attributes of the rows, shape (A, m).
        distances: Distances of the rows, shape (m,).
        keep: Maximum number of distinct rows.

    Returns:
        Positions of the distinct rows, nearest first, and their frequencies, int64 (k,) each.
    """
    size = len(distances)
    order = np.arange(size)
    merged = np.empty(size, dtype=np.int64)
    width = 1
    while width < size:  # merge sort, because numba's sort does not accept a comparison
        for start in range(0, size, 2 * width):
            middle = min(start + width, size)
            end = min(start + 2 * width, size)
            left = start
            right = middle
            for position in range(start, end):
                if left < middle and (
                    right >= end or _order(attributes, distances, order[left], order[right]) <= 0
                ):
                    merged[position] = order[left]
                    left += 1
                else:
                    merged[position] = order[right]
                    right += 1
        order, merged = merged, order
        width *= 2
    rows = np.empty(keep, dtype=np.int64)
    counts = np.zeros(keep, dtype=np.int64)
    n_distinct = 0
    for row in order:
        if n_distinct > 0 and _order(attributes, distances, rows[n_distinct - 1], row) == 0:
            counts[n_distinct - 1] += 1
            continue
        if n_distinct == keep:
            break
        rows[n_distinct] = row
        counts[n_distinct] = 1
        n_distinct += 1
    return rows[:n_distinct], counts[:n_distinct]


Array = np.ndarray

_LOW = 0xFFFFFFFF


@compiled
def _purity(total: int) -> float:
    """Return the sum of squared class sizes over the size; larger is purer (Gini)."""
    size = float(total & _LOW)
    n_members = float(total >> 32)
    return (n_members * n_members + (size - n_members) * (size - n_members)) / size


@compiled
def _best_cut(codes: Array, rows: Array, sums: Array, total: int, bins: Array) -> tuple[float, int]:
    """Return gain and code of the best split ``code <= cut`` of these rows; gain -1 if all codes
    are equal.

    ``bins`` int64 (512,) must be and remains all zeros. It holds two histograms, so that
    consecutive rows do not wait for each other. The cut is halfway between two occurring codes.
    """
    low = 255
    high = 0
    n_odd = len(rows) & 1
    if n_odd:
        code = codes[rows[0]]
        bins[code] += sums[0]
        low = code
        high = code
    for i in range(n_odd, len(rows), 2):
        even_code = codes[rows[i]]
        odd_code = codes[rows[i + 1]]
        bins[even_code] += sums[i]
        bins[256 + odd_code] += sums[i + 1]
        low = min(low, even_code, odd_code)
        high = max(high, even_code, odd_code)
    best_gain = -1.0
    cut = 0
    left_sum = 0
    last_code = -1
    for code in range(low, high + 1):
        code_sum = bins[code] + bins[256 + code]
        if code_sum == 0:
            continue
        if left_sum:
            gain = _purity(left_sum) + _purity(total - left_sum)
            if gain > best_gain:
                best_gain = gain
                cut = (last_code + code) // 2
        left_sum += code_sum
        last_code = code
        bins[code] = 0
        bins[256 + code] = 0
    return best_gain, cut


@compiled
def _partition(rows: Array, sums: Array, codes: Array, cut: int) -> int:
    """Move the rows with ``code <= cut``, and their sums, to the front, and return their number."""
    front = 0
    back = len(rows) - 1
    while front <= back:
        if codes[rows[front]] <= cut:
            front += 1
        else:
            rows[front], rows[back] = rows[back], rows[front]
            sums[front], sums[back] = sums[back], sums[front]
            back -= 1
    return front


@compiled
def grow(
    codes: Array,
    member: Array,
    n_draws: Array,
    usable: Array,
    depth: int,
    tries: int,
    rng: np.random.Generator,
) -> tuple[Array, Array, Array, Array]:
    """Grow one tree on a sample of sets.

    Each node tries ``tries`` features of ``usable``, drawn without replacement, and more only until
    one varies. A node is a leaf if it is pure or at level ``depth``.

    Args:
        codes: Codes of the features, uint8 (features, sets).
        member: Labels of the sets, bool (sets,).
        n_draws: Number of draws of each set, int64 (sets,).
        usable: Features that may be tried, int64 (f,).
        depth: Maximum level; the root has level 0.
        tries: Number of features to try.
        rng: Generator of the tried features.

    Returns:
        For each node the feature (-1: leaf), the cut, the left child (the right one follows it) and
        the share of members, each (nodes,).
    """
    rows = np.flatnonzero(n_draws).astype(np.uint32)
    sums = n_draws[rows] + ((n_draws[rows] * member[rows]) << 32)
    max_nodes = min(2 * len(rows), 2 << depth)
    feature = np.full(max_nodes, -1)
    cuts = np.zeros(max_nodes, np.int64)
    child = np.zeros(max_nodes, np.int64)
    share = np.zeros(max_nodes)
    start = np.zeros(max_nodes, np.int64)
    end = np.zeros(max_nodes, np.int64)
    level = np.zeros(max_nodes, np.int64)
    end[0] = len(rows)
    deck = usable.copy()
    bins = np.zeros(512, np.int64)
    n_nodes = 1
    node = 0
    while node < n_nodes:
        node_rows = rows[start[node] : end[node]]
        node_sums = sums[start[node] : end[node]]
        total = node_sums.sum()
        size = total & _LOW
        n_members = total >> 32
        share[node] = n_members / size
        if n_members > 0 and n_members < size and level[node] < depth:
            best_gain = -1.0
            n_tried = 0
            while n_tried < len(deck) and (n_tried < tries or best_gain < 0):
                position = rng.integers(n_tried, len(deck))
                deck[n_tried], deck[position] = deck[position], deck[n_tried]
                gain, cut = _best_cut(codes[deck[n_tried]], node_rows, node_sums, total, bins)
                if gain > best_gain:
                    best_gain = gain
                    feature[node] = deck[n_tried]
                    cuts[node] = cut
                n_tried += 1
            if best_gain >= 0:
                n_left = _partition(node_rows, node_sums, codes[feature[node]], cuts[node])
                middle = start[node] + n_left
                child[node] = n_nodes
                start[n_nodes] = start[node]
                end[n_nodes] = middle
                level[n_nodes] = level[node] + 1
                start[n_nodes + 1] = middle
                end[n_nodes + 1] = end[node]
                level[n_nodes + 1] = level[node] + 1
                n_nodes += 2
        node += 1
    return feature[:n_nodes], cuts[:n_nodes], child[:n_nodes], share[:n_nodes]


@compiled
def add_shares(
    codes: Array,
    feature: Array,
    cuts: Array,
    child: Array,
    share: Array,
    set_ids: Array,
    scores: Array,
    votes: Array,
) -> None:
    """Add the share of its leaf to the score of each of some sets, and 1 to its votes.

    Args:
        codes: Codes of the features, uint8 (features, sets).
        feature: Feature of each node (nodes,). -1: leaf.
        cuts: Largest code of the left child (nodes,).
        child: Left child of each node (nodes,).
        share: Share of members in each node (nodes,).
        set_ids: The sets.
        scores: Sums of shares, float64 (sets,), changed in place.
        votes: Number of votes (sets,), changed in place.
    """
    for set_id in set_ids:
        node = 0
        while feature[node] >= 0:
            right = codes[feature[node], set_id] > cuts[node]
            node = child[node] + right
        scores[set_id] += share[node]
        votes[set_id] += 1


_TILE = 1 << 13  # 16-bit counts that fit the first-level cache
_LANE = 64  # sets encoded side by side: one cache line per query
_ONES = np.uint64(0x5555555555555555)
_TWOS = np.uint64(0x3333333333333333)
_FOURS = np.uint64(0x0F0F0F0F0F0F0F0F)
_BYTES = np.uint64(0x0101010101010101)


@compiled
def match_bits(cells: Array, target: Array, is_number: Array) -> Array:
    """Compute matches with the target: ``<=`` for numbers, ``==`` for categories; NaN matches NaN.

    Args:
        cells: Coded cells, shape (F, rows).
        target: Coded cells of the target, shape (F,).
        is_number: True for numbers, bool (F,).

    Returns:
        Matches uint64 (rows, words).
    """
    n_columns, n_rows = cells.shape
    bits = np.zeros((n_rows, (n_columns + 63) // 64), np.uint64)
    word = np.empty(n_rows, np.uint64)
    for first in range(0, n_columns, 64):
        word[:] = 0
        for column in range(first, min(first + 64, n_columns)):
            values = cells[column]
            target_value = target[column]
            shift = np.uint64(column - first)
            if np.isnan(target_value):
                for row in range(n_rows):
                    word[row] |= np.uint64(values[row] != values[row]) << shift
            elif is_number[column]:
                for row in range(n_rows):
                    word[row] |= np.uint64(values[row] <= target_value) << shift
            else:
                for row in range(n_rows):
                    word[row] |= np.uint64(values[row] == target_value) << shift
        bits[:, first // 64] = word
    return bits


@inlined
def _fold(counts: Array, base: int, step: int) -> None:
    """Add the counts of the queries with one more column to those without it."""
    counts_without = counts[base : base + step]
    counts_with = counts[base + step : base + 2 * step]
    for i in range(step):
        counts_without[i] += counts_with[i]


@compiled
def superset_sums(counts: Array) -> None:
    """Convert counts of exact matches per set of columns to counts of supersets.

    Args:
        counts: Counts of each set of columns, shape (2^columns,), changed in place.
    """
    size = len(counts)
    tile = min(_TILE, size)
    for start in range(0, size, tile):
        step = 1
        while step < tile:
            for base in range(start, start + tile, 2 * step):
                _fold(counts, base, step)
            step *= 2
    step = tile
    while step < size:
        for base in range(0, size, 2 * step):
            _fold(counts, base, step)
        step *= 2


@compiled
def count_all(masks: Array, counts: Array) -> None:
    """Count the rows that match in all columns of a set, for every set of columns.

    Args:
        masks: First word of the matches, uint64 (rows,).
        counts: Counts of each set of columns, shape (2^columns,), changed in place.
    """
    counts[:] = 0
    for row in range(len(masks)):
        counts[masks[row]] += 1
    superset_sums(counts)


@compiled
def count_each(masks: Array, queries: Array, scratch: Array, out: Array) -> None:
    """Count the queries in each set of rows, for at most 20 columns.

    Args:
        masks: First word of the matches, uint64 (sets, rows).
        queries: Bit masks of columns, int64 (queries,).
        scratch: Buffer of shape (2^columns,) with the dtype of ``out``.
        out: Counts, integers of shape (sets, queries), changed in place.
    """
    for set_id in range(len(masks)):
        count_all(masks[set_id], scratch)
        for query in range(len(queries)):
            out[set_id, query] = scratch[queries[query]]


@inlined
def _ones(word: np.uint64) -> np.uint64:
    """Return the number of set bits."""
    pairs = word - ((word >> np.uint64(1)) & _ONES)
    fours = (pairs & _TWOS) + ((pairs >> np.uint64(2)) & _TWOS)
    return (((fours + (fours >> np.uint64(4))) & _FOURS) * _BYTES) >> np.uint64(56)


@compiled
def count_wide(bits: Array, queries: Array, out: Array) -> None:
    """Write the counts of ``queries`` to ``out`` (sets, queries), also for more than 64 columns.

    Args:
        bits: Matches uint64 (sets, rows, words).
        queries: Columns of each query, (queries, 6), filled with -1.
        out: Counts (sets, queries), changed in place.
    """
    n_sets, n_rows, n_words = bits.shape
    column_matches = np.empty((64 * n_words, (n_rows + 63) // 64), np.uint64)
    query_matches = np.empty(column_matches.shape[1], np.uint64)
    for set_id in range(n_sets):
        column_matches[:] = 0
        for row in range(n_rows):
            word = row // 64
            shift = np.uint64(row % 64)
            for column in range(64 * n_words):
                bit = (bits[set_id, row, column // 64] >> np.uint64(column % 64)) & np.uint64(1)
                column_matches[column, word] |= bit << shift
        for query in range(len(queries)):
            query_matches[:] = column_matches[queries[query, 0]]
            for i in range(1, queries.shape[1]):
                if queries[query, i] < 0:
                    break
                next_matches = column_matches[queries[query, i]]
                for word in range(len(query_matches)):
                    query_matches[word] &= next_matches[word]
            total = np.uint64(0)
            for word in range(len(query_matches)):
                total += _ones(query_matches[word])
            out[set_id, query] = total


@compiled
def put_codes(counts: Array, low: Array, shift: Array, codes: Array, first: int) -> None:
    """Write counts as codes 0..255: (count - ``low``) >> ``shift``, clipped.

    Args:
        counts: Counts (sets, queries).
        low: Count of each query that has code 0, int32 (queries,).
        shift: Number of low bits that each query drops, int32 (queries,).
        codes: Codes uint8 (queries, all sets), changed in place.
        first: Column of ``codes`` for the first set.
    """
    n_sets, n_queries = counts.shape
    tile = np.empty((n_sets, _LANE), np.uint8)
    for start in range(0, n_queries, _LANE):
        width = min(_LANE, n_queries - start)
        for set_id in range(n_sets):
            for i in range(width):
                difference = np.int32(counts[set_id, start + i]) - low[start + i]
                code = difference >> shift[start + i]
                tile[set_id, i] = min(max(code, np.int32(0)), np.int32(255))
        for i in range(width):
            for set_id in range(n_sets):
                codes[start + i, first + set_id] = tile[set_id, i]
