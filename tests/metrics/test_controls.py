"""Metric ``controls``: planted leaks are detected at the stated size, and null tables pass."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import ConfigError
from privacy_assets.evaluation.measuring import run_metrics
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.controls import KINDS, Controls, PlantedReleases, canaries, seen_dose
from privacy_assets.metrics.copies import Copies
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.policies import choose_metrics
from privacy_assets.policy import Limit, Policy
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.tables.table import Table
from tests.tables import with_tables


def people(rows: int, seed: int) -> pd.DataFrame:
    """Mixed rows with outliers among them, a date and missing values."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, rows),
            "income": rng.lognormal(10, 0.7, rows).round(),
            "score": rng.normal(0, 1, rows).round(3),
            "plan": rng.choice(
                list("abcdefgh"), rows, p=[0.4, 0.3, 0.1, 0.08, 0.06, 0.03, 0.02, 0.01]
            ),
            "active": rng.random(rows) < 0.3,
            "since": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(rng.integers(0, 1500, rows), unit="D"),
        }
    )
    return frame.assign(score=frame["score"].where(rng.random(rows) > 0.1))


TRAIN, HOLDOUT, REFERENCE, FRESH = (
    people(rows, seed) for rows, seed in ((2400, 1), (700, 2), (700, 3), (2400, 4))
)


@cache
def fresh() -> EvaluationInputs:
    """Prepared once, because metrics cache their preparation with the table."""
    return read_inputs(TRAIN, HOLDOUT, FRESH, REFERENCE)


def inputs_of(
    synthetic: pd.DataFrame = FRESH, seed: int = 0, **tables: pd.DataFrame | None
) -> EvaluationInputs:
    if synthetic is FRESH and seed == 0 and not tables:
        return fresh()
    given = {"train": TRAIN, "holdout": HOLDOUT, "reference": REFERENCE, **tables}
    return read_inputs(given["train"], given["holdout"], synthetic, given["reference"], seed=seed)


@pytest.fixture(scope="module")
def measured() -> MetricResult:
    return Controls().measure(inputs_of())


LOOKED_AT = Policy(Controls().limits)
OWN = Policy(tuple(Limit(f"controls.smallest_leak_{kind}", at_most=0.3) for kind in KINDS))


def judged(inputs: EvaluationInputs) -> set[str]:
    """Computed independently of controls: keys of the limits that fail, by the metrics
    themselves.
    """
    metrics = {"copies": Copies(), "membership_inference": MembershipInference(n_permutations=199)}
    outcomes = LOOKED_AT.judge(run_metrics(inputs, metrics)).outcomes
    return {outcome.limit.key for outcome in outcomes if outcome.status == "fail"}


@pytest.mark.slow
def test_an_honest_table_of_this_size_says_how_small_a_leak_it_shows(
    measured: MetricResult,
) -> None:
    assert (measured.estimate("false_alarm_rate").value, judged(inputs_of())) == (0, set())
    for kind in KINDS:
        estimate = measured.estimate(f"smallest_leak_{kind}")
        assert 0.0005 < estimate.low < estimate.value < estimate.high < 0.3, kind
        assert estimate.note.startswith("6 of 6 plantings of up to"), kind
    assert (
        measured.estimate("smallest_leak_rare").value
        < measured.estimate("smallest_leak_resampled").value
    )
    assert not Controls.default_limits and OWN.judge({"controls": measured}).status == "pass"


@pytest.mark.weekly
@pytest.mark.parametrize("kind", KINDS)
def test_the_stated_leak_is_seen_and_a_third_of_it_often_not(measured, kind: str) -> None:
    """By the metrics themselves, on tables that this test builds."""
    stated, inputs = measured.estimate(f"smallest_leak_{kind}").value, inputs_of()
    rng = np.random.default_rng(7)
    # Independently of the metric: the outliers, by brute force over the encoded rows.
    real = np.vstack([_matrix(inputs, "train"), _matrix(inputs, "holdout")])
    places = (
        np.flatnonzero(_outliers(real)[: len(TRAIN)]) if kind == "rare" else np.arange(len(TRAIN))
    )
    seen = dict.fromkeys((1.0, 1 / 3), 0)
    for part in seen:
        for _ in range(6):
            count = max(1, round(part * stated / (1 - part * stated) * len(FRESH)))
            rows = Table.stack([inputs.synthetic, canaries(kind, inputs.train, places, count, rng)])
            seen[part] += bool(judged(with_tables(inputs, {**inputs.tables, "synthetic": rows})))
    assert seen[1.0] >= 5 and seen[1 / 3] <= 4


