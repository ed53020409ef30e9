"""Exact nearest neighbours among encoded rows by a k-d tree.

A node keeps the box of its rows' numbers and, per categorical column, the set of categories present. No row of it is
nearer than the distance to the box plus 1 for each category of the query that the node lacks; nodes that are farther
than the neighbours known are left out, and of the others the nearest is searched first. All children of a node, and
all rows of a leaf, are compared at once, in float32 and with categories modulo 256: such bounds may be lower than they
could be, never too high, and distances of the rows that they leave take float64 and the codes (docs/adr/0009).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from privacy_assets.compute.parallel import in_parallel
from privacy_assets.tables.encoding import EncodedTable
from privacy_assets.tables.memory_mapping import mapped_empty, mapped_take

if TYPE_CHECKING:
    from privacy_assets.neighbours._mixed_tree_growth import Tree

_CHUNK = 2048  # queries that one thread takes at once
_WORTH = 8  # parts that are worth sending away, with the tree
_REACH = np.float32(1e15)  # squares stay finite in float32; numbers cut off here come nearer, never farther
_Within = Callable[[EncodedTable, bool, int], tuple[np.ndarray, ...]]  # of queries, ``whole`` and ``total``
_RARE = 1e-3  # weight of a column of unique values: cutting along it brings no row nearer to its neighbours


@dataclass(frozen=True, eq=False)
class MixedTree:
    """A k-d tree of distinct rows; ``bases`` int64 (q,) numbers the first slot of each categorical column."""

    tree: Tree
    bases: np.ndarray

    @classmethod
    def build(cls, points: EncodedTable) -> MixedTree:
        """Build the tree of one or more distinct rows; takes O(n log n) time and about 3 times their memory."""
        from privacy_assets.neighbours import _mixed_tree_growth as growth

        sizes = np.minimum(points.sizes, growth.SLOTS)
        bases = np.cumsum(sizes) - sizes
        numbers, codes, near, slots = _plain(points)
        child, places, leaves, order, depth = growth.grow(near, slots, _weights(points))
        least, low, high, held = growth.boxes(near, slots, bases, int(sizes.sum()), places, order)
        filled = (2 ** np.diff(leaves)[:, 0].astype(np.uint64) - 1).astype(np.uint32)
        tree = growth.Tree(
            child=child,
            least=least,
            low=low,
            high=high,
            held=held,
            leaves=leaves[:, 0].copy(),
            filled=filled,
            lanes=growth.by_leaf(near, leaves, order),
            slots=growth.by_leaf(slots, leaves, order),
            order=order,
            numbers=mapped_take(numbers, order),
            codes=mapped_take(codes, order),
            room=growth.WIDE * (depth + 1),
        )
        return cls(tree, bases)

    def weigh(self, queries: EncodedTable, radius: float, weights: np.ndarray) -> np.ndarray:
        """Weight float64 (n_q,) of the rows within ``radius`` of each query, those at it included.

        ``weights`` float64 (n,) are those of the points, in their order. Needs no list of what it counts: parts of the
        tree that lie within reach as a whole are counted as one.
        """
        largest = max(np.abs(table).max(initial=0.0) for table in (self.tree.numbers, queries.numeric))
        within, parts, out = self._within(radius, weights), _parts(queries), np.zeros(len(queries))
        found = in_parallel(lambda part: within(queries.take(part), bool(largest < _REACH), 0)[0], parts, _WORTH)
        for part, weight in zip(parts, found, strict=True):
            out[part] = weight
        return out

    def pairs(self, queries: EncodedTable, radius: float, most: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Pairs of a query and a row within ``radius``, at most ``most`` at a time, or those of one query.

        Each time positions int64 (m,) of queries and of rows, and distances float64 (m,).
        """
        ones = np.ones(len(self.tree.order))
        counts, within = self.weigh(queries, radius, ones).astype(np.int64), self._within(radius, ones)
        ends, start = np.cumsum(counts), 0
        while start < len(queries):
            room = ends[start] - counts[start] + most
            stop = max(start + 1, int(np.searchsorted(ends, room, side="right")))
            _, asked, rows, squared = within(queries.take(np.s_[start:stop]), False, int(counts[start:stop].sum()))
            yield asked + start, rows, np.sqrt(squared)
            start = stop

    def _within(self, radius: float, weights: np.ndarray) -> _Within:
        """The kernel for this radius and these weights, those of the points in their order."""
        from privacy_assets.neighbours import _mixed_tree_kernels as kernels

        ordered = weights[self.tree.order].astype(np.float64)
        fixed = (self.tree, self._mixed, kernels.masses(self.tree, ordered), ordered)

        def within(queries: EncodedTable, whole: bool, total: int) -> tuple[np.ndarray, ...]:
            return kernels.within(*fixed, *_plain(queries), self.bases, float(radius) ** 2, whole, total)

        return within

    @cached_property
    def _mixed(self) -> np.ndarray:
        """Uint16 (nodes, q): bit c says that child c may have several categories in the column."""
        from privacy_assets.neighbours._mixed_tree_growth import SLOTS, WIDE

        held, out = self.tree.held, np.zeros((len(self.tree.held), len(self.bases)), dtype=np.uint16)
        ends = np.append(self.bases, held.shape[1])[1:]
        for column, (first, last) in enumerate(zip(self.bases, ends, strict=True)):
            if last - first == SLOTS:  # categories that share a bit
                out[:, column] = np.iinfo(np.uint16).max
                continue
            for child in range(WIDE):
                several = ((held[:, first:last] >> child) & 1).sum(axis=1) > 1
                out[:, column] |= several.astype(np.uint16) << np.uint16(child)
        return out

    def search(self, queries: EncodedTable, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return squared distances float64 (n_q, k), ascending, rows int64 (n_q, k), and the work done.

        Ties are ordered by row; k is at most the number of rows. The work, int64 (2,), counts nodes and leaves looked
        at. It runs in threads, whose number changes no result.
        """
        from privacy_assets.neighbours import _mixed_tree_kernels as kernels

        def search(part: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            return kernels.search(self.tree, *_plain(queries.take(part)), self.bases, k)

        parts = _parts(queries)
        found = in_parallel(search, parts, _WORTH)
        squared, rows = np.empty((len(queries), k)), np.empty((len(queries), k), dtype=np.int64)
        for part, (distance, row, _) in zip(parts, found, strict=True):
            squared[part], rows[part] = distance, row
        return squared, rows, np.sum([np.zeros(2, dtype=np.int64), *(work for _, _, work in found)], axis=0)


def squared_distances(queries: EncodedTable, points: EncodedTable, found: np.ndarray) -> np.ndarray:
    """Squared distances float64 (n_q, c) of each query to the points at ``found`` (n_q, c), as the tree computes them.

    The number of mismatching codes, to which the squared differences of the numbers are added column by column.
    """
    from privacy_assets.neighbours import _mixed_tree_kernels as kernels

    out = np.empty(found.shape)
    kernels.direct(*cells(queries), *cells(points), np.ascontiguousarray(found, np.int64), out)
    return out


def cells(table: EncodedTable) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and codes of the one type and layout that the kernels are compiled for."""
    return np.ascontiguousarray(table.numeric, np.float32), np.ascontiguousarray(table.codes, np.int32)


def _plain(table: EncodedTable) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The cells, and their short forms."""
    from privacy_assets.neighbours._mixed_tree_growth import SLOTS

    numbers, codes = cells(table)
    near, slots = mapped_empty(numbers.shape, np.float32), mapped_empty(codes.shape, np.uint8)
    np.clip(numbers, -_REACH, _REACH, out=near)
    np.remainder(codes, SLOTS, out=slots, casting="unsafe")
    return numbers, codes, near, slots


def _parts(queries: EncodedTable) -> list[np.ndarray]:
    """Positions of like queries, so many that one thread takes them at once."""
    order = _grouped(queries) if len(queries) > _CHUNK else np.arange(len(queries))
    return [order[start : start + _CHUNK] for start in range(0, len(queries), _CHUNK)]


def _grouped(queries: EncodedTable) -> np.ndarray:
    """Order (n,) in which like rows follow each other: they look at the same nodes, which then are in the cache."""
    from privacy_assets.neighbours import _mixed_tree_growth as growth

    return growth.grow(*_plain(queries)[2:], _weights(queries))[3]


def _weights(points: EncodedTable) -> np.ndarray:
    """Share of the rows (q,) that a value's first occurrence does not use up, at least ``_RARE``."""
    weights = np.full(len(points.sizes), _RARE)
    for column, size in enumerate(points.sizes):
        distinct = np.count_nonzero(np.bincount(points.codes[:, column], minlength=int(size)))
        weights[column] = max(_RARE, 1 - distinct / len(points))
    return weights
