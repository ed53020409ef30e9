"""Predicates of singling-out attacks: coding of columns, generation of queries from S, and counting
of matches.

Every value is coded by its rank over all tables (0: missing), so a predicate on a column is a range
of codes: ``== v`` is [v, v], ``>= v`` is [v, top], ``<= v`` is [1, v], "is missing" is [0, 0], and
a bin is [first, last] of its codes. A query is a conjunction of predicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from privacy_assets.tables.arrays import mapped_empty
from privacy_assets.tables.column import ranked
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

BINS = 20
_ROUND = 100  # minimum number of queries to draw; if all of them are known, hardly any are left


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
    """Code tables jointly by rank. Each is given as one or more tables, which are stacked.

    A value of a single table has its own code. ``rows`` contains the positions of the rows of the
    first table to keep, in this order; they must contain all values of that table.
    """
    ordered = np.array(
        [column.kind in ("numeric", "integer", "datetime") for column in schema.columns], dtype=bool
    )
    lengths = [sum(map(len, parts)) for parts in tables]
    lengths[0] = lengths[0] if rows is None else len(rows)
    codes = [mapped_empty((length, len(ordered)), np.int32) for length in lengths]
    order = [mapped_empty((len(ordered), length), np.int32) for length in lengths]
    positions, sizes = [], []
    below: list[list[np.ndarray]] = [[] for _ in tables]
    for at, (name, is_ordered) in enumerate(zip(schema.names, ordered, strict=True)):
        columns, values = ranked([part[name] for parts in tables for part in parts])
        left = iter(columns)
        for place, parts in enumerate(tables):
            column = (np.concatenate([next(left) for _ in parts]) + 1).astype(np.int32)
            column = column[rows] if place == 0 and rows is not None else column
            codes[place][:, at], order[place][at] = column, np.argsort(column, kind="stable")
            below[place] += [
                np.zeros(1, dtype=np.int64),
                np.cumsum(np.bincount(column, minlength=len(values) + 1)),
            ]
        positions.append(values.floats() if is_ordered else np.zeros(0))
        sizes.append(len(values) + 2)
    start = (np.cumsum(sizes) - sizes).astype(np.int64)
    every = zip(codes, order, map(np.concatenate, below), strict=True)
    return [
        CodedTable(table, by_code, start, counted, ordered, tuple(positions))
        for table, by_code, counted in every
    ]


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
        begin, size = table.start[column], len(table.counts(column))
        # Ranks keep the order, so the median of ranks splits the values at their median.
        above = np.arange(1, size) > np.median(present)
        low[begin + 1 : begin + size] = np.where(above, np.arange(1, size), 1)
        high[begin + 1 : begin + size] = np.where(above, size - 1, np.arange(1, size))
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
        which = np.searchsorted(edges, values, side="right") - 1
        which[values == edges[-1]] = bins - 1 if edges[-1] > edges[0] else 0
        begin = table.start[column] + 1
        low[begin : begin + len(values)] = np.searchsorted(which, which, side="left") + 1
        high[begin : begin + len(values)] = np.searchsorted(which, which, side="right")
    return Scheme(low, high)


def _equality(table: CodedTable) -> tuple[np.ndarray, np.ndarray]:
    sizes = np.diff(np.append(table.start, len(table.below)))
    codes = np.concatenate([np.arange(size) for size in sizes]).astype(np.int32)
    return codes, codes.copy()


def univariate(table: CodedTable, wanted: int, rng: np.random.Generator) -> Queries:
    """Return up to ``wanted`` random queries on one column, each matching exactly one row of S.

    They are ``==`` for values (or missing) that occur once in S, and ``<= smallest`` and ``>=
    largest`` in ordered columns.
    """
    found = []
    for column, ordered in enumerate(table.ordered):
        counts = table.counts(column)
        once, present, top = (
            np.flatnonzero(counts == 1),
            np.flatnonzero(counts[1:]) + 1,
            len(counts) - 1,
        )
        ranges = np.stack([once, once], axis=1)
        # At the end of all codes an extreme is equivalent to "==".
        if ordered and len(present) and counts[present[0]] == 1 and present[0] > 1:
            ranges = np.insert(ranges, np.searchsorted(once, 1), (1, present[0]), axis=0)
        if ordered and len(present) and counts[present[-1]] == 1 and present[-1] < top:
            ranges = np.append(ranges, [(present[-1], top)], axis=0)
        found.append(np.insert(ranges, 0, column, axis=1))
    rows = np.concatenate(found)
    rows = rows[rng.permutation(len(rows))[:wanted]].astype(np.int32)
    return Queries(*(np.ascontiguousarray(part) for part in np.hsplit(rows, 3)))


def multivariate(
    table: CodedTable,
    schemes: Sequence[Scheme],
    targets: np.ndarray,
    width: int,
    wanted: int,
    rng: np.random.Generator,
    *,
    candidates: int,
    patience: int,
) -> Queries:
    """Return up to ``wanted`` distinct random queries of ``width`` columns, each matching exactly
    one row of S.

    A candidate uses a random row of ``targets`` (positions in S) and random columns, with
    predicates of the first scheme. The next scheme is used after ``candidates`` candidates, after
    ``patience`` consecutive failures, or if 100 or more consecutive queries were all known; after
    the last scheme fewer queries are returned. Columns of a query are sorted by their predicates'
    share of S, the smallest first.
    """
    from privacy_assets.metrics import _kernels as kernels

    kept = np.zeros((0, 3, width), dtype=np.int32)
    index = (table.codes, table.order, table.start, table.below)
    for scheme in schemes:
        left = candidates if len(targets) else 0
        while len(kept) < wanted and left > 0:
            number, before = max(wanted - len(kept), _ROUND), len(kept)
            found, tried = kernels.draw(
                *index, targets, scheme.low, scheme.high, width, number, left, patience, rng
            )
            kept = _distinct(np.concatenate([kept, found]))[:wanted]
            left = left - tried if len(kept) > before else 0
    return Queries(*(np.ascontiguousarray(kept[:, part]) for part in range(3)))


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
    asked = (part[order] for part in (queries.columns, queries.low, queries.high))
    counts, hits = kernels.match(*index, subject, member, labels, *asked)
    return counts[np.argsort(order)], hits