def _matrix(inputs: EvaluationInputs, role: str) -> np.ndarray:
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
@pytest.mark.parametrize("reference", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in ("exact", "jittered") else pytest.mark.slow)
        for kind in KINDS
    ],
)
def test_what_is_planted_piece_by_piece_is_seen_as_the_metrics_see_the_whole(
    kind: str, reference: bool
) -> None:
    inputs = inputs_of() if reference else inputs_of(reference=None)
    releases = PlantedReleases(inputs, Controls())
    planted = releases.positions[kind][:300]
    pieces = releases._as_it_is
    for part in np.array_split(planted, 3):
        pieces = releases._with(pieces, part)
    rows = np.concatenate([np.arange(len(FRESH)), planted])
    whole = with_tables(inputs, {**inputs.tables, "synthetic": releases.candidates.take(rows)})
    metrics = {"copies": Copies(), "membership_inference": MembershipInference(n_permutations=199)}
    results = run_metrics(whole, metrics)
    for statistic in LOOKED_AT.limits:
        name = statistic.statistic.partition(".")[2]
        found, other = (
            releases._estimate(statistic.statistic, pieces),
            results[statistic.metric].estimate(name),
        )
        if name != "partial_excess":  # which reports the strongest of several entries
            assert found.value == pytest.approx(other.value, abs=1e-12), name
        assert (found.n, found.subjects) == (other.n, other.subjects)
        # the numbers of permutations differ
        reach = 0.3 if name == "partial_excess" else 0.02
        assert abs(found.low - other.low) < reach and abs(found.high - other.high) < reach


def test_too_few_people_are_not_measurable() -> None:
    result = Controls().measure(inputs_of(holdout=HOLDOUT[:19], reference=None))
    assert all(
        math.isnan(estimate.value) and estimate.measures == "evaluation"
        for estimate in result.estimates
    )
    assert OWN.judge({"controls": result}).status == "undecided"


@pytest.mark.weekly
def test_fewer_people_see_less_and_there_is_always_a_number() -> None:
    values = []
    for holdout in (700, 100, 40):
        result = Controls().measure(inputs_of(holdout=HOLDOUT[:holdout], reference=None))
        values.append([result.estimate(f"smallest_leak_{kind}").value for kind in KINDS])
    assert np.all(np.array(values) > 0) and np.all(np.diff(np.mean(values, axis=1)) > 0)
    assert OWN.judge({"controls": result}).status == "undecided"


def test_a_table_that_leaks_itself_is_no_false_alarm() -> None:
    """With shuffled labels, a copy of train is unrelated to membership."""
    result = Controls(draws=4).measure(inputs_of(TRAIN))
    assert result.estimate("false_alarm_rate").value <= 0.1
    # Planting copies cannot fail a limit that these copies already break.
    assert math.isnan(result.estimate("smallest_leak_exact").value)
    note = result.estimate("smallest_leak_exact").note
    assert "every limit on copies fails for the table itself" in note


def test_a_limit_that_always_breaks_shows_as_false_alarms() -> None:
    policy = Policy(
        (
            Limit("copies.partial_excess", at_most=-0.9, bound="proven"),
            Limit("controls.false_alarm_rate", 0.1, bound="proven"),
        )
    )
    metrics, _ = choose_metrics(["controls"], replace(policy, settings={"controls": {"draws": 4}}))
    result = metrics["controls"].measure(inputs_of())
    assert result.estimate("false_alarm_rate").value == 1
    assert policy.judge({"controls": result}).outcomes[1].status == "undecided"


@pytest.mark.slow
def test_a_loose_policy_is_blind_and_says_that_it_lies_beyond_what_was_planted() -> None:
    loose = Policy(
        (Limit("copies.copied_share", at_most=1.0), Limit("controls.smallest_leak_exact", 0.1))
    )
    metrics, _ = choose_metrics(["controls"], replace(loose, settings={"controls": {"draws": 4}}))
    estimate = metrics["controls"].measure(inputs_of()).estimate("smallest_leak_exact")
    assert 0.2 < estimate.low < estimate.value <= estimate.high <= 1
    assert estimate.note == "0 of 4 plantings of up to 0.2 were detected"
    outcome = loose.judge({"controls": MetricResult("controls", (estimate,))}).outcomes[1]
    assert outcome.status == "undecided" and "too weak" in outcome.reason


def test_the_policy_in_force_and_the_settings_of_copies_are_those_of_the_run() -> None:
    policy = Policy(
        (Limit("copies.copied_share", 0.3), Limit("controls.smallest_leak_exact", 0.05))
    )
    given = {"copies": {"max_holders": 3}, "membership_inference": {"max_targets": 1000}}
    metrics, _ = choose_metrics(None, replace(policy, settings=given))
    settings = metrics["controls"].settings()
    assert [limit["at_most"] for limit in settings["limits"]] == [0.3]
    assert (settings["copies"]["max_holders"], settings["max_targets"]) == (3, 1000)
    assert (
        Controls(n_permutations=599).for_limits(policy.limits, {}).settings()["n_permutations"]
        == 599
    )
    with pytest.raises(ConfigError, match="doses: must be ascending"):
        Controls(doses=(0.1, 0.05))
    with pytest.raises(ConfigError, match="controls cannot run"):
        choose_metrics(
            None,
            Policy((Limit("singling_out.risk", 0.1), Limit("controls.smallest_leak_exact", 0.05))),
        )


