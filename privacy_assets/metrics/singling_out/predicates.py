"""Predicates of singling-out attacks: coding of columns, generation of queries from S, and counting of matches.

Every value is coded by its rank over all tables (0 is missing), so that a predicate on a column is a range of codes:
``== v`` is [v, v], ``>= v`` is [v, top], ``<= v`` is [1, v], "is missing" is [0, 0], and a bin runs from its first to
its last code. A query is a conjunction of predicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from privacy_assets.tables.column import ranked
from privacy_assets.tables.memory_mapping import mapped_empty
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

BINS = 20
_ROUND = 100  # queries looked for at least: when all of them are known, hardly any are left


@dataclass(frozen=True, eq=False)
class Queries:
    """Distinct queries, one a row: int32 (queries, width) column positions and the inclusive range of codes of each."""

    columns: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(frozen=True, eq=False)
class CodedTable:
    """A table as codes, with an index.

    ``codes`` int32 (rows, columns); ``order`` int32 (columns, rows) lists the rows by code. ``start`` int64 (columns,)
    says where a column begins in the flat arrays with one entry a code: ``below`` int64 (rows with a smaller code; one
    further entry a column holds all rows) and those of a :class:`Scheme`. ``ordered`` bool (columns,) marks numeric,
    integer and datetime columns; ``positions`` are the numbers behind the codes 1, 2, ... of each of these.
    """

    codes: np.ndarray
    order: np.ndarray
    start: np.ndarray
    below: np.ndarray
    ordered: np.ndarray
    positions: tuple[np.ndarray, ...]

    def counts(self, column: int) -> np.ndarray:
        """How often each code of a column stands in the table, int64 (codes,)."""
        end = self.start[column + 1] if column + 1 < len(self.start) else len(self.below)
        return np.diff(self.below[self.start[column] : end])


@dataclass(frozen=True, eq=False)
class Scheme:
    """The predicate that each value gives rise to: range ``low``..``high`` by flat code (see :class:`CodedTable`)."""

    low: np.ndarray
    high: np.ndarray


def code_tables(
    tables: Sequence[Sequence[Table]], schema: TableSchema, rows: np.ndarray | None = None
) -> list[CodedTable]:
    """Code tables jointly by rank; each is one or more tables, one after the other.

    A value that one table alone has is a code of its own. ``rows`` (positions) are those kept of the first table, in
    this order; they hold every value that it has.
    """
    ordered = np.array([column.kind in ("numeric", "integer", "datetime") for column in schema.columns], dtype=bool)
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
            below[place] += [np.zeros(1, dtype=np.int64), np.cumsum(np.bincount(column, minlength=len(values) + 1))]
        positions.append(values.floats() if is_ordered else np.zeros(0))
        sizes.append(len(values) + 2)
    start = (np.cumsum(sizes) - sizes).astype(np.int64)
    every = zip(codes, order, map(np.concatenate, below), strict=True)
    return [CodedTable(table, by_code, start, counted, ordered, tuple(positions)) for table, by_code, counted in every]


def threshold_scheme(table: CodedTable) -> Scheme:
    """``>= v`` for ordered values above the median of S, ``<= v`` for the others, ``== v`` in unordered columns.

    The median is that of S's values that are not missing; a missing value is matched by "is missing".
    """
    low, high = _equality(table)
    for column in np.flatnonzero(table.ordered).tolist():
        values = table.codes[:, column]
        present = values[values > 0]
        if len(present) == 0:
            continue
        begin, size = table.start[column], len(table.counts(column))
        # Ranks keep the order, so the median of ranks splits the values where their own median does.
        above = np.arange(1, size) > np.median(present)
        low[begin + 1 : begin + size] = np.where(above, np.arange(1, size), 1)
        high[begin + 1 : begin + size] = np.where(above, size - 1, np.arange(1, size))
    return Scheme(low, high)


def bin_scheme(table: CodedTable, bins: int = BINS) -> Scheme:
    """The bin that holds the value, of ``bins`` equally wide ones from S's smallest to its largest, in ordered columns.

    Bins are closed below and open above, the last closed; real values outside S's range are in none. ``== v`` in
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
    """Up to ``wanted`` random queries on one column, each matching exactly one row of S.

    Values and missing values that stand once in S (``==``), and ``<= smallest`` and ``>= largest`` of ordered columns.
    """
    found = []
    for column, ordered in enumerate(table.ordered):
        counts = table.counts(column)
        once, present, top = np.flatnonzero(counts == 1), np.flatnonzero(counts[1:]) + 1, len(counts) - 1
        ranges = np.stack([once, once], axis=1)
        # At the end of all codes an extreme says no more than "==".
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
    """Up to ``wanted`` distinct random queries of ``width`` columns, each matching exactly one row of S.

    A candidate takes a random row among ``targets`` (positions in S) and random columns; its predicates are those of
    the first of ``schemes``. The next scheme takes over when ``candidates`` were tried, when ``patience`` in a row were
    in vain, or when 100 and more found in a row were all known already; fewer are returned where the last one ends so.
    Columns of a query stand in order of their predicates' share of S, the smallest first.
    """
    from privacy_assets.metrics.singling_out import _kernels as kernels

    kept = np.zeros((0, 3, width), dtype=np.int32)
    index = (table.codes, table.order, table.start, table.below)
    for scheme in schemes:
        left = candidates if len(targets) else 0
        while len(kept) < wanted and left > 0:
            number, before = max(wanted - len(kept), _ROUND), len(kept)
            found, tried = kernels.draw(*index, targets, scheme.low, scheme.high, width, number, left, patience, rng)
            kept = _distinct(np.concatenate([kept, found]))[:wanted]
            left = left - tried if len(kept) > before else 0
    return Queries(*(np.ascontiguousarray(kept[:, part]) for part in range(3)))


def _distinct(queries: np.ndarray) -> np.ndarray:
    """Drop repeated queries of an array (queries, 3, width), whatever the order of their columns; keep the first."""
    order = np.argsort(queries[:, 0], axis=1)[:, None, :]
    aligned = np.take_along_axis(queries, order, axis=2).reshape(len(queries), 3 * queries.shape[2])
    return np.asarray(queries[~pd.DataFrame(aligned).duplicated().to_numpy()])


def matched_subjects(
    queries: Queries, table: CodedTable, subject: np.ndarray, member: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Distinct subjects that each query matches in the rows of ``table``, and the hits under other labels.

    ``subject`` int64 (rows,) are codes into ``member`` bool (subjects,) and into ``labels`` uint64 (subjects, words),
    of which each bit is another set of members. Returns the number of matched subjects outside and inside ``member``,
    int64 (queries, 2), and for each bit the number of queries that match exactly one of its members, int64 (bits,).
    """
    from privacy_assets.metrics.singling_out import _kernels as kernels

    # Queries that look through the same rows follow each other: they find them in the processor's cache.
    order = np.lexsort((queries.low[:, 0], queries.columns[:, 0]))
    index = (table.codes, table.order, table.start, table.below)
    asked = (part[order] for part in (queries.columns, queries.low, queries.high))
    counts, hits = kernels.match(*index, subject, member, labels, *asked)
    return counts[np.argsort(order)], hits
