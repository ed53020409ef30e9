"""Which records are selected: by distance and by each baseline, ties, draws and settings."""

from __future__ import annotations

from collections import Counter
from math import log

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import ConfigError
from privacy_assets.shadow.selection import SELECTORS, most_exposed, select_records
from privacy_assets.shadow.vulnerability import vulnerability
from tests.shadow.coded_tables import ADULT_MOST_VULNERABLE, coded, mixed, repeated, with_gaps


def select(frame, seed=0, **more):
    return select_records(*coded(frame), rng=np.random.default_rng(seed), **more)


def drawn(frame, seeds, **more):
    """How often each record is selected."""
    cells, coding = coded(frame)
    found = (select_records(cells, coding, rng=np.random.default_rng(seed), **more) for seed in range(seeds))
    return Counter(i for selection in found for i in selection.ids.tolist())


def test_by_distance_the_largest_scores_most_exposed_first():
    frame = mixed(np.random.default_rng(0), 500)
    for more in ({}, {"neighbours": 2}, {"distance": "minkowski1"}):
        found, all_scores = select(frame, records=7, **more), vulnerability(*coded(frame), **more)
        assert found.ids.tolist() == np.argsort(-all_scores)[:7].tolist()
        assert found.scores.tolist() == np.sort(all_scores)[::-1][:7].tolist()
        assert found.ids.dtype == np.int64 and found.scores.dtype == np.float64


def test_the_paper_s_records_of_adult(adult_file):
    complete = adult_file[~(adult_file == "?").any(axis=1)].reset_index(drop=True)
    assert select(complete).ids.tolist() == ADULT_MOST_VULNERABLE


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
        assert found.ids[0] == 1 and found.ids[1] < found.ids[2] and found.scores.tolist() == [0.9, 0.5, 0.5]
        chosen.update(found.ids[1:].tolist())
    assert set(chosen) == {0, 2, 4, 5} and all(abs(count - 200) < 60 for count in chosen.values())


def test_without_a_tie_at_the_cut_nothing_is_drawn():
    untied, rng = np.array([0.5, 0.5, 0.1, 0.4, np.inf]), np.random.default_rng(0)
    assert most_exposed(untied, 3, rng).ids.tolist() == [4, 0, 1]
    assert rng.bit_generator.state == np.random.default_rng(0).bit_generator.state


@pytest.mark.parametrize("by", SELECTORS)
def test_one_seed_one_selection(by):
    frame = repeated(np.random.default_rng(3), 400)
    first, again, other = (select(frame, seed, by=by, records=9) for seed in (0, 0, 1))
    assert first.ids.tolist() == again.ids.tolist() and first.scores.tolist() == again.scores.tolist()
    assert len(set(first.ids.tolist())) == 9 and (np.diff(first.scores) <= 0).all()
    if by in ("random", "rare_value"):
        assert first.ids.tolist() != other.ids.tolist()


def test_random_draws_every_record_alike():
    frame = mixed(np.random.default_rng(0), 20)
    counts = drawn(frame, 500, by="random", records=4)
    assert len(counts) == 20 and all(60 < count < 145 for count in counts.values())  # 100, sd 9


def rare_by_hand(frame):
    held = np.zeros(len(frame), dtype=int)
    for name in frame:
        column = frame[name]
        if pd.api.types.is_bool_dtype(column) or column.dtype == object or isinstance(column.dtype, pd.StringDtype):
            values = [repr(None) if pd.isna(value) else repr(value) for value in column]
            counts = Counter(values)
            least = min(counts.values())
            held += [counts[value] == least and least <= 0.05 * len(frame) for value in values]
        else:
            there = sorted(column.dropna())
            cut = there[-(-95 * len(there) // 100) - 1]
            held += [not pd.isna(value) and value > cut for value in column]
    return held


@pytest.mark.parametrize("table", [mixed, with_gaps])
def test_rare_value_draws_among_the_records_with_one(table):
    frame = table(np.random.default_rng(4), 700)
    held = rare_by_hand(frame)
    everyone = select(frame, by="rare_value", records=700)
    assert set(everyone.ids.tolist()) == set(np.flatnonzero(held).tolist()) and 0 < len(everyone.ids) < 350
    assert everyone.scores.tolist() == sorted(held[held > 0], reverse=True)
    assert set(drawn(frame, 300, by="rare_value")) == set(everyone.ids.tolist())


def test_the_rarest_category_is_not_rare_where_many_hold_it():
    half = pd.DataFrame({"sex": ["f"] * 40 + ["m"] * 60, "town": ["a"] * 99 + ["b"]})
    assert select(half, by="rare_value").ids.tolist() == [99]
    assert select(half[["sex"]], by="rare_value").ids.tolist() == []


@pytest.mark.parametrize("table", [mixed, with_gaps])
def test_log_likelihood_by_hand(table):
    frame = table(np.random.default_rng(5), 400)
    likelihood = np.zeros(len(frame))
    for name in frame:
        column = frame[name]
        if pd.api.types.is_bool_dtype(column) or column.dtype == object or isinstance(column.dtype, pd.StringDtype):
            bins = [repr(None) if pd.isna(value) else repr(value) for value in column]
        else:
            there = sorted(column.dropna())
            cuts = {there[-(-level * len(there) // 100) - 1] for level in range(1, 100)}
            bins = [None if pd.isna(value) else sum(cut < value for cut in cuts) for value in column]
        counts = Counter(bins)
        likelihood += [log(counts[value] / len(frame)) for value in bins]
    found = select(frame, by="log_likelihood", records=400)
    np.testing.assert_allclose(found.scores, -likelihood[found.ids], rtol=1e-12)
    assert (np.diff(found.scores) <= 0).all()


@pytest.mark.parametrize("by", SELECTORS)
def test_few_records(by):
    cells, coding = coded(mixed(np.random.default_rng(0), 3))
    for n in (0, 1, 2, 3):
        found = select_records(cells[:, :n], coding, by=by, rng=np.random.default_rng(0))
        assert set(found.ids.tolist()) <= set(range(n)) and found.ids.dtype == np.int64
        assert by == "rare_value" or len(found.ids) == n


def test_what_is_no_setting():
    frame = mixed(np.random.default_rng(0), 3)
    with pytest.raises(ConfigError, match="selected by 'distances'.*'distance'"):
        select(frame, by="distances")
    with pytest.raises(ConfigError, match="records must be at least 1, not 0"):
        select(frame, records=0)
