"""Query counts of the shadow attack: every subset against brute force, every kind of column, equal
columns, codes.
"""

from __future__ import annotations

from itertools import combinations
from math import comb, isnan

import numpy as np
import pytest

from privacy_assets.studies.shadow_membership.attacks import (
    CountCodes,
    Queries,
    build_attack,
    matches,
)
from tests.metrics.coded_tables import coded, with_gaps


def brute_force(cells, target, is_number):
    """Bool (F, m), cell by cell."""

    def one(cell, wanted, number):
        if isnan(cell) or isnan(wanted):
            return isnan(cell) and isnan(wanted)
        return cell <= wanted if number else cell == wanted

    columns = zip(cells, target, is_number, strict=True)
    return np.array(
        [[one(cell, wanted, number) for cell in row] for row, wanted, number in columns]
    )


def table(rng, columns, rows):
    """Random cells with ties, missing numbers and a target from the table."""
    cells = rng.integers(0, 3, (columns, rows)).astype(float)
    is_number = np.arange(columns) % 3 == 1
    cells[is_number] += rng.choice([0, 0.25, np.nan], (is_number.sum(), rows), p=[0.6, 0.3, 0.1])
    return cells, cells[:, 0].copy(), is_number


def counted(cells, target, is_number):
    """Counts (2^F,) of every subset of the columns."""
    every = Queries(len(cells), np.arange(1 << len(cells)))
    return every.counts(matches(cells, target, is_number)[None])[0]


# one tile of counts, its edge, several, the widest
@pytest.mark.parametrize("columns", [5, 13, 15, 20])
def test_every_subset_is_counted_as_by_brute_force(columns):
    cells, target, is_number = table(np.random.default_rng(columns), columns, 40)
    missed, expected = ~brute_force(cells, target, is_number), []
    for start in range(0, 1 << columns, 1 << 16):
        subsets = np.arange(start, min(start + (1 << 16), 1 << columns))
        chosen = ((subsets[:, None] >> np.arange(columns)) & 1).astype(np.float32)
        expected.append((chosen @ missed == 0).sum(axis=1))
    np.testing.assert_array_equal(counted(cells, target, is_number), np.concatenate(expected))


def test_every_kind_of_column_matches_as_defined():
    cells, coding = coded(with_gaps(np.random.default_rng(0), 60))
    for place in range(60):
        bits = matches(cells, cells[:, place], coding.is_number)[:, 0]
        expected = brute_force(cells, cells[:, place], coding.is_number)
        np.testing.assert_array_equal(
            (bits[None] >> np.arange(len(cells), dtype=np.uint64)[:, None]) & 1, expected
        )
    is_number = np.array([True, False])
    cells = np.array([[np.nan, 1.0, -np.inf], [2.0, 3.0, 2.0]])
    assert matches(cells, np.array([np.nan, 2.0]), is_number)[:, 0].tolist() == [3, 0, 2]
    assert matches(cells, np.array([0.5, 7.0]), is_number)[:, 0].tolist() == [0, 0, 1], (
        "7 is in no row"
    )


def test_the_order_of_rows_changes_nothing_and_a_copied_row_adds_one_to_its_subsets():
    rng = np.random.default_rng(0)
    cells, target, is_number = table(rng, 9, 50)
    counts = counted(cells, target, is_number)
    np.testing.assert_array_equal(counted(cells[:, rng.permutation(50)], target, is_number), counts)
    np.testing.assert_array_equal(
        counted(np.column_stack([cells, target]), target, is_number), counts + 1
    )
    for rows in (1, 40_000):  # more than 16 bits can count
        assert (counted(np.zeros((3, rows)), np.zeros(3), np.zeros(3, dtype=bool)) == rows).all()


# --- which queries
# --------------------------------------------------------------------------------------------------


def test_up_to_17_columns_every_query_is_asked_and_of_18_to_20_different_ones_are_drawn():
    rng = np.random.default_rng(0)
    assert Queries.draw(5, rng).column_sets.tolist() == list(range(1, 32))
    assert len(Queries.draw(17, rng).column_sets) == (1 << 17) - 1
    chosen = Queries.draw(20, rng).column_sets
    assert len(np.unique(chosen)) == len(chosen) == 1 << 17
    assert chosen.min() >= 1 and chosen.max() < 1 << 20
    share = ((chosen[:, None] >> np.arange(20)) & 1).mean(axis=0)
    assert np.abs(share - 0.5).max() < 0.01
    assert not np.array_equal(chosen, Queries.draw(20, rng).column_sets)


@pytest.mark.parametrize("columns", [5, 16, 20, 21, 40])
def test_the_number_of_queries_is_a_setting(columns):
    rng, every = np.random.default_rng(0), (1 << min(columns, 20)) - 1
    for number in (1, 7, 20, 1_000):
        chosen = Queries.draw(columns, rng, number).column_sets
        assert len(np.unique(chosen, axis=0)) == len(chosen) == min(number, every)
    if columns == 16:
        # the paper's number exceeds all sets
        assert len(Queries.draw(columns, rng, 100_000).column_sets) == every


