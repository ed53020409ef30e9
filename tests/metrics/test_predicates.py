"""Predicates against boolean masks over the tables themselves."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from privacy_assets.metrics.singling_out.queries import (
    BINS,
    CodedTable,
    Queries,
    Scheme,
    bin_scheme,
    code_tables,
    matched_subjects,
    multivariate,
    threshold_scheme,
    univariate,
)
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.schema import Kind, TableSchema
from privacy_assets.tables.table import Table

ORDERED = ("number", "whole", "time", "steady", "huge")
WORDS = [
    "it's",
    'a "b"',
    "x & y",
    "é",
    "",
    " ",
    "a\\b",
    "two\nlines",
    "e\u0301",
    "\U0001f600",
    "`1` == @x",
]


def mixed(rows: int, seed: int, words: list[str] = WORDS) -> pd.DataFrame:
    """A table of every kind of column, each with missing values."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "number": np.round(rng.normal(size=rows), 1),
            "whole": pd.array(rng.integers(-3, 9, rows), dtype="Int64"),
            "word": rng.choice(words, rows).astype(object),
            "flag": pd.array(rng.random(rows) < 0.3, dtype="boolean"),
            "time": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(rng.integers(0, 400, rows), unit="D"),
            "steady": np.full(rows, 2.5),
            # one number, if read as floats
            "huge": pd.array(2**62 + rng.integers(0, 5, rows), dtype="Int64"),
            "sort": pd.Categorical(
                rng.choice(words[::-1], rows), categories=sorted(words) + ["never"]
            ),
        }
    )
    frame.loc[frame["number"] == 0, "number"] = rng.choice(
        [0.0, -0.0], int((frame["number"] == 0).sum())
    )
    return frame.mask(rng.random(frame.shape) < 0.1)


@pytest.fixture(scope="module")
def tables() -> tuple[TableSchema, pd.DataFrame, pd.DataFrame, CodedTable, CodedTable]:
    raw = [mixed(150, 1, [*WORDS, "only here"]), mixed(200, 2, [*WORDS, "unseen"])]
    schema = infer_schema(pd.concat(raw, ignore_index=True))
    synthetic, real = (Table.of(frame, schema, where="test") for frame in raw)
    return schema, synthetic.frame(), real.frame(), *code_tables([[synthetic], [real]], schema)


def code(frame: pd.DataFrame, **kinds: Kind) -> CodedTable:
    table = Table.read(frame, kinds=kinds)
    return code_tables([[table]], table.schema)[0]


def as_float(column: pd.Series) -> np.ndarray:
    """Numbers, and dates in days since 1970."""
    if column.dtype.kind == "M":
        return ((column - pd.Timestamp(0)) / pd.Timedelta("1D")).to_numpy()
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def mask_of_threshold(column: pd.Series, value: object, median: object) -> np.ndarray:
    if pd.isna(value):
        mask = column.isna()
    elif column.name not in ORDERED:
        mask = column == value
    else:
        mask = column >= value if value > median else column <= value
    return mask.fillna(False).to_numpy(dtype=bool)


