"""Compiled loops of singling out, attribute inference and copies. Imports numba: import it where it
is used.

Singling out: a predicate is a range of codes of one column, both ends included. A query is a
conjunction of predicates, the rarest first. Only rows that match the first one are scanned:
``order`` int32 (columns, rows) contains the rows sorted by code, and ``below[start[j] + v]`` is the
number of rows with a code smaller than v in column j.

Attribute inference: tables are transposed, float32 (parts, rows). Column c has the parts
``start[c]`` to ``start[c + 1]``. A part is a standardized number or, where ``category`` is true, a
code whose mismatch costs 1. Points are read in order, so the earlier one of a tie is the neighbor.
Float32 sums exclude most points of a block; the others are summed in float64. ``slack`` bounds the
relative rounding error of a float32 sum.
"""

from __future__ import annotations

import numpy as np

from privacy_assets.infra.compiling import compiled, inlined

Array = np.ndarray
_POINT_BLOCK = 256


@inlined
def add(value: float, points: Array, category: bool, out: Array) -> None:
    """Add the squared differences of one part to ``out`` (block,)."""
    if category:
        for at in range(len(points)):
            out[at] += np.float32(1) if points[at] != value else np.float32(0)
    else:
        for at in range(len(points)):
            difference = points[at] - value
            out[at] += difference * difference


@inlined
def apart(query: Array, point: Array, category: Array, first: int, last: int) -> float:
    """Return the float64 squared distance in the parts first..last - 1."""
    total = 0.0
    for part in range(first, last):
        if category[part]:
            total += 1.0 if query[part] != point[part] else 0.0
        else:
            total += (np.float64(query[part]) - np.float64(point[part])) ** 2
    return total


@inlined
def insert(distances: Array, positions: Array, distance: float, position: int) -> None:
    """Insert a point that is nearer than the last one. Ascending order; ties after existing
    entries.
    """
    slot = len(distances) - 1
    while slot > 0 and distances[slot - 1] > distance:
        distances[slot] = distances[slot - 1]
        positions[slot] = positions[slot - 1]
        slot -= 1
    distances[slot] = distance
    positions[slot] = position


@inlined
def within(total: Array, largest: Array, reach: float, keep: float) -> int:
    """Count the points of a block that may be nearer than ``reach`` if their largest part is
    ignored.
    """
    count = 0
    bound = np.float32(reach)
    for at in range(len(total)):
        count += 1 if total[at] * np.float32(keep) - largest[at] < bound else 0
    return count


def nearest_by(
    queries: Array,
    points: Array,
    category: Array,
    start: Array,
    slack: float,
    columns: Array,
    k: int,
) -> Array:
    """Return the nearest points by selected columns, int64 (queries, k).

    ``columns`` int64 (queries, size) selects the columns of each query.
    """
    positions = np.full((queries.shape[1], k), -1, np.int64)
    distances = np.empty(k)
    sums = np.zeros((2, _POINT_BLOCK), np.float32)
    _nearest_by(queries, points, category, start, slack, columns, positions, distances, sums)
    return positions


@compiled
def _nearest_by(
    queries: Array,
    points: Array,
    category: Array,
    start: Array,
    slack: float,
    columns: Array,
    positions: Array,
    distances: Array,
    sums: Array,
) -> None:
    last = len(distances) - 1
    for row in range(len(positions)):
        distances[:] = np.inf
        query = queries[:, row]
        for first in range(0, points.shape[1], _POINT_BLOCK):
            block = points[:, first : first + _POINT_BLOCK]
            total = sums[0, : block.shape[1]]
            nothing = sums[1, : block.shape[1]]
            total[:] = 0
            for column in columns[row]:
                for part in range(start[column], start[column + 1]):
                    add(query[part], block[part], category[part], total)
            if within(total, nothing, distances[last], 1 - slack) == 0:
                continue
            for at in range(len(total)):
                if total[at] * (1 - slack) < distances[last]:
                    exact = 0.0
                    for column in columns[row]:
                        exact += apart(
                            query, block[:, at], category, start[column], start[column + 1]
                        )
                    if exact < distances[last]:
                        insert(distances, positions[row], exact, first + at)


