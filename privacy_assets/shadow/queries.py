"""The features of the query attack: in how many rows of a synthetic table a set of columns matches the target.

Houssiau et al. 2022; Meeus et al. 2023 ("Achilles' heels"), section 5.1: Q_A(x) = COUNT WHERE AND_{i in A} (a_i = x_i),
with ``<=`` in the place of ``=`` for numbers, whole numbers and datetimes.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from itertools import combinations
from math import comb

import numpy as np

from privacy_assets.compute.parallel import in_threads

MOST_COLUMNS = 20  # up to here every set of columns is counted at once
MOST_QUERIES = 1 << 17  # all of 17 columns; of 18 to 20 as many are drawn
WIDE_QUERIES = 1 << 14  # beyond 20 columns, where each is counted for itself
MOST_ORDER = 6  # columns in a query beyond 20
_BLOCK = 64  # sets counted at a time


def matches(cells: np.ndarray, target: np.ndarray, is_number: np.ndarray) -> np.ndarray:
    """Where the rows of coded ``cells`` (F, m) match ``target`` (F,): uint64 (m, ceil(F / 64)), bit j for column j.

    A number matches when it is at most the target's, a category or boolean when it equals it. A missing cell matches a
    missing target and nothing else does.
    """
    from privacy_assets.shadow._query_kernels import match_bits

    return np.asarray(match_bits(np.ascontiguousarray(cells), np.ascontiguousarray(target), is_number))


@dataclass(frozen=True, eq=False)
class Queries:
    """Which sets of columns are counted: int64 bits (Q,), or, of more than 20 columns, int16 (Q, 6), filled with -1."""

    columns: int
    chosen: np.ndarray

    @classmethod
    def draw(cls, columns: int, rng: np.random.Generator) -> Queries:
        """Every non-empty set of up to 17 columns; 131,072 of those of 18 to 20, drawn uniformly without repeats.

        Beyond 20 columns 16,384 sets of 1 to 6 columns, as many of each order as of any other, or all that there are.
        """
        if columns > MOST_COLUMNS:
            return cls(columns, _by_order(columns, rng))
        every = (1 << columns) - 1
        if every <= MOST_QUERIES:
            return cls(columns, np.arange(1, every + 1))
        return cls(columns, np.sort(rng.choice(every, MOST_QUERIES, replace=False, shuffle=False) + 1))

    def counts(self, matched: np.ndarray) -> np.ndarray:
        """Counts (sets, Q) of matches (sets, m, words); int16, or int32 from 32,768 rows a set on."""
        from privacy_assets.shadow._query_kernels import count_each, count_wide

        kind = np.int16 if matched.shape[1] <= np.iinfo(np.int16).max else np.int32
        out = np.empty((len(matched), len(self.chosen)), dtype=kind)
        if self.columns > MOST_COLUMNS:
            count_wide(matched, self.chosen, out)
        else:
            masks = np.ascontiguousarray(matched[:, :, 0])
            count_each(masks, self.chosen, np.empty(1 << self.columns, dtype=kind), out)
        return out


@dataclass(frozen=True, eq=False)
class CountCodes:
    """Counts of ``queries`` as one byte each: the count less ``low`` (Q,), shifted down by ``shift`` (Q,) bits.

    Exact for every query whose counts over the fitted sets span at most 255, which is nearly always: 1,000 rows have
    counts with deviations of some 20. A count outside the fitted range becomes the nearest end of it.
    """

    queries: Queries
    low: np.ndarray
    shift: np.ndarray

    @classmethod
    def fit(cls, queries: Queries, matched: np.ndarray) -> CountCodes:
        """Learn the ranges from matches (sets, m, words)."""

        def extremes(block: slice) -> tuple[np.ndarray, np.ndarray]:
            counts = queries.counts(matched[block])
            return counts.min(axis=0), counts.max(axis=0)

        found = in_threads(extremes, _blocks(len(matched)))
        low = np.min([low for low, _ in found], axis=0).astype(np.int32)
        span = np.max([high for _, high in found], axis=0) - low
        return cls(queries, low, np.maximum(np.ceil(np.log2(span + 1)).astype(np.int32) - 8, 0))

    def encode(self, matched: np.ndarray) -> np.ndarray:
        """Codes uint8 (Q, sets), padded with columns of 0 to a multiple of eight sets: Q x sets bytes.

        4,000 sets take 131 MB at 15 columns and 524 MB at 17 and beyond; nothing larger is ever held.
        """
        from privacy_assets.shadow._query_kernels import put_codes

        codes = np.zeros((len(self.low), -(-len(matched) // 8) * 8), dtype=np.uint8)

        def put(block: slice) -> None:
            put_codes(self.queries.counts(matched[block]), self.low, self.shift, codes, block.start)

        in_threads(put, _blocks(len(matched)))
        return codes

    def distinct(self, codes: np.ndarray) -> np.ndarray:
        """Places, ascending, of the queries that vary over ``codes`` (Q, sets) and equal no query before them."""
        first: dict[tuple[bytes, int, int], int] = {}
        for place in np.flatnonzero(codes.any(axis=1)).tolist():
            digest = blake2b(codes[place], digest_size=16).digest()
            first.setdefault((digest, int(self.low[place]), int(self.shift[place])), place)
        return np.array(list(first.values()), dtype=np.int64)


def _by_order(columns: int, rng: np.random.Generator) -> np.ndarray:
    """Sets of 1 to 6 of ``columns`` columns (Q, 6), the same number of each order as far as there are so many."""
    chosen: list[tuple[int, ...]] = []
    for order in range(1, MOST_ORDER + 1):
        wanted = (WIDE_QUERIES - len(chosen)) // (MOST_ORDER + 1 - order)
        if comb(columns, order) <= wanted:
            chosen += combinations(range(columns), order)
            continue
        found: set[tuple[int, ...]] = set()
        while len(found) < wanted:
            found.add(tuple(sorted(rng.choice(columns, order, replace=False).tolist())))
        chosen += sorted(found)
    filled = np.full((len(chosen), MOST_ORDER), -1, dtype=np.int16)
    for place, query in enumerate(chosen):
        filled[place, : len(query)] = query
    return filled


def _blocks(sets: int) -> list[slice]:
    return [slice(start, min(start + _BLOCK, sets)) for start in range(0, sets, _BLOCK)]
