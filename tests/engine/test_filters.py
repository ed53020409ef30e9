"""The memorization filter: what it leaves out, against a naive twin, and what becomes of planted copies."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from privacy_assets.engine.evaluation import prepare_inputs, run_metrics
from privacy_assets.engine.filters import FILTERS, Filtered, MemorizationFilter, build_filter
from privacy_assets.engine.generators.base import FittedGenerator
from privacy_assets.engine.metrics.exposure import TIE
from privacy_assets.engine.policy import Policy
from privacy_assets.engine.registry import build_metric
from privacy_assets.engine.tables.encoding import EncodedTable, Encoder
from privacy_assets.engine.tables.schema import conform, infer_schema
from privacy_assets.errors import ConfigError, InputError


class Given(FittedGenerator):
    """Draws rows of a table one after the other, from a place that depends on the seed."""

    def __init__(self, pool):
        self.pool, self.asked = pool, []

    def sample(self, rows, *, seed):
        self.asked.append((rows, seed))
        start = 0 if seed < 1000 else sum(asked for asked, _ in self.asked[:-1])
        return self.pool.iloc[np.arange(start, start + rows) % len(self.pool)].reset_index(drop=True)

    def _sample(self, rows, seed):
        raise NotImplementedError

    def _save(self, folder):
        raise NotImplementedError


def mixed(n, seed):
    g = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": g.integers(18, 90, n),
            "income": np.where(g.random(n) < 0.1, np.nan, g.lognormal(10, 1, n)),
            "region": g.choice(list("abc"), n),
            "smokes": g.random(n) < 0.3,
            "seen": pd.Timestamp("2020-01-01") + pd.to_timedelta(g.integers(0, 900, n), unit="D"),
        }
    )
    frame["region"] = frame["region"].where(g.random(n) < 0.9)
    return conform(frame, infer_schema(frame), where="table")


def split(frame, *sizes):
    ends = np.cumsum([0, *sizes])
    return [frame.iloc[a:b].reset_index(drop=True) for a, b in zip(ends[:-1], ends[1:], strict=True)]


def naive(real, rows, schema, radius, crowd, subjects):
    encoder = Encoder.fit(real, schema, others=[rows])
    people = EncodedTable.stack([encoder.transform(frame) for frame in real])
    out, coded = [], encoder.transform(rows)
    for i in range(len(rows)):
        squared = (people.codes != coded.codes[i]).sum(axis=1).astype(float)
        for column in range(people.numeric.shape[1]):
            squared += (people.numeric[:, column].astype(float) - float(coded.numeric[i, column])) ** 2
        near = np.sqrt(squared) <= radius * (1 + TIE)
        parts = sum((near & (subjects == who)).sum() / (subjects == who).sum() for who in np.unique(subjects[near]))
        out.append(0 < parts < crowd - 1e-6)
    return np.array(out)


# ------------------------------------------------------------------------------------- which rows


@pytest.mark.parametrize("radius", [0.0, 0.3, 0.8, 1.2])
@pytest.mark.parametrize("crowd", [2, 4])
def test_the_rows_left_out_are_the_naive_ones(radius, crowd):
    train, holdout, reference, drawn = split(mixed(260, 0), 90, 40, 30, 100)
    drawn = pd.concat([drawn, train.iloc[:10], holdout.iloc[:5], reference.iloc[:5]], ignore_index=True)
    schema, subjects = infer_schema(mixed(260, 0)), np.random.default_rng(0).integers(0, 60, 160)
    subjects = np.unique(subjects, return_inverse=True)[1]
    chosen = MemorizationFilter(crowd=crowd, radius=radius)
    fitted = chosen.fit([train, holdout, reference], schema, subjects)
    expected = naive([train, holdout, reference], drawn, schema, radius, crowd, subjects)
    np.testing.assert_array_equal(fitted.exposed(drawn), expected)
    assert expected.any() and not expected.all()


def test_copies_of_any_real_side_go_and_rows_near_nobody_stay():
    train, holdout, reference, fresh = split(mixed(700, 1), 300, 100, 100, 200)
    fitted = MemorizationFilter().fit([train, holdout, reference], infer_schema(mixed(700, 1)))
    for side in (train, holdout, reference):
        assert fitted.exposed(side).all()
    assert fitted.exposed(fresh).mean() < 0.1


def test_a_crowd_hides_a_row_and_one_person_is_no_crowd():
    frame = conform(pd.DataFrame({"a": ["x"] * 6 + ["y"] * 4 + ["z"]}), schema := infer_schema(
        pd.DataFrame({"a": ["x", "y", "z"]})), where="real")  # fmt: skip
    asked = conform(pd.DataFrame({"a": ["x", "y", "z"]}), schema, where="asked")
    fitted = MemorizationFilter(radius=0.0).fit([frame], schema)
    assert fitted.exposed(asked).tolist() == [False, True, True]
    alone = MemorizationFilter(radius=0.0).fit([frame], schema, np.array([0] * 6 + [1, 2, 3, 4, 5]))
    assert alone.exposed(asked).tolist() == [True, True, True]


def test_which_side_a_row_stands_on_does_not_matter():
    real = mixed(400, 2)
    schema, drawn = infer_schema(real), mixed(200, 3)
    sides = [split(real, 240, 80, 80), split(real.sample(frac=1, random_state=0), 100, 200, 100), [real]]
    masks = [MemorizationFilter(quantile=0.1).fit(side, schema).exposed(drawn) for side in sides]
    assert masks[0].any()
    for mask in masks[1:]:
        np.testing.assert_array_equal(mask, masks[0])


def test_each_row_is_judged_by_itself():
    real, drawn = mixed(300, 4), mixed(120, 5)
    fitted = MemorizationFilter(quantile=0.2).fit([real], infer_schema(real))
    whole, order = fitted.exposed(drawn), np.random.default_rng(0).permutation(120)
    np.testing.assert_array_equal(fitted.exposed(drawn.iloc[order].reset_index(drop=True)), whole[order])
    parts = [fitted.exposed(drawn.iloc[a : a + 40].reset_index(drop=True)) for a in (0, 40, 80)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert fitted.exposed(drawn.iloc[:0]).shape == (0,)


def test_a_missing_value_that_no_real_row_has_is_near_nobody():
    real = mixed(200, 6).dropna().reset_index(drop=True)
    drawn = real.copy()
    drawn["income"] = np.nan
    fitted = MemorizationFilter().fit([real], infer_schema(mixed(200, 6)))
    assert fitted.exposed(real).all() and not fitted.exposed(drawn).any()


# ------------------------------------------------------------------------------------- drawing


def test_nothing_is_drawn_anew_when_everything_passes():
    real, pool = mixed(300, 7), mixed(100, 8)
    drawn = Given(pool)
    found = MemorizationFilter(radius=0.0).fit([real], infer_schema(real)).sample(drawn, 100, seed=0)
    assert (found.drawn, found.dropped, drawn.asked) == (100, 0, [(100, 0)])
    pd.testing.assert_frame_equal(found.rows, pool)


def test_rows_are_drawn_until_there_are_enough():
    real, fresh = split(mixed(1200, 9), 400, 800)
    pool = pd.concat([real.iloc[:80], fresh], ignore_index=True)
    fitted, drawn = MemorizationFilter().fit([real], infer_schema(real)), Given(pool)
    found = fitted.sample(drawn, 200, seed=3)
    assert len(found.rows) == 200 and not fitted.exposed(found.rows).any()
    assert found.dropped >= 80 and found.drawn == sum(rows for rows, _ in drawn.asked) <= 2000
    assert len({seed for _, seed in drawn.asked}) == len(drawn.asked) >= 2
    pd.testing.assert_frame_equal(found.unfiltered, Given(pool).sample(200, seed=3))
    again = fitted.sample(Given(pool), 200, seed=3)
    pd.testing.assert_frame_equal(again.rows, found.rows)
    assert isinstance(found, Filtered)


def test_a_generator_of_copies_is_an_error_and_says_nothing_private():
    real = mixed(300, 10)
    fitted, drawn = MemorizationFilter(attempts=3).fit([real], infer_schema(real)), Given(real)
    with pytest.raises(InputError, match=r"0 of 300 rows drawn passed, 100 are wanted.*memorise less"):
        fitted.sample(drawn, 100, seed=0)
    assert sum(rows for rows, _ in drawn.asked) == 300


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_real_rows(rows):
    real = mixed(20, 11)
    with pytest.raises(InputError, match="two or more"):
        MemorizationFilter().fit([real.iloc[:rows]], infer_schema(real))


# ------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"crowd": 1}, "crowd"), ({"crowd": 2.5}, "crowd"), ({"crowd": True}, "crowd"), ({"attempts": 1}, "attempts"),
        ({"radius": -0.1}, "radius"), ({"radius": float("nan")}, "radius"), ({"quantile": 0.0}, "quantile"),
        ({"quantile": 0.6}, "quantile"), ({"crwd": 3}, "Did you mean 'crowd'"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(settings, named):
    with pytest.raises(ConfigError, match=named):
        build_filter("memorization", settings)


def test_filters_are_named():
    with pytest.raises(ConfigError, match="Did you mean 'memorization'"):
        build_filter("memorisation")
    assert {name: kind.name for name, kind in FILTERS.items()} == {"memorization": "memorization"}
    assert build_filter("memorization", {"crowd": 3}).settings()["crowd"] == 3


# ------------------------------------------------------------------------------------- acceptance


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adult", "uk_census"])
def test_planted_copies_stop_giving_members_away_and_honest_tables_hold_the_limits(name, request):
    frame = request.getfixturevalue(name)
    schema = infer_schema(frame)
    train, holdout, reference, fresh = split(conform(frame, schema, where=name), 8000, 2600, 2600, 20_000)
    copies = train.sample(len(fresh), replace=True, random_state=0).reset_index(drop=True)
    planted = np.random.default_rng(0).random(len(fresh)) < 0.1
    both = pd.concat([fresh, copies], ignore_index=True)
    leaky = both.iloc[np.arange(len(fresh)) + len(fresh) * planted].reset_index(drop=True)
    fitted = MemorizationFilter().fit([train, holdout, reference], schema)
    metrics = {key: build_metric(key) for key in ("dcr", "membership_inference")}

    def measured(rows):
        inputs = prepare_inputs(train, holdout, rows, reference, schema=schema)
        results = run_metrics(inputs, metrics)
        policy = Policy.default(metrics)
        return results["membership_inference"].figure("precision").value - 0.5, policy.judge(results)

    before, judged = measured(leaky.iloc[:8000])
    assert judged.verdict == "fail"
    after, judged = measured(fitted.sample(Given(leaky), 8000, seed=0).rows)
    assert after <= before / 2
    assert judged.verdict == "pass", [outcome.reason for outcome in judged.broken]
    _, judged = measured(fitted.sample(Given(fresh), 8000, seed=0).rows)
    assert judged.verdict == "pass", [outcome.reason for outcome in judged.broken]

    # The filter that DESIGN warns of: by distance to train alone.
    alone = MemorizationFilter().fit([train], schema)
    _, judged = measured(alone.sample(Given(fresh), 8000, seed=0).rows)
    assert "dcr.member_excess_any.lower" in {outcome.limit.key for outcome in judged.broken}
