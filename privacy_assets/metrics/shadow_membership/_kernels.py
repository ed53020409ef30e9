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
    """Return the generalized cosine distance (Meeus et al. 2023, eq. 5) of columns (F, m) to
    ``target`` (F,).

    The cosine of two rows without any number above 0 is 1, the cosine of one such row and another
    row is 0.
    """
    columns, rows = attributes.shape
    equal, product, norm = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    own, numbers = 0.0, 0
    for column in range(columns):
        aim = target[column]
        if is_number[column]:
            numbers += 1
            own += aim * aim
            for row in range(rows):
                product[row] += aim * attributes[column, row]
                norm[row] += attributes[column, row] * attributes[column, row]
        else:
            for row in range(rows):
                equal[row] += attributes[column, row] == aim
    out = np.empty(rows)
    for row in range(rows):
        length = np.sqrt(own * norm[row])
        cosine = 1.0 if own == norm[row] else 0.0
        if length > 0:
            cosine = product[row] / length
        out[row] = 1.0 - (equal[row] + numbers * cosine) / max(columns, 1)
    return out


@inlined
def _order(attributes: np.ndarray, distances: np.ndarray, one: int, other: int) -> int:
    """Compare two rows by distance, then by content: -1, 0 or 1."""
    if distances[one] != distances[other]:
        return -1 if distances[one] < distances[other] else 1
    for column in range(len(attributes)):
        if attributes[column, one] != attributes[column, other]:
            return -1 if attributes[column, one] < attributes[column, other] else 1
    return 0


@compiled
def closest_unique(
    attributes: np.ndarray, distances: np.ndarray, keep: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ``keep`` nearest distinct columns of ``attributes`` (F, m), nearest first, and
    their frequencies.

    Ties are ordered by content, so the order of columns does not matter.
    """
    size = len(distances)
    order, spare = np.arange(size), np.empty(size, dtype=np.int64)
    width = 1
    while width < size:  # merge sort, because numba's sort does not accept a comparison
        for start in range(0, size, 2 * width):
            middle, end = min(start + width, size), min(start + 2 * width, size)
            left, right = start, middle
            for place in range(start, end):
                if left < middle and (
                    right >= end or _order(attributes, distances, order[left], order[right]) <= 0
                ):
                    spare[place] = order[left]
                    left += 1
                else:
                    spare[place] = order[right]
                    right += 1
        order, spare = spare, order
        width *= 2
    rows, counts, found = np.empty(keep, dtype=np.int64), np.zeros(keep, dtype=np.int64), 0
    for row in order:
        if found > 0 and _order(attributes, distances, rows[found - 1], row) == 0:
            counts[found - 1] += 1
            continue
        if found == keep:
            break
        rows[found], counts[found] = row, 1
        found += 1
    return rows[:found], counts[:found]


Array = np.ndarray

_LOW = 0xFFFFFFFF


@compiled
def _purity(total: int) -> float:
    """Return the sum of squared class sizes over the size; larger is purer (Gini)."""
    size, having = float(total & _LOW), float(total >> 32)
    return (having * having + (size - having) * (size - having)) / size


@compiled
def _best_cut(code: Array, rows: Array, sums: Array, total: int, bins: Array) -> tuple[float, int]:
    """Return gain and code of the best split ``code <= cut`` of these rows; gain -1 if all codes
    are equal.

    ``bins`` int64 (512,) must be and remains all zeros. It holds two histograms, so that
    consecutive rows do not wait for each other. The cut is halfway between two occurring codes.
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
    """Move the rows with ``code <= cut``, and their sums, to the front, and return their number."""
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
    codes: Array,
    member: Array,
    drawn: Array,
    usable: Array,
    depth: int,
    tries: int,
    rng: np.random.Generator,
) -> tuple[Array, Array, Array, Array]:
    """Grow one tree on sets that were ``drawn`` (sets,) times, with labels ``member`` bool (sets,).

    Each node tries ``tries`` features of ``usable``, drawn without replacement, and more only until
    one varies. A node is a leaf if it is pure or at level ``depth``. Returns per node the feature
    (-1: leaf), cut, left child (the right one follows it) and share of members.
    """
    rows = np.flatnonzero(drawn).astype(np.uint32)
    sums = drawn[rows] + ((drawn[rows] * member[rows]) << 32)
    most = min(2 * len(rows), 2 << depth)
    feature, cuts, child, share = (
        np.full(most, -1),
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.zeros(most),
    )
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
                for place, first, last in (
                    (nodes, start[node], middle),
                    (nodes + 1, middle, end[node]),
                ):
                    start[place], end[place], level[place] = first, last, level[node] + 1
                nodes += 2
        node += 1
    return feature[:nodes], cuts[:nodes], child[:nodes], share[:nodes]


