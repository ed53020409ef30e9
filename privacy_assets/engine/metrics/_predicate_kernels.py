"""Compiled scans behind :mod:`privacy_assets.engine.metrics.predicates`. Imports numba: import it where it is used.

A predicate is a range of codes of one column, both ends included; a query is a conjunction of predicates, the rarest
first. Only the rows that match the first one are looked at: ``order`` int32 (columns, rows) lists the rows by code, and
``below[start[j] + v]`` counts those with a code smaller than v in column j.
"""

from __future__ import annotations

import numpy as np

from privacy_assets.engine.compiling import compiled

Array = np.ndarray


@compiled
def span(order: Array, start: Array, below: Array, column: int, low: int, high: int) -> Array:
    """Rows whose code in ``column`` lies in low..high."""
    base = start[column]
    return order[column, below[base + low] : below[base + high + 1]]


@compiled
def matches(codes: Array, columns: Array, low: Array, high: Array) -> bool:
    """True when a row, known to match the first predicate, matches the others."""
    for position in range(1, len(columns)):
        code = codes[columns[position]]
        if code < low[position] or code > high[position]:
            return False
    return True


@compiled
def stands_alone(codes: Array, rows: Array, columns: Array, low: Array, high: Array) -> bool:
    """True when fewer than two of ``rows`` match; stops at the second."""
    found = 0
    for row in rows:
        if matches(codes[row], columns, low, high):
            found += 1
            if found == 2:
                return False
    return True


@compiled
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
) -> tuple[Array, Array, Array, int]:
    """Draw random targets and random columns until ``wanted`` queries match one row of ``codes`` int32 (rows, columns).

    The predicate for code v of column j is the range ``low_of[start[j] + v] .. high_of[start[j] + v]``. Stops after
    ``tries`` candidates or ``patience`` in a row without success. Returns columns, low and high, int32 (found, width)
    each, and the number of candidates tried.
    """
    out_columns = np.empty((wanted, width), np.int32)
    out_low, out_high = np.empty_like(out_columns), np.empty_like(out_columns)
    deck = np.arange(codes.shape[1])
    low, high, share = np.empty(width, np.int32), np.empty(width, np.int32), np.empty(width, np.int64)
    found, tried, last = 0, 0, 0
    while found < wanted and tried < tries and tried - last < patience:
        tried += 1
        target = codes[targets[int(rng.random() * len(targets))]]
        for position in range(width):
            other = position + int(rng.random() * (len(deck) - position))
            deck[position], deck[other] = deck[other], deck[position]
            base = start[deck[position]]
            code = base + target[deck[position]]
            low[position], high[position] = low_of[code], high_of[code]
            share[position] = below[base + high[position] + 1] - below[base + low[position]]
        rarest = np.argsort(share)
        columns, lows, highs = deck[rarest], low[rarest], high[rarest]
        rows = span(order, start, below, columns[0], lows[0], highs[0])
        if stands_alone(codes, rows, columns, lows, highs):
            out_columns[found], out_low[found], out_high[found] = columns, lows, highs
            found, last = found + 1, tried
    return out_columns[:found], out_low[:found], out_high[:found], tried


@compiled
def match(
    codes: Array,
    order: Array,
    start: Array,
    below: Array,
    subject: Array,
    member: Array,
    columns: Array,
    low: Array,
    high: Array,
    keep: int,
) -> tuple[Array, Array]:
    """Distinct subjects that each query matches; ``subject`` int64 (rows,), ``member`` bool (subjects,).

    Returns int32 (queries, keep) with the first ``keep`` of them (-1 beyond), and int64 (queries, 2) how many there are
    outside and inside ``member``.
    """
    first = np.full((len(columns), keep), -1, np.int32)
    counts = np.zeros((len(columns), 2), np.int64)
    seen_by = np.full(len(member), -1, np.int64)
    for query in range(len(columns)):
        total = 0
        these, lows, highs = columns[query], low[query], high[query]
        for row in span(order, start, below, these[0], lows[0], highs[0]):
            person = subject[row]
            if seen_by[person] != query and matches(codes[row], these, lows, highs):
                seen_by[person] = query
                counts[query, 1 if member[person] else 0] += 1
                if total < keep:
                    first[query, total] = person
                total += 1
    return first, counts
