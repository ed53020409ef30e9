"""Drawing behind filters, and what becomes of planted copies and of honest tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import InputError
from privacy_assets.evaluation import prepare_inputs, run_metrics
from privacy_assets.generators.filters import (
    Filtered,
    MemorizationFilter,
    OutlierFilter,
    SimilarityFilter,
    as_filters,
    draw,
)
from privacy_assets.metrics.registry import build_metric
from privacy_assets.policy import Policy
from privacy_assets.tables.table import Table
from tests.generators.filter_standins import Given, changed, mixed, split


def test_nothing_is_drawn_anew_when_everything_passes():
    real, pool = mixed(300, 7), mixed(100, 8)
    drawn = Given(pool)
    found = draw(drawn, [MemorizationFilter(radius=0.0).fit([real], real.schema)], 100, seed=0)
    assert (found.drawn, found.dropped, drawn.asked) == (100, 0, [(100, 0)])
    pd.testing.assert_frame_equal(found.rows.frame(), pool.frame())


def test_rows_are_drawn_until_there_are_enough():
    real, fresh = split(mixed(1200, 9), 400, 800)
    pool = Table.stack([real.take(slice(80)), fresh])
    fitted, drawn = MemorizationFilter().fit([real], real.schema), Given(pool)
    found = draw(drawn, [fitted], 200, seed=3)
    assert len(found.rows) == 200 and not fitted.exposed(found.rows).any()
    assert found.dropped >= 80 and found.drawn == sum(rows for rows, _ in drawn.asked) <= 2000
    assert len({seed for _, seed in drawn.asked}) == len(drawn.asked) >= 2
    pd.testing.assert_frame_equal(found.unfiltered.frame(), Given(pool).sample(200, seed=3).frame())
    again = draw(Given(pool), [fitted], 200, seed=3)
    pd.testing.assert_frame_equal(again.rows.frame(), found.rows.frame())
    assert isinstance(found, Filtered)


def test_a_generator_of_copies_is_an_error_and_says_nothing_private():
    real = mixed(300, 10)
    fitted, drawn = MemorizationFilter(attempts=3).fit([real], real.schema), Given(real)
    with pytest.raises(InputError, match=r"0 of 300 rows drawn passed, 100 are wanted.*memorise less"):
        draw(drawn, [fitted], 100, seed=0)
    assert sum(rows for rows, _ in drawn.asked) == 300


def test_filters_together_leave_out_what_any_of_them_does():
    real, fresh = split(mixed(1200, 15), 400, 800)
    first = fresh.take(slice(60))
    strange = changed(first, age=first.frame()["age"] + 4000)
    pool = Table.stack([real.take(slice(50)), strange, fresh.take(slice(60, None))])
    filters = [one.fit([real], real.schema) for one in as_filters(["outliers", "similarity"])]
    found = draw(Given(pool), filters, 300, seed=0)
    masks = {fitted.filter.name: fitted.exposed(pool.take(slice(found.drawn))) for fitted in filters}
    assert found.drawn <= len(pool), "so that the counts can be seen to be those of the pool"
    assert dict(found.dropped_by) == {name: mask.sum() for name, mask in masks.items()}
    assert found.dropped == np.logical_or(*masks.values()).sum() >= 110
    assert not any(fitted.exposed(found.rows).any() for fitted in filters)
    turned = draw(Given(pool), filters[::-1], 300, seed=0)
    pd.testing.assert_frame_equal(turned.rows.frame(), found.rows.frame())


def test_too_few_rows_are_told_with_the_fix_of_the_filter_that_left_out_most():
    real = mixed(300, 16)
    strange = changed(real, age=real.frame()["age"] + 4000)
    filters = [one.fit([real], real.schema) for one in as_filters(["memorization", "outliers"])]
    with pytest.raises(InputError, match=r"filter memorization, outliers: 0 of 1000 rows.*stay nearer"):
        draw(Given(strange), filters, 100, seed=0)
    with pytest.raises(InputError, match=r"filter memorization, outliers: 0 of 1000 rows.*memorise less"):
        draw(Given(real.take(slice(100))), filters, 100, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adult", "uk_census"])
def test_planted_copies_stop_giving_members_away_and_honest_tables_hold_the_limits(name, request):
    frame = request.getfixturevalue(name)
    table = Table.read(frame)
    schema = table.schema
    train, holdout, reference, fresh = split(table, 4000, 1300, 1300, 10_000)
    copies = train.take(np.random.default_rng(1).integers(0, len(train), len(fresh)))
    planted = np.random.default_rng(0).random(len(fresh)) < 0.1
    leaky = Table.stack([fresh, copies]).take(np.arange(len(fresh)) + len(fresh) * planted)
    metrics = {key: build_metric(key) for key in ("dcr", "membership_inference")}

    def measured(rows):
        inputs = prepare_inputs(*(one.frame() for one in (train, holdout, rows, reference)), schema=schema)
        results = run_metrics(inputs, metrics)
        policy = Policy.default(metrics)
        return results["membership_inference"], policy.judge(results)

    def left(pool, *chosen, real=(train, holdout, reference)):
        return draw(Given(pool), [one.fit(real, schema) for one in chosen], 4000, seed=0).rows

    before, judged = measured(leaky.take(slice(4000)))
    assert judged.verdict == "fail"
    near = [(MemorizationFilter(),), (SimilarityFilter(),), (MemorizationFilter(), OutlierFilter())]
    for chosen in near:
        after, judged = measured(left(leaky, *chosen))
        assert after.estimate("precision").value - 0.5 <= (before.estimate("precision").value - 0.5) / 2
        assert after.estimate("advantage").value < before.estimate("advantage").value / 2
        assert judged.verdict == "pass", [outcome.reason for outcome in judged.broken]
    for chosen in (*near, (OutlierFilter(),)):  # nobody is given away by absence: every limit is two-sided
        honest, judged = measured(left(fresh, *chosen))
        assert honest.estimate("advantage").low < 0.01
        assert judged.verdict == "pass", [outcome.reason for outcome in judged.broken]
    alone, _ = measured(left(leaky, OutlierFilter()))  # it saves those who stand apart, and nobody else
    isolated = [result.estimate("advantage_outliers").value for result in (before, alone)]
    assert isolated[1] < isolated[0]
    assert alone.estimate("advantage").value > before.estimate("advantage").value * 0.8

    # The filter that DESIGN warns of: by distance to train alone.
    for chosen in near[:2]:
        _, judged = measured(left(fresh, *chosen, real=(train,)))
        assert "dcr.member_excess_any.lower" in {outcome.limit.key for outcome in judged.broken}