def test_the_attack_uses_this_number_of_queries():
    cells, coding = coded(with_gaps(np.random.default_rng(0), 60))
    attack = build_attack("queries", coding, cells, {"queries": 9, "trees": 2})
    features = np.stack(
        [attack.features(cells[:, start : start + 40], cells[:, 0]) for start in range(8)]
    )
    scorer = attack.fit(features, np.arange(8) < 4, np.random.default_rng(0))
    assert len(scorer.coded.queries.column_sets) == 9


@pytest.mark.parametrize("columns", [21, 70])
def test_beyond_20_columns_orders_1_to_6_are_drawn_alike(columns):
    chosen = Queries.draw(columns, np.random.default_rng(0)).column_sets
    sets = {tuple(int(c) for c in query if c >= 0) for query in chosen}
    assert len(sets) == len(chosen) == 1 << 14
    orders = [len(query) for query in sets]
    assert {(c,) for c in range(columns)} <= sets and set(combinations(range(columns), 2)) <= sets
    full = [order for order in range(1, 7) if orders.count(order) < comb(columns, order)]
    assert full and max(map(orders.count, full)) - min(map(orders.count, full)) <= 1
    assert all(list(query) == sorted(set(query)) for query in sets)


@pytest.mark.parametrize("columns", [3, 18, 21, 64, 70])
def test_the_counts_of_drawn_queries_equal_brute_force(columns):
    rng = np.random.default_rng(columns)
    tables = [table(rng, columns, 150) for _ in range(3)]
    target, is_number = tables[0][1], tables[0][2]
    matched = [brute_force(cells, target, is_number) for cells, *_ in tables]
    queries = Queries.draw(columns, rng)
    found = queries.counts(np.stack([matches(cells, target, is_number) for cells, *_ in tables]))
    for place in rng.integers(0, len(queries.column_sets), 300):
        query = queries.column_sets[place]
        used = (
            query[query >= 0] if columns > 20 else np.flatnonzero((query >> np.arange(columns)) & 1)
        )
        assert found[:, place].tolist() == [rows[used].all(axis=0).sum() for rows in matched]


# --- codes
# --------------------------------------------------------------------------------------------------


def fitted(seed=0, sets=70, rows=200, columns=7):
    rng = np.random.default_rng(seed)
    cells, target, is_number = table(rng, columns, 1000)
    drawn = [cells[:, rng.integers(0, 1000, rows)] for _ in range(sets)]
    matched = np.stack([matches(part, target, is_number) for part in drawn])
    queries = Queries.draw(columns, rng)
    return CountCodes.fit(queries, matched), matched, queries.counts(matched)


def test_codes_are_the_counts_from_their_smallest_on_and_end_with_the_range():
    coded_, matched, counts = fitted()
    codes = coded_.encode(matched)
    assert codes.shape == (127, 72) and not codes[:, 70:].any()
    np.testing.assert_array_equal(codes[:, :70].T, counts - counts.min(axis=0))
    none, all_rows = np.zeros_like(matched[:1]), np.full_like(matched[:1], 127)
    codes = coded_.encode(np.concatenate([none, all_rows]))
    assert not codes[:, 0].any()
    np.testing.assert_array_equal(codes[:, 1], np.minimum(200 - counts.min(axis=0), 255))


def test_wide_ranges_are_coarser_and_keep_their_order():
    coded_, matched, counts = fitted(rows=40)
    repeated = np.repeat(matched, 60, axis=1)
    coarse = CountCodes.fit(coded_.queries, repeated)
    assert coarse.shift.max() > 0
    codes = coarse.encode(repeated)[:, : len(matched)].T.astype(int)
    span = 60 * np.ptp(counts, axis=0)
    assert (codes[:, span > 255].max(axis=0) >= 127).all() and codes.max() <= 255
    for query in np.flatnonzero(span > 255):
        order = np.argsort(counts[:, query], kind="stable")
        assert (np.diff(codes[order, query]) >= 0).all()


def test_of_equal_queries_the_first_is_kept_and_constant_ones_are_dropped():
    coded_, matched, counts = fitted(sets=20, rows=30, columns=9)
    kept = coded_.distinct(coded_.encode(matched))
    expected = {}
    for place, column in enumerate(counts.T):
        if np.ptp(column):
            expected.setdefault(column.tobytes(), place)
    assert kept.tolist() == sorted(expected.values()) and len(kept) < 511
    codes, one = np.ones((3, 8), dtype=np.uint8), np.ones(3, dtype=np.int32)
    assert CountCodes(coded_.queries, one, one).distinct(codes).tolist() == [0]
    assert CountCodes(coded_.queries, np.arange(3), one).distinct(codes).tolist() == [0, 1, 2]
    assert CountCodes(coded_.queries, one, np.arange(3)).distinct(codes).tolist() == [0, 1, 2]
