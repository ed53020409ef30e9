"""Metric ``holdout_leakage``: a holdout that was seen shows, whatever train shows."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from privacy_assets import Policy, evaluate
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.evaluation import choose_metrics
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.holdout_leakage import HoldoutLeakage
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.registry import default_metrics
from privacy_assets.tables.schema import infer_schema
from privacy_assets.tables.table import Table
from tests.tables import metric_inputs

NAMES = [spec.name for spec in HoldoutLeakage.statistics]


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


def inputs_of(synthetic: pd.DataFrame, seed: int = 0, **more: object) -> MetricInputs:
    roles = dict(zip(("train", "holdout", "reference"), TABLES, strict=True))
    frames = {**roles, "synthetic": synthetic}
    schema = infer_schema(pd.concat(frames.values()))
    tables = {role: Table.of(frame, schema, where=role, smallest=0).frame() for role, frame in frames.items()}
    return metric_inputs(schema, tables, seed=seed, **more)  # type: ignore[arg-type]


TABLES = [population(rows, seed) for rows, seed in ((900, 1), (300, 2), (300, 3))]
TRAIN, HOLDOUT, REFERENCE = TABLES
FRESH = population(900, 4)


def mixed(*parts: tuple[pd.DataFrame, int]) -> pd.DataFrame:
    return pd.concat([frame.sample(rows, random_state=0) for frame, rows in parts], ignore_index=True)


def holds(synthetic: pd.DataFrame, seed: int = 0) -> bool:
    results = {"holdout_leakage": HoldoutLeakage().evaluate(inputs_of(synthetic, seed))}
    return Policy.default(["holdout_leakage"]).judge(results).verdict == "pass"


@pytest.mark.parametrize("seed", range(3))
def test_tables_made_without_the_holdout_show_nothing(seed: int) -> None:
    """Also when they are copies of train, or of the other people who were not in the split."""
    assert holds(FRESH, seed) and holds(TRAIN, seed)
    assert holds(mixed((TRAIN, 450), (FRESH, 450)), seed)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_a_holdout_that_was_seen_shows(share: float) -> None:
    seen = mixed((HOLDOUT, round(300 * share)), (FRESH, 600))
    assert not holds(seen)


def test_it_sees_what_the_comparison_with_train_cannot() -> None:
    """Copies of train and holdout alike: members are no nearer than the holdout, and only the reference tells."""
    both = mixed((TRAIN, 300), (HOLDOUT, 100), (FRESH, 500))
    policy = {"limits": [{"statistic": "dcr.identical_excess", "at_most": 0.2, "bound": "lower"}]}
    underpowered = evaluate(TRAIN, HOLDOUT, both, metrics="dcr", policy=policy, embedder=False)
    assert underpowered.verdict == "pass"
    seen = evaluate(TRAIN, HOLDOUT, both, reference=REFERENCE, metrics="holdout_leakage", embedder=False)
    assert seen.verdict == "not_assessable" and not seen.judgement.outcomes[0].passed


def test_avoiding_the_holdout_shows_as_well() -> None:
    """Rows near the holdout were taken out of the table: so somebody had it."""
    near = FRESH.assign(x=FRESH["x"] + 0.0)
    repeated = pd.concat([near, REFERENCE.sample(200, random_state=0)], ignore_index=True)
    assert not holds(repeated)


def test_each_statistic_is_that_of_the_other_metric_on_the_other_roles() -> None:
    inputs = inputs_of(mixed((HOLDOUT, 60), (FRESH, 500)), seed=5)
    tables = {"train": inputs.tables["holdout"], "holdout": inputs.tables["reference"]}
    asked = metric_inputs(inputs.schema, {**tables, "synthetic": inputs.synthetic}, seed=5)
    estimates = {f.name: f for metric in (Dcr(), MembershipInference()) for f in metric.measure(asked).estimates}
    for estimate in HoldoutLeakage().measure(inputs).estimates:
        own, other = estimate.to_json(), {**estimates[estimate.name].to_json(), "about": "gate"}
        assert own.pop("about") == other.pop("about") and own.pop("direction") == other.pop("direction")
        assert own.pop("note") == other.pop("note")
        assert own == pytest.approx(other, nan_ok=True), estimate.name


def test_people_with_several_rows_are_witnesses_once() -> None:
    subjects = {
        role: np.arange(len(frame)) // 3 + 10_000 * i
        for i, (role, frame) in enumerate(zip(("train", "holdout", "reference"), TABLES, strict=True))
    }
    inputs = inputs_of(FRESH, subjects=subjects)
    for estimate in HoldoutLeakage().measure(inputs).estimates:
        assert estimate.subjects in (100, 200), estimate
    alone = HoldoutLeakage().measure(inputs_of(FRESH))
    assert {estimate.subjects for estimate in alone.estimates} != {100, 200}


def test_train_is_not_looked_at() -> None:
    inputs = inputs_of(mixed((HOLDOUT, 60), (FRESH, 500)))
    other = inputs_of(mixed((HOLDOUT, 60), (FRESH, 500)))
    other = metric_inputs(other.schema, {**other.tables, "train": other.tables["train"].take(slice(10))}, seed=0)
    assert HoldoutLeakage().measure(inputs).estimates == HoldoutLeakage().measure(other).estimates


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_rows_cannot_pass(rows: int) -> None:
    inputs = inputs_of(FRESH)
    few = metric_inputs(
        inputs.schema, {**inputs.tables, "reference": inputs.tables["reference"].take(slice(rows))}, seed=0
    )
    result = HoldoutLeakage().evaluate(few)
    assert any(math.isnan(estimate.value) for estimate in result.estimates)
    assert Policy.default(["holdout_leakage"]).judge({"holdout_leakage": result}).verdict != "pass"


def test_it_runs_where_holdout_and_reference_are_external_or_when_asked_for() -> None:
    assert "holdout_leakage" not in default_metrics()
    assert "holdout_leakage" not in default_metrics({"train", "holdout", "synthetic"})
    assert "holdout_leakage" in default_metrics({"train", "holdout", "synthetic", "reference"})
    with pytest.raises(InputError, match="metric holdout_leakage needs reference"):
        evaluate(TRAIN, HOLDOUT, FRESH, metrics="holdout_leakage", embedder=False)
    with pytest.raises(ConfigError, match="permutations"):
        HoldoutLeakage(permutations=10)


@pytest.mark.parametrize(
    ("external", "metrics", "asked"),
    [
        ({"train", "holdout", "reference"}, None, True),
        ({"train", "holdout"}, None, False),
        ((), None, False),
        ({"train", "holdout", "reference"}, ["dcr"], False),  # metrics of one's own are left as they are
    ],
)
def test_a_policy_that_extends_the_default_asks_for_it_where_the_default_does(external, metrics, asked: bool) -> None:
    policy = Policy.from_dict({"extends": "default", "limits": [{"statistic": "dcr.privacy_score", "at_most": 0.05}]})
    chosen, in_force = choose_metrics(metrics, policy, external=external)
    assert ("holdout_leakage" in chosen) is asked
    assert ("holdout_leakage" in in_force.metrics) is asked
    assert [limit.value for limit in in_force.limits if limit.statistic == "dcr.privacy_score"] == [0.05]
