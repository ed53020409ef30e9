"""Metric ``controls``: planted leaks are caught where it says so, and null tables are let through."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import ConfigError
from privacy_assets.evaluation import choose_metrics, prepare_inputs, run_metrics
from privacy_assets.metrics.controls import Controls
from privacy_assets.metrics.controls.canaries import KINDS, canaries
from privacy_assets.metrics.controls.metric import _tolerance
from privacy_assets.metrics.controls.simulated_releases import SimulatedReleases, last_true
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.membership_inference.outliers import advantage_outliers
from privacy_assets.neighbours.nearest import nearest_rows
from privacy_assets.policy import Policy
from privacy_assets.stats.limits import Limit
from privacy_assets.stats.results import MetricResult
from privacy_assets.tables.table import Table


def people(rows: int, seed: int) -> pd.DataFrame:
    """Mixed rows with outliers among them, a date and missing values."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, rows),
            "income": rng.lognormal(10, 0.7, rows).round(),
            "score": rng.normal(0, 1, rows).round(3),
            "plan": rng.choice(list("abcdefgh"), rows, p=[0.4, 0.3, 0.1, 0.08, 0.06, 0.03, 0.02, 0.01]),
            "active": rng.random(rows) < 0.3,
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1500, rows), unit="D"),
        }
    )
    return frame.assign(score=frame["score"].where(rng.random(rows) > 0.1))


TRAIN, HOLDOUT, REFERENCE, FRESH = (people(rows, seed) for rows, seed in ((2400, 1), (700, 2), (700, 3), (2400, 4)))


@cache
def fresh() -> MetricInputs:
    """Prepared once: what a metric makes of a table is kept beside it."""
    return prepare_inputs(TRAIN, HOLDOUT, FRESH, REFERENCE)


def inputs_of(synthetic: pd.DataFrame = FRESH, seed: int = 0, **tables: pd.DataFrame | None) -> MetricInputs:
    if synthetic is FRESH and seed == 0 and not tables:
        return fresh()
    given = {"train": TRAIN, "holdout": HOLDOUT, "reference": REFERENCE, **tables}
    return prepare_inputs(given["train"], given["holdout"], synthetic, given["reference"], seed=seed)


@pytest.fixture(scope="module")
def measured() -> MetricResult:
    return Controls().evaluate(inputs_of())


def verdict(result: MetricResult) -> str:
    return Policy.default(["controls"]).judge({"controls": result}).verdict


def judged(result_of: MetricInputs, policy: Policy) -> set[str]:
    """Independent of controls: keys of the limits that the metrics themselves find not to hold."""
    results = run_metrics(
        result_of,
        {name: {"dcr": Dcr(), "membership_inference": MembershipInference()}[name] for name in policy.metrics},
    )
    return {outcome.limit.key for outcome in policy.judge(results).broken}


LOOKED_AT = Policy(tuple(Limit(**limit) for limit in Controls().limits))


def test_an_honest_table_of_this_size_can_be_judged(measured: MetricResult) -> None:
    assert measured.estimate("false_alarm_rate").value <= 2 / 22
    for kind in KINDS:
        estimate = measured.estimate(f"smallest_leak_{kind}")
        assert 0 < estimate.low < estimate.value == estimate.high < 0.3, kind
    assert measured.estimate("smallest_leak_exact").value < measured.estimate("smallest_leak_jittered").value
    assert verdict(measured) == "pass"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_stated_leak_is_caught_and_a_third_of_it_often_not(measured, kind: str) -> None:
    """By the metrics themselves, on tables that are put together here."""
    stated, inputs = measured.estimate(f"smallest_leak_{kind}").value, inputs_of()
    rng = np.random.default_rng(7)
    # Independent: who is an outlier, by brute force over the encoded rows.
    real = np.vstack([_matrix(inputs, "train"), _matrix(inputs, "holdout")])
    places = np.flatnonzero(_outliers(real)[: len(TRAIN)]) if kind == "rare" else np.arange(len(TRAIN))
    caught = dict.fromkeys((1.0, 1 / 3), 0)
    for share in caught:
        for _ in range(6):
            count = max(1, round(share * stated * len(FRESH)))
            planted = canaries(kind, inputs.train, places, count, rng)
            keep = rng.permutation(len(FRESH))[count:]
            rows = Table.stack([inputs.synthetic.take(keep), planted])
            simulated = replace(inputs, tables={**inputs.tables, "synthetic": rows})
            caught[share] += bool(judged(simulated, LOOKED_AT))
    assert caught[1.0] >= 5 and caught[1 / 3] <= 4