@inlined
def offer(parts: Array, after: Array, at: int, distances: Array, positions: Array) -> float:
    """Update the neighbors of every left-out column with a point, and return the largest k-th
    distance.

    ``parts`` float64 (columns,) are the squared distances of the point in each column, ``after``
    (columns,) is scratch.
    """
    last = distances.shape[1] - 1
    total = 0.0
    reach = 0.0
    for column in range(len(parts) - 1, -1, -1):
        after[column] = total
        total += parts[column]
    before = 0.0  # not total - part, because subtracting a large part would cancel the small ones
    for column in range(len(parts)):
        without_column = before + after[column]
        if without_column < distances[column, last]:
            insert(distances[column], positions[column], without_column, at)
        before += parts[column]
        reach = max(reach, distances[column, last])
    return reach


@inlined
def column_sums(
    query: Array,
    block: Array,
    category: Array,
    start: Array,
    part: Array,
    total: Array,
    largest: Array,
) -> None:
    """Compute float32 squared distances (block,): the sum over columns, and the largest column."""
    total[:] = 0
    largest[:] = 0
    for column in range(len(start) - 1):
        part[:] = 0
        for position in range(start[column], start[column + 1]):
            add(query[position], block[position], category[position], part)
        for at in range(len(part)):
            total[at] += part[at]
            largest[at] = max(largest[at], part[at])


def nearest_without(
    queries: Array, points: Array, category: Array, start: Array, slack: float, k: int
) -> Array:
    """Return the nearest points by all columns except one, for each of them: int64 (queries,
    columns, k).
    """
    width = len(start) - 1
    positions = np.full((queries.shape[1], width, k), -1, np.int64)
    distances = np.empty((width, k))
    scratch = np.empty((2, width))
    sums = np.empty((3, _POINT_BLOCK), np.float32)
    _nearest_without(queries, points, category, start, slack, positions, distances, scratch, sums)
    return positions


@compiled
def _nearest_without(
    queries: Array,
    points: Array,
    category: Array,
    start: Array,
    slack: float,
    positions: Array,
    distances: Array,
    scratch: Array,
    sums: Array,
) -> None:
    parts = scratch[0]
    after = scratch[1]
    for row in range(len(positions)):
        distances[:] = np.inf
        reach = np.inf
        query = queries[:, row]
        for first in range(0, points.shape[1], _POINT_BLOCK):
            block = points[:, first : first + _POINT_BLOCK]
            part = sums[0, : block.shape[1]]
            total = sums[1, : block.shape[1]]
            largest = sums[2, : block.shape[1]]
            column_sums(query, block, category, start, part, total, largest)
            if within(total, largest, reach, 1 - slack) == 0:
                continue
            for at in range(len(total)):
                if total[at] * (1 - slack) - largest[at] < reach:
                    for column in range(len(parts)):
                        parts[column] = apart(
                            query, block[:, at], category, start[column], start[column + 1]
                        )
                    reach = offer(parts, after, first + at, distances, positions[row])


_BLOCK = 4096  # synthetic rows whose counts fit in the processor's cache
_MATCHES = 8_000_000  # match weights of real with synthetic rows that are held in memory
_LARGEST_BLOCK = 256  # synthetic rows whose match weights are held in memory
_N_COMPARED = 3  # the margin of a match is over the person with this rank


