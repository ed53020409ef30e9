"""Which records are selected: by distance and by each baseline, ties, draws and people."""

from __future__ import annotations

from collections import Counter
from math import log
from typing import get_args

import numpy as np
import pandas as pd
import pytest

from privacy_assets.metrics.vulnerability import (
    Selector,
    most_exposed,
    select_records,
    vulnerability,
)
from tests.metrics.coded_tables import coded, mixed, repeated, with_gaps

SELECTORS = get_args(Selector)


def select(frame, seed=0, **more):
    cells, coding = coded(frame)
    return select_records(
        cells, coding, vulnerability(cells, coding), rng=np.random.default_rng(seed), **more
    )


def drawn(frame, seeds, **more):
    """Number of times that each record is selected."""
    cells, coding = coded(frame)
    none = np.zeros(len(frame))
    found = (
        select_records(cells, coding, none, rng=np.random.default_rng(seed), **more)
        for seed in range(seeds)
    )
    return Counter(i for selection in found for i in selection.ids.tolist())


def test_by_distance_the_largest_scores_most_exposed_first():
    frame = mixed(np.random.default_rng(0), 500)
    found, scores = select(frame, records=7), vulnerability(*coded(frame))
    assert found.ids.tolist() == np.argsort(-scores)[:7].tolist()
    assert found.scores.tolist() == np.sort(scores)[::-1][:7].tolist()
    people = np.arange(500) // 5
    largest = scores.reshape(100, 5).max(axis=1)
    assert (
        select(frame, records=7, subject_codes=people).scores.tolist()
        == np.sort(largest)[::-1][:7].tolist()
    )


@pytest.mark.parametrize("by", ["distance", "log_likelihood"])
def test_order_of_rows_reorders_the_ids_and_nothing_else(by):
    frame = with_gaps(np.random.default_rng(1), 900)
    order = np.random.default_rng(2).permutation(len(frame))
    first, second = select(frame, by=by), select(frame.iloc[order].reset_index(drop=True), by=by)
    assert set(order[second.ids].tolist()) == set(first.ids.tolist())
    np.testing.assert_allclose(second.scores, first.scores, rtol=1e-12)


def test_of_records_tied_at_the_cut_a_random_subset_is_chosen():
    tied = np.array([0.5, 0.9, 0.5, 0.1, 0.5, 0.5])
    chosen = Counter()
    for seed in range(400):
        found = most_exposed(tied, 3, np.random.default_rng(seed))
        assert (
            found.ids[0] == 1
            and found.ids[1] < found.ids[2]
            and found.scores.tolist() == [0.9, 0.5, 0.5]
        )
        chosen.update(found.ids[1:].tolist())
    assert set(chosen) == {0, 2, 4, 5} and all(abs(count - 200) < 60 for count in chosen.values())


def test_without_a_tie_at_the_cut_nothing_is_drawn_and_of_each_person_there_is_one():
    untied, rng = np.array([0.5, 0.5, 0.1, 0.4, np.inf]), np.random.default_rng(0)
    assert most_exposed(untied, 3, rng).ids.tolist() == [4, 0, 1]
    assert rng.bit_generator.state == np.random.default_rng(0).bit_generator.state
    assert most_exposed(untied, 3, rng, np.array([7, 7, 3, 3, 5])).ids.tolist() == [4, 0, 3]
    assert most_exposed(untied, 2, rng, np.array([7, 4, 7, 4, 4])).ids.tolist() == [4, 0]


@pytest.mark.parametrize("by", SELECTORS)
def test_one_seed_one_selection(by):
    frame = repeated(np.random.default_rng(3), 400)
    first, again, other = (select(frame, seed, by=by, records=9) for seed in (0, 0, 1))
    assert (
        first.ids.tolist() == again.ids.tolist() and first.scores.tolist() == again.scores.tolist()
    )
    assert len(set(first.ids.tolist())) == 9 and (np.diff(first.scores) <= 0).all()
    assert first.ids.dtype == np.int64 and first.scores.dtype == np.float64
    if by in ("random", "rare_value"):
        assert first.ids.tolist() != other.ids.tolist()


def test_random_draws_every_record_alike():
    counts = drawn(mixed(np.random.default_rng(0), 20), 500, by="random", records=4)
    assert len(counts) == 20 and all(60 < count < 145 for count in counts.values())  # 100, sd 9


def columns_by_hand(frame):
    """Each column as strings, or as its numbers, None where missing, with their percentiles."""
    for name in frame:
        column = frame[name]
        if (
            pd.api.types.is_bool_dtype(column)
            or column.dtype == object
            or isinstance(column.dtype, pd.StringDtype)
        ):
            yield [repr(None) if pd.isna(value) else repr(value) for value in column], None
        else:
            there = sorted(column.dropna())
            cuts = [there[-(-level * len(there) // 100) - 1] for level in range(1, 100)]
            yield [None if pd.isna(value) else value for value in column], cuts


@pytest.mark.parametrize("table", [mixed, with_gaps])
def test_rare_value_draws_among_the_records_with_one(table):
    frame = table(np.random.default_rng(4), 700)
    held = np.zeros(700, dtype=int)
    for values, cuts in columns_by_hand(frame):
        counts = Counter(values)
        least = min(counts.values())
        if cuts is None:
            held += [counts[value] == least and least <= 0.05 * 700 for value in values]
        else:
            held += [value is not None and value > cuts[94] for value in values]
    everyone = select(frame, by="rare_value", records=700)
    assert (
        set(everyone.ids.tolist()) == set(np.flatnonzero(held).tolist())
        and 0 < len(everyone.ids) < 350
    )
    assert everyone.scores.tolist() == sorted(held[held > 0], reverse=True)
    assert set(drawn(frame, 300, by="rare_value")) == set(everyone.ids.tolist())


def test_the_rarest_category_is_not_rare_where_many_hold_it():
    half = pd.DataFrame({"sex": ["f"] * 40 + ["m"] * 60, "town": ["a"] * 99 + ["b"]})
    assert select(half, by="rare_value").ids.tolist() == [99]
    assert select(half[["sex"]], by="rare_value").ids.tolist() == []


@pytest.mark.parametrize("table", [mixed, with_gaps])
def test_log_likelihood_by_hand(table):
    frame = table(np.random.default_rng(5), 400)
    likelihood = np.zeros(400)
    for values, cuts in columns_by_hand(frame):
        bins = (
            values
            if cuts is None
            else [v if v is None else sum(cut < v for cut in set(cuts)) for v in values]
        )
        likelihood += [log(Counter(bins)[value] / 400) for value in bins]
    found = select(frame, by="log_likelihood", records=400)
    np.testing.assert_allclose(found.scores, -likelihood[found.ids], rtol=1e-12)
    assert (np.diff(found.scores) <= 0).all()


@pytest.mark.parametrize("by", SELECTORS)
def test_few_records(by):
    cells, coding = coded(mixed(np.random.default_rng(0), 3))
    for n in (0, 1, 2, 3):
        found = select_records(
            cells[:, :n], coding, np.zeros(n), by=by, rng=np.random.default_rng(0)
        )
        assert set(found.ids.tolist()) <= set(range(n)) and found.ids.dtype == np.int64
        assert by == "rare_value" or len(found.ids) == n