def _matrix(inputs: MetricInputs, role: str) -> np.ndarray:
    encoded = inputs.encoded(role)
    parts = [encoded.numeric.astype(np.float64)]
    for place, size in enumerate(encoded.sizes):
        parts.append(np.eye(size)[encoded.codes[:, place]] / math.sqrt(2))
    return np.hstack(parts)


def _outliers(real: np.ndarray) -> np.ndarray:
    norms = (real**2).sum(1)
    squared = norms[:, None] + norms[None, :] - 2 * real @ real.T
    np.fill_diagonal(squared, np.inf)
    nearest = squared.min(1)
    return nearest >= np.quantile(nearest, 0.9)


@pytest.mark.slow
def test_a_holdout_of_forty_rows_is_blind() -> None:
    result = Controls(draws=4).evaluate(inputs_of(holdout=HOLDOUT[:40]))
    judgement = Policy.default(["controls"]).judge({"controls": result})
    assert judgement.verdict == "not_assessable"
    assert any("underpowered" in outcome.reason for outcome in judgement.broken)


def test_too_few_people_are_not_measurable() -> None:
    result = Controls().evaluate(inputs_of(holdout=HOLDOUT[:19]))
    assert all(math.isnan(estimate.value) and estimate.about == "gate" for estimate in result.estimates)
    assert verdict(result) == "not_assessable"


def test_a_table_that_leaks_itself_is_no_false_alarm() -> None:
    """Under shuffled labels a copy of train is a copy of anybody: the sides tell nothing."""
    result = Controls(draws=4, nulls=10).evaluate(inputs_of(TRAIN))
    assert result.estimate("false_alarm_rate").value <= 1 / 12
    # Nothing more can be broken by planting what is there already.
    assert math.isnan(result.estimate("smallest_leak_exact").value)
    assert "itself breaks every limit" in result.estimate("smallest_leak_exact").note


def test_a_limit_that_always_breaks_shows_as_false_alarms() -> None:
    policy = Policy(
        (
            Limit("dcr.member_excess_any", at_most=-0.9, bound="lower"),
            Limit("controls.false_alarm_rate", 0.1, bound="lower"),
        )
    )
    metrics, _ = choose_metrics({"controls": {"draws": 4}}, policy)
    result = metrics["controls"].evaluate(inputs_of())
    assert result.estimate("false_alarm_rate").value > 0.5
    assert policy.judge({"controls": result}).outcomes[1].status == "not_assessable"


@pytest.mark.parametrize("allowed", [0.02, pytest.param(0.05, marks=pytest.mark.slow)])
def test_a_loose_policy_is_blind_and_says_what_passes(allowed: float) -> None:
    """However small the leak is that it allows: a leak that passes is not taken for few rows."""
    loose = Policy(
        (Limit("dcr.member_excess_any", at_most=1.0, bound="lower"), Limit("controls.smallest_leak_exact", allowed))
    )
    metrics, _ = choose_metrics({"controls": {"draws": 4, "nulls": 10}}, loose)
    result = metrics["controls"].evaluate(inputs_of())
    assert f"a leak of {allowed:.1%} passed in 4 of 4 plantings" in result.estimate("smallest_leak_exact").note
    assert loose.judge({"controls": result}).outcomes[1].status == "not_assessable"


@pytest.mark.parametrize("caught", [1, *(pytest.param(one, marks=pytest.mark.slow) for one in (0.0, 0.5, 0.9))])
def test_a_planting_missed_once_is_not_blindness_and_every_tenth_is(
    monkeypatch: pytest.MonkeyPatch, caught: float
) -> None:
    """One walk of eight goes wrong; then the leak that the policy allows is planted anew, and ``caught`` so often."""
    coins, last = np.random.default_rng(0), {"jittered": math.inf}
    monkeypatch.setattr(SimulatedReleases, "thresholds", lambda self, kind: [0.05] * 7 + [last.get(kind, 0.05)])
    if caught < 1:
        monkeypatch.setattr(
            SimulatedReleases, "_planting", lambda self, kind, sizes: lambda step: coins.random() < caught
        )
    result = Controls(nulls=10).evaluate(inputs_of())
    estimate = result.estimate("smallest_leak_jittered")
    if caught == 1:
        assert (estimate.value, estimate.high, estimate.low) == (0.5, 0.5, 0.05)
        assert estimate.note == "a leak of 50.0% passed in 0 of 73 plantings"
        assert verdict(result) == "pass"
    else:
        assert math.isnan(estimate.value)
        assert "the gate is underpowered here: a leak of 50.0% passed in 4 of" in estimate.note
        assert verdict(result) == "not_assessable"


