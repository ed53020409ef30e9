"""Exact nearest neighbors among encoded rows by a k-d tree.

A node stores the bounding box of its rows' numbers and, per categorical column, the set of
categories present. The distance to the box plus 1 per category of the query that is absent is a
lower bound for all its rows. Nodes beyond the current neighbors are skipped; the others are
searched nearest first. All children of a node, and all rows of a leaf, are compared in one pass, in
float32 and with categories modulo 256. Such bounds may be too low but never too high; distances of
the remaining rows use float64 and full codes (docs/adr/0009).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from privacy_assets.infra.parallel import in_parallel
from privacy_assets.tables.arrays import mapped_empty, mapped_take
from privacy_assets.tables.encoding import EncodedTable

if TYPE_CHECKING:
    from privacy_assets.distances._tree_kernels import Tree

_CHUNK = 2048  # queries per thread and call
_WORTH = 8  # minimum number of chunks for sending work and tree to a cluster
# squares stay finite in float32; clipping reduces distances and never increases them
_REACH = np.float32(1e15)
# arguments: queries, ``whole``, ``total``
_Within = Callable[[EncodedTable, bool, int], tuple[np.ndarray, ...]]
# weight of a column of unique values, in which splits do not separate near from far rows
_RARE = 1e-3


@dataclass(frozen=True, eq=False)
class MixedTree:
    """A k-d tree of distinct rows; ``bases`` int64 (q,) is the first slot of each categorical
    column.
    """

    tree: Tree
    bases: np.ndarray

    @classmethod
    def build(cls, points: EncodedTable) -> MixedTree:
        """Build the tree of one or more distinct rows in O(n log n) time and about 3 times their
        memory.
        """
        from privacy_assets.distances import _tree_kernels as growth

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
        """Sum the weights of the rows within ``radius`` of each query, including equal rows:
        float64 (n_q,).

        ``weights`` float64 (n,) are in the order of the points. Subtrees entirely within the radius
        are counted without visiting their rows.
        """
        largest = max(
            np.abs(table).max(initial=0.0) for table in (self.tree.numbers, queries.numeric)
        )
        within, parts, out = self._within(radius, weights), _parts(queries), np.zeros(len(queries))
        found = in_parallel(
            lambda part: within(queries.take(part), bool(largest < _REACH), 0)[0], parts, _WORTH
        )
        for part, weight in zip(parts, found, strict=True):
            out[part] = weight
        return out

    def pairs(
        self, queries: EncodedTable, radius: float, most: int
    ) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield pairs of a query and a row within ``radius``, at most ``most`` at a time unless one
        query has more.

        Each item contains positions of queries and of rows, int64 (m,), and distances, float64
        (m,).
        """
        ones = np.ones(len(self.tree.order))
        counts, within = (
            self.weigh(queries, radius, ones).astype(np.int64),
            self._within(radius, ones),
        )
        ends, start = np.cumsum(counts), 0
        while start < len(queries):
            room = ends[start] - counts[start] + most
            stop = max(start + 1, int(np.searchsorted(ends, room, side="right")))
            _, asked, rows, squared = within(
                queries.take(np.s_[start:stop]), False, int(counts[start:stop].sum())
            )
            yield asked + start, rows, np.sqrt(squared)
            start = stop

    def _within(self, radius: float, weights: np.ndarray) -> _Within:
        """Return the kernel for this radius and these weights, which are in the order of the
        points.
        """
        from privacy_assets.distances import _tree_kernels as kernels

        ordered = weights[self.tree.order].astype(np.float64)
        fixed = (self.tree, self._mixed, kernels.masses(self.tree, ordered), ordered)

        def within(queries: EncodedTable, whole: bool, total: int) -> tuple[np.ndarray, ...]:
            return kernels.within(
                *fixed, *_plain(queries), self.bases, float(radius) ** 2, whole, total
            )

        return within

    @cached_property
    def _mixed(self) -> np.ndarray:
        """Return uint16 (nodes, q): bit c is set if child c may have several categories in the
        column.
        """
        from privacy_assets.distances._tree_kernels import SLOTS, WIDE

        held, out = (
            self.tree.held,
            np.zeros((len(self.tree.held), len(self.bases)), dtype=np.uint16),
        )
        ends = np.append(self.bases, held.shape[1])[1:]
        for column, (first, last) in enumerate(zip(self.bases, ends, strict=True)):
            if last - first == SLOTS:  # several categories may share a bit
                out[:, column] = np.iinfo(np.uint16).max
                continue
            for child in range(WIDE):
                several = ((held[:, first:last] >> child) & 1).sum(axis=1) > 1
                out[:, column] |= several.astype(np.uint16) << np.uint16(child)
        return out

    def search(self, queries: EncodedTable, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return squared distances float64 (n_q, k), ascending, rows int64 (n_q, k), and the work
        done.

        Ties are ordered by row; k must not exceed the number of rows. The work, int64 (2,), counts
        visited nodes and leaves. The search runs in threads; their number does not affect results.
        """
        from privacy_assets.distances import _tree_kernels as kernels

        def search(part: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            return kernels.search(self.tree, *_plain(queries.take(part)), self.bases, k)

        parts = _parts(queries)
        found = in_parallel(search, parts, _WORTH)
        squared, rows = np.empty((len(queries), k)), np.empty((len(queries), k), dtype=np.int64)
        for part, (distance, row, _) in zip(parts, found, strict=True):
            squared[part], rows[part] = distance, row
        return (
            squared,
            rows,
            np.sum([np.zeros(2, dtype=np.int64), *(work for _, _, work in found)], axis=0),
        )


def squared_distances(queries: EncodedTable, points: EncodedTable, found: np.ndarray) -> np.ndarray:
    """Return the squared distances of each query to the points at ``found`` (n_q, c), computed as
    in the tree.
    """
    from privacy_assets.distances import _tree_kernels as kernels

    out = np.empty(found.shape)
    kernels.direct(*cells(queries), *cells(points), np.ascontiguousarray(found, np.int64), out)
    return out


def cells(table: EncodedTable) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers and codes in the dtypes and layout that the kernels are compiled for."""
    return np.ascontiguousarray(table.numeric, np.float32), np.ascontiguousarray(
        table.codes, np.int32
    )


def _plain(table: EncodedTable) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return numbers and codes, and their short forms: clipped numbers, and codes modulo SLOTS."""
    from privacy_assets.distances._tree_kernels import SLOTS

    numbers, codes = cells(table)
    near, slots = mapped_empty(numbers.shape, np.float32), mapped_empty(codes.shape, np.uint8)
    np.clip(numbers, -_REACH, _REACH, out=near)
    np.remainder(codes, SLOTS, out=slots, casting="unsafe")
    return numbers, codes, near, slots


def _parts(queries: EncodedTable) -> list[np.ndarray]:
    """Split query positions into chunks of similar queries, one per thread and call."""
    order = _grouped(queries) if len(queries) > _CHUNK else np.arange(len(queries))
    return [order[start : start + _CHUNK] for start in range(0, len(queries), _CHUNK)]


def _grouped(queries: EncodedTable) -> np.ndarray:
    """Return an order (n,) in which similar rows are adjacent, because they visit the same, cached
    nodes.
    """
    from privacy_assets.distances import _tree_kernels as growth

    return growth.grow(*_plain(queries)[2:], _weights(queries))[3]


def _weights(points: EncodedTable) -> np.ndarray:
    """Return 1 - distinct values / rows of each categorical column, at least ``_RARE``: (q,)."""
    weights = np.full(len(points.sizes), _RARE)
    for column, size in enumerate(points.sizes):
        distinct = np.count_nonzero(np.bincount(points.codes[:, column], minlength=int(size)))
        weights[column] = max(_RARE, 1 - distinct / len(points))
    return weights
