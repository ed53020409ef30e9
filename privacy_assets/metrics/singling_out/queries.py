"""Predicates of singling-out attacks: coding of columns, generation of queries from S, and counting
of matches.

Every value is coded by its rank over all tables (0: missing), so a predicate on a column is a range
of codes: ``== v`` is [v, v], ``>= v`` is [v, top], ``<= v`` is [1, v], "is missing" is [0, 0], and
a bin is [first, last] of its codes. A query is a conjunction of predicates.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from privacy_assets.tables.arrays import mapped_empty
from privacy_assets.tables.column import ranked
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

BINS = 20
_ORDERED = ("numeric", "integer", "datetime")
_ROUND = 100  # minimum number of queries to draw; if all are duplicates, hardly any are left


@dataclass(frozen=True, eq=False)
class Queries:
    """Distinct queries, one per row.

    Attributes:
        columns: Column positions, int32 (queries, width).
        low: Lowest matching code of each column.
        high: Highest matching code of each column.
    """

    columns: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(frozen=True, eq=False)
class CodedTable:
    """A table as codes, with an index.

    Attributes:
        codes: Codes, int32 (rows, columns).
        order: Rows sorted by code, int32 (columns, rows).
        start: First position of each column in flat arrays with one entry per code, int64
            (columns,).
        below: Flat array: number of rows with a smaller code, int64. One further entry per column:
            all rows.
        ordered: True for numeric, integer and datetime columns, bool (columns,).
        positions: Numbers with codes 1, 2, ... of each of these columns.
    """

    codes: np.ndarray
    order: np.ndarray
    start: np.ndarray
    below: np.ndarray
    ordered: np.ndarray
    positions: tuple[np.ndarray, ...]

    def counts(self, column: int) -> np.ndarray:
        """Return the number of rows with each code of a column, int64 (codes,)."""
        end = self.start[column + 1] if column + 1 < len(self.start) else len(self.below)
        return np.diff(self.below[self.start[column] : end])


@dataclass(frozen=True, eq=False)
class Scheme:
    """The predicate of each value: the range ``low``..``high``, as flat arrays (see
    :class:`CodedTable`).
    """

    low: np.ndarray
    high: np.ndarray


def code_tables(
    tables: Sequence[Sequence[Table]], schema: TableSchema, rows: np.ndarray | None = None
) -> list[CodedTable]:
    """Code tables jointly by rank. A value that only one table has gets a code, too.

    Args:
        tables: For each table to code, the tables to stack for it.
        schema: Their columns.
        rows: Positions of the rows of the first table to keep, in this order, int64 (n,). They must
            contain all values of that table. None: all rows.

    Returns:
        The coded tables, with equal codes for equal values.
    """
    is_ordered = np.array([column.kind in _ORDERED for column in schema.columns], dtype=bool)
    coders = [_TableCoder(tables[0], len(is_ordered), rows)]
    for stack in tables[1:]:
        coders.append(_TableCoder(stack, len(is_ordered)))

    positions = []
    sizes = []
    batches = list(itertools.chain(*tables))
    for i, name in enumerate(schema.names):
        codes, values = ranked([batch[name] for batch in batches])
        batch_codes = iter(codes)
        for coder in coders:
            coder.add_column(i, batch_codes, len(values) + 1)
        positions.append(values.floats() if is_ordered[i] else np.zeros(0))
        sizes.append(len(values) + 2)
    start = (np.cumsum(sizes) - sizes).astype(np.int64)
    return [coder.coded(start, is_ordered, tuple(positions)) for coder in coders]


class _TableCoder:
    """Collects the codes of one table, column by column."""

    def __init__(
        self, batches: Sequence[Table], n_columns: int, rows: np.ndarray | None = None
    ) -> None:
        n_rows = sum(map(len, batches)) if rows is None else len(rows)
        self._n_batches = len(batches)
        self._rows = rows
        self._codes = mapped_empty((n_rows, n_columns), np.int32)
        self._order = mapped_empty((n_columns, n_rows), np.int32)
        self._below: list[np.ndarray] = []

    def add_column(self, i: int, batch_codes: Iterator[np.ndarray], n_codes: int) -> None:
        """Add column ``i``, taking one array of codes (-1: missing) for each stacked table."""
        stacked = np.concatenate(list(itertools.islice(batch_codes, self._n_batches)))
        codes = (stacked + 1).astype(np.int32)
        if self._rows is not None:
            codes = codes[self._rows]
        self._codes[:, i] = codes
        self._order[i] = np.argsort(codes, kind="stable")
        counts = np.bincount(codes, minlength=n_codes)
        self._below.append(np.zeros(1, dtype=np.int64))
        self._below.append(np.cumsum(counts))

    def coded(
        self, start: np.ndarray, is_ordered: np.ndarray, positions: tuple[np.ndarray, ...]
    ) -> CodedTable:
        below = np.concatenate(self._below)
        return CodedTable(self._codes, self._order, start, below, is_ordered, positions)


def threshold_scheme(table: CodedTable) -> Scheme:
    """Use ``>= v`` for ordered values above the median of S, ``<= v`` for the others, and ``== v``
    in unordered columns.

    The median ignores missing values. A missing value has the predicate "is missing".
    """
    low, high = _equality(table)
    for column in np.flatnonzero(table.ordered).tolist():
        values = table.codes[:, column]
        present = values[values > 0]
        if len(present) == 0:
            continue
        size = len(table.counts(column))
        first = table.start[column] + 1  # after the code of missing values
        end = table.start[column] + size
        codes = np.arange(1, size)
        # Ranks keep the order, so the median of ranks splits the values at their median.
        is_above = codes > np.median(present)
        low[first:end] = np.where(is_above, codes, 1)
        high[first:end] = np.where(is_above, size - 1, codes)
    return Scheme(low, high)


def bin_scheme(table: CodedTable, bins: int = BINS) -> Scheme:
    """Use the bin that contains the value in ordered columns.

    There are ``bins`` equally wide bins from the smallest to the largest value of S, closed below
    and open above, the last one closed. Real values outside this range are in none. ``== v`` in
    unordered columns, "is missing" for missing values (Palacios 4.2).
    """
    low, high = _equality(table)
    for column in np.flatnonzero(table.ordered).tolist():
        present = np.flatnonzero(table.counts(column)[1:])
        if len(present) == 0:
            continue
        values = table.positions[column]
        edges = np.linspace(values[present[0]], values[present[-1]], bins + 1)
        bin_of_value = np.searchsorted(edges, values, side="right") - 1
        last_bin = bins - 1 if edges[-1] > edges[0] else 0
        bin_of_value[values == edges[-1]] = last_bin
        first = table.start[column] + 1  # after the code of missing values
        end = first + len(values)
        low[first:end] = np.searchsorted(bin_of_value, bin_of_value, side="left") + 1
        high[first:end] = np.searchsorted(bin_of_value, bin_of_value, side="right")
    return Scheme(low, high)


def _equality(table: CodedTable) -> tuple[np.ndarray, np.ndarray]:
    sizes = np.diff(np.append(table.start, len(table.below)))
    codes = np.concatenate([np.arange(size) for size in sizes]).astype(np.int32)
    return codes, codes.copy()


def univariate(table: CodedTable, n_queries: int, rng: np.random.Generator) -> Queries:
    """Draw random queries on one column, each matching exactly one row of S.

    They are ``==`` for values (or missing) that occur once in S, and ``<= smallest`` and ``>=
    largest`` in ordered columns.

    Args:
        table: Synthetic rows.
        n_queries: Maximum number of queries.
        rng: Source of the draws.

    Returns:
        Queries of width 1.
    """
    candidates = []
    for column, is_ordered in enumerate(table.ordered):
        ranges = _unique_ranges(table.counts(column), bool(is_ordered))
        candidates.append(np.insert(ranges, 0, column, axis=1))
    queries = np.concatenate(candidates)
    sample = rng.permutation(len(queries))[:n_queries]
    columns, low, high = np.hsplit(queries[sample].astype(np.int32), 3)
    return Queries(
        np.ascontiguousarray(columns), np.ascontiguousarray(low), np.ascontiguousarray(high)
    )


def _unique_ranges(counts: np.ndarray, is_ordered: bool) -> np.ndarray:
    """Return the ranges of codes that match one row, int64 (n, 2), from the counts of all codes."""
    once = np.flatnonzero(counts == 1)
    ranges = np.stack([once, once], axis=1)
    present = np.flatnonzero(counts[1:]) + 1
    if not is_ordered or len(present) == 0:
        return ranges

    # At the end of all codes an extreme is equivalent to "==".
    smallest = present[0]
    largest = present[-1]
    top = len(counts) - 1
    if counts[smallest] == 1 and smallest > 1:
        ranges = np.insert(ranges, np.searchsorted(once, 1), (1, smallest), axis=0)
    if counts[largest] == 1 and largest < top:
        ranges = np.append(ranges, [(largest, top)], axis=0)
    return ranges


def multivariate(
    table: CodedTable,
    schemes: Sequence[Scheme],
    targets: np.ndarray,
    width: int,
    n_queries: int,
    rng: np.random.Generator,
    *,
    candidates: int,
    patience: int,
) -> Queries:
    """Draw distinct random queries of several columns, each matching exactly one row of S.

    A candidate uses a random target and random columns, with predicates of the first scheme. The
    next scheme is used after ``candidates`` candidates, after ``patience`` consecutive failures, or
    if 100 or more consecutive queries were all duplicates; after the last scheme fewer queries are
    returned. Columns of a query are sorted by their predicates' share of S, the smallest first.

    Args:
        table: Synthetic rows.
        schemes: Predicates, in the order in which they are tried.
        targets: Positions of the rows of S to draw from, int64 (n,).
        width: Number of columns of a query.
        n_queries: Maximum number of queries.
        rng: Source of the draws.
        candidates: Maximum number of candidates of each scheme.
        patience: Number of consecutive failures that ends a scheme.

    Returns:
        Queries of ``width`` columns.
    """
    from privacy_assets.metrics import _kernels as kernels

    queries = np.zeros((0, 3, width), dtype=np.int32)
    index = (table.codes, table.order, table.start, table.below)
    for scheme in schemes:
        ranges = (scheme.low, scheme.high)
        remaining = candidates if len(targets) else 0
        while len(queries) < n_queries and remaining > 0:
            n_before = len(queries)
            n_to_draw = max(n_queries - n_before, _ROUND)
            additional, n_tried = kernels.draw(
                *index, targets, *ranges, width, n_to_draw, remaining, patience, rng
            )
            queries = _distinct(np.concatenate([queries, additional]))[:n_queries]
            remaining -= n_tried
            if len(queries) == n_before:
                break
    columns, low, high = np.moveaxis(queries, 1, 0)
    return Queries(
        np.ascontiguousarray(columns), np.ascontiguousarray(low), np.ascontiguousarray(high)
    )


def _distinct(queries: np.ndarray) -> np.ndarray:
    """Drop repeated queries of an array (queries, 3, width), ignoring the order of columns. The
    first one is kept.
    """
    order = np.argsort(queries[:, 0], axis=1)[:, None, :]
    aligned = np.take_along_axis(queries, order, axis=2).reshape(len(queries), 3 * queries.shape[2])
    return np.asarray(queries[~pd.DataFrame(aligned).duplicated().to_numpy()])


def matched_subjects(
    queries: Queries, table: CodedTable, subject: np.ndarray, member: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Count the distinct subjects that each query matches.

    Args:
        queries: Queries.
        table: Coded table of the real rows.
        subject: Subject of each row, int64 (rows,).
        member: Membership of each subject, bool (subjects,).
        labels: Relabelings, uint64 (subjects, words), one per bit.

    Returns:
        The numbers of matched subjects outside and inside ``member``, int64 (queries, 2), and for
        each relabeling the number of queries that match exactly one member, int64 (bits,).
    """
    from privacy_assets.metrics import _kernels as kernels

    # Queries that scan the same rows are adjacent, so that the rows are in the processor's cache.
    order = np.lexsort((queries.low[:, 0], queries.columns[:, 0]))
    index = (table.codes, table.order, table.start, table.below)
    counts, hits = kernels.match(
        *index,
        subject,
        member,
        labels,
        queries.columns[order],
        queries.low[order],
        queries.high[order],
    )
    return counts[np.argsort(order)], hits
