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
        """Build the tree in O(n log n) time and about 3 times the memory of the rows.

        Args:
            points: Encoded distinct rows, n >= 1.

        Returns:
            The tree.
        """
        from privacy_assets.distances import _tree_kernels as growth

        sizes = np.minimum(points.sizes, growth.SLOTS)
        bases = np.cumsum(sizes) - sizes
        numbers, codes, near, slots = _plain(points)
        child, ranges, leaves, order, depth = growth.grow(near, slots, _weights(points))
        n_slots = int(sizes.sum())
        least, low, high, categories = growth.boxes(near, slots, bases, n_slots, ranges, order)
        filled = (2 ** np.diff(leaves)[:, 0].astype(np.uint64) - 1).astype(np.uint32)
        tree = growth.Tree(
            child=child,
            least=least,
            low=low,
            high=high,
            held=categories,
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
        """Sum the weights of the rows within a radius of each query, including equal rows.

        Subtrees entirely within the radius are counted without visiting their rows.

        Args:
            queries: Rows encoded by the same encoder.
            radius: Non-negative distance.
            weights: Weights of the rows, in the order of the points of :meth:`build`, shape (n,).

        Returns:
            Sums, float64 (n_q,).
        """
        largest = max(
            np.abs(table).max(initial=0.0) for table in (self.tree.numbers, queries.numeric)
        )
        within = self._within(radius, weights)
        parts = _parts(queries)
        out = np.zeros(len(queries))
        counts_inside = bool(largest < _REACH)

        def weigh(part: np.ndarray) -> np.ndarray:
            return within(queries.take(part), counts_inside, 0)[0]

        weights_of_parts = in_parallel(weigh, parts, _WORTH)
        for part, weights_of_part in zip(parts, weights_of_parts, strict=True):
            out[part] = weights_of_part
        return out

    def pairs(
        self, queries: EncodedTable, radius: float, most: int
    ) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield pairs of a query and a row within a radius, including equal rows, block by block.

        Args:
            queries: Rows encoded by the same encoder.
            radius: Non-negative distance.
            most: Maximum number of pairs in a block. If a query has more pairs, it is a block
                alone.

        Yields:
            Positions of queries and of rows, int64 (m,), and distances, float64 (m,). Pairs are
            ordered by query, not by row.
        """
        ones = np.ones(len(self.tree.order))
        counts = self.weigh(queries, radius, ones).astype(np.int64)
        within = self._within(radius, ones)
        ends = np.cumsum(counts)
        start = 0
        while start < len(queries):
            room = ends[start] - counts[start] + most
            stop = max(start + 1, int(np.searchsorted(ends, room, side="right")))
            total = int(counts[start:stop].sum())
            _, positions, rows, squared = within(queries.take(np.s_[start:stop]), False, total)
            yield positions + start, rows, np.sqrt(squared)
            start = stop

    def _within(self, radius: float, weights: np.ndarray) -> _Within:
        """Return the kernel for this radius and these weights, which are in the order of the
        points.
        """
        from privacy_assets.distances import _tree_kernels as kernels

        ordered = weights[self.tree.order].astype(np.float64)
        fixed = (self.tree, self._mixed, kernels.masses(self.tree, ordered), ordered)

        def within(
            queries: EncodedTable, counts_inside: bool, total: int
        ) -> tuple[np.ndarray, ...]:
            return kernels.within(
                *fixed, *_plain(queries), self.bases, float(radius) ** 2, counts_inside, total
            )

        return within

    @cached_property
    def _mixed(self) -> np.ndarray:
        """Return uint16 (nodes, q): bit c is set if child c may have several categories in the
        column.
        """
        from privacy_assets.distances._tree_kernels import SLOTS, WIDE

        categories = self.tree.held
        shape = (len(categories), len(self.bases))
        out = np.zeros(shape, dtype=np.uint16)
        ends = np.append(self.bases, categories.shape[1])[1:]
        for column, (first, last) in enumerate(zip(self.bases, ends, strict=True)):
            if last - first == SLOTS:  # several categories may share a bit
                out[:, column] = np.iinfo(np.uint16).max
                continue
            for child in range(WIDE):
                has_category = (categories[:, first:last] >> child) & 1
                has_several = has_category.sum(axis=1) > 1
                out[:, column] |= has_several.astype(np.uint16) << np.uint16(child)
        return out

    def search(self, queries: EncodedTable, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find the k nearest rows of each query.

        The search runs in threads; their number does not affect results.

        Args:
            queries: Rows encoded by the same encoder.
            k: Number of neighbors, from 1 to n.

        Returns:
            Squared distances, ascending, float64 (n_q, k); the rows, int64 (n_q, k), ties ordered
            by row; and the number of visited nodes and leaves, int64 (2,).
        """
        from privacy_assets.distances import _tree_kernels as kernels

        def search(part: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            cells_of_part = _plain(queries.take(part))
            return kernels.search(self.tree, *cells_of_part, self.bases, k)

        parts = _parts(queries)
        results = in_parallel(search, parts, _WORTH)
        squared = np.empty((len(queries), k))
        rows = np.empty((len(queries), k), dtype=np.int64)
        work = np.zeros(2, dtype=np.int64)
        for part, (distances, neighbors, work_of_part) in zip(parts, results, strict=True):
            squared[part] = distances
            rows[part] = neighbors
            work += work_of_part
        return squared, rows, work


def squared_distances(queries: EncodedTable, points: EncodedTable, rows: np.ndarray) -> np.ndarray:
    """Return squared distances, computed as in the tree.

    Args:
        queries: Encoded rows.
        points: Rows encoded by the same encoder.
        rows: Positions of points for each query, integers (n_q, c).

    Returns:
        Squared distances of each query to its points, float64 (n_q, c).
    """
    from privacy_assets.distances import _tree_kernels as kernels

    out = np.empty(rows.shape)
    rows = np.ascontiguousarray(rows, np.int64)
    kernels.direct(*cells(queries), *cells(points), rows, out)
    return out


def cells(table: EncodedTable) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers and codes in the dtypes and layout that the kernels are compiled for."""
    numbers = np.ascontiguousarray(table.numeric, np.float32)
    codes = np.ascontiguousarray(table.codes, np.int32)
    return numbers, codes


def _plain(table: EncodedTable) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return numbers and codes, and their short forms: clipped numbers, and codes modulo SLOTS."""
    from privacy_assets.distances._tree_kernels import SLOTS

    numbers, codes = cells(table)
    near = mapped_empty(numbers.shape, np.float32)
    slots = mapped_empty(codes.shape, np.uint8)
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
        counts = np.bincount(points.codes[:, column], minlength=int(size))
        n_distinct = np.count_nonzero(counts)
        weights[column] = max(_RARE, 1 - n_distinct / len(points))
    return weights