@compiled
def add_shares(
    codes: Array,
    feature: Array,
    cuts: Array,
    child: Array,
    share: Array,
    wanted: Array,
    scores: Array,
    votes: Array,
) -> None:
    """Add the share of its leaf to the score of each set in ``wanted``, and 1 to its votes."""
    for column in wanted:
        node = 0
        while feature[node] >= 0:
            right = codes[feature[node], column] > cuts[node]
            node = child[node] + right
        scores[column] += share[node]
        votes[column] += 1


_TILE = 1 << 13  # 16-bit counts that fit the first-level cache
_LANE = 64  # sets encoded side by side: one cache line per query
_ONES, _TWOS, _FOURS = (
    np.uint64(0x5555555555555555),
    np.uint64(0x3333333333333333),
    np.uint64(0x0F0F0F0F0F0F0F0F),
)
_BYTES = np.uint64(0x0101010101010101)


@compiled
def match_bits(cells: Array, target: Array, is_number: Array) -> Array:
    """Return matches uint64 (rows, words): ``<=`` for numbers, ``==`` for categories; NaN matches
    NaN.
    """
    columns, rows = cells.shape
    bits = np.zeros((rows, (columns + 63) // 64), np.uint64)
    word = np.empty(rows, np.uint64)
    for first in range(0, columns, 64):
        word[:] = 0
        for column in range(first, min(first + 64, columns)):
            values, wanted, place = cells[column], target[column], np.uint64(column - first)
            if np.isnan(wanted):
                for row in range(rows):
                    word[row] |= np.uint64(values[row] != values[row]) << place
            elif is_number[column]:
                for row in range(rows):
                    word[row] |= np.uint64(values[row] <= wanted) << place
            else:
                for row in range(rows):
                    word[row] |= np.uint64(values[row] == wanted) << place
        bits[:, first // 64] = word
    return bits


@inlined
def _fold(counts: Array, base: int, step: int) -> None:
    """Add the counts of the queries with one more column to those without it."""
    lacking, having = counts[base : base + step], counts[base + step : base + 2 * step]
    for place in range(step):
        lacking[place] += having[place]


@compiled
def superset_sums(counts: Array) -> None:
    """Convert counts of exact matches per set of columns to counts of supersets, in place
    (2^columns).
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
    """Count all sets of columns into ``counts`` (2^columns), given the first word of the matches
    (rows,).
    """
    counts[:] = 0
    for row in range(len(masks)):
        counts[masks[row]] += 1
    superset_sums(counts)


@compiled
def count_each(masks: Array, queries: Array, scratch: Array, out: Array) -> None:
    """Write the counts of ``queries`` (bit masks) in each set of matches (sets, rows) to ``out``
    (sets, queries).

    ``scratch`` (2^columns,) has the integer dtype of ``out``.
    """
    for place in range(len(masks)):
        count_all(masks[place], scratch)
        for query in range(len(queries)):
            out[place, query] = scratch[queries[query]]


@inlined
def _ones(word: np.uint64) -> np.uint64:
    """Return the number of set bits."""
    pairs = word - ((word >> np.uint64(1)) & _ONES)
    fours = (pairs & _TWOS) + ((pairs >> np.uint64(2)) & _TWOS)
    return (((fours + (fours >> np.uint64(4))) & _FOURS) * _BYTES) >> np.uint64(56)


@compiled
def count_wide(bits: Array, queries: Array, out: Array) -> None:
    """Do the same for matches (sets, rows, words); ``queries`` (queries, 6) are columns, then
    -1.
    """
    sets, rows, words = bits.shape
    matching = np.empty((64 * words, (rows + 63) // 64), np.uint64)
    both = np.empty(matching.shape[1], np.uint64)
    for place in range(sets):
        matching[:] = 0
        for row in range(rows):
            at, shift = row // 64, np.uint64(row % 64)
            for column in range(64 * words):
                bit = (bits[place, row, column // 64] >> np.uint64(column % 64)) & np.uint64(1)
                matching[column, at] |= bit << shift
        for query in range(len(queries)):
            both[:] = matching[queries[query, 0]]
            for part in range(1, queries.shape[1]):
                if queries[query, part] < 0:
                    break
                other = matching[queries[query, part]]
                for at in range(len(both)):
                    both[at] &= other[at]
            total = np.uint64(0)
            for at in range(len(both)):
                total += _ones(both[at])
            out[place, query] = total


@compiled
def put_codes(counts: Array, low: Array, shift: Array, codes: Array, first: int) -> None:
    """Write counts (sets, queries) as codes 0..255 to ``codes`` (queries, all sets), starting at
    column ``first``.

    A code is (count - ``low``) >> ``shift``, clipped.
    """
    sets, queries = counts.shape
    tile = np.empty((sets, _LANE), np.uint8)
    for start in range(0, queries, _LANE):
        width = min(_LANE, queries - start)
        for place in range(sets):
            for query in range(width):
                code = (np.int32(counts[place, start + query]) - low[start + query]) >> shift[
                    start + query
                ]
                tile[place, query] = min(max(code, np.int32(0)), np.int32(255))
        for query in range(width):
            for place in range(sets):
                codes[start + query, first + place] = tile[place, query]