@pytest.mark.parametrize("closer", [True, False])
def test_a_kind_that_is_left_open_is_looked_at_closer_once(monkeypatch: pytest.MonkeyPatch, closer: bool) -> None:
    """With the limit that costs most, where there is one, and never again under the same limits."""
    seen = []

    def thresholds(self: SimulatedReleases, kind: str) -> list[float]:
        seen.append((kind, len(self._limits)))
        return [0.05] * 7 + [math.inf if kind == "rare" else 0.05]

    monkeypatch.setattr(SimulatedReleases, "thresholds", thresholds)
    monkeypatch.setattr(SimulatedReleases, "_planting", lambda self, kind, sizes: lambda step: True)
    whole = Controls()
    costly = "membership_inference.advantage_outliers"
    limits = tuple(limit for limit in whole.limits if closer or limit["statistic"] != costly)
    result = Controls(limits=limits, nulls=10).evaluate(inputs_of())
    assert seen == [(kind, 5) for kind in ("exact", "jittered", "resampled", "rare")] + [("rare", 6)] * closer
    assert "passed in 0 of 73 plantings" in result.estimate("smallest_leak_rare").note


@pytest.mark.parametrize("reference", [True, False])
def test_outliers_are_seen_as_the_gate_sees_them(reference: bool) -> None:
    inputs = inputs_of() if reference else inputs_of(reference=None)
    tables = SimulatedReleases(inputs, Controls())
    population = tables._population
    seen = tables._seen_by(tables._places["own"], population.member)
    rows = population.outlier_rows
    assert seen.scores.keys() == population.scores.keys() and ("distance / reference" in seen.scores) == reference
    for name, score in population.scores.items():
        np.testing.assert_array_equal(seen.scores[name][rows], score[rows])
    one, other = (advantage_outliers(which, 199, np.random.default_rng(0)) for which in (seen, population))
    assert one == other


def test_the_policy_in_force_and_the_settings_of_dcr_are_those_of_the_run() -> None:
    policy = Policy((Limit("dcr.identical_excess", 0.3, bound="lower"), Limit("controls.smallest_leak_exact", 0.05)))
    metrics, _ = choose_metrics({"dcr": {"negligible": 0.1}, "controls": {}}, policy)
    assert [limit["at_most"] for limit in metrics["controls"].settings()["limits"]] == [0.3]
    assert metrics["controls"].settings()["dcr_settings"]["negligible"] == 0.1
    assert metrics["controls"].settings()["doses"] == {"exact": 0.05, "jittered": 0.5, "resampled": 0.5, "rare": 0.5}
    assert Controls(permutations=499).under(policy, {}).settings()["permutations"] == 499  # where nobody else has some
    with pytest.raises(ConfigError, match="for each of exact, jittered, resampled, rare"):
        Controls(doses={"exact": 0.1})
    with pytest.raises(ConfigError, match="controls have nothing to prove"):
        choose_metrics(None, Policy((Limit("singling_out.risk", 0.1), Limit("controls.smallest_leak_exact", 0.05))))


@pytest.mark.parametrize(("kind", "planted"), [("rare", 50), ("resampled", 480)])
def test_outliers_see_each_simulated_release_as_a_search_of_it_does(kind: str, planted: int) -> None:
    simulated, rng = SimulatedReleases(inputs_of(), Controls()), np.random.default_rng(0)
    own = rng.permutation(simulated._places["own"])
    halves = rng.permutation(simulated._places["unseen"])[:300]
    for rows in (np.concatenate([own[planted:], simulated._places[kind][:planted]]), own[:40], halves):
        found = nearest_rows(simulated._outliers, simulated._candidates.take(rows)).distances[:, 0]
        np.testing.assert_array_equal(simulated._distances(rows), found)


@pytest.mark.parametrize("own", [0, 4])
def test_what_many_share_gives_nobody_away_and_few_rows_of_ones_own_blind_nobody(own: int) -> None:
    """27 cells, some thirty people in each: copies of train are as harmless as any other row."""
    rng = np.random.default_rng(3)
    cells = [pd.DataFrame(rng.integers(0, 3, (rows, 3)), columns=list("abc")).astype(str) for rows in (900, 400, 900)]
    cells[0].iloc[:own, 0] = list("wxyz")[:own]
    result = Controls().evaluate(prepare_inputs(*cells))
    assert {f.value for f in result.estimates[1:]} == {own / 900}
    note = "0.44% of the table at most" if own else "no such row is one person's own"
    assert all(note in f.note for f in result.estimates[1:])
    assert verdict(result) == "pass"