@pytest.mark.slow
def test_a_budget_looks_at_some_people_and_still_says_how_small_a_leak_shows() -> None:
    some = Controls(draws=4, max_targets=1500, copies=Copies(max_targets=1500))
    whole, few = Controls(draws=4).measure(inputs_of()), some.measure(inputs_of())
    for kind in KINDS:
        name = f"smallest_leak_{kind}"
        assert few.estimate(name).value >= whole.estimate(name).value / 2, kind
        assert few.estimate(name).measurable


@pytest.mark.parametrize("own", [0, 4])
def test_what_many_share_gives_nobody_away(own: int) -> None:
    """27 cells with about thirty people each: copies of train are as harmless as any other row."""
    rng = np.random.default_rng(3)
    cells = [
        pd.DataFrame(rng.integers(0, 3, (rows, 3)), columns=list("abc")).astype(str)
        for rows in (900, 400, 900)
    ]
    cells[0].iloc[:own, 0] = list("wxyz")[:own]
    result = Controls().measure(read_inputs(*cells))
    if own:  # four people can be copied: a leak too small to detect
        assert "0 of 6 plantings of up to 0.0044" in result.estimate("smallest_leak_exact").note
    else:
        assert not any(f.measurable for f in result.estimates[1:])
        assert all("no such row belongs to a single person" in f.note for f in result.estimates[1:])


@pytest.mark.slow
def test_repeated_people_no_reference_and_any_order_of_rows() -> None:
    subjects = {"train": np.arange(2400) // 3, "holdout": 10_000 + np.arange(700) // 3}
    inputs = inputs_of(reference=None)
    inputs = with_tables(inputs, inputs.tables, subjects=subjects)
    result = Controls(draws=4).measure(inputs)
    assert result.estimate("false_alarm_rate").note.endswith(
        "of 10 tables with shuffled labels fail"
    )
    assert result.estimate("smallest_leak_exact").subjects == 234
    mixed = np.random.default_rng(0).permutation(2400)
    tables = {**inputs.tables, "train": inputs.train.take(mixed)}
    other = Controls(draws=4).measure(
        with_tables(inputs, tables, subjects={**subjects, "train": subjects["train"][mixed]})
    )
    assert other.estimates == result.estimates


# ---------------------------------------------------------------- the detectable dose


def between(
    thresholds: np.ndarray, doses: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2)
) -> list[tuple[float, float]]:
    """The doses between which each threshold is."""
    ends = np.array([0.0, *doses, math.inf])
    places = np.searchsorted(ends, thresholds)
    return [(float(ends[place - 1]), float(ends[place])) for place in places]


def test_the_dose_is_between_the_doses_where_plantings_began_to_be_seen() -> None:
    low, value, high = seen_dose([(0.01, 0.02)] * 6, 0.01)
    assert 0.01 < low < value < high < 0.05
    assert seen_dose([(0.0, 0.01)] * 6, 0.01)[1] < 0.015
    beyond = seen_dose([(0.2, math.inf)] * 6, 0.01)
    assert 0.2 < beyond[0] < beyond[1] <= beyond[2] <= 1
    mixed = [(0.01, 0.02)] * 5 + [(0.2, math.inf)]
    assert seen_dose(mixed, 0.01) == seen_dose(mixed[::-1], 0.01)
    assert seen_dose(mixed, 0.01)[1] > value


@pytest.mark.slow
def test_the_interval_holds_the_dose_of_a_known_law() -> None:
    rng, held = np.random.default_rng(0), []
    for _ in range(200):
        middle, spread = rng.uniform(np.log(0.01), np.log(0.1)), rng.uniform(0.15, 0.7)
        low, _, high = seen_dose(between(np.exp(rng.normal(middle, spread, 6))), 0.01)
        held.append(low <= np.exp(middle + 1.645 * spread) <= high)
    assert np.mean(held) > 0.8


# ---------------------------------------------------------------- canaries


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
        assert rows["score"].isna().any()  # a missing value remains missing
        for name in ("age", "income", "score", "since"):  # a moved number is a real value
            assert set(rows[name].dropna()) <= set(train[name].dropna())
    if kind == "resampled":
        agree = [
            (rows.drop(columns=name).merge(train.drop(columns=name).drop_duplicates()).shape[0])
            for name in train
        ]
        assert sum(agree) >= 200  # all columns except one equal a training row's


def test_coarse_numbers_move_to_values_that_there_are() -> None:
    """A share that is 0 or 1 for nearly all rows, and a fee with few values: there are no real
    values in between.
    """
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
    # 471.57 is near 450 and 500, 0 is far from all
    assert 0.1 < (rows["fee"] != source["fee"]).mean() < 0.5
