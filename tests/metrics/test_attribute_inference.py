"""Attribute inference: brute-force twins of its parts, and expected results for copies, fresh rows
and odd tables.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from privacy_assets.metrics.attribute_inference import AttributeInference
from privacy_assets.metrics.attribute_inference.attacks import (
    GIOMI,
    Target,
    Targets,
    Trial,
    entropies,
)
from privacy_assets.metrics.attribute_inference.metric import attack
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.tables.encoding import TabularEncoder
from privacy_assets.tables.table import Table
from tests.metrics.given_tables import given
from tests.metrics.surveys import parts, survey

QUICK = AttributeInference(n_permutations=199)
ALL = 10**6  # attacks: every row


def run(
    train: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame, metric=QUICK, **more
) -> MetricResult:
    return metric.measure(given(train, holdout, synthetic, **more))


# ---- the parts against twins ----


def without(inputs: EvaluationInputs, *names: str) -> tuple[np.ndarray, np.ndarray]:
    """Real and synthetic rows encoded without some columns, by the encoder of the reduced
    schema.
    """
    schema = inputs.schema.without(*names)
    real = [inputs.train, inputs.holdout]
    encoder = TabularEncoder.fit(real, schema, later=[inputs.synthetic])
    return tuple(
        encoder.transform(table).dense.astype(float)
        for table in (Table.stack(real), inputs.synthetic)
    )


def search(trial: Trial, kernel: str, *rest: object) -> np.ndarray:
    from privacy_assets.metrics import _kernels as kernels

    return getattr(kernels, kernel)(
        trial.queries, trial.points, trial.category, trial.start, 1e-5, *rest
    )


def trial_of(inputs: EvaluationInputs) -> tuple[Trial, np.ndarray]:
    """The trial over all rows, and the order of its synthetic rows."""
    order = np.argsort(inputs.row_ids["synthetic"], kind="stable")
    order = order[inputs.rng("attribute_inference ties").permutation(len(order))]
    return Trial.of(inputs, Targets.choose(inputs, ALL)), order


@pytest.mark.parametrize(("rows", "k"), [(3, 1), (3, 3), (700, 5)])
def test_neighbors_without_a_column_are_those_of_the_table_without_it(rows: int, k: int) -> None:
    inputs = given(*parts((60, 40, rows), 0))
    trial, order = trial_of(inputs)
    assert len(trial.attacked.rows) == 80
    places = search(trial, "nearest_without", k)
    for at, name in enumerate(inputs.schema.names):
        real, synthetic = without(inputs, name)
        exact = ((real[trial.attacked.rows][:, None] - synthetic[order][None]) ** 2).sum(axis=2)
        found = np.take_along_axis(exact, places[:, at], axis=1)
        assert np.sqrt(found) == pytest.approx(np.sqrt(np.sort(exact, axis=1)[:, :k]), abs=1e-5)
        assert all(len(set(row)) == k for row in places[:, at].tolist())


def test_ties_go_to_the_earlier_point_and_a_far_outlier_hides_nothing() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, (4, 900)).astype(np.float32)
    queries, points = codes[:, :50], codes[:, 50:]
    points = np.concatenate([points, [[1e15] * 850]]).astype(np.float32)
    queries = np.concatenate([queries, [[0] * 50]]).astype(np.float32)
    category, start = np.array([True] * 4 + [False]), np.arange(6)
    trial = SimpleNamespace(queries=queries, points=points, category=category, start=start)
    places = search(trial, "nearest_without", 5)
    chosen = search(trial, "nearest_by", np.tile([2, 0], (50, 1)), 5)
    mismatch = (queries[:4].T[:, None] != points[:4].T[None]).astype(float)
    assert (places[:, 4] == np.argsort(mismatch.sum(axis=2), axis=1, kind="stable")[:, :5]).all()
    assert (
        chosen == np.argsort(mismatch[:, :, [0, 2]].sum(axis=2), axis=1, kind="stable")[:, :5]
    ).all()


def test_neighbors_by_a_few_columns_of_each_row() -> None:
    inputs = given(*parts((50, 50, 400), 1))
    trial, order = trial_of(inputs)
    known = np.random.default_rng(0).permuted(np.tile(np.arange(8), (100, 1)), axis=1)[:, :3]
    places = search(trial, "nearest_by", known, 5)
    for row, at in enumerate(trial.attacked.rows[:40]):
        real, synthetic = without(
            inputs, *(name for i, name in enumerate(inputs.schema.names) if i not in known[row])
        )
        exact = np.sqrt(((synthetic[order] - real[at]) ** 2).sum(axis=1))
        assert exact[places[row]] == pytest.approx(np.sort(exact)[:5], abs=1e-5)


NAN = math.nan


@pytest.mark.parametrize(
    ("guess", "truth", "spread", "right"),
    [
        (105, 100, None, True),
        (105.1, 100, None, False),
        (-95, -100, None, True),
        (-100, 100, None, False),
        (0, 0, None, True),
        (1e-9, 0, None, False),
        (NAN, NAN, None, True),
        (NAN, 0, None, False),
        (0, NAN, None, False),
        (18_000.0, 18_004, 100.0, True),
        (18_000.0, 18_006, 100.0, False),
        (5.1, 5, 0.0, False),
    ],
)
def test_what_counts_as_right(
    guess: float, truth: float, spread: float | None, right: bool
) -> None:
    target = Target("x", np.array([truth], dtype=float), np.array([guess], dtype=float), spread)
    assert target.correct(target.synthetic, GIOMI).tolist() == [right]
    codes = Target("x", np.array([2, -1, -1, 3]), np.array([2, -1, 0, -1]))
    assert codes.correct(codes.synthetic, GIOMI).tolist() == [True, True, False, False]


def test_guesses_are_the_mode_or_the_mean_of_the_neighbors() -> None:
    codes = Target("x", np.zeros(4, dtype=np.int64), np.array([7, 3, 3, 5, -1]))
    order = np.array([[0, 1, 2, 3, 4], [0, 1, 3, 4, 2], [4, 1, 3, 0, 2], [3, 0, 4, 1, 4]])
    assert codes.guess(order).tolist() == [3, 3, 3, -1]
    assert codes.guess(np.array([[0, 3, 1]])).tolist() == [7]  # a tie: the nearest row
    assert codes.guess(order[:, :1]).tolist() == [7, 7, -1, 5]
    value = Target("x", np.zeros(2), np.array([1.0, NAN, 4.0, NAN, 10.0]))
    assert value.guess(np.array([[0, 1, 2], [0, 1, 3]])) == pytest.approx([2.5, NAN], nan_ok=True)


@pytest.mark.parametrize("spread", [None, 3.0])
@pytest.mark.parametrize("missing", [0.0, 0.1, 0.9, 1.0])
def test_baselines_against_every_constant(spread: float | None, missing: float) -> None:
    rng = np.random.default_rng(5)
    truth, synthetic = (
        np.where(rng.random(n) < missing, NAN, rng.normal(3, 4, n).round(1)) for n in (60, 80)
    )
    target = Target("x", truth, synthetic, spread)

    def rate(guess: float, of: np.ndarray) -> float:
        return float(Target("x", of, of, spread).correct(np.full(len(of), guess), GIOMI).mean())

    random = np.mean([rate(guess, truth) for guess in synthetic])
    right = {guess: rate(guess, synthetic) for guess in np.sort(synthetic)}
    best = max(right.values())
    constants = [rate(guess, truth) for guess in right if right[guess] == best]
    assert target.baseline(GIOMI) == pytest.approx(max(constants[0], random), abs=1e-12)
    codes = Target("x", np.array([1, 1, 0, 9]), np.array([1, 1, 1, 0]))
    assert (
        codes.baseline(GIOMI) == 0.5
        and Target("x", codes.truth, codes.truth[3:]).baseline(GIOMI) == 0.25
    )


def continuous(rows: int, seed: int) -> pd.DataFrame:
    """Without ties, whichever column is left out."""
    rng = np.random.default_rng(seed)
    at = pd.Timestamp("2022-05-01") + pd.to_timedelta(rng.integers(0, 10**9, rows), unit="s")
    return pd.DataFrame({"a": rng.lognormal(3, 0.1, rows), "b": rng.normal(50, 2, rows), "when": at,
                         "c": rng.choice(list("xyz"), rows)})  # fmt: skip


def test_rates_and_weights_against_a_naive_twin() -> None:
    train, holdout, fresh = continuous(40, 0), continuous(40, 1), continuous(90, 2)
    synthetic = pd.concat([train[:20], fresh], ignore_index=True)
    inputs = given(train, holdout, synthetic)
    outcome, trial = attack(inputs, ALL)
    labels = outcome.subjects.member[None].astype(float)
    rates = [rate[0] for rate in outcome.rates(labels)]

    expected = np.zeros((2, 4))
    for at, name in enumerate(inputs.schema.names):
        real, made = without(inputs, name)
        for row in range(80):
            place = int(((made - real[row]) ** 2).sum(axis=1).argmin())
            guess, truth = synthetic[name][place], pd.concat([train, holdout])[name].iloc[row]
            if name == "when":
                right = (
                    abs((guess - truth).total_seconds()) / 86_400
                    <= GIOMI * trial.targets[at].spread
                )
            else:
                right = guess == truth if name == "c" else abs(guess - truth) <= GIOMI * abs(truth)
            expected[0 if row < 40 else 1, at] += right / 40
    assert rates[0] == pytest.approx(expected[0]) and rates[1] == pytest.approx(expected[1])

    share = pd.concat([train, holdout])["c"].value_counts(normalize=True)
    entropy = np.array([math.log(80)] * 3 + [-(share * np.log(share)).sum()])
    assert outcome.weights == pytest.approx(entropy / entropy.sum())
    excess = outcome.excess(labels)[0]
    assert excess == pytest.approx(
        [*(expected[0] - expected[1]), (expected[0] - expected[1]) @ outcome.weights]
    )
    wilson = (expected * 40 + 1.959964**2 / 2) / (40 + 1.959964**2)
    assert outcome.risk(labels)[0] == pytest.approx(
        (wilson[0] - wilson[1]) / (1 - wilson[1]), abs=1e-6
    )


def test_rows_of_a_person_count_for_the_person() -> None:
    rows = given(
        *parts((60, 40, 80), 3),
        subjects={"train": np.arange(60) // 3, "holdout": 100 + np.arange(40) // 2},
    )
    outcome, trial = attack(rows, ALL)
    assert len(outcome.subjects.member) == 40 and outcome.subjects.member.sum() == 20
    assert np.bincount(trial.attacked.codes).tolist() == [
        3 if member else 2 for member in outcome.subjects.member
    ]
    assert (outcome.giomi.guesses.sum(axis=0) == 100).all()
    assert len(Targets.choose(rows, 20).rows) == pytest.approx(40, abs=10)
    assert Targets.choose(rows, 20).member.sum() * 2 == len(Targets.choose(rows, 20).member)


# ---- expected results ----


@pytest.fixture(scope="module")
def big() -> list[pd.DataFrame]:
    return parts((900, 700, 900), 11)


@pytest.fixture(scope="module")
def copied(big: list[pd.DataFrame]) -> MetricResult:
    return run(big[0], big[1], big[0])


@pytest.fixture(scope="module")
def fresh(big: list[pd.DataFrame]) -> MetricResult:
    return run(*big)


def test_a_copy_is_the_worst_and_half_of_it_stands_between(big, copied: MetricResult) -> None:
    excess, risk = copied.estimates
    assert excess.low > 0.3 and risk.value > 0.95
    half = run(big[0], big[1], pd.concat([big[0][:450], big[2][:450]], ignore_index=True))
    assert excess.value > half.estimate("excess").low > 0.05
    for row in copied.tables["columns"]:
        assert row["train"] >= row["holdout"] and row["low"] <= row["excess"] <= row["high"]
    assert sum(row["weight"] for row in copied.tables["columns"]) == pytest.approx(1)


@pytest.mark.slow
def test_fresh_rows_sit_at_the_null() -> None:
    z, wide = [], 0
    for seed in range(20):
        excess, _ = run(*parts((200, 200, 200), 100 + seed)).estimates
        wide += not excess.low <= 0 <= excess.high
        z.append(excess.value)
    assert wide <= 1 and abs(np.mean(z)) < 0.05


def test_keeping_away_from_members_is_seen_from_the_other_side(big: list[pd.DataFrame]) -> None:
    train, holdout, _ = big
    synthetic = pd.concat([holdout[:500], survey(400, 5)], ignore_index=True)
    result = run(train, holdout, synthetic)
    assert result.estimate("excess").high < -0.05


def test_rows_repeated_by_their_own_people_are_no_new_evidence(big, fresh: MetricResult) -> None:
    train, holdout, synthetic = big
    ids = {"train": np.tile(np.arange(900), 3), "holdout": 1000 + np.tile(np.arange(700), 3)}
    thrice = [pd.concat([x] * 3, ignore_index=True) for x in (train, holdout)]
    tripled = run(
        *thrice, synthetic, AttributeInference(n_permutations=199, max_targets=6000), subjects=ids
    )
    for old, new in zip(fresh.estimates[:1], tripled.estimates[:1], strict=True):
        assert new.subjects == old.subjects and new.n == 3 * old.n
        assert new.value - new.low == pytest.approx(old.value - old.low, rel=0.35)


COLUMNS = {
    "one number": lambda n, rng: {"a": rng.normal(size=n)},
    "two": lambda n, rng: {"a": rng.choice(list("ab"), n), "b": rng.normal(size=n)},
    "constant": lambda n, rng: {
        "a": ["x"] * n,
        "b": [3.0] * n,
        "c": [True] * n,
        "d": [pd.Timestamp("2020")] * n,
    },
    "unique": lambda n, rng: {"a": rng.permutation(10**6)[:n].astype(str), "b": rng.normal(size=n)},
    "mostly missing": lambda n, rng: {
        "a": np.where(rng.random(n) < 0.9, NAN, 1.5),
        "b": rng.choice(["u", None], n),
    },
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_tables_of_every_shape(kind: str) -> None:
    rng = np.random.default_rng(0)
    train, holdout, fresh = (pd.DataFrame(COLUMNS[kind](n, rng)) for n in (200, 150, 180))
    excess, risk = run(train, holdout, fresh).estimates
    assert excess.measurable and risk.measurable and excess.low <= 0 <= excess.high
    if kind == "constant":
        assert excess.value == 0
    if kind in ("two", "unique"):
        assert run(train, holdout, train).estimate("excess").low > 0.02


def test_weights_are_entropies_with_missing_as_a_value() -> None:
    frame = pd.DataFrame({"a": ["x", "x", None, None], "b": [1.0, 1, 1, 1], "c": [1.0, 2, 3, NAN]})
    assert entropies(given(frame, frame[:0], frame)) == pytest.approx([math.log(2), 0, math.log(4)])


def test_a_column_that_is_guessed_alike_for_everybody_has_an_interval() -> None:
    frames = [frame.assign(constant="x") for frame in parts((300, 200, 300), 0)]
    row = next(row for row in run(*frames).tables["columns"] if row["column"] == "constant")
    assert row["excess"] == 0 and -0.05 < row["low"] < 0 < row["high"] < 0.05