@pytest.mark.slow
def test_unseen_rows_that_are_refused_blind_the_gate() -> None:
    """A holdout of another kind of people: whoever is like train looks like a member."""
    elsewhere = HOLDOUT.assign(age=HOLDOUT["age"] + 60, income=HOLDOUT["income"] * 5)
    result = Controls().evaluate(inputs_of(holdout=elsewhere))
    assert "train and holdout are not alike" in result.estimate("false_alarm_rate").note
    assert verdict(result) == "not_assessable"


@pytest.mark.slow
@pytest.mark.parametrize("holdout", [440, 470])
def test_chance_at_the_edge_of_blindness_is_no_catch(holdout: int) -> None:
    """Where a limit can just be judged, or just not, nothing is caught by becoming underpowered."""
    result = Controls(draws=4).evaluate(inputs_of(holdout=HOLDOUT[:holdout]))
    assert all(not result.estimate(f"smallest_leak_{kind}").value < 0.004 for kind in KINDS)


def test_repeated_people_and_no_reference() -> None:
    subjects = {"train": np.arange(2400) // 3, "holdout": 10_000 + np.arange(700) // 3}
    result = Controls(draws=4, nulls=10).evaluate(replace(inputs_of(reference=None), subjects=subjects))
    assert result.estimate("false_alarm_rate").note.endswith("of 10 null tables")
    assert result.estimate("smallest_leak_exact").subjects == 234


@pytest.mark.parametrize("kind", KINDS)
def test_canaries_are_training_rows_changed_as_they_say(kind: str) -> None:
    real = Table.read(TRAIN)
    planted = canaries(kind, real, np.arange(300), 200, np.random.default_rng(0))
    assert len(planted) == 200
    assert len(canaries(kind, real, np.arange(50), 200, np.random.default_rng(0))) == 50
    train, rows = real.frame(), planted.frame()
    assert Table.of(rows, real.schema, where="canaries").frame().equals(rows)
    merged = rows.merge(train.drop_duplicates(), how="left", indicator=True, on=list(train.columns))
    identical = (merged["_merge"] == "both").mean()
    assert identical == 1 if kind == "exact" else identical < 0.5
    categories = ["plan", "active"]
    if kind in ("jittered", "rare"):
        source = train[categories].value_counts()
        assert set(map(tuple, rows[categories].drop_duplicates().to_numpy())) <= set(source.index)
        assert rows["score"].isna().any()  # a missing value stays missing
        for name in ("age", "income", "score", "since"):  # a moved number is one that somebody has
            assert set(rows[name].dropna()) <= set(train[name].dropna())
    if kind == "resampled":
        agree = [(rows.drop(columns=name).merge(train.drop(columns=name).drop_duplicates()).shape[0]) for name in train]
        assert sum(agree) >= 200  # all columns but one are those of one training row


def test_coarse_numbers_move_to_values_that_there_are() -> None:
    """A share that is 0 or 1 for nearly all, and a fee of few values: nobody else stands between them."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "limited": rng.choice([0.0, 0.144292, 1.0], 900, p=[0.85, 0.05, 0.1]),
            "fee": rng.choice([0.0, 450.0, 471.57, 500.0], 900),
            "visits": pd.array(rng.poisson(3, 900), dtype="Int64"),
        }
    )
    real = Table.read(frame)
    train = real.frame()
    rows = canaries("jittered", real, np.arange(900), 900, np.random.default_rng(0)).frame()
    source = train.iloc[np.random.default_rng(0).permutation(np.arange(900))].reset_index(drop=True)
    assert all(set(rows[name]) == set(train[name]) for name in train)
    assert (rows["limited"] == source["limited"]).mean() > 0.95
    assert 0.1 < (rows["fee"] != source["fee"]).mean() < 0.5  # 471.57 is near 450 and 500, 0 is far from all


def test_the_walk_finds_the_last_that_holds() -> None:
    for count in (1, 2, 30):
        for last in range(-1, count):
            for start in range(count):
                asked: list[int] = []

                def holds(place: int, asked: list[int] = asked, last: int = last) -> bool:
                    asked.append(place)
                    return place <= last

                assert last_true(count, start, holds) == last
                assert len(asked) == len(set(asked)) <= 8


def test_the_tolerance_factor_is_that_of_the_tables() -> None:
    """One-sided normal tolerance factors, 90 % confidence, 95 % content (Natrella 1963, table A-7)."""
    assert [round(_tolerance(n, 0.9), 3) for n in (4, 5, 10, 20)] == [3.957, 3.4, 2.568, 2.208]
    assert [round(_tolerance(n, 0.95), 3) for n in (4, 5, 10, 20)] == [5.144, 4.203, 2.911, 2.396]