def best_margins(
    real: np.ndarray, weights: np.ndarray, subject_codes: np.ndarray, synthetic: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find for each real row the synthetic row that matches it better than other people.

    The match weight of two rows is the sum of ``weights`` of the columns in which they agree. The
    match weight of a person with a synthetic row is the largest one of the person's rows. The
    margin of a real row with a synthetic row is their match weight minus the third largest match
    weight of a person with this synthetic row, or 0 if there are fewer people.

    Args:
        real: Codes of the real rows, int32 (F, n).
        weights: Weights of their cells, at least 0, float32 (F, n).
        subject_codes: Subject of each real row, int64 (n,).
        synthetic: Codes of the synthetic rows, int32 (F, m).

    Returns:
        The largest margin of each real row, float32 (n,), and the position of the first synthetic
        row that has it, int64 (n,). Without synthetic rows, -inf and -1.
    """
    n_rows = real.shape[1]
    margins = np.full(n_rows, -np.inf, np.float32)
    positions = np.full(n_rows, -1)
    block = int(np.clip(_MATCHES // max(n_rows, 1), 1, _LARGEST_BLOCK))
    sums = np.zeros((n_rows, block), np.float32)
    _best_margins(real, weights, subject_codes, synthetic, sums, margins, positions)
    return margins, positions


@compiled
def _best_margins(
    real: Array,
    weights: Array,
    subject_codes: Array,
    synthetic: Array,
    sums: Array,
    margins: Array,
    positions: Array,
) -> None:
    n_columns, n_synthetic = synthetic.shape
    n_real, block = sums.shape
    largest = np.zeros((block, _N_COMPARED), np.float32)
    holders = np.zeros((block, _N_COMPARED), np.int64)
    for first in range(0, n_synthetic, block):
        size = min(block, n_synthetic - first)
        largest[:] = 0
        holders[:] = -1
        for i in range(n_real):
            match = sums[i]
            for j in range(size):
                match[j] = 0
            for column in range(n_columns):
                weight = weights[column, i]
                code = real[column, i]
                if weight > 0:
                    codes = synthetic[column, first : first + size]
                    for j in range(size):
                        match[j] += weight if codes[j] == code else np.float32(0)
            for j in range(size):
                if match[j] > largest[j, -1]:
                    _keep_largest(largest[j], holders[j], match[j], subject_codes[i])
        for i in range(n_real):
            for j in range(size):
                margin = sums[i, j] - largest[j, -1]
                if margin > margins[i]:
                    margins[i] = margin
                    positions[i] = first + j


@inlined
def _keep_largest(largest: Array, holders: Array, weight: float, subject: int) -> None:
    """Replace the weight of a subject, or the smallest one, if ``weight`` is larger.

    ``largest`` (k,) is descending, and ``holders`` (k,) are the subjects of these weights.
    """
    at = len(largest) - 1
    for rank in range(len(largest)):
        if holders[rank] == subject:
            at = rank
    if weight <= largest[at]:
        return
    while at > 0 and largest[at - 1] < weight:
        largest[at] = largest[at - 1]
        holders[at] = holders[at - 1]
        at -= 1
    largest[at] = weight
    holders[at] = subject


def changed_cells(real: Array, released: Array) -> Array:
    """Count for each real row the rows that differ from it in no, one and two cells, int64 (3, n).

    ``real`` int32 (F, n) and ``released`` int32 (F, m) are codes, C order.
    """
    counts = np.zeros((3, real.shape[1]), np.int64)
    _changed(real, released, np.zeros(_BLOCK, np.int32), counts)
    return counts


@compiled
def _changed(real: Array, released: Array, n_changed: Array, counts: Array) -> None:
    columns, n_rows = released.shape
    for first in range(0, n_rows, len(n_changed)):
        size = min(len(n_changed), n_rows - first)
        for i in range(real.shape[1]):
            for j in range(size):
                n_changed[j] = 0
            for column in range(columns):
                code = real[column, i]
                codes = released[column, first : first + size]
                for j in range(size):
                    n_changed[j] += 1 if codes[j] != code else 0
            for j in range(size):
                if n_changed[j] <= 2:
                    counts[n_changed[j], i] += 1


_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@inlined
def span(order: Array, start: Array, below: Array, column: int, low: int, high: int) -> Array:
    """Return the rows whose code in ``column`` is in low..high."""
    base = start[column]
    return order[column, below[base + low] : below[base + high + 1]]


@inlined
def matches(codes: Array, row: int, columns: Array, low: Array, high: Array) -> bool:
    """Return True if a row that matches the first predicate matches the others."""
    for position in range(1, len(columns)):
        code = codes[row, columns[position]]
        if code < low[position] or code > high[position]:
            return False
    return True


def draw(
    codes: Array,
    order: Array,
    start: Array,
    below: Array,
    targets: Array,
    low_of: Array,
    high_of: Array,
    width: int,
    n_queries: int,
    tries: int,
    patience: int,
    rng: np.random.Generator,
) -> tuple[Array, int]:
    """Draw random targets and columns until ``n_queries`` queries match exactly one row.

    ``codes`` is int32 (rows, columns). The predicate for code v of column j is the range
    ``low_of[start[j] + v] .. high_of[start[j] + v]``. Stops after ``tries`` candidates, or
    ``patience`` consecutive failures. Returns columns, low and high, int32 (drawn queries, 3,
    width), and the number of candidates.
    """
    out = np.empty((n_queries, 3, width), np.int32)
    query = np.empty((4, width), np.int64)
    n_drawn, tried = _draw(
        codes,
        order,
        start,
        below,
        targets,
        low_of,
        high_of,
        tries,
        patience,
        rng,
        np.arange(codes.shape[1]),
        query,
        out,
    )
    return out[:n_drawn], tried


@compiled
def _draw(
    codes: Array,
    order: Array,
    start: Array,
    below: Array,
    targets: Array,
    low_of: Array,
    high_of: Array,
    tries: int,
    patience: int,
    rng: np.random.Generator,
    deck: Array,
    query: Array,
    out: Array,
) -> tuple[int, int]:
    n_queries = len(out)
    width = out.shape[2]
    columns = query[0]
    low = query[1]
    high = query[2]
    n_rows = query[3]
    n_drawn = 0
    tried = 0
    last = 0
    while n_drawn < n_queries and tried < tries and tried - last < patience:
        tried += 1
        target = targets[int(rng.random() * len(targets))]
        for position in range(width):
            swapped = position + int(rng.random() * (len(deck) - position))
            column = deck[swapped]
            deck[position], deck[swapped] = column, deck[position]
            code = start[column] + codes[target, column]
            lowest = low_of[code]
            highest = high_of[code]
            rows = below[start[column] + highest + 1] - below[start[column] + lowest]
            slot = position
            while slot > 0 and n_rows[slot - 1] > rows:
                n_rows[slot] = n_rows[slot - 1]
                columns[slot] = columns[slot - 1]
                low[slot] = low[slot - 1]
                high[slot] = high[slot - 1]
                slot -= 1
            n_rows[slot] = rows
            columns[slot] = column
            low[slot] = lowest
            high[slot] = highest
        matched = 0
        for row in span(order, start, below, columns[0], low[0], high[0]):
            if matches(codes, row, columns, low, high):
                matched += 1
                if matched == 2:
                    break
        if matched == 1:
            for position in range(width):
                for part in range(3):
                    out[n_drawn, part, position] = query[part, position]
            n_drawn += 1
            last = tried
    return n_drawn, tried


def match(
    codes: Array,
    order: Array,
    start: Array,
    below: Array,
    subject: Array,
    member: Array,
    labels: Array,
    columns: Array,
    low: Array,
    high: Array,
) -> tuple[Array, Array]:
    """Count the distinct subjects that each query matches.

    Args:
        codes: Codes of the table, see :class:`.CodedTable`; the same for the next three.
        order: Rows by code.
        start: First flat code of each column.
        below: Numbers of rows with smaller codes.
        subject: Subject of each row, int64 (rows,).
        member: Membership of each subject, bool (subjects,).
        labels: Relabelings, uint64 (subjects, words), one per bit.
        columns: Columns of the queries, int32 (queries, width).
        low: Lowest codes.
        high: Highest codes.

    Returns:
        The numbers of matched subjects outside and inside ``member``, int64 (queries, 2), and for
        each relabeling the number of queries that match exactly one member, int64 (relabelings,).
    """
    words = labels.shape[1]
    counts = np.zeros((len(columns), 2), np.int64)
    hits = np.zeros(64 * words, np.int64)
    seen_by = np.full(len(member), -1, np.int32)
    members = np.empty((2, words), np.uint64)
    _match(
        codes,
        order,
        start,
        below,
        subject,
        member,
        labels,
        columns,
        low,
        high,
        counts,
        hits,
        seen_by,
        members,
    )
    return counts, hits


@compiled
def _match(
    codes: Array,
    order: Array,
    start: Array,
    below: Array,
    subject: Array,
    member: Array,
    labels: Array,
    columns: Array,
    low: Array,
    high: Array,
    counts: Array,
    hits: Array,
    seen_by: Array,
    members: Array,
) -> None:
    once = members[0]
    twice = members[1]
    for query in range(len(columns)):
        query_columns = columns[query]
        lows = low[query]
        highs = high[query]
        once[:] = 0
        twice[:] = 0
        settled = False
        for row in span(order, start, below, query_columns[0], lows[0], highs[0]):
            if matches(codes, row, query_columns, lows, highs) and seen_by[subject[row]] != query:
                person = subject[row]
                seen_by[person] = query
                counts[query, 1 if member[person] else 0] += 1
                if settled:  # every relabeling has two members already
                    continue
                common = _ALL
                for word in range(len(once)):
                    label = labels[person, word]
                    twice[word] |= once[word] & label
                    once[word] |= label
                    common &= twice[word]
                settled = common == _ALL
        if counts[query, 0] + counts[query, 1] > 0 and not settled:
            for word in range(len(once)):
                exactly_once = once[word] & ~twice[word]
                for bit in range(64):
                    hits[64 * word + bit] += np.int64(
                        (exactly_once >> np.uint64(bit)) & np.uint64(1)
                    )