def median_of(column: pd.Series) -> object:
    """The exact median, also of integers that floats cannot represent."""
    values = sorted(column.dropna().tolist())
    low, high = values[(len(values) - 1) // 2], values[len(values) // 2]
    return Fraction(low + high, 2) if isinstance(low, int) else low + (high - low) / 2


def mask_of_bin(column: pd.Series, value: object, synthetic: pd.Series) -> np.ndarray:
    if pd.isna(value) or column.name not in ORDERED:
        return mask_of_threshold(column, value, None)
    ours, its, of_synthetic = (
        as_float(x) for x in (column, pd.Series([value], dtype=column.dtype), synthetic)
    )
    edges = np.linspace(np.nanmin(of_synthetic), np.nanmax(of_synthetic), BINS + 1)
    edges[-1] = np.nextafter(edges[-1], np.inf)
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        if low <= its[0] < high:
            return (ours >= low) & (ours < high)
    raise AssertionError("a synthetic value is in no bin")


@pytest.mark.parametrize("kind", ["threshold", "bin"])
def test_the_range_of_a_value_matches_what_its_predicate_says(kind: str, tables) -> None:
    schema, synthetic, real, coded, coded_real = tables
    scheme = threshold_scheme(coded) if kind == "threshold" else bin_scheme(coded)
    for position, name in enumerate(schema.names):
        median = median_of(synthetic[name]) if name in ORDERED else None
        for row, value in enumerate(synthetic[name]):
            flat = coded.start[position] + coded.codes[row, position]
            for frame, table in ((synthetic, coded), (real, coded_real)):
                codes = table.codes[:, position]
                found = (codes >= scheme.low[flat]) & (codes <= scheme.high[flat])
                right = (
                    mask_of_threshold(frame[name], value, median)
                    if kind == "threshold"
                    else mask_of_bin(frame[name], value, synthetic[name])
                )
                assert (found == right).all(), (name, row)


def matching_rows(queries: Queries, table: CodedTable) -> list[np.ndarray]:
    """Rows that match each query, one comparison at a time."""
    return [
        np.flatnonzero(
            ((table.codes[:, columns] >= low) & (table.codes[:, columns] <= high)).all(axis=1)
        )
        for columns, low, high in zip(queries.columns, queries.low, queries.high, strict=True)
    ]


def as_sets(queries: Queries) -> set[frozenset[tuple[int, int, int]]]:
    rows = zip(queries.columns.tolist(), queries.low.tolist(), queries.high.tolist(), strict=True)
    return {frozenset(zip(*row, strict=True)) for row in rows}


@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("kind", [threshold_scheme, bin_scheme])
def test_queries_isolate_one_target_and_are_distinct(kind, width: int, tables) -> None:
    coded = tables[3]
    scheme, targets = kind(coded), np.arange(0, 150, 2)
    queries = multivariate(
        coded,
        [scheme],
        targets,
        width,
        60,
        np.random.default_rng(0),
        candidates=20_000,
        patience=5_000,
    )
    assert len(queries) == 60 if width == 3 else 0 < len(queries) <= 60
    assert len(as_sets(queries)) == len(queries)
    for at, rows in enumerate(matching_rows(queries, coded)):
        columns = queries.columns[at]
        assert len(rows) == 1
        assert rows[0] in targets
        assert len(set(columns)) == width
        flat = coded.start[columns] + coded.codes[rows[0], columns]
        assert (queries.low[at] == scheme.low[flat]).all()
        assert (queries.high[at] == scheme.high[flat]).all()


def test_columns_and_targets_are_drawn_evenly() -> None:
    frame = pd.DataFrame(
        np.random.default_rng(0).permuted(np.tile(np.arange(200.0), (8, 1)), axis=1).T
    )
    frame.columns = [f"c{i}" for i in range(8)]
    coded = code(frame)
    # All values differ, so equality isolates every row and only repeated queries are rejected.
    codes = np.arange(len(coded.below), dtype=np.int32) - np.repeat(coded.start, 202).astype(
        np.int32
    )
    scheme = Scheme(codes, codes)
    queries = multivariate(
        coded,
        [scheme],
        np.arange(200),
        3,
        4_000,
        np.random.default_rng(0),
        candidates=100_000,
        patience=1_000,
    )
    used = np.bincount(queries.columns.ravel(), minlength=8)
    hit = np.bincount([rows[0] for rows in matching_rows(queries, coded)], minlength=200)
    assert len(queries) == 4_000
    assert np.abs(used - 1_500).max() < 5 * np.sqrt(1_500)
    assert np.abs(hit - 20).max() < 5 * np.sqrt(20)


def test_univariate_queries_are_the_unique_and_extreme_values_of_the_synthetic_table(
    tables,
) -> None:
    schema, synthetic, _, coded, _ = tables
    queries = univariate(coded, 10_000, np.random.default_rng(0))
    assert len(univariate(coded, 5, np.random.default_rng(0))) == 5
    masks = set()
    for name in schema.names:
        column = synthetic[name]
        wanted = [(column == value) for value in column.dropna().unique()] + [column.isna()]
        if name in ORDERED:
            wanted += [column <= column.min(), column >= column.max()]
        masks |= {
            (name, int(np.flatnonzero(m.fillna(False))[0]))
            for m in wanted
            if m.fillna(False).sum() == 1
        }
    rows = matching_rows(queries, coded)
    assert all(len(found) == 1 for found in rows)
    found = {(schema.names[c], int(r[0])) for c, r in zip(queries.columns[:, 0], rows, strict=True)}
    assert found == masks
    # "<= smallest" is a separate query from "== smallest" if real values are below.
    smallest = [
        (low, high)
        for low, high in zip(queries.low[:, 0], queries.high[:, 0], strict=True)
        if low < high
    ]
    assert smallest


@pytest.mark.parametrize(("share", "words"), [(0.05, 1), (0.95, 2)])
def test_matches_and_relabeled_hits_are_counted_by_subject(
    share: float, words: int, tables
) -> None:
    coded, real = tables[3:]
    rng = np.random.default_rng(5)
    subject = rng.permutation(np.repeat(np.arange(80), [1] * 20 + [3] * 60))
    member, other = rng.random(80) < 0.4, rng.random((80, 64 * words)) < share
    labels = np.packbits(other, axis=1, bitorder="little").view("<u8").astype(np.uint64)
    columns = np.stack([rng.permutation(len(coded.start))[:2] for _ in range(200)]).astype(np.int32)
    ends = np.sort(
        rng.integers(0, np.array([len(coded.counts(j)) for j in range(8)])[columns], (2, 200, 2)),
        axis=0,
    )
    queries = Queries(columns, *ends.astype(np.int32))
    counts, hits = matched_subjects(queries, real, subject, member, labels)
    by_hand = np.zeros(64 * words, dtype=np.int64)
    for at, rows in enumerate(matching_rows(queries, real)):
        people = np.unique(subject[rows])
        assert counts[at].tolist() == [np.sum(~member[people]), np.sum(member[people])]
        by_hand += other[people].sum(axis=0) == 1
    assert by_hand.any()
    assert hits.tolist() == by_hand.tolist()
    # also if each set has two members long before the last match
    assert counts.sum(axis=1).max() > 70


def test_a_coarse_table_runs_dry_instead_of_searching_on() -> None:
    frame = pd.DataFrame({"a": [0, 0, 1, 1, 0], "b": ["x", "x", "x", "y", "y"]})
    for rows, targets, found in ((frame, 5, 3), (pd.concat([frame, frame]), 10, 0), (frame, 0, 0)):
        coded, rng = code(rows, a="categorical"), np.random.default_rng(0)
        given = (coded, [threshold_scheme(coded)], np.arange(targets), 2, 2_000, rng)
        assert len(multivariate(*given, candidates=10**9, patience=1_000)) == found


def test_repeated_queries_do_not_end_the_search_while_there_are_others() -> None:
    frame = pd.DataFrame({"a": np.arange(60.0), "b": np.arange(60.0)[::-1]})
    coded = code(frame)
    equality = np.concatenate([np.arange(62), np.arange(62)]).astype(np.int32)
    args = (coded, [Scheme(equality, equality)], np.arange(60), 1, 110)
    for seed in range(20):  # 110 of the 120 existing queries
        assert (
            len(multivariate(*args, np.random.default_rng(seed), candidates=10**6, patience=1_000))
            == 110
        )


def test_where_thresholds_run_dry_bins_make_up_the_rest() -> None:
    rng = np.random.default_rng(1)
    coded = code(
        pd.DataFrame(
            {
                "a": rng.integers(0, 30, 80),
                "b": rng.integers(0, 3, 80),
                "c": rng.choice(["x", "y"], 80),
            }
        )
    )
    schemes = [threshold_scheme(coded), bin_scheme(coded)]

    def found(schemes: list[Scheme], wanted: int) -> set[frozenset[tuple[int, int, int]]]:
        given = (coded, schemes, np.arange(80), 3, wanted, np.random.default_rng(0))
        queries = multivariate(*given, candidates=100_000, patience=2_000)
        assert all(len(rows) == 1 for rows in matching_rows(queries, coded))
        assert len(as_sets(queries)) == len(queries) <= wanted
        return as_sets(queries)

    first, second = (found([scheme], 1_000) for scheme in schemes)
    assert len(first) < len(second) < 1_000
    assert found(schemes, 1_000) == first | second
    # Bins are not used while thresholds suffice.
    assert found(schemes, len(first)) == first
