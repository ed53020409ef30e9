"""Gretel's attribute attacks: brute-force twins of their points, and releases of known truth."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from privacy_assets.metrics.attribute_inference import AttributeInference
from privacy_assets.metrics.attribute_inference.attacks import Targets, Trial
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.studies.data_privacy import DataPrivacy
from privacy_assets.studies.data_privacy.attribute import N_NEIGHBORS, N_QUASI_IDENTIFIERS, attack
from tests.metrics.given_tables import given
from tests.metrics.surveys import parts, survey
from tests.metrics.test_attribute_inference import ALL, COLUMNS, continuous, without


def metric(**settings: int) -> DataPrivacy:
    """The metric with few permutations."""
    return DataPrivacy(
        membership=MembershipInference(n_permutations=199),
        attribute=AttributeInference(n_permutations=199),
        **settings,
    )


QUICK = metric()


def test_points_against_a_naive_twin() -> None:
    train, holdout, fresh = continuous(40, 0), continuous(40, 1), continuous(90, 2)
    inputs = given(train, holdout, pd.concat([train[:20], fresh], ignore_index=True))
    outcome = attack(inputs, ALL, N_QUASI_IDENTIFIERS, N_NEIGHBORS)
    sides = (outcome.member[None].astype(float), 1.0 - outcome.member[None])
    rates = [outcome.rates(side)[0] for side in sides]
    lost = [
        max(0, t - h) / (1 - h) if h < 1 else 0
        for t, h in zip(rates[0][-2], rates[1][-2], strict=True)
    ]
    assert outcome.points(*sides)[0, -2] == pytest.approx([100 * (1 - x) for x in lost])


@pytest.mark.parametrize("k", [1, 3])
def test_gretels_own_score_against_a_naive_twin(k: int) -> None:
    """Accuracy on train times entropy relative to its mean. With all but one column known, there
    are no draws.
    """
    train, holdout, fresh = continuous(40, 0), continuous(40, 1), continuous(90, 2)
    frames = [
        frame.assign(constant="x", city=list("pqrs") * (len(frame) // 4) + ["p"] * (len(frame) % 4))
        for frame in (train, holdout, pd.concat([train[:20], fresh], ignore_index=True))
    ]
    inputs = given(*frames)
    result = metric(n_quasi_identifiers=5, n_neighbors=k).measure(inputs)
    trial = Trial.of(inputs, Targets.choose(inputs, ALL))
    (train, _, synthetic), real = frames, pd.concat(frames[:2])
    risks = {}
    for at, name in enumerate(inputs.schema.names):
        known, made = without(inputs, name)
        right = 0
        for row in range(40):
            near = synthetic[name].iloc[
                ((made - known[row]) ** 2).sum(axis=1).argsort(kind="stable")[:k]
            ]
            truth = train[name].iloc[row]
            if name == "when":
                days = abs((near.mean() - truth).total_seconds()) / 86_400
                right += days <= 0.01 * trial.targets[at].spread
            elif name in ("c", "city", "constant"):
                right += max(near, key=list(near).count) == truth
            else:
                right += abs(near.mean() - truth) <= 0.01 * abs(truth)
        risks[name] = right / 40 * stats.entropy(real[name].value_counts())
    mean = np.mean([stats.entropy(real[name].value_counts()) for name in risks])
    shown = {row["column"]: row["gretel"] for row in result.tables["columns"]}
    assert shown == pytest.approx(
        {name: 100 * max(0.0, 1 - risk / mean) for name, risk in risks.items()}, abs=1e-4
    )
    assert shown["constant"] == 100 and min(shown.values()) < 60
    assert result.tables["attacks"][-1]["gretel"] == pytest.approx(
        100 * (1 - np.mean(list(risks.values())) / mean), abs=1e-4
    )


def test_without_entropy_there_is_no_risk() -> None:
    constant = pd.DataFrame({"a": ["x"] * 60, "b": [1.0] * 60})
    result = QUICK.measure(given(constant, constant, constant))
    assert [row["gretel"] for row in result.tables["columns"]] == [100, 100]
    assert {row["gretel"] for row in result.tables["attacks"]} == {100}


def test_gretels_attack_is_set_by_two_settings() -> None:
    train, holdout, fresh = parts((300, 200, 300), 4)
    small = metric(n_quasi_identifiers=2, n_neighbors=3)
    result = small.measure(given(train, holdout, fresh))
    asked = [(row["quasi_identifiers"], row["neighbors"]) for row in result.tables["attacks"]]
    assert asked == [(2, 1), (2, 3), (4, 1), (4, 3), (7, 1), (7, 3)]
    subjects = result.estimate("attribute_protection_score").subjects
    assert subjects == 2 * 200, "all people up to the number in the holdout"
    one_column = given(*(frame.iloc[:, :1] for frame in (train, holdout, fresh)))
    assert small.measure(one_column).estimate("attribute_protection_score").measurable


def test_the_interval_of_the_score_is_that_of_drawing_people_anew() -> None:
    train, holdout, fresh = parts((120, 90, 120), 9)
    ids = {"train": np.arange(120) // 4, "holdout": 100 + np.arange(90) // 3}
    inputs = given(train, holdout, pd.concat([train[:60], fresh[60:]]), subjects=ids)
    outcome = attack(inputs, ALL, N_QUASI_IDENTIFIERS, N_NEIGHBORS)
    rng, scores = np.random.default_rng(1), []
    sides = np.flatnonzero(outcome.member), np.flatnonzero(~outcome.member)
    for _ in range(400):
        rates = []
        for side in sides:
            drawn = rng.choice(side, len(side))
            rates.append(
                [x.right[drawn].sum(axis=0) / x.guesses[drawn].sum(axis=0) for x in outcome.attacks]
            )
        lost = np.maximum(np.subtract(*rates), 0) / (1 - np.array(rates[1]))
        scores.append((100 * (1 - lost) @ outcome.weights).min())
    drawn = outcome.bootstrap(outcome.member, np.random.default_rng(2))
    assert drawn.mean() == pytest.approx(np.mean(scores), abs=3 * np.std(scores) / 12)
    assert drawn.std() == pytest.approx(np.std(scores), rel=0.2)


@pytest.fixture(scope="module")
def big() -> list[pd.DataFrame]:
    return parts((900, 700, 900), 11)


def score(train: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame) -> float:
    """The score of one release."""
    result = QUICK.measure(given(train, holdout, synthetic))
    return result.estimate("attribute_protection_score").value


def test_a_copy_is_the_worst_and_half_of_it_stands_between(big: list[pd.DataFrame]) -> None:
    result = QUICK.measure(given(big[0], big[1], big[0]))
    copied = result.estimate("attribute_protection_score").value
    half = pd.concat([big[0][:450], big[2][:450]], ignore_index=True)
    assert copied < 10 and copied < score(big[0], big[1], half) < score(*big)
    attacks = result.tables["attacks"]
    assert [(row["quasi_identifiers"], row["neighbors"]) for row in attacks] == [
        (3, 1),
        (3, 5),
        (4, 1),
        (4, 5),
        (7, 1),
        (7, 5),
    ]
    shown = {row["name"]: row for row in result.tables["graded_scores"]}
    assert shown["attribute inference protection"]["grade"] == "Poor"
    assert copied == min(row["protection"] for row in attacks)
    assert sum(row["weight"] for row in result.tables["columns"]) == pytest.approx(1)


def test_keeping_away_from_members_costs_no_points(big: list[pd.DataFrame]) -> None:
    train, holdout, _ = big
    assert score(train, holdout, pd.concat([holdout[:500], survey(400, 5)])) > 90


@pytest.mark.parametrize("kind", COLUMNS)
def test_tables_of_every_shape(kind: str) -> None:
    rng = np.random.default_rng(0)
    tables = [pd.DataFrame(COLUMNS[kind](n, rng)) for n in (200, 150, 180)]
    estimate = QUICK.measure(given(*tables)).estimate("attribute_protection_score")
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 100
    assert kind != "constant" or estimate.value == 100
