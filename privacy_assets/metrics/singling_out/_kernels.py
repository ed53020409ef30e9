"""Compiled scans behind :mod:`.predicates`. Imports numba: import it where it is used.

A predicate is a range of codes of one column, both ends included; a query is a conjunction of predicates, the rarest
first. Only the rows that match the first one are looked at: ``order`` int32 (columns, rows) lists the rows by code, and
``below[start[j] + v]`` counts those with a code smaller than v in column j.
"""

from __future__ import annotations

import numpy as np

from privacy_assets.compute.compiling import compiled, inlined

Array = np.ndarray

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@inlined
def span(order: Array, start: Array, below: Array, column: int, low: int, high: int) -> Array:
    """Rows whose code in ``column`` lies in low..high."""
    base = start[column]
    return order[column, below[base + low] : below[base + high + 1]]


@inlined
def matches(codes: Array, row: int, columns: Array, low: Array, high: Array) -> bool:
    """True when a row, known to match the first predicate, matches the others."""
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
    wanted: int,
    tries: int,
    patience: int,
    rng: np.random.Generator,
) -> tuple[Array, int]:
    """Draw random targets and random columns until ``wanted`` queries match one row of ``codes`` int32 (rows, columns).

    The predicate for code v of column j is the range ``low_of[start[j] + v] .. high_of[start[j] + v]``. Stops after
    ``tries`` candidates or ``patience`` in a row without success. Returns columns, low and high, int32 (found, 3,
    width), and the number of candidates tried.
    """
    out, query = np.empty((wanted, 3, width), np.int32), np.empty((4, width), np.int64)
    index = (codes, order, start, below)
    found, tried = _draw(*index, targets, low_of, high_of, tries, patience, rng, np.arange(codes.shape[1]), query, out)
    return out[:found], tried


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
    wanted, width = len(out), out.shape[2]
    columns, low, high, share = query[0], query[1], query[2], query[3]
    found, tried, last = 0, 0, 0
    while found < wanted and tried < tries and tried - last < patience:
        tried += 1
        target = targets[int(rng.random() * len(targets))]
        for position in range(width):
            other = position + int(rng.random() * (len(deck) - position))
            column = deck[other]
            deck[position], deck[other] = column, deck[position]
            code = start[column] + codes[target, column]
            lowest, highest = low_of[code], high_of[code]
            rows = below[start[column] + highest + 1] - below[start[column] + lowest]
            place = position
            while place > 0 and share[place - 1] > rows:
                share[place], columns[place] = share[place - 1], columns[place - 1]
                low[place], high[place] = low[place - 1], high[place - 1]
                place -= 1
            share[place], columns[place], low[place], high[place] = rows, column, lowest, highest
        matched = 0
        for row in span(order, start, below, columns[0], low[0], high[0]):
            if matches(codes, row, columns, low, high):
                matched += 1
                if matched == 2:
                    break
        if matched == 1:
            for position in range(width):
                for part in range(3):
                    out[found, part, position] = query[part, position]
            found, last = found + 1, tried
    return found, tried


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
    """Distinct subjects that each query matches; ``subject`` int64 (rows,), ``member`` bool (subjects,).

    Returns int64 (queries, 2), how many there are outside and inside ``member``, and int64 (relabellings,), how many
    queries match exactly one member under each bit of ``labels`` uint64 (subjects, words).
    """
    words = labels.shape[1]
    counts, hits = np.zeros((len(columns), 2), np.int64), np.zeros(64 * words, np.int64)
    work = np.full(len(member), -1, np.int32), np.empty((2, words), np.uint64)
    _match(codes, order, start, below, subject, member, labels, columns, low, high, counts, hits, *work)
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
    once, again = members[0], members[1]
    for query in range(len(columns)):
        these, lows, highs = columns[query], low[query], high[query]
        once[:], again[:], settled = 0, 0, False
        for row in span(order, start, below, these[0], lows[0], highs[0]):
            if matches(codes, row, these, lows, highs) and seen_by[subject[row]] != query:
                person = subject[row]
                seen_by[person] = query
                counts[query, 1 if member[person] else 0] += 1
                if settled:  # every relabelling has two members already
                    continue
                common = _ALL
                for word in range(len(once)):
                    label = labels[person, word]
                    again[word] |= once[word] & label
                    once[word] |= label
                    common &= again[word]
                settled = common == _ALL
        if counts[query, 0] + counts[query, 1] > 0 and not settled:
            for word in range(len(once)):
                alone = once[word] & ~again[word]
                for bit in range(64):
                    hits[64 * word + bit] += np.int64((alone >> np.uint64(bit)) & np.uint64(1))
