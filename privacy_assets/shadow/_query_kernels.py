"""Compiled counting behind :mod:`privacy_assets.shadow.queries`. Imports numba: import it where it is used.

A synthetic row is its matches with the target: bit j says that it matches in column j. A query is a set of columns
with the same bits, and its count is the number of rows that match in all of them.
"""

from __future__ import annotations

import numpy as np

from privacy_assets.compute.compiling import compiled, inlined

Array = np.ndarray

_TILE = 1 << 13  # counts of 16 bits that stay in the first-level cache together
_LANE = 64  # sets coded side by side: one cache line of each query
_ONES, _TWOS, _FOURS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333), np.uint64(0x0F0F0F0F0F0F0F0F)
_BYTES = np.uint64(0x0101010101010101)


@compiled
def match_bits(cells: Array, target: Array, is_number: Array) -> Array:
    """Matches uint64 (rows, words) of cells (columns, rows): ``<=`` in numbers, ``==`` in categories, NaN only NaN."""
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
    """Add the counts of the queries that have one more column to those that lack it."""
    lacking, having = counts[base : base + step], counts[base + step : base + 2 * step]
    for place in range(step):
        lacking[place] += having[place]


@compiled
def superset_sums(counts: Array) -> None:
    """Turn how many rows match in exactly a set of columns into how many match in at least it, in place (2^columns)."""
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
    """Counts of every set of columns, into ``counts`` (2^columns), from the first word of the matches (rows,)."""
    counts[:] = 0
    for row in range(len(masks)):
        counts[masks[row]] += 1
    superset_sums(counts)


@compiled
def count_each(masks: Array, queries: Array, scratch: Array, out: Array) -> None:
    """Counts of ``queries`` (columns as bits) in each set of matches (sets, rows), into ``out`` (sets, queries).

    ``scratch`` (2^columns,) has the integer type of ``out``.
    """
    for place in range(len(masks)):
        count_all(masks[place], scratch)
        for query in range(len(queries)):
            out[place, query] = scratch[queries[query]]


@inlined
def _ones(word: np.uint64) -> np.uint64:
    """Number of bits that are set."""
    pairs = word - ((word >> np.uint64(1)) & _ONES)
    fours = (pairs & _TWOS) + ((pairs >> np.uint64(2)) & _TWOS)
    return (((fours + (fours >> np.uint64(4))) & _FOURS) * _BYTES) >> np.uint64(56)


@compiled
def count_wide(bits: Array, queries: Array, out: Array) -> None:
    """Like :func:`count_each`, of matches (sets, rows, words); ``queries`` (queries, 6) name columns, then -1."""
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
    """Write counts (sets, queries) as codes 0..255 into ``codes`` (queries, all sets) from column ``first`` on.

    A code is the count less ``low``, shifted down by ``shift`` bits and clipped: below and above stay below and above.
    """
    sets, queries = counts.shape
    tile = np.empty((sets, _LANE), np.uint8)
    for start in range(0, queries, _LANE):
        width = min(_LANE, queries - start)
        for place in range(sets):
            for query in range(width):
                code = (np.int32(counts[place, start + query]) - low[start + query]) >> shift[start + query]
                tile[place, query] = min(max(code, np.int32(0)), np.int32(255))
        for query in range(width):
            for place in range(sets):
                codes[start + query, first + place] = tile[place, query]
