"""Metric ``holdout_leakage``: it detects a leaked holdout, whatever the leak of train."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from privacy_assets import evaluate
from privacy_assets.errors import InputError
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.holdout_leakage import HoldoutLeakage
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.policies import choose_metrics, default_policy, load_policy
from tests.metrics.given_tables import given
from tests.tables import metric_inputs


def population(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "x": rng.normal(size=rows).round(3),
            "y": rng.gamma(2, 3, rows).round(2),
            "n": rng.integers(0, 50, rows),
            "c": rng.choice(list("abcdef"), rows),
        }
    )


def inputs_of(synthetic: pd.DataFrame, seed: int = 0, **more: object) -> EvaluationInputs:
    return given(TRAIN, HOLDOUT, synthetic, REFERENCE, seed=seed, **more)


TABLES = [population(rows, seed) for rows, seed in ((900, 1), (300, 2), (300, 3))]
TRAIN, HOLDOUT, REFERENCE = TABLES
FRESH = population(900, 4)


def mixed(*parts: tuple[pd.DataFrame, int]) -> pd.DataFrame:
    return pd.concat(
        [frame.sample(rows, random_state=0) for frame, rows in parts], ignore_index=True
    )


SEEN = mixed((HOLDOUT, 60), (FRESH, 500))


def holds(synthetic: pd.DataFrame, seed: int = 0) -> bool:
    results = {"holdout_leakage": HoldoutLeakage().measure(inputs_of(synthetic, seed))}
    return default_policy(["holdout_leakage"]).judge(results).status == "pass"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_tables_made_without_the_holdout_show_nothing(seed: int) -> None:
    """This includes copies of train, and of other people outside of the split."""
    assert holds(FRESH, seed) and holds(TRAIN, seed)
    assert holds(mixed((TRAIN, 450), (FRESH, 450)), seed)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_a_holdout_that_was_seen_shows(share: float) -> None:
    assert not holds(mixed((HOLDOUT, round(300 * share)), (FRESH, 600)))


@pytest.mark.slow
def test_it_sees_what_the_comparison_with_train_cannot() -> None:
    """With copies of train and holdout, both are equally near, so only the reference reveals the
    leak.
    """
    both = mixed((TRAIN, 300), (HOLDOUT, 100), (FRESH, 500))
    policy = {"limits": [{"statistic": "dcr.identical_excess", "at_most": 0.2, "bound": "proven"}]}
    underpowered = evaluate(TRAIN, HOLDOUT, both, metrics="dcr", policy=policy, embedder=False)
    assert underpowered.verdict == "pass"
    seen = evaluate(
        TRAIN, HOLDOUT, both, reference=REFERENCE, metrics="holdout_leakage", embedder=False
    )
    assert seen.verdict == "undecided" and not seen.policy_verdict.outcomes[0].passed


@pytest.mark.slow
def test_a_reference_that_was_seen_shows_as_well() -> None:
    """The reference people are nearer than the holdout, which looks avoided."""
    assert not holds(mixed((FRESH, 900), (REFERENCE, 200)))


@pytest.mark.slow
def test_each_statistic_is_that_of_the_other_metric_on_the_other_roles() -> None:
    inputs = inputs_of(SEEN, seed=5)
    tables = {"train": inputs.tables["holdout"], "holdout": inputs.tables["reference"]}
    asked = metric_inputs(inputs.schema, {**tables, "synthetic": inputs.synthetic}, seed=5)
    estimates = {
        f.name: f
        for metric in (Dcr(), MembershipInference())
        for f in metric.measure(asked).estimates
    }
    for estimate in HoldoutLeakage().measure(inputs).estimates:
        other = {**estimates[estimate.name].to_json(), "measures": "evaluation", "question": ""}
        assert estimate.to_json() == pytest.approx(other, nan_ok=True), estimate.name


@pytest.mark.slow
def test_people_with_several_rows_are_witnesses_once() -> None:
    sizes = {"train": 900, "holdout": 300, "reference": 300}
    subjects = {
        role: np.arange(rows) // 3 + 10_000 * i for i, (role, rows) in enumerate(sizes.items())
    }
    found = HoldoutLeakage().measure(inputs_of(FRESH, subjects=subjects)).estimates
    assert {estimate.subjects for estimate in found} == {100, 200}


@pytest.mark.slow
def test_train_is_not_looked_at() -> None:
    inputs = inputs_of(SEEN)
    other = metric_inputs(inputs.schema, {**inputs.tables, "train": inputs.train.take(slice(10))})
    assert HoldoutLeakage().measure(inputs).estimates == HoldoutLeakage().measure(other).estimates


def test_without_a_reference_it_cannot_be_asked_for() -> None:
    with pytest.raises(InputError, match="metric holdout_leakage needs reference"):
        evaluate(TRAIN, HOLDOUT, FRESH, metrics="holdout_leakage", embedder=False)


@pytest.mark.parametrize("extends", [True, False])
@pytest.mark.parametrize(
    ("external", "metrics", "asked"),
    [
        ({"train", "holdout", "synthetic", "reference"}, None, True),
        ({"train", "holdout", "synthetic"}, None, False),
        ((), None, False),
        # a limited metric that does not run cannot pass
        ({"train", "holdout", "reference"}, ["dcr"], False),
    ],
)
def test_it_runs_by_default_where_holdout_and_reference_are_external(
    external, metrics, asked: bool, extends
) -> None:
    own = {"extends": "default", "limits": [{"statistic": "dcr.privacy_score", "at_most": 0.05}]}
    chosen, in_force = choose_metrics(
        metrics, load_policy(own) if extends else None, external=external
    )
    assert ("holdout_leakage" in chosen) is asked
    assert ("holdout_leakage" in in_force.metrics) is (asked or (extends and metrics is not None))
    at_most = [limit.value for limit in in_force.limits if limit.statistic == "dcr.privacy_score"]
    assert at_most == [0.05 if extends else 0.12]
